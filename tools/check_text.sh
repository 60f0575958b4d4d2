#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Left-overs that must not be committed, SPDX lines that are missing, shell scripts that do not parse,
# and links of Markdown pages that lead nowhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shopt -s lastpipe
bad=0
files() { git ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r f; do
    [ ! -f "$f" ] || printf '%s\n' "$f"
done; }

left='TO''DO|FIX''ME|XX''X|HA''CK'
files '*.c' '*.h' '*.py' '*.sh' '*.md' '*.cmake' Makefile | tr '\n' '\0' |
    xargs -0 grep -nwE "$left" && { echo "text: left-overs (above)" >&2; bad=1; }

files '*.c' '*.h' '*.py' '*.sh' | while IFS= read -r f; do
    head -n 3 "$f" | grep -q 'SPDX-License-Identifier: MIT' || { echo "text: no SPDX line in $f" >&2; bad=1; }
done
files '*.sh' .ci/run | while IFS= read -r f; do
    bash -n "$f" || bad=1
done

files '*.md' | while IFS= read -r page; do
    grep -oE '\]\([^)#: ]+(#[^)]*)?\)' "$page" | sed -E 's/^\]\(//; s/(#.*)?\)$//' |
        while IFS= read -r target; do
            [ -e "$(dirname "$page")/$target" ] || { echo "text: $page links to missing $target" >&2; bad=1; }
        done || true
done
exit $bad
