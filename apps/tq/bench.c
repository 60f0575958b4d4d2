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

/* ---- Dimensions -------------------------------------------------------------------------- */

static bool takes(const tq_scheme *s, uint32_t d_k, uint32_t d_v)
{
    size_t bytes;
    return tq_scheme_bytes_per_token(s, d_k, d_v, &bytes) == TQ_OK;
}

/* "16, 24 ... are possible", asked for each, so that it is true. 128 is one that all take. */
static void possible_dims(char *dst, size_t cap, const tq_scheme *s, bool of_values)
{
    size_t n = 0;
    bool all = true;
    dst[0] = '\0';
    for (uint32_t d = 1; d <= 1024; d++) {
        bool ok = of_values ? takes(s, 128, d) : takes(s, d, 128);
        all = all && ok == (d % 8 == 0 && d >= 16);
        if (ok && n < cap) {
            n += (size_t)snprintf(dst + n, cap - n, n ? ", %u" : "%u", d);
        }
    }
    if (all) {
        snprintf(dst, cap, "multiples of 8 from 16 to 1024");
    }
}

void bench_bad_dims(const char *name, const tq_scheme *scheme, uint32_t d_k, uint32_t d_v)
{
    tq_scheme f16;
    char list[8192];
    tq_scheme_parse(&f16, "f16", NULL, 0);
    const tq_scheme *s = scheme ? scheme : &f16;
    bool bad_k = !takes(s, d_k, 128);
    possible_dims(list, sizeof list, s, !bad_k);
    msg_error("%s%s: %s %u is not possible: %s are", scheme ? "--kv " : "",
              scheme ? name : "no scheme", bad_k ? "--dk" : "--dv", bad_k ? d_k : d_v, list);
}

/* ---- CSV --------------------------------------------------------------------------------- */

bool bench_csv_open(save_file *f, const char *file, const char *columns)
{
    *f = (save_file){0};
    if (file && (!save_check("--csv", file) || !save_open(f, "--csv", file))) {
        return false;
    }
    if (f->f) {
        fprintf(f->f, "cpu,isa,threads,load,%s\n", columns);
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
