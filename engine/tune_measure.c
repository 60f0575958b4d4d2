/* SPDX-License-Identifier: MIT */
/* tune_measure.c — what a way to store the layers costs, and the keys that a cache gets.
 *
 * As in an evaluation (eval.c) the reference and all variants advance together, one batch at a
 * time, so that the logits of a batch are all that is held. Each variant is a session of its own,
 * made for one window: hundreds are measured, and their caches would not fit at once.
 */
#include "score.h"
#include "tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Logits of a batch: 8 MiB where the vocabulary allows it, 16 to 256 tokens. */
#define BATCH_LOGITS (1u << 21)
/* Caches of a group, as if all were in f32, and variants of one. */
#define GROUP_BYTES ((size_t)1 << 30)
#define GROUP_MAX   12u

typedef struct measure {
    const tqe_model *model;
    const tqe_tune_params *p;
    uint32_t batch;
    size_t n_vocab;
    tqe_session *reference;
    tqe_session **variants; /* [n] */
    size_t n;
    tqe_dist dist;     /* of the reference */
    float *logits;     /* [batch][n_vocab] */
    tqe_score *scores; /* [batch] */
} measure;

static tqe_status check(const tqe_model *m, const tqe_tune_params *p, tqe_error *err)
{
    if (m == NULL || p == NULL || p->n_ctx < 32 || p->n_ctx > TQE_MAX_CTX ||
        p->from >= p->n_ctx - 1) {
        return tqe_fail(err, TQE_ERR_ARG, "no position to score in windows of %u tokens",
                        p != NULL ? p->n_ctx : 0);
    }
    return TQE_OK;
}

static tqe_session_params session_params(const tqe_tune_params *p, uint32_t batch)
{
    return (tqe_session_params){.n_ctx = p->n_ctx,
                                .n_threads = p->n_threads,
                                .n_batch = batch,
                                .kv = "f32",
                                .isa_mask = p->isa_mask};
}

static uint32_t batch_of(const tqe_model *m, const tqe_tune_params *p)
{
    const uint32_t fit = BATCH_LOGITS / m->config.n_vocab;
    const uint32_t n = fit < 16 ? 16 : fit > 256 ? 256 : fit;
    return n < p->n_ctx ? n : p->n_ctx;
}

size_t tqe_tune_group(const tqe_model *m, const tqe_tune_params *p)
{
    const tqe_config *c = &m->config;
    const size_t cache = (size_t)c->n_layers * c->n_kv_heads * c->d_head * 2 * sizeof(float);
    const size_t fit = GROUP_BYTES / cache / p->n_ctx;
    return fit < 1 ? 1 : fit > GROUP_MAX ? GROUP_MAX : fit;
}

static tqe_status open_all(measure *ms, const tqe_tune_variant *variants, tqe_error *err)
{
    const tqe_session_params sp = session_params(ms->p, ms->batch);
    ms->logits = malloc(ms->batch * ms->n_vocab * sizeof(*ms->logits));
    ms->scores = malloc(ms->batch * sizeof(*ms->scores));
    ms->variants = calloc(ms->n, sizeof(*ms->variants));
    if (!tqe_dist_init(&ms->dist, ms->batch, ms->n_vocab) || ms->logits == NULL ||
        ms->scores == NULL || ms->variants == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a measurement");
    }
    tqe_status st = tqe_session_create(&ms->reference, ms->model, &sp, err);
    for (size_t i = 0; st == TQE_OK && i < ms->n; i++) {
        st = tqe_session_create_layers(&ms->variants[i], ms->model, &sp, variants[i].layers,
                                       variants[i].k_mean, err);
    }
    return st;
}

static void close_all(measure *ms)
{
    tqe_session_free(ms->reference);
    for (size_t i = 0; ms->variants != NULL && i < ms->n; i++) {
        tqe_session_free(ms->variants[i]);
    }
    free(ms->variants);
    tqe_dist_free(&ms->dist);
    free(ms->logits);
    free(ms->scores);
}

static tqe_status run_reference(measure *ms, const int32_t *ids, uint32_t n, tqe_error *err)
{
    const tqe_status st = tqe_session_eval(ms->reference, ids, n, ms->dist.logits, NULL, NULL, err);
    return st == TQE_OK ? tqe_dist_keep(&ms->dist, n, ms->reference, err) : st;
}

/* Adds the divergences of the scored ones of n positions from `first` on. */
static tqe_status run_variant(measure *ms, size_t variant, const int32_t *ids, uint32_t first,
                              uint32_t n, double *kl, tqe_error *err)
{
    tqe_session *s = ms->variants[variant];
    tqe_status st = tqe_session_eval(s, ids, n, ms->logits, NULL, NULL, err);
    if (st == TQE_OK) {
        st = tqe_dist_score(&ms->dist, ms->logits, n, ms->scores, s, err);
    }
    for (uint32_t i = 0; st == TQE_OK && i < n; i++) {
        if (first + i < ms->p->from || first + i + 1 >= ms->p->n_ctx) {
            continue;
        }
        if (!isfinite(ms->scores[i].kl)) {
            return tqe_fail(err, TQE_ERR_NUMERIC, "NaN or Inf in the logits");
        }
        *kl += ms->scores[i].kl;
    }
    return st;
}

static tqe_status run_window(measure *ms, const int32_t *ids, double *kl, tqe_progress_fn *progress,
                             void *ctx, tqe_error *err)
{
    const uint32_t n_ctx = ms->p->n_ctx;
    const size_t total = (ms->n + 1) * n_ctx;
    size_t done = 0;
    for (uint32_t first = 0; first < n_ctx; first += ms->batch) {
        const uint32_t left = n_ctx - first;
        const uint32_t n = left < ms->batch ? left : ms->batch;
        for (size_t i = 0; i <= ms->n; i++) {
            const tqe_status st =
                i == 0 ? run_reference(ms, ids + first, n, err)
                       : run_variant(ms, i - 1, ids + first, first, n, &kl[i - 1], err);
            if (st != TQE_OK) {
                return st;
            }
            done += n;
            if (progress != NULL && !progress(ctx, done, total)) {
                return tqe_fail(err, TQE_ERR_CANCELLED, "stopped");
            }
        }
    }
    return TQE_OK;
}

tqe_status tqe_tune_window(const tqe_model *m, const tqe_tune_params *p, const int32_t *ids,
                           const tqe_tune_variant *variants, size_t n, double *kl,
                           tqe_progress_fn *progress, void *ctx, tqe_error *err)
{
    tqe_status st = check(m, p, err);
    if (st != TQE_OK || n == 0) {
        return st;
    }
    measure ms = {.model = m, .p = p, .batch = batch_of(m, p), .n_vocab = m->config.n_vocab};
    ms.n = n;
    st = open_all(&ms, variants, err);
    if (st == TQE_OK) {
        memset(kl, 0, n * sizeof(*kl));
        st = run_window(&ms, ids, kl, progress, ctx, err);
    }
    for (size_t i = 0; st == TQE_OK && i < n; i++) {
        kl[i] /= p->n_ctx - 1 - p->from;
    }
    close_all(&ms);
    return st;
}

/* ---- Keys -------------------------------------------------------------------------------------
 */

static tqe_status add_layer(const tqe_session *s, const tqe_config *c, uint32_t layer, float *rows,
                            double *sums, tqe_error *err)
{
    tq_view view;
    tqe_status st = tqe_attn_view(tqe_session_attn(s), layer, &view, err);
    for (uint32_t h = 0; st == TQE_OK && h < c->n_kv_heads; h++, sums += c->d_head) {
        /* Rows before a sliding window are gone; what is kept is what queries see. */
        uint32_t first = 0;
        if (view.window != 0 && view.n_tokens > view.window) {
            first = view.n_tokens - view.window;
        }
        const uint32_t n = view.n_tokens - first;
        if (tq_view_decode(&view, h, first, n, rows, NULL) != TQ_OK) {
            return tqe_fail(err, TQE_ERR_ARG, "the keys of layer %u cannot be read", layer);
        }
        for (size_t i = 0; i < n; i++) {
            for (size_t k = 0; k < c->d_head; k++) {
                sums[k] += (double)rows[i * c->d_head + k] / n;
            }
        }
    }
    return st;
}

tqe_status tqe_tune_add_keys(const tqe_model *m, const tqe_tune_params *p, const int32_t *ids,
                             double *sums, tqe_progress_fn *progress, void *ctx, tqe_error *err)
{
    tqe_status st = check(m, p, err);
    if (st != TQE_OK) {
        return st;
    }
    const tqe_config *c = &m->config;
    const size_t keys = (size_t)c->n_kv_heads * c->d_head;
    const tqe_session_params sp = session_params(p, batch_of(m, p));
    tqe_session *s = NULL;
    /* Into a copy: a failed call adds nothing. */
    double *added = calloc(c->n_layers * keys, sizeof(*added));
    float *rows = malloc((size_t)p->n_ctx * c->d_head * sizeof(*rows));
    st = added != NULL && rows != NULL
             ? tqe_session_create(&s, m, &sp, err)
             : tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the keys of a window");
    if (st == TQE_OK) {
        st = tqe_session_eval(s, ids, p->n_ctx, NULL, progress, ctx, err);
    }
    for (uint32_t i = 0; st == TQE_OK && i < c->n_layers; i++) {
        st = add_layer(s, c, i, rows, added + i * keys, err);
    }
    for (size_t i = 0; st == TQE_OK && i < c->n_layers * keys; i++) {
        sums[i] += added[i];
    }
    tqe_session_free(s);
    free(added);
    free(rows);
    return st;
}
