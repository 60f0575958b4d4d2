/* SPDX-License-Identifier: MIT */
/* file_atomic.h — files that are either the old ones or the new ones, never something between. */
#ifndef TQE_FILE_ATOMIC_H
#define TQE_FILE_ATOMIC_H

#include "engine.h"

/* A file that is being written under a temporary name in its folder. */
typedef struct tqe_atomic_file {
    int fd, dir_fd;
    int mode;          /* of the file that is replaced, or -1 */
    char temp[32];     /* name in the folder */
    char *path, *name; /* where the file is, links followed; its last part, in path */
    char *shown;       /* the same for messages, between quotes: "link' -> 'file" */
    uint8_t *buf;      /* [TQE_ATOMIC_BUF_BYTES] not yet written */
    size_t n_buf;
    uint64_t off;       /* of buf in the file */
    uint64_t n_started; /* bytes that the kernel was asked to bring to the disk */
} tqe_atomic_file;

#define TQE_ATOMIC_BUF_BYTES ((size_t)1 << 20)

/* Open for path, which must be absent or a regular file, or a symbolic link to such a name: then
 * the file that it leads to is made or replaced, and the link stays. mode: permissions of a new
 * file before the umask; a file that is replaced hands on its own. On error f is closed. */
tqe_status tqe_atomic_open(tqe_atomic_file *f, const char *path, unsigned mode, tqe_error *err);
/* The same for a name in an open folder, which stays the caller's; a link is replaced. */
tqe_status tqe_atomic_open_at(tqe_atomic_file *f, int dir_fd, const char *name, unsigned mode,
                              tqe_error *err);
/* What tqe_atomic_open would say to path; nothing stays. */
tqe_status tqe_atomic_check(const char *path, tqe_error *err);
/* Append, buffered. */
tqe_status tqe_atomic_write(tqe_atomic_file *f, const void *p, size_t n, tqe_error *err);
/* Overwrite bytes that were appended before. */
tqe_status tqe_atomic_write_at(tqe_atomic_file *f, const void *p, size_t n, uint64_t off,
                               tqe_error *err);
/* Take the name of path; durable: after everything has reached the disk. Closes f in any case;
 * after an error what path held before is still there. */
tqe_status tqe_atomic_commit(tqe_atomic_file *f, bool durable, tqe_error *err);
/* Remove the temporary file and close; a zeroed or closed f is allowed. */
void tqe_atomic_discard(tqe_atomic_file *f);

/* Remove temporary files of writers that are no more; returns how many. dir_fd stays open. */
size_t tqe_atomic_sweep(int dir_fd);

/* Whether two paths lead to the same file, also by links; false where one is absent. */
bool tqe_file_same(const char *a, const char *b);

/* Open a regular file for reading; *size gets its bytes. Errors name the file. */
tqe_status tqe_file_open(int *fd, uint64_t *size, const char *path, tqe_error *err);
/* Exactly n bytes at off. what: for the message, which names path and offset. */
tqe_status tqe_file_read(int fd, void *dst, size_t n, uint64_t off, const char *path,
                         const char *what, tqe_error *err);

#endif
