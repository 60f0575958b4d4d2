/* SPDX-License-Identifier: MIT */
/* rotate.h — the fixed orthogonal transform of Lloyd values: R = H * diag(sign) / sqrt(dim). */
#ifndef TQ_ROTATE_H
#define TQ_ROTATE_H

#include <stdint.h>

/* f32(1/sqrt(dim)) for dim 64, 128, 256, 512. Source: docs/format.md "Rotation". */
float tq_rotate_scale(uint32_t dim);

/* x [dim] := R x, in place. dim 64, 128, 256 or 512. Any thread. Cannot fail. The f32 roundings
 * are fixed by the format: signs, then stages h = 1, 2, 4 ... dim/2, then one multiplication. */
void tq_rotate_f32(float *x, uint32_t dim);

/* x [dim] := R^T x, in place: stages, multiplication, signs. */
void tq_unrotate_f32(float *x, uint32_t dim);

#endif
