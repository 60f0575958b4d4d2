/* SPDX-License-Identifier: MIT */
/* golden.h — reader of the golden files of the affine-lloyd format (tests/golden/README.md).
 * A damaged file is refused with a message that names the field. */
#ifndef TQ_TEST_GOLDEN_H
#define TQ_TEST_GOLDEN_H

#include <stdint.h>

typedef struct golden {
    char name[64];
    uint32_t is_value;
    uint32_t bits;
    uint32_t dim;
    uint32_t n_rows;
    uint32_t n_groups;
    const float *input;    /* [n_rows][dim] */
    const uint8_t *packed; /* [n_rows][dim*bits/8] */
    const uint8_t *scale;  /* [n_rows][n_groups] f16 */
    const uint8_t *zero;   /* keys only */
    const float *decoded;  /* [n_rows][dim] */
    void *bytes;           /* the whole file */
} golden;

/* Read tests/golden/<folder>/<file>. 0: failed, why [128] says what is wrong. */
int golden_load(golden *g, const char *folder, const char *file, char *why);
void golden_free(golden *g);

#endif
