/* SPDX-License-Identifier: MIT */
/* neon.c — the NEON codec table, and the raw formats. Affine keys and Lloyd values have files of
 * their own.
 *
 * Raw rows have a multiple of eight elements: two vectors at a time without a rest.
 */
#include "cpu/neon.h"
#include "cpu/neon_codec.h"
#include "cpu/scalar.h"

static void encode_f32(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                       size_t n)
{
    for (size_t row = 0; row < n; row++)
        memcpy(dst.codes + row * dst.codes_stride, src + row * src_stride, c->code_bytes);
}

static void decode_f32(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                       size_t n)
{
    for (size_t row = 0; row < n; row++)
        memcpy(dst + row * dst_stride, src.codes + row * src.codes_stride, c->code_bytes);
}

/* Stored numbers have no alignment: they move as bytes. */
TQ_INLINE void store_u16x8(uint8_t *p, uint16x8_t x)
{
    vst1q_u8(p, vreinterpretq_u8_u16(x));
}

TQ_INLINE uint16x8_t load_u16x8(const uint8_t *p)
{
    return vreinterpretq_u16_u8(vld1q_u8(p));
}

static void encode_f16(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                       size_t n)
{
    const float32x4_t max = vdupq_n_f32(TQ_F16_MAX);
    const float32x4_t min = vdupq_n_f32(-TQ_F16_MAX);

    for (size_t row = 0; row < n; row++) {
        const float *x = src + row * src_stride;
        uint8_t *out = dst.codes + row * dst.codes_stride;
        for (uint32_t i = 0; i < c->dim; i += 8) {
            float32x4_t a = vmaxq_f32(vminq_f32(vld1q_f32(x + i), max), min);
            float32x4_t b = vmaxq_f32(vminq_f32(vld1q_f32(x + i + 4), max), min);
            float16x8_t h = vcombine_f16(vcvt_f16_f32(a), vcvt_f16_f32(b));
            store_u16x8(out + (size_t)i * 2, vreinterpretq_u16_f16(h));
        }
    }
}

static void decode_f16(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                       size_t n)
{
    for (size_t row = 0; row < n; row++) {
        const uint8_t *p = src.codes + row * src.codes_stride;
        float *out = dst + row * dst_stride;
        for (uint32_t i = 0; i < c->dim; i += 8) {
            float16x8_t h = vreinterpretq_f16_u16(load_u16x8(p + (size_t)i * 2));
            vst1q_f32(out + i, vcvt_f32_f16(vget_low_f16(h)));
            vst1q_f32(out + i + 4, vcvt_f32_f16(vget_high_f16(h)));
        }
    }
}

TQ_INLINE uint16x4_t bf16_from_f32(float32x4_t x)
{
    uint32x4_t u = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t h = vshrq_n_u32(vaddq_u32(u, vaddq_u32(vdupq_n_u32(0x7fff), odd)), 16);
    uint32x4_t magnitude = vandq_u32(h, vdupq_n_u32(0x7fff));
    uint32x4_t sign = vandq_u32(h, vdupq_n_u32(0x8000));
    return vmovn_u32(vorrq_u32(sign, vminq_u32(magnitude, vdupq_n_u32(TQ_BF16_MAX))));
}

static void encode_bf16(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                        size_t n)
{
    for (size_t row = 0; row < n; row++) {
        const float *x = src + row * src_stride;
        uint8_t *out = dst.codes + row * dst.codes_stride;
        for (uint32_t i = 0; i < c->dim; i += 8)
            store_u16x8(out + (size_t)i * 2, vcombine_u16(bf16_from_f32(vld1q_f32(x + i)),
                                                          bf16_from_f32(vld1q_f32(x + i + 4))));
    }
}

static void decode_bf16(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                        size_t n)
{
    for (size_t row = 0; row < n; row++) {
        const uint8_t *p = src.codes + row * src.codes_stride;
        float *out = dst + row * dst_stride;
        for (uint32_t i = 0; i < c->dim; i += 8) {
            uint16x8_t h = load_u16x8(p + (size_t)i * 2);
            uint32x4_t a = vshll_n_u16(vget_low_u16(h), 16), b = vshll_n_u16(vget_high_u16(h), 16);
            vst1q_f32(out + i, vreinterpretq_f32_u32(a));
            vst1q_f32(out + i + 4, vreinterpretq_f32_u32(b));
        }
    }
}

static int row_is_finite(const float *x, size_t dim)
{
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
    uint32x4_t top = vdupq_n_u32(0);
    size_t i = 0;

    for (; i + 4 <= dim; i += 4)
        top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), magnitude));
    int finite = vmaxvq_u32(top) < 0x7f800000u;
    for (; i < dim; i++)
        finite &= fabsf(x[i]) < INFINITY;
    return finite;
}

static size_t first_nonfinite(const float *src, size_t src_stride, size_t dim, size_t n)
{
    for (size_t row = 0; row < n; row++)
        if (!row_is_finite(src + row * src_stride, dim))
            return row;
    return n;
}

const tq_codec_kernels tq_codec_kernels_neon = {
    .encode = {[TQ_KF32] = encode_f32,
               [TQ_KF16] = encode_f16,
               [TQ_KBF16] = encode_bf16,
               [TQ_KAFFINE2] = tq_neon_encode_k2,
               [TQ_KAFFINE4] = tq_neon_encode_k4,
               [TQ_KAFFINE5] = tq_neon_encode_k5,
               [TQ_KAFFINE8] = tq_neon_encode_k8,
               [TQ_KLLOYD2] = tq_neon_encode_v2,
               [TQ_KLLOYD3] = tq_neon_encode_v3,
               [TQ_KLLOYD4] = tq_neon_encode_v4,
               [TQ_KLLOYD5] = tq_neon_encode_v5,
               [TQ_KLLOYD8] = tq_neon_encode_v8,
               [TQ_KNORM2] = tq_neon_encode_turbo2,
               [TQ_KNORM3] = tq_neon_encode_turbo3,
               [TQ_KNORM4] = tq_neon_encode_turbo4,
               [TQ_KNORM5] = tq_neon_encode_turbo5,
               [TQ_KNORM6] = tq_neon_encode_turbo6,
               [TQ_KNORM8] = tq_neon_encode_turbo8,
               TQ_TCQ_ENTRIES(tq_neon_encode_tcq),
               TQ_MSE_ENTRIES(tq_scalar_encode_mse),
               TQ_PROD_ENTRIES(tq_scalar_encode_prod),
               TQ_UNIFORM_ENTRIES(tq_scalar_encode_uniform),
               TQ_FORK_ENTRIES(tq_scalar_encode_fork)},
    .decode = {[TQ_KF32] = decode_f32,
               [TQ_KF16] = decode_f16,
               [TQ_KBF16] = decode_bf16,
               [TQ_KAFFINE2] = tq_neon_decode_k2,
               [TQ_KAFFINE4] = tq_neon_decode_k4,
               [TQ_KAFFINE5] = tq_neon_decode_k5,
               [TQ_KAFFINE8] = tq_neon_decode_k8,
               [TQ_KLLOYD2] = tq_neon_decode_v2,
               [TQ_KLLOYD3] = tq_neon_decode_v3,
               [TQ_KLLOYD4] = tq_neon_decode_v4,
               [TQ_KLLOYD5] = tq_neon_decode_v5,
               [TQ_KLLOYD8] = tq_neon_decode_v8,
               TQ_NORM_ENTRIES(tq_neon_decode_norm),
               TQ_TCQ_ENTRIES(tq_neon_decode_tcq),
               TQ_MSE_ENTRIES(tq_scalar_decode_mse),
               TQ_PROD_ENTRIES(tq_scalar_decode_prod),
               TQ_UNIFORM_ENTRIES(tq_scalar_decode_uniform),
               TQ_FORK_ENTRIES(tq_scalar_decode_fork)},
    .decode_rotated = {[TQ_KF32] = decode_f32,
                       [TQ_KF16] = decode_f16,
                       [TQ_KBF16] = decode_bf16,
                       [TQ_KAFFINE2] = tq_neon_decode_k2,
                       [TQ_KAFFINE4] = tq_neon_decode_k4,
                       [TQ_KAFFINE5] = tq_neon_decode_k5,
                       [TQ_KAFFINE8] = tq_neon_decode_k8,
                       [TQ_KLLOYD2] = tq_neon_decode_rotated_v2,
                       [TQ_KLLOYD3] = tq_neon_decode_rotated_v3,
                       [TQ_KLLOYD4] = tq_neon_decode_rotated_v4,
                       [TQ_KLLOYD5] = tq_neon_decode_rotated_v5,
                       [TQ_KLLOYD8] = tq_neon_decode_rotated_v8,
                       TQ_NORM_ENTRIES(tq_neon_decode_rotated_norm),
                       TQ_TCQ_ENTRIES(tq_neon_decode_rotated_tcq),
                       TQ_MSE_ENTRIES(tq_scalar_decode_rotated_mse),
                       TQ_PROD_ENTRIES(tq_scalar_decode_rotated_prod),
                       TQ_UNIFORM_ENTRIES(tq_scalar_decode_uniform),
                       TQ_FORK_ENTRIES(tq_scalar_decode_rotated_fork)},
    .first_nonfinite = first_nonfinite,
    .rotate = tq_neon_rotate,
    .unrotate = tq_neon_unrotate,
};
