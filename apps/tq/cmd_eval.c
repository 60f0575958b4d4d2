/* SPDX-License-Identifier: MIT */
/* cmd_eval.c — `tq eval`: what a cache scheme does to a model's predictions.
 *
 * Policy: everything that can be refused is refused before the first token is computed: flags,
 * schemes, texts, needles, where results go, whether gnuplot is there. Then each finished window or
 * needle is kept, so that a killed run loses minutes at most.
 */
#include "args.h"
#include "commands.h"
#include "evaluation.h"
#include "generate.h"
#include "out.h"
#include "save.h"
#include "setup.h"
#include "target.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_SCHEMES "tcq2", "tcq3", "tcq4", "tcq5", "turbo4", "turbo8", SETUP_DEFAULT_KV
#define DEFAULT_PEERS   "q8_0", "q5_0", "q4_0", "iq4_nl"

typedef struct eval_options {
    setup setup;
    arg_strings files, kv, peer_kv;
    const char *peer, *needle, *csv, *json, *html, *resume;
    uint32_t n_windows, from, batch, needle_ctx, needle_count;
    bool no_bos, has_from, exact;
} eval_options;

/* ---- Progress ---------------------------------------------------------------------------- */

typedef struct progress {
    const evaluation *e;
    double start, noted;
    size_t n_before; /* tokens of the windows and needles that this run has finished */
    size_t n_total;  /* of those that it has to do */
} progress;

static size_t tokens_left(const evaluation *e)
{
    size_t n = (e->n_windows - e->n_windows_done) * e->n_ctx;
    for (size_t i = e->n_needles_done; i < e->n_needles; i++) {
        n += e->needles[i].n;
    }
    return n * e->n_sides;
}

static bool on_progress(void *ctx, size_t n_done, size_t n_total)
{
    (void)n_total;
    progress *p = ctx;
    const evaluation *e = p->e;
    double now = text_now();
    char line[128], time[32];
    /* Windows cost alike and needles nearly so: the mean rate is the best guess. */
    size_t done = p->n_before + n_done;
    double left = (now - p->start) * (double)(p->n_total - done) / (double)done;
    bool window = e->n_windows_done < e->n_windows;
    snprintf(line, sizeof line, "%s %zu of %zu, %zu %% done, %s left", window ? "window" : "needle",
             (window ? e->n_windows_done : e->n_needles_done) + 1,
             window ? e->n_windows : e->n_needles, done * 100 / p->n_total, text_time(time, left));
    msg_status(line);
    /* Into a log file goes a line a minute. */
    if (!err_is_tty() && now - p->noted > 60) {
        msg_note("%s", line);
        p->noted = now;
    }
    return !gen_interrupted();
}

/* ---- The run ----------------------------------------------------------------------------- */

/* NULL: nothing is kept. */
static const char *state_path(const eval_options *o, char *dst, size_t n)
{
    if (o->resume) {
        return o->resume;
    }
    /* Nothing is put beside a device. */
    if (!o->json || target_is_special(o->json)) {
        return NULL;
    }
    snprintf(dst, n, "%s.part", o->json);
    return dst;
}

static int failed(const eval_options *o, const char *state, tqe_status st, const tqe_error *err)
{
    msg_status(NULL);
    if (st != TQE_ERR_CANCELLED) {
        msg_error("%s", err->text);
        return TQ_EXIT_FAILED;
    }
    if (state) {
        msg_note("interrupted; what is finished is in '%s', the same command goes on from there",
                 state);
    } else {
        msg_note("interrupted; with --resume FILE%s a later run could go on from here",
                 o->json ? "" : " or --json FILE");
    }
    return gen_interrupt_code();
}

static int measure(evaluation *e, tqe_eval *eval, const eval_options *o, const char *state)
{
    tqe_error err = {0};
    tqe_status st = TQE_OK;
    progress p = {.e = e, .start = text_now(), .noted = text_now(), .n_total = tokens_left(e)};
    gen_catch_interrupts(true);
    while (st == TQE_OK && (e->n_windows_done < e->n_windows || e->n_needles_done < e->n_needles)) {
        size_t n;
        if (e->n_windows_done < e->n_windows) {
            st =
                tqe_eval_window(eval, e->windows + e->n_windows_done * e->n_ctx,
                                e->records + e->n_windows_done * e->n_sides, on_progress, &p, &err);
            n = e->n_ctx;
            e->n_windows_done += st == TQE_OK;
        } else {
            const eval_needle *k = &e->needles[e->n_needles_done];
            st = tqe_eval_needle(eval, k->ids, k->n, k->n_answer,
                                 e->hits + e->n_needles_done * e->n_sides, on_progress, &p, &err);
            n = k->n;
            e->n_needles_done += st == TQE_OK;
        }
        p.n_before += st == TQE_OK ? n * e->n_sides : 0;
        if (st == TQE_OK && state && !eval_save_state(e, state)) {
            return TQ_EXIT_FAILED;
        }
    }
    msg_status(NULL);
    return st == TQE_OK ? TQ_EXIT_OK : failed(o, state, st, &err);
}

static void put_header(const evaluation *e)
{
    char name[192];
    snprintf(name, sizeof name, "%s%s%s", e->model.name, e->model.name[0] ? ", " : "",
             e->model.weights);
    out_text(name, strlen(name));
    if (e->n_windows) {
        out_printf("\n%zu %s of %u tokens in steps of %u, scored from position %u", e->n_windows,
                   e->n_windows == 1 ? "window" : "windows", e->n_ctx,
                   e->batch < e->n_ctx ? e->batch : e->n_ctx, e->from);
    }
    out_write("\n", 1);
}

static bool write_results(const evaluation *e, const eval_row *rows, const eval_options *o)
{
    return (!o->csv || eval_write_csv(e, rows, o->csv)) &&
           (!o->html || eval_write_html(e, rows, o->html)) &&
           (!o->json || eval_write_json(e, rows, o->json));
}

static int report(const evaluation *e, const eval_options *o, const char *state)
{
    eval_row *rows = calloc(e->n_sides, sizeof *rows);
    bool ok = rows && eval_summarise(e, rows);
    if (ok) {
        put_header(e);
        eval_put_tables(e, rows);
        ok = write_results(e, rows, o);
        if (!ok && state) {
            msg_note("what was measured is in '%s', the same command goes on from there", state);
        }
    }
    /* A state that was asked for stays, for other outputs; one of our own has served. */
    if (ok && state && !o->resume) {
        remove(state);
    }
    free(rows);
    return ok ? TQ_EXIT_OK : TQ_EXIT_FAILED;
}

static bool open_eval(evaluation *e, tqe_eval **eval, const tqe_model *m, const eval_options *o)
{
    tqe_error err = {0};
    tqe_eval_params p = {.n_ctx = e->n_ctx,
                         .n_cache = e->n_ctx,
                         .from = e->from,
                         .batch = o->batch,
                         .exact = o->exact,
                         .n_threads = o->setup.n_threads,
                         .kv = o->kv.at,
                         .n_kv = o->kv.n,
                         .model_path = o->setup.model,
                         .peer_kv = o->peer_kv.at,
                         .n_peer_kv = o->peer ? o->peer_kv.n : 0};
    setup_isa(o->setup.isa, &p.isa_mask);
    for (size_t i = 0; i < e->n_needles; i++) {
        p.n_cache = e->needles[i].n > p.n_cache ? (uint32_t)e->needles[i].n : p.n_cache;
    }
    if (tqe_eval_create(eval, m, &p, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    e->batch = tqe_eval_batch(*eval);
    e->n_sides = tqe_eval_n_sides(*eval);
    for (size_t i = 0; i < e->n_sides; i++) {
        tqe_eval_get_side(*eval, i, &e->sides[i]);
    }
    e->records = calloc(e->n_windows * e->n_sides + 1, sizeof *e->records);
    e->hits = calloc(e->n_needles * e->n_sides + 1, sizeof *e->hits);
    if (!e->records || !e->hits) {
        msg_error("not enough memory for the records");
    }
    return e->records && e->hits;
}

static bool read_input(evaluation *e, const tqe_model *m, const eval_options *o)
{
    tqe_model_get_info(m, &e->model);
    uint32_t train = e->model.n_ctx_train ? e->model.n_ctx_train : o->setup.n_ctx;
    uint32_t needle_ctx = o->needle_ctx ? o->needle_ctx : train < 4096 ? train : 4096;
    tqe_error err = {0};
    const bool synthetic = o->needle && !strcmp(o->needle, "synthetic");
    if ((o->files.n && e->n_ctx > train) || (synthetic && needle_ctx > train)) {
        msg_warn("model trained for %u tokens; text beyond may get worse", train);
    }
    if (synthetic && needle_ctx < 1280) {
        msg_error("--needle-ctx: %u tokens are too few: 1280 or more", needle_ctx);
        return false;
    }
    if (tqe_file_fingerprint(o->setup.model, &e->fingerprint, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    return eval_read_texts(e, m, &o->files, o->n_windows) &&
           (!o->needle || (synthetic ? eval_make_needles(e, m, needle_ctx, o->needle_count)
                                     : eval_read_needles(e, m, o->needle)));
}

/* A result goes where it can go, and onto no input. */
static bool may_write(const eval_options *o, const char *flag, const char *path)
{
    const target_inputs in = {.model = o->setup.model, .files = &o->files, .schemes = &o->kv};
    return save_check(flag, path) && target_spares(flag, path, &in) &&
           target_is_not(flag, path, "--needle", o->needle);
}

static int eval_run(const eval_options *o)
{
    static evaluation e;
    tqe_model *m = NULL;
    tqe_eval *eval = NULL;
    tqe_error err = {0};
    char own_state[4096];
    const char *state = state_path(o, own_state, sizeof own_state);
    int code = TQ_EXIT_FAILED;
    e.model_path = o->setup.model;
    e.n_ctx = o->setup.n_ctx;
    e.from = o->has_from ? o->from : tqe_eval_default_from(e.n_ctx);
    e.n_buckets = tqe_eval_buckets(e.n_ctx, &e.bucket_width);
    e.no_bos = o->no_bos;
    static const char *const flags[] = {"--csv", "--json", "--html", "--resume"};
    const char *const paths[] = {o->csv, o->json, o->html, state};
    if (!target_apart(flags, paths, 4) || !may_write(o, "--csv", o->csv) ||
        !may_write(o, "--json", o->json) || !may_write(o, "--html", o->html) ||
        !may_write(o, "--resume", state) || (o->html && !eval_plot_check())) {
        return code;
    }
    msg_status("loading the model ...");
    if (tqe_model_load(&m, o->setup.model, NULL, &err) != TQE_OK) {
        msg_status(NULL);
        msg_error("%s", err.text);
        return code;
    }
    msg_status(NULL);
    setup_warn_threads(o->setup.n_threads);
    if (read_input(&e, m, o) && open_eval(&e, &eval, m, o) &&
        (!state || eval_load_state(&e, state))) {
        code = measure(&e, eval, o, state);
        code = code == TQ_EXIT_OK ? report(&e, o, state) : code;
    }
    tqe_eval_free(eval);
    eval_free_input(&e);
    free(e.records);
    free(e.hits);
    tqe_model_free(m);
    return code;
}

/* What the table of options cannot say. NULL: nothing is wrong. */
static const char *check(const eval_options *o)
{
    if (!o->files.n && !o->needle) {
        return "no text: give one with -f FILE, or questions with --needle";
    }
    for (size_t i = 0; i < o->files.n; i++) {
        if (!strcmp(o->files.at[i], "-")) {
            return "-f -: a text from stdin is not possible, give a file";
        }
    }
    if (!o->files.n && o->n_windows) {
        return "-w goes with -f FILE";
    }
    if (o->peer && strcmp(o->peer, "llama") != 0) {
        return "--peer: the only peer is llama";
    }
    if (!o->peer && o->peer_kv.n) {
        return "--peer-kv goes with --peer llama";
    }
    if (o->has_from && o->from >= o->setup.n_ctx - 1) {
        return "--from: no position of a window (-c) is left to score";
    }
    if (o->needle && o->exact) {
        return "--exact goes with -f FILE alone";
    }
    if (!o->needle && (o->needle_ctx || o->needle_count)) {
        return "--needle-ctx and --needle-count go with --needle synthetic";
    }
    return NULL;
}

int cmd_eval(int argc, char **argv)
{
    eval_options o = {.setup = SETUP_INIT};
    o.setup.n_ctx = 2048;
    arg_option options[] = {
        OPT_MODEL(o.setup),
        {.letter = 'f',
         .name = "file",
         .meta = "FILE",
         .kind = ARG_STRINGS,
         .dst = &o.files,
         .help = "text to measure on, NUL between documents; may be repeated"},
        {.letter = 'w',
         .name = "windows",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.n_windows,
         .min = 1,
         .max = 100000,
         .help = "windows, shared out over the texts (default: 8, or what there is room for)"},
        {.letter = 'c',
         .name = "ctx",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.setup.n_ctx,
         .min = TQE_EVAL_MIN_CTX,
         .max = SETUP_MAX_CTX,
         .help = "tokens of a window (default 2048)"},
        {.name = "from",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.from,
         .min = 0,
         .max = SETUP_MAX_CTX,
         .help = "first position that counts (default: 256, or a quarter of a short window)"},
        {.name = "batch",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.batch,
         .min = 1,
         .max = TQE_EVAL_MAX_BATCH,
         .help = "tokens of a step: up to 8 are attended to as decoding does, on packed bytes "
                 "(default: 16 to 256 by vocabulary)"},
        {.name = "no-bos",
         .kind = ARG_FLAG,
         .dst = &o.no_bos,
         .help = "begin windows without a BOS token, for models that have none"},
        {.group = "Sides",
         .name = "kv",
         .meta = "SCHEME",
         .kind = ARG_STRINGS,
         .dst = &o.kv,
         .help = "cache scheme to measure, see tq(1); may be repeated (default: a choice from 2 to "
                 "8 bits); f32 and f16 are always there"},
        {.name = "exact",
         .kind = ARG_FLAG,
         .dst = &o.exact,
         .help = "measure each scheme with attn=dequant as well, on the same bytes: what the "
                 "arithmetic adds"},
        {.name = "peer",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &o.peer,
         .help = "measure 'llama' as well: stock libllama in this process"},
        {.name = "peer-kv",
         .meta = "TYPE",
         .kind = ARG_STRINGS,
         .dst = &o.peer_kv,
         .help = "its cache type, or a pair K/V; may be repeated (default: q8_0, q5_0, q4_0, "
                 "iq4_nl); f16 is always there"},
        {.group = "Retrieval",
         .name = "needle",
         .meta = "SOURCE",
         .kind = ARG_STRING,
         .dst = &o.needle,
         .help = "ask for facts in long prompts: a JSONL file, or 'synthetic'"},
        {.name = "needle-ctx",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.needle_ctx,
         .min = 1280,
         .max = SETUP_MAX_CTX,
         .help =
             "longest synthetic prompt (default: what the model was trained for, at most 4096)"},
        {.name = "needle-count",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.needle_count,
         .min = 1,
         .max = 1000,
         .help = "synthetic prompts for each of 5 lengths and 5 depths (default 4)"},
        {.group = "Machine",
         .letter = 't',
         .name = "threads",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.setup.n_threads,
         .min = 1,
         .max = SETUP_MAX_THREADS,
         .help = "threads (default: one per physical core)"},
        OPT_ISA(o.setup),
        {.group = "Output",
         .name = "csv",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.csv,
         .help = "write every number, one a row"},
        {.name = "json",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.json,
         .help = "write all results; equal runs write equal bytes"},
        {.name = "html",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.html,
         .help = "write a report with plots, one page that needs no other file (needs gnuplot)"},
        {.name = "resume",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.resume,
         .help = "keep what is finished here and go on from it (default: with --json FILE, "
                 "FILE.part)"},
    };
    arg_command cmd = {
        .name = "tq eval",
        .summary = "what a cache scheme does to a model's predictions",
        .synopsis = "  tq eval -m FILE -f TEXT [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "Every side sees the same tokens. Ours are compared with our f32 cache, those of\n"
                 "llama.cpp with its f16 cache; f16 against f32 is the noise floor.\n",
        .examples = "  tq eval -m model.gguf -f book.txt --kv tcq4 --kv turbo4 --peer llama\n"
                    "  tq eval -m model.gguf -f book.txt --needle synthetic --html report.html\n",
    };
    arg_result r = args_parse(&cmd, argc, argv, NULL);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    o.has_from = args_given(&cmd, &o.from);
    const char *wrong = check(&o);
    if (wrong) {
        msg_error("%s", wrong);
    }
    bool ok = !wrong && setup_check(&o.setup);
    for (size_t i = 0; ok && i < o.kv.n; i++) {
        tq_scheme scheme;
        char canonical[TQ_SCHEME_TEXT_BYTES];
        ok = setup_check_kv(o.kv.at[i], &scheme, canonical);
    }
    for (size_t i = 0; ok && i < o.peer_kv.n; i++) {
        tqe_error err = {0};
        ok = tqe_peer_check_kv(o.peer_kv.at[i], &err) == TQE_OK;
        if (!ok) {
            msg_error("--peer-kv: %s", err.text);
        }
    }
    if (!ok) {
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    if (!o.kv.n) {
        o.kv = (arg_strings){.at = {DEFAULT_SCHEMES}, .n = 7};
    }
    if (!o.peer_kv.n) {
        o.peer_kv = (arg_strings){.at = {DEFAULT_PEERS}, .n = 4};
    }
    o.needle_count = o.needle_count ? o.needle_count : 4;
    return eval_run(&o);
}
