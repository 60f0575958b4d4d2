/* SPDX-License-Identifier: MIT */
/* pack.h — b-bit fields in a little-endian bit stream. */
#ifndef TQ_PACK_H
#define TQ_PACK_H

#include <stdint.h>

/* Element i takes stream bits [i*bits, i*bits + bits), lowest bit first; stream bit n is bit n % 8
 * of byte n / 8. bits 1..8, n * bits a multiple of 8: no padding. Only the low `bits` bits of an
 * index are written. Source: docs/format.md "Bit packing".
 * dst [n*bits/8], idx [n]; not aliased. Any thread. Cannot fail. */
void tq_pack(uint8_t *dst, const uint8_t *idx, uint32_t n, uint32_t bits);

/* The inverse; indices come out unsigned. */
void tq_unpack(uint8_t *idx, const uint8_t *src, uint32_t n, uint32_t bits);

#endif
