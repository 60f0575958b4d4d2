/* SPDX-License-Identifier: MIT */
/* target.c — may a file be written? Asked before anything is computed for it.
 *
 * A result that replaces an input costs the user a file that may be the only one. Names do not
 * tell: links and "./" lead to the same file, so device and inode are compared.
 */
#include "target.h"

#include "file_atomic.h"
#include "out.h"

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
