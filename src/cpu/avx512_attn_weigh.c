/* SPDX-License-Identifier: MIT */
/* avx512_attn_weigh.c — weighted sums of Lloyd values, for AVX-512 without VNNI and VBMI (with:
 * avx512_attn_bytes.c, avx512_attn_words.c). Those of 8 bits are summed by AVX2's kernel, whose
 * fractions of a line cost less than 256 centroids to look up, here too.
 *
 * A block is `rows` queries (1 to 8) by one group of 32 elements; its sums stay in registers over
 * all tokens of the tile. The scale of the group is multiplied into the weights, so the inner loop
 * sees bare centroids, looked up in registers. Sums start at 0 in each tile and are then added to
 * the older ones: short chains round less.
 */
#include "cpu/avx512_attn.h"

enum { GROUP_FLOATS = 32, MAX_ROWS = 8 };

typedef struct codebook {
    __m512 table[2]; /* centroids 0..15, 16..31; fewer are repeated */
} codebook;

/* The 32 elements of a group at p. */
typedef void expand_fn(__m512 x[2], const uint8_t *p, const codebook *book);

TQ_INLINE __m512i ramp(int first, int step)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(step)),
                            _mm512_set1_epi32(first));
}

/* Lanes 0..7 see the dword at lo, lanes 8..15 that at hi. */
TQ_INLINE __m512i spread2(const uint8_t *lo, const uint8_t *hi)
{
    return _mm512_mask_set1_epi32(_mm512_set1_epi32((int)tq_load_u32(lo)), 0xff00,
                                  (int)tq_load_u32(hi));
}

TQ_INLINE void expand_v2(__m512 x[2], const uint8_t *p, const codebook *book)
{
    for (int i = 0; i < 2; i++) {
        __m512i bits = _mm512_set1_epi32((int)tq_load_u32(p + 4 * i));
        x[i] = _mm512_permutexvar_ps(_mm512_srlv_epi32(bits, ramp(0, 2)), book->table[0]);
    }
}

/* 16 elements are 6 bytes; the last load ends with the group. */
TQ_INLINE void expand_v3(__m512 x[2], const uint8_t *p, const codebook *book)
{
    /* Element 8 is at bit 24, bit 8 of the dword at byte 2. */
    const __m512i down =
        _mm512_mask_sub_epi32(ramp(0, 3), 0xff00, ramp(0, 3), _mm512_set1_epi32(16));
    __m512i a = _mm512_srlv_epi32(spread2(p, p + 2), down);
    __m512i b = _mm512_srlv_epi32(spread2(p + 6, p + 8), down);
    x[0] = _mm512_permutexvar_ps(a, book->table[0]);
    x[1] = _mm512_permutexvar_ps(b, book->table[0]);
}

TQ_INLINE void expand_v4(__m512 x[2], const uint8_t *p, const codebook *book)
{
    for (int i = 0; i < 2; i++) {
        const __m512i down = _mm512_and_si512(ramp(0, 4), _mm512_set1_epi32(31));
        __m512i idx = _mm512_srlv_epi32(spread2(p + 8 * i, p + 8 * i + 4), down);
        x[i] = _mm512_permutexvar_ps(idx, book->table[0]);
    }
}

TQ_INLINE void expand_v5(__m512 x[2], const uint8_t *p, const codebook *book)
{
    __m512i idx[2];
    tq_unpack_group16(idx, p, 0, 5);
    for (int i = 0; i < 2; i++)
        x[i] = _mm512_permutex2var_ps(book->table[0], idx[i], book->table[1]);
}

TQ_INLINE codebook make_codebook(const uint32_t bits)
{
    const float *all = tq_lloyd_get(bits)->centroid;
    codebook book = {{_mm512_setzero_ps(), _mm512_setzero_ps()}};
    if (bits == 2)
        book.table[0] = _mm512_broadcast_f32x4(_mm_loadu_ps(all));
    else if (bits == 3)
        book.table[0] = _mm512_broadcast_f32x8(_mm256_loadu_ps(all));
    else
        book.table[0] = _mm512_loadu_ps(all);
    if (bits == 5)
        book.table[1] = _mm512_loadu_ps(all + 16);
    return book;
}

/* acc[r] [32] of rows r. w [rows][64], alpha [rows], scale [64]. */
TQ_INLINE void block(float *acc, size_t acc_stride, const float *w, const float *alpha,
                     const float *scale, const uint8_t *p, size_t stride, uint32_t n,
                     const codebook *book, expand_fn *expand, const uint32_t rows)
{
    float scaled[MAX_ROWS * TQ_TILE];
    __m512 sum[MAX_ROWS][2];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t t = 0; t < n; t += 16)
            _mm512_storeu_ps(
                scaled + r * TQ_TILE + t,
                _mm512_mul_ps(_mm512_loadu_ps(w + r * TQ_TILE + t), _mm512_loadu_ps(scale + t)));
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    }
    for (uint32_t t = 0; t < n; t++, p += stride) {
        __m512 x[2];
        expand(x, p, book);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            __m512 y = _mm512_set1_ps(scaled[r * TQ_TILE + t]);
            sum[r][0] = _mm512_fmadd_ps(y, x[0], sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(y, x[1], sum[r][1]);
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        __m512 y = _mm512_set1_ps(alpha[r]);
        for (int i = 0; i < 2; i++) {
            float *dst = acc + r * acc_stride + 16 * i;
            _mm512_storeu_ps(dst, _mm512_fmadd_ps(y, _mm512_loadu_ps(dst), sum[r][i]));
        }
    }
}

TQ_INLINE void weigh_lloyd(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                           const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                           expand_fn *expand, const uint32_t bits)
{
    const codebook book = make_codebook(bits);
    tq_walk ahead = tq_walk_begin(values, v->n_groups);
    for (uint32_t g = 0; g < v->n_groups; g += 4) {
        const uint32_t n_groups = v->n_groups - g < 4 ? v->n_groups - g : 4;
        float scale[4 * TQ_TILE];
        for (uint32_t t = 0; t < n; t += 16)
            tq_transpose16_f16(scale + t, TQ_TILE, values.scale + t * values.scale_stride + 2 * g,
                               values.scale_stride, n - t, n_groups);
        for (uint32_t i = 0; i < n_groups; i++) {
            const uint8_t *codes = values.codes + (size_t)(g + i) * bits * 4;
            float *dst = acc + (size_t)(g + i) * GROUP_FLOATS;
            tq_walk_on(&ahead);
            for (uint32_t r = 0; r < n_rows;) {
                const uint32_t left = n_rows - r;
                float *rows = dst + r * acc_stride;
                const float *wr = w + r * TQ_TILE, *al = alpha + r, *sc = scale + i * TQ_TILE;
                const size_t stride = values.codes_stride;
                if (left >= 8) {
                    block(rows, acc_stride, wr, al, sc, codes, stride, n, &book, expand, 8);
                    r += 8;
                } else if (left >= 4) {
                    block(rows, acc_stride, wr, al, sc, codes, stride, n, &book, expand, 4);
                    r += 4;
                } else if (left == 3) {
                    block(rows, acc_stride, wr, al, sc, codes, stride, n, &book, expand, 3);
                    r += 3;
                } else if (left == 2) {
                    block(rows, acc_stride, wr, al, sc, codes, stride, n, &book, expand, 2);
                    r += 2;
                } else {
                    block(rows, acc_stride, wr, al, sc, codes, stride, n, &book, expand, 1);
                    r += 1;
                }
            }
        }
    }
}

#define LLOYD_KERNEL(bits)                                                                         \
    void tq_avx512_weigh_v##bits(const tq_codec *v, float *acc, size_t acc_stride, const float *w, \
                                 const float *alpha, uint32_t n_rows, tq_const_planes values,      \
                                 uint32_t n)                                                       \
    {                                                                                              \
        weigh_lloyd(v, acc, acc_stride, w, alpha, n_rows, values, n, expand_v##bits, bits);        \
    }

LLOYD_KERNEL(2)
LLOYD_KERNEL(3)
LLOYD_KERNEL(4)
LLOYD_KERNEL(5)
