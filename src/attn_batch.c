/* SPDX-License-Identifier: MIT */
/* attn_batch.c — attention of many sequences in one call.
 *
 * Only numbers: which item a part or a row of the batch belongs to. The work is that of the items'
 * own plans, so nothing that an item computes depends on its company; a thread that has finished a
 * short sequence goes on with a long one.
 */
#include "checked.h"
#include "turboquant_batch.h"

#define ALIGNMENT 64u

tq_status tq_attn_batch_init(tq_attn_batch *b, tq_attn_item *items, uint32_t n_items)
{
    if (!b || !items || n_items == 0)
        return TQ_ERR_ARG;
    for (uint32_t i = 0; i < n_items; i++)
        if (!items[i].plan || !items[i].view || !items[i].q || !items[i].out ||
            items[i].plan->n_parts == 0)
            return TQ_ERR_ARG;

    tq_attn_batch made = {.items = items, .n_items = n_items};
    for (uint32_t i = 0; i < n_items; i++) {
        const tq_attn_plan *p = items[i].plan;
        if (p->n_parts > UINT32_MAX - made.n_parts || p->n_rows > UINT32_MAX - made.n_rows)
            return TQ_ERR_OVERFLOW;
        items[i].first_part = made.n_parts;
        items[i].first_row = made.n_rows;
        items[i].partials_off = made.partials_bytes;
        made.n_parts += p->n_parts;
        made.n_rows += p->n_rows;
        if (tq_size_add(&made.partials_bytes, made.partials_bytes, p->partials_bytes) ||
            tq_size_align(&made.partials_bytes, made.partials_bytes, ALIGNMENT))
            return TQ_ERR_OVERFLOW;
        made.work_bytes = p->work_bytes > made.work_bytes ? p->work_bytes : made.work_bytes;
    }
    *b = made;
    return TQ_OK;
}

/* The item of a part, or of a row; the number is below the batch's. */
static const tq_attn_item *find_item(const tq_attn_batch *b, uint32_t number, int of_row)
{
    uint32_t lo = 0, hi = b->n_items; /* it is in [lo, hi) */
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        uint32_t first = of_row ? b->items[mid].first_row : b->items[mid].first_part;
        if (first <= number)
            lo = mid;
        else
            hi = mid;
    }
    return &b->items[lo];
}

tq_status tq_attn_batch_part(const tq_attn_batch *b, void *partials, void *work, uint32_t part)
{
    if (!b || !partials || part >= b->n_parts)
        return TQ_ERR_ARG;
    const tq_attn_item *item = find_item(b, part, 0);
    return tq_attn_part(item->plan, item->view, item->q, item->q_stride,
                        (uint8_t *)partials + item->partials_off, work, part - item->first_part);
}

tq_status tq_attn_batch_merge(const tq_attn_batch *b, const void *partials, void *work,
                              uint32_t row, uint32_t n)
{
    if (!b || !partials || row > b->n_rows || n > b->n_rows - row)
        return TQ_ERR_ARG;
    while (n > 0) {
        const tq_attn_item *item = find_item(b, row, 1);
        const uint32_t first = row - item->first_row, left = item->plan->n_rows - first;
        const uint32_t m = n < left ? n : left;
        tq_status st =
            tq_attn_merge(item->plan, item->view, item->out, item->out_stride,
                          (const uint8_t *)partials + item->partials_off, work, first, m);
        if (st != TQ_OK)
            return st;
        row += m;
        n -= m;
    }
    return TQ_OK;
}
