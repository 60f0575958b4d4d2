/* SPDX-License-Identifier: MIT */
/* scalar_compare.c — formats to compare with: uniform affine groups, and the first-generation
 * blocks of the llama.cpp fork, which are read and written as they are. Reference.
 * Source: docs/format.md 10 and 12; the fork's constants are facts of TheTom/llama-cpp-turboquant,
 * commit 69d8e4be4 (its 4-bit table is about 0.6 times too narrow and stays so here).
 */
#include "codec.h"
#include "cpu/scalar.h"
#include "f16.h"
#include "pack.h"

#include <math.h>
#include <string.h>

/* ---- Uniform affine groups ---- */

/* Codes of x [n] at most 128; scale and offset f16. */
static void uniform_group(uint8_t *code, uint8_t *scale, uint8_t *offset, const float *x,
                          uint32_t n, uint32_t bits)
{
    const float m = (float)((1u << bits) - 1);
    float mn = x[0], mx = x[0];

    for (uint32_t i = 1; i < n; i++) {
        mn = x[i] < mn ? x[i] : mn;
        mx = x[i] > mx ? x[i] : mx;
    }
    mn += 0.0f; /* no -0, whichever of two equal zeros was found */
    tq_store_le16(scale, tq_f16_from_f32_sat((mx - mn) / m));
    tq_store_le16(offset, tq_f16_from_f32_sat(mn));
    const float s = tq_f32_from_f16(tq_load_le16(scale));
    const float o = tq_f32_from_f16(tq_load_le16(offset));
    for (uint32_t i = 0; i < n; i++) {
        float v = s > 0 ? rintf((x[i] - o) / s) : 0;
        v = v > 0 ? v : 0;
        code[i] = (uint8_t)(v < m ? v : m);
    }
}

void tq_scalar_encode_uniform(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                              size_t n)
{
    uint8_t code[TQ_DIM_MAX];

    for (size_t row = 0; row < n; row++) {
        const float *x = src + row * src_stride;
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const uint32_t at = g * c->group;
            uniform_group(code + at, dst.scale + row * dst.scale_stride + 2 * (size_t)g,
                          dst.zero + row * dst.zero_stride + 2 * (size_t)g, x + at,
                          c->dim - at < c->group ? c->dim - at : c->group, c->bits);
        }
        tq_pack(dst.codes + row * dst.codes_stride, code, c->dim, c->bits);
    }
}

void tq_scalar_decode_uniform(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                              size_t n)
{
    uint8_t code[TQ_DIM_MAX];

    for (size_t row = 0; row < n; row++) {
        tq_unpack(code, src.codes + row * src.codes_stride, c->dim, c->bits);
        for (uint32_t j = 0; j < c->dim; j++) {
            const size_t g = j / c->group;
            const uint8_t *scale = src.scale + row * src.scale_stride + 2 * g;
            const uint8_t *offset = src.zero + row * src.zero_stride + 2 * g;
            dst[row * dst_stride + j] = (float)code[j] * tq_f32_from_f16(tq_load_le16(scale)) +
                                        tq_f32_from_f16(tq_load_le16(offset));
        }
    }
}

/* ---- fork1 ---- */

static const uint32_t fork_sign1[4] = {0xe46a0359, 0x42f85949, 0xa4c63bbb, 0x49f250a9};
static const uint32_t fork_sign2[4] = {0x16acee90, 0x3f628fdc, 0xb7a5357a, 0xbea56562};

static const float fork_centroids_2[2] = {.039994f, .133462f};
static const float fork_centroids_3[4] = {.021460f, .065717f, .117832f, .190685f};
static const float fork_centroids_4[8] = {.006938f, .020989f, .035597f, .051262f,
                                          .068756f, .089527f, .117195f, .173926f};
static const float fork_mids_2[1] = {.086728f};
static const float fork_mids_3[3] = {.043589f, .091775f, .154259f};
static const float fork_mids_4[7] = {.013963f, .028293f, .043430f, .060009f,
                                     .079142f, .103361f, .145560f};

/* Positive halves; negatives mirror, and 0 is a boundary. */
typedef struct fork_table {
    uint32_t bits;
    const float *centroid;
    const float *mid;
} fork_table;

static const fork_table fork_tables[] = {
    {2, fork_centroids_2, fork_mids_2},
    {3, fork_centroids_3, fork_mids_3},
    {4, fork_centroids_4, fork_mids_4},
};

static float fork_sign(const uint32_t *words, uint32_t j)
{
    return words[j / 32] >> (j % 32) & 1 ? -1.0f : 1.0f;
}

static void fork_butterflies(float *x)
{
    for (uint32_t h = 1; h < TQ_FORK_BLOCK; h *= 2) {
        for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++) {
            if (j & h)
                continue;
            float a = x[j], b = x[j + h];
            x[j] = a + b;
            x[j + h] = a - b;
        }
    }
}

static float fork_centroid(const fork_table *t, uint32_t code)
{
    const uint32_t half = 1u << (t->bits - 1);
    return code >= half ? t->centroid[code - half] : -t->centroid[half - 1 - code];
}

/* Number of boundaries at or below y; equality goes up. */
static uint8_t fork_code(const fork_table *t, float y)
{
    const uint32_t n = (1u << (t->bits - 1)) - 1;
    uint32_t code = y >= 0;
    for (uint32_t i = 0; i < n; i++)
        code += (uint32_t)(y >= t->mid[i]) + (uint32_t)(y >= -t->mid[i]);
    return (uint8_t)code;
}

/* Where the codes of a block start, and its size. */
static size_t fork_head(uint32_t bits)
{
    return bits == 4 ? 4 : 2;
}

static size_t fork_bytes(uint32_t bits)
{
    return fork_head(bits) + TQ_FORK_BLOCK * bits / 8;
}

static void fork_pack(uint8_t *dst, const uint8_t *code, uint32_t bits)
{
    uint8_t part[TQ_FORK_BLOCK];

    if (bits != 3) {
        tq_pack(dst, code, TQ_FORK_BLOCK, bits);
        return;
    }
    tq_pack(dst, code, TQ_FORK_BLOCK, 2); /* the low two bits of each code */
    for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++)
        part[j] = code[j] >> 2;
    tq_pack(dst + TQ_FORK_BLOCK / 4, part, TQ_FORK_BLOCK, 1);
}

static void fork_unpack(uint8_t *code, const uint8_t *src, uint32_t bits)
{
    uint8_t part[TQ_FORK_BLOCK];

    if (bits != 3) {
        tq_unpack(code, src, TQ_FORK_BLOCK, bits);
        return;
    }
    tq_unpack(code, src, TQ_FORK_BLOCK, 2);
    tq_unpack(part, src + TQ_FORK_BLOCK / 4, TQ_FORK_BLOCK, 1);
    for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++)
        code[j] = (uint8_t)(code[j] | part[j] << 2);
}

#define FORK_SCALE 0x1.6a09e6p-4f /* f32(0.08838834764831845) */
#define FORK_TINY  1e-10f

static void fork_encode_block(uint8_t *dst, const float *x, const fork_table *table)
{
    float y[TQ_FORK_BLOCK];
    uint8_t code[TQ_FORK_BLOCK];
    float t = 0;

    for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++)
        t = t + x[j] * x[j];
    const float n = sqrtf(t);
    const float inv = n > FORK_TINY ? 1.0f / n : 0;
    for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++)
        y[j] = x[j] * inv * fork_sign(fork_sign1, j);
    fork_butterflies(y);
    t = 0;
    for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++) {
        code[j] = fork_code(table, y[j] * (FORK_SCALE * fork_sign(fork_sign2, j)));
        const float c = fork_centroid(table, code[j]);
        t = t + c * c;
    }
    t = sqrtf(t);
    memset(dst, 0, fork_head(table->bits));
    tq_store_le16(dst, tq_f16_from_f32(t > FORK_TINY ? n / t : n));
    fork_pack(dst + fork_head(table->bits), code, table->bits);
}

void tq_scalar_encode_fork(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n)
{
    const fork_table *table = &fork_tables[c->bits - 2];

    for (size_t row = 0; row < n; row++)
        for (uint32_t b = 0; b < c->dim / TQ_FORK_BLOCK; b++)
            fork_encode_block(dst.codes + row * dst.codes_stride + b * fork_bytes(c->bits),
                              src + row * src_stride + (size_t)b * TQ_FORK_BLOCK, table);
}

static void fork_decode(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                        size_t n, int rotated)
{
    const fork_table *table = &fork_tables[c->bits - 2];
    const uint32_t n_blocks = c->dim / TQ_FORK_BLOCK;
    uint8_t code[TQ_FORK_BLOCK];

    for (size_t i = 0; i < n * n_blocks; i++) {
        const uint8_t *block =
            src.codes + i / n_blocks * src.codes_stride + i % n_blocks * fork_bytes(c->bits);
        float *x = dst + i / n_blocks * dst_stride + i % n_blocks * TQ_FORK_BLOCK;
        const float norm = tq_f32_from_f16(tq_load_le16(block));

        fork_unpack(code, block + fork_head(c->bits), c->bits);
        for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++)
            x[j] = fork_centroid(table, code[j]) * norm;
        if (rotated)
            continue;
        for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++)
            x[j] *= fork_sign(fork_sign2, j);
        fork_butterflies(x);
        for (uint32_t j = 0; j < TQ_FORK_BLOCK; j++)
            x[j] = x[j] * FORK_SCALE * fork_sign(fork_sign1, j);
    }
}

void tq_scalar_decode_fork(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                           size_t n)
{
    fork_decode(c, dst, dst_stride, src, n, 0);
}

void tq_scalar_decode_rotated_fork(const tq_codec *c, float *dst, size_t dst_stride,
                                   tq_const_planes src, size_t n)
{
    fork_decode(c, dst, dst_stride, src, n, 1);
}
