/* SPDX-License-Identifier: MIT */
/* avx512_attn_float.h — stored f32, f16 and bf16 numbers as f32 in registers of sixteen.
 *
 * A step takes 32 numbers, for two bf16 are a lane of 32 bits: the upper one is an f32 as soon as
 * the lower one is cleared, and the lower one after a shift. That is half of what widening each of
 * them would cost, and leaves them in two registers, one of even and one of odd elements.
 */
#ifndef TQ_CPU_AVX512_ATTN_FLOAT_H
#define TQ_CPU_AVX512_ATTN_FLOAT_H

#include "cpu/avx512_attn.h"

/* Elements of a step. */
#define TQ_STEP 32u

/* A step at p: elements 0 to 15 and 16 to 31; of bf16 the even and the odd ones. */
typedef void tq_load32_fn(__m512 x[2], const uint8_t *p);

/* At most 16 elements in order, what is left of a row behind its last step; other lanes are 0. */
typedef __m512 tq_load16_fn(const uint8_t *p, __mmask16 lanes);

TQ_INLINE void tq_load32_f32(__m512 x[2], const uint8_t *p)
{
    x[0] = _mm512_loadu_ps(p);
    x[1] = _mm512_loadu_ps(p + 64);
}

TQ_INLINE __m512 tq_load16_f32(const uint8_t *p, __mmask16 lanes)
{
    return _mm512_maskz_loadu_ps(lanes, p);
}

TQ_INLINE void tq_load32_f16(__m512 x[2], const uint8_t *p)
{
    x[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
    x[1] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 32)));
}

TQ_INLINE __m512 tq_load16_f16(const uint8_t *p, __mmask16 lanes)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p));
}

TQ_INLINE void tq_load32_bf16(__m512 x[2], const uint8_t *p)
{
    const __m512i pairs = _mm512_loadu_si512(p);
    x[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    x[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

TQ_INLINE __m512 tq_load16_bf16(const uint8_t *p, __mmask16 lanes)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* As tq_walk, in twice as many streams, two halves of each at once: the hardware's prefetcher,
 * which begins anew at each 4 KiB, then has four of them to run along. With these short kernels a
 * page of f16 from memory takes 3 % less than with two; see docs/numerics.md. */
typedef struct tq_halves {
    const char *p;
    uint32_t at, end, step; /* in 2^-8 bytes of a half */
    uint32_t most;          /* bytes of a half that a step asks for */
    size_t half, gap;
} tq_halves;

TQ_INLINE tq_halves tq_halves_begin(tq_const_planes planes, uint32_t n_steps)
{
    tq_halves h = {.p = (const char *)planes.ahead, .gap = planes.ahead_gap};
    const uint32_t steps = n_steps > 0 ? n_steps : 1;
    h.half = planes.ahead ? (planes.ahead_bytes + 127) / 128 * 64 : 0;
    h.end = (uint32_t)h.half << 8;
    h.step = (h.end + steps - 1) / steps;
    h.most = (h.step + (64 << 8) - 1) >> 14 << 6;
    return h;
}

TQ_INLINE void tq_halves_on(tq_halves *h)
{
    if (h->at >= h->end) /* nothing, or rows beyond the first few */
        return;
    const char *p = h->p + (h->at >> 8), *const end = p + h->most;
    h->at += h->step;
    for (; p != end; p += 64) {
        _mm_prefetch(p, _MM_HINT_T0);
        _mm_prefetch(p + h->half, _MM_HINT_T0);
        if (h->gap) {
            _mm_prefetch(p + h->gap, _MM_HINT_T0);
            _mm_prefetch(p + h->gap + h->half, _MM_HINT_T0);
        }
    }
}

#endif
