/* SPDX-License-Identifier: MIT */
/* snapshot.c — session to file and back.
 *
 * Saving streams: pages are encoded, hashed and written one by one, and the header, which holds
 * their hashes, is written last over its own place. Loading is the other way round and in two
 * phases: the whole file is read and every byte of it checked in memory of its own; only then does
 * the session change, by steps that cannot fail for what the file holds.
 */
#include "snapshot.h"

#include "engine_priv.h"
#include "file_atomic.h"
#include "snapshot_format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Save ----------------------------------------------------------------------------------- */

tqe_status tqe_snap_describe(tqe_snap *h, tqe_session *s, tqe_error *err)
{
    const tqe_attn *a = tqe_session_attn(s);
    const tqe_model *m = tqe_session_model(s);
    tqe_session_info info;
    tqe_session_get_info(s, &info);
    memset(h, 0, sizeof(*h));
    h->n_layers = m->config.n_layers;
    h->n_vocab = m->config.n_vocab;
    (void)snprintf(h->scheme, sizeof(h->scheme), "%s", info.kv);
    size_t n = strlen(m->info.name);
    n = n < sizeof(h->model) ? n : sizeof(h->model) - 1;
    while (n > 0 && tqe_utf8_check(m->info.name, n) != n) {
        n--; /* a cut through a character */
    }
    memcpy(h->model, m->info.name, n);
    tqe_status st = tqe_session_ids(s, h->fingerprint, h->scheme_id, err);
    h->layers = calloc(h->n_layers, sizeof(*h->layers));
    if (h->layers == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; st == TQE_OK && i < h->n_layers; i++) {
        st = tqe_attn_describe(a, i, &h->layers[i], err);
    }
    return st;
}

/* Tokens, logits and the list of parts of the running timeline; hashes come with the bytes. */
static tqe_status add_timeline(tqe_snap *h, const tqe_session *s, tqe_error *err)
{
    const tqe_attn *a = tqe_session_attn(s);
    const uint32_t seq = tqe_attn_seq(a);
    const float *logits = tqe_session_logits(s);
    h->n_tokens = (uint32_t)tqe_session_len(s);
    h->flags = logits != NULL ? TQE_SNAP_HAS_LOGITS : 0;
    h->n_parts = tqe_attn_list_parts(a, seq, NULL);
    h->tokens = malloc(h->n_tokens * sizeof(*h->tokens));
    h->parts = calloc((size_t)h->n_parts + 1, sizeof(*h->parts));
    h->logits = logits != NULL ? malloc(h->n_vocab * sizeof(*logits)) : NULL;
    if (h->tokens == NULL || h->parts == NULL || (logits != NULL && h->logits == NULL)) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    memcpy(h->tokens, tqe_session_tokens(s), h->n_tokens * sizeof(*h->tokens));
    if (logits != NULL) {
        memcpy(h->logits, logits, h->n_vocab * sizeof(*logits));
    }
    (void)tqe_attn_list_parts(a, seq, h->parts);
    return TQE_OK;
}

/* Header, parts from get_part, header again with the hashes, trailer. */
typedef tqe_status part_fn(void *from, const tqe_snap_part *part, uint8_t *dst, tqe_error *err);

static tqe_status write_all(tqe_atomic_file *f, tqe_snap *h, part_fn *get_part, void *from,
                            uint8_t *header, uint8_t *part, tqe_error *err)
{
    uint8_t trailer[TQE_SNAP_TRAILER_BYTES];
    tqe_snap_encode(h, header, trailer);
    tqe_status st = tqe_atomic_write(f, header, (size_t)h->header_bytes, err);
    for (uint32_t i = 0; st == TQE_OK && i < h->n_parts; i++) {
        tqe_snap_part *t = &h->parts[i];
        st = get_part(from, t, part, err);
        if (st == TQE_OK) {
            tqe_hash128(t->hash, part, (size_t)t->bytes);
            st = tqe_atomic_write(f, part, (size_t)t->bytes, err);
        }
    }
    if (st == TQE_OK) {
        tqe_snap_encode(h, header, trailer);
        st = tqe_atomic_write(f, trailer, sizeof(trailer), err);
    }
    if (st == TQE_OK) {
        st = tqe_atomic_write_at(f, header, (size_t)h->header_bytes, 0, err);
    }
    return st;
}

static tqe_status write_file(const char *path, tqe_snap *h, part_fn *get_part, void *from,
                             tqe_error *err)
{
    tqe_atomic_file f;
    const uint64_t largest = tqe_snap_place(h);
    uint8_t *header = malloc((size_t)h->header_bytes);
    uint8_t *part = malloc((size_t)largest + 1);
    tqe_status st = TQE_OK;
    if (header == NULL || part == NULL) {
        st = tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a snapshot");
    } else if ((st = tqe_atomic_open(&f, path, 0666, err)) == TQE_OK) {
        (void)tqe_atomic_sweep(f.dir_fd);
        st = write_all(&f, h, get_part, from, header, part, err);
        if (st == TQE_OK) {
            st = tqe_atomic_commit(&f, true, err);
        } else {
            tqe_atomic_discard(&f);
        }
    }
    free(header);
    free(part);
    return st;
}

static tqe_status part_of_session(void *from, const tqe_snap_part *part, uint8_t *dst,
                                  tqe_error *err)
{
    return tqe_attn_export(from, tqe_attn_seq(from), part, dst, err);
}

tqe_status tqe_session_save(tqe_session *s, const char *path, tqe_error *err)
{
    if (s == NULL || path == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no session or no path");
    }
    if (tqe_session_len(s) == 0) {
        return tqe_fail(err, TQE_ERR_ARG, "cannot save '%s': the session is empty", path);
    }
    tqe_snap h;
    tqe_status st = tqe_snap_describe(&h, s, err);
    if (st == TQE_OK) {
        st = add_timeline(&h, s, err);
    }
    if (st == TQE_OK) {
        st = write_file(path, &h, part_of_session, tqe_session_attn(s), err);
    }
    tqe_snap_free(&h);
    return st;
}

/* ---- Open ----------------------------------------------------------------------------------- */

struct tqe_snapshot {
    tqe_snap head;
    char *path;
    int fd;
};

/* What the decoder said, with the file's name before it. */
static tqe_status with_path(const char *path, tqe_status st, const tqe_error *inner, tqe_error *err)
{
    return st == TQE_OK ? st : tqe_fail(err, st, "'%s': %s", path, inner->text);
}

static tqe_status read_header(tqe_snapshot *f, uint64_t size, tqe_error *err)
{
    uint8_t fixed[TQE_SNAP_FIXED_BYTES];
    uint8_t trailer[TQE_SNAP_TRAILER_BYTES];
    tqe_error inner = {TQE_OK, ""};
    if (size < TQE_SNAP_FIXED_BYTES + TQE_SNAP_TRAILER_BYTES) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "'%s': not a snapshot, or a truncated one: %llu bytes are no header",
                        f->path, (unsigned long long)size);
    }
    tqe_status st = tqe_file_read(f->fd, fixed, sizeof(fixed), 0, f->path, "the header", err);
    if (st != TQE_OK) {
        return st;
    }
    st = tqe_snap_decode_fixed(&f->head, fixed, size, &inner);
    if (st != TQE_OK) {
        return with_path(f->path, st, &inner, err);
    }
    /* Not larger than the file: decode_fixed has seen to that. */
    uint8_t *header = malloc((size_t)f->head.header_bytes);
    if (header == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the header of '%s'", f->path);
    }
    st = tqe_file_read(f->fd, header, (size_t)f->head.header_bytes, 0, f->path, "the header", err);
    if (st == TQE_OK) {
        st = tqe_file_read(f->fd, trailer, sizeof(trailer), size - sizeof(trailer), f->path,
                           "the trailer", err);
    }
    /* The tables are laid out by the counts of the second reading: they must be the first's. */
    if (st == TQE_OK && memcmp(fixed, header, sizeof(fixed)) != 0) {
        st = tqe_fail(err, TQE_ERR_FORMAT, "'%s' changed while it was read", f->path);
    }
    if (st == TQE_OK) {
        st = with_path(f->path, tqe_snap_decode(&f->head, header, trailer, &inner), &inner, err);
    }
    free(header);
    return st;
}

tqe_status tqe_snapshot_open(tqe_snapshot **out, const char *path, tqe_error *err)
{
    if (out == NULL || path == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no path");
    }
    *out = NULL;
    tqe_snapshot *f = calloc(1, sizeof(*f));
    if (f == NULL || (f->path = strdup(path)) == NULL) {
        free(f);
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    uint64_t size = 0;
    tqe_status st = tqe_file_open(&f->fd, &size, path, err);
    if (st == TQE_OK) {
        (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        st = read_header(f, size, err);
    }
    if (st != TQE_OK) {
        tqe_snapshot_close(f);
        return st;
    }
    *out = f;
    return TQE_OK;
}

void tqe_snapshot_close(tqe_snapshot *f)
{
    if (f == NULL) {
        return;
    }
    if (f->fd >= 0) {
        (void)close(f->fd);
    }
    tqe_snap_free(&f->head);
    free(f->path);
    free(f);
}

/* ---- Parts ---------------------------------------------------------------------------------- */

/* Reads parts in order, many small ones with one call. */
typedef struct reader {
    const tqe_snapshot *f;
    uint32_t next;  /* part that is asked for */
    uint32_t ready; /* parts before this one are in buf */
    uint64_t buf_off;
    size_t cap;
    uint8_t *buf;
} reader;

#define READ_BYTES ((uint64_t)1 << 20)

static tqe_status reader_init(reader *r, const tqe_snapshot *f, tqe_error *err)
{
    uint64_t cap = READ_BYTES;
    for (uint32_t i = 0; i < f->head.n_parts; i++) {
        cap = f->head.parts[i].bytes > cap ? f->head.parts[i].bytes : cap;
    }
    *r = (reader){.f = f, .cap = (size_t)cap, .buf = malloc((size_t)cap)};
    return r->buf != NULL ? TQE_OK
                          : tqe_fail(err, TQE_ERR_NOMEM, "out of memory to read '%s'", f->path);
}

static tqe_status fill(reader *r, tqe_error *err)
{
    const tqe_snap *h = &r->f->head;
    uint64_t n = 0;
    r->buf_off = h->parts[r->next].off;
    r->ready = r->next;
    while (r->ready < h->n_parts && n + h->parts[r->ready].bytes <= r->cap) {
        n += h->parts[r->ready++].bytes;
    }
    return tqe_file_read(r->f->fd, r->buf, (size_t)n, r->buf_off, r->f->path, "a page", err);
}

/* The next part, against its checksum. */
static tqe_status read_part(reader *r, const uint8_t **bytes, tqe_error *err)
{
    const tqe_snap_part *t = &r->f->head.parts[r->next];
    uint8_t hash[TQE_SNAP_HASH_BYTES];
    if (r->next >= r->ready) {
        const tqe_status st = fill(r, err);
        if (st != TQE_OK) {
            return st;
        }
    }
    r->next++;
    *bytes = r->buf + (t->off - r->buf_off);
    tqe_hash128(hash, *bytes, (size_t)t->bytes);
    if (memcmp(hash, t->hash, sizeof(hash)) != 0) {
        tqe_error inner;
        return with_path(r->f->path, tqe_snap_bad_part(t, &inner), &inner, err);
    }
    return TQE_OK;
}

/* For the import: the next part of the file must be the one that the cache wants. */
static tqe_status give_part(void *ctx, const tqe_snap_part *want, const uint8_t **bytes,
                            tqe_error *err)
{
    reader *r = ctx;
    const tqe_snap *h = &r->f->head;
    const tqe_snap_part *t = r->next < h->n_parts ? &h->parts[r->next] : NULL;
    if (want == NULL && t == NULL) {
        return TQE_OK;
    }
    if (want == NULL || t == NULL) {
        return tqe_fail(err, TQE_ERR_FORMAT, "'%s': damaged snapshot: page table: part %u is %s",
                        r->f->path, r->next, t != NULL ? "one too many" : "missing");
    }
    if (t->form != want->form || t->page != want->page || t->layer != want->layer ||
        t->bytes != want->bytes) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "'%s': damaged snapshot: page table: part %u is page %u of layer %u%s, not "
                        "page %u of layer %u%s",
                        r->f->path, r->next, t->page, t->layer,
                        t->form == TQ_FORM_F16 ? " in f16" : "", want->page, want->layer,
                        want->form == TQ_FORM_F16 ? " in f16" : "");
    }
    return read_part(r, bytes, err);
}

/* ---- Load ----------------------------------------------------------------------------------- */

/* Two names that differ, short enough to read. */
static const char *hex(char dst[2 * TQE_ID_BYTES + 1], const uint8_t id[TQE_ID_BYTES], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(dst + 2 * i, 3, "%02x", id[i]);
    }
    return dst;
}

/* Does the snapshot belong to this session? `want` is what the session would save. */
static tqe_status check_match(const tqe_snapshot *f, const tqe_session *s, const tqe_snap *want,
                              tqe_error *err)
{
    const tqe_snap *h = &f->head;
    char a[2 * TQE_ID_BYTES + 1], b[2 * TQE_ID_BYTES + 1];
    tqe_session_info info;
    tqe_session_get_info(s, &info);
    if (h->kind != TQE_SNAP_TIMELINE) {
        return tqe_fail(
            err, TQE_ERR_FORMAT,
            "'%s' is a file of a prefix store, not a snapshot: the store takes it up by "
            "itself",
            f->path);
    }
    if (memcmp(h->fingerprint, want->fingerprint, TQE_ID_BYTES) != 0) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "'%s' is a snapshot of another model: '%s', fingerprint %s...; this one is "
                        "'%s', %s...",
                        f->path, h->model, hex(a, h->fingerprint, 8), want->model,
                        hex(b, want->fingerprint, 8));
    }
    if (!tqe_scheme_same(h->scheme, want->scheme)) {
        return tqe_fail(err, TQE_ERR_SCHEME,
                        "'%s' is a snapshot with the KV scheme %s; this session has %s", f->path,
                        h->scheme, want->scheme);
    }
    if (memcmp(h->scheme_id, want->scheme_id, TQE_ID_BYTES) != 0) {
        return tqe_scheme_other_files(want->scheme, f->path, err);
    }
    if (h->n_layers != want->n_layers || h->n_vocab != want->n_vocab) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "'%s': %u layers and a vocabulary of %u; this model has %u and %u", f->path,
                        h->n_layers, h->n_vocab, want->n_layers, want->n_vocab);
    }
    for (uint32_t i = 0; i < h->n_layers; i++) {
        if (memcmp(&h->layers[i], &want->layers[i], sizeof(h->layers[i])) != 0) {
            return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                            "'%s': layer %u has another geometry, format or rotation than this "
                            "session's",
                            f->path, i);
        }
    }
    if (h->n_tokens > info.n_ctx) {
        return tqe_fail(err, TQE_ERR_FULL,
                        "'%s' holds %u tokens, more than the context of %u: raise it", f->path,
                        h->n_tokens, info.n_ctx);
    }
    return TQE_OK;
}

static tqe_status load(tqe_session *s, const tqe_snapshot *f, tqe_error *err)
{
    const tqe_snap *h = &f->head;
    reader r;
    tqe_status st = reader_init(&r, f, err);
    if (st == TQE_OK) {
        st = tqe_attn_import(tqe_session_attn(s), h->n_tokens, give_part, &r, err);
    }
    if (st == TQE_OK) {
        tqe_session_restored(s, h->tokens, h->n_tokens, h->logits);
    }
    free(r.buf);
    return st;
}

tqe_status tqe_session_load(tqe_session *s, const char *path, tqe_error *err)
{
    if (s == NULL || path == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no session or no path");
    }
    tqe_snapshot *f = NULL;
    tqe_status st = tqe_snapshot_open(&f, path, err);
    if (st != TQE_OK) {
        return st;
    }
    tqe_snap want;
    st = tqe_snap_describe(&want, s, err);
    if (st == TQE_OK) {
        st = check_match(f, s, &want, err);
    }
    tqe_snap_free(&want);
    if (st == TQE_OK) {
        st = load(s, f, err);
    }
    tqe_snapshot_close(f);
    return st;
}

/* ---- Without a model ------------------------------------------------------------------------ */

void tqe_snapshot_get_info(const tqe_snapshot *f, tqe_snapshot_info *info)
{
    const tqe_snap *h = &f->head;
    memset(info, 0, sizeof(*info));
    info->kind = (tqe_snapshot_kind)h->kind;
    info->first = h->first;
    memcpy(info->model, h->model, sizeof(info->model));
    memcpy(info->scheme, h->scheme, sizeof(info->scheme));
    (void)hex(info->fingerprint, h->fingerprint, TQE_ID_BYTES);
    info->n_tokens = h->n_tokens;
    info->n_layers = h->n_layers;
    info->n_vocab = h->n_vocab;
    info->has_logits = h->logits != NULL;
    info->file_bytes = h->file_bytes;
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; i < h->n_parts; i++) {
        const tqe_snap_part *t = &h->parts[i];
        if (t->form == TQ_FORM_PACKED) {
            info->n_pages += t->page != last;
            info->packed_bytes += t->bytes;
            last = t->page;
        } else {
            info->f16_bytes += t->bytes;
        }
    }
}

void tqe_snapshot_get_layer(const tqe_snapshot *f, uint32_t layer, tqe_snapshot_layer *out)
{
    const tqe_snap_layer *l = &f->head.layers[layer];
    *out = (tqe_snapshot_layer){
        .n_kv_heads = l->n_kv_heads, .d_k = l->d_k, .d_v = l->d_v, .window = l->window};
    /* Cannot fail: the decoder has tried the same. */
    (void)tq_codec_init(&out->k_codec, (tq_format)l->k_format, l->d_k, l->k_flags, TQ_ISA_ALL);
    (void)tq_codec_init(&out->v_codec, (tq_format)l->v_format, l->d_v, l->v_flags, TQ_ISA_ALL);
}

tqe_status tqe_snapshot_find_scheme(const tqe_snapshot *f, char kv[TQ_SCHEME_TEXT_BYTES],
                                    tqe_error *err)
{
    return tqe_scheme_find_files(f->head.scheme, f->head.scheme_id, f->path, kv, err);
}

const int32_t *tqe_snapshot_tokens(const tqe_snapshot *f)
{
    return f->head.tokens;
}

const float *tqe_snapshot_logits(const tqe_snapshot *f)
{
    return f->head.logits;
}

tqe_status tqe_snapshot_verify(const tqe_snapshot *f, tqe_error *err)
{
    reader r;
    const uint8_t *bytes;
    tqe_status st = reader_init(&r, f, err);
    while (st == TQE_OK && r.next < f->head.n_parts) {
        st = read_part(&r, &bytes, err);
    }
    free(r.buf);
    return st;
}

/* Decode one side of one KV head of a part: its planes are codes, scales, zero points. */
static void decode_rows(const tq_codec *c, const uint8_t *planes, uint32_t n, uint8_t *block,
                        float *dst)
{
    const size_t sizes[3] = {c->code_bytes, c->scale_bytes, c->zero_bytes};
    for (uint32_t j = 0; j < n; j++) {
        const uint8_t *plane = planes;
        uint8_t *to = block;
        for (int k = 0; k < 3; k++) {
            memcpy(to, plane + j * sizes[k], sizes[k]);
            to += sizes[k];
            plane += n * sizes[k];
        }
        (void)tq_codec_decode(c, dst + (size_t)j * c->dim, c->dim, block, c->block_bytes, 1);
    }
}

tqe_status tqe_snapshot_rows(const tqe_snapshot *f, uint32_t layer, uint32_t kv_head, int is_value,
                             float *dst, tqe_error *err)
{
    const tqe_snap *h = &f->head;
    if (h->kind != TQE_SNAP_TIMELINE) { /* its tokens do not begin at position 0 */
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "'%s' is a file of a prefix store: only whole snapshots give rows",
                        f->path);
    }
    if (layer >= h->n_layers) {
        return tqe_fail(err, TQE_ERR_ARG, "'%s' has layers 0 to %u", f->path, h->n_layers - 1);
    }
    tqe_snapshot_layer l;
    tqe_snapshot_get_layer(f, layer, &l);
    const uint32_t stored_by = h->layers[layer].donor != 0 ? h->layers[layer].donor - 1 : layer;
    if (kv_head >= l.n_kv_heads) {
        return tqe_fail(err, TQE_ERR_ARG, "layer %u of '%s' has KV heads 0 to %u", layer, f->path,
                        l.n_kv_heads - 1);
    }
    const tq_codec *c = is_value ? &l.v_codec : &l.k_codec;
    const size_t pair = l.k_codec.block_bytes + l.v_codec.block_bytes;
    const size_t skip = is_value ? l.k_codec.block_bytes : 0;
    uint8_t *block = malloc(c->block_bytes);
    reader r;
    uint32_t next = 0;
    tqe_status st = reader_init(&r, f, err);
    if (st == TQE_OK && block == NULL) {
        st = tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    while (st == TQE_OK && r.next < h->n_parts) {
        const tqe_snap_part *t = &h->parts[r.next];
        const uint8_t *bytes;
        st = read_part(&r, &bytes, err);
        if (st == TQE_OK && t->form == TQ_FORM_PACKED && t->layer == stored_by && t->page == next) {
            decode_rows(c, bytes + t->n_tokens * (kv_head * pair + skip), t->n_tokens, block,
                        dst + (size_t)t->page * TQ_PAGE_TOKENS * c->dim);
            next++;
        }
    }
    free(r.buf);
    free(block);
    if (st == TQE_OK && (uint64_t)next * TQ_PAGE_TOKENS < h->n_tokens) {
        st = tqe_fail(err, TQE_ERR_UNSUPPORTED,
                      "'%s' does not hold packed rows of all tokens of layer %u", f->path, layer);
    }
    return st;
}

static tqe_status part_of_file(void *from, const tqe_snap_part *part, uint8_t *dst, tqe_error *err)
{
    reader *r = from;
    const uint8_t *bytes = NULL;
    const tqe_status st = read_part(r, &bytes, err);
    if (st == TQE_OK) {
        memcpy(dst, bytes, (size_t)part->bytes);
    }
    return st;
}

tqe_status tqe_snapshot_compact(const tqe_snapshot *f, const char *path, tqe_error *err)
{
    tqe_snap h = f->head;
    reader r;
    h.flags &= ~TQE_SNAP_HAS_LOGITS;
    h.logits = NULL;
    h.parts = malloc(((size_t)h.n_parts + 1) * sizeof(*h.parts));
    tqe_status st =
        h.parts != NULL ? reader_init(&r, f, err) : tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    if (st == TQE_OK) {
        memcpy(h.parts, f->head.parts, h.n_parts * sizeof(*h.parts));
        st = write_file(path, &h, part_of_file, &r, err);
        free(r.buf);
    }
    free(h.parts);
    return st;
}
