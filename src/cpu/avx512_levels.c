/* SPDX-License-Identifier: MIT */
/* avx512_levels.c — avx2_levels.c in registers of 64 bytes. Each is stored whole, and whole it is
 * loaded again: a load that spans two stores would wait until both have left the core.
 */
#include "cpu/avx2_levels.h"
#include "cpu/avx2_runs.h"
#include "cpu/avx512_attn.h"

enum { ROWS = 16 };

/* ---- Rows ------------------------------------------------------------------------------ */

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
    const tq_codec *c = s->codec;
    if (!s->trellis && c->bits <= 3 && c->dim == 128) {
        const uint8_t *codes = rows.codes + t * rows.codes_stride;
        return c->bits == 3 ? nibbles_of_128(room, codes, rows.codes_stride, n, 3)
                            : nibbles_of_128(room, codes, rows.codes_stride, n, 2);
    }
    return tq_avx2_level_rows(room, s, tq_rows_from(&rows, t), n);
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
