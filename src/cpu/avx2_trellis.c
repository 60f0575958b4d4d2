/* SPDX-License-Identifier: MIT */
/* avx2_trellis.c — trellis rows: which searches run side by side, and the entries of the table.
 *
 * Rows are taken a few at a time; each live row asks for one search per stretch, and the searches
 * fill the lanes in that order, so that a single row at the default effort is one pass and eight
 * rows are three. Bytes do not depend on the company: lanes never mix.
 */
#include "cpu/avx2_codec.h"
#include "cpu/avx2_rotated.h"
#include "cpu/avx2_trellis.h"
#include "f16.h"

#include <string.h>

enum { MAX_ROWS = 2 * TQ_LANES, CHUNK = 8 * 512, MAX_STRETCHES = 12 };

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
    uint32_t dim, stride; /* of p */
    uint32_t effort;
    tq_trellis_search16_fn *search16; /* or NULL */
    tq_trellis_codes_fn *codes;
    tq_row_constants k;
    int16_t edge[MAX_STRETCHES][TQ_TRELLIS_LEVELS];
    int16_t p[CHUNK + MAX_ROWS * 32]; /* [rows][stride] */
    row_state row[MAX_ROWS];
    uint8_t code[2][TQ_ROW_MAX + 32]; /* the best of the current row, and the one on trial */
} encoder;

/* Search and store `rows` live rows. */
static void encode_rows(encoder *e, uint32_t rows)
{
    const uint32_t items = rows * e->effort;
    int best = 0;

    for (uint32_t first = 0, lanes; first < items; first += lanes) {
        const int16_t *p[2 * TQ_LANES];
        uint8_t h[2 * TQ_LANES];
        tq_paths paths[2];

        lanes = e->search16 && items - first > TQ_LANES ? 2 * TQ_LANES : TQ_LANES;
        for (uint32_t lane = 0; lane < lanes; lane++) {
            const uint32_t item = first + lane < items ? first + lane : first;
            p[lane] = e->p + item / e->effort * e->stride;
            h[lane] = tq_stretches[item % e->effort];
        }
        if (lanes > TQ_LANES)
            e->search16(paths, e->t, p, h, e->dim);
        else
            tq_avx2_trellis_search(paths, e->t, p, h, e->dim);
        for (uint32_t lane = 0; lane < lanes && first + lane < items; lane++) {
            const uint32_t stretch = (first + lane) % e->effort;
            row_state *row = &e->row[(first + lane) / e->effort];
            int32_t dot, ll;

            e->codes(e->code[1 - best], &dot, &ll, e->t, &paths[lane / TQ_LANES], lane % TQ_LANES,
                     p[lane], e->edge[stretch], e->dim);
            const float criterion = tq_row_criterion(dot, ll);
            if (stretch == 0 || criterion > row->criterion) {
                row->criterion = criterion;
                row->dot = dot;
                best = 1 - best;
            }
            if (stretch + 1 == e->effort) {
                tq_avx2_trellis_pack(row->codes, e->code[best], e->t, e->dim);
                tq_store_le16(row->scale, tq_row_scale(row->num, row->dot, row->saturates));
            }
        }
    }
}

/* Rotation and fixed point of one row. Returns 0, with a block of zeros, if it counts as zero. Not
 * inlined: its 8 KB of the stack are free again when the search, which needs most, begins. */
__attribute__((noinline)) static int take_row(encoder *e, row_state *row, int16_t *p,
                                              const tq_codec *c, uint8_t *mean, const float *x)
{
    tq_rotated_row r;
    float room[TQ_ROW_MAX];

    if (!tq_avx2_row_rotate(&r, tq_row_take_mean(c, mean, x, room), e->dim)) {
        memset(row->codes, 0, c->code_bytes);
        memset(row->scale, 0, 2);
        return 0;
    }
    tq_avx2_fixed_point(p, &r, e->dim, e->k.to_p / r.norm);
    row->num = r.norm * e->k.to_num;
    row->saturates = r.saturates;
    return 1;
}

void tq_avx2_encode_tcq_by(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n, tq_trellis_search16_fn *search16, tq_trellis_codes_fn *codes)
{
    const uint32_t most = search16 ? MAX_ROWS : TQ_LANES, fit = CHUNK / c->dim;
    const uint32_t capacity = fit < most ? fit : most;
    uint32_t rows = 0;
    encoder e;

    e.search16 = search16;
    e.codes = codes;
    e.t = tq_trellis_get(c->bits);
    e.dim = c->dim;
    e.stride = (c->dim + 31) / 32 * 32;
    e.effort = c->effort;
    e.k = tq_avx2_row_constants(c->dim, e.t->unit, e.t->frac);
    for (uint32_t i = 0; i < c->effort; i++)
        tq_avx2_trellis_edges(e.edge[i], e.t, tq_stretches[i]);
    for (size_t i = 0; i < n; i++) {
        row_state *row = &e.row[rows];
        row->codes = dst.codes + i * dst.codes_stride;
        row->scale = dst.scale + i * dst.scale_stride;
        rows += (uint32_t)take_row(&e, row, e.p + rows * e.stride, c,
                                   dst.zero ? dst.zero + i * dst.zero_stride : NULL,
                                   src + i * src_stride);
        if (rows == capacity) {
            encode_rows(&e, rows);
            rows = 0;
        }
    }
    encode_rows(&e, rows);
}

void tq_avx2_encode_tcq(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                        size_t n)
{
    tq_avx2_encode_tcq_by(c, dst, src, src_stride, n, NULL, tq_avx2_trellis_codes);
}

static void decode(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src, size_t n,
                   int rotated)
{
    const tq_trellis *t = tq_trellis_get(c->bits);
    tq_trellis_tables tables;
    int8_t level[TQ_ROW_MAX + 32];
    tq_avx2_decoder d;

    tq_avx2_trellis_tables(&tables, t, 0);
    tq_avx2_decoder_init(&d, c, t->unit, rotated);
    for (size_t row = 0; row < n; row++) {
        tq_avx2_trellis_levels(level, 0, src.codes + row * src.codes_stride, 0, &tables, c->bits,
                               c->dim, 1);
        tq_avx2_reconstruct(&d, dst + row * dst_stride, level, src.scale + row * src.scale_stride,
                            c->zero_bytes ? src.zero + row * src.zero_stride : NULL);
    }
}

void tq_avx2_decode_tcq(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                        size_t n)
{
    decode(c, dst, dst_stride, src, n, 0);
}

void tq_avx2_decode_rotated_tcq(const tq_codec *c, float *dst, size_t dst_stride,
                                tq_const_planes src, size_t n)
{
    decode(c, dst, dst_stride, src, n, 1);
}
