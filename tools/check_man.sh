#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every docs/man/NAME.SECTION.md renders, carries its name and section, and man(1) takes the result
# without a warning.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shopt -s nullglob
pages=(docs/man/*.[1-8].md)
[ ${#pages[@]} -gt 0 ] || { echo "man: no page in docs/man" >&2; exit 1; }
for tool in lowdown man; do
    command -v $tool >/dev/null || { echo "man: $tool is not here; skipped"; exit 77; }
done
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
for page in "${pages[@]}"; do
    name=$(basename "$page" .md)
    if ! lowdown -s -Tman --out-no-smarty -o "$tmp/$name" "$page" 2>"$tmp/err"; then
        echo "man: $page: $(cat "$tmp/err")" >&2
        bad=1
        continue
    fi
    warnings=$(LC_ALL=C.UTF-8 MANROFFSEQ=t MANWIDTH=90 man --warnings -E UTF-8 -l -Tutf8 -Z \
        "$tmp/$name" 2>&1 >/dev/null || true)
    if [ -n "$warnings" ]; then
        printf 'man: %s:\n%s\n' "$page" "$warnings" >&2
        bad=1
    fi
    for section in NAME SYNOPSIS DESCRIPTION; do
        grep -A1 '^\.SH' "$tmp/$name" | grep -qw "$section" || { echo "man: $page has no $section" >&2; bad=1; }
    done
done
echo "${#pages[@]} pages"
exit $bad
