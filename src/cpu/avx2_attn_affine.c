/* SPDX-License-Identifier: MIT */
/* avx2_attn_affine.c — affine keys, and keys of uniform groups, against prepared queries, for AVX2.
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

enum {
    LANES = 8,
    SETS = 2,
    STEP = SETS * LANES, /* tokens that are scored together */
    PAIRS = 16,
    MAX_WORDS = 20,
    MAX_GROUPS = 1024 / 32,
    ROWS = 4
};

/* ---- Preparation ----------------------------------------------------------------------- */

/* A group of a query: kernels.h says how it is rounded. Rows of a group follow each other:
 * [n_groups][n_rows]. */
typedef struct prepared {
    int16_t q[2 * PAIRS];
    float scale, sum; /* of the integers, and their sum times it */
} prepared;

/* Integers of a group in the order of its pairs. */
TQ_INLINE void put_in_pairs(int16_t *dst, __m256i a, __m256i b, const uint32_t bits)
{
    __m256i x = a, y = b;
    if (bits == 8) { /* dword of 4 codes: (0, 2), (1, 3) */
        x = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(a, 0xd8), 0xd8);
        y = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(b, 0xd8), 0xd8);
    } else if (bits == 4) { /* dword of 8 codes: (0, 4), (1, 5) ... */
        x = _mm256_unpacklo_epi16(a, _mm256_srli_si256(a, 8));
        y = _mm256_unpacklo_epi16(b, _mm256_srli_si256(b, 8));
    } else if (bits == 2) { /* dword of 16 codes: (0, 8), (1, 9) ... */
        const __m256i low = _mm256_permute4x64_epi64(a, 0xd8);
        const __m256i high = _mm256_permute4x64_epi64(b, 0xd8);
        x = _mm256_unpacklo_epi16(low, _mm256_srli_si256(low, 8));
        y = _mm256_unpacklo_epi16(high, _mm256_srli_si256(high, 8));
    } else { /* (0, 16), (1, 17) ... */
        const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
        x = _mm256_permute2x128_si256(low, high, 0x20);
        y = _mm256_permute2x128_si256(low, high, 0x31);
    }
    _mm256_storeu_si256((__m256i *)(void *)dst, x);
    _mm256_storeu_si256((__m256i *)(void *)(dst + 16), y);
}

/* Of n elements, a multiple of 8; zeros fill it up, whatever codes they meet. */
TQ_INLINE void prep_group(prepared *p, const float *q, const uint32_t n, const uint32_t bits)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 x[4], max = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = 8 * i < n ? _mm256_loadu_ps(q + 8 * i) : _mm256_setzero_ps();
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
    __m256i v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
    put_in_pairs(p->q, _mm256_permute4x64_epi64(_mm256_packs_epi32(v[0], v[1]), 0xd8),
                 _mm256_permute4x64_epi64(_mm256_packs_epi32(v[2], v[3]), 0xd8), bits);
    const __m256i four =
        _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
    __m128i sum4 = _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    sum4 = _mm_add_epi32(sum4, _mm_shuffle_epi32(sum4, 0x4e));
    const int32_t sum = _mm_cvtsi128_si32(_mm_add_epi32(sum4, _mm_shuffle_epi32(sum4, 0xb1)));
    p->scale = top / 32767.0f;
    p->sum = p->scale * (float)sum;
}

TQ_INLINE void prep(const tq_codec *k, void *dst, const float *q, uint32_t n_rows,
                    const uint32_t bits)
{
    prepared *p = dst;
    for (uint32_t j = 0; j < k->dim; j += 32)
        for (uint32_t r = 0; r < n_rows; r++, p++) {
            const float *x = q + (size_t)r * k->dim + j;
            if (k->dim - j >= 32)
                prep_group(p, x, 32, bits);
            else
                prep_group(p, x, k->dim - j, bits);
        }
}

/* ---- Tokens to lanes ------------------------------------------------------------------- */

/* Dwords 0 .. words-1 of 8 rows, words >= 4: dword i of all rows in out[i]. */
TQ_INLINE void turn(__m256i *out, const uint8_t *row, size_t stride, const uint32_t words)
{
    const uint8_t *row4 = row + 4 * stride;
    for (uint32_t w = 0; w < words; w += 4) {
        const uint32_t at = w + 4 <= words ? w : words - 4; /* the last four may overlap */
        __m256i z[4];
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            const __m128i *a = (const __m128i *)(const void *)(row + i * stride + (size_t)at * 4);
            const __m128i *b = (const __m128i *)(const void *)(row4 + i * stride + (size_t)at * 4);
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
    const __m256i x = words[i / 2];
    return i % 2 ? _mm256_srai_epi16(x, 8) : _mm256_maddubs_epi16(_mm256_set1_epi16(1), x);
}

TQ_INLINE __m256i pair_uniform8(const __m256i *words, const int i)
{
    __m256i x = words[i / 2];
    return i % 2 ? _mm256_srli_epi16(x, 8) : _mm256_and_si256(x, _mm256_set1_epi16(255));
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

/* Dwords of one or more groups of a step's tokens, and the numbers of one of them. */
typedef struct step_words {
    __m256i set[SETS][MAX_WORDS];
} step_words;

/* 2 * pairs elements of a step against `rows` rows: s += scale * (q.scale * dot + q.sum * zero), or
 * for uniform groups scale * q.scale * dot + q.sum * zero. A pair of the query is loaded once for
 * all tokens of the step. */
TQ_INLINE void score_rows(float *s, const prepared *q, const step_words *words, uint32_t at,
                          const float *scale, const float *zero, int first, pair_fn *pair,
                          const int pairs, const int is_uniform, const uint32_t rows)
{
    /* Else gcc expands all pairs once for all blocks of rows, and stores them. */
    __asm__("" : "+r"(words));
    __m256i dot[ROWS][SETS];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (int i = 0; i < SETS; i++)
            dot[r][i] = _mm256_setzero_si256();
    TQ_UNROLL_FOR (int p = 0; p < pairs; p++) {
        __m256i x[SETS];
        TQ_UNROLL_FOR (int i = 0; i < SETS; i++)
            x[i] = tq_keep(pair(words->set[i] + at, p));
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            int32_t both;
            memcpy(&both, q[r].q + 2 * p, sizeof both);
            const __m256i y = tq_keep(_mm256_set1_epi32(both));
            TQ_UNROLL_FOR (int i = 0; i < SETS; i++)
                dot[r][i] = tq_add_i32(dot[r][i], _mm256_madd_epi16(x[i], y));
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 q_sum = _mm256_set1_ps(q[r].sum), q_scale = _mm256_set1_ps(q[r].scale);
        TQ_UNROLL_FOR (int i = 0; i < SETS; i++) {
            float *dst = s + r * TQ_TILE + i * LANES;
            const __m256 step = _mm256_loadu_ps(scale + i * LANES);
            const __m256 d = _mm256_cvtepi32_ps(dot[r][i]);
            const __m256 old = first ? _mm256_setzero_ps() : _mm256_loadu_ps(dst);
            const __m256 x = _mm256_mul_ps(q_sum, _mm256_loadu_ps(zero + i * LANES));
            _mm256_storeu_ps(
                dst, is_uniform
                         ? _mm256_fmadd_ps(_mm256_mul_ps(q_scale, d), step, _mm256_add_ps(x, old))
                         : _mm256_fmadd_ps(_mm256_fmadd_ps(q_scale, d, x), step, old));
        }
    }
}

TQ_INLINE void score_group(float *s, const prepared *q, uint32_t n_rows, const step_words *words,
                           uint32_t at, const float *scale, const float *zero, int first,
                           pair_fn *pair, const int pairs, const int is_uniform)
{
    for (; n_rows >= ROWS; n_rows -= ROWS, q += ROWS, s += ROWS * TQ_TILE)
        score_rows(s, q, words, at, scale, zero, first, pair, pairs, is_uniform, ROWS);
    if (n_rows == 3)
        score_rows(s, q, words, at, scale, zero, first, pair, pairs, is_uniform, 3);
    else if (n_rows == 2)
        score_rows(s, q, words, at, scale, zero, first, pair, pairs, is_uniform, 2);
    else if (n_rows == 1)
        score_rows(s, q, words, at, scale, zero, first, pair, pairs, is_uniform, 1);
}

/* What score goes through: blocks of 32 elements, their dwords in a row of codes. */
typedef struct score_blocks {
    float *s;
    const prepared *q;
    uint32_t n_rows, group;    /* elements of a scale */
    const float *scale, *zero; /* [n_groups][STEP] of the step */
    tq_walk *ahead;
} score_blocks;

/* Blocks g .. g + n - 1 of a step. Loads n * bits dwords a token from row on, half of them for half
 * the pairs, but at least 4. */
TQ_INLINE void score_some(const score_blocks *b, uint32_t g, uint32_t n, const uint8_t *row,
                          size_t stride, pair_fn *pair, const int pairs, const int is_uniform,
                          const uint32_t bits)
{
    const uint32_t used = n * bits * (uint32_t)pairs / PAIRS, dwords = used < 4 ? 4 : used;
    step_words words;
    for (uint32_t i = 0; i < SETS; i++)
        turn(words.set[i], row + i * LANES * stride, stride, dwords);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = (g + i) * 32 / b->group * STEP;
        tq_walk_on(b->ahead);
        score_group(b->s, b->q + (size_t)(g + i) * b->n_rows, b->n_rows, &words, i * bits,
                    b->scale + at, b->zero + at, g + i == 0, pair, pairs, is_uniform);
    }
}

TQ_INLINE void score(const tq_codec *k, float *s, const void *prep_q, uint32_t n_rows,
                     tq_const_planes keys, uint32_t n, pair_fn *pair, const int is_uniform,
                     const uint32_t bits)
{
    /* Loads take 4 dwords: groups that end with one, or as near as the registers allow. What is
     * left at the end of rows, two groups at most, is loaded from a copy. */
    const uint32_t at_once = bits == 2 ? 2 : bits == 5 ? 4 : 1;
    const uint32_t n_blocks = (k->dim + 31) / 32;
    const uint32_t in_place = bits == 2 ? k->dim / 64 * 2 : k->dim / 32;
    const size_t begin = (size_t)in_place * bits * 4;
    uint8_t ends[TQ_TILE * TQ_END_BYTES];
    tq_walk ahead = tq_walk_begin(keys, (n + STEP - 1) / STEP * n_blocks);
    if (in_place < n_blocks)
        tq_copy_ends(ends, keys.codes + begin, keys.codes_stride, k->code_bytes - begin,
                     (n + STEP - 1) / STEP * STEP, n);
    for (uint32_t t = 0; t < n; t += STEP) {
        float scale[MAX_GROUPS * STEP], zero[MAX_GROUPS * STEP];
        const score_blocks b = {s + t, prep_q, n_rows, k->group, scale, zero, &ahead};
        const uint8_t *row = keys.codes + t * keys.codes_stride;
        size_t stride = keys.codes_stride;
        uint8_t copy[STEP * MAX_GROUPS * 32];
        if (n - t < STEP) { /* tokens from n on repeat the last */
            for (uint32_t i = 0; i < STEP; i++) {
                const uint32_t from = i < n - t ? i : n - t - 1;
                memcpy(copy + i * k->code_bytes, row + from * stride, k->code_bytes);
            }
            row = copy, stride = k->code_bytes;
        }
        tq_load_columns(scale, STEP, keys.scale, keys.scale_stride, t, STEP, n, k->n_groups);
        tq_load_columns(zero, STEP, keys.zero, keys.zero_stride, t, STEP, n, k->n_groups);
        for (uint32_t g = 0; g < in_place; g += at_once, row += (size_t)at_once * bits * 4)
            score_some(&b, g, in_place - g < at_once ? in_place - g : at_once, row, stride, pair,
                       PAIRS, is_uniform, bits);
        if (in_place < n_blocks) {
            const uint8_t *end = ends + t * TQ_END_BYTES;
            /* The first half of a group is its first eight pairs, but for 5 bits. */
            if (bits != 5 && k->dim - in_place * 32 <= 16)
                score_some(&b, in_place, 1, end, TQ_END_BYTES, pair, PAIRS / 2, is_uniform, bits);
            else
                score_some(&b, in_place, n_blocks - in_place, end, TQ_END_BYTES, pair, PAIRS,
                           is_uniform, bits);
        }
    }
}

#define KERNELS(format, is_uniform, bits)                                                          \
    void tq_avx2_prep_##format(const tq_codec *k, void *dst, const float *q, uint32_t n_rows)      \
    {                                                                                              \
        prep(k, dst, q, n_rows, bits);                                                             \
    }                                                                                              \
    void tq_avx2_score_##format(const tq_codec *k, float *s, const void *prep_q, uint32_t n_rows,  \
                                tq_const_planes keys, uint32_t n)                                  \
    {                                                                                              \
        score(k, s, prep_q, n_rows, keys, n, pair_##format, is_uniform, bits);                     \
    }

KERNELS(k2, 0, 2)
KERNELS(k4, 0, 4)
KERNELS(k5, 0, 5)
KERNELS(k8, 0, 8)

TQ_INLINE __m256i pair_uniform4(const __m256i *words, const int i)
{
    return pair_k4(words, i);
}

KERNELS(uniform4, 1, 4)
KERNELS(uniform8, 1, 8)
