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

/* What is constant over the rows of a call. */
typedef struct encoder {
    const tq_codebook *book;
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

static void encoder_init(encoder *e, const tq_codec *c)
{
    const tq_codebook *book = tq_codebook_get(c->bits);

    e->book = book;
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
        for (uint32_t k = 0; k + 1 < book->n_levels; k++)
            e->edges[i][k] = _mm256_set1_epi16(edges[k]);
    }
}

/* Magnitude numbers of |p|, with 0x80 in the upper bytes, where the shuffle then gives 0. */
TQ_INLINE __m256i magnitudes(__m256i a, const __m256i *edges, const int n)
{
    __m256i m = _mm256_set1_epi16((short)0x8000), m2 = _mm256_setzero_si256();
#pragma GCC unroll 31
    for (int i = 0; i < n; i += 2) {
        m = _mm256_sub_epi16(m, _mm256_cmpgt_epi16(a, edges[i]));
        if (i + 1 < n)
            m2 = _mm256_sub_epi16(m2, _mm256_cmpgt_epi16(a, edges[i + 1]));
    }
    return _mm256_add_epi16(m, m2);
}

TQ_INLINE __m256i levels_of(__m256i m, const __m256i *table, const int b)
{
    __m256i l = _mm256_shuffle_epi8(table[0], m);
    if (b < 6)
        return l;
    /* Bit 4 of the number, moved to the top of its byte, chooses the upper half. */
    return _mm256_blendv_epi8(l, _mm256_shuffle_epi8(table[1], m), _mm256_slli_epi16(m, 3));
}

/* One stretch: magnitude numbers as bytes, <|p|, levels> and <levels, levels>. The coordinates
 * from dim on are 0 and add the lowest level's square, which is taken off again. */
TQ_INLINE void try_stretch(uint8_t *mag, const int16_t *p, uint32_t dim, const encoder *e,
                           const __m256i *edges, int32_t *dot, int32_t *ll, const int b)
{
    const int n_edges = (1 << (b - 1)) - 1;
    const uint32_t padded = (dim + 31) / 32 * 32;
    const int32_t low = e->book->levels[0];
    __m256i pl = _mm256_setzero_si256(), l2 = _mm256_setzero_si256();

    for (uint32_t j = 0; j < padded; j += 32) {
        __m256i m[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            __m256i a = _mm256_abs_epi16(load256(p + j + 16 * i));
            m[i] = magnitudes(a, edges, n_edges);
            __m256i l = levels_of(m[i], e->table, b);
            pl = _mm256_add_epi32(pl, _mm256_madd_epi16(a, l));
            l2 = _mm256_add_epi32(l2, _mm256_madd_epi16(l, l));
            m[i] = _mm256_and_si256(m[i], _mm256_set1_epi16(0xff));
        }
        store256(mag + j, _mm256_permute4x64_epi64(_mm256_packus_epi16(m[0], m[1]), 0xd8));
    }
    *dot = sum8(pl);
    *ll = sum8(l2) - (int32_t)(padded - dim) * low * low;
}

/* Codes of the best stretch, and <p, levels>. */
TQ_INLINE int32_t search(uint8_t *code, const int16_t *p, uint32_t dim, const encoder *e,
                         uint32_t effort, const int b)
{
    uint8_t room[2][ROOM];
    float best = -1;
    int32_t best_dot = 0;
    int at = 0; /* which room is free */

    for (uint32_t i = 0; i < effort; i++) {
        int32_t dot, ll;
        try_stretch(room[at], p, dim, e, e->edges[i], &dot, &ll, b);
        float crit = tq_row_criterion(dot, ll);
        if (crit > best) {
            best = crit;
            best_dot = dot;
            at = !at;
        }
    }
    const uint8_t *mag = room[!at];
    const __m256i sign = _mm256_set1_epi8((char)(1 << (b - 1)));
    for (uint32_t j = 0; j < dim; j += 32) {
        __m256i s = _mm256_packs_epi16(load256(p + j), load256(p + j + 16));
        s = _mm256_cmpgt_epi8(_mm256_setzero_si256(), _mm256_permute4x64_epi64(s, 0xd8));
        store256(code + j, _mm256_or_si256(load256(mag + j), _mm256_and_si256(s, sign)));
    }
    return best_dot;
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

    for (uint32_t i = 0; i < nb; i += 32) {
        __m256i all = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int r = 0; r < 8 / w; r++) {
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

TQ_INLINE void encode_row(const tq_codec *c, const encoder *e, uint8_t *codes, uint8_t *scale,
                          const float *x, const int b)
{
    tq_rotated_row r;
    int16_t p[ROOM];
    uint8_t code[2 * ROOM]; /* planes of the last runs are read past the row */
    int32_t dot;
    float num;

    if (!tq_avx2_row_rotate(&r, x, c->dim)) {
        memset(codes, 0, c->code_bytes);
        tq_store_le16(scale, 0);
        return;
    }
    if (b == 8) {
        const float top = largest(r.y, c->dim);
        num = r.norm / top * r.norm * e->k.to_num;
        tq_avx2_fixed_point(p, &r, c->dim, 4064.0f / top);
        dot = round_levels(code, p, c->dim);
    } else {
        num = r.norm * e->k.to_num;
        tq_avx2_fixed_point(p, &r, c->dim, e->k.to_p / r.norm);
        dot = search(code, p, c->dim, e, c->effort, b);
    }
    pack_codes(codes, code, c, b);
    tq_store_le16(scale, tq_row_scale(num, dot, r.saturates));
}

TQ_INLINE void encode_norm(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n, const int b)
{
    encoder e;
    float room[TQ_ROW_MAX];

    encoder_init(&e, c);
    for (size_t row = 0; row < n; row++) {
        const float *x = src + row * src_stride;
        if (c->zero_bytes)
            x = tq_row_take_mean(c, dst.zero + row * dst.zero_stride, x, room);
        encode_row(c, &e, dst.codes + row * dst.codes_stride, dst.scale + row * dst.scale_stride, x,
                   b);
    }
}

/* ---- Decode ---- */

/* Fields of width w of a plane, one byte each. Reads whole vectors: src holds 15 bytes more than
 * the plane, out 15 bytes more than dim. */
TQ_INLINE void unpack_plane(uint8_t *out, const uint8_t *src, uint32_t dim, const int w)
{
    const __m128i mask = _mm_set1_epi8((char)((1 << w) - 1));
    const uint32_t nb = dim * (uint32_t)w / 8;

#pragma GCC unroll 8
    for (int r = 0; r < 8 / w; r++)
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
                             const __m256i table[2], const int b)
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
        store256(level + j, l);
    }
}

TQ_INLINE void decode_norm(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                           size_t n, const int b, int rotated)
{
    const tq_codebook *book = tq_codebook_get(c->bits);
    const uint32_t last_plane = c->dim * (b == 3 || b == 5 ? 1u : b == 4 ? 4u : 2u) / 8;
    tq_avx2_decoder d;
    __m256i table[2];
    int8_t level[ROOM];
    uint8_t copy[ROOM];

    tq_avx2_decoder_init(&d, c, book->unit, rotated);
    if (b != 8)
        level_tables(table, book);
    for (size_t row = 0; row < n; row++) {
        const uint8_t *codes = src.codes + row * src.codes_stride;
        const int8_t *l = level;
        if (b == 8) {
            l = (const int8_t *)codes;
        } else {
            if (last_plane % 16) { /* whole vectors would read past the row */
                memcpy(copy, codes, c->code_bytes);
                codes = copy;
            }
            unpack_levels(level, codes, c->dim, table, b);
        }
        tq_avx2_reconstruct(&d, dst + row * dst_stride, l, src.scale + row * src.scale_stride,
                            c->zero_bytes ? src.zero + row * src.zero_stride : NULL);
    }
}

#define NORM(b)                                                                                    \
    void tq_avx2_encode_turbo##b(const tq_codec *c, tq_planes dst, const float *src,               \
                                 size_t src_stride, size_t n)                                      \
    {                                                                                              \
        encode_norm(c, dst, src, src_stride, n, b);                                                \
    }                                                                                              \
    void tq_avx2_decode_turbo##b(const tq_codec *c, float *dst, size_t dst_stride,                 \
                                 tq_const_planes src, size_t n)                                    \
    {                                                                                              \
        decode_norm(c, dst, dst_stride, src, n, b, 0);                                             \
    }                                                                                              \
    void tq_avx2_decode_rotated_turbo##b(const tq_codec *c, float *dst, size_t dst_stride,         \
                                         tq_const_planes src, size_t n)                            \
    {                                                                                              \
        decode_norm(c, dst, dst_stride, src, n, b, 1);                                             \
    }

NORM(2)
NORM(3)
NORM(4)
NORM(5)
NORM(6)
NORM(8)
