/* SPDX-License-Identifier: MIT */
/* bench.c — what every benchmark says and writes alike.
 *
 * Policy: a number without its machine, kernels, threads and load is worth nothing, so no benchmark
 * prints a table or writes a row without them.
 */
#include "bench.h"

#include "machine.h"
#include "out.h"
#include "setup.h"
#include "turboquant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Rounds ------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *v, size_t n)
{
    double sorted[BENCH_MAX_ROUNDS];
    memcpy(sorted, v, n * sizeof *v);
    qsort(sorted, n, sizeof *sorted, compare);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double bench_least(const double *v, size_t n)
{
    double least = v[0];
    for (size_t i = 1; i < n; i++) {
        least = v[i] < least ? v[i] : least;
    }
    return least;
}

double bench_most(const double *v, size_t n)
{
    double most = v[0];
    for (size_t i = 1; i < n; i++) {
        most = v[i] > most ? v[i] : most;
    }
    return most;
}

double bench_ratio(const double *a, const double *b, size_t n)
{
    double ratio[BENCH_MAX_ROUNDS];
    for (size_t i = 0; i < n; i++) {
        ratio[i] = a[i] / b[i];
    }
    return bench_median(ratio, n);
}

/* ---- Machine ----------------------------------------------------------------------------- */

void bench_machine_get(bench_machine *m, uint32_t isa_mask, bool all_isas, uint32_t n_threads)
{
    machine_cpu(m->cpu);
    if (all_isas) {
        setup_isa_names(m->isa, isa_mask & (tq_isa_detect() | TQ_ISA_SCALAR));
    } else {
        snprintf(m->isa, sizeof m->isa, "%s", setup_isa_best(isa_mask));
    }
    m->n_threads = n_threads;
    m->load = machine_load();
}

void bench_put_machine(const bench_machine *m)
{
    char load[32] = "";
    if (m->load >= 0) {
        snprintf(load, sizeof load, ", load %.1f", m->load);
    }
    out_printf("%s; %s kernels, %u %s%s\n", m->cpu, m->isa, m->n_threads,
               m->n_threads == 1 ? "thread" : "threads", load);
    out_flush();
    setup_warn_threads(m->n_threads);
    if (m->load > 0.5) {
        msg_warn("other work is running (load average %.1f): expect low and uneven speeds",
                 m->load);
    }
}

/* ---- CSV --------------------------------------------------------------------------------- */

static bool cannot_write(const char *file)
{
    msg_error("--csv: cannot write '%s': %s", file, strerror(errno));
    return false;
}

bool bench_csv_open(FILE **f, const char *file, const char *columns)
{
    *f = file ? fopen(file, "w") : NULL;
    if (file && !*f) {
        return cannot_write(file);
    }
    if (*f) {
        fprintf(*f, "cpu,isa,threads,load,%s\n", columns);
    }
    return true;
}

void bench_csv_text(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"') {
            fputc('"', f);
        }
        fputc(*s, f);
    }
    fputc('"', f);
}

void bench_csv_machine(FILE *f, const bench_machine *m)
{
    if (f) {
        bench_csv_text(f, m->cpu);
        fputc(',', f);
        bench_csv_text(f, m->isa);
        fprintf(f, ",%u,%.2f,", m->n_threads, m->load);
    }
}

bool bench_csv_flush(FILE *f, const char *file)
{
    return !f || fflush(f) == 0 || cannot_write(file);
}

bool bench_csv_close(FILE *f, const char *file)
{
    return !f || fclose(f) == 0 || cannot_write(file);
}
