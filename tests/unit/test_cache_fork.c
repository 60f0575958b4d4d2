/* SPDX-License-Identifier: MIT */
/* test_cache_fork.c — forks: shared pages, copies before writing, donors, truncation into what is
 * shared. Random mixes of all this are in tests/model. */
#include "cache_case.h"

enum { ROW = 2 * 16, N_MAX = 400 };

/* Rows that say who wrote them: token t of writer w. */
static void rows_of(float *x, uint32_t writer, uint32_t first, uint32_t n)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < ROW; i++)
            x[t * ROW + i] = (float)(writer * 1000 + first + t) + (float)i / 64;
}

static void put(tq_cache *c, uint32_t seq, uint32_t writer, uint32_t n)
{
    static float x[N_MAX * ROW];
    uint32_t len;
    assert_int_equal(tq_cache_len(c, seq, &len), TQ_OK);
    rows_of(x, writer, len, n);
    assert_int_equal(tq_cache_append(c, seq, x, x, n), TQ_OK);
}

/* Tokens [0, border) are of writer a, those from there to n of writer b. */
static void expect(const tq_cache *c, uint32_t seq, uint32_t a, uint32_t border, uint32_t b,
                   uint32_t n)
{
    static float want[N_MAX * ROW], got[N_MAX * 16];
    uint32_t len;
    tq_view v;
    assert_int_equal(tq_cache_len(c, seq, &len), TQ_OK);
    assert_int_equal(len, n);
    rows_of(want, a, 0, border);
    rows_of(want + border * ROW, b, border, n - border);
    assert_int_equal(tq_cache_view(c, seq, 0, &v), TQ_OK);
    for (uint32_t h = 0; h < 2; h++)
        for (int side = 0; side < 2; side++) {
            assert_int_equal(tq_view_decode(&v, h, 0, n, side ? NULL : got, side ? got : NULL),
                             TQ_OK);
            for (uint32_t t = 0; t < n; t++)
                assert_memory_equal(got + t * 16, want + t * ROW + h * 16, 16 * sizeof(float));
        }
}

static uint32_t pages_used(const tq_cache *c)
{
    tq_cache_stats st;
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    return st.n_pages_used;
}

static tq_cache *small(uint32_t n_pages, uint32_t max_seqs, uint32_t *seq)
{
    const tq_layer layer = make_layer("f32", 2, 16, 16);
    tq_cache *c = make_cache(&layer, 1, n_pages, max_seqs);
    assert_int_equal(tq_cache_seq_open(c, seq), TQ_OK);
    return c;
}

/* PITFALL 23: fork at a non-page boundary, append to both: nobody overwrites a sibling. */
static void siblings_do_not_overwrite_each_other(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        uint32_t a, b;
        tq_cache *c = small(8, 3, &a);
        put(c, a, 1, 100);
        assert_int_equal(tq_cache_seq_fork(c, a, 100, &b), TQ_OK);
        assert_int_equal(pages_used(c), 2); /* nothing was copied */
        put(c, first ? a : b, first ? 1 : 2, 1);
        assert_int_equal(pages_used(c), 3); /* one page, of the one that wrote */
        put(c, first ? b : a, first ? 2 : 1, 50);
        put(c, first ? a : b, first ? 1 : 2, 49);
        expect(c, a, 1, 100, 1, 150);
        expect(c, b, 1, 100, 2, 150);
        assert_int_equal(pages_used(c), 1 + 2 + 2);
        assert_int_equal(tq_cache_seq_close(c, a), TQ_OK);
        expect(c, b, 1, 100, 2, 150);
        assert_int_equal(pages_used(c), 3);
        assert_int_equal(tq_cache_seq_close(c, b), TQ_OK);
        assert_int_equal(pages_used(c), 0);
        tq_cache_destroy(c);
    }
}

/* A fork at an offset, and a truncation into a page that others own. */
static void a_shared_page_is_copied_whoever_writes(void **state)
{
    (void)state;
    uint32_t a, b, d;
    tq_cache *c = small(12, 4, &a);
    put(c, a, 1, 200);
    assert_int_equal(tq_cache_seq_fork(c, a, 70, &b), TQ_OK);
    put(c, b, 2, 5); /* into a page in which the source has rows beyond 70 */
    expect(c, a, 1, 200, 1, 200);
    expect(c, b, 1, 70, 2, 75);
    assert_int_equal(tq_cache_seq_fork(c, a, 200, &d), TQ_OK);
    assert_int_equal(tq_cache_truncate(c, a, 130), TQ_OK);
    put(c, a, 3, 40);
    expect(c, a, 1, 130, 3, 170);
    expect(c, d, 1, 200, 1, 200);
    expect(c, b, 1, 70, 2, 75);
    /* At a border of pages nothing is copied. */
    const uint32_t used = pages_used(c);
    assert_int_equal(tq_cache_truncate(c, d, 128), TQ_OK);
    put(c, d, 4, 1);
    expect(c, d, 1, 128, 4, 129);
    assert_true(pages_used(c) <= used + 1);
    tq_cache_destroy(c);
}

/* PITFALL 22: truncate, append, compare with a fresh run; in a fork too. */
static void truncate_in_a_fork_equals_a_fresh_run(void **state)
{
    (void)state;
    uint32_t a, b;
    tq_cache *c = small(12, 3, &a);
    put(c, a, 1, 150);
    assert_int_equal(tq_cache_seq_fork(c, a, 150, &b), TQ_OK);
    for (uint32_t n = 149; n > 100; n -= 7) {
        assert_int_equal(tq_cache_truncate(c, b, n), TQ_OK);
        put(c, b, 2, 150 - n);
        expect(c, b, 1, n, 2, 150);
        expect(c, a, 1, 150, 1, 150);
        assert_int_equal(tq_cache_truncate(c, b, n), TQ_OK);
    }
    tq_cache_destroy(c);
}

static void a_full_cache_forks_but_does_not_copy(void **state)
{
    (void)state;
    uint32_t a, b, d;
    tq_cache *c = small(2, 2, &a);
    put(c, a, 1, 100);
    assert_int_equal(tq_cache_seq_fork(c, a, 101, &b), TQ_ERR_ARG);
    assert_int_equal(tq_cache_seq_fork(c, a, 100, &b), TQ_OK);
    assert_int_equal(tq_cache_seq_fork(c, a, 100, &d), TQ_ERR_FULL);
    assert_int_equal(tq_cache_append_begin(c, b, 1), TQ_ERR_FULL); /* no page for the copy */
    expect(c, b, 1, 100, 1, 100);
    assert_int_equal(tq_cache_seq_close(c, a), TQ_OK);
    put(c, b, 2, 28); /* now it is its own */
    expect(c, b, 1, 100, 2, 128);
    assert_int_equal(tq_cache_seq_fork(c, a, 0, &d), TQ_ERR_STATE);
    assert_int_equal(tq_cache_append_begin(c, b, 0), TQ_ERR_ARG);
    tq_cache_destroy(c);
}

/* An append that is aborted after the copy leaves both as they were. */
static void an_aborted_append_changes_no_sibling(void **state)
{
    (void)state;
    static float x[64 * ROW];
    uint32_t a, b;
    tq_cache *c = small(6, 2, &a);
    put(c, a, 1, 90);
    assert_int_equal(tq_cache_seq_fork(c, a, 90, &b), TQ_OK);
    assert_int_equal(tq_cache_append_begin(c, b, 60), TQ_OK);
    assert_int_equal(tq_cache_append_rows(c, b, 0, x, ROW, x, ROW, 0, 1), TQ_OK);
    assert_int_equal(tq_cache_append_abort(c, b), TQ_OK);
    expect(c, a, 1, 90, 1, 90);
    expect(c, b, 1, 90, 1, 90);
    put(c, b, 2, 1);
    put(c, a, 3, 1);
    expect(c, a, 1, 90, 3, 91);
    expect(c, b, 1, 90, 2, 91);
    tq_cache_destroy(c);
}

/* PITFALL 25: a layer that reads another layer's rows sees them all, also in decode steps. */
static void a_donor_is_read_at_every_step(void **state)
{
    (void)state;
    tq_layer layers[3] = {make_layer("f32", 2, 16, 16), make_layer("f16", 1, 24, 24),
                          make_layer("turbo4", 2, 16, 16)};
    layers[2].donor = 1;
    tq_cache *c = make_cache(layers, 3, 4, 1);
    static float x[100 * ROW];
    uint32_t seq, n = 0;
    tq_cache_stats st;
    assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
    const uint32_t steps[] = {70, 1, 1, 1};
    for (int i = 0; i < 4; i++) {
        tq_view own, read;
        rows_of(x, 1, n, steps[i]);
        assert_int_equal(tq_cache_append_begin(c, seq, steps[i]), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, seq, 0, x, ROW, x, ROW, 0, 1), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, seq, 1, x, 24, x, 24, 0, 1), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, seq, 2, x, ROW, x, ROW, 0, 1), TQ_ERR_ARG);
        n += steps[i];
        assert_int_equal(tq_cache_view(c, seq, 0, &own), TQ_OK);
        assert_int_equal(tq_cache_view(c, seq, 2, &read), TQ_OK);
        assert_int_equal(read.n_tokens, n);
        assert_same_bytes(&own, &read);
        assert_int_equal(tq_cache_append_commit(c, seq), TQ_OK);
    }
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    assert_int_equal(st.bytes_per_token, 2 * 2 * 16 * 4 + 2 * 24 * 2); /* the donor's once */
    tq_cache_destroy(c);

    size_t bytes;
    tq_cache_config cfg = {
        .layers = layers, .n_layers = 3, .n_pages = 1, .max_seqs = 1, .isa_mask = TQ_ISA_ALL};
    layers[2].donor = 3; /* itself */
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_ARG);
    layers[2].donor = 2; /* another geometry */
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_ARG);
    layers[1] = layers[0];
    layers[1].donor = 1;
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_ARG); /* a donor with a donor */
    layers[2].donor = UINT32_MAX;
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_ARG);
    layers[2].donor = 1;
    layers[2].window = 5;
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_ARG);
    layers[2].window = 0;
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siblings_do_not_overwrite_each_other),
        cmocka_unit_test(a_shared_page_is_copied_whoever_writes),
        cmocka_unit_test(truncate_in_a_fork_equals_a_fresh_run),
        cmocka_unit_test(a_full_cache_forks_but_does_not_copy),
        cmocka_unit_test(an_aborted_append_changes_no_sibling),
        cmocka_unit_test(a_donor_is_read_at_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
