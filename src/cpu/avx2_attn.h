/* SPDX-License-Identifier: MIT */
/* avx2_attn.h — the AVX2 attention kernels by name, and what their files share. */
#ifndef TQ_CPU_AVX2_ATTN_H
#define TQ_CPU_AVX2_ATTN_H

#include "cpu/kernels.h"

#include <immintrin.h>
#include <string.h>

#define TQ_INLINE static inline __attribute__((always_inline))

/* Unroll a loop of at most 16 rounds, so that an array of registers that it indexes is registers.
 * clang does what GCC's pragma asks too late for that. */
#if defined(__clang__)
#define TQ_UNROLL_FOR(...) _Pragma("clang loop unroll(full)") for (__VA_ARGS__)
#else
#define TQ_UNROLL_FOR(...) _Pragma("GCC unroll 16") for (__VA_ARGS__)
#endif

/* CALL(n) for the next n of `left` rows, at most four, so that n is known to the compiler. */
#define TQ_CALL_ROWS(left, CALL)                                                                   \
    do {                                                                                           \
        switch (left) {                                                                            \
        case 1:                                                                                    \
            CALL(1);                                                                               \
            break;                                                                                 \
        case 2:                                                                                    \
            CALL(2);                                                                               \
            break;                                                                                 \
        case 3:                                                                                    \
            CALL(3);                                                                               \
            break;                                                                                 \
        default:                                                                                   \
            CALL(4);                                                                               \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

/* sum + x, in the register of the sum. With the intrinsic gcc 12 regroups a chain of additions: it
 * makes all products first, runs out of registers and waits for memory. */
TQ_INLINE __m256i tq_add_i32(__m256i sum, __m256i x)
{
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(x));
    return sum;
}

/* The same for 16-bit lanes. */
TQ_INLINE __m256i tq_add_i16(__m256i sum, __m256i x)
{
    __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(x));
    return sum;
}

/* x, loaded here once: gcc otherwise loads it again for each instruction that takes memory, and
 * loads are what some loops wait for. */
TQ_INLINE __m256i tq_keep(__m256i x)
{
    __asm__("" : "+x"(x));
    return x;
}

TQ_INLINE __m256 tq_keep_ps(__m256 x)
{
    __asm__("" : "+x"(x));
    return x;
}

/* Pairs of 16-bit lanes added, in 32 bits. The ones are in memory: the loops that do this have no
 * register left for them, and gcc would keep sums in memory instead. */
TQ_INLINE __m256i tq_add_pairs(__m256i x)
{
    static const int16_t ones[16]
        __attribute__((aligned(32))) = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    __asm__("vpmaddwd %1, %0, %0" : "+x"(x) : "m"(ones));
    return x;
}

/* avx2_attn_score.c */
tq_prep_fn tq_avx2_prep_f32, tq_avx2_prep_f16, tq_avx2_prep_bf16;
tq_score_fn tq_avx2_score_f32, tq_avx2_score_f16, tq_avx2_score_bf16;

/* avx2_attn_affine.c */
tq_prep_fn tq_avx2_prep_k2, tq_avx2_prep_k4, tq_avx2_prep_k5, tq_avx2_prep_k8;
tq_score_fn tq_avx2_score_k2, tq_avx2_score_k4, tq_avx2_score_k5, tq_avx2_score_k8;
tq_prep_fn tq_avx2_prep_uniform4, tq_avx2_prep_uniform8;
tq_score_fn tq_avx2_score_uniform4, tq_avx2_score_uniform8;

/* avx2_attn_weigh.c */
tq_weigh_fn tq_avx2_weigh_f32, tq_avx2_weigh_f16, tq_avx2_weigh_bf16;

/* avx2_attn_bytes.c */
tq_weigh_fn tq_avx2_weigh_v2, tq_avx2_weigh_v3, tq_avx2_weigh_v4, tq_avx2_weigh_uniform4;

/* avx2_attn_words.c */
tq_weigh_fn tq_avx2_weigh_v5, tq_avx2_weigh_v8, tq_avx2_weigh_uniform8;

/* avx2_attn_rotated.c */
tq_prep_fn tq_avx2_prep_rotated;
tq_score_fn tq_avx2_score_decoded;
tq_weigh_fn tq_avx2_weigh_decoded;

/* avx2_attn_norm.c: norm-codebook and trellis */
tq_prep_fn tq_avx2_prep_norm;
tq_score_fn tq_avx2_score_norm;

/* avx2_attn_levels.c */
tq_weigh_fn tq_avx2_weigh_norm;

/* avx2_attn_tile.c */
tq_pack_fn tq_avx2_pack_keys, tq_avx2_pack_values;
tq_gemm_fn tq_avx2_gemm;

/* Eight stored numbers as f32. */
TQ_INLINE __m256 tq_load8_f32(const uint8_t *p)
{
    return _mm256_loadu_ps((const float *)(const void *)p);
}

TQ_INLINE __m256 tq_load8_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

TQ_INLINE __m256 tq_load8_bf16(const uint8_t *p)
{
    __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}

TQ_INLINE uint16_t tq_load_u16(const uint8_t *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

TQ_INLINE uint32_t tq_load_u32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

TQ_INLINE uint64_t tq_load_u64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

TQ_INLINE float tq_hmax8(__m256 x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

TQ_INLINE float tq_hsum8(__m256 x)
{
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}

/* A kernel's walk through the memory that is wanted next, see tq_const_planes: each call of
 * tq_walk_on asks for the share of one of n_steps steps. A core has some 24 misses in flight, and a
 * page of keys is a hundred lines or more: asked for at once, most would be forgotten (Zen 3) or
 * hold the core up, so steps should be equally far apart in time. Every step asks for equally many
 * lines, for a loop of changing length would be predicted wrongly at every other step; where that
 * is more than its share, the next step begins with the same line again, which costs little, and
 * the last asks beyond the end, which nothing minds.
 * gap: to the second of two streams, or 0; then the rest is of each. */
typedef struct tq_walk {
    const uint8_t *p;
    uint32_t at, end, step; /* in 2^-8 bytes: what is next, where that ends, a share */
    uint32_t most;          /* bytes that a step asks for */
    size_t gap;
} tq_walk;

TQ_INLINE tq_walk tq_walk_begin(tq_const_planes planes, uint32_t n_steps)
{
    tq_walk w = {.p = planes.ahead, .gap = planes.ahead_gap};
    const uint32_t bytes = planes.ahead ? (uint32_t)planes.ahead_bytes : 0;
    const uint32_t steps = n_steps > 0 ? n_steps : 1;
    w.end = bytes << 8;
    w.step = (w.end + steps - 1) / steps;
    w.most = (w.step + (64 << 8) - 1) >> 14 << 6;
    return w;
}

TQ_INLINE void tq_walk_on(tq_walk *w)
{
    if (w->at >= w->end) /* nothing, or rows beyond the first few */
        return;
    const char *p = (const char *)w->p + (w->at >> 8), *const end = p + w->most;
    w->at += w->step;
    if (w->gap)
        for (; p != end; p += 64) {
            _mm_prefetch(p, _MM_HINT_T0);
            _mm_prefetch(p + w->gap, _MM_HINT_T0);
        }
    else
        for (; p != end; p += 64)
            _mm_prefetch(p, _MM_HINT_T0);
}

/* f16 numbers of 8 tokens, 4 groups: dst[g][t] = row t, group g, as f32; rows dst_stride apart.
 * n_groups: 4 or more, or fewer when the rows end with them. Tokens from n on repeat token n - 1.
 */
TQ_INLINE void tq_transpose_f16(float *dst, size_t dst_stride, const uint8_t *plane, size_t stride,
                                uint32_t n, uint32_t n_groups)
{
    __m128i row[8];
    for (uint32_t t = 0; t < 8; t++) {
        const uint8_t *p = plane + (t < n ? t : n - 1) * stride;
        if (n_groups >= 4) {
            row[t] = _mm_loadl_epi64((const __m128i *)(const void *)p);
        } else if (n_groups == 1) {
            row[t] = _mm_cvtsi32_si128((int)tq_load_u16(p));
        } else {
            row[t] = _mm_cvtsi32_si128((int)tq_load_u32(p));
            if (n_groups == 3)
                row[t] = _mm_insert_epi16(row[t], (int)tq_load_u16(p + 4), 2);
        }
    }
    __m128i a = _mm_unpacklo_epi16(row[0], row[1]), b = _mm_unpacklo_epi16(row[2], row[3]);
    __m128i c = _mm_unpacklo_epi16(row[4], row[5]), d = _mm_unpacklo_epi16(row[6], row[7]);
    __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
    _mm256_storeu_ps(dst, _mm256_cvtph_ps(_mm_unpacklo_epi64(ab, cd)));
    if (n_groups > 1)
        _mm256_storeu_ps(dst + dst_stride, _mm256_cvtph_ps(_mm_unpackhi_epi64(ab, cd)));
    if (n_groups < 3)
        return;
    ab = _mm_unpackhi_epi32(a, b), cd = _mm_unpackhi_epi32(c, d);
    _mm256_storeu_ps(dst + 2 * dst_stride, _mm256_cvtph_ps(_mm_unpacklo_epi64(ab, cd)));
    if (n_groups > 3)
        _mm256_storeu_ps(dst + 3 * dst_stride, _mm256_cvtph_ps(_mm_unpackhi_epi64(ab, cd)));
}

/* f16 numbers of a tile: dst [n_groups][dst_stride], `tokens` of them from token t on, a multiple
 * of 8. Tokens from n on repeat token n - 1. */
TQ_INLINE void tq_load_columns(float *dst, size_t dst_stride, const uint8_t *plane, size_t stride,
                               uint32_t t, uint32_t tokens, uint32_t n, uint32_t n_groups)
{
    if (n_groups == 4 && t + tokens <= n) { /* head size 128, by far the most frequent */
        const uint8_t *p = plane + t * stride;
        for (uint32_t i = 0; i < tokens; i += 8, p += 8 * stride)
            tq_transpose_f16(dst + i, dst_stride, p, stride, 8, 4);
        return;
    }
    for (uint32_t i = 0; i < tokens; i += 8) {
        const uint32_t from = t + i < n ? t + i : n - 1, left = n - from;
        const uint8_t *p = plane + from * stride;
        uint32_t g = 0;
        for (; g + 4 <= n_groups; g += 4)
            tq_transpose_f16(dst + g * dst_stride + i, dst_stride, p + 2 * g, stride, left, 4);
        float *rest = dst + g * dst_stride + i;
        p += 2 * g;
        if (n_groups - g == 3)
            tq_transpose_f16(rest, dst_stride, p, stride, left, 3);
        else if (n_groups - g == 2)
            tq_transpose_f16(rest, dst_stride, p, stride, left, 2);
        else if (n_groups - g == 1)
            tq_transpose_f16(rest, dst_stride, p, stride, left, 1);
    }
}

/* Bytes of a token at tq_copy_ends; loads that begin before its end may take that many. */
#define TQ_END_BYTES 32u

/* The ends of rows, `bytes` of each from `codes` on, 32 at most: dst [tokens][TQ_END_BYTES], behind
 * the rows junk. Tokens from n on repeat token n - 1. What kernels do with whole groups of 32
 * elements reads past a last group that is shorter, or stands alone. */
TQ_INLINE void tq_copy_ends(uint8_t *dst, const uint8_t *codes, size_t stride, size_t bytes,
                            uint32_t tokens, uint32_t n)
{
    const uint8_t *const last = codes + (n - 1) * stride;
    uint8_t copy[TQ_END_BYTES] = {0};
    uint32_t t = 0;
    /* Whole registers, as long as the rows behind hold what they read. */
    for (; t < n && (size_t)(last - codes) + bytes >= TQ_END_BYTES; t++, codes += stride)
        _mm256_storeu_si256((__m256i *)(void *)(dst + t * TQ_END_BYTES),
                            _mm256_loadu_si256((const __m256i *)(const void *)codes));
    for (; t < n; t++, codes += stride)
        memcpy(dst + t * TQ_END_BYTES, codes, bytes);
    memcpy(copy, last, bytes);
    for (; t < tokens; t++)
        memcpy(dst + t * TQ_END_BYTES, copy, sizeof copy);
}

/* sum of w[t] * x[t] over a tile. */
TQ_INLINE float tq_dot_tile(const float *w, const float *x)
{
    __m256 a = _mm256_mul_ps(_mm256_loadu_ps(w), _mm256_loadu_ps(x));
    __m256 b = _mm256_mul_ps(_mm256_loadu_ps(w + 8), _mm256_loadu_ps(x + 8));
    for (uint32_t t = 16; t < TQ_TILE; t += 16) {
        a = _mm256_fmadd_ps(_mm256_loadu_ps(w + t), _mm256_loadu_ps(x + t), a);
        b = _mm256_fmadd_ps(_mm256_loadu_ps(w + t + 8), _mm256_loadu_ps(x + t + 8), b);
    }
    return tq_hsum8(_mm256_add_ps(a, b));
}

/* offset[i] += shift * scale[i] for all groups of a tile. */
TQ_INLINE void tq_shift_offsets(float *offset, const float *scale, float shift, uint32_t n_groups)
{
    const __m256 x = _mm256_set1_ps(shift);
    for (uint32_t i = 0; i < n_groups * TQ_TILE; i += 8)
        _mm256_storeu_ps(offset + i, _mm256_fmadd_ps(x, _mm256_loadu_ps(scale + i),
                                                     _mm256_loadu_ps(offset + i)));
}

/* Entries of the formats that have no kernels of their own, for AVX2 and AVX-512. */
#define TQ_AVX2_PREP_PLAIN                                                                         \
    TQ_MSE_ENTRIES(tq_avx2_prep_rotated), TQ_PROD_ENTRIES(tq_avx2_prep_rotated)
#define TQ_AVX2_SCORE_PLAIN                                                                        \
    TQ_MSE_ENTRIES(tq_avx2_score_decoded), TQ_PROD_ENTRIES(tq_avx2_score_decoded)
#define TQ_AVX2_WEIGH_PLAIN                                                                        \
    TQ_MSE_ENTRIES(tq_avx2_weigh_decoded), TQ_PROD_ENTRIES(tq_avx2_weigh_decoded)

#endif
