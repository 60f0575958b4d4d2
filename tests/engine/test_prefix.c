/* SPDX-License-Identifier: MIT */
/* test_prefix.c — a hit computes to the same bits as a cold run, in memory and on the disk,
 * whatever the scheme and the length. What is wrong with files is test_prefix_files.c's, what a
 * folder cannot take test_prefix_folder.c's. */
#include "prefix_support.h"

static const char *const schemes[] = {
    "f32",
    "f16",
    "bf16",
    "turbo:k8v3",
    "turbo:k4v2",
    "turbo8",
    "turbo4",
    "tcq3",
    "tcq5v4",
    "affine4",
    "mse3",
    "prod3",
    "turbo4,mean",
    "turbo:k8v3,attn=dequant",
    "tcq4,tail=64",
    "tcq3,sink=4,tail=20",
    "turbo4,sink=70",
    "turbo:k8v3,skip=1",
    "turbo4,start=100",
    "turbo4,start=500",
    "affine4,skip=1,sink=3,tail=130,start=40",
};

static tqe_model *bundled;

static int setup(void **state)
{
    bundled = state_model(TQ_MODELS_DIR "/tiny-qwen3-28m.q8_0.gguf");
    return prefix_setup(state);
}

static int teardown(void **state)
{
    tqe_model_free(bundled);
    return prefix_teardown(state);
}

/* Cold with a store, then a hit in a fresh session and store: equal logits now and after more. */
static void hit_is_cold(const tqe_model *m, const char *kv, size_t n)
{
    int32_t ids[640];
    state_remove(dir);
    state_tokens(ids, n + 4, n, m);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *cold = state_session(m, kv, 640, 0);
    assert_int_equal(prompt(cold, p, ids, n), 0);
    no_problem(p);
    tqe_prefix_free(p);

    p = open_store(dir, 0, NULL);
    tqe_session *hit = state_session(m, kv, 640, 0);
    int32_t other[640];
    state_tokens(other, 640, 5, m);
    state_eval(hit, other, 100); /* a history that must not shine through */
    assert_int_equal(prompt(hit, p, ids, n), (n - 1) / 64 * 64);
    no_problem(p);
    state_same(hit, state_logits(cold, m), m, kv);
    state_eval(cold, ids + n, 4);
    state_eval(hit, ids + n, 4);
    state_same(hit, state_logits(cold, m), m, kv);

    /* Another continuation of the same beginning, at an end in the middle. */
    if (n > 148) {
        for (size_t i = 140; i < n; i++) {
            ids[i] = other[i];
        }
        tqe_session *fork = state_session(m, kv, 640, 0);
        assert_int_equal(prompt(fork, p, ids, n), 128);
        tqe_prefix *none = open_store(NULL, 0, NULL);
        tqe_session *alone = state_session(m, kv, 640, 0);
        assert_int_equal(prompt(alone, none, ids, n), 0);
        state_same(fork, state_logits(alone, m), m, kv);
        tqe_prefix_free(none);
        tqe_session_free(fork);
        tqe_session_free(alone);
    }
    tqe_prefix_free(p);
    tqe_session_free(cold);
    tqe_session_free(hit);
    state_remove(dir);
}

/* test_contract.c has all schemes on the bundled model, with shorter prompts. */
static void test_every_scheme(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        hit_is_cold(i % 7 == 3 ? bundled : tiny, schemes[i], 150 + i);
    }
}

static void test_lengths(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 63, 64, 65, 66, 127, 128, 129, 193, 256, 257, 512, 600};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        hit_is_cold(tiny, "turbo:k8v3", lengths[i]);
    }
    tqe_model *windowed = state_tiny(0, 40);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        hit_is_cold(windowed, "turbo:k8v3", lengths[i]);
    }
    tqe_model_free(windowed);
}

/* ---- Memory --------------------------------------------------------------------------------- */

static void test_memory(void **state)
{
    (void)state;
    int32_t a[300], b[300];
    tqe_prefix *p = open_store(NULL, 0, NULL), *q = open_store(NULL, 0, "another tenant");
    tqe_session *s = state_session(tiny, "turbo5", 320, 2000);
    state_tokens(a, 300, 1, tiny);
    memcpy(b, a, sizeof(b));
    state_tokens(b + 170, 130, 2, tiny);
    assert_int_equal(prompt(s, p, a, 300), 0);
    float *of_a = state_logits(s, tiny);
    assert_int_equal(prompt(s, p, b, 300), 170); /* at any token, from the running timeline */
    state_eval(s, b, 5);
    assert_int_equal(prompt(s, p, a, 300), 299); /* kept, though the session went elsewhere */
    tqe_session_info info;
    tqe_session_get_info(s, &info);
    /* One token alone against a batch: equal within what ggml's kernels differ by. */
    const float *x = tqe_session_logits(s);
    float worst = 0;
    for (int i = 0; i < 100; i++) {
        worst = fmaxf(worst, fabsf(x[i] - of_a[i]));
    }
    assert_true(worst < 2e-3f);
    free(of_a);
    /* Another tenant gets nothing of it, apart from what runs: that is cleared. */
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_int_equal(prompt(s, q, a, 300), 0);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_int_equal(prompt(s, p, b, 300), 299);
    tqe_prefix_stats stats;
    tqe_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_prompts, 4);
    assert_int_equal(stats.n_memory_hits, 2);
    assert_int_equal(stats.n_reused, 170 + 299 + 299);
    tqe_session_free(s);
    tqe_prefix_free(p);
    tqe_prefix_free(q);
}

/* A hit in memory is the cold run at equal batches: the shared part was computed alike. */
static void test_memory_is_cold(void **state)
{
    (void)state;
    int32_t ids[300];
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 300, 1, tiny);
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        tqe_prefix *p = open_store(NULL, 0, NULL);
        tqe_session *s = state_session(tiny, schemes[i], 320, 2000);
        (void)prompt(s, p, ids, 200);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_int_equal(prompt(s, p, ids, 210), 200);
        tqe_session *t = state_session(tiny, schemes[i], 320, 0);
        state_eval(t, ids, 128);
        state_eval(t, ids + 128, 64);
        state_eval(t, ids + 192, 8);
        state_eval(t, ids + 200, 10);
        state_same(s, state_logits(t, tiny), tiny, schemes[i]);
        tqe_session_free(s);
        tqe_session_free(t);
        tqe_prefix_free(p);
    }
}

/* Many prompts in little room: old ones go, the context always fits. */
static void test_memory_limit(void **state)
{
    (void)state;
    int32_t ids[256];
    tqe_error err = {TQE_OK, ""};
    tqe_prefix *p = open_store(NULL, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4", 256, 600);
    for (uint64_t i = 0; i < 100; i++) {
        state_tokens(ids, 256, 100 + i, tiny);
        assert_true(prompt(s, p, ids, 256) < 4); /* random prompts may begin alike */
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        if (i > 0) {
            int32_t before[256];
            state_tokens(before, 256, 99 + i, tiny);
            assert_int_equal(prompt(s, p, before, 256), 255);
            state_ok(tqe_session_truncate(s, 0, &err), &err);
        }
    }
    state_tokens(ids, 256, 100, tiny);
    assert_true(prompt(s, p, ids, 256) < 4); /* forgotten long ago */
    tqe_session_free(s);
    tqe_prefix_free(p);
}

typedef struct stopper {
    size_t calls, at;
} stopper;

static bool stop_at(void *ctx, size_t n_done, size_t n_total)
{
    stopper *w = ctx;
    assert_true(n_done <= n_total);
    return ++w->calls != w->at;
}

static void test_cancel_and_arguments(void **state)
{
    (void)state;
    int32_t ids[401];
    tqe_error err = {TQE_OK, ""};
    size_t reused = 0;
    tqe_prefix *p = open_store(NULL, 0, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_tokens(ids, 401, 1, tiny);
    stopper w = {0, 2};
    assert_int_equal(tqe_session_prompt(s, p, ids, 330, stop_at, &w, &reused, &err),
                     TQE_ERR_CANCELLED);
    assert_int_equal(tqe_session_len(s), 256);
    w = (stopper){0, 0};
    assert_int_equal(tqe_session_prompt(s, p, ids, 330, stop_at, &w, &reused, &err), TQE_OK);
    assert_int_equal(reused, 256);
    assert_int_equal(tqe_session_prompt(s, p, ids, 401, NULL, NULL, NULL, &err), TQE_ERR_FULL);
    assert_int_equal(tqe_session_prompt(s, p, ids, 0, NULL, NULL, NULL, &err), TQE_ERR_ARG);
    ids[3] = -1;
    assert_int_equal(tqe_session_prompt(s, p, ids, 330, NULL, NULL, NULL, &err), TQE_ERR_ARG);
    assert_int_equal(tqe_session_len(s), 330);
    tqe_session_free(s);
    tqe_prefix_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scheme), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_memory_is_cold),
        cmocka_unit_test(test_memory_limit), cmocka_unit_test(test_cancel_and_arguments),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
