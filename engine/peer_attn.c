/* SPDX-License-Identifier: MIT */
/* peer_attn.c — ggml's own attention kernel on data of the caller: the other side of
 * `tq bench attn`.
 *
 * One graph of one node, ggml_flash_attn_ext as libllama builds it (f16 mask, queries and values
 * not transposed), on the CPU backend. Keys and values lie as in libllama's cache,
 * [token][kv_head][d], or head-major, its best case. They are in large memory pages where the
 * system has them, as ours are.
 *
 * The hard idea is fairness with threads: ggml's pool either sleeps after each graph, and then
 * waking it is part of the time, or spins and disturbs whoever is measured next. Here a graph of
 * a single element wakes the pool before the clock starts, and after the clock has stopped the
 * caller waits until the threads have given up spinning.
 */
#include "engine_priv.h"

#include "ggml-cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct tqe_peer_attn {
    tqe_peer_attn_params p;
    enum ggml_type type_k, type_v;
    size_t k_row, v_row; /* bytes of a row */
    uint8_t *kv, *io;    /* memory: keys then values; queries, mask, output, the one element */
    ggml_backend_buffer_t kv_buf, io_buf;
    ggml_backend_t backend;
    struct ggml_threadpool *pool;
    void (*pool_free)(struct ggml_threadpool *);
    struct ggml_context *ctx;
    struct ggml_tensor *q, *out;
    uint8_t *k_data, *v_data;
    struct ggml_cgraph *graph, *wake;
};

enum { ALIGNMENT = 64, N_TENSORS = 16, N_NODES = 16 };
static const size_t large_page = (size_t)2 << 20;

/* Where the tensors lie in the two blocks. */
typedef struct layout {
    size_t v_off, kv_total;
    size_t mask_off, out_off, one_off, io_total;
} layout;

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static layout make_layout(const tqe_peer_attn_params *p, size_t k_row, size_t v_row)
{
    const size_t rows = (size_t)p->n_kv * p->n_kv_heads, heads = (size_t)p->q_len * p->n_heads;
    layout l;
    l.v_off = round_up(rows * k_row, ALIGNMENT);
    l.kv_total = round_up(l.v_off + rows * v_row, large_page);
    l.mask_off = round_up(heads * p->d_k * sizeof(float), ALIGNMENT);
    l.out_off = l.mask_off + round_up((size_t)p->q_len * p->n_kv * sizeof(ggml_fp16_t), ALIGNMENT);
    l.one_off = l.out_off + round_up(heads * p->d_v * sizeof(float), ALIGNMENT);
    l.io_total = l.one_off + 2 * (size_t)ALIGNMENT;
    return l;
}

/* Products of these stay below 2^63, and ggml's own limits hold. */
static tqe_status check(const tqe_peer_attn_params *p, enum ggml_type *k, enum ggml_type *v,
                        tqe_error *err)
{
    if (p == NULL || p->n_kv_heads < 1 || p->n_kv_heads > 1024 || p->n_heads < p->n_kv_heads ||
        p->n_heads > 32768 || p->n_heads % p->n_kv_heads != 0 || p->d_k < 1 || p->d_k > 1024 ||
        p->d_v < 1 || p->d_v > 1024 || p->n_kv < 1 || p->n_kv > TQE_MAX_CTX || p->q_len < 1 ||
        p->q_len > 4096 || p->q_len > p->n_kv || p->n_threads < 1 ||
        p->n_threads > TQE_MAX_THREADS || !isfinite(p->scale)) {
        return tqe_fail(err, TQE_ERR_ARG, "attention of the peer: a size is out of range");
    }
    const tqe_status st = tqe_peer_parse_types(p->kv_type, k, v, err);
    if (st != TQE_OK) {
        return st;
    }
    const enum ggml_type types[2] = {*k, *v};
    const uint32_t dims[2] = {p->d_k, p->d_v};
    for (int i = 0; i < 2; i++) {
        if (dims[i] % ggml_blck_size(types[i]) != 0) {
            return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                            "ggml's %s takes multiples of %d elements, not %u",
                            ggml_type_name(types[i]), (int)ggml_blck_size(types[i]), dims[i]);
        }
    }
    return TQE_OK;
}

tqe_status tqe_peer_attn_bytes(const tqe_peer_attn_params *p, size_t *kv_bytes, size_t *all_bytes,
                               tqe_error *err)
{
    enum ggml_type k = GGML_TYPE_F16, v = GGML_TYPE_F16;
    const tqe_status st = check(p, &k, &v, err);
    if (st == TQE_OK) {
        const size_t k_row = ggml_row_size(k, p->d_k), v_row = ggml_row_size(v, p->d_v);
        const layout l = make_layout(p, k_row, v_row);
        *kv_bytes = (size_t)p->n_kv * p->n_kv_heads * (k_row + v_row);
        *all_bytes = l.kv_total + l.io_total;
    }
    return st;
}

/* ---- The backend, through the registry, so that any build of ggml works ---------------------- */

typedef struct ggml_threadpool *pool_new_fn(struct ggml_threadpool_params *);
typedef void pool_free_fn(struct ggml_threadpool *);
typedef void pool_set_fn(ggml_backend_t, struct ggml_threadpool *);

static bool find_fn(const char *name, void *fn, size_t bytes)
{
    void *p =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(tqe_cpu_device()), name);
    memcpy(fn, &p, bytes); /* object to function pointer, as POSIX dlsym */
    return p != NULL;
}

const char *tqe_peer_isa(void)
{
    static const char *const names[][2] = {
        {"AVX512", "avx512"}, {"AVX2", "avx2"}, {"NEON", "neon"}}; /* ggml's, ours */
    ggml_backend_get_features_t features = NULL;
    if (tqe_cpu_device() == NULL ||
        !find_fn("ggml_backend_get_features", &features, sizeof(features))) {
        return "baseline";
    }
    const struct ggml_backend_feature *all =
        features(ggml_backend_dev_backend_reg(tqe_cpu_device()));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (const struct ggml_backend_feature *f = all; f != NULL && f->name != NULL; f++) {
            if (!strcmp(f->name, names[i][0]) && !strcmp(f->value, "1")) {
                return names[i][1];
            }
        }
    }
    return "baseline";
}

static tqe_status start_backend(tqe_peer_attn *a, tqe_error *err)
{
    ggml_backend_set_n_threads_t set_n = NULL;
    pool_new_fn *pool_new = NULL;
    pool_free_fn *pool_free = NULL;
    pool_set_fn *pool_set = NULL;
    ggml_backend_dev_t dev = tqe_cpu_device();
    a->backend = dev != NULL ? ggml_backend_dev_init(dev, NULL) : NULL;
    if (a->backend == NULL || !find_fn("ggml_backend_set_n_threads", &set_n, sizeof(set_n)) ||
        !find_fn("ggml_threadpool_new", &pool_new, sizeof(pool_new)) ||
        !find_fn("ggml_threadpool_free", &pool_free, sizeof(pool_free)) ||
        !find_fn("ggml_backend_cpu_set_threadpool", &pool_set, sizeof(pool_set))) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "this ggml has no usable CPU backend");
    }
    set_n(a->backend, (int)a->p.n_threads);
    struct ggml_threadpool_params tp = ggml_threadpool_params_default((int)a->p.n_threads);
    tp.poll = 1; /* some milliseconds */
    a->pool = pool_new(&tp);
    a->pool_free = pool_free;
    if (a->pool == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "cannot start %u threads", a->p.n_threads);
    }
    pool_set(a->backend, a->pool);
    return TQE_OK;
}

/* ---- The graph ------------------------------------------------------------------------------- */

static struct ggml_tensor *bound(ggml_backend_buffer_t buf, struct ggml_tensor *t, void *addr)
{
    (void)ggml_backend_tensor_alloc(buf, t, addr);
    return t;
}

/* A tensor [n][heads][d] in memory, seen as [heads][n][d]. */
static struct ggml_tensor *heads_first(struct ggml_context *ctx, struct ggml_tensor *t)
{
    struct ggml_tensor *view = ggml_permute(ctx, t, 0, 2, 1, 3);
    (void)ggml_backend_view_init(view);
    return view;
}

static struct ggml_tensor *side(tqe_peer_attn *a, enum ggml_type type, uint32_t d, uint8_t *addr)
{
    const tqe_peer_attn_params *p = &a->p;
    if (p->head_major) {
        return bound(a->kv_buf, ggml_new_tensor_3d(a->ctx, type, d, p->n_kv, p->n_kv_heads), addr);
    }
    return heads_first(
        a->ctx,
        bound(a->kv_buf, ggml_new_tensor_3d(a->ctx, type, d, p->n_kv_heads, p->n_kv), addr));
}

static void fill_mask(const tqe_peer_attn_params *p, ggml_fp16_t *mask)
{
    const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY), seen = ggml_fp32_to_fp16(0);
    for (uint32_t i = 0; i < p->q_len; i++) {
        for (uint32_t t = 0; t < p->n_kv; t++) {
            *mask++ = t <= p->n_kv - p->q_len + i ? seen : hidden;
        }
    }
}

static tqe_status build(tqe_peer_attn *a, const layout *l, tqe_error *err)
{
    const tqe_peer_attn_params *p = &a->p;
    const struct ggml_init_params ip = {N_TENSORS * ggml_tensor_overhead() +
                                            2 * ggml_graph_overhead_custom(N_NODES, false),
                                        NULL, true};
    a->ctx = ggml_init(ip);
    a->kv_buf = ggml_backend_cpu_buffer_from_ptr(a->kv, l->kv_total);
    a->io_buf = ggml_backend_cpu_buffer_from_ptr(a->io, l->io_total);
    if (a->ctx == NULL || a->kv_buf == NULL || a->io_buf == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a graph");
    }
    a->k_data = a->kv;
    a->v_data = a->kv + l->v_off;
    struct ggml_tensor *k = side(a, a->type_k, p->d_k, a->k_data);
    struct ggml_tensor *v = side(a, a->type_v, p->d_v, a->v_data);
    a->q = bound(a->io_buf, ggml_new_tensor_3d(a->ctx, GGML_TYPE_F32, p->d_k, p->n_heads, p->q_len),
                 a->io);
    struct ggml_tensor *mask =
        bound(a->io_buf, ggml_new_tensor_2d(a->ctx, GGML_TYPE_F16, p->n_kv, p->q_len),
              a->io + l->mask_off);
    fill_mask(p, mask->data);
    a->out =
        bound(a->io_buf,
              ggml_flash_attn_ext(a->ctx, heads_first(a->ctx, a->q), k, v, mask, p->scale, 0, 0),
              a->io + l->out_off);
    a->graph = ggml_new_graph_custom(a->ctx, N_NODES, false);
    ggml_build_forward_expand(a->graph, a->out);

    struct ggml_tensor *one =
        bound(a->io_buf, ggml_new_tensor_1d(a->ctx, GGML_TYPE_F32, 1), a->io + l->one_off);
    a->wake = ggml_new_graph_custom(a->ctx, N_NODES, false);
    ggml_build_forward_expand(
        a->wake, bound(a->io_buf, ggml_scale(a->ctx, one, 0), a->io + l->one_off + ALIGNMENT));
    return TQE_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static tqe_status init(tqe_peer_attn *a, tqe_error *err)
{
    a->k_row = ggml_row_size(a->type_k, a->p.d_k);
    a->v_row = ggml_row_size(a->type_v, a->p.d_v);
    const layout l = make_layout(&a->p, a->k_row, a->v_row);
    a->kv = aligned_alloc(large_page, l.kv_total);
    a->io = aligned_alloc(ALIGNMENT, l.io_total);
    if (a->kv == NULL || a->io == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory: ggml's side takes %zu bytes",
                        l.kv_total + l.io_total);
    }
#if defined(MADV_HUGEPAGE)
    (void)madvise(a->kv, l.kv_total, MADV_HUGEPAGE);
#endif
    memset(a->kv, 0, l.kv_total);
    memset(a->io, 0, l.io_total);
    const tqe_status st = start_backend(a, err);
    return st == TQE_OK ? build(a, &l, err) : st;
}

tqe_status tqe_peer_attn_create(tqe_peer_attn **out, const tqe_peer_attn_params *p, tqe_error *err)
{
    enum ggml_type k = GGML_TYPE_F16, v = GGML_TYPE_F16;
    *out = NULL;
    tqe_log_capture();
    tqe_status st = check(p, &k, &v, err);
    if (st != TQE_OK) {
        return st;
    }
    tqe_peer_attn *a = calloc(1, sizeof(*a));
    if (a == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    a->p = *p;
    a->type_k = k;
    a->type_v = v;
    st = init(a, err);
    if (st != TQE_OK) {
        tqe_peer_attn_free(a);
        return st;
    }
    *out = a;
    return TQE_OK;
}

void tqe_peer_attn_free(tqe_peer_attn *a)
{
    if (a == NULL) {
        return;
    }
    if (a->backend != NULL) {
        ggml_backend_free(a->backend);
    }
    if (a->pool != NULL) {
        a->pool_free(a->pool);
    }
    if (a->ctx != NULL) {
        ggml_free(a->ctx);
    }
    ggml_backend_buffer_free(a->kv_buf);
    ggml_backend_buffer_free(a->io_buf);
    free(a->kv);
    free(a->io);
    free(a);
}

/* ---- Use ------------------------------------------------------------------------------------- */

static void write_side(const tqe_peer_attn *a, enum ggml_type type, uint8_t *data, size_t row,
                       uint32_t d, uint32_t first, uint32_t n, const float *x)
{
    const size_t heads = a->p.n_kv_heads;
    if (!a->p.head_major) {
        (void)ggml_quantize_chunk(type, x, data + first * heads * row, 0, (int64_t)(n * heads), d,
                                  NULL);
        return;
    }
    for (size_t t = 0; t < n; t++) {
        for (size_t h = 0; h < heads; h++) {
            (void)ggml_quantize_chunk(type, x + (t * heads + h) * d,
                                      data + (h * a->p.n_kv + first + t) * row, 0, 1, d, NULL);
        }
    }
}

void tqe_peer_attn_write(tqe_peer_attn *a, uint32_t first, uint32_t n, const float *k,
                         const float *v)
{
    write_side(a, a->type_k, a->k_data, a->k_row, a->p.d_k, first, n, k);
    write_side(a, a->type_v, a->v_data, a->v_row, a->p.d_v, first, n, v);
}

tqe_status tqe_peer_attn_run(tqe_peer_attn *a, const float *q, float *out, double (*now)(void),
                             double *seconds, tqe_error *err)
{
    memcpy(a->q->data, q, ggml_nbytes(a->q));
    bool ok = ggml_backend_graph_compute(a->backend, a->wake) == GGML_STATUS_SUCCESS;
    const double start = now();
    ok = ok && ggml_backend_graph_compute(a->backend, a->graph) == GGML_STATUS_SUCCESS;
    *seconds = now() - start;
    if (!ok) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "ggml's attention failed: %s", tqe_log_error());
    }
    memcpy(out, a->out->data, ggml_nbytes(a->out));
    if (a->p.n_threads > 1) {
        const struct timespec spin = {.tv_nsec = 10000000};
        (void)nanosleep(&spin, NULL);
    }
    return TQE_OK;
}
