/* SPDX-License-Identifier: MIT */
/* bench_cache.c — `tq bench cache`: what a compressed store costs and saves, without a model.
 *
 * Policy: the store is that of a real session (several layers, append in three steps, one thread
 * per part), its rows are made up. All schemes take turns in every round. Memory is counted three
 * ways: what the planner promises, what the allocator was asked for, and what the process then
 * resides in more, since a plan that the system does not confirm is only a formula.
 */
#define _GNU_SOURCE
#include "args.h"
#include "bench_cache.h"
#include "commands.h"
#include "generate.h"
#include "machine.h"
#include "out.h"
#include "plot.h"
#include "setup.h"
#include "text.h"
#include "turboquant_pages.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Memory ------------------------------------------------------------------------------ */

static void *counted_alloc(void *ctx, size_t bytes)
{
    *(size_t *)ctx += bytes;
    return malloc(bytes);
}

static void counted_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

/* Resident bytes of this process, or 0 when the system does not tell. */
static size_t resident(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%*s %lu", &pages) != 1) {
            pages = 0;
        }
        fclose(f);
    }
    long size = sysconf(_SC_PAGESIZE);
    return pages * (size_t)(size > 0 ? size : 0);
}

/* Room for the tokens, one more, and a fork's copies of the last pages. */
static tq_cache_config config_of(cache_bench *b, const tq_scheme *scheme)
{
    const uint32_t pages = (b->shape.n_kv + 1 + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS;
    for (uint32_t i = 0; i < b->n_layers; i++) {
        b->layers[i] = (tq_layer){.n_kv_heads = b->shape.n_kv_heads,
                                  .d_k = b->shape.d_k,
                                  .d_v = b->shape.d_v,
                                  .scheme = *scheme};
    }
    return (tq_cache_config){.layers = b->layers,
                             .n_layers = b->n_layers,
                             .n_pages = pages + 2,
                             .max_seqs = 2,
                             .isa_mask = b->isa,
                             .max_append = CACHE_STEP,
                             .max_seq_pages = pages,
                             .rollback = CACHE_ROLLBACK};
}

static double cpu_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Actions ----------------------------------------------------------------------------- */

typedef struct storing {
    cache_side *s;
    const cache_bench *b;
    uint32_t seq;
    atomic_int status;
} storing;

static void store_member(void *arg, uint32_t id)
{
    storing *w = arg;
    const attn_shape *sh = &w->b->shape;
    for (uint32_t l = 0; l < w->b->n_layers; l++) {
        tq_status st = tq_cache_append_rows(
            w->s->cache, w->seq, l, w->b->k, (size_t)sh->n_kv_heads * sh->d_k, w->b->v,
            (size_t)sh->n_kv_heads * sh->d_v, id, w->b->machine.n_threads);
        if (st != TQ_OK) {
            atomic_store(&w->status, st);
        }
    }
}

static tq_status append(const cache_bench *b, cache_side *s, uint32_t seq, uint32_t n)
{
    storing w = {.s = s, .b = b, .seq = seq};
    tq_status st = tq_cache_append_begin(s->cache, seq, n);
    if (st == TQ_OK) {
        team_run(b->team, store_member, &w);
        st = (tq_status)atomic_load(&w.status);
        if (st == TQ_OK) {
            st = tq_cache_append_commit(s->cache, seq);
        } else {
            tq_cache_append_abort(s->cache, seq);
        }
    }
    return st;
}

static tq_status append_all(const cache_bench *b, cache_side *s)
{
    tq_status st = TQ_OK;
    for (uint32_t at = 0; st == TQ_OK && at < b->shape.n_kv; at += CACHE_STEP) {
        uint32_t left = b->shape.n_kv - at;
        st = append(b, s, s->seq, left < CACHE_STEP ? left : CACHE_STEP);
    }
    return st;
}

/* Bytes of all pages; with a buffer they are written there. */
static tq_status export_all(const cache_side *s, uint8_t *dst, size_t *bytes)
{
    tq_page_ref p = {0};
    tq_status st;
    *bytes = 0;
    while ((st = tq_cache_page_next(s->cache, s->seq, &p)) == TQ_OK && p.bytes > 0) {
        if (dst &&
            (st = tq_cache_page_export(s->cache, s->seq, &p, dst + *bytes, p.bytes)) != TQ_OK) {
            break;
        }
        *bytes += p.bytes;
    }
    return st;
}

static tq_status import_all(const cache_bench *b, cache_side *s, uint32_t *seq)
{
    tq_page_ref p = {0};
    size_t at = 0;
    tq_status st = tq_cache_seq_open(s->cache, seq);
    st = st == TQ_OK ? tq_cache_import_begin(s->cache, *seq, b->shape.n_kv) : st;
    while (st == TQ_OK && (st = tq_cache_page_next(s->cache, *seq, &p)) == TQ_OK && p.bytes > 0) {
        st = tq_cache_import_page(s->cache, *seq, &p, b->file + at, p.bytes);
        at += p.bytes;
    }
    return st == TQ_OK ? tq_cache_append_commit(s->cache, *seq) : st;
}

/* One round of a side. It begins and ends with an empty sequence. */
static tq_status round_of(const cache_bench *b, cache_side *s, size_t r)
{
    uint32_t other = 0;
    size_t bytes;
    tq_status st = TQ_OK;
    double start, end = b->now();
#define TIMED(what, call)                                                                          \
    do {                                                                                           \
        start = b->now();                                                                          \
        st = st == TQ_OK ? (call) : st;                                                            \
        end = b->now();                                                                            \
        s->seconds[what][r] = end - start;                                                         \
    } while (0)
#define UNTIMED(call) st = st == TQ_OK ? (call) : st

    TIMED(APPEND, append_all(b, s));
    TIMED(EXPORT, export_all(s, b->file, &bytes));
    /* The last page is shared, but where the tokens fill it. */
    TIMED(FORK, tq_cache_seq_fork(s->cache, s->seq, b->shape.n_kv, &other));
    TIMED(COPY, append(b, s, other, 1));
    UNTIMED(tq_cache_seq_close(s->cache, other));
    TIMED(ONE, append(b, s, s->seq, 1));
    TIMED(CUT, tq_cache_truncate(s->cache, s->seq, b->shape.n_kv + 1 - CACHE_ROLLBACK));
    UNTIMED(tq_cache_truncate(s->cache, s->seq, 0));
    TIMED(IMPORT, import_all(b, s, &other));
    UNTIMED(tq_cache_seq_close(s->cache, other));
#undef TIMED
#undef UNTIMED
    return st;
}

static bool open_side(cache_bench *b, cache_side *s)
{
    const tq_allocator counted = {counted_alloc, counted_free, &s->allocated};
    const tq_cache_config cfg = config_of(b, &s->scheme);
    tq_cache_stats stats;
    size_t before = resident(), file = 0;
    tq_status st = tq_cache_bytes(&cfg, &s->planned);
    st = st == TQ_OK ? tq_cache_create(&s->cache, &cfg, &counted) : st;
    st = st == TQ_OK ? tq_cache_seq_open(s->cache, &s->seq) : st;
    st = st == TQ_OK ? append_all(b, s) : st;
    st = st == TQ_OK ? tq_cache_get_stats(s->cache, &stats) : st;
    st = st == TQ_OK ? export_all(s, NULL, &file) : st;
    if (st == TQ_OK) {
        size_t now = resident();
        s->resident = now > before ? now - before : 0;
        s->bytes_per_token = stats.bytes_per_token;
        s->page_bytes = file;
        b->file_bytes = file > b->file_bytes ? file : b->file_bytes;
        st = tq_cache_truncate(s->cache, s->seq, 0);
    }
    /* As a server would ask: one sequence, as long as it can be. */
    tq_cache_config all = cfg;
    uint32_t n_pages = 0;
    all.max_seqs = 1;
    all.max_append = CACHE_STEP;
    all.max_seq_pages = 0;
    if (st == TQ_OK && tq_cache_plan(&all, b->memory, &n_pages) == TQ_OK) {
        s->fits = (uint64_t)n_pages * TQ_PAGE_TOKENS;
    }
    if (st != TQ_OK) {
        msg_error("--kv %s: %s", s->name, tq_status_name(st));
    }
    return st == TQ_OK;
}

/* ---- The run ----------------------------------------------------------------------------- */

static bool open_all(cache_bench *b)
{
    const attn_shape *s = &b->shape;
    b->team = team_create(b->machine.n_threads);
    b->k = malloc((size_t)CACHE_STEP * s->n_kv_heads * s->d_k * sizeof *b->k);
    b->v = malloc((size_t)CACHE_STEP * s->n_kv_heads * s->d_v * sizeof *b->v);
    if (!b->team || !b->k || !b->v) {
        msg_error("not enough memory");
        return false;
    }
    attn_data_rows(s, b->k, b->v, 0, CACHE_STEP);
    for (size_t i = 0; i < b->n_sides; i++) {
        if (!open_side(b, &b->sides[i])) {
            return false;
        }
    }
    b->file = malloc(b->file_bytes);
    if (!b->file) {
        msg_error("not enough memory");
    } else {
        memset(b->file, 0, b->file_bytes);
    }
    return b->file != NULL;
}

static bool run_rounds(cache_bench *b)
{
    char line[64];
    for (uint32_t r = 0; r < b->n_rounds; r++) {
        snprintf(line, sizeof line, "round %u of %u", r + 1, b->n_rounds);
        msg_status(line);
        for (size_t i = 0; i < b->n_sides; i++) {
            cache_side *s = &b->sides[(i + r) % b->n_sides];
            tq_status st = round_of(b, s, r);
            if (st != TQ_OK) {
                msg_status(NULL);
                msg_error("%s: %s", s->name, tq_status_name(st));
                return false;
            }
        }
        if (gen_interrupted()) {
            b->n_rounds = r + 1; /* those that are complete */
        }
    }
    msg_status(NULL);
    return true;
}

static int bench_run(cache_bench *b)
{
    if (!cache_open_csv(b)) {
        return TQ_EXIT_FAILED;
    }
    gen_catch_interrupts(true);
    bench_put_machine(&b->machine);
    out_printf("%u %s of %u KV heads x %u/%u, %u tokens; median of %u %s, %s time\n", b->n_layers,
               b->n_layers == 1 ? "layer" : "layers", b->shape.n_kv_heads, b->shape.d_k,
               b->shape.d_v, b->shape.n_kv, b->n_rounds, b->n_rounds == 1 ? "round" : "rounds",
               b->cpu_time ? "CPU" : "wall");
    bool ok = open_all(b) && run_rounds(b);
    if (ok) {
        cache_put_tables(b);
        ok = cache_write_csv(b) && (!b->plot_name || cache_draw(b));
    }
    save_close(&b->csv, false); /* after a failure it is still open */
    for (size_t i = 0; i < b->n_sides; i++) {
        tq_cache_destroy(b->sides[i].cache);
    }
    team_destroy(b->team);
    free(b->k);
    free(b->v);
    free(b->file);
    if (gen_interrupted()) {
        msg_note("(interrupted: the rounds that were complete are shown)");
        return gen_interrupt_code();
    }
    return ok ? TQ_EXIT_OK : TQ_EXIT_FAILED;
}

/* A side can be stored when the scheme takes these dimensions, without which a default one is left
 * out, and needs no file. */
static bool add_side(cache_bench *b, const char *text, bool asked)
{
    cache_side *s = &b->sides[b->n_sides];
    size_t bytes;
    if (b->n_sides == CACHE_MAX_SIDES) {
        msg_error("--kv: more than %d schemes", CACHE_MAX_SIDES);
        return false;
    }
    if (!setup_check_kv(text, &s->scheme, s->name)) {
        return false;
    }
    if (s->scheme.kmean[0] || s->scheme.layers[0]) {
        msg_error("--kv %s: files belong to a model, here is none", s->name);
        return false;
    }
    if (tq_scheme_bytes_per_token(&s->scheme, b->shape.d_k, b->shape.d_v, &bytes) == TQ_ERR_DIM) {
        if (asked) {
            bench_bad_dims(s->name, &s->scheme, b->shape.d_k, b->shape.d_v);
        }
        return !asked;
    }
    const tq_cache_config cfg = config_of(b, &s->scheme);
    tq_status st = tq_cache_bytes(&cfg, &bytes);
    if (st != TQ_OK) {
        msg_error("--kv %s: %s with --layers %u, --dk %u and --dv %u", s->name, tq_status_name(st),
                  b->n_layers, b->shape.d_k, b->shape.d_v);
        return false;
    }
    b->n_sides++;
    return true;
}

static bool add_sides(cache_bench *b, const arg_strings *kv)
{
    static const char *const defaults[] = {"f16",  "turbo:k8v3", "turbo8", "turbo4",
                                           "tcq4", "tcq3",       "tcq2",   "tcq3,tail=64"};
    const size_t n = kv->n ? kv->n : sizeof defaults / sizeof defaults[0];
    for (size_t i = 0; i < n; i++) {
        if (!add_side(b, kv->n ? kv->at[i] : defaults[i], kv->n > 0)) {
            return false;
        }
    }
    if (!b->n_sides) {
        bench_bad_dims(NULL, NULL, b->shape.d_k, b->shape.d_v);
    }
    return b->n_sides > 0;
}

#define OPT_NUMBER(flag, field, least, most, text)                                                 \
    {                                                                                              \
        .name = flag, .meta = "N", .kind = ARG_COUNT, .dst = &b.field, .min = least, .max = most,  \
        .help = text                                                                               \
    }

int bench_cache(int argc, char **argv)
{
    static cache_bench b; /* large */
    b = (cache_bench){.shape = {.n_heads = 8,
                                .n_kv_heads = 8,
                                .d_k = 128,
                                .d_v = 128,
                                .q_len = 1,
                                .n_kv = 4001,
                                .scale = 1},
                      .n_layers = 8,
                      .n_rounds = 9,
                      .memory = (uint64_t)1 << 30};
    uint32_t n_threads = 1;
    arg_strings kv = {.n = 0};
    arg_sizes memory = {.n = 0};
    const char *isa = NULL, *clock = "wall";
    arg_option options[] = {
        {.group = "Sides",
         .name = "kv",
         .meta = "SCHEME",
         .kind = ARG_STRINGS,
         .dst = &kv,
         .help = "scheme of the cache; may be repeated (default: f16, turbo:k8v3, turbo8, turbo4, "
                 "tcq4, tcq3, tcq2 and tcq3,tail=64)"},
        {.group = "Work",
         .name = "layers",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.n_layers,
         .min = 1,
         .max = CACHE_MAX_LAYERS,
         .help = "layers (default 8)"},
        OPT_NUMBER("kv-heads", shape.n_kv_heads, 1, 1024, "heads of keys and values (default 8)"),
        OPT_NUMBER("dk", shape.d_k, 16, 1024, "elements of a key (default 128)"),
        OPT_NUMBER("dv", shape.d_v, 16, 1024, "elements of a value (default: those of a key)"),
        OPT_NUMBER("n-kv", shape.n_kv, 64, SETUP_MAX_CTX / 4, "tokens (default 4001)"),
        {.name = "memory",
         .meta = "SIZE",
         .kind = ARG_SIZES,
         .dst = &memory,
         .help = "how many tokens fit in this (default 1G)"},
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
         .dst = &n_threads,
         .min = 1,
         .max = SETUP_MAX_THREADS,
         .help = "threads that append (default 1)"},
        {.name = "isa",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &isa,
         .help = "kernels: scalar, avx2, avx512 or neon (default: the best that runs here)"},
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
         .help = "write one row for each side and round"},
        {.name = "plot",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &b.plot_name,
         .help = "draw speed against bits, *.svg or *.png, with the program gnuplot"},
    };
    arg_command cmd = {
        .name = "tq bench cache",
        .summary = "what a store costs and saves: append, fork, pages, memory",
        .synopsis = "  tq bench cache [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "Needs no model: rows are made up. Schemes take turns in every round.\n",
        .examples = "  tq bench cache --kv f16 --kv tcq4 --memory 8G\n"
                    "  tq bench cache -t 2 --csv cache.csv --plot cache.svg\n",
    };
    arg_result r = args_parse(&cmd, argc, argv, NULL);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    if (!args_given(&cmd, &b.shape.d_v)) {
        b.shape.d_v = b.shape.d_k;
    }
    b.shape.n_heads = b.shape.n_kv_heads;
    b.memory = memory.n ? memory.at[0] : b.memory;
    bool usage = true;
    const char *wrong = memory.n > 1 ? "--memory: one size"
                        : strcmp(clock, "wall") != 0 && strcmp(clock, "cpu") != 0
                            ? "--clock: neither wall nor cpu"
                        : !strcmp(clock, "cpu") && n_threads > 1
                            ? "--clock cpu goes with one thread: others spin while they wait"
                            : NULL;
    if (wrong) {
        msg_error("%s", wrong);
    }
    b.cpu_time = !strcmp(clock, "cpu");
    b.now = b.cpu_time ? cpu_clock : text_now;
    bool ok = !wrong && setup_isa(isa, &b.isa) && add_sides(&b, &kv) &&
              (!b.plot_name || plot_check("--plot", b.plot_name, b.csv_name, &usage));
    if (!ok) {
        if (usage) {
            args_hint(&cmd);
        }
        return usage ? TQ_EXIT_USAGE : TQ_EXIT_FAILED;
    }
    bench_machine_get(&b.machine, b.isa, false, n_threads);
    return bench_run(&b);
}
