/* SPDX-License-Identifier: MIT */
/* bench_attn_report.c — what `tq bench attn` shows: tables, CSV, plot.
 *
 * Times are the best and the median of the rounds. GB/s are those of the best time, and their
 * fraction that of the best reading of memory in the same rounds. A ratio is taken within each
 * round before the median, so that a moment of other work does not fall on one side alone.
 */
#include "bench_attn.h"

#include "out.h"
#include "plot.h"

#include <stdlib.h>
#include <string.h>

/* How many times as fast as the peer. */
static double ratio(const attn_bench *b, const attn_side *s, const attn_side *peer)
{
    return bench_ratio(peer->seconds, s->seconds, b->n_done);
}

static double read_rate(const attn_bench *b)
{
    return (double)b->read_bytes / bench_least(b->read_seconds, b->n_done);
}

/* ---- Tables ------------------------------------------------------------------------------ */

void attn_report_head(const attn_bench *b)
{
    const attn_shape *s = &b->shape;
    char dims[32];
    snprintf(dims, sizeof dims, s->d_k == s->d_v ? "%u" : "%u/%u", s->d_k, s->d_v);
    bench_put_machine(&b->machine);
    out_printf("%u query and %u KV heads x %s, q_len %u, data %s; %u %s, %s time\n", s->n_heads,
               s->n_kv_heads, dims, s->q_len, b->hot ? "hot" : "cold", b->n_rounds,
               b->n_rounds == 1 ? "round" : "rounds", b->cpu_clock ? "CPU" : "wall");
    if (b->n_ours < b->n_sides) {
        out_printf("ggml's own kernels: %s\n", tqe_peer_isa());
    }
    out_flush();
}

/* The first columns of a row: a name, or for one that is longer a line of its own. */
static void put_name(const attn_side *s, int width)
{
    out_printf("%-5s%-*s", s->is_peer ? "ggml" : "tq", width, s->name);
    if (strlen(s->name) > (size_t)width) {
        out_printf("\n%*s", 5 + width, "");
    }
}

static void put_times(const attn_bench *b)
{
    const double limit = read_rate(b);
    out_printf("\n%sn_kv %-18u%17s%9s%7s%6s%18s%s\n", out_bold(), b->shape.n_kv, "-- ms --",
               "us per", "", "of", "error against", out_plain());
    out_printf("%s%-23s%9s%9s%9s%7s%5s%9s%9s%s\n", out_bold(), "", "best", "median", "token",
               "GB/s", "read", "original", "stored", out_plain());
    out_printf("%-50s%7.2f%4d%%\n", "reading of memory", limit * 1e-9, 100);
    for (uint32_t i = 0; i < b->n_sides; i++) {
        const attn_side *s = &b->sides[i];
        double least = bench_least(s->seconds, b->n_done), rate = (double)s->bytes / least;
        put_name(s, 18);
        out_printf(" %8.3f %8.3f %8.4f %6.2f%4.0f%% %8.1e", least * 1e3,
                   bench_median(s->seconds, b->n_done) * 1e3, least * 1e6 / b->shape.n_kv,
                   rate * 1e-9, 100 * rate / limit, s->error);
        if (s->is_peer) {
            out_write("\n", 1);
        } else {
            out_printf(" %8.1e\n", s->stored);
        }
    }
}

/* Ours down, peers across, three at a time. */
static void put_ratios(const attn_bench *b)
{
    enum { COLUMNS = 3 };
    for (uint32_t first = b->n_ours; first < b->n_sides; first += COLUMNS) {
        uint32_t end = first + COLUMNS < b->n_sides ? first + COLUMNS : b->n_sides;
        out_printf("\n%s%-24s", out_bold(), "times as fast as ggml");
        for (uint32_t p = first; p < end; p++) {
            out_printf(" %14s", b->sides[p].name);
        }
        out_printf("%s\n", out_plain());
        for (uint32_t i = 0; i < b->n_ours; i++) {
            put_name(&b->sides[i], 19);
            for (uint32_t p = first; p < end; p++) {
                out_printf(" %14.2f", ratio(b, &b->sides[i], &b->sides[p]));
            }
            out_write("\n", 1);
        }
    }
}

/* ---- CSV --------------------------------------------------------------------------------- */

bool attn_report_open(attn_bench *b)
{
    char columns[512 + ATTN_MAX_SIDES * (TQ_SCHEME_TEXT_BYTES + 16)];
    int n = snprintf(columns, sizeof columns,
                     "clock,data,heads,kv_heads,d_k,d_v,q_len,n_kv,side,kv,rounds,kv_bytes,best_ms,"
                     "median_ms,us_per_token,gbps,read_gbps,of_read,error,error_stored");
    for (uint32_t p = b->n_ours; p < b->n_sides; p++) {
        n += snprintf(columns + n, sizeof columns - (size_t)n, ",\"times_ggml_%s\"", b->names[p]);
    }
    return bench_csv_open(&b->csv, b->csv_name, columns);
}

static void csv_row(const attn_bench *b, const attn_side *s)
{
    const attn_shape *sh = &b->shape;
    double least = bench_least(s->seconds, b->n_done), rate = (double)s->bytes / least;
    bench_machine machine = b->machine;
    if (s->is_peer) {
        snprintf(machine.isa, sizeof machine.isa, "%s", tqe_peer_isa());
    }
    bench_csv_machine(b->csv.f, &machine);
    fprintf(b->csv.f, "%s,%s,%u,%u,%u,%u,%u,%u,%s,", b->cpu_clock ? "cpu" : "wall",
            b->hot ? "hot" : "cold", sh->n_heads, sh->n_kv_heads, sh->d_k, sh->d_v, sh->q_len,
            sh->n_kv, s->is_peer ? "ggml" : "tq");
    bench_csv_text(b->csv.f, s->name);
    fprintf(b->csv.f, ",%u,%zu,", b->n_done, s->bytes);
    fprintf(b->csv.f, "%.6f,%.6f,%.6f,%.4f,%.4f,%.4f,%.4e,", least * 1e3,
            bench_median(s->seconds, b->n_done) * 1e3, least * 1e6 / sh->n_kv, rate * 1e-9,
            read_rate(b) * 1e-9, rate / read_rate(b), s->error);
    if (!s->is_peer) {
        fprintf(b->csv.f, "%.4e", s->stored);
    }
    for (uint32_t p = b->n_ours; p < b->n_sides; p++) {
        fprintf(b->csv.f, ",%.4f", ratio(b, s, &b->sides[p]));
    }
    fputc('\n', b->csv.f);
}

bool attn_report_context(attn_bench *b)
{
    put_times(b);
    put_ratios(b);
    b->best_read = read_rate(b) > b->best_read ? read_rate(b) : b->best_read;
    for (uint32_t i = 0; i < b->n_sides; i++) {
        const attn_side *s = &b->sides[i];
        b->points[b->n_points++] =
            (attn_point){b->shape.n_kv, i, bench_least(s->seconds, b->n_done), s->bytes};
        if (b->csv.f) {
            csv_row(b, s);
        }
    }
    return save_flush(&b->csv) && out_flush();
}

/* ---- Plot -------------------------------------------------------------------------------- */

/* The points of one side; floor: what reading its bytes takes. */
static size_t collect(const attn_bench *b, uint32_t side, bool floor, double *x, double *y)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n_points; i++) {
        const attn_point *p = &b->points[i];
        if (p->side == side) {
            x[n] = p->n_kv;
            y[n++] = (floor ? (double)p->bytes / b->best_read : p->seconds) * 1e3;
        }
    }
    return n;
}

/* The sides with the most and the fewest bytes: between their floors lie those of the others. */
static void find_floors(const attn_bench *b, uint32_t at[2])
{
    at[0] = at[1] = 0;
    for (size_t i = 0; i < b->n_points; i++) {
        const attn_point *p = &b->points[i];
        if (p->n_kv == b->points[0].n_kv && p->side < b->n_ours) {
            at[0] = p->bytes > b->points[at[0]].bytes ? p->side : at[0];
            at[1] = p->bytes < b->points[at[1]].bytes ? p->side : at[1];
        }
    }
}

static bool draw(const attn_bench *b)
{
    static double x[ATTN_MAX_SIDES + 2][ARG_LIST_MAX], y[ATTN_MAX_SIDES + 2][ARG_LIST_MAX];
    static char names[ATTN_MAX_SIDES + 2][TQ_SCHEME_TEXT_BYTES + 32];
    plot_curve curves[ATTN_MAX_SIDES + 2];
    uint32_t n = 0, floors[2];
    for (uint32_t i = 0; i < b->n_sides; i++, n++) {
        size_t points = collect(b, i, false, x[n], y[n]);
        snprintf(names[n], sizeof names[n], "%s%s", i < b->n_ours ? "" : "ggml ", b->names[i]);
        curves[n] =
            (plot_curve){names[n], i < b->n_ours ? PLOT_LINE : PLOT_DASHED, x[n], y[n], points};
    }
    find_floors(b, floors);
    for (int i = 0; i < (floors[0] == floors[1] ? 1 : 2) && !b->hot; i++, n++) {
        size_t points = collect(b, floors[i], true, x[n], y[n]);
        if (points < 2) {
            break; /* a line */
        }
        snprintf(names[n], sizeof names[n], "bandwidth floor, %s", b->names[floors[i]]);
        curves[n] = (plot_curve){names[n], PLOT_FLOOR, x[n], y[n], points};
    }
    char title[96], subtitle[320], dims[32];
    const attn_shape *s = &b->shape;
    snprintf(dims, sizeof dims, s->d_k == s->d_v ? "%u" : "%u/%u", s->d_k, s->d_v);
    snprintf(title, sizeof title, "Attention over a KV cache, %u query %s", s->q_len,
             s->q_len == 1 ? "token" : "tokens");
    snprintf(subtitle, sizeof subtitle, "%s, %s, %u %s; %u query and %u KV heads x %s; data %s",
             b->machine.cpu, b->machine.isa, b->n_threads, b->n_threads == 1 ? "thread" : "threads",
             s->n_heads, s->n_kv_heads, dims, b->hot ? "hot" : "cold");
    const plot p = {.file = b->plot_name,
                    .title = title,
                    .subtitle = subtitle,
                    .x_label = "tokens of context",
                    .y_label = "milliseconds of one layer (best of the rounds)",
                    .curves = curves,
                    .n_curves = n};
    return plot_draw(&p);
}

bool attn_report_close(attn_bench *b, bool ok)
{
    ok = save_close(&b->csv, ok) && ok;
    return ok && (!b->plot_name || !b->n_points || draw(b));
}
