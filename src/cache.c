/* SPDX-License-Identifier: MIT */
/* cache.c — sequences: open, fork, close, the three-step append, truncate.
 *
 * Owns the pages, which sequence holds which, and their reference counts.
 *
 * The one hard idea: a row is written once. Only two things ever write into a page: an append into
 * the last, partial page of its sequence, and nothing else; so sharing pages is safe as long as a
 * shared partial page is copied before the append. Nothing is touched before it is used, so that a
 * cache may be configured for far more tokens than there is memory: free lists start empty, with a
 * mark below which entries have been used at least once.
 */
#include "cache_priv.h"

#include <string.h>

/* Floats of keys that are freed of their mean at once, on the stack. */
#define CENTRED_FLOATS 4096u

/* ---- Pages and sequences --------------------------------------------------------------- */

uint32_t tq_page_take(tq_kind *k)
{
    uint32_t p = k->free_page;
    if (p != TQ_NO_INDEX)
        k->free_page = k->page_link[p];
    else
        p = k->mark++;
    k->page_link[p] = 1;
    k->n_used++;
    return p;
}

void tq_page_release(tq_kind *k, uint32_t p)
{
    if (--k->page_link[p] > 0)
        return;
    k->page_link[p] = k->free_page;
    k->free_page = p;
    k->n_used--;
}

/* Give back the pages from number n on, last first, so that they are taken again in order. */
static void pages_trim(tq_cache *c, uint32_t kind, uint32_t slot, uint32_t n)
{
    tq_held *h = tq_held_of(c, kind, slot);
    const uint32_t *table = tq_table(c, kind, slot);
    for (; h->end > n; h->end--)
        if (tq_is_held(h, h->end - 1))
            tq_page_release(&c->kinds[kind], table[h->end - 1]);
    if (n == 0)
        h->head = h->first = 0;
}

/* Give back the pages that no query from position `query` on reads. */
static void pages_drop_old(tq_cache *c, uint32_t kind, uint32_t slot, uint32_t query)
{
    tq_held *h = tq_held_of(c, kind, slot);
    const uint32_t *table = tq_table(c, kind, slot);
    tq_held left = tq_keep_from(&c->kinds[kind].keep, h->end, query);
    if (left.first <= left.head)
        return;
    /* A truncated sequence may have dropped more than this before. */
    const int dropped = h->first > h->head;
    left.first = left.first < h->first ? h->first : left.first;
    left.head = dropped && h->head < left.head ? h->head : left.head;
    for (uint32_t p = left.head; dropped && p < h->head; p++)
        tq_page_release(&c->kinds[kind], table[p]);
    for (uint32_t p = dropped ? h->first : left.head; p < left.first; p++)
        tq_page_release(&c->kinds[kind], table[p]);
    *h = left;
}

uint32_t tq_seq_slot(const tq_cache *c, uint32_t seq)
{
    uint32_t slot = seq & 0xffffu;
    if (slot >= c->seqs_mark || !c->seqs[slot].is_open || c->seqs[slot].generation != seq >> 16)
        return TQ_NO_INDEX;
    return slot;
}

tq_status tq_cache_seq_open(tq_cache *c, uint32_t *seq)
{
    if (!c || !seq)
        return TQ_ERR_ARG;
    uint32_t slot = c->free_seq;
    uint16_t generation = 0;
    if (slot != TQ_NO_INDEX) {
        c->free_seq = c->seqs[slot].next_free;
        generation = (uint16_t)(c->seqs[slot].generation + 1);
    } else if (c->seqs_mark < c->max_seqs) {
        slot = c->seqs_mark++;
    } else {
        return TQ_ERR_FULL;
    }
    c->seqs[slot] = (tq_seq){.generation = generation, .is_open = 1};
    for (uint32_t k = 0; k < c->n_kinds; k++)
        *tq_held_of(c, k, slot) = (tq_held){0};
    c->n_open++;
    *seq = slot | (uint32_t)generation << 16;
    return TQ_OK;
}

static uint32_t min_query(const tq_cache *c, uint32_t slot)
{
    uint32_t min = 0;
    for (uint32_t k = 0; k < c->n_kinds; k++) {
        const uint32_t m = tq_held_min_query(&c->kinds[k].keep, tq_held_of(c, k, slot));
        min = m > min ? m : min;
    }
    return min;
}

tq_status tq_cache_seq_fork(tq_cache *c, uint32_t seq, uint32_t n_tokens, uint32_t *out)
{
    if (!c || !out)
        return TQ_ERR_ARG;
    const uint32_t from = tq_seq_slot(c, seq);
    if (from == TQ_NO_INDEX || c->seqs[from].is_appending)
        return TQ_ERR_STATE;
    if (n_tokens > c->seqs[from].n_tokens)
        return TQ_ERR_ARG;
    if (n_tokens > 0 && n_tokens < min_query(c, from))
        return TQ_ERR_STATE;
    tq_status st = tq_cache_seq_open(c, out);
    if (st != TQ_OK || n_tokens == 0)
        return st;
    const uint32_t to = tq_seq_slot(c, *out);
    c->seqs[to].n_tokens = n_tokens;
    c->n_tokens += n_tokens;
    for (uint32_t k = 0; k < c->n_kinds; k++) {
        tq_kind *kind = &c->kinds[k];
        const uint32_t *src = tq_table(c, k, from);
        uint32_t *dst = tq_table(c, k, to);
        tq_held h = *tq_held_of(c, k, from);
        h.end = tq_pages_for(tq_kind_rows(&kind->keep, n_tokens));
        for (uint32_t p = 0; p < h.end; p++)
            if (tq_is_held(&h, p)) {
                dst[p] = src[p];
                kind->page_link[src[p]]++;
            }
        *tq_held_of(c, k, to) = h;
    }
    return TQ_OK;
}

tq_status tq_cache_seq_close(tq_cache *c, uint32_t seq)
{
    if (!c)
        return TQ_ERR_ARG;
    uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX)
        return TQ_ERR_STATE;
    tq_seq *s = &c->seqs[slot];
    for (uint32_t k = 0; k < c->n_kinds; k++)
        pages_trim(c, k, slot, 0);
    c->n_tokens -= s->n_tokens;
    c->n_open--;
    s->is_open = 0;
    s->next_free = c->free_seq;
    c->free_seq = slot;
    return TQ_OK;
}

/* ---- Append ---------------------------------------------------------------------------- */

/* The page that an append to n rows of `rows` to come writes into although others own it too, or
 * TQ_NO_INDEX. */
static uint32_t shared_tail(const tq_cache *c, uint32_t kind, uint32_t slot, uint32_t n,
                            uint32_t rows)
{
    const uint32_t page = n / TQ_PAGE_TOKENS;
    if (n % TQ_PAGE_TOKENS == 0 || rows <= n ||
        c->kinds[kind].page_link[tq_table(c, kind, slot)[page]] == 1)
        return TQ_NO_INDEX;
    return page;
}

/* A page of its own for this sequence, with the rows of the shared one. */
static void page_unshare(tq_cache *c, uint32_t kind, uint32_t slot, uint32_t page)
{
    uint32_t *entry = &tq_table(c, kind, slot)[page];
    const uint32_t old = *entry, own = tq_page_take(&c->kinds[kind]);
    for (uint32_t i = 0; i < c->n_layers; i++)
        for (int f = 0; f < 2; f++) {
            const tq_form_state *form = &c->layers[i].form[f];
            if (form->kind == kind)
                memcpy(form->pages + own * form->page_bytes, form->pages + old * form->page_bytes,
                       form->page_bytes);
        }
    tq_page_release(&c->kinds[kind], old);
    *entry = own;
}

tq_status tq_cache_append_begin(tq_cache *c, uint32_t seq, uint32_t n_tokens)
{
    if (!c || n_tokens == 0 || (c->max_append > 0 && n_tokens > c->max_append))
        return TQ_ERR_ARG;
    uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX || c->seqs[slot].is_appending)
        return TQ_ERR_STATE;
    tq_seq *s = &c->seqs[slot];
    const uint64_t total = (uint64_t)s->n_tokens + n_tokens;
    if (total > (uint64_t)c->n_pages * TQ_PAGE_TOKENS)
        return TQ_ERR_FULL;
    for (uint32_t k = 0; k < c->n_kinds; k++) {
        const tq_kind *kind = &c->kinds[k];
        const uint32_t rows = tq_kind_rows(&kind->keep, (uint32_t)total);
        const uint32_t more = tq_pages_for(rows) - tq_held_of(c, k, slot)->end;
        const uint32_t copies = shared_tail(c, k, slot, s->n_tokens, rows) != TQ_NO_INDEX;
        if (more + copies > kind->n_pages - kind->n_used)
            return TQ_ERR_FULL;
    }
    for (uint32_t k = 0; k < c->n_kinds; k++) {
        tq_kind *kind = &c->kinds[k];
        tq_held *h = tq_held_of(c, k, slot);
        const uint32_t rows = tq_kind_rows(&kind->keep, (uint32_t)total);
        const uint32_t shared = shared_tail(c, k, slot, s->n_tokens, rows);
        if (shared != TQ_NO_INDEX)
            page_unshare(c, k, slot, shared);
        while (h->end < tq_pages_for(rows))
            tq_table(c, k, slot)[h->end++] = tq_page_take(kind);
    }
    s->n_pending = n_tokens;
    s->is_appending = 1;
    return TQ_OK;
}

/* First of `units` that part `part` of `n_parts` takes; no product that could overflow. */
static uint64_t part_start(uint64_t units, uint32_t part, uint32_t n_parts)
{
    uint64_t extra = units % n_parts;
    return units / n_parts * part + (part < extra ? part : extra);
}

/* Rows [lo, hi) of the new tokens of one KV head, within one page. */
typedef struct run {
    uint32_t page_idx, head, lo, hi;
    const float *k, *v; /* row lo */
    size_t k_stride, v_stride;
} run;

/* Both sides of a run, as far as this form keeps it. k and k_stride may differ from the run's. */
static void encode_form(const tq_cache *c, const tq_form_state *form, uint32_t slot, const run *r,
                        uint32_t lo, uint32_t hi, const float *k, size_t k_stride)
{
    if (form->kind == TQ_NO_INDEX)
        return;
    const uint32_t rows = tq_kind_rows(&c->kinds[form->kind].keep, hi);
    const uint32_t first = lo % TQ_PAGE_TOKENS;
    if (rows <= lo)
        return;
    uint8_t *side = form->pages + tq_table(c, form->kind, slot)[r->page_idx] * form->page_bytes +
                    r->head * tq_page_head_bytes(&form->k, tq_form_v(form));
    form->encode_k(&form->k, tq_page_planes(&form->k, side, first), k, k_stride, rows - lo);
    if (form->v_in_k)
        return;
    side += TQ_PAGE_TOKENS * form->k.block_bytes;
    form->encode_v(&form->v, tq_page_planes(&form->v, side, first),
                   r->v + (lo - r->lo) * r->v_stride, r->v_stride, rows - lo);
}

static tq_status encode_run(const tq_cache *c, const tq_layer_state *l, uint32_t slot, const run *r)
{
    const tq_codec_kernels *kern = c->kernels->codec;
    const uint32_t n = r->hi - r->lo, d = l->form[0].k.dim;
    if (kern->first_nonfinite(r->k, r->k_stride, d, n) < n ||
        (r->v && kern->first_nonfinite(r->v, r->v_stride, l->d_v, n) < n))
        return TQ_ERR_NONFINITE;
    if (!l->k_mean) {
        for (int f = 0; f < 2; f++)
            encode_form(c, &l->form[f], slot, r, r->lo, r->hi, r->k, r->k_stride);
        return TQ_OK;
    }
    float centred[CENTRED_FLOATS];
    const float *mean = l->k_mean + (size_t)r->head * d;
    const uint32_t step = CENTRED_FLOATS / d;
    for (uint32_t lo = r->lo; lo < r->hi; lo += step) {
        const uint32_t m = r->hi - lo < step ? r->hi - lo : step;
        for (uint32_t t = 0; t < m; t++)
            for (uint32_t i = 0; i < d; i++)
                centred[t * d + i] = r->k[(lo - r->lo + t) * r->k_stride + i] - mean[i];
        if (kern->first_nonfinite(centred, d, d, m) < m)
            return TQ_ERR_NONFINITE; /* the difference left f32 */
        for (int f = 0; f < 2; f++)
            encode_form(c, &l->form[f], slot, r, lo, lo + m, centred, d);
    }
    return TQ_OK;
}

tq_status tq_cache_append_rows(tq_cache *c, uint32_t seq, uint32_t layer, const float *k,
                               size_t k_stride, const float *v, size_t v_stride, uint32_t part,
                               uint32_t n_parts)
{
    if (!c || !k || layer >= c->n_layers || n_parts == 0 || part >= n_parts)
        return TQ_ERR_ARG;
    const tq_layer_state *l = &c->layers[layer];
    if (l->stored_by != layer || (v == NULL) != l->form[0].v_in_k)
        return TQ_ERR_ARG;
    const uint32_t d_k = l->form[0].k.dim, d_v = l->d_v;
    if (k_stride < (size_t)l->n_kv_heads * d_k || (v && v_stride < (size_t)l->n_kv_heads * d_v))
        return TQ_ERR_ARG;
    uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX || !c->seqs[slot].is_appending || c->seqs[slot].is_importing)
        return TQ_ERR_STATE;

    /* A unit of work is one KV head of one page: writers of different parts share no byte, and the
     * encoder gets runs as long as the page allows. */
    const tq_seq *s = &c->seqs[slot];
    const uint32_t first = s->n_tokens, end = s->n_tokens + s->n_pending;
    const uint32_t first_page = first / TQ_PAGE_TOKENS;
    const uint64_t units = (uint64_t)(tq_pages_for(end) - first_page) * l->n_kv_heads;
    const uint64_t stop = part + 1 == n_parts ? units : part_start(units, part + 1, n_parts);
    for (uint64_t u = part_start(units, part, n_parts); u < stop; u++) {
        run r = {.page_idx = first_page + (uint32_t)(u / l->n_kv_heads),
                 .head = (uint32_t)(u % l->n_kv_heads),
                 .k_stride = k_stride,
                 .v_stride = v_stride};
        r.lo = r.page_idx * TQ_PAGE_TOKENS;
        r.hi = r.lo + TQ_PAGE_TOKENS;
        r.lo = r.lo < first ? first : r.lo;
        r.hi = r.hi > end ? end : r.hi;
        const size_t row = r.lo - first;
        r.k = k + row * k_stride + (size_t)r.head * d_k;
        r.v = v ? v + row * v_stride + (size_t)r.head * d_v : NULL;
        tq_status st = encode_run(c, l, slot, &r);
        if (st != TQ_OK)
            return st;
    }
    return TQ_OK;
}

/* The slot of a sequence between begin and commit or abort, or TQ_NO_INDEX. */
static uint32_t appending_slot(const tq_cache *c, uint32_t seq)
{
    const uint32_t slot = tq_seq_slot(c, seq);
    return slot != TQ_NO_INDEX && c->seqs[slot].is_appending ? slot : TQ_NO_INDEX;
}

tq_status tq_cache_append_commit(tq_cache *c, uint32_t seq)
{
    if (!c)
        return TQ_ERR_ARG;
    const uint32_t slot = appending_slot(c, seq);
    if (slot == TQ_NO_INDEX)
        return TQ_ERR_STATE;
    tq_seq *s = &c->seqs[slot];
    if (s->is_importing) {
        tq_page_ref next = s->imported;
        if (tq_cache_page_next(c, seq, &next) != TQ_OK || next.bytes > 0)
            return TQ_ERR_STATE;
    }
    s->n_tokens += s->n_pending;
    c->n_tokens += s->n_pending;
    s->n_pending = 0;
    s->is_appending = s->is_importing = 0;
    const uint32_t last = s->n_tokens - 1;
    for (uint32_t k = 0; last > c->rollback && k < c->n_kinds; k++)
        pages_drop_old(c, k, slot, last - c->rollback);
    return TQ_OK;
}

tq_status tq_cache_append_abort(tq_cache *c, uint32_t seq)
{
    if (!c)
        return TQ_ERR_ARG;
    const uint32_t slot = appending_slot(c, seq);
    if (slot == TQ_NO_INDEX)
        return TQ_ERR_STATE;
    tq_seq *s = &c->seqs[slot];
    s->n_pending = 0;
    s->is_appending = s->is_importing = 0;
    for (uint32_t k = 0; k < c->n_kinds; k++)
        pages_trim(c, k, slot, tq_pages_for(tq_kind_rows(&c->kinds[k].keep, s->n_tokens)));
    return TQ_OK;
}

tq_status tq_cache_append(tq_cache *c, uint32_t seq, const float *k, const float *v,
                          uint32_t n_tokens)
{
    if (!c || !k || c->n_layers != 1)
        return TQ_ERR_ARG;
    const tq_layer_state *l = &c->layers[0];
    tq_status st = tq_cache_append_begin(c, seq, n_tokens);
    if (st != TQ_OK)
        return st;
    st = tq_cache_append_rows(c, seq, 0, k, (size_t)l->n_kv_heads * l->form[0].k.dim, v,
                              (size_t)l->n_kv_heads * l->d_v, 0, 1);
    if (st != TQ_OK) {
        tq_cache_append_abort(c, seq);
        return st;
    }
    return tq_cache_append_commit(c, seq);
}

/* ---- Truncate -------------------------------------------------------------------------- */

tq_status tq_cache_min_truncate(const tq_cache *c, uint32_t seq, uint32_t *n_tokens)
{
    if (!c || !n_tokens)
        return TQ_ERR_ARG;
    const uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX)
        return TQ_ERR_STATE;
    *n_tokens = min_query(c, slot);
    return TQ_OK;
}

tq_status tq_cache_truncate(tq_cache *c, uint32_t seq, uint32_t n_tokens)
{
    if (!c)
        return TQ_ERR_ARG;
    uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX || c->seqs[slot].is_appending)
        return TQ_ERR_STATE;
    tq_seq *s = &c->seqs[slot];
    if (n_tokens > s->n_tokens)
        return TQ_ERR_ARG;
    if (n_tokens > 0 && n_tokens < min_query(c, slot))
        return TQ_ERR_STATE;
    c->n_tokens -= s->n_tokens - n_tokens;
    s->n_tokens = n_tokens;
    for (uint32_t k = 0; k < c->n_kinds; k++)
        pages_trim(c, k, slot, tq_pages_for(tq_kind_rows(&c->kinds[k].keep, n_tokens)));
    return TQ_OK;
}
