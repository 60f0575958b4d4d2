/* SPDX-License-Identifier: MIT */
/* avx2_attn_rotated.c — attention over formats without kernels of their own, for AVX2: a few tokens
 * at a time are decoded to f32 in the first cache and given to the f32 kernels. Keys and values of
 * rotated formats stay in the rotated domain.
 */
#include "cpu/avx2_attn.h"

/* f32 of decoded tokens; at least 8 rows, which a step of the scores writes. */
enum { CHUNK_FLOATS = 8192, ONES = 256 };

static uint32_t chunk_tokens(uint32_t dim)
{
    uint32_t n = CHUNK_FLOATS / dim / 8 * 8;
    return n < 32 ? n : 32;
}

static tq_const_planes planes_from(tq_const_planes p, uint32_t t)
{
    p.codes += t * p.codes_stride;
    p.scale += t * p.scale_stride;
    p.zero += t * p.zero_stride;
    return p;
}

static tq_const_planes decoded(const float *rows, uint32_t dim)
{
    return (tq_const_planes){.codes = (const uint8_t *)rows, .codes_stride = dim * sizeof *rows};
}

void tq_avx2_prep_rotated(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    float *dst = prep;
    tq_avx2_prep_f32(k, prep, q, n_rows);
    for (uint32_t r = 0; r < n_rows; r++)
        k->kernels->codec->rotate(dst + (size_t)r * k->dim, k->dim);
}

void tq_avx2_score_decoded(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                           tq_const_planes keys, uint32_t n)
{
    tq_decode_fn *decode = k->kernels->codec->decode_rotated[tq_kfmt(k->format)];
    const uint32_t step = chunk_tokens(k->dim);
    float rows[CHUNK_FLOATS];
    tq_walk ahead = tq_walk_begin(keys, n / step);

    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;
        tq_walk_on(&ahead);
        decode(k, rows, k->dim, planes_from(keys, t), m);
        tq_avx2_score_f32(k, s + t, prep, n_rows, decoded(rows, k->dim), m);
    }
}

void tq_avx2_weigh_decoded(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                           const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    tq_decode_fn *decode = v->kernels->codec->decode_rotated[tq_kfmt(v->format)];
    const uint32_t step = chunk_tokens(v->dim);
    float rows[CHUNK_FLOATS], ones[ONES];
    tq_walk ahead = tq_walk_begin(values, n / step);

    for (uint32_t i = 0; i < ONES; i++)
        ones[i] = 1;
    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;
        tq_walk_on(&ahead);
        decode(v, rows, v->dim, planes_from(values, t), m);
        /* The old sum is scaled once. */
        for (uint32_t r = 0; r < n_rows; r += ONES)
            tq_avx2_weigh_f32(v, acc + r * acc_stride, acc_stride, w + (size_t)r * TQ_TILE + t,
                              t ? ones : alpha + r, n_rows - r < ONES ? n_rows - r : ONES,
                              decoded(rows, v->dim), m);
    }
}
