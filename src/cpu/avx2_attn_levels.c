/* SPDX-License-Identifier: MIT */
/* avx2_attn_levels.c — weighted sums of norm-codebook and trellis values, for AVX2, in integers.
 *
 * The tokens of a tile become level bytes, four tokens to a lane (avx2_levels.c). Levels of up to 4
 * bits are small numbers and meet byte weights (avx2_attn_sums.h). For others the weight of a
 * token, its scale included, is an int16 with one factor per row and tile, so vpmaddwd weighs two
 * tokens of 8 elements and their sum is exact:
 *     sum[j] += w16[t] * u[t][j] + w16[t+2] * u[t+2][j]     u = level + zero
 * A sum starts at -zero times the sum of the weights. 64 * 32767 * 255 < 2^31. Weights are rounded
 * to steps of 1 / 32767 of the largest, see kernels.h.
 *
 * Option mean: a mean adds the same number to each element of the unrotated row, so it adds
 * mean * w * R(1, 1, ...) to a sum.
 */
#include "cpu/avx2_attn_sums.h"
#include "cpu/avx2_levels.h"

#include <float.h>
#include <math.h>

enum { MAX_ROWS = TQ_WEIGHT_ROWS };

TQ_INLINE void round_rows(tq_weights *out, const float *w, const float *scale, float unit,
                          uint32_t n16, const uint32_t rows)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    float product[MAX_ROWS * TQ_TILE];
    __m256 peak[4];
    tq_weight_steps by;

    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        peak[r] = _mm256_setzero_ps();
    for (uint32_t t = 0; t < n16; t += 8) {
        const __m256 y = _mm256_loadu_ps(scale + t);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(w + r * TQ_TILE + t), y);
            peak[r] = tq_larger(peak[r], _mm256_and_ps(x, magnitude));
            _mm256_storeu_ps(product + r * TQ_TILE + t, x);
        }
    }
    tq_steps_from(&by, tq_largest(peak), 32767.0f);
    _mm_storeu_ps(out->factor, _mm_mul_ps(by.down, _mm_set1_ps(unit)));
    for (uint32_t t = 0; t < n16; t += 16)
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const float *p = product + r * TQ_TILE + t;
            const __m256 up = _mm256_broadcast_ss(by.up + r);
            __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p), up));
            __m256i y = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p + 8), up));
            x = _mm256_packs_epi32(_mm256_shuffle_epi32(x, 0xd8), _mm256_shuffle_epi32(y, 0xd8));
            x = _mm256_permute4x64_epi64(x, 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(out->w16 + r * TQ_TILE + t), x);
        }
}

void tq_avx2_round_weights(tq_weights *out, const float *w, const float *scale, float unit,
                           uint32_t n, uint32_t rows)
{
#define CALL(n_of_rows) round_rows(out, w, scale, unit, (n + 15) / 16 * 16, n_of_rows)
    TQ_CALL_ROWS(rows, CALL);
#undef CALL
}

int32_t tq_avx2_weights_start(const int16_t *w16, uint32_t n, uint8_t zero)
{
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t t = 0; t < n; t += 16) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(w16 + t));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, _mm256_set1_epi16((short)-zero)));
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* acc[0 .. 7] and, if both, acc[16 .. 23] = alpha * that + factor * sum. */
TQ_INLINE void finish(float *acc, const __m256i sum[2], float factor, const float *alpha, int both)
{
    const __m256 f = _mm256_set1_ps(factor), al = _mm256_broadcast_ss(alpha);
    const __m256 a = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[0]), f);
    const __m256 b = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[1]), f);
    const __m256 x = _mm256_permute2f128_ps(a, b, 0x20), y = _mm256_permute2f128_ps(a, b, 0x31);
    _mm256_storeu_ps(acc, _mm256_fmadd_ps(al, _mm256_loadu_ps(acc), x));
    if (both)
        _mm256_storeu_ps(acc + 16, _mm256_fmadd_ps(al, _mm256_loadu_ps(acc + 16), y));
}

/* All elements. level [blocks][quads][64] of quads * 4 tokens, w16 from the first of them on. */
TQ_INLINE void weigh_rows(float *acc, size_t acc_stride, const int16_t *w16, const float *factor,
                          const float *alpha, const uint8_t *level, uint32_t quads, uint32_t dim,
                          tq_walk *ahead, uint8_t zero, const uint32_t rows)
{
    int32_t start[MAX_ROWS];

    for (uint32_t r = 0; r < rows; r++)
        start[r] = tq_avx2_weights_start(w16 + r * TQ_TILE, quads * 4, zero);
    for (uint32_t block = 0; block * 16 < TQ_LEVEL_WIDTH(dim); block++) {
        const uint32_t j = block / 2 * 32 + block % 2 * 8;
        const int16_t *w = w16;
        __m256i sum[MAX_ROWS][2];
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = _mm256_set1_epi32(start[r]);
        uint32_t q = quads;
        for (; q >= 4; q -= 4) {
            tq_walk_on(ahead);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++, level += 64, w += 4)
                tq_sum_wide_quad(sum, w, level, rows);
        }
        for (; q > 0; q--, level += 64, w += 4)
            tq_sum_wide_quad(sum, w, level, rows);
        if (j < dim)
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                finish(acc + r * acc_stride + j, sum[r], factor[r], alpha + r, j + 16 < dim);
    }
}

/* The same of small levels, signed, by bytes. */
TQ_INLINE void weigh_small(float *acc, size_t acc_stride, const uint8_t *w8, __m128 factor4,
                           const float *alpha, const uint8_t *level, uint32_t quads, uint32_t dim,
                           tq_walk *ahead, const int fours, const uint32_t rows)
{
    float factor[4];
    _mm_storeu_ps(factor, factor4);
    for (uint32_t block = 0; block * 16 < TQ_LEVEL_WIDTH(dim);
         block++, level += (size_t)quads * 64) {
        const uint32_t j = block / 2 * 32 + block % 2 * 8;
        __m256i sum[TQ_SUM_ROWS][2];
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = _mm256_setzero_si256();
        if (block % 2 == 0)
            tq_walk_on(ahead);
        tq_sum_quads(sum, w8, level, 64, quads / 4, fours, rows);
        if (j < dim)
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                finish(acc + r * acc_stride + j, sum[r], factor[r], alpha + r, j + 16 < dim);
    }
}

/* Those of the tokens of a tile add the same to each element of the unrotated rows. */
void tq_avx2_add_means(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                       uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    float mean[TQ_TILE], ones[TQ_ROW_MAX];

    for (uint32_t j = 0; j < v->dim; j++)
        ones[j] = 1;
    v->kernels->codec->rotate(ones, v->dim);
    tq_avx2_token_scales(mean, values.zero, values.zero_stride, 0, n);
    for (uint32_t t = (n + 7) / 8 * 8; t < TQ_TILE; t++)
        mean[t] = 0;
    for (uint32_t r = 0; r < n_rows; r++, w += TQ_TILE, acc += acc_stride) {
        const float sum = tq_dot_tile(w, mean);
        const __m256 sum8 = _mm256_set1_ps(sum);
        for (uint32_t j = 0; j < v->dim; j += 8) {
            const __m256 old = _mm256_loadu_ps(acc + j);
            _mm256_storeu_ps(acc + j, _mm256_fmadd_ps(sum8, _mm256_loadu_ps(ones + j), old));
        }
    }
}

/* Level bytes of a step, [blocks][quads][64], for rows that are handled four at a time. */
typedef struct tile_step {
    const uint8_t *level;
    uint32_t t, quads; /* from token t on; small levels: a multiple of 4 */
    tq_walk *ahead;
} tile_step;

TQ_INLINE void step_wide(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                         const float *alpha, const float *scale, uint32_t n,
                         const tq_level_source *source, const tile_step *st, const uint32_t rows)
{
    tq_weights of;
    tq_avx2_round_weights(&of, w, scale, source->unit, n, rows);
    weigh_rows(acc, acc_stride, of.w16 + st->t, of.factor, alpha, st->level, st->quads, v->dim,
               st->ahead, source->zero, rows);
}

TQ_INLINE void step_small(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                          const float *alpha, const float *scale, const tq_level_source *source,
                          const tile_step *st, const uint32_t rows)
{
    uint8_t w8[TQ_SUM_ROWS * TQ_TILE];
    tq_weight_steps by;
    tq_find_steps(&by, w, scale, TQ_WEIGHT_TOP, rows);
    const __m128 down = tq_round_bytes(w8, &by, w, scale, rows);
    const __m128 factor = _mm_mul_ps(down, _mm_set1_ps(source->unit));
    if (v->bits <= 3)
        weigh_small(acc, acc_stride, w8 + st->t, factor, alpha, st->level, st->quads, v->dim,
                    st->ahead, 1, rows);
    else
        weigh_small(acc, acc_stride, w8 + st->t, factor, alpha, st->level, st->quads, v->dim,
                    st->ahead, 0, rows);
}

/* Calls of tq_walk_on: a step's levels, four tokens each, then its blocks. */
static uint32_t walk_steps(const tq_level_source *source, uint32_t n, uint32_t step)
{
    const uint32_t tokens = n < step ? n : step, pairs = TQ_LEVEL_WIDTH(source->codec->dim) / 32;
    const uint32_t of_step =
        (tokens + 3) / 4 + pairs * (source->small ? 1 : 2 * ((tokens + 15) / 16));
    return (n + step - 1) / step * of_step;
}

void tq_avx2_weigh_norm(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                        const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    static const float one[MAX_ROWS] = {1, 1, 1, 1};
    uint8_t level[TQ_LEVEL_ROOM] __attribute__((aligned(32)));
    float scale[TQ_TILE];
    const uint32_t dim = v->dim, step = tq_quad_tokens(dim);
    tq_level_source source;

    tq_avx2_level_source(&source, v, v->bits <= 4);
    tq_avx2_take_planes(&source);
    tq_walk ahead = tq_walk_scales_first(values, walk_steps(&source, n, step));
    tq_avx2_token_scales(scale, values.scale, values.scale_stride, 0, n);
    for (uint32_t t = (n + 7) / 8 * 8; t < TQ_TILE; t++)
        scale[t] = 0;
    if (source.small && tq_has_sign(scale, TQ_TILE)) {
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;
        const tile_step st = {level, t, source.small ? (m + 15) / 16 * 4 : (m + 3) / 4, &ahead};
        tq_avx2_level_quads(level, &source, tq_rows_from(&values, t), m, st.quads, &ahead);
        for (uint32_t r = 0; r < n_rows; r += MAX_ROWS) {
            float *dst = acc + r * acc_stride;
            const float *al = t ? one : alpha + r;
#define CALL(n_of_rows)                                                                            \
    do {                                                                                           \
        if (!source.small)                                                                         \
            step_wide(v, dst, acc_stride, w + r * TQ_TILE, al, scale, n, &source, &st, n_of_rows); \
        else                                                                                       \
            step_small(v, dst, acc_stride, w + r * TQ_TILE, al, scale, &source, &st, n_of_rows);   \
    } while (0)
            TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
        }
    }
    if (v->zero_bytes)
        tq_avx2_add_means(v, acc, acc_stride, w, n_rows, values, n);
}
