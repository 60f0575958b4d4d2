/* SPDX-License-Identifier: MIT */
/* cache_pages.c — pages as bytes: export, and import into a new sequence.
 *
 * The pages of a sequence of n tokens are those that queries from position n on may read. This
 * depends on n alone, not on what the sequence has been through, so both sides agree about them
 * and equal sequences give equal bytes. The bytes of a page are those of its rows (docs/format.md,
 * chapter 3), without the unused end of each plane.
 *
 * An import has two phases, as an append has: its pages are reserved by begin and become a sequence
 * only by commit, which refuses when one is missing.
 */
#include "cache_priv.h"

#include <string.h>

/* Rows of a page that a sequence of n tokens exports; 0: none. */
static uint32_t rows_of_page(const tq_keep *keep, uint32_t n, uint32_t page)
{
    const uint32_t rows = tq_kind_rows(keep, n);
    const tq_held h = tq_keep_from(keep, tq_pages_for(rows), n);
    if (!tq_is_held(&h, page))
        return 0;
    const uint32_t left = rows - page * TQ_PAGE_TOKENS;
    return left < TQ_PAGE_TOKENS ? left : TQ_PAGE_TOKENS;
}

static void next_page(const tq_cache *c, uint32_t n, tq_page_ref *ref)
{
    tq_page_ref r = *ref;
    if (r.bytes > 0)
        r.layer++;
    for (; r.form <= TQ_FORM_F16; r.form++, r.page = 0, r.layer = 0)
        for (; r.page < tq_pages_for(n); r.page++, r.layer = 0)
            for (; r.layer < c->n_layers; r.layer++) {
                const tq_form_state *f = &c->layers[r.layer].form[r.form];
                if (f->kind == TQ_NO_INDEX)
                    continue;
                r.n_tokens = rows_of_page(&c->kinds[f->kind].keep, n, r.page);
                r.bytes = f->page_bytes / TQ_PAGE_TOKENS * r.n_tokens;
                if (r.bytes > 0) {
                    *ref = r;
                    return;
                }
            }
    *ref = (tq_page_ref){0};
}

tq_status tq_cache_page_next(const tq_cache *c, uint32_t seq, tq_page_ref *ref)
{
    if (!c || !ref || (uint32_t)ref->form > TQ_FORM_F16 || ref->layer >= c->n_layers)
        return TQ_ERR_ARG;
    const uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX || (c->seqs[slot].is_appending && !c->seqs[slot].is_importing))
        return TQ_ERR_STATE;
    next_page(c, c->seqs[slot].n_tokens + c->seqs[slot].n_pending, ref);
    return TQ_OK;
}

static int same_ref(const tq_page_ref *a, const tq_page_ref *b)
{
    return a->form == b->form && a->page == b->page && a->layer == b->layer &&
           a->n_tokens == b->n_tokens && a->bytes == b->bytes;
}

/* Copy a page out to `out`, or from `in` into it. */
static void copy_page(const tq_cache *c, uint32_t slot, const tq_page_ref *ref, uint8_t *out,
                      const uint8_t *in)
{
    const tq_layer_state *l = &c->layers[ref->layer];
    const tq_form_state *f = &l->form[ref->form];
    const tq_codec none = {.dim = 0}, *v = f->v_in_k ? &none : &f->v;
    const size_t plane[] = {f->k.code_bytes, f->k.scale_bytes, f->k.zero_bytes,
                            v->code_bytes,   v->scale_bytes,   v->zero_bytes};
    uint8_t *page = f->pages + tq_table(c, f->kind, slot)[ref->page] * f->page_bytes;
    for (uint32_t h = 0; h < l->n_kv_heads; h++)
        for (int p = 0; p < 6; p++) {
            const size_t n = ref->n_tokens * plane[p];
            if (n > 0 && out) {
                memcpy(out, page, n);
                out += n;
            } else if (n > 0) {
                memcpy(page, in, n);
                in += n;
            }
            page += TQ_PAGE_TOKENS * plane[p];
        }
}

tq_status tq_cache_page_export(const tq_cache *c, uint32_t seq, const tq_page_ref *ref, void *dst,
                               size_t n_bytes)
{
    if (!c || !ref || !dst || (uint32_t)ref->form > TQ_FORM_F16 || ref->layer >= c->n_layers)
        return TQ_ERR_ARG;
    const uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX || c->seqs[slot].is_appending)
        return TQ_ERR_STATE;
    tq_page_ref want = {.form = ref->form, .page = ref->page, .layer = ref->layer};
    next_page(c, c->seqs[slot].n_tokens, &want);
    if (!same_ref(&want, ref) || ref->bytes == 0)
        return TQ_ERR_ARG;
    if (n_bytes != ref->bytes)
        return TQ_ERR_SIZE;
    copy_page(c, slot, ref, dst, NULL);
    return TQ_OK;
}

tq_status tq_cache_import_begin(tq_cache *c, uint32_t seq, uint32_t n_tokens)
{
    if (!c || n_tokens == 0)
        return TQ_ERR_ARG;
    const uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX || c->seqs[slot].is_appending || c->seqs[slot].n_tokens > 0)
        return TQ_ERR_STATE;
    if (n_tokens > (uint64_t)c->n_pages * TQ_PAGE_TOKENS)
        return TQ_ERR_FULL;
    for (int take = 0; take < 2; take++)
        for (uint32_t i = 0; i < c->n_kinds; i++) {
            tq_kind *k = &c->kinds[i];
            const uint32_t end = tq_pages_for(tq_kind_rows(&k->keep, n_tokens));
            const tq_held h = tq_keep_from(&k->keep, end, n_tokens);
            if (h.end - h.first + h.head > k->n_pages - k->n_used && !take)
                return TQ_ERR_FULL;
            if (!take)
                continue;
            for (uint32_t p = 0; p < end; p++)
                if (tq_is_held(&h, p))
                    tq_table(c, i, slot)[p] = tq_page_take(k);
            *tq_held_of(c, i, slot) = h;
        }
    tq_seq *s = &c->seqs[slot];
    s->n_pending = n_tokens;
    s->is_appending = s->is_importing = 1;
    s->imported = (tq_page_ref){0};
    return TQ_OK;
}

tq_status tq_cache_import_page(tq_cache *c, uint32_t seq, const tq_page_ref *ref, const void *src,
                               size_t n_bytes)
{
    if (!c || !ref || !src)
        return TQ_ERR_ARG;
    const uint32_t slot = tq_seq_slot(c, seq);
    if (slot == TQ_NO_INDEX || !c->seqs[slot].is_importing)
        return TQ_ERR_STATE;
    tq_seq *s = &c->seqs[slot];
    tq_page_ref next = s->imported;
    next_page(c, s->n_pending, &next);
    if (next.bytes == 0 || !same_ref(&next, ref))
        return TQ_ERR_ARG;
    if (n_bytes != ref->bytes)
        return TQ_ERR_SIZE;
    copy_page(c, slot, ref, NULL, src);
    s->imported = next;
    return TQ_OK;
}
