/* SPDX-License-Identifier: MIT */
/* avx2_lloyd_encode.c — Lloyd values for AVX2: eight groups at a time, one in each lane.
 *
 * The format fixes the order of each group's sum of squares, so a group cannot be summed across
 * lanes: groups are transposed first, and everything behind is the same instruction for eight of
 * them. The transform needs fewer shuffles so, and a group's codes become whole words by shifts.
 *
 * The one hard idea: 2- and 3-bit codes need no division. f32(y / d) > boundary is the same as
 * y > t for a threshold t of the group that doubles give exactly (the codes of docs/format.md 7.2).
 */
#include "cpu/avx2.h"
#include "codec.h"
#include "cpu/avx2_codec.h"
#include "cpu/avx2_rotated.h"

enum {
    TILE = 8,  /* groups in the lanes */
    PASS = 16, /* groups of a pass: two tiles, whose long sums overlap */
    MAX_BITS = 8,
};

TQ_INLINE void transpose8(__m256 *v)
{
    __m256 t[8], u[8];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* ---- Groups into lanes ---- */

/* Elements j of eight groups. */
typedef struct lanes8 {
    __m256 y[TQ_GROUP];
} lanes8;

/* Groups that are rotated already. */
TQ_INLINE void load_lanes(lanes8 *l, const float *const x[TILE])
{
    for (int k = 0; k < 4; k++) {
        __m256 v[8];
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++)
            v[g] = _mm256_loadu_ps(x[g] + 8 * k);
        transpose8(v);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            l->y[8 * k + j] = v[j];
    }
}

/* Whole rows of n_groups groups, and their transform: stages within a group go across vectors,
 * those between groups across lanes. */
TQ_INLINE void rotate_lanes(lanes8 *l, const float *const x[TILE], const int n_groups)
{
    const float *sign = tq_sign_table((uint32_t)n_groups * TQ_GROUP);
    const __m256 scale = _mm256_set1_ps(tq_rotate_scale((uint32_t)n_groups * TQ_GROUP));
    const __m256 s1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 s2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const __m256 s4 = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);

    for (int k = 0; k < 4; k++) {
        __m256 v[8];
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++)
            v[g] = _mm256_mul_ps(_mm256_loadu_ps(x[g] + 8 * k),
                                 _mm256_loadu_ps(sign + g % n_groups * (int)TQ_GROUP + 8 * k));
        transpose8(v);
        tq_hadamard_across(v, 8);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            l->y[8 * k + j] = v[j];
    }
    for (int j = 0; j < 8; j++) {
        __m256 v[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            v[k] = l->y[8 * k + j];
        tq_hadamard_across(v, 4);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            /* t + v*(+-1) is one rounding, as in the reference. */
            v[k] = _mm256_fmadd_ps(v[k], s1, _mm256_permute_ps(v[k], 0xb1));
            if (n_groups > 2)
                v[k] = _mm256_fmadd_ps(v[k], s2, _mm256_permute_ps(v[k], 0x4e));
            if (n_groups > 4)
                v[k] = _mm256_fmadd_ps(v[k], s4, _mm256_permute2f128_ps(v[k], v[k], 0x01));
            l->y[8 * k + j] = _mm256_mul_ps(v[k], scale);
        }
    }
}

/* Sums of squares of two tiles, each lane in order. Their chains run side by side. */
TQ_INLINE void sum_squares(__m256 sum[2], const lanes8 l[2])
{
    sum[0] = sum[1] = _mm256_setzero_ps();
    for (uint32_t j = 0; j < TQ_GROUP; j++)
        for (int i = 0; i < 2; i++)
            sum[i] = _mm256_add_ps(_mm256_mul_ps(l[i].y[j], l[i].y[j]), sum[i]);
}

/* ---- Codes by thresholds ---- */

/* Up to this many bits comparing with every boundary is fastest. */
#define LINEAR_BITS 3

/* f32(y / d) > B holds when y / d lies above M, the middle of B and the next f32 above it. M d is
 * exact in double, 25 or 26 bits times 24, so this is y > t with t the last f32 up to M d. A tie,
 * y = M d, cannot be: the odd part of M alone has 25 bits or more, and y has 24. For B = 0, where M
 * is a power of two, a tie goes to 0, which y > t gives. */
TQ_INLINE double middle_above(float boundary)
{
    uint32_t bits, next_bits;
    float next;
    memcpy(&bits, &boundary, 4);
    next_bits = boundary < 0 ? bits - 1 : bits + 1; /* no boundary is -0 or the largest f32 */
    memcpy(&next, &next_bits, 4);
    return ((double)boundary + (double)next) * 0.5;
}

/* The last f32 up to each double of p: four in the lower half. */
TQ_INLINE __m128 round_down(__m256d p)
{
    const __m128 t = _mm256_cvtpd_ps(p);
    const __m256d above = _mm256_cmp_pd(_mm256_cvtps_pd(t), p, _CMP_GT_OQ);
    /* All ones in 64 bits: one of their halves is a mask of 32. */
    const __m128 step = _mm_shuffle_ps(_mm_castpd_ps(_mm256_castpd256_pd128(above)),
                                       _mm_castpd_ps(_mm256_extractf128_pd(above, 1)), 0x88);
    /* Towards -INFINITY: magnitudes fall above 0 and grow below. */
    const __m128i sign = _mm_srai_epi32(_mm_castps_si128(t), 31);
    const __m128i way = _mm_or_si128(_mm_xor_si128(sign, _mm_set1_epi32(-1)),
                                     _mm_set1_epi32(1)); /* -1 above 0, 1 below */
    return _mm_castsi128_ps(
        _mm_add_epi32(_mm_castps_si128(t), _mm_and_si128(way, _mm_castps_si128(step))));
}

TQ_INLINE __m256 threshold(double middle, __m256d d_low, __m256d d_high)
{
    const __m256d m = _mm256_set1_pd(middle);
    return _mm256_set_m128(round_down(_mm256_mul_pd(m, d_high)),
                           round_down(_mm256_mul_pd(m, d_low)));
}

/* ---- Codes by search ---- */

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
#pragma GCC unroll 8
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

typedef struct searcher {
    union {
        double middles[(1 << LINEAR_BITS) - 1]; /* 2 and 3 bits */
        search_tree tree;                       /* 4 and 5 bits */
        cells cells;                            /* 8 bits */
    } u;
} searcher;

TQ_INLINE void searcher_init(searcher *s, const int b)
{
    const float *boundary = tq_lloyd_get((uint32_t)b)->boundary;
    if (b == 8)
        cells_init(&s->u.cells, boundary);
    else if (b > LINEAR_BITS)
        search_tree_init(&s->u.tree, boundary, b);
    else
        for (int i = 0; i < (1 << b) - 1; i++)
            s->u.middles[i] = middle_above(boundary[i]);
}

/* Bits [at, at + b) of the stream of each lane: word at / 32 and, behind its end, the next. */
TQ_INLINE void put_codes(__m256i *word, __m256i code, const int at, const int b)
{
    const int w = at / 32, shift = at % 32;
    word[w] = _mm256_or_si256(word[w], _mm256_slli_epi32(code, shift));
    if (shift + b > 32)
        word[w + 1] = _mm256_srli_epi32(code, 32 - shift);
}

TQ_INLINE void codes_linear(__m256i *word, const lanes8 *l, __m256 d, const searcher *s,
                            const int b)
{
    const int n = (1 << b) - 1;
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(d));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(d, 1));
    __m256 t[(1 << LINEAR_BITS) - 1];

#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        t[i] = threshold(s->u.middles[i], low, high);
#pragma GCC unroll 32
    for (int j = 0; j < (int)TQ_GROUP; j++) {
        const __m256 v = l->y[j];
        __m256i above = _mm256_castps_si256(_mm256_cmp_ps(v, t[0], _CMP_GT_OQ));
#pragma GCC unroll 8
        for (int i = 1; i < n; i++)
            above =
                _mm256_add_epi32(above, _mm256_castps_si256(_mm256_cmp_ps(v, t[i], _CMP_GT_OQ)));
        put_codes(word, _mm256_sub_epi32(_mm256_setzero_si256(), above), j * b, b);
    }
}

TQ_INLINE void codes_by_search(__m256i *word, const lanes8 *l, __m256 d, const searcher *s,
                               const int b)
{
#pragma GCC unroll 32
    for (int j = 0; j < (int)TQ_GROUP; j++) {
        const __m256 v = _mm256_div_ps(l->y[j], d);
        const __m256i code =
            b == 8 ? count_by_cell(v, &s->u.cells) : count_by_tree(v, &s->u.tree, b);
        put_codes(word, code, j * b, b);
    }
}

/* Codes [TILE][4 * b] and f16 scales [TILE] of a tile whose mean squares are given. */
TQ_INLINE void encode_tile(uint8_t *codes, uint16_t *scale16, const lanes8 *l, __m256 mean,
                           const searcher *s, const int b, int strict)
{
    __m256 r = _mm256_sqrt_ps(mean);
    const __m256 d = _mm256_add_ps(r, _mm256_set1_ps(TQ_EPS));
    __m256i word[MAX_BITS];
    uint32_t words[MAX_BITS][TILE];

    if (!strict)
        r = _mm256_min_ps(r, _mm256_set1_ps(65504.0f)); /* saturate; r is not NaN here */
    _mm_storeu_si128((__m128i *)(void *)scale16, tq_f16_from_f32x8(r));
#pragma GCC unroll 8
    for (int w = 0; w < b; w++)
        word[w] = _mm256_setzero_si256();
    if (b <= LINEAR_BITS)
        codes_linear(word, l, d, s, b);
    else
        codes_by_search(word, l, d, s, b);
#pragma GCC unroll 8
    for (int w = 0; w < b; w++)
        _mm256_storeu_si256((__m256i *)(void *)words[w], word[w]);
#pragma GCC unroll 8
    for (int g = 0; g < TILE; g++)
#pragma GCC unroll 8
        for (int w = 0; w < b; w++)
            memcpy(codes + (g * b + w) * 4, &words[w][g], 4);
}

/* ---- Rows ---- */

/* What is constant over the rows of a call. */
typedef struct encoder {
    const tq_codec *c;
    searcher how;
    float size[TQ_DIM_MAX / TQ_GROUP]; /* elements of the groups of a row */
    int strict, direct;                /* direct: a power of two that rotate_lanes takes */
} encoder;

static const float no_group[TQ_GROUP];

/* Codes and scales of PASS groups, at x; elements of them at size, or NULL: all whole. Returns 0
 * and leaves them undefined when a sum overflows. */
TQ_INLINE int encode_pass(uint8_t *codes, uint16_t *scale16, const float *const x[PASS],
                          const float *size, const encoder *e, const int b)
{
    const __m256 inf = _mm256_set1_ps(INFINITY);
    lanes8 l[2];
    __m256 sum[2];
    int finite = 0xff;

    for (int i = 0; i < 2; i++) {
        switch (e->direct ? e->c->dim : 0) {
        case 64:
            rotate_lanes(&l[i], x + TILE * i, 2);
            break;
        case 128:
            rotate_lanes(&l[i], x + TILE * i, 4);
            break;
        case 256:
            rotate_lanes(&l[i], x + TILE * i, 8);
            break;
        default:
            load_lanes(&l[i], x + TILE * i);
            break;
        }
    }
    sum_squares(sum, l);
    for (int i = 0; i < 2; i++)
        finite &= _mm256_movemask_ps(_mm256_cmp_ps(sum[i], inf, _CMP_LT_OQ));
    if (finite != 0xff)
        return 0;
    for (int i = 0; i < 2; i++) {
        /* Division by 32 is the same number as multiplication by 1/32. */
        const __m256 mean = size ? _mm256_div_ps(sum[i], _mm256_loadu_ps(size + TILE * i))
                                 : _mm256_mul_ps(sum[i], _mm256_set1_ps(0.03125f));
        encode_tile(codes + i * TILE * 4 * b, scale16 + i * TILE, &l[i], mean, &e->how, b,
                    e->strict);
    }
    return 1;
}

static void store_row(const encoder *e, tq_planes dst, size_t row, const uint8_t *codes,
                      const uint16_t *scale16)
{
    memcpy(dst.codes + row * dst.codes_stride, codes, e->c->code_bytes);
    memcpy(dst.scale + row * dst.scale_stride, scale16, e->c->scale_bytes);
}

/* A row whose sums overflow. */
static void encode_rare(const encoder *e, tq_planes dst, size_t row, const float *x, int b)
{
    tq_lloyd_row_encode(dst.codes + row * dst.codes_stride, dst.scale + row * dst.scale_stride, x,
                        e->c->dim, (uint32_t)b, e->strict);
}

/* Rows that share a pass. */
TQ_INLINE void encode_rows(const encoder *e, tq_planes dst, const float *src, size_t src_stride,
                           size_t n, const int b)
{
    const size_t n_groups = e->c->n_groups, rows_per_pass = PASS / n_groups;
    uint8_t codes[PASS * 4 * MAX_BITS];
    uint16_t scale16[PASS];

    for (size_t row = 0; row < n; row += rows_per_pass) {
        const size_t rows = n - row < rows_per_pass ? n - row : rows_per_pass;
        const float *x[PASS];
        for (size_t i = row; i < row + rows && i < dst.ahead; i++)
            tq_ask_for(src + (n + i) * src_stride, e->c->dim);
        for (size_t i = 0; i < PASS; i++)
            x[i] = i / n_groups < rows
                       ? src + (row + i / n_groups) * src_stride + i % n_groups * TQ_GROUP
                       : no_group;
        const int ok = encode_pass(codes, scale16, x, NULL, e, b);
        for (size_t i = 0; i < rows; i++)
            if (ok)
                store_row(e, dst, row + i, codes + i * n_groups * 4 * (size_t)b,
                          scale16 + i * n_groups);
            else
                encode_rare(e, dst, row + i, src + (row + i) * src_stride, b);
    }
}

/* Rows of any length: rotated in memory, filled up with zeros to whole groups. */
TQ_INLINE void encode_any(const encoder *e, tq_planes dst, const float *src, size_t src_stride,
                          size_t n, const int b)
{
    const tq_codec *c = e->c;
    float y[TQ_DIM_MAX];
    uint8_t codes[TQ_DIM_MAX / TQ_GROUP * 4 * MAX_BITS];
    uint16_t scale16[TQ_DIM_MAX / TQ_GROUP];

    memset(y, 0, sizeof y);
    for (size_t row = 0; row < n; row++) {
        int ok = 1;
        if (row < dst.ahead)
            tq_ask_for(src + (n + row) * src_stride, c->dim);
        memcpy(y, src + row * src_stride, c->dim * sizeof(float));
        tq_avx2_rotate(y, c->dim);
        for (size_t g = 0; ok && g < c->n_groups; g += PASS) {
            const float *x[PASS];
            for (size_t i = 0; i < PASS; i++)
                x[i] = g + i < c->n_groups ? y + (g + i) * TQ_GROUP : no_group;
            ok = encode_pass(codes + g * 4 * (size_t)b, scale16 + g, x,
                             c->dim % TQ_GROUP ? e->size + g : NULL, e, b);
        }
        if (ok)
            store_row(e, dst, row, codes, scale16);
        else
            encode_rare(e, dst, row, src + row * src_stride, b);
    }
}

TQ_INLINE void encode_lloyd(const tq_codec *c, tq_planes dst, const float *src, size_t src_stride,
                            size_t n, const int b)
{
    encoder e = {.c = c, .strict = (c->flags & TQ_CODEC_STRICT) != 0};

    searcher_init(&e.how, b);
    e.direct = c->dim == 64 || c->dim == 128 || c->dim == 256;
    if (e.direct) {
        encode_rows(&e, dst, src, src_stride, n, b);
        return;
    }
    for (uint32_t g = 0; g < TQ_DIM_MAX / TQ_GROUP; g++)
        e.size[g] = g < c->n_groups ? (float)tq_group_size(c->dim, g) : (float)TQ_GROUP;
    encode_any(&e, dst, src, src_stride, n, b);
}

#define LLOYD(b)                                                                                   \
    void tq_avx2_encode_v##b(const tq_codec *c, tq_planes dst, const float *src,                   \
                             size_t src_stride, size_t n)                                          \
    {                                                                                              \
        encode_lloyd(c, dst, src, src_stride, n, b);                                               \
    }

LLOYD(2)
LLOYD(3)
LLOYD(4)
LLOYD(5)
LLOYD(8)
