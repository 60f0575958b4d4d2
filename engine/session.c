/* SPDX-License-Identifier: MIT */
/* session.c — one timeline: tokens go in, logits come out, the KV cache grows.
 *
 * Two graphs are kept: the decode graph (one token, logits) is built and allocated once and reused
 * for every token; the prompt graph is rebuilt when a batch has another shape, in memory reserved
 * for the largest one. So a token step allocates nothing. An eval is all or nothing: when a batch
 * fails, the batches of the same call that were already committed are cut off again.
 */
#include "engine_priv.h"
#include "snapshot.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    tqe_graph graph; /* graph.n == 0: not built */
    ggml_gallocr_t galloc;
    void *meta;
} slot;

struct tqe_session {
    const tqe_model *model;
    tqe_session_info info; /* constant part */
    tqe_attn *attn;
    ggml_backend_t backend;
    struct ggml_threadpool *pool;
    void (*pool_free)(struct ggml_threadpool *);
    slot decode;
    slot prompt;
    size_t meta_bytes;
    int32_t *pos;    /* [n_batch] */
    int32_t *tokens; /* [n_ctx], the timeline */
    float *logits;   /* [n_vocab] */
    bool has_logits;
    /* Names of scheme and model, for stored state; the model's is made when first asked for. */
    uint8_t scheme_id[TQE_ID_BYTES], fingerprint[TQE_ID_BYTES];
    bool has_fingerprint;
};

/* ---- Threads: through the registry, so that any build of ggml works
 * ------------------------------ */

typedef struct ggml_threadpool *pool_new_fn(struct ggml_threadpool_params *);
typedef void pool_free_fn(struct ggml_threadpool *);
typedef void pool_set_fn(ggml_backend_t, struct ggml_threadpool *);

static bool find_fn(ggml_backend_reg_t reg, const char *name, void *fn, size_t bytes)
{
    void *p = ggml_backend_reg_get_proc_address(reg, name);
    memcpy(fn, &p, bytes); /* object to function pointer, as POSIX dlsym */
    return p != NULL;
}

static tqe_status start_threads(tqe_session *s, tqe_error *err)
{
    ggml_backend_dev_t dev = tqe_cpu_device();
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    ggml_backend_set_n_threads_t set_n = NULL;
    pool_new_fn *pool_new = NULL;
    pool_free_fn *pool_free = NULL;
    pool_set_fn *pool_set = NULL;
    s->backend = ggml_backend_dev_init(dev, NULL);
    if (s->backend == NULL || !find_fn(reg, "ggml_backend_set_n_threads", &set_n, sizeof(set_n)) ||
        !find_fn(reg, "ggml_threadpool_new", &pool_new, sizeof(pool_new)) ||
        !find_fn(reg, "ggml_threadpool_free", &pool_free, sizeof(pool_free)) ||
        !find_fn(reg, "ggml_backend_cpu_set_threadpool", &pool_set, sizeof(pool_set))) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "this ggml has no usable CPU backend");
    }
    set_n(s->backend, (int)s->info.n_threads);
    if (s->info.n_threads > 1) {
        struct ggml_threadpool_params tp = ggml_threadpool_params_default((int)s->info.n_threads);
        s->pool = pool_new(&tp);
        s->pool_free = pool_free;
        if (s->pool == NULL) {
            return tqe_fail(err, TQE_ERR_NOMEM, "cannot start %u threads", s->info.n_threads);
        }
        pool_set(s->backend, s->pool);
    }
    return TQE_OK;
}

/* ---- Graphs
 * ---------------------------------------------------------------------------------------- */

static tqe_status slot_init(slot *sl, size_t meta_bytes, tqe_error *err)
{
    ggml_backend_buffer_type_t buft = ggml_backend_dev_buffer_type(tqe_cpu_device());
    sl->meta = malloc(meta_bytes);
    sl->galloc = ggml_gallocr_new(buft);
    if (sl->meta == NULL || sl->galloc == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for graphs");
    }
    return TQE_OK;
}

static void slot_free(slot *sl)
{
    if (sl->graph.ctx != NULL) {
        ggml_free(sl->graph.ctx);
    }
    if (sl->galloc != NULL) {
        ggml_gallocr_free(sl->galloc);
    }
    free(sl->meta);
}

/* The graph for n tokens, built and with memory. */
static tqe_status slot_prepare(slot *sl, const tqe_session *s, uint32_t n, tqe_out out,
                               tqe_error *err)
{
    if (sl->graph.n == n && sl->graph.out == out) {
        return TQE_OK;
    }
    if (sl->graph.ctx != NULL) {
        ggml_free(sl->graph.ctx);
        sl->graph.ctx = NULL;
        sl->graph.n = 0;
    }
    tqe_graph_build(&sl->graph, &s->model->config, &s->model->weights, s->attn, n, out, sl->meta,
                    s->meta_bytes);
    if (!ggml_gallocr_alloc_graph(sl->galloc, sl->graph.gf)) {
        sl->graph.n = 0;
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a batch of %u tokens", n);
    }
    return TQE_OK;
}

/* ---- Life
 * ------------------------------------------------------------------------------------------ */

static tqe_status check_params(const tqe_model *m, const tqe_session_params *p,
                               tqe_session_info *info, tqe_attn_geometry *geo, tqe_error *err)
{
    const tqe_config *c = &m->config;
    const tqe_session_params zero = {0};
    p = p != NULL ? p : &zero;
    info->n_ctx = p->n_ctx != 0 ? p->n_ctx : (c->n_ctx_train < 4096 ? c->n_ctx_train : 4096);
    info->n_threads = p->n_threads != 0 ? p->n_threads : tqe_physical_cores();
    info->n_batch = p->n_batch != 0 ? p->n_batch : TQE_DEFAULT_BATCH;
    if (info->n_ctx > TQE_MAX_CTX) {
        return tqe_fail(err, TQE_ERR_ARG, "a context of %u tokens: 1 to %u are possible",
                        info->n_ctx, TQE_MAX_CTX);
    }
    if (info->n_threads > TQE_MAX_THREADS) {
        return tqe_fail(err, TQE_ERR_ARG, "%u threads: 1 to %u are possible", info->n_threads,
                        TQE_MAX_THREADS);
    }
    if (info->n_batch > 4096) {
        return tqe_fail(err, TQE_ERR_ARG, "batches of %u tokens: 1 to 4096 are possible",
                        info->n_batch);
    }
    if (p->n_kept > TQE_MAX_CTX) {
        return tqe_fail(err, TQE_ERR_ARG, "room for %u kept tokens: 0 to %u are possible",
                        p->n_kept, TQE_MAX_CTX);
    }
    if (p->n_seqs > TQE_MAX_SEQS) {
        return tqe_fail(err, TQE_ERR_ARG, "%u sessions in a cache: 1 to %u are possible", p->n_seqs,
                        TQE_MAX_SEQS);
    }
    if (p->rollback > 4096) {
        return tqe_fail(err, TQE_ERR_ARG, "a rollback of %u tokens: 1 to 4096 are possible",
                        p->rollback);
    }
    if (info->n_batch > info->n_ctx) {
        info->n_batch = info->n_ctx;
    }
    char why[TQ_SCHEME_ERROR_BYTES] = "";
    const char *text = p->kv != NULL ? p->kv : "turbo:k8v3";
    if (tq_scheme_parse(&geo->scheme, text, why, sizeof(why)) != TQ_OK) {
        return tqe_fail(err, TQE_ERR_SCHEME, "%s", why);
    }
    if (tq_scheme_format(&geo->scheme, info->kv, sizeof(info->kv)) != TQ_OK) {
        return tqe_fail(err, TQE_ERR_SCHEME, "KV scheme '%s' is not usable", text);
    }
    size_t bytes = 0;
    if (tq_scheme_bytes_per_token(&geo->scheme, c->d_head, c->d_head, &bytes) != TQ_OK) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "KV scheme %s does not support the model's head dimension %u (f32, f16, "
                        "bf16, affine8 and affine4 do)",
                        info->kv, c->d_head);
    }
    geo->n_layers = c->n_layers;
    geo->n_heads = c->n_heads;
    geo->n_kv_heads = c->n_kv_heads;
    geo->d_head = c->d_head;
    geo->window = c->window;
    geo->scale = c->attn_scale;
    geo->n_ctx = info->n_ctx;
    geo->n_batch = info->n_batch;
    geo->n_threads = info->n_threads;
    geo->n_kept = p->n_kept;
    geo->isa_mask = p->isa_mask != 0 ? p->isa_mask : TQ_ISA_ALL;
    geo->n_seqs = p->n_seqs != 0 ? p->n_seqs : 1;
    geo->rollback = p->rollback != 0 ? p->rollback : TQE_DEFAULT_ROLLBACK;
    info->f16_bytes_per_token = (size_t)c->n_layers * c->n_kv_heads * c->d_head * 2 * 2;
    return TQE_OK;
}

/* Everything but the cache. */
static tqe_status session_init(tqe_session *s, tqe_error *err)
{
    const tqe_config *c = &s->model->config;
    tqe_status st = start_threads(s, err);
    if (st != TQE_OK) {
        return st;
    }
    tqe_attn_stats(s->attn, &s->info.kv_bytes_per_token, &s->info.kv_bytes_capacity);
    s->meta_bytes = tqe_graph_meta_bytes(c);
    s->pos = malloc(s->info.n_batch * sizeof(*s->pos));
    s->tokens = malloc(s->info.n_ctx * sizeof(*s->tokens));
    s->logits = malloc(c->n_vocab * sizeof(*s->logits));
    if (s->pos == NULL || s->tokens == NULL || s->logits == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    if ((st = slot_init(&s->decode, s->meta_bytes, err)) != TQE_OK ||
        (st = slot_init(&s->prompt, s->meta_bytes, err)) != TQE_OK) {
        return st;
    }
    /* The largest prompt graph first: smaller ones then fit its memory. */
    if ((st = slot_prepare(&s->prompt, s, s->info.n_batch, TQE_OUT_LAST, err)) != TQE_OK) {
        return st;
    }
    return slot_prepare(&s->decode, s, 1, TQE_OUT_LAST, err);
}

/* Layers as the caller gives them, for geo to own. */
static tqe_status copy_layers(tqe_attn_geometry *geo, const tq_scheme *schemes, const float *k_mean,
                              tqe_error *err)
{
    const size_t n_keys = (size_t)geo->n_layers * geo->n_kv_heads * geo->d_head;
    geo->schemes = malloc(geo->n_layers * sizeof(*schemes));
    geo->k_mean = k_mean != NULL ? malloc(n_keys * sizeof(*k_mean)) : NULL;
    if (geo->schemes == NULL || (k_mean != NULL && geo->k_mean == NULL)) {
        tqe_scheme_unload(geo);
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the schemes of the layers");
    }
    memcpy(geo->schemes, schemes, geo->n_layers * sizeof(*schemes));
    if (k_mean != NULL) {
        memcpy(geo->k_mean, k_mean, n_keys * sizeof(*k_mean));
    }
    return TQE_OK;
}

tqe_status tqe_session_create_layers(tqe_session **out, const tqe_model *m,
                                     const tqe_session_params *p, const tq_scheme *schemes,
                                     const float *k_mean, tqe_error *err)
{
    if (out == NULL || m == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no model");
    }
    *out = NULL;
    tqe_session *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    s->model = m;
    tqe_attn_geometry geo = {0};
    tqe_status st = check_params(m, p, &s->info, &geo, err);
    if (st == TQE_OK) {
        st = schemes == NULL ? tqe_scheme_load(&geo, m, s->scheme_id, err)
                             : copy_layers(&geo, schemes, k_mean, err);
    }
    if (st == TQE_OK) {
        st = tqe_attn_create(&s->attn, &geo, err);
    }
    if (st == TQE_OK) {
        st = session_init(s, err);
    }
    if (st != TQE_OK) {
        tqe_session_free(s);
        return st;
    }
    *out = s;
    return TQE_OK;
}

tqe_status tqe_session_create(tqe_session **out, const tqe_model *m, const tqe_session_params *p,
                              tqe_error *err)
{
    return tqe_session_create_layers(out, m, p, NULL, NULL, err);
}

tqe_status tqe_session_fork(tqe_session **out, const tqe_session *from, size_t n, tqe_error *err)
{
    if (out == NULL || from == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no session");
    }
    *out = NULL;
    const uint32_t len = tqe_attn_len(from->attn);
    if (n > len) {
        return tqe_fail(err, TQE_ERR_ARG, "cannot fork %zu tokens: the session has %u", n, len);
    }
    tqe_session *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    s->model = from->model;
    s->info = from->info;
    memcpy(s->scheme_id, from->scheme_id, TQE_ID_BYTES);
    tqe_status st = tqe_attn_fork(&s->attn, from->attn, (uint32_t)n, err);
    if (st == TQE_OK) {
        st = session_init(s, err);
    }
    if (st != TQE_OK) {
        tqe_session_free(s);
        return st;
    }
    memcpy(s->tokens, from->tokens, n * sizeof(*s->tokens));
    if (n == len && from->has_logits) {
        memcpy(s->logits, from->logits, s->model->config.n_vocab * sizeof(*s->logits));
        s->has_logits = true;
    }
    *out = s;
    return TQE_OK;
}

void tqe_session_free(tqe_session *s)
{
    if (s == NULL) {
        return;
    }
    slot_free(&s->decode);
    slot_free(&s->prompt);
    if (s->backend != NULL) {
        ggml_backend_free(s->backend);
    }
    if (s->pool != NULL) {
        s->pool_free(s->pool);
    }
    tqe_attn_destroy(s->attn);
    free(s->pos);
    free(s->tokens);
    free(s->logits);
    free(s);
}

/* ---- Eval
 * ------------------------------------------------------------------------------------------- */

static tqe_status check_logits(const float *x, size_t n, tqe_error *err)
{
    /* x - x is 0 for finite x and NaN otherwise; the sum keeps the loop free of branches. */
    float bad = 0.0f;
    for (size_t i = 0; i < n; i++) {
        bad += x[i] - x[i];
    }
    return bad == 0.0f ? TQE_OK
                       : tqe_fail(err, TQE_ERR_NUMERIC,
                                  "NaN or Inf in the logits: the weights are damaged");
}

/* One batch; again: it is the last one, is there already, and attends by attn=fused. logits: where
 * the rows of out go (NULL for TQE_OUT_NONE). */
static tqe_status run_batch(tqe_session *s, const int32_t *ids, uint32_t n, tqe_out out, bool again,
                            float *logits, tqe_error *err)
{
    const size_t n_vocab = s->model->config.n_vocab;
    slot *sl = n == 1 && out == TQE_OUT_LAST ? &s->decode : &s->prompt;
    tqe_status st = slot_prepare(sl, s, n, out, err);
    if (st != TQE_OK) {
        return st;
    }
    const uint32_t first = tqe_attn_len(s->attn) - (again ? n : 0);
    const uint32_t q_len_last = out == TQE_OUT_ALL ? n : (out == TQE_OUT_LAST ? 1 : 0);
    st =
        again ? tqe_attn_begin_again(s->attn, n, err) : tqe_attn_begin(s->attn, n, q_len_last, err);
    if (st != TQE_OK) {
        return st;
    }
    for (uint32_t i = 0; i < n; i++) {
        s->pos[i] = (int32_t)(first + i);
    }
    ggml_backend_tensor_set(sl->graph.tokens, ids, 0, n * sizeof(*ids));
    ggml_backend_tensor_set(sl->graph.pos, s->pos, 0, n * sizeof(*s->pos));
    if (ggml_backend_graph_compute(s->backend, sl->graph.gf) != GGML_STATUS_SUCCESS) {
        (void)tqe_attn_end(s->attn, false, NULL);
        return tqe_fail(err, TQE_ERR_NOMEM, "ggml could not compute the graph");
    }
    if (sl->graph.logits != NULL && tqe_attn_ok(s->attn)) {
        const float *x = sl->graph.logits->data;
        const size_t n_rows = out == TQE_OUT_ALL ? n : 1;
        st = check_logits(x, n_rows * n_vocab, err);
        if (st == TQE_OK) {
            memcpy(logits, x, n_rows * n_vocab * sizeof(*x));
        }
    }
    const tqe_status end = tqe_attn_end(s->attn, st == TQE_OK, err);
    if (!again && st == TQE_OK && end == TQE_OK) {
        memcpy(s->tokens + first, ids, n * sizeof(*ids));
    }
    return end != TQE_OK ? end : st;
}

tqe_status tqe_session_check(const tqe_session *s, uint32_t len, const int32_t *ids, size_t n,
                             tqe_error *err)
{
    if (n == 0 || ids == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no tokens to evaluate");
    }
    if (n > s->info.n_ctx - len) {
        return tqe_fail(err, TQE_ERR_FULL,
                        "%zu more tokens do not fit: the context holds %u, %u are used", n,
                        s->info.n_ctx, len);
    }
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->model->config.n_vocab) {
            return tqe_fail(err, TQE_ERR_ARG, "token %zu is %d, the vocabulary has %u", i, ids[i],
                            s->model->config.n_vocab);
        }
    }
    return TQE_OK;
}

tqe_status tqe_session_eval(tqe_session *s, const int32_t *ids, size_t n, float *all_logits,
                            tqe_progress_fn *progress, void *ctx, tqe_error *err)
{
    if (s == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no session");
    }
    tqe_status st = tqe_session_check(s, tqe_attn_len(s->attn), ids, n, err);
    if (st != TQE_OK) {
        return st;
    }
    const size_t n_vocab = s->model->config.n_vocab;
    size_t done = 0;
    /* A batch that fails leaves nothing; those before it have to be undone. */
    if (n > s->info.n_batch && (st = tqe_attn_set_mark(s->attn, err)) != TQE_OK) {
        return st;
    }
    while (done < n) {
        const size_t left = n - done;
        const uint32_t m = left < s->info.n_batch ? (uint32_t)left : s->info.n_batch;
        tqe_out out = done + m == n ? TQE_OUT_LAST : TQE_OUT_NONE;
        float *dst = s->logits;
        if (all_logits != NULL) {
            out = TQE_OUT_ALL;
            dst = all_logits + done * n_vocab;
        }
        st = run_batch(s, ids + done, m, out, false, dst, err);
        if (st != TQE_OK) {
            tqe_attn_drop_mark(s->attn, true);
            return st;
        }
        done += m;
        if (progress != NULL && !progress(ctx, done, n) && done < n) {
            s->has_logits = false;
            tqe_attn_drop_mark(s->attn, false);
            return tqe_fail(err, TQE_ERR_CANCELLED, "stopped after %zu of %zu tokens", done, n);
        }
    }
    tqe_attn_drop_mark(s->attn, false);
    if (all_logits != NULL) {
        memcpy(s->logits, all_logits + (n - 1) * n_vocab, n_vocab * sizeof(*s->logits));
    }
    s->has_logits = true;
    return TQE_OK;
}

const float *tqe_session_logits(const tqe_session *s)
{
    return s->has_logits ? s->logits : NULL;
}

size_t tqe_session_len(const tqe_session *s)
{
    return tqe_attn_len(s->attn);
}

const int32_t *tqe_session_tokens(const tqe_session *s)
{
    return s->tokens;
}

tqe_status tqe_session_truncate(tqe_session *s, size_t n, tqe_error *err)
{
    const uint32_t len = tqe_attn_len(s->attn);
    if (n > len) {
        return tqe_fail(err, TQE_ERR_ARG, "cannot keep %zu tokens: the session has %u", n, len);
    }
    const tqe_status st = tqe_attn_truncate(s->attn, (uint32_t)n, err);
    if (st == TQE_OK && n < len) {
        s->has_logits = false; /* they belong to a token that is gone */
    }
    return st;
}

size_t tqe_session_min_truncate(const tqe_session *s)
{
    return tqe_attn_min_truncate(s->attn);
}

void tqe_session_get_info(const tqe_session *s, tqe_session_info *info)
{
    *info = s->info;
    info->n_tokens = tqe_attn_len(s->attn);
    info->kv_bytes_used = tqe_attn_bytes_used(s->attn);
}

tqe_status tqe_session_again_fused(tqe_session *s, size_t n, float *logits, tqe_error *err)
{
    if (n == 0 || n > s->info.n_batch || n > tqe_attn_len(s->attn)) {
        return tqe_fail(err, TQE_ERR_ARG, "%zu tokens are none, or more than a batch or are there",
                        n);
    }
    return run_batch(s, s->tokens + tqe_attn_len(s->attn) - n, (uint32_t)n, TQE_OUT_ALL, true,
                     logits, err);
}

/* ---- For snapshots and prefixes
 * ------------------------------------------------------------------- */

tqe_attn *tqe_session_attn(const tqe_session *s)
{
    return s->attn;
}

ggml_backend_t tqe_session_backend(const tqe_session *s)
{
    return s->backend;
}

const tqe_model *tqe_session_model(const tqe_session *s)
{
    return s->model;
}

void tqe_session_restored(tqe_session *s, const int32_t *tokens, uint32_t n, const float *logits)
{
    memcpy(s->tokens, tokens, n * sizeof(*tokens));
    s->has_logits = logits != NULL;
    if (logits != NULL) {
        memcpy(s->logits, logits, s->model->config.n_vocab * sizeof(*logits));
    }
}

tqe_status tqe_session_ids(tqe_session *s, uint8_t fingerprint[TQE_ID_BYTES],
                           uint8_t scheme_id[TQE_ID_BYTES], tqe_error *err)
{
    if (!s->has_fingerprint) {
        const tqe_status st = tqe_model_fingerprint(s->model, s->fingerprint, err);
        if (st != TQE_OK) {
            return st;
        }
        s->has_fingerprint = true;
    }
    memcpy(fingerprint, s->fingerprint, TQE_ID_BYTES);
    memcpy(scheme_id, s->scheme_id, TQE_ID_BYTES);
    return TQE_OK;
}
