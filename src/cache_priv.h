/* SPDX-License-Identifier: MIT */
/* cache_priv.h — the inside of a cache, shared by the cache_*.c files.
 *
 * The memory of a cache, each part 64-byte aligned:
 *   tq_cache | layers [n_layers] | kinds [n_kinds] | seqs [max_seqs] | held [max_seqs][n_kinds] |
 *   per kind: page_link [pages of the kind], tables [max_seqs][n_pages] |
 *   per layer: k_mean | per layer and form: arena [pages of its kind][page]
 * A page table has room for the longest sequence, because a view may hold it while other tables
 * grow; the unused part of it costs address space only.
 *
 * A KIND is a set of (layer, form) pairs that keep the same tokens: one page id, one page table and
 * one reference count serve them all.
 */
#ifndef TQ_CACHE_PRIV_H
#define TQ_CACHE_PRIV_H

#include "cache.h"
#include "turboquant_pages.h"

#define TQ_NO_INDEX UINT32_MAX

/* Which tokens a kind keeps. Packed rows: those that some query sees. F16 rows: those that some
 * query reads in f16. */
typedef struct tq_keep {
    uint32_t is_f16, window, sink, tail, start;
} tq_keep;

typedef struct tq_form_state {
    tq_codec k, v; /* v is not used where values are in the keys */
    tq_encode_fn *encode_k, *encode_v;
    int v_in_k;
    size_t page_bytes;
    uint8_t *pages;
    uint32_t kind; /* TQ_NO_INDEX: the layer has no such form */
} tq_form_state;

typedef struct tq_layer_state {
    tq_form_state form[2]; /* by tq_form */
    uint32_t n_kv_heads, d_v, window;
    uint32_t stored_by; /* itself, or its donor */
    uint32_t sink, tail, start;
    tq_attn_mode attn;
    float *k_mean; /* [n_kv_heads][d_k], or NULL */
} tq_layer_state;

typedef struct tq_kind {
    tq_keep keep;
    size_t page_bytes, bytes_per_token; /* over its layers */
    uint32_t n_layers, n_pages;
    uint32_t *page_link; /* of a used page its number of owners; of a free one the next free page */
    uint32_t *tables;
    uint32_t mark, free_page, n_used; /* pages from mark on have never been used */
} tq_kind;

/* Pages of a sequence in a kind: [0, head) and [first, end). head == first: nothing was dropped. */
typedef struct tq_held {
    uint32_t head, first, end;
} tq_held;

typedef struct tq_seq {
    uint32_t n_tokens;   /* committed */
    uint32_t n_pending;  /* between begin and commit */
    uint32_t next_free;  /* of a closed slot: the next one */
    uint16_t generation; /* upper half of the handle, so that a stale handle is noticed */
    uint8_t is_open, is_appending, is_importing;
    tq_page_ref imported; /* the last page of an import */
} tq_seq;

struct tq_cache {
    tq_layer_state *layers;
    tq_kind *kinds;
    tq_seq *seqs;
    tq_held *held;
    const tq_kernels *kernels;
    uint32_t n_layers, n_kinds, n_pages, max_seqs, max_append, rollback;
    uint32_t seqs_mark, free_seq, n_open;
    uint64_t n_tokens;
    tq_allocator allocator; /* of a created cache */
    void *block;            /* what the allocator returned, or NULL */
};

/* What tq_rows calls v. */
static inline const tq_codec *tq_form_v(const tq_form_state *f)
{
    return f->v_in_k ? &f->k : &f->v;
}

static inline uint32_t tq_pages_for(uint64_t n_tokens)
{
    return (uint32_t)((n_tokens + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS);
}

/* Rows that a sequence of n tokens has had in a kind: tokens [0, rows). */
static inline uint32_t tq_kind_rows(const tq_keep *k, uint32_t n)
{
    const uint32_t first_ones = k->sink > k->start ? k->sink : k->start;
    return !k->is_f16 || k->tail > 0 || n < first_ones ? n : first_ones;
}

static inline uint32_t *tq_table(const tq_cache *c, uint32_t kind, uint32_t slot)
{
    return c->kinds[kind].tables + (size_t)slot * c->n_pages;
}

static inline tq_held *tq_held_of(const tq_cache *c, uint32_t kind, uint32_t slot)
{
    return c->held + (size_t)slot * c->n_kinds + kind;
}

static inline int tq_is_held(const tq_held *h, uint32_t page)
{
    return page < h->head || (page >= h->first && page < h->end);
}

/* Slot of an open sequence, or TQ_NO_INDEX. */
uint32_t tq_seq_slot(const tq_cache *c, uint32_t seq);

/* What is left of pages [0, end) when only queries from position `query` on will come. */
tq_held tq_keep_from(const tq_keep *k, uint32_t end, uint32_t query);

/* The lowest position whose queries find all that they read. */
uint32_t tq_held_min_query(const tq_keep *k, const tq_held *h);

/* Pages of a kind, taken for and given back by a sequence. */
uint32_t tq_page_take(tq_kind *k);
void tq_page_release(tq_kind *k, uint32_t page);

#endif
