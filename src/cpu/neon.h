/* SPDX-License-Identifier: MIT */
/* neon.h — building blocks of the NEON codec: bit packing, f16, the transform.
 *
 * AArch64 baseline: no extension, so no flags and no detection. Everything is static inline with
 * constant `bits` and `dim` at each call. Results are those of scalar.c bit for bit: the order of
 * roundings is the same, only the order of independent values differs. A fused multiply-add occurs
 * only where the product is exact (a factor of +1 or -1).
 */
#ifndef TQ_CPU_NEON_H
#define TQ_CPU_NEON_H

#include "cpu/scalar.h"
#include "f16.h"
#include "rotate.h"
#include "tables.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#define TQ_INLINE static inline __attribute__((always_inline))

/* ---- Codes <-> bytes ---- */

/* 32 codes, one byte each. */
typedef struct tq_codes32 {
    uint8x16_t lo, hi;
} tq_codes32;

/* Bytes that hold element i of eight in a stream of b-bit fields, as the table index of a 16-bit
 * lane, and how far the field lies from the bottom of that lane. */
#define TQ_CTL_BYTE(b, i)  (((i) * (b)) / 8)
#define TQ_CTL(b, i)       (uint8_t) TQ_CTL_BYTE(b, i), (uint8_t)(TQ_CTL_BYTE(b, i) + 1)
#define TQ_CTL_SHIFT(b, i) (int16_t)(-(((i) * (b)) % 8))

/* Eight codes of b bits, the first at byte `base` of src. */
TQ_INLINE uint8x8_t tq_unpack8(uint8x16_t src, int b, int base)
{
    const uint8_t ctl[16] = {TQ_CTL(b, 0), TQ_CTL(b, 1), TQ_CTL(b, 2), TQ_CTL(b, 3),
                             TQ_CTL(b, 4), TQ_CTL(b, 5), TQ_CTL(b, 6), TQ_CTL(b, 7)};
    const int16_t shift[8] = {TQ_CTL_SHIFT(b, 0), TQ_CTL_SHIFT(b, 1), TQ_CTL_SHIFT(b, 2),
                              TQ_CTL_SHIFT(b, 3), TQ_CTL_SHIFT(b, 4), TQ_CTL_SHIFT(b, 5),
                              TQ_CTL_SHIFT(b, 6), TQ_CTL_SHIFT(b, 7)};
    uint8x16_t pick = vaddq_u8(vld1q_u8(ctl), vdupq_n_u8((uint8_t)base));
    uint16x8_t field = vreinterpretq_u16_u8(vqtbl1q_u8(src, pick));
    field = vandq_u16(vshlq_u16(field, vld1q_s16(shift)), vdupq_n_u16((uint16_t)((1 << b) - 1)));
    return vmovn_u16(field);
}

/* The 4*b bytes of a group; 8-bit codes come out unsigned. Reads nothing else. */
TQ_INLINE tq_codes32 tq_unpack_group(const uint8_t *p, int b)
{
    tq_codes32 c;

    if (b == 8) {
        c.lo = vld1q_u8(p);
        c.hi = vld1q_u8(p + 16);
    } else if (b == 4) {
        uint8x16_t x = vld1q_u8(p);
        uint8x16_t even = vandq_u8(x, vdupq_n_u8(15)), odd = vshrq_n_u8(x, 4);
        c.lo = vzip1q_u8(even, odd);
        c.hi = vzip2q_u8(even, odd);
    } else if (b == 2) {
        static const uint8_t quads[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
        static const int8_t down[16] = {0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6};
        uint8x16_t x = vcombine_u8(vld1_u8(p), vdup_n_u8(0));
        uint8x16_t pick = vld1q_u8(quads);
        const uint8x16_t three = vdupq_n_u8(3);
        c.lo = vandq_u8(vshlq_u8(vqtbl1q_u8(x, pick), vld1q_s8(down)), three);
        pick = vaddq_u8(pick, vdupq_n_u8(4));
        c.hi = vandq_u8(vshlq_u8(vqtbl1q_u8(x, pick), vld1q_s8(down)), three);
    } else if (b == 3) {
        uint8x8_t top = vld1_u8(p + 4); /* 12 bytes: two loads that overlap */
        uint8x16_t x = vcombine_u8(vld1_u8(p), vext_u8(top, top, 4));
        c.lo = vcombine_u8(tq_unpack8(x, 3, 0), tq_unpack8(x, 3, 3));
        c.hi = vcombine_u8(tq_unpack8(x, 3, 6), tq_unpack8(x, 3, 9));
    } else { /* 5 bits: 20 bytes */
        uint8x16_t x = vld1q_u8(p), y = vld1q_u8(p + 4);
        c.lo = vcombine_u8(tq_unpack8(x, 5, 0), tq_unpack8(x, 5, 5));
        c.hi = vcombine_u8(tq_unpack8(y, 5, 6), tq_unpack8(y, 5, 11));
    }
    return c;
}

/* Eight b-bit codes joined to one number of 8*b bits per 64-bit lane. */
TQ_INLINE uint8x16_t tq_join8(uint8x16_t bytes, int b)
{
    uint16x8_t x = vreinterpretq_u16_u8(bytes);
    x = vorrq_u16(vandq_u16(x, vdupq_n_u16(255)),
                  vshlq_u16(vshrq_n_u16(x, 8), vdupq_n_s16((int16_t)b)));
    uint32x4_t y = vreinterpretq_u32_u16(x);
    y = vorrq_u32(vandq_u32(y, vdupq_n_u32(0xffff)),
                  vshlq_u32(vshrq_n_u32(y, 16), vdupq_n_s32(2 * b)));
    uint64x2_t z = vreinterpretq_u64_u32(y);
    z = vorrq_u64(vandq_u64(z, vdupq_n_u64(0xffffffffu)),
                  vshlq_u64(vshrq_n_u64(z, 32), vdupq_n_s64(4 * b)));
    return vreinterpretq_u8_u64(z);
}

TQ_INLINE void tq_store4(uint8_t *p, uint8x16_t v, const int lane)
{
    uint32_t x = lane == 0 ? vgetq_lane_u32(vreinterpretq_u32_u8(v), 0)
                           : vgetq_lane_u32(vreinterpretq_u32_u8(v), 2);
    memcpy(p, &x, 4);
}

/* Write 32 codes as 4*b bytes. */
TQ_INLINE void tq_pack_group(uint8_t *p, tq_codes32 c, int b)
{
    if (b == 8) {
        vst1q_u8(p, c.lo);
        vst1q_u8(p + 16, c.hi);
        return;
    }
    if (b == 4 || b == 2) {
        uint8x16_t even = vuzp1q_u8(c.lo, c.hi), odd = vuzp2q_u8(c.lo, c.hi);
        if (b == 4) {
            vst1q_u8(p, vsliq_n_u8(even, odd, 4));
            return;
        }
        uint8x16_t pair = vsliq_n_u8(even, odd, 2);
        even = vuzp1q_u8(pair, pair);
        odd = vuzp2q_u8(pair, pair);
        vst1_u8(p, vget_low_u8(vsliq_n_u8(even, odd, 4)));
        return;
    }
    const uint8x16x2_t eight = {{tq_join8(c.lo, b), tq_join8(c.hi, b)}};
    if (b == 3) {
        static const uint8_t pick[16] = {0,  1,  2,  8,  9,   10,  16,  17,
                                         18, 24, 25, 26, 255, 255, 255, 255};
        uint8x16_t x = vqtbl2q_u8(eight, vld1q_u8(pick));
        vst1_u8(p, vget_low_u8(x));
        tq_store4(p + 8, x, 2);
    } else {
        static const uint8_t pick[16] = {0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 16, 17, 18, 19, 20, 24};
        static const uint8_t rest[16] = {25,  26,  27,  28,  255, 255, 255, 255,
                                         255, 255, 255, 255, 255, 255, 255, 255};
        vst1q_u8(p, vqtbl2q_u8(eight, vld1q_u8(pick)));
        tq_store4(p + 16, vqtbl2q_u8(eight, vld1q_u8(rest)), 0);
    }
}

/* Eight vectors of codes within -128..255 to bytes in order. */
TQ_INLINE tq_codes32 tq_narrow_group(const uint32x4_t idx[8])
{
    uint16x8_t h[4];
    for (int i = 0; i < 4; i++)
        h[i] = vcombine_u16(vmovn_u32(idx[2 * i]), vmovn_u32(idx[2 * i + 1]));
    tq_codes32 c = {vcombine_u8(vmovn_u16(h[0]), vmovn_u16(h[1])),
                    vcombine_u8(vmovn_u16(h[2]), vmovn_u16(h[3]))};
    return c;
}

/* ---- f16 ---- */

/* x to f16, a NaN to 0x7e00. */
TQ_INLINE void tq_store_f16(uint8_t *p, float x)
{
    uint16_t h = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
    if (x != x)
        h = TQ_F16_NAN;
    memcpy(p, &h, 2);
}

TQ_INLINE float tq_load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}

/* ---- Lloyd tables ---- */

/* Up to 32 centroids as four planes of bytes, so that a byte shuffle looks up 16 at once. */
typedef struct tq_lloyd_regs {
    uint8x16x4_t lo, hi;
    const float *centroid;
} tq_lloyd_regs;

TQ_INLINE tq_lloyd_regs tq_lloyd_load(int b)
{
    const float *c = tq_lloyd_get((uint32_t)b)->centroid;
    tq_lloyd_regs r = {.centroid = c};

    if (b == 8)
        return r;
    float table[32];
    for (int i = 0; i < 32; i++)
        table[i] = c[i & ((1 << b) - 1)];
    r.lo = vld4q_u8((const uint8_t *)table);
    r.hi = vld4q_u8((const uint8_t *)(table + 16));
    return r;
}

/* Centroids of 16 codes. */
TQ_INLINE void tq_lloyd_lookup(float32x4_t out[4], const tq_lloyd_regs *r, uint8x16_t idx, int b)
{
    uint8x16_t plane[4];

    if (b == 8) {
        uint8_t i[16];
        vst1q_u8(i, idx);
        for (int k = 0; k < 4; k++) {
            float x[4] = {r->centroid[i[4 * k]], r->centroid[i[4 * k + 1]],
                          r->centroid[i[4 * k + 2]], r->centroid[i[4 * k + 3]]};
            out[k] = vld1q_f32(x);
        }
        return;
    }
    for (int k = 0; k < 4; k++) {
        const uint8x16x2_t both = {{r->lo.val[k], r->hi.val[k]}};
        plane[k] = b == 5 ? vqtbl2q_u8(both, idx) : vqtbl1q_u8(r->lo.val[k], idx);
    }
    uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(plane[0], plane[1]));
    uint16x8_t c = vreinterpretq_u16_u8(vzip1q_u8(plane[2], plane[3]));
    out[0] = vreinterpretq_f32_u16(vzip1q_u16(a, c));
    out[1] = vreinterpretq_f32_u16(vzip2q_u16(a, c));
    a = vreinterpretq_u16_u8(vzip2q_u8(plane[0], plane[1]));
    c = vreinterpretq_u16_u8(vzip2q_u8(plane[2], plane[3]));
    out[2] = vreinterpretq_f32_u16(vzip1q_u16(a, c));
    out[3] = vreinterpretq_f32_u16(vzip2q_u16(a, c));
}

/* ---- The transform ---- */

/* Stages h = 1 and 2 inside a vector. t + v*(+-1) is one rounding, as in the reference. */
TQ_INLINE float32x4_t tq_hadamard4(float32x4_t v)
{
    const float32x4_t s1 = {1, -1, 1, -1};
    const float32x4_t s2 = {1, 1, -1, -1};

    v = vfmaq_f32(vrev64q_f32(v), v, s1);
    return vfmaq_f32(vextq_f32(v, v, 2), v, s2);
}

/* One stage over n vectors: butterflies between v[i] and v[i + h]. Unrolled by request: rolled up,
 * the vectors would live in memory. */
TQ_INLINE void tq_hadamard_across_stage(float32x4_t *v, const int n, const int h)
{
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
        if (i & h)
            continue;
        const float32x4_t a = v[i], b = v[i + h];
        v[i] = vaddq_f32(a, b);
        v[i + h] = vsubq_f32(a, b);
    }
}

/* Stages over n vectors, n a power of two up to 16. */
TQ_INLINE void tq_hadamard_across(float32x4_t *v, const int n)
{
    if (n > 1)
        tq_hadamard_across_stage(v, n, 1);
    if (n > 2)
        tq_hadamard_across_stage(v, n, 2);
    if (n > 4)
        tq_hadamard_across_stage(v, n, 4);
    if (n > 8)
        tq_hadamard_across_stage(v, n, 8);
}

/* y = H (pre * x) / sqrt(dim) * post; pre and post are sign tables or NULL; y == x is allowed. */
TQ_INLINE void tq_hadamard(float *y, const float *x, int dim, const float *pre, const float *post)
{
    const float scale = tq_rotate_scale((uint32_t)dim);
    const int n_blocks = dim / 64;

    for (int block = 0; block < n_blocks; block++) {
        float32x4_t v[16];
        for (int i = 0; i < 16; i++) {
            v[i] = vld1q_f32(x + 64 * block + 4 * i);
            if (pre)
                v[i] = vmulq_f32(v[i], vld1q_f32(pre + 64 * block + 4 * i));
            v[i] = tq_hadamard4(v[i]);
        }
        tq_hadamard_across(v, 16);
        for (int i = 0; i < 16; i++)
            vst1q_f32(y + 64 * block + 4 * i, v[i]);
    }
    for (int i = 0; i < 16; i++) {
        float32x4_t v[8];
        for (int block = 0; block < n_blocks; block++)
            v[block] = vld1q_f32(y + 64 * block + 4 * i);
        tq_hadamard_across(v, n_blocks);
        for (int block = 0; block < n_blocks; block++) {
            v[block] = vmulq_n_f32(v[block], scale);
            if (post)
                v[block] = vmulq_f32(v[block], vld1q_f32(post + 64 * block + 4 * i));
            vst1q_f32(y + 64 * block + 4 * i, v[block]);
        }
    }
}

#endif
