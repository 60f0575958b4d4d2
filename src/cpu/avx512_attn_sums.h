/* SPDX-License-Identifier: MIT */
/* avx512_attn_sums.h — sums of small numbers times byte weights, for AVX-512: avx2_attn_sums.h in
 * registers of 64 bytes. With VNNI one instruction adds the products of the four tokens of a lane
 * to an int32, so nothing bounds a number but its int8, and weights have 255 steps for all formats.
 */
#ifndef TQ_CPU_AVX512_ATTN_SUMS_H
#define TQ_CPU_AVX512_ATTN_SUMS_H

#include "cpu/avx2_attn_sums.h"
#include "cpu/avx512_attn.h"

/* sum + the four products of each lane: bytes w, int8 x. Without VNNI numbers are 64 at most: an
 * int16 holds 2 * 255 * 64. */
TQ_INLINE __m512i tq_dot4(__m512i sum, __m512i w, __m512i x)
{
#if TQ_HAVE_VNNI
    return tq_add_dot4(sum, w, x);
#else
    const __m512i two = _mm512_maddubs_epi16(w, x);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(two, _mm512_set1_epi16(1)));
#endif
}

/* Bytes of the weights w [64] of a row times scale [64] times up, see tq_weight_steps. Lane i / 4
 * of 16 bytes holds, in its dword i % 4, four tokens from 4 * (i / 4) + 16 * (i % 4) on. */
TQ_INLINE __m512i tq_round_bytes64(const float *w, const float *scale, float up)
{
    const __m512 by = _mm512_set1_ps(up);
    __m512i x[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        const __m512 s = _mm512_mul_ps(by, _mm512_loadu_ps(scale + 16 * i));
        x[i] = _mm512_cvtps_epi32(_mm512_mul_ps(s, _mm512_loadu_ps(w + 16 * i)));
    }
    return _mm512_packus_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
}

/* Lane i of x[0 .. 3] becomes x[i], in that order. */
TQ_INLINE void tq_turn_lanes(__m512i x[4])
{
    const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const __m512i d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

/* acc [16] = alpha * that + factor * sum + base. */
TQ_INLINE void tq_add_sums(float *acc, __m512i sum, float factor, float base, float alpha)
{
    const __m512 y =
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(factor), _mm512_set1_ps(base));
    _mm512_storeu_ps(acc, _mm512_fmadd_ps(_mm512_set1_ps(alpha), _mm512_loadu_ps(acc), y));
}

/* Is a sign bit set in x [n], n a multiple of 16? Such scales are decoded: no encoder writes one.
 */
TQ_INLINE int tq_any_negative(const float *x, uint32_t n)
{
    __m512i all = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16)
        all = _mm512_or_si512(all, _mm512_loadu_si512(x + i));
    return _mm512_movepi32_mask(all) != 0;
}

#endif
