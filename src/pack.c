/* SPDX-License-Identifier: MIT */
/* pack.c — b-bit fields in a little-endian bit stream and in planes, reference version. A field may
 * straddle two bytes, so bits pass through a small accumulator that holds the part of a byte. */
#include "pack.h"

#include <string.h>

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

void tq_pack_planes(uint8_t *dst, const uint8_t *code, uint32_t dim, const uint8_t *widths)
{
    for (uint32_t low = 0; *widths; low += *widths++) {
        const uint32_t w = *widths, nb = dim * w / 8;
        memset(dst, 0, nb);
        for (uint32_t j = 0; j < dim; j++) {
            uint32_t field = (uint32_t)code[j] >> low & ((1u << w) - 1);
            dst[j % nb] = (uint8_t)(dst[j % nb] | field << (w * (j / nb)));
        }
        dst += nb;
    }
}

void tq_unpack_planes(uint8_t *code, const uint8_t *src, uint32_t dim, const uint8_t *widths)
{
    memset(code, 0, dim);
    for (uint32_t low = 0; *widths; low += *widths++) {
        const uint32_t w = *widths, nb = dim * w / 8;
        for (uint32_t j = 0; j < dim; j++) {
            uint32_t field = (uint32_t)src[j % nb] >> (w * (j / nb)) & ((1u << w) - 1);
            code[j] = (uint8_t)(code[j] | field << low);
        }
        src += nb;
    }
}
