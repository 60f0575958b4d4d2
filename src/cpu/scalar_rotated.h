/* SPDX-License-Identifier: MIT */
/* scalar_rotated.h — what the reference codecs with one scale per row share: norm-codebook,
 * trellis, mse and prod. Source: docs/format.md 8.2, 8.3, 8.5, 8.6. */
#ifndef TQ_CPU_SCALAR_ROTATED_H
#define TQ_CPU_SCALAR_ROTATED_H

#include "cpu/kernels.h"

#define TQ_ROW_MAX 1024u /* largest dimension */

/* Candidate stretches h of the levels, in 1/64; an encoder of effort n tries the first n. */
extern const uint8_t tq_stretches[12];

/* Limits of a row's largest magnitude, docs/format.md 8.3. */
#define TQ_ROW_TINY 0x1p-50f
#define TQ_ROW_HUGE 0x1p50f

/* A row in the rotated domain, not scaled: y = H (x * sign). */
typedef struct tq_rotated_row {
    float y[TQ_ROW_MAX];
    float norm;    /* of y: sqrt of the stripe sum of y * y */
    int saturates; /* x was scaled down; the stored scale is 7bff */
} tq_rotated_row;

/* Returns 0 if the row counts as zero: its block is all zero bytes, r is unspecified. */
int tq_row_rotate(tq_rotated_row *r, const float *x, uint32_t dim);

/* Fixed-point coordinates p [dim], odd, within +-32767: y in units of unit * norm / sqrt(dim),
 * times 2^(frac + 1). Returns num, the numerator of the stored scale. */
float tq_row_coordinates(int16_t *p, const tq_rotated_row *r, uint32_t dim, float unit,
                         uint32_t frac);

/* p[j] = 2 floor(y[j] * inv) + 1. */
void tq_row_fixed_point(int16_t *p, const tq_rotated_row *r, uint32_t dim, float inv);

/* What the scale search maximises: grows with the cosine of p and the levels. 0 for dot <= 0. */
static inline float tq_row_criterion(int32_t dot, int32_t ll)
{
    const float t = (float)dot;
    return dot > 0 ? t * t / (float)ll : 0;
}

/* a where the mask is all ones, else b. Not a conditional: which stretch wins is as good as random,
 * and gcc makes branches of those, a wrong guess per row. */
static inline uint32_t tq_choose(int32_t mask, uint32_t a, uint32_t b)
{
    return b ^ ((a ^ b) & (uint32_t)mask);
}

/* f16 bits of the scale: num / dot, saturating. */
uint16_t tq_row_scale(float num, int32_t dot, int saturates);

/* 16 partial sums over j mod 16, then a tree. */
float tq_stripe_sum(const float *v, uint32_t n);

/* Where the encoder of a row reads from: x, or with TQ_CODEC_MEAN x minus its mean, in room [dim];
 * the f16 mean is stored at mean. */
const float *tq_row_take_mean(const tq_codec *c, uint8_t *mean, const float *x, float *room);

/* One row from its integer levels: dst [dim], in the original or the rotated domain. unit: of the
 * codebook. scale, mean: stored f16, mean NULL without TQ_CODEC_MEAN. */
void tq_row_reconstruct(const tq_codec *c, float *dst, const int8_t *level, float unit,
                        const uint8_t *scale, const uint8_t *mean, int rotated);

#endif
