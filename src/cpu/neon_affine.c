/* SPDX-License-Identifier: MIT */
/* neon_affine.c — affine keys, one group of 32 at a time.
 *
 * A group is eight vectors, and AArch64 reduces a vector to its minimum or maximum in one
 * instruction, so nothing is gained by taking several groups together. Groups on which the guard
 * acts are rare and go through the reference. A short last group is filled up with its first
 * element, which changes neither its range nor its codes.
 */
#include "cpu/neon.h"
#include "cpu/neon_codec.h"

TQ_INLINE int guard_acts(float s, float z, float mn, float mx)
{
    return !(s < TQ_GUARD_SCALE_MAX) || !(fabsf(z) <= TQ_GUARD_ZERO_MAX) ||
           (s < TQ_GUARD_SCALE_MIN && (mn > 0 || mx < 0));
}

TQ_INLINE void encode_group(uint8_t *codes, uint8_t *scale, uint8_t *zero, const float *x, int b,
                            int strict)
{
    const float32x4_t lo = vdupq_n_f32(b == 8 ? -127.0f : 0.0f);
    const float32x4_t hi = vdupq_n_f32(b == 8 ? 127.0f : (float)((1 << b) - 1));
    float32x4_t v[8];
    uint32x4_t idx[8];

    for (int i = 0; i < 8; i++)
        v[i] = vld1q_f32(x + 4 * i);
    float32x4_t least = v[0], most = v[0];
    for (int i = 1; i < 8; i++) {
        least = vminq_f32(least, v[i]);
        most = vmaxq_f32(most, v[i]);
    }
    float mn = vminvq_f32(least), mx = vmaxvq_f32(most);
    float s = (mx - mn) / (b == 8 ? 254.0f : (float)((1 << b) - 1)) + 0.0f;
    float d = s + TQ_EPS;
    float z = vrndns_f32(b == 8 ? (mx + mn) / (2.0f * d) : mn / d) + 0.0f;

    if (!strict && guard_acts(s, z, mn, mx)) {
        tq_affine_group_encode(codes, scale, zero, x, (uint32_t)b, 0);
        return;
    }
    for (int i = 0; i < 8; i++) {
        float32x4_t w = vsubq_f32(vdivq_f32(v[i], vdupq_n_f32(d)), vdupq_n_f32(z));
        /* Bounds are integers, so clamping first and rounding then is the same; the "number"
         * maximum turns a NaN into lo, as the reference does. */
        w = vminnmq_f32(vmaxnmq_f32(w, lo), hi);
        idx[i] = vreinterpretq_u32_s32(vcvtnq_s32_f32(w));
    }
    tq_pack_group(codes, tq_narrow_group(idx), b);
    tq_store_f16(scale, s);
    tq_store_f16(zero, z);
}

TQ_INLINE void encode_short(uint8_t *codes, uint8_t *scale, uint8_t *zero, const float *x,
                            uint32_t n, int b, int strict)
{
    float filled[TQ_GROUP];
    uint8_t all[TQ_GROUP];

    for (uint32_t j = 0; j < TQ_GROUP; j++)
        filled[j] = x[j < n ? j : 0];
    encode_group(all, scale, zero, filled, b, strict);
    memcpy(codes, all, n * (uint32_t)b / 8);
}

TQ_INLINE void encode_affine(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                             size_t n, int b)
{
    const int strict = (c->flags & TQ_CODEC_STRICT) != 0;
    const uint32_t n_whole = c->dim / TQ_GROUP;

    for (size_t row = 0; row < n; row++) {
        const float *x = src + row * src_stride;
        uint8_t *codes = dst.codes + row * dst.codes_stride;
        uint8_t *scale = dst.scale + row * dst.scale_stride;
        uint8_t *zero = dst.zero + row * dst.zero_stride;
        for (uint32_t g = 0; g < n_whole; g++)
            encode_group(codes + (size_t)g * 4 * (size_t)b, scale + (size_t)g * 2,
                         zero + (size_t)g * 2, x + g * TQ_GROUP, b, strict);
        if (n_whole < c->n_groups)
            encode_short(codes + (size_t)n_whole * 4 * (size_t)b, scale + (size_t)n_whole * 2,
                         zero + (size_t)n_whole * 2, x + n_whole * TQ_GROUP, c->dim % TQ_GROUP, b,
                         strict);
    }
}

/* 16 codes to f32, plus z, times s. */
TQ_INLINE void decode16(float *out, uint8x16_t codes, float32x4_t z, float32x4_t s, int b)
{
    int16x8_t h[2];

    if (b == 8) {
        int8x16_t x = vreinterpretq_s8_u8(codes);
        h[0] = vmovl_s8(vget_low_s8(x));
        h[1] = vmovl_s8(vget_high_s8(x));
    } else {
        h[0] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(codes)));
        h[1] = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(codes)));
    }
    for (int i = 0; i < 2; i++) {
        float32x4_t lo = vcvtq_f32_s32(vmovl_s16(vget_low_s16(h[i])));
        float32x4_t hi = vcvtq_f32_s32(vmovl_s16(vget_high_s16(h[i])));
        vst1q_f32(out + 8 * i, vmulq_f32(vaddq_f32(lo, z), s));
        vst1q_f32(out + 8 * i + 4, vmulq_f32(vaddq_f32(hi, z), s));
    }
}

TQ_INLINE void decode_group(float *out, const uint8_t *codes, float s, float z, int b)
{
    tq_codes32 x = tq_unpack_group(codes, b);

    decode16(out, x.lo, vdupq_n_f32(z), vdupq_n_f32(s), b);
    decode16(out + 16, x.hi, vdupq_n_f32(z), vdupq_n_f32(s), b);
}

TQ_INLINE void decode_affine(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                             size_t n, int b)
{
    for (size_t row = 0; row < n; row++) {
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const uint32_t size = tq_group_size(c->dim, g);
            float *out = dst + row * dst_stride + (size_t)g * TQ_GROUP;
            float s = tq_load_f16(src.scale + row * src.scale_stride + (size_t)g * 2);
            float z = tq_load_f16(src.zero + row * src.zero_stride + (size_t)g * 2);
            const uint8_t *p = src.codes + row * src.codes_stride + (size_t)g * 4 * (size_t)b;

            if (size == TQ_GROUP) {
                decode_group(out, p, s, z, b);
            } else {
                uint8_t copy[TQ_GROUP] = {0};
                float all[TQ_GROUP];
                memcpy(copy, p, size * (uint32_t)b / 8);
                decode_group(all, copy, s, z, b);
                memcpy(out, all, size * sizeof(float));
            }
        }
    }
}

#define AFFINE(b)                                                                                  \
    void tq_neon_encode_k##b(const tq_codec *c, tq_planes dst, const float *src,                   \
                             size_t src_stride, size_t n)                                          \
    {                                                                                              \
        encode_affine(c, dst, src, src_stride, n, b);                                              \
    }                                                                                              \
    void tq_neon_decode_k##b(const tq_codec *c, float *dst, size_t dst_stride,                     \
                             tq_const_planes src, size_t n)                                        \
    {                                                                                              \
        decode_affine(c, dst, dst_stride, src, n, b);                                              \
    }

AFFINE(2)
AFFINE(4)
AFFINE(5)
AFFINE(8)
