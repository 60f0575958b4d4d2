/* SPDX-License-Identifier: MIT */
/* gen_model.c — writes tiny models that both engines load.
 *
 * Weights are drawn so that activations keep their size through the layers and logits spread by
 * about one: differences between engines are then neither hidden nor blown up. Vocabularies are
 * the smallest that libllama accepts: all 256 bytes, a few merges, the control tokens of ChatML.
 */
#include "gen_model.h"

#include "gguf.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_TOKENS_MAX 512

uint64_t gen_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Sum of four uniforms: close to Gaussian, variance 1, no libm (the same on every machine). */
static float gaussian(uint64_t *state)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        sum += (float)(gen_next(state) >> 40) * (1.0f / 16777216.0f) - 0.5f;
    }
    return sum * 1.7320508f;
}

gen_model gen_model_of(const char *arch)
{
    const bool qwen2 = strcmp(arch, "qwen2") == 0;
    const bool qwen3 = strcmp(arch, "qwen3") == 0;
    const gen_model m = {
        .arch = arch,
        .seed = 1,
        .n_layers = 2,
        .n_embd = 64,
        .n_ff = 96,
        .n_heads = 4,
        .n_kv_heads = 2,
        .d_head = qwen3 ? 64 : 0,
        .untied = !qwen3,
        .qkv_bias = qwen2,
        .rope_base = qwen3 ? 1e6f : 0.0f,
        .type = GGML_TYPE_F32,
    };
    return m;
}

/* ---- Vocabulary
 * ---------------------------------------------------------------------------------- */

typedef struct vocab {
    char text[N_TOKENS_MAX][16];
    const char *ptr[N_TOKENS_MAX];
    float score[N_TOKENS_MAX];
    int32_t type[N_TOKENS_MAX];
    size_t n;
} vocab;

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6 };

static void add(vocab *v, const char *text, int32_t type, float score)
{
    (void)snprintf(v->text[v->n], sizeof(v->text[0]), "%s", text);
    v->ptr[v->n] = v->text[v->n];
    v->type[v->n] = type;
    v->score[v->n] = score;
    v->n++;
}

/* The printable stand-in of a byte in byte-level BPE: itself when printable Latin-1, else the next
 * free code point from U+0100 on (GPT-2's table). */
static void bpe_byte(char out[4], unsigned b)
{
    unsigned cp = b;
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    if (!printable) {
        cp = 0x100;
        for (unsigned x = 0; x < b; x++) {
            cp += !((x >= 0x21 && x <= 0x7e) || (x >= 0xa1 && x <= 0xac) || x >= 0xae);
        }
    }
    if (cp < 0x80) {
        out[0] = (char)cp;
        out[1] = '\0';
    } else {
        out[0] = (char)(0xc0 | (cp >> 6));
        out[1] = (char)(0x80 | (cp & 0x3f));
        out[2] = '\0';
    }
}

static void write_bpe(struct gguf_context *g, vocab *v, bool llama3)
{
    static const char *const merges[] = {"t h", "th e",       "i n",          "a n",
                                         "e r", "\xc4\xa0 t", "\xc4\xa0t he", "o n"};
    for (unsigned b = 0; b < 256; b++) {
        char s[4];
        bpe_byte(s, b);
        add(v, s, NORMAL, 0.0f);
    }
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++) {
        char joined[16];
        const char *space = strchr(merges[i], ' ');
        (void)snprintf(joined, sizeof(joined), "%.*s%s", (int)(space - merges[i]), merges[i],
                       space + 1);
        add(v, joined, NORMAL, 0.0f);
    }
    add(v, "<|endoftext|>", CONTROL, 0.0f);
    add(v, "<|im_start|>", CONTROL, 0.0f);
    add(v, "<|im_end|>", CONTROL, 0.0f);
    gguf_set_val_str(g, "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(g, "tokenizer.ggml.pre", llama3 ? "llama-bpe" : "gpt-2");
    gguf_set_arr_str(g, "tokenizer.ggml.merges", (const char **)(uintptr_t)merges,
                     sizeof(merges) / sizeof(merges[0]));
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", (uint32_t)v->n - 3);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", (uint32_t)v->n - 1);
    gguf_set_val_str(g, "tokenizer.chat_template",
                     "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}");
}

static void write_spm(struct gguf_context *g, vocab *v)
{
    static const char *const pieces[] = {"\xe2\x96\x81",
                                         "t",
                                         "h",
                                         "e",
                                         "a",
                                         "n",
                                         "i",
                                         "o",
                                         "\xe2\x96\x81t",
                                         "he",
                                         "\xe2\x96\x81the",
                                         "in",
                                         "an",
                                         ("\xe2\x96\x81"
                                          "a"),
                                         "on",
                                         "s",
                                         "r"};
    add(v, "<unk>", UNKNOWN, 0.0f);
    add(v, "<s>", CONTROL, 0.0f);
    add(v, "</s>", CONTROL, 0.0f);
    for (unsigned b = 0; b < 256; b++) {
        char s[8];
        (void)snprintf(s, sizeof(s), "<0x%02X>", b);
        add(v, s, BYTE, 0.0f);
    }
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        add(v, pieces[i], NORMAL, (float)strlen(pieces[i]) - 10.0f);
    }
    gguf_set_val_str(g, "tokenizer.ggml.model", "llama");
    gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, v->score, v->n);
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_u32(g, "tokenizer.ggml.unknown_token_id", 0);
}

/* ---- Keys
 * ------------------------------------------------------------------------------------------ */

static const char *key(const gen_model *m, const char *suffix)
{
    static char buf[128];
    (void)snprintf(buf, sizeof(buf), "%s.%s", m->arch, suffix);
    return buf;
}

static void write_keys(struct gguf_context *g, const gen_model *m)
{
    gguf_set_val_str(g, "general.architecture", m->arch);
    gguf_set_val_str(g, "general.name", "tiny random");
    gguf_set_val_u32(g, key(m, "context_length"), 256);
    gguf_set_val_u32(g, key(m, "embedding_length"), m->n_embd);
    gguf_set_val_u32(g, key(m, "block_count"), m->n_layers);
    gguf_set_val_u32(g, key(m, "feed_forward_length"), m->n_ff);
    gguf_set_val_u32(g, key(m, "attention.head_count"), m->n_heads);
    gguf_set_val_u32(g, key(m, "attention.head_count_kv"), m->n_kv_heads);
    gguf_set_val_f32(g, key(m, "attention.layer_norm_rms_epsilon"), 1e-5f);
    if (m->d_head != 0) {
        gguf_set_val_u32(g, key(m, "attention.key_length"), m->d_head);
        gguf_set_val_u32(g, key(m, "attention.value_length"), m->d_head);
    }
    if (m->rope_base != 0.0f) {
        gguf_set_val_f32(g, key(m, "rope.freq_base"), m->rope_base);
    }
    if (m->rope_scaling != NULL) {
        gguf_set_val_str(g, key(m, "rope.scaling.type"), m->rope_scaling);
        gguf_set_val_f32(g, key(m, "rope.scaling.factor"), 4.0f);
        gguf_set_val_u32(g, key(m, "rope.scaling.original_context_length"), 64);
    }
    if (m->window != 0) {
        gguf_set_val_u32(g, key(m, "attention.sliding_window"), m->window);
    }
}

/* ---- Tensors
 * ---------------------------------------------------------------------------------------- */

typedef struct writer {
    const gen_model *m;
    struct gguf_context *g;
    struct ggml_context *ctx;
    uint64_t rng;
} writer;

static void put(writer *w, const char *name, int64_t ne0, int64_t ne1, enum ggml_type type,
                float mean, float sd)
{
    struct ggml_tensor *t = ne1 == 1 ? ggml_new_tensor_1d(w->ctx, type, ne0)
                                     : ggml_new_tensor_2d(w->ctx, type, ne0, ne1);
    ggml_set_name(t, name);
    const size_t n = (size_t)(ne0 * ne1);
    float *x = malloc(n * sizeof(float));
    float *importance = malloc((size_t)ne0 * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        x[i] = mean + sd * gaussian(&w->rng);
        if (ne1 == 1 && w->m->round_vectors) {
            x[i] = ggml_fp16_to_fp32(ggml_fp32_to_fp16(x[i]));
        }
    }
    for (int64_t i = 0; i < ne0; i++) {
        importance[i] = 1.0f;
    }
    if (w->m->nan_tensor != NULL && strcmp(w->m->nan_tensor, name) == 0) {
        x[0] = NAN;
    }
    if (type == GGML_TYPE_F32) {
        memcpy(t->data, x, n * sizeof(float));
    } else {
        (void)ggml_quantize_chunk(type, x, t->data, 0, ne1, ne0, importance);
    }
    free(x);
    free(importance);
    gguf_add_tensor(w->g, t);
}

static void matrix(writer *w, const char *name, int64_t n_in, int64_t n_out)
{
    put(w, name, n_in, n_out, w->m->type, 0.0f, 1.0f / sqrtf((float)n_in));
}

static void vector(writer *w, const char *name, int64_t n, float mean)
{
    const enum ggml_type type = w->m->f16_vectors ? GGML_TYPE_F16 : GGML_TYPE_F32;
    put(w, name, n, 1, type, mean, 0.1f);
}

static const char *blk(uint32_t il, const char *suffix)
{
    static char buf[64];
    (void)snprintf(buf, sizeof(buf), "blk.%u.%s", il, suffix);
    return buf;
}

static void put_layer(writer *w, uint32_t il)
{
    const gen_model *m = w->m;
    const int64_t d = m->d_head != 0 ? m->d_head : m->n_embd / m->n_heads;
    const int64_t q = m->n_heads * d;
    const int64_t kv = m->n_kv_heads * d;
    vector(w, blk(il, "attn_norm.weight"), m->n_embd, 1.0f);
    if (m->fused_qkv) {
        matrix(w, blk(il, "attn_qkv.weight"), m->n_embd, q + 2 * kv);
        if (m->qkv_bias) {
            vector(w, blk(il, "attn_qkv.bias"), q + 2 * kv, 0.0f);
        }
    } else {
        matrix(w, blk(il, "attn_q.weight"), m->n_embd, q);
        matrix(w, blk(il, "attn_k.weight"), m->n_embd, kv);
        matrix(w, blk(il, "attn_v.weight"), m->n_embd, kv);
        if (m->qkv_bias) {
            vector(w, blk(il, "attn_q.bias"), q, 0.0f);
            vector(w, blk(il, "attn_k.bias"), kv, 0.0f);
            vector(w, blk(il, "attn_v.bias"), kv, 0.0f);
        }
    }
    if (strcmp(m->arch, "qwen3") == 0) {
        vector(w, blk(il, "attn_q_norm.weight"), d, 1.0f);
        vector(w, blk(il, "attn_k_norm.weight"), d, 1.0f);
    }
    matrix(w, blk(il, "attn_output.weight"), q, m->n_embd);
    vector(w, blk(il, "ffn_norm.weight"), m->n_embd, 1.0f);
    matrix(w, blk(il, "ffn_gate.weight"), m->n_embd, m->n_ff);
    matrix(w, blk(il, "ffn_up.weight"), m->n_embd, m->n_ff);
    matrix(w, blk(il, "ffn_down.weight"), m->n_ff, m->n_embd);
    if (m->extra_bias) {
        vector(w, blk(il, "attn_output.bias"), m->n_embd, 0.0f);
        vector(w, blk(il, "ffn_gate.bias"), m->n_ff, 0.0f);
        vector(w, blk(il, "ffn_up.bias"), m->n_ff, 0.0f);
        vector(w, blk(il, "ffn_down.bias"), m->n_embd, 0.0f);
    }
}

static void put_rope_freqs(writer *w, int64_t n)
{
    struct ggml_tensor *t = ggml_new_tensor_1d(w->ctx, GGML_TYPE_F32, n);
    ggml_set_name(t, "rope_freqs.weight");
    for (int64_t i = 0; i < n; i++) { /* high frequencies stay, low ones slow down eightfold */
        ((float *)t->data)[i] = i < n / 2 ? 1.0f : 1.0f + 7.0f * (float)(i - n / 2) / (float)n;
    }
    gguf_add_tensor(w->g, t);
}

bool gen_model_write(const gen_model *m, const char *path)
{
    struct gguf_context *g = gguf_init_empty();
    vocab *v = calloc(1, sizeof(*v));
    write_keys(g, m);
    if (m->spm) {
        write_spm(g, v);
    } else {
        write_bpe(g, v, m->rope_freqs);
    }
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", v->ptr, v->n);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, v->type, v->n);
    const struct ggml_init_params ip = {(size_t)64 << 20, NULL, false};
    writer w = {m, g, ggml_init(ip), m->seed};
    const int64_t n_vocab = (int64_t)v->n;
    put(&w, "token_embd.weight", m->n_embd, n_vocab, m->type, 0.0f,
        m->untied ? 1.0f : 1.0f / sqrtf((float)m->n_embd));
    for (uint32_t il = 0; il < m->n_layers; il++) {
        put_layer(&w, il);
    }
    vector(&w, "output_norm.weight", m->n_embd, 1.0f);
    if (m->untied) {
        matrix(&w, "output.weight", m->n_embd, n_vocab);
    }
    if (m->output_bias) {
        vector(&w, "output.bias", n_vocab, 0.0f);
    }
    if (m->rope_freqs) {
        put_rope_freqs(&w, (m->d_head != 0 ? m->d_head : m->n_embd / m->n_heads) / 2);
    }
    if (m->extra_tensor != NULL) {
        vector(&w, m->extra_tensor, 32, 0.0f);
    }
    const bool ok = gguf_write_to_file(g, path, false);
    ggml_free(w.ctx);
    gguf_free(g);
    free(v);
    return ok;
}

/* ---- Temporary files
 * ------------------------------------------------------------------------------- */

static char temp_dir[256];

static void remove_temp_dir(void)
{
    DIR *d = opendir(temp_dir);
    if (d == NULL) {
        return;
    }
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] != '.') {
            char path[768];
            (void)snprintf(path, sizeof(path), "%s/%s", temp_dir, e->d_name);
            (void)unlink(path);
        }
    }
    (void)closedir(d);
    (void)rmdir(temp_dir);
}

const char *gen_temp_path(const char *name)
{
    static char path[512];
    if (temp_dir[0] == '\0') {
        const char *base = getenv("TMPDIR");
        (void)snprintf(temp_dir, sizeof(temp_dir), "%s/tq-engine-XXXXXX",
                       base != NULL ? base : "/tmp");
        if (mkdtemp(temp_dir) == NULL) {
            abort();
        }
        (void)atexit(remove_temp_dir);
    }
    (void)snprintf(path, sizeof(path), "%s/%s", temp_dir, name);
    return path;
}
