/* SPDX-License-Identifier: MIT */
/* snapshot_bytes.h — what the three files of the container share: where its tables are, how numbers
 * lie in it, and how damage is told. Private to them. */
#ifndef TQE_SNAPSHOT_BYTES_H
#define TQE_SNAPSHOT_BYTES_H

#include "engine_priv.h"
#include "snapshot_format.h"

#include <string.h>

static const uint8_t tqe_snap_magic[8] = {0x89, 'T', 'Q', 'S', 'N', 'A', 'P', '\n'};
static const uint8_t tqe_snap_end_magic[8] = {'T', 'Q', 'S', 'N', 'E', 'N', 'D', '\n'};

static inline void put_le(uint8_t *p, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static inline uint32_t get32(const uint8_t *p)
{
    return (uint32_t)tqe_load_le(p, 4);
}

static inline uint64_t get64(const uint8_t *p)
{
    return tqe_load_le(p, 8);
}

static inline uint64_t round64(uint64_t n)
{
    return (n + 63) & ~(uint64_t)63;
}

typedef struct places {
    uint64_t scheme, layers, tokens, logits, parts, end;
} places;

static inline places place_tables(const tqe_snap *h, size_t scheme_bytes)
{
    places p;
    p.scheme = TQE_SNAP_FIXED_BYTES;
    p.layers = p.scheme + round64(scheme_bytes);
    p.tokens = p.layers + (uint64_t)h->n_layers * TQE_SNAP_LAYER_BYTES;
    p.logits = p.tokens + round64((uint64_t)h->n_tokens * 4);
    p.parts = p.logits + ((h->flags & TQE_SNAP_HAS_LOGITS) ? round64((uint64_t)h->n_vocab * 4) : 0);
    p.end = p.parts + round64((uint64_t)h->n_parts * TQE_SNAP_PART_BYTES);
    return p;
}

/* ---- snapshot_decode.c ---------------------------------------------------------------------- */

/* "damaged snapshot: page table at offset 4096: page 3 ..." */
tqe_status tqe_snap_bad(tqe_error *err, const char *field, uint64_t off, const char *fmt, ...)
    TQE_PRINTF(4, 5);
tqe_status tqe_snap_bad_range(tqe_error *err, const char *field, uint64_t off, uint64_t is,
                              uint64_t lo, uint64_t hi);
/* First byte of p [n] that is not 0, or n. */
size_t tqe_snap_first_set(const uint8_t *p, size_t n);
/* Bytes from..to of base are 0, or damage in field. */
tqe_status tqe_snap_check_zero(const uint8_t *base, uint64_t from, uint64_t to, const char *field,
                               tqe_error *err);

/* ---- snapshot_tables.c ---------------------------------------------------------------------- */

/* Everything behind the fixed part, whose fields h has; allocates the tables. */
tqe_status tqe_snap_decode_tables(tqe_snap *h, const uint8_t *header, tqe_error *err);

#endif
