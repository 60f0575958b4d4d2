/* SPDX-License-Identifier: MIT */
/* tables.h — constants that are part of the stored format. See tables.c for their source. */
#ifndef TQ_TABLES_H
#define TQ_TABLES_H

#include <stddef.h>
#include <stdint.h>

/* One Lloyd-Max quantiser of the unit normal: a value belongs to the cell whose number is the
 * count of boundaries strictly below it. */
typedef struct tq_lloyd_table {
    uint32_t bits;
    const float *centroid; /* [1 << bits], ascending */
    const float *boundary; /* [(1 << bits) - 1], strictly ascending */
} tq_lloyd_table;

/* bits 2, 3, 4, 5 or 8; NULL for others. Static storage. */
const tq_lloyd_table *tq_lloyd_get(uint32_t bits);

/* [dim] values +1 or -1 for each dim that tq_hadamard_takes; NULL for others. Static storage. */
const float *tq_sign_table(uint32_t dim);

/* The same from the generator, docs/format.md 5.1, under key (0, key); the table has key 42.
 * sign [dim], dim even. */
void tq_sign_generate(float *sign, uint32_t dim, uint32_t key);

#endif
