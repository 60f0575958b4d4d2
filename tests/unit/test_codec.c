/* SPDX-License-Identifier: MIT */
/* test_codec.c — the codec against what it must hold: constants, quality, independence of rows,
 * argument checks, stack use. Degenerate input has a file of its own, test_codec_guard.c; golden
 * bytes are in test_golden.c. */
#define _DEFAULT_SOURCE /* pthread_attr_setstack */
#include "support.h"

#include "codec.h"
#include "codec_cases.h"
#include "rotate.h"
#include "tables.h"

/* ---- Constants ---- */

/* The next hexadecimal word of a line of tables.txt as a float. */
static float next_word(char **at)
{
    uint32_t bits = (uint32_t)strtoul(*at, at, 16);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void check_signs(char *at)
{
    uint32_t dim = (uint32_t)strtoul(at, &at, 10);
    const float *sign = tq_sign_table(dim);
    char *hex = at + 1;

    assert_non_null(sign);
    assert_true(strlen(hex) >= dim / 4);
    for (uint32_t i = 0; i < dim; i++) {
        char byte[3] = {hex[i / 8 * 2], hex[i / 8 * 2 + 1], '\0'};
        int negative = strtol(byte, NULL, 16) >> (i % 8) & 1;
        assert_true(sign[i] == (negative ? -1.0f : 1.0f));
    }
}

/* PITFALL 4. */
static void tables_are_pinned(void **state)
{
    FILE *f = fopen(TQ_TEST_DIR "/golden/affine-lloyd/tables.txt", "r");
    static char line[8192];
    int n_lines = 0;

    (void)state;
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); n_lines++) {
        if (strncmp(line, "signs ", 6) == 0) {
            check_signs(line + 6);
            continue;
        }
        int is_boundary = strncmp(line, "boundaries ", 11) == 0;
        assert_true(is_boundary || strncmp(line, "centroids ", 10) == 0);
        char *at = strchr(line, ' ');
        uint32_t bits = (uint32_t)strtoul(at, &at, 10);
        const tq_lloyd_table *table = tq_lloyd_get(bits);
        assert_non_null(table);
        for (uint32_t i = 0; i + (is_boundary ? 1 : 0) < 1u << bits; i++) {
            float x = next_word(&at);
            assert_memory_equal(&x, (is_boundary ? table->boundary : table->centroid) + i, 4);
        }
        assert_int_equal(*at, '\n');
    }
    fclose(f);
    assert_int_equal(n_lines, 4 + 5 + 5);
    assert_null(tq_sign_table(104));
    assert_null(tq_lloyd_get(6));
}

/* ---- The transform against a matrix written down independently ---- */

/* Entry of the Sylvester matrix: the parity of the common bits of row and column. */
static double hadamard_entry(uint32_t row, uint32_t col)
{
    uint32_t common = row & col;
    int parity = 0;
    for (; common; common &= common - 1)
        parity ^= 1;
    return parity ? -1.0 : 1.0;
}

/* PITFALL 13. */
static void rotation_is_the_matrix(void **state)
{
    (void)state;
    for (uint32_t d = 64; d <= 512; d *= 2) {
        const float *sign = tq_sign_table(d);
        float x[512], y[512], back[512];
        for (uint32_t col = 0; col < d; col++) {
            memset(x, 0, sizeof x);
            x[col] = 1.0f;
            memcpy(y, x, sizeof x);
            tq_rotate_f32(y, d);
            for (uint32_t row = 0; row < d; row++)
                assert_true(fabs((double)y[row] - hadamard_entry(row, col) * (double)sign[col] /
                                                      sqrt((double)d)) < 1e-7);
            memcpy(back, y, sizeof y);
            tq_unrotate_f32(back, d);
            for (uint32_t row = 0; row < d; row++) /* R^T R = I */
                assert_true(fabsf(back[row] - x[row]) < 1e-6f);
        }
    }
}

/* What avx2_lloyd.c rests on: cells of 1/48 hold one boundary each and reach beyond the ends. */
static void boundaries_are_apart(void **state)
{
    const tq_lloyd_table *table = tq_lloyd_get(8);

    (void)state;
    for (int i = 0; i < 254; i++)
        assert_true((table->boundary[i + 1] - table->boundary[i]) * 48 > 1);
    assert_true(table->boundary[0] * 48 > -255 && table->boundary[254] * 48 < 254);
}

/* ---- Norms ---- */

/* Relative squared error and mean norm ratio on N(0, 1) rows. */
static void measure(const tq_codec *c, uint32_t n_rows, double *mse, double *norm_ratio)
{
    uint64_t seed = 1;
    double err = 0;
    double sum = 0;
    double ratio = 0;
    float x[1024], y[1024];
    uint8_t block[4096];

    for (uint32_t row = 0; row < n_rows; row++) {
        double nx = 0;
        double ny = 0;
        for (uint32_t i = 0; i < c->dim; i++)
            x[i] = (float)test_normal(&seed);
        assert_int_equal(tq_codec_encode(c, block, sizeof block, x, c->dim, 1, NULL), TQ_OK);
        assert_int_equal(tq_codec_decode(c, y, c->dim, block, sizeof block, 1), TQ_OK);
        for (uint32_t i = 0; i < c->dim; i++) {
            err += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            nx += (double)x[i] * (double)x[i];
            ny += (double)y[i] * (double)y[i];
        }
        sum += nx;
        ratio += sqrt(ny / nx);
    }
    *mse = err / sum;
    *norm_ratio = ratio / n_rows;
}

/* PITFALL 5: a wrong constant (1/sqrt(2d), a scaled table) changes the norm long before it changes
 * ranks. */
static void norms_are_kept(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_CASE_FORMATS; f++) {
        for (size_t d = 0; d < case_n_dims(f); d++) {
            tq_codec c;
            double mse, ratio;
            if (case_formats[f].kind != CASE_GROUPS)
                continue;
            assert_int_equal(
                tq_codec_init(&c, case_formats[f].format, case_group_dims[d], 0, TQ_ISA_ALL),
                TQ_OK);
            measure(&c, 300, &mse, &ratio);
            /* Lloyd-Max shrinks by 1 - mse/2, affine rounding adds noise. */
            double slack = c.rotated ? 0.6 * mse + 0.003 : 0.6 * mse + 0.01;
            if (fabs(ratio - 1.0) > slack)
                fail_msg("format %d, dim %u: norm ratio %g", (int)c.format, c.dim, ratio);
        }
    }
}

/* PITFALL 7: no element is dropped, doubled or moved: a lone large element comes back where it was.
 */
static void every_element_takes_part(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_CASE_FORMATS; f++) {
        for (size_t d = 0; d < case_n_dims(f) && case_formats[f].kind != CASE_PROD; d++) {
            tq_codec c;
            uint32_t dim = case_dim(f, d);
            static float x[1024], y[1024];
            static uint8_t block[4096];

            assert_int_equal(tq_codec_init(&c, case_formats[f].format, dim, 0, TQ_ISA_ALL), TQ_OK);
            for (uint32_t i = 0; i < dim; i++) {
                memset(x, 0, sizeof x);
                x[i] = 3.0f;
                assert_int_equal(tq_codec_encode(&c, block, sizeof block, x, dim, 1, NULL), TQ_OK);
                assert_int_equal(tq_codec_decode(&c, y, dim, block, sizeof block, 1), TQ_OK);
                /* All rotated values are +-3/sqrt(dim), which 2-bit levels meet 50 % too high. */
                for (uint32_t j = 0; j < dim; j++)
                    if (j == i ? y[j] < 1.5f || y[j] > 4.6f : fabsf(y[j]) > 0.75f)
                        fail_msg("format %d, dim %u: element %u of e_%u is %g", (int)c.format, dim,
                                 j, i, (double)y[j]);
            }
        }
    }
}

/* ---- Rows do not know each other ---- */

/* PITFALL 8. */
static void single_equals_bulk(void **state)
{
    enum { N = 17 };
    uint64_t seed = 17;

    (void)state;
    for (size_t f = 0; f < N_CASE_FORMATS; f++) {
        for (size_t d = 0; d < case_n_dims(f); d++) {
            tq_codec c;
            uint32_t dim = case_dim(f, d);
            size_t stride = dim + 3;

            assert_int_equal(tq_codec_init(&c, case_formats[f].format, dim, 0, TQ_ISA_ALL), TQ_OK);
            float *x = test_malloc(N * stride * sizeof(float));
            uint8_t *bulk = test_malloc(N * c.block_bytes);
            uint8_t *one = test_malloc(c.block_bytes);
            float *bulk_out = test_malloc((size_t)N * dim * sizeof(float));
            float *one_out = test_malloc(dim * sizeof(float));
            for (size_t i = 0; i < N * stride; i++)
                x[i] = (float)test_normal(&seed);
            memset(x + 5 * stride, 0, dim * sizeof(float)); /* the guard acts in a neighbour */
            x[6 * stride + 1] = 1e30f;
            assert_int_equal(tq_codec_encode(&c, bulk, N * c.block_bytes, x, stride, N, NULL),
                             TQ_OK);
            assert_int_equal(tq_codec_decode(&c, bulk_out, dim, bulk, N * c.block_bytes, N), TQ_OK);
            for (size_t row = 0; row < N; row++) {
                assert_int_equal(
                    tq_codec_encode(&c, one, c.block_bytes, x + row * stride, dim, 1, NULL), TQ_OK);
                assert_memory_equal(one, bulk + row * c.block_bytes, c.block_bytes);
                assert_int_equal(tq_codec_decode(&c, one_out, dim, one, c.block_bytes, 1), TQ_OK);
                assert_memory_equal(one_out, bulk_out + row * dim, dim * sizeof(float));
            }
            test_free(one_out);
            test_free(bulk_out);
            test_free(one);
            test_free(bulk);
            test_free(x);
        }
    }
}

static void nonfinite_rows_are_named(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    uint64_t seed = 5;

    (void)state;
    for (size_t f = 0; f < N_CASE_FORMATS; f++) {
        tq_codec c;
        static float x[40 * 64];
        static uint8_t blocks[40 * 256], want[40 * 256];

        assert_int_equal(tq_codec_init(&c, case_formats[f].format, 64, 0, TQ_ISA_ALL), TQ_OK);
        for (size_t i = 0; i < 40 * 64; i++)
            x[i] = (float)test_normal(&seed);
        assert_int_equal(tq_codec_encode(&c, want, sizeof want, x, 64, 40, NULL), TQ_OK);
        for (size_t at = 0; at < 40 * 64; at += 61) {
            size_t bad_row = 999;
            float keep = x[at];
            x[at] = bad[at % 3];
            assert_int_equal(tq_codec_encode(&c, blocks, sizeof blocks, x, 64, 40, &bad_row),
                             TQ_ERR_NONFINITE);
            assert_int_equal(bad_row, at / 64);
            assert_int_equal(tq_codec_encode(&c, blocks, sizeof blocks, x, 64, 40, NULL),
                             TQ_ERR_NONFINITE);
            assert_memory_equal(blocks, want, bad_row * c.block_bytes); /* rows before are done */
            x[at] = keep;
        }
    }
}

/* ---- Arguments ---- */

static void wrong_arguments(void **state)
{
    tq_codec c;
    static float x[1024];
    static uint8_t block[4096];

    (void)state;
    assert_int_equal(tq_codec_init(NULL, TQ_FMT_F16, 64, 0, 0), TQ_ERR_ARG);
    assert_int_equal(tq_codec_init(&c, (tq_format)3, 64, 0, 0), TQ_ERR_ARG);
    assert_int_equal(tq_codec_init(&c, (tq_format)-1, 64, 0, 0), TQ_ERR_ARG);
    assert_int_equal(tq_codec_init(&c, TQ_FMT_AFFINE_K8, 64, 2, 0), TQ_ERR_ARG);
    assert_int_equal(tq_codec_init(&c, TQ_FMT_F16, 64, TQ_CODEC_STRICT, 0), TQ_ERR_ARG);
    static const uint32_t bad_raw_dims[] = {0, 4, 8, 12, 17, 1025, 1032, UINT32_MAX};
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(tq_codec_init(&c, TQ_FMT_BF16, bad_raw_dims[i], 0, 0), TQ_ERR_DIM);
        assert_int_equal(tq_codec_init(&c, TQ_FMT_AFFINE_K8, bad_raw_dims[i], 0, 0), TQ_ERR_DIM);
        assert_int_equal(tq_codec_init(&c, TQ_FMT_LLOYD_V3, bad_raw_dims[i], 0, 0), TQ_ERR_DIM);
    }
    /* No rotation: values are refused, keys need none. */
    static const uint32_t unrotated_dims[] = {88, 104, 120, 200, 360, 1000};
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(tq_codec_init(&c, TQ_FMT_LLOYD_V3, unrotated_dims[i], 0, 0), TQ_ERR_DIM);
        assert_int_equal(tq_codec_init(&c, TQ_FMT_AFFINE_K8, unrotated_dims[i], 0, 0), TQ_OK);
    }

    assert_int_equal(tq_codec_init(&c, TQ_FMT_LLOYD_V3, 128, 0, TQ_ISA_ALL), TQ_OK);
    assert_int_equal(c.block_bytes, 56);
    assert_int_equal(tq_codec_encode(NULL, block, 56, x, 128, 1, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_codec_encode(&c, NULL, 56, x, 128, 1, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_codec_encode(&c, block, 56, NULL, 128, 1, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_codec_encode(&c, block, 56, x, 127, 1, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_codec_encode(&c, block, 55, x, 128, 1, NULL), TQ_ERR_SIZE);
    assert_int_equal(tq_codec_encode(&c, block, 56, x, 128, SIZE_MAX, NULL), TQ_ERR_SIZE);
    assert_int_equal(tq_codec_encode(&c, block, 56, x, 128, SIZE_MAX / 56 + 2, NULL), TQ_ERR_SIZE);
    assert_int_equal(tq_codec_encode(&c, NULL, 0, NULL, 0, 0, NULL), TQ_OK);

    /* All zero, and left so by an init that fails; views and plans likewise. */
    tq_codec none = {0};
    assert_int_equal(tq_codec_init(&none, TQ_FMT_LLOYD_V3, 88, 0, TQ_ISA_ALL), TQ_ERR_DIM);
    assert_int_equal(tq_codec_encode(&none, block, 56, x, 128, 1, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_codec_encode(&none, NULL, 0, NULL, 0, 0, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_codec_decode(&none, x, 128, block, 56, 1), TQ_ERR_ARG);
    assert_int_equal(tq_codec_decode(&none, NULL, 0, NULL, 0, 0), TQ_ERR_ARG);
    tq_view view = {0};
    tq_attn_plan plan = {0};
    const tq_attn_config attn = {.n_q_heads = 1, .q_len = 1, .scale = 1};
    assert_int_equal(tq_view_decode(&view, 0, 0, 0, x, x), TQ_ERR_ARG);
    assert_int_equal(tq_view_decode_at(&view, 0, 0, 0, 0, x, x), TQ_ERR_ARG);
    assert_int_equal(tq_attn_plan_init(&plan, &attn, &view), TQ_ERR_ARG);
    assert_int_equal(tq_attn_run(&plan, &view, x, 128, x, 128, block, sizeof block), TQ_ERR_ARG);

    assert_int_equal(tq_codec_decode(NULL, x, 128, block, 56, 1), TQ_ERR_ARG);
    assert_int_equal(tq_codec_decode(&c, NULL, 128, block, 56, 1), TQ_ERR_ARG);
    assert_int_equal(tq_codec_decode(&c, x, 127, block, 56, 1), TQ_ERR_ARG);
    assert_int_equal(tq_codec_decode(&c, x, 128, NULL, 56, 1), TQ_ERR_ARG);
    assert_int_equal(tq_codec_decode(&c, x, 128, block, 55, 1), TQ_ERR_SIZE);
    assert_int_equal(tq_codec_decode(&c, x, 128, block, 56, SIZE_MAX), TQ_ERR_SIZE);
    assert_int_equal(tq_codec_decode(&c, NULL, 0, NULL, 0, 0), TQ_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_pinned),        cmocka_unit_test(boundaries_are_apart),
        cmocka_unit_test(rotation_is_the_matrix),   cmocka_unit_test(norms_are_kept),
        cmocka_unit_test(every_element_takes_part), cmocka_unit_test(single_equals_bulk),
        cmocka_unit_test(nonfinite_rows_are_named), cmocka_unit_test(wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
