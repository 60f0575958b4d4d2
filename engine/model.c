/* SPDX-License-Identifier: MIT */
/* model.c — an immutable model: mapped file, checked numbers, tensors, vocabulary.
 *
 * Order matters: the header walk, the configuration, the tensor list and the tokenizer keys are
 * all checked before anything is built from them, cheapest first, so a damaged file is refused
 * within milliseconds and by the most telling message.
 */
#include "engine_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void copy_name(char *dst, size_t dst_bytes, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) { /* whole characters, and none that could steer a terminal */
        const int len = tqe_utf8_char((const uint8_t *)s + i, n - i);
        if (len <= 0 || (unsigned char)s[i] < 0x20 || s[i] == 0x7f ||
            i + (size_t)len >= dst_bytes) {
            break;
        }
        memcpy(dst + i, s + i, (size_t)len);
        i += (size_t)len;
    }
    dst[i] = '\0';
}

/* ggml's name of the type that holds most weight bytes, in upper case: "Q8_0". */
static void weights_type(char dst[32], const tqe_gguf *g)
{
    size_t bytes[GGML_TYPE_COUNT] = {0};
    uint32_t best = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        bytes[g->tensors[i].type] += g->tensors[i].n_bytes;
        if (bytes[g->tensors[i].type] > bytes[best]) {
            best = g->tensors[i].type;
        }
    }
    (void)snprintf(dst, 32, "%s", ggml_type_name((enum ggml_type)best));
    for (char *p = dst; *p != '\0'; p++) {
        if (*p >= 'a' && *p <= 'z') {
            *p = (char)(*p - 'a' + 'A');
        }
    }
}

static void fill_info(tqe_model_info *info, const tqe_gguf *g, const tqe_config *c, bool tied)
{
    memset(info, 0, sizeof(*info));
    (void)snprintf(info->arch, sizeof(info->arch), "%s", c->arch->name);
    const char *s = NULL;
    size_t n = 0;
    bool found = false;
    if (tqe_gguf_get_str(g, "general.name", &s, &n, &found, NULL) == TQE_OK && found) {
        copy_name(info->name, sizeof(info->name), s, n);
    }
    if (tqe_gguf_get_str(g, "tokenizer.chat_template", &s, &n, &found, NULL) == TQE_OK) {
        info->has_chat_template = found && n > 0;
    }
    weights_type(info->weights, g);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const int64_t *ne = g->tensors[i].ne;
        info->n_params += (uint64_t)(ne[0] * ne[1] * ne[2] * ne[3]);
    }
    info->file_bytes = g->size;
    info->n_vocab = c->n_vocab;
    info->n_ctx_train = c->n_ctx_train;
    info->n_layers = c->n_layers;
    info->n_embd = c->n_embd;
    info->n_ff = c->n_ff;
    info->n_heads = c->n_heads;
    info->n_kv_heads = c->n_kv_heads;
    info->d_k = c->d_head;
    info->d_v = c->d_head;
    info->rope_base = c->rope_base;
    memcpy(info->rope, c->rope_text, sizeof(info->rope));
    info->tied_output = tied;
    info->window = c->window;
}

/* ---- Probe --------------------------------------------------------------------------------------
 */

/* Everything that can be said from the header; the tokenizer keys are checked with check_vocab. */
static tqe_status inspect(const tqe_gguf *g, tqe_config *c, bool *tied, bool check_vocab,
                          tqe_error *err)
{
    tqe_status st = tqe_config_read(c, g, err);
    if (st == TQE_OK) {
        st = tqe_weights_check(g, c, tied, err);
    }
    if (st == TQE_OK && check_vocab) {
        st = tqe_vocab_check(g, err);
    }
    return st;
}

static tqe_status prefix_path(const char *path, tqe_status st, const tqe_error *inner,
                              tqe_error *err)
{
    return tqe_fail(err, st, "'%s': %s", path, inner->text);
}

tqe_status tqe_model_probe(const char *path, tqe_model_info *info, tqe_error *err)
{
    tqe_gguf g;
    tqe_status st = tqe_gguf_open(&g, path, err);
    if (st != TQE_OK) {
        return st;
    }
    tqe_config c;
    bool tied = false;
    tqe_error inner = {TQE_OK, ""};
    st = inspect(&g, &c, &tied, true, &inner);
    if (st == TQE_OK) {
        fill_info(info, &g, &c, tied);
    } else {
        (void)prefix_path(path, st, &inner, err);
    }
    tqe_gguf_close(&g);
    return st;
}

/* ---- Load ---------------------------------------------------------------------------------------
 */

static tqe_status read_chat_template(tqe_model *m, tqe_error *err)
{
    const char *s = NULL;
    size_t n = 0;
    bool found = false;
    tqe_status st = tqe_gguf_get_str(&m->gguf, "tokenizer.chat_template", &s, &n, &found, err);
    if (st != TQE_OK || !found || n == 0) {
        return st;
    }
    m->chat_template = malloc(n + 1);
    if (m->chat_template == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    memcpy(m->chat_template, s, n);
    m->chat_template[n] = '\0';
    return TQE_OK;
}

static tqe_status list_control_tokens(tqe_model *m, tqe_error *err)
{
    m->control_ids = malloc(m->config.n_vocab * sizeof(*m->control_ids));
    if (m->control_ids == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    for (int32_t id = 0; id < (int32_t)m->config.n_vocab; id++) {
        const enum llama_token_attr attr = llama_vocab_get_attr(m->vocab, id);
        if ((attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0) {
            m->control_ids[m->n_control_ids++] = id;
        }
    }
    return TQE_OK;
}

static tqe_status load(tqe_model *m, const tqe_model_params *params, tqe_error *err)
{
    bool tied = false;
    tqe_status st = inspect(&m->gguf, &m->config, &tied, false, err);
    if (st != TQE_OK) {
        return st;
    }
    fill_info(&m->info, &m->gguf, &m->config, tied);
    if ((st = tqe_vocab_load(&m->vocab_model, &m->gguf, m->config.arch->name, err)) != TQE_OK) {
        return st;
    }
    m->vocab = llama_model_get_vocab(m->vocab_model);
    if ((st = read_chat_template(m, err)) != TQE_OK ||
        (st = list_control_tokens(m, err)) != TQE_OK) {
        return st;
    }
    const bool no_repack = params != NULL && params->no_repack;
    return tqe_weights_load(&m->weights, &m->gguf, &m->config, no_repack, err);
}

tqe_status tqe_model_load(tqe_model **out, const char *path, const tqe_model_params *params,
                          tqe_error *err)
{
    if (out == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no place for the model");
    }
    *out = NULL;
    tqe_log_capture();
    tqe_model *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    tqe_status st = tqe_gguf_open(&m->gguf, path, err);
    if (st == TQE_OK) {
        tqe_error inner = {TQE_OK, ""};
        st = load(m, params, &inner);
        if (st != TQE_OK) {
            (void)prefix_path(path, st, &inner, err);
        }
    }
    if (st != TQE_OK) {
        tqe_model_free(m);
        return st;
    }
    *out = m;
    return TQE_OK;
}

void tqe_model_free(tqe_model *m)
{
    if (m == NULL) {
        return;
    }
    tqe_weights_free(&m->weights);
    if (m->vocab_model != NULL) {
        llama_model_free(m->vocab_model);
    }
    free(m->chat_template);
    free(m->control_ids);
    tqe_gguf_close(&m->gguf);
    free(m);
}

void tqe_model_get_info(const tqe_model *m, tqe_model_info *info)
{
    *info = m->info;
}
