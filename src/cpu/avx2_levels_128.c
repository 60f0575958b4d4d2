/* SPDX-License-Identifier: MIT */
/* avx2_levels_128.c — level bytes of rows of 128 from their planes, for AVX2: of the trellis, whose
 * numbers have three to seven bits, and of norm-codebook of 5 and 6 bits.
 *
 * Numbers stay in planes (avx2_runs.h) until tokens and elements are in order, which is less to
 * move: nibbles of two runs, and bits above them, once for all runs. Of five bits and more the
 * highest is a sign, the others number a magnitude. Those of a trellis ascend, so where that bit is
 * set the others are complemented first, in the planes, where one operation does 4 or 8 runs. What
 * is left for each 32 levels is one look-up for each 16 magnitudes, the choice between them, and
 * vpsignb: a byte of a table is zero + level of one sign, and as zero is 0 or 128, its negative is
 * that of the other. Small levels with another zero get it afterwards.
 *
 * Planes of the trellis are made two rows at a time, one in each lane: the subset bits then come
 * from byte shifts within lanes, for 16 places of all runs of both.
 */
#include "codebook.h"
#include "cpu/avx2_levels.h"
#include "cpu/avx2_runs.h"

enum { ROWS = 16, RUN = 16 };

typedef struct number_kind {
    int trellis;
    uint32_t bits; /* of a number */
    int add;       /* the zero is added to levels */
} number_kind;

/* Has a plane of highest bits? */
TQ_INLINE int has_top(const number_kind k)
{
    return k.bits == 5 || k.bits == 7;
}

/* Where planes of a row begin: bits 4 and 5 of the trellis, the highest bits of numbers of 5 and 7
 * bits, path bits. */
enum { AT_TWO = 2 * RUN };

TQ_INLINE uint32_t at_top(const number_kind k)
{
    return (k.trellis ? k.bits - 3 : 4) * RUN;
}

TQ_INLINE uint32_t at_path(const number_kind k)
{
    return (k.bits - 2) * RUN;
}

/* Tables by value: those in memory would be loaded again after each store of levels. */
typedef struct number_tables {
    __m256i t[4], zero;
} number_tables;

void tq_avx2_take_planes(tq_level_source *s)
{
    const uint32_t bits = s->codec->bits + (s->trellis ? 1 : 0);
    if (s->codec->dim != 128 || (bits < 5 && !s->trellis) || bits > 7)
        return;
    s->planes = bits;
    s->nibbles = 0;
    s->add = _mm256_set1_epi8((char)s->zero);
    if (bits == 5 && s->trellis)
        tq_avx2_trellis_tables(&s->tables, tq_trellis_get(s->codec->bits), 0);
}

TQ_INLINE number_tables tables_of(const tq_level_source *s, const number_kind k)
{
    const __m256i *t = s->tables.t;
    if (k.bits <= 5)
        return (number_tables){{t[0]}, s->add};
    return k.bits == 6 ? (number_tables){{t[0], t[1]}, s->add}
                       : (number_tables){{t[0], t[1], t[2], t[3]}, s->add};
}

TQ_INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

TQ_INLINE void store256(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

TQ_INLINE __m256i in_lanes(const uint8_t *a, const uint8_t *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(tq_load128(a)), tq_load128(b), 1);
}

/* ---- Levels ---------------------------------------------------------------------------- */

/* What is above a nibble: two: bits 4 and 5 in fields; sign: in the upper bits of fields, with ones
 * below, for vpsignb makes 0 of what meets a 0. */
typedef struct above {
    __m256i two, sign;
} above;

TQ_INLINE __m256i with_ones(__m256i x)
{
    return _mm256_or_si256(x, _mm256_set1_epi8(0x55));
}

/* Bytes of b where the top bit of `by` is set, of a elsewhere. gcc 12 compares with 0 first where
 * two intrinsics share such a register. */
TQ_INLINE __m256i choose(__m256i a, __m256i b, __m256i by)
{
    __m256i x;
    __asm__("vpblendvb %3, %2, %1, %0" : "=x"(x) : "x"(a), "x"(b), "x"(by));
    return x;
}

/* Levels of a field. x: their nibbles, above them junk. */
TQ_INLINE __m256i levels(__m256i x, const above a, const int field, const number_tables by,
                         const number_kind k)
{
    const __m256i low = _mm256_and_si256(x, _mm256_set1_epi8(15));
    const int at = 7 - 2 * field; /* from bit 4's place to the top of a byte */
    __m256i v = _mm256_shuffle_epi8(by.t[0], low);

    if (k.bits <= 4)
        return v;
    if (k.bits == 6)
        v = choose(v, _mm256_shuffle_epi8(by.t[1], low), tq_shift_up(a.two, at));
    if (k.bits == 7) {
        const __m256i bit5 = tq_shift_up(a.two, at - 1), bit4 = _mm256_add_epi8(bit5, bit5);
        const __m256i w =
            choose(_mm256_shuffle_epi8(by.t[2], low), _mm256_shuffle_epi8(by.t[3], low), bit4);
        v = choose(choose(v, _mm256_shuffle_epi8(by.t[1], low), bit4), w, bit5);
    }
    v = _mm256_sign_epi8(v, tq_shift_up(a.sign, at - 1));
    return k.add ? _mm256_add_epi8(v, by.zero) : v;
}

/* ---- Planes of the trellis -------------------------------------------------------------- */

/* Two registers of fields become nibbles: low and high of fields 0 and 2 in low, of 1 and 3 in
 * high. */
TQ_INLINE void join_fields(__m256i *low, __m256i *high)
{
    const __m256i t = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi16(*low, 2), *high),
                                       _mm256_set1_epi8(0x33));
    *low = _mm256_xor_si256(*low, _mm256_slli_epi16(t, 2));
    *high = _mm256_xor_si256(*high, t);
}

/* Two planes of single bits become fields: of even runs in low, of odd ones in high. */
TQ_INLINE void join_bits(__m256i *low, __m256i *high)
{
    const __m256i t = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi16(*low, 1), *high),
                                       _mm256_set1_epi8(0x55));
    *low = _mm256_xor_si256(*low, _mm256_add_epi8(t, t));
    *high = _mm256_xor_si256(*high, t);
}

/* Subset bits of two rows in fields. top: the highest bits of their numbers in a plane of single
 * bits, or 0. */
TQ_INLINE void subsets(__m256i *even, __m256i *odd, const uint8_t *a, const uint8_t *b, __m256i top)
{
    const __m256i x0 = in_lanes(a, b), before = _mm256_add_epi8(x0, x0);
    const __m256i x1 = _mm256_alignr_epi8(x0, before, 15), x2 = _mm256_alignr_epi8(x0, before, 14);
    const __m256i x3 = _mm256_alignr_epi8(x0, before, 13);
    *even = _mm256_xor_si256(x2, top);
    *odd = _mm256_xor_si256(_mm256_xor_si256(x0, top), _mm256_xor_si256(x1, x3));
    join_bits(even, odd);
}

/* Both bits of fields as the lower one, the upper one. */
TQ_INLINE __m256i twice_lower(__m256i x)
{
    x = _mm256_and_si256(x, _mm256_set1_epi8(0x55));
    return _mm256_or_si256(x, _mm256_add_epi8(x, x));
}

TQ_INLINE __m256i twice_upper(__m256i x)
{
    x = _mm256_andnot_si256(_mm256_set1_epi8(0x55), x);
    return _mm256_or_si256(x, _mm256_srli_epi16(x, 1));
}

/* Fields of what is above the subset bits, o its lower and two its upper half; all but the highest
 * bit complemented by `by`, which has it twice. */
TQ_INLINE void complement(__m256i *z, __m256i *o, __m256i *two, __m256i by, const uint32_t bits)
{
    *o = _mm256_xor_si256(*o, by);
    if (bits == 6) {
        *z = _mm256_xor_si256(*z, by);
        by = _mm256_and_si256(by, _mm256_set1_epi8(0x55));
    }
    if (bits > 5)
        *two = _mm256_xor_si256(*two, by);
}

/* Pieces of two rows, one in each lane: nibbles of runs r and r + 4, r 0..3; bits 4 and 5 of even
 * and odd runs; highest bits. */
enum { PIECE_TWO = 4, PIECE_TOP = 6, PIECES = 7 };

/* Pieces of four pairs of rows of the trellis. */
typedef struct piece_room {
    __m256i z[PIECES][4];
} piece_room;

TQ_INLINE void make_pieces(piece_room *room, uint32_t i, const uint8_t *a, const uint8_t *b,
                           const number_kind k)
{
    const uint32_t path = at_path(k);
    __m256i top = _mm256_setzero_si256(), z[2], by[2];

    if (has_top(k))
        room->z[PIECE_TOP][i] = top = in_lanes(a + at_top(k), b + at_top(k));
    subsets(&z[0], &z[1], a + path, b + path, top);
    if (has_top(k)) {
        by[0] = twice_lower(top);
        by[1] = twice_upper(top);
    }
    TQ_UNROLL_FOR (uint32_t half = 0; half < 2; half++) {
        const uint32_t at = k.bits == 3 ? 0 : half * RUN;
        __m256i o = in_lanes(a + at, b + at), two = o;
        if (k.bits == 3)
            o = _mm256_and_si256(half ? _mm256_srli_epi16(o, 1) : o, _mm256_set1_epi8(0x55));
        if (k.bits > 5)
            two = in_lanes(a + AT_TWO + at, b + AT_TWO + at);
        if (k.bits == 6)
            by[half] = twice_upper(two);
        if (k.bits > 4)
            complement(&z[half], &o, &two, by[half], k.bits);
        join_fields(&z[half], &o);
        room->z[half][i] = z[half];
        room->z[half + 2][i] = o;
        if (k.bits > 5)
            room->z[PIECE_TWO + half][i] = two;
    }
}

/* ---- Tokens as lanes ------------------------------------------------------------------- */

/* A piece of 8 rows, of the trellis from room. */
TQ_INLINE void turn_piece(__m256i out[4], const piece_room *room, const uint8_t *const row[8],
                          const uint32_t piece, const number_kind k)
{
    __m256i z[4];
    const uint32_t at = piece == PIECE_TOP ? at_top(k) : piece * RUN;
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        z[i] = k.trellis ? room->z[piece][i] : in_lanes(row[i] + at, row[i + 4] + at);
    tq_turn_rows(out, z);
}

TQ_INLINE void turn_numbers(uint8_t *dst, const uint8_t *const row[ROWS], const number_tables by,
                            tq_walk *ahead, const number_kind k)
{
    piece_room room;
    for (uint32_t eight = 0; eight < 2; eight++, row += 8, dst += 32) {
        __m256i one[4], two[4];
        if (k.trellis)
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                make_pieces(&room, i, row[i], row[i + 4], k);
        if (has_top(k))
            turn_piece(one, &room, row, PIECE_TOP, k);
        TQ_UNROLL_FOR (uint32_t half = 0; half < 2; half++) {
            above a[4];
            if (k.bits > 5)
                turn_piece(two, &room, row, PIECE_TWO + half, k);
            TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                if (k.bits > 5)
                    a[i].two = two[i];
                if (k.bits == 6)
                    a[i].sign = with_ones(two[i]);
                else if (has_top(k))
                    a[i].sign = with_ones(half ? one[i] : _mm256_add_epi8(one[i], one[i]));
            }
            TQ_UNROLL_FOR (int field = 0; field < 2; field++) {
                const uint32_t r = 2 * (uint32_t)field + half;
                uint8_t *to = dst + (size_t)r * RUN * 16;
                __m256i x[4];
                tq_walk_on(ahead);
                turn_piece(x, &room, row, r, k);
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
                    store256(to + 64 * i, levels(x[i], a[i], field, by, k));
                    store256(to + 64 * i + 64 * 16,
                             levels(_mm256_srli_epi16(x[i], 4), a[i], field + 2, by, k));
                }
            }
        }
    }
}

/* ---- Four tokens to a lane ------------------------------------------------------------- */

/* Four rows, even runs in the lower lanes and odd ones in the upper: nibbles of runs 0, 1, 4 and 5
 * and of the others; bits 4 and 5. */
typedef struct four_rows {
    __m256i nibble[2][4], two[4];
} four_rows;

TQ_INLINE void read_four(four_rows *f, const uint8_t *const row[4], const number_kind k)
{
    if (!k.trellis) {
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            f->nibble[0][i] = load256(row[i]);
            f->nibble[1][i] = load256(row[i] + 2 * RUN);
            f->two[i] = k.bits > 5 ? load256(row[i] + 4 * RUN) : f->nibble[0][i];
        }
        return;
    }
    const uint32_t path = at_path(k);
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        if (i % 2 == 0) {
            const uint8_t *a = row[i], *b = row[i + 1];
            __m256i even, odd, top = _mm256_setzero_si256();
            if (has_top(k))
                top = in_lanes(a + at_top(k), b + at_top(k));
            subsets(&even, &odd, a + path, b + path, top);
            f->nibble[0][i] = _mm256_permute2x128_si256(even, odd, 0x20);
            f->nibble[0][i + 1] = _mm256_permute2x128_si256(even, odd, 0x31);
        }
        __m256i o = k.bits == 3 ? tq_two_of_one_bit(tq_load128(row[i])) : load256(row[i]);
        __m256i two = o, by;
        if (k.bits > 5)
            two = load256(row[i] + AT_TWO);
        if (has_top(k))
            by = twice_lower(tq_runs_of_one_bit(tq_load128(row[i] + at_top(k))));
        else if (k.bits == 6)
            by = twice_upper(two);
        if (k.bits > 4)
            complement(&f->nibble[0][i], &o, &two, by, k.bits);
        join_fields(&f->nibble[0][i], &o);
        f->nibble[1][i] = o;
        f->two[i] = two;
    }
}

TQ_INLINE void interleave_numbers(uint8_t *to, size_t block, const uint8_t *const row[4],
                                  const number_tables by, const number_kind k)
{
    four_rows f;
    above a[4];
    __m256i one[4], two[4];

    read_four(&f, row, k);
    tq_interleave_rows(two, f.two);
    if (has_top(k)) {
        const __m256i to_upper = _mm256_setr_epi32(1, 1, 1, 1, 0, 0, 0, 0);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            one[i] = _mm256_broadcastsi128_si256(tq_load128(row[i] + at_top(k)));
        tq_interleave_rows(one, one);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            a[i] = (above){two[i], with_ones(_mm256_sllv_epi32(one[i], to_upper))};
    } else {
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            a[i] = (above){two[i], with_ones(two[i])};
    }
    TQ_UNROLL_FOR (int field = 0; field < 2; field++, to += 2 * block) {
        __m256i x[4];
        tq_interleave_rows(x, f.nibble[field]);
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            uint8_t *at = to + i / 2 * block + 32 * (i % 2);
            store256(at, levels(x[i], a[i], field, by, k));
            store256(at + 4 * block, levels(_mm256_srli_epi16(x[i], 4), a[i], field + 2, by, k));
        }
    }
}

/* ---- Tiles ----------------------------------------------------------------------------- */

/* CALL(kind) for the kind of a source. */
#define CALL_KIND(s, CALL)                                                                         \
    do {                                                                                           \
        if ((s)->planes == 3)                                                                      \
            CALL(((number_kind){1, 3, 0}));                                                        \
        else if ((s)->planes == 4)                                                                 \
            CALL(((number_kind){1, 4, 0}));                                                        \
        else if ((s)->planes == 5 && !(s)->trellis)                                                \
            CALL(((number_kind){0, 5, 0}));                                                        \
        else if ((s)->planes == 5 && (s)->zero)                                                    \
            CALL(((number_kind){1, 5, 1}));                                                        \
        else if ((s)->planes == 5)                                                                 \
            CALL(((number_kind){1, 5, 0}));                                                        \
        else if ((s)->planes == 7)                                                                 \
            CALL(((number_kind){1, 7, 0}));                                                        \
        else if ((s)->trellis)                                                                     \
            CALL(((number_kind){1, 6, 0}));                                                        \
        else                                                                                       \
            CALL(((number_kind){0, 6, 0}));                                                        \
    } while (0)

void tq_avx2_turned_planes(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                           tq_walk *ahead)
{
    const uint8_t *row[ROWS];
    for (uint32_t i = 0; i < ROWS; i++, codes.at += i < n ? codes.stride : 0)
        row[i] = codes.at;
#define CALL(kind) turn_numbers(dst, row, tables_of(s, kind), ahead, kind)
    CALL_KIND(s, CALL);
#undef CALL
}

TQ_INLINE void all_quads(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                         uint32_t quads, tq_walk *ahead, const number_kind k)
{
    const number_tables by = tables_of(s, k);
    const size_t block = (size_t)quads * 64;
    for (uint32_t q = 0; q < quads; q++, dst += 64) {
        const uint8_t *row[4];
        for (uint32_t i = 0; i < 4; i++, codes.at += 4 * q + i < n ? codes.stride : 0)
            row[i] = codes.at;
        tq_walk_on(ahead);
        interleave_numbers(dst, block, row, by, k);
    }
}

void tq_avx2_plane_quads(uint8_t *dst, const tq_level_source *s, tq_level_rows codes, uint32_t n,
                         uint32_t quads, tq_walk *ahead)
{
#define CALL(kind) all_quads(dst, s, codes, n, quads, ahead, kind)
    CALL_KIND(s, CALL);
#undef CALL
}
