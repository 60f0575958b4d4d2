/* SPDX-License-Identifier: MIT */
/* avx2_attn_levels.c — weighted sums of norm-codebook and trellis values, for AVX2.
 *
 * The tokens of a tile become int8 levels in the first cache, by shuffles of their planes
 * (avx2_norm.c, avx2_trellis_codes.c); decoded rows never exist. A level is widened to f32 on its
 * way into the multiplier and shared by the rows of a block; the one scale of a token goes into its
 * weight.
 *
 * Option mean: a mean adds the same number to each element of the unrotated row, so it adds
 * mean * w * R(1, 1, ...) to a sum.
 */
#include "codebook.h"
#include "cpu/avx2_attn.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_trellis.h"
#include "f16.h"
#include "rotate.h"

enum {
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

static void rotated_ones(float *ones, uint32_t dim)
{
    for (uint32_t j = 0; j < dim; j++)
        ones[j] = 1;
    tq_rotate_f32(ones, dim);
}

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
                          tq_walk *ahead, const uint32_t rows)
{
    uint32_t j = 0;
    for (; j + 16 <= dim; j += 16) {
        tq_walk_on(ahead);
        weigh_block(acc + j, acc_stride, w, alpha, level + j, level_stride, n, rows, 2);
    }
    if (j < dim)
        weigh_block(acc + j, acc_stride, w, alpha, level + j, level_stride, n, rows, 1);
}

/* Up to four rows, and the means of the tokens. */
static void weigh_four(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                       const float *alpha, uint32_t rows, const int8_t *level, const float *scale,
                       const float *mean, const float *ones, uint32_t n, tq_walk *ahead)
{
    const uint32_t dim = v->dim;
    const size_t stride = dim + PAD;
    float scaled[4 * TQ_TILE];

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t t = 0; t < n; t++)
            scaled[r * TQ_TILE + t] = w[r * TQ_TILE + t] * scale[t];
    switch (rows) {
    case 1:
        weigh_rows(acc, acc_stride, scaled, alpha, level, stride, n, dim, ahead, 1);
        break;
    case 2:
        weigh_rows(acc, acc_stride, scaled, alpha, level, stride, n, dim, ahead, 2);
        break;
    case 3:
        weigh_rows(acc, acc_stride, scaled, alpha, level, stride, n, dim, ahead, 3);
        break;
    default:
        weigh_rows(acc, acc_stride, scaled, alpha, level, stride, n, dim, ahead, 4);
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

/* Levels of m tokens from t on. */
static void take_levels(int8_t *level, const tq_codec *v, const tq_trellis_tables *tables,
                        tq_const_planes values, uint32_t t, uint32_t m)
{
    const uint8_t *codes = values.codes + t * values.codes_stride;

    if (tables)
        tq_avx2_trellis_levels(level, v->dim + PAD, codes, values.codes_stride, tables, v->bits,
                               v->dim, m);
    else
        tq_avx2_norm_levels(v, level, v->dim + PAD, codes, values.codes_stride, m);
}

/* tables: of a trellis, or NULL. */
static void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                  const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                  float unit, const tq_trellis_tables *tables)
{
    static const float one[4] = {1, 1, 1, 1};
    const uint32_t dim = v->dim, has_mean = v->zero_bytes > 0;
    const uint32_t fit = LEVEL_BYTES / (dim + PAD), step = fit < TQ_TILE ? fit : TQ_TILE;
    int8_t level[LEVEL_BYTES + 2 * PAD];
    float scale[TQ_TILE], mean[TQ_TILE], ones[TQ_ROW_MAX];
    tq_walk ahead = tq_walk_begin(values, (n + step - 1) / step * (dim / 16));

    if (has_mean)
        rotated_ones(ones, dim);
    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;

        take_levels(level, v, tables, values, t, m);
        for (uint32_t i = 0; i < m; i++) {
            scale[i] = f16_of(values.scale, values.scale_stride, t + i) * unit;
            if (has_mean)
                mean[i] = f16_of(values.zero, values.zero_stride, t + i);
        }
        for (uint32_t r = 0; r < n_rows; r += 4)
            weigh_four(v, acc + r * acc_stride, acc_stride, w + (size_t)r * TQ_TILE + t,
                       t ? one : alpha + r, n_rows - r < 4 ? n_rows - r : 4, level, scale,
                       has_mean ? mean : NULL, ones, m, &ahead);
    }
}

void tq_avx2_weigh_tcq(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                       const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    const tq_trellis *trellis = tq_trellis_get(v->bits);
    const tq_trellis_tables tables = tq_avx2_trellis_tables(trellis);

    weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, trellis->unit, &tables);
}

void tq_avx2_weigh_norm(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                        const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, tq_codebook_get(v->bits)->unit, NULL);
}
