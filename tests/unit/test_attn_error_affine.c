/* SPDX-License-Identifier: MIT */
/* test_attn_error_affine.c — what the integers of attention cost on affine keys, Lloyd values and
 * uniform groups.
 *
 * Queries, weights and centroids are rounded there (src/cpu/kernels.h). Against float64 over the
 * rows as they were before encoding, the fused path may add at most 3 % to the error that decoded
 * rows have in float64: the scheme's own. On logits of deviation 0.1, 1 and 4, on one dominant
 * token before ten thousand small ones that together weigh as much, on values with a common mean
 * (rounding errors of many small weights must not add up), and on a channel of queries and keys
 * that is much larger than the others.
 */
#include "support.h"

#include "attn_case.h"

#define MOST 1.03
/* Of the scheme's own error, what is between the fused path and decoded rows: in the square 1.4 %,
 * and 2.3 % for the 64 fractions of v8. */
#define APART    0.12
#define APART_V8 0.15

enum { FLAT, NORMAL, PEAKED, TAIL, MEAN, CHANNEL, N_KINDS };

static const char *const kind_names[N_KINDS] = {"sigma 0.1", "sigma 1", "sigma 4",
                                                "tail",      "mean",    "channel"};

/* Logit 0 for all tokens, about log(n) for one. */
static void make_tail(attn_case *c)
{
    const float top = logf((float)c->n_tokens) / c->cfg.scale;

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

static void shape(attn_case *c, int kind)
{
    const size_t n_k = (size_t)c->n_tokens * c->n_kv * c->d_k;
    const size_t n_v = (size_t)c->n_tokens * c->n_kv * c->d_v;
    const float factor = kind == FLAT ? 0.1f : kind == PEAKED ? 4.0f : 1.0f;

    for (size_t i = 0; i < c->q_stride; i++)
        c->q[i] *= factor;
    if (kind == TAIL)
        make_tail(c);
    for (size_t i = 0; kind == MEAN && i < n_v; i++)
        c->v[i] += i % 3 ? 0.5f : -1.0f;
    for (size_t i = 0; kind == CHANNEL && i < c->q_stride; i += c->d_k)
        c->q[i + 5] *= 30;
    for (size_t i = 0; kind == CHANNEL && i < n_k; i += c->d_k)
        c->k[i + 5] += 20;
}

static void assert_adds_little(const char *scheme, uint32_t d, int kind)
{
    attn_case c = {.scheme = scheme,
                   .n_kv = 2,
                   .group = 4,
                   .d_k = d,
                   .d_v = d,
                   .n_tokens = kind == TAIL ? 10001 : 1500,
                   .cfg.q_len = 1};
    attn_case_open(&c, 31 + (uint64_t)kind);
    shape(&c, kind);
    attn_case_refill(&c);

    double *exact = malloc(c.n_out * sizeof *exact);
    double *decoded = malloc(c.n_out * sizeof *decoded);
    assert_true(exact && decoded);
    attn_case_oracle(&c, exact, 1);
    attn_case_oracle(&c, decoded, 0);
    attn_case_run(&c);
    const double ours = attn_case_error(&c, exact), added = attn_case_error(&c, decoded);
    for (size_t j = 0; j < c.n_out; j++)
        c.out[j] = (float)decoded[j];
    const double own = attn_case_error(&c, exact);
    print_message("%-12s %3u %-9s  scheme %.6f  fused %.6f  between them %.2g\n", scheme, d,
                  kind_names[kind], own, ours, added);
    if (!(own > 0 && ours <= MOST * own))
        fail_msg("%s %u, %s: more than 3 %%", scheme, d, kind_names[kind]);
    if (!(added <= (strstr(scheme, "v8") ? APART_V8 : APART) * own))
        fail_msg("%s %u, %s: too far from decoded rows", scheme, d, kind_names[kind]);
    free(exact);
    free(decoded);
    attn_case_close(&c);
}

static void every_width_adds_little(void **state)
{
    static const char *const schemes[] = {"turbo:k8v2", "turbo:k8v3", "turbo:k8v4", "turbo:k8v5",
                                          "turbo:k8v8", "turbo:k5v8", "turbo:k4v4", "turbo:k2v2",
                                          "affine4",    "affine8"};

    (void)state;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        for (int kind = 0; kind < N_KINDS; kind++)
            assert_adds_little(schemes[i], 128, kind);
}

/* Rows whose last group is short, or has no partner. */
static void other_dimensions_too(void **state)
{
    static const char *const schemes[] = {"turbo:k8v3", "turbo:k4v4", "turbo:k5v5", "turbo:k8v8",
                                          "turbo:k2v2", "affine4g32", "affine8g128"};
    static const uint32_t dims[] = {32, 48, 80, 96, 112, 160, 192};

    (void)state;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        for (size_t j = 0; j < sizeof dims / sizeof dims[0]; j++)
            for (int kind = 0; kind < TAIL; kind++)
                assert_adds_little(schemes[i], dims[j], kind);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_adds_little),
        cmocka_unit_test(other_dimensions_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
