/* SPDX-License-Identifier: MIT */
/* setup.h — what the commands that run a model have in common: options, checks, opening. */
#ifndef TQ_APP_SETUP_H
#define TQ_APP_SETUP_H

#include "args.h"
#include "engine.h"

#define SETUP_DEFAULT_KV       "turbo:k8v3"
#define SETUP_MAX_CTX          ((double)TQE_MAX_CTX)
#define SETUP_MAX_THREADS      ((double)TQE_MAX_THREADS)
#define SETUP_MAX_PROMPT_BYTES ((size_t)256 << 20) /* 16 bytes for each of 2^24 tokens */

typedef struct setup {
    const char *model;
    const char *kv;
    const char *isa;
    uint32_t n_ctx;     /* 0: not given */
    uint32_t n_kept;    /* tokens of room for kept prompts */
    uint32_t n_threads; /* 0: not given */
    float temp, top_p, min_p;
    uint32_t top_k, seed;
} setup;

#define SETUP_INIT                                                                                 \
    {                                                                                              \
        .kv = SETUP_DEFAULT_KV, .temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f,         \
        .seed = 1                                                                                  \
    }

/* Option rows, so that a flag means and says the same in every command. */
#define OPT_MODEL(s)                                                                               \
    {                                                                                              \
        .group = "Input", .letter = 'm', .name = "model", .meta = "FILE", .kind = ARG_STRING,      \
        .dst = &(s).model, .help = "model to run, a GGUF file (required)"                          \
    }
#define OPT_KV(s)                                                                                  \
    {                                                                                              \
        .group = "Cache and machine", .name = "kv", .meta = "SCHEME", .kind = ARG_STRING,          \
        .dst = &(s).kv,                                                                            \
        .help = "how keys and values are stored: f32, f16, bf16, turbo:kKvV, turboB, tcqB and "    \
                "more, see tq(1) (default " SETUP_DEFAULT_KV ")"                                   \
    }
#define OPT_CTX(s)                                                                                 \
    {                                                                                              \
        .letter = 'c', .name = "ctx", .meta = "N", .kind = ARG_COUNT, .dst = &(s).n_ctx, .min = 1, \
        .max = SETUP_MAX_CTX,                                                                      \
        .help = "tokens that the context holds (default: what the model was trained for, at most " \
                "4096)"                                                                            \
    }
#define OPT_THREADS(s)                                                                             \
    {                                                                                              \
        .letter = 't', .name = "threads", .meta = "N", .kind = ARG_COUNT, .dst = &(s).n_threads,   \
        .min = 1, .max = SETUP_MAX_THREADS, .help = "threads (default: one per physical core)"     \
    }
#define OPT_ISA(s)                                                                                 \
    {                                                                                              \
        .name = "isa", .meta = "NAME", .kind = ARG_STRING, .dst = &(s).isa,                        \
        .help = "cache kernels: scalar, avx2, avx512 or neon (default: the best that runs here)"   \
    }
#define OPT_TEMP(s)                                                                                \
    {                                                                                              \
        .group = "Sampling", .name = "temp", .meta = "F", .kind = ARG_REAL, .dst = &(s).temp,      \
        .min = 0.001, .max = 100, .zero_ok = true,                                                 \
        .help = "temperature; 0 takes the likeliest token each time (default 0.8)"                 \
    }
#define OPT_TOP_K(s)                                                                               \
    {                                                                                              \
        .name = "top-k", .meta = "N", .kind = ARG_COUNT, .dst = &(s).top_k, .min = 0,              \
        .max = 1000000, .help = "keep the N likeliest tokens; 0: all (default 40)"                 \
    }
#define OPT_TOP_P(s)                                                                               \
    {                                                                                              \
        .name = "top-p", .meta = "F", .kind = ARG_REAL, .dst = &(s).top_p, .min = 0.0001,          \
        .max = 1,                                                                                  \
        .help = "keep the likeliest that reach probability F together; 1: all (default 0.95)"      \
    }
#define OPT_MIN_P(s)                                                                               \
    {                                                                                              \
        .name = "min-p", .meta = "F", .kind = ARG_REAL, .dst = &(s).min_p, .min = 0, .max = 1,     \
        .help = "keep those at least F times as likely as the best; 0: all (default 0.05)"         \
    }
#define OPT_SEED(s)                                                                                \
    {                                                                                              \
        .name = "seed", .meta = "N", .kind = ARG_COUNT, .dst = &(s).seed, .min = 0,                \
        .max = 4294967295.0,                                                                       \
        .help = "random seed; the same command gives the same text (default 1)"                    \
    }

/* Checks that need no model: --model given, scheme and ISA valid. False: a message was written. */
bool setup_check(const setup *s);
/* One --kv value; canonical gets TQ_SCHEME_TEXT_BYTES. */
bool setup_check_kv(const char *text, tq_scheme *scheme, char *canonical);
/* "avx2" -> TQ_ISA_AVX2 when this build and CPU have it; NULL -> TQ_ISA_ALL. */
bool setup_isa(const char *name, uint32_t *mask);
/* "scalar, avx2" of a mask. dst needs 64 bytes. Returns dst. */
const char *setup_isa_names(char dst[64], uint32_t mask);
/* The best ISA of a mask on this machine: "avx2". */
const char *setup_isa_best(uint32_t mask);

/* A warning when -t asks for more threads than there are CPUs. Threads wait by spinning: where one
 * must wait for a CPU, all do. */
void setup_warn_threads(uint32_t n_threads);

/* Load the model and open a session; a message was written when this returns false. */
bool setup_open(const setup *s, tqe_model **model, tqe_session **session);
bool setup_sampler(const setup *s, const tqe_model *model, tqe_sampler **sampler);

#endif
