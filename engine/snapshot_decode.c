/* SPDX-License-Identifier: MIT */
/* snapshot_decode.c — the way into a snapshot: fixed part, checksum of the header, whole files.
 *
 * The one hard idea is that a decoder must never trust a count: the sizes that the counts imply are
 * computed in 64 bits and must equal the size that the file has, before anything is allocated from
 * them.
 */
#include "snapshot_bytes.h"

#include <stdarg.h>
#include <stdio.h>

#define MAX_LAYERS 1024u
#define MAX_VOCAB  (1u << 24)

/* ---- Damage --------------------------------------------------------------------------------- */

tqe_status tqe_snap_bad(tqe_error *err, const char *field, uint64_t off, const char *fmt, ...)
{
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return tqe_fail(err, TQE_ERR_FORMAT, "damaged snapshot: %s at offset %llu: %s", field,
                    (unsigned long long)off, why);
}

tqe_status tqe_snap_bad_range(tqe_error *err, const char *field, uint64_t off, uint64_t is,
                              uint64_t lo, uint64_t hi)
{
    return tqe_snap_bad(err, field, off, "%llu, where %llu to %llu are possible",
                        (unsigned long long)is, (unsigned long long)lo, (unsigned long long)hi);
}

tqe_status tqe_snap_check_zero(const uint8_t *base, uint64_t from, uint64_t to, const char *field,
                               tqe_error *err)
{
    const size_t i = tqe_snap_first_set(base + from, (size_t)(to - from));
    return from + i == to
               ? TQE_OK
               : tqe_snap_bad(err, field, from + i, "0x%02x in place of 0", base[from + i]);
}

size_t tqe_snap_first_set(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] == 0) {
        i++;
    }
    return i;
}

/* ---- The fixed part ------------------------------------------------------------------------- */

typedef struct range_rule {
    const char *field;
    uint32_t off, lo, hi;
} range_rule;

static const range_rule fixed_rules[] = {
    {"flags", 32, 0, TQE_SNAP_HAS_LOGITS},
    {"tokens of a page", 36, TQ_PAGE_TOKENS, TQ_PAGE_TOKENS},
    {"number of tokens", 40, 1, TQE_MAX_CTX},
    {"number of layers", 44, 1, MAX_LAYERS},
    {"number of parts", 48, 0, UINT32_MAX},
    {"vocabulary", 52, 1, MAX_VOCAB},
    {"length of the scheme", 56, 1, TQ_SCHEME_TEXT_BYTES - 1},
    {"kind", 60, TQE_SNAP_TIMELINE, TQE_SNAP_END},
    {"first token", 224, 0, TQE_MAX_CTX - TQ_PAGE_TOKENS},
};

/* Magic and versions first: what they say decides what a person should do. */
static tqe_status check_kind(const uint8_t *p, tqe_error *err)
{
    if (memcmp(p, tqe_snap_magic, sizeof(tqe_snap_magic)) != 0) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "not a snapshot: it does not begin with the magic "
                        "bytes 89 54 51 53 4e 41 50 0a");
    }
    if (get32(p + 8) != TQE_SNAP_VERSION) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "snapshot version %u at offset 8: this program reads version %u",
                        get32(p + 8), TQE_SNAP_VERSION);
    }
    if (get32(p + 12) != TQ_FORMAT_VERSION) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "stored-format version %u at offset 12: this program reads version %u",
                        get32(p + 12), (unsigned)TQ_FORMAT_VERSION);
    }
    return TQE_OK;
}

/* What the kind asks of the other numbers. */
static tqe_status check_counts(const tqe_snap *h, const uint8_t *p, tqe_error *err)
{
    const uint64_t pages = ((uint64_t)h->first + h->n_tokens + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS;
    if (h->n_parts > 2 * pages * h->n_layers) {
        return tqe_snap_bad_range(err, "number of parts", 48, h->n_parts, 0,
                                  2 * pages * h->n_layers);
    }
    if (h->kind == TQE_SNAP_TIMELINE) {
        return h->first == 0 ? tqe_snap_check_zero(p, 192, 224, "key", err)
                             : tqe_snap_bad_range(err, "first token", 224, h->first, 0, 0);
    }
    if (h->n_tokens != TQ_PAGE_TOKENS) {
        return tqe_snap_bad_range(err, "number of tokens", 40, h->n_tokens, TQ_PAGE_TOKENS,
                                  TQ_PAGE_TOKENS);
    }
    if (h->first % TQ_PAGE_TOKENS != 0) {
        return tqe_snap_bad(err, "first token", 224, "%u is no multiple of %u", h->first,
                            TQ_PAGE_TOKENS);
    }
    return h->flags == 0 ? TQE_OK : tqe_snap_bad(err, "flags", 32, "a page has no logits");
}

tqe_status tqe_snap_decode_fixed(tqe_snap *h, const uint8_t *fixed, uint64_t file_bytes,
                                 tqe_error *err)
{
    const uint8_t *p = fixed;
    memset(h, 0, sizeof(*h));
    tqe_status st = check_kind(p, err);
    for (size_t i = 0; st == TQE_OK && i < sizeof(fixed_rules) / sizeof(fixed_rules[0]); i++) {
        const range_rule *r = &fixed_rules[i];
        const uint32_t v = get32(p + r->off);
        if (v < r->lo || v > r->hi) {
            st = tqe_snap_bad_range(err, r->field, r->off, v, r->lo, r->hi);
        }
    }
    if (st == TQE_OK) {
        st = tqe_snap_check_zero(p, 228, TQE_SNAP_FIXED_BYTES, "reserved bytes", err);
    }
    if (st != TQE_OK) {
        return st;
    }
    h->kind = get32(p + 60);
    h->first = get32(p + 224);
    h->header_bytes = get64(p + 16);
    h->file_bytes = get64(p + 24);
    h->flags = get32(p + 32);
    h->n_tokens = get32(p + 40);
    h->n_layers = get32(p + 44);
    h->n_parts = get32(p + 48);
    h->n_vocab = get32(p + 52);
    memcpy(h->fingerprint, p + 64, TQE_ID_BYTES);
    memcpy(h->scheme_id, p + 96, TQE_ID_BYTES);
    memcpy(h->model, p + 128, sizeof(h->model));
    memcpy(h->key, p + 192, TQE_ID_BYTES);
    if ((st = check_counts(h, p, err)) != TQE_OK) {
        return st;
    }
    if (h->file_bytes != file_bytes) {
        return tqe_snap_bad(err, "file length", 24, "the header says %llu bytes, the file has %llu",
                            (unsigned long long)h->file_bytes, (unsigned long long)file_bytes);
    }
    const uint64_t want = place_tables(h, get32(p + 56)).end;
    if (h->header_bytes != want) {
        return tqe_snap_bad(err, "header length", 16, "%llu bytes, where the counts give %llu",
                            (unsigned long long)h->header_bytes, (unsigned long long)want);
    }
    if (h->header_bytes > file_bytes || file_bytes - h->header_bytes < TQE_SNAP_TRAILER_BYTES) {
        return tqe_snap_bad(err, "header length", 16,
                            "%llu bytes and a trailer do not fit a file of %llu",
                            (unsigned long long)h->header_bytes, (unsigned long long)file_bytes);
    }
    return TQE_OK;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static tqe_status check_trailer(const tqe_snap *h, const uint8_t *header, const uint8_t *trailer,
                                tqe_error *err)
{
    const uint64_t off = h->file_bytes - TQE_SNAP_TRAILER_BYTES;
    uint8_t hash[TQE_SNAP_HASH_BYTES];
    if (memcmp(trailer, tqe_snap_end_magic, sizeof(tqe_snap_end_magic)) != 0) {
        return tqe_snap_bad(err, "trailer", off, "it does not begin as a trailer does");
    }
    if (get64(trailer + 8) != h->file_bytes) {
        return tqe_snap_bad(err, "trailer", off + 8, "it says %llu bytes, the header %llu",
                            (unsigned long long)get64(trailer + 8),
                            (unsigned long long)h->file_bytes);
    }
    const size_t i = tqe_snap_first_set(trailer + 32, TQE_SNAP_TRAILER_BYTES - 32);
    if (32 + i != TQE_SNAP_TRAILER_BYTES) {
        return tqe_snap_bad(err, "trailer", off + 32 + i, "reserved bytes are not 0");
    }
    tqe_hash128(hash, header, (size_t)h->header_bytes);
    if (memcmp(hash, trailer + 16, sizeof(hash)) != 0) {
        return tqe_snap_bad(err, "header", 0,
                            "its checksum is not the one in the trailer at offset %llu",
                            (unsigned long long)off + 16);
    }
    return TQE_OK;
}
tqe_status tqe_snap_decode(tqe_snap *h, const uint8_t *header, const uint8_t *trailer,
                           tqe_error *err)
{
    tqe_status st = check_trailer(h, header, trailer, err);
    if (st == TQE_OK) {
        st = tqe_snap_decode_tables(h, header, err);
    }
    if (st != TQE_OK) {
        tqe_snap_free(h);
    }
    return st;
}

tqe_status tqe_snap_bad_part(const tqe_snap_part *t, tqe_error *err)
{
    return tqe_fail(err, TQE_ERR_FORMAT,
                    "damaged snapshot: page %u of layer %u%s, tokens %u to %u, at offset %llu does "
                    "not match its checksum",
                    t->page, t->layer, t->form == TQ_FORM_F16 ? " in f16" : "",
                    t->page * TQ_PAGE_TOKENS, t->page * TQ_PAGE_TOKENS + t->n_tokens - 1,
                    (unsigned long long)t->off);
}

tqe_status tqe_snap_parse(tqe_snap *h, const uint8_t *file, size_t n, tqe_error *err)
{
    if (n < TQE_SNAP_FIXED_BYTES + TQE_SNAP_TRAILER_BYTES) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "not a snapshot, or a truncated one: %zu bytes are no header", n);
    }
    tqe_status st = tqe_snap_decode_fixed(h, file, n, err);
    if (st == TQE_OK) {
        st = tqe_snap_decode(h, file, file + n - TQE_SNAP_TRAILER_BYTES, err);
    }
    for (uint32_t i = 0; st == TQE_OK && i < h->n_parts; i++) {
        uint8_t hash[TQE_SNAP_HASH_BYTES];
        tqe_hash128(hash, file + h->parts[i].off, (size_t)h->parts[i].bytes);
        if (memcmp(hash, h->parts[i].hash, sizeof(hash)) != 0) {
            st = tqe_snap_bad_part(&h->parts[i], err);
        }
    }
    if (st != TQE_OK) {
        tqe_snap_free(h);
    }
    return st;
}
