/* SPDX-License-Identifier: MIT */
/* neon_attn_weigh.c — weighted sums of values, for NEON.
 *
 * A tile is taken in slices of 32 elements: its values are expanded to f32 once, into a buffer of
 * 8 KB that stays in the first cache, and then summed for all rows, four at a time, with the sums
 * in registers. Sums start at 0 in each tile and are then added to the older ones: short chains
 * round less.
 */
#include "cpu/neon_attn.h"

enum { SLICE = 32, ROWS = 4 };

/* acc[r] [cols] of `rows` rows; x [n][32]; cols a multiple of 8. */
TQ_INLINE void sum_rows(float *acc, size_t acc_stride, const float *w, const float *alpha,
                        const float *x, uint32_t n, uint32_t cols, const uint32_t rows)
{
    for (uint32_t j = 0; j < cols; j += 8) {
        float32x4_t lo[ROWS], hi[ROWS];
        for (uint32_t r = 0; r < rows; r++)
            lo[r] = hi[r] = vdupq_n_f32(0);
        for (uint32_t t = 0; t < n; t++) {
            float32x4_t a = vld1q_f32(x + t * SLICE + j), b = vld1q_f32(x + t * SLICE + j + 4);
            for (uint32_t r = 0; r < rows; r++) {
                float y = w[r * TQ_TILE + t];
                lo[r] = vfmaq_n_f32(lo[r], a, y);
                hi[r] = vfmaq_n_f32(hi[r], b, y);
            }
        }
        for (uint32_t r = 0; r < rows; r++) {
            float *dst = acc + r * acc_stride + j;
            vst1q_f32(dst, vfmaq_n_f32(lo[r], vld1q_f32(dst), alpha[r]));
            vst1q_f32(dst + 4, vfmaq_n_f32(hi[r], vld1q_f32(dst + 4), alpha[r]));
        }
    }
}

TQ_INLINE void sum_slice(float *acc, size_t acc_stride, const float *w, const float *alpha,
                         uint32_t n_rows, const float *x, uint32_t n, uint32_t cols)
{
    uint32_t r = 0;
    for (; r + ROWS <= n_rows; r += ROWS)
        sum_rows(acc + r * acc_stride, acc_stride, w + r * TQ_TILE, alpha + r, x, n, cols, ROWS);
    for (; r < n_rows; r++)
        sum_rows(acc + r * acc_stride, acc_stride, w + r * TQ_TILE, alpha + r, x, n, cols, 1);
}

/* ---- f32, f16, bf16 -------------------------------------------------------------------- */

typedef float32x4x2_t load8_fn(const uint8_t *p);

TQ_INLINE void weigh_float(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                           const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                           uint32_t elem_bytes, load8_fn *load8)
{
    float x[TQ_TILE * SLICE];
    for (uint32_t j = 0; j < v->dim; j += SLICE) {
        const uint32_t cols = v->dim - j < SLICE ? v->dim - j : SLICE;
        for (uint32_t t = 0; t < n; t++) {
            const uint8_t *p = values.codes + t * values.codes_stride + (size_t)j * elem_bytes;
            for (uint32_t i = 0; i < cols; i += 8) {
                float32x4x2_t y = load8(p + (size_t)i * elem_bytes);
                vst1q_f32(x + t * SLICE + i, y.val[0]);
                vst1q_f32(x + t * SLICE + i + 4, y.val[1]);
            }
        }
        sum_slice(acc + j, acc_stride, w, alpha, n_rows, x, n, cols);
    }
}

#define FLOAT_KERNEL(name, bytes)                                                                  \
    void tq_neon_weigh_##name(const tq_codec *v, float *acc, size_t acc_stride, const float *w,    \
                              const float *alpha, uint32_t n_rows, tq_const_planes values,         \
                              uint32_t n)                                                          \
    {                                                                                              \
        tq_look_ahead(values);                                                                     \
        weigh_float(v, acc, acc_stride, w, alpha, n_rows, values, n, bytes, tq_load8_##name);      \
    }

FLOAT_KERNEL(f32, 4)
FLOAT_KERNEL(f16, 2)
FLOAT_KERNEL(bf16, 2)

/* ---- Lloyd ----------------------------------------------------------------------------- */

TQ_INLINE void weigh_lloyd(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                           const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                           int b)
{
    const tq_lloyd_regs regs = tq_lloyd_load(b);
    float x[TQ_TILE * SLICE];
    for (uint32_t g = 0; g < v->n_groups; g++) {
        for (uint32_t t = 0; t < n; t++) {
            const uint8_t *p = values.codes + t * values.codes_stride + (size_t)g * 4 * (size_t)b;
            float s = tq_load_f16(values.scale + t * values.scale_stride + (size_t)g * 2);
            tq_codes32 c = tq_unpack_group(p, b);
            float32x4_t y[8];
            tq_lloyd_lookup(y, &regs, c.lo, b);
            tq_lloyd_lookup(y + 4, &regs, c.hi, b);
            for (int i = 0; i < 8; i++)
                vst1q_f32(x + t * SLICE + 4 * i, vmulq_n_f32(y[i], s));
        }
        sum_slice(acc + (size_t)g * SLICE, acc_stride, w, alpha, n_rows, x, n, SLICE);
    }
}

#define LLOYD_KERNEL(b)                                                                            \
    void tq_neon_weigh_v##b(const tq_codec *v, float *acc, size_t acc_stride, const float *w,      \
                            const float *alpha, uint32_t n_rows, tq_const_planes values,           \
                            uint32_t n)                                                            \
    {                                                                                              \
        tq_look_ahead(values);                                                                     \
        weigh_lloyd(v, acc, acc_stride, w, alpha, n_rows, values, n, b);                           \
    }

LLOYD_KERNEL(2)
LLOYD_KERNEL(3)
LLOYD_KERNEL(4)
LLOYD_KERNEL(5)
LLOYD_KERNEL(8)
