/* SPDX-License-Identifier: MIT */
/* avx512_planes_score.c — scores of rows of 64, 128 and 256 elements of norm-codebook and trellis,
 * for AVX-512 with VNNI and VBMI.
 *
 * Levels stay as they come from their planes (avx512_attn_planes.h): 16 elements, a RUN, of four
 * tokens, a token to a lane of 16 bytes. The query comes to meet them: 16 of its integers in all
 * four lanes. Sums then hold four numbers for each token, of elements 4 apart, and those of four
 * queries are added up together: 32 shuffles for the 64 scores of 16 tokens, where turning their
 * levels into lanes of 32 bits takes 64. Levels of 16 tokens, four SETS, meet a query at a time.
 * Rows of 64 have 8 elements in a run: a set is eight tokens, sums hold two numbers for each.
 *
 * Integers of queries are those of avx2_attn_norm.c: int8 for codes of up to 4 bits, whose level
 * bytes are not negative; int16 for others, whose levels are signed and widen to even and odd
 * elements.
 */
#include "cpu/avx512_attn_planes.h"

enum { SETS = 4, ROWS = 4 };

/* Tokens of all sets. */
TQ_INLINE uint32_t step_of(const uint32_t dim)
{
    return SETS * 64 / tq_places_of(dim);
}

/* ---- Preparation ----------------------------------------------------------------------- */

/* Fours of AVX2's order, [dim / 4][rows] of int8, or of int16 (0, 2), (1, 3), become [parts][8
 * runs][rows][places], or [parts][8 runs][even, odd][rows][places / 2]. */
static void put_in_lanes(uint8_t *q, uint32_t rows, uint32_t dim, const int is_small)
{
    const uint32_t halves = is_small ? 1 : 2, places = tq_places_of(dim), parts = tq_parts_of(dim);
    uint8_t from[ROWS * 2 * 256];

    memcpy(from, q, (size_t)halves * rows * dim);
    for (uint32_t four = 0; four < dim / 4; four++)
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t h = 0; h < halves; h++) {
                const uint32_t j = four / (places / 4), run = j % parts * TQ_RUNS + j / parts;
                const uint32_t line = (run * halves + h) * rows + r;
                memcpy(q + line * places + four % (places / 4) * 4,
                       from + ((four * rows + r) * halves + h) * 4, 4);
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
        put_in_lanes(out + sizeof(tq_query_head), rows, k->dim, k->bits <= 4);
        out += tq_query_bytes(rows, k->dim);
        n_rows -= rows < n_rows ? rows : n_rows;
    }
}

/* ---- Levels ---------------------------------------------------------------------------- */

/* dst [parts][8 runs][SETS][64]: set j is tokens j, j + 4, j + 8, j + 12. Rows of 64: sets 0 and 1
 * are tokens 2 j, 2 j + 1, those and 4, 8, 12; sets 2 and 3 the same of the next 16 tokens. */
TQ_INLINE void make_levels(uint8_t *dst, const tq_level_table *t, tq_level_rows row,
                           tq_lines *ahead, const tq_planes_kind kind, const uint32_t dim)
{
    const size_t stride = SETS * row.stride;
    for (uint32_t j = 0; j < SETS; j++, dst += 64) {
        const uint32_t first = dim == 64 ? j / 2 * 16 + j % 2 * 2 : j;
        tq_rows_at rows = tq_find_lanes(row.at + first * row.stride, stride, row.stride, dim);
        uint8_t *to = dst;
        for (uint32_t part = 0; part < tq_parts_of(dim); part++, to += TQ_RUNS * SETS * 64) {
            tq_some_planes some;
            if (part)
                rows = tq_next_part(&rows);
            if (kind != TQ_PLANES_BYTES)
                tq_load_planes(&some, &rows, part, kind, dim);
            TQ_UNROLL_FOR (int r = 0; r < TQ_RUNS; r += 2) {
                __m512i x[2];
                TQ_UNROLL_FOR (int i = 0; i < 2; i++)
                    x[i] = kind == TQ_PLANES_BYTES
                               ? tq_plane_of_rows(&rows, (uint32_t)(r + i), kind, dim)
                               : tq_levels_of_run(&some, t, r + i, kind);
                _mm512_store_si512(to + r * SETS * 64, x[0]);
                tq_next_line(ahead);
                _mm512_store_si512(to + (r + 1) * SETS * 64, x[1]);
            }
        }
    }
}

/* ---- Products -------------------------------------------------------------------------- */

/* Integers of the places of a run in all lanes of 16 bytes, or of 8. */
TQ_INLINE __m512i for_all_tokens(const uint8_t *p, const uint32_t places)
{
    return places == 8 ? _mm512_set1_epi64((long long)tq_load_u64(p))
                       : _mm512_broadcast_i32x4(tq_load128(p));
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

/* Sums of the dwords 0 and 1, 2 and 3 of each lane of 16 bytes of x, then those of y. */
TQ_INLINE __m512i sum_pairs(__m512i x, __m512i y)
{
    const __m512 a = _mm512_castsi512_ps(x), b = _mm512_castsi512_ps(y);
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
}

/* s[r][0 .. 15] of `real` rows from their sums. */
TQ_INLINE void store_scores(float *s, const tq_query_head *head, const __m512i x[ROWS],
                            __m512 scale, const int is_small, uint32_t real)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++) {
        if (r >= real)
            continue;
        const int32_t start = is_small ? head->start[0][r] : 0;
        const __m512 by = _mm512_mul_ps(_mm512_set1_ps(head->scale[r]), scale);
        const __m512i y = _mm512_add_epi32(x[r], _mm512_set1_epi32(start));
        _mm512_storeu_ps(s + r * TQ_TILE, _mm512_mul_ps(_mm512_cvtepi32_ps(y), by));
    }
}

/* The same from the sums of each set and row. */
TQ_INLINE void finish16(float *s, const tq_query_head *head, __m512i sum[SETS][ROWS],
                        const __m512 *scale, const int is_small, uint32_t real)
{
    __m512i x[4];
    TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
        x[j] = sum_lanes(sum[j]);
    tq_turn_dwords(x);
    store_scores(s, head, x, scale[0], is_small, real);
}

/* s[r][0 .. 31] of rows of 64. */
TQ_INLINE void finish32(float *s, const tq_query_head *head, __m512i sum[SETS][ROWS],
                        const __m512 *scale, const int is_small, uint32_t real)
{
    TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j += 2) {
        __m512i x[ROWS];
        TQ_UNROLL_FOR (uint32_t r = 0; r < ROWS; r += 2) {
            const __m512i a = sum_pairs(sum[j][r], sum[j][r + 1]);
            const __m512i b = sum_pairs(sum[j + 1][r], sum[j + 1][r + 1]);
            x[r] = _mm512_unpacklo_epi64(a, b);
            x[r + 1] = _mm512_unpackhi_epi64(a, b);
        }
        store_scores(s + 8 * j, head, x, scale[j / 2], is_small, real);
    }
}

/* s[r][0 .. 15], of rows of 64 [0 .. 31], of `real` of `rows` rows. */
TQ_INLINE void multiply(float *s, const uint8_t *prep, const uint8_t *level, uint32_t runs,
                        const __m512 *scale, tq_lines *ahead, const int is_small,
                        const uint32_t places, const uint32_t rows, uint32_t real)
{
    const tq_query_head *head = (const tq_query_head *)(const void *)prep;
    const uint8_t *q = prep + sizeof *head;
    __m512i sum[SETS][ROWS];

    /* Else gcc loads all levels once for all blocks of rows, and stores them. */
    __asm__("" : "+r"(level));
    TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
        TQ_UNROLL_FOR (uint32_t r = 0; r < ROWS; r++)
            sum[j][r] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < runs; i++, level += SETS * 64) {
        __m512i x[SETS], odd[SETS];
        tq_next_line(ahead);
        if (!is_small)
            tq_next_line(ahead);
        TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
            x[j] = _mm512_load_si512(level + 64 * j);
        if (is_small) {
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++, q += places) {
                const __m512i y = for_all_tokens(q, places);
                TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
                    sum[j][r] = tq_add_dot4(sum[j][r], x[j], y);
            }
            continue;
        }
        TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++) {
            odd[j] = _mm512_srai_epi16(x[j], 8);
            x[j] = _mm512_maddubs_epi16(_mm512_set1_epi16(1), x[j]);
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++, q += places) {
            const __m512i y = for_all_tokens(q, places);
            TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
                sum[j][r] = tq_add_dot2(sum[j][r], x[j], y);
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++, q += places) {
            const __m512i y = for_all_tokens(q, places);
            TQ_UNROLL_FOR (uint32_t j = 0; j < SETS; j++)
                sum[j][r] = tq_add_dot2(sum[j][r], odd[j], y);
        }
    }
    if (places == 8)
        finish32(s, head, sum, scale, is_small, real);
    else
        finish16(s, head, sum, scale, is_small, real);
}

TQ_INLINE void multiply_all(float *s, const uint8_t *prep, uint32_t n_rows, const uint8_t *level,
                            const __m512 *scale, uint32_t dim, tq_lines *ahead, const int is_small,
                            const uint32_t places)
{
    const uint32_t runs = dim / places;
    while (n_rows > 0) {
        const uint32_t rows = tq_query_rows(n_rows), real = rows < n_rows ? rows : n_rows;
        if (rows == 4)
            multiply(s, prep, level, runs, scale, ahead, is_small, places, 4, real);
        else if (rows == 2)
            multiply(s, prep, level, runs, scale, ahead, is_small, places, 2, 2);
        else
            multiply(s, prep, level, runs, scale, ahead, is_small, places, 1, 1);
        prep += tq_query_bytes(rows, dim);
        s += real * TQ_TILE;
        n_rows -= real;
    }
}

void tq_avx512_score_planes(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                            tq_const_planes keys, uint32_t n)
{
    uint8_t level[SETS * TQ_RUNS * 2 * 64] __attribute__((aligned(64)));
    uint8_t room[16 * 256];
    const tq_planes_kind kind = tq_planes_of(k);
    const uint32_t step = step_of(k->dim);
    tq_level_source source;

    if (kind == TQ_NO_PLANES) {
        tq_avx512_score_norm_vnni(k, s, prep, n_rows, keys, n);
        return;
    }
    tq_avx2_level_source(&source, k, k->bits > 4);
    const tq_level_table table = tq_table_of(&source);
    tq_lines ahead = tq_lines_begin(keys);
    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;
        float scale[32] = {0};
        tq_avx512_token_scales(scale, keys.scale, keys.scale_stride, t, m);
        const __m512 scales[2] = {_mm512_loadu_ps(scale), _mm512_loadu_ps(scale + 16)};
#define CALL(of_kind, of_dim)                                                                      \
    make_levels(                                                                                   \
        level, &table,                                                                             \
        tq_some_rows(room, keys.codes, keys.codes_stride, t, n, step_of(of_dim), of_kind, of_dim), \
        &ahead, of_kind, of_dim)
        TQ_CALL_PLANES(kind, k->dim, CALL);
#undef CALL
#define CALL(small, places)                                                                        \
    multiply_all(s + t, prep, n_rows, level, scales, k->dim, &ahead, small, places)
        if (k->bits <= 4 && k->dim == 64)
            CALL(1, 8);
        else if (k->bits <= 4)
            CALL(1, 16);
        else if (k->dim == 64)
            CALL(0, 8);
        else
            CALL(0, 16);
#undef CALL
    }
    tq_last_lines(&ahead);
    if (k->zero_bytes)
        tq_avx2_add_key_means(s, prep, k->dim, n_rows, keys, n);
}
