/* SPDX-License-Identifier: MIT */
/* conversation.c — the messages of a chat and the tokens that stand for them in a session.
 *
 * The hard idea is what to evaluate for a new turn. The template turns all messages into one text.
 * When that text begins with what is already in the session (the former prompt and the answer as
 * it was generated), only the rest is tokenised and evaluated, so the model goes on from its own
 * tokens, which a new tokenisation of its text may not give back. When the template rewrote the
 * past (some trim answers or drop reasoning), the whole text is tokenised and the session is cut
 * back to the longest common prefix. Either way what the session holds is exactly a prefix of
 * `tokens`, and the closing token of an answer, which the model chose but nobody evaluated, comes
 * from the template.
 *
 * The logits from which an answer starts are kept. To retry, the session is cut back to the end of
 * the prompt and the answer starts from them again: evaluating the prompt's last token once more,
 * alone, would round differently, and a close choice between two tokens could turn out otherwise.
 *
 * With a store, every prompt is kept in memory beside the session, which shares its pages: one that
 * cannot be reached by cutting the session back (rows of windows and of tail= are gone, or the
 * conversation was forgotten) is still not computed again.
 */
#define _POSIX_C_SOURCE 200809L
#include "conversation.h"

#include "out.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add_message(conversation *c, const char *role, const char *content, size_t n)
{
    if (c->n_msgs == c->cap_msgs) {
        size_t cap = c->cap_msgs ? c->cap_msgs * 2 : 16;
        tqe_chat_message *grown = realloc(c->msgs, cap * sizeof *grown);
        if (!grown) {
            msg_error("not enough memory for the conversation");
            return false;
        }
        c->msgs = grown;
        c->cap_msgs = cap;
    }
    char *copy = malloc(n + 1);
    if (!copy) {
        msg_error("not enough memory for the conversation");
        return false;
    }
    if (n) {
        memcpy(copy, content, n);
    }
    copy[n] = '\0';
    c->msgs[c->n_msgs++] = (tqe_chat_message){.role = role, .content = copy};
    return true;
}

static void drop_message(conversation *c)
{
    free((char *)c->msgs[--c->n_msgs].content);
}

/* Forget that `text` spells the session's tokens. */
static void forget_text(conversation *c)
{
    free(c->text);
    c->text = NULL;
    c->text_bytes = 0;
    c->n_before_answer = c->bytes_before_answer = 0;
}

bool conversation_init(conversation *c, const tqe_model *m, tqe_session *s, tqe_prefix *store,
                       const char *tmpl, const char *system)
{
    *c = (conversation){.model = m, .session = s, .store = store, .tmpl = tmpl};
    if (system && !add_message(c, "system", system, strlen(system))) {
        return false;
    }
    /* A template that cannot be used is found now, not after the first question was typed. */
    tqe_chat_message probe[] = {{.role = "user", .content = "?"}};
    tqe_error err = {0};
    char *text = NULL;
    if (tqe_chat_format(m, tmpl, probe, 1, true, &text, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    free(text);
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    c->logits = malloc(info.n_vocab * sizeof *c->logits);
    if (!c->logits) {
        msg_error("not enough memory for the conversation");
    }
    return c->logits != NULL;
}

void conversation_deinit(conversation *c)
{
    while (c->n_msgs) {
        drop_message(c);
    }
    free(c->msgs);
    free(c->tokens.at);
    free(c->logits);
    forget_text(c);
}

bool conversation_reset(conversation *c)
{
    tqe_error err = {0};
    if (tqe_session_truncate(c->session, 0, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    size_t keep = c->n_msgs && !strcmp(c->msgs[0].role, "system") ? 1 : 0;
    while (c->n_msgs > keep) {
        drop_message(c);
    }
    c->tokens.n = 0;
    forget_text(c);
    return true;
}

/* The conversation needs n tokens, or at least so many, which leave no room for an answer. */
static gen_stop too_long(const conversation *c, bool at_least, size_t n)
{
    tqe_session_info info;
    tqe_session_get_info(c->session, &info);
    const char *about = at_least ? "at least " : "";
    char room[64] = "";
    if (at_least) {
        snprintf(room, sizeof room, ", -c N sets a larger one");
    } else if (n < TQE_MAX_CTX) {
        snprintf(room, sizeof room, ", -c %zu or more makes room", n + 1);
    }
    msg_error("the conversation would take %s%zu tokens and leave no room for an answer in a "
              "context of %u; /reset starts anew%s",
              about, n, info.n_ctx, room);
    return GEN_STOP_CONTEXT;
}

/* Tokens of the conversation whose text is `full`, in *want. */
static gen_stop target_tokens(const conversation *c, const char *full, gen_tokens *want)
{
    tqe_error err = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0, n = strlen(full);
    bool grows = c->text && n >= c->text_bytes && !memcmp(full, c->text, c->text_bytes);
    size_t from = grows ? c->text_bytes : 0;
    tqe_session_info info;
    tqe_session_get_info(c->session, &info);
    /* Tokenising takes long for a text that is far too large. */
    if (n - from > GEN_SMALL_TEXT) {
        size_t least = tqe_min_tokens(c->model, full + from, n - from, true);
        least += grows ? c->tokens.n : 0;
        if (least >= info.n_ctx) {
            return too_long(c, true, least);
        }
    }
    if (tqe_tokenize(c->model, full + from, n - from, !grows, true, &ids, &n_ids, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return GEN_STOP_ERROR;
    }
    bool ok = (!grows || gen_tokens_add(want, c->tokens.at, c->tokens.n)) &&
              gen_tokens_add(want, ids, n_ids);
    free(ids);
    return ok ? GEN_STOP_END : GEN_STOP_ERROR;
}

/* Make the session hold exactly `want`. */
static gen_stop bring_session_to(conversation *c, const gen_tokens *want, gen_stats *stats)
{
    tqe_error err = {0};
    tqe_session_info info;
    tqe_session_get_info(c->session, &info);
    if (want->n >= info.n_ctx) {
        return too_long(c, false, want->n);
    }
    if (c->store) {
        return gen_prompt_stored(c->session, c->store, want->at, want->n, stats);
    }
    size_t common = 0, len = tqe_session_len(c->session);
    while (common < len && common < want->n && c->tokens.at[common] == want->at[common]) {
        common++;
    }
    if (common == want->n && common > 0) {
        common--; /* the logits of the last token are needed again */
    }
    if (common < tqe_session_min_truncate(c->session) && common < len) {
        common = 0; /* what the next token would read there is gone */
    }
    if (tqe_session_truncate(c->session, common, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return GEN_STOP_ERROR;
    }
    return gen_prompt(c->session, want->at + common, want->n - common, stats);
}

/* Evaluate up to the opening of the answer to the last message; on errors that goes. */
static gen_stop take_in(conversation *c, gen_stats *stats)
{
    tqe_error err = {0};
    char *full = NULL;
    gen_tokens want = {0};
    gen_stop stop = GEN_STOP_ERROR;
    if (tqe_chat_format(c->model, c->tmpl, c->msgs, c->n_msgs, true, &full, &err) != TQE_OK) {
        msg_error("%s", err.text);
    } else if ((stop = target_tokens(c, full, &want)) == GEN_STOP_END) {
        stop = bring_session_to(c, &want, stats);
    }
    if (stop == GEN_STOP_END) {
        free(c->tokens.at);
        c->tokens = want;
        forget_text(c);
        c->text = full;
        c->text_bytes = strlen(full);
        c->n_before_answer = c->tokens.n;
        c->bytes_before_answer = c->text_bytes;
        if (c->n_before_answer > 0) {
            tqe_model_info info;
            tqe_model_get_info(c->model, &info);
            memcpy(c->logits, tqe_session_logits(c->session), info.n_vocab * sizeof *c->logits);
        }
        return stop;
    }
    /* The session may hold a part of the new tokens: cut it back to what `tokens` describes. */
    size_t keep = 0, len = tqe_session_len(c->session);
    while (keep < len && keep < c->tokens.n && keep < want.n &&
           c->tokens.at[keep] == want.at[keep]) {
        keep++;
    }
    if (keep < tqe_session_min_truncate(c->session)) {
        keep = 0;
    }
    if (stop != GEN_STOP_CONTEXT && keep < len &&
        tqe_session_truncate(c->session, keep, &err) != TQE_OK) {
        msg_error("%s", err.text);
    }
    drop_message(c);
    free(full);
    free(want.at);
    return stop;
}

gen_stop conversation_ask(conversation *c, const char *text, gen_stats *stats)
{
    return add_message(c, "user", text, strlen(text)) ? take_in(c, stats) : GEN_STOP_ERROR;
}

bool conversation_has_answer(const conversation *c)
{
    return c->n_msgs > 1 && !strcmp(c->msgs[c->n_msgs - 1].role, "assistant");
}

gen_stop conversation_retry(conversation *c, gen_stats *stats)
{
    drop_message(c);
    if (c->text && c->n_before_answer > 0) {
        /* The very tokens of the first time. The session holds more, up to what the cut finds. */
        c->tokens.n = c->n_before_answer;
        c->text_bytes = c->bytes_before_answer;
        c->text[c->text_bytes] = '\0';
        size_t len = tqe_session_len(c->session);
        if (c->tokens.n == len ||
            (c->tokens.n < len && c->tokens.n >= tqe_session_min_truncate(c->session))) {
            tqe_error err = {0};
            if (tqe_session_truncate(c->session, c->tokens.n, &err) == TQE_OK) {
                return GEN_STOP_END; /* c->logits are those of the first time */
            }
            msg_error("%s", err.text);
            return GEN_STOP_ERROR;
        }
    }
    return take_in(c, stats);
}

void conversation_back(conversation *c)
{
    drop_message(c);
    drop_message(c);
    forget_text(c);
}

/* Passes text on and keeps it. */
typedef struct keeper {
    conversation *c;
    gen_sink *sink;
    void *ctx;
    size_t start; /* where the answer begins in c->text */
} keeper;

static bool keep_text(void *ctx, const char *text, size_t n)
{
    keeper *k = ctx;
    conversation *c = k->c;
    char *grown = realloc(c->text, c->text_bytes + n + 1);
    if (!grown) {
        msg_error("not enough memory for the answer");
        return false;
    }
    c->text = grown;
    if (n) {
        memcpy(c->text + c->text_bytes, text, n);
    }
    c->text_bytes += n;
    c->text[c->text_bytes] = '\0';
    return k->sink(k->ctx, text, n);
}

gen_stop conversation_answer(conversation *c, tqe_sampler *sampler, size_t limit, gen_sink *sink,
                             void *ctx, gen_stats *stats)
{
    keeper k = {.c = c, .sink = sink, .ctx = ctx, .start = c->text_bytes};
    gen_stop stop = gen_answer(c->session, c->model, c->n_before_answer > 0 ? c->logits : NULL,
                               sampler, limit, keep_text, &k, &c->tokens, stats);
    if (!add_message(c, "assistant", c->text + k.start, c->text_bytes - k.start)) {
        return GEN_STOP_ERROR;
    }
    return stop;
}
