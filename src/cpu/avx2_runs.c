/* SPDX-License-Identifier: MIT */
/* avx2_runs.c — rows of the trellis and of norm-codebook to levels or nibbles, for AVX2. Runs:
 * avx2_runs.h.
 *
 * A row of `bits` bits an element is `bits` times n1 bytes, whatever its planes: PIECES. Registers
 * hold 16 places of a piece. How they are loaded depends on the SHAPE of rows:
 *   ROW_128    n1 = 16: a register is a piece.
 *   ROW_LONG   more: some registers, the last of which overlaps the one before.
 *   ROW_SHORT  8 to 15: what is loaded beside a piece is junk and overwritten later. The last piece
 *              is loaded with what is before it, so that nothing is read behind the row. Rows of
 *              even fewer come from a copy with room around it.
 *   ROW_PAIR   n1 = 8: two rows at once, one in each half of a register.
 */
#include "codebook.h"
#include "cpu/avx2_attn.h"
#include "cpu/avx2_levels.h"
#include "cpu/avx2_runs.h"
#include "cpu/avx2_trellis.h"

enum { STEP = 16 };

typedef enum row_shape { ROW_SHORT, ROW_PAIR, ROW_128, ROW_LONG } row_shape;

typedef struct row_kind {
    int trellis;
    uint32_t bits; /* of a code */
    uint32_t n1;   /* bytes of a piece: dim / 8 */
    row_shape shape;
} row_kind;

/* Bits of a level number. */
TQ_INLINE uint32_t number_bits(const row_kind k)
{
    return k.bits + (k.trellis ? 1 : 0);
}

/* A row, or two. */
typedef struct row_at {
    const uint8_t *codes, *other;
    __m128i to_front; /* ROW_SHORT: moves the last n1 bytes of a register to its front */
} row_at;

/* ---- Loads ----------------------------------------------------------------------------- */

/* The 16 bytes that end with the row. */
TQ_INLINE __m128i row_end(const row_at *r, const row_kind k)
{
    return tq_load128(r->codes + k.bits * k.n1 - STEP);
}

/* A piece from place i on. */
TQ_INLINE __m128i load_piece(const row_at *r, const uint32_t piece, uint32_t i, const row_kind k)
{
    const uint8_t *p = r->codes + piece * k.n1 + i;
    if (k.shape == ROW_PAIR)
        return _mm_unpacklo_epi64(
            _mm_loadl_epi64((const __m128i *)(const void *)p),
            _mm_loadl_epi64((const __m128i *)(const void *)(r->other + piece * k.n1)));
    if (k.shape == ROW_SHORT && piece + 1 == k.bits)
        return _mm_shuffle_epi8(row_end(r, k), r->to_front);
    return tq_load128(p);
}

/* A piece and the next. */
TQ_INLINE __m256i load_two(const row_at *r, const uint32_t piece, uint32_t i, const row_kind k)
{
    __m128i a, b;
    if (k.shape == ROW_128)
        return _mm256_loadu_si256((const __m256i *)(const void *)(r->codes + piece * k.n1));
    if (k.shape == ROW_PAIR) {
        const __m128i x = tq_load128(r->codes + piece * k.n1);
        const __m128i y = tq_load128(r->other + piece * k.n1);
        a = _mm_unpacklo_epi64(x, y);
        b = _mm_unpackhi_epi64(x, y);
    } else {
        a = load_piece(r, piece, i, k);
        b = load_piece(r, piece + 1, i, k);
    }
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

/* x: the first places; end: of the row. The bits before a run come from the end of the run before,
 * one bit lower. */
TQ_INLINE tq_path_bits path_from(__m128i x, __m128i end, uint32_t n1)
{
    __m128i before = _mm_add_epi8(end, end);
    if (n1 < 3) /* the third bit before a run of two is of two runs before */
        before = _mm_blend_epi16(before, _mm_srli_si128(_mm_add_epi8(before, before), 2), 0x40);
    tq_path_bits p = {{x, _mm_alignr_epi8(x, before, 15), _mm_alignr_epi8(x, before, 14),
                       _mm_alignr_epi8(x, before, 13)}};
    return p;
}

TQ_INLINE tq_path_bits load_path(const row_at *r, uint32_t i, const row_kind k)
{
    const uint8_t *plane = r->codes + (k.bits - 1) * k.n1;
    const __m128i x = load_piece(r, k.bits - 1, i, k);

    if (k.shape == ROW_PAIR) {
        const __m128i before = _mm_add_epi8(x, x);
        tq_path_bits p = {{x, _mm_or_si128(_mm_slli_epi64(x, 8), _mm_srli_epi64(before, 56)),
                           _mm_or_si128(_mm_slli_epi64(x, 16), _mm_srli_epi64(before, 48)),
                           _mm_or_si128(_mm_slli_epi64(x, 24), _mm_srli_epi64(before, 40))}};
        return p;
    }
    if (i == 0)
        return path_from(x, row_end(r, k), k.n1);
    if (i >= 3)
        return tq_path_at(plane + i);
    uint8_t room[3 * STEP]; /* the last register of 144 elements begins 2 places after the first */
    const __m128i end = row_end(r, k);
    _mm_storeu_si128((__m128i *)(void *)room, _mm_add_epi8(end, end));
    _mm_storeu_si128((__m128i *)(void *)(room + STEP), tq_load128(plane));
    _mm_storeu_si128((__m128i *)(void *)(room + STEP + i), x);
    return tq_path_at(room + STEP + i);
}

/* ---- Numbers --------------------------------------------------------------------------- */

TQ_INLINE tq_nibbles load_nibbles(const row_at *r, uint32_t i, const row_kind k)
{
    const __m256i low2 = _mm256_set1_epi8(0x33);

    if (k.trellis) {
        const __m256i o =
            k.bits == 2 ? tq_two_of_one_bit(load_piece(r, 0, i, k)) : load_two(r, 0, i, k);
        return tq_nibbles_of(o, k.shape == ROW_128
                                    ? tq_subsets_of_128(r->codes + (k.bits - 1) * k.n1)
                                    : tq_subsets_of(load_path(r, i, k)));
    }
    if (k.bits >= 4)
        return (tq_nibbles){load_two(r, 0, i, k), load_two(r, 2, i, k)};
    const __m256i m = load_two(r, 0, i, k);
    tq_nibbles n = {_mm256_and_si256(m, low2), _mm256_and_si256(_mm256_srli_epi16(m, 2), low2)};
    if (k.bits == 3) { /* bit 2 from the plane of single bits */
        const __m256i x = tq_runs_of_one_bit(load_piece(r, 2, i, k));
        const __m256i high = _mm256_set1_epi8(0x44);
        n.n02 = _mm256_or_si256(n.n02, _mm256_and_si256(_mm256_slli_epi16(x, 2), high));
        n.n13 = _mm256_or_si256(n.n13, _mm256_and_si256(x, high));
    }
    return n;
}

/* The bits of level numbers from bit 4 on. */
TQ_INLINE tq_upper_bits upper_bits_at(const row_at *r, uint32_t i, const row_kind k)
{
    const uint32_t bits = number_bits(k), more = k.trellis ? 2 : 4; /* piece with bit 4 */
    const __m256i none = _mm256_setzero_si256();
    if (bits <= 4)
        return (tq_upper_bits){none, none, 0};
    if (bits == 5)
        return (tq_upper_bits){tq_runs_of_one_bit(load_piece(r, more, i, k)), none, 0};
    const __m256i two = load_two(r, more, i, k);
    if (bits == 6)
        return tq_upper_two(two, k.trellis);
    return tq_upper_three(two, tq_runs_of_one_bit(load_piece(r, more + 2, i, k)));
}

/* Runs of two registers that follow each other: v is the first two, w the next. In ascending order:
 * what is written beyond a run of less than 16 is overwritten. */
TQ_INLINE void store_runs(uint8_t *out, uint8_t *other, __m256i v, __m256i w, const row_kind k)
{
    if (k.shape == ROW_PAIR) {
        const __m256i a = _mm256_unpacklo_epi64(v, w), b = _mm256_unpackhi_epi64(v, w);
        _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permute4x64_epi64(a, 0xd8));
        _mm256_storeu_si256((__m256i *)(void *)other, _mm256_permute4x64_epi64(b, 0xd8));
        return;
    }
    if (k.shape == ROW_128) {
        _mm256_storeu_si256((__m256i *)(void *)out, v);
        _mm256_storeu_si256((__m256i *)(void *)(out + 2 * STEP), w);
        return;
    }
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_castsi256_si128(v));
    _mm_storeu_si128((__m128i *)(void *)(out + k.n1), _mm256_extracti128_si256(v, 1));
    _mm_storeu_si128((__m128i *)(void *)(out + 2 * k.n1), _mm256_castsi256_si128(w));
    _mm_storeu_si128((__m128i *)(void *)(out + 3 * k.n1), _mm256_extracti128_si256(w, 1));
}

/* 16 places from i on of all eight runs, as levels, or without a table as nibbles. */
TQ_INLINE void write_places(uint8_t *out, uint8_t *other, const row_at *r, uint32_t i,
                            const __m256i *table, const row_kind k)
{
    const tq_nibbles n = load_nibbles(r, i, k);

    out += i;
    if (!table) {
        store_runs(out, other, n.n02, n.n13, k);
        return;
    }
    const tq_upper_bits u = upper_bits_at(r, i, k);
    const uint32_t bits = number_bits(k);
    table += tq_first_table(bits, k.trellis);
    const __m256i n2 = _mm256_srli_epi16(n.n02, 4), n3 = _mm256_srli_epi16(n.n13, 4);
    store_runs(out, other, tq_pick_level(table, n.n02, u, 0, bits, k.trellis),
               tq_pick_level(table, n.n13, u, 1, bits, k.trellis), k);
    store_runs(out + 4 * k.n1, other + 4 * k.n1, tq_pick_level(table, n2, u, 2, bits, k.trellis),
               tq_pick_level(table, n3, u, 3, bits, k.trellis), k);
}

/* ---- Tables ---------------------------------------------------------------------------- */

void tq_avx2_trellis_tables(tq_trellis_tables *out, const tq_trellis *t, uint8_t zero)
{
    const __m128i zero16 = _mm_set1_epi8((char)zero);
    const uint32_t n = 2u << t->bits; /* 8 to 128 */

    if (n == 8)
        out->t[0] = _mm256_broadcastsi128_si256(
            _mm_add_epi8(_mm_loadl_epi64((const __m128i *)(const void *)t->levels), zero16));
    for (uint32_t i = 0; 16 * (i + 1) <= n; i++)
        out->t[i] =
            _mm256_broadcastsi128_si256(_mm_add_epi8(tq_load128(t->levels + 16 * i), zero16));
}

/* By code: a sign above a magnitude. In registers, for this stands before each page. */
void tq_avx2_norm_tables(tq_trellis_tables *out, const tq_codebook *book, uint8_t zero)
{
    const __m128i zero16 = _mm_set1_epi8((char)zero);
    const uint32_t n = book->n_levels;
    uint64_t few = 0;

    if (n >= 16) {
        for (uint32_t i = 0; i < n / 16; i++) {
            const __m128i x = tq_load128(book->levels + 16 * i);
            out->t[i] = _mm256_broadcastsi128_si256(_mm_add_epi8(zero16, x));
            out->t[n / 16 + i] = _mm256_broadcastsi128_si256(_mm_sub_epi8(zero16, x));
        }
        return;
    }
    if (n == 8)
        memcpy(&few, book->levels, 8);
    else if (n == 4)
        memcpy(&few, book->levels, 4);
    else
        memcpy(&few, book->levels, 2);
    const __m128i x = _mm_cvtsi64_si128((long long)few);
    const __m128i plus = _mm_add_epi8(zero16, x), minus = _mm_sub_epi8(zero16, x);
    if (n == 8)
        out->t[0] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(plus, minus));
    else if (n == 4)
        out->t[0] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi32(plus, minus));
    else
        out->t[0] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi16(plus, minus));
}

/* ---- Rows ------------------------------------------------------------------------------ */

TQ_INLINE void all_rows(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                        const __m256i *table, uint32_t n, const row_kind k)
{
    row_at r = {.codes = codes, .other = codes, .to_front = _mm_setzero_si128()};
    uint8_t *other = out;

    if (k.shape == ROW_SHORT) {
        const __m128i place = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        r.to_front = _mm_add_epi8(place, _mm_set1_epi8((char)(STEP - k.n1)));
        r.to_front = _mm_or_si128(r.to_front, _mm_cmpgt_epi8(r.to_front, _mm_set1_epi8(15)));
    }
    for (uint32_t row = 0; row < n; row++, out += stride, r.codes += codes_stride) {
        if (k.shape == ROW_PAIR) {
            const int has_next = row + 1 < n;
            r.other = r.codes + (has_next ? codes_stride : 0);
            other = out + (has_next ? stride : 0);
        }
        uint32_t i = 0;
        if (k.shape == ROW_LONG)
            for (; i + STEP < k.n1; i += STEP)
                write_places(out, other, &r, i, table, k);
        if (k.shape == ROW_LONG)
            i = k.n1 - STEP;
        write_places(out, other, &r, i, table, k);
        if (k.shape == ROW_PAIR && row + 1 < n) {
            row++;
            out += stride;
            r.codes += codes_stride;
        }
    }
}

/* Rows of less than 8 places, some at a time. */
TQ_INLINE void few_places(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                          const __m256i *table, uint32_t n, const row_kind k)
{
    enum { ROWS = 8, ROW = 3 * STEP, ROOM = STEP + ROW + STEP };
    uint8_t room[ROWS * ROOM] = {0};
    const size_t bytes = (size_t)k.bits * k.n1;

    for (uint32_t row = 0; row < n; row += ROWS, out += ROWS * stride) {
        const uint32_t rows = n - row < ROWS ? n - row : ROWS;
        for (uint32_t i = 0; i < rows; i++, codes += codes_stride) {
            uint8_t *to = room + i * ROOM + STEP;
            /* Whole registers, as long as the rows behind hold what they read. */
            if ((n - 1 - row - i) * codes_stride + bytes < ROW) {
                memcpy(to, codes, bytes);
                continue;
            }
            TQ_UNROLL_FOR (uint32_t j = 0; j < ROW; j += STEP)
                _mm_storeu_si128((__m128i *)(void *)(to + j), tq_load128(codes + j));
        }
        all_rows(out, stride, room + STEP, ROOM, table, rows, k);
    }
}

#define ROWS_OF(is_trellis, width)                                                                 \
    do {                                                                                           \
        const uint32_t n1 = dim / 8;                                                               \
        const row_kind most = {is_trellis, width, 16, ROW_128};                                    \
        const row_kind pair = {is_trellis, width, 8, ROW_PAIR};                                    \
        const row_kind brief = {is_trellis, width, n1, ROW_SHORT};                                 \
        const row_kind any = {is_trellis, width, n1, ROW_LONG};                                    \
        if (n1 == 16)                                                                              \
            all_rows(out, stride, codes, codes_stride, table, n, most);                            \
        else if (n1 > 16)                                                                          \
            all_rows(out, stride, codes, codes_stride, table, n, any);                             \
        else if (n1 == 8)                                                                          \
            all_rows(out, stride, codes, codes_stride, table, n, pair);                            \
        else if (n1 > 8)                                                                           \
            all_rows(out, stride, codes, codes_stride, table, n, brief);                           \
        else                                                                                       \
            few_places(out, stride, codes, codes_stride, table, n, brief);                         \
    } while (0)

void tq_avx2_trellis_levels(int8_t *level, size_t stride, const uint8_t *codes, size_t codes_stride,
                            const tq_trellis_tables *tables, uint32_t bits, uint32_t dim,
                            uint32_t n)
{
    const __m256i *table = tables->t;
    uint8_t *out = (uint8_t *)level;

    switch (bits) {
    case 2:
        ROWS_OF(1, 2);
        break;
    case 3:
        ROWS_OF(1, 3);
        break;
    case 4:
        ROWS_OF(1, 4);
        break;
    case 5:
        ROWS_OF(1, 5);
        break;
    default:
        ROWS_OF(1, 6);
        break;
    }
}

void tq_avx2_norm_run_levels(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                             const tq_trellis_tables *tables, uint32_t bits, uint32_t dim,
                             uint32_t n)
{
    const __m256i *table = tables->t;

    switch (bits) {
    case 2:
        ROWS_OF(0, 2);
        break;
    case 3:
        ROWS_OF(0, 3);
        break;
    case 4:
        ROWS_OF(0, 4);
        break;
    case 5:
        ROWS_OF(0, 5);
        break;
    default:
        ROWS_OF(0, 6);
        break;
    }
}

/* Nibbles: dim a multiple of 64. */
#define NIBBLES_OF(is_trellis, width)                                                              \
    do {                                                                                           \
        const row_kind most = {is_trellis, width, 16, ROW_128};                                    \
        const row_kind pair = {is_trellis, width, 8, ROW_PAIR};                                    \
        const row_kind any = {is_trellis, width, dim / 8, ROW_LONG};                               \
        if (dim == 128)                                                                            \
            all_rows(out, stride, codes, codes_stride, NULL, n, most);                             \
        else if (dim == 64)                                                                        \
            all_rows(out, stride, codes, codes_stride, NULL, n, pair);                             \
        else                                                                                       \
            all_rows(out, stride, codes, codes_stride, NULL, n, any);                              \
    } while (0)

void tq_avx2_trellis_nibbles(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                             uint32_t bits, uint32_t dim, uint32_t n)
{
    if (bits == 2)
        NIBBLES_OF(1, 2);
    else
        NIBBLES_OF(1, 3);
}

void tq_avx2_norm_nibbles(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                          uint32_t bits, uint32_t dim, uint32_t n)
{
    if (bits == 2)
        NIBBLES_OF(0, 2);
    else
        NIBBLES_OF(0, 3);
}
