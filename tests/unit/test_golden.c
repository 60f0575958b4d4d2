/* SPDX-License-Identifier: MIT */
/* test_golden.c — affine-lloyd against the golden files (tests/golden/README.md): every file, on
 * every ISA of this machine, one row at a time and in bulk, encode and decode; and damaged files,
 * which the reader refuses by name. */
#include "golden.h"

#include "f16.h"
#include "support.h"

#include <dirent.h>
#include <math.h>

static const uint32_t isa_masks[] = {TQ_ISA_SCALAR, TQ_ISA_AVX2, TQ_ISA_ALL};

/* +0 == -0, and all NaN are one. */
static int same_f32(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

static int same_f16(uint16_t a, uint16_t b)
{
    return same_f32(tq_f32_from_f16(a), tq_f32_from_f16(b));
}

static tq_format format_of(const golden *g)
{
    static const struct {
        uint32_t bits;
        tq_format key;
        tq_format value;
    } map[] = {{2, TQ_FMT_AFFINE_K2, TQ_FMT_LLOYD_V2},
               {3, TQ_FMT_F32, TQ_FMT_LLOYD_V3},
               {4, TQ_FMT_AFFINE_K4, TQ_FMT_LLOYD_V4},
               {5, TQ_FMT_AFFINE_K5, TQ_FMT_LLOYD_V5},
               {8, TQ_FMT_AFFINE_K8, TQ_FMT_LLOYD_V8}};
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
        if (map[i].bits == g->bits)
            return g->is_value ? map[i].value : map[i].key;
    fail_msg("golden file with %u bits", g->bits);
    return TQ_FMT_F32;
}

static void check_block(const golden *g, const tq_codec *c, const uint8_t *block, uint32_t row)
{
    const uint8_t *scale = block + c->code_bytes;
    const uint8_t *zero = scale + c->scale_bytes;

    if (memcmp(block, g->packed + row * c->code_bytes, c->code_bytes) != 0)
        fail_msg("%s: row %u: codes differ", g->name, row);
    for (uint32_t i = 0; i < c->n_groups; i++) {
        size_t at = 2 * ((size_t)row * c->n_groups + i);
        if (!same_f16(tq_load_le16(scale + 2 * i), tq_load_le16(g->scale + at)))
            fail_msg("%s: row %u group %u: scale differs", g->name, row, i);
        if (c->zero_bytes && !same_f16(tq_load_le16(zero + 2 * i), tq_load_le16(g->zero + at)))
            fail_msg("%s: row %u group %u: zero point differs", g->name, row, i);
    }
}

static void check_file(const golden *g, uint32_t isa_mask)
{
    tq_codec c;
    size_t n = g->n_rows;

    assert_int_equal(tq_codec_init(&c, format_of(g), g->dim, TQ_CODEC_STRICT, isa_mask), TQ_OK);
    uint8_t *blocks = test_malloc(n * c.block_bytes);
    float *out = test_malloc(n * c.dim * sizeof(float));

    assert_int_equal(tq_codec_encode(&c, blocks, n * c.block_bytes, g->input, c.dim, n, NULL),
                     TQ_OK);
    for (uint32_t row = 0; row < n; row++)
        check_block(g, &c, blocks + row * c.block_bytes, row);

    memset(blocks, 0x88, n * c.block_bytes);
    for (uint32_t row = 0; row < n; row++) {
        uint8_t *block = blocks + row * c.block_bytes;
        assert_int_equal(tq_codec_encode(&c, block, c.block_bytes, g->input + row * (size_t)c.dim,
                                         c.dim, 1, NULL),
                         TQ_OK);
        check_block(g, &c, block, row);
    }

    /* Decode what the file stores, not what we encoded. */
    for (uint32_t row = 0; row < n; row++) {
        uint8_t *block = blocks + row * c.block_bytes;
        memcpy(block, g->packed + row * c.code_bytes, c.code_bytes);
        memcpy(block + c.code_bytes, g->scale + row * c.scale_bytes, c.scale_bytes);
        if (c.zero_bytes)
            memcpy(block + c.code_bytes + c.scale_bytes, g->zero + row * c.zero_bytes,
                   c.zero_bytes);
    }
    assert_int_equal(tq_codec_decode(&c, out, c.dim, blocks, n * c.block_bytes, n), TQ_OK);
    for (size_t i = 0; i < n * c.dim; i++)
        if (!same_f32(out[i], g->decoded[i]))
            fail_msg("%s: decoded element %zu is %a, not %a", g->name, i, (double)out[i],
                     (double)g->decoded[i]);
    test_free(out);
    test_free(blocks);
}

/* The guarded encoder gives the strict bytes for each row without a degenerate group. */
static void check_guarded(const golden *g, uint32_t isa_mask, unsigned *n_same, unsigned *n_acts)
{
    tq_codec c;
    uint8_t block[2048];
    float out[512];

    assert_int_equal(tq_codec_init(&c, format_of(g), g->dim, 0, isa_mask), TQ_OK);
    for (uint32_t row = 0; row < g->n_rows; row++) {
        assert_int_equal(tq_codec_encode(&c, block, sizeof block, g->input + row * (size_t)c.dim,
                                         c.dim, 1, NULL),
                         TQ_OK);
        assert_int_equal(tq_codec_decode(&c, out, c.dim, block, sizeof block, 1), TQ_OK);
        for (uint32_t i = 0; i < c.dim; i++)
            if (!isfinite(out[i]))
                fail_msg("%s: row %u: guarded encoder gave a non-finite value", g->name, row);
        for (uint32_t i = 0; i < c.n_groups; i++) {
            size_t at = (size_t)row * c.n_groups + i;
            const float *x = g->input + row * (size_t)c.dim + 32 * (size_t)i;
            float zero = c.zero_bytes ? tq_f32_from_f16(tq_load_le16(g->zero + 2 * at)) : 0.0f;
            int constant = x[0] != 0;
            for (uint32_t j = 1; j < 32; j++)
                constant &= x[j] == x[0];
            if (c.zero_bytes && (constant || !(fabsf(zero) <= 2048.0f))) {
                ++*n_acts;
                continue;
            }
            const uint8_t *scale = block + c.code_bytes + 2 * (size_t)i;
            size_t group_bytes = 4 * (size_t)c.bits;
            if (memcmp(block + i * group_bytes, g->packed + at * group_bytes, group_bytes) != 0 ||
                !same_f16(tq_load_le16(scale), tq_load_le16(g->scale + 2 * at)) ||
                (c.zero_bytes &&
                 !same_f16(tq_load_le16(scale + c.scale_bytes), tq_load_le16(g->zero + 2 * at))))
                fail_msg("%s: row %u group %u: guarded bytes differ", g->name, row, i);
            ++*n_same;
        }
    }
}

static void golden_files(void **state)
{
    unsigned n_files = 0;
    unsigned n_same = 0;
    unsigned n_acts = 0;
    DIR *dir = opendir(TQ_TEST_DIR "/golden/affine-lloyd");

    (void)state;
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        golden g;
        char why[128];
        size_t len = strlen(e->d_name);
        if (len < 4 || strcmp(e->d_name + len - 4, ".bin") != 0)
            continue;
        if (!golden_load(&g, "affine-lloyd", e->d_name, why))
            fail_msg("%s: %s", e->d_name, why);
        for (size_t i = 0; i < sizeof(isa_masks) / sizeof(isa_masks[0]); i++) {
            check_file(&g, isa_masks[i]);
            check_guarded(&g, isa_masks[i], &n_same, &n_acts);
        }
        golden_free(&g);
        n_files++;
    }
    closedir(dir);
    print_message("%u golden files; guard acted on %u groups, not on %u\n", n_files, n_acts,
                  n_same);
    /* 4 + 5 formats: f32 input at four dimensions, f16 and bf16 input at 128. */
    assert_int_equal(n_files, 9 * 6);
    assert_true(n_acts > 0 && n_same > 1000);
}

static void damaged_files(void **state)
{
    static const struct {
        const char *file;
        const char *why;
    } cases[] = {
        {"empty.bin", "shorter than its header"},
        {"magic.bin", "magic"},
        {"version.bin", "version"},
        {"bits.bin", "packed bytes per row"},
        {"truncated.bin", "size"},
        {"rows.bin", "size"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        golden g;
        char why[128];
        assert_false(golden_load(&g, "corrupt", cases[i].file, why));
        if (!strstr(why, cases[i].why))
            fail_msg("%s: \"%s\" does not name \"%s\"", cases[i].file, why, cases[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_files),
        cmocka_unit_test(damaged_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
