/* SPDX-License-Identifier: MIT */
/* test_stall.c — a disk that does not answer: tokens go on, the queue of the prefix store is
 * bounded, and what it cannot take is dropped, counted and said.
 *
 * The linker puts a renameat of ours before the engine's (--wrap), which waits as long as the test
 * wants: the thread that writes is stuck in its first page, as with a disk that is gone. If
 * anything waited for it, the test would never end, so an alarm ends it.
 */
#include "prefix_support.h"

#include <pthread.h>
#include <time.h>

enum { N = 640, N_PAGES = 9, N_TOKENS = 60, ROOM = 3 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static bool stalled;
static int n_stuck; /* writers that wait now */

int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);

int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    (void)pthread_mutex_lock(&lock);
    n_stuck++;
    (void)pthread_cond_broadcast(&change);
    while (stalled) {
        (void)pthread_cond_wait(&change, &lock);
    }
    n_stuck--;
    (void)pthread_mutex_unlock(&lock);
    return __real_renameat(from_fd, from, to_fd, to);
}

static void set_stalled(bool on)
{
    (void)pthread_mutex_lock(&lock);
    stalled = on;
    (void)pthread_cond_broadcast(&change);
    (void)pthread_mutex_unlock(&lock);
}

static void wait_until_stuck(void)
{
    (void)pthread_mutex_lock(&lock);
    while (n_stuck == 0) {
        (void)pthread_cond_wait(&change, &lock);
    }
    (void)pthread_mutex_unlock(&lock);
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The store's files have equal sizes here: bytes of one. */
static uint64_t page_bytes(tqe_session *s, const int32_t *ids)
{
    tqe_error err = {TQE_OK, ""};
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    assert_int_equal(prompt(s, p, ids, 65), 0);
    tqe_prefix_free(p);
    const uint64_t bytes = folder_bytes();
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    state_remove(dir);
    return bytes;
}

static void unflushed(tqe_session *s, tqe_prefix *p, const int32_t *ids, size_t n, size_t reused)
{
    tqe_error err = {TQE_OK, ""};
    size_t got = 0;
    state_ok(tqe_session_prompt(s, p, ids, n, NULL, NULL, &got, &err), &err);
    assert_int_equal(got, reused);
}

/* Tokens one by one; the longest took so many seconds. */
static double decode(tqe_session *s, const int32_t *ids)
{
    double longest = 0;
    for (int i = 0; i < N_TOKENS; i++) {
        const double begin = now();
        state_eval(s, ids + i, 1);
        longest = fmax(longest, now() - begin);
    }
    return longest;
}

static void test_tokens_go_on(void **state)
{
    (void)state;
    int32_t ids[N], other[N];
    tqe_error err = {TQE_OK, ""};
    tqe_prefix_stats stats;
    state_tokens(ids, N, 1, tiny);
    state_tokens(other, N, 2, tiny);
    tqe_session *s = state_session(tiny, "f16", N + N_TOKENS, 0);
    tqe_session *alone = state_session(tiny, "f16", N + N_TOKENS, 0);
    const uint64_t page = page_bytes(s, ids);
    tqe_prefix *none = open_store(NULL, 0, NULL), *p = NULL;
    const tqe_prefix_params params = {.dir = dir, .queue_bytes = ROOM * page + page / 2};
    state_ok(tqe_prefix_create(&p, &params, &err), &err);

    (void)alarm(240);
    set_stalled(true);
    unflushed(s, p, ids, N, 0);
    wait_until_stuck();
    const double beside = decode(s, ids);
    tqe_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_written, 0); /* nothing moved on the disk all the while */
    assert_int_equal(stats.n_dropped, N_PAGES - ROOM);
    assert_true(tqe_prefix_problem(p, &err));
    if (strstr(err.text, "is full: the disk is slower") == NULL) {
        fail_msg("'%s'", err.text);
    }
    (void)prompt(alone, none, ids, N);
    const double without = decode(alone, ids);
    print_message("longest token: %.2f ms beside a stuck writer, %.2f ms without one\n",
                  1e3 * beside, 1e3 * without);
    state_same(s, state_logits(alone, tiny), tiny, "beside a stuck writer");

    /* The next prompts, too; what waits is bounded, and dropped is said once. */
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    unflushed(s, p, other, N, 0);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    unflushed(s, p, ids, N, 0); /* nothing of it is on the disk yet */
    tqe_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_written, 0);
    assert_int_equal(stats.n_dropped, 3 * N_PAGES - ROOM);
    no_problem(p);

    /* The disk comes back: what waited is there and good, the rest is stored by the next prompt. */
    set_stalled(false);
    tqe_prefix_flush(p);
    tqe_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_written, ROOM);
    assert_int_equal(stats.bytes_written, ROOM * page);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_int_equal(prompt(s, p, ids, N), ROOM * 64);
    decode(s, ids);
    state_same(s, state_logits(alone, tiny), tiny, "after the disk came back");
    assert_int_equal(state_count(dir, ".tmp", NULL), 0);
    (void)alarm(0);
    tqe_prefix_free(p);
    tqe_prefix_free(none);
    tqe_session_free(s);
    tqe_session_free(alone);
    state_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_go_on),
    };
    return cmocka_run_group_tests(tests, prefix_setup, prefix_teardown);
}
