/* SPDX-License-Identifier: MIT */
/* make_models.c — the small models that the cases run on, good ones and ones that tq must refuse,
 * written to the folder given as the only argument. */
#include "gen_model.h"

#include <stdio.h>

static int write_one(const char *dir, const char *name, const gen_model *m)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!gen_model_write(m, path)) {
        fprintf(stderr, "cannot write %s\n", path);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_models DIR\n");
        return 2;
    }
    gen_model good = gen_model_of("qwen3");
    good.d_head = 64;
    gen_model window = gen_model_of("llama");
    window.d_head = 128;
    gen_model unknown = gen_model_of("mamba");
    gen_model odd_head = gen_model_of("llama");
    odd_head.d_head = 88;
    return write_one(argv[1], "tiny.gguf", &good) | write_one(argv[1], "llama.gguf", &window) |
           write_one(argv[1], "unknown.gguf", &unknown) |
           write_one(argv[1], "head88.gguf", &odd_head);
}
