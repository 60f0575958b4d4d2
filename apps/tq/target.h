/* SPDX-License-Identifier: MIT */
/* target.h — may a file be written? Asked before anything is computed for it. */
#ifndef TQ_APP_TARGET_H
#define TQ_APP_TARGET_H

#include "args.h"

/* False, after a message, when path is the same file as input, by whatever name. flag and
 * input_flag are what the user calls the two: "--save", "-m". path or input NULL, or input "-": no
 * such file. */
bool target_is_not(const char *flag, const char *path, const char *input_flag, const char *input);

/* False, after a message, when path is no place for a file that is written beside and renamed: a
 * folder, a device, in a folder that is absent or cannot be written. NULL: none is written. */
bool target_can_be(const char *flag, const char *path);

/* A device, a pipe, /dev/stdout or the like: it can be written to, but not replaced. */
bool target_is_special(const char *path);

/* False, after a message, when two of the results paths [n] would be one file, by whatever name,
 * also of one that is not there yet. NULL: no such result. */
bool target_apart(const char *const *flags, const char *const *paths, size_t n);

/* What a command that runs a model reads. NULL and n 0: none. */
typedef struct target_inputs {
    const char *model;          /* -m */
    const char *file;           /* -f, or */
    const arg_strings *files;   /* -f, repeatable */
    const char *kv;             /* scheme, or */
    const arg_strings *schemes; /* --kv, repeatable; layers= and kmean= name files */
} target_inputs;

/* target_is_not for all of them. */
bool target_spares(const char *flag, const char *path, const target_inputs *in);

#endif
