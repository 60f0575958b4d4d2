/* SPDX-License-Identifier: MIT */
/* test_golden_blocks.c — the formats of our own, the baselines and the fork's blocks against golden
 * files: tests/golden/blocks-v1 (made by the executable specification) and
 * tests/golden/norm-codebook (made by the fork). Every file, every ISA of this machine, in bulk
 * and one row at a time, encode and decode, with hostile blocks. */
#include "support.h"

#include "cpu/scalar_rotated.h"

#include <dirent.h>

static const uint32_t isa_masks[] = {TQ_ISA_SCALAR, TQ_ISA_ALL};

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

static uint32_t effort_flag(uint32_t effort, tq_format format)
{
    if (format < TQ_FMT_NORM2 || format > TQ_FMT_TCQ6)
        return 0;
    return effort == 1 ? TQ_CODEC_EFFORT_1 : effort == 3 ? TQ_CODEC_EFFORT_3 : TQ_CODEC_EFFORT_12;
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
    char rows_name[32];

    assert_true(f.n >= 64 && memcmp(f.p, "TQGB", 4) == 0);
    assert_int_equal(word(f.p + 4), TQ_FORMAT_VERSION);
    const tq_format format = (tq_format)word(f.p + 8);
    const uint32_t dim = word(f.p + 12), n = word(f.p + 16), block = word(f.p + 20);
    const uint32_t n_efforts = word(f.p + 24), hostile = word(f.p + 40);
    const uint32_t mean = word(f.p + 44) ? TQ_CODEC_MEAN : 0;
    snprintf(rows_name, sizeof rows_name, "rows_d%u.bin", dim);
    bytes rows = read_file("blocks-v1", rows_name);
    assert_int_equal(rows.n, (size_t)n * dim * sizeof(float));
    float *x = floats(rows.p, (size_t)n * dim);

    const uint8_t *p = f.p + 64;
    tq_codec c;
    for (uint32_t e = 0; e < n_efforts; e++) {
        const uint32_t flags = mean | effort_flag(word(f.p + 28 + 4 * e), format);
        tq_status st = tq_codec_init(&c, format, dim, flags, isa_mask);
        if (st != TQ_OK)
            fail_msg("%s: tq_codec_init gives %s", name, tq_status_name(st));
        assert_int_equal(c.block_bytes, block);
        check_encode(name, &c, x, n, p + (size_t)e * n * block);
    }
    const uint8_t *decoded = p + (size_t)n_efforts * n * block;
    check_decode(name, &c, p, n, decoded);
    p = decoded + (size_t)n * dim * sizeof(float);
    check_decode(name, &c, p, hostile, p + (size_t)hostile * block);
    assert_int_equal((size_t)(p - f.p) + (size_t)hostile * (block + dim * sizeof(float)), f.n);
    test_free(x);
    test_free(rows.p);
    test_free(f.p);
}

static void golden_blocks(void **state)
{
    unsigned n_files = 0;
    DIR *dir = opendir(TQ_TEST_DIR "/golden/blocks-v1");

    (void)state;
    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        size_t len = strlen(e->d_name);
        if (len < 4 || strcmp(e->d_name + len - 4, ".bin") != 0 ||
            strncmp(e->d_name, "rows_", 5) == 0 || strncmp(e->d_name, "rotated_", 8) == 0)
            continue;
        for (size_t i = 0; i < COUNT(isa_masks); i++)
            check_file(e->d_name, isa_masks[i]);
        n_files++;
    }
    closedir(dir);
    print_message("%u golden files\n", n_files);
    /* 6 + 5 formats at 8 dimensions, and with a mean at 2; 2 + 4 + 4 at 2, and 4 + 5 (test_golden.c
     * has their others). */
    assert_int_equal(n_files, 11 * 8 + 11 * 2 + 10 * 2 + 9 * 2);
}

/* The floating-point part of the encoder by itself: rotated rows and their norms. */
static void rotated_rows(void **state)
{
    static const uint32_t dims[] = {64, 80, 96, 128, 192, 256, 512, 576};

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
        cmocka_unit_test(golden_blocks),
        cmocka_unit_test(rotated_rows),
        cmocka_unit_test(fork_goldens),
        cmocka_unit_test(fork_multiblock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
