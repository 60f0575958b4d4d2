#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# exports.sh LIBRARY HEADER...: the shared library exports exactly the functions of the public
# headers.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
lib=$1
shift
nm -D --defined-only "$lib" | awk '{ print $NF }' | LC_ALL=C sort -u >"$tmp/exported"
cat "$@" | tr '\n' ' ' | grep -oE 'TQ_API [^;]*;' | grep -oE '\btq_[a-z0-9_]+ ?\(' | tr -d ' (' |
    LC_ALL=C sort -u >"$tmp/declared"
[ -s "$tmp/declared" ] || { echo "exports: no TQ_API function found in $*" >&2; exit 1; }
if ! diff "$tmp/declared" "$tmp/exported" >"$tmp/diff"; then
    echo "exports: declared (<) and exported (>) differ:" >&2
    cat "$tmp/diff" >&2
    exit 1
fi
echo "$(wc -l <"$tmp/declared") functions"
