/* SPDX-License-Identifier: MIT */
/* weigh_oracle.c — see weigh_oracle.h. */
#include "weigh_oracle.h"

#include "f16.h"
#include "pack.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const ck_allowance allowances[] = {
    {TQ_FMT_LLOYD_V2, 1, 255, HUGE_VAL, 0.0028, 0.0018, 0},
    {TQ_FMT_LLOYD_V3, 1, 255, HUGE_VAL, 0.018, 0.0078, 0},
    {TQ_FMT_LLOYD_V4, 1, 32767, HUGE_VAL, 0.012, 0.0045, 0},
    {TQ_FMT_LLOYD_V5, 0, 32767, 131000, 1e-4, 6e-5, 0},
    {TQ_FMT_LLOYD_V8, 0, 32767, 65500, 0.0175, 0.0034, 0},
    {TQ_FMT_UNIFORM4, 0, 255, HUGE_VAL, 0, 0, 8},
    {TQ_FMT_UNIFORM8, 0, 32767, 131000, 0, 0, 128},
};

/* Norm-codebook and trellis of up to 4 bits, and of more. */
static const ck_allowance of_levels[] = {
    {.top = 255, .weight_sum = HUGE_VAL},
    {.top = 32767, .weight_sum = HUGE_VAL},
};

const ck_allowance *ck_allowance_of(const tq_codec *v)
{
    if (v->format >= TQ_FMT_NORM2 && v->format <= TQ_FMT_TCQ6)
        return &of_levels[v->bits > 4];
    for (size_t i = 0; i < sizeof(allowances) / sizeof(allowances[0]); i++)
        if (allowances[i].format == v->format)
            return &allowances[i];
    return NULL;
}

void ck_read_values(ck_value_codes *c, const ck_allowance *a, const tq_codec *v, tq_const_planes p,
                    const float *rows, uint32_t n)
{
    const uint32_t n_groups = v->group ? (v->dim + v->group - 1) / v->group : 1;
    memset(c->sum1, 0, sizeof c->sum1);
    memset(c->sum2, 0, sizeof c->sum2);
    for (uint32_t t = 0; t < n; t++) {
        c->step[t] = 0;
        for (uint32_t g = 0; g < n_groups; g++) {
            const double scale =
                (double)tq_f32_from_f16(tq_load_le16(p.scale + t * p.scale_stride + 2 * g));
            double offset = 0;
            if (a->middle > 0)
                offset = (double)tq_f32_from_f16(tq_load_le16(p.zero + t * p.zero_stride + 2 * g)) +
                         a->middle * scale;
            c->scale[t][g] = scale;
            c->added[t][g] = a->middle > 0 ? fabs(offset) + 2 * a->middle * scale : 0;
            c->step[t] = a->shared ? fmax(c->step[t], scale) : 0;
            const uint32_t end = v->group && g + 1 < n_groups ? (g + 1) * v->group : v->dim;
            for (uint32_t j = g * v->group; j < end; j++) {
                const double y = (double)rows[(size_t)t * v->dim + j] - offset;
                const double x = scale > 0 ? y / scale : 0;
                c->code[t][j] = x;
                c->sum1[j] += fabs(x);
                c->sum2[j] += x * x;
            }
        }
    }
}

/* May a row of bytes be rounded once more with a carry (avx2_attn_sums.h)? Then a weight is off by
 * the rounding of two. A little more often than kernels do it. */
static int is_carried(const ck_value_codes *c, const float *w, uint32_t n, uint32_t g, double step)
{
    double sum = 0, sum8 = 0;
    for (uint32_t t = 0; t < n && step > 0; t++) {
        const double x = (double)w[t] * c->scale[t][g] / step;
        sum += x;
        sum8 += nearbyint(x);
    }
    return fabs(sum - sum8) > sum8 / 160;
}

/* What elements first to end, all of group g, may lose under a row of weights. extra: of first. */
static void allowed_rounding(ck_rounding *extra, const ck_allowance *a, const ck_value_codes *c,
                             const float *w, uint32_t n, uint32_t g, uint32_t first, uint32_t end)
{
    double max = 0, sum = 0, sum2 = 0, add1 = 0;
    for (uint32_t t = 0; t < n; t++) {
        const double x = (double)w[t] * c->scale[t][g];
        max = fmax(max, fmax(x, (double)w[t] * c->step[t]));
        sum += x;
        sum2 += x * x;
        add1 += (double)w[t] * c->added[t][g];
    }
    const double step = fmax(max / a->top, sum / a->weight_sum);
    double most = step / 2, var = step * step / 12;
    if (a->top < 256 && is_carried(c, w, n, g, step)) {
        most *= 2;
        var *= 2;
    }
    for (uint32_t j = first; j < end; j++) {
        /* Small weights keep their sum: all are larger or smaller by what rounding did to it. */
        double scaled = 0;
        if (a->top < 256 && sum > 0) {
            for (uint32_t t = 0; t < n; t++)
                scaled += (double)w[t] * c->scale[t][g] * c->code[t][j];
            scaled = fabs(scaled) / sum;
        }
        /* Last: a rounded weight times a rounded centroid; what is summed apart, in f32. */
        extra[j - first] = (ck_rounding){
            most * (c->sum1[j] + 1.1 * n * scaled) + a->most * sum + n * most * a->most +
                80 * (double)FLT_EPSILON * add1,
            sqrt(var * (c->sum2[j] + n * scaled * scaled) + a->sigma * a->sigma * sum2) +
                2 * (double)FLT_EPSILON * add1};
    }
}

void ck_oracle_weigh(ck_weighed *o, const ck_allowance *a, const ck_value_codes *codes,
                     const tq_codec *v, const float *w, double alpha, const float *first,
                     const float *rows, uint32_t n)
{
    memset(o->extra, 0, sizeof o->extra);
    for (uint32_t j = 0; j < v->dim; j++) {
        o->want[j] = alpha * (double)first[j];
        o->terms[j] = fabs(o->want[j]);
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < v->dim; j++) {
            double x = (double)w[i] * (double)rows[(size_t)i * v->dim + j];
            o->want[j] += x;
            o->terms[j] += fabs(x);
        }
    const uint32_t group = v->group ? v->group : v->dim;
    for (uint32_t j = 0; a && j < v->dim; j += group)
        allowed_rounding(o->extra + j, a, codes, w, n, j / group, j,
                         j + group < v->dim ? j + group : v->dim);
}
