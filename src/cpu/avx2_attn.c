/* SPDX-License-Identifier: MIT */
/* avx2_attn.c — softmax for AVX2, and the attention table of this instruction set.
 *
 * exp and tanh are our own: libm has no vector form, and a call per logit would cost more than
 * the dot product that made it. Polynomials interpolate at Chebyshev nodes (coefficients computed
 * in exact rational arithmetic, then rounded to f32); tests/kernels measures them in ulp.
 */
#include "cpu/avx2_attn.h"

#include <math.h>

/* Below this exp(x) < 2^-126; results flush to 0. */
#define EXP_MIN -87.33654f

/* exp(x) for x <= 88; relative error about 1 ulp. -INF gives 0, NaN gives NaN.
 * 2^(n + r): n + 127 is the low bits of a number whose ulp is 1. */
TQ_INLINE __m256 exp8(__m256 x)
{
    const __m256 log2e = _mm256_set1_ps(0x1.715476p+0f), rest = _mm256_set1_ps(0x1.4ae0cp-26f);
    const __m256 one_ulp = _mm256_set1_ps(0x1.8p+23f + 127);
    const __m256 z = _mm256_fmadd_ps(x, log2e, one_ulp);
    const __m256 n = _mm256_sub_ps(z, one_ulp);
    const __m256 r = _mm256_fmadd_ps(x, rest, _mm256_fmsub_ps(x, log2e, n));
    /* (2^r - 1) / r on |r| <= 1/2, error of the whole below 1e-8 */
    __m256 p = _mm256_set1_ps(0x1.44138ap-13f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5f089p-10f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.3b2a54p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.c6af6cp-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.ebfbep-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.62e43p-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(z), 23);
    /* Ordered compare: a NaN stays. */
    const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_MIN), _CMP_LT_OQ);
    return _mm256_andnot_ps(tiny, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

/* tanh(x): odd polynomial where 1 - 2 / (exp(2x) + 1) would cancel. NaN gives NaN. */
TQ_INLINE __m256 tanh8(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1);
    __m256 a = _mm256_andnot_ps(sign, x);
    /* tanh(10) is 1 in f32; min returns its second operand for a NaN */
    __m256 c = _mm256_min_ps(_mm256_set1_ps(10), a);
    __m256 e = exp8(_mm256_add_ps(c, c));
    __m256 big = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), _mm256_add_ps(e, one)));
    /* (tanh(x) - x) / x^3 in x^2, |x| <= 0.625, error of the whole below 5e-9 */
    __m256 z = _mm256_mul_ps(a, a);
    __m256 p = _mm256_set1_ps(0x1.2c83c2p-9f);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-0x1.116a16p-7f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0x1.64a976p-6f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-0x1.ba08c4p-5f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0x1.1110eap-3f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-0x1.555556p-2f));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), a, a);
    __m256 is_small = _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ);
    return _mm256_or_ps(_mm256_blendv_ps(big, small, is_small), _mm256_and_ps(sign, x));
}

enum { N_VEC = TQ_TILE / 8, ROWS = 4 };

/* Cap the logits of a row, take away what it does not see. */
static void cap_and_mask(float *s, tq_span span, float softcap)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i lo = _mm256_set1_epi32(span.lo), hi = _mm256_set1_epi32(span.hi);
    const __m256 cap = _mm256_set1_ps(softcap);

    for (int i = 0; i < N_VEC; i++) {
        __m256 x = _mm256_loadu_ps(s + 8 * i);
        if (softcap > 0)
            x = _mm256_mul_ps(cap, tanh8(_mm256_div_ps(x, cap)));
        const __m256i t = _mm256_add_epi32(lane, _mm256_set1_epi32(8 * i));
        const __m256i seen =
            _mm256_andnot_si256(_mm256_cmpgt_epi32(lo, t), _mm256_cmpgt_epi32(hi, t));
        x = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), x, _mm256_castsi256_ps(seen));
        _mm256_storeu_ps(s + 8 * i, x);
    }
}

/* Up to four rows: all maxima, then all exponentials, which wait for nothing but them. Row by row,
 * each row would wait for its maximum. */
TQ_INLINE void softmax_rows(float *s, const tq_span *span, uint32_t n_rows, float softcap,
                            float *max, float *sum, float *alpha)
{
    float base[ROWS] = {0}, down[ROWS] = {0};

    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = s + r * TQ_TILE;
        __m256 m8 = _mm256_set1_ps(-INFINITY);
        if (softcap > 0 || span[r].lo > 0 || span[r].hi < TQ_TILE)
            cap_and_mask(row, span[r], softcap);
        /* max returns its second operand for a NaN: NaNs do not become the maximum, exp keeps
         * them. */
        TQ_UNROLL_FOR (int i = 0; i < N_VEC; i++)
            m8 = _mm256_max_ps(_mm256_loadu_ps(row + 8 * i), m8);
        const float m = tq_hmax8(m8);
        if (m > max[r]) {
            down[r] = max[r] - m;
            max[r] = m;
        }
        /* Only -INFINITY so far: nothing to weigh, and -INF - -INF would be NaN. */
        base[r] = max[r] == -INFINITY ? 0 : max[r];
    }
    /* exp(0) is 1: no new maximum. */
    const __m256 x = exp8(_mm256_castps128_ps256(_mm_loadu_ps(down)));
    _mm_storeu_ps(down, _mm256_castps256_ps128(x));
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = s + r * TQ_TILE;
        const __m256 base8 = _mm256_set1_ps(base[r]);
        __m256 total = _mm256_setzero_ps();
        TQ_UNROLL_FOR (int i = 0; i < N_VEC; i++) {
            const __m256 y = exp8(_mm256_sub_ps(_mm256_loadu_ps(row + 8 * i), base8));
            total = _mm256_add_ps(total, y);
            _mm256_storeu_ps(row + 8 * i, y);
        }
        alpha[r] = down[r];
        sum[r] = sum[r] * alpha[r] + tq_hsum8(total);
    }
}

static void softmax(float *s, const tq_span *span, uint32_t n_rows, float softcap, float *max,
                    float *sum, float *alpha)
{
    for (uint32_t r = 0; r < n_rows; r += ROWS)
        softmax_rows(s + r * TQ_TILE, span + r, n_rows - r < ROWS ? n_rows - r : ROWS, softcap,
                     max + r, sum + r, alpha + r);
}

const tq_attn_kernels tq_attn_kernels_avx2 = {
    .prep = {[TQ_KF32] = tq_avx2_prep_f32,
             [TQ_KF16] = tq_avx2_prep_f16,
             [TQ_KBF16] = tq_avx2_prep_bf16,
             [TQ_KAFFINE2] = tq_avx2_prep_k2,
             [TQ_KAFFINE4] = tq_avx2_prep_k4,
             [TQ_KAFFINE5] = tq_avx2_prep_k5,
             [TQ_KAFFINE8] = tq_avx2_prep_k8,
             TQ_NORM_ENTRIES(tq_avx2_prep_norm),
             TQ_TCQ_ENTRIES(tq_avx2_prep_norm),
             [TQ_KUNIFORM4] = tq_avx2_prep_uniform4,
             [TQ_KUNIFORM8] = tq_avx2_prep_uniform8,
             TQ_AVX2_PREP_PLAIN},
    .score = {[TQ_KF32] = tq_avx2_score_f32,
              [TQ_KF16] = tq_avx2_score_f16,
              [TQ_KBF16] = tq_avx2_score_bf16,
              [TQ_KAFFINE2] = tq_avx2_score_k2,
              [TQ_KAFFINE4] = tq_avx2_score_k4,
              [TQ_KAFFINE5] = tq_avx2_score_k5,
              [TQ_KAFFINE8] = tq_avx2_score_k8,
              TQ_NORM_ENTRIES(tq_avx2_score_norm),
              TQ_TCQ_ENTRIES(tq_avx2_score_norm),
              [TQ_KUNIFORM4] = tq_avx2_score_uniform4,
              [TQ_KUNIFORM8] = tq_avx2_score_uniform8,
              TQ_AVX2_SCORE_PLAIN},
    .weigh = {[TQ_KF32] = tq_avx2_weigh_f32,
              [TQ_KF16] = tq_avx2_weigh_f16,
              [TQ_KBF16] = tq_avx2_weigh_bf16,
              [TQ_KLLOYD2] = tq_avx2_weigh_v2,
              [TQ_KLLOYD3] = tq_avx2_weigh_v3,
              [TQ_KLLOYD4] = tq_avx2_weigh_v4,
              [TQ_KLLOYD5] = tq_avx2_weigh_v5,
              [TQ_KLLOYD8] = tq_avx2_weigh_v8,
              TQ_NORM_ENTRIES(tq_avx2_weigh_norm),
              TQ_TCQ_ENTRIES(tq_avx2_weigh_norm),
              [TQ_KUNIFORM4] = tq_avx2_weigh_uniform4,
              [TQ_KUNIFORM8] = tq_avx2_weigh_uniform8,
              TQ_AVX2_WEIGH_PLAIN},
    .softmax = softmax,
    .pack_keys = tq_avx2_pack_keys,
    .pack_values = tq_avx2_pack_values,
    .gemm = tq_avx2_gemm,
};
