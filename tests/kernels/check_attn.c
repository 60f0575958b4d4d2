/* SPDX-License-Identifier: MIT */
/* check_attn.c — scores and weighted sums of the attention half of the table. All TOLERANCE: each
 * ISA, scalar included, is measured against a float64 oracle over the stored numbers.
 *
 * Two bounds. Per result, the error is at most (steps + 8) * eps * sum of |terms|, steps being the
 * longest chain of additions (dim or n): a bound that arithmetic guarantees. And the root mean
 * square error over all results of an entry is at most twice the scalar's: a bound that notices a
 * kernel that is merely sloppy. Where kernels.h lets a kernel round weights and centroids, both
 * bounds grow by what that rounding can do, and by its standard deviation.
 * Row independence and untouched gaps are compared byte for byte.
 */
#include "checkkern.h"
#include "weigh_oracle.h"

#include "codec.h"
#include "f16.h"
#include "pack.h"
#include "tables.h"
#include "rotate.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 16, MAX_DIM = CK_MAX_DIM };

enum { MAX_DIMS = 20 };

typedef struct format_case {
    tq_format format;
    const char *name;
    uint32_t dims[MAX_DIMS]; /* 0 ends */
    int is_key, is_value;
} format_case;

#define RAW_DIMS                                                                                   \
    {                                                                                              \
        16, 24, 32, 40, 48, 64, 72, 80, 96, 104, 112, 120, 128, 160, 192, 256, 576, 1024           \
    }
#define GROUP_DIMS                                                                                 \
    {                                                                                              \
        64, 128, 256, 512, 16, 24, 32, 40, 48, 72, 80, 96, 112, 144, 160, 192, 224, 576, 1024      \
    }

#define ROTATED_DIMS                                                                               \
    {                                                                                              \
        16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 576                 \
    }

/* Some that kernels take in whole registers, and some that they do not. */
#define WIDE_DIMS                                                                                  \
    {                                                                                              \
        48, 64, 192, 320, 1024                                                                     \
    }

static const format_case formats[] = {
    {TQ_FMT_F32, "f32", RAW_DIMS, 1, 1},          {TQ_FMT_F16, "f16", RAW_DIMS, 1, 1},
    {TQ_FMT_BF16, "bf16", RAW_DIMS, 1, 1},        {TQ_FMT_AFFINE_K2, "k2", GROUP_DIMS, 1, 0},
    {TQ_FMT_AFFINE_K4, "k4", GROUP_DIMS, 1, 0},   {TQ_FMT_AFFINE_K5, "k5", GROUP_DIMS, 1, 0},
    {TQ_FMT_AFFINE_K8, "k8", GROUP_DIMS, 1, 0},   {TQ_FMT_LLOYD_V2, "v2", GROUP_DIMS, 0, 1},
    {TQ_FMT_LLOYD_V3, "v3", GROUP_DIMS, 0, 1},    {TQ_FMT_LLOYD_V4, "v4", GROUP_DIMS, 0, 1},
    {TQ_FMT_LLOYD_V5, "v5", GROUP_DIMS, 0, 1},    {TQ_FMT_LLOYD_V8, "v8", GROUP_DIMS, 0, 1},
    {TQ_FMT_NORM2, "turbo2", ROTATED_DIMS, 1, 1}, {TQ_FMT_NORM3, "turbo3", ROTATED_DIMS, 1, 1},
    {TQ_FMT_NORM4, "turbo4", ROTATED_DIMS, 1, 1}, {TQ_FMT_NORM5, "turbo5", ROTATED_DIMS, 1, 1},
    {TQ_FMT_NORM6, "turbo6", ROTATED_DIMS, 1, 1}, {TQ_FMT_NORM8, "turbo8", ROTATED_DIMS, 1, 1},
    {TQ_FMT_TCQ2, "tcq2", ROTATED_DIMS, 1, 1},    {TQ_FMT_TCQ3, "tcq3", ROTATED_DIMS, 1, 1},
    {TQ_FMT_TCQ4, "tcq4", ROTATED_DIMS, 1, 1},    {TQ_FMT_TCQ5, "tcq5", ROTATED_DIMS, 1, 1},
    {TQ_FMT_TCQ6, "tcq6", ROTATED_DIMS, 1, 1},    {TQ_FMT_UNIFORM4, "affine4", RAW_DIMS, 1, 1},
    {TQ_FMT_UNIFORM8, "affine8", RAW_DIMS, 1, 1}, {TQ_FMT_MSE2, "mse2", ROTATED_DIMS, 1, 1},
    {TQ_FMT_PROD3, "prod3", ROTATED_DIMS, 1, 1},
};

enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

/* Groups that are not the 64 elements of flags 0. */
static const struct {
    format_case f;
    uint32_t flags;
} other_groups[] = {
    {{TQ_FMT_UNIFORM4, "affine4g32", WIDE_DIMS, 1, 1}, TQ_CODEC_GROUP_32},
    {{TQ_FMT_UNIFORM4, "affine4g128", WIDE_DIMS, 1, 1}, TQ_CODEC_GROUP_128},
    {{TQ_FMT_UNIFORM8, "affine8g32", WIDE_DIMS, 1, 1}, TQ_CODEC_GROUP_32},
    {{TQ_FMT_UNIFORM8, "affine8g128", WIDE_DIMS, 1, 1}, TQ_CODEC_GROUP_128},
};

enum { N_OTHER_GROUPS = sizeof(other_groups) / sizeof(other_groups[0]) };

static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16};
static const uint32_t token_counts[] = {1, 2, 5, 8, 9, 17, 31, 33, 63, 64};

/* Root mean square error of an entry, per ISA: relative to the sum of |terms|, or, where rounding
 * is allowed, to its standard deviation. */
typedef struct quality {
    double sum2[CK_MAX_ISAS];
    double count;
    int rounds;
} quality;

static void compare_quality(ck *t, const char *entry, const quality *e)
{
    double scalar = sqrt(e->sum2[0] / e->count);
    for (size_t i = 1; i < t->n_isas; i++) {
        double rms = sqrt(e->sum2[i] / e->count);
        /* Of few centroids each is off by its own amount: not as random as the model. */
        ck_check(t, rms <= (e->rounds ? 2 : 2 * scalar), entry, t->isas[i].name,
                 "rms error %.3g, scalar %.3g", rms, scalar);
    }
}

static void check_one(ck *t, quality *e, size_t isa, const char *entry, float got, double want,
                      double terms, ck_rounding extra, uint32_t steps, uint32_t row, uint32_t at)
{
    double err = fabs((double)got - want);
    ck_check(t, err <= (steps + 8) * (double)FLT_EPSILON * terms + extra.most, entry,
             t->isas[isa].name, "row %u at %u: %.9g, not %.9g (terms %.3g, rounding %.3g)", row, at,
             (double)got, want, terms, extra.most);
    double unit = e->rounds ? extra.sigma + (double)FLT_EPSILON * terms : terms;
    if (unit > 0)
        e->sum2[isa] += err / unit * (err / unit);
}

/* n rows of a format in planes with gaps, each plane against a guard page. */
static tq_planes stored_rows(ck *t, const tq_codec *c, size_t arena, uint32_t n)
{
    static float x[TQ_TILE * MAX_DIM];
    size_t gap = ck_below(t, 3);
    int at_start = (int)ck_below(t, 2);
    for (size_t i = 0; i < (size_t)n * c->dim; i++)
        x[i] = ck_normal(t) + (i % c->dim == 3 ? 20.0f : 0.0f); /* a channel with an offset */
    tq_planes p = {.codes_stride = c->code_bytes + gap,
                   .scale_stride = c->scale_bytes + 2 * gap,
                   .zero_stride = c->zero_bytes + gap};
    p.codes = ck_buffer(t, arena, n * p.codes_stride - gap, at_start);
    p.scale =
        ck_buffer(t, arena + 1, n * p.scale_stride - 2 * gap * (c->scale_bytes > 0), at_start);
    p.zero = ck_buffer(t, arena + 2, n * p.zero_stride - gap * (c->zero_bytes > 0), at_start);
    tq_codec_kernels_scalar.encode[tq_kfmt(c->format)](c, p, x, c->dim, n);
    return p;
}

static tq_const_planes to_const(tq_planes p)
{
    tq_const_planes q = {.codes = p.codes,
                         .scale = p.scale,
                         .zero = p.zero,
                         .codes_stride = p.codes_stride,
                         .scale_stride = p.scale_stride,
                         .zero_stride = p.zero_stride,
                         .ahead = p.codes, /* a hint: must not change anything */
                         .ahead_bytes = 5000};
    return q;
}

/* ---- Scores ---------------------------------------------------------------------------- */

static int is_affine_key(const tq_codec *k)
{
    return k->format >= TQ_FMT_AFFINE_K2 && k->format <= TQ_FMT_AFFINE_K8;
}

static int is_norm_key(const tq_codec *k)
{
    return k->format >= TQ_FMT_NORM2 && k->format <= TQ_FMT_TCQ6 && !k->zero_bytes;
}

/* A query as the kernels see it: for affine keys rounded to integers, kernels.h says how. */
static void rounded_query(double *dst, const float *q, const tq_codec *k)
{
    for (uint32_t j = 0; j < k->dim; j++)
        dst[j] = (double)q[j];
    if (k->rotated) { /* in f32, as a kernel does it: the rotation itself is EXACT */
        float turned[MAX_DIM];
        memcpy(turned, q, k->dim * sizeof(float));
        tq_rotate_f32(turned, k->dim);
        for (uint32_t j = 0; j < k->dim; j++)
            dst[j] = (double)turned[j];
    }
    if (is_norm_key(k)) {
        double max = 0;
        for (uint32_t j = 0; j < k->dim; j++)
            max = fmax(max, fabs(dst[j]));
        float inverse = max > 0 ? 32767.0f / (float)max : 0;
        for (uint32_t j = 0; j < k->dim; j++)
            dst[j] = (double)rintf((float)dst[j] * inverse) * (double)((float)max / 32767.0f);
    }
    if (!is_affine_key(k))
        return;
    for (uint32_t g = 0; g < k->n_groups; g++) {
        float max = 0;
        for (uint32_t j = 32 * g; j < 32 * g + 32 && j < k->dim; j++)
            max = fmaxf(max, fabsf(q[j]));
        float inverse = max > 0 ? 32767.0f / max : 0;
        for (uint32_t j = 32 * g; j < 32 * g + 32 && j < k->dim; j++)
            dst[j] = (double)rintf(q[j] * inverse) * (double)(max / 32767.0f);
    }
}

/* What the oracle knows of a token: its numbers, and what a kernel adds up at most for each of them
 * and a query of 1. Made once a token, for all queries. */
typedef struct key_row {
    double x[MAX_DIM], size[MAX_DIM];
    double sum1, sum2; /* of the magnitudes and the squares of x; not for affine keys */
} key_row;

static void read_key(key_row *row, const tq_codec *k, tq_const_planes p, uint32_t t)
{
    float x[MAX_DIM];
    uint8_t idx[MAX_DIM];
    p.codes += t * p.codes_stride;
    p.scale += t * p.scale_stride;
    p.zero += t * p.zero_stride;
    row->sum1 = row->sum2 = 0;
    if (!is_affine_key(k)) {
        tq_codec_kernels_scalar.decode_rotated[tq_kfmt(k->format)](k, x, k->dim, p, 1);
        for (uint32_t j = 0; j < k->dim; j++) {
            row->x[j] = (double)x[j];
            row->size[j] = fabs(row->x[j]);
            row->sum1 += row->size[j];
            row->sum2 += row->x[j] * row->x[j];
        }
        return;
    }
    tq_unpack(idx, p.codes, k->dim, k->bits);
    for (uint32_t j = 0; j < k->dim; j++) {
        double scale = (double)tq_f32_from_f16(tq_load_le16(p.scale + j / 32 * 2));
        double zero = (double)tq_f32_from_f16(tq_load_le16(p.zero + j / 32 * 2));
        double code = k->bits == 8 ? (double)(int8_t)idx[j] : (double)idx[j];
        row->x[j] = (code + zero) * scale;
        row->size[j] = fabs(scale) * (fabs(code) + fabs(zero));
    }
}

/* Score of a token, and the sum of the |terms| that a kernel adds. */
static double oracle_score(const key_row *row, const double *q, uint32_t dim, double *terms)
{
    double sum = 0;
    *terms = 0;
    for (uint32_t j = 0; j < dim; j++) {
        sum += q[j] * row->x[j];
        *terms += fabs(q[j]) * row->size[j];
    }
    return sum;
}

static int is_uniform(const tq_codec *k)
{
    return k->format == TQ_FMT_UNIFORM4 || k->format == TQ_FMT_UNIFORM8;
}

/* A kernel may round queries of uniform keys as those of affine keys. */
static ck_rounding query_rounding(const key_row *row, const float *q, uint32_t dim)
{
    ck_rounding r = {0, 0};
    for (uint32_t j = 0; j < dim; j += 32) {
        double max = 0;
        for (uint32_t i = j; i < j + 32 && i < dim; i++)
            max = fmax(max, fabs((double)q[i]));
        const double step = max / 32767;
        for (uint32_t i = j; i < j + 32 && i < dim; i++) {
            const double x = row->x[i];
            r.most += step / 2 * fabs(x);
            r.sigma += step * step / 12 * x * x;
        }
    }
    r.sigma = sqrt(r.sigma);
    return r;
}

/* kernels.h lets a kernel round queries of small levels to steps of this. q rotated. */
static double small_step(const tq_codec *k, const double *q)
{
    static const double largest[2][5] = {{0, 0, 10, 26, 61}, {0, 0, 12, 29, 57}};
    double max = 0, sums = 0;
    if (!is_norm_key(k) || k->bits > 4)
        return 0;
    for (uint32_t j = 0; j < k->dim; j += 8) {
        for (uint32_t i = 0; i < 8; i++)
            max = fmax(max, fabs(q[j + i]));
        for (uint32_t i = j; i < j + 4; i += 2)
            sums = fmax(sums, fabs(q[i]) + fabs(q[i + 1]) + fabs(q[i + 4]) + fabs(q[i + 5]));
    }
    const double top = largest[k->format >= TQ_FMT_TCQ2][k->bits];
    return max > 0 ? max / floor(fmin(127, (32767 / (2 * top) - 2.01) * max / sums)) : 0;
}

static void check_score(ck *t, const format_case *f, const tq_codec *k, uint32_t n_rows, uint32_t n,
                        quality *e, const char *entry)
{
    static double want[MAX_ROWS][TQ_TILE], terms[MAX_ROWS][TQ_TILE];
    static ck_rounding extra[MAX_ROWS][TQ_TILE];
    static double rounded[MAX_ROWS][MAX_DIM], step[MAX_ROWS];
    static key_row row;
    const int kf = tq_kfmt(f->format);
    tq_const_planes keys = to_const(stored_rows(t, k, 0, n));
    float *q = ck_buffer(t, 3, (size_t)n_rows * k->dim * sizeof(float), 0);
    for (size_t i = 0; i < (size_t)n_rows * k->dim; i++)
        q[i] = ck_normal(t) * (i % 64 == 5 ? 50.0f : 0.1f);
    if (n_rows > 1)
        memset(q, 0, (k->dim < 32 ? k->dim : 32) * sizeof(float)); /* a group without anything */
    for (uint32_t r = 0; r < n_rows; r++) {
        rounded_query(rounded[r], q + (size_t)r * k->dim, k);
        step[r] = small_step(k, rounded[r]);
    }
    for (uint32_t i = 0; i < n; i++) {
        read_key(&row, k, keys, i);
        for (uint32_t r = 0; r < n_rows; r++) {
            want[r][i] = oracle_score(&row, rounded[r], k->dim, &terms[r][i]);
            /* The step may round otherwise in f32. */
            extra[r][i] = is_uniform(k) ? query_rounding(&row, q + (size_t)r * k->dim, k->dim)
                                        : (ck_rounding){1.03 * step[r] / 2 * row.sum1,
                                                        step[r] * sqrt(row.sum2 / 12)};
        }
    }
    e->count += (double)n_rows * n;
    e->rounds = is_uniform(k) || (is_norm_key(k) && k->bits <= 4);

    const size_t prep_bytes = tq_prep_bytes(n_rows, k->dim);
    for (size_t isa = 0; isa < t->n_isas; isa++) {
        const tq_attn_kernels *kern = ck_kernels(t, isa, k)->attn;
        void *prep = ck_buffer(t, 4, prep_bytes, 0);
        float *s = ck_buffer(t, 5, n_rows * TQ_TILE * sizeof(float), 0);
        kern->prep[kf](k, prep, q, n_rows);
        kern->score[kf](k, s, prep, n_rows, keys, n);
        for (uint32_t r = 0; r < n_rows; r++)
            for (uint32_t i = 0; i < n; i++)
                check_one(t, e, isa, entry, s[r * TQ_TILE + i], want[r][i], terms[r][i],
                          extra[r][i], k->dim, r, i);
        for (uint32_t r = 0; r < n_rows; r++) {
            void *prep1 = ck_buffer(t, 4, tq_prep_bytes(1, k->dim), 0);
            float *s1 = ck_buffer(t, 6, TQ_TILE * sizeof(float), 0);
            kern->prep[kf](k, prep1, q + (size_t)r * k->dim, 1);
            kern->score[kf](k, s1, prep1, 1, keys, n);
            ck_check(t, memcmp(s1, s + r * TQ_TILE, n * sizeof(float)) == 0, entry,
                     t->isas[isa].name, "row %u of %u differs from the row alone", r, n_rows);
        }
    }
}

/* Rows and queries that are flat once rotated: every integer of a query of 32767 meets the largest
 * level, the largest sums there are. Signs alternate over tokens, so that both ends occur. */
static void check_flat_scores(ck *t, const format_case *f, uint32_t dim, const char *entry)
{
    enum { N = 3 };
    static float x[N * MAX_DIM], row[N * MAX_DIM], q[MAX_DIM];
    const int kf = tq_kfmt(f->format);
    tq_codec k;
    if (tq_codec_init(&k, f->format, dim, 0, TQ_ISA_SCALAR) != TQ_OK) {
        ck_check(t, 0, entry, "scalar", "no codec for dim %u", dim);
        return;
    }
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t j = 0; j < dim; j++)
            x[i * dim + j] = i % 2 == 0 ? 1.0f : -1.0f;
        tq_unrotate_f32(x + i * dim, dim);
    }
    memcpy(q, x, dim * sizeof(float));
    tq_planes p = {.codes_stride = k.code_bytes, .scale_stride = k.scale_bytes};
    p.codes = ck_buffer(t, 0, N * p.codes_stride, 0);
    p.scale = ck_buffer(t, 1, N * p.scale_stride, 0);
    tq_codec_kernels_scalar.encode[kf](&k, p, x, dim, N);
    tq_codec_kernels_scalar.decode_rotated[kf](&k, row, dim, to_const(p), N);
    for (size_t isa = 0; isa < t->n_isas; isa++) {
        const tq_attn_kernels *kern = ck_kernels(t, isa, &k)->attn;
        void *prep = ck_buffer(t, 4, tq_prep_bytes(1, dim), 0);
        float *s = ck_buffer(t, 5, TQ_TILE * sizeof(float), 0);
        kern->prep[kf](&k, prep, q, 1);
        kern->score[kf](&k, s, prep, 1, to_const(p), N);
        for (uint32_t i = 0; i < N; i++) {
            double want = 0;
            for (uint32_t j = 0; j < dim; j++)
                want += (double)row[i * dim + j]; /* times a query of ones */
            ck_check(t, fabs((double)s[i] - want) <= 1e-4 * dim, entry, t->isas[isa].name,
                     "flat row %u of %u elements: %.9g, not %.9g", i, dim, (double)s[i], want);
        }
    }
}

/* ---- Weighted sums --------------------------------------------------------------------- */

static void check_weigh(ck *t, const format_case *f, const tq_codec *v, uint32_t n_rows, uint32_t n,
                        quality *e, const char *entry)
{
    static float rows[TQ_TILE * MAX_DIM];
    static ck_weighed oracle[MAX_ROWS];
    static ck_value_codes codes;
    const int vf = tq_kfmt(f->format);
    const size_t stride = v->dim + 8 * ck_below(t, 2);
    const size_t acc_floats = (n_rows - 1) * stride + v->dim;
    tq_const_planes values = to_const(stored_rows(t, v, 0, n));
    tq_codec_kernels_scalar.decode_rotated[vf](v, rows, v->dim, values, n);
    float *w = ck_buffer(t, 3, n_rows * TQ_TILE * sizeof(float), 0);
    float *alpha = ck_buffer(t, 4, n_rows * sizeof(float), 0);
    float *first = ck_buffer(t, 7, acc_floats * sizeof(float), 0);
    for (uint32_t i = 0; i < n_rows * TQ_TILE; i++) /* beyond n a weight is 0, kernels.h */
        w[i] = i % TQ_TILE < n ? expf(2 * ck_normal(t)) : 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        alpha[r] = r == 1 ? 1 : (float)ck_below(t, 1000) * 1e-3f;
        for (uint32_t j = 0; j < v->dim; j++)
            first[r * stride + j] = ck_normal(t);
    }
    e->count += (double)n_rows * v->dim;
    const ck_allowance *allowed = ck_allowance_of(v);
    e->rounds = allowed != NULL;
    if (allowed)
        ck_read_values(&codes, allowed, v, values, rows, n);
    for (uint32_t r = 0; r < n_rows; r++)
        ck_oracle_weigh(&oracle[r], allowed, &codes, v, w + r * TQ_TILE, (double)alpha[r],
                        first + r * stride, rows, n);

    for (size_t isa = 0; isa < t->n_isas; isa++) {
        tq_weigh_fn *weigh = ck_kernels(t, isa, v)->attn->weigh[vf];
        float *acc = ck_buffer(t, 5, acc_floats * sizeof(float), 0);
        memcpy(acc, first, acc_floats * sizeof(float));
        weigh(v, acc, stride, w, alpha, n_rows, values, n);
        for (uint32_t r = 0; r < n_rows; r++) {
            for (uint32_t j = 0; j < v->dim; j++)
                check_one(t, e, isa, entry, acc[r * stride + j], oracle[r].want[j],
                          oracle[r].terms[j], oracle[r].extra[j], n, r, j);
            if (r + 1 < n_rows)
                ck_check(t,
                         memcmp(acc + r * stride + v->dim, first + r * stride + v->dim,
                                (stride - v->dim) * sizeof(float)) == 0,
                         entry, t->isas[isa].name, "gap after row %u was written", r);
            float *acc1 = ck_buffer(t, 6, v->dim * sizeof(float), 0);
            memcpy(acc1, first + r * stride, v->dim * sizeof(float));
            weigh(v, acc1, v->dim, w + r * TQ_TILE, alpha + r, 1, values, n);
            ck_check(t, memcmp(acc1, acc + r * stride, v->dim * sizeof(float)) == 0, entry,
                     t->isas[isa].name, "row %u of %u differs from the row alone", r, n_rows);
        }
    }
}

/* Scales with a sign, which no encoder writes and a file may hold: kernels that round weights must
 * not take them for small ones. */
static void check_signed_scales(ck *t, const format_case *f, const tq_codec *v, const char *entry)
{
    static float rows[TQ_TILE * MAX_DIM];
    const int vf = tq_kfmt(f->format);
    const tq_const_planes values = to_const(stored_rows(t, v, 0, TQ_TILE));
    float *w = ck_buffer(t, 3, TQ_TILE * sizeof(float), 0);
    const float alpha = 0;
    for (uint32_t i = 0; i < TQ_TILE; i++) {
        uint8_t *scale = (uint8_t *)(uintptr_t)values.scale + i * values.scale_stride;
        for (uint32_t g = 0; i % 3 == 0 && g < v->scale_bytes; g += 2)
            scale[g + 1] |= 0x80;
        w[i] = i % 3 == 0 ? 1 : 0.01f;
    }
    tq_codec_kernels_scalar.decode_rotated[vf](v, rows, v->dim, values, TQ_TILE);
    for (size_t isa = 0; isa < t->n_isas; isa++) {
        float *acc = ck_buffer(t, 5, v->dim * sizeof(float), 0);
        memset(acc, 0, v->dim * sizeof(float));
        ck_kernels(t, isa, v)->attn->weigh[vf](v, acc, v->dim, w, &alpha, 1, values, TQ_TILE);
        for (uint32_t j = 0; j < v->dim; j++) {
            double want = 0, terms = 0;
            for (uint32_t i = 0; i < TQ_TILE; i++) {
                const double x = (double)w[i] * (double)rows[(size_t)i * v->dim + j];
                want += x;
                terms += fabs(x);
            }
            ck_check(t, fabs((double)acc[j] - want) <= 1e-3 * terms + 1e-6, entry,
                     t->isas[isa].name, "signed scales, element %u of %u: %.9g, not %.9g", j,
                     v->dim, (double)acc[j], want);
        }
    }
}

/* A scale or an offset that is no number, which no encoder writes either: what is not finite in the
 * reference must not be finite anywhere, and must not spread to other tokens and rows. */
static void check_hostile(ck *t, const format_case *f, const tq_codec *c, int is_value,
                          const char *entry)
{
    static const uint8_t high[] = {0x7c, 0x7e, 0xfe}; /* Inf, NaN, NaN with a sign */
    const int kf = tq_kfmt(f->format);
    const uint32_t n_rows = 2, n = 37, n_results = is_value ? c->dim : n;
    for (uint32_t i = 0; i < 2 * sizeof high; i++) {
        if (i % 2 == 1 && c->zero_bytes == 0)
            continue;
        const tq_planes rows = stored_rows(t, c, 0, n);
        const uint32_t token = ck_below(t, n);
        uint8_t *p = i % 2 == 1 ? rows.zero + token * rows.zero_stride
                                : rows.scale + token * rows.scale_stride;
        p += 2 * ck_below(t, (uint32_t)(i % 2 == 1 ? c->zero_bytes : c->scale_bytes) / 2);
        p[0] = 0, p[1] = high[i / 2];
        float *x = ck_buffer(t, 3, n_rows * (is_value ? TQ_TILE : c->dim) * sizeof(float), 0);
        for (uint32_t j = 0; j < n_rows * (is_value ? TQ_TILE : c->dim); j++)
            x[j] = is_value && j % TQ_TILE >= n ? 0 : 0.25f + (float)(j % 7);
        static float first[2 * MAX_DIM];
        for (size_t isa = 0; isa < t->n_isas; isa++) {
            const tq_attn_kernels *kern = ck_kernels(t, isa, c)->attn;
            const uint32_t stride = is_value ? c->dim : TQ_TILE;
            float *got = ck_buffer(t, 5, n_rows * stride * sizeof(float), 0);
            if (is_value) {
                const float alpha[2] = {0, 0};
                memset(got, 0, n_rows * stride * sizeof(float));
                kern->weigh[kf](c, got, stride, x, alpha, n_rows, to_const(rows), n);
            } else {
                void *prep = ck_buffer(t, 4, tq_prep_bytes(n_rows, c->dim), 0);
                kern->prep[kf](c, prep, x, n_rows);
                kern->score[kf](c, got, prep, n_rows, to_const(rows), n);
            }
            for (uint32_t j = 0; j < n_rows * n_results; j++) {
                const uint32_t at = j / n_results * stride + j % n_results;
                if (isa == 0)
                    first[at] = got[at];
                const int shows = !isfinite(got[at]), must = !isfinite(first[at]);
                ck_check(t, shows || !must, entry, t->isas[isa].name,
                         "%u of %u: %g where the reference has %g", j, c->dim, (double)got[at],
                         (double)first[at]);
                ck_check(t, must || !shows || is_value, entry, t->isas[isa].name,
                         "%u of %u: %g spread to another token", j, c->dim, (double)got[at]);
            }
        }
    }
}

static void check_format(ck *t, const format_case *f, uint32_t flags, int is_value)
{
    const size_t n_rc = sizeof(row_counts) / sizeof(row_counts[0]);
    const size_t n_tc = sizeof(token_counts) / sizeof(token_counts[0]);
    char entry[32];
    snprintf(entry, sizeof entry, "%s_%s", is_value ? "weigh" : "score", f->name);
    if (!ck_wants(t, entry))
        return;
    quality e = {{0}, 0, 0};
    for (int d = 0; d < MAX_DIMS && f->dims[d]; d++) {
        tq_codec c;
        if (tq_codec_init(&c, f->format, f->dims[d], flags, TQ_ISA_SCALAR) != TQ_OK) {
            ck_check(t, 0, entry, "scalar", "no codec for dim %u", f->dims[d]);
            return;
        }
        for (size_t i = 0; i < n_rc * n_tc; i++) {
            /* All pairs at the dimensions of most models, a diagonal at the others. */
            const int is_usual = f->dims[d] == 64 || f->dims[d] == 128 || f->dims[d] == 256;
            if (!is_usual && i % 7 != (size_t)d % 7)
                continue;
            uint32_t n_rows = row_counts[i / n_tc], n = token_counts[i % n_tc];
            if (is_value)
                check_weigh(t, f, &c, n_rows, n, &e, entry);
            else
                check_score(t, f, &c, n_rows, n, &e, entry);
        }
        if (is_value && c.scale_bytes > 0)
            check_signed_scales(t, f, &c, entry);
        if (c.scale_bytes > 0)
            check_hostile(t, f, &c, is_value, entry);
    }
    static const uint32_t long_dims[] = {512, 576, 1024};
    for (int i = 0; i < 3 && !is_value && f->format >= TQ_FMT_NORM2 && f->format <= TQ_FMT_TCQ6;
         i++)
        check_flat_scores(t, f, long_dims[i], entry);
    compare_quality(t, entry, &e);
}

static void check(ck *t)
{
    for (int f = 0; f < N_FORMATS; f++) {
        if (formats[f].is_key)
            check_format(t, &formats[f], 0, 0);
        if (formats[f].is_value)
            check_format(t, &formats[f], 0, 1);
    }
    for (int f = 0; f < N_OTHER_GROUPS; f++)
        for (int is_value = 0; is_value < 2; is_value++)
            check_format(t, &other_groups[f].f, other_groups[f].flags, is_value);
}

/* ---- Time ------------------------------------------------------------------------------ */

typedef struct bench_arg {
    const tq_codec *c;
    const tq_attn_kernels *kern;
    tq_const_planes rows;
    float *s, *acc, *alpha;
    void *prep;
    const float *q;
    uint32_t n_rows;
    int kf;
} bench_arg;

static void call_prep(void *p)
{
    bench_arg *a = p;
    a->kern->prep[a->kf](a->c, a->prep, a->q, a->n_rows);
}

static void call_score(void *p)
{
    bench_arg *a = p;
    a->kern->score[a->kf](a->c, a->s, a->prep, a->n_rows, a->rows, TQ_TILE);
}

static void call_weigh(void *p)
{
    bench_arg *a = p;
    a->kern->weigh[a->kf](a->c, a->acc, a->c->dim, a->s, a->alpha, a->n_rows, a->rows, TQ_TILE);
}

/* One tile of 64 tokens, d = 128, in cache; an element is a token. */
static void bench(ck *t)
{
    static const uint32_t rows[] = {1, 2, 4, 8};
    for (int f = 0; f < N_FORMATS; f++)
        for (size_t isa = 0; isa < t->n_isas; isa++)
            for (int i = 0; i < 4; i++) {
                char entry[48];
                tq_codec c;
                if (tq_codec_init(&c, formats[f].format, 128, 0, TQ_ISA_ALL) != TQ_OK)
                    continue;
                bench_arg a = {.c = &c,
                               .kern = t->isas[isa].kernels->attn,
                               .n_rows = rows[i],
                               .kf = tq_kfmt(formats[f].format)};
                a.rows = to_const(stored_rows(t, &c, 0, TQ_TILE));
                float *q = ck_buffer(t, 3, rows[i] * 128 * sizeof(float), 0);
                for (uint32_t j = 0; j < rows[i] * 128; j++) /* tiny ones would cost more */
                    q[j] = ck_normal(t);
                a.q = q;
                a.prep = ck_buffer(t, 4, tq_prep_bytes(rows[i], 128), 0);
                a.s = ck_buffer(t, 5, rows[i] * TQ_TILE * sizeof(float), 0);
                a.acc = ck_buffer(t, 6, rows[i] * 128 * sizeof(float), 0);
                a.alpha = ck_buffer(t, 7, rows[i] * sizeof(float), 0);
                memset(a.alpha, 0, rows[i] * sizeof(float));
                const double bytes = (double)c.block_bytes * TQ_TILE;
                if (formats[f].is_key) {
                    snprintf(entry, sizeof entry, "prep_%s x%u", formats[f].name, rows[i]);
                    if (ck_wants(t, entry))
                        ck_bench(t, entry, t->isas[isa].name, call_prep, &a, rows[i],
                                 rows[i] * 512.0);
                    call_prep(&a);
                    snprintf(entry, sizeof entry, "score_%s x%u", formats[f].name, rows[i]);
                    if (ck_wants(t, entry))
                        ck_bench(t, entry, t->isas[isa].name, call_score, &a, TQ_TILE, bytes);
                }
                if (formats[f].is_value) {
                    memset(a.s, 0, rows[i] * TQ_TILE * sizeof(float));
                    snprintf(entry, sizeof entry, "weigh_%s x%u", formats[f].name, rows[i]);
                    if (ck_wants(t, entry))
                        ck_bench(t, entry, t->isas[isa].name, call_weigh, &a, TQ_TILE, bytes);
                }
            }
}

const ck_module ck_module_attn = {"attn", check, bench};
