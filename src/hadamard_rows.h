/* SPDX-License-Identifier: MIT */
/* hadamard_rows.h — the small factors of the transforms: X(i, row i), see tq_hadamard_rows.
 * Quadratic characters modulo 11, 19, 13 and 17; a test rebuilds them from their definition. */
#ifndef TQ_HADAMARD_ROWS_H
#define TQ_HADAMARD_ROWS_H

/* clang-format off */
#define TQ_PALEY_12(X)                                                                             \
    X(0, 0x000) X(1, 0xb8a) X(2, 0xdc4) X(3, 0x6e2) X(4, 0xb70) X(5, 0x5b8) X(6, 0x2dc)            \
    X(7, 0x16e) X(8, 0x8b6) X(9, 0xc5a) X(10, 0xe2c) X(11, 0x716)

#define TQ_PALEY_20(X)                                                                             \
    X(0, 0x00000) X(1, 0x9ea1a) X(2, 0xcf50c) X(3, 0x67a86) X(4, 0xb3d42) X(5, 0xd9ea0)            \
    X(6, 0x6cf50) X(7, 0x367a8) X(8, 0x1b3d4) X(9, 0x0d9ea) X(10, 0x86cf4) X(11, 0x4367a)          \
    X(12, 0xa1b3c) X(13, 0x50d9e) X(14, 0xa86ce) X(15, 0xd4366) X(16, 0xea1b2) X(17, 0xf50d8)      \
    X(18, 0x7a86c) X(19, 0x3d436)

#define TQ_CONFERENCE_14(X)                                                                        \
    X(0, 0x0000) X(1, 0x13c8) X(2, 0x2790) X(3, 0x0f22) X(4, 0x1e44) X(5, 0x3c88) X(6, 0x3912)     \
    X(7, 0x3226) X(8, 0x244e) X(9, 0x089e) X(10, 0x113c) X(11, 0x2278) X(12, 0x04f2)               \
    X(13, 0x09e4)

#define TQ_CONFERENCE_18(X)                                                                        \
    X(0, 0x00000) X(1, 0x0b9d0) X(2, 0x173a0) X(3, 0x2e740) X(4, 0x1ce82) X(5, 0x39d04)            \
    X(6, 0x33a0a) X(7, 0x27416) X(8, 0x0e82e) X(9, 0x1d05c) X(10, 0x3a0b8) X(11, 0x34172)          \
    X(12, 0x282e6) X(13, 0x105ce) X(14, 0x20b9c) X(15, 0x0173a) X(16, 0x02e74) X(17, 0x05ce8)
/* clang-format on */

#endif
