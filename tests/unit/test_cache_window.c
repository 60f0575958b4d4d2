/* SPDX-License-Identifier: MIT */
/* test_cache_window.c — sliding windows: what attention sees at every step, positions that go on
 * counting, memory that stays, and what cannot be gone back to. */
#include "cache_case.h"

enum { D = 16, N = 300 };

static float k[N * D], v[N * D], q[N * D];

static int fill(void **state)
{
    (void)state;
    uint64_t seed = 91;
    for (int i = 0; i < N * D; i++) {
        k[i] = (float)test_normal(&seed);
        v[i] = (float)test_normal(&seed);
        q[i] = (float)test_normal(&seed);
    }
    return 0;
}

static tq_cache *open_cache(const char *scheme, uint32_t window, uint32_t rollback, uint32_t *seq)
{
    tq_layer layer = make_layer(scheme, 1, D, D);
    layer.window = window;
    const tq_cache_config cfg = {.layers = &layer,
                                 .n_layers = 1,
                                 .n_pages = 8,
                                 .max_seqs = 2,
                                 .isa_mask = TQ_ISA_ALL,
                                 .rollback = rollback};
    tq_cache *c = NULL;
    assert_int_equal(tq_cache_create(&c, &cfg, NULL), TQ_OK);
    assert_int_equal(tq_cache_seq_open(c, seq), TQ_OK);
    return c;
}

static tq_status attend(const tq_view *view, uint32_t window, uint32_t q_len, float *out)
{
    static _Alignas(64) uint8_t scratch[1 << 20];
    const tq_attn_config cfg = {.n_q_heads = 1, .q_len = q_len, .window = window, .scale = 0.25f};
    tq_attn_plan p;
    tq_status st = tq_attn_plan_init(&p, &cfg, view);
    return st != TQ_OK ? st
                       : tq_attn_run(&p, view, out, D, q + (view->n_tokens - q_len) * D, D, scratch,
                                     sizeof scratch);
}

/* Append in steps and attend in each; out [total][D]. */
static void run_steps(tq_cache *c, uint32_t seq, uint32_t window, const uint32_t *steps, float *out)
{
    uint32_t n = 0;
    for (; *steps; n += *steps++) {
        tq_view view;
        assert_int_equal(tq_cache_append_begin(c, seq, *steps), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, seq, 0, k + n * D, D, v + n * D, D, 0, 1), TQ_OK);
        assert_int_equal(tq_cache_view(c, seq, 0, &view), TQ_OK);
        assert_int_equal(view.n_tokens, n + *steps); /* PITFALL 18: the position goes on */
        assert_int_equal(attend(&view, window, *steps, out + n * D), TQ_OK);
        assert_int_equal(tq_cache_append_commit(c, seq), TQ_OK);
    }
}

/* What an unbounded cache gives with the same mask, in the same steps. */
static void expect_same_as_unbounded(uint32_t window, const uint32_t *steps)
{
    static const char *const schemes[] = {"f32", "turbo4", "affine8g32,attn=dequant"};
    static float got[N * D], want[N * D];
    for (int s = 0; s < 3; s++) {
        uint32_t a, b;
        tq_cache *c = open_cache(schemes[s], window, 0, &a),
                 *all = open_cache(schemes[s], 0, 0, &b);
        memset(got, 0, sizeof got);
        memset(want, 0, sizeof want);
        run_steps(c, a, window, steps, got);
        run_steps(all, b, window, steps, want);
        assert_memory_equal(got, want, sizeof got);
        tq_cache_destroy(c);
        tq_cache_destroy(all);
    }
}

/* PITFALL 17: prefill 8 then decode 2, and a window that decode alone fills. */
static void a_wrapped_window_keeps_its_newest_rows(void **state)
{
    (void)state;
    expect_same_as_unbounded(4, (const uint32_t[]){8, 1, 1, 0});
    uint32_t ones[150] = {0};
    for (int i = 0; i < 149; i++)
        ones[i] = 1;
    expect_same_as_unbounded(4, ones);
    expect_same_as_unbounded(70, ones);
}

/* PITFALL 19: a chunk that crosses the window's edge. PITFALL 20: chunks against one shot. */
static void chunks_into_a_window_keep_their_context(void **state)
{
    (void)state;
    expect_same_as_unbounded(4, (const uint32_t[]){5, 3, 3, 0});
    expect_same_as_unbounded(4, (const uint32_t[]){62, 3, 3, 60, 8, 0});
    expect_same_as_unbounded(64, (const uint32_t[]){100, 100, 64, 36, 0});
    static float one[N * D], chunks[N * D];
    uint32_t a, b;
    tq_cache *c = open_cache("turbo4", 4, 0, &a), *d = open_cache("turbo4", 4, 0, &b);
    run_steps(c, a, 4, (const uint32_t[]){3, 3, 0}, chunks);
    run_steps(d, b, 4, (const uint32_t[]){6, 0}, one);
    assert_memory_equal(one, chunks, 6 * D * sizeof *one); /* PITFALL 20 */
    tq_cache_destroy(c);
    tq_cache_destroy(d);
}

/* PITFALL 18: window 4, push 10: position 10, and the last query sees tokens 6 to 9. */
static void the_position_survives_the_wrap(void **state)
{
    (void)state;
    uint32_t seq, n;
    tq_cache *c = open_cache("f32", 4, 0, &seq);
    for (uint32_t t = 0; t < 10; t++)
        assert_int_equal(tq_cache_append(c, seq, k + t * D, v + t * D, 1), TQ_OK);
    assert_int_equal(tq_cache_len(c, seq, &n), TQ_OK);
    assert_int_equal(n, 10);
    tq_view view;
    float row[4 * D];
    assert_int_equal(tq_cache_view(c, seq, 0, &view), TQ_OK);
    assert_int_equal(tq_view_decode_at(&view, 9, 0, 6, 4, row, NULL), TQ_OK);
    assert_memory_equal(row, k + 6 * D, sizeof row);
    assert_int_equal(tq_view_decode_at(&view, 9, 0, 5, 1, row, NULL), TQ_ERR_ARG); /* unseen */
    tq_cache_destroy(c);
}

/* The cache holds the window, however long the sequence; it stays compressed. */
static void memory_stops_growing(void **state)
{
    (void)state;
    uint32_t seq;
    tq_cache *c = open_cache("turbo4", 100, 0, &seq);
    size_t packed = 0, f16, most = 0;
    for (uint32_t t = 0; t < N; t++) {
        assert_int_equal(tq_cache_append(c, seq, k + t * D, v + t * D, 1), TQ_OK);
        assert_int_equal(tq_cache_seq_bytes(c, seq, &packed, &f16), TQ_OK);
        most = packed > most ? packed : most;
    }
    const size_t row = 2 * (D / 2 + 2); /* 4 bits and a scale, keys and values */
    assert_true(most >= 100 * row && most <= (100 + 63) * row);
    assert_int_equal(packed % row, 0);
    tq_cache_stats st;
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    assert_true(st.n_pages_used <= 3);
    assert_int_equal(st.packed_bytes, st.n_pages_used * 64 * row);
    tq_cache_destroy(c);
}

/* With max_append the pool itself is small, and is never found full. */
static void the_pool_is_as_large_as_windows_need(void **state)
{
    (void)state;
    for (uint32_t append = 1; append < 100; append += 49)
        for (uint32_t rollback = 0; rollback < 80; rollback += 70) {
            tq_layer layers[2] = {make_layer("f32", 1, D, D), make_layer("f32", 1, D, D)};
            layers[1].window = 40;
            const tq_cache_config cfg = {.layers = layers,
                                         .n_layers = 2,
                                         .n_pages = 1000,
                                         .max_seqs = 3,
                                         .isa_mask = TQ_ISA_ALL,
                                         .max_append = append,
                                         .rollback = rollback};
            tq_pool pool;
            tq_cache *c = NULL;
            assert_int_equal(tq_cache_pool(&cfg, 0, &pool), TQ_OK);
            assert_int_equal(pool.n_pages, 1000);
            assert_int_equal(tq_cache_pool(&cfg, 1, &pool), TQ_OK);
            assert_int_equal(pool.n_pages, 3 * ((40 + append + rollback + 63) / 64 + 1));
            assert_int_equal(tq_cache_create(&c, &cfg, NULL), TQ_OK);
            uint32_t seq[3];
            for (int i = 0; i < 3; i++)
                assert_int_equal(tq_cache_seq_open(c, &seq[i]), TQ_OK);
            for (uint32_t n = 0; n + append <= N; n += append)
                for (int i = 0; i < 3; i++) {
                    assert_int_equal(tq_cache_append_begin(c, seq[i], append), TQ_OK);
                    for (uint32_t l = 0; l < 2; l++)
                        assert_int_equal(
                            tq_cache_append_rows(c, seq[i], l, k + n * D, D, v + n * D, D, 0, 1),
                            TQ_OK);
                    assert_int_equal(tq_cache_append_commit(c, seq[i]), TQ_OK);
                }
            assert_int_equal(tq_cache_append_begin(c, seq[0], append + 1), TQ_ERR_ARG);
            tq_cache_destroy(c);
        }
}

/* What is gone cannot be gone back to; `rollback` tokens and the newest always can. */
static void truncation_stops_at_the_minimum(void **state)
{
    (void)state;
    for (uint32_t rollback = 0; rollback < 100; rollback += 33) {
        uint32_t seq, min, fork;
        tq_cache *c = open_cache("f32", 30, rollback, &seq);
        assert_int_equal(tq_cache_append(c, seq, k, v, 290), TQ_OK);
        assert_int_equal(tq_cache_min_truncate(c, seq, &min), TQ_OK);
        assert_true(min > 0 && min <= 290 - 1 - rollback);
        assert_int_equal(tq_cache_truncate(c, seq, min - 1), TQ_ERR_STATE);
        assert_int_equal(tq_cache_seq_fork(c, seq, min - 1, &fork), TQ_ERR_STATE);
        assert_int_equal(tq_cache_truncate(c, seq, min), TQ_OK);
        tq_view view;
        float out[D];
        assert_int_equal(tq_cache_append(c, seq, k, v, 1), TQ_OK);
        assert_int_equal(tq_cache_view(c, seq, 0, &view), TQ_OK);
        assert_int_equal(attend(&view, 30, 1, out), TQ_OK);
        assert_int_equal(attend(&view, 30, 2, out), TQ_ERR_STATE); /* it reads below */
        assert_int_equal(attend(&view, 31, 1, out), TQ_ERR_ARG);   /* nor this one */
        assert_int_equal(attend(&view, 0, 1, out), TQ_ERR_ARG);
        assert_int_equal(tq_cache_truncate(c, seq, 0), TQ_OK); /* a fresh start */
        assert_int_equal(tq_cache_min_truncate(c, seq, &min), TQ_OK);
        assert_int_equal(min, 0);
        assert_int_equal(tq_cache_append(c, seq, k, v, 100), TQ_OK);
        tq_cache_destroy(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrapped_window_keeps_its_newest_rows),
        cmocka_unit_test(chunks_into_a_window_keep_their_context),
        cmocka_unit_test(the_position_survives_the_wrap),
        cmocka_unit_test(memory_stops_growing),
        cmocka_unit_test(the_pool_is_as_large_as_windows_need),
        cmocka_unit_test(truncation_stops_at_the_minimum),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
