/* SPDX-License-Identifier: MIT */
/* avx2_attn_score.c — f32, f16 and bf16 keys against queries, for AVX2.
 *
 * A step takes `rows` queries (1, 2 or 4) and 8 / rows tokens: eight sums in eight registers, so
 * each key is loaded and expanded once for the rows of a block, each query once for the tokens,
 * and one 8 x 8 reduction serves all. The reduction adds lanes in the same tree for every row, so
 * a row's result does not depend on its block.
 */
#include "cpu/avx2_attn.h"

/* Element i of the result is the sum of the lanes of a[i]. */
TQ_INLINE __m256 reduce8_ps(const __m256 a[8])
{
    __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    __m256 y = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
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
    const float *row[4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        row[r] = q + (size_t)r * dim;
        __asm__("" : "+r"(row[r])); /* gcc would add up the addresses in the loop */
    }
    tq_walk ahead = tq_walk_begin(keys, n / tokens);
    for (uint32_t t = 0; t < n; t += tokens) {
        const uint8_t *key[8];
        __m256 sum[8];
        tq_walk_on(&ahead);
        TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
            key[i] = keys.codes + (t + i < n ? t + i : n - 1) * keys.codes_stride;
        TQ_UNROLL_FOR (uint32_t i = 0; i < 8; i++)
            sum[i] = _mm256_setzero_ps();
        for (uint32_t j = 0; j < dim; j += 8) {
            __m256 x[8];
            TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
                x[i] = load8(key[i] + (size_t)j * elem_bytes);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                const __m256 y = tq_keep_ps(_mm256_loadu_ps(row[r] + j));
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
        keys.ahead = NULL; /* once is enough */
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
