/* SPDX-License-Identifier: MIT */
/* file_atomic.c — write beside, bring to the disk, rename.
 *
 * The order is the whole point: data and length reach the disk before the name does (fsync of the
 * file, then rename, then fsync of the folder), so that after a crash the name leads to the old
 * file or to a whole new one. A writer that dies leaves a temporary file. It is told from one that
 * is being written by a lock: a writer holds flock() on its file, and the kernel lets go of it
 * whatever the writer dies of, on this boot or an earlier one. So who can lock a temporary file may
 * remove it; no process number is compared with anything.
 *
 * A rename replaces a symbolic link and not what it leads to. Who keeps a link under a name means
 * the file behind it, so links are followed first, and the temporary file is made beside that file.
 */
#include "file_atomic.h"

#include "engine_priv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Ask for write-back each time this much was written: the disk works while pages are encoded. */
#define START_BYTES ((uint64_t)8 << 20)

static tqe_status io_error(tqe_error *err, const char *verb, const char *path, int code)
{
    char text[128];
    const size_t n = strlen(path);
    if (n > 360) { /* the reason must have room after it */
        return tqe_fail(err, TQE_ERR_IO, "cannot %s '%.120s...%s': %s", verb, path, path + n - 220,
                        strerror_r(code, text, sizeof(text)));
    }
    return tqe_fail(err, TQE_ERR_IO, "cannot %s '%s': %s", verb, path,
                    strerror_r(code, text, sizeof(text)));
}

/* ---- Temporary files ------------------------------------------------------------------------ */

static const char temp_prefix[] = ".tq-", temp_suffix[] = ".tmp";
enum { TEMP_HEX = 16, TEMP_LEN = 4 + TEMP_HEX + 4 };

static bool is_temp(const char *name)
{
    if (strlen(name) != TEMP_LEN || memcmp(name, temp_prefix, 4) != 0 ||
        memcmp(name + 4 + TEMP_HEX, temp_suffix, 4) != 0) {
        return false;
    }
    return strspn(name + 4, "0123456789abcdef") == TEMP_HEX;
}

size_t tqe_atomic_sweep(int dir_fd)
{
    /* A descriptor of its own: a folder has one reading position per open. */
    const int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return 0; /* a folder that cannot be listed is no reason not to write into it */
    }
    size_t n = 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (!is_temp(e->d_name)) {
            continue;
        }
        const int t = openat(dir_fd, e->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (t < 0) {
            continue;
        }
        struct stat sb;
        if (fstat(t, &sb) == 0 && S_ISREG(sb.st_mode) && flock(t, LOCK_EX | LOCK_NB) == 0 &&
            unlinkat(dir_fd, e->d_name, 0) == 0) {
            n++;
        }
        (void)close(t);
    }
    (void)closedir(dir);
    return n;
}

/* A new file under a name that no one else has, locked. A sweeper may come between the creation
 * and the lock: then the file is given up and another name is tried. */
static int create_temp(tqe_atomic_file *f, unsigned mode)
{
    for (int attempt = 0; attempt < 64; attempt++) {
        uint64_t r = 0;
        if (getrandom(&r, sizeof(r), 0) != (ssize_t)sizeof(r)) {
            return errno != 0 ? errno : EIO;
        }
        (void)snprintf(f->temp, sizeof(f->temp), "%s%016llx%s", temp_prefix, (unsigned long long)r,
                       temp_suffix);
        f->fd = openat(f->dir_fd, f->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       (mode_t)mode);
        if (f->fd < 0) {
            if (errno == EEXIST) {
                continue;
            }
            return errno;
        }
        struct stat sb;
        const bool locked = flock(f->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
        if (locked && fstat(f->fd, &sb) == 0 && sb.st_nlink > 0) {
            return 0;
        }
        (void)close(f->fd);
        f->fd = -1;
    }
    return EEXIST;
}

/* ---- Writing -------------------------------------------------------------------------------- */

static void release(tqe_atomic_file *f)
{
    if (f->fd >= 0) {
        (void)close(f->fd);
    }
    if (f->dir_fd >= 0) {
        (void)close(f->dir_fd);
    }
    free(f->buf);
    free(f->path);
    free(f->shown);
    *f = (tqe_atomic_file){.fd = -1, .dir_fd = -1, .mode = -1};
}

void tqe_atomic_discard(tqe_atomic_file *f)
{
    if (f->path == NULL) {
        return;
    }
    if (f->fd >= 0) {
        (void)unlinkat(f->dir_fd, f->temp, 0);
    }
    release(f);
}

/* One that may be written but not listed, as a letter box, can be named all the same. */
static int open_listed_or_not(const char *folder)
{
    const int flags = O_DIRECTORY | O_CLOEXEC, fd = open(folder, flags | O_RDONLY);
    return fd < 0 && errno == EACCES ? open(folder, flags | O_PATH) : fd;
}

/* The folder of path, opened; *name is the rest. path is written to and restored. */
static int open_folder(char *path, char **name)
{
    char *slash = strrchr(path, '/');
    *name = slash != NULL ? slash + 1 : path;
    if (slash == NULL || slash == path) {
        return open_listed_or_not(slash == NULL ? "." : "/");
    }
    *slash = '\0';
    const int fd = open_listed_or_not(path);
    *slash = '/';
    return fd;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Where the link *path, one after another, leads: *path gets that name, which may be absent. 0 or
 * the errno. The kernel decides whether a link may be followed at all (loops, links of others in a
 * sticky folder): it is asked before each step. */
static int follow_links(char **path)
{
    struct stat at, end;
    bool has_end = false;
    for (int step = 0; step < 40; step++) {
        char to[PATH_MAX];
        const int code = lstat(*path, &at) != 0 ? errno : 0;
        if (code != 0 || !S_ISLNK(at.st_mode)) {
            /* What is absent or wrong the folder will say. A link of /proc leads to files whose
             * name is gone or another one's. */
            return has_end && (code != 0 || !same_file(&at, &end)) ? ESTALE : 0;
        }
        has_end = stat(*path, &end) == 0;
        if (!has_end && errno != ENOENT) {
            return errno;
        }
        if (has_end && !S_ISREG(end.st_mode)) {
            return 0; /* a device, a pipe: to be refused, by whatever name */
        }
        const ssize_t n = readlink(*path, to, sizeof(to));
        if (n < 0 || (size_t)n == sizeof(to)) {
            return n < 0 ? errno : ENAMETOOLONG;
        }
        /* A relative target begins where the link is. */
        const char *slash = strrchr(*path, '/');
        const size_t n_dir = slash != NULL && to[0] != '/' ? (size_t)(slash + 1 - *path) : 0;
        char *next = malloc(n_dir + (size_t)n + 1);
        if (next == NULL) {
            return ENOMEM;
        }
        memcpy(next, *path, n_dir);
        memcpy(next + n_dir, to, (size_t)n);
        next[n_dir + (size_t)n] = '\0';
        free(*path);
        *path = next;
    }
    return ELOOP;
}

static const char *kind_name(mode_t mode)
{
    return S_ISFIFO(mode)                   ? "a named pipe"
           : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
           : S_ISSOCK(mode)                 ? "a socket"
                                            : "not a regular file";
}

/* What the target is: renaming over a device or a folder would do something else than was asked
 * for. Then the temporary file. f->dir_fd is set, or code says why not. */
static tqe_status begin(tqe_atomic_file *f, unsigned mode, int code, tqe_error *err)
{
    struct stat sb;
    if (code == 0 && f->name[0] == '\0') {
        code = EISDIR;
    } else if (code == 0 && fstatat(f->dir_fd, f->name, &sb, 0) == 0) {
        code = S_ISDIR(sb.st_mode) ? EISDIR : 0;
        if (code == 0 && !S_ISREG(sb.st_mode)) {
            (void)tqe_fail(err, TQE_ERR_IO, "cannot write '%s': it is %s", f->shown,
                           kind_name(sb.st_mode));
            release(f);
            return TQE_ERR_IO;
        }
        f->mode = (int)(sb.st_mode & 0777);
    } else if (code == 0 && errno == ENAMETOOLONG) {
        code = errno; /* the temporary name is shorter: only the rename would notice */
    }
    if (code == 0) {
        /* No one may read on the way what the finished file keeps from him. We write, and a sweeper
         * opens for writing, whatever the file allows: commit takes that back. */
        code = create_temp(f, f->mode >= 0 ? (unsigned)f->mode | 0600 : mode);
    }
    if (code != 0) {
        (void)io_error(err, "write", f->shown, code);
        release(f);
        return TQE_ERR_IO;
    }
    return TQE_OK;
}

static tqe_status allocate(tqe_atomic_file *f, const char *path, tqe_error *err)
{
    *f = (tqe_atomic_file){.fd = -1, .dir_fd = -1, .mode = -1};
    f->path = strdup(path);
    f->shown = strdup(path);
    f->buf = malloc(TQE_ATOMIC_BUF_BYTES);
    if (f->path == NULL || f->shown == NULL || f->buf == NULL) {
        release(f);
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    return TQE_OK;
}

tqe_status tqe_atomic_open(tqe_atomic_file *f, const char *path, unsigned mode, tqe_error *err)
{
    const tqe_status st = allocate(f, path, err);
    if (st != TQE_OK) {
        return st;
    }
    int code = follow_links(&f->path);
    if (strcmp(f->path, path) != 0) {
        static const char arrow[] = "' -> '"; /* between the quotes of a message */
        const size_t n = strlen(path) + sizeof(arrow) + strlen(f->path);
        char *shown = malloc(n);
        code = shown == NULL ? ENOMEM : code;
        if (shown != NULL) {
            (void)snprintf(shown, n, "%s%s%s", path, arrow, f->path);
            free(f->shown);
            f->shown = shown;
        }
    }
    if (code == ENOMEM) {
        release(f);
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    if (code == 0) {
        f->dir_fd = open_folder(f->path, &f->name);
        code = f->dir_fd < 0 ? errno : 0;
    }
    return begin(f, mode, code, err);
}

tqe_status tqe_atomic_open_at(tqe_atomic_file *f, int dir_fd, const char *name, unsigned mode,
                              tqe_error *err)
{
    const tqe_status st = allocate(f, name, err);
    if (st != TQE_OK) {
        return st;
    }
    f->name = f->path;
    f->dir_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
    return begin(f, mode, f->dir_fd < 0 ? errno : 0, err);
}

tqe_status tqe_atomic_check(const char *path, tqe_error *err)
{
    /* Permissions say too little: a file system may be read-only, or have no files at all. */
    tqe_atomic_file f;
    const tqe_status st = tqe_atomic_open(&f, path, 0600, err);
    if (st == TQE_OK) {
        tqe_atomic_discard(&f);
    }
    return st;
}

static tqe_status put(tqe_atomic_file *f, const void *p, size_t n, uint64_t off, tqe_error *err)
{
    const uint8_t *at = p;
    while (n > 0) {
        const ssize_t w = pwrite(f->fd, at, n, (off_t)off);
        if (w < 0 && errno == EINTR) {
            continue;
        }
        if (w <= 0) {
            return io_error(err, "write", f->shown, w < 0 ? errno : ENOSPC);
        }
        at += w;
        off += (uint64_t)w;
        n -= (size_t)w;
    }
    return TQE_OK;
}

static tqe_status flush(tqe_atomic_file *f, tqe_error *err)
{
    const tqe_status st = put(f, f->buf, f->n_buf, f->off, err);
    if (st == TQE_OK) {
        f->off += f->n_buf;
        f->n_buf = 0;
        if (f->off - f->n_started >= START_BYTES) {
            (void)sync_file_range(f->fd, (off_t)f->n_started, (off_t)(f->off - f->n_started),
                                  SYNC_FILE_RANGE_WRITE);
            f->n_started = f->off;
        }
    }
    return st;
}

tqe_status tqe_atomic_write(tqe_atomic_file *f, const void *p, size_t n, tqe_error *err)
{
    const uint8_t *at = p;
    while (n > 0) {
        size_t m = TQE_ATOMIC_BUF_BYTES - f->n_buf;
        m = m < n ? m : n;
        memcpy(f->buf + f->n_buf, at, m);
        f->n_buf += m;
        at += m;
        n -= m;
        if (f->n_buf == TQE_ATOMIC_BUF_BYTES) {
            const tqe_status st = flush(f, err);
            if (st != TQE_OK) {
                return st;
            }
        }
    }
    return TQE_OK;
}

tqe_status tqe_atomic_write_at(tqe_atomic_file *f, const void *p, size_t n, uint64_t off,
                               tqe_error *err)
{
    const tqe_status st = flush(f, err);
    return st == TQE_OK ? put(f, p, n, off, err) : st;
}

tqe_status tqe_atomic_commit(tqe_atomic_file *f, bool durable, tqe_error *err)
{
    tqe_status st = flush(f, err);
    struct stat sb;
    /* A file system without permissions refuses to set them, and has nothing to set. */
    if (st == TQE_OK && f->mode >= 0 && fstat(f->fd, &sb) == 0 &&
        (int)(sb.st_mode & 0777) != f->mode && fchmod(f->fd, (mode_t)f->mode) != 0) {
        st = io_error(err, "write", f->shown, errno);
    }
    if (st == TQE_OK && durable && fsync(f->fd) != 0) {
        st = io_error(err, "write", f->shown, errno);
    }
    if (st == TQE_OK && renameat(f->dir_fd, f->temp, f->dir_fd, f->name) != 0) {
        st = io_error(err, "write", f->shown, errno);
    }
    if (st != TQE_OK) {
        tqe_atomic_discard(f);
        return st;
    }
    /* Some file systems cannot sync a folder and need not; one that we may not list (EBADF) comes
     * to the disk when the system sees fit. */
    if (durable && fsync(f->dir_fd) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EBADF) {
        st = io_error(err, "bring to the disk the folder of", f->shown, errno);
    }
    release(f);
    return st;
}

/* ---- Reading -------------------------------------------------------------------------------- */

bool tqe_file_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && same_file(&x, &y);
}

tqe_status tqe_file_open(int *fd, uint64_t *size, const char *path, tqe_error *err)
{
    /* O_NONBLOCK: a named pipe must not keep us waiting for a writer. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) {
        return io_error(err, "open", path, errno);
    }
    struct stat sb = {0};
    const int code = fstat(*fd, &sb) != 0 ? errno : 0;
    if (code != 0 || !S_ISREG(sb.st_mode)) {
        (void)close(*fd);
        *fd = -1;
        return code != 0 ? io_error(err, "read", path, code)
                         : tqe_fail(err, TQE_ERR_IO, "cannot read '%s': it is %s", path,
                                    S_ISDIR(sb.st_mode) ? "a directory" : "not a regular file");
    }
    *size = (uint64_t)sb.st_size;
    return TQE_OK;
}

tqe_status tqe_file_read(int fd, void *dst, size_t n, uint64_t off, const char *path,
                         const char *what, tqe_error *err)
{
    uint8_t *at = dst;
    while (n > 0) {
        const ssize_t r = pread(fd, at, n, (off_t)off);
        if (r < 0 && errno == EINTR) {
            continue;
        }
        if (r < 0) {
            return io_error(err, "read", path, errno);
        }
        if (r == 0) {
            return tqe_fail(err, TQE_ERR_FORMAT, "'%s': the file ends inside %s at offset %llu",
                            path, what, (unsigned long long)off);
        }
        at += r;
        off += (uint64_t)r;
        n -= (size_t)r;
    }
    return TQE_OK;
}
