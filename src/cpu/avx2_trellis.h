/* SPDX-License-Identifier: MIT */
/* avx2_trellis.h — the parts of the AVX2 trellis codec: search, evaluation, levels. */
#ifndef TQ_CPU_AVX2_TRELLIS_H
#define TQ_CPU_AVX2_TRELLIS_H

#include "cpu/kernels.h"
#include "cpu/scalar_rotated.h"
#include "trellis.h"

#include <immintrin.h>

/* Searches done side by side: one (row, stretch) pair in each 32-bit lane. */
enum { TQ_LANES = 8, TQ_PATH_WORDS = TQ_ROW_MAX / 32 };

/* What the searches leave: per 32 coordinates and lane a word whose bit i is that of coordinate
 * 32 w + i. */
typedef struct tq_paths {
    uint32_t x[TQ_PATH_WORDS][TQ_LANES];  /* path bits */
    uint32_t z0[TQ_PATH_WORDS][TQ_LANES]; /* low bit of the subset */
    uint32_t z1[TQ_PATH_WORDS][TQ_LANES]; /* high bit */
} tq_paths;

/* Eight searches. p: the coordinates of each lane, [dim] int16; h: the stretch of each. */
void tq_avx2_trellis_search(tq_paths *paths, const tq_trellis *t, const int16_t *const p[TQ_LANES],
                            const uint8_t h[TQ_LANES], uint32_t dim);

/* tq_trellis_edges, flat: edge [4 j + k]. */
void tq_avx2_trellis_edges(int16_t edge[TQ_TRELLIS_LEVELS], const tq_trellis *t, uint32_t h);

/* The codes of one lane's path, and its products <p, levels> and <levels, levels>. p and code have
 * room for dim rounded up to 32; p is 0 from dim on. edge: of the lane's stretch. */
void tq_avx2_trellis_codes(uint8_t *code, int32_t *dot, int32_t *ll, const tq_trellis *t,
                           const tq_paths *paths, uint32_t lane, const int16_t *p,
                           const int16_t *edge, uint32_t dim);

/* The planes of codes. code is padded to 32 beyond dim. */
void tq_avx2_trellis_pack(uint8_t *planes, const uint8_t *code, const tq_trellis *t, uint32_t dim);

/* The same of a wider instruction set: sixteen searches, whose paths fill two structures. */
typedef void tq_trellis_search16_fn(tq_paths paths[2], const tq_trellis *t,
                                    const int16_t *const p[2 * TQ_LANES],
                                    const uint8_t h[2 * TQ_LANES], uint32_t dim);
typedef void tq_trellis_codes_fn(uint8_t *code, int32_t *dot, int32_t *ll, const tq_trellis *t,
                                 const tq_paths *paths, uint32_t lane, const int16_t *p,
                                 const int16_t *edge, uint32_t dim);

/* An encoder that takes sixteen searches at a time while more than eight are left. */
void tq_avx2_encode_tcq_by(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n, tq_trellis_search16_fn *search16, tq_trellis_codes_fn *codes);

/* Levels by number, 16 to a register, in both halves. */
typedef struct tq_trellis_tables {
    __m256i t[8];
} tq_trellis_tables;

/* Fills those that the number of levels needs. zero: added to each level. */
void tq_avx2_trellis_tables(tq_trellis_tables *out, const tq_trellis *t, uint8_t zero);

/* The levels of n rows of stored planes. level [n], rows stride bytes apart, stride at least dim;
 * up to 16 bytes behind each row are written, in order. */
void tq_avx2_trellis_levels(int8_t *level, size_t stride, const uint8_t *codes, size_t codes_stride,
                            const tq_trellis_tables *tables, uint32_t bits, uint32_t dim,
                            uint32_t n);

/* Level numbers of n rows of 2 or 3 bits, which are below 16: byte i of a row holds those of
 * elements i and, in the upper half, i + dim / 2. dim a multiple of 64; up to 8 bytes behind each
 * row are written, in order. */
void tq_avx2_trellis_nibbles(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                             uint32_t bits, uint32_t dim, uint32_t n);

#endif
