/* SPDX-License-Identifier: MIT */
/* avx512_attn_score.c — affine keys against prepared queries, for AVX-512.
 *
 * The one hard idea: the codes of 16 tokens are turned, four bytes at a time, so that each token is
 * a lane. A sum of products is then one register for 16 tokens, no lanes are ever added up, and
 * the query comes as a pair of int16 that the multiplication itself spreads from memory. Turning
 * and expanding costs the same for one row as for eight.
 *
 * Pairs: 16 per group of 32 elements, each two int16 in a lane, in whatever order is cheapest for
 * the width; preparation puts the query in the same order. A sum of 32 products is below 2^28 and
 * exact, so a row's result does not depend on the rows beside it.
 */
#include "cpu/avx512_attn.h"

#include <float.h>

enum { LANES = 16, PAIRS = 16, MAX_WORDS = 20, MAX_GROUPS = 512 / 32, ROWS = 4 };

/* acc + the products of the two int16 of each lane. */
TQ_INLINE __m512i dot2(__m512i acc, __m512i a, __m512i b)
{
#if TQ_HAVE_VNNI
    return _mm512_dpwssd_epi32(acc, a, b);
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
}

/* ---- Preparation ----------------------------------------------------------------------- */

/* Place of element i of a group among its pairs. */
TQ_INLINE uint32_t place(const uint32_t bits, uint32_t i)
{
    switch (bits) {
    case 2: /* dword of 16 codes: (0, 8), (1, 9) ... */
        return i / 16 * 16 + i % 8 * 2 + i / 8 % 2;
    case 4: /* dword of 8 codes: (0, 4), (1, 5) ... */
        return i / 8 * 8 + i % 4 * 2 + i / 4 % 2;
    case 5: /* 16 codes are 80 bits: (0, 16), (1, 17) ... */
        return i % 16 * 2 + i / 16;
    default: /* dword of 4 bytes: (0, 2), (1, 3) */
        return i / 4 * 4 + i % 2 * 2 + i / 2 % 2;
    }
}

TQ_INLINE void prep_group(tq_affine_query *p, const float *q, const uint32_t bits)
{
    const __m512 a = _mm512_loadu_ps(q), b = _mm512_loadu_ps(q + 16);
    const __m512 abs_a = _mm512_abs_ps(a), abs_b = _mm512_abs_ps(b);
    const __m512 most = _mm512_set1_ps(FLT_MAX);
    const int finite = (_mm512_cmp_ps_mask(abs_a, most, _CMP_NLE_UQ) |
                        _mm512_cmp_ps_mask(abs_b, most, _CMP_NLE_UQ)) == 0;
    const float top = _mm512_reduce_max_ps(_mm512_max_ps(abs_a, abs_b));

    if (!finite || !(top >= 0x1p-100f)) {
        memset(p, 0, sizeof *p);
        p->scale = p->sum = finite ? 0 : NAN;
        return;
    }
    const __m512 inverse = _mm512_set1_ps(32767.0f / top);
    const __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
    const __m512i y = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    uint16_t from[32];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++)
        TQ_UNROLL_FOR (uint32_t j = 0; j < 16; j++)
            from[place(bits, 16 * i + j)] = (uint16_t)(16 * i + j);
    const __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(x)),
                                           _mm512_cvtepi32_epi16(y), 1);
    _mm512_storeu_si512(p->q, _mm512_permutexvar_epi16(_mm512_loadu_si512(from), all));
    p->scale = top / 32767.0f;
    p->sum = p->scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(x, y));
}

TQ_INLINE void prep_affine(const tq_codec *k, void *prep, const float *q, uint32_t n_rows,
                           const uint32_t bits)
{
    tq_affine_query *p = prep;
    for (uint32_t j = 0; j < k->dim; j += 32)
        for (uint32_t r = 0; r < n_rows; r++, p++)
            prep_group(p, q + (size_t)r * k->dim + j, bits);
}

/* ---- Tokens to lanes ------------------------------------------------------------------- */

/* Dword i of 16 tokens in out[i], i < words, 4 to MAX_WORDS; tokens from `left` on repeat the last
 * one. Four tokens meet in a register by masked loads, which need no shuffle; the rest is a 4 x 4
 * exchange within each quarter. */
TQ_INLINE void turn(__m512i *out, const uint8_t *codes, size_t stride, uint32_t left,
                    uint32_t words)
{
    const uint8_t *row[LANES];
    for (uint32_t t = 0; t < LANES; t++)
        row[t] = codes + (t < left ? t : left - 1) * stride;
    for (uint32_t w = 0; w < words; w += 4) {
        const uint32_t at = w + 4 <= words ? w : words - 4; /* the last four may overlap */
        __m512i z[4];
        for (int j = 0; j < 4; j++) {
            const __m128i *p[4];
            for (int i = 0; i < 4; i++)
                p[i] = (const __m128i *)(const void *)(row[4 * i + j] + (size_t)at * 4);
            z[j] = _mm512_castsi128_si512(_mm_loadu_si128(p[0]));
            z[j] = _mm512_mask_broadcast_i32x4(z[j], 0x00f0, _mm_loadu_si128(p[1]));
            z[j] = _mm512_mask_broadcast_i32x4(z[j], 0x0f00, _mm_loadu_si128(p[2]));
            z[j] = _mm512_mask_broadcast_i32x4(z[j], 0xf000, _mm_loadu_si128(p[3]));
        }
        tq_turn_dwords(z);
        memcpy(out + at, z, sizeof z);
    }
}

/* Pair i of a group from its dwords. */
typedef __m512i pair_fn(const __m512i *words, int i);

TQ_INLINE __m512i pair_k4(const __m512i *words, int i)
{
    __m512i x = _mm512_srlv_epi16(words[i / 4], _mm512_set1_epi16((short)(i % 4 * 4)));
    return _mm512_and_si512(x, _mm512_set1_epi16(15));
}

TQ_INLINE __m512i pair_k2(const __m512i *words, int i)
{
    __m512i x = _mm512_srlv_epi16(words[i / 8], _mm512_set1_epi16((short)(i % 8 * 2)));
    return _mm512_and_si512(x, _mm512_set1_epi16(3));
}

/* Code i is at bit 5i, code i + 16 another 64 + 16 bits further: two dwords on it is where the
 * upper half of the pair wants it. A code may lie in two dwords. */
TQ_INLINE __m512i pair_k5(const __m512i *words, int i)
{
    const int w = i * 5 / 32, down = i * 5 % 32;
    const __m512i right = _mm512_set1_epi32(down), left = _mm512_set1_epi32(32 - down);
    __m512i lo = _mm512_srlv_epi32(words[w], right), hi;

    if (down > 27)
        lo = _mm512_or_si512(lo, _mm512_sllv_epi32(words[w + 1], left));
    if (down < 16)
        hi = _mm512_srlv_epi32(words[w + 2], right);
    else
        hi = _mm512_sllv_epi32(words[w + 3], left);
    if (down > 11 && down < 16)
        hi = _mm512_or_si512(hi, _mm512_sllv_epi32(words[w + 3], left));
    return _mm512_and_si512(_mm512_mask_blend_epi16(0xaaaaaaaau, lo, hi), _mm512_set1_epi16(31));
}

/* ---- Score ----------------------------------------------------------------------------- */

/* s + scale * (q.scale * dot + q.sum * zero). */
TQ_INLINE __m512 add_group(__m512 s, const tq_affine_query *q, __m512i dot, __m512 scale,
                           __m512 zero)
{
    __m512 x = _mm512_mul_ps(_mm512_set1_ps(q->sum), zero);
    x = _mm512_fmadd_ps(_mm512_set1_ps(q->scale), _mm512_cvtepi32_ps(dot), x);
    return _mm512_fmadd_ps(scale, x, s);
}

/* One group of 16 tokens against `rows` rows: s += scale * (q.scale * dot + q.sum * zero). */
TQ_INLINE void score_rows(float *s, const tq_affine_query *q, const __m512i *words, __m512 scale,
                          __m512 zero, int first, pair_fn *pair, const uint32_t rows)
{
    __m512i even[ROWS], odd[ROWS]; /* two chains a row: a multiplication takes five cycles */
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++)
        even[r] = odd[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i += 2) {
        const __m512i x = pair(words, i), y = pair(words, i + 1);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            int32_t a, b;
            memcpy(&a, q[r].q + 2 * i, 4);
            memcpy(&b, q[r].q + 2 * i + 2, 4);
            even[r] = dot2(even[r], x, _mm512_set1_epi32(a));
            odd[r] = dot2(odd[r], y, _mm512_set1_epi32(b));
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        __m512 old = first ? _mm512_setzero_ps() : _mm512_loadu_ps(s + r * TQ_TILE);
        __m512i dot = _mm512_add_epi32(even[r], odd[r]);
        _mm512_storeu_ps(s + r * TQ_TILE, add_group(old, &q[r], dot, scale, zero));
    }
}

TQ_INLINE void score_group(float *s, const tq_affine_query *q, uint32_t n_rows,
                           const __m512i *words, const float *scale, const float *zero, int first,
                           pair_fn *pair)
{
    const __m512 s16 = _mm512_loadu_ps(scale), z16 = _mm512_loadu_ps(zero);

    for (; n_rows >= ROWS; n_rows -= ROWS, q += ROWS, s += ROWS * TQ_TILE)
        score_rows(s, q, words, s16, z16, first, pair, ROWS);
    if (n_rows == 3)
        score_rows(s, q, words, s16, z16, first, pair, 3);
    else if (n_rows == 2)
        score_rows(s, q, words, s16, z16, first, pair, 2);
    else if (n_rows == 1)
        score_rows(s, q, words, s16, z16, first, pair, 1);
}

/* scale, zero [n_groups][LANES] of tokens from t on, of which `left` exist. */
TQ_INLINE void load_scales(float *scale, float *zero, tq_const_planes keys, uint32_t t,
                           uint32_t left, uint32_t n_groups)
{
    for (uint32_t g = 0; g < n_groups; g += 4) {
        tq_transpose16_f16(scale + g * LANES, LANES, keys.scale + t * keys.scale_stride + 2 * g,
                           keys.scale_stride, left, n_groups - g);
        tq_transpose16_f16(zero + g * LANES, LANES, keys.zero + t * keys.zero_stride + 2 * g,
                           keys.zero_stride, left, n_groups - g);
    }
}

TQ_INLINE void score_affine(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                            tq_const_planes keys, uint32_t n, pair_fn *pair, const uint32_t bits)
{
    const uint32_t n_groups = k->n_groups;
    const uint32_t groups_at_once = bits == 2 ? 8 : 4; /* at most MAX_WORDS */
    tq_walk ahead = tq_walk_begin(keys, (n + LANES - 1) / LANES * n_groups);

    for (uint32_t t = 0; t < n; t += LANES) {
        const uint32_t left = n - t < LANES ? n - t : LANES;
        const uint8_t *codes = keys.codes + t * keys.codes_stride;
        float scale[MAX_GROUPS * LANES], zero[MAX_GROUPS * LANES];

        load_scales(scale, zero, keys, t, left, n_groups);
        for (uint32_t g = 0; g < n_groups; g += groups_at_once) {
            const uint32_t groups = n_groups - g < groups_at_once ? n_groups - g : groups_at_once;
            __m512i words[MAX_WORDS];
            turn(words, codes + (size_t)g * bits * 4, keys.codes_stride, left, groups * bits);
            for (uint32_t i = 0; i < groups; i++) {
                tq_walk_on(&ahead);
                score_group(s + t, (const tq_affine_query *)prep + (size_t)(g + i) * n_rows, n_rows,
                            words + i * bits, scale + (g + i) * LANES, zero + (g + i) * LANES,
                            g + i == 0, pair);
            }
        }
    }
}

/* ---- Eight bits ------------------------------------------------------------------------ */

/* Two groups of 16 tokens, whole rows of 64 bytes at once: fewer loads, and no register is put
 * together from four. x[a][i]: of tokens 4a .. 4a + 3, in lanes of 16 bytes, dword i of those 16 of
 * all four. */
TQ_INLINE void score_bytes(float *s, const tq_affine_query *const q[2], const __m512i x[4][4],
                           const float *scale, const float *zero, int first, tq_lines *ahead,
                           const uint32_t rows)
{
    const __m512i even_bytes = _mm512_set1_epi16(1);
    __m512i sum[2][ROWS];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[0][r] = sum[1][r] = _mm512_setzero_si512();
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        __m512i y[4] = {x[0][i], x[1][i], x[2][i], x[3][i]};
        tq_turn_lanes(y); /* y[j]: dword 4j + i */
        TQ_UNROLL_FOR (uint32_t j = 0; j < 4; j++) {
            const uint32_t g = j / 2, at = 4 * (j % 2 * 4 + i);
            const __m512i even = _mm512_maddubs_epi16(even_bytes, y[j]);
            const __m512i odd = _mm512_srai_epi16(y[j], 8);
            if (j < 3)
                tq_next_line(ahead);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                sum[g][r] = tq_dot2_at(sum[g][r], even, q[g][r].q + at);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                sum[g][r] = tq_dot2_at(sum[g][r], odd, q[g][r].q + at + 2);
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        __m512 y = first ? _mm512_setzero_ps() : _mm512_loadu_ps(s + r * TQ_TILE);
        TQ_UNROLL_FOR (uint32_t g = 0; g < 2; g++)
            y = add_group(y, &q[g][r], sum[g][r], _mm512_loadu_ps(scale + g * LANES),
                          _mm512_loadu_ps(zero + g * LANES));
        _mm512_storeu_ps(s + r * TQ_TILE, y);
    }
}

TQ_INLINE void score_k8(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                        tq_const_planes keys, uint32_t n)
{
    const uint32_t n_groups = k->n_groups;
    uint8_t copy[LANES * 64];
    tq_lines ahead = tq_lines_begin(keys);

    for (uint32_t t = 0; t < n; t += LANES) {
        const uint32_t left = n - t < LANES ? n - t : LANES;
        float scale[MAX_GROUPS * LANES], zero[MAX_GROUPS * LANES];

        load_scales(scale, zero, keys, t, left, n_groups);
        for (uint32_t g = 0; g < n_groups; g += 2) {
            const uint8_t *row = keys.codes + t * keys.codes_stride + (size_t)g * 32;
            const tq_affine_query *q = (const tq_affine_query *)prep + (size_t)g * n_rows;
            size_t stride = keys.codes_stride;
            __m512i x[4][4];
            if (left < LANES) {
                for (uint32_t i = 0; i < LANES; i++)
                    memcpy(copy + 64 * i, row + (i < left ? i : left - 1) * stride, 64);
                row = copy;
                stride = 64;
            }
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++, row += 4 * stride) {
                TQ_UNROLL_FOR (uint32_t j = 0; j < 4; j++)
                    x[i][j] = _mm512_loadu_si512(row + j * stride);
                tq_turn_dwords(x[i]);
            }
            for (uint32_t r = 0; r < n_rows; r += ROWS) {
                const tq_affine_query *const of[2] = {q + r, q + n_rows + r};
                float *dst = s + r * TQ_TILE + t;
#define CALL(n_of_rows)                                                                            \
    score_bytes(dst, of, x, scale + g * LANES, zero + g * LANES, g == 0, &ahead, n_of_rows)
                TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
            }
        }
    }
    tq_last_lines(&ahead);
}

/* ---- Entries --------------------------------------------------------------------------- */

#define AFFINE_KERNELS(bits, ...)                                                                  \
    void TQ_CLUSTER_B(tq_avx512_prep_k, bits)(const tq_codec *k, void *prep, const float *q,       \
                                              uint32_t n_rows)                                     \
    {                                                                                              \
        prep_affine(k, prep, q, n_rows, bits);                                                     \
    }                                                                                              \
    void TQ_CLUSTER_B(tq_avx512_score_k, bits)(const tq_codec *k, float *s, const void *prep,      \
                                               uint32_t n_rows, tq_const_planes keys, uint32_t n)  \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }

AFFINE_KERNELS(2, score_affine(k, s, prep, n_rows, keys, n, pair_k2, 2))
AFFINE_KERNELS(4, score_affine(k, s, prep, n_rows, keys, n, pair_k4, 4))
AFFINE_KERNELS(5, score_affine(k, s, prep, n_rows, keys, n, pair_k5, 5))
AFFINE_KERNELS(8, score_k8(k, s, prep, n_rows, keys, n))
