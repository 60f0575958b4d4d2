/* SPDX-License-Identifier: MIT */
/* bench_engine.c — `tq bench engine`: prompt and decode speed, our engine beside libllama.
 *
 * Policy: a comparison of two programs run one after the other compares two moments of a machine.
 * Here all sides live in one process, take turns in every round, in an order that rotates, on the
 * same token ids, and the ratio is taken within each round before the median over rounds. Every
 * side is fed the continuation that the first side chose greedily in the untimed warm-up, and picks
 * its own best token at each step, as a program would; how often it picks the same is reported,
 * since a fast side that computes something else has won nothing.
 */
#include "args.h"
#include "bench.h"
#include "commands.h"
#include "engine.h"
#include "out.h"
#include "plot.h"
#include "setup.h"
#include "target.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIDES = 16, MAX_ROUNDS = BENCH_MAX_ROUNDS };

typedef struct bench_options {
    setup setup;
    arg_strings kv, peer_kv;
    arg_counts ctx;
    const char *peer, *csv, *plot;
    uint32_t n_prompt, n_gen, n_rounds;
} bench_options;

/* One contestant: our session or libllama's. */
typedef struct side {
    const char *name; /* "tq", "llama" */
    char kv[TQ_SCHEME_TEXT_BYTES];
    tqe_session *session;
    tqe_peer *peer;
    float *logits; /* [n_vocab], the peer's */
    size_t n_agree;
    double prompt_tps[MAX_ROUNDS], decode_tps[MAX_ROUNDS];
    double x[ARG_LIST_MAX], y[ARG_LIST_MAX]; /* of the plot: context, decode tokens/s */
    size_t n_points;
} side;

typedef struct bench {
    const bench_options *o;
    tqe_model *model;
    tqe_model_info info;
    side *sides;
    size_t n_sides;
    uint32_t n_threads;
    int32_t *text; /* tokens of prompt_text, repeated to any length */
    size_t n_text;
    int32_t *ids; /* [n_prompt + n_gen] */
    save_file csv;
    bench_machine machine;
} bench;

/* A text that a model can go on with: after tokens without sense all continuations are about as
 * likely, and the count of agreements would tell nothing. */
static const char prompt_text[] =
    "The lighthouse keeper climbed the stairs every evening before sunset. He trimmed the wick, "
    "wound the clockwork, and wrote the weather into a book that his father had begun. Ships "
    "passed far out, and he counted them. In winter the storms kept him awake; in summer he "
    "mended nets and grew beans behind the wall. Once a month a boat brought letters, oil and "
    "flour, and took away the book's finished pages. ";

/* ---- Sides ------------------------------------------------------------------------------- */

static bool side_eval(side *s, const int32_t *ids, size_t n)
{
    tqe_error err = {0};
    tqe_status st = s->session ? tqe_session_eval(s->session, ids, n, NULL, NULL, NULL, &err)
                               : tqe_peer_eval(s->peer, ids, n, NULL, s->logits, &err);
    if (st != TQE_OK) {
        msg_error("%s %s: %s", s->name, s->kv, err.text);
    }
    return st == TQE_OK;
}

static int32_t side_best(const side *s, uint32_t n_vocab)
{
    const float *logits = s->session ? tqe_session_logits(s->session) : s->logits;
    uint32_t best = 0;
    for (uint32_t i = 1; i < n_vocab; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return (int32_t)best;
}

static bool side_clear(side *s)
{
    tqe_error err = {0};
    if (s->peer) {
        tqe_peer_clear(s->peer);
        return true;
    }
    if (tqe_session_truncate(s->session, 0, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    return true;
}

/* One pass. choose: the continuation is this side's own and goes to b->ids. */
static bool side_pass(bench *b, side *s, size_t n_prompt, bool choose, double *prompt_s,
                      double *decode_s)
{
    size_t n_gen = b->o->n_gen;
    int32_t *next = b->ids + n_prompt;
    if (!side_clear(s)) {
        return false;
    }
    double t0 = text_now();
    if (!side_eval(s, b->ids, n_prompt)) {
        return false;
    }
    int32_t best = side_best(s, b->info.n_vocab);
    double t1 = text_now();
    s->n_agree = 0;
    for (size_t i = 0; i < n_gen; i++) {
        if (choose) {
            next[i] = best;
        }
        s->n_agree += next[i] == best;
        if (!side_eval(s, &next[i], 1)) {
            return false;
        }
        best = side_best(s, b->info.n_vocab);
    }
    *prompt_s = t1 - t0;
    *decode_s = text_now() - t1;
    return true;
}

static bool open_ours(bench *b, const char *kv, uint32_t n_ctx)
{
    side *s = &b->sides[b->n_sides];
    tqe_error err = {0};
    tqe_session_params p = {.n_ctx = n_ctx, .n_threads = b->o->setup.n_threads, .kv = kv};
    tqe_session_info info;
    setup_isa(b->o->setup.isa, &p.isa_mask);
    if (tqe_session_create(&s->session, b->model, &p, &err) != TQE_OK) {
        msg_error("--kv %s: %s", kv, err.text);
        return false;
    }
    tqe_session_get_info(s->session, &info);
    s->name = "tq";
    memcpy(s->kv, info.kv, sizeof s->kv);
    b->n_threads = info.n_threads;
    b->n_sides++;
    return true;
}

static bool open_peer(bench *b, const char *kv, uint32_t n_ctx)
{
    side *s = &b->sides[b->n_sides];
    tqe_error err = {0};
    tqe_peer_params p = {.n_ctx = n_ctx, .n_threads = b->n_threads, .n_batch = 512, .kv_type = kv};
    s->logits = malloc(b->info.n_vocab * sizeof *s->logits);
    if (!s->logits) {
        msg_error("not enough memory for logits");
        return false;
    }
    s->name = b->o->peer;
    snprintf(s->kv, sizeof s->kv, "%s", kv);
    if (tqe_peer_create(&s->peer, b->o->setup.model, &p, &err) != TQE_OK) {
        msg_error("%s %s: %s", s->name, kv, err.text);
        free(s->logits);
        s->logits = NULL;
        return false;
    }
    b->n_sides++;
    return true;
}

/* ---- Report ------------------------------------------------------------------------------ */

static const side *reference_side(const bench *b)
{
    for (size_t i = 0; i < b->n_sides; i++) {
        if (b->sides[i].peer) {
            return &b->sides[i];
        }
    }
    return b->n_sides > 1 ? &b->sides[0] : NULL;
}

static void put_rate(const double *v, const double *ref, size_t n, bool last)
{
    out_printf("%10.1f%9.1f", bench_median(v, n), bench_most(v, n));
    if (ref) {
        out_printf("%7.3f", bench_ratio(v, ref, n));
    } else if (!last) {
        out_printf("%7s", "");
    }
}

static void put_table(const bench *b, size_t n_prompt)
{
    size_t n = b->o->n_rounds;
    const side *ref = reference_side(b);
    char title[64];
    snprintf(title, sizeof title, "prompt %zu, decode %u", n_prompt, b->o->n_gen);
    out_printf("\n%s%-24s%26s%26s%s\n", out_bold(), title, "---- prompt tokens/s ----",
               "---- decode tokens/s ----", out_plain());
    out_printf("%s%-24s", out_bold(), "");
    for (int i = 0; i < 2; i++) {
        out_printf("%10s%9s%s", "median", "best", ref ? "  ratio" : i == 0 ? "       " : "");
    }
    out_printf("%s\n", out_plain());
    for (size_t i = 0; i < b->n_sides; i++) {
        const side *s = &b->sides[i];
        bool is_ref = s == ref;
        out_printf("%-6s%-18s", s->name, s->kv);
        put_rate(s->prompt_tps, ref && !is_ref ? ref->prompt_tps : NULL, n, false);
        put_rate(s->decode_tps, ref && !is_ref ? ref->decode_tps : NULL, n, true);
        out_write("\n", 1);
    }
    if (ref) {
        out_printf("ratio: speed over that of %s %s, median over the rounds\n", ref->name, ref->kv);
        out_printf("same likeliest token as %s %s:\n", b->sides[0].name, b->sides[0].kv);
        for (size_t i = 1; i < b->n_sides; i++) {
            out_printf("%s  %s %s %zu of %u", i > 1 ? ",\n" : "", b->sides[i].name, b->sides[i].kv,
                       b->sides[i].n_agree, b->o->n_gen);
        }
        out_write("\n", 1);
    }
    out_flush();
}

static void csv_row(const bench *b, const side *s, size_t n_prompt, size_t round)
{
    if (!b->csv.f) {
        return;
    }
    bench_csv_machine(b->csv.f, &b->machine);
    const char *const texts[] = {b->info.name, b->info.weights, s->name, s->kv};
    for (size_t i = 0; i < 4; i++) {
        bench_csv_text(b->csv.f, texts[i]);
        fputc(',', b->csv.f);
    }
    fprintf(b->csv.f, "%zu,%u,%zu,%.3f,%.3f,%zu\n", n_prompt, b->o->n_gen, round + 1,
            s->prompt_tps[round], s->decode_tps[round], s->n_agree);
}

/* ---- The run ----------------------------------------------------------------------------- */

static void show_round(const char *what, size_t i, size_t n)
{
    char line[64];
    snprintf(line, sizeof line, "%s %zu of %zu", what, i, n);
    msg_status(line);
}

static bool measure(bench *b, size_t n_prompt)
{
    double prompt_s, decode_s;
    for (size_t i = 0; i < n_prompt; i++) {
        b->ids[i] = b->text[i % b->n_text];
    }
    for (size_t i = 0; i < b->n_sides; i++) {
        show_round("warm-up", i + 1, b->n_sides);
        if (!side_pass(b, &b->sides[i], n_prompt, i == 0, &prompt_s, &decode_s)) {
            return false;
        }
    }
    for (size_t r = 0; r < b->o->n_rounds; r++) {
        show_round("round", r + 1, b->o->n_rounds);
        for (size_t k = 0; k < b->n_sides; k++) {
            side *s = &b->sides[(k + r) % b->n_sides];
            if (!side_pass(b, s, n_prompt, false, &prompt_s, &decode_s)) {
                return false;
            }
            s->prompt_tps[r] = (double)n_prompt / prompt_s;
            s->decode_tps[r] = (double)b->o->n_gen / decode_s;
            csv_row(b, s, n_prompt, r);
        }
        if (!save_flush(&b->csv)) {
            return false;
        }
    }
    msg_status(NULL);
    put_table(b, n_prompt);
    for (size_t i = 0; i < b->n_sides; i++) {
        side *s = &b->sides[i];
        s->x[s->n_points] = (double)n_prompt;
        s->y[s->n_points++] = bench_median(s->decode_tps, b->o->n_rounds);
    }
    return true;
}

static bool draw(const bench *b)
{
    plot_curve curves[MAX_SIDES];
    static char names[MAX_SIDES][TQ_SCHEME_TEXT_BYTES + 16];
    char subtitle[512];
    for (size_t i = 0; i < b->n_sides; i++) {
        const side *s = &b->sides[i];
        snprintf(names[i], sizeof names[i], "%s %s", s->name, s->kv);
        curves[i] =
            (plot_curve){names[i], s->peer ? PLOT_DASHED : PLOT_LINE, s->x, s->y, s->n_points};
    }
    snprintf(subtitle, sizeof subtitle, "%s, %s; %s, %s, %u %s", b->info.name, b->info.weights,
             b->machine.cpu, b->machine.isa, b->n_threads,
             b->n_threads == 1 ? "thread" : "threads");
    const plot p = {.file = b->o->plot,
                    .title = "Decoding with a KV cache",
                    .subtitle = subtitle,
                    .x_label = "tokens of context",
                    .y_label = "tokens per second (median of the rounds)",
                    .curves = curves,
                    .n_curves = b->n_sides};
    return plot_draw(&p);
}

static bool open_all(bench *b, uint32_t n_ctx)
{
    tqe_error err = {0};
    uint32_t mask;
    if (tqe_model_load(&b->model, b->o->setup.model, NULL, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    tqe_model_get_info(b->model, &b->info);
    b->sides = calloc(MAX_SIDES, sizeof *b->sides);
    b->ids = malloc(n_ctx * sizeof *b->ids);
    if (!b->sides || !b->ids) {
        msg_error("not enough memory");
        return false;
    }
    if (tqe_tokenize(b->model, prompt_text, sizeof prompt_text - 1, true, false, &b->text,
                     &b->n_text, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    for (size_t i = 0; i < b->o->kv.n; i++) {
        if (!open_ours(b, b->o->kv.at[i], n_ctx)) {
            return false;
        }
    }
    for (size_t i = 0; b->o->peer && i < b->o->peer_kv.n; i++) {
        if (!open_peer(b, b->o->peer_kv.at[i], n_ctx)) {
            return false;
        }
    }
    setup_isa(b->o->setup.isa, &mask);
    bench_machine_get(&b->machine, mask, false, b->n_threads);
    return true;
}

static int bench_run(const bench_options *o)
{
    bench b = {.o = o};
    bool ok = target_is_not("--csv", o->csv, "-m", o->setup.model) &&
              bench_csv_open(&b.csv, o->csv,
                             "model,weights,side,kv,prompt_tokens,decode_tokens,round,prompt_tps,"
                             "decode_tps,same_tokens");
    uint32_t longest = 0;
    for (size_t i = 0; i < o->ctx.n; i++) {
        longest = o->ctx.at[i] > longest ? o->ctx.at[i] : longest;
    }
    ok = ok && open_all(&b, longest + o->n_gen);
    if (ok) {
        char name[192];
        bench_put_machine(&b.machine);
        snprintf(name, sizeof name, "%s%s%s", b.info.name, b.info.name[0] ? ", " : "",
                 b.info.weights);
        out_text(name, strlen(name));
        out_printf("; %u %s\n", o->n_rounds, o->n_rounds == 1 ? "round" : "rounds");
        out_flush();
    }
    for (size_t i = 0; ok && i < o->ctx.n; i++) {
        ok = measure(&b, o->ctx.at[i]);
    }
    ok = save_close(&b.csv, ok) && ok && (!o->plot || draw(&b));
    for (size_t i = 0; i < b.n_sides; i++) {
        tqe_session_free(b.sides[i].session);
        tqe_peer_free(b.sides[i].peer);
        free(b.sides[i].logits);
    }
    free(b.sides);
    free(b.ids);
    free(b.text);
    tqe_model_free(b.model);
    return ok ? TQ_EXIT_OK : TQ_EXIT_FAILED;
}

/* What the table of options cannot say. NULL: nothing is wrong. */
static const char *check(const bench_options *o, bool has_prompt, bool has_ctx)
{
    if (has_prompt && has_ctx) {
        return "-p and --ctx both set the prompt length";
    }
    if (o->peer && strcmp(o->peer, "llama") != 0) {
        return "--peer: the only peer is llama";
    }
    if (!o->peer && o->peer_kv.n) {
        return "--peer-kv goes with --peer llama";
    }
    return o->kv.n + o->peer_kv.n > MAX_SIDES - 1 ? "--kv and --peer-kv: too many" : NULL;
}

int bench_engine(int argc, char **argv)
{
    bench_options o = {.setup = SETUP_INIT, .n_prompt = 512, .n_gen = 128, .n_rounds = 5};
    arg_option options[] = {
        OPT_MODEL(o.setup),
        {.group = "Sides",
         .name = "kv",
         .meta = "SCHEME",
         .kind = ARG_STRINGS,
         .dst = &o.kv,
         .help = "cache scheme of our engine; may be repeated (default " SETUP_DEFAULT_KV ")"},
        {.name = "peer",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &o.peer,
         .help = "compare with 'llama': stock libllama in this process"},
        {.name = "peer-kv",
         .meta = "TYPE",
         .kind = ARG_STRINGS,
         .dst = &o.peer_kv,
         .help = "its cache type: f16, q8_0, q4_0, or a pair K/V; may be repeated (default f16)"},
        {.group = "Work",
         .letter = 'p',
         .name = "prompt",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.n_prompt,
         .min = 1,
         .max = SETUP_MAX_CTX / 2,
         .help = "prompt length (default 512)"},
        {.name = "ctx",
         .meta = "LIST",
         .kind = ARG_COUNTS,
         .dst = &o.ctx,
         .min = 1,
         .max = SETUP_MAX_CTX / 2,
         .help = "several prompt lengths, such as 512,4096: decode speed at each length"},
        {.letter = 'n',
         .name = "predict",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.n_gen,
         .min = 1,
         .max = SETUP_MAX_CTX / 2,
         .help = "tokens decoded after it (default 128)"},
        {.letter = 'r',
         .name = "rounds",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.n_rounds,
         .min = 1,
         .max = MAX_ROUNDS,
         .help = "timed rounds after one warm-up (default 5)"},
        OPT_THREADS(o.setup),
        OPT_ISA(o.setup),
        {.group = "Output",
         .name = "csv",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.csv,
         .help = "write one row for each side and round"},
        {.name = "plot",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.plot,
         .help = "draw decode speed against context, *.svg or *.png, with the program gnuplot"},
    };
    arg_command cmd = {
        .name = "tq bench engine",
        .summary = "prompt and decode speed, beside stock llama.cpp",
        .synopsis = "  tq bench engine -m FILE [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "All sides take turns in one process, on the same tokens: those that the first\n"
                 "side finds likeliest. How often the others agree is printed, too.\n",
        .examples = "  tq bench engine -m model.gguf --kv f16 --kv turbo:k8v3 --peer llama -t 1\n"
                    "  tq bench engine -m model.gguf --ctx 512,4096,16384 -n 32 --csv speed.csv\n",
    };
    arg_result r = args_parse(&cmd, argc, argv, NULL);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    const char *wrong = check(&o, args_given(&cmd, &o.n_prompt), o.ctx.n > 0);
    if (wrong) {
        msg_error("%s", wrong);
    }
    bool ok = !wrong && setup_check(&o.setup);
    for (size_t i = 0; ok && i < o.kv.n; i++) {
        tq_scheme scheme;
        char canonical[TQ_SCHEME_TEXT_BYTES];
        ok = setup_check_kv(o.kv.at[i], &scheme, canonical);
    }
    bool usage = true;
    ok = ok && (!o.plot || plot_check("--plot", o.plot, o.csv, &usage));
    if (!ok) {
        if (usage) {
            args_hint(&cmd);
        }
        return usage ? TQ_EXIT_USAGE : TQ_EXIT_FAILED;
    }
    if (!o.kv.n) {
        o.kv = (arg_strings){.at = {SETUP_DEFAULT_KV}, .n = 1};
    }
    if (o.peer && !o.peer_kv.n) {
        o.peer_kv = (arg_strings){.at = {"f16"}, .n = 1};
    }
    if (!o.ctx.n) {
        o.ctx = (arg_counts){.at = {o.n_prompt}, .n = 1};
    }
    return bench_run(&o);
}
