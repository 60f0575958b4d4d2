#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# exports.sh LIBRARY HEADER: the shared library exports exactly the functions of the public header.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
nm -D --defined-only "$1" | awk '{ print $NF }' | LC_ALL=C sort -u >"$tmp/exported"
tr '\n' ' ' <"$2" | grep -oE 'TQ_API [^;]*;' | grep -oE '\btq_[a-z0-9_]+ ?\(' | tr -d ' (' |
    LC_ALL=C sort -u >"$tmp/declared"
[ -s "$tmp/declared" ] || { echo "exports: no TQ_API function found in $2" >&2; exit 1; }
if ! diff "$tmp/declared" "$tmp/exported" >"$tmp/diff"; then
    echo "exports: declared (<) and exported (>) differ:" >&2
    cat "$tmp/diff" >&2
    exit 1
fi
echo "$(wc -l <"$tmp/declared") functions"
