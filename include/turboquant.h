/* SPDX-License-Identifier: MIT */
/* turboquant.h — compressed KV caches for attention: the whole stable CPU API of the core. From
 * simple to advanced: 1. status; 2. schemes, "turbo:k8v3" <-> tq_scheme; 3. codec, vectors <->
 * packed blocks; 4. cache, a paged store of keys and values; 5. attention on its packed bytes.
 *
 * The library needs libc and libm, starts no thread, prints nothing, never aborts, reads no
 * environment. Equal bytes need the floating point that C starts with: round to nearest, no flush
 * to zero, no denormals as zero. Objects live in memory that the caller gives (`*_bytes` then
 * `*_init`) or that `*_create` takes from an allocator. Everything that can fail returns tq_status
 * and leaves its objects as they were, unless the function says otherwise. "f32" is IEEE binary32.
 * Shapes are written slowest dimension first. Formats are specified in docs/format.md.
 */
#ifndef TURBOQUANT_H
#define TURBOQUANT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if !defined(TQ_API) && defined(__GNUC__)
#define TQ_API __attribute__((visibility("default")))
#elif !defined(TQ_API)
#define TQ_API
#endif

#define TQ_VERSION_MAJOR  0
#define TQ_VERSION_MINOR  1
#define TQ_VERSION_PATCH  0
#define TQ_FORMAT_VERSION 1 /* of the stored bytes (docs/format.md, change list) */

/* ---- 1. Status ------------------------------------------------------------------------- */
/* Values are frozen. Errors leave objects unchanged, unless the function says otherwise. */
typedef enum tq_status {
    TQ_OK = 0,
    TQ_ERR_ARG = -1,       /* NULL, zero, out of range or contradictory argument */
    TQ_ERR_SCHEME = -2,    /* scheme string outside the grammar */
    TQ_ERR_DIM = -3,       /* head dimension that the scheme does not support */
    TQ_ERR_SIZE = -4,      /* a caller's buffer is too small */
    TQ_ERR_NONFINITE = -5, /* NaN or Inf in an input row */
    TQ_ERR_FULL = -6,      /* the cache has no free page or sequence left */
    TQ_ERR_STATE = -7,     /* call out of order (append without begin, unknown sequence ...) */
    TQ_ERR_NOMEM = -8,     /* the allocator returned NULL */
    TQ_ERR_OVERFLOW = -9   /* a size does not fit size_t */
} tq_status;

/* Name of a status, e.g. "TQ_ERR_DIM"; "TQ_ERR_UNKNOWN" for other values. Version of the linked
 * library, "MAJOR.MINOR.PATCH". Static storage. */
TQ_API const char *tq_status_name(tq_status s);
TQ_API const char *tq_version(void);

/* Instruction sets. A mask of these restricts what dispatch may choose; scalar is always there.
 * detect: those that this build holds AND this CPU runs; cheap, any thread. */
#define TQ_ISA_SCALAR 1u
#define TQ_ISA_AVX2   2u /* avx2 + fma + f16c, enabled by the OS */
#define TQ_ISA_AVX512 4u /* f + bw + vl + dq, enabled by the OS */
#define TQ_ISA_NEON   8u /* AArch64 baseline */
#define TQ_ISA_ALL    0xffffffffu
TQ_API uint32_t tq_isa_detect(void);

/* ---- 2. Schemes ------------------------------------------------------------------------ */
/* clang-format off */
typedef enum tq_family {
    TQ_FAMILY_F32 = 0, TQ_FAMILY_F16 = 1, TQ_FAMILY_BF16 = 2,
    TQ_FAMILY_AFFINE_LLOYD = 3, /* "turbo:kKvV": affine keys, rotated Lloyd-Max values */
    TQ_FAMILY_NORM = 4,         /* "turboB", "turboKvV": rotated, one scale, integer codebook */
    TQ_FAMILY_TRELLIS = 5,      /* "tcqB", "tcqKvV": the same with a trellis code */
    TQ_FAMILY_UNIFORM = 6,      /* "affine8", "affine4": uniform groups, the baseline */
    TQ_FAMILY_MSE = 7, TQ_FAMILY_PROD = 8 /* "mseB", "prodB": the paper's quantisers */
} tq_family;

/* FUSED reads the packed bytes; DEQUANT decodes to f32, then plain attention: the reference. */
typedef enum tq_attn_mode { TQ_ATTN_FUSED = 0, TQ_ATTN_DEQUANT = 1 } tq_attn_mode;
/* clang-format on */
#define TQ_SCHEME_FILE_BYTES  96  /* longest file name in a scheme, with its terminator */
#define TQ_SCHEME_TEXT_BYTES  320 /* longest canonical spelling, with its terminator */
#define TQ_SCHEME_ERROR_BYTES 512 /* longest message of tq_scheme_parse, with its terminator */

/* A parsed scheme; compare by its canonical text. kmean and layers name files that the caller reads
 * (tq_layer.k_mean, one scheme per layer); a cache takes schemes in which they are "". */
typedef struct tq_scheme {
    tq_family family;
    uint8_t k_bits, v_bits; /* per element without metadata: 32, 16, K or V; K 0: keys as f16 */
    uint8_t group;          /* TQ_FAMILY_UNIFORM: elements of a group, 32, 64 or 128; others 0 */
    uint8_t mean;           /* 1: each row's mean is stored apart */
    tq_attn_mode attn;
    uint32_t skip; /* first and last layers that stay f16 */
    /* A query at position p reads token t in f16 if t < sink, p - t < tail or p < start. */
    uint32_t sink, tail, start;
    char kmean[TQ_SCHEME_FILE_BYTES], layers[TQ_SCHEME_FILE_BYTES]; /* "": none */
} tq_scheme;

/* Parse a scheme string: base { "," option }, docs/format.md "Schemes". Nothing outside the grammar
 * is accepted, replaced or clamped. out: written on success only. err: NULL or gets, on failure,
 * one line that names the offending part and the valid set, whole from TQ_SCHEME_ERROR_BYTES on,
 * else truncated. Errors: TQ_ERR_SCHEME, TQ_ERR_ARG. Any thread. */
TQ_API tq_status tq_scheme_parse(tq_scheme *out, const char *text, char *err, size_t err_bytes);

/* Canonical spelling, the identity of the scheme: "tcq4v3,tail=64". parse(format(s)) == s. Errors:
 * TQ_ERR_SIZE (never from TQ_SCHEME_TEXT_BYTES on), TQ_ERR_ARG (a scheme that no text gives). */
TQ_API tq_status tq_scheme_format(const tq_scheme *s, char *dst, size_t dst_bytes);

/* Exact bytes of one token of one KV head in packed form: key row + value row, metadata included;
 * d_v 0: the key row alone (tq_layer.v_in_k). For turbo:kKvV: D*(K+V+1.5)/8 where 32 divides D.
 * Errors: TQ_ERR_DIM (d_k or d_v). */
TQ_API tq_status tq_scheme_bytes_per_token(const tq_scheme *s, uint32_t d_k, uint32_t d_v,
                                           size_t *bytes);

/* ---- 3. Codec -------------------------------------------------------------------------- */
/* How one side (keys or values) is stored. Keys and values are coded independently. */
/* clang-format off */
typedef enum tq_format {
    TQ_FMT_F32 = 0, TQ_FMT_F16 = 1, TQ_FMT_BF16 = 2,
    /* Affine, groups of 32, unrotated; docs/format.md "affine keys". */
    TQ_FMT_AFFINE_K2 = 10, TQ_FMT_AFFINE_K4 = 11, TQ_FMT_AFFINE_K5 = 12, TQ_FMT_AFFINE_K8 = 13,
    /* Rotated, Lloyd-Max, groups of 32; docs/format.md "Lloyd values". */
    TQ_FMT_LLOYD_V2 = 20, TQ_FMT_LLOYD_V3 = 21, TQ_FMT_LLOYD_V4 = 22, TQ_FMT_LLOYD_V5 = 23,
    TQ_FMT_LLOYD_V8 = 24,
    /* Rotated, one scale, integer levels; docs/format.md "norm-codebook", then "trellis". */
    TQ_FMT_NORM2 = 42, TQ_FMT_NORM3 = 43, TQ_FMT_NORM4 = 44,
    TQ_FMT_NORM5 = 45, TQ_FMT_NORM6 = 46, TQ_FMT_NORM8 = 48,
    TQ_FMT_TCQ2 = 62, TQ_FMT_TCQ3 = 63, TQ_FMT_TCQ4 = 64, TQ_FMT_TCQ5 = 65, TQ_FMT_TCQ6 = 66,
    TQ_FMT_UNIFORM4 = 74, TQ_FMT_UNIFORM8 = 78, /* uniform groups; docs/format.md chapter 10 */
    /* The paper's quantisers; docs/format.md chapter 11. */
    TQ_FMT_MSE1 = 81, TQ_FMT_MSE2 = 82, TQ_FMT_MSE3 = 83, TQ_FMT_MSE4 = 84,
    TQ_FMT_PROD1 = 91, TQ_FMT_PROD2 = 92, TQ_FMT_PROD3 = 93, TQ_FMT_PROD4 = 94,
    /* Blocks of the llama.cpp fork, first generation: no scheme names them. */
    TQ_FMT_FORK2 = 102, TQ_FMT_FORK3 = 103, TQ_FMT_FORK4 = 104
} tq_format;
/* clang-format on */

/* Flags of a codec. STRICT (affine keys, Lloyd values): the bare upstream arithmetic without the
 * guard for degenerate key groups, for conformance tests; the decoder may then yield NaN or Inf.
 * MEAN (norm-codebook, trellis): each row's mean is stored apart; changes the block. EFFORT
 * (norm-codebook of 2 to 6 bits, trellis): scales of the levels that the encoder tries; none of
 * these: 3; blocks are read alike. GROUP (uniform): elements of a group; none of these: 64. */
#define TQ_CODEC_STRICT    1u
#define TQ_CODEC_MEAN      2u
#define TQ_CODEC_EFFORT_1  4u
#define TQ_CODEC_EFFORT_3  8u
#define TQ_CODEC_EFFORT_12 12u
#define TQ_CODEC_GROUP_32  16u
#define TQ_CODEC_GROUP_128 32u

/* One codec: immutable after init, share freely between threads. Visible so that it can live in
 * the caller's storage; fields are read-only, those marked private may change. */
struct tq_kernels;
typedef struct tq_codec {
    tq_format format;
    uint32_t dim;                     /* D, elements of a vector */
    uint32_t bits;                    /* per element, metadata not counted */
    uint32_t n_groups, group;         /* groups with their own scale and their elements, or 0 */
    uint32_t effort;                  /* scales that the encoder tries: 1, 3 or 12; or 0 */
    size_t code_bytes, scale_bytes;   /* packed codes of a row; its f16 scales, or 0 */
    size_t zero_bytes;                /* f16 zero points, offsets or mean of a row, or 0 */
    size_t block_bytes;               /* the sum of the three */
    uint32_t flags, rotated;          /* TQ_CODEC_*; 1: codes live in the rotated domain */
    const struct tq_kernels *kernels; /* private */
} tq_codec;

/* Set up a codec. isa_mask: TQ_ISA_ALL, or a subset to force a variant (bytes do not depend on
 * it). Errors: TQ_ERR_ARG (format, or a flag that the format does not take), TQ_ERR_DIM. */
TQ_API tq_status tq_codec_init(tq_codec *c, tq_format format, uint32_t dim, uint32_t flags,
                               uint32_t isa_mask);

/* The format, or the codec with its options, of the key (is_value 0) or value (1) side of a scheme.
 * Errors: TQ_ERR_ARG (scheme), TQ_ERR_DIM. */
TQ_API tq_status tq_scheme_format_of(const tq_scheme *s, int is_value, tq_format *out);
TQ_API tq_status tq_scheme_codec(const tq_scheme *s, int is_value, uint32_t dim, uint32_t isa_mask,
                                 tq_codec *out);

/* Compress n vectors src [n][dim] f32, finite, rows src_stride floats apart (>= dim), into n blocks
 * dst [n][block_bytes], not aliased; a block is its codes, then its scales, then its zero points.
 * bad_row: NULL or gets the first row with a NaN or Inf. Any thread. Errors: TQ_ERR_NONFINITE (dst
 * unspecified), TQ_ERR_SIZE (dst_bytes), TQ_ERR_ARG. Source: docs/format.md; equal bytes on every
 * ISA, one row at a time or in bulk. */
TQ_API tq_status tq_codec_encode(const tq_codec *c, void *dst, size_t dst_bytes, const float *src,
                                 size_t src_stride, size_t n, size_t *bad_row);

/* Expand n blocks into dst [n][dim] f32, rows dst_stride floats apart. Any bytes are accepted; NaN
 * or Inf scales give NaN or Inf. Errors: TQ_ERR_SIZE (src_bytes < n*block_bytes), TQ_ERR_ARG. */
TQ_API tq_status tq_codec_decode(const tq_codec *c, float *dst, size_t dst_stride, const void *src,
                                 size_t src_bytes, size_t n);

/* ---- 4. Cache -------------------------------------------------------------------------- */
#define TQ_PAGE_TOKENS 64u /* tokens per page */

/* One attention layer. skip counts all layers of the cache, those with a donor included. */
typedef struct tq_layer {
    uint32_t n_kv_heads; /* 1..1024 */
    uint32_t d_k, d_v;   /* multiples of 8 in 16..1024 that the scheme takes (format.md 2, 5.4) */
    tq_scheme scheme;
    uint32_t window; /* 0: none; N: a query sees itself and the N - 1 tokens before it */
    /* 0: none; i + 1: it stores nothing and reads what the earlier layer i stores, which has no
     * donor and the same heads, d_k, d_v and window; its own scheme and k_mean are not used. */
    uint32_t donor;
    const float *k_mean; /* NULL, or [n_kv_heads][d_k] f32, copied: what keys are stored without */
    /* 1: a value is the first d_v <= d_k elements of its key, as in latent attention (576/512), not
     * stored apart: append takes k alone (v NULL). k_bits must be v_bits; no k_mean; the key format
     * is used, also in f16. */
    uint32_t v_in_k;
} tq_layer;

typedef struct tq_cache_config {
    const tq_layer *layers;      /* [n_layers], copied by init */
    uint32_t n_layers;           /* 1..1024 */
    uint32_t n_pages;            /* 64 tokens each, over all sequences, 1..2^24 */
    uint32_t max_seqs, isa_mask; /* sequences alive at once, 1..65536; TQ_ISA_ALL, or a subset */
    uint32_t max_append;         /* longest append; 0: any, and every pool then has n_pages pages */
    uint32_t max_seq_pages; /* of the longest sequence; 0: n_pages. Page tables are this long */
    uint32_t rollback;      /* tokens that truncate can always drop, beside the newest; 0..2^20 */
} tq_cache_config;

/* One writer; other threads may read views while it works on other sequences, forks included. */
typedef struct tq_cache tq_cache;
typedef struct tq_allocator {
    void *(*alloc)(void *ctx, size_t bytes); /* NULL on failure; 64-byte alignment not required */
    void (*free)(void *ctx, void *p);
    void *ctx;
} tq_allocator;

/* Memory that tq_cache_init needs. Errors: TQ_ERR_ARG, TQ_ERR_DIM, TQ_ERR_OVERFLOW, TQ_ERR_SCHEME
 * (kmean or layers is not ""), TQ_ERR_NONFINITE (k_mean). */
TQ_API tq_status tq_cache_bytes(const tq_cache_config *cfg, size_t *bytes);
/* *n_pages: the largest cfg.n_pages with tq_cache_bytes <= memory_bytes (cfg.n_pages is not read).
 * Errors: as tq_cache_bytes; TQ_ERR_FULL: not even one page fits. */
TQ_API tq_status tq_cache_plan(const tq_cache_config *cfg, size_t memory_bytes, uint32_t *n_pages);

/* Layers that keep the same tokens share a pool: one page id stands for 64 tokens of them all.
 * tq_cache_pool: pool i of a cache with this config. Errors: TQ_ERR_ARG past the last. */
typedef struct tq_pool {
    uint32_t window, is_f16, n_layers, n_pages;
    size_t page_bytes; /* of all its layers */
} tq_pool;
TQ_API tq_status tq_cache_pool(const tq_cache_config *cfg, uint32_t i, tq_pool *out);

/* Build a cache in mem (any alignment; it stays the caller's and must outlive the cache). Page
 * memory is not touched until tokens are written. *out points into mem. Errors: as tq_cache_bytes,
 * TQ_ERR_SIZE. create: in memory from an allocator (NULL: malloc); also TQ_ERR_NOMEM. destroy: free
 * a created cache; NULL is allowed. */
TQ_API tq_status tq_cache_init(tq_cache **out, const tq_cache_config *cfg, void *mem,
                               size_t mem_bytes);
TQ_API tq_status tq_cache_create(tq_cache **out, const tq_cache_config *cfg, const tq_allocator *a);
TQ_API void tq_cache_destroy(tq_cache *c);

/* open: a new empty sequence. fork: a new sequence of the first n_tokens of seq, which shares its
 * pages; whoever first writes into a shared page copies it. close: give the pages back; views end.
 * Errors: TQ_ERR_FULL (no sequence left), TQ_ERR_STATE (unknown; fork: append in progress, or
 * 0 < n_tokens < tq_cache_min_truncate), TQ_ERR_ARG (fork: n_tokens beyond the length). */
TQ_API tq_status tq_cache_seq_open(tq_cache *c, uint32_t *seq);
TQ_API tq_status tq_cache_seq_fork(tq_cache *c, uint32_t seq, uint32_t n_tokens, uint32_t *out);
TQ_API tq_status tq_cache_seq_close(tq_cache *c, uint32_t seq);

/* Append in three steps, so that layers can be written one after another and by many threads:
 *   begin:  reserve room for n more tokens (all layers). TQ_ERR_FULL: nothing changed.
 *   rows:   encode part `part` of `n_parts` of the n rows of one layer without a donor. k
 *           [n][n_kv_heads][d_k], v [n][n_kv_heads][d_v], f32, finite, tokens k_stride / v_stride
 *           floats apart. Parts and layers may run on different threads. TQ_ERR_NONFINITE: abort.
 *   commit: the tokens become part of the sequence, and pages that no query at position
 *           length - 1 - rollback or later reads are given back.   abort: they never were.
 * Between begin and commit a view already shows the new tokens, for attention of the same step.
 * Bytes of committed tokens never change. Tokens in the middle cannot be dropped: keys hold their
 * position. tq_cache_append: the steps in one call for a cache of one layer. Errors: TQ_ERR_STATE
 * (no such sequence; begin twice; rows, commit or abort without begin), TQ_ERR_ARG (n above
 * max_append). */
TQ_API tq_status tq_cache_append_begin(tq_cache *c, uint32_t seq, uint32_t n_tokens);
TQ_API tq_status tq_cache_append_rows(tq_cache *c, uint32_t seq, uint32_t layer, const float *k,
                                      size_t k_stride, const float *v, size_t v_stride,
                                      uint32_t part, uint32_t n_parts);
TQ_API tq_status tq_cache_append_commit(tq_cache *c, uint32_t seq);
TQ_API tq_status tq_cache_append_abort(tq_cache *c, uint32_t seq);
TQ_API tq_status tq_cache_append(tq_cache *c, uint32_t seq, const float *k, const float *v,
                                 uint32_t n_tokens);

/* Drop the tokens from n_tokens on; whole pages go back. Errors: TQ_ERR_ARG (n_tokens beyond the
 * length), TQ_ERR_STATE (unknown sequence, append in progress, or 0 < n_tokens < min_truncate: what
 * the next query reads is gone). min_truncate is the shortest prefix that may be reused, too. */
TQ_API tq_status tq_cache_truncate(tq_cache *c, uint32_t seq, uint32_t n_tokens);
TQ_API tq_status tq_cache_min_truncate(const tq_cache *c, uint32_t seq, uint32_t *n_tokens);

/* len: committed tokens. seq_bytes: bytes of the rows that the sequence holds in either form, of
 * pages that it shares too. Errors: TQ_ERR_STATE. */
TQ_API tq_status tq_cache_len(const tq_cache *c, uint32_t seq, uint32_t *n_tokens);
TQ_API tq_status tq_cache_seq_bytes(const tq_cache *c, uint32_t seq, size_t *packed, size_t *f16);

typedef struct tq_cache_stats {
    uint32_t n_pages, n_pages_used; /* over all pools */
    uint32_t n_seqs;                /* open */
    uint64_t n_tokens;              /* committed, over all sequences */
    size_t bytes_per_token;         /* packed, all layers: sum of n_kv_heads * bytes per token */
    size_t f16_bytes_per_token;     /* of a token that is kept in f16 beside that, all layers */
    size_t packed_bytes, f16_bytes; /* of the pages in use */
    size_t capacity_bytes;          /* of all pages */
} tq_cache_stats;
TQ_API tq_status tq_cache_get_stats(const tq_cache *c, tq_cache_stats *out);

/* One form of the rows of a layer. Page p is at pages + p * page_bytes; page_table has the page ids
 * by token / 64 of the tokens that the sequence keeps in this form. pages NULL: no such form. */
typedef enum tq_form { TQ_FORM_PACKED = 0, TQ_FORM_F16 = 1 } tq_form;
typedef struct tq_rows {
    const tq_codec *k, *v; /* v == k, the same object: values are in the keys */
    const uint8_t *pages;
    size_t page_bytes;
    const uint32_t *page_table;
} tq_rows;

/* What attention reads: one layer of one sequence. Plain data, valid until the sequence is begun,
 * committed, aborted, truncated or closed. Errors: TQ_ERR_STATE, TQ_ERR_ARG (layer). */
typedef struct tq_view {
    tq_rows packed, f16;
    uint32_t n_kv_heads;
    uint32_t d_v;               /* elements of a value: v->dim, or fewer where they are in keys */
    uint32_t n_tokens;          /* committed and pending */
    uint32_t window;            /* of the layer */
    uint32_t min_query;         /* lowest position whose query finds all that it reads */
    uint32_t sink, tail, start; /* which rows a query reads in f16; see tq_scheme */
    tq_attn_mode attn;
    const float *k_mean;              /* NULL, or [n_kv_heads][d_k], missing in the stored keys */
    const struct tq_kernels *kernels; /* private */
} tq_view;
TQ_API tq_status tq_cache_view(const tq_cache *c, uint32_t seq, uint32_t layer, tq_view *out);

/* Decode tokens [first, first + n) of one KV head: dst_k [n][d_k] with the mean, dst_v [n][d_v],
 * either may be NULL. decode: packed rows, of tokens that a query at min_query sees. decode_at:
 * each row in the form that the query at position `query` reads, exactly what attn=dequant attends
 * to. Errors: TQ_ERR_ARG (range, head, or rows that are not kept). */
TQ_API tq_status tq_view_decode(const tq_view *v, uint32_t kv_head, uint32_t first, uint32_t n,
                                float *dst_k, float *dst_v);
TQ_API tq_status tq_view_decode_at(const tq_view *v, uint32_t query, uint32_t kv_head,
                                   uint32_t first, uint32_t n, float *dst_k, float *dst_v);

/* ---- 5. Attention ---------------------------------------------------------------------- */
/* out = softmax(scale * q K^T [softcap] [+ sink logit] + causal/window mask) V. Query i of q_len
 * sits at token n_tokens - q_len + i of the view and sees the tokens up to itself. */
typedef struct tq_attn_config {
    uint32_t n_q_heads; /* a multiple of the view's n_kv_heads, ratio 1..32 */
    uint32_t q_len;     /* 1..4096, <= n_tokens */
    uint32_t window;    /* 0: all; N: a query sees itself and the N - 1 tokens before it */
    float scale;        /* finite, usually 1/sqrt(d_k) */
    float softcap;      /* 0: none; c > 0: logits become c * tanh(logit / c) */
    const float *sinks; /* NULL, or [n_q_heads] logits that join the softmax without a value */
} tq_attn_config;

/* How the work is split. Depends on the shapes alone, so results do not depend on threads. */
typedef struct tq_attn_plan {
    tq_attn_config cfg;
    uint32_t n_parts;      /* independent units of phase 1, any order, any thread */
    uint32_t n_rows;       /* independent units of phase 2: q_len * n_q_heads output rows */
    size_t partials_bytes; /* shared between the phases, 64-byte aligned memory of the caller */
    size_t work_bytes;     /* scratch of one thread in either phase, 64-byte aligned */
    uint32_t step;         /* 0 from init. May be set, for speed alone: a thread that ran part i
                            * takes i + step next, whose first bytes part i then asks for */
    uint32_t priv[8];      /* private */
} tq_attn_plan;

/* Make a plan for a view. No allocation; cheap enough for every step. Errors: TQ_ERR_ARG (config
 * field out of range or not fitting the view: on a windowed layer cfg.window must be 1..its
 * window), TQ_ERR_STATE (a query below view.min_query: it would read rows that were given back). */
TQ_API tq_status tq_attn_plan_init(tq_attn_plan *p, const tq_attn_config *cfg, const tq_view *v);

/* Upper bounds of both sizes for every plan with these heads, q_len up to max_q_len and views of up
 * to max_tokens tokens, so that buffers can be allocated once. */
TQ_API tq_status tq_attn_bounds(const tq_layer *layer, uint32_t n_q_heads, uint32_t max_q_len,
                                uint32_t max_tokens, size_t *partials_bytes, size_t *work_bytes);

/* Phase 1, part `part` of n_parts. q [q_len][n_q_heads][d_k], tokens q_stride floats apart. Phase
 * 2, merge, after every part: rows [row, row + n) of the output, row = token * n_q_heads + head.
 * out [q_len][n_q_heads][d_v], tokens out_stride floats apart; without any visible token zero. */
TQ_API tq_status tq_attn_part(const tq_attn_plan *p, const tq_view *v, const float *q,
                              size_t q_stride, void *partials, void *work, uint32_t part);
TQ_API tq_status tq_attn_merge(const tq_attn_plan *p, const tq_view *v, float *out,
                               size_t out_stride, const void *partials, void *work, uint32_t row,
                               uint32_t n);

/* Both phases on the calling thread. scratch_bytes >= partials_bytes + work_bytes + 64.
 * Errors: TQ_ERR_SIZE, and those of the plan. */
TQ_API tq_status tq_attn_run(const tq_attn_plan *p, const tq_view *v, float *out, size_t out_stride,
                             const float *q, size_t q_stride, void *scratch, size_t scratch_bytes);

/* Kernel number i: its name, such as "encode_v3", and the ISA that serves it under a mask.
 * TQ_ERR_ARG past the last kernel. */
TQ_API tq_status tq_kernels_describe(uint32_t isa_mask, uint32_t i, const char **name,
                                     uint32_t *isa);

#ifdef __cplusplus
}
#endif
#endif
