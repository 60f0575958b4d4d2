/* SPDX-License-Identifier: MIT */
/* evaluation.h — what `tq eval` gathers and the files that show it share. */
#ifndef TQ_APP_EVALUATION_H
#define TQ_APP_EVALUATION_H

#include "args.h"
#include "engine.h"
#include "eval.h"

#include <jansson.h>
#include <stdio.h>

typedef struct eval_text {
    const char *path;
    size_t n_bytes, n_tokens, n_windows;
} eval_text;

/* A question and where it belongs in the heat map. */
typedef struct eval_needle {
    int32_t *ids;
    size_t n, n_answer;
    uint32_t length; /* nominal tokens */
    double depth;
} eval_needle;

typedef struct evaluation {
    /* what is measured */
    const char *model_path;
    tqe_model_info model;
    uint64_t fingerprint;
    uint32_t n_ctx, from, n_buckets, bucket_width, batch;
    bool no_bos;
    eval_text texts[ARG_LIST_MAX];
    size_t n_texts;
    int32_t *windows; /* [n_windows][n_ctx] */
    size_t n_windows;
    eval_needle *needles;
    size_t n_needles;
    const char *needle_source; /* file or "synthetic", NULL: none */
    tqe_eval_side sides[TQE_EVAL_MAX_SIDES];
    size_t n_sides;
    /* what was found */
    tqe_eval_record *records; /* [n_windows][n_sides] */
    size_t n_windows_done;
    bool *hits; /* [n_needles][n_sides] */
    size_t n_needles_done;
} evaluation;

/* ---- eval_input.c: texts and needles. A message was written when these return false. ---- */

/* Read the texts and cut n windows from them, as equal a share from each as can be; n 0: 8, or
 * fewer where there are no more. */
bool eval_read_texts(evaluation *e, const tqe_model *m, const arg_strings *files, size_t n);
/* Needles of a JSONL file. */
bool eval_read_needles(evaluation *e, const tqe_model *m, const char *path);
/* `count` needles for each of 5 lengths up to n_ctx and 5 depths. The first text lends prose. */
bool eval_make_needles(evaluation *e, const tqe_model *m, uint32_t n_ctx, uint32_t count);
void eval_free_input(evaluation *e);

/* ---- eval_state.c: the sidecar of an evaluation that may be killed ---- */

/* Take over what a state file holds. No such file: nothing to take. False: it is damaged or of
 * another evaluation; a message names what is wrong. */
bool eval_load_state(evaluation *e, const char *path);
bool eval_save_state(const evaluation *e, const char *path);

/* ---- eval_summary.c: from records to what is shown ---- */

typedef struct eval_row {
    const tqe_eval_side *side;
    const tqe_eval_side *reference;       /* NULL: this side is the reference of all */
    char label[TQ_SCHEME_TEXT_BYTES + 8]; /* "tcq4,kmean=a.kmean", "llama q4_0" */
    char name[TQ_SCHEME_TEXT_BYTES + 8];  /* "tcq4,kmean": without the files' names, if that is
                                             still no other side's */
    double bits;                          /* per element of keys and values, all included */
    double bytes_per_token;
    tqe_estimate kl_mean, kl_median, kl_p99, same_top, ppl;
    tqe_estimate ppl_change; /* factor to the reference's, paired */
    double bucket_kl[TQE_EVAL_MAX_BUCKETS], bucket_same_top[TQE_EVAL_MAX_BUCKETS];
    tqe_estimate needles; /* fraction right; NaN: not asked */
    bool on_front;        /* no other side has at most its bits and less KL */
} eval_row;

/* rows [n_sides]. False: no memory. */
bool eval_summarise(const evaluation *e, eval_row *rows);
/* KL of side a over that of side b, paired over windows. */
tqe_estimate eval_kl_ratio(const evaluation *e, size_t a, size_t b);
/* Of a side with an exact one beside it: its KL over that of the other, and the KL between the two
 * over that of the other; what the arithmetic adds, with chance in it and without. NaN: no such
 * side. */
tqe_estimate eval_kl_over_exact(const evaluation *e, size_t side);
tqe_estimate eval_kl_added(const evaluation *e, size_t side);
/* Is there anything to compare: our schemes have a place on the chart, references have not. */
bool eval_is_reference(const evaluation *e, size_t side);

/* Lengths and depths of the needles in rising order; each needs room for n_needles. */
size_t eval_needle_lengths(const evaluation *e, uint32_t *dst);
size_t eval_needle_depths(const evaluation *e, double *dst);
/* Right answers of a side in a cell, of *n; length 0 or depth below 0: any. */
size_t eval_needle_hits(const evaluation *e, size_t side, uint32_t length, double depth, size_t *n);

/* The change of perplexity in percent, for two digits after the point: no "-0.00". */
double eval_ppl_percent(const eval_row *r);
/* "0.123", "12.3", "123": three digits that count. dst needs 32 bytes. Returns dst. */
const char *eval_number(char dst[32], double v);
/* "128-256", the positions of a bucket. */
const char *eval_bucket_name(const evaluation *e, size_t bucket, char dst[32]);

/* ---- eval_table.c, eval_json.c, eval_html.c ---- */

void eval_put_tables(const evaluation *e, const eval_row *rows);
bool eval_write_csv(const evaluation *e, const eval_row *rows, const char *path);
bool eval_write_json(const evaluation *e, const eval_row *rows, const char *path);
bool eval_write_html(const evaluation *e, const eval_row *rows, const char *path);

/* ---- eval_plot.c: gnuplot ---- */

/* Is gnuplot there? A message was written when not. */
bool eval_plot_check(void);

typedef enum eval_figure {
    EVAL_FIG_BITS,     /* KL against bits */
    EVAL_FIG_POSITION, /* KL against position */
    EVAL_FIG_SAME_TOP,
    EVAL_FIG_NEEDLES
} eval_figure;

/* The figure as an SVG element, malloc'ed, or NULL (a message was written). */
char *eval_plot(const evaluation *e, const eval_row *rows, eval_figure figure);

#endif
