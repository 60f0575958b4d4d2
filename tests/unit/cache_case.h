/* SPDX-License-Identifier: MIT */
/* cache_case.h — what the tests of the cache share: caches in a line, random rows, and comparing
 * the stored bytes of two views. */
#ifndef TQ_TEST_CACHE_CASE_H
#define TQ_TEST_CACHE_CASE_H

#include "support.h"

static inline tq_layer make_layer(const char *scheme, uint32_t n_kv_heads, uint32_t d_k,
                                  uint32_t d_v)
{
    tq_layer l = {.n_kv_heads = n_kv_heads, .d_k = d_k, .d_v = d_v};
    assert_int_equal(tq_scheme_parse(&l.scheme, scheme, NULL, 0), TQ_OK);
    return l;
}

static inline tq_cache *make_cache(const tq_layer *layers, uint32_t n_layers, uint32_t n_pages,
                                   uint32_t max_seqs)
{
    const tq_cache_config cfg = {.layers = layers,
                                 .n_layers = n_layers,
                                 .n_pages = n_pages,
                                 .max_seqs = max_seqs,
                                 .isa_mask = TQ_ISA_ALL};
    tq_cache *c = NULL;
    assert_int_equal(tq_cache_create(&c, &cfg, NULL), TQ_OK);
    return c;
}

static inline float *random_rows(uint64_t *seed, size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)test_normal(seed);
    return x;
}

/* The rows [first, n_tokens) of all heads, byte by byte, in one form. */
static inline void assert_same_rows(const tq_view *x, const tq_view *y, tq_form form,
                                    uint32_t first)
{
    const tq_rows *a = form == TQ_FORM_F16 ? &x->f16 : &x->packed;
    const tq_rows *b = form == TQ_FORM_F16 ? &y->f16 : &y->packed;
    assert_int_equal(x->n_tokens, y->n_tokens);
    assert_int_equal(a->page_bytes, b->page_bytes);
    const size_t head = a->page_bytes / x->n_kv_heads;
    const size_t plane[] = {a->k->code_bytes, a->k->scale_bytes, a->k->zero_bytes,
                            a->v->code_bytes, a->v->scale_bytes, a->v->zero_bytes};
    for (uint32_t t = first; t < x->n_tokens; t++)
        for (uint32_t h = 0; h < x->n_kv_heads; h++) {
            const uint8_t *p = a->pages + a->page_table[t / 64] * a->page_bytes + h * head;
            const uint8_t *q = b->pages + b->page_table[t / 64] * b->page_bytes + h * head;
            for (int i = 0; i < 6; i++) {
                assert_memory_equal(p + t % 64 * plane[i], q + t % 64 * plane[i], plane[i]);
                p += 64 * plane[i];
                q += 64 * plane[i];
            }
        }
}

static inline void assert_same_bytes(const tq_view *a, const tq_view *b)
{
    assert_same_rows(a, b, TQ_FORM_PACKED, 0);
}

#endif
