/* SPDX-License-Identifier: MIT */
/* eval_html.c — the report: one page with its figures in it, to be read, printed or sent.
 *
 * Policy: it says what was measured and how before it shows numbers; nothing in it comes from
 * elsewhere, so it opens without a network and looks the same in ten years. Names from files and
 * models are text, never markup.
 */
#define _POSIX_C_SOURCE 200809L
#include "evaluation.h"
#include "out.h"
#include "save.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    "body{font:16px/1.5 Charter,'Bitstream Charter','Source Serif 4',Georgia,serif;color:#1c1c1c;"
    "background:#fff;max-width:54rem;margin:2.5rem auto;padding:0 1.2rem}"
    "h1{font-size:1.7rem;line-height:1.25;margin:0 0 .3rem}h2{font-size:1.2rem;margin:2.4rem 0 "
    ".6rem}"
    ".sub{color:#555;margin:0 0 1.6rem}"
    "figure{margin:1.6rem 0 2.2rem}figure svg{width:100%;height:auto;display:block}"
    "svg text{font-family:'Helvetica Neue',Helvetica,Arial,'Liberation Sans','DejaVu Sans',"
    "sans-serif}"
    "svg [font-family$=':Bold'] text{font-weight:bold}"
    "#bits-gnuplot_canvas text,#position-gnuplot_canvas text{paint-order:stroke;stroke:#fff;"
    "stroke-width:3px;stroke-linejoin:round}"
    "figcaption,caption{font-size:.9rem;line-height:1.4;color:#333;text-align:left}"
    "caption{padding-bottom:.5rem}b.n{font-variant:small-caps}"
    ".wide{overflow-x:auto;margin:1.4rem 0 2rem}"
    "table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;"
    "border-top:1.6px solid #222;border-bottom:1.6px solid #222;width:100%}"
    "thead th{border-bottom:.8px solid #222;font-weight:600;vertical-align:bottom}"
    "th,td{padding:.22rem .5rem;text-align:right;white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left;padding-left:.2rem}"
    "tbody tr.line td{border-top:.8px solid #999}td.pm{color:#666;text-align:left;padding-left:0}"
    "tr.peer td:first-child{font-style:italic}tr.front td:first-child{font-weight:700}"
    "tr.ref td{color:#777}td.best{font-weight:700}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;font-size:.95rem}"
    "dt{color:#555}dd{margin:0}code{font-size:.9em}"
    "@media print{body{margin:0;max-width:none;font-size:11pt}figure,table{break-inside:avoid}}";

typedef struct page {
    FILE *f;
    const evaluation *e;
    const eval_row *rows;
    unsigned n_figures, n_tables;
} page;

/* Text of others. Bytes that are not UTF-8 become '?'. */
static void put_text(FILE *f, const char *s)
{
    char clean[1024];
    text_utf8_clean(clean, sizeof clean, s);
    for (const char *c = clean; *c; c++) {
        switch (*c) {
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc((unsigned char)*c < 0x20 ? ' ' : *c, f);
        }
    }
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* A number and, in a column of its own, the half width of its interval. */
static void put_pm(FILE *f, tqe_estimate v, double scale)
{
    char a[32], b[32];
    fprintf(f, "<td>%s</td><td class=pm>", eval_number(a, v.value * scale));
    if (isfinite(v.high)) {
        fprintf(f, "\xc2\xb1\xe2\x80\x89%s", eval_number(b, (v.high - v.value) * scale));
    }
    fputs("</td>", f);
}

static void put_row_start(const page *p, size_t i)
{
    const eval_row *r = &p->rows[i];
    bool line = i == 2 || (r->side->is_peer && i > 0 && !p->rows[i - 1].side->is_peer);
    fprintf(p->f, "<tr class=\"%s%s%s%s\"><td>", line ? "line " : "",
            r->side->is_peer ? "peer " : "", r->on_front ? "front " : "",
            eval_is_reference(p->e, i) ? "ref" : "");
    put_text(p->f, r->name);
    fputs("</td>", p->f);
}

static void put_caption(page *p)
{
    fprintf(p->f, "<div class=wide><table><caption><b class=n>Table %u.</b> ", ++p->n_tables);
}

/* ---- Sections ---------------------------------------------------------------------------- */

static void put_setting(const page *p)
{
    const evaluation *e = p->e;
    const tqe_model_info *m = &e->model;
    char count[32];
    fputs("<dl><dt>Model</dt><dd>", p->f);
    put_text(p->f, m->name[0] ? m->name : base_name(e->model_path));
    fprintf(p->f, ": %s, %s weights, %s parameters, %u layers, %u KV heads of %u</dd>", m->arch,
            m->weights, text_count(count, m->n_params), m->n_layers, m->n_kv_heads, m->d_k);
    for (size_t i = 0; i < e->n_texts; i++) {
        fputs("<dt>Text</dt><dd>", p->f);
        put_text(p->f, base_name(e->texts[i].path));
        fprintf(p->f, ": %zu windows of %s tokens", e->texts[i].n_windows,
                text_count(count, e->texts[i].n_tokens));
        fputs("</dd>", p->f);
    }
    if (e->n_windows) {
        fprintf(p->f,
                "<dt>Windows</dt><dd>%zu of %u tokens%s, in steps of %u; positions from %u on "
                "count, %s in all</dd>",
                e->n_windows, e->n_ctx, e->no_bos ? "" : ", each after BOS",
                e->batch < e->n_ctx ? e->batch : e->n_ctx, e->from,
                text_count(count, e->n_windows * (e->n_ctx - 1 - e->from)));
    }
    if (e->n_needles) {
        fprintf(p->f, "<dt>Needles</dt><dd>%zu, ", e->n_needles);
        put_text(p->f, base_name(e->needle_source));
        fputs("</dd>", p->f);
    }
    for (size_t i = 0; i < e->n_sides; i++) {
        if (strcmp(p->rows[i].name, p->rows[i].label) != 0) {
            fputs("<dt>", p->f);
            put_text(p->f, p->rows[i].name);
            fputs("</dt><dd>", p->f);
            put_text(p->f, p->rows[i].label);
            fputs("</dd>", p->f);
        }
    }
    fprintf(p->f, "<dt>Program</dt><dd>tq %s, format %d</dd></dl>", tq_version(),
            TQ_FORMAT_VERSION);
}

static void put_method(const page *p)
{
    fputs("<h2>How to read this</h2><p>Every scheme sees the same tokens, and after each token its "
          "distribution over the next one is compared with that of an uncompressed cache. "
          "<b>KL</b> is the divergence of the two in 10\xe2\x81\xbb\xc2\xb3 nats, <b>same top</b> "
          "how often their "
          "likeliest tokens agree, <b>PPL change</b> how much worse the text itself is predicted. "
          "Perplexity can fall by luck; KL cannot. Our schemes are compared with our f32 cache",
          p->f);
    if (p->rows[p->e->n_sides - 1].side->is_peer) {
        fputs(", those of stock llama.cpp (flash attention and its rotation of quantised caches "
              "on, as is its default) with its own f16 cache, so that neither side pays for "
              "differences between the engines; the row <i>llama f16</i> is llama.cpp against our "
              "f32 and shows how large those are",
              p->f);
    }
    fputs(". <b>f16</b> against f32 is the noise floor: what is not far above it has not been "
          "measured. Statistics are taken within a window and averaged; \xc2\xb1 is half of the "
          "95\xe2\x80\x89% interval over windows (Student\xe2\x80\x99s t). Bits count everything "
          "that is stored. Names in bold are on the Pareto front: nothing smaller loses less.</p>",
          p->f);
}

static void put_divergence(page *p)
{
    put_caption(p);
    fprintf(p->f,
            "Divergence from the reference over %zu windows. KL in 10\xe2\x81\xbb\xc2\xb3 "
            "nats.</caption><thead><tr>"
            "<th>cache<th>bits<th>B/token<th>mean KL<th><th>median<th>p99<th>same top, %%<th>"
            "<th>PPL<th>change, %%<th></tr></thead><tbody>",
            p->e->n_windows);
    for (size_t i = 0; i < p->e->n_sides; i++) {
        const eval_row *r = &p->rows[i];
        char a[32], b[32];
        put_row_start(p, i);
        fprintf(p->f, "<td>%.2f<td>%.0f", r->bits, r->bytes_per_token);
        if (!r->reference) {
            fprintf(p->f, "<td>reference<td><td><td><td><td><td>%.3f<td><td></tr>", r->ppl.value);
            continue;
        }
        put_pm(p->f, r->kl_mean, 1e3);
        fprintf(p->f, "<td>%s<td>%s", eval_number(a, r->kl_median.value * 1e3),
                eval_number(b, r->kl_p99.value * 1e3));
        put_pm(p->f, r->same_top, 100);
        fprintf(p->f, "<td>%.3f<td>%+.2f<td class=pm>", r->ppl.value, eval_ppl_percent(r));
        if (isfinite(r->ppl_change.high)) {
            fprintf(p->f, "\xc2\xb1\xe2\x80\x89%.2f",
                    (r->ppl_change.high - r->ppl_change.value) * 100);
        }
        fputs("</tr>", p->f);
    }
    fputs("</tbody></table></div>", p->f);
}

static void put_ratios(page *p)
{
    const evaluation *e = p->e;
    put_caption(p);
    fputs("Mean KL over that of llama.cpp\xe2\x80\x99s caches: geometric mean over windows, "
          "paired, with its 95\xe2\x80\x89% interval. Below 1 is better than the peer; bold where "
          "the whole interval is, at no more bits.</caption><thead><tr><th>cache<th>bits",
          p->f);
    for (size_t k = 0; k < e->n_sides; k++) {
        if (e->sides[k].is_peer && !eval_is_reference(e, k)) {
            fprintf(p->f, "<th>\xc3\x97 %s (%.1f)", e->sides[k].kv, p->rows[k].bits);
        }
    }
    fputs("</tr></thead><tbody>", p->f);
    for (size_t i = 2; i < e->n_sides; i++) {
        if (eval_is_reference(e, i)) {
            continue;
        }
        put_row_start(p, i);
        fprintf(p->f, "<td>%.2f", p->rows[i].bits);
        for (size_t k = 0; k < e->n_sides; k++) {
            if (!e->sides[k].is_peer || eval_is_reference(e, k)) {
                continue;
            }
            char a[32], b[32], c[32];
            tqe_estimate v = eval_kl_ratio(e, i, k);
            bool best = v.high < 1 && p->rows[i].bits <= p->rows[k].bits;
            if (i == k) {
                fputs("<td>1", p->f);
            } else if (isfinite(v.high)) {
                fprintf(p->f, "<td%s>%s (%s\xe2\x80\x93%s)", best ? " class=best" : "",
                        eval_number(a, v.value), eval_number(b, v.low), eval_number(c, v.high));
            } else {
                fprintf(p->f, "<td>%s", eval_number(a, v.value));
            }
        }
        fputs("</tr>", p->f);
    }
    fputs("</tbody></table></div>", p->f);
}

/* What the arithmetic on packed bytes adds to a scheme's own divergence. */
static void put_arithmetic(page *p)
{
    const evaluation *e = p->e;
    char a[32], b[32], c[32];
    put_caption(p);
    fputs("Arithmetic: what attention on packed bytes adds to the divergence of decoded rows "
          "(attn=dequant), on the same stored bytes, in percent of that, paired by window. "
          "<b>Apart</b>: mean KL between the two. <b>Change</b>: of the mean KL from the "
          "reference; it has chance in it.",
          p->f);
    if (e->batch > TQE_EVAL_PACKED_BATCH) {
        fprintf(p->f, " Steps of %u tokens decode rows in any case; those of up to %d do not.",
                e->batch, TQE_EVAL_PACKED_BATCH);
    }
    fputs("</caption><thead><tr><th>cache<th>bits<th>apart<th>95 % interval<th>change<th>95 % "
          "interval</tr></thead><tbody>",
          p->f);
    for (size_t i = 0; i < e->n_sides; i++) {
        if (!e->sides[i].exact) {
            continue;
        }
        const tqe_estimate apart = eval_kl_added(e, i), over = eval_kl_over_exact(e, i);
        put_row_start(p, i);
        fprintf(p->f, "<td>%.2f<td>%s<td>", p->rows[i].bits, eval_number(a, apart.value * 100));
        if (isfinite(apart.high)) {
            fprintf(p->f, "%s\xe2\x80\x93%s", eval_number(b, apart.low * 100),
                    eval_number(c, apart.high * 100));
        }
        fprintf(p->f, "<td>%+.2f<td>", (over.value - 1) * 100);
        if (isfinite(over.high)) {
            fprintf(p->f, "%+.2f to %+.2f", (over.low - 1) * 100, (over.high - 1) * 100);
        }
        fputs("</tr>", p->f);
    }
    fputs("</tbody></table></div>", p->f);
}

static bool has_exact(const evaluation *e)
{
    for (size_t i = 0; i < e->n_sides; i++) {
        if (e->sides[i].exact) {
            return true;
        }
    }
    return false;
}

static void put_positions(page *p)
{
    const evaluation *e = p->e;
    char a[32];
    put_caption(p);
    fputs("Mean KL by position, 10\xe2\x81\xbb\xc2\xb3 nats.</caption><thead><tr><th>cache", p->f);
    for (size_t b = 0; b < e->n_buckets; b++) {
        fprintf(p->f, "<th>%s", eval_bucket_name(e, b, a));
    }
    fputs("</tr></thead><tbody>", p->f);
    for (size_t i = 1; i < e->n_sides; i++) {
        put_row_start(p, i);
        for (size_t b = 0; b < e->n_buckets; b++) {
            fprintf(p->f, "<td>%s", eval_number(a, p->rows[i].bucket_kl[b] * 1e3));
        }
        fputs("</tr>", p->f);
    }
    fputs("</tbody></table></div>", p->f);
}

static void put_needles(page *p)
{
    const evaluation *e = p->e;
    uint32_t *lengths = calloc(e->n_needles, sizeof *lengths);
    size_t nl = lengths ? eval_needle_lengths(e, lengths) : 0;
    put_caption(p);
    fputs("Needles: right answers, %, with Wilson\xe2\x80\x99s 95\xe2\x80\x89% interval, and by "
          "length of the prompt in tokens.</caption><thead><tr><th>cache<th>all<th>",
          p->f);
    for (size_t k = 0; k < nl; k++) {
        fprintf(p->f, "<th>%u", lengths[k]);
    }
    fputs("</tr></thead><tbody>", p->f);
    for (size_t i = 0; i < e->n_sides; i++) {
        const tqe_estimate *v = &p->rows[i].needles;
        size_t n;
        put_row_start(p, i);
        fprintf(p->f, "<td>%.1f<td class=pm>(%.1f\xe2\x80\x93%.1f)", v->value * 100, v->low * 100,
                v->high * 100);
        for (size_t k = 0; k < nl; k++) {
            size_t hits = eval_needle_hits(e, i, lengths[k], -1, &n);
            fprintf(p->f, "<td>%.0f", 100.0 * (double)hits / (double)n);
        }
        fputs("</tr>", p->f);
    }
    fputs("</tbody></table></div>", p->f);
    free(lengths);
}

static bool put_figure(page *p, eval_figure figure, const char *caption)
{
    char *svg = eval_plot(p->e, p->rows, figure);
    if (svg) {
        fprintf(p->f, "<figure>%s<figcaption><b class=n>Figure %u.</b> %s</figcaption></figure>\n",
                svg, ++p->n_figures, caption);
    }
    free(svg);
    return svg != NULL;
}

static bool put_windows(page *p)
{
    put_divergence(p);
    bool ok = put_figure(p, EVAL_FIG_BITS,
                         "Mean KL divergence against bits per element. Whiskers: 95 % intervals "
                         "over windows. The line joins the Pareto front; hollow squares are the "
                         "caches of stock llama.cpp.");
    if (p->rows[p->e->n_sides - 1].side->is_peer) {
        put_ratios(p);
    }
    if (has_exact(p->e)) {
        put_arithmetic(p);
    }
    ok = ok && put_figure(p, EVAL_FIG_SAME_TOP,
                          "How often the likeliest token stays the same, with 95 % intervals over "
                          "windows.");
    ok = ok && put_figure(p, EVAL_FIG_POSITION,
                          "Mean KL divergence by position in the window: whether the loss grows "
                          "with the length of the context.");
    put_positions(p);
    return ok;
}

static bool put_page(page *p)
{
    const evaluation *e = p->e;
    bool ok = true;
    fputs("<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>"
          "<meta name=viewport content=\"width=device-width,initial-scale=1\"><title>KV cache "
          "schemes: ",
          p->f);
    put_text(p->f, e->model.name);
    fprintf(p->f,
            "</title><style>%s</style></head>\n<body><h1>What KV cache schemes cost</h1>"
            "<p class=sub>",
            style);
    put_text(p->f, e->model.name[0] ? e->model.name : base_name(e->model_path));
    fprintf(p->f, ", %s weights</p>", e->model.weights);
    put_setting(p);
    if (e->n_windows) {
        put_method(p);
        fputs("<h2>Divergence</h2>", p->f);
        ok = put_windows(p);
    }
    if (e->n_needles) {
        fputs("<h2>Retrieval</h2><p>A long prompt states many facts and asks for one; only the "
              "exact answer, as greedy decoding gives it, counts.</p>",
              p->f);
        put_needles(p);
        ok = ok && put_figure(p, EVAL_FIG_NEEDLES,
                              "Right answers in percent, by length of the prompt and depth of the "
                              "fact in it (0: at the start).");
    }
    fputs("</body></html>\n", p->f);
    return ok;
}

bool eval_write_html(const evaluation *e, const eval_row *rows, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    page p = {.f = open_memstream(&text, &n), .e = e, .rows = rows};
    bool ok = p.f != NULL && put_page(&p);
    if (!p.f || fclose(p.f) != 0) {
        msg_error("not enough memory to write '%s'", path);
        ok = false;
    }
    ok = ok && save_bytes(NULL, path, text, n);
    free(text);
    return ok;
}
