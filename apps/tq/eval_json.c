/* SPDX-License-Identifier: MIT */
/* eval_json.c — the result as JSON, for programs: all that the tables show and the records of each
 * window. Nothing that differs from run to run is in it: no times, no machine, no threads.
 */
#include "evaluation.h"
#include "out.h"
#include "save.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 10 digits: more than any of these numbers is worth, fewer than make two machines differ often. */
#define DIGITS JSON_REAL_PRECISION(10)

static json_t *real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *estimate(tqe_estimate v)
{
    return json_pack("{s:o, s:o, s:o}", "value", real(v.value), "low", real(v.low), "high",
                     real(v.high));
}

static json_t *reals(const double *v, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(a, real(v[i]));
    }
    return a;
}

static json_t *settings(const evaluation *e)
{
    json_t *texts = json_array(), *edges = json_array();
    for (size_t i = 0; i < e->n_texts; i++) {
        const eval_text *t = &e->texts[i];
        char name[1024];
        snprintf(name, sizeof name, "%s", t->path);
        json_t *path = json_string(name);
        json_array_append_new(
            texts, json_pack("{s:o, s:I, s:I, s:I}", "file", path ? path : json_string("?"),
                             "bytes", (json_int_t)t->n_bytes, "tokens", (json_int_t)t->n_tokens,
                             "windows", (json_int_t)t->n_windows));
    }
    for (size_t i = 0; i <= e->n_buckets; i++) {
        size_t edge = i * e->bucket_width;
        json_array_append_new(edges, json_integer((json_int_t)(edge < e->n_ctx ? edge : e->n_ctx)));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:b, s:o, s:o}", "ctx", (json_int_t)e->n_ctx, "windows",
                     (json_int_t)e->n_windows, "from", (json_int_t)e->from, "batch",
                     (json_int_t)e->batch, "bos", !e->no_bos, "bucket_edges", edges, "texts",
                     texts);
}

static json_t *model(const evaluation *e)
{
    const tqe_model_info *m = &e->model;
    json_t *name = json_string(m->name);
    return json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:o}", "name",
                     name ? name : json_string("?"), "arch", m->arch, "weights", m->weights,
                     "parameters", (json_int_t)m->n_params, "layers", (json_int_t)m->n_layers,
                     "kv_heads", (json_int_t)m->n_kv_heads, "head_dim", (json_int_t)m->d_k,
                     "fingerprint", json_sprintf("%016llx", (unsigned long long)e->fingerprint));
}

static json_t *ratios(const evaluation *e, const eval_row *rows, size_t side)
{
    json_t *o = json_object();
    for (size_t i = 0; i < e->n_sides; i++) {
        if (i != side && !eval_is_reference(e, i)) {
            json_object_set_new(o, rows[i].label, estimate(eval_kl_ratio(e, side, i)));
        }
    }
    return o;
}

static json_t *windows(const evaluation *e, size_t side)
{
    json_t *a = json_array();
    for (size_t w = 0; w < e->n_windows; w++) {
        const tqe_eval_record *r = &e->records[w * e->n_sides + side];
        json_array_append_new(a,
                              json_pack("{s:o, s:o, s:o, s:o, s:o}", "kl_mean", real(r->kl_mean),
                                        "kl_median", real(r->kl_median), "kl_p99", real(r->kl_p99),
                                        "same_top", real(r->same_top), "nll", real(r->nll)));
    }
    return a;
}

static void add_windows(const evaluation *e, const eval_row *rows, size_t i, json_t *o)
{
    const eval_row *r = &rows[i];
    json_object_set_new(o, "bits_per_element", real(r->bits));
    json_object_set_new(o, "bytes_per_token", real(r->bytes_per_token));
    json_object_set_new(o, "on_front", json_boolean(r->on_front));
    json_object_set_new(o, "kl_mean", estimate(r->kl_mean));
    json_object_set_new(o, "kl_median", estimate(r->kl_median));
    json_object_set_new(o, "kl_p99", estimate(r->kl_p99));
    json_object_set_new(o, "same_top", estimate(r->same_top));
    json_object_set_new(o, "perplexity", estimate(r->ppl));
    json_object_set_new(o, "perplexity_factor", estimate(r->ppl_change));
    json_object_set_new(o, "kl_by_position", reals(r->bucket_kl, e->n_buckets));
    json_object_set_new(o, "same_top_by_position", reals(r->bucket_same_top, e->n_buckets));
    if (!eval_is_reference(e, i)) {
        json_object_set_new(o, "kl_ratio_to", ratios(e, rows, i));
    }
    if (e->sides[i].exact) {
        json_object_set_new(o, "kl_over_exact", estimate(eval_kl_over_exact(e, i)));
        json_object_set_new(o, "kl_added", estimate(eval_kl_added(e, i)));
    }
    json_object_set_new(o, "per_window", windows(e, i));
}

static json_t *needle_cells(const evaluation *e, size_t side)
{
    json_t *a = json_array();
    uint32_t *lengths = calloc(e->n_needles + 1, sizeof *lengths);
    double *depths = calloc(e->n_needles + 1, sizeof *depths);
    size_t nl = lengths && depths ? eval_needle_lengths(e, lengths) : 0;
    size_t nd = nl ? eval_needle_depths(e, depths) : 0;
    for (size_t i = 0; i < nl * nd; i++) {
        size_t n, hits = eval_needle_hits(e, side, lengths[i / nd], depths[i % nd], &n);
        if (n) {
            json_array_append_new(a, json_pack("{s:I, s:o, s:I, s:I}", "tokens",
                                               (json_int_t)lengths[i / nd], "depth",
                                               real(depths[i % nd]), "right", (json_int_t)hits,
                                               "asked", (json_int_t)n));
        }
    }
    free(lengths);
    free(depths);
    return a;
}

bool eval_write_json(const evaluation *e, const eval_row *rows, const char *path)
{
    json_t *sides = json_array();
    for (size_t i = 0; i < e->n_sides; i++) {
        const eval_row *r = &rows[i];
        json_t *o = json_pack("{s:s, s:s, s:s}", "name", r->label, "engine",
                              r->side->is_peer ? "llama" : "tq", "kv", r->side->kv);
        json_object_set_new(o, "reference",
                            r->reference ? json_string(rows[r->side->reference].label)
                                         : json_null());
        if (e->n_windows) {
            add_windows(e, rows, i, o);
        }
        if (e->n_needles) {
            json_object_set_new(o, "needles_right", estimate(r->needles));
            json_object_set_new(o, "needles", needle_cells(e, i));
        }
        json_array_append_new(sides, o);
    }
    json_t *all =
        json_pack("{s:s, s:i, s:s, s:o, s:o, s:o}", "program", "tq eval", "schema", 1, "version",
                  tq_version(), "model", model(e), "settings", settings(e), "sides", sides);
    char *text = all ? json_dumps(all, JSON_INDENT(1) | DIGITS) : NULL;
    json_decref(all);
    if (!text) {
        msg_error("not enough memory to write '%s'", path);
        return false;
    }
    bool ok = save_bytes(NULL, path, text, strlen(text));
    free(text);
    return ok;
}
