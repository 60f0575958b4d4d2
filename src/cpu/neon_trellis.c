/* SPDX-License-Identifier: MIT */
/* neon_trellis.c — trellis codes for NEON: Viterbi's search four at a time, and the way between
 * paths, codes and levels without states.
 *
 * A lane is one (row, stretch) pair, a register one state of all lanes, so a step of the trellis is
 * additions, minima and compares without a shuffle. The price of the best level of a subset is the
 * minimum of (cost - p * level) over the subset: no level number is needed until the path is known.
 * Levels are antisymmetric: |p| needs only the positive levels and the two negative ones that a
 * subset may prefer for |p| >= 1, and a negative p swaps subsets k and 3 - k.
 */
#include "cpu/neon_codec.h"
#include "cpu/neon_rotated.h"
#include "trellis.h"

enum {
    LANES = 4,
    FAR = 1 << 30,
    ROOM = TQ_ROW_MAX + TQ_ROW_PAD,
    PRICED = TQ_TRELLIS_LEVELS / 2 + 2, /* levels that |p| may choose */
    MAX_EFFORT = 12,
    WORDS = TQ_ROW_MAX / 32
};

/* ---- Search ---- */

/* What the searches leave: path bits, 32 coordinates of a lane to a word. */
typedef struct paths {
    uint32_t x[WORDS][LANES];
} paths;

typedef struct prices {
    int32x4_t cost[PRICED]; /* by lane; the two negative levels first */
    int32_t level[PRICED];
    int n_rows; /* positive levels of a subset */
} prices;

static void prices_init(prices *w, const tq_trellis *t, const uint8_t h[LANES])
{
    const uint32_t half = 1u << t->bits; /* the first positive level */
    const int32_t stretch[LANES] = {h[0], h[1], h[2], h[3]};
    const int32x4_t by = vld1q_s32(stretch);

    w->n_rows = (int)half / 4;
    for (uint32_t i = 0; i < half + 2; i++) {
        const int level = t->levels[half - 2 + i];
        w->level[i] = level;
        w->cost[i] = vrshrq_n_s32(vmulq_n_s32(by, (level * level) << t->frac), 6);
    }
}

/* The best price of each subset. */
TQ_INLINE void price_subsets(int32x4_t price[4], const prices *w, int32x4_t p)
{
    const int32x4_t q = vabsq_s32(p);
    const int32x4_t *cost = w->cost;
    const int32_t *level = w->level;

    int32x4_t c2 = vmlsq_n_s32(cost[0], q, level[0]);
    int32x4_t c3 = vmlsq_n_s32(cost[1], q, level[1]);
    int32x4_t c0 = vmlsq_n_s32(cost[2], q, level[2]);
    int32x4_t c1 = vmlsq_n_s32(cost[3], q, level[3]);
    c2 = vminq_s32(c2, vmlsq_n_s32(cost[4], q, level[4]));
    c3 = vminq_s32(c3, vmlsq_n_s32(cost[5], q, level[5]));
    for (int i = 1; i < w->n_rows; i++) {
        cost += 4;
        level += 4;
        c0 = vminq_s32(c0, vmlsq_n_s32(cost[2], q, level[2]));
        c1 = vminq_s32(c1, vmlsq_n_s32(cost[3], q, level[3]));
        c2 = vminq_s32(c2, vmlsq_n_s32(cost[4], q, level[4]));
        c3 = vminq_s32(c3, vmlsq_n_s32(cost[5], q, level[5]));
    }
    const uint32x4_t negative = vcltzq_s32(p);
    price[0] = vbslq_s32(negative, c3, c0);
    price[1] = vbslq_s32(negative, c2, c1);
    price[2] = vbslq_s32(negative, c1, c2);
    price[3] = vbslq_s32(negative, c0, c3);
}

/* One coordinate. s: the totals of the states x + 2 x1 + 4 x2, in place. Returns in bit t of each
 * lane whether the way into state t comes from the state whose oldest bit is 1; bits from 8 on are
 * junk. */
TQ_INLINE uint32x4_t advance(int32x4_t s[8], const int32x4_t price[4])
{
    int32x4_t next[8];
    uint32x4_t back = vdupq_n_u32(0);

/* The states x1 + 2 x2 and x1 + 2 x2 + 4 lead to x + 2 x1 + 4 x2. */
#define INTO(t, x, x1, x2)                                                                         \
    {                                                                                              \
        const int32x4_t c0 = vaddq_s32(s[(x1) + 2 * (x2)], price[(x2) + 2 * ((x) ^ (x1))]);        \
        const int32x4_t c1 =                                                                       \
            vaddq_s32(s[(x1) + 2 * (x2) + 4], price[(x2) + 2 * (1 ^ (x) ^ (x1))]);                 \
        next[t] = vminq_s32(c0, c1);                                                               \
        back = vsliq_n_u32(back, vcltq_s32(c1, c0), t);                                            \
    }
    INTO(0, 0, 0, 0)
    INTO(1, 1, 0, 0)
    INTO(2, 0, 1, 0)
    INTO(3, 1, 1, 0)
    INTO(4, 0, 0, 1)
    INTO(5, 1, 0, 1)
    INTO(6, 0, 1, 1)
    INTO(7, 1, 1, 1)
#undef INTO
    for (int t = 0; t < 8; t++)
        s[t] = next[t];
    return back;
}

/* pt [4] := coordinates n .. n + 3 of four lanes, a coordinate's lanes side by side. */
TQ_INLINE void transpose(int32x4_t pt[4], const int16_t *const p[LANES], uint32_t n)
{
    int32x4_t r[4], u[4];

    for (int i = 0; i < 4; i++)
        r[i] = vmovl_s16(vld1_s16(p[i] + n));
    u[0] = vtrn1q_s32(r[0], r[1]);
    u[1] = vtrn2q_s32(r[0], r[1]);
    u[2] = vtrn1q_s32(r[2], r[3]);
    u[3] = vtrn2q_s32(r[2], r[3]);
    pt[0] = vcombine_s32(vget_low_s32(u[0]), vget_low_s32(u[2]));
    pt[1] = vcombine_s32(vget_low_s32(u[1]), vget_low_s32(u[3]));
    pt[2] = vcombine_s32(vget_high_s32(u[0]), vget_high_s32(u[2]));
    pt[3] = vcombine_s32(vget_high_s32(u[1]), vget_high_s32(u[3]));
}

/* Four searches. p: the coordinates of each lane, h: the stretch of each. */
static void search(paths *out, const tq_trellis *t, const int16_t *const p[LANES],
                   const uint8_t h[LANES], uint32_t dim)
{
    uint32_t from[TQ_ROW_MAX][LANES];
    prices w;
    int32x4_t s[8];

    prices_init(&w, t, h);
    for (int i = 0; i < 8; i++)
        s[i] = vdupq_n_s32(i ? FAR : 0);
    for (uint32_t n = 0; n < dim; n += 4) {
        int32x4_t pt[4];
        transpose(pt, p, n);
        for (uint32_t i = 0; i < 4; i++) {
            int32x4_t price[4];
            price_subsets(price, &w, pt[i]);
            vst1q_u32(from[n + i], advance(s, price));
        }
    }
    uint32x4_t state = vdupq_n_u32(0); /* the cheapest end, the first of equals */
    for (uint32_t i = 1; i < 8; i++) {
        state = vbslq_u32(vcltq_s32(s[i], s[0]), vdupq_n_u32(i), state);
        s[0] = vminq_s32(s[0], s[i]);
    }
    const uint32x4_t one = vdupq_n_u32(1);
    uint32x4_t x = vdupq_n_u32(0);
    for (uint32_t n = dim; n-- > 0;) {
        const int32x4_t down = vnegq_s32(vreinterpretq_s32_u32(state));
        const uint32x4_t x3 = vandq_u32(vshlq_u32(vld1q_u32(from[n]), down), one);

        x = vorrq_u32(vshlq_n_u32(x, 1), vandq_u32(state, one));
        state = vorrq_u32(vshrq_n_u32(state, 1), vshlq_n_u32(x3, 2));
        if (n % 32 == 0) {
            vst1q_u32(out->x[n / 32], x);
            x = vdupq_n_u32(0);
        }
    }
}

/* ---- Paths to codes ---- */

/* All levels by number. */
typedef struct level_table {
    uint8x16x4_t low, high;
    int is_wide; /* more than 64 */
} level_table;

static level_table level_table_get(const tq_trellis *t)
{
    uint8_t all[TQ_TRELLIS_LEVELS] = {0};
    level_table v;

    memcpy(all, t->levels, 2u << t->bits);
    v.low = vld1q_u8_x4(all);
    v.high = vld1q_u8_x4(all + 64);
    v.is_wide = t->bits == 6;
    return v;
}

TQ_INLINE int8x16_t level_lookup(const level_table *v, uint8x16_t number)
{
    uint8x16_t level = vqtbl4q_u8(v->low, number); /* 0 beyond the table */
    if (v->is_wide)
        level = vqtbx4q_u8(level, v->high, vsubq_u8(number, vdupq_n_u8(64)));
    return vreinterpretq_s8_u8(level);
}

/* Bits to lanes of all ones or zeros. */
TQ_INLINE uint16x8_t spread8(uint32_t bits)
{
    const uint16x8_t one = {1, 2, 4, 8, 16, 32, 64, 128};
    return vtstq_u16(vdupq_n_u16((uint16_t)bits), one);
}

/* Level numbers of eight coordinates: 4 o + k, o the count of the subset's boundaries below p.
 * edge [4 j + k]; z0, z1: the bits of k. */
TQ_INLINE uint8x8_t number8(int16x8_t p, uint32_t z0, uint32_t z1, const int16_t *edge,
                            uint32_t n_edges)
{
    const uint16x8_t k0 = vandq_u16(spread8(z0), vdupq_n_u16(1));
    const uint16x8_t k = vorrq_u16(k0, vandq_u16(spread8(z1), vdupq_n_u16(2)));
    /* Bytes 2 k and 2 k + 1. */
    const uint8x16_t pick = vreinterpretq_u8_u16(vmlaq_n_u16(vdupq_n_u16(0x0100), k, 0x0202));
    uint16x8_t o = vdupq_n_u16(0);

    for (uint32_t j = 0; j < n_edges; j++) {
        const uint8x16_t four =
            vcombine_u8(vreinterpret_u8_s16(vld1_s16(edge + 4 * (size_t)j)), vdup_n_u8(0));
        const int16x8_t bound = vreinterpretq_s16_u8(vqtbl1q_u8(four, pick));
        o = vsubq_u16(o, vcgtq_s16(p, bound));
    }
    return vmovn_u16(vorrq_u16(vshlq_n_u16(o, 2), k));
}

typedef struct evaluation {
    int32_t dot, ll; /* <p, levels>, <levels, levels> */
} evaluation;

/* The codes of one lane's path. p and code are padded; p is odd in the row and 0 behind it. */
static evaluation codes_of_path(uint8_t *code, const tq_trellis *t, const level_table *table,
                                const paths *path, uint32_t lane, const int16_t *p,
                                const int16_t *edge, uint32_t dim)
{
    const uint32_t n_edges = (1u << (t->bits - 1)) - 1;
    const uint8x16_t top = vdupq_n_u8((uint8_t)(1u << (t->bits - 1)));
    int32x4_t dots = vdupq_n_s32(0), squares = dots;
    uint32_t before = 0;

    for (uint32_t j = 0; j < dim; j += 16) {
        const uint32_t x = path->x[j / 32][lane] >> (j % 32) & 0xffffu;
        /* Bits of the coordinates 1, 2 and 3 earlier. */
        const uint32_t all = x << 3 | before;
        const uint32_t z0 = all >> 1, z1 = x ^ all >> 2 ^ all;
        const int16x8_t p0 = vld1q_s16(p + j), p1 = vld1q_s16(p + j + 8);
        const uint8x16_t number = vcombine_u8(number8(p0, z0, z1, edge, n_edges),
                                              number8(p1, z0 >> 8, z1 >> 8, edge, n_edges));
        const uint8x16_t xs = vcombine_u8(vmovn_u16(spread8(x)), vmovn_u16(spread8(x >> 8)));
        const uint8x16_t inside =
            vcombine_u8(vmovn_u16(vtstq_s16(p0, p0)), vmovn_u16(vtstq_s16(p1, p1)));
        const int8x16_t level = vandq_s8(level_lookup(table, number), vreinterpretq_s8_u8(inside));
        const int16x8_t v0 = vmovl_s8(vget_low_s8(level)), v1 = vmovl_s8(vget_high_s8(level));

        vst1q_u8(code + j, vorrq_u8(vshrq_n_u8(number, 2), vandq_u8(xs, top)));
        dots = vmlal_s16(dots, vget_low_s16(p0), vget_low_s16(v0));
        dots = vmlal_high_s16(dots, p0, v0);
        dots = vmlal_s16(dots, vget_low_s16(p1), vget_low_s16(v1));
        dots = vmlal_high_s16(dots, p1, v1);
        squares = vmlal_s16(squares, vget_low_s16(v0), vget_low_s16(v0));
        squares = vmlal_high_s16(squares, v0, v0);
        squares = vmlal_s16(squares, vget_low_s16(v1), vget_low_s16(v1));
        squares = vmlal_high_s16(squares, v1, v1);
        before = x >> 13;
    }
    evaluation e = {vaddvq_s32(dots), vaddvq_s32(squares)};
    return e;
}

/* ---- Encode ---- */

/* A row between its rotation and its block. */
typedef struct row_state {
    float num;
    int saturates;
    int32_t dot;
    float criterion;
    uint8_t *codes;
    uint8_t *scale;
} row_state;

typedef struct encoder {
    const tq_trellis *t;
    level_table table;
    uint32_t dim, effort;
    float to_p, to_num; /* of tq_row_coordinates */
    int16_t edge[MAX_EFFORT][TQ_TRELLIS_LEVELS];
    int16_t p[LANES][ROOM];
    row_state row[LANES];
    uint8_t code[2][ROOM]; /* the best of the current row, and the one on trial */
} encoder;

static void encoder_init(encoder *e, const tq_codec *c)
{
    const tq_trellis *t = tq_trellis_get(c->bits);
    const double u = (double)t->unit, one = (double)(1u << t->frac);
    int16_t edge[4][TQ_TRELLIS_SUBSET];

    e->t = t;
    e->table = level_table_get(t);
    e->dim = c->dim;
    e->effort = c->effort;
    e->to_p = (float)(one * sqrt((double)c->dim) / u);
    e->to_num = (float)(2 * one / (u * u));
    for (uint32_t i = 0; i < c->effort; i++) {
        tq_trellis_edges(t, tq_stretches[i], edge);
        for (uint32_t j = 0; j < (2u << t->bits) - 4; j++)
            e->edge[i][j] = edge[j % 4][j / 4];
    }
}

/* Search and store `rows` live rows. The searches fill the lanes row by row, so that a row of one
 * stretch shares them with three others; lanes never mix. */
static void encode_rows(encoder *e, uint32_t rows)
{
    const uint32_t items = rows * e->effort;
    int best = 0;

    for (uint32_t first = 0; first < items; first += LANES) {
        const int16_t *p[LANES];
        uint8_t h[LANES];
        paths path;

        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint32_t item = first + lane < items ? first + lane : first;
            p[lane] = e->p[item / e->effort];
            h[lane] = tq_stretches[item % e->effort];
        }
        search(&path, e->t, p, h, e->dim);
        for (uint32_t lane = 0; lane < LANES && first + lane < items; lane++) {
            const uint32_t stretch = (first + lane) % e->effort;
            row_state *row = &e->row[(first + lane) / e->effort];
            const evaluation v = codes_of_path(e->code[1 - best], e->t, &e->table, &path, lane,
                                               p[lane], e->edge[stretch], e->dim);
            const float criterion = tq_row_criterion(v.dot, v.ll);
            if (stretch == 0 || criterion > row->criterion) {
                row->criterion = criterion;
                row->dot = v.dot;
                best = 1 - best;
            }
            if (stretch + 1 == e->effort) {
                tq_neon_pack_planes(row->codes, e->code[best], e->dim, e->t->widths);
                tq_store_le16(row->scale, tq_row_scale(row->num, row->dot, row->saturates));
            }
        }
    }
}

/* Rotation and fixed point of one row. Returns 0, with a block of zeros, if it counts as zero. */
static int take_row(encoder *e, row_state *row, int16_t *p, const tq_codec *c, uint8_t *mean,
                    const float *x)
{
    tq_rotated_row r;
    float room[TQ_ROW_MAX];

    if (!tq_neon_row_rotate(&r, tq_row_take_mean(c, mean, x, room), e->dim)) {
        memset(row->codes, 0, c->code_bytes);
        memset(row->scale, 0, 2);
        return 0;
    }
    tq_neon_fix(p, r.y, e->dim, e->to_p / r.norm);
    row->num = r.norm * e->to_num;
    row->saturates = r.saturates;
    return 1;
}

void tq_neon_encode_tcq(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                        size_t n)
{
    uint32_t rows = 0;
    encoder e;

    encoder_init(&e, c);
    for (size_t i = 0; i < n; i++) {
        row_state *row = &e.row[rows];
        row->codes = dst.codes + i * dst.codes_stride;
        row->scale = dst.scale + i * dst.scale_stride;
        rows += (uint32_t)take_row(&e, row, e.p[rows], c,
                                   dst.zero ? dst.zero + i * dst.zero_stride : NULL,
                                   src + i * src_stride);
        if (rows == LANES) {
            encode_rows(&e, rows);
            rows = 0;
        }
    }
    encode_rows(&e, rows);
}

/* ---- Decode ---- */

void tq_neon_trellis_levels(const tq_codec *c, int8_t *level, const uint8_t *codes)
{
    enum { FRONT = 16 };
    const tq_trellis *t = tq_trellis_get(c->bits);
    const level_table table = level_table_get(t);
    const int8x16_t to_bit = vdupq_n_s8((int8_t)(1 - (int)c->bits));
    const uint8x16_t number_mask = vdupq_n_u8((uint8_t)((1u << (c->bits - 1)) - 1));
    const uint8x16_t one = vdupq_n_u8(1);
    uint8_t room[FRONT + ROOM], *code = room + FRONT;

    memset(room, 0, FRONT); /* before the first coordinate all bits are 0 */
    tq_neon_unpack_planes(code, codes, c->dim, t->widths);
    for (uint32_t j = 0; j < c->dim; j += 16) {
        const uint8_t *at = code + j;
        const uint8x16_t x = vld1q_u8(at);
        const uint8x16_t three = veorq_u8(x, veorq_u8(vld1q_u8(at - 1), vld1q_u8(at - 3)));
        const uint8x16_t z0 = vandq_u8(vshlq_u8(vld1q_u8(at - 2), to_bit), one);
        const uint8x16_t z1 = vandq_u8(vshlq_u8(three, to_bit), one);
        const uint8x16_t k = vorrq_u8(z0, vshlq_n_u8(z1, 1));
        const uint8x16_t number = vorrq_u8(vshlq_n_u8(vandq_u8(x, number_mask), 2), k);

        vst1q_s8(level + j, level_lookup(&table, number));
    }
}

static void decode(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src, size_t n,
                   int rotated)
{
    tq_neon_decoder d;
    int8_t level[ROOM];

    tq_neon_decoder_init(&d, c, tq_trellis_get(c->bits)->unit, rotated);
    for (size_t row = 0; row < n; row++) {
        tq_neon_trellis_levels(c, level, src.codes + row * src.codes_stride);
        tq_neon_reconstruct(&d, dst + row * dst_stride, level, src.scale + row * src.scale_stride,
                            c->zero_bytes ? src.zero + row * src.zero_stride : NULL);
    }
}

void tq_neon_decode_tcq(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                        size_t n)
{
    decode(c, dst, dst_stride, src, n, 0);
}

void tq_neon_decode_rotated_tcq(const tq_codec *c, float *dst, size_t dst_stride,
                                tq_const_planes src, size_t n)
{
    decode(c, dst, dst_stride, src, n, 1);
}
