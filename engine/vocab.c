/* SPDX-License-Identifier: MIT */
/* vocab.c — the tokenizer keys of a GGUF, checked, then handed to libllama.
 *
 * libllama's loader asserts or throws on vocabularies that no converter writes (duplicate tokens,
 * a missing byte token, BOS wanted but not defined), and an exception through C ends the process.
 * So it never sees the file: we check what it would rely on and build a small GGUF in memory that
 * holds only the checked keys, normalised to the types it expects. llama_model_init_from_user
 * reads that.
 */
#include "engine_priv.h"

#include "gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKEN_BYTES 1024u
#define TOKEN_TYPE_BYTE 6
#define TOKEN_TYPE_MAX  6
#define NO_TOKEN        UINT32_MAX /* how some converters write "this model has no such token" */

typedef struct strings {
    const char **s; /* [n], NUL-terminated, in arena */
    size_t n;
    char *arena;
} strings;

typedef struct vocab {
    bool spm; /* tokenizer.ggml.model: "llama", else "gpt2" */
    char pre[64];
    char name[128];
    strings tokens;
    strings merges;
    const char **sorted; /* tokens by text */
    float *scores;       /* or NULL */
    int32_t *types;      /* or NULL */
} vocab;

static const char *const id_keys[] = {
    "tokenizer.ggml.bos_token_id",     "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.padding_token_id", "tokenizer.ggml.mask_token_id",
    "tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
    "tokenizer.ggml.prefix_token_id",  "tokenizer.ggml.suffix_token_id",
    "tokenizer.ggml.middle_token_id",
};

static const char *const bool_keys[] = {
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.remove_extra_whitespaces",
};

#define N_ID_KEYS   (sizeof(id_keys) / sizeof(id_keys[0]))
#define N_BOOL_KEYS (sizeof(bool_keys) / sizeof(bool_keys[0]))

/* ---- Strings --------------------------------------------------------------------------------- */

/* Copies a string array, NUL-terminated. An embedded NUL ends a string, as libllama reads it;
 * number_empty gives empty ones the name libllama will give them, so that they stay unique. */
static tqe_status copy_strings(strings *out, const tqe_gguf *g, const char *key, uint64_t n,
                               size_t off, bool number_empty, tqe_error *err)
{
    size_t total = 0;
    size_t pos = off;
    for (uint64_t i = 0; i < n; i++) {
        size_t len = 0;
        const size_t at = pos;
        (void)tqe_gguf_str_at(g, pos, &len, &pos);
        if (len > MAX_TOKEN_BYTES) {
            return tqe_fail(err, TQE_ERR_FORMAT,
                            "key '%s': string %llu at offset %zu has %zu bytes (limit %u)", key,
                            (unsigned long long)i, at, len, MAX_TOKEN_BYTES);
        }
        total += (len > 0 ? len : 24) + 24;
    }
    out->s = malloc(((size_t)n + 1) * sizeof(*out->s));
    out->arena = malloc(total + 1);
    if (out->s == NULL || out->arena == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the vocabulary");
    }
    char *p = out->arena;
    pos = off;
    for (uint64_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *s = tqe_gguf_str_at(g, pos, &len, &pos);
        const void *nul = memchr(s, 0, len);
        if (nul != NULL) {
            len = (size_t)((const char *)nul - s);
        }
        out->s[i] = p;
        if (len == 0 && number_empty) {
            p += snprintf(p, 24, "[EMPTY_%llu]", (unsigned long long)i) + 1;
            continue;
        }
        memcpy(p, s, len);
        p[len] = '\0';
        p += len + 1;
    }
    out->n = (size_t)n;
    return TQE_OK;
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool has_token(const vocab *v, const char *text)
{
    return bsearch(&text, v->sorted, v->tokens.n, sizeof(*v->sorted), compare_text) != NULL;
}

static void copy_text(char *dst, size_t dst_bytes, const char *s, size_t n)
{
    size_t i = 0;
    for (; i < n && i + 1 < dst_bytes && s[i] != '\0'; i++) {
        dst[i] = s[i];
    }
    dst[i] = '\0';
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static tqe_status read_kind(vocab *v, const tqe_gguf *g, tqe_error *err)
{
    const char *s = NULL;
    size_t n = 0;
    bool found = false;
    tqe_status st = tqe_gguf_get_str(g, "tokenizer.ggml.model", &s, &n, NULL, err);
    if (st != TQE_OK) {
        return st;
    }
    v->spm = n == 5 && memcmp(s, "llama", 5) == 0;
    if (!v->spm && !(n == 4 && memcmp(s, "gpt2", 4) == 0)) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                        "tokenizer '%s' ('tokenizer.ggml.model') is not supported: llama and gpt2 "
                        "are",
                        tqe_quote(s, n).text);
    }
    st = tqe_gguf_get_str(g, "tokenizer.ggml.pre", &s, &n, &found, err);
    if (st == TQE_OK && found) {
        /* Pre-tokenizers without byte encoding belong to other families. */
        static const char *const foreign[] = {"gemma4", "granite-embed-multi-311m", "sarvam-moe",
                                              "whitespace"};
        copy_text(v->pre, sizeof(v->pre), s, n);
        bool ok = strlen(v->pre) == n;
        for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
            ok = ok && strcmp(v->pre, foreign[i]) != 0;
        }
        if (!ok) {
            return tqe_fail(err, TQE_ERR_UNSUPPORTED,
                            "pre-tokenizer '%s' ('tokenizer.ggml.pre') is not supported",
                            tqe_quote(s, n).text);
        }
    }
    if (st == TQE_OK) {
        st = tqe_gguf_get_str(g, "general.name", &s, &n, &found, err);
        if (st == TQE_OK && found) {
            copy_text(v->name, sizeof(v->name), s, n);
        }
    }
    return st;
}

static tqe_status array_of(const tqe_gguf *g, const char *key, uint64_t n, const tqe_gguf_kv **kv,
                           tqe_error *err)
{
    *kv = tqe_gguf_find(g, key);
    if (*kv == NULL) {
        return TQE_OK;
    }
    if ((*kv)->type != TQE_GGUF_ARR || (*kv)->elem_type == TQE_GGUF_STR || (*kv)->n != n) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "key '%s' at offset %zu is %s of %llu %s, expected an array of %llu "
                        "numbers, one per token",
                        key, (*kv)->off, (*kv)->type == TQE_GGUF_ARR ? "an array" : "a value",
                        (unsigned long long)(*kv)->n, tqe_gguf_type_name((*kv)->elem_type),
                        (unsigned long long)n);
    }
    return TQE_OK;
}

static tqe_status read_scores(vocab *v, const tqe_gguf *g, tqe_error *err)
{
    const char *key = "tokenizer.ggml.scores";
    const tqe_gguf_kv *kv = NULL;
    tqe_status st = array_of(g, key, v->tokens.n, &kv, err);
    if (st != TQE_OK || kv == NULL) {
        return st;
    }
    v->scores = malloc(v->tokens.n * sizeof(float));
    if (v->scores == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the vocabulary");
    }
    for (size_t i = 0; i < v->tokens.n; i++) {
        bool ok = true;
        v->scores[i] = tqe_gguf_elem_f32(g, kv, i, &ok);
        if (!ok || isnan(v->scores[i])) {
            return tqe_fail(err, TQE_ERR_FORMAT,
                            "key '%s' at offset %zu: score %zu is not a number", key, kv->off, i);
        }
    }
    return TQE_OK;
}

static bool is_byte_text(const char *s)
{
    return strlen(s) == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>' &&
           strspn(s + 3, "0123456789abcdefABCDEF") == 2;
}

static tqe_status read_types(vocab *v, const tqe_gguf *g, tqe_error *err)
{
    const char *key = "tokenizer.ggml.token_type";
    const tqe_gguf_kv *kv = NULL;
    tqe_status st = array_of(g, key, v->tokens.n, &kv, err);
    if (st != TQE_OK || kv == NULL) {
        return st;
    }
    v->types = malloc(v->tokens.n * sizeof(int32_t));
    if (v->types == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the vocabulary");
    }
    for (size_t i = 0; i < v->tokens.n; i++) {
        bool ok = true;
        const uint64_t t = tqe_gguf_elem_u64(g, kv, i, &ok);
        if (!ok || t > TOKEN_TYPE_MAX) {
            return tqe_fail(err, TQE_ERR_FORMAT,
                            "key '%s' at offset %zu: token %zu has a type outside 0 to %d", key,
                            kv->off, i, TOKEN_TYPE_MAX);
        }
        if (t == TOKEN_TYPE_BYTE && !is_byte_text(v->tokens.s[i])) {
            return tqe_fail(err, TQE_ERR_FORMAT,
                            "token %zu '%s' is marked as a byte ('%s') but is not of the form "
                            "<0xHH>",
                            i, tqe_quote(v->tokens.s[i], strlen(v->tokens.s[i])).text, key);
        }
        v->types[i] = (int32_t)t;
    }
    return TQE_OK;
}

static tqe_status read_tokens(vocab *v, const tqe_gguf *g, tqe_error *err)
{
    const char *key = "tokenizer.ggml.tokens";
    const tqe_gguf_kv *kv = tqe_gguf_find(g, key);
    if (kv == NULL || kv->type != TQE_GGUF_ARR || kv->elem_type != TQE_GGUF_STR || kv->n < 1 ||
        kv->n > (1u << 24)) {
        return tqe_fail(err, TQE_ERR_FORMAT, "the GGUF has no vocabulary (key '%s')", key);
    }
    tqe_status st = copy_strings(&v->tokens, g, key, kv->n, kv->off, true, err);
    if (st != TQE_OK) {
        return st;
    }
    v->sorted = malloc(v->tokens.n * sizeof(*v->sorted));
    if (v->sorted == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the vocabulary");
    }
    memcpy(v->sorted, v->tokens.s, v->tokens.n * sizeof(*v->sorted));
    qsort(v->sorted, v->tokens.n, sizeof(*v->sorted), compare_text);
    for (size_t i = 1; i < v->tokens.n; i++) {
        if (strcmp(v->sorted[i - 1], v->sorted[i]) == 0) {
            return tqe_fail(err, TQE_ERR_FORMAT, "key '%s': the token '%s' appears twice", key,
                            tqe_quote(v->sorted[i], strlen(v->sorted[i])).text);
        }
    }
    return TQE_OK;
}

/* BPE needs merges; SPM needs a token for each byte, its last resort. */
static tqe_status read_family(vocab *v, const tqe_gguf *g, tqe_error *err)
{
    if (v->spm) {
        for (unsigned b = 0; b < 256; b++) {
            char hex[8];
            const char plain[2] = {(char)b, '\0'};
            (void)snprintf(hex, sizeof(hex), "<0x%02X>", b);
            if (!has_token(v, hex) && (b == 0 || !has_token(v, plain))) {
                return tqe_fail(err, TQE_ERR_FORMAT,
                                "the vocabulary has no token for byte %s, which a llama tokenizer "
                                "needs",
                                hex);
            }
        }
        return TQE_OK;
    }
    const char *key = "tokenizer.ggml.merges";
    const tqe_gguf_kv *kv = tqe_gguf_find(g, key);
    if (kv == NULL || kv->type != TQE_GGUF_ARR || kv->elem_type != TQE_GGUF_STR ||
        kv->n > (1u << 24)) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "a gpt2 tokenizer needs the key '%s', an array of strings", key);
    }
    tqe_status st = copy_strings(&v->merges, g, key, kv->n, kv->off, false, err);
    for (size_t i = 0; st == TQE_OK && i < v->merges.n; i++) {
        const char *s = v->merges.s[i];
        if (s[0] == '\0' || strchr(s + 1, ' ') == NULL) {
            st = tqe_fail(err, TQE_ERR_FORMAT, "key '%s': merge %zu '%s' is not two parts", key, i,
                          tqe_quote(s, strlen(s)).text);
        }
    }
    return st;
}

/* Reads key i of id_keys: *id is NO_TOKEN when absent. */
static tqe_status read_id(const tqe_gguf *g, size_t i, size_t n_tokens, uint32_t *id,
                          tqe_error *err)
{
    uint64_t v = 0;
    bool found = false;
    *id = NO_TOKEN;
    const tqe_status st = tqe_gguf_get_u64(g, id_keys[i], &v, &found, err);
    if (st != TQE_OK || !found || v == NO_TOKEN) {
        return st;
    }
    if (v >= n_tokens) {
        return tqe_fail(err, TQE_ERR_FORMAT, "key '%s' is %llu, the vocabulary has %zu tokens",
                        id_keys[i], (unsigned long long)v, n_tokens);
    }
    *id = (uint32_t)v;
    return TQE_OK;
}

static void vocab_free(vocab *v)
{
    free(v->tokens.s);
    free(v->tokens.arena);
    free(v->merges.s);
    free(v->merges.arena);
    free(v->sorted);
    free(v->scores);
    free(v->types);
}

static tqe_status vocab_read(vocab *v, const tqe_gguf *g, tqe_error *err)
{
    memset(v, 0, sizeof(*v));
    tqe_status st = TQE_OK;
    if ((st = read_kind(v, g, err)) != TQE_OK || (st = read_tokens(v, g, err)) != TQE_OK ||
        (st = read_scores(v, g, err)) != TQE_OK || (st = read_types(v, g, err)) != TQE_OK ||
        (st = read_family(v, g, err)) != TQE_OK) {
        return st;
    }
    for (size_t i = 0; st == TQE_OK && i < N_ID_KEYS; i++) {
        uint32_t id;
        st = read_id(g, i, v->tokens.n, &id, err);
    }
    for (size_t i = 0; st == TQE_OK && i < N_BOOL_KEYS; i++) {
        bool b;
        bool found;
        st = tqe_gguf_get_bool(g, bool_keys[i], &b, &found, err);
    }
    return st;
}

tqe_status tqe_vocab_check(const tqe_gguf *g, tqe_error *err)
{
    vocab v;
    const tqe_status st = vocab_read(&v, g, err);
    vocab_free(&v);
    return st;
}

/* ---- To libllama ------------------------------------------------------------------------------
 */

static struct gguf_context *to_gguf(const vocab *v, const tqe_gguf *g, const char *arch)
{
    struct gguf_context *x = gguf_init_empty();
    gguf_set_val_str(x, "general.architecture", arch);
    gguf_set_val_str(x, "general.name", v->name);
    gguf_set_val_str(x, "tokenizer.ggml.model", v->spm ? "llama" : "gpt2");
    if (v->pre[0] != '\0') {
        gguf_set_val_str(x, "tokenizer.ggml.pre", v->pre);
    }
    gguf_set_arr_str(x, "tokenizer.ggml.tokens", v->tokens.s, v->tokens.n);
    if (!v->spm) {
        gguf_set_arr_str(x, "tokenizer.ggml.merges", v->merges.s, v->merges.n);
    }
    if (v->scores != NULL) {
        gguf_set_arr_data(x, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, v->scores, v->tokens.n);
    }
    if (v->types != NULL) {
        gguf_set_arr_data(x, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, v->types, v->tokens.n);
    }
    for (size_t i = 0; i < N_ID_KEYS; i++) {
        uint32_t id = NO_TOKEN;
        (void)read_id(g, i, v->tokens.n, &id, NULL); /* checked by vocab_read */
        if (id != NO_TOKEN) {
            gguf_set_val_u32(x, id_keys[i], id);
        }
    }
    for (size_t i = 0; i < N_BOOL_KEYS; i++) {
        bool b = false;
        bool found = false;
        (void)tqe_gguf_get_bool(g, bool_keys[i], &b, &found, NULL);
        if (found) {
            gguf_set_val_bool(x, bool_keys[i], b);
        }
    }
    return x;
}

/* libllama asserts at the first tokenization when it should add a token that is not defined, and
 * a piece must fit the buffers of tqe_text_push even if each byte becomes U+FFFD. */
static tqe_status check_loaded(const struct llama_vocab *lv, tqe_error *err)
{
    if (llama_vocab_get_add_bos(lv) && llama_vocab_bos(lv) == LLAMA_TOKEN_NULL) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "the tokenizer adds a BOS token, but none is defined "
                        "('tokenizer.ggml.bos_token_id')");
    }
    if (llama_vocab_get_add_eos(lv) && llama_vocab_eos(lv) == LLAMA_TOKEN_NULL) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "the tokenizer adds an EOS token, but none is defined "
                        "('tokenizer.ggml.eos_token_id')");
    }
    char piece[(TQE_PIECE_BYTES - 32) / 3];
    for (int32_t id = 0; id < llama_vocab_n_tokens(lv); id++) {
        if (llama_token_to_piece(lv, id, piece, (int32_t)sizeof(piece), 0, true) < 0) {
            return tqe_fail(err, TQE_ERR_UNSUPPORTED, "token %d spells more than %zu bytes", id,
                            sizeof(piece));
        }
    }
    return TQE_OK;
}

static void no_tensor_data(struct ggml_tensor *tensor, void *ctx)
{
    (void)tensor;
    (void)ctx;
}

tqe_status tqe_vocab_load(struct llama_model **out, const tqe_gguf *g, const char *arch,
                          tqe_error *err)
{
    vocab v;
    *out = NULL;
    tqe_status st = vocab_read(&v, g, err);
    if (st != TQE_OK) {
        vocab_free(&v);
        return st;
    }
    struct gguf_context *x = to_gguf(&v, g, arch);
    vocab_free(&v);
    struct llama_model_params mp = llama_model_default_params();
    mp.vocab_only = true;
    tqe_log_capture();
    tqe_log_reset();
    struct llama_model *m = llama_model_init_from_user(x, no_tensor_data, NULL, mp);
    gguf_free(x);
    if (m == NULL) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "libllama refuses the vocabulary: %s",
                        tqe_log_error());
    }
    st = check_loaded(llama_model_get_vocab(m), err);
    if (st != TQE_OK) {
        llama_model_free(m);
        return st;
    }
    *out = m;
    return TQE_OK;
}
