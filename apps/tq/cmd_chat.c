/* SPDX-License-Identifier: MIT */
/* cmd_chat.c — `tq chat`: a conversation at the terminal, or line by line from a pipe.
 *
 * Policy: answers go to stdout, everything else (prompt sign, notes, statistics) to stderr, so
 * that `tq chat < questions > answers` works. Ctrl-C stops the answer; at the prompt, twice in a
 * row leaves; when something was typed, Ctrl-C cancels that line.
 */
#define _POSIX_C_SOURCE 200809L
#include "args.h"
#include "commands.h"
#include "conversation.h"
#include "input.h"
#include "out.h"
#include "setup.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHAT_COMMANDS                                                                              \
    "  /help     this list\n"                                                                      \
    "  /retry    answer the last question again\n"                                                 \
    "  /back     take back the last question and its answer\n"                                     \
    "  /reset    forget the conversation, keep the system prompt\n"                                \
    "  /stats    tokens, speeds and cache size so far\n"                                           \
    "  /exit     leave (Ctrl-D does, too)\n"

typedef struct chat_options {
    setup setup;
    const char *system, *tmpl;
    uint32_t n_predict;
} chat_options;

static const gen_stats no_stats = {.reused = "kept in memory"};

typedef struct chat {
    conversation conv;
    tqe_sampler *sampler;
    size_t limit;
    gen_stats total;
    gen_stop last_stop;
    size_t n_refused; /* lines: of a pipe they are told of at the end */
} chat;

static bool show_text(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    return out_text(text, n) && out_flush();
}

/* One question and its answer; NULL: another answer to the last one. False: the program cannot go
 * on. */
static bool turn(chat *c, const char *question)
{
    gen_stats stats = {0};
    bool noted = true; /* a line of ours stands between the answer and the next question */
    gen_stop stop = question ? conversation_ask(&c->conv, question, &stats)
                             : conversation_retry(&c->conv, &stats);
    if (stop == GEN_STOP_END) {
        stop = conversation_answer(&c->conv, c->sampler, c->limit, show_text, NULL, &stats);
        /* The answer stands alone on its lines, whatever ended it. */
        if (stop == GEN_STOP_OUTPUT || !out_end_line() || !out_flush()) {
            return false;
        }
        if (stop == GEN_STOP_CONTEXT) {
            msg_note("(the context is full; /reset starts anew, -c N sets a larger one)");
        } else if (stop == GEN_STOP_INTERRUPTED) {
            msg_note("(interrupted)");
        } else if (stop == GEN_STOP_LIMIT) {
            msg_note("(stopped after %zu tokens, see -n)", c->limit);
        } else {
            noted = false;
        }
    } else if (stop == GEN_STOP_INTERRUPTED) {
        msg_note("(interrupted; the question was not taken in)");
    } else {
        c->n_refused++;
    }
    if (!noted && out_is_tty() && err_is_tty()) {
        msg_note("%s", ""); /* a line of air before the next question */
    }
    gen_clear_interrupt();
    c->last_stop = stop;
    c->total.n_prompt += stats.n_prompt;
    c->total.n_reused += stats.n_reused;
    c->total.n_generated += stats.n_generated;
    c->total.n_decoded += stats.n_decoded;
    c->total.prompt_s += stats.prompt_s;
    c->total.decode_s += stats.decode_s;
    return stop != GEN_STOP_ERROR;
}

typedef enum after { AFTER_GO_ON, AFTER_LEAVE, AFTER_FAIL } after;

/* A line that starts with a slash. */
static after command(chat *c, const char *line)
{
    static const char *const names[] = {"/help", "/retry", "/back", "/reset", "/stats", "/exit"};
    if (!strcmp(line, "/exit")) {
        return AFTER_LEAVE;
    }
    if (!strcmp(line, "/help")) {
        fputs(CHAT_COMMANDS "  A line that ends with \\ goes on with the next one.\n", stderr);
    } else if (!strcmp(line, "/stats")) {
        gen_report(c->conv.session, &c->total, c->last_stop);
    } else if (!strcmp(line, "/reset")) {
        if (!conversation_reset(&c->conv)) {
            return AFTER_FAIL;
        }
        c->total = no_stats;
        msg_note("(conversation forgotten)");
    } else if ((!strcmp(line, "/retry") || !strcmp(line, "/back")) &&
               !conversation_has_answer(&c->conv)) {
        c->n_refused++;
        msg_note("(there is no answer yet)");
    } else if (!strcmp(line, "/retry")) {
        return turn(c, NULL) ? AFTER_GO_ON : AFTER_FAIL;
    } else if (!strcmp(line, "/back")) {
        conversation_back(&c->conv);
        msg_note("(the last question and its answer are forgotten)");
    } else {
        c->n_refused++;
        const char *near = args_nearest(line, names, sizeof names / sizeof names[0]);
        if (near) {
            msg_note("(unknown command %.40s; did you mean %s?)", line, near);
        } else {
            msg_note("(unknown command %.40s; /help lists them)", line);
        }
    }
    return AFTER_GO_ON;
}

static after handle_line(chat *c, const char *line, size_t n)
{
    size_t bad = text_utf8_check(line, n);
    if (bad < n) {
        c->n_refused++;
        msg_note("(not valid UTF-8 at byte %zu of the line; not sent)", bad);
        return AFTER_GO_ON;
    }
    if (strlen(line) < n) {
        c->n_refused++;
        msg_note("(the line holds a NUL byte at offset %zu; not sent)", strlen(line));
        return AFTER_GO_ON;
    }
    if (strspn(line, " \t\r\n") == n) {
        return AFTER_GO_ON;
    }
    if (line[0] == '/') {
        return command(c, line);
    }
    return turn(c, line) ? AFTER_GO_ON : AFTER_FAIL;
}

static int talk(chat *c)
{
    input in = {0};
    int code = -1, n_interrupts = 0;
    while (code < 0) {
        char *line = NULL;
        size_t n = 0;
        input_result r = input_line(&in, "> ", &line, &n);
        after next = AFTER_GO_ON;
        if (r == INPUT_LINE) {
            n_interrupts = 0;
            next = handle_line(c, line, n);
        } else if (r == INPUT_INTERRUPTED && in.dropped) {
            n_interrupts = 0; /* it was for the line, not for the program */
            gen_clear_interrupt();
            msg_note("%s", "");
        } else if (r == INPUT_INTERRUPTED && ++n_interrupts < 2) {
            gen_clear_interrupt();
            msg_note("%s", "");
            msg_note("(Ctrl-C again or /exit to leave)");
        } else if (r == INPUT_INTERRUPTED) {
            msg_note("%s", "");
            code = TQ_EXIT_INTERRUPTED;
        } else if (r == INPUT_END) {
            next = AFTER_LEAVE;
            if (err_is_tty()) {
                msg_note("%s", "");
            }
        } else {
            next = AFTER_FAIL;
        }
        free(line);
        code = next == AFTER_LEAVE ? TQ_EXIT_OK : next == AFTER_FAIL ? TQ_EXIT_FAILED : code;
    }
    input_deinit(&in);
    /* At a terminal the user has seen it; a script looks at the exit code. */
    if (code == TQ_EXIT_OK && c->n_refused && isatty(STDIN_FILENO) != 1) {
        msg_error("%zu of the lines %s refused, see above", c->n_refused,
                  c->n_refused == 1 ? "was" : "were");
        code = TQ_EXIT_FAILED;
    }
    return code;
}

static void greet(const tqe_model *m, const tqe_session *s)
{
    tqe_model_info mi;
    tqe_session_info si;
    tqe_model_get_info(m, &mi);
    tqe_session_get_info(s, &si);
    msg_note("%s, %s; cache %s, context %u tokens; /help for help", mi.name[0] ? mi.name : mi.arch,
             mi.weights, si.kv, si.n_ctx);
}

/* *store stays NULL where nothing is to be kept. */
static bool open_store(const chat_options *o, tqe_prefix **store)
{
    tqe_error err = {0};
    if (o->setup.n_kept && tqe_prefix_create(store, NULL, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    return true;
}

static int chat_run(const chat_options *o)
{
    int code = TQ_EXIT_FAILED;
    tqe_model *model = NULL;
    tqe_session *session = NULL;
    tqe_prefix *store = NULL;
    chat c = {.limit = o->n_predict ? o->n_predict : SIZE_MAX, .last_stop = GEN_STOP_END};
    c.total = no_stats;
    if (setup_open(&o->setup, &model, &session) && setup_sampler(&o->setup, model, &c.sampler) &&
        open_store(o, &store) &&
        conversation_init(&c.conv, model, session, store, o->tmpl, o->system)) {
        gen_catch_interrupts(false); /* before the greeting: from then on a user may press it */
        greet(model, session);
        code = talk(&c);
    }
    conversation_deinit(&c.conv);
    tqe_sampler_free(c.sampler);
    tqe_prefix_free(store);
    tqe_session_free(session);
    tqe_model_free(model);
    return code;
}

int cmd_chat(int argc, char **argv)
{
    chat_options o = {.setup = SETUP_INIT};
    arg_option options[] = {
        OPT_MODEL(o.setup),
        {.letter = 's',
         .name = "system",
         .meta = "TEXT",
         .kind = ARG_STRING,
         .dst = &o.system,
         .help = "system prompt: who the model is, how it shall answer"},
        {.name = "template",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &o.tmpl,
         .help = "built-in chat template, such as chatml (default: the model's own)"},
        {.group = "Output",
         .letter = 'n',
         .name = "predict",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.n_predict,
         .min = 1,
         .max = SETUP_MAX_CTX,
         .help = "end each answer after N tokens (default: when the model ends it)"},
        OPT_KV(o.setup),
        OPT_CTX(o.setup),
        {.name = "keep",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.setup.n_kept,
         .min = 0,
         .max = SETUP_MAX_CTX,
         .help = "room for N more tokens, in which earlier prompts stay for /retry, /back and "
                 "/reset (default 0)"},
        OPT_THREADS(o.setup),
        OPT_ISA(o.setup),
        OPT_TEMP(o.setup),
        OPT_TOP_K(o.setup),
        OPT_TOP_P(o.setup),
        OPT_MIN_P(o.setup),
        OPT_SEED(o.setup),
    };
    arg_command cmd = {
        .name = "tq chat",
        .summary = "talk with a model",
        .synopsis = "  tq chat -m FILE [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "In the conversation\n" CHAT_COMMANDS
                 "  A line that ends with \\ goes on with the next one. Ctrl-C stops an answer;\n"
                 "  at the prompt, twice in a row leaves. From a pipe, each line is a question;\n"
                 "  one that is refused, also /retry without an answer, makes the exit code 1.\n",
        .examples = "  tq chat -m model.gguf -s \"Answer in one sentence.\"\n"
                    "  tq chat -m model.gguf --kv turbo:k8v3 -c 32768\n"
                    "  tq chat -m model.gguf --temp 0 < questions.txt > answers.txt\n",
    };
    arg_result r = args_parse(&cmd, argc, argv, NULL);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    if (!setup_check(&o.setup)) {
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    size_t bad = o.system ? text_utf8_check(o.system, strlen(o.system)) : 0;
    if (o.system && bad < strlen(o.system)) {
        msg_error("--system: not valid UTF-8: byte 0x%02x at offset %zu",
                  (unsigned char)o.system[bad], bad);
        return TQ_EXIT_FAILED;
    }
    if (in_is_closed()) {
        msg_error("stdin is closed: there are no questions to read");
        return TQ_EXIT_FAILED;
    }
    return chat_run(&o);
}
