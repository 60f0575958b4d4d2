/* SPDX-License-Identifier: MIT */
/* cache_world.h — the layers that the model of the cache runs on, and what their rows decode to.
 *
 * A token is one of CW_IDS small numbers. Its keys and values in each layer and head are fixed
 * random rows, and their decoded forms are made once by the codec alone, not by a cache. */
#ifndef TQ_TEST_CACHE_WORLD_H
#define TQ_TEST_CACHE_WORLD_H

#include "unit/support.h"

enum {
    CW_WORLDS = 10,
    CW_LAYERS = 4,
    CW_IDS = 32,
    CW_MAX_D = 32,
    CW_MAX_KV = 2,
    CW_MAX_HEADS = 6,
    CW_MAX_Q = 12,
    CW_MAX_TOKENS = 12 * 64,
    CW_MAX_PAGE_BYTES = 64 * CW_MAX_KV * 2 * CW_MAX_D * 4
};

typedef struct cw_layer {
    uint32_t n_kv, group, d_k, d_v, window, sink, tail, start;
    uint32_t stored_by;
    int has_form[2]; /* packed, f16; neither with a donor */
    int skipped;     /* packed is f16 */
    size_t page_bytes[2];
    uint32_t pool[2];
    float scale, softcap;
    int sinks;
    float mean[CW_MAX_KV * CW_MAX_D];
    /* What went in (form -1), and what must come out of each form: [id][kv head][d]. */
    float k[3][CW_IDS][CW_MAX_KV][CW_MAX_D], v[3][CW_IDS][CW_MAX_KV][CW_MAX_D];
} cw_layer;

typedef struct cw_world {
    uint32_t number, n_layers;
    cw_layer layer[CW_LAYERS];
    tq_layer config[CW_LAYERS];
} cw_world;

/* World `number`: always the same rows. */
void cw_make(cw_world *w, uint32_t number);

uint64_t cw_random(uint64_t *seed);

/* The row of a token: form -1 as it went in, 0 packed, 1 f16. */
static inline const float *cw_row(const cw_layer *l, uint8_t id, uint32_t head, int form, int value)
{
    return (value ? l->v : l->k)[form + 1][id][head];
}

/* Rows of n tokens as an append takes them: k [n][n_kv][d_k], v likewise. */
void cw_fill(const cw_layer *l, const uint8_t *ids, uint32_t n, float *k, float *v);

/* The oldest token that the query at position p sees; and whether it reads token t in f16. */
static inline uint32_t cw_oldest(const cw_layer *l, uint32_t p)
{
    return l->window && p >= l->window ? p - l->window + 1 : 0;
}

static inline int cw_reads_f16(const cw_layer *l, uint32_t p, uint32_t t)
{
    return t < l->sink || p - t < l->tail || p < l->start;
}

/* Do two layers keep the same tokens in this form? */
int cw_same_rule(const cw_layer *a, const cw_layer *b, int form);

/* Attention of the newest q_len tokens of the view. 0: a call failed. */
int cw_attend(const cw_layer *l, const tq_view *v, uint32_t q_len, const float *q, float *out);

/* Largest difference between one token's output and float64 attention over the decoded rows. */
double cw_error(const cw_layer *l, const uint8_t *ids, uint32_t p, const float *q,
                const float *out);

#endif
