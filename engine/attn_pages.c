/* SPDX-License-Identifier: MIT */
/* attn_pages.c — timelines as bytes and back.
 *
 * A new timeline is always made beside the running one and takes its place when it is complete, so
 * that nothing that a file holds can leave a session with half of it. Where the pages do not
 * suffice for both, the new one is made in a cache of its own first and moved over.
 */
#include "attn_priv.h"

#include "turboquant_pages.h"

#include <stdlib.h>

/* 0, or 1 + the layer whose rows this one reads: they lie in the same memory. */
static uint32_t donor_of(const tqe_attn *a, uint32_t layer, const tq_view *v)
{
    tq_view other;
    for (uint32_t i = 0; i < layer; i++) {
        if (tq_cache_view(a->cache, a->seq, i, &other) == TQ_OK &&
            other.packed.pages == v->packed.pages) {
            return i + 1;
        }
    }
    return 0;
}

tqe_status tqe_attn_describe(const tqe_attn *a, uint32_t layer, tqe_snap_layer *out, tqe_error *err)
{
    tq_view v;
    const tq_status st = tq_cache_view(a->cache, a->seq, layer, &v);
    if (st != TQ_OK) {
        return tqe_attn_status(st, err);
    }
    const tq_codec *kc = v.packed.k, *vc = v.packed.v;
    if (vc == kc) { /* a file has rows of keys and rows of values */
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "layer %u keeps its values inside its keys: such a cache can be neither "
                        "saved nor stored in pages",
                        layer);
    }
    *out = (tqe_snap_layer){.n_kv_heads = v.n_kv_heads,
                            .d_k = kc->dim,
                            .d_v = vc->dim,
                            .window = v.window,
                            .k_format = (uint32_t)kc->format,
                            .v_format = (uint32_t)vc->format,
                            .k_flags = kc->flags,
                            .v_flags = vc->flags,
                            .sink = v.sink,
                            .tail = v.tail,
                            .start = v.start,
                            .donor = donor_of(a, layer, &v)};
    if (tqe_decoder_id(&out->k_decoder, kc) != TQE_OK ||
        tqe_decoder_id(&out->v_decoder, vc) != TQE_OK) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    return TQE_OK;
}

uint32_t tqe_attn_seq(const tqe_attn *a)
{
    return a->seq;
}

static tqe_snap_part part_of(const tq_page_ref *r)
{
    return (tqe_snap_part){.form = (uint32_t)r->form,
                           .page = r->page,
                           .layer = r->layer,
                           .n_tokens = r->n_tokens,
                           .bytes = r->bytes};
}

uint32_t tqe_attn_list_parts(const tqe_attn *a, uint32_t seq, tqe_snap_part *parts)
{
    tq_page_ref r = {0};
    uint32_t n = 0;
    while (tq_cache_page_next(a->cache, seq, &r) == TQ_OK && r.bytes > 0) {
        if (parts != NULL) {
            parts[n] = part_of(&r);
        }
        n++;
    }
    return n;
}

tqe_status tqe_attn_export(const tqe_attn *a, uint32_t seq, const tqe_snap_part *part, uint8_t *dst,
                           tqe_error *err)
{
    const tq_page_ref r = {.form = (tq_form)part->form,
                           .page = part->page,
                           .layer = part->layer,
                           .n_tokens = part->n_tokens,
                           .bytes = (size_t)part->bytes};
    return tqe_attn_status(tq_cache_page_export(a->cache, seq, &r, dst, r.bytes), err);
}

/* ---- Import --------------------------------------------------------------------------------- */

/* Fill an empty sequence. On error it is empty again. */
static tqe_status fill(tq_cache *c, uint32_t seq, uint32_t n_tokens, tqe_part_source *source,
                       void *ctx, tqe_error *err)
{
    tq_page_ref r = {0};
    tq_status st = tq_cache_import_begin(c, seq, n_tokens);
    if (st != TQ_OK) {
        return tqe_attn_status(st, err);
    }
    tqe_status result = TQE_OK;
    while (result == TQE_OK) {
        const uint8_t *bytes = NULL;
        st = tq_cache_page_next(c, seq, &r);
        if (st != TQ_OK || r.bytes == 0) {
            break;
        }
        const tqe_snap_part part = part_of(&r);
        result = source(ctx, &part, &bytes, err);
        if (result == TQE_OK) {
            result = tqe_attn_status(tq_cache_import_page(c, seq, &r, bytes, r.bytes), err);
        }
    }
    if (result == TQE_OK) {
        result = st == TQ_OK ? source(ctx, NULL, NULL, err) : tqe_attn_status(st, err);
    }
    if (result == TQE_OK) {
        result = tqe_attn_status(tq_cache_append_commit(c, seq), err);
    }
    if (result != TQE_OK) {
        (void)tq_cache_append_abort(c, seq);
    }
    return result;
}

/* Pages of a complete timeline in another cache of the same layers. */
typedef struct mover {
    const tq_cache *from;
    uint32_t seq;
    uint8_t *buf;
    size_t cap;
} mover;

static tqe_status move_part(void *ctx, const tqe_snap_part *part, const uint8_t **bytes,
                            tqe_error *err)
{
    mover *m = ctx;
    if (part == NULL) {
        return TQE_OK;
    }
    if (part->bytes > m->cap) { /* never after the first page: the largest is reserved for */
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    const tq_page_ref r = {.form = (tq_form)part->form,
                           .page = part->page,
                           .layer = part->layer,
                           .n_tokens = part->n_tokens,
                           .bytes = (size_t)part->bytes};
    *bytes = m->buf;
    return tqe_attn_status(tq_cache_page_export(m->from, m->seq, &r, m->buf, r.bytes), err);
}

/* The largest page of a sequence. */
static size_t largest_page(const tq_cache *c, uint32_t seq)
{
    tq_page_ref r = {0};
    size_t n = 1;
    while (tq_cache_page_next(c, seq, &r) == TQ_OK && r.bytes > 0) {
        n = r.bytes > n ? r.bytes : n;
    }
    return n;
}

void tqe_attn_become(tqe_attn *a, uint32_t seq)
{
    (void)tq_cache_seq_close(a->cache, a->seq);
    a->seq = seq;
    tqe_attn_sync(a);
}

/* There are not enough pages for both timelines: complete the new one elsewhere, then move it. */
static tqe_status import_apart(tqe_attn *a, uint32_t n_tokens, tqe_part_source *source, void *ctx,
                               tqe_error *err)
{
    tq_cache *apart = NULL;
    tq_cache_config cfg;
    uint32_t seq = 0;
    mover m = {0};
    tqe_attn_geometry alone = a->geo;
    alone.n_seqs = 1;
    alone.n_kept = 0;
    if (!tqe_kv_config(&cfg, &alone)) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    tqe_status result = tqe_attn_status(tq_cache_create(&apart, &cfg, NULL), err);
    free((void *)(uintptr_t)cfg.layers);
    if (result == TQE_OK) {
        result = tqe_attn_status(tq_cache_seq_open(apart, &seq), err);
    }
    if (result == TQE_OK) {
        result = fill(apart, seq, n_tokens, source, ctx, err);
    }
    if (result == TQE_OK) {
        m = (mover){.from = apart, .seq = seq, .cap = largest_page(apart, seq)};
        m.buf = malloc(m.cap);
        if (m.buf == NULL) {
            result = tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
        }
    }
    if (result == TQE_OK) {
        /* From here on nothing depends on the file. The pages of the old timeline suffice for the
         * new one, as either fits the context. */
        (void)tq_cache_truncate(a->cache, a->seq, 0);
        result = fill(a->cache, a->seq, n_tokens, move_part, &m, err);
        tqe_attn_sync(a);
    }
    free(m.buf);
    tq_cache_destroy(apart);
    return result;
}

tqe_status tqe_attn_import(tqe_attn *a, uint32_t n_tokens, tqe_part_source *source, void *ctx,
                           tqe_error *err)
{
    uint32_t seq = 0;
    const tq_status st = tq_cache_seq_open(a->cache, &seq);
    if (st != TQ_OK) {
        return tqe_attn_status(st, err);
    }
    tq_status room = tq_cache_import_begin(a->cache, seq, n_tokens);
    while (room == TQ_ERR_FULL && tqe_kept_evict(a)) {
        room = tq_cache_import_begin(a->cache, seq, n_tokens);
    }
    if (room == TQ_OK) {
        (void)tq_cache_append_abort(a->cache, seq);
        const tqe_status result = fill(a->cache, seq, n_tokens, source, ctx, err);
        if (result == TQE_OK) {
            tqe_attn_become(a, seq);
        } else {
            (void)tq_cache_seq_close(a->cache, seq);
        }
        return result;
    }
    (void)tq_cache_seq_close(a->cache, seq);
    return room == TQ_ERR_FULL ? import_apart(a, n_tokens, source, ctx, err)
                               : tqe_attn_status(room, err);
}
