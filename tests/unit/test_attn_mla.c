/* SPDX-License-Identifier: MIT */
/* test_attn_mla.c — values that are part of their keys, as in latent attention: every family and
 * path against float64, the bytes that are not stored, and what is refused. */
#include "support.h"

#include "attn_case.h"

static void assert_close(attn_case c, double bound)
{
    static const uint32_t masks[] = {TQ_ISA_SCALAR, TQ_ISA_ALL};
    c.v_in_k = 1;
    for (int i = 0; i < 2; i++) {
        c.isa_mask = masks[i];
        attn_case_open(&c, 51);
        double *want = malloc(c.n_out * sizeof *want);
        assert_non_null(want);
        attn_case_run(&c);
        attn_case_oracle(&c, want, 0);
        double err = attn_case_error(&c, want);
        free(want);
        attn_case_close(&c);
        const double most = bound > 0 ? bound : attn_case_rounding(&c);
        if (!(err <= most))
            fail_msg("%s, isa %#x, %u KV heads x %u, d %u/%u, q_len %u: error %.3g", c.scheme,
                     c.isa_mask, c.n_kv, c.group, c.d_k, c.d_v, c.cfg.q_len, err);
    }
}

static const char *const schemes[] = {"f32",
                                      "f16",
                                      "bf16",
                                      "turbo2",
                                      "turbo3",
                                      "turbo4",
                                      "turbo5",
                                      "turbo6",
                                      "turbo8",
                                      "tcq2",
                                      "tcq3",
                                      "tcq4",
                                      "tcq5",
                                      "tcq6",
                                      "affine8",
                                      "affine4g32",
                                      "mse2",
                                      "prod3",
                                      "tcq3,mean",
                                      "turbo4,mean",
                                      "turbo:k8v8",
                                      "turbo:k5v5",
                                      "turbo:k4v4",
                                      "turbo:k2v2",
                                      "turbo4,attn=dequant",
                                      "turbo:k8v8,attn=dequant"};
enum { N_SCHEMES = sizeof schemes / sizeof schemes[0] };

/* Queries rounded to int16 on the path for few; see src/cpu/kernels.h. */
static const double few = 0, many = 2e-6; /* 0: attn_case_rounding */

/* The value sum of a rotated key is taken over all of it, and cut after the rotation back. */
static void latent_attention_matches_float64(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_kv, group, d_k, d_v, n_tokens;
    } shapes[] = {
        {1, 5, 576, 512, 70}, {1, 3, 128, 64, 520}, {3, 2, 80, 80, 70}, {1, 1, 64, 8, 64}};
    for (int s = 0; s < N_SCHEMES; s++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (uint32_t q_len = 1; q_len < 20; q_len += 9)
                assert_close((attn_case){.scheme = schemes[s],
                                         .n_kv = shapes[i].n_kv,
                                         .group = shapes[i].group,
                                         .d_k = shapes[i].d_k,
                                         .d_v = shapes[i].d_v,
                                         .n_tokens = shapes[i].n_tokens,
                                         .cfg = {.q_len = q_len, .window = i == 1 ? 77 : 0}},
                             q_len <= 8 ? few : many);
}

/* What is decoded for values is the start of what is decoded for keys. */
static void values_are_the_start_of_keys(void **state)
{
    (void)state;
    for (int s = 0; s < N_SCHEMES; s++) {
        attn_case c = {.scheme = schemes[s],
                       .n_kv = 2,
                       .group = 1,
                       .d_k = 96,
                       .d_v = 40,
                       .n_tokens = 150,
                       .v_in_k = 1,
                       .cfg.q_len = 1};
        attn_case_open(&c, 52);
        static float k[100][96], v[100][40];
        assert_int_equal(tq_view_decode(&c.view, 1, 30, 100, k[0], v[0]), TQ_OK);
        for (int t = 0; t < 100; t++)
            assert_memory_equal(k[t], v[t], sizeof v[t]);
        attn_case_close(&c);
    }
}

/* PITFALL 11, 26: only the keys are stored, and the reported bytes say so. */
static void only_keys_are_stored(void **state)
{
    (void)state;
    for (int s = 0; s < N_SCHEMES; s++) {
        attn_case c = {.scheme = schemes[s],
                       .n_kv = 2,
                       .group = 1,
                       .d_k = 576,
                       .d_v = 512,
                       .n_tokens = 10,
                       .v_in_k = 1,
                       .cfg.q_len = 1};
        attn_case_open(&c, 53);
        tq_scheme scheme;
        tq_codec codec;
        tq_cache_stats stats;
        size_t bytes;
        assert_int_equal(tq_scheme_parse(&scheme, schemes[s], NULL, 0), TQ_OK);
        assert_int_equal(tq_scheme_codec(&scheme, 0, 576, TQ_ISA_ALL, &codec), TQ_OK);
        assert_int_equal(tq_scheme_bytes_per_token(&scheme, 576, 0, &bytes), TQ_OK);
        assert_int_equal(bytes, codec.block_bytes);
        assert_int_equal(tq_cache_get_stats(c.cache, &stats), TQ_OK);
        assert_int_equal(stats.bytes_per_token, 2 * codec.block_bytes);
        assert_int_equal(stats.used_bytes, 10 * 2 * codec.block_bytes);
        assert_int_equal(c.view.page_bytes, 64 * 2 * codec.block_bytes);
        attn_case_close(&c);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    tq_layer layer = {.n_kv_heads = 1, .d_k = 128, .d_v = 64, .v_in_k = 1};
    const tq_cache_config cfg = {&layer, 1, 2, 1, TQ_ISA_ALL};
    static const struct {
        const char *scheme;
        uint32_t d_k, d_v, v_in_k;
        tq_status want;
    } cases[] = {
        {"turbo4", 128, 64, 1, TQ_OK},
        {"turbo4", 128, 128, 1, TQ_OK},
        {"turbo4", 128, 136, 1, TQ_ERR_DIM},
        {"turbo4", 128, 0, 1, TQ_ERR_DIM},
        {"turbo4", 128, 63, 1, TQ_ERR_DIM},
        {"turbo4", 88, 64, 1, TQ_ERR_DIM},
        {"turbo4", 128, 64, 2, TQ_ERR_ARG},
        {"turbo:k8v3", 128, 64, 1, TQ_ERR_SCHEME}, /* v3 would silently mean nothing */
        {"turbo4v3", 128, 64, 1, TQ_ERR_SCHEME},
        {"turbo0v4", 128, 64, 1, TQ_ERR_SCHEME},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes;
        assert_int_equal(tq_scheme_parse(&layer.scheme, cases[i].scheme, NULL, 0), TQ_OK);
        layer.d_k = cases[i].d_k;
        layer.d_v = cases[i].d_v;
        layer.v_in_k = cases[i].v_in_k;
        if (tq_cache_bytes(&cfg, &bytes) != cases[i].want)
            fail_msg("%s %u/%u: not %s", cases[i].scheme, cases[i].d_k, cases[i].d_v,
                     tq_status_name(cases[i].want));
    }
    attn_case c = {.scheme = "turbo4",
                   .n_kv = 1,
                   .group = 2,
                   .d_k = 64,
                   .d_v = 32,
                   .n_tokens = 5,
                   .v_in_k = 1,
                   .cfg.q_len = 1};
    attn_case_open(&c, 54);
    uint32_t n;
    assert_int_equal(tq_cache_append(c.cache, c.seq, c.k, c.k, 1), TQ_ERR_ARG);
    assert_int_equal(tq_cache_len(c.cache, c.seq, &n), TQ_OK);
    assert_int_equal(n, 5);
    tq_attn_plan p;
    tq_view wrong = c.view;
    wrong.d_v = 65;
    assert_int_equal(tq_attn_plan_init(&p, &c.cfg, &wrong), TQ_ERR_ARG);
    wrong.d_v = 0;
    assert_int_equal(tq_attn_plan_init(&p, &c.cfg, &wrong), TQ_ERR_ARG);
    attn_case_close(&c);

    /* The other way round: a layer with values of its own wants them. */
    c = (attn_case){.scheme = "turbo4",
                    .n_kv = 1,
                    .group = 2,
                    .d_k = 64,
                    .d_v = 64,
                    .n_tokens = 5,
                    .cfg.q_len = 1};
    attn_case_open(&c, 55);
    assert_int_equal(tq_cache_append(c.cache, c.seq, c.k, NULL, 1), TQ_ERR_ARG);
    wrong = c.view;
    wrong.d_v = 32;
    assert_int_equal(tq_attn_plan_init(&p, &c.cfg, &wrong), TQ_ERR_ARG);
    attn_case_close(&c);
}

static void bounds_hold(void **state)
{
    (void)state;
    for (int s = 0; s < N_SCHEMES; s++)
        for (uint32_t q_len = 1; q_len < 20; q_len += 14) {
            attn_case c = {.scheme = schemes[s],
                           .n_kv = 1,
                           .group = 8,
                           .d_k = 192,
                           .d_v = 128,
                           .n_tokens = 90,
                           .v_in_k = 1,
                           .cfg.q_len = q_len};
            attn_case_open(&c, 56);
            tq_layer layer = {.n_kv_heads = 1, .d_k = 192, .d_v = 128, .v_in_k = 1};
            tq_attn_plan p;
            size_t partials, work;
            assert_int_equal(tq_scheme_parse(&layer.scheme, schemes[s], NULL, 0), TQ_OK);
            assert_int_equal(tq_attn_plan_init(&p, &c.cfg, &c.view), TQ_OK);
            assert_int_equal(tq_attn_bounds(&layer, 8, 20, 100, &partials, &work), TQ_OK);
            assert_true(p.partials_bytes <= partials && p.work_bytes <= work);
            attn_case_close(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latent_attention_matches_float64),
        cmocka_unit_test(values_are_the_start_of_keys),
        cmocka_unit_test(only_keys_are_stored),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(bounds_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
