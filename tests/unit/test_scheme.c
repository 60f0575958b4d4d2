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
    {"turbo2", "turbo2"},
    {"turbo4", "turbo4"},
    {"turbo4v4", "turbo4"},
    {"turbo4v2", "turbo4v2"},
    {"turbo0v3", "turbo0v3"},
    {"turbo8v6", "turbo8v6"},
    {"turbo4v2-compact", "turbo4v2"},
    {"tcq3", "tcq3"},
    {"tcq4v3", "tcq4v3"},
    {"tcq6v6", "tcq6"},
    {"affine8", "affine8"},
    {"affine8g64", "affine8"},
    {"affine4g32", "affine4g32"},
    {"affine4g128", "affine4g128"},
    {"mse1", "mse1"},
    {"prod4", "prod4"},
    {"turbo4,mean", "turbo4,mean"},
    {"tcq4v3,mean,attn=dequant", "tcq4v3,mean,attn=dequant"},
    {"turbo0v4,mean", "turbo0v4,mean"},
    {"turbo:k8v3,skip=2", "turbo:k8v3,skip=2"},
    {"turbo4,tail=64,sink=4", "turbo4,sink=4,tail=64"},
    {"tcq4,tail=64,skip=0,sink=0,start=0", "tcq4,tail=64"},
    {"turbo4,start=1073741824", "turbo4,start=1073741824"},
    {"affine8,kmean=a/b c.bin", "affine8,kmean=a/b c.bin"},
    {"f16,layers=tuned.txt", "f16,layers=tuned.txt"},
    {"tcq4,attn=dequant,layers=l,start=5,tail=4,sink=3,skip=2,kmean=k=v,mean",
     "tcq4,mean,kmean=k=v,skip=2,sink=3,tail=4,start=5,layers=l,attn=dequant"},
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
    {"turbo0", "scheme: bits \"0\" are not one of 2 3 4 5 6 8"},
    {"turbo16", "\"turbo16\" is not of the form turboB or turboKvV"},
    {"turbo0v", "\"turbo0v\""},
    {"turbo0v0", "value bits \"0\" are not one of 2 3 4 5 6 8"},
    {"turbo1", "scheme: bits \"1\" are not one of 2 3 4 5 6 8"},
    {"turbo1v4", "key bits \"1\" are not one of 0 2 3 4 5 6 8"},
    {"turbo7", "scheme: bits \"7\""},
    {"turbo9", "scheme: bits \"9\""},
    {"turbo4v1", "value bits \"1\""},
    {"turbo4v7", "value bits \"7\""},
    {"turbo4v16", "\"turbo4v16\""},
    {"turbo04", "\"turbo04\""},
    {"turbo4v02", "\"turbo4v02\""},
    {"turbo4v2v2", "\"turbo4v2v2\""},
    {"turbo4V2", "\"turbo4V2\""},
    {"turbo4k2", "\"turbo4k2\""},
    {"turbov4", "\"turbov4\" is unknown"},
    {"turbo4v", "\"turbo4v\""},
    {"turbo3.5", "\"turbo3.5\""},
    {"turbo4-compact", "\"turbo4-compact\""},
    {"turbo4v3-compact", "\"turbo4v3-compact\""},
    {"turbo4v2-compact2", "\"turbo4v2-compact2\""},
    {"turbo4v2-compact,attn=dequant", "option \"attn=dequant\" is given twice"},
    {"turbo4:k8v3", "\"turbo4:k8v3\""},
    {"tcq", "\"tcq\" is unknown"},
    {"tcq1", "scheme: bits \"1\" are not one of 2 3 4 5 6"},
    {"tcq8", "scheme: bits \"8\""},
    {"tcq0v4", "key bits \"0\""},
    {"tcq4v8", "value bits \"8\""},
    {"affine", "\"affine\" is unknown"},
    {"affine2", "bits \"2\""},
    {"affine8v4", "\"affine8v4\""},
    {"affine8g", "\"affine8g\""},
    {"affine8g0", "\"affine8g0\""},
    {"affine8g16", "\"affine8g16\" is not of the form affine8[gN] or affine4[gN] with N in 32"},
    {"affine8g064", "\"affine8g064\""},
    {"affine8g32x", "\"affine8g32x\""},
    {"mse0", "bits \"0\""},
    {"mse5", "bits \"5\""},
    {"mse4v2", "\"mse4v2\""},
    {"prod0", "bits \"0\""},
    {"prod8", "bits \"8\""},
    {"prod", "\"prod\" is unknown"},
    {"fork4", "\"fork4\" is unknown"},
    {"turbo4,mean=1", "option \"mean=1\""},
    {"turbo4,mean,mean", "option \"mean\" is given twice"},
    {"turbo:k8v3,mean", "option \"mean\" does not apply to base \"turbo:k8v3\""},
    {"affine8,mean", "option \"mean\" does not apply"},
    {"mse4,mean", "option \"mean\" does not apply"},
    {"f16,tail=4", "option \"tail=4\" does not apply to base \"f16\""},
    {"f32,kmean=x", "option \"kmean=x\" does not apply"},
    {"turbo4,skip", "option \"skip\""},
    {"turbo4,skip=", "option \"skip=\" has no valid value; valid: skip=N with N in 0..512"},
    {"turbo4,skip=513", "option \"skip=513\""},
    {"turbo4,sink=-1", "option \"sink=-1\""},
    {"turbo4,sink=+1", "option \"sink=+1\""},
    {"turbo4,sink=01", "option \"sink=01\""},
    {"turbo4,sink= 1", "option \"sink= 1\""},
    {"turbo4,sink=1x", "option \"sink=1x\""},
    {"turbo4,tail=1073741825", "0..1073741824"},
    {"turbo4,tail=99999999999999999999", "option \"tail=99999999999999999999\""},
    {"turbo4,tail=4294967297", "option \"tail=4294967297\""},
    {"turbo4,tail=1e3", "option \"tail=1e3\""},
    {"turbo4,tail=0x10", "option \"tail=0x10\""},
    {"turbo4,tail=1,tail=1", "given twice"},
    {"turbo4,kmean=", "option \"kmean=\" has no valid value"},
    {"turbo4,kmean=a\nb", "has no valid value"},
    {"turbo4,kmean=" /* 96 bytes */
     "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
     "nnn",
     "valid: kmean=FILE with a name of 1 to 95 bytes without control characters"},
    {"turbo4,layers", "option \"layers\""},
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
    {"turbo,", "option \"\" is unknown; valid: mean, kmean=FILE, skip=N, "
               "sink=N, tail=N, start=N, layers=FILE, attn=fused, attn=dequant"},
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
        assert_memory_equal(&s, &again, sizeof s);
    }
}

/* PITFALL 14. */
static void refused_strings(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(refused); i++) {
        tq_scheme s, before;
        char err[TQ_SCHEME_ERROR_BYTES + 64];

        memset(&s, 0x5a, sizeof s);
        before = s;
        if (tq_scheme_parse(&s, refused[i].text, err, sizeof err) != TQ_ERR_SCHEME)
            fail_msg("\"%s\" is accepted", refused[i].text);
        if (!strstr(err, refused[i].message))
            fail_msg("\"%s\": message \"%s\" lacks \"%s\"", refused[i].text, err,
                     refused[i].message);
        assert_in_range(strlen(err), 1, TQ_SCHEME_ERROR_BYTES - 1);
        assert_memory_equal(&s, &before, sizeof s);
    }
}

/* PITFALL 10: every K and V, accepted or refused as the sets say. */
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

/* PITFALL 11: the table of the format description. */
static void bytes_of_known_schemes(void **state)
{
    static const struct {
        const char *scheme;
        uint32_t dim;
        size_t bytes;
    } known[] = {{"turbo:k8v3", 64, 100},     {"turbo:k8v3", 128, 200}, {"turbo:k8v3", 512, 800},
                 {"turbo:k4v3", 128, 136},    {"turbo:k4v2", 256, 240}, {"turbo:k8v4", 64, 108},
                 {"turbo:k2v5", 128, 136},    {"turbo:k5v8", 512, 928}, {"turbo:k8v8", 128, 280},
                 {"turbo:k8v2", 256, 368},    {"turbo:k8v3", 192, 300}, {"turbo:k8v3", 80, 128},
                 {"turbo:k5v2", 24, 27},      {"turbo:k2v8", 576, 828}, {"f16", 128, 512},
                 {"bf16", 80, 320},           {"f32", 64, 512},         {"turbo4", 128, 132},
                 {"turbo3", 128, 100},        {"turbo4v2", 80, 64},     {"turbo0v3", 96, 230},
                 {"turbo6", 576, 868},        {"turbo8", 24, 52},       {"turbo4,mean", 128, 136},
                 {"turbo0v4,mean", 128, 324}, {"tcq4", 128, 132},       {"tcq4v3", 80, 74},
                 {"tcq2", 1024, 516},         {"affine8", 128, 272},    {"affine4", 80, 96},
                 {"affine4g32", 128, 160},    {"affine8g128", 80, 168}, {"mse1", 128, 36},
                 {"prod1", 128, 36},          {"prod4", 128, 136}};

    (void)state;
    for (size_t i = 0; i < COUNT(known); i++) {
        tq_scheme s;
        size_t bytes = 0;
        assert_int_equal(tq_scheme_parse(&s, known[i].scheme, NULL, 0), TQ_OK);
        assert_int_equal(tq_scheme_bytes_per_token(&s, known[i].dim, known[i].dim, &bytes), TQ_OK);
        assert_int_equal(bytes, known[i].bytes);
    }
}

/* Every base of the form B or KvV, accepted or refused as the sets say. */
static void pair_matrix(void **state)
{
    static const struct {
        const char *name, *k, *v;
        tq_family family;
    } pairs[] = {{"turbo", "0234568", "234568", TQ_FAMILY_NORM},
                 {"tcq", "23456", "23456", TQ_FAMILY_TRELLIS}};

    (void)state;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        for (int k = 0; k <= 9; k++) {
            for (int v = 0; v <= 9; v++) {
                int valid = strchr(pairs[i].k, '0' + k) && strchr(pairs[i].v, '0' + v);
                char text[32];
                tq_scheme s;
                tq_codec kc, vc;

                snprintf(text, sizeof text, "%s%dv%d", pairs[i].name, k, v);
                assert_int_equal(tq_scheme_parse(&s, text, NULL, 0), valid ? TQ_OK : TQ_ERR_SCHEME);
                if (!valid)
                    continue;
                assert_int_equal(s.family, pairs[i].family);
                assert_int_equal(tq_scheme_codec(&s, 0, 80, TQ_ISA_ALL, &kc), TQ_OK);
                assert_int_equal(tq_scheme_codec(&s, 1, 80, TQ_ISA_ALL, &vc), TQ_OK);
                assert_int_equal(kc.bits, k ? k : 16);
                assert_int_equal(vc.bits, v);
                assert_int_equal(vc.block_bytes, 10 * v + 2);
                assert_int_equal(kc.block_bytes, k ? 10 * k + 2 : 160);
            }
        }
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
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 84, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 64, 88, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 0, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&turbo, 1032, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&f16, 12, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&f16, 8, 64, &bytes), TQ_ERR_DIM);
    assert_int_equal(tq_scheme_bytes_per_token(&f16, 64, 1032, &bytes), TQ_ERR_DIM);
    assert_int_equal(bytes, 77);

    /* Rotations: multiples of 8 whose odd part has a small Hadamard factor. */
    tq_scheme norm;
    static const char *const rotated[] = {"turbo4", "tcq3", "mse2", "prod2"};
    for (size_t i = 0; i < COUNT(rotated); i++) {
        unsigned n = 0;
        assert_int_equal(tq_scheme_parse(&norm, rotated[i], NULL, 0), TQ_OK);
        for (uint32_t d = 0; d <= 1100; d++) {
            uint32_t odd = d ? d : 11;
            while (odd % 2 == 0)
                odd /= 2;
            int valid = d % 8 == 0 && d >= 16 && d <= 1024 &&
                        (odd == 1 || (odd < 10 && d % (4 * odd) == 0));
            assert_int_equal(tq_scheme_bytes_per_token(&norm, d, 64, &bytes),
                             valid ? TQ_OK : TQ_ERR_DIM);
            n += (unsigned)valid;
        }
        assert_int_equal(n, 27);
    }
}

/* A text of any length, a message buffer of any length. */
static void long_text_and_short_buffers(void **state)
{
    enum { N = 100000 };
    char *text = test_malloc(N + 1);
    tq_scheme s;
    char full[2 * TQ_SCHEME_ERROR_BYTES];

    (void)state;
    memset(text, 'a', N);
    text[N] = '\0';
    assert_int_equal(tq_scheme_parse(&s, text, full, sizeof full), TQ_ERR_SCHEME);
    assert_non_null(strstr(full, "aaaa...\" is unknown; valid:"));
    assert_in_range(strlen(full), 1, TQ_SCHEME_ERROR_BYTES - 1); /* the longest list */
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
        {.family = TQ_FAMILY_AFFINE_LLOYD, .k_bits = 8, .v_bits = 3, .mean = 1},
        {.family = TQ_FAMILY_NORM, .k_bits = 1, .v_bits = 4},
        {.family = TQ_FAMILY_NORM, .k_bits = 4, .v_bits = 0},
        {.family = TQ_FAMILY_NORM, .k_bits = 4, .v_bits = 4, .group = 64},
        {.family = TQ_FAMILY_NORM, .k_bits = 4, .v_bits = 4, .mean = 2},
        {.family = TQ_FAMILY_NORM, .k_bits = 4, .v_bits = 4, .skip = 513},
        {.family = TQ_FAMILY_NORM, .k_bits = 4, .v_bits = 4, .kmean = "a,b"},
        {.family = TQ_FAMILY_NORM, .k_bits = 4, .v_bits = 4, .kmean = "a\nb"},
        {.family = TQ_FAMILY_NORM, .k_bits = 4, .v_bits = 4, .kmean = "\x7f"},
        {.family = TQ_FAMILY_F16, .k_bits = 16, .v_bits = 16, .layers = "a\tb"},
        {.family = TQ_FAMILY_F16, .k_bits = 16, .v_bits = 16, .layers = "x,tail=4"},
        {.family = TQ_FAMILY_TRELLIS, .k_bits = 8, .v_bits = 4},
        {.family = TQ_FAMILY_UNIFORM, .k_bits = 8, .v_bits = 8},
        {.family = TQ_FAMILY_UNIFORM, .k_bits = 8, .v_bits = 4, .group = 64},
        {.family = TQ_FAMILY_MSE, .k_bits = 2, .v_bits = 3},
        {.family = TQ_FAMILY_F16, .k_bits = 16, .v_bits = 16, .tail = 1},
    };
    for (size_t i = 0; i < COUNT(impossible); i++)
        assert_int_equal(tq_scheme_format(&impossible[i], text, sizeof text), TQ_ERR_ARG);

    /* A name that a caller puts into a parsed scheme: by the rule of the parser, byte by byte. */
    for (int field = 0; field < 2; field++) {
        for (int ch = 1; ch < 256; ch++) {
            char spelt[TQ_SCHEME_TEXT_BYTES];
            tq_scheme again;
            assert_int_equal(tq_scheme_parse(&s, "turbo4", NULL, 0), TQ_OK);
            char *file = field ? s.layers : s.kmean;
            memcpy(file, "a?b", 4);
            file[1] = (char)ch;
            snprintf(spelt, sizeof spelt, "turbo4,%s=%s", field ? "layers" : "kmean", file);
            tq_status read = tq_scheme_parse(&again, spelt, NULL, 0);
            assert_int_equal(tq_scheme_format(&s, text, sizeof text),
                             read == TQ_OK ? TQ_OK : TQ_ERR_ARG);
            assert_int_equal(read == TQ_OK, ch >= 0x20 && ch != 0x7f && ch != ',');
        }
        assert_int_equal(tq_scheme_parse(&s, "turbo4", NULL, 0), TQ_OK);
        memset(field ? s.layers : s.kmean, 'n', TQ_SCHEME_FILE_BYTES); /* no terminator */
        assert_int_equal(tq_scheme_format(&s, text, sizeof text), TQ_ERR_ARG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_strings),     cmocka_unit_test(refused_strings),
        cmocka_unit_test(full_matrix),          cmocka_unit_test(bytes_of_known_schemes),
        cmocka_unit_test(unequal_and_bad_dims), cmocka_unit_test(long_text_and_short_buffers),
        cmocka_unit_test(wrong_arguments),      cmocka_unit_test(pair_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
