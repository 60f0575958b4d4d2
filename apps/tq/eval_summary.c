/* SPDX-License-Identifier: MIT */
/* eval_summary.c — from records to the numbers that are shown.
 *
 * Policy: a statistic is taken within each window and averaged over windows, so that the interval
 * beside it is that of the shown number; windows are what is drawn at random, positions within one
 * depend on each other. Two sides are compared within each window first.
 */
#include "evaluation.h"
#include "out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const tqe_eval_record *record(const evaluation *e, size_t window, size_t side)
{
    return &e->records[window * e->n_sides + side];
}

/* One field of a side's records, which are doubles at `offset`. */
static void gather(const evaluation *e, size_t side, size_t offset, double *dst)
{
    for (size_t w = 0; w < e->n_windows; w++) {
        memcpy(&dst[w], (const char *)record(e, w, side) + offset, sizeof *dst);
    }
}

#define FIELD(name) offsetof(tqe_eval_record, name)

static tqe_estimate estimate(const evaluation *e, size_t side, size_t offset, double *work)
{
    gather(e, side, offset, work);
    return tqe_mean(work, e->n_windows);
}

static void summarise_windows(const evaluation *e, size_t i, eval_row *row, double *work)
{
    const size_t ref = e->sides[i].reference;
    row->kl_mean = estimate(e, i, FIELD(kl_mean), work);
    row->kl_median = estimate(e, i, FIELD(kl_median), work);
    row->kl_p99 = estimate(e, i, FIELD(kl_p99), work);
    row->same_top = estimate(e, i, FIELD(same_top), work);
    row->ppl = tqe_exp_estimate(estimate(e, i, FIELD(nll), work));
    for (size_t w = 0; w < e->n_windows; w++) {
        work[w] = record(e, w, i)->nll - record(e, w, ref)->nll;
    }
    row->ppl_change = tqe_exp_estimate(tqe_mean(work, e->n_windows));
    for (size_t b = 0; b < e->n_buckets; b++) {
        row->bucket_kl[b] = estimate(e, i, FIELD(bucket_kl) + b * sizeof(double), work).value;
        row->bucket_same_top[b] =
            estimate(e, i, FIELD(bucket_same_top) + b * sizeof(double), work).value;
    }
    row->bytes_per_token = (double)record(e, 0, i)->kv_bytes / e->n_ctx;
    row->bits = row->bytes_per_token * 8 /
                ((double)e->model.n_layers * e->model.n_kv_heads * (e->model.d_k + e->model.d_v));
}

bool eval_is_reference(const evaluation *e, size_t side)
{
    /* f32 and f16 of ours, f16 of the peer: what has at least 16 bits is where the scale begins. */
    return side < 2 || (e->sides[side].is_peer && e->sides[side].reference == 0);
}

static bool on_front(const evaluation *e, const eval_row *rows, size_t i)
{
    for (size_t k = 0; k < e->n_sides; k++) {
        if (k != i && !eval_is_reference(e, k) && rows[k].bits <= rows[i].bits &&
            rows[k].kl_mean.value < rows[i].kl_mean.value) {
            return false;
        }
    }
    return !eval_is_reference(e, i);
}

/* "tcq4,kmean" of "tcq4,kmean=a.kmean". */
static void drop_files(const char *label, char *dst)
{
    static const char *const options[] = {",kmean=", ",layers="};
    while (*label) {
        size_t kept = 1, dropped = 0;
        for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
            size_t n = strlen(options[i]);
            if (!strncmp(label, options[i], n)) {
                kept = n - 1;
                dropped = 1 + strcspn(label + n, ",");
            }
        }
        memcpy(dst, label, kept);
        dst += kept;
        label += kept + dropped;
    }
    *dst = '\0';
}

/* Short names, but the whole ones where two are alike. */
static void name_rows(eval_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        drop_files(rows[i].label, rows[i].name);
    }
    for (size_t i = 0; i < n; i++) {
        char mine[sizeof rows[i].name], other[sizeof rows[i].name];
        drop_files(rows[i].label, mine);
        for (size_t k = 0; k < n; k++) {
            drop_files(rows[k].label, other);
            if (k != i && !strcmp(mine, other)) {
                memcpy(rows[i].name, rows[i].label, sizeof rows[i].name);
            }
        }
    }
}

bool eval_summarise(const evaluation *e, eval_row *rows)
{
    double *work = malloc((e->n_windows + 1) * sizeof *work);
    if (!work) {
        msg_error("not enough memory for a summary");
        return false;
    }
    for (size_t i = 0; i < e->n_sides; i++) {
        const tqe_eval_side *side = &e->sides[i];
        size_t n;
        size_t hits = eval_needle_hits(e, i, 0, -1, &n);
        rows[i] = (eval_row){.side = side, .needles = tqe_fraction(hits, n)};
        rows[i].reference = i == side->reference ? NULL : &e->sides[side->reference];
        snprintf(rows[i].label, sizeof rows[i].label, "%s%s", side->is_peer ? "llama " : "",
                 side->kv);
        if (e->n_windows) {
            summarise_windows(e, i, &rows[i], work);
        }
    }
    for (size_t i = 0; e->n_windows && i < e->n_sides; i++) {
        rows[i].on_front = on_front(e, rows, i);
    }
    name_rows(rows, e->n_sides);
    free(work);
    return true;
}

tqe_estimate eval_kl_ratio(const evaluation *e, size_t a, size_t b)
{
    tqe_estimate ratio = {NAN, NAN, NAN};
    double *work = malloc((2 * e->n_windows + 1) * sizeof *work);
    if (work && e->n_windows) {
        gather(e, a, FIELD(kl_mean), work);
        gather(e, b, FIELD(kl_mean), work + e->n_windows);
        ratio = tqe_ratio(work, work + e->n_windows, e->n_windows);
    }
    free(work);
    return ratio;
}

tqe_estimate eval_kl_over_exact(const evaluation *e, size_t side)
{
    const size_t exact = e->sides[side].exact;
    return exact ? eval_kl_ratio(e, side, exact) : (tqe_estimate){NAN, NAN, NAN};
}

tqe_estimate eval_kl_added(const evaluation *e, size_t side)
{
    const size_t exact = e->sides[side].exact;
    tqe_estimate ratio = {NAN, NAN, NAN};
    double *work = exact ? malloc((2 * e->n_windows + 1) * sizeof *work) : NULL;
    if (work && e->n_windows) {
        gather(e, side, FIELD(kl_from_exact), work);
        gather(e, exact, FIELD(kl_mean), work + e->n_windows);
        ratio = tqe_ratio(work, work + e->n_windows, e->n_windows);
    }
    free(work);
    return ratio;
}

/* ---- Needles ----------------------------------------------------------------------------- */

size_t eval_needle_lengths(const evaluation *e, uint32_t *dst)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_needles; i++) {
        size_t at = 0;
        while (at < n && dst[at] < e->needles[i].length) {
            at++;
        }
        if (at == n || dst[at] != e->needles[i].length) {
            memmove(dst + at + 1, dst + at, (n - at) * sizeof *dst);
            dst[at] = e->needles[i].length;
            n++;
        }
    }
    return n;
}

size_t eval_needle_depths(const evaluation *e, double *dst)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_needles; i++) {
        size_t at = 0;
        while (at < n && dst[at] < e->needles[i].depth) {
            at++;
        }
        if (at == n || dst[at] > e->needles[i].depth) {
            memmove(dst + at + 1, dst + at, (n - at) * sizeof *dst);
            dst[at] = e->needles[i].depth;
            n++;
        }
    }
    return n;
}

size_t eval_needle_hits(const evaluation *e, size_t side, uint32_t length, double depth, size_t *n)
{
    size_t hits = 0;
    *n = 0;
    for (size_t i = 0; i < e->n_needles; i++) {
        const eval_needle *k = &e->needles[i];
        if ((!length || k->length == length) && (depth < 0 || fabs(k->depth - depth) < 1e-9)) {
            ++*n;
            hits += e->hits[i * e->n_sides + side];
        }
    }
    return hits;
}

/* ---- Words ------------------------------------------------------------------------------- */

double eval_ppl_percent(const eval_row *r)
{
    double v = (r->ppl_change.value - 1) * 100;
    return fabs(v) < 0.005 ? 0 : v;
}

const char *eval_number(char dst[32], double v)
{
    double a = fabs(v);
    if (!isfinite(v)) {
        return strcpy(dst, "-");
    }
    if (a < 5e-7) {
        return strcpy(dst, "0");
    }
    snprintf(dst, 32, "%.*f",
             a < 0.0001   ? 6
             : a < 0.0995 ? 4
             : a < 0.9995 ? 3
             : a < 9.995  ? 2
             : a < 99.95  ? 1
                          : 0,
             v);
    return dst;
}

const char *eval_bucket_name(const evaluation *e, size_t bucket, char dst[32])
{
    size_t first = bucket * e->bucket_width, end = first + e->bucket_width;
    snprintf(dst, 32, "%zu-%zu", first, end < e->n_ctx ? end : (size_t)e->n_ctx);
    return dst;
}
