/* SPDX-License-Identifier: MIT */
/* neon_lloyd.c — Lloyd values: transform, group scales, codes.
 *
 * The format fixes the order of each group's sum of squares, so a group cannot be summed across
 * lanes. Instead four groups are transposed: lane i then sums group i in order. Codes come from a
 * walk down a search tree whose levels are looked up by byte shuffles. Rows whose sums overflow go
 * through the reference. A short last group is filled up with zeros, whose codes are cut off.
 */
#include "cpu/neon.h"
#include "codec.h"
#include "cpu/neon_codec.h"
#include "cpu/neon_rotated.h"

#define BY_DIM(dim, call)                                                                          \
    switch (dim) {                                                                                 \
    case 64:                                                                                       \
        call(64);                                                                                  \
        break;                                                                                     \
    case 128:                                                                                      \
        call(128);                                                                                 \
        break;                                                                                     \
    case 256:                                                                                      \
        call(256);                                                                                 \
        break;                                                                                     \
    default:                                                                                       \
        call(512);                                                                                 \
        break;                                                                                     \
    }

#define ROTATE(d)   tq_hadamard(y, x, d, tq_sign_table(d), NULL)
#define UNROTATE(d) tq_hadamard(x, x, d, NULL, tq_sign_table(d))

static void rotate_row(float *y, const float *x, uint32_t dim)
{
    BY_DIM(dim, ROTATE)
}

/* Powers of two with a transform in registers. */
static int is_direct(uint32_t dim)
{
    return dim == 64 || dim == 128 || dim == 256 || dim == 512;
}

/* Rotation of the other dimensions. */
static void scale_by(float *x, uint32_t dim, float scale, const float *sign)
{
    for (uint32_t j = 0; j < dim; j += 4) {
        float32x4_t v = vld1q_f32(x + j);
        v = scale != 1 ? vmulq_n_f32(v, scale) : v;
        vst1q_f32(x + j, sign ? vmulq_f32(v, vld1q_f32(sign + j)) : v);
    }
}

void tq_neon_rotate(float *x, uint32_t dim)
{
    if (is_direct(dim)) {
        rotate_row(x, x, dim);
        return;
    }
    scale_by(x, dim, 1, tq_sign_table(dim));
    tq_neon_hadamard(x, dim);
    scale_by(x, dim, tq_rotate_scale(dim), NULL);
}

void tq_neon_unrotate(float *x, uint32_t dim)
{
    if (is_direct(dim)) {
        BY_DIM(dim, UNROTATE)
        return;
    }
    tq_neon_hadamard(x, dim);
    scale_by(x, dim, tq_rotate_scale(dim), tq_sign_table(dim));
}

/* Lane i: the sum of squares of y[i][0..31], in order. */
static float32x4_t sum_squares4(const float *const y[4])
{
    float32x4_t t = vdupq_n_f32(0);

    for (int k = 0; k < 8; k++) {
        float32x4_t v[4], u[4];
        for (int g = 0; g < 4; g++)
            v[g] = vld1q_f32(y[g] + 4 * k);
        u[0] = vtrn1q_f32(v[0], v[1]);
        u[1] = vtrn2q_f32(v[0], v[1]);
        u[2] = vtrn1q_f32(v[2], v[3]);
        u[3] = vtrn2q_f32(v[2], v[3]);
        v[0] = vcombine_f32(vget_low_f32(u[0]), vget_low_f32(u[2]));
        v[1] = vcombine_f32(vget_low_f32(u[1]), vget_low_f32(u[3]));
        v[2] = vcombine_f32(vget_high_f32(u[0]), vget_high_f32(u[2]));
        v[3] = vcombine_f32(vget_high_f32(u[1]), vget_high_f32(u[3]));
        for (int j = 0; j < 4; j++)
            t = vaddq_f32(vmulq_f32(v[j], v[j]), t);
    }
    return t;
}

/* The boundaries as a search tree in heap order: node 1 is the root, the children of node k are
 * 2k and 2k + 1. Walking right where v > t[k], b times, ends at node 2^b + count. */
typedef struct search_tree {
    float t[256];
} search_tree;

TQ_INLINE void search_tree_init(search_tree *tree, int b)
{
    const float *boundary = tq_lloyd_get((uint32_t)b)->boundary;

    memset(tree->t, 0, 8 * sizeof tree->t[0]); /* shuffles read whole vectors */
    for (int level = 0; level < b; level++)
        for (int i = 0; i < 1 << level; i++)
            tree->t[(1 << level) + i] = boundary[(i << (b - level)) + (1 << (b - level - 1)) - 1];
}

/* Node k of level 1 .. 4, by bytes. */
TQ_INLINE float32x4_t tree_lookup(const search_tree *tree, uint32x4_t k, int level)
{
    const uint8_t *t = (const uint8_t *)(tree->t + (level <= 1 ? 0 : 1 << level));
    uint32x4_t first = vdupq_n_u32(0x03020100u);
    uint8x16_t x;

    if (level > 1)
        k = vsubq_u32(k, vdupq_n_u32(1u << level));
    uint8x16_t pick = vreinterpretq_u8_u32(vmlaq_n_u32(first, k, 0x04040404u));
    if (level <= 2)
        x = vqtbl1q_u8(vld1q_u8(t), pick);
    else if (level == 3)
        x = vqtbl2q_u8(vld1q_u8_x2(t), pick);
    else
        x = vqtbl4q_u8(vld1q_u8_x4(t), pick);
    return vreinterpretq_f32_u8(x);
}

/* How many boundaries lie strictly below each lane of v; a NaN is above none. */
TQ_INLINE uint32x4_t count_below(float32x4_t v, const search_tree *tree, int b)
{
    uint32x4_t k = vdupq_n_u32(1);
    for (int level = 0; level < b && level < 5; level++) {
        float32x4_t at = level == 0 ? vdupq_n_f32(tree->t[1]) : tree_lookup(tree, k, level);
        k = vsubq_u32(vaddq_u32(k, k), vcgtq_f32(v, at));
    }
    if (b > 5) { /* the lower levels are too large for shuffles */
        float x[4];
        uint32_t i[4];
        vst1q_f32(x, v);
        vst1q_u32(i, k);
        for (int level = 5; level < b; level++)
            for (int lane = 0; lane < 4; lane++)
                i[lane] = 2 * i[lane] + (x[lane] > tree->t[i[lane]]);
        k = vld1q_u32(i);
    }
    return vsubq_u32(k, vdupq_n_u32(1u << b));
}

/* Codes of a group, whole or its first n elements. */
TQ_INLINE void encode_group(uint8_t *codes, const float *y, float d, uint32_t n,
                            const search_tree *tree, int b)
{
    uint32x4_t idx[8];

    for (int k = 0; k < 8; k++)
        idx[k] = count_below(vdivq_f32(vld1q_f32(y + 4 * k), vdupq_n_f32(d)), tree, b);
    if (n == TQ_GROUP) {
        tq_pack_group(codes, tq_narrow_group(idx), b);
    } else {
        uint8_t all[TQ_GROUP];
        tq_pack_group(all, tq_narrow_group(idx), b);
        memcpy(codes, all, n * (uint32_t)b / 8);
    }
}

/* Returns 0, with nothing usable written, when a sum of squares is not finite. */
TQ_INLINE int encode_row(uint8_t *codes, uint8_t *scale, const float *x, uint32_t dim,
                         const search_tree *tree, int b, int strict)
{
    const uint32_t n_groups = (dim + TQ_GROUP - 1) / TQ_GROUP;
    float y[TQ_DIM_MAX], r4[4], d4[4];

    if (is_direct(dim)) {
        rotate_row(y, x, dim);
    } else {
        memcpy(y, x, dim * sizeof(float));
        tq_neon_rotate(y, dim);
        memset(y + dim, 0, (n_groups * TQ_GROUP - dim) * sizeof(float));
    }
    for (uint32_t g0 = 0; g0 < n_groups; g0 += 4) {
        const float *group[4];
        float size[4];
        for (uint32_t i = 0; i < 4; i++) { /* groups of few are summed twice */
            group[i] = y + (g0 + i) % n_groups * TQ_GROUP;
            size[i] = (float)tq_group_size(dim, (g0 + i) % n_groups);
        }
        float32x4_t t = sum_squares4(group);
        if (!strict && vminvq_u32(vcltq_f32(t, vdupq_n_f32(INFINITY))) == 0)
            return 0;
        /* Division by 32 is the same number as multiplication by 1/32. */
        float32x4_t r = vsqrtq_f32(vdivq_f32(t, vld1q_f32(size)));
        vst1q_f32(d4, vaddq_f32(r, vdupq_n_f32(TQ_EPS)));
        if (!strict)
            r = vminq_f32(r, vdupq_n_f32(TQ_F16_MAX)); /* saturate */
        vst1q_f32(r4, r);
        for (uint32_t i = 0; i < 4 && g0 + i < n_groups; i++) {
            encode_group(codes + (size_t)(g0 + i) * 4 * (size_t)b, group[i], d4[i],
                         tq_group_size(dim, g0 + i), tree, b);
            tq_store_f16(scale + (size_t)(g0 + i) * 2, r4[i]);
        }
    }
    return 1;
}

TQ_INLINE void encode_lloyd(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                            size_t n, int b)
{
    const int strict = (c->flags & TQ_CODEC_STRICT) != 0;
    search_tree tree;

    search_tree_init(&tree, b);
    for (size_t row = 0; row < n; row++) {
        uint8_t *codes = dst.codes + row * dst.codes_stride;
        uint8_t *scale = dst.scale + row * dst.scale_stride;
        const float *x = src + row * src_stride;
        if (!encode_row(codes, scale, x, c->dim, &tree, b, strict))
            tq_lloyd_row_encode(codes, scale, x, c->dim, (uint32_t)b, 0);
    }
}

/* Values of a group, rotated. */
TQ_INLINE void decode_group(float *out, const uint8_t *codes, float s, const tq_lloyd_regs *regs,
                            int b)
{
    tq_codes32 x = tq_unpack_group(codes, b);
    float32x4_t v[8];

    tq_lloyd_lookup(v, regs, x.lo, b);
    tq_lloyd_lookup(v + 4, regs, x.hi, b);
    for (int i = 0; i < 8; i++)
        vst1q_f32(out + 4 * i, vmulq_n_f32(v[i], s));
}

TQ_INLINE void decode_lloyd(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                            size_t n, int b, int rotated)
{
    const tq_lloyd_regs regs = tq_lloyd_load(b);

    for (size_t row = 0; row < n; row++) {
        float *out = dst + row * dst_stride;
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const uint32_t size = tq_group_size(c->dim, g);
            float s = tq_load_f16(src.scale + row * src.scale_stride + (size_t)g * 2);
            const uint8_t *p = src.codes + row * src.codes_stride + (size_t)g * 4 * (size_t)b;

            if (size == TQ_GROUP) {
                decode_group(out + TQ_GROUP * g, p, s, &regs, b);
            } else {
                uint8_t copy[TQ_GROUP] = {0};
                float all[TQ_GROUP];
                memcpy(copy, p, size * (uint32_t)b / 8);
                decode_group(all, copy, s, &regs, b);
                memcpy(out + TQ_GROUP * g, all, size * sizeof(float));
            }
        }
        if (!rotated)
            tq_neon_unrotate(out, c->dim);
    }
}

#define LLOYD(b)                                                                                   \
    void tq_neon_encode_v##b(const tq_codec *c, tq_planes dst, const float *src,                   \
                             size_t src_stride, size_t n)                                          \
    {                                                                                              \
        encode_lloyd(c, dst, src, src_stride, n, b);                                               \
    }                                                                                              \
    void tq_neon_decode_v##b(const tq_codec *c, float *dst, size_t dst_stride,                     \
                             tq_const_planes src, size_t n)                                        \
    {                                                                                              \
        decode_lloyd(c, dst, dst_stride, src, n, b, 0);                                            \
    }                                                                                              \
    void tq_neon_decode_rotated_v##b(const tq_codec *c, float *dst, size_t dst_stride,             \
                                     tq_const_planes src, size_t n)                                \
    {                                                                                              \
        decode_lloyd(c, dst, dst_stride, src, n, b, 1);                                            \
    }

LLOYD(2)
LLOYD(3)
LLOYD(4)
LLOYD(5)
LLOYD(8)
