/* SPDX-License-Identifier: MIT */
/* bench_stored.h — what a prefix store on the disk costs those who wait for tokens; a part of
 * `tq bench snapshot`. */
#ifndef TQ_APP_BENCH_STORED_H
#define TQ_APP_BENCH_STORED_H

#include "snapshot.h"

/* A prompt of one page and a token more; prompts of a round. */
enum { STORED_PROMPT = 65, STORED_TOKENS = 10, STORED_MAX_ROUNDS = 100 };

/* Index 0: a store in memory alone; 1: one that writes. */
typedef struct stored_bench {
    size_t n_rounds;
    double prompt_s[2][STORED_MAX_ROUNDS];                /* of all prompts of the round */
    double token_s[2][STORED_MAX_ROUNDS * STORED_TOKENS]; /* from the end of the page on */
    uint64_t n_files, n_beside, bytes, n_dropped; /* written; finished while a token was computed */
} stored_bench;

/* One round of both sides. s has room for STORED_PROMPT tokens; n_vocab: of its model. False: a
 * message was written. */
bool stored_round(stored_bench *b, tqe_session *s, const char *folder, uint32_t n_vocab);
void stored_report(const stored_bench *b);

#endif
