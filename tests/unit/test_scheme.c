/* SPDX-License-Identifier: MIT */
/* test_scheme.c — the grammar of scheme strings: what is accepted, what is refused and how, the
 * canonical text, and what a scheme costs. */
#include "support.h"

static const struct {
    const char *text;
    const char *canonical;
} accepted[] = {
    {"f32", "f32"},
    {"f16", "f16"},
    {"bf16", "bf16"},
    {"turbo", "turbo:k8v3"},
    {"turbo:k8v3", "turbo:k8v3"},
    {"turbo:k2v5", "turbo:k2v5"},
    {"turbo:k4v2,attn=dequant", "turbo:k4v2,attn=dequant"},
    {"turbo:k4v2,attn=fused", "turbo:k4v2"},
    {"turbo,attn=fused", "turbo:k8v3"},
    {"turbo,attn=dequant", "turbo:k8v3,attn=dequant"},
    {"f16,attn=dequant", "f16,attn=dequant"},
    {"f32,attn=fused", "f32"},
};

/* With a piece of the message: the offending part, or what is valid. */
static const struct {
    const char *text;
    const char *message;
} refused[] = {
    {"", "\"\" is unknown; valid: f32, f16, bf16, turbo[:kKvV]"},
    {" ", "\" \""},
    {"f", "\"f\""},
    {"f64", "\"f64\" is unknown"},
    {"f16 ", "\"f16 \""},
    {" f16", "\" f16\""},
    {"F16", "\"F16\""},
    {"f16\n", "\"f16?\""},
    {"f16x", "\"f16x\""},
    {"f16:", "\"f16:\""},
    {"f16:k8v3", "\"f16:k8v3\""},
    {"fp16", "\"fp16\""},
    {"turbo+4", "\"turbo+4\""},
    {"turbo0", "\"turbo0\""},
    {"turbo4", "\"turbo4\""},
    {"turbo16", "\"turbo16\""},
    {"turbo4v2-compact", "\"turbo4v2-compact\""},
    {"turbo-4", "\"turbo-4\""},
    {"TURBO", "\"TURBO\""},
    {"turbo:", "\"\" are not of the form kKvV"},
    {"turbo:k", "\"k\""},
    {"turbo:k8", "\"k8\""},
    {"turbo:v3", "\"v3\""},
    {"turbo:k8v", "\"k8v\""},
    {"turbo:k8v3 ", "\"k8v3 \""},
    {"turbo: k8v3", "\" k8v3\""},
    {"turbo:K8V3", "\"K8V3\""},
    {"turbo:k08v3", "\"k08v3\""},
    {"turbo:k8v03", "\"k8v03\""},
    {"turbo:k+8v3", "\"k+8v3\""},
    {"turbo:k-8v3", "\"k-8v3\""},
    {"turbo:k8v3v3", "\"k8v3v3\""},
    {"turbo:v3k8", "\"v3k8\""},
    {"turbo:k8v3:k8v3", "\"k8v3:k8v3\""},
    {"turbo::k8v3", "\":k8v3\""},
    {"turbo:k3v3", "key bits \"3\" are not one of 2 4 5 8"},
    {"turbo:k6v3", "key bits \"6\""},
    {"turbo:k0v3", "key bits \"0\""},
    {"turbo:k1v3", "key bits \"1\""},
    {"turbo:k9v3", "key bits \"9\""},
    {"turbo:k8v1", "value bits \"1\" are not one of 2 3 4 5 8"},
    {"turbo:k8v6", "value bits \"6\""},
    {"turbo:k8v0", "value bits \"0\""},
    {"turbo:k16v3", "\"k16v3\""},
    {"turbo:kxv3", "key bits \"x\""},
    {"turbo,", "option \"\" is unknown; valid: attn=fused, attn=dequant"},
    {"turbo:k8v3,", "option \"\""},
    {"turbo:k8v3,,attn=fused", "option \"\""},
    {",attn=fused", "base \"\""},
    {",", "base \"\""},
    {"turbo:k8v3,attn", "option \"attn\""},
    {"turbo:k8v3,attn=", "option \"attn=\""},
    {"turbo:k8v3,=fused", "option \"=fused\""},
    {"turbo:k8v3,attn=Fused", "option \"attn=Fused\""},
    {"turbo:k8v3,attn=fused ", "option \"attn=fused \""},
    {"turbo:k8v3, attn=fused", "option \" attn=fused\""},
    {"turbo:k8v3,attn==fused", "option \"attn==fused\""},
    {"turbo:k8v3,attn=fusedx", "option \"attn=fusedx\""},
    {"turbo:k8v3,attn=fused,attn=fused", "option \"attn=fused\" is given twice"},
    {"turbo:k8v3,attn=fused,attn=dequant", "option \"attn=dequant\" is given twice"},
    {"turbo:k8v3,skip=2", "option \"skip=2\""},
    {"turbo:k8v3,fused", "option \"fused\""},
    {"turbo:k8v3;attn=fused", "\"k8v3;attn=fused\""},
    {"q8_0", "\"q8_0\""},
    {"f16,turbo", "option \"turbo\""},
    {"\xff\xfe", "\"\?\?\""},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void accepted_strings(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(accepted); i++) {
        tq_scheme s, again;
        char err[128] = "untouched";
        char text[TQ_SCHEME_TEXT_BYTES], text2[TQ_SCHEME_TEXT_BYTES];

        if (tq_scheme_parse(&s, accepted[i].text, err, sizeof err) != TQ_OK)
            fail_msg("\"%s\" is refused: %s", accepted[i].text, err);
        assert_string_equal(err, "");
        assert_int_equal(tq_scheme_format(&s, text, sizeof text), TQ_OK);
        assert_string_equal(text, accepted[i].canonical);
        assert_int_equal(tq_scheme_parse(&again, text, NULL, 0), TQ_OK);
        assert_int_equal(tq_scheme_format(&again, text2, sizeof text2), TQ_OK);
        assert_string_equal(text, text2);
        assert_int_equal(s.family, again.family);
        assert_int_equal(s.k_bits, again.k_bits);
        assert_int_equal(s.v_bits, again.v_bits);
        assert_int_equal(s.attn, again.attn);
    }
}

static void refused_strings(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++) {
        tq_scheme s, before;
        char err[256];

        memset(&s, 0x5a, sizeof s);
        before = s;
        if (tq_scheme_parse(&s, refused[i].text, err, sizeof err) != TQ_ERR_SCHEME)
            fail_msg("\"%s\" is accepted", refused[i].text);
        if (!strstr(err, refused[i].message))
            fail_msg("\"%s\": message \"%s\" lacks \"%s\"", refused[i].text, err,
                     refused[i].message);
        assert_memory_equal(&s, &before, sizeof s);
    }
}

/* Every K and V, accepted or refused as the sets say. */
static void full_matrix(void **state)
{
    (void)state;
    for (int k = 0; k <= 9; k++) {
        for (int v = 0; v <= 9; v++) {
            int valid = strchr("2458", '0' + k) && strchr("23458", '0' + v);
            char text[32], canonical[TQ_SCHEME_TEXT_BYTES];
            tq_scheme s;

            snprintf(text, sizeof text, "turbo:k%dv%d", k, v);
            assert_int_equal(tq_scheme_parse(&s, text, NULL, 0), valid ? TQ_OK : TQ_ERR_SCHEME);
            if (!valid)
                continue;
            assert_int_equal(s.family, TQ_FAMILY_AFFINE_LLOYD);
            assert_int_equal(s.k_bits, k);
            assert_int_equal(s.v_bits, v);
            assert_int_equal(tq_scheme_format(&s, canonical, sizeof canonical), TQ_OK);
            assert_string_equal(canonical, text);

            for (uint32_t d = 64; d <= 512; d *= 2) {
                tq_format kf, vf;
                tq_codec kc, vc;
                size_t bytes = 0;
                assert_int_equal(tq_scheme_bytes_per_token(&s, d, d, &bytes), TQ_OK);
                /* D * (K + V + 1.5) / 8 */
                assert_int_equal(bytes, d * (uint32_t)(2 * k + 2 * v + 3) / 16);
                assert_int_equal(tq_scheme_format_of(&s, 0, &kf), TQ_OK);
                assert_int_equal(tq_scheme_format_of(&s, 1, &vf), TQ_OK);
                assert_int_equal(tq_codec_init(&kc, kf, d, 0, TQ_ISA_ALL), TQ_OK);
                assert_int_equal(tq_codec_init(&vc, vf, d, 0, TQ_ISA_ALL), TQ_OK);
                assert_int_equal(kc.bits, k);
                assert_int_equal(vc.bits, v);
                assert_int_equal(vc.rotated, 1);
                assert_int_equal(kc.rotated, 0);
                assert_int_equal(kc.block_bytes + vc.block_bytes, bytes);
            }
        }
    }
}

/* The table of the format description. */
static void bytes_of_known_schemes(void **state)
{
    static const struct {
        const char *scheme;
        uint32_t dim;
        size_t bytes;
    } known[] = {{"turbo:k8v3", 64, 100},  {"turbo:k8v3", 128, 200}, {"turbo:k8v3", 512, 800},
                 {"turbo:k4v3", 128, 136}, {"turbo:k4v2", 256, 240}, {"turbo:k8v4", 64, 108},
                 {"turbo:k2v5", 128, 136}, {"turbo:k5v8", 512, 928}, {"turbo:k8v8", 128, 280},
                 {"turbo:k8v2", 256, 368}, {"f16", 128, 512},        {"bf16", 80, 320},
                 {"f32", 64, 512}};

    (void)state;
    for (size_t i = 0; i < COUNT(known); i++) {
        tq_scheme s;
        size_t bytes = 0;
        assert_int_equal(tq_scheme_parse(&s, known[i].scheme, NULL, 0), TQ_OK);
        assert_int_equal(tq_scheme_bytes_per_token(&s, known[i].dim, known[i].dim, &bytes), TQ_OK);
        assert_int_equal(bytes, known[i].bytes);
    }
}

static void unequal_and_bad_dims(void **state)
{
    tq_scheme turbo, f16;
    size_t bytes = 77;

    (void)state;
    assert_int_equal(tq_scheme_parse(&turbo, "turbo", NULL, 0), TQ_OK);
    assert_int_equal(tq_scheme_parse(&f16, "f16", NULL, 0), TQ_OK);
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 128, 64, &bytes), TQ_OK);
    assert_int_equal(bytes, 128 + 16 + 24 + 4);
    assert_int_equal(tq_scheme_bytes_per_token(&f16, 192, 128, &bytes), TQ_OK);
    assert_int_equal(bytes, 640);
    bytes = 77;
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 80, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 64, 96, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 0, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 1024, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&f16, 12, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&f16, 8, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&f16, 64, 1032, &bytes), TQ_ERR_DIM);
    assert_int_equal(bytes, 77);
}

/* A text of any length, a message buffer of any length. */
static void long_text_and_short_buffers(void **state)
{
    enum { N = 100000 };
    char *text = test_malloc(N + 1);
    tq_scheme s;
    char full[512];

    (void)state;
    memset(text, 'a', N);
    text[N] = '\0';
    assert_int_equal(tq_scheme_parse(&s, text, full, sizeof full), TQ_ERR_SCHEME);
    assert_non_null(strstr(full, "aaaa...\" is unknown; valid:"));
    memcpy(text, "turbo,", 6);
    assert_int_equal(tq_scheme_parse(&s, text, full, sizeof full), TQ_ERR_SCHEME);
    memcpy(text, "turbo:", 6);
    assert_int_equal(tq_scheme_parse(&s, text, full, sizeof full), TQ_ERR_SCHEME);
    memset(text + 5, ',', N - 5);
    assert_int_equal(tq_scheme_parse(&s, text, full, sizeof full), TQ_ERR_SCHEME);
    test_free(text);

    assert_int_equal(tq_scheme_parse(&s, "turbo:k3v3", full, sizeof full), TQ_ERR_SCHEME);
    for (size_t n = 0; n <= strlen(full) + 1; n++) {
        char *err = test_malloc(n + 1);
        err[n] = 'Z';
        assert_int_equal(tq_scheme_parse(&s, "turbo:k3v3", err, n), TQ_ERR_SCHEME);
        assert_int_equal(err[n], 'Z');
        if (n) {
            assert_int_equal(strlen(err), n - 1 < strlen(full) ? n - 1 : strlen(full));
            assert_memory_equal(err, full, strlen(err));
        }
        test_free(err);
    }
    assert_int_equal(tq_scheme_parse(&s, "nope", NULL, 0), TQ_ERR_SCHEME);
}

static void wrong_arguments(void **state)
{
    tq_scheme s;
    char text[TQ_SCHEME_TEXT_BYTES];
    tq_format f;
    size_t bytes;

    (void)state;
    assert_int_equal(tq_scheme_parse(NULL, "f16", NULL, 0), TQ_ERR_ARG);
    assert_int_equal(tq_scheme_parse(&s, NULL, NULL, 0), TQ_ERR_ARG);
    assert_int_equal(tq_scheme_parse(&s, "turbo:k4v2,attn=dequant", NULL, 0), TQ_OK);
    assert_int_equal(tq_scheme_format(&s, text, strlen("turbo:k4v2,attn=dequant")), TQ_ERR_SIZE);
    assert_int_equal(tq_scheme_format(&s, text, strlen("turbo:k4v2,attn=dequant") + 1), TQ_OK);
    assert_int_equal(tq_scheme_format(&s, text, 0), TQ_ERR_SIZE);
    assert_int_equal(tq_scheme_format(&s, NULL, 10), TQ_ERR_ARG);
    assert_int_equal(tq_scheme_format(NULL, text, sizeof text), TQ_ERR_ARG);
    assert_int_equal(tq_scheme_format_of(&s, 0, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_scheme_format_of(NULL, 0, &f), TQ_ERR_ARG);
    assert_int_equal(tq_scheme_bytes_per_token(&s, 64, 64, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_scheme_bytes_per_token(NULL, 64, 64, &bytes), TQ_ERR_ARG);

    /* Schemes that no text gives. */
    const tq_scheme impossible[] = {
        {.family = TQ_FAMILY_AFFINE_LLOYD, .k_bits = 3, .v_bits = 3},
        {.family = TQ_FAMILY_AFFINE_LLOYD, .k_bits = 8, .v_bits = 0},
        {.family = TQ_FAMILY_AFFINE_LLOYD, .k_bits = 8, .v_bits = 255},
        {.family = TQ_FAMILY_F16, .k_bits = 8, .v_bits = 16},
        {.family = TQ_FAMILY_F32, .k_bits = 16, .v_bits = 16},
        {.family = (tq_family)99, .k_bits = 8, .v_bits = 3},
        {.family = TQ_FAMILY_AFFINE_LLOYD, .k_bits = 8, .v_bits = 3, .attn = (tq_attn_mode)2},
    };
    for (size_t i = 0; i < COUNT(impossible); i++)
        assert_int_equal(tq_scheme_format(&impossible[i], text, sizeof text), TQ_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_strings),     cmocka_unit_test(refused_strings),
        cmocka_unit_test(full_matrix),          cmocka_unit_test(bytes_of_known_schemes),
        cmocka_unit_test(unequal_and_bad_dims), cmocka_unit_test(long_text_and_short_buffers),
        cmocka_unit_test(wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
