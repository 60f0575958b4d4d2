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

/* [dim] values +1 or -1 for dim 64, 128, 256, 512; NULL for others. Static storage. */
const float *tq_sign_table(uint32_t dim);

#endif
