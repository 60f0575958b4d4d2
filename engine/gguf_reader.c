/* SPDX-License-Identifier: MIT */
/* gguf_reader.c — opens a GGUF file and believes nothing in it.
 *
 * One walk over the header checks every count, length, type, shape and offset against the bytes
 * that are there; only then do tables exist that other code indexes freely. The parsers of ggml
 * and libllama assert on damaged files, which would end the process, so this walk is the only
 * thing that ever reads an unchecked file. Counts are never trusted for allocation: tables grow
 * with the entries that were really read.
 */
#include "engine_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_ENTRIES 1000000u /* keys or tensors: far above any model, keeps the tables small */
#define MAX_NAME    63u      /* GGML_MAX_NAME - 1 */

/* ---- Cursor ------------------------------------------------------------------------------ */

typedef struct cursor {
    const uint8_t *data;
    size_t size;
    size_t pos;
    tqe_error *err;
} cursor;

static tqe_status truncated(const cursor *c, const char *what)
{
    return tqe_fail(c->err, TQE_ERR_FORMAT,
                    "truncated GGUF: the file ends (%zu bytes) inside %s at offset %zu", c->size,
                    what, c->pos);
}

static tqe_status take(cursor *c, size_t n, uint64_t *out, const char *what)
{
    if (c->size - c->pos < n) {
        return truncated(c, what);
    }
    *out = tqe_load_le(c->data + c->pos, n);
    c->pos += n;
    return TQE_OK;
}

static tqe_status take_str(cursor *c, const char **s, size_t *n_bytes, const char *what)
{
    const size_t start = c->pos;
    uint64_t n = 0;
    tqe_status st = take(c, 8, &n, what);
    if (st != TQE_OK) {
        return st;
    }
    if (n > c->size - c->pos) {
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "damaged GGUF: %s at offset %zu says %llu bytes, the file has %zu left",
                        what, start, (unsigned long long)n, c->size - c->pos);
    }
    *s = (const char *)c->data + c->pos;
    *n_bytes = (size_t)n;
    c->pos += (size_t)n;
    return TQE_OK;
}

/* ---- Tables ------------------------------------------------------------------------------ */

static void *grow(void *p, size_t *cap, size_t n, size_t elem_bytes)
{
    if (n < *cap) {
        return p;
    }
    const size_t want = *cap == 0 ? 64 : *cap * 2;
    void *q = realloc(p, want * elem_bytes);
    if (q != NULL) {
        *cap = want;
    }
    return q;
}

/* Heap sort of an index: qsort has no context argument in C11, and the worst case of an
 * attacker's names must stay n log n. */
typedef int compare_idx(const tqe_gguf *g, size_t a, size_t b);

static int compare_kv(const tqe_gguf *g, size_t a, size_t b)
{
    return tqe_compare_bytes(g->kv[a].key, g->kv[a].key_bytes, g->kv[b].key, g->kv[b].key_bytes);
}

static int compare_tensor(const tqe_gguf *g, size_t a, size_t b)
{
    return strcmp(g->tensors[a].name, g->tensors[b].name);
}

static void sift(const tqe_gguf *g, size_t *idx, size_t root, size_t n, compare_idx *cmp)
{
    for (;;) {
        size_t child = 2 * root + 1;
        if (child >= n) {
            return;
        }
        if (child + 1 < n && cmp(g, idx[child], idx[child + 1]) < 0) {
            child++;
        }
        if (cmp(g, idx[root], idx[child]) >= 0) {
            return;
        }
        const size_t t = idx[root];
        idx[root] = idx[child];
        idx[child] = t;
        root = child;
    }
}

static size_t *sorted_index(const tqe_gguf *g, size_t n, compare_idx *cmp)
{
    size_t *idx = malloc((n > 0 ? n : 1) * sizeof(*idx));
    if (idx == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        idx[i] = i;
    }
    for (size_t i = n / 2; i-- > 0;) {
        sift(g, idx, i, n, cmp);
    }
    for (size_t end = n; end-- > 1;) {
        const size_t t = idx[0];
        idx[0] = idx[end];
        idx[end] = t;
        sift(g, idx, 0, end, cmp);
    }
    return idx;
}

/* ---- The walk ---------------------------------------------------------------------------- */

static tqe_status read_value(cursor *c, tqe_gguf_kv *kv)
{
    const tqe_quoted key = tqe_quote(kv->key, kv->key_bytes);
    const size_t type_off = c->pos;
    uint64_t v = 0;
    tqe_status st = take(c, 4, &v, "a value type");
    if (st != TQE_OK) {
        return st;
    }
    kv->type = (uint32_t)v;
    kv->elem_type = kv->type;
    kv->n = 1;
    if (kv->type == TQE_GGUF_ARR) {
        if ((st = take(c, 4, &v, "an array type")) != TQE_OK ||
            (st = take(c, 8, &kv->n, "an array length")) != TQE_OK) {
            return st;
        }
        kv->elem_type = (uint32_t)v;
    }
    if (kv->elem_type >= TQE_GGUF_N_TYPES || kv->elem_type == TQE_GGUF_ARR) {
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "damaged GGUF: key '%s' has invalid value type %u at offset %zu", key.text,
                        kv->elem_type, type_off);
    }
    kv->off = c->pos;
    if (kv->elem_type != TQE_GGUF_STR) {
        const size_t elem = tqe_gguf_type_bytes(kv->elem_type);
        if (kv->n > (c->size - c->pos) / elem) {
            return tqe_fail(c->err, TQE_ERR_FORMAT,
                            "damaged GGUF: key '%s' at offset %zu holds %llu values of type %s, "
                            "the file has %zu bytes left",
                            key.text, type_off, (unsigned long long)kv->n,
                            tqe_gguf_type_name(kv->elem_type), c->size - c->pos);
        }
        c->pos += (size_t)kv->n * elem;
        return TQE_OK;
    }
    if (kv->n > (c->size - c->pos) / 8) { /* each string takes at least its length field */
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "damaged GGUF: key '%s' at offset %zu holds %llu strings, the file has "
                        "%zu bytes left",
                        key.text, type_off, (unsigned long long)kv->n, c->size - c->pos);
    }
    for (uint64_t i = 0; i < kv->n; i++) {
        const char *s = NULL;
        size_t n = 0;
        if ((st = take_str(c, &s, &n, "a string value")) != TQE_OK) {
            return st;
        }
    }
    return TQE_OK;
}

static tqe_status read_keys(cursor *c, tqe_gguf *g, uint64_t n_kv)
{
    size_t cap = 0;
    for (uint64_t i = 0; i < n_kv; i++) {
        tqe_gguf_kv kv = {0};
        const size_t off = c->pos;
        tqe_status st = take_str(c, &kv.key, &kv.key_bytes, "a key name");
        if (st != TQE_OK) {
            return st;
        }
        if (kv.key_bytes == 0 || kv.key_bytes > 65535) {
            return tqe_fail(c->err, TQE_ERR_FORMAT,
                            "damaged GGUF: key %llu at offset %zu has a name of %zu bytes",
                            (unsigned long long)i, off, kv.key_bytes);
        }
        if ((st = read_value(c, &kv)) != TQE_OK) {
            return st;
        }
        void *p = grow(g->kv, &cap, g->n_kv, sizeof(*g->kv));
        if (p == NULL) {
            return tqe_fail(c->err, TQE_ERR_NOMEM, "out of memory while reading the GGUF header");
        }
        g->kv = p;
        g->kv[g->n_kv++] = kv;
    }
    g->by_key = sorted_index(g, g->n_kv, compare_kv);
    if (g->by_key == NULL) {
        return tqe_fail(c->err, TQE_ERR_NOMEM, "out of memory while reading the GGUF header");
    }
    for (size_t i = 1; i < g->n_kv; i++) {
        if (compare_kv(g, g->by_key[i - 1], g->by_key[i]) == 0) {
            const tqe_gguf_kv *kv = &g->kv[g->by_key[i]];
            return tqe_fail(c->err, TQE_ERR_FORMAT, "damaged GGUF: key '%s' appears twice",
                            tqe_quote(kv->key, kv->key_bytes).text);
        }
    }
    return TQE_OK;
}

static tqe_status read_tensor_shape(cursor *c, tqe_gguf_tensor *t)
{
    uint64_t v = 0;
    const size_t off = c->pos;
    tqe_status st = take(c, 4, &v, "a tensor's dimension count");
    if (st != TQE_OK) {
        return st;
    }
    if (v < 1 || v > 4) {
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "damaged GGUF: tensor '%s' has %llu dimensions at offset %zu (1 to 4 are "
                        "possible)",
                        t->name, (unsigned long long)v, off);
    }
    t->n_dims = (uint32_t)v;
    uint64_t n_elems = 1;
    for (uint32_t d = 0; d < 4; d++) {
        uint64_t ne = 1;
        if (d < t->n_dims && (st = take(c, 8, &ne, "a tensor dimension")) != TQE_OK) {
            return st;
        }
        /* 2^40 elements of at most 8 bytes: products below stay inside 64 bits. */
        if (ne < 1 || ne > ((uint64_t)1 << 40) || n_elems > ((uint64_t)1 << 40) / ne) {
            return tqe_fail(c->err, TQE_ERR_FORMAT,
                            "damaged GGUF: tensor '%s' has dimension %u of %llu elements at offset "
                            "%zu",
                            t->name, d, (unsigned long long)ne, c->pos - 8);
        }
        n_elems *= ne;
        t->ne[d] = (int64_t)ne;
    }
    return TQE_OK;
}

static tqe_status read_tensor_type(cursor *c, tqe_gguf_tensor *t)
{
    const size_t off = c->pos;
    uint64_t v = 0;
    tqe_status st = take(c, 4, &v, "a tensor type");
    if (st != TQE_OK) {
        return st;
    }
    if (v >= GGML_TYPE_COUNT || ggml_blck_size((enum ggml_type)v) <= 0 ||
        ggml_type_size((enum ggml_type)v) == 0) {
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "tensor '%s' has type %llu at offset %zu, which this ggml does not know",
                        t->name, (unsigned long long)v, off);
    }
    t->type = (uint32_t)v;
    const enum ggml_type type = (enum ggml_type)v;
    const int64_t block = ggml_blck_size(type);
    if (t->ne[0] % block != 0) {
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "damaged GGUF: tensor '%s' of type %s has rows of %lld elements, not a "
                        "multiple of %lld",
                        t->name, ggml_type_name(type), (long long)t->ne[0], (long long)block);
    }
    t->n_bytes = ggml_type_size(type) * (size_t)(t->ne[0] / block) * (size_t)t->ne[1] *
                 (size_t)t->ne[2] * (size_t)t->ne[3];
    return TQE_OK;
}

static tqe_status read_tensor(cursor *c, tqe_gguf_tensor *t, uint64_t idx)
{
    const size_t off = c->pos;
    const char *name = NULL;
    size_t n = 0;
    tqe_status st = take_str(c, &name, &n, "a tensor name");
    if (st != TQE_OK) {
        return st;
    }
    bool ok = n >= 1 && n <= MAX_NAME;
    for (size_t i = 0; ok && i < n; i++) {
        ok = name[i] > 0x20 && name[i] < 0x7f;
    }
    if (!ok) {
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "damaged GGUF: tensor %llu at offset %zu has the name '%s' (1 to %u "
                        "printable characters are possible)",
                        (unsigned long long)idx, off, tqe_quote(name, n).text, MAX_NAME);
    }
    memcpy(t->name, name, n);
    t->name[n] = '\0';
    if ((st = read_tensor_shape(c, t)) != TQE_OK || (st = read_tensor_type(c, t)) != TQE_OK) {
        return st;
    }
    uint64_t data_off = 0;
    if ((st = take(c, 8, &data_off, "a tensor offset")) != TQE_OK) {
        return st;
    }
    if (data_off > c->size) {
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "truncated GGUF: tensor '%s' starts at data offset %llu, the file has %zu "
                        "bytes",
                        t->name, (unsigned long long)data_off, c->size);
    }
    t->off = (size_t)data_off;
    return TQE_OK;
}

static tqe_status read_tensors(cursor *c, tqe_gguf *g, uint64_t n_tensors)
{
    size_t cap = 0;
    for (uint64_t i = 0; i < n_tensors; i++) {
        tqe_gguf_tensor t = {0};
        tqe_status st = read_tensor(c, &t, i);
        if (st != TQE_OK) {
            return st;
        }
        void *p = grow(g->tensors, &cap, g->n_tensors, sizeof(*g->tensors));
        if (p == NULL) {
            return tqe_fail(c->err, TQE_ERR_NOMEM, "out of memory while reading the GGUF header");
        }
        g->tensors = p;
        g->tensors[g->n_tensors++] = t;
    }
    g->by_name = sorted_index(g, g->n_tensors, compare_tensor);
    if (g->by_name == NULL) {
        return tqe_fail(c->err, TQE_ERR_NOMEM, "out of memory while reading the GGUF header");
    }
    for (size_t i = 1; i < g->n_tensors; i++) {
        if (compare_tensor(g, g->by_name[i - 1], g->by_name[i]) == 0) {
            return tqe_fail(c->err, TQE_ERR_FORMAT, "damaged GGUF: tensor '%s' appears twice",
                            g->tensors[g->by_name[i]].name);
        }
    }
    return TQE_OK;
}

/* Tensor offsets are relative to the aligned end of the header and must follow one another
 * without gaps or overlap, as every writer lays them out. */
static tqe_status place_tensors(cursor *c, tqe_gguf *g)
{
    uint64_t align = 32;
    bool found = false;
    tqe_status st = tqe_gguf_get_u64(g, "general.alignment", &align, &found, c->err);
    if (st != TQE_OK) {
        return st;
    }
    if (align < 8 || align > 65536 || (align & (align - 1)) != 0) {
        return tqe_fail(c->err, TQE_ERR_FORMAT,
                        "damaged GGUF: general.alignment is %llu (a power of two from 8 to 65536 "
                        "is possible)",
                        (unsigned long long)align);
    }
    const size_t mask = (size_t)align - 1;
    const size_t base = (c->pos + mask) & ~mask;
    size_t expected = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        tqe_gguf_tensor *t = &g->tensors[i];
        if (t->off != expected) {
            return tqe_fail(c->err, TQE_ERR_FORMAT,
                            "damaged GGUF: tensor '%s' has data offset %zu, expected %zu", t->name,
                            t->off, expected);
        }
        if (base > c->size || t->off > c->size - base || t->n_bytes > c->size - base - t->off) {
            return tqe_fail(c->err, TQE_ERR_FORMAT,
                            "truncated GGUF: tensor '%s' needs %zu bytes at offset %zu, the file "
                            "has %zu bytes",
                            t->name, t->n_bytes, base + t->off, c->size);
        }
        expected = (t->off + t->n_bytes + mask) & ~mask;
        t->off += base;
    }
    return TQE_OK;
}

static tqe_status walk(tqe_gguf *g, tqe_error *err)
{
    cursor c = {g->data, g->size, 0, err};
    if (g->size == 0) {
        return tqe_fail(err, TQE_ERR_FORMAT, "not a GGUF: the file is empty");
    }
    if (g->size < 4 || memcmp(g->data, "GGUF", 4) != 0) {
        const size_t n = g->size < 4 ? g->size : 4;
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "not a GGUF: the file starts with '%s' instead of 'GGUF'",
                        tqe_quote((const char *)g->data, n).text);
    }
    c.pos = 4;
    uint64_t version = 0;
    uint64_t n_tensors = 0;
    uint64_t n_kv = 0;
    tqe_status st = TQE_OK;
    if ((st = take(&c, 4, &version, "the version")) != TQE_OK) {
        return st;
    }
    if (version != 2 && version != 3) {
        return tqe_fail(err, TQE_ERR_FORMAT, "GGUF version %llu at offset 4 (2 and 3 are known%s)",
                        (unsigned long long)version,
                        (version & 0xffff) == 0 ? "; a big-endian file?" : "");
    }
    if ((st = take(&c, 8, &n_tensors, "the tensor count")) != TQE_OK ||
        (st = take(&c, 8, &n_kv, "the key count")) != TQE_OK) {
        return st;
    }
    if (n_tensors > MAX_ENTRIES || n_kv > MAX_ENTRIES) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "damaged GGUF: %llu tensors (offset 8) and %llu keys (offset 16)",
                        (unsigned long long)n_tensors, (unsigned long long)n_kv);
    }
    if ((st = read_keys(&c, g, n_kv)) != TQE_OK ||
        (st = read_tensors(&c, g, n_tensors)) != TQE_OK) {
        return st;
    }
    return place_tensors(&c, g);
}

tqe_status tqe_gguf_parse(tqe_gguf *g, const void *data, size_t size, tqe_error *err)
{
    memset(g, 0, sizeof(*g));
    g->data = data;
    g->size = size;
    const tqe_status st = walk(g, err);
    if (st != TQE_OK) {
        tqe_gguf_close(g);
    }
    return st;
}

tqe_status tqe_gguf_open(tqe_gguf *g, const char *path, tqe_error *err)
{
    memset(g, 0, sizeof(*g));
    if (path == NULL || path[0] == '\0') {
        return tqe_fail(err, TQE_ERR_ARG, "no model file given");
    }
    /* O_NONBLOCK: opening a FIFO would wait for a writer; O_NOCTTY: a terminal is no model. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return tqe_fail(err, TQE_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    }
    struct stat sb;
    tqe_status st = TQE_OK;
    void *map = MAP_FAILED;
    if (fstat(fd, &sb) != 0) {
        st = tqe_fail(err, TQE_ERR_IO, "cannot read '%s': %s", path, strerror(errno));
    } else if (S_ISDIR(sb.st_mode)) {
        st = tqe_fail(err, TQE_ERR_IO, "'%s' is a directory, not a GGUF file", path);
    } else if (!S_ISREG(sb.st_mode)) {
        st = tqe_fail(err, TQE_ERR_IO, "'%s' is not a regular file", path);
    } else if (sb.st_size == 0) {
        st = tqe_fail(err, TQE_ERR_FORMAT, "'%s' is not a GGUF: the file is empty", path);
    } else {
        map = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            st = tqe_fail(err, TQE_ERR_IO, "cannot map '%s': %s", path, strerror(errno));
        }
    }
    (void)close(fd);
    if (st != TQE_OK) {
        return st;
    }
    g->data = map;
    g->size = (size_t)sb.st_size;
    g->mapped = true;
    tqe_error inner = {TQE_OK, ""};
    st = walk(g, &inner);
    if (st != TQE_OK) {
        tqe_gguf_close(g);
        return tqe_fail(err, st, "'%s': %s", path, inner.text);
    }
    return TQE_OK;
}

void tqe_gguf_close(tqe_gguf *g)
{
    free(g->kv);
    free(g->tensors);
    free(g->by_key);
    free(g->by_name);
    if (g->mapped) {
        (void)munmap((void *)(uintptr_t)g->data, g->size);
    }
    memset(g, 0, sizeof(*g));
}
