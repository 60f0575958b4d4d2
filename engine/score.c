/* SPDX-License-Identifier: MIT */
/* score.c — distributions of a batch, and divergences from them, on the threads that a session has.
 *
 * The hard idea: which threads. Those of a session spin for a while after each step; threads of our
 * own would share their cores with them. So the work goes as a custom node of a graph to the very
 * threads that have just made the logits.
 */
#include "score.h"

#include "eval_math.h"

#include "ggml.h"

#include <stdlib.h>

typedef struct job {
    tqe_dist *d;         /* to fill, or */
    const tqe_dist *ref; /* to compare with: */
    const float *logits; /* [n][n_vocab] */
    tqe_score *scores;   /* [n] */
    size_t n;
} job;

bool tqe_dist_init(tqe_dist *d, size_t batch, size_t n_vocab)
{
    *d = (tqe_dist){.n_vocab = n_vocab, .batch = batch};
    d->logits = malloc(batch * n_vocab * sizeof(*d->logits));
    d->probs = malloc(batch * n_vocab * sizeof(*d->probs));
    d->lse = malloc(batch * sizeof(*d->lse));
    d->top = malloc(batch * sizeof(*d->top));
    return d->logits != NULL && d->probs != NULL && d->lse != NULL && d->top != NULL;
}

void tqe_dist_free(tqe_dist *d)
{
    free(d->logits);
    free(d->probs);
    free(d->lse);
    free(d->top);
    *d = (tqe_dist){0};
}

/* Thread i of n takes positions i, i + n, ... */
static void run_keep(struct ggml_tensor *node, int i, int n, void *arg)
{
    (void)node;
    const job *j = arg;
    tqe_dist *d = j->d;
    for (size_t at = (size_t)i; at < j->n; at += (size_t)n) {
        const float *x = d->logits + at * d->n_vocab;
        d->lse[at] = tqe_log_sum_exp(x, d->n_vocab);
        d->top[at] = tqe_argmax(x, d->n_vocab);
        tqe_softmax(x, d->n_vocab, d->lse[at], d->probs + at * d->n_vocab);
    }
}

static void run_score(struct ggml_tensor *node, int i, int n, void *arg)
{
    (void)node;
    const job *j = arg;
    const tqe_dist *r = j->ref;
    for (size_t at = (size_t)i; at < j->n; at += (size_t)n) {
        const size_t first = at * r->n_vocab;
        const float *x = j->logits + first;
        const double lse = tqe_log_sum_exp(x, r->n_vocab);
        j->scores[at] = (tqe_score){
            .kl = tqe_kl(r->probs + first, r->logits + first, r->lse[at], x, lse, r->n_vocab),
            .lse = lse,
            .top = tqe_argmax(x, r->n_vocab)};
    }
}

/* Run fn as the only node of a graph. */
static tqe_status on_threads(tqe_session *s, ggml_custom_op_t fn, job *j, tqe_error *err)
{
    const struct ggml_init_params ip = {.mem_size = 2 * ggml_tensor_overhead() +
                                                    ggml_graph_overhead_custom(1, false),
                                        .no_alloc = true};
    int32_t nothing = 0; /* a node has data */
    struct ggml_context *ctx = ggml_init(ip);
    if (ctx == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a graph");
    }
    struct ggml_tensor *node =
        ggml_custom_4d(ctx, GGML_TYPE_I32, 1, 1, 1, 1, NULL, 0, fn, GGML_N_TASKS_MAX, j);
    node->data = &nothing;
    struct ggml_cgraph *graph = ggml_new_graph_custom(ctx, 1, false);
    ggml_build_forward_expand(graph, node);
    const bool ok =
        ggml_backend_graph_compute(tqe_session_backend(s), graph) == GGML_STATUS_SUCCESS;
    ggml_free(ctx);
    return ok ? TQE_OK : tqe_fail(err, TQE_ERR_NOMEM, "the threads of a session did not run");
}

tqe_status tqe_dist_keep(tqe_dist *d, size_t n, tqe_session *s, tqe_error *err)
{
    job j = {.d = d, .n = n};
    return on_threads(s, run_keep, &j, err);
}

tqe_status tqe_dist_score(const tqe_dist *d, const float *logits, size_t n, tqe_score *scores,
                          tqe_session *s, tqe_error *err)
{
    job j = {.ref = d, .logits = logits, .scores = scores, .n = n};
    return on_threads(s, run_score, &j, err);
}
