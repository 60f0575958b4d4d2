/* SPDX-License-Identifier: MIT */
/* snapshot_format.c — header and tables of a snapshot as bytes: sizes, places, writing.
 *
 * Written like docs/snapshot.md reads: offsets in a row. Reading, which has to doubt every one of
 * them, is snapshot_decode.c's and snapshot_tables.c's.
 */
#include "snapshot_bytes.h"

#include <stdlib.h>
#include <xxhash.h>

void tqe_hash128(uint8_t dst[TQE_SNAP_HASH_BYTES], const void *p, size_t n)
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(p, n));
    memcpy(dst, c.digest, TQE_SNAP_HASH_BYTES);
}

uint64_t tqe_snap_header_bytes(const tqe_snap *h)
{
    return place_tables(h, strlen(h->scheme)).end;
}

uint64_t tqe_snap_place(tqe_snap *h)
{
    uint64_t largest = 0;
    h->header_bytes = tqe_snap_header_bytes(h);
    uint64_t off = h->header_bytes;
    for (uint32_t i = 0; i < h->n_parts; i++) {
        h->parts[i].off = off;
        off += h->parts[i].bytes;
        largest = h->parts[i].bytes > largest ? h->parts[i].bytes : largest;
    }
    h->file_bytes = off + TQE_SNAP_TRAILER_BYTES;
    return largest;
}

static void encode_fixed(const tqe_snap *h, size_t scheme_bytes, uint8_t *p)
{
    memcpy(p, tqe_snap_magic, 8);
    put_le(p + 8, TQE_SNAP_VERSION, 4);
    put_le(p + 12, TQ_FORMAT_VERSION, 4);
    put_le(p + 16, h->header_bytes, 8);
    put_le(p + 24, h->file_bytes, 8);
    put_le(p + 32, h->flags, 4);
    put_le(p + 36, TQ_PAGE_TOKENS, 4);
    put_le(p + 40, h->n_tokens, 4);
    put_le(p + 44, h->n_layers, 4);
    put_le(p + 48, h->n_parts, 4);
    put_le(p + 52, h->n_vocab, 4);
    put_le(p + 56, scheme_bytes, 4);
    put_le(p + 60, h->kind, 4);
    memcpy(p + 64, h->fingerprint, TQE_ID_BYTES);
    memcpy(p + 96, h->scheme_id, TQE_ID_BYTES);
    memcpy(p + 128, h->model, sizeof(h->model));
    memcpy(p + 192, h->key, TQE_ID_BYTES);
    put_le(p + 224, h->first, 4);
}

static void encode_layer(const tqe_snap_layer *l, uint8_t *p)
{
    put_le(p, l->n_kv_heads, 4);
    put_le(p + 4, l->d_k, 4);
    put_le(p + 8, l->d_v, 4);
    put_le(p + 12, l->window, 4);
    put_le(p + 16, l->k_format, 4);
    put_le(p + 20, l->v_format, 4);
    put_le(p + 24, l->k_flags, 4);
    put_le(p + 28, l->v_flags, 4);
    put_le(p + 32, l->sink, 4);
    put_le(p + 36, l->tail, 4);
    put_le(p + 40, l->start, 4);
    put_le(p + 44, l->donor, 4);
    put_le(p + 48, l->k_decoder, 8);
    put_le(p + 56, l->v_decoder, 8);
}

static void encode_part(const tqe_snap_part *t, uint8_t *p)
{
    put_le(p, t->form, 4);
    put_le(p + 4, t->page, 4);
    put_le(p + 8, t->layer, 4);
    put_le(p + 12, t->n_tokens, 4);
    put_le(p + 16, t->off, 8);
    put_le(p + 24, t->bytes, 8);
    memcpy(p + 32, t->hash, TQE_SNAP_HASH_BYTES);
}

void tqe_snap_encode(const tqe_snap *h, uint8_t *dst, uint8_t trailer[TQE_SNAP_TRAILER_BYTES])
{
    const size_t scheme_bytes = strlen(h->scheme);
    const places at = place_tables(h, scheme_bytes);
    memset(dst, 0, (size_t)at.end);
    encode_fixed(h, scheme_bytes, dst);
    memcpy(dst + at.scheme, h->scheme, scheme_bytes);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        encode_layer(&h->layers[i], dst + at.layers + (size_t)i * TQE_SNAP_LAYER_BYTES);
    }
    for (uint32_t i = 0; i < h->n_tokens; i++) {
        put_le(dst + at.tokens + (size_t)i * 4, (uint32_t)h->tokens[i], 4);
    }
    for (uint32_t i = 0; h->logits != NULL && i < h->n_vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &h->logits[i], 4);
        put_le(dst + at.logits + (size_t)i * 4, bits, 4);
    }
    for (uint32_t i = 0; i < h->n_parts; i++) {
        encode_part(&h->parts[i], dst + at.parts + (size_t)i * TQE_SNAP_PART_BYTES);
    }
    memset(trailer, 0, TQE_SNAP_TRAILER_BYTES);
    memcpy(trailer, tqe_snap_end_magic, 8);
    put_le(trailer + 8, h->file_bytes, 8);
    tqe_hash128(trailer + 16, dst, (size_t)at.end);
}

void tqe_snap_free(tqe_snap *h)
{
    free(h->layers);
    free(h->tokens);
    free(h->logits);
    free(h->parts);
    h->layers = NULL;
    h->tokens = NULL;
    h->logits = NULL;
    h->parts = NULL;
}
