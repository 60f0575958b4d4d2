/* SPDX-License-Identifier: MIT */
/* eval_math.c — the statistics of an evaluation.
 *
 * Policy: all sums in double, in index order, so that two runs give equal bits. The one hard idea:
 * KL of nearly equal distributions. As a difference of two entropies it would cancel to noise; the
 * terms p (log p - log q) are small each, and the error of their sum is of second order in the
 * rounding of the log-probabilities.
 */
#include "eval_math.h"

#include <math.h>
#include <stdlib.h>

double tqe_log_sum_exp(const float *x, size_t n)
{
    float max = x[0];
    for (size_t i = 1; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - (double)max);
    }
    return (double)max + log(sum);
}

void tqe_softmax(const float *x, size_t n, double lse, double *p)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = exp((double)x[i] - lse);
    }
}

double tqe_kl(const double *p, const float *x, double x_lse, const float *y, double y_lse, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += p[i] * (((double)x[i] - x_lse) - ((double)y[i] - y_lse));
    }
    return sum;
}

size_t tqe_argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double tqe_quantile(double *x, size_t n, double q)
{
    qsort(x, n, sizeof(*x), compare);
    const double at = q * (double)(n - 1);
    const size_t i = (size_t)at;
    if (i + 1 >= n) {
        return x[n - 1];
    }
    return x[i] + (at - (double)i) * (x[i + 1] - x[i]);
}

/* ---- Student's t ------------------------------------------------------------------------------
 */

/* Regularised incomplete beta I_x(a, b) for x < (a + 1) / (a + b + 2), by the continued fraction
 * of Abramowitz and Stegun 26.5.8, evaluated by Lentz's method. */
static double beta_fraction(double x, double a, double b)
{
    const double tiny = 1e-300;
    double c = 1;
    double d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double h = d;
    for (int m = 1; m <= 500; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        double change = 1;
        for (int k = 0; k < 2; k++) {
            const double t = k == 0 ? even : odd;
            d = 1 + t * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + t / c;
            c = fabs(c) < tiny ? tiny : c;
            change = c * d;
            h *= change;
        }
        if (fabs(change - 1) < 1e-15) {
            break;
        }
    }
    return h * exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a;
}

static double beta_regularised(double x, double a, double b)
{
    if (x <= 0 || x >= 1) {
        return x <= 0 ? 0 : 1;
    }
    return x < (a + 1) / (a + b + 2) ? beta_fraction(x, a, b) : 1 - beta_fraction(1 - x, b, a);
}

double tqe_student_t(double confidence, size_t dof)
{
    /* P(|T| > t) = I_x(dof / 2, 1 / 2) at x = dof / (dof + t^2), which falls as t grows. */
    const double n = (double)dof;
    double low = 0;
    double high = 1;
    while (high < 1e12 && 1 - beta_regularised(n / (n + high * high), n / 2, 0.5) < confidence) {
        high *= 2;
    }
    for (int i = 0; i < 200; i++) {
        const double t = 0.5 * (low + high);
        if (1 - beta_regularised(n / (n + t * t), n / 2, 0.5) < confidence) {
            low = t;
        } else {
            high = t;
        }
    }
    return 0.5 * (low + high);
}

/* ---- Estimates --------------------------------------------------------------------------------
 */

tqe_estimate tqe_mean(const double *x, size_t n)
{
    tqe_estimate e = {0, NAN, NAN};
    for (size_t i = 0; i < n; i++) {
        e.value += x[i];
    }
    e.value /= (double)n;
    if (n < 2) {
        return e;
    }
    double ssq = 0;
    for (size_t i = 0; i < n; i++) {
        ssq += (x[i] - e.value) * (x[i] - e.value);
    }
    const double half = tqe_student_t(0.95, n - 1) * sqrt(ssq / (double)(n - 1)) / sqrt((double)n);
    e.low = e.value - half;
    e.high = e.value + half;
    return e;
}

tqe_estimate tqe_ratio(const double *a, const double *b, size_t n)
{
    const tqe_estimate none = {NAN, NAN, NAN};
    double *logs = malloc(n * sizeof(*logs));
    if (logs == NULL) {
        return none;
    }
    bool ok = n > 0;
    for (size_t i = 0; i < n; i++) {
        ok = ok && a[i] > 0 && b[i] > 0;
        logs[i] = ok ? log(a[i] / b[i]) : 0;
    }
    const tqe_estimate e = ok ? tqe_exp_estimate(tqe_mean(logs, n)) : none;
    free(logs);
    return e;
}

tqe_estimate tqe_exp_estimate(tqe_estimate e)
{
    const tqe_estimate out = {exp(e.value), exp(e.low), exp(e.high)};
    return out;
}

tqe_estimate tqe_fraction(size_t hits, size_t n)
{
    tqe_estimate e = {NAN, NAN, NAN};
    if (n == 0) {
        return e;
    }
    const double z = 1.959963984540054; /* the normal's 97.5 % quantile */
    const double m = (double)n;
    const double p = (double)hits / m;
    const double centre = (p + z * z / (2 * m)) / (1 + z * z / m);
    const double half = z * sqrt(p * (1 - p) / m + z * z / (4 * m * m)) / (1 + z * z / m);
    e.value = p;
    e.low = centre - half;
    e.high = centre + half;
    return e;
}

uint64_t tqe_hash(uint64_t h, const void *data, size_t n)
{
    const uint8_t *s = data;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ s[i]) * 0x100000001b3u;
    }
    return h;
}
