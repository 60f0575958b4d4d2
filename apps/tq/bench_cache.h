/* SPDX-License-Identifier: MIT */
/* bench_cache.h — `tq bench cache`: what the run measures and the report shows. */
#ifndef TQ_APP_BENCH_CACHE_H
#define TQ_APP_BENCH_CACHE_H

#include "attn_data.h"
#include "bench.h"

enum { CACHE_STEP = 512, CACHE_ROLLBACK = 32, CACHE_MAX_SIDES = 32, CACHE_MAX_LAYERS = 256 };

/* What is timed, in seconds of a round. */
typedef enum action {
    APPEND, /* all tokens, CACHE_STEP at a time */
    ONE,    /* a token more */
    FORK,
    COPY, /* the first token of a fork, which copies the page that both have */
    CUT,  /* drop the last CACHE_ROLLBACK tokens */
    EXPORT,
    IMPORT,
    N_ACTIONS
} action;

typedef struct cache_side {
    char name[TQ_SCHEME_TEXT_BYTES];
    tq_scheme scheme;
    tq_cache *cache;
    size_t planned, allocated, resident; /* bytes */
    size_t bytes_per_token, page_bytes;  /* exported: of all pages */
    uint32_t seq;
    uint64_t fits; /* tokens in --memory */
    double seconds[N_ACTIONS][BENCH_MAX_ROUNDS];
} cache_side;

typedef struct cache_bench {
    attn_shape shape;
    uint32_t n_layers, n_rounds, isa;
    uint64_t memory;
    double (*now)(void); /* the clock */
    bool cpu_time;
    const char *csv_name, *plot_name;
    save_file csv;
    bench_machine machine;
    team *team;
    cache_side sides[CACHE_MAX_SIDES];
    size_t n_sides;
    float *k, *v;  /* [CACHE_STEP] tokens */
    uint8_t *page; /* the largest one */
    uint8_t *file; /* exported pages, back to back */
    size_t file_bytes;
    tq_layer layers[CACHE_MAX_LAYERS];
} cache_bench;

bool cache_open_csv(cache_bench *b); /* before the work */
void cache_put_tables(const cache_bench *b);
bool cache_write_csv(cache_bench *b); /* all rows, and closes it */
bool cache_draw(const cache_bench *b);

#endif
