/* SPDX-License-Identifier: MIT */
/* codec.c — formats and their row layouts; the checks in front of the kernels.
 *
 * A codec is a small constant record: which format, which dimension, how many bytes each plane of
 * a row takes, which kernel table. Arithmetic lives in cpu/scalar.c and its faster twins.
 */
#include "codec.h"

#include <assert.h>

typedef struct format_info {
    tq_format format;
    uint8_t kfmt;
    uint8_t bits;
    uint8_t has_scale; /* f16 per group of 32 */
    uint8_t has_zero;
    uint8_t rotated;
} format_info;

static const format_info formats[] = {
    {TQ_FMT_F32, TQ_KF32, 32, 0, 0, 0},          {TQ_FMT_F16, TQ_KF16, 16, 0, 0, 0},
    {TQ_FMT_BF16, TQ_KBF16, 16, 0, 0, 0},        {TQ_FMT_AFFINE_K2, TQ_KAFFINE2, 2, 1, 1, 0},
    {TQ_FMT_AFFINE_K4, TQ_KAFFINE4, 4, 1, 1, 0}, {TQ_FMT_AFFINE_K5, TQ_KAFFINE5, 5, 1, 1, 0},
    {TQ_FMT_AFFINE_K8, TQ_KAFFINE8, 8, 1, 1, 0}, {TQ_FMT_LLOYD_V2, TQ_KLLOYD2, 2, 1, 0, 1},
    {TQ_FMT_LLOYD_V3, TQ_KLLOYD3, 3, 1, 0, 1},   {TQ_FMT_LLOYD_V4, TQ_KLLOYD4, 4, 1, 0, 1},
    {TQ_FMT_LLOYD_V5, TQ_KLLOYD5, 5, 1, 0, 1},   {TQ_FMT_LLOYD_V8, TQ_KLLOYD8, 8, 1, 0, 1},
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

int tq_format_takes_dim(tq_format f, uint32_t dim)
{
    const format_info *info = format_find(f);
    if (!info)
        return 0;
    if (info->has_scale)
        return dim == 64 || dim == 128 || dim == 256 || dim == 512;
    return dim % 8 == 0 && dim >= 16 && dim <= TQ_DIM_MAX;
}

tq_status tq_codec_init(tq_codec *c, tq_format format, uint32_t dim, uint32_t flags,
                        uint32_t isa_mask)
{
    const format_info *info = format_find(format);

    if (!c || !info || (flags & ~TQ_CODEC_STRICT))
        return TQ_ERR_ARG;
    if (flags && !info->has_scale)
        return TQ_ERR_ARG; /* raw formats have one arithmetic only */
    if (!tq_format_takes_dim(format, dim))
        return TQ_ERR_DIM;

    *c = (tq_codec){
        .format = format,
        .dim = dim,
        .bits = info->bits,
        .n_groups = info->has_scale ? dim / 32 : 0,
        .code_bytes = (size_t)dim * info->bits / 8,
        .flags = flags,
        .rotated = info->rotated,
        .kernels = tq_kernels_get(isa_mask),
    };
    c->scale_bytes = info->has_scale ? (size_t)c->n_groups * 2 : 0;
    c->zero_bytes = info->has_zero ? (size_t)c->n_groups * 2 : 0;
    c->block_bytes = c->code_bytes + c->scale_bytes + c->zero_bytes;
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

tq_status tq_codec_encode_planes(const tq_codec *c, tq_planes dst, const float *src,
                                 size_t src_stride, size_t n, size_t *bad_row)
{
    const tq_codec_kernels *k = c->kernels->codec;
    tq_encode_fn *encode = k->encode[tq_kfmt(c->format)];

    for (size_t row = 0; row < n; row += TILE_ROWS) {
        size_t rows = n - row < TILE_ROWS ? n - row : TILE_ROWS;
        const float *x = src + row * src_stride;
        size_t finite = k->first_nonfinite(x, src_stride, c->dim, rows);

        if (finite)
            encode(c, planes_at(dst, row), x, src_stride, finite);
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

tq_status tq_codec_encode(const tq_codec *c, void *dst, size_t dst_bytes, const float *src,
                          size_t src_stride, size_t n, size_t *bad_row)
{
    if (!c || (n && (!dst || !src || src_stride < c->dim)))
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
    if (!c || (n && (!dst || !src || dst_stride < c->dim)))
        return TQ_ERR_ARG;
    if (n > src_bytes / c->block_bytes)
        return TQ_ERR_SIZE;
    if (n)
        tq_codec_decode_planes(c, dst, dst_stride, tq_codec_const_planes(c, src), n, 0);
    return TQ_OK;
}
