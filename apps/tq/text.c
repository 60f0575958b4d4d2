/* SPDX-License-Identifier: MIT */
/* text.c — bytes from files, UTF-8, and numbers for people.
 *
 * Policy: a prompt is checked before the model is loaded, so that a wrong file is reported in
 * milliseconds; reading stops at a limit, so that /dev/zero is an error and not a full memory.
 */
#define _POSIX_C_SOURCE 200809L
#include "text.h"

#include "out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

size_t text_utf8_char(const char *text, size_t n)
{
    const uint8_t *s = (const uint8_t *)text;
    uint8_t c = s[0];
    if (c < 0x80) {
        return 1;
    }
    size_t len = c >= 0xc2 && c < 0xe0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (len == 0 || len > n) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    /* Overlong forms, surrogates and values past U+10FFFF show in the second byte. */
    if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] >= 0xa0) || (c == 0xf0 && s[1] < 0x90) ||
        (c == 0xf4 && s[1] >= 0x90)) {
        return 0;
    }
    return len;
}

size_t text_utf8_check(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        size_t len = text_utf8_char(s + i, n - i);
        if (len == 0) {
            return i;
        }
        i += len;
    }
    return n;
}

void text_utf8_clean(char *dst, size_t dst_bytes, const char *s)
{
    size_t n = strlen(s), o = 0;
    for (size_t i = 0; i < n;) {
        size_t len = text_utf8_char(s + i, n - i);
        size_t put = len ? len : 1;
        if (o + put >= dst_bytes) {
            break;
        }
        if (len) {
            memcpy(dst + o, s + i, len);
        } else {
            dst[o] = '?';
        }
        o += put;
        i += put;
    }
    dst[o] = '\0';
}

/* quote: "'" around the name of a file, "" around that of a stream. */
static char *read_all(int fd, const char *quote, const char *name, size_t max_bytes,
                      size_t *n_bytes)
{
    size_t cap = 65536, n = 0;
    char *buf = malloc(cap);
    while (buf) {
        if (n + 1 == cap) {
            char *grown = realloc(buf, cap * 2);
            if (!grown) {
                break;
            }
            buf = grown;
            cap *= 2;
        }
        ssize_t got = read(fd, buf + n, cap - n - 1);
        if (got == 0) {
            buf[n] = '\0';
            *n_bytes = n;
            return buf;
        }
        if (got < 0 && errno != EINTR) {
            msg_error("cannot read %s%s%s: %s", quote, name, quote, strerror(errno));
            free(buf);
            return NULL;
        }
        n += got > 0 ? (size_t)got : 0;
        if (n > max_bytes) {
            msg_error("%s%s%s is larger than %zu MiB, the limit", quote, name, quote,
                      max_bytes >> 20);
            free(buf);
            return NULL;
        }
    }
    msg_error("not enough memory to read %s%s%s", quote, name, quote);
    free(buf);
    return NULL;
}

char *text_read_file(const char *path, size_t max_bytes, size_t *n_bytes)
{
    if (!strcmp(path, "-")) {
        if (in_is_closed()) {
            msg_error("stdin is closed: there is no prompt to read");
            return NULL;
        }
        if (isatty(STDIN_FILENO) == 1) {
            msg_note("Type the prompt; Ctrl-D on an empty line ends it.");
        }
        return read_all(STDIN_FILENO, "", "stdin", max_bytes, n_bytes);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        msg_error("cannot open '%s': %s", path, strerror(errno));
        return NULL;
    }
    char *buf = read_all(fd, "'", path, max_bytes, n_bytes);
    close(fd);
    return buf;
}

const char *text_size(char dst[32], uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(dst, 32, "%u B", (unsigned)bytes);
        return dst;
    }
    double v = (double)bytes / 1024;
    size_t u = 0;
    while (v >= 1023.995 && u < 5) {
        v /= 1024;
        u++;
    }
    snprintf(dst, 32, "%.*f %s", v < 99.995 ? 2 : 1, v, units[u]);
    return dst;
}

const char *text_count(char dst[32], uint64_t n)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    char *d = dst;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0) {
            *d++ = ',';
        }
        *d++ = digits[i];
    }
    *d = '\0';
    return dst;
}

const char *text_time(char dst[32], double seconds)
{
    unsigned long s = seconds < 0       ? 0
                      : seconds > 3.6e8 ? 360000000UL
                                        : (unsigned long)(seconds + 0.5);
    if (s >= 3600) {
        snprintf(dst, 32, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(dst, 32, "%lu:%02lu", s / 60, s % 60);
    }
    return dst;
}

double text_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
