/* SPDX-License-Identifier: MIT */
/* generate.c — evaluate a prompt, produce an answer, count and time both.
 *
 * Policy: the last token of an answer is never evaluated, because nothing reads its logits; so a
 * context of N tokens yields an answer that ends with token N + 1, and an answer of n tokens costs
 * n - 1 steps. Rates count evaluated tokens over the time of evaluation and sampling, not the
 * time that a slow reader of stdout takes.
 */
#define _POSIX_C_SOURCE 200809L
#include "generate.h"

#include "eta.h"
#include "out.h"
#include "text.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Ctrl-C ------------------------------------------------------------------------------ */

static volatile sig_atomic_t interrupted; /* the signal */

static void on_interrupt(int sig)
{
    interrupted = sig;
}

void gen_catch_interrupts(bool one_shot)
{
    /* No SA_RESTART: a blocking read of the next line must return. */
    struct sigaction sa = {.sa_handler = on_interrupt,
                           .sa_flags = one_shot ? (int)SA_RESETHAND : 0};
    sigaction(SIGINT, &sa, NULL);
    if (one_shot) {
        struct sigaction old;
        sigaction(SIGTERM, &sa, NULL);
        if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN) { /* not under nohup */
            sigaction(SIGHUP, &sa, NULL);
        }
    }
}

bool gen_interrupted(void)
{
    return interrupted != 0;
}

int gen_interrupt_code(void)
{
    return 128 + interrupted;
}

void gen_clear_interrupt(void)
{
    interrupted = 0;
}

/* ---- Tokens ------------------------------------------------------------------------------ */

bool gen_tokens_add(gen_tokens *t, const int32_t *ids, size_t n)
{
    if (t->n + n > t->cap) {
        size_t cap = t->cap ? t->cap : 256;
        while (cap < t->n + n) {
            cap *= 2;
        }
        int32_t *at = realloc(t->at, cap * sizeof *at);
        if (!at) {
            msg_error("not enough memory for %zu tokens", cap);
            return false;
        }
        t->at = at;
        t->cap = cap;
    }
    if (n) {
        memcpy(t->at + t->n, ids, n * sizeof *ids);
        t->n += n;
    }
    return true;
}

/* ---- Prompt ------------------------------------------------------------------------------ */

typedef struct progress {
    eta eta;
    double start, shown; /* seconds */
    bool on_line;        /* the terminal's last line is ours */
} progress;

/* A terminal gets one line that is rewritten, a log a line every ten seconds. */
static bool show_progress(void *ctx, size_t n_done, size_t n_total)
{
    progress *p = ctx;
    double now = text_now(), elapsed = now - p->start;
    bool tty = err_is_tty();
    eta_report(&p->eta, n_done, elapsed);
    if (n_done > 0 && n_done < n_total && now - p->shown >= (tty ? 0.2 : 10.0) &&
        elapsed >= (tty ? 0.5 : 10.0)) {
        double tps = (double)n_done / elapsed;
        char left[32], line[160];
        text_time(left, eta_left(&p->eta, n_total));
        snprintf(line, sizeof line, "prompt: %zu of %zu tokens, %.0f %%, %.0f tokens/s, %s left",
                 n_done, n_total, 100.0 * (double)n_done / (double)n_total, tps, left);
        if (tty) {
            msg_status(line);
        } else {
            msg_note("%s", line);
        }
        p->shown = now;
        p->on_line = tty;
    }
    return !interrupted;
}

void gen_warn_store(tqe_prefix *store)
{
    tqe_error err;
    if (tqe_prefix_problem(store, &err)) {
        msg_warn("%s", err.text);
    }
}

/* store NULL: append ids. */
static gen_stop evaluate(tqe_session *s, tqe_prefix *store, const int32_t *ids, size_t n,
                         gen_stats *stats)
{
    if (n == 0) {
        return GEN_STOP_END;
    }
    tqe_error err = {0};
    double start = text_now();
    progress p = {.start = start, .shown = start};
    size_t before = tqe_session_len(s), reused = 0;
    tqe_status st = TQE_OK;
    if (store) {
        st = tqe_session_prompt(s, store, ids, n, show_progress, &p, &reused, &err);
        before = reused;
        stats->n_reused += reused;
    } else {
        st = tqe_session_eval(s, ids, n, NULL, show_progress, &p, &err);
    }
    stats->prompt_s += text_now() - start;
    stats->n_prompt += tqe_session_len(s) - before;
    if (p.on_line) {
        msg_status(NULL);
    }
    if (store) {
        gen_warn_store(store);
    }
    if (st == TQE_ERR_CANCELLED) {
        return GEN_STOP_INTERRUPTED;
    }
    if (st != TQE_OK) {
        msg_error("%s", err.text);
        return GEN_STOP_ERROR;
    }
    return interrupted ? GEN_STOP_INTERRUPTED : GEN_STOP_END;
}

gen_stop gen_prompt(tqe_session *s, const int32_t *ids, size_t n, gen_stats *stats)
{
    return evaluate(s, NULL, ids, n, stats);
}

gen_stop gen_prompt_stored(tqe_session *s, tqe_prefix *store, const int32_t *ids, size_t n,
                           gen_stats *stats)
{
    return evaluate(s, store, ids, n, stats);
}

/* ---- Answer ------------------------------------------------------------------------------ */

/* Choose the next token. The time that a rejected or final choice takes is not counted. */
static bool choose(const float *logits, tqe_sampler *sampler, int32_t *id)
{
    tqe_error err = {0};
    if (tqe_sampler_next(sampler, logits, id, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    return true;
}

static bool evaluate_one(tqe_session *s, int32_t id)
{
    tqe_error err = {0};
    if (tqe_session_eval(s, &id, 1, NULL, NULL, NULL, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    return true;
}

gen_stop gen_answer(tqe_session *s, const tqe_model *m, const float *first, tqe_sampler *sampler,
                    size_t limit, gen_sink *sink, void *ctx, gen_tokens *record, gen_stats *stats)
{
    tqe_session_info info;
    tqe_session_get_info(s, &info);
    tqe_text_stream stream = {0};
    char piece[TQE_PIECE_BYTES];
    gen_stop stop = GEN_STOP_LIMIT;
    for (size_t n = 0; n < limit; n++) {
        if (interrupted) {
            stop = GEN_STOP_INTERRUPTED;
            break;
        }
        int32_t id;
        double start = text_now();
        if (!choose(n == 0 && first ? first : tqe_session_logits(s), sampler, &id)) {
            return GEN_STOP_ERROR;
        }
        double choose_s = text_now() - start;
        if (tqe_token_is_end(m, id)) {
            stop = GEN_STOP_END;
            break;
        }
        /* The text goes out before the token is evaluated: a reader sees it one step earlier. */
        stats->n_generated++;
        size_t bytes = tqe_text_push(&stream, m, id, piece, sizeof piece);
        if (!sink(ctx, piece, bytes)) {
            return GEN_STOP_OUTPUT;
        }
        if (record && !gen_tokens_add(record, &id, 1)) {
            return GEN_STOP_ERROR;
        }
        if (tqe_session_len(s) == info.n_ctx) {
            stop = GEN_STOP_CONTEXT;
            break;
        }
        if (n + 1 < limit) {
            start = text_now();
            if (!evaluate_one(s, id)) {
                return GEN_STOP_ERROR;
            }
            stats->n_decoded++;
            stats->decode_s += choose_s + text_now() - start;
        }
    }
    size_t bytes = tqe_text_finish(&stream, piece, sizeof piece);
    return sink(ctx, piece, bytes) ? stop : GEN_STOP_OUTPUT;
}

/* ---- Report ------------------------------------------------------------------------------ */

const char *gen_stop_text(gen_stop stop)
{
    switch (stop) {
    case GEN_STOP_END:
        return "end of text";
    case GEN_STOP_LIMIT:
        return "-n reached";
    case GEN_STOP_CONTEXT:
        return "context full";
    case GEN_STOP_INTERRUPTED:
        return "interrupted";
    case GEN_STOP_OUTPUT:
        return "output closed";
    case GEN_STOP_ERROR:
        break;
    }
    return "error";
}

const char *gen_stop_name(gen_stop stop)
{
    switch (stop) {
    case GEN_STOP_END:
        return "end";
    case GEN_STOP_LIMIT:
        return "limit";
    case GEN_STOP_CONTEXT:
        return "context";
    case GEN_STOP_INTERRUPTED:
        return "interrupted";
    case GEN_STOP_OUTPUT:
        return "output";
    case GEN_STOP_ERROR:
        break;
    }
    return "error";
}

static void report_row(const char *what, size_t n, size_t n_timed, double seconds, const char *tail)
{
    char rate[48] = "";
    if (n_timed && seconds > 0) {
        snprintf(rate, sizeof rate, "%8.2f s %10.1f tokens/s", seconds, (double)n_timed / seconds);
    }
    if (*tail) {
        msg_note("%-9s%7zu tokens %31s   %s", what, n, rate, tail);
    } else {
        msg_note("%-9s%7zu tokens%s%s", what, n, *rate ? " " : "", rate);
    }
}

void gen_report(const tqe_session *s, const gen_stats *stats, gen_stop stop)
{
    tqe_session_info info;
    tqe_session_get_info(s, &info);
    char used[32], f16[32];
    text_size(used, info.kv_bytes_used);
    text_size(f16, info.n_tokens * info.f16_bytes_per_token);
    if (stats->n_reused) {
        report_row("reused", stats->n_reused, 0, 0,
                   stats->reused ? stats->reused : "from the prefix store");
    }
    report_row("prompt", stats->n_prompt, stats->n_prompt, stats->prompt_s, "");
    report_row("answer", stats->n_generated, stats->n_decoded, stats->decode_s,
               gen_stop_text(stop));
    msg_note("%-9s%7u tokens %10s   %s", "KV cache", info.n_tokens, used, info.kv);
    const size_t f16_bytes = info.n_tokens * info.f16_bytes_per_token;
    if (info.kv_bytes_used != f16_bytes && info.kv_bytes_used > 0) {
        msg_note("%-9s%14s %10s   %.2f times as much", "  in f16", "", f16,
                 (double)f16_bytes / (double)info.kv_bytes_used);
    }
}
