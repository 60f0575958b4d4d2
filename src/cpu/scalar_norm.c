/* SPDX-License-Identifier: MIT */
/* scalar_norm.c — norm-codebook, and the paper's mse and prod on the same codebooks; reference.
 * Source: docs/format.md 8 and 11.
 *
 * The one hard idea: the search over stretches h compares cosines of integer vectors, with the
 * same coordinates p for all. The stored scale is then num / <p, levels>, so that the decoded row
 * keeps the row's own component along the row, whatever codes were chosen.
 */
#include "codebook.h"
#include "cpu/scalar.h"
#include "cpu/scalar_rotated.h"
#include "f16.h"
#include "pack.h"
#include "rotate.h"
#include "tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Codes ---- */

static void quantise(uint8_t *code, const int16_t *p, uint32_t dim, const tq_codebook *book,
                     uint32_t h)
{
    int16_t edges[31];

    if (book->bits == 8) {
        for (uint32_t j = 0; j < dim; j++) {
            int m = (abs(p[j]) + 32) >> 6;
            m = m < 127 ? m : 127;
            code[j] = (uint8_t)(p[j] < 0 ? -m : m);
        }
        return;
    }
    tq_codebook_edges(book, h, edges);
    for (uint32_t j = 0; j < dim; j++) {
        uint32_t m = 0;
        for (uint32_t i = 0; i + 1 < book->n_levels; i++)
            m += abs(p[j]) > edges[i];
        code[j] = (uint8_t)(m | (p[j] < 0 ? 1u << (book->bits - 1) : 0));
    }
}

static void dot_products(const int16_t *p, const uint8_t *code, uint32_t dim,
                         const tq_codebook *book, int32_t *dot, int32_t *ll)
{
    *dot = *ll = 0;
    for (uint32_t j = 0; j < dim; j++) {
        int level = tq_codebook_level(book, code[j]);
        *dot += p[j] * level;
        *ll += level * level;
    }
}

/* ---- norm-codebook ---- */

/* Codes of the best of the first `effort` stretches. Returns <p, levels>. */
static int32_t search(uint8_t *best_code, const int16_t *p, uint32_t dim, const tq_codebook *book,
                      uint32_t effort)
{
    uint8_t code[TQ_ROW_MAX];
    float best = -1;
    int32_t best_dot = 0;

    for (uint32_t i = 0; i < effort; i++) {
        int32_t dot, ll;
        quantise(code, p, dim, book, tq_stretches[i]);
        dot_products(p, code, dim, book, &dot, &ll);
        float crit = tq_row_criterion(dot, ll);
        if (crit > best) {
            best = crit;
            best_dot = dot;
            memcpy(best_code, code, dim);
        }
    }
    return best_dot;
}

static void encode_row(const tq_codec *c, uint8_t *codes, uint8_t *scale, const float *x)
{
    const tq_codebook *book = tq_codebook_get(c->bits);
    tq_rotated_row r;
    int16_t p[TQ_ROW_MAX];
    uint8_t code[TQ_ROW_MAX];
    float num;

    if (!tq_row_rotate(&r, x, c->dim)) {
        memset(codes, 0, c->code_bytes);
        tq_store_le16(scale, 0);
        return;
    }
    if (c->bits == 8) {
        float top = 0;
        for (uint32_t j = 0; j < c->dim; j++)
            top = fabsf(r.y[j]) > top ? fabsf(r.y[j]) : top;
        num = r.norm / top * r.norm * (float)(8128.0 / (sqrt((double)c->dim) * (double)book->unit));
        tq_row_fixed_point(p, &r, c->dim, 4064.0f / top);
    } else {
        num = tq_row_coordinates(p, &r, c->dim, book->unit, book->frac);
    }
    int32_t dot = search(code, p, c->dim, book, c->effort);
    tq_pack_planes(codes, code, c->dim, book->widths);
    tq_store_le16(scale, tq_row_scale(num, dot, r.saturates));
}

void tq_scalar_encode_norm(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n)
{
    float room[TQ_ROW_MAX];

    for (size_t row = 0; row < n; row++) {
        uint8_t *mean = dst.zero ? dst.zero + row * dst.zero_stride : NULL;
        encode_row(c, dst.codes + row * dst.codes_stride, dst.scale + row * dst.scale_stride,
                   tq_row_take_mean(c, mean, src + row * src_stride, room));
    }
}

static void decode(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src, size_t n,
                   int rotated)
{
    const tq_codebook *book = tq_codebook_get(c->bits);
    uint8_t code[TQ_ROW_MAX];
    int8_t level[TQ_ROW_MAX];

    for (size_t row = 0; row < n; row++) {
        tq_unpack_planes(code, src.codes + row * src.codes_stride, c->dim, book->widths);
        for (uint32_t j = 0; j < c->dim; j++)
            level[j] = (int8_t)tq_codebook_level(book, code[j]);
        tq_row_reconstruct(c, dst + row * dst_stride, level, book->unit,
                           src.scale + row * src.scale_stride,
                           c->zero_bytes ? src.zero + row * src.zero_stride : NULL, rotated);
    }
}

void tq_scalar_decode_norm(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                           size_t n)
{
    decode(c, dst, dst_stride, src, n, 0);
}

void tq_scalar_decode_rotated_norm(const tq_codec *c, float *dst, size_t dst_stride,
                                   tq_const_planes src, size_t n)
{
    decode(c, dst, dst_stride, src, n, 1);
}

/* ---- mse: the raw norm as scale ---- */

static uint16_t raw_scale(float norm, uint32_t dim, int saturates)
{
    return saturates ? 0x7bffu : tq_f16_from_f32_sat(norm * (float)(1.0 / (double)dim));
}

/* Codes of the row under the stretch 1. One bit: the sign. */
static void plain_codes(uint8_t *code, const tq_rotated_row *r, uint32_t dim,
                        const tq_codebook *book)
{
    int16_t p[TQ_ROW_MAX];
    tq_row_coordinates(p, r, dim, book->unit, book->frac);
    quantise(code, p, dim, book, 64);
}

void tq_scalar_encode_mse(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                          size_t n)
{
    const tq_codebook *book = tq_codebook_get(c->bits);
    tq_rotated_row r;
    uint8_t code[TQ_ROW_MAX];

    for (size_t row = 0; row < n; row++) {
        uint8_t *codes = dst.codes + row * dst.codes_stride;
        uint8_t *scale = dst.scale + row * dst.scale_stride;
        if (!tq_row_rotate(&r, src + row * src_stride, c->dim)) {
            memset(codes, 0, c->code_bytes);
            tq_store_le16(scale, 0);
            continue;
        }
        plain_codes(code, &r, c->dim, book);
        tq_pack_planes(codes, code, c->dim, book->widths);
        tq_store_le16(scale, raw_scale(r.norm, c->dim, r.saturates));
    }
}

void tq_scalar_decode_mse(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                          size_t n)
{
    decode(c, dst, dst_stride, src, n, 0);
}

void tq_scalar_decode_rotated_mse(const tq_codec *c, float *dst, size_t dst_stride,
                                  tq_const_planes src, size_t n)
{
    decode(c, dst, dst_stride, src, n, 1);
}

/* ---- prod: (B-1)-bit mse, then signs of the transformed residual ---- */

static const uint8_t one_bit[] = {1, 0};

/* The orthogonal transform H diag(b) H diag(a) / dim. One H would not do: an element of the
 * residual meets a single sign there, and its share of the coordinates is not linear in it. After
 * two, the coordinates of residual and row are nearly jointly normal (docs/format.md 11). */
typedef struct mixer {
    float a[TQ_ROW_MAX], b[TQ_ROW_MAX];
    uint32_t dim;
} mixer;

#define MIXER_KEY_A 43u
#define MIXER_KEY_B 44u

static void mixer_init(mixer *m, uint32_t dim)
{
    m->dim = dim;
    tq_sign_generate(m->a, dim, MIXER_KEY_A);
    tq_sign_generate(m->b, dim, MIXER_KEY_B);
}

static void times(float *x, const float *sign, uint32_t dim)
{
    for (uint32_t j = 0; j < dim; j++)
        x[j] = x[j] * sign[j];
}

/* Without the factor 1 / dim. */
static void mix(const mixer *m, float *x)
{
    times(x, m->a, m->dim);
    tq_hadamard_f32(x, m->dim);
    times(x, m->b, m->dim);
    tq_hadamard_f32(x, m->dim);
}

/* The inverse of mix, but for the same factor: exact on signs, sums stay below dim^2 <= 2^20. */
static void unmix(const mixer *m, float *x)
{
    tq_hadamard_f32(x, m->dim);
    times(x, m->b, m->dim);
    tq_hadamard_f32(x, m->dim);
    times(x, m->a, m->dim);
}

static void encode_prod_row(const tq_codec *c, uint8_t *codes, uint8_t *scale, const float *x,
                            const mixer *m)
{
    const uint32_t dim = c->dim, bits = c->bits - 1;
    const tq_codebook *book = tq_codebook_get(bits);
    tq_rotated_row r;
    uint8_t code[TQ_ROW_MAX];
    float z[TQ_ROW_MAX];

    if (!tq_row_rotate(&r, x, dim)) {
        memset(codes, 0, c->code_bytes);
        memset(scale, 0, c->scale_bytes);
        return;
    }
    float *e = r.y; /* of one bit there is no first stage: the residual is the row */
    const float norm = r.norm;
    if (bits) {
        const float t =
            norm * (float)(1.0 / (double)dim) * (float)((double)book->unit * sqrt((double)dim));
        plain_codes(code, &r, dim, book);
        for (uint32_t j = 0; j < dim; j++)
            e[j] = e[j] - (float)tq_codebook_level(book, code[j]) * t;
        tq_pack_planes(codes, code, dim, book->widths);
    }
    memcpy(z, e, dim * sizeof z[0]);
    mix(m, z);
    for (uint32_t j = 0; j < dim; j++)
        code[j] = z[j] < 0;
    tq_pack_planes(codes + (size_t)dim * bits / 8, code, dim, one_bit);
    for (uint32_t j = 0; j < dim; j++)
        z[j] = e[j] * e[j];
    if (bits)
        tq_store_le16(scale, raw_scale(norm, dim, r.saturates));
    tq_store_le16(scale + c->scale_bytes - 2,
                  raw_scale(sqrtf(tq_stripe_sum(z, dim)), dim, r.saturates));
}

void tq_scalar_encode_prod(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n)
{
    mixer m;

    mixer_init(&m, c->dim);
    for (size_t row = 0; row < n; row++)
        encode_prod_row(c, dst.codes + row * dst.codes_stride, dst.scale + row * dst.scale_stride,
                        src + row * src_stride, &m);
}

/* 1 / (d^1.5 E|v|), v a coordinate of a random unit vector of d dimensions: E|v| is
 * Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)), here by its series, good to 2e-7 from d = 16 on. */
static float kappa(uint32_t dim)
{
    const double pi = 3.14159265358979323846, d = (double)dim;
    return (float)(sqrt(pi / 2) / d * (1 - 1 / (4 * d) + 1 / (32 * d * d) + 5 / (128 * d * d * d)));
}

void tq_scalar_decode_rotated_prod(const tq_codec *c, float *dst, size_t dst_stride,
                                   tq_const_planes src, size_t n)
{
    const uint32_t dim = c->dim, bits = c->bits - 1;
    const tq_codebook *book = tq_codebook_get(bits);
    uint8_t code[TQ_ROW_MAX];
    mixer m;

    mixer_init(&m, dim);
    for (size_t row = 0; row < n; row++, dst += dst_stride) {
        const uint8_t *codes = src.codes + row * src.codes_stride;
        const uint8_t *scale = src.scale + row * src.scale_stride;
        const float t = tq_f32_from_f16(tq_load_le16(scale + c->scale_bytes - 2)) * kappa(dim);

        tq_unpack_planes(code, codes + (size_t)dim * bits / 8, dim, one_bit);
        for (uint32_t j = 0; j < dim; j++)
            dst[j] = code[j] ? -1.0f : 1.0f;
        unmix(&m, dst);
        for (uint32_t j = 0; j < dim; j++)
            dst[j] = dst[j] * t;
        if (!bits)
            continue;
        const float s = tq_f32_from_f16(tq_load_le16(scale)) * book->unit;
        tq_unpack_planes(code, codes, dim, book->widths);
        for (uint32_t j = 0; j < dim; j++)
            dst[j] = (float)tq_codebook_level(book, code[j]) * s + dst[j];
    }
}

void tq_scalar_decode_prod(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                           size_t n)
{
    tq_scalar_decode_rotated_prod(c, dst, dst_stride, src, n);
    for (size_t row = 0; row < n; row++)
        tq_unrotate_f32(dst + row * dst_stride, c->dim);
}
