/* SPDX-License-Identifier: MIT */
/* tune_report.c — what a tuning found: the files that a scheme names, the evidence for people
 * within 80 columns, and all of it as JSON.
 *
 * Policy: nothing that differs from run to run is in the JSON; the evidence is that of windows
 * which served for no choice but the last one, whether to keep the answer.
 */
#include "out.h"
#include "save.h"
#include "scheme_files.h"
#include "snapshot.h"
#include "tuning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = TQ_SCHEME_FILE_BYTES + 16 };

static const char *path_of(const tuning *t, const char *end, char dst[PATH_BYTES])
{
    snprintf(dst, PATH_BYTES, "%s%s", t->output, end);
    return dst;
}

static const tune_named *answer(const tuning *t)
{
    return &t->named[t->fell_back ? t->rival : t->winner];
}

/* What to write after --kv. */
static void put_scheme(const tuning *t, char *dst, size_t n)
{
    tq_scheme plain = {0};
    char name[TQ_SCHEME_TEXT_BYTES] = "", a[PATH_BYTES], b[PATH_BYTES];
    tune_plain(t, &plain);
    tq_scheme_format(&plain, name, sizeof name);
    if (t->fell_back) {
        snprintf(dst, n, "%s", answer(t)->label);
    } else {
        snprintf(dst, n, "%s,%s%slayers=%s", name, answer(t)->mean ? "kmean=" : "",
                 answer(t)->mean ? path_of(t, ".kmean,", a) : "", path_of(t, ".layers", b));
    }
}

/* "1 window", "2 windows" */
static const char *windows(char dst[32], uint32_t n)
{
    snprintf(dst, 32, "%u window%s", n, n == 1 ? "" : "s");
    return dst;
}

/* ---- Files ------------------------------------------------------------------------------- */

bool tune_write_files(const tuning *t)
{
    const tqe_model_info *m = &t->e.model;
    char path[PATH_BYTES], comment[256], model[65] = "", n[32];
    tqe_error err = {0};
    if (t->fell_back) {
        return true;
    }
    snprintf(
        comment, sizeof comment,
        "tq tune: %.3f bits, %llu bytes a token; %.3f times the mean KL of the best uniform scheme",
        tune_bits(t, answer(t)->bytes), (unsigned long long)answer(t)->bytes, t->ratio.value);
    tqe_status st = tqe_layers_write(path_of(t, ".layers", path), answer(t)->layers, m->n_layers,
                                     comment, &err);
    if (st == TQE_OK && answer(t)->mean) {
        const tqe_kmean_shape shape = {m->n_layers, m->n_kv_heads, m->d_k};
        snprintf(comment, sizeof comment, "tq tune: mean of the keys over %s of %u tokens",
                 windows(n, t->n_of[TUNE_CALIBRATE]), t->e.n_ctx);
        st = tqe_model_fingerprint_text(t->model, model, &err);
        st = st == TQE_OK ? tqe_kmean_write(path_of(t, ".kmean", path), t->k_mean, &shape, model,
                                            comment, &err)
                          : st;
    }
    if (st != TQE_OK) {
        msg_error("%s", err.text);
    }
    return st == TQE_OK;
}

/* ---- For people -------------------------------------------------------------------------- */

static void heading(const char *text)
{
    out_printf("\n%s%s%s\n", out_bold(), text, out_plain());
}

static const char *number(char dst[32], double v)
{
    return eval_number(dst, v * 1e3);
}

/* "0.71 (0.69 to 0.73)" */
static const char *ratio_text(char dst[96], tqe_estimate r)
{
    int n = snprintf(dst, 96, "%.3f", r.value);
    if (isfinite(r.high)) {
        snprintf(dst + n, 96 - (size_t)n, " (%.3f to %.3f)", r.low, r.high);
    }
    return dst;
}

static void put_mean(const tuning *t)
{
    char a[96], made[32];
    const uint32_t n = t->n_of[TUNE_CHOOSE];
    heading("Static key mean");
    out_wrapped("Made of %s. On %u other%s the mean KL of %s with it is %s times that without: %s.",
                windows(made, t->n_of[TUNE_CALIBRATE]), n, n == 1 ? "" : "s", t->mean_scheme,
                ratio_text(a, t->mean_ratio),
                t->use_mean
                    ? "kept"
                    : "not kept, since it does not help for sure (the interval must be below 1)");
}

static void put_scan(const tuning *t)
{
    enum { SCAN_COLUMNS = 7 };
    char a[32], base[TQ_SCHEME_TEXT_BYTES] = "", more[64] = "";
    const size_t n_more = t->n_scan > SCAN_COLUMNS ? t->n_scan - SCAN_COLUMNS : 0;
    tq_scheme_format(&t->base, base, sizeof base);
    heading("Cost of a format in one layer: mean KL, 1e-3 nats");
    out_printf("layer");
    for (size_t i = 0; i < t->n_scan - n_more; i++) {
        char name[TQ_SCHEME_TEXT_BYTES] = "";
        tq_scheme_format(&t->scan[i], name, sizeof name);
        out_printf("%9s", name);
    }
    out_write("\n", 1);
    for (size_t l = 0; l < t->e.model.n_layers; l++) {
        out_printf("%5zu", l);
        for (size_t i = 0; i < t->n_scan - n_more; i++) {
            out_printf("%9s", number(a, t->scan_kl[l * t->n_scan + i]));
        }
        out_write("\n", 1);
    }
    if (n_more) {
        snprintf(more, sizeof more, " --json FILE has %zu more format%s.", n_more,
                 n_more == 1 ? "" : "s");
    }
    out_wrapped("Over %s, all other layers in %s%s.%s", windows(a, t->n_of[TUNE_SCAN]), base,
                t->use_mean ? ", keys without the mean" : "", more);
}

static void put_candidates(const tuning *t)
{
    char a[32], b[32];
    heading("Candidates: mean KL, 1e-3 nats");
    out_printf("%-24s%8s%9s%12s%12s\n", "", "bits", "B/token", "predicted", "measured");
    for (size_t i = 0; i < t->n_named; i++) {
        const tune_named *n = &t->named[i];
        out_printf("%-24s%8.3f%9llu%12s%12s%s\n", n->label, tune_bits(t, n->bytes),
                   (unsigned long long)n->bytes, isnan(n->predicted) ? "" : number(a, n->predicted),
                   number(b, n->choose), i == t->winner ? "  chosen" : "");
    }
    const char *scanned = t->n_of[TUNE_SCAN] == 1 ? "window" : "windows";
    const uint32_t others = t->n_of[TUNE_CHOOSE];
    out_wrapped("Predicted by adding up layers and sides, over the scanned %s; measured as a whole "
                "over %u other%s. On the scanned %s the chosen one has %s where the sum is %s.",
                scanned, others, others == 1 ? "" : "s", scanned, number(a, t->scan_measured),
                number(b, t->named[t->winner].predicted));
}

static void put_final(const tuning *t)
{
    const uint32_t n = t->n_of[TUNE_FINAL];
    char a[32], b[32], line[80], ratio[96];
    double *kl = malloc(2 * (size_t)n * sizeof *kl);
    if (!kl) {
        return;
    }
    const tune_named *r = &t->named[t->rival];
    tune_kl(t, r->layers, r->mean, TUNE_FINAL, kl + n);
    snprintf(line, sizeof line, "Held out: mean KL over %s, 1e-3 nats", windows(a, n));
    heading(line);
    snprintf(line, sizeof line, "\xc3\x97 %s, paired", r->label);
    out_printf("%-24s%8s%9s%12s   %s\n", "", "bits", "B/token", "KL", line);
    for (size_t i = 0; i < t->n_final; i++) {
        const tune_named *f = &t->named[t->final[i]];
        tune_kl(t, f->layers, f->mean, TUNE_FINAL, kl);
        tqe_estimate mean = tqe_mean(kl, n);
        number(a, mean.value);
        if (isfinite(mean.high)) {
            snprintf(line, sizeof line, "%s \xc2\xb1%s", a, number(b, mean.high - mean.value));
        } else {
            snprintf(line, sizeof line, "%s ", a);
        }
        out_printf("%-24s%8.3f%9llu%15s  %s\n", f->label, tune_bits(t, f->bytes),
                   (unsigned long long)f->bytes, line,
                   t->final[i] == t->rival ? "1" : ratio_text(ratio, tqe_ratio(kl, kl + n, n)));
    }
    free(kl);
}

static void put_layers(const tuning *t)
{
    const tune_named *w = answer(t);
    heading("Layers");
    for (uint32_t i = 0, end; i < t->e.model.n_layers; i = end) {
        char name[TQ_SCHEME_TEXT_BYTES] = "", other[TQ_SCHEME_TEXT_BYTES], range[32];
        tq_scheme_format(&w->layers[i], name, sizeof name);
        for (end = i + 1; end < t->e.model.n_layers; end++) {
            tq_scheme_format(&w->layers[end], other, sizeof other);
            if (strcmp(name, other) != 0) {
                break;
            }
        }
        snprintf(range, sizeof range, end == i + 1 ? "%u" : "%u-%u", i, end - 1);
        out_printf("%-8s%s\n", range, name);
    }
}

void tune_put_report(const tuning *t)
{
    char scheme[TQ_SCHEME_TEXT_BYTES], a[96];
    const tune_named *r = &t->named[t->rival];
    put_mean(t);
    put_scan(t);
    put_candidates(t);
    put_final(t);
    put_layers(t);
    put_scheme(t, scheme, sizeof scheme);
    heading("Result");
    ratio_text(a, t->ratio);
    if (t->fell_back) {
        out_wrapped("The best candidate has %s times the KL of the uniform scheme %s: that is the "
                    "answer, and no files were written.",
                    a, r->label);
    } else {
        out_wrapped("%s times the KL of %s, on %s: the best uniform scheme of at most %llu bytes "
                    "a token.%s",
                    a, r->label,
                    t->n_of[TUNE_FINAL] == 1 ? "a held-out window" : "held-out windows",
                    (unsigned long long)t->budget,
                    t->ratio.high >= 1 ? " The interval holds 1: they may be equals." : "");
    }
    out_printf("Use: --kv ");
    out_text(scheme, strlen(scheme));
    out_write("\n", 1);
}

/* ---- JSON -------------------------------------------------------------------------------- */

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

static json_t *scheme_name(const tq_scheme *s)
{
    char name[TQ_SCHEME_TEXT_BYTES] = "";
    tq_scheme_format(s, name, sizeof name);
    return json_string(name);
}

static json_t *layer_names(const tuning *t, const tq_scheme *layers)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < t->e.model.n_layers; i++) {
        json_array_append_new(a, scheme_name(&layers[i]));
    }
    return a;
}

static json_t *pack_scan(const tuning *t)
{
    json_t *names = json_array(), *rows = json_array();
    for (size_t i = 0; i < t->n_scan; i++) {
        json_array_append_new(names, scheme_name(&t->scan[i]));
    }
    for (size_t l = 0; l < t->e.model.n_layers; l++) {
        json_t *row = json_array();
        for (size_t i = 0; i < t->n_scan; i++) {
            json_array_append_new(row, real(t->scan_kl[l * t->n_scan + i]));
        }
        json_array_append_new(rows, row);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "base", scheme_name(&t->base), "base_kl",
                     real(t->base_kl), "schemes", names, "kl_by_layer", rows);
}

static json_t *pack_named(const tuning *t, const tune_named *n)
{
    json_t *held_out = json_array();
    double *kl = malloc(t->n_of[TUNE_FINAL] * sizeof *kl);
    if (kl && isfinite(tune_kl(t, n->layers, n->mean, TUNE_FINAL, kl))) {
        for (uint32_t i = 0; i < t->n_of[TUNE_FINAL]; i++) {
            json_array_append_new(held_out, real(kl[i]));
        }
    }
    free(kl);
    return json_pack("{s:s, s:o, s:b, s:b, s:I, s:o, s:o, s:o, s:o}", "label", n->label, "layers",
                     layer_names(t, n->layers), "key_mean", n->mean, "uniform", n->uniform,
                     "bytes_per_token", (json_int_t)n->bytes, "bits", real(tune_bits(t, n->bytes)),
                     "predicted_kl", real(n->predicted), "choose_kl", real(n->choose),
                     "held_out_kl", held_out);
}

bool tune_write_json(const tuning *t, const char *path)
{
    char scheme[TQ_SCHEME_TEXT_BYTES];
    json_t *named = json_array();
    for (size_t i = 0; i < t->n_named; i++) {
        json_array_append_new(named, pack_named(t, &t->named[i]));
    }
    put_scheme(t, scheme, sizeof scheme);
    json_t *kv = json_string(scheme), *label = json_string(t->e.model.name);
    json_t *root = json_pack(
        "{s:s, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I}, s:I, s:{s:s, s:o, s:b}, s:o, s:o, s:s, s:s, "
        "s:o, s:o, s:b, s:o}",
        "version", tq_version(), "model", label ? label : json_string("?"), "windows", "ctx",
        (json_int_t)t->e.n_ctx, "from", (json_int_t)t->e.from, "calibrate",
        (json_int_t)t->n_of[TUNE_CALIBRATE], "scan", (json_int_t)t->n_of[TUNE_SCAN], "choose",
        (json_int_t)t->n_of[TUNE_CHOOSE], "held_out", (json_int_t)t->n_of[TUNE_FINAL],
        "budget_bytes_per_token", (json_int_t)t->budget, "key_mean", "scheme", t->mean_scheme,
        "ratio", estimate(t->mean_ratio), "kept", t->use_mean, "scan", pack_scan(t), "candidates",
        named, "chosen", t->named[t->winner].label, "best_uniform", t->named[t->rival].label,
        "ratio", estimate(t->ratio), "chosen_scan_kl", real(t->scan_measured), "fell_back",
        t->fell_back, "kv", kv ? kv : json_string("?"));
    char *text = root ? json_dumps(root, DIGITS | JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text) {
        msg_error("not enough memory for '%s'", path);
        return false;
    }
    bool ok = save_bytes(NULL, path, text, strlen(text));
    free(text);
    return ok;
}
