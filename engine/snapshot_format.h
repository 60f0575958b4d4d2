/* SPDX-License-Identifier: MIT */
/* snapshot_format.h — the bytes of stored state; docs/snapshot.md is the specification.
 *
 * One container for three kinds of file: a whole timeline, one page of a prompt, and what else a
 * prompt needs at its end. Pure functions over memory: no files, no session. What decode accepts,
 * encode gives back byte for byte, so every byte of a file is either meaningful and checked, or
 * zero and checked.
 */
#ifndef TQE_SNAPSHOT_FORMAT_H
#define TQE_SNAPSHOT_FORMAT_H

#include "engine.h"

#define TQE_SNAP_VERSION 1u

#define TQE_SNAP_FIXED_BYTES   256u
#define TQE_SNAP_LAYER_BYTES   64u
#define TQE_SNAP_PART_BYTES    48u
#define TQE_SNAP_TRAILER_BYTES 64u
#define TQE_SNAP_HASH_BYTES    16u
#define TQE_ID_BYTES           32u

#define TQE_SNAP_HAS_LOGITS 1u

typedef enum tqe_snap_kind {
    TQE_SNAP_TIMELINE = 0, /* tokens from 0 on and all that queries at their end read */
    TQE_SNAP_PAGE = 1,     /* 64 tokens of a prompt: packed rows that every later query reads */
    TQE_SNAP_END = 2       /* the other rows that queries at the end of those 64 tokens read */
} tqe_snap_kind;

/* How one layer is stored. */
typedef struct tqe_snap_layer {
    uint32_t n_kv_heads, d_k, d_v;
    uint32_t window;               /* 0: none */
    uint32_t k_format, v_format;   /* tq_format of packed rows */
    uint32_t k_flags, v_flags;     /* TQ_CODEC_* */
    uint32_t sink, tail, start;    /* tokens that stay f16, as in tq_scheme */
    uint32_t donor;                /* 0, or 1 + the layer that holds the rows */
    uint64_t k_decoder, v_decoder; /* tqe_decoder_id: rotation and codebook */
} tqe_snap_layer;

/* Rows of one page of one layer. */
typedef struct tqe_snap_part {
    uint32_t form; /* tq_form: 0 packed, 1 f16 */
    uint32_t page; /* tokens from 64 page on */
    uint32_t layer;
    uint32_t n_tokens; /* 1..64 */
    uint64_t off, bytes;
    uint8_t hash[TQE_SNAP_HASH_BYTES]; /* XXH3-128, canonical (big-endian) */
} tqe_snap_part;

typedef struct tqe_snap {
    uint32_t kind, flags;
    uint32_t first;    /* position of the first of the tokens: 0, or a multiple of 64 */
    uint32_t n_tokens; /* TQE_SNAP_PAGE and _END: 64 */
    uint32_t n_layers, n_parts, n_vocab;
    uint8_t fingerprint[TQE_ID_BYTES]; /* of the model */
    uint8_t scheme_id[TQE_ID_BYTES];   /* of the canonical scheme and the files that it names */
    uint8_t key[TQE_ID_BYTES];         /* of the prompt up to the end of the tokens; else 0 */
    char model[64];                    /* name for people, UTF-8, cut, or "" */
    char scheme[TQ_SCHEME_TEXT_BYTES];
    uint64_t header_bytes, file_bytes;
    tqe_snap_layer *layers; /* [n_layers] */
    int32_t *tokens;        /* [n_tokens] */
    float *logits;          /* [n_vocab], or NULL */
    tqe_snap_part *parts;   /* [n_parts] */
} tqe_snap;

/* Bytes of n_tokens rows of a layer, whose fields are valid. */
uint64_t tqe_snap_part_bytes(const tqe_snap_layer *l, uint32_t form, uint32_t n_tokens);
/* Bytes of the header, from the counts and the scheme. */
uint64_t tqe_snap_header_bytes(const tqe_snap *h);
/* Place the parts one after another behind the header: off, header_bytes, file_bytes. bytes of the
 * parts are set. Returns the largest part. */
uint64_t tqe_snap_place(tqe_snap *h);

/* The header, dst [h->header_bytes], and the trailer over it. */
void tqe_snap_encode(const tqe_snap *h, uint8_t *dst, uint8_t trailer[TQE_SNAP_TRAILER_BYTES]);

/* Step 1 of reading: the fixed part, fixed [256]. Gives counts, sizes and ids; no tables.
 * file_bytes: what the file really has. */
tqe_status tqe_snap_decode_fixed(tqe_snap *h, const uint8_t *fixed, uint64_t file_bytes,
                                 tqe_error *err);
/* Step 2: the whole header [h->header_bytes] and the trailer. Checksum, then every field. Tables
 * are malloc'ed; tqe_snap_free them. On error h holds no tables. */
tqe_status tqe_snap_decode(tqe_snap *h, const uint8_t *header, const uint8_t *trailer,
                           tqe_error *err);
void tqe_snap_free(tqe_snap *h);
/* Both steps and the checksums of all parts, for a file in memory. */
tqe_status tqe_snap_parse(tqe_snap *h, const uint8_t *file, size_t n, tqe_error *err);
/* The hash of a part does not match its bytes: says which one, and returns TQE_ERR_FORMAT. */
tqe_status tqe_snap_bad_part(const tqe_snap_part *t, tqe_error *err);

/* XXH3-128 in canonical order. */
void tqe_hash128(uint8_t dst[TQE_SNAP_HASH_BYTES], const void *p, size_t n);

/* What the decoder of a codec makes of a fixed block: a 64-bit name of rotation, signs, codebook,
 * bits and dimension together, the same on every machine. */
tqe_status tqe_decoder_id(uint64_t *id, const tq_codec *c);

#endif
