/* SPDX-License-Identifier: MIT */
/* avx2_attn.h — the AVX2 attention kernels by name, and what their files share. */
#ifndef TQ_CPU_AVX2_ATTN_H
#define TQ_CPU_AVX2_ATTN_H

#include "cpu/kernels.h"

#include <immintrin.h>
#include <string.h>

#define TQ_INLINE static inline __attribute__((always_inline))

/* Unroll a loop of at most 8 rounds, so that an array of registers that it indexes is registers.
 * clang does what GCC's pragma asks too late for that. */
#if defined(__clang__)
#define TQ_UNROLL_FOR(...) _Pragma("clang loop unroll(full)") for (__VA_ARGS__)
#else
#define TQ_UNROLL_FOR(...) _Pragma("GCC unroll 8") for (__VA_ARGS__)
#endif

/* Keep a sum in one register: without it gcc 12 renames the sums of an unrolled loop, runs out of
 * registers and puts one in memory, which then sets the pace. */
#define TQ_PIN(x) __asm__("" : "+x"(x))

/* avx2_attn_score.c */
tq_prep_fn tq_avx2_prep_f32, tq_avx2_prep_f16, tq_avx2_prep_bf16;
tq_prep_fn tq_avx2_prep_k2, tq_avx2_prep_k4, tq_avx2_prep_k5, tq_avx2_prep_k8;
tq_score_fn tq_avx2_score_f32, tq_avx2_score_f16, tq_avx2_score_bf16;
tq_score_fn tq_avx2_score_k2, tq_avx2_score_k4, tq_avx2_score_k5, tq_avx2_score_k8;

/* avx2_attn_weigh.c */
tq_weigh_fn tq_avx2_weigh_f32, tq_avx2_weigh_f16, tq_avx2_weigh_bf16;
tq_weigh_fn tq_avx2_weigh_v8;

/* avx2_attn_lloyd.c */
tq_weigh_fn tq_avx2_weigh_v2, tq_avx2_weigh_v3, tq_avx2_weigh_v4, tq_avx2_weigh_v5;

/* avx2_attn_rotated.c */
tq_prep_fn tq_avx2_prep_rotated;
tq_score_fn tq_avx2_score_decoded;
tq_weigh_fn tq_avx2_weigh_decoded;

/* avx2_attn_norm.c: norm-codebook and trellis */
tq_prep_fn tq_avx2_prep_norm;
tq_score_fn tq_avx2_score_norm;

/* avx2_attn_levels.c */
tq_weigh_fn tq_avx2_weigh_norm, tq_avx2_weigh_tcq;

/* avx2_attn_tile.c */
tq_pack_fn tq_avx2_pack_keys, tq_avx2_pack_values;
tq_gemm_fn tq_avx2_gemm;

/* Eight stored numbers as f32. */
TQ_INLINE __m256 tq_load8_f32(const uint8_t *p)
{
    return _mm256_loadu_ps((const float *)(const void *)p);
}

TQ_INLINE __m256 tq_load8_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

TQ_INLINE __m256 tq_load8_bf16(const uint8_t *p)
{
    __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}

TQ_INLINE uint32_t tq_load_u32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

TQ_INLINE uint64_t tq_load_u64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* f16 numbers of 8 tokens, 4 groups: dst[g][t] = row t, group g, as f32; rows dst_stride apart.
 * n_groups: 4, or 2 when the rows end after two. Tokens from n on repeat token n - 1. */
TQ_INLINE void tq_transpose_f16(float *dst, size_t dst_stride, const uint8_t *plane, size_t stride,
                                uint32_t n, uint32_t n_groups)
{
    __m128i row[8];
    for (uint32_t t = 0; t < 8; t++) {
        const uint8_t *p = plane + (t < n ? t : n - 1) * stride;
        row[t] = n_groups >= 4 ? _mm_cvtsi64_si128((long long)tq_load_u64(p))
                               : _mm_cvtsi32_si128((int)tq_load_u32(p));
    }
    __m128i a = _mm_unpacklo_epi16(row[0], row[1]), b = _mm_unpacklo_epi16(row[2], row[3]);
    __m128i c = _mm_unpacklo_epi16(row[4], row[5]), d = _mm_unpacklo_epi16(row[6], row[7]);
    __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
    _mm256_storeu_ps(dst, _mm256_cvtph_ps(_mm_unpacklo_epi64(ab, cd)));
    _mm256_storeu_ps(dst + dst_stride, _mm256_cvtph_ps(_mm_unpackhi_epi64(ab, cd)));
    if (n_groups < 4)
        return;
    ab = _mm_unpackhi_epi32(a, b), cd = _mm_unpackhi_epi32(c, d);
    _mm256_storeu_ps(dst + 2 * dst_stride, _mm256_cvtph_ps(_mm_unpacklo_epi64(ab, cd)));
    _mm256_storeu_ps(dst + 3 * dst_stride, _mm256_cvtph_ps(_mm_unpackhi_epi64(ab, cd)));
}

/* Entries of the formats that have no kernels of their own, for AVX2 and AVX-512. */
#define TQ_AVX2_PREP_PLAIN                                                                         \
    TQ_MSE_ENTRIES(tq_avx2_prep_rotated), TQ_PROD_ENTRIES(tq_avx2_prep_rotated),                   \
        TQ_UNIFORM_ENTRIES(tq_avx2_prep_f32)
#define TQ_AVX2_SCORE_PLAIN                                                                        \
    TQ_MSE_ENTRIES(tq_avx2_score_decoded), TQ_PROD_ENTRIES(tq_avx2_score_decoded),                 \
        TQ_UNIFORM_ENTRIES(tq_avx2_score_decoded)
#define TQ_AVX2_WEIGH_PLAIN                                                                        \
    TQ_MSE_ENTRIES(tq_avx2_weigh_decoded), TQ_PROD_ENTRIES(tq_avx2_weigh_decoded),                 \
        TQ_UNIFORM_ENTRIES(tq_avx2_weigh_decoded)

#endif
