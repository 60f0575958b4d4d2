/* SPDX-License-Identifier: MIT */
/* test_timeline.c — a timeline that branches, goes back or moves on is the one that went straight.
 * Logits are compared bit by bit where the batches had equal shapes. */
#include "state_support.h"

/* The last two get their files at the start. */
static char by_files[2][TQ_SCHEME_TEXT_BYTES];
static const char *const schemes[] = {
    "f16",           "turbo:k8v3",     "turbo4,sink=4,tail=20",
    "tcq4,start=45", "affine8,skip=1", "turbo8v4,sink=3,tail=70,start=30,attn=dequant",
    by_files[0],     by_files[1]};

enum { N_SCHEMES = sizeof schemes / sizeof *schemes, N_CTX = 256, BATCH = 16, MAX_IDS = 250 };

static tqe_model *models[2]; /* without and with a sliding window of 48 */
static size_t n_vocab;
static int32_t ids[3][MAX_IDS];

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        gen_model g = gen_model_of(i ? "llama" : "qwen3");
        g.d_head = 64;
        g.window = i ? 48 : 0;
        const char *path = gen_temp_path(i ? "window.gguf" : "plain.gguf");
        tqe_error err = {TQE_OK, ""};
        if (!gen_model_write(&g, path) || tqe_model_load(&models[i], path, NULL, &err) != TQE_OK) {
            print_error("%s\n", err.text);
            return -1;
        }
    }
    for (int i = 0; i < 2; i++) { /* both models have as many layers and heads */
        static const char *const mixed[] = {"tcq4", "f16"};
        const char *path = gen_temp_path("layers");
        state_write_layers(path, models[0], mixed, 2);
        (void)snprintf(by_files[i], sizeof(by_files[i]), "%s,layers=%s",
                       i ? "affine8,sink=3,tail=20" : "turbo4", path);
    }
    tqe_model_info info;
    tqe_model_get_info(models[0], &info);
    n_vocab = info.n_vocab;
    uint64_t seed = 5;
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < MAX_IDS; j++) {
            ids[i][j] = (int32_t)(test_random(&seed) % 200);
        }
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(models[0]);
    tqe_model_free(models[1]);
    return 0;
}

static tqe_session *open_session(int model, const char *kv, uint32_t n_seqs, uint32_t n_batch)
{
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_session_params p = {.n_ctx = N_CTX,
                                  .n_threads = 1,
                                  .n_batch = n_batch,
                                  .kv = kv,
                                  .n_seqs = n_seqs,
                                  .rollback = 8};
    if (tqe_session_create(&s, models[model], &p, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
    return s;
}

static void eval(tqe_session *s, const int32_t *at, size_t n)
{
    tqe_error err = {TQE_OK, ""};
    if (tqe_session_eval(s, at, n, NULL, NULL, NULL, &err) != TQE_OK) {
        fail_msg("%s", err.text);
    }
}

static void same_logits(const tqe_session *a, const tqe_session *b)
{
    assert_non_null(tqe_session_logits(a));
    assert_non_null(tqe_session_logits(b));
    assert_memory_equal(tqe_session_logits(a), tqe_session_logits(b), n_vocab * sizeof(float));
}

/* PITFALL 23 and the contract: a fork and its source are what they would be alone. */
static void test_fork_equals_separate_runs(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        for (int k = 0; k < N_SCHEMES; k++) {
            const size_t n = 70; /* not a border of pages */
            tqe_session *a = open_session(m, schemes[k], 3, BATCH), *b = NULL, *c = NULL;
            tqe_session *alone[2];
            tqe_error err = {TQE_OK, ""};
            eval(a, ids[0], n);
            for (int i = 0; i < 2; i++) {
                alone[i] = open_session(m, schemes[k], 1, BATCH);
                eval(alone[i], ids[0], n);
            }
            assert_int_equal(tqe_session_fork(&b, a, n, &err), TQE_OK);
            same_logits(a, b);
            for (size_t j = 0; j < 40; j++) { /* in turn, so that each could spoil the other */
                eval(a, &ids[1][j], 1);
                eval(alone[0], &ids[1][j], 1);
                eval(b, &ids[2][j], 1);
                eval(alone[1], &ids[2][j], 1);
                same_logits(a, alone[0]);
                same_logits(b, alone[1]);
            }
            /* A fork of the fork, a few tokens back; the source goes first. */
            assert_int_equal(tqe_session_fork(&c, b, n + 35, &err), TQE_OK);
            assert_null(tqe_session_logits(c));
            tqe_session_free(b);
            assert_int_equal(tqe_session_truncate(alone[1], n + 35, &err), TQE_OK);
            eval(c, ids[1], 11);
            eval(alone[1], ids[1], 11);
            same_logits(c, alone[1]);
            tqe_session_free(a);
            eval(c, ids[1], 1);
            eval(alone[1], ids[1], 1);
            same_logits(c, alone[1]);
            tqe_session_free(c);
            tqe_session_free(alone[0]);
            tqe_session_free(alone[1]);
        }
    }
}

/* A draft that is taken back leaves nothing: speculative == plain. */
static void test_rollback_equals_never_drafted(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        for (int k = 0; k < N_SCHEMES; k++) {
            tqe_session *a = open_session(m, schemes[k], 1, BATCH);
            tqe_session *plain = open_session(m, schemes[k], 1, BATCH);
            tqe_error err = {TQE_OK, ""};
            eval(a, ids[0], 20);
            eval(plain, ids[0], 20);
            for (size_t n = 20; n < 140; n += 3) {
                eval(a, ids[1] + n, 7); /* the draft */
                assert_int_equal(tqe_session_truncate(a, n, &err), TQE_OK);
                assert_null(tqe_session_logits(a));
                eval(a, ids[0] + n, 3);
                eval(plain, ids[0] + n, 3);
                same_logits(a, plain);
            }
            tqe_session_info x, y;
            tqe_session_get_info(a, &x);
            tqe_session_get_info(plain, &y);
            assert_int_equal(x.n_tokens, y.n_tokens);
            tqe_session_free(a);
            tqe_session_free(plain);
        }
    }
}

/* What a query reads in f16 depends on distances, not on chunks. Other batches make ggml round
 * otherwise, so the logits agree as far as that goes. */
static void test_chunks_equal_one_shot(void **state)
{
    (void)state;
    static const char *const fine[] = {"f32", "turbo8,sink=4,tail=20", "turbo8,start=45",
                                       "affine8,tail=3"};
    for (int m = 0; m < 2; m++) {
        for (size_t k = 0; k < sizeof fine / sizeof *fine; k++) {
            tqe_session *one = open_session(m, fine[k], 1, 128);
            eval(one, ids[0], 100);
            for (uint32_t chunk = 1; chunk < 40; chunk += 13) {
                tqe_session *s = open_session(m, fine[k], 1, chunk);
                eval(s, ids[0], 100);
                double worst = 0;
                for (size_t i = 0; i < n_vocab; i++) {
                    const double e =
                        fabs((double)tqe_session_logits(s)[i] - (double)tqe_session_logits(one)[i]);
                    worst = e > worst ? e : worst;
                }
                if (worst > (k == 0 ? 2e-4 : 2e-2)) {
                    fail_msg("%s in chunks of %u: logits differ by %g", fine[k], chunk, worst);
                }
                tqe_session_free(s);
            }
            tqe_session_free(one);
        }
    }
}

/* Several batches, of which a later one fails: as before, although a window moved on meanwhile. */
static void test_a_failed_eval_changes_nothing(void **state)
{
    (void)state;
    gen_model g = gen_model_of("llama");
    g.d_head = 64;
    g.window = 48;
    g.nan_tensor = "token_embd.weight"; /* token 0 */
    const char *path = gen_temp_path("nan_window.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *m = NULL;
    tqe_error err = {TQE_OK, ""};
    assert_int_equal(tqe_model_load(&m, path, NULL, &err), TQE_OK);
    const tqe_session_params p = {
        .n_ctx = N_CTX, .n_threads = 1, .n_batch = BATCH, .kv = "turbo4,tail=20", .rollback = 1};
    tqe_session *s = NULL, *plain = NULL;
    assert_int_equal(tqe_session_create(&s, m, &p, &err), TQE_OK);
    assert_int_equal(tqe_session_create(&plain, m, &p, &err), TQE_OK);
    int32_t good[MAX_IDS], bad[MAX_IDS];
    for (int i = 0; i < MAX_IDS; i++) {
        good[i] = 1 + ids[0][i];
        bad[i] = i == 120 ? 0 : good[i];
    }
    eval(s, good, 70);
    eval(plain, good, 70);
    tqe_session_info before, after;
    tqe_session_get_info(s, &before);
    assert_int_equal(tqe_session_eval(s, bad, 130, NULL, NULL, NULL, &err), TQE_ERR_NUMERIC);
    tqe_session_get_info(s, &after);
    assert_int_equal(tqe_session_len(s), 70);
    assert_int_equal(before.kv_bytes_used, after.kv_bytes_used);
    eval(s, good, 150);
    eval(plain, good, 150);
    same_logits(s, plain);
    tqe_session_free(s);
    tqe_session_free(plain);
    tqe_model_free(m);
}

/* PITFALL 26: the reported bytes are the formula's; a window and a tail stop growing. */
static void test_bytes_of_windows_and_tails(void **state)
{
    (void)state;
    tqe_session *plain = open_session(0, "turbo4,sink=4,tail=20", 1, BATCH);
    tqe_session *window = open_session(1, "turbo4", 1, BATCH);
    tqe_session *skip = open_session(0, "turbo4,skip=1", 1, BATCH);
    tqe_session_info si;
    size_t f16[2] = {0, 0};
    for (size_t n = 0; n < 192; n += 16) {
        eval(plain, ids[0] + n, 16);
        eval(window, ids[0] + n, 16);
        tqe_session_get_info(plain, &si);
        /* 2 layers of 2 KV heads of 64: 4 bits and a scale; f16 rows beside them. */
        assert_int_equal(si.kv_bytes_per_token, 2 * 2 * 2 * (32 + 2));
        f16[n >= 96] = si.kv_bytes_used - (n + 16) * si.kv_bytes_per_token;
        assert_int_equal(f16[n >= 96] % (2 * 2 * 64 * 2 * 2), 0);
    }
    assert_true(f16[1] <= (size_t)(64 + 20 + 8 + 1 + 63) * 2 * 2 * 64 * 2 * 2);
    tqe_session_get_info(window, &si);
    assert_true(si.kv_bytes_used < 192 * si.kv_bytes_per_token);
    assert_true(si.kv_bytes_used <= (48 + 8 + 1 + 63) * si.kv_bytes_per_token);
    eval(skip, ids[0], 5);
    tqe_session_get_info(skip, &si);
    assert_int_equal(si.kv_bytes_used, 5 * si.f16_bytes_per_token); /* both layers are skipped */
    tqe_session_free(plain);
    tqe_session_free(window);
    tqe_session_free(skip);
}

static void test_refusals(void **state)
{
    (void)state;
    tqe_session *a = open_session(0, "turbo4,tail=20", 3, BATCH), *b = NULL, *c = NULL, *d = NULL;
    tqe_error err = {TQE_OK, ""};
    eval(a, ids[0], 200);
    const size_t min = tqe_session_min_truncate(a);
    assert_true(min > 100 && min <= 200 - 1 - 8);
    assert_int_equal(tqe_session_truncate(a, min - 1, &err), TQE_ERR_ARG);
    assert_non_null(strstr(err.text, "is the least"));
    assert_non_null(tqe_session_logits(a));
    assert_int_equal(tqe_session_fork(&b, a, min - 1, &err), TQE_ERR_ARG);
    assert_int_equal(tqe_session_fork(&b, a, 201, &err), TQE_ERR_ARG);
    assert_null(b);
    assert_int_equal(tqe_session_fork(&b, a, min, &err), TQE_OK);
    assert_int_equal(tqe_session_fork(&c, b, 0, &err), TQE_OK);
    assert_int_equal(tqe_session_fork(&d, c, 0, &err), TQE_ERR_FULL);
    assert_non_null(strstr(err.text, "3 sessions share the cache already"));
    assert_null(d);
    eval(c, ids[0], 10);
    tqe_session_free(c);
    tqe_session_free(b);
    assert_int_equal(tqe_session_truncate(a, 0, &err), TQE_OK);
    assert_int_equal(tqe_session_min_truncate(a), 0);
    tqe_session_free(a);

    const tqe_session_params seqs = {.n_threads = 1, .n_seqs = 1025};
    assert_int_equal(tqe_session_create(&a, models[0], &seqs, &err), TQE_ERR_ARG);
    const tqe_session_params back = {.n_threads = 1, .rollback = 4097};
    assert_int_equal(tqe_session_create(&a, models[0], &back, &err), TQE_ERR_ARG);
}

/* PITFALL 42: what the planner says is what is allocated, and one page more would not fit. */
static void test_the_plan_is_what_is_allocated(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        for (int k = 0; k < N_SCHEMES; k++) {
            for (uint32_t n_seqs = 1; n_seqs < 9; n_seqs += 7) {
                tqe_model_info info;
                tqe_kv_plan plan;
                tq_scheme scheme;
                tqe_session_info si;
                tqe_session *s = NULL;
                tqe_error err = {TQE_OK, ""};
                tqe_model_get_info(models[m], &info);
                assert_int_equal(tq_scheme_parse(&scheme, schemes[k], NULL, 0), TQ_OK);
                const uint64_t memory = 64 << 20;
                assert_int_equal(tqe_kv_plan_make(&plan, &info, &scheme, memory, n_seqs, &err),
                                 TQE_OK);
                assert_true(plan.n_ctx >= 64 && plan.cache_bytes <= memory);
                tqe_session_params p = {
                    .n_threads = 1, .kv = schemes[k], .n_ctx = plan.n_ctx, .n_seqs = n_seqs};
                assert_int_equal(tqe_session_create(&s, models[m], &p, &err), TQE_OK);
                tqe_session_get_info(s, &si);
                assert_int_equal(si.kv_bytes_capacity, plan.cache_bytes);
                assert_int_equal(si.kv_bytes_per_token, plan.bytes_per_token);
                tqe_session_free(s);
                if (plan.n_ctx == TQE_MAX_CTX) {
                    continue; /* windows alone: a longer context takes hardly more */
                }
                p.n_ctx += 64;
                assert_int_equal(tqe_session_create(&s, models[m], &p, &err), TQE_OK);
                tqe_session_get_info(s, &si);
                assert_true(si.kv_bytes_capacity > memory);
                tqe_session_free(s);
            }
        }
    }
}

/* And all the sessions that were planned hold all the tokens, at once and nothing shared. */
static void test_what_was_planned_fits(void **state)
{
    (void)state;
    enum { SEQS = 8 };
    for (int m = 0; m < 2; m++) {
        for (int k = 0; k < N_SCHEMES; k++) {
            tqe_model_info info;
            tqe_kv_plan plan;
            tq_scheme scheme;
            tqe_session *s[SEQS] = {NULL};
            tqe_error err = {TQE_OK, ""};
            tqe_model_get_info(models[m], &info);
            assert_int_equal(tq_scheme_parse(&scheme, schemes[k], NULL, 0), TQ_OK);
            uint64_t memory = 1 << 17; /* the least that holds a context of two pages or more */
            do {
                memory += memory / 4;
                assert_int_equal(tqe_kv_plan_make(&plan, &info, &scheme, memory, SEQS, &err),
                                 TQE_OK);
            } while (plan.n_ctx < 128);
            const uint32_t n = plan.n_ctx < 300 ? plan.n_ctx : 300; /* windows: no end */
            const tqe_session_params p = {
                .n_threads = 1, .kv = schemes[k], .n_ctx = plan.n_ctx, .n_seqs = SEQS};
            assert_int_equal(tqe_session_create(&s[0], models[m], &p, &err), TQE_OK);
            for (int i = 1; i < SEQS; i++) {
                assert_int_equal(tqe_session_fork(&s[i], s[0], 0, &err), TQE_OK);
            }
            for (uint32_t at = 0; at < n; at += 100) { /* side by side */
                for (int i = 0; i < SEQS; i++) {
                    eval(s[i], ids[i % 3], n - at < 100 ? n - at : 100);
                }
            }
            tqe_session *one_more = NULL;
            assert_int_equal(tqe_session_fork(&one_more, s[0], 0, &err), TQE_ERR_FULL);
            for (int i = 0; i < SEQS; i++) {
                assert_int_equal(tqe_session_len(s[i]), n);
                if (n == plan.n_ctx) {
                    assert_int_equal(tqe_session_eval(s[i], ids[0], 1, NULL, NULL, NULL, &err),
                                     TQE_ERR_FULL);
                }
                tqe_session_free(s[i]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fork_equals_separate_runs),
        cmocka_unit_test(test_rollback_equals_never_drafted),
        cmocka_unit_test(test_chunks_equal_one_shot),
        cmocka_unit_test(test_a_failed_eval_changes_nothing),
        cmocka_unit_test(test_bytes_of_windows_and_tails),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_the_plan_is_what_is_allocated),
        cmocka_unit_test(test_what_was_planned_fits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
