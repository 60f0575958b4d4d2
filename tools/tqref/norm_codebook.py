# SPDX-License-Identifier: MIT
"""norm-codebook: rotation, one scale per row, integer Lloyd-Max levels (docs/format.md, 8).

Only the rotation, the norm, one division and one multiplication per element are floating point.
From the fixed-point coordinates p on, everything is integer arithmetic.
"""
import math
from functools import lru_cache
from .int_tables import CODEBOOKS
from .num import f16_sat_bits, f16_value, f32, f32v
from .rotate import hadamard, signs

BITS = (2, 3, 4, 5, 6, 8)

# Planes of a row's codes: (width in bits, lowest bit of the code).
PLANES = {2: ((2, 0),), 3: ((2, 0), (1, 2)), 4: ((4, 0),), 5: ((4, 0), (1, 4)),
          6: ((4, 0), (2, 4)), 8: ((8, 0),)}

# Candidate scales of the levels in 1/64; an encoder of effort n tries the first n.
CANDIDATES = (64, 56, 69, 61, 67, 59, 72, 54, 51, 75, 78, 49)
EFFORTS = (1, 3, 12)

FRAC = {2: 6, 3: 5, 4: 4, 5: 4, 6: 4, 8: 5}  # fraction bits of the coordinates
UNIT8 = 2.0**-5
TINY, HUGE = 2.0**-50, 2.0**50


def pack_planes(codes, planes):
    """Plane of width w, nb = D * w / 8 bytes: element j in byte j mod nb, bits w * (j div nb)."""
    out = b""
    for w, low in planes:
        nb = len(codes) * w // 8
        plane = bytearray(nb)
        for j, c in enumerate(codes):
            plane[j % nb] |= (c >> low & (1 << w) - 1) << w * (j // nb)
        out += bytes(plane)
    return out


def unpack_planes(data, planes, dim):
    codes, at = [0] * dim, 0
    for w, low in planes:
        nb = dim * w // 8
        for j in range(dim):
            codes[j] |= (data[at + j % nb] >> w * (j // nb) & (1 << w) - 1) << low
        at += nb
    return codes


def code_bytes(bits, dim):
    return dim * bits // 8


def block_bytes(bits, dim):
    return code_bytes(bits, dim) + 2


# ---- encoder, floating-point part -------------------------------------------------------

def stripe_sum(xs):
    """16 partial sums over j mod 16 with j ascending, then a fixed tree."""
    acc = [0.0] * 16
    for j, v in enumerate(xs):
        acc[j % 16] = f32(acc[j % 16] + v)
    for h in (8, 4, 2, 1):
        acc = [f32(acc[i] + acc[i + h]) for i in range(h)]
    return acc[0]


def rotated(row):
    """(y, saturate): the unnormalised rotation; None if the row counts as zero."""
    top = max(abs(v) for v in row)
    if top < TINY:
        return None, False
    if top >= HUGE:
        row = f32v(v * 2.0**-78 for v in row)
    return hadamard([a * b for a, b in zip(row, signs(len(row)))]), top >= HUGE


def fixed_point(y, inv):
    """p = 2 floor(y * inv) + 1, odd, saturating at +-32767."""
    out = []
    for v in y:
        p = 2 * math.floor(f32(v * inv)) + 1
        out.append(min(max(p, -32767), 32767))
    return out


def norm(y):
    return f32(math.sqrt(stripe_sum(f32v(v * v for v in y))))


def coordinates(y, bits, table):
    """(p, num): fixed-point coordinates and the numerator of the scale."""
    dim, r = len(y), norm(y)
    if bits == 8:
        ymax = max(abs(v) for v in y)
        num = f32(f32(f32(r / ymax) * r) * f32(8128.0 / (math.sqrt(dim) * UNIT8)))
        return fixed_point(y, f32(4064.0 / ymax)), num
    unit, frac = table.unit, table.frac
    inv = f32(f32(2.0**frac * math.sqrt(dim) / unit) / r)
    return fixed_point(y, inv), f32(r * f32(2.0**(frac + 1) / (unit * unit)))


def stored_scale(num, dot, saturate):
    if saturate:
        return 0x7BFF
    if dot <= 0:
        return 0
    return f16_sat_bits(f32(num / f32(float(dot))))


def criterion(dot, ll):
    """Grows with the cosine between the coordinates and the levels."""
    t = f32(float(dot))
    return f32(f32(t * t) / f32(float(ll)))


# ---- encoder, integer part --------------------------------------------------------------

@lru_cache(maxsize=None)
def boundaries(bits, h):
    """Magnitudes |p| above boundary i belong to level i + 1; all boundaries are even."""
    t = CODEBOOKS[bits]
    return [2 * (((a + b) * (1 << t.frac) * h + 64) // 128)
            for a, b in zip(t.levels, t.levels[1:])]


def quantise(p, bits, h):
    """Codes: sign bit on top of the index of the magnitude."""
    if bits == 8:
        codes = []
        for v in p:
            m = min((abs(v) + 32) >> 6, 127)
            codes.append((-m if v < 0 else m) & 255)
        return codes
    edges = boundaries(bits, h)
    return [sum(1 for e in edges if abs(v) > e) | (1 << bits - 1 if v < 0 else 0) for v in p]


def level_of(code, bits):
    if bits == 8:
        return code - 256 if code > 127 else code
    lv = CODEBOOKS[bits].levels[code & (1 << bits - 1) - 1]
    return -lv if code >> bits - 1 else lv


def encode(row, bits, effort=1):
    """Block of a row: planes of the codes, then the f16 scale. effort 1, 3 or 12."""
    dim = len(row)
    y, saturate = rotated(row)
    if y is None:
        return bytes(block_bytes(bits, dim))
    p, num = coordinates(y, bits, CODEBOOKS.get(bits))
    best = None
    for h in CANDIDATES[:effort if bits != 8 else 1]:
        codes = quantise(p, bits, h)
        lv = [level_of(c, bits) for c in codes]
        dot = sum(a * b for a, b in zip(p, lv))
        crit = criterion(dot, sum(v * v for v in lv))
        if best is None or crit > best[0]:
            best = crit, codes, dot
    _, codes, dot = best
    scale = stored_scale(num, dot, saturate)
    return pack_planes(codes, PLANES[bits]) + scale.to_bytes(2, "little")


# ---- decoder ----------------------------------------------------------------------------

def unit_of(bits):
    return UNIT8 if bits == 8 else CODEBOOKS[bits].unit


def levels(block, bits, dim):
    codes = unpack_planes(block, PLANES[bits], dim)
    return [level_of(c, bits) for c in codes]


def reconstruct(lv, scale, unit):
    """x from integer levels: the transform is exact, then two roundings."""
    dim = len(lv)
    t = f32(scale * f32(unit / math.sqrt(dim)))
    n = hadamard([float(v) for v in lv])
    return [f32(v * t) * s for v, s in zip(n, signs(dim))]


def decode(block, bits, dim):
    scale = f16_value(int.from_bytes(block[-2:], "little"))
    return reconstruct(levels(block, bits, dim), scale, unit_of(bits))


def decode_rotated(block, bits, dim):
    """Orthonormally rotated coordinates, as attention uses them."""
    scale = f16_value(int.from_bytes(block[-2:], "little"))
    t = f32(scale * unit_of(bits))
    return [f32(v * t) for v in levels(block, bits, dim)]


# ---- option mean, docs/format.md 8.6 ------------------------------------------------------

def mean_encode(encode, row):
    """Around an encoder of rows."""
    s = stripe_sum(row)
    h = f16_sat_bits(f32(s / len(row))) if math.isfinite(s) else 0
    m = f16_value(h)
    return encode([f32(v - m) for v in row]) + h.to_bytes(2, "little")


def mean_decode(decode, block):
    m = f16_value(int.from_bytes(block[-2:], "little"))
    return [f32(v + m) for v in decode(block[:-2])]
