/* SPDX-License-Identifier: MIT */
/* tuning.h — what the files of `tq tune` share. */
#ifndef TQ_APP_TUNING_H
#define TQ_APP_TUNING_H

#include "evaluation.h"
#include "tune.h"

/* What a window of the texts serves for; none serves for two. */
typedef enum tune_role {
    TUNE_CALIBRATE, /* mean of the keys */
    TUNE_SCAN,      /* what a format costs in one layer */
    TUNE_CHOOSE,    /* is the mean of use; which candidate is best */
    TUNE_FINAL,     /* held out: what is reported */
    TUNE_ROLES
} tune_role;

#define TUNE_MAX_CHOICES 64 /* pairs of formats for a layer */
#define TUNE_MAX_NAMED   16 /* candidates and uniform schemes */

/* A divergence that was measured. */
typedef struct tune_fact {
    char *key; /* the variant in words, see tune_key */
    uint32_t window;
    double kl;
} tune_fact;

/* Formats for keys and values that a layer may get. */
typedef struct tune_pair {
    tq_scheme scheme;
    char name[TQ_SCHEME_TEXT_BYTES];
    uint32_t bytes; /* of a token in one layer */
    /* Its cost in a layer is what scan[term[0]] costs there; with three terms plus that of term[1],
     * less that of term[2]: one side at a time with the other at its best, and both at it. */
    size_t n_terms, term[3];
} tune_pair;

/* A way to store all layers that may be the answer, or stands beside it. */
typedef struct tune_named {
    char label[TQ_SCHEME_TEXT_BYTES + 32];
    tq_scheme *layers; /* [n_layers] */
    bool mean;         /* with the static key mean */
    bool uniform;      /* a plain scheme, as anyone could name it */
    uint64_t bytes;    /* of a token */
    double predicted;  /* NaN: not known */
    double choose;     /* mean KL over those windows; NaN: not measured */
} tune_named;

typedef struct tuning {
    evaluation e; /* model, texts, windows */
    const tqe_model *model;
    tqe_tune_params params;
    const char *state; /* path */
    /* what is asked for */
    uint64_t budget; /* bytes of a token */
    double budget_bits;
    uint32_t context;              /* 0, or the budget comes from this and */
    uint64_t memory;               /* this */
    const char *output;            /* NAME */
    tq_scheme base;                /* of the layers that are not looked at, when one is scanned */
    uint32_t n_of[TUNE_ROLES];     /* windows */
    uint32_t *windows[TUNE_ROLES]; /* their indices */
    /* what was found */
    double *sums; /* of the keys' means, [n_layers][n_kv_heads][d_k] */
    uint32_t n_summed;
    float *k_mean; /* the same as a mean */
    bool use_mean;
    tqe_estimate mean_ratio;                /* of KL with it to KL without it */
    char mean_scheme[TQ_SCHEME_TEXT_BYTES]; /* for which */
    tune_fact *facts;
    size_t n_facts;
    tune_pair pairs[TUNE_MAX_CHOICES];
    size_t n_pairs;
    tq_scheme scan[TUNE_MAX_CHOICES]; /* what is measured in each layer */
    size_t n_scan;
    double base_kl;  /* of the base over the scan windows; 0 for f32 */
    double *scan_kl; /* [n_layers][n_scan], over the same windows */
    double *costs;   /* [n_layers][n_pairs], of scan_kl, above the base */
    tune_named named[TUNE_MAX_NAMED];
    size_t n_named;
    size_t final[TUNE_MAX_NAMED]; /* of named: those measured on held-out windows */
    size_t n_final;
    size_t winner, rival; /* of named: the best candidate, the best uniform scheme */
    bool fell_back;       /* the winner lost to the rival: the rival is the answer */
    tqe_estimate ratio;   /* KL of the winner over the rival's, held out, paired */
    double scan_measured; /* KL of the winner over the scan windows */
    /* progress */
    double start, noted;
    size_t n_done, n_total; /* tokens times caches */
    const char *stage;
} tuning;

/* ---- tune_state.c: facts, and the file that keeps them. Messages were written on failure. ---- */

/* A variant in words: "0-3 tcq4,4 tcq5v4+mean". malloc'ed; NULL: no memory. */
char *tune_key(const tuning *t, const tq_scheme *layers, bool mean);
/* NULL: not measured yet. */
const tune_fact *tune_find(const tuning *t, const char *key, uint32_t window);
bool tune_learn(tuning *t, const char *key, uint32_t window, double kl);
/* Take over what a state file holds; none is nothing to take. */
bool tune_load_state(tuning *t);
bool tune_save_state(const tuning *t);
void tune_free_facts(tuning *t);

/* ---- tune_choices.c: formats, costs, candidates ---- */

/* The pairs that a layer may get under this budget. */
bool tune_list_pairs(tuning *t);
/* Layers that are all the base but one, or all with scheme NULL. layers [n_layers]. */
void tune_one_layer(const tuning *t, tq_scheme *layers, uint32_t layer, const tq_scheme *scheme);
/* Costs from the facts of the scan. */
bool tune_fill_costs(tuning *t);
/* Candidates under the budget, and the plain schemes they have to beat. */
bool tune_list_named(tuning *t);
/* The largest plain scheme of equal bits for keys and values within the budget. */
bool tune_plain(const tuning *t, tq_scheme *out);
uint64_t tune_bytes(const tuning *t, const tq_scheme *layers);
double tune_bits(const tuning *t, uint64_t bytes);

/* ---- tune_run.c: the measurements, in order ---- */

/* All of it. TQE_ERR_CANCELLED: interrupted, with what is done in the state file. */
tqe_status tune_run(tuning *t, tqe_error *err);
/* Mean KL of a variant over the windows of a role, from facts; NaN when one is missing. values:
 * NULL, or gets each. */
double tune_kl(const tuning *t, const tq_scheme *layers, bool mean, tune_role role, double *values);

/* ---- tune_report.c: files, table, JSON ---- */

bool tune_write_files(const tuning *t);
void tune_put_report(const tuning *t);
bool tune_write_json(const tuning *t, const char *path);

#endif
