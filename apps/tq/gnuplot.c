/* SPDX-License-Identifier: MIT */
/* gnuplot.c — runs gnuplot, for every plot of the program, and makes its output fit into a page.
 *
 * Policy: no shell. The three streams of the child are temporary files, so neither side ever waits
 * for the other's pipe, and what it complains about can be quoted.
 */
#define _POSIX_C_SOURCE 200809L
#include "gnuplot.h"

#include "out.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* An unnamed temporary file with data [n] in it. */
static FILE *temporary(const char *data, size_t n)
{
    FILE *f = tmpfile();
    if (f && (fwrite(data, 1, n, f) != n || fflush(f) != 0 || fseek(f, 0, SEEK_SET) != 0)) {
        fclose(f);
        f = NULL;
    }
    return f;
}

static char *slurp(FILE *f, size_t *n_out)
{
    char *s = NULL;
    long n = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (n >= 0 && fseek(f, 0, SEEK_SET) == 0 && (s = malloc((size_t)n + 1)) != NULL) {
        *n_out = fread(s, 1, (size_t)n, f);
        s[*n_out] = '\0';
    }
    return s;
}

/* 0, or the errno of the start; *status as waitpid gives it. */
static int spawn(FILE *const streams[3], int *status)
{
    char *argv[] = {(char *)"gnuplot", (char *)"-d", (char *)"-",
                    NULL}; /* -d: no user's settings */
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int rc = posix_spawn_file_actions_init(&actions);
    for (int i = 0; rc == 0 && i < 3; i++) {
        rc = posix_spawn_file_actions_adddup2(&actions, fileno(streams[i]), i);
    }
    rc = rc ? rc : posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    while (rc == 0 && waitpid(pid, status, 0) < 0) {
        rc = errno == EINTR ? 0 : errno;
    }
    return rc;
}

/* What gnuplot says last is what is wrong; a picture of where comes before. */
static const char *last_line(char *s)
{
    size_t n = s ? strlen(s) : 0;
    while (n && (s[n - 1] == '\n' || s[n - 1] == ' ')) {
        s[--n] = '\0';
    }
    const char *start = n ? strrchr(s, '\n') : NULL;
    return start ? start + 1 : n ? s : "it gave no reason";
}

char *gnuplot_run(const char *flag, const char *script, size_t n, size_t *n_out)
{
    size_t n_said = 0, n_complaint = 0;
    FILE *streams[3] = {temporary(script, n), tmpfile(), tmpfile()};
    char *out = NULL, *complaint = NULL;
    int status = 0;
    if (!streams[0] || !streams[1] || !streams[2]) {
        msg_error("cannot make temporary files for gnuplot: %s", strerror(errno));
    } else {
        int rc = spawn(streams, &status);
        out = slurp(streams[1], &n_said);
        complaint = slurp(streams[2], &n_complaint);
        if (rc == ENOENT) {
            msg_error("%s needs gnuplot, which is not installed (Debian: gnuplot-nox)", flag);
        } else if (rc || !WIFEXITED(status) || WEXITSTATUS(status) || !out) {
            msg_error("%s: gnuplot failed: %s", flag, rc ? strerror(rc) : last_line(complaint));
        } else {
            free(complaint);
            complaint = NULL;
            rc = 0;
        }
        if (rc || complaint) {
            free(out);
            out = NULL;
        }
    }
    if (n_out) {
        *n_out = n_said;
    }
    free(complaint);
    for (int i = 0; i < 3; i++) {
        if (streams[i]) {
            fclose(streams[i]);
        }
    }
    return out;
}

bool gnuplot_check(void)
{
    static const char script[] = "set terminal svg\nplot 0\n";
    char *svg = gnuplot_run("--html", script, sizeof script - 1, NULL);
    bool ok = svg && strstr(svg, "</svg>");
    if (svg && !ok) {
        msg_error("--html: this gnuplot draws no SVG");
    }
    free(svg);
    return ok;
}

/* Copies svg from s on; every id and every use of one gets the prefix. */
static void put_with_ids(FILE *f, const char *s, const char *id)
{
    static const char *const marks[] = {"id=\"", "id='", "url(#", "href=\"#", "href='#"};
    while (*s) {
        size_t len = 0;
        for (size_t i = 0; i < sizeof marks / sizeof marks[0] && !len; i++) {
            len = strncmp(s, marks[i], strlen(marks[i])) ? 0 : strlen(marks[i]);
        }
        if (len) {
            fprintf(f, "%.*s%s-", (int)len, s, id);
            s += len;
        } else {
            fputc(*s++, f);
        }
    }
}

/* Removes every <tag ...>...</tag>. */
static void drop(char *s, const char *open, const char *close)
{
    for (char *at = strstr(s, open); at; at = strstr(at, open)) {
        char *end = strstr(at, close);
        if (!end) {
            return;
        }
        end += strlen(close);
        memmove(at, end, strlen(end) + 1);
    }
}

char *gnuplot_svg(const char *script, size_t n, const char *id, const char *description)
{
    char *raw = gnuplot_run("--html", script, n, NULL), *text = NULL;
    char *svg = raw ? strstr(raw, "<svg") : NULL;
    size_t n_text = 0;
    FILE *f = svg ? open_memstream(&text, &n_text) : NULL;
    if (raw && !f) {
        msg_error("--html: gnuplot drew no SVG");
    }
    if (f) {
        drop(svg, "<title>", "</title>");
        drop(svg, "<desc>", "</desc>");
        fprintf(f, "<svg role=\"img\" aria-label=\"%s\"", description);
        put_with_ids(f, svg + strlen("<svg"), id);
        if (fclose(f) != 0) {
            free(text);
            text = NULL;
        }
    }
    free(raw);
    return text;
}
