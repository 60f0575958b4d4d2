/* SPDX-License-Identifier: MIT */
/* avx2_attn_affine.c — affine keys against prepared queries, for AVX2.
 *
 * The codes of 8 tokens are turned, four bytes at a time, so that each token is a lane. A sum of
 * products is then one register for 8 tokens and no lanes are ever added up (which costs about as
 * much as the products); scales and zero points are vectors over tokens too.
 *
 * The 32 codes of a group make 16 PAIRS: registers with two int16 codes of a token in each lane,
 * in whatever order is cheapest for the width; preparation puts the query in the same order. A sum
 * of 32 products is below 2^28 and exact.
 */
#include "cpu/avx2_attn.h"

#include <float.h>
#include <math.h>

enum { LANES = 8, PAIRS = 16, MAX_WORDS = 20, MAX_GROUPS = 1024 / 32, ROWS = 4 };

/* ---- Preparation ----------------------------------------------------------------------- */

/* A group of a query: kernels.h says how it is rounded. Rows of a group follow each other:
 * [n_groups][n_rows]. */
typedef struct prepared {
    int16_t q[2 * PAIRS];
    float scale, sum; /* of the integers, and their sum times it */
} prepared;

/* Place of element i of a group among its pairs. */
TQ_INLINE uint32_t place(const uint32_t bits, uint32_t i)
{
    switch (bits) {
    case 2: /* dword of 16 codes: (0, 8), (1, 9) ... */
        return i / 16 * 16 + i % 8 * 2 + i / 8 % 2;
    case 4: /* dword of 8 codes: (0, 4), (1, 5) ... */
        return i / 8 * 8 + i % 4 * 2 + i / 4 % 2;
    case 5: /* (0, 16), (1, 17) ... */
        return i % 16 * 2 + i / 16;
    default: /* dword of 4 codes: (0, 2), (1, 3) */
        return i / 4 * 4 + i % 2 * 2 + i / 2 % 2;
    }
}

TQ_INLINE void prep_group(prepared *p, const float *q, const uint32_t bits)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 x[4], max = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_loadu_ps(q + 8 * i);
        __m256 a = _mm256_and_ps(x[i], magnitude);
        max = _mm256_max_ps(a, max);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ));
    }
    const float top = tq_hmax8(max);
    const int finite = _mm256_testz_ps(bad, bad);
    if (!finite || !(top >= 0x1p-100f)) {
        memset(p, 0, sizeof *p);
        p->scale = p->sum = finite ? 0 : NAN;
        return;
    }
    const __m256 inverse = _mm256_set1_ps(32767.0f / top);
    int32_t n[32];
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        _mm256_storeu_si256((__m256i *)(void *)(n + 8 * i),
                            _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse)));
    for (uint32_t i = 0; i < 32; i++) {
        p->q[place(bits, i)] = (int16_t)n[i];
        sum += n[i];
    }
    p->scale = top / 32767.0f;
    p->sum = p->scale * (float)sum;
}

TQ_INLINE void prep(const tq_codec *k, void *dst, const float *q, uint32_t n_rows,
                    const uint32_t bits)
{
    prepared *p = dst;
    for (uint32_t g = 0; g < k->n_groups; g++)
        for (uint32_t r = 0; r < n_rows; r++, p++)
            prep_group(p, q + (size_t)r * k->dim + (size_t)g * 32, bits);
}

/* ---- Tokens to lanes ------------------------------------------------------------------- */

/* Dwords 0 .. words-1 of 8 rows, words >= 4: dword i of all rows in out[i]. */
TQ_INLINE void turn(__m256i *out, const uint8_t *const row[LANES], const uint32_t words)
{
    for (uint32_t w = 0; w < words; w += 4) {
        const uint32_t at = w + 4 <= words ? w : words - 4; /* the last four may overlap */
        __m256i z[4];
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            const __m128i *a = (const __m128i *)(const void *)(row[i] + (size_t)at * 4);
            const __m128i *b = (const __m128i *)(const void *)(row[i + 4] + (size_t)at * 4);
            z[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)),
                                           _mm_loadu_si128(b), 1);
        }
        __m256i a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpacklo_epi32(z[2], z[3]);
        out[at] = _mm256_unpacklo_epi64(a, b);
        out[at + 1] = _mm256_unpackhi_epi64(a, b);
        a = _mm256_unpackhi_epi32(z[0], z[1]), b = _mm256_unpackhi_epi32(z[2], z[3]);
        out[at + 2] = _mm256_unpacklo_epi64(a, b);
        out[at + 3] = _mm256_unpackhi_epi64(a, b);
    }
}

/* Pair i of a group from its dwords; i is a constant where it is called. */
typedef __m256i pair_fn(const __m256i *words, const int i);

TQ_INLINE __m256i pair_k8(const __m256i *words, const int i)
{
    __m256i x = words[i / 2];
    return _mm256_srai_epi16(i % 2 ? x : _mm256_slli_epi16(x, 8), 8);
}

TQ_INLINE __m256i pair_k4(const __m256i *words, const int i)
{
    __m256i x = _mm256_srli_epi16(words[i / 4], i % 4 * 4);
    return i % 4 == 3 ? x : _mm256_and_si256(x, _mm256_set1_epi16(15));
}

TQ_INLINE __m256i pair_k2(const __m256i *words, const int i)
{
    __m256i x = _mm256_srli_epi16(words[i / 8], i % 8 * 2);
    return i % 8 == 7 ? x : _mm256_and_si256(x, _mm256_set1_epi16(3));
}

/* Code i is at bit 5i, code i + 16 another 64 + 16 bits on: two dwords further it is where the
 * upper half of the pair wants it. Either may straddle two dwords. */
TQ_INLINE __m256i pair_k5(const __m256i *words, const int i)
{
    const int w = i * 5 / 32, down = i * 5 % 32;
    __m256i low = _mm256_srli_epi32(words[w], down), high;
    if (down > 27)
        low = _mm256_or_si256(low, _mm256_slli_epi32(words[w + 1], 32 - down));
    if (down < 16)
        high = _mm256_srli_epi32(words[w + 2], down);
    else
        high = _mm256_slli_epi32(words[w + 3], 32 - down);
    if (down > 11 && down < 16)
        high = _mm256_or_si256(high, _mm256_slli_epi32(words[w + 3], 32 - down));
    return _mm256_and_si256(_mm256_blend_epi16(low, high, 0xaa), _mm256_set1_epi16(31));
}

/* ---- Score ----------------------------------------------------------------------------- */

/* One group of 8 tokens against `rows` rows: s += scale * (q.scale * dot + q.sum * zero). */
TQ_INLINE void score_rows(float *s, const prepared *q, const __m256i *words, __m256 scale,
                          __m256 zero, int first, pair_fn *pair, const uint32_t rows)
{
    __m256i dot[ROWS];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        dot[r] = _mm256_setzero_si256();
    TQ_UNROLL_FOR (int i = 0; i < PAIRS; i++) {
        const __m256i x = pair(words, i);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            int32_t y;
            memcpy(&y, q[r].q + 2 * i, sizeof y);
            dot[r] = tq_add_i32(dot[r], _mm256_madd_epi16(x, _mm256_set1_epi32(y)));
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        __m256 x = _mm256_mul_ps(_mm256_set1_ps(q[r].sum), zero);
        x = _mm256_fmadd_ps(_mm256_set1_ps(q[r].scale), _mm256_cvtepi32_ps(dot[r]), x);
        __m256 old = first ? _mm256_setzero_ps() : _mm256_loadu_ps(s + r * TQ_TILE);
        _mm256_storeu_ps(s + r * TQ_TILE, _mm256_fmadd_ps(scale, x, old));
    }
}

TQ_INLINE void score_group(float *s, const prepared *q, uint32_t n_rows, const __m256i *words,
                           const float *scale, const float *zero, int first, pair_fn *pair)
{
    const __m256 s8 = _mm256_loadu_ps(scale), z8 = _mm256_loadu_ps(zero);
    for (; n_rows >= ROWS; n_rows -= ROWS, q += ROWS, s += ROWS * TQ_TILE)
        score_rows(s, q, words, s8, z8, first, pair, ROWS);
    if (n_rows == 3)
        score_rows(s, q, words, s8, z8, first, pair, 3);
    else if (n_rows == 2)
        score_rows(s, q, words, s8, z8, first, pair, 2);
    else if (n_rows == 1)
        score_rows(s, q, words, s8, z8, first, pair, 1);
}

TQ_INLINE void score(const tq_codec *k, float *s, const void *prep_q, uint32_t n_rows,
                     tq_const_planes keys, uint32_t n, pair_fn *pair, const uint32_t bits)
{
    /* Loads take 4 dwords: groups that end with one, or as near as the registers allow. */
    const uint32_t at_once = bits == 2 ? 2 : bits == 5 ? 4 : 1;
    const uint32_t n_groups = k->n_groups;
    tq_walk ahead = tq_walk_begin(keys, n / LANES);
    for (uint32_t t = 0; t < n; t += LANES) {
        const uint32_t left = n - t < LANES ? n - t : LANES;
        const uint8_t *row[LANES];
        float scale[MAX_GROUPS * LANES], zero[MAX_GROUPS * LANES];
        tq_walk_on(&ahead);
        for (uint32_t i = 0; i < LANES; i++)
            row[i] = keys.codes + (t + (i < left ? i : left - 1)) * keys.codes_stride;
        for (uint32_t g = 0; g < n_groups; g += 4) {
            tq_transpose_f16(scale + g * LANES, LANES, keys.scale + t * keys.scale_stride + 2 * g,
                             keys.scale_stride, left, n_groups - g);
            tq_transpose_f16(zero + g * LANES, LANES, keys.zero + t * keys.zero_stride + 2 * g,
                             keys.zero_stride, left, n_groups - g);
        }
        for (uint32_t g = 0; g < n_groups; g += at_once) {
            const uint32_t groups = n_groups - g < at_once ? n_groups - g : at_once;
            __m256i words[MAX_WORDS];
            turn(words, row, groups * bits);
            for (uint32_t i = 0; i < groups; i++)
                score_group(s + t, (const prepared *)prep_q + (size_t)(g + i) * n_rows, n_rows,
                            words + i * bits, scale + (g + i) * LANES, zero + (g + i) * LANES,
                            g + i == 0, pair);
            for (uint32_t i = 0; i < LANES; i++)
                row[i] += groups * bits * 4;
        }
    }
}

#define AFFINE_KERNELS(bits)                                                                       \
    void tq_avx2_prep_k##bits(const tq_codec *k, void *dst, const float *q, uint32_t n_rows)       \
    {                                                                                              \
        prep(k, dst, q, n_rows, bits);                                                             \
    }                                                                                              \
    void tq_avx2_score_k##bits(const tq_codec *k, float *s, const void *prep_q, uint32_t n_rows,   \
                               tq_const_planes keys, uint32_t n)                                   \
    {                                                                                              \
        score(k, s, prep_q, n_rows, keys, n, pair_k##bits, bits);                                  \
    }

AFFINE_KERNELS(2)
AFFINE_KERNELS(4)
AFFINE_KERNELS(5)
AFFINE_KERNELS(8)
