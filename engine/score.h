/* SPDX-License-Identifier: MIT */
/* score.h — how far the predictions of a batch are from those of a reference. Internal to the
 * engine.
 *
 * All of it is shared out over the threads of a session by position. A position is the work of one
 * thread and its sums are in index order, so results are equal bits for any number of threads.
 */
#ifndef TQE_SCORE_H
#define TQE_SCORE_H

#include "engine_priv.h"

/* The distributions of a reference over a batch. */
typedef struct tqe_dist {
    size_t n_vocab, batch;
    float *logits; /* [batch][n_vocab], the caller fills these */
    double *probs; /* [batch][n_vocab] */
    double *lse;   /* [batch] */
    size_t *top;   /* [batch], the likeliest token */
} tqe_dist;

typedef struct tqe_score {
    double kl;  /* KL(reference || these logits), nats; not finite where one is not */
    double lse; /* log of the sum of the exponentials of these logits */
    size_t top;
} tqe_score;

/* False: out of memory; tqe_dist_free is right after that, too. */
bool tqe_dist_init(tqe_dist *d, size_t batch, size_t n_vocab);
void tqe_dist_free(tqe_dist *d);

/* Compute all of d from the first n of its logits, on the threads of s. */
tqe_status tqe_dist_keep(tqe_dist *d, size_t n, tqe_session *s, tqe_error *err);

/* scores [n] of logits [n][n_vocab] against the first n distributions of d, on the threads of s. */
tqe_status tqe_dist_score(const tqe_dist *d, const float *logits, size_t n, tqe_score *scores,
                          tqe_session *s, tqe_error *err);

#endif
