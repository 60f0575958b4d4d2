/* SPDX-License-Identifier: MIT */
/* golden.c — reader of golden files. Header: 4 bytes "TQGV" and 15 little-endian u32; sections
 * follow without padding. Sections hold whole rows, so their offsets follow from the header. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 64, WHY_BYTES = 128 };

static uint32_t word(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint8_t *read_file(const char *path, size_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = NULL;

    if (!f)
        return NULL;
    if (fseek(f, 0, SEEK_END) == 0) {
        long end = ftell(f);
        rewind(f);
        bytes = end < 0 ? NULL : malloc((size_t)end + 1);
        if (bytes && fread(bytes, 1, (size_t)end, f) != (size_t)end) {
            free(bytes);
            bytes = NULL;
        }
        *n_bytes = (size_t)(end < 0 ? 0 : end);
    }
    fclose(f);
    return bytes;
}

/* Returns the name of the field that is wrong, or NULL. */
static const char *parse(golden *g, uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < HEADER_BYTES)
        return "file is shorter than its header";
    if (memcmp(bytes, "TQGV", 4) != 0)
        return "magic is not TQGV";
    if (word(bytes + 4) != 1)
        return "version is not 1";
    if (word(bytes + 8) > 1)
        return "kind is neither key nor value";
    if (word(bytes + 12) != 0)
        return "profile is not ref32";
    g->is_value = word(bytes + 8);
    g->bits = word(bytes + 20);
    g->dim = word(bytes + 28);
    g->n_rows = word(bytes + 32);
    g->n_groups = word(bytes + 40);
    if (g->bits < 2 || g->bits > 8)
        return "bits out of range";
    if (g->dim < 32 || g->dim > 512 || g->dim % 32 || g->n_groups != g->dim / 32)
        return "dimension or groups out of range";
    if (word(bytes + 36) != g->dim * g->bits / 8)
        return "packed bytes per row do not match the bits";
    if (g->n_rows > 1000)
        return "too many rows";

    size_t rows_f32 = (size_t)g->n_rows * g->dim * 4;
    size_t per_group = (size_t)g->n_rows * g->n_groups;
    size_t packed_bytes = (size_t)g->n_rows * g->dim * g->bits / 8;
    size_t at = HEADER_BYTES + rows_f32;
    if (g->is_value)
        at += rows_f32 + per_group * 4; /* rotated, rms */
    at += rows_f32 / 4;                 /* idx */
    size_t packed = at;
    size_t scale = packed + packed_bytes;
    size_t zero = scale + per_group * 2;
    size_t decoded = zero + (g->is_value ? 0 : per_group * 2);
    if (decoded + rows_f32 != n_bytes)
        return "file size does not match the header";

    /* Floats are copied to an aligned place behind each other. */
    float *floats = malloc(2 * rows_f32 + 1);
    if (!floats)
        return "out of memory";
    memcpy(floats, bytes + HEADER_BYTES, rows_f32);
    memcpy((uint8_t *)floats + rows_f32, bytes + decoded, rows_f32);
    g->input = floats;
    g->decoded = floats + rows_f32 / 4;
    g->packed = bytes + packed;
    g->scale = bytes + scale;
    g->zero = g->is_value ? NULL : bytes + zero;
    g->bytes = bytes;
    return NULL;
}

int golden_load(golden *g, const char *folder, const char *file, char *why)
{
    char path[1024];
    size_t n_bytes = 0;

    memset(g, 0, sizeof *g);
    snprintf(g->name, sizeof g->name, "%s", file);
    snprintf(path, sizeof path, TQ_TEST_DIR "/golden/%s/%s", folder, file);
    uint8_t *bytes = read_file(path, &n_bytes);
    const char *wrong = bytes ? parse(g, bytes, n_bytes) : "cannot be read";
    if (wrong) {
        free(bytes);
        snprintf(why, WHY_BYTES, "%s", wrong);
        return 0;
    }
    return 1;
}

void golden_free(golden *g)
{
    free((void *)(uintptr_t)g->input);
    free(g->bytes);
    memset(g, 0, sizeof *g);
}
