/* SPDX-License-Identifier: MIT */
/* avx512_trellis.c — Viterbi's search sixteen at a time, and the codes of its paths, for AVX-512.
 *
 * The search is that of avx2_trellis_search.c with lanes of 512 bits; a decision is a mask register
 * and is stored as one. Codes: a word of path bits is a mask for 32 coordinates of 16 bits, and the
 * whole table of levels is within reach of two-register permutations.
 */
#include "cpu/avx2_codec.h"
#include "cpu/avx2_trellis.h"
#include "cpu/avx512_codec.h"

#include <string.h>

enum {
    LANES = 2 * TQ_LANES,
    FAR = 1 << 30,
    N_PRICED = TQ_TRELLIS_LEVELS / 2 + 2 /* levels that |p| may choose */
};

/* ---- Search ---- */

/* from[n][t]: the lanes whose way into state t comes from the state whose oldest bit is 1. */
typedef struct decisions {
    __mmask16 from[TQ_ROW_MAX][8];
} decisions;

typedef struct prices {
    __m512i pair[N_PRICED]; /* (-level, cost') per lane; the two negative levels first */
    int n_rows;             /* positive levels of a subset */
    int shift;
} prices;

static void prices_init(prices *w, const tq_trellis *t, const uint8_t h[LANES])
{
    const uint32_t half = 1u << t->bits; /* the first positive level */
    const __m512i stretch = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)h));
    __m512i least = _mm512_set1_epi32(INT32_MAX);

    w->shift = t->bits >= 5 ? TQ_TRELLIS_SHIFT : 0;
    w->n_rows = (int)half / 4;
    for (uint32_t i = 0; i < half + 2; i++) {
        const int level = t->levels[half - 2 + i];
        __m512i cost = _mm512_mullo_epi32(stretch, _mm512_set1_epi32((level * level) << t->frac));
        cost = _mm512_srai_epi32(_mm512_add_epi32(cost, _mm512_set1_epi32(32)), 6);
        cost = _mm512_sub_epi32(cost, _mm512_set1_epi32(w->shift * level));
        least = _mm512_min_epi32(least, cost);
        w->pair[i] = cost;
    }
    const __m512i bias = _mm512_add_epi32(least, _mm512_set1_epi32(32768));
    for (uint32_t i = 0; i < half + 2; i++) {
        const __m512i cost = _mm512_slli_epi32(_mm512_sub_epi32(w->pair[i], bias), 16);
        w->pair[i] =
            _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_set1_epi32(-t->levels[half - 2 + i]), cost);
    }
}

/* The best price of each subset. */
static inline void price_subsets(__m512i price[4], const prices *w, __m512i p)
{
    const __m512i *pair = w->pair;
    __m512i q = _mm512_sub_epi32(_mm512_abs_epi32(p), _mm512_set1_epi32(w->shift));
    q = _mm512_mask_blend_epi16(0xaaaaaaaau, q, _mm512_set1_epi32(0x10000));

    __m512i c2 = _mm512_madd_epi16(q, pair[0]);
    __m512i c3 = _mm512_madd_epi16(q, pair[1]);
    __m512i c0 = _mm512_madd_epi16(q, pair[2]);
    __m512i c1 = _mm512_madd_epi16(q, pair[3]);
    c2 = _mm512_min_epi32(c2, _mm512_madd_epi16(q, pair[4]));
    c3 = _mm512_min_epi32(c3, _mm512_madd_epi16(q, pair[5]));
    for (int i = 1; i < w->n_rows; i++) {
        pair += 4;
        c0 = _mm512_min_epi32(c0, _mm512_madd_epi16(q, pair[2]));
        c1 = _mm512_min_epi32(c1, _mm512_madd_epi16(q, pair[3]));
        c2 = _mm512_min_epi32(c2, _mm512_madd_epi16(q, pair[4]));
        c3 = _mm512_min_epi32(c3, _mm512_madd_epi16(q, pair[5]));
    }
    const __mmask16 negative = _mm512_movepi32_mask(p);
    price[0] = _mm512_mask_blend_epi32(negative, c0, c3);
    price[1] = _mm512_mask_blend_epi32(negative, c1, c2);
    price[2] = _mm512_mask_blend_epi32(negative, c2, c1);
    price[3] = _mm512_mask_blend_epi32(negative, c3, c0);
}

/* Into one state: a with x3 = 0, b with x3 = 1. Returns the lanes in which b is cheaper. */
static inline __mmask16 choose(__m512i *total, __m512i a, __m512i b)
{
    *total = _mm512_min_epi32(a, b);
    return _mm512_cmpgt_epi32_mask(a, b);
}

/* The four states of one x2, numbered x + 2 x1, from the four that lead there, numbered x1 + 2 x3;
 * even and odd: the prices of subsets x2 and x2 + 2. In place. */
static inline void advance_half(__mmask16 from[4], __m512i *s0, __m512i *s1, __m512i *s2,
                                __m512i *s3, __m512i even, __m512i odd)
{
    const __m512i even0 = _mm512_add_epi32(*s0, even), odd0 = _mm512_add_epi32(*s0, odd);
    const __m512i even1 = _mm512_add_epi32(*s1, even), odd1 = _mm512_add_epi32(*s1, odd);
    const __m512i even2 = _mm512_add_epi32(*s2, even), odd2 = _mm512_add_epi32(*s2, odd);
    const __m512i even3 = _mm512_add_epi32(*s3, even), odd3 = _mm512_add_epi32(*s3, odd);
    /* The price is that of subset x2 + 2 (x ^ x1 ^ x3). */
    from[0] = choose(s0, even0, odd2);
    from[1] = choose(s1, odd0, even2);
    from[2] = choose(s2, odd1, even3);
    from[3] = choose(s3, even1, odd3);
}

/* pt [8][8] := coordinates n .. n + 7 of eight lanes, a coordinate's lanes side by side. */
static inline void transpose(__m128i pt[8], const int16_t *const *p, uint32_t n)
{
    __m128i r[8], a[8], b[8];

    for (int i = 0; i < 8; i++)
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)(p[i] + n));
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
            b[4 * i + 2 * k] = _mm_unpacklo_epi32(a[4 * i + k], a[4 * i + k + 2]);
            b[4 * i + 2 * k + 1] = _mm_unpackhi_epi32(a[4 * i + k], a[4 * i + k + 2]);
        }
    }
    for (int i = 0; i < 4; i++) {
        pt[2 * i] = _mm_unpacklo_epi64(b[i], b[4 + i]);
        pt[2 * i + 1] = _mm_unpackhi_epi64(b[i], b[4 + i]);
    }
}

/* The cheaper of two ends and its number, in place; the first of equals. */
static inline void cheaper_end(__m512i *end, __m512i *total, __m512i other, int number)
{
    const __mmask16 less = _mm512_cmpgt_epi32_mask(*total, other);
    *end = _mm512_mask_blend_epi32(less, *end, _mm512_set1_epi32(number));
    *total = _mm512_min_epi32(*total, other);
}

/* Returns the cheapest end of each lane. The states are variables, so that they stay in
 * registers. */
static __m512i forward(decisions *d, const prices *w, const int16_t *const p[LANES], uint32_t dim)
{
    __m512i s0 = _mm512_setzero_si512(), s1 = _mm512_set1_epi32(FAR);
    __m512i s2 = s1, s3 = s1, s4 = s1, s5 = s1, s6 = s1, s7 = s1;
    __m128i low[8], high[8];

    for (uint32_t n = 0; n < dim; n++) {
        __m512i price[4];

        if (n % 8 == 0) {
            transpose(low, p, n);
            transpose(high, p + 8, n);
        }
        price_subsets(price, w,
                      _mm512_cvtepi16_epi32(_mm256_inserti128_si256(
                          _mm256_castsi128_si256(low[n % 8]), high[n % 8], 1)));
        /* From states x1 + 2 x2 + 4 x3. What is now in s0 s1 s4 s5 are the states with x2 = 0. */
        advance_half(d->from[n], &s0, &s1, &s4, &s5, price[0], price[2]);
        advance_half(d->from[n] + 4, &s2, &s3, &s6, &s7, price[1], price[3]);
        const __m512i new2 = s4, new3 = s5;
        s4 = s2;
        s5 = s3;
        s2 = new2;
        s3 = new3;
    }
    __m512i end = _mm512_setzero_si512();
    cheaper_end(&end, &s0, s1, 1);
    cheaper_end(&end, &s0, s2, 2);
    cheaper_end(&end, &s0, s3, 3);
    cheaper_end(&end, &s0, s4, 4);
    cheaper_end(&end, &s0, s5, 5);
    cheaper_end(&end, &s0, s6, 6);
    cheaper_end(&end, &s0, s7, 7);
    return end;
}

/* Word w of sixteen lanes, into both halves. */
static inline void store_lanes(uint32_t low[TQ_LANES], uint32_t high[TQ_LANES], __m512i v)
{
    _mm256_storeu_si256((__m256i *)(void *)low, _mm512_castsi512_si256(v));
    _mm256_storeu_si256((__m256i *)(void *)high, _mm512_extracti64x4_epi64(v, 1));
}

/* Back from the ends, then the subsets: z0[n] = x[n-2], z1[n] = x[n] ^ x[n-1] ^ x[n-3]. */
static void backward(tq_paths paths[2], const decisions *d, __m512i state, uint32_t dim)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i x = _mm512_setzero_si512(), words[TQ_PATH_WORDS];

    for (uint32_t n = dim; n-- > 0;) {
        const __m128i masks = _mm_loadu_si128((const __m128i *)(const void *)d->from[n]);
        const __m512i by_state =
            _mm512_permutexvar_epi32(state, _mm512_cvtepu16_epi32(_mm256_castsi128_si256(masks)));
        const __m512i x3 = _mm512_and_si512(_mm512_srlv_epi32(by_state, lane), one);

        x = _mm512_or_si512(_mm512_slli_epi32(x, 1), _mm512_and_si512(state, one));
        state = _mm512_or_si512(_mm512_srli_epi32(state, 1), _mm512_slli_epi32(x3, 2));
        if (n % 32 == 0) {
            words[n / 32] = x;
            x = _mm512_setzero_si512();
        }
    }
    __m512i before = _mm512_setzero_si512();
    for (uint32_t i = 0; i < (dim + 31) / 32; i++) {
        x = words[i];
        const __m512i x1 = _mm512_or_si512(_mm512_slli_epi32(x, 1), _mm512_srli_epi32(before, 31));
        const __m512i x2 = _mm512_or_si512(_mm512_slli_epi32(x, 2), _mm512_srli_epi32(before, 30));
        const __m512i x3 = _mm512_or_si512(_mm512_slli_epi32(x, 3), _mm512_srli_epi32(before, 29));

        store_lanes(paths[0].x[i], paths[1].x[i], x);
        store_lanes(paths[0].z0[i], paths[1].z0[i], x2);
        store_lanes(paths[0].z1[i], paths[1].z1[i], _mm512_xor_si512(x, _mm512_xor_si512(x1, x3)));
        before = x;
    }
}

static void search(tq_paths paths[2], const tq_trellis *t, const int16_t *const p[LANES],
                   const uint8_t h[LANES], uint32_t dim)
{
    prices w;
    decisions d;

    prices_init(&w, t, h);
    backward(paths, &d, forward(&d, &w, p, dim), dim);
}

/* ---- Codes ---- */

/* Levels of 32 numbers. table: 128 levels of 16 bits. */
static inline __m512i level_lookup(const __m512i table[4], __m512i number, uint32_t bits)
{
    if (bits <= 4)
        return _mm512_permutexvar_epi16(number, table[0]);
    const __m512i low = _mm512_permutex2var_epi16(table[0], number, table[1]);
    if (bits == 5)
        return low;
    return _mm512_mask_blend_epi16(_mm512_test_epi16_mask(number, _mm512_set1_epi16(64)), low,
                                   _mm512_permutex2var_epi16(table[2], number, table[3]));
}

static void codes_of_path(uint8_t *code, int32_t *dot, int32_t *ll, const tq_trellis *t,
                          const tq_paths *paths, uint32_t lane, const int16_t *p,
                          const int16_t *edge, uint32_t dim)
{
    const uint32_t n_edges = (1u << (t->bits - 1)) - 1;
    const __m512i one = _mm512_set1_epi16(1);
    const __m512i top = _mm512_set1_epi16((short)(1 << (t->bits - 1)));
    int8_t all[TQ_TRELLIS_LEVELS] = {0};
    __m512i table[4], dots = _mm512_setzero_si512(), squares = dots;

    memcpy(all, t->levels, 2u << t->bits);
    for (int i = 0; i < 4; i++)
        table[i] =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(all + 32 * i)));
    for (uint32_t j = 0; j < dim; j += 32) {
        const __m512i v = _mm512_loadu_si512(p + j);
        const __mmask32 z0 = paths->z0[j / 32][lane], z1 = paths->z1[j / 32][lane];
        const __mmask32 x = paths->x[j / 32][lane];
        __m512i k = _mm512_maskz_mov_epi16(z0, one);
        k = _mm512_mask_add_epi16(k, z1, k, _mm512_set1_epi16(2));
        /* Bytes 2 k and 2 k + 1 of a boundary's four subsets. */
        const __m512i pick = _mm512_add_epi16(_mm512_mullo_epi16(k, _mm512_set1_epi16(0x0202)),
                                              _mm512_set1_epi16(0x0100));
        __m512i o = _mm512_setzero_si512();

        for (uint32_t i = 0; i < n_edges; i++) {
            long long four;
            memcpy(&four, edge + 4 * (size_t)i, 8);
            const __m512i bound = _mm512_shuffle_epi8(_mm512_set1_epi64(four), pick);
            o = _mm512_mask_add_epi16(o, _mm512_cmpgt_epi16_mask(v, bound), o, one);
        }
        const __m512i number = _mm512_or_si512(_mm512_slli_epi16(o, 2), k);
        /* p is odd, so 0 marks what lies behind the row */
        const __m512i level = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(v, v),
                                                     level_lookup(table, number, t->bits));

        o = _mm512_or_si512(o, _mm512_maskz_mov_epi16(x, top));
        _mm256_storeu_si256((__m256i *)(void *)(code + j), _mm512_cvtepi16_epi8(o));
        dots = _mm512_add_epi32(dots, _mm512_madd_epi16(v, level));
        squares = _mm512_add_epi32(squares, _mm512_madd_epi16(level, level));
    }
    *dot = _mm512_reduce_add_epi32(dots);
    *ll = _mm512_reduce_add_epi32(squares);
}

void tq_avx512_encode_tcq(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                          size_t n)
{
    tq_avx2_encode_tcq_by(c, dst, src, src_stride, n, search, codes_of_path);
}
