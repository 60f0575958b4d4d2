/* SPDX-License-Identifier: MIT */
/* rotate.c — sign flips and the Walsh-Hadamard transform, reference version.
 *
 * Stored bytes depend on every rounding here. Each output of a stage is one f32 sum or difference
 * of two values of the stage before, so any implementation that keeps the stages in this order
 * gives equal bits, however it walks over the pairs.
 */
#include "rotate.h"
#include "tables.h"

float tq_rotate_scale(uint32_t dim)
{
    switch (dim) {
    case 64:
        return 0.125f;
    case 128:
        return 0x1.6a09e6p-4f;
    case 256:
        return 0.0625f;
    default:
        return 0x1.6a09e6p-5f; /* 512 */
    }
}

static void hadamard(float *x, uint32_t dim)
{
    for (uint32_t h = 1; h < dim; h *= 2) {
        for (uint32_t block = 0; block < dim; block += 2 * h) {
            for (uint32_t j = block; j < block + h; j++) {
                float a = x[j];
                float b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
        }
    }
}

void tq_rotate_f32(float *x, uint32_t dim)
{
    const float *sign = tq_sign_table(dim);
    float scale = tq_rotate_scale(dim);

    for (uint32_t j = 0; j < dim; j++)
        x[j] *= sign[j];
    hadamard(x, dim);
    for (uint32_t j = 0; j < dim; j++)
        x[j] *= scale;
}

void tq_unrotate_f32(float *x, uint32_t dim)
{
    const float *sign = tq_sign_table(dim);
    float scale = tq_rotate_scale(dim);

    hadamard(x, dim);
    for (uint32_t j = 0; j < dim; j++)
        x[j] = x[j] * scale * sign[j];
}
