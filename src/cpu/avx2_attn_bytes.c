/* SPDX-License-Identifier: MIT */
/* avx2_attn_bytes.c — weighted sums of coarse values (Lloyd values of 2, 3 and 4 bits, uniform
 * affine of 4 bits) in bytes, for AVX2.
 *
 * Such values are off by 9 to 33 % of their size, so weights of 8 bits do. vpmaddubsw multiplies 32
 * bytes at once, twice what vpmaddwd does, if the values are bytes in the right order:
 *   - `expand` turns two groups of all tokens into signed bytes, four tokens of an element
 *     together (a QUAD is 4 tokens x 32 elements, 128 bytes), once for all rows;
 *   - weights times group scale become unsigned bytes, a dword for a quad;
 *   - products are added up in int16, two of the four tokens in each half of a dword. The weights'
 *     scale is such that this cannot overflow in RUN tokens.
 * The 16 registers hold the sums of 4 rows x 16 elements.
 *
 * A weight is not rounded to nearest but up or down by a fixed pattern over the tokens (ordered
 * dithering): nearest would lose all of the many small weights beside a large one.
 */
#include "cpu/avx2_attn.h"

#include <float.h>
#include <math.h>

enum {
    GROUP = 32,
    MAX_ROWS = 4,
    MAX_GROUPS = 1024 / GROUP,
    QUADS = TQ_TILE / 4,
    QUAD_BYTES = 4 * GROUP,
    HALF_BYTES = QUAD_BYTES / 2, /* of 16 elements */
    MOST_16 = 417                /* weights in an int16 sum of 16 tokens: (417 + 8) * 77 < 2^15 */
};

/* What the kernel needs to know of a format. */
typedef struct coarse {
    __m256i book; /* int8 of the 16 codes, in both lanes; codes of fewer bits repeat */
    float unit;   /* value = (unit * int8 + shift) * scale + offset */
    float shift;
    float limit; /* largest byte weight; in runs of 64 (4 * limit + 32) * largest int8 < 2^15 */
} coarse;

/* Two groups of four tokens into quads at a and b. */
typedef void expand_fn(int8_t *a, int8_t *b, const uint8_t *const row[4], __m256i book);

/* Put the sums of the two registers of half a group into element order. */
typedef void order_fn(__m256 *a, __m256 *b);

/* ---- Codes to bytes -------------------------------------------------------------------- */

TQ_INLINE __m256i load32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

TQ_INLINE void store_lanes(int8_t *low, int8_t *high, __m256i x)
{
    _mm_storeu_si128((__m128i *)(void *)low, _mm256_castsi256_si128(x));
    _mm_storeu_si128((__m128i *)(void *)high, _mm256_extracti128_si256(x, 1));
}

/* 16 bytes a group. Dword of a quad: byte c of the four rows; a register has 4 of them of each
 * group, and both nibbles of them follow each other. */
TQ_INLINE void expand_4(int8_t *a, int8_t *b, const uint8_t *const row[4], __m256i book)
{
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i r0 = load32(row[0]), r1 = load32(row[1]), r2 = load32(row[2]),
                  r3 = load32(row[3]);
    const __m256i x = _mm256_unpacklo_epi8(r0, r1), y = _mm256_unpacklo_epi8(r2, r3);
    const __m256i z = _mm256_unpackhi_epi8(r0, r1), w = _mm256_unpackhi_epi8(r2, r3);
    const __m256i quad[4] = {_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y),
                             _mm256_unpacklo_epi16(z, w), _mm256_unpackhi_epi16(z, w)};
    TQ_UNROLL_FOR (int i = 0; i < 4; i++) {
        const __m256i low = _mm256_and_si256(quad[i], mask);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(quad[i], 4), mask);
        store_lanes(a + 32 * i, b + 32 * i, _mm256_shuffle_epi8(book, low));
        store_lanes(a + 32 * i + 16, b + 32 * i + 16, _mm256_shuffle_epi8(book, high));
    }
}

/* Per register: elements 0 2 4 6 | 1 3 5 7. */
TQ_INLINE void order_4(__m256 *a, __m256 *b)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    *a = _mm256_permutevar8x32_ps(*a, order);
    *b = _mm256_permutevar8x32_ps(*b, order);
}

/* 8 bytes a group. A dword has byte c of the rows, its field f is element 4c + f. */
TQ_INLINE void expand_2(int8_t *a, int8_t *b, const uint8_t *const row[4], __m256i book)
{
    const __m256i mask = _mm256_set1_epi8(3);
    __m256i r[4];
    TQ_UNROLL_FOR (int i = 0; i < 4; i++) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)row[i]);
        r[i] = _mm256_permute4x64_epi64(_mm256_castsi128_si256(x), 0x10);
    }
    const __m256i x = _mm256_unpacklo_epi8(r[0], r[1]), y = _mm256_unpacklo_epi8(r[2], r[3]);
    const __m256i quad[2] = {_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y)};
    TQ_UNROLL_FOR (int i = 0; i < 2; i++)
        TQ_UNROLL_FOR (int f = 0; f < 4; f++) {
            const int at = HALF_BYTES * i + f % 2 * 32 + f / 2 * 16;
            const __m256i code = _mm256_and_si256(_mm256_srli_epi16(quad[i], 2 * f), mask);
            store_lanes(a + at, b + at, _mm256_shuffle_epi8(book, code));
        }
}

/* a: 0 4 8 12 | 2 6 10 14, b: 1 5 9 13 | 3 7 11 15 */
TQ_INLINE void order_2(__m256 *a, __m256 *b)
{
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    const __m256 low = _mm256_unpacklo_ps(*a, *b), high = _mm256_unpackhi_ps(*a, *b);
    *a = _mm256_permutevar8x32_ps(low, order);
    *b = _mm256_permutevar8x32_ps(high, order);
}

/* Words of pairs of 3-bit codes of two tokens, 6 bits in a byte each, low byte: first token. Pair p
 * is at stream bit 6p, in bytes 6p/8 and the next; multiplication by a power of two moves it to
 * bit 0 of the upper half of the product or to bit 8 of the lower. x0 and x1: 16 bytes of the
 * tokens, in both lanes; gather0 and gather1: the words of the pairs, for even pairs of fours
 * gather0 has the first byte in the upper half. */
TQ_INLINE __m256i pairs_3(__m256i x0, __m256i x1, __m256i gather0, __m256i gather1)
{
    const __m256i down = _mm256_set1_epi64x(0x4000100004000100); /* by 8 (see above), 6, 4, 2 */
    const __m256i up = _mm256_set1_epi64x(0x0040001000040100);   /* by 8, 2, 4, 6 */
    x0 = _mm256_mulhi_epu16(_mm256_shuffle_epi8(x0, gather0), down);
    x1 = _mm256_mullo_epi16(_mm256_shuffle_epi8(x1, gather1), up);
    return _mm256_blendv_epi8(x0, x1, _mm256_set1_epi16((short)0xff00));
}

TQ_INLINE void expand_3_group(int8_t *dst, const __m256i x[4], __m256i gather0, __m256i gather1,
                              __m256i book)
{
    const __m256i mask = _mm256_set1_epi8(7);
    const __m256i y = pairs_3(x[0], x[1], gather0, gather1);
    const __m256i z = pairs_3(x[2], x[3], gather0, gather1);
    const __m256i quad[2] = {_mm256_unpacklo_epi16(y, z), _mm256_unpackhi_epi16(y, z)};
    TQ_UNROLL_FOR (int i = 0; i < 2; i++) {
        const __m256i even = _mm256_and_si256(quad[i], mask);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(quad[i], 3), mask);
        __m256i *to = (__m256i *)(void *)(dst + HALF_BYTES * i);
        _mm256_storeu_si256(to, _mm256_shuffle_epi8(book, even));
        _mm256_storeu_si256(to + 1, _mm256_shuffle_epi8(book, odd));
    }
}

/* 12 bytes a group. Loads of 16 begin with the first group and end with the second. Low lane: pairs
 * 0..3 and 8..11, high lane: 4..7 and 12..15. */
TQ_INLINE void expand_3(int8_t *a, int8_t *b, const uint8_t *const row[4], __m256i book)
{
    const __m256i gather1 = _mm256_setr_epi8(0, 1, 0, 1, 1, 2, 2, 3, 6, 7, 6, 7, 7, 8, 8, 9, 3, 4,
                                             3, 4, 4, 5, 5, 6, 9, 10, 9, 10, 10, 11, 11, 12);
    const __m256i gather0 = _mm256_setr_epi8(-1, 0, 0, 1, 1, 2, 2, 3, -1, 6, 6, 7, 7, 8, 8, 9, -1,
                                             3, 3, 4, 4, 5, 5, 6, -1, 9, 9, 10, 10, 11, 11, 12);
    const __m256i four = _mm256_set1_epi8(4);
    __m256i x[4];
    TQ_UNROLL_FOR (int i = 0; i < 4; i++)
        x[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)row[i]));
    expand_3_group(a, x, gather0, gather1, book);
    TQ_UNROLL_FOR (int i = 0; i < 4; i++)
        x[i] = _mm256_broadcastsi128_si256(
            _mm_loadu_si128((const __m128i *)(const void *)(row[i] + 8)));
    /* -1 becomes 3, any byte: its bits are shifted out. The last word's upper byte would be 16;
     * its pair ends in the lower. */
    expand_3_group(b, x, _mm256_min_epu8(_mm256_add_epi8(gather0, four), _mm256_set1_epi8(15)),
                   _mm256_min_epu8(_mm256_add_epi8(gather1, four), _mm256_set1_epi8(15)), book);
}

/* a: even, b: odd elements. */
TQ_INLINE void order_3(__m256 *a, __m256 *b)
{
    const __m256 low = _mm256_unpacklo_ps(*a, *b), high = _mm256_unpackhi_ps(*a, *b);
    *a = _mm256_permute2f128_ps(low, high, 0x20);
    *b = _mm256_permute2f128_ps(low, high, 0x31);
}

/* ---- Weights to bytes ------------------------------------------------------------------ */

/* Token t's place in the pattern, minus a half: bits of t reversed, so that any run of tokens has
 * all heights. */
#define D(i) ((i) / 64.0f - 63.0f / 128.0f)
static const float pattern[TQ_TILE] = {
    D(0),  D(32), D(16), D(48), D(8),  D(40), D(24), D(56), D(4),  D(36), D(20), D(52), D(12),
    D(44), D(28), D(60), D(2),  D(34), D(18), D(50), D(10), D(42), D(26), D(58), D(6),  D(38),
    D(22), D(54), D(14), D(46), D(30), D(62), D(1),  D(33), D(17), D(49), D(9),  D(41), D(25),
    D(57), D(5),  D(37), D(21), D(53), D(13), D(45), D(29), D(61), D(3),  D(35), D(19), D(51),
    D(11), D(43), D(27), D(59), D(7),  D(39), D(23), D(55), D(15), D(47), D(31), D(63)};
#undef D

/* The larger of numbers >= 0, as their bits: a NaN is the largest. */
TQ_INLINE __m256 larger(__m256 a, __m256 b)
{
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}

/* Largest lane of each of four registers of such numbers. */
TQ_INLINE __m128 largest(const __m256 x[4])
{
    __m256 y = larger(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    __m256 z = larger(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    y = larger(_mm256_shuffle_ps(y, z, 0x44), _mm256_shuffle_ps(y, z, 0xee));
    z = _mm256_permute2f128_ps(y, y, 1);
    return _mm256_castps256_ps128(larger(y, z));
}

/* The bound of a row's weights p = w * scale that may be as large as `limit` once they are bytes.
 * The int16 sums of a quad take two tokens each, and those of RUN tokens half of them.
 *   64 tokens: both sums get tokens of four lanes here; 4 times the largest lane bounds them.
 *   16 tokens: the sums themselves, allowed MOST_16, and two neighbours, allowed limit. */
TQ_INLINE __m256 bound_of_row(const float *w, const float *scale, const coarse *f,
                              const uint32_t run)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 p[TQ_TILE / 8];
    TQ_UNROLL_FOR (uint32_t i = 0; i < TQ_TILE / 8; i++)
        p[i] = _mm256_mul_ps(_mm256_loadu_ps(w + 8 * i), _mm256_loadu_ps(scale + 8 * i));
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        p[i] = _mm256_add_ps(p[2 * i], p[2 * i + 1]);
    if (run == TQ_TILE)
        return _mm256_and_ps(magnitude,
                             _mm256_add_ps(_mm256_add_ps(p[0], p[1]), _mm256_add_ps(p[2], p[3])));
    const __m256 a = _mm256_add_ps(_mm256_permute2f128_ps(p[0], p[1], 0x20),
                                   _mm256_permute2f128_ps(p[0], p[1], 0x31));
    const __m256 b = _mm256_add_ps(_mm256_permute2f128_ps(p[2], p[3], 0x20),
                                   _mm256_permute2f128_ps(p[2], p[3], 0x31));
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        p[i] = _mm256_and_ps(magnitude, p[i]);
    const __m256 sums = _mm256_mul_ps(_mm256_hadd_ps(a, b), _mm256_set1_ps(f->limit / MOST_16));
    return larger(_mm256_and_ps(magnitude, sums), larger(larger(p[0], p[1]), larger(p[2], p[3])));
}

/* Weights of `rows` rows times the scales of a group, as bytes w8 [rows][64]; in each 32 tokens the
 * quads are in the order 0 2 4 6 1 3 5 7. factor[r]: what a sum of products must be multiplied by.
 * Only tokens that a row sees count, so that a query rounds alike alone and in a batch. */
TQ_INLINE void quantise_weights(uint8_t *w8, float factor[4], const float *w, const float *scale,
                                const coarse *f, const uint32_t run, const uint32_t rows)
{
    __m256 peak[4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        peak[r] = r < rows ? bound_of_row(w + r * TQ_TILE, scale, f, run) : _mm256_setzero_ps();
    const __m128 most = largest(peak);
    /* Below, the quotient could overflow; beside any other tile it is 0. Above: a NaN or Inf of
     * weights or hostile scales must show in the result. */
    const __m128 seen = _mm_cmpge_ps(most, _mm_set1_ps(0x1p-90f));
    const __m128 finite = _mm_cmple_ps(most, _mm_set1_ps(FLT_MAX));
    const __m128 up4 =
        _mm_and_ps(_mm_div_ps(_mm_set1_ps(f->limit), most), _mm_and_ps(seen, finite));
    __m128 down4 = _mm_and_ps(_mm_mul_ps(most, _mm_set1_ps(f->unit / f->limit)), seen);
    down4 = _mm_blendv_ps(_mm_set1_ps(NAN), down4, finite);
    float up[4];
    _mm_storeu_ps(up, up4);
    _mm_storeu_ps(factor, down4);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 u = _mm256_broadcast_ss(up + r);
        TQ_UNROLL_FOR (uint32_t t = 0; t < TQ_TILE; t += 32) {
            __m256i x[4];
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                const uint32_t at = t + 8 * i;
                const __m256 p = _mm256_mul_ps(_mm256_loadu_ps(w + r * TQ_TILE + at),
                                               _mm256_loadu_ps(scale + at));
                const __m256 d = _mm256_loadu_ps(pattern + at);
                x[i] = _mm256_cvtps_epi32(_mm256_fmadd_ps(p, u, d));
            }
            x[0] = _mm256_packs_epi32(x[0], x[1]);
            x[2] = _mm256_packs_epi32(x[2], x[3]);
            _mm256_storeu_si256((__m256i *)(void *)(w8 + r * TQ_TILE + t),
                                _mm256_packus_epi16(x[0], x[2]));
        }
    }
}

/* ---- Sums ------------------------------------------------------------------------------ */

/* A quad: x of 16 elements, weights at w8. */
TQ_INLINE void step(__m256i sum[MAX_ROWS][2], const uint8_t *w8, const int8_t *x,
                    const uint32_t rows)
{
    const __m256i a = tq_keep(load32((const uint8_t *)x));
    const __m256i b = tq_keep(load32((const uint8_t *)x + 32));
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256i w = _mm256_set1_epi32((int)tq_load_u32(w8 + r * TQ_TILE));
        sum[r][0] = tq_add_i16(sum[r][0], _mm256_maddubs_epi16(w, a));
        sum[r][1] = tq_add_i16(sum[r][1], _mm256_maddubs_epi16(w, b));
    }
}

/* int16 sums, two of an element, to int32 sums. */
TQ_INLINE void empty(__m256i sum[MAX_ROWS][2], __m256i total[MAX_ROWS][2], const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (int j = 0; j < 2; j++) {
            const __m256i s = _mm256_madd_epi16(sum[r][j], _mm256_set1_epi16(1));
            total[r][j] = _mm256_add_epi32(total[r][j], s);
            sum[r][j] = _mm256_setzero_si256();
        }
}

/* 16 elements of n_units times 32 tokens for `rows` rows. x: half a quad, the next 128 bytes on.
 * factor, base [rows]: a sum is multiplied by one, then the other added. */
TQ_INLINE void block(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                     const float *base, const float *alpha, const int8_t *x, uint32_t n_units,
                     tq_walk *ahead, order_fn *order, const uint32_t run, const uint32_t rows)
{
    __m256i sum[MAX_ROWS][2], total[MAX_ROWS][2];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = total[r][0] = total[r][1] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n_units; i++, w8 += 32, x += 8 * QUAD_BYTES) {
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t q = 0; q < 8; q++) {
            step(sum, w8 + q % 2 * 16 + q / 2 * 4, x + q * QUAD_BYTES, rows);
            if ((q + 1) * 4 % run == 0)
                empty(sum, total, rows);
        }
    }
    if (run > 32)
        empty(sum, total, rows);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 f = _mm256_set1_ps(factor[r]), y = _mm256_set1_ps(base[r]);
        const __m256 al = _mm256_broadcast_ss(alpha + r);
        __m256 a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[r][0]), f, y);
        __m256 b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[r][1]), f, y);
        order(&a, &b);
        float *dst = acc + r * acc_stride;
        _mm256_storeu_ps(dst, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst), a));
        _mm256_storeu_ps(dst + 8, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst + 8), b));
    }
}

/* Two groups for `rows` rows. quads [2][QUADS][QUAD_BYTES]; scale, offset (or NULL): [64] each. */
TQ_INLINE void two_groups(float *acc, size_t acc_stride, const float *w, const float *alpha,
                          const int8_t *quads, const float *const scale[2],
                          const float *const offset[2], uint32_t n_units, tq_walk *ahead,
                          const coarse *f, order_fn *order, const uint32_t run, const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t g = 0; g < 2; g++) {
        uint8_t w8[MAX_ROWS * TQ_TILE];
        float factor[4];
        float base[4] = {0};
        quantise_weights(w8, factor, w, scale[g], f, run, rows);
        if (offset[g])
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                base[r] = tq_dot_tile(w + r * TQ_TILE, offset[g]);
        for (uint32_t half = 0; half < 2; half++)
            block(acc + g * GROUP + half * 16, acc_stride, w8, factor, base, alpha,
                  quads + g * QUADS * QUAD_BYTES + half * HALF_BYTES, n_units, ahead, order, run,
                  rows);
    }
}

/* Does a token that the row sees have a scale below 0? No encoder writes one; weights of bytes
 * cannot be negative. */
static int sees_negative(const float *w, const float *scale, uint32_t n_groups, uint32_t n)
{
    for (uint32_t g = 0; g < n_groups; g++)
        for (uint32_t t = 0; t < n; t++)
            if (w[t] > 0 && scale[g * TQ_TILE + t] < 0)
                return 1;
    return 0;
}

/* All of the values for rows without negative scales. scale, offset (or NULL) [n_groups][64]. */
TQ_INLINE void weigh_rows(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                          const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                          const float *scale, const float *offset, const coarse *f,
                          expand_fn *expand, order_fn *order, const uint32_t bits,
                          const uint32_t run)
{
    const uint32_t n_groups = v->dim / GROUP, n_units = (n + 31) / 32;
    int8_t quads[2 * QUADS * QUAD_BYTES];
    tq_walk ahead = tq_walk_begin(values, n_groups * 2 * n_units); /* rows 0..3 do it */
    for (uint32_t g = 0; g < n_groups; g += 2) {
        const uint8_t *codes = values.codes + (size_t)g * (GROUP / 8) * bits;
        const float *s[2], *o[2];
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
            const size_t at = (size_t)(g + i) * GROUP / v->group * TQ_TILE;
            s[i] = scale + at;
            o[i] = offset ? offset + at : NULL;
        }
        for (uint32_t q = 0; q < 8 * n_units; q++) {
            const uint8_t *row[4];
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                const uint32_t t = 4 * q + i;
                row[i] = codes + (t < n ? t : n - 1) * values.codes_stride;
            }
            expand(quads + q * QUAD_BYTES, quads + (QUADS + q) * QUAD_BYTES, row, f->book);
        }
        for (uint32_t r = 0; r < n_rows; r += MAX_ROWS) {
            float *dst = acc + r * acc_stride + (size_t)g * GROUP;
#define CALL(n_of_rows)                                                                            \
    two_groups(dst, acc_stride, w + r * TQ_TILE, alpha + r, quads, s, o, n_units, &ahead, f,       \
               order, run, n_of_rows)
            switch (n_rows - r) {
            case 1:
                CALL(1);
                break;
            case 2:
                CALL(2);
                break;
            case 3:
                CALL(3);
                break;
            default:
                CALL(4);
                break;
            }
#undef CALL
        }
    }
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     const coarse *f, expand_fn *expand, order_fn *order, const uint32_t bits,
                     const uint32_t run)
{
    const int has_offset = f->shift > 0;
    float scale[MAX_GROUPS * TQ_TILE], offset[MAX_GROUPS * TQ_TILE];
    __m256 sign = _mm256_setzero_ps();
    tq_load_columns(scale, TQ_TILE, values.scale, values.scale_stride, 0, TQ_TILE, n, v->n_groups);
    for (uint32_t i = 0; i < v->n_groups * TQ_TILE; i += 8)
        sign = _mm256_or_ps(sign, _mm256_loadu_ps(scale + i));
    if (has_offset) {
        tq_load_columns(offset, TQ_TILE, values.zero, values.zero_stride, 0, TQ_TILE, n,
                        v->n_groups);
        tq_shift_offsets(offset, scale, f->shift, v->n_groups);
    }
    const float *o = has_offset ? offset : NULL;
    if (_mm256_movemask_ps(sign) == 0) {
        weigh_rows(v, acc, acc_stride, w, alpha, n_rows, values, n, scale, o, f, expand, order,
                   bits, run);
        return;
    }
    /* Each row by itself, for it must not depend on what only others see. */
    for (uint32_t r = 0; r < n_rows; r++, acc += acc_stride, w += TQ_TILE, alpha++)
        if (sees_negative(w, scale, v->n_groups, n))
            tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, 1, values, n);
        else
            weigh_rows(v, acc, acc_stride, w, alpha, 1, values, n, scale, o, f, expand, order, bits,
                       run);
}

/* Centroids (format.md 7.4) as bytes: integers and a unit such that on normal values the mean of
 * the rounding is 0, for that is what is left in a sum over many tokens, and its square is small:
 * 0.06, 0.1 and 0.9 % of the square of the format's own error. Codes of fewer bits repeat. */
static const int8_t book_v2[16] = {-68, -20, 20, 67, -68, -20, 20, 67,
                                   -68, -20, 20, 67, -68, -20, 20, 67};
static const int8_t book_v3[16] = {-26, -16, -9, -3, 3, 9, 16, 26, -26, -16, -9, -3, 3, 9, 16, 26};
static const int8_t book_v4[16] = {-77, -59, -46, -36, -27, -19, -11, -4,
                                   3,   11,  18,  26,  35,  46,  58,  77};
static const int8_t book_uniform4[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

TQ_INLINE __m256i load_book(const int8_t *book)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)book));
}

#define LLOYD_KERNEL(bits, unit, limit, run)                                                       \
    void tq_avx2_weigh_v##bits(const tq_codec *v, float *acc, size_t acc_stride, const float *w,   \
                               const float *alpha, uint32_t n_rows, tq_const_planes values,        \
                               uint32_t n)                                                         \
    {                                                                                              \
        const coarse f = {load_book(book_v##bits), unit, 0, limit};                                \
        weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &f, expand_##bits, order_##bits,    \
              bits, run);                                                                          \
    }

LLOYD_KERNEL(2, 0.0224616237f, 110, 64)
LLOYD_KERNEL(3, 0.0828f, 255, 64)
LLOYD_KERNEL(4, 0.0356170337f, 255, 16)

/* Codes minus 8: their middle goes to the offset. */
static void weigh_uniform4(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                           const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    const coarse f = {load_book(book_uniform4), 1, 8, 255};
    weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &f, expand_4, order_4, 4, 64);
}

/* Rows of uniform groups may have any multiple of 8 elements. */
void tq_avx2_weigh_uniform4(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                            const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    if (v->dim % (2 * GROUP) == 0)
        weigh_uniform4(v, acc, acc_stride, w, alpha, n_rows, values, n);
    else
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
}
