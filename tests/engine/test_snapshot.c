/* SPDX-License-Identifier: MIT */
/* test_snapshot.c — restored == never saved, over several pages; test_contract.c has all schemes on
 * the bundled model. What does not belong together is refused by name, and files that cannot be
 * written are errors with a reason. */
#include "state_support.h"

#include <sys/resource.h>
#include <sys/wait.h>

#ifndef TQ_MODELS_DIR
#error "TQ_MODELS_DIR: the folder of the bundled model"
#endif

static const char *const schemes[] = {
    "f32",
    "f16",
    "bf16",
    "turbo:k8v3",
    "turbo:k2v2",
    "turbo:k5v4",
    "turbo8",
    "turbo4",
    "turbo0v3",
    "turbo6v5",
    "tcq2",
    "tcq3",
    "tcq5v4",
    "affine8",
    "affine4g32",
    "mse3",
    "prod3",
    "turbo4,mean",
    "tcq4,mean,attn=dequant",
    "turbo:k8v3,attn=dequant",
    "tcq4,tail=64",
    "tcq3,sink=4,tail=20",
    "turbo4,sink=70",
    "turbo:k8v3,skip=1",
    "turbo4,start=100",
    "turbo4,start=138",
    "turbo3,start=1000",
    "affine4,skip=1,sink=3,tail=130,start=40",
    "tcq4,tail=64,attn=dequant",
};

static tqe_model *bundled, *tiny;
static char *file, *again;

static int setup(void **state)
{
    (void)state;
    bundled = state_model(TQ_MODELS_DIR "/tiny-qwen3-28m.q8_0.gguf");
    tiny = state_tiny(0, 0);
    file = state_path("a.tqs");
    again = state_path("b.tqs");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(bundled);
    tqe_model_free(tiny);
    free(file);
    free(again);
    return 0;
}

/* Save after a prompt, go on; load into a session of another history, go on: equal bits, and an
 * equal file when it is saved again. */
static void round_trip(const tqe_model *m, const char *kv, uint32_t n_prompt, uint32_t n_more)
{
    int32_t ids[512];
    tqe_error err = {TQE_OK, ""};
    const uint32_t n_ctx = n_prompt + n_more;
    state_tokens(ids, n_ctx, 1 + n_prompt, m);
    tqe_session *a = state_session(m, kv, n_ctx, 0);
    state_eval(a, ids, n_prompt);
    state_ok(tqe_session_save(a, file, &err), &err);
    float *at_save = state_logits(a, m);
    state_eval(a, ids + n_prompt, 1);
    float *one = state_logits(a, m);
    state_eval(a, ids + n_prompt + 1, n_more - 1);
    float *all = state_logits(a, m);

    tqe_session *b = state_session(m, kv, n_ctx, 0);
    int32_t other[512];
    state_tokens(other, n_ctx, 77, m);
    state_eval(b, other, n_ctx);              /* full: there is no room for two timelines */
    for (int round = 0; round < 2; round++) { /* the second time into what is left of the first */
        state_ok(tqe_session_load(b, file, &err), &err);
        assert_int_equal(tqe_session_len(b), n_prompt);
        assert_memory_equal(tqe_session_tokens(b), ids, n_prompt * sizeof(*ids));
        float *copy = malloc(1 << 20);
        tqe_model_info info;
        tqe_model_get_info(m, &info);
        assert_non_null(copy);
        memcpy(copy, at_save, info.n_vocab * sizeof(*copy));
        state_same(b, copy, m, kv);
        size_t na = 0, nb = 0;
        state_ok(tqe_session_save(b, again, &err), &err);
        uint8_t *fa = state_read(file, &na), *fb = state_read(again, &nb);
        assert_int_equal(na, nb);
        assert_memory_equal(fa, fb, na);
        free(fa);
        free(fb);
    }
    free(at_save);
    state_eval(b, ids + n_prompt, 1);
    state_same(b, one, m, kv);
    state_eval(b, ids + n_prompt + 1, n_more - 1);
    state_same(b, all, m, kv);

    /* The same bytes decode to the same rows without a model. */
    tqe_snapshot *f = NULL;
    tqe_snapshot_info info;
    state_ok(tqe_snapshot_open(&f, file, &err), &err);
    state_ok(tqe_snapshot_verify(f, &err), &err);
    tqe_snapshot_get_info(f, &info);
    assert_int_equal(info.n_tokens, n_prompt);
    assert_true(info.has_logits);
    tqe_snapshot_close(f);
    tqe_session_free(a);
    tqe_session_free(b);
}

static void test_every_scheme(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        round_trip(i % 7 == 3 ? bundled : tiny, schemes[i], 130 + (uint32_t)i, 9);
    }
}

static void test_page_borders(void **state)
{
    (void)state;
    tqe_model *m = state_tiny(0, 0);
    for (uint32_t n = 1; n <= 200; n += n < 4 || n % 64 > 61 || n % 64 < 2 ? 1 : 15) {
        round_trip(m, "turbo:k8v3", n, 3);
        round_trip(m, "tcq4,sink=3,tail=64", n, 3);
    }
    tqe_model_free(m);
    m = state_tiny(0, 40);
    for (uint32_t n = 30; n <= 240; n += 7) {
        round_trip(m, "turbo:k8v3,tail=10", n, 70);
    }
    tqe_model_free(m);
}

/* ---- What does not belong together ---------------------------------------------------------- */

/* The load is refused for a reason that names `word`, and nothing has changed. */
static void refused(tqe_session *s, const char *path, tqe_status want, const char *word)
{
    tqe_error err = {TQE_OK, ""};
    const size_t len = tqe_session_len(s);
    const float *logits = tqe_session_logits(s);
    assert_int_equal(tqe_session_load(s, path, &err), want);
    assert_int_equal(err.code, want);
    if (strstr(err.text, word) == NULL) {
        fail_msg("'%s' does not say '%s'", err.text, word);
    }
    assert_int_equal(tqe_session_len(s), len);
    assert_ptr_equal(tqe_session_logits(s), logits);
}

/* PITFALL 39: an empty session is not saved, and a file that is missing empties none. */
static void test_refusals(void **state)
{
    (void)state;
    tqe_model *m = state_tiny(0, 0), *other = state_tiny(5, 0);
    tqe_error err = {TQE_OK, ""};
    int32_t ids[100];
    state_tokens(ids, 100, 3, m);
    tqe_session *s = state_session(m, "turbo:k8v3", 200, 0);
    (void)unlink(file);
    assert_int_equal(tqe_session_save(s, file, &err), TQE_ERR_ARG);
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(access(file, F_OK), -1);
    state_eval(s, ids, 100);
    state_ok(tqe_session_save(s, file, &err), &err);

    tqe_session *t = state_session(m, "turbo:k8v4", 200, 0);
    refused(t, file, TQE_ERR_SCHEME, "turbo:k8v3");
    tqe_session_free(t);
    t = state_session(m, "turbo:k8v3,attn=dequant", 200, 0);
    refused(t, file, TQE_ERR_SCHEME, "attn=dequant");
    tqe_session_free(t);
    t = state_session(m, "turbo:k8v3", 99, 0);
    refused(t, file, TQE_ERR_FULL, "100 tokens");
    tqe_session_free(t);
    t = state_session(other, "turbo:k8v3", 200, 0);
    refused(t, file, TQE_ERR_UNSUPPORTED, "another model");
    tqe_session_free(t);

    state_eval(s, ids, 3);
    refused(s, "/nonexistent/x", TQE_ERR_IO, "/nonexistent/x");
    refused(s, "/", TQE_ERR_IO, "directory");
    refused(s, "/dev/zero", TQE_ERR_IO, "regular");
    refused(s, TQ_MODELS_DIR "/tiny-qwen3-28m.q8_0.gguf", TQE_ERR_FORMAT, "not a snapshot");
    state_write(again, (const uint8_t *)"", 0);
    refused(s, again, TQE_ERR_FORMAT, "0 bytes");
    tqe_session_free(s);
    tqe_model_free(m);
    tqe_model_free(other);
}

static void test_compact(void **state)
{
    (void)state;
    tqe_model *m = state_tiny(0, 0);
    tqe_error err = {TQE_OK, ""};
    int32_t ids[100];
    state_tokens(ids, 100, 3, m);
    tqe_session *s = state_session(m, "tcq4", 200, 0);
    state_eval(s, ids, 90);
    state_ok(tqe_session_save(s, file, &err), &err);
    tqe_snapshot *f = NULL;
    state_ok(tqe_snapshot_open(&f, file, &err), &err);
    state_ok(tqe_snapshot_compact(f, file, &err), &err); /* over itself */
    tqe_snapshot_close(f);
    state_eval(s, ids + 90, 10);
    float *want = state_logits(s, m);
    state_ok(tqe_session_load(s, file, &err), &err);
    assert_null(tqe_session_logits(s));
    state_eval(s, ids + 90, 10);
    state_same(s, want, m, "compact");
    tqe_session_free(s);
    tqe_model_free(m);
}

/* ---- Disks ---------------------------------------------------------------------------------- */

static void cannot_save(tqe_session *s, const char *path, const char *word)
{
    tqe_error err = {TQE_OK, ""};
    assert_int_equal(tqe_session_save(s, path, &err), TQE_ERR_IO);
    if (strstr(err.text, word) == NULL || strstr(err.text, path) == NULL) {
        fail_msg("'%s' does not say '%s' and '%s'", err.text, word, path);
    }
}

static void test_disk_errors(void **state)
{
    (void)state;
    tqe_model *m = state_tiny(0, 0);
    tqe_error err = {TQE_OK, ""};
    int32_t ids[100];
    state_tokens(ids, 100, 3, m);
    tqe_session *s = state_session(m, "f32", 200, 0);
    state_eval(s, ids, 100);
    state_ok(tqe_session_save(s, file, &err), &err);
    size_t n = 0, n_after = 0;
    uint8_t *before = state_read(file, &n);
    char *dir = state_path("folder");
    char *inside = state_path("folder/x.tqs");
    char *below_file = state_path("a.tqs/x.tqs");
    assert_int_equal(mkdir(dir, 0755), 0);

    cannot_save(s, dir, "directory");
    cannot_save(s, "/dev/full", "device");
    cannot_save(s, "/proc/none.tqs", "/proc");
    cannot_save(s, below_file, "Not a directory");
    cannot_save(s, "/nonexistent/x.tqs", "No such file");
    /* A file that may not grow stands for a full disk: the old file is whole, nothing is left. */
    struct rlimit old, small = {.rlim_cur = 20000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    cannot_save(s, file, "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    uint8_t *after = state_read(file, &n_after);
    assert_int_equal(n, n_after);
    assert_memory_equal(before, after, n);
    *strrchr(below_file, '/') = '\0';
    *strrchr(below_file, '/') = '\0';
    assert_int_equal(state_count(below_file, ".tmp", NULL), 0);

    /* Root may write anywhere: become someone else. */
    if (geteuid() == 0) {
        assert_int_equal(chmod(dir, 0555), 0);
        const pid_t child = fork();
        if (child == 0) {
            tqe_error e = {TQE_OK, ""};
            const bool said = setuid(65534) == 0 && tqe_session_save(s, inside, &e) == TQE_ERR_IO &&
                              strstr(e.text, "Permission denied") != NULL;
            _exit(said ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    assert_int_equal(rmdir(dir), 0);
    cannot_save(s, inside, "No such file"); /* vanished */
    /* And the session is none the worse. */
    state_ok(tqe_session_save(s, file, &err), &err);
    free(before);
    free(after);
    free(dir);
    free(inside);
    free(below_file);
    tqe_session_free(s);
    tqe_model_free(m);
}

/* A link is a name for a file: the file behind it is made or replaced, and the link stays. */
static void test_links(void **state)
{
    (void)state;
    static const char old[] = "what was there before";
    tqe_model *m = state_tiny(0, 0);
    tqe_error err = {TQE_OK, ""};
    int32_t ids[20];
    struct stat sb;
    state_tokens(ids, 20, 3, m);
    tqe_session *s = state_session(m, "turbo4", 100, 0);
    state_eval(s, ids, 20);
    char *folder = state_path("folder"), *target = state_path("folder/real.tqs");
    char *link = state_path("link.tqs"), *second = state_path("second.tqs");
    assert_int_equal(mkdir(folder, 0755), 0);
    static const char *const leads_to[] = {"folder/real.tqs", "./folder/../folder/real.tqs", NULL};
    for (int i = 0; i < 6; i++) { /* relative, roundabout, absolute; the file is there or not */
        const char *to = leads_to[i % 3] != NULL ? leads_to[i % 3] : target;
        assert_int_equal(symlink(to, link), 0);
        assert_int_equal(symlink("link.tqs", second), 0);
        if (i < 3) {
            state_write(target, (const uint8_t *)old, sizeof(old));
            assert_int_equal(chmod(target, 0640), 0);
        }
        state_ok(tqe_session_save(s, second, &err), &err);
        assert_true(lstat(second, &sb) == 0 && S_ISLNK(sb.st_mode));
        assert_true(lstat(link, &sb) == 0 && S_ISLNK(sb.st_mode));
        assert_true(lstat(target, &sb) == 0 && S_ISREG(sb.st_mode));
        assert_true(i >= 3 || (sb.st_mode & 0777) == 0640);
        state_ok(tqe_session_load(s, second, &err), &err);
        assert_int_equal(state_count(folder, ".tmp", NULL), 0);
        assert_int_equal(unlink(target) | unlink(link) | unlink(second), 0);
    }

    /* Nowhere to go: said by both names, and nothing is made or lost. */
    assert_int_equal(symlink("second.tqs", link) | symlink("link.tqs", second), 0);
    cannot_save(s, link, "Too many levels of symbolic links");
    assert_int_equal(unlink(link) | unlink(second), 0);
    static const struct {
        const char *to, *word;
    } bad[] = {
        {"nowhere/x.tqs", "-> "}, {"nowhere/x.tqs", "nowhere/x.tqs': No such file"},
        {"folder", "directory"},  {"folder/", "directory"},
        {"/dev/full", "device"},  {"/proc/none.tqs", "/proc/none.tqs"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(symlink(bad[i].to, link), 0);
        cannot_save(s, link, bad[i].word);
        assert_int_equal(unlink(link), 0);
    }
    /* A file whose name is gone has no place where another one could go. */
    char by_fd[64];
    const int fd = open(target, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    (void)snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d", fd);
    state_ok(tqe_session_save(s, by_fd, &err), &err); /* leads to target */
    assert_int_equal(unlink(target), 0);
    const int gone = open(target, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(unlink(target), 0);
    (void)snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d", gone);
    cannot_save(s, by_fd, "Stale");
    assert_int_equal(state_count(folder, "", NULL), 0);
    (void)close(fd);
    (void)close(gone);

    /* The folder of the file, not that of the link, must be writable; root becomes someone else. */
    assert_int_equal(symlink("folder/real.tqs", link), 0);
    if (geteuid() == 0) {
        state_write(target, (const uint8_t *)old, sizeof(old));
        char *box = state_path("box"), *in_box = state_path("box/x.tqs"); /* written, not listed */
        assert_int_equal(mkdir(box, 0700) | chmod(box, 0733), 0);
        char *parent = strdup(folder);
        *strrchr(parent, '/') = '\0';
        assert_int_equal(chmod(folder, 0555) | chmod(parent, 0777), 0);
        const pid_t child = fork();
        if (child == 0) {
            tqe_error e = {TQE_OK, ""};
            const bool said = setuid(65534) == 0 && tqe_session_save(s, link, &e) == TQE_ERR_IO &&
                              strstr(e.text, "Permission denied") != NULL &&
                              strstr(e.text, "real.tqs") != NULL;
            _exit(said && tqe_session_save(s, in_box, &e) == TQE_OK ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        size_t n = 0;
        uint8_t *after = state_read(target, &n);
        assert_int_equal(n, sizeof(old));
        free(after);
        state_ok(tqe_session_load(s, in_box, &err), &err);
        state_remove(box);
        free(box);
        free(in_box);
        assert_int_equal(chmod(folder, 0755) | chmod(parent, 0700) | unlink(target), 0);
        free(parent);
    }
    assert_int_equal(unlink(link) | rmdir(folder), 0);
    free(folder);
    free(target);
    free(link);
    free(second);
    tqe_session_free(s);
    tqe_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scheme), cmocka_unit_test(test_page_borders),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_compact),
        cmocka_unit_test(test_disk_errors),  cmocka_unit_test(test_links),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
