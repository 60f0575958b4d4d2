/* SPDX-License-Identifier: MIT */
/* avx512_attn.c — the AVX-512 attention table, of both clusters (avx512_attn.h).
 *
 * Packing moves bytes only: those entries are AVX2's, as are those of formats that have no kernels
 * of their own.
 */
#include "cpu/avx512_attn.h"

/* Norm-codebook and trellis: with VNNI and VBMI rows of 64, 128, 256 from their planes, others as
 * below. */
#if TQ_HAVE_VNNI
#define PREP_NORM  tq_avx512_prep_planes
#define SCORE_NORM tq_avx512_score_planes
#define WEIGH_NORM tq_avx512_weigh_planes
#else
#define PREP_NORM  tq_avx2_prep_norm
#define SCORE_NORM tq_avx512_score_norm
#define WEIGH_NORM tq_avx512_weigh_norm
#endif

const tq_attn_kernels TQ_CLUSTER(tq_attn_kernels_avx512) = {
    .prep = {[TQ_KF32] = tq_avx512_prep_float,
             [TQ_KF16] = tq_avx512_prep_float,
             [TQ_KBF16] = tq_avx512_prep_bf16,
             [TQ_KAFFINE2] = TQ_CLUSTER(tq_avx512_prep_k2),
             [TQ_KAFFINE4] = TQ_CLUSTER(tq_avx512_prep_k4),
             [TQ_KAFFINE5] = TQ_CLUSTER(tq_avx512_prep_k5),
             [TQ_KAFFINE8] = TQ_CLUSTER(tq_avx512_prep_k8),
             TQ_NORM_ENTRIES(PREP_NORM),
             TQ_TCQ_ENTRIES(PREP_NORM),
             [TQ_KUNIFORM4] = TQ_VNNI_KERNEL(prep_uniform4),
             [TQ_KUNIFORM8] = TQ_VNNI_KERNEL(prep_uniform8),
             TQ_AVX2_PREP_PLAIN},
    .score = {[TQ_KF32] = tq_avx512_score_f32,
              [TQ_KF16] = tq_avx512_score_f16,
              [TQ_KBF16] = tq_avx512_score_bf16,
              [TQ_KAFFINE2] = TQ_CLUSTER(tq_avx512_score_k2),
              [TQ_KAFFINE4] = TQ_CLUSTER(tq_avx512_score_k4),
              [TQ_KAFFINE5] = TQ_CLUSTER(tq_avx512_score_k5),
              [TQ_KAFFINE8] = TQ_CLUSTER(tq_avx512_score_k8),
              TQ_NORM_ENTRIES(SCORE_NORM),
              TQ_TCQ_ENTRIES(SCORE_NORM),
              [TQ_KUNIFORM4] = TQ_VNNI_KERNEL(score_uniform4),
              [TQ_KUNIFORM8] = TQ_VNNI_KERNEL(score_uniform8),
              TQ_AVX2_SCORE_PLAIN},
    .weigh = {[TQ_KF32] = tq_avx512_weigh_f32,
              [TQ_KF16] = tq_avx512_weigh_f16,
              [TQ_KBF16] = tq_avx512_weigh_bf16,
              [TQ_KLLOYD2] = TQ_CLUSTER(tq_avx512_weigh_v2),
              [TQ_KLLOYD3] = TQ_CLUSTER(tq_avx512_weigh_v3),
              [TQ_KLLOYD4] = TQ_CLUSTER(tq_avx512_weigh_v4),
              [TQ_KLLOYD5] = TQ_CLUSTER(tq_avx512_weigh_v5),
              [TQ_KLLOYD8] = TQ_VNNI_KERNEL(weigh_v8),
              TQ_NORM_ENTRIES(WEIGH_NORM),
              TQ_TCQ_ENTRIES(WEIGH_NORM),
              [TQ_KUNIFORM4] = TQ_VNNI_KERNEL(weigh_uniform4),
              [TQ_KUNIFORM8] = TQ_VNNI_KERNEL(weigh_uniform8),
              TQ_AVX2_WEIGH_PLAIN},
    .softmax = TQ_CLUSTER(tq_avx512_softmax),
    .pack_keys = tq_avx2_pack_keys,
    .pack_values = tq_avx2_pack_values,
    .gemm = TQ_CLUSTER(tq_avx512_gemm),
};
