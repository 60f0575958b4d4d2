/* SPDX-License-Identifier: MIT */
/* attn_bench.c — how long attention over a cache takes, by scheme and shape.
 *
 * Every scheme gets a cache with so many layers that their bytes exceed the last-level cache, and
 * each call reads the next layer, as a model does: what is timed is attention on cold data.
 * Schemes take turns, so that a change of the machine's speed hits all of them; the best and the
 * median of the rounds are printed. GB/s counts the packed bytes that must be read once.
 */
#define _DEFAULT_SOURCE /* clock_gettime, madvise */
#include "turboquant.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_SCHEMES 32
#define MAX_THREADS 64

typedef struct options {
    const char *schemes;
    uint32_t n_q_heads, n_kv_heads, d_k, d_v, q_len, n_kv, n_threads, rounds, isa, pool_mib;
    int small_pages;
    int cpu_clock; /* time of all threads, for a machine that others use too */
} options;

typedef struct bench {
    char name[TQ_SCHEME_TEXT_BYTES];
    tq_cache *cache;
    uint32_t seq, n_layers, next_layer;
    size_t bytes; /* of one layer */
    double *ms;   /* [rounds] */
} bench;

typedef struct run_state {
    const tq_attn_plan *plan;
    const tq_view *view;
    const float *q;
    size_t q_stride;
    float *out;
    size_t out_stride;
    void *partials;
    uint8_t *work;
    size_t work_stride;
    atomic_uint next_part, next_row;
} run_state;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "attn_bench: %s: %s\n", what, why);
    exit(1);
}

static void check(tq_status st, const char *what)
{
    if (st != TQ_OK)
        die(what, tq_status_name(st));
}

static void *alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p)
        die("allocation", "out of memory");
    return p;
}

static double now_ms(int cpu_clock)
{
    struct timespec t;
    clock_gettime(cpu_clock ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* About N(0, 1): the sum of four uniforms, scaled. */
static float noise(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7320508f;
}

/* Large pages where the system has them: a head of a page is one run of memory, but the next page
 * is elsewhere, and each 4 KiB of it would need an address translation. */
static void *large_pages(void *ctx, size_t bytes)
{
    const size_t large = (size_t)2 << 20;
    void *p = aligned_alloc(large, (bytes + large - 1) / large * large);
    (void)ctx;
#if defined(MADV_HUGEPAGE)
    if (p)
        madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

static void large_pages_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

static void open_scheme(bench *b, const char *text, const options *o)
{
    tq_layer layer = {.n_kv_heads = o->n_kv_heads, .d_k = o->d_k, .d_v = o->d_v};
    char err[200];
    if (tq_scheme_parse(&layer.scheme, text, err, sizeof err) != TQ_OK)
        die(text, err);
    check(tq_scheme_format(&layer.scheme, b->name, sizeof b->name), text);
    size_t token_bytes;
    check(tq_scheme_bytes_per_token(&layer.scheme, o->d_k, o->d_v, &token_bytes), text);
    b->bytes = token_bytes * o->n_kv_heads * o->n_kv;
    b->n_layers = (uint32_t)(((size_t)o->pool_mib << 20) / b->bytes) + 1;
    b->n_layers = b->n_layers > 1024 ? 1024 : b->n_layers;

    tq_layer *layers = alloc(b->n_layers * sizeof *layers);
    for (uint32_t i = 0; i < b->n_layers; i++)
        layers[i] = layer;
    tq_cache_config cfg = {.layers = layers,
                           .n_layers = b->n_layers,
                           .n_pages = (o->n_kv + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS,
                           .max_seqs = 1,
                           .isa_mask = o->isa};
    const tq_allocator large = {large_pages, large_pages_free, NULL};
    check(tq_cache_create(&b->cache, &cfg, o->small_pages ? NULL : &large), text);
    free(layers);
    check(tq_cache_seq_open(b->cache, &b->seq), text);

    const size_t k_row = (size_t)o->n_kv_heads * o->d_k, v_row = (size_t)o->n_kv_heads * o->d_v;
    const uint32_t step = 512;
    float *k = alloc(step * k_row * sizeof(float)), *v = alloc(step * v_row * sizeof(float));
    uint64_t seed = 1;
    for (uint32_t done = 0; done < o->n_kv;) {
        uint32_t n = o->n_kv - done < step ? o->n_kv - done : step;
        for (size_t i = 0; i < n * k_row; i++)
            k[i] = noise(&seed);
        for (size_t i = 0; i < n * v_row; i++)
            v[i] = noise(&seed);
        check(tq_cache_append_begin(b->cache, b->seq, n), text);
        for (uint32_t l = 0; l < b->n_layers; l++)
            check(tq_cache_append_rows(b->cache, b->seq, l, k, k_row, v, v_row, 0, 1), text);
        check(tq_cache_append_commit(b->cache, b->seq), text);
        done += n;
    }
    free(k);
    free(v);
    b->ms = alloc(o->rounds * sizeof(double));
}

typedef struct worker {
    run_state *run;
    uint32_t id;
} worker;

static void *parts(void *arg)
{
    worker *w = arg;
    run_state *r = w->run;
    uint8_t *work = r->work + w->id * r->work_stride;
    for (uint32_t i; (i = atomic_fetch_add(&r->next_part, 1)) < r->plan->n_parts;)
        check(tq_attn_part(r->plan, r->view, r->q, r->q_stride, r->partials, work, i), "part");
    return NULL;
}

static void *rows(void *arg)
{
    worker *w = arg;
    run_state *r = w->run;
    const uint32_t step = 16;
    for (uint32_t i; (i = atomic_fetch_add(&r->next_row, step)) < r->plan->n_rows;) {
        uint32_t n = r->plan->n_rows - i < step ? r->plan->n_rows - i : step;
        check(tq_attn_merge(r->plan, r->view, r->out, r->out_stride, r->partials, r->work, i, n),
              "merge");
    }
    return NULL;
}

static void in_threads(void *(*fn)(void *), run_state *r, uint32_t n)
{
    pthread_t id[MAX_THREADS];
    worker w[MAX_THREADS];
    for (uint32_t i = 0; i < n; i++)
        w[i] = (worker){r, i};
    for (uint32_t i = 1; i < n; i++)
        if (pthread_create(&id[i], NULL, fn, &w[i]) != 0)
            die("thread", "cannot start");
    fn(&w[0]);
    for (uint32_t i = 1; i < n; i++)
        pthread_join(id[i], NULL);
}

static double time_once(bench *b, const options *o, const float *q, float *out, uint8_t *scratch)
{
    tq_view view;
    check(tq_cache_view(b->cache, b->seq, b->next_layer, &view), "view");
    b->next_layer = (b->next_layer + 1) % b->n_layers;
    tq_attn_config cfg = {
        .n_q_heads = o->n_q_heads, .q_len = o->q_len, .scale = 1 / sqrtf((float)o->d_k)};
    tq_attn_plan plan;
    double t0 = now_ms(o->cpu_clock);
    check(tq_attn_plan_init(&plan, &cfg, &view), "plan");
    run_state r = {.plan = &plan,
                   .view = &view,
                   .q = q,
                   .q_stride = (size_t)o->n_q_heads * o->d_k,
                   .out = out,
                   .out_stride = (size_t)o->n_q_heads * o->d_v,
                   .partials = scratch,
                   .work = scratch + plan.partials_bytes,
                   .work_stride = plan.work_bytes};
    in_threads(parts, &r, o->n_threads);
    in_threads(rows, &r, o->n_threads);
    return now_ms(o->cpu_clock) - t0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint32_t number(const char *flag, const char *text, uint32_t lo, uint32_t hi)
{
    char *end;
    unsigned long long x = text ? strtoull(text, &end, 10) : 0;
    if (!text || *text < '0' || *text > '9' || *end || x < lo || x > hi) {
        fprintf(stderr, "attn_bench: %s needs a number from %u to %u\n", flag, lo, hi);
        exit(2);
    }
    return (uint32_t)x;
}

static options parse(int argc, char **argv)
{
    options o = {.schemes = "f16 turbo:k8v3 turbo:k8v4 turbo:k4v4 turbo:k8v8",
                 .n_q_heads = 32,
                 .n_kv_heads = 8,
                 .d_k = 128,
                 .d_v = 128,
                 .q_len = 1,
                 .n_kv = 16384,
                 .n_threads = 1,
                 .rounds = 15,
                 .isa = TQ_ISA_ALL,
                 .pool_mib = 256};
    static const char usage[] =
        "usage: attn_bench [--schemes \"S S ...\"] [--heads N] [--kv-heads N] [--dk N] [--dv N]\n"
        "                  [--q N] [--kv N] [--threads N] [--rounds N] [--isa MASK] [--pool MIB]\n"
        "                  [--clock wall|cpu] [--pages large|small]\n";
    for (int i = 1; i < argc; i += 2) {
        const char *f = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(f, "--schemes") && v) {
            o.schemes = v;
        } else if (!strcmp(f, "--pages") && v && (!strcmp(v, "small") || !strcmp(v, "large"))) {
            o.small_pages = !strcmp(v, "small");
        } else if (!strcmp(f, "--clock") && v && (!strcmp(v, "cpu") || !strcmp(v, "wall"))) {
            o.cpu_clock = !strcmp(v, "cpu");
        } else if (!strcmp(f, "--heads")) {
            o.n_q_heads = number(f, v, 1, 32768);
        } else if (!strcmp(f, "--kv-heads")) {
            o.n_kv_heads = number(f, v, 1, 1024);
        } else if (!strcmp(f, "--dk")) {
            o.d_k = number(f, v, 16, 1024);
        } else if (!strcmp(f, "--dv")) {
            o.d_v = number(f, v, 16, 1024);
        } else if (!strcmp(f, "--q")) {
            o.q_len = number(f, v, 1, 4096);
        } else if (!strcmp(f, "--kv")) {
            o.n_kv = number(f, v, 1, 1u << 24);
        } else if (!strcmp(f, "--threads")) {
            o.n_threads = number(f, v, 1, MAX_THREADS);
        } else if (!strcmp(f, "--rounds")) {
            o.rounds = number(f, v, 1, 100000);
        } else if (!strcmp(f, "--isa")) {
            o.isa = number(f, v, 1, UINT32_MAX);
        } else if (!strcmp(f, "--pool")) {
            o.pool_mib = number(f, v, 1, 65536);
        } else {
            fputs(usage, stderr);
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    const options o = parse(argc, argv);
    static bench benches[MAX_SCHEMES];
    uint32_t n = 0;
    char *list = strdup(o.schemes);
    for (char *s = strtok(list, " "); s && n < MAX_SCHEMES; s = strtok(NULL, " "))
        open_scheme(&benches[n++], s, &o);

    const size_t q_floats = (size_t)o.q_len * o.n_q_heads * o.d_k;
    const size_t out_floats = (size_t)o.q_len * o.n_q_heads * o.d_v;
    float *q = alloc(q_floats * sizeof(float)), *out = alloc(out_floats * sizeof(float));
    uint64_t seed = 2;
    for (size_t i = 0; i < q_floats; i++)
        q[i] = noise(&seed);
    size_t scratch_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        tq_layer layer = {.n_kv_heads = o.n_kv_heads, .d_k = o.d_k, .d_v = o.d_v};
        size_t partials, work;
        check(tq_scheme_parse(&layer.scheme, benches[i].name, NULL, 0), benches[i].name);
        check(tq_attn_bounds(&layer, o.n_q_heads, o.q_len, o.n_kv, &partials, &work), "bounds");
        size_t need = partials + o.n_threads * work;
        scratch_bytes = need > scratch_bytes ? need : scratch_bytes;
    }
    uint8_t *scratch = alloc(scratch_bytes);
    memset(scratch, 0, scratch_bytes);

    for (uint32_t i = 0; i < n; i++)
        time_once(&benches[i], &o, q, out, scratch);
    for (uint32_t round = 0; round < o.rounds; round++)
        for (uint32_t i = 0; i < n; i++)
            benches[i].ms[round] = time_once(&benches[i], &o, q, out, scratch);

    printf("%u/%u heads, d %u/%u, q_len %u, n_kv %u, %u threads, %u rounds, %s time\n", o.n_q_heads,
           o.n_kv_heads, o.d_k, o.d_v, o.q_len, o.n_kv, o.n_threads, o.rounds,
           o.cpu_clock ? "CPU" : "wall");
    printf("%-24s %10s %10s %12s %8s\n", "scheme", "best ms", "median", "us/KV token", "GB/s");
    for (uint32_t i = 0; i < n; i++) {
        bench *b = &benches[i];
        qsort(b->ms, o.rounds, sizeof(double), by_value);
        printf("%-24s %10.3f %10.3f %12.4f %8.2f\n", b->name, b->ms[0], b->ms[o.rounds / 2],
               b->ms[0] * 1e3 / o.n_kv, (double)b->bytes / b->ms[0] * 1e-6);
        tq_cache_destroy(b->cache);
        free(b->ms);
    }
    free(scratch);
    free(q);
    free(out);
    free(list);
    return 0;
}
