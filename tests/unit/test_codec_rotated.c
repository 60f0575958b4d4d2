/* SPDX-License-Identifier: MIT */
/* test_codec_rotated.c — formats with one scale per row: their transforms and constants, and rows
 * that break quantisers. What they cost in quality: test_codec_quality.c. */
#include "support.h"

#include "codebook.h"
#include "codec.h"
#include "cpu/scalar_rotated.h"
#include "f16.h"
#include "rotate.h"
#include "tables.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const uint32_t isa_masks[] = {TQ_ISA_SCALAR, TQ_ISA_ALL};

/* ---- Transforms ---- */

/* PITFALL 6: R R^T = I for every dimension, and R is diag(sign) and H with entries +-1. */
static void rotations_are_orthogonal(void **state)
{
    static float r[1024 * 1024];
    unsigned n_dims = 0;

    (void)state;
    for (uint32_t dim = 16; dim <= 1024; dim += 8) {
        if (!tq_hadamard_takes(dim)) {
            assert_null(tq_sign_table(dim));
            continue;
        }
        n_dims++;
        for (size_t m = 0; m < COUNT(isa_masks); m++) {
            const tq_codec_kernels *k = tq_kernels_get(isa_masks[m])->codec;
            const double entry = 1 / sqrt((double)dim);
            const float *sign = tq_sign_table(dim);
            /* All of the smaller ones; of the larger ones some rows. */
            const uint32_t step = dim <= 128 ? 1 : dim / 16 - 1;

            for (uint32_t i = 0; i < dim; i++) {
                float *row = r + (size_t)i * dim; /* R e_i: column i of R */
                memset(row, 0, dim * sizeof(float));
                row[i] = 1;
                k->rotate(row, dim);
                for (uint32_t j = 0; j < dim; j++)
                    assert_true(fabs(fabs((double)row[j]) - entry) < 1e-7);
            }
            for (uint32_t i = 0; i < dim; i += step) {
                for (uint32_t j = 0; j < dim; j++) {
                    double dot = 0;
                    for (uint32_t l = 0; l < dim; l++)
                        dot += (double)r[(size_t)i * dim + l] * (double)r[(size_t)j * dim + l];
                    if (fabs(dot - (i == j)) > 1e-5)
                        fail_msg("dim %u: <R e_%u, R e_%u> = %g", dim, i, j, dot);
                    /* H is symmetric. */
                    assert_true(r[(size_t)i * dim + j] * sign[i] ==
                                r[(size_t)j * dim + i] * sign[j]);
                }
                k->unrotate(r + (size_t)i * dim, dim);
                for (uint32_t j = 0; j < dim; j++)
                    if (fabs((double)r[(size_t)i * dim + j] - (i == j)) > 1e-5)
                        fail_msg("dim %u: unrotate is not the inverse at %u, %u", dim, i, j);
                memset(r + (size_t)i * dim, 0, dim * sizeof(float)); /* again, for later rows */
                r[(size_t)i * dim + i] = 1;
                k->rotate(r + (size_t)i * dim, dim);
            }
        }
    }
    assert_int_equal(n_dims, 27);
}

static int chi(int a, int q)
{
    a = (a % q + q) % q;
    for (int x = 1; x < q; x++)
        if (x * x % q == a)
            return 1;
    return a ? -1 : 0;
}

/* The small factors from their definition, and the signs from their generator. */
static void constants_follow_from_their_definition(void **state)
{
    (void)state;
    for (int m = 12; m <= 20; m += 8) {
        const uint32_t *rows = tq_hadamard_rows((uint32_t)m);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < m; j++) {
                int h = i == 0 || j == 0 ? 1 : chi(i + j - 2, m - 1);
                assert_int_equal(rows[i] >> j & 1, h <= 0);
            }
    }
    for (int n = 14; n <= 18; n += 4) {
        const uint32_t *rows = tq_hadamard_rows((uint32_t)(2 * n));
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                int c = i == 0 || j == 0 ? i != j : chi(i - j, n - 1);
                assert_int_equal(rows[i] >> j & 1, c < 0);
            }
    }
    assert_null(tq_hadamard_rows(16));
    for (uint32_t dim = 16; dim <= 1024; dim += 8) {
        float sign[1024];
        if (!tq_hadamard_takes(dim))
            continue;
        tq_sign_generate(sign, dim, 42);
        assert_memory_equal(sign, tq_sign_table(dim), dim * sizeof(float));
    }
}

/* PITFALL 4: every level of every codebook, by a sum that a change of any of them alters. */
static void codebooks_are_pinned(void **state)
{
    static const struct {
        uint32_t bits;
        float unit;
        int sum, weighted;
    } expected[] = {{1, 0x1.988454p-1f, 1, 1},      {2, 0x1.3551d4p-3f, 13, 23},
                    {3, 0x1.543da6p-4f, 54, 173},   {4, 0x1.6f0732p-5f, 219, 1316},
                    {5, 0x1.1394c2p-5f, 612, 7137}, {6, 0x1.20925ap-5f, 1207, 27633}};

    (void)state;
    for (size_t i = 0; i < COUNT(expected); i++) {
        const tq_codebook *book = tq_codebook_get(expected[i].bits);
        int sum = 0, weighted = 0;
        for (uint32_t l = 0; l < book->n_levels; l++) {
            sum += book->levels[l];
            weighted += book->levels[l] * (int)(l + 1);
        }
        if (sum != expected[i].sum || weighted != expected[i].weighted)
            fail_msg("%u bits: levels sum to %d, weighted %d", expected[i].bits, sum, weighted);
        assert_true(book->unit == expected[i].unit);
        assert_int_equal(tq_codebook_level(book, 0), book->levels[0]);
        assert_int_equal(tq_codebook_level(book, (uint8_t)(1u << (book->bits - 1))),
                         -book->levels[0]);
    }
    assert_null(tq_codebook_get(7));
}

/* What avx2_norm.c rests on: under every stretch the boundaries of 4 bits lie in cells of their
 * own. */
static void boundaries_have_cells(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof tq_stretches; i++) {
        int16_t edges[31];
        int last = -1;
        tq_codebook_edges(tq_codebook_get(4), tq_stretches[i], edges);
        for (int k = 0; k < 7; k++) {
            const int at = (int)((uint32_t)edges[k] * 475 >> 16), cell = at < 15 ? at : 15;
            assert_true(cell > last);
            last = cell;
        }
    }
}

/* ---- Norms ---- */

/* PITFALL 5: constants for each dimension. The stored scale keeps the row's component along
 * itself, so the norm is 1/cosine of it. */
static void norms_are_kept(void **state)
{
    uint64_t seed = 4;

    (void)state;
    for (uint32_t dim = 16; dim <= 1024; dim += 8) {
        for (int f = TQ_FMT_NORM2; f <= TQ_FMT_NORM8; f++) {
            static float x[1024], y[1024];
            static uint8_t block[2048];
            tq_codec c;
            double sum = 0, n = 0;
            if (tq_codec_init(&c, (tq_format)f, dim, 0, TQ_ISA_ALL) != TQ_OK)
                continue;
            for (int row = 0; row < 40; row++) {
                double xx = 0, xy = 0;
                for (uint32_t j = 0; j < dim; j++)
                    x[j] = (float)test_normal(&seed);
                tq_codec_encode(&c, block, sizeof block, x, dim, 1, NULL);
                tq_codec_decode(&c, y, dim, block, sizeof block, 1);
                for (uint32_t j = 0; j < dim; j++) {
                    xx += (double)x[j] * (double)x[j];
                    xy += (double)x[j] * (double)y[j];
                }
                sum += xy / xx;
                n++;
                /* Half an ulp of the f16 scale, and the rounding of the coordinates p. */
                if (fabs(xy / xx - 1) > (dim < 64 ? 1.5e-3 : 7e-4))
                    fail_msg("format %d, dim %u: <x, x^>/<x, x> = %g", f, dim, xy / xx);
            }
            assert_true(fabs(sum / n - 1) < 4e-4);
        }
    }
}

/* ---- Rows of all sizes (PITFALLS 2, 3) ---- */

static void sizes_do_not_matter(void **state)
{
    static const float sizes[] = {1e-7f, 6.2e-5f, 1e-3f, 1e3f, 6e4f};
    static const tq_format formats[] = {TQ_FMT_NORM2, TQ_FMT_NORM4, TQ_FMT_NORM8, TQ_FMT_MSE3};
    uint64_t seed = 9;

    (void)state;
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t m = 0; m < COUNT(isa_masks); m++)
            for (size_t i = 0; i < COUNT(sizes); i++) {
                float x[80], y[80];
                uint8_t block[128];
                double err = 0, xx = 0;
                tq_codec c;
                assert_int_equal(tq_codec_init(&c, formats[f], 80, 0, isa_masks[m]), TQ_OK);
                for (int j = 0; j < 80; j++)
                    x[j] = (float)test_normal(&seed) * sizes[i];
                tq_codec_encode(&c, block, sizeof block, x, 80, 1, NULL);
                tq_codec_decode(&c, y, 80, block, sizeof block, 1);
                for (int j = 0; j < 80; j++) {
                    err += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
                    xx += (double)x[j] * (double)x[j];
                }
                /* The smallest has a subnormal scale of one or two units. */
                assert_true(err / xx < (sizes[i] < 1e-6f ? 0.4 : 0.25));
            }
}

/* Finite input decodes to finite numbers, whatever its size; tiny rows are zeros. */
static void extremes_stay_finite(void **state)
{
    static const float sizes[] = {3.4e38f, 1e30f, 1.2e15f, 1e5f, 1e-8f, 1e-14f, 1e-38f, 1e-45f};

    (void)state;
    for (int f = TQ_FMT_NORM2; f <= TQ_FMT_FORK4; f++)
        for (size_t m = 0; m < COUNT(isa_masks); m++)
            for (size_t i = 0; i < COUNT(sizes); i++) {
                float x[128], y[128];
                uint8_t block[1024];
                tq_codec c;
                if (f >= TQ_FMT_FORK2 ||
                    tq_codec_init(&c, (tq_format)f, 128, 0, isa_masks[m]) != TQ_OK)
                    continue;
                for (int j = 0; j < 128; j++)
                    x[j] = (j * 37 % 11 < 5 ? -sizes[i] : sizes[i]) / (float)(1 + j % 3);
                assert_int_equal(tq_codec_encode(&c, block, sizeof block, x, 128, 1, NULL), TQ_OK);
                assert_int_equal(tq_codec_decode(&c, y, 128, block, sizeof block, 1), TQ_OK);
                for (int j = 0; j < 128; j++) {
                    if (!isfinite(y[j]))
                        fail_msg("format %d, size %g: not finite", f, (double)sizes[i]);
                    if (sizes[i] < 1e-20f)
                        assert_true(y[j] == 0);
                }
            }
}

/* ---- Room in integers ---- */

/* Tables of this machine, the reference first. */
static size_t all_tables(const tq_kernels **k)
{
    static const uint32_t masks[] = {TQ_ISA_SCALAR, TQ_ISA_AVX2, TQ_ISA_AVX512, TQ_ISA_NEON};
    size_t n = 0;

    for (size_t i = 0; i < COUNT(masks); i++)
        if (i == 0 || (masks[i] & tq_isa_detect()))
            k[n++] = tq_kernels_get(masks[i]);
    return n;
}

/* Rows of one element turn into rows whose coordinates are all as large as the largest: the sums
 * of products of the encoder, the transform of the decoder and the scores of attention reach what
 * they can reach. 127 * 1024 is beyond int16 and 32767 * 127 * 576 beyond int32. */
static void sums_have_room(void **state)
{
    static const uint32_t dims[] = {512, 576, 640, 768, 896, 1024};
    static const tq_format formats[] = {TQ_FMT_NORM2, TQ_FMT_NORM4, TQ_FMT_NORM6, TQ_FMT_NORM8,
                                        TQ_FMT_TCQ2,  TQ_FMT_TCQ4,  TQ_FMT_TCQ6,  TQ_FMT_MSE4};
    const tq_kernels *tables[4];
    const size_t n_tables = all_tables(tables);

    (void)state;
    for (size_t i = 0; i < COUNT(formats) * COUNT(dims); i++) {
        const uint32_t dim = dims[i % COUNT(dims)];
        const tq_format format = formats[i / COUNT(dims)];
        const int kfmt = tq_kfmt(format);
        static float x[1024], y[1024], z[1024], s[TQ_TILE];
        static uint8_t want[2048], got[2048];
        static _Alignas(64) uint8_t prep[4 * 1024 * 4 + 64];

        memset(x, 0, sizeof x);
        x[dim / 3] = -3.0f;
        for (size_t t = 0; t < n_tables; t++) {
            tq_codec c;
            assert_int_equal(tq_codec_init(&c, format, dim, 0, tables[t]->isa), TQ_OK);
            uint8_t *block = t ? got : want;
            tables[t]->codec->encode[kfmt](&c, tq_codec_planes(&c, block), x, dim, 1);
            if (memcmp(block, want, c.block_bytes) != 0)
                fail_msg("format %d, dim %u, ISA %u: other bytes", (int)format, dim,
                         tables[t]->isa);
            tables[t]->codec->decode[kfmt](&c, t ? z : y, dim, tq_codec_const_planes(&c, want), 1);
            if (t && memcmp(y, z, dim * sizeof(float)) != 0)
                fail_msg("format %d, dim %u, ISA %u: other row", (int)format, dim, tables[t]->isa);
            /* The row's own component is kept, but for mse, which loses some of it. */
            if (fabs((double)y[dim / 3] / -3 - 1) > (format == TQ_FMT_MSE4 ? 0.2 : 2e-3))
                fail_msg("format %d, dim %u: element %g", (int)format, dim, (double)y[dim / 3]);
            if (format == TQ_FMT_MSE4)
                continue;
            /* The query is the row: a flat vector too. */
            tables[t]->attn->prep[kfmt](&c, prep, x, 1);
            tables[t]->attn->score[kfmt](&c, s, prep, 1, tq_codec_const_planes(&c, want), 1);
            if (fabs((double)s[0] / 9 - 1) > 3e-3)
                fail_msg("format %d, dim %u, ISA %u: score %g", (int)format, dim, tables[t]->isa,
                         (double)s[0]);
        }
    }
}

/* Decoders take any bytes: every level -128 or every level 127, which no encoder writes. */
static void levels_have_room(void **state)
{
    static const uint8_t codes[] = {0x80, 0x7f};
    const tq_kernels *tables[4];
    const size_t n_tables = all_tables(tables);

    (void)state;
    for (uint32_t dim = 512; dim <= 1024; dim += 64) {
        for (size_t i = 0; i < COUNT(codes) && tq_hadamard_takes(dim); i++) {
            uint8_t block[1024 + 2];
            float y[1024];
            tq_codec c;
            memset(block, codes[i], dim);
            block[dim] = 0;
            block[dim + 1] = 0x3c; /* f16 1 */
            for (size_t t = 0; t < n_tables; t++) {
                assert_int_equal(tq_codec_init(&c, TQ_FMT_NORM8, dim, 0, tables[t]->isa), TQ_OK);
                assert_int_equal(tq_codec_decode(&c, y, dim, block, dim + 2, 1), TQ_OK);
                /* H of equal numbers: all of it in element 0. Unit 1/32, H is not scaled. */
                const double level = codes[i] == 0x80 ? -128 : 127;
                const double first = level * sqrt((double)dim) / 32 * (double)tq_sign_table(dim)[0];
                const int power = (dim & (dim - 1)) == 0; /* a factor of order m has other rows */
                if (power && fabs((double)y[0] / first - 1) > 1e-6)
                    fail_msg("dim %u, ISA %u: %g, not %g", dim, tables[t]->isa, (double)y[0],
                             first);
                double yy = 0;
                for (uint32_t j = 0; j < dim; j++)
                    yy += (double)y[j] * (double)y[j];
                if (fabs(yy / (level * level * dim / 1024) - 1) > 1e-5)
                    fail_msg("dim %u, ISA %u: squares sum to %g", dim, tables[t]->isa, yy);
            }
        }
    }
}

/* ---- Option mean ---- */

static void mean_is_kept_apart(void **state)
{
    static const tq_format formats[] = {TQ_FMT_NORM2, TQ_FMT_NORM4, TQ_FMT_NORM8, TQ_FMT_TCQ3};
    uint64_t seed = 21;

    (void)state;
    for (size_t f = 0; f < COUNT(formats); f++) {
        float x[96], y[96], z[96], turned[96];
        uint8_t block[256];
        tq_codec plain, c;
        double with = 0, without = 0;
        assert_int_equal(tq_codec_init(&plain, formats[f], 96, 0, TQ_ISA_ALL), TQ_OK);
        assert_int_equal(tq_codec_init(&c, formats[f], 96, TQ_CODEC_MEAN, TQ_ISA_ALL), TQ_OK);
        assert_int_equal(c.block_bytes, plain.block_bytes + 2);
        for (int row = 0; row < 50; row++) {
            for (int j = 0; j < 96; j++)
                x[j] = 7 + (float)test_normal(&seed);
            tq_codec_encode(&plain, block, sizeof block, x, 96, 1, NULL);
            tq_codec_decode(&plain, y, 96, block, sizeof block, 1);
            for (int j = 0; j < 96; j++)
                without += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
            tq_codec_encode(&c, block, sizeof block, x, 96, 1, NULL);
            tq_codec_decode(&c, y, 96, block, sizeof block, 1);
            for (int j = 0; j < 96; j++)
                with += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
            /* In the rotated domain the mean is the rotation of equal elements. */
            tq_codec_decode_planes(&c, z, 96, tq_codec_const_planes(&c, block), 1, 1);
            memcpy(turned, y, sizeof turned);
            tq_rotate_f32(turned, 96);
            for (int j = 0; j < 96; j++)
                assert_true(fabs((double)(turned[j] - z[j])) < 1e-4);
        }
        assert_true(with < without / 20);
        /* Equal elements are exact, up to f16. */
        for (int j = 0; j < 96; j++)
            x[j] = 1.25f;
        tq_codec_encode(&c, block, sizeof block, x, 96, 1, NULL);
        tq_codec_decode(&c, y, 96, block, sizeof block, 1);
        for (int j = 0; j < 96; j++)
            assert_true(y[j] == 1.25f);
    }
}

/* ---- Arguments ---- */

static void flags_are_checked(void **state)
{
    static const struct {
        tq_format format;
        uint32_t flags;
        tq_status want;
    } cases[] = {{TQ_FMT_NORM4, TQ_CODEC_STRICT, TQ_ERR_ARG},
                 {TQ_FMT_NORM4, TQ_CODEC_GROUP_32, TQ_ERR_ARG},
                 {TQ_FMT_NORM4, 64, TQ_ERR_ARG},
                 {TQ_FMT_NORM4, TQ_CODEC_MEAN | TQ_CODEC_EFFORT_12, TQ_OK},
                 {TQ_FMT_NORM8, TQ_CODEC_EFFORT_12, TQ_OK},
                 {TQ_FMT_TCQ4, TQ_CODEC_EFFORT_3, TQ_OK},
                 {TQ_FMT_TCQ4, TQ_CODEC_STRICT, TQ_ERR_ARG},
                 {TQ_FMT_UNIFORM8, TQ_CODEC_GROUP_32, TQ_OK},
                 {TQ_FMT_UNIFORM8, TQ_CODEC_GROUP_32 | TQ_CODEC_GROUP_128, TQ_ERR_ARG},
                 {TQ_FMT_UNIFORM8, TQ_CODEC_MEAN, TQ_ERR_ARG},
                 {TQ_FMT_MSE2, TQ_CODEC_MEAN, TQ_ERR_ARG},
                 {TQ_FMT_PROD2, TQ_CODEC_EFFORT_1, TQ_ERR_ARG},
                 {TQ_FMT_FORK3, TQ_CODEC_STRICT, TQ_ERR_ARG},
                 {TQ_FMT_AFFINE_K8, TQ_CODEC_MEAN, TQ_ERR_ARG},
                 {(tq_format)47, 0, TQ_ERR_ARG},
                 {(tq_format)61, 0, TQ_ERR_ARG},
                 {(tq_format)101, 0, TQ_ERR_ARG}};
    tq_codec c;

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        if (tq_codec_init(&c, cases[i].format, 128, cases[i].flags, 0) != cases[i].want)
            fail_msg("case %zu", i);
    assert_int_equal(tq_codec_init(&c, TQ_FMT_FORK3, 64, 0, 0), TQ_ERR_DIM);
    assert_int_equal(tq_codec_init(&c, TQ_FMT_FORK3, 256, 0, 0), TQ_OK);
    assert_int_equal(c.block_bytes, 100);
    assert_int_equal(tq_codec_init(&c, TQ_FMT_NORM4, 128, 0, 0), TQ_OK);
    assert_int_equal(c.effort, 3);
    assert_int_equal(c.rotated, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotations_are_orthogonal),
        cmocka_unit_test(constants_follow_from_their_definition),
        cmocka_unit_test(codebooks_are_pinned),
        cmocka_unit_test(boundaries_have_cells),
        cmocka_unit_test(norms_are_kept),
        cmocka_unit_test(sizes_do_not_matter),
        cmocka_unit_test(extremes_stay_finite),
        cmocka_unit_test(sums_have_room),
        cmocka_unit_test(levels_have_room),
        cmocka_unit_test(mean_is_kept_apart),
        cmocka_unit_test(flags_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
