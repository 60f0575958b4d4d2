/* SPDX-License-Identifier: MIT */
/* target.c — may a file be written? Asked before anything is computed for it.
 *
 * A result that replaces an input costs the user a file that may be the only one. Names do not
 * tell: links and "./" lead to the same file, so device and inode are compared.
 */
#define _POSIX_C_SOURCE 200809L
#include "target.h"

#include "file_atomic.h"
#include "out.h"
#include "turboquant.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool target_is_not(const char *flag, const char *path, const char *input_flag, const char *input)
{
    if (!path || !input || !strcmp(input, "-") || !tqe_file_same(path, input)) {
        return true;
    }
    msg_error("%s: '%s' is the file that %s reads ('%s'): it would be lost", flag, path, input_flag,
              input);
    return false;
}

/* The links /dev/stdout and /dev/fd/N lead to a file when output is sent to one, and are still not
 * to be replaced. In /dev/shm are files of users. */
static bool is_device_name(const char *path)
{
    struct stat st;
    return (!strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6)) &&
           strncmp(path, "/dev/shm/", 9) != 0 && lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool target_can_be(const char *flag, const char *path)
{
    tqe_error err = {0};
    struct stat st;
    if (path && !strcmp(path, "-")) { /* standard output elsewhere: a file appears whole here */
        msg_error("%s: '-' does not stand for standard output here; './-' names a file", flag);
        return false;
    }
    if (path && is_device_name(path) && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        msg_error("%s: cannot write '%s': the name cannot be given to a new file", flag, path);
        return false;
    }
    if (!path || tqe_atomic_check(path, &err) == TQE_OK) {
        return true;
    }
    msg_error("%s: %s", flag, err.text);
    return false;
}

bool target_is_special(const char *path)
{
    struct stat st;
    return is_device_name(path) ||
           (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode));
}

/* Would both be the same file, that is or is not yet there? */
static bool same_place(const char *a, const char *b)
{
    if (tqe_file_same(a, b)) {
        return !target_is_special(a); /* those may serve twice */
    }
    const char *base_a = strrchr(a, '/'), *base_b = strrchr(b, '/');
    char *dir_a = base_a ? strndup(a, (size_t)(base_a + 1 - a)) : strdup(".");
    char *dir_b = base_b ? strndup(b, (size_t)(base_b + 1 - b)) : strdup(".");
    bool same = dir_a && dir_b && tqe_file_same(dir_a, dir_b) &&
                !strcmp(base_a ? base_a + 1 : a, base_b ? base_b + 1 : b);
    free(dir_a);
    free(dir_b);
    struct stat st;
    return same && stat(a, &st) != 0;
}

bool target_apart(const char *const *flags, const char *const *paths, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) {
            if (paths[i] && paths[k] && same_place(paths[i], paths[k])) {
                msg_error("%s: '%s' is what %s writes: one of them would be lost", flags[i],
                          paths[i], flags[k]);
                return false;
            }
        }
    }
    return true;
}

static bool spares_scheme(const char *flag, const char *path, const char *kv)
{
    tq_scheme s;
    if (!kv || tq_scheme_parse(&s, kv, NULL, 0) != TQ_OK) {
        return true; /* another check refuses it */
    }
    return target_is_not(flag, path, "layers=", s.layers) &&
           target_is_not(flag, path, "kmean=", s.kmean);
}

bool target_spares(const char *flag, const char *path, const target_inputs *in)
{
    bool ok = target_is_not(flag, path, "-m", in->model) &&
              target_is_not(flag, path, "-f", in->file) && spares_scheme(flag, path, in->kv);
    for (size_t i = 0; ok && in->files && i < in->files->n; i++) {
        ok = target_is_not(flag, path, "-f", in->files->at[i]);
    }
    for (size_t i = 0; ok && in->schemes && i < in->schemes->n; i++) {
        ok = spares_scheme(flag, path, in->schemes->at[i]);
    }
    return ok;
}
