/* SPDX-License-Identifier: MIT */
/* fuzz_cache.c — any sequence of operations leaves the cache as its model says (tests/model). The
 * bytes are the choices: world, sizes, operations, tokens. */
#include "model/cache_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t counts[CM_N_EVENTS] = {0};
    cm_source src = {.data = data, .size = size};
    if (size > 0)
        (void)cm_episode(&src, 400, counts);
    return 0;
}
