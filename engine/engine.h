/* SPDX-License-Identifier: MIT */
/* engine.h — run a GGUF model on the compressed KV cache. Apps include it, and snapshot.h.
 *
 * Nouns: a MODEL is immutable weights + tokenizer (share it between threads once loaded); a
 * SESSION is one mutable timeline of tokens with its KV cache (one thread at a time); a SAMPLER
 * picks tokens; a TEXT STREAM turns tokens into valid UTF-8. Strings are UTF-8, NUL-terminated.
 * Every function that can fail returns tqe_status and, when given one, fills a tqe_error with a
 * sentence a user can act on. A failed call leaves its objects as they were. Nothing prints or
 * exits.
 */
#ifndef TQE_ENGINE_H
#define TQE_ENGINE_H

#include "turboquant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tqe_status {
    TQE_OK = 0,
    TQE_ERR_ARG = -1,         /* a parameter out of range */
    TQE_ERR_IO = -2,          /* the file cannot be opened or read */
    TQE_ERR_FORMAT = -3,      /* not a GGUF, or a damaged one: the text names field and offset */
    TQE_ERR_UNSUPPORTED = -4, /* an architecture, head_dim ... that we do not run */
    TQE_ERR_SCHEME = -5,      /* KV scheme string */
    TQE_ERR_NOMEM = -6,
    TQE_ERR_FULL = -7,      /* the context is full */
    TQE_ERR_CANCELLED = -8, /* the progress callback said stop */
    TQE_ERR_NUMERIC = -9    /* NaN or Inf in keys, values or logits: damaged weights */
} tqe_status;

typedef struct tqe_error {
    tqe_status code;
    char text[512];
} tqe_error;

/* ---- Model ----------------------------------------------------------------------------- */

typedef struct tqe_model tqe_model;
typedef struct tqe_model_params {
    bool no_repack; /* keep weights as mapped (tests); default: repack where ggml gains */
} tqe_model_params;

typedef struct tqe_model_info {
    char arch[32];    /* "qwen3" */
    char name[128];   /* general.name, or "" */
    char weights[32]; /* "Q8_0": type of most weight bytes */
    uint64_t n_params;
    uint64_t file_bytes;
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t n_layers;
    uint32_t n_embd;
    uint32_t n_ff;
    uint32_t n_heads; /* query heads */
    uint32_t n_kv_heads;
    uint32_t d_k, d_v; /* head dimensions */
    float rope_base;
    char rope[64]; /* "neox", "interleaved", with scaling: "neox, llama3 x8" */
    bool tied_output;
    bool has_chat_template;
    uint32_t window; /* sliding window of all layers, 0 = none */
} tqe_model_info;

/* Load a model. params NULL: defaults. */
tqe_status tqe_model_load(tqe_model **out, const char *path, const tqe_model_params *params,
                          tqe_error *err);
void tqe_model_free(tqe_model *m); /* NULL allowed; sessions of it must be freed first */

/* Geometry only: reads the header, not the weights (tqe_model_load not needed). */
tqe_status tqe_model_probe(const char *path, tqe_model_info *info, tqe_error *err);
void tqe_model_get_info(const tqe_model *m, tqe_model_info *info);

/* "llama, qwen2, qwen3": the architectures that load. Static storage. */
const char *tqe_known_archs(void);

/* ---- Text ------------------------------------------------------------------------------ */

/* Tokens of text [n_bytes]. add_special: BOS as the model wants it. parse_special: text such as
 * <|im_start|> becomes its control token. *ids is malloc'ed, free() it. Bytes that are not valid
 * UTF-8 are an error that names the offset. */
tqe_status tqe_tokenize(const tqe_model *m, const char *text, size_t n_bytes, bool add_special,
                        bool parse_special, int32_t **ids, size_t *n_ids, tqe_error *err);

/* No fewer tokens than this come out of tqe_tokenize for the same text, as no token covers more
 * bytes than the longest of the vocabulary. Far cheaper than tokenising; NULs are text, too. */
size_t tqe_min_tokens(const tqe_model *m, const char *text, size_t n_bytes, bool parse_special);

/* End of generation (EOS, EOT ...)? */
bool tqe_token_is_end(const tqe_model *m, int32_t id);

/* Collects the bytes of tokens and gives back whole UTF-8 characters; invalid bytes become
 * U+FFFD. Zero-initialise; no destroy needed. */
typedef struct tqe_text_stream {
    uint8_t pending[8];
    uint32_t n_pending;
} tqe_text_stream;

/* Append a token; writes what is complete to dst (NUL-terminated, truncated never: dst_bytes >=
 * TQE_PIECE_BYTES holds any token). Returns the bytes written without the NUL. */
#define TQE_PIECE_BYTES 4096
size_t tqe_text_push(tqe_text_stream *s, const tqe_model *m, int32_t id, char *dst,
                     size_t dst_bytes);
/* What is left at the end of the text: U+FFFD for an unfinished character. */
size_t tqe_text_finish(tqe_text_stream *s, char *dst, size_t dst_bytes);
typedef struct tqe_chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} tqe_chat_message;

/* Format messages by the template of the GGUF (or ChatML-like built-in name `tmpl`, NULL: the
 * GGUF's). add_assistant opens the answer. *text is malloc'ed. A message that spells a control
 * token
 * ("<|im_end|>") stays text: an invisible U+2060 is put into it. Roles are lower-case words. Error
 * when the model has no template that libllama knows: the text names the built-in ones. */
tqe_status tqe_chat_format(const tqe_model *m, const char *tmpl, const tqe_chat_message *msgs,
                           size_t n, bool add_assistant, char **text, tqe_error *err);

/* ---- Session --------------------------------------------------------------------------- */
typedef struct tqe_session tqe_session;
#define TQE_MAX_CTX          (1u << 24)
#define TQE_MAX_THREADS      256u
#define TQE_MAX_SEQS         1024u
#define TQE_DEFAULT_BATCH    512u
#define TQE_DEFAULT_ROLLBACK 32u

typedef struct tqe_session_params {
    uint32_t n_ctx;     /* tokens the cache holds, 1..TQE_MAX_CTX; 0: min(4096, n_ctx_train) */
    uint32_t n_threads; /* 1..TQE_MAX_THREADS; 0: physical cores */
    uint32_t n_batch;   /* prompt tokens per graph, 1..4096; 0: 512 */
    const char *kv;     /* scheme string, whose files are read once, now; NULL: "turbo:k8v3" */
    uint32_t isa_mask;  /* TQ_ISA_ALL, or a subset; 0: all */
    uint32_t n_seqs;    /* this session and its forks at once, 1..TQE_MAX_SEQS; 0: 1 */
    uint32_t rollback;  /* tokens that truncate can drop at any time, 1..4096; 0: default */
    uint32_t n_kept;    /* tokens of room beside n_ctx for kept prompts, see snapshot.h */
} tqe_session_params;

tqe_status tqe_session_create(tqe_session **out, const tqe_model *m, const tqe_session_params *p,
                              tqe_error *err);
void tqe_session_free(tqe_session *s);
/* A session of its own with the first n tokens of s; what both have is kept once. s and its forks
 * belong to one thread at a time, together; any may be freed first. Logits come along if n is the
 * length. Errors: TQE_ERR_FULL (n_seqs), TQE_ERR_ARG (0 < n < min_truncate, n above the length). */
tqe_status tqe_session_fork(tqe_session **out, const tqe_session *s, size_t n, tqe_error *err);
/* Called between batches of a long eval; false stops it (TQE_ERR_CANCELLED: the tokens done so far
 * stay, and there are no logits until the next eval). */
typedef bool tqe_progress_fn(void *ctx, size_t n_done, size_t n_total);
/* Run n tokens and append them. Afterwards tqe_session_logits is for the last one. all_logits:
 * NULL, or [n][n_vocab] that gets the logits of every token. */
tqe_status tqe_session_eval(tqe_session *s, const int32_t *ids, size_t n, float *all_logits,
                            tqe_progress_fn *progress, void *ctx, tqe_error *err);
/* [n_vocab], valid until the next eval; NULL before the first and after a truncation. */
const float *tqe_session_logits(const tqe_session *s);
size_t tqe_session_len(const tqe_session *s);
/* Drop the tokens from n on. Windows and the options tail and start forget rows that are read no
 * more: n must be 0 or at least min_truncate, which is at most length - 1 - rollback unless the
 * session was forked or truncated before. */
tqe_status tqe_session_truncate(tqe_session *s, size_t n, tqe_error *err);
size_t tqe_session_min_truncate(const tqe_session *s);
typedef struct tqe_session_info {
    char kv[TQ_SCHEME_TEXT_BYTES]; /* canonical scheme */
    uint32_t n_ctx, n_threads, n_batch;
    uint32_t n_tokens;
    size_t kv_bytes_per_token; /* over all layers */
    size_t kv_bytes_used; /* rows held: n_tokens * the above, less with windows, and those in f16 */
    size_t f16_bytes_per_token; /* what an f16 cache would take */
    size_t kv_bytes_capacity;   /* memory of the cache (touched only as it fills), with all forks */
} tqe_session_info;
void tqe_session_get_info(const tqe_session *s, tqe_session_info *info);
/* The longest context of n_seqs sessions whose cache takes at most memory_bytes. Of m only the
 * geometry is needed (tqe_model_probe); files of the scheme are read (scheme_files.h). */
typedef struct tqe_kv_plan {
    uint32_t n_ctx;     /* of each session, a multiple of 64; 0: not even 64 tokens fit */
    size_t cache_bytes; /* what tqe_session_create allocates for that n_ctx and n_seqs; or 0 */
    size_t page_bytes, bytes_per_token; /* 64 tokens of all layers, packed, and one */
} tqe_kv_plan;
tqe_status tqe_kv_plan_make(tqe_kv_plan *out, const tqe_model_info *m, const tq_scheme *scheme,
                            uint64_t memory_bytes, uint32_t n_seqs, tqe_error *err);

/* ---- Sampler --------------------------------------------------------------------------- */
typedef struct tqe_sampler tqe_sampler;
typedef struct tqe_sampler_params {
    float temp;    /* 0: greedy */
    int32_t top_k; /* 0: off */
    float top_p;   /* 1: off */
    float min_p;   /* 0: off */
    uint32_t seed;
} tqe_sampler_params;
tqe_status tqe_sampler_create(tqe_sampler **out, const tqe_model *m, const tqe_sampler_params *p,
                              tqe_error *err);
void tqe_sampler_free(tqe_sampler *s);
/* Choose the next token from logits [n_vocab] and remember it. Ties: the lowest id. */
tqe_status tqe_sampler_next(tqe_sampler *s, const float *logits, int32_t *id, tqe_error *err);

/* ---- Peer: stock libllama on the same file, for comparisons -------------------------------- */

typedef struct tqe_peer tqe_peer;
typedef struct tqe_peer_params {
    uint32_t n_ctx, n_threads, n_batch;
    const char *kv_type; /* "f32", "f16", "q8_0", "q4_0" ... for K and V; "q8_0/q4_0" for a pair */
    const tqe_peer *share; /* NULL, or a peer of the same file, whose weights are used as well */
} tqe_peer_params;

/* Is this a kv_type? */
tqe_status tqe_peer_check_kv(const char *kv_type, tqe_error *err);

tqe_status tqe_peer_create(tqe_peer **out, const char *path, const tqe_peer_params *p,
                           tqe_error *err);
void tqe_peer_free(tqe_peer *p);
/* As tqe_session_eval; all_logits as there. logits_out: NULL or [n_vocab] of the last token. */
tqe_status tqe_peer_eval(tqe_peer *p, const int32_t *ids, size_t n, float *all_logits,
                         float *logits_out, tqe_error *err);
size_t tqe_peer_kv_bytes_per_token(const tqe_peer *p); /* over all layers */
void tqe_peer_clear(tqe_peer *p);                      /* forget all tokens */

/* ---- Peer: ggml's own attention kernel, on data of the caller ------------------------------ */

typedef struct tqe_peer_attn tqe_peer_attn;
typedef struct tqe_peer_attn_params {
    const char *kv_type; /* as in tqe_peer_params */
    bool head_major;     /* rows as [kv_head][token], not llama.cpp's [token][kv_head] */
    uint32_t n_heads, n_kv_heads, d_k, d_v;
    uint32_t n_kv, q_len; /* query i sees the tokens up to n_kv - q_len + i */
    uint32_t n_threads;
    float scale;
} tqe_peer_attn_params;

const char *tqe_peer_isa(void); /* of ggml's kernels: as --isa says it, or "baseline"; constant */
/* Check params. kv_bytes: keys and values as stored; all_bytes: all memory that create takes. */
tqe_status tqe_peer_attn_bytes(const tqe_peer_attn_params *p, size_t *kv_bytes, size_t *all_bytes,
                               tqe_error *err);
tqe_status tqe_peer_attn_create(tqe_peer_attn **out, const tqe_peer_attn_params *p, tqe_error *err);
void tqe_peer_attn_free(tqe_peer_attn *a); /* NULL allowed */
/* Store tokens [first, first + n): k [n][n_kv_heads][d_k], v [n][n_kv_heads][d_v]. */
void tqe_peer_attn_write(tqe_peer_attn *a, uint32_t first, uint32_t n, const float *k,
                         const float *v);
/* q [q_len][n_heads][d_k] -> out [q_len][n_heads][d_v]. *seconds: by the caller's clock, of the
 * kernel alone; its threads are awake before and asleep again when this returns. */
tqe_status tqe_peer_attn_run(tqe_peer_attn *a, const float *q, float *out, double (*now)(void),
                             double *seconds, tqe_error *err);

#ifdef __cplusplus
}
#endif
#endif
