/* SPDX-License-Identifier: MIT */
/* avx2_runs.h — bits 0..3 of level numbers from the planes of a row.
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

/* Runs of 16: the bits before come from the end of the run before, one bit lower. */
TQ_INLINE tq_path_bits tq_path_of_128(const uint8_t *plane)
{
    const __m128i x = tq_load128(plane), before = _mm_add_epi8(x, x);
    tq_path_bits p = {{x, _mm_alignr_epi8(x, before, 15), _mm_alignr_epi8(x, before, 14),
                       _mm_alignr_epi8(x, before, 13)}};
    return p;
}

/* o: bits of o, laid out as those of a plane of two bits. */
TQ_INLINE tq_nibbles tq_nibbles_of(__m256i o, const tq_path_bits path)
{
    const __m256i even = _mm256_set1_epi8(0x55), low2 = _mm256_set1_epi8(0x33);
    const __m256i z0 = tq_runs_of_one_bit(path.x[2]);
    const __m256i z1 =
        tq_runs_of_one_bit(_mm_xor_si128(path.x[0], _mm_xor_si128(path.x[1], path.x[3])));
    const __m256i z1_up = _mm256_slli_epi16(_mm256_and_si256(z1, even), 1);
    const __m256i z = _mm256_or_si256(_mm256_and_si256(z0, even), z1_up);
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

/* o: the planes of o; bits of a code. */
TQ_INLINE tq_nibbles tq_nibbles_at(const uint8_t *o, const tq_path_bits path, uint32_t n1,
                                   const uint32_t bits)
{
    return tq_nibbles_of(bits == 2 ? tq_two_of_one_bit(tq_load128(o)) : tq_load_halves(o, n1),
                         path);
}

#endif
