/* SPDX-License-Identifier: MIT */
/* bench_stored.h — what a prefix store on the disk costs those who wait for tokens; a part of
 * `tq bench snapshot`. */
#ifndef TQ_APP_BENCH_STORED_H
#define TQ_APP_BENCH_STORED_H

#include "snapshot.h"

enum { STORED_PROMPT = 512, STORED_TOKENS = 32, STORED_MAX_ROUNDS = 100 };

/* Index 0: no store on the disk; 1: one that writes. */
typedef struct stored_bench {
    size_t n_prompt, n_rounds;
    double prompt_s[2][STORED_MAX_ROUNDS];
    double token_s[2][STORED_MAX_ROUNDS * STORED_TOKENS];
    uint64_t n_files, n_late, bytes, n_dropped; /* written; while tokens were decoded or later */
} stored_bench;

/* One round: the first tokens of ids [n], STORED_PROMPT at most, as a prompt that no store has,
 * then STORED_TOKENS tokens one by one; with a store in folder and without. s has room for both.
 * False: a message was written. */
bool stored_round(stored_bench *b, tqe_session *s, const char *folder, const int32_t *ids,
                  size_t n);
/* Median, 99th percentile and most of the tokens of a side, in seconds. */
void stored_latency(const stored_bench *b, int side, double out[3]);
void stored_report(const stored_bench *b);

#endif
