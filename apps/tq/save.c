/* SPDX-License-Identifier: MIT */
/* save.c — files of results: whole under the name asked for, or not there.
 *
 * Policy: a result is written beside its name and renamed when all of it has reached the disk, so a
 * full disk leaves neither half of a table nor an empty file in the place of an older one. Devices,
 * FIFOs and names like /dev/stdout cannot be renamed to and are written directly.
 */
#define _XOPEN_SOURCE 700 /* realpath */
#include "save.h"

#include "out.h"
#include "target.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool failed(const save_file *s, int why)
{
    const char *flag = s->flag ? s->flag : "";
    msg_error("%s%scannot write '%s': %s", flag, *flag ? ": " : "", s->path, strerror(why));
    return false;
}

static void forget(save_file *s)
{
    free(s->to);
    free(s->tmp);
    *s = (save_file){0};
}

/* A link stays one: what it leads to is replaced. */
static bool find_names(save_file *s)
{
    s->to = realpath(s->path, NULL);
    s->to = s->to ? s->to : strdup(s->path); /* not there yet */
    size_t n = s->to ? strlen(s->to) + sizeof ".tmp" : 0;
    s->tmp = s->to ? malloc(n) : NULL;
    if (s->tmp) {
        snprintf(s->tmp, n, "%s.tmp", s->to);
    }
    return s->tmp != NULL;
}

bool save_open(save_file *s, const char *flag, const char *path)
{
    bool special = target_is_special(path);
    *s = (save_file){.flag = flag, .path = path};
    if (!special && !find_names(s)) {
        failed(s, ENOMEM);
        forget(s);
        return false;
    }
    int fd = special ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC)
                     : open(s->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    struct stat st;
    if (!special && fd >= 0 && stat(s->to, &st) == 0) {
        (void)!fchmod(fd, st.st_mode & 0777); /* the file that is replaced hands on its own */
    }
    s->f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!s->f) {
        failed(s, errno);
        if (fd >= 0) {
            close(fd);
        }
        forget(s);
        return false;
    }
    /* Room for what comes between two flushes: those say why a write failed. */
    (void)setvbuf(s->f, NULL, _IOFBF, (size_t)1 << 18);
    return true;
}

bool save_flush(save_file *s)
{
    if (!s->f) {
        return true;
    }
    /* What is on its way to /dev/stdout comes first; main() reports it when that fails. */
    if (!s->tmp && !out_flush()) {
        return false;
    }
    errno = EIO; /* of a write that failed before this one */
    return (fflush(s->f) == 0 && !ferror(s->f)) || failed(s, errno);
}

bool save_close(save_file *s, bool keep)
{
    if (!s->f) {
        return true;
    }
    bool ok = keep ? save_flush(s) : true;
    bool told = !ok;
    if (ok && keep && s->tmp) {
        ok = fsync(fileno(s->f)) == 0;
    }
    int why = errno;
    if (fclose(s->f) != 0 && ok && keep) {
        ok = false;
        why = errno;
    }
    if (ok && keep && s->tmp && rename(s->tmp, s->to) != 0) {
        ok = false;
        why = errno;
    }
    if (s->tmp && (!ok || !keep)) {
        unlink(s->tmp);
    }
    if (!ok && !told) {
        failed(s, why);
    }
    forget(s);
    return ok;
}

bool save_bytes(const char *flag, const char *path, const char *data, size_t n)
{
    save_file s;
    if (!save_open(&s, flag, path)) {
        return false;
    }
    if (!s.tmp && !out_flush()) {
        save_close(&s, false);
        return false;
    }
    if (fwrite(data, 1, n, s.f) != n) {
        failed(&s, errno);
        save_close(&s, false);
        return false;
    }
    return save_close(&s, true);
}

bool save_check(const char *flag, const char *path)
{
    struct stat st;
    int why = 0;
    if (!path) {
        return true;
    }
    if (stat(path, &st) == 0) {
        why = S_ISDIR(st.st_mode) ? EISDIR : access(path, W_OK) != 0 ? errno : 0;
    } else if (errno == ENOENT) {
        const char *slash = strrchr(path, '/');
        char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
        why = !dir ? ENOMEM : access(dir, W_OK | X_OK) != 0 ? errno : 0;
        free(dir);
    } else {
        why = errno;
    }
    if (why) {
        msg_error("%s: cannot write '%s': %s", flag, path, strerror(why));
    }
    return !why;
}
