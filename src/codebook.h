/* SPDX-License-Identifier: MIT */
/* codebook.h — the integer codebooks of norm-codebook, mse and prod. docs/format.md 8.1, 11. */
#ifndef TQ_CODEBOOK_H
#define TQ_CODEBOOK_H

#include <stdint.h>

/* A code is a sign bit above the index of a magnitude; for 8 bits it is the level itself. */
typedef struct tq_codebook {
    uint32_t bits;
    uint32_t n_levels;    /* of the positive half; 0 for 8 bits */
    const int8_t *levels; /* [n_levels] ascending */
    float unit;
    uint32_t frac;     /* fraction bits of the coordinates p */
    uint8_t widths[3]; /* bit planes of the codes, see tq_pack_planes */
} tq_codebook;

/* bits 1 (mse and prod only), 2, 3, 4, 5, 6 or 8; NULL for others. Static storage. */
const tq_codebook *tq_codebook_get(uint32_t bits);

/* Boundaries of |p| under the stretch h/64: edges [n_levels - 1], all even. |p| above edges[i]
 * belongs to level i + 1. */
void tq_codebook_edges(const tq_codebook *book, uint32_t h, int16_t *edges);

/* The level of a code. */
int tq_codebook_level(const tq_codebook *book, uint8_t code);

#endif
