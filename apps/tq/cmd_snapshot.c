/* SPDX-License-Identifier: MIT */
/* cmd_snapshot.c — `tq snapshot ACTION FILE`: look at saved sessions without running them.
 *
 * Policy: no action changes the file it reads, but for `compact` when -o names it, which is
 * verified first. Header and tables are always checked; `verify` and `compact` check the pages too,
 * `export` those that it reads.
 */
#include "args.h"
#include "commands.h"
#include "file_atomic.h"
#include "out.h"
#include "setup.h"
#include "snapshot.h"
#include "target.h"
#include "text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- info ---------------------------------------------------------------------------------- */

static void text_row(const char *what, const char *text)
{
    out_printf("%-12s", what);
    out_text(text, strlen(text));
    out_write("\n", 1);
}

static const char *const kind_names[] = {
    [TQE_SNAPSHOT_SESSION] = "session", [TQE_SNAPSHOT_PAGE] = "page", [TQE_SNAPSHOT_END] = "end"};

/* A file of a prefix store, as far as it differs from a session. */
static void put_stored(const tqe_snapshot_info *i)
{
    out_printf("%-12s%s of a prompt, in a prefix store\n", "holds",
               i->kind == TQE_SNAPSHOT_PAGE ? "a page" : "what is read at the end");
    out_printf("%-12s%u to %u of the prompt\n", "tokens", i->first, i->first + i->n_tokens - 1);
}

static void put_info(const tqe_snapshot *f, const char *path)
{
    tqe_snapshot_info i;
    tqe_snapshot_layer l;
    char size[32], rows[32], f16[32], number[32], line[256];
    tqe_snapshot_get_info(f, &i);
    tqe_snapshot_get_layer(f, 0, &l);
    bool session = i.kind == TQE_SNAPSHOT_SESSION;
    text_row(session ? "snapshot" : "file", path);
    if (!session) {
        put_stored(&i);
    }
    text_row("model", i.model[0] ? i.model : "(without a name)");
    out_printf("%-12s%s\n", "fingerprint", i.fingerprint);
    text_row("scheme", i.scheme);
    snprintf(line, sizeof line, "%u layers, first one: %u KV heads, %u/%u", i.n_layers,
             l.n_kv_heads, l.d_k, l.d_v);
    text_row("geometry", line);
    if (session) {
        out_printf("%-12s%s\n", "tokens", text_count(number, i.n_tokens));
    }
    text_size(rows, i.packed_bytes);
    text_size(f16, i.f16_bytes);
    out_printf("%-12s", "KV cache");
    if (i.n_pages) {
        out_printf("%s packed in %u %s", rows, i.n_pages, i.n_pages == 1 ? "page" : "pages");
    }
    if (i.f16_bytes) {
        out_printf("%s%s in f16", i.n_pages ? ", " : "", f16);
    }
    out_write("\n", 1);
    if (session) {
        out_printf("%-12s%s\n", "next token",
                   i.has_logits ? "logits are there" : "no logits: continues with more text only");
    }
    out_printf("%-12s%s\n", session ? "file" : "size", text_size(size, i.file_bytes));
    if (!session) {
        out_printf(
            "tq run --prefix-store takes it up where a prompt begins alike; --load does not.\n");
    }
}

static bool put_json(const tqe_snapshot *f)
{
    tqe_snapshot_info i;
    tqe_snapshot_layer l;
    tqe_snapshot_get_info(f, &i);
    json_t *layers = json_array();
    for (uint32_t n = 0; n < i.n_layers; n++) {
        tqe_snapshot_get_layer(f, n, &l);
        json_array_append_new(
            layers, json_pack("{s:I s:I s:I s:I s:I s:I}", "kv_heads", (json_int_t)l.n_kv_heads,
                              "d_k", (json_int_t)l.d_k, "d_v", (json_int_t)l.d_v, "window",
                              (json_int_t)l.window, "k_format", (json_int_t)l.k_codec.format,
                              "v_format", (json_int_t)l.v_codec.format));
    }
    json_t *j = json_pack(
        "{s:s s:I s:s s:s s:s s:I s:I s:b s:I s:I s:I s:o}", "kind", kind_names[i.kind], "first",
        (json_int_t)i.first, "model", i.model, "fingerprint", i.fingerprint, "scheme", i.scheme,
        "tokens", (json_int_t)i.n_tokens, "vocabulary", (json_int_t)i.n_vocab, "logits",
        (int)i.has_logits, "packed_bytes", (json_int_t)i.packed_bytes, "f16_bytes",
        (json_int_t)i.f16_bytes, "file_bytes", (json_int_t)i.file_bytes, "layers", layers);
    char *dump = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    json_decref(j);
    if (!dump) {
        msg_error("cannot build the JSON report");
        return false;
    }
    bool ok = out_write(dump, strlen(dump)) && out_write("\n", 1);
    free(dump);
    return ok;
}

/* ---- export -------------------------------------------------------------------------------- */

typedef struct snapshot_options {
    const char *model, *what, *output;
    uint32_t layer, head;
    bool json;
} snapshot_options;

/* NumPy's format, version 1.0: a header of text, padded to 64 bytes, then little-endian f32. */
static bool write_npy(const char *path, const float *v, size_t n_rows, size_t n_columns)
{
    char shape[64], head[256];
    if (n_rows) {
        snprintf(shape, sizeof shape, "(%zu, %zu)", n_rows, n_columns);
    } else {
        snprintf(shape, sizeof shape, "(%zu,)", n_columns);
    }
    int n = snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }",
                     shape);
    size_t total = ((size_t)n + 1 + 10 + 63) / 64 * 64, text = total - 10;
    uint8_t prefix[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)text, (uint8_t)(text >> 8)};
    char line[256];
    int n_line = snprintf(line, sizeof line, "%-*s\n", (int)text - 1, head);
    tqe_atomic_file out;
    tqe_error err = {0};
    tqe_status st = tqe_atomic_open(&out, path, 0666, &err);
    if (st == TQE_OK) {
        st = tqe_atomic_write(&out, prefix, sizeof prefix, &err);
        st = st == TQE_OK ? tqe_atomic_write(&out, line, (size_t)n_line, &err) : st;
        for (size_t i = 0, all = (n_rows ? n_rows : 1) * n_columns; st == TQE_OK && i < all; i++) {
            uint32_t bits;
            memcpy(&bits, &v[i], 4);
            uint8_t le[4] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16),
                             (uint8_t)(bits >> 24)};
            st = tqe_atomic_write(&out, le, sizeof le, &err);
        }
        if (st == TQE_OK) {
            st = tqe_atomic_commit(&out, true, &err);
        } else {
            tqe_atomic_discard(&out);
        }
    }
    if (st != TQE_OK) {
        msg_error("%s", err.text);
    }
    return st == TQE_OK;
}

static bool export_rows(const tqe_snapshot *f, const snapshot_options *o, int is_value)
{
    tqe_snapshot_info i;
    tqe_snapshot_layer l = {0};
    tqe_error err = {0};
    tqe_snapshot_get_info(f, &i);
    if (o->layer < i.n_layers) {
        tqe_snapshot_get_layer(f, o->layer, &l);
    }
    size_t d = is_value ? l.d_v : l.d_k;
    float *rows = malloc((i.n_tokens * d + 1) * sizeof *rows);
    bool ok = rows != NULL;
    if (!ok) {
        msg_error("not enough memory for %u rows", i.n_tokens);
    } else if (tqe_snapshot_rows(f, o->layer, o->head, is_value, rows, &err) != TQE_OK) {
        msg_error("%s", err.text);
        ok = false;
    } else {
        ok = write_npy(o->output, rows, i.n_tokens, d);
    }
    free(rows);
    return ok;
}

static bool export_ids(const tqe_snapshot *f)
{
    tqe_snapshot_info i;
    tqe_snapshot_get_info(f, &i);
    const int32_t *ids = tqe_snapshot_tokens(f);
    bool ok = true;
    for (uint32_t n = 0; ok && n < i.n_tokens; n++) {
        ok = out_printf("%d\n", (int)ids[n]);
    }
    return ok;
}

/* The model is asked for, not found: a fingerprint says whether it is the right one. */
static bool export_text(const tqe_snapshot *f, const snapshot_options *o)
{
    tqe_snapshot_info i;
    tqe_model *model = NULL;
    tqe_error err = {0};
    char print[65];
    tqe_snapshot_get_info(f, &i);
    if (tqe_model_load(&model, o->model, NULL, &err) != TQE_OK ||
        tqe_model_fingerprint_text(model, print, &err) != TQE_OK) {
        msg_error("%s", err.text);
        tqe_model_free(model);
        return false;
    }
    bool ok = !strcmp(print, i.fingerprint);
    if (!ok) {
        msg_error("'%s' is not the model of the snapshot: fingerprint %.16s..., not %.16s...",
                  o->model, print, i.fingerprint);
    }
    const int32_t *ids = tqe_snapshot_tokens(f);
    tqe_text_stream stream = {0};
    char piece[TQE_PIECE_BYTES];
    for (uint32_t n = 0; ok && n < i.n_tokens; n++) {
        ok = out_text(piece, tqe_text_push(&stream, model, ids[n], piece, sizeof piece));
    }
    ok = ok && out_text(piece, tqe_text_finish(&stream, piece, sizeof piece)) && out_write("\n", 1);
    tqe_model_free(model);
    return ok;
}

static bool export_what(const tqe_snapshot *f, const char *path, const snapshot_options *o)
{
    if (!strcmp(o->what, "ids")) {
        return export_ids(f);
    }
    if (!strcmp(o->what, "text")) {
        return export_text(f, o);
    }
    if (!strcmp(o->what, "logits")) {
        tqe_snapshot_info i;
        tqe_snapshot_get_info(f, &i);
        if (!i.has_logits) {
            msg_error("'%s' holds no logits", path);
            return false;
        }
        return write_npy(o->output, tqe_snapshot_logits(f), 0, i.n_vocab);
    }
    return export_rows(f, o, !strcmp(o->what, "values"));
}

/* ---- The command --------------------------------------------------------------------------- */

typedef enum action { INFO, VERIFY, EXPORT, COMPACT, N_ACTIONS } action;

static const char *const action_names[N_ACTIONS] = {"info", "verify", "export", "compact"};
static const char *const action_help[N_ACTIONS] = {
    "what a snapshot holds, and for which model and scheme",
    "check every byte; the first damaged field or page is named",
    "write its tokens, text, logits, keys or values",
    "write a copy without the next-token logits",
};

static bool compact(const tqe_snapshot *f, const char *path, const snapshot_options *o)
{
    tqe_snapshot *after = NULL;
    tqe_snapshot_info i, j;
    tqe_error err = {0};
    char a[32], b[32];
    tqe_snapshot_get_info(f, &i);
    if (!i.has_logits) {
        msg_note("'%s' holds no logits; it is copied as it is", path);
    }
    if (tqe_snapshot_compact(f, o->output, &err) != TQE_OK ||
        tqe_snapshot_open(&after, o->output, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    tqe_snapshot_get_info(after, &j);
    tqe_snapshot_close(after);
    return out_printf("%s -> %s\n", text_size(a, i.file_bytes), text_size(b, j.file_bytes));
}

static int act(action what, const char *path, const snapshot_options *o)
{
    tqe_snapshot *f = NULL;
    tqe_snapshot_info i;
    tqe_error err = {0};
    char number[32];
    bool ok = true;
    /* compact may replace what it reads: it verifies first, and nothing else is lost. */
    if ((what == EXPORT && !target_is_not("-o", o->output, "export", path)) ||
        !target_can_be("-o", o->output)) {
        return TQ_EXIT_FAILED;
    }
    if (tqe_snapshot_open(&f, path, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return TQ_EXIT_FAILED;
    }
    switch (what) {
    case INFO:
        if (o->json) {
            ok = put_json(f);
        } else {
            put_info(f, path);
        }
        break;
    case VERIFY:
        ok = tqe_snapshot_verify(f, &err) == TQE_OK;
        if (ok) {
            tqe_snapshot_get_info(f, &i);
            out_printf("good: %s tokens, every byte checked\n", text_count(number, i.n_tokens));
        } else {
            msg_error("%s", err.text);
        }
        break;
    case EXPORT:
        ok = export_what(f, path, o);
        break;
    case COMPACT:
        ok = compact(f, path, o);
        break;
    case N_ACTIONS:
        break;
    }
    tqe_snapshot_close(f);
    return ok ? TQ_EXIT_OK : TQ_EXIT_FAILED;
}

/* What the table of options cannot say. NULL: nothing is wrong. */
static const char *check_export(const snapshot_options *o, bool has_place)
{
    static const char *const names[] = {"ids", "text", "logits", "keys", "values"};
    bool known = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        known = known || !strcmp(o->what, names[i]);
    }
    bool text = !strcmp(o->what, "text"), ids = !strcmp(o->what, "ids");
    bool rows = !strcmp(o->what, "keys") || !strcmp(o->what, "values");
    return !known                        ? "--what: one of ids, text, logits, keys, values"
           : text && !o->model           ? "--what text needs the model: give it with -m FILE"
           : !text && o->model           ? "-m goes with --what text only"
           : !text && !ids && !o->output ? "--what logits, keys and values need -o FILE.npy"
           : (text || ids) && o->output  ? "-o goes with --what logits, keys and values"
           : !rows && has_place          ? "--layer and --head go with --what keys and values"
                                         : NULL;
}

static int parse_and_act(action what, int argc, char **argv)
{
    snapshot_options o = {.what = "ids"};
    arg_option info_options[] = {
        {.group = "Options",
         .name = "json",
         .kind = ARG_FLAG,
         .dst = &o.json,
         .help = "write one JSON object"},
    };
    arg_option export_options[] = {
        {.group = "Options",
         .name = "what",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &o.what,
         .help = "ids or text of the tokens, to stdout; logits of the next token, decoded keys or "
                 "values, to a file (default ids)"},
        {.letter = 'o',
         .name = "output",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.output,
         .help = "file for logits, keys or values, in NumPy's .npy format: f32, a row per token"},
        {.name = "layer",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.layer,
         .max = 1023,
         .help = "layer of keys or values (default 0)"},
        {.name = "head",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.head,
         .max = 1023,
         .help = "KV head of keys or values (default 0)"},
        {.letter = 'm',
         .name = "model",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.model,
         .help = "the model of the snapshot, for text"},
    };
    arg_option compact_options[] = {
        {.group = "Options",
         .letter = 'o',
         .name = "output",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &o.output,
         .help = "the file to write (required); it may be the one that is read"},
    };
    static const struct {
        const char *name, *synopsis, *notes, *examples;
    } pages[N_ACTIONS] = {
        {"tq snapshot info", "  tq snapshot info FILE [--json]\n", NULL, NULL},
        {"tq snapshot verify", "  tq snapshot verify FILE\n", NULL, NULL},
        {"tq snapshot export", "  tq snapshot export FILE [options]\n", NULL,
         "  tq snapshot export chat.tqs --what text -m model.gguf\n"
         "  tq snapshot export chat.tqs --what keys --layer 3 --head 1 -o keys.npy\n"},
        {"tq snapshot compact", "  tq snapshot compact FILE -o FILE\n",
         "The copy lacks the logits of the next token, 4 bytes for each entry of the\n"
         "vocabulary, and nothing else: keys and values stay as they are, also those in\n"
         "f16. It continues with more text, but cannot answer at once.\n",
         NULL},
    };
    arg_command cmd = {
        .name = pages[what].name,
        .summary = action_help[what],
        .synopsis = pages[what].synopsis,
        .options = what == INFO     ? info_options
                   : what == EXPORT ? export_options
                                    : compact_options,
        .n_options = what == INFO      ? 1
                     : what == EXPORT  ? sizeof export_options / sizeof export_options[0]
                     : what == COMPACT ? 1
                                       : 0,
        .notes = pages[what].notes,
        .examples = pages[what].examples,
        .operand = "FILE",
    };
    const char *path = NULL;
    arg_result r = args_parse(&cmd, argc, argv, &path);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    const char *wrong =
        !path                          ? "no file: give a snapshot"
        : what == COMPACT && !o.output ? "no output: give a file with -o FILE"
        : what == EXPORT ? check_export(&o, args_given(&cmd, &o.layer) || args_given(&cmd, &o.head))
                         : NULL;
    if (wrong) {
        msg_error("%s", wrong);
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    return act(what, path, &o);
}

static void help(void)
{
    out_printf("%stq snapshot%s - look at saved sessions\n\n  tq snapshot ACTION FILE [options]\n\n"
               "%sActions%s\n",
               out_bold(), out_plain(), out_bold(), out_plain());
    for (size_t i = 0; i < N_ACTIONS; i++) {
        out_printf("  %-9s%s\n", action_names[i], action_help[i]);
    }
    out_printf("\n'tq snapshot ACTION --help' shows the options of one. 'tq run --save FILE'\n"
               "makes snapshots.\n");
}

int cmd_snapshot(int argc, char **argv)
{
    msg_set_command("tq snapshot");
    const char *word = argc > 1 ? argv[1] : NULL;
    if (!word) {
        msg_error("no action");
        msg_note("Try 'tq snapshot --help'.");
        return TQ_EXIT_USAGE;
    }
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        help();
        return TQ_EXIT_OK;
    }
    for (int i = 0; i < N_ACTIONS; i++) {
        if (!strcmp(word, action_names[i])) {
            return parse_and_act((action)i, argc - 1, argv + 1);
        }
    }
    const char *near = args_nearest(word, action_names, N_ACTIONS);
    if (near) {
        msg_error("unknown action '%s'; did you mean '%s'?", word, near);
    } else {
        msg_error("unknown action '%s'", word);
    }
    msg_note("Try 'tq snapshot --help'.");
    return TQ_EXIT_USAGE;
}
