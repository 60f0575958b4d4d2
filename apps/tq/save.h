/* SPDX-License-Identifier: MIT */
/* save.h — files of results: whole under the name asked for, or not there. */
#ifndef TQ_APP_SAVE_H
#define TQ_APP_SAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A file that grows under a temporary name, FILE.tmp. A zeroed one is closed. */
typedef struct save_file {
    FILE *f;          /* write here; NULL: closed */
    const char *flag; /* for messages, or NULL */
    const char *path; /* as the user named it; the caller's */
    char *to, *tmp;   /* links followed; NULL: a device or a FIFO, which is written directly */
} save_file;

/* flag: what messages begin with, "--csv", or NULL. path: the caller's, until closed. False: a
 * message was written, and s is closed. */
bool save_open(save_file *s, const char *flag, const char *path);
/* Bring what is written to the file: whoever stops the program finds it in FILE.tmp. s may be
 * closed. */
bool save_flush(save_file *s);
/* keep: give the file its name, if all of it was written; otherwise, and after an error, nothing is
 * left and what had the name before still has it. False: it was to be kept and a message was
 * written. s may be closed. */
bool save_close(save_file *s, bool keep);

/* Put bytes into a file so that a reader sees the old or the new ones, never a part. */
bool save_bytes(const char *flag, const char *path, const char *data, size_t n);

/* Can a file be written there? Asked before the hours of work. path NULL: yes. */
bool save_check(const char *flag, const char *path);

#endif
