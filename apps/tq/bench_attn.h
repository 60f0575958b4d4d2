/* SPDX-License-Identifier: MIT */
/* bench_attn.h — `tq bench attn`: what the run measures and the report shows. */
#ifndef TQ_APP_BENCH_ATTN_H
#define TQ_APP_BENCH_ATTN_H

#include "args.h"
#include "attn_data.h"
#include "bench.h"
#include "engine.h"

#include <stdio.h>

enum {
    ATTN_MAX_SIDES = 48,
    ATTN_STEP = 512 /* tokens that are made and stored at once, or those of the queries */
};

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
    double seconds;
    size_t bytes;
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
    uint32_t n_done;                       /* rounds of this context */
    uint32_t n_reported;                   /* contexts whose rows are printed */
    double read_seconds[BENCH_MAX_ROUNDS]; /* of read_bytes of memory, the best piece of a round */
    size_t read_bytes;
    double best_read; /* bytes per second, of all contexts */
    bench_machine machine;
    save_file csv;
    attn_point points[ATTN_MAX_SIDES * ARG_LIST_MAX];
    size_t n_points;
} attn_bench;

/* Buffers that all contexts and sides use. */
typedef struct attn_buffers {
    uint8_t *read; /* [read_total] */
    size_t read_total;
    float *q, *out;
    double *original, *stored; /* float64: [checked][heads][d_v] */
    float *k, *v;              /* tokens: ATTN_STEP, or q_len if more */
    uint8_t *scratch;          /* partials, then work of each thread */
    size_t scratch_bytes;
} attn_buffers;

/* ---- bench_attn_sides.c ---- */

/* Seconds by the clock of the run. */
double (*attn_clock(const attn_bench *b))(void);
tq_layer attn_layer(const attn_bench *b, uint32_t side);
/* "q8_0/q4_0@head" -> type and layout. type: as large as name. */
tqe_peer_attn_params attn_peer_params(const attn_bench *b, const char *name, char *type);
/* False: a message was written, or the fill was interrupted. */
bool attn_open_side(attn_bench *b, uint32_t i);
bool attn_fill_sides(attn_bench *b, const attn_buffers *m);
bool attn_run_side(attn_bench *b, attn_side *s, const attn_buffers *m, double *seconds);
void attn_close_sides(attn_bench *b);

/* ---- bench_attn_run.c ---- */

/* All contexts; returns the exit code. */
int attn_bench_run(attn_bench *b);

/* ---- bench_attn_report.c ---- */

bool attn_report_open(attn_bench *b);       /* the CSV */
void attn_report_head(const attn_bench *b); /* what and where */
bool attn_report_context(attn_bench *b);    /* after the rounds of one context */
/* ok: keep the CSV, and draw the plot. False: not ok, or a message was written. */
bool attn_report_close(attn_bench *b, bool ok);

#endif
