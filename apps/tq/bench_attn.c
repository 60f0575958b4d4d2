/* SPDX-License-Identifier: MIT */
/* bench_attn.c — `tq bench attn`: attention over a cache, our schemes beside ggml's own kernel.
 *
 * Policy: all sides hold the same made-up rows in one process and take turns in every round, in an
 * order that rotates, each with the same number of threads. A round begins with reading a buffer
 * that is larger than the last cache: that gives the bandwidth which bounds everybody, and leaves
 * nothing of the keys and values in any cache. What every side computed is compared with attention
 * in float64, since a fast side that computes something else has won nothing.
 */
#define _DEFAULT_SOURCE /* clock_gettime, sysconf's cache sizes */
#include "bench_attn.h"

#include "commands.h"
#include "generate.h"
#include "machine.h"
#include "out.h"
#include "plot.h"
#include "setup.h"
#include "text.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEP = 512 }; /* tokens that are made and stored at once */
static const size_t read_piece = (size_t)16 << 20;

static double wall_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Buffers that all contexts and sides use. */
typedef struct buffers {
    uint8_t *read; /* [read_total] */
    size_t read_total;
    float *q, *out;
    double *original, *stored; /* float64: [checked][heads][d_v] */
    float *k, *v;              /* [STEP] tokens */
    uint8_t *scratch;          /* partials, then work of each thread */
    size_t scratch_bytes;
} buffers;

/* ---- Memory ------------------------------------------------------------------------------ */

static void *large_alloc(void *ctx, size_t bytes)
{
    (void)ctx;
    return machine_large_alloc(bytes);
}

static void large_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

/* As much as the last cache, 64 MiB to 1 GiB. */
static size_t read_buffer_bytes(void)
{
    size_t bytes = (size_t)64 << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    while (l3 > 0 && bytes < (size_t)l3 && bytes < (size_t)1 << 30) {
        bytes *= 2;
    }
#endif
    return bytes;
}

typedef struct reading {
    const uint8_t *bytes;
    size_t n;
    uint32_t n_threads;
    atomic_ullong sum;
} reading;

/* This thread's share, in four streams: one alone does not fill the queues of the memory. */
static void read_member(void *arg, uint32_t id)
{
    reading *r = arg;
    enum { STREAMS = 4, LINE = 64 };
    const size_t share = r->n / r->n_threads / (STREAMS * LINE) * LINE;
    const uint8_t *p = r->bytes + id * share * STREAMS;
    uint64_t sum[LINE / 8] = {0};
    for (size_t i = 0; i < share; i += LINE) {
        for (size_t s = 0; s < STREAMS; s++) {
            uint64_t x[LINE / 8];
            memcpy(x, p + s * share + i, sizeof x);
            for (size_t k = 0; k < LINE / 8; k++) {
                sum[k] += x[k];
            }
        }
    }
    for (size_t k = 0; k < LINE / 8; k++) {
        atomic_fetch_add(&r->sum, sum[k]);
    }
}

/* The best of pieces that take about as long as what is measured beside them: on a machine that
 * others use, a long run is never undisturbed. All of the buffer is read. */
static double time_read(const attn_bench *b, const buffers *m)
{
    double (*now)(void) = b->cpu_clock ? cpu_clock : wall_clock;
    double least = INFINITY;
    team_wake(b->team);
    for (size_t off = 0; off + b->read_bytes <= m->read_total; off += b->read_bytes) {
        reading r = {.bytes = m->read + off, .n = b->read_bytes, .n_threads = b->n_threads};
        double start = now();
        team_run(b->team, read_member, &r);
        double seconds = now() - start;
        least = seconds < least ? seconds : least;
    }
    team_rest(b->team);
    return least;
}

/* ---- Our sides --------------------------------------------------------------------------- */

typedef struct attn_run {
    const tq_attn_plan *plan;
    const tq_view *view;
    const float *q;
    float *out;
    size_t q_stride, out_stride;
    uint8_t *partials, *work;
    size_t work_stride;
    atomic_uint next_part, next_row;
    atomic_int status;
} attn_run;

static void run_parts(void *arg, uint32_t id)
{
    attn_run *r = arg;
    for (uint32_t i; (i = atomic_fetch_add(&r->next_part, 1)) < r->plan->n_parts;) {
        tq_status st = tq_attn_part(r->plan, r->view, r->q, r->q_stride, r->partials,
                                    r->work + id * r->work_stride, i);
        if (st != TQ_OK) {
            atomic_store(&r->status, st);
        }
    }
}

static void run_rows(void *arg, uint32_t id)
{
    enum { ROWS = 16 };
    attn_run *r = arg;
    for (uint32_t i; (i = atomic_fetch_add(&r->next_row, ROWS)) < r->plan->n_rows;) {
        uint32_t n = r->plan->n_rows - i < ROWS ? r->plan->n_rows - i : ROWS;
        tq_status st = tq_attn_merge(r->plan, r->view, r->out, r->out_stride, r->partials,
                                     r->work + id * r->work_stride, i, n);
        if (st != TQ_OK) {
            atomic_store(&r->status, st);
        }
    }
}

static bool run_ours(attn_bench *b, attn_side *s, const buffers *m, double *seconds)
{
    const attn_shape *sh = &b->shape;
    double (*now)(void) = b->cpu_clock ? cpu_clock : wall_clock;
    tq_attn_config cfg = {.n_q_heads = sh->n_heads, .q_len = sh->q_len, .scale = sh->scale};
    tq_attn_plan plan;
    team_wake(b->team);
    double start = now();
    tq_status st = tq_attn_plan_init(&plan, &cfg, &s->view);
    attn_run r = {.plan = &plan,
                  .view = &s->view,
                  .q = m->q,
                  .out = m->out,
                  .q_stride = (size_t)sh->n_heads * sh->d_k,
                  .out_stride = (size_t)sh->n_heads * sh->d_v,
                  .partials = m->scratch,
                  .work = m->scratch + plan.partials_bytes,
                  .work_stride = plan.work_bytes};
    if (st == TQ_OK) {
        team_run(b->team, run_parts, &r);
        team_run(b->team, run_rows, &r);
        st = (tq_status)atomic_load(&r.status);
    }
    *seconds = now() - start;
    team_rest(b->team);
    if (st != TQ_OK) {
        msg_error("%s: %s", s->name, tq_status_name(st));
    }
    return st == TQ_OK;
}

typedef struct storing {
    attn_side *side;
    const attn_shape *s;
    const buffers *m;
    uint32_t seq, n_threads;
    atomic_int status;
} storing;

static void store_member(void *arg, uint32_t id)
{
    storing *w = arg;
    tq_status st = tq_cache_append_rows(w->side->cache, w->seq, 0, w->m->k,
                                        (size_t)w->s->n_kv_heads * w->s->d_k, w->m->v,
                                        (size_t)w->s->n_kv_heads * w->s->d_v, id, w->n_threads);
    if (st != TQ_OK) {
        atomic_store(&w->status, st);
    }
}

/* Tokens [.., + n) from the buffers. */
static tq_status store_ours(attn_bench *b, attn_side *s, const buffers *m, uint32_t n)
{
    storing w = {.side = s, .s = &b->shape, .m = m, .n_threads = b->n_threads};
    tq_cache_stats stats;
    tq_status st = tq_cache_get_stats(s->cache, &stats);
    if (st == TQ_OK) { /* the one sequence has handle 0 */
        st = stats.n_seqs ? TQ_OK : tq_cache_seq_open(s->cache, &w.seq);
    }
    if (st == TQ_OK) {
        st = tq_cache_append_begin(s->cache, w.seq, n);
    }
    if (st == TQ_OK) {
        team_run(b->team, store_member, &w);
        st = (tq_status)atomic_load(&w.status);
    }
    if (st == TQ_OK) {
        st = tq_cache_append_commit(s->cache, w.seq);
    }
    return st == TQ_OK ? tq_cache_view(s->cache, w.seq, 0, &s->view) : st;
}

/* ---- Sides ------------------------------------------------------------------------------- */

static tq_layer layer_of(const attn_bench *b, uint32_t side)
{
    const attn_shape *s = &b->shape;
    tq_layer l = {.n_kv_heads = s->n_kv_heads, .d_k = s->d_k, .d_v = s->d_v};
    tq_scheme_parse(&l.scheme, b->names[side], NULL, 0); /* it is its canonical spelling */
    return l;
}

/* "q8_0/q4_0@head" -> type and layout. type: as large as name. */
static tqe_peer_attn_params peer_params(const attn_bench *b, const char *name, char *type)
{
    const attn_shape *s = &b->shape;
    const char *at = strchr(name, '@');
    size_t n = at ? (size_t)(at - name) : strlen(name);
    memcpy(type, name, n);
    type[n] = '\0';
    return (tqe_peer_attn_params){.kv_type = type,
                                  .head_major = at != NULL,
                                  .n_heads = s->n_heads,
                                  .n_kv_heads = s->n_kv_heads,
                                  .d_k = s->d_k,
                                  .d_v = s->d_v,
                                  .n_kv = s->n_kv,
                                  .q_len = s->q_len,
                                  .n_threads = b->n_threads,
                                  .scale = s->scale};
}

static bool open_side(attn_bench *b, uint32_t i)
{
    attn_side *s = &b->sides[i];
    char type[TQ_SCHEME_TEXT_BYTES];
    tqe_error err = {0};
    *s = (attn_side){.is_peer = i >= b->n_ours};
    memcpy(s->name, b->names[i], sizeof s->name);
    s->seconds = malloc(b->n_rounds * sizeof *s->seconds);
    if (!s->seconds) {
        msg_error("not enough memory");
        return false;
    }
    if (s->is_peer) {
        tqe_peer_attn_params p = peer_params(b, s->name, type);
        size_t all;
        if (tqe_peer_attn_bytes(&p, &s->bytes, &all, &err) != TQE_OK ||
            tqe_peer_attn_create(&s->peer, &p, &err) != TQE_OK) {
            msg_error("--peer %s: %s", s->name, err.text);
            return false;
        }
        return true;
    }
    const tq_allocator large = {large_alloc, large_free, NULL};
    tq_layer layer = layer_of(b, i);
    tq_cache_config cfg = {.layers = &layer,
                           .n_layers = 1,
                           .n_pages = (b->shape.n_kv + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS,
                           .max_seqs = 1,
                           .isa_mask = b->isa};
    tq_status st = tq_cache_create(&s->cache, &cfg, &large);
    size_t row = 0;
    if (st == TQ_OK) {
        st = tq_scheme_bytes_per_token(&layer.scheme, layer.d_k, layer.d_v, &row);
    }
    s->bytes = row * layer.n_kv_heads * b->shape.n_kv;
    if (st != TQ_OK) {
        msg_error("--kv %s: %s", s->name, tq_status_name(st));
    }
    return st == TQ_OK;
}

static void close_sides(attn_bench *b)
{
    for (uint32_t i = 0; i < b->n_sides; i++) {
        attn_side *s = &b->sides[i];
        tqe_peer_attn_free(s->peer);
        tq_cache_destroy(s->cache);
        free(s->seconds);
        *s = (attn_side){0};
    }
}

static bool fill_sides(attn_bench *b, const buffers *m)
{
    const attn_shape *s = &b->shape;
    for (uint32_t first = 0; first < s->n_kv; first += STEP) {
        uint32_t n = s->n_kv - first < STEP ? s->n_kv - first : STEP;
        attn_data_rows(s, m->k, m->v, first, n);
        for (uint32_t i = 0; i < b->n_sides; i++) {
            attn_side *side = &b->sides[i];
            if (side->is_peer) {
                tqe_peer_attn_write(side->peer, first, n, m->k, m->v);
                continue;
            }
            tq_status st = store_ours(b, side, m, n);
            if (st != TQ_OK) {
                msg_error("%s: %s", side->name, tq_status_name(st));
                return false;
            }
        }
        if (gen_interrupted()) {
            return false;
        }
    }
    return true;
}

static bool run_side(attn_bench *b, attn_side *s, const buffers *m, double *seconds)
{
    tqe_error err = {0};
    if (!s->is_peer) {
        return run_ours(b, s, m, seconds);
    }
    if (tqe_peer_attn_run(s->peer, m->q, m->out, b->cpu_clock ? cpu_clock : wall_clock, seconds,
                          &err) != TQE_OK) {
        msg_error("ggml %s: %s", s->name, err.text);
        return false;
    }
    return true;
}

/* ---- Rounds ------------------------------------------------------------------------------ */

static void show(const attn_bench *b, const char *what, uint32_t i, uint32_t n)
{
    char line[96];
    snprintf(line, sizeof line, "n_kv %u: %s %u of %u", b->shape.n_kv, what, i, n);
    msg_status(line);
}

/* The untimed first run of every side: its result against float64. */
static bool check_sides(attn_bench *b, const buffers *m)
{
    double unused;
    if (!attn_oracle(&b->shape, m->q, NULL, b->team, m->original)) {
        return false;
    }
    for (uint32_t i = 0; i < b->n_sides && !gen_interrupted(); i++) {
        attn_side *s = &b->sides[i];
        show(b, "warm-up", i + 1, b->n_sides);
        if (!run_side(b, s, m, &unused)) {
            return false;
        }
        s->error = attn_error(&b->shape, m->out, m->original);
        if (!s->is_peer) {
            if (!attn_oracle(&b->shape, m->q, &s->view, b->team, m->stored)) {
                return false;
            }
            s->stored = attn_error(&b->shape, m->out, m->stored);
        }
    }
    return true;
}

/* Rounds that an interrupt cuts off do not count. */
static bool time_sides(attn_bench *b, const buffers *m)
{
    for (b->n_done = 0; b->n_done < b->n_rounds; b->n_done++) {
        uint32_t r = b->n_done;
        show(b, "round", r + 1, b->n_rounds);
        b->read_seconds[r] = time_read(b, m);
        for (uint32_t i = 0; i < b->n_sides; i++) {
            attn_side *s = &b->sides[(i + r) % b->n_sides];
            if (gen_interrupted()) {
                return true;
            }
            if ((b->hot && !run_side(b, s, m, &s->seconds[r])) ||
                !run_side(b, s, m, &s->seconds[r])) {
                return false;
            }
        }
    }
    return true;
}

static bool alloc_floats(float **p, size_t n)
{
    *p = malloc(n * sizeof **p);
    return *p != NULL;
}

/* Scratch of the largest context. */
static bool size_scratch(attn_bench *b, buffers *m, uint32_t longest)
{
    for (uint32_t i = 0; i < b->n_ours; i++) {
        tq_layer layer = layer_of(b, i);
        size_t partials, work;
        tq_status st =
            tq_attn_bounds(&layer, b->shape.n_heads, b->shape.q_len, longest, &partials, &work);
        if (st != TQ_OK) {
            msg_error("--kv %s: %s", b->names[i], tq_status_name(st));
            return false;
        }
        size_t need = partials + b->n_threads * work;
        m->scratch_bytes = need > m->scratch_bytes ? need : m->scratch_bytes;
    }
    return true;
}

/* All sides of the largest context at once must fit, or the machine swaps. */
static bool check_memory(attn_bench *b, const buffers *m, uint32_t longest)
{
    attn_shape keep = b->shape;
    double need = (double)m->scratch_bytes + (double)m->read_total;
    b->shape.n_kv = longest;
    for (uint32_t i = 0; i < b->n_sides; i++) {
        char type[TQ_SCHEME_TEXT_BYTES];
        size_t kv = 0, all = 0;
        if (i >= b->n_ours) {
            tqe_peer_attn_params p = peer_params(b, b->names[i], type);
            tqe_peer_attn_bytes(&p, &kv, &all, NULL);
        } else {
            tq_layer l = layer_of(b, i);
            tq_scheme_bytes_per_token(&l.scheme, l.d_k, l.d_v, &kv);
            all = kv * l.n_kv_heads * longest;
        }
        need += (double)all;
    }
    b->shape = keep;
    uint64_t have = machine_free_bytes();
    if (have && need > (double)have) {
        char a[32], c[32];
        msg_error("--n-kv %u: all sides together take %s, %s are free", longest,
                  text_size(a, (uint64_t)need), text_size(c, have));
        return false;
    }
    return true;
}

static bool open_buffers(attn_bench *b, buffers *m)
{
    const attn_shape *s = &b->shape;
    uint32_t longest = 0;
    for (size_t i = 0; i < b->contexts.n; i++) {
        longest = b->contexts.at[i] > longest ? b->contexts.at[i] : longest;
    }
    m->read_total = read_buffer_bytes();
    b->read_bytes = read_piece;
    if (!size_scratch(b, m, longest) || !check_memory(b, m, longest)) {
        return false;
    }
    const size_t rows = (size_t)s->q_len * s->n_heads;
    const size_t checked = (size_t)ATTN_CHECKED * s->n_heads * s->d_v;
    m->read = machine_large_alloc(m->read_total);
    m->scratch = machine_large_alloc(m->scratch_bytes);
    m->original = malloc(checked * sizeof *m->original);
    m->stored = malloc(checked * sizeof *m->stored);
    if (!m->read || !m->scratch || !m->original || !m->stored ||
        !alloc_floats(&m->q, rows * s->d_k) || !alloc_floats(&m->out, rows * s->d_v) ||
        !alloc_floats(&m->k, (size_t)STEP * s->n_kv_heads * s->d_k) ||
        !alloc_floats(&m->v, (size_t)STEP * s->n_kv_heads * s->d_v)) {
        msg_error("not enough memory");
        return false;
    }
    memset(m->read, 1, m->read_total); /* untouched memory would all be one page */
    memset(m->scratch, 0, m->scratch_bytes);
    attn_data_queries(s, m->q, b->sigma);
    return true;
}

static void close_buffers(buffers *m)
{
    free(m->read);
    free(m->scratch);
    free(m->original);
    free(m->stored);
    free(m->q);
    free(m->out);
    free(m->k);
    free(m->v);
}

static bool measure_context(attn_bench *b, const buffers *m, uint32_t n_kv)
{
    bool ok = true;
    b->shape.n_kv = n_kv;
    msg_status("making keys and values");
    for (uint32_t i = 0; ok && i < b->n_sides; i++) {
        ok = open_side(b, i);
    }
    ok = ok && fill_sides(b, m) && check_sides(b, m) && time_sides(b, m);
    msg_status(NULL);
    if (ok && b->n_done) {
        ok = attn_report_context(b);
    }
    b->n_done = 0;
    close_sides(b);
    return ok;
}

static int bench_run(attn_bench *b)
{
    buffers m = {0};
    b->load = machine_load();
    machine_cpu(b->cpu);
    gen_catch_interrupts(true);
    bool ok = attn_report_open(b);
    b->team = ok ? team_create(b->n_threads) : NULL;
    ok = b->team && open_buffers(b, &m);
    if (ok) {
        attn_report_head(b);
        setup_warn_threads(b->n_threads);
        if (b->load > 0.5) {
            msg_warn("other work is running (load average %.1f): expect low and uneven speeds",
                     b->load);
        }
    }
    for (size_t i = 0; ok && i < b->contexts.n && !gen_interrupted(); i++) {
        ok = measure_context(b, &m, b->contexts.at[i]);
    }
    close_buffers(&m);
    team_destroy(b->team);
    if (!attn_report_close(b)) {
        return TQ_EXIT_FAILED;
    }
    if (gen_interrupted()) {
        msg_note("(interrupted: the rounds that were complete are shown)");
        return TQ_EXIT_INTERRUPTED;
    }
    return ok ? TQ_EXIT_OK : TQ_EXIT_FAILED;
}

/* ---- Options ----------------------------------------------------------------------------- */

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
            msg_error("--kv %s: does not support --dk %u with --dv %u", name, layer.d_k, layer.d_v);
        }
        return !asked;
    }
    if (tq_cache_bytes(&cfg, &bytes) != TQ_OK) {
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
    tqe_peer_attn_params p = peer_params(b, name, type);
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
        msg_error("no scheme supports --dk %u with --dv %u", b->shape.d_k, b->shape.d_v);
        return false;
    }
    for (size_t i = 0; i < n_peers; i++) {
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
         .max = ATTN_MAX_ROUNDS,
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
                    "  tq bench attn --q-len 512 --n-kv 4096 -r 3\n"
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
              (!b.plot_name || plot_check("--plot", b.plot_name, &usage));
    if (!ok) {
        if (usage) {
            args_hint(&cmd);
        }
        return usage ? TQ_EXIT_USAGE : TQ_EXIT_FAILED;
    }
    return bench_run(&b);
}
