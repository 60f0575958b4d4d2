/* SPDX-License-Identifier: MIT */
/* avx512_attn_planes.h — level bytes of rows of 128 elements whose level numbers have at most five
 * bits, straight from their planes, for AVX-512 with VBMI.
 *
 * A plane is 16 bytes, one for each place of a run (avx2_runs.h), so a register takes that of four
 * tokens, one to a lane of 16 bytes, and all that is done bitwise is done for 512 elements: 2 to 12
 * instructions make four registers of nibbles, runs k and k + 4 in register k. Only then are they
 * put in order, while still packed: one byte permutation gives four tokens to a dword, eight
 * shuffles of four registers give 16 tokens as lanes. Levels are looked up last, by six bits of
 * which those above a level number are junk: tables repeat.
 */
#ifndef TQ_CPU_AVX512_ATTN_PLANES_H
#define TQ_CPU_AVX512_ATTN_PLANES_H

#include "cpu/avx2_levels.h"
#include "cpu/avx2_runs.h"
#include "cpu/avx512_attn.h"

/* Which planes a row has. */
typedef enum tq_planes_kind {
    TQ_NO_PLANES,    /* none that these functions take */
    TQ_PLANES_2,     /* codes of two bits: runs 0, 2, 4, 6 in the fields of a byte; the others */
    TQ_PLANES_3,     /* and one of single bits */
    TQ_PLANES_4,     /* nibbles */
    TQ_PLANES_PATH,  /* trellis of three bits: two upper bits as above, path bits */
    TQ_PLANES_PATH_5 /* of four bits: two bits, the fifth bit, path bits */
} tq_planes_kind;

typedef struct tq_planes_of_128 {
    tq_planes_kind kind;
    __m512i table; /* level bytes by number */
} tq_planes_of_128;

#if TQ_HAVE_VNNI

TQ_INLINE tq_planes_of_128 tq_find_planes(const tq_level_source *s)
{
    static const uint8_t norm[5] = {0, 0, TQ_PLANES_2, TQ_PLANES_3, TQ_PLANES_4};
    static const uint8_t trellis[5] = {0, 0, 0, TQ_PLANES_PATH, TQ_PLANES_PATH_5};
    const uint32_t bits = s->codec->bits;
    tq_planes_of_128 p = {TQ_NO_PLANES, _mm512_setzero_si512()};

    if (s->codec->dim != 128 || bits > 4)
        return p;
    p.kind = (tq_planes_kind)(s->trellis ? trellis[bits] : norm[bits]);
    const __m128i t = _mm256_castsi256_si128(s->tables.t[0]);
    if (p.kind == TQ_PLANES_2)
        p.table = _mm512_broadcastd_epi32(t);
    else if (p.kind == TQ_PLANES_3)
        p.table = _mm512_broadcastq_epi64(t);
    else if (p.kind == TQ_PLANES_PATH_5)
        p.table = _mm512_broadcast_i64x4(_mm256_blend_epi32(s->tables.t[0], s->tables.t[1], 0xf0));
    else
        p.table = _mm512_broadcast_i32x4(t);
    return p;
}

/* Bits of a where mask has one, of b elsewhere. */
TQ_INLINE __m512i tq_pick_bits(int mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi64(_mm512_set1_epi8((char)mask), a, b, 0xca);
}

/* Nibbles of four rows of codes: runs k and k + 4 in the halves of the bytes of n[k]. What is above
 * the bits of a level number is junk. n[4]: fifth bits, bit r of a byte of run r. */
TQ_INLINE void tq_four_nibbles(__m512i n[5], const uint8_t *codes, size_t stride,
                               const tq_planes_kind kind)
{
    const __m512i a = tq_four_rows(codes, stride), b = tq_four_rows(codes + 16, stride);

    if (kind == TQ_PLANES_4) {
        n[0] = a, n[1] = b;
        n[2] = tq_four_rows(codes + 32, stride), n[3] = tq_four_rows(codes + 48, stride);
    } else if (kind == TQ_PLANES_2) {
        n[0] = a, n[1] = b;
        n[2] = _mm512_srli_epi16(a, 2), n[3] = _mm512_srli_epi16(b, 2);
    } else if (kind == TQ_PLANES_3) {
        const __m512i one = tq_four_rows(codes + 32, stride);
        n[0] = tq_pick_bits(0x44, _mm512_slli_epi16(one, 2), a);
        n[1] = tq_pick_bits(0x44, _mm512_slli_epi16(one, 1), b);
        n[2] = tq_pick_bits(0x44, one, _mm512_srli_epi16(a, 2));
        n[3] = tq_pick_bits(0x44, _mm512_srli_epi16(one, 1), _mm512_srli_epi16(b, 2));
    } else {
        const int fifth = kind == TQ_PLANES_PATH_5;
        const __m512i x = tq_four_rows(codes + (fifth ? 48 : 32), stride);
        /* Subset bits z0, z1 from the path bits of 0 to 3 elements before, see avx2_runs.h. */
        const __m512i before = _mm512_add_epi8(x, x);
        const __m512i z0 = _mm512_alignr_epi8(x, before, 14);
        const __m512i z1 =
            _mm512_ternarylogic_epi64(x, _mm512_alignr_epi8(x, before, 15),
                                      _mm512_alignr_epi8(x, before, 13), 0x96 /* xor */);
        /* Their pairs in fields of two bits, of even and of odd runs. */
        const __m512i even = tq_pick_bits(0x55, z0, _mm512_add_epi8(z1, z1));
        const __m512i odd = tq_pick_bits(0x55, _mm512_srli_epi16(z0, 1), z1);
        n[0] = tq_pick_bits(0x33, even, _mm512_slli_epi16(a, 2));
        n[1] = tq_pick_bits(0x33, odd, _mm512_slli_epi16(b, 2));
        n[2] = tq_pick_bits(0x33, _mm512_srli_epi16(even, 2), a);
        n[3] = tq_pick_bits(0x33, _mm512_srli_epi16(odd, 2), b);
        if (fifth)
            n[4] = tq_four_rows(codes + 32, stride);
    }
}

/* Level bytes of the lower and of the upper nibbles of n[k], which are in x. */
TQ_INLINE __m512i tq_lower_of_128(__m512i x, __m512i fifth, __m512i table, const uint32_t k,
                                  const tq_planes_kind kind)
{
    if (kind == TQ_PLANES_PATH_5)
        x = tq_pick_bits(0x0f, x, _mm512_slli_epi32(fifth, 4 - k));
    return _mm512_permutexvar_epi8(x, table);
}

TQ_INLINE __m512i tq_upper_of_128(__m512i x, __m512i fifth, __m512i table, const uint32_t k,
                                  const tq_planes_kind kind)
{
    x = _mm512_srli_epi16(x, 4);
    if (kind == TQ_PLANES_PATH_5)
        x = tq_pick_bits(0x0f, x, k ? _mm512_srli_epi32(fifth, k) : fifth);
    return _mm512_permutexvar_epi8(x, table);
}

/* `n` rows from row `first` on, of rows of which n_rows exist; the others become the last. */
TQ_INLINE tq_level_rows tq_rows_of_128(uint8_t *room, const uint8_t *codes, size_t stride,
                                       uint32_t first, uint32_t n_rows, const uint32_t n,
                                       const tq_planes_kind kind)
{
    const size_t bytes = kind == TQ_PLANES_2                             ? 32
                         : kind == TQ_PLANES_3 || kind == TQ_PLANES_PATH ? 48
                                                                         : 64;
    if (first + n <= n_rows)
        return (tq_level_rows){codes + first * stride, stride};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t t = first + i < n_rows ? first + i : n_rows - 1;
        memcpy(room + 64 * i, codes + t * stride, bytes);
    }
    return (tq_level_rows){room, 64};
}

/* As tq_avx2_level_quads: dst [8 runs][quads][16 places][4 tokens]. */
TQ_INLINE void tq_quads_of_kind(uint8_t *dst, __m512i table, tq_const_planes rows, uint32_t t,
                                uint32_t n, tq_lines *ahead, const tq_planes_kind kind)
{
    static const uint8_t four[64] __attribute__((aligned(64))) = {
        0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51, 4,  20, 36, 52, 5,  21,
        37, 53, 6,  22, 38, 54, 7,  23, 39, 55, 8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58,
        11, 27, 43, 59, 12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
    const __m512i order = _mm512_load_si512(four);
    const size_t block = (size_t)(n + 3) / 4 * 64;
    const uint8_t *codes = rows.codes + t * rows.codes_stride;
    uint8_t room[4 * 64];

    for (uint32_t q = 0; 4 * q < n; q++, dst += 64) {
        const tq_level_rows row = tq_rows_of_128(room, codes, rows.codes_stride, 4 * q, n, 4, kind);
        __m512i x[5] = {table, table, table, table, table};
        tq_next_line(ahead);
        tq_four_nibbles(x, row.at, row.stride, kind);
        tq_next_line(ahead);
        if (kind == TQ_PLANES_PATH_5)
            x[4] = _mm512_permutexvar_epi8(order, x[4]);
        TQ_UNROLL_FOR (uint32_t k = 0; k < 4; k++) {
            const __m512i y = _mm512_permutexvar_epi8(order, x[k]);
            _mm512_store_si512(dst + k * block, tq_lower_of_128(y, x[4], table, k, kind));
            _mm512_store_si512(dst + (k + 4) * block, tq_upper_of_128(y, x[4], table, k, kind));
        }
    }
}

/* As tq_avx2_turned_levels. */
TQ_INLINE void tq_turned_of_kind(uint8_t *dst, __m512i table, tq_const_planes rows, uint32_t t,
                                 uint32_t n, tq_lines *ahead, const tq_planes_kind kind)
{
    uint8_t room[16 * 64];
    const tq_level_rows row =
        tq_rows_of_128(room, rows.codes + t * rows.codes_stride, rows.codes_stride, 0, n, 16, kind);
    __m512i x[4][5], fifth[4] = {table, table, table, table};

    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        tq_four_nibbles(x[i], row.at + i * row.stride, 4 * row.stride, kind);
    if (kind == TQ_PLANES_PATH_5) {
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            fifth[i] = x[i][4];
        tq_turn_dwords(fifth);
    }
    TQ_UNROLL_FOR (uint32_t k = 0; k < 4; k++) {
        __m512i y[4] = {x[0][k], x[1][k], x[2][k], x[3][k]};
        tq_turn_dwords(y);
        TQ_UNROLL_FOR (uint32_t c = 0; c < 4; c++) {
            uint8_t *to = dst + 64 * (4 * k + c);
            if (c % 2 == 0)
                tq_next_line(ahead);
            _mm512_store_si512(to, tq_lower_of_128(y[c], fifth[c], table, k, kind));
            _mm512_store_si512(to + 64 * 16, tq_upper_of_128(y[c], fifth[c], table, k, kind));
        }
    }
}

#define TQ_BY_KIND(function, dst, planes, ...)                                                     \
    do {                                                                                           \
        if ((planes)->kind == TQ_PLANES_2)                                                         \
            function(dst, (planes)->table, __VA_ARGS__, TQ_PLANES_2);                              \
        else if ((planes)->kind == TQ_PLANES_3)                                                    \
            function(dst, (planes)->table, __VA_ARGS__, TQ_PLANES_3);                              \
        else if ((planes)->kind == TQ_PLANES_4)                                                    \
            function(dst, (planes)->table, __VA_ARGS__, TQ_PLANES_4);                              \
        else if ((planes)->kind == TQ_PLANES_PATH)                                                 \
            function(dst, (planes)->table, __VA_ARGS__, TQ_PLANES_PATH);                           \
        else                                                                                       \
            function(dst, (planes)->table, __VA_ARGS__, TQ_PLANES_PATH_5);                         \
    } while (0)

/* Levels of tokens t .. t + n - 1 of rows that tq_find_planes takes; dst 64-byte aligned. */
TQ_INLINE void tq_quads_of_128(uint8_t *dst, const tq_planes_of_128 *p, tq_const_planes rows,
                               uint32_t t, uint32_t n, tq_lines *ahead)
{
    TQ_BY_KIND(tq_quads_of_kind, dst, p, rows, t, n, ahead);
}

TQ_INLINE void tq_turned_of_128(uint8_t *dst, const tq_planes_of_128 *p, tq_const_planes rows,
                                uint32_t t, uint32_t n, tq_lines *ahead)
{
    TQ_BY_KIND(tq_turned_of_kind, dst, p, rows, t, n, ahead);
}

#else

TQ_INLINE tq_planes_of_128 tq_find_planes(const tq_level_source *s)
{
    (void)s;
    return (tq_planes_of_128){TQ_NO_PLANES, _mm512_setzero_si512()};
}

TQ_INLINE void tq_quads_of_128(uint8_t *dst, const tq_planes_of_128 *p, tq_const_planes rows,
                               uint32_t t, uint32_t n, tq_lines *ahead)
{
    (void)dst, (void)p, (void)rows, (void)t, (void)n, (void)ahead;
}

TQ_INLINE void tq_turned_of_128(uint8_t *dst, const tq_planes_of_128 *p, tq_const_planes rows,
                                uint32_t t, uint32_t n, tq_lines *ahead)
{
    (void)dst, (void)p, (void)rows, (void)t, (void)n, (void)ahead;
}

#endif
#endif
