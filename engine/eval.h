/* SPDX-License-Identifier: MIT */
/* eval.h — how much a KV scheme changes what a model predicts. The second header that apps may
 * include; it stands on engine.h and shares its rules.
 *
 * An EVAL holds one SIDE per scheme: our sessions, and contexts of stock libllama as peers. All are
 * fed the same tokens (teacher forcing). A WINDOW is a text of n_ctx tokens; it gives one RECORD
 * per side. A NEEDLE is a question about a fact in a long prompt. Records of windows are all that
 * is kept, so an evaluation of any length takes the memory of one batch of logits.
 *
 * Every side is compared with its reference: ours with our f32 cache, peers with libllama's f16
 * cache (it has none in f32 with flash attention), and libllama's f16 with our f32, which shows how
 * far the two engines agree.
 */
#ifndef TQE_EVAL_H
#define TQE_EVAL_H

#include "engine.h"
#include "eval_math.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TQE_EVAL_MAX_SIDES   64
#define TQE_EVAL_MAX_BUCKETS 16
#define TQE_EVAL_MIN_CTX     32
#define TQE_EVAL_MAX_BATCH   256
/* Steps of up to so many tokens attend on packed bytes, as decoding does. */
#define TQE_EVAL_PACKED_BATCH 8

typedef struct tqe_eval tqe_eval;

typedef struct tqe_eval_params {
    uint32_t n_ctx;        /* tokens of a window, TQE_EVAL_MIN_CTX.. */
    uint32_t n_cache;      /* tokens that caches hold: n_ctx, or more for longer needles */
    uint32_t from;         /* first scored position, below n_ctx - 1 */
    uint32_t batch;        /* tokens of a step, up to TQE_EVAL_MAX_BATCH; 0: as many as fit */
    uint32_t n_threads;    /* 0: physical cores */
    uint32_t isa_mask;     /* 0: all */
    bool exact;            /* measure each of kv with attn=dequant too, see tqe_eval_side.exact */
    const char *const *kv; /* [n_kv] schemes; f32 and f16 are always measured and come first */
    size_t n_kv;
    const char *model_path;     /* for the peers */
    const char *const *peer_kv; /* [n_peer_kv] cache types, none: no peer; f16 comes first */
    size_t n_peer_kv;
} tqe_eval_params;

typedef struct tqe_eval_side {
    char kv[TQ_SCHEME_TEXT_BYTES]; /* canonical scheme, or the peer's cache type */
    bool is_peer;
    uint32_t reference; /* index of the side it is compared with; its own: side 0 */
    uint32_t exact;     /* index of the side with attn=dequant on whose cache this one attends,
                           so that both see the same bytes and differ by arithmetic; 0: none */
} tqe_eval_side;

/* One side over one window. Distributions are those after each token; KL in nats, against the
 * side's reference. Scored positions are from .. n_ctx - 2: the last token has no successor. */
typedef struct tqe_eval_record {
    double kl_mean, kl_median, kl_p99;
    double same_top;      /* fraction of positions whose likeliest token is that of the reference */
    double kl_from_exact; /* mean KL of the exact side's distributions and these; 0: no such side */
    double nll;           /* mean negative log-probability of the token that follows, nats */
    uint64_t kv_bytes;    /* of the cache with the window in it, all layers */
    double bucket_kl[TQE_EVAL_MAX_BUCKETS]; /* means over positions, unscored ones too */
    double bucket_same_top[TQE_EVAL_MAX_BUCKETS];
} tqe_eval_record;

/* Buckets of positions for windows of n_ctx: their number, each *width wide, the last may be
 * shorter. The width is 256 where that makes 4 to 16 buckets, else n_ctx / 4 or n_ctx / 16. */
uint32_t tqe_eval_buckets(uint32_t n_ctx, uint32_t *width);

/* The first scored position unless the user wants another: the second bucket, since the first
 * tokens have little context to lose. */
uint32_t tqe_eval_default_from(uint32_t n_ctx);

/* Open all sides. A scheme or cache type that cannot be used is an error that names it; one that is
 * given twice counts once. The model must outlive the eval. */
tqe_status tqe_eval_create(tqe_eval **out, const tqe_model *m, const tqe_eval_params *p,
                           tqe_error *err);
void tqe_eval_free(tqe_eval *e);

size_t tqe_eval_n_sides(const tqe_eval *e);
uint32_t tqe_eval_batch(const tqe_eval *e); /* tokens of a step */
void tqe_eval_get_side(const tqe_eval *e, size_t i, tqe_eval_side *out);

/* Measure ids [n_ctx] on every side; records [n_sides]. progress gets tokens times sides. */
tqe_status tqe_eval_window(tqe_eval *e, const int32_t *ids, tqe_eval_record *records,
                           tqe_progress_fn *progress, void *ctx, tqe_error *err);

/* ids [n]: a prompt whose last n_answer tokens are the right answer. hits [n_sides]: whether each
 * of these is the side's likeliest token, that is whether greedy decoding answers right. */
tqe_status tqe_eval_needle(tqe_eval *e, const int32_t *ids, size_t n, size_t n_answer, bool *hits,
                           tqe_progress_fn *progress, void *ctx, tqe_error *err);

/* ---- Windows of a text ------------------------------------------------------------------------
 */

/* Tokens of a text of documents with NUL between them. BOS begins each document, unless no_bos; a
 * model without BOS is an error then. Refused, naming the offset: bytes that are not UTF-8, and
 * control characters, as in binary files. *ids is malloc'ed. */
tqe_status tqe_eval_tokens(const tqe_model *m, const char *text, size_t n_bytes, bool no_bos,
                           int32_t **ids, size_t *n_ids, tqe_error *err);

/* Windows that do not overlap in n_ids tokens: each takes n_ctx - 1 of them after its own BOS, or
 * n_ctx with no_bos. */
size_t tqe_eval_n_windows(size_t n_ids, uint32_t n_ctx, bool no_bos);

/* Window i of n, spread evenly over ids [n_ids], to dst [n_ctx]. n <= tqe_eval_n_windows. */
void tqe_eval_cut(const int32_t *ids, size_t n_ids, uint32_t n_ctx, bool no_bos, size_t i, size_t n,
                  int32_t *dst);

/* ---- Needles ----------------------------------------------------------------------------------
 */

/* A question that is hard to answer from a damaged cache: a prompt full of facts ("The code for
 * ... is ...") that differ from the asked one in a made-up name and six digits. */
typedef struct tqe_needle {
    uint32_t n_tokens; /* of the prompt, at most */
    double depth;      /* where the fact stands, 0: start .. 1: end */
    uint64_t seed;     /* equal needles for equal seeds */
} tqe_needle;

/* Tokens of prompt and answer, at most n_tokens. filler: text between the facts, or NULL. *ids is
 * malloc'ed. */
tqe_status tqe_needle_make(const tqe_model *m, const tqe_needle *needle, const char *filler,
                           size_t filler_bytes, bool no_bos, int32_t **ids, size_t *n_ids,
                           size_t *n_answer, tqe_error *err);

/* Tokens of a given prompt and answer. */
tqe_status tqe_needle_tokens(const tqe_model *m, const char *prompt, const char *answer,
                             bool no_bos, int32_t **ids, size_t *n_ids, size_t *n_answer,
                             tqe_error *err);

/* A number for the file: a hash of its size, header and samples of its data. Equal files have equal
 * numbers; a change of a few bytes may go unnoticed. */
tqe_status tqe_file_fingerprint(const char *path, uint64_t *out, tqe_error *err);

#ifdef __cplusplus
}
#endif
#endif
