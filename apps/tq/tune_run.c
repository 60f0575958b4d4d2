/* SPDX-License-Identifier: MIT */
/* tune_run.c — the measurements of a tuning, in order.
 *
 *   calibrate   the mean of the keys, over windows that serve for nothing else
 *   mean        does it help a plain scheme, on windows that it was not made from
 *   scan        each format in each layer, all others as the base
 *   choose      the candidates and the uniform schemes, as a whole
 *   final       the best of each on windows that nobody has looked at
 *
 * Each step asks for facts and computes those that are missing; the state is written after each
 * group of variants over a window.
 */
#include "generate.h"
#include "out.h"
#include "text.h"
#include "tuning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Candidates and held-out variants before they are known, for the estimate of the time. */
enum { GUESS_NAMED = 8, GUESS_FINAL = 5, FINAL_UNIFORM = 2 };

typedef struct want {
    const tq_scheme *layers;
    bool mean;
    char *key;
} want;

/* ---- Progress ---------------------------------------------------------------------------- */

typedef struct progress {
    tuning *t;
    size_t n_before;
} progress;

static bool on_progress(void *ctx, size_t n_done, size_t n_total)
{
    (void)n_total;
    progress *p = ctx;
    tuning *t = p->t;
    t->n_done = p->n_before + n_done;
    double now = text_now(), passed = now - t->start;
    size_t total = t->n_total > t->n_done ? t->n_total : t->n_done;
    char line[128], time[32];
    snprintf(line, sizeof line, "%s, %zu %% done, %s left", t->stage, t->n_done * 100 / total,
             text_time(time, passed * (double)(total - t->n_done) / (double)t->n_done));
    msg_status(line);
    /* Into a log file goes a line a minute. */
    if (!err_is_tty() && now - t->noted > 60) {
        msg_note("%s", line);
        t->noted = now;
    }
    return !gen_interrupted();
}

static void known(tuning *t)
{
    t->n_total -= t->n_total > t->params.n_ctx ? t->params.n_ctx : 0;
}

static size_t passes(const tuning *t, size_t n_variants)
{
    size_t group = tqe_tune_group(t->model, &t->params);
    return n_variants + (n_variants + group - 1) / group;
}

static void estimate(tuning *t)
{
    size_t n = t->n_of[TUNE_CALIBRATE], n_before = t->n_summed + t->n_facts;
    n += t->n_of[TUNE_CHOOSE] * (passes(t, 2) + passes(t, GUESS_NAMED));
    n += t->n_of[TUNE_SCAN] * (passes(t, t->n_scan * t->e.model.n_layers) + passes(t, 1));
    n += t->n_of[TUNE_FINAL] * passes(t, GUESS_FINAL);
    t->n_total = (n - t->n_summed) * t->params.n_ctx;
    char a[32], b[32], c[32];
    if (n_before) {
        msg_note("%s passes over windows of %s tokens, but for %s that %s measured before",
                 text_count(a, n), text_count(b, t->params.n_ctx), text_count(c, n_before),
                 n_before == 1 ? "was" : "were");
    } else {
        msg_note(
            "%s passes over windows of %s tokens; the first ones will tell how long that takes",
            text_count(a, n), text_count(b, t->params.n_ctx));
    }
}

/* ---- Facts ------------------------------------------------------------------------------- */

double tune_kl(const tuning *t, const tq_scheme *layers, bool mean, tune_role role, double *values)
{
    char *key = tune_key(t, layers, mean);
    double sum = key ? 0 : NAN;
    for (uint32_t i = 0; key && i < t->n_of[role]; i++) {
        const tune_fact *f = tune_find(t, key, t->windows[role][i]);
        double v = f ? f->kl : NAN;
        if (values) {
            values[i] = v;
        }
        sum += v;
    }
    free(key);
    return sum / t->n_of[role];
}

/* A group of variants over one window. */
static tqe_status measure_group(tuning *t, const want *wants, const size_t *which, size_t n,
                                uint32_t window, tqe_error *err)
{
    double kl[64];
    tqe_tune_variant v[64];
    progress p = {.t = t, .n_before = t->n_done};
    for (size_t i = 0; i < n; i++) {
        const want *w = &wants[which[i]];
        v[i] = (tqe_tune_variant){.layers = w->layers, .k_mean = w->mean ? t->k_mean : NULL};
    }
    tqe_status st =
        tqe_tune_window(t->model, &t->params, t->e.windows + (size_t)window * t->e.n_ctx, v, n, kl,
                        on_progress, &p, err);
    for (size_t i = 0; st == TQE_OK && i < n; i++) {
        if (!tune_learn(t, wants[which[i]].key, window, kl[i])) {
            return TQE_ERR_NOMEM;
        }
    }
    return st != TQE_OK || tune_save_state(t) ? st : TQE_ERR_IO;
}

/* Every variant over every window of a role. */
static tqe_status measure(tuning *t, const want *wants, size_t n, tune_role role, tqe_error *err)
{
    size_t which[64], group = tqe_tune_group(t->model, &t->params), n_group = 0;
    group = group < 64 ? group : 64;
    tqe_status st = TQE_OK;
    for (uint32_t w = 0; st == TQE_OK && w < t->n_of[role]; w++) {
        uint32_t window = t->windows[role][w];
        for (size_t i = 0; st == TQE_OK && i < n; i++) {
            if (tune_find(t, wants[i].key, window)) {
                known(t);
            } else {
                which[n_group++] = i;
            }
            if (n_group == group || (n_group && i + 1 == n)) {
                st = measure_group(t, wants, which, n_group, window, err);
                n_group = 0;
            }
        }
    }
    return st;
}

static tqe_status out_of_memory(tqe_error *err)
{
    snprintf(err->text, sizeof err->text, "not enough memory for what is to be measured");
    return TQE_ERR_NOMEM;
}

/* wants [n] with layers and mean set; their keys are made and freed here. */
static tqe_status measure_all(tuning *t, want *wants, size_t n, tune_role role, tqe_error *err)
{
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        wants[i].key = tune_key(t, wants[i].layers, wants[i].mean);
        ok = ok && wants[i].key;
    }
    tqe_status st = ok ? measure(t, wants, n, role, err) : out_of_memory(err);
    for (size_t i = 0; i < n; i++) {
        free(wants[i].key);
    }
    return st;
}

/* ---- Steps ------------------------------------------------------------------------------- */

static tqe_status calibrate(tuning *t, tqe_error *err)
{
    const tqe_model_info *m = &t->e.model;
    const size_t n = (size_t)m->n_layers * m->n_kv_heads * m->d_k;
    t->stage = "calibrating";
    while (t->n_summed < t->n_of[TUNE_CALIBRATE]) {
        uint32_t w = t->windows[TUNE_CALIBRATE][t->n_summed];
        progress p = {.t = t, .n_before = t->n_done};
        double before = text_now();
        tqe_status st =
            tqe_tune_add_keys(t->model, &t->params, t->e.windows + (size_t)w * t->e.n_ctx, t->sums,
                              on_progress, &p, err);
        if (st != TQE_OK) {
            return st;
        }
        if (++t->n_summed == t->n_of[TUNE_CALIBRATE]) {
            /* A pass without logits is cheaper than one with them. */
            char time[32];
            double pass = text_now() - before;
            msg_status(NULL);
            msg_note("more than %s at this machine's speed",
                     text_time(time, pass * (double)(t->n_total - t->n_done) / t->params.n_ctx));
        }
        if (!tune_save_state(t)) {
            return TQE_ERR_IO;
        }
    }
    for (size_t i = 0; i < n; i++) {
        t->k_mean[i] = (float)(t->sums[i] / t->n_of[TUNE_CALIBRATE]);
    }
    return TQE_OK;
}

/* Two variants of the same layers: without the mean and with it. */
static tqe_status check_mean(tuning *t, tqe_error *err)
{
    tq_scheme plain;
    const uint32_t n_layers = t->e.model.n_layers, n = t->n_of[TUNE_CHOOSE];
    tq_scheme *layers = malloc(n_layers * sizeof *layers);
    double *kl = malloc(2 * (size_t)n * sizeof *kl);
    if (!layers || !kl || !tune_plain(t, &plain)) {
        free(layers);
        free(kl);
        return out_of_memory(err);
    }
    t->stage = "key mean";
    for (uint32_t i = 0; i < n_layers; i++) {
        layers[i] = plain;
    }
    tq_scheme_format(&plain, t->mean_scheme, sizeof t->mean_scheme);
    want wants[2] = {{.layers = layers, .mean = false}, {.layers = layers, .mean = true}};
    tqe_status st = measure_all(t, wants, 2, TUNE_CHOOSE, err);
    if (st == TQE_OK) {
        double without = tune_kl(t, layers, false, TUNE_CHOOSE, kl);
        double with = tune_kl(t, layers, true, TUNE_CHOOSE, kl + n);
        t->mean_ratio = tqe_ratio(kl + n, kl, n);
        /* In doubt the simpler answer: the whole interval must be below 1. */
        t->use_mean = with < without && !(t->mean_ratio.high >= 1);
    }
    free(layers);
    free(kl);
    return st;
}

static tqe_status scan(tuning *t, tqe_error *err)
{
    const uint32_t n_layers = t->e.model.n_layers;
    const size_t n = n_layers * t->n_scan;
    want *wants = calloc(n + 1, sizeof *wants);
    tq_scheme *layers = malloc((n + 1) * n_layers * sizeof *layers);
    if (!wants || !layers) {
        free(wants);
        free(layers);
        return out_of_memory(err);
    }
    t->stage = "scanning layers";
    for (uint32_t l = 0; l < n_layers; l++) {
        for (size_t i = 0; i < t->n_scan; i++) {
            size_t at = l * t->n_scan + i;
            wants[at] = (want){.layers = layers + at * n_layers, .mean = t->use_mean};
            tune_one_layer(t, layers + at * n_layers, l, &t->scan[i]);
        }
    }
    wants[n] = (want){.layers = layers + n * n_layers, .mean = t->use_mean};
    tune_one_layer(t, layers + n * n_layers, 0, NULL);
    const size_t base = t->base.family != TQ_FAMILY_F32 ? 1 : 0; /* f32 has no divergence */
    tqe_status st = measure_all(t, wants, n + base, TUNE_SCAN, err);
    free(wants);
    free(layers);
    return st;
}

static tqe_status measure_named(tuning *t, const size_t *which, size_t n, tune_role role,
                                tqe_error *err)
{
    want wants[TUNE_MAX_NAMED];
    for (size_t i = 0; i < n; i++) {
        const tune_named *m = &t->named[which ? which[i] : i];
        wants[i] = (want){.layers = m->layers, .mean = m->mean};
    }
    return measure_all(t, wants, n, role, err);
}

/* Index of the named variant of a kind with the least divergence, of those not taken. */
static size_t best_named(const tuning *t, bool uniform, const bool *taken)
{
    size_t best = t->n_named;
    for (size_t i = 0; i < t->n_named; i++) {
        if (t->named[i].uniform == uniform && !taken[i] &&
            (best == t->n_named || t->named[i].choose < t->named[best].choose)) {
            best = i;
        }
    }
    return best;
}

static void put_final(tuning *t, size_t i, bool *taken)
{
    if (i < t->n_named && !taken[i]) {
        taken[i] = true;
        t->final[t->n_final++] = i;
    }
}

static tqe_status choose(tuning *t, tqe_error *err)
{
    bool taken[TUNE_MAX_NAMED] = {false};
    t->stage = "candidates";
    if (!tune_fill_costs(t) || !tune_list_named(t)) {
        return TQE_ERR_NOMEM; /* a message was written */
    }
    t->n_total += t->params.n_ctx * t->n_of[TUNE_CHOOSE] * t->n_named;
    t->n_total -= t->params.n_ctx * t->n_of[TUNE_CHOOSE] * GUESS_NAMED;
    tqe_status st = measure_named(t, NULL, t->n_named, TUNE_CHOOSE, err);
    if (st != TQE_OK) {
        return st;
    }
    for (size_t i = 0; i < t->n_named; i++) {
        tune_named *n = &t->named[i];
        n->choose = tune_kl(t, n->layers, n->mean, TUNE_CHOOSE, NULL);
    }
    t->winner = best_named(t, false, taken);
    put_final(t, t->winner, taken);
    for (int i = 0; i < FINAL_UNIFORM; i++) {
        put_final(t, best_named(t, true, taken), taken);
    }
    /* What the mean alone does. */
    for (size_t i = 0; i < t->n_named; i++) {
        const tune_named *n = &t->named[i];
        bool alike = !n->uniform && strstr(n->label, "key mean");
        if (alike) {
            put_final(t, i, taken);
        }
    }
    return TQE_OK;
}

static tqe_status hold_out(tuning *t, tqe_error *err)
{
    const uint32_t n = t->n_of[TUNE_FINAL];
    double *kl = malloc(2 * (size_t)n * sizeof *kl);
    if (!kl) {
        return out_of_memory(err);
    }
    t->stage = "held-out windows";
    tqe_status st = measure_named(t, t->final, t->n_final, TUNE_FINAL, err);
    if (st == TQE_OK) {
        /* Prediction and measurement on the same windows: does divergence add up? */
        st = measure_named(t, &t->winner, 1, TUNE_SCAN, err);
    }
    if (st == TQE_OK) {
        const tune_named *w = &t->named[t->winner];
        t->scan_measured = tune_kl(t, w->layers, w->mean, TUNE_SCAN, NULL);
        double mine = tune_kl(t, w->layers, w->mean, TUNE_FINAL, kl), best = INFINITY;
        for (size_t i = 0; i < t->n_final; i++) {
            const tune_named *u = &t->named[t->final[i]];
            double theirs =
                u->uniform ? tune_kl(t, u->layers, u->mean, TUNE_FINAL, NULL) : INFINITY;
            if (theirs < best) {
                best = theirs;
                t->rival = t->final[i];
            }
        }
        const tune_named *r = &t->named[t->rival];
        tune_kl(t, r->layers, r->mean, TUNE_FINAL, kl + n);
        t->ratio = tqe_ratio(kl, kl + n, n);
        t->fell_back = !(mine <= best);
    }
    free(kl);
    return st;
}

tqe_status tune_run(tuning *t, tqe_error *err)
{
    t->start = t->noted = text_now();
    estimate(t);
    tqe_status st = calibrate(t, err);
    st = st == TQE_OK ? check_mean(t, err) : st;
    st = st == TQE_OK ? scan(t, err) : st;
    st = st == TQE_OK ? choose(t, err) : st;
    st = st == TQE_OK ? hold_out(t, err) : st;
    msg_status(NULL);
    return st;
}
