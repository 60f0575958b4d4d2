# SPDX-License-Identifier: MIT
"""Signs and orthogonal transforms (docs/format.md, chapter 5)."""
import math
from functools import lru_cache
from .num import f32, f32v


def threefry2x32(k0, k1, c0, c1):
    """Threefry-2x32, 20 rounds (Salmon et al., SC 2011)."""
    m = 0xFFFFFFFF
    ks = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    rot = ((13, 15, 26, 6), (17, 29, 16, 24))
    a, b = (c0 + ks[0]) & m, (c1 + ks[1]) & m
    for i in range(5):
        for r in rot[i % 2]:
            a = (a + b) & m
            b = ((b << r) | (b >> (32 - r))) & m
            b ^= a
        a = (a + ks[(i + 1) % 3]) & m
        b = (b + ks[(i + 2) % 3] + i + 1) & m
    return a, b


def threefry_words(k0, k1, n):
    """n words (n even): the counter pair (i, i + n/2) gives words i and i + n/2."""
    h = n // 2
    pairs = [threefry2x32(k0, k1, i, i + h) for i in range(h)]
    return [p[0] for p in pairs] + [p[1] for p in pairs]


@lru_cache(maxsize=None)
def signs(dim):
    """+1.0 / -1.0 per element: -1 where the top bit of the word is set."""
    return tuple(-1.0 if w >> 31 else 1.0 for w in threefry_words(0, 42, dim))


def butterflies(y):
    """Unnormalised Walsh-Hadamard transform, stages h = 1, 2, 4, ..., natural order."""
    y, n, h = list(y), len(y), 1
    while h < n:
        s = f32v(y[j] + y[j + h] if not j & h else y[j - h] - y[j] for j in range(n))
        y, h = s, 2 * h
    return y


def inv_sqrt(dim):
    return f32(1.0 / math.sqrt(dim))


# ---- orders m * 2^k ---------------------------------------------------------------------

# Odd part of D -> the order m of the small factor.
SMALL_ORDER = {1: 1, 3: 12, 5: 20, 7: 28, 9: 36}


def split(dim):
    """(m, 2^k) with dim = m * 2^k, or None: D is not supported."""
    if dim % 8 or not 16 <= dim <= 1024:
        return None
    odd = dim
    while odd % 2 == 0:
        odd //= 2
    m = SMALL_ORDER.get(odd)
    return (m, dim // m) if m and dim % m == 0 else None


DIMS = [d for d in range(16, 1025, 8) if split(d)]


def chi(a, q):
    """Quadratic character modulo the odd prime q: 0, +1 or -1."""
    a %= q
    return 0 if a == 0 else 1 if pow(a, (q - 1) // 2, q) == 1 else -1


@lru_cache(maxsize=None)
def paley1(m):
    """Symmetric Hadamard matrix of order m = q + 1, q = 3 mod 4 prime (m = 12, 20)."""
    q = m - 1
    return tuple(tuple(1 if i == 0 or j == 0 else chi(i + j - 2, q) or -1 for j in range(m))
                 for i in range(m))


@lru_cache(maxsize=None)
def conference(n):
    """Symmetric conference matrix of order n = q + 1, q = 1 mod 4 prime (n = 14, 18)."""
    q = n - 1
    return tuple(tuple((0 if i == j else 1) if i == 0 or j == 0 else chi(i - j, q)
                       for j in range(n)) for i in range(n))


def signed_sum(row, xs):
    """Sum of row[j] * xs[j] for j ascending where row[j] is not 0; each sum rounds."""
    t = None
    for c, v in zip(row, xs):
        if c:
            v = v if c > 0 else -v
            t = v if t is None else f32(t + v)
    return t


def small(xs):
    """H_m xs for m = 12, 20, 28, 36."""
    m = len(xs)
    if m in (12, 20):
        return [signed_sum(row, xs) for row in paley1(m)]
    n = m // 2
    u = f32v(xs[a] + xs[a + n] for a in range(n))
    w = f32v(xs[a] - xs[a + n] for a in range(n))
    c = conference(n)
    top = [f32(signed_sum(c[a], u) + w[a]) for a in range(n)]
    return top + [f32(signed_sum(c[a], w) - u[a]) for a in range(n)]


def hadamard(x):
    """H x, unnormalised: butterflies inside the m runs of 2^k elements, then H_m across the runs.

    H is symmetric and H H = D I."""
    m, p = split(len(x))
    y = []
    for a in range(m):
        y += butterflies(x[a * p:(a + 1) * p])
    if m == 1:
        return y
    for b in range(p):
        y[b::p] = small(y[b::p])
    return y
