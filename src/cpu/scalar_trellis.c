/* SPDX-License-Identifier: MIT */
/* scalar_trellis.c — trellis codes, reference version. Source: docs/format.md 9.
 *
 * As norm-codebook, but which quarter of the table a coordinate may use depends on its path bit
 * and the three before it. Those three are a state, so the cheapest of all 2^dim paths is found by
 * Viterbi's search: the cheapest way into each of eight states, one coordinate at a time, then
 * back from the cheapest end. Everything is integer arithmetic; ties go to the older bit 0 and to
 * the smaller state.
 */
#include "cpu/scalar.h"
#include "cpu/scalar_rotated.h"
#include "f16.h"
#include "pack.h"
#include "trellis.h"

#include <string.h>

enum { N_STATES = 8, FAR = 1 << 30 };

/* What the search keeps of one coordinate. */
typedef struct step {
    uint8_t pick[4]; /* best level number of each subset */
    uint8_t back;    /* bit t: the path into state t comes from the state whose oldest bit is 1 */
} step;

/* The best level of each subset for p: its number and its cost. */
static void best_of_subsets(const tq_trellis *t, int32_t p, const int32_t *cost,
                            int16_t edge[4][TQ_TRELLIS_SUBSET], uint8_t pick[4], int32_t price[4])
{
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t o = 0;
        for (uint32_t j = 0; j + 1 < 1u << (t->bits - 1); j++)
            o += p > edge[k][j];
        pick[k] = (uint8_t)o;
        price[k] = cost[4 * o + k] - p * t->levels[4 * o + k];
    }
}

/* One coordinate: total [8] of the states before it becomes that after it. Returns step.back. */
static uint8_t advance(int32_t total[N_STATES], const int32_t price[4])
{
    int32_t next[N_STATES];
    uint32_t back = 0;

    for (uint32_t state = 0; state < N_STATES; state++) {
        const uint32_t x = state & 1, x1 = state >> 1 & 1, x2 = state >> 2;
        const uint32_t before = x1 + 2 * x2; /* x3 = 0; with x3 = 1 it is before + 4 */
        const int32_t c0 = total[before] + price[x2 + 2 * (x ^ x1)];
        const int32_t c1 = total[before + 4] + price[x2 + 2 * (x ^ x1 ^ 1)];

        next[state] = c1 < c0 ? c1 : c0;
        back |= (uint32_t)(c1 < c0) << state;
    }
    memcpy(total, next, sizeof next);
    return (uint8_t)back;
}

/* Codes [dim] of the cheapest path under the stretch h/64. */
static void cheapest_path(uint8_t *code, const int16_t *p, uint32_t dim, const tq_trellis *t,
                          uint32_t h)
{
    int32_t cost[TQ_TRELLIS_LEVELS];
    int16_t edge[4][TQ_TRELLIS_SUBSET];
    int32_t total[N_STATES] = {0, FAR, FAR, FAR, FAR, FAR, FAR, FAR};
    step steps[TQ_ROW_MAX];
    uint32_t state = 0;

    tq_trellis_costs(t, h, cost);
    tq_trellis_edges(t, h, edge);
    for (uint32_t j = 0; j < dim; j++) {
        int32_t price[4];
        best_of_subsets(t, p[j], cost, edge, steps[j].pick, price);
        steps[j].back = advance(total, price);
    }
    for (uint32_t i = 1; i < N_STATES; i++)
        if (total[i] < total[state])
            state = i;
    for (uint32_t j = dim; j-- > 0;) {
        const uint32_t x = state & 1, x1 = state >> 1 & 1, x2 = state >> 2;
        const uint32_t x3 = (uint32_t)steps[j].back >> state & 1;
        const uint32_t k = x2 + 2 * (x ^ x1 ^ x3);

        code[j] = (uint8_t)(steps[j].pick[k] | x << (t->bits - 1));
        state = x1 + 2 * x2 + 4 * x3;
    }
}

static void encode_row(const tq_codec *c, uint8_t *codes, uint8_t *scale, const float *x)
{
    const tq_trellis *t = tq_trellis_get(c->bits);
    tq_rotated_row r;
    int16_t p[TQ_ROW_MAX];
    uint8_t code[TQ_ROW_MAX], best_code[TQ_ROW_MAX];
    int8_t level[TQ_ROW_MAX];
    float best = -1;
    int32_t best_dot = 0;

    if (!tq_row_rotate(&r, x, c->dim)) {
        memset(codes, 0, c->code_bytes);
        tq_store_le16(scale, 0);
        return;
    }
    const float num = tq_row_coordinates(p, &r, c->dim, t->unit, t->frac);
    for (uint32_t i = 0; i < c->effort; i++) {
        int32_t dot = 0, ll = 0;

        cheapest_path(code, p, c->dim, t, tq_stretches[i]);
        tq_trellis_row_levels(t, level, code, c->dim);
        for (uint32_t j = 0; j < c->dim; j++) {
            dot += p[j] * level[j];
            ll += level[j] * level[j];
        }
        const float criterion = tq_row_criterion(dot, ll);
        if (criterion > best) {
            best = criterion;
            best_dot = dot;
            memcpy(best_code, code, c->dim);
        }
    }
    tq_pack_planes(codes, best_code, c->dim, t->widths);
    tq_store_le16(scale, tq_row_scale(num, best_dot, r.saturates));
}

void tq_scalar_encode_tcq(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                          size_t n)
{
    float room[TQ_ROW_MAX];

    for (size_t row = 0; row < n; row++) {
        uint8_t *mean = dst.zero ? dst.zero + row * dst.zero_stride : NULL;
        encode_row(c, dst.codes + row * dst.codes_stride, dst.scale + row * dst.scale_stride,
                   tq_row_take_mean(c, mean, src + row * src_stride, room));
    }
}

static void decode(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src, size_t n,
                   int rotated)
{
    const tq_trellis *t = tq_trellis_get(c->bits);
    uint8_t code[TQ_ROW_MAX];
    int8_t level[TQ_ROW_MAX];

    for (size_t row = 0; row < n; row++) {
        tq_unpack_planes(code, src.codes + row * src.codes_stride, c->dim, t->widths);
        tq_trellis_row_levels(t, level, code, c->dim);
        tq_row_reconstruct(c, dst + row * dst_stride, level, t->unit,
                           src.scale + row * src.scale_stride,
                           c->zero_bytes ? src.zero + row * src.zero_stride : NULL, rotated);
    }
}

void tq_scalar_decode_tcq(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                          size_t n)
{
    decode(c, dst, dst_stride, src, n, 0);
}

void tq_scalar_decode_rotated_tcq(const tq_codec *c, float *dst, size_t dst_stride,
                                  tq_const_planes src, size_t n)
{
    decode(c, dst, dst_stride, src, n, 1);
}
