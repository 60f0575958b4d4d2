/* SPDX-License-Identifier: MIT */
/* avx512_affine.c — affine keys, sixteen groups at a time.
 *
 * As in avx2_affine.c a group is reduced in vectors and sixteen groups share one vector of scales
 * and zero points. Elements are divided by multiplication and correction (tq_quotient). Groups on
 * which the guard acts are rare and go through the reference, as do all groups of strict mode that
 * are outside the range of that division.
 */
#include "cpu/avx512.h"
#include "cpu/avx512_codec.h"

enum { N_HELD = 16 };

typedef struct groups {
    const float *x[N_HELD];
    uint8_t *codes[N_HELD];
    uint8_t *scale[N_HELD];
    uint8_t *zero[N_HELD];
} groups;

TQ_INLINE __m512 pick(__m512 a, __m512 b, int is_max)
{
    return is_max ? _mm512_max_ps(a, b) : _mm512_min_ps(a, b);
}

/* Lane i of the result is the minimum (maximum) of v[i]. */
TQ_INLINE __m512 reduce16(const __m512 *v, int is_max)
{
    __m512 pair[8], quad[4], oct[2];

    for (int i = 0; i < 8; i++)
        pair[i] = pick(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                       _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]), is_max);
    for (int i = 0; i < 4; i++)
        quad[i] = pick(_mm512_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0x44),
                       _mm512_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0xee), is_max);
    for (int i = 0; i < 2; i++)
        oct[i] = pick(_mm512_shuffle_f32x4(quad[2 * i], quad[2 * i + 1], 0x44),
                      _mm512_shuffle_f32x4(quad[2 * i], quad[2 * i + 1], 0xee), is_max);
    return pick(_mm512_shuffle_f32x4(oct[0], oct[1], 0x88),
                _mm512_shuffle_f32x4(oct[0], oct[1], 0xdd), is_max);
}

TQ_INLINE void min_max16(const groups *gr, __m512 *mn, __m512 *mx)
{
    __m512 lo[N_HELD], hi[N_HELD];

    for (int g = 0; g < N_HELD; g++) {
        __m512 a = _mm512_loadu_ps(gr->x[g]);
        __m512 b = _mm512_loadu_ps(gr->x[g] + 16);
        lo[g] = _mm512_min_ps(a, b);
        hi[g] = _mm512_max_ps(a, b);
    }
    *mn = reduce16(lo, 0);
    *mx = reduce16(hi, 1);
}

TQ_INLINE void encode_group(uint8_t *codes, const float *x, float d, float rcp, float z, int b)
{
    const __m512 lo = _mm512_set1_ps(b == 8 ? -127.0f : 0.0f);
    const __m512 hi = _mm512_set1_ps(b == 8 ? 127.0f : (float)((1 << b) - 1));
    __m128i half[2];

    for (int k = 0; k < 2; k++) {
        __m512 v = tq_quotient(_mm512_loadu_ps(x + 16 * k), _mm512_set1_ps(d), _mm512_set1_ps(rcp));
        v = _mm512_sub_ps(v, _mm512_set1_ps(z));
        /* Bounds are integers, so clamping first and rounding then is the same. */
        v = _mm512_min_ps(_mm512_max_ps(v, lo), hi);
        half[k] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
    }
    tq_pack_group(codes, _mm256_set_m128i(half[1], half[0]), b);
}

TQ_INLINE void encode_groups(const groups *gr, int n, int b, int strict)
{
    const __m512 plus0 = _mm512_setzero_ps();
    const __m512 steps = _mm512_set1_ps(b == 8 ? 254.0f : (float)((1 << b) - 1));
    __m512 mn, mx;
    float d16[N_HELD], rcp16[N_HELD], z16[N_HELD];
    uint16_t scale16[N_HELD], zero16[N_HELD];

    min_max16(gr, &mn, &mx);
    __m512 s = _mm512_add_ps(_mm512_div_ps(_mm512_sub_ps(mx, mn), steps), plus0);
    __m512 d = _mm512_add_ps(s, _mm512_set1_ps(TQ_EPS));
    __m512 z =
        b == 8 ? _mm512_div_ps(_mm512_add_ps(mx, mn), _mm512_add_ps(d, d)) : _mm512_div_ps(mn, d);
    z = _mm512_roundscale_ps(z, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    z = _mm512_add_ps(z, plus0);

    /* NGE and NLE style compares, so that a NaN counts as out of range. */
    __m512 abs_z = _mm512_andnot_ps(_mm512_set1_ps(-0.0f), z);
    __mmask16 acts = _mm512_cmp_ps_mask(s, _mm512_set1_ps(TQ_GUARD_SCALE_MAX), _CMP_NLT_UQ) |
                     _mm512_cmp_ps_mask(abs_z, _mm512_set1_ps(TQ_GUARD_ZERO_MAX), _CMP_NLE_UQ);
    __mmask16 off_zero =
        _mm512_cmp_ps_mask(mn, plus0, _CMP_GT_OQ) | _mm512_cmp_ps_mask(mx, plus0, _CMP_LT_OQ);
    acts |= _mm512_mask_cmp_ps_mask(off_zero, s, _mm512_set1_ps(TQ_GUARD_SCALE_MIN), _CMP_LT_OQ);
    /* Elsewhere |x| / d is below 2^12, and where a tiny x makes a wrong quotient that is tiny too,
     * it is lost in the subtraction of Z or rounds to 0. */
    const unsigned rare = (unsigned)acts | (~(unsigned)tq_divides(d) & 0xffffu);

    _mm512_storeu_ps(d16, d);
    _mm512_storeu_ps(rcp16, _mm512_div_ps(_mm512_set1_ps(1), d));
    _mm512_storeu_ps(z16, z);
    _mm256_storeu_si256((__m256i *)(void *)scale16, tq_f16_from_f32x16(s));
    _mm256_storeu_si256((__m256i *)(void *)zero16, tq_f16_from_f32x16(z));
    for (int g = 0; g < n; g++) {
        if (rare >> g & 1) {
            tq_affine_group_encode(gr->codes[g], gr->scale[g], gr->zero[g], gr->x[g], (uint32_t)b,
                                   strict);
            continue;
        }
        encode_group(gr->codes[g], gr->x[g], d16[g], rcp16[g], z16[g], b);
        memcpy(gr->scale[g], &scale16[g], 2);
        memcpy(gr->zero[g], &zero16[g], 2);
    }
}

TQ_INLINE void encode_affine(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                             size_t n, int b)
{
    const int strict = (c->flags & TQ_CODEC_STRICT) != 0;
    groups gr;
    int held = 0;

    for (size_t row = 0; row < n; row++) {
        for (uint32_t g = 0; g < c->n_groups; g++) {
            gr.x[held] = src + row * src_stride + (size_t)g * TQ_GROUP;
            gr.codes[held] = dst.codes + row * dst.codes_stride + (size_t)g * 4 * (size_t)b;
            gr.scale[held] = dst.scale + row * dst.scale_stride + (size_t)g * 2;
            gr.zero[held] = dst.zero + row * dst.zero_stride + (size_t)g * 2;
            if (++held == N_HELD) {
                encode_groups(&gr, N_HELD, b, strict);
                held = 0;
            }
        }
    }
    if (held) {
        for (int i = held; i < N_HELD; i++) /* unused lanes need something to read */
            gr.x[i] = gr.x[0];
        encode_groups(&gr, held, b, strict);
    }
}

TQ_INLINE void decode_affine(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                             size_t n, int b)
{
    const __m512i mask = _mm512_set1_epi32((1 << b) - 1);

    for (size_t row = 0; row < n; row++) {
        const uint8_t *codes = src.codes + row * src.codes_stride;
        for (uint32_t g = 0; g < c->n_groups; g++) {
            float *out = dst + row * dst_stride + (size_t)g * TQ_GROUP;
            const __m128i *q = (const __m128i *)(const void *)(codes + (size_t)g * 32);
            __m512 s = tq_broadcast16_f16(src.scale + row * src.scale_stride + (size_t)g * 2);
            __m512 z = tq_broadcast16_f16(src.zero + row * src.zero_stride + (size_t)g * 2);
            __m512i idx[2];

            if (b != 8)
                tq_unpack_group16(idx, codes, g, b);
            for (int k = 0; k < 2; k++) {
                idx[k] = b == 8 ? _mm512_cvtepi8_epi32(_mm_loadu_si128(q + k))
                                : _mm512_and_si512(idx[k], mask);
                __m512 v = _mm512_add_ps(_mm512_cvtepi32_ps(idx[k]), z);
                _mm512_storeu_ps(out + 16 * k, _mm512_mul_ps(v, s));
            }
        }
    }
}

#define AFFINE(b)                                                                                  \
    void tq_avx512_encode_k##b(const tq_codec *c, tq_planes dst, const float *src,                 \
                               size_t src_stride, size_t n)                                        \
    {                                                                                              \
        encode_affine(c, dst, src, src_stride, n, b);                                              \
    }                                                                                              \
    void tq_avx512_decode_k##b(const tq_codec *c, float *dst, size_t dst_stride,                   \
                               tq_const_planes src, size_t n)                                      \
    {                                                                                              \
        decode_affine(c, dst, dst_stride, src, n, b);                                              \
    }

AFFINE(2)
AFFINE(4)
AFFINE(5)
AFFINE(8)
