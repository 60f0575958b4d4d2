/* SPDX-License-Identifier: MIT */
/* test_session.c — what a session promises: limits, errors that change nothing, accounting. */
#include "engine.h"
#include "gen_model.h"
#include "unit/support.h"

#include <stdio.h>

static tqe_model *model;
static tqe_model_info info;

static int setup(void **state)
{
    (void)state;
    const gen_model g = gen_model_of("qwen3");
    const char *path = gen_temp_path("session.gguf");
    tqe_error err = {TQE_OK, ""};
    if (!gen_model_write(&g, path) || tqe_model_load(&model, path, NULL, &err) != TQE_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    tqe_model_get_info(model, &info);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(model);
    return 0;
}

static tqe_session *open_session(uint32_t n_ctx, uint32_t n_batch, const char *kv)
{
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_session_params p = {.n_ctx = n_ctx, .n_threads = 1, .n_batch = n_batch, .kv = kv};
    if (tqe_session_create(&s, model, &p, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    return s;
}

static void refuse(tqe_session_params p, tqe_status want, const char *word)
{
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    p.n_threads = p.n_threads != 0 ? p.n_threads : 1;
    assert_int_equal(tqe_session_create(&s, model, &p, &err), want);
    assert_null(s);
    assert_int_equal(err.code, want);
    if (strstr(err.text, word) == NULL) {
        fail_msg("'%s' does not name '%s'", err.text, word);
    }
}

static void test_bad_params(void **state)
{
    (void)state;
    refuse((tqe_session_params){.n_ctx = (1u << 24) + 1}, TQE_ERR_ARG, "context");
    refuse((tqe_session_params){.n_threads = 100000}, TQE_ERR_ARG, "threads");
    refuse((tqe_session_params){.n_batch = 4097}, TQE_ERR_ARG, "batches");
    refuse((tqe_session_params){.kv = "turbo:k9v3"}, TQE_ERR_SCHEME, "2 4 5 8");
    refuse((tqe_session_params){.kv = ""}, TQE_ERR_SCHEME, "f16");
}

static void test_head_dim_of_scheme(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.d_head = 88; /* has no rotation */
    const char *path = gen_temp_path("dim.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *m = NULL;
    tqe_error err = {TQE_OK, ""};
    assert_int_equal(tqe_model_load(&m, path, NULL, &err), TQE_OK);
    tqe_session *s = NULL;
    const tqe_session_params p = {.n_threads = 1, .kv = "turbo:k8v3"};
    assert_int_equal(tqe_session_create(&s, m, &p, &err), TQE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "turbo:k8v3"));
    assert_non_null(strstr(err.text, "head dimension 88"));
    tqe_model_free(m);
}

static void test_defaults_and_accounting(void **state)
{
    (void)state;
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    assert_int_equal(tqe_session_create(&s, model, NULL, &err), TQE_OK);
    tqe_session_info si;
    tqe_session_get_info(s, &si);
    assert_string_equal(si.kv, "turbo:k8v3");
    assert_int_equal(si.n_ctx, 256); /* the model's */
    assert_true(si.n_threads >= 1);
    /* D (K + V + 1.5) / 8 bytes per KV head and layer. */
    const size_t per_head = (size_t)(64.0 * (8 + 3 + 1.5) / 8);
    assert_int_equal(si.kv_bytes_per_token, 2 * 2 * per_head);
    assert_int_equal(si.f16_bytes_per_token, 2 * 2 * 64 * 2 * 2);
    assert_int_equal(si.kv_bytes_used, 0);
    assert_true(si.kv_bytes_capacity >= 256 * si.kv_bytes_per_token);
    tqe_session_free(s);
}

static void test_full_and_bad_ids_change_nothing(void **state)
{
    (void)state;
    tqe_session *s = open_session(20, 8, "f16");
    tqe_error err = {TQE_OK, ""};
    int32_t ids[32] = {0};
    assert_null(tqe_session_logits(s));
    assert_int_equal(tqe_session_eval(s, ids, 21, NULL, NULL, NULL, &err), TQE_ERR_FULL);
    assert_non_null(strstr(err.text, "20"));
    assert_int_equal(tqe_session_len(s), 0);
    assert_int_equal(tqe_session_eval(s, ids, 0, NULL, NULL, NULL, &err), TQE_ERR_ARG);
    ids[3] = (int32_t)info.n_vocab;
    assert_int_equal(tqe_session_eval(s, ids, 4, NULL, NULL, NULL, &err), TQE_ERR_ARG);
    ids[3] = -1;
    assert_int_equal(tqe_session_eval(s, ids, 4, NULL, NULL, NULL, &err), TQE_ERR_ARG);
    assert_non_null(strstr(err.text, "token 3"));
    assert_int_equal(tqe_session_len(s), 0);
    ids[3] = 5;
    assert_int_equal(tqe_session_eval(s, ids, 20, NULL, NULL, NULL, &err), TQE_OK);
    const float before = tqe_session_logits(s)[7];
    assert_int_equal(tqe_session_eval(s, ids, 1, NULL, NULL, NULL, &err), TQE_ERR_FULL);
    assert_int_equal(tqe_session_len(s), 20);
    assert_true(tqe_session_logits(s)[7] == before);
    assert_int_equal(tqe_session_truncate(s, 21, &err), TQE_ERR_ARG);
    tqe_session_info si;
    tqe_session_get_info(s, &si);
    assert_int_equal(si.n_tokens, 20);
    assert_int_equal(si.kv_bytes_used, 20 * si.kv_bytes_per_token);
    tqe_session_free(s);
}

typedef struct stopper {
    size_t calls, stop_at;
} stopper;

static bool on_progress(void *ctx, size_t n_done, size_t n_total)
{
    stopper *st = ctx;
    assert_true(n_done <= n_total);
    return ++st->calls < st->stop_at;
}

static void test_progress_and_cancel(void **state)
{
    (void)state;
    tqe_session *s = open_session(64, 8, "f16");
    tqe_error err = {TQE_OK, ""};
    int32_t ids[30];
    for (int i = 0; i < 30; i++) {
        ids[i] = i;
    }
    stopper st = {0, 100};
    assert_int_equal(tqe_session_eval(s, ids, 30, NULL, on_progress, &st, &err), TQE_OK);
    assert_int_equal(st.calls, 4);
    assert_int_equal(tqe_session_truncate(s, 0, &err), TQE_OK);
    st = (stopper){0, 2};
    assert_int_equal(tqe_session_eval(s, ids, 30, NULL, on_progress, &st, &err), TQE_ERR_CANCELLED);
    assert_int_equal(tqe_session_len(s), 16); /* the batches done stay */
    assert_null(tqe_session_logits(s));
    assert_int_equal(tqe_session_eval(s, ids + 16, 14, NULL, NULL, NULL, &err), TQE_OK);
    tqe_session_free(s);
}

/* A NaN weight is an error of the eval, and the session is as it was. */
static void nan_case(const char *tensor, const char *kv)
{
    gen_model g = gen_model_of("qwen3");
    g.nan_tensor = tensor;
    const char *path = gen_temp_path("nan.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *m = NULL;
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    assert_int_equal(tqe_model_load(&m, path, NULL, &err), TQE_OK);
    const tqe_session_params p = {.n_ctx = 64, .n_threads = 1, .n_batch = 4, .kv = kv};
    assert_int_equal(tqe_session_create(&s, m, &p, &err), TQE_OK);
    const int32_t ids[6] = {9, 8, 7, 6, 5, 4};
    for (size_t n = 1; n <= 6; n += 5) { /* the decode graph and the prompt graph */
        assert_int_equal(tqe_session_eval(s, ids, n, NULL, NULL, NULL, &err), TQE_ERR_NUMERIC);
        assert_non_null(strstr(err.text, "weights are damaged"));
        assert_int_equal(tqe_session_len(s), 0);
        assert_null(tqe_session_logits(s));
    }
    tqe_session_free(s);
    tqe_model_free(m);
}

static void test_nan_weights(void **state)
{
    (void)state;
    nan_case("blk.0.attn_k.weight", "f16");
    nan_case("blk.1.attn_v.weight", "turbo:k8v3");
    nan_case("blk.1.attn_q.weight", "turbo:k8v3");
    nan_case("blk.1.ffn_down.weight", "turbo:k8v3"); /* first seen in the logits */
    nan_case("output_norm.weight", "f32");
}

/* One bad embedding row: only evals that use it fail, the session goes on. */
static void test_nan_in_one_token(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama"); /* untied: row 0 does not spread over all logits */
    g.d_head = 64;
    g.nan_tensor = "token_embd.weight";
    const char *path = gen_temp_path("nan1.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *m = NULL;
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    assert_int_equal(tqe_model_load(&m, path, NULL, &err), TQE_OK);
    const tqe_session_params p = {.n_ctx = 64, .n_threads = 1, .n_batch = 4, .kv = "turbo:k8v3"};
    assert_int_equal(tqe_session_create(&s, m, &p, &err), TQE_OK);
    const int32_t good[3] = {5, 6, 7};
    const int32_t mixed[7] = {5, 6, 7, 8, 9, 0, 4}; /* the second batch fails */
    assert_int_equal(tqe_session_eval(s, good, 3, NULL, NULL, NULL, &err), TQE_OK);
    const float before = tqe_session_logits(s)[11];
    assert_int_equal(tqe_session_eval(s, mixed, 7, NULL, NULL, NULL, &err), TQE_ERR_NUMERIC);
    assert_int_equal(tqe_session_len(s), 3);
    assert_true(tqe_session_logits(s)[11] == before);
    assert_int_equal(tqe_session_truncate(s, 2, &err), TQE_OK);
    assert_int_equal(tqe_session_eval(s, good + 2, 1, NULL, NULL, NULL, &err), TQE_OK);
    tqe_session_free(s);
    tqe_model_free(m);
}

static void test_model_info(void **state)
{
    (void)state;
    assert_string_equal(info.arch, "qwen3");
    assert_string_equal(info.weights, "F32");
    assert_int_equal(info.n_layers, 2);
    assert_int_equal(info.d_k, 64);
    assert_int_equal(info.n_kv_heads, 2);
    assert_true(info.tied_output);
    assert_true(info.has_chat_template);
    assert_string_equal(tqe_known_archs(), "llama, qwen2, qwen3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_params),
        cmocka_unit_test(test_head_dim_of_scheme),
        cmocka_unit_test(test_defaults_and_accounting),
        cmocka_unit_test(test_full_and_bad_ids_change_nothing),
        cmocka_unit_test(test_progress_and_cancel),
        cmocka_unit_test(test_nan_weights),
        cmocka_unit_test(test_nan_in_one_token),
        cmocka_unit_test(test_model_info),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
