/* SPDX-License-Identifier: MIT */
/* test_scheme_files.c — layers=FILE and kmean=FILE: what the readers take and refuse, and that a
 * session computes with exactly that. Stored state of such schemes is test_scheme_stored.c's. */
#include "state_support.h"

enum { N_CTX = 160, N_LAYERS = 4, N_HEADS = 2, DIM = 8 };

static tqe_model *tiny, *bundled;
static char *kmean, *layers;

static int setup(void **state)
{
    (void)state;
    tiny = state_tiny(0, 0);
    bundled = state_model(TQ_MODELS_DIR "/tiny-qwen3-28m.q8_0.gguf");
    kmean = state_path("k");
    layers = state_path("l");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(tiny);
    tqe_model_free(bundled);
    free(kmean);
    free(layers);
    return 0;
}

static const char *scheme_text(const char *fmt, ...)
{
    static char text[4][TQ_SCHEME_TEXT_BYTES];
    static int next;
    char *t = text[next++ % 4];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(t, TQ_SCHEME_TEXT_BYTES, fmt, ap);
    va_end(ap);
    return t;
}

/* ---- Layers: the reader ---------------------------------------------------------------------- */

#define LAYERS "turboquant-layers 1\n"

static tqe_status parse_layers(tq_scheme *s, const char *base, const char *text, size_t n,
                               tqe_error *err)
{
    for (int i = 0; i < N_LAYERS; i++) {
        assert_int_equal(tq_scheme_parse(&s[i], base, NULL, 0), TQ_OK);
    }
    return tqe_layers_parse(s, N_LAYERS, text, n, "f", err);
}

static void test_layers_that_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *base, *text, *want[N_LAYERS];
    } cases[] = {
        {"turbo4", LAYERS, {"turbo4", "turbo4", "turbo4", "turbo4"}},
        {"turbo4", "turboquant-layers 1", {"turbo4", "turbo4", "turbo4", "turbo4"}},
        {"turbo4", LAYERS "0-3 tcq4\n", {"tcq4", "tcq4", "tcq4", "tcq4"}},
        {"f16", LAYERS "3 tcq4v3,mean", {"f16", "f16", "f16", "tcq4v3,mean"}},
        {"turbo4,mean", LAYERS "1 turbo4", {"turbo4,mean", "turbo4", "turbo4,mean", "turbo4,mean"}},
        {"turbo4,sink=4,tail=64,start=9,attn=dequant",
         "# first\n\n \t# more\n" LAYERS "\t2-3\t tcq4 \r\n # no\n0 f16\n",
         {"f16,attn=dequant", "turbo4,sink=4,tail=64,start=9,attn=dequant",
          "tcq4,sink=4,tail=64,start=9,attn=dequant", "tcq4,sink=4,tail=64,start=9,attn=dequant"}},
        {"turbo4,skip=1",
         LAYERS "1-1 turbo\n2 affine8g32\n",
         {"turbo4,skip=1", "turbo:k8v3,skip=1", "affine8g32,skip=1", "turbo4,skip=1"}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tq_scheme s[N_LAYERS];
        tqe_error err = {TQE_OK, ""};
        state_ok(parse_layers(s, cases[i].base, cases[i].text, strlen(cases[i].text), &err), &err);
        for (int j = 0; j < N_LAYERS; j++) {
            char text[TQ_SCHEME_TEXT_BYTES];
            assert_int_equal(tq_scheme_format(&s[j], text, sizeof(text)), TQ_OK);
            assert_string_equal(text, cases[i].want[j]);
        }
    }
}

static void test_layers_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *base, *text;
        tqe_status want;
        const char *word; /* in the message, beside the file */
    } cases[] = {
        {"turbo4", "", TQE_ERR_FORMAT, "'turboquant-layers'"},
        {"turbo4", "# only this\n", TQE_ERR_FORMAT, "'turboquant-layers'"},
        {"turbo4", "0 tcq4\n", TQE_ERR_FORMAT, "line 1: 0 where"},
        {"turbo4", "turboquant-kmean 1\n", TQE_ERR_FORMAT, "line 1: turboquant-kmean where"},
        {"turbo4", "turboquant-layers\n", TQE_ERR_FORMAT, "a version number"},
        {"turbo4", "turboquant-layers 2\n", TQE_ERR_UNSUPPORTED, "another version"},
        {"turbo4", "turboquant-layers 1 x\n", TQE_ERR_FORMAT, "line 1: x where"},
        {"turbo4", LAYERS "4 tcq4\n", TQE_ERR_FORMAT,
         "line 2: layers 4 to 4: the model has 0 to 3"},
        {"turbo4", LAYERS "2-4 tcq4\n", TQE_ERR_FORMAT, "line 2: layers 2 to 4"},
        {"turbo4", LAYERS "2-1 tcq4\n", TQE_ERR_FORMAT,
         "line 2: layers 2 to 1: the range is reversed"},
        {"turbo4", LAYERS "\n#\n-1 tcq4\n", TQE_ERR_FORMAT, "line 4: -1 where"},
        {"turbo4", LAYERS "1- tcq4\n", TQE_ERR_FORMAT, "line 2: 1- where"},
        {"turbo4", LAYERS "1-2- tcq4\n", TQE_ERR_FORMAT, "line 2"},
        {"turbo4", LAYERS "+1 tcq4\n", TQE_ERR_FORMAT, "line 2: +1 where"},
        {"turbo4", LAYERS "x tcq4\n", TQE_ERR_FORMAT, "line 2: x where"},
        {"turbo4", LAYERS "4294967296 tcq4\n", TQE_ERR_FORMAT, "line 2: 4294967296 where"},
        {"turbo4", LAYERS "0-18446744073709551617 tcq4\n", TQE_ERR_FORMAT, "line 2"},
        {"turbo4", LAYERS "0\n", TQE_ERR_FORMAT, "line 2: the end of the line where"},
        {"turbo4", LAYERS "0 tcq4 1\n", TQE_ERR_FORMAT, "line 2: 1 where"},
        {"turbo4", LAYERS "0 tcq9\n", TQE_ERR_SCHEME, "line 2: scheme: bits \"9\""},
        {"turbo4", LAYERS "0 \x80\n", TQE_ERR_SCHEME, "line 2: this is no KV scheme"},
        {"turbo4", LAYERS "0 tcq4,\n", TQE_ERR_SCHEME, "line 2: tcq4,: here"},
        {"turbo4", LAYERS "0 tcq4,tail=64\n", TQE_ERR_SCHEME, "no option but mean"},
        {"turbo4", LAYERS "0 tcq4,mean,sink=1\n", TQE_ERR_SCHEME, "no option but mean"},
        {"turbo4", LAYERS "0 tcq4,kmean=f\n", TQE_ERR_SCHEME, "no option but mean"},
        {"turbo4", LAYERS "0 tcq4,layers=f\n", TQE_ERR_SCHEME, "no option but mean"},
        {"turbo4", LAYERS "0 tcq4,attn=fused\n", TQE_ERR_SCHEME, "no option but mean"},
        {"turbo4", LAYERS "0 affine8,mean\n", TQE_ERR_SCHEME, "mean"},
        {"turbo4", LAYERS "1 tcq4\n0-3 f16\n", TQE_ERR_FORMAT, "line 3: layer 1 has a scheme"},
        {"turbo4,skip=1", LAYERS "0 tcq4\n", TQE_ERR_FORMAT, "layer 0 stays f16, as skip=1"},
        {"turbo4,skip=1", LAYERS "1-3 tcq4\n", TQE_ERR_FORMAT, "layer 3 stays f16, as skip=1"},
        {"turbo4,skip=512", LAYERS "1 tcq4\n", TQE_ERR_FORMAT, "layer 1 stays f16"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tq_scheme s[N_LAYERS], before[N_LAYERS];
        tqe_error err = {TQE_OK, ""};
        (void)parse_layers(before, cases[i].base, LAYERS, strlen(LAYERS), &err);
        const tqe_status st =
            parse_layers(s, cases[i].base, cases[i].text, strlen(cases[i].text), &err);
        if (st != cases[i].want || strstr(err.text, cases[i].word) == NULL ||
            strncmp(err.text, "'f'", 3) != 0) {
            fail_msg("case %zu: %d, %s", i, (int)st, err.text);
        }
        assert_memory_equal(s, before, sizeof(s));
    }
    tq_scheme s[N_LAYERS];
    tqe_error err = {TQE_OK, ""};
    static const char zero[] = LAYERS "0 tc\0q4\n";
    assert_int_equal(parse_layers(s, "turbo4", zero, sizeof(zero) - 1, &err), TQE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "line 2: a zero byte"));
    assert_int_equal(tqe_layers_parse(s, 0, "", 0, "f", &err), TQE_ERR_ARG);
    assert_int_equal(tqe_layers_parse(s, 1025, "", 0, "f", &err), TQE_ERR_ARG);
}

/* ---- Means: the reader ----------------------------------------------------------------------- */

#define HEX   "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEAD  "turboquant-kmean 1\nmodel " HEX "\nshape 1 2 3\n"

static const tqe_kmean_shape small = {1, 2, 3};

static void test_means_that_are_read(void **state)
{
    (void)state;
    static const char *const texts[] = {
        HEAD "0 0 1 2 3\n0 1 4 5 6\n",
        "#\n" HEAD "0 1 4. 5e0 60.0e-1\n# no\n\n0 0 +1 2 0.3E1",
    };
    float m[6];
    tqe_error err = {TQE_OK, ""};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        for (int any = 0; any < 2; any++) {
            memset(m, 0, sizeof(m));
            state_ok(
                tqe_kmean_parse(m, &small, any ? NULL : HEX, texts[i], strlen(texts[i]), "f", &err),
                &err);
            for (int j = 0; j < 6; j++) {
                assert_true(m[j] == (float)(j + 1));
            }
        }
    }
}

static void test_means_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tqe_status want;
        const char *word;
    } cases[] = {
        {"", TQE_ERR_FORMAT, "'turboquant-kmean'"},
        {"turboquant-layers 1\n", TQE_ERR_FORMAT, "line 1"},
        {"turboquant-kmean 7\n", TQE_ERR_UNSUPPORTED, "another version"},
        {"turboquant-kmean 1\n", TQE_ERR_FORMAT, "'model'"},
        {"turboquant-kmean 1\nshape 1 2 3\n", TQE_ERR_FORMAT, "line 2: shape where"},
        {"turboquant-kmean 1\nmodel\n", TQE_ERR_FORMAT, "64 hexadecimal digits"},
        {"turboquant-kmean 1\nmodel 0123\n", TQE_ERR_FORMAT, "64 hexadecimal digits"},
        {"turboquant-kmean 1\nmodel " HEX "0\n", TQE_ERR_FORMAT, "64 hexadecimal digits"},
        {"turboquant-kmean 1\nmodel " HEX " x\n", TQE_ERR_FORMAT, "line 2: x where"},
        {"turboquant-kmean 1\nmodel " OTHER "\n", TQE_ERR_UNSUPPORTED,
         "means of another model, 112345678"},
        {"turboquant-kmean 1\nmodel " HEX "\n", TQE_ERR_FORMAT, "'shape'"},
        {"turboquant-kmean 1\nmodel " HEX "\nshape 1 2\n", TQE_ERR_FORMAT, "line 3"},
        {"turboquant-kmean 1\nmodel " HEX "\nshape 1 2 3 4\n", TQE_ERR_FORMAT, "line 3: 4 where"},
        {"turboquant-kmean 1\nmodel " HEX "\nshape 2 2 3\n", TQE_ERR_UNSUPPORTED,
         "shape 2 2 3: the model has 1 2 3"},
        {"turboquant-kmean 1\nmodel " HEX "\nshape 1 -2 3\n", TQE_ERR_FORMAT, "line 3: -2 where"},
        {HEAD, TQE_ERR_FORMAT, "no mean for layer 0, KV head 0"},
        {HEAD "0 0 1 2 3\n", TQE_ERR_FORMAT, "no mean for layer 0, KV head 1"},
        {HEAD "0 0 1 2 3\n0 0 1 2 3\n", TQE_ERR_FORMAT,
         "line 5: layer 0, KV head 0 has a mean already"},
        {HEAD "1 0 1 2 3\n", TQE_ERR_FORMAT, "line 4: 1 where there should be a layer"},
        {HEAD "0 2 1 2 3\n", TQE_ERR_FORMAT, "line 4: 2 where there should be a KV head"},
        {HEAD "0 0 1 2\n", TQE_ERR_FORMAT, "line 4: the end of the line where"},
        {HEAD "0 0 1 2 3 4\n", TQE_ERR_FORMAT, "line 4: 4 where there should be the end"},
        {HEAD "0 0 1 nan 3\n", TQE_ERR_FORMAT, "line 4: nan where"},
        {HEAD "0 0 1 inf 3\n", TQE_ERR_FORMAT, "line 4: inf where"},
        {HEAD "0 0 1 1e39 3\n", TQE_ERR_FORMAT, "line 4: 1e39 where"},
        {HEAD "0 0 1 -1e999999999 3\n", TQE_ERR_FORMAT, "line 4: -1e999999999 where"},
        {HEAD "0 0 1 0x1 3\n", TQE_ERR_FORMAT, "line 4: 0x1 where"},
        {HEAD "0 0 1 65520 3\n", TQE_ERR_FORMAT, "line 4: 65520 where there should be value 1 of"},
        {HEAD "0 0 1 2 -65504.01\n", TQE_ERR_FORMAT,
         "line 4: -65504.01 where there should be value 2 of the mean, a number from -65504"},
        {HEAD "0 0 3e38 2 3\n", TQE_ERR_FORMAT, "line 4: 3e38 where there should be value 0 of"},
        {HEAD "0 0 1 2,5 3\n", TQE_ERR_FORMAT, "line 4: 2,5 where"},
        {HEAD "0 0 1 1e 3\n", TQE_ERR_FORMAT, "line 4: 1e where"},
        {HEAD "0 0 1 - 3\n", TQE_ERR_FORMAT, "line 4: - where"},
        {HEAD "0 0 1 1.2.3 3\n", TQE_ERR_FORMAT, "line 4: 1.2.3 where"},
        {HEAD "0 0 1 \xff 3\n", TQE_ERR_FORMAT, "line 4: \\xff where"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        float m[6] = {7, 7, 7, 7, 7, 7};
        tqe_error err = {TQE_OK, ""};
        const tqe_status st =
            tqe_kmean_parse(m, &small, HEX, cases[i].text, strlen(cases[i].text), "f", &err);
        if (st != cases[i].want || strstr(err.text, cases[i].word) == NULL ||
            strncmp(err.text, "'f'", 3) != 0) {
            fail_msg("case %zu: %d, %s", i, (int)st, err.text);
        }
        for (int j = 0; j < 6; j++) {
            assert_true(m[j] == 7);
        }
    }
}

/* ---- Writers --------------------------------------------------------------------------------- */

static void test_what_is_written_is_read(void **state)
{
    (void)state;
    enum { L = 3, H = 2, D = 16, N = L * H * D };
    const tqe_kmean_shape shape = {L, H, D};
    float want[N], got[N];
    uint64_t seed = 3;
    tqe_error err = {TQE_OK, ""};
    for (int i = 0; i < N; i++) {
        uint32_t bits;
        do { /* any value up to the largest, subnormals and both zeros too */
            bits = i < 4 ? (uint32_t)i << 31 : (uint32_t)test_random(&seed);
            memcpy(&want[i], &bits, sizeof(bits));
        } while (!(fabsf(want[i]) <= TQE_KMEAN_MAX));
    }
    want[6] = TQE_KMEAN_MAX;
    want[7] = -TQE_KMEAN_MAX;
    state_ok(tqe_kmean_write(kmean, want, &shape, HEX, "by a test", &err), &err);
    state_ok(tqe_kmean_read(got, &shape, HEX, kmean, &err), &err);
    assert_memory_equal(got, want, sizeof(want));
    static const float too_large[] = {INFINITY, NAN, 65520, -65536};
    for (size_t i = 0; i < 4; i++) {
        want[H * D + D + 5] = too_large[i];
        assert_int_equal(tqe_kmean_write(kmean, want, &shape, HEX, NULL, &err), TQE_ERR_ARG);
        assert_non_null(strstr(err.text, "value 5 of layer 1, KV head 1"));
    }
    state_ok(tqe_kmean_read(got, &shape, HEX, kmean, &err), &err); /* still the old one */

    static const char *const texts[] = {"tcq4",          "tcq4", "f16", "turbo8v4,mean",
                                        "turbo8v4,mean", "f32",  "f32", "affine4g128"};
    tq_scheme a[8], b[8];
    for (int i = 0; i < 8; i++) {
        assert_int_equal(tq_scheme_parse(&a[i], texts[i], NULL, 0), TQ_OK);
        assert_int_equal(tq_scheme_parse(&b[i], "turbo2", NULL, 0), TQ_OK);
    }
    state_ok(tqe_layers_write(layers, a, 8, "by a test", &err), &err);
    state_ok(tqe_layers_read(b, 8, layers, &err), &err);
    assert_memory_equal(a, b, sizeof(a));
    assert_int_equal(tqe_layers_write(layers, a, 8, "two\nlines", &err), TQE_ERR_ARG);
    a[7].k_bits = 77;
    assert_int_equal(tqe_layers_write(layers, a, 8, NULL, &err), TQE_ERR_ARG);
    state_ok(tqe_layers_read(b, 8, layers, &err), &err);
    assert_int_equal(tqe_layers_write("/nowhere/f", b, 8, NULL, &err), TQE_ERR_IO);
    (void)unlink(kmean);
    (void)unlink(layers);
}

/* ---- Sessions -------------------------------------------------------------------------------- */

/* A prompt, and single tokens after it: equal logits at every step. */
static void same_run(const tqe_model *m, const char *one, const char *other)
{
    int32_t ids[N_CTX];
    state_tokens(ids, N_CTX, 9, m);
    tqe_session *a = state_session(m, one, N_CTX, 0), *b = state_session(m, other, N_CTX, 0);
    state_eval(a, ids, 100);
    state_eval(b, ids, 100);
    for (size_t i = 100; i < 110; i++) {
        state_same(a, state_logits(b, m), m, one);
        state_eval(a, ids + i, 1);
        state_eval(b, ids + i, 1);
    }
    state_same(a, state_logits(b, m), m, one);
    tqe_session_free(a);
    tqe_session_free(b);
}

static void test_layers_that_say_nothing_new(void **state)
{
    (void)state;
    static const char *const tcq4[] = {"tcq4"}, *const f16[] = {"f16"};
    for (int i = 0; i < 2; i++) {
        const tqe_model *m = i ? bundled : tiny;
        state_write_layers(layers, m, tcq4, 1);
        same_run(m, scheme_text("turbo2,layers=%s", layers), "tcq4");
        same_run(m, scheme_text("tcq4,layers=%s", layers), "tcq4");
        same_run(m, scheme_text("turbo2,sink=3,tail=20,layers=%s", layers), "tcq4,sink=3,tail=20");
        state_write_layers(layers, m, f16, 1);
        same_run(m, scheme_text("turbo2,sink=3,tail=20,start=40,layers=%s", layers), "f16");
        state_write_kmean(kmean, m, 1.0f); /* raw layers take no option */
        same_run(m, scheme_text("turbo2,kmean=%s,tail=20,layers=%s", kmean, layers), "f16");
        state_write(layers, (const uint8_t *)LAYERS, strlen(LAYERS));
        same_run(m, scheme_text("turbo:k8v3,layers=%s", layers), "turbo:k8v3");
    }
}

static void test_means_of_zero(void **state)
{
    (void)state;
    static const char *const schemes[] = {"turbo:k8v3", "turbo4,sink=3,tail=20",
                                          "tcq3,mean",  "affine4",
                                          "turbo0v3",   "mse3,attn=dequant"};
    for (int i = 0; i < 2; i++) {
        state_write_kmean(kmean, i ? bundled : tiny, 0.0f);
        for (size_t k = 0; k < sizeof(schemes) / sizeof(schemes[0]); k++) {
            same_run(i ? bundled : tiny, scheme_text("%s,kmean=%s", schemes[k], kmean), schemes[k]);
        }
    }
}

/* Keys of a head as stored, without the mean. */
static float *stored_keys(const tqe_model *m, const char *kv, uint32_t layer, uint32_t head,
                          const int32_t *ids, size_t n)
{
    tqe_error err = {TQE_OK, ""};
    tqe_snapshot *f = NULL;
    char *path = state_path("rows.tqs");
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    float *rows = malloc(n * info.d_k * sizeof(*rows));
    assert_non_null(rows);
    tqe_session *s = state_session(m, kv, N_CTX, 0);
    state_eval(s, ids, n);
    state_ok(tqe_session_save(s, path, &err), &err);
    state_ok(tqe_snapshot_open(&f, path, &err), &err);
    state_ok(tqe_snapshot_rows(f, layer, head, 0, rows, &err), &err);
    tqe_snapshot_close(f);
    tqe_session_free(s);
    (void)unlink(path);
    free(path);
    return rows;
}

/* Each head loses its own mean: 8 bits see a mean that is larger than their error. */
static void test_each_head_loses_its_mean(void **state)
{
    (void)state;
    enum { N = 40 };
    int32_t ids[N];
    tqe_error err = {TQE_OK, ""};
    tqe_model_info info;
    tqe_model_get_info(tiny, &info);
    const tqe_kmean_shape shape = {info.n_layers, info.n_kv_heads, info.d_k};
    float *mean = malloc((size_t)info.n_layers * info.n_kv_heads * info.d_k * sizeof(*mean));
    assert_non_null(mean);
    state_write_kmean(kmean, tiny, 1.0f);
    state_ok(tqe_kmean_read(mean, &shape, NULL, kmean, &err), &err);
    state_tokens(ids, N, 4, tiny);
    const char *with = scheme_text("affine8g32,kmean=%s", kmean);
    for (uint32_t l = 0; l < info.n_layers; l++) {
        for (uint32_t h = 0; h < info.n_kv_heads; h++) {
            float *a = stored_keys(tiny, with, l, h, ids, N);
            float *b = stored_keys(tiny, "affine8g32", l, h, ids, N);
            const float *m = mean + ((size_t)l * info.n_kv_heads + h) * info.d_k;
            for (size_t i = 0; i < N * info.d_k; i++) {
                if (fabsf(a[i] + m[i % info.d_k] - b[i]) > 0.1f) {
                    fail_msg("layer %u, head %u: %g + %g, not %g", l, h, (double)a[i],
                             (double)m[i % info.d_k], (double)b[i]);
                }
            }
            free(a);
            free(b);
        }
    }
    free(mean);
}

/* PITFALLS 26, 42: bytes of mixed layers are the sum of theirs, in the plan as in the session. */
static void test_the_plan_of_mixed_layers(void **state)
{
    (void)state;
    static const char *const mixed[] = {"tcq4", "turbo:k8v3", "f16", "affine4"};
    for (int i = 0; i < 2; i++) {
        const tqe_model *m = i ? bundled : tiny;
        tqe_model_info info;
        tqe_kv_plan plan;
        tq_scheme s;
        tqe_session_info si;
        tqe_session *session = NULL;
        tqe_error err = {TQE_OK, ""};
        size_t want = 0;
        tqe_model_get_info(m, &info);
        for (uint32_t l = 0; l < info.n_layers; l++) {
            size_t bytes = 0;
            assert_int_equal(tq_scheme_parse(&s, mixed[l % 4], NULL, 0), TQ_OK);
            assert_int_equal(tq_scheme_bytes_per_token(&s, info.d_k, info.d_v, &bytes), TQ_OK);
            want += bytes * info.n_kv_heads;
        }
        state_write_layers(layers, m, mixed, 4);
        state_write_kmean(kmean, m, 1.0f);
        const char *kv = scheme_text("turbo4,kmean=%s,sink=5,tail=9,layers=%s", kmean, layers);
        assert_int_equal(tq_scheme_parse(&s, kv, NULL, 0), TQ_OK);
        for (uint32_t n_seqs = 1; n_seqs < 9; n_seqs += 7) {
            state_ok(tqe_kv_plan_make(&plan, &info, &s, 64 << 20, n_seqs, &err), &err);
            const tqe_session_params p = {
                .n_threads = 1, .kv = kv, .n_ctx = plan.n_ctx, .n_seqs = n_seqs};
            state_ok(tqe_session_create(&session, m, &p, &err), &err);
            tqe_session_get_info(session, &si);
            assert_string_equal(si.kv, kv);
            assert_int_equal(si.kv_bytes_per_token, want);
            assert_int_equal(plan.bytes_per_token, want);
            assert_int_equal(si.kv_bytes_capacity, plan.cache_bytes);
            tqe_session_free(session);
        }
    }
}

static void refused(const tqe_model *m, const char *kv, tqe_status want, const char *word)
{
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_session_params p = {.n_ctx = N_CTX, .n_threads = 1, .kv = kv};
    assert_int_equal(tqe_session_create(&s, m, &p, &err), want);
    assert_null(s);
    if (strstr(err.text, word) == NULL) {
        fail_msg("'%s' does not name %s", err.text, word);
    }
}

static void test_files_that_cannot_be_used(void **state)
{
    (void)state;
    static const char *const tcq4[] = {"tcq4"};
    const char *by_layers = scheme_text("turbo4,layers=%s", layers);
    const char *by_kmean = scheme_text("turbo4,kmean=%s", kmean);
    (void)unlink(layers);
    (void)unlink(kmean);
    refused(tiny, by_layers, TQE_ERR_IO, layers);
    refused(tiny, by_kmean, TQE_ERR_IO, kmean);
    refused(tiny, "f16,layers=/", TQE_ERR_IO, "'/'");
    state_write(layers, (const uint8_t *)"x", 1);
    refused(tiny, by_layers, TQE_ERR_FORMAT, "line 1: x where");
    assert_int_equal(truncate(layers, (1 << 20) + 1), 0); /* sparse: nothing of it is read */
    refused(tiny, by_layers, TQE_ERR_FORMAT, "has 1048577 bytes");
    state_write(kmean, (const uint8_t *)"x", 1);
    assert_int_equal(truncate(kmean, (64 << 20) + 1), 0);
    refused(tiny, by_kmean, TQE_ERR_FORMAT, "has 67108865 bytes");
    state_write_kmean(kmean, tiny, 1.0f);
    refused(bundled, by_kmean, TQE_ERR_UNSUPPORTED, "line 3: the means of another model");
    state_write_layers(layers, bundled, tcq4, 1);
    refused(tiny, by_layers, TQE_ERR_FORMAT, "the model has 0 to 1");

    gen_model g = gen_model_of("qwen3"); /* a head dimension that only affine takes */
    g.d_head = 88;
    const char *path = gen_temp_path("odd.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *m = state_model(path);
    state_write_layers(layers, m, tcq4, 1);
    refused(m, scheme_text("affine8,layers=%s", layers), TQE_ERR_UNSUPPORTED, "tcq4 of layer 0");
    tqe_model_free(m);
    (void)unlink(path);
    (void)unlink(layers);
    (void)unlink(kmean);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_that_are_read),
        cmocka_unit_test(test_layers_that_are_refused),
        cmocka_unit_test(test_means_that_are_read),
        cmocka_unit_test(test_means_that_are_refused),
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_layers_that_say_nothing_new),
        cmocka_unit_test(test_means_of_zero),
        cmocka_unit_test(test_each_head_loses_its_mean),
        cmocka_unit_test(test_the_plan_of_mixed_layers),
        cmocka_unit_test(test_files_that_cannot_be_used),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
