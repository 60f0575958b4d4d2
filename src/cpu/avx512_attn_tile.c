/* SPDX-License-Identifier: MIT */
/* avx512_attn_tile.c — softmax and matrix product for AVX-512.
 *
 * exp and tanh are those of avx2_attn.c, twice as wide. The micro-kernel of the product holds a
 * block of 12 x 32 results in 24 registers; each step of k costs two loads of b, twelve broadcasts
 * of a and 24 fused multiply-adds, so the multipliers set the pace.
 */
#include "cpu/avx512_attn.h"

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

/* Up to four rows: all maxima, then all exponentials, as in avx2_attn.c. */
TQ_INLINE void softmax_rows(float *s, const tq_span *span, uint32_t n_rows, float softcap,
                            float *max, float *sum, float *alpha)
{
    const __m512 none = _mm512_set1_ps(-INFINITY), cap = _mm512_set1_ps(softcap);
    float base[ROWS] = {0}, down[ROWS] = {0};

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
        const float m = _mm512_reduce_max_ps(m16);
        if (m > max[r]) {
            down[r] = max[r] - m;
            max[r] = m;
        }
        /* Only -INFINITY so far: nothing to weigh, and -INF - -INF would be NaN. */
        base[r] = max[r] == -INFINITY ? 0 : max[r];
    }
    /* exp(0) is 1: no new maximum. */
    const __m512 x = exp16(_mm512_castps128_ps512(_mm_loadu_ps(down)));
    _mm_storeu_ps(down, _mm512_castps512_ps128(x));
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = s + r * TQ_TILE;
        const __m512 base16 = _mm512_set1_ps(base[r]);
        __m512 total = _mm512_setzero_ps();
        TQ_UNROLL_FOR (int i = 0; i < N_VEC; i++) {
            const __m512 y = exp16(_mm512_sub_ps(_mm512_loadu_ps(row + 16 * i), base16));
            total = _mm512_add_ps(total, y);
            _mm512_storeu_ps(row + 16 * i, y);
        }
        alpha[r] = down[r];
        sum[r] = sum[r] * alpha[r] + _mm512_reduce_add_ps(total);
    }
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
