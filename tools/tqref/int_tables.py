# SPDX-License-Identifier: MIT
"""Integer codebooks (docs/format.md, chapters 8 and 9), frozen; check_sources() compares them with
the generated tables of the library."""
import os
import re
from collections import namedtuple

# levels: positive half, ascending. unit: binary32. frac: fraction bits of the coordinates.
Codebook = namedtuple("Codebook", "levels unit frac")

CODEBOOKS = {
    2: Codebook((3, 10), float.fromhex("0x1.3551d4p-3"), 6),
    3: Codebook((3, 9, 16, 26), float.fromhex("0x1.543da6p-4"), 5),
    4: Codebook((3, 9, 15, 21, 28, 36, 46, 61), float.fromhex("0x1.6f0732p-5"), 4),
    5: Codebook((2, 6, 10, 14, 18, 22, 26, 31, 36, 41, 47, 53, 60, 69, 80, 97),
                float.fromhex("0x1.1394c2p-5"), 4),
    6: Codebook((1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 38, 41, 44, 47,
                 50, 53, 57, 61, 65, 70, 76, 83, 92, 106), float.fromhex("0x1.20925ap-5"), 4),
}


def _both(*half):
    return tuple(-v for v in reversed(half)) + half


# levels: all 2^(b+1), ascending; level l belongs to subset l mod 4.
TRELLIS = {
    2: Codebook(_both(1, 4, 7, 12),
                float.fromhex("0x1.39dadcp-3"), 6),
    3: Codebook(_both(1, 4, 6, 9, 12, 16, 21, 29),
                float.fromhex("0x1.5728f4p-4"), 5),
    4: Codebook(_both(1, 3, 5, 7, 9, 11, 14, 16, 19, 22, 25, 29, 34, 39, 46, 57),
                float.fromhex("0x1.a6b968p-5"), 4),
    5: Codebook(_both(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 26, 28, 31, 33, 36, 38, 41, 44,
                       47, 50, 54, 58, 63, 68, 74, 81, 88, 96, 107, 127),
                float.fromhex("0x1.d699aap-6"), 3),
    6: Codebook(_both(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                       22, 23, 24, 25, 27, 28, 29, 30, 31, 33, 34, 36, 37, 38, 40, 41, 42, 44,
                       45, 47, 48, 50, 52, 54, 56, 58, 60, 62, 64, 66, 69, 72, 75, 78, 82, 86,
                       90, 95, 100, 105, 113, 122, 127),
                float.fromhex("0x1.f0dd38p-6"), 3),
}


def _read(path, name):
    text = open(path).read()
    unit = {int(b): float.fromhex(v.rstrip("f")) for b, v in
            re.findall(r"#define TQ_%s_UNIT_(\d) (\S+)" % name.upper(), text)}
    levels = {int(b): tuple(int(v) for v in body.split(",")) for b, body in
              re.findall(r"%s_levels_(\d)\[\d+\] = \{([^}]*)\}" % name, text)}
    return unit, levels


def check_sources(src):
    """Returns the list of tables that differ from the library's."""
    bad = []
    for name, tables in (("codebook", CODEBOOKS), ("trellis", TRELLIS)):
        path = os.path.join(src, name + "_tables.inc")
        if not os.path.exists(path):
            continue
        unit, levels = _read(path, name)
        for b, t in tables.items():
            if unit.get(b) != t.unit or levels.get(b) != t.levels:
                bad.append("%s of %d bits differs from %s" % (name, b, path))
    return bad
