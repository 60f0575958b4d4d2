#!/bin/sh
# SPDX-License-Identifier: MIT
# demo.sh [BUILD_DIR] — run the demo on the bundled model with the tq of a build folder.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-"$root/build/release"}
tq="$build/apps/tq/tq"
[ -x "$tq" ] || tq="$build/bin/tq"
if [ ! -x "$tq" ]; then
    echo "demo: no tq program in $build; run 'make' first" >&2
    exit 1
fi
exec python3 "$root/tools/demo.py" "$tq" "$root/models/tiny-qwen3-28m.q8_0.gguf"
