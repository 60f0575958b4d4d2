/* SPDX-License-Identifier: MIT */
/* avx2_runs.c — rows of the trellis, and wide ones of norm-codebook, to levels or nibbles, for
 * AVX2. Runs: avx2_runs.h. Each function is made twice, for any dimension and for 128.
 */
#include "codebook.h"
#include "cpu/avx2_attn.h"
#include "cpu/avx2_levels.h"
#include "cpu/avx2_runs.h"
#include "cpu/avx2_trellis.h"

enum { PAD = 32, STEP = 16 };

TQ_INLINE void store_halves(uint8_t *p, uint32_t n1, __m256i v)
{
    if (n1 == STEP) {
        _mm256_storeu_si256((__m256i *)(void *)p, v);
        return;
    }
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(v));
    _mm_storeu_si128((__m128i *)(void *)(p + n1), _mm256_extracti128_si256(v, 1));
}

/* What level numbers consist of: n_low bits below, and which plane the bits from 4 on are in. */
typedef struct row_kind {
    int trellis;
    uint32_t bits; /* of a code */
    uint32_t dim;
} row_kind;

/* Bits of a level number. */
TQ_INLINE uint32_t number_bits(const row_kind k)
{
    return k.bits + (k.trellis ? 1 : 0);
}

/* ---- Levels ---------------------------------------------------------------------------- */

/* low: bits 0..3 of the level numbers. The tables of 16 from the first on are told apart by fields
 * that are shifted into the top bit of each byte: bit 4 and bit 5 by two, bit 6 by six. */
TQ_INLINE __m256i pick_level(const __m256i *table, __m256i low, __m256i two, __m256i six,
                             const int field, const uint32_t bits)
{
    __m256i v = _mm256_shuffle_epi8(table[0], low);
    if (bits <= 4)
        return v;
    const __m256i bit4 = _mm256_slli_epi16(two, 7 - 2 * field);
    v = _mm256_blendv_epi8(v, _mm256_shuffle_epi8(table[1], low), bit4);
    if (bits == 5)
        return v;
    const __m256i bit5 = _mm256_slli_epi16(two, 6 - 2 * field);
    __m256i w = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[2], low),
                                   _mm256_shuffle_epi8(table[3], low), bit4);
    v = _mm256_blendv_epi8(v, w, bit5);
    if (bits == 6)
        return v;
    w = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[4], low), _mm256_shuffle_epi8(table[5], low),
                           bit4);
    w = _mm256_blendv_epi8(w,
                           _mm256_blendv_epi8(_mm256_shuffle_epi8(table[6], low),
                                              _mm256_shuffle_epi8(table[7], low), bit4),
                           bit5);
    return _mm256_blendv_epi8(v, w, _mm256_slli_epi16(six, 7 - 2 * field));
}

/* 16 places of all eight runs, as levels, or without a table as nibbles. more: the planes of bits
 * 4, 5 and 6. In ascending order: what is written beyond a run of less than 16 is overwritten. */
TQ_INLINE void write_places(uint8_t *out, tq_nibbles n, const uint8_t *more, const __m256i *table,
                            const row_kind k)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const uint32_t n1 = k.dim / 8, bits = number_bits(k);
    __m256i two = nibble, six = nibble;

    if (!table) {
        store_halves(out, n1, n.n02);
        store_halves(out + 2 * n1, n1, n.n13);
        return;
    }
    if (bits == 5)
        two = tq_runs_of_one_bit(tq_load128(more));
    if (bits >= 6)
        two = tq_load_halves(more, n1);
    if (bits == 7)
        six = tq_runs_of_one_bit(tq_load128(more + 2 * n1));
    const __m256i l0 = _mm256_and_si256(n.n02, nibble), l1 = _mm256_and_si256(n.n13, nibble);
    const __m256i l2 = _mm256_and_si256(_mm256_srli_epi16(n.n02, 4), nibble);
    const __m256i l3 = _mm256_and_si256(_mm256_srli_epi16(n.n13, 4), nibble);
    store_halves(out, n1, pick_level(table, l0, two, six, 0, bits));
    store_halves(out + 2 * n1, n1, pick_level(table, l1, two, six, 1, bits));
    store_halves(out + 4 * n1, n1, pick_level(table, l2, two, six, 2, bits));
    store_halves(out + 6 * n1, n1, pick_level(table, l3, two, six, 3, bits));
}

/* ---- Trellis --------------------------------------------------------------------------- */

/* table: NULL for nibbles. */
TQ_INLINE void trellis_row(uint8_t *out, const uint8_t *planes, const __m256i *table,
                           const row_kind k)
{
    const uint32_t n1 = k.dim / 8, n_o = n1 * (k.bits - 1);
    uint8_t room[PAD + TQ_ROW_MAX / 8 + PAD], copy[STEP * 5 + PAD];
    uint8_t *x = room + PAD;
    const uint8_t *o = planes;
    uint32_t i = 0;

    if (n1 == STEP) {
        const tq_nibbles n = tq_nibbles_at(o, tq_path_of_128(planes + n_o), n1, k.bits);
        write_places(out, n, o + 2 * n1, table, k);
        return;
    }
    memcpy(x, planes + n_o, n1);
    memset(x + n1, 0, STEP);
    for (int j = 1; j <= 3; j++) /* before the first run there are zeros */
        x[-j] = (uint8_t)(x[(int)n1 - j] << 1);
    if (n1 < STEP) { /* whole registers would read beyond the row */
        memset(copy, 0, sizeof copy);
        memcpy(copy, planes, n_o);
        o = copy;
    }
    for (; i + STEP < n1; i += STEP)
        write_places(out + i, tq_nibbles_at(o + i, tq_path_at(x + i), n1, k.bits), o + i + 2 * n1,
                     table, k);
    if (n1 > STEP)
        i = n1 - STEP; /* overlaps the one before */
    write_places(out + i, tq_nibbles_at(o + i, tq_path_at(x + i), n1, k.bits), o + i + 2 * n1,
                 table, k);
}

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

/* ---- Wide codes of norm-codebook ------------------------------------------------------- */

/* dim a multiple of 128. */
TQ_INLINE void norm_row(uint8_t *out, const uint8_t *planes, const __m256i *table, const row_kind k)
{
    const uint32_t n1 = k.dim / 8;
    for (uint32_t i = 0; i < n1; i += STEP) {
        const tq_nibbles n = {tq_load_halves(planes + i, n1),
                              tq_load_halves(planes + i + 2 * n1, n1)};
        write_places(out + i, n, planes + i + 4 * n1, table, k);
    }
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
    for (uint32_t i = 0; i < n; i++, out += stride, codes += codes_stride) {
        if (k.trellis)
            trellis_row(out, codes, table, k);
        else
            norm_row(out, codes, table, k);
    }
}

#define ROWS(is_trellis, bits)                                                                     \
    do {                                                                                           \
        const row_kind any = {is_trellis, bits, dim}, most = {is_trellis, bits, 128};              \
        if (dim == 128)                                                                            \
            all_rows(out, stride, codes, codes_stride, table, n, most);                            \
        else                                                                                       \
            all_rows(out, stride, codes, codes_stride, table, n, any);                             \
    } while (0)

void tq_avx2_trellis_levels(int8_t *level, size_t stride, const uint8_t *codes, size_t codes_stride,
                            const tq_trellis_tables *tables, uint32_t bits, uint32_t dim,
                            uint32_t n)
{
    const __m256i *table = tables->t;
    uint8_t *out = (uint8_t *)level;

    switch (bits) {
    case 2:
        ROWS(1, 2);
        break;
    case 3:
        ROWS(1, 3);
        break;
    case 4:
        ROWS(1, 4);
        break;
    case 5:
        ROWS(1, 5);
        break;
    default:
        ROWS(1, 6);
        break;
    }
}

void tq_avx2_trellis_nibbles(uint8_t *out, size_t stride, const uint8_t *codes, size_t codes_stride,
                             uint32_t bits, uint32_t dim, uint32_t n)
{
    const __m256i *table = NULL;

    if (bits == 2)
        ROWS(1, 2);
    else if (bits == 3)
        ROWS(1, 3);
    else
        ROWS(1, 4);
}

void tq_avx2_norm_wide_levels(uint8_t *out, size_t stride, const uint8_t *codes,
                              size_t codes_stride, const tq_trellis_tables *tables, uint32_t bits,
                              uint32_t dim, uint32_t n)
{
    const __m256i *table = tables->t;

    if (bits == 5)
        ROWS(0, 5);
    else
        ROWS(0, 6);
}
