/* SPDX-License-Identifier: MIT */
/* sampler.c — choose the next token.
 *
 * Greedy is ours: the largest logit, the lowest id among equals. Otherwise a libllama chain in
 * its usual order: top-k, top-p, min-p, temperature, then a draw from a seeded generator. The same
 * seed and logits give the same tokens.
 */
#include "engine_priv.h"

#include <math.h>
#include <stdlib.h>

struct tqe_sampler {
    size_t n_vocab;
    struct llama_sampler *chain; /* NULL: greedy */
    llama_token_data *cand;      /* [n_vocab] */
};

static tqe_status check(const tqe_sampler_params *p, tqe_error *err)
{
    if (!(p->temp >= 0.0f && p->temp <= 100.0f)) {
        return tqe_fail(err, TQE_ERR_ARG, "temperature %g: 0 to 100 are possible", (double)p->temp);
    }
    if (p->top_k < 0) {
        return tqe_fail(err, TQE_ERR_ARG, "top-k %d: 0 (off) or more is possible", p->top_k);
    }
    if (!(p->top_p > 0.0f && p->top_p <= 1.0f)) {
        return tqe_fail(err, TQE_ERR_ARG, "top-p %g: above 0, up to 1 (off) is possible",
                        (double)p->top_p);
    }
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f)) {
        return tqe_fail(err, TQE_ERR_ARG, "min-p %g: 0 (off) to 1 is possible", (double)p->min_p);
    }
    return TQE_OK;
}

static struct llama_sampler *make_chain(const tqe_sampler_params *p)
{
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (chain == NULL) {
        return NULL;
    }
    if (p->top_k > 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(p->top_k));
    }
    if (p->top_p < 1.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_p(p->top_p, 1));
    }
    if (p->min_p > 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_min_p(p->min_p, 1));
    }
    llama_sampler_chain_add(chain, llama_sampler_init_temp(p->temp));
    /* LLAMA_DEFAULT_SEED (all ones) asks libllama for a random seed; ours is always itself. */
    const uint32_t seed = p->seed == LLAMA_DEFAULT_SEED ? LLAMA_DEFAULT_SEED - 1 : p->seed;
    llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
    return chain;
}

tqe_status tqe_sampler_create(tqe_sampler **out, const tqe_model *m, const tqe_sampler_params *p,
                              tqe_error *err)
{
    if (out == NULL || m == NULL || p == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no model or no sampling parameters");
    }
    *out = NULL;
    const tqe_status st = check(p, err);
    if (st != TQE_OK) {
        return st;
    }
    tqe_sampler *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    s->n_vocab = m->config.n_vocab;
    if (p->temp > 0.0f) {
        s->cand = malloc(s->n_vocab * sizeof(*s->cand));
        s->chain = make_chain(p);
        if (s->cand == NULL || s->chain == NULL) {
            tqe_sampler_free(s);
            return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
        }
    }
    *out = s;
    return TQE_OK;
}

void tqe_sampler_free(tqe_sampler *s)
{
    if (s == NULL) {
        return;
    }
    if (s->chain != NULL) {
        llama_sampler_free(s->chain);
    }
    free(s->cand);
    free(s);
}

tqe_status tqe_sampler_next(tqe_sampler *s, const float *logits, int32_t *id, tqe_error *err)
{
    if (s == NULL || logits == NULL || id == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no logits to sample from");
    }
    size_t best = 0;
    for (size_t i = 0; i < s->n_vocab; i++) {
        if (!isfinite(logits[i])) {
            return tqe_fail(err, TQE_ERR_NUMERIC, "logit %zu is not finite", i);
        }
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    if (s->chain == NULL) {
        *id = (int32_t)best;
        return TQE_OK;
    }
    for (size_t i = 0; i < s->n_vocab; i++) {
        s->cand[i] = (llama_token_data){(llama_token)i, logits[i], 0.0f};
    }
    llama_token_data_array a = {s->cand, s->n_vocab, -1, false};
    llama_sampler_apply(s->chain, &a);
    if (a.selected < 0 || (size_t)a.selected >= a.size) {
        return tqe_fail(err, TQE_ERR_NUMERIC, "the sampler chose no token");
    }
    *id = a.data[a.selected].id;
    llama_sampler_accept(s->chain, *id);
    return TQE_OK;
}
