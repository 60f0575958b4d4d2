/* SPDX-License-Identifier: MIT */
/* avx512_attn_words.c — weighted sums of Lloyd values of 5 and 8 bits in 16-bit integers, for
 * AVX-512 with VNNI and VBMI: avx2_attn_words.c in registers of 64 bytes.
 *
 * A register takes a group of 32 elements of a token in its lower half and of the next token in its
 * upper half. A byte permutation puts what belongs to an element together, a lookup makes the
 * numbers of 16 elements of the two tokens, a dword to an element, and vpdpwssd weighs and adds
 * them. Numbers of 5 bits are looked up among 32 words, the fractions of 8 bits among 64 bytes.
 */
#include "cpu/avx512_attn_sums.h"
#include "tables.h"

enum { GROUP = 32, MAX_GROUPS = 512 / GROUP };

/* What the kernel needs to know of a format. */
typedef struct words {
    __m512i table;     /* 5 bits: int16 by code; 8: fractions */
    __m512i place[2];  /* bytes of a group of two tokens; 5 bits: for each half of the group */
    __m512i field;     /* 5 bits: of these bytes, for each byte where its bits begin */
    float unit, shift; /* value = (unit * number + shift) * scale */
    float weight_sum;  /* at most, of integer weights */
} words;

TQ_INLINE __m512i load512(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* A qword k has elements 2k and 2k + 1 of the half group: of each token the two bytes that they are
 * in. Bits from the next code on in a word do not count. */
static words words_v5(void)
{
    const float *c = tq_lloyd_get(5)->centroid;
    const float top = fmaxf(-c[0], c[31]);
    const __m512 up = _mm512_set1_ps((float)TQ_TOP_5 / top);
    uint8_t place[64], field[64];

    for (uint32_t k = 0; k < 8; k++)
        for (uint32_t j = 0; j < 8; j++) {
            const uint32_t at = 10 * k, token = j / 2 % 2;
            place[8 * k + j] = (uint8_t)(token * 32 + at / 8 + j % 2);
            field[8 * k + j] = (uint8_t)(token * 16 + at % 8 + j / 4 * 5);
        }
    const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(c), up));
    const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(c + 16), up));
    words f = {.unit = top / (float)TQ_TOP_5, .weight_sum = TQ_SUM_5};
    f.table = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(first)),
                                 _mm512_cvtepi32_epi16(second), 1);
    f.place[0] = load512(place);
    f.place[1] = _mm512_add_epi8(f.place[0], _mm512_set1_epi8(10));
    f.field = load512(field);
    return f;
}

/* In lane l of 16 bytes elements 4 l .. 4 l + 3, then those 16 further, each of both tokens. */
static words words_v8(void)
{
    uint8_t place[64];

    for (uint32_t i = 0; i < 64; i++)
        place[i] = (uint8_t)(i % 2 * 32 + i / 16 * 4 + i / 8 % 2 * 16 + i % 8 / 2);
    return (words){.table = load512(tq_fraction_8),
                   .place = {load512(place)},
                   .unit = TQ_STEP_8 / 256,
                   .shift = TQ_STEP_8 * TQ_FIRST_8,
                   .weight_sum = TQ_SUM_8};
}

/* ---- Numbers --------------------------------------------------------------------------- */

/* Numbers of two tokens: those of elements 0 .. 15 of a group, and of the others. */
typedef struct pair {
    __m512i a, b;
} pair;

TQ_INLINE __m512i two_tokens(const uint8_t *p0, const uint8_t *p1)
{
    const __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)p0));
    return _mm512_inserti64x4(x, _mm256_loadu_si256((const __m256i *)(const void *)p1), 1);
}

TQ_INLINE __m512i words_of_5(__m512i x, __m512i place, const words *f)
{
    x = _mm512_multishift_epi64_epi8(f->field, _mm512_permutexvar_epi8(place, x));
    return _mm512_permutexvar_epi16(x, f->table);
}

/* Of a group at p0 and at p1. */
TQ_INLINE pair numbers(const uint8_t *p0, const uint8_t *p1, const words *f, const uint32_t bits)
{
    const __m512i x = two_tokens(p0, p1);
    if (bits == 5)
        return (pair){words_of_5(x, f->place[0], f), words_of_5(x, f->place[1], f)};
    /* The high byte is the code minus 128, the low byte the fraction. */
    const __m512i code = _mm512_permutexvar_epi8(f->place[0], x);
    const __m512i low = _mm512_permutexvar_epi8(_mm512_srli_epi16(code, 2), f->table);
    const __m512i high = _mm512_xor_si512(code, _mm512_set1_epi8((char)0x80));
    return (pair){_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

/* ---- Weights --------------------------------------------------------------------------- */

/* Integer weights of a group. A sum is multiplied by factor[r], then base[r] is added. */
typedef struct weights {
    int16_t w16[TQ_SUM_ROWS * TQ_TILE];
    float factor[4], base[4];
} weights;

/* Of `rows` rows, times the scales of a group, w [rows][64], scale [64], both >= 0. */
TQ_INLINE void round_weights(weights *to, const float *w, const float *scale, const words *f,
                             const uint32_t rows)
{
    const __m128 sum = tq_round_words(to->w16, to->factor, w, scale, f->unit, f->weight_sum, rows);
    _mm_storeu_ps(to->base, _mm_mul_ps(sum, _mm_set1_ps(f->shift)));
}

/* ---- Sums ------------------------------------------------------------------------------ */

/* acc [32]: a group of n tokens of up to four rows. codes: of its first token, or what place is
 * relative to. */
TQ_INLINE void sum_group(float *acc, size_t acc_stride, const weights *by, const float *alpha,
                         const uint8_t *codes, size_t stride, uint32_t n, tq_lines *ahead,
                         const words *f, const uint32_t bits, const uint32_t rows)
{
    __m512i sum[TQ_SUM_ROWS][2];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_si512();
    for (uint32_t t = 0; t < n; t += 2, codes += 2 * stride) {
        /* A last token alone meets itself, which weighs nothing there. */
        const pair x = numbers(codes, t + 1 < n ? codes + stride : codes, f, bits);
        tq_next_line(ahead);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const uint8_t *two = (const uint8_t *)(by->w16 + r * TQ_TILE + t);
            const __m512i w = _mm512_set1_epi32((int)tq_load_u32(two));
            sum[r][0] = tq_add_dot2(sum[r][0], x.a, w);
            sum[r][1] = tq_add_dot2(sum[r][1], x.b, w);
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++)
            tq_add_sums(acc + r * acc_stride + 16 * i, sum[r][i], by->factor[r], by->base[r],
                        alpha[r]);
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     const words *of, const uint32_t bits)
{
    const uint32_t n_groups = v->n_groups, bytes = GROUP / 8 * bits;
    float scale[MAX_GROUPS * TQ_TILE];
    tq_lines ahead = tq_lines_begin(values);

    tq_avx512_group_scales(scale, values, n, n_groups);
    if (tq_any_negative(scale, n_groups * TQ_TILE)) {
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        /* Loads take 32 bytes: of a group that would be read beyond, those that end with the row.
         */
        const uint32_t begin = g * bytes;
        const uint32_t from = begin + 32 <= v->code_bytes ? begin : (uint32_t)v->code_bytes - 32;
        const __m512i skip = _mm512_set1_epi8((char)(begin - from));
        words f = *of;
        f.place[0] = _mm512_add_epi8(f.place[0], skip);
        f.place[1] = _mm512_add_epi8(f.place[1], skip);
        for (uint32_t r = 0; r < n_rows; r += TQ_SUM_ROWS) {
            float *dst = acc + r * acc_stride + (size_t)g * GROUP;
            weights by;
#define CALL(n_of_rows)                                                                            \
    do {                                                                                           \
        round_weights(&by, w + r * TQ_TILE, scale + g * TQ_TILE, &f, n_of_rows);                   \
        sum_group(dst, acc_stride, &by, alpha + r, values.codes + from, values.codes_stride, n,    \
                  &ahead, &f, bits, n_of_rows);                                                    \
    } while (0)
            TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
        }
    }
    tq_last_lines(&ahead);
}

#define LLOYD_KERNEL(bits)                                                                         \
    void tq_avx512_weigh_v##bits##_vnni(const tq_codec *v, float *acc, size_t acc_stride,          \
                                        const float *w, const float *alpha, uint32_t n_rows,       \
                                        tq_const_planes values, uint32_t n)                        \
    {                                                                                              \
        const words f = words_v##bits();                                                           \
        weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &f, bits);                          \
    }

LLOYD_KERNEL(5)
LLOYD_KERNEL(8)
