/* SPDX-License-Identifier: MIT */
/* avx2_rotated.c — transforms of any supported dimension, fixed point and reconstruction, AVX2.
 *
 * The one hard idea: every sum of docs/format.md 5.4 and 8.3 keeps its order. Butterflies may be
 * walked in any order; the small factors run over eight columns at a time, each of them summed
 * from left to right; the 16 stripes of the sum of squares are two vectors.
 */
#include "cpu/avx2_rotated.h"
#include "cpu/avx2.h"
#include "f16.h"
#include "hadamard_rows.h"

/* ---- The transform ---- */

/* n vectors that lie `stride` floats apart, in place. */
TQ_INLINE void across(float *x, size_t stride, const int n)
{
    __m256 v[16];
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        v[i] = _mm256_loadu_ps(x + (size_t)i * stride);
    tq_hadamard_across(v, n);
#pragma GCC unroll 16
    for (int i = 0; i < n; i++)
        _mm256_storeu_ps(x + (size_t)i * stride, v[i]);
}

/* Vectors of 8 and the stages between the first n of them. */
TQ_INLINE void inside(float *x, const int n)
{
    __m256 v[8];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        v[i] = tq_hadamard8(_mm256_loadu_ps(x + 8 * i));
    tq_hadamard_across(v, n);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        _mm256_storeu_ps(x + 8 * i, v[i]);
}

/* Stages h = 1 and, for runs of 4, h = 2 of all runs in a row. */
static void short_runs(float *x, uint32_t dim, uint32_t run)
{
    const __m256 s1 = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 s2 = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);

    for (uint32_t j = 0; j < dim; j += 8) {
        __m256 v = _mm256_loadu_ps(x + j);
        v = _mm256_fmadd_ps(v, s1, _mm256_permute_ps(v, 0xb1));
        if (run == 4)
            v = _mm256_fmadd_ps(v, s2, _mm256_permute_ps(v, 0x4e));
        _mm256_storeu_ps(x + j, v);
    }
}

/* The butterflies of one run of 8, 16 ... 1024. */
static void long_run(float *x, uint32_t run)
{
    if (run == 8) {
        inside(x, 1);
        return;
    }
    if (run == 16) {
        inside(x, 2);
        return;
    }
    if (run == 32) {
        inside(x, 4);
        return;
    }
    for (uint32_t j = 0; j < run; j += 64)
        inside(x + j, 8);
    for (uint32_t j = 0; j < 64 && run > 64; j += 8) {
        switch (run) {
        case 128:
            across(x + j, 64, 2);
            break;
        case 256:
            across(x + j, 64, 4);
            break;
        case 512:
            across(x + j, 64, 8);
            break;
        default:
            across(x + j, 64, 16);
            break;
        }
    }
}

/* ---- The small factor ---- */

/* t +- v[j], by bit j of a row that the compiler knows: sums are then straight lines of additions
 * and subtractions. t - v is t + (-v), bit for bit. */
TQ_INLINE __m256 add_term(__m256 t, const __m256 *v, const uint32_t row, const uint32_t j)
{
    return row >> j & 1 ? _mm256_sub_ps(t, v[j]) : _mm256_add_ps(t, v[j]);
}

#define TERM(j) t = add_term(t, v, row, j)

TQ_INLINE __m256 sum_12(const __m256 *v, const uint32_t row)
{
    __m256 t = v[0];
    TERM(1), TERM(2), TERM(3), TERM(4), TERM(5), TERM(6), TERM(7), TERM(8), TERM(9), TERM(10);
    return TERM(11);
}

TQ_INLINE __m256 sum_20(const __m256 *v, const uint32_t row)
{
    __m256 t = sum_12(v, row);
    TERM(12), TERM(13), TERM(14), TERM(15), TERM(16), TERM(17), TERM(18);
    return TERM(19);
}

#undef TERM

/* Row a of a conference matrix: element a is 0. */
TQ_INLINE __m256 sum_of_others(const __m256 *v, const uint32_t row, const uint32_t a,
                               const uint32_t n)
{
    const uint32_t first = a == 0;
    __m256 t = v[first];
    if (row >> first & 1)
        t = _mm256_xor_ps(t, _mm256_set1_ps(-0.0f));
#define TERM(j)                                                                                    \
    if ((j) > first && (j) != a && (j) < n)                                                        \
    t = add_term(t, v, row, j)
    TERM(1);
    TERM(2);
    TERM(3);
    TERM(4);
    TERM(5);
    TERM(6);
    TERM(7);
    TERM(8);
    TERM(9);
    TERM(10);
    TERM(11);
    TERM(12);
    TERM(13);
    TERM(14);
    TERM(15);
    TERM(16);
    TERM(17);
#undef TERM
    return t;
}

/* out = H_m v for m = 12, 20 and 28, 36. */
static void small_12(__m256 *out, const __m256 *v)
{
#define ROW(i, row) out[i] = sum_12(v, row);
    TQ_PALEY_12(ROW)
#undef ROW
}

static void small_20(__m256 *out, const __m256 *v)
{
#define ROW(i, row) out[i] = sum_20(v, row);
    TQ_PALEY_20(ROW)
#undef ROW
}

static void small_28(__m256 *out, const __m256 *v)
{
    enum { N = 14 };
    __m256 u[N], w[N];
    for (int a = 0; a < N; a++) {
        u[a] = _mm256_add_ps(v[a], v[a + N]);
        w[a] = _mm256_sub_ps(v[a], v[a + N]);
    }
#define ROW(a, row)                                                                                \
    out[a] = _mm256_add_ps(sum_of_others(u, row, a, N), w[a]);                                     \
    out[(a) + N] = _mm256_sub_ps(sum_of_others(w, row, a, N), u[a]);
    TQ_CONFERENCE_14(ROW)
#undef ROW
}

static void small_36(__m256 *out, const __m256 *v)
{
    enum { N = 18 };
    __m256 u[N], w[N];
    for (int a = 0; a < N; a++) {
        u[a] = _mm256_add_ps(v[a], v[a + N]);
        w[a] = _mm256_sub_ps(v[a], v[a + N]);
    }
#define ROW(a, row)                                                                                \
    out[a] = _mm256_add_ps(sum_of_others(u, row, a, N), w[a]);                                     \
    out[(a) + N] = _mm256_sub_ps(sum_of_others(w, row, a, N), u[a]);
    TQ_CONFERENCE_18(ROW)
#undef ROW
}

/* 8, 4 or 2 columns; the other lanes are 0 and not stored. */
TQ_INLINE __m256 load_some(const float *p, uint32_t n)
{
    if (n == 8)
        return _mm256_loadu_ps(p);
    if (n == 4)
        return _mm256_zextps128_ps256(_mm_loadu_ps(p));
    return _mm256_zextps128_ps256(
        _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

TQ_INLINE void store_some(float *p, __m256 v, uint32_t n)
{
    if (n == 8)
        _mm256_storeu_ps(p, v);
    else if (n == 4)
        _mm_storeu_ps(p, _mm256_castps256_ps128(v));
    else
        _mm_storel_pi((__m64 *)(void *)p, _mm256_castps256_ps128(v));
}

/* H_m across the m runs. */
static void small_factor(float *x, uint32_t m, uint32_t run)
{
    const uint32_t step = run < 8 ? run : 8;
    __m256 v[36], out[36];

    for (uint32_t b = 0; b < run; b += step) {
        for (uint32_t j = 0; j < m; j++)
            v[j] = load_some(x + (size_t)j * run + b, step);
        if (m == 12)
            small_12(out, v);
        else if (m == 20)
            small_20(out, v);
        else if (m == 28)
            small_28(out, v);
        else
            small_36(out, v);
        for (uint32_t j = 0; j < m; j++)
            store_some(x + (size_t)j * run + b, out[j], step);
    }
}

void tq_avx2_hadamard(float *x, uint32_t dim)
{
    const uint32_t m = tq_hadamard_order(dim);
    const uint32_t run = dim / m;

    if (run < 8)
        short_runs(x, dim, run);
    else
        for (uint32_t a = 0; a < m; a++)
            long_run(x + (size_t)a * run, run);
    if (m > 1)
        small_factor(x, m, run);
}

/* ---- Encoder ---- */

TQ_INLINE float max_lane(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* The tree of the stripe sum over stripes 0..7 and 8..15. */
TQ_INLINE float stripe_tree(__m256 lo, __m256 hi)
{
    __m256 a = _mm256_add_ps(lo, hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Sum of squares of two vectors into the 16 stripes. */
TQ_INLINE void add_squares(__m256 stripes[2], __m256 a, __m256 b)
{
    stripes[0] = _mm256_add_ps(stripes[0], _mm256_mul_ps(a, a));
    stripes[1] = _mm256_add_ps(stripes[1], _mm256_mul_ps(b, b));
}

/* 64 * n elements: y = H (x * sign), with the largest magnitude and the stripes on the way. */
TQ_INLINE void rotate_blocks(float *y, const float *x, const float *sign, __m256 *top,
                             __m256 stripes[2], const int n)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));

    for (int block = 0; block < n; block++) {
        __m256 v[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const int j = 64 * block + 8 * i;
            v[i] = _mm256_loadu_ps(x + j);
            *top = _mm256_max_ps(*top, _mm256_and_ps(v[i], magnitude));
            v[i] = tq_hadamard8(_mm256_mul_ps(v[i], _mm256_loadu_ps(sign + j)));
        }
        tq_hadamard_across(v, 8);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            _mm256_storeu_ps(y + 64 * block + 8 * i, v[i]);
    }
    for (int i = 0; i < 64 && n > 1; i += 8) {
        __m256 v[4];
#pragma GCC unroll 4
        for (int block = 0; block < n; block++)
            v[block] = _mm256_loadu_ps(y + 64 * block + i);
        tq_hadamard_across(v, n);
#pragma GCC unroll 4
        for (int block = 0; block < n; block++)
            _mm256_storeu_ps(y + 64 * block + i, v[block]);
    }
    for (int j = 0; j < 64 * n; j += 16)
        add_squares(stripes, _mm256_loadu_ps(y + j), _mm256_loadu_ps(y + j + 8));
}

static void rotate_any(float *y, const float *x, const float *sign, __m256 *top, __m256 stripes[2],
                       uint32_t dim)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    uint32_t j;

    for (j = 0; j < dim; j += 8) {
        __m256 v = _mm256_loadu_ps(x + j);
        *top = _mm256_max_ps(*top, _mm256_and_ps(v, magnitude));
        _mm256_storeu_ps(y + j, _mm256_mul_ps(v, _mm256_loadu_ps(sign + j)));
    }
    tq_avx2_hadamard(y, dim);
    for (j = 0; j + 16 <= dim; j += 16)
        add_squares(stripes, _mm256_loadu_ps(y + j), _mm256_loadu_ps(y + j + 8));
    if (j < dim)
        add_squares(stripes, _mm256_loadu_ps(y + j), _mm256_setzero_ps());
}

tq_row_kind tq_avx2_rotate_sum(float *y, float *sum, const float *x, uint32_t dim)
{
    const float *sign = tq_sign_table(dim);
    __m256 top = _mm256_setzero_ps(), stripes[2] = {top, top};

    switch (dim) {
    case 64:
        rotate_blocks(y, x, sign, &top, stripes, 1);
        break;
    case 128:
        rotate_blocks(y, x, sign, &top, stripes, 2);
        break;
    case 256:
        rotate_blocks(y, x, sign, &top, stripes, 4);
        break;
    default:
        rotate_any(y, x, sign, &top, stripes, dim);
        break;
    }
    *sum = stripe_tree(stripes[0], stripes[1]);
    const float largest = max_lane(top);
    return largest < TQ_ROW_TINY   ? TQ_ROW_IS_ZERO
           : largest < TQ_ROW_HUGE ? TQ_ROW_IS_PLAIN
                                   : TQ_ROW_IS_HUGE;
}

int tq_avx2_row_rotate(tq_rotated_row *r, const float *x, uint32_t dim)
{
    float sum;

    switch (tq_avx2_rotate_sum(r->y, &sum, x, dim)) {
    case TQ_ROW_IS_ZERO:
        return 0;
    case TQ_ROW_IS_HUGE:
        return tq_row_rotate(r, x, dim); /* rare */
    default:
        r->saturates = 0;
        r->norm = sqrtf(sum);
        return 1;
    }
}

tq_row_constants tq_avx2_row_constants(uint32_t dim, float unit, uint32_t frac)
{
    const double u = (double)unit, one = (double)(1u << frac);
    tq_row_constants k = {(float)(one * sqrt((double)dim) / u), (float)(2 * one / (u * u))};
    return k;
}

TQ_INLINE __m256i floor_times(const float *y, __m256 inv)
{
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(y), inv);
    return _mm256_cvttps_epi32(_mm256_floor_ps(v));
}

void tq_avx2_fix(int16_t *p, const float *y, uint32_t dim, float inv)
{
    const __m256 inv8 = _mm256_set1_ps(inv);
    const __m256i one = _mm256_set1_epi16(1);
    uint32_t j = 0;

#pragma GCC unroll 4
    for (; j + 16 <= dim; j += 16) {
        __m256i v = _mm256_packs_epi32(floor_times(y + j, inv8), floor_times(y + j + 8, inv8));
        v = _mm256_permute4x64_epi64(v, 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(p + j),
                            _mm256_add_epi16(_mm256_add_epi16(v, v), one));
    }
    if (j < dim) {
        __m256i v = floor_times(y + j, inv8);
        v = _mm256_permute4x64_epi64(_mm256_packs_epi32(v, v), 0xd8);
        v = _mm256_add_epi16(_mm256_add_epi16(v, v), one);
        _mm256_storeu_si256((__m256i *)(void *)(p + j), v);
    }
    if (dim % 32)
        memset(p + dim, 0, (32 - dim % 32) * sizeof *p);
}

void tq_avx2_fixed_point(int16_t *p, const tq_rotated_row *r, uint32_t dim, float inv)
{
    tq_avx2_fix(p, r->y, dim, inv);
}

/* ---- Decoder ---- */

void tq_avx2_decoder_init(tq_avx2_decoder *d, const tq_codec *c, float unit, int rotated)
{
    d->c = c;
    d->unit = unit;
    d->per_scale = (float)((double)unit / sqrt((double)c->dim));
    d->rotated = rotated;
    d->sign = tq_sign_table(c->dim);
    if (rotated && c->zero_bytes) {
        for (uint32_t j = 0; j < c->dim; j++)
            d->ones[j] = 1;
        tq_rotate_f32(d->ones, c->dim);
    }
}

TQ_INLINE __m256 levels8(const int8_t *level)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)level);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

static float f16_at(const uint8_t *p)
{
    return tq_f32_from_f16(tq_load_le16(p));
}

static void add_mean(float *dst, const float *ones, float m, uint32_t dim)
{
    const __m256 m8 = _mm256_set1_ps(m);
    for (uint32_t j = 0; j < dim; j += 8) {
        __m256 add = ones ? _mm256_mul_ps(m8, _mm256_loadu_ps(ones + j)) : m8;
        _mm256_storeu_ps(dst + j, _mm256_add_ps(_mm256_loadu_ps(dst + j), add));
    }
}

/* Rows of 64 * n elements: back from the rotation, times t, in two passes over dst. */
TQ_INLINE void restore_blocks(float *dst, const int8_t *level, __m256 t, const float *sign,
                              const int n)
{
    for (int block = 0; block < n; block++) {
        __m256 v[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            v[i] = tq_hadamard8(levels8(level + 64 * block + 8 * i));
        tq_hadamard_across(v, 8);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            _mm256_storeu_ps(dst + 64 * block + 8 * i, v[i]);
    }
    for (int i = 0; i < 64; i += 8) {
        __m256 v[4];
#pragma GCC unroll 4
        for (int block = 0; block < n; block++)
            v[block] = _mm256_loadu_ps(dst + 64 * block + i);
        tq_hadamard_across(v, n);
#pragma GCC unroll 4
        for (int block = 0; block < n; block++) {
            const int j = 64 * block + i;
            v[block] = _mm256_mul_ps(_mm256_mul_ps(v[block], t), _mm256_loadu_ps(sign + j));
            _mm256_storeu_ps(dst + j, v[block]);
        }
    }
}

static void restore_any(float *dst, const int8_t *level, __m256 t, const float *sign, uint32_t dim)
{
    for (uint32_t j = 0; j < dim; j += 8)
        _mm256_storeu_ps(dst + j, levels8(level + j));
    tq_avx2_hadamard(dst, dim);
    for (uint32_t j = 0; j < dim; j += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(dst + j), t);
        _mm256_storeu_ps(dst + j, _mm256_mul_ps(v, _mm256_loadu_ps(sign + j)));
    }
}

void tq_avx2_reconstruct(const tq_avx2_decoder *d, float *dst, const int8_t *level,
                         const uint8_t *scale, const uint8_t *mean)
{
    const uint32_t dim = d->c->dim;
    const float s = f16_at(scale);
    const __m256 t = _mm256_set1_ps(s * (d->rotated ? d->unit : d->per_scale));

    switch (d->rotated ? 0 : dim) {
    case 0:
        for (uint32_t j = 0; j < dim; j += 8)
            _mm256_storeu_ps(dst + j, _mm256_mul_ps(levels8(level + j), t));
        break;
    case 64:
        restore_blocks(dst, level, t, d->sign, 1);
        break;
    case 128:
        restore_blocks(dst, level, t, d->sign, 2);
        break;
    case 256:
        restore_blocks(dst, level, t, d->sign, 4);
        break;
    default:
        restore_any(dst, level, t, d->sign, dim);
        break;
    }
    if (mean)
        add_mean(dst, d->rotated ? d->ones : NULL, f16_at(mean), dim);
}
