/* SPDX-License-Identifier: MIT */
/* tune_solve.c — one choice for each layer, the least cost within a budget of bytes.
 *
 * The multiple-choice knapsack problem. It is NP-hard in general and easy here: sizes are whole
 * bytes per token, all multiples of a common divisor (the heads of a layer at least), so a table
 * over every possible size is small and its answer exact. best[w] is the least cost of the layers
 * so far in at most w units; a layer is added by trying each of its choices.
 */
#include "engine_priv.h"
#include "tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Entries of the table of picks, 2 bytes each. */
#define MAX_TABLE ((uint64_t)1 << 28)

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Common divisor of all sizes, and the sums of the smallest and of the largest ones. */
static uint64_t sizes(const tqe_tune_choice *c, size_t n_layers, size_t n_choices, uint64_t *least,
                      uint64_t *most)
{
    uint64_t unit = 0;
    *least = *most = 0;
    for (size_t i = 0; i < n_layers; i++, c += n_choices) {
        uint32_t low = c[0].bytes;
        uint32_t high = c[0].bytes;
        for (size_t k = 0; k < n_choices; k++) {
            low = c[k].bytes < low ? c[k].bytes : low;
            high = c[k].bytes > high ? c[k].bytes : high;
            unit = gcd(unit, c[k].bytes);
        }
        *least += low;
        *most += high;
    }
    return unit != 0 ? unit : 1;
}

/* One layer more: next [n] and its picks [n] from best [n]. */
static void add_layer(const tqe_tune_choice *c, size_t n_choices, uint64_t unit, uint64_t n,
                      const double *best, double *next, uint16_t *picks)
{
    for (uint64_t w = 0; w < n; w++) {
        next[w] = INFINITY;
        picks[w] = 0;
        for (size_t k = 0; k < n_choices; k++) {
            const uint64_t size = c[k].bytes / unit;
            const double cost = size <= w ? best[w - size] + c[k].cost : INFINITY;
            if (cost < next[w]) {
                next[w] = cost;
                picks[w] = (uint16_t)k;
            }
        }
    }
}

static tqe_status solve(const tqe_tune_choice *choices, size_t n_layers, size_t n_choices,
                        uint64_t unit, uint64_t n, uint32_t *pick, tqe_error *err)
{
    double *best = calloc(n, sizeof(*best)); /* no layers: no cost in any size */
    double *next = malloc(n * sizeof(*next));
    uint16_t *picks = malloc(n_layers * n * sizeof(*picks));
    const bool ok = best != NULL && next != NULL && picks != NULL;
    for (size_t i = 0; ok && i < n_layers; i++) {
        add_layer(choices + i * n_choices, n_choices, unit, n, best, next, picks + i * n);
        double *t = best;
        best = next;
        next = t;
    }
    if (ok) {
        /* Of equal costs the smallest size. */
        uint64_t w = 0;
        for (uint64_t i = 1; i < n; i++) {
            w = best[i] < best[w] ? i : w;
        }
        for (size_t i = n_layers; i-- > 0;) {
            pick[i] = picks[i * n + w];
            w -= choices[i * n_choices + pick[i]].bytes / unit;
        }
    }
    free(best);
    free(next);
    free(picks);
    return ok ? TQE_OK : tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the choice of formats");
}

tqe_status tqe_tune_solve(const tqe_tune_choice *choices, size_t n_layers, size_t n_choices,
                          uint64_t budget, uint32_t *pick, tqe_error *err)
{
    if (choices == NULL || pick == NULL || n_layers == 0 || n_choices == 0 ||
        n_choices > UINT16_MAX) {
        return tqe_fail(err, TQE_ERR_ARG, "nothing to choose from");
    }
    for (size_t i = 0; i < n_layers * n_choices; i++) {
        if (!isfinite(choices[i].cost)) {
            return tqe_fail(err, TQE_ERR_NUMERIC,
                            "the cost of choice %zu of layer %zu is no number", i % n_choices,
                            i / n_choices);
        }
    }
    uint64_t least = 0;
    uint64_t most = 0;
    const uint64_t unit = sizes(choices, n_layers, n_choices, &least, &most);
    if (budget < least) {
        return tqe_fail(err, TQE_ERR_FULL,
                        "a budget of %llu bytes: the smallest formats take %llu bytes a token",
                        (unsigned long long)budget, (unsigned long long)least);
    }
    const uint64_t n = (budget < most ? budget : most) / unit + 1;
    if (n > MAX_TABLE / n_layers) {
        return tqe_fail(err, TQE_ERR_NOMEM,
                        "a budget of %llu bytes in steps of %llu over %zu layers is too large",
                        (unsigned long long)budget, (unsigned long long)unit, n_layers);
    }
    return solve(choices, n_layers, n_choices, unit, n, pick, err);
}
