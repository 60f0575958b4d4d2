/* SPDX-License-Identifier: MIT */
/* cache_keep.c — which pages of a sequence may go, and what that costs.
 *
 * Owns the two rules that everything else follows: from a query position, the pages that this
 * query and later ones may read (tq_keep_from); and from the pages that are left, the lowest
 * position whose queries find all that they read (tq_held_min_query).
 *
 * The one hard idea: the query at position p sees token t if p - t < window, and reads it in f16 if
 * t < sink, p - t < tail or p < start. All of it but the sinks moves forward with p, so what a kind
 * keeps is two runs of pages: the sinks, and everything from some page on.
 */
#include "cache_priv.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Pages that end at or before the first token that is less than `reach` away from query. */
static uint64_t pages_behind(uint32_t query, uint32_t reach)
{
    const uint64_t next = (uint64_t)query + 1;
    return next > reach ? (next - reach) / TQ_PAGE_TOKENS : 0;
}

tq_held tq_keep_from(const tq_keep *k, uint32_t end, uint32_t query)
{
    tq_held all = {.end = end};
    const uint64_t unseen = k->window ? pages_behind(query, k->window) : 0;
    uint64_t head = 0, first = unseen;
    if (k->is_f16) {
        if (query < k->start)
            return all;
        first = k->tail ? pages_behind(query, k->tail) : end;
        first = first > unseen ? first : unseen;
        head = tq_pages_for(k->sink);
        if (unseen >= head)
            head = 0; /* the window has passed the sinks */
    }
    first = least(first, end);
    if (first <= head)
        return all;
    return (tq_held){(uint32_t)head, (uint32_t)first, end};
}

uint32_t tq_held_min_query(const tq_keep *k, const tq_held *h)
{
    if (h->first <= h->head)
        return 0;
    /* Tokens below `kept` and not in the head are gone. */
    const uint64_t kept = (uint64_t)h->first * TQ_PAGE_TOKENS;
    const uint64_t unseen = k->window ? kept + k->window - 1 : UINT64_MAX;
    if (!k->is_f16)
        return (uint32_t)unseen;
    uint64_t unread = k->tail ? kept + k->tail - 1 : 0;
    unread = unread > k->start ? unread : k->start;
    const uint64_t sinks = (uint64_t)tq_pages_for(k->sink) * TQ_PAGE_TOKENS;
    if (h->head * TQ_PAGE_TOKENS < sinks && unread < sinks + k->window - 1)
        unread = sinks + k->window - 1; /* only a window makes them go */
    return (uint32_t)least(unread, unseen);
}
