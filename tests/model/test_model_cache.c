/* SPDX-License-Identifier: MIT */
/* test_model_cache.c — random operations against the model, and a long run that must leave nothing.
 *
 *   test_model_cache [--seed N] [--ops N]
 *
 * The seed of a run without --seed comes from the clock; it is printed, and repeats the run. */
#include "cache_model.h"
#include "cache_world.h"

#include <time.h>

static uint64_t number(const char *text)
{
    char *end;
    const unsigned long long n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end) {
        fprintf(stderr, "not a number: %s\n", text);
        exit(2);
    }
    return n;
}

/* 10 000 times create, append, fork, append to both, free: not a byte and not a page is left. */
typedef struct counted {
    size_t calls, live;
} counted;

static void *counted_alloc(void *ctx, size_t bytes)
{
    counted *n = ctx;
    n->calls++;
    n->live++;
    return malloc(bytes);
}

static void counted_free(void *ctx, void *p)
{
    counted *n = ctx;
    n->live--;
    free(p);
}

static int long_run(void)
{
    enum { N = 100 };
    static float x[N * 16];
    tq_layer layer = {.n_kv_heads = 1, .d_k = 16, .d_v = 16, .window = 80};
    counted n = {0, 0};
    const tq_allocator a = {counted_alloc, counted_free, &n};
    const tq_cache_config cfg = {
        .layers = &layer, .n_layers = 1, .n_pages = 8, .max_seqs = 3, .isa_mask = TQ_ISA_ALL};
    int ok = tq_scheme_parse(&layer.scheme, "affine8g32,tail=9,sink=2", NULL, 0) == TQ_OK;
    for (int i = 0; ok && i < 10000; i++) {
        tq_cache *c = NULL;
        tq_cache_stats st;
        uint32_t s[3];
        ok &= tq_cache_create(&c, &cfg, &a) == TQ_OK && tq_cache_seq_open(c, &s[0]) == TQ_OK &&
              tq_cache_append(c, s[0], x, x, N) == TQ_OK &&
              tq_cache_seq_fork(c, s[0], N, &s[1]) == TQ_OK &&
              tq_cache_append(c, s[1], x, x, 70) == TQ_OK &&
              tq_cache_append(c, s[0], x, x, 1) == TQ_OK &&
              tq_cache_seq_fork(c, s[1], N + 70, &s[2]) == TQ_OK;
        for (int j = 0; ok && j < 3; j++)
            ok &= tq_cache_seq_close(c, s[(i + j) % 3]) == TQ_OK;
        ok = ok && tq_cache_get_stats(c, &st) == TQ_OK && st.n_pages_used == 0 &&
             st.packed_bytes + st.f16_bytes == 0 && st.n_tokens == 0 && st.n_seqs == 0;
        tq_cache_destroy(c);
    }
    ok = ok && n.live == 0 && n.calls == 10000;
    printf("%zu caches made and freed, %zu left: %s\n", n.calls, n.live, ok ? "ok" : "FAILED");
    return ok;
}

int main(int argc, char **argv)
{
    uint64_t seed = (uint64_t)time(NULL), left = 1000000, counts[CM_N_EVENTS] = {0};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seed"))
            seed = number(argv[i + 1]);
        else if (!strcmp(argv[i], "--ops"))
            left = number(argv[i + 1]);
        else
            argc = 0;
    }
    if (argc % 2 == 0) {
        fprintf(stderr, "usage: test_model_cache [--seed N] [--ops N]\n");
        return 2;
    }
    printf("seed %llu, %llu operations\n", (unsigned long long)seed, (unsigned long long)left);
    fflush(stdout);
    const int enough = left >= 100000;
    cm_source src = {.seed = seed};
    while (left > 0) {
        const uint64_t n = left < 2000 ? left : 2000;
        left -= cm_episode(&src, (size_t)n, counts);
    }
    int ok = 1;
    for (int i = 0; i < CM_N_EVENTS; i++) {
        printf("%14llu %s\n", (unsigned long long)counts[i], cm_event_names[i]);
        ok &= counts[i] > 0 || !enough; /* else this run has not tested what it says */
    }
    return long_run() && ok ? 0 : 1;
}
