/* SPDX-License-Identifier: MIT */
/* test_codec_guard.c — degenerate input: constant and nearly constant groups, zero rows, numbers
 * beyond the range of f16 and below it. The default encoder must give finite values that are as
 * near as the format allows; strict mode shows what would happen without it. */
#include "support.h"

#include "codec.h"
#include "codec_cases.h"
#include "f16.h"
#include "tables.h"

static const tq_format affine[] = {TQ_FMT_AFFINE_K2, TQ_FMT_AFFINE_K4, TQ_FMT_AFFINE_K5,
                                   TQ_FMT_AFFINE_K8};
static const tq_format lloyd[] = {TQ_FMT_LLOYD_V2, TQ_FMT_LLOYD_V3, TQ_FMT_LLOYD_V4,
                                  TQ_FMT_LLOYD_V5, TQ_FMT_LLOYD_V8};
static const uint32_t isa_masks[] = {TQ_ISA_SCALAR, TQ_ISA_ALL};

static void round_trip(const tq_codec *c, float *y, const float *x, uint8_t *block)
{
    assert_int_equal(tq_codec_encode(c, block, 4096, x, c->dim, 1, NULL), TQ_OK);
    assert_int_equal(tq_codec_decode(c, y, c->dim, block, 4096, 1), TQ_OK);
}

/* PITFALL 1. */
static void constant_key_groups(void **state)
{
    static const float constants[] = {1.0f,     100.0f,   0.5f,     -3.25f,    1e-3f,   -5e-4f,
                                      0x1p-14f, 0x1p-24f, 65504.0f, -65504.0f, 2048.5f, 6.1e-5f};
    uint8_t block[4096];
    float x[64], y[64];

    (void)state;
    for (size_t f = 0; f < 4; f++) {
        for (size_t m = 0; m < 2; m++) {
            tq_codec c;
            assert_int_equal(tq_codec_init(&c, affine[f], 64, 0, isa_masks[m]), TQ_OK);
            for (size_t k = 0; k < sizeof(constants) / sizeof(constants[0]); k++) {
                float v = constants[k];
                for (int i = 0; i < 64; i++)
                    x[i] = i < 32 ? v : (float)i;
                round_trip(&c, y, x, block);
                /* exactly f16(v): scale |v|, zero +-1, codes 0 */
                float want = tq_f32_from_f16(tq_f16_from_f32(v));
                for (int i = 0; i < 32; i++)
                    assert_true(y[i] == want);
                assert_int_equal(tq_load_le16(block + c.code_bytes), tq_f16_from_f32(fabsf(v)));
                assert_int_equal(tq_load_le16(block + c.code_bytes + c.scale_bytes),
                                 v < 0 ? 0xbc00 : 0x3c00);
            }
        }
    }
}

/* What the guard is for: the bare arithmetic loses a constant. */
static void strict_mode_is_bare(void **state)
{
    uint8_t block[4096];
    float x[64], y[64];
    tq_codec c;

    (void)state;
    for (int i = 0; i < 64; i++)
        x[i] = i < 32 ? 1.0f : (float)i;
    for (size_t m = 0; m < 2; m++) {
        assert_int_equal(tq_codec_init(&c, TQ_FMT_AFFINE_K8, 64, TQ_CODEC_STRICT, isa_masks[m]),
                         TQ_OK);
        round_trip(&c, y, x, block);
        for (int i = 0; i < 32; i++)
            assert_true(isnan(y[i]));
        assert_true(isfinite(y[40]));
    }
}

/* Where the guard begins, to the last step: just inside, the bytes are those of strict mode; just
 * outside, scale and zero point follow the guard's own formula. */
static void guard_acts_where_it_says(void **state)
{
    static const struct {
        tq_format format;
        float mn, mx;
        int acts;
        float scale, zero; /* stored, where it acts */
    } cases[] = {
        /* |Z| = 2048 and 2049, s = 1. Outside: t = 2176 / 2048, Z = rint(2049 / t) */
        {TQ_FMT_AFFINE_K8, 1921, 2175, 0, 0, 0},
        {TQ_FMT_AFFINE_K8, 1922, 2176, 1, 1.0625f, 1928},
        {TQ_FMT_AFFINE_K8, -2175, -1921, 0, 0, 0},
        {TQ_FMT_AFFINE_K8, -2176, -1922, 1, 1.0625f, -1928},
        {TQ_FMT_AFFINE_K2, 2048, 2051, 0, 0, 0},
        {TQ_FMT_AFFINE_K2, 2049, 2052, 1, 1.001953125f, 2045},
        /* s = 65519 still rounds to 65504, s = 65520 would be Inf: x is cut to 3 * 32752 */
        {TQ_FMT_AFFINE_K2, 0, 3 * 65519.0f, 0, 0, 0},
        {TQ_FMT_AFFINE_K2, 0, 3 * 65520.0f, 1, 32752, 0},
        {TQ_FMT_AFFINE_K2, -3 * 65520.0f, 3 * 65520.0f, 1, 65504, -2},
        /* s = 2^-14, and 1023.25 quanta of f16, which the guard rounds up to 1024 */
        {TQ_FMT_AFFINE_K4, 10 * 0x1p-14f, 25 * 0x1p-14f, 0, 0, 0},
        {TQ_FMT_AFFINE_K4, 10 * 0x1p-14f, 25 * 0x1p-14f + 15 * 0x1p-26f, 0, 0, 0},
        {TQ_FMT_AFFINE_K4, 10 * 0x1p-14f, 10 * 0x1p-14f + 15 * 1023.25f * 0x1p-24f, 1, 0x1p-14f,
         10},
        {TQ_FMT_AFFINE_K4, 0, 15 * 1023.25f * 0x1p-24f, 0, 0, 0},
        {TQ_FMT_AFFINE_K4, -15 * 1023.25f * 0x1p-24f, 0, 0, 0, 0},
    };
    uint8_t guarded[4096], strict[4096];
    float x[64];

    (void)state;
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        for (size_t m = 0; m < 2; m++) {
            tq_codec c, bare;
            assert_int_equal(tq_codec_init(&c, cases[k].format, 64, 0, isa_masks[m]), TQ_OK);
            assert_int_equal(
                tq_codec_init(&bare, cases[k].format, 64, TQ_CODEC_STRICT, isa_masks[m]), TQ_OK);
            for (int i = 0; i < 64; i++)
                x[i] = i & 1 ? cases[k].mn : cases[k].mx;
            assert_int_equal(tq_codec_encode(&c, guarded, 4096, x, 64, 1, NULL), TQ_OK);
            assert_int_equal(tq_codec_encode(&bare, strict, 4096, x, 64, 1, NULL), TQ_OK);
            if (!cases[k].acts) {
                assert_memory_equal(guarded, strict, c.block_bytes);
                continue;
            }
            float scale = tq_f32_from_f16(tq_load_le16(guarded + c.code_bytes));
            float zero = tq_f32_from_f16(tq_load_le16(guarded + c.code_bytes + c.scale_bytes));
            assert_memory_not_equal(guarded, strict, c.block_bytes);
            if (scale != cases[k].scale || zero != cases[k].zero)
                fail_msg("case %zu: scale %.9g, zero %g", k, (double)scale, (double)zero);
        }
    }
}

/* PITFALLS 1 and 3 in every format that a scheme uses: rows of one number, and rows of a norm of
 * 1e5, are finite and about as long as they were. */
static void constant_and_huge_rows(void **state)
{
    static const float constants[] = {1.0f, 100.0f, -0.01f, 65504.0f, -1e5f};
    uint64_t seed = 11;
    static float x[128], y[128];
    static uint8_t block[4096];

    (void)state;
    for (size_t f = 0; f < N_CASE_FORMATS; f++)
        for (size_t m = 0; m < 2; m++)
            for (size_t k = 0; k <= sizeof(constants) / sizeof(constants[0]); k++) {
                tq_codec c;
                double xx = 0, yy = 0, least = 0;
                const int huge = k == sizeof(constants) / sizeof(constants[0]);
                assert_int_equal(tq_codec_init(&c, case_formats[f].format, 128, 0, isa_masks[m]),
                                 TQ_OK);
                for (int i = 0; i < 128; i++)
                    x[i] = huge ? (float)(test_normal(&seed) * 1e5 / sqrt(128.0)) : constants[k];
                round_trip(&c, y, x, block);
                for (int i = 0; i < 128; i++) {
                    if (!isfinite(y[i]))
                        fail_msg("format %d, row %zu: element %d is %g", (int)c.format, k, i,
                                 (double)y[i]);
                    const double reach = fmin(fabs((double)x[i]), 65504);
                    least += reach * reach;
                    xx += (double)x[i] * (double)x[i];
                    yy += (double)y[i] * (double)y[i];
                }
                /* f16 may saturate; prod adds noise as large as the row; a constant meets few
                 * levels of a codebook */
                const double low = 0.6, high = case_formats[f].kind == CASE_PROD ? 2.5 : 1.4;
                if (sqrt(yy / least) < low || sqrt(yy / xx) > high)
                    fail_msg("format %d, row %zu: norm ratio %g", (int)c.format, k, sqrt(yy / xx));
            }
}

/* PITFALL 2. */
static void zero_rows_are_exact(void **state)
{
    static float x[1024], y[1024];
    static uint8_t block[4096];

    (void)state;
    for (size_t f = 0; f < N_CASE_FORMATS; f++) {
        for (size_t m = 0; m < 4; m++) {
            tq_codec c;
            uint32_t flags = m >= 2 && case_formats[f].kind == CASE_GROUPS ? TQ_CODEC_STRICT : 0;
            assert_int_equal(
                tq_codec_init(&c, case_formats[f].format, 128, flags, isa_masks[m & 1]), TQ_OK);
            for (int negative = 0; negative < 2; negative++) {
                for (int i = 0; i < 128; i++)
                    x[i] = negative && i % 3 ? -0.0f : 0.0f;
                memset(y, 0x55, sizeof y);
                round_trip(&c, y, x, block);
                for (int i = 0; i < 128; i++)
                    assert_true(y[i] == 0.0f);
            }
        }
    }
}

/* The step of the grid that the guarded encoder may use for a group: the natural one, or the one
 * that f16 zero points reach, rounded up to an f16 number. */
static double allowed_step(double mn, double mx, double levels)
{
    double s = (mx - mn) / levels;
    double reach = fmax(fabs(mn), fabs(mx)) / 2048;
    return fmax(s, reach) * (1 + 0x1p-9) + 0x1p-24;
}

static void check_key_group(const float *x, const float *y, double levels, const char *what)
{
    double mn = (double)x[0];
    double mx = mn;

    for (int i = 1; i < 32; i++) {
        mn = fmin(mn, (double)x[i]);
        mx = fmax(mx, (double)x[i]);
    }
    double bound = 2.5 * allowed_step(mn, mx, levels);
    if (mn <= 0 && mx >= 0 && (mx - mn) / levels < 0x1p-14)
        bound = fmax(bound, 1.5 * (mx - mn)); /* not guarded: right within the range */
    for (int i = 0; i < 32; i++) {
        if (!isfinite(y[i]))
            fail_msg("%s: not finite", what);
        if (fabs((double)y[i] - (double)x[i]) > bound)
            fail_msg("%s: %a became %a in [%a, %a], bound %a", what, (double)x[i], (double)y[i], mn,
                     mx, bound);
    }
}

/* Groups with any offset and any spread up to what the format reaches. */
static void keys_stay_near(void **state)
{
    uint64_t seed = 3;
    float x[64], y[64];
    uint8_t block[4096];

    (void)state;
    for (size_t f = 0; f < 4; f++) {
        tq_codec c;
        assert_int_equal(tq_codec_init(&c, affine[f], 64, 0, TQ_ISA_ALL), TQ_OK);
        double levels = c.bits == 8 ? 254 : (double)((1u << c.bits) - 1);
        for (int round = 0; round < 30000; round++) {
            char what[64];
            double offset[2], spread[2];
            for (int g = 0; g < 2; g++) {
                offset[g] = test_normal(&seed) * pow(10, 16 * test_uniform(&seed) - 9);
                spread[g] = pow(10, 14 * test_uniform(&seed) - 10);
            }
            for (int i = 0; i < 64; i++) {
                double v = offset[i / 32] + spread[i / 32] * test_normal(&seed);
                /* the reach: 2048 + code steps of at most 65504; and the range of the codes */
                double reach = fmin(65504.0 * 2040, 32752.0 * levels);
                x[i] = (float)fmax(fmin(v, reach), -reach);
            }
            round_trip(&c, y, x, block);
            for (int g = 0; g < 2; g++) {
                snprintf(what, sizeof what, "k%u, offset %g, spread %g", c.bits, offset[g],
                         spread[g]);
                check_key_group(x + 32 * g, y + 32 * g, levels, what);
            }
        }
    }
}

/* PITFALL 3: beyond the reach values saturate on their own side. */
static void huge_keys_saturate(void **state)
{
    static const float huge[] = {1e6f, 1e9f, 1e20f, 3e38f};
    float x[64], y[64];
    uint8_t block[4096];

    (void)state;
    for (size_t f = 0; f < 4; f++) {
        for (size_t m = 0; m < 2; m++) {
            tq_codec c;
            assert_int_equal(tq_codec_init(&c, affine[f], 64, 0, isa_masks[m]), TQ_OK);
            for (size_t k = 0; k < 4; k++) {
                for (int i = 0; i < 64; i++) /* both signs; then one sign only */
                    x[i] = huge[k] * (i & 1 ? 1.0f : i < 32 ? -1.0f : 0.9f);
                round_trip(&c, y, x, block);
                for (int i = 0; i < 64; i++) {
                    assert_true(fabsf(y[i]) < 0x1p28f);
                    assert_true(y[i] * x[i] > 0);
                    /* as large as the codes reach, or as the value is */
                    assert_true(fabsf(y[i]) > 0.4f * fminf(huge[k], 65504.0f));
                }
            }
        }
    }
}

static double norm(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* Lloyd values as near to a boundary as f32 can be: AVX2 compares with thresholds where the format
 * divides. Rows of 64 whole numbers in the rotated domain, whose transforms are exact; the first is
 * put next to M d, M above a boundary by half a step, on which the quotient turns. */
static void values_on_boundaries(void **state)
{
    enum { DIM = 64, GROUP = 32, ROWS = 40000 };
    const tq_codec_kernels *k = tq_kernels_get(TQ_ISA_SCALAR)->codec;
    uint32_t seed = 1;
    unsigned turns = 0;

    (void)state;
    for (uint32_t n = 0; n < ROWS; n++) {
        const tq_lloyd_table *t = tq_lloyd_get(2 + n % 2);
        const float b = t->boundary[n / 2 % ((1u << t->bits) - 1)];
        float y[DIM];
        uint8_t out[2][64];
        tq_codec c;

        for (uint32_t j = 0; j < DIM; j++) {
            seed = seed * 1664525u + 1013904223u;
            y[j] = (float)((int32_t)(seed >> 17) - 16384);
        }
        for (int i = 0; i < 4; i++) { /* d follows y[0] */
            double sum = 0;
            for (uint32_t j = 0; j < GROUP; j++)
                sum += (double)y[j] * (double)y[j];
            const double at = ((double)b + (double)nextafterf(b, INFINITY)) / 2 * sqrt(sum / GROUP);
            y[0] = (float)rint(at);
            turns += i == 3 && fabs((double)y[0] - at) < fabs(at) * 0x1p-23;
        }
        k->unrotate(y, DIM);
        for (int m = 0; m < 2; m++) {
            assert_int_equal(tq_codec_init(&c, t->bits == 2 ? TQ_FMT_LLOYD_V2 : TQ_FMT_LLOYD_V3,
                                           DIM, 0, m ? TQ_ISA_ALL : TQ_ISA_SCALAR),
                             TQ_OK);
            memset(out[m], 0, sizeof out[m]);
            assert_int_equal(tq_codec_encode(&c, out[m], sizeof out[m], y, DIM, 1, NULL), TQ_OK);
        }
        if (memcmp(out[0], out[1], sizeof out[0]) != 0)
            fail_msg("%u bits, row %u: codes differ", t->bits, n);
    }
    assert_true(turns > 10);
}

/* Values keep their direction at any size; the length saturates at the top and is lost only
 * where f16 has nothing that small. */
static void values_of_any_size(void **state)
{
    static const double sizes[] = {1e-30, 1e-8, 1e-6, 1e-4, 1.0, 1e4, 1e5, 1e9, 1e18, 1e20, 1e37};
    uint64_t seed = 9;
    float x[128], y[128];
    uint8_t block[4096];

    (void)state;
    for (size_t f = 0; f < 5; f++) {
        for (size_t m = 0; m < 2; m++) {
            tq_codec c;
            assert_int_equal(tq_codec_init(&c, lloyd[f], 128, 0, isa_masks[m]), TQ_OK);
            for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
                for (int i = 0; i < 128; i++)
                    x[i] = (float)(test_normal(&seed) * sizes[k]);
                round_trip(&c, y, x, block);
                double dot = 0;
                for (int i = 0; i < 128; i++) {
                    assert_true(isfinite(y[i]));
                    dot += (double)x[i] * (double)y[i];
                }
                double nx = norm(x, 128);
                double ny = norm(y, 128);
                if (sizes[k] < 1e-7) {
                    assert_true(ny <= nx + 128 * 0x1p-24);
                    continue;
                }
                if (dot < 0.9 * nx * ny)
                    fail_msg("format %d, size %g: cosine %g", (int)lloyd[f], sizes[k],
                             dot / (nx * ny));
                double want = fmin(nx, 65504 * sqrt(128.0));
                if (fabs(ny / want - 1) > 0.3)
                    fail_msg("format %d, size %g: norm %g, not %g", (int)lloyd[f], sizes[k], ny,
                             want);
            }
        }
    }
}

static void raw_formats_round_and_saturate(void **state)
{
    static const struct {
        float x;
        float f16;
        float bf16;
    } cases[] = {{65504.0f, 65504.0f, 65536.0f},
                 {65519.0f, 65504.0f, 65536.0f},
                 {65520.0f, 65504.0f, 65536.0f},
                 {-1e30f, -65504.0f, -0x1.94p+99f},
                 {3.4028235e38f, 65504.0f, 0x1.fep127f},
                 {-3.4028235e38f, -65504.0f, -0x1.fep127f},
                 {1.0f + 0x1p-11f, 1.0f, 1.0f},
                 {1.0f + 0x1.8p-10f, 1.0f + 0x1p-9f, 1.0f},
                 {1.0f + 0x1p-8f, 1.0f + 0x1p-8f, 1.0f},
                 {1.0f + 0x1.8p-7f, 1.0f + 0x1.8p-7f, 1.0f + 0x1p-6f},
                 {0x1p-24f, 0x1p-24f, 0x1p-24f},
                 {0x1p-25f, 0.0f, 0x1p-25f},
                 {0x1.8p-24f, 0x1p-23f, 0x1.8p-24f},
                 {-0x1.000002p-25f, -0x1p-24f, -0x1p-25f},
                 {0x1.ffep-15f, 0x1p-14f, 0x1p-14f},
                 {0x1p-149f, 0.0f, 0.0f}};
    uint8_t block[4096];
    float x[16], y[16];

    (void)state;
    for (size_t m = 0; m < 2; m++) {
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            tq_codec c;
            assert_int_equal(
                tq_codec_init(&c, is_bf16 ? TQ_FMT_BF16 : TQ_FMT_F16, 16, 0, isa_masks[m]), TQ_OK);
            for (int i = 0; i < 16; i++)
                x[i] = cases[i].x;
            round_trip(&c, y, x, block);
            for (int i = 0; i < 16; i++) {
                float want = is_bf16 ? cases[i].bf16 : cases[i].f16;
                if (y[i] != want)
                    fail_msg("%a as %s is %a, not %a", (double)x[i], is_bf16 ? "bf16" : "f16",
                             (double)y[i], (double)want);
            }
        }
    }
}

/* Every f16 pattern: to f32 and back, on each ISA. */
static void all_f16_patterns(void **state)
{
    static uint8_t block[65536 * 2];
    static float x[65536];
    static uint8_t again[65536 * 2];

    (void)state;
    for (uint32_t h = 0; h < 65536; h++)
        tq_store_le16(block + 2 * h, (uint16_t)h);
    for (size_t m = 0; m < 2; m++) {
        tq_codec c;
        assert_int_equal(tq_codec_init(&c, TQ_FMT_F16, 1024, 0, isa_masks[m]), TQ_OK);
        assert_int_equal(tq_codec_decode(&c, x, 1024, block, sizeof block, 64), TQ_OK);
        for (uint32_t h = 0; h < 65536; h++) {
            int e = (int)(h >> 10 & 31);
            double mant = h & 0x3ff;
            double want = e ? ldexp(1024 + mant, e - 25) : ldexp(mant, -24);
            if (e == 31) {
                assert_true(mant != 0 ? isnan(x[h]) : isinf(x[h]));
                x[h] = 0;
                continue;
            }
            assert_true((double)x[h] == (h & 0x8000 ? -want : want));
        }
        assert_int_equal(tq_codec_encode(&c, again, sizeof again, x, 1024, 64, NULL), TQ_OK);
        for (uint32_t h = 0; h < 65536; h++)
            if ((h >> 10 & 31) != 31)
                assert_int_equal(tq_load_le16(again + 2 * h), h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant_key_groups),
        cmocka_unit_test(strict_mode_is_bare),
        cmocka_unit_test(guard_acts_where_it_says),
        cmocka_unit_test(constant_and_huge_rows),
        cmocka_unit_test(zero_rows_are_exact),
        cmocka_unit_test(keys_stay_near),
        cmocka_unit_test(huge_keys_saturate),
        cmocka_unit_test(values_of_any_size),
        cmocka_unit_test(values_on_boundaries),
        cmocka_unit_test(raw_formats_round_and_saturate),
        cmocka_unit_test(all_f16_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
