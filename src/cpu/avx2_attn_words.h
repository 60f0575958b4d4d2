/* SPDX-License-Identifier: MIT */
/* avx2_attn_words.h — how fine values and their weights become 16-bit integers, for AVX2 and
 * AVX-512; kernels.h has what that may cost. */
#ifndef TQ_CPU_AVX2_ATTN_WORDS_H
#define TQ_CPU_AVX2_ATTN_WORDS_H

#include <stdint.h>

#define TQ_WORD_MAX 32767.0f

/* Largest number of 5 bits, and sums of weights: 64 roundings up of a half stay below 2^31 /
 * TQ_TOP_5 (uniform codes are less), and below 2^16 for the numbers of 8 bits, which fill an int16.
 */
#define TQ_TOP_5 16383
#define TQ_SUM_5 131000.0f
#define TQ_SUM_8 65500.0f

/* The 256 centroids of 8 bits are a straight line but for one step: centroid i is about
 *     step * (i - 128 + first + fraction[i / 4] / 256),
 * within 1.3 % of the standard deviation of the error that the format itself has. */
#define TQ_STEP_8  0.0345802147f
#define TQ_FIRST_8 -2.2647863f
static const uint8_t tq_fraction_8[64] __attribute__((aligned(64))) = {
    6,   2,   0,   5,   7,   55,  18,  0,   8,   4,   33,  23,  27,  40,  41,  62,
    84,  47,  98,  163, 217, 206, 179, 142, 144, 127, 98,  96,  119, 141, 153, 106,
    99,  91,  80,  117, 110, 85,  75,  56,  36,  26,  26,  0,   32,  66,  111, 140,
    150, 163, 161, 158, 164, 183, 196, 255, 186, 167, 174, 230, 185, 255, 207, 210};

#endif
