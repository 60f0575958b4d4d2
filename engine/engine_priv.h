/* SPDX-License-Identifier: MIT */
/* engine_priv.h — what the files of engine/ share and no one else sees.
 *
 * Three kinds of data, as in any engine: CONFIG (numbers of the model, plain data), WEIGHTS
 * (immutable tensors over the mapped file), STATE (one session's timeline). Ownership: a model
 * owns its mapping, tensors and vocabulary; a session owns its cache, graphs and threads and only
 * borrows the model.
 */
#ifndef TQE_ENGINE_PRIV_H
#define TQE_ENGINE_PRIV_H

#include "engine.h"
#include "gguf_reader.h"
#include "snapshot_format.h"

#include "ggml.h"
#include "ggml-backend.h"
#include "llama.h"

/* ---- report.c: errors and library logs -------------------------------------------------- */

#if defined(__GNUC__)
#define TQE_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define TQE_PRINTF(a, b)
#endif

/* Fill err (NULL allowed) and return code. */
tqe_status tqe_fail(tqe_error *err, tqe_status code, const char *fmt, ...) TQE_PRINTF(3, 4);

/* Route the logs of ggml and libllama to us, for the whole process and for good: libraries must
 * not print. The first error line of the calling thread is kept. */
void tqe_log_capture(void);
void tqe_log_reset(void);
/* The first error line since the reset, or "". Valid until the next reset on this thread. */
const char *tqe_log_error(void);

/* Up to 48 bytes of untrusted text made printable: other bytes than ASCII become \xNN. */
typedef struct tqe_quoted {
    char text[4 * 48 + 4];
} tqe_quoted;
tqe_quoted tqe_quote(const char *s, size_t n);

/* Offset of the first byte that is not valid UTF-8, or n. */
size_t tqe_utf8_check(const char *s, size_t n);
/* Bytes of the valid UTF-8 character at the start of s [n]; 0: invalid; -1: could still become
 * valid with more bytes. */
int tqe_utf8_char(const uint8_t *s, size_t n);

/* ---- config.c: the numbers of a model --------------------------------------------------- */

typedef enum tqe_rope_kind { TQE_ROPE_INTERLEAVED, TQE_ROPE_NEOX } tqe_rope_kind;

/* What distinguishes the architectures of the dense family. */
typedef struct tqe_arch {
    const char *name;
    tqe_rope_kind rope;
    bool qk_norm;     /* RMSNorm over each head of Q and K: required */
    bool rope_freqs;  /* rope_freqs.weight may be there */
    bool output_bias; /* output.bias may be there */
    bool extra_bias;  /* biases of attn_output and of the FFN may be there */
} tqe_arch;

const tqe_arch *tqe_arch_find(const char *name, size_t n);

typedef struct tqe_config {
    const tqe_arch *arch;
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t n_layers;
    uint32_t n_embd;
    uint32_t n_ff;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t d_head; /* of keys and of values */
    uint32_t window; /* 0: none */
    float norm_eps;
    float attn_scale;
    /* arguments of ggml_rope_ext, as libllama derives them */
    int32_t rope_n_ctx_orig;
    float rope_base;
    float rope_freq_scale;
    float rope_ext_factor;
    float rope_attn_factor;
    float rope_beta_fast;
    float rope_beta_slow;
    char rope_text[64];
} tqe_config;

/* Read and check every number; the vocabulary size comes from the token list. */
tqe_status tqe_config_read(tqe_config *c, const tqe_gguf *g, tqe_error *err);

/* ---- weights.c: names, shapes and tensors ------------------------------------------------ */

typedef struct tqe_layer_weights {
    struct ggml_tensor *attn_norm;
    struct ggml_tensor *wqkv, *bqkv; /* fused, or the six below */
    struct ggml_tensor *wq, *wk, *wv;
    struct ggml_tensor *bq, *bk, *bv;
    struct ggml_tensor *q_norm, *k_norm;
    struct ggml_tensor *wo, *bo;
    struct ggml_tensor *ffn_norm;
    struct ggml_tensor *ffn_gate, *ffn_up, *ffn_down;
    struct ggml_tensor *ffn_gate_b, *ffn_up_b, *ffn_down_b;
} tqe_layer_weights;

#define TQE_MAX_EXTRA_BUFTS 8

typedef struct tqe_weights {
    struct ggml_tensor *tok_embd;
    struct ggml_tensor *output_norm;
    struct ggml_tensor *output; /* of its own, or tok_embd, or a repacked copy of it */
    struct ggml_tensor *output_b;
    struct ggml_tensor *rope_freqs;
    tqe_layer_weights *layers; /* [n_layers] */
    bool tied;
    /* owners */
    struct ggml_context *ctx_mapped; /* tensors that are views of the mapping */
    ggml_backend_buffer_t buf_mapped;
    struct ggml_context *ctx_extra[TQE_MAX_EXTRA_BUFTS]; /* repacked copies, one per type */
    ggml_backend_buffer_t buf_extra[TQE_MAX_EXTRA_BUFTS];
    float *widened; /* norms and biases stored as F16 or BF16, as F32 */
    ggml_backend_buffer_t buf_widened;
} tqe_weights;

/* Header only: every tensor the architecture wants is there with the right shape and a type that
 * we run, and there is no other. */
tqe_status tqe_weights_check(const tqe_gguf *g, const tqe_config *c, bool *tied, tqe_error *err);
/* As check, and makes the tensors. g must outlive w. */
tqe_status tqe_weights_load(tqe_weights *w, const tqe_gguf *g, const tqe_config *c, bool no_repack,
                            tqe_error *err);
void tqe_weights_free(tqe_weights *w);

/* ---- vocab.c: tokenizer keys, checked before libllama sees them ---------------------------- */

/* Only checks. */
tqe_status tqe_vocab_check(const tqe_gguf *g, tqe_error *err);
/* Checks, then a vocabulary-only llama_model made from the checked keys alone. arch: the name. */
tqe_status tqe_vocab_load(struct llama_model **out, const tqe_gguf *g, const char *arch,
                          tqe_error *err);

/* ---- model.c ------------------------------------------------------------------------------ */

struct tqe_model {
    tqe_gguf gguf;
    tqe_config config;
    tqe_weights weights;
    tqe_model_info info;
    struct llama_model *vocab_model;
    const struct llama_vocab *vocab;
    char *chat_template;  /* or NULL */
    int32_t *control_ids; /* tokens that parse_special would make of text */
    size_t n_control_ids;
};

/* The CPU device of ggml, loading its backends if need be; NULL: this ggml has none. */
ggml_backend_dev_t tqe_cpu_device(void);

/* ---- threads.c ------------------------------------------------------------------------------ */

uint32_t tqe_physical_cores(void);

/* ---- pages.c -------------------------------------------------------------------------------- */

/* For a cache whose layers take so many bytes each when full: an allocator that asks for large
 * pages, or NULL where they would cost more memory than they are worth. */
const tq_allocator *tqe_cache_allocator(double layer_bytes);

/* ---- peer_llama.c --------------------------------------------------------------------------- */

/* "q8_0" or "q8_0/q4_0"; NULL: f16. */
tqe_status tqe_peer_parse_types(const char *s, enum ggml_type *k, enum ggml_type *v,
                                tqe_error *err);

/* ---- attn_op.c: the only file that joins ggml tensors to tq_* -------------------------------- */

/* One attention layer of a session; the userdata of its three nodes. */
typedef struct tqe_attn_layer {
    struct tqe_attn *owner;
    uint32_t layer;
    tq_view view; /* of the step that is running */
    tq_attn_plan plan;
} tqe_attn_layer;

typedef struct tqe_attn tqe_attn;

typedef struct tqe_attn_geometry {
    tq_scheme scheme;   /* of all layers but for: */
    tq_scheme *schemes; /* [n_layers], or NULL; these two are scheme_load.c's */
    float *k_mean;      /* [n_layers][n_kv_heads][d_head], or NULL */
    uint32_t n_layers, n_heads, n_kv_heads, d_head, window;
    uint32_t n_ctx, n_batch, n_threads, isa_mask;
    uint32_t n_seqs;   /* sessions that may share the cache */
    uint32_t rollback; /* tokens that truncate can always drop */
    uint32_t n_kept;   /* tokens of room for kept prompts */
    float scale;
} tqe_attn_geometry;

/* kv_plan.c: a layer of a cache, and its config; cfg->layers is malloc'ed. */
tq_layer tqe_kv_layer(const tqe_attn_geometry *geo, uint32_t i);
bool tqe_kv_config(tq_cache_config *cfg, const tqe_attn_geometry *geo);

/* Takes geo->schemes and geo->k_mean over, in case of an error, too. */
tqe_status tqe_attn_create(tqe_attn **out, const tqe_attn_geometry *geo, tqe_error *err);
/* Another timeline in the same cache, with the first n tokens of `from`. */
tqe_status tqe_attn_fork(tqe_attn **out, const tqe_attn *from, uint32_t n, tqe_error *err);
void tqe_attn_destroy(tqe_attn *a);

/* Nodes. k, v [n][n_kv_heads][d]: the append of one layer. q [q_len][n_heads][d], after append:
 * the attention output [q_len][n_heads * d]. */
struct ggml_tensor *tqe_attn_append_node(tqe_attn *a, struct ggml_context *ctx, uint32_t layer,
                                         struct ggml_tensor *k, struct ggml_tensor *v);
struct ggml_tensor *tqe_attn_output_node(tqe_attn *a, struct ggml_context *ctx, uint32_t layer,
                                         struct ggml_tensor *append, struct ggml_tensor *q);

/* One step: begin (room for n tokens, views, plans; the last layer may ask for fewer queries),
 * run the graph, then end: commit when nothing failed, else abort and say why. */
tqe_status tqe_attn_begin(tqe_attn *a, uint32_t n, uint32_t q_len_last, tqe_error *err);
/* The same for the last n tokens, which are there: nothing is appended, and the step attends by
 * attn=fused, whatever the scheme says. tqe_attn_end ends it. */
tqe_status tqe_attn_begin_again(tqe_attn *a, uint32_t n, tqe_error *err);
bool tqe_attn_ok(const tqe_attn *a); /* no node of the step failed so far */
tqe_status tqe_attn_end(tqe_attn *a, bool keep, tqe_error *err);
tqe_status tqe_attn_truncate(tqe_attn *a, uint32_t n, tqe_error *err);
uint32_t tqe_attn_min_truncate(const tqe_attn *a);
/* Remember the timeline as it is now; later forget that, or go back to it. */
tqe_status tqe_attn_set_mark(tqe_attn *a, tqe_error *err);
void tqe_attn_drop_mark(tqe_attn *a, bool go_back);
uint32_t tqe_attn_len(const tqe_attn *a);
size_t tqe_attn_bytes_used(const tqe_attn *a);
/* One layer of the timeline as it is between steps. */
tqe_status tqe_attn_view(const tqe_attn *a, uint32_t layer, tq_view *out, tqe_error *err);
void tqe_attn_stats(const tqe_attn *a, size_t *bytes_per_token, size_t *capacity_bytes);

/* ---- attn_pages.c: timelines as bytes and back, and timelines that are kept
 * ---------------------- */

/* How a layer is stored. */
tqe_status tqe_attn_describe(const tqe_attn *a, uint32_t layer, tqe_snap_layer *out,
                             tqe_error *err);

uint32_t tqe_attn_seq(const tqe_attn *a); /* the running timeline, for the calls below */
/* The parts that hold timeline seq: all but off and hash is set; parts NULL: only their number. */
uint32_t tqe_attn_list_parts(const tqe_attn *a, uint32_t seq, tqe_snap_part *parts);
/* dst [part->bytes]. */
tqe_status tqe_attn_export(const tqe_attn *a, uint32_t seq, const tqe_snap_part *part, uint8_t *dst,
                           tqe_error *err);

/* Gives the bytes of the parts that the cache asks for, in order; part NULL: that was all. */
typedef tqe_status tqe_part_source(void *ctx, const tqe_snap_part *part, const uint8_t **bytes,
                                   tqe_error *err);
/* Replace the running timeline by one of n_tokens tokens. On error nothing has changed. */
tqe_status tqe_attn_import(tqe_attn *a, uint32_t n_tokens, tqe_part_source *source, void *ctx,
                           tqe_error *err);

/* ---- attn_kept.c: prompts that stay in memory, of a session and its forks together
 * ---------------------------------------------------- */

/* Kept prompts at once, at most. */
#define TQE_MAX_KEPT 64u

/* Keep the running timeline, tokens [n], for prompts of the same scope: a second timeline that
 * shares its pages. Without room nothing is kept. */
void tqe_kept_add(tqe_attn *a, const int32_t *tokens, uint32_t n,
                  const uint8_t scope[TQE_ID_BYTES]);
/* Longest prefix of ids [n] that a kept timeline of this scope can continue from; *i: which. */
uint32_t tqe_kept_find(const tqe_attn *a, const int32_t *ids, uint32_t n,
                       const uint8_t scope[TQE_ID_BYTES], uint32_t *i);
/* Continue from the first n tokens of kept timeline i. False: nothing has changed. */
bool tqe_kept_resume(tqe_attn *a, uint32_t i, uint32_t n);
/* Give up the one that was not used for the longest time. False: there is none. */
bool tqe_kept_evict(tqe_attn *a);
void tqe_kept_clear(tqe_attn *a);

/* ---- session.c, for evaluations
 * ------------------------------------------------------------------
 */

/* Logits [n][n_vocab] that the last n tokens, at most a batch, have by attn=fused on the very rows
 * that are stored; the session stays as it is. */
tqe_status tqe_session_again_fused(tqe_session *s, size_t n, float *logits, tqe_error *err);
/* Where its graphs run: the threads. */
ggml_backend_t tqe_session_backend(const tqe_session *s);

/* ---- session.c, for snapshots and prefixes ------------------------------------------------------
 */

/* A session whose layers are stored as schemes [n_layers] say, without k_mean
 * [n_layers][n_kv_heads] [d_head] where that is not NULL, in place of p->kv. Nothing names that: it
 * must not be saved. */
tqe_status tqe_session_create_layers(tqe_session **out, const tqe_model *m,
                                     const tqe_session_params *p, const tq_scheme *schemes,
                                     const float *k_mean, tqe_error *err);
tqe_attn *tqe_session_attn(const tqe_session *s);
const tqe_model *tqe_session_model(const tqe_session *s);
/* Could n tokens follow the first `keep` ones of the timeline? */
tqe_status tqe_session_check(const tqe_session *s, uint32_t keep, const int32_t *ids, size_t n,
                             tqe_error *err);
/* After an import: tokens [n], logits [n_vocab] of the last one or NULL. */
void tqe_session_restored(tqe_session *s, const int32_t *tokens, uint32_t n, const float *logits);
/* The names of model and scheme, computed once. */
tqe_status tqe_session_ids(tqe_session *s, uint8_t fingerprint[TQE_ID_BYTES],
                           uint8_t scheme_id[TQE_ID_BYTES], tqe_error *err);

/* ---- snapshot.c ---------------------------------------------------------------------------------
 */

/* What every file of this session says: names, geometry, layers (malloc'ed; tqe_snap_free). */
tqe_status tqe_snap_describe(tqe_snap *h, tqe_session *s, tqe_error *err);

/* ---- fingerprint.c ------------------------------------------------------------------------------
 */

tqe_status tqe_model_fingerprint(const tqe_model *m, uint8_t id[TQE_ID_BYTES], tqe_error *err);
/* Do two texts mean one scheme, whatever the names of its files? */
bool tqe_scheme_same(const char *a, const char *b);
/* Of a scheme and the bytes of the files that it names, but not of their names. */
tqe_status tqe_scheme_id(const tq_scheme *s, const char *kmean, size_t n_kmean, const char *layers,
                         size_t n_layers, uint8_t id[TQE_ID_BYTES], tqe_error *err);

/* ---- scheme_files.c, scheme_load.c --------------------------------------------------------------
 */

/* A whole file of at most max bytes; *text [*n] is malloc'ed. */
tqe_status tqe_scheme_file_bytes(char **text, size_t *n, size_t max, const char *path,
                                 tqe_error *err);
/* Read the files that geo->scheme names into geo, whose scheme then names none. m: whose means they
 * must be; NULL: only the geometry is known. id: NULL, or gets the name of the scheme. */
tqe_status tqe_scheme_load(tqe_attn_geometry *geo, const tqe_model *m, uint8_t id[TQE_ID_BYTES],
                           tqe_error *err);
/* A stored scheme with the names under which the files with its contents are found: as they are, or
 * from the folder of path, which stores it. The files are hashed and not parsed, so that a
 * stranger's scheme makes no message of what is in a file. */
tqe_status tqe_scheme_find_files(const char *text, const uint8_t id[TQE_ID_BYTES], const char *path,
                                 char found[TQ_SCHEME_TEXT_BYTES], tqe_error *err);
/* The files of scheme text are not those that path was saved with: says which, and returns
 * TQE_ERR_SCHEME. */
tqe_status tqe_scheme_other_files(const char *text, const char *path, tqe_error *err);
void tqe_scheme_unload(tqe_attn_geometry *geo);

/* ---- arch_dense.c: the graph of the dense family ------------------------------------------- */

typedef enum tqe_out { TQE_OUT_NONE, TQE_OUT_LAST, TQE_OUT_ALL } tqe_out;

typedef struct tqe_graph {
    struct ggml_context *ctx;
    struct ggml_cgraph *gf;
    struct ggml_tensor *tokens; /* I32 [n], input */
    struct ggml_tensor *pos;    /* I32 [n], input */
    struct ggml_tensor *logits; /* F32 [n_out][n_vocab], or NULL */
    uint32_t n;
    tqe_out out;
} tqe_graph;

/* Bytes of tensor headers that a graph needs. */
size_t tqe_graph_meta_bytes(const tqe_config *c);
/* Build into mem [meta_bytes]. Allocates nothing; cannot fail on checked weights. */
void tqe_graph_build(tqe_graph *g, const tqe_config *c, const tqe_weights *w, tqe_attn *attn,
                     uint32_t n, tqe_out out, void *mem, size_t mem_bytes);

#endif
