/* SPDX-License-Identifier: MIT */
/* avx2_attn_weigh.c — weighted sums of values in f32, for AVX2.
 *
 * A block is `rows` queries (1 to 6) by 2 or 4 registers of elements; its sums stay in registers
 * over all tokens of the tile, so each value is expanded once for all rows of the block and the
 * multipliers set the pace. Sums start at 0 in each tile and are then added to the older ones:
 * short chains round less.
 *
 * Lloyd and uniform values are summed in integers: avx2_attn_bytes.c and avx2_attn_words.c.
 */
#include "cpu/avx2_attn.h"
#include "tables.h"

#define GROUP    32u
#define MAX_ROWS 6u

/* Tokens between two requests for memory that is wanted next. */
#define AHEAD_TOKENS 8u

/* Rows of the next block when n are left. */
TQ_INLINE uint32_t block_rows(uint32_t n)
{
    return n <= MAX_ROWS ? n : n <= 8 ? 4 : MAX_ROWS;
}

/* Registers of a block: sums, expanded values and a weight must fit in 16. */
TQ_INLINE uint32_t block_vectors(uint32_t rows)
{
    return rows <= 2 ? 4 : 2;
}

/* x[i] = elements 8i .. 8i+7 from p on, i < vectors. */
typedef void expand_fn(__m256 x[4], const uint8_t *p, const uint32_t vectors);

/* acc[r] [8 * vectors] of rows r. w [rows][64]. */
TQ_INLINE void block(float *acc, size_t acc_stride, const float *w, const float *alpha,
                     const uint8_t *p, size_t stride, uint32_t n, tq_walk *ahead, expand_fn *expand,
                     const uint32_t rows, const uint32_t vectors)
{
    __m256 sum[MAX_ROWS][4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < vectors; i++)
            sum[r][i] = _mm256_setzero_ps();
    for (uint32_t t = 0; t < n;) {
        const uint32_t stop = t + AHEAD_TOKENS < n ? t + AHEAD_TOKENS : n;
        tq_walk_on(ahead);
        for (; t < stop; t++, p += stride) {
            __m256 x[4];
            expand(x, p, vectors);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                __m256 y = _mm256_broadcast_ss(w + r * TQ_TILE + t);
                TQ_UNROLL_FOR (uint32_t i = 0; i < vectors; i++)
                    sum[r][i] = _mm256_fmadd_ps(y, x[i], sum[r][i]);
            }
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        __m256 y = _mm256_broadcast_ss(alpha + r);
        TQ_UNROLL_FOR (uint32_t i = 0; i < vectors; i++) {
            float *dst = acc + r * acc_stride + 8 * i;
            _mm256_storeu_ps(dst, _mm256_fmadd_ps(y, _mm256_loadu_ps(dst), sum[r][i]));
        }
    }
}

/* ---- f32, f16, bf16 -------------------------------------------------------------------- */

TQ_INLINE void float_rows(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                          const float *alpha, tq_const_planes values, uint32_t n,
                          const uint32_t elem_bytes, expand_fn *expand, const uint32_t rows)
{
    const uint32_t vectors = block_vectors(rows);
    tq_walk ahead = tq_walk_begin(values, v->dim / (8 * vectors) * (n / AHEAD_TOKENS));
    uint32_t j = 0;
    for (; j + 8 * vectors <= v->dim; j += 8 * vectors)
        block(acc + j, acc_stride, w, alpha, values.codes + (size_t)j * elem_bytes,
              values.codes_stride, n, &ahead, expand, rows, vectors);
    for (; j < v->dim; j += 8)
        block(acc + j, acc_stride, w, alpha, values.codes + (size_t)j * elem_bytes,
              values.codes_stride, n, &ahead, expand, rows, 1);
}

#define BY_ROWS(call)                                                                              \
    while (n_rows > 0) {                                                                           \
        const uint32_t taken = block_rows(n_rows);                                                 \
        switch (taken) {                                                                           \
        case 1:                                                                                    \
            call(1);                                                                               \
            break;                                                                                 \
        case 2:                                                                                    \
            call(2);                                                                               \
            break;                                                                                 \
        case 3:                                                                                    \
            call(3);                                                                               \
            break;                                                                                 \
        case 4:                                                                                    \
            call(4);                                                                               \
            break;                                                                                 \
        case 5:                                                                                    \
            call(5);                                                                               \
            break;                                                                                 \
        default:                                                                                   \
            call(6);                                                                               \
            break;                                                                                 \
        }                                                                                          \
        values.ahead = NULL; /* once is enough */                                                  \
        acc += taken * acc_stride;                                                                 \
        w += taken * TQ_TILE;                                                                      \
        alpha += taken;                                                                            \
        n_rows -= taken;                                                                           \
    }

#define FLOAT_KERNEL(name, bytes)                                                                  \
    TQ_INLINE void expand_##name(__m256 x[4], const uint8_t *p, const uint32_t vectors)            \
    {                                                                                              \
        for (uint32_t i = 0; i < vectors; i++)                                                     \
            x[i] = tq_load8_##name(p + 8 * (bytes)*i);                                             \
    }                                                                                              \
    void tq_avx2_weigh_##name(const tq_codec *v, float *acc, size_t acc_stride, const float *w,    \
                              const float *alpha, uint32_t n_rows, tq_const_planes values,         \
                              uint32_t n)                                                          \
    {                                                                                              \
        BY_ROWS(FLOAT_CALL_##name)                                                                 \
    }

#define FLOAT_CALL_f32(rows)                                                                       \
    float_rows(v, acc, acc_stride, w, alpha, values, n, 4, expand_f32, rows)
#define FLOAT_CALL_f16(rows)                                                                       \
    float_rows(v, acc, acc_stride, w, alpha, values, n, 2, expand_f16, rows)
#define FLOAT_CALL_bf16(rows)                                                                      \
    float_rows(v, acc, acc_stride, w, alpha, values, n, 2, expand_bf16, rows)

FLOAT_KERNEL(f32, 4)
FLOAT_KERNEL(f16, 2)
FLOAT_KERNEL(bf16, 2)
