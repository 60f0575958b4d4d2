/* SPDX-License-Identifier: MIT */
/* neon_attn.h — the NEON attention kernels by name. Contracts: kernels.h. */
#ifndef TQ_CPU_NEON_ATTN_H
#define TQ_CPU_NEON_ATTN_H

#include "cpu/neon.h"

/* neon_attn_score.c */
tq_score_fn tq_neon_score_f32, tq_neon_score_f16, tq_neon_score_bf16;
tq_score_fn tq_neon_score_k2, tq_neon_score_k4, tq_neon_score_k5, tq_neon_score_k8;

/* neon_attn_weigh.c */
tq_weigh_fn tq_neon_weigh_f32, tq_neon_weigh_f16, tq_neon_weigh_bf16;
tq_weigh_fn tq_neon_weigh_v2, tq_neon_weigh_v3, tq_neon_weigh_v4, tq_neon_weigh_v5,
    tq_neon_weigh_v8;

/* neon_attn_levels.c: norm-codebook and trellis */
tq_prep_fn tq_neon_prep_norm;
tq_score_fn tq_neon_score_norm;
tq_weigh_fn tq_neon_weigh_norm;

/* Eight stored numbers as f32. */
TQ_INLINE float32x4x2_t tq_load8_f32(const uint8_t *p)
{
    float32x4x2_t x = {{vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))}};
    return x;
}

TQ_INLINE float32x4x2_t tq_load8_f16(const uint8_t *p)
{
    float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
    float32x4x2_t x = {{vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h))}};
    return x;
}

TQ_INLINE float32x4x2_t tq_load8_bf16(const uint8_t *p)
{
    uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    float32x4x2_t x = {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                        vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16))}};
    return x;
}

#endif
