/* SPDX-License-Identifier: MIT */
/* trellis.h — the trellis codes: tables, costs and the rule that turns path bits into subsets.
 * Source: docs/format.md 9. */
#ifndef TQ_TRELLIS_H
#define TQ_TRELLIS_H

#include <stdint.h>

/* Levels of the widest table, and of one of its four subsets. */
enum { TQ_TRELLIS_LEVELS = 128, TQ_TRELLIS_SUBSET = TQ_TRELLIS_LEVELS / 4 };

/* Fast searches take |p| - shift for |p| and cost - shift * level for cost, which changes no
 * comparison, so that the costs of 5 and 6 bits span less than 2^16 too; 0 below 5 bits. */
enum { TQ_TRELLIS_SHIFT = 1000 };

/* A code of `bits` bits is o | x << (bits - 1): x the path bit of the coordinate, o the number of
 * its level within the subset that the path allows. Level l belongs to subset l % 4 as number
 * l / 4. */
typedef struct tq_trellis {
    uint32_t bits;
    const int8_t *levels; /* [2 << bits] ascending, levels[last - l] = -levels[l] */
    float unit;
    uint32_t frac;     /* fraction bits of the coordinates p */
    uint8_t widths[5]; /* bit planes of the codes, see tq_pack_planes */
} tq_trellis;

/* bits 2..6; NULL for others. Static storage. */
const tq_trellis *tq_trellis_get(uint32_t bits);

/* cost [2 << bits]: the part of a level's cost under the stretch h/64 that does not depend on the
 * coordinate: p costs cost[l] - p * levels[l]. */
void tq_trellis_costs(const tq_trellis *t, uint32_t h, int32_t *cost);

/* Boundaries inside the subsets: edge [k][j] for j < (1 << (bits - 1)) - 1. The best level of
 * subset k for p is number j, the count of edges below p. Ascending in j. */
void tq_trellis_edges(const tq_trellis *t, uint32_t h, int16_t edge[4][TQ_TRELLIS_SUBSET]);

/* Levels of n codes, without a state machine: the subset of coordinate j follows from the path
 * bits of j, j - 1, j - 2 and j - 3. Any codes are valid. */
void tq_trellis_row_levels(const tq_trellis *t, int8_t *level, const uint8_t *code, uint32_t n);

#endif
