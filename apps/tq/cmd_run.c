/* SPDX-License-Identifier: MIT */
/* cmd_run.c — `tq run`: one prompt, one continuation.
 *
 * Policy: stdout carries the generated text (or one JSON object) and nothing else; everything
 * about the run goes to stderr. Ctrl-C ends the text, not the report.
 */
#include "args.h"
#include "commands.h"
#include "generate.h"
#include "machine.h"
#include "out.h"
#include "setup.h"
#include "snapshot.h"
#include "target.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_options {
    setup setup;
    const char *prompt, *file, *load, *save;
    const char *prefix_dir, *prefix_salt;
    arg_sizes prefix_limit;
    tqe_prefix *store; /* or NULL */
    uint32_t n_predict;
    bool special, json;
    double busy; /* load of the machine before the run, or -1 */
} run_options;

/* Where the text goes: stdout, and a copy for JSON. */
typedef struct run_output {
    bool json;
    char *text;
    size_t n, cap;
} run_output;

static bool take_text(void *ctx, const char *text, size_t n)
{
    run_output *o = ctx;
    if (n == 0) {
        return true;
    }
    if (!o->json) {
        return out_text(text, n) && out_flush();
    }
    if (o->n + n > o->cap) {
        size_t cap = (o->n + n) * 2;
        char *grown = realloc(o->text, cap);
        if (!grown) {
            msg_error("not enough memory for the text");
            return false;
        }
        o->text = grown;
        o->cap = cap;
    }
    memcpy(o->text + o->n, text, n);
    o->n += n;
    return true;
}

/* The prompt's bytes, malloc'ed; NULL after a message. */
static char *read_prompt(const run_options *o, size_t *n)
{
    char *text;
    const char *from = o->file ? o->file : "-p", *quote = "";
    if (o->file) {
        text = text_read_file(o->file, SETUP_MAX_PROMPT_BYTES, n);
        from = strcmp(o->file, "-") ? o->file : "stdin";
        quote = from == o->file ? "'" : "";
        /* Editors and echo end a file with a newline that is not part of what was meant. */
        if (text && *n && text[*n - 1] == '\n') {
            text[--*n] = '\0';
        }
    } else {
        *n = strlen(o->prompt);
        text = malloc(*n + 1);
        if (text) {
            memcpy(text, o->prompt, *n + 1);
        } else {
            msg_error("not enough memory for the prompt");
        }
    }
    size_t bad = text ? text_utf8_check(text, *n) : 0;
    if (text && bad < *n) {
        msg_error("%s%s%s: the prompt is not valid UTF-8: byte 0x%02x at offset %zu", quote, from,
                  quote, (unsigned char)text[bad], bad);
        free(text);
        return NULL;
    }
    /* No tokenizer has been trained on NUL, and many programs end a text there. */
    if (text && strlen(text) < *n) {
        msg_error("%s%s%s: the prompt holds a NUL byte at offset %zu", quote, from, quote,
                  strlen(text));
        free(text);
        return NULL;
    }
    return text;
}

/* tokens, time, and the rate of the n_timed tokens that the time was spent on. */
static json_t *phase(size_t n, size_t n_timed, double seconds)
{
    json_t *rate = n_timed && seconds > 0 ? json_real((double)n_timed / seconds) : json_null();
    return json_pack("{s:I s:f s:o}", "tokens", (json_int_t)n, "seconds", seconds,
                     "tokens_per_second", rate);
}

static json_t *json_path(const char *path)
{
    char clean[4096];
    text_utf8_clean(clean, sizeof clean, path);
    return json_string(clean);
}

static bool write_json(const run_options *o, const tqe_model *m, const tqe_session *s,
                       const run_output *text, const gen_stats *stats, gen_stop stop)
{
    tqe_model_info mi;
    tqe_session_info si;
    tqe_model_get_info(m, &mi);
    tqe_session_get_info(s, &si);
    json_t *j = json_pack(
        "{s:{s:o s:o s:o s:o} s:o s:s s:o s:o s:{s:s s:I s:I s:I s:I s:I} s:I s:I"
        " s:{s:f s:I s:f s:f s:I}}",
        "model", "file", json_path(o->setup.model), "name", json_path(mi.name), "arch",
        json_path(mi.arch), "weights", json_path(mi.weights), "text",
        json_stringn(text->text ? text->text : "", text->n), "stop", gen_stop_name(stop), "prompt",
        phase(stats->n_prompt, stats->n_prompt, stats->prompt_s), "decode",
        phase(stats->n_generated, stats->n_decoded, stats->decode_s), "kv", "scheme", si.kv,
        "tokens", (json_int_t)si.n_tokens, "bytes_per_token", (json_int_t)si.kv_bytes_per_token,
        "bytes", (json_int_t)si.kv_bytes_used, "f16_bytes_per_token",
        (json_int_t)si.f16_bytes_per_token, "f16_bytes",
        (json_int_t)(si.n_tokens * si.f16_bytes_per_token), "context", (json_int_t)si.n_ctx,
        "threads", (json_int_t)si.n_threads, "sampling", "temp", (double)o->setup.temp, "top_k",
        (json_int_t)o->setup.top_k, "top_p", (double)o->setup.top_p, "min_p",
        (double)o->setup.min_p, "seed", (json_int_t)o->setup.seed);
    char *dump = j ? json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(j);
    if (!dump) {
        msg_error("cannot build the JSON report");
        return false;
    }
    bool ok = out_write(dump, strlen(dump)) && out_write("\n", 1) && out_flush();
    free(dump);
    return ok;
}

/* Speeds of a busy machine tell little. */
static void report_load(double load, uint32_t n_threads)
{
    uint32_t n_cpus = machine_cpus();
    if (n_cpus && load + n_threads > n_cpus + 0.5) {
        msg_note("%-9sother work was running (load average %.1f): low and uneven speeds", "machine",
                 load);
    }
}

/* The last token of an answer is printed but not evaluated: a saved session must hold it, or its
 * continuation would print it again. */
static bool save(const run_options *o, tqe_session *s, size_t n_prompt, const gen_tokens *record)
{
    tqe_session_info info;
    tqe_error err = {0};
    tqe_session_get_info(s, &info);
    tqe_status st = TQE_OK;
    if (record->n > 0 && n_prompt + record->n == info.n_tokens + (size_t)1) {
        if (info.n_tokens == info.n_ctx) {
            msg_warn("the context is full: '%s' lacks the last token of the answer", o->save);
        } else {
            st = tqe_session_eval(s, record->at + record->n - 1, 1, NULL, NULL, NULL, &err);
        }
    }
    double start = text_now();
    if (st == TQE_OK) {
        st = tqe_session_save(s, o->save, &err);
    }
    if (st != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    msg_note("%-9s%7zu tokens %8.2f s   '%s'", "saved", tqe_session_len(s), text_now() - start,
             o->save);
    return true;
}

/* A reader who goes away, or Ctrl-C, ends the answer; what was computed may have taken hours and is
 * saved. A part of a prompt is not: it looks like a whole one, and would replace an older snapshot.
 * False: saving failed. */
static bool save_what_is_whole(const run_options *o, tqe_session *s, size_t n_before,
                               size_t n_prompt, const gen_tokens *record, gen_stop stop)
{
    const size_t n_done = tqe_session_len(s);
    if (stop == GEN_STOP_ERROR) {
        msg_warn("nothing is saved in '%s'", o->save);
        return true;
    }
    if (n_done < n_before + n_prompt) {
        msg_warn("the prompt was interrupted after %zu of %zu tokens: nothing is saved in '%s'",
                 n_done - n_before, n_prompt, o->save);
        return true;
    }
    return save(o, s, n_before + n_prompt, record);
}

/* Prompt, answer and reports with everything open. */
static int run_session(const run_options *o, const tqe_model *m, tqe_session *s,
                       tqe_sampler *sampler, const int32_t *ids, size_t n_ids)
{
    tqe_session_info info;
    tqe_session_get_info(s, &info);
    const size_t n_before = tqe_session_len(s);
    if (n_ids == 0 && n_before > 0 && !tqe_session_logits(s)) {
        msg_error("'%s' holds no logits: give more text with -p TEXT or -f FILE", o->load);
        return TQ_EXIT_FAILED;
    }
    if (n_ids == 0 && n_before == 0) {
        msg_error("the prompt is empty and this model has no token that begins a text");
        return TQ_EXIT_FAILED;
    }
    if (n_ids > info.n_ctx - n_before) {
        if (n_before > 0) {
            msg_error("the prompt has %zu tokens, but the context holds %u and the snapshot takes "
                      "%zu: raise it with -c",
                      n_ids, info.n_ctx, n_before);
        } else if (n_ids > (size_t)SETUP_MAX_CTX) {
            msg_error("the prompt has %zu tokens, more than the largest context (%.0f) holds",
                      n_ids, SETUP_MAX_CTX);
        } else {
            msg_error("the prompt has %zu tokens, but the context holds %u: raise it with -c %zu "
                      "or more",
                      n_ids, info.n_ctx, n_ids);
        }
        return TQ_EXIT_FAILED;
    }
    gen_stats stats = {0};
    run_output text = {.json = o->json};
    gen_catch_interrupts(true);
    gen_tokens record = {0};
    gen_stop stop = o->store ? gen_prompt_stored(s, o->store, ids, n_ids, &stats)
                             : gen_prompt(s, ids, n_ids, &stats);
    if (stop == GEN_STOP_END) {
        stop = gen_answer(s, m, NULL, sampler, o->n_predict, take_text, &text,
                          o->save ? &record : NULL, &stats);
    }
    int code = TQ_EXIT_FAILED;
    bool saved = true;
    if (stop != GEN_STOP_OUTPUT && stop != GEN_STOP_ERROR) {
        out_end_line(); /* the text is complete, whatever is said from here on */
        out_flush();
    }
    if (o->save) {
        saved = save_what_is_whole(o, s, n_before, n_ids, &record, stop);
    }
    if (stop != GEN_STOP_OUTPUT && stop != GEN_STOP_ERROR) {
        code = !saved                         ? TQ_EXIT_FAILED
               : stop == GEN_STOP_INTERRUPTED ? gen_interrupt_code()
                                              : TQ_EXIT_OK;
        if (o->json) {
            code = write_json(o, m, s, &text, &stats, stop) ? code : TQ_EXIT_FAILED;
        } else {
            if (out_flush()) {
                if (out_is_tty() && err_is_tty()) {
                    msg_note("%s", ""); /* text and table share the screen */
                }
                gen_report(s, &stats, stop);
                report_load(o->busy, info.n_threads);
            }
        }
    }
    free(text.text);
    free(record.at);
    return code;
}

/* Tokenising takes long for a text that is far too large: is it? */
static bool may_fit(const run_options *o, const tqe_model *m, const tqe_session *s,
                    const char *prompt, size_t n_bytes)
{
    tqe_session_info info;
    tqe_session_get_info(s, &info);
    info.n_ctx -= info.n_tokens;
    size_t least = n_bytes > GEN_SMALL_TEXT ? tqe_min_tokens(m, prompt, n_bytes, o->special) : 0;
    if (least <= info.n_ctx) {
        return true;
    }
    if (least > (size_t)SETUP_MAX_CTX) {
        msg_error("the prompt has %zu bytes, which is at least %zu tokens: more than the largest "
                  "context (%.0f) holds",
                  n_bytes, least, SETUP_MAX_CTX);
    } else {
        msg_error("the prompt has %zu bytes, which is at least %zu tokens, but the context holds "
                  "%u: raise it with -c, or shorten the prompt",
                  n_bytes, least, info.n_ctx);
    }
    return false;
}

static bool load(const run_options *o, tqe_session *s)
{
    tqe_error err = {0};
    if (!o->load) {
        return true;
    }
    double start = text_now();
    if (tqe_session_load(s, o->load, &err) != TQE_OK) {
        msg_error("%s%s", err.text, err.code == TQE_ERR_FULL ? " with -c" : "");
        return false;
    }
    msg_note("%-9s%7zu tokens %8.2f s   '%s'", "restored", tqe_session_len(s), text_now() - start,
             o->load);
    return true;
}

/* Without --kv a snapshot's own scheme is the one that can be meant. */
static bool scheme_of_snapshot(run_options *o, char kv[TQ_SCHEME_TEXT_BYTES])
{
    tqe_snapshot *f = NULL;
    tqe_error err = {0};
    if (tqe_snapshot_open(&f, o->load, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    tqe_status st = tqe_snapshot_find_scheme(f, kv, &err);
    if (st != TQE_OK) {
        tqe_snapshot_info info;
        tqe_snapshot_get_info(f, &info);
        msg_error("%s", err.text);
        msg_note("The scheme is %s: --kv with another FILE in it says where the same file is.",
                 info.scheme);
    }
    tqe_snapshot_close(f);
    if (st != TQE_OK) {
        return false;
    }
    o->setup.kv = kv;
    return true;
}

/* A store that cannot be used costs time, not the run. */
static void open_store(run_options *o)
{
    tqe_error err = {0};
    tqe_prefix_params params = {.dir = o->prefix_dir,
                                .limit_bytes = o->prefix_limit.n ? o->prefix_limit.at[0] : 0,
                                .salt = o->prefix_salt,
                                .salt_bytes = o->prefix_salt ? strlen(o->prefix_salt) : 0};
    if (o->prefix_dir && tqe_prefix_create(&o->store, &params, &err) != TQE_OK) {
        msg_warn("%s; the run goes on without it", err.text);
    }
}

/* Waits for the writer. */
static void close_store(run_options *o)
{
    if (o->store) {
        msg_status("writing the prefix store ...");
        tqe_prefix_flush(o->store);
        msg_status(NULL);
        gen_warn_store(o->store);
        tqe_prefix_free(o->store);
        o->store = NULL;
    }
}

static int run(const run_options *o)
{
    int code = TQ_EXIT_FAILED;
    size_t n_bytes = 0, n_ids = 0;
    int32_t *ids = NULL;
    tqe_model *model = NULL;
    tqe_session *session = NULL;
    tqe_sampler *sampler = NULL;
    tqe_error err = {0};
    const bool has_prompt = o->prompt || o->file;
    char *prompt = has_prompt ? read_prompt(o, &n_bytes) : NULL;
    if ((prompt || !has_prompt) && setup_open(&o->setup, &model, &session) &&
        setup_sampler(&o->setup, model, &sampler) && load(o, session) &&
        (!has_prompt || may_fit(o, model, session, prompt, n_bytes))) {
        /* The token that begins a text is in the snapshot already. */
        if (has_prompt && tqe_tokenize(model, prompt, n_bytes, !o->load, o->special, &ids, &n_ids,
                                       &err) != TQE_OK) {
            msg_error("%s", err.text);
        } else {
            code = run_session(o, model, session, sampler, ids, n_ids);
        }
    }
    free(ids);
    free(prompt);
    tqe_sampler_free(sampler);
    tqe_session_free(session);
    tqe_model_free(model);
    return code;
}

int cmd_run(int argc, char **argv)
{
    run_options o = {.setup = SETUP_INIT, .n_predict = 256};
    arg_option options[] = {
        OPT_MODEL(o.setup),
        {.letter = 'p',
         .name = "prompt",
         .meta = "TEXT",
         .kind = ARG_TEXT,
         .dst = &o.prompt,
         .help = "text to continue"},
        {.letter = 'f',
         .name = "file",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.file,
         .help = "read the text from a file, '-' for stdin; one newline at its end is dropped"},
        {.name = "load",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.load,
         .help = "continue a session that was saved; -p or -f add text to it, and without --kv its "
                 "scheme is taken"},
        {.name = "special",
         .kind = ARG_FLAG,
         .dst = &o.special,
         .help = "read control tokens such as <|im_start|> in the text as what they name"},
        {.group = "Output",
         .letter = 'n',
         .name = "predict",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.n_predict,
         .min = 0,
         .max = SETUP_MAX_CTX,
         .help = "stop after N tokens, if the text or the context does not end before; 0 only "
                 "evaluates the prompt (default 256)"},
        {.name = "save",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.save,
         .help = "save the session at the end, with the answer; see tq-snapshot(1)"},
        {.name = "json",
         .kind = ARG_FLAG,
         .dst = &o.json,
         .help = "write one JSON object with text, speeds and sizes"},
        {.group = "Prefix store",
         .name = "prefix-store",
         .meta = "DIR",
         .kind = ARG_STRING,
         .dst = &o.prefix_dir,
         .help = "keep computed pages of prompts in this folder and take up what is there"},
        {.name = "prefix-limit",
         .meta = "SIZE",
         .kind = ARG_SIZES,
         .dst = &o.prefix_limit,
         .help = "size of the folder, such as 512M; beyond it the least recently used pages go "
                 "(default 4G)"},
        {.name = "prefix-salt",
         .meta = "TEXT",
         .kind = ARG_STRING,
         .dst = &o.prefix_salt,
         .help = "only runs with the same text share pages"},
        OPT_KV(o.setup),
        OPT_CTX(o.setup),
        OPT_THREADS(o.setup),
        OPT_ISA(o.setup),
        OPT_TEMP(o.setup),
        OPT_TOP_K(o.setup),
        OPT_TOP_P(o.setup),
        OPT_MIN_P(o.setup),
        OPT_SEED(o.setup),
    };
    arg_command cmd = {
        .name = "tq run",
        .summary = "generate text from a prompt",
        .synopsis = "  tq run -m FILE -p TEXT [options]\n"
                    "  tq run -m FILE -f FILE [options]\n"
                    "  tq run -m FILE --load FILE [-p TEXT] [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "The text goes to stdout, speeds and sizes to stderr. Ctrl-C ends the text and\n"
                 "still reports.\n",
        .examples = "  tq run -m model.gguf -p \"Once upon a time\" -n 100\n"
                    "  tq run -m model.gguf -f long.txt -c 32768 --kv turbo:k8v3 --temp 0\n"
                    "  git diff | tq run -m model.gguf -f - --json > answer.json\n"
                    "  tq run -m model.gguf -f long.txt -n 0 --save long.tqs\n"
                    "  tq run -m model.gguf --load long.tqs -p \"In short:\"\n",
    };
    arg_result r = args_parse(&cmd, argc, argv, NULL);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    if (!setup_check(&o.setup)) {
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    if (!o.prompt == !o.file && (o.prompt || !o.load)) {
        msg_error(o.prompt ? "-p and -f are both given: which text is the prompt?"
                           : "no prompt: give one with -p TEXT or -f FILE");
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    const char *wrong = o.prefix_limit.n > 1 ? "--prefix-limit is given twice"
                        : !o.prefix_dir && (o.prefix_limit.n || o.prefix_salt)
                            ? "--prefix-limit and --prefix-salt go with --prefix-store"
                        : o.prefix_dir && o.load
                            ? "--prefix-store and --load: a saved session is not looked up"
                            : NULL;
    if (wrong) {
        msg_error("%s", wrong);
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    char kv[TQ_SCHEME_TEXT_BYTES];
    if (o.load && !args_given(&cmd, &o.setup.kv) && !scheme_of_snapshot(&o, kv)) {
        return TQ_EXIT_FAILED;
    }
    const target_inputs in = {.model = o.setup.model, .file = o.file, .kv = o.setup.kv};
    if (!target_spares("--save", o.save, &in) || !target_can_be("--save", o.save)) {
        return TQ_EXIT_FAILED;
    }
    o.busy = machine_load();
    open_store(&o);
    int code = run(&o);
    close_store(&o);
    return code;
}
