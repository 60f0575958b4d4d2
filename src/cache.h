/* SPDX-License-Identifier: MIT */
/* cache.h — where the bytes of a page are, and which form of a row a query reads. Shared by the
 * cache, which writes them, and attention, which reads them.
 *
 *   layer arena   [n_pages][page], one arena per form
 *   page          [n_kv_heads][head]
 *   head          K codes [64][code_bytes], K scales [64][scale_bytes], K zero points,
 *                 V codes, V scales, V zero points: six planes, absent ones of 0 bytes
 *
 * Head-major, so that one KV head of a page is one run of memory: a token-major page makes the
 * stride of a head a power of two and misses the caches. Planes, so that the codes of 64 tokens
 * are contiguous. Every plane is a multiple of 64 bytes, so nothing needs padding.
 */
#ifndef TQ_CACHE_H
#define TQ_CACHE_H

#include "cpu/kernels.h"

/* Bytes of one KV head in a page. Values that are part of their keys have the same codec: not an
 * equal one, the same object. */
static inline size_t tq_page_head_bytes(const tq_codec *k, const tq_codec *v)
{
    return (size_t)TQ_PAGE_TOKENS * (k->block_bytes + (v == k ? 0 : v->block_bytes));
}

/* Planes of one side from its token `slot` on. side: first byte of the side in the page. */
static inline tq_planes tq_page_planes(const tq_codec *c, uint8_t *side, uint32_t slot)
{
    uint8_t *scale = side + TQ_PAGE_TOKENS * c->code_bytes;
    uint8_t *zero = scale + TQ_PAGE_TOKENS * c->scale_bytes;
    tq_planes p = {.codes = side + slot * c->code_bytes,
                   .scale = scale + slot * c->scale_bytes,
                   .zero = zero + slot * c->zero_bytes,
                   .codes_stride = c->code_bytes,
                   .scale_stride = c->scale_bytes,
                   .zero_stride = c->zero_bytes};
    return p;
}

/* Keys (is_value 0) or values (1) of a KV head from token `slot` of the view's page number
 * page_idx on, which the sequence must keep in this form. */
static inline tq_const_planes tq_rows_planes(const tq_rows *r, uint32_t kv_head, uint32_t page_idx,
                                             uint32_t slot, int is_value)
{
    const tq_codec *c = is_value ? r->v : r->k;
    const uint8_t *side = r->pages + r->page_table[page_idx] * r->page_bytes +
                          kv_head * tq_page_head_bytes(r->k, r->v);
    if (is_value && c != r->k)
        side += TQ_PAGE_TOKENS * r->k->block_bytes;
    const uint8_t *scale = side + TQ_PAGE_TOKENS * c->code_bytes;
    const uint8_t *zero = scale + TQ_PAGE_TOKENS * c->scale_bytes;
    tq_const_planes p = {.codes = side + slot * c->code_bytes,
                         .scale = scale + slot * c->scale_bytes,
                         .zero = zero + slot * c->zero_bytes,
                         .codes_stride = c->code_bytes,
                         .scale_stride = c->scale_bytes,
                         .zero_stride = c->zero_bytes};
    return p;
}

/* The tokens that the query at position p does NOT read in f16, [lo, hi); what it sees on either
 * side of them it does. */
typedef struct tq_packed_span {
    uint32_t lo, hi;
} tq_packed_span;

static inline tq_packed_span tq_view_packed(const tq_view *v, uint32_t p)
{
    tq_packed_span s = {v->sink, p + 1}; /* p < 2^30: a cache has no more tokens */
    if (!v->f16.pages)
        s.lo = 0;
    else if (p < v->start)
        s.hi = s.lo;
    else
        s.hi = v->tail < s.hi ? s.hi - v->tail : 0;
    s.hi = s.hi < s.lo ? s.lo : s.hi;
    return s;
}

#endif
