/* SPDX-License-Identifier: MIT */
/* test_cache_append.c — append in steps, truncate, close, and a cache that is full. */
#include "cache_case.h"

#include <pthread.h>

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

/* PITFALL 8: any split of the rows into parts, on any thread, token by token or in bulk: equal
 * bytes. */
static void bytes_do_not_depend_on_the_split(void **state)
{
    (void)state;
    static const char *schemes[] = {"f16",         "bf16",       "turbo:k8v3",
                                    "turbo:k5v5",  "turbo:k2v2", "turbo4v3",
                                    "tcq3v5,mean", "affine4g32", "prod2"};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_has_its_own_slot),
        cmocka_unit_test(bytes_do_not_depend_on_the_split),
        cmocka_unit_test(steps_out_of_order_are_refused),
        cmocka_unit_test(a_row_that_is_not_finite_changes_nothing),
        cmocka_unit_test(truncate_then_append_equals_a_fresh_run),
        cmocka_unit_test(a_full_cache_says_so_and_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
