/* SPDX-License-Identifier: MIT */
/* prefix_support.h — a prefix store in a folder, and what the tests of it look at there. */
#ifndef TQ_TESTS_PREFIX_SUPPORT_H
#define TQ_TESTS_PREFIX_SUPPORT_H

#include "state_support.h"

/* The models and the folder of a test program. */
static tqe_model *tiny;
static char *dir;

static inline tqe_prefix *open_store(const char *folder, uint64_t limit, const char *salt)
{
    tqe_prefix *p = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_prefix_params params = {.dir = folder,
                                      .limit_bytes = limit,
                                      .salt = salt,
                                      .salt_bytes = salt != NULL ? strlen(salt) : 0,
                                      .every_pages = 2};
    state_ok(tqe_prefix_create(&p, &params, &err), &err);
    return p;
}

/* Run a prompt; returns what was reused. The store's files are complete afterwards. */
static inline size_t prompt(tqe_session *s, tqe_prefix *p, const int32_t *ids, size_t n)
{
    size_t reused = SIZE_MAX;
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_session_prompt(s, p, ids, n, NULL, NULL, &reused, &err), &err);
    assert_int_equal(tqe_session_len(s), n);
    assert_memory_equal(tqe_session_tokens(s), ids, n * sizeof(*ids));
    tqe_prefix_flush(p);
    return reused;
}

static inline void no_problem(tqe_prefix *p)
{
    tqe_error err;
    if (tqe_prefix_problem(p, &err)) {
        fail_msg("%s", err.text);
    }
}

/* Names of pages, [cap][128]. */
static inline size_t page_names(char names[][128], size_t cap)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        const size_t len = strlen(e->d_name);
        if (len > 5 && len < 128 && strcmp(e->d_name + len - 5, ".page") == 0) {
            assert_true(n < cap);
            memcpy(names[n++], e->d_name, len + 1);
        }
    }
    (void)closedir(d);
    return n;
}

/* Of all regular files. */
static inline uint64_t folder_bytes(void)
{
    uint64_t total = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        struct stat sb;
        if (fstatat(dirfd(d), e->d_name, &sb, 0) == 0 && S_ISREG(sb.st_mode)) {
            total += (uint64_t)sb.st_size;
        }
    }
    (void)closedir(d);
    return total;
}

static inline int prefix_setup(void **state)
{
    (void)state;
    tiny = state_tiny(0, 0);
    dir = state_path("prefix");
    return 0;
}

static inline int prefix_teardown(void **state)
{
    (void)state;
    tqe_model_free(tiny);
    free(dir);
    return 0;
}

#endif
