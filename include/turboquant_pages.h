/* SPDX-License-Identifier: MIT */
/* turboquant_pages.h — the pages of a sequence as bytes, to keep it in a file and to bring it back;
 * on top of turboquant.h, by the same rules.
 *
 *     out:  tq_page_ref p = {0};
 *           while (tq_cache_page_next(c, seq, &p) == TQ_OK && p.bytes > 0)
 *               tq_cache_page_export(c, seq, &p, buffer, p.bytes), and write buffer
 *     in:   tq_cache_seq_open, tq_cache_import_begin(c, seq, n_tokens), the same loop with
 *           tq_cache_import_page on the new sequence, then tq_cache_append_commit
 *
 * A prefix: fork the sequence at its length and export the fork. Which pages there are depends on
 * the length and the cache's layers alone: those that queries at the end or later may read. An
 * imported sequence is therefore reusable from its full length on (tq_cache_min_truncate).
 */
#ifndef TURBOQUANT_PAGES_H
#define TURBOQUANT_PAGES_H

#include "turboquant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A page of one layer in one form. The order: all PACKED pages by page, then layer; then the F16
 * ones, of layers with tail, sink or start. */
typedef struct tq_page_ref {
    tq_form form;
    uint32_t page, layer;
    uint32_t n_tokens; /* rows, from token page * 64 on */
    /* For each KV head the codes, scales and zero points of n_tokens keys, then of the values:
     * docs/format.md, chapter 3. */
    size_t bytes;
} tq_page_ref;

/* From a zeroed ref to the first page, then on; bytes 0: there is none left. Works on a committed
 * sequence and on one that is being imported. Errors: TQ_ERR_STATE (unknown sequence, append in
 * progress), TQ_ERR_ARG (a ref that is none). */
TQ_API tq_status tq_cache_page_next(const tq_cache *c, uint32_t seq, tq_page_ref *ref);

/* Write the ref->bytes bytes of a page to dst. Any thread, as for views. Errors: TQ_ERR_STATE
 * (unknown sequence, append in progress), TQ_ERR_ARG (not a ref that next gave), TQ_ERR_SIZE
 * (n_bytes is not ref->bytes). */
TQ_API tq_status tq_cache_page_export(const tq_cache *c, uint32_t seq, const tq_page_ref *ref,
                                      void *dst, size_t n_bytes);

/* begin: reserve the pages of n_tokens tokens in an empty sequence; any length within n_pages,
 * whatever max_append. page: give one, in the order of next. Then tq_cache_append_commit, which
 * refuses with TQ_ERR_STATE while pages are missing, or tq_cache_append_abort. The bytes are not
 * checked: any are decoded, so check them before. Errors: TQ_ERR_STATE (unknown sequence; begin:
 * not empty; page: no import), TQ_ERR_ARG (not the next ref), TQ_ERR_SIZE, TQ_ERR_FULL. */
TQ_API tq_status tq_cache_import_begin(tq_cache *c, uint32_t seq, uint32_t n_tokens);
TQ_API tq_status tq_cache_import_page(tq_cache *c, uint32_t seq, const tq_page_ref *ref,
                                      const void *src, size_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
