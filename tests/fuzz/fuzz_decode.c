/* SPDX-License-Identifier: MIT */
/* fuzz_decode.c — any bytes through every codec, as stored blocks and as input rows.
 *
 * Input: a byte for the format, one for the dimension, one for flags; the rest is used twice. Flags
 * and dimensions that a format refuses are refused on every ISA.
 * As blocks: decoding never fails, reads no byte past them, and gives equal numbers on every ISA,
 * one block at a time or all at once. As f32 rows: a NaN or Inf is refused and its row named;
 * otherwise bytes are equal on every ISA, one row at a time or all at once, and what the guarded
 * encoder wrote decodes to finite numbers. */
#include "turboquant.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

enum { MAX_ROWS = 9, MAX_DIM = 1024 };

static const tq_format formats[] = {
    TQ_FMT_F32,       TQ_FMT_F16,       TQ_FMT_BF16,     TQ_FMT_AFFINE_K2, TQ_FMT_AFFINE_K4,
    TQ_FMT_AFFINE_K5, TQ_FMT_AFFINE_K8, TQ_FMT_LLOYD_V2, TQ_FMT_LLOYD_V3,  TQ_FMT_LLOYD_V4,
    TQ_FMT_LLOYD_V5,  TQ_FMT_LLOYD_V8,  TQ_FMT_NORM2,    TQ_FMT_NORM3,     TQ_FMT_NORM4,
    TQ_FMT_NORM5,     TQ_FMT_NORM6,     TQ_FMT_NORM8,    TQ_FMT_TCQ2,      TQ_FMT_TCQ3,
    TQ_FMT_TCQ4,      TQ_FMT_TCQ5,      TQ_FMT_TCQ6,     TQ_FMT_UNIFORM4,  TQ_FMT_UNIFORM8,
    TQ_FMT_MSE1,      TQ_FMT_MSE2,      TQ_FMT_MSE3,     TQ_FMT_MSE4,      TQ_FMT_PROD1,
    TQ_FMT_PROD2,     TQ_FMT_PROD3,     TQ_FMT_PROD4,    TQ_FMT_FORK2,     TQ_FMT_FORK3,
    TQ_FMT_FORK4,
};

static const uint32_t isas[] = {TQ_ISA_SCALAR, TQ_ISA_AVX2, TQ_ISA_AVX512, TQ_ISA_NEON, TQ_ISA_ALL};

static int same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(isnan(a[i]) && isnan(b[i])) && memcmp(a + i, b + i, sizeof *a) != 0)
            return 0;
    return 1;
}

static void as_blocks(const tq_codec *ref, const uint8_t *bytes, size_t n_bytes)
{
    static float want[MAX_ROWS * MAX_DIM], got[MAX_ROWS * MAX_DIM];
    size_t n = n_bytes / ref->block_bytes;
    size_t dim = ref->dim;

    n = n < MAX_ROWS ? n : MAX_ROWS;
    MUST(tq_codec_decode(ref, want, dim, bytes, n_bytes, n_bytes / ref->block_bytes + 1) ==
         TQ_ERR_SIZE);
    MUST(tq_codec_decode(ref, want, dim, bytes, n_bytes, n) == TQ_OK);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        tq_codec c;
        MUST(tq_codec_init(&c, ref->format, ref->dim, ref->flags, isas[i]) == TQ_OK);
        MUST(tq_codec_decode(&c, got, dim, bytes, n_bytes, n) == TQ_OK);
        MUST(same(want, got, n * dim));
        for (size_t row = 0; row < n; row++) {
            MUST(tq_codec_decode(&c, got, dim, bytes + row * c.block_bytes, c.block_bytes, 1) ==
                 TQ_OK);
            MUST(same(want + row * dim, got, dim));
        }
    }
}

static size_t first_bad_row(const float *x, size_t n, size_t dim)
{
    for (size_t i = 0; i < n * dim; i++)
        if (!isfinite(x[i]))
            return i / dim;
    return n;
}

static void check_decoded(const tq_codec *c, const uint8_t *blocks, size_t n)
{
    static float y[MAX_ROWS * MAX_DIM];

    MUST(tq_codec_decode(c, y, c->dim, blocks, n * c->block_bytes, n) == TQ_OK);
    for (size_t i = 0; i < n * c->dim; i++)
        MUST((c->flags & TQ_CODEC_STRICT) || c->format >= TQ_FMT_FORK2 || isfinite(y[i]));
}

static void as_rows(const tq_codec *ref, const uint8_t *bytes, size_t n_bytes)
{
    static float x[MAX_ROWS * MAX_DIM];
    static uint8_t want[MAX_ROWS * MAX_DIM * 4], got[MAX_ROWS * MAX_DIM * 4];
    size_t dim = ref->dim;
    size_t n = n_bytes / (dim * sizeof(float));

    n = n < MAX_ROWS ? n : MAX_ROWS;
    memcpy(x, bytes, n * dim * sizeof(float));
    size_t bad = first_bad_row(x, n, dim);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        tq_codec c;
        size_t bad_row = SIZE_MAX;
        uint8_t *dst = i == 0 ? want : got;
        MUST(tq_codec_init(&c, ref->format, ref->dim, ref->flags, isas[i]) == TQ_OK);
        tq_status s = tq_codec_encode(&c, dst, n * c.block_bytes, x, dim, n, &bad_row);
        MUST(s == (bad < n ? TQ_ERR_NONFINITE : TQ_OK));
        MUST(bad == n || bad_row == bad);
        MUST(memcmp(want, dst, bad * c.block_bytes) == 0);
        for (size_t row = 0; row < bad; row++) {
            MUST(tq_codec_encode(&c, got, c.block_bytes, x + row * dim, dim, 1, NULL) == TQ_OK);
            MUST(memcmp(want + row * c.block_bytes, got, c.block_bytes) == 0);
        }
    }
    check_decoded(ref, want, bad);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t group_dims[] = {64, 128, 256, 512, 16, 80, 192, 576};
    tq_codec c;

    if (size < 3)
        return 0;
    tq_format format = formats[data[0] % (sizeof(formats) / sizeof(formats[0]))];
    int grouped = format >= TQ_FMT_AFFINE_K2 && format <= TQ_FMT_LLOYD_V8;
    uint32_t dim = grouped ? group_dims[data[1] % 8] : 16 + 8 * ((uint32_t)data[1] % 127);
    uint32_t flags = data[2];
    if (tq_codec_init(&c, format, dim, flags, 0) != TQ_OK) {
        flags = grouped ? flags & TQ_CODEC_STRICT : 0;
        if (tq_codec_init(&c, format, dim, flags, 0) != TQ_OK) {
            dim = 128;
            MUST(tq_codec_init(&c, format, dim, flags, 0) == TQ_OK);
        }
    }
    as_blocks(&c, data + 3, size - 3);
    as_rows(&c, data + 3, size - 3);
    return 0;
}
