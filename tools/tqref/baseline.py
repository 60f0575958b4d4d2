# SPDX-License-Identifier: MIT
"""Uniform affine baselines (docs/format.md, chapter 10) and the paper's mse and prod quantisers
(chapter 11)."""
import math
import struct
from functools import lru_cache
from .int_tables import CODEBOOKS, Codebook
from .norm_codebook import (PLANES, coordinates, level_of, norm, pack_planes, quantise, reconstruct,
                            rotated, unpack_planes)
from .num import div, f16_sat_bits, f16_value, f32, f32v, pack_lsb, rint, unpack_lsb
from .rotate import hadamard, inv_sqrt, signs, threefry_words

# ---- affine8, affine4 -------------------------------------------------------------------

GROUPS = (32, 64, 128)


def affine_encode(row, bits, group=64):
    m = float((1 << bits) - 1)
    codes, scales, offsets = [], [], []
    for g in range(0, len(row), group):
        x = row[g:g + group]
        mn, mx = min(x) + 0.0, max(x)
        scales.append(f16_sat_bits(f32(f32(mx - mn) / m)))
        offsets.append(f16_sat_bits(mn))
        s, o = f16_value(scales[-1]), f16_value(offsets[-1])
        codes += [int(min(max(rint(div(f32(v - o), s)), 0.0), m)) if s else 0 for v in x]
    meta = scales + offsets
    return pack_lsb(codes, bits) + struct.pack("<%dH" % len(meta), *meta)


def affine_decode(block, bits, dim, group=64):
    n, g = dim * bits // 8, -(-dim // group)
    w = [f16_value(v) for v in struct.unpack("<%dH" % (2 * g), block[n:])]
    return [f32(f32(float(c) * w[i // group]) + w[g + i // group])
            for i, c in enumerate(unpack_lsb(block[:n], bits, dim))]


# ---- mse and prod -----------------------------------------------------------------------

ONE_BIT = Codebook((1,), f32(math.sqrt(2.0 / math.pi)), 6)
MSE_PLANES = dict(PLANES)
MSE_PLANES[1] = ((1, 0),)


def _table(bits):
    return ONE_BIT if bits == 1 else CODEBOOKS[bits]


def _quantise(p, bits):
    return [1 if v < 0 else 0 for v in p] if bits == 1 else quantise(p, bits, 64)


def _level(code, bits):
    return (-1 if code else 1) if bits == 1 else level_of(code, bits)


def _scale(r, dim, saturate):
    return 0x7BFF if saturate else f16_sat_bits(f32(r * f32(1.0 / dim)))


def mse_encode(row, bits):
    dim = len(row)
    y, saturate = rotated(row)
    if y is None:
        return bytes(dim * bits // 8 + 2)
    p, _ = coordinates(y, bits, _table(bits))
    codes = _quantise(p, bits)
    return (pack_planes(codes, MSE_PLANES[bits])
            + _scale(norm(y), dim, saturate).to_bytes(2, "little"))


def mse_decode(block, bits, dim):
    codes = unpack_planes(block, MSE_PLANES[bits], dim)
    return reconstruct([_level(c, bits) for c in codes],
                       f16_value(int.from_bytes(block[-2:], "little")), _table(bits).unit)


@lru_cache(maxsize=None)
def mixer_signs(dim):
    """The two sign vectors of the transform H diag(b) H diag(a)."""
    return tuple(tuple(-1.0 if w >> 31 else 1.0 for w in threefry_words(0, key, dim))
                 for key in (43, 44))


def times(x, sign):
    return [v * s for v, s in zip(x, sign)]


def mix(x):
    a, b = mixer_signs(len(x))
    return hadamard(times(hadamard(times(x, a)), b))


def unmix(x):
    a, b = mixer_signs(len(x))
    return times(hadamard(times(hadamard(x), b)), a)


def kappa(dim):
    d = float(dim)
    return f32(math.sqrt(math.pi / 2.0) / d
               * (1.0 - 1.0 / (4.0 * d) + 1.0 / (32.0 * d * d) + 5.0 / (128.0 * d * d * d)))


def prod_encode(row, bits):
    """(bits - 1)-bit mse, then one sign per coordinate of the transformed residual."""
    dim = len(row)
    y, saturate = rotated(row)
    if y is None:
        return bytes(dim * bits // 8 + (4 if bits > 1 else 2))
    out, tail, e = b"", b"", y
    if bits > 1:
        table, r = _table(bits - 1), norm(y)
        p, _ = coordinates(y, bits - 1, table)
        codes = _quantise(p, bits - 1)
        t = f32(f32(r * f32(1.0 / dim)) * f32(table.unit * math.sqrt(dim)))
        e = [f32(v - f32(_level(c, bits - 1) * t)) for v, c in zip(y, codes)]
        out = pack_planes(codes, MSE_PLANES[bits - 1])
        tail = _scale(r, dim, saturate).to_bytes(2, "little")
    out += pack_planes([1 if v < 0 else 0 for v in mix(e)], ((1, 0),))
    return out + tail + _scale(norm(e), dim, saturate).to_bytes(2, "little")


def prod_decode(block, bits, dim):
    at = dim * (bits - 1) // 8
    b = unpack_planes(block[at:], ((1, 0),), dim)
    g = f16_value(int.from_bytes(block[-2:], "little"))
    t = f32(g * kappa(dim))
    y = [f32(v * t) for v in unmix([1.0 - 2.0 * v for v in b])]
    if bits > 1:
        codes = unpack_planes(block, MSE_PLANES[bits - 1], dim)
        t = f32(f16_value(int.from_bytes(block[-4:-2], "little")) * _table(bits - 1).unit)
        y = [f32(f32(_level(c, bits - 1) * t) + v) for c, v in zip(codes, y)]
    c = inv_sqrt(dim)
    return [a * s for a, s in zip(f32v(v * c for v in hadamard(y)), signs(dim))]
