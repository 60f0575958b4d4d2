#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# isa_leak.sh OBJDUMP BASE_OBJECT... -- AVX2_OBJECT...
# The base objects run on every x86-64: no VEX or EVEX instruction, no ymm or zmm register. The
# AVX2 objects must hold ymm, or this test would look at the wrong thing.
set -euo pipefail
objdump=$1
shift
wide='%[yz]mm[0-9]|\bv(mov|add|sub|mul|xor|pxor|cvt|fmadd|p[a-z]+)[a-z0-9]* '
bad=0 n=0 seen=0 section=base
for object in "$@"; do
    if [ "$object" = -- ]; then
        section=avx2
        continue
    fi
    code=$("$objdump" -d --no-show-raw-insn "$object")
    lines=$(grep -E "$wide" <<<"$code" || true)
    if [ $section = avx2 ]; then
        [[ $lines != *%ymm* ]] || seen=$((seen + 1))
    else
        n=$((n + 1))
        if [ -n "$lines" ]; then
            printf 'isa_leak: %s holds AVX instructions:\n%s\n' "$object" \
                "$(head -n 3 <<<"$lines")" >&2
            bad=1
        fi
    fi
done
[ $n -gt 0 ] && [ $seen -gt 0 ] || { echo "isa_leak: nothing to compare ($n base, $seen avx2)" >&2; exit 1; }
echo "$n base objects without AVX, $seen with"
exit $bad
