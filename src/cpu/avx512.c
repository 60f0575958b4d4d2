/* SPDX-License-Identifier: MIT */
/* avx512.c — the AVX-512 codec table, and the raw formats. Compiled for avx512 f + bw + vl + dq;
 * runs only where dispatch.c found them. Affine keys and Lloyd values have files of their own.
 *
 * Raw rows have a multiple of eight elements: vectors of sixteen, the last one perhaps masked.
 */
#include "cpu/avx512.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx512_codec.h"
#include "cpu/scalar.h"

static void encode_f32(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                       size_t n)
{
    for (size_t row = 0; row < n; row++)
        memcpy(dst.codes + row * dst.codes_stride, src + row * src_stride, c->code_bytes);
}

static void decode_f32(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                       size_t n)
{
    for (size_t row = 0; row < n; row++)
        memcpy(dst + row * dst_stride, src.codes + row * src.codes_stride, c->code_bytes);
}

static void encode_f16(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                       size_t n)
{
    const __m512 max = _mm512_set1_ps(65504.0f);
    const __m512 min = _mm512_set1_ps(-65504.0f);

    for (size_t row = 0; row < n; row++) {
        uint8_t *out = dst.codes + row * dst.codes_stride;
        for (uint32_t i = 0; i < c->dim; i += 16) {
            __mmask16 m = tq_lanes_left(c->dim - i);
            __m512 x = _mm512_maskz_loadu_ps(m, src + row * src_stride + i);
            x = _mm512_max_ps(_mm512_min_ps(x, max), min);
            _mm256_mask_storeu_epi16(out + (size_t)i * 2, m,
                                     _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        }
    }
}

static void decode_f16(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                       size_t n)
{
    for (size_t row = 0; row < n; row++) {
        const uint8_t *p = src.codes + row * src.codes_stride;
        for (uint32_t i = 0; i < c->dim; i += 16) {
            __mmask16 m = tq_lanes_left(c->dim - i);
            __m256i h = _mm256_maskz_loadu_epi16(m, p + (size_t)i * 2);
            _mm512_mask_storeu_ps(dst + row * dst_stride + i, m, _mm512_cvtph_ps(h));
        }
    }
}

static void encode_bf16(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                        size_t n)
{
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i half = _mm512_set1_epi32(0x7fff);
    const __m512i magnitude = _mm512_set1_epi32(0x7fff);
    const __m512i max = _mm512_set1_epi32(0x7f7f);

    for (size_t row = 0; row < n; row++) {
        uint8_t *out = dst.codes + row * dst.codes_stride;
        for (uint32_t i = 0; i < c->dim; i += 16) {
            __mmask16 m = tq_lanes_left(c->dim - i);
            __m512i u = _mm512_castps_si512(_mm512_maskz_loadu_ps(m, src + row * src_stride + i));
            __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
            __m512i h = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(half, odd)), 16);
            __m512i sign = _mm512_andnot_si512(magnitude, h);
            h = _mm512_or_si512(sign, _mm512_min_epi32(_mm512_and_si512(h, magnitude), max));
            _mm256_mask_storeu_epi16(out + (size_t)i * 2, m, _mm512_cvtepi32_epi16(h));
        }
    }
}

static void decode_bf16(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                        size_t n)
{
    for (size_t row = 0; row < n; row++) {
        const uint8_t *p = src.codes + row * src.codes_stride;
        for (uint32_t i = 0; i < c->dim; i += 16) {
            __mmask16 m = tq_lanes_left(c->dim - i);
            __m512i u = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p + (size_t)i * 2));
            _mm512_mask_storeu_ps(dst + row * dst_stride + i, m,
                                  _mm512_castsi512_ps(_mm512_slli_epi32(u, 16)));
        }
    }
}

static int row_is_finite(const float *x, size_t dim)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_setzero_si512();

    for (size_t i = 0; i < dim; i += 16) {
        __m512i u = _mm512_castps_si512(_mm512_maskz_loadu_ps(tq_lanes_left(dim - i), x + i));
        top = _mm512_max_epi32(top, _mm512_and_si512(u, magnitude));
    }
    return _mm512_cmpgt_epi32_mask(top, _mm512_set1_epi32(0x7f7fffff)) == 0;
}

static size_t first_nonfinite(const float *src, size_t src_stride, size_t dim, size_t n)
{
    for (size_t row = 0; row < n; row++)
        if (!row_is_finite(src + row * src_stride, dim))
            return row;
    return n;
}

const tq_codec_kernels tq_codec_kernels_avx512 = {
    .encode = {[TQ_KF32] = encode_f32,
               [TQ_KF16] = encode_f16,
               [TQ_KBF16] = encode_bf16,
               [TQ_KAFFINE2] = tq_avx512_encode_k2,
               [TQ_KAFFINE4] = tq_avx512_encode_k4,
               [TQ_KAFFINE5] = tq_avx512_encode_k5,
               [TQ_KAFFINE8] = tq_avx512_encode_k8,
               [TQ_KLLOYD2] = tq_avx512_encode_v2,
               [TQ_KLLOYD3] = tq_avx512_encode_v3,
               [TQ_KLLOYD4] = tq_avx512_encode_v4,
               [TQ_KLLOYD5] = tq_avx512_encode_v5,
               [TQ_KLLOYD8] = tq_avx512_encode_v8,
               [TQ_KNORM2] = tq_avx2_encode_turbo2,
               [TQ_KNORM3] = tq_avx2_encode_turbo3,
               [TQ_KNORM4] = tq_avx2_encode_turbo4,
               [TQ_KNORM5] = tq_avx512_encode_turbo5,
               [TQ_KNORM6] = tq_avx512_encode_turbo6,
               TQ_TCQ_ENTRIES(tq_avx512_encode_tcq),
               TQ_AVX2_ENCODE_OTHERS},
    .asks_ahead = TQ_NORM_ASKS_AHEAD,
    .decode = {[TQ_KF32] = decode_f32,
               [TQ_KF16] = decode_f16,
               [TQ_KBF16] = decode_bf16,
               [TQ_KAFFINE2] = tq_avx512_decode_k2,
               [TQ_KAFFINE4] = tq_avx512_decode_k4,
               [TQ_KAFFINE5] = tq_avx512_decode_k5,
               [TQ_KAFFINE8] = tq_avx512_decode_k8,
               [TQ_KLLOYD2] = tq_avx512_decode_v2,
               [TQ_KLLOYD3] = tq_avx512_decode_v3,
               [TQ_KLLOYD4] = tq_avx512_decode_v4,
               [TQ_KLLOYD5] = tq_avx512_decode_v5,
               [TQ_KLLOYD8] = tq_avx512_decode_v8,
               TQ_AVX2_DECODE_OTHERS},
    .decode_rotated = {[TQ_KF32] = decode_f32,
                       [TQ_KF16] = decode_f16,
                       [TQ_KBF16] = decode_bf16,
                       [TQ_KAFFINE2] = tq_avx512_decode_k2,
                       [TQ_KAFFINE4] = tq_avx512_decode_k4,
                       [TQ_KAFFINE5] = tq_avx512_decode_k5,
                       [TQ_KAFFINE8] = tq_avx512_decode_k8,
                       [TQ_KLLOYD2] = tq_avx512_decode_rotated_v2,
                       [TQ_KLLOYD3] = tq_avx512_decode_rotated_v3,
                       [TQ_KLLOYD4] = tq_avx512_decode_rotated_v4,
                       [TQ_KLLOYD5] = tq_avx512_decode_rotated_v5,
                       [TQ_KLLOYD8] = tq_avx512_decode_rotated_v8,
                       TQ_AVX2_DECODE_ROTATED_OTHERS},
    .first_nonfinite = first_nonfinite,
    .rotate = tq_avx512_rotate,
    .unrotate = tq_avx512_unrotate,
};
