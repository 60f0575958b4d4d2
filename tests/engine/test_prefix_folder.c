/* SPDX-License-Identifier: MIT */
/* test_prefix_folder.c — the folder of a prefix store: its limit, alone and shared, a queue that is
 * full, a disk that cannot be written, and processes that evict what the others read. */
#include "prefix_support.h"

#include <glob.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void test_disk_limit(void **state)
{
    (void)state;
    int32_t ids[330];
    const uint64_t limit = 600000;
    state_remove(dir);
    tqe_prefix *p = open_store(dir, limit, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    for (uint64_t i = 0; i < 30; i++) {
        state_tokens(ids, 330, 10 + i, tiny);
        assert_int_equal(prompt(s, p, ids, 330), 0);
        assert_true(folder_bytes() <= limit);
    }
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_true(prompt(s, p, ids, 330) > 0); /* the newest is there */
    tqe_prefix_stats stats;
    tqe_prefix_get_stats(p, &stats);
    assert_true(stats.n_evicted > 0);
    no_problem(p);
    tqe_prefix_free(p);
    p = open_store(dir, limit / 3, NULL); /* a smaller limit holds from the start */
    assert_true(folder_bytes() <= limit / 3);
    tqe_prefix_free(p);
    tqe_session_free(s);
    state_remove(dir);
}

/* A folder that holds a part of a prompt holds its beginning: pages are worth nothing without those
 * before them. */
static void test_limit_keeps_the_beginning(void **state)
{
    (void)state;
    int32_t ids[330];
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 1 << 30, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 330, 77, tiny);
    assert_int_equal(prompt(s, p, ids, 330), 0);
    tqe_prefix_free(p); /* has written all */
    const uint64_t page = folder_bytes() / 5;
    for (uint64_t n = 1; n < 5; n++) {
        state_remove(dir);
        p = open_store(dir, n * page + page / 2, NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        tqe_session_free(s);
        s = state_session(tiny, "f16", 400, 0);
        assert_int_equal(prompt(s, p, ids, 330), 0);
        tqe_prefix_free(p);
        p = open_store(dir, 1 << 30, NULL);
        tqe_session_free(s);
        s = state_session(tiny, "f16", 400, 0);
        /* Eviction goes down to nine tenths of the limit. */
        const uint64_t kept = (n * page + page / 2) * 9 / 10 / page;
        const size_t reused = prompt(s, p, ids, 330);
        if (reused < 64 * kept) {
            fail_msg("room for %u pages, %zu tokens reused", (unsigned)n, reused);
        }
        tqe_prefix_free(p);
    }
    tqe_session_free(s);
    state_remove(dir);
}

/* What keeps a folder from its limit is said: a lock that cannot be had, by name and reason. */
static void test_no_lock(void **state)
{
    (void)state;
    int32_t ids[330];
    tqe_error err = {TQE_OK, ""};
    char path[1024];
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    (void)snprintf(path, sizeof(path), "%s/lock", dir);
    state_tokens(ids, 330, 1, tiny);
    for (int how = 0; how < 3; how++) {
        state_remove(dir);
        assert_int_equal(mkdir(dir, 0700), 0);
        assert_int_equal(how == 0   ? mkdir(path, 0700)
                         : how == 1 ? symlink("/nonexistent/file", path)
                                    : mkfifo(path, 0600),
                         0);
        tqe_prefix *p = open_store(dir, 200000, NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_int_equal(prompt(s, p, ids, 330), 0);
        const bool said = tqe_prefix_problem(p, &err);
        if (how < 2) {
            assert_true(said && folder_bytes() > 200000);
            assert_non_null(strstr(err.text, "limit of 200000 bytes, and locking 'lock' fails"));
        } else { /* a pipe can be locked as well as a file */
            assert_true(!said && folder_bytes() <= 200000);
        }
        tqe_prefix_free(p);
        (void)remove(path);
    }
    tqe_session_free(s);
    state_remove(dir);
}

/* Of the one page in the folder. */
static uint64_t page_file_bytes(void)
{
    char pattern[1024];
    struct stat sb = {0};
    glob_t g;
    (void)snprintf(pattern, sizeof(pattern), "%s/*.page", dir);
    assert_int_equal(glob(pattern, 0, NULL, &g), 0);
    assert_int_equal(g.gl_pathc, 1);
    assert_int_equal(stat(g.gl_pathv[0], &sb), 0);
    globfree(&g);
    return (uint64_t)sb.st_size;
}

/* It is said from the first prompt on, also one shorter than a page, with the very number of bytes
 * that a page takes, for schemes whose layers differ, too. */
static void test_tiny_limit_short(void **state)
{
    (void)state;
    static const char *const schemes[] = {"f16", "turbo4", "turbo:k8v3,tail=8", "tcq3,skip=1"};
    int32_t ids[330];
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 330, 1, tiny);
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        state_remove(dir);
        tqe_session *s = state_session(tiny, schemes[i], 400, 0);
        tqe_prefix *p = open_store(dir, 1024, NULL);
        assert_int_equal(prompt(s, p, ids, 3), 0);
        assert_true(tqe_prefix_problem(p, &err));
        const char *least = strstr(err.text, "nothing is stored; ");
        assert_non_null(least);
        const uint64_t n = strtoull(least + strlen("nothing is stored; "), NULL, 10);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        (void)prompt(s, p, ids, 3);
        no_problem(p);
        tqe_prefix_free(p);
        p = open_store(dir, n, NULL); /* this one stores a page */
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        (void)prompt(s, p, ids, 3);
        no_problem(p);
        tqe_prefix_free(p);
        p = open_store(dir, n - 1, NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        (void)prompt(s, p, ids, 70);
        assert_true(tqe_prefix_problem(p, &err));
        tqe_prefix_free(p);
        tqe_prefix_params all = {.dir = dir, .limit_bytes = 1 << 30};
        state_ok(tqe_prefix_create(&p, &all, &err), &err);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        (void)prompt(s, p, ids, 70);
        tqe_prefix_flush(p);
        assert_int_equal(page_file_bytes(), n);
        tqe_prefix_free(p);
        tqe_session_free(s);
    }
}

/* A limit that no page fits: said once, with the value that would do, which does. */
static void test_tiny_limit(void **state)
{
    (void)state;
    static const uint64_t limits[] = {1, 1024};
    int32_t ids[330];
    tqe_error err = {TQE_OK, ""};
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_tokens(ids, 330, 1, tiny);
    for (size_t i = 0; i < 2; i++) {
        state_remove(dir);
        tqe_prefix *p = open_store(dir, limits[i], NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_int_equal(prompt(s, p, ids, 330), 0);
        assert_true(tqe_prefix_problem(p, &err));
        assert_non_null(strstr(err.text, i == 0 ? "limit of 1 bytes" : "limit of 1024 bytes"));
        assert_int_equal(folder_bytes(), 0);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        (void)prompt(s, p, ids, 330);
        no_problem(p);
        tqe_prefix_free(p);
    }
    tqe_prefix *p = open_store(dir, limits[0], NULL);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    (void)prompt(s, p, ids, 330);
    assert_true(tqe_prefix_problem(p, &err));
    tqe_prefix_free(p);
    const char *least = strstr(err.text, "stored; ");
    assert_non_null(least);
    p = open_store(dir, strtoull(least + 8, NULL, 10), NULL);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    (void)prompt(s, p, ids, 65);
    no_problem(p);
    assert_int_equal(state_count(dir, ".page", NULL), 1);
    tqe_prefix_free(p);
    tqe_session_free(s);
    state_remove(dir);
}

/* The limit is the folder's: three processes that each store less than it store more together. */
static void test_shared_limit(void **state)
{
    (void)state;
    enum { PROCESSES = 3, N = 330 };
    int32_t ids[N];
    tqe_error err = {TQE_OK, ""};
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    state_tokens(ids, N, 1, tiny);
    (void)prompt(s, p, ids, N);
    tqe_prefix_free(p);
    const uint64_t one = folder_bytes(), page = one / 5, limit = 2 * one;
    state_remove(dir);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    int pipes[2];
    char byte = 0;
    assert_int_equal(pipe(pipes), 0);
    (void)fflush(NULL);
    pid_t child[PROCESSES];
    for (int c = 0; c < PROCESSES; c++) {
        child[c] = fork();
        if (child[c] == 0) {
            tqe_prefix *q = NULL;
            const tqe_prefix_params params = {.dir = dir, .limit_bytes = limit};
            int bad = tqe_prefix_create(&q, &params, &err) != TQE_OK;
            (void)close(pipes[1]);
            bad = bad || read(pipes[0], &byte, 1) != 0; /* all have opened it empty */
            state_tokens(ids, N, 50 + (uint64_t)c, tiny);
            bad = bad || tqe_session_prompt(s, q, ids, N, NULL, NULL, NULL, &err) != TQE_OK;
            tqe_prefix_free(q);
            _exit(bad);
        }
    }
    (void)usleep(200000);
    (void)close(pipes[1]);
    for (int c = 0; c < PROCESSES; c++) {
        int status = 0;
        assert_int_equal(waitpid(child[c], &status, 0), child[c]);
        assert_int_equal(status, 0);
    }
    (void)close(pipes[0]);
    if (folder_bytes() > limit + PROCESSES * page || folder_bytes() < limit / 2) {
        fail_msg("%llu bytes, limit %llu", (unsigned long long)folder_bytes(),
                 (unsigned long long)limit);
    }
    tqe_session_free(s);
    state_remove(dir);
}

/* A queue that holds one page: pages are dropped, nothing waits, and what was written is good. */
static void test_full_queue(void **state)
{
    (void)state;
    int32_t ids[640];
    tqe_error err = {TQE_OK, ""};
    state_remove(dir);
    tqe_prefix *p = NULL;
    const tqe_prefix_params params = {.dir = dir, .queue_bytes = 1};
    state_ok(tqe_prefix_create(&p, &params, &err), &err);
    tqe_session *s = state_session(tiny, "f16", 700, 0);
    state_tokens(ids, 640, 1, tiny);
    assert_int_equal(prompt(s, p, ids, 640), 0);
    tqe_prefix_stats stats;
    tqe_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_dropped, 9);
    assert_int_equal(stats.n_written, 0);
    tqe_prefix_free(p);
    tqe_session_free(s);
    state_remove(dir);
}

/* Writing fails in some way: said once, and the prompt is what it is without a store. */
static void sick(const char *word, void (*begin)(void), void (*end)(void))
{
    int32_t ids[330];
    tqe_error err = {TQE_OK, ""};
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_tokens(ids, 330, 1, tiny);
    begin();
    assert_int_equal(prompt(s, p, ids, 330), 0);
    end();
    assert_true(tqe_prefix_problem(p, &err));
    if (strstr(err.text, word) == NULL) {
        fail_msg("'%s' does not say '%s'", err.text, word);
    }
    tqe_prefix *none = open_store(NULL, 0, NULL);
    tqe_session *alone = state_session(tiny, "f16", 400, 0);
    (void)prompt(alone, none, ids, 330);
    state_same(s, state_logits(alone, tiny), tiny, word);
    tqe_prefix_free(none);
    tqe_prefix_free(p);
    tqe_session_free(alone);
    tqe_session_free(s);
    assert_int_equal(state_count(dir, ".tmp", NULL), 0);
    state_remove(dir);
}

static struct rlimit old_limit;

static void begin_full(void)
{
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
    const struct rlimit small = {.rlim_cur = 5000, .rlim_max = old_limit.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
}
static void end_full(void)
{
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
}
static void begin_vanish(void)
{
    state_remove(dir);
}
static void end_vanish(void) {}

static void test_sick_disk(void **state)
{
    (void)state;
    sick("File too large", begin_full, end_full);
    sick("No such file", begin_vanish, end_vanish);
    tqe_prefix *p = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_prefix_params nowhere = {.dir = "/nonexistent/folder"};
    assert_int_equal(tqe_prefix_create(&p, &nowhere, &err), TQE_ERR_IO);
    assert_null(p);
    assert_non_null(strstr(err.text, "/nonexistent/folder"));
    const tqe_prefix_params no_folder = {.dir = "/dev/null"};
    assert_int_equal(tqe_prefix_create(&p, &no_folder, &err), TQE_ERR_IO);
}

/* A folder that only its owner may write: another user reads hits from it and says what it cannot
 * do. Root may write anywhere, so it becomes that other user. */
static void test_read_only_folder(void **state)
{
    (void)state;
    int32_t ids[330];
    if (geteuid() != 0) {
        skip();
    }
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_tokens(ids, 330, 1, tiny);
    (void)prompt(s, p, ids, 200);
    tqe_prefix_free(p);
    DIR *d = opendir(dir);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        (void)fchmodat(dirfd(d), e->d_name, 0644, 0);
    }
    (void)closedir(d);
    assert_int_equal(chmod(dir, 0555), 0);
    char *parent = strdup(dir);
    *strrchr(parent, '/') = '\0';
    assert_int_equal(chmod(parent, 0755), 0);
    free(parent);
    tqe_session *fresh = state_session(tiny, "f16", 400, 0);
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        tqe_prefix *q = NULL;
        tqe_error err = {TQE_OK, ""};
        size_t reused = 0;
        const tqe_prefix_params params = {.dir = dir};
        int bad = setuid(65534) != 0 || tqe_prefix_create(&q, &params, &err) != TQE_OK ||
                  tqe_session_prompt(fresh, q, ids, 330, NULL, NULL, &reused, &err) != TQE_OK;
        if (!bad) {
            tqe_prefix_flush(q);
            bad = (reused != 192) | !tqe_prefix_problem(q, &err) << 1 |
                  (strstr(err.text, "Permission denied") == NULL) << 2;
        }
        char below[600];
        (void)snprintf(below, sizeof(below), "%s/store", dir);
        const tqe_prefix_params new_one = {.dir = below};
        tqe_prefix *none = NULL;
        if (tqe_prefix_create(&none, &new_one, &err) != TQE_ERR_IO ||
            strstr(err.text, "Permission denied") == NULL) { /* why it cannot be made */
            bad |= 8;
        }
        _exit(bad);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    tqe_session_free(s);
    tqe_session_free(fresh);
    assert_int_equal(chmod(dir, 0755), 0);
    state_remove(dir);
}

/* Three processes in one folder that holds less than they store: each evicts what the others are
 * about to read, and every answer is still right. */
static void test_shared_folder(void **state)
{
    (void)state;
    enum { PROCESSES = 3, PROMPTS = 6, ROUNDS = 20, N = 200 };
    int32_t ids[PROMPTS][N];
    float *want[PROMPTS];
    tqe_model_info info;
    tqe_error err = {TQE_OK, ""};
    tqe_model_get_info(tiny, &info);
    tqe_prefix *none = open_store(NULL, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4,tail=20", N, 0);
    for (uint64_t i = 0; i < PROMPTS; i++) {
        state_tokens(ids[i], N, i, tiny);
        (void)prompt(s, none, ids[i], N);
        want[i] = state_logits(s, tiny);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
    }
    state_remove(dir);
    (void)fflush(NULL);
    pid_t child[PROCESSES];
    for (int c = 0; c < PROCESSES; c++) {
        child[c] = fork();
        if (child[c] == 0) {
            tqe_prefix *p = NULL;
            const tqe_prefix_params params = {.dir = dir, .limit_bytes = 300000, .every_pages = 1};
            uint64_t seed = (uint64_t)c;
            int bad = tqe_prefix_create(&p, &params, &err) != TQE_OK;
            for (int r = 0; r < ROUNDS && !bad; r++) {
                const uint64_t i = test_random(&seed) % PROMPTS;
                bad = tqe_session_truncate(s, 0, &err) != TQE_OK ||
                      tqe_session_prompt(s, p, ids[i], N, NULL, NULL, NULL, &err) != TQE_OK ||
                      memcmp(tqe_session_logits(s), want[i], info.n_vocab * sizeof(float)) != 0 ||
                      tqe_prefix_problem(p, &err);
            }
            tqe_prefix_free(p);
            _exit(bad);
        }
    }
    for (int c = 0; c < PROCESSES; c++) {
        int status = 0;
        assert_int_equal(waitpid(child[c], &status, 0), child[c]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(state_count(dir, ".bad", NULL), 0);
    assert_int_equal(state_count(dir, ".tmp", NULL), 0);
    for (int i = 0; i < PROMPTS; i++) {
        free(want[i]);
    }
    tqe_session_free(s);
    tqe_prefix_free(none);
    state_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk_limit),
        cmocka_unit_test(test_no_lock),
        cmocka_unit_test(test_limit_keeps_the_beginning),
        cmocka_unit_test(test_tiny_limit),
        cmocka_unit_test(test_tiny_limit_short),
        cmocka_unit_test(test_shared_limit),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_sick_disk),
        cmocka_unit_test(test_read_only_folder),
        cmocka_unit_test(test_shared_folder),
    };
    return cmocka_run_group_tests(tests, prefix_setup, prefix_teardown);
}
