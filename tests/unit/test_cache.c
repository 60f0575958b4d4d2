/* SPDX-License-Identifier: MIT */
/* test_cache.c — the paged cache as an object: configuration, memory, layers, sizes.
 *
 * Most tests of the cache use f32 pages, in which what comes out is exactly what went in. */
#define _DEFAULT_SOURCE /* mmap */
#include "cache_case.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- Configuration --------------------------------------------------------------------- */

static void refuses_bad_configurations(void **state)
{
    (void)state;
    const tq_layer good = make_layer("turbo:k8v3", 2, 64, 64);
    const tq_cache_config ok = {
        .layers = &good, .n_layers = 1, .n_pages = 4, .max_seqs = 2, .isa_mask = TQ_ISA_ALL};
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
        const tq_cache_config cfg = {.layers = &cases[i].layer,
                                     .n_layers = cases[i].n_layers,
                                     .n_pages = cases[i].n_pages,
                                     .max_seqs = cases[i].max_seqs,
                                     .isa_mask = TQ_ISA_ALL};
        tq_cache *c = NULL;
        assert_int_equal(tq_cache_bytes(&cfg, &bytes), cases[i].want);
        assert_int_equal(tq_cache_create(&c, &cfg, NULL), cases[i].want);
        assert_null(c);
    }
    assert_int_equal(tq_cache_bytes(NULL, &bytes), TQ_ERR_ARG);
    assert_int_equal(tq_cache_bytes(&ok, NULL), TQ_ERR_ARG);

    tq_layer bad_scheme = good;
    bad_scheme.scheme.v_bits = 7;
    tq_cache_config cfg = {
        .layers = &bad_scheme, .n_layers = 1, .n_pages = 4, .max_seqs = 2, .isa_mask = TQ_ISA_ALL};
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_ARG);

    /* PITFALL 26: files that only the caller can read are refused, not ignored. */
    static const char *const later[] = {"turbo4,kmean=f", "f16,layers=f"};
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
    tq_cache_config cfg = {.layers = layers,
                           .n_layers = 1024,
                           .n_pages = 1u << 24,
                           .max_seqs = 1,
                           .isa_mask = TQ_ISA_ALL};
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_OVERFLOW);
    assert_int_equal(bytes, 77);
    free(layers);
}

static void lives_in_memory_of_any_alignment(void **state)
{
    (void)state;
    const tq_layer layer = make_layer("f32", 1, 16, 16);
    const tq_cache_config cfg = {
        .layers = &layer, .n_layers = 1, .n_pages = 2, .max_seqs = 1, .isa_mask = TQ_ISA_ALL};
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
    const tq_cache_config cfg = {
        .layers = &layer, .n_layers = 1, .n_pages = 2, .max_seqs = 1, .isa_mask = TQ_ISA_ALL};
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

/* PITFALLS 11, 24 and 26: layers of different geometry and scheme; bytes equal the formula. */
static void layers_differ_and_bytes_equal_the_formula(void **state)
{
    (void)state;
    uint64_t seed = 5;
    const tq_layer layers[] = {
        make_layer("turbo:k8v3", 8, 256, 256), make_layer("turbo:k4v2", 2, 512, 512),
        make_layer("f32", 3, 576, 512),        make_layer("bf16", 1, 40, 16),
        make_layer("turbo:k2v8", 1, 64, 128),  make_layer("turbo3v6,mean", 2, 80, 96),
        make_layer("turbo0v4", 1, 64, 64),     make_layer("tcq3v2", 2, 192, 128),
        make_layer("affine8g128", 1, 80, 200), make_layer("mse1", 1, 64, 64),
        make_layer("prod1", 2, 128, 64)};
    enum { N_LAYERS = sizeof layers / sizeof layers[0], N = 70 };
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
                const tq_codec *codec = side ? view.packed.v : view.packed.k;
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
    assert_int_equal(st.packed_bytes, 2 * 64 * want);
    assert_int_equal(st.capacity_bytes, 2 * 64 * want);
    size_t packed, f16;
    assert_int_equal(tq_cache_seq_bytes(c, seq, &packed, &f16), TQ_OK);
    assert_int_equal(packed, N * want);
    assert_int_equal(f16 + st.f16_bytes + st.f16_bytes_per_token, 0);
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
    const tq_cache_config cfg = {.layers = &layer,
                                 .n_layers = 1,
                                 .n_pages = 1u << 24,
                                 .max_seqs = 16,
                                 .isa_mask = TQ_ISA_ALL};
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
    const tq_cache_config cfg = {.layers = &layer,
                                 .n_layers = 1,
                                 .n_pages = n / 64 + 1,
                                 .max_seqs = 2,
                                 .isa_mask = TQ_ISA_ALL};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_bad_configurations),
        cmocka_unit_test(notices_sizes_beyond_size_t),
        cmocka_unit_test(lives_in_memory_of_any_alignment),
        cmocka_unit_test(survives_a_failing_allocator),
        cmocka_unit_test(layers_differ_and_bytes_equal_the_formula),
        cmocka_unit_test(unused_pages_take_no_memory),
        cmocka_unit_test(offsets_need_64_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
