/* SPDX-License-Identifier: MIT */
/* test_eval_math.c — the statistics of an evaluation against values from tables and from closed
 * forms. */
#include "eval_math.h"
#include "unit/support.h"

static void near_to(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("%.17g instead of %.17g", got, want);
    }
}

static double kl_of(const float *x, const float *y, size_t n)
{
    double p[64];
    const double x_lse = tqe_log_sum_exp(x, n);
    tqe_softmax(x, n, x_lse, p);
    return tqe_kl(p, x, x_lse, y, tqe_log_sum_exp(y, n), n);
}

static void test_log_sum_exp(void **state)
{
    (void)state;
    const float equal[4] = {2, 2, 2, 2};
    const float huge[2] = {1e30f, 1e30f};
    const float far[2] = {-1000, 1000};
    const float one[1] = {-7};
    near_to(tqe_log_sum_exp(equal, 4), 2 + log(4), 1e-15);
    near_to(tqe_log_sum_exp(huge, 2), (double)1e30f, 0); /* log 2 is lost in 1e30 */
    near_to(tqe_log_sum_exp(far, 2), 1000, 0);
    near_to(tqe_log_sum_exp(one, 1), -7, 0);
}

static void test_softmax(void **state)
{
    (void)state;
    const float x[3] = {0.0f, 1.0f, -200.0f};
    double p[3];
    tqe_softmax(x, 3, tqe_log_sum_exp(x, 3), p);
    near_to(p[0], 1 / (1 + exp(1)), 1e-15);
    near_to(p[1], exp(1) / (1 + exp(1)), 1e-15);
    near_to(p[0] + p[1] + p[2], 1, 1e-15);
}

/* Two outcomes: KL = p log(p/q) + (1-p) log((1-p)/(1-q)). A constant added to all logits changes
 * nothing; KL is not symmetric. */
static void test_kl(void **state)
{
    (void)state;
    const double p = 0.25;
    const double q = 0.4;
    const float x[2] = {(float)log(p), (float)log(1 - p)};
    const float y[2] = {(float)(log(q) + 5), (float)(log(1 - q) + 5)};
    near_to(kl_of(x, y, 2), p * log(p / q) + (1 - p) * log((1 - p) / (1 - q)), 1e-6);
    near_to(kl_of(y, x, 2), q * log(q / p) + (1 - q) * log((1 - q) / (1 - p)), 1e-6);
    assert_true(kl_of(x, x, 2) == 0);
}

/* Small differences: KL is half of the variance of the change, here known to 1e-14 of 1e-11. */
static void test_kl_is_not_noise(void **state)
{
    (void)state;
    enum { N = 64 };
    uint64_t seed = 7;
    float x[N];
    float y[N];
    double mean = 0;
    double var = 0;
    double p[N];
    for (size_t i = 0; i < N; i++) {
        x[i] = (float)(4 * test_normal(&seed));
        y[i] = x[i] + (float)(1e-5 * test_normal(&seed));
    }
    tqe_softmax(x, N, tqe_log_sum_exp(x, N), p);
    for (size_t i = 0; i < N; i++) {
        mean += p[i] * ((double)y[i] - (double)x[i]);
    }
    for (size_t i = 0; i < N; i++) {
        const double d = ((double)y[i] - (double)x[i]) - mean;
        var += p[i] * d * d;
    }
    near_to(kl_of(x, y, N) / (var / 2), 1, 1e-4);
}

static void test_argmax(void **state)
{
    (void)state;
    const float x[5] = {-1, 3, 2, 3, -8};
    assert_int_equal(tqe_argmax(x, 5), 1);
    assert_int_equal(tqe_argmax(x + 4, 1), 0);
}

static void test_quantile(void **state)
{
    (void)state;
    double x[5] = {5, 1, 4, 2, 3};
    near_to(tqe_quantile(x, 5, 0), 1, 0);
    near_to(tqe_quantile(x, 5, 0.5), 3, 0);
    near_to(tqe_quantile(x, 5, 0.9), 4.6, 1e-12);
    near_to(tqe_quantile(x, 5, 1), 5, 0);
    double one[1] = {9};
    near_to(tqe_quantile(one, 1, 0.99), 9, 0);
}

/* Source: the printed tables of the t distribution. */
static void test_student(void **state)
{
    (void)state;
    near_to(tqe_student_t(0.95, 1), 12.7062, 1e-4);
    near_to(tqe_student_t(0.95, 2), 4.3027, 1e-4);
    near_to(tqe_student_t(0.95, 5), 2.5706, 1e-4);
    near_to(tqe_student_t(0.95, 15), 2.1314, 1e-4);
    near_to(tqe_student_t(0.95, 30), 2.0423, 1e-4);
    near_to(tqe_student_t(0.95, 100000), 1.9600, 1e-4);
    near_to(tqe_student_t(0.99, 10), 3.1693, 1e-4);
    near_to(tqe_student_t(0.5, 3), 0.7649, 1e-4);
}

static void test_mean(void **state)
{
    (void)state;
    const double x[4] = {1, 2, 3, 6}; /* mean 3, sample variance 14/3 */
    const tqe_estimate e = tqe_mean(x, 4);
    near_to(e.value, 3, 1e-15);
    near_to(e.high - e.value, 3.1824 * sqrt(14.0 / 3) / 2, 1e-3);
    near_to(e.high + e.low, 6, 1e-12);
    const tqe_estimate one = tqe_mean(x, 1);
    assert_true(one.value == 1 && isnan(one.low) && isnan(one.high));
}

/* The interval holds the true mean in 95 % of many draws: 20000 of 4 normal values each. */
static void test_coverage(void **state)
{
    (void)state;
    enum { DRAWS = 20000 };
    uint64_t seed = 3;
    int n_held = 0;
    for (int i = 0; i < DRAWS; i++) {
        double x[2] = {test_normal(&seed), test_normal(&seed)};
        const tqe_estimate e = tqe_mean(x, 2);
        n_held += e.low <= 0 && e.high >= 0;
    }
    near_to((double)n_held / DRAWS, 0.95, 0.006); /* four standard errors */
}

static void test_ratio(void **state)
{
    (void)state;
    const double b[3] = {1, 10, 100};
    const double a[3] = {0.5, 5, 50};
    const double c[3] = {2, 10, 50};
    tqe_estimate e = tqe_ratio(a, b, 3); /* what all have in common cancels */
    near_to(e.value, 0.5, 1e-12);
    near_to(e.high, 0.5, 1e-12);
    e = tqe_ratio(c, b, 3);
    near_to(e.value, 1, 1e-12);
    near_to(e.low * e.high, 1, 1e-9);
    assert_true(e.high > 1);
    const double zero[3] = {1, 0, 1};
    assert_true(isnan(tqe_ratio(zero, b, 3).value));
    assert_true(isnan(tqe_ratio(b, zero, 3).value));
}

/* Source: Wilson's formula worked by hand for 8 of 10. */
static void test_fraction(void **state)
{
    (void)state;
    const tqe_estimate e = tqe_fraction(8, 10);
    near_to(e.value, 0.8, 1e-15);
    near_to(e.low, 0.4902, 1e-4);
    near_to(e.high, 0.9433, 1e-4);
    near_to(tqe_fraction(10, 10).high, 1, 1e-12);
    assert_true(isnan(tqe_fraction(0, 0).value));
}

/* Source: the published test vectors of FNV-1a. */
static void test_hash(void **state)
{
    (void)state;
    assert_true(tqe_hash(TQE_HASH_INIT, "", 0) == 0xcbf29ce484222325u);
    assert_true(tqe_hash(TQE_HASH_INIT, "a", 1) == 0xaf63dc4c8601ec8cu);
    assert_true(tqe_hash(TQE_HASH_INIT, "foobar", 6) == 0x85944171f73967e8u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_sum_exp), cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_kl),          cmocka_unit_test(test_kl_is_not_noise),
        cmocka_unit_test(test_argmax),      cmocka_unit_test(test_quantile),
        cmocka_unit_test(test_student),     cmocka_unit_test(test_mean),
        cmocka_unit_test(test_coverage),    cmocka_unit_test(test_ratio),
        cmocka_unit_test(test_fraction),    cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
