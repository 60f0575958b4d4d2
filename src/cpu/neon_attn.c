/* SPDX-License-Identifier: MIT */
/* neon_attn.c — softmax and matrix product for NEON, and the attention table of this ISA.
 *
 * exp and tanh use the polynomials of avx2_attn.c. The micro-kernel of the product holds a block
 * of 6 x 16 results in 24 registers. Preparing most queries and packing tiles are the reference's:
 * they take no time that could be measured.
 */
#include "cpu/neon_attn.h"

#include "cpu/scalar_attn.h"

/* Below this exp(x) < 2^-126; results flush to 0. */
#define EXP_MIN -87.33654f

/* exp(x) for x <= 88; relative error about 1 ulp. -INF gives 0, NaN gives NaN. */
TQ_INLINE float32x4_t exp4(float32x4_t x)
{
    float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 0x1.715476p+0f));
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0x1.62e43p-1f));
    r = vfmsq_f32(r, n, vdupq_n_f32(-0x1.05c61p-29f));
    float32x4_t p = vdupq_n_f32(0x1.6d117cp-10f);
    p = vfmaq_f32(vdupq_n_f32(0x1.120be2p-7f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.555518p-5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0x1.5554dcp-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
    p = vfmaq_f32(r, vmulq_f32(r, r), p);
    p = vaddq_f32(p, vdupq_n_f32(1));
    int32x4_t scaled = vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23));
    /* Ordered compare: a NaN stays. */
    uint32x4_t tiny = vcltq_f32(x, vdupq_n_f32(EXP_MIN));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(scaled), tiny));
}

/* tanh(x): odd polynomial where 1 - 2 / (exp(2x) + 1) would cancel. NaN gives NaN. */
TQ_INLINE float32x4_t tanh4(float32x4_t x)
{
    const uint32x4_t sign = vdupq_n_u32(0x80000000u);
    const float32x4_t one = vdupq_n_f32(1);
    float32x4_t a = vabsq_f32(x);
    float32x4_t c = vminq_f32(a, vdupq_n_f32(10)); /* tanh(10) is 1 in f32; a NaN stays */
    float32x4_t e = exp4(vaddq_f32(c, c));
    float32x4_t big = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2), vaddq_f32(e, one)));
    float32x4_t z = vmulq_f32(a, a);
    float32x4_t p = vdupq_n_f32(0x1.2c83c2p-9f);
    p = vfmaq_f32(vdupq_n_f32(-0x1.116a16p-7f), p, z);
    p = vfmaq_f32(vdupq_n_f32(0x1.64a976p-6f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-0x1.ba08c4p-5f), p, z);
    p = vfmaq_f32(vdupq_n_f32(0x1.1110eap-3f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-0x1.555556p-2f), p, z);
    float32x4_t small = vfmaq_f32(a, vmulq_f32(p, z), a);
    uint32x4_t is_small = vcltq_f32(a, vdupq_n_f32(0.625f));
    return vbslq_f32(sign, x, vbslq_f32(is_small, small, big));
}

static void softmax(float *s, const tq_span *span, uint32_t n_rows, float softcap, float *max,
                    float *sum, float *alpha)
{
    const float32x4_t none = vdupq_n_f32(-INFINITY);
    const int32x4_t lane = {0, 1, 2, 3};
    const float32x4_t cap = vdupq_n_f32(softcap);

    for (uint32_t r = 0; r < n_rows; r++, s += TQ_TILE) {
        const int lo = span[r].lo, hi = span[r].hi;
        float32x4_t m4 = none;
        alpha[r] = 1;
        if (lo >= hi) {
            memset(s, 0, TQ_TILE * sizeof(float));
            continue;
        }
        for (int i = 0; i < (int)TQ_TILE; i += 4) {
            float32x4_t x = vld1q_f32(s + i);
            if (softcap > 0)
                x = vmulq_f32(cap, tanh4(vdivq_f32(x, cap)));
            int32x4_t t = vaddq_s32(lane, vdupq_n_s32(i));
            uint32x4_t seen =
                vandq_u32(vcgeq_s32(t, vdupq_n_s32(lo)), vcltq_s32(t, vdupq_n_s32(hi)));
            x = vbslq_f32(seen, x, none);
            vst1q_f32(s + i, x);
            m4 = vmaxnmq_f32(m4, x); /* a NaN does not become the maximum, exp keeps it */
        }
        float m = vmaxnmvq_f32(m4);
        m = m > max[r] ? m : max[r];
        /* Only -INFINITY so far: nothing to weigh, and -INF - -INF would be NaN. */
        const float base = m == -INFINITY ? 0 : m;
        float32x4_t total = vdupq_n_f32(0);
        for (int i = 0; i < (int)TQ_TILE; i += 4) {
            float32x4_t x = exp4(vsubq_f32(vld1q_f32(s + i), vdupq_n_f32(base)));
            total = vaddq_f32(total, x);
            vst1q_f32(s + i, x);
        }
        if (m != max[r])
            alpha[r] = vgetq_lane_f32(exp4(vdupq_n_f32(max[r] - base)), 0);
        sum[r] = sum[r] * alpha[r] + vaddvq_f32(total);
        max[r] = m;
    }
}

#define MR 6

/* c [m][16], m <= MR known at compile time. */
TQ_INLINE void block(const uint32_t m, float *c, size_t ldc, const float *a, size_t lda,
                     const float *b, const float *alpha, uint32_t k)
{
    float32x4_t sum[MR][4];
    for (uint32_t i = 0; i < m; i++)
        for (int j = 0; j < 4; j++)
            sum[i][j] = vdupq_n_f32(0);
    for (uint32_t l = 0; l < k; l++, b += TQ_STRIP) {
        float32x4_t x[4] = {vld1q_f32(b), vld1q_f32(b + 4), vld1q_f32(b + 8), vld1q_f32(b + 12)};
        for (uint32_t i = 0; i < m; i++)
            for (int j = 0; j < 4; j++)
                sum[i][j] = vfmaq_n_f32(sum[i][j], x[j], a[i * lda + l]);
    }
    for (uint32_t i = 0; i < m; i++)
        for (int j = 0; j < 4; j++) {
            float *dst = c + i * ldc + 4 * j;
            vst1q_f32(dst, alpha ? vfmaq_n_f32(sum[i][j], vld1q_f32(dst), alpha[i]) : sum[i][j]);
        }
}

static void gemm(float *c, size_t ldc, const float *a, size_t lda, const float *b,
                 const float *alpha, uint32_t m, uint32_t n, uint32_t k)
{
    for (uint32_t j = 0; j < n; j += TQ_STRIP) {
        const float *strip = b + (size_t)j * k;
        uint32_t i = 0;
        for (; i + MR <= m; i += MR)
            block(MR, c + i * ldc + j, ldc, a + i * lda, lda, strip, alpha ? alpha + i : NULL, k);
        for (; i < m; i++)
            block(1, c + i * ldc + j, ldc, a + i * lda, lda, strip, alpha ? alpha + i : NULL, k);
    }
}

const tq_attn_kernels tq_attn_kernels_neon = {
    .prep = {[TQ_KF32] = tq_scalar_prep_float,
             [TQ_KF16] = tq_scalar_prep_float,
             [TQ_KBF16] = tq_scalar_prep_float,
             [TQ_KAFFINE2] = tq_scalar_prep_affine,
             [TQ_KAFFINE4] = tq_scalar_prep_affine,
             [TQ_KAFFINE5] = tq_scalar_prep_affine,
             [TQ_KAFFINE8] = tq_scalar_prep_affine,
             TQ_NORM_ENTRIES(tq_neon_prep_norm),
             TQ_TCQ_ENTRIES(tq_neon_prep_norm),
             TQ_MSE_ENTRIES(tq_scalar_prep_rotated),
             TQ_PROD_ENTRIES(tq_scalar_prep_rotated),
             TQ_UNIFORM_ENTRIES(tq_scalar_prep_float)},
    .score = {[TQ_KF32] = tq_neon_score_f32,
              [TQ_KF16] = tq_neon_score_f16,
              [TQ_KBF16] = tq_neon_score_bf16,
              [TQ_KAFFINE2] = tq_neon_score_k2,
              [TQ_KAFFINE4] = tq_neon_score_k4,
              [TQ_KAFFINE5] = tq_neon_score_k5,
              [TQ_KAFFINE8] = tq_neon_score_k8,
              TQ_NORM_ENTRIES(tq_neon_score_norm),
              TQ_TCQ_ENTRIES(tq_neon_score_norm),
              TQ_MSE_ENTRIES(tq_scalar_score_rotated),
              TQ_PROD_ENTRIES(tq_scalar_score_rotated),
              TQ_UNIFORM_ENTRIES(tq_scalar_score_float)},
    .weigh = {[TQ_KF32] = tq_neon_weigh_f32,
              [TQ_KF16] = tq_neon_weigh_f16,
              [TQ_KBF16] = tq_neon_weigh_bf16,
              [TQ_KLLOYD2] = tq_neon_weigh_v2,
              [TQ_KLLOYD3] = tq_neon_weigh_v3,
              [TQ_KLLOYD4] = tq_neon_weigh_v4,
              [TQ_KLLOYD5] = tq_neon_weigh_v5,
              [TQ_KLLOYD8] = tq_neon_weigh_v8,
              TQ_NORM_ENTRIES(tq_neon_weigh_norm),
              TQ_TCQ_ENTRIES(tq_neon_weigh_norm),
              TQ_MSE_ENTRIES(tq_scalar_weigh),
              TQ_PROD_ENTRIES(tq_scalar_weigh),
              TQ_UNIFORM_ENTRIES(tq_scalar_weigh)},
    .softmax = softmax,
    .pack_keys = tq_scalar_pack_keys,
    .pack_values = tq_scalar_pack_values,
    .gemm = gemm,
};
