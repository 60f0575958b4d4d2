/* SPDX-License-Identifier: MIT */
/* avx512_attn_uniform_weigh.c — weighted sums of values of uniform groups, for AVX-512 with VNNI
 * and VBMI.
 *
 * Codes meet the weights as they are: no table, nothing stored in between. Of 4 bits, four tokens
 * are a dword; the upper nibble stays where it is and, with its highest bit inverted, is 16 times
 * the code less 8 in an int8, the lower is masked, and what it has more starts its sum. Of 8 bits,
 * two tokens are a dword of two int16 and meet int16 weights; sums start at -128 times those.
 *
 * A CHUNK is 64 elements, whose sums are four registers a row, for up to four rows. It is of one
 * group, or of two groups of 32: the upper half of a register is always of the elements from 32 on,
 * and has weights of its own then. Dimensions that are no multiple of 64 are AVX2's.
 */
#include "cpu/avx512_attn_sums.h"
#include "cpu/avx512_attn_uniform.h"

enum { MAX_GROUPS = 1024 / 32 };

static int takes(const tq_codec *v)
{
    return v->dim % TQ_UNIFORM_CHUNK == 0;
}

/* Integer weights of up to four rows for a group: a sum starts at start, is multiplied by factor,
 * then base is added. */
typedef struct weights {
    union {
        uint8_t w8[TQ_SUM_ROWS * TQ_TILE];
        int16_t w16[TQ_SUM_ROWS * TQ_TILE];
    } __attribute__((aligned(64)));
    int32_t start[TQ_SUM_ROWS];
    float factor[TQ_SUM_ROWS], base[TQ_SUM_ROWS];
} weights;

/* The dword at p of the weights in all lanes, or, where a chunk has two groups, that of the second
 * in the upper half. */
TQ_INLINE __m512i spread(const void *p, const int two)
{
    const uint8_t *q = p;
    __m512i x = _mm512_set1_epi32((int)tq_load_u32(q));
    if (two)
        x = _mm512_mask_set1_epi32(x, 0xff00, (int)tq_load_u32(q + sizeof(weights)));
    return x;
}

/* acc [16] = alpha * that + sum as the weights of row r say. */
TQ_INLINE void add_sums(float *acc, __m512i sum, const weights *by, float alpha, uint32_t r)
{
    tq_add_sums(acc, sum, by->factor[r], by->base[r], alpha);
}

/* sum of w [64] times offset + middle * scale, for each row. */
TQ_INLINE __m128 sum_offsets(const float *w, const float *scale, const float *offset, float middle,
                             const uint32_t rows)
{
    __m512 x[4];
    __m512i sum[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        x[i] = _mm512_fmadd_ps(_mm512_set1_ps(middle), _mm512_loadu_ps(scale + 16 * i),
                               _mm512_loadu_ps(offset + 16 * i));
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++) {
        const float *p = w + r * TQ_TILE;
        sum[r] = _mm512_setzero_si512();
        if (r >= rows)
            continue;
        __m512 a = _mm512_mul_ps(_mm512_loadu_ps(p), x[0]);
        __m512 b = _mm512_mul_ps(_mm512_loadu_ps(p + 16), x[1]);
        a = _mm512_fmadd_ps(_mm512_loadu_ps(p + 32), x[2], a);
        b = _mm512_fmadd_ps(_mm512_loadu_ps(p + 48), x[3], b);
        sum[r] = _mm512_castps_si512(_mm512_add_ps(a, b));
    }
    return _mm_castsi128_ps(tq_fold4(sum, tq_fold_add_ps));
}

/* ---- Four bits ------------------------------------------------------------------------- */

TQ_INLINE void round_bytes(weights *by, const float *w, const float *scale, const float *offset,
                           const uint32_t rows)
{
    int32_t sums8[4];
    tq_round_small(by->w8, by->factor, sums8, w, scale, 1, rows);
    _mm_storeu_ps(by->base, sum_offsets(w, scale, offset, 8, rows));
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        by->start[r] = -8 * sums8[r];
}

/* Two tokens, 32 bytes of each. */
TQ_INLINE __m512i two_rows(const uint8_t *p, const uint8_t *q)
{
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)q);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Four tokens, their weights at w8. Lower and upper nibbles of bytes 0 .. 7 and 16 .. 23, then of
 * the others. */
TQ_INLINE void add_quad(__m512i sum[TQ_SUM_ROWS][4], const uint8_t *w8, const uint8_t *codes,
                        const size_t at[4], __m512i order, const int two, const uint32_t rows)
{
    const __m512i low = _mm512_set1_epi8(15), sign = _mm512_set1_epi8((char)0x80);
    const __m512i a = two_rows(codes, codes + at[1]), b = two_rows(codes + at[2], codes + at[3]);
    const __m512i x = _mm512_permutexvar_epi8(order, _mm512_unpacklo_epi8(a, b));
    const __m512i y = _mm512_permutexvar_epi8(order, _mm512_unpackhi_epi8(a, b));
    const __m512i n[4] = {_mm512_and_si512(x, low),
                          _mm512_ternarylogic_epi64(x, sign, low, 0x14) /* (x ^ sign) & ~low */,
                          _mm512_and_si512(y, low), _mm512_ternarylogic_epi64(y, sign, low, 0x14)};
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512i w = spread(w8 + r * TQ_TILE, two);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            sum[r][i] = tq_add_dot4(sum[r][i], w, n[i]);
    }
}

TQ_INLINE void sum_nibbles(float *acc, size_t acc_stride, const weights *by, const float *alpha,
                           const uint8_t *codes, size_t stride, uint32_t n, tq_lines *ahead,
                           const int two, const uint32_t rows)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    uint8_t four[64]; /* of unpacked tokens 0, 2 and 1, 3 to dwords */
    TQ_UNROLL_FOR (uint32_t i = 0; i < 16; i++)
        TQ_UNROLL_FOR (uint32_t j = 0; j < 4; j++)
            four[4 * i + j] = (uint8_t)(2 * i + j % 2 * 32 + j / 2);
    const __m512i order = _mm512_loadu_si512(four);
    const size_t next[4] = {0, stride, 2 * stride, 3 * stride};
    const uint8_t *w8 = by->w8;
    __m512i sum[TQ_SUM_ROWS][4];

    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        sum[r][0] = sum[r][2] = spread(by->start + r, two);
        sum[r][1] = sum[r][3] = _mm512_setzero_si512();
    }
    for (; n >= 4; n -= 4, w8 += 4, codes += 4 * stride) {
        tq_next_line(ahead);
        tq_next_line(ahead);
        add_quad(sum, w8, codes, next, order, two, rows);
    }
    if (n > 0) { /* tokens from n on are the last one again, and weigh nothing */
        const size_t end = n - 1;
        const size_t last[4] = {0, (end < 1 ? end : 1) * stride, (end < 2 ? end : 2) * stride,
                                end * stride};
        add_quad(sum, w8, codes, last, order, two, rows);
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        float *to = acc + r * acc_stride;
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
            const __m512i lower = sum[r][2 * i], upper = _mm512_srai_epi32(sum[r][2 * i + 1], 4);
            add_sums(to + 16 * i, _mm512_permutex2var_epi32(lower, low, upper), by, alpha[r], r);
            add_sums(to + 16 * i + 32, _mm512_permutex2var_epi32(lower, high, upper), by + two,
                     alpha[r], r);
        }
    }
}

/* ---- Eight bits ------------------------------------------------------------------------ */

/* Weights times scales as integers: kernels.h has the steps. */
TQ_INLINE void round_words(weights *by, const float *w, const float *scale, const float *offset,
                           const uint32_t rows)
{
    __m512i count[4];

    tq_round_words(by->w16, by->factor, w, scale, 1, TQ_SUM_5, rows);
    _mm_storeu_ps(by->base, sum_offsets(w, scale, offset, 128, rows));
    TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++)
        count[r] = _mm512_setzero_si512();
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < TQ_TILE; i += 32)
            count[r] = _mm512_dpwssd_epi32(count[r], _mm512_load_si512(by->w16 + r * TQ_TILE + i),
                                           _mm512_set1_epi16(1));
    const __m128i all = tq_fold4(count, tq_fold_add);
    _mm_storeu_si128((__m128i *)(void *)by->start,
                     _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(all, 7)));
}

/* Two tokens, their weights at w16. In each lane of 16 elements: the even ones of the first eight,
 * the odd ones, then those of the others. */
TQ_INLINE void add_pair(__m512i sum[TQ_SUM_ROWS][4], const int16_t *w16, const uint8_t *p,
                        const uint8_t *q, const int two, const uint32_t rows)
{
    const __m512i even = _mm512_set1_epi16(255);
    const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(q);
    const __m512i x = _mm512_unpacklo_epi16(a, b), y = _mm512_unpackhi_epi16(a, b);
    const __m512i n[4] = {_mm512_and_si512(x, even), _mm512_srli_epi16(x, 8),
                          _mm512_and_si512(y, even), _mm512_srli_epi16(y, 8)};
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const int16_t *w = w16 + r * TQ_TILE;
        if (two) {
            const __m512i both = spread(w, 1);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                sum[r][i] = tq_add_dot2(sum[r][i], n[i], both);
        } else {
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                sum[r][i] = tq_add_dot2_at(sum[r][i], n[i], w);
        }
    }
}

TQ_INLINE void sum_bytes(float *acc, size_t acc_stride, const weights *by, const float *alpha,
                         const uint8_t *codes, size_t stride, uint32_t n, tq_lines *ahead,
                         const int two, const uint32_t rows)
{
    const int16_t *w16 = by->w16;
    __m512i sum[TQ_SUM_ROWS][4];

    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            sum[r][i] = spread(by->start + r, two);
    for (; n >= 2; n -= 2, w16 += 2, codes += 2 * stride) {
        tq_next_line(ahead);
        tq_next_line(ahead);
        add_pair(sum, w16, codes, codes + stride, two, rows);
    }
    if (n > 0)
        add_pair(sum, w16, codes, codes, two, rows);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512i *s = sum[r];
        __m512i x[4] = {_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]),
                        _mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3])};
        tq_turn_lanes(x);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            add_sums(acc + r * acc_stride + 16 * i, x[i], i < 2 ? by : by + two, alpha[r], r);
    }
}

/* ---- Groups ---------------------------------------------------------------------------- */

/* A group, or two of 32 elements, one after the other: codes of the first token, scale and offset
 * [1 or 2][64]. */
typedef struct group_at {
    const uint8_t *codes;
    size_t stride;
    uint32_t elements, n;
    const float *scale, *offset;
} group_at;

TQ_INLINE void weigh_group(float *acc, size_t acc_stride, const float *w, const float *alpha,
                           const group_at *g, tq_lines *ahead, const uint32_t bits, const int two,
                           const uint32_t rows)
{
    weights by[2];
    for (uint32_t i = 0; i < (two ? 2 : 1); i++)
        if (bits == 4)
            round_bytes(&by[i], w, g->scale + i * TQ_TILE, g->offset + i * TQ_TILE, rows);
        else
            round_words(&by[i], w, g->scale + i * TQ_TILE, g->offset + i * TQ_TILE, rows);
    for (uint32_t j = 0; j < g->elements; j += TQ_UNIFORM_CHUNK) {
        const uint8_t *codes = g->codes + j / 8 * bits;
        if (bits == 4)
            sum_nibbles(acc + j, acc_stride, by, alpha, codes, g->stride, g->n, ahead, two, rows);
        else
            sum_bytes(acc + j, acc_stride, by, alpha, codes, g->stride, g->n, ahead, two, rows);
    }
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     const uint32_t bits, const int two)
{
    float scale[MAX_GROUPS * TQ_TILE], offset[MAX_GROUPS * TQ_TILE];
    const uint32_t n_groups = v->n_groups, step = two ? TQ_UNIFORM_CHUNK : v->group;
    tq_lines ahead = tq_lines_begin(values);

    tq_uniform_columns(scale, TQ_TILE, values.scale, values.scale_stride, 0, TQ_TILE, n, n_groups);
    if (tq_any_negative(scale, n_groups * TQ_TILE)) {
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    tq_uniform_columns(offset, TQ_TILE, values.zero, values.zero_stride, 0, TQ_TILE, n, n_groups);
    for (uint32_t i = 0, j = 0; j < v->dim; i += two ? 2 : 1, j += step) {
        const group_at g = {.codes = values.codes + (size_t)j / 8 * bits,
                            .stride = values.codes_stride,
                            .elements = v->dim - j < step ? v->dim - j : step,
                            .n = n,
                            .scale = scale + i * TQ_TILE,
                            .offset = offset + i * TQ_TILE};
        for (uint32_t r = 0; r < n_rows; r += TQ_SUM_ROWS) {
            float *dst = acc + r * acc_stride + j;
#define CALL(n_of_rows)                                                                            \
    weigh_group(dst, acc_stride, w + r * TQ_TILE, alpha + r, &g, &ahead, bits, two, n_of_rows)
            TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
        }
    }
    tq_last_lines(&ahead);
}

#define UNIFORM_KERNEL(bits)                                                                       \
    void tq_avx512_weigh_uniform##bits##_vnni(const tq_codec *v, float *acc, size_t acc_stride,    \
                                              const float *w, const float *alpha, uint32_t n_rows, \
                                              tq_const_planes values, uint32_t n)                  \
    {                                                                                              \
        if (!takes(v))                                                                             \
            tq_avx2_weigh_uniform##bits(v, acc, acc_stride, w, alpha, n_rows, values, n);          \
        else if (v->group == 32)                                                                   \
            weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, bits, 1);                       \
        else                                                                                       \
            weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, bits, 0);                       \
    }

UNIFORM_KERNEL(4)
UNIFORM_KERNEL(8)
