/* SPDX-License-Identifier: MIT */
/* scalar_rotated.c — rotation, fixed point and scale of rows with one scale, reference version.
 *
 * Only what is here rounds. The codecs built on it (scalar_norm.c, scalar_trellis.c) work on the
 * integers p, so that every machine finds the same codes. Constants such as f32(unit/sqrt(D)) are
 * computed in binary64 and rounded once.
 */
#include "cpu/scalar_rotated.h"
#include "f16.h"
#include "rotate.h"
#include "tables.h"

#include <math.h>

const uint8_t tq_stretches[12] = {64, 56, 69, 61, 67, 59, 72, 54, 51, 75, 78, 49};

float tq_stripe_sum(const float *v, uint32_t n)
{
    float acc[16] = {0};

    for (uint32_t j = 0; j < n; j++)
        acc[j % 16] = acc[j % 16] + v[j];
    for (uint32_t h = 8; h > 0; h /= 2)
        for (uint32_t i = 0; i < h; i++)
            acc[i] = acc[i] + acc[i + h];
    return acc[0];
}

int tq_row_rotate(tq_rotated_row *r, const float *x, uint32_t dim)
{
    const float *sign = tq_sign_table(dim);
    float square[TQ_ROW_MAX];
    float top = 0;

    for (uint32_t j = 0; j < dim; j++)
        top = fabsf(x[j]) > top ? fabsf(x[j]) : top;
    if (top < TQ_ROW_TINY)
        return 0;
    r->saturates = top >= TQ_ROW_HUGE;
    for (uint32_t j = 0; j < dim; j++)
        r->y[j] = (r->saturates ? x[j] * 0x1p-78f : x[j]) * sign[j];
    tq_hadamard_f32(r->y, dim);
    for (uint32_t j = 0; j < dim; j++)
        square[j] = r->y[j] * r->y[j];
    r->norm = sqrtf(tq_stripe_sum(square, dim));
    return 1;
}

void tq_row_fixed_point(int16_t *p, const tq_rotated_row *r, uint32_t dim, float inv)
{
    for (uint32_t j = 0; j < dim; j++) {
        float v = 2 * floorf(r->y[j] * inv) + 1;
        v = v > -32767.0f ? v : -32767.0f;
        p[j] = (int16_t)(v < 32767.0f ? v : 32767.0f);
    }
}

float tq_row_coordinates(int16_t *p, const tq_rotated_row *r, uint32_t dim, float unit,
                         uint32_t frac)
{
    const double u = (double)unit, one = (double)(1u << frac);

    tq_row_fixed_point(p, r, dim, (float)(one * sqrt((double)dim) / u) / r->norm);
    return r->norm * (float)(2 * one / (u * u));
}

uint16_t tq_row_scale(float num, int32_t dot, int saturates)
{
    if (saturates)
        return 0x7bffu;
    if (dot <= 0)
        return 0;
    return tq_f16_from_f32_sat(num / (float)dot);
}

const float *tq_row_take_mean(const tq_codec *c, uint8_t *mean, const float *x, float *room)
{
    if (!(c->flags & TQ_CODEC_MEAN))
        return x;
    float sum = tq_stripe_sum(x, c->dim);
    uint16_t h = fabsf(sum) < INFINITY ? tq_f16_from_f32_sat(sum / (float)c->dim) : 0;
    float m = tq_f32_from_f16(h);

    tq_store_le16(mean, h);
    for (uint32_t j = 0; j < c->dim; j++)
        room[j] = x[j] - m;
    return room;
}

void tq_row_reconstruct(const tq_codec *c, float *dst, const int8_t *level, float unit,
                        const uint8_t *scale, const uint8_t *mean, int rotated)
{
    const uint32_t dim = c->dim;
    const float s = tq_f32_from_f16(tq_load_le16(scale));
    const float m = mean ? tq_f32_from_f16(tq_load_le16(mean)) : 0;

    for (uint32_t j = 0; j < dim; j++)
        dst[j] = (float)level[j];
    if (!rotated) {
        const float *sign = tq_sign_table(dim);
        const float t = s * (float)((double)unit / sqrt((double)dim));
        tq_hadamard_f32(dst, dim);
        for (uint32_t j = 0; j < dim; j++)
            dst[j] = sign[j] * (dst[j] * t);
        for (uint32_t j = 0; mean && j < dim; j++)
            dst[j] = dst[j] + m;
        return;
    }
    for (uint32_t j = 0; j < dim; j++)
        dst[j] = dst[j] * (s * unit);
    if (mean) { /* the rotation of a vector of equal elements */
        float ones[TQ_ROW_MAX];
        for (uint32_t j = 0; j < dim; j++)
            ones[j] = 1;
        tq_rotate_f32(ones, dim);
        for (uint32_t j = 0; j < dim; j++)
            dst[j] = dst[j] + m * ones[j];
    }
}
