/* SPDX-License-Identifier: MIT */
/* codec.c — formats and their row layouts; the checks in front of the kernels.
 *
 * A codec is a small constant record: which format, which dimension, how many bytes each plane of
 * a row takes, which kernel table. Arithmetic lives in cpu/scalar.c and its faster twins.
 */
#include "codec.h"
#include "rotate.h"

#include <assert.h>

/* How a row is laid out, and so which dimensions and flags it takes. */
typedef enum row_layout {
    ROW_RAW,     /* elements as they are */
    ROW_AFFINE,  /* f16 scale and zero point per 32; the last group may be shorter */
    ROW_LLOYD,   /* f16 scale per 32, the same */
    ROW_ROTATED, /* one f16 scale; an f16 mean with TQ_CODEC_MEAN */
    ROW_MSE,     /* one f16 scale */
    ROW_PROD,    /* two f16 scales; one for 1 bit */
    ROW_UNIFORM, /* f16 scale and offset per group */
    ROW_FORK     /* blocks of 128 with their norm in front of the codes */
} row_layout;

typedef struct format_info {
    tq_format format;
    uint8_t kfmt;
    uint8_t bits;
    uint8_t layout;
} format_info;

static const format_info formats[] = {
    {TQ_FMT_F32, TQ_KF32, 32, ROW_RAW},
    {TQ_FMT_F16, TQ_KF16, 16, ROW_RAW},
    {TQ_FMT_BF16, TQ_KBF16, 16, ROW_RAW},
    {TQ_FMT_AFFINE_K2, TQ_KAFFINE2, 2, ROW_AFFINE},
    {TQ_FMT_AFFINE_K4, TQ_KAFFINE4, 4, ROW_AFFINE},
    {TQ_FMT_AFFINE_K5, TQ_KAFFINE5, 5, ROW_AFFINE},
    {TQ_FMT_AFFINE_K8, TQ_KAFFINE8, 8, ROW_AFFINE},
    {TQ_FMT_LLOYD_V2, TQ_KLLOYD2, 2, ROW_LLOYD},
    {TQ_FMT_LLOYD_V3, TQ_KLLOYD3, 3, ROW_LLOYD},
    {TQ_FMT_LLOYD_V4, TQ_KLLOYD4, 4, ROW_LLOYD},
    {TQ_FMT_LLOYD_V5, TQ_KLLOYD5, 5, ROW_LLOYD},
    {TQ_FMT_LLOYD_V8, TQ_KLLOYD8, 8, ROW_LLOYD},
    {TQ_FMT_NORM2, TQ_KNORM2, 2, ROW_ROTATED},
    {TQ_FMT_NORM3, TQ_KNORM3, 3, ROW_ROTATED},
    {TQ_FMT_NORM4, TQ_KNORM4, 4, ROW_ROTATED},
    {TQ_FMT_NORM5, TQ_KNORM5, 5, ROW_ROTATED},
    {TQ_FMT_NORM6, TQ_KNORM6, 6, ROW_ROTATED},
    {TQ_FMT_NORM8, TQ_KNORM8, 8, ROW_ROTATED},
    {TQ_FMT_TCQ2, TQ_KTCQ2, 2, ROW_ROTATED},
    {TQ_FMT_TCQ3, TQ_KTCQ3, 3, ROW_ROTATED},
    {TQ_FMT_TCQ4, TQ_KTCQ4, 4, ROW_ROTATED},
    {TQ_FMT_TCQ5, TQ_KTCQ5, 5, ROW_ROTATED},
    {TQ_FMT_TCQ6, TQ_KTCQ6, 6, ROW_ROTATED},
    {TQ_FMT_UNIFORM4, TQ_KUNIFORM4, 4, ROW_UNIFORM},
    {TQ_FMT_UNIFORM8, TQ_KUNIFORM8, 8, ROW_UNIFORM},
    {TQ_FMT_MSE1, TQ_KMSE1, 1, ROW_MSE},
    {TQ_FMT_MSE2, TQ_KMSE2, 2, ROW_MSE},
    {TQ_FMT_MSE3, TQ_KMSE3, 3, ROW_MSE},
    {TQ_FMT_MSE4, TQ_KMSE4, 4, ROW_MSE},
    {TQ_FMT_PROD1, TQ_KPROD1, 1, ROW_PROD},
    {TQ_FMT_PROD2, TQ_KPROD2, 2, ROW_PROD},
    {TQ_FMT_PROD3, TQ_KPROD3, 3, ROW_PROD},
    {TQ_FMT_PROD4, TQ_KPROD4, 4, ROW_PROD},
    {TQ_FMT_FORK2, TQ_KFORK2, 2, ROW_FORK},
    {TQ_FMT_FORK3, TQ_KFORK3, 3, ROW_FORK},
    {TQ_FMT_FORK4, TQ_KFORK4, 4, ROW_FORK},
};

static const format_info *format_find(tq_format f)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (formats[i].format == f)
            return &formats[i];
    return NULL;
}

int tq_kfmt(tq_format f)
{
    const format_info *info = format_find(f);
    return info ? info->kfmt : TQ_N_KFMT;
}

static int layout_takes_dim(row_layout layout, uint32_t dim)
{
    switch (layout) {
    case ROW_LLOYD:
    case ROW_ROTATED:
    case ROW_MSE:
    case ROW_PROD:
        return tq_hadamard_takes(dim);
    case ROW_FORK:
        return dim % TQ_FORK_BLOCK == 0 && dim > 0 && dim <= TQ_DIM_MAX;
    default:
        return dim % 8 == 0 && dim >= 16 && dim <= TQ_DIM_MAX;
    }
}

int tq_format_takes_dim(tq_format f, uint32_t dim)
{
    const format_info *info = format_find(f);
    return info && layout_takes_dim((row_layout)info->layout, dim);
}

static int layout_takes_flags(row_layout layout, uint32_t flags)
{
    switch (layout) {
    case ROW_AFFINE:
    case ROW_LLOYD:
        return (flags & ~TQ_CODEC_STRICT) == 0;
    case ROW_ROTATED:
        return (flags & ~(TQ_CODEC_MEAN | TQ_CODEC_EFFORT_12)) == 0;
    case ROW_UNIFORM:
        return flags == 0 || flags == TQ_CODEC_GROUP_32 || flags == TQ_CODEC_GROUP_128;
    default:
        return flags == 0; /* one arithmetic, one layout */
    }
}

static uint32_t effort_of(tq_format format, uint32_t flags)
{
    if (format == TQ_FMT_NORM8)
        return 1; /* its scale follows from the largest coordinate */
    switch (flags & TQ_CODEC_EFFORT_12) {
    case TQ_CODEC_EFFORT_1:
        return 1;
    case TQ_CODEC_EFFORT_12:
        return 12;
    default:
        return 3;
    }
}

/* Groups and the bytes of the planes. */
static void codec_layout(tq_codec *c, row_layout layout)
{
    c->code_bytes = (size_t)c->dim * c->bits / 8;
    switch (layout) {
    case ROW_RAW:
        break;
    case ROW_AFFINE:
    case ROW_LLOYD:
        c->group = 32;
        break;
    case ROW_ROTATED:
    case ROW_MSE:
    case ROW_PROD:
        c->group = c->dim;
        c->rotated = 1;
        break;
    case ROW_UNIFORM:
        c->group = c->flags & TQ_CODEC_GROUP_32 ? 32 : c->flags & TQ_CODEC_GROUP_128 ? 128 : 64;
        break;
    case ROW_FORK: /* a norm, and for 4 bits an unused zero, in front of each block's codes */
        c->code_bytes += (size_t)c->dim / TQ_FORK_BLOCK * (c->bits == 4 ? 4 : 2);
        break;
    }
    if (c->group)
        c->n_groups = (c->dim + c->group - 1) / c->group;
    c->scale_bytes = (size_t)c->n_groups * 2;
    if (layout == ROW_PROD && c->bits > 1)
        c->scale_bytes = 4;
    if (layout == ROW_AFFINE || layout == ROW_UNIFORM || (c->flags & TQ_CODEC_MEAN))
        c->zero_bytes = (size_t)c->n_groups * 2;
    if (layout == ROW_LLOYD)
        c->rotated = 1;
    c->block_bytes = c->code_bytes + c->scale_bytes + c->zero_bytes;
}

tq_status tq_codec_init(tq_codec *c, tq_format format, uint32_t dim, uint32_t flags,
                        uint32_t isa_mask)
{
    const format_info *info = format_find(format);

    if (!c || !info || !layout_takes_flags((row_layout)info->layout, flags))
        return TQ_ERR_ARG;
    if (!layout_takes_dim((row_layout)info->layout, dim))
        return TQ_ERR_DIM;

    *c = (tq_codec){
        .format = format,
        .dim = dim,
        .bits = info->bits,
        .flags = flags,
        .kernels = info->layout == ROW_AFFINE || info->layout == ROW_LLOYD
                       ? tq_kernels_grouped(isa_mask, dim)
                       : tq_kernels_get(isa_mask),
    };
    if (info->layout == ROW_ROTATED)
        c->effort = effort_of(format, flags);
    codec_layout(c, (row_layout)info->layout);
    return TQ_OK;
}

tq_planes tq_codec_planes(const tq_codec *c, void *base)
{
    uint8_t *p = base;
    return (tq_planes){
        .codes = p,
        .scale = c->scale_bytes ? p + c->code_bytes : NULL,
        .zero = c->zero_bytes ? p + c->code_bytes + c->scale_bytes : NULL,
        .codes_stride = c->block_bytes,
        .scale_stride = c->block_bytes,
        .zero_stride = c->block_bytes,
    };
}

tq_const_planes tq_codec_const_planes(const tq_codec *c, const void *base)
{
    const uint8_t *p = base;
    return (tq_const_planes){
        .codes = p,
        .scale = c->scale_bytes ? p + c->code_bytes : NULL,
        .zero = c->zero_bytes ? p + c->code_bytes + c->scale_bytes : NULL,
        .codes_stride = c->block_bytes,
        .scale_stride = c->block_bytes,
        .zero_stride = c->block_bytes,
    };
}

/* Rows that are checked and then encoded while they are still in the first cache. */
#define TILE_ROWS 16u

static tq_planes planes_at(tq_planes p, size_t row)
{
    p.codes += row * p.codes_stride;
    if (p.scale)
        p.scale += row * p.scale_stride;
    if (p.zero)
        p.zero += row * p.zero_stride;
    return p;
}

/* Ask for a tile of rows from `row` on, as far as there are any. */
static void look_ahead(const float *src, size_t src_stride, size_t dim, size_t row, size_t n)
{
    const size_t end = row + TILE_ROWS < n ? row + TILE_ROWS : n;
    for (; row < end; row++)
#pragma GCC unroll 8
        for (size_t i = 0; i < dim; i += 64 / sizeof *src)
            __builtin_prefetch(src + row * src_stride + i);
}

tq_status tq_codec_encode_planes(const tq_codec *c, tq_planes dst, const float *src,
                                 size_t src_stride, size_t n, size_t *bad_row)
{
    const tq_codec_kernels *k = c->kernels->codec;
    tq_encode_fn *encode = k->encode[tq_kfmt(c->format)];
    const int asks = (int)(k->asks_ahead >> tq_kfmt(c->format) & 1);

    for (size_t row = 0; row < n; row += TILE_ROWS) {
        size_t rows = n - row < TILE_ROWS ? n - row : TILE_ROWS;
        const float *x = src + row * src_stride;
        size_t finite = k->first_nonfinite(x, src_stride, c->dim, rows);

        /* What comes next arrives while these are encoded. */
        tq_planes to = planes_at(dst, row);
        if (asks)
            to.ahead = finite < rows ? 0 : n - row - rows;
        else
            look_ahead(src, src_stride, c->dim, row + TILE_ROWS, n);
        if (finite)
            encode(c, to, x, src_stride, finite);
        if (finite < rows) {
            if (bad_row)
                *bad_row = row + finite;
            return TQ_ERR_NONFINITE;
        }
    }
    return TQ_OK;
}

void tq_codec_decode_planes(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                            size_t n, int rotated)
{
    const tq_codec_kernels *k = c->kernels->codec;
    int kfmt = tq_kfmt(c->format);

    (rotated ? k->decode_rotated : k->decode)[kfmt](c, dst, dst_stride, src, n);
}

/* All zero, as before tq_codec_init or after it failed, a codec is none. */
static int is_ready(const tq_codec *c)
{
    return c && c->kernels && c->block_bytes;
}

tq_status tq_codec_encode(const tq_codec *c, void *dst, size_t dst_bytes, const float *src,
                          size_t src_stride, size_t n, size_t *bad_row)
{
    if (!is_ready(c) || (n && (!dst || !src || src_stride < c->dim)))
        return TQ_ERR_ARG;
    if (n > dst_bytes / c->block_bytes)
        return TQ_ERR_SIZE;
    if (n == 0)
        return TQ_OK;
    return tq_codec_encode_planes(c, tq_codec_planes(c, dst), src, src_stride, n, bad_row);
}

tq_status tq_codec_decode(const tq_codec *c, float *dst, size_t dst_stride, const void *src,
                          size_t src_bytes, size_t n)
{
    if (!is_ready(c) || (n && (!dst || !src || dst_stride < c->dim)))
        return TQ_ERR_ARG;
    if (n > src_bytes / c->block_bytes)
        return TQ_ERR_SIZE;
    if (n)
        tq_codec_decode_planes(c, dst, dst_stride, tq_codec_const_planes(c, src), n, 0);
    return TQ_OK;
}
