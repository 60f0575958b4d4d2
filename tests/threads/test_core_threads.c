/* SPDX-License-Identifier: MIT */
/* test_core_threads.c — the thread promises of turboquant.h, for ThreadSanitizer and for equality.
 *
 * The work of a step (rows to encode, attention parts, merged rows) is dealt to n threads as ggml
 * deals a custom op: thread i takes units i, i + n, ... Output and stored bytes must not depend on
 * n. A second test reads one sequence while the writer appends to others, forks of it too.
 */
#define _POSIX_C_SOURCE 200809L /* pthread_barrier */
#include "turboquant.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N_TOKENS = 333, N_NEW = 7, N_KV = 3, N_Q = 6, D = 64, N_PARTS = 5, MAX_THREADS = 3 };

static const char *const schemes[] = {"f32", "f16", "bf16", "turbo:k8v3",
                                      "turbo:k4v2,attn=dequant"};

/* Deterministic, in -1..1, different for each seed. */
static void fill(float *x, size_t n, uint64_t seed)
{
    uint64_t s = seed * 2654435761u + 12345;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(s >> 40) / 8388608.0 - 1.0);
    }
}

static tq_cache *make_cache(const char *scheme)
{
    tq_layer layers[2] = {{.n_kv_heads = N_KV, .d_k = D, .d_v = D}};
    assert_int_equal(tq_scheme_parse(&layers[0].scheme, scheme, NULL, 0), TQ_OK);
    layers[1] = layers[0];
    tq_cache_config cfg = {
        .layers = layers, .n_layers = 2, .n_pages = 32, .max_seqs = 4, .isa_mask = TQ_ISA_ALL};
    tq_cache *cache = NULL;
    assert_int_equal(tq_cache_create(&cache, &cfg, NULL), TQ_OK);
    return cache;
}

static void append_plain(tq_cache *cache, uint32_t seq, uint32_t n, uint64_t seed)
{
    size_t n_floats = (size_t)n * N_KV * D;
    float *k = malloc(n_floats * sizeof *k), *v = malloc(n_floats * sizeof *v);
    assert_non_null(k);
    assert_non_null(v);
    assert_int_equal(tq_cache_append_begin(cache, seq, n), TQ_OK);
    for (uint32_t layer = 0; layer < 2; layer++) {
        fill(k, n_floats, seed + layer);
        fill(v, n_floats, seed + layer + 50);
        assert_int_equal(tq_cache_append_rows(cache, seq, layer, k, N_KV * D, v, N_KV * D, 0, 1),
                         TQ_OK);
    }
    assert_int_equal(tq_cache_append_commit(cache, seq), TQ_OK);
    free(k);
    free(v);
}

/* One step of one layer, shared by its threads. */
typedef struct step {
    tq_cache *cache;
    uint32_t seq;
    uint32_t n_threads;
    const float *k, *v, *q;
    tq_attn_plan plan;
    tq_view view;
    void *partials;
    float *out;
    pthread_barrier_t barrier;
} step;

typedef struct worker {
    step *s;
    uint32_t ith;
    int failed;
} worker;

static void *run_worker(void *arg)
{
    worker *w = arg;
    step *s = w->s;
    void *work = aligned_alloc(64, (s->plan.work_bytes + 63) / 64 * 64 + 64);
    w->failed = work == NULL;
    for (uint32_t p = w->ith; p < N_PARTS; p += s->n_threads)
        w->failed |= tq_cache_append_rows(s->cache, s->seq, 1, s->k, N_KV * D, s->v, N_KV * D, p,
                                          N_PARTS) != TQ_OK;
    pthread_barrier_wait(&s->barrier);
    for (uint32_t p = w->ith; work && p < s->plan.n_parts; p += s->n_threads)
        w->failed |= tq_attn_part(&s->plan, &s->view, s->q, N_Q * D, s->partials, work, p) != TQ_OK;
    pthread_barrier_wait(&s->barrier);
    for (uint32_t r = w->ith; work && r < s->plan.n_rows; r += s->n_threads)
        w->failed |=
            tq_attn_merge(&s->plan, &s->view, s->out, N_Q * D, s->partials, work, r, 1) != TQ_OK;
    free(work);
    return NULL;
}

/* Prefill, then one step of N_NEW tokens on n_threads; the attention output goes to out, the
 * decoded rows of the new layer to rows. */
static void run_step(const char *scheme, uint32_t n_threads, float *out, float *rows)
{
    static float k[N_NEW * N_KV * D], v[N_NEW * N_KV * D], q[N_NEW * N_Q * D];
    fill(k, sizeof k / sizeof *k, 7);
    fill(v, sizeof v / sizeof *v, 8);
    fill(q, sizeof q / sizeof *q, 9);

    step s = {
        .cache = make_cache(scheme), .n_threads = n_threads, .k = k, .v = v, .q = q, .out = out};
    assert_int_equal(tq_cache_seq_open(s.cache, &s.seq), TQ_OK);
    append_plain(s.cache, s.seq, N_TOKENS, 100);
    assert_int_equal(tq_cache_append_begin(s.cache, s.seq, N_NEW), TQ_OK);
    assert_int_equal(tq_cache_view(s.cache, s.seq, 1, &s.view), TQ_OK);
    tq_attn_config cfg = {.n_q_heads = N_Q, .q_len = N_NEW, .scale = 1.0f / sqrtf((float)D)};
    assert_int_equal(tq_attn_plan_init(&s.plan, &cfg, &s.view), TQ_OK);
    s.partials = aligned_alloc(64, (s.plan.partials_bytes + 63) / 64 * 64 + 64);
    assert_non_null(s.partials);
    assert_int_equal(pthread_barrier_init(&s.barrier, NULL, n_threads), 0);

    pthread_t threads[MAX_THREADS];
    worker workers[MAX_THREADS];
    for (uint32_t i = 0; i < n_threads; i++) {
        workers[i] = (worker){.s = &s, .ith = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].failed, 0);
    }
    /* Layer 0 has nothing new in this step; the sequence is thrown away, so it may stay so. */
    for (uint32_t h = 0; h < N_KV; h++)
        assert_int_equal(tq_view_decode(&s.view, h, N_TOKENS, N_NEW, rows + (size_t)h * N_NEW * D,
                                        rows + (size_t)(N_KV + h) * N_NEW * D),
                         TQ_OK);
    pthread_barrier_destroy(&s.barrier);
    free(s.partials);
    tq_cache_destroy(s.cache);
}

static void output_does_not_depend_on_threads(void **state)
{
    (void)state;
    static float out[MAX_THREADS][N_NEW * N_Q * D];
    static float rows[MAX_THREADS][2 * N_KV * N_NEW * D];
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        for (uint32_t n = 1; n <= MAX_THREADS; n++) {
            for (size_t j = 0; j < sizeof out[0] / sizeof(float); j++)
                out[n - 1][j] = NAN; /* an output row that nobody writes must show */
            run_step(schemes[i], n, out[n - 1], rows[n - 1]);
        }
        for (size_t j = 0; j < sizeof out[0] / sizeof(float); j++)
            assert_true(isfinite(out[0][j]));
        for (uint32_t n = 2; n <= MAX_THREADS; n++) {
            assert_memory_equal(out[0], out[n - 1], sizeof out[0]);
            assert_memory_equal(rows[0], rows[n - 1], sizeof rows[0]);
        }
    }
}

typedef struct reader {
    tq_view view;
    const float *want;
    int failed;
} reader;

static void *run_reader(void *arg)
{
    reader *r = arg;
    static _Thread_local float k[N_TOKENS * D];
    for (int round = 0; round < 20; round++) {
        memset(k, 0, sizeof k);
        r->failed |= tq_view_decode(&r->view, 0, 0, N_TOKENS, k, NULL) != TQ_OK;
        r->failed |= memcmp(k, r->want, sizeof k) != 0;
    }
    return NULL;
}

static void a_view_is_read_while_other_sequences_grow(void **state)
{
    (void)state;
    static float want[N_TOKENS * D];
    tq_cache *cache = make_cache("turbo:k5v4");
    uint32_t old, grown;
    reader readers[2] = {{.want = want}};
    assert_int_equal(tq_cache_seq_open(cache, &old), TQ_OK);
    append_plain(cache, old, N_TOKENS, 1);
    assert_int_equal(tq_cache_view(cache, old, 0, &readers[0].view), TQ_OK);
    assert_int_equal(tq_view_decode(&readers[0].view, 0, 0, N_TOKENS, want, NULL), TQ_OK);
    readers[1] = readers[0];

    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_reader, &readers[i]), 0);
    for (uint32_t round = 0; round < 10; round++) {
        /* Every other one shares the pages that are being read, and copies the last before it
         * writes. */
        if (round % 2)
            assert_int_equal(tq_cache_seq_fork(cache, old, N_TOKENS, &grown), TQ_OK);
        else
            assert_int_equal(tq_cache_seq_open(cache, &grown), TQ_OK);
        append_plain(cache, grown, 100, 2);
        append_plain(cache, grown, 3, 3);
        assert_int_equal(tq_cache_truncate(cache, grown, 64), TQ_OK);
        assert_int_equal(tq_cache_seq_close(cache, grown), TQ_OK);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].failed, 0);
    }
    tq_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_does_not_depend_on_threads),
        cmocka_unit_test(a_view_is_read_while_other_sequences_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
