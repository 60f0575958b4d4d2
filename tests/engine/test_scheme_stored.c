/* SPDX-License-Identifier: MIT */
/* test_scheme_stored.c — stored state of schemes that name files: it belongs to what is in the
 * files, not to where they lie; and of a file that a stranger's snapshot names nothing is told. */
#include "state_support.h"

enum { N_CTX = 160 };

static tqe_model *tiny;
static char *kmean, *layers, *dir;

static int setup(void **state)
{
    (void)state;
    tiny = state_tiny(0, 0);
    kmean = state_path("k");
    layers = state_path("l");
    dir = state_path("prefix");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(tiny);
    free(kmean);
    free(layers);
    free(dir);
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

/* A stranger's snapshot names files of this machine: of what is in them a message shows 32 bytes at
 * most, and nothing when the snapshot was made with others. */
static void test_nothing_of_a_file_is_told(void **state)
{
    (void)state;
    static const char secret[] = "root:x:0:0:a-secret-that-goes-on-and-on:/root:/bin/bash\n";
    static const char rest[] = "goes-on-and";
    int32_t ids[20];
    tqe_error err = {TQE_OK, ""};
    char *snap = state_path("s.tqs");
    state_tokens(ids, 20, 1, tiny);
    const char *names[] = {scheme_text("turbo4,layers=%s", layers),
                           scheme_text("turbo4,kmean=%s", kmean)};
    const char *paths[] = {layers, kmean};
    static const char *const tcq4[] = {"tcq4"};
    char found[TQ_SCHEME_TEXT_BYTES];
    for (int i = 0; i < 2; i++) {
        state_write_layers(layers, tiny, tcq4, 1);
        state_write_kmean(kmean, tiny, 1.0f);
        tqe_session *s = state_session(tiny, names[i], N_CTX, 0);
        state_eval(s, ids, 20);
        state_ok(tqe_session_save(s, snap, &err), &err);
        tqe_session_free(s);
        tqe_snapshot *f = NULL;
        state_ok(tqe_snapshot_open(&f, snap, &err), &err);
        state_ok(tqe_snapshot_find_scheme(f, found, &err), &err);
        assert_string_equal(found, names[i]);

        state_write(paths[i], (const uint8_t *)secret, strlen(secret));
        assert_int_equal(tqe_snapshot_find_scheme(f, found, &err), TQE_ERR_SCHEME);
        assert_non_null(strstr(err.text, paths[i])); /* which one */
        assert_non_null(strstr(err.text, "other contents"));
        assert_null(strstr(err.text, "root"));
        refused(tiny, names[i], TQE_ERR_FORMAT, "line 1: root:x:0:0:");
        const tqe_session_params p = {.n_ctx = N_CTX, .kv = names[i]};
        assert_int_not_equal(tqe_session_create(&s, tiny, &p, &err), TQE_OK);
        assert_null(strstr(err.text, rest));

        /* The words of a scheme are quoted by another parser. */
        char text[200];
        (void)snprintf(text, sizeof(text), "turboquant-layers 1\n0 %s", secret);
        state_write(layers, (const uint8_t *)text, strlen(text));
        assert_int_not_equal(
            tqe_session_create(&s, tiny, &(tqe_session_params){.kv = names[0]}, &err), TQE_OK);
        assert_non_null(strstr(err.text, "line 2"));
        assert_null(strstr(err.text, rest));

        assert_int_equal(unlink(paths[i]), 0);
        assert_int_equal(tqe_snapshot_find_scheme(f, found, &err), TQE_ERR_IO);
        tqe_snapshot_close(f);
    }
    (void)unlink(snap);
    (void)unlink(layers);
    (void)unlink(kmean);
    free(snap);
}

/* ---- Identity: other bytes in a file are another scheme -------------------------------------- */

static size_t prompt(tqe_session *s, const int32_t *ids, size_t n)
{
    tqe_prefix *p = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_prefix_params params = {.dir = dir};
    size_t reused = 0;
    state_ok(tqe_prefix_create(&p, &params, &err), &err);
    state_ok(tqe_session_prompt(s, p, ids, n, NULL, NULL, &reused, &err), &err);
    tqe_prefix_free(p);
    return reused;
}

static void test_other_bytes_are_another_scheme(void **state)
{
    (void)state;
    static const char *const one[] = {"turbo4"};
    int32_t ids[130];
    tqe_error err = {TQE_OK, ""};
    char *saved = state_path("a.tqs"), *late = state_path("b.tqs");
    state_tokens(ids, 130, 4, tiny);
    for (int which = 0; which < 2; which++) {
        const char *path = which ? layers : kmean;
        const char *kv = scheme_text("turbo4,%s=%s", which ? "layers" : "kmean", path);
        state_remove(dir);
        if (which) {
            state_write_layers(path, tiny, one, 1);
        } else {
            state_write_kmean(path, tiny, 1.0f);
        }
        tqe_session *a = state_session(tiny, kv, N_CTX, 0), *b = NULL;
        assert_int_equal(prompt(a, ids, 130), 0);
        state_ok(tqe_session_save(a, saved, &err), &err);

        /* The same file: the same scheme. */
        b = state_session(tiny, kv, N_CTX, 0);
        state_ok(tqe_session_load(b, saved, &err), &err);
        state_same(b, state_logits(a, tiny), tiny, kv);
        tqe_session_free(b);
        b = state_session(tiny, kv, N_CTX, 0);
        assert_int_equal(prompt(b, ids, 130), 128);
        tqe_session_free(b);

        /* One more comment: another one, although all numbers are equal. */
        FILE *f = fopen(path, "a");
        assert_non_null(f);
        assert_true(fputs("# more\n", f) >= 0 && fclose(f) == 0);
        b = state_session(tiny, kv, N_CTX, 0);
        assert_int_equal(tqe_session_load(b, saved, &err), TQE_ERR_SCHEME);
        assert_int_equal(tqe_session_len(b), 0);
        assert_int_equal(prompt(b, ids, 130), 0);

        /* The older session has read the older file, whatever lies there now. */
        state_ok(tqe_session_save(a, late, &err), &err);
        assert_int_equal(tqe_session_load(b, late, &err), TQE_ERR_SCHEME);
        tqe_session_free(a);
        tqe_session_free(b);
        (void)unlink(path);
    }
    (void)unlink(saved);
    (void)unlink(late);
    free(saved);
    free(late);
    state_remove(dir);
}

/* ---- Places: where a file lies is no part of the scheme ---------------------------------------
 */

static const char *const one[] = {"turbo8"}, *const two[] = {"turbo2"};

/* The scheme that is found for snap has this text. */
static void found_as(const char *snap, const char *want)
{
    tqe_error err = {TQE_OK, ""};
    tqe_snapshot *f = NULL;
    char found[TQ_SCHEME_TEXT_BYTES];
    state_ok(tqe_snapshot_open(&f, snap, &err), &err);
    state_ok(tqe_snapshot_find_scheme(f, found, &err), &err);
    assert_string_equal(found, want);
    tqe_snapshot_close(f);
}

static void not_found(const char *snap, tqe_status want, const char *word)
{
    tqe_error err = {TQE_OK, ""};
    tqe_snapshot *f = NULL;
    char found[TQ_SCHEME_TEXT_BYTES];
    state_ok(tqe_snapshot_open(&f, snap, &err), &err);
    assert_int_equal(tqe_snapshot_find_scheme(f, found, &err), want);
    if (strstr(err.text, word) == NULL || strstr(err.text, snap) == NULL) {
        fail_msg("'%s' does not say '%s'", err.text, word);
    }
    tqe_snapshot_close(f);
}

static void enter(const char *folder)
{
    assert_int_equal(chdir(folder), 0);
}

/* Saved in folder a with names relative to it, loaded from folder b beside it. */
static void test_files_that_move(void **state)
{
    (void)state;
    static const char kv[] = "turbo4,kmean=k,layers=sub/l";
    int32_t ids[130];
    size_t reused = 0;
    tqe_error err = {TQE_OK, ""};
    char *root = state_path("root"), home[1024];
    state_tokens(ids, 130, 4, tiny);
    assert_non_null(getcwd(home, sizeof(home)));
    assert_int_equal(mkdir(root, 0755), 0);
    enter(root);
    assert_int_equal(mkdir("a", 0755) | mkdir("b", 0755) | mkdir("a/sub", 0755), 0);
    enter("a");
    state_write_kmean("k", tiny, 1.0f);
    state_write_layers("sub/l", tiny, one, 1);
    tqe_session *s = state_session(tiny, kv, N_CTX, 0);
    tqe_prefix *p = NULL;
    state_ok(tqe_prefix_create(&p, &(tqe_prefix_params){.dir = dir}, &err), &err);
    state_ok(tqe_session_prompt(s, p, ids, 130, NULL, NULL, &reused, &err), &err);
    tqe_prefix_free(p);
    state_ok(tqe_session_save(s, "s.tqs", &err), &err);
    float *want = state_logits(s, tiny);
    tqe_session_free(s);
    found_as("s.tqs", kv);

    /* From elsewhere: beside the snapshot, whatever lies under those names here. */
    enter("../b");
    found_as("../a/s.tqs", "turbo4,kmean=../a/k,layers=../a/sub/l");
    state_write_kmean("k", tiny, 2.0f);
    found_as("../a/s.tqs", "turbo4,kmean=../a/k,layers=../a/sub/l");
    enter(root);
    assert_int_equal(rename("b/k", "b/other"), 0);
    assert_int_equal(rename("a/k", "b/k"), 0);
    enter("b");
    found_as("../a/s.tqs", "turbo4,kmean=k,layers=../a/sub/l"); /* one here, one there */

    /* A session with other names for equal files is the same; for other files it is not. */
    s = state_session(tiny, "turbo4,kmean=../b/k,layers=../a/sub/l", N_CTX, 0);
    state_ok(tqe_session_load(s, "../a/s.tqs", &err), &err);
    state_same(s, want, tiny, "files by other names");
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    state_ok(tqe_prefix_create(&p, &(tqe_prefix_params){.dir = dir}, &err), &err);
    state_ok(tqe_session_prompt(s, p, ids, 130, NULL, NULL, &reused, &err), &err);
    assert_int_equal(reused, 128);
    assert_false(tqe_prefix_problem(p, &err));
    tqe_prefix_free(p);
    tqe_session_free(s);
    state_write_layers("l", tiny, two, 1);
    s = state_session(tiny, "turbo4,kmean=k,layers=l", N_CTX, 0);
    assert_int_equal(tqe_session_load(s, "../a/s.tqs", &err), TQE_ERR_SCHEME);
    assert_non_null(strstr(err.text, "one of 'l' and 'k' has other contents"));
    tqe_session_free(s);
    s = state_session(tiny, "turbo4,kmean=k", N_CTX, 0);
    assert_int_equal(tqe_session_load(s, "../a/s.tqs", &err), TQE_ERR_SCHEME);
    assert_non_null(strstr(err.text, "snapshot with the KV scheme"));
    tqe_session_free(s);

    /* Gone, other contents in both places, folders that no scheme can name. */
    assert_int_equal(unlink("k"), 0);
    not_found("../a/s.tqs", TQE_ERR_IO, "kmean=: cannot open 'k'");
    not_found("../a/s.tqs", TQE_ERR_IO, "; cannot open '../a/k'");
    state_write_kmean("k", tiny, 2.0f);
    not_found("../a/s.tqs", TQE_ERR_SCHEME, "one of 'sub/l' and 'k' has other contents");
    enter(root);
    state_write_kmean("a/k", tiny, 1.0f);
    assert_int_equal(rename("a", "a,b"), 0);
    not_found("a,b/s.tqs", TQE_ERR_SCHEME, "a name that no KV scheme can hold");
    char longer[100];
    (void)snprintf(longer, sizeof(longer), "%095d", 7);
    assert_int_equal(rename("a,b", longer), 0);
    char snap[200];
    (void)snprintf(snap, sizeof(snap), "%s/s.tqs", longer);
    not_found(snap, TQE_ERR_IO, "has more than 95 bytes");
    enter(longer);
    found_as("s.tqs", kv); /* from its own folder it always goes */
    enter(root);
    enter(home);
    state_remove_tree(root);
    free(root);
    state_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_of_a_file_is_told),
        cmocka_unit_test(test_other_bytes_are_another_scheme),
        cmocka_unit_test(test_files_that_move),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
