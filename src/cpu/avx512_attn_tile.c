/* SPDX-License-Identifier: MIT */
/* avx512_attn_tile.c — softmax and matrix product for AVX-512.
 *
 * exp and tanh are those of avx2_attn.c, twice as wide. The micro-kernel of the product holds a
 * block of 12 x 32 results in 24 registers; each step of k costs two loads of b, twelve broadcasts
 * of a and 24 fused multiply-adds, so the multipliers set the pace.
 */
#include "cpu/avx512_attn_sums.h"

#include <math.h>

/* Below this exp(x) < 2^-126; results flush to 0. */
#define EXP_MIN -87.33654f

/* exp(x) for x <= 88; relative error about 1 ulp. -INF gives 0, NaN gives NaN. */
TQ_INLINE __m512 exp16(__m512 x)
{
    const __m512 log2e = _mm512_set1_ps(0x1.715476p+0f), rest = _mm512_set1_ps(0x1.4ae0cp-26f);
    const __m512 one_ulp = _mm512_set1_ps(0x1.8p+23f);
    const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, log2e, one_ulp), one_ulp);
    const __m512 r = _mm512_fmadd_ps(x, rest, _mm512_fmsub_ps(x, log2e, n));
    __m512 p = _mm512_set1_ps(0x1.44138ap-13f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.5f089p-10f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.3b2a54p-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.c6af6cp-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ebfbep-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e43p-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    /* Unordered compare: a NaN stays. */
    const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_MIN), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(keep, p, n);
}

/* tanh(x): odd polynomial where 1 - 2 / (exp(2x) + 1) would cancel. NaN gives NaN. */
TQ_INLINE __m512 tanh16(__m512 x)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1);
    __m512 a = _mm512_andnot_ps(sign, x);
    /* tanh(10) is 1 in f32; min returns its second operand for a NaN */
    __m512 c = _mm512_min_ps(_mm512_set1_ps(10), a);
    __m512 e = exp16(_mm512_add_ps(c, c));
    __m512 big = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), _mm512_add_ps(e, one)));
    __m512 z = _mm512_mul_ps(a, a);
    __m512 p = _mm512_set1_ps(0x1.2c83c2p-9f);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-0x1.116a16p-7f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(0x1.64a976p-6f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-0x1.ba08c4p-5f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(0x1.1110eap-3f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-0x1.555556p-2f));
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, z), a, a);
    __mmask16 is_small = _mm512_cmp_ps_mask(a, _mm512_set1_ps(0.625f), _CMP_LT_OQ);
    return _mm512_or_ps(_mm512_mask_blend_ps(is_small, big, small), _mm512_and_ps(sign, x));
}

enum { N_VEC = TQ_TILE / 16, ROWS = 4 };

TQ_INLINE __m512i fold_max_ps(__m512i a, __m512i b)
{
    return _mm512_castps_si512(_mm512_max_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
}

/* Up to four rows: all maxima, then all exponentials, as in avx2_attn.c. */
TQ_INLINE void softmax_rows(float *s, const tq_span *span, uint32_t n_rows, float softcap,
                            float *max, float *sum, float *alpha)
{
    const __m512 none = _mm512_set1_ps(-INFINITY), cap = _mm512_set1_ps(softcap);
    const __mmask8 real = (__mmask8)((1u << n_rows) - 1);
    __m512i most[ROWS], total[ROWS];
    float base[ROWS];

    TQ_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++) {
        most[r] = _mm512_castps_si512(none);
        total[r] = _mm512_setzero_si512();
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = s + r * TQ_TILE;
        const unsigned lo = span[r].lo, hi = span[r].hi;
        const uint64_t seen = lo < hi ? UINT64_MAX >> (TQ_TILE - hi) & UINT64_MAX << lo : 0;
        __m512 m16 = none;
        TQ_UNROLL_FOR (int i = 0; i < N_VEC; i++) {
            __m512 x = _mm512_loadu_ps(row + 16 * i);
            if (softcap > 0)
                x = _mm512_mul_ps(cap, tanh16(_mm512_div_ps(x, cap)));
            x = _mm512_mask_mov_ps(none, (__mmask16)(seen >> 16 * i), x);
            if (softcap > 0 || seen != UINT64_MAX)
                _mm512_storeu_ps(row + 16 * i, x);
            /* max returns its second operand for a NaN: NaNs do not become the maximum, exp keeps
             * them. */
            m16 = _mm512_max_ps(x, m16);
        }
        most[r] = _mm512_castps_si512(m16);
    }
    const __m128 m = _mm_castsi128_ps(tq_fold4(most, fold_max_ps));
    const __m128 before = _mm_maskz_loadu_ps(real, max);
    const __mmask8 larger = _mm_cmp_ps_mask(m, before, _CMP_GT_OQ);
    const __m128 now = _mm_mask_mov_ps(before, larger, m);
    _mm_mask_storeu_ps(max, real, now);
    /* Only -INFINITY so far: nothing to weigh, and -INF - -INF would be NaN. */
    const __mmask8 some = _mm_cmp_ps_mask(now, _mm_set1_ps(-INFINITY), _CMP_NEQ_UQ);
    _mm_storeu_ps(base, _mm_maskz_mov_ps(some, now));
    /* exp(0) is 1: no new maximum. */
    const __m128 down = _mm_maskz_sub_ps(larger, before, now);
    const __m128 by = _mm512_castps512_ps128(exp16(_mm512_zextps128_ps512(down)));
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = s + r * TQ_TILE;
        const __m512 base16 = _mm512_set1_ps(base[r]);
        __m512 y[N_VEC];
        TQ_UNROLL_FOR (int i = 0; i < N_VEC; i++) {
            y[i] = exp16(_mm512_sub_ps(_mm512_loadu_ps(row + 16 * i), base16));
            _mm512_storeu_ps(row + 16 * i, y[i]);
        }
        total[r] = _mm512_castps_si512(
            _mm512_add_ps(_mm512_add_ps(y[0], y[1]), _mm512_add_ps(y[2], y[3])));
    }
    const __m128 all = _mm_castsi128_ps(tq_fold4(total, tq_fold_add_ps));
    const __m128 old = _mm_maskz_loadu_ps(real, sum);
    _mm_mask_storeu_ps(sum, real, _mm_add_ps(_mm_mul_ps(old, by), all));
    _mm_mask_storeu_ps(alpha, real, by);
}

void TQ_CLUSTER(tq_avx512_softmax)(float *s, const tq_span *span, uint32_t n_rows, float softcap,
                                   float *max, float *sum, float *alpha)
{
    for (uint32_t r = 0; r < n_rows; r += ROWS)
        softmax_rows(s + r * TQ_TILE, span + r, n_rows - r < ROWS ? n_rows - r : ROWS, softcap,
                     max + r, sum + r, alpha + r);
}

#define MR 12

/* c [m][16 * strips]; m <= MR and strips, 1 or 2, known at compile time. */
TQ_INLINE void block(const uint32_t m, const uint32_t strips, float *c, size_t ldc, const float *a,
                     size_t lda, const float *b, const float *alpha, uint32_t k)
{
    const float *next = b + (size_t)k * TQ_STRIP; /* the second strip */
    __m512 sum[MR][2];
#pragma GCC unroll 12
    for (uint32_t i = 0; i < m; i++)
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (uint32_t l = 0; l < k; l++) {
        __m512 b0 = _mm512_loadu_ps(b + l * TQ_STRIP), b1 = b0;
        if (strips == 2)
            b1 = _mm512_loadu_ps(next + l * TQ_STRIP);
#pragma GCC unroll 12
        for (uint32_t i = 0; i < m; i++) {
            __m512 x = _mm512_set1_ps(a[i * lda + l]);
            sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
            if (strips == 2)
                sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
        }
    }
#pragma GCC unroll 12
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < strips; j++) {
            float *dst = c + i * ldc + j * TQ_STRIP;
            __m512 x = sum[i][j];
            if (alpha)
                x = _mm512_fmadd_ps(_mm512_set1_ps(alpha[i]), _mm512_loadu_ps(dst), x);
            _mm512_storeu_ps(dst, x);
        }
}

/* All rows of one or two strips. */
TQ_INLINE void panel(const uint32_t strips, float *c, size_t ldc, const float *a, size_t lda,
                     const float *b, const float *alpha, uint32_t m, uint32_t k)
{
    uint32_t i = 0;
#define ROWS(n)                                                                                    \
    for (; i + (n) <= m; i += (n))                                                                 \
    block(n, strips, c + i * ldc, ldc, a + i * lda, lda, b, alpha ? alpha + i : NULL, k)
    ROWS(MR);
    ROWS(8);
    ROWS(4);
    ROWS(2);
    ROWS(1);
#undef ROWS
}

void TQ_CLUSTER(tq_avx512_gemm)(float *c, size_t ldc, const float *a, size_t lda, const float *b,
                                const float *alpha, uint32_t m, uint32_t n, uint32_t k)
{
    uint32_t j = 0;
    for (; j + 2 * TQ_STRIP <= n; j += 2 * TQ_STRIP)
        panel(2, c + j, ldc, a, lda, b + (size_t)j * k, alpha, m, k);
    if (j < n)
        panel(1, c + j, ldc, a, lda, b + (size_t)j * k, alpha, m, k);
}
