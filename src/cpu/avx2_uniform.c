/* SPDX-License-Identifier: MIT */
/* avx2_uniform.c — uniform affine groups of 32, 64 or 128, docs/format.md 10.
 *
 * Range, codes and packing by 32 elements. Where a group or the row ends earlier, the piece is
 * filled up with its first element and the surplus codes are cut off. Scale and offset are one
 * number a group: they are computed as the reference does, from the stored f16.
 */
#include "cpu/avx2.h"
#include "cpu/avx2_codec.h"
#include "f16.h"

enum { PIECE = 32 };

TQ_INLINE float lowest(__m256 v)
{
    __m128 x = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_min_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_min_ss(x, _mm_movehdup_ps(x)));
}

TQ_INLINE float highest(__m256 v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* Scale and offset of x [n], n a multiple of 8, as they are stored. */
TQ_INLINE void uniform_range(const float *x, uint32_t n, float m, uint16_t *scale, uint16_t *offset)
{
    __m256 lo = _mm256_loadu_ps(x), hi = lo;

    for (uint32_t j = 8; j < n; j += 8) {
        __m256 v = _mm256_loadu_ps(x + j);
        lo = _mm256_min_ps(lo, v);
        hi = _mm256_max_ps(hi, v);
    }
    const float mn = lowest(lo) + 0.0f; /* no -0, whichever of two equal zeros was found */
    float mx = highest(hi);
    if (mn == 0 && mx == 0)
        mx = x[0]; /* the reference keeps the first of equal zeros */
    *scale = tq_f16_from_f32_sat((mx - mn) / m);
    *offset = tq_f16_from_f32_sat(mn);
}

/* Codes of 32 elements, one byte each. s is not 0. */
TQ_INLINE __m256i codes32(const float *x, __m256 s, __m256 o, __m256 m)
{
    __m256i idx[4];

    for (int k = 0; k < 4; k++) {
        __m256 v = _mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(x + 8 * k), o), s);
        v = _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        v = _mm256_min_ps(_mm256_max_ps(v, _mm256_setzero_ps()), m);
        idx[k] = _mm256_cvtps_epi32(v);
    }
    return tq_narrow_group(idx, 0);
}

TQ_INLINE void encode_group(uint8_t *codes, uint8_t *scale, uint8_t *offset, const float *x,
                            uint32_t n, const int b)
{
    const float top = (float)((1 << b) - 1);
    uint16_t s16, o16;

    uniform_range(x, n, top, &s16, &o16);
    tq_store_le16(scale, s16);
    tq_store_le16(offset, o16);
    if (!(tq_f32_from_f16(s16) > 0)) {
        memset(codes, 0, n * (uint32_t)b / 8);
        return;
    }
    const __m256 s = _mm256_set1_ps(tq_f32_from_f16(s16)), m = _mm256_set1_ps(top);
    const __m256 o = _mm256_set1_ps(tq_f32_from_f16(o16));
    uint32_t j = 0;

    for (; j + PIECE <= n; j += PIECE)
        tq_pack_group(codes + j * (uint32_t)b / 8, codes32(x + j, s, o, m), b);
    if (j < n) {
        float filled[PIECE];
        uint8_t all[PIECE];
        for (uint32_t i = 0; i < PIECE; i++)
            filled[i] = x[j + i < n ? j + i : j];
        tq_pack_group(all, codes32(filled, s, o, m), b);
        memcpy(codes + j * (uint32_t)b / 8, all, (n - j) * (uint32_t)b / 8);
    }
}

TQ_INLINE void encode_uniform(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                              size_t n, const int b)
{
    for (size_t row = 0; row < n; row++) {
        const float *x = src + row * src_stride;
        for (uint32_t g = 0, at = 0; g < c->n_groups; g++, at += c->group)
            encode_group(dst.codes + row * dst.codes_stride + (size_t)at * (size_t)b / 8,
                         dst.scale + row * dst.scale_stride + 2 * (size_t)g,
                         dst.zero + row * dst.zero_stride + 2 * (size_t)g, x + at,
                         c->dim - at < c->group ? c->dim - at : c->group, b);
    }
}

TQ_INLINE void put_values(float *out, const __m256i *idx, __m256 s, __m256 o, uint32_t n)
{
#pragma GCC unroll 4
    for (uint32_t k = 0; k < n / 8; k++)
        _mm256_storeu_ps(out + 8 * k,
                         _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(idx[k]), s), o));
}

TQ_INLINE void decode_uniform(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                              size_t n, const int b)
{
    for (size_t row = 0; row < n; row++) {
        const uint8_t *codes = src.codes + row * src.codes_stride;
        float *out = dst + row * dst_stride;
        for (uint32_t at = 0; at < c->dim; at += PIECE) {
            const size_t g = at / c->group;
            const __m256 s = tq_broadcast_f16(src.scale + row * src.scale_stride + 2 * g);
            const __m256 o = tq_broadcast_f16(src.zero + row * src.zero_stride + 2 * g);
            __m256i idx[4];

            if (c->dim - at >= PIECE) {
                tq_unpack_group(idx, codes + (size_t)at * (size_t)b / 8, 0, b);
                put_values(out + at, idx, s, o, PIECE);
            } else {
                tq_unpack_last(idx, codes + (size_t)at * (size_t)b / 8, c->dim - at, b);
                put_values(out + at, idx, s, o, c->dim - at);
            }
        }
    }
}

#define UNIFORM(b)                                                                                 \
    void tq_avx2_encode_uniform##b(const tq_codec *c, tq_planes dst, const float *src,             \
                                   size_t src_stride, size_t n)                                    \
    {                                                                                              \
        encode_uniform(c, dst, src, src_stride, n, b);                                             \
    }                                                                                              \
    void tq_avx2_decode_uniform##b(const tq_codec *c, float *dst, size_t dst_stride,               \
                                   tq_const_planes src, size_t n)                                  \
    {                                                                                              \
        decode_uniform(c, dst, dst_stride, src, n, b);                                             \
    }

UNIFORM(4)
UNIFORM(8)
