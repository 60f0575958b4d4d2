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
} tq_planes;

typedef struct tq_const_planes {
    const uint8_t *codes;
    const uint8_t *scale;
    const uint8_t *zero;
    size_t codes_stride;
    size_t scale_stride;
    size_t zero_stride;
} tq_const_planes;

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
    TQ_N_KFMT
};

/* Codec entries: scalar.c, avx2.c ... */
typedef struct tq_codec_kernels {
    tq_encode_fn *encode[TQ_N_KFMT];
    tq_decode_fn *decode[TQ_N_KFMT];
    /* Like decode, but Lloyd values stay in the rotated domain (no inverse transform). */
    tq_decode_fn *decode_rotated[TQ_N_KFMT];
    /* First row with a NaN or Inf, or n. src [n][dim]. */
    size_t (*first_nonfinite)(const float *src, size_t src_stride, size_t dim, size_t n);
    /* y = H(sign * x) / sqrt(dim), in place, one vector. dim 64..512, power of two. EXACT. */
    void (*rotate)(float *x, uint32_t dim);
    /* x = sign * H(y) / sqrt(dim), in place. EXACT. */
    void (*unrotate)(float *x, uint32_t dim);
} tq_codec_kernels;

/* Attention entries: scalar_attn.c, avx2_attn.c ... */
typedef struct tq_attn_kernels {
    int placeholder; /* filled by src/attn.c's owner */
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
#endif

/* The table for a mask: the best ISA that the mask, the CPU and the build have in common. */
const tq_kernels *tq_kernels_get(uint32_t isa_mask);

/* TQ_K... index of a format, or TQ_N_KFMT. */
int tq_kfmt(tq_format f);

#endif
