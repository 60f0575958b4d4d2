/* SPDX-License-Identifier: MIT */
/* text.h — bytes from files, UTF-8, and numbers for people. */
#ifndef TQ_APP_TEXT_H
#define TQ_APP_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the first character of s [n], n >= 1, or 0 when it is not valid UTF-8. */
size_t text_utf8_char(const char *s, size_t n);

/* Offset of the first byte that is not part of valid UTF-8 (RFC 3629: no surrogates, nothing
 * overlong), or n. */
size_t text_utf8_check(const char *s, size_t n);

/* Copy of s in dst with every invalid byte replaced by '?'. dst_bytes >= 1. */
void text_utf8_clean(char *dst, size_t dst_bytes, const char *s);

/* The whole of a file ("-": stdin), malloc'ed, with a NUL after it. Writes a message and returns
 * NULL when it cannot be read, is a directory, or is larger than max_bytes. */
char *text_read_file(const char *path, size_t max_bytes, size_t *n_bytes);

/* "1.50 GiB". Static storage is not used; dst needs 32 bytes. Returns dst. */
const char *text_size(char dst[32], uint64_t bytes);

/* "7", "1 234 567"-style grouping with commas. dst needs 32 bytes. Returns dst. */
const char *text_count(char dst[32], uint64_t n);

/* "0:42", "1:02:03". dst needs 32 bytes. Returns dst. */
const char *text_time(char dst[32], double seconds);

/* Seconds of a clock that only goes forward. */
double text_now(void);

#endif
