/* SPDX-License-Identifier: MIT */
/* eval.c — the sides of an evaluation and their measurement over one window.
 *
 * The hard idea: all sides advance together, one batch at a time, so that the logits of a batch are
 * all that is ever held; a window of a large vocabulary would take gigabytes. A reference stands
 * before the sides that are compared with it, hence its probabilities are there when they come.
 */
#include "eval.h"

#include "score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Logits of a batch: 8 MiB where the vocabulary allows it, 16 to 256 tokens. */
#define BATCH_LOGITS (1u << 21)

typedef struct side {
    tqe_eval_side info;
    tqe_session *session; /* ours, or */
    tqe_peer *peer;
    tqe_dist *own; /* of the running batch; NULL: no side is compared with this one */
    double *kl;    /* [n_ctx] */
    double *apart; /* [n_ctx], from the exact side */
    double *nll;   /* [n_ctx], the last one unset */
    bool *same;    /* [n_ctx] */
} side;

struct tqe_eval {
    const tqe_model *model;
    uint32_t n_vocab, n_ctx, n_cache, from, batch, n_threads, isa_mask;
    bool exact; /* schemes are pairs of sides, see tqe_eval_side.exact */
    const char *model_path;
    side *sides; /* [TQE_EVAL_MAX_SIDES] */
    size_t n_sides;
    tqe_dist of_exact; /* of the exact side of the pair that is running */
    float *logits;     /* [batch][n_vocab] */
    tqe_score *scores; /* [batch] */
    double *sorted;    /* [n_ctx] */
};

uint32_t tqe_eval_buckets(uint32_t n_ctx, uint32_t *width)
{
    uint32_t w = 256;
    if (n_ctx < 4 * w) {
        w = (n_ctx + 3) / 4;
    } else if (n_ctx > TQE_EVAL_MAX_BUCKETS * w) {
        w = (n_ctx + TQE_EVAL_MAX_BUCKETS - 1) / TQE_EVAL_MAX_BUCKETS;
    }
    *width = w;
    return (n_ctx - 1 + w - 1) / w; /* the last position is not scored */
}

uint32_t tqe_eval_default_from(uint32_t n_ctx)
{
    uint32_t width = 0;
    (void)tqe_eval_buckets(n_ctx, &width);
    return width < 256 ? width : 256;
}

/* ---- Life -------------------------------------------------------------------------------------
 */

static tqe_status no_memory(tqe_error *err)
{
    return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for an evaluation");
}

static tqe_status add_reference(const tqe_eval *e, side *s, tqe_error *err)
{
    s->own = calloc(1, sizeof(*s->own));
    return s->own != NULL && tqe_dist_init(s->own, e->batch, e->n_vocab) ? TQE_OK : no_memory(err);
}

static tqe_status add_arrays(const tqe_eval *e, side *s, tqe_error *err)
{
    s->kl = malloc(e->n_ctx * sizeof(*s->kl));
    s->apart = calloc(e->n_ctx, sizeof(*s->apart));
    s->nll = malloc(e->n_ctx * sizeof(*s->nll));
    s->same = malloc(e->n_ctx * sizeof(*s->same));
    return s->kl != NULL && s->apart != NULL && s->nll != NULL && s->same != NULL ? TQE_OK
                                                                                  : no_memory(err);
}

/* Is there a side of this kind with this name? */
static bool has_side(const tqe_eval *e, const char *kv, bool is_peer)
{
    for (size_t i = 0; i < e->n_sides; i++) {
        if (e->sides[i].info.is_peer == is_peer && strcmp(e->sides[i].info.kv, kv) == 0) {
            return true;
        }
    }
    return false;
}

/* exact: the index of the side on whose cache this one attends, 0: it has its own. */
static tqe_status add_side(tqe_eval *e, const char *kv, bool is_peer, uint32_t ref, uint32_t exact,
                           tqe_error *err)
{
    if (e->n_sides == TQE_EVAL_MAX_SIDES) {
        return tqe_fail(err, TQE_ERR_ARG,
                        "more than %d schemes, with f32, f16 and those of the peer",
                        TQE_EVAL_MAX_SIDES);
    }
    if (strlen(kv) >= sizeof(e->sides[0].info.kv)) {
        return tqe_fail(err, TQE_ERR_ARG, "the name of a KV scheme is too long");
    }
    side *s = &e->sides[e->n_sides];
    s->info = (tqe_eval_side){.is_peer = is_peer, .reference = ref, .exact = exact};
    strcpy(s->info.kv, kv);
    e->n_sides++; /* from here on it is freed with the eval */
    tqe_error why = {TQE_OK, ""};
    tqe_status st = TQE_OK;
    if (is_peer) {
        const tqe_peer_params p = {.n_ctx = e->n_cache,
                                   .n_threads = e->n_threads,
                                   .n_batch = e->batch,
                                   .kv_type = kv,
                                   .share = e->sides[e->n_sides - 2].peer};
        st = tqe_peer_create(&s->peer, e->model_path, &p, &why);
    } else if (exact == 0) {
        const tqe_session_params p = {.n_ctx = e->n_cache,
                                      .n_threads = e->n_threads,
                                      .n_batch = e->batch,
                                      .kv = kv,
                                      .isa_mask = e->isa_mask};
        st = tqe_session_create(&s->session, e->model, &p, &why);
    }
    if (st != TQE_OK) {
        return tqe_fail(err, st, "%s%s: %s", is_peer ? "llama " : "--kv ", kv, why.text);
    }
    return add_arrays(e, s, err);
}

/* Adds one of the user's schemes under its canonical name. exact: two sides, the first with
 * attn=dequant. */
static tqe_status add_scheme(tqe_eval *e, const char *kv, bool exact, tqe_error *err)
{
    tq_scheme scheme;
    char name[TQ_SCHEME_TEXT_BYTES];
    char why[TQ_SCHEME_ERROR_BYTES] = "";
    tq_status parsed = tq_scheme_parse(&scheme, kv, why, sizeof(why));
    for (int i = 0; i <= (int)exact; i++) {
        if (exact && parsed == TQ_OK) {
            scheme.attn = i == 0 ? TQ_ATTN_DEQUANT : TQ_ATTN_FUSED;
        }
        if (parsed != TQ_OK || tq_scheme_format(&scheme, name, sizeof(name)) != TQ_OK) {
            return tqe_fail(err, TQE_ERR_SCHEME, "KV scheme '%s': %s",
                            tqe_quote(kv, strlen(kv)).text, why);
        }
        if (has_side(e, name, false)) {
            return TQE_OK;
        }
        const uint32_t before = (uint32_t)e->n_sides - 1;
        const tqe_status st = add_side(e, name, false, 0, i == 1 ? before : 0, err);
        if (st != TQE_OK) {
            return st;
        }
    }
    return TQE_OK;
}

static tqe_status add_sides(tqe_eval *e, const tqe_eval_params *p, tqe_error *err)
{
    tqe_status st = add_side(e, "f32", false, 0, 0, err);
    if (st == TQE_OK && (st = add_reference(e, &e->sides[0], err)) == TQE_OK) {
        st = add_side(e, "f16", false, 0, 0, err);
    }
    for (size_t i = 0; st == TQE_OK && i < p->n_kv; i++) {
        st = add_scheme(e, p->kv[i], p->exact, err);
    }
    if (st != TQE_OK || p->n_peer_kv == 0) {
        return st;
    }
    const uint32_t first = (uint32_t)e->n_sides;
    if ((st = add_side(e, "f16", true, 0, 0, err)) == TQE_OK) {
        st = add_reference(e, &e->sides[first], err);
    }
    for (size_t i = 0; st == TQE_OK && i < p->n_peer_kv; i++) {
        if (!has_side(e, p->peer_kv[i], true)) {
            st = add_side(e, p->peer_kv[i], true, first, 0, err);
        }
    }
    return st;
}

static tqe_status eval_init(tqe_eval *e, const tqe_eval_params *p, tqe_error *err)
{
    tqe_model_info info;
    tqe_model_get_info(e->model, &info);
    if (p->n_ctx < TQE_EVAL_MIN_CTX || p->n_ctx > TQE_MAX_CTX || p->n_cache < p->n_ctx) {
        return tqe_fail(err, TQE_ERR_ARG, "windows of %u tokens: %d to %u are possible", p->n_ctx,
                        TQE_EVAL_MIN_CTX, TQE_MAX_CTX);
    }
    if (p->from >= p->n_ctx - 1) {
        return tqe_fail(err, TQE_ERR_ARG, "no position to score from %u on in windows of %u tokens",
                        p->from, p->n_ctx);
    }
    if (p->batch > TQE_EVAL_MAX_BATCH) {
        return tqe_fail(err, TQE_ERR_ARG, "steps of %u tokens: %d at most", p->batch,
                        TQE_EVAL_MAX_BATCH);
    }
    const uint32_t fit = BATCH_LOGITS / info.n_vocab;
    e->batch = p->batch != 0              ? p->batch
               : fit < 16                 ? 16
               : fit > TQE_EVAL_MAX_BATCH ? TQE_EVAL_MAX_BATCH
                                          : fit;
    e->n_vocab = info.n_vocab;
    e->n_ctx = p->n_ctx;
    e->n_cache = p->n_cache;
    e->from = p->from;
    e->exact = p->exact;
    e->n_threads = p->n_threads != 0 ? p->n_threads : tqe_physical_cores();
    e->isa_mask = p->isa_mask;
    e->model_path = p->model_path;
    e->sides = calloc(TQE_EVAL_MAX_SIDES, sizeof(*e->sides));
    e->logits = malloc((size_t)e->batch * e->n_vocab * sizeof(*e->logits));
    e->sorted = malloc(e->n_ctx * sizeof(*e->sorted));
    e->scores = malloc(e->batch * sizeof(*e->scores));
    if (e->sides == NULL || e->logits == NULL || e->sorted == NULL || e->scores == NULL ||
        (e->exact && !tqe_dist_init(&e->of_exact, e->batch, e->n_vocab))) {
        return no_memory(err);
    }
    return add_sides(e, p, err);
}

tqe_status tqe_eval_create(tqe_eval **out, const tqe_model *m, const tqe_eval_params *p,
                           tqe_error *err)
{
    if (out == NULL || m == NULL || p == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no model to evaluate");
    }
    *out = NULL;
    tqe_eval *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return no_memory(err);
    }
    e->model = m;
    const tqe_status st = eval_init(e, p, err);
    if (st != TQE_OK) {
        tqe_eval_free(e);
        return st;
    }
    e->model_path = NULL; /* not ours to keep */
    *out = e;
    return TQE_OK;
}

void tqe_eval_free(tqe_eval *e)
{
    if (e == NULL) {
        return;
    }
    for (size_t i = 0; i < e->n_sides; i++) {
        side *s = &e->sides[i];
        tqe_session_free(s->session);
        tqe_peer_free(s->peer);
        if (s->own != NULL) {
            tqe_dist_free(s->own);
            free(s->own);
        }
        free(s->kl);
        free(s->apart);
        free(s->nll);
        free(s->same);
    }
    tqe_dist_free(&e->of_exact);
    free(e->sides);
    free(e->logits);
    free(e->scores);
    free(e->sorted);
    free(e);
}

size_t tqe_eval_n_sides(const tqe_eval *e)
{
    return e->n_sides;
}

uint32_t tqe_eval_batch(const tqe_eval *e)
{
    return e->batch;
}

void tqe_eval_get_side(const tqe_eval *e, size_t i, tqe_eval_side *out)
{
    *out = e->sides[i].info;
}

/* ---- Running ----------------------------------------------------------------------------------
 */

static tqe_status side_fail(const side *s, tqe_error *err, tqe_status st, const char *why)
{
    return tqe_fail(err, st, "%s%s: %s", s->info.is_peer ? "llama " : "--kv ", s->info.kv, why);
}

static tqe_status side_run(const side *s, const int32_t *ids, size_t n, float *logits,
                           tqe_error *err)
{
    tqe_error why = {TQE_OK, ""};
    const tqe_status st = s->peer != NULL
                              ? tqe_peer_eval(s->peer, ids, n, logits, NULL, &why)
                              : tqe_session_eval(s->session, ids, n, logits, NULL, NULL, &why);
    return st == TQE_OK ? st : side_fail(s, err, st, why.text);
}

static tqe_status side_clear(const side *s, tqe_error *err)
{
    if (s->peer != NULL) {
        tqe_peer_clear(s->peer);
        return TQE_OK;
    }
    if (s->session == NULL) {
        return TQE_OK; /* another side's */
    }
    return tqe_session_truncate(s->session, 0, err);
}

static uint64_t side_bytes(const tqe_eval *e, const side *s)
{
    if (s->peer != NULL) {
        return (uint64_t)tqe_peer_kv_bytes_per_token(s->peer) * e->n_ctx;
    }
    tqe_session_info info;
    tqe_session_get_info(s->info.exact != 0 ? e->sides[s->info.exact].session : s->session, &info);
    return info.kv_bytes_used;
}

/* Whose threads score a side: those that made its logits, if they are ours. */
static tqe_session *threads_of(const tqe_eval *e, const side *s)
{
    const side *with_cache = s->info.exact != 0 ? &e->sides[s->info.exact] : s;
    return with_cache->session != NULL ? with_cache->session : e->sides[0].session;
}

/* Scores of n positions from `first` on. x: logits of the side. */
static tqe_status score(const tqe_eval *e, side *s, const float *x, const int32_t *ids,
                        uint32_t first, uint32_t n, tqe_error *err)
{
    const tqe_dist *ref = e->sides[s->info.reference].own;
    const tqe_status st = tqe_dist_score(ref, x, n, e->scores, threads_of(e, s), err);
    for (uint32_t i = 0; st == TQE_OK && i < n; i++, x += e->n_vocab) {
        const size_t at = (size_t)first + i;
        const tqe_score *r = &e->scores[i];
        if (!isfinite(r->lse) || !isfinite(r->kl)) {
            return side_fail(s, err, TQE_ERR_NUMERIC, "NaN or Inf in the logits");
        }
        s->kl[at] = r->kl;
        s->same[at] = r->top == ref->top[i];
        s->nll[at] = at + 1 < e->n_ctx ? r->lse - (double)x[ids[at + 1]] : 0;
    }
    return st;
}

/* A step on the rows that the exact side, which is before this one, has just stored, and how far
 * its logits are from those that the exact side has of it. */
static tqe_status side_again(const tqe_eval *e, side *s, uint32_t first, uint32_t n, tqe_error *err)
{
    tqe_error why = {TQE_OK, ""};
    tqe_session *exact = e->sides[s->info.exact].session;
    tqe_status st = tqe_session_again_fused(exact, n, e->logits, &why);
    if (st == TQE_OK) {
        st = tqe_dist_score(&e->of_exact, e->logits, n, e->scores, exact, &why);
    }
    for (uint32_t i = 0; st == TQE_OK && i < n; i++) {
        s->apart[first + i] = e->scores[i].kl;
    }
    return st == TQE_OK ? st : side_fail(s, err, st, why.text);
}

/* Is this the exact side of a pair? The other one is next. */
static bool is_exact(const tqe_eval *e, const side *s)
{
    const size_t i = (size_t)(s - e->sides);
    return i + 1 < e->n_sides && i != 0 && e->sides[i + 1].info.exact == i;
}

/* One batch on one side. */
static tqe_status side_batch(tqe_eval *e, side *s, const int32_t *ids, uint32_t first, uint32_t n,
                             tqe_error *err)
{
    tqe_dist *keep = s->own != NULL ? s->own : is_exact(e, s) ? &e->of_exact : NULL;
    float *logits = keep != NULL ? keep->logits : e->logits;
    tqe_status st = s->info.exact != 0 ? side_again(e, s, first, n, err)
                                       : side_run(s, ids + first, n, logits, err);
    if (st == TQE_OK && keep != NULL) {
        st = tqe_dist_keep(keep, n, threads_of(e, s), err);
    }
    return st == TQE_OK ? score(e, s, logits, ids, first, n, err) : st;
}

static void summarise(const tqe_eval *e, const side *s, tqe_eval_record *rec)
{
    const uint32_t end = e->n_ctx - 1;
    const double n = end - e->from;
    memset(rec, 0, sizeof(*rec));
    for (uint32_t i = e->from; i < end; i++) {
        rec->kl_mean += s->kl[i] / n;
        rec->kl_from_exact += s->apart[i] / n;
        rec->nll += s->nll[i] / n;
        rec->same_top += s->same[i] ? 1 : 0;
    }
    rec->same_top /= n;
    memcpy(e->sorted, s->kl + e->from, (end - e->from) * sizeof(*e->sorted));
    rec->kl_median = tqe_quantile(e->sorted, end - e->from, 0.5);
    rec->kl_p99 = tqe_quantile(e->sorted, end - e->from, 0.99);
    rec->kv_bytes = side_bytes(e, s);
    uint32_t width = 0;
    const uint32_t n_buckets = tqe_eval_buckets(e->n_ctx, &width);
    for (uint32_t b = 0; b < n_buckets; b++) {
        const uint32_t first = b * width;
        const uint32_t last = first + width < end ? first + width : end;
        for (uint32_t i = first; i < last; i++) {
            rec->bucket_kl[b] += s->kl[i] / (last - first);
            rec->bucket_same_top[b] += s->same[i] ? 1.0 / (last - first) : 0;
        }
    }
}

tqe_status tqe_eval_window(tqe_eval *e, const int32_t *ids, tqe_eval_record *records,
                           tqe_progress_fn *progress, void *ctx, tqe_error *err)
{
    const size_t total = (size_t)e->n_ctx * e->n_sides;
    size_t done = 0;
    for (size_t k = 0; k < e->n_sides; k++) {
        const tqe_status st = side_clear(&e->sides[k], err);
        if (st != TQE_OK) {
            return st;
        }
    }
    for (uint32_t first = 0; first < e->n_ctx; first += e->batch) {
        const uint32_t left = e->n_ctx - first;
        const uint32_t n = left < e->batch ? left : e->batch;
        for (size_t k = 0; k < e->n_sides; k++) {
            const tqe_status st = side_batch(e, &e->sides[k], ids, first, n, err);
            if (st != TQE_OK) {
                return st;
            }
            done += n;
            if (progress != NULL && !progress(ctx, done, total)) {
                return tqe_fail(err, TQE_ERR_CANCELLED, "stopped");
            }
        }
    }
    for (size_t k = 0; k < e->n_sides; k++) {
        summarise(e, &e->sides[k], &records[k]);
    }
    return TQE_OK;
}

/* ---- Needles ----------------------------------------------------------------------------------
 */

/* The answer's tokens come one row later than the tokens they follow. */
static tqe_status ask(tqe_eval *e, const side *s, const int32_t *ids, size_t n, size_t n_answer,
                      bool *hit, tqe_error *err)
{
    const size_t n_before = n - n_answer - 1;
    const int32_t *right = ids + n - n_answer;
    tqe_status st = side_clear(s, err);
    if (st == TQE_OK && n_before > 0) {
        st = side_run(s, ids, n_before, NULL, err);
    }
    *hit = true;
    for (size_t i = 0; st == TQE_OK && i < n_answer; i += e->batch) {
        const size_t left = n_answer - i;
        const size_t m = left < e->batch ? left : e->batch;
        st = side_run(s, right - 1 + i, m, e->logits, err);
        for (size_t k = 0; st == TQE_OK && k < m; k++) {
            const size_t top = tqe_argmax(e->logits + k * e->n_vocab, e->n_vocab);
            *hit = *hit && top == (size_t)right[i + k];
        }
    }
    return st;
}

tqe_status tqe_eval_needle(tqe_eval *e, const int32_t *ids, size_t n, size_t n_answer, bool *hits,
                           tqe_progress_fn *progress, void *ctx, tqe_error *err)
{
    if (ids == NULL || n_answer == 0 || n <= n_answer || n - 1 > e->n_cache) {
        return tqe_fail(err, TQE_ERR_ARG,
                        "a needle of %zu tokens with an answer of %zu does not fit %u", n, n_answer,
                        e->n_cache);
    }
    for (size_t k = 0; k < e->n_sides; k++) {
        if (e->sides[k].info.exact != 0) {
            return tqe_fail(err, TQE_ERR_ARG, "needles are not asked with attn=dequant beside");
        }
        const tqe_status st = ask(e, &e->sides[k], ids, n, n_answer, &hits[k], err);
        if (st != TQE_OK) {
            return st;
        }
        if (progress != NULL && !progress(ctx, (k + 1) * n, e->n_sides * n)) {
            return tqe_fail(err, TQE_ERR_CANCELLED, "stopped");
        }
    }
    return TQE_OK;
}
