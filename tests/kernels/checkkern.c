/* SPDX-License-Identifier: MIT */
/* checkkern.c — harness of the kernel tests; see checkkern.h.
 *
 *   checkkern [--seed N] [--require ISA]... [--only ISA] [--skip MODULE]... [--filter TEXT]
 *             [--bench] [--csv]
 *
 * --skip MODULE leaves a module out: the tests of ctest are cut by it, since a module that is added
 * here then runs in all of them and not in none.
 * --only ISA: that one beside scalar; where it does not run, exit with 77, "skipped".
 * It prints which ISAs really ran: a test of a faster ISA that silently falls back passes without
 * testing anything, so a machine that must have one says --require.
 */
#define _DEFAULT_SOURCE /* mmap, clock_gettime */
#include "checkkern.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const ck_module *const modules[] = {&ck_module_tables, &ck_module_codec, &ck_module_attn,
                                           &ck_module_tile};

static const struct {
    const char *name;
    uint32_t isa;
} isa_names[] = {{"scalar", TQ_ISA_SCALAR},
                 {"avx2", TQ_ISA_AVX2},
                 {"avx512", TQ_ISA_AVX512},
                 {"neon", TQ_ISA_NEON}};

uint64_t ck_random(ck *t)
{
    uint64_t z = (t->seed += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t ck_below(ck *t, uint32_t n)
{
    return (uint32_t)((ck_random(t) >> 32) * n >> 32);
}

/* Box-Muller takes a logarithm and a cosine, in an emulator most of the time of the tests: it fills
 * a table, and a number is the sum of two entries, over sqrt(2). */
enum { N_NORMALS = 4096 };
static float normals[N_NORMALS];

static void fill_normals(void)
{
    ck t = {.seed = 1};
    for (int i = 0; i < N_NORMALS; i++) {
        double u = ((double)(ck_random(&t) >> 11) + 0.5) * 0x1p-53;
        double v = ((double)(ck_random(&t) >> 11) + 0.5) * 0x1p-53;
        normals[i] = (float)(sqrt(-log(u)) * cos(6.283185307179586 * v));
    }
}

float ck_normal(ck *t)
{
    uint64_t z = ck_random(t);
    return normals[z >> 52] + normals[z >> 40 & (N_NORMALS - 1)];
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void open_arenas(ck *t)
{
    size_t page = page_bytes();

    for (size_t i = 0; i < CK_ARENAS; i++) {
        uint8_t *p =
            mmap(NULL, CK_ARENA_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + page, CK_ARENA_BYTES, PROT_READ | PROT_WRITE) != 0) {
            perror("checkkern: guard pages");
            exit(2);
        }
        t->arenas[i] = p + page;
    }
}

static void close_arenas(ck *t)
{
    for (size_t i = 0; i < CK_ARENAS; i++)
        munmap(t->arenas[i] - page_bytes(), CK_ARENA_BYTES + 2 * page_bytes());
}

void *ck_buffer(ck *t, size_t arena, size_t bytes, int at_start)
{
    if (arena >= CK_ARENAS || bytes > CK_ARENA_BYTES) {
        fprintf(stderr, "checkkern: no buffer of %zu bytes in arena %zu\n", bytes, arena);
        exit(2);
    }
    uint8_t *p = t->arenas[arena] + (at_start ? 0 : CK_ARENA_BYTES - bytes);
    memset(p, 0x88, bytes);
    return p;
}

int ck_wants(const ck *t, const char *entry)
{
    return !t->filter || strstr(entry, t->filter) != NULL;
}

void ck_check(ck *t, int ok, const char *entry, const char *isa, const char *fmt, ...)
{
    va_list args;

    t->n_checks++;
    if (ok)
        return;
    t->n_failed++;
    if (t->n_failed > 20)
        return; /* the first ones tell enough */
    printf("FAIL %s on %s: ", entry, isa);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}

int ck_same_floats(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i]))
            continue;
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            return 0;
    }
    return 1;
}

/* ---- Time ---- */

static double now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* Clock rate: dependent adds take one cycle each. The asm keeps the compiler from folding them. */
static double measure_ghz(void)
{
    double best = 0;
    for (int round = 0; round < 9; round++) {
        uint64_t x = 1;
        const int n = 4000000;
        double start = now_ns();
        for (int i = 0; i < n / 8; i++) {
            for (int j = 0; j < 8; j++) {
                x += x;
                __asm__ volatile("" : "+r"(x));
            }
        }
        double ghz = n / (now_ns() - start);
        best = ghz > best ? ghz : best;
    }
    return best;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double ck_bench(ck *t, const char *entry, const char *isa, void (*call)(void *arg), void *arg,
                double elements, double bytes)
{
    enum { BATCHES = 21 };
    double ns[BATCHES];
    int calls = 1;

    for (;;) { /* a batch lasts about 1 ms */
        double start = now_ns();
        for (int i = 0; i < calls; i++)
            call(arg);
        if (now_ns() - start > 1e6 || calls > 1 << 24)
            break;
        calls *= 2;
    }
    for (int batch = 0; batch < BATCHES; batch++) {
        double start = now_ns();
        for (int i = 0; i < calls; i++)
            call(arg);
        ns[batch] = (now_ns() - start) / calls;
    }
    qsort(ns, BATCHES, sizeof ns[0], by_value);
    double median = ns[BATCHES / 2];
    printf(t->csv ? "%s,%s,%.1f,%.3f,%.3f\n"
                  : "%-22s %-7s %11.1f ns %8.3f cycles/element %7.2f GB/s\n",
           entry, isa, median, median * t->ghz / elements, bytes / median);
    return median;
}

/* ---- The program ---- */

/* only: NULL, or the one ISA to take beside scalar. */
const tq_kernels *ck_kernels(const ck *t, size_t i, const tq_codec *c)
{
    const tq_kernels *k = t->isas[i].kernels;
    const tq_kernels *grouped = tq_kernels_grouped(k->isa, c->dim);
    const int is_grouped = c->format >= TQ_FMT_AFFINE_K2 && c->format <= TQ_FMT_LLOYD_V8;

    return !is_grouped || grouped == tq_kernels_get(k->isa) ? k : grouped;
}

static void find_isas(ck *t, const char *only)
{
    uint32_t here = tq_isa_detect();

    printf("ISAs that run:");
    for (size_t i = 0; i < sizeof(isa_names) / sizeof(isa_names[0]); i++) {
        if (!(here & isa_names[i].isa))
            continue;
        if (only && isa_names[i].isa != TQ_ISA_SCALAR && strcmp(only, isa_names[i].name) != 0)
            continue;
        const tq_kernels *k = tq_kernels_get(isa_names[i].isa);
        if (k->isa != isa_names[i].isa)
            continue; /* detected, but this build has no table for it */
        t->isas[t->n_isas++] = (ck_isa){isa_names[i].name, k};
        printf(" %s", isa_names[i].name);
    }
#if defined(TQ_HAVE_AVX512)
    /* Where the cluster with VNNI serves the ISA, the plain one runs too. */
    if (t->n_isas && t->isas[t->n_isas - 1].kernels == &tq_kernels_avx512_vnni) {
        t->isas[t->n_isas++] = (ck_isa){"avx512-plain", &tq_kernels_avx512};
        printf(" avx512-plain");
    }
#endif
    printf("; seed %llu\n", (unsigned long long)t->started);
}

static int runs(const ck *t, const char *isa)
{
    for (size_t i = 0; i < t->n_isas; i++)
        if (strcmp(t->isas[i].name, isa) == 0)
            return 1;
    return 0;
}

/* -1: there is none of that name. */
static int module_index(const char *name)
{
    for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
        if (strcmp(modules[i]->name, name) == 0)
            return (int)i;
    return -1;
}

int main(int argc, char **argv)
{
    ck t = {.seed = 20260729};
    const char *required[CK_MAX_ISAS];
    size_t n_required = 0;
    const char *only = NULL;
    int skipped[sizeof(modules) / sizeof(modules[0])] = {0};
    int bench = 0;

    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--bench") == 0) {
            bench = 1;
        } else if (strcmp(argv[i], "--csv") == 0) {
            t.csv = 1;
        } else if (strcmp(argv[i], "--seed") == 0 && value) {
            t.seed = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--filter") == 0 && value) {
            t.filter = argv[++i];
        } else if (strcmp(argv[i], "--require") == 0 && value && n_required < CK_MAX_ISAS) {
            required[n_required++] = argv[++i];
        } else if (strcmp(argv[i], "--only") == 0 && value) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--skip") == 0 && value && module_index(value) >= 0) {
            skipped[module_index(argv[++i])] = 1;
        } else {
            fprintf(stderr, "usage: checkkern [--seed N] [--require ISA] [--only ISA] "
                            "[--skip tables|codec|attn|tile] [--filter TEXT] [--bench] [--csv]\n");
            return 2;
        }
    }
    t.started = t.seed;
    find_isas(&t, only);
    if (only && !runs(&t, only)) {
        fprintf(stderr, "checkkern: NOT TESTED: %s does not run on this machine\n", only);
        return 77;
    }
    for (size_t i = 0; i < n_required; i++) {
        if (!runs(&t, required[i])) {
            fprintf(stderr, "checkkern: %s is required and does not run here\n", required[i]);
            return 1;
        }
    }

    open_arenas(&t);
    fill_normals();
    if (bench) {
        t.ghz = measure_ghz();
        printf("clock %.2f GHz\n", t.ghz);
        if (t.csv)
            printf("entry,isa,ns,cycles_per_element,gb_per_s\n");
    }
    for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
        unsigned long before = t.n_checks;
        if (skipped[i])
            continue;
        if (bench) {
            modules[i]->bench(&t);
            continue;
        }
        modules[i]->check(&t);
        printf("%s: %lu checks\n", modules[i]->name, t.n_checks - before);
    }
    close_arenas(&t);
    if (!bench && t.n_checks == 0) {
        fprintf(stderr, "checkkern: nothing was checked\n");
        return 1;
    }
    printf("%s\n", t.n_failed ? "FAILED" : "ok");
    return t.n_failed != 0;
}
