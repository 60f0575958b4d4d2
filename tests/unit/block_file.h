/* SPDX-License-Identifier: MIT */
/* block_file.h — reader of the golden blocks (tests/golden/blocks-v1/README.md). A damaged file is
 * refused with a message that names the field; what is accepted lies inside the file's bytes. */
#ifndef TQ_TEST_BLOCK_FILE_H
#define TQ_TEST_BLOCK_FILE_H

#include <turboquant.h>

typedef struct block_file {
    tq_format format;
    uint32_t dim, n_rows, block_bytes;
    uint32_t n_efforts, n_hostile;
    uint32_t codec_flags[3];        /* one codec for each effort */
    const uint8_t *blocks;          /* [n_efforts][n_rows][block_bytes] */
    const uint8_t *decoded;         /* f32 [n_rows][dim], little-endian, not aligned */
    const uint8_t *hostile;         /* [n_hostile][block_bytes] */
    const uint8_t *hostile_decoded; /* f32 [n_hostile][dim] */
} block_file;

/* What is wrong with the n bytes of a file, or NULL: then b points into them. */
const char *block_file_parse(block_file *b, const uint8_t *bytes, size_t n);

#endif
