/* SPDX-License-Identifier: MIT */
/* avx512_attn_uniform.c — keys of uniform groups against prepared queries, for AVX-512 with VNNI.
 *
 * As in avx512_attn_score.c the codes of 16 tokens are turned so that each token is a lane, and a
 * query comes as pairs of int16. A CHUNK is 64 elements, two blocks of the query: whole registers
 * are loaded (8 bits), or halves of two tokens (4 bits), and no sum waits for the one before it,
 * because the two blocks take turns. Rows that this does not fit, dimensions that are no multiple
 * of 64, are AVX2's, in preparation as well.
 */
#include "cpu/avx512_attn_uniform.h"

enum { LANES = 16, ROWS = 4, BLOCKS = 2, MAX_GROUPS = 1024 / 32 };

static int takes(const tq_codec *k)
{
    return k->dim % TQ_UNIFORM_CHUNK == 0;
}

/* ---- Tokens to lanes ------------------------------------------------------------------- */

/* Dwords 0 .. 7 of 16 rows: dword i of all in out[i]. */
TQ_INLINE void turn_halves(__m512i out[8], const uint8_t *row, size_t stride)
{
    __m512i x[2][4];
    TQ_UNROLL_FOR (uint32_t a = 0; a < 2; a++) {
        TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
            const uint8_t *p = row + (8 * a + i) * stride;
            const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)p);
            const __m256i high =
                _mm256_loadu_si256((const __m256i *)(const void *)(p + 4 * stride));
            x[a][i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        }
        tq_turn_dwords(x[a]);
    }
    /* Lanes of 16 bytes of x[a][i]: dword i, dword i + 4 of four tokens, then of the next four. */
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        out[i] = _mm512_shuffle_i32x4(x[0][i], x[1][i], 0x88);
        out[i + 4] = _mm512_shuffle_i32x4(x[0][i], x[1][i], 0xdd);
    }
}

/* ---- Score ----------------------------------------------------------------------------- */

/* What a chunk of 16 tokens is scored with: rows of its two blocks, their scales and offsets. */
typedef struct chunk {
    const tq_affine_query *q[BLOCKS];
    const float *scale[BLOCKS], *zero[BLOCKS];
    int first; /* of the row */
} chunk;

/* Sums of products of up to four rows. Those of few rows are made in two parts, so that a
 * multiplication need not wait for the last. */
typedef struct dots {
    __m512i sum[BLOCKS][ROWS][2];
} dots;

TQ_INLINE void begin(dots *d, const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t b = 0; b < BLOCKS; b++)
        TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
            d->sum[b][r][0] = d->sum[b][r][1] = _mm512_setzero_si512();
}

/* Pairs x of block b times those at int16 number `at` of its rows. */
TQ_INLINE void multiply(dots *d, const chunk *c, __m512i x, const uint32_t b, const uint32_t at,
                        const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        __m512i *sum = &d->sum[b][r][rows > 2 ? 0 : at / 2 % 2];
        *sum = tq_add_dot2_at(*sum, x, c->q[b][r].q + at);
    }
}

/* x, of which gcc must not know that it was seen: else it expands all codes once for the four
 * counts of rows, and stores them. */
TQ_INLINE __m512i keep(__m512i x)
{
    __asm__("" : "+v"(x));
    return x;
}

/* s += q.scale * dot * scale + q.sum * zero, for both blocks. */
TQ_INLINE void finish(float *s, const dots *d, const chunk *c, const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        __m512 y = c->first ? _mm512_setzero_ps() : _mm512_loadu_ps(s + r * TQ_TILE);
        TQ_UNROLL_FOR (uint32_t b = 0; b < BLOCKS; b++) {
            const tq_affine_query *q = &c->q[b][r];
            __m512i dot = d->sum[b][r][0];
            if (rows <= 2)
                dot = _mm512_add_epi32(dot, d->sum[b][r][1]);
            const __m512 x = _mm512_mul_ps(_mm512_set1_ps(q->scale), _mm512_cvtepi32_ps(dot));
            y = _mm512_fmadd_ps(_mm512_set1_ps(q->sum), _mm512_loadu_ps(c->zero[b]), y);
            y = _mm512_fmadd_ps(x, _mm512_loadu_ps(c->scale[b]), y);
        }
        _mm512_storeu_ps(s + r * TQ_TILE, y);
    }
}

/* Of 4 bits. words: dwords of the chunk; of a dword the pairs (0, 4), (1, 5), (2, 6), (3, 7). */
TQ_INLINE void score_nibbles(float *s, const chunk *c, const __m512i words[8], tq_lines *ahead,
                             const uint32_t rows)
{
    const __m512i low = _mm512_set1_epi16(15);
    dots d;
    begin(&d, rows);
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        const __m512i x = keep(words[i]), y = keep(words[4 + i]);
        const __m512i xs[4] = {
            _mm512_and_si512(x, low), _mm512_and_si512(_mm512_srli_epi16(x, 4), low),
            _mm512_and_si512(_mm512_srli_epi16(x, 8), low), _mm512_srli_epi16(x, 12)};
        const __m512i ys[4] = {
            _mm512_and_si512(y, low), _mm512_and_si512(_mm512_srli_epi16(y, 4), low),
            _mm512_and_si512(_mm512_srli_epi16(y, 8), low), _mm512_srli_epi16(y, 12)};
        TQ_UNROLL_FOR (uint32_t j = 0; j < 4; j++) {
            if (j % 2 == 0)
                tq_next_line(ahead);
            multiply(&d, c, xs[j], 0, 8 * i + 2 * j, rows);
            multiply(&d, c, ys[j], 1, 8 * i + 2 * j, rows);
        }
    }
    finish(s, &d, c, rows);
}

/* Of 8 bits. x[a][i]: of tokens 4a .. 4a + 3, in lanes of 16 bytes, dword i of those 16 of all
 * four; of a dword the pairs (0, 2), (1, 3). */
TQ_INLINE void score_bytes(float *s, const chunk *c, const __m512i x[4][4], tq_lines *ahead,
                           const uint32_t rows)
{
    const __m512i low = _mm512_set1_epi16(255);
    dots d;
    begin(&d, rows);
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        __m512i y[4] = {keep(x[0][i]), x[1][i], keep(x[2][i]), x[3][i]};
        tq_turn_lanes(y); /* y[j]: dword 4j + i */
        TQ_UNROLL_FOR (uint32_t j = 0; j < 2; j++)
            TQ_UNROLL_FOR (uint32_t b = 0; b < BLOCKS; b++) {
                const __m512i z = y[2 * b + j];
                const uint32_t at = 4 * (4 * j + i);
                tq_next_line(ahead);
                multiply(&d, c, _mm512_and_si512(z, low), b, at, rows);
                multiply(&d, c, _mm512_srli_epi16(z, 8), b, at + 2, rows);
            }
    }
    finish(s, &d, c, rows);
}

TQ_INLINE void score(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                     tq_const_planes keys, uint32_t n, const uint32_t bits)
{
    const uint32_t bytes = TQ_UNIFORM_CHUNK / 8 * bits;
    uint8_t copy[LANES * TQ_UNIFORM_CHUNK];
    tq_lines ahead = tq_lines_begin(keys);

    for (uint32_t t = 0; t < n; t += LANES) {
        const uint32_t left = n - t < LANES ? n - t : LANES;
        float scale[MAX_GROUPS * LANES], zero[MAX_GROUPS * LANES];
        tq_uniform_columns(scale, LANES, keys.scale, keys.scale_stride, t, LANES, n, k->n_groups);
        tq_uniform_columns(zero, LANES, keys.zero, keys.zero_stride, t, LANES, n, k->n_groups);
        for (uint32_t j = 0; j < k->dim; j += TQ_UNIFORM_CHUNK) {
            const uint8_t *row = keys.codes + t * keys.codes_stride + (size_t)j / 8 * bits;
            size_t stride = keys.codes_stride;
            __m512i words[8], x[4][4];
            chunk c = {.first = j == 0};
            if (left < LANES) { /* tokens from n on repeat the last */
                for (uint32_t i = 0; i < LANES; i++)
                    memcpy(copy + i * bytes, row + (i < left ? i : left - 1) * stride, bytes);
                row = copy;
                stride = bytes;
            }
            if (bits == 4)
                turn_halves(words, row, stride);
            else
                TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++, row += 4 * stride) {
                    TQ_UNROLL_FOR (uint32_t a = 0; a < 4; a++)
                        x[i][a] = _mm512_loadu_si512(row + a * stride);
                    tq_turn_dwords(x[i]);
                }
            for (uint32_t b = 0; b < BLOCKS; b++) {
                const uint32_t at = (j + 32 * b) / k->group * LANES;
                c.scale[b] = scale + at;
                c.zero[b] = zero + at;
            }
            for (uint32_t r = 0; r < n_rows; r += ROWS) {
                for (uint32_t b = 0; b < BLOCKS; b++)
                    c.q[b] = (const tq_affine_query *)prep + (size_t)(j / 32 + b) * n_rows + r;
                float *dst = s + r * TQ_TILE + t;
#define CALL(n_of_rows)                                                                            \
    do {                                                                                           \
        if (bits == 4)                                                                             \
            score_nibbles(dst, &c, words, &ahead, n_of_rows);                                      \
        else                                                                                       \
            score_bytes(dst, &c, x, &ahead, n_of_rows);                                            \
    } while (0)
                TQ_CALL_ROWS(n_rows - r, CALL);
#undef CALL
            }
        }
    }
    tq_last_lines(&ahead);
}

/* ---- Entries --------------------------------------------------------------------------- */

#define UNIFORM_KERNELS(bits)                                                                      \
    void tq_avx512_prep_uniform##bits##_vnni(const tq_codec *k, void *prep, const float *q,        \
                                             uint32_t n_rows)                                      \
    {                                                                                              \
        if (takes(k))                                                                              \
            tq_avx512_prep_k##bits##_vnni(k, prep, q, n_rows);                                     \
        else                                                                                       \
            tq_avx2_prep_uniform##bits(k, prep, q, n_rows);                                        \
    }                                                                                              \
    void tq_avx512_score_uniform##bits##_vnni(const tq_codec *k, float *s, const void *prep,       \
                                              uint32_t n_rows, tq_const_planes keys, uint32_t n)   \
    {                                                                                              \
        if (takes(k))                                                                              \
            score(k, s, prep, n_rows, keys, n, bits);                                              \
        else                                                                                       \
            tq_avx2_score_uniform##bits(k, s, prep, n_rows, keys, n);                              \
    }

UNIFORM_KERNELS(4)
UNIFORM_KERNELS(8)
