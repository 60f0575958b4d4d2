/* SPDX-License-Identifier: MIT */
/* test_logits.c — our graphs against libllama's, in the same process, on random models.
 *
 * F32 weights and an f32 cache on both sides: what is left is the order of sums, so every logit of
 * every position agrees within 2e-4 even though chunks differ from libllama's. A wrong rotation,
 * mask, norm or bias is off by 0.01 to 1.
 */
#include "engine.h"
#include "gen_model.h"
#include "unit/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 48u

static const size_t mixed[] = {1, 7, 16, 3, 21, 0};
static const size_t one_shot[] = {N_TOKENS, 0};

typedef struct logits {
    float *x; /* [N_TOKENS][n_vocab] */
    size_t n_vocab;
} logits;

static void fill_ids(int32_t ids[N_TOKENS], uint32_t n_vocab)
{
    uint64_t rng = 77;
    for (size_t i = 0; i < N_TOKENS; i++) {
        ids[i] = (int32_t)(gen_next(&rng) % n_vocab);
    }
}

static tqe_model *load(const char *path, bool no_repack)
{
    tqe_model *m = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_model_params mp = {.no_repack = no_repack};
    if (tqe_model_load(&m, path, &mp, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    return m;
}

static tqe_session *open_session(const tqe_model *m, const char *kv)
{
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_session_params p = {.n_ctx = 128, .n_threads = 1, .n_batch = 32, .kv = kv};
    if (tqe_session_create(&s, m, &p, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    return s;
}

static logits make_logits(size_t n_vocab)
{
    const logits l = {malloc(N_TOKENS * n_vocab * sizeof(float)), n_vocab};
    assert_non_null(l.x);
    return l;
}

/* chunks: sizes, ended by 0. */
static logits run_ours(const tqe_model *m, const char *kv, const size_t *chunks)
{
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    int32_t ids[N_TOKENS];
    fill_ids(ids, info.n_vocab);
    logits l = make_logits(info.n_vocab);
    tqe_session *s = open_session(m, kv);
    tqe_error err = {TQE_OK, ""};
    size_t done = 0;
    for (; *chunks != 0; chunks++) {
        if (tqe_session_eval(s, ids + done, *chunks, l.x + done * l.n_vocab, NULL, NULL, &err) !=
            TQE_OK) {
            fail_msg("%s", err.text);
        }
        done += *chunks;
    }
    assert_int_equal(done, N_TOKENS);
    tqe_session_free(s);
    return l;
}

static logits run_peer(const char *path, size_t n_vocab, const char *kv)
{
    int32_t ids[N_TOKENS];
    fill_ids(ids, (uint32_t)n_vocab);
    logits l = make_logits(n_vocab);
    tqe_peer *p = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_peer_params pp = {.n_ctx = 128, .n_threads = 1, .n_batch = 64, .kv_type = kv};
    if (tqe_peer_create(&p, path, &pp, &err) != TQE_OK ||
        tqe_peer_eval(p, ids, N_TOKENS, l.x, NULL, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    tqe_peer_free(p);
    return l;
}

/* Largest difference over positions [first, first + n). */
static double max_diff(const logits *a, const logits *b, size_t first, size_t n)
{
    double worst = 0.0;
    for (size_t i = first * a->n_vocab; i < (first + n) * a->n_vocab; i++) {
        const double d = fabs((double)a->x[i] - (double)b->x[i]);
        worst = d > worst || !(d <= worst) ? d : worst;
    }
    return worst;
}

/* Standard deviation of all logits. */
static double spread(const logits *a)
{
    double sum = 0.0;
    double sq = 0.0;
    const size_t n = N_TOKENS * a->n_vocab;
    for (size_t i = 0; i < n; i++) {
        sum += (double)a->x[i];
        sq += (double)a->x[i] * (double)a->x[i];
    }
    return sqrt(sq / (double)n - sum / (double)n * sum / (double)n);
}

/* ---- F32 weights, f32 cache --------------------------------------------------------------------
 */

static void compare_with_libllama(const gen_model *g, const char *name)
{
    const char *path = gen_temp_path(name);
    assert_true(gen_model_write(g, path));
    tqe_model *m = load(path, false);
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    logits peer = run_peer(path, info.n_vocab, "f32");
    logits ours = run_ours(m, "f32", mixed);
    const double diff = max_diff(&ours, &peer, 0, N_TOKENS);
    print_message("%-18s %-24s spread %.2f  max |difference| %.2g\n", name, info.rope,
                  spread(&peer), diff);
    assert_true(spread(&peer) > 0.3);
    assert_true(diff <= 2e-4);
    free(peer.x);
    free(ours.x);
    tqe_model_free(m);
}

static void test_llama2(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.spm = true;
    g.n_kv_heads = 4;
    compare_with_libllama(&g, "llama2.gguf");
}

static void test_llama3(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.rope_freqs = true;
    g.rope_base = 500000.0f;
    compare_with_libllama(&g, "llama3.gguf");
}

static void test_llama_linear(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.rope_scaling = "linear";
    compare_with_libllama(&g, "llama-linear.gguf");
}

static void test_llama_yarn(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.rope_scaling = "yarn";
    compare_with_libllama(&g, "llama-yarn.gguf");
}

static void test_llama_none(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.rope_scaling = "none"; /* the factor must then not count */
    compare_with_libllama(&g, "llama-none.gguf");
}

static void test_mistral(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.spm = true;
    g.d_head = 32; /* heads * d_head != n_embd, as in Mistral Nemo */
    g.rope_base = 1e6f;
    g.n_kv_heads = 1;
    compare_with_libllama(&g, "mistral.gguf");
}

static void test_llama_biases(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.qkv_bias = true;
    g.extra_bias = true;
    g.untied = false;
    compare_with_libllama(&g, "llama-biases.gguf");
}

static void test_llama_fused(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.fused_qkv = true;
    g.qkv_bias = true;
    compare_with_libllama(&g, "llama-fused.gguf");
}

static void test_qwen2(void **state)
{
    (void)state;
    gen_model g = gen_model_of("qwen2");
    g.output_bias = true;
    compare_with_libllama(&g, "qwen2.gguf");
}

static void test_qwen2_yarn_tied(void **state)
{
    (void)state;
    gen_model g = gen_model_of("qwen2");
    g.untied = false;
    g.rope_scaling = "yarn";
    compare_with_libllama(&g, "qwen2-yarn.gguf");
}

static void test_qwen3(void **state)
{
    (void)state;
    const gen_model g = gen_model_of("qwen3");
    compare_with_libllama(&g, "qwen3.gguf");
}

/* libllama cannot run F16 norms at all: the reference is the same model with them in F32. */
static void test_f16_vectors(void **state)
{
    (void)state;
    gen_model g = gen_model_of("qwen2");
    g.output_bias = true;
    g.round_vectors = true;
    const char *path = gen_temp_path("f32-vectors.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *wide = load(path, false);
    g.f16_vectors = true;
    path = gen_temp_path("f16-vectors.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *narrow = load(path, false);
    logits a = run_ours(wide, "f32", mixed);
    logits b = run_ours(narrow, "f32", mixed);
    assert_memory_equal(a.x, b.x, N_TOKENS * a.n_vocab * sizeof(float));
    free(a.x);
    free(b.x);
    tqe_model_free(wide);
    tqe_model_free(narrow);
    tqe_peer *p = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_peer_params pp = {.n_ctx = 128, .n_threads = 1, .n_batch = 64, .kv_type = "f32"};
    assert_int_equal(tqe_peer_create(&p, path, &pp, &err), TQE_ERR_UNSUPPORTED);
}

/* libllama does not read the window key of these architectures: equal up to the window, and
 * different after it. */
static void test_window(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.window = 16;
    const char *path = gen_temp_path("window.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *m = load(path, false);
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    assert_int_equal(info.window, 16);
    logits peer = run_peer(path, info.n_vocab, "f32");
    logits ours = run_ours(m, "f32", mixed);
    logits whole = run_ours(m, "f32", one_shot);
    assert_true(max_diff(&ours, &peer, 0, 16) <= 2e-4);
    assert_true(max_diff(&ours, &peer, 16, N_TOKENS - 16) > 1e-2);
    assert_true(max_diff(&ours, &whole, 0, N_TOKENS) <= 2e-4);
    free(peer.x);
    free(ours.x);
    free(whole.x);
    tqe_model_free(m);
}

/* ---- Other weight types -------------------------------------------------------------------------
 */

static void test_weight_types(void **state)
{
    (void)state;
    static const enum ggml_type types[] = {
        GGML_TYPE_F16,   GGML_TYPE_BF16,  GGML_TYPE_Q8_0,   GGML_TYPE_Q4_0,   GGML_TYPE_Q4_1,
        GGML_TYPE_Q5_0,  GGML_TYPE_Q5_1,  GGML_TYPE_Q2_K,   GGML_TYPE_Q3_K,   GGML_TYPE_Q4_K,
        GGML_TYPE_Q5_K,  GGML_TYPE_Q6_K,  GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_TQ1_0,
        GGML_TYPE_TQ2_0, GGML_TYPE_MXFP4,
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        gen_model g = gen_model_of("llama");
        g.type = types[i];
        g.n_layers = 1;
        g.n_embd = 256;
        g.n_ff = 256;
        g.seed = 5 + i;
        const char *path = gen_temp_path("types.gguf");
        assert_true(gen_model_write(&g, path));
        tqe_model *m = load(path, false);
        tqe_model *plain = load(path, true);
        tqe_model_info info;
        tqe_model_get_info(m, &info);
        logits peer = run_peer(path, info.n_vocab, "f32");
        logits ours = run_ours(m, "f32", mixed);
        logits mapped = run_ours(plain, "f32", mixed);
        /* Activations are rounded to 8 bits or 16: a sum that rounds the other way moves a logit
         * by a step of that, so the bound is a fraction of the spread. */
        const double sd = spread(&peer);
        const double diff = max_diff(&ours, &peer, 0, N_TOKENS) / sd;
        const double repack = max_diff(&ours, &mapped, 0, N_TOKENS) / sd;
        print_message("%-8s relative difference: libllama %.2g, without repacking %.2g\n",
                      info.weights, diff, repack);
        assert_true(diff <= 0.05);
        assert_true(repack <= 0.05);
        free(peer.x);
        free(ours.x);
        free(mapped.x);
        tqe_model_free(m);
        tqe_model_free(plain);
    }
    ggml_quantize_free();
}

/* ---- Chunks, truncation, schemes ---------------------------------------------------------- */

static tqe_model *qwen3_model(const char *name)
{
    const gen_model g = gen_model_of("qwen3");
    const char *path = gen_temp_path(name);
    assert_true(gen_model_write(&g, path));
    return load(path, false);
}

static void test_chunks_close(void **state)
{
    (void)state;
    tqe_model *m = qwen3_model("chunks.gguf");
    logits a = run_ours(m, "f32", mixed);
    logits b = run_ours(m, "f32", one_shot);
    assert_true(max_diff(&a, &b, 0, N_TOKENS) <= 2e-4);
    free(a.x);
    free(b.x);
    tqe_model_free(m);
}

/* Only the last row is computed when no more is asked for: it must be the row of all. */
static void test_last_row_is_the_last_of_all(void **state)
{
    (void)state;
    tqe_model *m = qwen3_model("last.gguf");
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    int32_t ids[N_TOKENS];
    fill_ids(ids, info.n_vocab);
    logits all = run_ours(m, "f32", one_shot);
    tqe_session *s = open_session(m, "f32");
    tqe_error err = {TQE_OK, ""};
    assert_int_equal(tqe_session_eval(s, ids, N_TOKENS, NULL, NULL, NULL, &err), TQE_OK);
    const float *last = tqe_session_logits(s);
    const float *want = all.x + (N_TOKENS - 1) * info.n_vocab;
    for (size_t i = 0; i < info.n_vocab; i++) {
        assert_true(fabsf(last[i] - want[i]) <= 2e-4f);
    }
    free(all.x);
    tqe_session_free(s);
    tqe_model_free(m);
}

static void test_truncate_then_append(void **state)
{
    (void)state;
    static const char *const kvs[] = {"f32", "bf16", "turbo:k8v3", "turbo:k4v4"};
    tqe_model *m = qwen3_model("truncate.gguf");
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    int32_t ids[N_TOKENS];
    fill_ids(ids, info.n_vocab);
    const size_t row = info.n_vocab * sizeof(float);
    float *want = malloc(row);
    tqe_error err = {TQE_OK, ""};
    for (size_t i = 0; i < sizeof(kvs) / sizeof(kvs[0]); i++) {
        tqe_session *fresh = open_session(m, kvs[i]);
        tqe_session *used = open_session(m, kvs[i]);
        assert_int_equal(tqe_session_eval(fresh, ids, 19, NULL, NULL, NULL, &err), TQE_OK);
        assert_int_equal(tqe_session_eval(fresh, ids + 19, 5, NULL, NULL, NULL, &err), TQE_OK);
        memcpy(want, tqe_session_logits(fresh), row);
        assert_int_equal(tqe_session_eval(used, ids, 19, NULL, NULL, NULL, &err), TQE_OK);
        assert_int_equal(tqe_session_eval(used, ids + 24, 24, NULL, NULL, NULL, &err), TQE_OK);
        assert_int_equal(tqe_session_truncate(used, 19, &err), TQE_OK);
        assert_null(tqe_session_logits(used));
        assert_int_equal(tqe_session_len(used), 19);
        assert_int_equal(tqe_session_eval(used, ids + 19, 5, NULL, NULL, NULL, &err), TQE_OK);
        assert_memory_equal(tqe_session_logits(used), want, row);
        tqe_session_free(fresh);
        tqe_session_free(used);
    }
    free(want);
    tqe_model_free(m);
}

/* Compressed caches stay close to the exact one, the closer the more bits; dequant is the same
 * computation on decoded values, but for the rounding that kernels.h allows. */
static void test_schemes(void **state)
{
    (void)state;
    tqe_model *m = qwen3_model("schemes.gguf");
    logits exact = run_ours(m, "f32", mixed);
    logits f16 = run_ours(m, "f16", mixed);
    logits k8v8 = run_ours(m, "turbo:k8v8", mixed);
    logits k8v3 = run_ours(m, "turbo:k8v3", mixed);
    logits k2v2 = run_ours(m, "turbo:k2v2", mixed);
    logits dequant = run_ours(m, "turbo:k8v3,attn=dequant", mixed);
    logits k8v5 = run_ours(m, "turbo:k8v5", mixed);
    logits dequant5 = run_ours(m, "turbo:k8v5,attn=dequant", mixed);
    const double sd = spread(&exact);
    const double d16 = max_diff(&f16, &exact, 0, N_TOKENS) / sd;
    const double d88 = max_diff(&k8v8, &exact, 0, N_TOKENS) / sd;
    const double d83 = max_diff(&k8v3, &exact, 0, N_TOKENS) / sd;
    const double d22 = max_diff(&k2v2, &exact, 0, N_TOKENS) / sd;
    const double ddq = max_diff(&k8v3, &dequant, 0, N_TOKENS) / sd;
    const double dd5 = max_diff(&k8v5, &dequant5, 0, N_TOKENS) / sd;
    print_message("relative to f32: f16 %.2g, k8v8 %.2g, k8v3 %.2g, k2v2 %.2g; fused against "
                  "dequant: k8v3 %.2g, k8v5 %.2g\n",
                  d16, d88, d83, d22, ddq, dd5);
    assert_true(d16 < 0.01);
    assert_true(d88 > d16 && d88 < 0.1);
    assert_true(d83 > d88 && d83 < 1.5);
    assert_true(d22 > d83);
    assert_true(ddq < 0.25 * d83); /* weights in bytes: a fraction of what 3 bits cost */
    assert_true(dd5 < 2e-3);
    free(exact.x);
    free(f16.x);
    free(k8v8.x);
    free(k8v3.x);
    free(k8v5.x);
    free(dequant5.x);
    free(k2v2.x);
    free(dequant.x);
    tqe_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama2),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_llama_linear),
        cmocka_unit_test(test_llama_yarn),
        cmocka_unit_test(test_llama_none),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_llama_biases),
        cmocka_unit_test(test_llama_fused),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen2_yarn_tied),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_f16_vectors),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_weight_types),
        cmocka_unit_test(test_chunks_close),
        cmocka_unit_test(test_last_row_is_the_last_of_all),
        cmocka_unit_test(test_truncate_then_append),
        cmocka_unit_test(test_schemes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
