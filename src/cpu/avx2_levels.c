/* SPDX-License-Identifier: MIT */
/* avx2_levels.c — rows of norm-codebook and trellis as level bytes in the order of a
 * multiplication.
 *
 * Codes of up to 4 bits, and level numbers of a trellis of up to 3, are nibbles: byte i of a row
 * holds those of elements i and i + dim / 2, as the 4-bit plane does anyway. They are put in order
 * while they are still packed, half the shuffles of doing it with levels, and one byte shuffle
 * then turns them into levels. Rows of 128 of the trellis, and of 5 and 6 bits, are
 * in avx2_levels_128.c. Other rows become levels first, in the first cache.
 */
#include "cpu/avx2_levels.h"
#include "codebook.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_runs.h"

enum { ROWS = 16, PAD = 32 };

TQ_INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

TQ_INLINE void store256(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

TQ_INLINE __m128i load128(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* ---- Source ---------------------------------------------------------------------------- */

void tq_avx2_level_source(tq_level_source *s, const tq_codec *c, int is_signed)
{
    const int trellis = c->format >= TQ_FMT_TCQ2 && c->format <= TQ_FMT_TCQ6;
    const tq_codebook *book = trellis ? NULL : tq_codebook_get(c->bits);
    const tq_trellis *code = trellis ? tq_trellis_get(c->bits) : NULL;

    s->codec = c;
    s->trellis = trellis;
    s->planes = 0;
    s->nibbles = c->bits <= (trellis ? 3u : 4u) && c->dim % 64 == 0;
    s->in_place = !trellis && (c->bits == 4 ? s->nibbles : c->bits == 8 && c->dim % 32 == 0);
    s->small = c->bits <= 4;
    if (is_signed)
        s->zero = 0;
    else if (!s->small)
        s->zero = 128;
    else
        s->zero = (uint8_t)(trellis ? code->levels[(2u << c->bits) - 1]
                                    : book->levels[book->n_levels - 1]);
    s->add = _mm256_set1_epi8((char)(s->in_place ? s->zero : 0));
    s->unit = trellis ? code->unit : book->unit;
    if (trellis)
        tq_avx2_trellis_tables(&s->tables, code, s->zero);
    else if (c->bits <= 6)
        tq_avx2_norm_tables(&s->tables, book, s->zero);
}

/* ---- Rows ------------------------------------------------------------------------------ */

tq_level_rows tq_avx2_level_rows(uint8_t *room, const tq_level_source *s, tq_level_rows rows,
                                 uint32_t n)
{
    const tq_codec *c = s->codec;
    const uint8_t *codes = rows.at;
    const size_t bytes = s->nibbles ? c->dim / 2 : TQ_LEVEL_WIDTH(c->dim), stride = bytes + PAD;

    if (s->nibbles && s->trellis)
        tq_avx2_trellis_nibbles(room, stride, codes, rows.stride, c->bits, c->dim, n);
    else if (s->trellis)
        tq_avx2_trellis_levels((int8_t *)room, stride, codes, rows.stride, &s->tables, c->bits,
                               c->dim, n);
    else if (s->in_place && n == ROWS)
        return rows;
    else if (s->in_place)
        for (uint32_t i = 0; i < n; i++)
            memcpy(room + i * stride, codes + i * rows.stride, bytes);
    else if (s->nibbles)
        tq_avx2_norm_nibbles(room, stride, codes, rows.stride, c->bits, c->dim, n);
    else if (c->bits <= 6)
        tq_avx2_norm_run_levels(room, stride, codes, rows.stride, &s->tables, c->bits, c->dim, n);
    else
        tq_avx2_norm_levels(c, (int8_t *)room, stride, codes, rows.stride, n, s->zero);
    tq_repeat_last_row(room, stride, bytes, n);
    return (tq_level_rows){room, stride};
}

/* ---- Tokens as lanes ------------------------------------------------------------------- */

/* 16 bytes of each of 8 rows from row on: dword i of all of them in out[i]. */
TQ_INLINE void turn(__m256i out[4], const uint8_t *row, size_t stride)
{
    const uint8_t *row4 = row + 4 * stride;
    __m256i z[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        z[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(row + i * stride)),
                                       load128(row4 + i * stride), 1);
    tq_turn_rows(out, z);
}

/* Level bytes of the lower and the upper nibbles. */
TQ_INLINE __m256i lower_levels(__m256i x, __m256i table)
{
    return _mm256_shuffle_epi8(table, _mm256_and_si256(x, _mm256_set1_epi8(15)));
}

TQ_INLINE __m256i upper_levels(__m256i x, __m256i table)
{
    return lower_levels(_mm256_srli_epi16(x, 4), table);
}

/* Nibbles of 16 rows. */
TQ_INLINE void turn_nibbles(uint8_t *dst, tq_level_rows row, const uint32_t half, __m256i table,
                            tq_walk *ahead)
{
    for (uint32_t j = 0; j < half; j += 16, dst += 16 * 16) {
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t k = 0; k < 2; k++) {
            uint8_t *to = dst + 32 * k;
            __m256i x[4];
            turn(x, row.at + 8 * k * row.stride + j, row.stride);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                store256(to + 64 * i, lower_levels(x[i], table));
                store256(to + 64 * i + (size_t)half * 16, upper_levels(x[i], table));
            }
        }
    }
}

/* Level bytes of 16 rows, or with `add` what becomes level bytes by it. */
TQ_INLINE void turn_bytes(uint8_t *dst, tq_level_rows row, uint32_t width, const __m256i add,
                          const int has_add, tq_walk *ahead)
{
    for (uint32_t j = 0; j < width; j += 16, dst += 16 * 16) {
        tq_walk_on(ahead);
        TQ_UNROLL_FOR (uint32_t k = 0; k < 2; k++) {
            __m256i x[4];
            turn(x, row.at + 8 * k * row.stride + j, row.stride);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                store256(dst + 64 * i + 32 * k, has_add ? _mm256_add_epi8(x[i], add) : x[i]);
        }
    }
}

void tq_avx2_turned_levels(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                           tq_walk *ahead)
{
    if (s->planes) {
        tq_avx2_turned_planes(dst, s, codes, n, ahead);
        return;
    }
    uint8_t room[TQ_ROWS_ROOM];
    const uint32_t half = s->codec->dim / 2, width = TQ_LEVEL_WIDTH(s->codec->dim);
    const tq_level_rows row = tq_avx2_level_rows(room, s, codes, n);

    if (s->nibbles) {
        if (half == 64)
            turn_nibbles(dst, row, 64, s->tables.t[0], ahead);
        else
            turn_nibbles(dst, row, half, s->tables.t[0], ahead);
        return;
    }
    if (s->in_place)
        turn_bytes(dst, row, width, s->add, 1, ahead);
    else
        turn_bytes(dst, row, width, s->add, 0, ahead);
}

/* ---- Four tokens to a lane ------------------------------------------------------------- */

/* 32 bytes of each of four rows from row on: dwords of 4 + 4 elements, out[i] those from 4 i and
 * 16 + 4 i on. */
TQ_INLINE void interleave(__m256i out[4], const uint8_t *row, size_t stride)
{
    __m256i r[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        r[i] = tq_keep(load256(row + i * stride));
    tq_interleave_rows(out, r);
}

/* Four rows of nibbles. */
TQ_INLINE void interleave_nibbles(uint8_t *to, size_t block, const uint8_t *row, size_t stride,
                                  const uint32_t half, const __m256i table)
{
    uint8_t *upper = to + half / 16 * block;
    for (uint32_t j = 0; j < half; j += 32, to += 2 * block, upper += 2 * block) {
        __m256i x[4];
        interleave(x, row + j, stride);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            const size_t at = i / 2 * block + 32 * (i % 2);
            store256(to + at, lower_levels(x[i], table));
            store256(upper + at, upper_levels(x[i], table));
        }
    }
}

/* Four rows of level bytes, or with `add` of what becomes level bytes by it. */
TQ_INLINE void interleave_bytes(uint8_t *to, size_t block, const uint8_t *row, size_t stride,
                                const uint32_t width, const __m256i add, const int has_add)
{
    for (uint32_t j = 0; j < width; j += 32, to += 2 * block) {
        __m256i x[4];
        interleave(x, row + j, stride);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            store256(to + i / 2 * block + 32 * (i % 2),
                     has_add ? _mm256_add_epi8(x[i], add) : x[i]);
    }
}

void tq_avx2_level_quads(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                         uint32_t quads, tq_walk *ahead)
{
    if (s->planes) {
        tq_avx2_plane_quads(dst, s, codes, n, quads, ahead);
        return;
    }
    uint8_t room[TQ_ROWS_ROOM];
    const uint32_t half = s->codec->dim / 2, width = TQ_LEVEL_WIDTH(s->codec->dim);
    const size_t block = (size_t)quads * 64;

    for (uint32_t done = 0; done < n; done += ROWS, codes.at += ROWS * codes.stride) {
        const uint32_t left = n - done < ROWS ? n - done : ROWS;
        const uint32_t end = quads * 4 - done < ROWS ? quads * 4 - done : ROWS;
        const tq_level_rows row = tq_avx2_level_rows(room, s, codes, left);
        uint8_t *to = dst + (size_t)done * 16;
        for (uint32_t q = 0; q < end; q += 4, to += 64) {
            const uint8_t *four = row.at + q * row.stride;
            tq_walk_on(ahead);
            if (s->nibbles && half == 64)
                interleave_nibbles(to, block, four, row.stride, 64, s->tables.t[0]);
            else if (s->nibbles)
                interleave_nibbles(to, block, four, row.stride, half, s->tables.t[0]);
            else if (s->in_place)
                interleave_bytes(to, block, four, row.stride, width, s->add, 1);
            else
                interleave_bytes(to, block, four, row.stride, width, s->add, 0);
        }
    }
}

/* ---- Scales ---------------------------------------------------------------------------- */

void tq_avx2_token_scales(float *dst, const uint8_t *plane, size_t stride, uint32_t t, uint32_t n)
{
    uint16_t h[8];
    uint32_t i = 0;
    plane += t * stride;
    for (; stride == sizeof h[0] && i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load128(plane + i * sizeof h[0])));
    for (; i < n; i += 8) {
        for (uint32_t k = 0; k < 8; k++)
            memcpy(&h[k], plane + (i + k < n ? i + k : n - 1) * stride, sizeof h[k]);
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load128(h)));
    }
}
