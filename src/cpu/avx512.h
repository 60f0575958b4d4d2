/* SPDX-License-Identifier: MIT */
/* avx512.h — building blocks of the AVX-512 codec: unpacking, division, the transform.
 *
 * Include only in files compiled for avx512 f + bw + vl + dq (and what AVX2 needs). Everything is
 * static inline with constant `bits` and `dim` at each call. Results are those of scalar.c bit for
 * bit. Fused multiply-adds occur only where the product is exact (a factor of +1 or -1), and in
 * the quotient, whose result is the correctly rounded one.
 */
#ifndef TQ_CPU_AVX512_H
#define TQ_CPU_AVX512_H

#include "cpu/avx2.h"

/* Lanes of the next 16 elements when `left` are left. */
TQ_INLINE __mmask16 tq_lanes_left(size_t left)
{
    return (__mmask16)(left >= 16 ? 0xffffu : (1u << left) - 1);
}

/* ---- Division ---- */

/* a / b, correctly rounded, from rcp = 1 / b, correctly rounded: five operations in place of a
 * division that is six times slower. Source: P. Markstein, "Computation of elementary functions on
 * the IBM RISC System/6000", theorem 8.3: if q is within one unit in the last place of a / b, then
 * fma(fma(-q, b, a), rcp, q) is a / b rounded, unless the significand of b is all ones. The first
 * correction brings q there, the second is that of the theorem. b must pass tq_divides, and
 * 2^-60 <= |a| <= 2^60 (or a wrong tiny quotient must not matter). */
TQ_INLINE __m512 tq_quotient(__m512 a, __m512 b, __m512 rcp)
{
    __m512 q = _mm512_mul_ps(a, rcp);
    q = _mm512_fmadd_ps(_mm512_fnmadd_ps(q, b, a), rcp, q);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(q, b, a), rcp, q);
}

/* Lanes of b, positive, that tq_quotient may divide by: not huge, not a NaN, and not of the one
 * significand that the theorem excludes. */
TQ_INLINE __mmask16 tq_divides(__m512 b)
{
    const __m512i ones = _mm512_set1_epi32(0x7fffff);
    __m512i fraction = _mm512_and_si512(_mm512_castps_si512(b), ones);
    __mmask16 small = _mm512_cmp_ps_mask(b, _mm512_set1_ps(0x1p60f), _CMP_LT_OQ);
    return _mm512_mask_cmpneq_epi32_mask(small, fraction, ones);
}

/* ---- Codes ---- */

#define TQ_CTL16(b, i) TQ_CTL(b, i), TQ_CTL(b, (i) + 1), TQ_CTL(b, (i) + 2), TQ_CTL(b, (i) + 3)
#define TQ_SHIFT16(b, i)                                                                           \
    TQ_CTL_SHIFT(b, i), TQ_CTL_SHIFT(b, (i) + 1), TQ_CTL_SHIFT(b, (i) + 2), TQ_CTL_SHIFT(b, (i) + 3)

/* Sixteen codes of b bits, the first at byte `base` of src; bits above the field are not cleared:
 * what follows either masks them or does not look at them. */
TQ_INLINE __m512i tq_unpack16(__m128i src, int b, int base)
{
    const int ctl[16] = {TQ_CTL16(b, 0), TQ_CTL16(b, 4), TQ_CTL16(b, 8), TQ_CTL16(b, 12)};
    const int shift[16] = {TQ_SHIFT16(b, 0), TQ_SHIFT16(b, 4), TQ_SHIFT16(b, 8), TQ_SHIFT16(b, 12)};
    __m512i pick = _mm512_add_epi8(_mm512_loadu_si512(ctl), _mm512_set1_epi8((char)base));
    __m512i field = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(src), pick);
    return _mm512_srlv_epi32(field, _mm512_loadu_si512(shift));
}

/* The 32 codes of group g of a row into out [2] x 16; bits above the field are not cleared, and
 * 8-bit codes come out unsigned. Reads no byte outside the row: rows have an even number of groups,
 * so a 3-bit group borrows its neighbour's bytes. */
TQ_INLINE void tq_unpack_group16(__m512i *out, const uint8_t *row, uint32_t g, int b)
{
    const uint8_t *p = row + (size_t)g * 4 * (size_t)b;
    const __m128i *q = (const __m128i *)(const void *)p;

    if (b == 8) {
        out[0] = _mm512_cvtepu8_epi32(_mm_loadu_si128(q));
        out[1] = _mm512_cvtepu8_epi32(_mm_loadu_si128(q + 1));
    } else if (b == 2) {
        __m128i x = _mm_loadl_epi64(q);
        out[0] = tq_unpack16(x, 2, 0);
        out[1] = tq_unpack16(x, 2, 4);
    } else if (b == 4) {
        __m128i x = _mm_loadu_si128(q);
        out[0] = tq_unpack16(x, 4, 0);
        out[1] = tq_unpack16(x, 4, 8);
    } else if (b == 3) {
        const int skip = (g & 1) ? 4 : 0;
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(p - skip));
        x = skip ? _mm_srli_si128(x, 4) : x;
        out[0] = tq_unpack16(x, 3, 0);
        out[1] = tq_unpack16(x, 3, 6);
    } else { /* 5 bits: 20 bytes */
        out[0] = tq_unpack16(_mm_loadu_si128(q), 5, 0);
        out[1] = tq_unpack16(_mm_loadu_si128((const __m128i *)(const void *)(p + 4)), 5, 6);
    }
}

/* Sixteen f32 to f16, every NaN to 0x7e00. */
TQ_INLINE __m256i tq_f16_from_f32x16(__m512 x)
{
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512 quiet = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtps_ph(_mm512_mask_blend_ps(nan, x, quiet), _MM_FROUND_TO_NEAREST_INT);
}

/* One stored f16, in all lanes. */
TQ_INLINE __m512 tq_broadcast16_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* ---- The transform ---- */

/* v[i] lane j becomes v[j] lane i. */
TQ_INLINE void tq_transpose16(__m512 *v)
{
    __m512 t[16], u[16];

    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) { /* quarter q of u[i + 4k]: column 4q + i of rows 4k .. 4k+3 */
        __m512 a = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
        __m512 b = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
        __m512 c = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
        __m512 d = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        v[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        v[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

/* Butterflies between lanes i and i ^ distance. t + v*(+-1) is one rounding, as in the
 * reference. */
TQ_INLINE __m512 tq_butterfly16(__m512 v, int distance)
{
    const __m512 one = _mm512_set1_ps(1);
    const __mmask16 upper = distance == 1   ? 0xaaaa
                            : distance == 2 ? 0xcccc
                            : distance == 4 ? 0xf0f0
                                            : 0xff00;
    const __m512 sign = _mm512_mask_blend_ps(upper, one, _mm512_set1_ps(-1));
    __m512 t = distance == 1   ? _mm512_permute_ps(v, 0xb1)
               : distance == 2 ? _mm512_permute_ps(v, 0x4e)
               : distance == 4 ? _mm512_shuffle_f32x4(v, v, 0xb1)
                               : _mm512_shuffle_f32x4(v, v, 0x4e);
    return _mm512_fmadd_ps(v, sign, t);
}

/* One stage over n vectors: butterflies between v[i] and v[i + h]. Unrolled by request: rolled up,
 * the vectors would live in memory. */
TQ_INLINE void tq_hadamard_across16_stage(__m512 *v, const int n, const int h)
{
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
        if (i & h)
            continue;
        const __m512 a = v[i], b = v[i + h];
        v[i] = _mm512_add_ps(a, b);
        v[i + h] = _mm512_sub_ps(a, b);
    }
}

/* Stages over n vectors, n a power of two up to 16. */
TQ_INLINE void tq_hadamard_across16(__m512 *v, const int n)
{
    if (n > 1)
        tq_hadamard_across16_stage(v, n, 1);
    if (n > 2)
        tq_hadamard_across16_stage(v, n, 2);
    if (n > 4)
        tq_hadamard_across16_stage(v, n, 4);
    if (n > 8)
        tq_hadamard_across16_stage(v, n, 8);
}

/* y = H (pre * x) / sqrt(dim) * post; pre and post are sign tables or NULL; y == x is allowed.
 * Rows of 512 do their last stage from memory. */
TQ_INLINE void tq_hadamard_row16(float *y, const float *x, int dim, const float *pre,
                                 const float *post)
{
    const __m512 scale = _mm512_set1_ps(tq_rotate_scale((uint32_t)dim));
    const int n = dim > 256 ? 16 : dim / 16;

    for (int block = 0; block < dim; block += 256) {
        __m512 v[16];
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            v[i] = _mm512_loadu_ps(x + block + 16 * i);
            if (pre)
                v[i] = _mm512_mul_ps(v[i], _mm512_loadu_ps(pre + block + 16 * i));
            for (int distance = 1; distance < 16; distance *= 2)
                v[i] = tq_butterfly16(v[i], distance);
        }
        tq_hadamard_across16(v, n);
#pragma GCC unroll 16
        for (int i = 0; i < n; i++) {
            if (dim <= 256) {
                v[i] = _mm512_mul_ps(v[i], scale);
                if (post)
                    v[i] = _mm512_mul_ps(v[i], _mm512_loadu_ps(post + 16 * i));
            }
            _mm512_storeu_ps(y + block + 16 * i, v[i]);
        }
    }
    for (int i = 0; dim > 256 && i < 16; i++) {
        __m512 v[2] = {_mm512_loadu_ps(y + 16 * i), _mm512_loadu_ps(y + 256 + 16 * i)};
        tq_hadamard_across16(v, 2);
        for (int k = 0; k < 2; k++) {
            v[k] = _mm512_mul_ps(v[k], scale);
            if (post)
                v[k] = _mm512_mul_ps(v[k], _mm512_loadu_ps(post + 256 * k + 16 * i));
            _mm512_storeu_ps(y + 256 * k + 16 * i, v[k]);
        }
    }
}

#endif
