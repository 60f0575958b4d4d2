/* SPDX-License-Identifier: MIT */
/* avx2_attn_sums.c — the rare half of rounding weights to bytes, see avx2_attn_sums.h. */
#include "cpu/avx2_attn_sums.h"

uint32_t tq_avx2_round_carried(uint8_t *w8, const float *w, const float *scale, float up)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 up8 = _mm256_set1_ps(up);
    __m256i sum = _mm256_setzero_si256();
    /* Different ones, or equal weights would round up in all lanes at once. Their sum is 0. */
    __m256 carry =
        _mm256_setr_ps(-0.4375f, -0.3125f, -0.1875f, -0.0625f, 0.0625f, 0.1875f, 0.3125f, 0.4375f);

    for (uint32_t t = 0; t < TQ_TILE; t += 32) {
        __m256i x[4];
        for (uint32_t i = 0; i < 4; i++) {
            const __m256 s = _mm256_mul_ps(up8, _mm256_loadu_ps(scale + t + 8 * i));
            const __m256 y = _mm256_fmadd_ps(s, _mm256_loadu_ps(w + t + 8 * i), carry);
            x[i] = _mm256_cvtps_epi32(y);
            carry = _mm256_sub_ps(y, _mm256_cvtepi32_ps(x[i]));
        }
        /* -0.5 rounds to 0, 255 and a carry of a half to 256, which becomes 255. */
        __m256i y =
            _mm256_packus_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
        sum = _mm256_add_epi64(sum, _mm256_sad_epu8(y, _mm256_setzero_si256()));
        y = _mm256_permutevar8x32_epi32(y, order);
        _mm256_storeu_si256((__m256i *)(void *)(w8 + t), y);
    }
    __m128i s = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi64(s, _mm_unpackhi_epi64(s, s));
    return (uint32_t)_mm_cvtsi128_si32(s);
}
