/* SPDX-License-Identifier: MIT */
/* avx2_norm.c — norm-codebook for AVX2: 16 coordinates at a time, in 16-bit integers.
 *
 * A coordinate's magnitude is found by comparing |p| with every boundary, its level by a byte
 * shuffle, and both products of the search by one multiply-add each. Levels stay below 128 and
 * |p| below 2^15, so nothing overflows. Codes are bytes until the planes are packed; the planes
 * are made so that this is whole-vector shifts (docs/format.md 8.1).
 */
#include "codebook.h"
#include "cpu/avx2.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_rotated.h"
#include "f16.h"

#include <assert.h>

enum { ROOM = TQ_ROW_MAX + TQ_ROW_PAD, MAX_EDGES = 31, MAX_EFFORT = 12 };

TQ_INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

TQ_INLINE void store256(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

TQ_INLINE __m128i load128(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

TQ_INLINE int32_t sum8(__m256i v)
{
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

/* ---- Encode: codes ---- */

/* 4 bits: |p| is cut into 16 equal cells, so narrow that none holds two boundaries of any stretch.
 * A cell knows the boundary in it (or 32767, which no |p| exceeds) and how many lie before it: one
 * comparison in place of seven. The cell of |p| is the same for all stretches. */
typedef struct norm_cells {
    __m256i low, high; /* bytes of the boundary, by cell */
    __m256i before;
} norm_cells;

/* Cells of 65536 / 475 = 138.0: the nearest boundaries are 2^5 * 6 * 49 / 64 = 147 apart, and cell
 * 15 begins at 2070, behind the last boundary but one (1599 at most). */
enum { N_CELLS = 16, CELLS_PER_65536 = 475 };

/* What is constant over the rows of a call. */
typedef struct encoder {
    const tq_codebook *book;
    uint32_t effort;
    norm_cells cells[MAX_EFFORT];         /* 4 bits */
    __m256i edges[MAX_EFFORT][MAX_EDGES]; /* of each stretch, in all lanes */
    __m256i table[2];                     /* magnitudes 0..15 and 16..31, in both halves */
    tq_row_constants k;
} encoder;

static __m256i table_of(const tq_codebook *book, uint32_t first)
{
    int8_t t[16] = {0};
    for (uint32_t i = 0; i < 16 && first + i < book->n_levels; i++)
        t[i] = book->levels[first + i];
    return _mm256_broadcastsi128_si256(load128(t));
}

static uint32_t cell_of(int16_t p)
{
    const uint32_t at = (uint32_t)p * CELLS_PER_65536 >> 16;
    return at < N_CELLS ? at : N_CELLS - 1;
}

/* Each boundary is put into its cell; the boundaries of lower cells are counted, in all cells at
 * once. */
static void cells_init(norm_cells *c, const int16_t *edges, uint32_t n)
{
    const __m128i cell = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m128i low = _mm_set1_epi8(-1), high = _mm_set1_epi8(0x7f), before = _mm_setzero_si128();

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = cell_of(edges[i]);
        assert(i == 0 || at > cell_of(edges[i - 1])); /* or two boundaries share a cell */
        const __m128i own = _mm_set1_epi8((char)at), here = _mm_cmpeq_epi8(cell, own);
        low = _mm_blendv_epi8(low, _mm_set1_epi8((char)edges[i]), here);
        high = _mm_blendv_epi8(high, _mm_set1_epi8((char)(edges[i] >> 8)), here);
        before = _mm_sub_epi8(before, _mm_cmpgt_epi8(cell, own));
    }
    c->low = _mm256_broadcastsi128_si256(low);
    c->high = _mm256_broadcastsi128_si256(high);
    c->before = _mm256_broadcastsi128_si256(before);
}

static void encoder_init(encoder *e, const tq_codec *c)
{
    const tq_codebook *book = tq_codebook_get(c->bits);

    e->book = book;
    e->effort = c->effort;
    e->k = tq_avx2_row_constants(c->dim, book->unit, book->frac);
    if (c->bits == 8) {
        e->k.to_num = (float)(8128.0 / (sqrt((double)c->dim) * (double)book->unit));
        return;
    }
    e->table[0] = table_of(book, 0);
    e->table[1] = table_of(book, 16);
    for (uint32_t i = 0; i < c->effort; i++) {
        int16_t edges[MAX_EDGES];
        tq_codebook_edges(book, tq_stretches[i], edges);
        if (c->bits == 4)
            cells_init(&e->cells[i], edges, book->n_levels - 1);
        else
            for (uint32_t k = 0; k + 1 < book->n_levels; k++)
                e->edges[i][k] = _mm256_set1_epi16(edges[k]);
    }
}

/* Vectors of 16 coordinates a and b become one of 32 bytes, a0..a7 b0..b7 a8..a15 b8..b15: what the
 * packing and unpacking instructions do within 128 bits. The order is restored with the signs. */

/* How many edges lie below each of |p|. */
TQ_INLINE __m256i count_edges(__m256i a, const __m256i *edges, const int n)
{
    __m256i m = _mm256_setzero_si256(), m2 = m;
#pragma GCC unroll 31
    for (int i = 0; i < n; i += 2) {
        m = _mm256_sub_epi16(m, _mm256_cmpgt_epi16(a, edges[i]));
        if (i + 1 < n)
            m2 = _mm256_sub_epi16(m2, _mm256_cmpgt_epi16(a, edges[i + 1]));
    }
    return _mm256_add_epi16(m, m2);
}

/* Cell numbers of |p|, bytes. */
TQ_INLINE __m256i cells_of(__m256i a, __m256i b)
{
    const __m256i scale = _mm256_set1_epi16(CELLS_PER_65536);
    const __m256i cell =
        _mm256_packus_epi16(_mm256_mulhi_epu16(a, scale), _mm256_mulhi_epu16(b, scale));
    return _mm256_min_epu8(cell, _mm256_set1_epi8(N_CELLS - 1));
}

/* Magnitude numbers of |p|, bytes; cell: 4 bits only. */
TQ_INLINE __m256i magnitudes(__m256i a, __m256i b, __m256i cell, const encoder *e, uint32_t stretch,
                             const int bits)
{
    if (bits == 4) {
        const norm_cells *c = &e->cells[stretch];
        const __m256i low = _mm256_shuffle_epi8(c->low, cell);
        const __m256i high = _mm256_shuffle_epi8(c->high, cell);
        const __m256i above =
            _mm256_packs_epi16(_mm256_cmpgt_epi16(a, _mm256_unpacklo_epi8(low, high)),
                               _mm256_cmpgt_epi16(b, _mm256_unpackhi_epi8(low, high)));
        return _mm256_sub_epi8(_mm256_shuffle_epi8(c->before, cell), above);
    }
    const __m256i *edges = e->edges[stretch];
    const int n = (1 << (bits - 1)) - 1;
    return _mm256_packs_epi16(count_edges(a, edges, n), count_edges(b, edges, n));
}

TQ_INLINE __m256i levels_of(__m256i m, const __m256i *table, const int b)
{
    const __m256i l = _mm256_shuffle_epi8(table[0], m);
    if (b < 6)
        return l;
    /* Bit 4 of the number, moved to the top of its byte, chooses the upper half. */
    return _mm256_blendv_epi8(l, _mm256_shuffle_epi8(table[1], m), _mm256_slli_epi16(m, 3));
}

enum { BATCH = 3 }; /* stretches that share the loads of p */

/* What the search learns of stretches that it tries together. */
typedef struct trials {
    uint8_t mag[BATCH][ROOM]; /* magnitude numbers */
    int32_t dot[BATCH + 1];   /* <|p|, levels> */
    int32_t crit[BATCH + 1];  /* tq_row_criterion; bits of an f32 that is not negative */
} trials;

/* The sums over lanes of a, b, c and d. */
TQ_INLINE __m128i sums4(__m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i v = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

/* `count` stretches at once. The coordinates from dim on are 0 and add the lowest level's square,
 * which is taken off again. */
TQ_INLINE void try_stretches(trials *out, const int16_t *p, const uint32_t dim, const encoder *e,
                             uint32_t first, const int b, const int count)
{
    const uint32_t padded = (dim + 31) / 32 * 32;
    const int32_t low = e->book->levels[0];
    const __m256i none = _mm256_setzero_si256();
    __m256i pl[BATCH] = {none, none, none}, l2[BATCH] = {none, none, none};

    uint32_t j = 0;
    do {
        const __m256i a = _mm256_abs_epi16(load256(p + j));
        const __m256i a2 = _mm256_abs_epi16(load256(p + j + 16));
        const __m256i cell = b == 4 ? cells_of(a, a2) : none;
#pragma GCC unroll 3
        for (int i = 0; i < count; i++) {
            const __m256i m = magnitudes(a, a2, cell, e, first + (uint32_t)i, b);
            const __m256i l = levels_of(m, e->table, b);
            /* Two squares fit 16 bits: levels end at 127. */
            const __m256i squares = _mm256_maddubs_epi16(l, l);
            pl[i] = _mm256_add_epi32(pl[i], _mm256_madd_epi16(a, _mm256_unpacklo_epi8(l, none)));
            pl[i] = _mm256_add_epi32(pl[i], _mm256_madd_epi16(a2, _mm256_unpackhi_epi8(l, none)));
            l2[i] = _mm256_add_epi32(l2[i], _mm256_madd_epi16(squares, _mm256_set1_epi16(1)));
            store256(out->mag[i] + j, m);
        }
        j += 32;
    } while (j < padded); /* at least once, or gcc fears for out->mag */
    /* tq_row_criterion of all; what is behind the last is not used. */
    const __m128i dot = sums4(pl[0], pl[1], pl[2], none);
    const __m128i extra = _mm_set1_epi32((int32_t)(padded - dim) * low * low);
    const __m128i ll = _mm_sub_epi32(sums4(l2[0], l2[1], l2[2], none), extra);
    const __m128 t = _mm_cvtepi32_ps(dot),
                 more = _mm_castsi128_ps(_mm_cmpgt_epi32(dot, _mm_setzero_si128()));
    const __m128 crit = _mm_div_ps(_mm_mul_ps(t, t), _mm_cvtepi32_ps(ll));
    _mm_storeu_si128((__m128i *)(void *)out->dot, dot);
    _mm_storeu_si128((__m128i *)(void *)out->crit, _mm_castps_si128(_mm_and_ps(crit, more)));
}

/* The best of the trials, if it beats the criterion that is given. */
typedef struct winner {
    uint32_t at; /* or BATCH: none */
    int32_t crit, dot;
} winner;

TQ_INLINE winner pick(const trials *t, int32_t crit, int32_t dot)
{
    winner w = {BATCH, crit, dot};
#pragma GCC unroll 3
    for (uint32_t i = 0; i < BATCH; i++) {
        const int32_t better = -(t->crit[i] > w.crit);
        w.at = tq_choose(better, i, w.at);
        w.crit = (int32_t)tq_choose(better, (uint32_t)t->crit[i], (uint32_t)w.crit);
        w.dot = (int32_t)tq_choose(better, (uint32_t)t->dot[i], (uint32_t)w.dot);
    }
    return w;
}

/* Codes of the best stretch, and <p, levels>. */
TQ_INLINE int32_t search(uint8_t *code, const int16_t *p, const uint32_t dim, const encoder *e,
                         const int b)
{
    trials room;
    uint8_t kept[ROOM]; /* the best of batches before this one */
    const uint8_t *best;
    int32_t dot;

    if (e->effort == 1) {
        try_stretches(&room, p, dim, e, 0, b, 1);
        best = room.mag[0];
        dot = room.dot[0];
    } else {
        try_stretches(&room, p, dim, e, 0, b, BATCH);
        winner w = pick(&room, -1, 0); /* one wins: no criterion is negative */
        best = room.mag[w.at % BATCH];
        for (uint32_t first = BATCH; first < e->effort; first += BATCH) {
            if (w.at < BATCH)
                best = memcpy(kept, best, (dim + 31) / 32 * 32);
            try_stretches(&room, p, dim, e, first, b, BATCH);
            w = pick(&room, w.crit, w.dot);
            if (w.at < BATCH)
                best = room.mag[w.at];
        }
        dot = w.dot;
    }
    const __m256i sign = _mm256_set1_epi8((char)(1 << (b - 1)));
    for (uint32_t j = 0; j < dim; j += 32) {
        const __m256i s = _mm256_packs_epi16(_mm256_srai_epi16(load256(p + j), 15),
                                             _mm256_srai_epi16(load256(p + j + 16), 15));
        const __m256i v = _mm256_or_si256(load256(best + j), _mm256_and_si256(s, sign));
        store256(code + j, _mm256_permute4x64_epi64(v, 0xd8));
    }
    return dot;
}

/* 8 bits: the levels themselves. Returns <p, levels>. */
static int32_t round_levels(uint8_t *code, const int16_t *p, uint32_t dim)
{
    const __m256i half = _mm256_set1_epi16(32), max = _mm256_set1_epi16(127);
    __m256i pl = _mm256_setzero_si256();

    for (uint32_t j = 0; j < dim; j += 32) {
        __m256i l[2];
        for (int i = 0; i < 2; i++) {
            __m256i v = load256(p + j + 16 * i), a = _mm256_abs_epi16(v);
            l[i] = _mm256_min_epi16(_mm256_srli_epi16(_mm256_add_epi16(a, half), 6), max);
            pl = _mm256_add_epi32(pl, _mm256_madd_epi16(a, l[i]));
            l[i] = _mm256_sign_epi16(l[i], v);
        }
        store256(code + j, _mm256_permute4x64_epi64(_mm256_packs_epi16(l[0], l[1]), 0xd8));
    }
    return sum8(pl);
}

/* ---- Encode: planes ---- */

/* A plane of width w of the codes, shifted right by low. out may be written up to 31 bytes past
 * the plane, code is read up to 31 bytes past dim. Returns the plane's bytes. */
TQ_INLINE uint32_t pack_plane(uint8_t *out, const uint8_t *code, uint32_t dim, const int w,
                              const int low)
{
    const __m256i mask = _mm256_set1_epi8((char)((1 << w) - 1));
    const uint32_t nb = dim * (uint32_t)w / 8;
    const int runs = 8 / w;

    for (uint32_t i = 0; i < nb; i += 32) {
        __m256i all = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int r = 0; r < runs; r++) {
            __m256i v = load256(code + i + (uint32_t)r * nb);
            v = _mm256_and_si256(_mm256_srli_epi16(v, low), mask);
            all = _mm256_or_si256(all, _mm256_slli_epi16(v, w * r));
        }
        store256(out + i, all);
    }
    return nb;
}

TQ_INLINE void pack_codes(uint8_t *dst, const uint8_t *code, const tq_codec *c, const int b)
{
    uint8_t out[ROOM];
    uint32_t n = 0;

    switch (b) {
    case 2:
        n = pack_plane(out, code, c->dim, 2, 0);
        break;
    case 3:
        n = pack_plane(out, code, c->dim, 2, 0);
        pack_plane(out + n, code, c->dim, 1, 2);
        break;
    case 4:
        pack_plane(out, code, c->dim, 4, 0);
        break;
    case 5:
        n = pack_plane(out, code, c->dim, 4, 0);
        pack_plane(out + n, code, c->dim, 1, 4);
        break;
    case 6:
        n = pack_plane(out, code, c->dim, 4, 0);
        pack_plane(out + n, code, c->dim, 2, 4);
        break;
    default:
        memcpy(dst, code, c->code_bytes);
        return;
    }
    memcpy(dst, out, c->code_bytes);
}

static float largest(const float *y, uint32_t dim)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 top = _mm256_setzero_ps();
    float lane[8], m = 0;

    for (uint32_t j = 0; j < dim; j += 8)
        top = _mm256_max_ps(top, _mm256_and_ps(_mm256_loadu_ps(y + j), magnitude));
    _mm256_storeu_ps(lane, top);
    for (int i = 0; i < 8; i++)
        m = lane[i] > m ? lane[i] : m;
    return m;
}

/* Rows are taken in tiles, in three steps, so that the long chains at the end of each (sums,
 * roots, quotients) overlap with the next row's work. */
enum { TILE_ROWS = 8, TILE_FLOATS = 2048 };

typedef struct tile {
    float y[TILE_FLOATS];
    float sum[TILE_ROWS], norm[TILE_ROWS], num[TILE_ROWS], dot[TILE_ROWS];
    uint8_t kind[TILE_ROWS]; /* tq_row_kind */
} tile;

/* Rotation; rows of huge elements by the reference. */
static void rotate_tile(tile *t, const tq_codec *c, const float *src, size_t src_stride,
                        tq_planes dst, size_t n)
{
    float room[TQ_ROW_MAX];

    for (size_t i = 0; i < n; i++) {
        const float *x = src + i * src_stride;
        float *y = t->y + i * c->dim;
        if (c->zero_bytes)
            x = tq_row_take_mean(c, dst.zero + i * dst.zero_stride, x, room);
        t->kind[i] = (uint8_t)tq_avx2_rotate_sum(y, &t->sum[i], x, c->dim);
        if (t->kind[i] == TQ_ROW_IS_HUGE) {
            tq_rotated_row r;
            tq_row_rotate(&r, x, c->dim);
            memcpy(y, r.y, c->dim * sizeof(float));
            t->norm[i] = r.norm;
        }
    }
}

/* other: a search to use instead, with its state. next: rows to ask for, `ahead` of them. */
TQ_INLINE void encode_tile(tile *t, const tq_codec *c, const encoder *e, tq_planes dst, size_t n,
                           const float *next, size_t stride, tq_norm_search_fn *other,
                           const void *state, const int b)
{
    int16_t p[ROOM];
    uint8_t code[2 * ROOM]; /* planes of the last runs are read past the row */
    uint16_t scale[TILE_ROWS];
    float root[TILE_ROWS];

    _mm256_storeu_ps(root, _mm256_sqrt_ps(_mm256_loadu_ps(t->sum)));
    for (size_t i = 0; i < n; i++)
        if (t->kind[i] != TQ_ROW_IS_HUGE)
            t->norm[i] = root[i];
    const __m256 norm = _mm256_loadu_ps(t->norm);
    float inv[TILE_ROWS];
    _mm256_storeu_ps(inv, _mm256_div_ps(_mm256_set1_ps(e->k.to_p), norm));
    _mm256_storeu_ps(t->num, _mm256_mul_ps(norm, _mm256_set1_ps(e->k.to_num)));

    for (size_t i = 0; i < n; i++) {
        const float *y = t->y + i * c->dim;
        uint8_t *codes = dst.codes + i * dst.codes_stride;
        int32_t dot;
        if (i < dst.ahead)
            tq_ask_for(next + i * stride, c->dim);
        if (t->kind[i] == TQ_ROW_IS_ZERO) {
            memset(codes, 0, c->code_bytes);
            t->dot[i] = INFINITY; /* the scale becomes 0 */
            continue;
        }
        if (b == 8) {
            const float top = largest(y, c->dim);
            t->num[i] = t->norm[i] / top * t->norm[i] * e->k.to_num;
            tq_avx2_fix(p, y, c->dim, 4064.0f / top);
            dot = round_levels(code, p, c->dim);
        } else {
            tq_avx2_fix(p, y, c->dim, inv[i]);
            dot = other           ? other(code, p, c->dim, state)
                  : c->dim == 128 ? search(code, p, 128, e, b)
                                  : search(code, p, c->dim, e, b);
        }
        t->dot[i] = (float)dot;
        pack_codes(codes, code, c, b);
    }
    __m256 s = _mm256_div_ps(_mm256_loadu_ps(t->num), _mm256_loadu_ps(t->dot));
    s = _mm256_min_ps(s, _mm256_set1_ps(TQ_F16_MAX));
    _mm_storeu_si128((__m128i *)(void *)scale, _mm256_cvtps_ph(s, _MM_FROUND_TO_NEAREST_INT));
    for (size_t i = 0; i < n; i++)
        tq_store_le16(dst.scale + i * dst.scale_stride,
                      t->kind[i] == TQ_ROW_IS_HUGE ? 0x7bffu : scale[i]);
}

TQ_INLINE void encode_norm(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n, tq_norm_search_fn *other, const void *state, const int b)
{
    const size_t per_tile = TILE_FLOATS / c->dim < TILE_ROWS ? TILE_FLOATS / c->dim : TILE_ROWS;
    encoder e;
    tile t;

    encoder_init(&e, c);
    memset(&t.sum, 0, sizeof t.sum);
    memset(&t.dot, 0, sizeof t.dot);
    memset(&t.norm, 0, sizeof t.norm);
    for (size_t row = 0; row < n; row += per_tile) {
        const size_t rows = n - row < per_tile ? n - row : per_tile;
        rotate_tile(&t, c, src + row * src_stride, src_stride, dst, rows);
        encode_tile(&t, c, &e, dst, rows, dst.ahead ? src + (row + n) * src_stride : NULL,
                    src_stride, other, state, b);
        dst.ahead -= dst.ahead < rows ? dst.ahead : rows;
        dst.codes += rows * dst.codes_stride;
        dst.scale += rows * dst.scale_stride;
        if (c->zero_bytes)
            dst.zero += rows * dst.zero_stride;
    }
}

/* ---- Decode ---- */

/* Fields of width w of a plane, one byte each. Reads whole vectors: src holds 15 bytes more than
 * the plane, out 15 bytes more than dim. */
TQ_INLINE void unpack_plane(uint8_t *out, const uint8_t *src, uint32_t dim, const int w)
{
    const __m128i mask = _mm_set1_epi8((char)((1 << w) - 1));
    const uint32_t nb = dim * (uint32_t)w / 8;
    const int runs = 8 / w;

#pragma GCC unroll 8
    for (int r = 0; r < runs; r++)
        for (uint32_t i = 0; i < nb; i += 16)
            _mm_storeu_si128((__m128i *)(void *)(out + (uint32_t)r * nb + i),
                             _mm_and_si128(_mm_srli_epi16(load128(src + i), w * r), mask));
}

/* Bytes of level, negated where minus is 0xff; elsewhere it is 0. */
TQ_INLINE __m256i negate_where(__m256i level, __m256i minus)
{
    return _mm256_sub_epi8(_mm256_xor_si256(level, minus), minus);
}

/* 0xff where bit `bit` of a byte is set. */
TQ_INLINE __m256i bit_mask(__m256i v, int bit)
{
    const __m256i one = _mm256_set1_epi8((char)(1 << bit));
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, one), one);
}

/* Tables of the decoder: levels by code for 2, 3 and 4 bits, magnitudes for more. */
static void level_tables(__m256i table[2], const tq_codebook *book)
{
    int8_t t[16];
    if (book->bits <= 4) {
        for (uint32_t i = 0; i < 16; i++)
            t[i] = (int8_t)tq_codebook_level(book, (uint8_t)(i & ((1u << book->bits) - 1)));
        table[0] = _mm256_broadcastsi128_si256(load128(t));
        return;
    }
    table[0] = table_of(book, 0);
    table[1] = table_of(book, 16);
}

/* src: the planes, with 15 readable bytes behind them. */
TQ_INLINE void unpack_levels(int8_t *level, const uint8_t *src, uint32_t dim,
                             const __m256i table[2], __m256i zero, const int b)
{
    uint8_t low[ROOM], high[ROOM];
    const uint32_t first = dim * (b == 2 || b == 3 ? 2u : 4u) / 8;

    unpack_plane(low, src, dim, b <= 3 ? 2 : 4);
    if (b == 3 || b == 5)
        unpack_plane(high, src + first, dim, 1);
    if (b == 6)
        unpack_plane(high, src + first, dim, 2);
    for (uint32_t j = 0; j < dim; j += 32) {
        __m256i m = load256(low + j), l;
        if (b == 2 || b == 4) {
            l = _mm256_shuffle_epi8(table[0], m);
        } else if (b == 3) {
            m = _mm256_or_si256(m, _mm256_slli_epi16(load256(high + j), 2));
            l = _mm256_shuffle_epi8(table[0], m);
        } else {
            __m256i h = load256(high + j);
            l = _mm256_shuffle_epi8(table[0], m);
            if (b == 6)
                l = _mm256_blendv_epi8(l, _mm256_shuffle_epi8(table[1], m), bit_mask(h, 0));
            l = negate_where(l, bit_mask(h, b == 6));
        }
        store256(level + j, _mm256_add_epi8(l, zero));
    }
}

TQ_INLINE void unpack_rows(const tq_codec *c, int8_t *level, size_t stride, const uint8_t *codes,
                           size_t codes_stride, uint32_t n, __m256i zero, const int b)
{
    const uint32_t last_plane = c->dim * (b == 3 || b == 5 ? 1u : b == 4 ? 4u : 2u) / 8;
    __m256i table[2];
    uint8_t copy[ROOM];

    level_tables(table, tq_codebook_get((uint32_t)b));
    for (uint32_t i = 0; i < n; i++, codes += codes_stride) {
        const uint8_t *src = codes;
        if (last_plane % 16) {
            memcpy(copy, codes, c->code_bytes);
            src = copy;
        }
        unpack_levels(level + i * stride, src, c->dim, table, zero, b);
    }
}

/* 8 bits: stored as they are. */
static void copy_row(uint8_t *level, const uint8_t *codes, uint32_t dim, uint8_t zero)
{
    const __m256i x = _mm256_set1_epi8((char)zero);
    uint32_t j = 0;

    for (; j + 32 <= dim; j += 32)
        store256(level + j, _mm256_add_epi8(load256(codes + j), x));
    if (dim - j >= 16) { /* a whole register, as it is loaded soon after */
        const __m256i last = _mm256_zextsi128_si256(load128(codes + j));
        store256(level + j, _mm256_add_epi8(last, x));
        j += 16;
    }
    for (; j < dim; j++)
        level[j] = (uint8_t)(codes[j] + zero);
}

void tq_avx2_norm_levels(const tq_codec *c, int8_t *level, size_t stride, const uint8_t *codes,
                         size_t codes_stride, uint32_t n, uint8_t zero)
{
    const __m256i x = _mm256_set1_epi8((char)zero);

    switch (c->bits) {
    case 2:
        unpack_rows(c, level, stride, codes, codes_stride, n, x, 2);
        break;
    case 3:
        unpack_rows(c, level, stride, codes, codes_stride, n, x, 3);
        break;
    case 4:
        unpack_rows(c, level, stride, codes, codes_stride, n, x, 4);
        break;
    case 5:
        unpack_rows(c, level, stride, codes, codes_stride, n, x, 5);
        break;
    case 6:
        unpack_rows(c, level, stride, codes, codes_stride, n, x, 6);
        break;
    default:
        for (uint32_t i = 0; i < n; i++)
            copy_row((uint8_t *)level + i * stride, codes + i * codes_stride, c->dim, zero);
        break;
    }
}

static void decode_norm(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                        size_t n, int rotated)
{
    const size_t width = (c->dim + 31) / 32 * 32;
    const size_t per_pass = 4096 / width;
    tq_avx2_decoder d;
    int8_t level[4096 + TQ_ROW_PAD];

    tq_avx2_decoder_init(&d, c, tq_codebook_get(c->bits)->unit, rotated);
    for (size_t row = 0; row < n; row += per_pass) {
        const size_t rows = n - row < per_pass ? n - row : per_pass;
        tq_avx2_norm_levels(c, level, width, src.codes + row * src.codes_stride, src.codes_stride,
                            (uint32_t)rows, 0);
        for (size_t i = 0; i < rows; i++)
            tq_avx2_reconstruct(&d, dst + (row + i) * dst_stride, level + i * width,
                                src.scale + (row + i) * src.scale_stride,
                                c->zero_bytes ? src.zero + (row + i) * src.zero_stride : NULL);
    }
}

void tq_avx2_decode_norm(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                         size_t n)
{
    decode_norm(c, dst, dst_stride, src, n, 0);
}

void tq_avx2_decode_rotated_norm(const tq_codec *c, float *dst, size_t dst_stride,
                                 tq_const_planes src, size_t n)
{
    decode_norm(c, dst, dst_stride, src, n, 1);
}

#define NORM(b)                                                                                    \
    void tq_avx2_encode_turbo##b(const tq_codec *c, tq_planes dst, const float *src,               \
                                 size_t src_stride, size_t n)                                      \
    {                                                                                              \
        encode_norm(c, dst, src, src_stride, n, NULL, NULL, b);                                    \
    }

NORM(2)
NORM(3)
NORM(4)
NORM(5)
NORM(6)
NORM(8)

#define NORM_BY(b)                                                                                 \
    void tq_avx2_encode_turbo##b##_by(const tq_codec *c, tq_planes dst, const float *src,          \
                                      size_t src_stride, size_t n, tq_norm_search_fn *search_row,  \
                                      const void *state)                                           \
    {                                                                                              \
        encode_norm(c, dst, src, src_stride, n, search_row, state, b);                             \
    }

NORM_BY(5)
NORM_BY(6)
