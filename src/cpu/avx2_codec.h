/* SPDX-License-Identifier: MIT */
/* avx2_codec.h — the AVX2 entries that avx2.c puts in its table. */
#ifndef TQ_CPU_AVX2_CODEC_H
#define TQ_CPU_AVX2_CODEC_H

#include "cpu/kernels.h"

tq_encode_fn tq_avx2_encode_k2, tq_avx2_encode_k4, tq_avx2_encode_k5, tq_avx2_encode_k8;
tq_decode_fn tq_avx2_decode_k2, tq_avx2_decode_k4, tq_avx2_decode_k5, tq_avx2_decode_k8;

tq_encode_fn tq_avx2_encode_v2, tq_avx2_encode_v3, tq_avx2_encode_v4, tq_avx2_encode_v5,
    tq_avx2_encode_v8;
tq_decode_fn tq_avx2_decode_v2, tq_avx2_decode_v3, tq_avx2_decode_v4, tq_avx2_decode_v5,
    tq_avx2_decode_v8;
tq_decode_fn tq_avx2_decode_rotated_v2, tq_avx2_decode_rotated_v3, tq_avx2_decode_rotated_v4,
    tq_avx2_decode_rotated_v5, tq_avx2_decode_rotated_v8;

tq_encode_fn tq_avx2_encode_uniform4, tq_avx2_encode_uniform8;
tq_decode_fn tq_avx2_decode_uniform4, tq_avx2_decode_uniform8;

tq_encode_fn tq_avx2_encode_tcq;
tq_decode_fn tq_avx2_decode_tcq, tq_avx2_decode_rotated_tcq;

tq_encode_fn tq_avx2_encode_turbo2, tq_avx2_encode_turbo3, tq_avx2_encode_turbo4,
    tq_avx2_encode_turbo5, tq_avx2_encode_turbo6, tq_avx2_encode_turbo8;
tq_decode_fn tq_avx2_decode_norm;
tq_decode_fn tq_avx2_decode_rotated_norm;

/* Integer levels of n rows of norm-codebook, with zero added to each: level [n], rows stride bytes
 * apart, stride at least dim rounded up to 32; the last row is written up to 31 bytes past that. */
void tq_avx2_norm_levels(const tq_codec *c, int8_t *level, size_t stride, const uint8_t *codes,
                         size_t codes_stride, uint32_t n, uint8_t zero);

void tq_avx2_rotate(float *x, uint32_t dim);
void tq_avx2_unrotate(float *x, uint32_t dim);

/* A search of a wider instruction set: the codes of the best stretch of coordinates p, both with
 * room for whole vectors (avx2_rotated.h). Returns <p, levels>. */
typedef int32_t tq_norm_search_fn(uint8_t *code, const int16_t *p, uint32_t dim, const void *state);

/* The encoders with such a search. */
typedef void tq_norm_encode_by_fn(const tq_codec *c, tq_planes dst, const float *src,
                                  size_t src_stride, size_t n, tq_norm_search_fn *search,
                                  const void *state);
tq_norm_encode_by_fn tq_avx2_encode_turbo5_by, tq_avx2_encode_turbo6_by;

/* tq_codec_kernels.asks_ahead: what avx2_norm.c encodes, and all AVX2 encoders that do. */
#define TQ_NORM_ASKS_AHEAD                                                                         \
    (UINT64_C(1) << TQ_KNORM2 | UINT64_C(1) << TQ_KNORM3 | UINT64_C(1) << TQ_KNORM4 |              \
     UINT64_C(1) << TQ_KNORM5 | UINT64_C(1) << TQ_KNORM6 | UINT64_C(1) << TQ_KNORM8)
#define TQ_AVX2_ASKS_AHEAD                                                                         \
    (TQ_NORM_ASKS_AHEAD | UINT64_C(1) << TQ_KAFFINE2 | UINT64_C(1) << TQ_KAFFINE4 |                \
     UINT64_C(1) << TQ_KAFFINE5 | UINT64_C(1) << TQ_KAFFINE8 | UINT64_C(1) << TQ_KLLOYD2 |         \
     UINT64_C(1) << TQ_KLLOYD3 | UINT64_C(1) << TQ_KLLOYD4 | UINT64_C(1) << TQ_KLLOYD5 |           \
     UINT64_C(1) << TQ_KLLOYD8)

/* Entries of the formats that have no AVX-512 kernels, for both tables. Includer: cpu/scalar.h. */
#define TQ_AVX2_ENCODE_OTHERS                                                                      \
    [TQ_KNORM8] = tq_avx2_encode_turbo8, TQ_MSE_ENTRIES(tq_scalar_encode_mse),                     \
    TQ_PROD_ENTRIES(tq_scalar_encode_prod), [TQ_KUNIFORM4] = tq_avx2_encode_uniform4,              \
    [TQ_KUNIFORM8] = tq_avx2_encode_uniform8, TQ_FORK_ENTRIES(tq_scalar_encode_fork)
#define TQ_AVX2_DECODE_OTHERS                                                                      \
    TQ_NORM_ENTRIES(tq_avx2_decode_norm), TQ_TCQ_ENTRIES(tq_avx2_decode_tcq),                      \
        TQ_MSE_ENTRIES(tq_scalar_decode_mse), TQ_PROD_ENTRIES(tq_scalar_decode_prod),              \
        [TQ_KUNIFORM4] = tq_avx2_decode_uniform4, [TQ_KUNIFORM8] = tq_avx2_decode_uniform8,        \
        TQ_FORK_ENTRIES(tq_scalar_decode_fork)
#define TQ_AVX2_DECODE_ROTATED_OTHERS                                                              \
    TQ_NORM_ENTRIES(tq_avx2_decode_rotated_norm), TQ_TCQ_ENTRIES(tq_avx2_decode_rotated_tcq),      \
        TQ_MSE_ENTRIES(tq_scalar_decode_rotated_mse),                                              \
        TQ_PROD_ENTRIES(tq_scalar_decode_rotated_prod),                                            \
        [TQ_KUNIFORM4] = tq_avx2_decode_uniform4, [TQ_KUNIFORM8] = tq_avx2_decode_uniform8,        \
        TQ_FORK_ENTRIES(tq_scalar_decode_rotated_fork)

#endif
