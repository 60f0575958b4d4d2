/* SPDX-License-Identifier: MIT */
/* rotate.h — the fixed orthogonal transforms R = H * diag(sign) / sqrt(dim). */
#ifndef TQ_ROTATE_H
#define TQ_ROTATE_H

#include "exact.h"

#include <stdint.h>

/* Is there a transform of this dimension? Multiples of 8 in 16..1024 whose odd part is 1, 3, 5, 7
 * or 9 with the Hadamard order of it (1, 12, 20, 28, 36) a divisor. docs/format.md 5.4. */
int tq_hadamard_takes(uint32_t dim);

/* Order m of the small factor of dim = m * 2^k; tq_hadamard_takes(dim). */
uint32_t tq_hadamard_order(uint32_t dim);

/* Rows of the small factors. Of order 12 and 20: bit j of row i set where H(i, j) is -1. For 28
 * and 36 the conference matrix of half the order; its diagonal is 0. NULL for other m. */
const uint32_t *tq_hadamard_rows(uint32_t m);

/* x [dim] := H x, not scaled, in place. The order of the roundings is part of the format: stages
 * h = 1, 2, 4 ... inside the m runs of 2^k elements, then the small factor across the runs. */
void tq_hadamard_f32(float *x, uint32_t dim);

/* f32(1/sqrt(dim)). Source: docs/format.md 5.3. */
float tq_rotate_scale(uint32_t dim);

/* x [dim] := R x, in place. tq_hadamard_takes(dim). Any thread. Cannot fail. The f32 roundings
 * are fixed by the format: signs, then H, then one multiplication. */
void tq_rotate_f32(float *x, uint32_t dim);

/* x [dim] := R^T x, in place: H, multiplication, signs. */
void tq_unrotate_f32(float *x, uint32_t dim);

#endif
