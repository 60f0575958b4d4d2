/* SPDX-License-Identifier: MIT */
/* rotate.c — sign flips and Hadamard transforms of order m * 2^k, reference version.
 *
 * Stored bytes depend on every rounding here. Each output of a butterfly stage is one f32 sum or
 * difference of two values of the stage before, so any implementation that keeps the stages in
 * this order gives equal bits, however it walks over the pairs. The small factors (docs/format.md
 * 5.4: Paley's constructions) sum their inputs from left to right.
 */
#include "rotate.h"
#include "tables.h"

#include <math.h>

float tq_rotate_scale(uint32_t dim)
{
    switch (dim) {
    case 64:
        return 0.125f;
    case 128:
        return 0x1.6a09e6p-4f;
    case 256:
        return 0.0625f;
    case 512:
        return 0x1.6a09e6p-5f;
    default:
        return (float)(1.0 / sqrt((double)dim));
    }
}

/* ---- The small factors ---- */

/* Quadratic characters modulo 11, 19, 13 and 17; a test rebuilds them from their definition. */
static const uint32_t paley_12[12] = {0x000, 0xb8a, 0xdc4, 0x6e2, 0xb70, 0x5b8,
                                      0x2dc, 0x16e, 0x8b6, 0xc5a, 0xe2c, 0x716};
static const uint32_t paley_20[20] = {0x00000, 0x9ea1a, 0xcf50c, 0x67a86, 0xb3d42, 0xd9ea0, 0x6cf50,
                                      0x367a8, 0x1b3d4, 0x0d9ea, 0x86cf4, 0x4367a, 0xa1b3c, 0x50d9e,
                                      0xa86ce, 0xd4366, 0xea1b2, 0xf50d8, 0x7a86c, 0x3d436};
static const uint32_t conference_14[14] = {0x0000, 0x13c8, 0x2790, 0x0f22, 0x1e44, 0x3c88, 0x3912,
                                           0x3226, 0x244e, 0x089e, 0x113c, 0x2278, 0x04f2, 0x09e4};
static const uint32_t conference_18[18] = {0x00000, 0x0b9d0, 0x173a0, 0x2e740, 0x1ce82, 0x39d04,
                                           0x33a0a, 0x27416, 0x0e82e, 0x1d05c, 0x3a0b8, 0x34172,
                                           0x282e6, 0x105ce, 0x20b9c, 0x0173a, 0x02e74, 0x05ce8};

const uint32_t *tq_hadamard_rows(uint32_t m)
{
    switch (m) {
    case 12:
        return paley_12;
    case 20:
        return paley_20;
    case 28:
        return conference_14;
    case 36:
        return conference_18;
    default:
        return NULL;
    }
}

uint32_t tq_hadamard_order(uint32_t dim)
{
    static const uint8_t order[10] = {[1] = 1, [3] = 12, [5] = 20, [7] = 28, [9] = 36};
    while (dim % 2 == 0)
        dim /= 2;
    return dim < sizeof order ? order[dim] : 0;
}

int tq_hadamard_takes(uint32_t dim)
{
    if (dim % 8 || dim < 16 || dim > 1024)
        return 0;
    uint32_t m = tq_hadamard_order(dim);
    return m && dim % m == 0;
}

static float with_sign(float v, uint32_t row, uint32_t j)
{
    return row >> j & 1 ? -v : v;
}

/* x[0], x[stride] ... x[(m - 1) * stride] := H_m of them, m = 12 or 20. */
static void small_paley(float *x, uint32_t stride, uint32_t m)
{
    const uint32_t *rows = tq_hadamard_rows(m);
    float in[20];

    for (uint32_t j = 0; j < m; j++)
        in[j] = x[j * stride];
    for (uint32_t i = 0; i < m; i++) {
        float t = in[0];
        for (uint32_t j = 1; j < m; j++)
            t += with_sign(in[j], rows[i], j);
        x[i * stride] = t;
    }
}

/* Sum of C(a, j) * v[j], j ascending without j = a. */
static float conference_sum(const float *v, uint32_t row, uint32_t a, uint32_t n)
{
    uint32_t j = a == 0;
    float t = with_sign(v[j], row, j);

    for (j++; j < n; j++)
        if (j != a)
            t += with_sign(v[j], row, j);
    return t;
}

/* The same for m = 28 or 36, from the conference matrix of order n = m / 2. */
static void small_double(float *x, uint32_t stride, uint32_t m)
{
    const uint32_t *rows = tq_hadamard_rows(m);
    const uint32_t n = m / 2;
    float u[18], w[18];

    for (uint32_t a = 0; a < n; a++) {
        u[a] = x[a * stride] + x[(a + n) * stride];
        w[a] = x[a * stride] - x[(a + n) * stride];
    }
    for (uint32_t a = 0; a < n; a++) {
        x[a * stride] = conference_sum(u, rows[a], a, n) + w[a];
        x[(a + n) * stride] = conference_sum(w, rows[a], a, n) - u[a];
    }
}

/* ---- The transform ---- */

static void butterflies(float *x, uint32_t dim)
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

void tq_hadamard_f32(float *x, uint32_t dim)
{
    const uint32_t m = tq_hadamard_order(dim);
    const uint32_t p = dim / m;

    for (uint32_t a = 0; a < m; a++)
        butterflies(x + a * p, p);
    for (uint32_t b = 0; m > 1 && b < p; b++) {
        if (m <= 20)
            small_paley(x + b, p, m);
        else
            small_double(x + b, p, m);
    }
}

void tq_rotate_f32(float *x, uint32_t dim)
{
    const float *sign = tq_sign_table(dim);
    float scale = tq_rotate_scale(dim);

    for (uint32_t j = 0; j < dim; j++)
        x[j] *= sign[j];
    tq_hadamard_f32(x, dim);
    for (uint32_t j = 0; j < dim; j++)
        x[j] *= scale;
}

void tq_unrotate_f32(float *x, uint32_t dim)
{
    const float *sign = tq_sign_table(dim);
    float scale = tq_rotate_scale(dim);

    tq_hadamard_f32(x, dim);
    for (uint32_t j = 0; j < dim; j++)
        x[j] = x[j] * scale * sign[j];
}
