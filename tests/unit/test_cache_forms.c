/* SPDX-License-Identifier: MIT */
/* test_cache_forms.c — sink, tail, start, skip and the key mean: which form each query reads, in
 * whatever chunks, and what is kept. */
#include "cache_case.h"

enum { HEADS = 2, GROUP = 2, D = 32, ROW = HEADS * D, OUT = HEADS * GROUP * D, N = 280 };

static float k[N * ROW], v[N * ROW], q[N * OUT], mean[ROW];

static int fill(void **state)
{
    (void)state;
    uint64_t seed = 92;
    for (int i = 0; i < N * ROW; i++) {
        k[i] = (float)test_normal(&seed);
        v[i] = (float)test_normal(&seed);
    }
    for (int i = 0; i < N * OUT; i++)
        q[i] = (float)test_normal(&seed);
    for (int i = 0; i < ROW; i++)
        mean[i] = (float)(3 * test_normal(&seed));
    return 0;
}

typedef struct form_case {
    const char *scheme;
    uint32_t window;
    int with_mean, with_sinks;
    float softcap;
} form_case;

static const form_case cases[] = {
    {"turbo5v6,tail=20", 0, 0, 0, 0},
    {"turbo:k8v5,sink=4,tail=64", 0, 0, 1, 0},
    {"tcq5,start=100", 0, 0, 0, 3},
    {"turbo6v5,sink=70,tail=70,start=130", 0, 1, 1, 0},
    {"affine8,sink=3,tail=5", 90, 1, 0, 4},
    {"turbo5,tail=300", 0, 1, 0, 0},
    {"turbo5,sink=1,tail=1,mean", 64, 0, 0, 0},
    {"prod3,sink=128,start=64", 0, 1, 1, 2},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static tq_cache *open_cache(const form_case *c, int dequant, uint32_t *seq)
{
    char text[128];
    snprintf(text, sizeof text, "%s%s", c->scheme, dequant ? ",attn=dequant" : "");
    tq_layer layer = make_layer(text, HEADS, D, D);
    layer.window = c->window;
    layer.k_mean = c->with_mean ? mean : NULL;
    tq_cache *cache = make_cache(&layer, 1, 12, 2);
    assert_int_equal(tq_cache_seq_open(cache, seq), TQ_OK);
    return cache;
}

/* In exactly the scratch that the plan asks for, which the bounds of the layer cover. */
static tq_status attend(const form_case *c, const tq_view *view, uint32_t q_len, float *out)
{
    static const float sinks[HEADS * GROUP] = {1, -2, 0.5f, 3};
    const tq_attn_config cfg = {.n_q_heads = HEADS * GROUP,
                                .q_len = q_len,
                                .window = c->window,
                                .scale = 0.2f,
                                .softcap = c->softcap,
                                .sinks = c->with_sinks ? sinks : NULL};
    tq_attn_plan p;
    tq_status st = tq_attn_plan_init(&p, &cfg, view);
    if (st != TQ_OK)
        return st;
    tq_layer layer = make_layer(c->scheme, HEADS, D, D);
    layer.scheme.attn = view->attn;
    size_t partials, work;
    assert_int_equal(tq_attn_bounds(&layer, HEADS * GROUP, N, N, &partials, &work), TQ_OK);
    assert_true(p.partials_bytes <= partials && p.work_bytes <= work);
    const size_t bytes = p.partials_bytes + p.work_bytes + 64;
    void *scratch = malloc(bytes);
    assert_non_null(scratch);
    st = tq_attn_run(&p, view, out, OUT, q + (view->n_tokens - q_len) * OUT, OUT, scratch, bytes);
    free(scratch);
    return st;
}

static void run_steps(const form_case *fc, int dequant, const uint32_t *steps, float *out)
{
    uint32_t seq, n = 0;
    tq_cache *c = open_cache(fc, dequant, &seq);
    for (; *steps; n += *steps++) {
        tq_view view;
        assert_int_equal(tq_cache_append_begin(c, seq, *steps), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, seq, 0, k + n * ROW, ROW, v + n * ROW, ROW, 0, 1),
                         TQ_OK);
        assert_int_equal(tq_cache_view(c, seq, 0, &view), TQ_OK);
        assert_int_equal(attend(fc, &view, *steps, out + n * OUT), TQ_OK);
        assert_int_equal(tq_cache_append_commit(c, seq), TQ_OK);
    }
    assert_int_equal(n, N);
    tq_cache_destroy(c);
}

static double worst_difference(const float *a, const float *b)
{
    double worst = 0;
    for (int i = 0; i < N * OUT; i++) {
        const double e = fabs((double)a[i] - (double)b[i]);
        worst = e > worst || isnan(e) ? e : worst;
    }
    return isnan(worst) ? INFINITY : worst;
}

/* A token is read in f16 by distance from each query: no chunking changes that. Bit by bit where
 * the path is the same, and the three paths agree. */
static void chunks_change_nothing_on_any_path(void **state)
{
    (void)state;
    static float one[N * OUT], chunks[N * OUT], singles[N * OUT], eights[N * OUT];
    uint32_t ones[N + 1] = {0}, eight[N / 8 + 1] = {0};
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    for (int i = 0; i < N / 8; i++)
        eight[i] = 8;
    for (int i = 0; i < N_CASES; i++) {
        run_steps(&cases[i], 0, (const uint32_t[]){N, 0}, one); /* tiled */
        run_steps(&cases[i], 0, (const uint32_t[]){63, 66, 9, 70, 72, 0}, chunks);
        assert_memory_equal(one, chunks, sizeof one);
        run_steps(&cases[i], 0, ones, singles); /* fused */
        run_steps(&cases[i], 0, eight, eights);
        assert_memory_equal(singles, eights, sizeof singles);
        assert_true(worst_difference(one, singles) < 2e-3);
        run_steps(&cases[i], 1, (const uint32_t[]){N, 0}, chunks); /* dequant, the reference */
        run_steps(&cases[i], 1, ones, eights);
        assert_memory_equal(chunks, eights, sizeof chunks);
        assert_true(worst_difference(one, chunks) < 1e-4);
        assert_true(worst_difference(singles, chunks) < 2e-3);
    }
}

/* The reference decodes what the rule says: the codec alone, row by row. */
static void each_query_reads_the_form_of_its_distance(void **state)
{
    (void)state;
    static float dk[N * D], packed[N * D];
    for (int i = 0; i < N_CASES; i++) {
        uint32_t seq;
        tq_cache *c = open_cache(&cases[i], 0, &seq);
        assert_int_equal(tq_cache_append_begin(c, seq, N), TQ_OK);
        assert_int_equal(tq_cache_append_rows(c, seq, 0, k, ROW, v, ROW, 0, 1), TQ_OK);
        tq_view view;
        assert_int_equal(tq_cache_view(c, seq, 0, &view), TQ_OK);
        assert_int_equal(tq_view_decode(&view, 1, 0, N, packed, NULL), TQ_OK);
        for (uint32_t p = 0; p < N; p += 13) {
            const uint32_t first =
                cases[i].window && p >= cases[i].window ? p - cases[i].window + 1 : 0;
            assert_int_equal(tq_view_decode_at(&view, p, 1, first, p + 1 - first, dk, NULL), TQ_OK);
            for (uint32_t t = first; t <= p; t++) {
                const float *row = dk + (t - first) * D, *in = k + t * ROW + D;
                if (t < view.sink || p - t < view.tail || p < view.start) {
                    for (int j = 0; j < D; j++)
                        assert_true(fabsf(row[j] - in[j]) <= 6e-3f);
                    assert_memory_not_equal(row, packed + t * D, D * sizeof *row);
                } else {
                    assert_memory_equal(row, packed + t * D, D * sizeof *row);
                }
            }
        }
        tq_cache_destroy(c);
    }
}

/* Keys without their mean give the same attention: with a cap and with sinks too. In f32 nothing is
 * lost by packing, so this is the arithmetic alone. */
static void a_key_mean_changes_nothing(void **state)
{
    (void)state;
    static const form_case plain[] = {
        {"f32", 0, 0, 0, 0}, {"f32", 0, 0, 1, 0}, {"f32", 0, 0, 0, 2}, {"f32", 50, 0, 1, 2}};
    static float with[N * OUT], without[N * OUT];
    uint32_t ones[N + 1] = {0};
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    for (int i = 0; i < 4; i++)
        for (int path = 0; path < 3; path++) {
            form_case m = plain[i];
            m.with_mean = 1;
            const uint32_t whole[] = {N, 0}, *steps = path == 1 ? ones : whole;
            run_steps(&plain[i], path == 2, steps, without);
            run_steps(&m, path == 2, steps, with);
            assert_true(worst_difference(with, without) < 2e-4);
        }
    /* It is copied, must be finite, and a difference beyond f32 is an error of the row. */
    float huge[ROW];
    for (int i = 0; i < ROW; i++)
        huge[i] = -3e38f;
    tq_layer layer = make_layer("f32", HEADS, D, D);
    layer.k_mean = huge;
    tq_cache *c = make_cache(&layer, 1, 2, 1);
    huge[3] = NAN;
    const tq_cache_config cfg = {
        .layers = &layer, .n_layers = 1, .n_pages = 1, .max_seqs = 1, .isa_mask = TQ_ISA_ALL};
    size_t bytes;
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_NONFINITE);
    uint32_t seq;
    float rows[ROW];
    assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
    for (int i = 0; i < ROW; i++)
        rows[i] = 3e38f;
    assert_int_equal(tq_cache_append(c, seq, rows, rows, 1), TQ_ERR_NONFINITE);
    assert_int_equal(tq_cache_append(c, seq, k, v, 1), TQ_OK);
    tq_cache_destroy(c);
    layer.v_in_k = 1;
    layer.k_mean = mean;
    assert_int_equal(tq_cache_bytes(&cfg, &bytes), TQ_ERR_ARG);
}

/* PITFALL 28: skip counts the layers of attention, at both ends; bytes say so (PITFALL 11). */
static void skipped_layers_are_f16(void **state)
{
    (void)state;
    tq_layer layers[5];
    for (int i = 0; i < 5; i++)
        layers[i] = make_layer("turbo4,skip=1,tail=9", HEADS, D, D);
    tq_cache *c = make_cache(layers, 5, 4, 1);
    uint32_t seq;
    assert_int_equal(tq_cache_seq_open(c, &seq), TQ_OK);
    for (uint32_t l = 0; l < 5; l++) {
        tq_view view;
        assert_int_equal(tq_cache_view(c, seq, l, &view), TQ_OK);
        const int skipped = l == 0 || l == 4;
        assert_int_equal(view.packed.k->format, skipped ? TQ_FMT_F16 : TQ_FMT_NORM4);
        assert_int_equal(view.packed.v->format, skipped ? TQ_FMT_F16 : TQ_FMT_NORM4);
        assert_int_equal(view.f16.pages != NULL, !skipped);
        assert_int_equal(view.tail, skipped ? 0 : 9);
    }
    tq_cache_stats st;
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    const size_t f16 = HEADS * 2 * D * 2, packed = HEADS * 2 * (D / 2 + 2);
    assert_int_equal(st.bytes_per_token, 2 * f16 + 3 * packed);
    assert_int_equal(st.f16_bytes_per_token, 3 * f16);
    tq_cache_destroy(c);
    for (int i = 0; i < 5; i++)
        layers[i] = make_layer("turbo4,skip=3", HEADS, D, D);
    c = make_cache(layers, 5, 4, 1);
    assert_int_equal(tq_cache_get_stats(c, &st), TQ_OK);
    assert_int_equal(st.bytes_per_token, 5 * f16);
    tq_cache_destroy(c);
}

/* Rows in f16 go back when no query reads them any more; the packed ones stay as they were
 * (PITFALL 15). */
static void f16_rows_go_and_packed_bytes_stay(void **state)
{
    (void)state;
    const form_case fc = {"turbo4,sink=4,tail=20,start=100", 0, 0, 0, 0};
    uint32_t a, b, min;
    size_t packed, f16;
    tq_cache *c = open_cache(&fc, 0, &a);
    assert_int_equal(tq_cache_seq_open(c, &b), TQ_OK);
    assert_int_equal(tq_cache_append(c, b, k, v, N), TQ_OK);
    const size_t row = HEADS * 2 * D * 2;
    for (uint32_t n = 0; n < N; n++) {
        assert_int_equal(tq_cache_append(c, a, k + n * ROW, v + n * ROW, 1), TQ_OK);
        assert_int_equal(tq_cache_seq_bytes(c, a, &packed, &f16), TQ_OK);
        assert_int_equal(tq_cache_min_truncate(c, a, &min), TQ_OK);
        assert_int_equal(packed, (n + 1) * HEADS * 2 * (D / 2 + 2));
        if (n < 100) {
            assert_int_equal(f16, (n + 1) * row);
            assert_int_equal(min, 0);
        } else {
            assert_true(f16 >= (4 + 20) * row && f16 <= (64 + 20 + 1 + 63) * row);
            assert_true(min == 0 || (min >= 100 && min <= n));
        }
    }
    tq_view x, y;
    assert_int_equal(tq_cache_view(c, a, 0, &x), TQ_OK);
    assert_int_equal(tq_cache_view(c, b, 0, &y), TQ_OK);
    assert_same_bytes(&x, &y);
    assert_same_rows(&x, &y, TQ_FORM_F16, N - 20);
    assert_int_equal(tq_cache_truncate(c, a, 99), TQ_ERR_STATE); /* it would read all in f16 */
    tq_cache_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_change_nothing_on_any_path),
        cmocka_unit_test(each_query_reads_the_form_of_its_distance),
        cmocka_unit_test(a_key_mean_changes_nothing),
        cmocka_unit_test(skipped_layers_are_f16),
        cmocka_unit_test(f16_rows_go_and_packed_bytes_stay),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
