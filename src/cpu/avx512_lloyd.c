/* SPDX-License-Identifier: MIT */
/* avx512_lloyd.c — Lloyd values: transform, group scales, codes, sixteen groups at a time.
 *
 * The one hard idea: a pass turns 16 groups (8, 4, 2 or 1 rows of 64 .. 512) so that each group
 * is a lane. Then the short stages of the transform, the sum of squares in its fixed order, the
 * division and the packing of codes are all plain vertical operations; only the stages between
 * groups of a row cross lanes. Rows whose sums overflow go through the reference.
 *
 * Codes of 2 to 5 bits: the line is cut into equal cells, so narrow that none holds two
 * boundaries. The cell of a value says how many boundaries lie before the cell, and which one, if
 * any, in it. The cell number is a monotonic function of the value, so this is exact whatever way
 * it rounds. 8-bit codes walk down a search tree.
 */
#include "cpu/avx512.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx512_codec.h"

#include <assert.h>

enum { N_LANES = 16, CELLS_MAX = 64 };

/* ---- The transform of one row ---- */

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
    }

#define ROTATE(d)   tq_hadamard_row16(x, x, d, tq_sign_table(d), NULL)
#define UNROTATE(d) tq_hadamard_row16(x, x, d, NULL, tq_sign_table(d))

/* The dimensions that Lloyd values have; formats with one scale rotate others too. */
static int is_lloyd_dim(uint32_t dim)
{
    return dim == 64 || dim == 128 || dim == 256 || dim == 512;
}

void tq_avx512_rotate(float *x, uint32_t dim)
{
    if (!is_lloyd_dim(dim)) {
        tq_avx2_rotate(x, dim);
        return;
    }
    BY_DIM(dim, ROTATE)
}

void tq_avx512_unrotate(float *x, uint32_t dim)
{
    if (!is_lloyd_dim(dim)) {
        tq_avx2_unrotate(x, dim);
        return;
    }
    BY_DIM(dim, UNROTATE)
}

/* ---- Sixteen groups, one per lane ---- */

typedef struct lanes16 {
    __m512 y[TQ_GROUP]; /* element j of all groups */
} lanes16;

/* Rotate rows of n_groups groups each: group g of the pass lies at x[g]. */
TQ_INLINE void rotate16(lanes16 *l, const float *const x[N_LANES], int n_groups)
{
    const float *sign = tq_sign_table((uint32_t)n_groups * TQ_GROUP);
    const __m512 scale = _mm512_set1_ps(tq_rotate_scale((uint32_t)n_groups * TQ_GROUP));

    for (int half = 0; half < 2; half++) {
        __m512 v[16];
        for (int g = 0; g < N_LANES; g++) {
            const float *s = sign + g % n_groups * (int)TQ_GROUP + 16 * half;
            v[g] = _mm512_mul_ps(_mm512_loadu_ps(x[g] + 16 * half), _mm512_loadu_ps(s));
        }
        tq_transpose16(v);
        tq_hadamard_across16(v, 16);
        for (int j = 0; j < 16; j++)
            l->y[16 * half + j] = v[j];
    }
    for (int j = 0; j < 16; j++) {
        __m512 v[2] = {l->y[j], l->y[16 + j]};
        tq_hadamard_across16(v, 2);
        for (int k = 0; k < 2; k++) {
            for (int distance = 1; distance < n_groups; distance *= 2)
                v[k] = tq_butterfly16(v[k], distance);
            l->y[16 * k + j] = _mm512_mul_ps(v[k], scale);
        }
    }
}

/* ---- Codes ---- */

/* Cell of v: round(v * per_unit + middle), at least 0, at most n - 1. */
typedef struct cells {
    float bound[CELLS_MAX];  /* the boundary in the cell, or INFINITY */
    int32_t base[CELLS_MAX]; /* boundaries before the cell */
} cells;

/* Cells per unit. Smallest distances of boundaries: 0.98, 0.50, 0.26, 0.13 for 2 to 5 bits;
 * largest boundaries: 0.99, 1.75, 2.43, 3.06. */
TQ_INLINE float cells_per_unit(int b)
{
    return b == 2 ? 2.0f : b == 3 ? 4.0f : b == 4 ? 6.0f : 9.75f;
}

TQ_INLINE int n_cells(int b)
{
    return b <= 3 ? 16 : b == 4 ? 32 : 64;
}

TQ_INLINE void cells_init(cells *c, int b)
{
    const float *boundary = tq_lloyd_get((uint32_t)b)->boundary;
    const int n = n_cells(b), n_boundaries = (1 << b) - 1;
    int next = 0;

    for (int i = 0; i < n; i++) {
        c->base[i] = next;
        c->bound[i] = INFINITY;
        if (next == n_boundaries)
            continue;
        float at = fmaf(boundary[next], cells_per_unit(b), (float)n * 0.5f);
        assert(at > 0 && at < (float)(n - 1));
        if ((int)rintf(at) == i)
            c->bound[i] = boundary[next++];
    }
    assert(next == n_boundaries); /* or two boundaries share a cell */
}

/* The boundaries as a search tree in heap order: node 1 is the root, the children of node k are
 * 2k and 2k + 1. Walking right where v > t[k], b times, ends at node 2^b + count. */
typedef struct search_tree {
    float t[256];
} search_tree;

TQ_INLINE void search_tree_init(search_tree *tree, int b)
{
    const float *boundary = tq_lloyd_get((uint32_t)b)->boundary;

    tree->t[0] = 0;
    for (int level = 0; level < b; level++)
        for (int i = 0; i < 1 << level; i++)
            tree->t[(1 << level) + i] = boundary[(i << (b - level)) + (1 << (b - level - 1)) - 1];
}

/* t[k & 31], t[k & 63] and t[k & 127] of a table of that size. */
TQ_INLINE __m512 lookup32(const float *t, __m512i k)
{
    return _mm512_permutex2var_ps(_mm512_loadu_ps(t), k, _mm512_loadu_ps(t + 16));
}

TQ_INLINE __m512 lookup64(const float *t, __m512i k)
{
    __mmask16 upper = _mm512_test_epi32_mask(k, _mm512_set1_epi32(32));
    return _mm512_mask_blend_ps(upper, lookup32(t, k), lookup32(t + 32, k));
}

TQ_INLINE __m512 lookup128(const float *t, __m512i k)
{
    __mmask16 upper = _mm512_test_epi32_mask(k, _mm512_set1_epi32(64));
    return _mm512_mask_blend_ps(upper, lookup64(t, k), lookup64(t + 64, k));
}

TQ_INLINE __m512i count_by_tree(__m512 v, const search_tree *tree)
{
    __m512i k = _mm512_set1_epi32(1);
    for (int level = 0; level < 8; level++) {
        __m512 at;
        if (level <= 3)
            at = _mm512_permutexvar_ps(k, _mm512_loadu_ps(tree->t));
        else if (level == 4)
            at = _mm512_permutexvar_ps(k, _mm512_loadu_ps(tree->t + 16));
        else if (level == 5)
            at = lookup32(tree->t + 32, k);
        else if (level == 6)
            at = lookup64(tree->t + 64, k);
        else
            at = lookup128(tree->t + 128, k);
        __mmask16 above = _mm512_cmp_ps_mask(v, at, _CMP_GT_OQ);
        k = _mm512_add_epi32(k, k);
        k = _mm512_mask_add_epi32(k, above, k, _mm512_set1_epi32(1));
    }
    return _mm512_sub_epi32(k, _mm512_set1_epi32(256));
}

TQ_INLINE __m512i count_by_cell(__m512 v, const cells *c, int b)
{
    const float *base = (const float *)(const void *)c->base; /* moved, never computed with */
    const float n = (float)n_cells(b);
    __m512 at = _mm512_fmadd_ps(v, _mm512_set1_ps(cells_per_unit(b)), _mm512_set1_ps(n * 0.5f));
    __m512 bound, before;

    /* The second operand wins over a NaN: cell 0, where nothing is below it. */
    at = _mm512_min_ps(_mm512_max_ps(at, _mm512_setzero_ps()), _mm512_set1_ps(n - 1));
    __m512i k = _mm512_cvtps_epi32(at);
    if (b <= 3) {
        bound = _mm512_permutexvar_ps(k, _mm512_loadu_ps(c->bound));
        before = _mm512_permutexvar_ps(k, _mm512_loadu_ps(base));
    } else if (b == 4) {
        bound = lookup32(c->bound, k);
        before = lookup32(base, k);
    } else {
        bound = lookup64(c->bound, k);
        before = lookup64(base, k);
    }
    __m512i idx = _mm512_castps_si512(before);
    __mmask16 above = _mm512_cmp_ps_mask(v, bound, _CMP_GT_OQ);
    return _mm512_mask_add_epi32(idx, above, idx, _mm512_set1_epi32(1));
}

/* ---- Encode ---- */

typedef struct searcher {
    cells cells;      /* 2 to 5 bits */
    search_tree tree; /* 8 bits */
} searcher;

/* Codes of the quotients of all lanes: dword w of group g at out[w][g]. */
TQ_INLINE void codes16(uint32_t out[8][N_LANES], const lanes16 *l, const searcher *s, int b)
{
    __m512i word = _mm512_setzero_si512();
    int w = 0;

#pragma GCC unroll 32
    for (int j = 0; j < (int)TQ_GROUP; j++) {
        const int shift = j * b % 32;
        __m512i idx =
            b == 8 ? count_by_tree(l->y[j], &s->tree) : count_by_cell(l->y[j], &s->cells, b);
        word = _mm512_or_si512(word, _mm512_sllv_epi32(idx, _mm512_set1_epi32(shift)));
        if (shift + b >= 32) {
            _mm512_storeu_si512(out[w++], word);
            word = _mm512_srlv_epi32(idx, _mm512_set1_epi32(32 - shift));
        }
    }
}

/* Not inlined: one copy for all dimensions. */
typedef void codes16_fn(uint32_t out[8][N_LANES], const lanes16 *l, const searcher *s);

#define CODES(b)                                                                                   \
    static __attribute__((noinline)) void codes16_##b(uint32_t out[8][N_LANES], const lanes16 *l,  \
                                                      const searcher *s)                           \
    {                                                                                              \
        codes16(out, l, s, b);                                                                     \
    }

CODES(2)
CODES(3)
CODES(4)
CODES(5)
CODES(8)

/* 16 groups at x. Returns 0, with nothing written, if a sum of squares is not finite. */
TQ_INLINE int encode_pass(uint32_t words[8][N_LANES], uint16_t scale16[N_LANES],
                          const float *const x[N_LANES], int n_groups, const searcher *s,
                          codes16_fn *codes, int strict)
{
    lanes16 l;
    __m512 t = _mm512_setzero_ps(), least = _mm512_set1_ps(1);

    rotate16(&l, x, n_groups);
    for (int j = 0; j < (int)TQ_GROUP; j++) {
        t = _mm512_add_ps(_mm512_mul_ps(l.y[j], l.y[j]), t);
        least = _mm512_range_ps(least, l.y[j], 0x0a); /* the smaller magnitude */
    }
    if (!strict && _mm512_cmp_ps_mask(t, _mm512_set1_ps(INFINITY), _CMP_LT_OQ) != 0xffff)
        return 0;
    __m512 r = _mm512_sqrt_ps(_mm512_mul_ps(t, _mm512_set1_ps(0.03125f)));
    __m512 d = _mm512_add_ps(r, _mm512_set1_ps(TQ_EPS));
    if (!strict)
        r = _mm512_min_ps(r, _mm512_set1_ps(65504.0f)); /* saturate; r is not NaN here */
    _mm256_storeu_si256((__m256i *)(void *)scale16, tq_f16_from_f32x16(r));
    /* A boundary may be 0, so the sign of the tiniest quotient counts. */
    __mmask16 ordinary =
        _mm512_mask_cmp_ps_mask(tq_divides(d), least, _mm512_set1_ps(0x1p-60f), _CMP_GE_OQ);
    if (ordinary == 0xffff) {
        const __m512 rcp = _mm512_div_ps(_mm512_set1_ps(1), d);
        for (int j = 0; j < (int)TQ_GROUP; j++)
            l.y[j] = tq_quotient(l.y[j], d, rcp);
    } else {
        for (int j = 0; j < (int)TQ_GROUP; j++)
            l.y[j] = _mm512_div_ps(l.y[j], d);
    }
    codes(words, &l, s);
    return 1;
}

TQ_INLINE void encode_rows(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                           size_t n, int n_groups, codes16_fn *codes_fn, int b)
{
    const int strict = (c->flags & TQ_CODEC_STRICT) != 0;
    const size_t rows_per_pass = (size_t)(N_LANES / n_groups);
    const uint32_t dim = (uint32_t)n_groups * TQ_GROUP;
    uint32_t words[8][N_LANES];
    uint16_t scale16[N_LANES];
    searcher s;

    if (b == 8)
        search_tree_init(&s.tree, b);
    else
        cells_init(&s.cells, b);
    for (size_t row = 0; row < n; row += rows_per_pass) {
        const size_t rows = n - row < rows_per_pass ? n - row : rows_per_pass;
        const float *x[N_LANES];
        for (size_t g = 0; g < N_LANES; g++) { /* unused lanes need something to read */
            size_t i = g / (size_t)n_groups;
            x[g] = src + (row + (i < rows ? i : 0)) * src_stride + g % (size_t)n_groups * TQ_GROUP;
        }
        const int ok = encode_pass(words, scale16, x, n_groups, &s, codes_fn, strict);
        for (size_t i = 0; i < rows; i++) {
            uint8_t *codes = dst.codes + (row + i) * dst.codes_stride;
            uint8_t *scale = dst.scale + (row + i) * dst.scale_stride;
            if (!ok) {
                tq_lloyd_row_encode(codes, scale, src + (row + i) * src_stride, dim, (uint32_t)b,
                                    0);
                continue;
            }
            for (size_t g = i * (size_t)n_groups; g < (i + 1) * (size_t)n_groups; g++)
                for (int w = 0; w < b; w++, codes += 4)
                    memcpy(codes, &words[w][g], 4);
            memcpy(scale, scale16 + i * (size_t)n_groups, (size_t)n_groups * 2);
        }
    }
}

TQ_INLINE void encode_lloyd(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                            size_t n, codes16_fn *codes_fn, int b)
{
#define ENCODE(d) encode_rows(c, dst, src, src_stride, n, d / 32, codes_fn, b)
    BY_DIM(c->dim, ENCODE);
}

/* ---- Decode ---- */

TQ_INLINE __m512 centroid16(const __m512 table[2], const float *all, __m512i idx, int b)
{
    if (b == 8)
        return _mm512_i32gather_ps(idx, all, 4);
    return b == 5 ? _mm512_permutex2var_ps(table[0], idx, table[1])
                  : _mm512_permutexvar_ps(idx, table[0]);
}

TQ_INLINE void decode_lloyd(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                            size_t n, int b, int rotated)
{
    const float *all = tq_lloyd_get((uint32_t)b)->centroid;
    __m512 table[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};

    /* Lookups see the low 4 (or 5) bits of an index: small tables are there several times, so that
     * the bits of a neighbour do not matter. */
    if (b == 2)
        table[0] = _mm512_broadcast_f32x4(_mm_loadu_ps(all));
    else if (b == 3)
        table[0] = _mm512_broadcast_f32x8(_mm256_loadu_ps(all));
    else
        table[0] = _mm512_loadu_ps(all);
    if (b == 5)
        table[1] = _mm512_loadu_ps(all + 16);
    for (size_t row = 0; row < n; row++) {
        float *out = dst + row * dst_stride;
        for (uint32_t g = 0; g < c->n_groups; g++) {
            __m512 s = tq_broadcast16_f16(src.scale + row * src.scale_stride + (size_t)g * 2);
            __m512i idx[2];
            tq_unpack_group16(idx, src.codes + row * src.codes_stride, g, b);
            for (int k = 0; k < 2; k++)
                _mm512_storeu_ps(out + TQ_GROUP * g + 16 * k,
                                 _mm512_mul_ps(centroid16(table, all, idx[k], b), s));
        }
        if (!rotated)
            tq_avx512_unrotate(out, c->dim);
    }
}

#define LLOYD(b)                                                                                   \
    void tq_avx512_encode_v##b(const tq_codec *c, tq_planes dst, const float *src,                 \
                               size_t src_stride, size_t n)                                        \
    {                                                                                              \
        encode_lloyd(c, dst, src, src_stride, n, codes16_##b, b);                                  \
    }                                                                                              \
    void tq_avx512_decode_v##b(const tq_codec *c, float *dst, size_t dst_stride,                   \
                               tq_const_planes src, size_t n)                                      \
    {                                                                                              \
        decode_lloyd(c, dst, dst_stride, src, n, b, 0);                                            \
    }                                                                                              \
    void tq_avx512_decode_rotated_v##b(const tq_codec *c, float *dst, size_t dst_stride,           \
                                       tq_const_planes src, size_t n)                              \
    {                                                                                              \
        decode_lloyd(c, dst, dst_stride, src, n, b, 1);                                            \
    }

LLOYD(2)
LLOYD(3)
LLOYD(4)
LLOYD(5)
LLOYD(8)
