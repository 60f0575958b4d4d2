/* SPDX-License-Identifier: MIT */
/* scalar.c — the reference codec. Every other implementation must give the same bytes.
 *
 * All arithmetic is f32, rounded after each operation in the order written, nearest even, never
 * fused, never with a reciprocal. f16(x) rounds to binary16, nearest even. Stored numbers are
 * little-endian. A stored NaN is 0x7e00, a stored zero point is never -0.
 *
 * RAW ROWS. f32 as they are; f16 and bf16 nearest even, values beyond the largest finite number
 * of the type become that number (65504, 0x7f7f).
 *
 * AFFINE KEYS, per group of 32 values x (the last of a row may be shorter), unrotated. bits 8: M =
 * 254, lo = -127, hi = 127, codes are two's complement. bits 2, 4, 5: M = 2^bits - 1, lo = 0, hi =
 * M. eps = f32(1e-8). mn = min x, mx = max x             s = (mx - mn) / M + 0         d = s + eps
 *     bits 8:  Z = rint((mx + mn) / (2 * d)) + 0      others:  Z = rint(mn / d) + 0
 *     code[i] = clamp(rint(x[i] / d - Z), lo, hi)     scale = f16(s)   zero = f16(Z)
 * "+ 0" turns -0 into +0 and changes nothing else. clamp(v) = min(max(v, lo), hi); a NaN (strict
 * mode only) becomes lo.
 *     decoded[i] = (code[i] + zero) * scale
 *
 * GUARD of affine keys, off in strict mode. It acts on a group if, and only if,
 *     not s < 65520                                  f16(s) would be Inf, or mx - mn overflowed
 *     or not |Z| <= 2048                             f16(Z) need not be Z
 *     or s < 2^-14 and (mn > 0 or mx < 0)            nearly constant: f16(s) is a subnormal or 0
 *                                                    and its error, times a large code + Z, would
 *                                                    leave the range of the group
 * (each group of equal values other than 0 is of the third kind). Everywhere else the bytes are
 * those of strict mode. Where it acts, in this order:
 *   1. if not s < 65520:  x[i] = clamp(x[i], -B, B) with B = 32752 * M; mn, mx, s anew.
 *   2. if mn == mx == c and |c| <= 65504:  code = 0, scale = f16(|c|), zero = +-1, the sign of c.
 *   3. else  t    = the smallest f16 number >= max(s, max(|mn|, |mx|) / 2048), at most 65504
 *            bits 8:  Z = rint((mx * 0.5 + mn * 0.5) / t) + 0     others:  Z = rint(mn / t) + 0
 *            Z    = clamp(Z, -2048, 2048)
 *            code[i] = clamp(rint(x[i] / t - Z), lo, hi)     scale = t     zero = Z
 * So the standard decoder is within one step t of x, except that values whose f16-sized grid
 * cannot reach them saturate: decoded values stay finite, below 2^28 in magnitude.
 *
 * LLOYD VALUES, per row: y = R x (rotate.c), then per group of n = 32, the last perhaps fewer
 *     t = 0;  for j in order:  t = y[j] * y[j] + t       (two roundings)
 *     r = sqrt(t / n)            v[j] = y[j] / (r + eps)
 *     code[j] = number of boundaries b with v[j] > b     scale = f16(r)
 *     decoded = R^T (centroid[code] * scale)
 * GUARD of values, off in strict mode:
 *   1. if t of any group of the row is not finite, the whole row is encoded from x * 2^-80, and
 *      r, after the codes, is multiplied by 2^80 (it may become Inf).
 *   2. f16(r) of r >= 65520 is 65504 instead of Inf; codes still come from the true r.
 */
#include "cpu/scalar.h"
#include "codec.h"
#include "f16.h"
#include "pack.h"
#include "rotate.h"
#include "tables.h"

#include <assert.h>
#include <math.h>

/* ---- Affine keys ---- */

typedef struct affine_rule {
    float m; /* steps between the lowest and the highest code */
    float lo;
    float hi;
} affine_rule;

static affine_rule affine_rule_of(uint32_t bits)
{
    float m = (float)((1u << bits) - 1);
    if (bits == 8)
        return (affine_rule){254.0f, -127.0f, 127.0f};
    return (affine_rule){m, 0.0f, m};
}

/* A NaN becomes lo: that is what vector max and min do, and strict mode needs equal bytes. */
static float clampf(float v, float lo, float hi)
{
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}

static void min_max(const float *x, uint32_t n, float *mn, float *mx)
{
    *mn = x[0];
    *mx = x[0];
    for (uint32_t i = 1; i < n; i++) {
        *mn = x[i] < *mn ? x[i] : *mn;
        *mx = x[i] > *mx ? x[i] : *mx;
    }
}

static void affine_codes(uint8_t *codes, const float *x, uint32_t n, float d, float z,
                         affine_rule rule, uint32_t bits)
{
    uint8_t idx[TQ_GROUP];

    for (uint32_t i = 0; i < n; i++)
        idx[i] = (uint8_t)(int)clampf(rintf(x[i] / d - z), rule.lo, rule.hi);
    tq_pack(codes, idx, n, bits);
}

/* The smallest f16 number >= x > 0, at most 65504. */
static uint16_t f16_ceil(float x)
{
    uint16_t h = tq_f16_from_f32_sat(x);
    if (tq_f32_from_f16(h) < x && h < 0x7bffu)
        h++;
    return h;
}

static void affine_group_guarded(uint8_t *codes, uint8_t *scale, uint8_t *zero, const float *src,
                                 uint32_t n, float mn, float mx, uint32_t bits)
{
    affine_rule rule = affine_rule_of(bits);
    float bound = 32752.0f * rule.m;
    float s = (mx - mn) / rule.m;
    float x[TQ_GROUP] = {0};

    for (uint32_t i = 0; i < n; i++)
        x[i] = s < TQ_GUARD_SCALE_MAX ? src[i] : clampf(src[i], -bound, bound);
    if (!(s < TQ_GUARD_SCALE_MAX)) {
        min_max(x, n, &mn, &mx);
        s = (mx - mn) / rule.m;
    }

    if (mn == mx && fabsf(mn) <= TQ_F16_MAX) {
        static const uint8_t zeros[TQ_GROUP];
        tq_pack(codes, zeros, n, bits);
        tq_store_le16(scale, tq_f16_from_f32(fabsf(mn)));
        tq_store_le16(zero, tq_f16_from_f32(mn < 0 ? -1.0f : 1.0f));
        return;
    }

    float reach = fmaxf(fabsf(mn), fabsf(mx)) / 2048.0f;
    uint16_t h = f16_ceil(s > reach ? s : reach);
    float t = tq_f32_from_f16(h);
    float z = rintf((bits == 8 ? mx * 0.5f + mn * 0.5f : mn) / t) + 0.0f;

    z = clampf(z, -TQ_GUARD_ZERO_MAX, TQ_GUARD_ZERO_MAX);
    affine_codes(codes, x, n, t, z, rule, bits);
    tq_store_le16(scale, h);
    tq_store_le16(zero, tq_f16_from_f32(z));
}

static void affine_group_encode(uint8_t *codes, uint8_t *scale, uint8_t *zero, const float *x,
                                uint32_t n, uint32_t bits, int strict)
{
    affine_rule rule = affine_rule_of(bits);
    float mn, mx;

    min_max(x, n, &mn, &mx);
    float s = (mx - mn) / rule.m + 0.0f;
    float d = s + TQ_EPS;
    float z = rintf(bits == 8 ? (mx + mn) / (2.0f * d) : mn / d) + 0.0f;

    if (!strict && (!(s < TQ_GUARD_SCALE_MAX) || !(fabsf(z) <= TQ_GUARD_ZERO_MAX) ||
                    (s < TQ_GUARD_SCALE_MIN && (mn > 0 || mx < 0)))) {
        affine_group_guarded(codes, scale, zero, x, n, mn, mx, bits);
        return;
    }
    affine_codes(codes, x, n, d, z, rule, bits);
    tq_store_le16(scale, tq_f16_from_f32(s));
    tq_store_le16(zero, tq_f16_from_f32(z));
}

void tq_affine_group_encode(uint8_t *codes, uint8_t *scale, uint8_t *zero, const float *x,
                            uint32_t bits, int strict)
{
    affine_group_encode(codes, scale, zero, x, TQ_GROUP, bits, strict);
}

static void encode_affine(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                          size_t n)
{
    int strict = (c->flags & TQ_CODEC_STRICT) != 0;

    for (size_t row = 0; row < n; row++) {
        for (uint32_t g = 0; g < c->n_groups; g++)
            affine_group_encode(dst.codes + row * dst.codes_stride + (size_t)g * 4 * c->bits,
                                dst.scale + row * dst.scale_stride + (size_t)g * 2,
                                dst.zero + row * dst.zero_stride + (size_t)g * 2,
                                src + row * src_stride + (size_t)g * TQ_GROUP,
                                tq_group_size(c->dim, g), c->bits, strict);
    }
}

static void decode_affine(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                          size_t n)
{
    uint8_t idx[TQ_GROUP];

    for (size_t row = 0; row < n; row++) {
        for (uint32_t g = 0; g < c->n_groups; g++) {
            float *out = dst + row * dst_stride + (size_t)g * TQ_GROUP;
            const uint8_t *scale = src.scale + row * src.scale_stride + (size_t)g * 2;
            const uint8_t *zero = src.zero + row * src.zero_stride + (size_t)g * 2;
            float s = tq_f32_from_f16(tq_load_le16(scale));
            float z = tq_f32_from_f16(tq_load_le16(zero));
            const uint32_t size = tq_group_size(c->dim, g);

            tq_unpack(idx, src.codes + row * src.codes_stride + (size_t)g * 4 * c->bits, size,
                      c->bits);
            for (uint32_t i = 0; i < size; i++) {
                float code = c->bits == 8 ? (float)(int8_t)idx[i] : (float)idx[i];
                out[i] = (code + z) * s;
            }
        }
    }
}

/* ---- Lloyd values ---- */

/* Number of boundaries strictly below v. The boundaries ascend, so bisection counts them; a NaN
 * is above none. */
static uint8_t lloyd_code(const tq_lloyd_table *table, float v)
{
    uint32_t code = 0;
    for (uint32_t step = 1u << (table->bits - 1); step; step /= 2)
        if (v > table->boundary[code + step - 1])
            code += step;
    return (uint8_t)code;
}

/* y = R (x * factor) and the sum of squares of each group. Returns whether all sums are finite. */
static int rotate_and_sum(float *y, float *sum, const float *x, uint32_t dim, float factor)
{
    int finite = 1;

    for (uint32_t j = 0; j < dim; j++)
        y[j] = x[j] * factor;
    tq_rotate_f32(y, dim);
    for (uint32_t j = 0; j < dim; sum++) {
        float t = 0;
        for (uint32_t end = j + tq_group_size(dim, j / TQ_GROUP); j < end; j++)
            t = y[j] * y[j] + t;
        *sum = t;
        finite &= t < INFINITY;
    }
    return finite;
}

void tq_lloyd_row_encode(uint8_t *codes, uint8_t *scale, const float *x, uint32_t dim,
                         uint32_t bits, int strict)
{
    const tq_lloyd_table *table = tq_lloyd_get(bits);
    float y[TQ_DIM_MAX];
    float sum[TQ_DIM_MAX / TQ_GROUP];
    float back = 1.0f;

    assert(table && dim <= TQ_DIM_MAX);
    if (!rotate_and_sum(y, sum, x, dim, 1.0f) && !strict) {
        rotate_and_sum(y, sum, x, dim, 0x1p-80f);
        back = 0x1p80f;
    }
    for (uint32_t g = 0; g * TQ_GROUP < dim; g++) {
        const uint32_t size = tq_group_size(dim, g);
        uint8_t idx[TQ_GROUP];
        float r = sqrtf(sum[g] / (float)size);
        float d = r + TQ_EPS;

        for (uint32_t j = 0; j < size; j++)
            idx[j] = lloyd_code(table, y[g * TQ_GROUP + j] / d);
        tq_pack(codes + (size_t)g * 4 * bits, idx, size, bits);
        tq_store_le16(scale + (size_t)g * 2,
                      strict ? tq_f16_from_f32(r) : tq_f16_from_f32_sat(r * back));
    }
}

static void encode_lloyd(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                         size_t n)
{
    for (size_t row = 0; row < n; row++)
        tq_lloyd_row_encode(dst.codes + row * dst.codes_stride, dst.scale + row * dst.scale_stride,
                            src + row * src_stride, c->dim, c->bits,
                            (c->flags & TQ_CODEC_STRICT) != 0);
}

static void decode_rotated_lloyd(const tq_codec *c, float *dst, size_t dst_stride,
                                 tq_const_planes src, size_t n)
{
    const tq_lloyd_table *table = tq_lloyd_get(c->bits);
    uint8_t idx[TQ_GROUP];

    assert(table);
    for (size_t row = 0; row < n; row++) {
        for (uint32_t g = 0; g < c->n_groups; g++) {
            float *out = dst + row * dst_stride + (size_t)g * TQ_GROUP;
            const uint8_t *scale = src.scale + row * src.scale_stride + (size_t)g * 2;
            float s = tq_f32_from_f16(tq_load_le16(scale));
            const uint32_t size = tq_group_size(c->dim, g);

            tq_unpack(idx, src.codes + row * src.codes_stride + (size_t)g * 4 * c->bits, size,
                      c->bits);
            for (uint32_t i = 0; i < size; i++)
                out[i] = table->centroid[idx[i]] * s;
        }
    }
}

static void decode_lloyd(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                         size_t n)
{
    decode_rotated_lloyd(c, dst, dst_stride, src, n);
    for (size_t row = 0; row < n; row++)
        tq_unrotate_f32(dst + row * dst_stride, c->dim);
}

/* ---- Raw rows ---- */

static void encode_f32(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                       size_t n)
{
    for (size_t row = 0; row < n; row++)
        for (uint32_t i = 0; i < c->dim; i++)
            tq_store_le_f32(dst.codes + row * dst.codes_stride + (size_t)i * 4,
                            src[row * src_stride + i]);
}

static void decode_f32(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                       size_t n)
{
    for (size_t row = 0; row < n; row++)
        for (uint32_t i = 0; i < c->dim; i++)
            dst[row * dst_stride + i] =
                tq_load_le_f32(src.codes + row * src.codes_stride + (size_t)i * 4);
}

static void encode_f16(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                       size_t n)
{
    for (size_t row = 0; row < n; row++)
        for (uint32_t i = 0; i < c->dim; i++)
            tq_store_le16(dst.codes + row * dst.codes_stride + (size_t)i * 2,
                          tq_f16_from_f32_sat(src[row * src_stride + i]));
}

static void decode_f16(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                       size_t n)
{
    for (size_t row = 0; row < n; row++)
        for (uint32_t i = 0; i < c->dim; i++)
            dst[row * dst_stride + i] =
                tq_f32_from_f16(tq_load_le16(src.codes + row * src.codes_stride + (size_t)i * 2));
}

static void encode_bf16(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                        size_t n)
{
    for (size_t row = 0; row < n; row++)
        for (uint32_t i = 0; i < c->dim; i++)
            tq_store_le16(dst.codes + row * dst.codes_stride + (size_t)i * 2,
                          tq_bf16_from_f32_sat(src[row * src_stride + i]));
}

static void decode_bf16(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                        size_t n)
{
    for (size_t row = 0; row < n; row++)
        for (uint32_t i = 0; i < c->dim; i++)
            dst[row * dst_stride + i] =
                tq_f32_from_bf16(tq_load_le16(src.codes + row * src.codes_stride + (size_t)i * 2));
}

/* ---- The rest of the table ---- */

static size_t first_nonfinite(const float *src, size_t src_stride, size_t dim, size_t n)
{
    for (size_t row = 0; row < n; row++)
        for (size_t i = 0; i < dim; i++)
            if ((tq_f32_bits(src[row * src_stride + i]) & 0x7f800000u) == 0x7f800000u)
                return row;
    return n;
}

const tq_codec_kernels tq_codec_kernels_scalar = {
    .encode = {[TQ_KF32] = encode_f32,
               [TQ_KF16] = encode_f16,
               [TQ_KBF16] = encode_bf16,
               [TQ_KAFFINE2] = encode_affine,
               [TQ_KAFFINE4] = encode_affine,
               [TQ_KAFFINE5] = encode_affine,
               [TQ_KAFFINE8] = encode_affine,
               [TQ_KLLOYD2] = encode_lloyd,
               [TQ_KLLOYD3] = encode_lloyd,
               [TQ_KLLOYD4] = encode_lloyd,
               [TQ_KLLOYD5] = encode_lloyd,
               [TQ_KLLOYD8] = encode_lloyd,
               TQ_NORM_ENTRIES(tq_scalar_encode_norm),
               TQ_TCQ_ENTRIES(tq_scalar_encode_tcq),
               TQ_MSE_ENTRIES(tq_scalar_encode_mse),
               TQ_PROD_ENTRIES(tq_scalar_encode_prod),
               TQ_UNIFORM_ENTRIES(tq_scalar_encode_uniform),
               TQ_FORK_ENTRIES(tq_scalar_encode_fork)},
    .decode = {[TQ_KF32] = decode_f32,
               [TQ_KF16] = decode_f16,
               [TQ_KBF16] = decode_bf16,
               [TQ_KAFFINE2] = decode_affine,
               [TQ_KAFFINE4] = decode_affine,
               [TQ_KAFFINE5] = decode_affine,
               [TQ_KAFFINE8] = decode_affine,
               [TQ_KLLOYD2] = decode_lloyd,
               [TQ_KLLOYD3] = decode_lloyd,
               [TQ_KLLOYD4] = decode_lloyd,
               [TQ_KLLOYD5] = decode_lloyd,
               [TQ_KLLOYD8] = decode_lloyd,
               TQ_NORM_ENTRIES(tq_scalar_decode_norm),
               TQ_TCQ_ENTRIES(tq_scalar_decode_tcq),
               TQ_MSE_ENTRIES(tq_scalar_decode_mse),
               TQ_PROD_ENTRIES(tq_scalar_decode_prod),
               TQ_UNIFORM_ENTRIES(tq_scalar_decode_uniform),
               TQ_FORK_ENTRIES(tq_scalar_decode_fork)},
    .decode_rotated = {[TQ_KF32] = decode_f32,
                       [TQ_KF16] = decode_f16,
                       [TQ_KBF16] = decode_bf16,
                       [TQ_KAFFINE2] = decode_affine,
                       [TQ_KAFFINE4] = decode_affine,
                       [TQ_KAFFINE5] = decode_affine,
                       [TQ_KAFFINE8] = decode_affine,
                       [TQ_KLLOYD2] = decode_rotated_lloyd,
                       [TQ_KLLOYD3] = decode_rotated_lloyd,
                       [TQ_KLLOYD4] = decode_rotated_lloyd,
                       [TQ_KLLOYD5] = decode_rotated_lloyd,
                       [TQ_KLLOYD8] = decode_rotated_lloyd,
                       TQ_NORM_ENTRIES(tq_scalar_decode_rotated_norm),
                       TQ_TCQ_ENTRIES(tq_scalar_decode_rotated_tcq),
                       TQ_MSE_ENTRIES(tq_scalar_decode_rotated_mse),
                       TQ_PROD_ENTRIES(tq_scalar_decode_rotated_prod),
                       TQ_UNIFORM_ENTRIES(tq_scalar_decode_uniform),
                       TQ_FORK_ENTRIES(tq_scalar_decode_rotated_fork)},
    .first_nonfinite = first_nonfinite,
    .rotate = tq_rotate_f32,
    .unrotate = tq_unrotate_f32,
};
