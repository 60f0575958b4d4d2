/* SPDX-License-Identifier: MIT */
/* attn_job.h — one part of attention: what attn.c plans and attn_paths.c computes.
 *
 * A part has a RESULT for each form of the view's rows, each with a softmax of its own: out
 * [rows][dv_pad] without the division by the sum, max [rows], sum [rows]. Row = query token of the
 * part * group + head of the group. Two results rather than one, because the sums of rotated
 * values and those of f16 values cannot be added before the former are rotated back.
 */
#ifndef TQ_ATTN_JOB_H
#define TQ_ATTN_JOB_H

#include "cache.h"

#define TQ_SUB_ROWS 48u /* rows between score and sum: their logits stay in the first cache */

enum { TQ_PATH_FUSED, TQ_PATH_TILED, TQ_PATH_DEQUANT };

typedef struct tq_attn_shape {
    uint32_t n_kv, group, d_k;
    uint32_t d_v; /* elements that are summed: of a stored value, so a whole key if it is in one */
    uint32_t d_out; /* elements of an output row */
    uint32_t n_tokens, q_len, window;
    int decode_values; /* FUSED: no kernel sums these values from their bytes */
    uint32_t n_forms;  /* results of a part: 1, or 2 where rows are kept in f16 too */
} tq_attn_shape;

/* Where a thread's scratch lies, in f32 from its start; each part 64-byte aligned. */
typedef struct tq_work_map {
    size_t q, bias, prep, s, alpha, span, tile, keys, values, total;
} tq_work_map;

typedef struct tq_attn_result {
    float *out, *max, *sum;
} tq_attn_result;

/* Which queries of which KV head, and where the results go. */
typedef struct tq_attn_job {
    const tq_attn_config *cfg;
    const tq_view *v;
    tq_attn_shape s;
    uint32_t kv_head;
    uint32_t q0, n_q; /* query tokens */
    uint32_t rows;    /* n_q * group */
    int has_next;     /* FUSED: this thread goes on with another part, which begins with */
    uint32_t next_head, next_token;
    tq_attn_result result[2];
    size_t out_stride;
    float *work;
    tq_work_map map;
} tq_attn_job;

static inline uint32_t tq_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t tq_max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint32_t tq_round_up(uint32_t a, uint32_t to)
{
    return (a / to + (a % to != 0)) * to;
}

/* Oldest token that query i sees. */
static inline uint32_t tq_first_visible(const tq_attn_shape *s, uint32_t i)
{
    uint32_t pos = s->n_tokens - s->q_len + i;
    return s->window != 0 && pos >= s->window ? pos - s->window + 1 : 0;
}

/* Tokens [t_begin, t_end), t_begin a multiple of 64. The queries are gathered, results reset. */
void tq_attn_fused(const tq_attn_job *j, uint32_t t_begin, uint32_t t_end);
void tq_attn_tiled(const tq_attn_job *j);
/* One query token; everything goes to result 0, decoded values. */
void tq_attn_dequant(const tq_attn_job *j);

#endif
