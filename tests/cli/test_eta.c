/* SPDX-License-Identifier: MIT */
/* test_eta.c — the rest of a prompt, foretold from batches whose cost is known. */
#include "eta.h"
#include "unit/support.h"

#include <math.h>

/* Seconds of the first n tokens. */
static double cost(double a, double b, size_t n)
{
    return a * (double)n + b * (double)n * (double)n;
}

static eta after(double a, double b, size_t batch, size_t n_done)
{
    eta e = {0};
    for (size_t n = batch; n <= n_done; n += batch) {
        eta_report(&e, n, cost(a, b, n));
    }
    return e;
}

static void near(double got, double want, double relative)
{
    if (fabs(got - want) > relative * want) {
        fail_msg("%g instead of %g", got, want);
    }
}

static void test_constant_cost(void **state)
{
    (void)state;
    for (size_t done = 512; done < 8192; done += 512) {
        eta e = after(0.001, 0, 512, done);
        near(eta_left(&e, 8192), cost(0.001, 0, 8192 - done), 1e-9);
    }
}

static void test_growing_cost(void **state)
{
    (void)state;
    const double a = 0.001, b = 1e-7;
    for (size_t done = 3 * 512; done < 32768; done += 512) {
        eta e = after(a, b, 512, done);
        near(eta_left(&e, 32768), cost(a, b, 32768) - cost(a, b, done), 1e-6);
    }
}

/* Batches that get faster (a cold start) never make the rest shrink below the mean rate. */
static void test_falling_cost(void **state)
{
    (void)state;
    eta e = {0};
    eta_report(&e, 100, 4.0);
    eta_report(&e, 200, 6.0);
    eta_report(&e, 300, 7.0);
    eta_report(&e, 400, 8.0);
    near(eta_left(&e, 800), 8.0, 1e-9);
}

static void test_nothing_known(void **state)
{
    (void)state;
    eta e = {0};
    assert_true(eta_left(&e, 100) == 0);
    eta_report(&e, 0, 1.0);
    eta_report(&e, 10, 0.0);
    assert_true(eta_left(&e, 100) == 0);
    eta_report(&e, 10, 1.0);
    assert_true(eta_left(&e, 10) == 0);
    near(eta_left(&e, 20), 1.0, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant_cost),
        cmocka_unit_test(test_growing_cost),
        cmocka_unit_test(test_falling_cost),
        cmocka_unit_test(test_nothing_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
