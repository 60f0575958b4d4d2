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

/* Bit planes, docs/format.md 8.1. widths: the planes' widths in stored order, ended by 0; the
 * first holds the lowest bits of a code. Plane of width w: nb = dim * w / 8 bytes, element j in
 * byte j % nb, bits w * (j / nb) and up. dst: the planes one after another; code [dim]. */
void tq_pack_planes(uint8_t *dst, const uint8_t *code, uint32_t dim, const uint8_t *widths);

/* The inverse. */
void tq_unpack_planes(uint8_t *code, const uint8_t *src, uint32_t dim, const uint8_t *widths);

#endif
