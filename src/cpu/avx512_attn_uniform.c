/* SPDX-License-Identifier: MIT */
/* avx512_attn_uniform.c — keys of uniform groups against prepared queries, for AVX-512 with VNNI.
 *
 * As in avx512_attn_score.c the codes of 16 tokens are turned so that each token is a lane, and a
 * query comes as pairs of int16. Here halves of two tokens, 32 bytes each, share a register, which
 * saves a third of the shuffles: a block of the query of 8 bits, or two of 4 bits. A multiplication
 * takes five cycles: those two blocks take turns, and a single one is summed in two parts. Rows
 * that this does not fit, dimensions that are no multiple of 64, are AVX2's, in preparation as
 * well.
 */
#include "cpu/avx512_attn_uniform.h"

enum { LANES = 16, ROWS = 4, MAX_GROUPS = 1024 / 32 };

static int takes(const tq_codec *k)
{
    return k->dim % TQ_UNIFORM_CHUNK == 0;
}

/* ---- Tokens to lanes ------------------------------------------------------------------- */

/* Dwords 0 .. 7 of 16 rows: dword i of all in out[i]. */
TQ_INLINE void turn(__m512i out[8], const uint8_t *row, size_t stride)
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

/* What a block of 32 elements is scored with. */
typedef struct block {
    const tq_affine_query *q; /* of the first row */
    const float *scale, *zero;
} block;

/* Sums of products of a block for up to four rows, in `parts` of them, so that a multiplication
 * need not wait for the last. */
enum { MAX_PARTS = 2 };

TQ_INLINE void begin(__m512i sum[ROWS][MAX_PARTS], const uint32_t parts, const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        TQ_UNROLL_FOR (uint32_t i = 0; i < parts; i++)
            sum[r][i] = _mm512_setzero_si512();
}

/* Pairs x times those at int16 number `at` of the rows. */
TQ_INLINE void multiply(__m512i sum[ROWS][MAX_PARTS], const block *b, __m512i x, const uint32_t at,
                        const uint32_t parts, const uint32_t rows)
{
    const uint32_t i = at / 2 % parts;
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        sum[r][i] = tq_add_dot2_at(sum[r][i], x, b->q[r].q + at);
}

/* y [rows] += q.scale * dot * scale + q.sum * zero. */
TQ_INLINE void finish(__m512 y[ROWS], __m512i sum[ROWS][MAX_PARTS], const block *b,
                      const uint32_t parts, const uint32_t rows)
{
    const __m512 scale = _mm512_loadu_ps(b->scale), zero = _mm512_loadu_ps(b->zero);
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++) {
        const __m512i dot = parts > 1 ? _mm512_add_epi32(sum[r][0], sum[r][1]) : sum[r][0];
        const __m512 x = _mm512_mul_ps(_mm512_set1_ps(b->q[r].scale), _mm512_cvtepi32_ps(dot));
        y[r] = _mm512_fmadd_ps(_mm512_set1_ps(b->q[r].sum), zero, y[r]);
        y[r] = _mm512_fmadd_ps(x, scale, y[r]);
    }
}

TQ_INLINE void load_scores(__m512 y[ROWS], const float *s, int first, const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        y[r] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(s + r * TQ_TILE);
}

TQ_INLINE void store_scores(float *s, const __m512 y[ROWS], const uint32_t rows)
{
    TQ_UNROLL_FOR (uint32_t r = 0; r < rows; r++)
        _mm512_storeu_ps(s + r * TQ_TILE, y[r]);
}

/* x, of which gcc must not know that it was seen: else it expands all codes once for the four
 * counts of rows, and stores them. */
TQ_INLINE __m512i keep(__m512i x)
{
    __asm__("" : "+v"(x));
    return x;
}

/* Two blocks of 4 bits. words: their dwords; of a dword the pairs (0, 4), (1, 5), (2, 6), (3, 7).
 * The blocks take turns. */
TQ_INLINE void score_nibbles(float *s, const block b[2], const __m512i words[8], int first,
                             tq_lines *ahead, const uint32_t rows)
{
    const __m512i low = _mm512_set1_epi16(15);
    const uint32_t parts = rows > 2 ? 1 : 2;
    __m512i sum[2][ROWS][MAX_PARTS];
    __m512 y[ROWS];
    begin(sum[0], parts, rows);
    begin(sum[1], parts, rows);
    TQ_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        __m512i x[2] = {keep(words[i]), keep(words[4 + i])};
        TQ_UNROLL_FOR (uint32_t j = 0; j < 4; j++) {
            if (j % 2 == 0)
                tq_next_line(ahead);
            TQ_UNROLL_FOR (uint32_t k = 0; k < 2; k++) {
                const __m512i pair = j < 3 ? _mm512_and_si512(x[k], low) : x[k];
                multiply(sum[k], &b[k], pair, 8 * i + 2 * j, parts, rows);
                x[k] = _mm512_srli_epi16(x[k], 4);
            }
        }
    }
    load_scores(y, s, first, rows);
    finish(y, sum[0], &b[0], parts, rows);
    finish(y, sum[1], &b[1], parts, rows);
    store_scores(s, y, rows);
}

/* A block of 8 bits: of a dword the pairs (0, 2), (1, 3). */
TQ_INLINE void score_bytes(float *s, const block *b, const __m512i words[8], int first,
                           tq_lines *ahead, const uint32_t rows)
{
    const __m512i low = _mm512_set1_epi16(255);
    const uint32_t parts = 2;
    __m512i sum[ROWS][MAX_PARTS];
    __m512 y[ROWS];
    begin(sum, parts, rows);
    TQ_UNROLL_FOR (uint32_t i = 0; i < 8; i++) {
        const __m512i x = keep(words[i]);
        tq_next_line(ahead);
        multiply(sum, b, _mm512_and_si512(x, low), 4 * i, parts, rows);
        multiply(sum, b, _mm512_srli_epi16(x, 8), 4 * i + 2, parts, rows);
    }
    load_scores(y, s, first, rows);
    finish(y, sum, b, parts, rows);
    store_scores(s, y, rows);
}

TQ_INLINE void score(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                     tq_const_planes keys, uint32_t n, const uint32_t bits)
{
    const uint32_t step = bits == 4 ? 64 : 32; /* elements of 32 bytes */
    const uint32_t shift = (uint32_t)__builtin_ctz(k->group);
    uint8_t copy[LANES * 32];
    tq_lines ahead = tq_lines_begin(keys);

    for (uint32_t t = 0; t < n; t += LANES) {
        const uint32_t left = n - t < LANES ? n - t : LANES;
        float scale[MAX_GROUPS * LANES], zero[MAX_GROUPS * LANES];
        tq_uniform_columns(scale, LANES, keys.scale, keys.scale_stride, t, LANES, n, k->n_groups);
        tq_uniform_columns(zero, LANES, keys.zero, keys.zero_stride, t, LANES, n, k->n_groups);
        for (uint32_t j = 0; j < k->dim; j += step) {
            const uint8_t *row = keys.codes + t * keys.codes_stride + (size_t)j / 8 * bits;
            size_t stride = keys.codes_stride;
            __m512i words[8];
            if (left < LANES) { /* tokens from n on repeat the last */
                for (uint32_t i = 0; i < LANES; i++)
                    memcpy(copy + i * 32, row + (i < left ? i : left - 1) * stride, 32);
                row = copy;
                stride = 32;
            }
            turn(words, row, stride);
            for (uint32_t r = 0; r < n_rows; r += ROWS) {
                float *dst = s + r * TQ_TILE + t;
                block b[2];
                for (uint32_t i = 0; i < step / 32; i++) {
                    const size_t g = ((j + 32 * i) >> shift) * LANES;
                    const tq_affine_query *q = prep;
                    b[i] = (block){q + (size_t)(j / 32 + i) * n_rows + r, scale + g, zero + g};
                }
#define CALL(n_of_rows)                                                                            \
    do {                                                                                           \
        if (bits == 4)                                                                             \
            score_nibbles(dst, b, words, j == 0, &ahead, n_of_rows);                               \
        else                                                                                       \
            score_bytes(dst, b, words, j == 0, &ahead, n_of_rows);                                 \
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
