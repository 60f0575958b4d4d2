/* SPDX-License-Identifier: MIT */
/* tune_choices.c — what a layer may get, what that costs, and which ways to store all layers are
 * worth measuring.
 *
 * The hard idea: divergence adds up. The error of each layer and side is small and independent of
 * the others, so their second-order effects on the output add, and the cost of an assignment is the
 * sum of costs that were measured one at a time. That is a model; the candidates it yields are
 * measured as a whole before one is believed.
 *
 * A scheme has one family, so a side cannot be coded alone: keys of K bits are measured with values
 * of 6 bits and the other way round, and tcq6 is counted once. The scalar family has 8 bits, its
 * pairs with 8 on one side are measured as they are.
 */
#include "out.h"
#include "tuning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOW_BITS = 2, HIGH_BITS = 6 };

/* Above the cost of anything: no probability on earth diverges so. */
#define FORBIDDEN 1e9

static tq_scheme scheme_of(tq_family family, unsigned k, unsigned v)
{
    return (tq_scheme){.family = family, .k_bits = (uint8_t)k, .v_bits = (uint8_t)v};
}

static bool is_same(const tq_scheme *a, const tq_scheme *b)
{
    return a->family == b->family && a->k_bits == b->k_bits && a->v_bits == b->v_bits &&
           a->mean == b->mean;
}

/* ---- Pairs ------------------------------------------------------------------------------- */

static size_t scan_index(tuning *t, tq_scheme s)
{
    size_t i = 0;
    while (i < t->n_scan && !is_same(&t->scan[i], &s)) {
        i++;
    }
    if (i == t->n_scan) {
        t->scan[t->n_scan++] = s;
    }
    return i;
}

static bool add_pair(tuning *t, tq_family family, unsigned k, unsigned v)
{
    tune_pair *p = &t->pairs[t->n_pairs];
    tqe_error err = {0};
    *p = (tune_pair){.scheme = scheme_of(family, k, v), .n_terms = 1};
    if (tq_scheme_format(&p->scheme, p->name, sizeof p->name) != TQ_OK ||
        tqe_tune_layer_bytes(&t->e.model, &p->scheme, &p->bytes, &err) != TQE_OK) {
        msg_error("%s", err.text[0] ? err.text : "a format has no name");
        return false;
    }
    if (family != TQ_FAMILY_TRELLIS || k == HIGH_BITS || v == HIGH_BITS) {
        p->term[0] = scan_index(t, p->scheme);
    } else {
        p->n_terms = 3;
        p->term[0] = scan_index(t, scheme_of(family, k, HIGH_BITS));
        p->term[1] = scan_index(t, scheme_of(family, HIGH_BITS, v));
        p->term[2] = scan_index(t, scheme_of(family, HIGH_BITS, HIGH_BITS));
    }
    t->n_pairs++;
    return true;
}

bool tune_list_pairs(tuning *t)
{
    bool ok = true;
    /* Keys from few bits to many, then values: the order of the table that is shown. */
    for (unsigned k = LOW_BITS; k <= HIGH_BITS; k++) {
        scan_index(t, scheme_of(TQ_FAMILY_TRELLIS, k, HIGH_BITS));
    }
    for (unsigned k = LOW_BITS; ok && k <= HIGH_BITS; k++) {
        for (unsigned v = LOW_BITS; ok && v <= HIGH_BITS; v++) {
            ok = add_pair(t, TQ_FAMILY_TRELLIS, k, v);
        }
    }
    ok = ok && add_pair(t, TQ_FAMILY_NORM, 8, 8);
    /* One side at 8 bits is out of reach of a small budget, and costs measurements. */
    for (unsigned b = 4; ok && t->budget_bits >= 5 && b <= HIGH_BITS; b++) {
        ok = add_pair(t, TQ_FAMILY_NORM, 8, b) && add_pair(t, TQ_FAMILY_NORM, b, 8);
    }
    return ok && (t->budget_bits < 8 || add_pair(t, TQ_FAMILY_F16, 16, 16));
}

void tune_one_layer(const tuning *t, tq_scheme *layers, uint32_t layer, const tq_scheme *scheme)
{
    for (uint32_t i = 0; i < t->e.model.n_layers; i++) {
        layers[i] = scheme && i == layer ? *scheme : t->base;
    }
}

uint64_t tune_bytes(const tuning *t, const tq_scheme *layers)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->e.model.n_layers; i++) {
        uint32_t bytes = 0;
        tqe_tune_layer_bytes(&t->e.model, &layers[i], &bytes, NULL);
        sum += bytes;
    }
    return sum;
}

double tune_bits(const tuning *t, uint64_t bytes)
{
    const tqe_model_info *m = &t->e.model;
    return 8.0 * (double)bytes / ((double)m->n_layers * m->n_kv_heads * (m->d_k + m->d_v));
}

/* ---- Costs ------------------------------------------------------------------------------- */

/* Costs of all pairs from divergences kl [n_layers][n_scan]. */
static void fill(const tuning *t, const double *kl, double *costs)
{
    for (size_t l = 0; l < t->e.model.n_layers; l++, kl += t->n_scan) {
        for (size_t i = 0; i < t->n_pairs; i++) {
            const tune_pair *p = &t->pairs[i];
            double cost = kl[p->term[0]] - t->base_kl;
            cost += p->n_terms == 3 ? kl[p->term[1]] - kl[p->term[2]] : 0;
            *costs++ = cost;
        }
    }
}

bool tune_fill_costs(tuning *t)
{
    const uint32_t n_layers = t->e.model.n_layers;
    t->scan_kl = malloc(n_layers * t->n_scan * sizeof *t->scan_kl);
    t->costs = malloc(n_layers * t->n_pairs * sizeof *t->costs);
    tq_scheme *layers = calloc(n_layers, sizeof *layers);
    if (!t->scan_kl || !t->costs || !layers) {
        free(layers);
        msg_error("not enough memory for the costs");
        return false;
    }
    if (t->base.family != TQ_FAMILY_F32) {
        tune_one_layer(t, layers, 0, NULL);
        t->base_kl = tune_kl(t, layers, t->use_mean, TUNE_SCAN, NULL);
    }
    for (uint32_t l = 0; l < n_layers; l++) {
        for (size_t i = 0; i < t->n_scan; i++) {
            tune_one_layer(t, layers, l, &t->scan[i]);
            t->scan_kl[l * t->n_scan + i] = tune_kl(t, layers, t->use_mean, TUNE_SCAN, NULL);
        }
    }
    fill(t, t->scan_kl, t->costs);
    free(layers);
    return true;
}

/* A layer and a format each as one number: the logarithms of kl as row plus column, for columns of
 * the trellis that differ from the best in the same side. Averages noise away where it holds.
 * False: not all are above 0. */
static bool smooth(const tuning *t, double *kl, bool keys)
{
    const size_t n_layers = t->e.model.n_layers;
    double column[TUNE_MAX_CHOICES] = {0};
    bool is_in[TUNE_MAX_CHOICES];
    size_t n = 0;
    for (size_t i = 0; i < t->n_scan; i++) {
        const tq_scheme *s = &t->scan[i];
        is_in[i] = s->family == TQ_FAMILY_TRELLIS && (keys ? s->k_bits : s->v_bits) < HIGH_BITS;
        n += is_in[i];
        for (size_t l = 0; is_in[i] && l < n_layers; l++) {
            if (!(t->scan_kl[l * t->n_scan + i] > t->base_kl)) {
                return false;
            }
            column[i] += log(t->scan_kl[l * t->n_scan + i] - t->base_kl) / (double)n_layers;
        }
    }
    for (size_t l = 0; l < n_layers; l++) {
        double row = 0;
        for (size_t i = 0; i < t->n_scan; i++) {
            row += is_in[i]
                       ? (log(t->scan_kl[l * t->n_scan + i] - t->base_kl) - column[i]) / (double)n
                       : 0;
        }
        for (size_t i = 0; i < t->n_scan; i++) {
            kl[l * t->n_scan + i] =
                is_in[i] ? t->base_kl + exp(row + column[i]) : kl[l * t->n_scan + i];
        }
    }
    return true;
}

/* ---- Candidates -------------------------------------------------------------------------- */

/* Takes layers over. One that is there already, or NULL, is left out. */
static tune_named *add_named(tuning *t, tq_scheme *layers, bool mean, bool uniform)
{
    const uint32_t n_layers = t->e.model.n_layers;
    if (!layers || t->n_named == TUNE_MAX_NAMED) {
        free(layers);
        return NULL;
    }
    for (size_t i = 0; i < t->n_named; i++) {
        bool same = t->named[i].mean == mean && t->named[i].uniform == uniform;
        for (uint32_t l = 0; same && l < n_layers; l++) {
            same = is_same(&t->named[i].layers[l], &layers[l]);
        }
        if (same) {
            free(layers);
            return NULL;
        }
    }
    tune_named *n = &t->named[t->n_named++];
    *n = (tune_named){.layers = layers,
                      .mean = mean,
                      .uniform = uniform,
                      .bytes = tune_bytes(t, layers),
                      .predicted = NAN,
                      .choose = NAN};
    return n;
}

static tq_scheme *all_alike(const tuning *t, const tq_scheme *s)
{
    tq_scheme *layers = malloc(t->e.model.n_layers * sizeof *layers);
    for (uint32_t i = 0; layers && i < t->e.model.n_layers; i++) {
        layers[i] = *s;
    }
    return layers;
}

/* The optimum of these costs; pairs beyond [low, high] bits are left out. */
static bool add_optimum(tuning *t, const char *label, const double *costs, unsigned low,
                        unsigned high)
{
    const size_t n_layers = t->e.model.n_layers;
    tqe_tune_choice *c = malloc(n_layers * t->n_pairs * sizeof *c);
    uint32_t *pick = malloc(n_layers * sizeof *pick);
    tq_scheme *layers = malloc(n_layers * sizeof *layers);
    tqe_error err = {0};
    bool ok = c && pick && layers;
    for (size_t i = 0; ok && i < n_layers * t->n_pairs; i++) {
        const tune_pair *p = &t->pairs[i % t->n_pairs];
        bool in = p->scheme.k_bits >= low && p->scheme.k_bits <= high && p->scheme.v_bits >= low &&
                  p->scheme.v_bits <= high;
        c[i] = (tqe_tune_choice){.bytes = p->bytes, .cost = in ? costs[i] : FORBIDDEN};
    }
    if (!ok) {
        msg_error("not enough memory for the candidates");
    } else if (tqe_tune_solve(c, n_layers, t->n_pairs, t->budget, pick, &err) != TQE_OK) {
        msg_error("%s", err.text);
        ok = false;
    }
    double predicted = t->base_kl;
    bool inside = true;
    for (size_t l = 0; ok && l < n_layers; l++) {
        layers[l] = t->pairs[pick[l]].scheme;
        predicted += t->costs[l * t->n_pairs + pick[l]]; /* as measured, whatever was optimised */
        inside = inside && c[l * t->n_pairs + pick[l]].cost < FORBIDDEN;
    }
    free(c);
    free(pick);
    if (!ok || !inside) {
        free(layers);
        return ok;
    }
    tune_named *n = add_named(t, layers, t->use_mean, false);
    if (n) {
        snprintf(n->label, sizeof n->label, "%s", label);
        n->predicted = predicted;
    }
    return true;
}

static bool list_optima(tuning *t)
{
    const size_t n_scan = t->e.model.n_layers * t->n_scan;
    const unsigned middle = (unsigned)t->budget_bits;
    double *kl = malloc(n_scan * sizeof *kl);
    double *costs = malloc(t->e.model.n_layers * t->n_pairs * sizeof *costs);
    bool ok = kl && costs;
    if (!ok) {
        msg_error("not enough memory for the candidates");
    }
    ok = ok && add_optimum(t, "optimum", t->costs, 0, 16) &&
         add_optimum(t, "optimum, near bits", t->costs, middle - 1, middle + 1);
    if (ok) {
        memcpy(kl, t->scan_kl, n_scan * sizeof *kl);
        if (smooth(t, kl, true) && smooth(t, kl, false)) {
            fill(t, kl, costs);
            ok = add_optimum(t, "optimum, smoothed", costs, 0, 16);
        }
    }
    free(kl);
    free(costs);
    return ok;
}

bool tune_plain(const tuning *t, tq_scheme *out)
{
    bool found = false;
    uint64_t best = 0;
    for (size_t i = 0; i < t->n_pairs; i++) {
        const tune_pair *p = &t->pairs[i];
        uint64_t bytes = (uint64_t)p->bytes * t->e.model.n_layers;
        if (p->scheme.k_bits == p->scheme.v_bits && bytes <= t->budget && bytes >= best) {
            best = bytes;
            *out = p->scheme;
            found = true;
        }
    }
    return found;
}

static double predict_uniform(const tuning *t, size_t pair)
{
    double sum = t->base_kl;
    for (size_t l = 0; l < t->e.model.n_layers; l++) {
        sum += t->costs[l * t->n_pairs + pair];
    }
    return sum;
}

/* The pair that is predicted best as a uniform scheme, of those not taken. n_pairs: none fits. */
static size_t best_uniform(const tuning *t, const bool *taken)
{
    size_t best = t->n_pairs;
    for (size_t i = 0; i < t->n_pairs; i++) {
        bool fits = (uint64_t)t->pairs[i].bytes * t->e.model.n_layers <= t->budget;
        if (fits && !taken[i] &&
            (best == t->n_pairs || predict_uniform(t, i) < predict_uniform(t, best))) {
            best = i;
        }
    }
    return best;
}

static void add_uniform(tuning *t, const tq_scheme *s, bool mean, double predicted)
{
    tune_named *n = add_named(t, all_alike(t, s), mean, !mean);
    if (n) {
        char name[TQ_SCHEME_TEXT_BYTES] = "";
        tq_scheme_format(s, name, sizeof name);
        snprintf(n->label, sizeof n->label, "%s%s", name, mean ? " + key mean" : "");
        n->predicted = predicted;
    }
}

bool tune_list_named(tuning *t)
{
    enum { UNIFORM = 3 };
    bool taken[TUNE_MAX_CHOICES] = {false};
    tq_scheme plain;
    if (!list_optima(t)) {
        return false;
    }
    for (int i = 0; i < UNIFORM; i++) {
        size_t best = best_uniform(t, taken);
        if (best < t->n_pairs) {
            taken[best] = true;
            double predicted = predict_uniform(t, best);
            if (i == 0 && t->use_mean) {
                add_uniform(t, &t->pairs[best].scheme, true, predicted);
            }
            add_uniform(t, &t->pairs[best].scheme, false, t->use_mean ? NAN : predicted);
        }
    }
    if (tune_plain(t, &plain)) {
        add_uniform(t, &plain, false, NAN);
        uint32_t bytes = 0;
        plain.mean = plain.family != TQ_FAMILY_F16;
        if (plain.mean && tqe_tune_layer_bytes(&t->e.model, &plain, &bytes, NULL) == TQE_OK &&
            (uint64_t)bytes * t->e.model.n_layers <= t->budget) {
            add_uniform(t, &plain, false, NAN);
        }
    }
    return true;
}
