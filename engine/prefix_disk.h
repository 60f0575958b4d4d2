/* SPDX-License-Identifier: MIT */
/* prefix_disk.h — a folder of files named by key, written by a thread of its own. */
#ifndef TQE_PREFIX_DISK_H
#define TQE_PREFIX_DISK_H

#include "snapshot_format.h"

#include <time.h>

typedef struct tqe_disk tqe_disk;

typedef enum tqe_disk_kind { TQE_DISK_PAGE, TQE_DISK_END } tqe_disk_kind;

typedef struct tqe_disk_stats {
    uint64_t n_written, bytes_written, n_dropped, n_evicted;
} tqe_disk_stats;

/* Open the folder, making it (not its parents) when it is absent. limit_bytes: of all files in it;
 * queue_bytes: of what waits to be written. */
tqe_status tqe_disk_open(tqe_disk **out, const char *dir, uint64_t limit_bytes,
                         uint64_t queue_bytes, tqe_error *err);
/* Writes what is queued, then ends the thread. NULL allowed. */
void tqe_disk_close(tqe_disk *d);
/* Wait until the queue is empty. */
void tqe_disk_flush(tqe_disk *d);

bool tqe_disk_has(const tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES]);
/* When a file of a prompt counts as used: `order` microseconds before the prompt began. The end of
 * a prompt is so always older than what it needs, its beginning, and goes before it. */
typedef struct tqe_disk_use {
    struct timespec began; /* CLOCK_REALTIME */
    uint32_t order;        /* 0: the first page */
} tqe_disk_use;

/* Can a file of n bytes be stored, whatever else goes? If not, that is a problem, said once. */
bool tqe_disk_takes(tqe_disk *d, uint64_t n);
/* Queue bytes [n], malloc'ed, which become the store's. Never waits: false when the queue is full
 * or writing has failed before; the bytes are freed all the same. */
bool tqe_disk_put(tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES], uint8_t *bytes,
                  size_t n, tqe_disk_use use);
/* Open a regular file for reading; the caller closes *fd. False: it is not there, cannot be opened,
 * or is no file and was set aside. */
bool tqe_disk_open_file(tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES], int *fd,
                        uint64_t *size);
/* Remember a problem with a file, which stays. */
void tqe_disk_complain(tqe_disk *d, const char *what);
/* Note a use. */
void tqe_disk_touch(tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES],
                    tqe_disk_use use);
/* Rename a file that must not be used, and remember why. */
void tqe_disk_set_aside(tqe_disk *d, tqe_disk_kind kind, const uint8_t key[TQE_ID_BYTES],
                        const char *why);

void tqe_disk_get_stats(tqe_disk *d, tqe_disk_stats *out);
/* The first problem since the last call, or false. */
bool tqe_disk_problem(tqe_disk *d, tqe_error *out);

#endif
