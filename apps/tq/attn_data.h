/* SPDX-License-Identifier: MIT */
/* attn_data.h — keys, values and queries that a benchmark of attention makes up, and what attention
 * over them is in float64. */
#ifndef TQ_APP_ATTN_DATA_H
#define TQ_APP_ATTN_DATA_H

#include "team.h"
#include "turboquant.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct attn_shape {
    uint32_t n_heads, n_kv_heads, d_k, d_v, q_len, n_kv;
    float scale;
} attn_shape;

/* Elements near N(0, 1), the same for the same token and head on every machine.
 * k [n][n_kv_heads][d_k] and v [n][n_kv_heads][d_v] of tokens [first, first + n). */
void attn_data_rows(const attn_shape *s, float *k, float *v, uint32_t first, uint32_t n);
/* q [q_len][n_heads][d_k]; sigma: standard deviation of the logits. */
void attn_data_queries(const attn_shape *s, float *q, float sigma);

/* Query tokens that are checked: the first, the middle and the last one, or fewer. */
enum { ATTN_CHECKED = 3 };
uint32_t attn_checked(const attn_shape *s, uint32_t at[ATTN_CHECKED]);

/* Attention of the checked queries in float64: want [checked][n_heads][d_v]. From the rows as made
 * up, or with a view from those that it stores. False: out of memory, a message was written. */
bool attn_oracle(const attn_shape *s, const float *q, const tq_view *view, team *t, double *want);

/* Root mean square of out - want over that of want, over the checked queries.
 * out [q_len][n_heads][d_v]. */
double attn_error(const attn_shape *s, const float *out, const double *want);

#endif
