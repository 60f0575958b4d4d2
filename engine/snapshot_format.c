/* SPDX-License-Identifier: MIT */
/* snapshot_format.c — header and tables of a snapshot, to bytes and back.
 *
 * Written like docs/snapshot.md reads: one place function per direction, offsets in a row. The one
 * hard idea is that a decoder must never trust a count: the sizes that the counts imply are
 * computed in 64 bits and must equal the size that the file has, before anything is allocated from
 * them.
 */
#include "snapshot_format.h"

#include "engine_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const uint8_t magic[8] = {0x89, 'T', 'Q', 'S', 'N', 'A', 'P', '\n'};
static const uint8_t end_magic[8] = {'T', 'Q', 'S', 'N', 'E', 'N', 'D', '\n'};

#define MAX_LAYERS 1024u
#define MAX_VOCAB  (1u << 24)

/* ---- Bytes ---------------------------------------------------------------------------------- */

static void put_le(uint8_t *p, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)tqe_load_le(p, 4);
}

static uint64_t get64(const uint8_t *p)
{
    return tqe_load_le(p, 8);
}

static uint64_t round64(uint64_t n)
{
    return (n + 63) & ~(uint64_t)63;
}

void tqe_hash128(uint8_t dst[TQE_SNAP_HASH_BYTES], const void *p, size_t n)
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(p, n));
    memcpy(dst, c.digest, TQE_SNAP_HASH_BYTES);
}

/* First byte of p [n] that is not 0, or n. */
static size_t first_set(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] == 0) {
        i++;
    }
    return i;
}

/* ---- Where the tables are ------------------------------------------------------------------- */

typedef struct places {
    uint64_t scheme, layers, tokens, logits, parts, end;
} places;

static places place_tables(const tqe_snap *h, size_t scheme_bytes)
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

/* ---- Encode --------------------------------------------------------------------------------- */

static void encode_fixed(const tqe_snap *h, size_t scheme_bytes, uint8_t *p)
{
    memcpy(p, magic, 8);
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
    memcpy(trailer, end_magic, 8);
    put_le(trailer + 8, h->file_bytes, 8);
    tqe_hash128(trailer + 16, dst, (size_t)at.end);
}

/* ---- Decode --------------------------------------------------------------------------------- */

static tqe_status bad(tqe_error *err, const char *field, uint64_t off, const char *fmt, ...)
    TQE_PRINTF(4, 5);

/* "damaged snapshot: page table at offset 4096: page 3 ..." */
static tqe_status bad(tqe_error *err, const char *field, uint64_t off, const char *fmt, ...)
{
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return tqe_fail(err, TQE_ERR_FORMAT, "damaged snapshot: %s at offset %llu: %s", field,
                    (unsigned long long)off, why);
}

static tqe_status bad_range(tqe_error *err, const char *field, uint64_t off, uint64_t is,
                            uint64_t lo, uint64_t hi)
{
    return bad(err, field, off, "%llu, where %llu to %llu are possible", (unsigned long long)is,
               (unsigned long long)lo, (unsigned long long)hi);
}

static tqe_status check_zero(const uint8_t *base, uint64_t from, uint64_t to, const char *field,
                             tqe_error *err)
{
    const size_t i = first_set(base + from, (size_t)(to - from));
    return from + i == to ? TQE_OK
                          : bad(err, field, from + i, "0x%02x in place of 0", base[from + i]);
}

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
    if (memcmp(p, magic, sizeof(magic)) != 0) {
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
        return bad_range(err, "number of parts", 48, h->n_parts, 0, 2 * pages * h->n_layers);
    }
    if (h->kind == TQE_SNAP_TIMELINE) {
        return h->first == 0 ? check_zero(p, 192, 224, "key", err)
                             : bad_range(err, "first token", 224, h->first, 0, 0);
    }
    if (h->n_tokens != TQ_PAGE_TOKENS) {
        return bad_range(err, "number of tokens", 40, h->n_tokens, TQ_PAGE_TOKENS, TQ_PAGE_TOKENS);
    }
    if (h->first % TQ_PAGE_TOKENS != 0) {
        return bad(err, "first token", 224, "%u is no multiple of %u", h->first, TQ_PAGE_TOKENS);
    }
    return h->flags == 0 ? TQE_OK : bad(err, "flags", 32, "a page has no logits");
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
            st = bad_range(err, r->field, r->off, v, r->lo, r->hi);
        }
    }
    if (st == TQE_OK) {
        st = check_zero(p, 228, TQE_SNAP_FIXED_BYTES, "reserved bytes", err);
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
        return bad(err, "file length", 24, "the header says %llu bytes, the file has %llu",
                   (unsigned long long)h->file_bytes, (unsigned long long)file_bytes);
    }
    const uint64_t want = place_tables(h, get32(p + 56)).end;
    if (h->header_bytes != want) {
        return bad(err, "header length", 16, "%llu bytes, where the counts give %llu",
                   (unsigned long long)h->header_bytes, (unsigned long long)want);
    }
    if (h->header_bytes > file_bytes || file_bytes - h->header_bytes < TQE_SNAP_TRAILER_BYTES) {
        return bad(err, "header length", 16, "%llu bytes and a trailer do not fit a file of %llu",
                   (unsigned long long)h->header_bytes, (unsigned long long)file_bytes);
    }
    return TQE_OK;
}

/* Text that a terminal may show: no control characters, valid UTF-8. */
static tqe_status check_model_name(const tqe_snap *h, tqe_error *err)
{
    const size_t n = strnlen(h->model, sizeof(h->model));
    if (n == sizeof(h->model)) {
        return bad(err, "model name", 128, "it does not end");
    }
    if (first_set((const uint8_t *)h->model + n, sizeof(h->model) - n) != sizeof(h->model) - n) {
        return bad(err, "model name", 128, "bytes after its end");
    }
    if (tqe_utf8_check(h->model, n) != n) {
        return bad(err, "model name", 128, "not UTF-8");
    }
    for (size_t i = 0; i < n; i++) {
        if ((uint8_t)h->model[i] < 0x20 || h->model[i] == 0x7f) {
            return bad(err, "model name", 128 + i, "a control character");
        }
    }
    return TQE_OK;
}

/* The scheme must be spelled as this library spells it, or it would not be its identity. */
static tqe_status decode_scheme(tqe_snap *h, const uint8_t *p, const places *at, tqe_error *err)
{
    const uint32_t n = get32(p + 56);
    tq_scheme scheme;
    char canonical[TQ_SCHEME_TEXT_BYTES];
    memcpy(h->scheme, p + at->scheme, n);
    h->scheme[n] = '\0';
    if (strlen(h->scheme) != n || tq_scheme_parse(&scheme, h->scheme, NULL, 0) != TQ_OK ||
        tq_scheme_format(&scheme, canonical, sizeof(canonical)) != TQ_OK ||
        strcmp(canonical, h->scheme) != 0) {
        return bad(err, "scheme", at->scheme, "'%s' is no canonical scheme",
                   tqe_quote(h->scheme, n).text);
    }
    return check_zero(p, at->scheme + n, at->layers, "bytes after the scheme", err);
}

/* A layer's formats exist, take its dimensions, and mean what they meant to the writer. */
static tqe_status check_layer(const tqe_snap_layer *l, uint64_t off, tqe_error *err)
{
    static const char field[] = "layer table";
    tq_codec k, v;
    if (l->n_kv_heads == 0 || l->n_kv_heads > 1024) {
        return bad_range(err, field, off, l->n_kv_heads, 1, 1024);
    }
    if (tq_codec_init(&k, (tq_format)l->k_format, l->d_k, l->k_flags, TQ_ISA_SCALAR) != TQ_OK) {
        return bad(err, field, off, "no key format %u of dimension %u with flags %u", l->k_format,
                   l->d_k, l->k_flags);
    }
    if (tq_codec_init(&v, (tq_format)l->v_format, l->d_v, l->v_flags, TQ_ISA_SCALAR) != TQ_OK) {
        return bad(err, field, off, "no value format %u of dimension %u with flags %u", l->v_format,
                   l->d_v, l->v_flags);
    }
    uint64_t k_id = 0, v_id = 0;
    if (tqe_decoder_id(&k_id, &k) != TQE_OK || tqe_decoder_id(&v_id, &v) != TQE_OK) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    if (k_id != l->k_decoder || v_id != l->v_decoder) {
        return bad(err, field, off,
                   "written with another rotation or codebook (decoder %016llx/%016llx, "
                   "here %016llx/%016llx)",
                   (unsigned long long)l->k_decoder, (unsigned long long)l->v_decoder,
                   (unsigned long long)k_id, (unsigned long long)v_id);
    }
    return TQE_OK;
}

/* A layer that reads another one's rows says the same about them; that one has rows. */
static bool same_rows(const tqe_snap_layer *l, const tqe_snap_layer *donor)
{
    tqe_snap_layer own = *l;
    own.donor = 0;
    return memcmp(&own, donor, sizeof(own)) == 0;
}

static tqe_status decode_layers(tqe_snap *h, const uint8_t *header, const places *at,
                                tqe_error *err)
{
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const uint64_t off = at->layers + (uint64_t)i * TQE_SNAP_LAYER_BYTES;
        const uint8_t *p = header + off;
        tqe_snap_layer *l = &h->layers[i];
        *l = (tqe_snap_layer){
            .n_kv_heads = get32(p),
            .d_k = get32(p + 4),
            .d_v = get32(p + 8),
            .window = get32(p + 12),
            .k_format = get32(p + 16),
            .v_format = get32(p + 20),
            .k_flags = get32(p + 24),
            .v_flags = get32(p + 28),
            .sink = get32(p + 32),
            .tail = get32(p + 36),
            .start = get32(p + 40),
            .donor = get32(p + 44),
            .k_decoder = get64(p + 48),
            .v_decoder = get64(p + 56),
        };
        tqe_status st = TQE_OK;
        if (l->donor > i) {
            st = bad(err, "layer table", off + 44, "layer %u has the rows of layer %u", i,
                     l->donor - 1);
        } else if (l->donor > 0 && !same_rows(l, &h->layers[l->donor - 1])) {
            st = bad(err, "layer table", off + 44, "layer %u cannot read the rows of layer %u", i,
                     l->donor - 1);
        } else if (i == 0 || memcmp(l, l - 1, sizeof(*l)) != 0) {
            /* Layers are mostly alike, and the decoder ids of many would take their time. */
            st = check_layer(l, off, err);
        }
        if (st != TQE_OK) {
            return st;
        }
    }
    return TQE_OK;
}

static tqe_status decode_tokens(tqe_snap *h, const uint8_t *header, const places *at,
                                tqe_error *err)
{
    for (uint32_t i = 0; i < h->n_tokens; i++) {
        const uint64_t off = at->tokens + (uint64_t)i * 4;
        const uint32_t id = get32(header + off);
        if (id >= h->n_vocab) {
            return bad_range(err, "token ids", off, id, 0, h->n_vocab - 1);
        }
        h->tokens[i] = (int32_t)id;
    }
    const uint64_t end = at->tokens + (uint64_t)h->n_tokens * 4;
    tqe_status st = check_zero(header, end, at->logits, "bytes after the tokens", err);
    if (st != TQE_OK || h->logits == NULL) {
        return st;
    }
    for (uint32_t i = 0; i < h->n_vocab; i++) {
        const uint64_t off = at->logits + (uint64_t)i * 4;
        const uint32_t bits = get32(header + off);
        memcpy(&h->logits[i], &bits, 4);
        if ((bits & 0x7f800000u) == 0x7f800000u) {
            return bad(err, "logits", off, "NaN or Inf");
        }
    }
    return check_zero(header, at->logits + (uint64_t)h->n_vocab * 4, at->parts,
                      "bytes after the logits", err);
}

/* Bytes of n_tokens rows of a layer. */
static uint64_t part_bytes(const tqe_snap_layer *l, uint32_t form, uint32_t n_tokens)
{
    tq_codec k, v;
    uint64_t row = 2 * ((uint64_t)l->d_k + l->d_v);
    if (form == TQ_FORM_PACKED) { /* cannot fail: check_layer has done the same */
        (void)tq_codec_init(&k, (tq_format)l->k_format, l->d_k, l->k_flags, TQ_ISA_SCALAR);
        (void)tq_codec_init(&v, (tq_format)l->v_format, l->d_v, l->v_flags, TQ_ISA_SCALAR);
        row = k.block_bytes + v.block_bytes;
    }
    return row * l->n_kv_heads * n_tokens;
}

/* Form, page and layer as one number: parts are in this order. */
static uint64_t rank(const tqe_snap_part *t)
{
    return (uint64_t)t->form << 62 | (uint64_t)t->page << 31 | t->layer;
}

/* Which page of which layer; rows of which tokens. */
static tqe_status check_part(const tqe_snap *h, uint32_t i, uint64_t off, tqe_error *err)
{
    static const char field[] = "page table";
    const tqe_snap_part *t = &h->parts[i];
    const uint32_t end = h->first + h->n_tokens;
    const uint32_t n_pages = (end + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS;
    const uint32_t lo = h->kind == TQE_SNAP_PAGE ? n_pages - 1 : 0;
    if (t->form > TQ_FORM_F16 || (h->kind == TQE_SNAP_PAGE && t->form != TQ_FORM_PACKED)) {
        return bad_range(err, field, off, t->form, 0, h->kind == TQE_SNAP_PAGE ? 0 : 1);
    }
    if (t->page < lo || t->page >= n_pages) {
        return bad_range(err, field, off + 4, t->page, lo, n_pages - 1);
    }
    if (t->layer >= h->n_layers || h->layers[t->layer].donor != 0) {
        return bad(err, field, off + 8, "part %u is of layer %u, which has no rows", i, t->layer);
    }
    if (i > 0 && rank(t) <= rank(t - 1)) {
        return bad(err, field, off, "part %u is out of order", i);
    }
    /* Packed pages hold all their tokens; f16 ones may end with the sinks. */
    const uint32_t left = end - t->page * TQ_PAGE_TOKENS;
    const uint32_t most = left < TQ_PAGE_TOKENS ? left : TQ_PAGE_TOKENS;
    const uint32_t least = t->form == TQ_FORM_PACKED ? most : 1;
    return t->n_tokens >= least && t->n_tokens <= most
               ? TQE_OK
               : bad_range(err, field, off + 12, t->n_tokens, least, most);
}

/* Parts stand one after another, without a gap. Which ones a timeline needs is for the cache to
 * say, when it takes them. */
static tqe_status decode_parts(tqe_snap *h, const uint8_t *header, const places *at, tqe_error *err)
{
    uint64_t next_off = h->header_bytes;
    for (uint32_t i = 0; i < h->n_parts; i++) {
        const uint64_t off = at->parts + (uint64_t)i * TQE_SNAP_PART_BYTES;
        const uint8_t *p = header + off;
        tqe_snap_part *t = &h->parts[i];
        *t = (tqe_snap_part){.form = get32(p),
                             .page = get32(p + 4),
                             .layer = get32(p + 8),
                             .n_tokens = get32(p + 12),
                             .off = get64(p + 16),
                             .bytes = get64(p + 24)};
        memcpy(t->hash, p + 32, TQE_SNAP_HASH_BYTES);
        const tqe_status st = check_part(h, i, off, err);
        if (st != TQE_OK) {
            return st;
        }
        const uint64_t want = part_bytes(&h->layers[t->layer], t->form, t->n_tokens);
        if (t->off != next_off || t->bytes != want) {
            return bad(err, "page table", off + 16,
                       "part %u has %llu bytes at %llu, not %llu at %llu", i,
                       (unsigned long long)t->bytes, (unsigned long long)t->off,
                       (unsigned long long)want, (unsigned long long)next_off);
        }
        next_off += want;
    }
    if (next_off + TQE_SNAP_TRAILER_BYTES != h->file_bytes) {
        return bad(err, "file length", 24, "%llu bytes, where pages and trailer end at %llu",
                   (unsigned long long)h->file_bytes,
                   (unsigned long long)next_off + TQE_SNAP_TRAILER_BYTES);
    }
    return check_zero(header, at->parts + (uint64_t)h->n_parts * TQE_SNAP_PART_BYTES, at->end,
                      "bytes after the page table", err);
}

static tqe_status check_trailer(const tqe_snap *h, const uint8_t *header, const uint8_t *trailer,
                                tqe_error *err)
{
    const uint64_t off = h->file_bytes - TQE_SNAP_TRAILER_BYTES;
    uint8_t hash[TQE_SNAP_HASH_BYTES];
    if (memcmp(trailer, end_magic, sizeof(end_magic)) != 0) {
        return bad(err, "trailer", off, "it does not begin as a trailer does");
    }
    if (get64(trailer + 8) != h->file_bytes) {
        return bad(err, "trailer", off + 8, "it says %llu bytes, the header %llu",
                   (unsigned long long)get64(trailer + 8), (unsigned long long)h->file_bytes);
    }
    const size_t i = first_set(trailer + 32, TQE_SNAP_TRAILER_BYTES - 32);
    if (32 + i != TQE_SNAP_TRAILER_BYTES) {
        return bad(err, "trailer", off + 32 + i, "reserved bytes are not 0");
    }
    tqe_hash128(hash, header, (size_t)h->header_bytes);
    if (memcmp(hash, trailer + 16, sizeof(hash)) != 0) {
        return bad(err, "header", 0, "its checksum is not the one in the trailer at offset %llu",
                   (unsigned long long)off + 16);
    }
    return TQE_OK;
}

static tqe_status decode_tables(tqe_snap *h, const uint8_t *header, const places *at,
                                tqe_error *err)
{
    h->layers = calloc(h->n_layers, sizeof(*h->layers));
    h->tokens = malloc(h->n_tokens * sizeof(*h->tokens));
    h->parts = calloc((size_t)h->n_parts + 1, sizeof(*h->parts));
    if (h->flags & TQE_SNAP_HAS_LOGITS) {
        h->logits = malloc(h->n_vocab * sizeof(*h->logits));
    }
    if (h->layers == NULL || h->tokens == NULL || h->parts == NULL ||
        ((h->flags & TQE_SNAP_HAS_LOGITS) && h->logits == NULL)) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    tqe_status st = check_model_name(h, err);
    if (st == TQE_OK) {
        st = decode_scheme(h, header, at, err);
    }
    if (st == TQE_OK) {
        st = decode_layers(h, header, at, err);
    }
    if (st == TQE_OK) {
        st = decode_tokens(h, header, at, err);
    }
    return st == TQE_OK ? decode_parts(h, header, at, err) : st;
}

tqe_status tqe_snap_decode(tqe_snap *h, const uint8_t *header, const uint8_t *trailer,
                           tqe_error *err)
{
    tqe_status st = check_trailer(h, header, trailer, err);
    if (st == TQE_OK) {
        const places at = place_tables(h, get32(header + 56));
        st = decode_tables(h, header, &at, err);
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

/* ---- Identity of a decoder ------------------------------------------------------------------ */

enum { PROBE_ROWS = 4 };

tqe_status tqe_decoder_id(uint64_t *id, const tq_codec *c)
{
    /* Scalar kernels: one arithmetic on every machine. */
    tq_codec scalar;
    const size_t n_bytes = PROBE_ROWS * c->block_bytes;
    const size_t n_values = (size_t)PROBE_ROWS * c->dim;
    uint8_t *blocks = malloc(n_bytes);
    float *rows = malloc(n_values * sizeof(*rows));
    uint8_t *le = malloc(n_values * 4);
    tqe_status st = TQE_ERR_NOMEM;
    if (blocks != NULL && rows != NULL && le != NULL) {
        /* Codes of all values; then scales of 1 and offsets of 0.5 as f16. */
        for (size_t r = 0; r < PROBE_ROWS; r++) {
            uint8_t *b = blocks + r * c->block_bytes;
            for (size_t i = 0; i < c->block_bytes; i++) {
                const size_t in_scale = i - c->code_bytes;
                b[i] = i < c->code_bytes           ? (uint8_t)(37 * i + 101 * r + 11)
                       : in_scale < c->scale_bytes ? (in_scale % 2 ? 0x3c : 0x00)
                                                   : ((in_scale - c->scale_bytes) % 2 ? 0x38 : 0);
            }
        }
        st = TQE_ERR_ARG;
        if (tq_codec_init(&scalar, c->format, c->dim, c->flags, TQ_ISA_SCALAR) == TQ_OK &&
            tq_codec_decode(&scalar, rows, c->dim, blocks, n_bytes, PROBE_ROWS) == TQ_OK) {
            for (size_t i = 0; i < n_values; i++) {
                uint32_t bits = 0x7fc00000u; /* every NaN is the same value */
                if (rows[i] == rows[i]) {
                    memcpy(&bits, &rows[i], 4);
                }
                put_le(le + 4 * i, bits, 4);
            }
            *id = XXH3_64bits(le, n_values * 4);
            st = TQE_OK;
        }
    }
    free(blocks);
    free(rows);
    free(le);
    return st;
}
