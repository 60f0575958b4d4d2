/* SPDX-License-Identifier: MIT */
/* scheme_files.h — the two text files that a KV scheme can name: layers=FILE and kmean=FILE.
 *
 * docs/format.md 2.2 specifies them. Sessions read them by themselves; these calls are for programs
 * that write such files or show what is in one. Layers are those that have a KV cache, counted from
 * 0 in the order of the model. Files are untrusted: an error names file, line and what is wrong
 * there (TQE_ERR_FORMAT, TQE_ERR_SCHEME for a scheme, TQE_ERR_UNSUPPORTED for another model's
 * means, TQE_ERR_IO, TQE_ERR_NOMEM), and nothing was written to what the caller passed.
 */
#ifndef TQE_SCHEME_FILES_H
#define TQE_SCHEME_FILES_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TQE_MAX_LAYERS       1024u
#define TQE_LAYERS_MAX_BYTES ((size_t)1 << 20)  /* largest layers=FILE */
#define TQE_KMEAN_MAX_BYTES  ((size_t)64 << 20) /* largest kmean=FILE */
#define TQE_KMEAN_MAX        65504.0f           /* largest size of a mean: of an f16 */

/* schemes [n_layers], 1..TQE_MAX_LAYERS: what layers have that the file does not name on entry,
 * what all have on success. A named layer takes skip, sink, tail, start and attn from its entry:
 * the file gives only the base and "mean". Layers that skip= keeps in f16 cannot be named. */
tqe_status tqe_layers_read(tq_scheme *schemes, uint32_t n_layers, const char *path, tqe_error *err);
/* The same from text [n]; path is for messages. */
tqe_status tqe_layers_parse(tq_scheme *schemes, uint32_t n_layers, const char *text, size_t n,
                            const char *path, tqe_error *err);
/* Base and "mean" of every layer, equal neighbours in one line. comment: NULL, or one line that
 * goes first. path holds what it held before, or the whole file. Errors: TQE_ERR_ARG (a scheme that
 * no text gives, a comment of several lines), TQE_ERR_IO. */
tqe_status tqe_layers_write(const char *path, const tq_scheme *schemes, uint32_t n_layers,
                            const char *comment, tqe_error *err);

typedef struct tqe_kmean_shape {
    uint32_t n_layers, n_kv_heads, d_k;
} tqe_kmean_shape;

/* dst [n_layers][n_kv_heads][d_k]: the means of keys as the cache gets them, after RoPE and the
 * norm of keys. model: its tqe_model_fingerprint_text, or NULL: means of any model with this shape.
 */
tqe_status tqe_kmean_read(float *dst, const tqe_kmean_shape *shape, const char *model,
                          const char *path, tqe_error *err);
tqe_status tqe_kmean_parse(float *dst, const tqe_kmean_shape *shape, const char *model,
                           const char *text, size_t n, const char *path, tqe_error *err);
/* mean [n_layers][n_kv_heads][d_k], up to TQE_KMEAN_MAX; read gives the same bits. As
 * tqe_layers_write. */
tqe_status tqe_kmean_write(const char *path, const float *mean, const tqe_kmean_shape *shape,
                           const char *model, const char *comment, tqe_error *err);

#ifdef __cplusplus
}
#endif
#endif
