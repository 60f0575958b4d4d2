/* SPDX-License-Identifier: MIT */
/* test_eval.c — sides, windows and needles of an evaluation, on a generated model. What is measured
 * is compared with a plain computation from the logits of one session each. */
#include "eval.h"
#include "gen_model.h"
#include "unit/support.h"

enum { N_CTX = 96 };

static tqe_model *model;
static tqe_model_info info;
static const char *path;
static int32_t ids[N_CTX];

static int setup(void **state)
{
    (void)state;
    gen_model g = gen_model_of("qwen3");
    g.d_head = 64;
    tqe_error err = {TQE_OK, ""};
    path = gen_temp_path("eval.gguf");
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

static uint32_t batch, n_threads = 1;
static bool exact;

static tqe_eval *open_eval(const char *const *kv, size_t n, const char *const *peer, size_t n_peer)
{
    const tqe_eval_params p = {.n_ctx = N_CTX,
                               .n_cache = N_CTX,
                               .from = 10,
                               .batch = batch,
                               .exact = exact,
                               .n_threads = n_threads,
                               .kv = kv,
                               .n_kv = n,
                               .model_path = path,
                               .peer_kv = peer,
                               .n_peer_kv = n_peer};
    tqe_eval *e = NULL;
    tqe_error err = {TQE_OK, ""};
    if (tqe_eval_create(&e, model, &p, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    return e;
}

static float *logits_of(const char *kv)
{
    const tqe_session_params p = {.n_ctx = N_CTX, .n_threads = 1, .kv = kv};
    tqe_session *s = NULL;
    float *x = malloc((size_t)N_CTX * info.n_vocab * sizeof(*x));
    assert_non_null(x);
    assert_int_equal(tqe_session_create(&s, model, &p, NULL), TQE_OK);
    assert_int_equal(tqe_session_eval(s, ids, N_CTX, x, NULL, NULL, NULL), TQE_OK);
    tqe_session_free(s);
    return x;
}

static double log_prob(const float *x, size_t i)
{
    double sum = 0;
    for (size_t k = 0; k < info.n_vocab; k++) {
        sum += exp((double)x[k]);
    }
    return (double)x[i] - log(sum);
}

static void test_sides(void **state)
{
    (void)state;
    const char *const kv[] = {"tcq3", "f16", "turbo", "tcq3", "turbo:k8v3"};
    const char *const peer[] = {"q8_0", "f16"};
    tqe_eval *e = open_eval(kv, 5, peer, 2);
    static const struct {
        const char *kv;
        bool is_peer;
        uint32_t reference;
    } want[] = {{"f32", false, 0},        {"f16", false, 0}, {"tcq3", false, 0},
                {"turbo:k8v3", false, 0}, {"f16", true, 0},  {"q8_0", true, 4}};
    assert_int_equal(tqe_eval_n_sides(e), 6);
    for (size_t i = 0; i < 6; i++) {
        tqe_eval_side s;
        tqe_eval_get_side(e, i, &s);
        assert_string_equal(s.kv, want[i].kv);
        assert_int_equal(s.is_peer, want[i].is_peer);
        assert_int_equal(s.reference, want[i].reference);
    }
    tqe_eval_free(e);
}

/* Of a pair of sides on one cache the exact one is what its scheme is alone, and the other
 * attends to the same rows without leaving a trace. */
static void test_exact(void **state)
{
    (void)state;
    const char *const kv[] = {"turbo3", "affine4,attn=dequant"};
    const char *const alone[] = {"turbo3,attn=dequant", "affine4,attn=dequant"};
    static const char *const want[] = {
        "f32", "f16", "turbo3,attn=dequant", "turbo3", "affine4,attn=dequant", "affine4"};
    tqe_eval_record rec[6];
    tqe_eval_record rec_alone[4];
    batch = TQE_EVAL_PACKED_BATCH;
    tqe_eval *e = open_eval(alone, 2, NULL, 0);
    assert_int_equal(tqe_eval_window(e, ids, rec_alone, NULL, NULL, NULL), TQE_OK);
    tqe_eval_free(e);
    exact = true;
    e = open_eval(kv, 2, NULL, 0);
    assert_int_equal(tqe_eval_n_sides(e), 6);
    assert_int_equal(tqe_eval_batch(e), batch);
    for (size_t k = 0; k < 6; k++) {
        tqe_eval_side side;
        tqe_eval_get_side(e, k, &side);
        assert_string_equal(side.kv, want[k]);
        assert_int_equal(side.exact, k == 3 ? 2 : k == 5 ? 4 : 0);
    }
    assert_int_equal(tqe_eval_window(e, ids, rec, NULL, NULL, NULL), TQE_OK);
    for (size_t k = 2; k < 6; k += 2) {
        assert_true(rec[k].kl_mean == rec_alone[k / 2 + 1].kl_mean);
        assert_true(rec[k].kl_from_exact == 0);
        assert_true(rec[k + 1].kl_from_exact > 0 &&
                    rec[k + 1].kl_from_exact < 0.01 * rec[k].kl_mean);
        assert_true(fabs(rec[k + 1].kl_mean / rec[k].kl_mean - 1) < 0.1);
        assert_int_equal(rec[k + 1].kv_bytes, rec[k].kv_bytes);
    }
    bool hits[6];
    assert_int_equal(tqe_eval_needle(e, ids, 20, 2, hits, NULL, NULL, NULL), TQE_ERR_ARG);
    tqe_eval_free(e);
    exact = false;
    batch = 0;
    const tqe_eval_params p = {
        .n_ctx = N_CTX, .n_cache = N_CTX, .from = 10, .batch = TQE_EVAL_MAX_BATCH + 1};
    assert_int_equal(tqe_eval_create(&e, model, &p, NULL), TQE_ERR_ARG);
}

/* Mean KL, same top and nll of a side, from the logits of plain sessions. */
static void test_window(void **state)
{
    (void)state;
    const char *const kv[] = {"turbo3"};
    const char *const peer[] = {"q4_0"};
    tqe_eval *e = open_eval(kv, 1, peer, 1);
    tqe_eval_record rec[5];
    tqe_error err = {TQE_OK, ""};
    if (tqe_eval_window(e, ids, rec, NULL, NULL, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    float *ref = logits_of("f32");
    float *x = logits_of("turbo3");
    const size_t n_vocab = info.n_vocab;
    double kl = 0;
    double nll = 0;
    double same = 0;
    for (size_t i = 10; i < N_CTX - 1; i++) {
        const float *p = ref + i * n_vocab;
        const float *q = x + i * n_vocab;
        size_t top_p = 0;
        size_t top_q = 0;
        for (size_t k = 0; k < n_vocab; k++) {
            const double lp = log_prob(p, k);
            kl += exp(lp) * (lp - log_prob(q, k));
            top_p = p[k] > p[top_p] ? k : top_p;
            top_q = q[k] > q[top_q] ? k : top_q;
        }
        nll -= log_prob(q, (size_t)ids[i + 1]);
        same += top_p == top_q;
    }
    const double n = N_CTX - 1 - 10;
    assert_true(rec[0].kl_mean == 0 && rec[0].same_top == 1);
    assert_true(fabs(rec[2].kl_mean - kl / n) < 1e-4 * kl / n);
    assert_true(fabs(rec[2].nll - nll / n) < 1e-6 * nll / n);
    assert_true(fabs(rec[2].same_top - same / n) < 1e-12);
    /* Order of sizes: the noise floor, then 4.5 bits of the peer, then 3.1 of ours; both engines
     * compute the same function. */
    assert_true(rec[1].kl_mean > 0 && rec[1].kl_mean < 0.1 * rec[2].kl_mean);
    assert_true(rec[3].kl_mean < 0.1 * rec[2].kl_mean);
    assert_true(rec[4].kl_mean > rec[1].kl_mean);
    assert_true(rec[2].kl_median <= rec[2].kl_p99 && rec[2].kl_p99 > rec[2].kl_mean);
    /* Buckets of 24 tokens: unscored positions are in them. */
    double sum = 0;
    for (size_t i = 0; i < 4; i++) {
        sum += rec[2].bucket_kl[i];
    }
    assert_true(sum > 0 && rec[2].bucket_kl[4] == 0);
    /* Bytes: formula of turbo3, 2 sides of 64 * 3 / 8 + 2 bytes. */
    assert_int_equal(rec[2].kv_bytes, (uint64_t)N_CTX * info.n_layers * info.n_kv_heads * 2 * 26);
    /* A second time gives the same bits: nothing is left of the first. */
    tqe_eval_record again[5];
    assert_int_equal(tqe_eval_window(e, ids, again, NULL, NULL, NULL), TQE_OK);
    assert_memory_equal(rec, again, sizeof(rec));
    free(ref);
    free(x);
    tqe_eval_free(e);
}

static bool stop(void *ctx, size_t n_done, size_t n_total)
{
    (void)n_total;
    *(size_t *)ctx = n_done;
    return false;
}

static void test_needle(void **state)
{
    (void)state;
    tqe_eval *e = open_eval(NULL, 0, NULL, 0);
    float *x = logits_of("f32");
    int32_t ask[N_CTX];
    bool hits[2];
    const size_t n = 40;
    memcpy(ask, ids, sizeof(ask));
    ask[n - 1] = (int32_t)tqe_argmax(x + (n - 2) * info.n_vocab, info.n_vocab);
    assert_int_equal(tqe_eval_needle(e, ask, n, 1, hits, NULL, NULL, NULL), TQE_OK);
    assert_true(hits[0]);
    ask[n - 1] = (ask[n - 1] + 1) % (int32_t)info.n_vocab;
    assert_int_equal(tqe_eval_needle(e, ask, n, 1, hits, NULL, NULL, NULL), TQE_OK);
    assert_false(hits[0]);
    /* Each of the answer's tokens counts: the second of two is right, the first is not. */
    ask[n - 1] = (int32_t)tqe_argmax(x + (n - 2) * info.n_vocab, info.n_vocab);
    assert_true(ids[n - 2] != (int32_t)tqe_argmax(x + (n - 3) * info.n_vocab, info.n_vocab));
    assert_int_equal(tqe_eval_needle(e, ask, n, 2, hits, NULL, NULL, NULL), TQE_OK);
    assert_false(hits[0]);
    size_t at = 0;
    assert_int_equal(tqe_eval_needle(e, ask, n, 1, hits, stop, &at, NULL), TQE_ERR_CANCELLED);
    assert_int_equal(at, n);
    assert_int_equal(tqe_eval_needle(e, ask, n, 0, hits, NULL, NULL, NULL), TQE_ERR_ARG);
    assert_int_equal(tqe_eval_needle(e, ask, 1, 1, hits, NULL, NULL, NULL), TQE_ERR_ARG);
    assert_int_equal(tqe_eval_needle(e, ask, N_CTX + 2, 1, hits, NULL, NULL, NULL), TQE_ERR_ARG);
    free(x);
    tqe_eval_free(e);
}

/* The records are equal bytes for any number of threads, also with a last step of two tokens. */
static void test_thread_counts(void **state)
{
    (void)state;
    const char *const kv[] = {"tcq3"};
    const char *const peer[] = {"q4_0"};
    enum { N_SIDES = 6 };
    tqe_eval_record rec[2][N_SIDES];
    memset(rec, 0, sizeof(rec)); /* padding, too */
    batch = 47;
    exact = true;
    for (n_threads = 1; n_threads <= 3; n_threads++) {
        tqe_eval *e = open_eval(kv, 1, peer, 1);
        assert_int_equal(tqe_eval_n_sides(e), N_SIDES);
        tqe_eval_record *to = rec[n_threads > 1];
        assert_int_equal(tqe_eval_window(e, ids, to, NULL, NULL, NULL), TQE_OK);
        for (size_t k = 0; k < N_SIDES && n_threads > 1; k++) {
            if (memcmp(&rec[0][k], &rec[1][k], sizeof(rec[0][k])) != 0) {
                fail_msg("side %zu differs with %u threads", k, n_threads);
            }
        }
        tqe_eval_free(e);
    }
    batch = 0;
    exact = false;
    n_threads = 1;
}

static void refuse(tqe_eval_params p, tqe_status want, const char *word)
{
    tqe_eval *e = NULL;
    tqe_error err = {TQE_OK, ""};
    p.n_threads = 1;
    p.model_path = path;
    assert_int_equal(tqe_eval_create(&e, model, &p, &err), want);
    assert_null(e);
    if (strstr(err.text, word) == NULL) {
        fail_msg("'%s' does not name '%s'", err.text, word);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    const char *const bad[] = {"turbo9"};
    const char *const bad_peer[] = {"q9_9"};
    refuse((tqe_eval_params){.n_ctx = 8, .n_cache = 8}, TQE_ERR_ARG, "windows of 8");
    refuse((tqe_eval_params){.n_ctx = 64, .n_cache = 32}, TQE_ERR_ARG, "64");
    refuse((tqe_eval_params){.n_ctx = 64, .n_cache = 64, .from = 63}, TQE_ERR_ARG, "from 63");
    refuse((tqe_eval_params){.n_ctx = 64, .n_cache = 64, .kv = bad, .n_kv = 1}, TQE_ERR_SCHEME,
           "turbo9");
    refuse((tqe_eval_params){.n_ctx = 64, .n_cache = 64, .peer_kv = bad_peer, .n_peer_kv = 1},
           TQE_ERR_ARG, "q9_9");
    assert_int_equal(tqe_eval_create(NULL, model, NULL, NULL), TQE_ERR_ARG);
}

static void test_buckets(void **state)
{
    (void)state;
    uint32_t w = 0;
    for (uint32_t n = TQE_EVAL_MIN_CTX; n < 40000; n = n * 9 / 8 + 1) {
        const uint32_t k = tqe_eval_buckets(n, &w);
        assert_true(k >= 1 && k <= TQE_EVAL_MAX_BUCKETS);
        assert_true((uint64_t)k * w >= n - 1 && (uint64_t)(k - 1) * w < n - 1);
        assert_true(tqe_eval_default_from(n) < n - 1);
    }
    assert_int_equal(tqe_eval_buckets(2048, &w), 8);
    assert_int_equal(w, 256);
    assert_int_equal(tqe_eval_buckets(256, &w), 4);
    assert_int_equal(w, 64);
}

/* Windows lie within the text, do not overlap, and begin with BOS. */
static void test_cut(void **state)
{
    (void)state;
    enum { N = 1000, CTX = 32 };
    int32_t text[N];
    for (int i = 0; i < N; i++) {
        text[i] = i == 0 ? -1 : i;
    }
    for (int no_bos = 0; no_bos < 2; no_bos++) {
        for (size_t n = 1; n <= tqe_eval_n_windows(N, CTX, no_bos); n++) {
            int32_t last = -2;
            for (size_t i = 0; i < n; i++) {
                int32_t w[CTX];
                tqe_eval_cut(text, N, CTX, no_bos, i, n, w);
                const int32_t first = w[!no_bos];
                assert_true(no_bos || w[0] == -1);
                assert_true(first > last);
                for (int k = 1 + !no_bos; k < CTX; k++) {
                    assert_int_equal(w[k], (first < 0 ? 0 : first) + k - !no_bos);
                }
                last = w[CTX - 1];
            }
            assert_true(last < N && (n == 1 || last >= N - 2));
        }
    }
    assert_int_equal(tqe_eval_n_windows(31, 32, false), 0);
    assert_int_equal(tqe_eval_n_windows(32, 32, false), 1);
    assert_int_equal(tqe_eval_n_windows(0, 32, true), 0);
}

static void refuse_text(const char *text, size_t n, const char *word)
{
    int32_t *out = NULL;
    size_t n_out = 0;
    tqe_error err = {TQE_OK, ""};
    assert_true(tqe_eval_tokens(model, text, n, true, &out, &n_out, &err) != TQE_OK);
    if (strstr(err.text, word) == NULL) {
        fail_msg("'%s' does not name '%s'", err.text, word);
    }
}

static void test_texts(void **state)
{
    (void)state;
    refuse_text("abc\001def", 7, "control character 0x01 at offset 3");
    refuse_text("ab\xff", 3, "byte 0xff at offset 2");
    refuse_text("a\0b\0c\0d\0e\0f\0g\0h\0", 16, "NUL");
    int32_t *out = NULL;
    size_t n = 0;
    static const char two[] = "the first document of two\0and here the second one stands";
    assert_int_equal(tqe_eval_tokens(model, two, sizeof(two) - 1, true, &out, &n, NULL), TQE_OK);
    assert_true(n > 2);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sides),         cmocka_unit_test(test_exact),
        cmocka_unit_test(test_window),        cmocka_unit_test(test_needle),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_cut),           cmocka_unit_test(test_texts),
        cmocka_unit_test(test_thread_counts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
