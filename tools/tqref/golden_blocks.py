# SPDX-License-Identifier: MIT
"""Goldens of chapters 4 and 6 to 12: tests/golden/blocks-v1 (its README describes the files).

make() writes them; check() recomputes every byte. The library's tests read the same files."""
import os
import random
import struct
from . import affine_lloyd, baseline, fork1, norm_codebook, raw, trellis
from .num import f32_bytes, f32_list, f32v
from .rotate import hadamard, signs

MAGIC, VERSION = b"TQGB", 1
DIMS = (64, 80, 96, 128, 192, 256, 384, 512, 576)
TURBO_DIMS = tuple(d for d in DIMS if d != 384)
DEEP_DIMS = (64, 80, 128)  # with effort 12
FEW_DIMS = (64, 80)        # with a mean
BASE_DIMS = (64, 80, 128)  # of the formats for research and comparison; few rows of 128
FORK_DIMS = (128, 384)     # multiples of 128
SHORT_DIMS = (80, 576)     # affine keys and Lloyd values: a short last group; another transform
DIR = "blocks-v1"


class Format:
    """name, number (tq_format), dims, efforts(dim), encode(row, effort), decode(block, dim).
    group: of the uniform formats where it is not 64. special: of a block's size to the places of
    its f16 numbers, which hostile blocks fill; without it those of hostile_blocks."""

    def __init__(self, name, number, dims, deep, encode, decode, mean=0, group=0, special=None):
        self.name, self.number, self.dims, self.deep = name, number, dims, deep
        self.encode, self.decode, self.mean = encode, decode, mean
        self.group, self.special = group, special

    def rows(self, rows):
        """Those of the input that its file holds."""
        few = len(rows[0]) == 128 and (self.number < 10 or 70 < self.number < 100)
        return rows[:6] if few else rows

    def hostile(self, size, dim):
        seed = self.number * 10000 + dim
        if self.special and dim == (128 if self.number > 100 else 80):
            return special_blocks(size, seed + self.group, self.special(size))
        return hostile_blocks(size, seed) if dim == 80 else []

    def efforts(self, dim):
        if not self.deep:
            return (1,)
        return (1, 3, 12) if dim in DEEP_DIMS else (1, 3)

    def with_mean(self):
        """The same with option mean, chapter 8.6."""
        return Format(self.name + "m", self.number, FEW_DIMS, False,
                      lambda r, e: norm_codebook.mean_encode(lambda x: self.encode(x, e), r),
                      lambda k, d: norm_codebook.mean_decode(lambda b: self.decode(b, d), k), 1)


def formats():
    out = [Format(name, i, BASE_DIMS, False,
                  lambda r, e, i=i: raw.encode(r, i), lambda k, d, i=i: raw.decode(k, i),
                  special=lambda size, i=i: range(2 if i == 0 else 0, size, 12))
           for i, name in enumerate(raw.KINDS)]
    for i, b in enumerate(affine_lloyd.KEY_BITS):
        out.append(Format("k%d" % b, 10 + i, SHORT_DIMS, False,
                          lambda r, e, b=b: affine_lloyd.key_block(r, b),
                          lambda k, d, b=b: affine_lloyd.key_decode_block(k, b, d)))
    for i, b in enumerate(affine_lloyd.VALUE_BITS):
        out.append(Format("v%d" % b, 20 + i, SHORT_DIMS, False,
                          lambda r, e, b=b: affine_lloyd.value_block(r, b),
                          lambda k, d, b=b: affine_lloyd.value_decode_block(k, b, d)))
    for b in norm_codebook.BITS:
        out.append(Format("turbo%d" % b, 40 + b, TURBO_DIMS, b != 8,
                          lambda r, e, b=b: norm_codebook.encode(r, b, e),
                          lambda k, d, b=b: norm_codebook.decode(k, b, d)))
    for b in trellis.BITS:
        out.append(Format("tcq%d" % b, 60 + b, TURBO_DIMS, True,
                          lambda r, e, b=b: trellis.encode(r, b, e),
                          lambda k, d, b=b: trellis.decode(k, b, d)))
    out += [f.with_mean() for f in out if f.number >= 40]
    for b in (4, 8):
        out.append(Format("affine%d" % b, 70 + b, BASE_DIMS, False,
                          lambda r, e, b=b: baseline.affine_encode(r, b),
                          lambda k, d, b=b: baseline.affine_decode(k, b, d)))
        for g in (32, 128):
            out.append(Format("affine%dg%d" % (b, g), 70 + b, BASE_DIMS[1:], False,
                              lambda r, e, b=b, g=g: baseline.affine_encode(r, b, g),
                              lambda k, d, b=b, g=g: baseline.affine_decode(k, b, d, g), group=g,
                              special=lambda size, b=b: range(10 * b, size, 2)))
    for b in (1, 2, 3, 4):
        out.append(Format("mse%d" % b, 80 + b, BASE_DIMS, False,
                          lambda r, e, b=b: baseline.mse_encode(r, b),
                          lambda k, d, b=b: baseline.mse_decode(k, b, d)))
        out.append(Format("prod%d" % b, 90 + b, BASE_DIMS, False,
                          lambda r, e, b=b: baseline.prod_encode(r, b),
                          lambda k, d, b=b: baseline.prod_decode(k, b, d)))
    for b in (2, 3, 4):
        out.append(Format("fork%d" % b, 100 + b, FORK_DIMS, False,
                          lambda r, e, b=b: fork1.encode_row(r, b),
                          lambda k, d, b=b: fork1.decode_row(k, b),
                          special=lambda size, b=b: range(0, 4 if b == 4 else 2, 2)))
    return out


def input_rows(dim):
    """12 rows for D <= 128, the first 6 of them for larger D."""
    rng = random.Random(1000 + dim)
    g = rng.gauss
    one = [0.0] * dim
    one[dim // 3] = -3.0
    rows = [[g(0, 1) for _ in range(dim)],
            [g(0, 1) * (20 if i in (3, 17, dim // 2 + 5) else 1) for i in range(dim)],
            [0.0] * dim,
            [s * 2.5 for s in signs(dim)],
            [g(0, 1) * 1e30 for _ in range(dim)],
            [g(0, 1) ** 3 * 100 for _ in range(dim)],
            [g(0, 0.5) + g(0, 1.5) for _ in range(dim)],
            one,
            [1.0] * dim,
            [g(0, 1e-5) for _ in range(dim)],
            [g(0, 3e-8) for _ in range(dim)],
            # Rotates to a few integers only: ties and zeros of both signs.
            [a * b for a, b in zip(hadamard([1.0 if i < 4 else 0.0 for i in range(dim)]),
                                   signs(dim))]]
    return [f32v(r) for r in rows[:12 if dim <= 128 else 6]]


def hostile_blocks(size, seed):
    """Blocks that no encoder writes: random codes under special scales, all ones, zeros."""
    rng = random.Random(seed)
    out = [bytes([255]) * size, bytes(size - 2) + b"\x00\x3c"]
    for scale in (0x7C00, 0xFC00, 0x7E00, 0x8000, 0x0001, 0xBC00, 0x7BFF):
        out.append(rng.randbytes(size - 2) + scale.to_bytes(2, "little"))
    return out


def special_blocks(size, seed, places):
    """The same, every f16 number at one of the places: all alike, then a mixture. The last words
    are special to bf16 and, as upper halves, to f32."""
    words = (0x7C00, 0xFC00, 0x7E00, 0x8000, 0x0001, 0xBC00, 0x7BFF, 0x7F80, 0xFF80, 0x7FC1)
    rng, out = random.Random(seed), [bytes([255]) * size]
    for i in range(len(words) + 1):
        block = bytearray(rng.randbytes(size))
        for n, at in enumerate(places):
            word = words[i] if i < len(words) else words[n % len(words)]
            block[at:at + 2] = word.to_bytes(2, "little")
        out.append(bytes(block))
    return out


def header(number, dim, rows, block, efforts, hostile, mean, group):
    return struct.pack("<4s15I", MAGIC, VERSION, number, dim, rows, block, len(efforts),
                       *(list(efforts) + [0] * (3 - len(efforts))), hostile, mean, group,
                       *[0] * 3)


def canonical(xs):
    """One NaN, one zero."""
    return [0.0 if v == 0 else v if v == v else float("nan") for v in xs]


def file_bytes(fmt, dim, rows):
    """The whole golden file of one format and dimension."""
    efforts, rows = fmt.efforts(dim), fmt.rows(rows)
    per_effort = [[fmt.encode(r, e) for r in rows] for e in efforts]
    size = len(per_effort[0][0])
    bad = fmt.hostile(size, dim)
    if fmt.mean:  # the last number is the mean there: hostile scales too
        bad += [b[:-4] + b[-2:] + b"\x00\x3c" for b in bad]
    out = header(fmt.number, dim, len(rows), size, efforts, len(bad), fmt.mean,
                 fmt.group)
    out += b"".join(b"".join(blocks) for blocks in per_effort)
    out += b"".join(f32_bytes(canonical(fmt.decode(b, dim))) for b in per_effort[0])
    out += b"".join(bad)
    return out + b"".join(f32_bytes(canonical(fmt.decode(b, dim))) for b in bad)


def _rows_path(root, dim):
    return os.path.join(root, DIR, "rows_d%d.bin" % dim)


def _rotated_path(root, dim):
    return os.path.join(root, DIR, "rotated_d%d.bin" % dim)


def rotated_bytes(rows):
    """y and r of every row, zeros for a row that counts as zero; zeros keep their sign."""
    ys = [norm_codebook.rotated(r)[0] or [0.0] * len(r) for r in rows]
    return b"".join(map(f32_bytes, ys)) + f32_bytes([norm_codebook.norm(y) for y in ys])


def make(root):
    os.makedirs(os.path.join(root, DIR), exist_ok=True)
    for dim in DIMS:
        with open(_rows_path(root, dim), "wb") as f:
            f.write(b"".join(f32_bytes(r) for r in input_rows(dim)))
        with open(_rotated_path(root, dim), "wb") as f:
            f.write(rotated_bytes(input_rows(dim)))
    for fmt in formats():
        for dim in fmt.dims:
            with open(os.path.join(root, DIR, "%s_d%d.bin" % (fmt.name, dim)), "wb") as f:
                f.write(file_bytes(fmt, dim, input_rows(dim)))


def check(root):
    """Returns (files, failures)."""
    if not os.path.isdir(os.path.join(root, DIR)):
        return 0, []
    count, fails = 0, []
    for dim in DIMS:
        x = f32_list(open(_rows_path(root, dim), "rb").read())
        count += 1
        if open(_rotated_path(root, dim), "rb").read() != rotated_bytes(
                [x[i:i + dim] for i in range(0, len(x), dim)]):
            fails.append("rotated_d%d.bin" % dim)
    for fmt in formats():
        for dim in fmt.dims:
            x = f32_list(open(_rows_path(root, dim), "rb").read())
            rows = [x[i:i + dim] for i in range(0, len(x), dim)]
            name = "%s_d%d.bin" % (fmt.name, dim)
            have = open(os.path.join(root, DIR, name), "rb").read()
            want = file_bytes(fmt, dim, rows)
            count += 1
            if have != want:
                at = next((i for i, (a, b) in enumerate(zip(have, want)) if a != b),
                          min(len(have), len(want)))
                fails.append("%s: byte %d of %d" % (name, at, len(want)))
    return count, fails
