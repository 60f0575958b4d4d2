/* SPDX-License-Identifier: MIT */
/* eval_table.c — the result for people at a terminal, within 80 columns, and as CSV.
 *
 * Policy: the noise floor (f16 against f32, and one engine against the other) stands in every table
 * of divergences: what is not far above it has not been measured.
 */
#define _POSIX_C_SOURCE 200809L
#include "evaluation.h"
#include "out.h"
#include "save.h"
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_COLUMNS = 20, SHOWN_BUCKETS = 8, SHOWN_PEERS = 5 };

static void heading(const char *text)
{
    out_printf("\n%s%s%s\n", out_bold(), text, out_plain());
}

/* A name, shortened with "..." when the table has no room for it. */
static void put_name(const char *s)
{
    size_t n = strlen(s);
    if (n < NAME_COLUMNS) {
        out_printf("%-*s", NAME_COLUMNS, s);
    } else {
        out_printf("%.*s... ", NAME_COLUMNS - 4, s);
    }
}

/* "16.3 ±1.7": the half width of the interval, which is symmetric. */
static void put_pm(tqe_estimate v, double scale, int width, int pm_width)
{
    char a[32], b[32];
    eval_number(a, v.value * scale);
    out_printf(" %*s", width, a);
    if (isfinite(v.high)) {
        out_printf(" \xc2\xb1%-*s", pm_width, eval_number(b, (v.high - v.value) * scale));
    } else {
        out_printf("  %*s", pm_width, "");
    }
}

/* Does a side keep its newest tokens as f16 rows? */
static bool any_tail(const evaluation *e)
{
    for (size_t i = 0; i < e->n_sides; i++) {
        tq_scheme s;
        if (!e->sides[i].is_peer && tq_scheme_parse(&s, e->sides[i].kv, NULL, 0) == TQ_OK &&
            s.tail > 0) {
            return true;
        }
    }
    return false;
}

static void put_divergence(const evaluation *e, const eval_row *rows)
{
    char a[32], b[32];
    heading("Divergence: KL in 1e-3 nats, mean, median and 99th percentile over positions");
    out_printf("%-*s%6s  %-15s%8s %8s   %s\n", NAME_COLUMNS, "", "bits", "   mean KL", "median",
               "p99", "same top, %");
    for (size_t i = 0; i < e->n_sides; i++) {
        const eval_row *r = &rows[i];
        put_name(r->name);
        out_printf("%6.2f ", r->bits);
        if (!r->reference) {
            out_printf("   reference\n");
            continue;
        }
        put_pm(r->kl_mean, 1e3, 7, 6);
        out_printf("%8s %8s ", eval_number(a, r->kl_median.value * 1e3),
                   eval_number(b, r->kl_p99.value * 1e3));
        out_printf(" %6.2f", r->same_top.value * 100);
        if (isfinite(r->same_top.high)) {
            out_printf(" \xc2\xb1%.2f", (r->same_top.high - r->same_top.value) * 100);
        }
        out_write("\n", 1);
    }
    out_printf("f16 is the noise floor. \xc2\xb1: half of the 95 %% interval over %zu %s.\n",
               e->n_windows, e->n_windows == 1 ? "window (none)" : "windows");
    for (size_t i = 0; i < e->n_sides; i++) {
        if (strcmp(rows[i].name, rows[i].label) != 0) {
            out_printf("%s: %s\n", rows[i].name, rows[i].label);
        }
    }
}

/* Peers that have a place on the chart. */
static size_t list_peers(const evaluation *e, size_t *dst)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_sides && n < SHOWN_PEERS; i++) {
        if (e->sides[i].is_peer && !eval_is_reference(e, i)) {
            dst[n++] = i;
        }
    }
    return n;
}

/* Ratios are near 1, where two decimals say enough. */
static const char *short_number(char dst[32], double v)
{
    double a = fabs(v);
    snprintf(dst, 32, "%.*f", a < 0.0995 ? 3 : a < 9.995 ? 2 : a < 99.95 ? 1 : 0, v);
    return dst;
}

static void put_size(const evaluation *e, const eval_row *rows)
{
    heading("Size and perplexity");
    out_printf("%-*s%6s%9s%9s%11s  %s\n", NAME_COLUMNS, "", "bits", "B/token", "of f16", "PPL",
               "PPL change, %");
    for (size_t i = 0; i < e->n_sides; i++) {
        const eval_row *r = &rows[i];
        put_name(r->name);
        out_printf("%6.2f%9.0f%8.1f%%%11.3f", r->bits, r->bytes_per_token,
                   100 * r->bytes_per_token / rows[1].bytes_per_token, r->ppl.value);
        if (r->reference) {
            out_printf(" %+7.2f", eval_ppl_percent(r));
        }
        if (r->reference && isfinite(r->ppl_change.high)) {
            out_printf(" \xc2\xb1%.2f", (r->ppl_change.high - r->ppl_change.value) * 100);
        }
        out_write("\n", 1);
    }
    if (any_tail(e)) {
        out_printf(
            "tail=N: its f16 rows take whole pages of %d tokens, which a short context pays\n"
            "for, too.\n",
            TQ_PAGE_TOKENS);
    }
}

/* One side over the peers [n]. */
static void put_ratio_row(const evaluation *e, size_t side, const size_t *peers, size_t n)
{
    char a[32], b[32], line[96];
    for (size_t k = 0; k < n; k++) {
        tqe_estimate ratio = eval_kl_ratio(e, side, peers[k]);
        if (side == peers[k]) {
            snprintf(line, sizeof line, "1 ");
        } else if (isfinite(ratio.high)) {
            snprintf(line, sizeof line, "%s \xc2\xb1%s", short_number(a, ratio.value),
                     short_number(b, ratio.high - ratio.value));
        } else {
            snprintf(line, sizeof line, "%s ", short_number(a, ratio.value));
        }
        bool last = k + 1 == n && line[strlen(line) - 1] == ' ';
        line[strlen(line) - last] = '\0';
        /* Two bytes make one column; without an interval a space stands for it. */
        out_printf("%*s", strchr(line, '\xc2') ? 16 : last ? 14 : 15, line);
    }
    out_write("\n", 1);
}

static void put_ratios(const evaluation *e, const eval_row *rows)
{
    enum { ACROSS = 4 };
    size_t peers[SHOWN_PEERS], n_peers = list_peers(e, peers);
    char line[96];
    if (!n_peers) {
        return;
    }
    heading("Mean KL over that of llama.cpp's caches, paired by window");
    for (size_t first = 0; first < n_peers; first += ACROSS) {
        const size_t n = n_peers - first < ACROSS ? n_peers - first : ACROSS;
        out_printf("%-*s", NAME_COLUMNS, "");
        for (size_t k = 0; k < n; k++) {
            snprintf(line, sizeof line, "\xc3\x97 %s", e->sides[peers[first + k]].kv);
            out_printf("%16s", line);
        }
        out_write("\n", 1);
        for (size_t i = 0; i < e->n_sides; i++) {
            if (rows[i].reference) {
                put_name(rows[i].name);
                put_ratio_row(e, i, peers + first, n);
            }
        }
    }
    out_printf(
        "Ratios are geometric means over windows; the upper arm of the interval is shown.\n");
}

/* What the arithmetic on packed bytes adds to a scheme's own divergence. */
static void put_arithmetic(const evaluation *e, const eval_row *rows)
{
    char a[32], b[32], c[32];
    bool any = false;
    for (size_t i = 1; i < e->n_sides; i++) {
        if (!e->sides[i].exact) {
            continue;
        }
        if (!any) {
            heading("Arithmetic: % of the mean KL with attn=dequant, paired by window");
            out_printf("%-*s%-26s%s\n", NAME_COLUMNS, "", "     KL apart", "KL of this - 100");
        }
        any = true;
        const tqe_estimate added = eval_kl_added(e, i), over = eval_kl_over_exact(e, i);
        put_name(rows[i].name);
        eval_number(a, added.value * 100);
        if (isfinite(added.high)) {
            snprintf(c, sizeof c, "(%s to %s)", eval_number(b, added.low * 100),
                     eval_number((char[32]){0}, added.high * 100));
        } else {
            c[0] = 0;
        }
        out_printf("%8s  %-16s%+8.2f", a, c, (over.value - 1) * 100);
        if (isfinite(over.high)) {
            out_printf("  (%+.2f to %+.2f)", (over.low - 1) * 100, (over.high - 1) * 100);
        }
        out_write("\n", 1);
    }
    if (any && e->batch > TQE_EVAL_PACKED_BATCH) {
        out_printf("Steps of %u tokens decode rows in any case: --batch %u or less does not.\n",
                   e->batch, TQE_EVAL_PACKED_BATCH);
    }
}

static void put_positions(const evaluation *e, const eval_row *rows)
{
    char a[32];
    size_t step = (e->n_buckets + SHOWN_BUCKETS - 1) / SHOWN_BUCKETS;
    heading("Mean KL by position, 1e-3 nats");
    out_printf("%-*s", NAME_COLUMNS, "");
    for (size_t b = 0; b < e->n_buckets; b += step) {
        size_t end = (b + step) * e->bucket_width;
        snprintf(a, sizeof a, "..%zu", end < e->n_ctx ? end : (size_t)e->n_ctx);
        out_printf("%7s", a);
    }
    out_write("\n", 1);
    for (size_t i = 1; i < e->n_sides; i++) {
        put_name(rows[i].name);
        for (size_t b = 0; b < e->n_buckets; b += step) {
            double sum = 0;
            size_t n = 0;
            for (size_t k = b; k < b + step && k < e->n_buckets; k++, n++) {
                sum += rows[i].bucket_kl[k];
            }
            out_printf(" %6s", eval_number(a, sum / (double)n * 1e3));
        }
        out_write("\n", 1);
    }
}

static void put_needles(const evaluation *e, const eval_row *rows)
{
    enum { ACROSS = 6 };
    uint32_t *lengths = calloc(e->n_needles, sizeof *lengths);
    double *depths = calloc(e->n_needles, sizeof *depths);
    size_t nl = lengths && depths ? eval_needle_lengths(e, lengths) : 0;
    size_t nd = nl ? eval_needle_depths(e, depths) : 0;
    char a[32];
    nl = nl > ACROSS ? ACROSS : nl;
    nd = nd > ACROSS ? ACROSS : nd;
    for (int by_depth = 0; by_depth < 2; by_depth++) {
        const size_t n_columns = by_depth ? nd : nl;
        out_printf("\n%sNeedles by %s: right answers of %zu, %%%s%s\n", out_bold(),
                   by_depth ? "depth" : "length", e->n_needles, by_depth ? "" : " (95 % interval)",
                   out_plain());
        out_printf("%-*s%-17s", NAME_COLUMNS, "", by_depth ? "" : "  all");
        for (size_t k = 0; k < n_columns; k++) {
            snprintf(a, sizeof a, by_depth ? "%g" : "%.0f", by_depth ? depths[k] : lengths[k]);
            out_printf("%7s", a);
        }
        out_write("\n", 1);
        for (size_t i = 0; i < e->n_sides; i++) {
            const tqe_estimate *v = &rows[i].needles;
            size_t n;
            put_name(rows[i].name);
            snprintf(a, sizeof a, "%5.1f (%.0f-%.0f)", v->value * 100, v->low * 100, v->high * 100);
            out_printf("%-17s", by_depth ? "" : a);
            for (size_t k = 0; k < n_columns; k++) {
                size_t hits = by_depth ? eval_needle_hits(e, i, 0, depths[k], &n)
                                       : eval_needle_hits(e, i, lengths[k], -1, &n);
                out_printf("%7.0f", 100.0 * (double)hits / (double)(n ? n : 1));
            }
            out_write("\n", 1);
        }
    }
    free(lengths);
    free(depths);
}

void eval_put_tables(const evaluation *e, const eval_row *rows)
{
    if (e->n_windows) {
        put_divergence(e, rows);
        put_size(e, rows);
        put_ratios(e, rows);
        put_arithmetic(e, rows);
        put_positions(e, rows);
    }
    if (e->n_needles) {
        put_needles(e, rows);
    }
    out_flush();
}

/* ---- CSV: one value a row ---------------------------------------------------------------- */

typedef struct csv {
    FILE *f;
    const eval_row *row;
} csv;

static void csv_value(const csv *c, const char *metric, const char *scope, tqe_estimate v)
{
    const double parts[3] = {v.value, v.low, v.high};
    /* A scheme may hold commas and, in a file's name, quotes. */
    fprintf(c->f, "%s,\"", c->row->side->is_peer ? "llama" : "tq");
    for (const char *s = c->row->side->kv; *s; s++) {
        fprintf(c->f, "%s%c", *s == '"' ? "\"" : "", *s);
    }
    fprintf(c->f, "\",%s,%s", metric, scope);
    for (int i = 0; i < 3; i++) {
        if (isfinite(parts[i])) {
            fprintf(c->f, ",%.10g", parts[i]);
        } else {
            fputc(',', c->f);
        }
    }
    fputc('\n', c->f);
}

static void csv_plain(const csv *c, const char *metric, const char *scope, double v)
{
    csv_value(c, metric, scope, (tqe_estimate){v, NAN, NAN});
}

static void csv_windows(const evaluation *e, const csv *c, size_t i)
{
    const eval_row *r = c->row;
    char scope[64], name[32];
    csv_plain(c, "bits_per_element", "all", r->bits);
    csv_plain(c, "bytes_per_token", "all", r->bytes_per_token);
    csv_value(c, "kl_mean", "all", r->kl_mean);
    csv_value(c, "kl_median", "all", r->kl_median);
    csv_value(c, "kl_p99", "all", r->kl_p99);
    csv_value(c, "same_top", "all", r->same_top);
    csv_value(c, "perplexity", "all", r->ppl);
    csv_value(c, "perplexity_factor", "all", r->ppl_change);
    for (size_t k = 0; r->reference && k < e->n_sides; k++) {
        if (e->sides[k].is_peer && !eval_is_reference(e, k)) {
            snprintf(scope, sizeof scope, "llama %.50s", e->sides[k].kv);
            csv_value(c, "kl_ratio", scope, eval_kl_ratio(e, i, k));
        }
    }
    if (e->sides[i].exact) {
        csv_value(c, "kl_over_exact", "all", eval_kl_over_exact(e, i));
        csv_value(c, "kl_added", "all", eval_kl_added(e, i));
    }
    for (size_t b = 0; b < e->n_buckets; b++) {
        snprintf(scope, sizeof scope, "position %s", eval_bucket_name(e, b, name));
        csv_plain(c, "kl_mean", scope, r->bucket_kl[b]);
        csv_plain(c, "same_top", scope, r->bucket_same_top[b]);
    }
    for (size_t w = 0; w < e->n_windows; w++) {
        snprintf(scope, sizeof scope, "window %zu", w + 1);
        csv_plain(c, "kl_mean", scope, e->records[w * e->n_sides + i].kl_mean);
        csv_plain(c, "nll", scope, e->records[w * e->n_sides + i].nll);
    }
}

static void csv_needles(const evaluation *e, const csv *c, size_t i, const uint32_t *lengths,
                        size_t nl, const double *depths, size_t nd)
{
    char scope[64];
    csv_value(c, "needles_right", "all", c->row->needles);
    for (size_t k = 0; k < nl * nd; k++) {
        size_t n, hits = eval_needle_hits(e, i, lengths[k / nd], depths[k % nd], &n);
        snprintf(scope, sizeof scope, "tokens %u depth %g", lengths[k / nd], depths[k % nd]);
        if (n) {
            csv_plain(c, "needles_right", scope, (double)hits / (double)n);
        }
    }
}

bool eval_write_csv(const evaluation *e, const eval_row *rows, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    uint32_t *lengths = calloc(e->n_needles + 1, sizeof *lengths);
    double *depths = calloc(e->n_needles + 1, sizeof *depths);
    csv c = {.f = open_memstream(&text, &n)};
    bool ok = lengths && depths && c.f;
    if (ok) {
        size_t nl = eval_needle_lengths(e, lengths), nd = eval_needle_depths(e, depths);
        fputs("engine,kv,metric,scope,value,low,high\n", c.f);
        for (size_t i = 0; i < e->n_sides; i++) {
            c.row = &rows[i];
            if (e->n_windows) {
                csv_windows(e, &c, i);
            }
            if (e->n_needles) {
                csv_needles(e, &c, i, lengths, nl, depths, nd);
            }
        }
    }
    if (c.f && fclose(c.f) != 0) {
        ok = false;
    }
    if (!ok) {
        msg_error("not enough memory to write '%s'", path);
    }
    ok = ok && save_bytes(NULL, path, text, n);
    free(text);
    free(lengths);
    free(depths);
    return ok;
}
