/* SPDX-License-Identifier: MIT */
/* avx2_levels.c — rows of norm-codebook and trellis as level bytes in the order of a
 * multiplication.
 *
 * Codes of up to 4 bits, and level numbers of a trellis of up to 3, are nibbles: byte i of a row
 * holds those of elements i and i + dim / 2, as the 4-bit plane does anyway. They are put in order
 * while they are still packed, half the shuffles of doing it with levels, and one byte shuffle
 * then turns them into levels. Other rows become levels first, in the first cache.
 */
#include "cpu/avx2_levels.h"
#include "codebook.h"
#include "cpu/avx2_codec.h"

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

static int largest_level(const tq_codec *c, int trellis)
{
    if (trellis)
        return tq_trellis_get(c->bits)->levels[(2u << c->bits) - 1];
    const tq_codebook *book = tq_codebook_get(c->bits);
    return book->levels[book->n_levels - 1];
}

void tq_avx2_level_source(tq_level_source *s, const tq_codec *c)
{
    s->codec = c;
    s->trellis = c->format >= TQ_FMT_TCQ2 && c->format <= TQ_FMT_TCQ6;
    s->nibbles = c->bits <= (s->trellis ? 3u : 4u) && c->dim % 64 == 0;
    s->in_place = !s->trellis && (c->bits == 4 ? s->nibbles : c->bits == 8 && c->dim % 32 == 0);
    s->small = c->bits <= 4;
    s->zero = (uint8_t)(s->small ? largest_level(c, s->trellis) : 128);
    s->add = _mm256_set1_epi8((char)(s->in_place ? s->zero : 0));
    s->unit = s->trellis ? tq_trellis_get(c->bits)->unit : tq_codebook_get(c->bits)->unit;
    if (s->trellis)
        s->tables = tq_avx2_trellis_tables(tq_trellis_get(c->bits), s->zero);
    else if (c->bits <= 6)
        s->tables = tq_avx2_norm_tables(tq_codebook_get(c->bits), s->zero);
    s->table = s->tables.t[0];
}

/* ---- Rows ------------------------------------------------------------------------------ */

/* Nibbles of a row of 2 or 3 bits: m from the plane of two bits, bit 2 from that of single bits. */
TQ_INLINE void row_nibbles(uint8_t *out, const uint8_t *codes, uint32_t dim, const int bits)
{
    const uint32_t n2 = dim / 4, n1 = dim / 8;
    const __m128i low = _mm_set1_epi8(0x33), high = _mm_set1_epi8(0x44);

    for (uint32_t i = 0; i < n2; i += 16) {
        const __m128i x = load128(codes + i);
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm_and_si128(x, low));
        _mm_storeu_si128((__m128i *)(void *)(out + n2 + i),
                         _mm_and_si128(_mm_srli_epi16(x, 2), low));
    }
    for (uint32_t i = 0; bits == 3 && i < n1; i += 8) {
        const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)(codes + n2 + i));
        const __m128i sign[4] = {_mm_slli_epi16(x, 2), _mm_slli_epi16(x, 1), x,
                                 _mm_srli_epi16(x, 1)};
        TQ_UNROLL_FOR (uint32_t r = 0; r < 4; r++) {
            __m128i *dst = (__m128i *)(void *)(out + r * n1 + i);
            const __m128i both = _mm_or_si128(_mm_loadl_epi64(dst), _mm_and_si128(sign[r], high));
            _mm_storel_epi64(dst, both);
        }
    }
}

TQ_INLINE void row_nibbles_128(uint8_t *out, const uint8_t *codes, const int bits)
{
    const __m256i low = _mm256_set1_epi8(0x33), high = _mm256_set1_epi8(0x44);
    const __m256i m = load256(codes);
    __m256i a = _mm256_and_si256(m, low), b = _mm256_and_si256(_mm256_srli_epi16(m, 2), low);

    if (bits == 3) {
        const __m256i up = _mm256_setr_epi32(2, 2, 2, 2, 1, 1, 1, 1);
        const __m256i down = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
        const __m256i x = _mm256_broadcastsi128_si256(load128(codes + 32));
        a = _mm256_or_si256(a, _mm256_and_si256(_mm256_sllv_epi32(x, up), high));
        b = _mm256_or_si256(b, _mm256_and_si256(_mm256_srlv_epi32(x, down), high));
    }
    store256(out, a);
    store256(out + 32, b);
}

TQ_INLINE void rows_nibbles(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                            uint32_t dim, uint32_t n, const int bits)
{
    for (uint32_t i = 0; i < n; i++, out += stride, codes += codes_stride) {
        if (dim == 128)
            row_nibbles_128(out, codes, bits);
        else
            row_nibbles(out, codes, dim, bits);
    }
}

void tq_avx2_level_rows(const uint8_t **row, uint8_t *room, const tq_level_source *s,
                        tq_const_planes rows, uint32_t t, uint32_t n)
{
    const tq_codec *c = s->codec;
    const uint8_t *codes = rows.codes + t * rows.codes_stride, *at = room;
    size_t stride = (s->nibbles ? c->dim / 2 : TQ_LEVEL_WIDTH(c->dim)) + PAD;

    if (s->nibbles && s->trellis)
        tq_avx2_trellis_nibbles(room, stride, codes, rows.codes_stride, c->bits, c->dim, n);
    else if (s->trellis)
        tq_avx2_trellis_levels((int8_t *)room, stride, codes, rows.codes_stride, &s->tables,
                               c->bits, c->dim, n);
    else if (s->in_place)
        at = codes, stride = rows.codes_stride;
    else if (c->bits >= 5 && c->bits <= 6 && c->dim % 128 == 0)
        tq_avx2_norm_wide_levels(room, stride, codes, rows.codes_stride, &s->tables, c->bits,
                                 c->dim, n);
    else if (!s->nibbles)
        tq_avx2_norm_levels(c, (int8_t *)room, stride, codes, rows.codes_stride, n, s->zero);
    else if (c->bits == 3)
        rows_nibbles(room, stride, codes, rows.codes_stride, c->dim, n, 3);
    else
        rows_nibbles(room, stride, codes, rows.codes_stride, c->dim, n, 2);
    for (uint32_t i = 0; i < ROWS; i++)
        row[i] = at + (i < n ? i : n - 1) * stride;
}

/* ---- Tokens as lanes ------------------------------------------------------------------- */

/* Bytes at .. at + 15 of 8 rows: dword i of all of them in out[i]. */
TQ_INLINE void turn(__m256i out[4], const uint8_t *const *row, uint32_t at)
{
    __m256i z[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        z[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(row[i] + at)),
                                       load128(row[i + 4] + at), 1);
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

void tq_avx2_turned_levels(uint8_t *dst, const tq_level_source *s, tq_const_planes rows, uint32_t t,
                           uint32_t n, tq_walk *ahead)
{
    uint8_t room[TQ_ROWS_ROOM];
    const uint8_t *row[ROWS];
    const uint32_t half = s->codec->dim / 2, width = TQ_LEVEL_WIDTH(s->codec->dim);

    tq_avx2_level_rows(row, room, s, rows, t, n);
    if (s->nibbles) {
        const __m256i table = s->table;
        for (uint32_t j = 0; j < half; j += 16) {
            tq_walk_on(ahead);
            for (uint32_t k = 0; k < 2; k++) {
                uint8_t *to = dst + (size_t)j * 16 + 32 * k;
                __m256i x[4];
                turn(x, row + 8 * k, j);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                    store256(to + 64 * i, lower_levels(x[i], table));
                    store256(to + 64 * i + (size_t)half * 16, upper_levels(x[i], table));
                }
            }
        }
        return;
    }
    for (uint32_t j = 0; j < width; j += 16) {
        tq_walk_on(ahead);
        for (uint32_t k = 0; k < 2; k++) {
            __m256i x[4];
            turn(x, row + 8 * k, j);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                store256(dst + (size_t)j * 16 + 64 * i + 32 * k, _mm256_add_epi8(x[i], s->add));
        }
    }
}

/* ---- Four tokens to a lane ------------------------------------------------------------- */

/* Bytes at .. at + 31 of four rows: dwords of 4 + 4 elements, out[i] those from 4 i and 16 + 4 i
 * on. */
TQ_INLINE void interleave(__m256i out[4], const uint8_t *const *row, uint32_t at)
{
    const __m256i r0 = load256(row[0] + at), r1 = load256(row[1] + at);
    const __m256i r2 = load256(row[2] + at), r3 = load256(row[3] + at);
    const __m256i a = _mm256_unpacklo_epi8(r0, r1), b = _mm256_unpacklo_epi8(r2, r3);
    const __m256i c = _mm256_unpackhi_epi8(r0, r1), d = _mm256_unpackhi_epi8(r2, r3);
    out[0] = _mm256_unpacklo_epi16(a, b);
    out[1] = _mm256_unpackhi_epi16(a, b);
    out[2] = _mm256_unpacklo_epi16(c, d);
    out[3] = _mm256_unpackhi_epi16(c, d);
}

void tq_avx2_level_quads(uint8_t *dst, const tq_level_source *s, tq_const_planes rows, uint32_t t,
                         uint32_t n, tq_walk *ahead)
{
    uint8_t room[TQ_ROWS_ROOM];
    const uint8_t *row[ROWS];
    const uint32_t half = s->codec->dim / 2, width = TQ_LEVEL_WIDTH(s->codec->dim);
    const size_t block = (size_t)(n + 3) / 4 * 64;

    for (uint32_t done = 0; done < n; done += ROWS) {
        const uint32_t left = n - done < ROWS ? n - done : ROWS;
        tq_avx2_level_rows(row, room, s, rows, t + done, left);
        for (uint32_t q = 0; q < left; q += 4) {
            uint8_t *to = dst + (size_t)(done + q) * 16;
            __m256i x[4];
            tq_walk_on(ahead);
            for (uint32_t j = 0; s->nibbles && j < half; j += 32, to += 2 * block) {
                uint8_t *upper = to + half / 16 * block;
                interleave(x, row + q, j);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                    const size_t at = i / 2 * block + 32 * (i % 2);
                    store256(to + at, lower_levels(x[i], s->table));
                    store256(upper + at, upper_levels(x[i], s->table));
                }
            }
            for (uint32_t j = 0; !s->nibbles && j < width; j += 32, to += 2 * block) {
                interleave(x, row + q, j);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                    store256(to + i / 2 * block + 32 * (i % 2), _mm256_add_epi8(x[i], s->add));
            }
        }
    }
}

/* ---- Scales ---------------------------------------------------------------------------- */

void tq_avx2_token_scales(float *dst, const uint8_t *plane, size_t stride, uint32_t t, uint32_t n)
{
    plane += t * stride;
    for (uint32_t i = 0; i < n; i += 8) {
        uint16_t h[8];
        if (stride == sizeof h[0] && n - i >= 8)
            memcpy(h, plane + i * stride, sizeof h);
        else
            for (uint32_t k = 0; k < 8; k++)
                memcpy(&h[k], plane + (i + k < n ? i + k : n - 1) * stride, sizeof h[k]);
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load128(h)));
    }
}
