/* SPDX-License-Identifier: MIT */
/* attn_case.h — one attention problem of the tests: a cache with random rows, queries, and the
 * answer in float64. */
#ifndef TQ_TEST_ATTN_CASE_H
#define TQ_TEST_ATTN_CASE_H

#include "turboquant.h"

typedef struct attn_case {
    const char *scheme;
    uint32_t n_kv, group, d_k, d_v, n_tokens;
    uint32_t v_in_k;    /* as in tq_layer; v is then NULL */
    uint32_t isa_mask;  /* 0: all */
    tq_attn_config cfg; /* n_q_heads and, when 0, scale are filled in */

    tq_cache *cache;
    uint32_t seq;
    tq_view view;
    float *k, *v; /* [n_tokens][n_kv][d], what was appended */
    float *q;     /* [q_len][n_q_heads][d_k] */
    float *out;   /* [q_len][n_q_heads][d_v] */
    size_t q_stride, out_stride, n_out;
} attn_case;

/* Fill in the rest: N(0,1) rows and queries, all tokens appended and committed. */
void attn_case_open(attn_case *c, uint64_t seed);
void attn_case_close(attn_case *c);

/* Append c->k and c->v as changed by the caller to an emptied sequence. */
void attn_case_refill(attn_case *c);

/* Run with exactly the scratch that the plan asks for; result in out. */
void attn_case_run(attn_case *c);

/* Memory for partials or work, aligned, no larger than asked for, full of NaN; free() takes it. */
void *attn_case_memory(size_t bytes);

/* The answer in float64, from the decoded bytes, or with `original` from the rows as they were
 * before encoding. want [q_len][n_q_heads][d_v]. */
void attn_case_oracle(const attn_case *c, double *want, int original);

/* What the fused path may differ from the answer of the decoded bytes: 16-bit integers, or bytes
 * for coarse values and the queries of coarse keys (src/cpu/kernels.h). About 0.1 of the error of
 * the format itself; test_attn_error*.c hold what it adds to that. */
double attn_case_rounding(const attn_case *c);
double attn_format_rounding(tq_format keys, tq_format values);

/* Root mean square of out - want, relative to that of want. */
double attn_case_error(const attn_case *c, const double *want);

#endif
