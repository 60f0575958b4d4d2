# SPDX-License-Identifier: MIT
"""The worked examples of docs/format.md, chapter 13, as assertions."""
from . import affine_lloyd as al
from . import norm_codebook as nc
from . import rotate, trellis
from .num import f32, f32_bits, f32v


def check():
    """Returns the list of examples that fail."""
    bad = []

    def need(name, got, want):
        if got != want:
            bad.append("example %s: %r instead of %r" % (name, got, want))

    need("5.1", rotate.threefry2x32(0, 42, 0, 32), (0x4A53A5A2, 0x0494BBDC))

    x = f32v([-1.0, 2.0, 0.1, 0.7] + [0.0] * 28)
    need("13.1 s", f32_bits(f32(3.0 / 15.0)), 0x3E4CCCCD)
    for strict in (True, False):
        codes, s, z = al.key_encode(x, 4, strict)
        need("13.1 codes", codes[:6], [0, 15, 6, 8, 5, 5])
        need("13.1 bytes", al.key_pack(codes, 4).hex(), "f086" + "55" * 14)
        need("13.1 scale, zero", (s, z), ([0x3266], [0xC500]))
        need("13.1 decoded", al.key_decode(codes, s, z)[:5],
             [-0.999755859375, 1.99951171875, 0.199951171875, 0.599853515625, 0.0])

    need("13.2 strict", al.key_encode([0.5] * 32, 4, True), ([0] * 32, [0], [0x7C00]))
    need("13.2 guarded", al.key_encode([0.5] * 32, 4, False), ([0] * 32, [0x3800], [0x3C00]))

    block = al.value_block([8.0] + [0.0] * 63, 3)
    need("13.3 bytes", block.hex(), "6ddbb6" * 8 + "003c003c")
    need("13.3 decoded", f32(al.value_decode_block(block, 3, 64)[0]), f32(6.048079967498779))

    block = nc.encode([4.0] + [0.0] * 15, 4)
    need("13.4 block", block.hex(), "33" * 8 + "3f3c")
    need("13.4 decoded", f32(nc.decode(block, 4, 16)[0]), f32(3.99501371383667))

    codes = nc.unpack_planes(bytes.fromhex("05001302003c"), trellis.PLANES[2], 16)
    need("13.5 codes", codes, [3, 0, 2, 2, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])
    need("13.5 levels", trellis.levels_of(codes, 2),
         [7, -4, -1, -4, 12, -1, -4, -12, -4, -4, -7, -4, -12, -12, -12, -12])
    return bad
