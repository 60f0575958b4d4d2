/* SPDX-License-Identifier: MIT */
/* neon_rotated.h — what the NEON codecs with one scale per row share: rotation, fixed point, planes
 * and reconstruction. Twins of scalar_rotated.h and pack.h: equal results bit for bit. */
#ifndef TQ_CPU_NEON_ROTATED_H
#define TQ_CPU_NEON_ROTATED_H

#include "cpu/neon.h"
#include "cpu/scalar_rotated.h"

/* Arrays that these functions and their callers read or write by whole vectors. */
#define TQ_ROW_PAD 32u

/* x [dim] := H x, in place; tq_hadamard_takes(dim). */
void tq_neon_hadamard(float *x, uint32_t dim);

/* As tq_row_rotate. */
int tq_neon_row_rotate(tq_rotated_row *r, const float *x, uint32_t dim);

/* As tq_row_fixed_point where |y * inv| < 2^14. p [dim + TQ_ROW_PAD]: the 8 elements from dim on
 * are set to 0. */
void tq_neon_fix(int16_t *p, const float *y, uint32_t dim, float inv);

/* As tq_pack_planes and tq_unpack_planes; code has TQ_ROW_PAD bytes of room behind it, which are
 * read or written. */
void tq_neon_pack_planes(uint8_t *dst, const uint8_t *code, uint32_t dim, const uint8_t *widths);
void tq_neon_unpack_planes(uint8_t *code, const uint8_t *src, uint32_t dim, const uint8_t *widths);

/* What is constant over the rows of a decode call. */
typedef struct tq_neon_decoder {
    const tq_codec *c;
    float unit;      /* of the codebook */
    float per_scale; /* f32(unit / sqrt(dim)) */
    int rotated;
    float ones[TQ_ROW_MAX]; /* rotated, with TQ_CODEC_MEAN: the rotation of equal elements */
} tq_neon_decoder;

void tq_neon_decoder_init(tq_neon_decoder *d, const tq_codec *c, float unit, int rotated);

/* As tq_row_reconstruct. */
void tq_neon_reconstruct(const tq_neon_decoder *d, float *dst, const int8_t *level,
                         const uint8_t *scale, const uint8_t *mean);

/* Eight levels as f32. */
TQ_INLINE float32x4x2_t tq_levels8(const int8_t *level)
{
    int16x8_t v = vmovl_s8(vld1_s8(level));
    float32x4x2_t f = {
        {vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(v)))}};
    return f;
}

#endif
