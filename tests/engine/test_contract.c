/* SPDX-License-Identifier: MIT */
/* test_contract.c — for every scheme and every option, on the bundled model: whatever way a
 * timeline came about, it computes the same bits.
 *
 * One timeline is computed straight on. Beside it, with equal batches: one in pieces, from which a
 * draft was taken back, and which was forked and saved meanwhile; its fork, that goes elsewhere at
 * the same time; one that was restored into a used session; one that was found in a prefix store.
 * The prompt ends within a page, and single tokens follow: shared pages are written by both sides.
 * PITFALLS 21, 22, 23, 36, 41 with whole models.
 */
#include "state_support.h"

enum { PROMPT = 70, PIECE = 35, MORE = 3, N_CTX = 128 };

/* %k: kmean=FILE, %l: layers=FILE. Where rows stay f16, some do so before the prompt ends, some
 * while single tokens follow, some always. */
static const char *const schemes[] = {
    "f32",
    "f16",
    "bf16",
    "turbo:k8v3",
    "turbo:k5v4",
    "turbo:k4v5",
    "turbo:k2v2",
    "turbo:k8v8",
    "turbo2",
    "turbo3",
    "turbo4",
    "turbo5",
    "turbo6",
    "turbo8",
    "turbo0v3",
    "tcq2",
    "tcq3",
    "tcq4v6",
    "tcq5",
    "affine8",
    "affine4g32",
    "affine4g128",
    "mse1",
    "mse4",
    "prod1",
    "prod3",
    "turbo3,mean",
    "tcq4,mean,attn=dequant",
    "turbo:k4v3,attn=dequant",
    "turbo:k8v3,%k",
    "turbo4,%k",
    "tcq3,mean,%k",
    "affine4,%k,attn=dequant",
    "prod3,%k",
    "turbo:k8v3,skip=1",
    "tcq4,skip=2",
    "turbo4,sink=4",
    "tcq3,sink=70",
    "turbo:k4v2,tail=1",
    "mse3,tail=20",
    "tcq4,tail=64",
    "affine8,tail=64,attn=dequant",
    "turbo3,start=40",
    "prod4,start=72",
    "turbo:k8v3,start=1000",
    "affine4,skip=1,sink=3,tail=20,start=72",
    "turbo4,%l",
    "f16,%l",
    "tcq4,%k,%l",
    "turbo5,mean,%k,skip=1,sink=3,tail=20,start=71,attn=dequant",
    "tcq5,%k,sink=3,tail=20,start=71,%l,attn=dequant",
};

static tqe_model *bundled;
static char *kmean, *layers, *file, *dir;

static int setup(void **state)
{
    (void)state;
    static const char *const mixed[] = {"tcq4", "turbo:k8v3", "f16", "affine4g32", "turbo3,mean"};
    bundled = state_model(TQ_MODELS_DIR "/tiny-qwen3-28m.q8_0.gguf");
    kmean = state_path("k");
    layers = state_path("l");
    file = state_path("a.tqs");
    dir = state_path("prefix");
    state_write_kmean(kmean, bundled, 1.0f);
    state_write_layers(layers, bundled, mixed, 5);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(bundled);
    free(kmean);
    free(layers);
    free(file);
    free(dir);
    return 0;
}

static tqe_session *open_session(const char *kv)
{
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_session_params p = {
        .n_ctx = N_CTX, .n_threads = 1, .n_batch = PIECE, .kv = kv, .n_seqs = 2, .rollback = 4};
    state_ok(tqe_session_create(&s, bundled, &p, &err), &err);
    return s;
}

/* Tokens one by one; the logits after each are those of `want` [n][n_vocab], or become them. */
static void follow(tqe_session *s, const int32_t *ids, float *want, bool is_first, const char *what)
{
    tqe_model_info info;
    tqe_model_get_info(bundled, &info);
    const size_t bytes = info.n_vocab * sizeof(*want);
    for (size_t i = 0; i < MORE; i++) {
        state_eval(s, ids + i, 1);
        if (is_first) {
            memcpy(want + i * info.n_vocab, tqe_session_logits(s), bytes);
        } else if (memcmp(tqe_session_logits(s), want + i * info.n_vocab, bytes) != 0) {
            fail_msg("%s: other logits after token %zu", what, i);
        }
    }
}

/* Cold with a store, and a hit of another process in a used session. */
static void check_prefix(const char *kv, const int32_t *ids, const int32_t *other)
{
    tqe_error err = {TQE_OK, ""};
    const tqe_prefix_params params = {.dir = dir, .every_pages = 1};
    tqe_session *s[2];
    state_remove(dir);
    for (int hit = 0; hit < 2; hit++) {
        tqe_prefix *p = NULL;
        size_t reused = 0;
        s[hit] = open_session(kv);
        state_ok(tqe_prefix_create(&p, &params, &err), &err);
        if (hit) {
            state_eval(s[hit], other, MORE);
        }
        state_ok(tqe_session_prompt(s[hit], p, ids, PROMPT, NULL, NULL, &reused, &err), &err);
        assert_int_equal(reused, hit ? 64 : 0);
        if (tqe_prefix_problem(p, &err)) {
            fail_msg("%s: %s", kv, err.text);
        }
        tqe_prefix_free(p);
    }
    for (size_t i = 0; i <= 1; i++) {
        state_same(s[1], state_logits(s[0], bundled), bundled, kv);
        state_eval(s[0], ids + PROMPT + i, 1);
        state_eval(s[1], ids + PROMPT + i, 1);
    }
    state_same(s[1], state_logits(s[0], bundled), bundled, kv);
    tqe_session_free(s[0]);
    tqe_session_free(s[1]);
    state_remove(dir);
}

static void check_scheme(const char *kv)
{
    int32_t ids[PROMPT + MORE], other[MORE];
    tqe_error err = {TQE_OK, ""};
    tqe_model_info info;
    tqe_model_get_info(bundled, &info);
    float *want = malloc(MORE * info.n_vocab * sizeof(*want));
    assert_non_null(want);
    state_tokens(ids, PROMPT + MORE, 21, bundled);
    state_tokens(other, MORE, 22, bundled);

    tqe_session *straight = open_session(kv), *a = open_session(kv), *fork = NULL;
    state_eval(straight, ids, PROMPT);
    float *at_prompt = state_logits(straight, bundled);
    follow(straight, ids + PROMPT, want, true, kv);
    tqe_session_free(straight);

    state_eval(a, ids, PIECE); /* chunked == one shot, at equal batches */
    state_eval(a, ids + PIECE, PROMPT - PIECE);
    state_same(a, at_prompt, bundled, kv);
    state_ok(tqe_session_fork(&fork, a, PROMPT, &err), &err);
    state_ok(tqe_session_save(fork, file, &err), &err); /* a fork is as good as its source */
    state_eval(a, other, MORE);                         /* the draft */
    state_ok(tqe_session_truncate(a, PROMPT, &err), &err);
    for (size_t i = 0; i < MORE; i++) { /* in turn, so that each could spoil the other */
        state_eval(a, ids + PROMPT + i, 1);
        state_eval(fork, other + i, 1);
        if (memcmp(tqe_session_logits(a), want + i * info.n_vocab, info.n_vocab * sizeof(*want)) !=
            0) {
            fail_msg("%s: other logits after a draft, beside a fork", kv);
        }
    }
    state_ok(tqe_session_load(a, file, &err), &err); /* restored == never saved */
    follow(a, ids + PROMPT, want, false, kv);
    state_ok(tqe_session_load(a, file, &err), &err);
    state_eval(a, other, 1); /* fork == separate runs */
    state_eval(a, other + 1, 1);
    state_eval(a, other + 2, 1);
    state_same(fork, state_logits(a, bundled), bundled, kv);
    tqe_session_free(a);
    tqe_session_free(fork);
    free(want);
    check_prefix(kv, ids, other);
}

static void test_every_scheme_and_option(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        char kv[TQ_SCHEME_TEXT_BYTES] = "";
        for (const char *p = schemes[i]; *p != '\0'; p++) {
            const size_t n = strlen(kv);
            const char *what = *p != '%' ? NULL : p[1] == 'k' ? "kmean" : "layers";
            if (what == NULL) {
                (void)snprintf(kv + n, sizeof(kv) - n, "%c", *p);
            } else {
                p++;
                (void)snprintf(kv + n, sizeof(kv) - n, "%s=%s", what, *p == 'k' ? kmean : layers);
            }
        }
        check_scheme(kv);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_scheme_and_option)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
