/* SPDX-License-Identifier: MIT */
/* bench_cache_report.c — what `tq bench cache` shows: tables, CSV, plot. Times are medians over the
 * rounds, beside them the best speed of appending, for machines that others share. */
#include "bench_cache.h"

#include "out.h"
#include "plot.h"
#include "text.h"

#include <string.h>

static const char *const action_names[N_ACTIONS] = {"append", "one",    "fork",  "copy",
                                                    "cut",    "export", "import"};

/* ---- Report ------------------------------------------------------------------------------ */

static double bits_of(const cache_bench *b, const cache_side *s)
{
    const attn_shape *sh = &b->shape;
    return 8.0 * (double)s->bytes_per_token /
           ((double)b->n_layers * sh->n_kv_heads * (sh->d_k + sh->d_v));
}

static double micro(const cache_bench *b, const cache_side *s, action what)
{
    return bench_median(s->seconds[what], b->n_rounds) * 1e6;
}

/* Pages a second, as GB/s of what is stored. */
static double exchange(const cache_bench *b, const cache_side *s, action what)
{
    return (double)s->page_bytes / micro(b, s, what) * 1e-3;
}

void cache_put_tables(const cache_bench *b)
{
    char x[32], y[32], z[32];
    out_printf("\n%s%-20s%7s%8s%12s%11s%11s%11s%s\n", out_bold(), "size", "bits", "B/token",
               text_size(x, b->memory), "planned", "allocated", "resident", out_plain());
    out_printf("%s%-20s%7s%8s%12s%11s%11s%11s%s\n", out_bold(), "", "", "", "tokens", "", "",
               "when full", out_plain());
    for (size_t i = 0; i < b->n_sides; i++) {
        const cache_side *s = &b->sides[i];
        out_printf("%-20s%7.3f%8zu%12s", s->name, bits_of(b, s), s->bytes_per_token,
                   text_count(x, s->fits));
        out_printf("%11s%11s%11s\n", text_size(x, s->planned), text_size(y, s->allocated),
                   s->resident ? text_size(z, s->resident) : "-");
    }
    out_printf("\n%s%-20s%9s%9s%7s%7s%8s%6s%7s%7s%s\n", out_bold(), "time", "append", "append",
               "one", "fork", "and one", "cut", "export", "import", out_plain());
    out_printf("%s%-20s%9s%9s%7s%7s%8s%6s%7s%7s%s\n", out_bold(), "", "tokens/s", "best", "us",
               "us", "us", "us", "GB/s", "GB/s", out_plain());
    for (size_t i = 0; i < b->n_sides; i++) {
        const cache_side *s = &b->sides[i];
        out_printf("%-20s %8.0f %8.0f %6.1f %6.2f %7.1f %5.2f %6.2f %6.2f\n", s->name,
                   b->shape.n_kv / micro(b, s, APPEND) * 1e6,
                   b->shape.n_kv / bench_least(s->seconds[APPEND], b->n_rounds), micro(b, s, ONE),
                   micro(b, s, FORK), micro(b, s, COPY), micro(b, s, CUT), exchange(b, s, EXPORT),
                   exchange(b, s, IMPORT));
    }
    out_printf("one: a token more; fork: a second sequence with the same tokens; and one: its\n"
               "first token, which copies the page that both share; cut: the last 32 tokens\n"
               "dropped\n");
    out_flush();
}

bool cache_open_csv(cache_bench *b)
{
    char columns[512] =
        "clock,layers,kv_heads,d_k,d_v,tokens,kv,bits,bytes_per_token,planned_bytes,"
        "allocated_bytes,resident_bytes,memory_bytes,tokens_in_memory,page_bytes,"
        "round";
    for (int a = 0; a < N_ACTIONS; a++) {
        size_t n = strlen(columns);
        snprintf(columns + n, sizeof columns - n, ",%s_us", action_names[a]);
    }
    return bench_csv_open(&b->csv, b->csv_name, columns);
}

bool cache_write_csv(cache_bench *b)
{
    FILE *f = b->csv.f;
    for (size_t i = 0; f && i < b->n_sides; i++) {
        const cache_side *s = &b->sides[i];
        for (uint32_t r = 0; r < b->n_rounds; r++) {
            bench_csv_machine(f, &b->machine);
            fprintf(f, "%s,%u,%u,%u,%u,%u,", b->cpu_time ? "cpu" : "wall", b->n_layers,
                    b->shape.n_kv_heads, b->shape.d_k, b->shape.d_v, b->shape.n_kv);
            bench_csv_text(f, s->name);
            fprintf(f, ",%.4f,%zu,%zu,%zu,%zu,%llu,%llu,%zu,%u", bits_of(b, s), s->bytes_per_token,
                    s->planned, s->allocated, s->resident, (unsigned long long)b->memory,
                    (unsigned long long)s->fits, s->page_bytes, r + 1);
            for (int a = 0; a < N_ACTIONS; a++) {
                fprintf(f, ",%.3f", s->seconds[a][r] * 1e6);
            }
            fputc('\n', f);
        }
    }
    return save_close(&b->csv, true);
}

/* Each scheme a point: what a token takes against how fast tokens go in. */
bool cache_draw(const cache_bench *b)
{
    static double x[CACHE_MAX_SIDES], y[CACHE_MAX_SIDES];
    plot_curve curves[CACHE_MAX_SIDES];
    char subtitle[256];
    for (size_t i = 0; i < b->n_sides; i++) {
        x[i] = bits_of(b, &b->sides[i]);
        y[i] = b->shape.n_kv / micro(b, &b->sides[i], APPEND) * 1e6;
        curves[i] = (plot_curve){b->sides[i].name, PLOT_LINE, &x[i], &y[i], 1};
    }
    snprintf(subtitle, sizeof subtitle, "%s, %s, %u %s; %u %s of %u KV heads x %u", b->machine.cpu,
             b->machine.isa, b->machine.n_threads, b->machine.n_threads == 1 ? "thread" : "threads",
             b->n_layers, b->n_layers == 1 ? "layer" : "layers", b->shape.n_kv_heads, b->shape.d_k);
    const plot p = {.file = b->plot_name,
                    .title = "Storing keys and values",
                    .subtitle = subtitle,
                    .x_label = "bits of an element, all included",
                    .y_label = "tokens per second into the cache (median)",
                    .curves = curves,
                    .n_curves = b->n_sides,
                    .bits_x = true};
    return plot_draw(&p);
}
