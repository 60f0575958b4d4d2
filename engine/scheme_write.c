/* SPDX-License-Identifier: MIT */
/* scheme_write.c — layers=FILE and kmean=FILE, written. The reader is the specification's; what is
 * written here it gives back bit for bit. */
#include "scheme_files.h"

#include "engine_priv.h"
#include "file_atomic.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static tqe_status put(tqe_atomic_file *f, tqe_error *err, const char *fmt, ...) TQE_PRINTF(3, 4);

static tqe_status put(tqe_atomic_file *f, tqe_error *err, const char *fmt, ...)
{
    char text[TQ_SCHEME_TEXT_BYTES + 64];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof(text)) {
        return tqe_fail(err, TQE_ERR_ARG, "a line is too long");
    }
    return tqe_atomic_write(f, text, (size_t)n, err);
}

/* Open path; the comment goes first. */
static tqe_status start(tqe_atomic_file *f, const char *path, const char *comment, tqe_error *err)
{
    if (path == NULL || (comment != NULL && strpbrk(comment, "\r\n") != NULL)) {
        return tqe_fail(err, TQE_ERR_ARG, "no path, or a comment of several lines");
    }
    tqe_status st = tqe_atomic_open(f, path, 0666, err);
    if (st != TQE_OK || comment == NULL) {
        return st;
    }
    st = tqe_atomic_write(f, "# ", 2, err);
    if (st == TQE_OK) {
        st = tqe_atomic_write(f, comment, strlen(comment), err);
    }
    if (st == TQE_OK) {
        st = tqe_atomic_write(f, "\n", 1, err);
    }
    if (st != TQE_OK) {
        tqe_atomic_discard(f);
    }
    return st;
}

static tqe_status finish(tqe_atomic_file *f, tqe_status st, tqe_error *err)
{
    if (st == TQE_OK) {
        return tqe_atomic_commit(f, true, err);
    }
    tqe_atomic_discard(f);
    return st;
}

/* Base and mean alone. */
static tqe_status base_text(char dst[TQ_SCHEME_TEXT_BYTES], const tq_scheme *s, uint32_t layer,
                            tqe_error *err)
{
    const tq_scheme base = {.family = s->family,
                            .k_bits = s->k_bits,
                            .v_bits = s->v_bits,
                            .group = s->group,
                            .mean = s->mean};
    return tq_scheme_format(&base, dst, TQ_SCHEME_TEXT_BYTES) == TQ_OK
               ? TQE_OK
               : tqe_fail(err, TQE_ERR_ARG, "layer %u has no scheme", layer);
}

tqe_status tqe_layers_write(const char *path, const tq_scheme *schemes, uint32_t n_layers,
                            const char *comment, tqe_error *err)
{
    tqe_atomic_file f;
    char text[TQ_SCHEME_TEXT_BYTES], next[TQ_SCHEME_TEXT_BYTES] = "";
    if (schemes == NULL || n_layers == 0 || n_layers > TQE_MAX_LAYERS) {
        return tqe_fail(err, TQE_ERR_ARG, "schemes of %u layers", n_layers);
    }
    tqe_status st = base_text(text, &schemes[0], 0, err);
    if (st != TQE_OK || (st = start(&f, path, comment, err)) != TQE_OK) {
        return st;
    }
    st = put(&f, err, "turboquant-layers 1\n");
    for (uint32_t first = 0, i = 1; st == TQE_OK && i <= n_layers; i++) {
        if (i < n_layers && (st = base_text(next, &schemes[i], i, err)) != TQE_OK) {
            break;
        }
        if (i < n_layers && strcmp(text, next) == 0) {
            continue;
        }
        st = first + 1 == i ? put(&f, err, "%u %s\n", first, text)
                            : put(&f, err, "%u-%u %s\n", first, i - 1, text);
        first = i;
        memcpy(text, next, sizeof(text));
    }
    return finish(&f, st, err);
}

tqe_status tqe_kmean_write(const char *path, const float *mean, const tqe_kmean_shape *shape,
                           const char *model, const char *comment, tqe_error *err)
{
    tqe_atomic_file f;
    if (mean == NULL || shape == NULL || model == NULL || strlen(model) != 64) {
        return tqe_fail(err, TQE_ERR_ARG, "means of keys without a shape or a model");
    }
    const uint32_t n_rows = shape->n_layers * shape->n_kv_heads, d = shape->d_k;
    for (size_t i = 0; i < (size_t)n_rows * d; i++) {
        if (!(fabsf(mean[i]) <= TQE_KMEAN_MAX)) {
            return tqe_fail(err, TQE_ERR_ARG,
                            "a mean of keys that is NaN or beyond 65504: value %u of layer %u, KV "
                            "head %u",
                            (uint32_t)(i % d), (uint32_t)(i / d) / shape->n_kv_heads,
                            (uint32_t)(i / d) % shape->n_kv_heads);
        }
    }
    tqe_status st = start(&f, path, comment, err);
    if (st != TQE_OK) {
        return st;
    }
    st = put(&f, err, "turboquant-kmean 1\nmodel %s\nshape %u %u %u\n", model, shape->n_layers,
             shape->n_kv_heads, d);
    for (uint32_t r = 0; st == TQE_OK && r < n_rows; r++) {
        st = put(&f, err, "%u %u", r / shape->n_kv_heads, r % shape->n_kv_heads);
        for (uint32_t i = 0; st == TQE_OK && i < d; i++) {
            st = put(&f, err, " %.9g", (double)mean[(size_t)r * d + i]);
        }
        if (st == TQE_OK) {
            st = put(&f, err, "\n");
        }
    }
    return finish(&f, st, err);
}
