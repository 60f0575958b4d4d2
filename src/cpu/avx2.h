/* SPDX-License-Identifier: MIT */
/* avx2.h — building blocks of the AVX2 codec: bit packing, Lloyd tables, the transform.
 *
 * Include only in files compiled for avx2 + fma + f16c. Everything is static inline with constant
 * `bits` and `dim` at each call, so each format gets its own straight code. Results are those of
 * scalar.c bit for bit: the order of roundings is the same, only the order of independent values
 * differs. A fused multiply-add occurs only where the product is exact (a factor of +1 or -1).
 */
#ifndef TQ_CPU_AVX2_H
#define TQ_CPU_AVX2_H

#include "cpu/scalar.h"
#include "rotate.h"
#include "tables.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define TQ_INLINE static inline __attribute__((always_inline))

/* ---- Codes <-> bytes ---- */

/* Byte shuffle control of element i of eight in a stream of b-bit fields: the one or two bytes
 * that hold it, in the low half of a 32-bit lane; 0x80 gives a zero byte. */
#define TQ_CTL_BYTE(b, i)  (((i) * (b)) / 8)
#define TQ_CTL_SHIFT(b, i) (((i) * (b)) % 8)
#define TQ_CTL_NEXT(b, i)  (TQ_CTL_SHIFT(b, i) + (b) > 8 ? (TQ_CTL_BYTE(b, i) + 1) << 8 : 0x8000)
#define TQ_CTL(b, i)       ((int)(0x80800000u | (unsigned)(TQ_CTL_NEXT(b, i) | TQ_CTL_BYTE(b, i))))

/* Eight codes of b bits, the first at byte `base` of the 16 bytes that both halves of src hold. */
TQ_INLINE __m256i tq_unpack8(__m256i src, int b, int base)
{
    __m256i ctl = _mm256_setr_epi32(TQ_CTL(b, 0), TQ_CTL(b, 1), TQ_CTL(b, 2), TQ_CTL(b, 3),
                                    TQ_CTL(b, 4), TQ_CTL(b, 5), TQ_CTL(b, 6), TQ_CTL(b, 7));
    __m256i shift = _mm256_setr_epi32(TQ_CTL_SHIFT(b, 0), TQ_CTL_SHIFT(b, 1), TQ_CTL_SHIFT(b, 2),
                                      TQ_CTL_SHIFT(b, 3), TQ_CTL_SHIFT(b, 4), TQ_CTL_SHIFT(b, 5),
                                      TQ_CTL_SHIFT(b, 6), TQ_CTL_SHIFT(b, 7));
    __m256i field = _mm256_shuffle_epi8(src, _mm256_add_epi8(ctl, _mm256_set1_epi8((char)base)));
    return _mm256_and_si256(_mm256_srlv_epi32(field, shift), _mm256_set1_epi32((1 << b) - 1));
}

TQ_INLINE __m256i tq_load16_twice(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* The 32 codes of group g of a row into out [4] x 8. Reads no byte outside the row if the group has
 * a neighbour, g ^ 1, whose bytes a 3-bit group borrows; the last of an odd number of groups, and a
 * short one, take tq_unpack_last. 8-bit codes come out unsigned. */
TQ_INLINE void tq_unpack_group(__m256i *out, const uint8_t *row, uint32_t g, int b)
{
    const uint8_t *p = row + (size_t)g * 4 * (size_t)b;

    if (b == 8) {
        for (int k = 0; k < 4; k++)
            out[k] =
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8 * k)));
    } else if (b == 2) {
        __m256i src =
            _mm256_broadcastsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)p));
        for (int k = 0; k < 4; k++)
            out[k] = tq_unpack8(src, 2, 2 * k);
    } else if (b == 4) {
        __m256i src = tq_load16_twice(p);
        for (int k = 0; k < 4; k++)
            out[k] = tq_unpack8(src, 4, 4 * k);
    } else if (b == 3 && (g & 1) == 0) {
        __m256i src = tq_load16_twice(p);
        for (int k = 0; k < 4; k++)
            out[k] = tq_unpack8(src, 3, 3 * k);
    } else if (b == 3) {
        __m256i src = tq_load16_twice(p - 4);
        for (int k = 0; k < 4; k++)
            out[k] = tq_unpack8(src, 3, 4 + 3 * k);
    } else { /* 5 bits: 20 bytes */
        __m256i lo = tq_load16_twice(p);
        __m256i hi = tq_load16_twice(p + 4);
        out[0] = tq_unpack8(lo, 5, 0);
        out[1] = tq_unpack8(lo, 5, 5);
        out[2] = tq_unpack8(hi, 5, 6);
        out[3] = tq_unpack8(hi, 5, 11);
    }
}

/* The codes of the last group of a row, of n elements: no byte behind them is read. The codes from
 * n on are 0. */
TQ_INLINE void tq_unpack_last(__m256i *out, const uint8_t *p, uint32_t n, int b)
{
    uint8_t copy[32] = {0};
    memcpy(copy, p, n * (uint32_t)b / 8);
    tq_unpack_group(out, copy, 0, b);
}

/* 32 codes, one per 32-bit lane and within -128..255, to 32 bytes in order. */
TQ_INLINE __m256i tq_narrow_group(const __m256i *idx, int is_signed)
{
    __m256i a = _mm256_packs_epi32(idx[0], idx[1]);
    __m256i b = _mm256_packs_epi32(idx[2], idx[3]);
    __m256i bytes = is_signed ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b);
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Neighbouring b-bit codes of 32 bytes joined to one number of 4*b bits per 32-bit lane. */
TQ_INLINE __m256i tq_join4(__m256i bytes, int b)
{
    __m256i two = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16((short)(1 | 1 << (8 + b))));
    return _mm256_madd_epi16(two, _mm256_set1_epi32(1 | 1 << (16 + 2 * b)));
}

TQ_INLINE void tq_store4(uint8_t *p, __m128i v, int lane)
{
    int32_t x = lane == 0 ? _mm_cvtsi128_si32(v) : _mm_extract_epi32(v, 2);
    memcpy(p, &x, 4);
}

/* Write 32 codes (one byte each) as 4*b bytes. */
TQ_INLINE void tq_pack_group(uint8_t *p, __m256i bytes, int b)
{
    if (b == 8) {
        _mm256_storeu_si256((__m256i *)(void *)p, bytes);
        return;
    }
    if (b == 4) {
        __m256i two = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001));
        _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi16(_mm256_castsi256_si128(two),
                                                                _mm256_extracti128_si256(two, 1)));
        return;
    }
    __m256i four = tq_join4(bytes, b);
    if (b == 2) {
        const __m256i pick =
            _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                             -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
        __m256i x = _mm256_shuffle_epi8(four, pick);
        _mm_storel_epi64((__m128i *)(void *)p,
                         _mm_or_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
        return;
    }
    /* 3 and 5 bits: join the two halves of each 64-bit lane to 8*b bits, then close the gaps. */
    const int gap = 32 - 4 * b;
    __m256i eight = _mm256_srli_epi64(
        _mm256_sllv_epi32(four, _mm256_setr_epi32(gap, 0, gap, 0, gap, 0, gap, 0)), gap);
    if (b == 3) {
        const __m256i pick =
            _mm256_setr_epi8(0, 1, 2, 8, 9, 10, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                             -1, -1, -1, 0, 1, 2, 8, 9, 10, -1, -1, -1, -1);
        __m256i x = _mm256_shuffle_epi8(eight, pick);
        __m128i y = _mm_or_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_storel_epi64((__m128i *)(void *)p, y);
        tq_store4(p + 8, y, 2);
    } else {
        const __m256i pick =
            _mm256_setr_epi8(0, 1, 2, 3, 4, 8, 9, 10, 11, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                             -1, -1, -1, -1, -1, -1, -1, 0, 1, 2, 3, 4, 8);
        const __m128i rest =
            _mm_setr_epi8(9, 10, 11, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
        __m256i x = _mm256_shuffle_epi8(eight, pick);
        _mm_storeu_si128((__m128i *)(void *)p,
                         _mm_or_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
        tq_store4(p + 16, _mm_shuffle_epi8(_mm256_extracti128_si256(eight, 1), rest), 0);
    }
}

/* Ask for a row that is wanted soon: shares of these between other work, for all at once would fill
 * the queue to memory and stop everything. */
TQ_INLINE void tq_ask_for(const float *x, uint32_t dim)
{
#pragma GCC unroll 8
    for (uint32_t i = 0; i < dim; i += 64 / sizeof *x)
        _mm_prefetch((const char *)(x + i), _MM_HINT_T0);
}

/* ---- f16 ---- */

/* Eight f32 to f16, every NaN to 0x7e00. */
TQ_INLINE __m128i tq_f16_from_f32x8(__m256 x)
{
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_cvtps_ph(_mm256_blendv_ps(x, quiet, nan), _MM_FROUND_TO_NEAREST_INT);
}

/* One stored f16, in all lanes. */
TQ_INLINE __m256 tq_broadcast_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* ---- Lloyd tables ---- */

typedef struct tq_lloyd_regs {
    __m256 t[4]; /* up to 32 centroids */
    const float *centroid;
} tq_lloyd_regs;

TQ_INLINE tq_lloyd_regs tq_lloyd_load(int b)
{
    const float *c = tq_lloyd_get((uint32_t)b)->centroid;
    tq_lloyd_regs r;

    r.centroid = c;
    if (b == 2)
        r.t[0] = _mm256_broadcast_ps((const __m128 *)(const void *)c);
    for (int i = 0; b != 2 && b != 8 && i < (1 << b) / 8; i++)
        r.t[i] = _mm256_loadu_ps(c + 8 * i);
    return r;
}

TQ_INLINE __m256 tq_lloyd_lookup(const tq_lloyd_regs *r, __m256i idx, int b)
{
    if (b == 2)
        return _mm256_permutevar_ps(r->t[0], idx);
    if (b == 8)
        return _mm256_i32gather_ps(r->centroid, idx, 4);
    __m256 lo = _mm256_permutevar8x32_ps(r->t[0], idx);
    if (b == 3)
        return lo;
    __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(idx, 28));
    lo = _mm256_blendv_ps(lo, _mm256_permutevar8x32_ps(r->t[1], idx), bit3);
    if (b == 4)
        return lo;
    __m256 hi = _mm256_blendv_ps(_mm256_permutevar8x32_ps(r->t[2], idx),
                                 _mm256_permutevar8x32_ps(r->t[3], idx), bit3);
    return _mm256_blendv_ps(lo, hi, _mm256_castsi256_ps(_mm256_slli_epi32(idx, 27)));
}

/* ---- The transform ---- */

/* Stages h = 1, 2, 4 inside a vector. t + v*(+-1) is one rounding, as in the reference. */
TQ_INLINE __m256 tq_hadamard8(__m256 v)
{
    const __m256 s1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 s2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const __m256 s4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);

    v = _mm256_fmadd_ps(v, s1, _mm256_permute_ps(v, 0xb1));
    v = _mm256_fmadd_ps(v, s2, _mm256_permute_ps(v, 0x4e));
    return _mm256_fmadd_ps(v, s4, _mm256_permute2f128_ps(v, v, 0x01));
}

/* One stage over n vectors: butterflies between v[i] and v[i + h]. Unrolled by request: rolled up,
 * the vectors would live in memory. */
TQ_INLINE void tq_hadamard_across_stage(__m256 *v, const int n, const int h)
{
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
        if (i & h)
            continue;
        const __m256 a = v[i], b = v[i + h];
        v[i] = _mm256_add_ps(a, b);
        v[i + h] = _mm256_sub_ps(a, b);
    }
}

/* Stages over n vectors, n a power of two up to 16. */
TQ_INLINE void tq_hadamard_across(__m256 *v, const int n)
{
    if (n > 1)
        tq_hadamard_across_stage(v, n, 1);
    if (n > 2)
        tq_hadamard_across_stage(v, n, 2);
    if (n > 4)
        tq_hadamard_across_stage(v, n, 4);
    if (n > 8)
        tq_hadamard_across_stage(v, n, 8);
}

/* y = H (pre * x) / sqrt(dim) * post; pre and post are sign tables or NULL; y == x is allowed. */
TQ_INLINE void tq_hadamard(float *y, const float *x, int dim, const float *pre, const float *post)
{
    const __m256 scale = _mm256_set1_ps(tq_rotate_scale((uint32_t)dim));
    const int n_blocks = dim / 64;

    for (int block = 0; block < n_blocks; block++) {
        __m256 v[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            v[i] = _mm256_loadu_ps(x + 64 * block + 8 * i);
            if (pre)
                v[i] = _mm256_mul_ps(v[i], _mm256_loadu_ps(pre + 64 * block + 8 * i));
            v[i] = tq_hadamard8(v[i]);
        }
        tq_hadamard_across(v, 8);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            _mm256_storeu_ps(y + 64 * block + 8 * i, v[i]);
    }
    for (int i = 0; i < 8; i++) {
        __m256 v[8];
#pragma GCC unroll 8
        for (int block = 0; block < n_blocks; block++)
            v[block] = _mm256_loadu_ps(y + 64 * block + 8 * i);
        tq_hadamard_across(v, n_blocks);
#pragma GCC unroll 8
        for (int block = 0; block < n_blocks; block++) {
            v[block] = _mm256_mul_ps(v[block], scale);
            if (post)
                v[block] = _mm256_mul_ps(v[block], _mm256_loadu_ps(post + 64 * block + 8 * i));
            _mm256_storeu_ps(y + 64 * block + 8 * i, v[block]);
        }
    }
}

#endif
