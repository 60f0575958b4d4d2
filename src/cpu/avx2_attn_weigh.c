/* SPDX-License-Identifier: MIT */
/* avx2_attn_weigh.c — weighted sums of values, for AVX2.
 *
 * A block is `rows` queries (1 to 6) by 2 or 4 registers of elements; its sums stay in registers
 * over all tokens of the tile, so each value is expanded once for all rows of the block and the
 * multipliers set the pace. Sums start at 0 in each tile and are then added to the older ones:
 * short chains round less.
 *
 * Lloyd values: the scale of a group of 32 elements is the same for all of them, so it is
 * multiplied into the weights, and the inner loop sees bare centroids, looked up in registers.
 */
#include "cpu/avx2_attn.h"
#include "tables.h"

#define GROUP    32u
#define MAX_ROWS 6u

/* Rows of the next block when n are left. */
TQ_INLINE uint32_t block_rows(uint32_t n)
{
    return n <= MAX_ROWS ? n : n <= 8 ? 4 : MAX_ROWS;
}

/* Registers of a block: sums, expanded values and a weight must fit in 16. */
TQ_INLINE uint32_t block_vectors(uint32_t rows)
{
    return rows <= 2 ? 4 : 2;
}

/* What the expansion of a format needs beside the bytes. */
typedef struct codebook {
    __m256 table[4]; /* centroids 0..7, 8..15 ... */
    const float *all;
} codebook;

/* x[i] = elements 8i .. 8i+7 from p on, i < vectors. */
typedef void expand_fn(__m256 x[4], const uint8_t *p, const codebook *book, const uint32_t vectors);

/* acc[r] [8 * vectors] of rows r. w [rows][64]. */
TQ_INLINE void block(float *acc, size_t acc_stride, const float *w, const float *alpha,
                     const uint8_t *p, size_t stride, uint32_t n, const codebook *book,
                     expand_fn *expand, const uint32_t rows, const uint32_t vectors)
{
    __m256 sum[MAX_ROWS][4];
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < vectors; i++)
            sum[r][i] = _mm256_setzero_ps();
    for (uint32_t t = 0; t < n; t++, p += stride) {
        __m256 x[4];
        expand(x, p, book, vectors);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            __m256 y = _mm256_broadcast_ss(w + r * TQ_TILE + t);
            TQ_UNROLL_FOR (uint32_t i = 0; i < vectors; i++)
                sum[r][i] = _mm256_fmadd_ps(y, x[i], sum[r][i]);
        }
    }
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        __m256 y = _mm256_broadcast_ss(alpha + r);
        TQ_UNROLL_FOR (uint32_t i = 0; i < vectors; i++) {
            float *dst = acc + r * acc_stride + 8 * i;
            _mm256_storeu_ps(dst, _mm256_fmadd_ps(y, _mm256_loadu_ps(dst), sum[r][i]));
        }
    }
}

/* ---- f32, f16, bf16 -------------------------------------------------------------------- */

TQ_INLINE void float_rows(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                          const float *alpha, tq_const_planes values, uint32_t n,
                          const uint32_t elem_bytes, expand_fn *expand, const uint32_t rows)
{
    const uint32_t vectors = block_vectors(rows);
    uint32_t j = 0;
    for (; j + 8 * vectors <= v->dim; j += 8 * vectors)
        block(acc + j, acc_stride, w, alpha, values.codes + (size_t)j * elem_bytes,
              values.codes_stride, n, NULL, expand, rows, vectors);
    for (; j < v->dim; j += 8)
        block(acc + j, acc_stride, w, alpha, values.codes + (size_t)j * elem_bytes,
              values.codes_stride, n, NULL, expand, rows, 1);
}

#define BY_ROWS(call)                                                                              \
    while (n_rows > 0) {                                                                           \
        const uint32_t taken = block_rows(n_rows);                                                 \
        switch (taken) {                                                                           \
        case 1:                                                                                    \
            call(1);                                                                               \
            break;                                                                                 \
        case 2:                                                                                    \
            call(2);                                                                               \
            break;                                                                                 \
        case 3:                                                                                    \
            call(3);                                                                               \
            break;                                                                                 \
        case 4:                                                                                    \
            call(4);                                                                               \
            break;                                                                                 \
        case 5:                                                                                    \
            call(5);                                                                               \
            break;                                                                                 \
        default:                                                                                   \
            call(6);                                                                               \
            break;                                                                                 \
        }                                                                                          \
        acc += taken * acc_stride;                                                                 \
        w += taken * TQ_TILE;                                                                      \
        alpha += taken;                                                                            \
        n_rows -= taken;                                                                           \
    }

#define FLOAT_KERNEL(name, bytes)                                                                  \
    TQ_INLINE void expand_##name(__m256 x[4], const uint8_t *p, const codebook *book,              \
                                 const uint32_t vectors)                                           \
    {                                                                                              \
        (void)book;                                                                                \
        for (uint32_t i = 0; i < vectors; i++)                                                     \
            x[i] = tq_load8_##name(p + 8 * (bytes)*i);                                             \
    }                                                                                              \
    void tq_avx2_weigh_##name(const tq_codec *v, float *acc, size_t acc_stride, const float *w,    \
                              const float *alpha, uint32_t n_rows, tq_const_planes values,         \
                              uint32_t n)                                                          \
    {                                                                                              \
        BY_ROWS(FLOAT_CALL_##name)                                                                 \
    }

#define FLOAT_CALL_f32(rows)                                                                       \
    float_rows(v, acc, acc_stride, w, alpha, values, n, 4, expand_f32, rows)
#define FLOAT_CALL_f16(rows)                                                                       \
    float_rows(v, acc, acc_stride, w, alpha, values, n, 2, expand_f16, rows)
#define FLOAT_CALL_bf16(rows)                                                                      \
    float_rows(v, acc, acc_stride, w, alpha, values, n, 2, expand_bf16, rows)

FLOAT_KERNEL(f32, 4)
FLOAT_KERNEL(f16, 2)
FLOAT_KERNEL(bf16, 2)

/* ---- Lloyd: expansion of codes to centroids -------------------------------------------- */

TQ_INLINE __m256i spread_u32(const uint8_t *p)
{
    return _mm256_set1_epi32((int)tq_load_u32(p));
}

/* vpermps looks at the low 3 bits of an index; the table of 4 is there twice, so the third bit,
 * which belongs to a neighbour, does not matter. */
TQ_INLINE void expand_v2(__m256 x[4], const uint8_t *p, const codebook *book,
                         const uint32_t vectors)
{
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i odd = _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30);
    for (uint32_t i = 0; i < vectors; i += 2) {
        __m256i bits = spread_u32(p + 2 * i);
        x[i] = _mm256_permutevar8x32_ps(book->table[0], _mm256_srlv_epi32(bits, even));
        x[i + 1] = _mm256_permutevar8x32_ps(book->table[0], _mm256_srlv_epi32(bits, odd));
    }
}

/* 16 elements are 6 bytes; the second load ends with them. */
TQ_INLINE void expand_v3(__m256 x[4], const uint8_t *p, const codebook *book,
                         const uint32_t vectors)
{
    const __m256i even = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    const __m256i odd = _mm256_setr_epi32(8, 11, 14, 17, 20, 23, 26, 29);
    for (uint32_t i = 0; i < vectors; i += 2) {
        __m256i a = _mm256_srlv_epi32(spread_u32(p + 3 * i), even);
        __m256i b = _mm256_srlv_epi32(spread_u32(p + 3 * i + 2), odd);
        x[i] = _mm256_permutevar8x32_ps(book->table[0], a);
        x[i + 1] = _mm256_permutevar8x32_ps(book->table[0], b);
    }
}

/* Both halves of the table, then bit 3 of the index, moved to the sign, chooses. */
TQ_INLINE void expand_v4(__m256 x[4], const uint8_t *p, const codebook *book,
                         const uint32_t vectors)
{
    const __m256i down = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    for (uint32_t i = 0; i < vectors; i++) {
        __m256i bits = spread_u32(p + 4 * i);
        __m256i low = _mm256_srlv_epi32(bits, down);
        __m256 high = _mm256_castsi256_ps(_mm256_sllv_epi32(bits, up));
        x[i] = _mm256_blendv_ps(_mm256_permutevar8x32_ps(book->table[0], low),
                                _mm256_permutevar8x32_ps(book->table[1], low), high);
    }
}

/* 16 elements are 10 bytes: two loads of 8, the second ends with them. Each dword gets the two
 * bytes that hold its element. */
TQ_INLINE void expand_v5(__m256 x[4], const uint8_t *p, const codebook *book,
                         const uint32_t vectors)
{
    const __m256i bytes_a =
        _mm256_setr_epi8(0, 1, -1, -1, 0, 1, -1, -1, 1, 2, -1, -1, 1, 2, -1, -1, 2, 3, -1, -1, 3, 4,
                         -1, -1, 3, 4, -1, -1, 4, 5, -1, -1);
    const __m256i bytes_b =
        _mm256_setr_epi8(3, 4, -1, -1, 3, 4, -1, -1, 4, 5, -1, -1, 4, 5, -1, -1, 5, 6, -1, -1, 6, 7,
                         -1, -1, 6, 7, -1, -1, 7, -1, -1, -1);
    const __m256i shift = _mm256_setr_epi32(0, 5, 2, 7, 4, 1, 6, 3);
    for (uint32_t i = 0; i < vectors; i++) {
        const uint8_t *src = i % 2 ? p + 5 * (i - 1) + 2 : p + 5 * i;
        __m256i idx = _mm256_set1_epi64x((long long)tq_load_u64(src));
        idx = _mm256_srlv_epi32(_mm256_shuffle_epi8(idx, i % 2 ? bytes_b : bytes_a), shift);
        __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(idx, 28));
        __m256 bit4 = _mm256_castsi256_ps(_mm256_slli_epi32(idx, 27));
        __m256 low = _mm256_blendv_ps(_mm256_permutevar8x32_ps(book->table[0], idx),
                                      _mm256_permutevar8x32_ps(book->table[1], idx), bit3);
        __m256 high = _mm256_blendv_ps(_mm256_permutevar8x32_ps(book->table[2], idx),
                                       _mm256_permutevar8x32_ps(book->table[3], idx), bit3);
        x[i] = _mm256_blendv_ps(low, high, bit4);
    }
}

TQ_INLINE void expand_v8(__m256 x[4], const uint8_t *p, const codebook *book,
                         const uint32_t vectors)
{
    for (uint32_t i = 0; i < vectors; i++) {
        __m128i bytes = _mm_cvtsi64_si128((long long)tq_load_u64(p + 8 * i));
        x[i] = _mm256_i32gather_ps(book->all, _mm256_cvtepu8_epi32(bytes), 4);
    }
}

TQ_INLINE codebook make_codebook(const uint32_t bits)
{
    codebook book;
    book.all = tq_lloyd_get(bits)->centroid;
    if (bits == 2)
        book.table[0] = _mm256_broadcast_ps((const __m128 *)(const void *)book.all);
    else if (bits < 8)
        for (uint32_t i = 0; i < 1u << bits; i += 8)
            book.table[i / 8] = _mm256_loadu_ps(book.all + i);
    return book;
}

/* ---- Lloyd: the kernels ---------------------------------------------------------------- */

/* One group of 32 elements of all tokens. scale [64]. */
TQ_INLINE void lloyd_group(float *acc, size_t acc_stride, const float *w, const float *alpha,
                           const float *scale, const uint8_t *codes, size_t stride, uint32_t n,
                           const codebook *book, expand_fn *expand, const uint32_t bits,
                           const uint32_t rows)
{
    const uint32_t vectors = block_vectors(rows);
    float scaled[MAX_ROWS * TQ_TILE];
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t t = 0; t < n; t += 8)
            _mm256_storeu_ps(
                scaled + r * TQ_TILE + t,
                _mm256_mul_ps(_mm256_loadu_ps(w + r * TQ_TILE + t), _mm256_loadu_ps(scale + t)));
    for (uint32_t j = 0; j < GROUP; j += 8 * vectors)
        block(acc + j, acc_stride, scaled, alpha, codes + j * bits / 8, stride, n, book, expand,
              rows, vectors);
}

TQ_INLINE void weigh_lloyd(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                           const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n,
                           expand_fn *expand, const uint32_t bits)
{
    const codebook book = make_codebook(bits);
    const uint32_t group_bytes = GROUP * bits / 8;
#define LLOYD_CALL(rows)                                                                           \
    for (uint32_t g = 0; g < v->n_groups; g += 4) {                                                \
        float scale[4 * TQ_TILE];                                                                  \
        const uint32_t n_groups = v->n_groups - g < 4 ? v->n_groups - g : 4;                       \
        for (uint32_t t = 0; t < n; t += 8)                                                        \
            tq_transpose_f16(scale + t, TQ_TILE, values.scale + t * values.scale_stride + 2 * g,   \
                             values.scale_stride, n - t, n_groups);                                \
        for (uint32_t i = 0; i < n_groups; i++)                                                    \
            lloyd_group(acc + (g + i) * GROUP, acc_stride, w, alpha, scale + i * TQ_TILE,          \
                        values.codes + (g + i) * group_bytes, values.codes_stride, n, &book,       \
                        expand, bits, rows);                                                       \
    }
    BY_ROWS(LLOYD_CALL)
}

#define LLOYD_KERNEL(bits)                                                                         \
    void tq_avx2_weigh_v##bits(const tq_codec *v, float *acc, size_t acc_stride, const float *w,   \
                               const float *alpha, uint32_t n_rows, tq_const_planes values,        \
                               uint32_t n)                                                         \
    {                                                                                              \
        weigh_lloyd(v, acc, acc_stride, w, alpha, n_rows, values, n, expand_v##bits, bits);        \
    }

LLOYD_KERNEL(2)
LLOYD_KERNEL(3)
LLOYD_KERNEL(4)
LLOYD_KERNEL(5)
LLOYD_KERNEL(8)
