# SPDX-License-Identifier: MIT
"""fork1: the first-generation turbo2_0/turbo3_0/turbo4_0 blocks of the llama.cpp fork (chapter 12).

128 elements a block, whatever the head dimension. Constants are facts of that fork
(TheTom/llama-cpp-turboquant, commit 69d8e4be4); its 4-bit table is about 0.6 times too narrow and
stays so here: this is a reader and writer for existing data, not a format for new data."""
import math
import struct
from .num import f16_bits, f16_value, f32, f32v
from .rotate import butterflies

BLOCK = 128
BYTES = {2: 34, 3: 50, 4: 68}
S1 = (0xE46A0359, 0x42F85949, 0xA4C63BBB, 0x49F250A9)
S2 = (0x16ACEE90, 0x3F628FDC, 0xB7A5357A, 0xBEA56562)
CENTROIDS = {2: (0.039994, 0.133462), 3: (0.021460, 0.065717, 0.117832, 0.190685),
             4: (0.006938, 0.020989, 0.035597, 0.051262, 0.068756, 0.089527, 0.117195, 0.173926)}
MIDS = {2: (0.086728,), 3: (0.043589, 0.091775, 0.154259),
        4: (0.013963, 0.028293, 0.043430, 0.060009, 0.079142, 0.103361, 0.145560)}


def _signs(words):
    return [-1.0 if words[j // 32] >> (j % 32) & 1 else 1.0 for j in range(BLOCK)]


def _table(half):
    half = f32v(half)
    return [-v for v in reversed(half)] + half


def _mids(half):
    half = f32v(half)
    return [-v for v in reversed(half)] + [0.0] + half


def rotate_unit(x):
    """(n, y): the norm and the rotated unit vector of 128 values."""
    t = 0.0
    for v in x:
        t = f32(t + f32(v * v))
    n = f32(math.sqrt(t)) if t < float("inf") else t
    inv = f32(1.0 / n) if n > f32(1e-10) else 0.0
    y = butterflies([f32(v * inv) * s for v, s in zip(x, _signs(S1))])
    return n, f32v(v * f32(0.08838834764831845) * s for v, s in zip(y, _signs(S2)))


def quantise(y, bits):
    """A value equal to a boundary takes the upper cell."""
    mids = _mids(MIDS[bits])
    return [sum(1 for m in mids if v >= m) for v in y]


def encode(x, bits):
    n, y = rotate_unit(x)
    idx = quantise(y, bits)
    c = _table(CENTROIDS[bits])
    t = 0.0
    for i in idx:
        t = f32(t + f32(c[i] * c[i]))
    rec = f32(math.sqrt(t))
    norm = f16_bits(f32(n / rec) if rec > f32(1e-10) else n)
    low = bytes(sum((idx[4 * j + k] & 3) << 2 * k for k in range(4)) for j in range(32))
    if bits == 2:
        return struct.pack("<H", norm) + low
    if bits == 3:
        top = bytes(sum((idx[8 * j + k] >> 2) << k for k in range(8)) for j in range(16))
        return struct.pack("<H", norm) + low + top
    return struct.pack("<HH", norm, 0) + bytes(idx[2 * j] | idx[2 * j + 1] << 4 for j in range(64))


def codes(block, bits):
    """(f16 bits of the norm, 128 codes)"""
    norm = struct.unpack("<H", block[:2])[0]
    if bits == 4:
        return norm, [block[4 + j // 2] >> 4 * (j % 2) & 15 for j in range(BLOCK)]
    idx = [block[2 + j // 4] >> 2 * (j % 4) & 3 for j in range(BLOCK)]
    if bits == 3:
        idx = [i | (block[34 + j // 8] >> (j % 8) & 1) << 2 for j, i in enumerate(idx)]
    return norm, idx


def decode_rotated(block, bits):
    norm, idx = codes(block, bits)
    c = _table(CENTROIDS[bits])
    return f32v(c[i] * f16_value(norm) for i in idx)


def decode(block, bits):
    """Original domain. The fork leaves this to its graph, so only the rotated values are exact."""
    y = butterflies([v * s for v, s in zip(decode_rotated(block, bits), _signs(S2))])
    return f32v(v * f32(0.08838834764831845) * s for v, s in zip(y, _signs(S1)))


def encode_row(x, bits):
    """A row of several blocks."""
    return b"".join(encode(x[i:i + BLOCK], bits) for i in range(0, len(x), BLOCK))


def decode_row(block, bits):
    return [v for i in range(0, len(block), BYTES[bits])
            for v in decode(block[i:i + BYTES[bits]], bits)]


def check(root):
    """Goldens of root/norm-codebook: every byte of 121 rows and of the multi-block file."""
    import os
    fails, files = [], 0
    path = os.path.join(root, "norm-codebook", "turbo_c_goldens.bin")
    if os.path.exists(path):
        files += 1
        b = open(path, "rb").read()
        rows, at = struct.unpack("<I", b[8:12])[0], 32
        for r in range(rows):
            x = struct.unpack("<128f", b[at + 4:at + 516])
            want = struct.unpack("<128f", b[at + 516:at + 1028])
            at += 1028
            if list(want) != rotate_unit(x)[1]:
                fails.append("fork1 row %d: rotated" % r)
            for bits in (2, 3, 4):
                n = BYTES[bits]
                blk = b[at:at + n]
                dec = struct.unpack("<256f", b[at + n:at + n + 1024])
                if encode(x, bits) != blk:
                    fails.append("fork1 row %d: block of %d bits" % (r, bits))
                mine = decode_rotated(blk, bits)
                if any(p != q and (p == p or q == q) for p, q in zip(mine, dec)):
                    fails.append("fork1 row %d: decoded, %d bits" % (r, bits))
                orig = decode(blk, bits)
                top = max(map(abs, orig))
                if top < 1e30 and max(abs(p - q) for p, q in zip(orig, dec[128:])) > 1e-5 * top:
                    fails.append("fork1 row %d: original domain, %d bits" % (r, bits))
                at += n + 1024
    path = os.path.join(root, "norm-codebook", "turbo_c_multiblock.bin")
    if os.path.exists(path):
        files += 1
        b, at = open(path, "rb").read(), 32
        for item in range(2):
            dim = struct.unpack("<i", b[at:at + 4])[0]
            x = struct.unpack("<%df" % dim, b[at + 4:at + 4 + 4 * dim])
            at += 4 + 4 * dim
            for bits in (2, 3, 4):
                n = BYTES[bits] * dim // BLOCK
                if encode_row(x, bits) != b[at:at + n]:
                    fails.append("fork1 multi-block item %d, %d bits" % (item, bits))
                at += n + 4 * dim
    return files, fails
