/* SPDX-License-Identifier: MIT */
/* neon_rotated.c — rows with one scale, for NEON: the transform of any dimension, coordinates in
 * fixed point, bit planes, and the way back.
 *
 * Stages are done in the reference's order: inside vectors first, then between them. The columns
 * of a small factor (orders 12, 20, 28, 36) are independent, so four go side by side, each summed
 * from left to right; the 16 stripes of the sum of squares are four vectors.
 */
#include "cpu/neon_rotated.h"

/* ---- The transform ---- */

/* n vectors that lie `stride` floats apart, in place. */
TQ_INLINE void across(float *x, size_t stride, const int n)
{
    float32x4_t v[16];
    for (int i = 0; i < n; i++)
        v[i] = vld1q_f32(x + (size_t)i * stride);
    tq_hadamard_across(v, n);
    for (int i = 0; i < n; i++)
        vst1q_f32(x + (size_t)i * stride, v[i]);
}

/* Vectors of 4 and the stages between the first n of them. */
TQ_INLINE void inside(float *x, const int n)
{
    float32x4_t v[16];
    for (int i = 0; i < n; i++)
        v[i] = tq_hadamard4(vld1q_f32(x + 4 * i));
    tq_hadamard_across(v, n);
    for (int i = 0; i < n; i++)
        vst1q_f32(x + 4 * i, v[i]);
}

/* The butterflies of one run of 4, 8 ... 1024. */
static void long_run(float *x, uint32_t run)
{
    switch (run) {
    case 4:
        inside(x, 1);
        return;
    case 8:
        inside(x, 2);
        return;
    case 16:
        inside(x, 4);
        return;
    case 32:
        inside(x, 8);
        return;
    default:
        break;
    }
    for (uint32_t j = 0; j < run; j += 64)
        inside(x + j, 16);
    for (uint32_t j = 0; j < 64 && run > 64; j += 4) {
        switch (run) {
        case 128:
            across(x + j, 64, 2);
            break;
        case 256:
            across(x + j, 64, 4);
            break;
        case 512:
            across(x + j, 64, 8);
            break;
        default:
            across(x + j, 64, 16);
            break;
        }
    }
}

/* All runs of 2, two at a time. */
static void runs_of_two(float *x, uint32_t dim)
{
    const float32x4_t s1 = {1, -1, 1, -1};

    for (uint32_t j = 0; j < dim; j += 4) {
        float32x4_t v = vld1q_f32(x + j);
        vst1q_f32(x + j, vfmaq_f32(vrev64q_f32(v), v, s1));
    }
}

/* Four columns, or the two of a short run, of the m rows of a small factor. */
typedef struct columns {
    float32x4_t v[36][2]; /* each row and its negative */
    float32x4_t out[36];
} columns;

static float32x4_t term(const columns *c, uint32_t row, uint32_t j)
{
    return c->v[j][row >> j & 1];
}

static void small_paley(columns *c, uint32_t m)
{
    const uint32_t *rows = tq_hadamard_rows(m);

    for (uint32_t i = 0; i < m; i++) {
        float32x4_t t = c->v[0][0];
        for (uint32_t j = 1; j < m; j++)
            t = vaddq_f32(t, term(c, rows[i], j));
        c->out[i] = t;
    }
}

static float32x4_t conference_sum(const columns *c, uint32_t row, uint32_t a, uint32_t n)
{
    uint32_t j = a == 0;
    float32x4_t t = term(c, row, j);

    for (j++; j < n; j++)
        if (j != a)
            t = vaddq_f32(t, term(c, row, j));
    return t;
}

static void small_double(columns *c, uint32_t m)
{
    const uint32_t *rows = tq_hadamard_rows(m);
    const uint32_t n = m / 2;
    float32x4_t u[18], w[18];

    for (uint32_t a = 0; a < n; a++) {
        u[a] = vaddq_f32(c->v[a][0], c->v[a + n][0]);
        w[a] = vsubq_f32(c->v[a][0], c->v[a + n][0]);
    }
    for (int half = 0; half < 2; half++) {
        for (uint32_t a = 0; a < n; a++) {
            c->v[a][0] = half ? w[a] : u[a];
            c->v[a][1] = vnegq_f32(c->v[a][0]);
        }
        for (uint32_t a = 0; a < n; a++) {
            float32x4_t t = conference_sum(c, rows[a], a, n);
            c->out[a + (half ? n : 0)] = half ? vsubq_f32(t, u[a]) : vaddq_f32(t, w[a]);
        }
    }
}

/* H_m across the m runs. */
static void small_factor(float *x, uint32_t m, uint32_t run)
{
    columns c;
    const uint32_t step = run < 4 ? run : 4;

    for (uint32_t b = 0; b < run; b += step) {
        for (uint32_t j = 0; j < m; j++) {
            const float *src = x + (size_t)j * run + b;
            c.v[j][0] = step == 4 ? vld1q_f32(src) : vcombine_f32(vld1_f32(src), vdup_n_f32(0));
            c.v[j][1] = vnegq_f32(c.v[j][0]);
        }
        if (m <= 20)
            small_paley(&c, m);
        else
            small_double(&c, m);
        for (uint32_t j = 0; j < m; j++) {
            float *dst = x + (size_t)j * run + b;
            if (step == 4)
                vst1q_f32(dst, c.out[j]);
            else
                vst1_f32(dst, vget_low_f32(c.out[j]));
        }
    }
}

void tq_neon_hadamard(float *x, uint32_t dim)
{
    const uint32_t m = tq_hadamard_order(dim);
    const uint32_t run = dim / m;

    if (run == 2)
        runs_of_two(x, dim);
    else
        for (uint32_t a = 0; a < m; a++)
            long_run(x + (size_t)a * run, run);
    if (m > 1)
        small_factor(x, m, run);
}

/* ---- Encoder ---- */

int tq_neon_row_rotate(tq_rotated_row *r, const float *x, uint32_t dim)
{
    const float *sign = tq_sign_table(dim);
    float32x4_t top = vdupq_n_f32(0), stripe[4] = {top, top, top, top};
    uint32_t j;

    for (j = 0; j < dim; j += 4) {
        float32x4_t v = vld1q_f32(x + j);
        top = vmaxq_f32(top, vabsq_f32(v));
        vst1q_f32(r->y + j, vmulq_f32(v, vld1q_f32(sign + j)));
    }
    const float largest = vmaxvq_f32(top);
    if (largest < TQ_ROW_TINY)
        return 0;
    if (!(largest < TQ_ROW_HUGE))
        return tq_row_rotate(r, x, dim); /* rare */
    tq_neon_hadamard(r->y, dim);
    for (j = 0; j < dim; j += 4) {
        float32x4_t v = vld1q_f32(r->y + j);
        stripe[j / 4 % 4] = vaddq_f32(stripe[j / 4 % 4], vmulq_f32(v, v));
    }
    /* The tree of the stripe sum. */
    float32x4_t a = vaddq_f32(vaddq_f32(stripe[0], stripe[2]), vaddq_f32(stripe[1], stripe[3]));
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    r->norm = sqrtf(vget_lane_f32(b, 0) + vget_lane_f32(b, 1));
    r->saturates = 0;
    return 1;
}

void tq_neon_fix(int16_t *p, const float *y, uint32_t dim, float inv)
{
    const int16x8_t one = vdupq_n_s16(1);

    for (uint32_t j = 0; j < dim; j += 8) {
        int32x4_t lo = vcvtmq_s32_f32(vmulq_n_f32(vld1q_f32(y + j), inv));
        int32x4_t hi = vcvtmq_s32_f32(vmulq_n_f32(vld1q_f32(y + j + 4), inv));
        int16x8_t v = vcombine_s16(vqmovn_s32(lo), vqmovn_s32(hi));
        vst1q_s16(p + j, vaddq_s16(vaddq_s16(v, v), one));
    }
    vst1q_s16(p + dim, vdupq_n_s16(0));
}

/* ---- Planes ---- */

void tq_neon_pack_planes(uint8_t *dst, const uint8_t *code, uint32_t dim, const uint8_t *widths)
{
    uint8_t room[TQ_ROW_MAX + TQ_ROW_PAD];
    uint8_t *out = room;
    int low = 0;

    for (const uint8_t *w = widths; *w; low += *w++) {
        const uint32_t nb = dim * *w / 8;
        const uint8x16_t mask = vdupq_n_u8((uint8_t)((1u << *w) - 1));
        const int8x16_t right = vdupq_n_s8((int8_t)(0 - low));
        for (uint32_t i = 0; i < nb; i += 16) {
            uint8x16_t all = vdupq_n_u8(0);
            for (uint32_t r = 0; r < 8u / *w; r++) {
                uint8x16_t v = vandq_u8(vshlq_u8(vld1q_u8(code + i + r * nb), right), mask);
                all = vorrq_u8(all, vshlq_u8(v, vdupq_n_s8((int8_t)(*w * r))));
            }
            vst1q_u8(out + i, all);
        }
        out += nb;
    }
    memcpy(dst, room, (size_t)(out - room));
}

void tq_neon_unpack_planes(uint8_t *code, const uint8_t *src, uint32_t dim, const uint8_t *widths)
{
    uint8_t copy[TQ_ROW_MAX + TQ_ROW_PAD];
    uint32_t bytes = 0, last = 0;
    int low = 0;

    for (const uint8_t *w = widths; *w; w++)
        bytes += last = dim * *w / 8;
    if (last % 16) { /* whole vectors would read beyond the row */
        memcpy(copy, src, bytes);
        memset(copy + bytes, 0, 16);
        src = copy;
    }
    for (const uint8_t *w = widths; *w; low += *w++) {
        const uint32_t nb = dim * *w / 8;
        const uint8x16_t mask = vdupq_n_u8((uint8_t)((1u << *w) - 1));
        const int8x16_t left = vdupq_n_s8((int8_t)low);
        for (uint32_t r = 0; r < 8u / *w;
             r++) { /* runs in order: what is beyond one is rewritten */
            const int8x16_t right = vdupq_n_s8((int8_t)(0 - (int)(*w * r)));
            uint8_t *out = code + r * nb;
            for (uint32_t i = 0; i < nb; i += 16) {
                uint8x16_t v = vandq_u8(vshlq_u8(vld1q_u8(src + i), right), mask);
                v = vshlq_u8(v, left);
                if (low == 0) {
                    vst1q_u8(out + i, v);
                } else {
                    /* Beyond this run lies the next, which keeps its own bits. */
                    uint8x16_t old = vld1q_u8(out + i);
                    if (nb - i < 16) {
                        uint8_t both[16];
                        vst1q_u8(both, vorrq_u8(old, v));
                        memcpy(out + i, both, nb - i);
                    } else {
                        vst1q_u8(out + i, vorrq_u8(old, v));
                    }
                }
            }
        }
        src += nb;
    }
}

/* ---- Decoder ---- */

void tq_neon_decoder_init(tq_neon_decoder *d, const tq_codec *c, float unit, int rotated)
{
    d->c = c;
    d->unit = unit;
    d->per_scale = (float)((double)unit / sqrt((double)c->dim));
    d->rotated = rotated;
    if (rotated && c->zero_bytes) {
        for (uint32_t j = 0; j < c->dim; j++)
            d->ones[j] = 1;
        tq_rotate_f32(d->ones, c->dim);
    }
}

static void add_mean(float *dst, const float *ones, float m, uint32_t dim)
{
    for (uint32_t j = 0; j < dim; j += 4) {
        float32x4_t add = ones ? vmulq_n_f32(vld1q_f32(ones + j), m) : vdupq_n_f32(m);
        vst1q_f32(dst + j, vaddq_f32(vld1q_f32(dst + j), add));
    }
}

void tq_neon_reconstruct(const tq_neon_decoder *d, float *dst, const int8_t *level,
                         const uint8_t *scale, const uint8_t *mean)
{
    const uint32_t dim = d->c->dim;
    const float s = tq_load_f16(scale);
    const float t = d->rotated ? s * d->unit : 1;

    for (uint32_t j = 0; j < dim; j += 8) {
        float32x4x2_t v = tq_levels8(level + j);
        vst1q_f32(dst + j, vmulq_n_f32(v.val[0], t));
        vst1q_f32(dst + j + 4, vmulq_n_f32(v.val[1], t));
    }
    if (!d->rotated) {
        const float *sign = tq_sign_table(dim);
        const float back = s * d->per_scale;
        tq_neon_hadamard(dst, dim);
        for (uint32_t j = 0; j < dim; j += 4)
            vst1q_f32(dst + j,
                      vmulq_f32(vmulq_n_f32(vld1q_f32(dst + j), back), vld1q_f32(sign + j)));
    }
    if (mean)
        add_mean(dst, d->rotated ? d->ones : NULL, tq_load_f16(mean), dim);
}
