/* SPDX-License-Identifier: MIT */
/* avx2_trellis_codes.c — from the paths of the trellis to codes and planes, without states.
 *
 * The path fixes the subset of each coordinate, so the level number is again a count of boundaries
 * below p; a byte shuffle picks the boundary of the coordinate's subset. Decoding: avx2_runs.c.
 */
#include "cpu/avx2_trellis.h"

#include <immintrin.h>
#include <string.h>

static inline __m256i load256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void store256(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

static inline __m256i load128_twice(const void *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}

/* ---- Level numbers to levels ---- */

/* Positive levels, 16 to a register, in both halves. */
typedef struct level_table {
    __m256i t[4];
    __m256i half;
    uint32_t bits;
} level_table;

static inline level_table level_table_get(const tq_trellis *t)
{
    uint8_t positive[TQ_TRELLIS_LEVELS / 2] = {0};
    level_table v;

    memcpy(positive, t->levels + (1u << t->bits), 1u << t->bits);
    for (int i = 0; i < 4; i++)
        v.t[i] = load128_twice(positive + 16 * i);
    v.half = _mm256_set1_epi8((char)(1 << t->bits));
    v.bits = t->bits;
    return v;
}

/* l [32] level numbers of the whole table. The lower half mirrors the upper. */
static inline __m256i level_lookup(const level_table *v, __m256i l)
{
    const __m256i from_middle = _mm256_sub_epi8(l, v->half);
    const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), from_middle);
    const __m256i m = _mm256_xor_si256(from_middle, negative);
    __m256i level = _mm256_shuffle_epi8(v->t[0], m);

    if (v->bits >= 5) {
        const __m256i bit4 = _mm256_slli_epi16(m, 3);
        level = _mm256_blendv_epi8(level, _mm256_shuffle_epi8(v->t[1], m), bit4);
        if (v->bits == 6) {
            const __m256i high = _mm256_blendv_epi8(_mm256_shuffle_epi8(v->t[2], m),
                                                    _mm256_shuffle_epi8(v->t[3], m), bit4);
            level = _mm256_blendv_epi8(level, high, _mm256_slli_epi16(m, 2));
        }
    }
    return _mm256_sub_epi8(_mm256_xor_si256(level, negative), negative);
}

/* ---- Encoder ---- */

void tq_avx2_trellis_edges(int16_t edge[TQ_TRELLIS_LEVELS], const tq_trellis *t, uint32_t h)
{
    const uint32_t n = 2u << t->bits;
    float cost[TQ_TRELLIS_LEVELS], level[TQ_TRELLIS_LEVELS];

    for (uint32_t l = 0; l < n; l += 8) {
        const __m256i v =
            _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(t->levels + l)));
        __m256i c = _mm256_slli_epi32(_mm256_mullo_epi32(v, v), (int)t->frac);
        c = _mm256_mullo_epi32(c, _mm256_set1_epi32((int)h));
        c = _mm256_srai_epi32(_mm256_add_epi32(c, _mm256_set1_epi32(32)), 6);
        _mm256_storeu_ps(level + l, _mm256_cvtepi32_ps(v));
        _mm256_storeu_ps(cost + l, _mm256_cvtepi32_ps(c));
    }
    for (uint32_t l = 0; l < n - 4; l += 4) {
        const __m128 rise = _mm_sub_ps(_mm_loadu_ps(cost + l + 4), _mm_loadu_ps(cost + l));
        const __m128 run = _mm_sub_ps(_mm_loadu_ps(level + l + 4), _mm_loadu_ps(level + l));
        const __m128i e = _mm_cvtps_epi32(_mm_floor_ps(_mm_div_ps(rise, run)));
        _mm_storel_epi64((__m128i *)(void *)(edge + l), _mm_packs_epi32(e, e));
    }
}

/* 16 bits to 16 lanes of all ones or zeros. */
static inline __m256i spread16(uint32_t bits)
{
    const __m256i one = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                          8192, 16384, (short)0x8000);
    const __m256i v = _mm256_set1_epi16((short)(uint16_t)bits);
    return _mm256_cmpeq_epi16(_mm256_and_si256(v, one), one);
}

/* Level numbers of 16 coordinates: 4 o + k. z: the two subset bits, spread. */
static inline __m256i number16(__m256i p, __m256i z0, __m256i z1, const int16_t *edge,
                               uint32_t n_edges)
{
    const __m256i k0 = _mm256_and_si256(z0, _mm256_set1_epi16(0x0202));
    const __m256i k1 = _mm256_and_si256(z1, _mm256_set1_epi16(0x0404));
    const __m256i pick = _mm256_add_epi16(_mm256_set1_epi16(0x0100), _mm256_add_epi16(k0, k1));
    __m256i o = _mm256_setzero_si256();

    for (uint32_t j = 0; j < n_edges; j++) {
        long long four;
        memcpy(&four, edge + 4 * (size_t)j, 8);
        o = _mm256_sub_epi16(
            o, _mm256_cmpgt_epi16(p, _mm256_shuffle_epi8(_mm256_set1_epi64x(four), pick)));
    }
    return _mm256_add_epi16(_mm256_slli_epi16(o, 2),
                            _mm256_srli_epi16(_mm256_add_epi16(k0, k1), 9));
}

static inline int32_t sum8(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

void tq_avx2_trellis_codes(uint8_t *code, int32_t *dot, int32_t *ll, const tq_trellis *t,
                           const tq_paths *paths, uint32_t lane, const int16_t *p,
                           const int16_t *edge, uint32_t dim)
{
    const level_table table = level_table_get(t);
    const uint32_t n_edges = (1u << (t->bits - 1)) - 1;
    const __m256i top = _mm256_set1_epi8((char)(1 << (t->bits - 1)));
    __m256i dots = _mm256_setzero_si256(), squares = _mm256_setzero_si256();

    for (uint32_t j = 0; j < dim; j += 32) {
        const __m256i p0 = load256(p + j), p1 = load256(p + j + 16);
        const uint32_t z0 = paths->z0[j / 32][lane], z1 = paths->z1[j / 32][lane];
        const uint32_t x = paths->x[j / 32][lane];
        const __m256i l0 = number16(p0, spread16(z0), spread16(z1), edge, n_edges);
        const __m256i l1 = number16(p1, spread16(z0 >> 16), spread16(z1 >> 16), edge, n_edges);
        const __m256i l = _mm256_permute4x64_epi64(_mm256_packs_epi16(l0, l1), 0xd8);
        const __m256i xs =
            _mm256_permute4x64_epi64(_mm256_packs_epi16(spread16(x), spread16(x >> 16)), 0xd8);
        const __m256i o = _mm256_and_si256(_mm256_srli_epi16(l, 2), _mm256_set1_epi8(31));
        __m256i level = level_lookup(&table, l);

        store256(code + j, _mm256_or_si256(o, _mm256_and_si256(xs, top)));
        if (dim - j < 32) { /* p is odd, so 0 marks what lies behind the row */
            const __m256i none = _mm256_setzero_si256();
            const __m256i ps = _mm256_permute4x64_epi64(_mm256_packs_epi16(p0, p1), 0xd8);
            level = _mm256_andnot_si256(_mm256_cmpeq_epi8(ps, none), level);
        }
        const __m256i v0 = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(level));
        const __m256i v1 = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(level, 1));
        dots = _mm256_add_epi32(
            dots, _mm256_add_epi32(_mm256_madd_epi16(p0, v0), _mm256_madd_epi16(p1, v1)));
        squares = _mm256_add_epi32(
            squares, _mm256_add_epi32(_mm256_madd_epi16(v0, v0), _mm256_madd_epi16(v1, v1)));
    }
    *dot = sum8(dots);
    *ll = sum8(squares);
}

/* One plane of width w: byte i gets the fields of elements i, i + nb, i + 2 nb ... code is padded
 * to 32 beyond the last element; so is room for the plane. */
static void pack_plane(uint8_t *plane, const uint8_t *code, uint32_t nb, int w, int low)
{
    const __m256i mask = _mm256_set1_epi8((char)((1 << w) - 1));
    const __m128i right = _mm_cvtsi32_si128(low);

    for (uint32_t i = 0; i < nb; i += 32) {
        __m256i bytes = _mm256_setzero_si256();
        for (int r = 0; r < 8 / w; r++) {
            __m256i v = load256(code + (size_t)nb * (uint32_t)r + i);
            v = _mm256_and_si256(_mm256_srl_epi16(v, right), mask);
            v = _mm256_sll_epi16(v, _mm_cvtsi32_si128(w * r));
            bytes = _mm256_or_si256(bytes, v);
        }
        store256(plane + i, bytes);
    }
}

void tq_avx2_trellis_pack(uint8_t *planes, const uint8_t *code, const tq_trellis *t, uint32_t dim)
{
    uint8_t room[TQ_ROW_MAX * 6 / 8 + 32];
    uint8_t *out = room;
    int low = 0;

    for (const uint8_t *w = t->widths; *w; low += *w++) {
        const uint32_t nb = dim * *w / 8;
        pack_plane(out, code, nb, *w, low);
        out += nb;
    }
    memcpy(planes, room, (size_t)dim * t->bits / 8);
}
