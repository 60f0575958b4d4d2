/* SPDX-License-Identifier: MIT */
/* avx512_attn_levels.c — scores and weighted sums on the integer levels of norm-codebook and
 * trellis, for AVX-512. Orders and preparation are AVX2's (avx2_levels.h): 64 level bytes are 16
 * tokens of four elements, or 16 elements of four tokens. Products of two, and their sum with VNNI,
 * are one instruction. Levels of up to 4 bits meet byte weights (avx512_attn_sums.h): of those four
 * are. With VNNI and VBMI rows of 64, 128 and 256 are attended by avx512_planes_score.c and
 * avx512_planes_weigh.c.
 *
 * That instruction has a latency of five, so each row sums in four registers.
 */
#include "cpu/avx2_levels.h"
#include "cpu/avx512_attn.h"
#include "cpu/avx512_attn_sums.h"

/* sum += level bytes x times four int16 at p, in the order in which they widen. */
TQ_INLINE void multiply(__m512i sum[2], __m512i even, __m512i odd, const void *p)
{
    const uint8_t *q = p;
    sum[0] = tq_dot2_at(sum[0], even, q);
    sum[1] = tq_dot2_at(sum[1], odd, q + 4);
}

/* ---- Keys ------------------------------------------------------------------------------ */

/* s[r][0 .. 15] of `real` of `rows` rows = the sums times their scales, or that added. */
TQ_INLINE void finish_scores(float *s, const tq_query_head *head, __m512i sum[4][4], __m512 scale,
                             int add, const uint32_t rows, uint32_t real)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        if (r >= real)
            continue;
        const __m512i a = _mm512_add_epi32(sum[r][0], sum[r][1]);
        const __m512i b = _mm512_add_epi32(sum[r][2], sum[r][3]);
        const __m512 by = _mm512_mul_ps(_mm512_set1_ps(head->scale[r]), scale);
        __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(a, b)), by);
        if (add)
            f = _mm512_add_ps(f, _mm512_loadu_ps(s + r * TQ_TILE));
        _mm512_storeu_ps(s + r * TQ_TILE, f);
    }
}

/* s[r][0 .. 15] of `real` of `rows` rows. level: turned; scale: of the tokens. */
TQ_INLINE void score_block(float *s, const uint8_t *prep, const uint8_t *level, uint32_t width,
                           __m512 scale, const uint32_t rows, uint32_t real)
{
    const tq_query_head *head = (const tq_query_head *)(const void *)prep;
    const uint8_t *q = prep + sizeof *head;
    const __m512i low = _mm512_set1_epi16(255);

    for (uint32_t part = 0; part * TQ_QUERY_PART < width; part++) {
        const uint32_t left = width - part * TQ_QUERY_PART;
        const uint32_t n = left < TQ_QUERY_PART ? left : TQ_QUERY_PART;
        __m512i sum[4][4];
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            sum[r][0] = _mm512_set1_epi32(head->start[part][r]);
            sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_si512();
        }
        for (uint32_t j = 0; j < n; j += 8, level += 128, q += 16 * rows) {
            const __m512i x = _mm512_load_si512(level), y = _mm512_load_si512(level + 64);
            const __m512i xe = _mm512_and_si512(x, low), xo = _mm512_srli_epi16(x, 8);
            const __m512i ye = _mm512_and_si512(y, low), yo = _mm512_srli_epi16(y, 8);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                multiply(sum[r], xe, xo, q + 8 * r);
                multiply(sum[r] + 2, ye, yo, q + 8 * (rows + r));
            }
        }
        finish_scores(s, head, sum, scale, part > 0, rows, real);
    }
}

/* sum += products of four elements each: small level bytes x and y with the int8 at p and q.
 * Without VNNI int16 holds them, see round_query8 in avx2_attn_norm.c. */
TQ_INLINE void multiply_small(__m512i sum[2], __m512i x, const uint8_t *p, __m512i y,
                              const uint8_t *q)
{
#if TQ_HAVE_VNNI
    sum[0] = tq_add_dot4_at(sum[0], x, p);
    sum[1] = tq_add_dot4_at(sum[1], y, q);
#else
    const __m512i a = _mm512_set1_epi32((int)tq_load_u32(p));
    const __m512i b = _mm512_set1_epi32((int)tq_load_u32(q));
    const __m512i m = _mm512_add_epi16(_mm512_maddubs_epi16(x, a), _mm512_maddubs_epi16(y, b));
    sum[0] = _mm512_add_epi32(sum[0], _mm512_madd_epi16(m, _mm512_set1_epi16(1)));
#endif
}

/* As score_block, for small level bytes. */
TQ_INLINE void score_small(float *s, const uint8_t *prep, const uint8_t *level, uint32_t width,
                           __m512 scale, const uint32_t rows, uint32_t real)
{
    const tq_query_head *head = (const tq_query_head *)(const void *)prep;
    const uint8_t *q = prep + sizeof *head;
    __m512i sum[4][4];

    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        sum[r][0] = _mm512_set1_epi32(head->start[0][r]);
        sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_si512();
    }
    for (uint32_t j = 0; j < width; j += 16, level += 256, q += 16 * rows) {
        __m512i x[4];
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            x[i] = _mm512_load_si512(level + 64 * i);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            multiply_small(sum[r], x[0], q + 4 * r, x[1], q + 4 * (rows + r));
            multiply_small(sum[r] + 2, x[2], q + 4 * (2 * rows + r), x[3], q + 4 * (3 * rows + r));
        }
    }
    finish_scores(s, head, sum, scale, 0, rows, real);
}

void TQ_CLUSTER(tq_avx512_score_norm)(const tq_codec *k, float *s, const void *prep,
                                      uint32_t n_rows, tq_const_planes keys, uint32_t n)
{
    uint8_t level[TQ_TURNED_TOKENS * TQ_ROW_MAX] __attribute__((aligned(64)));
    const uint32_t width = TQ_LEVEL_WIDTH(k->dim);
    tq_level_source source;

    tq_avx2_level_source(&source, k, 0);
    tq_walk ahead = tq_walk_scales_first(keys, tq_turned_steps(&source, n));
    for (uint32_t t = 0; t < n; t += TQ_TURNED_TOKENS) {
        const uint32_t m = n - t < TQ_TURNED_TOKENS ? n - t : TQ_TURNED_TOKENS;
        const uint8_t *q = prep;
        float scale[TQ_TURNED_TOKENS] = {0}, *dst = s + t;

        TQ_CLUSTER(tq_avx512_turned_levels)(level, &source, keys, t, m, &ahead);
        tq_avx512_token_scales(scale, keys.scale, keys.scale_stride, t, m);
        const __m512 scale16 = _mm512_loadu_ps(scale);
        for (uint32_t left = n_rows; left > 0;) {
            const uint32_t rows = tq_query_rows(left), real = rows < left ? rows : left;
#define CALL(score_some)                                                                           \
    do {                                                                                           \
        if (rows == 4)                                                                             \
            score_some(dst, q, level, width, scale16, 4, real);                                    \
        else if (rows == 2)                                                                        \
            score_some(dst, q, level, width, scale16, 2, 2);                                       \
        else                                                                                       \
            score_some(dst, q, level, width, scale16, 1, 1);                                       \
    } while (0)
            if (source.small)
                CALL(score_small);
            else
                CALL(score_block);
#undef CALL
            q += tq_query_bytes(rows, k->dim);
            dst += real * TQ_TILE;
            left -= real;
        }
    }
    if (k->zero_bytes)
        tq_avx2_add_key_means(s, prep, k->dim, n_rows, keys, n);
}

/* ---- Values ---------------------------------------------------------------------------- */

/* acc = alpha * that + factor * sum, for the elements of two blocks: 32 from acc on, of which n
 * exist. */
TQ_INLINE void finish(float *acc, uint32_t n, const __m512i sum[4], float factor, float alpha)
{
    const __m512i first =
        _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i last =
        _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    const __m512i a = _mm512_add_epi32(sum[0], sum[1]), b = _mm512_add_epi32(sum[2], sum[3]);
    const __m512i x[2] = {_mm512_permutex2var_epi32(a, first, b),
                          _mm512_permutex2var_epi32(a, last, b)};
    TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) {
        const uint32_t left = n > 16 * i ? n - 16 * i : 0;
        const __mmask16 mask = tq_lanes_left(left);
        const __m512 old = _mm512_maskz_loadu_ps(mask, acc + 16 * i);
        __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(x[i]), _mm512_set1_ps(factor));
        y = _mm512_fmadd_ps(_mm512_set1_ps(alpha), old, y);
        _mm512_mask_storeu_ps(acc + 16 * i, mask, y);
    }
}

/* All elements. level [blocks][quads][64] of quads * 4 tokens, w16 from the first of them on. */
TQ_INLINE void weigh_rows(float *acc, size_t acc_stride, const int16_t *w16, const float *factor,
                          const float *alpha, const uint8_t *level, uint32_t quads, uint32_t dim,
                          tq_walk *ahead, uint8_t zero, const uint32_t rows)
{
    const __m512i low = _mm512_set1_epi16(255);
    int32_t start[TQ_WEIGHT_ROWS];

    for (uint32_t r = 0; r < rows; r++)
        start[r] = tq_avx2_weights_start(w16 + r * TQ_TILE, quads * 4, zero);
    for (uint32_t j = 0; j < dim; j += 32, level += (size_t)quads * 64) {
        const int16_t *w = w16;
        __m512i sum[TQ_WEIGHT_ROWS][4];
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            sum[r][0] = sum[r][2] = _mm512_set1_epi32(start[r]);
            sum[r][1] = sum[r][3] = _mm512_setzero_si512();
        }
        for (uint32_t q = 0; q < quads; q++, level += 64, w += 4) {
            const __m512i x = _mm512_load_si512(level);
            const __m512i y = _mm512_load_si512(level + (size_t)quads * 64);
            const __m512i xe = _mm512_and_si512(x, low), xo = _mm512_srli_epi16(x, 8);
            const __m512i ye = _mm512_and_si512(y, low), yo = _mm512_srli_epi16(y, 8);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                multiply(sum[r], xe, xo, w + r * TQ_TILE);
                multiply(sum[r] + 2, ye, yo, w + r * TQ_TILE);
            }
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            finish(acc + r * acc_stride + j, dim - j, sum[r], factor[r], alpha[r]);
    }
}

/* Four sums of 16 elements in the order of tq_avx512_level_quads, put in order and added. */
TQ_INLINE void finish64(float *acc, __m512i sum[4], float factor, float alpha)
{
    tq_turn_lanes(sum);
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        tq_add_sums(acc + 16 * i, sum[i], factor, 0, alpha);
}

/* The same for levels of tq_avx512_level_quads; dim a multiple of 64. */
TQ_INLINE void weigh_rows64(float *acc, size_t acc_stride, const int16_t *w16, const float *factor,
                            const float *alpha, const uint8_t *level, uint32_t quads, uint32_t dim,
                            tq_walk *ahead, uint8_t zero, const uint32_t rows)
{
    const __m512i low = _mm512_set1_epi16(255);
    const size_t block = (size_t)quads * 64;
    int32_t start[TQ_WEIGHT_ROWS];

    for (uint32_t r = 0; r < rows; r++)
        start[r] = tq_avx2_weights_start(w16 + r * TQ_TILE, quads * 4, zero);
    for (uint32_t j = 0; j < dim; j += 64, level += 3 * block) {
        const int16_t *w = w16;
        __m512i sum[TQ_WEIGHT_ROWS][4];
        tq_walk_on(ahead);
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                sum[r][i] = _mm512_set1_epi32(start[r]);
        for (uint32_t q = 0; q < quads; q++, level += 64, w += 4) {
            __m512i even[4], odd[4];
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                const __m512i x = _mm512_load_si512(level + i * block);
                even[i] = _mm512_and_si512(x, low);
                odd[i] = _mm512_srli_epi16(x, 8);
            }
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                const uint8_t *pairs = (const uint8_t *)(w + r * TQ_TILE);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                    sum[r][i] = tq_dot2_at(sum[r][i], even[i], pairs);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                    sum[r][i] = tq_dot2_at(sum[r][i], odd[i], pairs + 4);
            }
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            finish64(acc + r * acc_stride + j, sum[r], factor[r], alpha[r]);
    }
}

/* The two for small levels, signed, by bytes: w8 [rows][64], from the
 * first token on. */
TQ_INLINE void weigh_small(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                           const float *alpha, const uint8_t *level, uint32_t quads, uint32_t dim,
                           tq_walk *ahead, const uint32_t rows)
{
    for (uint32_t j = 0; j < dim; j += 32, level += (size_t)quads * 64) {
        __m512i sum[TQ_WEIGHT_ROWS][4];
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_si512();
        for (uint32_t q = 0; q < quads; q++, level += 64) {
            const __m512i x = _mm512_load_si512(level);
            const __m512i y = _mm512_load_si512(level + (size_t)quads * 64);
            TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                const uint8_t *four = w8 + r * TQ_TILE + 4 * q;
                const __m512i w = _mm512_set1_epi32((int)tq_load_u32(four));
                sum[r][0] = tq_dot4(sum[r][0], w, x);
                sum[r][2] = tq_dot4(sum[r][2], w, y);
            }
        }
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            finish(acc + r * acc_stride + j, dim - j, sum[r], factor[r], alpha[r]);
    }
}

/* Four tokens by 64 elements; four: their weights, of the first row. */
TQ_INLINE void add_quad(__m512i sum[TQ_WEIGHT_ROWS][4], const uint8_t *four, const uint8_t *level,
                        size_t block, const uint32_t rows)
{
    __m512i x[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        x[i] = _mm512_load_si512(level + i * block);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512i w = _mm512_set1_epi32((int)tq_load_u32(four + r * TQ_TILE));
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            sum[r][i] = tq_dot4(sum[r][i], w, x[i]);
    }
}

TQ_INLINE void weigh_small64(float *acc, size_t acc_stride, const uint8_t *w8, const float *factor,
                             const float *alpha, const uint8_t *level, uint32_t quads, uint32_t dim,
                             tq_walk *ahead, const uint32_t rows)
{
    const size_t block = (size_t)quads * 64;

    for (uint32_t j = 0; j < dim; j += 64, level += 3 * block) {
        __m512i sum[TQ_WEIGHT_ROWS][4];
        tq_walk_on(ahead);
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_si512();
        for (uint32_t q = 0; q < quads; q++, level += 64)
            add_quad(sum, w8 + 4 * q, level, block, rows);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            finish64(acc + r * acc_stride + j, sum[r], factor[r], alpha[r]);
    }
}

/* Level bytes of a step, for rows that are handled four at a time. */
typedef struct tile_step {
    const uint8_t *level;
    uint32_t t, quads; /* from token t on */
    int by64;
    tq_walk *ahead;
} tile_step;

TQ_INLINE void step_wide(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                         const float *alpha, const float *scale, uint32_t n,
                         const tq_level_source *source, const tile_step *st, const uint32_t rows)
{
    tq_weights of;
    tq_avx2_round_weights(&of, w, scale, source->unit, n, rows);
    if (st->by64)
        weigh_rows64(acc, acc_stride, of.w16 + st->t, of.factor, alpha, st->level, st->quads,
                     v->dim, st->ahead, source->zero, rows);
    else
        weigh_rows(acc, acc_stride, of.w16 + st->t, of.factor, alpha, st->level, st->quads, v->dim,
                   st->ahead, source->zero, rows);
}

uint32_t TQ_CLUSTER(tq_avx512_round_again)(uint8_t *w8, const float *w, const float *scale,
                                           float up)
{
    const __m512 top = _mm512_set1_ps(TQ_WEIGHT_TOP);
    const __m512 lane = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 left = _mm512_fmadd_ps(lane, _mm512_set1_ps(1.0f / 16), _mm512_set1_ps(-15.0f / 32));
    __m512 x[4];

    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        const __m512 s = _mm512_mul_ps(_mm512_set1_ps(up), _mm512_loadu_ps(scale + 16 * i));
        const __m512 y = _mm512_fmadd_ps(s, _mm512_loadu_ps(w + 16 * i), left);
        x[i] = _mm512_min_ps(_mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT), top);
        left = _mm512_sub_ps(y, x[i]);
    }
    const __m512i bytes = tq_to_bytes(x);
    _mm512_storeu_si512(w8, bytes);
    return (uint32_t)_mm512_reduce_add_epi32(tq_count_bytes(bytes));
}

TQ_INLINE void step_small(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                          const float *alpha, const float *scale, const tq_level_source *source,
                          const tile_step *st, const uint32_t rows)
{
    uint8_t w8[TQ_SUM_ROWS * TQ_TILE] __attribute__((aligned(64)));
    float factor[4];

    tq_round_small(w8, factor, NULL, w, scale, source->unit, rows);
    const uint8_t *from = w8 + st->t;
    if (st->by64)
        weigh_small64(acc, acc_stride, from, factor, alpha, st->level, st->quads, v->dim, st->ahead,
                      rows);
    else
        weigh_small(acc, acc_stride, from, factor, alpha, st->level, st->quads, v->dim, st->ahead,
                    rows);
}

void TQ_CLUSTER(tq_avx512_weigh_norm)(const tq_codec *v, float *acc, size_t acc_stride,
                                      const float *w, const float *alpha, uint32_t n_rows,
                                      tq_const_planes values, uint32_t n)
{
    static const float one[TQ_WEIGHT_ROWS] = {1, 1, 1, 1};
    uint8_t level[TQ_LEVEL_ROOM] __attribute__((aligned(64)));
    float scale[TQ_TILE] = {0};
    const uint32_t dim = v->dim, step = tq_quad_tokens(dim);
    tq_level_source source;

    tq_avx2_level_source(&source, v, v->bits <= 4);
    tq_walk ahead = tq_walk_scales_first(values, tq_quad_steps(dim, n));
    tq_avx512_token_scales(scale, values.scale, values.scale_stride, 0, n);
    if (source.small && tq_any_negative(scale, TQ_TILE)) {
        tq_avx2_weigh_decoded(v, acc, acc_stride, w, alpha, n_rows, values, n);
        return;
    }
    for (uint32_t t = 0; t < n; t += step) {
        const uint32_t m = n - t < step ? n - t : step;
        const uint32_t quads = (m + 3) / 4;
        const int by64 = tq_avx512_takes_quads(&source);
        const tile_step st = {level, t, quads, by64, &ahead};
        if (by64)
            TQ_CLUSTER(tq_avx512_level_quads)(level, &source, values, t, m, &ahead);
        else
            tq_avx2_level_quads(level, &source, tq_rows_from(&values, t), m, st.quads, &ahead);
        for (uint32_t r = 0; r < n_rows; r += TQ_WEIGHT_ROWS) {
            float *dst = acc + r * acc_stride;
            const float *al = t ? one : alpha + r;
#define CALL(n_of_rows)                                                                            \
    do {                                                                                           \
        if (!source.small)                                                                         \
            step_wide(v, dst, acc_stride, w + r * TQ_TILE, al, scale, n, &source, &st, n_of_rows); \
        else                                                                                       \
            step_small(v, dst, acc_stride, w + r * TQ_TILE, al, scale, &source, &st, n_of_rows);   \
    } while (0)
            TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
        }
    }
    if (v->zero_bytes)
        tq_avx2_add_means(v, acc, acc_stride, w, n_rows, values, n);
}
