/* SPDX-License-Identifier: MIT */
/* codec.h — what the rest of the core may use of the codec beside turboquant.h. */
#ifndef TQ_CODEC_H
#define TQ_CODEC_H

#include "cpu/kernels.h"

/* The three planes of contiguous blocks: codes, scales, zero points of row i at
 * base + i * block_bytes. Planes that a format does not have are NULL. */
tq_planes tq_codec_planes(const tq_codec *c, void *base);
tq_const_planes tq_codec_const_planes(const tq_codec *c, const void *base);

/* Largest head dimension of any format. */
#define TQ_DIM_MAX 1024u

/* Elements of a block of the fork's formats. */
#define TQ_FORK_BLOCK 128u

/* Can a row of this format have this many elements? */
int tq_format_takes_dim(tq_format f, uint32_t dim);

/* tq_codec_encode into planes of any layout (a cache page). dst is as large as c says; checks
 * only the rows themselves. bad_row: NULL, or gets the first row with a NaN or Inf.
 * Errors: TQ_ERR_NONFINITE; rows from bad_row on are unspecified. */
tq_status tq_codec_encode_planes(const tq_codec *c, tq_planes dst, const float *src,
                                 size_t src_stride, size_t n, size_t *bad_row);

/* tq_codec_decode from planes of any layout; rotated: leave rotated formats in the rotated domain.
 */
void tq_codec_decode_planes(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                            size_t n, int rotated);

#endif
