/* SPDX-License-Identifier: MIT */
/* avx2_rotated.h — what the AVX2 codecs with one scale per row share. Twins of scalar_rotated.h:
 * equal results bit for bit. */
#ifndef TQ_CPU_AVX2_ROTATED_H
#define TQ_CPU_AVX2_ROTATED_H

#include "cpu/scalar_rotated.h"

/* Arrays that these functions and their callers read or write by whole vectors. */
#define TQ_ROW_PAD 64u

/* x [dim] := H x, in place; tq_hadamard_takes(dim). */
void tq_avx2_hadamard(float *x, uint32_t dim);

/* What the largest magnitude of a row says. */
typedef enum tq_row_kind { TQ_ROW_IS_ZERO, TQ_ROW_IS_PLAIN, TQ_ROW_IS_HUGE } tq_row_kind;

/* y [dim] = H (x * sign) and the stripe sum of its squares. Not for use unless the row is plain. */
tq_row_kind tq_avx2_rotate_sum(float *y, float *sum, const float *x, uint32_t dim);

/* As tq_row_rotate. */
int tq_avx2_row_rotate(tq_rotated_row *r, const float *x, uint32_t dim);

/* The constants of tq_row_coordinates, computed once for many rows: f32(2^frac sqrt(dim) / unit)
 * and f32(2^(frac+1) / unit^2). */
typedef struct tq_row_constants {
    float to_p;
    float to_num;
} tq_row_constants;

tq_row_constants tq_avx2_row_constants(uint32_t dim, float unit, uint32_t frac);

/* As tq_row_fixed_point with inv of any size for which |y * inv| < 2^14, which both callers of
 * the reference keep. p has room for whole vectors: [dim + TQ_ROW_PAD]; p[dim ..] up to the next
 * multiple of 32 are set to 0. */
void tq_avx2_fix(int16_t *p, const float *y, uint32_t dim, float inv);
void tq_avx2_fixed_point(int16_t *p, const tq_rotated_row *r, uint32_t dim, float inv);

/* What is constant over the rows of a decode call. */
typedef struct tq_avx2_decoder {
    const tq_codec *c;
    float unit;      /* of the codebook */
    float per_scale; /* f32(unit / sqrt(dim)) */
    int rotated;
    const float *sign;      /* [dim] */
    float ones[TQ_ROW_MAX]; /* rotated, with TQ_CODEC_MEAN: the rotation of equal elements */
} tq_avx2_decoder;

void tq_avx2_decoder_init(tq_avx2_decoder *d, const tq_codec *c, float unit, int rotated);

/* As tq_row_reconstruct. */
void tq_avx2_reconstruct(const tq_avx2_decoder *d, float *dst, const int8_t *level,
                         const uint8_t *scale, const uint8_t *mean);

#endif
