/* SPDX-License-Identifier: MIT */
/* test_shared_rows.c — stored state of caches that no architecture here has yet: layers that read
 * another layer's rows (PITFALL 25), and of different geometry (PITFALL 24), as a file and back;
 * layers whose values are in their keys are refused by name. The caches are made by hand. */
#include "state_support.h"

#include "attn_priv.h"

enum { N = 150, LAYERS = 4, VOCAB = 10 };

static void add_layer(tq_layer *l, const char *scheme, uint32_t heads, uint32_t d, uint32_t window,
                      uint32_t donor)
{
    *l = (tq_layer){.n_kv_heads = heads, .d_k = d, .d_v = d, .window = window, .donor = donor};
    assert_int_equal(tq_scheme_parse(&l->scheme, scheme, NULL, 0), TQ_OK);
}

/* PITFALL 24's geometry, and for each layer one that reads its rows. */
static void make_layers(tq_layer layers[LAYERS])
{
    add_layer(&layers[0], "turbo4,sink=3,tail=20", 8, 256, 0, 0);
    add_layer(&layers[1], "turbo4,sink=3,tail=20", 8, 256, 0, 1);
    add_layer(&layers[2], "turbo:k8v3", 2, 512, 70, 0);
    add_layer(&layers[3], "turbo:k8v3", 2, 512, 70, 3);
}

static void open_cache(tqe_attn *a, tqe_kv_store *store, const tq_layer *layers, uint32_t n_layers)
{
    const tq_cache_config cfg = {.layers = layers,
                                 .n_layers = n_layers,
                                 .n_pages = 8,
                                 .max_seqs = 3,
                                 .isa_mask = TQ_ISA_ALL};
    memset(store, 0, sizeof(*store));
    memset(a, 0, sizeof(*a));
    assert_int_equal(tq_cache_create(&store->cache, &cfg, NULL), TQ_OK);
    store->n_users = 1;
    a->store = store;
    a->cache = store->cache;
    a->geo.n_layers = n_layers;
    assert_int_equal(tq_cache_seq_open(a->cache, &a->seq), TQ_OK);
    a->has_seq = true;
}

static void append(tqe_attn *a, const tq_layer *layers, uint64_t seed)
{
    float *x = malloc(N * 8 * 256 * sizeof(*x));
    assert_non_null(x);
    assert_int_equal(tq_cache_append_begin(a->cache, a->seq, N), TQ_OK);
    for (uint32_t i = 0; i < LAYERS; i += 2) {
        const size_t n = (size_t)layers[i].n_kv_heads * layers[i].d_k;
        for (size_t j = 0; j < N * n; j++) {
            x[j] = (float)test_normal(&seed);
        }
        assert_int_equal(tq_cache_append_rows(a->cache, a->seq, i, x, n, x, n, 0, 1), TQ_OK);
    }
    assert_int_equal(tq_cache_append_commit(a->cache, a->seq), TQ_OK);
    tqe_attn_sync(a);
    free(x);
}

/* The timeline as a file in memory. */
static uint8_t *to_bytes(const tqe_attn *a, size_t *n)
{
    tqe_snap h = {.n_tokens = N, .n_layers = LAYERS, .n_vocab = VOCAB};
    tqe_error err = {TQE_OK, ""};
    uint8_t trailer[TQE_SNAP_TRAILER_BYTES];
    (void)strcpy(h.scheme, "turbo4,sink=3,tail=20");
    h.layers = calloc(LAYERS, sizeof(*h.layers));
    h.tokens = calloc(N, sizeof(*h.tokens));
    h.n_parts = tqe_attn_list_parts(a, a->seq, NULL);
    h.parts = calloc(h.n_parts, sizeof(*h.parts));
    assert_true(h.layers != NULL && h.tokens != NULL && h.parts != NULL);
    for (uint32_t i = 0; i < LAYERS; i++) {
        state_ok(tqe_attn_describe(a, i, &h.layers[i], &err), &err);
        assert_int_equal(h.layers[i].donor, i % 2 ? i : 0);
    }
    (void)tqe_attn_list_parts(a, a->seq, h.parts);
    (void)tqe_snap_place(&h);
    uint8_t *file = calloc(1, (size_t)h.file_bytes);
    assert_non_null(file);
    for (uint32_t i = 0; i < h.n_parts; i++) {
        tqe_snap_part *t = &h.parts[i];
        assert_int_equal(t->layer % 2, 0); /* nothing is stored twice */
        state_ok(tqe_attn_export(a, a->seq, t, file + t->off, &err), &err);
        tqe_hash128(t->hash, file + t->off, (size_t)t->bytes);
    }
    tqe_snap_encode(&h, file, trailer);
    memcpy(file + h.file_bytes - sizeof(trailer), trailer, sizeof(trailer));
    *n = (size_t)h.file_bytes;
    tqe_snap_free(&h);
    return file;
}

typedef struct source {
    const tqe_snap *h;
    const uint8_t *file;
    uint32_t next;
} source;

static tqe_status give(void *ctx, const tqe_snap_part *part, const uint8_t **bytes, tqe_error *err)
{
    source *s = ctx;
    if (part == NULL) {
        assert_int_equal(s->next, s->h->n_parts);
        return TQE_OK;
    }
    const tqe_snap_part *t = &s->h->parts[s->next++];
    assert_true(t->form == part->form && t->page == part->page && t->layer == part->layer &&
                t->bytes == part->bytes);
    *bytes = s->file + t->off;
    (void)err;
    return TQE_OK;
}

/* What a query at the end reads, of every layer. */
static void same_reads(const tqe_attn *a, const tqe_attn *b, const tq_layer *layers)
{
    float *x = malloc(2 * N * 512 * sizeof(*x)), *y = malloc(2 * N * 512 * sizeof(*y));
    assert_true(x != NULL && y != NULL);
    for (uint32_t i = 0; i < LAYERS; i++) {
        const uint32_t first = layers[i].window ? N - layers[i].window : 0, n = N - first;
        const size_t half = (size_t)n * layers[i].d_k;
        tq_view v, w;
        assert_int_equal(tq_cache_view(a->cache, a->seq, i, &v), TQ_OK);
        assert_int_equal(tq_cache_view(b->cache, b->seq, i, &w), TQ_OK);
        for (uint32_t h = 0; h < layers[i].n_kv_heads; h++) {
            assert_int_equal(tq_view_decode_at(&v, N - 1, h, first, n, x, x + half), TQ_OK);
            assert_int_equal(tq_view_decode_at(&w, N - 1, h, first, n, y, y + half), TQ_OK);
            assert_memory_equal(x, y, 2 * half * sizeof(*x));
        }
    }
    free(x);
    free(y);
}

static void test_donors(void **state)
{
    (void)state;
    tq_layer layers[LAYERS];
    tqe_attn a, b;
    tqe_kv_store sa, sb;
    tqe_error err = {TQE_OK, ""};
    tqe_snap h;
    size_t n = 0;
    make_layers(layers);
    open_cache(&a, &sa, layers, LAYERS);
    open_cache(&b, &sb, layers, LAYERS);
    append(&a, layers, 1);
    append(&b, layers, 2); /* another timeline, which is replaced */
    uint8_t *file = to_bytes(&a, &n);
    state_ok(tqe_snap_parse(&h, file, n, &err), &err);
    source s = {&h, file, 0};
    state_ok(tqe_attn_import(&b, N, give, &s, &err), &err);
    assert_int_equal(tqe_attn_len(&b), N);
    same_reads(&a, &b, layers);

    /* Rows of a layer that has none are those of its donor. */
    char *path = state_path("shared.tqs");
    tqe_snapshot *f = NULL;
    float *x = malloc(N * 256 * sizeof(*x)), *y = malloc(N * 256 * sizeof(*y));
    assert_true(x != NULL && y != NULL);
    state_write(path, file, n);
    state_ok(tqe_snapshot_open(&f, path, &err), &err);
    for (int is_value = 0; is_value < 2; is_value++) {
        state_ok(tqe_snapshot_rows(f, 0, 7, is_value, x, &err), &err);
        state_ok(tqe_snapshot_rows(f, 1, 7, is_value, y, &err), &err);
        assert_memory_equal(x, y, N * 256 * sizeof(*x));
    }
    tqe_snapshot_close(f);
    (void)unlink(path);

    /* A file that names a donor which cannot be one. */
    uint8_t trailer[TQE_SNAP_TRAILER_BYTES];
    const uint32_t wrong[] = {1, 2, 4};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tqe_snap again;
        h.layers[3].donor = wrong[i];
        tqe_snap_encode(&h, file, trailer);
        memcpy(file + n - sizeof(trailer), trailer, sizeof(trailer));
        assert_int_equal(tqe_snap_parse(&again, file, n, &err), TQE_ERR_FORMAT);
        assert_non_null(strstr(err.text, "layer table"));
    }
    free(x);
    free(y);
    free(path);
    free(file);
    tqe_snap_free(&h);
    tq_cache_destroy(sa.cache);
    tq_cache_destroy(sb.cache);
}

static void test_values_in_keys(void **state)
{
    (void)state;
    tq_layer layers[2];
    tqe_attn a;
    tqe_kv_store store;
    tqe_snap_layer l;
    tqe_error err = {TQE_OK, ""};
    add_layer(&layers[0], "turbo4", 1, 64, 0, 0);
    add_layer(&layers[1], "turbo4", 1, 576, 0, 0);
    layers[1].d_v = 512;
    layers[1].v_in_k = 1;
    open_cache(&a, &store, layers, 2);
    state_ok(tqe_attn_describe(&a, 0, &l, &err), &err);
    assert_int_equal(tqe_attn_describe(&a, 1, &l, &err), TQE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "layer 1 keeps its values inside its keys"));
    tq_cache_destroy(store.cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_donors),
        cmocka_unit_test(test_values_in_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
