/* SPDX-License-Identifier: MIT */
/* prefix_store.c — prompts that begin alike are computed once.
 *
 * A prompt is cut into pages of 64 tokens. The key of a page is a keyed BLAKE2b hash over the key
 * of the page before it and the page's tokens, and the first key in that chain is made of the
 * tenant's salt, the model's fingerprint, the scheme, the geometry and the versions. So one key
 * stands for a whole prompt up to there, computed by one model in one way for one tenant; whoever
 * does not know the salt cannot make or guess it.
 *
 * The hard part is what a page is not enough for. Rows that every later query reads in packed form
 * belong to the page. Everything else that the next query reads (rows that are f16 as long as they
 * are new, windowed layers) depends on where the prompt ends: it is stored for some ends only, and
 * only there a prompt can be taken up again. Ends are the last page of a prompt and every few pages
 * before. A prompt is evaluated in batches that stop there, with a hit or without one: then both
 * compute what follows in batches of the same shape, and to the same bits.
 */
#include "snapshot.h"

#include "engine_priv.h"
#include "file_atomic.h"
#include "prefix_disk.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_LIMIT ((uint64_t)4 << 30)
#define DEFAULT_QUEUE ((uint64_t)64 << 20)
#define DEFAULT_EVERY 8u

struct tqe_prefix {
    uint8_t salt[TQE_ID_BYTES];
    uint32_t every_pages;
    tqe_disk *disk; /* or NULL */
    tqe_prefix_stats stats;
};

/* One prompt on its way through the store. */
typedef struct job {
    tqe_prefix *p;
    tqe_session *s;
    const int32_t *ids;
    uint32_t n;
    tqe_snap head;   /* what every file of this session says */
    bool has_pages;  /* some rows belong to pages */
    bool needs_ends; /* others do not */
    uint8_t root[TQE_ID_BYTES];
    uint8_t (*keys)[TQE_ID_BYTES]; /* [n_pages], of the pages before the last token */
    uint32_t n_pages;
    struct timespec began; /* when the prompt came */
    bool distrust;         /* a file could not be used */
} job;

/* ---- Keys ----------------------------------------------------------------------------------- */

static void put_le32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static void make_root(job *j)
{
    static const uint8_t what[] = "tq prefix 1";
    crypto_generichash_state st;
    uint8_t versions[8];
    put_le32(versions, TQE_SNAP_VERSION);
    put_le32(versions + 4, TQ_FORMAT_VERSION);
    (void)crypto_generichash_init(&st, j->p->salt, sizeof(j->p->salt), TQE_ID_BYTES);
    (void)crypto_generichash_update(&st, what, sizeof(what));
    (void)crypto_generichash_update(&st, versions, sizeof(versions));
    (void)crypto_generichash_update(&st, j->head.fingerprint, TQE_ID_BYTES);
    (void)crypto_generichash_update(&st, j->head.scheme_id, TQE_ID_BYTES);
    for (uint32_t i = 0; i < j->head.n_layers; i++) {
        const tqe_snap_layer *l = &j->head.layers[i];
        const uint32_t fields[] = {l->n_kv_heads, l->d_k,      l->d_v,     l->window,
                                   l->k_format,   l->v_format, l->k_flags, l->v_flags,
                                   l->sink,       l->tail,     l->start,   l->donor};
        const uint64_t ids[2] = {l->k_decoder, l->v_decoder};
        uint8_t bytes[sizeof(fields) + 16];
        for (size_t k = 0; k < sizeof(fields) / 4; k++) {
            put_le32(bytes + 4 * k, fields[k]);
        }
        for (size_t k = 0; k < 2; k++) {
            put_le32(bytes + sizeof(fields) + 8 * k, (uint32_t)ids[k]);
            put_le32(bytes + sizeof(fields) + 8 * k + 4, (uint32_t)(ids[k] >> 32));
        }
        (void)crypto_generichash_update(&st, bytes, sizeof(bytes));
    }
    (void)crypto_generichash_final(&st, j->root, TQE_ID_BYTES);
}

static void make_keys(job *j)
{
    const uint8_t *before = j->root;
    for (uint32_t i = 0; i < j->n_pages; i++) {
        uint8_t text[TQE_ID_BYTES + 4 * TQ_PAGE_TOKENS];
        memcpy(text, before, TQE_ID_BYTES);
        for (uint32_t t = 0; t < TQ_PAGE_TOKENS; t++) {
            put_le32(text + TQE_ID_BYTES + 4 * t, (uint32_t)j->ids[i * TQ_PAGE_TOKENS + t]);
        }
        (void)crypto_generichash(j->keys[i], TQE_ID_BYTES, text, sizeof(text), j->root,
                                 sizeof(j->root));
        before = j->keys[i];
    }
}

/* ---- Files ---------------------------------------------------------------------------------- */

/* Rows that every later query reads as they are. */
static bool in_page(const tqe_snap *h, const tqe_snap_part *t)
{
    return t->form == TQ_FORM_PACKED && h->layers[t->layer].window == 0;
}

/* A limit that no page fits is said with the first prompt, be it shorter than a page. */
static tqe_status check_limit(const job *j, tqe_error *err)
{
    tqe_snap h = j->head;
    h.kind = TQE_SNAP_PAGE;
    h.n_tokens = TQ_PAGE_TOKENS;
    h.n_parts = 0;
    h.parts = calloc((size_t)h.n_layers + 1, sizeof(*h.parts));
    if (h.parts == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < h.n_layers; i++) {
        const tqe_snap_layer *l = &h.layers[i];
        if (l->window == 0 && l->donor == 0) {
            h.parts[h.n_parts++].bytes = tqe_snap_part_bytes(l, TQ_FORM_PACKED, TQ_PAGE_TOKENS);
        }
    }
    (void)tqe_snap_place(&h);
    (void)tqe_disk_takes(j->p->disk, h.file_bytes);
    free(h.parts);
    return TQE_OK;
}

/* A file of some parts of the running timeline, in memory. */
static tqe_status build(const job *j, tqe_snap_kind kind, uint32_t page, tqe_snap_part *parts,
                        uint32_t n_parts, uint8_t **bytes, size_t *n, tqe_error *err)
{
    const tqe_attn *a = tqe_session_attn(j->s);
    uint8_t trailer[TQE_SNAP_TRAILER_BYTES];
    tqe_snap h = j->head;
    h.kind = (uint32_t)kind;
    h.first = page * TQ_PAGE_TOKENS;
    h.n_tokens = TQ_PAGE_TOKENS;
    h.tokens = (int32_t *)(uintptr_t)(j->ids + h.first); /* only read */
    h.parts = parts;
    h.n_parts = n_parts;
    memcpy(h.key, j->keys[page], TQE_ID_BYTES);
    (void)tqe_snap_place(&h);
    uint8_t *file = malloc((size_t)h.file_bytes);
    if (file == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a page");
    }
    tqe_status st = TQE_OK;
    for (uint32_t i = 0; st == TQE_OK && i < n_parts; i++) {
        uint8_t *at = file + parts[i].off;
        st = tqe_attn_export(a, tqe_attn_seq(a), &parts[i], at, err);
        tqe_hash128(parts[i].hash, at, (size_t)parts[i].bytes);
    }
    tqe_snap_encode(&h, file, trailer);
    memcpy(file + h.file_bytes - sizeof(trailer), trailer, sizeof(trailer));
    if (st != TQE_OK) {
        free(file);
        return st;
    }
    *bytes = file;
    *n = (size_t)h.file_bytes;
    return TQE_OK;
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* A file that was read and whose every byte is checked. */
typedef struct loaded {
    uint8_t *bytes;
    tqe_snap head;
    uint32_t next; /* part to give */
} loaded;

static void unload(loaded *f)
{
    if (f->bytes != NULL) {
        tqe_snap_free(&f->head);
        free(f->bytes);
    }
    *f = (loaded){0};
}

static bool is_of_another(const char *what, tqe_error *err)
{
    if (what != NULL) {
        (void)tqe_fail(err, TQE_ERR_FORMAT, "it is of another %s than its name says", what);
    }
    return what != NULL;
}

/* Each file says itself what it is: nothing is concluded from its name or from the first page. What
 * the fixed part says comes first: it bounds the tables. */
static bool fixed_belongs(const job *j, const tqe_snap *h, tqe_snap_kind kind, uint32_t page,
                          tqe_error *err)
{
    const char *what = h->kind != (uint32_t)kind                                        ? "kind"
                       : memcmp(h->key, j->keys[page], TQE_ID_BYTES) != 0               ? "key"
                       : memcmp(h->fingerprint, j->head.fingerprint, TQE_ID_BYTES) != 0 ? "model"
                       : memcmp(h->scheme_id, j->head.scheme_id, TQE_ID_BYTES) != 0     ? "scheme"
                       : h->n_vocab != j->head.n_vocab || h->n_layers != j->head.n_layers
                           ? "geometry"
                       : h->first != page * TQ_PAGE_TOKENS ? "position"
                                                           : NULL;
    if (is_of_another(what, err)) {
        return false;
    }
    const uint64_t most =
        (uint64_t)h->n_layers * (kind == TQE_SNAP_PAGE ? 1 : 2 * ((uint64_t)page + 1));
    if (h->n_parts > most) {
        (void)tqe_fail(err, TQE_ERR_FORMAT, "it has %u parts, where there are at most %llu",
                       h->n_parts, (unsigned long long)most);
        return false;
    }
    return true;
}

static bool tables_belong(const job *j, const tqe_snap *h, tqe_error *err)
{
    const char *what =
        !tqe_scheme_same(h->scheme, j->head.scheme)                                   ? "scheme"
        : memcmp(h->layers, j->head.layers, h->n_layers * sizeof(*h->layers)) != 0    ? "geometry"
        : memcmp(h->tokens, j->ids + h->first, h->n_tokens * sizeof(*h->tokens)) != 0 ? "token"
                                                                                      : NULL;
    return !is_of_another(what, err);
}

/* Fixed part, tables, parts: memory is taken for each only when what came before it has said that
 * so much must be there. So the size of a file alone makes nobody allocate or read. */
static tqe_status read_file(const job *j, tqe_snap_kind kind, uint32_t page, int fd, uint64_t size,
                            loaded *f, tqe_error *err)
{
    static const char name[] = "the page";
    uint8_t fixed[TQE_SNAP_FIXED_BYTES], trailer[TQE_SNAP_TRAILER_BYTES];
    tqe_snap *h = &f->head;
    if (size < sizeof(fixed) + sizeof(trailer)) {
        return tqe_fail(err, TQE_ERR_FORMAT, "it is truncated: %llu bytes are no header",
                        (unsigned long long)size);
    }
    tqe_status st = tqe_file_read(fd, fixed, sizeof(fixed), 0, name, "the header", err);
    if (st == TQE_OK) {
        st = tqe_snap_decode_fixed(h, fixed, size, err);
    }
    if (st == TQE_OK && !fixed_belongs(j, h, kind, page, err)) {
        st = TQE_ERR_FORMAT;
    }
    if (st != TQE_OK) {
        return st;
    }
    const size_t n_header = (size_t)h->header_bytes;
    uint8_t *bytes = malloc(n_header);
    if (bytes == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a page");
    }
    st = tqe_file_read(fd, bytes, n_header, 0, name, "the header", err);
    if (st == TQE_OK) {
        st = tqe_file_read(fd, trailer, sizeof(trailer), size - sizeof(trailer), name,
                           "the trailer", err);
    }
    /* The tables are laid out by the counts of the second reading: they must be the first's. */
    if (st == TQE_OK && memcmp(fixed, bytes, sizeof(fixed)) != 0) {
        st = tqe_fail(err, TQE_ERR_FORMAT, "it changed while it was read");
    }
    if (st != TQE_OK || (st = tqe_snap_decode(h, bytes, trailer, err)) != TQE_OK) {
        free(bytes);
        return st;
    }
    /* From here on h has tables: unload frees them with the bytes. */
    f->bytes = bytes;
    if (!tables_belong(j, h, err)) {
        return TQE_ERR_FORMAT;
    }
    bytes = realloc(bytes, (size_t)size);
    if (bytes == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a page");
    }
    f->bytes = bytes;
    st =
        tqe_file_read(fd, bytes + n_header, (size_t)size - n_header, n_header, name, "a part", err);
    for (uint32_t i = 0; st == TQE_OK && i < h->n_parts; i++) {
        uint8_t hash[TQE_SNAP_HASH_BYTES];
        tqe_hash128(hash, bytes + h->parts[i].off, (size_t)h->parts[i].bytes);
        if (memcmp(hash, h->parts[i].hash, sizeof(hash)) != 0) {
            st = tqe_snap_bad_part(&h->parts[i], err);
        }
    }
    return st;
}

/* False: there is no such file, or it was set aside, or cannot be read. */
static bool load(const job *j, tqe_disk_kind kind, uint32_t page, loaded *f)
{
    tqe_disk *disk = j->p->disk;
    tqe_error err = {TQE_OK, ""};
    uint64_t size = 0;
    int fd = -1;
    unload(f);
    if (!tqe_disk_open_file(disk, kind, j->keys[page], &fd, &size)) {
        return false;
    }
    const tqe_status st =
        read_file(j, kind == TQE_DISK_PAGE ? TQE_SNAP_PAGE : TQE_SNAP_END, page, fd, size, f, &err);
    (void)close(fd);
    if (st == TQE_OK) {
        return true;
    }
    unload(f);
    if (st == TQE_ERR_IO) {
        tqe_disk_complain(disk, err.text);
    } else if (st != TQE_ERR_NOMEM) { /* memory is not the file's fault */
        tqe_disk_set_aside(disk, kind, j->keys[page], err.text);
    }
    return false;
}

typedef struct restore {
    const job *j;
    uint32_t n_pages;
    uint32_t at; /* page that `page` holds */
    loaded page, end;
    uint32_t bad; /* page at which it failed */
} restore;

static tqe_status give(void *ctx, const tqe_snap_part *part, const uint8_t **bytes, tqe_error *err)
{
    restore *r = ctx;
    if (part == NULL) {
        return TQE_OK;
    }
    const bool page = in_page(&r->j->head, part);
    loaded *f = page ? &r->page : &r->end;
    if (page && (f->bytes == NULL || r->at != part->page)) {
        r->at = part->page;
        r->bad = part->page;
        if (!load(r->j, TQE_DISK_PAGE, part->page, f)) {
            return tqe_fail(err, TQE_ERR_IO, "page %u is gone", part->page);
        }
    }
    if (!page && f->bytes == NULL) {
        r->bad = r->n_pages - 1;
        if (!load(r->j, TQE_DISK_END, r->n_pages - 1, f)) {
            return tqe_fail(err, TQE_ERR_IO, "end %u is gone", r->n_pages - 1);
        }
    }
    const tqe_snap_part *t = f->next < f->head.n_parts ? &f->head.parts[f->next] : NULL;
    if (t == NULL || t->form != part->form || t->page != part->page || t->layer != part->layer ||
        t->bytes != part->bytes) {
        tqe_disk_set_aside(r->j->p->disk, page ? TQE_DISK_PAGE : TQE_DISK_END,
                           r->j->keys[page ? part->page : r->n_pages - 1],
                           "it lacks rows that the cache needs");
        return tqe_fail(err, TQE_ERR_FORMAT, "page %u is incomplete", part->page);
    }
    f->next++;
    *bytes = f->bytes + t->off;
    return TQE_OK;
}

static tqe_disk_use use_of(const job *j, uint32_t order)
{
    return (tqe_disk_use){j->began, order};
}

/* Pages on the disk that the prompt can be taken up after, up to `most`. */
static uint32_t pages_on_disk(const job *j, uint32_t most)
{
    const tqe_disk *disk = j->p->disk;
    uint32_t best = 0;
    for (uint32_t k = 1; k <= most; k++) {
        if (j->has_pages && !tqe_disk_has(disk, TQE_DISK_PAGE, j->keys[k - 1])) {
            break;
        }
        if (!j->needs_ends || tqe_disk_has(disk, TQE_DISK_END, j->keys[k - 1])) {
            best = k;
        }
    }
    return best;
}

/* Take the prompt up from the disk when that gives more than n_have tokens. Returns the tokens, or
 * 0 when the session is as it was. */
static uint32_t resume_from_disk(job *j, uint32_t n_have)
{
    uint32_t most = j->n_pages;
    while (j->p->disk != NULL) {
        const uint32_t k = pages_on_disk(j, most);
        if (k * TQ_PAGE_TOKENS <= n_have) {
            return 0;
        }
        restore r = {.j = j, .n_pages = k, .bad = k - 1};
        tqe_error err;
        const tqe_status st =
            tqe_attn_import(tqe_session_attn(j->s), k * TQ_PAGE_TOKENS, give, &r, &err);
        unload(&r.page);
        unload(&r.end);
        if (st == TQE_OK) {
            for (uint32_t i = 0; i < k; i++) {
                tqe_disk_touch(j->p->disk, TQE_DISK_PAGE, j->keys[i], use_of(j, i));
            }
            tqe_disk_touch(j->p->disk, TQE_DISK_END, j->keys[k - 1], use_of(j, k));
            return k * TQ_PAGE_TOKENS;
        }
        if (st == TQE_ERR_NOMEM || st == TQE_ERR_FULL) {
            return 0;
        }
        j->distrust = true;
        most = r.bad < k ? r.bad : k - 1; /* always less than before */
    }
    return 0;
}

/* ---- Storing -------------------------------------------------------------------------------- */

/* Need the file not be written? One bad file is seldom alone: after a failed read the others are
 * read before their presence counts, and all that are bad are mended by one prompt. */
static bool is_stored(const job *j, tqe_disk_kind kind, uint32_t page)
{
    loaded f = {0};
    if (!tqe_disk_has(j->p->disk, kind, j->keys[page])) {
        return false;
    }
    const bool ok = !j->distrust || load(j, kind, page, &f);
    unload(&f);
    return ok;
}

/* Store what the timeline, which ends with page `end`, adds: its pages, and its end. */
static void store(const job *j, uint32_t *n_stored, uint32_t end)
{
    tqe_disk *disk = j->p->disk;
    const tqe_attn *a = tqe_session_attn(j->s);
    tqe_error err;
    if (disk == NULL || end == 0) {
        return;
    }
    const uint32_t n_all = tqe_attn_list_parts(a, tqe_attn_seq(a), NULL);
    tqe_snap_part *all = malloc(((size_t)n_all + 1) * sizeof(*all));
    tqe_snap_part *some = malloc(((size_t)n_all + 1) * sizeof(*some));
    if (all != NULL && some != NULL) {
        uint8_t *bytes = NULL;
        size_t n_bytes = 0;
        (void)tqe_attn_list_parts(a, tqe_attn_seq(a), all);
        for (uint32_t page = *n_stored; j->has_pages && page < end; page++) {
            uint32_t n = 0;
            for (uint32_t i = 0; i < n_all; i++) {
                if (all[i].page == page && in_page(&j->head, &all[i])) {
                    some[n++] = all[i];
                }
            }
            if (!is_stored(j, TQE_DISK_PAGE, page) &&
                build(j, TQE_SNAP_PAGE, page, some, n, &bytes, &n_bytes, &err) == TQE_OK) {
                (void)tqe_disk_put(disk, TQE_DISK_PAGE, j->keys[page], bytes, n_bytes,
                                   use_of(j, page));
            }
        }
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_all; i++) {
            if (!in_page(&j->head, &all[i])) {
                some[n++] = all[i];
            }
        }
        if (j->needs_ends && !is_stored(j, TQE_DISK_END, end - 1) &&
            build(j, TQE_SNAP_END, end - 1, some, n, &bytes, &n_bytes, &err) == TQE_OK) {
            (void)tqe_disk_put(disk, TQE_DISK_END, j->keys[end - 1], bytes, n_bytes,
                               use_of(j, end));
        }
        *n_stored = end;
    }
    free(all);
    free(some);
}

/* ---- Prompts -------------------------------------------------------------------------------- */

static tqe_status job_init(job *j, tqe_error *err)
{
    const tqe_status st = tqe_snap_describe(&j->head, j->s, err);
    if (st != TQE_OK) {
        return st;
    }
    tq_scheme scheme;
    j->needs_ends = tq_scheme_parse(&scheme, j->head.scheme, NULL, 0) != TQ_OK || scheme.skip != 0;
    for (uint32_t i = 0; i < j->head.n_layers; i++) {
        const tqe_snap_layer *l = &j->head.layers[i];
        j->has_pages = j->has_pages || (l->window == 0 && l->donor == 0);
        j->needs_ends =
            j->needs_ends || l->window != 0 || l->sink != 0 || l->tail != 0 || l->start != 0;
    }
    /* The last token is always computed: its logits are what the caller wants. */
    j->n_pages = (j->n - 1) / TQ_PAGE_TOKENS;
    j->keys = malloc(((size_t)j->n_pages + 1) * sizeof(*j->keys));
    if (j->keys == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    make_root(j);
    make_keys(j);
    return j->has_pages && j->p->disk != NULL ? check_limit(j, err) : TQE_OK;
}

/* Common prefix of the running timeline and the prompt, short of the last token, if the timeline
 * can be cut there. */
static uint32_t running_prefix(const job *j)
{
    const uint32_t len = (uint32_t)tqe_session_len(j->s);
    const int32_t *tokens = tqe_session_tokens(j->s);
    uint32_t n = 0;
    while (n < len && n < j->n - 1 && tokens[n] == j->ids[n]) {
        n++;
    }
    return n > 0 && n >= tqe_attn_min_truncate(tqe_session_attn(j->s)) ? n : 0;
}

/* Bring the session to the longest prefix that is known. */
static tqe_status take_up(job *j, uint32_t *n_reused, tqe_error *err)
{
    tqe_attn *a = tqe_session_attn(j->s);
    uint32_t i = 0;
    uint32_t n = running_prefix(j);
    const uint32_t kept = tqe_kept_find(a, j->ids, j->n - 1, j->root, &i);
    uint32_t from_kept = 0;
    if (kept > n && tqe_kept_resume(a, i, kept)) {
        from_kept = kept;
        n = kept;
    }
    const uint32_t on_disk = resume_from_disk(j, n);
    *n_reused = on_disk > 0 ? on_disk : n;
    if (from_kept > 0 || on_disk > 0) {
        tqe_session_restored(j->s, j->ids, *n_reused, NULL);
        j->p->stats.n_disk_hits += on_disk > 0;
        j->p->stats.n_memory_hits += on_disk == 0;
        return TQE_OK;
    }
    return tqe_session_truncate(j->s, n, err);
}

typedef struct watch {
    tqe_progress_fn *fn;
    void *ctx;
    size_t before, all;
    bool go_on;
} watch;

static bool on_progress(void *ctx, size_t n_done, size_t n_total)
{
    watch *w = ctx;
    (void)n_total;
    w->go_on = w->fn(w->ctx, w->before + n_done, w->all);
    return w->go_on;
}

/* Evaluate what is left, in batches that end where prompts can be taken up. */
static tqe_status evaluate(job *j, uint32_t at, tqe_progress_fn *progress, void *ctx,
                           tqe_error *err)
{
    const uint32_t last = j->n_pages * TQ_PAGE_TOKENS;
    const uint32_t stride = j->p->every_pages * TQ_PAGE_TOKENS;
    uint32_t n_stored = at / TQ_PAGE_TOKENS;
    const uint32_t begin = at;
    while (at < j->n) {
        uint32_t to = at - at % stride + stride;
        to = at < last ? (to < last ? to : last) : j->n;
        watch w = {progress, ctx, at - begin, j->n - begin, true};
        tqe_status st = tqe_session_eval(j->s, j->ids + at, to - at, NULL,
                                         progress != NULL ? on_progress : NULL, &w, err);
        if (st != TQE_OK) {
            return st;
        }
        at = to;
        if (at % TQ_PAGE_TOKENS == 0 && at <= last) {
            store(j, &n_stored, at / TQ_PAGE_TOKENS);
        }
        if (!w.go_on && at < j->n) { /* said at the end of one eval */
            return tqe_fail(err, TQE_ERR_CANCELLED, "stopped after %u of %u tokens", at, j->n);
        }
    }
    return TQE_OK;
}

tqe_status tqe_session_prompt(tqe_session *s, tqe_prefix *p, const int32_t *ids, size_t n,
                              tqe_progress_fn *progress, void *ctx, size_t *n_reused,
                              tqe_error *err)
{
    if (s == NULL || p == NULL || ids == NULL || n == 0) {
        return tqe_fail(err, TQE_ERR_ARG, "no session, store or tokens");
    }
    tqe_status st = tqe_session_check(s, 0, ids, n, err);
    if (st != TQE_OK) {
        return st;
    }
    job j = {.p = p, .s = s, .ids = ids, .n = (uint32_t)n};
    uint32_t reused = 0;
    (void)clock_gettime(CLOCK_REALTIME, &j.began);
    st = job_init(&j, err);
    if (st == TQE_OK) {
        st = take_up(&j, &reused, err);
    }
    if (st == TQE_OK) {
        st = evaluate(&j, reused, progress, ctx, err);
    }
    if (st == TQE_OK) {
        tqe_kept_add(tqe_session_attn(s), ids, j.n, j.root);
        p->stats.n_prompts++;
        p->stats.n_tokens += n;
        p->stats.n_reused += reused;
    }
    if (n_reused != NULL) {
        *n_reused = reused;
    }
    tqe_snap_free(&j.head);
    free(j.keys);
    return st;
}

/* ---- Life ----------------------------------------------------------------------------------- */

tqe_status tqe_prefix_create(tqe_prefix **out, const tqe_prefix_params *params, tqe_error *err)
{
    const tqe_prefix_params zero = {0};
    params = params != NULL ? params : &zero;
    if (out == NULL || (params->salt == NULL && params->salt_bytes > 0)) {
        return tqe_fail(err, TQE_ERR_ARG, "no place for the store, or no salt");
    }
    *out = NULL;
    if (sodium_init() < 0) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "libsodium cannot start: no random numbers");
    }
    tqe_prefix *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    (void)crypto_generichash(p->salt, sizeof(p->salt), params->salt, params->salt_bytes, NULL, 0);
    p->every_pages = params->every_pages != 0 ? params->every_pages : DEFAULT_EVERY;
    if (params->dir != NULL) {
        const tqe_status st = tqe_disk_open(
            &p->disk, params->dir, params->limit_bytes != 0 ? params->limit_bytes : DEFAULT_LIMIT,
            params->queue_bytes != 0 ? params->queue_bytes : DEFAULT_QUEUE, err);
        if (st != TQE_OK) {
            free(p);
            return st;
        }
    }
    *out = p;
    return TQE_OK;
}

void tqe_prefix_free(tqe_prefix *p)
{
    if (p != NULL) {
        tqe_disk_close(p->disk);
        sodium_memzero(p->salt, sizeof(p->salt));
        free(p);
    }
}

void tqe_prefix_flush(tqe_prefix *p)
{
    if (p->disk != NULL) {
        tqe_disk_flush(p->disk);
    }
}

void tqe_prefix_get_stats(tqe_prefix *p, tqe_prefix_stats *out)
{
    *out = p->stats;
    if (p->disk != NULL) {
        tqe_disk_stats d;
        tqe_disk_get_stats(p->disk, &d);
        out->n_written = d.n_written;
        out->bytes_written = d.bytes_written;
        out->n_dropped = d.n_dropped;
        out->n_evicted = d.n_evicted;
    }
}

bool tqe_prefix_problem(tqe_prefix *p, tqe_error *out)
{
    return p->disk != NULL && tqe_disk_problem(p->disk, out);
}
