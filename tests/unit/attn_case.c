/* SPDX-License-Identifier: MIT */
/* attn_case.c — see attn_case.h. */
#include "support.h"

#include "attn_case.h"

static float *new_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    return x;
}

static void append_all(attn_case *c)
{
    assert_int_equal(tq_cache_append(c->cache, c->seq, c->k, c->v, c->n_tokens), TQ_OK);
    assert_int_equal(tq_cache_view(c->cache, c->seq, 0, &c->view), TQ_OK);
}

void attn_case_open(attn_case *c, uint64_t seed)
{
    tq_layer layer = {.n_kv_heads = c->n_kv, .d_k = c->d_k, .d_v = c->d_v, .v_in_k = c->v_in_k};
    assert_int_equal(tq_scheme_parse(&layer.scheme, c->scheme, NULL, 0), TQ_OK);
    tq_cache_config cfg = {.layers = &layer,
                           .n_layers = 1,
                           .n_pages = (c->n_tokens + 63) / 64 + 1,
                           .max_seqs = 4,
                           .isa_mask = c->isa_mask ? c->isa_mask : TQ_ISA_ALL};
    assert_int_equal(tq_cache_create(&c->cache, &cfg, NULL), TQ_OK);
    assert_int_equal(tq_cache_seq_open(c->cache, &c->seq), TQ_OK);

    c->cfg.n_q_heads = c->n_kv * c->group;
    if (c->cfg.scale == 0)
        c->cfg.scale = 1 / sqrtf((float)c->d_k);
    c->q_stride = (size_t)c->cfg.n_q_heads * c->d_k;
    c->out_stride = (size_t)c->cfg.n_q_heads * c->d_v;
    c->n_out = c->cfg.q_len * c->out_stride;
    const size_t n_k = (size_t)c->n_tokens * c->n_kv * c->d_k;
    const size_t n_v = (size_t)c->n_tokens * c->n_kv * c->d_v;
    const size_t n_q = c->cfg.q_len * c->q_stride;
    c->k = new_floats(n_k);
    c->v = c->v_in_k ? NULL : new_floats(n_v);
    c->q = new_floats(n_q);
    c->out = new_floats(c->n_out);
    for (size_t i = 0; i < n_k; i++)
        c->k[i] = (float)test_normal(&seed);
    for (size_t i = 0; c->v && i < n_v; i++)
        c->v[i] = (float)test_normal(&seed);
    for (size_t i = 0; i < n_q; i++)
        c->q[i] = (float)test_normal(&seed);
    append_all(c);
}

void attn_case_close(attn_case *c)
{
    tq_cache_destroy(c->cache);
    free(c->k);
    free(c->v);
    free(c->q);
    free(c->out);
}

void attn_case_refill(attn_case *c)
{
    assert_int_equal(tq_cache_truncate(c->cache, c->seq, 0), TQ_OK);
    append_all(c);
}

void *attn_case_memory(size_t bytes)
{
    void *p = aligned_alloc(64, bytes ? (bytes + 63) / 64 * 64 : 64);
    assert_non_null(p);
    memset(p, 0xff, bytes);
    return p;
}

void attn_case_run(attn_case *c)
{
    tq_attn_plan p;
    assert_int_equal(tq_attn_plan_init(&p, &c->cfg, &c->view), TQ_OK);
    const size_t bytes = p.partials_bytes + p.work_bytes + 64;
    void *scratch = malloc(bytes);
    assert_non_null(scratch);
    memset(scratch, 0xff, bytes); /* NaN: whatever is read must have been written */
    for (size_t i = 0; i < c->n_out; i++)
        c->out[i] = NAN;
    assert_int_equal(
        tq_attn_run(&p, &c->view, c->out, c->out_stride, c->q, c->q_stride, scratch, bytes), TQ_OK);
    free(scratch);
}

/* In eight sums, for speed: of instrumented builds this takes most of the time. */
static double dot(const float *restrict a, const float *restrict b, uint32_t n)
{
    double sum[8] = {0};
    uint32_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (uint32_t i = 0; i < 8; i++)
            sum[i] += (double)a[j + i] * (double)b[j + i];
    for (; j < n; j++)
        sum[0] += (double)a[j] * (double)b[j];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* One row of the answer. k and v [n][stride]. */
static void oracle_row(const attn_case *c, double *want, const float *q, const float *k,
                       size_t k_stride, const float *v, size_t v_stride, uint32_t first,
                       uint32_t end, const float *sink)
{
    double *w = malloc((end + 1) * sizeof *w);
    assert_non_null(w);
    double max = sink ? (double)*sink : -INFINITY, sum = 0;
    for (uint32_t t = first; t < end; t++) {
        w[t] = dot(q, k + t * k_stride, c->d_k) * (double)c->cfg.scale;
        if (c->cfg.softcap > 0)
            w[t] = (double)c->cfg.softcap * tanh(w[t] / (double)c->cfg.softcap);
        max = fmax(max, w[t]);
    }
    if (sink)
        sum = exp((double)*sink - max);
    for (uint32_t t = first; t < end; t++)
        sum += w[t] = exp(w[t] - max);
    for (uint32_t j = 0; j < c->d_v; j++)
        want[j] = 0;
    for (uint32_t t = first; t < end; t++) {
        const double weight = w[t] / sum; /* once: the compiler may not, want may be w */
        const float *row = v + t * v_stride;
        for (uint32_t j = 0; j < c->d_v; j++)
            want[j] += weight * (double)row[j];
    }
    free(w);
}

void attn_case_oracle(const attn_case *c, double *want, int original)
{
    float *dk = new_floats((size_t)c->n_tokens * c->d_k);
    float *dv = new_floats((size_t)c->n_tokens * c->d_v);
    for (uint32_t head = 0; head < c->cfg.n_q_heads; head++) {
        const uint32_t kv = head / c->group;
        const float *k = original ? c->k + (size_t)kv * c->d_k : dk;
        const float *v = original && c->v ? c->v + (size_t)kv * c->d_v : original ? k : dv;
        const size_t v_stride = original && !c->v ? c->d_k : c->d_v;
        const size_t step = original ? c->n_kv : 1;
        if (!original && head % c->group == 0)
            assert_int_equal(tq_view_decode(&c->view, kv, 0, c->n_tokens, dk, dv), TQ_OK);
        for (uint32_t i = 0; i < c->cfg.q_len; i++) {
            uint32_t end = c->n_tokens - c->cfg.q_len + i + 1;
            uint32_t first = c->cfg.window && end > c->cfg.window ? end - c->cfg.window : 0;
            oracle_row(c, want + i * c->out_stride + (size_t)head * c->d_v,
                       c->q + i * c->q_stride + (size_t)head * c->d_k, k, step * c->d_k, v,
                       step * v_stride, first, end, c->cfg.sinks ? c->cfg.sinks + head : NULL);
        }
    }
    free(dk);
    free(dv);
}

static double value_rounding(tq_format values)
{
    switch (values) { /* one number may be off by that much, and weights by half a step */
    case TQ_FMT_LLOYD_V3:
    case TQ_FMT_NORM3:
    case TQ_FMT_NORM4:
    case TQ_FMT_TCQ3:
    case TQ_FMT_TCQ4:
    case TQ_FMT_UNIFORM4:
        return 0.02;
    case TQ_FMT_LLOYD_V2:
    case TQ_FMT_LLOYD_V4:
    case TQ_FMT_NORM2:
    case TQ_FMT_TCQ2:
        return 0.01;
    case TQ_FMT_LLOYD_V8:
        return 0.004;
    default:
        return 5e-4;
    }
}

double attn_format_rounding(tq_format keys, tq_format values)
{
    const int small = (keys >= TQ_FMT_NORM2 && keys <= TQ_FMT_NORM4) ||
                      (keys >= TQ_FMT_TCQ2 && keys <= TQ_FMT_TCQ4);
    return fmax(small ? 0.02 : 0, value_rounding(values));
}

double attn_case_rounding(const attn_case *c)
{
    tq_scheme s;
    tq_format k, v;
    assert_int_equal(tq_scheme_parse(&s, c->scheme, NULL, 0), TQ_OK);
    assert_int_equal(tq_scheme_format_of(&s, 0, &k), TQ_OK);
    assert_int_equal(tq_scheme_format_of(&s, c->v_in_k ? 0 : 1, &v), TQ_OK);
    return attn_format_rounding(k, v);
}

double attn_case_error(const attn_case *c, const double *want)
{
    double err = 0, ref = 0;
    for (size_t i = 0; i < c->n_out; i++) {
        double e = (double)c->out[i] - want[i];
        err += e * e;
        ref += want[i] * want[i];
    }
    return sqrt(err / ref);
}
