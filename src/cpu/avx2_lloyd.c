/* SPDX-License-Identifier: MIT */
/* avx2_lloyd.c — the transform of Lloyd values for AVX2, and their decoder; the encoder is
 * avx2_lloyd_encode.c. */
#include "cpu/avx2.h"
#include "codec.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_rotated.h"

TQ_INLINE void rotate_row(float *y, const float *x, uint32_t dim)
{
    switch (dim) {
    case 64:
        tq_hadamard(y, x, 64, tq_sign_table(64), NULL);
        break;
    case 128:
        tq_hadamard(y, x, 128, tq_sign_table(128), NULL);
        break;
    case 256:
        tq_hadamard(y, x, 256, tq_sign_table(256), NULL);
        break;
    case 512:
        tq_hadamard(y, x, 512, tq_sign_table(512), NULL);
        break;
    default:
        memcpy(y, x, dim * sizeof(float));
        tq_avx2_rotate(y, dim);
        break;
    }
}

/* Powers of two with a transform in registers. */
static int is_direct(uint32_t dim)
{
    return dim == 64 || dim == 128 || dim == 256 || dim == 512;
}

/* The steps around the transform of other dimensions, in the order of rotate.c. */
static void scale_by(float *x, uint32_t dim, const float *sign, float scale)
{
    const __m256 scale8 = _mm256_set1_ps(scale);
    for (uint32_t j = 0; j < dim; j += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + j), scale8);
        _mm256_storeu_ps(x + j, sign ? _mm256_mul_ps(v, _mm256_loadu_ps(sign + j)) : v);
    }
}

void tq_avx2_rotate(float *x, uint32_t dim)
{
    if (is_direct(dim)) {
        rotate_row(x, x, dim);
        return;
    }
    scale_by(x, dim, tq_sign_table(dim), 1);
    tq_avx2_hadamard(x, dim);
    scale_by(x, dim, NULL, tq_rotate_scale(dim));
}

void tq_avx2_unrotate(float *x, uint32_t dim)
{
    if (!is_direct(dim)) {
        tq_avx2_hadamard(x, dim);
        scale_by(x, dim, tq_sign_table(dim), tq_rotate_scale(dim));
        return;
    }
    switch (dim) {
    case 64:
        tq_hadamard(x, x, 64, NULL, tq_sign_table(64));
        break;
    case 128:
        tq_hadamard(x, x, 128, NULL, tq_sign_table(128));
        break;
    case 256:
        tq_hadamard(x, x, 256, NULL, tq_sign_table(256));
        break;
    default:
        tq_hadamard(x, x, 512, NULL, tq_sign_table(512));
        break;
    }
}

TQ_INLINE void decode_row(const tq_codec *c, float *out, const uint8_t *codes, const uint8_t *scale,
                          const tq_lloyd_regs *regs, int b)
{
    const uint32_t n_whole = c->dim / 64 * 2; /* groups with a neighbour */
    __m256i idx[4];

    for (uint32_t g = 0; g < n_whole; g++) {
        __m256 s = tq_broadcast_f16(scale + (size_t)g * 2);

        tq_unpack_group(idx, codes, g, b);
        for (int k = 0; k < 4; k++)
            _mm256_storeu_ps(out + TQ_GROUP * g + 8 * k,
                             _mm256_mul_ps(tq_lloyd_lookup(regs, idx[k], b), s));
    }
    for (uint32_t g = n_whole; g < c->n_groups; g++) {
        const uint32_t size = tq_group_size(c->dim, g);
        __m256 s = tq_broadcast_f16(scale + (size_t)g * 2);

        tq_unpack_last(idx, codes + (size_t)g * 4 * (size_t)b, size, b);
        for (uint32_t k = 0; k < size / 8; k++)
            _mm256_storeu_ps(out + TQ_GROUP * g + 8 * k,
                             _mm256_mul_ps(tq_lloyd_lookup(regs, idx[k], b), s));
    }
}

TQ_INLINE void decode_lloyd(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                            size_t n, int b, int rotated)
{
    const tq_lloyd_regs regs = tq_lloyd_load(b);

    for (size_t row = 0; row < n; row++) {
        float *out = dst + row * dst_stride;
        decode_row(c, out, src.codes + row * src.codes_stride, src.scale + row * src.scale_stride,
                   &regs, b);
        if (!rotated)
            tq_avx2_unrotate(out, c->dim);
    }
}

#define LLOYD(b)                                                                                   \
    void tq_avx2_decode_v##b(const tq_codec *c, float *dst, size_t dst_stride,                     \
                             tq_const_planes src, size_t n)                                        \
    {                                                                                              \
        decode_lloyd(c, dst, dst_stride, src, n, b, 0);                                            \
    }                                                                                              \
    void tq_avx2_decode_rotated_v##b(const tq_codec *c, float *dst, size_t dst_stride,             \
                                     tq_const_planes src, size_t n)                                \
    {                                                                                              \
        decode_lloyd(c, dst, dst_stride, src, n, b, 1);                                            \
    }

LLOYD(2)
LLOYD(3)
LLOYD(4)
LLOYD(5)
LLOYD(8)
