/* SPDX-License-Identifier: MIT */
/* turboquant_batch.h — attention of many sequences in one call, over plans and views of
 * turboquant.h; the same rules hold for memory, threads and errors.
 *
 *     for each sequence i:  tq_cache_view, tq_attn_plan_init, items[i] = {plan, view, q, out}
 *     tq_attn_batch_init(&b, items, n)
 *     in threads:           tq_attn_batch_part(&b, partials, work of the thread, 0 .. n_parts - 1)
 *     then in threads:      tq_attn_batch_merge(&b, partials, work of the thread, rows)
 */
#ifndef TURBOQUANT_BATCH_H
#define TURBOQUANT_BATCH_H

#include "turboquant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One sequence with its own plan and view: lengths, pages, q_len and masks may differ. The caller
 * fills in what is not private and keeps it, with all it points to, as long as the batch. */
typedef struct tq_attn_item {
    const tq_attn_plan *plan;
    const tq_view *view;
    const float *q; /* as for tq_attn_part */
    size_t q_stride;
    float *out; /* as for tq_attn_merge */
    size_t out_stride;
    uint32_t first_part, first_row; /* private */
    size_t partials_off;            /* private */
} tq_attn_item;

/* Parts and rows of all items, numbered through for any threads. Each result is bit-equal to that
 * of its item alone. */
typedef struct tq_attn_batch {
    const tq_attn_item *items;
    uint32_t n_items;
    uint32_t n_parts, n_rows;          /* over all items */
    size_t partials_bytes, work_bytes; /* as in a plan */
} tq_attn_batch;

/* items [n_items], n_items >= 1. Errors: TQ_ERR_ARG, TQ_ERR_OVERFLOW (too many parts or rows). */
TQ_API tq_status tq_attn_batch_init(tq_attn_batch *b, tq_attn_item *items, uint32_t n_items);

/* Phase 1, then phase 2 after every part, as tq_attn_part and tq_attn_merge; rows [row, row + n)
 * may belong to several items. */
TQ_API tq_status tq_attn_batch_part(const tq_attn_batch *b, void *partials, void *work,
                                    uint32_t part);
TQ_API tq_status tq_attn_batch_merge(const tq_attn_batch *b, const void *partials, void *work,
                                     uint32_t row, uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
