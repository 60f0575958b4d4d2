#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `make check`: every test in every build that matters. The stages are independent: all run, and a
# failed one makes the exit status 1. The release tests come last, and the last line is ctest's
# count of them.
#
#   CMAKE_FLAGS   more configure options        JOBS   parallel jobs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
read -r -a cmake_flags <<<"${CMAKE_FLAGS:-}"
failed=()

# stage NAME COMMAND... : run it, note the failure, go on.
stage() {
    local name=$1 begin=$SECONDS
    shift
    echo
    echo "== $name"
    if "$@"; then
        echo "== $name: ok, $((SECONDS - begin)) s"
    else
        echo "== $name: FAILED, $((SECONDS - begin)) s"
        failed+=("$name")
    fi
}

# stderr stays visible: it says when llama.cpp is being built, which takes minutes.
configure_and_build() {
    cmake --preset "$1" "${cmake_flags[@]}" >"build/$1.log" || { cat "build/$1.log"; return 1; }
    cmake --build --preset "$1" -j "$jobs" >>"build/$1.log" 2>&1 ||
        { tail -n 60 "build/$1.log"; return 1; }
}

build_and_test() {
    configure_and_build "$1" && ctest --preset "$1" -j "$jobs" --no-label-summary
}

tools/setup.sh check
mkdir -p build

# First, because without it the rest is hopeless.
stage "release: build with gcc, warnings are errors" configure_and_build ci
if [ ${#failed[@]} -ne 0 ]; then
    exit 1
fi
stage "asan: AddressSanitizer and UndefinedBehaviorSanitizer" build_and_test asan
stage "tsan: ThreadSanitizer over the core's thread tests" build_and_test tsan
stage "clang: warnings are errors, fast tests" build_and_test clang
if { command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64; } >/dev/null; then
    stage "aarch64: the core and its NEON kernels under qemu" build_and_test aarch64
else
    printf '\n== aarch64: NOT RUN: aarch64-linux-gnu-gcc or qemu-aarch64 is missing\n'
fi
stage "fuzz: libFuzzer, 10 s a target" build_and_test fuzz

release_tests() {
    ctest --preset ci -j "$jobs" --no-label-summary | tee build/ci-tests.log
}
stage "release: all tests" release_tests

echo
echo "check: $SECONDS s"
if [ ${#failed[@]} -ne 0 ]; then
    printf 'check: FAILED: %s\n' "${failed[@]}"
fi
grep '% tests passed' build/ci-tests.log || true
[ ${#failed[@]} -eq 0 ]
