/* SPDX-License-Identifier: MIT */
/* test_cache_pages.c — pages as bytes: their order and layout, what is refused, and a planner that
 * says what is then allocated. */
#include "cache_case.h"
#include "turboquant_pages.h"

enum { D = 32, N = 200 };

static float k[N * 2 * D], v[N * 2 * D];

static int fill(void **state)
{
    (void)state;
    uint64_t seed = 93;
    for (int i = 0; i < N * 2 * D; i++) {
        k[i] = (float)test_normal(&seed);
        v[i] = (float)test_normal(&seed);
    }
    return 0;
}

static void make_layers(tq_layer layers[3])
{
    layers[0] = make_layer("turbo4,sink=3,tail=20", 2, D, D);
    layers[1] = make_layer("affine8g32", 1, D, D);
    layers[1].window = 70;
    layers[2] = layers[0];
    layers[2].donor = 1;
}

static tq_cache *open_cache(uint32_t n_pages, uint32_t n_tokens, uint32_t *seq)
{
    tq_layer layers[3];
    make_layers(layers);
    tq_cache *c = make_cache(layers, 3, n_pages, 4);
    assert_int_equal(tq_cache_seq_open(c, seq), TQ_OK);
    if (n_tokens == 0)
        return c;
    assert_int_equal(tq_cache_append_begin(c, *seq, n_tokens), TQ_OK);
    assert_int_equal(tq_cache_append_rows(c, *seq, 0, k, 2 * D, v, 2 * D, 0, 1), TQ_OK);
    assert_int_equal(tq_cache_append_rows(c, *seq, 1, k, D, v, D, 0, 1), TQ_OK);
    assert_int_equal(tq_cache_append_commit(c, *seq), TQ_OK);
    return c;
}

/* Which pages a sequence of 200 tokens has, in which order, and what is in them. */
static void pages_come_in_order_with_the_rows_of_the_format(void **state)
{
    (void)state;
    static const tq_page_ref want[] = {
        {TQ_FORM_PACKED, 0, 0, 64, 0}, {TQ_FORM_PACKED, 1, 0, 64, 0}, {TQ_FORM_PACKED, 2, 0, 64, 0},
        {TQ_FORM_PACKED, 2, 1, 64, 0}, /* 131 is the oldest that query 200 sees */
        {TQ_FORM_PACKED, 3, 0, 8, 0},  {TQ_FORM_PACKED, 3, 1, 8, 0},  {TQ_FORM_F16, 0, 0, 64, 0},
        {TQ_FORM_F16, 2, 0, 64, 0}, /* 181 is the oldest in the tail */
        {TQ_FORM_F16, 3, 0, 8, 0}};
    uint32_t seq;
    tq_cache *c = open_cache(8, N, &seq);
    tq_page_ref ref = {0};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(tq_cache_page_next(c, seq, &ref), TQ_OK);
        assert_int_equal(ref.form, want[i].form);
        assert_int_equal(ref.page, want[i].page);
        assert_int_equal(ref.layer, want[i].layer);
        assert_int_equal(ref.n_tokens, want[i].n_tokens);
        tq_view view;
        uint8_t bytes[64 * 2 * 2 * D * 2], block[2 * D];
        assert_int_equal(tq_cache_view(c, seq, ref.layer, &view), TQ_OK);
        const tq_rows *rows = ref.form == TQ_FORM_F16 ? &view.f16 : &view.packed;
        const size_t row = rows->k->block_bytes + rows->v->block_bytes;
        assert_int_equal(ref.bytes, view.n_kv_heads * ref.n_tokens * row);
        assert_int_equal(tq_cache_page_export(c, seq, &ref, bytes, ref.bytes), TQ_OK);
        /* The codes of the last key of the last head, by the codec alone. */
        const uint32_t h = view.n_kv_heads - 1, t = ref.n_tokens - 1;
        const float *x = k + ((ref.page * 64 + t) * view.n_kv_heads + h) * D;
        assert_int_equal(tq_codec_encode(rows->k, block, sizeof block, x, D, 1, NULL), TQ_OK);
        assert_memory_equal(bytes + h * ref.n_tokens * row + t * rows->k->code_bytes, block,
                            rows->k->code_bytes);
    }
    assert_int_equal(tq_cache_page_next(c, seq, &ref), TQ_OK);
    assert_int_equal(ref.bytes, 0);
    tq_cache_destroy(c);
}

/* PITFALLS 36, 41: what was imported is used, at its position: the next token equals that of a
 * sequence that was never away. */
static void an_imported_sequence_goes_on(void **state)
{
    (void)state;
    uint32_t a, b;
    tq_cache *from = open_cache(8, N - 1, &a), *to = open_cache(8, 0, &b);
    tq_page_ref ref = {0};
    assert_int_equal(tq_cache_import_begin(to, b, N - 1), TQ_OK);
    for (;;) {
        uint8_t bytes[64 * 2 * 2 * D * 2];
        assert_int_equal(tq_cache_page_next(from, a, &ref), TQ_OK);
        if (ref.bytes == 0)
            break;
        assert_int_equal(tq_cache_page_export(from, a, &ref, bytes, ref.bytes), TQ_OK);
        assert_int_equal(tq_cache_import_page(to, b, &ref, bytes, ref.bytes), TQ_OK);
    }
    assert_int_equal(tq_cache_append_commit(to, b), TQ_OK);
    uint32_t n, min;
    assert_int_equal(tq_cache_len(to, b, &n), TQ_OK);
    assert_int_equal(n, N - 1);
    assert_int_equal(tq_cache_min_truncate(to, b, &min), TQ_OK);
    assert_true(min <= N - 1 && min > 64);
    static float out[2][4 * D];
    for (int i = 0; i < 2; i++) {
        tq_cache *c = i ? to : from;
        const uint32_t s = i ? b : a;
        assert_int_equal(tq_cache_append_begin(c, s, 1), TQ_OK);
        const size_t at = (size_t)(N - 1) * 2 * D;
        assert_int_equal(tq_cache_append_rows(c, s, 0, k + at, 2 * D, v + at, 2 * D, 0, 1), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, s, 1, k, D, v, D, 0, 1), TQ_OK);
        tq_view view;
        assert_int_equal(tq_cache_view(c, s, 2, &view), TQ_OK); /* through the donor */
        const tq_attn_config cfg = {.n_q_heads = 4, .q_len = 1, .scale = 0.2f};
        static _Alignas(64) uint8_t scratch[1 << 18];
        tq_attn_plan p;
        assert_int_equal(tq_attn_plan_init(&p, &cfg, &view), TQ_OK);
        assert_int_equal(tq_attn_run(&p, &view, out[i], 4 * D, k, 4 * D, scratch, sizeof scratch),
                         TQ_OK);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    tq_cache_destroy(from);
    tq_cache_destroy(to);
}

/* Two phases, and nothing out of order: PITFALL 37. */
static void what_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    uint32_t a, b, n;
    tq_cache *c = open_cache(8, N, &a);
    tq_page_ref ref = {0}, wrong;
    uint8_t bytes[64 * 2 * 2 * D * 2] = {0};
    assert_int_equal(tq_cache_seq_open(c, &b), TQ_OK);
    assert_int_equal(tq_cache_page_next(c, a, &ref), TQ_OK);
    assert_int_equal(tq_cache_import_page(c, b, &ref, bytes, ref.bytes), TQ_ERR_STATE);
    assert_int_equal(tq_cache_import_begin(c, a, N), TQ_ERR_STATE); /* not empty */
    assert_int_equal(tq_cache_import_begin(c, b, 0), TQ_ERR_ARG);
    assert_int_equal(tq_cache_import_begin(c, b, UINT32_MAX), TQ_ERR_FULL);
    assert_int_equal(tq_cache_import_begin(c, b, 8 * 64), TQ_ERR_FULL); /* four pages are left */
    assert_int_equal(tq_cache_import_begin(c, b, N), TQ_OK);
    assert_int_equal(tq_cache_append_rows(c, b, 0, k, 2 * D, v, 2 * D, 0, 1), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append_begin(c, b, 1), TQ_ERR_STATE);
    assert_int_equal(tq_cache_page_export(c, b, &ref, bytes, ref.bytes), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append_commit(c, b), TQ_ERR_STATE);
    assert_int_equal(tq_cache_import_page(c, b, &ref, bytes, ref.bytes + 1), TQ_ERR_SIZE);
    for (int i = 0; i < 5; i++) { /* a damaged index */
        wrong = ref;
        *(i == 0   ? &wrong.page
          : i == 1 ? &wrong.layer
          : i == 2 ? &wrong.n_tokens
                   : &wrong.page) = i == 3 ? UINT32_MAX : 7;
        if (i == 4)
            wrong.form = (tq_form)2;
        assert_int_equal(tq_cache_import_page(c, b, &wrong, bytes, wrong.bytes), TQ_ERR_ARG);
        assert_int_equal(tq_cache_page_export(c, a, &wrong, bytes, wrong.bytes), TQ_ERR_ARG);
    }
    wrong = ref;
    wrong.layer = 3;
    assert_int_equal(tq_cache_page_next(c, a, &wrong), TQ_ERR_ARG);
    wrong = ref;
    wrong.page = UINT32_MAX;
    assert_int_equal(tq_cache_page_next(c, a, &wrong), TQ_OK); /* on to the next form */
    assert_int_equal(wrong.form, TQ_FORM_F16);
    assert_int_equal(tq_cache_import_page(c, b, &ref, bytes, ref.bytes), TQ_OK);
    assert_int_equal(tq_cache_append_abort(c, b), TQ_OK);
    assert_int_equal(tq_cache_len(c, b, &n), TQ_OK);
    assert_int_equal(n, 0);
    assert_int_equal(tq_cache_import_begin(c, b, N), TQ_OK); /* the pages are back */
    assert_int_equal(tq_cache_seq_close(c, b), TQ_OK);       /* in the middle of an import */
    assert_int_equal(tq_cache_len(c, a, &n), TQ_OK);
    assert_int_equal(n, N);
    tq_cache_destroy(c);
}

/* PITFALL 42: the largest n_pages whose cache fits, for any memory. */
static void the_planner_says_what_is_allocated(void **state)
{
    (void)state;
    tq_layer layers[3];
    make_layers(layers);
    tq_cache_config cfg = {.layers = layers,
                           .n_layers = 3,
                           .max_seqs = 5,
                           .isa_mask = TQ_ISA_ALL,
                           .max_append = 64,
                           .rollback = 8};
    uint32_t last = 0;
    for (size_t memory = 1; memory < (size_t)1 << 28; memory = memory * 3 + 1) {
        uint32_t n = 77;
        size_t bytes, pools = 0;
        const tq_status st = tq_cache_plan(&cfg, memory, &n);
        if (st != TQ_OK) {
            assert_int_equal(st, TQ_ERR_FULL);
            assert_int_equal(n, 77);
            cfg.n_pages = 1;
            assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_OK);
            assert_true(bytes > memory);
            continue;
        }
        assert_true(n >= last);
        last = cfg.n_pages = n;
        assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_OK);
        assert_true(bytes <= memory);
        cfg.n_pages++;
        if (n < 1u << 24) {
            assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_OK);
            assert_true(bytes > memory);
        }
        cfg.n_pages = n;
        tq_pool pool;
        for (uint32_t i = 0; tq_cache_pool(&cfg, i, &pool) == TQ_OK; i++)
            pools += pool.n_pages * pool.page_bytes;
        tq_cache *c = NULL;
        tq_cache_stats stats;
        assert_int_equal(tq_cache_create(&c, &cfg, NULL), TQ_OK);
        assert_int_equal(tq_cache_get_stats(c, &stats), TQ_OK);
        assert_int_equal(stats.capacity_bytes, pools);
        tq_cache_destroy(c);
    }
    assert_true(last > 1000);
    tq_pool pool;
    uint32_t n;
    assert_int_equal(tq_cache_pool(&cfg, 3, &pool), TQ_ERR_ARG); /* full, f16, window */
    cfg.max_seqs = 0;
    assert_int_equal(tq_cache_plan(&cfg, 1 << 20, &n), TQ_ERR_ARG);
    assert_int_equal(tq_cache_plan(NULL, 1 << 20, &n), TQ_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_in_order_with_the_rows_of_the_format),
        cmocka_unit_test(an_imported_sequence_goes_on),
        cmocka_unit_test(what_does_not_fit_changes_nothing),
        cmocka_unit_test(the_planner_says_what_is_allocated),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
