/* SPDX-License-Identifier: MIT */
/* bench_codec.c — `tq bench codec`: speed of compressing and expanding vectors, per format, effort
 * and instruction set, through the public API that an embedder calls.
 *
 * Policy: encoders read their rows from memory: each call takes the next rows of a buffer larger
 * than the last cache, so the read bandwidth beside them is the bound. Decoders write rows that
 * stay in a cache. The instruction sets take turns within each round and the median over the rounds
 * is shown, so that a moment of other work does not fall on one of them alone; beside it the best
 * round, for machines that others share.
 */
#define _DEFAULT_SOURCE /* sysconf's cache sizes */
#include "args.h"
#include "bench.h"
#include "commands.h"
#include "machine.h"
#include "out.h"
#include "plot.h"
#include "setup.h"
#include "text.h"
#include "turboquant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_ROWS = 256, MAX_ROUNDS = BENCH_MAX_ROUNDS, MAX_ISAS = 4 };

static const struct format {
    tq_format format;
    const char *name;
    uint32_t flags;
} formats[] = {
    {TQ_FMT_F16, "f16", 0},
    {TQ_FMT_BF16, "bf16", 0},
    {TQ_FMT_AFFINE_K2, "keys, k2", 0},
    {TQ_FMT_AFFINE_K4, "keys, k4", 0},
    {TQ_FMT_AFFINE_K5, "keys, k5", 0},
    {TQ_FMT_AFFINE_K8, "keys, k8", 0},
    {TQ_FMT_LLOYD_V2, "values, v2", 0},
    {TQ_FMT_LLOYD_V3, "values, v3", 0},
    {TQ_FMT_LLOYD_V4, "values, v4", 0},
    {TQ_FMT_LLOYD_V5, "values, v5", 0},
    {TQ_FMT_LLOYD_V8, "values, v8", 0},
#define EFFORTS(format, name)                                                                      \
    {format, name " n=1", TQ_CODEC_EFFORT_1}, {format, name " n=3", TQ_CODEC_EFFORT_3},            \
    {                                                                                              \
        format, name " n=12", TQ_CODEC_EFFORT_12                                                   \
    }
    EFFORTS(TQ_FMT_NORM2, "turbo2"),
    EFFORTS(TQ_FMT_NORM3, "turbo3"),
    EFFORTS(TQ_FMT_NORM4, "turbo4"),
    EFFORTS(TQ_FMT_NORM5, "turbo5"),
    EFFORTS(TQ_FMT_NORM6, "turbo6"),
    {TQ_FMT_NORM8, "turbo8", 0},
    EFFORTS(TQ_FMT_TCQ2, "tcq2"),
    EFFORTS(TQ_FMT_TCQ3, "tcq3"),
    EFFORTS(TQ_FMT_TCQ4, "tcq4"),
    EFFORTS(TQ_FMT_TCQ5, "tcq5"),
    EFFORTS(TQ_FMT_TCQ6, "tcq6"),
    {TQ_FMT_UNIFORM4, "affine4", 0},
    {TQ_FMT_UNIFORM8, "affine8", 0},
    {TQ_FMT_MSE1, "mse1", 0},
    {TQ_FMT_MSE2, "mse2", 0},
    {TQ_FMT_MSE3, "mse3", 0},
    {TQ_FMT_MSE4, "mse4", 0},
    {TQ_FMT_PROD1, "prod1", 0},
    {TQ_FMT_PROD2, "prod2", 0},
    {TQ_FMT_PROD3, "prod3", 0},
    {TQ_FMT_PROD4, "prod4", 0},
    {TQ_FMT_FORK2, "fork1, 2", 0},
    {TQ_FMT_FORK3, "fork1, 3", 0},
    {TQ_FMT_FORK4, "fork1, 4", 0},
};
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

/* The default scheme, keys and values in turn. */
static const struct format scheme[2] = {
    {TQ_FMT_AFFINE_K8, "turbo:k8v3", 0},
    {TQ_FMT_LLOYD_V3, "turbo:k8v3", 0},
};

typedef struct codec_point {
    const char *name;
    double bits, encode_s, decode_s; /* of an element; seconds of a vector, medians */
} codec_point;

typedef struct codec_bench {
    uint32_t dim, n_rounds;
    uint32_t isas[MAX_ISAS];
    size_t n_isas;
    float *rows; /* [n_rows][dim]: more than the last cache holds */
    size_t n_rows, next;
    float *decoded;  /* [N_ROWS][dim] */
    uint8_t *blocks; /* [2][N_ROWS][4 * dim]: no format takes more than f32 */
    double clock_hz;
    bench_machine machine;
    const char *csv_name, *plot_name;
    save_file csv;
    codec_point points[N_FORMATS + 1]; /* of the best instruction set */
    size_t n_points;
} codec_bench;

/* The next N_ROWS rows, round and round. */
static const float *next_rows(codec_bench *b)
{
    const float *x = b->rows + b->next * b->dim;
    b->next += N_ROWS;
    if (b->next + N_ROWS > b->n_rows) {
        b->next = 0;
    }
    return x;
}

/* The codecs of a row: one, or keys and values. */
typedef struct coders {
    tq_codec c[2];
    size_t n, block_bytes;
} coders;

/* Seconds per vector. The calls are repeated until the clock's grain does not matter. */
static bool time_codec(codec_bench *b, const coders *k, bool encode, double *seconds)
{
    double start = text_now(), elapsed = 0;
    size_t n = 0;
    while (elapsed < 1e-3) {
        for (size_t i = 0; i < k->n; i++) {
            const tq_codec *c = &k->c[i];
            uint8_t *blocks = b->blocks + i * N_ROWS * b->dim * sizeof(float);
            size_t bytes = N_ROWS * c->block_bytes;
            tq_status st =
                encode ? tq_codec_encode(c, blocks, bytes, next_rows(b), b->dim, N_ROWS, NULL)
                       : tq_codec_decode(c, b->decoded, b->dim, blocks, bytes, N_ROWS);
            if (st != TQ_OK) {
                msg_error("%s", tq_status_name(st));
                return false;
            }
            n += N_ROWS;
        }
        elapsed = text_now() - start;
    }
    *seconds = elapsed / (double)n;
    return true;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- The machine beside it ---- */

/* Clock of this core now: a chain of operations that each wait for the one before, a cycle each. */
static double measure_clock(void)
{
    enum { CHAIN = 1000000 };
    double best = 1;
    for (int round = 0; round < 5; round++) {
        uint64_t x = 1, y = (uint64_t)round | 2;
        double start = text_now();
        for (int i = 0; i < CHAIN; i += 8) {
#define STEP                                                                                       \
    x ^= y;                                                                                        \
    __asm__ volatile("" : "+r"(x), "+r"(y));
            STEP STEP STEP STEP STEP STEP STEP STEP
        }
        double elapsed = text_now() - start;
        best = elapsed < best ? elapsed : best;
    }
    return CHAIN / best;
}

/* Bytes per second of reading the buffer once, in four streams (one alone does not fill the queues
 * of the memory), the best of three. */
static double measure_read(const codec_bench *b)
{
    enum { STREAMS = 4, LINE = 64 };
    const size_t share = b->n_rows * b->dim * sizeof(float) / (STREAMS * LINE) * LINE;
    const char *p = (const char *)b->rows;
    double best = 0;
    for (int round = 0; round < 3; round++) {
        uint64_t sum[LINE / 8] = {0};
        double start = text_now();
        for (size_t i = 0; i < share; i += LINE) {
            for (size_t s = 0; s < STREAMS; s++) {
                uint64_t x[LINE / 8];
                memcpy(x, p + s * share + i, sizeof x);
                for (int k = 0; k < LINE / 8; k++) {
                    sum[k] += x[k];
                }
            }
        }
        __asm__ volatile("" : : "r"(sum) : "memory");
        double rate = (double)(STREAMS * share) / (text_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

/* Twice the last cache, 64 MiB to 1 GiB. */
static size_t buffer_bytes(void)
{
    size_t bytes = (size_t)64 << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    while (l3 > 0 && bytes < 2 * (size_t)l3 && bytes < (size_t)1 << 30) {
        bytes *= 2;
    }
#endif
    return bytes;
}

/* ---- Report ---- */

/* One direction of a row: seconds per vector in ascending order; the median of scalar (0: not
 * measured). */
static void put_times(const codec_bench *b, const double *t, double scalar)
{
    const double bytes = (double)b->dim * sizeof(float), median = t[b->n_rounds / 2];
    const double cycles = median * b->clock_hz / b->dim;
    out_printf(" %6.2f %6.2f %5.*f", bytes / median * 1e-9, bytes / t[0] * 1e-9,
               cycles < 99.995   ? 2
               : cycles < 999.95 ? 1
                                 : 0,
               cycles);
    if (scalar > 0) {
        out_printf(" %5.1fx", scalar / median);
    } else {
        out_printf("%7s", "-");
    }
}

static tq_status open_coders(coders *k, const struct format *f, size_t n, uint32_t dim,
                             uint32_t isa)
{
    *k = (coders){.n = n};
    for (size_t i = 0; i < n; i++) {
        tq_status st = tq_codec_init(&k->c[i], f[i].format, dim, f[i].flags, isa);
        if (st != TQ_OK) {
            return st;
        }
        k->block_bytes += k->c[i].block_bytes;
    }
    return TQ_OK;
}

/* Of one row and instruction set; its times are sorted. */
static void note(codec_bench *b, const char *name, const coders *k, size_t isa,
                 double (*times)[MAX_ROUNDS])
{
    char isa_text[64];
    const double encode = times[0][b->n_rounds / 2], decode = times[1][b->n_rounds / 2];
    if (b->csv.f) {
        bench_csv_machine(b->csv.f, &b->machine);
        fprintf(b->csv.f, "%u,", b->dim);
        bench_csv_text(b->csv.f, name);
        fprintf(b->csv.f, ",%s,%zu,%u,%.5f,%.5f,%.5f,%.5f\n",
                setup_isa_names(isa_text, b->isas[isa]), k->block_bytes, b->n_rounds, encode * 1e6,
                times[0][0] * 1e6, decode * 1e6, times[1][0] * 1e6);
    }
    if (isa + 1 == b->n_isas && k->n == 1) {
        b->points[b->n_points++] =
            (codec_point){name, 8.0 * (double)k->block_bytes / b->dim, encode, decode};
    }
}

/* One row: the format, or the n of a scheme. */
static bool bench_formats(codec_bench *b, const struct format *f, size_t n)
{
    static double times[MAX_ISAS][2][MAX_ROUNDS];
    coders k[MAX_ISAS];
    char name[64];
    for (size_t i = 0; i < b->n_isas; i++) {
        tq_status st = open_coders(&k[i], f, n, b->dim, b->isas[i]);
        if (st == TQ_ERR_DIM) {
            out_printf("%-13s does not support %u\n", f->name, b->dim);
            return true;
        }
        if (st != TQ_OK) {
            msg_error("%s: %s", f->name, tq_status_name(st));
            return false;
        }
    }
    for (uint32_t r = 0; r < b->n_rounds; r++) {
        for (size_t i = 0; i < b->n_isas; i++) {
            if (!time_codec(b, &k[i], true, &times[i][0][r]) ||
                !time_codec(b, &k[i], false, &times[i][1][r])) {
                return false;
            }
        }
    }
    for (size_t i = 0; i < b->n_isas; i++) {
        out_printf("%-13s%5zu %-6s", i ? "" : f->name, k[i].block_bytes,
                   setup_isa_names(name, b->isas[i]));
        for (int way = 0; way < 2; way++) {
            qsort(times[i][way], b->n_rounds, sizeof times[i][way][0], compare);
            double scalar = times[0][way][b->n_rounds / 2];
            put_times(b, times[i][way], b->isas[0] == TQ_ISA_SCALAR ? scalar : 0);
        }
        out_write("\n", 1);
        note(b, f->name, &k[i], i, times[i]);
    }
    return save_flush(&b->csv) && out_flush();
}

/* Points of the formats whose names begin so and end in the default effort, if in any. */
static size_t collect(const codec_bench *b, const char *family, bool encode, double *x, double *y)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_points; i++) {
        const codec_point *p = &b->points[i];
        bool other = strstr(p->name, " n=1") != NULL; /* 1 and 12 */
        if (!strncmp(p->name, family, strlen(family)) && !other) {
            x[n] = p->bits;
            y[n++] = (encode ? p->encode_s : p->decode_s) * 1e6;
        }
    }
    return n;
}

static bool draw(const codec_bench *b)
{
    enum { FAMILIES = 5 };
    static const char *const families[FAMILIES] = {"turbo", "tcq", "keys, k", "values, v",
                                                   "affine"};
    static double x[2 * FAMILIES][N_FORMATS], y[2 * FAMILIES][N_FORMATS];
    char names[2 * FAMILIES][48], subtitle[256];
    plot_curve curves[2 * FAMILIES];
    size_t n = 0;
    for (size_t i = 0; i < 2 * FAMILIES; i++) {
        const bool encode = i < FAMILIES;
        const char *family = families[i % FAMILIES];
        const size_t points = collect(b, family, encode, x[n], y[n]);
        snprintf(names[n], sizeof names[n], "%.*s, %s", (int)strcspn(family, ","), family,
                 encode ? "encode" : "decode");
        curves[n] = (plot_curve){names[n], encode ? PLOT_LINE : PLOT_DASHED, x[n], y[n], points};
        n += points > 0;
    }
    snprintf(subtitle, sizeof subtitle, "%s, the best of %s; %u elements", b->machine.cpu,
             b->machine.isa, b->dim);
    const plot p = {.file = b->plot_name,
                    .title = "Compressing and expanding a vector",
                    .subtitle = subtitle,
                    .x_label = "bits of an element, all included",
                    .y_label = "microseconds of a vector (median)",
                    .curves = curves,
                    .n_curves = n,
                    .bits_x = true};
    return plot_draw(&p);
}

static void put_head(const codec_bench *b)
{
    char size[32];
    bench_put_machine(&b->machine);
    out_printf("vectors of %u f32, median of %u rounds; cyc: cycles of an element\n", b->dim,
               b->n_rounds);
    out_printf("memory: reads %.2f GB/s (%s); clock %.2f GHz\n\n", measure_read(b) * 1e-9,
               text_size(size, b->n_rows * b->dim * sizeof(float)), b->clock_hz * 1e-9);
    out_printf("%s%-13s%5s %-6s%27s%27s%s\n", out_bold(), "", "", "", "encode, rows from memory",
               "decode, into a cache", out_plain());
    out_printf("%s%-13s%5s %-6s", out_bold(), "format", "bytes", "isa");
    for (int side = 0; side < 2; side++) {
        out_printf("%7s%7s%6s%7s", "GB/s", "best", "cyc", "scalar");
    }
    out_printf("%s\n", out_plain());
}

/* Sums of four uniform numbers: near enough to the bell that keys and values have. */
static void fill_rows(codec_bench *b)
{
    uint32_t x = 1;
    for (size_t i = 0; i < b->n_rows * b->dim; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            x = x * 1664525u + 1013904223u;
            sum += (float)(x >> 8) / 8388608.0f - 1.0f;
        }
        b->rows[i] = sum;
    }
}

static bool any_takes(uint32_t dim)
{
    tq_codec c;
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (tq_codec_init(&c, formats[i].format, dim, formats[i].flags, TQ_ISA_SCALAR) == TQ_OK) {
            return true;
        }
    }
    return false;
}

static int codec_bench_run(codec_bench *b, uint32_t mask)
{
    static const uint32_t order[MAX_ISAS] = {TQ_ISA_SCALAR, TQ_ISA_NEON, TQ_ISA_AVX2,
                                             TQ_ISA_AVX512};
    for (size_t i = 0; i < MAX_ISAS; i++) {
        if (order[i] & mask & (tq_isa_detect() | TQ_ISA_SCALAR)) {
            b->isas[b->n_isas++] = order[i];
        }
    }
    bench_machine_get(&b->machine, mask, true, 1);
    if (!bench_csv_open(&b->csv, b->csv_name,
                        "dim,format,kernels,block_bytes,rounds,encode_us,encode_best_us,"
                        "decode_us,decode_best_us")) {
        return TQ_EXIT_FAILED;
    }
    size_t n = (size_t)N_ROWS * b->dim;
    b->n_rows = buffer_bytes() / sizeof(float) / n * N_ROWS;
    b->rows = machine_large_alloc(b->n_rows * b->dim * sizeof *b->rows);
    b->decoded = malloc(n * sizeof *b->decoded);
    b->blocks = malloc(2 * n * sizeof *b->rows);
    bool ok = b->rows && b->decoded && b->blocks;
    if (!ok) {
        msg_error("not enough memory");
    } else {
        fill_rows(b);
        b->clock_hz = measure_clock();
        put_head(b);
    }
    ok = ok && bench_formats(b, scheme, 2);
    for (size_t i = 0; ok && i < N_FORMATS; i++) {
        ok = bench_formats(b, &formats[i], 1);
    }
    ok = save_close(&b->csv, ok) && ok && (!b->plot_name || draw(b));
    free(b->rows);
    free(b->decoded);
    free(b->blocks);
    return ok ? TQ_EXIT_OK : TQ_EXIT_FAILED;
}

int bench_codec(int argc, char **argv)
{
    static codec_bench b = {.dim = 128, .n_rounds = 21};
    const char *isa = NULL;
    arg_option options[] = {
        {.group = "Options",
         .letter = 'd',
         .name = "dim",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.dim,
         .min = 1,
         .max = 1024,
         .help = "elements of a vector (default 128)"},
        {.letter = 'r',
         .name = "rounds",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.n_rounds,
         .min = 1,
         .max = MAX_ROUNDS,
         .help = "rounds of a millisecond each (default 21)"},
        {.name = "isa",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &isa,
         .help = "only this instruction set (default: all that run here)"},
        {.group = "Output",
         .name = "csv",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &b.csv_name,
         .help = "write one row for each format and instruction set"},
        {.name = "plot",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &b.plot_name,
         .help = "draw time against bits, *.svg or *.png, with the program gnuplot"},
    };
    arg_command cmd = {
        .name = "tq bench codec",
        .summary = "speed of compressing and expanding vectors",
        .synopsis = "  tq bench codec [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "  tq bench codec\n"
                    "  tq bench codec --dim 256 --isa avx2\n",
    };
    arg_result r = args_parse(&cmd, argc, argv, NULL);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    uint32_t mask;
    bool usage = true;
    if (!setup_isa(isa, &mask) ||
        (b.plot_name && !plot_check("--plot", b.plot_name, b.csv_name, &usage))) {
        if (usage) {
            args_hint(&cmd);
        }
        return usage ? TQ_EXIT_USAGE : TQ_EXIT_FAILED;
    }
    if (!any_takes(b.dim)) {
        msg_error("--dim: no format takes %u elements; multiples of 8 in 16..1024", b.dim);
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    return codec_bench_run(&b, mask);
}
