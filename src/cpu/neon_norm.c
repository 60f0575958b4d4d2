/* SPDX-License-Identifier: MIT */
/* neon_norm.c — norm-codebook for NEON: 16 coordinates at a time, in 16-bit integers.
 *
 * A coordinate's magnitude is found by comparing |p| with every boundary, its level by a table
 * lookup of bytes, and both products of the search by widening multiply-adds. Levels stay below 128
 * and |p| below 2^15, so nothing overflows.
 */
#include "codebook.h"
#include "cpu/neon_codec.h"
#include "cpu/neon_rotated.h"

enum { ROOM = TQ_ROW_MAX + TQ_ROW_PAD, MAX_EDGES = 31, MAX_EFFORT = 12 };

/* ---- Encode ---- */

/* What is constant over the rows of a call. */
typedef struct encoder {
    const tq_codebook *book;
    int16_t edges[MAX_EFFORT][MAX_EDGES];
    uint8x16x2_t table; /* levels of the magnitudes */
    float to_p, to_num; /* of tq_row_coordinates */
} encoder;

static uint8x16x2_t level_table(const tq_codebook *book)
{
    uint8_t t[32] = {0};
    uint8x16x2_t table;

    for (uint32_t i = 0; i < book->n_levels; i++)
        t[i] = (uint8_t)book->levels[i];
    table.val[0] = vld1q_u8(t);
    table.val[1] = vld1q_u8(t + 16);
    return table;
}

static void encoder_init(encoder *e, const tq_codec *c)
{
    const tq_codebook *book = tq_codebook_get(c->bits);
    const double u = (double)book->unit, one = (double)(1u << book->frac);

    e->book = book;
    if (c->bits == 8) {
        e->to_num = (float)(8128.0 / (sqrt((double)c->dim) * u));
        return;
    }
    e->to_p = (float)(one * sqrt((double)c->dim) / u);
    e->to_num = (float)(2 * one / (u * u));
    e->table = level_table(book);
    for (uint32_t i = 0; i < c->effort; i++)
        tq_codebook_edges(book, tq_stretches[i], e->edges[i]);
}

/* What the search learns of a stretch. */
typedef struct trial {
    uint8_t mag[ROOM]; /* magnitude numbers */
    int32_t dot, ll;   /* <|p|, levels>, <levels, levels> */
} trial;

TQ_INLINE uint8x8_t count_below(int16x8_t a, const int16_t *edges, const int n)
{
    uint16x8_t m = vdupq_n_u16(0);
    for (int i = 0; i < n; i++)
        m = vsubq_u16(m, vcgtq_s16(a, vdupq_n_s16(edges[i])));
    return vmovn_u16(m);
}

/* The coordinates from dim on are 0 and add the lowest level's square, which is taken off. */
TQ_INLINE void try_stretch(trial *out, const int16_t *p, uint32_t dim, const encoder *e,
                           uint32_t stretch, const int b)
{
    const int n_edges = (1 << (b - 1)) - 1;
    const int16_t *edges = e->edges[stretch];
    const int32_t low = e->book->levels[0];
    int32x4_t pl = vdupq_n_s32(0), l2 = pl;

    for (uint32_t j = 0; j < dim; j += 16) {
        const int16x8_t a0 = vabsq_s16(vld1q_s16(p + j)), a1 = vabsq_s16(vld1q_s16(p + j + 8));
        const uint8x16_t m =
            vcombine_u8(count_below(a0, edges, n_edges), count_below(a1, edges, n_edges));
        const uint8x16_t l = b < 6 ? vqtbl1q_u8(e->table.val[0], m) : vqtbl2q_u8(e->table, m);
        const int16x8_t x = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(l)));
        const int16x8_t y = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(l)));

        pl = vmlal_s16(pl, vget_low_s16(a0), vget_low_s16(x));
        pl = vmlal_high_s16(pl, a0, x);
        pl = vmlal_s16(pl, vget_low_s16(a1), vget_low_s16(y));
        pl = vmlal_high_s16(pl, a1, y);
        l2 = vmlal_s16(l2, vget_low_s16(x), vget_low_s16(x));
        l2 = vmlal_high_s16(l2, x, x);
        l2 = vmlal_s16(l2, vget_low_s16(y), vget_low_s16(y));
        l2 = vmlal_high_s16(l2, y, y);
        vst1q_u8(out->mag + j, m);
    }
    out->dot = vaddvq_s32(pl);
    out->ll = vaddvq_s32(l2) - (int32_t)(dim % 16) * low * low;
}

/* 0xff where one of 16 coordinates is negative. */
TQ_INLINE uint8x16_t negative16(const int16_t *p)
{
    uint16x8_t a = vcltzq_s16(vld1q_s16(p)), b = vcltzq_s16(vld1q_s16(p + 8));
    return vcombine_u8(vmovn_u16(a), vmovn_u16(b));
}

/* Codes of the best stretch. Returns <p, levels>. */
TQ_INLINE int32_t search(uint8_t *code, const int16_t *p, uint32_t dim, const encoder *e,
                         uint32_t effort, const int b)
{
    trial room[2];
    int best = 0;
    float best_crit = -1;

    for (uint32_t i = 0; i < effort; i++) {
        trial *t = &room[1 - best];
        try_stretch(t, p, dim, e, i, b);
        const float crit = tq_row_criterion(t->dot, t->ll);
        if (crit > best_crit) {
            best_crit = crit;
            best = 1 - best;
        }
    }
    const uint8x16_t sign = vdupq_n_u8((uint8_t)(1u << (b - 1)));
    for (uint32_t j = 0; j < dim; j += 16)
        vst1q_u8(code + j,
                 vorrq_u8(vld1q_u8(room[best].mag + j), vandq_u8(negative16(p + j), sign)));
    return room[best].dot;
}

/* 8 bits: the levels themselves. Returns <p, levels>. */
static int32_t round_levels(uint8_t *code, const int16_t *p, uint32_t dim)
{
    int32x4_t pl = vdupq_n_s32(0);

    for (uint32_t j = 0; j < dim; j += 8) {
        const int16x8_t v = vld1q_s16(p + j), a = vabsq_s16(v);
        int16x8_t l = vminq_s16(vrshrq_n_s16(a, 6), vdupq_n_s16(127));
        pl = vmlal_s16(pl, vget_low_s16(a), vget_low_s16(l));
        pl = vmlal_high_s16(pl, a, l);
        l = vbslq_s16(vcltzq_s16(v), vnegq_s16(l), l);
        vst1_u8(code + j, vreinterpret_u8_s8(vmovn_s16(l)));
    }
    return vaddvq_s32(pl);
}

static float largest(const float *y, uint32_t dim)
{
    float32x4_t top = vdupq_n_f32(0);
    for (uint32_t j = 0; j < dim; j += 4)
        top = vmaxq_f32(top, vabsq_f32(vld1q_f32(y + j)));
    return vmaxvq_f32(top);
}

TQ_INLINE void encode_row(const tq_codec *c, const encoder *e, uint8_t *codes, uint8_t *scale,
                          const float *x, const int b)
{
    tq_rotated_row r;
    int16_t p[ROOM];
    uint8_t code[ROOM];
    float num;
    int32_t dot;

    if (!tq_neon_row_rotate(&r, x, c->dim)) {
        memset(codes, 0, c->code_bytes);
        tq_store_le16(scale, 0);
        return;
    }
    if (b == 8) {
        const float top = largest(r.y, c->dim);
        num = r.norm / top * r.norm * e->to_num;
        tq_neon_fix(p, r.y, c->dim, 4064.0f / top);
        dot = round_levels(codes, p, c->dim);
    } else {
        num = r.norm * e->to_num;
        tq_neon_fix(p, r.y, c->dim, e->to_p / r.norm);
        dot = search(code, p, c->dim, e, c->effort, b);
        tq_neon_pack_planes(codes, code, c->dim, e->book->widths);
    }
    tq_store_le16(scale, tq_row_scale(num, dot, r.saturates));
}

TQ_INLINE void encode_norm(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n, const int b)
{
    float room[TQ_ROW_MAX];
    encoder e;

    encoder_init(&e, c);
    for (size_t row = 0; row < n; row++) {
        uint8_t *mean = dst.zero ? dst.zero + row * dst.zero_stride : NULL;
        encode_row(c, &e, dst.codes + row * dst.codes_stride, dst.scale + row * dst.scale_stride,
                   tq_row_take_mean(c, mean, src + row * src_stride, room), b);
    }
}

#define NORM(b)                                                                                    \
    void tq_neon_encode_turbo##b(const tq_codec *c, tq_planes dst, const float *src,               \
                                 size_t src_stride, size_t n)                                      \
    {                                                                                              \
        encode_norm(c, dst, src, src_stride, n, b);                                                \
    }

NORM(2)
NORM(3)
NORM(4)
NORM(5)
NORM(6)
NORM(8)

/* ---- Decode ---- */

void tq_neon_norm_levels(const tq_codec *c, int8_t *level, const uint8_t *codes)
{
    const tq_codebook *book = tq_codebook_get(c->bits);
    const uint8x16x2_t table = level_table(book);
    const uint8x16_t sign = vdupq_n_u8((uint8_t)(1u << (c->bits - 1)));
    uint8_t code[ROOM];

    if (c->bits == 8) {
        memcpy(level, codes, c->dim);
        return;
    }
    tq_neon_unpack_planes(code, codes, c->dim, book->widths);
    for (uint32_t j = 0; j < c->dim; j += 16) {
        const uint8x16_t v = vld1q_u8(code + j);
        const int8x16_t l = vreinterpretq_s8_u8(vqtbl2q_u8(table, vbicq_u8(v, sign)));
        vst1q_s8(level + j, vbslq_s8(vtstq_u8(v, sign), vnegq_s8(l), l));
    }
}

static void decode(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src, size_t n,
                   int rotated)
{
    tq_neon_decoder d;
    int8_t level[ROOM];

    tq_neon_decoder_init(&d, c, tq_codebook_get(c->bits)->unit, rotated);
    for (size_t row = 0; row < n; row++) {
        tq_neon_norm_levels(c, level, src.codes + row * src.codes_stride);
        tq_neon_reconstruct(&d, dst + row * dst_stride, level, src.scale + row * src.scale_stride,
                            c->zero_bytes ? src.zero + row * src.zero_stride : NULL);
    }
}

void tq_neon_decode_norm(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                         size_t n)
{
    decode(c, dst, dst_stride, src, n, 0);
}

void tq_neon_decode_rotated_norm(const tq_codec *c, float *dst, size_t dst_stride,
                                 tq_const_planes src, size_t n)
{
    decode(c, dst, dst_stride, src, n, 1);
}
