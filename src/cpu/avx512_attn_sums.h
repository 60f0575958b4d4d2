/* SPDX-License-Identifier: MIT */
/* avx512_attn_sums.h — sums of small numbers times byte weights, for AVX-512: avx2_attn_sums.h in
 * registers of 64 bytes. With VNNI one instruction adds the products of the four tokens of a lane
 * to an int32, so nothing bounds a number but its int8, and weights have 255 steps for all formats.
 */
#ifndef TQ_CPU_AVX512_ATTN_SUMS_H
#define TQ_CPU_AVX512_ATTN_SUMS_H

#include "cpu/avx2_attn_sums.h"
#include "cpu/avx2_attn_words.h"
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

/* Bytes of x [64], weights in steps of one; saturated. */
TQ_INLINE __m512i tq_to_bytes(const __m512 x[4])
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i a = _mm512_cvtps_epi32(x[0]), b = _mm512_cvtps_epi32(x[1]);
    const __m512i c = _mm512_cvtps_epi32(x[2]), d = _mm512_cvtps_epi32(x[3]);
    const __m512i y = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    return _mm512_permutexvar_epi32(order, y);
}

/* What each lane of 32 bits of x adds up to, by registers. */
TQ_INLINE __m512i tq_count_bytes(__m512i x)
{
    return tq_dot4(_mm512_setzero_si512(), x, _mm512_set1_epi8(1));
}

/* w8 [64] = bytes of w [64] * scale [64] * up, once more, with what rounding takes from a token
 * given to the one 16 on; returns their sum. A row in which one token is nearly all needs it: the
 * others may all be less than half a step, and would give what they weigh to that one. Lanes start
 * with a different part of a step, so that equal tokens are not rounded alike. */
uint32_t TQ_CLUSTER(tq_avx512_round_again)(uint8_t *w8, const float *w, const float *scale,
                                           float up);

/* Is the sum of bytes, sum8, so far off that they are to be rounded again? Of 16 sums. */
TQ_INLINE __mmask16 tq_sums_differ(__m512 sum, __m512 sum8)
{
    const __m512 off = _mm512_abs_ps(_mm512_sub_ps(sum, sum8));
    const __m512 most = _mm512_mul_ps(sum8, _mm512_set1_ps(1.0f / 128));
    return _mm512_cmp_ps_mask(off, most, _CMP_GT_OQ); /* not of a NaN */
}

typedef __m512i tq_fold_fn(__m512i a, __m512i b);

TQ_INLINE __m512i tq_fold_add(__m512i a, __m512i b)
{
    return _mm512_add_epi32(a, b);
}

TQ_INLINE __m512i tq_fold_add_ps(__m512i a, __m512i b)
{
    return _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
}

/* Of numbers >= 0, as their bits: a NaN is the largest. */
TQ_INLINE __m512i tq_fold_larger(__m512i a, __m512i b)
{
    return _mm512_max_epu32(a, b);
}

/* Element i: all lanes of x[i] folded. */
TQ_INLINE __m128i tq_fold4(const __m512i x[4], tq_fold_fn *fold)
{
    const __m512i a = fold(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i b = fold(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    __m512i y = fold(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    y = fold(y, _mm512_shuffle_i64x2(y, y, 0x4e));
    return _mm512_castsi512_si128(fold(y, _mm512_shuffle_i64x2(y, y, 0xb1)));
}

/* As tq_find_steps. */
TQ_INLINE void tq_find_steps64(tq_weight_steps *out, const float *w, const float *bound, float top,
                               const uint32_t rows)
{
    __m512i peak[4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        peak[r] = _mm512_setzero_si512();
    TQ_UNROLL_FOR (uint32_t t = 0; t < TQ_TILE; t += 16) {
        const __m512 b = _mm512_loadu_ps(bound + t);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(w + r * TQ_TILE + t), b);
            peak[r] = tq_fold_larger(_mm512_castps_si512(x), peak[r]);
        }
    }
    tq_steps_from(out, _mm_castsi128_ps(tq_fold4(peak, tq_fold_larger)), top);
}

/* High and low bytes of x [64] >= 0, weights in steps of one; saturated at 65535. */
TQ_INLINE void tq_to_two_bytes(uint8_t high[TQ_TILE], uint8_t low[TQ_TILE], const __m512 x[4])
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i mask = _mm512_set1_epi16(255);
    const __m512i a = _mm512_packus_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1]));
    const __m512i b = _mm512_packus_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3]));
    const __m512i y = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    const __m512i z = _mm512_packus_epi16(_mm512_and_si512(a, mask), _mm512_and_si512(b, mask));
    _mm512_store_si512(high, _mm512_permutexvar_epi32(order, y));
    _mm512_store_si512(low, _mm512_permutexvar_epi32(order, z));
}

/* A sum by weights of 16 bits from those by their high and low bytes. */
TQ_INLINE __m512i tq_join_bytes(__m512i high, __m512i low)
{
    return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

#define TQ_FINE_TOP 65535.0f

/* As tq_round_small, w8 [2 planes][TQ_SUM_ROWS][64], high bytes first. In 65535 steps a sum stays
 * what it was, to the nearest. */
TQ_INLINE void tq_round_fine64(uint8_t *w8, float factor[4], const float *w, const float *scale,
                               float unit, const uint32_t rows)
{
    tq_weight_steps by;

    tq_find_steps64(&by, w, scale, TQ_FINE_TOP, rows);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++, w8 += TQ_TILE) {
        __m512 x[4];
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(w + r * TQ_TILE + 16 * i),
                                           _mm512_loadu_ps(scale + 16 * i));
            x[i] = _mm512_mul_ps(y, _mm512_set1_ps(by.up[r]));
        }
        tq_to_two_bytes(w8, w8 + TQ_SUM_ROWS * TQ_TILE, x);
    }
    _mm_storeu_ps(factor, _mm_mul_ps(by.down, _mm_set1_ps(unit)));
}

/* w8 [rows][64] = bytes of w [rows][64] * scale [64]; factor [4]: what one stands for, times unit;
 * sums8 [4] or NULL: what they add up to. Weights of a row keep their sum, see tq_round_bytes. */
TQ_INLINE void tq_round_small(uint8_t *w8, float factor[4], int32_t *sums8, const float *w,
                              const float *scale, float unit, const uint32_t rows)
{
    __m512 y[4][4];
    __m512i peak[4], total[4], count[4];
    tq_weight_steps by;

    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        peak[r] = total[r] = count[r] = _mm512_setzero_si512();
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            y[r][i] = _mm512_mul_ps(_mm512_loadu_ps(w + r * TQ_TILE + 16 * i),
                                    _mm512_loadu_ps(scale + 16 * i));
            peak[r] = tq_fold_larger(_mm512_castps_si512(y[r][i]), peak[r]);
        }
    tq_steps_from(&by, _mm_castsi128_ps(tq_fold4(peak, tq_fold_larger)), TQ_WEIGHT_TOP);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512 up = _mm512_set1_ps(by.up[r]);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            y[r][i] = _mm512_mul_ps(y[r][i], up);
        const __m512 a = _mm512_add_ps(y[r][0], y[r][1]), b = _mm512_add_ps(y[r][2], y[r][3]);
        const __m512i bytes = tq_to_bytes(y[r]);
        _mm512_storeu_si512(w8 + r * TQ_TILE, bytes);
        total[r] = _mm512_castps_si512(_mm512_add_ps(a, b));
        count[r] = tq_count_bytes(bytes);
    }
    const __m128 sum = _mm_castsi128_ps(tq_fold4(total, tq_fold_add_ps));
    __m128 sum8 = _mm_cvtepi32_ps(tq_fold4(count, tq_fold_add));
    uint32_t again =
        tq_sums_differ(_mm512_zextps128_ps512(sum), _mm512_zextps128_ps512(sum8)) & 15u;
    if (__builtin_expect(again != 0, 0)) {
        float new8[4];
        _mm_storeu_ps(new8, sum8);
        for (uint32_t r = 0; r < rows; r++)
            if (again >> r & 1)
                new8[r] = (float)TQ_CLUSTER(tq_avx512_round_again)(
                    w8 + r * TQ_TILE, w + r * TQ_TILE, scale, by.up[r]);
        sum8 = _mm_loadu_ps(new8);
    }
    if (sums8)
        _mm_storeu_si128((__m128i *)(void *)sums8, _mm_cvtps_epi32(sum8));
    /* None left: what the tile weighs is nothing. A NaN is in by.down. */
    const __m128 ratio = _mm_and_ps(_mm_div_ps(sum, sum8), _mm_cmpneq_ps(sum8, _mm_setzero_ps()));
    _mm_storeu_ps(factor, _mm_mul_ps(_mm_mul_ps(by.down, ratio), _mm_set1_ps(unit)));
}

/* The same to int16, w16 [rows][64], in steps of the larger of largest / 32767 and sum /
 * weight_sum, see avx2_attn_words.h. Returns the sums of weights times scales. */
TQ_INLINE __m128 tq_round_words(int16_t *w16, float factor[4], const float *w, const float *scale,
                                float unit, float weight_sum, const uint32_t rows)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    __m512 x[4][4];
    __m512i peak[4], total[4];
    float up[4];

    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        peak[r] = total[r] = _mm512_setzero_si512();
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            x[r][i] = _mm512_mul_ps(_mm512_loadu_ps(w + r * TQ_TILE + 16 * i),
                                    _mm512_loadu_ps(scale + 16 * i));
            peak[r] = tq_fold_larger(_mm512_castps_si512(x[r][i]), peak[r]);
        }
        const __m512 a = _mm512_add_ps(x[r][0], x[r][1]), b = _mm512_add_ps(x[r][2], x[r][3]);
        total[r] = _mm512_castps_si512(_mm512_add_ps(a, b));
    }
    /* As in tq_steps_from, but of two limits: a NaN or Inf must show, of the sum it does. */
    const __m128 sum = _mm_castsi128_ps(tq_fold4(total, tq_fold_add_ps));
    const __m128 most = _mm_castsi128_ps(tq_fold4(peak, tq_fold_larger));
    const __m128 seen = _mm_cmpge_ps(sum, _mm_set1_ps(0x1p-90f));
    const __m128 finite = _mm_cmple_ps(sum, _mm_set1_ps(FLT_MAX));
    const __m128 down = _mm_max_ps(_mm_mul_ps(most, _mm_set1_ps(1 / TQ_WORD_MAX)),
                                   _mm_mul_ps(sum, _mm_set1_ps(1 / weight_sum)));
    const __m128 by = _mm_and_ps(_mm_mul_ps(down, _mm_set1_ps(unit)), seen);
    _mm_storeu_ps(up, _mm_and_ps(_mm_div_ps(_mm_set1_ps(1), down), _mm_and_ps(seen, finite)));
    _mm_storeu_ps(factor, _mm_blendv_ps(_mm_set1_ps(NAN), by, finite));
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512 u = _mm512_set1_ps(up[r]);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i += 2) {
            const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(x[r][i], u));
            const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(x[r][i + 1], u));
            _mm512_storeu_si512(w16 + r * TQ_TILE + 16 * i,
                                _mm512_permutexvar_epi64(order, _mm512_packs_epi32(a, b)));
        }
    }
    return sum;
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
