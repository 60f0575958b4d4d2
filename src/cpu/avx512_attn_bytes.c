/* SPDX-License-Identifier: MIT */
/* avx512_attn_bytes.c — the multiplication of avx2_attn_bytes.h for AVX-512 with VNNI: vpdpbusd
 * multiplies 64 bytes and adds them to int32 sums. Even and odd quads have sums of their own, for
 * the instruction takes five cycles.
 */
#include "cpu/avx2_attn_bytes.h"
#include "cpu/avx512_attn.h"

#if TQ_HAVE_VNNI

/* A block_fn. */
TQ_INLINE void block(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                     const float *base, const float *alpha, const int8_t *x, uint32_t n_units,
                     tq_walk *ahead, order_fn *order, const uint32_t run, const uint32_t rows)
{
    __m512i sum[MAX_ROWS][2];
    __m256i total[MAX_ROWS][2];
    (void)run;
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n_units; i++, w8 += 32, x += 8 * QUAD_BYTES) {
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t q = 0; q < 8; q++) {
            const __m512i y = _mm512_loadu_si512(x + q * QUAD_BYTES);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                const uint32_t four = tq_load_u32(w8 + r * TQ_TILE + q % 2 * 16 + q / 2 * 4);
                sum[r][q % 2] = _mm512_dpbusd_epi32(sum[r][q % 2], _mm512_set1_epi32((int)four), y);
            }
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512i s = _mm512_add_epi32(sum[r][0], sum[r][1]);
        total[r][0] = _mm512_castsi512_si256(s);
        total[r][1] = _mm512_extracti64x4_epi64(s, 1);
    }
    finish(acc, acc_stride, total, factor, base, alpha, order, rows);
}

TQ_LLOYD_BYTES_ALL(tq_avx512_weigh_bytes_v)

#endif
