/* SPDX-License-Identifier: MIT */
/* avx2_attn_sums.h — sums of small numbers times byte weights, for AVX2: what the values of up to 4
 * bits have in common; and what wider ones share with them.
 *
 * A number is an int8, a weight (scale of the token or group included) a byte of up to 255. Four
 * tokens of an element are together (a QUAD: 32 bytes are 4 tokens x 8 elements): vpmaddubsw adds
 * the products of two tokens in an int16, vpmaddwd those sums in an int32. An int16 holds two
 * products, or four, which saves half of the vpmaddwd; how large weights may be depends on that:
 *
 *   numbers up to 29, four products   4 * 255 * 29 = 29580
 *                 61, two                2 * 255 * 61 = 31110
 *
 * So each of the 64 tokens of a tile has 255 steps. (Sums of a whole tile in int16 leave about 260
 * steps to all of them together, and their noise shows in a model.) The noise of the rounding is at
 * most 64 / (12 * 255^2) * largest^2 / (sum of squares) of the sum's own square: 0.24 % of the
 * error of 3-bit values and 0.9 % of that of 4-bit values, if one token has all the weight;
 * docs/numerics.md has what was measured. */
#ifndef TQ_CPU_AVX2_ATTN_SUMS_H
#define TQ_CPU_AVX2_ATTN_SUMS_H

#include "cpu/avx2_attn.h"

#include <float.h>
#include <math.h>

#define TQ_WEIGHT_TOP 255.0f

#define TQ_SUM_ROWS 4u

/* The larger of numbers >= 0, as their bits: a NaN is the largest. */
TQ_INLINE __m256 tq_larger(__m256 a, __m256 b)
{
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}

/* Largest lane of each of four registers of such numbers. */
TQ_INLINE __m128 tq_largest(const __m256 x[4])
{
    __m256 y = tq_larger(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    __m256 z = tq_larger(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    y = tq_larger(_mm256_shuffle_ps(y, z, 0x44), _mm256_shuffle_ps(y, z, 0xee));
    z = _mm256_permute2f128_ps(y, y, 1);
    return _mm256_castps256_ps128(tq_larger(y, z));
}

/* The sums of four registers. */
TQ_INLINE __m128 tq_sum4(const __m256 x[4])
{
    const __m256 y = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    return _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
}

TQ_INLINE __m128i tq_sum4_i32(const __m256i x[4])
{
    const __m256i y =
        _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

/* Is a sign bit set in x [n], n a multiple of 8? Kernels decode rows that have a scale with a sign:
 * no encoder writes one. */
TQ_INLINE int tq_has_sign(const float *x, uint32_t n)
{
    __m256 any = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8)
        any = _mm256_or_ps(any, _mm256_loadu_ps(x + i));
    return _mm256_movemask_ps(any) != 0;
}

/* Rounding of the weights of up to four rows. */
typedef struct tq_weight_steps {
    float up[4]; /* a weight times a scale times this is an integer */
    __m128 down; /* what an integer stands for; NaN where that must show */
} tq_weight_steps;

/* The largest of each row, `most`, becomes `top`. */
TQ_INLINE void tq_steps_from(tq_weight_steps *out, __m128 most, float top)
{
    /* Below, the quotient could overflow; beside any other tile it is 0. Above: a NaN or Inf of
     * weights or hostile scales must show in the result. */
    const __m128 seen = _mm_cmpge_ps(most, _mm_set1_ps(0x1p-90f));
    const __m128 finite = _mm_cmple_ps(most, _mm_set1_ps(FLT_MAX));
    const __m128 up = _mm_div_ps(_mm_set1_ps(top), most);
    _mm_storeu_ps(out->up, _mm_and_ps(up, _mm_and_ps(seen, finite)));
    const __m128 down = _mm_and_ps(_mm_mul_ps(most, _mm_set1_ps(1 / top)), seen);
    out->down = _mm_blendv_ps(_mm_set1_ps(NAN), down, finite);
}

/* The largest weight times bound [64] becomes `top`. w [rows][64], both >= 0. */
TQ_INLINE void tq_find_steps(tq_weight_steps *out, const float *w, const float *bound, float top,
                             const uint32_t rows)
{
    __m256 peak[4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        peak[r] = _mm256_setzero_ps();
    TQ_UNROLL_FOR (uint32_t t = 0; t < TQ_TILE; t += 8) {
        const __m256 b = _mm256_loadu_ps(bound + t);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(w + r * TQ_TILE + t), b);
            peak[r] = tq_larger(x, peak[r]);
        }
    }
    /* A NaN made here may have a sign: it is the largest all the same. */
    tq_steps_from(out, tq_largest(peak), top);
}

/* Bytes of the weights w [64] of a row times scale [64] times up, each rounded with what the
 * rounding of the eighth before it left over: small weights add up to bytes. Returns their sum. */
uint32_t tq_avx2_round_carried(uint8_t *w8, const float *w, const float *scale, float up)
    __attribute__((cold));

/* Bytes of the weights times scale [64]: w8 [rows][64]. Returns what an integer stands for: as
 * by->down, but so that the weights of a row have the sum that they had before. What values have in
 * common is then not rounded at all; else weights below half a step would be missing from it.
 * Where one token has most of the weight that would give it what others lose, up to an eighth of
 * all: rows whose sum changes by more than 1 / 128 are rounded with a carry. (It is noise of its
 * own, 64 / 12 of the square of a step, so other rows do without.) */
TQ_INLINE __m128 tq_round_bytes(uint8_t *w8, const tq_weight_steps *by, const float *w,
                                const float *scale, const uint32_t rows)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256 total[4];
    __m256i bytes[4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++) {
        total[r] = _mm256_setzero_ps();
        bytes[r] = _mm256_setzero_si256();
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 up = _mm256_broadcast_ss(by->up + r);
        TQ_UNROLL_FOR (uint32_t t = 0; t < TQ_TILE; t += 32) {
            __m256i x[4];
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                const __m256 s = _mm256_mul_ps(up, _mm256_loadu_ps(scale + t + 8 * i));
                const __m256 y = _mm256_mul_ps(s, _mm256_loadu_ps(w + r * TQ_TILE + t + 8 * i));
                total[r] = _mm256_add_ps(total[r], y);
                x[i] = _mm256_cvtps_epi32(y);
            }
            __m256i y =
                _mm256_packus_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
            bytes[r] = _mm256_add_epi32(bytes[r], _mm256_sad_epu8(y, _mm256_setzero_si256()));
            y = _mm256_permutevar8x32_epi32(y, order);
            _mm256_storeu_si256((__m256i *)(void *)(w8 + r * TQ_TILE + t), y);
        }
    }
    const __m128 sum = tq_sum4(total);
    __m128 sum8 = _mm_cvtepi32_ps(tq_sum4_i32(bytes));
    const __m128 change = _mm_andnot_ps(_mm_set1_ps(-0.0f), _mm_sub_ps(sum, sum8));
    const __m128 most = _mm_mul_ps(sum8, _mm_set1_ps(1.0f / 128));
    const int off = _mm_movemask_ps(_mm_cmpgt_ps(change, most));
    if (__builtin_expect(off, 0)) {
        float carried[4];
        _mm_storeu_ps(carried, sum8);
        for (uint32_t r = 0; r < rows; r++)
            if (off >> r & 1)
                carried[r] = (float)tq_avx2_round_carried(w8 + r * TQ_TILE, w + r * TQ_TILE, scale,
                                                          by->up[r]);
        sum8 = _mm_loadu_ps(carried);
    }
    /* None left: a group whose scales are nothing beside those of another. */
    const __m128 ratio = _mm_and_ps(_mm_div_ps(sum, sum8), _mm_cmpneq_ps(sum8, _mm_setzero_ps()));
    /* A NaN is in by->down already. */
    return _mm_mul_ps(by->down, ratio);
}

TQ_INLINE __m256i tq_load_bytes(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* sum [rows][2] += 16 elements of 16 n tokens. x: their first quads, 64 bytes, the next `stride`
 * bytes on; w8 [rows][64]. fours: an int16 holds four products. */
TQ_INLINE void tq_sum_quads(__m256i sum[TQ_SUM_ROWS][2], const uint8_t *w8, const uint8_t *x,
                            size_t stride, uint32_t n, const int fours, const uint32_t rows)
{
    for (uint32_t i = 0; i < n; i++) {
        TQ_UNROLL_FOR (uint32_t half = 0; half < 2; half++, w8 += 8, x += 2 * stride) {
            const __m256i a0 = tq_keep(tq_load_bytes(x)), a1 = tq_keep(tq_load_bytes(x + 32));
            const __m256i b0 = tq_keep(tq_load_bytes(x + stride));
            const __m256i b1 = tq_keep(tq_load_bytes(x + stride + 32));
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                const uint8_t *p = w8 + r * TQ_TILE;
                const __m256i y = _mm256_set1_epi32((int)tq_load_u32(p));
                const __m256i z = _mm256_set1_epi32((int)tq_load_u32(p + 4));
                const __m256i ya = _mm256_maddubs_epi16(y, a0), yb = _mm256_maddubs_epi16(y, a1);
                const __m256i za = _mm256_maddubs_epi16(z, b0), zb = _mm256_maddubs_epi16(z, b1);
                if (fours) {
                    const __m256i s = _mm256_add_epi16(ya, za), t = _mm256_add_epi16(yb, zb);
                    sum[r][0] = tq_add_i32(sum[r][0], tq_add_pairs(s));
                    sum[r][1] = tq_add_i32(sum[r][1], tq_add_pairs(t));
                } else {
                    sum[r][0] = tq_add_i32(sum[r][0], tq_add_pairs(ya));
                    sum[r][1] = tq_add_i32(sum[r][1], tq_add_pairs(yb));
                    sum[r][0] = tq_add_i32(sum[r][0], tq_add_pairs(za));
                    sum[r][1] = tq_add_i32(sum[r][1], tq_add_pairs(zb));
                }
            }
        }
    }
}

/* sum += 16 elements of four tokens by 16-bit weights, at w16 in the order 0, 2, 1, 3 and rows 64
 * apart. x: their quad of bytes that are not negative, 64 of them. */
TQ_INLINE void tq_sum_wide_quad(__m256i sum[TQ_SUM_ROWS][2], const int16_t *w16, const uint8_t *x,
                                const uint32_t rows)
{
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i a = tq_keep(tq_load_bytes(x)), b = tq_keep(tq_load_bytes(x + 32));
    const __m256i even[2] = {_mm256_and_si256(a, low), _mm256_and_si256(b, low)};
    const __m256i odd[2] = {_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)};
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const uint8_t *pairs = (const uint8_t *)(w16 + r * TQ_TILE);
        const __m256i y = _mm256_set1_epi32((int)tq_load_u32(pairs));
        sum[r][0] = tq_add_i32(sum[r][0], _mm256_madd_epi16(even[0], y));
        sum[r][1] = tq_add_i32(sum[r][1], _mm256_madd_epi16(even[1], y));
        const __m256i z = _mm256_set1_epi32((int)tq_load_u32(pairs + 4));
        sum[r][0] = tq_add_i32(sum[r][0], _mm256_madd_epi16(odd[0], z));
        sum[r][1] = tq_add_i32(sum[r][1], _mm256_madd_epi16(odd[1], z));
    }
}

#endif
