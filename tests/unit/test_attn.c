/* SPDX-License-Identifier: MIT */
/* test_attn.c — what attention computes: every family and shape against float64, the dequantising
 * reference, masks, sinks, softcap. How the work is split is in test_attn_parts.c, what integer
 * shortcuts cost in test_attn_error*.c. */
#include "support.h"

#include "attn_case.h"

/* f32 arithmetic over up to 1000 tokens. */
#define F32_ERROR 2e-6
/* Instead of a number: attn_case_rounding. */
#define ROUNDED 0

static double run_and_measure(attn_case *c, uint64_t seed)
{
    attn_case_open(c, seed);
    double *want = malloc(c->n_out * sizeof *want);
    assert_non_null(want);
    attn_case_run(c);
    attn_case_oracle(c, want, 0);
    double err = attn_case_error(c, want);
    free(want);
    attn_case_close(c);
    return err;
}

static void assert_close(attn_case c, uint64_t seed, double bound)
{
    static const uint32_t masks[] = {TQ_ISA_SCALAR, TQ_ISA_ALL};
    for (int i = 0; i < 2; i++) {
        c.isa_mask = masks[i];
        const double most = bound > 0 ? bound : attn_case_rounding(&c);
        double err = run_and_measure(&c, seed);
        if (!(err <= most))
            fail_msg("%s, isa %#x, %u KV heads x %u, d %u/%u, %u tokens, q_len %u, window %u: "
                     "error %.3g",
                     c.scheme, c.isa_mask, c.n_kv, c.group, c.d_k, c.d_v, c.n_tokens, c.cfg.q_len,
                     c.cfg.window, err);
    }
}

/* ---- Shapes ---------------------------------------------------------------------------- */

/* PITFALLS 10, 24: every pair of widths, both paths. */
static void every_scheme_matches_float64(void **state)
{
    (void)state;
    static const char *raw[] = {"f32", "f16", "bf16"};
    static const uint32_t q_lens[] = {1, 3, 12};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            assert_close((attn_case){.scheme = raw[i],
                                     .n_kv = 2,
                                     .group = 4,
                                     .d_k = 64,
                                     .d_v = 64,
                                     .n_tokens = 150,
                                     .cfg.q_len = q_lens[j]},
                         11, F32_ERROR);
    static const int k_bits[] = {2, 4, 5, 8}, v_bits[] = {2, 3, 4, 5, 8};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 5; j++)
            for (int l = 0; l < 3; l++) {
                char scheme[32];
                snprintf(scheme, sizeof scheme, "turbo:k%dv%d", k_bits[i], v_bits[j]);
                assert_close((attn_case){.scheme = scheme,
                                         .n_kv = 1,
                                         .group = 3,
                                         .d_k = 64,
                                         .d_v = 64,
                                         .n_tokens = 130,
                                         .cfg.q_len = q_lens[l]},
                             12, q_lens[l] > 8 ? F32_ERROR : ROUNDED);
            }
}

/* One scheme of each family with one scale or with uniform groups, at dimensions of every kind. */
static void other_families_match_float64(void **state)
{
    (void)state;
    static const char *schemes[] = {"turbo2", "turbo3",   "turbo4",      "turbo5",  "turbo6",
                                    "turbo8", "turbo4v2", "turbo0v3",    "tcq2",    "tcq3",
                                    "tcq4",   "tcq5v4",   "tcq6",        "affine8", "affine4g32",
                                    "mse3",   "prod2",    "turbo4,mean", "prod1",   "tcq3,mean"};
    static const uint32_t q_lens[] = {1, 3, 12}, dims[] = {128, 80, 24};
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        for (int j = 0; j < 3; j++)
            for (int l = 0; l < 3; l++)
                assert_close((attn_case){.scheme = schemes[i],
                                         .n_kv = 2,
                                         .group = 3,
                                         .d_k = dims[j],
                                         .d_v = dims[(j + l) % 3],
                                         .n_tokens = 100,
                                         .cfg.q_len = q_lens[l]},
                             19, q_lens[l] > 8 ? F32_ERROR : ROUNDED);
}

static void every_length_matches_float64(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 7, 63, 64, 65, 127, 512, 513, 1000};
    static const uint32_t q_lens[] = {1, 2, 8, 9, 64, 100};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (size_t j = 0; j < sizeof q_lens / sizeof q_lens[0]; j++) {
            attn_case c = {.n_kv = 1, .group = 2, .n_tokens = lengths[i], .cfg.q_len = q_lens[j]};
            if (q_lens[j] > lengths[i])
                continue;
            c.scheme = "f32";
            c.d_k = c.d_v = 32;
            assert_close(c, 13, F32_ERROR);
            c.scheme = "turbo:k8v3";
            c.d_k = c.d_v = 64;
            assert_close(c, 14, q_lens[j] > 8 ? F32_ERROR : ROUNDED);
        }
}

/* PITFALL 30: a first prefill and one behind a prefix. */
static void long_prefills_match_float64(void **state)
{
    (void)state;
    static const uint32_t q_lens[] = {1000, 100}, lengths[] = {1000, 500};
    for (int i = 0; i < 2; i++)
        assert_close((attn_case){.scheme = "f16",
                                 .n_kv = 1,
                                 .group = 1,
                                 .d_k = 16,
                                 .d_v = 16,
                                 .n_tokens = lengths[i],
                                 .cfg.q_len = q_lens[i]},
                     27, F32_ERROR);
}

/* PITFALL 31: all group sizes of real models. */
static void every_group_size_matches_float64(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 32};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        for (uint32_t q_len = 1; q_len < 20; q_len += 9) {
            attn_case c = {.n_kv = 2, .group = groups[i], .n_tokens = 100, .cfg.q_len = q_len};
            c.scheme = "f16";
            c.d_k = c.d_v = 40;
            assert_close(c, 15, F32_ERROR);
            c.scheme = "turbo:k4v4";
            c.d_k = c.d_v = 64;
            assert_close(c, 16, q_len > 8 ? F32_ERROR : ROUNDED);
        }
}

static void dimensions_may_differ(void **state)
{
    (void)state;
    static const struct {
        const char *scheme;
        uint32_t d_k, d_v;
    } dims[] = {{"f32", 16, 1024},        {"f16", 576, 512},        {"bf16", 80, 24},
                {"f32", 40, 8 * 3},       {"turbo:k8v3", 64, 512},  {"turbo:k8v3", 256, 64},
                {"turbo:k5v5", 512, 128}, {"turbo:k2v8", 128, 256}, {"f16", 192, 128},
                {"turbo:k8v3", 192, 128}, {"turbo:k4v4", 80, 16},   {"turbo:k5v2", 24, 576}};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (uint32_t q_len = 1; q_len < 20; q_len += 9)
            assert_close((attn_case){.scheme = dims[i].scheme,
                                     .n_kv = 2,
                                     .group = 3,
                                     .d_k = dims[i].d_k,
                                     .d_v = dims[i].d_v,
                                     .n_tokens = 140,
                                     .cfg.q_len = q_len},
                         17, dims[i].scheme[0] == 't' && q_len <= 8 ? ROUNDED : F32_ERROR);
}

/* PITFALL 19: the mask is there for q_len > 1, and a window may start anywhere in a tile. */
static void windows_match_float64(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1, 2, 63, 64, 65, 200, 599, 600, 601, UINT32_MAX};
    static const uint32_t q_lens[] = {1, 3, 70};
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        for (int j = 0; j < 3; j++)
            assert_close((attn_case){.scheme = "f32",
                                     .n_kv = 1,
                                     .group = 2,
                                     .d_k = 32,
                                     .d_v = 32,
                                     .n_tokens = 600,
                                     .cfg = {.q_len = q_lens[j], .window = windows[i]}},
                         18, F32_ERROR);
}

static void sinks_and_softcap_match_float64(void **state)
{
    (void)state;
    static const float sinks[] = {2, -1, 0.5f, -INFINITY, 30, 0};
    static const char *schemes[] = {"f32", "turbo:k8v4", "turbo:k8v4,attn=dequant"};
    static const uint32_t q_lens[] = {1, 20};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            for (int with = 1; with < 4; with++)
                assert_close((attn_case){.scheme = schemes[i],
                                         .n_kv = 2,
                                         .group = 3,
                                         .d_k = 64,
                                         .d_v = 64,
                                         .n_tokens = 600,
                                         .cfg = {.q_len = q_lens[j],
                                                 .sinks = with & 1 ? sinks : NULL,
                                                 .softcap = with & 2 ? 1.5f : 0,
                                                 .window = j ? 100 : 0}},
                             19, i == 1 && j == 0 ? ROUNDED : F32_ERROR);
}

/* ---- The reference path ---------------------------------------------------------------- */

static void dequant_matches_float64(void **state)
{
    (void)state;
    static const char *schemes[] = {"f32,attn=dequant", "turbo:k8v3,attn=dequant",
                                    "turbo:k4v2,attn=dequant"};
    for (int i = 0; i < 3; i++)
        for (uint32_t q_len = 1; q_len < 30; q_len += 14)
            assert_close((attn_case){.scheme = schemes[i],
                                     .n_kv = 2,
                                     .group = 2,
                                     .d_k = 128,
                                     .d_v = 64,
                                     .n_tokens = 700,
                                     .cfg = {.q_len = q_len, .window = i == 2 ? 130 : 0}},
                         20, F32_ERROR);
}

/* ---- Masks ----------------------------------------------------------------------------- */

/* PITFALL 27: a masked token weighs exactly nothing, whatever it holds: what others see is equal to
 * the byte. huge: the largest value that the scheme can hold. */
static void assert_masked(const char *scheme, uint32_t q_len, float huge)
{
    enum { D = 64, WINDOW = 5 };
    attn_case c = {.scheme = scheme,
                   .n_kv = 1,
                   .group = 1,
                   .d_k = D,
                   .d_v = D,
                   .n_tokens = 90,
                   .cfg = {.q_len = q_len, .window = WINDOW}};
    attn_case_open(&c, 21);
    attn_case_run(&c);
    float *first = malloc(c.n_out * sizeof(float));
    assert_non_null(first);
    memcpy(first, c.out, c.n_out * sizeof(float));
    /* Query 0 must not see the last token, the last query not the first of the window. */
    const uint32_t visible = c.n_tokens - q_len; /* position of query 0 */
    for (uint32_t t = 0; t < c.n_tokens; t++)
        if (t > visible || t + WINDOW <= visible)
            for (uint32_t j = 0; j < D; j++) {
                c.k[t * D + j] = 50 * c.q[j]; /* the largest logit by far */
                c.v[t * D + j] = j % 2 ? huge : -huge / 3;
            }
    attn_case_refill(&c);
    attn_case_run(&c);
    if (memcmp(first, c.out, D * sizeof(float)) != 0)
        fail_msg("%s, q_len %u: a masked token changes what is seen", scheme, q_len);
    free(first);
    attn_case_close(&c);
}

static void masked_tokens_weigh_nothing(void **state)
{
    (void)state;
    static const char *const packed[] = {"f16",        "turbo:k8v2", "turbo:k8v3", "turbo:k4v4",
                                         "turbo:k5v5", "turbo:k8v8", "turbo4",     "turbo8",
                                         "tcq3",       "affine4",    "affine8"};
    for (uint32_t q_len = 2; q_len < 20; q_len += 10) {
        assert_masked("f32", q_len, 1e30f);
        for (size_t i = 0; i < sizeof packed / sizeof packed[0]; i++)
            assert_masked(packed[i], q_len, 1e4f);
    }
}

/* Logits that overflow to minus infinity leave nothing to see: zeros, not NaN. */
static void rows_that_see_nothing_are_zero(void **state)
{
    (void)state;
    static const char *schemes[] = {"f32", "f32,attn=dequant", "bf16"};
    static const float sinks[] = {1, 2};
    for (int i = 0; i < 3; i++)
        for (uint32_t q_len = 1; q_len < 12; q_len += 10)
            for (int with_sinks = 0; with_sinks < 2; with_sinks++) {
                attn_case c = {.scheme = schemes[i],
                               .n_kv = 1,
                               .group = 2,
                               .d_k = 16,
                               .d_v = 16,
                               .n_tokens = 600,
                               .cfg = {.q_len = q_len, .sinks = with_sinks ? sinks : NULL}};
                attn_case_open(&c, 22);
                for (size_t j = 0; j < 600 * 16; j++)
                    c.k[j] = -3e38f;
                for (size_t j = 0; j < q_len * c.q_stride; j++)
                    c.q[j] = 3e38f;
                attn_case_refill(&c);
                attn_case_run(&c);
                for (size_t j = 0; j < c.n_out; j++)
                    assert_true(c.out[j] == 0);
                attn_case_close(&c);
            }
}

/* A NaN in a query shows in its own rows and in no other. */
static void a_nan_stays_in_its_row(void **state)
{
    (void)state;
    static const char *schemes[] = {"f32", "turbo:k8v3", "turbo:k8v3,attn=dequant"};
    for (int i = 0; i < 3; i++)
        for (uint32_t q_len = 3; q_len < 14; q_len += 10) {
            attn_case c = {.scheme = schemes[i],
                           .n_kv = 1,
                           .group = 2,
                           .d_k = 64,
                           .d_v = 64,
                           .n_tokens = 100,
                           .cfg.q_len = q_len};
            attn_case_open(&c, 23);
            c.q[c.q_stride + 64 + 7] = NAN; /* query 1, head 1 */
            attn_case_run(&c);
            for (size_t row = 0; row < q_len * 2; row++)
                for (size_t j = 0; j < 64; j++)
                    assert_int_equal(isnan(c.out[row * 64 + j]) != 0, row == 3);
            attn_case_close(&c);
        }
}

/* Any bytes in a page, as an import may bring: no fault, whatever comes out. */
static void any_bytes_can_be_attended_to(void **state)
{
    (void)state;
    static const char *schemes[] = {"f32", "f16", "bf16", "turbo:k8v3", "turbo:k5v8", "turbo:k2v5"};
    for (int i = 0; i < 6; i++)
        for (uint32_t q_len = 1; q_len < 12; q_len += 10) {
            attn_case c = {.scheme = schemes[i],
                           .n_kv = 1,
                           .group = 1,
                           .d_k = 64,
                           .d_v = 64,
                           .n_tokens = 130,
                           .cfg.q_len = q_len};
            attn_case_open(&c, 24);
            uint64_t seed = 25;
            for (uint32_t p = 0; p < 3; p++) {
                const tq_rows *rows = &c.view.packed;
                uint8_t *page = (uint8_t *)rows->pages + rows->page_table[p] * rows->page_bytes;
                for (size_t j = 0; j < rows->page_bytes; j++)
                    page[j] = (uint8_t)test_random(&seed);
            }
            attn_case_run(&c);
            attn_case_close(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scheme_matches_float64),
        cmocka_unit_test(other_families_match_float64),
        cmocka_unit_test(every_length_matches_float64),
        cmocka_unit_test(long_prefills_match_float64),
        cmocka_unit_test(every_group_size_matches_float64),
        cmocka_unit_test(dimensions_may_differ),
        cmocka_unit_test(windows_match_float64),
        cmocka_unit_test(sinks_and_softcap_match_float64),
        cmocka_unit_test(dequant_matches_float64),
        cmocka_unit_test(masked_tokens_weigh_nothing),
        cmocka_unit_test(rows_that_see_nothing_are_zero),
        cmocka_unit_test(a_nan_stays_in_its_row),
        cmocka_unit_test(any_bytes_can_be_attended_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
