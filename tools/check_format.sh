#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fails when a C file is not as clang-format 14 would write it; `make format` mends it. Other
# versions format a few constructs in another way, so they are refused rather than believed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tool=clang-format
command -v clang-format-14 >/dev/null && tool=clang-format-14
if ! "$tool" --version 2>/dev/null | grep -q 'version 14\.'; then
    echo "format: clang-format 14 is not here; skipped"
    exit 77
fi
git ls-files -z --cached --others --exclude-standard '*.c' '*.h' |
    xargs -0 "$tool" --dry-run --Werror
