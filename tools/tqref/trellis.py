# SPDX-License-Identifier: MIT
"""trellis: as norm-codebook, but each coordinate picks its level from one of four subsets, chosen
by an 8-state Ungerboeck code over the coordinates (docs/format.md, chapter 9)."""
from functools import lru_cache
from .int_tables import TRELLIS
from .norm_codebook import (CANDIDATES, block_bytes, coordinates, criterion, pack_planes,
                            reconstruct, rotated, stored_scale, unpack_planes)
from .num import f16_value, f32

BITS = (2, 3, 4, 5, 6)

# A code is o | x << (bits - 1): x is the path bit, o the number within the subset.
PLANES = {2: ((1, 0), (1, 1)), 3: ((2, 0), (1, 2)), 4: ((2, 0), (1, 2), (1, 3)),
          5: ((2, 0), (2, 2), (1, 4)), 6: ((2, 0), (2, 2), (1, 4), (1, 5))}
FAR = 1 << 30


@lru_cache(maxsize=None)
def quadratic(bits, h):
    """A[l]: the part of the cost of level l that does not depend on the coordinate."""
    t = TRELLIS[bits]
    return [((v * v << t.frac) * h + 32) >> 6 for v in t.levels]


@lru_cache(maxsize=None)
def edges(bits, h):
    """Per subset: p above edge j belongs to number j + 1 rather than j."""
    a, lv = quadratic(bits, h), TRELLIS[bits].levels
    return [[(a[l + 4] - a[l]) // (lv[l + 4] - lv[l]) for l in range(k, len(lv) - 4, 4)]
            for k in range(4)]


def viterbi(p, bits, h):
    """Codes of the cheapest path. Ties: the smaller number, the older bit 0, the smaller state."""
    lv, a, cut = TRELLIS[bits].levels, quadratic(bits, h), edges(bits, h)
    # A state is x[n-1] | x[n-2] << 1 | x[n-3] << 2; every row starts in state 0.
    cost = [0] + [FAR] * 7
    picks, backs = [], []
    for v in p:
        pick = [sum(1 for e in cut[k] if v > e) for k in range(4)]
        c = [a[4 * j + k] - v * lv[4 * j + k] for k, j in enumerate(pick)]
        new, back = [], []
        for t in range(8):
            x, x1, x2 = t & 1, t >> 1 & 1, t >> 2
            s = x1 | x2 << 1
            c0 = cost[s] + c[x2 | (x ^ x1) << 1]
            c1 = cost[s | 4] + c[x2 | (x ^ x1 ^ 1) << 1]
            new.append(c1 if c1 < c0 else c0)
            back.append(1 if c1 < c0 else 0)
        cost = new
        picks.append(pick)
        backs.append(back)
    t = min(range(8), key=lambda s: (cost[s], s))
    codes = []
    for pick, back in zip(reversed(picks), reversed(backs)):
        x, x1, x2, x3 = t & 1, t >> 1 & 1, t >> 2, back[t]
        codes.append(pick[x2 | (x ^ x1 ^ x3) << 1] | x << (bits - 1))
        t = x1 | x2 << 1 | x3 << 2
    return codes[::-1]


def indices(codes, bits):
    """Table index of every coordinate, without a state machine: only shifts of the path bits."""
    x = [0, 0, 0] + [c >> (bits - 1) for c in codes]
    out = []
    for n, c in enumerate(codes, 3):
        z0, z1 = x[n - 2], x[n] ^ x[n - 1] ^ x[n - 3]
        out.append((c & (1 << bits - 1) - 1) << 2 | z1 << 1 | z0)
    return out


def indices_by_states(codes, bits):
    """The same by running the code: syndrome former with parity checks h0 = 13, h1 = 04 octal.

    h0(D) z0 + h1(D) z1 = 0 gives z0[n] = z0[n-1] + z0[n-3] + z1[n-2]; the path bit is z1[n] plus a
    function of the state."""
    z0, z1, out = [0, 0, 0], [0, 0, 0], []
    state = [0, 0, 0]  # path bits 1, 2, 3 coordinates ago
    for c in codes:
        x = c >> (bits - 1)
        a = z0[-1] ^ z0[-3] ^ z1[-2]
        b = x ^ state[0] ^ state[2]
        state = [x] + state[:2]
        z0.append(a)
        z1.append(b)
        out.append((c & (1 << bits - 1) - 1) << 2 | b << 1 | a)
    return out


def levels_of(codes, bits):
    lv = TRELLIS[bits].levels
    return [lv[i] for i in indices(codes, bits)]


def encode(row, bits, effort=1):
    """Block of a row: planes of the codes, then the f16 scale. effort 1, 3 or 12."""
    dim = len(row)
    y, saturate = rotated(row)
    if y is None:
        return bytes(block_bytes(bits, dim))
    p, num = coordinates(y, bits, TRELLIS[bits])
    best = None
    for h in CANDIDATES[:effort]:
        codes = viterbi(p, bits, h)
        lv = levels_of(codes, bits)
        dot = sum(a * b for a, b in zip(p, lv))
        crit = criterion(dot, sum(v * v for v in lv)) if dot > 0 else 0.0
        if best is None or crit > best[0]:
            best = crit, codes, dot
    _, codes, dot = best
    return pack_planes(codes, PLANES[bits]) + stored_scale(num, dot, saturate).to_bytes(2, "little")


def decode(block, bits, dim):
    lv = levels_of(unpack_planes(block, PLANES[bits], dim), bits)
    return reconstruct(lv, f16_value(int.from_bytes(block[-2:], "little")), TRELLIS[bits].unit)


def decode_rotated(block, bits, dim):
    lv = levels_of(unpack_planes(block, PLANES[bits], dim), bits)
    t = f32(f16_value(int.from_bytes(block[-2:], "little")) * TRELLIS[bits].unit)
    return [f32(v * t) for v in lv]


def check_stateless():
    """The decoder that only shifts equals the state machine: all path sequences of 12 bits."""
    bad = []
    for w in range(1 << 12):
        codes = [(w >> i & 1) << 1 | (w * 2654435761 >> i + 5 & 1) for i in range(12)]
        if indices(codes, 2) != indices_by_states(codes, 2):
            bad.append("stateless trellis decoder, path %03x" % w)
            break
    return bad
