/* SPDX-License-Identifier: MIT */
/* conversation.h — the messages of a chat and the tokens that stand for them in a session. */
#ifndef TQ_APP_CONVERSATION_H
#define TQ_APP_CONVERSATION_H

#include "generate.h"

typedef struct conversation {
    const tqe_model *model;
    tqe_session *session;
    const char *tmpl;       /* built-in template, NULL: the model's */
    tqe_chat_message *msgs; /* owned, with their contents */
    size_t n_msgs, cap_msgs;
    gen_tokens tokens; /* of the whole conversation; the session holds a prefix of them */
    char *text;        /* what `tokens` spell, up to the last answer */
    size_t text_bytes;
    size_t n_before_answer, bytes_before_answer; /* of both, without the last answer; 0: unknown */
    float *logits;                               /* [n_vocab], from which that answer starts */
    tqe_prefix *store;                           /* where prompts are kept, not owned; or NULL */
} conversation;

/* Start with the system prompt or NULL; store: NULL, or where to keep prompts and look for them.
 * False: a message was written. */
bool conversation_init(conversation *c, const tqe_model *m, tqe_session *s, tqe_prefix *store,
                       const char *tmpl, const char *system);
void conversation_deinit(conversation *c);
/* Back to the system prompt; the session is emptied. */
bool conversation_reset(conversation *c);

/* Add the user's message and evaluate what the session lacks of the conversation up to the opening
 * of the answer. Returns GEN_STOP_END when an answer can follow; GEN_STOP_CONTEXT when it does not
 * fit (a message was written), GEN_STOP_INTERRUPTED or GEN_STOP_ERROR: the user's message was
 * taken back. */
gen_stop conversation_ask(conversation *c, const char *text, gen_stats *stats);

/* Is there an answer to the last question? */
bool conversation_has_answer(const conversation *c);
/* Forget the last answer and be ready for another one, as after conversation_ask; errors as there:
 * the question goes, too. The conversation has an answer. */
gen_stop conversation_retry(conversation *c, gen_stats *stats);
/* Forget the last question and its answer. The conversation has an answer. */
void conversation_back(conversation *c);

/* Produce the answer and keep it as the assistant's message. */
gen_stop conversation_answer(conversation *c, tqe_sampler *sampler, size_t limit, gen_sink *sink,
                             void *ctx, gen_stats *stats);

#endif
