/* SPDX-License-Identifier: MIT */
/* test_tune.c — the choice against brute force, measurements against a plain computation, the mean
 * of the keys against the rows of a cache, and that what is chosen works as a scheme with files. */
#include "eval.h"
#include "gen_model.h"
#include "scheme_files.h"
#include "snapshot.h"
#include "tune.h"
#include "unit/support.h"

enum { N_CTX = 96, FROM = 10 };

static tqe_model *model;
static tqe_model_info info;
static int32_t ids[N_CTX];
static const tqe_tune_params params = {.n_ctx = N_CTX, .from = FROM, .n_threads = 1};

static int setup(void **state)
{
    (void)state;
    gen_model g = gen_model_of("qwen3");
    g.d_head = 64;
    g.n_layers = 3;
    const char *path = gen_temp_path("tune.gguf");
    tqe_error err = {TQE_OK, ""};
    if (!gen_model_write(&g, path) || tqe_model_load(&model, path, NULL, &err) != TQE_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    tqe_model_get_info(model, &info);
    uint64_t seed = 5;
    for (size_t i = 0; i < N_CTX; i++) {
        ids[i] = (int32_t)(test_random(&seed) % info.n_vocab);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(model);
    return 0;
}

static tq_scheme scheme_of(const char *text)
{
    tq_scheme s;
    assert_int_equal(tq_scheme_parse(&s, text, NULL, 0), TQ_OK);
    return s;
}

/* ---- The choice ---- */

/* Least cost over all assignments, by trying each of them. */
static double brute_force(const tqe_tune_choice *c, size_t n_layers, size_t n_choices,
                          uint64_t budget, uint64_t *least_bytes)
{
    double best = INFINITY;
    uint32_t pick[8] = {0};
    for (;;) {
        double cost = 0;
        uint64_t bytes = 0;
        for (size_t i = 0; i < n_layers; i++) {
            cost += c[i * n_choices + pick[i]].cost;
            bytes += c[i * n_choices + pick[i]].bytes;
        }
        if (bytes <= budget && (cost < best || (cost <= best && bytes < *least_bytes))) {
            best = cost;
            *least_bytes = bytes;
        }
        size_t i = 0;
        while (i < n_layers && ++pick[i] == n_choices) {
            pick[i++] = 0;
        }
        if (i == n_layers) {
            return best;
        }
    }
}

static void test_solve(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 400; round++) {
        const size_t n_layers = 1 + test_random(&seed) % 5;
        const size_t n_choices = 1 + test_random(&seed) % 6;
        const uint32_t unit = round % 3 == 0 ? 1 : round % 3 == 1 ? 2 : 24;
        tqe_tune_choice c[5 * 6];
        uint64_t least = 0, most = 0;
        for (size_t i = 0; i < n_layers; i++) {
            uint32_t low = UINT32_MAX, high = 0;
            for (size_t k = 0; k < n_choices; k++) {
                tqe_tune_choice *x = &c[i * n_choices + k];
                x->bytes = unit * (uint32_t)(test_random(&seed) % 40);
                /* Eighths add up without rounding, and often to the same. */
                x->cost = (double)(test_random(&seed) % (round % 2 ? 8 : 4096)) / 8;
                low = x->bytes < low ? x->bytes : low;
                high = x->bytes > high ? x->bytes : high;
            }
            least += low;
            most += high;
        }
        for (uint64_t budget = least; budget <= most + 1; budget += 1 + most / 16) {
            uint32_t pick[5];
            uint64_t want_bytes = UINT64_MAX, bytes = 0;
            const double want = brute_force(c, n_layers, n_choices, budget, &want_bytes);
            double cost = 0;
            assert_int_equal(tqe_tune_solve(c, n_layers, n_choices, budget, pick, NULL), TQE_OK);
            for (size_t i = 0; i < n_layers; i++) {
                assert_true(pick[i] < n_choices);
                cost += c[i * n_choices + pick[i]].cost;
                bytes += c[i * n_choices + pick[i]].bytes;
            }
            assert_true(bytes <= budget);
            assert_true(cost == want);
            assert_true(bytes == want_bytes);
        }
        uint32_t pick[5];
        if (least > 0) {
            assert_int_equal(tqe_tune_solve(c, n_layers, n_choices, least - 1, pick, NULL),
                             TQE_ERR_FULL);
        }
    }
}

static void test_solve_refusals(void **state)
{
    (void)state;
    tqe_error err = {TQE_OK, ""};
    uint32_t pick[2];
    const tqe_tune_choice nan = {8, NAN}, huge = {UINT32_MAX, 1}, one = {1, 1};
    const tqe_tune_choice odd[2] = {huge, one};
    assert_int_equal(tqe_tune_solve(NULL, 1, 1, 8, pick, NULL), TQE_ERR_ARG);
    assert_int_equal(tqe_tune_solve(&one, 0, 1, 8, pick, NULL), TQE_ERR_ARG);
    assert_int_equal(tqe_tune_solve(&one, 1, 0, 8, pick, NULL), TQE_ERR_ARG);
    assert_int_equal(tqe_tune_solve(&nan, 1, 1, 8, pick, &err), TQE_ERR_NUMERIC);
    assert_int_equal(tqe_tune_solve(odd, 1, 2, UINT64_MAX, pick, &err), TQE_ERR_NOMEM);
    assert_non_null(strstr(err.text, "too large"));
    assert_int_equal(tqe_tune_solve(odd, 1, 2, 1, pick, NULL), TQE_OK);
    assert_int_equal(pick[0], 1);
    /* Of choices that are equal in both, the first. */
    const tqe_tune_choice alike[4] = {{4, 2}, {4, 2}, {8, 1}, {8, 1}};
    assert_int_equal(tqe_tune_solve(alike, 1, 4, 7, pick, NULL), TQE_OK);
    assert_int_equal(pick[0], 0);
    assert_int_equal(tqe_tune_solve(alike, 1, 4, 8, pick, NULL), TQE_OK);
    assert_int_equal(pick[0], 2);
    /* Sizes of which the greatest divisor is large make a small table. */
    assert_int_equal(tqe_tune_solve(&huge, 1, 1, UINT64_MAX, pick, NULL), TQE_OK);
}

/* ---- Measurements ---- */

/* Mean KL to f32 of a scheme string, by the evaluation. */
static double kl_of(const char *kv)
{
    const tqe_eval_params p = {
        .n_ctx = N_CTX, .n_cache = N_CTX, .from = FROM, .n_threads = 1, .kv = &kv, .n_kv = 1};
    tqe_eval *e = NULL;
    tqe_eval_record rec[3];
    tqe_error err = {TQE_OK, ""};
    if (tqe_eval_create(&e, model, &p, &err) != TQE_OK ||
        tqe_eval_window(e, ids, rec, NULL, NULL, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    tqe_eval_free(e);
    return rec[2].kl_mean;
}

static void measure(const tqe_tune_variant *v, size_t n, double *kl)
{
    tqe_error err = {TQE_OK, ""};
    if (tqe_tune_window(model, &params, ids, v, n, kl, NULL, NULL, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
}

/* Variants alone and together, uniform and mixed ones, give what an evaluation gives for the same
 * scheme; the mixed one and the mean through their files. */
static void test_window(void **state)
{
    (void)state;
    const size_t n_keys = (size_t)info.n_layers * info.n_kv_heads * info.d_k;
    const tq_scheme f32 = scheme_of("f32"), tcq4 = scheme_of("tcq4"), pair = scheme_of("tcq2v5");
    const tq_scheme plain[] = {tcq4, tcq4, tcq4};
    const tq_scheme mixed[] = {f32, pair, tcq4};
    const tq_scheme reference[] = {f32, f32, f32};
    char id[65], kv[TQ_SCHEME_TEXT_BYTES], layers_path[128], kmean_path[128];
    double sums[3 * 64 * 64] = {0};
    float mean[3 * 64 * 64];
    assert_true(n_keys <= sizeof(mean) / sizeof(*mean));
    assert_int_equal(tqe_tune_add_keys(model, &params, ids, sums, NULL, NULL, NULL), TQE_OK);
    for (size_t i = 0; i < n_keys; i++) {
        mean[i] = (float)sums[i];
    }
    const tqe_tune_variant v[] = {
        {reference, NULL}, {plain, NULL}, {mixed, NULL}, {mixed, mean}, {plain, mean}};
    double kl[5], alone;
    measure(v, 5, kl);
    for (size_t i = 0; i < 5; i++) {
        measure(&v[i], 1, &alone);
        assert_true(alone == kl[i]);
    }
    assert_true(kl[0] == 0);
    assert_true(kl[1] > 0 && fabs(kl[1] - kl_of("tcq4")) < 1e-9 * kl[1]);
    snprintf(layers_path, sizeof(layers_path), "%s", gen_temp_path("tune.layers"));
    snprintf(kmean_path, sizeof(kmean_path), "%s", gen_temp_path("tune.kmean"));
    const tqe_kmean_shape shape = {info.n_layers, info.n_kv_heads, info.d_k};
    assert_int_equal(tqe_layers_write(layers_path, mixed, info.n_layers, NULL, NULL), TQE_OK);
    assert_int_equal(tqe_model_fingerprint_text(model, id, NULL), TQE_OK);
    assert_int_equal(tqe_kmean_write(kmean_path, mean, &shape, id, NULL, NULL), TQE_OK);
    snprintf(kv, sizeof(kv), "tcq4,layers=%s", layers_path);
    assert_true(fabs(kl[2] - kl_of(kv)) < 1e-9 * kl[2]);
    snprintf(kv, sizeof(kv), "tcq4,kmean=%s,layers=%s", kmean_path, layers_path);
    assert_true(fabs(kl[3] - kl_of(kv)) < 1e-9 * kl[3]);
    assert_true(kl[3] != kl[2]);
    snprintf(kv, sizeof(kv), "tcq4,kmean=%s", kmean_path);
    assert_true(fabs(kl[4] - kl_of(kv)) < 1e-9 * kl[4]);
}

/* Moved keys: subtracting the mean changes an f16 cache by nothing and a mean of zero nothing at
 * all, so what is collected is what the cache holds: its mean over one window leaves rows without
 * one. */
static void test_keys(void **state)
{
    (void)state;
    const size_t n_keys = (size_t)info.n_layers * info.n_kv_heads * info.d_k;
    double once[3 * 64 * 64] = {0}, twice[3 * 64 * 64] = {0};
    float mean[3 * 64 * 64];
    assert_int_equal(tqe_tune_add_keys(model, &params, ids, once, NULL, NULL, NULL), TQE_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tqe_tune_add_keys(model, &params, ids, twice, NULL, NULL, NULL), TQE_OK);
    }
    double ssq = 0;
    for (size_t i = 0; i < n_keys; i++) {
        assert_true(fabs(twice[i] - 2 * once[i]) <= 1e-12 * fabs(twice[i]));
        ssq += once[i] * once[i];
        mean[i] = (float)once[i];
    }
    assert_true(ssq > 0);
    /* A cache that is stored without a mean ten times the right one is worse than one without the
     * right one: the sign and the order of the values matter. */
    const tq_scheme tcq3 = scheme_of("tcq3");
    const tq_scheme layers[] = {tcq3, tcq3, tcq3};
    float wrong[3 * 64 * 64];
    for (size_t i = 0; i < n_keys; i++) {
        wrong[i] = -10 * mean[i];
    }
    const tqe_tune_variant v[] = {{layers, mean}, {layers, wrong}};
    double kl[2];
    measure(v, 2, kl);
    assert_true(kl[0] < kl[1]);
}

static bool stop(void *ctx, size_t n_done, size_t n_total)
{
    (void)n_total;
    *(size_t *)ctx = n_done;
    return false;
}

static void test_refusals(void **state)
{
    (void)state;
    const tq_scheme f32 = scheme_of("f32");
    const tq_scheme layers[] = {f32, f32, f32};
    const tqe_tune_variant v = {layers, NULL};
    double kl = 7, sums[3 * 64 * 64] = {0};
    size_t at = 0;
    tqe_tune_params p = params;
    assert_int_equal(tqe_tune_window(model, &p, ids, &v, 1, &kl, stop, &at, NULL),
                     TQE_ERR_CANCELLED);
    assert_true(at > 0 && at <= N_CTX);
    p.from = N_CTX - 1;
    assert_int_equal(tqe_tune_window(model, &p, ids, &v, 1, &kl, NULL, NULL, NULL), TQE_ERR_ARG);
    p = params;
    p.n_ctx = 8;
    assert_int_equal(tqe_tune_add_keys(model, &p, ids, sums, NULL, NULL, NULL), TQE_ERR_ARG);
    for (size_t i = 0; i < 3 * 64 * 64; i++) {
        assert_true(sums[i] == 0);
    }
    assert_true(tqe_tune_group(model, &params) >= 1);
}

/* What a mixed cache is said to take is what its session takes. */
static void test_bytes(void **state)
{
    (void)state;
    const tq_scheme layers[] = {scheme_of("tcq2v5"), scheme_of("turbo8"), scheme_of("tcq4")};
    const char *path = gen_temp_path("bytes.layers");
    char kv[TQ_SCHEME_TEXT_BYTES];
    uint64_t sum = 0;
    for (size_t i = 0; i < 3; i++) {
        uint32_t bytes = 0;
        assert_int_equal(tqe_tune_layer_bytes(&info, &layers[i], &bytes, NULL), TQE_OK);
        sum += bytes;
    }
    assert_int_equal(tqe_layers_write(path, layers, info.n_layers, NULL, NULL), TQE_OK);
    snprintf(kv, sizeof(kv), "tcq4,layers=%s", path);
    const tqe_session_params p = {.n_ctx = 1024, .n_threads = 1, .kv = kv};
    tqe_session *s = NULL;
    tqe_session_info si;
    size_t bytes = 0;
    assert_int_equal(tqe_session_create(&s, model, &p, NULL), TQE_OK);
    tqe_session_get_info(s, &si);
    assert_int_equal(si.kv_bytes_per_token, sum);
    assert_int_equal(tqe_tune_cache_bytes(&info, layers, 1024, &bytes, NULL), TQE_OK);
    assert_int_equal(si.kv_bytes_capacity, bytes);
    tqe_session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_solve),  cmocka_unit_test(test_solve_refusals),
        cmocka_unit_test(test_window), cmocka_unit_test(test_keys),
        cmocka_unit_test(test_bytes),  cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
