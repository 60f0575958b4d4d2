/* SPDX-License-Identifier: MIT */
/* avx512_attn_bytes.c — weighted sums of Lloyd values of 2 and 3 bits in bytes, for AVX-512 with
 * VNNI and VBMI.
 *
 * 128 elements are four groups, one to each lane of 16 bytes. A token becomes 64 bytes of two codes
 * each, four tokens are interleaved while their codes are still packed, and a byte permutation then
 * looks up the numbers that stand for the first or the second codes: it sees six bits of a byte, so
 * no code is masked. This is done once for all rows. avx512_attn_sums.h multiplies; lanes of a
 * weight register hold the weights of four tokens by the scales of the four groups.
 */
#include "cpu/avx512_attn_sums.h"

enum {
    GROUP = 32,
    LANES = 4,
    CHUNK = LANES * GROUP,
    MAX_GROUPS = 512 / GROUP,
    QUADS = TQ_TILE / 4,
    QUAD_BYTES = 4 * CHUNK,
    PAIR = 2 /* rows that are summed together */
};

/* Numbers of the first and of the second code of a byte, by its six low bits. */
typedef struct numbers {
    __m512i first, second;
    float unit, mean; /* a number stands for unit * that + mean */
} numbers;

/* Centroids (format.md 7.4) are a unit times these plus a mean. Of all such numbers those whose
 * rounding has the least square on normal values: 1.2e-5 and 3.3e-5 of the square of the
 * format's own error. Least squares keep gain and mean, whose errors do not average out over many
 * tokens. Codes of fewer bits repeat. */
static const int8_t numbers_2[16] = {-123, -37, 37, 124, -123, -37, 37, 124,
                                     -123, -37, 37, 124, -123, -37, 37, 124};
static const int8_t numbers_3[16] = {-88, -55, -31, -10, 10, 31, 55, 88,
                                     -88, -55, -31, -10, 10, 31, 55, 88};
TQ_INLINE __m512i load512(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* Byte i: a * (i / 8) + min(b * (i % 8), most). */
TQ_INLINE __m512i steps_of(const int a, const int b, const int most)
{
    uint8_t x[64];
    TQ_UNROLL_FOR (int i = 0; i < 8; i++)
        TQ_UNROLL_FOR (int j = 0; j < 8; j++)
            x[8 * i + j] = (uint8_t)(a * i + (b * j < most ? b * j : most));
    return load512(x);
}

TQ_INLINE numbers make_numbers(const int8_t *by_code, float unit, float mean, const uint32_t bits)
{
    numbers of;
    of.first = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)by_code));
    /* What a neighbour shifts into a byte is above its code, or above six bits. */
    const __m512i all = steps_of(8, 1, 8);
    const __m512i last = bits == 2 ? _mm512_srli_epi16(all, 2) : _mm512_srli_epi16(all, 3);
    of.second = _mm512_permutexvar_epi8(last, of.first);
    of.unit = unit;
    of.mean = mean;
    return of;
}

/* Byte i: codes 2i and 2i + 1 of the row, in its low bits. Of two groups the last lanes are junk.
 */
TQ_INLINE __m512i code_pairs(const uint8_t *row, __mmask64 bytes, const uint32_t bits)
{
    const __m512i x = _mm512_maskz_loadu_epi8(bytes, row);
    /* The bytes of 16 codes to a qword, then fields of it. */
    const int n = (int)bits * 2;
    const __m512i spread = _mm512_permutexvar_epi8(steps_of(n, 1, n - 1), x);
    return _mm512_multishift_epi64_epi8(steps_of(0, n, 64), spread);
}

/* Numbers of four tokens: dst [4][2][64], a lane of [i] has elements 8i .. 8i + 7 of its group, the
 * even ones first. */
TQ_INLINE void expand(uint8_t *dst, const uint8_t *const row[4], __mmask64 bytes, const numbers *of,
                      const uint32_t bits)
{
    const __m512i r0 = code_pairs(row[0], bytes, bits), r1 = code_pairs(row[1], bytes, bits);
    const __m512i r2 = code_pairs(row[2], bytes, bits), r3 = code_pairs(row[3], bytes, bits);
    const __m512i x = _mm512_unpacklo_epi8(r0, r1), y = _mm512_unpacklo_epi8(r2, r3);
    const __m512i z = _mm512_unpackhi_epi8(r0, r1), w = _mm512_unpackhi_epi8(r2, r3);
    const __m512i four[4] = {_mm512_unpacklo_epi16(x, y), _mm512_unpackhi_epi16(x, y),
                             _mm512_unpacklo_epi16(z, w), _mm512_unpackhi_epi16(z, w)};
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        _mm512_store_si512(dst + 128 * i, _mm512_permutexvar_epi8(four[i], of->first));
        _mm512_store_si512(dst + 128 * i + 64, _mm512_permutexvar_epi8(four[i], of->second));
    }
}

/* w8 [QUADS][4 groups][4]: bytes of the weights of a row times scale [n_groups][64]. Returns their
 * sums by group. */
TQ_INLINE __m128i round_weights(uint8_t *w8, const float *w, const float *scale, uint32_t n_groups,
                                float up)
{
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i x[LANES];
    TQ_UNROLL_FOR (uint32_t g = 0; g < LANES; g++)
        x[g] = g < n_groups ? tq_round_bytes64(w, scale + g * TQ_TILE, up) : _mm512_setzero_si512();
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpacklo_epi32(x[2], x[3]);
    const __m512i c = _mm512_unpackhi_epi32(x[0], x[1]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    const __m512i quad[4] = {_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b),
                             _mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d)};
    __m512i sum = _mm512_setzero_si512();
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        _mm512_store_si512(w8 + 64 * i, quad[i]);
        sum = tq_dot4(sum, quad[i], ones);
    }
    const __m256i half =
        _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* sum: in the order of expand. */
TQ_INLINE void finish(float *acc, const __m512i sum[8], uint32_t n_groups, const float *factor,
                      const float *base, float alpha)
{
    TQ_UNROLL_FOR (uint32_t half = 0; half < 2; half++) {
        const __m512i *s = sum + 4 * half;
        __m512i x[LANES] = {_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]),
                            _mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3])};
        tq_turn_lanes(x);
        TQ_UNROLL_FOR (uint32_t g = 0; g < LANES; g++)
            if (g < n_groups)
                tq_add_sums(acc + g * GROUP + 16 * half, x[g], factor[g], base[g], alpha);
    }
}

/* `rows` rows, at most PAIR. w8 [rows][QUADS][16], factor and base [rows][4]; x: expanded quads. */
TQ_INLINE void sum_rows(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                        const float *base, const float *alpha, const uint8_t *x, uint32_t quads,
                        uint32_t n_groups, tq_walk *ahead, const uint32_t rows)
{
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m512i sum[PAIR][8];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < 8; i++)
            sum[r][i] = _mm512_setzero_si512();
    for (uint32_t q = 0; q < quads; q++, x += QUAD_BYTES) {
        __m512i w[PAIR];
        if (q % 2 == 0)
            tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const uint8_t *p = w8 + (r * QUADS + q) * 16;
            const __m128i four = _mm_load_si128((const __m128i *)(const void *)p);
            w[r] = _mm512_permutexvar_epi32(lane, _mm512_castsi128_si512(four));
        }
        TQ_UNROLL_FOR (uint32_t i = 0; i < 8; i++) {
            const __m512i y = _mm512_load_si512(x + 64 * i);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                sum[r][i] = tq_dot4(sum[r][i], w[r], y);
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        finish(acc + r * acc_stride, sum[r], n_groups, factor + LANES * r, base + LANES * r,
               alpha[r]);
}

/* Up to four rows. scale [n_groups][64] of the chunk, bound [64] the largest of all groups. */
TQ_INLINE void chunk_rows(float *acc, size_t acc_stride, const float *w, const float *alpha,
                          const uint8_t *x, uint32_t quads, const float *scale, uint32_t n_groups,
                          const float *bound, const numbers *of, tq_walk *ahead,
                          const uint32_t rows)
{
    uint8_t w8[TQ_SUM_ROWS * QUADS * 16] __attribute__((aligned(64)));
    float down[4], factor[TQ_SUM_ROWS * LANES] = {0}, base[TQ_SUM_ROWS * LANES] = {0};
    tq_weight_steps by;

    tq_find_steps(&by, w, bound, TQ_WEIGHT_TOP, rows);
    _mm_storeu_ps(down, by.down);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        int32_t sum8[LANES];
        const __m128i all =
            round_weights(w8 + r * QUADS * 16, w + r * TQ_TILE, scale, n_groups, by.up[r]);
        _mm_storeu_si128((__m128i *)(void *)sum8, all);
        /* A row's weights keep their sum in each group, see tq_round_bytes. */
        for (uint32_t g = 0; g < n_groups; g++) {
            const float sum = tq_dot_tile(w + r * TQ_TILE, scale + g * TQ_TILE);
            const float step = down[r] > 0 && sum8[g] > 0 ? sum / (float)sum8[g] : 0;
            factor[LANES * r + g] = down[r] >= 0 ? of->unit * step : NAN;
            base[LANES * r + g] = of->mean * sum;
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r += PAIR)
        sum_rows(acc + r * acc_stride, acc_stride, w8 + r * QUADS * 16, factor + LANES * r,
                 base + LANES * r, alpha + r, x, quads, n_groups, ahead,
                 rows - r < PAIR ? rows - r : PAIR);
}

TQ_INLINE void weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                     const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                     const numbers *of, const uint32_t bits)
{
    uint8_t x[QUADS * QUAD_BYTES] __attribute__((aligned(64)));
    float scale[MAX_GROUPS * TQ_TILE], bound[TQ_TILE];
    const uint32_t n_groups = v->n_groups, quads = (n + 3) / 4, pairs = n_rows > PAIR ? 2 : 1;
    const uint32_t n_chunks = (n_groups + LANES - 1) / LANES;
    tq_walk ahead = tq_walk_begin(values, n_chunks * (quads + pairs * ((quads + 1) / 2)));

    for (uint32_t g = 0; g < n_groups; g += LANES)
        for (uint32_t t = 0; t < TQ_TILE; t += 16) {
            const uint32_t from = t < n ? t : n - 1;
            tq_transpose16_f16(scale + g * TQ_TILE + t, TQ_TILE,
                               values.scale + from * values.scale_stride + 2 * g,
                               values.scale_stride, n - from, n_groups - g);
        }
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
    for (uint32_t g = 0; g < n_groups; g += LANES) {
        const uint32_t some = n_groups - g < LANES ? n_groups - g : LANES;
        const __mmask64 bytes = UINT64_MAX >> (64 - some * GROUP / 8 * bits);
        const uint8_t *codes = values.codes + (size_t)g * (GROUP / 8) * bits;
        for (uint32_t q = 0; q < quads; q++) {
            const uint8_t *row[4];
            tq_walk_on(&ahead);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                const uint32_t t = 4 * q + i < n ? 4 * q + i : n - 1;
                row[i] = codes + t * values.codes_stride;
            }
            expand(x + q * QUAD_BYTES, row, bytes, of, bits);
        }
        for (uint32_t r = 0; r < n_rows; r += TQ_SUM_ROWS) {
            float *dst = acc + r * acc_stride + (size_t)g * GROUP;
#define CALL(n_of_rows)                                                                            \
    chunk_rows(dst, acc_stride, w + r * TQ_TILE, alpha + r, x, quads, scale + g * TQ_TILE, some,   \
               bound, of, &ahead, n_of_rows)
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
