/* SPDX-License-Identifier: MIT */
/* bench_codec.c — `tq bench codec`: time to compress and expand a vector, per format and
 * instruction set, through the public API that an embedder calls.
 *
 * Policy: the instruction sets take turns within each round and the median over the rounds is
 * shown, so that a moment of other work does not fall on one of them alone. The vectors are in the
 * processor's cache: this measures the kernels, not the memory.
 */
#include "args.h"
#include "commands.h"
#include "machine.h"
#include "out.h"
#include "setup.h"
#include "text.h"
#include "turboquant.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_ROWS = 64, MAX_ROUNDS = 1000, MAX_ISAS = 4 };

static const struct format {
    tq_format format;
    const char *name;
} formats[] = {
    {TQ_FMT_F16, "f16"},
    {TQ_FMT_BF16, "bf16"},
    {TQ_FMT_AFFINE_K2, "keys, k2"},
    {TQ_FMT_AFFINE_K4, "keys, k4"},
    {TQ_FMT_AFFINE_K5, "keys, k5"},
    {TQ_FMT_AFFINE_K8, "keys, k8"},
    {TQ_FMT_LLOYD_V2, "values, v2"},
    {TQ_FMT_LLOYD_V3, "values, v3"},
    {TQ_FMT_LLOYD_V4, "values, v4"},
    {TQ_FMT_LLOYD_V5, "values, v5"},
    {TQ_FMT_LLOYD_V8, "values, v8"},
};
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

typedef struct codec_bench {
    uint32_t dim, n_rounds;
    uint32_t isas[MAX_ISAS];
    size_t n_isas;
    float *rows, *decoded; /* [N_ROWS][dim] */
    uint8_t *blocks;       /* [N_ROWS][4 * dim]: no format takes more than f32 */
} codec_bench;

/* Nanoseconds per vector. The calls are repeated until the clock's grain does not matter. */
static bool time_codec(const codec_bench *b, const tq_codec *c, bool encode, double *ns)
{
    size_t dst_bytes = N_ROWS * c->block_bytes;
    double start = text_now(), elapsed = 0;
    size_t n = 0;
    while (elapsed < 1e-3) {
        tq_status st = encode
                           ? tq_codec_encode(c, b->blocks, dst_bytes, b->rows, b->dim, N_ROWS, NULL)
                           : tq_codec_decode(c, b->decoded, b->dim, b->blocks, dst_bytes, N_ROWS);
        if (st != TQ_OK) {
            msg_error("%s", tq_status_name(st));
            return false;
        }
        n += N_ROWS;
        elapsed = text_now() - start;
    }
    *ns = 1e9 * elapsed / (double)n;
    return true;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool bench_format(const codec_bench *b, const struct format *f)
{
    static double ns[MAX_ISAS][2][MAX_ROUNDS];
    tq_codec codecs[MAX_ISAS];
    for (size_t i = 0; i < b->n_isas; i++) {
        tq_status st = tq_codec_init(&codecs[i], f->format, b->dim, 0, b->isas[i]);
        if (st == TQ_ERR_DIM) {
            out_printf("%-12s does not support %u\n", f->name, b->dim);
            return true;
        }
        if (st != TQ_OK) {
            msg_error("%s: %s", f->name, tq_status_name(st));
            return false;
        }
    }
    for (uint32_t r = 0; r < b->n_rounds; r++) {
        for (size_t i = 0; i < b->n_isas; i++) {
            if (!time_codec(b, &codecs[i], true, &ns[i][0][r]) ||
                !time_codec(b, &codecs[i], false, &ns[i][1][r])) {
                return false;
            }
        }
    }
    out_printf("%-12s%8zu", f->name, codecs[0].block_bytes);
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < b->n_isas; i++) {
            qsort(ns[i][side], b->n_rounds, sizeof ns[i][side][0], compare);
            out_printf("%10.1f", ns[i][side][b->n_rounds / 2]);
        }
    }
    out_write("\n", 1);
    return out_flush();
}

static void put_head(const codec_bench *b)
{
    char cpu[128], name[64];
    int width = 10 * (int)b->n_isas;
    out_printf("%s; vectors of %u, nanoseconds per vector, median of %u rounds\n\n",
               machine_cpu(cpu), b->dim, b->n_rounds);
    out_printf("%s%-12s%8s%*s%*s%s\n", out_bold(), "", "", width, "encode", width, "decode",
               out_plain());
    out_printf("%s%-12s%8s", out_bold(), "format", "bytes");
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < b->n_isas; i++) {
            out_printf("%10s", setup_isa_names(name, b->isas[i]));
        }
    }
    out_printf("%s\n", out_plain());
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
    size_t n = (size_t)N_ROWS * b->dim;
    b->rows = malloc(n * sizeof *b->rows);
    b->decoded = malloc(n * sizeof *b->decoded);
    b->blocks = malloc(n * sizeof *b->rows);
    bool ok = b->rows && b->decoded && b->blocks;
    if (!ok) {
        msg_error("not enough memory");
    } else {
        /* Sums of four uniform numbers: near enough to the bell that keys and values have. */
        uint32_t x = 1;
        for (size_t i = 0; i < n; i++) {
            float sum = 0;
            for (int k = 0; k < 4; k++) {
                x = x * 1664525u + 1013904223u;
                sum += (float)(x >> 8) / 8388608.0f - 1.0f;
            }
            b->rows[i] = sum;
        }
        put_head(b);
    }
    for (size_t i = 0; ok && i < N_FORMATS; i++) {
        ok = bench_format(b, &formats[i]);
    }
    free(b->rows);
    free(b->decoded);
    free(b->blocks);
    return ok ? TQ_EXIT_OK : TQ_EXIT_FAILED;
}

int bench_codec(int argc, char **argv)
{
    codec_bench b = {.dim = 128, .n_rounds = 21};
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
    };
    arg_command cmd = {
        .name = "tq bench codec",
        .summary = "time to compress and expand a vector",
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
    if (!setup_isa(isa, &mask)) {
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    return codec_bench_run(&b, mask);
}
