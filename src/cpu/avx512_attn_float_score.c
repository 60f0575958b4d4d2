/* SPDX-License-Identifier: MIT */
/* avx512_attn_float_score.c — f32, f16 and bf16 keys against queries, for AVX-512, both clusters.
 *
 * A block is `rows` queries (1, 2, 3, 4 or 8) by 16 / rows tokens: sixteen sums, so each key is
 * expanded once for the rows of a block, each query loaded once for up to eight of its tokens, and
 * one tree adds the lanes of all sixteen. The tree adds the same lanes in the same order for every
 * sum, so a row's result does not depend on its block.
 */
#include "cpu/avx512_attn_float.h"

enum { SUMS = 16, MAX_ROWS = 8, MAX_TOKENS = 8 };

/* Half of the lanes of a and of b, those of b in `lanes`, plus the other half, which `exchanged`
 * has in their places. */
TQ_INLINE __m512 add_halves(__m512 a, __m512 b, __mmask16 lanes, __m512 exchanged)
{
    return _mm512_add_ps(_mm512_mask_blend_ps(lanes, a, b), exchanged);
}

/* Lane i of the result is the sum of the lanes of a[i]. Each round halves the registers; those of
 * many registers blend, which any port does, and shuffle once instead of twice. */
TQ_INLINE __m512 reduce16(const __m512 a[SUMS])
{
    __m512 b[8], c[4], d[2];
    TQ_UNROLL_FOR (uint32_t i = 0; i < 8; i++) { /* lanes 8 apart; bit 2 of a sum's number */
        const uint32_t k = i / 4 * 8 + i % 4;
        b[i] = add_halves(a[k], a[k + 4], 0xff00, _mm512_shuffle_f32x4(a[k], a[k + 4], 0x4e));
    }
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) /* lanes 2 apart; bit 0 */
        c[i] = add_halves(b[2 * i], b[2 * i + 1], 0xcccc,
                          _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x4e));
    TQ_UNROLL_FOR (uint32_t i = 0; i < 2; i++) /* lanes 4 apart; bit 3 */
        d[i] = _mm512_add_ps(_mm512_shuffle_f32x4(c[i], c[i + 2], 0x88),
                             _mm512_shuffle_f32x4(c[i], c[i + 2], 0xdd));
    /* Neighbours; bit 1. */
    return _mm512_add_ps(_mm512_shuffle_ps(d[0], d[1], 0x88), _mm512_shuffle_ps(d[0], d[1], 0xdd));
}

/* x[row * tokens + token] to s[row][token]. */
TQ_INLINE void store_scores(float *s, __m512 x, const uint32_t rows)
{
    if (rows == 1) {
        _mm512_storeu_ps(s, x);
    } else if (rows == 2) {
        _mm256_storeu_ps(s, _mm512_castps512_ps256(x));
        _mm256_storeu_ps(s + TQ_TILE, _mm512_extractf32x8_ps(x, 1));
    } else {
        const __m128 quarter[4] = {_mm512_castps512_ps128(x), _mm512_extractf32x4_ps(x, 1),
                                   _mm512_extractf32x4_ps(x, 2), _mm512_extractf32x4_ps(x, 3)};
        TQ_UNROLL_FOR (uint32_t i = 0; i < rows; i++) {
            if (rows <= 4)
                _mm_storeu_ps(s + i * TQ_TILE, quarter[i]);
            else if (i % 2 == 0)
                _mm_storel_pi((__m64 *)(void *)(s + i * TQ_TILE), quarter[i / 2]);
            else
                _mm_storeh_pi((__m64 *)(void *)(s + i * TQ_TILE), quarter[i / 2]);
        }
    }
}

/* ---- Preparation ----------------------------------------------------------------------- */

/* Rows of the next block when n are left. */
TQ_INLINE uint32_t block_rows(uint32_t n)
{
    return n >= 8 ? 8 : n >= 4 ? 4 : n;
}

/* The queries of a block in the order in which it reads them: of each step 32 elements a row, then
 * of each 16 that are left. Steps of bf16 in the order of tq_load32_bf16. */
TQ_INLINE float *prep_block(float *dst, const float *q, uint32_t rows, uint32_t dim,
                            const int even_odd)
{
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    uint32_t j = 0;
    for (; j + TQ_STEP <= dim; j += TQ_STEP)
        for (uint32_t r = 0; r < rows; r++, dst += TQ_STEP) {
            const float *src = q + (size_t)r * dim + j;
            const __m512 a = _mm512_loadu_ps(src), b = _mm512_loadu_ps(src + 16);
            _mm512_storeu_ps(dst, even_odd ? _mm512_permutex2var_ps(a, even, b) : a);
            _mm512_storeu_ps(dst + 16, even_odd ? _mm512_permutex2var_ps(a, odd, b) : b);
        }
    for (; j < dim; j += 16) {
        const uint32_t left = dim - j < 16 ? dim - j : 16;
        for (uint32_t r = 0; r < rows; r++, dst += left)
            memcpy(dst, q + (size_t)r * dim + j, left * sizeof(float));
    }
    return dst;
}

TQ_INLINE void prep_rows(const tq_codec *k, void *prep, const float *q, uint32_t n_rows,
                         const int even_odd)
{
    float *dst = prep;
    if (k->dim < TQ_STEP) { /* for AVX2's kernels, which have no masks to wait for */
        tq_avx2_prep_f32(k, prep, q, n_rows);
        return;
    }
    for (uint32_t rows; n_rows > 0; n_rows -= rows, q += (size_t)rows * k->dim) {
        rows = block_rows(n_rows);
        dst = prep_block(dst, q, rows, k->dim, even_odd);
    }
}

void tq_avx512_prep_float(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    prep_rows(k, prep, q, n_rows, 0);
}

void tq_avx512_prep_bf16(const tq_codec *k, void *prep, const float *q, uint32_t n_rows)
{
    prep_rows(k, prep, q, n_rows, 1);
}

/* ---- Score ----------------------------------------------------------------------------- */

/* x, in a register: loaded once, not by each instruction that takes it. */
TQ_INLINE __m512 keep(__m512 x)
{
    __asm__("" : "+v"(x));
    return x;
}

/* sum[row * stride + token] += products of `tokens` keys. q: a block's. */
TQ_INLINE void add_products(__m512 *sum, const float *q, const uint8_t *const *key, uint32_t dim,
                            tq_halves *ahead, const uint32_t elem_bytes, tq_load32_fn *load32,
                            tq_load16_fn *load16, const uint32_t rows, const uint32_t tokens,
                            const uint32_t stride)
{
    const size_t steps_end = (size_t)(dim / TQ_STEP) * TQ_STEP * elem_bytes;
    size_t at = 0;
    for (; at != steps_end; at += TQ_STEP * elem_bytes, q += rows * TQ_STEP) {
        tq_halves_on(ahead);
        if (rows <= tokens) { /* the fewer of the two stay in registers */
            __m512 y[4][2];
            TQ_UNROLL_FOR (uint32_t i = 0; i < 2 * rows; i++)
                y[i / 2][i % 2] = keep(_mm512_loadu_ps(q + 16 * i));
            TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++) {
                __m512 x[2];
                load32(x, key[i] + at);
                TQ_UNROLL_FOR (uint32_t half = 0; half < 2; half++)
                    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
                        sum[r * stride + i] =
                            _mm512_fmadd_ps(x[half], y[r][half], sum[r * stride + i]);
            }
        } else {
            __m512 x[2][2];
            TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
                load32(x[i], key[i] + at);
            TQ_UNROLL_FOR (uint32_t half = 0; half < 2; half++)
                TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
                    const __m512 y = keep(_mm512_loadu_ps(q + r * TQ_STEP + 16 * half));
                    TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
                        sum[r * stride + i] = _mm512_fmadd_ps(x[i][half], y, sum[r * stride + i]);
                }
        }
    }
    for (uint32_t left = dim % TQ_STEP; left > 0;) {
        const uint32_t taken = left < 16 ? left : 16;
        const __mmask16 lanes = tq_lanes_left(left);
        __m512 x[MAX_TOKENS];
        TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
            x[i] = load16(key[i] + at, lanes);
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
            const __m512 y = _mm512_maskz_loadu_ps(lanes, q + (size_t)r * taken);
            TQ_UNROLL_FOR (uint32_t i = 0; i < tokens; i++)
                sum[r * stride + i] = _mm512_fmadd_ps(x[i], y, sum[r * stride + i]);
        }
        left -= taken;
        at += (size_t)taken * elem_bytes;
        q += (size_t)rows * taken;
    }
}

TQ_INLINE void block(float *s, const float *q, const tq_const_planes *keys, uint32_t n,
                     uint32_t dim, const uint32_t elem_bytes, tq_load32_fn *load32,
                     tq_load16_fn *load16, const uint32_t rows)
{
    const uint32_t tokens = rows == 3 ? 4 : SUMS / rows;
    const uint32_t at_once = tokens < MAX_TOKENS ? tokens : MAX_TOKENS;
    tq_halves ahead = tq_halves_begin(*keys, (n + tokens - 1) / at_once * (dim / TQ_STEP));
    for (uint32_t t = 0; t < n; t += tokens) {
        __m512 sum[SUMS];
        TQ_UNROLL_FOR (uint32_t i = 0; i < SUMS; i++)
            sum[i] = _mm512_setzero_ps();
        TQ_UNROLL_FOR (uint32_t part = 0; part < tokens; part += at_once) {
            const uint8_t *key[MAX_TOKENS];
            TQ_UNROLL_FOR (uint32_t i = 0; i < at_once; i++) {
                const uint32_t token = t + part + i;
                key[i] = keys->codes + (token < n ? token : n - 1) * keys->codes_stride;
            }
            add_products(sum + part, q, key, dim, &ahead, elem_bytes, load32, load16, rows, at_once,
                         tokens);
        }
        store_scores(s + t, reduce16(sum), rows);
    }
}

/* A block; each number of rows is a function, so that its loops have the registers to themselves.
 */
typedef void block_fn(float *s, const float *q, const tq_const_planes *keys, uint32_t n,
                      uint32_t dim);

/* blocks: [rows - 1]. */
static void score(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                  tq_const_planes keys, uint32_t n, block_fn *const blocks[MAX_ROWS])
{
    const float *q = prep;
    while (n_rows > 0) {
        const uint32_t rows = block_rows(n_rows);
        blocks[rows - 1](s, q, &keys, n, k->dim);
        keys.ahead = NULL; /* once is enough */
        q += (size_t)rows * k->dim;
        s += rows * TQ_TILE;
        n_rows -= rows;
    }
}

#define BLOCK(name, bytes, rows)                                                                   \
    static void name##_x##rows(float *s, const float *q, const tq_const_planes *keys, uint32_t n,  \
                               uint32_t dim)                                                       \
    {                                                                                              \
        block(s, q, keys, n, dim, bytes, tq_load32_##name, tq_load16_##name, rows);                \
    }

#define FLOAT_KERNEL(name, bytes)                                                                  \
    BLOCK(name, bytes, 1)                                                                          \
    BLOCK(name, bytes, 2)                                                                          \
    BLOCK(name, bytes, 3)                                                                          \
    BLOCK(name, bytes, 4)                                                                          \
    BLOCK(name, bytes, 8)                                                                          \
    void tq_avx512_score_##name(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,    \
                                tq_const_planes keys, uint32_t n)                                  \
    {                                                                                              \
        static block_fn *const blocks[MAX_ROWS] = {                                                \
            [0] = name##_x1, [1] = name##_x2, [2] = name##_x3, [3] = name##_x4, [7] = name##_x8};  \
        if (k->dim < TQ_STEP) /* as prepared */                                                    \
            tq_avx2_score_##name(k, s, prep, n_rows, keys, n);                                     \
        else                                                                                       \
            score(k, s, prep, n_rows, keys, n, blocks);                                            \
    }

FLOAT_KERNEL(f32, 4)
FLOAT_KERNEL(f16, 2)
FLOAT_KERNEL(bf16, 2)
