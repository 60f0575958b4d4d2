/* SPDX-License-Identifier: MIT */
/* avx2_levels.h — level bytes of norm-codebook and trellis rows, in the orders that attention
 * multiplies them in. A level byte is a level plus the ZERO of its source, so that it is not
 * negative: it widens to 16 bits by a mask or a shift. What the zero adds to a sum is known from
 * the other factor alone. */
#ifndef TQ_CPU_AVX2_LEVELS_H
#define TQ_CPU_AVX2_LEVELS_H

#include "codebook.h"
#include "cpu/avx2_attn.h"
#include "cpu/avx2_trellis.h"

/* Tokens of a step of tq_avx2_turned_levels, and what its dst takes. */
#define TQ_TURNED_TOKENS 16u

/* dim rounded up to what the functions below fill. */
#define TQ_LEVEL_WIDTH(dim) (((dim) + 31) / 32 * 32)

typedef struct tq_level_source {
    const tq_codec *codec;
    int trellis;
    int nibbles;              /* codes or level numbers are taken as half bytes */
    uint32_t planes;          /* numbers of so many bits are taken from their planes, or 0 */
    int in_place;             /* bytes of a row are taken from where they are */
    __m256i add;              /* makes level bytes of the bytes of a row; planes: the zero */
    int small;                /* level bytes are 2 * zero at most, zero is 64 at most */
    uint8_t zero;             /* level byte of level 0 */
    tq_trellis_tables tables; /* level bytes of up to 6 bits; nibbles: the first */
    float unit;               /* of a level, times the row's scale */
} tq_level_source;

/* is_signed: level bytes are levels, zero is 0; for codes of up to 4 bits. */
void tq_avx2_level_source(tq_level_source *s, const tq_codec *c, int is_signed);

/* Let tq_avx2_turned_levels and tq_avx2_level_quads take numbers from their planes where they can:
 * less work, and the same level bytes. Not for tq_avx2_level_rows. */
void tq_avx2_take_planes(tq_level_source *s);

/* A walk of at most n_steps calls of tq_walk_on. The scales, needed first, are asked for first:
 * they are at the end of a side of a page. */
TQ_INLINE tq_walk tq_walk_scales_first(tq_const_planes planes, uint32_t n_steps)
{
    for (size_t i = 0; planes.ahead && i < 3 && 64 * i < planes.ahead_bytes; i++)
        _mm_prefetch((const char *)planes.ahead + planes.ahead_bytes - 1 - 64 * i, _MM_HINT_T0);
    return tq_walk_begin(planes, n_steps > 0 ? n_steps - 1 : 0);
}

/* Rows of codes, or as nibbles or bytes of a source. Functions that are called for some tokens take
 * this, which is two registers: gcc copies planes to the stack in pieces, and reading those back in
 * others held all of the next tokens up. */
typedef struct tq_level_rows {
    const uint8_t *at;
    size_t stride;
} tq_level_rows;

TQ_INLINE tq_level_rows tq_rows_from(const tq_const_planes *planes, uint32_t t)
{
    return (tq_level_rows){planes->codes + t * planes->codes_stride, planes->codes_stride};
}

/* What tq_avx2_level_rows needs: decoders write up to 32 bytes past a row. */
#define TQ_ROWS_ROOM (16 * (TQ_ROW_MAX + 32) + 32)

/* 16 rows of a source, in place or in room, from n rows of codes, n 1..16. Those from n on are the
 * last. */
tq_level_rows tq_avx2_level_rows(uint8_t *room, const tq_level_source *s, tq_level_rows codes,
                                 uint32_t n);

/* Rows 0 .. n - 1 of `bytes` at room; those from n on become the last. */
TQ_INLINE void tq_repeat_last_row(uint8_t *room, size_t stride, size_t bytes, uint32_t n)
{
    for (uint32_t i = n; i < 16; i++)
        memcpy(room + i * stride, room + (n - 1) * stride, bytes);
}

/* Level bytes of n tokens, n 1..16, tokens as lanes: dst [width / 4][16][4], element 4 c + i of
 * token k at dst[c][k][i]. Tokens from n on repeat the last; elements from dim on are junk. dst
 * 32-byte aligned. */
void tq_avx2_turned_levels(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                           tq_walk *ahead);

/* Calls of tq_walk_on that this makes for n tokens. */
TQ_INLINE uint32_t tq_turned_steps(const tq_level_source *s, uint32_t n)
{
    return (n + 15) / 16 * (TQ_LEVEL_WIDTH(s->codec->dim) / (s->nibbles ? 32 : 16));
}

/* Level bytes of n tokens, n 1..64, four tokens to a lane: dst [width / 16][quads][64], quads from
 * ceil(n / 4) to 4 * ceil(n / 16). A block of 16 holds, for j = 32 (block / 2) + 8 (block % 2),
 * elements j .. j + 3, j + 16 .. j + 19, j + 4 .. j + 7, j + 20 .. j + 23, in each four tokens.
 * Tokens from n on repeat the last; elements from dim on are junk. dst 32-byte aligned. */
void tq_avx2_level_quads(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                         uint32_t quads, tq_walk *ahead);

/* avx2_levels_128.c: these two for rows that are taken from planes. */
void tq_avx2_turned_planes(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                           tq_walk *ahead);
void tq_avx2_plane_quads(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                         uint32_t quads, tq_walk *ahead);

/* ---- Order ----------------------------------------------------------------------------- */

/* Dword i of 16 bytes of 8 rows, rows k and k + 4 in the lanes of z[k], in out[i]. */
TQ_INLINE void tq_turn_rows(__m256i out[4], const __m256i z[4])
{
    const __m256i a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpacklo_epi32(z[2], z[3]);
    const __m256i c = _mm256_unpackhi_epi32(z[0], z[1]), d = _mm256_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm256_unpacklo_epi64(a, b);
    out[1] = _mm256_unpackhi_epi64(a, b);
    out[2] = _mm256_unpacklo_epi64(c, d);
    out[3] = _mm256_unpackhi_epi64(c, d);
}

/* 32 bytes of each of four rows: dwords of 4 + 4 elements, out[i] those from 4 i and 16 + 4 i on.
 */
TQ_INLINE void tq_interleave_rows(__m256i out[4], const __m256i r[4])
{
    const __m256i a = _mm256_unpacklo_epi8(r[0], r[1]), b = _mm256_unpacklo_epi8(r[2], r[3]);
    const __m256i c = _mm256_unpackhi_epi8(r[0], r[1]), d = _mm256_unpackhi_epi8(r[2], r[3]);
    out[0] = _mm256_unpacklo_epi16(a, b);
    out[1] = _mm256_unpackhi_epi16(a, b);
    out[2] = _mm256_unpacklo_epi16(c, d);
    out[3] = _mm256_unpackhi_epi16(c, d);
}

/* Level bytes of norm-codebook by code, of 2 to 6 bits; fills the tables that these need. */
void tq_avx2_norm_tables(tq_trellis_tables *out, const tq_codebook *book, uint8_t zero);

/* Levels of n rows of 2 to 6 bits of norm-codebook, by those tables. Up to 16 bytes behind each row
 * are written, in order. */
void tq_avx2_norm_run_levels(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                             const tq_trellis_tables *tables, uint32_t bits, uint32_t dim,
                             uint32_t n);

/* Their codes of 2 or 3 bits as tq_avx2_trellis_nibbles gives level numbers. */
void tq_avx2_norm_nibbles(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                          uint32_t bits, uint32_t dim, uint32_t n);

/* dst [n rounded up to 8]: f16 numbers of tokens t .. t + n - 1 of a plane as f32; those from n on
 * repeat the last. */
void tq_avx2_token_scales(float *dst, const uint8_t *plane, size_t stride, uint32_t t, uint32_t n);

/* ---- Queries as tq_avx2_prep_norm leaves them ------------------------------------------- */

/* Elements whose products with int16 an int32 holds the sum of: 512 * 32767 * 128 < 2^31. Longer
 * rows are summed in two parts. */
#define TQ_QUERY_PART  512u
#define TQ_QUERY_PARTS 2u

/* A block of rows begins with this; then follow, per four elements, int16 [rows][4] in the order 0,
 * 2, 1, 3 in which a lane of level bytes widens, or for small level bytes int8 [rows][4]. */
typedef struct tq_query_head {
    float scale[4];                   /* of the integers, times the unit of the levels */
    int32_t start[TQ_QUERY_PARTS][4]; /* of the sums over a part: what undoes the zero */
    float total[4];                   /* of the elements of the query: what a mean is times */
} tq_query_head;

/* Option mean: s [n_rows][64] += mean of a token times the total of a row's query. prep: of rows of
 * dim elements. A mean is the same number for all elements of the unrotated row. */
void tq_avx2_add_key_means(float *s, const void *prep, uint32_t dim, uint32_t n_rows,
                           tq_const_planes keys, uint32_t n);

/* Rows of the next block when n are left: 3 are done as 4. */
TQ_INLINE uint32_t tq_query_rows(uint32_t n)
{
    return n >= 3 ? 4 : n;
}

TQ_INLINE size_t tq_query_bytes(uint32_t rows, uint32_t dim)
{
    return sizeof(tq_query_head) + (size_t)rows * TQ_LEVEL_WIDTH(dim) * sizeof(int16_t);
}

/* ---- Weights ---------------------------------------------------------------------------- */

#define TQ_WEIGHT_ROWS 4u

/* Level bytes of the values that are summed together. */
#define TQ_LEVEL_ROOM 16384u

/* Tokens whose level bytes fit. */
TQ_INLINE uint32_t tq_quad_tokens(uint32_t dim)
{
    const uint32_t fit = TQ_LEVEL_ROOM / TQ_LEVEL_WIDTH(dim) / 16 * 16;
    return fit < TQ_TILE ? fit : TQ_TILE;
}

/* Calls of tq_walk_on for n tokens of which each 32 elements are a step, beside those of
 * tq_avx2_level_quads. */
TQ_INLINE uint32_t tq_quad_steps(uint32_t dim, uint32_t n)
{
    const uint32_t step = tq_quad_tokens(dim);
    return (n + 3) / 4 + (n + step - 1) / step * (TQ_LEVEL_WIDTH(dim) / 32);
}

/* Weights, scales of tokens included, of up to four rows over a tile. w16 of four tokens are in the
 * order 0, 2, 1, 3 in which a lane of level bytes widens. */
typedef struct tq_weights {
    int16_t w16[TQ_WEIGHT_ROWS * TQ_TILE];
    float factor[TQ_WEIGHT_ROWS]; /* what a sum must be multiplied by */
} tq_weights;

/* Of tokens 0 .. n - 1; those from there to a multiple of 16 weigh nothing. w [rows][64], scale
 * [64]; unit: of the levels. */
void tq_avx2_round_weights(tq_weights *out, const float *w, const float *scale, float unit,
                           uint32_t n, uint32_t rows);

/* Where a sum over n tokens starts, so that it undoes the zero. */
int32_t tq_avx2_weights_start(const int16_t *w16, uint32_t n, uint8_t zero);

/* Option mean: what the means of the tokens of a tile add to sums. w [n_rows][64]. */
void tq_avx2_add_means(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                       uint32_t n_rows, tq_const_planes values, uint32_t n);

#endif
