/* SPDX-License-Identifier: MIT */
/* out.c — stdout and stderr.
 *
 * Policy: output that cannot be delivered is a failure, never silence. stdio hides write errors
 * until exit and loses errno, so stdout has its own small buffer over write(2): a closed stdout, a
 * full disk or a reader that went away is noticed at once, the command stops working for nobody,
 * and the program says why and exits with 1. Text that comes from a model file is untrusted: on a
 * terminal its control characters must not move the cursor or set the title.
 */
#define _POSIX_C_SOURCE 200809L
#include "out.h"

#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define OUT_BUFFER_BYTES 16384

static char out_buf[OUT_BUFFER_BYTES];
static size_t out_used;
static char out_last = '\n'; /* last byte */
static int out_errno;        /* 0, or the errno of the first failed write */
static bool out_tty, err_tty, out_color, in_closed;
static const char *msg_command = "tq";

bool out_init(void)
{
    if (fcntl(STDOUT_FILENO, F_GETFD) < 0) {
        msg_error("stdout is closed: there is nowhere to write the result");
        return false;
    }
    in_closed = fcntl(STDIN_FILENO, F_GETFD) < 0;
    for (int fd = 0; fd <= 2; fd += 2) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_WRONLY : O_RDONLY) != fd) {
            return false;
        }
    }
    struct sigaction sa = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &sa, NULL);
    sigaction(SIGXFSZ, &sa, NULL); /* a limit on files is an error of the write, too */

    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    out_tty = isatty(STDOUT_FILENO) == 1;
    err_tty = isatty(STDERR_FILENO) == 1;
    out_color = out_tty && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
    return true;
}

bool out_flush(void)
{
    size_t done = 0;
    while (!out_errno && done < out_used) {
        ssize_t n = write(STDOUT_FILENO, out_buf + done, out_used - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno != EINTR) {
            out_errno = errno;
        }
    }
    out_used = 0;
    return out_errno == 0;
}

bool out_write(const char *data, size_t n)
{
    out_last = n > 0 ? data[n - 1] : out_last;
    while (n > 0 && !out_errno) {
        size_t room = OUT_BUFFER_BYTES - out_used;
        size_t take = n < room ? n : room;
        memcpy(out_buf + out_used, data, take);
        out_used += take;
        data += take;
        n -= take;
        if (out_used == OUT_BUFFER_BYTES) {
            out_flush();
        }
    }
    return out_errno == 0;
}

bool out_end_line(void)
{
    return out_last == '\n' || out_write("\n", 1);
}

bool out_text(const char *data, size_t n)
{
    if (!out_tty) {
        return out_write(data, n);
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)data[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
            /* The control pictures: U+2400 + c, and U+2421 for DEL. */
            char pic[3] = {'\xe2', '\x90', (char)(c == 0x7f ? 0xa1 : 0x80 + c)};
            out_write(pic, 3);
        } else if (c == 0xc2 && i + 1 < n && (uint8_t)data[i + 1] < 0xa0) {
            out_write("\xef\xbf\xbd", 3); /* C1 controls, U+0080..U+009F, act as ESC + letter */
            i++;
        } else {
            out_write(data + i, 1);
        }
    }
    return out_errno == 0;
}

bool out_printf(const char *fmt, ...)
{
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0) {
        return false;
    }
    return out_write(line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

/* A character counts as one column. */
static size_t columns(const char *s, size_t n)
{
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        w += ((uint8_t)s[i] & 0xc0) != 0x80;
    }
    return w;
}

bool out_wrapped(const char *fmt, ...)
{
    enum { WIDTH = 80 };
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t at = 0;
    for (const char *s = text + strspn(text, " "); len > 0 && *s;) {
        size_t n = strcspn(s, " "), w = columns(s, n);
        if (at > 0) {
            bool fits = at + 1 + w <= WIDTH;
            out_write(fits ? " " : "\n", 1);
            at = fits ? at + 1 : 0;
        }
        out_text(s, n);
        at += w;
        s += n + strspn(s + n, " ");
    }
    return out_write("\n", 1);
}

int out_finish(int code)
{
    out_flush();
    /* Some file systems (NFS, quotas) report a failed write only here. */
    if (!out_errno && close(STDOUT_FILENO) < 0 && errno != EINTR) {
        out_errno = errno;
    }
    if (out_errno == EPIPE) {
        msg_error("the reader of stdout went away before the end of the output");
    } else if (out_errno) {
        msg_error("cannot write to stdout: %s", strerror(out_errno));
    }
    return out_errno && code == TQ_EXIT_OK ? TQ_EXIT_FAILED : code;
}

bool in_is_closed(void)
{
    return in_closed;
}

bool out_is_tty(void)
{
    return out_tty;
}

bool err_is_tty(void)
{
    return err_tty;
}

const char *out_bold(void)
{
    return out_color ? "\033[1m" : "";
}

const char *out_plain(void)
{
    return out_color ? "\033[0m" : "";
}

void msg_set_command(const char *name)
{
    msg_command = name;
}

/* Messages quote file names, arguments and strings from model files: any bytes. */
static void msg_line(const char *kind, const char *fmt, va_list ap)
{
    if (out_tty && err_tty) { /* half a line of text would hide the message in it */
        out_end_line();
        out_flush();
    }
    char text[8192], line[4 * sizeof text + 128]; /* a path may have 4095 bytes */
    vsnprintf(text, sizeof text, fmt, ap);
    const size_t n_text = strlen(text);
    size_t n = 0;
    if (kind) {
        n = (size_t)snprintf(line, sizeof line, "%s: %s: ", msg_command, kind);
    }
    for (size_t i = 0; i < n_text;) {
        size_t len = text_utf8_char(text + i, n_text - i);
        uint8_t c = (uint8_t)text[i];
        /* C1 controls, U+0080..U+009F, act as ESC + letter. */
        bool c1 = len == 2 && c == 0xc2 && (uint8_t)text[i + 1] < 0xa0;
        if (len == 0 || c1 || c < 0x20 || c == 0x7f) {
            for (size_t end = i + (len ? len : 1); i < end; i++) {
                n += (size_t)snprintf(line + n, sizeof line - n, "\\x%02x", (uint8_t)text[i]);
            }
        } else {
            memcpy(line + n, text + i, len);
            n += len;
            i += len;
        }
    }
    line[n++] = '\n';
    for (size_t done = 0; done < n;) {
        ssize_t w = write(STDERR_FILENO, line + done, n - done);
        if (w > 0) {
            done += (size_t)w;
        } else if (errno != EINTR) {
            break; /* nobody is left to be told */
        }
    }
}

void msg_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    msg_line("error", fmt, ap);
    va_end(ap);
}

void msg_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    msg_line("warning", fmt, ap);
    va_end(ap);
}

void msg_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    msg_line(NULL, fmt, ap);
    va_end(ap);
}

void msg_status(const char *line)
{
    struct winsize w = {0};
    if (!err_tty) {
        return;
    }
    size_t width = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
    /* The last column stays free: a character there makes some terminals wrap. */
    fprintf(stderr, "\r%.*s\033[K", line ? (int)(width - 1) : 0, line ? line : "");
}
