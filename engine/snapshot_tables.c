/* SPDX-License-Identifier: MIT */
/* snapshot_tables.c — the tables of a snapshot, field by field.
 *
 * Nothing here is only read: a field is in the range of its table, fits the fields before it, and
 * is what a writer would have written there, or the file is refused by the name of the table and
 * the offset. The checksum has been compared before, so what is refused here was made, not damaged.
 */
#include "snapshot_bytes.h"

#include <stdlib.h>

/* Text that a terminal may show: no control characters, valid UTF-8. */
static tqe_status check_model_name(const tqe_snap *h, tqe_error *err)
{
    const size_t n = strnlen(h->model, sizeof(h->model));
    if (n == sizeof(h->model)) {
        return tqe_snap_bad(err, "model name", 128, "it does not end");
    }
    if (tqe_snap_first_set((const uint8_t *)h->model + n, sizeof(h->model) - n) !=
        sizeof(h->model) - n) {
        return tqe_snap_bad(err, "model name", 128, "bytes after its end");
    }
    if (tqe_utf8_check(h->model, n) != n) {
        return tqe_snap_bad(err, "model name", 128, "not UTF-8");
    }
    for (size_t i = 0; i < n; i++) {
        if ((uint8_t)h->model[i] < 0x20 || h->model[i] == 0x7f) {
            return tqe_snap_bad(err, "model name", 128 + i, "a control character");
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
        return tqe_snap_bad(err, "scheme", at->scheme, "'%s' is no canonical scheme",
                            tqe_quote(h->scheme, n).text);
    }
    return tqe_snap_check_zero(p, at->scheme + n, at->layers, "bytes after the scheme", err);
}

/* A layer's formats exist, take its dimensions, and mean what they meant to the writer. */
static tqe_status check_layer(const tqe_snap_layer *l, uint64_t off, tqe_error *err)
{
    static const char field[] = "layer table";
    tq_codec k, v;
    if (l->n_kv_heads == 0 || l->n_kv_heads > 1024) {
        return tqe_snap_bad_range(err, field, off, l->n_kv_heads, 1, 1024);
    }
    if (tq_codec_init(&k, (tq_format)l->k_format, l->d_k, l->k_flags, TQ_ISA_SCALAR) != TQ_OK) {
        return tqe_snap_bad(err, field, off, "no key format %u of dimension %u with flags %u",
                            l->k_format, l->d_k, l->k_flags);
    }
    if (tq_codec_init(&v, (tq_format)l->v_format, l->d_v, l->v_flags, TQ_ISA_SCALAR) != TQ_OK) {
        return tqe_snap_bad(err, field, off, "no value format %u of dimension %u with flags %u",
                            l->v_format, l->d_v, l->v_flags);
    }
    uint64_t k_id = 0, v_id = 0;
    if (tqe_decoder_id(&k_id, &k) != TQE_OK || tqe_decoder_id(&v_id, &v) != TQE_OK) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    if (k_id != l->k_decoder || v_id != l->v_decoder) {
        return tqe_snap_bad(err, field, off,
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
            st = tqe_snap_bad(err, "layer table", off + 44, "layer %u has the rows of layer %u", i,
                              l->donor - 1);
        } else if (l->donor > 0 && !same_rows(l, &h->layers[l->donor - 1])) {
            st = tqe_snap_bad(err, "layer table", off + 44,
                              "layer %u cannot read the rows of layer %u", i, l->donor - 1);
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
            return tqe_snap_bad_range(err, "token ids", off, id, 0, h->n_vocab - 1);
        }
        h->tokens[i] = (int32_t)id;
    }
    const uint64_t end = at->tokens + (uint64_t)h->n_tokens * 4;
    tqe_status st = tqe_snap_check_zero(header, end, at->logits, "bytes after the tokens", err);
    if (st != TQE_OK || h->logits == NULL) {
        return st;
    }
    for (uint32_t i = 0; i < h->n_vocab; i++) {
        const uint64_t off = at->logits + (uint64_t)i * 4;
        const uint32_t bits = get32(header + off);
        memcpy(&h->logits[i], &bits, 4);
        if ((bits & 0x7f800000u) == 0x7f800000u) {
            return tqe_snap_bad(err, "logits", off, "NaN or Inf");
        }
    }
    return tqe_snap_check_zero(header, at->logits + (uint64_t)h->n_vocab * 4, at->parts,
                               "bytes after the logits", err);
}

uint64_t tqe_snap_part_bytes(const tqe_snap_layer *l, uint32_t form, uint32_t n_tokens)
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
        return tqe_snap_bad_range(err, field, off, t->form, 0, h->kind == TQE_SNAP_PAGE ? 0 : 1);
    }
    if (t->page < lo || t->page >= n_pages) {
        return tqe_snap_bad_range(err, field, off + 4, t->page, lo, n_pages - 1);
    }
    if (t->layer >= h->n_layers || h->layers[t->layer].donor != 0) {
        return tqe_snap_bad(err, field, off + 8, "part %u is of layer %u, which has no rows", i,
                            t->layer);
    }
    if (i > 0 && rank(t) <= rank(t - 1)) {
        return tqe_snap_bad(err, field, off, "part %u is out of order", i);
    }
    /* Packed pages hold all their tokens; f16 ones may end with the sinks. */
    const uint32_t left = end - t->page * TQ_PAGE_TOKENS;
    const uint32_t most = left < TQ_PAGE_TOKENS ? left : TQ_PAGE_TOKENS;
    const uint32_t least = t->form == TQ_FORM_PACKED ? most : 1;
    return t->n_tokens >= least && t->n_tokens <= most
               ? TQE_OK
               : tqe_snap_bad_range(err, field, off + 12, t->n_tokens, least, most);
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
        const uint64_t want = tqe_snap_part_bytes(&h->layers[t->layer], t->form, t->n_tokens);
        if (t->off != next_off || t->bytes != want) {
            return tqe_snap_bad(err, "page table", off + 16,
                                "part %u has %llu bytes at %llu, not %llu at %llu", i,
                                (unsigned long long)t->bytes, (unsigned long long)t->off,
                                (unsigned long long)want, (unsigned long long)next_off);
        }
        next_off += want;
    }
    if (next_off + TQE_SNAP_TRAILER_BYTES != h->file_bytes) {
        return tqe_snap_bad(err, "file length", 24,
                            "%llu bytes, where pages and trailer end at %llu",
                            (unsigned long long)h->file_bytes,
                            (unsigned long long)next_off + TQE_SNAP_TRAILER_BYTES);
    }
    return tqe_snap_check_zero(header, at->parts + (uint64_t)h->n_parts * TQE_SNAP_PART_BYTES,
                               at->end, "bytes after the page table", err);
}
tqe_status tqe_snap_decode_tables(tqe_snap *h, const uint8_t *header, tqe_error *err)
{
    const places at = place_tables(h, get32(header + 56));
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
        st = decode_scheme(h, header, &at, err);
    }
    if (st == TQE_OK) {
        st = decode_layers(h, header, &at, err);
    }
    if (st == TQE_OK) {
        st = decode_tokens(h, header, &at, err);
    }
    return st == TQE_OK ? decode_parts(h, header, &at, err) : st;
}
