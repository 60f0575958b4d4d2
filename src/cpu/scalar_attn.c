/* SPDX-License-Identifier: MIT */
/* scalar_attn.c — the reference of the attention kernels: plain loops in f32.
 *
 * kernels.h has the contracts. Rows of keys and values are decoded by the codec's own entries, so
 * this file knows no packed layout except that of affine keys, which are scored as integers.
 */
#include "cpu/scalar_attn.h"
#include "cpu/scalar.h"
#include "f16.h"
#include "pack.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define DIM_MAX   1024u
#define QUERY_MAX 32767.0f

static tq_const_planes token(tq_const_planes p, uint32_t t)
{
    p.codes += t * p.codes_stride;
    p.scale += t * p.scale_stride;
    p.zero += t * p.zero_stride;
    return p;
}

/* ---- Scores ---------------------------------------------------------------------------- */

void tq_scalar_prep_float(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    memcpy(prep, q, (size_t)n_rows * k->dim * sizeof(float));
}

static void score_decoded(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                          tq_const_planes keys, uint32_t n, tq_decode_fn *decode)
{
    const float *q = prep;
    float row[DIM_MAX];
    for (uint32_t t = 0; t < n; t++) {
        decode(k, row, k->dim, token(keys, t), 1);
        for (uint32_t r = 0; r < n_rows; r++) {
            float sum = 0;
            for (uint32_t j = 0; j < k->dim; j++)
                sum += q[(size_t)r * k->dim + j] * row[j];
            s[r * TQ_TILE + t] = sum;
        }
    }
}

void tq_scalar_score_float(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                           tq_const_planes keys, uint32_t n)
{
    score_decoded(k, s, prep, n_rows, keys, n, k->kernels->codec->decode[tq_kfmt(k->format)]);
}

void tq_scalar_score_rotated(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                             tq_const_planes keys, uint32_t n)
{
    score_decoded(k, s, prep, n_rows, keys, n,
                  k->kernels->codec->decode_rotated[tq_kfmt(k->format)]);
}

/* Rows of the same transform keep their dot products: the query is rotated once. */
void tq_scalar_prep_rotated(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    float *dst = prep;
    memcpy(prep, q, (size_t)n_rows * k->dim * sizeof(float));
    for (uint32_t r = 0; r < n_rows; r++)
        k->kernels->codec->rotate(dst + (size_t)r * k->dim, k->dim);
}

/* The same, each query rounded to 16-bit integers with a scale of its own; kept as f32. */
void tq_scalar_prep_norm(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    float *dst = prep;

    tq_scalar_prep_rotated(k, prep, q, n_rows);
    for (uint32_t r = 0; r < n_rows && !k->zero_bytes; r++, dst += k->dim) {
        float max = 0;
        int finite = 1;
        for (uint32_t j = 0; j < k->dim; j++) {
            finite &= fabsf(dst[j]) <= FLT_MAX;
            max = fabsf(dst[j]) > max ? fabsf(dst[j]) : max;
        }
        const float inverse = finite && max >= 0x1p-100f ? QUERY_MAX / max : 0;
        for (uint32_t j = 0; j < k->dim; j++)
            dst[j] = !finite ? NAN : inverse > 0 ? rintf(dst[j] * inverse) * (max / QUERY_MAX) : 0;
    }
}

/* Layout of prepared affine queries: int16 [n_rows][dim], then per row and group the scale of the
 * integers and their sum times that scale: f32 [n_rows][n_groups][2]. */
void tq_scalar_prep_affine(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    int16_t *q16 = prep;
    float *meta = (float *)(void *)(q16 + (size_t)n_rows * k->dim);
    for (size_t g = 0; g < (size_t)n_rows * k->n_groups; g++) {
        const uint32_t size = tq_group_size(k->dim, (uint32_t)(g % k->n_groups));
        float max = 0;
        int finite = 1;
        for (uint32_t j = 0; j < size; j++) {
            float a = fabsf(q[j]);
            finite &= a <= FLT_MAX;
            max = a > max ? a : max;
        }
        /* Below this the reciprocal could overflow, and no f32 score would notice. */
        float inverse = finite && max >= 0x1p-100f ? QUERY_MAX / max : 0;
        int32_t sum = 0;
        for (uint32_t j = 0; j < size; j++) {
            q16[j] = inverse > 0 ? (int16_t)rintf(q[j] * inverse) : 0;
            sum += q16[j];
        }
        meta[2 * g] = !finite ? NAN : inverse > 0 ? max / QUERY_MAX : 0;
        meta[2 * g + 1] = meta[2 * g] * (float)sum;
        q += size;
        q16 += size;
    }
}

void tq_scalar_score_affine(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                            tq_const_planes keys, uint32_t n)
{
    const uint32_t d = k->dim, n_groups = k->n_groups;
    uint8_t idx[DIM_MAX];
    for (uint32_t t = 0; t < n; t++) {
        tq_const_planes p = token(keys, t);
        if (k->bits == 8)
            memcpy(idx, p.codes, d);
        else
            tq_unpack(idx, p.codes, d, k->bits);
        for (uint32_t r = 0; r < n_rows; r++) {
            const int16_t *q16 = (const int16_t *)prep + (size_t)r * d;
            const float *meta =
                (const float *)(const void *)((const int16_t *)prep + (size_t)n_rows * d) +
                (size_t)r * n_groups * 2;
            float sum = 0;
            for (uint32_t g = 0; g < n_groups; g++) {
                int32_t dot = 0;
                const uint32_t start = g * TQ_GROUP, end = start + tq_group_size(d, g);
                for (uint32_t j = start; j < end; j++)
                    dot += q16[j] * (k->bits == 8 ? (int8_t)idx[j] : idx[j]);
                float scale = tq_f32_from_f16(tq_load_le16(p.scale + 2 * g));
                float zero = tq_f32_from_f16(tq_load_le16(p.zero + 2 * g));
                sum += scale * (meta[2 * g] * (float)dot + meta[2 * g + 1] * zero);
            }
            s[r * TQ_TILE + t] = sum;
        }
    }
}

/* ---- Softmax --------------------------------------------------------------------------- */

void tq_scalar_softmax(float *s, const tq_span *span, uint32_t n_rows, float softcap, float *max,
                       float *sum, float *alpha)
{
    for (uint32_t r = 0; r < n_rows; r++, s += TQ_TILE) {
        const uint32_t lo = span[r].lo, hi = span[r].hi;
        float m = max[r], total = 0;
        for (uint32_t t = lo; t < hi; t++) {
            if (softcap > 0)
                s[t] = softcap * tanhf(s[t] / softcap);
            m = s[t] > m ? s[t] : m;
        }
        /* While every logit so far is -INFINITY there is nothing to weigh or to rescale, and
         * exp(-INF - -INF) would be NaN. */
        int empty = m == -INFINITY;
        for (uint32_t t = 0; t < TQ_TILE; t++) {
            s[t] = t >= lo && t < hi && !(empty && s[t] == -INFINITY) ? expf(s[t] - m) : 0;
            total += s[t];
        }
        alpha[r] = empty || lo >= hi ? 1 : expf(max[r] - m);
        sum[r] = sum[r] * alpha[r] + total;
        max[r] = m;
    }
}

/* ---- Values ---------------------------------------------------------------------------- */

void tq_scalar_weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    const uint32_t d = v->dim;
    float row[DIM_MAX];
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t j = 0; j < d; j++)
            acc[r * acc_stride + j] *= alpha[r];
    for (uint32_t t = 0; t < n; t++) {
        v->kernels->codec->decode_rotated[tq_kfmt(v->format)](v, row, d, token(values, t), 1);
        for (uint32_t r = 0; r < n_rows; r++)
            for (uint32_t j = 0; j < d; j++)
                acc[r * acc_stride + j] += w[r * TQ_TILE + t] * row[j];
    }
}

/* ---- Tiles ----------------------------------------------------------------------------- */

void tq_scalar_pack_keys(float *b, const float *x, size_t x_stride, uint32_t n, uint32_t dim)
{
    for (uint32_t t = 0; t < TQ_TILE; t++)
        for (uint32_t j = 0; j < dim; j++)
            b[((size_t)(t / TQ_STRIP) * dim + j) * TQ_STRIP + t % TQ_STRIP] =
                t < n ? x[t * x_stride + j] : 0;
}

void tq_scalar_pack_values(float *b, const float *x, size_t x_stride, uint32_t n, uint32_t dim)
{
    for (uint32_t strip = 0; strip * TQ_STRIP < dim; strip++)
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t i = 0; i < TQ_STRIP; i++, b++)
                *b = strip * TQ_STRIP + i < dim ? x[t * x_stride + strip * TQ_STRIP + i] : 0;
}

void tq_scalar_gemm(float *c, size_t ldc, const float *a, size_t lda, const float *b,
                    const float *alpha, uint32_t m, uint32_t n, uint32_t k)
{
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t strip = 0; strip < n / TQ_STRIP; strip++) {
            const float *bs = b + (size_t)strip * k * TQ_STRIP;
            float *cs = c + i * ldc + (size_t)strip * TQ_STRIP;
            float sum[TQ_STRIP] = {0};
            for (uint32_t l = 0; l < k; l++)
                for (uint32_t j = 0; j < TQ_STRIP; j++)
                    sum[j] += a[i * lda + l] * bs[l * TQ_STRIP + j];
            for (uint32_t j = 0; j < TQ_STRIP; j++)
                cs[j] = alpha ? alpha[i] * cs[j] + sum[j] : sum[j];
        }
}

const tq_attn_kernels tq_attn_kernels_scalar = {
    .prep = {[TQ_KF32] = tq_scalar_prep_float,
             [TQ_KF16] = tq_scalar_prep_float,
             [TQ_KBF16] = tq_scalar_prep_float,
             [TQ_KAFFINE2] = tq_scalar_prep_affine,
             [TQ_KAFFINE4] = tq_scalar_prep_affine,
             [TQ_KAFFINE5] = tq_scalar_prep_affine,
             [TQ_KAFFINE8] = tq_scalar_prep_affine,
             TQ_NORM_ENTRIES(tq_scalar_prep_norm),
             TQ_TCQ_ENTRIES(tq_scalar_prep_norm),
             TQ_MSE_ENTRIES(tq_scalar_prep_rotated),
             TQ_PROD_ENTRIES(tq_scalar_prep_rotated),
             TQ_UNIFORM_ENTRIES(tq_scalar_prep_float)},
    .score = {[TQ_KF32] = tq_scalar_score_float,
              [TQ_KF16] = tq_scalar_score_float,
              [TQ_KBF16] = tq_scalar_score_float,
              [TQ_KAFFINE2] = tq_scalar_score_affine,
              [TQ_KAFFINE4] = tq_scalar_score_affine,
              [TQ_KAFFINE5] = tq_scalar_score_affine,
              [TQ_KAFFINE8] = tq_scalar_score_affine,
              TQ_NORM_ENTRIES(tq_scalar_score_rotated),
              TQ_TCQ_ENTRIES(tq_scalar_score_rotated),
              TQ_MSE_ENTRIES(tq_scalar_score_rotated),
              TQ_PROD_ENTRIES(tq_scalar_score_rotated),
              TQ_UNIFORM_ENTRIES(tq_scalar_score_float)},
    .weigh = {[TQ_KF32] = tq_scalar_weigh,
              [TQ_KF16] = tq_scalar_weigh,
              [TQ_KBF16] = tq_scalar_weigh,
              [TQ_KLLOYD2] = tq_scalar_weigh,
              [TQ_KLLOYD3] = tq_scalar_weigh,
              [TQ_KLLOYD4] = tq_scalar_weigh,
              [TQ_KLLOYD5] = tq_scalar_weigh,
              [TQ_KLLOYD8] = tq_scalar_weigh,
              TQ_NORM_ENTRIES(tq_scalar_weigh),
              TQ_TCQ_ENTRIES(tq_scalar_weigh),
              TQ_MSE_ENTRIES(tq_scalar_weigh),
              TQ_PROD_ENTRIES(tq_scalar_weigh),
              TQ_UNIFORM_ENTRIES(tq_scalar_weigh)},
    .softmax = tq_scalar_softmax,
    .pack_keys = tq_scalar_pack_keys,
    .pack_values = tq_scalar_pack_values,
    .gemm = tq_scalar_gemm,
};
