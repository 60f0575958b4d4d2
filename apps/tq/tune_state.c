/* SPDX-License-Identifier: MIT */
/* tune_state.c — what `tq tune` has measured so far, in memory and in a file.
 *
 * Every measurement is a fact: this variant, in words, over this window has this divergence. The
 * steps of a tuning ask for facts and compute only those that are missing. So a run that was killed
 * goes on where it stopped, and another budget on the same text starts with all that is known. A
 * number keeps 17 digits: the answer is that of an unbroken run. Nothing of a file is believed
 * before all of it has been checked.
 */
#define _POSIX_C_SOURCE 200809L
#include "out.h"
#include "save.h"
#include "text.h"
#include "tuning.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { STATE_VERSION = 1, MAX_STATE_BYTES = 1 << 30 };

static size_t n_keys(const tuning *t)
{
    return (size_t)t->e.model.n_layers * t->e.model.n_kv_heads * t->e.model.d_k;
}

/* ---- Facts ------------------------------------------------------------------------------- */

char *tune_key(const tuning *t, const tq_scheme *layers, bool mean)
{
    size_t n = (size_t)t->e.model.n_layers * (TQ_SCHEME_TEXT_BYTES + 24) + 8, at = 0;
    char *key = malloc(n);
    for (uint32_t i = 0, end; key && i < t->e.model.n_layers; i = end) {
        char name[TQ_SCHEME_TEXT_BYTES] = "", other[TQ_SCHEME_TEXT_BYTES];
        tq_scheme_format(&layers[i], name, sizeof name);
        for (end = i + 1; end < t->e.model.n_layers; end++) {
            tq_scheme_format(&layers[end], other, sizeof other);
            if (strcmp(name, other) != 0) {
                break;
            }
        }
        const char *comma = i ? "," : "";
        at += (size_t)(end == i + 1
                           ? snprintf(key + at, n - at, "%s%u %s", comma, i, name)
                           : snprintf(key + at, n - at, "%s%u-%u %s", comma, i, end - 1, name));
    }
    if (key && mean) {
        snprintf(key + at, n - at, "+mean");
    }
    return key;
}

const tune_fact *tune_find(const tuning *t, const char *key, uint32_t window)
{
    for (size_t i = 0; i < t->n_facts; i++) {
        if (t->facts[i].window == window && !strcmp(t->facts[i].key, key)) {
            return &t->facts[i];
        }
    }
    return NULL;
}

bool tune_learn(tuning *t, const char *key, uint32_t window, double kl)
{
    if (t->n_facts % 256 == 0) {
        tune_fact *grown = realloc(t->facts, (t->n_facts + 256) * sizeof *grown);
        if (!grown) {
            msg_error("not enough memory for what was measured");
            return false;
        }
        t->facts = grown;
    }
    char *copy = strdup(key);
    if (!copy) {
        msg_error("not enough memory for what was measured");
        return false;
    }
    t->facts[t->n_facts++] = (tune_fact){.key = copy, .window = window, .kl = kl};
    return true;
}

void tune_free_facts(tuning *t)
{
    for (size_t i = 0; i < t->n_facts; i++) {
        free(t->facts[i].key);
    }
    free(t->facts);
    t->facts = NULL;
    t->n_facts = 0;
}

/* ---- Saving ------------------------------------------------------------------------------ */

static json_t *hex(uint64_t v)
{
    return json_sprintf("%016llx", (unsigned long long)v);
}

/* All that must be equal for facts to be of use; the budget is not part of it. */
static json_t *identity(const tuning *t)
{
    const evaluation *e = &t->e;
    uint64_t text =
        tqe_hash(TQE_HASH_INIT, e->windows, e->n_windows * e->n_ctx * sizeof *e->windows);
    return json_pack("{s:i, s:s, s:i, s:o, s:I, s:I, s:o, s:[I,I,I,I]}", "tq_tune_state",
                     STATE_VERSION, "version", tq_version(), "format", TQ_FORMAT_VERSION, "model",
                     hex(e->fingerprint), "ctx", (json_int_t)e->n_ctx, "from", (json_int_t)e->from,
                     "text", hex(text), "windows", (json_int_t)t->n_of[TUNE_CALIBRATE],
                     (json_int_t)t->n_of[TUNE_SCAN], (json_int_t)t->n_of[TUNE_CHOOSE],
                     (json_int_t)t->n_of[TUNE_FINAL]);
}

bool tune_save_state(const tuning *t)
{
    json_t *state = identity(t), *facts = json_array(), *sums = json_array();
    for (size_t i = 0; i < t->n_facts; i++) {
        const tune_fact *f = &t->facts[i];
        json_array_append_new(facts, json_pack("[s,I,f]", f->key, (json_int_t)f->window, f->kl));
    }
    for (size_t i = 0; t->n_summed && i < n_keys(t); i++) {
        json_array_append_new(sums, json_real(t->sums[i]));
    }
    json_object_set_new(state, "n_summed", json_integer((json_int_t)t->n_summed));
    json_object_set_new(state, "sums", sums);
    json_object_set_new(state, "facts", facts);
    char *text = json_dumps(state, JSON_REAL_PRECISION(17) | JSON_COMPACT);
    json_decref(state);
    if (!text) {
        msg_error("not enough memory for the state of the tuning");
        return false;
    }
    bool ok = save_bytes(NULL, t->state, text, strlen(text));
    free(text);
    return ok;
}

/* ---- Loading ----------------------------------------------------------------------------- */

static bool damaged(const tuning *t, const char *what, size_t i)
{
    msg_error("state file '%s' is damaged: %s %zu; delete it to start anew", t->state, what, i);
    return false;
}

/* The first key in which the state is not of this tuning. */
static bool check_identity(const tuning *t, const json_t *state)
{
    json_t *mine = identity(t);
    const char *key, *differs = NULL;
    json_t *value;
    json_object_foreach(mine, key, value)
    {
        if (!differs && !json_equal(value, json_object_get(state, key))) {
            differs = key;
        }
    }
    if (differs) {
        msg_error("state file '%s' is of another tuning ('%s' differs); delete it, or name another "
                  "with --resume",
                  t->state, differs);
    }
    json_decref(mine);
    return !differs;
}

static bool unpack_sums(tuning *t, const json_t *state)
{
    const json_t *n = json_object_get(state, "n_summed"), *sums = json_object_get(state, "sums");
    json_int_t n_summed = json_is_integer(n) ? json_integer_value(n) : -1;
    if (n_summed < 0 || n_summed > t->n_of[TUNE_CALIBRATE]) {
        return damaged(t, "number of windows", (size_t)n_summed);
    }
    if (!json_is_array(sums) || json_array_size(sums) != (n_summed ? n_keys(t) : 0)) {
        return damaged(t, "number of sums", json_array_size(sums));
    }
    for (size_t i = 0; i < json_array_size(sums); i++) {
        const json_t *v = json_array_get(sums, i);
        double d = json_is_number(v) ? json_number_value(v) : NAN;
        if (!isfinite(d) || fabs(d) > 1e30) {
            return damaged(t, "sum", i);
        }
        t->sums[i] = d;
    }
    t->n_summed = (uint32_t)n_summed;
    return true;
}

static bool unpack_facts(tuning *t, const json_t *facts)
{
    if (!json_is_array(facts)) {
        return damaged(t, "number of facts", 0);
    }
    for (size_t i = 0; i < json_array_size(facts); i++) {
        const json_t *f = json_array_get(facts, i), *window = json_array_get(f, 1),
                     *kl = json_array_get(f, 2);
        const char *key = json_string_value(json_array_get(f, 0));
        double v = json_is_number(kl) ? json_number_value(kl) : NAN;
        json_int_t w = json_is_integer(window) ? json_integer_value(window) : -1;
        /* A sum of rounded terms may be a hair below 0. */
        if (!key || w < 0 || (size_t)w >= t->e.n_windows || !(v >= -1e-6 && v <= 1e6)) {
            return damaged(t, "fact", i);
        }
        if (!tune_learn(t, key, (uint32_t)w, v)) {
            return false;
        }
    }
    return true;
}

bool tune_load_state(tuning *t)
{
    struct stat st;
    json_error_t why;
    size_t n;
    if (stat(t->state, &st) != 0 && errno == ENOENT) {
        return true;
    }
    char *text = text_read_file(t->state, MAX_STATE_BYTES, &n);
    if (!text) {
        return false;
    }
    json_t *state = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    bool ok = json_is_object(state);
    free(text);
    if (!ok) {
        msg_error("'%s' is not a state file: %s", t->state, state ? "not an object" : why.text);
    }
    ok = ok && check_identity(t, state) && unpack_sums(t, state) &&
         unpack_facts(t, json_object_get(state, "facts"));
    json_decref(state);
    return ok;
}
