/* SPDX-License-Identifier: MIT */
/* avx512_codec.h — the AVX-512 entries that avx512.c puts in its table. */
#ifndef TQ_CPU_AVX512_CODEC_H
#define TQ_CPU_AVX512_CODEC_H

#include "cpu/kernels.h"

tq_encode_fn tq_avx512_encode_k2, tq_avx512_encode_k4, tq_avx512_encode_k5, tq_avx512_encode_k8;
tq_decode_fn tq_avx512_decode_k2, tq_avx512_decode_k4, tq_avx512_decode_k5, tq_avx512_decode_k8;

tq_encode_fn tq_avx512_encode_v2, tq_avx512_encode_v3, tq_avx512_encode_v4, tq_avx512_encode_v5,
    tq_avx512_encode_v8;
tq_decode_fn tq_avx512_decode_v2, tq_avx512_decode_v3, tq_avx512_decode_v4, tq_avx512_decode_v5,
    tq_avx512_decode_v8;
tq_decode_fn tq_avx512_decode_rotated_v2, tq_avx512_decode_rotated_v3, tq_avx512_decode_rotated_v4,
    tq_avx512_decode_rotated_v5, tq_avx512_decode_rotated_v8;

tq_encode_fn tq_avx512_encode_turbo5, tq_avx512_encode_turbo6;
tq_encode_fn tq_avx512_encode_tcq;

void tq_avx512_rotate(float *x, uint32_t dim);
void tq_avx512_unrotate(float *x, uint32_t dim);

#endif
