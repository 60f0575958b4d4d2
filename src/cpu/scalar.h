/* SPDX-License-Identifier: MIT */
/* scalar.h — pieces of the reference codec that faster kernels fall back on for rare input. */
#ifndef TQ_CPU_SCALAR_H
#define TQ_CPU_SCALAR_H

#include "cpu/kernels.h"

/* Entries by name, for tables of instruction sets that do not replace them. */
tq_encode_fn tq_scalar_encode_norm, tq_scalar_encode_mse, tq_scalar_encode_prod;
tq_decode_fn tq_scalar_decode_norm, tq_scalar_decode_mse, tq_scalar_decode_prod;
tq_decode_fn tq_scalar_decode_rotated_norm, tq_scalar_decode_rotated_mse,
    tq_scalar_decode_rotated_prod;
tq_encode_fn tq_scalar_encode_tcq;
tq_decode_fn tq_scalar_decode_tcq, tq_scalar_decode_rotated_tcq;
tq_encode_fn tq_scalar_encode_uniform, tq_scalar_encode_fork;
tq_decode_fn tq_scalar_decode_uniform, tq_scalar_decode_fork, tq_scalar_decode_rotated_fork;

/* Elements of affine keys and Lloyd values that share a scale. */
#define TQ_GROUP 32u

/* The same for group g of a row; the last one has what is left. */
static inline uint32_t tq_group_size(uint32_t dim, uint32_t g)
{
    const uint32_t left = dim - g * TQ_GROUP;
    return left < TQ_GROUP ? left : TQ_GROUP;
}

/* Limits of the guard for affine keys; scalar.c says where it acts. */
#define TQ_GUARD_SCALE_MAX 65520.0f        /* from here on f16(s) is Inf */
#define TQ_GUARD_ZERO_MAX  2048.0f         /* f16 holds every integer up to here */
#define TQ_GUARD_SCALE_MIN 0x1p-14f        /* below, f16(s) is a subnormal */
#define TQ_EPS             0x1.5798eep-27f /* f32(1e-8) */

/* One key group x [32]: codes (4*bits bytes, bits 2, 4, 5 or 8), f16 scale, f16 zero point. */
void tq_affine_group_encode(uint8_t *codes, uint8_t *scale, uint8_t *zero, const float *x,
                            uint32_t bits, int strict);

/* One value row x [dim]. codes [dim*bits/8], scale [ceil(dim/32)] f16. */
void tq_lloyd_row_encode(uint8_t *codes, uint8_t *scale, const float *x, uint32_t dim,
                         uint32_t bits, int strict);

#endif
