/* SPDX-License-Identifier: MIT */
/* bench_attn.h — `tq bench attn`: what the run measures and the report shows. */
#ifndef TQ_APP_BENCH_ATTN_H
#define TQ_APP_BENCH_ATTN_H

#include "args.h"
#include "attn_data.h"
#include "engine.h"

#include <stdio.h>

enum { ATTN_MAX_SIDES = 48, ATTN_MAX_ROUNDS = 1000 };

/* One contestant at one context length. */
typedef struct attn_side {
    char name[TQ_SCHEME_TEXT_BYTES]; /* scheme, or "q8_0/q4_0@head" */
    bool is_peer;
    tqe_peer_attn *peer;
    tq_cache *cache;
    tq_view view;
    size_t bytes;         /* of keys and values, which must be read once */
    double *seconds;      /* [rounds] */
    double error, stored; /* relative RMS; stored: of ours over the stored bytes */
} attn_side;

/* What a curve of the plot is made of. */
typedef struct attn_point {
    uint32_t n_kv, side;
    double seconds, floor;
} attn_point;

typedef struct attn_bench {
    attn_shape shape; /* n_kv: of the context at work */
    uint32_t n_threads, n_rounds, isa;
    bool hot, cpu_clock;
    float sigma;
    const char *csv_name, *plot_name;
    /* Flags as given; names of the sides. */
    char names[ATTN_MAX_SIDES][TQ_SCHEME_TEXT_BYTES];
    uint32_t n_ours, n_sides;
    arg_counts contexts;

    team *team;
    attn_side sides[ATTN_MAX_SIDES];
    uint32_t n_done;                      /* rounds of this context */
    double read_seconds[ATTN_MAX_ROUNDS]; /* of read_bytes of memory, the best piece of a round */
    size_t read_bytes;
    char cpu[128];
    double load;
    FILE *csv;
    attn_point points[ATTN_MAX_SIDES * ARG_LIST_MAX];
    size_t n_points;
} attn_bench;

bool attn_report_open(attn_bench *b);       /* the CSV */
void attn_report_head(const attn_bench *b); /* what and where */
bool attn_report_context(attn_bench *b);    /* after the rounds of one context */
bool attn_report_close(attn_bench *b);      /* the CSV's end, and the plot */

#endif
