/* SPDX-License-Identifier: MIT */
/* avx2_attn_words.c — weighted sums of fine values (Lloyd values of 5 and 8 bits, uniform affine of
 * 8 bits) in 16-bit integers, for AVX2. Coarser values are in avx2_attn_bytes.c.
 *
 * Looking centroids up as f32 (vpermps) costs as much as multiplying them. As int16 they come from
 * byte shuffles, two tokens at a time, and one vpmaddwd then weighs 16 of them:
 *     sum[j] += w16[t] * c16[t][j] + w16[t+1] * c16[t+1][j]
 * w16 is weight times group scale times a factor per row and group, as large as an int16 and an
 * int32 sum over 64 tokens allow. Weights and centroids are rounded to nearest: about 1e-4 of the
 * result; tests/unit/test_attn_error_affine.c measures what the rounding adds.
 *
 * A step makes the numbers of 16 elements of two tokens: two registers of dwords (token t, token
 * t + 1) of 8 elements each. Low and high bytes of a number are made apart, from an INDEX of bytes
 * (element, token), and interleaved. What is the same for all elements of a token (the offset of
 * uniform groups, the zero of a table) is summed apart, in f32.
 */
#include "cpu/avx2_attn.h"
#include "tables.h"

#include <float.h>
#include <math.h>

#define GROUP      32u
#define MAX_ROWS   4u
#define MAX_GROUPS (1024u / GROUP)

#define WEIGHT_MAX 32767.0f

/* Largest number of 5 bits, and sums of weights: 64 roundings up of a half stay below 2^31 / TOP_5,
 * and below 2^16 for the numbers of 8 bits, which fill an int16. */
#define TOP_5 16383
#define SUM_5 131000.0f
#define SUM_8 65500.0f

/* What the kernel needs to know of a format. */
typedef struct fine {
    __m256i low[4], high[2]; /* bytes of centroids, or 64 fractions */
    float unit;              /* value = (unit * number + shift) * scale + offset */
    float shift;
    float weight_sum; /* at most, of integer weights */
} fine;

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

static fine fine_v5(void)
{
    const float *c = tq_lloyd_get(5)->centroid;
    const float top = fmaxf(-c[0], c[31]);
    fine f = {.unit = top / TOP_5, .weight_sum = SUM_5};
    for (int i = 0; i < 2; i++) {
        __m256i x = int16_of(c + 16 * i, _mm256_set1_ps(TOP_5 / top));
        f.low[i] = bytes_of(x, 0);
        f.high[i] = bytes_of(x, 8);
    }
    return f;
}

/* The 256 centroids of 8 bits are a straight line but for one step: centroid i is about
 *     step * (i - 128 + first + fraction[i / 4] / 256),
 * within 1.3 % of the standard deviation of the error that the format itself has. */
#define STEP_8  0.0345802147f
#define FIRST_8 -2.2647863f
static const uint8_t fraction[64] = {
    6,   2,   0,   5,   7,   55,  18,  0,   8,   4,   33,  23,  27,  40,  41,  62,
    84,  47,  98,  163, 217, 206, 179, 142, 144, 127, 98,  96,  119, 141, 153, 106,
    99,  91,  80,  117, 110, 85,  75,  56,  36,  26,  26,  0,   32,  66,  111, 140,
    150, 163, 161, 158, 164, 183, 196, 255, 186, 167, 174, 230, 185, 255, 207, 210};

static fine fine_v8(void)
{
    fine f = {.unit = STEP_8 / 256, .shift = STEP_8 * FIRST_8, .weight_sum = SUM_8};
    for (int i = 0; i < 4; i++)
        f.low[i] = _mm256_broadcastsi128_si256(
            _mm_loadu_si128((const __m128i *)(const void *)(fraction + 16 * i)));
    return f;
}

/* Codes minus 128: their middle goes to the offset. */
static fine fine_uniform8(void)
{
    return (fine){.unit = 1, .shift = 128, .weight_sum = SUM_5};
}

/* ---- Numbers --------------------------------------------------------------------------- */

/* Elements 16 * half .. of a group of two tokens whose codes begin at p0 and p1. */
typedef void numbers_fn(__m256i *a, __m256i *b, const uint8_t *p0, const uint8_t *p1, const fine *f,
                        const uint32_t half);

/* Put sums of the two registers of a step into element order. */
typedef void order_fn(__m256 *a, __m256 *b);

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

TQ_INLINE void numbers_v5(__m256i *a, __m256i *b, const uint8_t *p0, const uint8_t *p1,
                          const fine *f, const uint32_t half)
{
    const __m256i idx = index_v5(p0, p1, half);
    const __m256i upper = _mm256_slli_epi16(idx, 3); /* bit 4 of each byte to its sign */
    const __m256i low = _mm256_blendv_epi8(_mm256_shuffle_epi8(f->low[0], idx),
                                           _mm256_shuffle_epi8(f->low[1], idx), upper);
    const __m256i high = _mm256_blendv_epi8(_mm256_shuffle_epi8(f->high[0], idx),
                                            _mm256_shuffle_epi8(f->high[1], idx), upper);
    *a = _mm256_unpacklo_epi8(low, high);
    *b = _mm256_unpackhi_epi8(low, high);
}

TQ_INLINE void order_v5(__m256 *a, __m256 *b)
{
    (void)a;
    (void)b;
}

TQ_INLINE __m256i bytes16(const uint8_t *p)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* The number's high byte is the code minus 128, its low byte the fraction. */
TQ_INLINE void numbers_v8(__m256i *a, __m256i *b, const uint8_t *p0, const uint8_t *p1,
                          const fine *f, const uint32_t half)
{
    const __m256i idx =
        _mm256_or_si256(bytes16(p0 + 16 * half), _mm256_slli_epi16(bytes16(p1 + 16 * half), 8));
    const __m256i at = _mm256_and_si256(_mm256_srli_epi16(idx, 2), _mm256_set1_epi8(63));
    const __m256i bit4 = _mm256_slli_epi16(at, 3), bit5 = _mm256_slli_epi16(at, 2);
    const __m256i x = _mm256_blendv_epi8(_mm256_shuffle_epi8(f->low[0], at),
                                         _mm256_shuffle_epi8(f->low[1], at), bit4);
    const __m256i y = _mm256_blendv_epi8(_mm256_shuffle_epi8(f->low[2], at),
                                         _mm256_shuffle_epi8(f->low[3], at), bit4);
    const __m256i low = _mm256_blendv_epi8(x, y, bit5);
    const __m256i high = _mm256_xor_si256(idx, _mm256_set1_epi8((char)0x80));
    *a = _mm256_unpacklo_epi8(low, high);
    *b = _mm256_unpackhi_epi8(low, high);
}

/* a: 0 1 2 3 | 8 9 10 11, b: 4 5 6 7 | 12 13 14 15 */
TQ_INLINE void order_v8(__m256 *a, __m256 *b)
{
    const __m256 low = _mm256_permute2f128_ps(*a, *b, 0x20);
    *b = _mm256_permute2f128_ps(*a, *b, 0x31);
    *a = low;
}

TQ_INLINE void order_uniform8(__m256 *a, __m256 *b)
{
    order_v8(a, b);
}

TQ_INLINE void numbers_uniform8(__m256i *a, __m256i *b, const uint8_t *p0, const uint8_t *p1,
                                const fine *f, const uint32_t half)
{
    const __m256i middle = _mm256_set1_epi16(128);
    const __m256i x = _mm256_sub_epi16(bytes16(p0 + 16 * half), middle);
    const __m256i y = _mm256_sub_epi16(bytes16(p1 + 16 * half), middle);
    (void)f;
    *a = _mm256_unpacklo_epi16(x, y);
    *b = _mm256_unpackhi_epi16(x, y);
}

/* ---- Sums ------------------------------------------------------------------------------ */

/* Two tokens: codes at p0 and p1, weights from w16 on. */
TQ_INLINE void step(__m256i sum[MAX_ROWS][2], const int16_t *w16, const uint8_t *p0,
                    const uint8_t *p1, const fine *f, numbers_fn *numbers, const uint32_t half,
                    const uint32_t rows)
{
    __m256i a, b;
    numbers(&a, &b, p0, p1, f, half);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        int32_t pair;
        memcpy(&pair, w16 + r * TQ_TILE, sizeof pair);
        __m256i w = _mm256_set1_epi32(pair);
        sum[r][0] = tq_add_i32(sum[r][0], _mm256_madd_epi16(a, w));
        sum[r][1] = tq_add_i32(sum[r][1], _mm256_madd_epi16(b, w));
    }
}

/* 16 elements of all tokens for `rows` rows. w16 [rows][64]; factor, base [rows]: a sum is
 * multiplied by one, then the other added. */
TQ_INLINE void block(float *acc, size_t acc_stride, const int16_t *w16, const float *factor,
                     const float *base, const float *alpha, const uint8_t *codes, size_t stride,
                     uint32_t n, tq_walk *ahead, const fine *f, numbers_fn *numbers,
                     order_fn *order, const uint32_t half, const uint32_t rows)
{
    __m256i sum[MAX_ROWS][2];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (; n >= 4; n -= 4, w16 += 4, codes += 4 * stride) {
        tq_walk_on(ahead);
        step(sum, w16, codes, codes + stride, f, numbers, half, rows);
        step(sum, w16 + 2, codes + 2 * stride, codes + 3 * stride, f, numbers, half, rows);
    }
    for (; n > 0; n -= n < 2 ? n : 2, w16 += 2, codes += 2 * stride)
        step(sum, w16, codes, n < 2 ? codes : codes + stride, f, numbers, half, rows);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 x = _mm256_set1_ps(factor[r]), y = _mm256_set1_ps(base[r]);
        const __m256 al = _mm256_broadcast_ss(alpha + r);
        __m256 a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][0]), x, y);
        __m256 b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][1]), x, y);
        order(&a, &b);
        float *dst = acc + r * acc_stride;
        _mm256_storeu_ps(dst, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst), a));
        _mm256_storeu_ps(dst + 8, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst + 8), b));
    }
}

/* Weights of `rows` rows times the scales of a group, as integers w16 [rows][64], for 16-token
 * steps up to n. factor[r]: what a sum of centroid integers must be multiplied by. Only tokens that
 * a row sees count, so that a query rounds alike alone and in a batch. */
TQ_INLINE void quantise_weights(int16_t *w16, float *factor, const float *w, const float *scale,
                                const fine *f, uint32_t n, const uint32_t rows)
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
        const float step = fmaxf(m * (1 / WEIGHT_MAX), s / f->weight_sum);
        /* Below, the quotient could overflow; beside any other tile it is 0. Above: a NaN or Inf of
         * weights or hostile scales must show in the result. */
        const int usable = s >= 0x1p-90f && s <= FLT_MAX;
        up[r] = _mm256_set1_ps(usable ? 1 / step : 0);
        factor[r] = usable ? f->unit * step : s < 0x1p-90f ? 0 : NAN;
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

/* A group of 32 elements, or `halves` times 16 of them, for `rows` rows. scale, offset: [64]. */
TQ_INLINE void one_group(float *acc, size_t acc_stride, const float *w, const float *alpha,
                         const uint8_t *codes, size_t stride, const float *scale,
                         const float *offset, uint32_t n, uint32_t halves, tq_walk *ahead,
                         const fine *f, numbers_fn *numbers, order_fn *order, const uint32_t bits,
                         const uint32_t rows)
{
    int16_t w16[MAX_ROWS * TQ_TILE];
    float factor[MAX_ROWS], base[MAX_ROWS] = {0};
    quantise_weights(w16, factor, w, scale, f, (n + 15) / 16 * 16, rows);
    if (bits == 8)
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            base[r] = tq_dot_tile(w + r * TQ_TILE, offset);
    block(acc, acc_stride, w16, factor, base, alpha, codes, stride, n, ahead, f, numbers, order, 0,
          rows);
    if (halves > 1)
        block(acc + 16, acc_stride, w16, factor, base, alpha, codes, stride, n, ahead, f, numbers,
              order, 1, rows);
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     const fine *f, numbers_fn *numbers, order_fn *order, const uint32_t bits)
{
    if (v->dim % 16) { /* 24, 40, 72 ...: what no model has */
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    const uint32_t n_halves = v->dim / 16;
    tq_walk ahead = tq_walk_begin(values, n_halves * (n / 4)); /* rows 0..3 do it */
    float scale[MAX_GROUPS * TQ_TILE], offset[MAX_GROUPS * TQ_TILE];
    tq_load_columns(scale, TQ_TILE, values.scale, values.scale_stride, 0, TQ_TILE, n, v->n_groups);
    if (values.zero && v->zero_bytes)
        tq_load_columns(offset, TQ_TILE, values.zero, values.zero_stride, 0, TQ_TILE, n,
                        v->n_groups);
    else if (bits == 8)
        memset(offset, 0, sizeof(float) * v->n_groups * TQ_TILE);
    if (bits == 8)
        tq_shift_offsets(offset, scale, f->shift, v->n_groups);
    for (uint32_t h = 0; h < n_halves; h += 2) {
        const uint32_t halves = n_halves - h < 2 ? 1 : 2;
        const float *s = scale + h * 16 / v->group * TQ_TILE;
        const float *o = offset + h * 16 / v->group * TQ_TILE;
        const uint8_t *codes = values.codes + h * (2 * bits);
        size_t stride = values.codes_stride;
        uint8_t ends[TQ_TILE * TQ_END_BYTES];
        if (bits == 5 && halves == 1) { /* loads take 16 of 10 bytes */
            tq_copy_ends(ends, codes, stride, 10, n, n);
            codes = ends, stride = TQ_END_BYTES;
        }
        for (uint32_t r = 0; r < n_rows; r += MAX_ROWS) {
            float *dst = acc + r * acc_stride + h * 16;
#define CALL(n_of_rows)                                                                            \
    one_group(dst, acc_stride, w + r * TQ_TILE, alpha + r, codes, stride, s, o, n, halves, &ahead, \
              f, numbers, order, bits, n_of_rows)
            TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
        }
    }
}

#define KERNEL(function, format, bits)                                                             \
    void function(const tq_codec *v, float *acc, size_t acc_stride, const float *w,                \
                  const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)         \
    {                                                                                              \
        const fine f = fine_##format();                                                            \
        weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &f, numbers_##format,               \
              order_##format, bits);                                                               \
    }

KERNEL(tq_avx2_weigh_v5, v5, 5)
KERNEL(tq_avx2_weigh_v8, v8, 8)
KERNEL(tq_avx2_weigh_uniform8, uniform8, 8)
