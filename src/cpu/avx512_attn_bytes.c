/* SPDX-License-Identifier: MIT */
/* avx512_attn_bytes.c — weighted sums of Lloyd values of 2, 3 and 4 bits in bytes, for AVX-512 with
 * VNNI and VBMI.
 *
 * A register takes the codes of a group of 32 elements of four tokens, one to a lane of 16 bytes. A
 * byte permutation makes them eight qwords, each with four codes of each token, shifts by fields
 * make those bytes of two codes, four tokens to a dword, and a permutation looks up the numbers
 * that stand for the first or the second codes: it sees six bits of a byte, so no code is masked.
 * Codes of 4 bits are two to a byte as they are. This is done once for all rows.
 *
 * avx512_attn_sums.h has the multiplication and the byte weights. Values of 4 bits are finer than
 * those are: a weight has 16 bits, high and low byte in PLANES of their own, and sums of the two
 * meet at the end.
 */
#include "cpu/avx512_attn_sums.h"

enum {
    GROUP = 32,
    CHUNK = 4, /* groups whose weights are rounded together */
    PAIR = 2,  /* that are summed together */
    PLANES = 2,
    MAX_GROUPS = 512 / GROUP,
    QUADS = TQ_TILE / 4,
    QUAD_BYTES = 4 * GROUP
};

/* Numbers of the first and of the second code of a byte, by its six low bits; second codes of 4
 * bits are shifted down first. */
typedef struct numbers {
    __m512i first, second;
    float unit, mean; /* a number stands for unit * that + mean */
} numbers;

/* Centroids (format.md 7.4) are a unit times these plus a mean. Of all such numbers those whose
 * rounding has the least square on normal values: 1.2e-5, 3.3e-5 and 9.5e-4 of the square of the
 * format's own error. Least squares keep gain and mean, whose errors do not average out over many
 * tokens. Codes of fewer bits repeat. */
static const int8_t numbers_2[16] = {-123, -37, 37, 124, -123, -37, 37, 124,
                                     -123, -37, 37, 124, -123, -37, 37, 124};
static const int8_t numbers_3[16] = {-88, -55, -31, -10, 10, 31, 55, 88,
                                     -88, -55, -31, -10, 10, 31, 55, 88};
static const int8_t numbers_4[16] = {-105, -79, -62, -48, -36, -25, -15, -5,
                                     5,    15,  25,  36,  48,  62,  79,  104};

TQ_INLINE __m512i load512(const void *p)
{
    return _mm512_loadu_si512(p);
}

TQ_INLINE numbers make_numbers(const int8_t *by_code, float unit, float mean, const uint32_t bits)
{
    uint8_t second[64];
    numbers of;
    /* What a neighbour shifts into a byte is above its code, or above six bits. */
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        TQ_UNROLL_FOR (uint32_t j = 0; j < 16; j++)
            second[16 * i + j] = (uint8_t)((16 * i + j) >> bits);
    of.first = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)by_code));
    of.second = bits == 4 ? of.first : _mm512_permutexvar_epi8(load512(second), of.first);
    of.unit = unit;
    of.mean = mean;
    return of;
}

/* Where the bits are. A qword k has codes 4k .. 4k + 3 of token i in the two bytes 2i: the byte of
 * the row's 16 that they begin in, and the next. Field j is two codes of token j % 4. 4 bits: byte
 * k of the row, of four tokens. */
typedef struct places {
    __m512i byte, field;
} places;

TQ_INLINE places find_places(const uint32_t bits)
{
    uint8_t byte[64], field[64];
    TQ_UNROLL_FOR (uint32_t k = 0; k < 8; k++)
        TQ_UNROLL_FOR (uint32_t j = 0; j < 8; j++) {
            const uint32_t at = 4 * bits * k, next = at / 8 + j % 2;
            byte[8 * k + j] = (uint8_t)(j / 2 * 16 + (next < 4 * bits ? next : at / 8));
            field[8 * k + j] = (uint8_t)(j % 4 * 16 + at % 8 + j / 4 * 2 * bits);
            if (bits == 4)
                byte[8 * k + j] = (uint8_t)(j % 4 * 16 + 2 * k + j / 4);
        }
    return (places){load512(byte), load512(field)};
}

/* Numbers of a group of four tokens: dst [2][64], the even elements first. row: 16 bytes of each;
 * byte: places in them. */
TQ_INLINE void expand(uint8_t *dst, const uint8_t *row, size_t stride, __m512i byte, __m512i field,
                      const numbers *of, const uint32_t bits)
{
    __m512i x = _mm512_permutexvar_epi8(byte, tq_four_rows(row, stride));
    if (bits < 4)
        x = _mm512_multishift_epi64_epi8(field, x);
    _mm512_store_si512(dst, _mm512_permutexvar_epi8(x, of->first));
    if (bits == 4)
        x = _mm512_srli_epi16(x, 4);
    _mm512_store_si512(dst + 64, _mm512_permutexvar_epi8(x, of->second));
}

/* Weights of up to four rows by a chunk of groups. */
typedef struct chunk_weights {
    uint8_t w8[PLANES][TQ_SUM_ROWS][CHUNK][TQ_TILE]; /* the high bytes first */
    float factor[TQ_SUM_ROWS][CHUNK];                /* what a sum is multiplied by */
    float base[TQ_SUM_ROWS][CHUNK];                  /* and what is added then */
} __attribute__((aligned(64))) chunk_weights;

/* scale [n_groups][64]. Weights of a row keep their sum in each group, see tq_round_bytes. */
TQ_INLINE void round_weights(chunk_weights *to, const tq_weight_steps *by, const float *w,
                             const float *scale, uint32_t n_groups, const numbers *of,
                             const uint32_t rows)
{
    const __m512i row = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    float sums[TQ_SUM_ROWS * CHUNK] __attribute__((aligned(64))) = {0};
    float sums8[TQ_SUM_ROWS * CHUNK] __attribute__((aligned(64))) = {0};

    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512 up = _mm512_set1_ps(by->up[r]);
        __m512i total[CHUNK], count[CHUNK];
        __m512 x[4];
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            x[i] = _mm512_mul_ps(up, _mm512_loadu_ps(w + r * TQ_TILE + 16 * i));
        TQ_UNROLL_FOR (uint32_t g = 0; g < CHUNK; g++) {
            __m512 y[4];
            total[g] = count[g] = _mm512_setzero_si512();
            if (g >= n_groups)
                continue;
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                y[i] = _mm512_mul_ps(x[i], _mm512_loadu_ps(scale + g * TQ_TILE + 16 * i));
            const __m512 a = _mm512_add_ps(y[0], y[1]), b = _mm512_add_ps(y[2], y[3]);
            const __m512i bytes = tq_to_bytes(y);
            _mm512_store_si512(to->w8[0][r][g], bytes);
            total[g] = _mm512_castps_si512(_mm512_add_ps(a, b));
            count[g] = tq_count_bytes(bytes);
        }
        _mm_store_ps(sums + CHUNK * r, _mm_castsi128_ps(tq_fold4(total, tq_fold_add_ps)));
        _mm_store_ps(sums8 + CHUNK * r, _mm_cvtepi32_ps(tq_fold4(count, tq_fold_add)));
    }
    const __m512 sum = _mm512_load_ps(sums);
    uint32_t again = tq_sums_differ(sum, _mm512_load_ps(sums8));
    if (__builtin_expect(again != 0, 0))
        for (uint32_t i = 0; i < TQ_SUM_ROWS * CHUNK; i++)
            if (again >> i & 1) {
                const uint32_t r = i / CHUNK, g = i % CHUNK;
                sums8[i] = (float)tq_avx512_round_again_vnni(to->w8[0][r][g], w + r * TQ_TILE,
                                                             scale + g * TQ_TILE, by->up[r]);
            }
    const __m512 sum8 = _mm512_load_ps(sums8);
    /* None left: a group whose scales are nothing beside those of another. A NaN is in by->down. */
    const __mmask16 any = _mm512_cmp_ps_mask(sum8, _mm512_setzero_ps(), _CMP_GT_OQ);
    const __m512 down = _mm512_permutexvar_ps(row, _mm512_castps128_ps512(by->down));
    const __m512 step = _mm512_mul_ps(down, _mm512_maskz_div_ps(any, sum, sum8));
    _mm512_storeu_ps(to->factor[0], _mm512_mul_ps(step, _mm512_set1_ps(of->unit)));
    _mm512_storeu_ps(to->base[0],
                     _mm512_mul_ps(_mm512_mul_ps(down, sum), _mm512_set1_ps(of->mean)));
}

/* The same in two planes: 65535 steps. Their sum is what it was but for one of those. */
TQ_INLINE void round_fine(chunk_weights *to, const tq_weight_steps *by, const float *w,
                          const float *scale, uint32_t n_groups, const numbers *of,
                          const uint32_t rows)
{
    float down[4];

    _mm_storeu_ps(down, by->down);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512 up = _mm512_set1_ps(by->up[r]);
        __m512i total[CHUNK];
        TQ_UNROLL_FOR (uint32_t g = 0; g < CHUNK; g++) {
            __m512 x[4];
            total[g] = _mm512_setzero_si512();
            if (g >= n_groups)
                continue;
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                const __m512 s = _mm512_mul_ps(up, _mm512_loadu_ps(scale + g * TQ_TILE + 16 * i));
                x[i] = _mm512_mul_ps(s, _mm512_loadu_ps(w + r * TQ_TILE + 16 * i));
            }
            tq_to_two_bytes(to->w8[0][r][g], to->w8[1][r][g], x);
            total[g] = _mm512_castps_si512(
                _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3])));
        }
        const __m128 sum = _mm_castsi128_ps(tq_fold4(total, tq_fold_add_ps));
        _mm_storeu_ps(to->factor[r], _mm_set1_ps(down[r] * of->unit));
        _mm_storeu_ps(to->base[r], _mm_mul_ps(_mm_set1_ps(down[r] * of->mean), sum));
    }
}

/* acc [32] of a group. sum: of its even and of its odd elements. */
TQ_INLINE void add_group(float *acc, const __m512i sum[2], float factor, float base, float alpha)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    tq_add_sums(acc, _mm512_permutex2var_epi32(sum[0], low, sum[1]), factor, base, alpha);
    tq_add_sums(acc + 16, _mm512_permutex2var_epi32(sum[0], high, sum[1]), factor, base, alpha);
}

/* acc [2][32]: two groups from the one on that the members of `by` begin with. x: expanded quads,
 * those of the two groups together. */
TQ_INLINE void sum_pair(float *acc, size_t acc_stride, const chunk_weights *by, uint32_t first,
                        const float *alpha, const uint8_t *x, uint32_t quads, tq_lines *ahead,
                        const uint32_t rows)
{
    const uint8_t *p = by->w8[0][0][first];
    __m512i sum[TQ_SUM_ROWS][2 * PAIR];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2 * PAIR; i++)
            sum[r][i] = _mm512_setzero_si512();
    for (const uint8_t *const end = p + quads * 4; p < end; p += 4, x += PAIR * QUAD_BYTES) {
        __m512i y[2 * PAIR];
        tq_next_line(ahead);
        tq_next_line(ahead);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2 * PAIR; i++)
            y[i] = _mm512_load_si512(x + 64 * i);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            TQ_UNROLL_FOR (uint32_t g = 0; g < PAIR; g++) {
                const uint8_t *four = p + (r * CHUNK + g) * TQ_TILE;
                const __m512i w = _mm512_set1_epi32((int)tq_load_u32(four));
                sum[r][2 * g] = tq_add_dot4(sum[r][2 * g], w, y[2 * g]);
                sum[r][2 * g + 1] = tq_add_dot4(sum[r][2 * g + 1], w, y[2 * g + 1]);
            }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t g = 0; g < PAIR; g++)
            add_group(acc + r * acc_stride + g * GROUP, sum[r] + 2 * g, by->factor[r][first + g],
                      by->base[r][first + g], alpha[r]);
}

/* acc [32]: group `first` of the chunk, with weights in two planes. */
TQ_INLINE void sum_fine(float *acc, size_t acc_stride, const chunk_weights *by, uint32_t first,
                        const float *alpha, const uint8_t *x, uint32_t quads, tq_lines *ahead,
                        const uint32_t rows)
{
    const uint8_t *p = by->w8[0][0][first];
    const size_t plane = sizeof by->w8[0];
    __m512i sum[TQ_SUM_ROWS][PLANES][2];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][0][0] = sum[r][0][1] = sum[r][1][0] = sum[r][1][1] = _mm512_setzero_si512();
    for (const uint8_t *const end = p + quads * 4; p < end; p += 4, x += PAIR * QUAD_BYTES) {
        const __m512i even = _mm512_load_si512(x), odd = _mm512_load_si512(x + 64);
        tq_next_line(ahead);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            TQ_UNROLL_FOR (uint32_t i = 0; i < PLANES; i++) {
                const uint8_t *four = p + i * plane + r * CHUNK * TQ_TILE;
                const __m512i w = _mm512_set1_epi32((int)tq_load_u32(four));
                sum[r][i][0] = tq_add_dot4(sum[r][i][0], w, even);
                sum[r][i][1] = tq_add_dot4(sum[r][i][1], w, odd);
            }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++)
            sum[r][0][i] = tq_join_bytes(sum[r][0][i], sum[r][1][i]);
        add_group(acc + r * acc_stride, sum[r][0], by->factor[r][first], by->base[r][first],
                  alpha[r]);
    }
}

/* Up to four rows. scale [n_groups][64] of the chunk, bound [64] the largest of all groups. */
TQ_INLINE void chunk_rows(float *acc, size_t acc_stride, const float *w, const float *alpha,
                          const uint8_t *x, uint32_t quads, const float *scale, uint32_t n_groups,
                          const float *bound, const numbers *of, tq_lines *ahead,
                          const uint32_t bits, const uint32_t rows)
{
    chunk_weights weights;
    tq_weight_steps by;

    if (bits == 4) {
        tq_find_steps64(&by, w, bound, TQ_FINE_TOP, rows);
        round_fine(&weights, &by, w, scale, n_groups, of, rows);
        for (uint32_t g = 0; g < n_groups; g++)
            sum_fine(acc + g * GROUP, acc_stride, &weights, g, alpha,
                     x + (g / PAIR * QUADS * PAIR + g % PAIR) * QUAD_BYTES, quads, ahead, rows);
        return;
    }
    tq_find_steps64(&by, w, bound, TQ_WEIGHT_TOP, rows);
    round_weights(&weights, &by, w, scale, n_groups, of, rows);
    for (uint32_t g = 0; g < n_groups; g += PAIR, x += QUADS * PAIR * QUAD_BYTES)
        sum_pair(acc + g * GROUP, acc_stride, &weights, g, alpha, x, quads, ahead, rows);
}

/* dst [2][QUADS][2 groups][128]. codes: of a chunk; others of its row follow up
 * to `end`. */
TQ_INLINE void expand_chunk(uint8_t *dst, const uint8_t *codes, size_t stride, uint32_t end,
                            uint32_t n, uint32_t n_groups, const places *at, const numbers *of,
                            tq_lines *ahead, const uint32_t bits)
{
    const uint32_t bytes = GROUP / 8 * bits;
    for (uint32_t g = 0; g < n_groups; g++) {
        /* 16 bytes that end with the row, if they would not otherwise. */
        const uint32_t from = g * bytes + 16 <= end ? g * bytes : end - 16;
        const __m512i byte = _mm512_add_epi8(at->byte, _mm512_set1_epi8((char)(g * bytes - from)));
        uint8_t *to = dst + (g / PAIR * QUADS * PAIR + g % PAIR) * QUAD_BYTES;
        const uint8_t *row = codes + from;
        uint32_t t = 0;
        for (; t + 4 <= n; t += 4, row += 4 * stride, to += PAIR * QUAD_BYTES) {
            if (t % 8 == 0)
                tq_next_line(ahead);
            expand(to, row, stride, byte, at->field, of, bits);
        }
        if (t < n) { /* tokens from n on repeat the last */
            uint8_t copy[4][16];
            for (uint32_t i = 0; i < 4; i++)
                memcpy(copy[i], row + (t + i < n ? i : n - 1 - t) * stride, 16);
            expand(to, copy[0], 16, byte, at->field, of, bits);
        }
    }
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     const numbers *of, const uint32_t bits)
{
    uint8_t x[QUADS * CHUNK * QUAD_BYTES] __attribute__((aligned(64)));
    float scale[MAX_GROUPS * TQ_TILE], bound[TQ_TILE];
    const uint32_t n_groups = v->n_groups, quads = (n + 3) / 4, row_bytes = v->dim / 8 * bits;
    const places at = find_places(bits);
    tq_lines ahead = tq_lines_begin(values);

    tq_avx512_group_scales(scale, values, n, n_groups);
    if (tq_any_negative(scale, n_groups * TQ_TILE)) {
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    for (uint32_t t = 0; t < TQ_TILE; t += 16) { /* as their bits: a NaN is the largest */
        __m512i most = load512(scale + t);
        for (uint32_t g = 1; g < n_groups; g++)
            most = _mm512_max_epu32(most, load512(scale + g * TQ_TILE + t));
        _mm512_storeu_si512(bound + t, most);
    }
    for (uint32_t g = 0; g < n_groups; g += CHUNK) {
        const uint32_t some = n_groups - g < CHUNK ? n_groups - g : CHUNK;
        const uint32_t done = g * (GROUP / 8) * bits;
        expand_chunk(x, values.codes + done, values.codes_stride, row_bytes - done, n, some, &at,
                     of, &ahead, bits);
        for (uint32_t r = 0; r < n_rows; r += TQ_SUM_ROWS) {
            float *dst = acc + r * acc_stride + (size_t)g * GROUP;
#define CALL(n_of_rows)                                                                            \
    chunk_rows(dst, acc_stride, w + r * TQ_TILE, alpha + r, x, quads, scale + g * TQ_TILE, some,   \
               bound, of, &ahead, bits, n_of_rows)
            TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
        }
    }
    tq_last_lines(&ahead);
}

#define LLOYD_KERNEL(bits, unit, mean)                                                             \
    void tq_avx512_weigh_v##bits##_vnni(const tq_codec *v, float *acc, size_t acc_stride,          \
                                        const float *w, const float *alpha, uint32_t n_rows,       \
                                        tq_const_planes values, uint32_t n)                        \
    {                                                                                              \
        const numbers of = make_numbers(numbers_##bits, unit, mean, bits);                         \
        weigh(v, acc, acc_stride, w, alpha, n_rows, values, n, &of, bits);                         \
    }

LLOYD_KERNEL(2, 0.0122536656f, -0.00560728737f)
LLOYD_KERNEL(3, 0.0244348264f, 0)
LLOYD_KERNEL(4, 0.0263324570f, -0.0123001118f)
