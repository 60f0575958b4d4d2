/* SPDX-License-Identifier: MIT */
/* eval_math.h — the statistics of an evaluation: divergences of distributions, quantiles, and
 * intervals over windows. Plain doubles; knows no model. docs/quality.md says why these.
 */
#ifndef TQE_EVAL_MATH_H
#define TQE_EVAL_MATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* log of the sum of exp(x[i]), n >= 1, in double. */
double tqe_log_sum_exp(const float *x, size_t n);

/* p[i] = exp(x[i] - lse), lse of tqe_log_sum_exp. */
void tqe_softmax(const float *x, size_t n, double lse, double *p);

/* KL(p || q) in nats: p are the probabilities of logits x with x_lse, q those of logits y with
 * y_lse. Exactly 0 when y equals x. Elements of p that underflow to 0 add 0. */
double tqe_kl(const double *p, const float *x, double x_lse, const float *y, double y_lse,
              size_t n);

/* Index of the largest; the lowest index wins a tie. */
size_t tqe_argmax(const float *x, size_t n);

/* Quantile 0 <= q <= 1 by linear interpolation between order statistics (Hyndman and Fan's type
 * 7). Sorts x [n], n >= 1. */
double tqe_quantile(double *x, size_t n, double q);

/* Two-sided quantile of Student's t: P(|T| <= t) = confidence, 0 < confidence < 1, dof >= 1. */
double tqe_student_t(double confidence, size_t dof);

/* A value and its 95 % confidence interval; low and high are NaN where there is none. */
typedef struct tqe_estimate {
    double value, low, high;
} tqe_estimate;

/* Mean of x [n], n >= 1, with Student's t interval; none for n == 1. */
tqe_estimate tqe_mean(const double *x, size_t n);

/* Geometric mean of a[i] / b[i], with the t interval of its logarithm: paired, so that what all
 * windows have in common cancels. All NaN when an element is not above 0. */
tqe_estimate tqe_ratio(const double *a, const double *b, size_t n);

/* exp of each part. */
tqe_estimate tqe_exp_estimate(tqe_estimate e);

/* Fraction of n with Wilson's 95 % interval; NaN for n == 0. */
tqe_estimate tqe_fraction(size_t hits, size_t n);

/* FNV-1a, 64 bits, of bytes after those in h; start with TQE_HASH_INIT. Notices accidents, not
 * attackers. */
#define TQE_HASH_INIT 0xcbf29ce484222325u
uint64_t tqe_hash(uint64_t h, const void *data, size_t n);

#endif
