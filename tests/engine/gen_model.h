/* SPDX-License-Identifier: MIT */
/* gen_model.h — tiny GGUF models with random weights, the same bytes every time. */
#ifndef TQ_TESTS_GEN_MODEL_H
#define TQ_TESTS_GEN_MODEL_H

#include "ggml.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct gen_model {
    const char *arch; /* "llama", "qwen2", "qwen3", or another name for refusals */
    uint64_t seed;
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads;
    uint32_t d_head; /* 0: n_embd / n_heads, and no key_length keys */
    uint32_t window; /* 0: no key */
    bool spm;        /* SPM vocabulary, else BPE */
    bool untied;     /* output.weight */
    bool output_bias;
    bool qkv_bias;
    bool extra_bias; /* attn_output and FFN biases */
    bool fused_qkv;
    bool rope_freqs;          /* llama3 factors */
    bool round_vectors;       /* norms and biases hold values that F16 has */
    bool f16_vectors;         /* and are stored as F16 */
    const char *rope_scaling; /* NULL, "linear", "yarn" */
    float rope_base;          /* 0: no key */
    enum ggml_type type;      /* of matrices */
    const char *nan_tensor;   /* NULL, or a tensor that gets a NaN in its first row */
    const char *extra_tensor; /* NULL, or the name of a tensor that does not belong */
} gen_model;

/* A model of an architecture with everything else at its defaults. */
gen_model gen_model_of(const char *arch);

/* Write it. false: I/O error. */
bool gen_model_write(const gen_model *m, const char *path);

/* Names of temporary files, one folder per process, removed at exit. */
const char *gen_temp_path(const char *name);

/* Deterministic stream: splitmix64. */
uint64_t gen_next(uint64_t *state);

#endif
