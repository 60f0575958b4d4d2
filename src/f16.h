/* SPDX-License-Identifier: MIT */
/* f16.h — portable IEEE binary16 and bfloat16 conversions, one number at a time.
 *
 * The one hard idea: these must give the bits that F16C, NEON and CUDA give, subnormals included,
 * so rounding is to nearest even in integer arithmetic. NaN is the exception: hardware keeps
 * payloads and signs differently, so every NaN that we store is 0x7e00 and every NaN that we read
 * is 0x7fc00000.
 */
#ifndef TQ_F16_H
#define TQ_F16_H

#include "exact.h"

#include <stdint.h>
#include <string.h>

#define TQ_F16_MAX  65504.0f
#define TQ_F16_NAN  0x7e00u
#define TQ_BF16_MAX 0x7f7fu

static inline uint32_t tq_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float tq_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Nearest f16, ties to even; beyond 65520 it is Inf. */
static inline uint16_t tq_f16_from_f32(float x)
{
    uint32_t u = tq_f32_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t a = u & 0x7fffffffu;

    if (a > 0x7f800000u)
        return TQ_F16_NAN;
    if (a >= 0x47800000u) /* 2^16 and more */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x33000000u) /* below 2^-25 all is zero; 2^-25 itself is a tie and goes there below */
        return (uint16_t)sign;

    uint32_t drop = 13; /* bits of the significand that f16 does not hold */
    uint32_t m = a & 0x7fffffu;
    uint32_t h;
    if (a < 0x38800000u) { /* below 2^-14: no exponent, quanta of 2^-24 */
        drop = 126 - (a >> 23);
        m |= 0x800000u;
        h = m >> drop;
    } else {
        h = (a - 0x38000000u) >> 13;
    }
    uint32_t rest = m & ((1u << drop) - 1);
    uint32_t half = 1u << (drop - 1);
    h += rest > half || (rest == half && (h & 1)); /* a carry into the exponent is right */
    return (uint16_t)(sign | h);
}

/* The same, but finite values never become Inf. */
static inline uint16_t tq_f16_from_f32_sat(float x)
{
    uint16_t h = tq_f16_from_f32(x);
    return (h & 0x7fffu) == 0x7c00u ? (uint16_t)(h - 1) : h;
}

static inline float tq_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t e = (h >> 10) & 31u;
    uint32_t m = h & 0x3ffu;

    if (e == 31)
        return tq_f32_from_bits(m ? 0x7fc00000u : sign | 0x7f800000u);
    if (e == 0) { /* m * 2^-24, exact */
        float x = (float)m * 0x1p-24f;
        return sign ? -x : x;
    }
    return tq_f32_from_bits(sign | ((e + 112) << 23) | (m << 13));
}

/* Nearest bf16, ties to even; finite values never become Inf. */
static inline uint16_t tq_bf16_from_f32_sat(float x)
{
    uint32_t u = tq_f32_bits(x);
    uint32_t h = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    if ((h & 0x7fffu) > TQ_BF16_MAX)
        h = (h & 0x8000u) | TQ_BF16_MAX;
    return (uint16_t)h;
}

static inline float tq_f32_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    return tq_f32_from_bits((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : u);
}

/* Stored numbers are little-endian and unaligned. */
static inline uint16_t tq_load_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (unsigned)p[1] << 8);
}

static inline void tq_store_le16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline float tq_load_le_f32(const uint8_t *p)
{
    return tq_f32_from_bits((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                            (uint32_t)p[3] << 24);
}

static inline void tq_store_le_f32(uint8_t *p, float x)
{
    uint32_t u = tq_f32_bits(x);
    p[0] = (uint8_t)u;
    p[1] = (uint8_t)(u >> 8);
    p[2] = (uint8_t)(u >> 16);
    p[3] = (uint8_t)(u >> 24);
}

#endif
