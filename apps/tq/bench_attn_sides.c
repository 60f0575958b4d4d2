/* SPDX-License-Identifier: MIT */
/* bench_attn_sides.c — the contestants of `tq bench attn`: caches of ours and ggml's tensors,
 * filled with the same rows, and one run of attention over either.
 *
 * Policy: both are timed from threads that are awake until the output is there, and nothing is
 * allocated in between.
 */
#define _DEFAULT_SOURCE /* clock_gettime */
#include "bench_attn.h"

#include "generate.h"
#include "machine.h"
#include "out.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

double (*attn_clock(const attn_bench *b))(void)
{
    return b->cpu_clock ? cpu_clock : wall_clock;
}

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

static bool run_ours(attn_bench *b, attn_side *s, const attn_buffers *m, double *seconds)
{
    const attn_shape *sh = &b->shape;
    double (*now)(void) = attn_clock(b);
    tq_attn_config cfg = {.n_q_heads = sh->n_heads, .q_len = sh->q_len, .scale = sh->scale};
    tq_attn_plan plan;
    team_wake(b->team);
    double start = now();
    tq_status st = tq_attn_plan_init(&plan, &cfg, &s->view);
    plan.step = b->n_threads; /* about: each takes the next one that is left */
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
    const attn_buffers *m;
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

/* Tokens [.., + n) from the buffers. The queries' own stay pending, as in a step of a model: once
 * committed, f16 rows that the first of them reads may be given back (tail=, start=). */
static tq_status store_ours(attn_bench *b, attn_side *s, const attn_buffers *m, uint32_t n,
                            bool are_last)
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
    if (st == TQ_OK && !are_last) {
        st = tq_cache_append_commit(s->cache, w.seq);
    }
    return st == TQ_OK ? tq_cache_view(s->cache, w.seq, 0, &s->view) : st;
}

/* ---- Sides ------------------------------------------------------------------------------- */

tq_layer attn_layer(const attn_bench *b, uint32_t side)
{
    const attn_shape *s = &b->shape;
    tq_layer l = {.n_kv_heads = s->n_kv_heads, .d_k = s->d_k, .d_v = s->d_v};
    tq_scheme_parse(&l.scheme, b->names[side], NULL, 0); /* it is its canonical spelling */
    return l;
}

/* Bytes that the newest query reads; row: of a token and head, packed. */
static size_t bytes_read(const tq_layer *layer, size_t row, uint32_t n_kv)
{
    const tq_scheme *scheme = &layer->scheme;
    const uint64_t kept = (uint64_t)scheme->sink + scheme->tail;
    const size_t in_f16 = n_kv <= scheme->start || kept >= n_kv ? n_kv : (size_t)kept;
    const size_t f16_row = ((size_t)layer->d_k + layer->d_v) * 2;
    return layer->n_kv_heads * (row * (n_kv - in_f16) + f16_row * in_f16);
}

/* "q8_0/q4_0@head" -> type and layout. type: as large as name. */
tqe_peer_attn_params attn_peer_params(const attn_bench *b, const char *name, char *type)
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

bool attn_open_side(attn_bench *b, uint32_t i)
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
        tqe_peer_attn_params p = attn_peer_params(b, s->name, type);
        size_t all;
        if (tqe_peer_attn_bytes(&p, &s->bytes, &all, &err) != TQE_OK ||
            tqe_peer_attn_create(&s->peer, &p, &err) != TQE_OK) {
            msg_error("--peer %s: %s", s->name, err.text);
            return false;
        }
        return true;
    }
    const tq_allocator large = {large_alloc, large_free, NULL};
    tq_layer layer = attn_layer(b, i);
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
    s->bytes = bytes_read(&layer, row, b->shape.n_kv);
    if (st != TQ_OK) {
        msg_error("--kv %s: %s", s->name, tq_status_name(st));
    }
    return st == TQ_OK;
}

void attn_close_sides(attn_bench *b)
{
    for (uint32_t i = 0; i < b->n_sides; i++) {
        attn_side *s = &b->sides[i];
        tqe_peer_attn_free(s->peer);
        tq_cache_destroy(s->cache);
        free(s->seconds);
        *s = (attn_side){0};
    }
}

bool attn_fill_sides(attn_bench *b, const attn_buffers *m)
{
    const attn_shape *s = &b->shape;
    const uint32_t last = s->n_kv - s->q_len;
    for (uint32_t first = 0, n; first < s->n_kv; first += n) {
        n = first == last ? s->q_len : last - first < ATTN_STEP ? last - first : ATTN_STEP;
        attn_data_rows(s, m->k, m->v, first, n);
        for (uint32_t i = 0; i < b->n_sides; i++) {
            attn_side *side = &b->sides[i];
            if (side->is_peer) {
                tqe_peer_attn_write(side->peer, first, n, m->k, m->v);
                continue;
            }
            tq_status st = store_ours(b, side, m, n, first == last);
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

bool attn_run_side(attn_bench *b, attn_side *s, const attn_buffers *m, double *seconds)
{
    tqe_error err = {0};
    if (!s->is_peer) {
        return run_ours(b, s, m, seconds);
    }
    if (tqe_peer_attn_run(s->peer, m->q, m->out, attn_clock(b), seconds, &err) != TQE_OK) {
        msg_error("ggml %s: %s", s->name, err.text);
        return false;
    }
    return true;
}
