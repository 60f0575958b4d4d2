/* SPDX-License-Identifier: MIT */
/* avx512_attn.h — the AVX-512 attention kernels by name, and what their files share.
 *
 * The same sources are compiled for two clusters: plain AVX-512 (f, bw, vl, dq), and that with VNNI
 * and VBMI, which multiply and add, or pick bit fields, in one instruction. TQ_CLUSTER gives the
 * names of the second a suffix of their own.
 */
#ifndef TQ_CPU_AVX512_ATTN_H
#define TQ_CPU_AVX512_ATTN_H

#include "cpu/avx2_attn.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define TQ_HAVE_VNNI          1
#define TQ_CLUSTER(name)      name##_vnni
#define TQ_CLUSTER_B(name, b) name##b##_vnni
#else
#define TQ_HAVE_VNNI          0
#define TQ_CLUSTER(name)      name
#define TQ_CLUSTER_B(name, b) name##b
#endif

/* avx512_attn_score.c */
tq_score_fn TQ_CLUSTER(tq_avx512_score_k2), TQ_CLUSTER(tq_avx512_score_k4),
    TQ_CLUSTER(tq_avx512_score_k5), TQ_CLUSTER(tq_avx512_score_k8);
tq_prep_fn TQ_CLUSTER(tq_avx512_prep_k2), TQ_CLUSTER(tq_avx512_prep_k4),
    TQ_CLUSTER(tq_avx512_prep_k5), TQ_CLUSTER(tq_avx512_prep_k8);

/* avx512_attn_weigh.c */
tq_weigh_fn TQ_CLUSTER(tq_avx512_weigh_v2), TQ_CLUSTER(tq_avx512_weigh_v3),
    TQ_CLUSTER(tq_avx512_weigh_v4), TQ_CLUSTER(tq_avx512_weigh_v5), TQ_CLUSTER(tq_avx512_weigh_v8);

/* avx512_attn_tile.c */
tq_softmax_fn TQ_CLUSTER(tq_avx512_softmax);
tq_gemm_fn TQ_CLUSTER(tq_avx512_gemm);

#endif
