#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Dependencies go one way: apps -> engine -> src. Fails when a lower layer names a higher one.
#
#   tools/check_layers.sh [ROOT]
#
#   src/, include/  do not mention ggml, llama or tqe_; include only libc, libm, ISA and own headers
#   engine/         includes nothing from apps/; knows no argv, HTTP or JSON library
#   apps/           include engine.h, eval.h, file_atomic.h, scheme_files.h, snapshot.h, tune.h,
#                   turboquant.h, their own headers, system and jansson headers
set -euo pipefail
root=${1:-$(dirname "${BASH_SOURCE[0]}")/..}
cd "$root"
bad=0
shopt -s lastpipe # report, the last part of a pipe, sets bad in this shell

complain() {
    echo "layers: $1" >&2
    sed 's/^/    /' >&2
    bad=1
}
# report TEXT: complains when stdin holds anything.
report() {
    local lines
    lines=$(cat)
    if [ -n "$lines" ]; then
        complain "$1" <<<"$lines"
    fi
}
c_files() { find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.inc' \) 2>/dev/null | LC_ALL=C sort; }
# includes DIR...: "file:line: header" of every #include, comments do not matter.
includes() {
    c_files "$@" | tr '\n' '\0' | xargs -0 -r awk '
        match($0, /^[ \t]*#[ \t]*include[ \t]*[<"][^>"]+/) {
            h = substr($0, RSTART, RLENGTH); sub(/^[^<"]*[<"]/, "", h)
            print FILENAME ":" FNR ": " h }'
}

[ -n "$(c_files src)" ] || { echo "layers: no sources under $PWD/src" >&2; exit 1; }

c_files src include | tr '\n' '\0' | xargs -0 grep -nE 'ggml|tqe_|llama\.h|libllama' |
    report "the core must not name ggml, libllama or the engine" || true
c_files src | tr '\n' '\0' | xargs -0 grep -nwE 'printf|fprintf|abort|exit|longjmp|getenv|errno|pthread_[a-z]+' |
    grep -vE ':[0-9]+:[ \t]*(/?\*|//)' |
    report "the core must not print, exit, read the environment or start threads" || true

includes src include | while IFS= read -r line; do
    h=${line##*: }
    case $h in
    turboquant.h | turboquant_batch.h | turboquant_pages.h | assert.h | float.h | limits.h | math.h | stdbool.h | stddef.h | stdint.h | stdlib.h | \
        string.h | stdalign.h | stdatomic.h | immintrin.h | cpuid.h | arm_neon.h | sys/auxv.h) ;;
    *) [ -f "src/$h" ] || [ -f "src/cpu/$h" ] || echo "$line" ;;
    esac
done | report "the core includes libc, ISA headers and its own"

includes engine | grep -E ': (\.\./)*(apps|tests)/|: jansson|: microhttpd|: getopt|: argp' |
    report "the engine must not know the apps, JSON, HTTP or argv" || true
includes engine | while IFS= read -r line; do
    h=${line##*: }
    if [ -f "src/$h" ] && [ ! -f "engine/$h" ]; then
        echo "$line"
    fi
done | report "the engine uses turboquant.h, not the core's private headers"

lower=$(find src engine include -name '*.h')$'\n'
includes apps | while IFS= read -r line; do
    h=${line##*: }
    file=${line%%:*}
    case $h in
    engine.h | eval.h | file_atomic.h | scheme_files.h | snapshot.h | tune.h | turboquant.h | turboquant_batch.h | turboquant_pages.h | jansson.h) ;;
    *ggml* | *gguf* | *llama*) echo "$line" ;;
    *)
        # Its own headers stand beside it or above it under apps/; all else is the system's.
        if [[ $h == *..* ]]; then
            path=$(realpath -m --relative-to=. "${file%/*}/$h")
            [[ $path == apps/* && -f $path ]] || echo "$line"
        elif [ ! -f "${file%/*}/$h" ] && [ ! -f "apps/tq/$h" ] && [[ $lower == *"/$h"$'\n'* ]]; then
            echo "$line"
        fi
        ;;
    esac
done | report "apps include engine.h, eval.h, file_atomic.h, scheme_files.h, snapshot.h, tune.h, turboquant.h, their own and system headers"
c_files apps | tr '\n' '\0' | xargs -0 -r grep -nE '\b(ggml|llama)_[a-z_]+ *\(' |
    report "apps must not call ggml or libllama" || true

exit $bad
