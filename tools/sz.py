#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lines per file and per room. sz.py --check fails on a file that is too long or too wide.

Limits: 1000 lines a source file, 400 a public header, 100 columns; tables and generated code are
exempt from the length.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SOURCE = re.compile(r"\.(c|h|cu|cuh|py|sh|cmake)$|(^|/)(CMakeLists\.txt|Makefile)$")
TABLES = re.compile(r"(tables?\.[ch]|\.inc)$|_tables\.py$")
PUBLIC_LINES = {
    "include/turboquant.h": 400,
    "include/turboquant_cuda.h": 400,
    "engine/engine.h": 250,
    "engine/snapshot.h": 250,
}
MAX_LINES, MAX_COLUMNS = 1000, 100


def sources():
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [f for f in sorted(out.splitlines())
            if SOURCE.search(f) and os.path.exists(os.path.join(ROOT, f))]


def main():
    check = "--check" in sys.argv[1:]
    rooms, bad, rows = {}, [], []
    for f in sources():
        with open(os.path.join(ROOT, f), encoding="utf-8") as fh:
            lines = fh.read().splitlines()
        rows.append((len(lines), f))
        room = f.split("/")[0] if "/" in f else "."
        rooms[room] = rooms.get(room, 0) + len(lines)
        limit = PUBLIC_LINES.get(f, MAX_LINES)
        if len(lines) > limit and not TABLES.search(f):
            bad.append(f"{f}: {len(lines)} lines, the limit is {limit}")
        for i, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS and not f.endswith(".sh") and not TABLES.search(f):
                bad.append(f"{f}:{i}: {len(line)} columns, the limit is {MAX_COLUMNS}")
    if not rows:
        sys.exit("sz: no source files")
    if not check:
        for n, f in sorted(rows, reverse=True):
            print(f"{n:6d}  {f}")
        print()
    for room, n in sorted(rooms.items()):
        print(f"{n:6d}  {room}/")
    print(f"{sum(rooms.values()):6d}  all, {len(rows)} files")
    for line in bad:
        print(line, file=sys.stderr)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
