/* SPDX-License-Identifier: MIT */
/* avx512_attn_uniform.h — what the AVX-512 kernels of uniform groups share: scales and offsets. */
#ifndef TQ_CPU_AVX512_ATTN_UNIFORM_H
#define TQ_CPU_AVX512_ATTN_UNIFORM_H

#include "cpu/avx512_attn.h"

enum { TQ_UNIFORM_CHUNK = 64 }; /* elements that are handled together */

/* f16 numbers of a tile from token t on: dst [n_groups][dst_stride], `tokens` of them, a multiple
 * of 16. Those of tokens from n on are zeros, or those of the last. */
TQ_INLINE void tq_uniform_columns(float *dst, size_t dst_stride, const uint8_t *plane,
                                  size_t stride, uint32_t t, uint32_t tokens, uint32_t n,
                                  uint32_t n_groups)
{
    const __m512i order =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    if (n_groups > 2 || stride != 2 * n_groups) {
        tq_load_columns(dst, dst_stride, plane, stride, t, tokens, n, n_groups);
        return;
    }
    /* Rows of 128 in groups of 64 or 128, as pages have them: a dword or a word a token. */
    for (uint32_t i = 0; i < tokens; i += 16, dst += 16) {
        const uint32_t left = t + i < n ? n - t - i : 0;
        const __mmask16 mask = tq_lanes_left(left);
        const uint8_t *p = plane + (size_t)(t + i) * stride;
        if (n_groups == 1) {
            _mm512_storeu_ps(dst, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p)));
            continue;
        }
        const __m512i x = _mm512_permutexvar_epi16(order, _mm512_maskz_loadu_epi32(mask, p));
        _mm512_storeu_ps(dst, _mm512_cvtph_ps(_mm512_castsi512_si256(x)));
        _mm512_storeu_ps(dst + dst_stride, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)));
    }
}

#endif
