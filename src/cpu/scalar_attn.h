/* SPDX-License-Identifier: MIT */
/* scalar_attn.h — the reference attention kernels by name, for tables of faster instruction sets
 * that do not replace every entry. Contracts: kernels.h. */
#ifndef TQ_CPU_SCALAR_ATTN_H
#define TQ_CPU_SCALAR_ATTN_H

#include "cpu/kernels.h"

tq_prep_fn tq_scalar_prep_float, tq_scalar_prep_affine, tq_scalar_prep_rotated, tq_scalar_prep_norm;
tq_score_fn tq_scalar_score_float, tq_scalar_score_affine, tq_scalar_score_rotated;
tq_weigh_fn tq_scalar_weigh;
tq_softmax_fn tq_scalar_softmax;
tq_pack_fn tq_scalar_pack_keys, tq_scalar_pack_values;
tq_gemm_fn tq_scalar_gemm;

#endif
