/* SPDX-License-Identifier: MIT */
/* avx2_affine.c — affine keys, eight groups at a time.
 *
 * Minimum and maximum do not depend on the order (but for the sign of a zero, which the format
 * drops), so a group is reduced in vectors; eight groups then share one vector of scales and zero
 * points. Groups on which the guard acts are rare and go through the reference, one by one. A short
 * last group is filled up with its first element, which changes neither its range nor its codes.
 */
#include "cpu/avx2.h"
#include "cpu/avx2_codec.h"

typedef struct groups {
    const float *x[8];
    uint8_t *codes[8];
    uint8_t *scale[8];
    uint8_t *zero[8];
} groups;

/* Short groups among them: filled up, and their codes before the end is cut off. */
typedef struct fills {
    float x[8][TQ_GROUP];
    uint8_t codes[8][TQ_GROUP];
    uint8_t *to[8]; /* NULL: not a short group */
} fills;

/* Lane i of the result is the minimum (maximum) of v[i]. */
TQ_INLINE __m256 reduce8(const __m256 *v, int is_max)
{
#define PICK(a, b) (is_max ? _mm256_max_ps(a, b) : _mm256_min_ps(a, b))
    __m256 pair[4], quad[2];

    for (int i = 0; i < 4; i++)
        pair[i] = PICK(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                       _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        quad[i] = PICK(_mm256_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0x44),
                       _mm256_shuffle_ps(pair[2 * i], pair[2 * i + 1], 0xee));
    return PICK(_mm256_permute2f128_ps(quad[0], quad[1], 0x20),
                _mm256_permute2f128_ps(quad[0], quad[1], 0x31));
#undef PICK
}

TQ_INLINE void min_max8(const groups *gr, __m256 *mn, __m256 *mx)
{
    __m256 lo[8], hi[8];

    for (int g = 0; g < 8; g++) {
        __m256 a = _mm256_loadu_ps(gr->x[g]);
        __m256 b = _mm256_loadu_ps(gr->x[g] + 8);
        __m256 c = _mm256_loadu_ps(gr->x[g] + 16);
        __m256 d = _mm256_loadu_ps(gr->x[g] + 24);
        lo[g] = _mm256_min_ps(_mm256_min_ps(a, b), _mm256_min_ps(c, d));
        hi[g] = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
    }
    *mn = reduce8(lo, 0);
    *mx = reduce8(hi, 1);
}

TQ_INLINE void encode_group(uint8_t *codes, const float *x, float d, float z, int b)
{
    const __m256 lo = _mm256_set1_ps(b == 8 ? -127.0f : 0.0f);
    const __m256 hi = _mm256_set1_ps(b == 8 ? 127.0f : (float)((1 << b) - 1));
    __m256 dv = _mm256_set1_ps(d);
    __m256 zv = _mm256_set1_ps(z);
    __m256i idx[4];

    for (int k = 0; k < 4; k++) {
        __m256 v = _mm256_sub_ps(_mm256_div_ps(_mm256_loadu_ps(x + 8 * k), dv), zv);
        v = _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        /* The second operand wins over a NaN: lo, as the reference does. */
        v = _mm256_min_ps(_mm256_max_ps(v, lo), hi);
        idx[k] = _mm256_cvtps_epi32(v);
    }
    tq_pack_group(codes, tq_narrow_group(idx, b == 8), b);
}

TQ_INLINE void encode_groups(const groups *gr, int n, int b, int strict)
{
    const __m256 plus0 = _mm256_setzero_ps();
    const __m256 steps = _mm256_set1_ps(b == 8 ? 254.0f : (float)((1 << b) - 1));
    __m256 mn, mx;
    float d8[8], z8[8];
    uint16_t scale16[8], zero16[8];

    min_max8(gr, &mn, &mx);
    __m256 s = _mm256_add_ps(_mm256_div_ps(_mm256_sub_ps(mx, mn), steps), plus0);
    __m256 d = _mm256_add_ps(s, _mm256_set1_ps(TQ_EPS));
    __m256 z =
        b == 8 ? _mm256_div_ps(_mm256_add_ps(mx, mn), _mm256_add_ps(d, d)) : _mm256_div_ps(mn, d);
    z = _mm256_round_ps(z, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    z = _mm256_add_ps(z, plus0);

    /* NGE and NLE style compares, so that a NaN counts as out of range. */
    __m256 abs_z = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), z);
    __m256 acts =
        _mm256_or_ps(_mm256_cmp_ps(s, _mm256_set1_ps(TQ_GUARD_SCALE_MAX), _CMP_NLT_UQ),
                     _mm256_cmp_ps(abs_z, _mm256_set1_ps(TQ_GUARD_ZERO_MAX), _CMP_NLE_UQ));
    __m256 off_zero =
        _mm256_or_ps(_mm256_cmp_ps(mn, plus0, _CMP_GT_OQ), _mm256_cmp_ps(mx, plus0, _CMP_LT_OQ));
    __m256 narrow = _mm256_cmp_ps(s, _mm256_set1_ps(TQ_GUARD_SCALE_MIN), _CMP_LT_OQ);
    acts = _mm256_or_ps(acts, _mm256_and_ps(narrow, off_zero));
    int guard = strict ? 0 : _mm256_movemask_ps(acts);

    _mm256_storeu_ps(d8, d);
    _mm256_storeu_ps(z8, z);
    _mm_storeu_si128((__m128i *)(void *)scale16, tq_f16_from_f32x8(s));
    _mm_storeu_si128((__m128i *)(void *)zero16, tq_f16_from_f32x8(z));
    for (int g = 0; g < n; g++) {
        if (guard >> g & 1) {
            tq_affine_group_encode(gr->codes[g], gr->scale[g], gr->zero[g], gr->x[g], (uint32_t)b,
                                   0);
            continue;
        }
        encode_group(gr->codes[g], gr->x[g], d8[g], z8[g], b);
        memcpy(gr->scale[g], &scale16[g], 2);
        memcpy(gr->zero[g], &zero16[g], 2);
    }
}

TQ_INLINE void fill_up(groups *gr, fills *f, int i, uint32_t n)
{
    for (uint32_t j = 0; j < TQ_GROUP; j++)
        f->x[i][j] = gr->x[i][j < n ? j : 0];
    f->to[i] = gr->codes[i];
    gr->x[i] = f->x[i];
    gr->codes[i] = f->codes[i];
}

TQ_INLINE void encode_held(groups *gr, fills *f, int held, uint32_t last, int b, int strict)
{
    for (int i = held; i < 8; i++) /* unused lanes need something to read */
        gr->x[i] = gr->x[0];
    encode_groups(gr, held, b, strict);
    for (int i = 0; last < TQ_GROUP && i < held; i++) {
        if (f->to[i])
            memcpy(f->to[i], f->codes[i], last * (uint32_t)b / 8);
        f->to[i] = NULL;
    }
}

TQ_INLINE void encode_affine(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                             size_t n, int b)
{
    const int strict = (c->flags & TQ_CODEC_STRICT) != 0;
    const uint32_t last = tq_group_size(c->dim, c->n_groups - 1);
    groups gr;
    fills f;
    int held = 0;

    memset(f.to, 0, sizeof f.to);
    for (size_t row = 0; row < n; row++) {
        if (row < dst.ahead)
            tq_ask_for(src + (n + row) * src_stride, c->dim);
        for (uint32_t g = 0; g < c->n_groups; g++) {
            gr.x[held] = src + row * src_stride + (size_t)g * TQ_GROUP;
            gr.codes[held] = dst.codes + row * dst.codes_stride + (size_t)g * 4 * (size_t)b;
            gr.scale[held] = dst.scale + row * dst.scale_stride + (size_t)g * 2;
            gr.zero[held] = dst.zero + row * dst.zero_stride + (size_t)g * 2;
            if (last < TQ_GROUP && g + 1 == c->n_groups)
                fill_up(&gr, &f, held, last);
            if (++held == 8) {
                encode_held(&gr, &f, 8, last, b, strict);
                held = 0;
            }
        }
    }
    if (held)
        encode_held(&gr, &f, held, last, b, strict);
}

TQ_INLINE void decode_codes(float *out, __m256i *idx, __m256 s, __m256 z, uint32_t n, int b)
{
#pragma GCC unroll 4
    for (uint32_t k = 0; k < n / 8; k++) {
        if (b == 8) /* the sign */
            idx[k] = _mm256_srai_epi32(_mm256_slli_epi32(idx[k], 24), 24);
        __m256 v = _mm256_add_ps(_mm256_cvtepi32_ps(idx[k]), z);
        _mm256_storeu_ps(out + 8 * k, _mm256_mul_ps(v, s));
    }
}

TQ_INLINE void decode_affine(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                             size_t n, int b)
{
    const uint32_t n_whole = c->dim / 64 * 2; /* groups with a neighbour */

    for (size_t row = 0; row < n; row++) {
        const uint8_t *codes = src.codes + row * src.codes_stride;
        const uint8_t *scale = src.scale + row * src.scale_stride;
        const uint8_t *zero = src.zero + row * src.zero_stride;
        float *out = dst + row * dst_stride;
        for (uint32_t g = 0; g < n_whole; g++) {
            __m256i idx[4];
            tq_unpack_group(idx, codes, g, b);
            decode_codes(out + g * TQ_GROUP, idx, tq_broadcast_f16(scale + (size_t)g * 2),
                         tq_broadcast_f16(zero + (size_t)g * 2), TQ_GROUP, b);
        }
        for (uint32_t g = n_whole; g < c->n_groups; g++) {
            const uint32_t size = tq_group_size(c->dim, g);
            __m256i idx[4];
            tq_unpack_last(idx, codes + (size_t)g * 4 * (size_t)b, size, b);
            decode_codes(out + g * TQ_GROUP, idx, tq_broadcast_f16(scale + (size_t)g * 2),
                         tq_broadcast_f16(zero + (size_t)g * 2), size, b);
        }
    }
}

#define AFFINE(b)                                                                                  \
    void tq_avx2_encode_k##b(const tq_codec *c, tq_planes dst, const float *src,                   \
                             size_t src_stride, size_t n)                                          \
    {                                                                                              \
        encode_affine(c, dst, src, src_stride, n, b);                                              \
    }                                                                                              \
    void tq_avx2_decode_k##b(const tq_codec *c, float *dst, size_t dst_stride,                     \
                             tq_const_planes src, size_t n)                                        \
    {                                                                                              \
        decode_affine(c, dst, dst_stride, src, n, b);                                              \
    }

AFFINE(2)
AFFINE(4)
AFFINE(5)
AFFINE(8)
