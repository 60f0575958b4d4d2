/* SPDX-License-Identifier: MIT */
/* cmocka.h — the part of cmocka's interface that our tests use, for cross builds, whose root has
 * no cmocka. Native builds use the real one: this file is on the include path only where it is
 * missing (cmake/tq_test.cmake).
 *
 * A failed assertion prints where and what, then leaves the test by longjmp, as cmocka does.
 */
#ifndef TQ_TEST_CMOCKA_H
#define TQ_TEST_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    CMFixtureFunction setup_func;
    CMFixtureFunction teardown_func;
    void *initial_state;
};

enum { CM_PASSED, CM_FAILED, CM_SKIPPED };

static jmp_buf cm_back;
static long cm_n_blocks; /* of test_malloc that are not freed */

/* A value that -Wconversion does not complain about, whatever integer or pointer x is. */
#define cm_int(x) ((unsigned long long)(x))

static inline _Noreturn void cm_fail(const char *file, int line, const char *what)
{
    printf("%s:%d: error: %s\n", file, line, what);
    fflush(stdout);
    longjmp(cm_back, CM_FAILED);
}

static inline _Noreturn void cm_skip(void)
{
    longjmp(cm_back, CM_SKIPPED);
}

static inline void cm_check(int ok, const char *what, const char *file, int line)
{
    if (!ok)
        cm_fail(file, line, what);
}

static inline void cm_equal(unsigned long long a, unsigned long long b, int want, const char *what,
                            const char *file, int line)
{
    if ((a == b) == want)
        return;
    printf("%#llx and %#llx: ", a, b);
    cm_fail(file, line, what);
}

static inline void cm_string(const char *a, const char *b, int want, const char *what,
                             const char *file, int line)
{
    if ((strcmp(a, b) == 0) == want)
        return;
    printf("\"%s\" and \"%s\": ", a, b);
    cm_fail(file, line, what);
}

#define assert_true(x)         cm_check(!!(x), "not true: " #x, __FILE__, __LINE__)
#define assert_false(x)        cm_check(!(x), "not false: " #x, __FILE__, __LINE__)
#define assert_non_null(x)     cm_check((x) != NULL, "is NULL: " #x, __FILE__, __LINE__)
#define assert_null(x)         cm_check((x) == NULL, "not NULL: " #x, __FILE__, __LINE__)
#define assert_int_equal(a, b) cm_equal(cm_int(a), cm_int(b), 1, #a " != " #b, __FILE__, __LINE__)
#define assert_int_not_equal(a, b)                                                                 \
    cm_equal(cm_int(a), cm_int(b), 0, #a " == " #b, __FILE__, __LINE__)
#define assert_in_range(x, lo, hi)                                                                 \
    cm_check(cm_int(x) >= cm_int(lo) && cm_int(x) <= cm_int(hi), "out of range: " #x, __FILE__,    \
             __LINE__)
#define assert_ptr_equal(a, b)                                                                     \
    cm_check((const void *)(a) == (const void *)(b), #a " != " #b, __FILE__, __LINE__)
#define assert_string_equal(a, b)     cm_string(a, b, 1, #a " != " #b, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) cm_string(a, b, 0, #a " == " #b, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n)                                                               \
    cm_check(memcmp(a, b, n) == 0, "bytes differ: " #a ", " #b, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, n)                                                           \
    cm_check(memcmp(a, b, n) != 0, "bytes are equal: " #a ", " #b, __FILE__, __LINE__)

/* A test that passes and leaves blocks behind fails. */
static inline void *test_malloc(size_t n)
{
    void *p = malloc(n);
    cm_n_blocks += p != NULL;
    return p;
}

static inline void *test_calloc(size_t n, size_t size)
{
    void *p = calloc(n, size);
    cm_n_blocks += p != NULL;
    return p;
}

static inline void test_free(void *p)
{
    cm_n_blocks -= p != NULL;
    free(p);
}

#define fail() cm_fail(__FILE__, __LINE__, "fail()")
#define skip() cm_skip()
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf(__VA_ARGS__);                                                                       \
        printf(": ");                                                                              \
        cm_fail(__FILE__, __LINE__, "fail_msg()");                                                 \
    } while (0)
#define print_message(...) ((void)printf(__VA_ARGS__))

#define cmocka_unit_test(f)                                                                        \
    {                                                                                              \
#f, f, NULL, NULL, NULL                                                                    \
    }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                                        \
    {                                                                                              \
#f, f, setup, teardown, NULL                                                               \
    }

static inline int cm_run_one(const struct CMUnitTest *t)
{
    void *state = t->initial_state;
    int result = setjmp(cm_back);

    if (result == CM_PASSED) {
        cm_n_blocks = 0;
        if (t->setup_func && t->setup_func(&state) != 0)
            cm_fail(t->name, 0, "setup failed");
        t->test_func(&state);
        if (t->teardown_func && t->teardown_func(&state) != 0)
            cm_fail(t->name, 0, "teardown failed");
        if (cm_n_blocks != 0)
            cm_fail(t->name, 0, "blocks are not freed");
    }
    return result;
}

static inline int cm_run_tests(const struct CMUnitTest *tests, size_t n, CMFixtureFunction setup,
                               CMFixtureFunction teardown)
{
    static const char *const words[] = {"OK", "FAILED", "SKIPPED"};
    void *state = NULL;
    int n_failed = setup && setup(&state) != 0;

    for (size_t i = 0; i < n && !n_failed; i++) {
        int result = cm_run_one(&tests[i]);
        printf("[ %s ] %s\n", words[result], tests[i].name);
        n_failed += result == CM_FAILED;
    }
    if (teardown && teardown(&state) != 0)
        n_failed++;
    return n_failed;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    cm_run_tests(tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

#endif
