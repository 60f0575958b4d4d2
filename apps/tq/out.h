/* SPDX-License-Identifier: MIT */
/* out.h — the two streams of the program: stdout, which may break, and messages on stderr. */
#ifndef TQ_APP_OUT_H
#define TQ_APP_OUT_H

#include <stdbool.h>
#include <stddef.h>

/* Exit codes of the program. */
enum {
    TQ_EXIT_OK = 0,
    TQ_EXIT_FAILED = 1,       /* the work failed: file, model, memory, output */
    TQ_EXIT_USAGE = 2,        /* the command line is wrong; nothing was done */
    TQ_EXIT_INTERRUPTED = 130 /* SIGINT */
};

/* Call first in main. Gives closed stdin and stderr a /dev/null, so that no file that is opened
 * later gets their number, and ignores SIGPIPE. False: stdout is closed (a message was
 * written). */
bool out_init(void);
bool in_is_closed(void); /* stdin was closed when the program started */

/* Append to stdout's buffer. After a failure, which is remembered, these do nothing and return
 * false. out_text is for text that a model or a file chose: on a terminal its control characters
 * are shown as pictures instead of being obeyed. */
bool out_write(const char *data, size_t n);
bool out_text(const char *data, size_t n);
bool out_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A paragraph in lines of at most 80 columns, broken at spaces; names in it may be anyone's. */
bool out_wrapped(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool out_flush(void);
/* A newline, unless the last byte was one or there was none. */
bool out_end_line(void);

/* Flush, close, report what went wrong with stdout; returns the exit code to use in place of
 * `code` (a failed output turns success into TQ_EXIT_FAILED). */
int out_finish(int code);

bool out_is_tty(void); /* stdout is a terminal */
bool err_is_tty(void);
/* "" or the escape sequence, when stdout takes colours: a terminal, NO_COLOR unset. */
const char *out_bold(void);
const char *out_plain(void);

/* Name of the running command for messages, "tq run". Static storage of the caller. */
void msg_set_command(const char *name);
/* One line to stderr: "tq run: error: ...". On a terminal that shows both streams, it begins a
 * line. Control characters, line ends among them, and bytes that are not valid UTF-8 are escaped as
 * \xNN. */
void msg_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void msg_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A line without prefix. */
void msg_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* On a terminal: put a line of ASCII in the place of the status line before it, cut to the width
 * that the terminal has now, without a newline; NULL clears it. Elsewhere these do nothing. */
void msg_status(const char *line);

#endif
