/* SPDX-License-Identifier: MIT */
/* weigh_oracle.h — weighted sums of stored values in float64, and what kernels.h lets a kernel lose
 * of them by rounding weights and the numbers that stand for codes. */
#ifndef TQ_TESTS_WEIGH_ORACLE_H
#define TQ_TESTS_WEIGH_ORACLE_H

#include "codec.h"
#include "cpu/kernels.h"

enum { CK_MAX_DIM = 1024 };

/* What a sum over a tile may lose by rounding: at most, and as a standard deviation. */
typedef struct ck_rounding {
    double most, sigma;
} ck_rounding;

/* What kernels.h allows for values of a format, in units of the group scale. */
typedef struct ck_allowance {
    tq_format format;
    int shared;         /* all groups have the steps of the largest scale */
    double top;         /* largest integer weight */
    double weight_sum;  /* of integer weights */
    double most, sigma; /* of a number that stands for a code */
    double middle;      /* code that is 0, of uniform groups */
} ck_allowance;

/* Of a format of values, or NULL: nothing is rounded. */
const ck_allowance *ck_allowance_of(const tq_codec *v);

/* What rounding may do to a value, apart from the weights: the values without offset, in units of
 * their scale, and the sums of their magnitudes and squares over the tokens. */
typedef struct ck_value_codes {
    double code[TQ_TILE][CK_MAX_DIM], sum1[CK_MAX_DIM], sum2[CK_MAX_DIM];
    double scale[TQ_TILE][CK_MAX_DIM / 16]; /* of the groups */
    double step[TQ_TILE];                   /* the scale that a row of weights is rounded for */
    double added[TQ_TILE][CK_MAX_DIM / 16]; /* of uniform groups: what is summed apart */
} ck_value_codes;

/* Of n rows of a tile, rows [n][dim] decoded (rotated formats: still rotated). */
void ck_read_values(ck_value_codes *c, const ck_allowance *a, const tq_codec *v, tq_const_planes p,
                    const float *rows, uint32_t n);

/* What the oracle says of a row of sums: the results, the sums of |terms|, the rounding allowed. */
typedef struct ck_weighed {
    double want[CK_MAX_DIM], terms[CK_MAX_DIM];
    ck_rounding extra[CK_MAX_DIM];
} ck_weighed;

/* o: alpha * first [dim] + the rows times w [n]. a: NULL where nothing is rounded; codes is not
 * read then. */
void ck_oracle_weigh(ck_weighed *o, const ck_allowance *a, const ck_value_codes *codes,
                     const tq_codec *v, const float *w, double alpha, const float *first,
                     const float *rows, uint32_t n);

#endif
