#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Gives the install prefix of the pinned llama.cpp (ggml + libllama, static) and builds it first
# when it is not in the cache. Prints the prefix as the only line on stdout; the rest goes to stderr.
#
#   tools/build_llama.sh [--source TREE] [--fallback-cache DIR]
#
#   --source TREE          build this llama.cpp tree instead of the pinned one
#   --fallback-cache DIR   where to keep it when the cache folder is not writable
#   TQ_CACHE_DIR           cache folder (default: ${XDG_CACHE_HOME:-~/.cache}/turboquant)
#   TQ_LLAMA_OPTIONS       more cmake options, e.g. "-DGGML_NATIVE=OFF"
#   TQ_LLAMA_CC, _CXX      compilers (default: cc, c++)
#
# A prefix appears under its name only when it is complete: it is built in a temporary folder
# and renamed. A lock makes two builds that start at the same time share one result. The name
# holds a hash of everything that changes the binaries, so a stale one is never used.
set -euo pipefail

commit=80fb11ac73e66d89eae2c6a91d8a77428fa733ed
tag=v0.4.0
npm_package=node-llama-cpp@3.21.1
npm_file=node-llama-cpp-3.21.1.tgz
npm_sha256=7a231d6bafa14142a1cbed9893d4ec5bc6041b2a5f5939a623accaab4203c11f
git_url=https://github.com/ggml-org/llama.cpp

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cc=${TQ_LLAMA_CC:-cc}
cxx=${TQ_LLAMA_CXX:-c++}
source_dir=
fallback=$root/build/cache

say() { echo "llama: $*" >&2; }
die() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
    --source) [ $# -ge 2 ] || die "--source needs a folder"; source_dir=$2; shift 2 ;;
    --fallback-cache) [ $# -ge 2 ] || die "--fallback-cache needs a folder"; fallback=$2; shift 2 ;;
    *) die "unknown argument '$1'" ;;
    esac
done

for tool in "$cc" "$cxx" cmake git flock sha256sum; do
    command -v "$tool" >/dev/null || die "'$tool' is missing; tools/setup.sh installs it"
done

# ---- where ------------------------------------------------------------------------------------

usable() { mkdir -p "$1" 2>/dev/null && [ -w "$1" ]; }
cache=${TQ_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/turboquant}
if ! usable "$cache"; then
    usable "$fallback" || die "neither $cache nor $fallback can be written"
    say "$cache cannot be written: using $fallback"
    cache=$fallback
fi
cache=$(cd "$cache" && pwd)

# ---- name: the commit and a hash of what the binaries depend on --------------------------------

# A tree of the user's own may have edits: its name follows its content.
tree_id() {
    (cd "$1" && find CMakeLists.txt cmake ggml include src vendor -type f \
        \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.h*' -o -name '*.cmake' -o -name 'CMakeLists.txt' \) \
        -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-12)
}

if [ -n "$source_dir" ]; then
    [ -f "$source_dir/include/llama.h" ] || die "$source_dir is not a llama.cpp tree"
    source_dir=$(cd "$source_dir" && pwd)
    id=tree-$(tree_id "$source_dir")
else
    id=${commit:0:12}
fi
hash=$({
    "$cc" --version
    "$cxx" --version
    "$cc" -dumpmachine
    grep -m1 -E '^(flags|Features)' /proc/cpuinfo || uname -m
    echo "${TQ_LLAMA_OPTIONS:-}"
    cat "$root/cmake/llama/CMakeLists.txt"
} | sha256sum | cut -c1-12)
prefix=$cache/llama-$id-$hash

if [ -d "$prefix" ]; then
    echo "$prefix"
    exit 0
fi

# ---- one builder at a time ---------------------------------------------------------------------

exec 9>"$cache/llama-$id-$hash.lock"
if ! flock -n 9; then
    say "another build of it is running: waiting"
    flock 9
fi
if [ -d "$prefix" ]; then
    echo "$prefix"
    exit 0
fi

# What a killed build left behind is ours to remove: we hold the lock of its name.
tmp=$prefix.building
rm -rf "$tmp"
mkdir "$tmp"
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- source --------------------------------------------------------------------------------------

is_pinned() { [ "$(git -C "$1" rev-parse HEAD 2>/dev/null)" = "$commit" ]; }
has_npm_hash() { echo "$npm_sha256  $1" | sha256sum --check --status 2>/dev/null; }

# npm's package carries the unmodified tree as a git bundle. It works where only a package mirror
# can be reached. The tarball is kept: 35 MB, and verified on each use.
fetch_npm() {
    command -v npm >/dev/null || { say "npm is missing (tools/setup.sh installs it)"; return 1; }
    if ! has_npm_hash "$cache/$npm_file"; then
        say "fetching $npm_package"
        mkdir "$tmp/npm"
        (cd "$tmp/npm" && npm pack --silent "$npm_package" >/dev/null) ||
            { say "npm pack $npm_package failed"; return 1; }
        has_npm_hash "$tmp/npm/$npm_file" ||
            { say "$npm_file does not have the sha256 $npm_sha256"; return 1; }
        mv "$tmp/npm/$npm_file" "$cache/$npm_file"
    fi
    tar -xzf "$cache/$npm_file" -C "$tmp" package/llama/gitRelease.bundle &&
        git clone --quiet "$tmp/package/llama/gitRelease.bundle" "$tmp/src" 2>/dev/null &&
        rm -rf "$tmp/package" && is_pinned "$tmp/src"
}

fetch_git() {
    say "cloning $git_url, tag $tag"
    rm -rf "$tmp/src"
    git -c advice.detachedHead=false clone --quiet --depth 1 -b "$tag" "$git_url" "$tmp/src" >&2 ||
        { say "git clone of $git_url failed"; return 1; }
    is_pinned "$tmp/src" || { say "tag $tag of $git_url is not commit $commit"; return 1; }
}

if [ -z "$source_dir" ]; then
    fetch_npm || fetch_git || die "cannot fetch llama.cpp $tag (commit ${commit:0:12}):
llama: neither registry.npmjs.org nor github.com could be used.
llama: Copy the tree to this machine and give it with -DTQ_LLAMA_SOURCE_DIR=<tree>."
    source_dir=$tmp/src
fi

# ---- build ---------------------------------------------------------------------------------------

generator=()
if command -v ninja >/dev/null; then
    generator=(-G Ninja)
fi
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
say "building ${source_dir/#$tmp/pinned tree} with $jobs jobs (a few minutes, once)"
run() {
    if ! "$@" >>"$tmp/log" 2>&1; then
        tail -n 40 "$tmp/log" >&2
        cp "$tmp/log" "$cache/llama-failed.log"
        die "failed: $* (whole log: $cache/llama-failed.log)"
    fi
}
# shellcheck disable=SC2086  # TQ_LLAMA_OPTIONS is a list of words
run cmake -S "$root/cmake/llama" -B "$tmp/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
    -DTQ_LLAMA_SOURCE_DIR="$source_dir" -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib ${TQ_LLAMA_OPTIONS:-}
run cmake --build "$tmp/build" -j "$jobs"
run cmake --install "$tmp/build" --prefix "$tmp/install"
mv -T "$tmp/install" "$prefix"
say "ready: $prefix"
echo "$prefix"
