/* SPDX-License-Identifier: MIT */
/* bench_attn.c — `tq bench attn`: the command line, and which sides take part. */
#include "bench_attn.h"

#include "commands.h"
#include "out.h"
#include "plot.h"
#include "setup.h"

#include <math.h>
#include <string.h>

static const char *const default_kv[] = {"f16",    "turbo:k8v4", "turbo:k8v3", "turbo8",
                                         "turbo4", "turbo3",     "tcq4",       "tcq3"};
static const char *const default_peers[] = {"f16",       "f16@head",       "q8_0", "q8_0@head",
                                            "q8_0/q4_0", "q8_0/q4_0@head", "q4_0", "q4_0@head"};

/* A side takes part when it can store these dimensions: else it is an error where it was asked
 * for, and left out where it is one of the default ones. */
static bool add_scheme(attn_bench *b, const char *text, bool asked)
{
    tq_scheme scheme;
    size_t bytes;
    char *name = b->names[b->n_sides];
    if (!setup_check_kv(text, &scheme, name)) {
        return false;
    }
    tq_layer layer = {.n_kv_heads = b->shape.n_kv_heads,
                      .d_k = b->shape.d_k,
                      .d_v = b->shape.d_v,
                      .scheme = scheme};
    tq_cache_config cfg = {
        .layers = &layer, .n_layers = 1, .n_pages = 1, .max_seqs = 1, .isa_mask = b->isa};
    if (tq_scheme_bytes_per_token(&scheme, layer.d_k, layer.d_v, &bytes) != TQ_OK) {
        if (asked) {
            bench_bad_dims(name, &scheme, layer.d_k, layer.d_v);
        }
        return !asked;
    }
    if (scheme.skip || tq_cache_bytes(&cfg, &bytes) != TQ_OK) {
        msg_error("--kv %s: a single layer does not take this option", name);
        return false;
    }
    b->n_ours = ++b->n_sides;
    return true;
}

static bool add_peer(attn_bench *b, const char *text, bool asked)
{
    char *name = b->names[b->n_sides], type[TQ_SCHEME_TEXT_BYTES];
    const char *at = strchr(text, '@');
    tqe_error err = {0};
    size_t kv, all;
    if (strlen(text) >= sizeof type) {
        msg_error("--peer: the name is too long");
        return false;
    }
    if (at && strcmp(at, "@head") != 0) {
        msg_error("--peer %s: '%s' is not a layout; the only one is @head", text, at);
        return false;
    }
    strcpy(name, text);
    tqe_peer_attn_params p = attn_peer_params(b, name, type);
    p.n_kv = p.q_len;
    tqe_status st = tqe_peer_attn_bytes(&p, &kv, &all, &err);
    if (st == TQE_ERR_UNSUPPORTED && !asked) {
        return true;
    }
    if (st != TQE_OK) {
        msg_error("--peer %s: %s", name, err.text);
        return false;
    }
    b->n_sides++;
    return true;
}

static bool add_sides(attn_bench *b, const arg_strings *kv, const arg_strings *peers)
{
    const size_t n_kv = kv->n ? kv->n : sizeof default_kv / sizeof default_kv[0];
    const bool none = peers->n == 1 && !strcmp(peers->at[0], "none");
    const size_t n_peers = none       ? 0
                           : peers->n ? peers->n
                                      : sizeof default_peers / sizeof default_peers[0];
    if (n_kv + n_peers > ATTN_MAX_SIDES) {
        msg_error("--kv and --peer: more than %d sides", ATTN_MAX_SIDES);
        return false;
    }
    for (size_t i = 0; i < n_kv; i++) {
        if (!add_scheme(b, kv->n ? kv->at[i] : default_kv[i], kv->n > 0)) {
            return false;
        }
    }
    if (!b->n_ours) {
        bench_bad_dims(NULL, NULL, b->shape.d_k, b->shape.d_v);
        return false;
    }
    for (size_t i = 0; i < n_peers; i++) {
        if (peers->n && !strcmp(peers->at[i], "none")) {
            msg_error("--peer none goes with no other --peer");
            return false;
        }
        if (!add_peer(b, peers->n ? peers->at[i] : default_peers[i], peers->n > 0)) {
            return false;
        }
    }
    return true;
}

/* What the table of options cannot say. */
static bool check(const attn_bench *b, const char *clock)
{
    const attn_shape *s = &b->shape;
    if (s->n_heads % s->n_kv_heads != 0 || s->n_heads / s->n_kv_heads > 32) {
        msg_error("--heads: %u is not 1 to 32 times --kv-heads %u", s->n_heads, s->n_kv_heads);
        return false;
    }
    for (size_t i = 0; i < b->contexts.n; i++) {
        if (b->contexts.at[i] < s->q_len) {
            msg_error("--n-kv: %u is less than --q-len %u", b->contexts.at[i], s->q_len);
            return false;
        }
    }
    if (strcmp(clock, "wall") != 0 && strcmp(clock, "cpu") != 0) {
        msg_error("--clock: '%s' is neither wall nor cpu", clock);
        return false;
    }
    if (b->cpu_clock && b->n_threads > 1) {
        msg_error("--clock cpu goes with one thread: others spin while they wait");
        return false;
    }
    return true;
}

int bench_attn(int argc, char **argv)
{
    static attn_bench b; /* large */
    b = (attn_bench){.shape = {.n_heads = 32, .n_kv_heads = 8, .d_k = 128, .d_v = 128, .q_len = 1},
                     .n_threads = 1,
                     .n_rounds = 9,
                     .sigma = 1};
    arg_strings kv = {.n = 0}, peers = {.n = 0};
    const char *isa = NULL, *clock = "wall";
    arg_option options[] = {
        {.group = "Sides",
         .name = "kv",
         .meta = "SCHEME",
         .kind = ARG_STRINGS,
         .dst = &kv,
         .help = "one of our schemes; may be repeated (default: f16, turbo:k8v4, turbo:k8v3, "
                 "turbo8, turbo4, turbo3, tcq4, tcq3)"},
        {.name = "peer",
         .meta = "TYPE",
         .kind = ARG_STRINGS,
         .dst = &peers,
         .help = "ggml's kernel over f16, q8_0, q4_0 or a pair K/V as llama.cpp lays them out, or "
                 "with @head head-major; may be repeated; none: ours alone (default: f16, q8_0, "
                 "q8_0/q4_0 and q4_0, in both layouts)"},
        {.group = "Work",
         .name = "heads",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.shape.n_heads,
         .min = 1,
         .max = 32768,
         .help = "query heads (default 32)"},
        {.name = "kv-heads",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.shape.n_kv_heads,
         .min = 1,
         .max = 1024,
         .help = "heads of keys and values (default 8)"},
        {.name = "dk",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.shape.d_k,
         .min = 16,
         .max = 1024,
         .help = "elements of a key (default 128)"},
        {.name = "dv",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.shape.d_v,
         .min = 16,
         .max = 1024,
         .help = "elements of a value (default: those of a key)"},
        {.name = "q-len",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.shape.q_len,
         .min = 1,
         .max = 4096,
         .help = "query tokens at once (default 1)"},
        {.name = "n-kv",
         .meta = "LIST",
         .kind = ARG_COUNTS,
         .dst = &b.contexts,
         .min = 1,
         .max = SETUP_MAX_CTX,
         .help = "tokens of context (default 512,4096,16384,32768)"},
        {.name = "sigma",
         .meta = "F",
         .kind = ARG_REAL,
         .dst = &b.sigma,
         .min = 0.001,
         .max = 100,
         .help = "standard deviation of the logits (default 1)"},
        {.name = "hot",
         .kind = ARG_FLAG,
         .dst = &b.hot,
         .help = "time the second of two runs in a row, for data in the caches"},
        {.letter = 'r',
         .name = "rounds",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.n_rounds,
         .min = 1,
         .max = BENCH_MAX_ROUNDS,
         .help = "timed rounds after one warm-up (default 9)"},
        {.group = "Machine",
         .letter = 't',
         .name = "threads",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.n_threads,
         .min = 1,
         .max = SETUP_MAX_THREADS,
         .help = "threads of every side (default 1)"},
        {.name = "isa",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &isa,
         .help = "our kernels: scalar, avx2, avx512 or neon (default: the best that runs here)"},
        {.name = "clock",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &clock,
         .help = "wall, or cpu: the time that the process got, on a machine that others use"},
        {.group = "Output",
         .name = "csv",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &b.csv_name,
         .help = "write one row for each context and side"},
        {.name = "plot",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &b.plot_name,
         .help = "draw time against context, *.svg or *.png, with the program gnuplot"},
    };
    arg_command cmd = {
        .name = "tq bench attn",
        .summary = "attention over a cache, beside ggml's own kernel",
        .synopsis = "  tq bench attn [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "All sides hold the same rows and take turns in every round. Errors are relative\n"
                 "root mean squares against float64 attention over the rows before they were\n"
                 "stored, and for ours also over those that were.\n",
        .examples = "  tq bench attn --n-kv 16384 --kv f16 --kv turbo4 --peer f16 --peer f16@head\n"
                    "  tq bench attn --q-len 512 --n-kv 4096 -r 3 --peer f16\n"
                    "  tq bench attn --csv attn.csv --plot attn.svg\n",
    };
    arg_result r = args_parse(&cmd, argc, argv, NULL);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    if (!b.contexts.n) {
        b.contexts = (arg_counts){.at = {512, 4096, 16384, 32768}, .n = 4};
    }
    if (!args_given(&cmd, &b.shape.d_v)) {
        b.shape.d_v = b.shape.d_k;
    }
    b.cpu_clock = !strcmp(clock, "cpu");
    b.shape.scale = 1 / sqrtf((float)b.shape.d_k);
    bool usage = true;
    bool ok = check(&b, clock) && setup_isa(isa, &b.isa) && add_sides(&b, &kv, &peers) &&
              (!b.plot_name || plot_check("--plot", b.plot_name, b.csv_name, &usage));
    if (!ok) {
        if (usage) {
            args_hint(&cmd);
        }
        return usage ? TQ_EXIT_USAGE : TQ_EXIT_FAILED;
    }
    bench_machine_get(&b.machine, b.isa, false, b.n_threads);
    return attn_bench_run(&b);
}
