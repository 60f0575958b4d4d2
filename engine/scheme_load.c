/* SPDX-License-Identifier: MIT */
/* scheme_load.c — what the files of a session's scheme say, read once.
 *
 * The name under which rows are stored covers the bytes of the files. It is made from the very
 * bytes that the session uses: a file that changes later, or between two readings, cannot give rows
 * of one mean the name of another.
 */
#include "engine_priv.h"
#include "scheme_files.h"
#include "snapshot.h"

#include <stdlib.h>
#include <string.h>

typedef struct loaded {
    char *text;
    size_t n;
} loaded;

static tqe_status load_layers(tqe_attn_geometry *geo, const tq_scheme *base, loaded *f,
                              const char *path, tqe_error *err)
{
    tqe_status st = tqe_scheme_file_bytes(&f->text, &f->n, TQE_LAYERS_MAX_BYTES, path, err);
    if (st != TQE_OK) {
        return st;
    }
    geo->schemes = malloc(geo->n_layers * sizeof(*geo->schemes));
    if (geo->schemes == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory to read '%s'", path);
    }
    for (uint32_t i = 0; i < geo->n_layers; i++) {
        geo->schemes[i] = *base;
    }
    return tqe_layers_parse(geo->schemes, geo->n_layers, f->text, f->n, path, err);
}

static tqe_status load_kmean(tqe_attn_geometry *geo, const tqe_model *m, loaded *f,
                             const char *path, tqe_error *err)
{
    const tqe_kmean_shape shape = {geo->n_layers, geo->n_kv_heads, geo->d_head};
    char name[65];
    tqe_status st = tqe_scheme_file_bytes(&f->text, &f->n, TQE_KMEAN_MAX_BYTES, path, err);
    if (st == TQE_OK && m != NULL) {
        st = tqe_model_fingerprint_text(m, name, err);
    }
    if (st != TQE_OK) {
        return st;
    }
    geo->k_mean =
        malloc((size_t)shape.n_layers * shape.n_kv_heads * shape.d_k * sizeof(*geo->k_mean));
    if (geo->k_mean == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory to read '%s'", path);
    }
    return tqe_kmean_parse(geo->k_mean, &shape, m != NULL ? name : NULL, f->text, f->n, path, err);
}

/* ---- Files of a stored scheme -----------------------------------------------------------------
 */

/* A file under the names that it may have: its own, and from the folder of what names it. */
typedef struct place {
    char name[2][TQ_SCHEME_FILE_BYTES];
    loaded file[2]; /* text NULL: there is none */
} place;

static void read_place(place *p, int i, size_t max, tqe_error *err)
{
    (void)tqe_scheme_file_bytes(&p->file[i].text, &p->file[i].n, max, p->name[i], err);
}

/* First where the name leads, then from the folder of path. */
static tqe_status look_for(place *p, const char *option, const char *name, size_t max,
                           const char *path, tqe_error *err)
{
    tqe_error first = {TQE_OK, ""}, second = {TQE_OK, ""};
    const char *slash = strrchr(path, '/');
    const size_t n_dir = slash != NULL ? (size_t)(slash + 1 - path) : 0;
    (void)strcpy(p->name[0], name);
    read_place(p, 0, max, &first);
    if (n_dir > 0 && name[0] != '/' && n_dir + strlen(name) < TQ_SCHEME_FILE_BYTES) {
        memcpy(p->name[1], path, n_dir);
        (void)strcpy(p->name[1] + n_dir, name);
        read_place(p, 1, max, &second);
    } else if (n_dir > 0 && name[0] != '/') {
        (void)tqe_fail(&second, TQE_ERR_SCHEME, "with the folder its name has more than %u bytes",
                       (unsigned)TQ_SCHEME_FILE_BYTES - 1);
    }
    if (p->file[0].text != NULL || p->file[1].text != NULL) {
        return TQE_OK;
    }
    return tqe_fail(err, first.code, "'%s' needs the file of %s=: %s%s%s", path, option, first.text,
                    second.text[0] != '\0' ? "; " : "", second.text);
}

static void forget(place *p)
{
    free(p->file[0].text);
    free(p->file[1].text);
}

/* One name covers both files: each place of one with each of the other. */
static tqe_status match(tq_scheme *s, const place *layers, const place *kmean,
                        const uint8_t id[TQE_ID_BYTES], bool *found, tqe_error *err)
{
    uint8_t now[TQE_ID_BYTES];
    tqe_status st = TQE_OK;
    *found = false;
    for (int i = 0; i < 4 && st == TQE_OK && !*found; i++) {
        const loaded *l = &layers->file[i & 1], *k = &kmean->file[i >> 1];
        if ((s->layers[0] != '\0' && l->text == NULL) || (s->kmean[0] != '\0' && k->text == NULL)) {
            continue;
        }
        st = tqe_scheme_id(s, k->text, k->n, l->text, l->n, now, err);
        if (st == TQE_OK && memcmp(now, id, sizeof(now)) == 0) {
            *found = true;
            (void)strcpy(s->layers, s->layers[0] != '\0' ? layers->name[i & 1] : "");
            (void)strcpy(s->kmean, s->kmean[0] != '\0' ? kmean->name[i >> 1] : "");
        }
    }
    return st;
}

tqe_status tqe_scheme_find_files(const char *text, const uint8_t id[TQE_ID_BYTES], const char *path,
                                 char found[TQ_SCHEME_TEXT_BYTES], tqe_error *err)
{
    tq_scheme s;
    place layers = {0}, kmean = {0};
    tqe_status st = TQE_OK;
    bool here = false;
    if (tq_scheme_parse(&s, text, NULL, 0) != TQ_OK) {
        return tqe_fail(err, TQE_ERR_SCHEME, "'%s' has no KV scheme of this version", path);
    }
    if (s.layers[0] != '\0') {
        st = look_for(&layers, "layers", s.layers, TQE_LAYERS_MAX_BYTES, path, err);
    }
    if (st == TQE_OK && s.kmean[0] != '\0') {
        st = look_for(&kmean, "kmean", s.kmean, TQE_KMEAN_MAX_BYTES, path, err);
    }
    if (st == TQE_OK && s.layers[0] == '\0' && s.kmean[0] == '\0') {
        here = true;
    } else if (st == TQE_OK) {
        st = match(&s, &layers, &kmean, id, &here, err);
    }
    if (st == TQE_OK && !here) {
        st = tqe_scheme_other_files(text, path, err);
    }
    if (st == TQE_OK && tq_scheme_format(&s, found, TQ_SCHEME_TEXT_BYTES) != TQ_OK) {
        st = tqe_fail(err, TQE_ERR_SCHEME,
                      "'%s': the folder has a name that no KV scheme can hold; the file of %s",
                      path, s.layers[0] != '\0' ? "layers= lies there" : "kmean= lies there");
    }
    forget(&layers);
    forget(&kmean);
    return st;
}

tqe_status tqe_scheme_other_files(const char *text, const char *path, tqe_error *err)
{
    tq_scheme s;
    if (tq_scheme_parse(&s, text, NULL, 0) != TQ_OK) {
        return tqe_fail(err, TQE_ERR_SCHEME, "'%s' has no KV scheme of this version", path);
    }
    const bool both = s.layers[0] != '\0' && s.kmean[0] != '\0';
    if (s.layers[0] == '\0' && s.kmean[0] == '\0') { /* no accident leads here */
        return tqe_fail(err, TQE_ERR_SCHEME,
                        "'%s': the name that it gives the KV scheme %s is another scheme's", path,
                        text);
    }
    return tqe_fail(err, TQE_ERR_SCHEME,
                    "'%s': %s'%s'%s%s%s has other contents than when this was saved", path,
                    both ? "one of " : "", s.layers[0] != '\0' ? s.layers : s.kmean,
                    both ? " and '" : "", both ? s.kmean : "", both ? "'" : "");
}

/* ---- Files of a session's scheme --------------------------------------------------------------
 */

/* Is there a format of these layers' schemes for their head dimension? */
static tqe_status check_layers(const tqe_attn_geometry *geo, tqe_error *err)
{
    for (uint32_t i = 0; geo->schemes != NULL && i < geo->n_layers; i++) {
        char text[TQ_SCHEME_TEXT_BYTES] = "";
        size_t bytes = 0;
        if (tq_scheme_bytes_per_token(&geo->schemes[i], geo->d_head, geo->d_head, &bytes) !=
            TQ_OK) {
            (void)tq_scheme_format(&geo->schemes[i], text, sizeof(text));
            return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                            "KV scheme %s of layer %u does not support the model's head dimension "
                            "%u (f32, f16, bf16, affine8 and affine4 do)",
                            text, i, geo->d_head);
        }
    }
    return TQE_OK;
}

tqe_status tqe_scheme_load(tqe_attn_geometry *geo, const tqe_model *m, uint8_t id[TQE_ID_BYTES],
                           tqe_error *err)
{
    const tq_scheme full = geo->scheme;
    loaded layers = {NULL, 0}, kmean = {NULL, 0};
    tqe_status st = TQE_OK;
    geo->scheme.layers[0] = '\0';
    geo->scheme.kmean[0] = '\0';
    geo->schemes = NULL;
    geo->k_mean = NULL;
    if (full.layers[0] != '\0') {
        st = load_layers(geo, &geo->scheme, &layers, full.layers, err);
    }
    if (st == TQE_OK) {
        st = check_layers(geo, err);
    }
    if (st == TQE_OK && full.kmean[0] != '\0') {
        st = load_kmean(geo, m, &kmean, full.kmean, err);
    }
    if (st == TQE_OK && id != NULL) {
        st = tqe_scheme_id(&full, kmean.text, kmean.n, layers.text, layers.n, id, err);
    }
    free(layers.text);
    free(kmean.text);
    if (st != TQE_OK) {
        tqe_scheme_unload(geo);
    }
    return st;
}

void tqe_scheme_unload(tqe_attn_geometry *geo)
{
    free(geo->schemes);
    free(geo->k_mean);
    geo->schemes = NULL;
    geo->k_mean = NULL;
}
