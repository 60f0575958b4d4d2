/* SPDX-License-Identifier: MIT */
/* config.c — the numbers of a model: which architectures we know, what their keys mean.
 *
 * Policy: a key that changes the computation is either done or refused by name, never skipped.
 * Every number is range-checked here, so graph code multiplies freely. RoPE parameters follow
 * libllama's reading of the keys (llama_context's YaRN magnitude correction included), because
 * files are converted for it.
 * Sources: docs/gguf.md of ggml (keys); Peng et al. 2023 (YaRN); libllama v0.4.0 (defaults).
 */
#include "engine_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_LAYERS 512u
#define MAX_DIM    (1u << 20)

static const tqe_arch archs[] = {
    {"llama", TQE_ROPE_INTERLEAVED, false, true, false, true}, /* Llama 2 and 3, Mistral */
    {"qwen2", TQE_ROPE_NEOX, false, false, true, false},
    {"qwen3", TQE_ROPE_NEOX, true, false, false, false},
};

const char *tqe_known_archs(void)
{
    return "llama, qwen2, qwen3";
}

const tqe_arch *tqe_arch_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        if (strlen(archs[i].name) == n && memcmp(archs[i].name, name, n) == 0) {
            return &archs[i];
        }
    }
    return NULL;
}

/* ---- Reading with ranges ------------------------------------------------------------------ */

typedef struct reader {
    const tqe_gguf *g;
    const char *arch;
    tqe_error *err;
    char key[128];
} reader;

static const char *arch_key(reader *r, const char *suffix)
{
    (void)snprintf(r->key, sizeof(r->key), "%s.%s", r->arch, suffix);
    return r->key;
}

static tqe_status check_u32(reader *r, uint64_t v, uint32_t lo, uint32_t hi, uint32_t *out)
{
    if (v < lo || v > hi) {
        return tqe_fail(r->err, TQE_ERR_FORMAT, "key '%s' is %llu, expected %u to %u", r->key,
                        (unsigned long long)v, lo, hi);
    }
    *out = (uint32_t)v;
    return TQE_OK;
}

static tqe_status read_u32(reader *r, const char *suffix, uint32_t lo, uint32_t hi, uint32_t *out,
                           bool *found)
{
    uint64_t v = 0;
    bool here = true;
    const tqe_status st =
        tqe_gguf_get_u64(r->g, arch_key(r, suffix), &v, found != NULL ? &here : NULL, r->err);
    if (found != NULL) {
        *found = here;
    }
    if (st != TQE_OK || !here) {
        return st;
    }
    return check_u32(r, v, lo, hi, out);
}

/* A count that newer converters may store per layer: accepted when all layers agree. */
static tqe_status read_uniform_u32(reader *r, const char *suffix, uint32_t lo, uint32_t hi,
                                   uint32_t n_layers, uint32_t *out, bool *found)
{
    const tqe_gguf_kv *kv = tqe_gguf_find(r->g, arch_key(r, suffix));
    if (kv == NULL || kv->type != TQE_GGUF_ARR) {
        return read_u32(r, suffix, lo, hi, out, found);
    }
    if (kv->elem_type == TQE_GGUF_STR || kv->n < n_layers) {
        return tqe_fail(r->err, TQE_ERR_FORMAT,
                        "key '%s' at offset %zu is an array of %llu %s, expected %u integers",
                        r->key, kv->off, (unsigned long long)kv->n,
                        tqe_gguf_type_name(kv->elem_type), n_layers);
    }
    bool ok = true;
    const uint64_t first = tqe_gguf_elem_u64(r->g, kv, 0, &ok);
    for (uint32_t i = 1; ok && i < n_layers; i++) {
        if (tqe_gguf_elem_u64(r->g, kv, i, &ok) != first) {
            return tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                            "key '%s' differs between layers: such models are not supported",
                            r->key);
        }
    }
    if (!ok) {
        return tqe_fail(r->err, TQE_ERR_FORMAT,
                        "key '%s' at offset %zu holds values that are not counts", r->key, kv->off);
    }
    if (found != NULL) {
        *found = true;
    }
    return check_u32(r, first, lo, hi, out);
}

static tqe_status read_f32(reader *r, const char *suffix, float lo, float hi, float *out,
                           bool *found)
{
    bool here = true;
    float v = 0.0f;
    const tqe_status st =
        tqe_gguf_get_f32(r->g, arch_key(r, suffix), &v, found != NULL ? &here : NULL, r->err);
    if (found != NULL) {
        *found = here;
    }
    if (st != TQE_OK || !here) {
        return st;
    }
    if (!(v >= lo && v <= hi)) {
        return tqe_fail(r->err, TQE_ERR_FORMAT, "key '%s' is %g, expected %g to %g", r->key,
                        (double)v, (double)lo, (double)hi);
    }
    *out = v;
    return TQE_OK;
}

/* ---- Keys that must not be there ------------------------------------------------------------ */

/* Each changes the computation in a way the dense graph does not do; neutral values pass. */
static tqe_status refuse_unsupported(reader *r)
{
    static const struct {
        const char *suffix;
        float neutral;
    } floats[] = {
        {"attention.clamp_kqv", 0.0f},
        {"attention.max_alibi_bias", 0.0f},
        {"logit_scale", 1.0f},
        {"residual_scale", 1.0f},
        {"embedding_scale", 1.0f},
        {"attn_logit_softcapping", 0.0f},
        {"final_logit_softcapping", 0.0f},
        {"rope.scaling.yarn_log_multiplier", 0.0f},
        {"rope.scaling.alpha", 0.0f},
    };
    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++) {
        float v = floats[i].neutral;
        bool found = false;
        const tqe_status st =
            tqe_gguf_get_f32(r->g, arch_key(r, floats[i].suffix), &v, &found, r->err);
        if (st != TQE_OK) {
            return st;
        }
        if (found && v != floats[i].neutral && v != 0.0f) {
            return tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                            "key '%s' = %g is not supported in %s models", r->key, (double)v,
                            r->arch);
        }
    }
    uint32_t n_experts = 0;
    bool found = false;
    tqe_status st = read_u32(r, "expert_count", 0, UINT32_MAX, &n_experts, &found);
    if (st == TQE_OK && n_experts > 0) {
        st = tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                      "mixture-of-experts models are not supported ('%s' = %u)", r->key, n_experts);
    }
    if (st == TQE_OK && tqe_gguf_find(r->g, arch_key(r, "attention.sliding_window_pattern"))) {
        st = tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                      "key '%s': windows that differ between layers are not supported in %s models",
                      r->key, r->arch);
    }
    bool causal = true;
    if (st == TQE_OK) {
        st = tqe_gguf_get_bool(r->g, arch_key(r, "attention.causal"), &causal, &found, r->err);
    }
    if (st == TQE_OK && !causal) {
        st =
            tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                     "'%s' is false: models without causal attention do not generate text", r->key);
    }
    uint64_t n_splits = 0;
    if (st == TQE_OK) {
        st = tqe_gguf_get_u64(r->g, "split.count", &n_splits, &found, r->err);
    }
    if (st == TQE_OK && n_splits > 1) {
        st = tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                      "this is one of %llu parts of a split GGUF; merge them first "
                      "(llama-gguf-split --merge)",
                      (unsigned long long)n_splits);
    }
    return st;
}

/* ---- RoPE ----------------------------------------------------------------------------------- */

typedef enum scaling { SCALING_NONE, SCALING_LINEAR, SCALING_YARN } scaling;

static tqe_status read_scaling_type(reader *r, scaling *kind)
{
    const char *s = "linear"; /* the default; without a factor it does nothing */
    size_t n = 6;
    bool found = false;
    const tqe_status st =
        tqe_gguf_get_str(r->g, arch_key(r, "rope.scaling.type"), &s, &n, &found, r->err);
    if (st != TQE_OK) {
        return st;
    }
    if (n == 4 && memcmp(s, "none", 4) == 0) {
        *kind = SCALING_NONE;
    } else if (n == 6 && memcmp(s, "linear", 6) == 0) {
        *kind = SCALING_LINEAR;
    } else if (n == 4 && memcmp(s, "yarn", 4) == 0) {
        *kind = SCALING_YARN;
    } else {
        return tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                        "RoPE scaling '%s' ('%s') is not supported: none, linear and yarn are",
                        tqe_quote(s, n).text, r->key);
    }
    return TQE_OK;
}

/* ggml multiplies the YaRN rotation by 1 + 0.1 ln(factor) itself; libllama divides that out and
 * puts its own magnitude in. For plain YaRN the two cancel above a factor of 1. */
static float yarn_magnitude(float factor)
{
    const float own = factor <= 1.0f ? 1.0f : 0.1f * logf(factor) + 1.0f;
    return own * (1.0f / (1.0f + 0.1f * logf(factor)));
}

static tqe_status read_yarn(reader *r, tqe_config *c, float factor)
{
    bool found = false;
    c->rope_ext_factor = 1.0f;
    tqe_status st =
        read_f32(r, "rope.scaling.yarn_ext_factor", 0.0f, 1.0f, &c->rope_ext_factor, &found);
    if (st == TQE_OK) {
        st = read_f32(r, "rope.scaling.yarn_beta_fast", 0.0f, 1e6f, &c->rope_beta_fast, &found);
    }
    if (st == TQE_OK) {
        st = read_f32(r, "rope.scaling.yarn_beta_slow", 0.0f, 1e6f, &c->rope_beta_slow, &found);
    }
    if (st == TQE_OK) {
        st = read_f32(r, "rope.scaling.yarn_attn_factor", 0.01f, 100.0f, &c->rope_attn_factor,
                      &found);
    }
    if (st == TQE_OK && c->rope_ext_factor != 0.0f) {
        c->rope_attn_factor =
            found ? c->rope_attn_factor / (1.0f + 0.1f * logf(factor)) : yarn_magnitude(factor);
    }
    return st;
}

static tqe_status read_rope(reader *r, tqe_config *c)
{
    uint32_t n_rot = c->d_head;
    bool found = false;
    tqe_status st = read_u32(r, "rope.dimension_count", 1, MAX_DIM, &n_rot, &found);
    if (st != TQE_OK) {
        return st;
    }
    if (n_rot != c->d_head || n_rot % 2 != 0) {
        return tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                        "RoPE over %u of %u head dimensions is not supported in %s models", n_rot,
                        c->d_head, r->arch);
    }
    c->rope_base = 10000.0f;
    if ((st = read_f32(r, "rope.freq_base", 1.0f, 1e12f, &c->rope_base, &found)) != TQE_OK) {
        return st;
    }
    scaling kind = SCALING_LINEAR;
    if ((st = read_scaling_type(r, &kind)) != TQE_OK) {
        return st;
    }
    float factor = 1.0f;
    st = read_f32(r, "rope.scaling.factor", 0.0f, 1e6f, &factor, &found);
    if (st == TQE_OK && !found) { /* its older name */
        st = read_f32(r, "rope.scale_linear", 0.0f, 1e6f, &factor, &found);
    }
    if (st != TQE_OK) {
        return st;
    }
    if (factor == 0.0f) {
        factor = 1.0f;
    } else if (factor < 0.01f) {
        return tqe_fail(r->err, TQE_ERR_FORMAT, "key '%s' is %g, expected 0 or 0.01 to 1e6", r->key,
                        (double)factor);
    }
    c->rope_freq_scale = kind == SCALING_NONE ? 1.0f : 1.0f / factor;
    uint32_t n_orig = c->n_ctx_train;
    st = read_u32(r, "rope.scaling.original_context_length", 1, INT32_MAX, &n_orig, &found);
    if (st != TQE_OK) {
        return st;
    }
    c->rope_n_ctx_orig = (int32_t)n_orig;
    c->rope_ext_factor = 0.0f;
    c->rope_attn_factor = 1.0f;
    c->rope_beta_fast = 32.0f;
    c->rope_beta_slow = 1.0f;
    if (kind == SCALING_YARN && (st = read_yarn(r, c, factor)) != TQE_OK) {
        return st;
    }
    float attn = 1.0f;
    if ((st = read_f32(r, "rope.scaling.attn_factor", 0.01f, 100.0f, &attn, &found)) != TQE_OK) {
        return st;
    }
    c->rope_attn_factor *= attn;
    const char *base = c->arch->rope == TQE_ROPE_NEOX ? "neox" : "interleaved";
    if (c->arch->rope_freqs && tqe_gguf_find_tensor(r->g, "rope_freqs.weight") != NULL) {
        (void)snprintf(c->rope_text, sizeof(c->rope_text), "%s, llama3 factors", base);
    } else if (factor != 1.0f && kind != SCALING_NONE) {
        (void)snprintf(c->rope_text, sizeof(c->rope_text), "%s, %s x%g", base,
                       kind == SCALING_YARN ? "yarn" : "linear", (double)factor);
    } else {
        (void)snprintf(c->rope_text, sizeof(c->rope_text), "%s", base);
    }
    return TQE_OK;
}

/* ---- The whole ------------------------------------------------------------------------------ */

static tqe_status read_heads(reader *r, tqe_config *c)
{
    bool found = false;
    tqe_status st =
        read_uniform_u32(r, "attention.head_count", 1, 4096, c->n_layers, &c->n_heads, NULL);
    if (st != TQE_OK) {
        return st;
    }
    c->n_kv_heads = c->n_heads;
    st = read_uniform_u32(r, "attention.head_count_kv", 1, 1024, c->n_layers, &c->n_kv_heads,
                          &found);
    if (st != TQE_OK) {
        return st;
    }
    if (c->n_heads % c->n_kv_heads != 0) {
        return tqe_fail(r->err, TQE_ERR_FORMAT,
                        "%u query heads do not divide over %u KV heads ('%s')", c->n_heads,
                        c->n_kv_heads, r->key);
    }
    if (c->n_heads / c->n_kv_heads > 32) {
        return tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                        "%u query heads per KV head are not supported (32 are)",
                        c->n_heads / c->n_kv_heads);
    }
    uint32_t d_k = c->n_embd / c->n_heads;
    uint32_t d_v = d_k;
    bool has_k = false;
    bool has_v = false;
    if ((st = read_u32(r, "attention.key_length", 1, 65536, &d_k, &has_k)) != TQE_OK ||
        (st = read_u32(r, "attention.value_length", 1, 65536, &d_v, &has_v)) != TQE_OK) {
        return st;
    }
    if (!(has_k && has_v) && c->n_embd % c->n_heads != 0) {
        return tqe_fail(r->err, TQE_ERR_FORMAT,
                        "embedding length %u is not a multiple of %u heads, and no "
                        "'%s.attention.key_length' and value_length are given",
                        c->n_embd, c->n_heads, r->arch);
    }
    if (d_k != d_v) {
        return tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                        "key length %u and value length %u differ: not supported in %s models", d_k,
                        d_v, r->arch);
    }
    if (d_k % 8 != 0 || d_k < 16 || d_k > 1024) {
        return tqe_fail(r->err, TQE_ERR_UNSUPPORTED,
                        "head dimension %u is not supported: multiples of 8 from 16 to 1024 are",
                        d_k);
    }
    c->d_head = d_k;
    c->attn_scale = 1.0f / sqrtf((float)d_k);
    return read_f32(r, "attention.scale", 1e-6f, 1e3f, &c->attn_scale, &found);
}

tqe_status tqe_config_read(tqe_config *c, const tqe_gguf *g, tqe_error *err)
{
    memset(c, 0, sizeof(*c));
    const char *name = NULL;
    size_t n = 0;
    tqe_status st = tqe_gguf_get_str(g, "general.architecture", &name, &n, NULL, err);
    if (st != TQE_OK) {
        return st;
    }
    c->arch = tqe_arch_find(name, n);
    if (c->arch == NULL) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "architecture '%s' is not supported; known: %s",
                        tqe_quote(name, n).text, tqe_known_archs());
    }
    const tqe_gguf_kv *tokens = tqe_gguf_find(g, "tokenizer.ggml.tokens");
    if (tokens == NULL || tokens->type != TQE_GGUF_ARR || tokens->elem_type != TQE_GGUF_STR ||
        tokens->n < 1 || tokens->n > (1u << 24)) {
        return tqe_fail(err, TQE_ERR_FORMAT,
                        "the GGUF has no vocabulary (key 'tokenizer.ggml.tokens', an array of 1 "
                        "to 2^24 strings)");
    }
    c->n_vocab = (uint32_t)tokens->n;
    reader r = {g, c->arch->name, err, ""};
    bool found = false;
    if ((st = refuse_unsupported(&r)) != TQE_OK ||
        (st = read_u32(&r, "context_length", 1, INT32_MAX, &c->n_ctx_train, NULL)) != TQE_OK ||
        (st = read_u32(&r, "embedding_length", 1, MAX_DIM, &c->n_embd, NULL)) != TQE_OK ||
        (st = read_u32(&r, "block_count", 1, MAX_LAYERS, &c->n_layers, NULL)) != TQE_OK ||
        (st = read_uniform_u32(&r, "feed_forward_length", 1, MAX_DIM, c->n_layers, &c->n_ff,
                               NULL)) != TQE_OK ||
        (st = read_f32(&r, "attention.layer_norm_rms_epsilon", 0.0f, 1.0f, &c->norm_eps, NULL)) !=
            TQE_OK ||
        (st = read_heads(&r, c)) != TQE_OK || (st = read_rope(&r, c)) != TQE_OK) {
        return st;
    }
    return read_u32(&r, "attention.sliding_window", 0, INT32_MAX, &c->window, &found);
}
