/* SPDX-License-Identifier: MIT */
/* attn_priv.h — the attention state of a session, shared by attn_op.c and attn_pages.c. */
#ifndef TQE_ATTN_PRIV_H
#define TQE_ATTN_PRIV_H

#include "engine_priv.h"

#include <stdatomic.h>

typedef struct tqe_kept {
    uint32_t seq, n_tokens;
    int32_t *tokens; /* [n_tokens], own copy */
    uint64_t last_use;
    uint8_t scope[TQE_ID_BYTES];
} tqe_kept;

/* One cache for a session and its forks, which one thread at a time uses. */
typedef struct tqe_kv_store {
    tq_cache *cache;
    size_t cache_bytes;
    tqe_attn_geometry geo; /* owns schemes and k_mean, which all users' geometries point to */
    uint32_t n_users;
    tqe_kept kept[TQE_MAX_KEPT];
    uint32_t n_kept;
    uint64_t clock; /* of last_use */
} tqe_kv_store;

struct tqe_attn {
    tqe_attn_geometry geo;
    tqe_kv_store *store;
    tq_cache *cache; /* the store's */
    uint32_t seq;
    uint32_t mark; /* a fork from before the running eval */
    bool has_seq, has_mark;
    tqe_attn_layer *layers; /* [n_layers] */
    uint8_t *partials;      /* shared by the layers, which run one after another */
    uint8_t *work;          /* [n_threads][work_stride] */
    size_t work_stride;
    atomic_int status; /* tq_status of the running step */
    uint32_t n_tokens;
    bool again; /* the running step appends nothing and attends by attn=fused */
};

/* A status of the core as one of the engine, with words. */
tqe_status tqe_attn_status(tq_status st, tqe_error *err);
/* Close the running timeline and run seq. */
void tqe_attn_become(tqe_attn *a, uint32_t seq);
/* Take the length from the cache. */
void tqe_attn_sync(tqe_attn *a);

#endif
