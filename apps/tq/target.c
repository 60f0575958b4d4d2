/* SPDX-License-Identifier: MIT */
/* target.c — may a file be written? Asked before anything is computed for it.
 *
 * A result that replaces an input costs the user a file that may be the only one. Names do not
 * tell: links and "./" lead to the same file, so device and inode are compared.
 */
#include "target.h"

#include "file_atomic.h"
#include "out.h"
#include "turboquant.h"

#include <string.h>

bool target_is_not(const char *flag, const char *path, const char *input_flag, const char *input)
{
    if (!path || !input || !strcmp(input, "-") || !tqe_file_same(path, input)) {
        return true;
    }
    msg_error("%s: '%s' is the file that %s reads ('%s'): it would be lost", flag, path, input_flag,
              input);
    return false;
}

bool target_can_be(const char *flag, const char *path)
{
    tqe_error err = {0};
    if (path &&
        !strcmp(path, "-")) { /* standard output elsewhere: not where a file appears whole */
        msg_error("%s: '-' does not stand for standard output here; './-' names a file", flag);
        return false;
    }
    if (!path || tqe_atomic_check(path, &err) == TQE_OK) {
        return true;
    }
    msg_error("%s: %s", flag, err.text);
    return false;
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
