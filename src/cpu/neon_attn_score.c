/* SPDX-License-Identifier: MIT */
/* neon_attn_score.c — keys against prepared queries, for NEON.
 *
 * Preparation is the reference's: int16 [n_rows][dim], then scale and sum of each group. A step
 * takes one token and all rows: codes of four groups expand once to int16, each row multiplies
 * them, and two pairwise additions turn four sums of four lanes into the four sums of the groups.
 * Nothing depends on the number of rows.
 */
#include "cpu/neon_attn.h"

/* ---- f32, f16, bf16 -------------------------------------------------------------------- */

typedef float32x4x2_t load8_fn(const uint8_t *p);

enum { ROWS = 4 };

TQ_INLINE void float_rows(float *s, const float *q, const uint8_t *key, uint32_t dim,
                          uint32_t elem_bytes, load8_fn *load8, const uint32_t rows)
{
    float32x4_t lo[ROWS], hi[ROWS];
    for (uint32_t r = 0; r < rows; r++)
        lo[r] = hi[r] = vdupq_n_f32(0);
    for (uint32_t j = 0; j < dim; j += 8) {
        float32x4x2_t x = load8(key + (size_t)j * elem_bytes);
        for (uint32_t r = 0; r < rows; r++) {
            const float *y = q + (size_t)r * dim + j;
            lo[r] = vfmaq_f32(lo[r], x.val[0], vld1q_f32(y));
            hi[r] = vfmaq_f32(hi[r], x.val[1], vld1q_f32(y + 4));
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        s[r * TQ_TILE] = vaddvq_f32(vaddq_f32(lo[r], hi[r]));
}

TQ_INLINE void score_float(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                           tq_const_planes keys, uint32_t n, uint32_t elem_bytes, load8_fn *load8)
{
    for (uint32_t t = 0; t < n; t++) {
        const uint8_t *key = keys.codes + t * keys.codes_stride;
        const float *q = prep;
        float *dst = s + t;
        uint32_t left = n_rows;
        for (; left >= ROWS; left -= ROWS, q += (size_t)ROWS * k->dim, dst += ROWS * TQ_TILE)
            float_rows(dst, q, key, k->dim, elem_bytes, load8, ROWS);
        for (; left > 0; left--, q += k->dim, dst += TQ_TILE)
            float_rows(dst, q, key, k->dim, elem_bytes, load8, 1);
    }
}

#define FLOAT_KERNEL(name, bytes)                                                                  \
    void tq_neon_score_##name(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,      \
                              tq_const_planes keys, uint32_t n)                                    \
    {                                                                                              \
        tq_look_ahead(keys);                                                                       \
        score_float(k, s, prep, n_rows, keys, n, bytes, tq_load8_##name);                          \
    }

FLOAT_KERNEL(f32, 4)
FLOAT_KERNEL(f16, 2)
FLOAT_KERNEL(bf16, 2)

/* ---- Affine ---------------------------------------------------------------------------- */

/* The 32 codes of a group as int16. */
TQ_INLINE void expand(int16x8_t out[4], const uint8_t *p, int b)
{
    tq_codes32 c = tq_unpack_group(p, b);
    if (b == 8) {
        int8x16_t lo = vreinterpretq_s8_u8(c.lo), hi = vreinterpretq_s8_u8(c.hi);
        out[0] = vmovl_s8(vget_low_s8(lo));
        out[1] = vmovl_s8(vget_high_s8(lo));
        out[2] = vmovl_s8(vget_low_s8(hi));
        out[3] = vmovl_s8(vget_high_s8(hi));
    } else {
        out[0] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(c.lo)));
        out[1] = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(c.lo)));
        out[2] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(c.hi)));
        out[3] = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(c.hi)));
    }
}

TQ_INLINE int32x4_t dot32(const int16x8_t x[4], const int16_t *q)
{
    int32x4_t lo = vdupq_n_s32(0), hi = lo;
    for (int i = 0; i < 4; i++) {
        int16x8_t y = vld1q_s16(q + 8 * i);
        lo = vmlal_s16(lo, vget_low_s16(x[i]), vget_low_s16(y));
        hi = vmlal_high_s16(hi, x[i], y);
    }
    return vaddq_s32(lo, hi);
}

/* Numbers of four groups, or of two and zeros. */
TQ_INLINE float32x4_t load_groups(const uint8_t *p, uint32_t n_groups)
{
    uint64_t h = 0;
    memcpy(&h, p, n_groups >= 4 ? 8 : 4);
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(h)));
}

TQ_INLINE void score_affine(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                            tq_const_planes keys, uint32_t n, int b)
{
    const int16_t *q16 = prep;
    const float *meta = (const float *)(const void *)(q16 + (size_t)n_rows * k->dim);
    const uint32_t n_groups = k->n_groups;

    for (uint32_t t = 0; t < n; t++) {
        const uint8_t *codes = keys.codes + t * keys.codes_stride;
        for (uint32_t g = 0; g < n_groups; g += 4) { /* n_groups is even */
            const uint32_t groups = n_groups - g < 4 ? 2 : 4;
            float32x4_t scale = load_groups(keys.scale + t * keys.scale_stride + 2 * g, groups);
            float32x4_t zero = load_groups(keys.zero + t * keys.zero_stride + 2 * g, groups);
            int16x8_t x[4][4];
            for (uint32_t i = 0; i < groups; i++)
                expand(x[i], codes + (size_t)(g + i) * 4 * (size_t)b, b);
            for (uint32_t r = 0; r < n_rows; r++) {
                const int16_t *q = q16 + (size_t)r * k->dim + (size_t)g * 32;
                const float *m = meta + ((size_t)r * n_groups + g) * 2;
                int32x4_t d[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
                float pairs[8] = {0};
                for (uint32_t i = 0; i < groups; i++)
                    d[i] = dot32(x[i], q + i * 32);
                memcpy(pairs, m, groups * 2 * sizeof(float));
                float32x4x2_t of = vld2q_f32(pairs);
                float32x4_t dot =
                    vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3])));
                float32x4_t part = vfmaq_f32(vmulq_f32(of.val[1], zero), of.val[0], dot);
                float sum = vaddvq_f32(vmulq_f32(scale, part));
                float *dst = s + r * TQ_TILE + t;
                *dst = g == 0 ? sum : *dst + sum;
            }
        }
    }
}

#define AFFINE_KERNEL(b)                                                                           \
    void tq_neon_score_k##b(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,        \
                            tq_const_planes keys, uint32_t n)                                      \
    {                                                                                              \
        tq_look_ahead(keys);                                                                       \
        score_affine(k, s, prep, n_rows, keys, n, b);                                              \
    }

AFFINE_KERNEL(2)
AFFINE_KERNEL(4)
AFFINE_KERNEL(5)
AFFINE_KERNEL(8)
