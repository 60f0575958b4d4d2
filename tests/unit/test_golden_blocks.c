/* SPDX-License-Identifier: MIT */
/* test_golden_blocks.c — every format's blocks against golden files: tests/golden/blocks-v1 (made
 * by the executable specification) and tests/golden/norm-codebook (made by the fork). Every file,
 * every ISA of this machine, in bulk and one row at a time, encode and decode, with hostile blocks;
 * and damaged files, which the reader refuses by name. */
#include "block_file.h"
#include "support.h"

#include "cpu/scalar_rotated.h"

#include <dirent.h>

static const uint32_t isa_masks[] = {TQ_ISA_SCALAR, TQ_ISA_AVX2, TQ_ISA_ALL};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

typedef struct bytes {
    uint8_t *p;
    size_t n;
} bytes;

static bytes read_file(const char *folder, const char *name)
{
    char path[1024];
    bytes b = {NULL, 0};

    snprintf(path, sizeof path, TQ_TEST_DIR "/golden/%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be read", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    b.n = (size_t)ftell(f);
    rewind(f);
    b.p = test_malloc(b.n + 1);
    assert_int_equal(fread(b.p, 1, b.n, f), b.n);
    fclose(f);
    return b;
}

static uint32_t word(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* n f32, copied to an aligned place. */
static float *floats(const uint8_t *p, size_t n)
{
    float *x = test_malloc(n * sizeof(float) + 1);
    memcpy(x, p, n * sizeof(float));
    return x;
}

static void same_rows(const char *name, const float *got, const uint8_t *want, size_t n)
{
    float *w = floats(want, n);
    for (size_t i = 0; i < n; i++)
        if (!(got[i] == w[i] || (isnan(got[i]) && isnan(w[i]))))
            fail_msg("%s: decoded element %zu is %a, not %a", name, i, (double)got[i],
                     (double)w[i]);
    test_free(w);
}

static void check_encode(const char *name, const tq_codec *c, const float *rows, uint32_t n,
                         const uint8_t *want)
{
    uint8_t *blocks = test_malloc(n * c->block_bytes);

    assert_int_equal(tq_codec_encode(c, blocks, n * c->block_bytes, rows, c->dim, n, NULL), TQ_OK);
    for (int bulk = 1; bulk >= 0; bulk--) {
        for (uint32_t r = 0; r < n; r++) {
            uint8_t *block = blocks + r * c->block_bytes;
            if (!bulk)
                assert_int_equal(
                    tq_codec_encode(c, block, c->block_bytes, rows + r * c->dim, c->dim, 1, NULL),
                    TQ_OK);
            if (memcmp(block, want + r * c->block_bytes, c->block_bytes) != 0)
                fail_msg("%s: row %u differs (effort %u, bulk %d)", name, r, c->effort, bulk);
        }
        memset(blocks, 0x88, n * c->block_bytes);
    }
    test_free(blocks);
}

static void check_decode(const char *name, const tq_codec *c, const uint8_t *blocks, uint32_t n,
                         const uint8_t *want)
{
    float *out = test_malloc((n + 1) * (size_t)c->dim * sizeof(float));

    assert_int_equal(tq_codec_decode(c, out, c->dim, blocks, n * c->block_bytes, n), TQ_OK);
    same_rows(name, out, want, n * (size_t)c->dim);
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(tq_codec_decode(c, out + r * (size_t)c->dim, c->dim,
                                         blocks + r * c->block_bytes, c->block_bytes, 1),
                         TQ_OK);
    same_rows(name, out, want, n * (size_t)c->dim);
    test_free(out);
}

static void check_file(const char *name, uint32_t isa_mask)
{
    bytes f = read_file("blocks-v1", name);
    block_file b;
    char rows_name[32];

    const char *wrong = block_file_parse(&b, f.p, f.n);
    if (wrong)
        fail_msg("%s: %s", name, wrong);
    snprintf(rows_name, sizeof rows_name, "rows_d%u.bin", b.dim);
    bytes rows = read_file("blocks-v1", rows_name);
    assert_true(rows.n >= (size_t)b.n_rows * b.dim * sizeof(float));
    float *x = floats(rows.p, (size_t)b.n_rows * b.dim);

    tq_codec c;
    for (uint32_t e = 0; e < b.n_efforts; e++) {
        assert_int_equal(tq_codec_init(&c, b.format, b.dim, b.codec_flags[e], isa_mask), TQ_OK);
        check_encode(name, &c, x, b.n_rows, b.blocks + (size_t)e * b.n_rows * b.block_bytes);
    }
    check_decode(name, &c, b.blocks, b.n_rows, b.decoded);
    check_decode(name, &c, b.hostile, b.n_hostile, b.hostile_decoded);
    test_free(x);
    test_free(rows.p);
    test_free(f.p);
}

/* What a folder of goldens must hold: good blocks of every format, and hostile ones. */
static const tq_format all_formats[] = {
    TQ_FMT_F32,       TQ_FMT_F16,       TQ_FMT_BF16,     TQ_FMT_AFFINE_K2, TQ_FMT_AFFINE_K4,
    TQ_FMT_AFFINE_K5, TQ_FMT_AFFINE_K8, TQ_FMT_LLOYD_V2, TQ_FMT_LLOYD_V3,  TQ_FMT_LLOYD_V4,
    TQ_FMT_LLOYD_V5,  TQ_FMT_LLOYD_V8,  TQ_FMT_NORM2,    TQ_FMT_NORM3,     TQ_FMT_NORM4,
    TQ_FMT_NORM5,     TQ_FMT_NORM6,     TQ_FMT_NORM8,    TQ_FMT_TCQ2,      TQ_FMT_TCQ3,
    TQ_FMT_TCQ4,      TQ_FMT_TCQ5,      TQ_FMT_TCQ6,     TQ_FMT_UNIFORM4,  TQ_FMT_UNIFORM8,
    TQ_FMT_MSE1,      TQ_FMT_MSE2,      TQ_FMT_MSE3,     TQ_FMT_MSE4,      TQ_FMT_PROD1,
    TQ_FMT_PROD2,     TQ_FMT_PROD3,     TQ_FMT_PROD4,    TQ_FMT_FORK2,     TQ_FMT_FORK3,
    TQ_FMT_FORK4,
};

static int is_blocks(const char *name)
{
    size_t len = strlen(name);
    return len > 4 && strcmp(name + len - 4, ".bin") == 0 && strncmp(name, "rows_", 5) != 0 &&
           strncmp(name, "rotated_", 8) != 0;
}

static void every_format_has_goldens(void **state)
{
    uint32_t good[128] = {0}, hostile[128] = {0};
    uint32_t groups[3] = {0}; /* of uniform formats: 64, 32, 128 */
    DIR *dir = opendir(TQ_TEST_DIR "/golden/blocks-v1");

    (void)state;
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (!is_blocks(e->d_name))
            continue;
        bytes f = read_file("blocks-v1", e->d_name);
        block_file b;
        if (block_file_parse(&b, f.p, f.n))
            fail_msg("%s: %s", e->d_name, block_file_parse(&b, f.p, f.n));
        good[b.format] += b.n_rows;
        hostile[b.format] += b.n_hostile;
        if (b.format == TQ_FMT_UNIFORM4 || b.format == TQ_FMT_UNIFORM8)
            groups[b.codec_flags[0] == 0                   ? 0
                   : b.codec_flags[0] == TQ_CODEC_GROUP_32 ? 1
                                                           : 2] |= 1u << (b.format - 70);
        test_free(f.p);
    }
    closedir(dir);
    for (size_t i = 0; i < COUNT(all_formats); i++)
        if (good[all_formats[i]] < 12 || hostile[all_formats[i]] < 9)
            fail_msg("format %d: %u good and %u hostile blocks", (int)all_formats[i],
                     good[all_formats[i]], hostile[all_formats[i]]);
    for (size_t i = 0; i < COUNT(groups); i++)
        assert_int_equal(groups[i], 1u << 4 | 1u << 8);
    /* The list above is the library's: no other number makes a codec. */
    for (int n = 0; n < 128; n++) {
        tq_codec c;
        int listed = 0;
        for (size_t i = 0; i < COUNT(all_formats); i++)
            listed |= (int)all_formats[i] == n;
        assert_int_equal(tq_codec_init(&c, (tq_format)n, 128, 0, TQ_ISA_SCALAR) == TQ_OK, listed);
    }
}

/* Committed damage, each refused by the name of its field; and every file cut short or too long. */
static void damaged_files(void **state)
{
    static const struct {
        const char *file;
        const char *why;
    } cases[] = {
        {"blocks_magic.bin", "magic"},         {"blocks_version.bin", "version"},
        {"blocks_format.bin", "format"},       {"blocks_dim.bin", "dimension"},
        {"blocks_bytes.bin", "block bytes"},   {"blocks_effort.bin", "effort is none"},
        {"blocks_group.bin", "group is none"}, {"blocks_truncated.bin", "size"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        bytes f = read_file("corrupt", cases[i].file);
        block_file b;
        const char *wrong = block_file_parse(&b, f.p, f.n);
        if (!wrong || !strstr(wrong, cases[i].why))
            fail_msg("%s: \"%s\" does not name \"%s\"", cases[i].file, wrong ? wrong : "accepted",
                     cases[i].why);
        test_free(f.p);
    }
    DIR *dir = opendir(TQ_TEST_DIR "/golden/blocks-v1");
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (!is_blocks(e->d_name))
            continue;
        bytes f = read_file("blocks-v1", e->d_name);
        block_file b;
        assert_null(block_file_parse(&b, f.p, f.n));
        for (size_t n = 0; n < f.n; n += n < 64 ? 1 : f.n / 61 + 1)
            if (!block_file_parse(&b, f.p, n))
                fail_msg("%s is accepted with %zu of %zu bytes", e->d_name, n, f.n);
        assert_non_null(block_file_parse(&b, f.p, f.n - 1));
        /* Every bit of the header says something: a changed one is refused, or describes another
         * file of the same size, which then has other formats or options. */
        for (size_t bit = 0; bit < 64 * 8; bit++) {
            block_file good, bad;
            assert_null(block_file_parse(&good, f.p, f.n));
            f.p[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (!block_file_parse(&bad, f.p, f.n) && memcmp(&good, &bad, sizeof good) == 0)
                fail_msg("%s: bit %zu of the header means nothing", e->d_name, bit);
            f.p[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        test_free(f.p);
    }
    closedir(dir);
}

static void golden_blocks(void **state)
{
    unsigned n_files = 0;
    DIR *dir = opendir(TQ_TEST_DIR "/golden/blocks-v1");

    (void)state;
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (!is_blocks(e->d_name))
            continue;
        for (size_t i = 0; i < COUNT(isa_masks); i++)
            check_file(e->d_name, isa_masks[i]);
        n_files++;
    }
    closedir(dir);
    print_message("%u golden files\n", n_files);
    /* 6 + 5 formats at 8 dimensions, and with a mean at 2; raw and for research, 3 + 2 + 4 + 4 at
     * 3, groups of 32 and 128 at 2; the fork's 3 at 2; and 4 + 5 (test_golden.c has their others).
     */
    assert_int_equal(n_files, 11 * 8 + 11 * 2 + 13 * 3 + 4 * 2 + 3 * 2 + 9 * 2);
}

/* The floating-point part of the encoder by itself: rotated rows and their norms. */
static void rotated_rows(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128, 192, 256, 384, 512, 576};

    (void)state;
    for (size_t d = 0; d < COUNT(dims); d++) {
        const uint32_t dim = dims[d];
        char name[32];
        snprintf(name, sizeof name, "rows_d%u.bin", dim);
        bytes rows = read_file("blocks-v1", name);
        snprintf(name, sizeof name, "rotated_d%u.bin", dim);
        bytes want = read_file("blocks-v1", name);
        const size_t n = rows.n / dim / sizeof(float);
        assert_int_equal(want.n, n * (dim + 1) * sizeof(float));
        float *x = floats(rows.p, n * dim);
        float *norm = floats(want.p + n * dim * sizeof(float), n);
        for (size_t r = 0; r < n; r++) {
            tq_rotated_row got;
            if (!tq_row_rotate(&got, x + r * dim, dim)) {
                assert_int_equal(r, 2);
                continue;
            }
            same_rows(name, got.y, want.p + r * dim * sizeof(float), dim);
            assert_true(got.norm == norm[r]);
        }
        test_free(norm);
        test_free(x);
        test_free(want.p);
        test_free(rows.p);
    }
}

/* ---- The fork's own vectors ---- */

static const struct {
    tq_format format;
    size_t block_bytes;
} forks[] = {{TQ_FMT_FORK2, 34}, {TQ_FMT_FORK3, 50}, {TQ_FMT_FORK4, 68}};

static void fork_goldens(void **state)
{
    bytes f = read_file("norm-codebook", "turbo_c_goldens.bin");
    const uint32_t n = word(f.p + 8);
    const uint8_t *p = f.p + 32;

    (void)state;
    for (uint32_t r = 0; r < n; r++) {
        float *x = floats(p + 4, 128);
        p += 4 + 2 * 512; /* kind of row, input, rotated */
        for (size_t i = 0; i < COUNT(forks); i++) {
            tq_codec c;
            float out[128];
            char name[32];
            snprintf(name, sizeof name, "fork row %u", r);
            assert_int_equal(tq_codec_init(&c, forks[i].format, 128, 0, TQ_ISA_ALL), TQ_OK);
            assert_int_equal(c.block_bytes, forks[i].block_bytes);
            check_encode(name, &c, x, 1, p);
            /* The file's decoded rows are first rotated, which is checked through the inverse, and
             * then in the original domain, which the fork computes in its graph: to a tolerance. */
            assert_int_equal(tq_codec_decode(&c, out, 128, p, c.block_bytes, 1), TQ_OK);
            p += c.block_bytes;
            float *want = floats(p + 512, 128);
            double top = 0;
            for (int j = 0; j < 128; j++)
                top = fmax(top, fabs((double)want[j]));
            for (int j = 0; j < 128; j++)
                if (top < 1e30 && isfinite(want[j]) &&
                    !(fabs((double)(out[j] - want[j])) <= 1e-5 * top))
                    fail_msg("%s: element %d is %a, not %a", name, j, (double)out[j],
                             (double)want[j]);
            test_free(want);
            p += 1024;
        }
        test_free(x);
    }
    assert_true(n > 100);
    assert_int_equal(p - f.p, f.n);
    test_free(f.p);
}

/* A head longer than a block is several blocks. */
static void fork_multiblock(void **state)
{
    bytes f = read_file("norm-codebook", "turbo_c_multiblock.bin");
    const uint8_t *p = f.p + 32;

    (void)state;
    for (int item = 0; item < 2; item++) {
        const uint32_t dim = word(p);
        float *x = floats(p + 4, dim);
        p += 4 + 4 * (size_t)dim;
        for (size_t i = 0; i < COUNT(forks); i++) {
            tq_codec c;
            assert_int_equal(tq_codec_init(&c, forks[i].format, dim, 0, TQ_ISA_ALL), TQ_OK);
            check_encode("fork multi-block", &c, x, 1, p);
            p += c.block_bytes + 4 * (size_t)dim;
        }
        test_free(x);
    }
    assert_int_equal(p - f.p, f.n);
    test_free(f.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_blocks), cmocka_unit_test(every_format_has_goldens),
        cmocka_unit_test(damaged_files), cmocka_unit_test(rotated_rows),
        cmocka_unit_test(fork_goldens),  cmocka_unit_test(fork_multiblock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
