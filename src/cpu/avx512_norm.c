/* SPDX-License-Identifier: MIT */
/* avx512_norm.c — the search of norm-codebook for AVX-512.
 *
 * Where AVX2 compares |p| with every boundary, here each of 32 coordinates walks down a binary tree
 * of them: the boundary to compare with next is picked by a permutation of a register that holds a
 * row of the tree. 31 boundaries take five steps. All else is AVX2's (avx2_norm.c), and so are 2 to
 * 4 bits: one and three boundaries are compared with faster than a tree is walked, and so are
 * cells.
 */
#include "codebook.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_rotated.h"
#include "cpu/avx512.h"
#include "cpu/avx512_codec.h"

enum { ROOM = TQ_ROW_MAX + TQ_ROW_PAD, MAX_EFFORT = 12, MAX_DEPTH = 5, BATCH = 3 };

/* tree[i][d]: the boundaries of stretch i that step d may meet; lane m is the one to compare with
 * when m boundaries are known to lie below. */
typedef struct searcher {
    __m512i tree[MAX_EFFORT][MAX_DEPTH];
    __m512i levels;
    uint32_t effort;
    int32_t low; /* the lowest level */
} searcher;

static void searcher_init(searcher *s, const tq_codec *c)
{
    const tq_codebook *book = tq_codebook_get(c->bits);
    int16_t levels[32] = {0};

    for (uint32_t m = 0; m < book->n_levels; m++)
        levels[m] = book->levels[m];
    s->levels = _mm512_loadu_si512(levels);
    s->low = levels[0];
    s->effort = c->effort;
    for (uint32_t i = 0; i < c->effort; i++) {
        int16_t edges[31];
        tq_codebook_edges(book, tq_stretches[i], edges);
        for (uint32_t d = 0, step = book->n_levels / 2; step > 0; d++, step /= 2) {
            int16_t row[32] = {0};
            for (uint32_t m = 0; m < book->n_levels; m += 2 * step)
                row[m] = edges[m + step - 1];
            s->tree[i][d] = _mm512_loadu_si512(row);
        }
    }
}

/* What the search learns of a stretch. */
typedef struct trial {
    int16_t mag[ROOM]; /* magnitude numbers */
    int32_t dot, ll;   /* <|p|, levels>, <levels, levels> */
} trial;

/* `count` stretches at once. The coordinates from dim on are 0 and add the lowest level's square,
 * which is taken off again. */
TQ_INLINE void try_stretches(trial *out, const int16_t *p, uint32_t dim, const searcher *s,
                             uint32_t first, const int depth, const int count)
{
    const uint32_t padded = (dim + 31) / 32 * 32;
    __m512i pl[BATCH], l2[BATCH];

#pragma GCC unroll 3
    for (int i = 0; i < count; i++)
        pl[i] = l2[i] = _mm512_setzero_si512();
    for (uint32_t j = 0; j < padded; j += 32) {
        const __m512i a = _mm512_abs_epi16(_mm512_loadu_si512(p + j));
#pragma GCC unroll 3
        for (int i = 0; i < count; i++) {
            const __m512i *tree = s->tree[first + (uint32_t)i];
            __m512i m = _mm512_setzero_si512();
#pragma GCC unroll 5
            for (int d = 0; d < depth; d++) {
                const __m512i edge = _mm512_permutexvar_epi16(m, tree[d]);
                m = _mm512_mask_add_epi16(m, _mm512_cmpgt_epi16_mask(a, edge), m,
                                          _mm512_set1_epi16((short)(1 << (depth - 1 - d))));
            }
            const __m512i l = _mm512_permutexvar_epi16(m, s->levels);
            pl[i] = _mm512_add_epi32(pl[i], _mm512_madd_epi16(a, l));
            l2[i] = _mm512_add_epi32(l2[i], _mm512_madd_epi16(l, l));
            _mm512_storeu_si512(out[i].mag + j, m);
        }
    }
#pragma GCC unroll 3
    for (int i = 0; i < count; i++) {
        out[i].dot = _mm512_reduce_add_epi32(pl[i]);
        out[i].ll = _mm512_reduce_add_epi32(l2[i]) - (int32_t)(padded - dim) * s->low * s->low;
    }
}

/* Codes of the best stretch. Returns <p, levels>. */
TQ_INLINE int32_t search(uint8_t *code, const int16_t *p, uint32_t dim, const void *state,
                         const int depth)
{
    const searcher *s = state;
    trial room[BATCH + 1];
    trial *best = &room[BATCH];
    int32_t best_crit = -1;

    best->dot = 0;
    if (s->effort == 1) {
        try_stretches(best, p, dim, s, 0, depth, 1);
    } else {
        for (uint32_t first = 0; first < s->effort; first += BATCH) {
            try_stretches(room, p, dim, s, first, depth, BATCH);
            uint32_t at = BATCH;
            for (uint32_t i = 0; i < BATCH; i++) {
                const float crit = tq_row_criterion(room[i].dot, room[i].ll);
                int32_t bits; /* in the order of the numbers: none is negative */
                memcpy(&bits, &crit, sizeof bits);
                const int32_t better = -(bits > best_crit);
                at = tq_choose(better, i, at);
                best_crit = (int32_t)tq_choose(better, (uint32_t)bits, (uint32_t)best_crit);
            }
            if (s->effort == BATCH)
                best = &room[at];
            else if (at < BATCH)
                *best = room[at];
        }
    }
    const __m512i sign = _mm512_set1_epi16((short)(1 << depth));
    for (uint32_t j = 0; j < dim; j += 32) {
        const __m512i m = _mm512_loadu_si512(best->mag + j);
        const __mmask32 negative = _mm512_movepi16_mask(_mm512_loadu_si512(p + j));
        const __m512i v = _mm512_or_si512(m, _mm512_maskz_mov_epi16(negative, sign));
        _mm256_storeu_si256((__m256i *)(void *)(code + j), _mm512_cvtepi16_epi8(v));
    }
    return best->dot;
}

#define NORM(b)                                                                                    \
    static int32_t search_##b(uint8_t *code, const int16_t *p, uint32_t dim, const void *state)    \
    {                                                                                              \
        return search(code, p, dim, state, (b)-1);                                                 \
    }                                                                                              \
    void tq_avx512_encode_turbo##b(const tq_codec *c, tq_planes dst, const float *src,             \
                                   size_t src_stride, size_t n)                                    \
    {                                                                                              \
        searcher s;                                                                                \
        searcher_init(&s, c);                                                                      \
        tq_avx2_encode_turbo##b##_by(c, dst, src, src_stride, n, search_##b, &s);                  \
    }

NORM(5)
NORM(6)
