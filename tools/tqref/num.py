# SPDX-License-Identifier: MIT
"""Numbers: IEEE binary32 arithmetic, f16 and bf16 conversion, bit planes.

Python computes in binary64. For + - * / and sqrt of binary32 operands, rounding the binary64
result to binary32 gives the correctly rounded binary32 result (53 >= 2 * 24 + 2 digits), so
f32(a + b) is exactly the hardware's single-precision a + b. Every rounding of the specification
is therefore one visible f32(...) here.
"""
import math
import struct
from array import array

INF = float("inf")
NAN = float("nan")


def f32(x):
    """Round to binary32, nearest even; overflow gives Inf."""
    return array("f", (x,))[0]


def f32v(xs):
    """Round a sequence to binary32."""
    return array("f", xs).tolist()


def f32_from_bits(u):
    return struct.unpack("<f", struct.pack("<I", u))[0]


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def f32_list(data):
    """Little-endian binary32 values of a byte string."""
    return list(struct.unpack("<%df" % (len(data) // 4), data))


def f32_bytes(xs):
    return struct.pack("<%df" % len(xs), *xs)


def div(a, b):
    """IEEE division of two binary32 values, with Inf and NaN where C has them."""
    if b == 0.0:
        if a == 0.0 or a != a:
            return NAN
        return math.copysign(INF, a) * math.copysign(1.0, b)
    return f32(a / b)


def rint(x):
    """Round half to even, keeping the sign of zero; Inf and NaN pass through."""
    if x != x or x in (INF, -INF):
        return x
    return math.copysign(float(round(x)), x)


def f16_bits(x):
    """binary16 bits of x, nearest even; magnitudes that round beyond 65504 give Inf."""
    if x != x:
        return 0x7E00
    try:
        return struct.unpack("<H", struct.pack("<e", x))[0]
    except OverflowError:
        return 0x7C00 if x > 0 else 0xFC00


def f16_value(bits):
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def f16_sat_bits(x):
    """As f16_bits for finite x, but magnitudes beyond 65504 give 65504 (0x7bff)."""
    return f16_bits(min(max(x, -65504.0), 65504.0))


def bf16_sat_bits(x):
    """bfloat16 bits of finite x: the upper half of binary32, nearest even, never Inf."""
    u = f32_bits(x)
    r = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    if r & 0x7FFF >= 0x7F80:
        r = (r & 0x8000) | 0x7F7F
    return r


def bf16_value(bits):
    return f32_from_bits(bits << 16)


def pack_lsb(codes, bits):
    """Element i takes bits [i*bits, (i+1)*bits) of the stream, least significant bit first."""
    acc = 0
    for i, c in enumerate(codes):
        acc |= (c & ((1 << bits) - 1)) << (i * bits)
    return acc.to_bytes((len(codes) * bits + 7) // 8, "little")


def unpack_lsb(data, bits, n):
    acc = int.from_bytes(data, "little")
    mask = (1 << bits) - 1
    return [(acc >> (i * bits)) & mask for i in range(n)]
