/* SPDX-License-Identifier: MIT */
/* args.h — one table per command describes its options; the parser and --help both read it. */
#ifndef TQ_APP_ARGS_H
#define TQ_APP_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARG_LIST_MAX 64

typedef struct arg_strings {
    const char *at[ARG_LIST_MAX];
    size_t n;
} arg_strings;

typedef struct arg_counts {
    uint32_t at[ARG_LIST_MAX];
    size_t n;
} arg_counts;

typedef struct arg_sizes {
    uint64_t at[ARG_LIST_MAX];
    size_t n;
} arg_sizes;

typedef enum arg_kind {
    ARG_FLAG,    /* bool: no value */
    ARG_STRING,  /* const char *: not empty */
    ARG_TEXT,    /* const char *: may be empty */
    ARG_COUNT,   /* uint32_t: a whole number in [min, max] */
    ARG_REAL,    /* float: a finite number in [min, max]; 0 too when zero_ok */
    ARG_STRINGS, /* arg_strings: repeatable */
    ARG_COUNTS,  /* arg_counts: "512,4096" */
    ARG_SIZES    /* arg_sizes: repeatable, "512M", "1.5G", plain bytes */
} arg_kind;

typedef struct arg_option {
    const char *group; /* heading in --help; NULL: that of the option before */
    char letter;       /* 'm', or 0 */
    const char *name;  /* "model", or NULL */
    const char *meta;  /* "FILE", or NULL for flags */
    arg_kind kind;
    void *dst;       /* written only when the option is given */
    double min, max; /* ARG_COUNT, ARG_COUNTS, ARG_REAL */
    bool zero_ok;
    const char *help; /* wrapped to the terminal; no newlines */
    bool seen;        /* set by the parser */
} arg_option;

typedef struct arg_command {
    const char *name;     /* "tq run" */
    const char *summary;  /* one line */
    const char *synopsis; /* lines, already indented */
    arg_option *options;
    size_t n_options;
    const char *notes;    /* after the options, or NULL */
    const char *examples; /* lines, already indented, or NULL */
    const char *operand;  /* name of the one operand that is taken, or NULL: none */
} arg_command;

typedef enum arg_result {
    ARGS_OK,
    ARGS_HELP, /* help was asked for and written: exit 0 */
    ARGS_USAGE /* a message was written: exit 2 */
} arg_result;

/* Parse argv[1..argc). Every option at most once, except the repeatable ones; values as "-n 5",
 * "-n5", "--predict 5" or "--predict=5"; "--" ends the options. -h, --help are added by the
 * parser. *operand gets the operand or NULL. */
arg_result args_parse(arg_command *cmd, int argc, char **argv, const char **operand);

/* "Try 'tq run --help'." after a message; returns ARGS_USAGE. */
arg_result args_hint(const arg_command *cmd);

void args_help(const arg_command *cmd);

/* Was this option (by its destination) given? */
bool args_given(const arg_command *cmd, const void *dst);

/* The name nearest to `word`, or NULL when none is near. */
const char *args_nearest(const char *word, const char *const *names, size_t n);

#endif
