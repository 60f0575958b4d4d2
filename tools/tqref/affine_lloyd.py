# SPDX-License-Identifier: MIT
"""affine-lloyd: affine keys and rotated Lloyd-Max values (docs/format.md, chapters 5 to 7)."""
import math
from bisect import bisect_left
from .lloyd_tables import CENTROID_WORDS
from .num import (INF, div, f16_bits, f16_sat_bits, f16_value, f32, f32_from_bits, f32v, pack_lsb,
                  rint, unpack_lsb)
from .rotate import hadamard, inv_sqrt, signs

EPS = f32_from_bits(0x322BCC77)  # 1e-8
GROUP = 32
KEY_BITS = (2, 4, 5, 8)
VALUE_BITS = (2, 3, 4, 5, 8)
DIMS = (64, 128, 256, 512)


# Centroids of the unit normal, ascending, as recorded upstream; not antisymmetric on purpose.
CENTROIDS = {b: [f32_from_bits(w) for w in ws] for b, ws in CENTROID_WORDS.items()}


def boundaries(bits):
    c = CENTROIDS[bits]
    if bits == 3:
        half = [f32_from_bits(w) for w in (0x3F00240B, 0x3F866517, 0x3FDFBC2C)]
        return [-h for h in reversed(half)] + [0.0] + half
    return [f32(f32(a + b) * 0.5) for a, b in zip(c, c[1:])]


BOUNDARIES = {b: boundaries(b) for b in VALUE_BITS}


# ---- keys -------------------------------------------------------------------------------

def _rule(bits):
    """(M, lo, hi)"""
    if bits == 8:
        return 254.0, -127.0, 127.0
    return float((1 << bits) - 1), 0.0, float((1 << bits) - 1)


def _clamp(v, lo, hi):
    """A NaN (strict mode only) becomes lo."""
    v = v if v > lo else lo
    return v if v < hi else hi


def _codes(x, d, z, lo, hi):
    return [int(_clamp(rint(f32(div(v, d) - z)), lo, hi)) for v in x]


def _f16_ceil(x):
    """The smallest f16 number >= x > 0, at most 65504, as bits."""
    h = f16_sat_bits(x)
    return h + 1 if f16_value(h) < x and h < 0x7BFF else h


def _guarded_group(x, mn, mx, s, bits):
    m, lo, hi = _rule(bits)
    if not s < 65520.0:
        bound = 32752.0 * m
        x = [_clamp(v, -bound, bound) for v in x]
        mn, mx = min(x), max(x)
        s = f32(f32(mx - mn) / m)
    if mn == mx and abs(mn) <= 65504.0:
        return [0] * len(x), f16_bits(abs(mn)), f16_bits(-1.0 if mn < 0 else 1.0)
    h = _f16_ceil(max(s, f32(max(abs(mn), abs(mx)) / 2048.0)))
    t = f16_value(h)
    mid = f32(f32(mx * 0.5) + f32(mn * 0.5)) if bits == 8 else mn
    z = _clamp(rint(div(mid, t)) + 0.0, -2048.0, 2048.0)
    return _codes(x, t, z, lo, hi), h, f16_bits(z)


def key_group(x, bits, strict):
    """(codes, f16 scale bits, f16 zero bits) of one group. "+ 0.0" turns -0 into +0."""
    m, lo, hi = _rule(bits)
    mn, mx = min(x), max(x)
    s = f32(f32(mx - mn) / m) + 0.0
    d = f32(s + EPS)
    z = rint(div(f32(mx + mn), f32(2.0 * d)) if bits == 8 else div(mn, d)) + 0.0
    if not strict and (not s < 65520.0 or not abs(z) <= 2048.0
                       or (s < 2.0**-14 and (mn > 0 or mx < 0))):
        return _guarded_group(x, mn, mx, s, bits)
    return _codes(x, d, z, lo, hi), f16_bits(s), f16_bits(z)


def key_encode(row, bits, strict=False):
    """(codes, scale words, zero words) of a row."""
    codes, scales, zeros = [], [], []
    for g in range(0, len(row), GROUP):
        idx, s, z = key_group(row[g:g + GROUP], bits, strict)
        codes += idx
        scales.append(s)
        zeros.append(z)
    return codes, scales, zeros


def key_pack(codes, bits):
    return pack_lsb(codes, bits)


def key_unpack(data, bits, dim):
    codes = unpack_lsb(data, bits, dim)
    if bits == 8:
        codes = [c - 256 if c > 127 else c for c in codes]
    return codes


def key_decode(codes, scales, zeros):
    out = []
    for i, c in enumerate(codes):
        s, z = f16_value(scales[i // GROUP]), f16_value(zeros[i // GROUP])
        out.append(f32(f32(float(c) + z) * s))
    return out


# ---- values -----------------------------------------------------------------------------

def value_rotate(row):
    sg, c = signs(len(row)), inv_sqrt(len(row))
    return f32v(v * c for v in hadamard([a * b for a, b in zip(row, sg)]))


def value_unrotate(q):
    sg, c = signs(len(q)), inv_sqrt(len(q))
    return [a * b for a, b in zip(f32v(v * c for v in hadamard(q)), sg)]


def _square_sum(y):
    t = 0.0
    for v in y:
        t = f32(f32(v * v) + t)
    return t


def _squares(y):
    return [_square_sum(y[g:g + GROUP]) for g in range(0, len(y), GROUP)]


def value_group(y, bits):
    """(codes, r) of the rotated values of one group; only the last of a row may be short."""
    r = f32(math.sqrt(f32(_square_sum(y) / len(y))))
    re = f32(r + EPS)
    bounds = BOUNDARIES[bits]
    # bisect_left counts the boundaries strictly below v; a NaN is above none.
    return [bisect_left(bounds, div(v, re)) for v in y], r


def value_encode(row, bits, strict=False):
    """(rotated row, codes, r per group); strict: without the two guards of values."""
    y = value_rotate(row)
    back = 1.0
    if not strict and any(not v < INF for v in _squares(y)):
        y = value_rotate(f32v(v * 2.0**-80 for v in row))
        back = 2.0**80
    codes, rms = [], []
    for g in range(0, len(y), GROUP):
        idx, r = value_group(y[g:g + GROUP], bits)
        codes += idx
        rms.append(f32(r * back))
    return y, codes, rms


def value_scales(rms, strict=False):
    return [f16_bits(r) if strict else f16_sat_bits(r) for r in rms]


def value_block(row, bits, strict=False):
    _, codes, rms = value_encode(row, bits, strict)
    scales = value_scales(rms, strict)
    return pack_lsb(codes, bits) + b"".join(s.to_bytes(2, "little") for s in scales)


def key_block(row, bits, strict=False):
    codes, scales, zeros = key_encode(row, bits, strict)
    return key_pack(codes, bits) + b"".join(s.to_bytes(2, "little") for s in scales + zeros)


def value_decode_block(block, bits, dim):
    n = dim * bits // 8
    scales = [int.from_bytes(block[i:i + 2], "little") for i in range(n, len(block), 2)]
    return value_decode(unpack_lsb(block[:n], bits, dim), scales, bits)


def key_decode_block(block, bits, dim):
    n, g = dim * bits // 8, -(-dim // GROUP)
    w = [int.from_bytes(block[i:i + 2], "little") for i in range(n, len(block), 2)]
    return key_decode(key_unpack(block[:n], bits, dim), w[:g], w[g:])


def value_decode_rotated(codes, scales, bits):
    c = CENTROIDS[bits]
    return [f32(c[k] * f16_value(scales[i // GROUP])) for i, k in enumerate(codes)]


def value_decode(codes, scales, bits):
    return value_unrotate(value_decode_rotated(codes, scales, bits))
