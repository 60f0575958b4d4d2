/* SPDX-License-Identifier: MIT */
/* avx2_attn_bytes.c — the multiplication of avx2_attn_bytes.h for AVX2: int16 sums that are emptied
 * into int32 sums before they can overflow. The 16 registers hold those of 4 rows x 16 elements.
 */
#include "cpu/avx2_attn_bytes.h"

/* A quad: x of 16 elements, weights at w8. */
TQ_INLINE void step(__m256i sum[MAX_ROWS][2], const uint8_t *w8, const int8_t *x,
                    const uint32_t rows)
{
    const __m256i a = tq_keep(load32((const uint8_t *)x));
    const __m256i b = tq_keep(load32((const uint8_t *)x + 32));
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256i w = _mm256_set1_epi32((int)tq_load_u32(w8 + r * TQ_TILE));
        sum[r][0] = tq_add_i16(sum[r][0], _mm256_maddubs_epi16(w, a));
        sum[r][1] = tq_add_i16(sum[r][1], _mm256_maddubs_epi16(w, b));
    }
}

/* int16 sums, two of an element, to int32 sums. */
TQ_INLINE void empty(__m256i sum[MAX_ROWS][2], __m256i total[MAX_ROWS][2], const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (int j = 0; j < 2; j++) {
            const __m256i s = _mm256_madd_epi16(sum[r][j], _mm256_set1_epi16(1));
            total[r][j] = _mm256_add_epi32(total[r][j], s);
            sum[r][j] = _mm256_setzero_si256();
        }
}

/* A block_fn. */
TQ_INLINE void block(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                     const float *base, const float *alpha, const int8_t *x, uint32_t n_units,
                     tq_walk *ahead, order_fn *order, const uint32_t run, const uint32_t rows)
{
    __m256i sum[MAX_ROWS][2], total[MAX_ROWS][2];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = total[r][0] = total[r][1] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n_units; i++, w8 += 32, x += 8 * QUAD_BYTES) {
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t q = 0; q < 8; q++) {
            step(sum, w8 + q % 2 * 16 + q / 2 * 4, x + q * QUAD_BYTES, rows);
            if ((q + 1) * 4 % run == 0)
                empty(sum, total, rows);
        }
    }
    if (run > 32)
        empty(sum, total, rows);
    finish(acc, acc_stride, total, factor, base, alpha, order, rows);
}

TQ_LLOYD_BYTES_ALL(tq_avx2_weigh_v)

static const int8_t book_uniform4[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

/* Codes minus 8: their middle goes to the offset. */
static void weigh_uniform4(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                           const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    const coarse f = {load_book(book_uniform4), 1, 8, 255};
    weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &f, expand_4, order_4, block, 4, 64);
}

/* Rows of uniform groups may have any multiple of 8 elements. */
void tq_avx2_weigh_uniform4(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                            const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    if (v->dim % (2 * GROUP) == 0)
        weigh_uniform4(v, acc, acc_stride, w, alpha, n_rows, values, n);
    else
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
}
