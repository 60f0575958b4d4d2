#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# install_test.sh BUILD_DIR CMAKE CC LIBDIR VERSION
# The prefix has a space in its name, because some users' folders do.
set -euo pipefail
build=$1 cmake=$2 cc=$3 libdir=$4 version=$5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
example=$here/../../examples/embed.c

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prefix="$tmp/a prefix"
"$cmake" --install "$build" --prefix "$prefix" >"$tmp/log" || { cat "$tmp/log"; exit 1; }

fail() { echo "install: $*" >&2; exit 1; }
# run PROGRAM: it must print the version that was installed.
run() {
    local text
    text=$(LD_LIBRARY_PATH="$prefix/$libdir" "$1") || fail "$1 exits $?"
    [[ $text == "turboquant $version: "* ]] || fail "$1 prints '$text'"
    echo "$(basename "$1"): $text"
}

[ -f "$prefix/include/turboquant.h" ] || fail "no header"
[ ! -e "$prefix/include/llama.h" ] || fail "llama.cpp's headers were installed too"
if [ -e "$prefix/bin/tq" ]; then
    "$prefix/bin/tq" --help >/dev/null || fail "the installed tq does not run"
fi
if command -v lowdown >/dev/null; then
    grep -q 'NAME' "$prefix/share/man/man3/turboquant.3" || fail "no man page"
fi

# pkg-config, shared and static.
export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
[ "$(pkg-config --modversion turboquant)" = "$version" ] || fail "pkg-config: wrong version"
eval "flags=($(pkg-config --cflags --libs turboquant))"
"$cc" -std=c11 -Wall -Wextra -Werror "$example" "${flags[@]}" -lm -o "$tmp/pkg_shared"
readelf -d "$tmp/pkg_shared" | grep -q 'NEEDED.*libturboquant\.so\.' || fail "not linked shared"
run "$tmp/pkg_shared"
eval "flags=($(pkg-config --static --cflags --libs turboquant))"
"$cc" -std=c11 -static "$example" "${flags[@]}" -o "$tmp/pkg_static"
run "$tmp/pkg_static"

# CMake package, from a C-only project that was told nothing but the prefix.
mkdir "$tmp/consumer"
cat >"$tmp/consumer/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.20)
project(consumer C)
find_package(turboquant ${version%.*} REQUIRED)
foreach(lib turboquant turboquant_shared)
  add_executable(cmake_\${lib} "$example")
  target_link_libraries(cmake_\${lib} PRIVATE turboquant::\${lib} m)
endforeach()
END
"$cmake" -S "$tmp/consumer" -B "$tmp/consumer/build" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_PREFIX_PATH="$prefix" >"$tmp/log" 2>&1 &&
    "$cmake" --build "$tmp/consumer/build" >>"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
run "$tmp/consumer/build/cmake_turboquant"
run "$tmp/consumer/build/cmake_turboquant_shared"
