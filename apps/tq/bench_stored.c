/* SPDX-License-Identifier: MIT */
/* bench_stored.c — does a token wait for the disk?
 *
 * Policy: both sides compute the same prompt in the same batches, one with a store in memory alone
 * and one with a folder, in an order that alternates. A salt of its own makes each prompt new to
 * the folder. Tokens are decoded at once after the prompt, while its last pages are still being
 * written; nothing waits for the writer until they are all there. Single latencies are kept, not
 * their mean, since one token that waits is what a reader sees.
 */
#include "bench_stored.h"

#include "bench.h"
#include "out.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tqe_status decode(stored_bench *b, int side, tqe_session *s, const int32_t *ids,
                         tqe_error *err)
{
    double *seconds = &b->token_s[side][b->n_rounds * STORED_TOKENS];
    tqe_status st = TQE_OK;
    for (size_t i = 0; st == TQE_OK && i < STORED_TOKENS; i++) {
        double start = text_now();
        st = tqe_session_eval(s, &ids[i % b->n_prompt], 1, NULL, NULL, NULL, err);
        seconds[i] = text_now() - start;
    }
    return st;
}

static tqe_status one_side(stored_bench *b, int side, tqe_session *s, const char *folder,
                           const int32_t *ids, tqe_error *err)
{
    char salt[32];
    int n_salt = snprintf(salt, sizeof salt, "round %zu", b->n_rounds);
    tqe_prefix *store = NULL;
    tqe_prefix_stats before = {0}, after;
    const tqe_prefix_params params = {.dir = side ? folder : NULL,
                                      .salt = salt,
                                      .salt_bytes = (size_t)n_salt,
                                      .limit_bytes = UINT64_MAX >> 1};
    tqe_status st = tqe_prefix_create(&store, &params, err);
    if (st == TQE_OK) {
        st = tqe_session_truncate(s, 0, err);
    }
    if (st == TQE_OK) {
        double start = text_now();
        st = tqe_session_prompt(s, store, ids, b->n_prompt, NULL, NULL, NULL, err);
        b->prompt_s[side][b->n_rounds] = text_now() - start;
    }
    if (st == TQE_OK) {
        tqe_prefix_get_stats(store, &before);
        st = decode(b, side, s, ids, err);
    }
    if (st == TQE_OK) {
        tqe_prefix_flush(store);
        tqe_prefix_get_stats(store, &after);
        b->n_files += after.n_written;
        b->n_late += after.n_written - before.n_written;
        b->bytes += after.bytes_written;
        b->n_dropped += after.n_dropped;
        st = tqe_prefix_problem(store, err) ? TQE_ERR_IO : TQE_OK;
    }
    tqe_prefix_free(store);
    return st;
}

bool stored_round(stored_bench *b, tqe_session *s, const char *folder, const int32_t *ids, size_t n)
{
    tqe_error err = {0};
    tqe_status st = TQE_OK;
    b->n_prompt = n < STORED_PROMPT ? n : STORED_PROMPT;
    for (int i = 0; st == TQE_OK && i < 2; i++) {
        st = one_side(b, (i + (int)b->n_rounds) & 1, s, folder, ids, &err);
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

void stored_latency(const stored_bench *b, int side, double out[3])
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
    static const char *const names[] = {"without a store on the disk", "with one that writes"};
    char size[32], count[32], head[64];
    snprintf(head, sizeof head, "a prompt of %s tokens, then", text_count(count, b->n_prompt));
    out_printf("\n%s%-34s%12s%10s%12s%12s%s\n", out_bold(), head, "prompt", "a token", "99 of 100",
               "all", out_plain());
    for (int side = 0; side < 2; side++) {
        double l[3];
        stored_latency(b, side, l);
        out_printf("%-34s%9.1f ms%10.2f%12.2f%9.2f ms\n", names[side],
                   1e3 * bench_median(b->prompt_s[side], b->n_rounds), 1e3 * l[0], 1e3 * l[1],
                   1e3 * l[2]);
    }
    out_printf("a token: median; 99 of 100 and all %zu tokens took no more than that\n",
               b->n_rounds * STORED_TOKENS);
    out_printf(
        "written behind them: %llu files, %s, of which %llu after the prompt; dropped: %llu\n",
        (unsigned long long)b->n_files, text_size(size, b->bytes), (unsigned long long)b->n_late,
        (unsigned long long)b->n_dropped);
}
