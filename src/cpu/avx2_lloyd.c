/* SPDX-License-Identifier: MIT */
/* avx2_lloyd.c — Lloyd values: transform, group scales, codes, eight groups at a time.
 *
 * The format fixes the order of each group's sum of squares, so a group cannot be summed across
 * lanes. Instead eight groups (rows of 64, 128 and 256 are taken 4, 2 and 1 at a time) are
 * transposed: lane i then sums group i in order. Rows of other lengths are filled up with zeros to
 * whole groups and tiles. Rows whose sums overflow go through the reference.
 */
#include "cpu/avx2.h"
#include "codec.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_rotated.h"

enum { TILE = 256 }; /* elements of eight groups */

TQ_INLINE void rotate_row(float *y, const float *x, uint32_t dim)
{
    switch (dim) {
    case 64:
        tq_hadamard(y, x, 64, tq_sign_table(64), NULL);
        break;
    case 128:
        tq_hadamard(y, x, 128, tq_sign_table(128), NULL);
        break;
    case 256:
        tq_hadamard(y, x, 256, tq_sign_table(256), NULL);
        break;
    case 512:
        tq_hadamard(y, x, 512, tq_sign_table(512), NULL);
        break;
    default:
        memcpy(y, x, dim * sizeof(float));
        tq_avx2_rotate(y, dim);
        break;
    }
}

/* Powers of two with a transform in registers. */
static int is_direct(uint32_t dim)
{
    return dim == 64 || dim == 128 || dim == 256 || dim == 512;
}

/* The steps around the transform of other dimensions, in the order of rotate.c. */
static void scale_by(float *x, uint32_t dim, const float *sign, float scale)
{
    const __m256 scale8 = _mm256_set1_ps(scale);
    for (uint32_t j = 0; j < dim; j += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + j), scale8);
        _mm256_storeu_ps(x + j, sign ? _mm256_mul_ps(v, _mm256_loadu_ps(sign + j)) : v);
    }
}

void tq_avx2_rotate(float *x, uint32_t dim)
{
    if (is_direct(dim)) {
        rotate_row(x, x, dim);
        return;
    }
    scale_by(x, dim, tq_sign_table(dim), 1);
    tq_avx2_hadamard(x, dim);
    scale_by(x, dim, NULL, tq_rotate_scale(dim));
}

void tq_avx2_unrotate(float *x, uint32_t dim)
{
    if (!is_direct(dim)) {
        tq_avx2_hadamard(x, dim);
        scale_by(x, dim, tq_sign_table(dim), tq_rotate_scale(dim));
        return;
    }
    switch (dim) {
    case 64:
        tq_hadamard(x, x, 64, NULL, tq_sign_table(64));
        break;
    case 128:
        tq_hadamard(x, x, 128, NULL, tq_sign_table(128));
        break;
    case 256:
        tq_hadamard(x, x, 256, NULL, tq_sign_table(256));
        break;
    default:
        tq_hadamard(x, x, 512, NULL, tq_sign_table(512));
        break;
    }
}

TQ_INLINE void transpose8(__m256 *v)
{
    __m256 t[8], u[8];

    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* Lane i: the sum of squares of y[32 * i .. 32 * i + 31], in order. */
static __m256 sum_squares8(const float *y)
{
    __m256 t = _mm256_setzero_ps();

    for (int k = 0; k < 4; k++) {
        __m256 v[8];
        for (int g = 0; g < 8; g++) {
            v[g] = _mm256_loadu_ps(y + 32 * g + 8 * k);
            v[g] = _mm256_mul_ps(v[g], v[g]);
        }
        transpose8(v);
        for (int j = 0; j < 8; j++)
            t = _mm256_add_ps(v[j], t);
    }
    return t;
}

/* How many boundaries lie strictly below each lane of v; a NaN is above none. */
TQ_INLINE __m256i count_linear(__m256 v, const float *boundary, int n)
{
    __m256i idx = _mm256_setzero_si256();
    for (int i = 0; i < n; i++) {
        __m256 above = _mm256_cmp_ps(v, _mm256_broadcast_ss(boundary + i), _CMP_GT_OQ);
        idx = _mm256_sub_epi32(idx, _mm256_castps_si256(above));
    }
    return idx;
}

/* The boundaries as a search tree in heap order: node 1 is the root, the children of node k are
 * 2k and 2k + 1. Walking right where v > t[k], b times, ends at node 2^b + count. 4 and 5 bits:
 * every level of the tree fits vectors, which are permuted. */
typedef struct search_tree {
    float t[32];
} search_tree;

TQ_INLINE void search_tree_init(search_tree *tree, const float *boundary, int b)
{
    tree->t[0] = 0;
    for (int level = 0; level < b; level++)
        for (int i = 0; i < 1 << level; i++)
            tree->t[(1 << level) + i] = boundary[(i << (b - level)) + (1 << (b - level - 1)) - 1];
}

/* t[k] for nodes of one level. */
TQ_INLINE __m256 tree_lookup(const float *t, __m256i k, int level)
{
    if (level <= 2)
        return _mm256_permutevar8x32_ps(_mm256_loadu_ps(t), k);
    if (level == 3)
        return _mm256_permutevar8x32_ps(_mm256_loadu_ps(t + 8), k);
    __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(k, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(t + 16), k),
                            _mm256_permutevar8x32_ps(_mm256_loadu_ps(t + 24), k), bit3);
}

TQ_INLINE __m256i count_by_tree(__m256 v, const search_tree *tree, int b)
{
    __m256i k = _mm256_set1_epi32(1);
    for (int level = 0; level < b; level++) {
        __m256 at = level == 0 ? _mm256_broadcast_ss(tree->t + 1) : tree_lookup(tree->t, k, level);
        __m256 above = _mm256_cmp_ps(v, at, _CMP_GT_OQ);
        k = _mm256_sub_epi32(_mm256_add_epi32(k, k), _mm256_castps_si256(above));
    }
    return _mm256_sub_epi32(k, _mm256_set1_epi32(1 << b));
}

/* 8 bits: the line is cut into equal cells, so narrow that none holds two boundaries (the nearest
 * two are 1/45.9 apart). A cell knows how many boundaries lie before it; one comparison with the
 * next one gives the count. The number of a cell is a monotonic function of the value, so this is
 * exact whatever way it rounds. */
enum { N_CELLS = 512 };

#define CELLS_PER_UNIT 48.0f /* boundaries end at -4.49 and 4.33 */

typedef struct cells {
    uint8_t before[N_CELLS + 4]; /* gathered four bytes at a time */
    float boundary[256];         /* and INFINITY behind the last */
} cells;

TQ_INLINE __m256i cell_of(__m256 v)
{
    __m256 at = _mm256_fmadd_ps(v, _mm256_set1_ps(CELLS_PER_UNIT), _mm256_set1_ps(N_CELLS / 2));
    /* The second operand wins over a NaN: cell 0, where nothing is below it. */
    at = _mm256_min_ps(_mm256_max_ps(at, _mm256_setzero_ps()), _mm256_set1_ps(N_CELLS - 1));
    return _mm256_cvtps_epi32(at);
}

/* Each boundary is marked behind its cell; the running sum of the marks is the table. */
static void cells_init(cells *c, const float *boundary)
{
    uint8_t mark[N_CELLS] = {0};
    int32_t cell[256];
    __m128i carry = _mm_setzero_si128();

    memcpy(c->boundary, boundary, 255 * sizeof(float));
    c->boundary[255] = INFINITY;
    for (int i = 0; i < 256; i += 8)
        _mm256_storeu_si256((__m256i *)(void *)(cell + i),
                            cell_of(_mm256_loadu_ps(c->boundary + i)));
    for (int i = 0; i < 255; i++)
        mark[cell[i] + 1] = 1;
    for (int k = 0; k < N_CELLS; k += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(mark + k));
        v = _mm_add_epi8(v, _mm_slli_si128(v, 1));
        v = _mm_add_epi8(v, _mm_slli_si128(v, 2));
        v = _mm_add_epi8(v, _mm_slli_si128(v, 4));
        v = _mm_add_epi8(_mm_add_epi8(v, _mm_slli_si128(v, 8)), carry);
        _mm_storeu_si128((__m128i *)(void *)(c->before + k), v);
        carry = _mm_shuffle_epi8(v, _mm_set1_epi8(15));
    }
    memset(c->before + N_CELLS, 0, sizeof c->before - N_CELLS);
}

TQ_INLINE __m256i count_by_cell(__m256 v, const cells *c)
{
    const __m256i byte = _mm256_set1_epi32(255);
    __m256i before = _mm256_i32gather_epi32((const int *)(const void *)c->before, cell_of(v), 1);
    before = _mm256_and_si256(before, byte);
    __m256 next = _mm256_i32gather_ps(c->boundary, before, 4);
    return _mm256_sub_epi32(before, _mm256_castps_si256(_mm256_cmp_ps(v, next, _CMP_GT_OQ)));
}

/* Up to this many bits comparing with every boundary is faster. */
#define LINEAR_BITS 3

typedef struct searcher {
    const float *boundary;
    union {
        search_tree tree; /* 4 and 5 bits */
        cells cells;      /* 8 bits */
    } u;
} searcher;

TQ_INLINE void searcher_init(searcher *s, int b)
{
    s->boundary = tq_lloyd_get((uint32_t)b)->boundary;
    if (b == 8)
        cells_init(&s->u.cells, s->boundary);
    else if (b > LINEAR_BITS)
        search_tree_init(&s->u.tree, s->boundary, b);
}

TQ_INLINE __m256i lloyd_codes(__m256 v, const searcher *s, int b)
{
    if (b == 8)
        return count_by_cell(v, &s->u.cells);
    return b <= LINEAR_BITS ? count_linear(v, s->boundary, (1 << b) - 1)
                            : count_by_tree(v, &s->u.tree, b);
}

/* Codes and scales of eight groups of y, whose mean squares are given; scale16 may be longer than
 * the groups that are kept. */
TQ_INLINE void encode_tile(uint8_t codes[8 * 32], uint16_t *scale16, const float *y, __m256 mean,
                           const searcher *how, int b, int strict)
{
    float d8[8];
    __m256 r = _mm256_sqrt_ps(mean);

    _mm256_storeu_ps(d8, _mm256_add_ps(r, _mm256_set1_ps(TQ_EPS)));
    if (!strict)
        r = _mm256_min_ps(r, _mm256_set1_ps(65504.0f)); /* saturate; r is not NaN here */
    _mm_storeu_si128((__m128i *)(void *)scale16, tq_f16_from_f32x8(r));
    for (int g = 0; g < 8; g++) {
        __m256 d = _mm256_broadcast_ss(d8 + g);
        __m256i idx[4];
        for (int k = 0; k < 4; k++) {
            __m256 v = _mm256_div_ps(_mm256_loadu_ps(y + 32 * g + 8 * k), d);
            idx[k] = lloyd_codes(v, how, b);
        }
        tq_pack_group(codes + g * 4 * b, tq_narrow_group(idx, 0), b);
    }
}

/* Sums of squares to means, docs/format.md 7.2 and 7.3: division by 32 is the same number as
 * multiplication by 1/32. */
typedef struct group_sizes {
    float n[TQ_DIM_MAX / TQ_GROUP]; /* elements of the groups of a pass */
    int all_whole;
} group_sizes;

TQ_INLINE void group_sizes_init(group_sizes *s, const tq_codec *c)
{
    s->all_whole = c->dim % TQ_GROUP == 0;
    for (uint32_t i = 0; i < TQ_DIM_MAX / TQ_GROUP; i++)
        s->n[i] = (float)tq_group_size(c->dim, i % c->n_groups);
}

TQ_INLINE __m256 means_of(__m256 sum, const group_sizes *s, uint32_t tile)
{
    return s->all_whole ? _mm256_mul_ps(sum, _mm256_set1_ps(0.03125f))
                        : _mm256_div_ps(sum, _mm256_loadu_ps(s->n + 8 * tile));
}

TQ_INLINE void encode_lloyd(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                            size_t n, int b)
{
    const int strict = (c->flags & TQ_CODEC_STRICT) != 0;
    const uint32_t width = c->n_groups * TQ_GROUP; /* of a row, filled up */
    const size_t rows_per_pass = width <= TILE ? TILE / width : 1;
    const uint32_t n_tiles = (width + TILE - 1) / TILE;
    const size_t padded = (size_t)n_tiles * TILE, code_bytes = (size_t)c->n_groups * 4 * (size_t)b;
    const __m256 inf = _mm256_set1_ps(INFINITY);
    float y[TQ_DIM_MAX];
    uint8_t codes[TQ_DIM_MAX];
    uint16_t scale16[TQ_DIM_MAX / TQ_GROUP];
    searcher how;
    group_sizes sizes;

    group_sizes_init(&sizes, c);
    searcher_init(&how, b);
    memset(y, 0, padded * sizeof(float));
    for (size_t row = 0; row < n; row += rows_per_pass) {
        size_t rows = n - row < rows_per_pass ? n - row : rows_per_pass;
        __m256 sum[TQ_DIM_MAX / TILE];
        int finite = 0xff;

        for (size_t i = 0; i < rows; i++)
            rotate_row(y + i * width, src + (row + i) * src_stride, c->dim);
        if (rows < rows_per_pass)
            memset(y + rows * width, 0, (padded - rows * width) * sizeof(float));
        for (uint32_t tile = 0; tile < n_tiles; tile++) {
            sum[tile] = sum_squares8(y + tile * TILE);
            finite &= _mm256_movemask_ps(_mm256_cmp_ps(sum[tile], inf, _CMP_LT_OQ));
        }
        if (finite != 0xff && !strict) {
            for (size_t i = row; i < row + rows; i++)
                tq_lloyd_row_encode(dst.codes + i * dst.codes_stride,
                                    dst.scale + i * dst.scale_stride, src + i * src_stride, c->dim,
                                    (uint32_t)b, 0);
            continue;
        }
        for (uint32_t tile = 0; tile < n_tiles; tile++)
            encode_tile(codes + tile * TILE * (uint32_t)b / 8, scale16 + tile * 8, y + tile * TILE,
                        means_of(sum[tile], &sizes, tile), &how, b, strict);
        for (size_t i = 0; i < rows; i++) {
            memcpy(dst.codes + (row + i) * dst.codes_stride, codes + i * code_bytes, c->code_bytes);
            memcpy(dst.scale + (row + i) * dst.scale_stride, scale16 + i * c->n_groups,
                   c->scale_bytes);
        }
    }
}

TQ_INLINE void decode_row(const tq_codec *c, float *out, const uint8_t *codes, const uint8_t *scale,
                          const tq_lloyd_regs *regs, int b)
{
    const uint32_t n_whole = c->dim / 64 * 2; /* groups with a neighbour */
    __m256i idx[4];

    for (uint32_t g = 0; g < n_whole; g++) {
        __m256 s = tq_broadcast_f16(scale + (size_t)g * 2);

        tq_unpack_group(idx, codes, g, b);
        for (int k = 0; k < 4; k++)
            _mm256_storeu_ps(out + TQ_GROUP * g + 8 * k,
                             _mm256_mul_ps(tq_lloyd_lookup(regs, idx[k], b), s));
    }
    for (uint32_t g = n_whole; g < c->n_groups; g++) {
        const uint32_t size = tq_group_size(c->dim, g);
        __m256 s = tq_broadcast_f16(scale + (size_t)g * 2);

        tq_unpack_last(idx, codes + (size_t)g * 4 * (size_t)b, size, b);
        for (uint32_t k = 0; k < size / 8; k++)
            _mm256_storeu_ps(out + TQ_GROUP * g + 8 * k,
                             _mm256_mul_ps(tq_lloyd_lookup(regs, idx[k], b), s));
    }
}

TQ_INLINE void decode_lloyd(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                            size_t n, int b, int rotated)
{
    const tq_lloyd_regs regs = tq_lloyd_load(b);

    for (size_t row = 0; row < n; row++) {
        float *out = dst + row * dst_stride;
        decode_row(c, out, src.codes + row * src.codes_stride, src.scale + row * src.scale_stride,
                   &regs, b);
        if (!rotated)
            tq_avx2_unrotate(out, c->dim);
    }
}

#define LLOYD(b)                                                                                   \
    void tq_avx2_encode_v##b(const tq_codec *c, tq_planes dst, const float *src,                   \
                             size_t src_stride, size_t n)                                          \
    {                                                                                              \
        encode_lloyd(c, dst, src, src_stride, n, b);                                               \
    }                                                                                              \
    void tq_avx2_decode_v##b(const tq_codec *c, float *dst, size_t dst_stride,                     \
                             tq_const_planes src, size_t n)                                        \
    {                                                                                              \
        decode_lloyd(c, dst, dst_stride, src, n, b, 0);                                            \
    }                                                                                              \
    void tq_avx2_decode_rotated_v##b(const tq_codec *c, float *dst, size_t dst_stride,             \
                                     tq_const_planes src, size_t n)                                \
    {                                                                                              \
        decode_lloyd(c, dst, dst_stride, src, n, b, 1);                                            \
    }

LLOYD(2)
LLOYD(3)
LLOYD(4)
LLOYD(5)
LLOYD(8)
