/* SPDX-License-Identifier: MIT */
/* attn_priv.h — the attention state of a session, shared by attn_op.c and attn_pages.c. */
#ifndef TQE_ATTN_PRIV_H
#define TQE_ATTN_PRIV_H

#include "engine_priv.h"

#include <stdatomic.h>

/* Timelines beside the running one: one that is being read from a file, and kept prompts. */
#define TQE_MAX_KEPT 64u

typedef struct tqe_kept {
    uint32_t seq, n_tokens;
    int32_t *tokens; /* [n_tokens], own copy */
    uint64_t last_use;
    uint8_t scope[TQE_ID_BYTES];
} tqe_kept;

struct tqe_attn {
    tqe_attn_geometry geo;
    tq_cache_config cfg; /* layers: own copy */
    tq_layer *cfg_layers;
    tq_cache *cache;
    uint32_t seq;
    tqe_attn_layer *layers; /* [n_layers] */
    uint8_t *partials;      /* shared by the layers, which run one after another */
    uint8_t *work;          /* [n_threads][work_stride] */
    size_t work_stride;
    atomic_int status; /* tq_status of the running step */
    uint32_t n_tokens;
    tqe_kept kept[TQE_MAX_KEPT];
    uint32_t n_kept;
    uint64_t clock; /* of last_use */
};

/* A status of the core as one of the engine, with words. */
tqe_status tqe_attn_status(tq_status st, tqe_error *err);
/* Close the running timeline and run seq. */
void tqe_attn_become(tqe_attn *a, uint32_t seq);
/* Take the length from the cache. */
void tqe_attn_sync(tqe_attn *a);

#endif
