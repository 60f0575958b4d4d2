/* SPDX-License-Identifier: MIT */
/* avx2_attn_norm.c — scores on the integer levels of norm-codebook and trellis, for AVX2.
 *
 * Sixteen tokens at a time become level bytes with each token a lane (avx2_levels.c), so that a sum
 * of products is two registers for 16 tokens and no lanes are ever added up. The query is integers
 * with one scale per row, and a score an exact integer sum times three scales. A level byte is
 * level
 * + zero: a sum starts at -zero times the sum of the query's integers.
 *
 * Codes of up to 4 bits, whose levels stay below 62, meet int8 queries: vpmaddubsw needs no
 * widening and int16 holds sums of four products, two instructions for what otherwise takes four.
 * Others meet int16 queries; sums of 512 elements fit, 512 * 32767 * 128 < 2^31, and longer rows
 * are summed in two parts.
 *
 * With TQ_CODEC_MEAN the decoded rows are used instead.
 */
#include "cpu/avx2_attn.h"
#include "cpu/avx2_levels.h"
#include "codebook.h"

#include <float.h>
#include <math.h>

enum { PART = TQ_QUERY_PART };

/* ---- Preparation ----------------------------------------------------------------------- */

/* Integers of a rotated query [dim], fours of them 8 * rows bytes apart, 0 from dim on. Returns
 * their scale; start [parts][4]: where the sums start, 0 before. */
static float round_query(uint8_t *dst, int32_t *start, const float *q, uint32_t dim, uint32_t rows,
                         uint8_t zero)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 max8 = _mm256_setzero_ps(), bad = _mm256_setzero_ps();

    for (uint32_t j = 0; j < dim; j += 8) {
        const __m256 a = _mm256_and_ps(_mm256_loadu_ps(q + j), magnitude);
        max8 = _mm256_max_ps(a, max8);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ));
    }
    const float max = tq_hmax8(max8);
    const int finite = _mm256_testz_ps(bad, bad), usable = finite && max >= 0x1p-100f;
    const __m256 inverse = _mm256_set1_ps(usable ? 32767.0f / max : 0);
    for (uint32_t j = 0; usable && j < dim; j += 8, dst += 16 * (size_t)rows) {
        __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(q + j), inverse));
        v = _mm256_shuffle_epi32(v, 0xd8);
        __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm_storel_epi64((__m128i *)(void *)dst, h);
        _mm_storeh_pi((__m64 *)(void *)(dst + 8 * (size_t)rows), _mm_castsi128_ps(h));
        h = _mm_madd_epi16(h, _mm_set1_epi16((short)-zero));
        h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
        start[j / PART * 4] += _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
    }
    return usable ? max / 32767.0f : finite ? 0 : NAN;
}

/* The same for level bytes of at most 2 * zero, as int8: fours are 4 * rows bytes apart. Steps are
 * so large that int16 holds the products of elements 0, 1, 4, 5 and of 2, 3, 6, 7 of any eight. */
static float round_query8(uint8_t *dst, int32_t *start, const float *q, uint32_t dim, uint32_t rows,
                          uint8_t zero)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const float most = 32767.0f / (2 * (float)zero) - 2.01f; /* each of four rounds up by a half */
    __m256 max8 = _mm256_setzero_ps(), bad = _mm256_setzero_ps(), sums = _mm256_setzero_ps();
    __m256i total = _mm256_setzero_si256();

    for (uint32_t j = 0; j < dim; j += 8) {
        const __m256 a = _mm256_and_ps(_mm256_loadu_ps(q + j), magnitude);
        __m256 two = _mm256_add_ps(a, _mm256_permute2f128_ps(a, a, 1));
        max8 = _mm256_max_ps(a, max8);
        sums = _mm256_max_ps(_mm256_hadd_ps(two, two), sums);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ));
    }
    const float max = tq_hmax8(max8);
    const int finite = _mm256_testz_ps(bad, bad);
    if (!finite || !(max >= 0x1p-100f))
        return finite ? 0 : NAN;
    /* The largest is a whole number of steps, so that flat queries are exact. */
    const float step = max / floorf(fminf(127.0f, most * max / tq_hmax8(sums)));
    const __m256 inverse = _mm256_set1_ps(1 / step);
    for (uint32_t j = 0; j < dim; j += 8, dst += 8 * (size_t)rows) {
        const __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(q + j), inverse));
        __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        h = _mm_packs_epi16(h, h);
        const uint64_t eight = (uint64_t)_mm_cvtsi128_si64(h);
        memcpy(dst, &eight, 4);
        memcpy(dst + 4 * (size_t)rows, (const uint8_t *)&eight + 4, 4);
        total = _mm256_add_epi32(total, v);
    }
    int32_t lane[8], sum = 0;
    _mm256_storeu_si256((__m256i *)(void *)lane, total);
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    *start = -(int32_t)zero * sum;
    return step;
}

static float total_of(const float *q, uint32_t dim)
{
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t j = 0; j < dim; j += 8)
        sum = _mm256_add_ps(sum, _mm256_loadu_ps(q + j));
    return tq_hsum8(sum);
}

void tq_avx2_prep_norm(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    float turned[TQ_ROW_MAX];
    uint8_t *out = prep;
    tq_level_source source;

    tq_avx2_level_source(&source, k, 0);
    while (n_rows > 0) {
        const uint32_t rows = tq_query_rows(n_rows), real = rows < n_rows ? rows : n_rows;
        tq_query_head *head = (tq_query_head *)(void *)out;
        memset(out, 0, tq_query_bytes(rows, k->dim));
        for (uint32_t r = 0; r < real; r++) {
            memcpy(turned, q + (size_t)r * k->dim, k->dim * sizeof(float));
            head->total[r] = total_of(turned, k->dim);
            k->kernels->codec->rotate(turned, k->dim);
            uint8_t *dst = out + sizeof *head;
            int32_t *start = &head->start[0][r];
            float scale;
            if (source.small)
                scale = round_query8(dst + 4 * r, start, turned, k->dim, rows, source.zero);
            else
                scale = round_query(dst + 8 * r, start, turned, k->dim, rows, source.zero);
            head->scale[r] = source.unit * scale;
        }
        out += tq_query_bytes(rows, k->dim);
        q += (size_t)real * k->dim;
        n_rows -= real;
    }
}

/* ---- Score ----------------------------------------------------------------------------- */

/* sum += products of 16 tokens, four elements each, in x, with one row's in q. */
TQ_INLINE void multiply(__m256i sum[2], const __m256i even[2], const __m256i odd[2],
                        const uint8_t *q)
{
    const __m256i a = _mm256_set1_epi32((int)tq_load_u32(q));
    sum[0] = tq_add_i32(sum[0], _mm256_madd_epi16(even[0], a));
    sum[1] = tq_add_i32(sum[1], _mm256_madd_epi16(even[1], a));
    const __m256i b = _mm256_set1_epi32((int)tq_load_u32(q + 4));
    sum[0] = tq_add_i32(sum[0], _mm256_madd_epi16(odd[0], b));
    sum[1] = tq_add_i32(sum[1], _mm256_madd_epi16(odd[1], b));
}

/* s[r][0 .. 15] of `real` of `rows` rows = the sums times their scales, or that added. */
TQ_INLINE void finish(float *s, const tq_query_head *head, __m256i sum[4][2], const float *scale,
                      int add, const uint32_t rows, uint32_t real)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        if (r >= real)
            continue;
        const __m256 by = _mm256_set1_ps(head->scale[r]);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
            float *dst = s + r * TQ_TILE + 8 * i;
            const __m256 by8 = _mm256_mul_ps(by, _mm256_loadu_ps(scale + 8 * i));
            __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][i]), by8);
            if (add)
                x = _mm256_add_ps(x, _mm256_loadu_ps(dst));
            _mm256_storeu_ps(dst, x);
        }
    }
}

/* s[r][0 .. 15] of `real` of `rows` rows. level: turned; scale [16] of the tokens. */
TQ_INLINE void score_block(float *s, const uint8_t *prep, const uint8_t *level, uint32_t width,
                           const float *scale, tq_walk *ahead, const uint32_t rows, uint32_t real)
{
    const tq_query_head *head = (const tq_query_head *)(const void *)prep;
    const uint8_t *q = prep + sizeof *head;
    const __m256i low = _mm256_set1_epi16(255);

    for (uint32_t part = 0; part * PART < width; part++) {
        const uint32_t left = width - part * PART, n = left < PART ? left : PART;
        __m256i sum[4][2];
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = _mm256_set1_epi32(head->start[part][r]);
        for (uint32_t j = 0; j < n; j += 4, level += 64, q += 8 * rows) {
            const __m256i *x = (const __m256i *)(const void *)level;
            const __m256i x0 = _mm256_loadu_si256(x), x1 = _mm256_loadu_si256(x + 1);
            if (j % 32 == 0)
                tq_walk_on(ahead);
            const __m256i even[2] = {_mm256_and_si256(x0, low), _mm256_and_si256(x1, low)};
            const __m256i odd[2] = {_mm256_srli_epi16(x0, 8), _mm256_srli_epi16(x1, 8)};
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                multiply(sum[r], even, odd, q + 8 * r);
        }
        finish(s, head, sum, scale, part > 0, rows, real);
    }
}

/* The same for small level bytes, against int8 queries. */
TQ_INLINE void score_small(float *s, const uint8_t *prep, const uint8_t *level, uint32_t width,
                           const float *scale, const uint32_t rows, uint32_t real)
{
    const tq_query_head *head = (const tq_query_head *)(const void *)prep;
    const uint8_t *q = prep + sizeof *head;
    __m256i sum[4][2];

    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_set1_epi32(head->start[0][r]);
    for (uint32_t j = 0; j < width; j += 8, level += 128, q += 8 * rows) {
        const __m256i *x = (const __m256i *)(const void *)level;
        const __m256i x0 = _mm256_loadu_si256(x), x1 = _mm256_loadu_si256(x + 1);
        const __m256i y0 = _mm256_loadu_si256(x + 2), y1 = _mm256_loadu_si256(x + 3);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const __m256i a = _mm256_set1_epi32((int)tq_load_u32(q + 4 * r));
            const __m256i b = _mm256_set1_epi32((int)tq_load_u32(q + 4 * (rows + r)));
            const __m256i m0 =
                _mm256_add_epi16(_mm256_maddubs_epi16(x0, a), _mm256_maddubs_epi16(y0, b));
            const __m256i m1 =
                _mm256_add_epi16(_mm256_maddubs_epi16(x1, a), _mm256_maddubs_epi16(y1, b));
            sum[r][0] = tq_add_i32(sum[r][0], tq_add_pairs(m0));
            sum[r][1] = tq_add_i32(sum[r][1], tq_add_pairs(m1));
        }
    }
    finish(s, head, sum, scale, 0, rows, real);
}

void tq_avx2_add_key_means(float *s, const void *prep, uint32_t dim, uint32_t n_rows,
                           tq_const_planes keys, uint32_t n)
{
    const uint8_t *q = prep;
    float mean[TQ_TILE];

    tq_avx2_token_scales(mean, keys.zero, keys.zero_stride, 0, n);
    while (n_rows > 0) {
        const uint32_t rows = tq_query_rows(n_rows), real = rows < n_rows ? rows : n_rows;
        const tq_query_head *head = (const tq_query_head *)(const void *)q;
        for (uint32_t r = 0; r < real; r++, s += TQ_TILE) {
            const __m256 total = _mm256_set1_ps(head->total[r]);
            for (uint32_t t = 0; t < n; t += 8)
                _mm256_storeu_ps(s + t, _mm256_fmadd_ps(total, _mm256_loadu_ps(mean + t),
                                                        _mm256_loadu_ps(s + t)));
        }
        q += tq_query_bytes(rows, dim);
        n_rows -= real;
    }
}

void tq_avx2_score_norm(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                        tq_const_planes keys, uint32_t n)
{
    uint8_t level[TQ_TURNED_TOKENS * TQ_ROW_MAX] __attribute__((aligned(32)));
    const uint32_t width = TQ_LEVEL_WIDTH(k->dim);
    tq_level_source source;

    tq_avx2_level_source(&source, k, 0);
    tq_avx2_take_planes(&source);
    const uint32_t of_block = source.small ? 0 : (width + 31) / 32;
    tq_walk ahead =
        tq_walk_scales_first(keys, tq_turned_steps(&source, n) + (n + 15) / 16 * of_block);
    for (uint32_t t = 0; t < n; t += TQ_TURNED_TOKENS) {
        const uint32_t m = n - t < TQ_TURNED_TOKENS ? n - t : TQ_TURNED_TOKENS;
        const uint8_t *q = prep;
        float scale[TQ_TURNED_TOKENS] = {0}, *dst = s + t;

        tq_avx2_turned_levels(level, &source, tq_rows_from(&keys, t), m, &ahead);
        tq_avx2_token_scales(scale, keys.scale, keys.scale_stride, t, m);
        for (uint32_t left = n_rows; left > 0;) {
            const uint32_t rows = tq_query_rows(left), real = rows < left ? rows : left;
#define CALL(n_of_rows, real_rows)                                                                 \
    do {                                                                                           \
        if (source.small)                                                                          \
            score_small(dst, q, level, width, scale, n_of_rows, real_rows);                        \
        else                                                                                       \
            score_block(dst, q, level, width, scale, &ahead, n_of_rows, real_rows);                \
    } while (0)
            if (rows == 4)
                CALL(4, real);
            else if (rows == 2)
                CALL(2, 2);
            else
                CALL(1, 1);
#undef CALL
            q += tq_query_bytes(rows, k->dim);
            dst += real * TQ_TILE;
            left -= real;
        }
    }
    if (k->zero_bytes)
        tq_avx2_add_key_means(s, prep, k->dim, n_rows, keys, n);
}
