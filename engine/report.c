/* SPDX-License-Identifier: MIT */
/* report.c — errors as sentences, and the logs of the libraries below.
 *
 * ggml and libllama print through one process-wide callback. We take it over once and keep only
 * the first error line of each thread: the first line names the cause, later ones only say that
 * something failed. Text from files goes into messages only through tqe_quote.
 */
#include "engine_priv.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

tqe_status tqe_fail(tqe_error *err, tqe_status code, const char *fmt, ...)
{
    if (err != NULL) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        (void)vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
    }
    return code;
}

static _Thread_local char first_error[256];

static void on_log(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level != GGML_LOG_LEVEL_ERROR || first_error[0] != '\0' || text == NULL) {
        return;
    }
    size_t n = 0;
    for (; text[n] != '\0' && text[n] != '\n' && n + 1 < sizeof(first_error); n++) {
        const unsigned char ch = (unsigned char)text[n];
        first_error[n] = (char)(ch < 0x20 || ch == 0x7f ? ' ' : ch);
    }
    first_error[n] = '\0';
}

static void install(void)
{
    llama_log_set(on_log, NULL);
}

void tqe_log_capture(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, install);
}

void tqe_log_reset(void)
{
    first_error[0] = '\0';
}

const char *tqe_log_error(void)
{
    return first_error;
}

tqe_quoted tqe_quote(const char *s, size_t n)
{
    tqe_quoted q;
    const size_t max = 48;
    size_t i = 0;
    size_t out = 0;
    for (; i < n && i < max; i++) {
        const unsigned char ch = (unsigned char)s[i];
        if (ch < 0x20 || ch >= 0x7f) {
            out += (size_t)snprintf(q.text + out, sizeof(q.text) - out, "\\x%02x", ch);
        } else {
            q.text[out++] = (char)ch;
        }
    }
    (void)snprintf(q.text + out, sizeof(q.text) - out, "%s", i < n ? "..." : "");
    return q;
}

int tqe_utf8_char(const uint8_t *s, size_t n)
{
    if (n == 0) {
        return -1;
    }
    const uint8_t a = s[0];
    if (a < 0x80) {
        return 1;
    }
    /* The second byte's range excludes overlong forms, surrogates and values past U+10FFFF
     * (Unicode 15, table 3-7). */
    int len = 0;
    uint8_t lo = 0x80;
    uint8_t hi = 0xbf;
    if (a >= 0xc2 && a <= 0xdf) {
        len = 2;
    } else if (a >= 0xe0 && a <= 0xef) {
        len = 3;
        lo = a == 0xe0 ? 0xa0 : 0x80;
        hi = a == 0xed ? 0x9f : 0xbf;
    } else if (a >= 0xf0 && a <= 0xf4) {
        len = 4;
        lo = a == 0xf0 ? 0x90 : 0x80;
        hi = a == 0xf4 ? 0x8f : 0xbf;
    } else {
        return 0;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) {
            return -1;
        }
        if (s[i] < lo || s[i] > hi) {
            return 0;
        }
        lo = 0x80;
        hi = 0xbf;
    }
    return len;
}

size_t tqe_utf8_check(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        const int len = tqe_utf8_char((const uint8_t *)s + i, n - i);
        if (len <= 0) {
            return i;
        }
        i += (size_t)len;
    }
    return n;
}
