/* SPDX-License-Identifier: MIT */
/* avx2_runs.h — level numbers from the planes of a row, bits 0..3 first, and levels from them.
 *
 * Elements r n1 .. r n1 + n1 - 1 of a row, n1 = dim / 8, are RUN r of 8. A plane of single bits has
 * each run in one bit of its n1 bytes, one of two bits has runs 2k and 2k + 1 in field k of the
 * first and second half of its 2 n1 bytes, one of four bits runs k and k + 4 in the nibbles of
 * quarter k. So 16 places of all runs come from a few registers, and a register that holds a plane
 * of single bits twice, the second time shifted right by one, is laid out like one of two.
 *
 * In a plane of single bits "one element later" is "one byte later", with the bytes that wrap
 * shifted left by one bit: the subset bits of a whole row of the trellis are three shifts and two
 * XORs of its plane of path bits.
 */
#ifndef TQ_CPU_AVX2_RUNS_H
#define TQ_CPU_AVX2_RUNS_H

#include "cpu/avx2_attn.h"

TQ_INLINE __m128i tq_load128(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* Twice, the second time shifted right by one: even bits are runs, the odd ones junk. */
TQ_INLINE __m256i tq_runs_of_one_bit(__m128i plane)
{
    const __m256i by_half = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    return _mm256_srlv_epi32(_mm256_broadcastsi128_si256(plane), by_half);
}

TQ_INLINE __m256i tq_load_halves(const uint8_t *p, uint32_t n1)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(tq_load128(p)), tq_load128(p + n1), 1);
}

/* Bits 0..3 of the level numbers of 16 places of all eight runs, two to a byte: runs 0 and 4 in the
 * first half of n02, 1 and 5 in the second, 2 and 6, 3 and 7 in n13. */
typedef struct tq_nibbles {
    __m256i n02, n13;
} tq_nibbles;

/* Path bits of 16 places of all runs: x[k] those of k elements before. */
typedef struct tq_path_bits {
    __m128i x[4];
} tq_path_bits;

TQ_INLINE tq_path_bits tq_path_at(const uint8_t *x)
{
    tq_path_bits p = {{tq_load128(x), tq_load128(x - 1), tq_load128(x - 2), tq_load128(x - 3)}};
    return p;
}

/* The subset bits of 16 places of all runs, laid out as tq_runs_of_one_bit does. */
typedef struct tq_subset_bits {
    __m256i z0, z1;
} tq_subset_bits;

TQ_INLINE tq_subset_bits tq_subsets_of(const tq_path_bits path)
{
    const __m128i z1 = _mm_xor_si128(path.x[0], _mm_xor_si128(path.x[1], path.x[3]));
    return (tq_subset_bits){tq_runs_of_one_bit(path.x[2]), tq_runs_of_one_bit(z1)};
}

/* Runs of 16: the bits before one come from the end of the run before, one bit lower. That is the
 * plane shifted left by one, and where it is shifted right by one, the plane as it is. */
TQ_INLINE tq_subset_bits tq_subsets_of_128(const uint8_t *plane)
{
    const __m256i lower = _mm256_setr_epi32(-1, -1, -1, -1, 0, 0, 0, 0);
    const __m256i plane2 = _mm256_broadcastsi128_si256(tq_load128(plane));
    const __m256i x0 = _mm256_srlv_epi32(plane2, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
    const __m256i before = _mm256_add_epi8(plane2, _mm256_and_si256(plane2, lower));
    const __m256i x1 = _mm256_alignr_epi8(x0, before, 15), x2 = _mm256_alignr_epi8(x0, before, 14);
    const __m256i x3 = _mm256_alignr_epi8(x0, before, 13);
    return (tq_subset_bits){x2, _mm256_xor_si256(x0, _mm256_xor_si256(x1, x3))};
}

/* o: bits of o, laid out as those of a plane of two bits. */
TQ_INLINE tq_nibbles tq_nibbles_of(__m256i o, const tq_subset_bits subset)
{
    const __m256i even = _mm256_set1_epi8(0x55), low2 = _mm256_set1_epi8(0x33);
    const __m256i z0 = _mm256_and_si256(subset.z0, even), z1 = _mm256_and_si256(subset.z1, even);
    const __m256i z = _mm256_or_si256(z0, _mm256_add_epi8(z1, z1));
    /* z below, o above; fields 0 and 2 in one register, 1 and 3 in the other. */
    tq_nibbles n = {
        _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(o, low2), 2), _mm256_and_si256(z, low2)),
        _mm256_or_si256(_mm256_andnot_si256(low2, o),
                        _mm256_and_si256(_mm256_srli_epi16(z, 2), low2))};
    return n;
}

/* A plane of single bits, laid out as one of two. */
TQ_INLINE __m256i tq_two_of_one_bit(__m128i plane)
{
    return _mm256_and_si256(tq_runs_of_one_bit(plane), _mm256_set1_epi8(0x55));
}

/* Of a row of 128; bits of a code. */
TQ_INLINE tq_nibbles tq_nibbles_of_128(const uint8_t *codes, const uint32_t bits)
{
    const __m256i o = bits == 2 ? tq_two_of_one_bit(tq_load128(codes)) : tq_load_halves(codes, 16);
    return tq_nibbles_of(o, tq_subsets_of_128(codes + (size_t)16 * (bits - 1)));
}

/* ---- Levels ---------------------------------------------------------------------------- */

/* Byte k of x shifted left within a word, its lower bits junk. */
TQ_INLINE __m256i tq_shift_up(__m256i x, const int by)
{
    return by == 0 ? x : by == 1 ? _mm256_add_epi8(x, x) : _mm256_slli_epi16(x, by);
}

/* Bits of level numbers above the nibbles, two to a field, which tell the tables of levels apart.
 * Of six bits and more the highest is the sign, and the others are those of a magnitude. */
typedef struct tq_upper_bits {
    __m256i two, sign;
    int sign_at; /* in a field of sign */
} tq_upper_bits;

/* two: bits 4 and 5. */
TQ_INLINE tq_upper_bits tq_upper_two(__m256i two, const int trellis)
{
    const __m256i both = _mm256_xor_si256(two, _mm256_srli_epi16(two, 1));
    return (tq_upper_bits){trellis ? both : two, two, 1};
}

/* two: bits 4 and 5 of a trellis, one: bit 6. */
TQ_INLINE tq_upper_bits tq_upper_three(__m256i two, __m256i one)
{
    const __m256i even = _mm256_and_si256(one, _mm256_set1_epi8(0x55));
    const __m256i both = _mm256_or_si256(even, _mm256_add_epi8(even, even));
    return (tq_upper_bits){_mm256_xor_si256(two, both), one, 0};
}

/* The first of the tables that tq_pick_level takes: of numbers of `bits` bits. */
TQ_INLINE uint32_t tq_first_table(const uint32_t bits, const int trellis)
{
    return !trellis || bits <= 5 ? 0 : bits == 6 ? 2 : 4;
}

/* Levels of a field. low: bits 0..3 of their numbers, above them junk. Up to five bits: of one or
 * two tables, told apart by bit 4. More: a table byte is zero + magnitude, and subtracted from
 * 2 * zero, which is 0 as a byte, where the level is negative. Numbers of the norm-codebook are a
 * sign above a magnitude; those of a trellis ascend, so with the upper half of them in the tables a
 * negative level is at its number's complement. */
TQ_INLINE __m256i tq_pick_level(const __m256i *table, __m256i low, const tq_upper_bits u,
                                const int field, const uint32_t bits, const int trellis)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const int at = 7 - 2 * field; /* from bit 4's place to the top of a byte */

    if (bits <= 5) {
        low = _mm256_and_si256(low, nibble);
        const __m256i v = _mm256_shuffle_epi8(table[0], low);
        return bits <= 4 ? v
                         : _mm256_blendv_epi8(v, _mm256_shuffle_epi8(table[1], low),
                                              tq_shift_up(u.two, at));
    }
    const __m256i sign = tq_shift_up(u.sign, at - u.sign_at);
    const __m256i bit4 = tq_shift_up(u.two, at);
    __m256i v, negative;
    if (trellis) {
        negative = _mm256_cmpgt_epi8(sign, _mm256_set1_epi8(-1));
        low = _mm256_and_si256(_mm256_xor_si256(low, negative), nibble);
        v = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[1], low),
                               _mm256_shuffle_epi8(table[0], low), bit4);
    } else {
        negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), sign);
        low = _mm256_and_si256(low, nibble);
        v = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[0], low),
                               _mm256_shuffle_epi8(table[1], low), bit4);
    }
    if (bits == 7) {
        const __m256i w = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[3], low),
                                             _mm256_shuffle_epi8(table[2], low), bit4);
        v = _mm256_blendv_epi8(w, v, tq_shift_up(u.two, at - 1));
    }
    return _mm256_sub_epi8(_mm256_xor_si256(v, negative), negative);
}

#endif
