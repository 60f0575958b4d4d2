/* SPDX-License-Identifier: MIT */
/* attn_op.c — the one file that joins ggml tensors to tq_*.
 *
 * A layer's attention is three custom nodes: APPEND encodes the new keys and values into the
 * cache, PARTS runs the independent parts of attention over the packed bytes, MERGE combines them
 * into the output. ggml puts a barrier between nodes; inside a node thread i takes parts i, i+n,
 * ..., so there is nothing to wait for and nothing to allocate. The parts are fixed by shape and
 * merged in a fixed order, so the output does not depend on the number of threads.
 *
 * Nodes cannot fail in ggml. The first error is kept in an atomic, the remaining nodes of the
 * step do nothing, and tqe_attn_end aborts the append: the session is as before.
 */
#include "attn_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Nodes ------------------------------------------------------------------------------------
 */

static bool failed(const tqe_attn *a)
{
    return atomic_load_explicit(&a->status, memory_order_relaxed) != TQ_OK;
}

static void note(tqe_attn *a, tq_status st)
{
    if (st != TQ_OK) {
        int expected = TQ_OK;
        (void)atomic_compare_exchange_strong(&a->status, &expected, (int)st);
    }
}

/* dst: a placeholder that orders the nodes. src: k, v [n][n_kv_heads][d]. */
static void run_append(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const tqe_attn_layer *l = userdata;
    const struct ggml_tensor *k = dst->src[0];
    const struct ggml_tensor *v = dst->src[1];
    tqe_attn *a = l->owner;
    if (failed(a) || a->again) {
        return;
    }
    note(a, tq_cache_append_rows(a->cache, a->seq, l->layer, k->data, k->nb[2] / sizeof(float),
                                 v->data, v->nb[2] / sizeof(float), (uint32_t)ith, (uint32_t)nth));
}

/* dst: a placeholder. src: q [q_len][n_heads][d], the append node. */
static void run_parts(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const tqe_attn_layer *l = userdata;
    const struct ggml_tensor *q = dst->src[0];
    tqe_attn *a = l->owner;
    uint8_t *work = a->work + (size_t)ith * a->work_stride;
    tq_attn_plan plan = l->plan;
    plan.step = (uint32_t)nth;
    for (uint32_t p = (uint32_t)ith; p < plan.n_parts && !failed(a); p += plan.step) {
        note(a, tq_attn_part(&plan, &l->view, q->data, q->nb[2] / sizeof(float), a->partials, work,
                             p));
    }
}

/* dst [q_len][n_heads * d]. src: the parts node. */
static void run_merge(struct ggml_tensor *dst, int ith, int nth, void *userdata)
{
    const tqe_attn_layer *l = userdata;
    tqe_attn *a = l->owner;
    uint8_t *work = a->work + (size_t)ith * a->work_stride;
    const uint64_t n_rows = l->plan.n_rows;
    const uint32_t first = (uint32_t)(n_rows * (uint64_t)ith / (uint64_t)nth);
    const uint32_t end = (uint32_t)(n_rows * ((uint64_t)ith + 1) / (uint64_t)nth);
    if (failed(a)) { /* later nodes compute with dst: give them numbers */
        const size_t d = a->geo.d_head;
        memset((float *)dst->data + first * d, 0, (end - first) * d * sizeof(float));
    } else if (end > first) {
        note(a, tq_attn_merge(&l->plan, &l->view, dst->data, dst->nb[1] / sizeof(float),
                              a->partials, work, first, end - first));
    }
}

struct ggml_tensor *tqe_attn_append_node(tqe_attn *a, struct ggml_context *ctx, uint32_t layer,
                                         struct ggml_tensor *k, struct ggml_tensor *v)
{
    struct ggml_tensor *args[2] = {k, v};
    return ggml_custom_4d(ctx, GGML_TYPE_I32, 1, 1, 1, 1, args, 2, run_append, GGML_N_TASKS_MAX,
                          &a->layers[layer]);
}

struct ggml_tensor *tqe_attn_output_node(tqe_attn *a, struct ggml_context *ctx, uint32_t layer,
                                         struct ggml_tensor *append, struct ggml_tensor *q)
{
    struct ggml_tensor *args[2] = {q, append};
    struct ggml_tensor *parts = ggml_custom_4d(ctx, GGML_TYPE_I32, 1, 1, 1, 1, args, 2, run_parts,
                                               GGML_N_TASKS_MAX, &a->layers[layer]);
    return ggml_custom_4d(ctx, GGML_TYPE_F32, q->ne[0] * q->ne[1], q->ne[2], 1, 1, &parts, 1,
                          run_merge, GGML_N_TASKS_MAX, &a->layers[layer]);
}

/* ---- Life ---------------------------------------------------------------------------------------
 */

tqe_status tqe_attn_status(tq_status st, tqe_error *err)
{
    switch (st) {
    case TQ_OK:
        return TQE_OK;
    case TQ_ERR_NONFINITE:
        return tqe_fail(err, TQE_ERR_NUMERIC,
                        "NaN or Inf in keys or values: the weights are damaged");
    case TQ_ERR_FULL:
        return tqe_fail(err, TQE_ERR_FULL, "the context is full");
    case TQ_ERR_NOMEM:
    case TQ_ERR_OVERFLOW:
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the KV cache");
    default:
        return tqe_fail(err, TQE_ERR_ARG, "KV cache: %s", tq_status_name(st));
    }
}

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Too large a context is the one cause that a user can do something about. */
static tqe_status out_of_memory(const tqe_attn_geometry *geo, const char *what, double bytes,
                                tqe_error *err)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t u = 0;
    while (bytes >= 1024 && u < 6) {
        bytes /= 1024;
        u++;
    }
    char kept[48] = "", seqs[48] = "";
    if (geo->n_kept > 0) {
        (void)snprintf(kept, sizeof(kept), " and %u kept ones", geo->n_kept);
    }
    if (geo->n_seqs > 1) {
        (void)snprintf(seqs, sizeof(seqs), " in each of %u sessions", geo->n_seqs);
    }
    return tqe_fail(err, TQE_ERR_NOMEM,
                    "out of memory: %s for a context of %u tokens%s%s takes %.*f %s", what,
                    geo->n_ctx, seqs, kept, u > 0 ? 2 : 0, bytes, units[u]);
}

/* About; the exact size is not known when it overflows. */
static double cache_bytes(const tqe_attn_geometry *geo)
{
    double per_head = 0;
    for (uint32_t i = 0; i < geo->n_layers; i++) {
        const tq_layer l = tqe_kv_layer(geo, i);
        size_t bytes = 0;
        /* A scheme that does not fit is refused before. */
        (void)tq_scheme_bytes_per_token(&l.scheme, l.d_k, l.d_v, &bytes);
        per_head += (double)bytes;
    }
    return per_head * geo->n_kv_heads * ((double)geo->n_ctx * geo->n_seqs + geo->n_kept);
}

/* Scratch and layers, of which each fork has its own. */
static tqe_status allocate_scratch(tqe_attn *a, tqe_error *err)
{
    const tqe_attn_geometry *geo = &a->geo;
    size_t partials_bytes = 0;
    size_t work_bytes = 0;
    for (uint32_t i = 0; i < geo->n_layers; i++) {
        tq_layer layer = tqe_kv_layer(geo, i);
        for (int way = 0; way < 2; way++) { /* the other one for tqe_attn_begin_again */
            size_t partials = 0;
            size_t work = 0;
            const tq_status st =
                tq_attn_bounds(&layer, geo->n_heads, geo->n_batch, geo->n_ctx, &partials, &work);
            if (st != TQ_OK) {
                return tqe_attn_status(st, err);
            }
            partials_bytes = partials > partials_bytes ? partials : partials_bytes;
            work_bytes = work > work_bytes ? work : work_bytes;
            layer.scheme.attn = TQ_ATTN_FUSED;
        }
    }
    a->layers = calloc(geo->n_layers, sizeof(*a->layers));
    a->work_stride = round64(work_bytes > 0 ? work_bytes : 1);
    a->partials = aligned_alloc(64, round64(partials_bytes > 0 ? partials_bytes : 1));
    a->work = aligned_alloc(64, a->work_stride * geo->n_threads);
    if (a->layers == NULL || a->partials == NULL || a->work == NULL) {
        return out_of_memory(geo, "attention scratch",
                             (double)partials_bytes + (double)a->work_stride * geo->n_threads, err);
    }
    for (uint32_t i = 0; i < geo->n_layers; i++) {
        a->layers[i].owner = a;
        a->layers[i].layer = i;
    }
    return TQE_OK;
}

static tqe_status allocate_cache(tqe_attn *a, tqe_error *err)
{
    const tqe_attn_geometry *geo = &a->geo;
    tq_cache_config cfg;
    if (!tqe_kv_config(&cfg, geo)) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    tq_status st = tq_cache_bytes(&cfg, &a->store->cache_bytes);
    if (st == TQ_OK) {
        st = tq_cache_create(&a->store->cache, &cfg,
                             tqe_cache_allocator(cache_bytes(geo) / geo->n_layers));
    }
    free((void *)(uintptr_t)cfg.layers);
    a->cache = a->store->cache;
    if (st == TQ_OK) {
        st = tq_cache_seq_open(a->cache, &a->seq);
        a->has_seq = st == TQ_OK;
    }
    if (st == TQ_ERR_NOMEM || st == TQ_ERR_OVERFLOW) {
        return out_of_memory(geo, "the KV cache",
                             st == TQ_ERR_NOMEM ? (double)a->store->cache_bytes : cache_bytes(geo),
                             err);
    }
    return tqe_attn_status(st, err);
}

/* The rows that the next token would read are gone (window, tail or start). */
static tqe_status too_short(const tqe_attn *a, uint32_t n, tqe_error *err)
{
    return tqe_fail(
        err, TQE_ERR_ARG,
        "cannot go back to %u tokens: with this model and KV scheme %u is the least, or 0", n,
        tqe_attn_min_truncate(a));
}

tqe_status tqe_attn_create(tqe_attn **out, const tqe_attn_geometry *geo, tqe_error *err)
{
    *out = NULL;
    tqe_attn *a = calloc(1, sizeof(*a));
    tqe_kv_store *store = calloc(1, sizeof(*store));
    if (a == NULL || store == NULL) {
        tqe_attn_geometry unused = *geo;
        tqe_scheme_unload(&unused);
        free(a);
        free(store);
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    store->geo = *geo;
    store->n_users = 1;
    a->store = store;
    a->geo = *geo;
    atomic_init(&a->status, TQ_OK);
    tqe_status st = allocate_scratch(a, err);
    if (st == TQE_OK) {
        st = allocate_cache(a, err);
    }
    if (st != TQE_OK) {
        tqe_attn_destroy(a);
        return st;
    }
    *out = a;
    return TQE_OK;
}

tqe_status tqe_attn_fork(tqe_attn **out, const tqe_attn *from, uint32_t n, tqe_error *err)
{
    *out = NULL;
    /* The cache has more sequences than that, for marks and kept prompts, but not more pages. */
    if (from->store->n_users >= from->geo.n_seqs) {
        return tqe_fail(err, TQE_ERR_FULL, "%u sessions share the cache already", from->geo.n_seqs);
    }
    tqe_attn *a = calloc(1, sizeof(*a));
    if (a == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    a->geo = from->geo;
    atomic_init(&a->status, TQ_OK);
    tqe_status st = allocate_scratch(a, err);
    if (st == TQE_OK) {
        const tq_status forked = tq_cache_seq_fork(from->cache, from->seq, n, &a->seq);
        st = forked == TQ_ERR_STATE ? too_short(from, n, err) : tqe_attn_status(forked, err);
    }
    if (st != TQE_OK) {
        tqe_attn_destroy(a);
        return st;
    }
    a->store = from->store;
    a->store->n_users++;
    a->cache = a->store->cache;
    a->has_seq = true;
    a->n_tokens = n;
    *out = a;
    return TQE_OK;
}

void tqe_attn_destroy(tqe_attn *a)
{
    if (a == NULL) {
        return;
    }
    if (a->has_mark) {
        (void)tq_cache_seq_close(a->cache, a->mark);
    }
    if (a->has_seq) {
        (void)tq_cache_seq_close(a->cache, a->seq);
    }
    if (a->store != NULL && --a->store->n_users == 0) {
        tqe_kept_clear(a);
        tq_cache_destroy(a->store->cache);
        tqe_scheme_unload(&a->store->geo);
        free(a->store);
    }
    free(a->layers);
    free(a->partials);
    free(a->work);
    free(a);
}

/* ---- Steps -------------------------------------------------------------------------------------
 */

/* Views and plans of a step that has begun. */
static tq_status plan_step(tqe_attn *a, uint32_t n, uint32_t q_len_last)
{
    const tqe_attn_geometry *geo = &a->geo;
    tq_status st = TQ_OK;
    for (uint32_t i = 0; st == TQ_OK && i < geo->n_layers; i++) {
        const uint32_t q_len = i + 1 == geo->n_layers ? q_len_last : n;
        const tq_attn_config cfg = {
            .n_q_heads = geo->n_heads,
            .q_len = q_len > 0 ? q_len : 1, /* 0: this layer has no attention nodes */
            .window = geo->window,
            .scale = geo->scale,
        };
        st = tq_cache_view(a->cache, a->seq, i, &a->layers[i].view);
        if (st == TQ_OK && a->again) {
            a->layers[i].view.attn = TQ_ATTN_FUSED;
        }
        if (st == TQ_OK) {
            st = tq_attn_plan_init(&a->layers[i].plan, &cfg, &a->layers[i].view);
        }
    }
    atomic_store(&a->status, TQ_OK);
    return st;
}

tqe_status tqe_attn_begin(tqe_attn *a, uint32_t n, uint32_t q_len_last, tqe_error *err)
{
    tq_status st = tq_cache_append_begin(a->cache, a->seq, n);
    while (st == TQ_ERR_FULL && tqe_kept_evict(a)) {
        st = tq_cache_append_begin(a->cache, a->seq, n);
    }
    if (st != TQ_OK) {
        return tqe_attn_status(st, err);
    }
    if ((st = plan_step(a, n, q_len_last)) != TQ_OK) {
        (void)tq_cache_append_abort(a->cache, a->seq);
        return tqe_attn_status(st, err);
    }
    a->n_tokens += n;
    return TQE_OK;
}

tqe_status tqe_attn_begin_again(tqe_attn *a, uint32_t n, tqe_error *err)
{
    a->again = true;
    const tq_status st = plan_step(a, n, n);
    a->again = st == TQ_OK;
    return tqe_attn_status(st, err);
}

void tqe_attn_sync(tqe_attn *a)
{
    uint32_t n = 0;
    (void)tq_cache_len(a->cache, a->seq, &n); /* the sequence is open for the session's life */
    a->n_tokens = n;
}

bool tqe_attn_ok(const tqe_attn *a)
{
    return !failed(a);
}

tqe_status tqe_attn_end(tqe_attn *a, bool keep, tqe_error *err)
{
    tq_status st = (tq_status)atomic_load(&a->status);
    if (a->again) {
        a->again = false;
    } else if (st != TQ_OK || !keep) {
        (void)tq_cache_append_abort(a->cache, a->seq);
    } else {
        st = tq_cache_append_commit(a->cache, a->seq);
    }
    tqe_attn_sync(a);
    return tqe_attn_status(st, err);
}

tqe_status tqe_attn_truncate(tqe_attn *a, uint32_t n, tqe_error *err)
{
    const tq_status st = tq_cache_truncate(a->cache, a->seq, n);
    tqe_attn_sync(a);
    return st == TQ_ERR_STATE ? too_short(a, n, err) : tqe_attn_status(st, err);
}

uint32_t tqe_attn_min_truncate(const tqe_attn *a)
{
    uint32_t n = 0;
    (void)tq_cache_min_truncate(a->cache, a->seq, &n);
    return n;
}

tqe_status tqe_attn_set_mark(tqe_attn *a, tqe_error *err)
{
    const tq_status st = tq_cache_seq_fork(a->cache, a->seq, a->n_tokens, &a->mark);
    a->has_mark = st == TQ_OK;
    return tqe_attn_status(st, err);
}

void tqe_attn_drop_mark(tqe_attn *a, bool go_back)
{
    if (!a->has_mark) {
        return;
    }
    (void)tq_cache_seq_close(a->cache, go_back ? a->seq : a->mark);
    a->seq = go_back ? a->mark : a->seq;
    a->has_mark = false;
    tqe_attn_sync(a);
}

uint32_t tqe_attn_len(const tqe_attn *a)
{
    return a->n_tokens;
}

size_t tqe_attn_bytes_used(const tqe_attn *a)
{
    size_t packed = 0;
    size_t f16 = 0;
    (void)tq_cache_seq_bytes(a->cache, a->seq, &packed, &f16);
    return packed + f16;
}

tqe_status tqe_attn_view(const tqe_attn *a, uint32_t layer, tq_view *out, tqe_error *err)
{
    return tqe_attn_status(tq_cache_view(a->cache, a->seq, layer, out), err);
}

void tqe_attn_stats(const tqe_attn *a, size_t *bytes_per_token, size_t *capacity_bytes)
{
    tq_cache_stats s = {0};
    (void)tq_cache_get_stats(a->cache, &s);
    *bytes_per_token = s.bytes_per_token;
    *capacity_bytes = a->store->cache_bytes;
}
