/* SPDX-License-Identifier: MIT */
/* scheme_files.c — layers=FILE and kmean=FILE: their text, both ways.
 *
 * Both files are lines of words; '#' begins a line that is skipped. A reader works on a copy of the
 * text in which it ends each word with a NUL, and fills memory of its own, which the caller gets
 * when the whole file was good. The text is hostile: sizes are bounded before anything is read. The
 * path may be, too, as it can come from somebody's snapshot: of what it leads to nothing reaches a
 * message but the word that is wrong, and of that no more than 32 bytes.
 */
#include "scheme_files.h"

#include "engine_priv.h"
#include "file_atomic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Lines and words ------------------------------------------------------------------------- */

typedef struct lines {
    const char *path; /* for messages */
    char *copy;       /* of the text, with a NUL at the end */
    char *at, *end;
    char *line; /* what is left of the line that is being read */
    uint32_t number;
    tqe_error *err;
} lines;

static bool is_space(char ch)
{
    return ch == ' ' || ch == '\t' || ch == '\r';
}

/* The beginning of a word, printable: what a message shows of a file. */
typedef struct shown {
    char text[32 + 1];
} shown;

static shown show(const char *word)
{
    shown s;
    const tqe_quoted q = tqe_quote(word, strlen(word));
    const bool all = strlen(q.text) < sizeof(s.text);
    (void)snprintf(s.text, sizeof(s.text), all ? "%s" : "%.29s...", q.text);
    return s;
}

/* "'file', line 3: " before what is wrong there. */
static tqe_status bad(const lines *l, tqe_status code, const char *what)
{
    return tqe_fail(l->err, code, "'%s', line %u: %s", l->path, l->number, what);
}

static tqe_status bad_word(const lines *l, const char *word, const char *want)
{
    char what[400];
    (void)snprintf(what, sizeof(what), "%s where there should be %s",
                   word != NULL ? show(word).text : "the end of the line", want);
    return bad(l, TQE_ERR_FORMAT, what);
}

static tqe_status lines_open(lines *l, const char *text, size_t n, const char *path, tqe_error *err)
{
    *l = (lines){.path = path, .err = err, .copy = malloc(n + 1)};
    if (l->copy == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory to read '%s'", path);
    }
    memcpy(l->copy, text, n);
    l->copy[n] = '\0';
    l->at = l->copy;
    l->end = l->copy + n;
    return TQE_OK;
}

/* The next line that says something, in l->line; NULL there: no more. */
static tqe_status next_line(lines *l)
{
    l->line = NULL;
    while (l->line == NULL && l->at < l->end) {
        char *p = l->at;
        char *stop = memchr(p, '\n', (size_t)(l->end - p));
        stop = stop != NULL ? stop : l->end;
        *stop = '\0';
        l->at = stop + 1;
        l->number++;
        if (memchr(p, '\0', (size_t)(stop - p)) != NULL) {
            return bad(l, TQE_ERR_FORMAT, "a zero byte: this is no text file");
        }
        while (is_space(*p)) {
            p++;
        }
        l->line = *p != '\0' && *p != '#' ? p : NULL;
    }
    return TQE_OK;
}

/* The next word of the line, or NULL. */
static char *next_word(lines *l)
{
    char *p = l->line;
    while (is_space(*p)) {
        p++;
    }
    char *word = p;
    while (*p != '\0' && !is_space(*p)) {
        p++;
    }
    l->line = *p != '\0' ? p + 1 : p;
    *p = '\0';
    return *word != '\0' ? word : NULL;
}

/* Decimal digits below a million. Returns what follows them; NULL: none, or a larger number. */
static char *number(char *p, uint32_t *v)
{
    const char *first = p;
    *v = 0;
    while (*p >= '0' && *p <= '9' && p - first < 6) {
        *v = 10 * *v + (uint32_t)(*p++ - '0');
    }
    return p > first && !(*p >= '0' && *p <= '9') ? p : NULL;
}

/* A word that is a number up to max. */
static tqe_status word_number(lines *l, uint32_t *v, uint32_t max, const char *want)
{
    char *word = next_word(l);
    const char *rest = word != NULL ? number(word, v) : NULL;
    return rest != NULL && *rest == '\0' && *v <= max ? TQE_OK : bad_word(l, word, want);
}

static tqe_status end_of_line(lines *l)
{
    const char *word = next_word(l);
    return word == NULL ? TQE_OK : bad_word(l, word, "the end of the line");
}

/* A line that begins with `name`; its other words are left. */
static tqe_status named_line(lines *l, const char *name)
{
    char want[64];
    tqe_status st = next_line(l);
    if (st != TQE_OK) {
        return st;
    }
    if (l->line == NULL) {
        return tqe_fail(l->err, TQE_ERR_FORMAT, "'%s' ends before its line '%s'", l->path, name);
    }
    const char *word = next_word(l);
    (void)snprintf(want, sizeof(want), "'%s'", name);
    return strcmp(word, name) == 0 ? TQE_OK : bad_word(l, word, want);
}

/* The first line says what the file is: "turboquant-layers 1". */
static tqe_status first_line(lines *l, const char *name)
{
    uint32_t version = 0;
    tqe_status st = named_line(l, name);
    if (st == TQE_OK) {
        st = word_number(l, &version, 999999, "a version number");
    }
    if (st == TQE_OK && version != 1) {
        st = bad(l, TQE_ERR_UNSUPPORTED, "another version than 1, which is the only one");
    }
    return st == TQE_OK ? end_of_line(l) : st;
}

/* *text is malloc'ed, [*n]. */
tqe_status tqe_scheme_file_bytes(char **text, size_t *n, size_t max, const char *path,
                                 tqe_error *err)
{
    int fd = -1;
    uint64_t size = 0;
    *text = NULL;
    tqe_status st = tqe_file_open(&fd, &size, path, err);
    if (st != TQE_OK) {
        return st;
    }
    if (size > max) {
        st = tqe_fail(err, TQE_ERR_FORMAT, "'%s' has %llu bytes: such a file has at most %zu", path,
                      (unsigned long long)size, max);
    } else if ((*text = malloc((size_t)size + 1)) == NULL) {
        st = tqe_fail(err, TQE_ERR_NOMEM, "out of memory to read '%s'", path);
    } else if ((st = tqe_file_read(fd, *text, (size_t)size, 0, path, "the file", err)) != TQE_OK) {
        free(*text);
        *text = NULL;
    }
    *n = (size_t)size;
    (void)close(fd);
    return st;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static bool is_compressed(const tq_scheme *s)
{
    return s->family != TQ_FAMILY_F32 && s->family != TQ_FAMILY_F16 && s->family != TQ_FAMILY_BF16;
}

/* "N" or "N-M". */
static tqe_status layer_range(lines *l, uint32_t n_layers, uint32_t *first, uint32_t *last)
{
    char *word = next_word(l);
    char *rest = word != NULL ? number(word, first) : NULL;
    char what[160];
    *last = *first;
    if (rest != NULL && *rest == '-') {
        rest = number(rest + 1, last);
    }
    if (rest == NULL || *rest != '\0') {
        return bad_word(l, word, "layers, such as 3 or 0-7");
    }
    if (*first > *last) {
        (void)snprintf(what, sizeof(what), "layers %u to %u: the range is reversed", *first, *last);
        return bad(l, TQE_ERR_FORMAT, what);
    }
    if (*last >= n_layers) {
        (void)snprintf(what, sizeof(what), "layers %u to %u: the model has 0 to %u", *first, *last,
                       n_layers - 1);
        return bad(l, TQE_ERR_FORMAT, what);
    }
    return TQE_OK;
}

/* A base, or a base and "mean". */
static tqe_status layer_scheme(lines *l, tq_scheme *s)
{
    char why[512] = "", what[400];
    const char *word = next_word(l);
    if (word == NULL) {
        return bad_word(l, word, "a KV scheme");
    }
    const char *option = strchr(word, ',');
    if (option != NULL && strcmp(option, ",mean") != 0) {
        (void)snprintf(what, sizeof(what),
                       "%s: here a scheme has no option but mean; the others stand in the scheme "
                       "that names this file",
                       show(word).text);
        return bad(l, TQE_ERR_SCHEME, what);
    }
    if (tq_scheme_parse(s, word, why, sizeof(why)) != TQ_OK) {
        /* The parser's words hold the text as it is: only where that may be shown. */
        return bad(l, TQE_ERR_SCHEME,
                   strcmp(show(word).text, word) == 0 ? why : "this is no KV scheme");
    }
    return TQE_OK;
}

/* One line, on the caller's behalf: `named` marks the layers that were. */
static tqe_status layers_line(lines *l, tq_scheme *schemes, uint32_t n_layers, bool *named)
{
    uint32_t first = 0, last = 0;
    tq_scheme s;
    char what[160];
    tqe_status st = layer_range(l, n_layers, &first, &last);
    if (st == TQE_OK) {
        st = layer_scheme(l, &s);
    }
    if (st == TQE_OK) {
        st = end_of_line(l);
    }
    for (uint32_t i = first; st == TQE_OK && i <= last; i++) {
        const tq_scheme *base = &schemes[i];
        if (named[i] || i < base->skip || n_layers - i <= base->skip) {
            (void)snprintf(what, sizeof(what),
                           named[i] ? "layer %u has a scheme already"
                                    : "layer %u stays f16, as skip=%u says",
                           i, base->skip);
            return bad(l, TQE_ERR_FORMAT, what);
        }
        const bool options = is_compressed(&s);
        s.attn = base->attn;
        s.skip = options ? base->skip : 0;
        s.sink = options ? base->sink : 0;
        s.tail = options ? base->tail : 0;
        s.start = options ? base->start : 0;
        schemes[i] = s;
        named[i] = true;
    }
    return st;
}

tqe_status tqe_layers_parse(tq_scheme *schemes, uint32_t n_layers, const char *text, size_t n,
                            const char *path, tqe_error *err)
{
    lines l;
    if (schemes == NULL || n_layers == 0 || n_layers > TQE_MAX_LAYERS || text == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "schemes of %u layers", n_layers);
    }
    tqe_status st = lines_open(&l, text, n, path, err);
    tq_scheme *own = malloc(n_layers * sizeof(*own));
    bool *named = calloc(n_layers, sizeof(*named));
    if (st == TQE_OK && (own == NULL || named == NULL)) {
        st = tqe_fail(err, TQE_ERR_NOMEM, "out of memory to read '%s'", path);
    }
    if (st == TQE_OK) {
        memcpy(own, schemes, n_layers * sizeof(*own));
        st = first_line(&l, "turboquant-layers");
    }
    while (st == TQE_OK && (st = next_line(&l)) == TQE_OK && l.line != NULL) {
        st = layers_line(&l, own, n_layers, named);
    }
    if (st == TQE_OK) {
        memcpy(schemes, own, n_layers * sizeof(*own));
    }
    free(l.copy);
    free(own);
    free(named);
    return st;
}

tqe_status tqe_layers_read(tq_scheme *schemes, uint32_t n_layers, const char *path, tqe_error *err)
{
    char *text;
    size_t n;
    tqe_status st = tqe_scheme_file_bytes(&text, &n, TQE_LAYERS_MAX_BYTES, path, err);
    if (st == TQE_OK) {
        st = tqe_layers_parse(schemes, n_layers, text, n, path, err);
        free(text);
    }
    return st;
}

/* ---- Means of keys --------------------------------------------------------------------------- */

static tqe_status mean_value(lines *l, float *v, uint32_t i)
{
    char want[96];
    char *word = next_word(l);
    char *rest = word;
    /* strtof would take "nan", hexadecimal and what a locale makes of a comma, too. */
    if (word != NULL && strspn(word, "+-.0123456789eE") == strlen(word)) {
        *v = strtof(word, &rest);
    }
    if (word == NULL || rest == word || *rest != '\0' || !(fabsf(*v) <= TQE_KMEAN_MAX)) {
        (void)snprintf(want, sizeof(want), "value %u of the mean, a number from -65504 to 65504",
                       i);
        return bad_word(l, word, want);
    }
    return TQE_OK;
}

static tqe_status mean_line(lines *l, float *dst, const tqe_kmean_shape *s, bool *seen)
{
    uint32_t layer = 0, head = 0;
    char what[160];
    tqe_status st = word_number(l, &layer, s->n_layers - 1, "a layer of the shape");
    if (st == TQE_OK) {
        st = word_number(l, &head, s->n_kv_heads - 1, "a KV head of the shape");
    }
    if (st != TQE_OK) {
        return st;
    }
    const size_t row = (size_t)layer * s->n_kv_heads + head;
    if (seen[row]) {
        (void)snprintf(what, sizeof(what), "layer %u, KV head %u has a mean already", layer, head);
        return bad(l, TQE_ERR_FORMAT, what);
    }
    seen[row] = true;
    for (uint32_t i = 0; st == TQE_OK && i < s->d_k; i++) {
        st = mean_value(l, &dst[row * s->d_k + i], i);
    }
    return st == TQE_OK ? end_of_line(l) : st;
}

/* Lines "model" and "shape". */
static tqe_status mean_head(lines *l, const tqe_kmean_shape *s, const char *model)
{
    uint32_t n[3] = {0, 0, 0};
    char what[200];
    tqe_status st = first_line(l, "turboquant-kmean");
    if (st == TQE_OK) {
        st = named_line(l, "model");
    }
    if (st != TQE_OK) {
        return st;
    }
    const char *word = next_word(l);
    if (word == NULL || strlen(word) != 64 || strspn(word, "0123456789abcdef") != 64) {
        return bad_word(l, word, "the fingerprint of a model, 64 hexadecimal digits");
    }
    if (model != NULL && strcmp(word, model) != 0) {
        (void)snprintf(what, sizeof(what),
                       "the means of another model, %.12s...; this one is %.12s...", word, model);
        return bad(l, TQE_ERR_UNSUPPORTED, what);
    }
    if ((st = end_of_line(l)) != TQE_OK || (st = named_line(l, "shape")) != TQE_OK) {
        return st;
    }
    for (int i = 0; st == TQE_OK && i < 3; i++) {
        st = word_number(l, &n[i], 999999, "layers, KV heads and dimension");
    }
    if (st == TQE_OK && (n[0] != s->n_layers || n[1] != s->n_kv_heads || n[2] != s->d_k)) {
        (void)snprintf(what, sizeof(what), "shape %u %u %u: the model has %u %u %u", n[0], n[1],
                       n[2], s->n_layers, s->n_kv_heads, s->d_k);
        return bad(l, TQE_ERR_UNSUPPORTED, what);
    }
    return st == TQE_OK ? end_of_line(l) : st;
}

/* Every layer and head has its mean? */
static tqe_status all_seen(const lines *l, const tqe_kmean_shape *s, const bool *seen)
{
    for (uint32_t i = 0; i < s->n_layers * s->n_kv_heads; i++) {
        if (!seen[i]) {
            return tqe_fail(l->err, TQE_ERR_FORMAT, "'%s' has no mean for layer %u, KV head %u",
                            l->path, i / s->n_kv_heads, i % s->n_kv_heads);
        }
    }
    return TQE_OK;
}

static bool shape_is_valid(const tqe_kmean_shape *s)
{
    return s != NULL && s->n_layers > 0 && s->n_layers <= TQE_MAX_LAYERS && s->n_kv_heads > 0 &&
           s->n_kv_heads <= 1024 && s->d_k > 0 && s->d_k <= 1024;
}

tqe_status tqe_kmean_parse(float *dst, const tqe_kmean_shape *shape, const char *model,
                           const char *text, size_t n, const char *path, tqe_error *err)
{
    lines l;
    if (dst == NULL || text == NULL || !shape_is_valid(shape)) {
        return tqe_fail(err, TQE_ERR_ARG, "means of keys without a shape");
    }
    const size_t n_rows = (size_t)shape->n_layers * shape->n_kv_heads;
    tqe_status st = lines_open(&l, text, n, path, err);
    float *own = NULL;
    bool *seen = NULL;
    if (st == TQE_OK) {
        st = mean_head(&l, shape, model);
    }
    if (st == TQE_OK) {
        own = malloc(n_rows * shape->d_k * sizeof(*own));
        seen = calloc(n_rows, sizeof(*seen));
        if (own == NULL || seen == NULL) {
            st = tqe_fail(err, TQE_ERR_NOMEM, "out of memory to read '%s'", path);
        }
    }
    while (st == TQE_OK && (st = next_line(&l)) == TQE_OK && l.line != NULL) {
        st = mean_line(&l, own, shape, seen);
    }
    if (st == TQE_OK) {
        st = all_seen(&l, shape, seen);
    }
    if (st == TQE_OK) {
        memcpy(dst, own, n_rows * shape->d_k * sizeof(*own));
    }
    free(l.copy);
    free(own);
    free(seen);
    return st;
}

tqe_status tqe_kmean_read(float *dst, const tqe_kmean_shape *shape, const char *model,
                          const char *path, tqe_error *err)
{
    char *text;
    size_t n;
    tqe_status st = tqe_scheme_file_bytes(&text, &n, TQE_KMEAN_MAX_BYTES, path, err);
    if (st == TQE_OK) {
        st = tqe_kmean_parse(dst, shape, model, text, n, path, err);
        free(text);
    }
    return st;
}
