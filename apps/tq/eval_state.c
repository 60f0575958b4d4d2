/* SPDX-License-Identifier: MIT */
/* eval_state.c — what a killed evaluation leaves behind, so that the next one goes on from there.
 *
 * A JSON file: who it belongs to (model, tokens, sides, version), then the records of each finished
 * window and the hits of each finished needle. Doubles keep 17 digits, so a resumed run prints what
 * an unbroken one would. Policy: the file is replaced as a whole, and nothing of it is believed
 * before all of it has been checked.
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
#include <sys/stat.h>

enum { STATE_VERSION = 1, MAX_STATE_BYTES = 1 << 30 };

/* ---- Saving ------------------------------------------------------------------------------ */

static json_t *hex(uint64_t v)
{
    return json_sprintf("%016llx", (unsigned long long)v);
}

static uint64_t needles_hash(const evaluation *e)
{
    uint64_t h = TQE_HASH_INIT;
    for (size_t i = 0; i < e->n_needles; i++) {
        h = tqe_hash(h, &e->needles[i].n_answer, sizeof e->needles[i].n_answer);
        h = tqe_hash(h, e->needles[i].ids, e->needles[i].n * sizeof *e->needles[i].ids);
    }
    return h;
}

/* "tq tcq4,layers=f 1f...": the name of a side, and what the files are that its scheme names. */
static json_t *side_name(const char *kv, bool is_peer)
{
    tq_scheme s;
    uint64_t h = TQE_HASH_INIT;
    if (is_peer || tq_scheme_parse(&s, kv, NULL, 0) != TQ_OK || !(s.kmean[0] || s.layers[0])) {
        return json_sprintf("%s %s", is_peer ? "llama" : "tq", kv);
    }
    const char *const files[] = {s.kmean, s.layers};
    for (int i = 0; i < 2; i++) {
        uint64_t file = 0; /* also for one that cannot be read: the session says why */
        tqe_error err;
        if (files[i][0] && tqe_file_fingerprint(files[i], &file, &err) != TQE_OK) {
            file = 0;
        }
        h = tqe_hash(h, &file, sizeof file);
    }
    return json_sprintf("tq %s %016llx", kv, (unsigned long long)h);
}

/* All that must be equal for records to be of use. */
static json_t *identity(const evaluation *e)
{
    json_t *sides = json_array();
    for (size_t i = 0; i < e->n_sides; i++) {
        json_array_append_new(sides, side_name(e->sides[i].kv, e->sides[i].is_peer));
    }
    uint64_t text =
        tqe_hash(TQE_HASH_INIT, e->windows, e->n_windows * e->n_ctx * sizeof *e->windows);
    return json_pack("{s:i, s:s, s:i, s:o, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:o}",
                     "tq_eval_state", STATE_VERSION, "version", tq_version(), "format",
                     TQ_FORMAT_VERSION, "model", hex(e->fingerprint), "ctx", (json_int_t)e->n_ctx,
                     "from", (json_int_t)e->from, "batch", (json_int_t)e->batch, "n_windows",
                     (json_int_t)e->n_windows, "text", hex(text), "n_needles",
                     (json_int_t)e->n_needles, "needles", hex(needles_hash(e)), "sides", sides);
}

static json_t *pack_doubles(const double *v, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(a, json_real(v[i]));
    }
    return a;
}

static json_t *pack_record(const evaluation *e, const tqe_eval_record *r)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:o, s:o}", "kl_mean", r->kl_mean,
                     "kl_from_exact", r->kl_from_exact, "kl_median", r->kl_median, "kl_p99",
                     r->kl_p99, "same_top", r->same_top, "nll", r->nll, "kv_bytes",
                     (json_int_t)r->kv_bytes, "bucket_kl", pack_doubles(r->bucket_kl, e->n_buckets),
                     "bucket_same_top", pack_doubles(r->bucket_same_top, e->n_buckets));
}

bool eval_save_state(const evaluation *e, const char *path)
{
    json_t *state = identity(e), *records = json_array(), *hits = json_array();
    for (size_t i = 0; i < e->n_windows_done * e->n_sides; i++) {
        json_array_append_new(records, pack_record(e, &e->records[i]));
    }
    for (size_t i = 0; i < e->n_needles_done; i++) {
        char line[TQE_EVAL_MAX_SIDES + 1];
        for (size_t k = 0; k < e->n_sides; k++) {
            line[k] = e->hits[i * e->n_sides + k] ? '1' : '0';
        }
        line[e->n_sides] = '\0';
        json_array_append_new(hits, json_string(line));
    }
    json_object_set_new(state, "records", records);
    json_object_set_new(state, "hits", hits);
    char *text = json_dumps(state, JSON_REAL_PRECISION(17) | JSON_COMPACT);
    json_decref(state);
    if (!text) {
        msg_error("not enough memory for the state of the evaluation");
        return false;
    }
    bool ok = save_bytes(NULL, path, text, strlen(text));
    free(text);
    return ok;
}

/* ---- Loading ----------------------------------------------------------------------------- */

static bool damaged(const char *path, const char *what, size_t i)
{
    msg_error("state file '%s' is damaged: %s %zu; delete it to start anew", path, what, i);
    return false;
}

/* A number of [low, high], else NaN. */
static double number(const json_t *object, const char *key, double low, double high)
{
    const json_t *v = json_object_get(object, key);
    double d = json_is_number(v) ? json_number_value(v) : NAN;
    return d >= low && d <= high ? d : NAN;
}

static bool unpack_doubles(const json_t *object, const char *key, double *dst, size_t n)
{
    const json_t *a = json_object_get(object, key);
    if (!json_is_array(a) || json_array_size(a) != n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        dst[i] =
            json_is_number(json_array_get(a, i)) ? json_number_value(json_array_get(a, i)) : NAN;
        if (!isfinite(dst[i])) {
            return false;
        }
    }
    return true;
}

static bool unpack_record(const evaluation *e, const json_t *o, tqe_eval_record *r)
{
    /* A sum of rounded terms may be a hair below 0. */
    r->kl_mean = number(o, "kl_mean", -1e-6, 1e6);
    r->kl_median = number(o, "kl_median", -1e-6, 1e6);
    r->kl_p99 = number(o, "kl_p99", -1e-6, 1e6);
    r->kl_from_exact = number(o, "kl_from_exact", -1e-6, 1e6);
    r->same_top = number(o, "same_top", 0, 1);
    r->nll = number(o, "nll", 0, 1e6);
    double bytes = number(o, "kv_bytes", 1, 0x1p53);
    if (isnan(r->kl_mean + r->kl_median + r->kl_p99 + r->kl_from_exact + r->same_top + r->nll +
              bytes)) {
        return false;
    }
    r->kv_bytes = (uint64_t)bytes;
    return unpack_doubles(o, "bucket_kl", r->bucket_kl, e->n_buckets) &&
           unpack_doubles(o, "bucket_same_top", r->bucket_same_top, e->n_buckets);
}

/* The first key in which the state is not of this evaluation. */
static bool check_identity(const evaluation *e, const json_t *state, const char *path)
{
    json_t *mine = identity(e);
    const char *key, *differs = NULL;
    json_t *value;
    json_object_foreach(mine, key, value)
    {
        if (!differs && !json_equal(value, json_object_get(state, key))) {
            differs = key;
        }
    }
    if (differs) {
        msg_error("state file '%s' is of another evaluation ('%s' differs); delete it, or name "
                  "another with --resume",
                  path, differs);
    }
    json_decref(mine);
    return !differs;
}

static bool unpack(evaluation *e, const json_t *state, const char *path)
{
    const json_t *records = json_object_get(state, "records");
    const json_t *hits = json_object_get(state, "hits");
    size_t n_records = json_array_size(records), n_hits = json_array_size(hits);
    if (!json_is_array(records) || n_records % e->n_sides ||
        n_records / e->n_sides > e->n_windows) {
        return damaged(path, "number of records", n_records);
    }
    if (!json_is_array(hits) || n_hits > e->n_needles) {
        return damaged(path, "number of hits", n_hits);
    }
    for (size_t i = 0; i < n_records; i++) {
        if (!unpack_record(e, json_array_get(records, i), &e->records[i])) {
            return damaged(path, "record", i);
        }
    }
    for (size_t i = 0; i < n_hits; i++) {
        const char *line = json_string_value(json_array_get(hits, i));
        if (!line || strlen(line) != e->n_sides || strspn(line, "01") != e->n_sides) {
            return damaged(path, "hits", i);
        }
        for (size_t k = 0; k < e->n_sides; k++) {
            e->hits[i * e->n_sides + k] = line[k] == '1';
        }
    }
    e->n_windows_done = n_records / e->n_sides;
    e->n_needles_done = n_hits;
    return true;
}

bool eval_load_state(evaluation *e, const char *path)
{
    struct stat st;
    json_error_t why;
    size_t n;
    if (stat(path, &st) != 0 && errno == ENOENT) {
        return true;
    }
    char *text = text_read_file(path, MAX_STATE_BYTES, &n);
    if (!text) {
        return false;
    }
    json_t *state = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    bool ok = json_is_object(state);
    free(text);
    if (!ok) {
        msg_error("'%s' is not a state file: %s", path, state ? "not an object" : why.text);
    }
    ok = ok && check_identity(e, state, path) && unpack(e, state, path);
    json_decref(state);
    return ok;
}
