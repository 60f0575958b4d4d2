/* SPDX-License-Identifier: MIT */
/* bench.h — what every benchmark says and writes alike: the machine, the load, CSV, statistics of
 * rounds. */
#ifndef TQ_APP_BENCH_H
#define TQ_APP_BENCH_H

#include "save.h"
#include "turboquant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { BENCH_MAX_ROUNDS = 1000 };

/* ---- Rounds: values [n], 1 <= n <= BENCH_MAX_ROUNDS ---- */

double bench_median(const double *v, size_t n);
double bench_least(const double *v, size_t n);
double bench_most(const double *v, size_t n);
/* Median of a[i] / b[i]: taken within each round, so that a moment of other work does not fall on
 * one side alone. */
double bench_ratio(const double *a, const double *b, size_t n);

/* ---- Where it was measured ---- */

typedef struct bench_machine {
    char cpu[128];
    char isa[64]; /* kernels: the best one, or all that are measured, "scalar, avx2" */
    uint32_t n_threads;
    double load; /* at the start; below 0: not known */
} bench_machine;

/* all_isas: every instruction set of the mask is measured, not the best one. */
void bench_machine_get(bench_machine *m, uint32_t isa_mask, bool all_isas, uint32_t n_threads);
/* The first line of every report, and warnings where other work is running or threads are more than
 * CPUs. */
void bench_put_machine(const bench_machine *m);

/* ---- Dimensions ---- */

/* The error for dimensions that a scheme does not take, with those that it does; scheme NULL: that
 * none of the default ones takes. */
void bench_bad_dims(const char *name, const tq_scheme *scheme, uint32_t d_k, uint32_t d_v);

/* ---- CSV: the machine's columns come first, in every file the same ---- */

/* NULL file: f stays closed and all is well. False: a message was written. */
bool bench_csv_open(save_file *f, const char *file, const char *columns);
/* "cpu,isa,threads,load," of a row; f NULL: nothing. */
void bench_csv_machine(FILE *f, const bench_machine *m);
/* A quoted field, without a comma. */
void bench_csv_text(FILE *f, const char *s);

#endif
