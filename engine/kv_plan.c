/* SPDX-License-Identifier: MIT */
/* kv_plan.c — the one place that says how large a session's cache is, for sessions and for people
 * who ask before they start one. So what a plan promises is what a session then takes. */
#include "engine_priv.h"
#include "tune.h"

#include <stdlib.h>

/* Raw layers take no option, so no mean either: their rows are those of the plain scheme. */
static bool takes_mean(const tq_scheme *s)
{
    return s->family != TQ_FAMILY_F32 && s->family != TQ_FAMILY_F16 && s->family != TQ_FAMILY_BF16;
}

tq_layer tqe_kv_layer(const tqe_attn_geometry *geo, uint32_t i)
{
    const tq_scheme *s = geo->schemes != NULL ? &geo->schemes[i] : &geo->scheme;
    const float *mean = geo->k_mean != NULL && takes_mean(s) ? geo->k_mean : NULL;
    return (tq_layer){.n_kv_heads = geo->n_kv_heads,
                      .d_k = geo->d_head,
                      .d_v = geo->d_head,
                      .scheme = *s,
                      .window = geo->window,
                      .k_mean =
                          mean != NULL ? mean + (size_t)i * geo->n_kv_heads * geo->d_head : NULL};
}

static void set_config(tq_cache_config *cfg, const tq_layer *layers, const tqe_attn_geometry *geo)
{
    /* Each session may have a mark, which shares all pages but the one that is written next. */
    const uint64_t each = (geo->n_ctx + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS + (uint64_t)1;
    const uint64_t kept = (geo->n_kept + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS;
    const uint64_t n_pages = each * geo->n_seqs + kept;
    *cfg = (tq_cache_config){
        .layers = layers,
        .n_layers = geo->n_layers,
        .n_pages = n_pages < TQE_MAX_CTX ? (uint32_t)n_pages : TQE_MAX_CTX,
        .max_seqs = 2 * geo->n_seqs + (kept != 0 ? TQE_MAX_KEPT : 0),
        .isa_mask = geo->isa_mask,
        .max_append = geo->n_batch,
        .rollback = geo->rollback,
        .max_seq_pages = (geo->n_ctx + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS,
    };
}

bool tqe_kv_config(tq_cache_config *cfg, const tqe_attn_geometry *geo)
{
    tq_layer *layers = calloc(geo->n_layers, sizeof(*layers));
    if (layers == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < geo->n_layers; i++) {
        layers[i] = tqe_kv_layer(geo, i);
    }
    set_config(cfg, layers, geo);
    return true;
}

/* Packed bytes of a page over all layers. */
static size_t page_bytes(const tq_cache_config *cfg)
{
    size_t bytes = 0;
    tq_pool pool;
    for (uint32_t i = 0; tq_cache_pool(cfg, i, &pool) == TQ_OK; i++) {
        bytes += pool.is_f16 != 0 ? 0 : pool.page_bytes;
    }
    return bytes;
}

/* Bytes of the cache for contexts of n_pages pages. cfg: a config with its layers. */
static tq_status cache_bytes(tq_cache_config *cfg, tqe_attn_geometry *geo, uint32_t n_pages,
                             size_t *bytes)
{
    geo->n_ctx = n_pages * TQ_PAGE_TOKENS;
    geo->n_batch = geo->n_ctx < TQE_DEFAULT_BATCH ? geo->n_ctx : TQE_DEFAULT_BATCH;
    set_config(cfg, cfg->layers, geo);
    return tq_cache_bytes(cfg, bytes);
}

/* The largest context that fits; more tokens never take less. */
static tqe_status search(tqe_kv_plan *p, tq_cache_config *cfg, tqe_attn_geometry *geo,
                         uint64_t memory_bytes, tqe_error *err)
{
    size_t bytes = 0;
    if (cache_bytes(cfg, geo, 1, &bytes) != TQ_OK) {
        return tqe_fail(err, TQE_ERR_SCHEME, "this KV scheme cannot be used with this model");
    }
    p->page_bytes = page_bytes(cfg);
    p->bytes_per_token = p->page_bytes / TQ_PAGE_TOKENS;
    uint32_t lo = 0; /* in pages */
    uint32_t hi = TQE_MAX_CTX / TQ_PAGE_TOKENS;
    hi = hi < TQE_MAX_CTX / geo->n_seqs - 1 ? hi : TQE_MAX_CTX / geo->n_seqs - 1;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo + 1) / 2;
        if (cache_bytes(cfg, geo, mid, &bytes) == TQ_OK && bytes <= memory_bytes) {
            lo = mid;
            p->cache_bytes = bytes;
        } else {
            hi = mid - 1;
        }
    }
    p->n_ctx = lo * TQ_PAGE_TOKENS;
    return TQE_OK;
}

tqe_status tqe_kv_plan_make(tqe_kv_plan *out, const tqe_model_info *m, const tq_scheme *scheme,
                            uint64_t memory_bytes, uint32_t n_seqs, tqe_error *err)
{
    if (out == NULL || m == NULL || scheme == NULL || n_seqs == 0 || n_seqs > TQE_MAX_SEQS ||
        m->d_k != m->d_v) {
        return tqe_fail(err, TQE_ERR_ARG, "a plan for %u sessions", n_seqs);
    }
    tqe_attn_geometry geo = {.scheme = *scheme,
                             .n_layers = m->n_layers,
                             .n_kv_heads = m->n_kv_heads,
                             .d_head = m->d_k,
                             .window = m->window,
                             .n_seqs = n_seqs,
                             .rollback = TQE_DEFAULT_ROLLBACK,
                             .isa_mask = TQ_ISA_ALL};
    tqe_kv_plan p = {0};
    tq_cache_config cfg;
    geo.n_ctx = TQ_PAGE_TOKENS;
    tqe_status st = tqe_scheme_load(&geo, NULL, NULL, err);
    if (st != TQE_OK) {
        return st;
    }
    if (!tqe_kv_config(&cfg, &geo)) {
        st = tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    } else {
        st = search(&p, &cfg, &geo, memory_bytes, err);
        free((void *)(uintptr_t)cfg.layers);
    }
    tqe_scheme_unload(&geo);
    if (st == TQE_OK) {
        *out = p;
    }
    return st;
}

/* ---- Layers that differ -----------------------------------------------------------------------
 */

tqe_status tqe_tune_layer_bytes(const tqe_model_info *m, const tq_scheme *scheme, uint32_t *bytes,
                                tqe_error *err)
{
    size_t row = 0;
    if (tq_scheme_bytes_per_token(scheme, m->d_k, m->d_v, &row) != TQ_OK ||
        row > UINT32_MAX / m->n_kv_heads) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "a KV scheme does not support the model's head dimension %u", m->d_k);
    }
    *bytes = (uint32_t)row * m->n_kv_heads;
    return TQE_OK;
}

tqe_status tqe_tune_cache_bytes(const tqe_model_info *m, const tq_scheme *layers, uint32_t n_ctx,
                                size_t *bytes, tqe_error *err)
{
    /* Only read. */
    tqe_attn_geometry geo = {.schemes = (tq_scheme *)(uintptr_t)layers,
                             .n_layers = m->n_layers,
                             .n_kv_heads = m->n_kv_heads,
                             .d_head = m->d_k,
                             .window = m->window,
                             .n_seqs = 1,
                             .rollback = TQE_DEFAULT_ROLLBACK,
                             .isa_mask = TQ_ISA_ALL};
    tq_cache_config cfg;
    geo.n_ctx = TQ_PAGE_TOKENS;
    if (!tqe_kv_config(&cfg, &geo)) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    const uint32_t n_pages = (n_ctx + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS;
    const tq_status st = cache_bytes(&cfg, &geo, n_pages, bytes);
    free((void *)(uintptr_t)cfg.layers);
    return st == TQ_OK ? TQE_OK
                       : tqe_fail(err, TQE_ERR_ARG, "no cache of %u tokens is possible", n_ctx);
}
