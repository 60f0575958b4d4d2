/* SPDX-License-Identifier: MIT */
/* avx2_attn_score.c — keys against prepared queries, for AVX2.
 *
 * A step takes `rows` queries (1, 2 or 4) and 8 / rows tokens: eight sums in eight registers, so
 * each key is loaded and expanded once for the rows of a block, each query once for the tokens,
 * and one 8 x 8 reduction serves all. The reduction adds lanes in the same tree for every row, so
 * a row's result does not depend on its block.
 *
 * Affine keys: the codes of a group of 32 expand to two registers of int16, in whatever element
 * order is cheapest for the width; preparation puts the query in the same order. A sum of 32
 * products is below 2^28 and exact.
 */
#include "cpu/avx2_attn.h"

#include <float.h>
#include <math.h>

#define GROUP 32u

/* Element i of the result is the sum of the lanes of a[i]. */
TQ_INLINE __m256 reduce8_ps(const __m256 a[8])
{
    __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    __m256 y = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}

TQ_INLINE __m256i reduce8_i32(const __m256i a[8])
{
    __m256i x = _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
    __m256i y = _mm256_hadd_epi32(_mm256_hadd_epi32(a[4], a[5]), _mm256_hadd_epi32(a[6], a[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(x, y, 0x20),
                            _mm256_permute2x128_si256(x, y, 0x31));
}

/* x[row * tokens + token] to s[row][token]; only real rows are written. */
TQ_INLINE void store_scores(float *s, __m256 x, const uint32_t rows, uint32_t real_rows)
{
    __m128 lo = _mm256_castps256_ps128(x), hi = _mm256_extractf128_ps(x, 1);
    if (rows == 1) {
        _mm256_storeu_ps(s, x);
    } else if (rows == 2) {
        _mm_storeu_ps(s, lo);
        _mm_storeu_ps(s + TQ_TILE, hi);
    } else {
        _mm_storel_pi((__m64 *)(void *)s, lo);
        _mm_storeh_pi((__m64 *)(void *)(s + TQ_TILE), lo);
        _mm_storel_pi((__m64 *)(void *)(s + 2 * TQ_TILE), hi);
        if (real_rows > 3)
            _mm_storeh_pi((__m64 *)(void *)(s + 3 * TQ_TILE), hi);
    }
}

/* Rows of the next block when n are left: 3 are done as 4. */
TQ_INLINE uint32_t block_rows(uint32_t n)
{
    return n >= 3 ? 4 : n;
}

/* ---- f32, f16, bf16 -------------------------------------------------------------------- */

typedef __m256 load8_fn(const uint8_t *p);

static void prep_float(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    const size_t used = (size_t)n_rows * k->dim * sizeof(float);
    memcpy(prep, q, used);
    /* A block of 3 is scored as 4. */
    memset((uint8_t *)prep + used, 0, tq_prep_bytes(n_rows, k->dim) - used);
}

TQ_INLINE void float_block(float *s, const float *q, tq_const_planes keys, uint32_t n, uint32_t dim,
                           uint32_t elem_bytes, load8_fn *load8, const uint32_t rows,
                           uint32_t real_rows)
{
    const uint32_t tokens = 8 / rows;
    for (uint32_t t = 0; t < n; t += tokens) {
        const uint8_t *key[8];
        __m256 sum[8];
        TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
            key[i] = keys.codes + (t + i < n ? t + i : n - 1) * keys.codes_stride;
        TQ_UNROLL_FOR (uint32_t i = 0; i < 8; i++)
            sum[i] = _mm256_setzero_ps();
        for (uint32_t j = 0; j < dim; j += 8) {
            __m256 x[8];
            TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
                x[i] = load8(key[i] + (size_t)j * elem_bytes);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                __m256 y = _mm256_loadu_ps(q + (size_t)r * dim + j);
                TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
                    sum[r * tokens + i] = _mm256_fmadd_ps(x[i], y, sum[r * tokens + i]);
            }
        }
        store_scores(s + t, reduce8_ps(sum), rows, real_rows);
    }
}

TQ_INLINE void score_float(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                           tq_const_planes keys, uint32_t n, uint32_t elem_bytes, load8_fn *load8)
{
    const float *q = prep;
    while (n_rows > 0) {
        const uint32_t rows = block_rows(n_rows), real = rows < n_rows ? rows : n_rows;
        if (rows == 4)
            float_block(s, q, keys, n, k->dim, elem_bytes, load8, 4, real);
        else if (rows == 2)
            float_block(s, q, keys, n, k->dim, elem_bytes, load8, 2, 2);
        else
            float_block(s, q, keys, n, k->dim, elem_bytes, load8, 1, 1);
        q += (size_t)real * k->dim;
        s += real * TQ_TILE;
        n_rows -= real;
    }
}

#define FLOAT_KERNELS(name, bytes)                                                                 \
    void tq_avx2_prep_##name(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)       \
    {                                                                                              \
        prep_float(k, prep, q, n_rows);                                                            \
    }                                                                                              \
    void tq_avx2_score_##name(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,      \
                              tq_const_planes keys, uint32_t n)                                    \
    {                                                                                              \
        score_float(k, s, prep, n_rows, keys, n, bytes, tq_load8_##name);                          \
    }

FLOAT_KERNELS(f32, 4)
FLOAT_KERNELS(f16, 2)
FLOAT_KERNELS(bf16, 2)

/* ---- Affine: codes of a group as int16 ------------------------------------------------- */

typedef struct group16 {
    __m256i a, b; /* 16 codes each */
} group16;

typedef group16 expand_fn(const uint8_t *codes);

TQ_INLINE group16 expand_k8(const uint8_t *p)
{
    const __m128i *x = (const __m128i *)(const void *)p;
    group16 g = {_mm256_cvtepi8_epi16(_mm_loadu_si128(x)),
                 _mm256_cvtepi8_epi16(_mm_loadu_si128(x + 1))};
    return g;
}

/* a: even elements, b: odd ones. */
TQ_INLINE group16 expand_k4(const uint8_t *p)
{
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    group16 g = {_mm256_and_si256(x, _mm256_set1_epi16(15)), _mm256_srli_epi16(x, 4)};
    return g;
}

/* Qword c holds the bytes shifted to field c. a: even bytes, b: odd ones. */
TQ_INLINE group16 expand_k2(const uint8_t *p)
{
    __m256i x = _mm256_set1_epi64x((long long)tq_load_u64(p));
    x = _mm256_srlv_epi64(x, _mm256_setr_epi64x(0, 2, 4, 6));
    x = _mm256_and_si256(x, _mm256_set1_epi8(3));
    group16 g = {_mm256_and_si256(x, _mm256_set1_epi16(255)), _mm256_srli_epi16(x, 8)};
    return g;
}

/* 16 elements are 10 bytes. Word e gets the two bytes that hold element e; a multiplication
 * shifts it to the top of the word. b is loaded from 4 bytes before its first byte, so that the
 * load ends with the group. */
TQ_INLINE group16 expand_k5(const uint8_t *p)
{
    const __m256i bytes_a = _mm256_setr_epi8(0, 1, 0, 1, 1, 2, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 6,
                                             5, 6, 6, 7, 6, 7, 7, 8, 8, 9, 8, 9, 9, 10);
    const __m256i bytes_b =
        _mm256_setr_epi8(6, 7, 6, 7, 7, 8, 7, 8, 8, 9, 9, 10, 9, 10, 10, 11, 11, 12, 11, 12, 12, 13,
                         12, 13, 13, 14, 14, 15, 14, 15, 15, -1);
    const __m256i shift =
        _mm256_setr_epi16(1 << 11, 1 << 6, 1 << 9, 1 << 4, 1 << 7, 1 << 10, 1 << 5, 1 << 8, 1 << 11,
                          1 << 6, 1 << 9, 1 << 4, 1 << 7, 1 << 10, 1 << 5, 1 << 8);
    __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i y =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p + 4)));
    x = _mm256_mullo_epi16(_mm256_shuffle_epi8(x, bytes_a), shift);
    y = _mm256_mullo_epi16(_mm256_shuffle_epi8(y, bytes_b), shift);
    group16 g = {_mm256_srli_epi16(x, 11), _mm256_srli_epi16(y, 11)};
    return g;
}

/* Place of element i of a group in the order of expand_k<bits>. */
static uint32_t place(uint32_t bits, uint32_t i)
{
    switch (bits) {
    case 4:
        return i / 2 + 16 * (i % 2);
    case 2: {
        uint32_t byte = i / 4, field = i % 4;
        return 16 * (byte % 2) + 4 * field + byte / 2;
    }
    default:
        return i;
    }
}

/* ---- Affine: preparation and score ----------------------------------------------------- */

/* Prepared queries of a block of `rows`: per group
 *     int16 [rows][32], in the order of the expansion
 *     f32 [8] scale of the query integers, f32 [8] their sum times it, both laid out as the
 *     eight results of a step: element row * tokens + token. */
TQ_INLINE size_t affine_group_bytes(uint32_t rows)
{
    return (size_t)rows * GROUP * sizeof(int16_t) + 16 * sizeof(float);
}

/* One group of a query: 32 integers, and the two numbers of kernels.h. */
TQ_INLINE void quantise_group(int16_t q16[GROUP], float *scale, float *sum, const float *q)
{
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 x[4], max = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_loadu_ps(q + 8 * i);
        __m256 a = _mm256_and_ps(x[i], mask);
        max = _mm256_max_ps(a, max);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, _mm256_set1_ps(FLT_MAX), _CMP_NLE_UQ));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    const float top = _mm_cvtss_f32(m);
    const int finite = _mm256_testz_ps(bad, bad);
    if (!finite || !(top >= 0x1p-100f)) {
        memset(q16, 0, GROUP * sizeof(int16_t));
        *scale = *sum = finite ? 0 : NAN;
        return;
    }
    const __m256 inverse = _mm256_set1_ps(32767.0f / top);
    __m256i n[4];
    for (int i = 0; i < 4; i++)
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
    __m256i a = _mm256_permute4x64_epi64(_mm256_packs_epi32(n[0], n[1]), 0xd8);
    __m256i b = _mm256_permute4x64_epi64(_mm256_packs_epi32(n[2], n[3]), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)q16, a);
    _mm256_storeu_si256((__m256i *)(void *)(q16 + 16), b);
    __m256i t = _mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3]));
    __m128i u = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    u = _mm_hadd_epi32(u, u);
    u = _mm_hadd_epi32(u, u);
    *scale = top / 32767.0f;
    *sum = *scale * (float)_mm_cvtsi128_si32(u);
}

TQ_INLINE void prep_affine(const tq_codec *k, void *prep, const float *q, uint32_t n_rows,
                           const uint32_t bits)
{
    uint8_t *out = prep;
    while (n_rows > 0) {
        const uint32_t rows = block_rows(n_rows), real = rows < n_rows ? rows : n_rows;
        const uint32_t tokens = 8 / rows;
        for (uint32_t g = 0; g < k->n_groups; g++, out += affine_group_bytes(rows)) {
            int16_t *q16 = (int16_t *)(void *)out;
            float *meta = (float *)(void *)(out + (size_t)rows * GROUP * sizeof(int16_t));
            for (uint32_t r = 0; r < rows; r++, q16 += GROUP) {
                int16_t natural[GROUP] = {0};
                float scale = 0, sum = 0;
                if (r < real)
                    quantise_group(natural, &scale, &sum, q + (size_t)r * k->dim + g * GROUP);
                for (uint32_t i = 0; i < GROUP; i++)
                    q16[place(bits, i)] = natural[i];
                for (uint32_t i = 0; i < tokens; i++) {
                    meta[r * tokens + i] = scale;
                    meta[8 + r * tokens + i] = sum;
                }
            }
        }
        q += (size_t)real * k->dim;
        n_rows -= real;
    }
}

/* Numbers of tokens t.. of a step, repeated for each row. */
TQ_INLINE __m256 spread(const float *x, const uint32_t rows)
{
    if (rows == 1)
        return _mm256_loadu_ps(x);
    if (rows == 2)
        return _mm256_broadcast_ps((const __m128 *)(const void *)x);
    return _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)x));
}

/* Eight tokens against a block. scale and zero [n_groups][8]. */
TQ_INLINE void affine_block(float *s, const uint8_t *prep, const uint8_t *const key[8],
                            const float *scale, const float *zero, uint32_t n_groups,
                            expand_fn *expand, const uint32_t group_bytes, const uint32_t rows,
                            uint32_t real_rows)
{
    const uint32_t tokens = 8 / rows;
#pragma GCC unroll 1
    for (uint32_t t = 0; t < 8; t += tokens) {
        __m256 total = _mm256_setzero_ps();
        const uint8_t *p = prep;
        for (uint32_t g = 0; g < n_groups; g++, p += affine_group_bytes(rows)) {
            const __m256i *q = (const __m256i *)(const void *)p;
            const float *meta = (const float *)(const void *)(p + rows * 64);
            __m256i sum[8];
            group16 x[8];
            TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
                x[i] = expand(key[t + i] + g * group_bytes);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                __m256i qa = _mm256_load_si256(q + 2 * r), qb = _mm256_load_si256(q + 2 * r + 1);
                TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
                    sum[r * tokens + i] = _mm256_add_epi32(_mm256_madd_epi16(x[i].a, qa),
                                                           _mm256_madd_epi16(x[i].b, qb));
            }
            __m256 dot = _mm256_cvtepi32_ps(reduce8_i32(sum));
            __m256 bias = _mm256_mul_ps(_mm256_load_ps(meta + 8), spread(zero + 8 * g + t, rows));
            __m256 score = _mm256_fmadd_ps(_mm256_load_ps(meta), dot, bias);
            total = _mm256_fmadd_ps(spread(scale + 8 * g + t, rows), score, total);
        }
        store_scores(s + t, total, rows, real_rows);
    }
}

TQ_INLINE void score_affine(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                            tq_const_planes keys, uint32_t n, expand_fn *expand,
                            const uint32_t bits)
{
    enum { MAX_GROUPS = 1024 / GROUP };
    const uint32_t n_groups = k->n_groups, group_bytes = GROUP * bits / 8;
    for (uint32_t t = 0; t < n; t += 8) {
        float scale[MAX_GROUPS * 8], zero[MAX_GROUPS * 8];
        const uint8_t *key[8];
        const uint32_t left = n - t < 8 ? n - t : 8;
        for (uint32_t i = 0; i < 8; i++)
            key[i] = keys.codes + (t + (i < left ? i : left - 1)) * keys.codes_stride;
        for (uint32_t g = 0; g < n_groups; g += 4) {
            tq_transpose_f16(scale + 8 * g, 8, keys.scale + t * keys.scale_stride + 2 * g,
                             keys.scale_stride, left, n_groups - g);
            tq_transpose_f16(zero + 8 * g, 8, keys.zero + t * keys.zero_stride + 2 * g,
                             keys.zero_stride, left, n_groups - g);
        }
        const uint8_t *q = prep;
        float *dst = s + t;
        for (uint32_t left_rows = n_rows; left_rows > 0;) {
            const uint32_t rows = block_rows(left_rows);
            const uint32_t real = rows < left_rows ? rows : left_rows;
            if (rows == 4)
                affine_block(dst, q, key, scale, zero, n_groups, expand, group_bytes, 4, real);
            else if (rows == 2)
                affine_block(dst, q, key, scale, zero, n_groups, expand, group_bytes, 2, 2);
            else
                affine_block(dst, q, key, scale, zero, n_groups, expand, group_bytes, 1, 1);
            q += n_groups * affine_group_bytes(rows);
            dst += real * TQ_TILE;
            left_rows -= real;
        }
    }
}

#define AFFINE_KERNELS(bits)                                                                       \
    void tq_avx2_prep_k##bits(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)      \
    {                                                                                              \
        prep_affine(k, prep, q, n_rows, bits);                                                     \
    }                                                                                              \
    void tq_avx2_score_k##bits(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,     \
                               tq_const_planes keys, uint32_t n)                                   \
    {                                                                                              \
        score_affine(k, s, prep, n_rows, keys, n, expand_k##bits, bits);                           \
    }

AFFINE_KERNELS(2)
AFFINE_KERNELS(4)
AFFINE_KERNELS(5)
AFFINE_KERNELS(8)
