/* SPDX-License-Identifier: MIT */
/* cache_model.h — random operations on a cache beside a naive model of it. Used by the test
 * model.cache, which draws the operations from a seed, and by the fuzz target, which takes them
 * from its input. The first difference is printed and aborts. */
#ifndef TQ_TEST_CACHE_MODEL_H
#define TQ_TEST_CACHE_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* Where choices come from: bytes (then the episode ends with them), or a seed. */
typedef struct cm_source {
    const uint8_t *data; /* NULL: the seed */
    size_t size;
    uint64_t seed;
} cm_source;

/* How often things happened: a run in which one never did has not tested it. */
typedef enum cm_event {
    CM_APPEND,
    CM_ABORT,
    CM_NONFINITE,
    CM_FULL,
    CM_FORK,
    CM_COPY,    /* of a shared tail page */
    CM_REFUSED, /* truncate or fork below the minimum */
    CM_TRUNCATE,
    CM_DROP_OLD, /* packed pages behind a window */
    CM_CONVERT,  /* f16 pages that are read packed from then on */
    CM_CLOSE,
    CM_IMPORT,
    CM_IMPORT_REFUSED,
    CM_ATTENTION,
    CM_N_EVENTS
} cm_event;

extern const char *const cm_event_names[CM_N_EVENTS];

/* One episode: a cache of a random configuration, up to n_ops operations, everything closed.
 * Returns the operations done. counts [CM_N_EVENTS] are added to. */
size_t cm_episode(cm_source *src, size_t n_ops, uint64_t *counts);

#endif
