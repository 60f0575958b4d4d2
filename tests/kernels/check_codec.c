/* SPDX-License-Identifier: MIT */
/* check_codec.c — the codec half of the kernel table. Everything in it is EXACT: on each ISA the
 * output must equal that of the scalar table byte for byte, gaps between rows included. Only a
 * NaN counts as equal to any NaN. */
#include "checkkern.h"

#include "codec.h"
#include "rotate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIMS = 28, MAX_FLAGS = 4 };

typedef struct format_case {
    tq_format format;
    const char *name;
    uint32_t dims[MAX_DIMS];   /* 0 ends */
    uint32_t flags[MAX_FLAGS]; /* the first 0 that is not in front ends */
} format_case;

#define RAW_DIMS                                                                                   \
    {                                                                                              \
        16, 24, 40, 64, 80, 136, 576, 1024                                                         \
    }
/* Dimensions with vector kernels everywhere, then whole groups, then a short last group. */
#define GROUP_DIMS                                                                                 \
    {                                                                                              \
        64, 128, 256, 512, 32, 96, 192, 288, 576, 1024, 16, 24, 40, 56, 72, 80, 112, 144, 224      \
    }

/* All of docs/format.md 5.4, and some of them for the slower encoders. */
#define ROTATED_DIMS                                                                               \
    {                                                                                              \
        16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 288, 320, 384,  \
            448, 512, 576, 640, 768, 896, 1024                                                     \
    }
#define FEW_DIMS                                                                                   \
    {                                                                                              \
        16, 40, 72, 80, 96, 128, 256, 576                                                          \
    }
#define NO_FLAGS                                                                                   \
    {                                                                                              \
        0                                                                                          \
    }
#define STRICT_FLAGS                                                                               \
    {                                                                                              \
        0, TQ_CODEC_STRICT                                                                         \
    }
#define ROTATED_FLAGS                                                                              \
    {                                                                                              \
        0, TQ_CODEC_MEAN | TQ_CODEC_EFFORT_1, TQ_CODEC_EFFORT_12                                   \
    }
#define UNIFORM_FLAGS                                                                              \
    {                                                                                              \
        0, TQ_CODEC_GROUP_32, TQ_CODEC_GROUP_128                                                   \
    }

/* clang-format off */
static const format_case formats[] = {
    {TQ_FMT_F32, "f32", RAW_DIMS, NO_FLAGS},
    {TQ_FMT_F16, "f16", RAW_DIMS, NO_FLAGS},
    {TQ_FMT_BF16, "bf16", RAW_DIMS, NO_FLAGS},
    {TQ_FMT_AFFINE_K2, "k2", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_AFFINE_K4, "k4", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_AFFINE_K5, "k5", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_AFFINE_K8, "k8", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_LLOYD_V2, "v2", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_LLOYD_V3, "v3", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_LLOYD_V4, "v4", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_LLOYD_V5, "v5", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_LLOYD_V8, "v8", GROUP_DIMS, STRICT_FLAGS},
    {TQ_FMT_NORM2, "turbo2", ROTATED_DIMS, ROTATED_FLAGS},
    {TQ_FMT_NORM3, "turbo3", ROTATED_DIMS, ROTATED_FLAGS},
    {TQ_FMT_NORM4, "turbo4", ROTATED_DIMS, ROTATED_FLAGS},
    {TQ_FMT_NORM5, "turbo5", ROTATED_DIMS, ROTATED_FLAGS},
    {TQ_FMT_NORM6, "turbo6", ROTATED_DIMS, ROTATED_FLAGS},
    {TQ_FMT_NORM8, "turbo8", ROTATED_DIMS, ROTATED_FLAGS},
    {TQ_FMT_TCQ2, "tcq2", FEW_DIMS, ROTATED_FLAGS},
    {TQ_FMT_TCQ3, "tcq3", FEW_DIMS, ROTATED_FLAGS},
    {TQ_FMT_TCQ4, "tcq4", FEW_DIMS, ROTATED_FLAGS},
    {TQ_FMT_TCQ5, "tcq5", FEW_DIMS, ROTATED_FLAGS},
    {TQ_FMT_TCQ6, "tcq6", FEW_DIMS, ROTATED_FLAGS},
    {TQ_FMT_UNIFORM4, "affine4", RAW_DIMS, UNIFORM_FLAGS},
    {TQ_FMT_UNIFORM8, "affine8", RAW_DIMS, UNIFORM_FLAGS},
    {TQ_FMT_MSE1, "mse1", FEW_DIMS, NO_FLAGS},
    {TQ_FMT_MSE2, "mse2", FEW_DIMS, NO_FLAGS},
    {TQ_FMT_MSE3, "mse3", FEW_DIMS, NO_FLAGS},
    {TQ_FMT_MSE4, "mse4", FEW_DIMS, NO_FLAGS},
    {TQ_FMT_PROD1, "prod1", FEW_DIMS, NO_FLAGS},
    {TQ_FMT_PROD2, "prod2", FEW_DIMS, NO_FLAGS},
    {TQ_FMT_PROD3, "prod3", FEW_DIMS, NO_FLAGS},
    {TQ_FMT_PROD4, "prod4", FEW_DIMS, NO_FLAGS},
    {TQ_FMT_FORK2, "fork2", {128, 256}, NO_FLAGS},
    {TQ_FMT_FORK3, "fork3", {128, 256}, NO_FLAGS},
    {TQ_FMT_FORK4, "fork4", {128, 256}, NO_FLAGS},
};
/* clang-format on */

enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

/* Row counts around the sizes at which kernels change their way: 1, 2, 4 and 8 rows at a time. */
static const size_t counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 17, 33};

enum { N_COUNTS = sizeof(counts) / sizeof(counts[0]) };

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Any finite float: all exponents, subnormals too. */
static float any_finite(ck *t)
{
    float x;
    do
        x = from_bits((uint32_t)ck_random(t));
    while (!isfinite(x));
    return x;
}

/* One group of 32, of a random kind: what a model gives, and what breaks quantisers. */
static void fill_group(ck *t, float *x)
{
    uint32_t kind = ck_below(t, 12);
    float offset = ck_normal(t) * powf(10.0f, (float)ck_below(t, 12) - 6.0f);
    float spread = powf(10.0f, (float)ck_below(t, 10) - 7.0f);

    for (int i = 0; i < 32; i++) {
        switch (kind) {
        case 0:
            x[i] = 0;
            break;
        case 1:
            x[i] = i & 1 ? -0.0f : 0.0f;
            break;
        case 2:
            x[i] = offset;
            break;
        case 3:
            x[i] = any_finite(t);
            break;
        case 4: /* nearly constant */
            x[i] = offset + offset * 1e-4f * ck_normal(t);
            break;
        case 5: /* ties of the k8 grid with scale 1 */
            x[i] = (float)ck_below(t, 509) * 0.5f - 127.0f;
            break;
        case 6:
            x[i] = ck_normal(t) * spread;
            break;
        case 9: { /* ends of ranges */
            static const float ends[] = {3.4028235e38f, 0x1.fefp127f, 65504,    65519.99f, 65520,
                                         0x1p-14f,      0x1p-24f,     0x1p-25f, 0x1p-149f, 0};
            x[i] = ends[ck_below(t, 10)] * (ck_below(t, 2) ? 1.0f : -1.0f);
            break;
        }
        case 7:
            x[i] = i == 5 ? 1e30f * ck_normal(t) : ck_normal(t);
            break;
        default:
            x[i] = ck_normal(t);
            break;
        }
    }
}

static void fill_rows(ck *t, float *x, size_t n, size_t dim, size_t stride)
{
    float group[32];
    for (size_t row = 0; row < n; row++) {
        for (size_t i = 0; i < dim; i++) {
            if (i % 32 == 0)
                fill_group(t, group);
            x[row * stride + i] = group[i % 32];
        }
    }
}

/* ---- Layouts: contiguous blocks, or three planes with odd strides ---- */

typedef struct layout {
    int split;
    size_t gap; /* bytes between the rows of a plane */
    int at_start;
} layout;

static size_t plane_bytes(size_t row_bytes, size_t gap, size_t n)
{
    return row_bytes ? n * row_bytes + (n - 1) * gap : 0;
}

/* Planes in arenas first .. first + 2. */
static tq_planes make_planes(ck *t, const tq_codec *c, const layout *l, size_t first, size_t n)
{
    if (!l->split)
        return tq_codec_planes(c, ck_buffer(t, first, n * c->block_bytes, l->at_start));
    tq_planes p = {
        .codes = ck_buffer(t, first, plane_bytes(c->code_bytes, l->gap, n), l->at_start),
        .codes_stride = c->code_bytes + l->gap,
        .scale_stride = c->scale_bytes + l->gap,
        .zero_stride = c->zero_bytes + l->gap,
    };
    p.scale = ck_buffer(t, first + 1, plane_bytes(c->scale_bytes, l->gap, n), l->at_start);
    p.zero = ck_buffer(t, first + 2, plane_bytes(c->zero_bytes, l->gap, n), l->at_start);
    return p;
}

static int same_planes(const tq_codec *c, const layout *l, tq_planes a, tq_planes b, size_t n)
{
    if (!l->split)
        return memcmp(a.codes, b.codes, n * c->block_bytes) == 0;
    return memcmp(a.codes, b.codes, plane_bytes(c->code_bytes, l->gap, n)) == 0 &&
           memcmp(a.scale, b.scale, plane_bytes(c->scale_bytes, l->gap, n)) == 0 &&
           memcmp(a.zero, b.zero, plane_bytes(c->zero_bytes, l->gap, n)) == 0;
}

static tq_const_planes to_const(tq_planes p)
{
    return (tq_const_planes){.codes = p.codes,
                             .scale = p.scale,
                             .zero = p.zero,
                             .codes_stride = p.codes_stride,
                             .scale_stride = p.scale_stride,
                             .zero_stride = p.zero_stride};
}

static layout random_layout(ck *t)
{
    return (layout){(int)ck_below(t, 2), ck_below(t, 4), (int)ck_below(t, 2)};
}

/* ---- Encode and decode ---- */

static void check_encode(ck *t, const format_case *f, const tq_codec *c, size_t n)
{
    char entry[32];
    layout l = random_layout(t);
    size_t stride = c->dim + ck_below(t, 3);
    size_t src_bytes = ((n - 1) * stride + c->dim) * sizeof(float);
    float *src = ck_buffer(t, 0, src_bytes, l.at_start);
    int kfmt = tq_kfmt(f->format);

    snprintf(entry, sizeof entry, "encode_%s", f->name);
    if (!ck_wants(t, entry))
        return;
    fill_rows(t, src, n, c->dim, stride);
    tq_planes want = make_planes(t, c, &l, 1, n);
    tq_kernels_scalar.codec->encode[kfmt](c, want, src, stride, n);
    for (size_t i = 1; i < t->n_isas; i++) {
        tq_planes got = make_planes(t, c, &l, 4, n);
        ck_kernels(t, i, c)->codec->encode[kfmt](c, got, src, stride, n);
        ck_check(t, same_planes(c, &l, want, got, n), entry, t->isas[i].name,
                 "dim %u, n %zu, flags %u, split %d", c->dim, n, c->flags, l.split);
    }
}

/* Random bytes are valid input. Every second time the scales are numbers of ordinary size, so
 * that the values are not mostly huge. */
static void fill_stored(ck *t, const tq_codec *c, const layout *l, tq_planes p, size_t n)
{
    int ordinary = (int)ck_below(t, 2);

    (void)l;
    for (size_t row = 0; row < n; row++) {
        for (size_t i = 0; i < c->code_bytes; i++)
            p.codes[row * p.codes_stride + i] = (uint8_t)ck_random(t);
        for (size_t i = 0; i < c->scale_bytes; i += 2) {
            uint16_t h = (uint16_t)ck_random(t);
            if (ordinary)
                h = (uint16_t)((h & 0x83ffu) | 0x3800u);
            memcpy(p.scale + row * p.scale_stride + i, &h, 2);
            h = (uint16_t)ck_random(t);
            if (ordinary)
                h = (uint16_t)((h & 0x8fffu) | 0x4000u);
            if (c->zero_bytes)
                memcpy(p.zero + row * p.zero_stride + i, &h, 2);
        }
    }
}

static void check_decode(ck *t, const format_case *f, const tq_codec *c, size_t n, int rotated)
{
    char entry[32];
    layout l = random_layout(t);
    size_t stride = c->dim + ck_below(t, 3);
    size_t dst_floats = (n - 1) * stride + c->dim;
    int kfmt = tq_kfmt(f->format);

    snprintf(entry, sizeof entry, "decode%s_%s", rotated ? "_rotated" : "", f->name);
    if (!ck_wants(t, entry))
        return;
    tq_planes src = make_planes(t, c, &l, 1, n);
    fill_stored(t, c, &l, src, n);
    float *want = ck_buffer(t, 0, dst_floats * sizeof(float), l.at_start);
    const tq_codec_kernels *ref = tq_kernels_scalar.codec;
    (rotated ? ref->decode_rotated : ref->decode)[kfmt](c, want, stride, to_const(src), n);
    for (size_t i = 1; i < t->n_isas; i++) {
        const tq_codec_kernels *k = ck_kernels(t, i, c)->codec;
        float *got = ck_buffer(t, 4, dst_floats * sizeof(float), l.at_start);
        (rotated ? k->decode_rotated : k->decode)[kfmt](c, got, stride, to_const(src), n);
        ck_check(t, ck_same_floats(want, got, dst_floats), entry, t->isas[i].name,
                 "dim %u, n %zu, split %d", c->dim, n, l.split);
    }
}

static void check_case(ck *t, const format_case *f, uint32_t dim, uint32_t flags, size_t n)
{
    tq_codec c;
    int ok = tq_codec_init(&c, f->format, dim, flags, 0) == TQ_OK;

    ck_check(t, ok, f->name, "any", "tq_codec_init refuses dim %u, flags %u", dim, flags);
    if (!ok)
        return;
    check_encode(t, f, &c, n);
    check_decode(t, f, &c, n, 0);
    check_decode(t, f, &c, n, 1);
}

static void check_format(ck *t, const format_case *f)
{
    for (size_t d = 0; d < MAX_DIMS && f->dims[d]; d++)
        for (size_t i = 0; i < MAX_FLAGS && (i == 0 || f->flags[i]); i++)
            for (size_t n = 0; n < N_COUNTS; n++)
                check_case(t, f, f->dims[d], f->flags[i], counts[n]);
}

/* ---- The transform and the search for bad rows ---- */

static void check_rotate(ck *t)
{
    for (uint32_t dim = 16; dim <= 1024; dim += 8) {
        for (int round = 0; round < 16 && tq_hadamard_takes(dim); round++) {
            int inverse = round & 1;
            const char *entry = inverse ? "unrotate" : "rotate";
            float *x = ck_buffer(t, 0, dim * sizeof(float), 0);
            float *want = ck_buffer(t, 1, dim * sizeof(float), 0);

            if (!ck_wants(t, entry))
                continue;
            fill_rows(t, x, 1, dim, dim);
            memcpy(want, x, dim * sizeof(float));
            const tq_codec_kernels *ref = tq_kernels_scalar.codec;
            (inverse ? ref->unrotate : ref->rotate)(want, dim);
            for (size_t i = 1; i < t->n_isas; i++) {
                const tq_codec_kernels *k = t->isas[i].kernels->codec;
                float *got = ck_buffer(t, 2, dim * sizeof(float), (int)ck_below(t, 2));
                memcpy(got, x, dim * sizeof(float));
                (inverse ? k->unrotate : k->rotate)(got, dim);
                ck_check(t, ck_same_floats(want, got, dim), entry, t->isas[i].name, "dim %u", dim);
            }
        }
    }
}

static void check_first_nonfinite(ck *t)
{
    static const uint32_t bad_bits[] = {0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fc00000u,
                                        0xffffffffu};

    if (!ck_wants(t, "first_nonfinite"))
        return;
    for (int round = 0; round < 2000; round++) {
        size_t dim = 1 + ck_below(t, 70);
        size_t n = 1 + ck_below(t, 9);
        size_t stride = dim + ck_below(t, 3);
        size_t want = ck_below(t, (uint32_t)n + 1);
        float *x = ck_buffer(t, 0, ((n - 1) * stride + dim) * sizeof(float), round & 1);
        uint32_t bits = bad_bits[ck_below(t, 5)];

        /* Gaps hold NaN, which must not be seen. */
        for (size_t i = 0; i < (n - 1) * stride + dim; i++)
            x[i] = i % stride < dim ? any_finite(t) : NAN;
        if (want < n)
            memcpy(x + want * stride + ck_below(t, (uint32_t)dim), &bits, sizeof bits);
        for (size_t i = 0; i < t->n_isas; i++) {
            size_t got = t->isas[i].kernels->codec->first_nonfinite(x, stride, dim, n);
            ck_check(t, got == want, "first_nonfinite", t->isas[i].name,
                     "dim %zu, n %zu: row %zu, not %zu", dim, n, got, want);
        }
    }
}

static void check(ck *t)
{
    for (size_t i = 0; i < N_FORMATS; i++)
        check_format(t, &formats[i]);
    check_rotate(t);
    check_first_nonfinite(t);
}

/* ---- Bench: 64 rows of 128, hot ---- */

enum { BENCH_ROWS = 64, BENCH_DIM = 128 };

typedef struct bench_arg {
    const tq_codec *c;
    const tq_codec_kernels *k;
    tq_planes planes;
    float *rows;
    int kfmt;
    size_t sink;
} bench_arg;

static void call_encode(void *p)
{
    bench_arg *a = p;
    a->k->encode[a->kfmt](a->c, a->planes, a->rows, BENCH_DIM, BENCH_ROWS);
}

static void call_decode(void *p)
{
    bench_arg *a = p;
    a->k->decode[a->kfmt](a->c, a->rows, BENCH_DIM, to_const(a->planes), BENCH_ROWS);
}

static void call_decode_rotated(void *p)
{
    bench_arg *a = p;
    a->k->decode_rotated[a->kfmt](a->c, a->rows, BENCH_DIM, to_const(a->planes), BENCH_ROWS);
}

static void call_first_nonfinite(void *p)
{
    bench_arg *a = p;
    a->sink += a->k->first_nonfinite(a->rows, BENCH_DIM, BENCH_DIM, BENCH_ROWS);
}

static void bench_entry(ck *t, const char *what, const char *name, void (*call)(void *),
                        bench_arg *a, double *scalar_ns, size_t isa)
{
    const double elements = (double)BENCH_ROWS * BENCH_DIM;
    char entry[32];

    snprintf(entry, sizeof entry, "%s%s", what, name);
    if (!ck_wants(t, entry))
        return;
    double ns = ck_bench(t, entry, t->isas[isa].name, call, a, elements, elements * 4);
    if (call == call_encode && a->c->effort && !t->csv)
        printf("%-22s %-7s %10.3f us a row and stretch\n", entry, t->isas[isa].name,
               ns / 1e3 / BENCH_ROWS / a->c->effort);
    if (isa == 0)
        *scalar_ns = ns;
    else if (!t->csv)
        printf("%-22s %-7s %10.1fx scalar\n", entry, t->isas[isa].name, *scalar_ns / ns);
}

static void bench(ck *t)
{
    float *rows = ck_buffer(t, 0, BENCH_ROWS * BENCH_DIM * sizeof(float), 1);
    float *out = ck_buffer(t, 2, BENCH_ROWS * BENCH_DIM * sizeof(float), 1);
    double encode_ns = 0;
    double decode_ns = 0;
    double rotated_ns = 0;
    double finite_ns = 0;

    for (size_t i = 0; i < BENCH_ROWS * BENCH_DIM; i++)
        rows[i] = ck_normal(t);
    for (size_t f = 0; f < N_FORMATS; f++) {
        tq_codec c;
        if (tq_codec_init(&c, formats[f].format, BENCH_DIM, 0, 0) != TQ_OK)
            continue;
        uint8_t *blocks = ck_buffer(t, 1, BENCH_ROWS * c.block_bytes, 1);
        for (size_t isa = 0; isa < t->n_isas; isa++) {
            bench_arg a = {&c,   t->isas[isa].kernels->codec, tq_codec_planes(&c, blocks),
                           rows, tq_kfmt(formats[f].format),  0};
            call_encode(&a); /* decode reads real blocks, whatever the filter */
            bench_entry(t, "encode_", formats[f].name, call_encode, &a, &encode_ns, isa);
            a.rows = out;
            bench_entry(t, "decode_", formats[f].name, call_decode, &a, &decode_ns, isa);
            bench_entry(t, "decode_rotated_", formats[f].name, call_decode_rotated, &a, &rotated_ns,
                        isa);
        }
    }
    for (size_t isa = 0; isa < t->n_isas; isa++) {
        bench_arg a = {.k = t->isas[isa].kernels->codec, .rows = rows};
        bench_entry(t, "first_nonfinite", "", call_first_nonfinite, &a, &finite_ns, isa);
    }
}

const ck_module ck_module_codec = {"codec", check, bench};
