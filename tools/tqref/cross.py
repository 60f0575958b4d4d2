# SPDX-License-Identifier: MIT
"""The library against the specification: random and degenerate rows through codec_pipe."""
import math
import random
import struct
import subprocess
from . import affine_lloyd as al
from . import baseline, fork1, golden_blocks, norm_codebook, raw, trellis
from .num import f32_bytes, f32_from_bits, f32_list, f32v

STRICT, FORK = 1, 100
MEAN, EFFORT = 2, {1: 4, 3: 8, 12: 12}
GROUP = {32: 16, 64: 0, 128: 32}
ISA_SCALAR, ISA_ALL = 1, 0xFFFFFFFF


class NoAnswer(Exception):
    """The program is no codec_pipe, or died."""


class Pipe:
    """One running codec_pipe process (tests/format/codec_pipe.c says what it answers)."""

    def __init__(self, program):
        self.p = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, fmt, dim, flags, isa, op, n, payload):
        try:
            self.p.stdin.write(struct.pack("<6I", fmt, dim, flags, isa, op, n) + payload)
            self.p.stdin.flush()
        except BrokenPipeError:
            self.no_answer()
        status, size = struct.unpack("<iI", self.read(8))
        return status, self.read(size)

    def read(self, n):
        got = self.p.stdout.read(n)
        if len(got) != n:
            self.no_answer()
        return got

    def no_answer(self):
        try:
            self.p.stdin.close()
        except BrokenPipeError:
            pass
        self.p.kill()
        raise NoAnswer("does not answer as tests/format/codec_pipe.c (exit status %d)" %
                       self.p.wait())

    def close(self):
        self.p.stdin.close()
        return self.p.wait()


def rows(rng, dim):
    """Finite rows with every kind of degenerate content that a cache may meet."""
    g = rng.gauss
    out = [[g(0, 1) for _ in range(dim)], [0.0] * dim, [-0.0] * dim, [1.0] * dim, [-100.0] * dim,
           [g(0, 1) * 10.0 ** rng.uniform(-12, 12) for _ in range(dim)],
           [g(0, 1) * (20 if rng.random() < 0.03 else 1) for _ in range(dim)],
           [100 + g(0, 0.01) for _ in range(dim)], [g(0, 1e-7) for _ in range(dim)],
           [g(0, 1e4) for _ in range(dim)], [g(0, 1e30) for _ in range(dim)],
           [rng.choice((-1, 1)) * 3.4028234663852886e38 for _ in range(dim)],
           [3.0e38] * dim, [1e-42 * rng.randint(-3, 3) for _ in range(dim)],
           [rng.choice((0.0, -0.0, 1.0, -1.0)) for _ in range(dim)],
           [float(rng.randint(-8, 8)) * 0.5 for _ in range(dim)],
           [6.0e-5 + 1e-6 * g(0, 1) for _ in range(dim)], [65504.0 + g(0, 40) for _ in range(dim)]]
    hot = [0.0] * dim
    hot[rng.randrange(dim)] = g(0, 1) * 10.0 ** rng.uniform(-6, 6)
    out.append(hot)
    # The sign row: its transform has one single coordinate.
    out.append([s * 2.5 for s in al.signs(dim)])
    # Groups of different kinds in one row.
    mixed = []
    for _ in range(0, dim, 32):
        c = g(0, 1) * 10.0 ** rng.uniform(-9, 9)
        w = 10.0 ** rng.uniform(-9, 1) * rng.choice((0, 1, 1))
        mixed += [c + c * w * g(0, 1) for _ in range(32)]
    out.append(mixed[:dim])
    # Keys at the two thresholds of the guard: s near 2^-14, |Z| near 2048.
    edge = []
    for _ in range(0, dim, 32):
        sign, m = rng.choice((-1, 1)), rng.choice((3, 15, 31, 254))
        s = 2.0**-14 * rng.uniform(0.7, 1.6) if rng.random() < 0.5 else 10.0 ** rng.uniform(-3, 3)
        off = s * (m / 2 + rng.choice((1.0, 30.0, 2048.5 - rng.choice((0, m / 2)))))
        edge += [sign * (off + s * m * (i % 32 - 15.5) / 31 * rng.choice((1, 1, 0.5)))
                 for i in range(32)]
    out.append(edge[:dim])
    # Random words: every exponent.
    words = [rng.getrandbits(32) for _ in range(dim)]
    out.append([f32_from_bits(u if (u >> 23) & 255 != 255 else u & 0x807FFFFF) for u in words])
    return [f32v(r) for r in out]


KEY_DIMS = al.DIMS + (16, 88, 192)
VALUE_DIMS = al.DIMS + (16, 80, 192)


def cases():
    """(format id, dims, flags, encode(row), decode(block, dim))"""
    for kind in (0, 1, 2):
        yield (kind, (16, 24, 80, 128), 0, lambda r, k=kind: raw.encode(r, k),
               lambda b, d, k=kind: raw.decode(b, k))
    for flags in (STRICT, 0):
        for i, bits in enumerate(al.KEY_BITS):
            yield (10 + i, KEY_DIMS, flags,
                   lambda r, b=bits, s=flags: al.key_block(r, b, bool(s)),
                   lambda blk, d, b=bits: al.key_decode_block(blk, b, d))
        for i, bits in enumerate(al.VALUE_BITS):
            yield (20 + i, VALUE_DIMS, flags,
                   lambda r, b=bits, s=flags: al.value_block(r, b, bool(s)),
                   lambda blk, d, b=bits: al.value_decode_block(blk, b, d))


    yield from one_scale_cases()
    for bits in (4, 8):
        for group, flags in GROUP.items():
            yield (70 + bits, (16, 80, 128), flags,
                   lambda r, b=bits, g=group: baseline.affine_encode(r, b, g),
                   lambda blk, d, b=bits, g=group: baseline.affine_decode(blk, b, d, g))
    for f in golden_blocks.formats():
        if f.name.startswith(("mse", "prod")):
            yield (f.number, (16, 80), 0, lambda r, f=f: f.encode(r, 1), f.decode)
    for bits in (2, 3, 4):
        yield (100 + bits, (128,), 0, lambda r, b=bits: fork1.encode(r, b),
               lambda blk, d, b=bits: fork1.decode(blk, b))


def one_scale_cases():
    """norm-codebook and trellis: each effort at one dimension, the cheapest at the others."""
    for base, m in ((40, norm_codebook), (60, trellis)):
        for bits in m.BITS:
            for effort, dims in ((1, (16, 24, 80, 192)), (3, (56,)), (12, (72,))):
                yield (base + bits, dims, EFFORT[effort],
                       lambda r, m=m, b=bits, e=effort: m.encode(r, b, e),
                       lambda blk, d, m=m, b=bits: m.decode(blk, b, d))
            yield (base + bits, (48, 96), EFFORT[1] | MEAN,
                   lambda r, m=m, b=bits: norm_codebook.mean_encode(
                       lambda x: m.encode(x, b, 1), r),
                   lambda blk, d, m=m, b=bits: norm_codebook.mean_decode(
                       lambda k: m.decode(k, b, d), blk))


def _first_diff(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def cross(program, seed=1, rounds=1):
    """Returns (blocks compared, list of differences)."""
    pipe, rng, count, bad = Pipe(program), random.Random(seed), 0, []
    for _ in range(rounds):
        for fmt, dims, flags, encode, decode in cases():
            for dim in dims:
                rs = rows(rng, dim)
                want = [encode(r) for r in rs]
                payload = b"".join(f32_bytes(r) for r in rs)
                for isa in (ISA_SCALAR, ISA_ALL):
                    for op in (0, 1):
                        st, got = pipe.ask(fmt, dim, flags, isa, op, len(rs), payload)
                        if st != 0 or got != b"".join(want):
                            at = _first_diff(got, b"".join(want)) // max(1, len(want[0]))
                            bad.append("encode format %d dim %d flags %d isa %x op %d: status %d,"
                                       " row %d" % (fmt, dim, flags, isa, op, st, at))
                    # Decode what we encoded, and random bytes.
                    size = len(want[0])
                    noise = [rng.randbytes(size) for _ in range(4)]
                    blocks = want + noise
                    st, got = pipe.ask(fmt, dim, flags, isa, 2, len(blocks), b"".join(blocks))
                    out = f32_list(got)
                    for i, blk in enumerate(blocks):
                        ref = decode(blk, dim)
                        mine = out[i * dim:(i + 1) * dim]
                        if len(mine) != dim or any(x != y and (x == x or y == y)
                                                   for x, y in zip(mine, ref)):
                            bad.append("decode format %d dim %d isa %x block %d" %
                                       (fmt, dim, isa, i))
                    if not flags & STRICT and fmt < FORK:  # whose norm may be Inf
                        if any(v != v or abs(v) == float("inf") for v in out[:len(rs) * dim]):
                            bad.append("guarded format %d dim %d decodes to NaN or Inf" %
                                       (fmt, dim))
                    count += len(blocks)
    if pipe.close() != 0:
        bad.append("codec_pipe failed")
    return count, bad
