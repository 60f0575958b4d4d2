/* SPDX-License-Identifier: MIT */
/* pack.c — b-bit fields in a little-endian bit stream, reference version. A field may straddle
 * two bytes, so bits pass through a small accumulator that holds the part of a byte. */
#include "pack.h"

void tq_pack(uint8_t *dst, const uint8_t *idx, uint32_t n, uint32_t bits)
{
    uint32_t mask = (1u << bits) - 1;
    uint32_t acc = 0;
    uint32_t held = 0;

    for (uint32_t i = 0; i < n; i++) {
        acc |= (idx[i] & mask) << held;
        held += bits;
        while (held >= 8) {
            *dst++ = (uint8_t)acc;
            acc >>= 8;
            held -= 8;
        }
    }
}

void tq_unpack(uint8_t *idx, const uint8_t *src, uint32_t n, uint32_t bits)
{
    uint32_t mask = (1u << bits) - 1;
    uint32_t acc = 0;
    uint32_t held = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (held < bits) {
            acc |= (uint32_t)*src++ << held;
            held += 8;
        }
        idx[i] = (uint8_t)(acc & mask);
        acc >>= bits;
        held -= bits;
    }
}
