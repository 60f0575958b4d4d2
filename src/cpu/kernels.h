/* SPDX-License-Identifier: MIT */
/* kernels.h — THE table: every function that exists once per instruction set.
 *
 * scalar*.c is the reference: always built, reads like docs/format.md. avx2*.c, avx512*.c and
 * neon*.c replace entries that they do faster. Each ISA exports constant tables in which the
 * entries that it does not have point to the next ISA below, so a table is always complete and
 * dispatch.c only picks one. No table is ever written: share them between threads.
 *
 * Two numeric classes (docs/numerics.md):
 *   EXACT      everything that makes or reads stored bytes. Equal to scalar.c bit for bit on every
 *              ISA: only + - * / sqrt, compares and rint, in the order that docs/format.md fixes.
 *   TOLERANCE  scores, softmax, weighted sums. Bounded against a float64 oracle, not bit-equal
 *              across ISAs, but deterministic on each.
 * Kernels return void and cannot fail; their callers have checked the arguments. Pointers need
 * the alignment of their type only, and no kernel reads or writes past the shapes given.
 */
#ifndef TQ_CPU_KERNELS_H
#define TQ_CPU_KERNELS_H

#include "exact.h"
#include "turboquant.h"

/* Rows in separate planes: row i of a plane starts at plane + i * stride (bytes). A contiguous
 * block is the special case in which the three strides are block_bytes. */
typedef struct tq_planes {
    uint8_t *codes;
    uint8_t *scale; /* f16, little-endian, unaligned */
    uint8_t *zero;
    size_t codes_stride;
    size_t scale_stride;
    size_t zero_stride;
    size_t ahead; /* encoders: rows of src behind the last that are wanted next; may be asked for */
} tq_planes;

typedef struct tq_const_planes {
    const uint8_t *codes;
    const uint8_t *scale;
    const uint8_t *zero;
    size_t codes_stride;
    size_t scale_stride;
    size_t zero_stride;
    /* Memory that the caller will want next, or NULL: a kernel of attention should ask for it
     * (prefetch), best evenly over its own work. Hardware prefetch stops at each 4 KiB. */
    const uint8_t *ahead;
    size_t ahead_bytes;
    size_t ahead_gap; /* or 0: as many bytes again from ahead + ahead_gap on, in turn with these */
} tq_const_planes;

/* Ask for all of it at once, which may hold the core up, or be forgotten in part. */
static inline void tq_look_ahead(tq_const_planes p)
{
    for (size_t i = 0; p.ahead && i < p.ahead_bytes; i += 64) {
        __builtin_prefetch(p.ahead + i);
        if (p.ahead_gap)
            __builtin_prefetch(p.ahead + p.ahead_gap + i);
    }
}

/* EXACT. src [n][dim] finite, src_stride floats apart. */
typedef void tq_encode_fn(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                          size_t n);
/* EXACT. dst [n][dim] in the original (unrotated) domain. */
typedef void tq_decode_fn(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                          size_t n);

/* Index of a format in the per-format arrays below (formats have gaps in their numbers). */
enum {
    TQ_KF32,
    TQ_KF16,
    TQ_KBF16,
    TQ_KAFFINE2,
    TQ_KAFFINE4,
    TQ_KAFFINE5,
    TQ_KAFFINE8,
    TQ_KLLOYD2,
    TQ_KLLOYD3,
    TQ_KLLOYD4,
    TQ_KLLOYD5,
    TQ_KLLOYD8,
    TQ_KNORM2,
    TQ_KNORM3,
    TQ_KNORM4,
    TQ_KNORM5,
    TQ_KNORM6,
    TQ_KNORM8,
    TQ_KTCQ2,
    TQ_KTCQ3,
    TQ_KTCQ4,
    TQ_KTCQ5,
    TQ_KTCQ6,
    TQ_KUNIFORM4,
    TQ_KUNIFORM8,
    TQ_KMSE1,
    TQ_KMSE2,
    TQ_KMSE3,
    TQ_KMSE4,
    TQ_KPROD1,
    TQ_KPROD2,
    TQ_KPROD3,
    TQ_KPROD4,
    TQ_KFORK2,
    TQ_KFORK3,
    TQ_KFORK4,
    TQ_N_KFMT
};

/* Table entries of a family whose widths share one function (it reads the codec's bits). */
#define TQ_NORM_ENTRIES(f)                                                                         \
    [TQ_KNORM2] = (f), [TQ_KNORM3] = (f), [TQ_KNORM4] = (f), [TQ_KNORM5] = (f), [TQ_KNORM6] = (f), \
    [TQ_KNORM8] = (f)
#define TQ_TCQ_ENTRIES(f)                                                                          \
    [TQ_KTCQ2] = (f), [TQ_KTCQ3] = (f), [TQ_KTCQ4] = (f), [TQ_KTCQ5] = (f), [TQ_KTCQ6] = (f)
#define TQ_UNIFORM_ENTRIES(f) [TQ_KUNIFORM4] = (f), [TQ_KUNIFORM8] = (f)
#define TQ_MSE_ENTRIES(f)     [TQ_KMSE1] = (f), [TQ_KMSE2] = (f), [TQ_KMSE3] = (f), [TQ_KMSE4] = (f)
#define TQ_PROD_ENTRIES(f)                                                                         \
    [TQ_KPROD1] = (f), [TQ_KPROD2] = (f), [TQ_KPROD3] = (f), [TQ_KPROD4] = (f)
#define TQ_FORK_ENTRIES(f) [TQ_KFORK2] = (f), [TQ_KFORK3] = (f), [TQ_KFORK4] = (f)

/* Codec entries: scalar.c, avx2.c ... */
typedef struct tq_codec_kernels {
    tq_encode_fn *encode[TQ_N_KFMT];
    uint64_t asks_ahead; /* bit i: encode[i] asks for the rows that follow, tq_planes.ahead */
    tq_decode_fn *decode[TQ_N_KFMT];
    /* Like decode, but rotated formats stay in the rotated domain (no inverse transform; an
     * offset that decode would add to each element, option mean, becomes its rotation). */
    tq_decode_fn *decode_rotated[TQ_N_KFMT];
    /* First row with a NaN or Inf, or n. src [n][dim]. */
    size_t (*first_nonfinite)(const float *src, size_t src_stride, size_t dim, size_t n);
    /* y = H(sign * x) / sqrt(dim), in place, one vector. dim as in tq_hadamard_takes. EXACT. */
    void (*rotate)(float *x, uint32_t dim);
    /* x = sign * H(y) / sqrt(dim), in place. EXACT. */
    void (*unrotate)(float *x, uint32_t dim);
} tq_codec_kernels;

/* Attention entries: scalar_attn.c, avx2_attn.c ... All TOLERANCE.
 *
 * A TILE is one page of one KV head: n tokens, 1..64. A ROW is one (query token, query head) pair
 * of that KV head; matrices over a tile are [n_rows][64] f32. What a kernel computes for one row
 * does not depend on the other rows nor on n_rows, so that a query gives equal bytes alone and in
 * a batch.
 *
 * Affine keys are scored in integers: each group of 32 query elements becomes int16 with a scale
 * of its own, max|q| / 32767, so a score is  sum_g  scale_g * qs_g * (dot(q16, idx) + zero_g *
 * sum(q16)). The rounding of the query is part of the definition; docs/numerics.md has its cost.
 * Keys of norm-codebook and trellis without a mean likewise, the rotated query with one scale for
 * the row; those of up to 4 bits may meet int8 instead, the largest element being
 * min(127, m * largest / sum) rounded down: sum the largest over elements 0, 1, 4, 5 or 2, 3, 6, 7
 * of any eight, m = 32767 / (2 L) - 2.01, L the largest level, so that int16 holds four products.
 * Keys of rotated formats are scored in the rotated domain, against a query that prep rotates.
 *
 * A kernel may round the queries of uniform keys as those of affine keys, in blocks of 32.
 *
 * Values of rotated formats are summed in the rotated domain. A kernel may round weights, times the
 * scale of their token or group, over a tile, and the centroids that they multiply.
 *   Lloyd values of 2, 3 bits, uniform 4       to steps of largest / 255, for Lloyd values the
 *                                             largest by any of a token's scales; centroids within
 *                                             0.0028, 0.018, 0
 *   Lloyd values of 4 bits                    to steps of largest / 32767, likewise; within 0.012
 *   Lloyd values of 5, 8 bits, uniform 8      to steps of max(largest / 32767, sum / 131000; 8 bits
 *                                             of Lloyd: 65500); centroids within 1e-4, 0.0175, 0
 *   norm-codebook and trellis                 to steps of largest / 255 up to 4 bits, 32767 above
 *
 * A row's weights of up to 255 are then scaled so that they have the sum that they had before.
 * docs/numerics.md has what this adds to a format's own error. */
#define TQ_TILE TQ_PAGE_TOKENS

/* Columns of a packed strip, see tq_gemm_fn. */
#define TQ_STRIP 16u

/* Tokens [lo, hi) of a tile that a row sees; lo >= hi: none. */
typedef struct tq_span {
    uint8_t lo, hi;
} tq_span;

/* Bytes of n_rows prepared queries of any format and ISA. */
static inline size_t tq_prep_bytes(uint32_t n_rows, uint32_t dim)
{
    /* A multiple of four rows; beside them some numbers for each four. */
    return ((size_t)n_rows + 3) / 4 * (4 * dim * sizeof(float) + 64);
}

/* Turn n_rows queries q [n_rows][dim], multiplied by the attention scale, into what score of the
 * same format and ISA reads: prep, tq_prep_bytes, 64-byte aligned. */
typedef void tq_prep_fn(const tq_codec *k, void *prep, const float *q, uint32_t n_rows);

/* s[r][t] = q_r . k_t for t < n; columns from n on get any value. s [n_rows][64]. */
typedef void tq_score_fn(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                         tq_const_planes keys, uint32_t n);

/* One step of the online softmax, in place: logits s [n_rows][64] become weights
 * exp(logit - max), exactly 0 outside a row's span. softcap c > 0 first maps s to c * tanh(s / c).
 * max and sum [n_rows] are the row's running state, -INFINITY and 0 at the start; alpha [n_rows]
 * gets the factor that older sums must be multiplied by (1 when the span is empty). */
typedef void tq_softmax_fn(float *s, const tq_span *span, uint32_t n_rows, float softcap,
                           float *max, float *sum, float *alpha);

/* acc[r] = alpha[r] * acc[r] + sum over t < n of w[r][t] * v_t, Lloyd values rotated.
 * acc [n_rows][dim], rows acc_stride floats apart; w [n_rows][64], 0 from column n on. */
typedef void tq_weigh_fn(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                         const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n);

/* Pack a decoded tile x [n][dim] (rows x_stride floats apart) into strips for gemm.
 * pack_keys: strips of 16 tokens, b [4][dim][16], tokens from n on zero.
 * pack_values: strips of 16 elements, b [ceil(dim/16)][n][16], elements from dim on zero. */
typedef void tq_pack_fn(float *b, const float *x, size_t x_stride, uint32_t n, uint32_t dim);

/* c [m][n] = a [m][k] b, or alpha[i] * c + a b when alpha is given. n a multiple of 16; b packed,
 * [n/16][k][16]; rows of a and c lda and ldc floats apart; b 32-byte aligned. */
typedef void tq_gemm_fn(float *c, size_t ldc, const float *a, size_t lda, const float *b,
                        const float *alpha, uint32_t m, uint32_t n, uint32_t k);

typedef struct tq_attn_kernels {
    tq_prep_fn *prep[TQ_N_KFMT];   /* formats that a scheme uses for keys; others NULL */
    tq_score_fn *score[TQ_N_KFMT]; /* the same */
    tq_weigh_fn *weigh[TQ_N_KFMT]; /* formats that a scheme uses for values; others NULL */
    tq_softmax_fn *softmax;
    tq_pack_fn *pack_keys;
    tq_pack_fn *pack_values;
    tq_gemm_fn *gemm;
} tq_attn_kernels;

/* Points to the two halves, so that codec and attention files stay apart: each ISA file exports its
 * half (declared below), dispatch.c joins them. */
typedef struct tq_kernels {
    const tq_codec_kernels *codec;
    const tq_attn_kernels *attn;
    uint32_t isa; /* the ISA of this table */
} tq_kernels;

extern const tq_codec_kernels tq_codec_kernels_scalar;
extern const tq_attn_kernels tq_attn_kernels_scalar;
extern const tq_kernels tq_kernels_scalar;
#if !defined(TQ_SCALAR_ONLY) && defined(__x86_64__)
#define TQ_HAVE_AVX2 1
extern const tq_codec_kernels tq_codec_kernels_avx2;
extern const tq_attn_kernels tq_attn_kernels_avx2;
extern const tq_kernels tq_kernels_avx2;
#define TQ_HAVE_AVX512 1
extern const tq_codec_kernels tq_codec_kernels_avx512;
extern const tq_attn_kernels tq_attn_kernels_avx512;
extern const tq_kernels tq_kernels_avx512;
/* The same ISA to users; attention with VNNI and VBMI where the CPU has them. */
extern const tq_attn_kernels tq_attn_kernels_avx512_vnni;
extern const tq_kernels tq_kernels_avx512_vnni;
#endif
#if !defined(TQ_SCALAR_ONLY) && defined(__aarch64__)
#define TQ_HAVE_NEON 1
extern const tq_codec_kernels tq_codec_kernels_neon;
extern const tq_attn_kernels tq_attn_kernels_neon;
extern const tq_kernels tq_kernels_neon;
#endif

/* The table for a mask: the best ISA that the mask, the CPU and the build have in common. */
const tq_kernels *tq_kernels_get(uint32_t isa_mask);

/* The same for affine keys and Lloyd values. Codec entries of AVX2 and NEON take every dimension,
 * those of AVX-512 the dimensions 64, 128, 256 and 512; attention entries those four, of AVX2 and
 * scalar_attn.c all. So a codec names the table that serves its rows (tq_codec.kernels), which may
 * be plainer than its cache's, or a mixture. */
const tq_kernels *tq_kernels_grouped(uint32_t isa_mask, uint32_t dim);

/* TQ_K... index of a format, or TQ_N_KFMT. */
int tq_kfmt(tq_format f);

#endif
