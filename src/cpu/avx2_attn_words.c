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
 * (element, token), and interleaved. Which 16 elements of a group those are is the PART of the
 * group: what comes together at the least cost. What is the same for all elements of a token (the
 * offset of uniform groups, the zero of a table) is summed apart, in f32.
 */
#include "cpu/avx2_attn_sums.h"
#include "cpu/avx2_attn_words.h"
#include "tables.h"

#include <float.h>
#include <math.h>

#define GROUP      32u
#define MAX_ROWS   4u
#define MAX_GROUPS (1024u / GROUP)

/* What the kernel needs to know of a format. */
typedef struct fine {
    __m256i low[4], high[2]; /* bytes of centroids, or 64 fractions */
    float unit;              /* value = (unit * number + shift) * scale + offset */
    float shift;
    float weight_sum; /* at most, of integer weights */
    int16_t zero;     /* number that stands for none: sums start at -zero times the weights */
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

/* The second tables as their difference (XOR) to the first. */
static fine fine_v5(void)
{
    const float *c = tq_lloyd_get(5)->centroid;
    const float top = fmaxf(-c[0], c[31]);
    fine f = {.unit = top / TQ_TOP_5, .weight_sum = TQ_SUM_5};
    for (int i = 0; i < 2; i++) {
        __m256i x = int16_of(c + 16 * i, _mm256_set1_ps(TQ_TOP_5 / top));
        f.low[i] = bytes_of(x, 0);
        f.high[i] = bytes_of(x, 8);
    }
    f.low[1] = _mm256_xor_si256(f.low[1], f.low[0]);
    f.high[1] = _mm256_xor_si256(f.high[1], f.high[0]);
    return f;
}

/* Each table but the first as its difference (XOR) to the one before. */
static fine fine_v8(void)
{
    fine f = {.unit = TQ_STEP_8 / 256, .shift = TQ_STEP_8 * TQ_FIRST_8, .weight_sum = TQ_SUM_8};
    __m256i before = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        const __m256i x = _mm256_broadcastsi128_si256(
            _mm_loadu_si128((const __m128i *)(const void *)(tq_fraction_8 + 16 * i)));
        f.low[i] = _mm256_xor_si256(x, before);
        before = x;
    }
    return f;
}

/* Codes, less 128 of each: their middle goes to the offset. */
static fine fine_uniform8(void)
{
    return (fine){.unit = 1, .shift = 128, .weight_sum = TQ_SUM_5, .zero = 128};
}

/* ---- Numbers --------------------------------------------------------------------------- */

/* 16 elements of a group of 32, or of the half group at the end of a row. */
typedef enum part { FIRST, SECOND, ONLY } part;

/* Numbers of a part of two tokens. */
typedef struct pair {
    __m256i a, b;
} pair;

/* Of tokens whose codes begin at p0 and p1. */
typedef pair numbers_fn(const uint8_t *p0, const uint8_t *p1, const fine *f, const part which);

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
TQ_INLINE __m256i index_v5(const uint8_t *p0, const uint8_t *p1, const part which)
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
    const __m128i *q0 = (const __m128i *)(const void *)(p0 + (which == SECOND ? 4 : 0));
    const __m128i *q1 = (const __m128i *)(const void *)(p1 + (which == SECOND ? 4 : 0));
    return straddling(_mm256_broadcastsi128_si256(_mm_loadu_si128(q0)),
                      _mm256_broadcastsi128_si256(_mm_loadu_si128(q1)),
                      which == SECOND ? second : first, to_top, to_bit8, 5);
}

/* Bytes are looked up in both tables, in the second at an index that is negative, and gives 0, up
 * to 15: where vpblendvb is more than one operation, that is less than choosing. */
TQ_INLINE pair numbers_v5(const uint8_t *p0, const uint8_t *p1, const fine *f, const part which)
{
    const __m256i idx = index_v5(p0, p1, which);
    const __m256i upper = _mm256_sub_epi8(idx, _mm256_set1_epi8(16));
    const __m256i low = _mm256_xor_si256(_mm256_shuffle_epi8(f->low[0], idx),
                                         _mm256_shuffle_epi8(f->low[1], upper));
    const __m256i high = _mm256_xor_si256(_mm256_shuffle_epi8(f->high[0], idx),
                                          _mm256_shuffle_epi8(f->high[1], upper));
    return (pair){_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
}

TQ_INLINE __m128i load128(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* Bytes (element, token) of elements 0 .. 7 | 16 .. 23, of 8 .. 15 | 24 .. 31, or of 16 alone. */
TQ_INLINE __m256i index_8(const uint8_t *p0, const uint8_t *p1, const part which)
{
    if (which == ONLY) {
        const __m128i x = load128(p0), y = load128(p1);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(x, y)),
                                       _mm_unpackhi_epi8(x, y), 1);
    }
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p0);
    const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)p1);
    return which == FIRST ? _mm256_unpacklo_epi8(x, y) : _mm256_unpackhi_epi8(x, y);
}

/* The number's high byte is the code minus 128, its low byte the fraction. Fractions are looked up
 * in all four tables, at an index that is negative, and gives 0, from the first table on that is
 * not needed; the others add up. (Choosing one of four results would take the ports of the shuffles
 * as well.) */
TQ_INLINE pair numbers_v8(const uint8_t *p0, const uint8_t *p1, const fine *f, const part which)
{
    const __m256i idx = index_8(p0, p1, which);
    __m256i at = _mm256_and_si256(_mm256_srli_epi16(idx, 2), _mm256_set1_epi8(63));
    __m256i low = _mm256_shuffle_epi8(f->low[0], at);
    TQ_UNROLL_FOR (int i = 1; i < 4; i++) {
        at = _mm256_sub_epi8(at, _mm256_set1_epi8(16));
        low = _mm256_xor_si256(low, _mm256_shuffle_epi8(f->low[i], at));
    }
    const __m256i high = _mm256_xor_si256(idx, _mm256_set1_epi8((char)0x80));
    return (pair){_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
}

TQ_INLINE pair numbers_uniform8(const uint8_t *p0, const uint8_t *p1, const fine *f,
                                const part which)
{
    const __m256i idx = index_8(p0, p1, which), zero = _mm256_setzero_si256();
    (void)f;
    return (pair){_mm256_unpacklo_epi8(idx, zero), _mm256_unpackhi_epi8(idx, zero)};
}

/* ---- Sums ------------------------------------------------------------------------------ */

/* Two tokens, whose weights are at w16. */
TQ_INLINE void step(__m256i sum[MAX_ROWS][2], const int16_t *w16, pair x, const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const uint8_t *p = (const uint8_t *)(w16 + r * TQ_TILE);
        const __m256i w = _mm256_set1_epi32((int)tq_load_u32(p));
        sum[r][0] = tq_add_i32(sum[r][0], _mm256_madd_epi16(x.a, w));
        sum[r][1] = tq_add_i32(sum[r][1], _mm256_madd_epi16(x.b, w));
    }
}

/* Integer weights of a group: w16 [rows][64]. A sum starts at start[r], is multiplied by factor[r],
 * then base[r] is added. */
typedef struct weights {
    int16_t w16[MAX_ROWS * TQ_TILE];
    int32_t start[4];
    float factor[4], base[4];
} weights;

/* A part of all tokens for `rows` rows. The numbers of two tokens are made before the products of
 * the two before them: a core looks some hundred instructions ahead, and from codes to sums they
 * wait for each other. */
TQ_INLINE void block(float *acc, size_t acc_stride, const weights *by, const float *alpha,
                     const uint8_t *codes, size_t stride, uint32_t n, tq_walk *ahead, const fine *f,
                     numbers_fn *numbers, const uint32_t bits, const part which,
                     const uint32_t rows)
{
    const int16_t *w16 = by->w16;
    __m256i sum[MAX_ROWS][2];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_set1_epi32(by->start[r]);
    pair now = numbers(codes, n < 2 ? codes : codes + stride, f, which);
    for (; n >= 8; n -= 8, w16 += 8) {
        const uint8_t *after = n > 8 ? codes + 8 * stride : codes;
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 3; i++) {
            codes += 2 * stride;
            const pair next = numbers(codes, codes + stride, f, which);
            step(sum, w16 + 2 * i, now, rows);
            now = next;
        }
        codes = after;
        const pair next = numbers(codes, n > 9 ? codes + stride : codes, f, which);
        step(sum, w16 + 6, now, rows);
        now = next;
    }
    for (; n > 0; n -= 2, w16 += 2) {
        step(sum, w16, now, rows);
        if (n <= 2)
            break;
        codes += 2 * stride;
        now = numbers(codes, n < 4 ? codes : codes + stride, f, which);
    }
    const size_t second = bits == 8 && which != ONLY ? 16 : 8;
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 x = _mm256_set1_ps(by->factor[r]), y = _mm256_set1_ps(by->base[r]);
        const __m256 al = _mm256_broadcast_ss(alpha + r);
        __m256 a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][0]), x, y);
        __m256 b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][1]), x, y);
        if (bits == 8) { /* a: 0 1 2 3 | then those from `second` on, b: 4 5 6 7 | ... */
            const __m256 low = _mm256_permute2f128_ps(a, b, 0x20);
            b = _mm256_permute2f128_ps(a, b, 0x31);
            a = low;
        }
        float *dst = acc + r * acc_stride;
        _mm256_storeu_ps(dst, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst), a));
        dst += second;
        _mm256_storeu_ps(dst, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst), b));
    }
}

/* Weights of `rows` rows times the scales of a group, as integers, for 16-token steps up to n.
 * Only tokens that a row sees count, so that a query rounds alike alone and in a batch. */
TQ_INLINE void quantise_weights(weights *by, const float *w, const float *scale,
                                const float *offset, const fine *f, uint32_t n, const int affine,
                                const uint32_t rows)
{
    __m256 max[4], sum[4], base[4];
    float product[MAX_ROWS * TQ_TILE], up[4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        max[r] = sum[r] = base[r] = _mm256_setzero_ps();
    for (uint32_t t = 0; t < n; t += 8) {
        const __m256 y = _mm256_loadu_ps(scale + t);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const __m256 x = _mm256_loadu_ps(w + r * TQ_TILE + t), xy = _mm256_mul_ps(x, y);
            max[r] = _mm256_max_ps(max[r], xy);
            sum[r] = _mm256_add_ps(sum[r], xy);
            if (affine)
                base[r] = _mm256_fmadd_ps(x, _mm256_loadu_ps(offset + t), base[r]);
            _mm256_storeu_ps(product + r * TQ_TILE + t, xy);
        }
    }
    /* Below, the quotient could overflow; beside any other tile it is 0. Above: a NaN or Inf of
     * weights or hostile scales must show in the result. */
    const __m128 s = tq_sum4(sum), shift = _mm_mul_ps(s, _mm_set1_ps(f->shift));
    const __m128 seen = _mm_cmpge_ps(s, _mm_set1_ps(0x1p-90f));
    const __m128 finite = _mm_cmple_ps(s, _mm_set1_ps(FLT_MAX));
    const __m128 down = _mm_max_ps(_mm_mul_ps(tq_largest(max), _mm_set1_ps(1 / TQ_WORD_MAX)),
                                   _mm_mul_ps(s, _mm_set1_ps(1 / f->weight_sum)));
    _mm_storeu_ps(up, _mm_and_ps(_mm_div_ps(_mm_set1_ps(1), down), _mm_and_ps(seen, finite)));
    _mm_storeu_ps(by->factor,
                  _mm_blendv_ps(_mm_set1_ps(NAN),
                                _mm_and_ps(_mm_mul_ps(down, _mm_set1_ps(f->unit)), seen), finite));
    _mm_storeu_ps(by->base, affine ? _mm_add_ps(tq_sum4(base), shift) : shift);
    __m256i total[4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        total[r] = _mm256_setzero_si256();
    for (uint32_t t = 0; t < n; t += 16)
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const float *p = product + r * TQ_TILE + t;
            const __m256 u = _mm256_broadcast_ss(up + r);
            __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p), u));
            __m256i y = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p + 8), u));
            if (affine)
                total[r] = _mm256_add_epi32(total[r], _mm256_add_epi32(x, y));
            x = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, y), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(by->w16 + r * TQ_TILE + t), x);
        }
    _mm_storeu_si128((__m128i *)(void *)by->start,
                     affine ? _mm_mullo_epi32(tq_sum4_i32(total), _mm_set1_epi32(-f->zero))
                            : _mm_setzero_si128());
}

/* A group of 32 elements, or a half of one, for `rows` rows. scale, offset: [64]. */
TQ_INLINE void one_group(float *acc, size_t acc_stride, const float *w, const float *alpha,
                         const uint8_t *codes, size_t stride, const float *scale,
                         const float *offset, uint32_t n, uint32_t halves, tq_walk *ahead,
                         const fine *f, numbers_fn *numbers, const uint32_t bits, const int affine,
                         const uint32_t rows)
{
    weights by;
    quantise_weights(&by, w, scale, offset, f, (n + 15) / 16 * 16, affine, rows);
    if (halves == 1) {
        block(acc, acc_stride, &by, alpha, codes, stride, n, ahead, f, numbers, bits, ONLY, rows);
        return;
    }
    const size_t second = bits == 8 ? 8 : 16;
    block(acc, acc_stride, &by, alpha, codes, stride, n, ahead, f, numbers, bits, FIRST, rows);
    block(acc + second, acc_stride, &by, alpha, codes, stride, n, ahead, f, numbers, bits, SECOND,
          rows);
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     const fine *f, numbers_fn *numbers, const uint32_t bits, const int affine)
{
    if (v->dim % 16) { /* 24, 40, 72 ...: what no model has */
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    const uint32_t n_halves = v->dim / 16;
    tq_walk ahead = tq_walk_begin(values, n_halves * (n / 8)); /* rows 0..3 do it */
    float scale[MAX_GROUPS * TQ_TILE], offset[MAX_GROUPS * TQ_TILE];
    tq_load_columns(scale, TQ_TILE, values.scale, values.scale_stride, 0, TQ_TILE, n, v->n_groups);
    if (tq_has_sign(scale, v->n_groups * TQ_TILE)) {
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    if (affine)
        tq_load_columns(offset, TQ_TILE, values.zero, values.zero_stride, 0, TQ_TILE, n,
                        v->n_groups);
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
              f, numbers, bits, affine, n_of_rows)
            TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
        }
    }
}

#define KERNEL(function, format, bits, affine)                                                     \
    void function(const tq_codec *v, float *acc, size_t acc_stride, const float *w,                \
                  const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)         \
    {                                                                                              \
        const fine f = fine_##format();                                                            \
        weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &f, numbers_##format, bits,         \
              affine);                                                                             \
    }

KERNEL(tq_avx2_weigh_v5, v5, 5, 0)
KERNEL(tq_avx2_weigh_v8, v8, 8, 0)
KERNEL(tq_avx2_weigh_uniform8, uniform8, 8, 1)
