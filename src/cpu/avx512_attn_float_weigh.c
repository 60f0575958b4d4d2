/* SPDX-License-Identifier: MIT */
/* avx512_attn_float_weigh.c — weighted sums of f32, f16 and bf16 values, for AVX-512, both
 * clusters.
 *
 * A block is `rows` queries (1 to 8) by 32 or 64 elements; its sums stay in registers over all
 * tokens of the tile, so each value is expanded once for the rows of a block. Sums start at 0 in
 * each tile and are then added to the older ones: short chains round less. An element's sum is a
 * lane of its own, so it is the same in every block.
 */
#include "cpu/avx512_attn_float.h"

enum { MAX_ROWS = 8, MAX_STEPS = 2 };

/* Steps of elements in a block: sums, expanded values and a weight must fit in 32 registers. */
TQ_INLINE uint32_t block_steps(const uint32_t rows)
{
    return rows <= 6 ? 2 : 1;
}

/* dst [32] = alpha * dst + sum, of bf16 in the order of tq_load32_bf16. */
TQ_INLINE void add_step(float *dst, __m512 alpha, const __m512 sum[2], const int even_odd)
{
    __m512 lo = sum[0], hi = sum[1];
    if (even_odd) {
        const __m512i first =
            _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
        lo = _mm512_permutex2var_ps(sum[0], first, sum[1]);
        hi = _mm512_permutex2var_ps(sum[0], second, sum[1]);
    }
    _mm512_storeu_ps(dst, _mm512_fmadd_ps(alpha, _mm512_loadu_ps(dst), lo));
    _mm512_storeu_ps(dst + 16, _mm512_fmadd_ps(alpha, _mm512_loadu_ps(dst + 16), hi));
}

/* sum[r] [2 * steps] += the products of a token at p with weights w[r * 64]. */
TQ_INLINE void add_token(__m512 sum[MAX_ROWS][2 * MAX_STEPS], const float *w, const uint8_t *p,
                         const uint32_t elem_bytes, tq_load32_fn *load32, const uint32_t rows,
                         const uint32_t steps)
{
    __m512 x[2 * MAX_STEPS];
    TQ_UNROLL_FOR (uint32_t i = 0; i < steps; i++)
        load32(x + 2 * i, p + (size_t)i * TQ_STEP * elem_bytes);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512 y = _mm512_set1_ps(w[r * TQ_TILE]);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2 * steps; i++)
            sum[r][i] = _mm512_fmadd_ps(y, x[i], sum[r][i]);
    }
}

/* acc[r] [32 * steps] of rows r. w [rows][64]. */
TQ_INLINE void block(float *acc, size_t acc_stride, const float *w, const float *alpha,
                     const uint8_t *p, size_t stride, uint32_t n, tq_halves *ahead,
                     const uint32_t elem_bytes, tq_load32_fn *load32, const int even_odd,
                     const uint32_t rows, const uint32_t steps)
{
    const uint8_t *const end = p + n / 2 * 2 * stride;
    const float *wt = w;
    __m512 sum[MAX_ROWS][2 * MAX_STEPS];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2 * steps; i++)
            sum[r][i] = _mm512_setzero_ps();
    for (; p != end; p += 2 * stride, wt += 2) {
        tq_halves_on(ahead);
        add_token(sum, wt, p, elem_bytes, load32, rows, steps);
        add_token(sum, wt + 1, p + stride, elem_bytes, load32, rows, steps);
    }
    if (n % 2)
        add_token(sum, wt, p, elem_bytes, load32, rows, steps);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < steps; i++)
            add_step(acc + r * acc_stride + (size_t)i * TQ_STEP, _mm512_set1_ps(alpha[r]),
                     sum[r] + 2 * i, even_odd);
}

/* The same with at most 16 elements. */
TQ_INLINE void last_block(float *acc, size_t acc_stride, const float *w, const float *alpha,
                          const uint8_t *p, size_t stride, uint32_t n, __mmask16 lanes,
                          tq_load16_fn *load16, const uint32_t rows)
{
    __m512 sum[MAX_ROWS];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (const float *wt = w; wt != w + n; wt++, p += stride) {
        const __m512 x = load16(p, lanes);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r] = _mm512_fmadd_ps(_mm512_set1_ps(wt[r * TQ_TILE]), x, sum[r]);
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        float *dst = acc + r * acc_stride;
        const __m512 old = _mm512_maskz_loadu_ps(lanes, dst);
        _mm512_mask_storeu_ps(dst, lanes, _mm512_fmadd_ps(_mm512_set1_ps(alpha[r]), old, sum[r]));
    }
}

/* Some rows; each number of rows is a function, so that its loops have the registers to themselves.
 */
typedef void rows_fn(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, const tq_const_planes *values, uint32_t n);

TQ_INLINE void weigh_rows(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                          const float *alpha, const tq_const_planes *values, uint32_t n,
                          const uint32_t elem_bytes, tq_load32_fn *load32, tq_load16_fn *load16,
                          const int even_odd, const uint32_t rows)
{
    const uint32_t steps = block_steps(rows), dim = v->dim;
    const uint8_t *p = values->codes;
    tq_halves ahead = tq_halves_begin(*values, dim / (TQ_STEP * steps) * (n / 2));
    uint32_t j = 0;
    if (dim < TQ_STEP * steps) /* last blocks, which do not ask */
        tq_look_ahead(*values);
    for (; j + TQ_STEP * steps <= dim; j += TQ_STEP * steps)
        block(acc + j, acc_stride, w, alpha, p + (size_t)j * elem_bytes, values->codes_stride, n,
              &ahead, elem_bytes, load32, even_odd, rows, steps);
    for (; j < dim; j += 16)
        last_block(acc + j, acc_stride, w, alpha, p + (size_t)j * elem_bytes, values->codes_stride,
                   n, tq_lanes_left(dim - j), load16, rows);
}

static void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                  const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                  rows_fn *const by_rows[MAX_ROWS])
{
    while (n_rows > 0) {
        const uint32_t rows = n_rows < MAX_ROWS ? n_rows : MAX_ROWS;
        by_rows[rows - 1](v, acc, acc_stride, w, alpha, &values, n);
        values.ahead = NULL; /* once is enough */
        acc += rows * acc_stride;
        w += rows * TQ_TILE;
        alpha += rows;
        n_rows -= rows;
    }
}

#define ROWS(name, bytes, even_odd, rows)                                                          \
    static void name##_x##rows(const tq_codec *v, float *acc, size_t acc_stride, const float *w,   \
                               const float *alpha, const tq_const_planes *values, uint32_t n)      \
    {                                                                                              \
        weigh_rows(v, acc, acc_stride, w, alpha, values, n, bytes, tq_load32_##name,               \
                   tq_load16_##name, even_odd, rows);                                              \
    }

#define FLOAT_KERNEL(name, bytes, even_odd)                                                        \
    ROWS(name, bytes, even_odd, 1)                                                                 \
    ROWS(name, bytes, even_odd, 2)                                                                 \
    ROWS(name, bytes, even_odd, 3)                                                                 \
    ROWS(name, bytes, even_odd, 4)                                                                 \
    ROWS(name, bytes, even_odd, 5)                                                                 \
    ROWS(name, bytes, even_odd, 6)                                                                 \
    ROWS(name, bytes, even_odd, 7)                                                                 \
    ROWS(name, bytes, even_odd, 8)                                                                 \
    void tq_avx512_weigh_##name(const tq_codec *v, float *acc, size_t acc_stride, const float *w,  \
                                const float *alpha, uint32_t n_rows, tq_const_planes values,       \
                                uint32_t n)                                                        \
    {                                                                                              \
        static rows_fn *const by_rows[MAX_ROWS] = {name##_x1, name##_x2, name##_x3, name##_x4,     \
                                                   name##_x5, name##_x6, name##_x7, name##_x8};    \
        if (v->dim < TQ_STEP) /* AVX2's have no masks to wait for */                               \
            tq_avx2_weigh_##name(v, acc, acc_stride, w, alpha, n_rows, values, n);                 \
        else                                                                                       \
            weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, by_rows);                       \
    }

FLOAT_KERNEL(f32, 4, 0)
FLOAT_KERNEL(f16, 2, 0)
FLOAT_KERNEL(bf16, 2, 1)
