/* SPDX-License-Identifier: MIT */
/* bench_attn_run.c — the rounds of `tq bench attn`.
 *
 * Policy: all sides hold the same made-up rows in one process and take turns in every round, in an
 * order that rotates, each with the same number of threads. A round begins with reading a buffer
 * that is larger than the last cache: that gives the bandwidth which bounds everybody, and leaves
 * nothing of the keys and values in any cache. What every side computed is compared with attention
 * in float64, since a fast side that computes something else has won nothing.
 */
#define _DEFAULT_SOURCE /* sysconf's cache sizes */
#include "bench_attn.h"

#include "generate.h"
#include "machine.h"
#include "out.h"
#include "text.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t read_piece = (size_t)16 << 20;

/* ---- Reading of memory ------------------------------------------------------------------- */

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
static double time_read(const attn_bench *b, const attn_buffers *m)
{
    double (*now)(void) = attn_clock(b);
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

/* ---- Rounds ------------------------------------------------------------------------------ */

static void show(const attn_bench *b, const char *what, uint32_t i, uint32_t n)
{
    char line[96];
    snprintf(line, sizeof line, "n_kv %u: %s %u of %u", b->shape.n_kv, what, i, n);
    msg_status(line);
}

/* The untimed first run of every side: its result against float64. */
static bool check_sides(attn_bench *b, const attn_buffers *m)
{
    double unused;
    if (!attn_oracle(&b->shape, m->q, NULL, b->team, m->original)) {
        return false;
    }
    for (uint32_t i = 0; i < b->n_sides && !gen_interrupted(); i++) {
        attn_side *s = &b->sides[i];
        show(b, "warm-up", i + 1, b->n_sides);
        if (!attn_run_side(b, s, m, &unused)) {
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
static bool time_sides(attn_bench *b, const attn_buffers *m)
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
            if ((b->hot && !attn_run_side(b, s, m, &s->seconds[r])) ||
                !attn_run_side(b, s, m, &s->seconds[r])) {
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
static bool size_scratch(attn_bench *b, attn_buffers *m, uint32_t longest)
{
    for (uint32_t i = 0; i < b->n_ours; i++) {
        tq_layer layer = attn_layer(b, i);
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
static bool check_memory(attn_bench *b, const attn_buffers *m, uint32_t longest)
{
    attn_shape keep = b->shape;
    double need = (double)m->scratch_bytes + (double)m->read_total;
    b->shape.n_kv = longest;
    for (uint32_t i = 0; i < b->n_sides; i++) {
        char type[TQ_SCHEME_TEXT_BYTES];
        size_t kv = 0, all = 0;
        if (i >= b->n_ours) {
            tqe_peer_attn_params p = attn_peer_params(b, b->names[i], type);
            tqe_peer_attn_bytes(&p, &kv, &all, NULL);
        } else {
            tq_layer l = attn_layer(b, i);
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

static bool open_buffers(attn_bench *b, attn_buffers *m)
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
    const size_t stored = s->q_len > ATTN_STEP ? s->q_len : ATTN_STEP; /* at once */
    const size_t checked = (size_t)ATTN_CHECKED * s->n_heads * s->d_v;
    m->read = machine_large_alloc(m->read_total);
    m->scratch = machine_large_alloc(m->scratch_bytes);
    m->original = malloc(checked * sizeof *m->original);
    m->stored = malloc(checked * sizeof *m->stored);
    if (!m->read || !m->scratch || !m->original || !m->stored ||
        !alloc_floats(&m->q, rows * s->d_k) || !alloc_floats(&m->out, rows * s->d_v) ||
        !alloc_floats(&m->k, stored * s->n_kv_heads * s->d_k) ||
        !alloc_floats(&m->v, stored * s->n_kv_heads * s->d_v)) {
        msg_error("not enough memory");
        return false;
    }
    memset(m->read, 1, m->read_total); /* untouched memory would all be one page */
    memset(m->scratch, 0, m->scratch_bytes);
    attn_data_queries(s, m->q, b->sigma);
    return true;
}

static void close_buffers(attn_buffers *m)
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

static bool measure_context(attn_bench *b, const attn_buffers *m, uint32_t n_kv)
{
    bool ok = true;
    b->shape.n_kv = n_kv;
    msg_status("making keys and values");
    for (uint32_t i = 0; ok && i < b->n_sides; i++) {
        ok = attn_open_side(b, i);
    }
    ok = ok && attn_fill_sides(b, m) && check_sides(b, m) && time_sides(b, m);
    msg_status(NULL);
    if (ok && b->n_done) {
        ok = attn_report_context(b);
        b->n_reported++;
    }
    b->n_done = 0;
    attn_close_sides(b);
    return ok;
}

int attn_bench_run(attn_bench *b)
{
    attn_buffers m = {0};
    gen_catch_interrupts(true);
    bool ok = attn_report_open(b);
    b->team = ok ? team_create(b->n_threads) : NULL;
    ok = b->team && open_buffers(b, &m);
    if (ok) {
        attn_report_head(b);
    }
    for (size_t i = 0; ok && i < b->contexts.n && !gen_interrupted(); i++) {
        ok = measure_context(b, &m, b->contexts.at[i]);
    }
    close_buffers(&m);
    team_destroy(b->team);
    const bool stopped = gen_interrupted();
    ok = stopped ? b->n_reported > 0 : ok; /* the rows of the contexts before are whole */
    if (!attn_report_close(b, ok) && (ok || !stopped)) {
        return TQ_EXIT_FAILED;
    }
    if (stopped) {
        msg_note(ok ? "(interrupted: the rounds that were complete are shown)"
                    : "(interrupted before anything was complete: no files are written)");
        return gen_interrupt_code();
    }
    return TQ_EXIT_OK;
}
