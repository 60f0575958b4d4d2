/* SPDX-License-Identifier: MIT */
/* bench_stored.c — does a token wait for the disk?
 *
 * Policy: a page goes to the writer when its last token is computed, so the token after it is the
 * one that could have to wait: it is computed while the page is written. Prompts of one page and
 * one token, each new to the store, give such tokens; their time begins when the page is complete,
 * and so holds what packing the page for the writer takes. Both sides do the same, one with a store
 * in memory alone, in an order that alternates; nothing waits for the writer until the round ends.
 * How often a file was finished while a token was being computed is counted, so that one knows
 * whether there was anything to wait for. Single latencies are kept, not their mean, since one
 * token that waits is what a reader sees.
 */
#include "bench_stored.h"

#include "bench.h"
#include "out.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct watch {
    tqe_prefix *store;
    double page_s, end_s; /* when the page was complete, and the token after it */
    uint64_t n_written;   /* when the page was */
    bool beside;
} watch;

static bool on_batch(void *ctx, size_t n_done, size_t n_total)
{
    watch *w = ctx;
    tqe_prefix_stats stats;
    if (n_done < n_total) {
        tqe_prefix_get_stats(w->store, &stats);
        w->n_written = stats.n_written;
        w->page_s = text_now();
    } else {
        w->end_s = text_now();
        tqe_prefix_get_stats(w->store, &stats);
        w->beside = stats.n_written > w->n_written;
    }
    return true;
}

/* The i-th prompt of a side's round. */
static tqe_status one_prompt(stored_bench *b, int side, size_t i, tqe_session *s, tqe_prefix *store,
                             uint32_t n_vocab, tqe_error *err)
{
    int32_t ids[STORED_PROMPT];
    watch w = {.store = store};
    for (uint32_t t = 0; t < STORED_PROMPT; t++) {
        ids[t] = (int32_t)(((i + 1) * 7919u + t * (2 * i + 31u)) % n_vocab);
    }
    tqe_status st = tqe_session_truncate(s, 0, err);
    double start = text_now();
    if (st == TQE_OK) {
        st = tqe_session_prompt(s, store, ids, STORED_PROMPT, on_batch, &w, NULL, err);
    }
    b->prompt_s[side][b->n_rounds] += text_now() - start;
    b->token_s[side][b->n_rounds * STORED_TOKENS + i] = w.end_s - w.page_s;
    b->n_beside += w.beside;
    return st;
}

static tqe_status one_side(stored_bench *b, int side, tqe_session *s, const char *folder,
                           uint32_t n_vocab, tqe_error *err)
{
    char salt[32];
    int n_salt = snprintf(salt, sizeof salt, "round %zu", b->n_rounds);
    tqe_prefix *store = NULL;
    tqe_prefix_stats all;
    const tqe_prefix_params params = {.dir = side ? folder : NULL,
                                      .salt = salt,
                                      .salt_bytes = (size_t)n_salt,
                                      .limit_bytes = UINT64_MAX >> 1};
    b->prompt_s[side][b->n_rounds] = 0;
    tqe_status st = tqe_prefix_create(&store, &params, err);
    for (size_t i = 0; st == TQE_OK && i < STORED_TOKENS; i++) {
        st = one_prompt(b, side, i, s, store, n_vocab, err);
    }
    if (st == TQE_OK) {
        tqe_prefix_flush(store);
        tqe_prefix_get_stats(store, &all);
        b->n_files += all.n_written;
        b->bytes += all.bytes_written;
        b->n_dropped += all.n_dropped;
        st = tqe_prefix_problem(store, err) ? TQE_ERR_IO : TQE_OK;
    }
    tqe_prefix_free(store);
    return st;
}

bool stored_round(stored_bench *b, tqe_session *s, const char *folder, uint32_t n_vocab)
{
    tqe_error err = {0};
    tqe_status st = TQE_OK;
    for (int i = 0; st == TQE_OK && i < 2; i++) {
        st = one_side(b, (i + (int)b->n_rounds) & 1, s, folder, n_vocab, &err);
    }
    b->n_rounds++;
    if (st != TQE_OK) {
        msg_error("%s", err.text);
    }
    return st == TQE_OK;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median, 99th percentile and most of the tokens of a side, in seconds. */
static void latency(const stored_bench *b, int side, double out[3])
{
    static double v[STORED_MAX_ROUNDS * STORED_TOKENS];
    size_t n = b->n_rounds * STORED_TOKENS;
    memcpy(v, b->token_s[side], n * sizeof *v);
    qsort(v, n, sizeof *v, by_size);
    out[0] = v[n / 2];
    out[1] = v[(n * 99 + 99) / 100 - 1];
    out[2] = v[n - 1];
}

void stored_report(const stored_bench *b)
{
    static const char *const names[] = {"a store in memory alone",
                                        "a store whose folder is written"};
    char size[32], head[64];
    snprintf(head, sizeof head, "a token after a page of %u", STORED_PROMPT - 1u);
    out_printf("\n%s%-34s%12s%10s%12s%12s%s\n", out_bold(), head, "prompt", "median", "99 of 100",
               "all", out_plain());
    for (int side = 0; side < 2; side++) {
        double l[3];
        latency(b, side, l);
        out_printf("%-34s%9.1f ms%10.2f%12.2f%9.2f ms\n", names[side],
                   1e3 * bench_median(b->prompt_s[side], b->n_rounds) / STORED_TOKENS, 1e3 * l[0],
                   1e3 * l[1], 1e3 * l[2]);
    }
    out_printf("99 of 100, and all %zu tokens, took no more than that; prompt: page and token\n",
               b->n_rounds * STORED_TOKENS);
    out_printf("written: %llu files, %s; %llu of them beside a token; dropped: %llu\n",
               (unsigned long long)b->n_files, text_size(size, b->bytes),
               (unsigned long long)b->n_beside, (unsigned long long)b->n_dropped);
}
