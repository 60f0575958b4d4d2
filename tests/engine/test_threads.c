/* SPDX-License-Identifier: MIT */
/* test_threads.c — 1, 2 and 3 threads give the same bytes, in the prompt and while decoding.
 *
 * One small layer and few graphs: threads of ggml spin at barriers, and where they outnumber the
 * free cores each barrier waits for the scheduler.
 */
#include "engine.h"
#include "gen_model.h"
#include "unit/support.h"

#define N_PROMPT 70u /* two pages of the cache */
#define N_DECODE 2u

/* Logits of the prompt's last token and of each decoded one, [N_DECODE + 1][n_vocab]. */
static float *run(const tqe_model *m, size_t n_vocab, const char *kv, uint32_t n_threads)
{
    int32_t ids[N_PROMPT + N_DECODE];
    uint64_t rng = 3;
    for (size_t i = 0; i < N_PROMPT + N_DECODE; i++) {
        ids[i] = (int32_t)(gen_next(&rng) % n_vocab);
    }
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_session_params p = {.n_ctx = 128, .n_threads = n_threads, .kv = kv};
    if (tqe_session_create(&s, m, &p, &err) != TQE_OK ||
        tqe_session_eval(s, ids, N_PROMPT, NULL, NULL, NULL, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    float *out = malloc((N_DECODE + 1) * n_vocab * sizeof(float));
    assert_non_null(out);
    memcpy(out, tqe_session_logits(s), n_vocab * sizeof(float));
    for (size_t i = 0; i < N_DECODE; i++) {
        assert_int_equal(tqe_session_eval(s, ids + N_PROMPT + i, 1, NULL, NULL, NULL, &err),
                         TQE_OK);
        memcpy(out + (i + 1) * n_vocab, tqe_session_logits(s), n_vocab * sizeof(float));
    }
    tqe_session_free(s);
    return out;
}

static void check(enum ggml_type type, const char *kv)
{
    gen_model g = gen_model_of("qwen3");
    g.n_layers = 1;
    g.n_embd = 256;
    g.type = type;
    const char *path = gen_temp_path("threads.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *m = NULL;
    tqe_error err = {TQE_OK, ""};
    if (tqe_model_load(&m, path, NULL, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    float *one = run(m, info.n_vocab, kv, 1);
    for (uint32_t n = 2; n <= 3; n++) {
        float *other = run(m, info.n_vocab, kv, n);
        assert_memory_equal(one, other, (N_DECODE + 1) * info.n_vocab * sizeof(float));
        free(other);
    }
    free(one);
    tqe_model_free(m);
}

static void test_f16_cache(void **state)
{
    (void)state;
    check(GGML_TYPE_F32, "f16");
}

static void test_turbo_cache(void **state)
{
    (void)state;
    check(GGML_TYPE_F16, "turbo:k8v3");
}

static void test_repacked_weights(void **state)
{
    (void)state;
    check(GGML_TYPE_Q4_0, "turbo:k8v3,attn=dequant");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_cache),
        cmocka_unit_test(test_turbo_cache),
        cmocka_unit_test(test_repacked_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
