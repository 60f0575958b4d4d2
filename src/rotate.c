/* SPDX-License-Identifier: MIT */
/* rotate.c — sign flips and Hadamard transforms of order m * 2^k, reference version.
 *
 * Stored bytes depend on every rounding here. Each output of a butterfly stage is one f32 sum or
 * difference of two values of the stage before, so any implementation that keeps the stages in
 * this order gives equal bits, however it walks over the pairs. The small factors (docs/format.md
 * 5.4: Paley's constructions) sum their inputs from left to right.
 */
#include "rotate.h"
#include "hadamard_rows.h"
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

#define ROW(i, bits) bits,
static const uint32_t paley_12[12] = {TQ_PALEY_12(ROW)};
static const uint32_t paley_20[20] = {TQ_PALEY_20(ROW)};
static const uint32_t conference_14[14] = {TQ_CONFERENCE_14(ROW)};
static const uint32_t conference_18[18] = {TQ_CONFERENCE_18(ROW)};
#undef ROW

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
