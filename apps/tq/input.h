/* SPDX-License-Identifier: MIT */
/* input.h — lines from stdin that Ctrl-C can interrupt. */
#ifndef TQ_APP_INPUT_H
#define TQ_APP_INPUT_H

#include <stddef.h>

typedef enum input_result {
    INPUT_LINE,
    INPUT_END,         /* end of file, nothing read */
    INPUT_INTERRUPTED, /* SIGINT came; gen_interrupted() is set */
    INPUT_ERROR        /* a message was written */
} input_result;

typedef struct input {
    char *buf; /* bytes read and not yet handed out */
    size_t n, cap;
    int at_end;
    int dropped; /* with INPUT_INTERRUPTED: something had been typed and is gone */
} input;

/* The next line without its newline, malloc'ed; the last one needs none. A line that ends with a
 * backslash goes on with the next. Lines longer than 16 MiB are an error. */
input_result input_line(input *in, const char *prompt, char **line, size_t *n);
void input_deinit(input *in);

#endif
