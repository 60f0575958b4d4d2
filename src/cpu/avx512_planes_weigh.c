/* SPDX-License-Identifier: MIT */
/* avx512_planes_weigh.c — weighted sums of rows of 128 elements of norm-codebook and trellis, for
 * AVX-512 with VNNI and VBMI.
 *
 * vpdpbusd wants four tokens in a dword: planes of four tokens are put in that order while packed,
 * one byte permutation for two or four registers of levels (avx512_attn_planes.h), and a run of 16
 * elements of four tokens, a QUAD, is a register. Levels are int8. Weights of codes of up to 4 bits
 * are bytes; of others 16 bits, high and low byte apart, whose sums meet at the end
 * (avx512_attn_sums.h).
 */
#include "cpu/avx512_attn_planes.h"
#include "cpu/avx512_attn_sums.h"

enum { DIM = TQ_RUNS * TQ_RUN_BYTES, QUADS = TQ_TILE / 4 };

/* ---- Levels ---------------------------------------------------------------------------- */

/* Byte p of the four lanes of 16 bytes becomes dword p. */
static const uint8_t by_place[64] __attribute__((aligned(64))) = {
    0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51, 4,  20, 36, 52, 5,  21,
    37, 53, 6,  22, 38, 54, 7,  23, 39, 55, 8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58,
    11, 27, 43, 59, 12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};

/* dst [QUADS][8 runs][16 places][4 tokens] of n tokens; those from n on repeat the last. */
TQ_INLINE void make_quads(uint8_t *dst, const tq_level_table *t, tq_const_planes rows, uint32_t n,
                          tq_lines *ahead, const tq_planes_kind kind)
{
    const __m512i order = _mm512_load_si512(by_place);
    uint8_t room[4 * DIM];

    for (uint32_t first = 0; first < n; first += 4, dst += TQ_RUNS * 64) {
        const tq_level_rows row =
            tq_rows_of_128(room, rows.codes, rows.codes_stride, first, n, 4, kind);
        const tq_four_at at = tq_find_four(row.at, row.stride);
        tq_four_planes four;
        tq_next_line(ahead);
        if (kind != TQ_PLANES_BYTES) {
            tq_load_four(&four, &at, kind);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                four.n[i] = _mm512_permutexvar_epi8(order, four.n[i]);
            TQ_UNROLL_FOR (uint32_t i = 0; i < tq_upper_of(kind); i++)
                four.up[i] = _mm512_permutexvar_epi8(order, four.up[i]);
        }
        tq_next_line(ahead);
        TQ_UNROLL_FOR (int r = 0; r < TQ_RUNS; r++) {
            __m512i x;
            if (kind == TQ_PLANES_BYTES)
                x = _mm512_permutexvar_epi8(order, tq_plane_of_four(&at, (uint32_t)r));
            else
                x = tq_levels_of_run(&four, t, r, kind);
            _mm512_store_si512(dst + 64 * r, x);
        }
    }
}

/* ---- Sums ------------------------------------------------------------------------------ */

/* acc [128] of up to four rows, byte weights w8 [rows][64]. */
TQ_INLINE void sum_bytes(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                         const float *alpha, const uint8_t *level, uint32_t quads, tq_lines *ahead,
                         const uint32_t rows)
{
    for (uint32_t run = 0; run < TQ_RUNS; run += 4, level += 4 * 64) {
        const uint8_t *x = level, *const end = w8 + (size_t)quads * 4;
        __m512i sum[TQ_SUM_ROWS][4];
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_si512();
        for (const uint8_t *four = w8; four < end; four += 4, x += TQ_RUNS * 64) {
            __m512i y[4];
            tq_next_line(ahead);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                y[i] = _mm512_load_si512(x + 64 * i);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                const __m512i w = _mm512_set1_epi32((int)tq_load_u32(four + r * TQ_TILE));
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                    sum[r][i] = tq_add_dot4(sum[r][i], w, y[i]);
            }
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                tq_add_sums(acc + r * acc_stride + 16 * (run + i), sum[r][i], factor[r], 0,
                            alpha[r]);
    }
}

/* The same with weights in two planes, w8 [2][rows][64]. */
TQ_INLINE void sum_fine(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                        const float *alpha, const uint8_t *level, uint32_t quads, tq_lines *ahead,
                        const uint32_t rows)
{
    const size_t plane = (size_t)TQ_SUM_ROWS * TQ_TILE;
    for (uint32_t run = 0; run < TQ_RUNS; run += 2, level += 2 * 64) {
        const uint8_t *x = level, *const end = w8 + (size_t)quads * 4;
        __m512i sum[TQ_SUM_ROWS][2][2];
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0][0] = sum[r][0][1] = sum[r][1][0] = sum[r][1][1] = _mm512_setzero_si512();
        for (const uint8_t *four = w8; four < end; four += 4, x += TQ_RUNS * 64) {
            const __m512i a = _mm512_load_si512(x), b = _mm512_load_si512(x + 64);
            tq_next_line(ahead);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
                    const uint8_t *at = four + i * plane + r * TQ_TILE;
                    const __m512i w = _mm512_set1_epi32((int)tq_load_u32(at));
                    sum[r][i][0] = tq_add_dot4(sum[r][i][0], w, a);
                    sum[r][i][1] = tq_add_dot4(sum[r][i][1], w, b);
                }
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++)
                tq_add_sums(acc + r * acc_stride + 16 * (run + i),
                            tq_join_bytes(sum[r][0][i], sum[r][1][i]), factor[r], 0, alpha[r]);
    }
}

TQ_INLINE void sum_rows(float *acc, size_t acc_stride, const float *w, const float *alpha,
                        const uint8_t *level, uint32_t quads, const float *scale, float unit,
                        int is_small, tq_lines *ahead, const uint32_t rows)
{
    uint8_t w8[2 * TQ_SUM_ROWS * TQ_TILE] __attribute__((aligned(64)));
    float factor[4];

    if (is_small) {
        tq_round_small(w8, factor, NULL, w, scale, unit, rows);
        sum_bytes(acc, acc_stride, w8, factor, alpha, level, quads, ahead, rows);
    } else {
        tq_round_fine64(w8, factor, w, scale, unit, rows);
        sum_fine(acc, acc_stride, w8, factor, alpha, level, quads, ahead, rows);
    }
}

void tq_avx512_weigh_planes(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                            const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    uint8_t level[QUADS * TQ_RUNS * 64] __attribute__((aligned(64)));
    const tq_planes_kind kind = tq_planes_of(v);
    const uint32_t quads = (n + 3) / 4;
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
#define CALL(of_kind) make_quads(level, &table, values, n, &ahead, of_kind)
    TQ_CALL_KIND(kind, CALL);
#undef CALL
    for (uint32_t r = 0; r < n_rows; r += TQ_SUM_ROWS) {
        float *dst = acc + r * acc_stride;
#define CALL(n_of_rows)                                                                            \
    sum_rows(dst, acc_stride, w + r * TQ_TILE, alpha + r, level, quads, scale, source.unit,        \
             v->bits <= 4, &ahead, n_of_rows)
        TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
    }
    tq_last_lines(&ahead);
    if (v->zero_bytes)
        tq_avx2_add_means(v, acc, acc_stride, w, n_rows, values, n);
}
