# SPDX-License-Identifier: MIT
"""Raw rows: f32, f16, bf16 (docs/format.md, chapter 4)."""
import struct
from .num import bf16_sat_bits, bf16_value, f16_sat_bits, f16_value, f32_bytes, f32_list

KINDS = ("f32", "f16", "bf16")  # the index is the number of the format


def encode(row, kind):
    if kind == 0:
        return f32_bytes(row)
    f = f16_sat_bits if kind == 1 else bf16_sat_bits
    return struct.pack("<%dH" % len(row), *[f(v) for v in row])


def decode(block, kind):
    if kind == 0:
        return f32_list(block)
    f = f16_value if kind == 1 else bf16_value
    return [f(w) for w in struct.unpack("<%dH" % (len(block) // 2), block)]
