/* SPDX-License-Identifier: MIT */
/* peer_llama.c — stock libllama on the same file: the other side of comparisons.
 *
 * The file goes through our own checks first, because libllama asserts on what they refuse.
 * Flash attention is chosen as llama-cli would: off for f32 KV (the exact path), on where the KV
 * type needs it, libllama's choice otherwise. The context is kept warm between evals. Peers that
 * share a model count its users; the last one frees it.
 */
#include "engine_priv.h"

#include <stdlib.h>
#include <string.h>

typedef struct peer_model {
    struct llama_model *model;
    unsigned n_users;
} peer_model;

struct tqe_peer {
    peer_model *shared;
    struct llama_context *ctx;
    struct llama_batch batch;
    bool has_batch;
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_tokens;
    uint32_t n_vocab;
    size_t kv_bytes_per_token;
};

static const enum ggml_type kv_types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16,
                                          GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                          GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL};

static bool find_type(const char *s, size_t n, enum ggml_type *out)
{
    for (size_t i = 0; i < sizeof(kv_types) / sizeof(kv_types[0]); i++) {
        const char *name = ggml_type_name(kv_types[i]);
        if (strlen(name) == n && memcmp(name, s, n) == 0) {
            *out = kv_types[i];
            return true;
        }
    }
    return false;
}

tqe_status tqe_peer_parse_types(const char *s, enum ggml_type *k, enum ggml_type *v, tqe_error *err)
{
    s = s != NULL ? s : "f16";
    const char *slash = strchr(s, '/');
    const size_t n = slash != NULL ? (size_t)(slash - s) : strlen(s);
    const char *vs = slash != NULL ? slash + 1 : s;
    if (!find_type(s, n, k) || !find_type(vs, slash != NULL ? strlen(vs) : n, v)) {
        return tqe_fail(err, TQE_ERR_ARG,
                        "KV type '%s' of the peer is not known: f32, f16, bf16, q8_0, q4_0, q4_1, "
                        "q5_0, q5_1, iq4_nl, or a pair as q8_0/q4_0",
                        tqe_quote(s, strlen(s)).text);
    }
    return TQE_OK;
}

tqe_status tqe_peer_check_kv(const char *kv_type, tqe_error *err)
{
    enum ggml_type k = GGML_TYPE_F16;
    enum ggml_type v = GGML_TYPE_F16;
    return tqe_peer_parse_types(kv_type, &k, &v, err);
}

static enum llama_flash_attn_type flash_attention(enum ggml_type k, enum ggml_type v)
{
    if (ggml_is_quantized(k) || ggml_is_quantized(v)) {
        return LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
    return k == GGML_TYPE_F32 && v == GGML_TYPE_F32 ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                                    : LLAMA_FLASH_ATTN_TYPE_AUTO;
}

static tqe_status check_params(const tqe_peer_params *p, tqe_error *err)
{
    if (p->n_ctx < 1 || p->n_ctx > (1u << 24) || p->n_threads < 1 ||
        p->n_threads > TQE_MAX_THREADS || p->n_batch < 1 || p->n_batch > 4096) {
        return tqe_fail(err, TQE_ERR_ARG,
                        "peer: n_ctx %u, n_threads %u or n_batch %u is out of range", p->n_ctx,
                        p->n_threads, p->n_batch);
    }
    return TQE_OK;
}

/* Ours widens such vectors; libllama would abort in its first multiplication. */
static tqe_status check_vectors(const char *path, tqe_error *err)
{
    tqe_gguf g;
    tqe_status st = tqe_gguf_open(&g, path, err);
    for (size_t i = 0; st == TQE_OK && i < g.n_tensors; i++) {
        const tqe_gguf_tensor *t = &g.tensors[i];
        if (t->n_dims == 1 && t->type != GGML_TYPE_F32) {
            st = tqe_fail(err, TQE_ERR_UNSUPPORTED,
                          "libllama does not run tensor '%s' of type %s (we do)", t->name,
                          ggml_type_name((enum ggml_type)t->type));
        }
    }
    tqe_gguf_close(&g);
    return st;
}

static tqe_status load_model(tqe_peer *peer, const char *path, tqe_error *err)
{
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    peer->shared = calloc(1, sizeof(*peer->shared));
    if (peer->shared == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    peer->shared->n_users = 1;
    peer->shared->model = llama_model_load_from_file(path, mp);
    if (peer->shared->model == NULL) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "libllama cannot load '%s': %s", path,
                        tqe_log_error());
    }
    return TQE_OK;
}

static tqe_status peer_init(tqe_peer *peer, const char *path, const tqe_peer_params *p,
                            tqe_error *err)
{
    tqe_model_info info;
    enum ggml_type type_k = GGML_TYPE_F16;
    enum ggml_type type_v = GGML_TYPE_F16;
    tqe_status st = check_params(p, err);
    if (st != TQE_OK || (st = tqe_peer_parse_types(p->kv_type, &type_k, &type_v, err)) != TQE_OK ||
        (st = tqe_model_probe(path, &info, err)) != TQE_OK ||
        (st = check_vectors(path, err)) != TQE_OK) {
        return st;
    }
    tqe_log_capture();
    tqe_log_reset();
    if (tqe_cpu_device() == NULL) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "this ggml has no CPU backend");
    }
    if (p->share != NULL) {
        peer->shared = p->share->shared;
        peer->shared->n_users++;
    } else if ((st = load_model(peer, path, err)) != TQE_OK) {
        return st;
    }
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = p->n_ctx;
    cp.n_batch = p->n_batch;
    cp.n_ubatch = p->n_batch;
    cp.n_seq_max = 1;
    cp.n_threads = (int32_t)p->n_threads;
    cp.n_threads_batch = (int32_t)p->n_threads;
    cp.type_k = type_k;
    cp.type_v = type_v;
    cp.flash_attn_type = flash_attention(type_k, type_v);
    cp.no_perf = true;
    peer->ctx = llama_init_from_model(peer->shared->model, cp);
    if (peer->ctx == NULL) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "libllama cannot make a context: %s",
                        tqe_log_error());
    }
    peer->batch = llama_batch_init((int32_t)p->n_batch, 0, 1);
    peer->has_batch = true;
    peer->n_ctx = p->n_ctx;
    peer->n_batch = p->n_batch;
    peer->n_vocab = info.n_vocab;
    peer->kv_bytes_per_token =
        info.n_layers * (ggml_row_size(type_k, (int64_t)info.n_kv_heads * info.d_k) +
                         ggml_row_size(type_v, (int64_t)info.n_kv_heads * info.d_v));
    return TQE_OK;
}

tqe_status tqe_peer_create(tqe_peer **out, const char *path, const tqe_peer_params *p,
                           tqe_error *err)
{
    if (out == NULL || p == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no parameters for the peer");
    }
    *out = NULL;
    tqe_peer *peer = calloc(1, sizeof(*peer));
    if (peer == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    const tqe_status st = peer_init(peer, path, p, err);
    if (st != TQE_OK) {
        tqe_peer_free(peer);
        return st;
    }
    *out = peer;
    return TQE_OK;
}

void tqe_peer_free(tqe_peer *p)
{
    if (p == NULL) {
        return;
    }
    if (p->has_batch) {
        llama_batch_free(p->batch);
    }
    if (p->ctx != NULL) {
        llama_free(p->ctx);
    }
    if (p->shared != NULL && --p->shared->n_users == 0) {
        if (p->shared->model != NULL) {
            llama_model_free(p->shared->model);
        }
        free(p->shared);
    }
    free(p);
}

size_t tqe_peer_kv_bytes_per_token(const tqe_peer *p)
{
    return p->kv_bytes_per_token;
}

void tqe_peer_clear(tqe_peer *p)
{
    llama_memory_clear(llama_get_memory(p->ctx), false);
    p->n_tokens = 0;
}

static tqe_status run_batch(tqe_peer *p, const int32_t *ids, uint32_t n, bool all, bool last,
                            tqe_error *err)
{
    p->batch.n_tokens = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        p->batch.token[i] = ids[i];
        p->batch.pos[i] = (llama_pos)(p->n_tokens + i);
        p->batch.n_seq_id[i] = 1;
        p->batch.seq_id[i][0] = 0;
        p->batch.logits[i] = (int8_t)(all || (last && i + 1 == n));
    }
    tqe_log_reset();
    const int32_t rc = llama_decode(p->ctx, p->batch);
    if (rc != 0) {
        return tqe_fail(err, rc == 1 ? TQE_ERR_FULL : TQE_ERR_NUMERIC,
                        "libllama's decode failed (%d): %s", rc, tqe_log_error());
    }
    p->n_tokens += n;
    return TQE_OK;
}

tqe_status tqe_peer_eval(tqe_peer *p, const int32_t *ids, size_t n, float *all_logits,
                         float *logits_out, tqe_error *err)
{
    if (p == NULL || ids == NULL || n == 0) {
        return tqe_fail(err, TQE_ERR_ARG, "no tokens to evaluate");
    }
    if (n > p->n_ctx - p->n_tokens) {
        return tqe_fail(err, TQE_ERR_FULL, "the context holds %u tokens, %u are used", p->n_ctx,
                        p->n_tokens);
    }
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= p->n_vocab) {
            return tqe_fail(err, TQE_ERR_ARG, "token %zu is %d, the vocabulary has %u", i, ids[i],
                            p->n_vocab);
        }
    }
    const size_t row = p->n_vocab * sizeof(float);
    for (size_t done = 0; done < n;) {
        const size_t left = n - done;
        const uint32_t m = left < p->n_batch ? (uint32_t)left : p->n_batch;
        const tqe_status st = run_batch(p, ids + done, m, all_logits != NULL, done + m == n, err);
        if (st != TQE_OK) {
            return st;
        }
        for (uint32_t i = 0; all_logits != NULL && i < m; i++) {
            memcpy(all_logits + (done + i) * p->n_vocab, llama_get_logits_ith(p->ctx, (int32_t)i),
                   row);
        }
        done += m;
    }
    if (logits_out != NULL) {
        memcpy(logits_out, llama_get_logits_ith(p->ctx, -1), row);
    }
    return TQE_OK;
}
