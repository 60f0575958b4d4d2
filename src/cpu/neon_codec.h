/* SPDX-License-Identifier: MIT */
/* neon_codec.h — the NEON entries that neon.c puts in its table. */
#ifndef TQ_CPU_NEON_CODEC_H
#define TQ_CPU_NEON_CODEC_H

#include "cpu/kernels.h"

tq_encode_fn tq_neon_encode_k2, tq_neon_encode_k4, tq_neon_encode_k5, tq_neon_encode_k8;
tq_decode_fn tq_neon_decode_k2, tq_neon_decode_k4, tq_neon_decode_k5, tq_neon_decode_k8;

tq_encode_fn tq_neon_encode_v2, tq_neon_encode_v3, tq_neon_encode_v4, tq_neon_encode_v5,
    tq_neon_encode_v8;
tq_decode_fn tq_neon_decode_v2, tq_neon_decode_v3, tq_neon_decode_v4, tq_neon_decode_v5,
    tq_neon_decode_v8;
tq_decode_fn tq_neon_decode_rotated_v2, tq_neon_decode_rotated_v3, tq_neon_decode_rotated_v4,
    tq_neon_decode_rotated_v5, tq_neon_decode_rotated_v8;

tq_encode_fn tq_neon_encode_turbo2, tq_neon_encode_turbo3, tq_neon_encode_turbo4,
    tq_neon_encode_turbo5, tq_neon_encode_turbo6, tq_neon_encode_turbo8;
tq_decode_fn tq_neon_decode_norm, tq_neon_decode_rotated_norm;

tq_encode_fn tq_neon_encode_tcq;
tq_decode_fn tq_neon_decode_tcq, tq_neon_decode_rotated_tcq;

/* Integer levels of one row: level [dim], with 16 bytes of room behind it that may be written. */
void tq_neon_norm_levels(const tq_codec *c, int8_t *level, const uint8_t *codes);
void tq_neon_trellis_levels(const tq_codec *c, int8_t *level, const uint8_t *codes);

void tq_neon_rotate(float *x, uint32_t dim);
void tq_neon_unrotate(float *x, uint32_t dim);

#endif
