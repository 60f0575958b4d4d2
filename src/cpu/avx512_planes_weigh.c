/* SPDX-License-Identifier: MIT */
/* avx512_planes_weigh.c — weighted sums of rows of 64, 128 and 256 elements of norm-codebook and
 * trellis, for AVX-512 with VNNI and VBMI.
 *
 * vpdpbusd wants four tokens in a dword: planes of four tokens are put in that order while packed,
 * one byte permutation for two or four registers of levels (avx512_attn_planes.h), and a run of 16
 * elements of four tokens, a QUAD, is a register. Rows of 64 have 8 elements in a run: a register
 * is two quads, and two sums for each element, which meet at the end. Levels are int8. Weights of
 * codes of up to 4 bits are bytes; of others 16 bits, high and low byte apart, whose sums meet at
 * the end (avx512_attn_sums.h).
 */
#include "cpu/avx512_attn_planes.h"
#include "cpu/avx512_attn_sums.h"

/* Tokens of a register. */
TQ_INLINE uint32_t tokens_of(const uint32_t places)
{
    return 64 / places;
}

/* ---- Levels ---------------------------------------------------------------------------- */

/* Byte p of the four lanes of 16 bytes becomes dword p. */
static const uint8_t by_place[64] __attribute__((aligned(64))) = {
    0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51, 4,  20, 36, 52, 5,  21,
    37, 53, 6,  22, 38, 54, 7,  23, 39, 55, 8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58,
    11, 27, 43, 59, 12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};

/* Byte p of the eight quarters of lanes becomes quadword p. */
static const uint8_t by_place8[64] __attribute__((aligned(64))) = {
    0,  8,  16, 24, 32, 40, 48, 56, 1,  9,  17, 25, 33, 41, 49, 57, 2,  10, 18, 26, 34, 42,
    50, 58, 3,  11, 19, 27, 35, 43, 51, 59, 4,  12, 20, 28, 36, 44, 52, 60, 5,  13, 21, 29,
    37, 45, 53, 61, 6,  14, 22, 30, 38, 46, 54, 62, 7,  15, 23, 31, 39, 47, 55, 63};

/* dst [n / 4][parts][8 runs][16 places][4 tokens] of n tokens, of rows of 64 [n / 8][8 runs][8
 * places][8 tokens]; those from n on repeat the last. */
TQ_INLINE void make_quads(uint8_t *dst, const tq_level_table *t, tq_const_planes rows, uint32_t n,
                          tq_lines *ahead, const tq_planes_kind kind, const uint32_t dim)
{
    const uint32_t tokens = tokens_of(tq_places_of(dim)), pair = tokens / 4;
    const __m512i order = _mm512_load_si512(dim == 64 ? by_place8 : by_place);
    uint8_t room[4 * 256];

    for (uint32_t first = 0; first < n; first += tokens) {
        const tq_level_rows row =
            tq_some_rows(room, rows.codes, rows.codes_stride, first, n, tokens, kind, dim);
        tq_rows_at at = tq_find_lanes(row.at, pair * row.stride, row.stride, dim);
        for (uint32_t part = 0; part < tq_parts_of(dim); part++, dst += TQ_RUNS * 64) {
            tq_some_planes some;
            if (part)
                at = tq_next_part(&at);
            tq_next_line(ahead);
            if (kind != TQ_PLANES_BYTES) {
                tq_load_planes(&some, &at, part, kind, dim);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                    some.n[i] = _mm512_permutexvar_epi8(order, some.n[i]);
                TQ_UNROLL_FOR (uint32_t i = 0; i < tq_upper_of(kind); i++)
                    some.up[i] = _mm512_permutexvar_epi8(order, some.up[i]);
            }
            tq_next_line(ahead);
            TQ_UNROLL_FOR (int r = 0; r < TQ_RUNS; r += 2) {
                __m512i x[2];
                TQ_UNROLL_FOR (int i = 0; i < 2; i++) {
                    if (kind == TQ_PLANES_BYTES)
                        x[i] = _mm512_permutexvar_epi8(
                            order, tq_plane_of_rows(&at, (uint32_t)(r + i), kind, dim));
                    else
                        x[i] = tq_levels_of_run(&some, t, r + i, kind);
                }
                _mm512_store_si512(dst + 64 * r, x[0]);
                _mm512_store_si512(dst + 64 * (r + 1), x[1]);
            }
        }
    }
}

/* ---- Sums ------------------------------------------------------------------------------ */

/* Weights of the tokens of a register, for each of its elements. */
TQ_INLINE __m512i weights_at(const uint8_t *w8, const uint32_t places)
{
    return places == 8 ? _mm512_set1_epi64((long long)tq_load_u64(w8))
                       : _mm512_set1_epi32((int)tq_load_u32(w8));
}

/* Sums of n registers of runs, two or four, to acc, that of run 0. */
TQ_INLINE void add_runs(float *acc, const __m512i *sum, uint32_t run, float factor, float alpha,
                        uint32_t parts, const uint32_t places, const uint32_t n)
{
    if (places == 16) {
        acc += 16 * (run % TQ_RUNS * parts + run / TQ_RUNS);
        TQ_UNROLL_FOR (uint32_t i = 0; i < n; i++)
            tq_add_sums(acc + (size_t)16 * parts * i, sum[i], factor, 0, alpha);
        return;
    }
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    TQ_UNROLL_FOR (uint32_t i = 0; i < n; i += 2) {
        const __m512i x = _mm512_permutex2var_epi32(sum[i], even, sum[i + 1]);
        const __m512i y = _mm512_permutex2var_epi32(sum[i], odd, sum[i + 1]);
        tq_add_sums(acc + 8 * (run + i), _mm512_add_epi32(x, y), factor, 0, alpha);
    }
}

/* What is summed: registers of levels [steps][parts][8 runs]. */
typedef struct levels {
    const uint8_t *level;
    uint32_t steps, parts;
} levels;

/* acc of up to four rows, byte weights w8 [rows][64]. */
TQ_INLINE void sum_bytes(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                         const float *alpha, levels of, tq_lines *ahead, const uint32_t places,
                         const uint32_t rows)
{
    const uint32_t tokens = tokens_of(places), parts = places == 8 ? 1 : of.parts;
    const uint8_t *const end = w8 + (size_t)of.steps * tokens, *level = of.level;
    for (uint32_t run = 0; run < parts * TQ_RUNS; run += 4, level += 4 * 64) {
        const uint8_t *x = level;
        __m512i sum[TQ_SUM_ROWS][4];
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_si512();
        for (const uint8_t *some = w8; some < end; some += tokens, x += parts * TQ_RUNS * 64) {
            __m512i y[4];
            tq_next_line(ahead);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                y[i] = _mm512_load_si512(x + 64 * i);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                const __m512i w = weights_at(some + r * TQ_TILE, places);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                    sum[r][i] = tq_add_dot4(sum[r][i], w, y[i]);
            }
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            add_runs(acc + r * acc_stride, sum[r], run, factor[r], alpha[r], parts, places, 4);
    }
}

/* The same with weights in two planes, w8 [2][rows][64]. */
TQ_INLINE void sum_fine(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                        const float *alpha, levels of, tq_lines *ahead, const uint32_t places,
                        const uint32_t rows)
{
    const size_t plane = (size_t)TQ_SUM_ROWS * TQ_TILE;
    const uint32_t tokens = tokens_of(places), parts = places == 8 ? 1 : of.parts;
    const uint8_t *const end = w8 + (size_t)of.steps * tokens, *level = of.level;
    for (uint32_t run = 0; run < parts * TQ_RUNS; run += 2, level += 2 * 64) {
        const uint8_t *x = level;
        __m512i sum[TQ_SUM_ROWS][2][2];
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0][0] = sum[r][0][1] = sum[r][1][0] = sum[r][1][1] = _mm512_setzero_si512();
        for (const uint8_t *some = w8; some < end; some += tokens, x += parts * TQ_RUNS * 64) {
            const __m512i a = _mm512_load_si512(x), b = _mm512_load_si512(x + 64);
            tq_next_line(ahead);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
                    const __m512i w = weights_at(some + i * plane + r * TQ_TILE, places);
                    sum[r][i][0] = tq_add_dot4(sum[r][i][0], w, a);
                    sum[r][i][1] = tq_add_dot4(sum[r][i][1], w, b);
                }
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const __m512i both[2] = {tq_join_bytes(sum[r][0][0], sum[r][1][0]),
                                     tq_join_bytes(sum[r][0][1], sum[r][1][1])};
            add_runs(acc + r * acc_stride, both, run, factor[r], alpha[r], parts, places, 2);
        }
    }
}

TQ_INLINE void sum_rows(float *acc, size_t acc_stride, const float *w, const float *alpha,
                        levels of, const float *scale, float unit, int is_small, tq_lines *ahead,
                        const uint32_t places, const uint32_t rows)
{
    uint8_t w8[2 * TQ_SUM_ROWS * TQ_TILE] __attribute__((aligned(64)));
    float factor[4];

    if (is_small) {
        tq_round_small(w8, factor, NULL, w, scale, unit, rows);
        sum_bytes(acc, acc_stride, w8, factor, alpha, of, ahead, places, rows);
    } else {
        tq_round_fine64(w8, factor, w, scale, unit, rows);
        sum_fine(acc, acc_stride, w8, factor, alpha, of, ahead, places, rows);
    }
}

void tq_avx512_weigh_planes(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                            const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    uint8_t level[TQ_TILE * 256] __attribute__((aligned(64)));
    const tq_planes_kind kind = tq_planes_of(v);
    const uint32_t tokens = tokens_of(tq_places_of(v->dim));
    const levels of = {level, (n + tokens - 1) / tokens, tq_parts_of(v->dim)};
    float scale[TQ_TILE] = {0};
    tq_level_source source;

    if (kind == TQ_NO_PLANES) {
        tq_avx512_weigh_norm_vnni(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    tq_avx512_token_scales(scale, values.scale, values.scale_stride, 0, n);
    if (tq_any_negative(scale, TQ_TILE)) {
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    tq_avx2_level_source(&source, v, 1);
    const tq_level_table table = tq_table_of(&source);
    tq_lines ahead = tq_lines_begin(values);
#define CALL(of_kind, of_dim) make_quads(level, &table, values, n, &ahead, of_kind, of_dim)
    TQ_CALL_PLANES(kind, v->dim, CALL);
#undef CALL
    for (uint32_t r = 0; r < n_rows; r += TQ_SUM_ROWS) {
        float *dst = acc + r * acc_stride;
#define CALL_PLACES(places, n_of_rows)                                                             \
    sum_rows(dst, acc_stride, w + r * TQ_TILE, alpha + r, of, scale, source.unit, v->bits <= 4,    \
             &ahead, places, n_of_rows)
#define CALL8(n_of_rows)  CALL_PLACES(8, n_of_rows)
#define CALL16(n_of_rows) CALL_PLACES(16, n_of_rows)
        if (v->dim == 64)
            TQ_CALL_ROWS(n_rows - r, CALL8);
        else
            TQ_CALL_ROWS(n_rows - r, CALL16);
#undef CALL16
#undef CALL8
#undef CALL_PLACES
    }
    tq_last_lines(&ahead);
    if (v->zero_bytes)
        tq_avx2_add_means(v, acc, acc_stride, w, n_rows, values, n);
}
