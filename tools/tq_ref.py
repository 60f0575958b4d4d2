#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tq_ref.py — the executable specification of the storage format (docs/format.md).

    tq_ref.py --check DIR        reproduce every golden vector under DIR and the worked examples
    tq_ref.py --cross PROGRAM    compare the library with the specification: PROGRAM is the built
                                 tests/format/codec_pipe.c   [--seed N] [--rounds N]

Plain Python 3.9 or later, standard library only. The formats are in tools/tqref/, one module per
chapter of the document, each written to be read beside it. Exit status: 0 all equal, 1 a
difference, 2 wrong usage, 77 nothing to check.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from tqref import cross, examples, golden_affine  # noqa: E402


def check(root):
    bad = examples.check()
    total = 0
    for name, suite in (("affine-lloyd", golden_affine.check),):
        n, fails = suite(root)
        print("%-24s %4d files, %d differ" % (name, n, len(fails)))
        total += n
        bad += fails
    for line in bad:
        print("FAIL", line)
    if bad:
        return 1
    if total == 0:
        print("no golden files under %s" % root, file=sys.stderr)
        return 77
    return 0


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    what = ap.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", metavar="DIR")
    what.add_argument("--cross", metavar="PROGRAM")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--rounds", type=int, default=1)
    a = ap.parse_args()
    if a.check:
        return check(a.check)
    n, bad = cross.cross(a.cross, a.seed, a.rounds)
    print("%d blocks compared, %d differences" % (n, len(bad)))
    for line in bad:
        print("FAIL", line)
    return 1 if bad or n == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
