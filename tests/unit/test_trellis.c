/* SPDX-License-Identifier: MIT */
/* test_trellis.c — what the trellis codec rests on: the decoder without states is the code, the
 * search finds the cheapest path, the tables keep the promises that fast searches use, and the
 * rows come out as well as docs/format.md 9 says. */
#include "support.h"

#include "cpu/scalar_rotated.h"
#include "pack.h"
#include "trellis.h"

enum { SHORT = 16, MIN_BITS = 2, MAX_BITS = 6 };

static tq_format format_of(uint32_t bits)
{
    return (tq_format)(TQ_FMT_TCQ2 + (int)bits - 2);
}

/* ISAs of this machine, the reference first. */
static size_t masks_of(uint32_t masks[2])
{
    masks[0] = TQ_ISA_SCALAR;
    masks[1] = TQ_ISA_ALL;
    return tq_isa_detect() == TQ_ISA_SCALAR ? 1 : 2;
}

/* ---- The code itself ---- */

/* Level numbers by running the code: the syndrome former of Ungerboeck's parity checks h0 = 13 and
 * h1 = 04 (octal): z0[n] ^ z0[n-1] ^ z0[n-3] ^ z1[n-2] = 0. The path bit is z1[n] plus a function
 * of the last path bits. */
static void run_code(uint8_t *number, const uint8_t *code, uint32_t n, uint32_t bits)
{
    uint32_t a1 = 0, a2 = 0, a3 = 0; /* z0, 1 to 3 coordinates ago */
    uint32_t b1 = 0, b2 = 0;         /* z1 */
    uint32_t x1 = 0, x2 = 0, x3 = 0;

    for (uint32_t j = 0; j < n; j++) {
        const uint32_t x = (uint32_t)code[j] >> (bits - 1);
        const uint32_t a = a1 ^ a3 ^ b2, b = x ^ x1 ^ x3;
        const uint32_t o = code[j] & ((1u << (bits - 1)) - 1);

        number[j] = (uint8_t)(4 * o + 2 * b + a);
        a3 = a2, a2 = a1, a1 = a;
        b2 = b1, b1 = b;
        x3 = x2, x2 = x1, x1 = x;
    }
}

/* Decodes code [n][dim] on every ISA, in the rotated domain with scale 1, and compares. */
static void check_decoders(const uint8_t *code, uint32_t n, uint32_t dim, uint32_t bits)
{
    const tq_trellis *t = tq_trellis_get(bits);
    uint32_t masks[2];
    tq_codec c;

    assert_int_equal(tq_codec_init(&c, format_of(bits), dim, 0, TQ_ISA_SCALAR), TQ_OK);
    uint8_t *blocks = test_malloc(n * c.block_bytes);
    uint8_t *number = test_malloc((size_t)n * dim);
    float *rows = test_malloc((size_t)n * dim * sizeof(float));

    for (uint32_t i = 0; i < n; i++) {
        uint8_t *block = blocks + i * c.block_bytes;
        run_code(number + (size_t)i * dim, code + (size_t)i * dim, dim, bits);
        tq_pack_planes(block, code + (size_t)i * dim, dim, t->widths);
        block[c.code_bytes] = 0;
        block[c.code_bytes + 1] = 0x3c; /* f16 1 */
    }
    for (size_t m = 0; m < masks_of(masks); m++) {
        assert_int_equal(tq_codec_init(&c, format_of(bits), dim, 0, masks[m]), TQ_OK);
        const tq_planes p = {blocks, blocks + c.code_bytes, NULL, c.block_bytes, c.block_bytes, 0,
                             0};
        const tq_const_planes in = {.codes = p.codes,
                                    .scale = p.scale,
                                    .codes_stride = p.codes_stride,
                                    .scale_stride = p.scale_stride};
        const int kfmt = tq_kfmt(c.format);
        c.kernels->codec->decode_rotated[kfmt](&c, rows, dim, in, n);
        for (size_t j = 0; j < (size_t)n * dim; j++)
            if (rows[j] != (float)t->levels[number[j]] * t->unit)
                fail_msg("%u bits, dim %u, mask %x: element %zu", bits, dim, masks[m], j);
    }
    test_free(rows);
    test_free(number);
    test_free(blocks);
}

/* All 2^16 sequences of 16 path bits, so all shorter ones too: they are their beginnings. */
static void test_all_short_paths(void **state)
{
    (void)state;
    uint64_t seed = 1;
    uint8_t *code = test_malloc((size_t)SHORT << SHORT);

    for (uint32_t bits = MIN_BITS; bits <= MAX_BITS; bits++) {
        const uint32_t o_mask = (1u << (bits - 1)) - 1;
        for (uint32_t path = 0; path < 1u << SHORT; path++)
            for (uint32_t j = 0; j < SHORT; j++)
                code[path * SHORT + j] =
                    (uint8_t)((test_random(&seed) & o_mask) | (path >> j & 1) << (bits - 1));
        check_decoders(code, 1u << SHORT, SHORT, bits);
    }
    test_free(code);
}

static void test_long_paths(void **state)
{
    static const uint32_t dims[] = {24, 64, 80, 96, 128, 192, 256, 320, 512, 576, 896, 1024};
    (void)state;
    uint64_t seed = 2;
    uint8_t *code = test_malloc(200 * 1024);

    for (uint32_t bits = MIN_BITS; bits <= MAX_BITS; bits++) {
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            for (uint32_t j = 0; j < 200 * dims[d]; j++)
                code[j] = (uint8_t)(test_random(&seed) & ((1u << bits) - 1));
            check_decoders(code, 200, dims[d], bits);
        }
    }
    test_free(code);
}

/* ---- Tables ---- */

static void test_tables(void **state)
{
    (void)state;
    for (uint32_t bits = MIN_BITS; bits <= MAX_BITS; bits++) {
        const tq_trellis *t = tq_trellis_get(bits);
        const int32_t n = 2 << bits, shift = bits >= 5 ? TQ_TRELLIS_SHIFT : 0;

        for (int32_t l = 0; l < n; l++) {
            assert_int_equal(t->levels[n - 1 - l], -t->levels[l]);
            assert_true(l == 0 || t->levels[l] > t->levels[l - 1]);
        }
        for (size_t i = 0; i < sizeof tq_stretches; i++) {
            int32_t cost[TQ_TRELLIS_LEVELS], low = INT32_MAX, high = INT32_MIN;
            int16_t edge[4][TQ_TRELLIS_SUBSET];

            tq_trellis_costs(t, tq_stretches[i], cost);
            tq_trellis_edges(t, tq_stretches[i], edge);
            for (int32_t l = n / 2 - 2; l < n; l++) {
                const int32_t v = cost[l] - shift * t->levels[l];
                low = v < low ? v : low;
                high = v > high ? v : high;
            }
            assert_true(high - low < 1 << 16);
            for (int32_t l = 0; l < n - 4; l++) {
                const int32_t e = edge[l % 4][l / 4], run = t->levels[l + 4] - t->levels[l];
                const int32_t rise = cost[l + 4] - cost[l];
                assert_true(e * run <= rise && (e + 1) * run > rise);
                assert_true(l < 4 || e >= edge[l % 4][l / 4 - 1]); /* counting finds the minimum */
                assert_true(l >= n / 2 - 2 || e < 1); /* p >= 1 needs no level below n / 2 - 2 */
            }
        }
    }
    assert_null(tq_trellis_get(1));
    assert_null(tq_trellis_get(7));
}

/* ---- The search ---- */

static int32_t path_cost(const tq_trellis *t, const int16_t *p, const int32_t *cost,
                         const uint8_t *number)
{
    int32_t sum = 0;
    for (uint32_t j = 0; j < SHORT; j++)
        sum += cost[number[j]] - p[j] * t->levels[number[j]];
    return sum;
}

/* The cheapest of all 2^16 paths, each coordinate with the best level of its subset. */
static int32_t cheapest_of_all(const tq_trellis *t, const int16_t *p, const int32_t *cost)
{
    int32_t price[SHORT][4], best = INT32_MAX;

    for (uint32_t j = 0; j < SHORT; j++) {
        for (uint32_t k = 0; k < 4; k++) {
            price[j][k] = INT32_MAX;
            for (uint32_t l = k; l < 2u << t->bits; l += 4) {
                const int32_t v = cost[l] - p[j] * t->levels[l];
                price[j][k] = v < price[j][k] ? v : price[j][k];
            }
        }
    }
    for (uint32_t path = 0; path < 1u << SHORT; path++) {
        const uint32_t z0 = path << 2, z1 = path ^ path << 1 ^ path << 3;
        int32_t sum = 0;
        for (uint32_t j = 0; j < SHORT; j++)
            sum += price[j][(z1 >> j & 1) * 2 + (z0 >> j & 1)];
        best = sum < best ? sum : best;
    }
    return best;
}

static void test_search_is_cheapest(void **state)
{
    (void)state;
    uint64_t seed = 3;
    uint32_t masks[2];

    for (uint32_t bits = MIN_BITS; bits <= MAX_BITS; bits++) {
        const tq_trellis *t = tq_trellis_get(bits);
        int32_t cost[TQ_TRELLIS_LEVELS];

        tq_trellis_costs(t, tq_stretches[0], cost);
        for (uint32_t round = 0; round < 12; round++) {
            float x[SHORT];
            int16_t p[SHORT];
            uint8_t block[SHORT + 2], code[SHORT], number[SHORT];
            tq_rotated_row r;

            for (uint32_t j = 0; j < SHORT; j++)
                x[j] = (float)pow(test_normal(&seed), round % 3 ? 1 : 3);
            assert_int_equal(tq_row_rotate(&r, x, SHORT), 1);
            tq_row_coordinates(p, &r, SHORT, t->unit, t->frac);
            const int32_t best = cheapest_of_all(t, p, cost);
            for (size_t m = 0; m < masks_of(masks); m++) {
                tq_codec c;
                assert_int_equal(
                    tq_codec_init(&c, format_of(bits), SHORT, TQ_CODEC_EFFORT_1, masks[m]), TQ_OK);
                assert_int_equal(tq_codec_encode(&c, block, sizeof block, x, SHORT, 1, NULL),
                                 TQ_OK);
                tq_unpack_planes(code, block, SHORT, t->widths);
                run_code(number, code, SHORT, bits);
                assert_int_equal(path_cost(t, p, cost, number), best);
            }
        }
    }
}

/* ---- Quality ---- */

enum { DIM = 128, N_ROWS = 4096, AT_ONCE = 64, PAIRS = 26 * AT_ONCE };

/* Relative squared error of normal rows, each under its least-squares scale (the stored scale is
 * made for dot products instead). slope: of <q, decoded> over <q, row>, q near the row. */
static void measure(uint32_t bits, uint32_t effort_flag, double *mse, double *slope)
{
    static float x[AT_ONCE * DIM], y[AT_ONCE * DIM];
    static uint8_t blocks[AT_ONCE * (DIM * 6 / 8 + 2)];
    static double noise[65536 + DIM];
    uint64_t seed = 20261129; /* not a seed of tools/train_trellis.c */
    double err = 0, sum = 0, cross = 0, own = 0;
    tq_codec c;

    assert_int_equal(tq_codec_init(&c, format_of(bits), DIM, effort_flag, TQ_ISA_ALL), TQ_OK);
    for (uint32_t i = 0; i < 65536 + DIM; i++)
        noise[i] = test_normal(&seed);
    for (uint32_t row = 0; row < N_ROWS; row += AT_ONCE) {
        for (uint32_t j = 0; j < AT_ONCE * DIM; j++)
            x[j] = (float)test_normal(&seed);
        assert_int_equal(tq_codec_encode(&c, blocks, sizeof blocks, x, DIM, AT_ONCE, NULL), TQ_OK);
        assert_int_equal(tq_codec_decode(&c, y, DIM, blocks, sizeof blocks, AT_ONCE), TQ_OK);
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            double xx = 0, xy = 0, yy = 0;
            for (uint32_t j = i * DIM; j < (i + 1) * DIM; j++) {
                xx += (double)x[j] * (double)x[j];
                xy += (double)x[j] * (double)y[j];
                yy += (double)y[j] * (double)y[j];
            }
            err += xx - xy * xy / yy;
            sum += xx;
        }
        for (uint32_t pair = 0; pair < PAIRS; pair++) { /* 106496 in all */
            const float *a = x + pair % AT_ONCE * DIM, *b = y + pair % AT_ONCE * DIM;
            const double *v = noise + (test_random(&seed) & 65535);
            double qx = 0, qy = 0;
            for (uint32_t j = 0; j < DIM; j++) {
                qx += ((double)a[j] + v[j]) * (double)a[j];
                qy += ((double)a[j] + v[j]) * (double)b[j];
            }
            cross += qx * qy;
            own += qx * qx;
        }
    }
    *mse = err / sum;
    *slope = cross / own;
}

static void test_gain(void **state)
{
    static const struct {
        double lloyd_max, gain_db;
    } promised[] = {
        {0.11748, 1.25}, {0.034548, 1.5}, {0.009501, 1.5}, {0.002505, 1.5}, {0.000644, 1.5}};
    (void)state;

    for (uint32_t bits = MIN_BITS; bits <= MAX_BITS; bits++) {
        double mse[3], slope[3];
        measure(bits, TQ_CODEC_EFFORT_1, &mse[0], &slope[0]);
        measure(bits, TQ_CODEC_EFFORT_3, &mse[1], &slope[1]);
        measure(bits, TQ_CODEC_EFFORT_12, &mse[2], &slope[2]);
        print_message("tcq%u: relative MSE %.6f, %.6f, %.6f with 1, 3, 12 stretches; gain of the "
                      "first %.2f dB; slope of dots %.5f %.5f %.5f\n",
                      bits, mse[0], mse[1], mse[2],
                      10 * log10(promised[bits - 2].lloyd_max / mse[0]), slope[0], slope[1],
                      slope[2]);
        for (int i = 0; i < 3; i++) {
            assert_true(10 * log10(promised[bits - 2].lloyd_max / mse[i]) >=
                        promised[bits - 2].gain_db);
            assert_true(fabs(slope[i] - 1) <= 0.002);
        }
        assert_true(mse[1] < mse[0] && mse[2] < mse[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_short_paths),
        cmocka_unit_test(test_long_paths),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_search_is_cheapest),
        cmocka_unit_test(test_gain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
