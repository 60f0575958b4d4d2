/* SPDX-License-Identifier: MIT */
/* attn.h — how attention is split; for attn.c and for tests that aim at the borders. */
#ifndef TQ_ATTN_H
#define TQ_ATTN_H

/* Tokens of a fused part: chunks of the KV range start at multiples of this. A part has costs of
 * its own: queries are prepared, sums written and merged. Few heads are cut finer all the same,
 * lest threads have nothing to do. */
#define TQ_ATTN_CHUNK(n_kv_heads) ((n_kv_heads) >= 4 ? 1024u : 512u)

/* Longest q_len that is scored on packed bytes. Beyond it, decoding a tile once for all rows and
 * multiplying f32 matrices is faster, see docs/numerics.md. */
#define TQ_ATTN_FUSED_Q_MAX 8u

#endif
