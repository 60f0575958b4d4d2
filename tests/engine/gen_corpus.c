/* SPDX-License-Identifier: MIT */
/* gen_corpus.c — writes the seed corpus of fuzz_gguf: gen_corpus DIR
 *
 * One file per vocabulary and architecture, as small as a complete model can be; and the bare
 * headers of others, which the walk refuses only at their very end.
 */
#include "engine.h"
#include "gen_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int emit(const char *dir, const char *name, const gen_model *m, long keep)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (!gen_model_write(m, path) || (keep > 0 && truncate(path, keep) != 0)) {
        fprintf(stderr, "cannot write %s\n", path);
        return 1;
    }
    /* A seed that is refused early teaches the fuzzer nothing. */
    tqe_model_info info;
    tqe_error err = {TQE_OK, ""};
    if (keep == 0 && tqe_model_probe(path, &info, &err) != TQE_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    return 0;
}

static gen_model smallest(const char *arch)
{
    gen_model g = gen_model_of(arch);
    g.n_layers = 1;
    g.n_embd = 32;
    g.n_ff = 32;
    g.n_heads = 1;
    g.n_kv_heads = 1;
    g.d_head = 32;
    g.untied = false;
    g.type = GGML_TYPE_Q4_0;
    return g;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: gen_corpus DIR\n");
        return 2;
    }
    const char *dir = argv[1];
    gen_model g = smallest("qwen3");
    int bad = emit(dir, "qwen3-bpe", &g, 0);
    g = smallest("qwen2");
    g.qkv_bias = true;
    g.rope_scaling = "yarn";
    g.f16_vectors = true;
    bad |= emit(dir, "qwen2-yarn", &g, 0);
    g = smallest("llama");
    g.spm = true;
    g.window = 8;
    bad |= emit(dir, "llama-spm", &g, 0);
    g = smallest("llama");
    g.rope_freqs = true;
    g.fused_qkv = true;
    g.extra_bias = true;
    bad |= emit(dir, "llama-bpe", &g, 0);
    g = smallest("falcon");
    bad |= emit(dir, "unknown-arch", &g, 6000);
    g = smallest("llama");
    g.rope_scaling = "linear";
    bad |= emit(dir, "header-only", &g, 5000);
    return bad;
}
