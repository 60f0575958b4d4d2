/* SPDX-License-Identifier: MIT */
/* tune.h — what `tq tune` needs of the engine: measure what one way to store the layers costs,
 * collect the mean of the keys, choose a format for each layer under a budget. A header that apps
 * may include; it stands on engine.h and shares its rules. docs/quality.md says why it is done so.
 */
#ifndef TQE_TUNE_H
#define TQE_TUNE_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tqe_tune_params {
    uint32_t n_ctx;     /* tokens of a window, 32 .. TQE_MAX_CTX */
    uint32_t from;      /* first scored position, below n_ctx - 1 */
    uint32_t n_threads; /* 0: physical cores */
    uint32_t isa_mask;  /* 0: all */
} tqe_tune_params;

/* One way to store all layers. */
typedef struct tqe_tune_variant {
    const tq_scheme *layers; /* [n_layers], without kmean and layers files */
    const float *k_mean;     /* NULL, or [n_layers][n_kv_heads][d_k]; raw layers do without */
} tqe_tune_variant;

/* Variants that one call should measure: the caches of all are held at once, and the reference is
 * computed once for them. At least 1. */
size_t tqe_tune_group(const tqe_model *m, const tqe_tune_params *p);

/* Mean KL(f32 cache || variant) in nats over the scored positions from .. n_ctx - 2 of ids [n_ctx],
 * for n variants: kl [n]. The numbers do not depend on what is measured together. progress gets
 * tokens, of n + 1 times n_ctx. */
tqe_status tqe_tune_window(const tqe_model *m, const tqe_tune_params *p, const int32_t *ids,
                           const tqe_tune_variant *variants, size_t n, double *kl,
                           tqe_progress_fn *progress, void *ctx, tqe_error *err);

/* Add the mean over ids [n_ctx] of the keys, as a cache gets them (normed, with RoPE), to sums
 * [n_layers][n_kv_heads][d_k]. */
tqe_status tqe_tune_add_keys(const tqe_model *m, const tqe_tune_params *p, const int32_t *ids,
                             double *sums, tqe_progress_fn *progress, void *ctx, tqe_error *err);

/* Packed bytes of one token in one layer. */
tqe_status tqe_tune_layer_bytes(const tqe_model_info *m, const tq_scheme *scheme, uint32_t *bytes,
                                tqe_error *err);
/* Bytes of the cache of one session of n_ctx tokens whose layers [n_layers] are stored so. */
tqe_status tqe_tune_cache_bytes(const tqe_model_info *m, const tq_scheme *layers, uint32_t n_ctx,
                                size_t *bytes, tqe_error *err);

/* ---- The choice ----------------------------------------------------------------------------- */

typedef struct tqe_tune_choice {
    uint32_t bytes;
    double cost; /* finite */
} tqe_tune_choice;

/* Take one of the n_choices choices [n_layers][n_choices] of each layer so that the bytes add up to
 * at most budget and the costs to the least: exact, by dynamic programming over whole bytes. Of
 * equal costs the fewest bytes, then the lowest index in the last layer that differs. pick
 * [n_layers] gets indices. TQE_ERR_FULL: not even the smallest choices fit. */
tqe_status tqe_tune_solve(const tqe_tune_choice *choices, size_t n_layers, size_t n_choices,
                          uint64_t budget, uint32_t *pick, tqe_error *err);

#ifdef __cplusplus
}
#endif
#endif
