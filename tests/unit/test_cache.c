/* SPDX-License-Identifier: MIT */
/* test_cache.c — the paged cache: configuration, append in steps, truncate, close, what views and
 * statistics say, and a random sequence of operations against a naive model.
 *
 * Most tests use f32 pages, in which what comes out is exactly what went in. */
#define _DEFAULT_SOURCE /* mmap */
#include "support.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static tq_layer make_layer(const char *scheme, uint32_t n_kv_heads, uint32_t d_k, uint32_t d_v)
{
    tq_layer l = {.n_kv_heads = n_kv_heads, .d_k = d_k, .d_v = d_v};
    assert_int_equal(tq_scheme_parse(&l.scheme, scheme, NULL, 0), TQ_OK);
    return l;
}

static tq_cache *make_cache(const tq_layer *layers, uint32_t n_layers, uint32_t n_pages,
                            uint32_t max_seqs)
{
    tq_cache_config cfg = {layers, n_layers, n_pages, max_seqs, TQ_ISA_ALL};
    tq_cache *c = NULL;
    assert_int_equal(tq_cache_create(&c, &cfg, NULL), TQ_OK);
    return c;
}

static float *random_rows(uint64_t *seed, size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)test_normal(seed);
    return x;
}

/* A checksum of decoded rows of all heads of a layer, in order, compared through two buffers. */
static void assert_same_bytes(const tq_view *a, const tq_view *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->page_bytes, b->page_bytes);
    const size_t head = a->page_bytes / a->n_kv_heads;
    const size_t plane[] = {a->k_codec->code_bytes,  a->k_codec->scale_bytes,
                            a->k_codec->zero_bytes,  a->v_codec->code_bytes,
                            a->v_codec->scale_bytes, a->v_codec->zero_bytes};
    for (uint32_t t = 0; t < a->n_tokens; t++)
        for (uint32_t h = 0; h < a->n_kv_heads; h++) {
            const uint8_t *x = a->pages + a->page_table[t / 64] * a->page_bytes + h * head;
            const uint8_t *y = b->pages + b->page_table[t / 64] * b->page_bytes + h * head;
            for (int p = 0; p < 6; p++) {
                assert_memory_equal(x + t % 64 * plane[p], y + t % 64 * plane[p], plane[p]);
                x += 64 * plane[p];
                y += 64 * plane[p];
            }
        }
}

/* ---- Configuration --------------------------------------------------------------------- */

static void refuses_bad_configurations(void **state)
{
    (void)state;
    const tq_layer good = make_layer("turbo:k8v3", 2, 64, 64);
    const tq_cache_config ok = {&good, 1, 4, 2, TQ_ISA_ALL};
    size_t bytes;
    assert_int_equal(tq_cache_bytes(&ok, &bytes), TQ_OK);

    struct {
        tq_layer layer;
        uint32_t n_layers, n_pages, max_seqs;
        tq_status want;
    } cases[] = {
        {good, 0, 4, 2, TQ_ERR_ARG},
        {good, 1025, 4, 2, TQ_ERR_ARG},
        {good, 1, 0, 2, TQ_ERR_ARG},
        {good, 1, (1u << 24) + 1, 2, TQ_ERR_ARG},
        {good, 1, 4, 0, TQ_ERR_ARG},
        {good, 1, 4, 65537, TQ_ERR_ARG},
        {make_layer("turbo:k8v3", 0, 64, 64), 1, 4, 2, TQ_ERR_ARG},
        {make_layer("turbo:k8v3", 1025, 64, 64), 1, 4, 2, TQ_ERR_ARG},
        {make_layer("turbo:k8v3", 2, 84, 64), 1, 4, 2, TQ_ERR_DIM},
        {make_layer("turbo:k8v3", 2, 64, 88), 1, 4, 2, TQ_ERR_DIM},
        {make_layer("f16", 2, 12, 64), 1, 4, 2, TQ_ERR_DIM},
        {make_layer("f16", 2, 64, 1032), 1, 4, 2, TQ_ERR_DIM},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tq_cache_config cfg = {&cases[i].layer, cases[i].n_layers, cases[i].n_pages,
                               cases[i].max_seqs, TQ_ISA_ALL};
        tq_cache *c = NULL;
        assert_int_equal(tq_cache_bytes(&cfg, &bytes), cases[i].want);
        assert_int_equal(tq_cache_create(&c, &cfg, NULL), cases[i].want);
        assert_null(c);
    }
    assert_int_equal(tq_cache_bytes(NULL, &bytes), TQ_ERR_ARG);
    assert_int_equal(tq_cache_bytes(&ok, NULL), TQ_ERR_ARG);

    tq_layer bad_scheme = good;
    bad_scheme.scheme.v_bits = 7;
    tq_cache_config cfg = {&bad_scheme, 1, 4, 2, TQ_ISA_ALL};
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_ARG);

    /* PITFALL 26: options that the cache does not apply are refused, not ignored. */
    static const char *const later[] = {"turbo4,skip=1",  "turbo4,sink=4",  "turbo:k8v3,tail=64",
                                        "tcq4,start=512", "turbo4,kmean=f", "f16,layers=f"};
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
        tq_cache *c = NULL;
        assert_int_equal(tq_scheme_parse(&bad_scheme.scheme, later[i], NULL, 0), TQ_OK);
        assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_SCHEME);
        assert_int_equal(tq_cache_create(&c, &cfg, NULL), TQ_ERR_SCHEME);
        assert_null(c);
    }
}

static void notices_sizes_beyond_size_t(void **state)
{
    (void)state;
    tq_layer *layers = calloc(1024, sizeof *layers);
    assert_non_null(layers);
    for (int i = 0; i < 1024; i++)
        layers[i] = make_layer("f32", 1024, 1024, 1024);
    size_t bytes = 77;
    tq_cache_config cfg = {layers, 1024, 1u << 24, 1, TQ_ISA_ALL};
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_OVERFLOW);
    assert_int_equal(bytes, 77);
    free(layers);
}

static void lives_in_memory_of_any_alignment(void **state)
{
    (void)state;
    const tq_layer layer = make_layer("f32", 1, 16, 16);
    const tq_cache_config cfg = {&layer, 1, 2, 1, TQ_ISA_ALL};
    size_t bytes;
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_OK);
    for (size_t offset = 0; offset < 65; offset += 13) {
        uint8_t *mem = malloc(bytes + offset); /* a byte too much is an ASan error */
        assert_non_null(mem);
        tq_cache *c = NULL;
        assert_int_equal(tq_cache_init(&c, &cfg, mem + offset, bytes - 1), TQ_ERR_SIZE);
        assert_null(c);
        assert_int_equal(tq_cache_init(&c, &cfg, mem + offset, bytes), TQ_OK);
        uint32_t seq;
        float x[128 * 16];
        for (int i = 0; i < 128 * 16; i++)
            x[i] = (float)i;
        assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
        assert_int_equal(tq_cache_append(c, seq, x, x, 128), TQ_OK);
        float y[16];
        tq_view v;
        assert_int_equal(tq_cache_view(c, seq, 0, &v), TQ_OK);
        assert_int_equal(tq_view_decode(&v, 0, 127, 1, NULL, y), TQ_OK);
        assert_memory_equal(y, x + 127 * 16, sizeof y);
        tq_cache_destroy(c); /* not ours to free: must do nothing */
        free(mem);
    }
}

typedef struct failing {
    int calls, fail_at, live;
} failing;

static void *failing_alloc(void *ctx, size_t bytes)
{
    failing *f = ctx;
    if (++f->calls == f->fail_at)
        return NULL;
    f->live++;
    return malloc(bytes);
}

static void failing_free(void *ctx, void *p)
{
    failing *f = ctx;
    f->live--;
    free(p);
}

static void survives_a_failing_allocator(void **state)
{
    (void)state;
    const tq_layer layer = make_layer("turbo:k4v2", 2, 64, 64);
    const tq_cache_config cfg = {&layer, 1, 2, 1, TQ_ISA_ALL};
    int made = 0;
    for (int n = 1; !made; n++) {
        failing f = {0, n, 0};
        tq_allocator a = {failing_alloc, failing_free, &f};
        tq_cache *c = NULL;
        tq_status st = tq_cache_create(&c, &cfg, &a);
        if (f.calls < n) { /* the n-th allocation was not asked for */
            assert_int_equal(st, TQ_OK);
            made = 1;
            tq_cache_destroy(c);
        } else {
            assert_int_equal(st, TQ_ERR_NOMEM);
            assert_null(c);
        }
        assert_int_equal(f.live, 0);
        assert_true(n < 100);
    }
    tq_cache *c = NULL;
    tq_allocator half = {failing_alloc, NULL, NULL};
    assert_int_equal(tq_cache_create(&c, &cfg, &half), TQ_ERR_ARG);
    tq_cache_destroy(NULL);
}

/* ---- Append ---------------------------------------------------------------------------- */

/* PITFALLS 16 and 21: prefill 4, append 3, then another chunk: all rows are distinct and right. */
static void every_token_has_its_own_slot(void **state)
{
    (void)state;
    uint64_t seed = 1;
    const tq_layer layer = make_layer("f32", 2, 24, 40);
    tq_cache *c = make_cache(&layer, 1, 4, 1);
    float *k = random_rows(&seed, 200 * 2 * 24), *v = random_rows(&seed, 200 * 2 * 40);
    uint32_t seq, len;
    assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
    const uint32_t steps[] = {4, 1, 1, 1, 60, 130, 3};
    uint32_t done = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_int_equal(tq_cache_append(c, seq, k + done * 2 * 24, v + done * 2 * 40, steps[i]),
                         TQ_OK);
        done += steps[i];
        assert_int_equal(tq_cache_len(c, seq, &len), TQ_OK);
        assert_int_equal(len, done);
    }
    assert_int_equal(done, 200);
    tq_view view;
    assert_int_equal(tq_cache_view(c, seq, 0, &view), TQ_OK);
    float dk[200 * 24], dv[200 * 40];
    for (uint32_t h = 0; h < 2; h++) {
        assert_int_equal(tq_view_decode(&view, h, 0, 200, dk, dv), TQ_OK);
        for (uint32_t t = 0; t < 200; t++) {
            assert_memory_equal(dk + t * 24, k + (t * 2 + h) * 24, 24 * sizeof(float));
            assert_memory_equal(dv + t * 40, v + (t * 2 + h) * 40, 40 * sizeof(float));
        }
        /* A range that starts and ends inside pages. */
        assert_int_equal(tq_view_decode(&view, h, 61, 70, dk, NULL), TQ_OK);
        assert_memory_equal(dk + 69 * 24, k + (130 * 2 + h) * 24, 24 * sizeof(float));
    }
    assert_int_equal(tq_view_decode(&view, 2, 0, 1, dk, dv), TQ_ERR_ARG);
    assert_int_equal(tq_view_decode(&view, 0, 200, 1, dk, dv), TQ_ERR_ARG);
    assert_int_equal(tq_view_decode(&view, 0, 1, UINT32_MAX, dk, dv), TQ_ERR_ARG);
    assert_int_equal(tq_view_decode(&view, 0, 200, 0, dk, dv), TQ_OK);
    free(k);
    free(v);
    tq_cache_destroy(c);
}

typedef struct writer {
    tq_cache *c;
    uint32_t seq, part, n_parts;
    const float *k, *v;
    size_t k_stride, v_stride;
    tq_status st;
} writer;

static void *write_part(void *arg)
{
    writer *w = arg;
    w->st = tq_cache_append_rows(w->c, w->seq, 0, w->k, w->k_stride, w->v, w->v_stride, w->part,
                                 w->n_parts);
    return NULL;
}

/* Any split of the rows into parts, on any thread, token by token or in bulk: equal bytes. */
static void bytes_do_not_depend_on_the_split(void **state)
{
    (void)state;
    static const char *schemes[] = {"f16", "bf16", "turbo:k8v3", "turbo:k5v5", "turbo:k2v2"};
    enum { N = 83, HEADS = 3, D = 64, STRIDE = HEADS * D + 5 };
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        uint64_t seed = 2;
        const tq_layer layer = make_layer(schemes[s], HEADS, D, D);
        float *k = random_rows(&seed, N * STRIDE), *v = random_rows(&seed, N * STRIDE);
        tq_cache *c = make_cache(&layer, 1, 20, 8);
        uint32_t whole, single, seq;
        assert_int_equal(tq_cache_seq_open(c, &whole), TQ_OK);
        assert_int_equal(tq_cache_append_begin(c, whole, N), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, whole, 0, k, STRIDE, v, STRIDE, 0, 1), TQ_OK);
        assert_int_equal(tq_cache_append_commit(c, whole), TQ_OK);
        tq_view want, got;
        assert_int_equal(tq_cache_view(c, whole, 0, &want), TQ_OK);

        assert_int_equal(tq_cache_seq_open(c, &single), TQ_OK);
        for (uint32_t t = 0; t < N; t++) {
            assert_int_equal(tq_cache_append_begin(c, single, 1), TQ_OK);
            for (uint32_t part = 0; part < 5; part++) /* more parts than heads */
                assert_int_equal(tq_cache_append_rows(c, single, 0, k + t * STRIDE, STRIDE,
                                                      v + t * STRIDE, STRIDE, part, 5),
                                 TQ_OK);
            assert_int_equal(tq_cache_append_commit(c, single), TQ_OK);
        }
        assert_int_equal(tq_cache_view(c, single, 0, &got), TQ_OK);
        assert_same_bytes(&want, &got);

        const uint32_t splits[] = {2, 3, 6, 100};
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
            assert_int_equal(tq_cache_append_begin(c, seq, N), TQ_OK);
            pthread_t id[100];
            writer w[100];
            for (uint32_t p = 0; p < splits[i]; p++) {
                w[p] = (writer){c, seq, p, splits[i], k, v, STRIDE, STRIDE, TQ_ERR_STATE};
                assert_int_equal(pthread_create(&id[p], NULL, write_part, &w[p]), 0);
            }
            for (uint32_t p = 0; p < splits[i]; p++) {
                pthread_join(id[p], NULL);
                assert_int_equal(w[p].st, TQ_OK);
            }
            assert_int_equal(tq_cache_append_commit(c, seq), TQ_OK);
            assert_int_equal(tq_cache_view(c, seq, 0, &got), TQ_OK);
            assert_same_bytes(&want, &got);
            assert_int_equal(tq_cache_seq_close(c, seq), TQ_OK);
        }
        free(k);
        free(v);
        tq_cache_destroy(c);
    }
}

static void steps_out_of_order_are_refused(void **state)
{
    (void)state;
    const tq_layer layer = make_layer("f32", 1, 16, 16);
    tq_cache *c = make_cache(&layer, 1, 2, 1);
    float x[3 * 16] = {0};
    uint32_t seq, len;
    tq_view v;
    assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
    assert_int_equal(tq_cache_append_commit(c, seq), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append_abort(c, seq), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append_rows(c, seq, 0, x, 16, x, 16, 0, 1), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append_begin(c, seq, 0), TQ_ERR_ARG);
    assert_int_equal(tq_cache_append_begin(c, seq, 3), TQ_OK);
    assert_int_equal(tq_cache_append_begin(c, seq, 1), TQ_ERR_STATE);
    assert_int_equal(tq_cache_truncate(c, seq, 0), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append_rows(c, seq, 1, x, 16, x, 16, 0, 1), TQ_ERR_ARG);
    assert_int_equal(tq_cache_append_rows(c, seq, 0, x, 15, x, 16, 0, 1), TQ_ERR_ARG);
    assert_int_equal(tq_cache_append_rows(c, seq, 0, x, 16, x, 15, 0, 1), TQ_ERR_ARG);
    assert_int_equal(tq_cache_append_rows(c, seq, 0, x, 16, x, 16, 1, 1), TQ_ERR_ARG);
    assert_int_equal(tq_cache_append_rows(c, seq, 0, x, 16, x, 16, 0, 0), TQ_ERR_ARG);
    assert_int_equal(tq_cache_append_rows(c, seq, 0, NULL, 16, x, 16, 0, 1), TQ_ERR_ARG);

    /* A view of the same step sees the pending tokens, the length does not. */
    assert_int_equal(tq_cache_view(c, seq, 0, &v), TQ_OK);
    assert_int_equal(v.n_tokens, 3);
    assert_int_equal(tq_cache_len(c, seq, &len), TQ_OK);
    assert_int_equal(len, 0);
    assert_int_equal(tq_cache_append_abort(c, seq), TQ_OK);
    assert_int_equal(tq_cache_view(c, seq, 0, &v), TQ_OK);
    assert_int_equal(v.n_tokens, 0);
    tq_cache_stats st;
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    assert_int_equal(st.n_pages_used, 0);
    assert_int_equal(tq_cache_view(c, seq, 1, &v), TQ_ERR_ARG);
    assert_int_equal(tq_cache_truncate(c, seq, 1), TQ_ERR_ARG);
    tq_cache_destroy(c);
}

static void a_row_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    static const char *schemes[] = {"f32", "f16", "turbo:k8v3"};
    for (int s = 0; s < 3; s++) {
        uint64_t seed = 3;
        const tq_layer layer = make_layer(schemes[s], 2, 64, 64);
        tq_cache *c = make_cache(&layer, 1, 4, 2);
        float *x = random_rows(&seed, 70 * 128);
        uint32_t a, b, len;
        assert_int_equal(tq_cache_seq_open(c, &a), TQ_OK);
        assert_int_equal(tq_cache_seq_open(c, &b), TQ_OK);
        assert_int_equal(tq_cache_append(c, a, x, x, 5), TQ_OK);
        assert_int_equal(tq_cache_append(c, b, x, x, 5), TQ_OK);
        float *bad = malloc(70 * 128 * sizeof *bad);
        assert_non_null(bad);
        memcpy(bad, x, 70 * 128 * sizeof *bad);
        bad[66 * 128 + 127] = s == 1 ? INFINITY : NAN;
        assert_int_equal(tq_cache_append(c, a, bad, x, 70), TQ_ERR_NONFINITE);
        assert_int_equal(tq_cache_append(c, a, x, bad, 70), TQ_ERR_NONFINITE);
        assert_int_equal(tq_cache_len(c, a, &len), TQ_OK);
        assert_int_equal(len, 5);
        tq_cache_stats st;
        assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
        assert_int_equal(st.n_pages_used, 2);
        assert_int_equal(st.n_tokens, 10);
        assert_int_equal(tq_cache_append(c, a, x + 5 * 128, x + 5 * 128, 60), TQ_OK);
        assert_int_equal(tq_cache_append(c, b, x + 5 * 128, x + 5 * 128, 60), TQ_OK);
        tq_view va, vb;
        assert_int_equal(tq_cache_view(c, a, 0, &va), TQ_OK);
        assert_int_equal(tq_cache_view(c, b, 0, &vb), TQ_OK);
        assert_same_bytes(&va, &vb);
        free(x);
        free(bad);
        tq_cache_destroy(c);
    }
}

/* ---- Capacity, truncate, close --------------------------------------------------------- */

/* PITFALL 22: after truncate the write position is back too. */
static void truncate_then_append_equals_a_fresh_run(void **state)
{
    (void)state;
    uint64_t seed = 4;
    const tq_layer layer = make_layer("turbo:k4v3", 2, 64, 64);
    float *x = random_rows(&seed, 300 * 128), *y = random_rows(&seed, 300 * 128);
    tq_cache *c = make_cache(&layer, 1, 16, 2);
    const uint32_t cuts[] = {0, 1, 63, 64, 65, 128, 199, 200};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        uint32_t a, b;
        assert_int_equal(tq_cache_seq_open(c, &a), TQ_OK);
        assert_int_equal(tq_cache_seq_open(c, &b), TQ_OK);
        assert_int_equal(tq_cache_append(c, a, x, y, 200), TQ_OK);
        assert_int_equal(tq_cache_truncate(c, a, cuts[i]), TQ_OK);
        tq_cache_stats st;
        assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
        assert_int_equal(st.n_tokens, cuts[i]);
        assert_int_equal(st.n_pages_used, (cuts[i] + 63) / 64);
        assert_int_equal(tq_cache_append(c, a, y, x, 100), TQ_OK);
        if (cuts[i] > 0)
            assert_int_equal(tq_cache_append(c, b, x, y, cuts[i]), TQ_OK);
        assert_int_equal(tq_cache_append(c, b, y, x, 100), TQ_OK);
        tq_view va, vb;
        assert_int_equal(tq_cache_view(c, a, 0, &va), TQ_OK);
        assert_int_equal(tq_cache_view(c, b, 0, &vb), TQ_OK);
        assert_same_bytes(&va, &vb);
        assert_int_equal(tq_cache_seq_close(c, a), TQ_OK);
        assert_int_equal(tq_cache_seq_close(c, b), TQ_OK);
    }
    free(x);
    free(y);
    tq_cache_destroy(c);
}

static void a_full_cache_says_so_and_recovers(void **state)
{
    (void)state;
    const tq_layer layer = make_layer("f16", 1, 16, 16);
    tq_cache *c = make_cache(&layer, 1, 3, 2);
    float *x = calloc(200 * 16, sizeof *x);
    assert_non_null(x);
    uint32_t a, b, none, len;
    assert_int_equal(tq_cache_seq_open(c, &a), TQ_OK);
    assert_int_equal(tq_cache_seq_open(c, &b), TQ_OK);
    assert_int_equal(tq_cache_seq_open(c, &none), TQ_ERR_FULL);
    assert_int_equal(tq_cache_append(c, a, x, x, 65), TQ_OK);
    assert_int_equal(tq_cache_append(c, b, x, x, 65), TQ_ERR_FULL);
    assert_int_equal(tq_cache_append_begin(c, b, UINT32_MAX), TQ_ERR_FULL);
    assert_int_equal(tq_cache_append(c, b, x, x, 64), TQ_OK);
    assert_int_equal(tq_cache_append(c, a, x, x, 64), TQ_ERR_FULL);
    assert_int_equal(tq_cache_append(c, a, x, x, 63), TQ_OK); /* room in its own page */
    assert_int_equal(tq_cache_append_begin(c, a, 1), TQ_ERR_FULL);
    assert_int_equal(tq_cache_len(c, a, &len), TQ_OK);
    assert_int_equal(len, 128);
    assert_int_equal(tq_cache_append_commit(c, a), TQ_ERR_STATE); /* begin did not begin */

    assert_int_equal(tq_cache_seq_close(c, a), TQ_OK);
    assert_int_equal(tq_cache_seq_close(c, a), TQ_ERR_STATE);
    uint32_t again;
    assert_int_equal(tq_cache_seq_open(c, &again), TQ_OK);
    assert_int_not_equal(again, a); /* a stale handle is noticed */
    assert_int_equal(tq_cache_len(c, a, &len), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append(c, a, x, x, 1), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append(c, again, x, x, 128), TQ_OK);
    assert_int_equal(tq_cache_len(c, 77, &len), TQ_ERR_STATE);
    /* Closing in the middle of an append gives its pages back too. */
    assert_int_equal(tq_cache_truncate(c, again, 0), TQ_OK);
    assert_int_equal(tq_cache_append_begin(c, again, 100), TQ_OK);
    assert_int_equal(tq_cache_seq_close(c, again), TQ_OK);
    tq_cache_stats st;
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    assert_int_equal(st.n_pages_used, 1);
    assert_int_equal(st.n_seqs, 1);
    assert_int_equal(st.n_tokens, 64);
    free(x);
    tq_cache_destroy(c);
}

/* PITFALLS 24 and 26: layers of different geometry and scheme; bytes equal the formula. */
static void layers_differ_and_bytes_equal_the_formula(void **state)
{
    (void)state;
    uint64_t seed = 5;
    const tq_layer layers[] = {make_layer("turbo:k8v3", 8, 256, 256),
                               make_layer("turbo:k4v2", 2, 512, 512),
                               make_layer("f32", 3, 576, 512), make_layer("bf16", 1, 40, 16),
                               make_layer("turbo:k2v8", 1, 64, 128)};
    enum { N_LAYERS = 5, N = 70 };
    tq_cache *c = make_cache(layers, N_LAYERS, 2, 1);
    uint32_t seq;
    assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
    assert_int_equal(tq_cache_append_begin(c, seq, N), TQ_OK);
    size_t want = 0;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        const size_t k_row = layers[l].n_kv_heads * layers[l].d_k;
        const size_t v_row = layers[l].n_kv_heads * layers[l].d_v;
        float *k = random_rows(&seed, N * k_row), *v = random_rows(&seed, N * v_row);
        assert_int_equal(tq_cache_append_rows(c, seq, l, k, k_row, v, v_row, 0, 1), TQ_OK);
        size_t bytes;
        assert_int_equal(
            tq_scheme_bytes_per_token(&layers[l].scheme, layers[l].d_k, layers[l].d_v, &bytes),
            TQ_OK);
        want += bytes * layers[l].n_kv_heads;

        /* Each row against the codec alone: nothing of another layer or head is in it. */
        tq_view view;
        assert_int_equal(tq_cache_view(c, seq, l, &view), TQ_OK);
        for (uint32_t h = 0; h < layers[l].n_kv_heads; h++)
            for (int side = 0; side < 2; side++) {
                const tq_codec *codec = side ? view.v_codec : view.k_codec;
                const float *src = (side ? v : k) + (size_t)h * codec->dim;
                uint8_t *block = malloc(N * codec->block_bytes);
                float *a = malloc(N * codec->dim * sizeof *a);
                float *b = malloc(N * codec->dim * sizeof *b);
                assert_true(block && a && b);
                assert_int_equal(tq_codec_encode(codec, block, N * codec->block_bytes, src,
                                                 side ? v_row : k_row, N, NULL),
                                 TQ_OK);
                assert_int_equal(
                    tq_codec_decode(codec, a, codec->dim, block, N * codec->block_bytes, N), TQ_OK);
                assert_int_equal(tq_view_decode(&view, h, 0, N, side ? NULL : b, side ? b : NULL),
                                 TQ_OK);
                assert_memory_equal(a, b, N * codec->dim * sizeof *a);
                free(block);
                free(a);
                free(b);
            }
        free(k);
        free(v);
    }
    assert_int_equal(tq_cache_append_commit(c, seq), TQ_OK);
    tq_cache_stats st;
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    assert_int_equal(st.bytes_per_token, want);
    assert_int_equal(st.page_bytes, 64 * want);
    assert_int_equal(st.used_bytes, N * want);
    float x[1];
    assert_int_equal(tq_cache_append(c, seq, x, x, 1), TQ_ERR_ARG); /* several layers */
    tq_cache_destroy(c);
}

/* ---- Large caches ---------------------------------------------------------------------- */

static size_t resident_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f)
        return 0;
    int n = fscanf(f, "%lu %lu", &total, &resident);
    fclose(f);
    return n == 2 ? (size_t)resident * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

static void *lazy_alloc(void *ctx, size_t bytes)
{
    (void)ctx;
    void *p = mmap(NULL, bytes + 64, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    memcpy(p, &bytes, sizeof bytes);
    return (uint8_t *)p + 64;
}

static void lazy_free(void *ctx, void *p)
{
    size_t bytes;
    (void)ctx;
    memcpy(&bytes, (uint8_t *)p - 64, sizeof bytes);
    munmap((uint8_t *)p - 64, bytes + 64);
}

static const tq_allocator lazy = {lazy_alloc, lazy_free, NULL};

static void unused_pages_take_no_memory(void **state)
{
    (void)state;
#ifdef TQ_TEST_EMULATED
    skip(); /* what is resident belongs to the emulator */
#endif
    const tq_layer layer = make_layer("turbo:k8v3", 8, 128, 128);
    const tq_cache_config cfg = {&layer, 1, 1u << 24, 16, TQ_ISA_ALL};
    size_t before = resident_bytes();
    tq_cache *c = NULL;
    if (before == 0 || tq_cache_create(&c, &cfg, &lazy) != TQ_OK)
        skip(); /* no /proc, or no address space for 1.7 TB */
    uint32_t seq[16];
    float *x = calloc(100 * 1024, sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(tq_cache_seq_open(c, &seq[i]), TQ_OK);
        assert_int_equal(tq_cache_append(c, seq[i], x, x, 100), TQ_OK);
    }
    /* 32 pages of 100 KiB are used; tables and lists touch some pages of the system. */
    assert_true(resident_bytes() - before < (size_t)16 << 20);
    free(x);
    tq_cache_destroy(c);
}

/* PITFALL 33: offsets beyond 2^32 bytes and 2^31 elements. Only the first and the last page are
 * really written. */
static void offsets_need_64_bits(void **state)
{
    (void)state;
    enum { HEADS = 8, D = 1024, ROW = HEADS * D };
    const uint32_t n = 263000; /* n * HEADS * D > 2^31 */
    const tq_layer layer = make_layer("f32", HEADS, D, D);
    const tq_cache_config cfg = {&layer, 1, n / 64 + 1, 2, TQ_ISA_ALL};
    tq_cache *c = NULL;
    if (tq_cache_create(&c, &cfg, &lazy) != TQ_OK)
        skip();
    float *x = lazy_alloc(NULL, (size_t)n * ROW * sizeof(float));
    if (!x)
        skip();
    uint32_t seq;
    assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
    assert_int_equal(tq_cache_append_begin(c, seq, n), TQ_OK);
    const uint32_t last = n - 1;
    for (size_t i = 0; i < ROW; i++) {
        x[i] = (float)i + 0.5f;
        x[(size_t)last * ROW + i] = -1 - (float)i;
    }
    const uint32_t units = (n + 63) / 64 * HEADS;
    for (uint32_t h = 0; h < HEADS; h++) {
        assert_int_equal(tq_cache_append_rows(c, seq, 0, x, ROW, x, ROW, h, units), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, seq, 0, x, ROW, x, ROW, units - HEADS + h, units),
                         TQ_OK);
    }
    assert_int_equal(tq_cache_append_commit(c, seq), TQ_OK);
    tq_view v;
    assert_int_equal(tq_cache_view(c, seq, 0, &v), TQ_OK);
    float k[D], val[D];
    for (uint32_t h = 0; h < HEADS; h++) {
        assert_int_equal(tq_view_decode(&v, h, 0, 1, k, val), TQ_OK);
        assert_memory_equal(k, x + h * D, sizeof k);
        assert_int_equal(tq_view_decode(&v, h, last, 1, k, val), TQ_OK);
        assert_memory_equal(k, x + (size_t)last * ROW + h * D, sizeof k);
        assert_memory_equal(val, x + (size_t)last * ROW + h * D, sizeof val);
    }
    /* Attention at the far end: a window of one token returns that token's value. */
    tq_attn_config cfg_a = {.n_q_heads = HEADS, .q_len = 1, .window = 1, .scale = 1e-6f};
    tq_attn_plan p;
    assert_int_equal(tq_attn_plan_init(&p, &cfg_a, &v), TQ_OK);
    const size_t scratch_bytes = p.partials_bytes + p.work_bytes + 64;
    void *scratch = malloc(scratch_bytes);
    float *out = malloc(ROW * sizeof *out);
    assert_true(scratch && out);
    assert_int_equal(tq_attn_run(&p, &v, out, ROW, x, ROW, scratch, scratch_bytes), TQ_OK);
    assert_memory_equal(out, x + (size_t)last * ROW, ROW * sizeof *out);
    free(out);
    free(scratch);
    lazy_free(NULL, x);
    tq_cache_destroy(c);
}

/* ---- Against a naive model ------------------------------------------------------------- */

enum { M_SEQS = 5, M_PAGES = 9, M_ROW = 2 * 16 };

typedef struct model_seq {
    int open;
    uint32_t handle, n, pending;
    float k[M_PAGES * 64][M_ROW];
} model_seq;

static uint32_t model_pages(const model_seq *s)
{
    return s->open ? (s->n + s->pending + 63) / 64 : 0;
}

static void check_against_model(const tq_cache *c, const model_seq *m)
{
    uint32_t pages = 0, open = 0;
    uint64_t tokens = 0;
    for (int i = 0; i < M_SEQS; i++) {
        uint32_t len;
        if (!m[i].open)
            continue;
        open++;
        pages += model_pages(&m[i]);
        tokens += m[i].n;
        assert_int_equal(tq_cache_len(c, m[i].handle, &len), TQ_OK);
        assert_int_equal(len, m[i].n);
        tq_view v;
        assert_int_equal(tq_cache_view(c, m[i].handle, 0, &v), TQ_OK);
        assert_int_equal(v.n_tokens, m[i].n + m[i].pending);
        float k[M_PAGES * 64 * 16], val[M_PAGES * 64 * 16];
        for (uint32_t h = 0; h < 2; h++) {
            assert_int_equal(tq_view_decode(&v, h, 0, v.n_tokens, k, val), TQ_OK);
            for (uint32_t t = 0; t < v.n_tokens; t++) {
                assert_memory_equal(k + t * 16, m[i].k[t] + h * 16, 16 * sizeof(float));
                for (int j = 0; j < 16; j++)
                    assert_true(val[t * 16 + (uint32_t)j] == -m[i].k[t][h * 16 + (uint32_t)j]);
            }
        }
    }
    tq_cache_stats st;
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    assert_int_equal(st.n_pages_used, pages);
    assert_int_equal(st.n_seqs, open);
    assert_int_equal(st.n_tokens, tokens);
}

static void random_operations_match_a_naive_model(void **state)
{
    (void)state;
    static model_seq m[M_SEQS];
    static float k[300][M_ROW], v[300][M_ROW];
    uint64_t seed = 6;
    const tq_layer layer = make_layer("f32", 2, 16, 16);
    tq_cache *c = make_cache(&layer, 1, M_PAGES, M_SEQS - 1); /* one fewer than the model */
    memset(m, 0, sizeof m);
    float next = 1;
    for (int step = 0; step < 3000; step++) {
        model_seq *s = &m[test_random(&seed) % M_SEQS];
        uint32_t others = 0, open = 0, op = (uint32_t)(test_random(&seed) % 10);
        uint32_t n = 1 + (uint32_t)(test_random(&seed) % (op & 1 ? 3 : 200));
        for (int i = 0; i < M_SEQS; i++) {
            others += &m[i] != s ? model_pages(&m[i]) : 0;
            open += (uint32_t)m[i].open;
        }
        if (!s->open) {
            tq_status want = open < M_SEQS - 1 ? TQ_OK : TQ_ERR_FULL;
            assert_int_equal(tq_cache_seq_open(c, &s->handle), want);
            if (want == TQ_OK) {
                s->open = 1;
                s->n = s->pending = 0;
            }
        } else if (op == 0) {
            assert_int_equal(tq_cache_seq_close(c, s->handle), TQ_OK);
            s->open = 0;
        } else if (s->pending > 0) { /* finish the append in one way or another */
            if (op < 7) {
                assert_int_equal(tq_cache_append_commit(c, s->handle), TQ_OK);
                s->n += s->pending;
            } else {
                assert_int_equal(tq_cache_append_abort(c, s->handle), TQ_OK);
            }
            s->pending = 0;
        } else if (op < 3) {
            uint32_t to = (uint32_t)(test_random(&seed) % (s->n + 2));
            tq_status want = to <= s->n ? TQ_OK : TQ_ERR_ARG;
            assert_int_equal(tq_cache_truncate(c, s->handle, to), want);
            s->n = want == TQ_OK ? to : s->n;
        } else {
            tq_status want = others + (s->n + n + 63) / 64 <= M_PAGES ? TQ_OK : TQ_ERR_FULL;
            assert_int_equal(tq_cache_append_begin(c, s->handle, n), want);
            if (want == TQ_OK) {
                for (uint32_t t = 0; t < n; t++)
                    for (int j = 0; j < M_ROW; j++) {
                        s->k[s->n + t][j] = k[t][j] = next;
                        v[t][j] = -next++;
                    }
                next = next > 1e6f ? 1 : next;
                uint32_t parts = 1 + (uint32_t)(test_random(&seed) % 4);
                for (uint32_t p = parts; p-- > 0;)
                    assert_int_equal(
                        tq_cache_append_rows(c, s->handle, 0, k[0], M_ROW, v[0], M_ROW, p, parts),
                        TQ_OK);
                s->pending = n;
            }
        }
        check_against_model(c, m);
    }
    tq_cache_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_bad_configurations),
        cmocka_unit_test(notices_sizes_beyond_size_t),
        cmocka_unit_test(lives_in_memory_of_any_alignment),
        cmocka_unit_test(survives_a_failing_allocator),
        cmocka_unit_test(every_token_has_its_own_slot),
        cmocka_unit_test(bytes_do_not_depend_on_the_split),
        cmocka_unit_test(steps_out_of_order_are_refused),
        cmocka_unit_test(a_row_that_is_not_finite_changes_nothing),
        cmocka_unit_test(truncate_then_append_equals_a_fresh_run),
        cmocka_unit_test(a_full_cache_says_so_and_recovers),
        cmocka_unit_test(layers_differ_and_bytes_equal_the_formula),
        cmocka_unit_test(unused_pages_take_no_memory),
        cmocka_unit_test(offsets_need_64_bits),
        cmocka_unit_test(random_operations_match_a_naive_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
