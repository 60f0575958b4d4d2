/* SPDX-License-Identifier: MIT */
/* cache_read.c — what a cache tells: lengths, bytes, views, decoded rows. Changes nothing. */
#include "cache_priv.h"
#include "codec.h"

#include <string.h>

tq_status tq_cache_len(const tq_cache *c, uint32_t seq, uint32_t *n_tokens)
{
    if (!c || !n_tokens)
        return TQ_ERR_ARG;
    uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX)
        return TQ_ERR_STATE;
    *n_tokens = c->seqs[slot].n_tokens;
    return TQ_OK;
}

tq_status tq_cache_seq_bytes(const tq_cache *c, uint32_t seq, size_t *packed, size_t *f16)
{
    if (!c || !packed || !f16)
        return TQ_ERR_ARG;
    const uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX)
        return TQ_ERR_STATE;
    size_t bytes[2] = {0, 0};
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        const tq_kind *k = &c->kinds[i];
        const tq_held *h = tq_held_of(c, i, slot);
        const size_t rows = tq_kind_rows(&k->keep, c->seqs[slot].n_tokens);
        size_t dropped = (size_t)(h->first - h->head) * TQ_PAGE_TOKENS;
        /* Where f16 rows end (start) and all of them went, the last page was not full. */
        if (h->first == h->end && h->first > h->head && rows % TQ_PAGE_TOKENS != 0)
            dropped -= TQ_PAGE_TOKENS - rows % TQ_PAGE_TOKENS;
        bytes[k->keep.is_f16] += (rows - dropped) * k->bytes_per_token;
    }
    *packed = bytes[0];
    *f16 = bytes[1];
    return TQ_OK;
}

tq_status tq_cache_get_stats(const tq_cache *c, tq_cache_stats *out)
{
    if (!c || !out)
        return TQ_ERR_ARG;
    tq_cache_stats s = {.n_seqs = c->n_open, .n_tokens = c->n_tokens};
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        const tq_kind *k = &c->kinds[i];
        s.n_pages += k->n_pages;
        s.n_pages_used += k->n_used;
        s.capacity_bytes += k->n_pages * k->page_bytes;
        *(k->keep.is_f16 ? &s.f16_bytes : &s.packed_bytes) += k->n_used * k->page_bytes;
        *(k->keep.is_f16 ? &s.f16_bytes_per_token : &s.bytes_per_token) += k->bytes_per_token;
    }
    *out = s;
    return TQ_OK;
}

static tq_rows rows_of(const tq_cache *c, const tq_form_state *f, uint32_t slot)
{
    if (f->kind == TQ_NO_INDEX)
        return (tq_rows){0};
    return (tq_rows){.k = &f->k,
                     .v = tq_form_v(f),
                     .pages = f->pages,
                     .page_bytes = f->page_bytes,
                     .page_table = tq_table(c, f->kind, slot)};
}

tq_status tq_cache_view(const tq_cache *c, uint32_t seq, uint32_t layer, tq_view *out)
{
    if (!c || !out || layer >= c->n_layers)
        return TQ_ERR_ARG;
    uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX)
        return TQ_ERR_STATE;
    const tq_layer_state *l = &c->layers[c->layers[layer].stored_by];
    tq_view v = {.packed = rows_of(c, &l->form[TQ_FORM_PACKED], slot),
                 .f16 = rows_of(c, &l->form[TQ_FORM_F16], slot),
                 .n_kv_heads = l->n_kv_heads,
                 .d_v = l->d_v,
                 .n_tokens = c->seqs[slot].n_tokens + c->seqs[slot].n_pending,
                 .window = l->window,
                 .sink = l->sink,
                 .tail = l->tail,
                 .start = l->start,
                 .attn = l->attn,
                 .k_mean = l->k_mean,
                 .kernels = c->kernels};
    for (int f = 0; f < 2; f++) {
        const uint32_t kind = l->form[f].kind;
        if (kind == TQ_NO_INDEX)
            continue;
        const uint32_t m = tq_held_min_query(&c->kinds[kind].keep, tq_held_of(c, kind, slot));
        v.min_query = m > v.min_query ? m : v.min_query;
    }
    *out = v;
    return TQ_OK;
}

/* The first d_v elements of rows, of which a whole one must be decoded at a time. */
static void decode_starts(const tq_view *v, const tq_rows *r, uint32_t kv_head, uint32_t page_idx,
                          uint32_t slot, uint32_t n, float *dst)
{
    const tq_codec *c = r->v;
    float row[TQ_DIM_MAX];
    for (uint32_t i = 0; i < n; i++) {
        c->kernels->codec->decode[tq_kfmt(c->format)](
            c, row, c->dim, tq_rows_planes(r, kv_head, page_idx, slot + i, 1), 1);
        memcpy(dst + (size_t)i * v->d_v, row, v->d_v * sizeof *row);
    }
}

/* Tokens [first, first + n) in one form. */
static void decode_rows(const tq_view *v, const tq_rows *r, uint32_t kv_head, uint32_t first,
                        uint32_t n, float *dst_k, float *dst_v)
{
    for (uint32_t done = 0; done < n;) {
        uint32_t page_idx = (first + done) / TQ_PAGE_TOKENS;
        uint32_t slot = (first + done) % TQ_PAGE_TOKENS;
        uint32_t run = TQ_PAGE_TOKENS - slot;
        run = run < n - done ? run : n - done;
        for (int side = 0; side < 2; side++) {
            const tq_codec *c = side ? r->v : r->k;
            float *dst = side ? dst_v : dst_k;
            if (dst && side && v->d_v != c->dim)
                decode_starts(v, r, kv_head, page_idx, slot, run, dst + (size_t)done * v->d_v);
            else if (dst)
                c->kernels->codec->decode[tq_kfmt(c->format)](
                    c, dst + (size_t)done * c->dim, c->dim,
                    tq_rows_planes(r, kv_head, page_idx, slot, side), run);
        }
        done += run;
    }
    if (!dst_k || !v->k_mean)
        return;
    const uint32_t d = r->k->dim;
    const float *mean = v->k_mean + (size_t)kv_head * d;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < d; i++)
            dst_k[(size_t)t * d + i] += mean[i];
}

/* The oldest token that the query at position p sees. */
static uint32_t oldest_seen(const tq_view *v, uint32_t p)
{
    return v->window && p >= v->window ? p - v->window + 1 : 0;
}

tq_status tq_view_decode(const tq_view *v, uint32_t kv_head, uint32_t first, uint32_t n,
                         float *dst_k, float *dst_v)
{
    if (!v || kv_head >= v->n_kv_heads || first > v->n_tokens || n > v->n_tokens - first ||
        first < oldest_seen(v, v->min_query))
        return TQ_ERR_ARG;
    decode_rows(v, &v->packed, kv_head, first, n, dst_k, dst_v);
    return TQ_OK;
}

tq_status tq_view_decode_at(const tq_view *v, uint32_t query, uint32_t kv_head, uint32_t first,
                            uint32_t n, float *dst_k, float *dst_v)
{
    if (!v || kv_head >= v->n_kv_heads || query >= v->n_tokens || query < v->min_query ||
        first > query || n > query + 1 - first || first < oldest_seen(v, query))
        return TQ_ERR_ARG;
    const tq_packed_span packed = tq_view_packed(v, query);
    for (uint32_t t = first, end; t < first + n; t = end) {
        const int is_packed = t >= packed.lo && t < packed.hi;
        end = is_packed ? packed.hi : t < packed.lo ? packed.lo : UINT32_MAX;
        /* An empty middle is no border. */
        if (packed.lo == packed.hi)
            end = UINT32_MAX;
        end = end > first + n ? first + n : end;
        decode_rows(v, is_packed ? &v->packed : &v->f16, kv_head, t, end - t,
                    dst_k ? dst_k + (size_t)(t - first) * v->packed.k->dim : NULL,
                    dst_v ? dst_v + (size_t)(t - first) * v->d_v : NULL);
    }
    return TQ_OK;
}
