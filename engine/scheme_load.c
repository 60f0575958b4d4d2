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

tqe_status tqe_scheme_check_files(const char *text, const uint8_t id[TQE_ID_BYTES],
                                  const char *path, tqe_error *err)
{
    tq_scheme s;
    loaded layers = {NULL, 0}, kmean = {NULL, 0};
    uint8_t now[TQE_ID_BYTES];
    tqe_status st = TQE_OK;
    if (tq_scheme_parse(&s, text, NULL, 0) != TQ_OK) {
        return tqe_fail(err, TQE_ERR_SCHEME, "'%s' has no KV scheme of this version", path);
    }
    if (s.layers[0] == '\0' && s.kmean[0] == '\0') {
        return TQE_OK;
    }
    if (s.layers[0] != '\0') {
        st = tqe_scheme_file_bytes(&layers.text, &layers.n, TQE_LAYERS_MAX_BYTES, s.layers, err);
    }
    if (st == TQE_OK && s.kmean[0] != '\0') {
        st = tqe_scheme_file_bytes(&kmean.text, &kmean.n, TQE_KMEAN_MAX_BYTES, s.kmean, err);
    }
    if (st == TQE_OK) {
        st = tqe_scheme_id(&s, kmean.text, kmean.n, layers.text, layers.n, now, err);
    }
    if (st == TQE_OK && memcmp(now, id, sizeof(now)) != 0) {
        /* One name covers both files. */
        const bool both = layers.text != NULL && kmean.text != NULL;
        st = tqe_fail(err, TQE_ERR_SCHEME,
                      "'%s': %s'%s'%s%s%s has other contents than when this was saved", path,
                      both ? "one of " : "", layers.text != NULL ? s.layers : s.kmean,
                      both ? " and '" : "", both ? s.kmean : "", both ? "'" : "");
    }
    free(layers.text);
    free(kmean.text);
    return st;
}

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
