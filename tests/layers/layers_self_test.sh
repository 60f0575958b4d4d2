#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# layers_self_test.sh CHECK: a clean little tree passes, and each kind of offence is found.
set -euo pipefail
check=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

fresh() {
    rm -rf "$tmp/t"
    mkdir -p "$tmp/t"/{src/cpu,engine,apps/tq,include}
    echo '#include <stdint.h>' >"$tmp/t/include/turboquant.h"
    printf '#include "turboquant.h"\n#include "cpu/kernels.h"\n#include <math.h>\n' >"$tmp/t/src/codec.c"
    echo '#include "turboquant.h"' >"$tmp/t/src/cpu/kernels.h"
    printf '#include "turboquant.h"\n#include "ggml.h"\n#include "model.h"\n' >"$tmp/t/engine/model.c"
    : >"$tmp/t/engine/model.h"
    : >"$tmp/t/engine/engine.h"
    printf '#include "engine.h"\n#include "args.h"\n#include <jansson.h>\n' >"$tmp/t/apps/tq/main.c"
    : >"$tmp/t/apps/tq/args.h"
}
offence() { # FILE LINE
    fresh
    echo "$2" >>"$tmp/t/$1"
    if "$check" "$tmp/t" >/dev/null 2>&1; then
        echo "layers_self: not found: '$2' in $1" >&2
        exit 1
    fi
}

fresh
"$check" "$tmp/t"
offence src/codec.c 'int tqe_model;'
offence src/codec.c '#include "ggml.h"'
offence src/codec.c '#include <pthread.h>'
offence src/codec.c '#include <stdio.h>'
offence src/codec.c 'void f(void) { abort(); }'
offence include/turboquant.h '/* for ggml */'
offence engine/model.c '#include "../apps/tq/args.h"'
offence engine/model.c '#include <jansson.h>'
offence engine/model.c '#include "cpu/kernels.h"'
offence apps/tq/main.c '#include "model.h"'
offence apps/tq/main.c '#include "cpu/kernels.h"'
offence apps/tq/main.c '#include <llama.h>'
offence apps/tq/main.c '#include "../../engine/model.h"'
offence apps/tq/main.c 'void g(void) { llama_free(0); }'
echo "14 offences found"
