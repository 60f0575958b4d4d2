/* SPDX-License-Identifier: MIT */
/* avx2_attn_trellis.c — attention on the planes of trellis rows, for AVX2.
 *
 * A few tokens at a time become int8 levels in the first cache, by shuffles of their planes
 * (avx2_trellis_codes.c); decoded rows never exist. A level is widened to f32 on its way into the
 * multiplier and shared by the rows of a block. The one scale of a token is applied after the sum
 * over its elements, or to its weight before. Queries are the plain rotated f32 ones of
 * tq_avx2_prep_rotated.
 *
 * Option mean: a mean adds the same number to each element of the unrotated row, so it adds mean *
 * sum(q) to a score and mean * w * R(1, 1, ...) to a sum.
 */
#include "cpu/avx2_attn.h"
#include "cpu/avx2_trellis.h"
#include "f16.h"
#include "rotate.h"

enum {
    KEYS = 4,            /* tokens of a block of scores */
    LEVEL_BYTES = 16384, /* levels of the values that are summed together */
    PAD = 32
};

static float f16_of(const uint8_t *plane, size_t stride, uint32_t t)
{
    return tq_f32_from_f16(tq_load_le16(plane + t * stride));
}

TQ_INLINE __m256 levels8(const int8_t *level)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)level);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

/* ---- Scores ---------------------------------------------------------------------------- */

/* Sums of four registers. */
TQ_INLINE __m128 sums4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    const __m256 v = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

/* Four tokens of `rows` queries: s[r][0..3]. level: one pointer a token. */
TQ_INLINE void score_block(float *s, const float *q, const int8_t *const level[KEYS], __m128 scale,
                           __m128 mean, const float *q_sum, uint32_t dim, const uint32_t rows)
{
    __m256 sum[2][KEYS];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < KEYS; i++)
            sum[r][i] = _mm256_setzero_ps();
    for (uint32_t j = 0; j < dim; j += 8) {
        const __m256 x0 = levels8(level[0] + j), x1 = levels8(level[1] + j);
        const __m256 x2 = levels8(level[2] + j), x3 = levels8(level[3] + j);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            const __m256 y = _mm256_loadu_ps(q + (size_t)r * dim + j);
            sum[r][0] = _mm256_fmadd_ps(x0, y, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(x1, y, sum[r][1]);
            sum[r][2] = _mm256_fmadd_ps(x2, y, sum[r][2]);
            sum[r][3] = _mm256_fmadd_ps(x3, y, sum[r][3]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        __m128 v = _mm_mul_ps(sums4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]), scale);
        if (q_sum)
            v = _mm_fmadd_ps(mean, _mm_set1_ps(q_sum[r]), v);
        _mm_storeu_ps(s + (size_t)r * TQ_TILE, v);
    }
}

static void rotated_ones(float *ones, uint32_t dim)
{
    for (uint32_t j = 0; j < dim; j++)
        ones[j] = 1;
    tq_rotate_f32(ones, dim);
}

/* Sum of the unrotated query, from the rotated one. */
static float query_sum(const float *q, const float *ones, uint32_t dim)
{
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t j = 0; j < dim; j += 8)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(q + j), _mm256_loadu_ps(ones + j), sum);
    return _mm_cvtss_f32(sums4(sum, sum, sum, sum));
}

void tq_avx2_score_tcq(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                       tq_const_planes keys, uint32_t n)
{
    const tq_trellis *trellis = tq_trellis_get(k->bits);
    const tq_trellis_tables tables = tq_avx2_trellis_tables(trellis);
    const uint32_t dim = k->dim, has_mean = k->zero_bytes > 0;
    const float *q = prep;
    int8_t room[KEYS * (TQ_ROW_MAX + PAD)];
    float ones[TQ_ROW_MAX];

    if (has_mean)
        rotated_ones(ones, dim);
    for (uint32_t t = 0; t < n; t += KEYS) {
        const uint32_t m = n - t < KEYS ? n - t : KEYS;
        const int8_t *level[KEYS];
        float scale[KEYS], mean[KEYS] = {0};

        tq_avx2_trellis_levels(room, dim + PAD, keys.codes + t * keys.codes_stride,
                               keys.codes_stride, &tables, k->bits, dim, m);
        for (uint32_t i = 0; i < KEYS; i++) { /* tokens from n on repeat the last one */
            const uint32_t at = t + (i < m ? i : m - 1);
            level[i] = room + (size_t)(at - t) * (dim + PAD);
            scale[i] = f16_of(keys.scale, keys.scale_stride, at) * trellis->unit;
            if (has_mean)
                mean[i] = f16_of(keys.zero, keys.zero_stride, at);
        }
        const __m128 scale4 = _mm_loadu_ps(scale), mean4 = _mm_loadu_ps(mean);
        for (uint32_t r = 0; r < n_rows; r += 2) {
            const float *q_r = q + (size_t)r * dim;
            float *s_r = s + (size_t)r * TQ_TILE + t;
            float q_sum[2] = {0};

            for (uint32_t i = 0; has_mean && i < 2 && r + i < n_rows; i++)
                q_sum[i] = query_sum(q_r + (size_t)i * dim, ones, dim);
            if (n_rows - r >= 2)
                score_block(s_r, q_r, level, scale4, mean4, has_mean ? q_sum : NULL, dim, 2);
            else
                score_block(s_r, q_r, level, scale4, mean4, has_mean ? q_sum : NULL, dim, 1);
        }
    }
}

/* ---- Weighted sums --------------------------------------------------------------------- */

/* acc[r][0 .. 8 * vectors) = alpha[r] * that + sum of w[r][t] * level[t]. w [rows][64]. */
TQ_INLINE void weigh_block(float *acc, size_t acc_stride, const float *w, const float *alpha,
                           const int8_t *level, size_t level_stride, uint32_t n,
                           const uint32_t rows, const uint32_t vectors)
{
    __m256 sum[4][2];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < vectors; i++)
            sum[r][i] = _mm256_setzero_ps();
    for (uint32_t t = 0; t < n; t++, level += level_stride) {
        __m256 x[2];
#pragma GCC unroll 4
        for (uint32_t i = 0; i < vectors; i++)
            x[i] = levels8(level + 8 * i);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            const __m256 y = _mm256_broadcast_ss(w + r * TQ_TILE + t);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < vectors; i++)
                sum[r][i] = _mm256_fmadd_ps(y, x[i], sum[r][i]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        const __m256 y = _mm256_broadcast_ss(alpha + r);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < vectors; i++) {
            float *dst = acc + r * acc_stride + 8 * i;
            _mm256_storeu_ps(dst, _mm256_fmadd_ps(y, _mm256_loadu_ps(dst), sum[r][i]));
        }
    }
}

TQ_INLINE void weigh_rows(float *acc, size_t acc_stride, const float *w, const float *alpha,
                          const int8_t *level, size_t level_stride, uint32_t n, uint32_t dim,
                          const uint32_t rows)
{
    uint32_t j = 0;
    for (; j + 16 <= dim; j += 16)
        weigh_block(acc + j, acc_stride, w, alpha, level + j, level_stride, n, rows, 2);
    if (j < dim)
        weigh_block(acc + j, acc_stride, w, alpha, level + j, level_stride, n, rows, 1);
}

/* Up to four rows, and the means of the tokens. */
static void weigh_four(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                       const float *alpha, uint32_t rows, const int8_t *level, const float *scale,
                       const float *mean, const float *ones, uint32_t n)
{
    const uint32_t dim = v->dim;
    const size_t stride = dim + PAD;
    float scaled[4 * TQ_TILE];

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t t = 0; t < n; t++)
            scaled[r * TQ_TILE + t] = w[r * TQ_TILE + t] * scale[t];
    switch (rows) {
    case 1:
        weigh_rows(acc, acc_stride, scaled, alpha, level, stride, n, dim, 1);
        break;
    case 2:
        weigh_rows(acc, acc_stride, scaled, alpha, level, stride, n, dim, 2);
        break;
    case 3:
        weigh_rows(acc, acc_stride, scaled, alpha, level, stride, n, dim, 3);
        break;
    default:
        weigh_rows(acc, acc_stride, scaled, alpha, level, stride, n, dim, 4);
        break;
    }
    for (uint32_t r = 0; mean && r < rows; r++) {
        float sum = 0;
        for (uint32_t t = 0; t < n; t++)
            sum += w[r * TQ_TILE + t] * mean[t];
        const __m256 sum8 = _mm256_set1_ps(sum);
        for (uint32_t j = 0; j < dim; j += 8) {
            float *dst = acc + r * acc_stride + j;
            _mm256_storeu_ps(
                dst, _mm256_fmadd_ps(sum8, _mm256_loadu_ps(ones + j), _mm256_loadu_ps(dst)));
        }
    }
}

void tq_avx2_weigh_tcq(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                       const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    static const float one[4] = {1, 1, 1, 1};
    const tq_trellis *trellis = tq_trellis_get(v->bits);
    const tq_trellis_tables tables = tq_avx2_trellis_tables(trellis);
    const uint32_t dim = v->dim, has_mean = v->zero_bytes > 0;
    const uint32_t fit = LEVEL_BYTES / (dim + PAD), step = fit < TQ_TILE ? fit : TQ_TILE;
    int8_t level[LEVEL_BYTES];
    float scale[TQ_TILE], mean[TQ_TILE], ones[TQ_ROW_MAX];

    if (has_mean)
        rotated_ones(ones, dim);
    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;

        tq_avx2_trellis_levels(level, dim + PAD, values.codes + t * values.codes_stride,
                               values.codes_stride, &tables, v->bits, dim, m);
        for (uint32_t i = 0; i < m; i++) {
            scale[i] = f16_of(values.scale, values.scale_stride, t + i) * trellis->unit;
            if (has_mean)
                mean[i] = f16_of(values.zero, values.zero_stride, t + i);
        }
        for (uint32_t r = 0; r < n_rows; r += 4)
            weigh_four(v, acc + r * acc_stride, acc_stride, w + (size_t)r * TQ_TILE + t,
                       t ? one : alpha + r, n_rows - r < 4 ? n_rows - r : 4, level, scale,
                       has_mean ? mean : NULL, ones, m);
    }
}
