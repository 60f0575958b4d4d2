/* SPDX-License-Identifier: MIT */
/* avx2_attn.c — the attention table for AVX2 + FMA + F16C. */
#include "cpu/scalar_attn.h"

const tq_attn_kernels tq_attn_kernels_avx2 = {
    .prep = {[TQ_KF32] = tq_scalar_prep_float,
             [TQ_KF16] = tq_scalar_prep_float,
             [TQ_KBF16] = tq_scalar_prep_float,
             [TQ_KAFFINE2] = tq_scalar_prep_affine,
             [TQ_KAFFINE4] = tq_scalar_prep_affine,
             [TQ_KAFFINE5] = tq_scalar_prep_affine,
             [TQ_KAFFINE8] = tq_scalar_prep_affine},
    .score = {[TQ_KF32] = tq_scalar_score_float,
              [TQ_KF16] = tq_scalar_score_float,
              [TQ_KBF16] = tq_scalar_score_float,
              [TQ_KAFFINE2] = tq_scalar_score_affine,
              [TQ_KAFFINE4] = tq_scalar_score_affine,
              [TQ_KAFFINE5] = tq_scalar_score_affine,
              [TQ_KAFFINE8] = tq_scalar_score_affine},
    .weigh = {[TQ_KF32] = tq_scalar_weigh,
              [TQ_KF16] = tq_scalar_weigh,
              [TQ_KBF16] = tq_scalar_weigh,
              [TQ_KLLOYD2] = tq_scalar_weigh,
              [TQ_KLLOYD3] = tq_scalar_weigh,
              [TQ_KLLOYD4] = tq_scalar_weigh,
              [TQ_KLLOYD5] = tq_scalar_weigh,
              [TQ_KLLOYD8] = tq_scalar_weigh},
    .softmax = tq_scalar_softmax,
    .pack_keys = tq_scalar_pack_keys,
    .pack_values = tq_scalar_pack_values,
    .gemm = tq_scalar_gemm,
};
