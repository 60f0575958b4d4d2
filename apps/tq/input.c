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
#include <unistd.h>

#define INPUT_MAX_LINE ((size_t)16 << 20)

/* Wait for input and add what there is. */
static input_result fill(input *in)
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
    if (gen_interrupted()) {
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

input_result input_line(input *in, const char *prompt, char **line, size_t *n)
{
    size_t scanned = 0;
    bool show = prompt && isatty(STDIN_FILENO) == 1 && err_is_tty();
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
        input_result r = fill(in);
        if (r == INPUT_INTERRUPTED) {
            in->n = 0; /* the terminal dropped the half-typed line, and so do we */
        }
        if (r != INPUT_LINE) {
            return r;
        }
    }
}

void input_deinit(input *in)
{
    free(in->buf);
    *in = (input){0};
}
