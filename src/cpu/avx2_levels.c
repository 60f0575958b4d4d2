/* SPDX-License-Identifier: MIT */
/* avx2_levels.c — rows of norm-codebook and trellis as level bytes in the order of a
 * multiplication.
 *
 * Codes of up to 4 bits, and level numbers of a trellis of up to 3, are nibbles: byte i of a row
 * holds those of elements i and i + dim / 2, as the 4-bit plane does anyway. They are put in order
 * while they are still packed, half the shuffles of doing it with levels, and one byte shuffle
 * then turns them into levels. At dimension 128 numbers of five to seven bits have the bits above a
 * nibble in planes of the row (avx2_runs.h): byte p, bit r for place p of run r, or fields of two
 * bits in two halves. They are put in order beside the nibbles, once for all runs. Other rows
 * become levels first, in the first cache.
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
    s->upper = 0;
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

void tq_avx2_take_upper_bits(tq_level_source *s)
{
    const uint32_t bits = s->codec->bits + (s->trellis ? 1 : 0);
    s->upper = s->codec->dim == 128 && bits >= 5 && bits <= 7 ? bits - 4 : 0;
}

/* ---- Rows ------------------------------------------------------------------------------ */

tq_level_rows tq_avx2_level_rows(uint8_t *room, const tq_level_source *s, tq_const_planes rows,
                                 uint32_t t, uint32_t n)
{
    const tq_codec *c = s->codec;
    const uint8_t *codes = rows.codes + t * rows.codes_stride;
    const int nibbles = s->nibbles || s->upper, in_place = s->in_place || (s->upper && !s->trellis);
    const size_t bytes = nibbles ? c->dim / 2 : TQ_LEVEL_WIDTH(c->dim), stride = bytes + PAD;

    if (nibbles && s->trellis)
        tq_avx2_trellis_nibbles(room, stride, codes, rows.codes_stride, c->bits, c->dim, n);
    else if (s->trellis)
        tq_avx2_trellis_levels((int8_t *)room, stride, codes, rows.codes_stride, &s->tables,
                               c->bits, c->dim, n);
    else if (in_place && n == ROWS)
        return (tq_level_rows){codes, rows.codes_stride};
    else if (in_place)
        for (uint32_t i = 0; i < n; i++)
            memcpy(room + i * stride, codes + i * rows.codes_stride, bytes);
    else if (nibbles)
        tq_avx2_norm_nibbles(room, stride, codes, rows.codes_stride, c->bits, c->dim, n);
    else if (c->bits <= 6)
        tq_avx2_norm_run_levels(room, stride, codes, rows.codes_stride, &s->tables, c->bits, c->dim,
                                n);
    else
        tq_avx2_norm_levels(c, (int8_t *)room, stride, codes, rows.codes_stride, n, s->zero);
    tq_repeat_last_row(room, stride, bytes, n);
    return (tq_level_rows){room, stride};
}

enum { RUN = 16 }; /* places of a run at dimension 128 */

/* Bytes of a row's planes above the nibbles, at most. */
enum { UPPER_BYTES = 3 * RUN };

/* Where those are of the tokens of tq_avx2_level_rows: in place, or in room [16][UPPER_BYTES]. */
TQ_INLINE tq_level_rows upper_rows(uint8_t *room, const tq_level_source *s, tq_const_planes rows,
                                   uint32_t t, uint32_t n)
{
    const size_t first = s->trellis ? 2 * RUN : 4 * RUN, bytes = s->upper * RUN;
    const uint8_t *at = rows.codes + t * rows.codes_stride + first;
    if (n == ROWS)
        return (tq_level_rows){at, rows.codes_stride};
    for (uint32_t i = 0; i < n; i++)
        memcpy(room + i * UPPER_BYTES, at + i * rows.codes_stride, bytes);
    tq_repeat_last_row(room, UPPER_BYTES, bytes, n);
    return (tq_level_rows){room, UPPER_BYTES};
}

/* Tables by value: those in memory would be loaded again after each store of levels. */
typedef struct upper_tables {
    __m256i t[4];
} upper_tables;

/* Those that tq_pick_level takes, from where it takes them. */
TQ_INLINE upper_tables tables_of(const tq_level_source *s)
{
    const __m256i *t = s->tables.t + tq_first_table(4 + s->upper, s->trellis);
    return s->upper < 3 ? (upper_tables){{t[0], t[1]}} : (upper_tables){{t[0], t[1], t[2], t[3]}};
}

/* Levels of the nibbles of x, whose fifth bits are the top bits of the bytes of `bit`. */
TQ_INLINE __m256i fifth_levels(__m256i x, __m256i bit, const upper_tables table)
{
    const __m256i low = _mm256_and_si256(x, _mm256_set1_epi8(15));
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(table.t[0], low),
                              _mm256_shuffle_epi8(table.t[1], low), bit);
}

/* Numbers of six or, of a trellis, seven bits. */
typedef struct number_kind {
    int trellis;
    uint32_t bits;
} number_kind;

/* Bits of runs `half`, half + 2 .. half + 6. two: fields of two bits of them, one: single bits of
 * all eight. */
TQ_INLINE tq_upper_bits upper_bits(__m256i two, __m256i one, const int half, const number_kind k)
{
    return k.bits == 6 ? tq_upper_two(two, k.trellis)
                       : tq_upper_three(two, half ? _mm256_srli_epi16(one, 1) : one);
}

/* Levels of a field of such numbers. */
TQ_INLINE __m256i field_levels(__m256i x, const tq_upper_bits u, const int field,
                               const upper_tables table, const number_kind k)
{
    return tq_pick_level(table.t, x, u, field, k.bits, k.trellis);
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
    const __m256i a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpacklo_epi32(z[2], z[3]);
    const __m256i c = _mm256_unpackhi_epi32(z[0], z[1]), d = _mm256_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm256_unpacklo_epi64(a, b);
    out[1] = _mm256_unpackhi_epi64(a, b);
    out[2] = _mm256_unpacklo_epi64(c, d);
    out[3] = _mm256_unpackhi_epi64(c, d);
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

/* Rows of 128 with fifth bits: nibbles of 16 tokens in row, the bits in plane. */
TQ_INLINE void turn_fifth(uint8_t *dst, tq_level_rows row, tq_level_rows plane,
                          const upper_tables table, tq_walk *ahead)
{
    for (uint32_t k = 0; k < 2; k++) {
        __m256i bits[4];
        turn(bits, plane.at + 8 * k * plane.stride, plane.stride);
        TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++) {
            uint8_t *to = dst + (size_t)r * RUN * 16 + 32 * k;
            __m256i x[4];
            tq_walk_on(ahead);
            turn(x, row.at + 8 * k * row.stride + r * RUN, row.stride);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                const __m256i lower = _mm256_slli_epi16(bits[i], 7 - (int)r);
                const __m256i upper = _mm256_slli_epi16(bits[i], 3 - (int)r);
                store256(to + 64 * i, fifth_levels(x[i], lower, table));
                store256(to + 64 * i + 64 * 16,
                         fifth_levels(_mm256_srli_epi16(x[i], 4), upper, table));
            }
        }
    }
}

/* The same with fifth and sixth bits, of even runs in the first half of a plane, of odd ones in the
 * second, and perhaps seventh bits behind them. */
TQ_INLINE void turn_upper(uint8_t *dst, tq_level_rows row, tq_level_rows plane,
                          const upper_tables table, tq_walk *ahead, const number_kind kind)
{
    for (uint32_t k = 0; k < 2; k++) {
        const uint8_t *above = plane.at + 8 * k * plane.stride;
        __m256i one[4];
        if (kind.bits == 7)
            turn(one, above + 2 * RUN, plane.stride);
        TQ_UNROLL_FOR (uint32_t half = 0; half < 2; half++) {
            tq_upper_bits u[4];
            __m256i two[4];
            turn(two, above + half * RUN, plane.stride);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                u[i] = upper_bits(two[i], one[i], (int)half, kind);
            TQ_UNROLL_FOR (int field = 0; field < 2; field++) {
                const size_t r = 2 * (size_t)field + half;
                uint8_t *to = dst + r * RUN * 16 + 32 * k;
                __m256i x[4];
                tq_walk_on(ahead);
                turn(x, row.at + 8 * k * row.stride + r * RUN, row.stride);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                    store256(to + 64 * i, field_levels(x[i], u[i], field, table, kind));
                    store256(to + 64 * i + 64 * 16, field_levels(_mm256_srli_epi16(x[i], 4), u[i],
                                                                 field + 2, table, kind));
                }
            }
        }
    }
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

void tq_avx2_turned_levels(uint8_t *dst, const tq_level_source *s, tq_const_planes rows, uint32_t t,
                           uint32_t n, tq_walk *ahead)
{
    uint8_t room[TQ_ROWS_ROOM];
    const uint32_t half = s->codec->dim / 2, width = TQ_LEVEL_WIDTH(s->codec->dim);
    const tq_level_rows row = tq_avx2_level_rows(room, s, rows, t, n);

    if (s->upper) {
        uint8_t bits[ROWS * UPPER_BYTES];
        const tq_level_rows plane = upper_rows(bits, s, rows, t, n);
        if (s->upper == 1)
            turn_fifth(dst, row, plane, tables_of(s), ahead);
        else if (s->upper == 3)
            turn_upper(dst, row, plane, tables_of(s), ahead, (number_kind){1, 7});
        else if (s->trellis)
            turn_upper(dst, row, plane, tables_of(s), ahead, (number_kind){1, 6});
        else
            turn_upper(dst, row, plane, tables_of(s), ahead, (number_kind){0, 6});
        return;
    }
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
    const __m256i r0 = tq_keep(load256(row)), r1 = tq_keep(load256(row + stride));
    const __m256i r2 = tq_keep(load256(row + 2 * stride)), r3 = tq_keep(load256(row + 3 * stride));
    const __m256i a = _mm256_unpacklo_epi8(r0, r1), b = _mm256_unpacklo_epi8(r2, r3);
    const __m256i c = _mm256_unpackhi_epi8(r0, r1), d = _mm256_unpackhi_epi8(r2, r3);
    out[0] = _mm256_unpacklo_epi16(a, b);
    out[1] = _mm256_unpackhi_epi16(a, b);
    out[2] = _mm256_unpacklo_epi16(c, d);
    out[3] = _mm256_unpackhi_epi16(c, d);
}

/* The same of 16 bytes of each, in both lanes. */
TQ_INLINE void interleave_lanes(__m256i out[4], const uint8_t *row, size_t stride)
{
    __m256i y[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        y[i] = _mm256_broadcastsi128_si256(load128(row + i * stride));
    const __m256i a = _mm256_unpacklo_epi8(y[0], y[1]), b = _mm256_unpacklo_epi8(y[2], y[3]);
    const __m256i c = _mm256_unpackhi_epi8(y[0], y[1]), d = _mm256_unpackhi_epi8(y[2], y[3]);
    out[0] = _mm256_unpacklo_epi16(a, b);
    out[1] = _mm256_unpackhi_epi16(a, b);
    out[2] = _mm256_unpacklo_epi16(c, d);
    out[3] = _mm256_unpackhi_epi16(c, d);
}

/* Four rows of 128 with fifth bits. A register of nibbles has run r in its lower lane and r + 1 in
 * the upper one. */
TQ_INLINE void interleave_fifth(uint8_t *to, size_t block, const uint8_t *row, size_t stride,
                                const uint8_t *plane, size_t plane_stride, const upper_tables table)
{
    __m256i bits[4];
    interleave_lanes(bits, plane, plane_stride);
    TQ_UNROLL_FOR (int r = 0; r < 4; r += 2, to += 2 * block) {
        const __m256i lower =
            _mm256_setr_epi32(7 - r, 7 - r, 7 - r, 7 - r, 6 - r, 6 - r, 6 - r, 6 - r);
        const __m256i upper =
            _mm256_setr_epi32(3 - r, 3 - r, 3 - r, 3 - r, 2 - r, 2 - r, 2 - r, 2 - r);
        __m256i x[4];
        interleave(x, row + r * RUN, stride);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            uint8_t *at = to + i / 2 * block + 32 * (i % 2);
            store256(at, fifth_levels(x[i], _mm256_sllv_epi32(bits[i], lower), table));
            store256(at + 4 * block, fifth_levels(_mm256_srli_epi16(x[i], 4),
                                                  _mm256_sllv_epi32(bits[i], upper), table));
        }
    }
}

/* The same with fifth and sixth bits, whose halves are those of two runs too, and perhaps seventh
 * bits behind them. */
TQ_INLINE void interleave_upper(uint8_t *to, size_t block, const uint8_t *row, size_t stride,
                                const uint8_t *plane, size_t plane_stride, const upper_tables table,
                                const number_kind kind)
{
    tq_upper_bits u[4];
    __m256i two[4];
    interleave(two, plane, plane_stride);
    if (kind.bits == 7) {
        const __m256i by_half = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
        __m256i one[4];
        interleave_lanes(one, plane + 2 * RUN, plane_stride);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            u[i] = tq_upper_three(two[i], _mm256_srlv_epi32(one[i], by_half));
    } else {
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            u[i] = tq_upper_two(two[i], kind.trellis);
    }
    TQ_UNROLL_FOR (int field = 0; field < 2; field++, to += 2 * block) {
        __m256i x[4];
        interleave(x, row + 2 * field * RUN, stride);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            uint8_t *at = to + i / 2 * block + 32 * (i % 2);
            store256(at, field_levels(x[i], u[i], field, table, kind));
            store256(at + 4 * block,
                     field_levels(_mm256_srli_epi16(x[i], 4), u[i], field + 2, table, kind));
        }
    }
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

void tq_avx2_level_quads(uint8_t *dst, const tq_level_source *s, tq_const_planes rows, uint32_t t,
                         uint32_t n, uint32_t quads, tq_walk *ahead)
{
    uint8_t room[TQ_ROWS_ROOM], bits[ROWS * UPPER_BYTES];
    tq_level_rows plane = {0};
    const uint32_t half = s->codec->dim / 2, width = TQ_LEVEL_WIDTH(s->codec->dim);
    const size_t block = (size_t)quads * 64;

    for (uint32_t done = 0; done < n; done += ROWS) {
        const uint32_t left = n - done < ROWS ? n - done : ROWS;
        const uint32_t end = quads * 4 - done < ROWS ? quads * 4 - done : ROWS;
        const tq_level_rows row = tq_avx2_level_rows(room, s, rows, t + done, left);
        uint8_t *to = dst + (size_t)done * 16;
        if (s->upper)
            plane = upper_rows(bits, s, rows, t + done, left);
        for (uint32_t q = 0; q < end; q += 4, to += 64) {
            const uint8_t *four = row.at + q * row.stride;
            tq_walk_on(ahead);
            const uint8_t *above = s->upper ? plane.at + q * plane.stride : NULL;
            if (s->upper == 1)
                interleave_fifth(to, block, four, row.stride, above, plane.stride, tables_of(s));
            else if (s->upper == 3)
                interleave_upper(to, block, four, row.stride, above, plane.stride, tables_of(s),
                                 (number_kind){1, 7});
            else if (s->upper && s->trellis)
                interleave_upper(to, block, four, row.stride, above, plane.stride, tables_of(s),
                                 (number_kind){1, 6});
            else if (s->upper)
                interleave_upper(to, block, four, row.stride, above, plane.stride, tables_of(s),
                                 (number_kind){0, 6});
            else if (s->nibbles && half == 64)
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
