#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tq_ref.py — the executable specification of the storage format (docs/format.md).

    tq_ref.py --check DIR        reproduce every golden vector under DIR and the worked examples
    tq_ref.py --make DIR         write the golden blocks of our own formats below DIR
    tq_ref.py --cross PROGRAM    compare the library with the specification: PROGRAM is the built
                                 tests/format/codec_pipe.c   [--seed N] [--rounds N]

Plain Python 3.9 or later, standard library only. The formats are in tools/tqref/, one module per
chapter of the document, each written to be read beside it. Exit status: 0 all equal, 1 a
difference or nothing to compare, 2 wrong usage.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from tqref import (cross, examples, fork1, golden_affine, golden_blocks, int_tables,  # noqa: E402
                   trellis)


def check(root):
    src = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")
    bad = examples.check() + trellis.check_stateless() + int_tables.check_sources(src)
    for name, suite in (("affine-lloyd", golden_affine.check), ("norm-codebook", fork1.check),
                        ("blocks-v1", golden_blocks.check)):
        n, fails = suite(root)
        print("%-24s %4d files, %d differ" % (name, n, len(fails)))
        bad += fails if n else ["%s: no files under %s" % (name, root)]
    for line in bad:
        print("FAIL", line)
    return 1 if bad else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    what = ap.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", metavar="DIR")
    what.add_argument("--make", metavar="DIR")
    what.add_argument("--cross", metavar="PROGRAM")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--rounds", type=int, default=1)
    a = ap.parse_args()
    if a.check:
        return check(a.check)
    if a.make:
        return golden_blocks.make(a.make) or 0
    try:
        n, bad = cross.cross(a.cross, a.seed, a.rounds)
    except (OSError, cross.NoAnswer) as why:
        print("tq_ref.py: %s: %s" % (a.cross, why), file=sys.stderr)
        return 1
    print("%d blocks compared, %d differences" % (n, len(bad)))
    for line in bad:
        print("FAIL", line)
    return 1 if bad or n == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
