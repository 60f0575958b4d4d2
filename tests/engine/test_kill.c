/* SPDX-License-Identifier: MIT */
/* test_kill.c — kill -9 at random moments while snapshots and prefix pages are written.
 *
 * A child saves two timelines in turn under one name, or stores prompts, until it is killed; then
 * the file must be one of the two, whole, and the next start must leave no temporary file. Moments
 * are random in time (the seed is printed); how many fell into a write is printed, too. Pages of a
 * store are written within microseconds: those of the test have megabytes, and most of its kills
 * wait until a temporary file is there.
 */
#include "state_support.h"

#include "snapshot_format.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { KILLS = 200 };

static tqe_model *tiny, *wide; /* wide: 2 MiB in a page of f16 */
static uint64_t seed;

static int setup(void **state)
{
    (void)state;
    tiny = state_tiny(0, 0);
    gen_model g = gen_model_of("llama");
    g.d_head = 64;
    g.n_heads = 64;
    g.n_kv_heads = 64;
    const char *path = gen_temp_path("wide.gguf");
    assert_true(gen_model_write(&g, path));
    wide = state_model(path);
    (void)unlink(path);
    const char *given = getenv("TQ_SEED");
    seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("TQ_SEED=%llu\n", (unsigned long long)seed);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(tiny);
    tqe_model_free(wide);
    return 0;
}

/* Let the child work up to window_ms, then end it as a power cut would end a process. */
static void kill_soon(pid_t child, uint32_t window_ms)
{
    assert_true(child > 0);
    const struct timespec t = {.tv_nsec = (long)(test_random(&seed) % (window_ms * 1000000ull))};
    (void)nanosleep(&t, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

/* Wait until a temporary file is in the folder, but no longer than a second. */
static void wait_for_temp(const char *dir)
{
    const struct timespec t = {.tv_nsec = 20000};
    for (int i = 0; i < 20000 && state_count(dir, ".tmp", NULL) == 0; i++) {
        (void)nanosleep(&t, NULL);
    }
}

static void test_saving(void **state)
{
    (void)state;
    tqe_error err = {TQE_OK, ""};
    int32_t ids[200];
    uint32_t window_ms = 8;
    char *dir = state_path("kill");
    char *path = state_path("kill/x.tqs");
    assert_int_equal(mkdir(dir, 0755), 0);
    state_tokens(ids, 200, 1, tiny);
    tqe_session *a = state_session(tiny, "turbo4", 200, 0), *b = state_session(tiny, "f32", 200, 0);
    state_eval(a, ids, 100);
    state_eval(b, ids, 150);
    state_ok(tqe_session_save(a, path, &err), &err);
    size_t na = 0, nb = 0, n_temp = 0;
    uint8_t *fa = state_read(path, &na);
    state_ok(tqe_session_save(b, path, &err), &err);
    uint8_t *fb = state_read(path, &nb);
    (void)fflush(NULL);
    for (int i = 0; i < KILLS; i++) {
        const pid_t child = fork();
        if (child == 0) {
            for (;;) {
                (void)tqe_session_save(a, path, &err);
                (void)tqe_session_save(b, path, &err);
            }
        }
        kill_soon(child, window_ms);
        n_temp += state_count(dir, ".tmp", NULL);
        size_t n = 0;
        uint8_t *f = state_read(path, &n);
        assert_true((n == na && memcmp(f, fa, n) == 0) || (n == nb && memcmp(f, fb, n) == 0));
        free(f);
        if (i % 10 == 9) { /* the next start: nothing is left of nine deaths */
            state_ok(tqe_session_save(a, path, &err), &err);
            assert_int_equal(state_count(dir, ".tmp", NULL), 0);
            assert_int_equal(state_count(dir, "", NULL), 1);
            if (n_temp == 0 && window_ms < 250)
                window_ms *= 2; /* a slow machine had not begun to write */
        }
    }
    print_message("%d kills, %zu temporary files seen\n", KILLS, n_temp);
    assert_true(n_temp > 0); /* or the moments were no test */
    free(fa);
    free(fb);
    tqe_session_free(a);
    tqe_session_free(b);
    state_remove(dir);
    free(dir);
    free(path);
}

/* Every file of a store is whole and is what its name says. */
static size_t check_folder(const char *dir)
{
    size_t n_files = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[1024], hex[3] = "";
        tqe_snap h;
        tqe_error err = {TQE_OK, ""};
        size_t n = 0;
        if (strstr(e->d_name, ".page") == NULL && strstr(e->d_name, ".end") == NULL) {
            continue;
        }
        assert_null(strstr(e->d_name, ".bad"));
        (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        uint8_t *f = state_read(path, &n);
        state_ok(tqe_snap_parse(&h, f, n, &err), &err);
        for (int i = 0; i < 32; i++) {
            (void)snprintf(hex, sizeof(hex), "%02x", h.key[i]);
            assert_memory_equal(hex, e->d_name + 2 * i, 2);
        }
        tqe_snap_free(&h);
        free(f);
        n_files++;
    }
    (void)closedir(d);
    return n_files;
}

static void test_storing(void **state)
{
    (void)state;
    tqe_error err = {TQE_OK, ""};
    int32_t ids[200];
    size_t n_temp = 0, n_files = 0;
    uint32_t window_ms = 8;
    char *dir = state_path("killstore");
    const tqe_prefix_params params = {.dir = dir, .limit_bytes = 40000000, .every_pages = 1};
    tqe_session *s = state_session(wide, "f16", 200, 0);
    assert_int_equal(mkdir(dir, 0755), 0);
    (void)fflush(NULL);
    for (int i = 0; i < KILLS; i++) {
        const pid_t child = fork();
        if (child == 0) {
            tqe_prefix *p = NULL;
            if (tqe_prefix_create(&p, &params, &err) != TQE_OK) {
                _exit(1);
            }
            for (uint64_t k = 0;; k++) {
                state_tokens(ids, 70, (uint64_t)i * 1000 + k, wide);
                (void)tqe_session_prompt(s, p, ids, 70, NULL, NULL, NULL, &err);
            }
        }
        if (i % 4 != 0) {
            wait_for_temp(dir);
            kill_soon(child, 1);
        } else {
            kill_soon(child, window_ms);
        }
        n_temp += state_count(dir, ".tmp", NULL);
        tqe_prefix *p = NULL; /* the next start: nothing is left */
        state_ok(tqe_prefix_create(&p, &params, &err), &err);
        tqe_prefix_free(p);
        assert_int_equal(state_count(dir, ".tmp", NULL), 0);
        if (i % 10 == 9) {
            n_files = check_folder(dir);
            if (n_files == 0 && window_ms < 250)
                window_ms *= 2; /* a slow machine had not begun to write */
        }
    }
    print_message("%d kills, %zu temporary files seen, %zu pages whole\n", KILLS, n_temp, n_files);
    assert_true(n_files > 0);
    assert_true(n_temp > KILLS / 10); /* or the moments were no test */
    tqe_session_free(s);
    state_remove(dir);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saving),
        cmocka_unit_test(test_storing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
