#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# single_command.sh CC: README's command that builds the core, as it stands there, with every
# warning an error; what it makes runs README's program, which is examples/embed.c, and stores the
# bytes that all builds store. The same with clang, and for AArch64, where there are these and an emulator; and without
# -ffp-contract=off, by the source's own guard.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$repo/tests/layers
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "single_command: $*" >&2; exit 1; }

line=$(grep -E '^cc -std=c11 .* -c src/' "$repo/README.md") || fail "README has no such command"
[ "$(wc -l <<<"$line")" = 1 ] || fail "README has several such commands"
grep -q -- ' -ffp-contract=off ' <<<"$line" || fail "README's command lets compilers fuse"

# The C program of README.
sed -n '/^```c$/,/^```$/{/^```/d;p}' "$repo/README.md" >"$tmp/readme.c"
grep -q 'int main(void)' "$tmp/readme.c" || fail "README has no C program"
diff "$repo/examples/embed.c" "$tmp/readme.c" >&2 ||
    fail "README's program is not examples/embed.c (its lines: >)"

# The compiler of this round, for the line's own name.
compiler=()
cc() { "${compiler[@]}" -Wall -Wextra -Wshadow -Wvla -Wconversion -Werror "$@"; }

# build NAME LINE COMPILER...: programs NAME/encoded_hash and NAME/readme of the objects that LINE makes.
build() {
    local name=$1 command=$2
    shift 2
    compiler=("$@")
    mkdir "$tmp/$name"
    cd "$tmp/$name"
    ln -s "$repo/src" "$repo/include" .
    eval "$command" || fail "$name: '$command' fails"
    for program in "$here/encoded_hash.c" "$tmp/readme.c"; do
        cc -std=c11 -O2 -Iinclude "$program" ./*.o -lm -o "$(basename "$program" .c)"
    done
}
# same NAME [EMULATOR...]: its bytes are those of the golden.
same() {
    local name=$1
    shift
    "$@" "$tmp/$name/encoded_hash" >"$tmp/$name/hash" || fail "$name: encoded_hash exits $?"
    diff "$here/encoded_hash.txt" "$tmp/$name/hash" >&2 || fail "$name: other bytes"
    echo "$name: $("$@" "$tmp/$name/readme")"
}

unguarded=${line/ -ffp-contract=off/}
build given "$line" "$1"
same given
if command -v clang >/dev/null; then
    build clang "$line" clang
    same clang
fi
sysroot=/usr/aarch64-linux-gnu
if command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null &&
    [ -d $sysroot ]; then
    # gcc fuses with -std=gnu11, clang always; the default of either without the option.
    build aarch64-gcc "${unguarded/c11/gnu11}" aarch64-linux-gnu-gcc
    same aarch64-gcc qemu-aarch64 -L $sysroot
    if command -v clang >/dev/null; then
        build aarch64-clang "$unguarded" clang --target=aarch64-linux-gnu
        same aarch64-clang qemu-aarch64 -L $sysroot
    fi
fi

# What no pragma mends is refused.
for option in -ffast-math -Ofast -ffinite-math-only; do
    compiler=("$1")
    if cc -std=c11 "$option" -I"$repo/include" -I"$repo/src" -c "$repo/src/codec.c" \
        -o "$tmp/refused.o" 2>"$tmp/why"; then
        fail "$option is accepted"
    fi
    grep -q 'stored bytes would differ' "$tmp/why" || fail "$option: $(head -n 1 "$tmp/why")"
done
