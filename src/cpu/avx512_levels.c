/* SPDX-License-Identifier: MIT */
/* avx512_levels.c — avx2_levels.c in registers of 64 bytes. Each is stored whole, and whole it is
 * loaded again: a load that spans two stores would wait until both have left the core.
 *
 * With VBMI a row of 128 elements whose level numbers have 5 to 7 bits is two lookups: the index is
 * put together by shifts of planes and a bitwise choice, and one byte permutation has 64 entries.
 */
#include "cpu/avx2_levels.h"
#include "cpu/avx2_runs.h"
#include "cpu/avx512_attn.h"

enum { ROWS = 16 };

/* ---- Rows ------------------------------------------------------------------------------ */

#if TQ_HAVE_VNNI /* and VBMI */

/* Entries 0..63 and 64..127; shorter tables are repeated. */
typedef struct level_tables {
    __m512i low, high;
} level_tables;

static level_tables tables_of(const tq_level_source *s)
{
    const uint32_t n = (1u << (s->codec->bits + (s->trellis ? 1 : 0))) / 16;
    uint8_t all[128];

    for (uint32_t i = 0; i < 8; i++)
        _mm_storeu_si128((__m128i *)(void *)(all + 16 * i),
                         _mm256_castsi256_si128(s->tables.t[i % n]));
    level_tables t = {_mm512_loadu_si512(all), _mm512_loadu_si512(all + 64)};
    return t;
}

/* Fields of two bits: 0 and 2 in the first half, 1 and 3 in the second, in the places of 0 and 2.
 */
TQ_INLINE __m512i fields_by_half(__m256i x)
{
    const __m512i by_half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    return _mm512_srlv_epi32(_mm512_broadcast_i64x4(x), by_half);
}

/* Bits of a where mask is 1, of b elsewhere. */
TQ_INLINE __m512i choose(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}

TQ_INLINE __m512i look_up(const level_tables *t, __m512i idx, const uint32_t bits)
{
    return bits == 7 ? _mm512_permutex2var_epi8(t->low, idx, t->high)
                     : _mm512_permutexvar_epi8(idx, t->low);
}

TQ_INLINE void wide_row(uint8_t *out, const uint8_t *codes, const level_tables *t,
                        const int trellis, const uint32_t code_bits)
{
    const uint32_t bits = code_bits + (trellis ? 1 : 0);
    const __m512i low4 = _mm512_set1_epi8(15), bit6 = _mm512_set1_epi8(64);
    const uint8_t *more = codes + (trellis ? 32 : 64);
    __m512i n;

    if (trellis) {
        const tq_nibbles half = tq_nibbles_of_128(codes, code_bits);
        n = _mm512_inserti64x4(_mm512_castsi256_si512(half.n02), half.n13, 1);
    } else {
        n = _mm512_loadu_si512(codes);
    }
    const __m512i two =
        fields_by_half(bits == 5 ? tq_runs_of_one_bit(tq_load128(more)) : tq_load_halves(more, 16));
    __m512i a = choose(low4, n, _mm512_slli_epi16(two, 4));
    __m512i b = choose(low4, _mm512_srli_epi16(n, 4), two);
    if (bits == 7) {
        const __m512i six = fields_by_half(tq_runs_of_one_bit(tq_load128(more + 32)));
        a = choose(bit6, _mm512_slli_epi16(six, 6), a);
        b = choose(bit6, _mm512_slli_epi16(six, 2), b);
    }
    _mm512_storeu_si512(out, look_up(t, a, bits));
    _mm512_storeu_si512(out + 64, look_up(t, b, bits));
}

TQ_INLINE void wide_rows(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                         const tq_level_source *s, uint32_t n, const int trellis,
                         const uint32_t bits)
{
    const level_tables t = tables_of(s);
    for (uint32_t i = 0; i < n; i++)
        wide_row(out + i * stride, codes + i * codes_stride, &t, trellis, bits);
}

/* As tq_avx2_level_rows where this file is faster; otherwise returns 0. */
static int find_wide_rows(tq_level_rows *row, uint8_t *room, const tq_level_source *s,
                          tq_const_planes rows, uint32_t t, uint32_t n)
{
    const uint32_t bits = s->codec->bits;
    const uint8_t *codes = rows.codes + t * rows.codes_stride;
    const size_t stride = 128;

    if (s->codec->dim != 128 || bits == 8 || bits < (s->trellis ? 4 : 5))
        return 0;
    if (s->trellis && bits == 4)
        wide_rows(room, stride, codes, rows.codes_stride, s, n, 1, 4);
    else if (s->trellis && bits == 5)
        wide_rows(room, stride, codes, rows.codes_stride, s, n, 1, 5);
    else if (s->trellis)
        wide_rows(room, stride, codes, rows.codes_stride, s, n, 1, 6);
    else if (bits == 5)
        wide_rows(room, stride, codes, rows.codes_stride, s, n, 0, 5);
    else
        wide_rows(room, stride, codes, rows.codes_stride, s, n, 0, 6);
    tq_repeat_last_row(room, stride, 128, n);
    *row = (tq_level_rows){room, stride};
    return 1;
}

#endif

/* Nibbles of rows of 128 codes of 2 or 3 bits: a plane of two bits, then one of single bits. */
TQ_INLINE tq_level_rows nibbles_of_128(uint8_t *room, const uint8_t *codes, size_t codes_stride,
                                       uint32_t n, const int bits)
{
    const __m512i by_half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m512i by_run = _mm512_setr_epi32(2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 31, 31, 31, 31);
    const __m512i low = _mm512_set1_epi8(0x33), high = _mm512_set1_epi8(0x44);
    for (uint32_t i = 0; i < n; i++, codes += codes_stride) {
        const __m256i two = _mm256_loadu_si256((const __m256i *)(const void *)codes);
        __m512i x = _mm512_and_si512(_mm512_srlv_epi32(_mm512_broadcast_i64x4(two), by_half), low);
        if (bits == 3) {
            const __m512i one = _mm512_broadcast_i32x4(tq_load128(codes + 32));
            /* x where high has no bit, which x does not have either */
            x = _mm512_ternarylogic_epi64(x, _mm512_rolv_epi32(one, by_run), high, 0xf8);
        }
        _mm512_storeu_si512(room + 64 * i, x);
    }
    tq_repeat_last_row(room, 64, 64, n);
    return (tq_level_rows){room, 64};
}

TQ_INLINE tq_level_rows find_rows(uint8_t *room, const tq_level_source *s, tq_const_planes rows,
                                  uint32_t t, uint32_t n)
{
#if TQ_HAVE_VNNI
    tq_level_rows row;
    if (find_wide_rows(&row, room, s, rows, t, n))
        return row;
#endif
    const tq_codec *c = s->codec;
    if (!s->trellis && c->bits <= 3 && c->dim == 128) {
        const uint8_t *codes = rows.codes + t * rows.codes_stride;
        return c->bits == 3 ? nibbles_of_128(room, codes, rows.codes_stride, n, 3)
                            : nibbles_of_128(room, codes, rows.codes_stride, n, 2);
    }
    return tq_avx2_level_rows(room, s, rows, t, n);
}

/* ---- Level bytes ----------------------------------------------------------------------- */

TQ_INLINE __m512i lower_levels(__m512i x, __m512i table)
{
    return _mm512_shuffle_epi8(table, _mm512_and_si512(x, _mm512_set1_epi8(15)));
}

TQ_INLINE __m512i upper_levels(__m512i x, __m512i table)
{
    return lower_levels(_mm512_srli_epi16(x, 4), table);
}

/* 16 bytes of each of 16 rows from row on: dword i of all of them in out[i]. */
TQ_INLINE void turn(__m512i out[4], const uint8_t *row, size_t stride)
{
    const uint8_t *row4 = row + 4 * stride, *row8 = row4 + 4 * stride, *row12 = row8 + 4 * stride;
    __m512i z[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        z[i] = _mm512_castsi128_si512(tq_load128(row + i * stride));
        z[i] = _mm512_inserti32x4(z[i], tq_load128(row4 + i * stride), 1);
        z[i] = _mm512_inserti32x4(z[i], tq_load128(row8 + i * stride), 2);
        z[i] = _mm512_inserti32x4(z[i], tq_load128(row12 + i * stride), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpacklo_epi32(z[2], z[3]);
    const __m512i c = _mm512_unpackhi_epi32(z[0], z[1]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm512_unpacklo_epi64(a, b);
    out[1] = _mm512_unpackhi_epi64(a, b);
    out[2] = _mm512_unpacklo_epi64(c, d);
    out[3] = _mm512_unpackhi_epi64(c, d);
}

void TQ_CLUSTER(tq_avx512_turned_levels)(uint8_t *dst, const tq_level_source *s,
                                         tq_const_planes rows, uint32_t t, uint32_t n,
                                         tq_walk *ahead)
{
    uint8_t room[TQ_ROWS_ROOM] __attribute__((aligned(64)));
    const uint32_t half = s->codec->dim / 2, width = TQ_LEVEL_WIDTH(s->codec->dim);
    const __m512i table = _mm512_broadcast_i64x4(s->tables.t[0]);
    const __m512i add = _mm512_broadcast_i64x4(s->add);

    const tq_level_rows row = find_rows(room, s, rows, t, n);
    for (uint32_t j = 0; j < (s->nibbles ? half : width); j += 16) {
        uint8_t *to = dst + (size_t)j * 16;
        __m512i x[4];
        tq_walk_on(ahead);
        turn(x, row.at + j, row.stride);
        if (s->nibbles)
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                _mm512_store_si512(to + 64 * i, lower_levels(x[i], table));
                _mm512_store_si512(to + 64 * i + (size_t)half * 16, upper_levels(x[i], table));
            }
        else
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                _mm512_store_si512(to + 64 * i, _mm512_add_epi8(x[i], add));
    }
}

/* 64 bytes of each of four rows from row on: dwords of 4 elements per lane of 16 bytes, out[i]
 * those from 16 lane + 4 i on. */
TQ_INLINE void interleave(__m512i out[4], const uint8_t *row, size_t stride)
{
    const __m512i r0 = _mm512_loadu_si512(row), r1 = _mm512_loadu_si512(row + stride);
    const __m512i r2 = _mm512_loadu_si512(row + 2 * stride);
    const __m512i r3 = _mm512_loadu_si512(row + 3 * stride);
    const __m512i a = _mm512_unpacklo_epi8(r0, r1), b = _mm512_unpacklo_epi8(r2, r3);
    const __m512i c = _mm512_unpackhi_epi8(r0, r1), d = _mm512_unpackhi_epi8(r2, r3);
    out[0] = _mm512_unpacklo_epi16(a, b);
    out[1] = _mm512_unpackhi_epi16(a, b);
    out[2] = _mm512_unpacklo_epi16(c, d);
    out[3] = _mm512_unpackhi_epi16(c, d);
}

void TQ_CLUSTER(tq_avx512_level_quads)(uint8_t *dst, const tq_level_source *s, tq_const_planes rows,
                                       uint32_t t, uint32_t n, tq_walk *ahead)
{
    uint8_t room[TQ_ROWS_ROOM] __attribute__((aligned(64)));
    const uint32_t dim = s->codec->dim, half = dim / 2;
    const size_t block = (size_t)(n + 3) / 4 * 64;
    const __m512i table = _mm512_broadcast_i64x4(s->tables.t[0]);
    const __m512i add = _mm512_broadcast_i64x4(s->add);

    for (uint32_t done = 0; done < n; done += ROWS) {
        const uint32_t left = n - done < ROWS ? n - done : ROWS;
        const tq_level_rows row = find_rows(room, s, rows, t + done, left);
        for (uint32_t q = 0; q < left; q += 4) {
            uint8_t *to = dst + (size_t)(done + q) * 16;
            tq_walk_on(ahead);
            for (uint32_t j = 0; j < (s->nibbles ? half : dim); j += 64, to += 4 * block) {
                __m512i x[4];
                interleave(x, row.at + q * row.stride + j, row.stride);
                if (s->nibbles)
                    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                        _mm512_store_si512(to + i * block, lower_levels(x[i], table));
                        _mm512_store_si512(to + (half / 16 + i) * block, upper_levels(x[i], table));
                    }
                else
                    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                        _mm512_store_si512(to + i * block, _mm512_add_epi8(x[i], add));
            }
        }
    }
}
