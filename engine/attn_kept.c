/* SPDX-License-Identifier: MIT */
/* attn_kept.c — prompts that stay in memory, to be continued again.
 *
 * A kept prompt is a fork: a second timeline in the same cache that shares the pages of the one it
 * was made from, so keeping costs no copy and no memory until the two part. The budget is the pages
 * that the cache has beyond the contexts; whoever needs a page and finds none has the prompt given
 * up that was not used for the longest time. Prompts are compared token by token: there is no hash
 * to collide. The scope holds the tenant's salt, so that no one continues from another one's
 * prompt.
 */
#include "attn_priv.h"

#include <stdlib.h>
#include <string.h>

static uint32_t common(const int32_t *a, uint32_t na, const int32_t *b, uint32_t nb)
{
    uint32_t n = 0;
    while (n < na && n < nb && a[n] == b[n]) {
        n++;
    }
    return n;
}

static void drop(tqe_attn *a, uint32_t i)
{
    (void)tq_cache_seq_close(a->cache, a->store->kept[i].seq);
    free(a->store->kept[i].tokens);
    a->store->kept[i] = a->store->kept[--a->store->n_kept];
}

bool tqe_kept_evict(tqe_attn *a)
{
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < a->store->n_kept; i++) {
        oldest = a->store->kept[i].last_use < a->store->kept[oldest].last_use ? i : oldest;
    }
    if (a->store->n_kept == 0) {
        return false;
    }
    drop(a, oldest);
    return true;
}

void tqe_kept_clear(tqe_attn *a)
{
    while (a->store->n_kept > 0) {
        drop(a, a->store->n_kept - 1);
    }
}

void tqe_kept_add(tqe_attn *a, const int32_t *tokens, uint32_t n, const uint8_t scope[TQE_ID_BYTES])
{
    /* One that this one continues is not needed any more. */
    for (uint32_t i = a->store->n_kept; i-- > 0;) {
        const tqe_kept *k = &a->store->kept[i];
        if (memcmp(k->scope, scope, TQE_ID_BYTES) == 0 && k->n_tokens <= n &&
            common(k->tokens, k->n_tokens, tokens, n) == k->n_tokens) {
            drop(a, i);
        }
    }
    if (a->geo.n_kept == 0 || (a->store->n_kept == TQE_MAX_KEPT && !tqe_kept_evict(a))) {
        return;
    }
    tqe_kept k = {
        .n_tokens = n, .tokens = malloc(n * sizeof(*tokens)), .last_use = ++a->store->clock};
    if (k.tokens == NULL) {
        return;
    }
    if (tq_cache_seq_fork(a->cache, a->seq, n, &k.seq) != TQ_OK) {
        free(k.tokens);
        return;
    }
    memcpy(k.tokens, tokens, n * sizeof(*tokens));
    memcpy(k.scope, scope, TQE_ID_BYTES);
    a->store->kept[a->store->n_kept++] = k;
}

uint32_t tqe_kept_find(const tqe_attn *a, const int32_t *ids, uint32_t n,
                       const uint8_t scope[TQE_ID_BYTES], uint32_t *i)
{
    uint32_t best = 0;
    for (uint32_t j = 0; j < a->store->n_kept; j++) {
        const tqe_kept *k = &a->store->kept[j];
        uint32_t least = UINT32_MAX;
        const uint32_t m =
            memcmp(k->scope, scope, TQE_ID_BYTES) == 0 ? common(k->tokens, k->n_tokens, ids, n) : 0;
        if (m > best && tq_cache_min_truncate(a->cache, k->seq, &least) == TQ_OK && m >= least) {
            best = m;
            *i = j;
        }
    }
    return best;
}

bool tqe_kept_resume(tqe_attn *a, uint32_t i, uint32_t n)
{
    uint32_t seq = 0;
    if (tq_cache_seq_fork(a->cache, a->store->kept[i].seq, n, &seq) != TQ_OK) {
        return false;
    }
    a->store->kept[i].last_use = ++a->store->clock;
    tqe_attn_become(a, seq);
    return true;
}
