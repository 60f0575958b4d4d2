/* SPDX-License-Identifier: MIT */
/* avx512_attn.h — the AVX-512 attention kernels by name, and what their files share.
 *
 * The same sources are compiled for two clusters: plain AVX-512 (f, bw, vl, dq), and that with VNNI
 * and VBMI, which multiply and add, or pick bit fields, in one instruction. TQ_CLUSTER gives the
 * names of the second a suffix of their own.
 */
#ifndef TQ_CPU_AVX512_ATTN_H
#define TQ_CPU_AVX512_ATTN_H

#include "cpu/avx2_attn.h"
#include "cpu/avx2_levels.h"
#include "cpu/avx512.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define TQ_HAVE_VNNI          1
#define TQ_CLUSTER(name)      name##_vnni
#define TQ_CLUSTER_B(name, b) name##b##_vnni
#else
#define TQ_HAVE_VNNI          0
#define TQ_CLUSTER(name)      name
#define TQ_CLUSTER_B(name, b) name##b
#endif

/* VNNI: sum + the products of the two int16, or of four bytes with four int8, of each lane. With
 * the intrinsics gcc 12 copies the sums of a loop to other registers and back in every round. */
#if TQ_HAVE_VNNI
TQ_INLINE __m512i tq_add_dot4(__m512i sum, __m512i bytes, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(x));
    return sum;
}

/* The same with four bytes at p for all lanes. */
typedef int32_t __attribute__((may_alias, aligned(1))) tq_four;

TQ_INLINE __m512i tq_add_dot4_at(__m512i sum, __m512i bytes, const void *p)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(bytes), "m"(*(const tq_four *)p));
    return sum;
}

TQ_INLINE __m512i tq_add_dot2(__m512i sum, __m512i x, __m512i y)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
    return sum;
}

TQ_INLINE __m512i tq_add_dot2_at(__m512i sum, __m512i x, const void *p)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(x), "m"(*(const tq_four *)p));
    return sum;
}
#endif

/* sum + the products of the two int16 of each lane with two at p. */
TQ_INLINE __m512i tq_dot2_at(__m512i sum, __m512i x, const void *p)
{
#if TQ_HAVE_VNNI
    return tq_add_dot2_at(sum, x, p);
#else
    const __m512i y = _mm512_set1_epi32((int)tq_load_u32(p));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(x, y));
#endif
}

/* As tq_walk, a line at each step, of two streams in turn: a third of the instructions, which a
 * kernel of 10 cycles a token notices. Steps should be about as many as lines: tq_last_lines asks
 * for what is left. */
typedef struct tq_lines {
    const uint8_t *next;
    ptrdiff_t step, both; /* bytes to the next line, and over that and the step after it */
    int32_t left;         /* lines; below 0: calls since there were none */
} tq_lines;

TQ_INLINE tq_lines tq_lines_begin(tq_const_planes planes)
{
    const int32_t n = (int32_t)((planes.ahead_bytes + 63) / 64);
    if (!planes.ahead || n == 0)
        return (tq_lines){planes.codes, 0, 0, 0};
    if (planes.ahead_gap)
        return (tq_lines){planes.ahead, (ptrdiff_t)planes.ahead_gap, 64, 2 * n};
    return (tq_lines){planes.ahead, 64, 128, n};
}

/* At the end the line behind the last, again and again: that is at most one too many. */
TQ_INLINE void tq_next_line(tq_lines *l)
{
    _mm_prefetch((const char *)l->next, _MM_HINT_T0);
    l->next += l->step;
    l->step = l->both - l->step;
    if (--l->left == 0)
        l->step = l->both = 0;
}

TQ_INLINE void tq_last_lines(tq_lines *l)
{
    while (l->left > 0)
        tq_next_line(l);
}

/* 32 elements of a query, for affine keys and keys of uniform groups: 16 pairs of int16 in the
 * order of the width's codes, then the scale of the integers and their sum times it. Rows follow
 * each other within a block: [dim / 32][n_rows]. */
typedef struct tq_affine_query {
    int16_t q[32];
    float scale, sum;
    float unused[14]; /* a multiple of 64 bytes */
} tq_affine_query;

/* avx512_attn_score.c; dim a multiple of 32 */
tq_score_fn TQ_CLUSTER(tq_avx512_score_k2), TQ_CLUSTER(tq_avx512_score_k4),
    TQ_CLUSTER(tq_avx512_score_k5), TQ_CLUSTER(tq_avx512_score_k8);
tq_prep_fn TQ_CLUSTER(tq_avx512_prep_k2), TQ_CLUSTER(tq_avx512_prep_k4),
    TQ_CLUSTER(tq_avx512_prep_k5), TQ_CLUSTER(tq_avx512_prep_k8);

/* avx512_attn_float_score.c, avx512_attn_float_weigh.c, for both */
tq_prep_fn tq_avx512_prep_float, tq_avx512_prep_bf16; /* f32 and f16: float */
tq_score_fn tq_avx512_score_f32, tq_avx512_score_f16, tq_avx512_score_bf16;
tq_weigh_fn tq_avx512_weigh_f32, tq_avx512_weigh_f16, tq_avx512_weigh_bf16;

/* avx512_attn_weigh.c, avx512_attn_bytes.c (VNNI) */
tq_weigh_fn TQ_CLUSTER(tq_avx512_weigh_v2), TQ_CLUSTER(tq_avx512_weigh_v3),
    TQ_CLUSTER(tq_avx512_weigh_v4);
/* avx512_attn_weigh.c, avx512_attn_words.c (VNNI) */
tq_weigh_fn TQ_CLUSTER(tq_avx512_weigh_v5);

/* With VNNI and VBMI only, else AVX2's: avx512_attn_uniform.c, avx512_attn_uniform_weigh.c (uniform
 * groups), avx512_attn_words.c (values of 8 bits) */
#if TQ_HAVE_VNNI
#define TQ_VNNI_KERNEL(name) tq_avx512_##name##_vnni
tq_prep_fn tq_avx512_prep_uniform4_vnni, tq_avx512_prep_uniform8_vnni;
tq_score_fn tq_avx512_score_uniform4_vnni, tq_avx512_score_uniform8_vnni;
tq_weigh_fn tq_avx512_weigh_uniform4_vnni, tq_avx512_weigh_uniform8_vnni;
tq_weigh_fn tq_avx512_weigh_v8_vnni;
#else
#define TQ_VNNI_KERNEL(name) tq_avx2_##name
#endif

/* avx512_attn_levels.c: norm-codebook and trellis */
tq_score_fn TQ_CLUSTER(tq_avx512_score_norm);
tq_weigh_fn TQ_CLUSTER(tq_avx512_weigh_norm);

/* avx512_planes_score.c, avx512_planes_weigh.c (VNNI): the same; rows of 64, 128 and 256 by their
 * planes */
tq_prep_fn tq_avx512_prep_planes;
tq_score_fn tq_avx512_score_planes;
tq_weigh_fn tq_avx512_weigh_planes;

/* avx512_levels.c: as tq_avx2_turned_levels, dst 64-byte aligned. */
void TQ_CLUSTER(tq_avx512_turned_levels)(uint8_t *dst, const tq_level_source *s,
                                         tq_const_planes rows, uint32_t t, uint32_t n,
                                         tq_walk *ahead);

/* Whether tq_avx512_level_quads takes rows of a source. */
TQ_INLINE int tq_avx512_takes_quads(const tq_level_source *s)
{
    return s->codec->dim % (s->nibbles ? 128 : 64) == 0;
}

/* As tq_avx2_level_quads in another order: a block of 16 has, of 64 elements from 64 (block / 4)
 * on, those from 16 lane + 4 (block % 4) on in lane 0 to 3 of 16 bytes. dst 64-byte aligned. */
void TQ_CLUSTER(tq_avx512_level_quads)(uint8_t *dst, const tq_level_source *s, tq_const_planes rows,
                                       uint32_t t, uint32_t n, tq_walk *ahead);

/* avx512_attn_tile.c */
tq_softmax_fn TQ_CLUSTER(tq_avx512_softmax);
tq_gemm_fn TQ_CLUSTER(tq_avx512_gemm);

/* 16 bytes of each of four rows, one to a lane of 16. */
TQ_INLINE __m512i tq_four_rows(const uint8_t *p, size_t stride)
{
    __m128i row[4];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        row[i] = _mm_loadu_si128((const __m128i *)(const void *)(p + i * stride));
    __m512i x = _mm512_inserti32x4(_mm512_castsi128_si512(row[0]), row[1], 1);
    x = _mm512_inserti32x4(x, row[2], 2);
    return _mm512_inserti32x4(x, row[3], 3);
}

/* Lane i of x[j] becomes lane j of x[i]. */
TQ_INLINE void tq_turn_lanes(__m512i x[4])
{
    const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const __m512i d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

/* In each lane of 16 bytes of x[0 .. 3], dword i of x[j] becomes dword j of x[i]. */
TQ_INLINE void tq_turn_dwords(__m512i x[4])
{
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpacklo_epi32(x[2], x[3]);
    const __m512i c = _mm512_unpackhi_epi32(x[0], x[1]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(a, b);
    x[1] = _mm512_unpackhi_epi64(a, b);
    x[2] = _mm512_unpacklo_epi64(c, d);
    x[3] = _mm512_unpackhi_epi64(c, d);
}

/* Rows of 16 tokens, those from n on the last one. Not inline: it is rare and large. */
static __attribute__((noinline, unused)) void tq_gather_groups(uint64_t rows[16],
                                                               const uint8_t *plane, size_t stride,
                                                               uint32_t n, uint32_t n_groups)
{
    for (uint32_t t = 0; t < 16; t++) {
        const uint8_t *p = plane + (t < n ? t : n - 1) * stride;
        rows[t] = n_groups >= 4 ? tq_load_u64(p) : tq_load_u32(p);
    }
}

/* f16 numbers of 16 tokens, 4 groups: dst[g][t] = row t, group g, as f32; rows dst_stride apart.
 * n_groups: 4 or more, or 2 when the rows end after two. Tokens from n on repeat token n - 1. */
TQ_INLINE void tq_transpose16_f16(float *dst, size_t dst_stride, const uint8_t *plane,
                                  size_t stride, uint32_t n, uint32_t n_groups)
{
    const __m512i lane =
        _mm512_set_epi32(0x3f3b3733, 0x2f2b2723, 0x1f1b1713, 0x0f0b0703, 0x3e3a3632, 0x2e2a2622,
                         0x1e1a1612, 0x0e0a0602, 0x3d393531, 0x2d292521, 0x1d191511, 0x0d090501,
                         0x3c383430, 0x2c282420, 0x1c181410, 0x0c080400);
    uint64_t rows[16];
    const void *src = plane;

    if (__builtin_expect(n < 16 || n_groups < 4 || stride != 8, 0)) {
        tq_gather_groups(rows, plane, stride, n, n_groups);
        src = rows;
    }
    /* Word 4t + g of the two registers is row t, group g; the bytes above are those numbers. */
    const __m512i lo = _mm512_loadu_si512(src);
    const __m512i hi = _mm512_loadu_si512((const uint8_t *)src + 64);
    for (int pair = 0; pair < 2; pair++) {
        if (pair == 1 && n_groups < 4)
            return;
        __m256i bytes =
            pair == 0 ? _mm512_castsi512_si256(lane) : _mm512_extracti64x4_epi64(lane, 1);
        __m512i two = _mm512_permutex2var_epi16(lo, _mm512_cvtepu8_epi16(bytes), hi);
        _mm512_storeu_ps(dst + (size_t)(2 * pair) * dst_stride,
                         _mm512_cvtph_ps(_mm512_castsi512_si256(two)));
        _mm512_storeu_ps(dst + (size_t)(2 * pair + 1) * dst_stride,
                         _mm512_cvtph_ps(_mm512_extracti64x4_epi64(two, 1)));
    }
}

/* Scales of a tile: dst [n_groups rounded up to 4][64]; those of tokens from n on are the last's.
 */
TQ_INLINE void tq_avx512_group_scales(float *dst, tq_const_planes values, uint32_t n,
                                      uint32_t n_groups)
{
    for (uint32_t g = 0; g < n_groups; g += 4)
        for (uint32_t t = 0; t < TQ_TILE; t += 16) {
            const uint32_t from = t < n ? t : n - 1;
            tq_transpose16_f16(dst + g * TQ_TILE + t, TQ_TILE,
                               values.scale + from * values.scale_stride + 2 * g,
                               values.scale_stride, n - from, n_groups - g);
        }
}

/* As tq_avx2_token_scales, whole registers where they are: loads that span two stores wait. dst [n
 * rounded up to 16]. */
TQ_INLINE void tq_avx512_token_scales(float *dst, const uint8_t *plane, size_t stride, uint32_t t,
                                      uint32_t n)
{
    uint32_t i = 0;
    for (; stride == 2 && i + 16 <= n; i += 16) {
        const uint8_t *p = plane + (size_t)(t + i) * 2;
        const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
        _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(half));
    }
    if (i < n)
        tq_avx2_token_scales(dst + i, plane, stride, t + i, n - i);
}

#endif
