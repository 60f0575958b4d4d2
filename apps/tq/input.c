/* SPDX-License-Identifier: MIT */
/* input.c — lines from stdin that Ctrl-C can interrupt.
 *
 * The hard idea is the race: a SIGINT between "is the flag set?" and a blocking read would be lost
 * until the next key. SIGINT is therefore blocked while the flag is checked, and ppoll opens it
 * only while it sleeps. stdio's getline cannot do that.
 */
#define _GNU_SOURCE /* ppoll */
#include "input.h"

#include "generate.h"
#include "out.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#define INPUT_MAX_LINE ((size_t)16 << 20)

/* A terminal forgets the half-typed line at Ctrl-C, and nobody can tell an empty line from a full
 * one. While we wait it keeps it (NOFLSH). True: stdin is such a terminal, *saved is its state. */
static bool keep_typed(struct termios *saved)
{
    if (isatty(STDIN_FILENO) != 1 || tcgetattr(STDIN_FILENO, saved) != 0) {
        return false;
    }
    struct termios t = *saved;
    t.c_lflag |= NOFLSH;
    return tcsetattr(STDIN_FILENO, TCSANOW, &t) == 0;
}

/* Throw away what was typed. Was there anything? Without ICANON the terminal hands out lines that
 * are not finished. */
static bool drop_typed(const struct termios *saved)
{
    struct termios t = *saved;
    bool any = false;
    char buf[512];
    t.c_lflag &= ~(tcflag_t)ICANON;
    t.c_cc[VMIN] = 0;
    t.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &t) == 0) {
        while (read(STDIN_FILENO, buf, sizeof buf) > 0) {
            any = true;
        }
    }
    return any;
}

/* Wait for input and add what there is. tty: the terminal of keep_typed, or NULL. */
static input_result fill(input *in, const struct termios *tty)
{
    if (in->n + 4096 > in->cap) {
        size_t cap = in->cap ? in->cap * 2 : 8192;
        char *grown = cap <= 2 * INPUT_MAX_LINE ? realloc(in->buf, cap) : NULL;
        if (!grown) {
            msg_error("the line is longer than %zu MiB", INPUT_MAX_LINE >> 20);
            return INPUT_ERROR;
        }
        in->buf = grown;
        in->cap = cap;
    }
    sigset_t block, old;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, &old);
    int ready = -1;
    if (!gen_interrupted()) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        ready = ppoll(&p, 1, NULL, &old);
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    bool stop = gen_interrupted();
    in->dropped = stop && ((tty && drop_typed(tty)) || in->n > 0);
    if (stop) {
        return INPUT_INTERRUPTED;
    }
    ssize_t got = ready < 0 ? -1 : read(STDIN_FILENO, in->buf + in->n, in->cap - in->n);
    if (got < 0 && errno != EINTR) {
        msg_error("cannot read stdin: %s", strerror(errno));
        return INPUT_ERROR;
    }
    in->n += got > 0 ? (size_t)got : 0;
    in->at_end = got == 0;
    return INPUT_LINE;
}

static input_result next_line(input *in, const struct termios *tty, const char *prompt, char **line,
                              size_t *n)
{
    size_t scanned = 0;
    bool show = prompt && tty && err_is_tty();
    if (show) {
        fputs(prompt, stderr);
    }
    for (;;) {
        char *nl = scanned < in->n ? memchr(in->buf + scanned, '\n', in->n - scanned) : NULL;
        if (nl && nl > in->buf && nl[-1] == '\\') {
            nl[-1] = '\n'; /* backslash and newline become one newline */
            memmove(nl, nl + 1, in->n - (size_t)(nl + 1 - in->buf));
            in->n--;
            scanned = (size_t)(nl - in->buf);
            if (show) {
                fputs("... ", stderr);
            }
            continue;
        }
        if (nl || (in->at_end && in->n)) {
            *n = nl ? (size_t)(nl - in->buf) : in->n;
            *line = malloc(*n + 1);
            if (!*line) {
                msg_error("not enough memory for the line");
                return INPUT_ERROR;
            }
            memcpy(*line, in->buf, *n);
            (*line)[*n] = '\0';
            size_t used = *n + (nl != NULL);
            memmove(in->buf, in->buf + used, in->n - used);
            in->n -= used;
            return INPUT_LINE;
        }
        if (in->at_end) {
            return INPUT_END;
        }
        scanned = in->n;
        input_result r = fill(in, tty);
        if (r == INPUT_INTERRUPTED) {
            in->n = 0; /* what came before, a line that goes on with this one, is dropped, too */
        }
        if (r != INPUT_LINE) {
            return r;
        }
    }
}

input_result input_line(input *in, const char *prompt, char **line, size_t *n)
{
    struct termios saved;
    bool tty = keep_typed(&saved); /* before the prompt invites to type */
    input_result r = next_line(in, tty ? &saved : NULL, prompt, line, n);
    if (tty) {
        tcsetattr(STDIN_FILENO, TCSANOW, &saved);
    }
    return r;
}

void input_deinit(input *in)
{
    free(in->buf);
    *in = (input){0};
}
