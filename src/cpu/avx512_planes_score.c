/* SPDX-License-Identifier: MIT */
/* avx512_planes_score.c — scores of rows of 128 elements of norm-codebook and trellis, for AVX-512
 * with VNNI and VBMI.
 *
 * Levels stay as they come from their planes (avx512_attn_planes.h): 16 elements, a RUN, of four
 * tokens, a token to a lane of 16 bytes. The query comes to meet them: 16 of its integers in all
 * four lanes. Sums then hold four numbers for each token, of elements 4 apart, and those of four
 * queries are added up together: 32 shuffles for the 64 scores of 16 tokens, where turning their
 * levels into lanes of 32 bits takes 64. Levels of 16 tokens, four SETS, meet a query at a time.
 *
 * Integers of queries are those of avx2_attn_norm.c: int8 for codes of up to 4 bits, whose level
 * bytes are not negative; int16 for others, whose levels are signed and widen to even and odd
 * elements.
 */
#include "cpu/avx512_attn_planes.h"

enum { SETS = 4, SET_TOKENS = 4, STEP = SETS * SET_TOKENS, ROWS = 4, RUN = TQ_RUN_BYTES };

/* ---- Preparation ----------------------------------------------------------------------- */

/* Fours of AVX2's order, [32][rows] of int8, or of int16 (0, 2), (1, 3), become [8 runs][rows][16],
 * or [8 runs][even, odd][rows][8]. */
static void put_in_lanes(uint8_t *q, uint32_t rows, const int is_small)
{
    const uint32_t halves = is_small ? 1 : 2;
    uint8_t from[ROWS * 2 * TQ_RUNS * RUN];

    memcpy(from, q, (size_t)halves * rows * TQ_RUNS * RUN);
    for (uint32_t four = 0; four < TQ_RUNS * RUN / 4; four++)
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t h = 0; h < halves; h++) {
                const uint32_t line = (four / 4 * halves + h) * rows + r;
                memcpy(q + line * RUN + four % 4 * 4, from + ((four * rows + r) * halves + h) * 4,
                       4);
            }
}

void tq_avx512_prep_planes(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    uint8_t *out = prep;

    tq_avx2_prep_norm(k, prep, q, n_rows);
    if (tq_planes_of(k) == TQ_NO_PLANES)
        return;
    while (n_rows > 0) {
        const uint32_t rows = tq_query_rows(n_rows);
        put_in_lanes(out + sizeof(tq_query_head), rows, k->bits <= 4);
        out += tq_query_bytes(rows, k->dim);
        n_rows -= rows < n_rows ? rows : n_rows;
    }
}

/* ---- Levels ---------------------------------------------------------------------------- */

/* dst [8 runs][SETS][64]: set j is tokens j, j + 4, j + 8, j + 12. */
TQ_INLINE void make_levels(uint8_t *dst, const tq_level_table *t, tq_level_rows row,
                           tq_lines *ahead, const tq_planes_kind kind)
{
    const size_t stride = SETS * row.stride;
    for (uint32_t j = 0; j < SETS; j++, dst += 64) {
        const tq_four_at rows = tq_find_four(row.at + j * row.stride, stride);
        tq_four_planes four;
        if (kind != TQ_PLANES_BYTES)
            tq_load_four(&four, &rows, kind);
        TQ_UNROLL_FOR (int r = 0; r < TQ_RUNS; r++) {
            const __m512i x = kind == TQ_PLANES_BYTES ? tq_plane_of_four(&rows, (uint32_t)r)
                                                      : tq_levels_of_run(&four, t, r, kind);
            _mm512_store_si512(dst + r * SETS * 64, x);
            if (r % 2 == 0)
                tq_next_line(ahead);
        }
    }
}

/* ---- Products -------------------------------------------------------------------------- */

TQ_INLINE __m512i in_all_lanes(const uint8_t *p)
{
    return _mm512_broadcast_i32x4(tq_load128(p));
}

/* In each lane of 16 bytes the sums of the dwords of x[0 .. 3]. */
TQ_INLINE __m512i sum_lanes(const __m512i x[4])
{
    const __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* s[r][0 .. 15] of `real` rows from the sums of each set and row. */
TQ_INLINE void finish(float *s, const tq_query_head *head, __m512i sum[SETS][ROWS], __m512 scale,
                      const int is_small, uint32_t real)
{
    __m512i x[4];
    TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
        x[j] = sum_lanes(sum[j]);
    tq_turn_dwords(x);
    TQ_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++) {
        if (r >= real)
            continue;
        const int32_t start = is_small ? head->start[0][r] : 0;
        const __m512 by = _mm512_mul_ps(_mm512_set1_ps(head->scale[r]), scale);
        const __m512i y = _mm512_add_epi32(x[r], _mm512_set1_epi32(start));
        _mm512_storeu_ps(s + r * TQ_TILE, _mm512_mul_ps(_mm512_cvtepi32_ps(y), by));
    }
}

/* s[r][0 .. 15] of `real` of `rows` rows. */
TQ_INLINE void multiply(float *s, const uint8_t *prep, const uint8_t *level, __m512 scale,
                        tq_lines *ahead, const int is_small, const uint32_t rows, uint32_t real)
{
    const tq_query_head *head = (const tq_query_head *)(const void *)prep;
    const uint8_t *q = prep + sizeof *head;
    __m512i sum[SETS][ROWS];

    /* Else gcc loads all levels once for all blocks of rows, and stores them. */
    __asm__("" : "+r"(level));
    TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
        TQ_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++)
            sum[j][r] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < TQ_RUNS; i++, level += SETS * 64) {
        __m512i x[SETS], odd[SETS];
        tq_next_line(ahead);
        if (!is_small)
            tq_next_line(ahead);
        TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
            x[j] = _mm512_load_si512(level + 64 * j);
        if (is_small) {
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++, q += RUN) {
                const __m512i y = in_all_lanes(q);
                TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
                    sum[j][r] = tq_add_dot4(sum[j][r], x[j], y);
            }
            continue;
        }
        TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++) {
            odd[j] = _mm512_srai_epi16(x[j], 8);
            x[j] = _mm512_maddubs_epi16(_mm512_set1_epi16(1), x[j]);
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++, q += RUN) {
            const __m512i y = in_all_lanes(q);
            TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
                sum[j][r] = tq_add_dot2(sum[j][r], x[j], y);
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++, q += RUN) {
            const __m512i y = in_all_lanes(q);
            TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
                sum[j][r] = tq_add_dot2(sum[j][r], odd[j], y);
        }
    }
    finish(s, head, sum, scale, is_small, real);
}

TQ_INLINE void multiply_all(float *s, const uint8_t *prep, uint32_t n_rows, const uint8_t *level,
                            __m512 scale, uint32_t dim, tq_lines *ahead, const int is_small)
{
    while (n_rows > 0) {
        const uint32_t rows = tq_query_rows(n_rows), real = rows < n_rows ? rows : n_rows;
        if (rows == 4)
            multiply(s, prep, level, scale, ahead, is_small, 4, real);
        else if (rows == 2)
            multiply(s, prep, level, scale, ahead, is_small, 2, 2);
        else
            multiply(s, prep, level, scale, ahead, is_small, 1, 1);
        prep += tq_query_bytes(rows, dim);
        s += real * TQ_TILE;
        n_rows -= real;
    }
}

void tq_avx512_score_planes(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                            tq_const_planes keys, uint32_t n)
{
    uint8_t level[STEP * TQ_RUNS * RUN] __attribute__((aligned(64)));
    uint8_t room[STEP * TQ_RUNS * RUN];
    const tq_planes_kind kind = tq_planes_of(k);
    tq_level_source source;

    if (kind == TQ_NO_PLANES) {
        tq_avx512_score_norm_vnni(k, s, prep, n_rows, keys, n);
        return;
    }
    tq_avx2_level_source(&source, k, k->bits > 4);
    const tq_level_table table = tq_table_of(&source);
    tq_lines ahead = tq_lines_begin(keys);
    for (uint32_t t = 0; t < n; t += STEP) {
        float scale[STEP] = {0};
        tq_avx512_token_scales(scale, keys.scale, keys.scale_stride, t,
                               n - t < STEP ? n - t : STEP);
        const __m512 scale16 = _mm512_loadu_ps(scale);
#define CALL(of_kind)                                                                              \
    make_levels(level, &table,                                                                     \
                tq_rows_of_128(room, keys.codes, keys.codes_stride, t, n, STEP, of_kind), &ahead,  \
                of_kind)
        TQ_CALL_KIND(kind, CALL);
#undef CALL
        if (k->bits <= 4)
            multiply_all(s + t, prep, n_rows, level, scale16, k->dim, &ahead, 1);
        else
            multiply_all(s + t, prep, n_rows, level, scale16, k->dim, &ahead, 0);
    }
    tq_last_lines(&ahead);
    if (k->zero_bytes)
        tq_avx2_add_key_means(s, prep, k->dim, n_rows, keys, n);
}
