/* SPDX-License-Identifier: MIT */
/* arch_dense.c — the compute graph of the dense family: llama, qwen2, qwen3.
 *
 *   x = embed(tokens)
 *   per layer:  h = rmsnorm(x);  q, k, v = h Wq, h Wk, h Wv (+ biases)
 *               q, k = rope(norm?(q)), rope(norm?(k));  cache <- k, v
 *               x += attention(q, cache) Wo;  x += (silu(h' Wg) * (h' Wu)) Wd,  h' = rmsnorm(x)
 *   logits = rmsnorm(x) Wout
 *
 * The members differ by flags of tqe_arch, and by which optional tensors are there. What nobody
 * reads is not computed: when only the last token's logits are wanted, the last layer makes keys
 * and values for every token but attention and FFN for the last one; when no logits are wanted
 * (all prompt batches but the last), the graph ends with the last layer's append.
 */
#include "engine_priv.h"

#define NODES_PER_LAYER 48u
#define NODES_FIXED     64u

static size_t n_nodes_max(const tqe_config *c)
{
    return (size_t)c->n_layers * NODES_PER_LAYER + NODES_FIXED;
}

size_t tqe_graph_meta_bytes(const tqe_config *c)
{
    const size_t n = n_nodes_max(c);
    return n * ggml_tensor_overhead() + ggml_graph_overhead_custom(n, false);
}

typedef struct builder {
    struct ggml_context *ctx;
    struct ggml_cgraph *gf;
    const tqe_config *c;
    const tqe_weights *w;
    tqe_attn *attn;
} builder;

/* x [n][n_embd] * weight, each row normed to unit mean square first. */
static struct ggml_tensor *norm(const builder *b, struct ggml_tensor *x, struct ggml_tensor *weight)
{
    return ggml_mul(b->ctx, ggml_rms_norm(b->ctx, x, b->c->norm_eps), weight);
}

static struct ggml_tensor *linear(const builder *b, struct ggml_tensor *weight,
                                  struct ggml_tensor *bias, struct ggml_tensor *x)
{
    struct ggml_tensor *y = ggml_mul_mat(b->ctx, weight, x);
    return bias != NULL ? ggml_add(b->ctx, y, bias) : y;
}

static struct ggml_tensor *rope(const builder *b, struct ggml_tensor *x, struct ggml_tensor *pos)
{
    const tqe_config *c = b->c;
    const int mode = c->arch->rope == TQE_ROPE_NEOX ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    return ggml_rope_ext(b->ctx, x, pos, b->w->rope_freqs, (int)c->d_head, mode, c->rope_n_ctx_orig,
                         c->rope_base, c->rope_freq_scale, c->rope_ext_factor, c->rope_attn_factor,
                         c->rope_beta_fast, c->rope_beta_slow);
}

/* The last row of x [n][row]. */
static struct ggml_tensor *last_row(const builder *b, struct ggml_tensor *x)
{
    return ggml_view_2d(b->ctx, x, x->ne[0], 1, x->nb[1], (size_t)(x->ne[1] - 1) * x->nb[1]);
}

/* heads [n][n_heads][d_head] of y [n][...] from element `first` of each row on. */
static struct ggml_tensor *heads(const builder *b, struct ggml_tensor *y, uint32_t n_heads,
                                 size_t first)
{
    const size_t d = b->c->d_head;
    return ggml_view_3d(b->ctx, y, (int64_t)d, n_heads, y->ne[1], d * sizeof(float), y->nb[1],
                        first * sizeof(float));
}

/* Queries (of q_rows: all of h or its last row), keys and values before RoPE. */
static void project(const builder *b, const tqe_layer_weights *l, struct ggml_tensor *h,
                    bool only_last, struct ggml_tensor **q, struct ggml_tensor **k,
                    struct ggml_tensor **v)
{
    const tqe_config *c = b->c;
    const size_t d = c->d_head;
    if (l->wqkv != NULL) {
        struct ggml_tensor *y = linear(b, l->wqkv, l->bqkv, h);
        *q = heads(b, only_last ? last_row(b, y) : y, c->n_heads, 0);
        *k = heads(b, y, c->n_kv_heads, c->n_heads * d);
        *v = heads(b, y, c->n_kv_heads, (c->n_heads + c->n_kv_heads) * d);
        return;
    }
    struct ggml_tensor *hq = only_last ? last_row(b, h) : h;
    *q = heads(b, linear(b, l->wq, l->bq, hq), c->n_heads, 0);
    *k = heads(b, linear(b, l->wk, l->bk, h), c->n_kv_heads, 0);
    *v = heads(b, linear(b, l->wv, l->bv, h), c->n_kv_heads, 0);
}

static struct ggml_tensor *ffn(const builder *b, const tqe_layer_weights *l, struct ggml_tensor *x)
{
    struct ggml_tensor *h = norm(b, x, l->ffn_norm);
    struct ggml_tensor *up = linear(b, l->ffn_up, l->ffn_up_b, h);
    struct ggml_tensor *gate = linear(b, l->ffn_gate, l->ffn_gate_b, h);
    struct ggml_tensor *act = ggml_swiglu_split(b->ctx, gate, up);
    return ggml_add(b->ctx, linear(b, l->ffn_down, l->ffn_down_b, act), x);
}

/* One layer over x [n][n_embd]. out: as of the graph, for the last layer. NULL: the graph ended. */
static struct ggml_tensor *layer(const builder *b, uint32_t il, struct ggml_tensor *x,
                                 struct ggml_tensor *pos, tqe_out out)
{
    const tqe_layer_weights *l = &b->w->layers[il];
    const bool only_last = out == TQE_OUT_LAST && x->ne[1] > 1;
    struct ggml_tensor *h = norm(b, x, l->attn_norm);
    struct ggml_tensor *q = NULL;
    struct ggml_tensor *k = NULL;
    struct ggml_tensor *v = NULL;
    project(b, l, h, only_last, &q, &k, &v);
    if (l->k_norm != NULL) {
        k = norm(b, k, l->k_norm);
    }
    k = rope(b, k, pos);
    struct ggml_tensor *append = tqe_attn_append_node(b->attn, b->ctx, il, k, v);
    ggml_build_forward_expand(b->gf, append);
    if (out == TQE_OUT_NONE) {
        return NULL;
    }
    struct ggml_tensor *q_pos = pos;
    if (only_last) {
        q_pos = ggml_view_1d(b->ctx, pos, 1, (size_t)(pos->ne[0] - 1) * sizeof(int32_t));
        x = last_row(b, x);
    }
    if (l->q_norm != NULL) {
        q = norm(b, q, l->q_norm);
    }
    q = rope(b, q, q_pos);
    struct ggml_tensor *a = tqe_attn_output_node(b->attn, b->ctx, il, append, q);
    return ffn(b, l, ggml_add(b->ctx, linear(b, l->wo, l->bo, a), x));
}

void tqe_graph_build(tqe_graph *g, const tqe_config *c, const tqe_weights *w, tqe_attn *attn,
                     uint32_t n, tqe_out out, void *mem, size_t mem_bytes)
{
    const struct ggml_init_params ip = {mem_bytes, mem, true};
    g->ctx = ggml_init(ip);
    g->gf = ggml_new_graph_custom(g->ctx, n_nodes_max(c), false);
    g->n = n;
    g->out = out;
    g->tokens = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n);
    g->pos = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n);
    ggml_set_input(g->tokens);
    ggml_set_input(g->pos);
    g->logits = NULL;
    const builder b = {g->ctx, g->gf, c, w, attn};
    struct ggml_tensor *x = ggml_get_rows(g->ctx, w->tok_embd, g->tokens);
    for (uint32_t il = 0; il < c->n_layers; il++) {
        /* Layers below the last serve all tokens. */
        x = layer(&b, il, x, g->pos, il + 1 == c->n_layers ? out : TQE_OUT_ALL);
    }
    if (x != NULL) {
        g->logits = linear(&b, w->output, w->output_b, norm(&b, x, w->output_norm));
        ggml_set_output(g->logits);
        ggml_build_forward_expand(g->gf, g->logits);
    }
}
