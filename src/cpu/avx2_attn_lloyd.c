/* SPDX-License-Identifier: MIT */
/* avx2_attn_lloyd.c — weighted sums of Lloyd values of 2 to 5 bits, for AVX2, in integers.
 *
 * Looking centroids up as f32 (vpermps) costs as much as multiplying them. As int16 they come from
 * byte shuffles, two tokens at a time, and one vpmaddwd then weighs 16 of them:
 *     sum[j] += w16[t] * c16[t][j] + w16[t+1] * c16[t+1][j]
 * c16 is the centroid over its largest magnitude times 16383. w16 is weight times group scale times
 * a factor per row and group, as large as an int16 and an int32 sum over 64 tokens allow. Both
 * are rounded to nearest: about 1e-4 of the result, where the finest of these formats is itself
 * off by 5e-2; tests/unit/test_attn.c measures what the rounding adds.
 *
 * A step makes the indices of 16 elements of two tokens, as bytes (element, token): an INDEX. Two
 * lookups (low and high bytes) and two interleavings give dwords (token t, token t+1) of 8 + 8
 * elements, in an order that the width chooses; `finish` puts the sums in order.
 */
#include "cpu/avx2_attn.h"
#include "tables.h"

#include <float.h>
#include <math.h>

#define GROUP    32u
#define MAX_ROWS 4u

#define CENTROID_MAX 16383
/* 64 roundings up of a half stay below 2^31 / CENTROID_MAX. */
#define WEIGHT_SUM 131000.0f
#define WEIGHT_MAX 32767.0f

/* Bytes of the int16 centroids: 0..15 and 16..31, low and high. */
typedef struct codebook16 {
    __m256i low[2], high[2];
    float unit; /* centroid = unit * int16 */
} codebook16;

TQ_INLINE __m256i int16_of(const float *c, __m256 factor)
{
    __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(c), factor));
    __m256i y = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(c + 8), factor));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(x, y), 0xd8);
}

/* Bytes 0 (shift 0) or 1 (shift 8) of 16 numbers, in both lanes. */
TQ_INLINE __m256i bytes_of(__m256i x, const int shift)
{
    x = _mm256_and_si256(_mm256_srli_epi16(x, shift), _mm256_set1_epi16(255));
    x = _mm256_packus_epi16(x, x);
    return _mm256_permute4x64_epi64(x, 0x88);
}

TQ_INLINE codebook16 make_codebook16(const uint32_t bits)
{
    const float *c = tq_lloyd_get(bits)->centroid;
    const uint32_t n = 1u << bits;
    const float top = fmaxf(-c[0], c[n - 1]);
    const __m256 factor = _mm256_set1_ps(CENTROID_MAX / top);
    float table[32];
    codebook16 book;
    for (uint32_t i = 0; i < 32; i += n)
        memcpy(table + i, c, n * sizeof(float));
    for (int i = 0; i < (bits == 5 ? 2 : 1); i++) {
        __m256i x = int16_of(table + 16 * i, factor);
        book.low[i] = bytes_of(x, 0);
        book.high[i] = bytes_of(x, 8);
    }
    book.unit = top / CENTROID_MAX;
    return book;
}

/* ---- Indices --------------------------------------------------------------------------- */

/* Index of elements 16 * half .. of a group of two tokens, whose codes begin at p0 and p1. */
typedef __m256i index_fn(const uint8_t *p0, const uint8_t *p1, const uint32_t half);

/* Put sums of the two registers of a step into element order. */
typedef void finish_fn(__m256 *a, __m256 *b);

TQ_INLINE __m128i load_u32(const uint8_t *p)
{
    return _mm_cvtsi32_si128((int)tq_load_u32(p));
}

TQ_INLINE __m128i load_u64(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

/* 4 bytes a token. Qword f holds field f of them: elements f, 4 + f, 8 + f, 12 + f. */
TQ_INLINE __m256i index_v2(const uint8_t *p0, const uint8_t *p1, const uint32_t half)
{
    __m128i x = _mm_unpacklo_epi8(load_u32(p0 + 4 * half), load_u32(p1 + 4 * half));
    __m256i y = _mm256_srlv_epi64(_mm256_broadcastq_epi64(x), _mm256_setr_epi64x(0, 2, 4, 6));
    return _mm256_and_si256(y, _mm256_set1_epi8(3));
}

TQ_INLINE void finish_v2(__m256 *a, __m256 *b)
{
    /* a: 0 4 8 12 | 2 6 10 14, b: 1 5 9 13 | 3 7 11 15 */
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    __m256 low = _mm256_unpacklo_ps(*a, *b), high = _mm256_unpackhi_ps(*a, *b);
    *a = _mm256_permutevar8x32_ps(low, order);
    *b = _mm256_permutevar8x32_ps(high, order);
}

/* 8 bytes a token. Low lane: even elements, high lane: odd ones. */
TQ_INLINE __m256i index_v4(const uint8_t *p0, const uint8_t *p1, const uint32_t half)
{
    __m128i x = _mm_unpacklo_epi8(load_u64(p0 + 8 * half), load_u64(p1 + 8 * half));
    __m256i y = _mm256_srlv_epi64(_mm256_broadcastsi128_si256(x), _mm256_setr_epi64x(0, 0, 4, 4));
    return _mm256_and_si256(y, _mm256_set1_epi8(15));
}

TQ_INLINE void finish_v4(__m256 *a, __m256 *b)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    *a = _mm256_permutevar8x32_ps(*a, order);
    *b = _mm256_permutevar8x32_ps(*b, order);
}

/* Widths that straddle bytes: word e gets the two bytes that hold element e of one token (gather),
 * a multiplication shifts its bits to the top of the word (token t) or to bit 8 (token t + 1),
 * what else is there is shifted or masked away. The order of words is such that the sums come out
 * in element order. */
TQ_INLINE __m256i straddling(__m256i x0, __m256i x1, __m256i gather, __m256i to_top,
                             __m256i to_bit8, const int bits)
{
    x0 = _mm256_mullo_epi16(_mm256_shuffle_epi8(x0, gather), to_top);
    x1 = _mm256_mullo_epi16(_mm256_shuffle_epi8(x1, gather), to_bit8);
    x0 = _mm256_srli_epi16(x0, 16 - bits);
    x1 = _mm256_and_si256(x1, _mm256_set1_epi16((short)(((1 << bits) - 1) << 8)));
    return _mm256_or_si256(x0, x1);
}

/* 6 bytes a token, within a load of 8; the second half is loaded so that it ends with the group. */
TQ_INLINE __m256i index_v3(const uint8_t *p0, const uint8_t *p1, const uint32_t half)
{
    const __m256i first = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 1, 2, 3, 4, 3, 4, 3, 4, 4, 5, 1, 2, 1,
                                           2, 2, 3, 2, 3, 4, 5, 4, 5, 5, 6, 5, 6);
    const __m256i second = _mm256_setr_epi8(2, 3, 2, 3, 2, 3, 3, 4, 5, 6, 5, 6, 5, 6, 6, 7, 3, 4, 3,
                                            4, 4, 5, 4, 5, 6, 7, 6, 7, 7, -1, 7, -1);
    const __m256i to_top =
        _mm256_setr_epi16(1 << 13, 1 << 10, 1 << 7, 1 << 12, 1 << 13, 1 << 10, 1 << 7, 1 << 12,
                          1 << 9, 1 << 6, 1 << 11, 1 << 8, 1 << 9, 1 << 6, 1 << 11, 1 << 8);
    const __m256i to_bit8 =
        _mm256_setr_epi16(1 << 8, 1 << 5, 1 << 2, 1 << 7, 1 << 8, 1 << 5, 1 << 2, 1 << 7, 1 << 4,
                          1 << 1, 1 << 6, 1 << 3, 1 << 4, 1 << 1, 1 << 6, 1 << 3);
    __m256i x0 = _mm256_set1_epi64x((long long)tq_load_u64(p0 + 4 * half));
    __m256i x1 = _mm256_set1_epi64x((long long)tq_load_u64(p1 + 4 * half));
    return straddling(x0, x1, half ? second : first, to_top, to_bit8, 3);
}

/* 10 bytes a token, within a load of 16. */
TQ_INLINE __m256i index_v5(const uint8_t *p0, const uint8_t *p1, const uint32_t half)
{
    const __m256i first = _mm256_setr_epi8(0, 1, 0, 1, 1, 2, 1, 2, 5, 6, 5, 6, 6, 7, 6, 7, 2, 3, 3,
                                           4, 3, 4, 4, 5, 7, 8, 8, 9, 8, 9, 9, 10);
    const __m256i second =
        _mm256_setr_epi8(6, 7, 6, 7, 7, 8, 7, 8, 11, 12, 11, 12, 12, 13, 12, 13, 8, 9, 9, 10, 9, 10,
                         10, 11, 13, 14, 14, 15, 14, 15, 15, -1);
    const __m256i to_top =
        _mm256_setr_epi16(1 << 11, 1 << 6, 1 << 9, 1 << 4, 1 << 11, 1 << 6, 1 << 9, 1 << 4, 1 << 7,
                          1 << 10, 1 << 5, 1 << 8, 1 << 7, 1 << 10, 1 << 5, 1 << 8);
    const __m256i to_bit8 =
        _mm256_setr_epi16(1 << 8, 1 << 3, 1 << 6, 1 << 1, 1 << 8, 1 << 3, 1 << 6, 1 << 1, 1 << 4,
                          1 << 7, 1 << 2, 1 << 5, 1 << 4, 1 << 7, 1 << 2, 1 << 5);
    const __m128i *q0 = (const __m128i *)(const void *)(p0 + 4 * half);
    const __m128i *q1 = (const __m128i *)(const void *)(p1 + 4 * half);
    return straddling(_mm256_broadcastsi128_si256(_mm_loadu_si128(q0)),
                      _mm256_broadcastsi128_si256(_mm_loadu_si128(q1)), half ? second : first,
                      to_top, to_bit8, 5);
}

TQ_INLINE void finish_in_order(__m256 *a, __m256 *b)
{
    (void)a;
    (void)b;
}

/* ---- Sums ------------------------------------------------------------------------------ */

/* Dwords (token t, token t + 1) of the low and the high half of each lane of an index. */
TQ_INLINE void look_up(__m256i *a, __m256i *b, __m256i idx, const codebook16 *book,
                       const uint32_t bits)
{
    __m256i low = _mm256_shuffle_epi8(book->low[0], idx);
    __m256i high = _mm256_shuffle_epi8(book->high[0], idx);
    if (bits == 5) {
        __m256i upper = _mm256_slli_epi16(idx, 3); /* bit 4 of each byte to its sign */
        low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(book->low[1], idx), upper);
        high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(book->high[1], idx), upper);
    }
    *a = _mm256_unpacklo_epi8(low, high);
    *b = _mm256_unpackhi_epi8(low, high);
}

/* Two tokens: codes at p0 and p1, weights from w16 on. */
TQ_INLINE void step(__m256i sum[MAX_ROWS][2], const int16_t *w16, const uint8_t *p0,
                    const uint8_t *p1, const codebook16 *book, index_fn *index, const uint32_t half,
                    const uint32_t bits, const uint32_t rows)
{
    __m256i a, b;
    look_up(&a, &b, index(p0, p1, half), book, bits);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        int32_t pair;
        memcpy(&pair, w16 + r * TQ_TILE, sizeof pair);
        __m256i w = _mm256_set1_epi32(pair);
        sum[r][0] = tq_add_i32(sum[r][0], _mm256_madd_epi16(a, w));
        sum[r][1] = tq_add_i32(sum[r][1], _mm256_madd_epi16(b, w));
    }
}

/* 16 elements of all tokens for `rows` rows. w16 [rows][64], factor [rows]: what a sum must be
 * multiplied by. */
TQ_INLINE void block(float *acc, size_t acc_stride, const int16_t *w16, const float *factor,
                     const float *alpha, const uint8_t *codes, size_t stride, uint32_t n,
                     tq_walk *ahead, const codebook16 *book, index_fn *index, finish_fn *finish,
                     const uint32_t half, const uint32_t bits, const uint32_t rows)
{
    __m256i sum[MAX_ROWS][2];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (; n >= 4; n -= 4, w16 += 4, codes += 4 * stride) {
        tq_walk_on(ahead);
        step(sum, w16, codes, codes + stride, book, index, half, bits, rows);
        step(sum, w16 + 2, codes + 2 * stride, codes + 3 * stride, book, index, half, bits, rows);
    }
    for (; n > 0; n -= n < 2 ? n : 2, w16 += 2, codes += 2 * stride)
        step(sum, w16, codes, n < 2 ? codes : codes + stride, book, index, half, bits, rows);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 f = _mm256_set1_ps(factor[r]), al = _mm256_broadcast_ss(alpha + r);
        __m256 a = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][0]), f);
        __m256 b = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][1]), f);
        finish(&a, &b);
        float *dst = acc + r * acc_stride;
        _mm256_storeu_ps(dst, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst), a));
        _mm256_storeu_ps(dst + 8, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst + 8), b));
    }
}

/* Weights of `rows` rows times the scales of a group, as integers w16 [rows][64], for 16-token
 * steps up to n. factor[r]: what a sum of centroid integers must be multiplied by. Only tokens that
 * a row sees count, so that a query rounds alike alone and in a batch. */
TQ_INLINE void quantise_weights(int16_t *w16, float *factor, const float *w, const float *scale,
                                float unit, uint32_t n, const uint32_t rows)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 max[MAX_ROWS], sum[MAX_ROWS], up[MAX_ROWS];
    float product[MAX_ROWS * TQ_TILE];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        max[r] = sum[r] = _mm256_setzero_ps();
    for (uint32_t t = 0; t < n; t += 8) {
        const __m256 y = _mm256_loadu_ps(scale + t);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            __m256 x = _mm256_mul_ps(_mm256_loadu_ps(w + r * TQ_TILE + t), y);
            __m256 a = _mm256_and_ps(x, magnitude);
            max[r] = _mm256_max_ps(max[r], a);
            sum[r] = _mm256_add_ps(sum[r], a);
            _mm256_storeu_ps(product + r * TQ_TILE + t, x);
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const float m = tq_hmax8(max[r]), s = tq_hsum8(sum[r]);
        const float step = fmaxf(m * (1 / WEIGHT_MAX), s * (1 / WEIGHT_SUM));
        /* Below, the quotient could overflow; beside any other tile it is 0. Above: a NaN or Inf of
         * weights or hostile scales must show in the result. */
        const int usable = s >= 0x1p-90f && s <= FLT_MAX;
        up[r] = _mm256_set1_ps(usable ? 1 / step : 0);
        factor[r] = usable ? unit * step : s < 0x1p-90f ? 0 : NAN;
    }
    for (uint32_t t = 0; t < n; t += 16)
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const float *p = product + r * TQ_TILE + t;
            __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p), up[r]));
            __m256i y = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p + 8), up[r]));
            x = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, y), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(w16 + r * TQ_TILE + t), x);
        }
}

/* Four groups, or the last two, for `rows` rows. */
TQ_INLINE void four_groups(float *acc, size_t acc_stride, const float *w, const float *alpha,
                           const uint8_t *codes, size_t stride, const float *scale,
                           uint32_t n_groups, uint32_t n, tq_walk *ahead, const codebook16 *book,
                           index_fn *index, finish_fn *finish, const uint32_t bits,
                           const uint32_t rows)
{
    for (uint32_t g = 0; g < n_groups; g++) {
        int16_t w16[MAX_ROWS * TQ_TILE];
        float factor[MAX_ROWS];
        quantise_weights(w16, factor, w, scale + g * TQ_TILE, book->unit, (n + 15) / 16 * 16, rows);
        const uint8_t *p = codes + g * (GROUP * bits / 8);
        float *dst = acc + g * GROUP;
        block(dst, acc_stride, w16, factor, alpha, p, stride, n, ahead, book, index, finish, 0,
              bits, rows);
        block(dst + 16, acc_stride, w16, factor, alpha, p, stride, n, ahead, book, index, finish, 1,
              bits, rows);
    }
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     index_fn *index, finish_fn *finish, const uint32_t bits)
{
    const codebook16 book = make_codebook16(bits);
    tq_walk ahead = tq_walk_begin(values, v->n_groups * 2 * (n / 4)); /* rows 0..3 do it */
    float scale[4 * TQ_TILE];
    const uint32_t n16 = (n + 15) / 16 * 16; /* quantise_weights takes 16 tokens at a time */
    for (uint32_t g = 0; g < v->n_groups; g += 4) {
        const uint32_t n_groups = v->n_groups - g < 4 ? v->n_groups - g : 4;
        for (uint32_t t = 0; t < n16; t += 8) {
            const uint32_t from = t < n ? t : n - 1; /* beyond n any number: the weights are 0 */
            tq_transpose_f16(scale + t, TQ_TILE, values.scale + from * values.scale_stride + 2 * g,
                             values.scale_stride, n - from, n_groups);
        }
        const uint8_t *codes = values.codes + g * (GROUP * bits / 8);
        for (uint32_t r = 0; r < n_rows;) {
            const uint32_t rows = n_rows - r < MAX_ROWS ? n_rows - r : MAX_ROWS;
            float *dst = acc + r * acc_stride + g * GROUP;
#define CALL(n_of_rows)                                                                            \
    four_groups(dst, acc_stride, w + r * TQ_TILE, alpha + r, codes, values.codes_stride, scale,    \
                n_groups, n, &ahead, &book, index, finish, bits, n_of_rows)
            if (rows == 4)
                CALL(4);
            else if (rows == 3)
                CALL(3);
            else if (rows == 2)
                CALL(2);
            else
                CALL(1);
#undef CALL
            r += rows;
        }
    }
}

#define LLOYD_KERNEL(bits, finish)                                                                 \
    void tq_avx2_weigh_v##bits(const tq_codec *v, float *acc, size_t acc_stride, const float *w,   \
                               const float *alpha, uint32_t n_rows, tq_const_planes values,        \
                               uint32_t n)                                                         \
    {                                                                                              \
        weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, index_v##bits, finish, bits);       \
    }

LLOYD_KERNEL(2, finish_v2)
LLOYD_KERNEL(3, finish_in_order)
LLOYD_KERNEL(4, finish_v4)
LLOYD_KERNEL(5, finish_in_order)
