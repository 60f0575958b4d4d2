/* SPDX-License-Identifier: MIT */
/* cmd_info.c — `tq info`: what a model needs, before it is loaded.
 *
 * Policy: only the header of the file is read, so the answer for a 40 GB model comes at once. The
 * bytes are those of the library (tq_scheme_bytes_per_token, tq_cache_bytes), not a second
 * formula, so a context that is said to fit does fit: the memory is that of the cache alone,
 * weights and working memory come on top.
 */
#include "args.h"
#include "commands.h"
#include "engine.h"
#include "machine.h"
#include "out.h"
#include "setup.h"
#include "text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A table is at most 80 columns wide. */
enum { MAX_MEMORIES = 6, TABLE_MEMORIES = 3 };

/* Shown when --kv is not given: the plain formats, then from the safest to the smallest. */
static const char *const default_schemes[] = {
    "f16",    "turbo:k8v4", "turbo:k8v3", "turbo:k4v3", "turbo8", "turbo5", "turbo4",
    "turbo3", "turbo4v2",   "tcq5",       "tcq4",       "tcq3",   "tcq2",   "affine8",
};

typedef struct info_options {
    arg_strings kv;
    arg_sizes memory;
    uint32_t parallel; /* sessions that share the memory */
    const char *isa;
    bool cpu, json, plan;
} info_options;

typedef struct scheme_row {
    char name[TQ_SCHEME_TEXT_BYTES];
    bool supported; /* for these head dimensions */
    double bits_per_element;
    size_t bytes_per_token; /* all layers */
    double of_f16;
    tqe_kv_plan fits[MAX_MEMORIES];
} scheme_row;

static bool fill_row(scheme_row *row, const char *text, const tqe_model_info *m,
                     const arg_sizes *memory, uint32_t parallel)
{
    tq_scheme scheme;
    size_t bytes;
    tqe_error err = {0};
    if (!setup_check_kv(text, &scheme, row->name)) {
        return false;
    }
    row->supported = tq_scheme_bytes_per_token(&scheme, m->d_k, m->d_v, &bytes) == TQ_OK;
    for (size_t i = 0; row->supported && i < memory->n; i++) {
        if (tqe_kv_plan_make(&row->fits[i], m, &scheme, memory->at[i], parallel, &err) != TQE_OK) {
            msg_error("--kv %s: %s", row->name, err.text);
            return false;
        }
        const double elements = (double)m->n_layers * m->n_kv_heads * (m->d_k + m->d_v);
        row->bytes_per_token = row->fits[i].bytes_per_token;
        row->bits_per_element = 8.0 * (double)row->bytes_per_token / elements;
        row->of_f16 = row->bits_per_element / 16;
    }
    return true;
}

/* ---- For people -------------------------------------------------------------------------- */

static void put_field(const char *name, const char *value)
{
    out_printf("%-12s", name);
    out_text(value, strlen(value));
    out_write("\n", 1);
}

/* "27.8 M". dst needs 32 bytes. */
static const char *short_count(char dst[32], uint64_t n)
{
    const char *unit = n < 1000000 ? "K" : n < 1000000000 ? "M" : "G";
    double v = (double)n / (n < 1000000 ? 1e3 : n < 1000000000 ? 1e6 : 1e9);
    snprintf(dst, 32, "%.*f %s", v < 9.995 ? 2 : 1, v, unit);
    return dst;
}

static void put_model(const char *path, const tqe_model_info *m)
{
    char line[512], a[32], b[32];
    put_field("File", path);
    snprintf(line, sizeof line, "%s%s%s, %s parameters, mostly %s, %s", m->name,
             m->name[0] ? ": " : "", m->arch, short_count(a, m->n_params), m->weights,
             text_size(b, m->file_bytes));
    put_field("Model", line);
    snprintf(line, sizeof line, "%u, width %u, feed-forward %u", m->n_layers, m->n_embd, m->n_ff);
    put_field("Layers", line);
    int n = snprintf(line, sizeof line, "%u query heads, %u KV heads, head size %u", m->n_heads,
                     m->n_kv_heads, m->d_k);
    if (m->d_k != m->d_v) {
        n += snprintf(line + n, sizeof line - (size_t)n, " (values %u)", m->d_v);
    }
    if (m->window) {
        snprintf(line + n, sizeof line - (size_t)n, ", sliding window %u", m->window);
    }
    put_field("Attention", line);
    snprintf(line, sizeof line, "RoPE %s, base %.9g; trained for %s tokens", m->rope,
             (double)m->rope_base, text_count(a, m->n_ctx_train));
    put_field("Positions", line);
    snprintf(line, sizeof line, "%s tokens, output %s", text_count(b, m->n_vocab),
             m->tied_output ? "tied to the embedding" : "of its own");
    put_field("Vocabulary", line);
    put_field("Chat", m->has_chat_template ? "template included" : "no template");
}

/* Columns: name (as wide as the longest), bits, bytes, share, then one per memory size. */
static void put_table_head(int name_width, const arg_sizes *memory)
{
    char t[32];
    out_printf("\n%s%-*s%9s%11s%8s%s%s\n", out_bold(), name_width, "KV cache", "bits per",
               "bytes per", "size", memory->n ? "  longest context in" : "", out_plain());
    out_printf("%s%-*s%9s%11s%8s", out_bold(), name_width, "", "element", "token", "of f16");
    for (size_t i = 0; i < memory->n && i < TABLE_MEMORIES; i++) {
        out_printf("%11s", text_size(t, memory->at[i]));
    }
    out_printf("%s\n", out_plain());
}

/* A name that is too long for the table stands on a line of its own. */
static void put_name(int width, const char *name)
{
    out_printf(strlen(name) > (size_t)width ? "%s\n%*s" : "%s%*s", name,
               strlen(name) > (size_t)width ? width : width - (int)strlen(name), "");
}

/* The memory sizes that the first table has no room for. */
static void put_more(const scheme_row *rows, size_t n_rows, int width, const arg_sizes *memory)
{
    char t[32];
    if (memory->n <= TABLE_MEMORIES) {
        return;
    }
    out_printf("\n%s%-*s", out_bold(), width, "longest context in");
    for (size_t i = TABLE_MEMORIES; i < memory->n; i++) {
        out_printf("%13s", text_size(t, memory->at[i]));
    }
    out_printf("%s\n", out_plain());
    for (size_t r = 0; r < n_rows; r++) {
        if (rows[r].supported) {
            put_name(width, rows[r].name);
            for (size_t i = TABLE_MEMORIES; i < memory->n; i++) {
                out_printf("%13s", text_count(t, rows[r].fits[i].n_ctx));
            }
            out_write("\n", 1);
        }
    }
}

static void put_table(const scheme_row *rows, size_t n_rows, const tqe_model_info *m,
                      const arg_sizes *memory)
{
    char t[32];
    bool beyond = false, unsupported = false, has_tail = false;
    size_t width = 14;
    for (size_t r = 0; r < n_rows; r++) {
        size_t len = strlen(rows[r].name);
        width = len > width ? len : width;
    }
    const size_t n_columns = memory->n < TABLE_MEMORIES ? memory->n : TABLE_MEMORIES;
    const size_t most = 80 - 28 - 11 * n_columns;
    width = width > most ? most : width;
    put_table_head((int)width, memory);
    for (size_t r = 0; r < n_rows; r++) {
        const scheme_row *row = &rows[r];
        has_tail |= strstr(row->name, ",tail=") != NULL;
        put_name((int)width, row->name);
        if (!row->supported) {
            out_printf("%9s\n", "-");
            unsupported = true;
            continue;
        }
        out_printf("%9.2f%11s%6.1f %%", row->bits_per_element, text_count(t, row->bytes_per_token),
                   100 * row->of_f16);
        for (size_t i = 0; i < memory->n; i++) {
            beyond |= m->n_ctx_train && row->fits[i].n_ctx > m->n_ctx_train;
            if (i < TABLE_MEMORIES) {
                out_printf("%11s", text_count(t, row->fits[i].n_ctx));
            }
        }
        out_write("\n", 1);
    }
    put_more(rows, n_rows, (int)width, memory);
    if (beyond) {
        out_printf("Beyond %s tokens the model was not trained.\n", text_count(t, m->n_ctx_train));
    }
    if (has_tail) {
        out_printf(
            "tail=N: its f16 rows take whole pages of %d tokens, which shorten the context;\n"
            "bits and bytes are those of packed rows alone.\n",
            TQ_PAGE_TOKENS);
    }
    if (unsupported) {
        out_printf("- this scheme does not support head size %u\n", m->d_k);
    }
}

/* What is allocated for the contexts of the table. */
static void put_plan(const scheme_row *rows, size_t n_rows, const arg_sizes *memory,
                     uint32_t parallel)
{
    char t[32];
    out_printf("\n%s%-28s%13s%13s%13s%13s%s\n", out_bold(), "Sessions at once", "memory",
               "tokens each", "cache", "64 tokens", out_plain());
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t i = 0; rows[r].supported && i < memory->n; i++) {
            const tqe_kv_plan *p = &rows[r].fits[i];
            out_printf("%4u x ", parallel);
            put_name(21, rows[r].name);
            out_printf("%13s", text_size(t, memory->at[i]));
            out_printf("%13s", text_count(t, p->n_ctx));
            out_printf("%13s", text_size(t, p->cache_bytes));
            out_printf("%13s\n", text_size(t, p->page_bytes));
        }
    }
}

static void show_cpu(uint32_t mask)
{
    char names[64], cpu[128];
    put_field("CPU", machine_cpu(cpu));
    put_field("Usable", setup_isa_names(names, tq_isa_detect() | TQ_ISA_SCALAR));
    out_printf("\n%s%-28s%s%s\n", out_bold(), "Kernel", "served by", out_plain());
    const char *kernel;
    uint32_t bit;
    for (uint32_t i = 0; tq_kernels_describe(mask, i, &kernel, &bit) == TQ_OK; i++) {
        out_printf("%-28s%s\n", kernel, setup_isa_names(names, bit));
    }
}

/* ---- For programs ------------------------------------------------------------------------ */

static json_t *clean_string(const char *s)
{
    char clean[4096];
    text_utf8_clean(clean, sizeof clean, s);
    return json_string(clean);
}

static json_t *row_json(const scheme_row *row, const arg_sizes *memory)
{
    json_t *fits = json_array();
    for (size_t i = 0; row->supported && i < memory->n; i++) {
        json_array_append_new(fits, json_pack("{s:I s:I s:I s:I}", "memory_bytes",
                                              (json_int_t)memory->at[i], "tokens",
                                              (json_int_t)row->fits[i].n_ctx, "cache_bytes",
                                              (json_int_t)row->fits[i].cache_bytes, "page_bytes",
                                              (json_int_t)row->fits[i].page_bytes));
    }
    if (!row->supported) {
        json_decref(fits);
        return json_pack("{s:s s:b}", "scheme", row->name, "supported", 0);
    }
    return json_pack("{s:s s:b s:f s:I s:f s:o}", "scheme", row->name, "supported", 1,
                     "bits_per_element", row->bits_per_element, "bytes_per_token",
                     (json_int_t)row->bytes_per_token, "size_of_f16", row->of_f16, "fits", fits);
}

static int put_json(const char *path, const tqe_model_info *m, const scheme_row *rows,
                    size_t n_rows, const arg_sizes *memory, uint32_t parallel)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n_rows; i++) {
        json_array_append_new(list, row_json(&rows[i], memory));
    }
    json_t *j = json_pack(
        "{s:o s:o s:o s:o s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:I s:o s:f s:I s:b s:b s:I s:o}",
        "file", clean_string(path), "name", clean_string(m->name), "arch", clean_string(m->arch),
        "weights", clean_string(m->weights), "parameters", (json_int_t)m->n_params, "file_bytes",
        (json_int_t)m->file_bytes, "layers", (json_int_t)m->n_layers, "embedding",
        (json_int_t)m->n_embd, "feed_forward", (json_int_t)m->n_ff, "vocabulary",
        (json_int_t)m->n_vocab, "heads", (json_int_t)m->n_heads, "kv_heads",
        (json_int_t)m->n_kv_heads, "head_size_k", (json_int_t)m->d_k, "head_size_v",
        (json_int_t)m->d_v, "trained_context", (json_int_t)m->n_ctx_train, "rope",
        clean_string(m->rope), "rope_base", (double)m->rope_base, "window", (json_int_t)m->window,
        "tied_output", m->tied_output, "chat_template", m->has_chat_template, "parallel",
        (json_int_t)parallel, "schemes", list);
    char *dump = j ? json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(j);
    if (!dump) {
        msg_error("cannot build the JSON report");
        return TQ_EXIT_FAILED;
    }
    out_write(dump, strlen(dump));
    out_write("\n", 1);
    free(dump);
    return TQ_EXIT_OK;
}

/* ---- Command ----------------------------------------------------------------------------- */

static int show_model(const char *path, const info_options *o)
{
    tqe_model_info m;
    tqe_error err = {0};
    arg_sizes memory = o->memory;
    scheme_row rows[ARG_LIST_MAX] = {0};
    size_t n_default = sizeof default_schemes / sizeof default_schemes[0];
    size_t n_rows = o->kv.n ? o->kv.n : n_default;
    const char *const *names = o->kv.n ? o->kv.at : default_schemes;
    if (tqe_model_probe(path, &m, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return TQ_EXIT_FAILED;
    }
    if (!memory.n) {
        uint64_t free_bytes = machine_free_bytes();
        memory = (arg_sizes){.at = {(uint64_t)1 << 30, (uint64_t)8 << 30}, .n = 2};
        if (free_bytes) {
            memory.at[memory.n++] = free_bytes;
        }
    }
    for (size_t i = 0; i < n_rows; i++) {
        if (!fill_row(&rows[i], names[i], &m, &memory, o->parallel)) {
            return TQ_EXIT_USAGE;
        }
        if (o->kv.n && !rows[i].supported) {
            msg_error("--kv: %s does not support the head size of this model, %u", rows[i].name,
                      m.d_k);
            return TQ_EXIT_FAILED;
        }
    }
    if (o->json) {
        return put_json(path, &m, rows, n_rows, &memory, o->parallel);
    }
    put_model(path, &m);
    put_table(rows, n_rows, &m, &memory);
    if (o->plan) {
        put_plan(rows, n_rows, &memory, o->parallel);
    }
    return TQ_EXIT_OK;
}

int cmd_info(int argc, char **argv)
{
    info_options o = {.parallel = 1};
    arg_option options[] = {
        {.group = "Options",
         .name = "kv",
         .meta = "SCHEME",
         .kind = ARG_STRINGS,
         .dst = &o.kv,
         .help = "show this scheme; may be repeated (default: a selection)"},
        {.name = "memory",
         .meta = "SIZE",
         .kind = ARG_SIZES,
         .dst = &o.memory,
         .help = "memory for the cache, such as 512M or 8G; may be repeated (default: 1G, 8G and "
                 "what is free now)"},
        {.name = "parallel",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &o.parallel,
         .min = 1,
         .max = TQE_MAX_SEQS,
         .help = "sessions that share the memory: show the tokens of each, and what their cache "
                 "takes"},
        {.name = "json", .kind = ARG_FLAG, .dst = &o.json, .help = "write one JSON object"},
        {.name = "cpu",
         .kind = ARG_FLAG,
         .dst = &o.cpu,
         .help = "instead of a model: the instruction sets that this machine and build have, and "
                 "which one serves each kernel"},
        {.name = "isa",
         .meta = "NAME",
         .kind = ARG_STRING,
         .dst = &o.isa,
         .help = "with --cpu: as if only this set was there: scalar, avx2, avx512 or neon"},
    };
    arg_command cmd = {
        .name = "tq info",
        .summary = "what a model needs: geometry, KV bytes, longest context",
        .synopsis = "  tq info FILE [options]\n"
                    "  tq info --cpu [--isa NAME]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "Only the header of FILE is read. Memory means the cache alone; the weights come\n"
                 "on top.\n",
        .examples = "  tq info model.gguf\n"
                    "  tq info model.gguf --memory 4G --kv f16 --kv turbo:k8v3\n"
                    "  tq info model.gguf --memory 4G --parallel 8 --kv turbo4,tail=64\n"
                    "  tq info model.gguf --json | jq '.schemes[].bytes_per_token'\n"
                    "  tq info --cpu\n",
        .operand = "FILE",
    };
    const char *path = NULL;
    arg_result r = args_parse(&cmd, argc, argv, &path);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    o.plan = args_given(&cmd, &o.parallel);
    const char *wrong = o.cpu && (path || o.kv.n || o.memory.n || o.json || o.plan)
                            ? "--cpu goes with no file and no option but --isa"
                        : !o.cpu && o.isa           ? "--isa goes with --cpu only"
                        : !o.cpu && !path           ? "no file: give a GGUF file, or --cpu"
                        : o.memory.n > MAX_MEMORIES ? "--memory is given more than 6 times"
                                                    : NULL;
    if (wrong) {
        msg_error("%s", wrong);
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    if (!o.cpu) {
        return show_model(path, &o);
    }
    uint32_t mask;
    if (!setup_isa(o.isa, &mask)) {
        args_hint(&cmd);
        return TQ_EXIT_USAGE;
    }
    show_cpu(mask);
    return TQ_EXIT_OK;
}
