/* SPDX-License-Identifier: MIT */
/* generate.h — evaluate a prompt, produce an answer, count and time both; used by run and chat. */
#ifndef TQ_APP_GENERATE_H
#define TQ_APP_GENERATE_H

#include "engine.h"
#include "snapshot.h"

typedef enum gen_stop {
    GEN_STOP_END,         /* the model ended its text */
    GEN_STOP_LIMIT,       /* as many tokens as asked for */
    GEN_STOP_CONTEXT,     /* the context is full */
    GEN_STOP_INTERRUPTED, /* Ctrl-C */
    GEN_STOP_OUTPUT,      /* the sink refused the text */
    GEN_STOP_ERROR        /* a message was written */
} gen_stop;

typedef struct gen_stats {
    size_t n_prompt;    /* tokens evaluated as prompt */
    size_t n_reused;    /* tokens of it that were there already, beside those */
    const char *reused; /* where they were, for people; NULL: in a prefix store */
    size_t n_generated; /* tokens produced */
    size_t n_decoded;   /* of these, tokens evaluated one by one */
    double prompt_s, decode_s;
} gen_stats;

/* Gets each piece of whole UTF-8 characters; false stops the generation. */
typedef bool gen_sink(void *ctx, const char *text, size_t n);

/* Growing list of token ids. Zero-initialise; free(at). */
typedef struct gen_tokens {
    int32_t *at;
    size_t n, cap;
} gen_tokens;
bool gen_tokens_add(gen_tokens *t, const int32_t *ids, size_t n);

/* Texts up to this size are tokenised to learn whether they fit; larger ones, where that takes
 * long, are first asked for the tokens they have at least. */
#define GEN_SMALL_TEXT ((size_t)65536)

/* Evaluate ids and append them, with a progress display on stderr when it takes long. Returns
 * GEN_STOP_END when done, else GEN_STOP_INTERRUPTED or GEN_STOP_ERROR. */
gen_stop gen_prompt(tqe_session *s, const int32_t *ids, size_t n, gen_stats *stats);
/* The same for a whole timeline, through a prefix store; what the store has to say goes to
 * stderr. */
gen_stop gen_prompt_stored(tqe_session *s, tqe_prefix *store, const int32_t *ids, size_t n,
                           gen_stats *stats);
/* A warning when the store has met a problem since the last call. */
void gen_warn_store(tqe_prefix *store);

/* Produce up to `limit` tokens after the evaluated prompt. first: the logits of its last token, of
 * another time, or NULL, those that the session has. All produced tokens are added to `record`
 * (NULL: no record); the session lacks at most the last of them. */
gen_stop gen_answer(tqe_session *s, const tqe_model *m, const float *first, tqe_sampler *sampler,
                    size_t limit, gen_sink *sink, void *ctx, gen_tokens *record, gen_stats *stats);

const char *gen_stop_text(gen_stop stop); /* "end of text": for people */
const char *gen_stop_name(gen_stop stop); /* "end": for programs */

/* The closing table on stderr. */
void gen_report(const tqe_session *s, const gen_stats *stats, gen_stop stop);

/* Ctrl-C. After gen_catch_interrupts the first SIGINT only sets a flag. In one_shot mode SIGTERM
 * and SIGHUP are the same, and a second one ends the program at once. */
void gen_catch_interrupts(bool one_shot);
bool gen_interrupted(void);
/* Exit code of a one_shot program that was interrupted: 130, 143 after SIGTERM, 129 after SIGHUP.
 */
int gen_interrupt_code(void);
void gen_clear_interrupt(void);

#endif
