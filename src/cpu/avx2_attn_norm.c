/* SPDX-License-Identifier: MIT */
/* avx2_attn_norm.c — scores on the integer levels of norm-codebook and trellis, for AVX2.
 *
 * Eight tokens at a time become int8 levels in the first cache (avx2_norm.c, avx2_trellis_codes.c).
 * The query is 16-bit integers with one scale per row, so a score is an exact integer dot product,
 * at most 1024 * 32767 * 127 / 8 in a lane, times three scales. A register of 32 levels widens to
 * its even and its odd bytes with three shifts; preparation puts the query in the same order.
 * Weighted sums are in avx2_attn_levels.c.
 *
 * With TQ_CODEC_MEAN the decoded rows are used instead.
 */
#include "cpu/avx2_attn.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_trellis.h"
#include "codebook.h"
#include "f16.h"
#include "rotate.h"

#include <float.h>
#include <math.h>

enum { DIM_MAX = 1024, STEP = 8, SPARE = 64 };

static uint32_t padded(uint32_t dim)
{
    return (dim + 31) / 32 * 32;
}

static int is_trellis(const tq_codec *k)
{
    return k->format >= TQ_FMT_TCQ2 && k->format <= TQ_FMT_TCQ6;
}

static float unit_of(const tq_codec *k)
{
    return is_trellis(k) ? tq_trellis_get(k->bits)->unit : tq_codebook_get(k->bits)->unit;
}

/* Rows of the next block when n are left: 3 are done as 4. */
TQ_INLINE uint32_t block_rows(uint32_t n)
{
    return n >= 3 ? 4 : n;
}

/* ---- Keys ------------------------------------------------------------------------------ */

/* Prepared queries, per block of `rows`: f32 [8], the scale of the integers times the unit of the
 * codebook, laid out as the eight results of a step; then per 32 elements int16 [rows][32], even
 * ones first. */
static size_t block_bytes(uint32_t rows, uint32_t dim)
{
    return 8 * sizeof(float) + (size_t)rows * padded(dim) * sizeof(int16_t);
}

/* Integers of a rotated query [dim], 0 up to the next multiple of 32. Returns their scale. */
static float round_query(int16_t *dst, const float *q, uint32_t dim)
{
    float max = 0;
    int finite = 1;

    for (uint32_t j = 0; j < dim; j++) {
        float a = fabsf(q[j]);
        finite &= a <= FLT_MAX;
        max = a > max ? a : max;
    }
    memset(dst, 0, padded(dim) * sizeof *dst);
    if (!finite || !(max >= 0x1p-100f))
        return finite ? 0 : NAN;
    const float inverse = 32767.0f / max;
    for (uint32_t j = 0; j < dim; j++) {
        const uint32_t at = j / 32 * 32 + j % 32 / 2 + j % 2 * 16;
        dst[at] = (int16_t)_mm_cvtss_si32(_mm_set_ss(q[j] * inverse));
    }
    return max / 32767.0f;
}

void tq_avx2_prep_norm(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    const float unit = unit_of(k);
    const uint32_t width = padded(k->dim);
    float turned[DIM_MAX];
    int16_t integers[DIM_MAX];
    uint8_t *out = prep;

    if (k->zero_bytes) {
        tq_avx2_prep_rotated(k, prep, q, n_rows);
        return;
    }
    while (n_rows > 0) {
        const uint32_t rows = block_rows(n_rows), real = rows < n_rows ? rows : n_rows;
        float *scale = (float *)(void *)out;
        int16_t *dst = (int16_t *)(void *)(out + 8 * sizeof(float));
        for (uint32_t r = 0; r < rows; r++) {
            float s = 0;
            memset(integers, 0, sizeof integers);
            if (r < real) {
                memcpy(turned, q + (size_t)r * k->dim, k->dim * sizeof(float));
                k->kernels->codec->rotate(turned, k->dim);
                s = round_query(integers, turned, k->dim) * unit;
            }
            for (uint32_t i = 0; i < 8 / rows; i++)
                scale[r * (8 / rows) + i] = s;
            for (uint32_t j = 0; j < width; j += 32)
                memcpy(dst + (size_t)j * rows + r * 32, integers + j, 32 * sizeof *dst);
        }
        out += block_bytes(rows, k->dim);
        q += (size_t)real * k->dim;
        n_rows -= real;
    }
}

/* 32 levels as 16-bit integers: the even bytes, the odd bytes. */
TQ_INLINE void widen(__m256i x[2], const int8_t *level)
{
    const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)level);
    x[0] = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
    x[1] = _mm256_srai_epi16(v, 8);
}

/* Element i of the result is the sum of the lanes of a[i]. From 576 elements on a sum may leave
 * int32 (a key and a query that are both flat once rotated), its halves do not. */
TQ_INLINE __m256 reduce8(const __m256i a[8])
{
    __m256i x = _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
    __m256i y = _mm256_hadd_epi32(_mm256_hadd_epi32(a[4], a[5]), _mm256_hadd_epi32(a[6], a[7]));
    return _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_permute2x128_si256(x, y, 0x20)),
                         _mm256_cvtepi32_ps(_mm256_permute2x128_si256(x, y, 0x31)));
}

/* Eight tokens against a block of rows. level [8][width], scale [8] of the tokens. */
TQ_INLINE void score_block(float *s, const uint8_t *prep, const int8_t *level, uint32_t width,
                           const float *scale, const uint32_t rows, uint32_t real)
{
    const uint32_t tokens = 8 / rows;
    const float *per_row = (const float *)(const void *)prep;

#pragma GCC unroll 1
    for (uint32_t t = 0; t < 8; t += tokens) {
        const __m256i *q = (const __m256i *)(const void *)(prep + 8 * sizeof(float));
        float out[8], token_scale[8];
        __m256i sum[8];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < 8; i++)
            sum[i] = _mm256_setzero_si256();
        for (uint32_t j = 0; j < width; j += 32, q += 2 * rows) {
            __m256i x[8][2];
#pragma GCC unroll 8
            for (uint32_t i = 0; i < tokens; i++)
                widen(x[i], level + (size_t)(t + i) * width + j);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < rows; r++) {
                const __m256i a = _mm256_loadu_si256(q + 2 * r);
                const __m256i b = _mm256_loadu_si256(q + 2 * r + 1);
#pragma GCC unroll 8
                for (uint32_t i = 0; i < tokens; i++) {
                    __m256i *to = &sum[r * tokens + i];
                    *to = _mm256_add_epi32(*to, _mm256_madd_epi16(x[i][0], a));
                    *to = _mm256_add_epi32(*to, _mm256_madd_epi16(x[i][1], b));
                }
            }
        }
        for (uint32_t i = 0; i < 8; i++)
            token_scale[i] = scale[t + i % tokens];
        __m256 f = _mm256_mul_ps(reduce8(sum), _mm256_loadu_ps(per_row));
        _mm256_storeu_ps(out, _mm256_mul_ps(f, _mm256_loadu_ps(token_scale)));
        for (uint32_t r = 0; r < real; r++)
            memcpy(s + r * TQ_TILE + t, out + r * tokens, tokens * sizeof(float));
    }
}

/* Scales of tokens t .. t + 7 as f32; those from n on repeat the last. */
static void load_scales(float scale[STEP], const uint8_t *plane, size_t stride, uint32_t n)
{
    uint16_t h[STEP];
    for (uint32_t i = 0; i < STEP; i++)
        memcpy(&h[i], plane + (i < n ? i : n - 1) * stride, sizeof h[i]);
    _mm256_storeu_ps(scale, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)h)));
}

/* Levels of m tokens from t on. */
static void take_levels(int8_t *level, size_t width, const tq_codec *k,
                        const tq_trellis_tables *tables, tq_const_planes keys, uint32_t t,
                        uint32_t m)
{
    const uint8_t *codes = keys.codes + t * keys.codes_stride;

    if (is_trellis(k))
        tq_avx2_trellis_levels(level, width, codes, keys.codes_stride, tables, k->bits, k->dim, m);
    else
        tq_avx2_norm_levels(k, level, width, codes, keys.codes_stride, m);
}

void tq_avx2_score_norm(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                        tq_const_planes keys, uint32_t n)
{
    int8_t level[STEP * DIM_MAX + SPARE];
    const uint32_t width = padded(k->dim);
    tq_trellis_tables tables;

    if (k->zero_bytes) {
        tq_avx2_score_decoded(k, s, prep, n_rows, keys, n);
        return;
    }
    if (is_trellis(k))
        tables = tq_avx2_trellis_tables(tq_trellis_get(k->bits));
    memset(level, 0, STEP * width); /* rows beyond the last token are scored too */
    tq_walk ahead = tq_walk_begin(keys, n / STEP);
    for (uint32_t t = 0; t < n; t += STEP) {
        const uint32_t m = n - t < STEP ? n - t : STEP;
        const uint8_t *q = prep;
        float scale[STEP], *dst = s + t;

        tq_walk_on(&ahead);
        take_levels(level, width, k, &tables, keys, t, m);
        load_scales(scale, keys.scale + t * keys.scale_stride, keys.scale_stride, m);
        for (uint32_t left = n_rows; left > 0;) {
            const uint32_t rows = block_rows(left), real = rows < left ? rows : left;
            if (rows == 4)
                score_block(dst, q, level, width, scale, 4, real);
            else if (rows == 2)
                score_block(dst, q, level, width, scale, 2, 2);
            else
                score_block(dst, q, level, width, scale, 1, 1);
            q += block_bytes(rows, k->dim);
            dst += real * TQ_TILE;
            left -= real;
        }
    }
}
