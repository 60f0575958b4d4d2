/* SPDX-License-Identifier: MIT */
/* check_tile.c — softmax, packing and matrix product of the attention half of the table.
 * Packing only moves numbers and is compared byte for byte; the others are measured against a
 * float64 oracle, as in check_attn.c. */
#include "checkkern.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const float eps = FLT_EPSILON;

/* ---- Softmax --------------------------------------------------------------------------- */

enum { MAX_ROWS = 6 };

/* Logits of a row: usual, peaked, tiny differences, huge, some or all minus infinity. */
static void fill_logits(ck *t, float *s, uint32_t kind)
{
    for (uint32_t i = 0; i < TQ_TILE; i++) {
        float x = ck_normal(t);
        switch (kind) {
        case 0:
            s[i] = 4 * x;
            break;
        case 1:
            s[i] = i == 17 ? 60 : x;
            break;
        case 2:
            s[i] = 1e-4f * x;
            break;
        case 3:
            s[i] = 1e30f * x;
            break;
        case 4:
            s[i] = i % 3 ? x : -INFINITY;
            break;
        default:
            s[i] = -INFINITY;
            break;
        }
    }
}

static void check_softmax_rows(ck *t, uint32_t n_rows, float softcap)
{
    const char *entry = softcap > 0 ? "softmax capped" : "softmax";
    float *first = ck_buffer(t, 0, n_rows * TQ_TILE * sizeof(float), 0);
    tq_span *span = ck_buffer(t, 1, n_rows * sizeof(tq_span), 0);
    float *state = ck_buffer(t, 2, 2 * n_rows * sizeof(float), 0);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *s = first + r * TQ_TILE;
        fill_logits(t, s, ck_below(t, 6));
        span[r] = (tq_span){0, TQ_TILE};
        if (ck_below(t, 3) == 0) {
            span[r].lo = (uint8_t)ck_below(t, TQ_TILE + 1);
            span[r].hi = (uint8_t)ck_below(t, TQ_TILE + 1);
        }
        for (uint32_t i = 0; i < TQ_TILE; i++) /* what is not seen must not matter */
            if (i < span[r].lo || i >= span[r].hi)
                s[i] = i % 2 ? NAN : INFINITY;
        int fresh = ck_below(t, 2) == 0;
        state[r] = fresh ? -INFINITY : 3 * ck_normal(t);
        state[n_rows + r] = fresh ? 0 : 1 + fabsf(ck_normal(t));
    }
    for (size_t isa = 0; isa < t->n_isas; isa++) {
        const char *name = t->isas[isa].name;
        float *s = ck_buffer(t, 3, n_rows * TQ_TILE * sizeof(float), 0);
        float *max = ck_buffer(t, 4, n_rows * sizeof(float), 0);
        float *sum = ck_buffer(t, 5, n_rows * sizeof(float), 0);
        float *alpha = ck_buffer(t, 6, n_rows * sizeof(float), 0);
        memcpy(s, first, n_rows * TQ_TILE * sizeof(float));
        memcpy(max, state, n_rows * sizeof(float));
        memcpy(sum, state + n_rows, n_rows * sizeof(float));
        t->isas[isa].kernels->attn->softmax(s, span, n_rows, softcap, max, sum, alpha);
        for (uint32_t r = 0; r < n_rows; r++) {
            const float *in = first + r * TQ_TILE, *out = s + r * TQ_TILE;
            double x[TQ_TILE], m = (double)state[r], total = 0;
            for (uint32_t i = span[r].lo; i < span[r].hi; i++) {
                x[i] = (double)in[i];
                if (softcap > 0)
                    x[i] = (double)softcap * tanh(x[i] / (double)softcap);
                m = x[i] > m ? x[i] : m;
            }
            /* A capped logit may be off by a few of its own ulp; the kernel subtracts its own
             * maximum, and a difference is rounded once more. */
            const double logit_err =
                softcap > 0 ? 4 * (double)eps * fmin(fabs(m), (double)softcap) : 0;
            ck_check(t, m == (double)max[r] || fabs(m - (double)max[r]) <= logit_err, entry, name,
                     "row %u: max %.9g, not %.9g", r, (double)max[r], m);
            for (uint32_t i = 0; i < TQ_TILE; i++) {
                int seen = i >= span[r].lo && i < span[r].hi && m != -INFINITY;
                double want = seen ? exp(x[i] - m) : 0;
                double slack = want > 0 ? 2 * logit_err + (2 + fabs(x[i] - m)) * (double)eps : 0;
                double err = fabs((double)out[i] - want);
                total += want;
                /* 1.2e-38: weights below the smallest normal number may flush to 0 */
                ck_check(t, err <= slack * want + (seen ? 1.2e-38 : 0), entry, name,
                         "row %u weight %u: %.9g, not %.9g", r, i, (double)out[i], want);
            }
            int empty = span[r].lo >= span[r].hi || m == -INFINITY;
            double shift = empty ? 0 : (double)state[r] - m;
            double want = exp(shift);
            ck_check(t,
                     fabs((double)alpha[r] - want) <=
                         (2 * logit_err + (2 + (want > 0 ? fabs(shift) : 0)) * (double)eps) * want +
                             1.2e-38,
                     entry, name, "row %u: alpha %.9g, not %.9g", r, (double)alpha[r], want);
            want = (double)state[n_rows + r] * want + total;
            ck_check(
                t, fabs((double)sum[r] - want) <= (16 * (double)eps + 4 * logit_err) * want + 1e-36,
                entry, name, "row %u: sum %.9g, not %.9g", r, (double)sum[r], want);
        }
    }
}

/* exp over its whole range, in ulp of the result. */
static void check_exp(ck *t)
{
    for (size_t isa = 0; isa < t->n_isas; isa++) {
        double worst = 0;
        for (uint32_t step = 0; step < 4000; step++) {
            float s[TQ_TILE], x[TQ_TILE], max = 0, sum = 0, alpha;
            tq_span span = {0, TQ_TILE};
            for (uint32_t i = 0; i < TQ_TILE; i++)
                x[i] = s[i] = -87.0f * (float)(step * TQ_TILE + i) / (4000.0f * TQ_TILE);
            t->isas[isa].kernels->attn->softmax(s, &span, 1, 0, &max, &sum, &alpha);
            for (uint32_t i = 0; i < TQ_TILE; i++) {
                double want = exp((double)x[i]);
                double ulp = ldexp(1, ilogb(want) - 23);
                worst = fmax(worst, fabs((double)s[i] - want) / ulp);
            }
        }
        ck_check(t, worst <= 1.5, "exp", t->isas[isa].name, "worst error %.2f ulp", worst);
    }
}

/* A NaN among the logits of a row must reach its sum, for no maximum shows it. */
static void check_softmax_nan(ck *t)
{
    for (size_t isa = 0; isa < t->n_isas; isa++)
        for (uint32_t kind = 0; kind < 6; kind++) {
            float s[TQ_TILE], max = -INFINITY, sum = 0, alpha;
            tq_span span = {1, 63};
            fill_logits(t, s, kind);
            s[1 + ck_below(t, 62)] = NAN;
            t->isas[isa].kernels->attn->softmax(s, &span, 1, kind == 0 ? 30 : 0, &max, &sum,
                                                &alpha);
            ck_check(t, isnan(sum), "softmax", t->isas[isa].name, "a NaN is lost, kind %u", kind);
        }
}

/* ---- Packing and product --------------------------------------------------------------- */

static void check_pack(ck *t, uint32_t n, uint32_t dim)
{
    const size_t stride = dim + ck_below(t, 2) * 8;
    const size_t x_floats = (n - 1) * stride + dim;
    const size_t b_floats[2] = {(size_t)TQ_TILE * dim, (size_t)(dim + 15) / 16 * 16 * n};
    float *x = ck_buffer(t, 0, x_floats * sizeof(float), 0);
    for (size_t i = 0; i < x_floats; i++)
        x[i] = ck_normal(t);
    for (int values = 0; values < 2; values++) {
        float *want = ck_buffer(t, 1, b_floats[values] * sizeof(float), 0);
        for (size_t isa = 0; isa < t->n_isas; isa++) {
            const tq_attn_kernels *kern = t->isas[isa].kernels->attn;
            float *b = ck_buffer(t, 2, b_floats[values] * sizeof(float), 0);
            (values ? kern->pack_values : kern->pack_keys)(b, x, stride, n, dim);
            if (isa == 0)
                memcpy(want, b, b_floats[values] * sizeof(float));
            ck_check(t, memcmp(b, want, b_floats[values] * sizeof(float)) == 0,
                     values ? "pack_values" : "pack_keys", t->isas[isa].name, "n %u dim %u", n,
                     dim);
        }
        /* The scalar layout itself, from its definition. */
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < dim; j++) {
                size_t at = values ? ((size_t)(j / 16) * n + i) * 16 + j % 16
                                   : ((size_t)(i / 16) * dim + j) * 16 + i % 16;
                ck_check(t, want[at] == x[i * stride + j], values ? "pack_values" : "pack_keys",
                         "scalar", "element %u of row %u", j, i);
            }
    }
}

static void check_gemm(ck *t, uint32_t m, uint32_t n, uint32_t k, double sum2[CK_MAX_ISAS],
                       double *count)
{
    const size_t lda = k + ck_below(t, 3), ldc = n + 16 * ck_below(t, 2);
    float *a = ck_buffer(t, 0, ((m - 1) * lda + k) * sizeof(float), 0);
    float *b = ck_buffer(t, 1, (size_t)n * k * sizeof(float), 0);
    float *alpha = ck_buffer(t, 2, m * sizeof(float), 0);
    const size_t c_floats = (m - 1) * ldc + n;
    float *first = ck_buffer(t, 3, c_floats * sizeof(float), 0);
    for (size_t i = 0; i < (m - 1) * lda + k; i++)
        a[i] = ck_normal(t);
    for (size_t i = 0; i < (size_t)n * k; i++)
        b[i] = ck_normal(t);
    for (size_t i = 0; i < c_floats; i++)
        first[i] = ck_normal(t);
    for (uint32_t i = 0; i < m; i++)
        alpha[i] = (float)ck_below(t, 1000) * 1e-3f;
    const int scaled = (int)ck_below(t, 2);
    *count += (double)m * n;
    for (size_t isa = 0; isa < t->n_isas; isa++) {
        tq_gemm_fn *gemm = t->isas[isa].kernels->attn->gemm;
        float *c = ck_buffer(t, 4, c_floats * sizeof(float), 0);
        memcpy(c, first, c_floats * sizeof(float));
        gemm(c, ldc, a, lda, b, scaled ? alpha : NULL, m, n, k);
        for (uint32_t i = 0; i < m; i++) {
            for (uint32_t j = 0; j < n; j++) {
                double want = scaled ? (double)alpha[i] * (double)first[i * ldc + j] : 0;
                double terms = fabs(want);
                for (uint32_t l = 0; l < k; l++) {
                    double x = (double)a[i * lda + l] *
                               (double)b[((size_t)(j / 16) * k + l) * 16 + j % 16];
                    want += x;
                    terms += fabs(x);
                }
                double err = fabs((double)c[i * ldc + j] - want);
                ck_check(t, err <= (k + 8) * (double)eps * terms, "gemm", t->isas[isa].name,
                         "%ux%ux%u at %u, %u: %.9g, not %.9g", m, n, k, i, j,
                         (double)c[i * ldc + j], want);
                sum2[isa] += err / terms * (err / terms);
            }
            float *c1 = ck_buffer(t, 5, n * sizeof(float), 0);
            memcpy(c1, first + i * ldc, n * sizeof(float));
            gemm(c1, n, a + i * lda, lda, b, scaled ? alpha + i : NULL, 1, n, k);
            ck_check(t, memcmp(c1, c + i * ldc, n * sizeof(float)) == 0, "gemm", t->isas[isa].name,
                     "row %u of %u differs from the row alone", i, m);
            if (i + 1 < m)
                ck_check(
                    t, memcmp(c + i * ldc + n, first + i * ldc + n, (ldc - n) * sizeof(float)) == 0,
                    "gemm", t->isas[isa].name, "gap after row %u was written", i);
        }
    }
}

static void check(ck *t)
{
    if (ck_wants(t, "softmax")) {
        for (int i = 0; i < 400; i++)
            check_softmax_rows(t, 1 + ck_below(t, MAX_ROWS), i % 2 ? 0 : 30);
        check_softmax_nan(t);
        check_exp(t);
    }
    if (ck_wants(t, "pack")) {
        static const uint32_t counts[] = {1, 7, 8, 15, 16, 33, 64};
        static const uint32_t dims[] = {16, 24, 64, 80, 128, 576};
        for (int i = 0; i < 7; i++)
            for (int j = 0; j < 6; j++)
                check_pack(t, counts[i], dims[j]);
    }
    if (ck_wants(t, "gemm")) {
        double sum2[CK_MAX_ISAS] = {0}, count = 0;
        for (uint32_t m = 1; m <= 13; m++)
            for (uint32_t n = 16; n <= 64; n += 16)
                check_gemm(t, m, n, 1 + ck_below(t, 150), sum2, &count);
        for (size_t isa = 1; isa < t->n_isas; isa++)
            ck_check(t, sqrt(sum2[isa] / count) <= 2 * sqrt(sum2[0] / count), "gemm",
                     t->isas[isa].name, "rms error above twice the scalar's");
    }
}

/* ---- Time ------------------------------------------------------------------------------ */

typedef struct bench_arg {
    const tq_attn_kernels *kern;
    float *a, *b, *c, *state;
    const float *logits;
    tq_span *span;
    float softcap;
} bench_arg;

enum { BENCH_ROWS = 48, BENCH_DIM = 128 };

static void call_softmax(void *p)
{
    bench_arg *a = p;
    memcpy(a->c, a->logits, BENCH_ROWS * TQ_TILE * sizeof(float));
    for (int r = 0; r < BENCH_ROWS; r++)
        a->state[r] = -INFINITY;
    a->kern->softmax(a->c, a->span, BENCH_ROWS, a->softcap, a->state, a->state + BENCH_ROWS,
                     a->state + 2 * BENCH_ROWS);
}

static void call_gemm(void *p)
{
    bench_arg *a = p;
    a->kern->gemm(a->c, TQ_TILE, a->a, BENCH_DIM, a->b, NULL, BENCH_ROWS, TQ_TILE, BENCH_DIM);
}

static void call_pack_keys(void *p)
{
    bench_arg *a = p;
    a->kern->pack_keys(a->b, a->a, BENCH_DIM, TQ_TILE, BENCH_DIM);
}

static void call_pack_values(void *p)
{
    bench_arg *a = p;
    a->kern->pack_values(a->b, a->a, BENCH_DIM, TQ_TILE, BENCH_DIM);
}

static void bench(ck *t)
{
    for (size_t isa = 0; isa < t->n_isas; isa++) {
        const char *name = t->isas[isa].name;
        bench_arg a = {.kern = t->isas[isa].kernels->attn};
        float *logits = ck_buffer(t, 0, BENCH_ROWS * TQ_TILE * sizeof(float), 0);
        a.a = ck_buffer(t, 1, TQ_TILE * BENCH_DIM * sizeof(float), 0);
        a.b = ck_buffer(t, 2, TQ_TILE * BENCH_DIM * sizeof(float), 0);
        a.c = ck_buffer(t, 3, BENCH_ROWS * TQ_TILE * sizeof(float), 0);
        a.state = ck_buffer(t, 4, 3 * BENCH_ROWS * sizeof(float), 0);
        a.span = ck_buffer(t, 5, BENCH_ROWS * sizeof(tq_span), 0);
        memset(a.state, 0, 3 * BENCH_ROWS * sizeof(float));
        for (int i = 0; i < BENCH_ROWS * (int)TQ_TILE; i++)
            logits[i] = ck_normal(t);
        for (int r = 0; r < BENCH_ROWS; r++)
            a.span[r] = (tq_span){0, TQ_TILE};
        a.logits = logits;
        const double tile = TQ_TILE * BENCH_DIM * 4.0;
        if (ck_wants(t, "softmax")) {
            ck_bench(t, "softmax", name, call_softmax, &a, BENCH_ROWS * TQ_TILE,
                     BENCH_ROWS * TQ_TILE * 4.0);
            a.softcap = 30;
            ck_bench(t, "softmax capped", name, call_softmax, &a, BENCH_ROWS * TQ_TILE,
                     BENCH_ROWS * TQ_TILE * 4.0);
        }
        if (ck_wants(t, "pack_keys"))
            ck_bench(t, "pack_keys", name, call_pack_keys, &a, TQ_TILE, tile);
        if (ck_wants(t, "pack_values"))
            ck_bench(t, "pack_values", name, call_pack_values, &a, TQ_TILE, tile);
        if (ck_wants(t, "gemm")) /* an element is a multiply-add */
            ck_bench(t, "gemm", name, call_gemm, &a, (double)BENCH_ROWS * TQ_TILE * BENCH_DIM,
                     tile);
    }
}

const ck_module ck_module_tile = {"tile", check, bench};
