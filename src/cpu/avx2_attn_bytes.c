/* SPDX-License-Identifier: MIT */
/* avx2_attn_bytes.c — weighted sums of coarse values (Lloyd values of 2, 3 and 4 bits, uniform
 * affine of 4 bits), for AVX2.
 *
 * `expand` turns two groups of all tokens into the numbers that stand for the codes, four tokens of
 * an element together (a QUAD is 4 tokens x 32 elements, 128 bytes), once for all rows.
 * avx2_attn_sums.h multiplies them by byte weights.
 *
 * Lloyd values of 4 bits are WIDE: beside 8-bit keys nothing else of the scheme is off by as much
 * as byte weights would be. Their numbers are bytes above 128, so that they widen to 16 bits by a
 * mask or a shift; weights are int16, and vpmaddwd weighs two tokens of 8 elements:
 *     sum[j] += w16[t] * u[t][j] + w16[t+2] * u[t+2][j]
 * exactly: 64 * 32767 * 255 < 2^31. A sum starts at -128 times the sum of the weights.
 */
#include "cpu/avx2_attn_sums.h"

enum {
    GROUP = 32,
    MAX_GROUPS = 1024 / GROUP,
    QUADS = TQ_TILE / 4,
    QUAD_BYTES = 4 * GROUP,
    HALF_BYTES = QUAD_BYTES / 2 /* of 16 elements */
};

/* What the kernel needs to know of a format. */
typedef struct coarse {
    __m256i book; /* numbers of the 16 codes, in both lanes; codes of fewer bits repeat */
    float unit;   /* value = (unit * number + mean + shift) * scale + offset */
    float mean;   /* of formats whose centroids are not symmetric */
    float shift;  /* of a format with offsets, else 0 */
} coarse;

/* Two groups of four tokens, whose rows are `stride` bytes apart, into quads at a and b. Alone: one
 * group of four tokens to a, of the next four to b; reads up to 16 bytes of each. */
typedef void expand_fn(uint8_t *a, uint8_t *b, const uint8_t *row, size_t stride, __m256i book,
                       const int alone);

/* Put the sums of the two registers of half a group into element order. */
typedef void order_fn(__m256 *a, __m256 *b);

/* ---- Codes to bytes -------------------------------------------------------------------- */

TQ_INLINE __m256i load32(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

TQ_INLINE __m128i load16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* 16 bytes a group: two of them, or one of this token and one of four tokens on. */
TQ_INLINE __m256i load_groups(const uint8_t *row, size_t stride, const int alone)
{
    if (!alone)
        return load32(row);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(row)), load16(row + 4 * stride),
                                   1);
}

/* Lower lanes of x and y to a, upper lanes to b: 32 bytes each. */
TQ_INLINE void store_lanes(uint8_t *a, uint8_t *b, __m256i x, __m256i y)
{
    _mm256_storeu_si256((__m256i *)(void *)a, _mm256_permute2x128_si256(x, y, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)b, _mm256_permute2x128_si256(x, y, 0x31));
}

/* 16 bytes a group. Dword of a quad: byte c of the four rows; a register has 4 of them of each
 * group, and both nibbles of them follow each other. */
TQ_INLINE void expand_4(uint8_t *a, uint8_t *b, const uint8_t *row, size_t stride, __m256i book,
                        const int alone)
{
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i r0 = load_groups(row, stride, alone);
    const __m256i r1 = load_groups(row + stride, stride, alone);
    const __m256i r2 = load_groups(row + 2 * stride, stride, alone);
    const __m256i r3 = load_groups(row + 3 * stride, stride, alone);
    const __m256i x = _mm256_unpacklo_epi8(r0, r1), y = _mm256_unpacklo_epi8(r2, r3);
    const __m256i z = _mm256_unpackhi_epi8(r0, r1), w = _mm256_unpackhi_epi8(r2, r3);
    const __m256i quad[4] = {_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y),
                             _mm256_unpacklo_epi16(z, w), _mm256_unpackhi_epi16(z, w)};
    TQ_UNROLL_FOR (int i = 0; i < 4; i++) {
        const __m256i low = _mm256_and_si256(quad[i], mask);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(quad[i], 4), mask);
        store_lanes(a + 32 * i, b + 32 * i, _mm256_shuffle_epi8(book, low),
                    _mm256_shuffle_epi8(book, high));
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
TQ_INLINE void expand_2(uint8_t *a, uint8_t *b, const uint8_t *row, size_t stride, __m256i book,
                        const int alone)
{
    const __m256i mask = _mm256_set1_epi8(3);
    __m256i r[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        __m128i x = load16(row + i * stride);
        if (alone)
            x = _mm_unpacklo_epi64(x, load16(row + (i + 4) * stride));
        r[i] = _mm256_permute4x64_epi64(_mm256_castsi128_si256(x), 0x10);
    }
    const __m256i x = _mm256_unpacklo_epi8(r[0], r[1]), y = _mm256_unpacklo_epi8(r[2], r[3]);
    const __m256i quad[2] = {_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y)};
    TQ_UNROLL_FOR (int i = 0; i < 2; i++)
        TQ_UNROLL_FOR (int f = 0; f < 2; f++) {
            const int at = HALF_BYTES * i + 32 * f;
            const __m256i lower = _mm256_and_si256(_mm256_srli_epi16(quad[i], 2 * f), mask);
            const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(quad[i], 2 * f + 4), mask);
            store_lanes(a + at, b + at, _mm256_shuffle_epi8(book, lower),
                        _mm256_shuffle_epi8(book, upper));
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

TQ_INLINE void expand_3_group(uint8_t *dst, const __m256i x[4], __m256i gather0, __m256i gather1,
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
TQ_INLINE void expand_3(uint8_t *a, uint8_t *b, const uint8_t *row, size_t stride, __m256i book,
                        const int alone)
{
    const __m256i gather1 = _mm256_setr_epi8(0, 1, 0, 1, 1, 2, 2, 3, 6, 7, 6, 7, 7, 8, 8, 9, 3, 4,
                                             3, 4, 4, 5, 5, 6, 9, 10, 9, 10, 10, 11, 11, 12);
    const __m256i gather0 = _mm256_setr_epi8(-1, 0, 0, 1, 1, 2, 2, 3, -1, 6, 6, 7, 7, 8, 8, 9, -1,
                                             3, 3, 4, 4, 5, 5, 6, -1, 9, 9, 10, 10, 11, 11, 12);
    const __m256i four = _mm256_set1_epi8(4);
    __m256i x[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        x[i] = _mm256_broadcastsi128_si256(load16(row + i * stride));
    expand_3_group(a, x, gather0, gather1, book);
    if (alone) {
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            x[i] = _mm256_broadcastsi128_si256(load16(row + (i + 4) * stride));
        expand_3_group(b, x, gather0, gather1, book);
        return;
    }
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        x[i] = _mm256_broadcastsi128_si256(load16(row + i * stride + 8));
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

/* ---- Sums ------------------------------------------------------------------------------ */

/* What the sums of a group need beside weights. */
typedef struct ends {
    int32_t start[4]; /* where a sum starts, of wide ones */
    float factor[4];  /* what it is multiplied by */
    float base[4];    /* and what is added then */
} ends;

/* Weights of a group. */
typedef union weights {
    uint8_t w8[TQ_SUM_ROWS * TQ_TILE];
    int16_t w16[TQ_SUM_ROWS * TQ_TILE]; /* fours of each 16 in the order 0, 2, 1, 3, tokens too */
} weights;

/* int16 of the weights times scale [64]. Returns the sum of each row. */
TQ_INLINE __m128i round_words(int16_t *w16, const tq_weight_steps *by, const float *w,
                              const float *scale, const uint32_t rows)
{
    __m256i sum[4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        sum[r] = _mm256_setzero_si256();
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 up = _mm256_broadcast_ss(by->up + r);
        TQ_UNROLL_FOR (uint32_t t = 0; t < TQ_TILE; t += 16) {
            __m256i x[2];
            TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
                const __m256 s = _mm256_mul_ps(up, _mm256_loadu_ps(scale + t + 8 * i));
                const float *p = w + r * TQ_TILE + t + 8 * i;
                x[i] = _mm256_cvtps_epi32(_mm256_mul_ps(s, _mm256_loadu_ps(p)));
                x[i] = _mm256_shuffle_epi32(x[i], 0xd8);
            }
            const __m256i y = _mm256_packs_epi32(x[0], x[1]);
            _mm256_storeu_si256((__m256i *)(void *)(w16 + r * TQ_TILE + t), y);
            sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(y, _mm256_set1_epi16(1)));
        }
    }
    return tq_sum4_i32(sum);
}

/* 16 elements of n_units times 16 tokens for `rows` rows. x: half a quad, the next 128 bytes on. */
TQ_INLINE void block(float *acc, size_t acc_stride, const weights *by, const ends *of,
                     const float *alpha, const uint8_t *x, uint32_t n_units, tq_walk *ahead,
                     order_fn *order, const int wide, const uint32_t rows)
{
    __m256i sum[TQ_SUM_ROWS][2];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_set1_epi32(wide ? of->start[r] : 0);
    tq_walk_on(ahead);
    if (wide)
        for (uint32_t i = 0; i < n_units; i++, x += 4 * QUAD_BYTES) {
            const int16_t *w16 = by->w16 + 16 * i;
            tq_sum_wide_quad(sum, w16, x, rows);
            tq_sum_wide_quad(sum, w16 + 8, x + QUAD_BYTES, rows);
            tq_sum_wide_quad(sum, w16 + 4, x + 2 * QUAD_BYTES, rows);
            tq_sum_wide_quad(sum, w16 + 12, x + 3 * QUAD_BYTES, rows);
        }
    else
        tq_sum_quads(sum, by->w8, x, QUAD_BYTES, n_units, 1, rows);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m256 f = _mm256_set1_ps(of->factor[r]), y = _mm256_set1_ps(of->base[r]);
        const __m256 al = _mm256_broadcast_ss(alpha + r);
        __m256 a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][0]), f, y);
        __m256 b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][1]), f, y);
        order(&a, &b);
        float *dst = acc + r * acc_stride;
        _mm256_storeu_ps(dst, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst), a));
        _mm256_storeu_ps(dst + 8, _mm256_fmadd_ps(al, _mm256_loadu_ps(dst + 8), b));
    }
}

/* Up to two groups, `halves` times 16 elements, for `rows` rows. quads [2][QUADS][QUAD_BYTES];
 * scale, offset (or NULL): [64] each; bound [64]: the largest scale of all groups, or NULL: each
 * group has its own steps. */
TQ_INLINE void two_groups(float *acc, size_t acc_stride, const float *w, const float *alpha,
                          const uint8_t *quads, const float *const scale[2],
                          const float *const offset[2], const float *bound, uint32_t n_units,
                          uint32_t halves, tq_walk *ahead, const coarse *f, order_fn *order,
                          const int wide, const uint32_t rows)
{
    tq_weight_steps by;
    TQ_UNROLL_FOR (uint32_t g = 0; g < 2; g++) {
        if (2 * g >= halves)
            break;
        weights words;
        ends of = {.base = {0}};
        __m128 down;
        if (g == 0 || !bound)
            tq_find_steps(&by, w, bound ? bound : scale[g], wide ? 32767 : TQ_WEIGHT_TOP, rows);
        if (wide) {
            const __m128i sum = round_words(words.w16, &by, w, scale[g], rows);
            down = by.down;
            _mm_storeu_si128((__m128i *)(void *)of.start,
                             _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(sum, 7)));
            _mm_storeu_ps(of.base,
                          _mm_mul_ps(_mm_mul_ps(down, _mm_set1_ps(f->mean)), _mm_cvtepi32_ps(sum)));
        } else {
            down = tq_round_bytes(words.w8, &by, w, scale[g], rows);
            if (f->mean != 0)
                TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                    of.base[r] = f->mean * tq_dot_tile(w + r * TQ_TILE, scale[g]);
        }
        _mm_storeu_ps(of.factor, _mm_mul_ps(down, _mm_set1_ps(f->unit)));
        if (offset[g])
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                of.base[r] = tq_dot_tile(w + r * TQ_TILE, offset[g]);
        for (uint32_t half = 0; half < 2 && 2 * g + half < halves; half++)
            block(acc + g * GROUP + half * 16, acc_stride, &words, &of, alpha,
                  quads + g * QUADS * QUAD_BYTES + half * HALF_BYTES, n_units, ahead, order, wide,
                  rows);
    }
}

/* Two groups of all tokens into quads. */
TQ_INLINE void expand_groups(uint8_t *quads, const uint8_t *codes, size_t stride, uint32_t n,
                             const coarse *f, expand_fn *expand, const uint32_t bits)
{
    const uint8_t *last = codes + (n - 1) * stride;
    uint8_t *to = quads, *const end = quads + 4 * ((n + 15) / 16) * QUAD_BYTES;
    uint32_t left = n;
    for (; left >= 4; left -= 4, to += QUAD_BYTES, codes += 4 * stride)
        expand(to, to + QUADS * QUAD_BYTES, codes, stride, f->book, 0);
    for (; to < end; to += QUAD_BYTES, left = 0) { /* tokens from n on repeat the last */
        uint8_t copy[4][GROUP];
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *from = i < left ? codes + i * stride : last;
            memcpy(copy[i], from, GROUP / 4 * bits);
        }
        expand(to, to + QUADS * QUAD_BYTES, copy[0], GROUP, f->book, 0);
    }
}

/* What is left behind pairs of groups, `halves` times 16 elements, from a copy that may be read
 * beyond them. */
TQ_INLINE void expand_rest(uint8_t *quads, const uint8_t *codes, size_t stride, uint32_t n,
                           uint32_t halves, const coarse *f, expand_fn *expand, const uint32_t bits)
{
    uint8_t room[TQ_TILE * TQ_END_BYTES];
    const uint32_t tokens = (n + 15) / 16 * 16;
    const uint8_t *row = room;
    uint8_t *to = quads;
    tq_copy_ends(room, codes, stride, (size_t)halves * 2 * bits, tokens, n);
    if (halves > 2)
        for (uint32_t t = 0; t < tokens; t += 4, row += 4 * TQ_END_BYTES, to += QUAD_BYTES)
            expand(to, to + QUADS * QUAD_BYTES, row, TQ_END_BYTES, f->book, 0);
    else
        for (uint32_t t = 0; t < tokens; t += 8, row += 8 * TQ_END_BYTES, to += 2 * QUAD_BYTES)
            expand(to, to + QUAD_BYTES, row, TQ_END_BYTES, f->book, 1);
}

/* scale, offset (or NULL) [n_groups][64]; bound as above. dim a multiple of 16. */
TQ_INLINE void weigh_rows(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                          const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                          const float *scale, const float *offset, const float *bound,
                          const coarse *f, expand_fn *expand, order_fn *order, const uint32_t bits,
                          const int wide)
{
    const uint32_t n_halves = v->dim / 16, n_units = (n + 15) / 16;
    uint8_t quads[2 * QUADS * QUAD_BYTES];
    tq_walk ahead = tq_walk_begin(values, n_halves); /* rows 0..3 do it */
    for (uint32_t h = 0; h < n_halves; h += 4) {
        const uint32_t halves = n_halves - h < 4 ? n_halves - h : 4;
        const uint8_t *codes = values.codes + (size_t)h * 2 * bits;
        const float *s[2], *o[2];
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
            const size_t at = (size_t)(h + 2 * i) * 16 / v->group * TQ_TILE;
            s[i] = scale + at;
            o[i] = offset ? offset + at : NULL;
        }
        if (halves == 4)
            expand_groups(quads, codes, values.codes_stride, n, f, expand, bits);
        else
            expand_rest(quads, codes, values.codes_stride, n, halves, f, expand, bits);
        for (uint32_t r = 0; r < n_rows; r += TQ_SUM_ROWS) {
            float *dst = acc + r * acc_stride + (size_t)h * 16;
#define CALL(n_of_rows)                                                                            \
    two_groups(dst, acc_stride, w + r * TQ_TILE, alpha + r, quads, s, o, bound, n_units, halves,   \
               &ahead, f, order, wide, n_of_rows)
            TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
        }
    }
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     const coarse *f, expand_fn *expand, order_fn *order, const uint32_t bits,
                     const int wide)
{
    const int has_offset = f->shift > 0;
    if (v->dim % 16) { /* 24, 40, 72 ...: what no model has */
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    float scale[MAX_GROUPS * TQ_TILE], offset[MAX_GROUPS * TQ_TILE];
    tq_load_columns(scale, TQ_TILE, values.scale, values.scale_stride, 0, TQ_TILE, n, v->n_groups);
    /* Rotated groups are about as large as each other, others need not be. */
    float bound[TQ_TILE];
    __m256 most[TQ_TILE / 8], signs = _mm256_setzero_ps();
    TQ_UNROLL_FOR (uint32_t i = 0; i < TQ_TILE / 8; i++)
        most[i] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < v->n_groups; g++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < TQ_TILE / 8; i++) {
            const __m256 x = _mm256_loadu_ps(scale + g * TQ_TILE + 8 * i);
            most[i] = tq_larger(x, most[i]);
            signs = _mm256_or_ps(signs, x);
        }
    TQ_UNROLL_FOR (uint32_t i = 0; i < TQ_TILE / 8; i++)
        _mm256_storeu_ps(bound + 8 * i, most[i]);
    if (_mm256_movemask_ps(signs)) {
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    if (has_offset) {
        tq_load_columns(offset, TQ_TILE, values.zero, values.zero_stride, 0, TQ_TILE, n,
                        v->n_groups);
        tq_shift_offsets(offset, scale, f->shift, v->n_groups);
    }
    weigh_rows(v, acc, acc_stride, w, alpha, n_rows, values, n, scale, has_offset ? offset : NULL,
               v->rotated ? bound : NULL, f, expand, order, bits, wide);
}

/* Centroids (format.md 7.4) as small numbers: those, unit and mean, whose rounding has the least
 * square on normal values: 3e-5, 1.7e-3 and 1.8e-3 of the square of the format's own error. Least
 * squares also keep the gain: centroids are a few percent shorter than the values that they stand
 * for, and a sum over many tokens that is shorter still is what a model feels most. Codes of fewer
 * bits repeat. */
static const int8_t numbers_2[16] = {-10, -3, 3, 10, -10, -3, 3, 10,
                                     -10, -3, 3, 10, -10, -3, 3, 10};
static const int8_t numbers_3[16] = {-26, -16, -9, -3, 3, 9, 16, 26,
                                     -26, -16, -9, -3, 3, 9, 16, 26};
static const uint8_t numbers_4[16] = {13,  41,  60,  75,  88,  100, 111, 122,
                                      133, 144, 155, 167, 180, 195, 214, 241};

TQ_INLINE __m256i load_numbers(const void *number)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)number));
}

#define LLOYD_KERNEL(bits, unit, mean, wide)                                                       \
    void tq_avx2_weigh_v##bits(const tq_codec *v, float *acc, size_t acc_stride, const float *w,   \
                               const float *alpha, uint32_t n_rows, tq_const_planes values,        \
                               uint32_t n)                                                         \
    {                                                                                              \
        const coarse f = {load_numbers(numbers_##bits), unit, mean, 0};                            \
        weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &f, expand_##bits, order_##bits,    \
              bits, wide);                                                                         \
    }

LLOYD_KERNEL(2, 0.15130244f, -0.00361424f, 0)
LLOYD_KERNEL(3, 0.0834568379f, 0, 0)
LLOYD_KERNEL(4, 0.0240765466f, -0.000278536f, 1)

/* Codes minus 8: their middle goes to the offset. */
void tq_avx2_weigh_uniform4(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                            const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    const __m256i book = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
    const coarse f = {book, 1, 0, 8};
    weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &f, expand_4, order_4, 4, 0);
}
