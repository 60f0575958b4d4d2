/* SPDX-License-Identifier: MIT */
/* prefix_disk.c — the disk tier of the prefix store.
 *
 * The folder is the index: the name of a file is its key, its time of change is its last use, its
 * size is its size. There is nothing beside the files that could contradict them after kill -9, and
 * several processes need no protocol: a file appears whole, by rename, and what two writers give
 * one name is the same bytes. Files are not brought to the disk one by one, as snapshots are: every
 * file is checked when it is read, so what a power cut damages is found and computed again.
 *
 * Writing has a thread and a queue with a limit in bytes. Who puts a page never waits: with a full
 * queue the page is dropped, which costs a later process some time and nothing else. After an error
 * (disk full, folder gone) nothing more is written by this process; reading goes on.
 *
 * The limit is the folder's, and other processes write, too: what is there is counted again
 * whenever this process has written a sixteenth of the room that it found, so up to sixteen writers
 * keep the limit together, and near it each counts after each file. Eviction removes the files that
 * were not used for the longest time until nine tenths of the limit are left. A lock in the folder
 * lets one process do that at a time; the others need not wait.
 */
#include "prefix_disk.h"

#include "engine_priv.h"
#include "file_atomic.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HEX = 2 * TQE_ID_BYTES, NAME_BYTES = HEX + 16 }; /* .page.bad2 */

static const char lock_name[] = "lock";

typedef struct item {
    struct item *next;
    char name[NAME_BYTES];
    uint8_t *bytes;
    size_t n;
    struct timespec used;
} item;

struct tqe_disk {
    char *dir;
    int dir_fd;
    uint64_t limit_bytes, queue_limit;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t work, idle;
    item *first, *last;
    uint64_t queue_bytes;
    bool busy, stop, failed;
    uint64_t unseen_bytes; /* written since the folder was counted */
    uint64_t may_write;    /* before it is counted again */
    tqe_disk_stats stats;
    tqe_error problem;
    /* Said once, that: a file is larger than the limit; the queue was full. Of the one who puts. */
    bool limit_said, full_said;
};

static void name_of(char name[NAME_BYTES], tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES])
{
    (void)sodium_bin2hex(name, HEX + 1, key, TQE_ID_BYTES);
    (void)strcpy(name + HEX, kind == TQE_DISK_PAGE ? ".page" : ".end");
}

static void complain(tqe_disk *d, const char *fmt, ...) TQE_PRINTF(2, 3);

static void complain(tqe_disk *d, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)pthread_mutex_lock(&d->mutex);
    if (d->problem.code == TQE_OK) {
        (void)tqe_fail(&d->problem, TQE_ERR_IO, "prefix store '%s': %s",
                       tqe_quote(d->dir, strlen(d->dir)).text, text);
    }
    (void)pthread_mutex_unlock(&d->mutex);
}

/* ---- Eviction ------------------------------------------------------------------------------- */

typedef struct entry {
    char name[NAME_BYTES];
    uint64_t bytes;
    struct timespec used;
} entry;

static int by_use(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) {
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    }
    return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

/* KEY.page, KEY.end, and either with .bad, or .bad and a digit, behind it. */
static bool is_ours(const char *name)
{
    if (strspn(name, "0123456789abcdef") != HEX) {
        return false;
    }
    const char *end = name + HEX;
    if (strncmp(end, ".page", 5) != 0 && strncmp(end, ".end", 4) != 0) {
        return false;
    }
    end += end[1] == 'p' ? 5 : 4;
    if (*end == '\0') {
        return true;
    }
    return strncmp(end, ".bad", 4) == 0 &&
           (end[4] == '\0' || (end[4] >= '2' && end[4] <= '9' && end[5] == '\0'));
}

/* All files of the folder, malloc'ed; *n and *total get their number and bytes. */
static entry *list_folder(const tqe_disk *d, size_t *n, uint64_t *total)
{
    entry *list = NULL;
    size_t cap = 0;
    *n = 0;
    *total = 0;
    const int fd = openat(d->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return NULL;
    }
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        struct stat sb;
        if (!is_ours(e->d_name) || fstatat(d->dir_fd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(sb.st_mode)) {
            continue;
        }
        if (*n == cap) {
            cap = cap == 0 ? 256 : 2 * cap;
            entry *grown = realloc(list, cap * sizeof(*list));
            if (grown == NULL) {
                break; /* what is listed suffices to evict some */
            }
            list = grown;
        }
        entry *at = &list[(*n)++];
        (void)snprintf(at->name, sizeof(at->name), "%.*s", NAME_BYTES - 1, e->d_name);
        at->bytes = (uint64_t)sb.st_size;
        at->used = sb.st_mtim;
        *total += at->bytes;
    }
    (void)closedir(dir);
    return list;
}

/* The folder is too large and stays so. Who may only read has no part in that. */
static void cannot_evict(tqe_disk *d, const char *name, int code)
{
    char why[128];
    (void)pthread_mutex_lock(&d->mutex);
    const bool writes = d->stats.n_written > 0;
    (void)pthread_mutex_unlock(&d->mutex);
    if (writes || (code != EACCES && code != EPERM && code != EROFS)) {
        complain(d, "it is larger than its limit of %llu bytes, and %s '%s' fails: %s",
                 (unsigned long long)d->limit_bytes,
                 strcmp(name, lock_name) == 0 ? "locking" : "removing", name,
                 strerror_r(code, why, sizeof(why)));
    }
}

/* Remove the least recently used of list [n] down to nine tenths. Returns how many went. */
static uint64_t evict(tqe_disk *d, entry *list, size_t n, uint64_t *total)
{
    uint64_t n_gone = 0;
    const char *kept = NULL;
    int code = 0;
    qsort(list, n, sizeof(*list), by_use);
    for (size_t i = 0; i<n && * total> d->limit_bytes / 10 * 9; i++) {
        if (unlinkat(d->dir_fd, list[i].name, 0) == 0 || errno == ENOENT) {
            *total -= list[i].bytes;
            n_gone++;
        } else if (kept == NULL) {
            code = errno;
            kept = list[i].name;
        }
    }
    if (*total > d->limit_bytes && kept != NULL) {
        cannot_evict(d, kept, code);
    }
    return n_gone;
}

/* Count what is there, and evict if that is too much. */
static void keep_limit(tqe_disk *d)
{
    size_t n = 0;
    uint64_t total = 0, n_gone = 0;
    entry *list = list_folder(d, &n, &total);
    if (total > d->limit_bytes) {
        const int lock = openat(d->dir_fd, lock_name,
                                O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (lock < 0) {
            cannot_evict(d, lock_name, errno);
        } else if (flock(lock, LOCK_EX | LOCK_NB) == 0) {
            free(list);
            list = list_folder(d, &n, &total); /* who had the lock before has changed it */
            n_gone = total > d->limit_bytes ? evict(d, list, n, &total) : 0;
        } /* who does not get the lock counts again after its next file */
        if (lock >= 0) {
            (void)close(lock);
        }
    }
    free(list);
    (void)pthread_mutex_lock(&d->mutex);
    d->unseen_bytes = 0;
    d->may_write = total < d->limit_bytes ? (d->limit_bytes - total) / 16 : 0;
    d->stats.n_evicted += n_gone;
    (void)pthread_mutex_unlock(&d->mutex);
}

static struct timespec time_of(tqe_disk_use use)
{
    struct timespec t = use.began;
    t.tv_sec -= (time_t)(use.order / 1000000u);
    t.tv_nsec -= (long)(use.order % 1000000u) * 1000;
    if (t.tv_nsec < 0) {
        t.tv_nsec += 1000000000;
        t.tv_sec--;
    }
    return t;
}

/* A folder that is read-only for us keeps the times of its writers. */
static void set_time(const tqe_disk *d, const char *name, struct timespec used)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, used};
    (void)utimensat(d->dir_fd, name, times, AT_SYMLINK_NOFOLLOW);
}

/* ---- Writer --------------------------------------------------------------------------------- */

static bool write_item(tqe_disk *d, const item *it)
{
    tqe_atomic_file f;
    tqe_error err = {TQE_OK, ""};
    tqe_status st = tqe_atomic_open_at(&f, d->dir_fd, it->name, 0600, &err);
    if (st == TQE_OK) {
        st = tqe_atomic_write(&f, it->bytes, it->n, &err);
        if (st == TQE_OK) {
            st = tqe_atomic_commit(&f, false, &err);
        } else {
            tqe_atomic_discard(&f);
        }
    }
    if (st == TQE_OK) {
        set_time(d, it->name, it->used);
    }
    if (st != TQE_OK) {
        complain(d, "%s; nothing more is stored by this process", err.text);
    }
    return st == TQE_OK;
}

static void *writer(void *ctx)
{
    tqe_disk *d = ctx;
    (void)pthread_mutex_lock(&d->mutex);
    for (;;) {
        while (d->first == NULL && !d->stop) {
            (void)pthread_cond_wait(&d->work, &d->mutex);
        }
        if (d->first == NULL) {
            break;
        }
        item *it = d->first;
        d->first = it->next;
        d->last = d->first != NULL ? d->last : NULL;
        d->busy = true;
        const bool skip = d->failed;
        (void)pthread_mutex_unlock(&d->mutex);
        const bool ok = !skip && write_item(d, it);
        (void)pthread_mutex_lock(&d->mutex);
        d->queue_bytes -= it->n;
        d->failed = d->failed || !ok;
        if (ok) {
            d->stats.n_written++;
            d->stats.bytes_written += it->n;
            d->unseen_bytes += it->n;
        } else {
            d->stats.n_dropped++;
        }
        if (ok && d->unseen_bytes >= d->may_write) {
            (void)pthread_mutex_unlock(&d->mutex);
            keep_limit(d);
            (void)pthread_mutex_lock(&d->mutex);
        }
        free(it->bytes);
        free(it);
        d->busy = false;
        if (d->first == NULL) {
            (void)pthread_cond_broadcast(&d->idle);
        }
    }
    (void)pthread_mutex_unlock(&d->mutex);
    return NULL;
}

/* Signals are for the threads of the program, which wait for them. */
static int start_writer(tqe_disk *d)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&d->thread, NULL, writer, d);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    d->has_thread = code == 0;
    return code;
}

/* ---- Life ----------------------------------------------------------------------------------- */

tqe_status tqe_disk_open(tqe_disk **out, const char *dir, uint64_t limit_bytes,
                         uint64_t queue_bytes, tqe_error *err)
{
    char why[128];
    *out = NULL;
    tqe_disk *d = calloc(1, sizeof(*d));
    if (d == NULL || (d->dir = strdup(dir)) == NULL) {
        free(d);
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory");
    }
    d->limit_bytes = limit_bytes;
    d->queue_limit = queue_bytes;
    (void)pthread_mutex_init(&d->mutex, NULL);
    (void)pthread_cond_init(&d->work, NULL);
    (void)pthread_cond_init(&d->idle, NULL);
    /* What matters is whether it can be opened; when it is not there, why it could not be made. */
    const int made = mkdir(dir, 0700) == 0 ? 0 : errno;
    d->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = d->dir_fd < 0 ? errno : 0;
    code = code == ENOENT && made != 0 && made != EEXIST ? made : code;
    if (code == 0) {
        (void)tqe_atomic_sweep(d->dir_fd);
        keep_limit(d);
        code = start_writer(d);
    }
    if (code != 0) {
        (void)tqe_fail(err, TQE_ERR_IO, "cannot use the prefix store '%s': %s", dir,
                       strerror_r(code, why, sizeof(why)));
        tqe_disk_close(d);
        return TQE_ERR_IO;
    }
    *out = d;
    return TQE_OK;
}

void tqe_disk_close(tqe_disk *d)
{
    if (d == NULL) {
        return;
    }
    if (d->has_thread) {
        (void)pthread_mutex_lock(&d->mutex);
        d->stop = true;
        (void)pthread_cond_signal(&d->work);
        (void)pthread_mutex_unlock(&d->mutex);
        (void)pthread_join(d->thread, NULL);
        if (d->stats.n_written > 0) {
            keep_limit(d); /* once more: another may have had the lock */
        }
    }
    if (d->dir_fd >= 0) {
        (void)close(d->dir_fd);
    }
    (void)pthread_cond_destroy(&d->idle);
    (void)pthread_cond_destroy(&d->work);
    (void)pthread_mutex_destroy(&d->mutex);
    free(d->dir);
    free(d);
}

void tqe_disk_flush(tqe_disk *d)
{
    (void)pthread_mutex_lock(&d->mutex);
    while (d->first != NULL || d->busy) {
        (void)pthread_cond_wait(&d->idle, &d->mutex);
    }
    (void)pthread_mutex_unlock(&d->mutex);
}

/* ---- Files ---------------------------------------------------------------------------------- */

bool tqe_disk_has(const tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES])
{
    char name[NAME_BYTES];
    struct stat sb;
    name_of(name, kind, key);
    /* What is no file is there, too: reading it sets it aside. */
    return fstatat(d->dir_fd, name, &sb, AT_SYMLINK_NOFOLLOW) == 0 &&
           (!S_ISREG(sb.st_mode) || faccessat(d->dir_fd, name, R_OK, 0) == 0);
}

bool tqe_disk_takes(tqe_disk *d, uint64_t n)
{
    if (n > d->limit_bytes && !d->limit_said) {
        d->limit_said = true;
        complain(d,
                 "its limit of %llu bytes is less than a page of this model and scheme takes: "
                 "nothing is stored; %llu is the least that stores one",
                 (unsigned long long)d->limit_bytes, (unsigned long long)n);
    }
    return n <= d->limit_bytes;
}

bool tqe_disk_put(tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES], uint8_t *bytes,
                  size_t n, tqe_disk_use use)
{
    item *it = calloc(1, sizeof(*it));
    bool ok = tqe_disk_takes(d, n) && it != NULL;
    (void)pthread_mutex_lock(&d->mutex);
    const bool full = ok && !d->failed && n > d->queue_limit - d->queue_bytes;
    ok = ok && !d->failed && !full;
    if (ok) {
        name_of(it->name, kind, key);
        it->bytes = bytes;
        it->n = n;
        it->used = time_of(use);
        if (d->last != NULL) {
            d->last->next = it;
        } else {
            d->first = it;
        }
        d->last = it;
        d->queue_bytes += n;
        (void)pthread_cond_signal(&d->work);
    } else {
        d->stats.n_dropped++;
    }
    (void)pthread_mutex_unlock(&d->mutex);
    if (full && !d->full_said) {
        d->full_said = true;
        complain(d,
                 "its queue of %llu bytes is full: the disk is slower than the prompts, and pages "
                 "that find no room are not stored",
                 (unsigned long long)d->queue_limit);
    }
    if (!ok) {
        free(it);
        free(bytes);
    }
    return ok;
}

bool tqe_disk_open_file(tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES], int *out,
                        uint64_t *size)
{
    static const char no_file[] = "it is not a regular file";
    char name[NAME_BYTES];
    struct stat sb = {0};
    name_of(name, kind, key);
    const int fd =
        openat(d->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        const int code = errno;
        if (code == ENOENT) { /* another process may have evicted it: no problem */
            return false;
        }
        if (fstatat(d->dir_fd, name, &sb, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(sb.st_mode)) {
            tqe_disk_set_aside(d, kind, key, no_file);
        } else {
            char why[128];
            complain(d, "cannot open '%s': %s", name, strerror_r(code, why, sizeof(why)));
        }
        return false;
    }
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        (void)close(fd);
        tqe_disk_set_aside(d, kind, key, no_file);
        return false;
    }
    *out = fd;
    *size = (uint64_t)sb.st_size;
    return true;
}

void tqe_disk_complain(tqe_disk *d, const char *what)
{
    complain(d, "%s", what);
}

void tqe_disk_touch(tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES],
                    tqe_disk_use use)
{
    char name[NAME_BYTES];
    name_of(name, kind, key);
    set_time(d, name, time_of(use));
}

void tqe_disk_set_aside(tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES],
                        const char *why)
{
    char name[NAME_BYTES], aside[NAME_BYTES + 16];
    name_of(name, kind, key);
    (void)snprintf(aside, sizeof(aside), "%s.bad", name);
    bool moved = renameat(d->dir_fd, name, d->dir_fd, aside) == 0;
    /* A folder does not replace a file, nor a file a folder: another name, and nothing is lost. */
    for (int i = 2; !moved && i <= 9 && (errno == ENOTDIR || errno == EISDIR || errno == ENOTEMPTY);
         i++) {
        (void)snprintf(aside, sizeof(aside), "%s.bad%d", name, i);
        moved = renameat(d->dir_fd, name, d->dir_fd, aside) == 0;
    }
    complain(d, "%.16s...%s %s: %s", name, name + HEX,
             moved ? "is set aside as .bad and computed again" : "cannot be used", why);
}

void tqe_disk_get_stats(tqe_disk *d, tqe_disk_stats *out)
{
    (void)pthread_mutex_lock(&d->mutex);
    *out = d->stats;
    (void)pthread_mutex_unlock(&d->mutex);
}

bool tqe_disk_problem(tqe_disk *d, tqe_error *out)
{
    (void)pthread_mutex_lock(&d->mutex);
    *out = d->problem;
    d->problem = (tqe_error){TQE_OK, ""};
    (void)pthread_mutex_unlock(&d->mutex);
    return out->code != TQE_OK;
}
