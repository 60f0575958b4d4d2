/* SPDX-License-Identifier: MIT */
/* avx512_attn_planes.h — level bytes of rows of 64, 128 and 256 elements of norm-codebook and
 * trellis, straight from their planes, for AVX-512 with VBMI.
 *
 * A plane of 128 elements is 16 bytes, one for each place of a run (avx2_runs.h), so a register
 * takes that of four tokens, one to a lane of 16 bytes, and all that is done bitwise is done for
 * 512 elements: 2 to 12 instructions make four registers of nibbles, runs k and k + 4 in register
 * k. Bits above a nibble stay in planes. A shift and a bitwise choice put the number of a level
 * together, and it is looked up among 64 or 128: what is above its bits is junk, and tables repeat.
 *
 * Rows of 256 are two PARTS, 16 of the 32 places each. Planes of 64 elements are 8 bytes: a
 * register takes those of eight tokens, two to a lane.
 */
#ifndef TQ_CPU_AVX512_ATTN_PLANES_H
#define TQ_CPU_AVX512_ATTN_PLANES_H

#include "cpu/avx2_levels.h"
#include "cpu/avx2_runs.h"
#include "cpu/avx512_attn.h"

enum { TQ_RUNS = 8 };

/* Places of a run that are handled together: what a register has of a token. */
TQ_INLINE uint32_t tq_places_of(const uint32_t dim)
{
    return dim < 128 ? 8 : 16;
}

TQ_INLINE uint32_t tq_parts_of(const uint32_t dim)
{
    return dim / TQ_RUNS / tq_places_of(dim);
}

/* Which planes a row has. */
typedef enum tq_planes_kind {
    TQ_NO_PLANES,     /* none that these functions take */
    TQ_PLANES_2,      /* codes of two bits: runs 0, 2, 4, 6 in the fields of a byte; the others */
    TQ_PLANES_3,      /* and one of single bits */
    TQ_PLANES_4,      /* nibbles */
    TQ_PLANES_5,      /* and fifth bits */
    TQ_PLANES_6,      /* nibbles, then two bits as above */
    TQ_PLANES_BYTES,  /* levels */
    TQ_PLANES_PATH_3, /* trellis of two bits: single upper bits, path bits */
    TQ_PLANES_PATH,   /* of three bits: two upper bits as above, path bits */
    TQ_PLANES_PATH_5, /* of four bits: two bits, the fifth bit, path bits */
    TQ_PLANES_PATH_6, /* of five bits: twice two bits, path bits */
    TQ_PLANES_PATH_7  /* of six bits: twice two bits, the seventh, path bits */
} tq_planes_kind;

TQ_INLINE tq_planes_kind tq_planes_of(const tq_codec *c)
{
    static const uint8_t norm[9] = {
        [2] = TQ_PLANES_2, [3] = TQ_PLANES_3, [4] = TQ_PLANES_4,
        [5] = TQ_PLANES_5, [6] = TQ_PLANES_6, [8] = TQ_PLANES_BYTES,
    };
    static const uint8_t trellis[9] = {
        [2] = TQ_PLANES_PATH_3, [3] = TQ_PLANES_PATH,   [4] = TQ_PLANES_PATH_5,
        [5] = TQ_PLANES_PATH_6, [6] = TQ_PLANES_PATH_7,
    };
    const int is_trellis = c->format >= TQ_FMT_TCQ2 && c->format <= TQ_FMT_TCQ6;
    if ((c->dim != 64 && c->dim != 128 && c->dim != 256) || c->bits > 8)
        return TQ_NO_PLANES;
    return (tq_planes_kind)(is_trellis ? trellis[c->bits] : norm[c->bits]);
}

/* Bits of a number above its nibble. */
TQ_INLINE uint32_t tq_upper_of(const tq_planes_kind kind)
{
    return kind == TQ_PLANES_PATH_7                          ? 3
           : kind == TQ_PLANES_6 || kind == TQ_PLANES_PATH_6 ? 2
           : kind == TQ_PLANES_5 || kind == TQ_PLANES_PATH_5 ? 1
                                                             : 0;
}

/* Path bits, or TQ_RUNS planes of bytes, are last. */
TQ_INLINE uint32_t tq_planes_in(const tq_planes_kind kind)
{
    switch (kind) {
    case TQ_PLANES_2:
    case TQ_PLANES_PATH_3:
        return 2;
    case TQ_PLANES_3:
    case TQ_PLANES_PATH:
        return 3;
    case TQ_PLANES_4:
    case TQ_PLANES_PATH_5:
        return 4;
    case TQ_PLANES_5:
    case TQ_PLANES_PATH_6:
        return 5;
    case TQ_PLANES_6:
    case TQ_PLANES_PATH_7:
        return 6;
    default:
        return TQ_RUNS;
    }
}

/* Level bytes by number, 0 .. 63 and those from 64 on. */
typedef struct tq_level_table {
    __m512i low, high;
} tq_level_table;

/* 16 level bytes are in both lanes of each of t. */
TQ_INLINE __m512i tq_four_tables(const __m256i *t)
{
    const __m256i a = _mm256_blend_epi32(t[0], t[1], 0xf0),
                  b = _mm256_blend_epi32(t[2], t[3], 0xf0);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

TQ_INLINE tq_level_table tq_table_of(const tq_level_source *s)
{
    const __m256i *t = s->tables.t;
    const __m128i few = _mm256_castsi256_si128(t[0]);
    tq_level_table of;

    switch (s->codec->bits + (s->trellis ? 1 : 0)) {
    case 2:
        of.low = _mm512_broadcastd_epi32(few);
        break;
    case 3:
        of.low = _mm512_broadcastq_epi64(few);
        break;
    case 4:
        of.low = _mm512_broadcast_i32x4(few);
        break;
    case 5:
        of.low = _mm512_broadcast_i64x4(_mm256_blend_epi32(t[0], t[1], 0xf0));
        break;
    default: /* 8 bits have no table */
        of.low = tq_four_tables(t);
        break;
    }
    of.high = s->trellis && s->codec->bits == 6 ? tq_four_tables(t + 4) : of.low;
    return of;
}

/* ---- Rows of a register ---------------------------------------------------------------- */

/* Nibbles: runs k and k + 4 in the halves of the bytes of n[k]; what is above a number's bits is
 * junk. up: one bit above: bit r of a byte of run r; two: of even runs in the fields of up[0], of
 * odd runs in those of up[1]; a third like the first, in up[2]. */
typedef struct tq_some_planes {
    __m512i n[4], up[3];
} tq_some_planes;

/* Bits of a where mask has one, of b elsewhere. */
TQ_INLINE __m512i tq_pick_bits(int mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi64(_mm512_set1_epi8((char)mask), a, b, 0xca);
}

/* Lane i has row at[i]; rows of 64: and then row at[4 + i]. */
typedef struct tq_rows_at {
    const uint8_t *at[8];
} tq_rows_at;

/* Rows of lanes are `stride` apart, the second of a lane is `second` behind the first. */
TQ_INLINE tq_rows_at tq_find_lanes(const uint8_t *codes, size_t stride, size_t second,
                                   const uint32_t dim)
{
    const uint32_t n = 64 / tq_places_of(dim);
    tq_rows_at rows;
    /* Else gcc adds up the place in each row anew, from sums that it keeps in vector registers. */
    TQ_UNROLL_FOR (uint32_t i = 0; i < n; i++) {
        rows.at[i] = codes + i % 4 * stride + i / 4 * second;
        __asm__("" : "+r"(rows.at[i]));
    }
    return rows;
}

/* Those of the next part, of rows of 256. */
TQ_INLINE tq_rows_at tq_next_part(const tq_rows_at *rows)
{
    tq_rows_at next;
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        next.at[i] = rows->at[i] + 16;
    return next;
}

/* 16 bytes of each of four rows, one to a lane. */
TQ_INLINE __m512i tq_lanes_at(const uint8_t *const row[4], size_t at)
{
    __m512i x = _mm512_castsi128_si512(tq_load128(row[0] + at));
    x = _mm512_inserti32x4(x, tq_load128(row[1] + at), 1);
    x = _mm512_inserti32x4(x, tq_load128(row[2] + at), 2);
    return _mm512_inserti32x4(x, tq_load128(row[3] + at), 3);
}

/* A plane of some rows. Rows of 64: of two planes that are loaded together, the first or the
 * second, which the last is in any case: nothing behind a row is read. */
TQ_INLINE __m512i tq_plane_of_rows(const tq_rows_at *rows, const uint32_t plane,
                                   const tq_planes_kind kind, const uint32_t dim)
{
    const uint32_t second = plane % 2 == 1 || plane + 1 == tq_planes_in(kind);
    const size_t at = (size_t)(plane - second) * 8;
    if (dim != 64)
        return tq_lanes_at(rows->at, plane * dim / TQ_RUNS);
    const __m512i a = tq_lanes_at(rows->at, at), b = tq_lanes_at(rows->at + 4, at);
    return second ? _mm512_unpackhi_epi64(a, b) : _mm512_unpacklo_epi64(a, b);
}

/* x[1 .. 3]: path bits of so many elements before those of the plane x[0], see avx2_runs.h: they
 * are a byte before, or at the end of the row, one bit lower. */
TQ_INLINE void tq_path_before(__m512i x[4], const tq_rows_at *rows, uint32_t part,
                              const tq_planes_kind kind, const uint32_t dim)
{
    if (dim == 64) {
        x[1] = _mm512_rol_epi64(x[0], 8);
        x[2] = _mm512_rol_epi64(x[0], 16);
        x[3] = _mm512_rol_epi64(x[0], 24);
        x[1] = _mm512_mask_add_epi8(x[1], 0x0101010101010101, x[1], x[1]);
        x[2] = _mm512_mask_add_epi8(x[2], 0x0303030303030303, x[2], x[2]);
        x[3] = _mm512_mask_add_epi8(x[3], 0x0707070707070707, x[3], x[3]);
        return;
    }
    __m512i before = x[0];
    if (dim == 256) /* of the other part */
        before = tq_lanes_at(rows->at, (tq_planes_in(kind) - 1) * dim / TQ_RUNS + 16 - 32 * part);
    before = _mm512_mask_add_epi8(before, part ? 0 : ~(__mmask64)0, before, before);
    x[1] = _mm512_alignr_epi8(x[0], before, 15);
    x[2] = _mm512_alignr_epi8(x[0], before, 14);
    x[3] = _mm512_alignr_epi8(x[0], before, 13);
}

TQ_INLINE void tq_some_nibbles(tq_some_planes *f, const tq_rows_at *rows, uint32_t part,
                               const tq_planes_kind kind, const uint32_t dim)
{
    const __m512i a = tq_plane_of_rows(rows, 0, kind, dim);
    const __m512i b =
        kind == TQ_PLANES_PATH_3 ? _mm512_srli_epi16(a, 1) : tq_plane_of_rows(rows, 1, kind, dim);
    __m512i *n = f->n;

    if (kind == TQ_PLANES_4 || kind == TQ_PLANES_5 || kind == TQ_PLANES_6) {
        n[0] = a, n[1] = b;
        n[2] = tq_plane_of_rows(rows, 2, kind, dim), n[3] = tq_plane_of_rows(rows, 3, kind, dim);
    } else if (kind == TQ_PLANES_2) {
        n[0] = a, n[1] = b;
        n[2] = _mm512_srli_epi16(a, 2), n[3] = _mm512_srli_epi16(b, 2);
    } else if (kind == TQ_PLANES_3) {
        const __m512i one = tq_plane_of_rows(rows, 2, kind, dim);
        n[0] = tq_pick_bits(0x44, _mm512_slli_epi16(one, 2), a);
        n[1] = tq_pick_bits(0x44, _mm512_slli_epi16(one, 1), b);
        n[2] = tq_pick_bits(0x44, one, _mm512_srli_epi16(a, 2));
        n[3] = tq_pick_bits(0x44, _mm512_srli_epi16(one, 1), _mm512_srli_epi16(b, 2));
    } else {
        __m512i x[4];
        x[0] = tq_plane_of_rows(rows, tq_planes_in(kind) - 1, kind, dim);
        tq_path_before(x, rows, part, kind, dim);
        /* Subset bits z0, z1 from the path bits of 0 to 3 elements before, see avx2_runs.h. */
        const __m512i z0 = x[2];
        const __m512i z1 = _mm512_ternarylogic_epi64(x[0], x[1], x[3], 0x96 /* xor */);
        /* Their pairs in fields of two bits, of even and of odd runs. */
        const __m512i even = tq_pick_bits(0x55, z0, _mm512_add_epi8(z1, z1));
        const __m512i odd = tq_pick_bits(0x55, _mm512_srli_epi16(z0, 1), z1);
        n[0] = tq_pick_bits(0x33, even, _mm512_slli_epi16(a, 2));
        n[1] = tq_pick_bits(0x33, odd, _mm512_slli_epi16(b, 2));
        n[2] = tq_pick_bits(0x33, _mm512_srli_epi16(even, 2), a);
        n[3] = tq_pick_bits(0x33, _mm512_srli_epi16(odd, 2), b);
    }
}

/* Rows of 256: rows->at is where the part's bytes of the first plane are. */
TQ_INLINE void tq_load_planes(tq_some_planes *f, const tq_rows_at *rows, uint32_t part,
                              const tq_planes_kind kind, const uint32_t dim)
{
    const uint32_t above = kind < TQ_PLANES_PATH_3 ? 4 : 2;
    tq_some_nibbles(f, rows, part, kind, dim);
    TQ_UNROLL_FOR (uint32_t i = 0; i < tq_upper_of(kind); i++)
        f->up[i] = tq_plane_of_rows(rows, above + i, kind, dim);
}

/* Left by `by` bits, which may be negative; bits that cross into a byte are junk. */
TQ_INLINE __m512i tq_shift_bits(__m512i x, const int by)
{
    return by > 0   ? _mm512_slli_epi32(x, (unsigned)by)
           : by < 0 ? _mm512_srli_epi32(x, (unsigned)-by)
                    : x;
}

/* Level bytes of run r. */
TQ_INLINE __m512i tq_levels_of_run(const tq_some_planes *f, const tq_level_table *t, const int r,
                                   const tq_planes_kind kind)
{
    const uint32_t upper = tq_upper_of(kind);
    __m512i x = r < 4 ? f->n[r] : _mm512_srli_epi16(f->n[r - 4], 4);
    if (upper == 1)
        x = tq_pick_bits(0x0f, x, tq_shift_bits(f->up[0], 4 - r));
    else if (upper > 1)
        x = tq_pick_bits(0x0f, x, tq_shift_bits(f->up[r % 2], 4 - r / 2 * 2));
    if (upper < 3)
        return _mm512_permutexvar_epi8(x, t->low);
    x = tq_pick_bits(0x40, tq_shift_bits(f->up[2], 6 - r), x);
    return _mm512_permutex2var_epi8(t->low, x, t->high);
}

/* `n` rows from row `first` on, of rows of which n_rows exist; the others become the last. room: n
 * rows of dim bytes. */
TQ_INLINE tq_level_rows tq_some_rows(uint8_t *room, const uint8_t *codes, size_t stride,
                                     uint32_t first, uint32_t n_rows, const uint32_t n,
                                     const tq_planes_kind kind, const uint32_t dim)
{
    if (first + n <= n_rows)
        return (tq_level_rows){codes + first * stride, stride};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t t = first + i < n_rows ? first + i : n_rows - 1;
        memcpy(room + dim * i, codes + t * stride, tq_planes_in(kind) * dim / TQ_RUNS);
    }
    return (tq_level_rows){room, dim};
}

/* CALL(kind, dim) for what is known only here. */
#define TQ_CALL_KIND(kind, dim, CALL)                                                              \
    do {                                                                                           \
        switch (kind) {                                                                            \
        case TQ_PLANES_2:                                                                          \
            CALL(TQ_PLANES_2, dim);                                                                \
            break;                                                                                 \
        case TQ_PLANES_3:                                                                          \
            CALL(TQ_PLANES_3, dim);                                                                \
            break;                                                                                 \
        case TQ_PLANES_4:                                                                          \
            CALL(TQ_PLANES_4, dim);                                                                \
            break;                                                                                 \
        case TQ_PLANES_5:                                                                          \
            CALL(TQ_PLANES_5, dim);                                                                \
            break;                                                                                 \
        case TQ_PLANES_6:                                                                          \
            CALL(TQ_PLANES_6, dim);                                                                \
            break;                                                                                 \
        case TQ_PLANES_BYTES:                                                                      \
            CALL(TQ_PLANES_BYTES, dim);                                                            \
            break;                                                                                 \
        case TQ_PLANES_PATH_3:                                                                     \
            CALL(TQ_PLANES_PATH_3, dim);                                                           \
            break;                                                                                 \
        case TQ_PLANES_PATH:                                                                       \
            CALL(TQ_PLANES_PATH, dim);                                                             \
            break;                                                                                 \
        case TQ_PLANES_PATH_5:                                                                     \
            CALL(TQ_PLANES_PATH_5, dim);                                                           \
            break;                                                                                 \
        case TQ_PLANES_PATH_6:                                                                     \
            CALL(TQ_PLANES_PATH_6, dim);                                                           \
            break;                                                                                 \
        default:                                                                                   \
            CALL(TQ_PLANES_PATH_7, dim);                                                           \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

#define TQ_CALL_PLANES(kind, dim, CALL)                                                            \
    do {                                                                                           \
        if ((dim) == 64)                                                                           \
            TQ_CALL_KIND(kind, 64, CALL);                                                          \
        else if ((dim) == 128)                                                                     \
            TQ_CALL_KIND(kind, 128, CALL);                                                         \
        else                                                                                       \
            TQ_CALL_KIND(kind, 256, CALL);                                                         \
    } while (0)

#endif
