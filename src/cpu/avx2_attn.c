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

/* exp(x) for x <= 88; relative error about 1 ulp. -INF gives 0, NaN gives NaN. */
TQ_INLINE __m256 exp8(__m256 x)
{
    const __m256 log2e = _mm256_set1_ps(0x1.715476p+0f);
    const __m256 ln2_hi = _mm256_set1_ps(0x1.62e43p-1f);
    const __m256 ln2_lo = _mm256_set1_ps(-0x1.05c61p-29f);
    __m256 n =
        _mm256_round_ps(_mm256_mul_ps(x, log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, ln2_lo, _mm256_fnmadd_ps(n, ln2_hi, x));
    /* (exp(r) - 1 - r) / r^2 on |r| <= ln2 / 2, error of the whole below 1.1e-8 */
    __m256 p = _mm256_set1_ps(0x1.6d117cp-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.120be2p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555518p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5554dcp-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1));
    __m256i scaled =
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    /* Ordered compare: a NaN stays. */
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_MIN), _CMP_LT_OQ);
    return _mm256_andnot_ps(tiny, _mm256_castsi256_ps(scaled));
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

static void softmax(float *s, const tq_span *span, uint32_t n_rows, float softcap, float *max,
                    float *sum, float *alpha)
{
    enum { N_VEC = TQ_TILE / 8 };
    const __m256 none = _mm256_set1_ps(-INFINITY);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 cap = _mm256_set1_ps(softcap);

    for (uint32_t r = 0; r < n_rows; r++, s += TQ_TILE) {
        const int lo = span[r].lo, hi = span[r].hi;
        __m256 x[N_VEC], m8 = none;
        alpha[r] = 1;
        if (lo >= hi) {
            memset(s, 0, TQ_TILE * sizeof(float));
            continue;
        }
        for (int i = 0; i < N_VEC; i++)
            x[i] = _mm256_loadu_ps(s + 8 * i);
        if (softcap > 0)
            for (int i = 0; i < N_VEC; i++)
                x[i] = _mm256_mul_ps(cap, tanh8(_mm256_div_ps(x[i], cap)));
        if (lo > 0 || hi < (int)TQ_TILE)
            for (int i = 0; i < N_VEC; i++) {
                __m256i t = _mm256_add_epi32(lane, _mm256_set1_epi32(8 * i));
                __m256i seen = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), t),
                                                   _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), t));
                x[i] = _mm256_blendv_ps(none, x[i], _mm256_castsi256_ps(seen));
            }
        /* max returns its second operand for a NaN: NaNs do not become the maximum, exp keeps
         * them. */
        for (int i = 0; i < N_VEC; i++)
            m8 = _mm256_max_ps(x[i], m8);
        float m = tq_hmax8(m8);
        m = m > max[r] ? m : max[r];
        /* Only -INFINITY so far: nothing to weigh, and -INF - -INF would be NaN. */
        const float base = m == -INFINITY ? 0 : m;
        const __m256 base8 = _mm256_set1_ps(base);
        __m256 total = _mm256_setzero_ps();
        for (int i = 0; i < N_VEC; i++) {
            x[i] = exp8(_mm256_sub_ps(x[i], base8));
            total = _mm256_add_ps(total, x[i]);
            _mm256_storeu_ps(s + 8 * i, x[i]);
        }
        if (m != max[r])
            alpha[r] = _mm256_cvtss_f32(exp8(_mm256_set1_ps(max[r] - base)));
        sum[r] = sum[r] * alpha[r] + tq_hsum8(total);
        max[r] = m;
    }
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
              TQ_AVX2_WEIGH_PLAIN},
    .softmax = softmax,
    .pack_keys = tq_avx2_pack_keys,
    .pack_values = tq_avx2_pack_values,
    .gemm = tq_avx2_gemm,
};
