/* SPDX-License-Identifier: MIT */
/* snapshot.h — keep computed prompts.
 *
 * Nouns: a SNAPSHOT is one timeline as a file; a PREFIX STORE is many prompts as pages, shared by
 * sessions and processes. Both hold tokens, packed keys and values, and who may read them: the
 * model, the scheme, the stored format. Nothing is read on trust; whatever does not fit is refused
 * by name, and the session is as it was. Files are specified in docs/snapshot.md.
 */
#ifndef TQE_SNAPSHOT_H
#define TQE_SNAPSHOT_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [tqe_session_len]: the tokens of the timeline of s, valid until the next change. */
const int32_t *tqe_session_tokens(const tqe_session *s);

/* ---- Sessions and snapshots --------------------------------------------------------------- */

/* Write the timeline of s, which has at least one token, to path. path holds what it held before,
 * or the whole new snapshot: after a crash, too. Takes the file's size and no second copy of the
 * cache. Errors: TQE_ERR_ARG (no tokens), TQE_ERR_IO (names the path and the reason). */
tqe_status tqe_session_save(tqe_session *s, const char *path, tqe_error *err);

/* Replace the timeline of s by a snapshot's. Everything is read and checked before the first
 * change: on any error s is as it was. Afterwards the session is the one that was saved, logits
 * included when it had them. Needs the size of the cache's part once more while it runs.
 * Errors: TQE_ERR_IO; TQE_ERR_FORMAT (damaged; names field or page and offset); TQE_ERR_UNSUPPORTED
 * (another version, or another model); TQE_ERR_SCHEME (another scheme, or other contents of its
 * files, whose names do not matter); TQE_ERR_FULL (more tokens
 * than the context holds); TQE_ERR_NOMEM. */
tqe_status tqe_session_load(tqe_session *s, const char *path, tqe_error *err);

/* The name of a model as 64 hexadecimal digits: of its header and of samples of every tensor. */
tqe_status tqe_model_fingerprint_text(const tqe_model *m, char text[65], tqe_error *err);

/* ---- Snapshot files without a model --------------------------------------------------------- */

typedef struct tqe_snapshot tqe_snapshot;

typedef struct tqe_snapshot_layer {
    uint32_t n_kv_heads, d_k, d_v;
    uint32_t window;           /* 0: none */
    tq_codec k_codec, v_codec; /* of blocks */
} tqe_snapshot_layer;

/* What a file holds (docs/snapshot.md 1). The last two are of a prefix store's folder. */
typedef enum tqe_snapshot_kind {
    TQE_SNAPSHOT_SESSION = 0,
    TQE_SNAPSHOT_PAGE = 1, /* one page of a prompt */
    TQE_SNAPSHOT_END = 2   /* what else a prompt needs that ends there */
} tqe_snapshot_kind;

typedef struct tqe_snapshot_info {
    tqe_snapshot_kind kind;
    uint32_t first;       /* position of the first of its tokens */
    char model[64];       /* its name, or "" */
    char fingerprint[65]; /* hexadecimal */
    char scheme[TQ_SCHEME_TEXT_BYTES];
    uint32_t n_tokens, n_layers, n_vocab;
    uint32_t n_pages; /* packed */
    bool has_logits;
    uint64_t file_bytes, packed_bytes, f16_bytes; /* rows that are packed, that stay f16 */
} tqe_snapshot_info;

/* Open a file and check header and tables; pages only by tqe_snapshot_verify. Errors as of load. */
tqe_status tqe_snapshot_open(tqe_snapshot **out, const char *path, tqe_error *err);
void tqe_snapshot_close(tqe_snapshot *f); /* NULL allowed */
void tqe_snapshot_get_info(const tqe_snapshot *f, tqe_snapshot_info *info);
void tqe_snapshot_get_layer(const tqe_snapshot *f, uint32_t layer, tqe_snapshot_layer *out);
/* The KV scheme for a session that is to load f. Where info.scheme names files (layers=, kmean=),
 * they are looked for under the names that it has, and, relative ones, in the snapshot's folder: kv
 * gets the names under which the contents are those that the snapshot was saved with. To be asked
 * before a session is made, because the names are whoever's who made the snapshot: nothing of a
 * file's contents reaches err. A session whose scheme names equal files by other names loads f as
 * well. Errors: TQE_ERR_SCHEME (names the file that differs), TQE_ERR_IO (names both places),
 * TQE_ERR_FORMAT (too large), TQE_ERR_NOMEM. */
tqe_status tqe_snapshot_find_scheme(const tqe_snapshot *f, char kv[TQ_SCHEME_TEXT_BYTES],
                                    tqe_error *err);
/* [n_tokens] and [n_vocab] (NULL: none), valid until the close. */
const int32_t *tqe_snapshot_tokens(const tqe_snapshot *f);
const float *tqe_snapshot_logits(const tqe_snapshot *f);
/* Every page against its checksum; the first bad one is named with its offset. */
tqe_status tqe_snapshot_verify(const tqe_snapshot *f, tqe_error *err);
/* Decode packed keys (is_value 0) or values of one KV head, all tokens: dst [n_tokens][d].
 * Errors: TQE_ERR_ARG (no such layer or head), TQE_ERR_UNSUPPORTED (a windowed layer, of which not
 * all tokens are there; a page of a prefix store), and those of verify. */
tqe_status tqe_snapshot_rows(const tqe_snapshot *f, uint32_t layer, uint32_t kv_head, int is_value,
                             float *dst, tqe_error *err);
/* Write a copy without the logits, after a verify. A session that loads it has none until the next
 * eval. path may be the file itself. */
tqe_status tqe_snapshot_compact(const tqe_snapshot *f, const char *path, tqe_error *err);

/* ---- Prefix store ------------------------------------------------------------------------------
 */

/* Prompts that begin alike are computed once. Two tiers: in memory, timelines that share pages with
 * the session (tqe_session_params.n_kept is their room); on the disk, a folder of pages that
 * processes share. One thread at a time uses a store; it has a thread of its own for writing. */
typedef struct tqe_prefix tqe_prefix;

typedef struct tqe_prefix_params {
    const char *dir;      /* folder, made when absent; NULL: memory only */
    uint64_t limit_bytes; /* of the folder, whoever writes into it, 0: 4 GiB; above it the least
                             recently used goes; less than one page: nothing is stored, a problem */
    uint64_t queue_bytes; /* of pages that wait to be written, 0: 64 MiB; more are dropped */
    const void *salt;     /* secret of a tenant: only who gives the same reuses what he stored */
    size_t salt_bytes;
    uint32_t every_pages; /* distance of the ends that can be taken up, for schemes with sink, tail,
                             start or skip and for windows; 0: 8 */
} tqe_prefix_params;

/* params NULL: memory only. Errors: TQE_ERR_IO (the folder cannot be used). */
tqe_status tqe_prefix_create(tqe_prefix **out, const tqe_prefix_params *params, tqe_error *err);
void tqe_prefix_free(tqe_prefix *p);  /* writes what is queued; NULL allowed */
void tqe_prefix_flush(tqe_prefix *p); /* waits until everything is written */

/* Make the timeline of s exactly ids [n], logits of the last one included: takes up the longest
 * prefix that s, the memory or the disk has, evaluates the rest and offers it for storing.
 * *n_reused (may be NULL): tokens that were not computed, at most n - 1. The result does not depend
 * on whether there was a hit at a stored end, bit for bit. A damaged or foreign file is set aside
 * and its page computed. Errors: as of tqe_session_eval; when evaluation fails or is stopped, s
 * holds a prefix of ids. Disk problems are no errors, see tqe_prefix_problem. */
tqe_status tqe_session_prompt(tqe_session *s, tqe_prefix *p, const int32_t *ids, size_t n,
                              tqe_progress_fn *progress, void *ctx, size_t *n_reused,
                              tqe_error *err);

typedef struct tqe_prefix_stats {
    uint64_t n_prompts, n_memory_hits, n_disk_hits;
    uint64_t n_tokens, n_reused;                             /* of all prompts */
    uint64_t n_written, bytes_written, n_dropped, n_evicted; /* files */
} tqe_prefix_stats;
void tqe_prefix_get_stats(tqe_prefix *p, tqe_prefix_stats *out);
/* The first disk problem since the last call, as a sentence; false: none. */
bool tqe_prefix_problem(tqe_prefix *p, tqe_error *out);

#ifdef __cplusplus
}
#endif
#endif
