/* SPDX-License-Identifier: MIT */
/* attn.h — how attention is split; for attn.c and for tests that aim at the borders. */
#ifndef TQ_ATTN_H
#define TQ_ATTN_H

/* Tokens of a fused part: chunks of the KV range start at multiples of this. */
#define TQ_ATTN_CHUNK 512u

/* Longest q_len that is scored on packed bytes. Beyond it, decoding a tile once for all rows and
 * multiplying f32 matrices is faster, see docs/numerics.md. */
#define TQ_ATTN_FUSED_Q_MAX 8u

#endif
