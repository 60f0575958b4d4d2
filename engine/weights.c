/* SPDX-License-Identifier: MIT */
/* weights.c — the tensors of a dense model: names, shapes, and where their bytes live.
 *
 * One list of specifications serves the check of a header and the load. A matrix stays a view of
 * the mapped file, or is repacked into a buffer type of ggml's CPU backend when one accepts it
 * (ggml interleaves rows of Q4_0, Q4_K ... for its matmul; it doubles their prompt speed). Norms
 * and biases are used in F32. A tensor that the architecture does not want is an error: it would
 * be computation left out.
 */
#include "engine_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- The list ------------------------------------------------------------------------------- */

typedef struct spec {
    const char *name;
    int64_t ne0;
    int64_t ne1; /* 0: a vector */
    bool required;
    struct ggml_tensor **slot; /* NULL when only checking */
} spec;

typedef struct visitor visitor;
typedef tqe_status visit_fn(visitor *v, const spec *s, const tqe_gguf_tensor *t);

struct visitor {
    const tqe_gguf *g;
    const tqe_config *c;
    tqe_error *err;
    uint8_t *used; /* [n_tensors] */
    visit_fn *fn;
    tqe_weights *w;
    /* load only */
    ggml_backend_dev_t dev;
    ggml_backend_buffer_type_t *extra; /* NULL-terminated list, or NULL */
    size_t widened_off;
};

/* Weight types that ggml's CPU matmul and row lookup take; the rest of enum ggml_type are formats
 * of activations or integers. */
static bool matrix_type(uint32_t type)
{
    switch ((enum ggml_type)type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q2_K:
    case GGML_TYPE_Q3_K:
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
    case GGML_TYPE_Q6_K:
    case GGML_TYPE_IQ2_XXS:
    case GGML_TYPE_IQ2_XS:
    case GGML_TYPE_IQ3_XXS:
    case GGML_TYPE_IQ1_S:
    case GGML_TYPE_IQ4_NL:
    case GGML_TYPE_IQ3_S:
    case GGML_TYPE_IQ2_S:
    case GGML_TYPE_IQ4_XS:
    case GGML_TYPE_IQ1_M:
    case GGML_TYPE_TQ1_0:
    case GGML_TYPE_TQ2_0:
    case GGML_TYPE_MXFP4:
    case GGML_TYPE_NVFP4:
    case GGML_TYPE_Q1_0:
    case GGML_TYPE_Q2_0:
        return true;
    default:
        return false;
    }
}

static bool vector_type(uint32_t type)
{
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static tqe_status visit(visitor *v, const spec *s)
{
    const tqe_gguf_tensor *t = tqe_gguf_find_tensor(v->g, s->name);
    if (t == NULL) {
        if (s->required) {
            return tqe_fail(v->err, TQE_ERR_FORMAT, "the GGUF has no tensor '%s', which %s needs",
                            s->name, v->c->arch->name);
        }
        return TQE_OK;
    }
    v->used[t - v->g->tensors] = 1;
    const int64_t ne1 = s->ne1 == 0 ? 1 : s->ne1;
    if (t->ne[0] != s->ne0 || t->ne[1] != ne1 || t->ne[2] != 1 || t->ne[3] != 1) {
        return tqe_fail(v->err, TQE_ERR_FORMAT,
                        "tensor '%s' has shape [%lld, %lld, %lld, %lld], expected [%lld, %lld]",
                        t->name, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2],
                        (long long)t->ne[3], (long long)s->ne0, (long long)ne1);
    }
    if (s->ne1 == 0 ? !vector_type(t->type) : !matrix_type(t->type)) {
        return tqe_fail(v->err, TQE_ERR_UNSUPPORTED,
                        "tensor '%s' has type %s, which %s cannot have", t->name,
                        ggml_type_name((enum ggml_type)t->type),
                        s->ne1 == 0 ? "a norm or bias" : "a weight matrix");
    }
    return v->fn(v, s, t);
}

#define SLOT(field) (lw != NULL ? &lw->field : NULL)

/* One tensor of block `layer`. */
static tqe_status visit_layer(visitor *v, uint32_t layer, const char *suffix, int64_t ne0,
                              int64_t ne1, bool required, struct ggml_tensor **slot)
{
    char name[TQE_TENSOR_NAME_BYTES];
    (void)snprintf(name, sizeof(name), "blk.%u.%s", layer, suffix);
    const spec s = {name, ne0, ne1, required, slot};
    return visit(v, &s);
}

static tqe_status visit_attention(visitor *v, uint32_t il, tqe_layer_weights *lw)
{
    const tqe_config *c = v->c;
    const int64_t n_embd = c->n_embd;
    const int64_t q_dim = (int64_t)c->n_heads * c->d_head;
    const int64_t kv_dim = (int64_t)c->n_kv_heads * c->d_head;
    char fused[TQE_TENSOR_NAME_BYTES];
    (void)snprintf(fused, sizeof(fused), "blk.%u.attn_qkv.weight", il);
    tqe_status st = visit_layer(v, il, "attn_norm.weight", n_embd, 0, true, SLOT(attn_norm));
    if (st != TQE_OK) {
        return st;
    }
    if (tqe_gguf_find_tensor(v->g, fused) != NULL) {
        const int64_t n = q_dim + 2 * kv_dim;
        if ((st = visit_layer(v, il, "attn_qkv.weight", n_embd, n, true, SLOT(wqkv))) != TQE_OK ||
            (st = visit_layer(v, il, "attn_qkv.bias", n, 0, false, SLOT(bqkv))) != TQE_OK) {
            return st;
        }
    } else if ((st = visit_layer(v, il, "attn_q.weight", n_embd, q_dim, true, SLOT(wq))) ||
               (st = visit_layer(v, il, "attn_k.weight", n_embd, kv_dim, true, SLOT(wk))) ||
               (st = visit_layer(v, il, "attn_v.weight", n_embd, kv_dim, true, SLOT(wv))) ||
               (st = visit_layer(v, il, "attn_q.bias", q_dim, 0, false, SLOT(bq))) ||
               (st = visit_layer(v, il, "attn_k.bias", kv_dim, 0, false, SLOT(bk))) ||
               (st = visit_layer(v, il, "attn_v.bias", kv_dim, 0, false, SLOT(bv)))) {
        return st;
    }
    if (c->arch->qk_norm &&
        ((st = visit_layer(v, il, "attn_q_norm.weight", c->d_head, 0, true, SLOT(q_norm))) ||
         (st = visit_layer(v, il, "attn_k_norm.weight", c->d_head, 0, true, SLOT(k_norm))))) {
        return st;
    }
    st = visit_layer(v, il, "attn_output.weight", q_dim, n_embd, true, SLOT(wo));
    if (st == TQE_OK && c->arch->extra_bias) {
        st = visit_layer(v, il, "attn_output.bias", n_embd, 0, false, SLOT(bo));
    }
    return st;
}

static tqe_status visit_ffn(visitor *v, uint32_t il, tqe_layer_weights *lw)
{
    const int64_t n_embd = v->c->n_embd;
    const int64_t n_ff = v->c->n_ff;
    tqe_status st = TQE_OK;
    if ((st = visit_layer(v, il, "ffn_norm.weight", n_embd, 0, true, SLOT(ffn_norm))) ||
        (st = visit_layer(v, il, "ffn_gate.weight", n_embd, n_ff, true, SLOT(ffn_gate))) ||
        (st = visit_layer(v, il, "ffn_up.weight", n_embd, n_ff, true, SLOT(ffn_up))) ||
        (st = visit_layer(v, il, "ffn_down.weight", n_ff, n_embd, true, SLOT(ffn_down)))) {
        return st;
    }
    if (v->c->arch->extra_bias) {
        if ((st = visit_layer(v, il, "ffn_gate.bias", n_ff, 0, false, SLOT(ffn_gate_b))) ||
            (st = visit_layer(v, il, "ffn_up.bias", n_ff, 0, false, SLOT(ffn_up_b))) ||
            (st = visit_layer(v, il, "ffn_down.bias", n_embd, 0, false, SLOT(ffn_down_b)))) {
            return st;
        }
    }
    return TQE_OK;
}

static tqe_status visit_all(visitor *v)
{
    const tqe_config *c = v->c;
    const tqe_arch *arch = c->arch;
    const int64_t n_embd = c->n_embd;
    const int64_t n_vocab = c->n_vocab;
    tqe_weights *w = v->w;
    const spec embd = {"token_embd.weight", n_embd, n_vocab, true, w ? &w->tok_embd : NULL};
    const spec norm = {"output_norm.weight", n_embd, 0, true, w ? &w->output_norm : NULL};
    const spec out = {"output.weight", n_embd, n_vocab, false, w ? &w->output : NULL};
    const spec out_b = {"output.bias", n_vocab, 0, false, w ? &w->output_b : NULL};
    const spec freqs = {"rope_freqs.weight", c->d_head / 2, 0, false, w ? &w->rope_freqs : NULL};
    tqe_status st = TQE_OK;
    if ((st = visit(v, &embd)) || (st = visit(v, &norm)) || (st = visit(v, &out)) ||
        (arch->output_bias && (st = visit(v, &out_b))) ||
        (arch->rope_freqs && (st = visit(v, &freqs)))) {
        return st;
    }
    for (uint32_t il = 0; il < c->n_layers; il++) {
        tqe_layer_weights *lw = w != NULL ? &w->layers[il] : NULL;
        if ((st = visit_attention(v, il, lw)) || (st = visit_ffn(v, il, lw))) {
            return st;
        }
    }
    for (size_t i = 0; i < v->g->n_tensors; i++) {
        const char *name = v->g->tensors[i].name;
        if (!v->used[i]) {
            return tqe_fail(v->err, TQE_ERR_UNSUPPORTED,
                            "tensor '%s' is not part of a dense %s model%s", name, arch->name,
                            strstr(name, "_exps") != NULL || strstr(name, "gate_inp") != NULL
                                ? " (mixture-of-experts models are not supported)"
                                : "");
        }
    }
    return TQE_OK;
}

static tqe_status check_only(visitor *v, const spec *s, const tqe_gguf_tensor *t)
{
    (void)v;
    (void)s;
    (void)t;
    return TQE_OK;
}

tqe_status tqe_weights_check(const tqe_gguf *g, const tqe_config *c, bool *tied, tqe_error *err)
{
    uint8_t *used = calloc(g->n_tensors + 1, 1);
    if (used == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    visitor v = {.g = g, .c = c, .err = err, .used = used, .fn = check_only};
    const tqe_status st = visit_all(&v);
    free(used);
    *tied = tqe_gguf_find_tensor(g, "output.weight") == NULL;
    return st;
}

/* ---- Loading -------------------------------------------------------------------------------- */

ggml_backend_dev_t tqe_cpu_device(void)
{
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (dev == NULL) { /* a ggml whose backends are plugins */
        ggml_backend_load_all();
        dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    return dev;
}

static ggml_backend_buffer_type_t *extra_buffer_types(ggml_backend_dev_t dev)
{
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    ggml_backend_dev_get_extra_bufts_t fn = NULL;
    void *p = ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    memcpy(&fn, &p, sizeof(fn)); /* object to function pointer, as POSIX dlsym */
    return fn != NULL ? fn(dev) : NULL;
}

/* Would the backend multiply this matrix from that buffer type? Asked with an empty buffer, as the
 * answer depends on type and shape only. */
static bool buffer_type_takes(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft,
                              const tqe_gguf_tensor *t)
{
    const struct ggml_init_params ip = {ggml_tensor_overhead() * 4, NULL, true};
    struct ggml_context *ctx = ggml_init(ip);
    if (ctx == NULL) {
        return false;
    }
    struct ggml_tensor *w = ggml_new_tensor_2d(ctx, (enum ggml_type)t->type, t->ne[0], t->ne[1]);
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, t->ne[0], 512);
    struct ggml_tensor *y = ggml_mul_mat(ctx, w, x);
    bool ok = false;
    w->buffer = ggml_backend_buft_alloc_buffer(buft, 0);
    if (w->buffer != NULL) {
        ok = ggml_backend_dev_supports_op(dev, y);
        ggml_backend_buffer_free(w->buffer);
        w->buffer = NULL;
    }
    ggml_free(ctx);
    return ok;
}

/* Index of the extra buffer type for a matrix, or -1: keep the mapping. */
static int choose_extra(const visitor *v, const tqe_gguf_tensor *t)
{
    for (int i = 0; v->extra != NULL && v->extra[i] != NULL && i < TQE_MAX_EXTRA_BUFTS; i++) {
        if (buffer_type_takes(v->dev, v->extra[i], t)) {
            return i;
        }
    }
    return -1;
}

static void bind(ggml_backend_buffer_t buf, struct ggml_tensor *t, const void *addr)
{
    /* ggml has no const data pointer; the mapping is read-only and nothing writes weights. */
    (void)ggml_backend_tensor_alloc(buf, t, (void *)(uintptr_t)addr);
}

static struct ggml_tensor *new_tensor(struct ggml_context *ctx, const tqe_gguf_tensor *t,
                                      enum ggml_type type)
{
    struct ggml_tensor *x = t->ne[1] == 1 ? ggml_new_tensor_1d(ctx, type, t->ne[0])
                                          : ggml_new_tensor_2d(ctx, type, t->ne[0], t->ne[1]);
    ggml_set_name(x, t->name);
    return x;
}

/* A tensor whose bytes come later, after one buffer for all of its kind is there. */
static struct ggml_tensor *new_extra(visitor *v, const tqe_gguf_tensor *t, int i)
{
    struct ggml_context **ctx = &v->w->ctx_extra[i];
    if (*ctx == NULL) {
        const struct ggml_init_params ip = {ggml_tensor_overhead() * (v->g->n_tensors + 2), NULL,
                                            true};
        *ctx = ggml_init(ip);
    }
    if (*ctx == NULL) {
        return NULL;
    }
    struct ggml_tensor *x = ggml_new_tensor_2d(*ctx, (enum ggml_type)t->type, t->ne[0], t->ne[1]);
    ggml_set_name(x, t->name);
    return x;
}

static tqe_status load_one(visitor *v, const spec *s, const tqe_gguf_tensor *t)
{
    tqe_weights *w = v->w;
    const uint8_t *bytes = v->g->data + t->off;
    if (s->ne1 == 0 && t->type != GGML_TYPE_F32) {
        float *dst = w->widened + v->widened_off;
        v->widened_off += ((size_t)t->ne[0] + 15) & ~(size_t)15;
        ggml_get_type_traits((enum ggml_type)t->type)->to_float(bytes, dst, t->ne[0]);
        *s->slot = new_tensor(w->ctx_mapped, t, GGML_TYPE_F32);
        bind(w->buf_widened, *s->slot, dst);
        return TQE_OK;
    }
    /* Row lookup reads token_embd in its plain form. */
    const int extra = s->ne1 == 0 || s->slot == &w->tok_embd ? -1 : choose_extra(v, t);
    if (extra >= 0) {
        *s->slot = new_extra(v, t, extra);
        return *s->slot != NULL ? TQE_OK : tqe_fail(v->err, TQE_ERR_NOMEM, "out of memory");
    }
    *s->slot = new_tensor(w->ctx_mapped, t, (enum ggml_type)t->type);
    bind(w->buf_mapped, *s->slot, bytes);
    return TQE_OK;
}

/* A tied output head is token_embd itself, or a repacked second copy of it. */
static tqe_status tie_output(visitor *v)
{
    tqe_weights *w = v->w;
    w->tied = w->output == NULL;
    if (!w->tied) {
        return TQE_OK;
    }
    const tqe_gguf_tensor *t = tqe_gguf_find_tensor(v->g, "token_embd.weight");
    const int extra = choose_extra(v, t);
    w->output = extra >= 0 ? new_extra(v, t, extra) : w->tok_embd;
    return w->output != NULL ? TQE_OK : tqe_fail(v->err, TQE_ERR_NOMEM, "out of memory");
}

/* The mapped pages of a repacked tensor are not needed again: let the kernel have them first. */
static void drop_pages(const tqe_gguf *g, const tqe_gguf_tensor *t)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t first = (t->off + page - 1) / page * page;
    const size_t end = (t->off + t->n_bytes) / page * page;
    if (g->mapped && end > first) {
        (void)madvise((void *)(uintptr_t)(g->data + first), end - first, MADV_DONTNEED);
    }
}

static tqe_status fill_extra(visitor *v)
{
    tqe_weights *w = v->w;
    for (int i = 0; i < TQE_MAX_EXTRA_BUFTS; i++) {
        if (w->ctx_extra[i] == NULL) {
            continue;
        }
        w->buf_extra[i] = ggml_backend_alloc_ctx_tensors_from_buft(w->ctx_extra[i], v->extra[i]);
        if (w->buf_extra[i] == NULL) {
            return tqe_fail(v->err, TQE_ERR_NOMEM, "out of memory for repacked weights");
        }
        ggml_backend_buffer_set_usage(w->buf_extra[i], GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        struct ggml_tensor *x = ggml_get_first_tensor(w->ctx_extra[i]);
        for (; x != NULL; x = ggml_get_next_tensor(w->ctx_extra[i], x)) {
            const tqe_gguf_tensor *t = tqe_gguf_find_tensor(v->g, x->name);
            ggml_backend_tensor_set(x, v->g->data + t->off, 0, t->n_bytes);
            if (strcmp(t->name, "token_embd.weight") != 0) {
                drop_pages(v->g, t);
            }
        }
    }
    return TQE_OK;
}

static tqe_status prepare(visitor *v)
{
    tqe_weights *w = v->w;
    const tqe_gguf *g = v->g;
    const struct ggml_init_params ip = {ggml_tensor_overhead() * (g->n_tensors + 2), NULL, true};
    w->layers = calloc(v->c->n_layers, sizeof(*w->layers));
    w->ctx_mapped = ggml_init(ip);
    w->buf_mapped = ggml_backend_cpu_buffer_from_ptr((void *)(uintptr_t)g->data, g->size);
    size_t n_wide = 16;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const tqe_gguf_tensor *t = &g->tensors[i];
        if (t->ne[1] == 1 && vector_type(t->type) && t->type != GGML_TYPE_F32) {
            n_wide += ((size_t)t->ne[0] + 15) & ~(size_t)15;
        }
    }
    w->widened = aligned_alloc(64, n_wide * sizeof(float));
    if (w->widened != NULL) {
        w->buf_widened = ggml_backend_cpu_buffer_from_ptr(w->widened, n_wide * sizeof(float));
    }
    if (w->layers == NULL || w->ctx_mapped == NULL || w->buf_mapped == NULL || w->widened == NULL ||
        w->buf_widened == NULL) {
        return tqe_fail(v->err, TQE_ERR_NOMEM, "out of memory");
    }
    ggml_backend_buffer_set_usage(w->buf_mapped, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_set_usage(w->buf_widened, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    return TQE_OK;
}

tqe_status tqe_weights_load(tqe_weights *w, const tqe_gguf *g, const tqe_config *c, bool no_repack,
                            tqe_error *err)
{
    memset(w, 0, sizeof(*w));
    uint8_t *used = calloc(g->n_tensors + 1, 1);
    ggml_backend_dev_t dev = tqe_cpu_device();
    if (used == NULL || dev == NULL) {
        free(used);
        return tqe_fail(err, TQE_ERR_NOMEM,
                        dev == NULL ? "this ggml has no CPU backend" : "out of memory");
    }
    visitor v = {.g = g, .c = c, .err = err, .used = used, .fn = load_one, .w = w, .dev = dev};
    v.extra = no_repack ? NULL : extra_buffer_types(dev);
#ifdef MADV_POPULATE_READ
    if (g->mapped) { /* read the file now, in order, not page by page during the first prompt */
        (void)madvise((void *)(uintptr_t)g->data, g->size, MADV_POPULATE_READ);
    }
#endif
    tqe_status st = TQE_OK;
    if ((st = prepare(&v)) == TQE_OK && (st = visit_all(&v)) == TQE_OK &&
        (st = tie_output(&v)) == TQE_OK) {
        st = fill_extra(&v);
    }
    free(used);
    if (st != TQE_OK) {
        tqe_weights_free(w);
    }
    return st;
}

void tqe_weights_free(tqe_weights *w)
{
    for (int i = 0; i < TQE_MAX_EXTRA_BUFTS; i++) {
        ggml_backend_buffer_free(w->buf_extra[i]);
        ggml_free(w->ctx_extra[i]);
    }
    ggml_backend_buffer_free(w->buf_mapped);
    ggml_backend_buffer_free(w->buf_widened);
    ggml_free(w->ctx_mapped);
    free(w->widened);
    free(w->layers);
    memset(w, 0, sizeof(*w));
}
