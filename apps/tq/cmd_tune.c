/* SPDX-License-Identifier: MIT */
/* cmd_tune.c — `tq tune`: the best formats for the layers of a model within a budget.
 *
 * Policy: everything that can be refused is refused before the first token is computed: flags,
 * budget, texts, where results go. What is measured is kept, see tune_state.c.
 */
#include "args.h"
#include "commands.h"
#include "generate.h"
#include "out.h"
#include "save.h"
#include "setup.h"
#include "target.h"
#include "text.h"
#include "tuning.h"

#include <stdlib.h>
#include <string.h>

typedef struct tune_options {
    setup setup;
    arg_strings files;
    arg_sizes memory;
    const char *budget, *output, *base, *json, *resume;
    uint32_t context, from, n_of[TUNE_ROLES];
    bool no_bos, has_from;
} tune_options;

/* ---- Budget ------------------------------------------------------------------------------ */

/* "4.25" bits per element, "2176B" bytes a token. */
static bool parse_budget(const char *s, double *v, bool *bytes)
{
    size_t n = strspn(s, ".0123456789");
    char *end = NULL;
    *v = strtod(s, &end);
    *bytes = n && !strcmp(s + n, "B");
    if (!n || end != s + n || (s[n] && !*bytes) || !(*v > 0 && *v < 1e15)) {
        msg_error("--budget: '%s' is neither bits per element, as 4.25, nor bytes of a token, as "
                  "2048B",
                  s);
        return false;
    }
    return true;
}

static bool budget_of_text(tuning *t, const char *s)
{
    const tqe_model_info *m = &t->e.model;
    double v, elements = (double)m->n_layers * m->n_kv_heads * (m->d_k + m->d_v);
    bool bytes;
    if (!parse_budget(s, &v, &bytes)) {
        return false;
    }
    t->budget = (uint64_t)(bytes ? v : v * elements / 8);
    return true;
}

static bool cache_bytes(const tuning *t, const tq_scheme *scheme, size_t *bytes)
{
    tqe_error err = {0};
    tq_scheme *layers = malloc(t->e.model.n_layers * sizeof *layers);
    for (uint32_t i = 0; layers && i < t->e.model.n_layers; i++) {
        layers[i] = *scheme;
    }
    tqe_status st =
        layers ? tqe_tune_cache_bytes(&t->e.model, layers, t->context, bytes, &err) : TQE_ERR_NOMEM;
    free(layers);
    if (st != TQE_OK) {
        msg_error("--context: %s", layers ? err.text : "not enough memory for a plan");
    }
    return st == TQE_OK;
}

/* A cache takes a fixed part and a part for each page that grows with the bytes of a token: two
 * schemes tell both. */
static bool budget_of_memory(tuning *t)
{
    const tq_scheme small = {.family = TQ_FAMILY_TRELLIS, .k_bits = 2, .v_bits = 2};
    const tq_scheme large = {.family = TQ_FAMILY_TRELLIS, .k_bits = 3, .v_bits = 3};
    size_t a, b;
    uint32_t low = 0, high = 0;
    char x[32], y[32];
    if (!cache_bytes(t, &small, &a) || !cache_bytes(t, &large, &b)) {
        return false;
    }
    tqe_tune_layer_bytes(&t->e.model, &small, &low, NULL);
    tqe_tune_layer_bytes(&t->e.model, &large, &high, NULL);
    const uint64_t n_layers = t->e.model.n_layers;
    const uint64_t step = (b - a) / ((high - low) * n_layers); /* bytes for one more byte a token */
    if (t->memory < a) {
        msg_error("--memory %s: %u tokens take %s in the smallest formats", text_size(x, t->memory),
                  t->context, text_size(y, a));
        return false;
    }
    t->budget = low * n_layers + (t->memory - a) / step;
    return true;
}

static bool find_budget(tuning *t, const tune_options *o)
{
    const tqe_model_info *m = &t->e.model;
    const tq_scheme small = {.family = TQ_FAMILY_TRELLIS, .k_bits = 2, .v_bits = 2};
    const tq_scheme f16 = {.family = TQ_FAMILY_F16, .k_bits = 16, .v_bits = 16};
    uint32_t least = 0, most = 0;
    tqe_error err = {0};
    if (tqe_tune_layer_bytes(m, &small, &least, &err) != TQE_OK ||
        tqe_tune_layer_bytes(m, &f16, &most, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    t->context = o->context;
    t->memory = o->memory.n ? o->memory.at[0] : 0;
    if (!(o->budget ? budget_of_text(t, o->budget) : budget_of_memory(t))) {
        return false;
    }
    uint64_t low = (uint64_t)least * m->n_layers, high = (uint64_t)most * m->n_layers;
    t->budget_bits = tune_bits(t, t->budget);
    if (t->budget < low) {
        msg_error("a budget of %llu bytes a token: the smallest formats take %llu (%.4g bits)",
                  (unsigned long long)t->budget, (unsigned long long)low, tune_bits(t, low));
        return false;
    }
    if (t->budget >= high) {
        msg_error("a budget of %llu bytes a token: f16 takes %llu, there is nothing to choose",
                  (unsigned long long)t->budget, (unsigned long long)high);
        return false;
    }
    return true;
}

/* ---- Input ------------------------------------------------------------------------------- */

/* Gives each window a role, so that the windows of each role are spread over all texts: the next
 * window goes to the role that is furthest behind its share. */
static bool share_windows(tuning *t)
{
    const evaluation *e = &t->e;
    uint32_t given[TUNE_ROLES] = {0};
    size_t n_done = 0;
    for (size_t r = 0; r < TUNE_ROLES; r++) {
        t->windows[r] = malloc(t->n_of[r] * sizeof *t->windows[r]);
        if (!t->windows[r]) {
            msg_error("not enough memory for the windows");
            return false;
        }
    }
    /* Windows lie text after text; take the first of each, the second of each ... */
    for (size_t k = 0; n_done < e->n_windows; k++) {
        size_t first = 0;
        for (size_t i = 0; i < e->n_texts; first += e->texts[i].n_windows, i++) {
            if (k >= e->texts[i].n_windows) {
                continue;
            }
            n_done++;
            size_t role = 0;
            double behind = -1e9;
            for (size_t r = 0; r < TUNE_ROLES; r++) {
                double d = (double)t->n_of[r] * (double)n_done / (double)e->n_windows - given[r];
                if (given[r] < t->n_of[r] && d > behind) {
                    behind = d;
                    role = r;
                }
            }
            t->windows[role][given[role]++] = (uint32_t)(first + k);
        }
    }
    return true;
}

static bool read_input(tuning *t, const tune_options *o)
{
    evaluation *e = &t->e;
    tqe_error err = {0};
    uint32_t train = e->model.n_ctx_train;
    size_t n = 0;
    for (size_t r = 0; r < TUNE_ROLES; r++) {
        n += t->n_of[r] = o->n_of[r];
    }
    if (train && e->n_ctx > train) {
        msg_warn("model trained for %u tokens; text beyond may get worse", train);
    }
    if (tqe_file_fingerprint(o->setup.model, &e->fingerprint, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    return eval_read_texts(e, t->model, &o->files, n) && share_windows(t);
}

/* "dir/model.gguf" -> "model": files of a result go into the current folder. */
static void default_output(char *dst, size_t n, const char *model)
{
    const char *slash = strrchr(model, '/');
    snprintf(dst, n, "%s", slash ? slash + 1 : model);
    char *end = strrchr(dst, '.');
    if (end && end != dst && !strcmp(end, ".gguf")) {
        *end = '\0';
    }
}

/* A result goes where it can go, and onto no input. */
static bool may_write(const tune_options *o, const char *flag, const char *path)
{
    const target_inputs in = {.model = o->setup.model, .files = &o->files, .kv = o->base};
    return save_check(flag, path) && target_spares(flag, path, &in);
}

/* A scheme holds the names of its files, which go on from NAME: behind that of a folder they would
 * be hidden ones. */
static bool is_name(const char *name)
{
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
    if (!*last || !strcmp(last, ".") || !strcmp(last, "..")) {
        msg_error("-o: '%s' is a folder: give the files a name, such as '%.*s%stuned'", name,
                  (int)(*last ? strlen(name) : (size_t)(last - name)), name, *last ? "/" : "");
        return false;
    }
    bool ok = strlen(name) + sizeof ".layers" <= TQ_SCHEME_FILE_BYTES && !strchr(name, ',');
    if (!ok) {
        msg_error("-o: '%s' cannot stand in a scheme: a comma in it, or more than %d bytes", name,
                  (int)(TQ_SCHEME_FILE_BYTES - sizeof ".layers"));
    }
    return ok;
}

static bool check_output(const tune_options *o, const char *name, const char *state)
{
    char path[TQ_SCHEME_FILE_BYTES], means[TQ_SCHEME_FILE_BYTES];
    if (!is_name(name)) {
        return false;
    }
    snprintf(path, sizeof path, "%s.layers", name);
    if (!may_write(o, "-o", path)) {
        return false;
    }
    snprintf(means, sizeof means, "%s.kmean", name);
    static const char *const flags[] = {"-o", "-o", "--json", "--resume"};
    const char *const paths[] = {path, means, o->json, state};
    return target_apart(flags, paths, 4) && may_write(o, "-o", means) &&
           may_write(o, "--json", o->json) && may_write(o, "--resume", state);
}

/* ---- The run ----------------------------------------------------------------------------- */

static int finish(tuning *t, const tune_options *o)
{
    char a[32], b[32];
    size_t bytes;
    tune_put_report(t); /* first: it is there when a disk is full */
    const tune_named *n = &t->named[t->fell_back ? t->rival : t->winner];
    if (t->context &&
        tqe_tune_cache_bytes(&t->e.model, n->layers, t->context, &bytes, NULL) == TQE_OK) {
        out_printf("A context of %u tokens takes %s of %s.\n", t->context, text_size(a, bytes),
                   text_size(b, t->memory));
    }
    if (!tune_write_files(t) || (o->json && !tune_write_json(t, o->json))) {
        msg_note("what was measured is in '%s', the same command goes on from there", t->state);
        return TQ_EXIT_FAILED;
    }
    /* A state that was asked for stays, for other budgets; one of our own has served. */
    if (!o->resume) {
        remove(t->state);
    }
    return TQ_EXIT_OK;
}

static int work(tuning *t, const tune_options *o)
{
    const size_t n = (size_t)t->e.model.n_layers * t->e.model.n_kv_heads * t->e.model.d_k;
    tqe_error err = {0};
    t->sums = calloc(n, sizeof *t->sums);
    t->k_mean = calloc(n, sizeof *t->k_mean);
    if (!t->sums || !t->k_mean) {
        msg_error("not enough memory for the keys");
        return TQ_EXIT_FAILED;
    }
    if (!tune_list_pairs(t) || !tune_load_state(t)) {
        return TQ_EXIT_FAILED;
    }
    out_wrapped("%s%s%s; budget %llu bytes a token, %.4g bits; windows of %u tokens: %u for the "
                "mean, %u to scan, %u to choose, %u held out",
                t->e.model.name, t->e.model.name[0] ? ", " : "", t->e.model.weights,
                (unsigned long long)t->budget, t->budget_bits, t->e.n_ctx, t->n_of[TUNE_CALIBRATE],
                t->n_of[TUNE_SCAN], t->n_of[TUNE_CHOOSE], t->n_of[TUNE_FINAL]);
    out_flush();
    gen_catch_interrupts(true);
    tqe_status st = tune_run(t, &err);
    if (st == TQE_OK) {
        return finish(t, o);
    }
    if (st != TQE_ERR_CANCELLED) {
        if (err.text[0]) { /* else a message was written */
            msg_error("%s", err.text);
        }
        return TQ_EXIT_FAILED;
    }
    msg_note("interrupted; what is finished is in '%s', the same command goes on from there",
             t->state);
    return gen_interrupt_code();
}

static void free_tuning(tuning *t)
{
    for (size_t i = 0; i < t->n_named; i++) {
        free(t->named[i].layers);
    }
    for (size_t r = 0; r < TUNE_ROLES; r++) {
        free(t->windows[r]);
    }
    free(t->sums);
    free(t->k_mean);
    free(t->scan_kl);
    free(t->costs);
    tune_free_facts(t);
    eval_free_input(&t->e);
}

static int tune_model(const tune_options *o)
{
    static tuning t;
    tqe_model *m = NULL;
    tqe_error err = {0};
    char output[256], state[264];
    int code = TQ_EXIT_FAILED;
    default_output(output, sizeof output, o->setup.model);
    t.output = o->output ? o->output : output;
    snprintf(state, sizeof state, "%.255s.part", t.output);
    t.state = o->resume ? o->resume : state;
    if (!check_output(o, t.output, t.state)) {
        return code;
    }
    /* The header tells whether the budget makes sense, before the weights are read. */
    if (tqe_model_probe(o->setup.model, &t.e.model, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return code;
    }
    if (!find_budget(&t, o)) {
        return code;
    }
    t.e.model_path = o->setup.model;
    t.e.n_ctx = o->setup.n_ctx;
    t.e.from = o->has_from ? o->from : tqe_eval_default_from(t.e.n_ctx);
    t.e.no_bos = o->no_bos;
    tq_scheme_parse(&t.base, o->base, NULL, 0); /* was checked */
    t.params =
        (tqe_tune_params){.n_ctx = t.e.n_ctx, .from = t.e.from, .n_threads = o->setup.n_threads};
    setup_isa(o->setup.isa, &t.params.isa_mask);
    msg_status("loading the model ...");
    tqe_status st = tqe_model_load(&m, o->setup.model, NULL, &err);
    msg_status(NULL);
    if (st != TQE_OK) {
        msg_error("%s", err.text);
        return code;
    }
    setup_warn_threads(o->setup.n_threads);
    tqe_model_get_info(m, &t.e.model);
    t.model = m;
    if (read_input(&t, o)) {
        code = work(&t, o);
    }
    free_tuning(&t);
    tqe_model_free(m);
    return code;
}

/* What the table of options cannot say. NULL: nothing is wrong. */
static const char *check(const tune_options *o)
{
    if (!o->files.n) {
        return "no text: give one with -f FILE";
    }
    for (size_t i = 0; i < o->files.n; i++) {
        if (!strcmp(o->files.at[i], "-")) {
            return "-f -: a text from stdin is not possible, give a file";
        }
    }
    if (!o->budget && !o->context && !o->memory.n) {
        return "no budget: give bits or bytes with --budget, or --context N and --memory SIZE";
    }
    if (o->budget && (o->context || o->memory.n)) {
        return "--budget and --context with --memory are two ways to say the same: give one";
    }
    if (!o->budget && (!o->context || o->memory.n != 1)) {
        return "--context N and one --memory SIZE go together";
    }
    if (o->has_from && o->from >= o->setup.n_ctx - 1) {
        return "--from: no position of a window (-c) is left to score";
    }
    return NULL;
}

#define OPT_WINDOWS(flag, role, text)                                                              \
    {                                                                                              \
        .name = flag, .meta = "N", .kind = ARG_COUNT, .dst = &o.n_of[role], .min = 1,              \
        .max = 10000, .help = text                                                                 \
    }

int cmd_tune(int argc, char **argv)
{
    tune_options o = {.setup = SETUP_INIT, .base = "f32", .n_of = {4, 2, 4, 8}};
    o.setup.n_ctx = 2048;
    arg_option options[] = {
        OPT_MODEL(o.setup),
        {.letter = 'f',
         .name = "file",
         .meta = "FILE",
         .kind = ARG_STRINGS,
         .dst = &o.files,
         .help = "text to measure on, NUL between documents; may be repeated"},
        {.group = "Budget",
         .name = "budget",
         .meta = "B",
         .kind = ARG_STRING,
         .dst = &o.budget,
         .help = "bits per element of keys and values, all included (4.25), or bytes of a token "
                 "over all layers (2176B)"},
        {.name = "context",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.context,
         .min = 1,
         .max = SETUP_MAX_CTX,
         .help = "with --memory: what a cache of N tokens may take instead"},
        {.name = "memory",
         .meta = "SIZE",
         .kind = ARG_SIZES,
         .dst = &o.memory,
         .help = "memory of that cache, such as 512M"},
        {.group = "Measurement",
         .letter = 'c',
         .name = "ctx",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.setup.n_ctx,
         .min = TQE_EVAL_MIN_CTX,
         .max = SETUP_MAX_CTX,
         .help = "tokens of a window (default 2048); the key mean serves positions up to it"},
        {.name = "from",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.from,
         .min = 0,
         .max = SETUP_MAX_CTX,
         .help = "first position that counts (default: 256, or a quarter of a short window)"},
        OPT_WINDOWS("calibrate", TUNE_CALIBRATE, "windows for the mean of the keys (default 4)"),
        OPT_WINDOWS("scan", TUNE_SCAN,
                    "windows on which each format is measured in each layer "
                    "(default 2)"),
        OPT_WINDOWS("choose", TUNE_CHOOSE,
                    "windows that decide on the mean and between candidates "
                    "(default 4)"),
        {.letter = 'w',
         .name = "windows",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.n_of[TUNE_FINAL],
         .min = 1,
         .max = 10000,
         .help = "held-out windows, on which the result is reported (default 8)"},
        {.name = "base",
         .meta = "SCHEME",
         .kind = ARG_STRING,
         .dst = &o.base,
         .help = "what the other layers are stored as while one is scanned (default f32)"},
        {.name = "no-bos",
         .kind = ARG_FLAG,
         .dst = &o.no_bos,
         .help = "begin windows without a BOS token, for models that have none"},
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
         .letter = 'o',
         .name = "output",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &o.output,
         .help = "write NAME.layers and NAME.kmean (default: the model's file name without .gguf, "
                 "in this folder)"},
        {.name = "json",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.json,
         .help = "write all results; equal runs write equal bytes"},
        {.name = "resume",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.resume,
         .help = "keep what is measured here and go on from it, for other budgets too (default: "
                 "NAME.part, removed at the end)"},
    };
    arg_command cmd = {
        .name = "tq tune",
        .summary = "choose the formats of the layers within a budget",
        .synopsis = "  tq tune -m FILE -f TEXT --budget B [options]\n"
                    "  tq tune -m FILE -f TEXT --context N --memory SIZE [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "The result is never worse than the best uniform scheme of at most that size, on\n"
                 "windows that were held out; where it would be, that scheme is the answer.\n",
        .examples = "  tq tune -m model.gguf -f book.txt --budget 4.25\n"
                    "  tq tune -m model.gguf -f book.txt --context 32768 --memory 2G -o small\n",
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
    tq_scheme base;
    char canonical[TQ_SCHEME_TEXT_BYTES], why[TQ_SCHEME_ERROR_BYTES];
    bool ok = !wrong && setup_check(&o.setup);
    if (ok && (tq_scheme_parse(&base, o.base, why, sizeof why) != TQ_OK ||
               tq_scheme_format(&base, canonical, sizeof canonical) != TQ_OK)) {
        msg_error("--base: %s", why);
        ok = false;
    }
    double v;
    bool bytes;
    ok =
        ok && (!o.budget || parse_budget(o.budget, &v, &bytes)) && (!o.output || is_name(o.output));
    if (ok && (base.kmean[0] || base.layers[0])) {
        msg_error("--base: a scheme without files");
        ok = false;
    }
    if (!ok) {
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    return tune_model(&o);
}
