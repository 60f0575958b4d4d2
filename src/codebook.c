/* SPDX-License-Identifier: MIT */
/* codebook.c — Lloyd-Max levels restricted to small integers times a unit. The numbers are in
 * codebook_tables.inc, found by tools/gen_codebooks.c and frozen; those of 1 and of 8 bits follow
 * from docs/format.md. */
#include "codebook.h"

#include <stddef.h>

#include "codebook_tables.inc"

static const int8_t codebook_levels_1[1] = {1};

static const tq_codebook books[] = {
    {1, 1, codebook_levels_1, 0x1.988454p-1f, 6, {1}},
    {2, 2, codebook_levels_2, TQ_CODEBOOK_UNIT_2, 6, {2}},
    {3, 4, codebook_levels_3, TQ_CODEBOOK_UNIT_3, 5, {2, 1}},
    {4, 8, codebook_levels_4, TQ_CODEBOOK_UNIT_4, 4, {4}},
    {5, 16, codebook_levels_5, TQ_CODEBOOK_UNIT_5, 4, {4, 1}},
    {6, 32, codebook_levels_6, TQ_CODEBOOK_UNIT_6, 4, {4, 2}},
    {8, 0, NULL, 0x1p-5f, 5, {8}},
};

const tq_codebook *tq_codebook_get(uint32_t bits)
{
    for (size_t i = 0; i < sizeof(books) / sizeof(books[0]); i++)
        if (books[i].bits == bits)
            return &books[i];
    return NULL;
}

void tq_codebook_edges(const tq_codebook *book, uint32_t h, int16_t *edges)
{
    for (uint32_t i = 0; i + 1 < book->n_levels; i++) {
        uint32_t sum = (uint32_t)(book->levels[i] + book->levels[i + 1]);
        edges[i] = (int16_t)(2 * ((sum * (h << book->frac) + 64) / 128));
    }
}

int tq_codebook_level(const tq_codebook *book, uint8_t code)
{
    if (book->bits == 8)
        return (int8_t)code;
    uint32_t top = 1u << (book->bits - 1);
    int level = book->levels[code & (top - 1)];
    return code & top ? -level : level;
}
