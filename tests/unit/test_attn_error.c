/* SPDX-License-Identifier: MIT */
/* test_attn_error.c — what the integers of attention cost on norm-codebook and trellis bytes.
 *
 * Queries and weights are rounded there (src/cpu/kernels.h). Against float64 over the rows as they
 * were before encoding, the fused path may add at most 3 % to the error that decoded rows have in
 * float64: the scheme's own. Every width, on logits of deviation 0.1, 1 and 4, on one dominant
 * token before ten thousand small ones that together weigh as much, and on one among the 63 others
 * of its tile.
 */
#include "support.h"

#include "attn_case.h"

#define MOST 1.03

enum { FLAT, NORMAL, PEAKED, TAIL, N_KINDS };

static const char *const kind_names[N_KINDS] = {"sigma 0.1", "sigma 1", "sigma 4", "tail"};

/* Logits of about 0 for all tokens, about `logit` for one. */
static void make_tail(attn_case *c, float logit)
{
    const float top = logit / c->cfg.scale;

    for (size_t i = 0; i < c->q_stride; i++)
        c->q[i] *= 0.1f;
    for (uint32_t h = 0; h < c->n_kv; h++) {
        float *k = c->k + ((size_t)(c->n_tokens / 3) * c->n_kv + h) * c->d_k;
        const float *q = c->q + (size_t)h * c->group * c->d_k;
        float norm = 0;
        for (uint32_t j = 0; j < c->d_k; j++)
            norm += q[j] * q[j];
        for (uint32_t j = 0; j < c->d_k; j++)
            k[j] = q[j] * top / norm;
    }
}

static void assert_near_own(attn_case *c, const char *what)
{
    double *exact = malloc(c->n_out * sizeof *exact);
    double *decoded = malloc(c->n_out * sizeof *decoded);
    assert_true(exact && decoded);
    attn_case_oracle(c, exact, 1);
    attn_case_oracle(c, decoded, 0);
    attn_case_run(c);
    const double ours = attn_case_error(c, exact), added = attn_case_error(c, decoded);
    for (size_t j = 0; j < c->n_out; j++)
        c->out[j] = (float)decoded[j];
    const double own = attn_case_error(c, exact);
    if (!(own > 0 && ours <= MOST * own))
        fail_msg("%s %u/%u, %s: scheme %.6g, fused %.6g, fused against decoded %.3g", c->scheme,
                 c->d_k, c->d_v, what, own, ours, added);
    print_message("%-9s %3u/%-3u %-9s  scheme %.6f  fused %.6f  between them %.2g\n", c->scheme,
                  c->d_k, c->d_v, what, own, ours, added);
    free(exact);
    free(decoded);
}

static void assert_adds_little(const char *scheme, uint32_t d_k, uint32_t d_v, int kind)
{
    /* Errors of few peaked heads may add up by chance: small ones are more. */
    attn_case c = {.scheme = scheme,
                   .n_kv = kind == TAIL ? 1
                           : d_k < 128  ? 12
                                        : 3,
                   .group = 4,
                   .d_k = d_k,
                   .d_v = d_v,
                   .n_tokens = kind == TAIL ? 10001 : 1500,
                   .cfg.q_len = 1};
    attn_case_open(&c, 31 + (uint64_t)kind);
    if (kind == TAIL) {
        make_tail(&c, logf((float)c.n_tokens));
        attn_case_refill(&c);
    }
    for (size_t i = 0; kind != TAIL && i < c.q_stride; i++)
        c.q[i] *= kind == FLAT ? 0.1f : kind == PEAKED ? 4.0f : 1.0f;

    assert_near_own(&c, kind_names[kind]);
    attn_case_close(&c);
}

static void every_width_adds_little(void **state)
{
    static const char *const schemes[] = {
        "turbo2", "turbo3", "turbo4", "turbo5", "turbo6",   "turbo8",   "tcq2",       "tcq3",
        "tcq4",   "tcq5",   "tcq6",   "tcq3v6", "turbo0v8", "turbo8v2", "turbo4,mean"};

    (void)state;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            assert_adds_little(schemes[i], 128, 128, kind);
            if (kind == TAIL) /* long: rounding of weights knows no dimension */
                continue;
            assert_adds_little(schemes[i], 64, 64, kind);
            assert_adds_little(schemes[i], 256, 256, kind);
        }
}

/* One token of a tile has `ratio` times the weight of each of the 63 others: weights of one byte do
 * not hold some of those, and together they are a quarter of the whole at most. 16 heads, because
 * each tile errs in its own way. */
static void assert_crowd_is_kept(const char *scheme, float ratio)
{
    char what[32];
    attn_case c = {.scheme = scheme,
                   .n_kv = 16,
                   .group = 1,
                   .d_k = 128,
                   .d_v = 128,
                   .n_tokens = 64,
                   .cfg.q_len = 1};

    snprintf(what, sizeof what, "1/%.0f", (double)ratio);
    attn_case_open(&c, 77);
    make_tail(&c, logf(ratio));
    attn_case_refill(&c);
    assert_near_own(&c, what);
    attn_case_close(&c);
}

static void small_weights_of_a_tile_are_kept(void **state)
{
    static const char *const schemes[] = {"turbo2", "turbo3",     "turbo4",     "tcq2",   "tcq3",
                                          "tcq4",   "turbo:k8v2", "turbo:k8v3", "affine4"};
    static const float ratio[] = {200, 300, 400, 520, 700, 1000, 1500, 3000, 10000, 1000000};

    (void)state;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        for (size_t k = 0; k < sizeof ratio / sizeof ratio[0]; k++)
            assert_crowd_is_kept(schemes[i], ratio[k]);
}

/* Rows that are not made of whole registers, long rows, and the values of a latent cache. */
static void other_dimensions_too(void **state)
{
    (void)state;
    for (int kind = 0; kind < TAIL; kind++) {
        assert_adds_little("turbo4", 80, 96, kind);
        assert_adds_little("tcq3", 64, 40, kind);
        assert_adds_little("turbo8", 576, 512, kind);
        assert_adds_little("tcq5", 256, 192, kind);
    }
    static const char *const schemes[] = {"turbo3", "turbo6", "tcq2", "tcq4", "tcq6"};
    static const uint32_t dims[] = {32, 48, 64, 80, 96, 112, 144, 160};
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        for (size_t j = 0; j < sizeof dims / sizeof dims[0]; j++)
            assert_adds_little(schemes[i], dims[j], dims[j], NORMAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_adds_little),
        cmocka_unit_test(other_dimensions_too),
        cmocka_unit_test(small_weights_of_a_tile_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
