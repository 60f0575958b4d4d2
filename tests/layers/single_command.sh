#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# single_command.sh CC: builds the core and examples/embed.c with one plain compiler command, scalar
# only, every warning an error, and runs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$(mktemp)
trap 'rm -f "$out"' EXIT
"$1" -std=c11 -O2 -Wall -Wextra -Wshadow -Wvla -Wconversion -Werror -ffp-contract=off \
    -DTQ_SCALAR_ONLY -Iinclude -Isrc src/*.c src/cpu/scalar*.c src/cpu/dispatch.c \
    examples/embed.c -lm -o "$out"
"$out"
