/* SPDX-License-Identifier: MIT */
/* eval_input.c — the texts and needles that `tq eval` measures with.
 *
 * Policy: every line of a needle file and every byte of a text is checked before anything is
 * computed, and refused by file, line and field.
 */
#include "evaluation.h"
#include "out.h"
#include "setup.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT_BYTES = 256 << 20, DEFAULT_WINDOWS = 8, MAX_NEEDLES = 100000 };

/* ---- Texts ------------------------------------------------------------------------------- */

typedef struct token_list {
    int32_t *at;
    size_t n;
} token_list;

static bool read_text(evaluation *e, const tqe_model *m, eval_text *t, token_list *out)
{
    tqe_error err = {0};
    char *text = text_read_file(t->path, MAX_TEXT_BYTES, &t->n_bytes);
    if (!text) {
        return false;
    }
    tqe_status st = tqe_eval_tokens(m, text, t->n_bytes, e->no_bos, &out->at, &out->n, &err);
    free(text);
    if (st != TQE_OK) {
        msg_error("'%s': %s", t->path, err.text);
        return false;
    }
    t->n_tokens = out->n;
    t->n_windows = tqe_eval_n_windows(out->n, e->n_ctx, e->no_bos);
    if (!t->n_bytes) {
        msg_error("'%s' is empty", t->path);
    } else if (!t->n_windows) {
        msg_error("'%s' has %zu tokens: too few for a window of %u (-c)", t->path, t->n_tokens,
                  e->n_ctx);
    }
    return t->n_windows > 0;
}

/* Shares n windows out over the texts, one after another while there is room. On entry n_windows of
 * a text is its room, on return its share. Returns how many were given. */
static size_t share_out(evaluation *e, size_t n)
{
    size_t given = 0, room[ARG_LIST_MAX];
    for (size_t i = 0; i < e->n_texts; i++) {
        room[i] = e->texts[i].n_windows;
        e->texts[i].n_windows = 0;
    }
    for (bool any = true; any && given < n;) {
        any = false;
        for (size_t i = 0; i < e->n_texts && given < n; i++) {
            if (e->texts[i].n_windows < room[i]) {
                e->texts[i].n_windows++;
                given++;
                any = true;
            }
        }
    }
    return given;
}

static bool cut_windows(evaluation *e, const token_list *t, size_t n)
{
    e->n_windows = share_out(e, n ? n : DEFAULT_WINDOWS);
    if (n && e->n_windows < n) {
        msg_error("%zu windows of %u tokens: the texts have room for %zu", n, e->n_ctx,
                  e->n_windows);
        return false;
    }
    if (n && n < e->n_texts) {
        msg_error("-w %zu: fewer windows than texts (%zu)", n, e->n_texts);
        return false;
    }
    e->windows = malloc(e->n_windows * e->n_ctx * sizeof *e->windows);
    if (!e->windows) {
        msg_error("not enough memory for %zu windows", e->n_windows);
        return false;
    }
    int32_t *dst = e->windows;
    for (size_t i = 0; i < e->n_texts; i++) {
        for (size_t k = 0; k < e->texts[i].n_windows; k++, dst += e->n_ctx) {
            tqe_eval_cut(t[i].at, t[i].n, e->n_ctx, e->no_bos, k, e->texts[i].n_windows, dst);
        }
    }
    return true;
}

bool eval_read_texts(evaluation *e, const tqe_model *m, const arg_strings *files, size_t n)
{
    static token_list t[ARG_LIST_MAX];
    bool ok = true;
    for (size_t i = 0; ok && i < files->n; i++) {
        e->texts[i] = (eval_text){.path = files->at[i]};
        e->n_texts = i + 1;
        t[i] = (token_list){0};
        ok = read_text(e, m, &e->texts[i], &t[i]);
    }
    ok = ok && (!files->n || cut_windows(e, t, n));
    for (size_t i = 0; i < e->n_texts; i++) {
        free(t[i].at);
    }
    return ok;
}

/* ---- Needles ----------------------------------------------------------------------------- */

static bool add_needle(evaluation *e, const eval_needle *needle)
{
    if (e->n_needles % 256 == 0) {
        eval_needle *grown = realloc(e->needles, (e->n_needles + 256) * sizeof *grown);
        if (!grown) {
            msg_error("not enough memory for needles");
            return false;
        }
        e->needles = grown;
    }
    e->needles[e->n_needles++] = *needle;
    return true;
}

/* NULL, or what is wrong with a line of a needle file. */
static const char *check_line(const json_t *line)
{
    const json_t *tokens = json_object_get(line, "approx_tokens");
    const json_t *depth = json_object_get(line, "depth");
    const char *prompt = json_string_value(json_object_get(line, "prompt"));
    const char *answer = json_string_value(json_object_get(line, "answer"));
    double d = depth ? json_number_value(depth) : 0;
    if (!json_is_object(line)) {
        return "it is not an object";
    }
    if (!prompt || !*prompt) {
        return prompt ? "\"prompt\" is empty" : "\"prompt\" is not a text";
    }
    if (!answer || !*answer) {
        return answer ? "\"answer\" is empty" : "\"answer\" is not a text";
    }
    if ((depth && !json_is_number(depth)) || !(d >= 0 && d <= 1)) {
        return "\"depth\" is not a number from 0 to 1";
    }
    if (tokens && (!json_is_integer(tokens) || json_integer_value(tokens) < 1 ||
                   json_integer_value(tokens) > TQE_MAX_CTX)) {
        return "\"approx_tokens\" is not a whole number of tokens";
    }
    return NULL;
}

static bool read_line(evaluation *e, const tqe_model *m, const char *path, size_t number,
                      const char *s, size_t n)
{
    json_error_t json_err;
    tqe_error err = {0};
    json_t *line = json_loadb(s, n, JSON_REJECT_DUPLICATES, &json_err);
    const char *wrong = line ? check_line(line) : json_err.text;
    eval_needle needle = {0};
    if (wrong) {
        msg_error("'%s', line %zu: %s", path, number, wrong);
        json_decref(line);
        return false;
    }
    const json_t *tokens = json_object_get(line, "approx_tokens");
    tqe_status st = tqe_needle_tokens(m, json_string_value(json_object_get(line, "prompt")),
                                      json_string_value(json_object_get(line, "answer")), e->no_bos,
                                      &needle.ids, &needle.n, &needle.n_answer, &err);
    needle.depth = json_number_value(json_object_get(line, "depth"));
    needle.length = 64; /* without a nominal length: the next power of two */
    while (!tokens && needle.length < needle.n) {
        needle.length *= 2;
    }
    if (tokens) {
        needle.length = (uint32_t)json_integer_value(tokens);
    }
    json_decref(line);
    if (st == TQE_OK && needle.n > TQE_MAX_CTX) {
        st = TQE_ERR_ARG;
        snprintf(err.text, sizeof err.text, "%zu tokens are too many", needle.n);
    }
    if (st != TQE_OK) {
        msg_error("'%s', line %zu: %s", path, number, err.text);
    }
    if (st != TQE_OK || !add_needle(e, &needle)) {
        free(needle.ids);
        return false;
    }
    return true;
}

/* n_beyond needles are longer than the model was trained for; the longest is on this line. */
static void warn_beyond(const char *path, size_t line, size_t n_tokens, size_t n_beyond,
                        uint32_t train)
{
    char more[64] = "";
    if (n_beyond > 1) {
        snprintf(more, sizeof more, ", the longest of %zu that are too long", n_beyond);
    }
    msg_warn("'%s', line %zu: %zu tokens with the answer%s; model trained for %u", path, line,
             n_tokens, more, train);
}

bool eval_read_needles(evaluation *e, const tqe_model *m, const char *path)
{
    size_t n, number = 0, longest = 0, longest_line = 0, n_beyond = 0;
    char *text = text_read_file(path, MAX_TEXT_BYTES, &n);
    bool ok = text != NULL;
    e->needle_source = path;
    for (size_t at = 0; ok && at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - (text + at)) : n - at;
        number++;
        if (strspn(text + at, " \t\r") < len) {
            ok = read_line(e, m, path, number, text + at, len);
            size_t tokens = ok ? e->needles[e->n_needles - 1].n : 0;
            n_beyond += e->model.n_ctx_train && tokens > e->model.n_ctx_train;
            longest_line = tokens > longest ? number : longest_line;
            longest = tokens > longest ? tokens : longest;
        }
        if (ok && e->n_needles > MAX_NEEDLES) {
            msg_error("'%s' has more than %d needles", path, MAX_NEEDLES);
            ok = false;
        }
        at += len + 1;
    }
    free(text);
    if (ok && !e->n_needles) {
        msg_error("'%s' has no needles", path);
        ok = false;
    }
    if (ok && n_beyond) {
        warn_beyond(path, longest_line, longest, n_beyond, e->model.n_ctx_train);
    }
    return ok;
}

bool eval_make_needles(evaluation *e, const tqe_model *m, uint32_t n_ctx, uint32_t count)
{
    static const uint32_t eighths[] = {1, 2, 4, 6, 8};
    static const double depths[] = {0, 0.25, 0.5, 0.75, 1};
    enum { N = 5 };
    char *filler = NULL;
    size_t n_filler = 0;
    bool ok = true;
    e->needle_source = "synthetic";
    if (e->n_texts) {
        filler = text_read_file(e->texts[e->n_texts - 1].path, MAX_TEXT_BYTES, &n_filler);
        ok = filler != NULL;
    }
    for (size_t i = 0; ok && i < (size_t)N * N * count; i++) {
        uint32_t length = n_ctx / 8 * eighths[i / count / N];
        tqe_needle spec = {.n_tokens = length, .depth = depths[i / count % N], .seed = 1 + i};
        eval_needle needle = {.length = length, .depth = spec.depth};
        tqe_error err = {0};
        if (tqe_needle_make(m, &spec, filler, n_filler, e->no_bos, &needle.ids, &needle.n,
                            &needle.n_answer, &err) != TQE_OK) {
            msg_error("--needle synthetic: %s", err.text);
            ok = false;
        } else if (!add_needle(e, &needle)) {
            free(needle.ids);
            ok = false;
        }
    }
    free(filler);
    return ok;
}

void eval_free_input(evaluation *e)
{
    for (size_t i = 0; i < e->n_needles; i++) {
        free(e->needles[i].ids);
    }
    free(e->needles);
    free(e->windows);
}
