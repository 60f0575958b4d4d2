/* SPDX-License-Identifier: MIT */
/* neon_attn_levels.c — scores and weighted sums on the integer levels of norm-codebook and trellis,
 * for NEON. Decoded rows never exist.
 *
 * Scores: the rotated query is 16-bit integers with one scale per row, a key its levels, so a score
 * is an exact integer dot product times three scales. A lane sums at most 1024 / 8 products of
 * 32767 * 127 and stays within int32; the lanes are added in 64 bits. Sums: levels of a few tokens
 * lie in the first cache and widen to f32 on their way into the multiplier; the one scale of a
 * token goes into its weight.
 *
 * Option mean: keys with a mean are scored by the reference; the mean of a value adds
 * mean * w * R(1, 1, ...) to a sum.
 */
#include "codebook.h"
#include "cpu/neon_attn.h"
#include "cpu/neon_codec.h"
#include "cpu/neon_rotated.h"
#include "cpu/scalar_attn.h"
#include "trellis.h"

#include <float.h>

enum { ROWS = 4, STEP = 8, LEVEL_BYTES = 16384 };

static int is_trellis(const tq_codec *k)
{
    return k->format >= TQ_FMT_TCQ2 && k->format <= TQ_FMT_TCQ6;
}

static float unit_of(const tq_codec *k)
{
    return is_trellis(k) ? tq_trellis_get(k->bits)->unit : tq_codebook_get(k->bits)->unit;
}

/* Levels of m tokens from t on, rows stride bytes apart. */
static void take_levels(int8_t *level, size_t stride, const tq_codec *c, tq_const_planes rows,
                        uint32_t t, uint32_t m)
{
    const int trellis = is_trellis(c);

    for (uint32_t i = 0; i < m; i++) {
        const uint8_t *codes = rows.codes + (t + i) * rows.codes_stride;
        if (trellis)
            tq_neon_trellis_levels(c, level + i * stride, codes);
        else
            tq_neon_norm_levels(c, level + i * stride, codes);
    }
}

/* ---- Keys ------------------------------------------------------------------------------ */

/* Integers of a rotated query. Returns their scale. */
static float round_query(int16_t *dst, const float *q, uint32_t dim)
{
    float32x4_t top = vdupq_n_f32(0);

    for (uint32_t j = 0; j < dim; j += 4)
        top = vmaxq_f32(top, vabsq_f32(vld1q_f32(q + j))); /* a NaN stays */
    const float max = vmaxvq_f32(top);
    if (!(max <= FLT_MAX && max >= 0x1p-100f)) {
        memset(dst, 0, dim * sizeof *dst);
        return max <= FLT_MAX ? 0 : NAN;
    }
    const float inverse = 32767.0f / max;
    for (uint32_t j = 0; j < dim; j += 8) {
        int32x4_t lo = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(q + j), inverse));
        int32x4_t hi = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(q + j + 4), inverse));
        vst1q_s16(dst + j, vcombine_s16(vqmovn_s32(lo), vqmovn_s32(hi)));
    }
    return max / 32767.0f;
}

/* Prepared queries: int16 [n_rows][dim], then f32 [n_rows], the scale of the integers times the
 * unit of the codebook. */
void tq_neon_prep_norm(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    const float unit = unit_of(k);
    int16_t *dst = prep;
    float *scale = (float *)(void *)(dst + (size_t)n_rows * k->dim);
    float turned[TQ_ROW_MAX];

    if (k->zero_bytes) {
        tq_scalar_prep_rotated(k, prep, q, n_rows);
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        memcpy(turned, q + (size_t)r * k->dim, k->dim * sizeof(float));
        k->kernels->codec->rotate(turned, k->dim);
        scale[r] = round_query(dst + (size_t)r * k->dim, turned, k->dim) * unit;
    }
}

/* One token against `rows` rows. */
TQ_INLINE void score_rows(float *s, const int16_t *q, const float *q_scale, const int8_t *level,
                          float scale, uint32_t dim, const uint32_t rows)
{
    int32x4_t lo[ROWS], hi[ROWS];

    for (uint32_t r = 0; r < rows; r++)
        lo[r] = hi[r] = vdupq_n_s32(0);
    for (uint32_t j = 0; j < dim; j += 8) {
        const int16x8_t x = vmovl_s8(vld1_s8(level + j));
        for (uint32_t r = 0; r < rows; r++) {
            const int16x8_t y = vld1q_s16(q + (size_t)r * dim + j);
            lo[r] = vmlal_s16(lo[r], vget_low_s16(x), vget_low_s16(y));
            hi[r] = vmlal_high_s16(hi[r], x, y);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        const int64_t dot = vaddlvq_s32(lo[r]) + vaddlvq_s32(hi[r]);
        s[r * TQ_TILE] = (float)dot * q_scale[r] * scale;
    }
}

void tq_neon_score_norm(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                        tq_const_planes keys, uint32_t n)
{
    const int16_t *q = prep;
    const float *q_scale = (const float *)(const void *)(q + (size_t)n_rows * k->dim);
    const uint32_t dim = k->dim;
    int8_t level[STEP * TQ_ROW_MAX + TQ_ROW_PAD];

    tq_look_ahead(keys);
    if (k->zero_bytes) {
        tq_scalar_score_rotated(k, s, prep, n_rows, keys, n);
        return;
    }
    for (uint32_t t = 0; t < n; t += STEP) {
        const uint32_t m = n - t < STEP ? n - t : STEP;

        take_levels(level, dim, k, keys, t, m);
        for (uint32_t i = 0; i < m; i++) {
            const float scale = tq_load_f16(keys.scale + (t + i) * keys.scale_stride);
            const int8_t *x = level + (size_t)i * dim;
            uint32_t r = 0;
            for (; r + ROWS <= n_rows; r += ROWS)
                score_rows(s + r * TQ_TILE + t + i, q + (size_t)r * dim, q_scale + r, x, scale, dim,
                           ROWS);
            for (; r < n_rows; r++)
                score_rows(s + r * TQ_TILE + t + i, q + (size_t)r * dim, q_scale + r, x, scale, dim,
                           1);
        }
    }
}

/* ---- Values ---------------------------------------------------------------------------- */

/* acc[r] = alpha[r] * acc[r] + sum of w[r][t] * level[t] for `rows` rows. w [rows][64]. */
TQ_INLINE void weigh_rows(float *acc, size_t acc_stride, const float *w, const float *alpha,
                          const int8_t *level, size_t stride, uint32_t n, uint32_t dim,
                          const uint32_t rows)
{
    for (uint32_t j = 0; j < dim; j += 8) {
        float32x4_t lo[ROWS], hi[ROWS];
        for (uint32_t r = 0; r < rows; r++)
            lo[r] = hi[r] = vdupq_n_f32(0);
        for (uint32_t t = 0; t < n; t++) {
            const float32x4x2_t x = tq_levels8(level + t * stride + j);
            for (uint32_t r = 0; r < rows; r++) {
                const float y = w[r * TQ_TILE + t];
                lo[r] = vfmaq_n_f32(lo[r], x.val[0], y);
                hi[r] = vfmaq_n_f32(hi[r], x.val[1], y);
            }
        }
        for (uint32_t r = 0; r < rows; r++) {
            float *dst = acc + r * acc_stride + j;
            vst1q_f32(dst, vfmaq_n_f32(lo[r], vld1q_f32(dst), alpha[r]));
            vst1q_f32(dst + 4, vfmaq_n_f32(hi[r], vld1q_f32(dst + 4), alpha[r]));
        }
    }
}

/* Scales, and with option mean means, of the tokens that are summed together. */
typedef struct token_numbers {
    float scale[TQ_TILE], mean[TQ_TILE];
    float ones[TQ_ROW_MAX]; /* the rotation of equal elements */
} token_numbers;

/* Up to four rows. */
static void weigh_four(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                       const float *alpha, uint32_t rows, const int8_t *level,
                       const token_numbers *of, uint32_t n)
{
    const uint32_t dim = v->dim;
    float scaled[ROWS * TQ_TILE];

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t t = 0; t < n; t++)
            scaled[r * TQ_TILE + t] = w[r * TQ_TILE + t] * of->scale[t];
    if (rows == ROWS)
        weigh_rows(acc, acc_stride, scaled, alpha, level, dim, n, dim, ROWS);
    else
        for (uint32_t r = 0; r < rows; r++)
            weigh_rows(acc + r * acc_stride, acc_stride, scaled + r * TQ_TILE, alpha + r, level,
                       dim, n, dim, 1);
    for (uint32_t r = 0; v->zero_bytes && r < rows; r++) {
        float sum = 0;
        for (uint32_t t = 0; t < n; t++)
            sum += w[r * TQ_TILE + t] * of->mean[t];
        for (uint32_t j = 0; j < dim; j += 4) {
            float *dst = acc + r * acc_stride + j;
            vst1q_f32(dst, vfmaq_n_f32(vld1q_f32(dst), vld1q_f32(of->ones + j), sum));
        }
    }
}

void tq_neon_weigh_norm(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                        const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    static const float one[ROWS] = {1, 1, 1, 1};
    const float unit = unit_of(v);
    const uint32_t fit = LEVEL_BYTES / v->dim, step = fit < TQ_TILE ? fit : TQ_TILE;
    int8_t level[LEVEL_BYTES + TQ_ROW_PAD];
    token_numbers of;

    tq_look_ahead(values);
    for (uint32_t j = 0; v->zero_bytes && j < v->dim; j++)
        of.ones[j] = 1;
    if (v->zero_bytes)
        tq_rotate_f32(of.ones, v->dim);
    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;

        take_levels(level, v->dim, v, values, t, m);
        for (uint32_t i = 0; i < m; i++) {
            of.scale[i] = tq_load_f16(values.scale + (t + i) * values.scale_stride) * unit;
            if (v->zero_bytes)
                of.mean[i] = tq_load_f16(values.zero + (t + i) * values.zero_stride);
        }
        for (uint32_t r = 0; r < n_rows; r += ROWS) /* the old sum is scaled once */
            weigh_four(v, acc + r * acc_stride, acc_stride, w + (size_t)r * TQ_TILE + t,
                       t ? one : alpha + r, n_rows - r < ROWS ? n_rows - r : ROWS, level, &of, m);
    }
}
