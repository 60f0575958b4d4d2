/* SPDX-License-Identifier: MIT */
/* avx512_attn_levels.c — scores and weighted sums on the integer levels of norm-codebook and
 * trellis, for AVX-512. What AVX2 does (avx2_attn_norm.c, avx2_attn_levels.c) in vectors twice as
 * wide, with one instruction for two products and their sums where VNNI is there.
 *
 * Sixteen sums at a time, of 1, 2 or 4 rows by 16, 8 or 4 tokens, stay in registers and are added
 * across lanes together: 30 shuffles for 16 results. A lane sums at most 1024 / 16 products of
 * 32767 * 127; the last addition, where 1024 of them would leave int32, is done in f32.
 */
#include "codebook.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_trellis.h"
#include "cpu/avx512_attn.h"
#include "f16.h"
#include "rotate.h"

#include <float.h>

enum { STEP = 16, PAD = 32, LEVEL_BYTES = 16384, SPARE = 64 };

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

/* Where the levels of a codec's rows come from. */
typedef struct level_source {
    const tq_codec *codec;
    int trellis;
    tq_trellis_tables tables;
} level_source;

static level_source level_source_of(const tq_codec *c)
{
    level_source s = {.codec = c, .trellis = is_trellis(c)};
    if (s.trellis)
        s.tables = tq_avx2_trellis_tables(tq_trellis_get(c->bits), 0);
    return s;
}

/* Levels of m tokens from t on. */
static void take_levels(int8_t *level, size_t stride, const level_source *from,
                        tq_const_planes rows, uint32_t t, uint32_t m)
{
    const tq_codec *c = from->codec;
    const uint8_t *codes = rows.codes + t * rows.codes_stride;

    if (from->trellis)
        tq_avx2_trellis_levels(level, stride, codes, rows.codes_stride, &from->tables, c->bits,
                               c->dim, m);
    else
        tq_avx2_norm_levels(c, level, stride, codes, rows.codes_stride, m, 0);
}

/* Scales of m tokens from t on as f32; the rest of 16 is 0. */
static __m512 load_scales(const uint8_t *plane, size_t stride, uint32_t t, uint32_t m)
{
    uint16_t h[STEP] = {0};
    for (uint32_t i = 0; i < m; i++)
        memcpy(&h[i], plane + (t + i) * stride, sizeof h[i]);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)h));
}

/* ---- Keys ------------------------------------------------------------------------------ */

TQ_INLINE __m512i dot2(__m512i acc, __m512i a, __m512i b)
{
#if TQ_HAVE_VNNI
    return _mm512_dpwssd_epi32(acc, a, b);
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
}

/* Rows of the next block when n are left: 3 are done as 4. */
TQ_INLINE uint32_t block_rows(uint32_t n)
{
    return n >= 3 ? 4 : n;
}

/* Prepared queries, per block of `rows`: f32 [16], the scale of the integers times the unit of the
 * codebook, one for each sum of a step; then per 32 elements int16 [rows][32]. */
static size_t block_bytes(uint32_t rows, uint32_t dim)
{
    return rows * (4 * sizeof(float) + (size_t)padded(dim) * sizeof(int16_t));
}

/* Integers of a rotated query [dim], 0 up to the next multiple of 32. Returns their scale. */
static float round_query(int16_t *dst, const float *q, uint32_t dim)
{
    __m512 top = _mm512_setzero_ps();
    __mmask16 wrong = 0;

    memset(dst, 0, padded(dim) * sizeof *dst);
    for (uint32_t j = 0; j < dim; j += 16) {
        const __mmask16 m = dim - j >= 16 ? 0xffff : 0xff;
        const __m512 a = _mm512_abs_ps(_mm512_maskz_loadu_ps(m, q + j));
        wrong |= _mm512_cmp_ps_mask(a, _mm512_set1_ps(FLT_MAX), _CMP_NLE_UQ);
        top = _mm512_max_ps(top, a);
    }
    const float max = _mm512_reduce_max_ps(top);
    if (wrong || !(max >= 0x1p-100f))
        return wrong ? NAN : 0;
    const float inverse = 32767.0f / max;
    for (uint32_t j = 0; j < dim; j += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(q + j), _mm256_set1_ps(inverse));
        const __m256i i = _mm256_cvtps_epi32(v);
        const __m128i h =
            _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
        _mm_storeu_si128((__m128i *)(void *)(dst + j), h);
    }
    return max / 32767.0f;
}

void TQ_CLUSTER(tq_avx512_prep_norm)(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    const float unit = unit_of(k);
    const uint32_t width = padded(k->dim);
    float turned[TQ_ROW_MAX];
    int16_t integers[TQ_ROW_MAX];
    uint8_t *out = prep;

    if (k->zero_bytes) {
        tq_avx2_prep_rotated(k, prep, q, n_rows);
        return;
    }
    while (n_rows > 0) {
        const uint32_t rows = block_rows(n_rows), real = rows < n_rows ? rows : n_rows;
        float *scale = (float *)(void *)out;
        int16_t *dst = (int16_t *)(void *)(out + rows * 4 * sizeof(float));
        for (uint32_t r = 0; r < rows; r++) {
            float s = 0;
            memset(integers, 0, width * sizeof *integers);
            if (r < real) {
                memcpy(turned, q + (size_t)r * k->dim, k->dim * sizeof(float));
                k->kernels->codec->rotate(turned, k->dim);
                s = round_query(integers, turned, k->dim) * unit;
            }
            scale[r] = s;
            for (uint32_t j = 0; j < width; j += 32)
                memcpy(dst + (size_t)j * rows + r * 32, integers + j, 32 * sizeof *dst);
        }
        out += block_bytes(rows, k->dim);
        q += (size_t)real * k->dim;
        n_rows -= real;
    }
}

/* Element i of the result is the sum of the lanes of a[i]. */
TQ_INLINE __m512 reduce16(const __m512i a[16])
{
    __m512i u[4], v[2];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i *b = a + 4 * i;
        const __m512i x =
            _mm512_add_epi32(_mm512_unpacklo_epi32(b[0], b[1]), _mm512_unpackhi_epi32(b[0], b[1]));
        const __m512i y =
            _mm512_add_epi32(_mm512_unpacklo_epi32(b[2], b[3]), _mm512_unpackhi_epi32(b[2], b[3]));
        u[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        v[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(u[2 * i], u[2 * i + 1], 0x88),
                                _mm512_shuffle_i32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_shuffle_i32x4(v[0], v[1], 0x88)),
                         _mm512_cvtepi32_ps(_mm512_shuffle_i32x4(v[0], v[1], 0xdd)));
}

/* Sixteen tokens against a block of rows. level [16][width], scale [16] of the tokens. */
TQ_INLINE void score_block(float *s, const uint8_t *prep, const int8_t *level, uint32_t width,
                           const float *scale, const uint32_t rows, uint32_t real)
{
    const uint32_t tokens = 16 / rows;
    const float *per_row = (const float *)(const void *)prep;

#pragma GCC unroll 1
    for (uint32_t t = 0; t < 16; t += tokens) {
        const uint8_t *q = prep + rows * 4 * sizeof(float);
        float out[16], both[16];
        __m512i sum[16];
#pragma GCC unroll 16
        for (uint32_t i = 0; i < 16; i++)
            sum[i] = _mm512_setzero_si512();
        for (uint32_t j = 0; j < width; j += 32, q += rows * 64) {
            __m512i y[4];
#pragma GCC unroll 4
            for (uint32_t r = 0; r < rows; r++)
                y[r] = _mm512_loadu_si512(q + 64 * r);
#pragma GCC unroll 16
            for (uint32_t i = 0; i < tokens; i++) {
                const int8_t *at = level + (size_t)(t + i) * width + j;
                const __m512i x =
                    _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)at));
#pragma GCC unroll 4
                for (uint32_t r = 0; r < rows; r++)
                    sum[r * tokens + i] = dot2(sum[r * tokens + i], x, y[r]);
            }
        }
        for (uint32_t i = 0; i < 16; i++)
            both[i] = per_row[i / tokens] * scale[t + i % tokens];
        _mm512_storeu_ps(out, _mm512_mul_ps(reduce16(sum), _mm512_loadu_ps(both)));
        for (uint32_t r = 0; r < real; r++)
            memcpy(s + r * TQ_TILE + t, out + r * tokens, tokens * sizeof(float));
    }
}

void TQ_CLUSTER(tq_avx512_score_norm)(const tq_codec *k, float *s, const void *prep,
                                      uint32_t n_rows, tq_const_planes keys, uint32_t n)
{
    int8_t level[STEP * TQ_ROW_MAX + SPARE];
    const uint32_t width = padded(k->dim);

    tq_look_ahead(keys);
    if (k->zero_bytes) {
        tq_avx2_score_decoded(k, s, prep, n_rows, keys, n);
        return;
    }
    const level_source from = level_source_of(k);
    if (n < STEP || width != k->dim)
        memset(level, 0, STEP * width); /* rows beyond the last token are scored too */
    for (uint32_t t = 0; t < n; t += STEP) {
        const uint32_t m = n - t < STEP ? n - t : STEP;
        const uint8_t *q = prep;
        float scale[STEP], *dst = s + t;

        take_levels(level, width, &from, keys, t, m);
        _mm512_storeu_ps(scale, load_scales(keys.scale, keys.scale_stride, t, m));
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

/* ---- Values ---------------------------------------------------------------------------- */

/* acc[r][0 .. 16 * vectors) = alpha[r] * that + sum of w[r][t] * level[t], the columns of mask
 * alone if there is one vector. w [rows][64]. */
TQ_INLINE void weigh_block(float *acc, size_t acc_stride, const float *w, const float *alpha,
                           const int8_t *level, size_t stride, uint32_t n, __mmask16 mask,
                           const uint32_t rows, const uint32_t vectors)
{
    __m512 sum[4][4];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t i = 0; i < vectors; i++)
            sum[r][i] = _mm512_setzero_ps();
    for (uint32_t t = 0; t < n; t++, level += stride) {
        __m512 x[4];
#pragma GCC unroll 4
        for (uint32_t i = 0; i < vectors; i++)
            x[i] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                _mm_loadu_si128((const __m128i *)(const void *)(level + 16 * i))));
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            const __m512 y = _mm512_set1_ps(w[r * TQ_TILE + t]);
#pragma GCC unroll 4
            for (uint32_t i = 0; i < vectors; i++)
                sum[r][i] = _mm512_fmadd_ps(y, x[i], sum[r][i]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        const __m512 y = _mm512_set1_ps(alpha[r]);
#pragma GCC unroll 4
        for (uint32_t i = 0; i < vectors; i++) {
            float *dst = acc + r * acc_stride + 16 * i;
            const __m512 old = _mm512_maskz_loadu_ps(mask, dst);
            _mm512_mask_storeu_ps(dst, mask, _mm512_fmadd_ps(y, old, sum[r][i]));
        }
    }
}

TQ_INLINE void weigh_rows(float *acc, size_t acc_stride, const float *w, const float *alpha,
                          const int8_t *level, size_t stride, uint32_t n, uint32_t dim,
                          const uint32_t rows)
{
    uint32_t j = 0;
    for (; j + 64 <= dim; j += 64)
        weigh_block(acc + j, acc_stride, w, alpha, level + j, stride, n, 0xffff, rows, 4);
    for (; j < dim; j += 16)
        weigh_block(acc + j, acc_stride, w, alpha, level + j, stride, n,
                    dim - j >= 16 ? 0xffff : 0xff, rows, 1);
}

/* Scales, and with option mean means, of the tokens that are summed together. */
typedef struct token_numbers {
    float scale[TQ_TILE], mean[TQ_TILE];
    float ones[TQ_ROW_MAX]; /* the rotation of equal elements */
} token_numbers;

/* Up to four rows. */
static void weigh_four(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                       const float *alpha, uint32_t rows, const int8_t *level,
                       const token_numbers *of, uint32_t n)
{
    const uint32_t dim = v->dim;
    const size_t stride = dim + PAD;
    float scaled[4 * TQ_TILE];

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t t = 0; t < n; t++)
            scaled[r * TQ_TILE + t] = w[r * TQ_TILE + t] * of->scale[t];
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
    for (uint32_t r = 0; v->zero_bytes && r < rows; r++) {
        float sum = 0;
        for (uint32_t t = 0; t < n; t++)
            sum += w[r * TQ_TILE + t] * of->mean[t];
        for (uint32_t j = 0; j < dim; j += 8) {
            float *dst = acc + r * acc_stride + j;
            _mm256_storeu_ps(dst,
                             _mm256_fmadd_ps(_mm256_set1_ps(sum), _mm256_loadu_ps(of->ones + j),
                                             _mm256_loadu_ps(dst)));
        }
    }
}

void TQ_CLUSTER(tq_avx512_weigh_norm)(const tq_codec *v, float *acc, size_t acc_stride,
                                      const float *w, const float *alpha, uint32_t n_rows,
                                      tq_const_planes values, uint32_t n)
{
    static const float one[4] = {1, 1, 1, 1};
    const float unit = unit_of(v);
    const uint32_t dim = v->dim;
    const uint32_t fit = LEVEL_BYTES / (dim + PAD), step = fit < TQ_TILE ? fit : TQ_TILE;
    const level_source from = level_source_of(v);
    int8_t level[LEVEL_BYTES + SPARE];
    token_numbers of;

    tq_look_ahead(values);
    for (uint32_t j = 0; v->zero_bytes && j < dim; j++)
        of.ones[j] = 1;
    if (v->zero_bytes)
        tq_rotate_f32(of.ones, dim);
    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;

        take_levels(level, dim + PAD, &from, values, t, m);
        for (uint32_t i = 0; i < m; i++) {
            const uint8_t *scale = values.scale + (t + i) * values.scale_stride;
            of.scale[i] = tq_f32_from_f16(tq_load_le16(scale)) * unit;
            if (v->zero_bytes)
                of.mean[i] =
                    tq_f32_from_f16(tq_load_le16(values.zero + (t + i) * values.zero_stride));
        }
        for (uint32_t r = 0; r < n_rows; r += 4) /* the old sum is scaled once */
            weigh_four(v, acc + r * acc_stride, acc_stride, w + (size_t)r * TQ_TILE + t,
                       t ? one : alpha + r, n_rows - r < 4 ? n_rows - r : 4, level, &of, m);
    }
}
