/* SPDX-License-Identifier: MIT */
/* avx2_trellis_search.c — Viterbi's search, eight at a time.
 *
 * A lane is one (row, stretch) pair, a register is one state of all lanes: a step of the trellis is
 * then sixteen additions and eight minima without any shuffle, and single rows still fill three
 * lanes with the stretches of the default effort. Three ideas keep it short:
 *
 * - The price of the best level of a subset is the minimum of (cost - p * level) over the subset:
 *   no level number is needed until the path is known. One multiply-add of 16-bit pairs,
 *   (p', 1) . (-level, cost'), gives a price.
 * - Levels are antisymmetric: |p| needs only the positive levels and the two negative ones that a
 *   subset may prefer for |p| >= 1, and a negative p swaps subsets k and 3 - k.
 * - Adding the same number to all prices of a coordinate changes no comparison. So with p' = |p| -
 *   shift, cost' = cost - shift * level - bias, where bias moves the smallest to -32768, costs of
 *   5 and 6 bits fit 16 bits too; a test proves it for every stretch.
 *
 * Sums stay within int32: a path adds up to 2^27.3 of cost, 2^28 of products (docs/format.md 9.3)
 * and 2^26.2 of shift and bias to 2^30.
 */
#include "cpu/avx2_trellis.h"

#include <immintrin.h>

enum {
    FAR = 1 << 30,
    N_PRICED = TQ_TRELLIS_LEVELS / 2 + 2 /* levels that |p| may choose */
};

/* Which way each lane went into each state: bit 16 (lane / 4) + 4 (x + 2 x1) + lane % 4 of word x2
 * tells the state (x, x1, x2) of that lane. */
typedef struct decisions {
    uint32_t from[TQ_ROW_MAX][2];
} decisions;

typedef struct prices {
    __m256i pair[N_PRICED]; /* (-level, cost') per lane; the two negative levels first */
    int n_rows;             /* positive levels of a subset */
    int shift;
} prices;

static void prices_init(prices *w, const tq_trellis *t, const uint8_t h[TQ_LANES])
{
    const uint32_t half = 1u << t->bits; /* the first positive level */
    const __m256i stretch = _mm256_setr_epi32(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]);
    __m256i least = _mm256_set1_epi32(INT32_MAX);

    w->shift = t->bits >= 5 ? TQ_TRELLIS_SHIFT : 0;
    w->n_rows = (int)half / 4;
    for (uint32_t i = 0; i < half + 2; i++) {
        const int level = t->levels[half - 2 + i];
        __m256i cost = _mm256_mullo_epi32(stretch, _mm256_set1_epi32((level * level) << t->frac));
        cost = _mm256_srai_epi32(_mm256_add_epi32(cost, _mm256_set1_epi32(32)), 6);
        cost = _mm256_sub_epi32(cost, _mm256_set1_epi32(w->shift * level));
        least = _mm256_min_epi32(least, cost);
        w->pair[i] = cost;
    }
    const __m256i bias = _mm256_add_epi32(least, _mm256_set1_epi32(32768));
    for (uint32_t i = 0; i < half + 2; i++) {
        const __m256i cost = _mm256_sub_epi32(w->pair[i], bias);
        w->pair[i] = _mm256_blend_epi16(_mm256_set1_epi32(-t->levels[half - 2 + i]),
                                        _mm256_slli_epi32(cost, 16), 0xaa);
    }
}

/* The best price of each subset. p [8] int32. */
static inline void price_subsets(__m256i price[4], const prices *w, __m256i p)
{
    const __m256i *pair = w->pair;
    __m256i q = _mm256_sub_epi32(_mm256_abs_epi32(p), _mm256_set1_epi32(w->shift));
    q = _mm256_blend_epi16(q, _mm256_set1_epi32(0x10000), 0xaa);

    __m256i c2 = _mm256_madd_epi16(q, pair[0]);
    __m256i c3 = _mm256_madd_epi16(q, pair[1]);
    __m256i c0 = _mm256_madd_epi16(q, pair[2]);
    __m256i c1 = _mm256_madd_epi16(q, pair[3]);
    c2 = _mm256_min_epi32(c2, _mm256_madd_epi16(q, pair[4]));
    c3 = _mm256_min_epi32(c3, _mm256_madd_epi16(q, pair[5]));
    for (int i = 1; i < w->n_rows; i++) {
        pair += 4;
        c0 = _mm256_min_epi32(c0, _mm256_madd_epi16(q, pair[2]));
        c1 = _mm256_min_epi32(c1, _mm256_madd_epi16(q, pair[3]));
        c2 = _mm256_min_epi32(c2, _mm256_madd_epi16(q, pair[4]));
        c3 = _mm256_min_epi32(c3, _mm256_madd_epi16(q, pair[5]));
    }
    const __m256 sign = _mm256_castsi256_ps(p);
    const __m256 f0 = _mm256_castsi256_ps(c0), f1 = _mm256_castsi256_ps(c1);
    const __m256 f2 = _mm256_castsi256_ps(c2), f3 = _mm256_castsi256_ps(c3);
    price[0] = _mm256_castps_si256(_mm256_blendv_ps(f0, f3, sign));
    price[1] = _mm256_castps_si256(_mm256_blendv_ps(f1, f2, sign));
    price[2] = _mm256_castps_si256(_mm256_blendv_ps(f2, f1, sign));
    price[3] = _mm256_castps_si256(_mm256_blendv_ps(f3, f0, sign));
}

/* Into one state: a with x3 = 0, b with x3 = 1. Returns the lanes in which b is cheaper. */
static inline __m256i choose(__m256i *total, __m256i a, __m256i b)
{
    *total = _mm256_min_epi32(a, b);
    return _mm256_cmpgt_epi32(a, b);
}

/* The four states of one x2, numbered x + 2 x1, from the four that lead there, numbered x1 + 2 x3;
 * even and odd: the prices of subsets x2 and x2 + 2. In place. Returns the word of decisions. */
static inline uint32_t advance_half(__m256i *s0, __m256i *s1, __m256i *s2, __m256i *s3,
                                    __m256i even, __m256i odd)
{
    const __m256i even0 = _mm256_add_epi32(*s0, even), odd0 = _mm256_add_epi32(*s0, odd);
    const __m256i even1 = _mm256_add_epi32(*s1, even), odd1 = _mm256_add_epi32(*s1, odd);
    const __m256i even2 = _mm256_add_epi32(*s2, even), odd2 = _mm256_add_epi32(*s2, odd);
    const __m256i even3 = _mm256_add_epi32(*s3, even), odd3 = _mm256_add_epi32(*s3, odd);
    /* The price is that of subset x2 + 2 (x ^ x1 ^ x3). */
    const __m256i m0 = choose(s0, even0, odd2), m1 = choose(s1, odd0, even2);
    const __m256i m2 = choose(s2, odd1, even3), m3 = choose(s3, even1, odd3);

    return (uint32_t)_mm256_movemask_epi8(
        _mm256_packs_epi16(_mm256_packs_epi32(m0, m1), _mm256_packs_epi32(m2, m3)));
}

/* pt [8][8] := coordinates n .. n + 7 of eight lanes, a coordinate's lanes side by side. */
static inline void transpose(__m128i pt[8], const int16_t *const p[TQ_LANES], uint32_t n)
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
static inline void cheaper_end(__m256i *end, __m256i *total, __m256i other, int number)
{
    const __m256i less = _mm256_cmpgt_epi32(*total, other);
    *end = _mm256_blendv_epi8(*end, _mm256_set1_epi32(number), less);
    *total = _mm256_min_epi32(*total, other);
}

/* Returns the cheapest end of each lane. dim is a multiple of 8. The states are variables, not an
 * array, so that they stay in registers. */
static __m256i forward(decisions *d, const prices *w, const int16_t *const p[TQ_LANES],
                       uint32_t dim)
{
    __m256i s0 = _mm256_setzero_si256(), s1 = _mm256_set1_epi32(FAR);
    __m256i s2 = s1, s3 = s1, s4 = s1, s5 = s1, s6 = s1, s7 = s1;
    __m128i pt[8];

    for (uint32_t n = 0; n < dim; n++) {
        __m256i price[4];

        if (n % 8 == 0)
            transpose(pt, p, n);
        price_subsets(price, w, _mm256_cvtepi16_epi32(pt[n % 8]));
        /* From states x1 + 2 x2 + 4 x3. What is now in s0 s1 s4 s5 are the states with x2 = 0. */
        d->from[n][0] = advance_half(&s0, &s1, &s4, &s5, price[0], price[2]);
        d->from[n][1] = advance_half(&s2, &s3, &s6, &s7, price[1], price[3]);
        const __m256i new2 = s4, new3 = s5;
        s4 = s2;
        s5 = s3;
        s2 = new2;
        s3 = new3;
    }
    __m256i end = _mm256_setzero_si256();
    cheaper_end(&end, &s0, s1, 1);
    cheaper_end(&end, &s0, s2, 2);
    cheaper_end(&end, &s0, s3, 3);
    cheaper_end(&end, &s0, s4, 4);
    cheaper_end(&end, &s0, s5, 5);
    cheaper_end(&end, &s0, s6, 6);
    cheaper_end(&end, &s0, s7, 7);
    return end;
}

static void backward(tq_paths *paths, const decisions *d, __m256i state, uint32_t dim)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19);
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i low = _mm256_set1_epi32(3);
    __m256i x = _mm256_setzero_si256();

    for (uint32_t n = dim; n-- > 0;) {
        const __m256 w0 = _mm256_castsi256_ps(_mm256_set1_epi32((int)d->from[n][0]));
        const __m256 w1 = _mm256_castsi256_ps(_mm256_set1_epi32((int)d->from[n][1]));
        const __m256 x2 = _mm256_castsi256_ps(_mm256_slli_epi32(state, 29));
        const __m256i word = _mm256_castps_si256(_mm256_blendv_ps(w0, w1, x2));
        const __m256i at =
            _mm256_add_epi32(_mm256_slli_epi32(_mm256_and_si256(state, low), 2), lane);
        const __m256i x3 = _mm256_and_si256(_mm256_srlv_epi32(word, at), one);

        x = _mm256_or_si256(_mm256_slli_epi32(x, 1), _mm256_and_si256(state, one));
        state = _mm256_or_si256(_mm256_srli_epi32(state, 1), _mm256_slli_epi32(x3, 2));
        if (n % 32 == 0) {
            _mm256_storeu_si256((__m256i *)(void *)paths->x[n / 32], x);
            x = _mm256_setzero_si256();
        }
    }
}

/* z0[n] = x[n-2], z1[n] = x[n] ^ x[n-1] ^ x[n-3], whole words at a time. */
static void subsets(tq_paths *paths, uint32_t dim)
{
    __m256i before = _mm256_setzero_si256();

    for (uint32_t i = 0; i < (dim + 31) / 32; i++) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)paths->x[i]);
        const __m256i x1 = _mm256_or_si256(_mm256_slli_epi32(x, 1), _mm256_srli_epi32(before, 31));
        const __m256i x2 = _mm256_or_si256(_mm256_slli_epi32(x, 2), _mm256_srli_epi32(before, 30));
        const __m256i x3 = _mm256_or_si256(_mm256_slli_epi32(x, 3), _mm256_srli_epi32(before, 29));

        _mm256_storeu_si256((__m256i *)(void *)paths->z0[i], x2);
        _mm256_storeu_si256((__m256i *)(void *)paths->z1[i],
                            _mm256_xor_si256(x, _mm256_xor_si256(x1, x3)));
        before = x;
    }
}

void tq_avx2_trellis_search(tq_paths *paths, const tq_trellis *t, const int16_t *const p[TQ_LANES],
                            const uint8_t h[TQ_LANES], uint32_t dim)
{
    prices w;
    decisions d;

    prices_init(&w, t, h);
    backward(paths, &d, forward(&d, &w, p, dim), dim);
    subsets(paths, dim);
}
