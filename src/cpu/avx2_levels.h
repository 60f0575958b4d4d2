/* SPDX-License-Identifier: MIT */
/* avx2_levels.h — level bytes of norm-codebook and trellis rows, in the orders that attention
 * multiplies them in. A level byte is a level + TQ_LEVEL_ZERO, so that it widens to 16 bits by a
 * mask or a shift; what the offset adds to a sum is known from the other factor alone. */
#ifndef TQ_CPU_AVX2_LEVELS_H
#define TQ_CPU_AVX2_LEVELS_H

#include "codebook.h"
#include "cpu/avx2_attn.h"
#include "cpu/avx2_trellis.h"

#define TQ_LEVEL_ZERO 128

/* Tokens of a step of tq_avx2_turned_levels, and what its dst takes. */
#define TQ_TURNED_TOKENS 16u

/* dim rounded up to what the functions below fill. */
#define TQ_LEVEL_WIDTH(dim) (((dim) + 31) / 32 * 32)

typedef struct tq_level_source {
    const tq_codec *codec;
    int trellis;
    int nibbles;              /* codes or level numbers are taken as half bytes */
    int in_place;             /* bytes of a row are taken from where they are */
    __m256i table;            /* nibbles: level bytes, in both halves */
    __m256i flip;             /* otherwise: makes level bytes of the bytes of a row */
    tq_trellis_tables tables; /* level bytes of other trellises and of 5 and 6 bits */
    float unit;               /* of a level, times the row's scale */
} tq_level_source;

void tq_avx2_level_source(tq_level_source *s, const tq_codec *c);

/* A walk of at most n_steps calls of tq_walk_on. The scales, needed first, are asked for first:
 * they are at the end of a side of a page. */
TQ_INLINE tq_walk tq_walk_scales_first(tq_const_planes planes, uint32_t n_steps)
{
    for (size_t i = 0; planes.ahead && i < 3 && 64 * i < planes.ahead_bytes; i++)
        _mm_prefetch((const char *)planes.ahead + planes.ahead_bytes - 1 - 64 * i, _MM_HINT_T0);
    return tq_walk_begin(planes, n_steps > 0 ? n_steps - 1 : 0);
}

/* Level bytes of tokens t .. t + n - 1, n 1..16, tokens as lanes: dst [width / 4][16][4], element
 * 4 c + i of token t + k at dst[c][k][i]. Tokens from n on repeat the last; elements from dim on
 * are junk. dst 32-byte aligned. */
void tq_avx2_turned_levels(uint8_t *dst, const tq_level_source *s, tq_const_planes rows, uint32_t t,
                           uint32_t n, tq_walk *ahead);

/* Level bytes of tokens t .. t + n - 1, n 1..64, four tokens to a lane: dst [width /
 * 16][quads][64], quads = ceil(n / 4). A block of 16 holds, for j = 32 (block / 2) + 8 (block % 2),
 * elements j .. j + 3, j + 16 .. j + 19, j + 4 .. j + 7, j + 20 .. j + 23, in each four tokens.
 * Tokens from n on repeat the last; elements from dim on are junk. dst 32-byte aligned. */
void tq_avx2_level_quads(uint8_t *dst, const tq_level_source *s, tq_const_planes rows, uint32_t t,
                         uint32_t n, tq_walk *ahead);

/* Level bytes of norm-codebook by code, of up to 6 bits. flip as in tq_avx2_trellis_tables. */
tq_trellis_tables tq_avx2_norm_tables(const tq_codebook *book, uint8_t flip);

/* Levels of n rows of 5 or 6 bits of norm-codebook, by those tables; dim a multiple of 128. */
void tq_avx2_norm_wide_levels(uint8_t *out, size_t stride, const uint8_t *codes,
                              size_t codes_stride, const tq_trellis_tables *tables, uint32_t bits,
                              uint32_t dim, uint32_t n);

/* dst [n rounded up to 8]: f16 numbers of tokens t .. t + n - 1 of a plane as f32; those from n on
 * repeat the last. */
void tq_avx2_token_scales(float *dst, const uint8_t *plane, size_t stride, uint32_t t, uint32_t n);

#endif
