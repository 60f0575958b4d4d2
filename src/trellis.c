/* SPDX-License-Identifier: MIT */
/* trellis.c — the trellis codes: tables and the decoder's rule. The levels are in
 * trellis_tables.inc, trained by tools/train_trellis.c and frozen.
 *
 * The one hard idea: the code is Ungerboeck's 8-state code in feedback-free form. Its two parity
 * bits are sums of the last path bits, so a decoder needs shifts of a plane of path bits and no
 * state; a test proves it equal to the syndrome former that defines the code.
 */
#include "trellis.h"

#include <stddef.h>

#include "trellis_tables.inc"

static const tq_trellis trellises[] = {
    {2, trellis_levels_2, TQ_TRELLIS_UNIT_2, 6, {1, 1}},
    {3, trellis_levels_3, TQ_TRELLIS_UNIT_3, 5, {2, 1}},
    {4, trellis_levels_4, TQ_TRELLIS_UNIT_4, 4, {2, 1, 1}},
    {5, trellis_levels_5, TQ_TRELLIS_UNIT_5, 3, {2, 2, 1}},
    {6, trellis_levels_6, TQ_TRELLIS_UNIT_6, 3, {2, 2, 1, 1}},
};

const tq_trellis *tq_trellis_get(uint32_t bits)
{
    return bits >= 2 && bits <= 6 ? &trellises[bits - 2] : NULL;
}

void tq_trellis_costs(const tq_trellis *t, uint32_t h, int32_t *cost)
{
    for (uint32_t l = 0; l < 2u << t->bits; l++) {
        const uint32_t square = (uint32_t)(t->levels[l] * t->levels[l]);
        cost[l] = (int32_t)((((square * h) << t->frac) + 32) >> 6);
    }
}

static int32_t floor_div(int32_t a, int32_t b) /* b > 0 */
{
    return a / b - (a % b < 0);
}

void tq_trellis_edges(const tq_trellis *t, uint32_t h, int16_t edge[4][TQ_TRELLIS_SUBSET])
{
    int32_t cost[TQ_TRELLIS_LEVELS];

    tq_trellis_costs(t, h, cost);
    for (uint32_t l = 0; l + 4 < 2u << t->bits; l++)
        edge[l % 4][l / 4] =
            (int16_t)floor_div(cost[l + 4] - cost[l], t->levels[l + 4] - t->levels[l]);
}

void tq_trellis_row_levels(const tq_trellis *t, int8_t *level, const uint8_t *code, uint32_t n)
{
    uint32_t x1 = 0, x2 = 0, x3 = 0; /* path bits 1, 2 and 3 coordinates ago */

    for (uint32_t j = 0; j < n; j++) {
        const uint32_t x = (uint32_t)code[j] >> (t->bits - 1);
        const uint32_t o = code[j] & ((1u << (t->bits - 1)) - 1);
        const uint32_t z0 = x2, z1 = x ^ x1 ^ x3;

        level[j] = t->levels[o * 4 + z1 * 2 + z0];
        x3 = x2;
        x2 = x1;
        x1 = x;
    }
}
