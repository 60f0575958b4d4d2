#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the Debian packages that the build or the tests need: only those that are missing, and
# nothing at all when none is.
#
#   tools/setup.sh [--check] [build|check]
#
#   build     what `make` and `make demo` need
#   check     that, and what `make check` needs (default)
#   --check   print what is missing and exit 1, install nothing
set -euo pipefail

only_look=
goal=check
for arg in "$@"; do
    case $arg in
    --check) only_look=1 ;;
    build | check) goal=$arg ;;
    *) echo "usage: tools/setup.sh [--check] [build|check]" >&2; exit 2 ;;
    esac
done

missing=()
# Programs are looked for by name, so that a compiler or npm from elsewhere counts.
need_program() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_header() { echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1 || missing+=("$2"); }

need_program gcc gcc
need_program g++ g++
need_program cc gcc
need_program ld binutils
need_program make make
need_program cmake cmake
need_program ninja ninja-build
need_program git git
need_program npm npm
need_program python3 python3
need_program flock util-linux
need_program pkg-config pkg-config
need_program lowdown lowdown # man pages
need_header stdio.h libc6-dev
need_header jansson.h libjansson-dev
need_header xxhash.h libxxhash-dev
need_header sodium.h libsodium-dev
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)

if [ "$goal" = check ]; then
    need_program clang clang
    need_program clang-format clang-format
    need_program man man-db
    need_program gnuplot gnuplot-nox # figures of tq eval --html
    need_header cmocka.h libcmocka-dev
    # The NEON kernels are tested in an emulator.
    need_program aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    need_program qemu-aarch64 qemu-user
    [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || missing+=(libc6-dev-arm64-cross)
    # The sanitizer and libFuzzer runtimes of clang are a package of their own.
    if ! ls "$(clang -print-resource-dir 2>/dev/null)"/lib/linux/libclang_rt.fuzzer-*.a \
        >/dev/null 2>&1; then
        missing+=(libclang-rt-14-dev)
    fi
fi

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

if [ -n "$only_look" ]; then
    echo "missing packages: ${missing[*]}"
    exit 1
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1; then
        as_root=(sudo)
    else
        echo "setup: these packages are missing, and only root can install them:" >&2
        echo "setup:   apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: no apt-get here; install what these Debian packages hold: ${missing[*]}" >&2
    exit 1
fi

echo "setup: installing ${missing[*]} (a minute or two)" >&2
# Another apt may hold the lock for a while: wait for it rather than fail.
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -y -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists of a fresh machine or container may be absent or old.
if ! { apt install --no-install-recommends "${missing[@]}" ||
    { apt update && apt install --no-install-recommends "${missing[@]}"; }; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "setup: apt-get could not install ${missing[*]}" >&2
    exit 1
fi
