/* SPDX-License-Identifier: MIT */
/* avx2.c — the AVX2 codec table, and the raw formats. Compiled for avx2 + fma + f16c; runs only
 * where dispatch.c found them. Affine keys and Lloyd values have files of their own.
 *
 * Raw rows have a multiple of eight elements: a vector at a time without a rest.
 */
#include "cpu/avx2.h"
#include "cpu/avx2_codec.h"
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
    const __m256 max = _mm256_set1_ps(65504.0f);
    const __m256 min = _mm256_set1_ps(-65504.0f);

    for (size_t row = 0; row < n; row++) {
        for (uint32_t i = 0; i < c->dim; i += 8) {
            __m256 x = _mm256_loadu_ps(src + row * src_stride + i);
            x = _mm256_max_ps(_mm256_min_ps(x, max), min);
            _mm_storeu_si128(
                (__m128i *)(void *)(dst.codes + row * dst.codes_stride + (size_t)i * 2),
                _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        }
    }
}

static void decode_f16(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                       size_t n)
{
    for (size_t row = 0; row < n; row++) {
        for (uint32_t i = 0; i < c->dim; i += 8) {
            const uint8_t *p = src.codes + row * src.codes_stride + (size_t)i * 2;
            _mm256_storeu_ps(dst + row * dst_stride + i,
                             _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)));
        }
    }
}

static void encode_bf16(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                        size_t n)
{
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i half = _mm256_set1_epi32(0x7fff);
    const __m256i magnitude = _mm256_set1_epi32(0x7fff);
    const __m256i max = _mm256_set1_epi32(0x7f7f);

    for (size_t row = 0; row < n; row++) {
        for (uint32_t i = 0; i < c->dim; i += 8) {
            __m256i u =
                _mm256_loadu_si256((const __m256i *)(const void *)(src + row * src_stride + i));
            __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
            __m256i h = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(half, odd)), 16);
            __m256i sign = _mm256_andnot_si256(magnitude, h);
            h = _mm256_or_si256(sign, _mm256_min_epi32(_mm256_and_si256(h, magnitude), max));
            h = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
            _mm_storeu_si128(
                (__m128i *)(void *)(dst.codes + row * dst.codes_stride + (size_t)i * 2),
                _mm256_castsi256_si128(h));
        }
    }
}

static void decode_bf16(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                        size_t n)
{
    for (size_t row = 0; row < n; row++) {
        for (uint32_t i = 0; i < c->dim; i += 8) {
            const uint8_t *p = src.codes + row * src.codes_stride + (size_t)i * 2;
            __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
            _mm256_storeu_ps(dst + row * dst_stride + i,
                             _mm256_castsi256_ps(_mm256_slli_epi32(u, 16)));
        }
    }
}

static int row_is_finite(const float *x, size_t dim)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    size_t i = 0;

    for (; i + 64 <= dim; i += 64) {
#pragma GCC unroll 8
        for (size_t k = 0; k < 64; k += 8) {
            __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(x + i + k));
            top = _mm256_max_epi32(top, _mm256_and_si256(u, magnitude));
        }
    }
    for (; i + 8 <= dim; i += 8) {
        __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        top = _mm256_max_epi32(top, _mm256_and_si256(u, magnitude));
    }
    int finite = _mm256_testz_si256(_mm256_cmpgt_epi32(top, _mm256_set1_epi32(0x7f7fffff)),
                                    _mm256_set1_epi32(-1));
    for (; i < dim; i++)
        finite &= fabsf(x[i]) < INFINITY;
    return finite;
}

static size_t first_nonfinite(const float *src, size_t src_stride, size_t dim, size_t n)
{
    for (size_t row = 0; row < n; row++)
        if (!row_is_finite(src + row * src_stride, dim))
            return row;
    return n;
}

const tq_codec_kernels tq_codec_kernels_avx2 = {
    .encode = {[TQ_KF32] = encode_f32,
               [TQ_KF16] = encode_f16,
               [TQ_KBF16] = encode_bf16,
               [TQ_KAFFINE2] = tq_avx2_encode_k2,
               [TQ_KAFFINE4] = tq_avx2_encode_k4,
               [TQ_KAFFINE5] = tq_avx2_encode_k5,
               [TQ_KAFFINE8] = tq_avx2_encode_k8,
               [TQ_KLLOYD2] = tq_avx2_encode_v2,
               [TQ_KLLOYD3] = tq_avx2_encode_v3,
               [TQ_KLLOYD4] = tq_avx2_encode_v4,
               [TQ_KLLOYD5] = tq_avx2_encode_v5,
               [TQ_KLLOYD8] = tq_avx2_encode_v8,
               [TQ_KNORM2] = tq_avx2_encode_turbo2,
               [TQ_KNORM3] = tq_avx2_encode_turbo3,
               [TQ_KNORM4] = tq_avx2_encode_turbo4,
               [TQ_KNORM5] = tq_avx2_encode_turbo5,
               [TQ_KNORM6] = tq_avx2_encode_turbo6,
               TQ_TCQ_ENTRIES(tq_avx2_encode_tcq),
               TQ_AVX2_ENCODE_OTHERS},
    .asks_ahead = TQ_AVX2_ASKS_AHEAD,
    .decode = {[TQ_KF32] = decode_f32,
               [TQ_KF16] = decode_f16,
               [TQ_KBF16] = decode_bf16,
               [TQ_KAFFINE2] = tq_avx2_decode_k2,
               [TQ_KAFFINE4] = tq_avx2_decode_k4,
               [TQ_KAFFINE5] = tq_avx2_decode_k5,
               [TQ_KAFFINE8] = tq_avx2_decode_k8,
               [TQ_KLLOYD2] = tq_avx2_decode_v2,
               [TQ_KLLOYD3] = tq_avx2_decode_v3,
               [TQ_KLLOYD4] = tq_avx2_decode_v4,
               [TQ_KLLOYD5] = tq_avx2_decode_v5,
               [TQ_KLLOYD8] = tq_avx2_decode_v8,
               TQ_AVX2_DECODE_OTHERS},
    .decode_rotated = {[TQ_KF32] = decode_f32,
                       [TQ_KF16] = decode_f16,
                       [TQ_KBF16] = decode_bf16,
                       [TQ_KAFFINE2] = tq_avx2_decode_k2,
                       [TQ_KAFFINE4] = tq_avx2_decode_k4,
                       [TQ_KAFFINE5] = tq_avx2_decode_k5,
                       [TQ_KAFFINE8] = tq_avx2_decode_k8,
                       [TQ_KLLOYD2] = tq_avx2_decode_rotated_v2,
                       [TQ_KLLOYD3] = tq_avx2_decode_rotated_v3,
                       [TQ_KLLOYD4] = tq_avx2_decode_rotated_v4,
                       [TQ_KLLOYD5] = tq_avx2_decode_rotated_v5,
                       [TQ_KLLOYD8] = tq_avx2_decode_rotated_v8,
                       TQ_AVX2_DECODE_ROTATED_OTHERS},
    .first_nonfinite = first_nonfinite,
    .rotate = tq_avx2_rotate,
    .unrotate = tq_avx2_unrotate,
};
