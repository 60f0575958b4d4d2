/* SPDX-License-Identifier: MIT */
/* args.c — strict command lines.
 *
 * Policy: an argument is either understood completely or refused by name before any work starts.
 * Nothing is clamped, no trailing text is dropped, no later option overrides an earlier one. The
 * one hard question is "-p --kv": a value may begin with a dash (a prompt, a negative number that
 * must be refused as a number), but a value that is spelled exactly like an option of this command
 * means that the real value was forgotten.
 */
#define _POSIX_C_SOURCE 200809L
#include "args.h"

#include "out.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Values ------------------------------------------------------------------------------ */

static bool is_whole(const char *s)
{
    s += *s == '-';
    if (!*s) {
        return false;
    }
    while (isdigit((unsigned char)*s)) {
        s++;
    }
    return !*s;
}

/* strtod takes hexadecimal, "inf", "nan" and leading blanks, none of which anyone means here. */
static bool parse_number(const char *s, double *out)
{
    if (!*s || strspn(s, "+-.0123456789eE") != strlen(s)) {
        return false;
    }
    char *end;
    *out = strtod(s, &end);
    return end != s && !*end;
}

static bool parse_count(const arg_option *o, const char *flag, const char *s, uint32_t *out)
{
    double v;
    if (!is_whole(s) && !(parse_number(s, &v) && fabs(v) >= 4294967296.0)) {
        msg_error("%s: '%s' is not a whole number (%.0f to %.0f)", flag, s, o->min, o->max);
        return false;
    }
    /* Whole numbers up to 2^53 are exact in a double; larger ones are out of every range. */
    v = strtod(s, NULL);
    if (!(v >= o->min && v <= o->max)) {
        msg_error("%s: %s is out of range: %.0f to %.0f", flag, s, o->min, o->max);
        return false;
    }
    *out = (uint32_t)v;
    return true;
}

static bool parse_real(const arg_option *o, const char *flag, const char *s, float *out)
{
    char range[64];
    snprintf(range, sizeof range, "%s%g to %g", o->zero_ok ? "0, or " : "", o->min, o->max);
    double v;
    if (!parse_number(s, &v)) {
        msg_error("%s: '%s' is not a number (%s)", flag, s, range);
        return false;
    }
    if (!(v >= o->min && v <= o->max) && !(o->zero_ok && v == 0.0)) {
        msg_error("%s: %s is out of range: %s", flag, s, range);
        return false;
    }
    *out = (float)v;
    return true;
}

static bool parse_size(const char *flag, const char *s, uint64_t *out)
{
    static const char units[] = "KMGT";
    char digits[32];
    size_t n = strspn(s, ".0123456789");
    double v = 0;
    bool ok = n > 0 && n < sizeof digits;
    if (ok) {
        memcpy(digits, s, n);
        digits[n] = '\0';
        ok = parse_number(digits, &v);
    }
    const char *unit = s + n;
    if (ok && *unit) {
        const char *u = strchr(units, toupper((unsigned char)*unit));
        ok = u != NULL;
        if (ok) {
            v = ldexp(v, 10 * (int)(u - units + 1));
            unit++;
            ok = !*unit || !strcmp(unit, "B") || !strcmp(unit, "iB");
        }
    }
    if (!ok) {
        msg_error("%s: '%s' is not a size such as 512M, 1.5G or a number of bytes", flag, s);
        return false;
    }
    if (!(v >= 1 && v <= 0x1p60)) {
        msg_error("%s: %s is out of range: 1 byte to 2^60", flag, s);
        return false;
    }
    *out = (uint64_t)v;
    return true;
}

static bool parse_counts(const arg_option *o, const char *flag, const char *s, arg_counts *out)
{
    out->n = 0;
    for (;;) {
        size_t len = strcspn(s, ",");
        char part[32];
        if (len >= sizeof part || out->n == ARG_LIST_MAX) {
            msg_error("%s: the list is too long", flag);
            return false;
        }
        memcpy(part, s, len);
        part[len] = '\0';
        if (!parse_count(o, flag, part, &out->at[out->n])) {
            return false;
        }
        for (size_t i = 0; i < out->n; i++) {
            if (out->at[i] == out->at[out->n]) {
                msg_error("%s: %u is in the list twice", flag, out->at[i]);
                return false;
            }
        }
        out->n++;
        if (!s[len]) {
            return true;
        }
        s += len + 1;
    }
}

static bool set_value(arg_option *o, const char *flag, const char *value)
{
    bool repeatable = o->kind == ARG_STRINGS || o->kind == ARG_SIZES;
    if (o->seen && !repeatable) {
        msg_error("%s is given twice", flag);
        return false;
    }
    if (o->kind != ARG_FLAG && o->kind != ARG_TEXT && !*value) {
        msg_error("%s: the value is empty; expected %s", flag, o->meta);
        return false;
    }
    o->seen = true;
    switch (o->kind) {
    case ARG_FLAG:
        *(bool *)o->dst = true;
        return true;
    case ARG_STRING:
    case ARG_TEXT:
        *(const char **)o->dst = value;
        return true;
    case ARG_COUNT:
        return parse_count(o, flag, value, o->dst);
    case ARG_REAL:
        return parse_real(o, flag, value, o->dst);
    case ARG_COUNTS:
        return parse_counts(o, flag, value, o->dst);
    case ARG_STRINGS:
    case ARG_SIZES:
        break;
    }
    arg_strings *strings = o->dst;
    arg_sizes *sizes = o->dst;
    size_t *n = o->kind == ARG_STRINGS ? &strings->n : &sizes->n;
    if (*n == ARG_LIST_MAX) {
        msg_error("%s is given more than %d times", flag, ARG_LIST_MAX);
        return false;
    }
    if (o->kind == ARG_STRINGS) {
        strings->at[*n] = value;
    } else if (!parse_size(flag, value, &sizes->at[*n])) {
        return false;
    }
    ++*n;
    return true;
}

/* ---- Names --------------------------------------------------------------------------------- */

static size_t edit_distance(const char *a, const char *b)
{
    enum { MAX = 31 };
    size_t na = strlen(a), nb = strlen(b), row[MAX + 1];
    if (na > MAX || nb > MAX) {
        return MAX;
    }
    for (size_t j = 0; j <= nb; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diag + (a[i - 1] != b[j - 1]);
            diag = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            best = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

const char *args_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t best_distance = 3; /* two slips of the finger, and never half of a short word */
    size_t len = strlen(word);
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(word, names[i]);
        size_t shorter = strlen(names[i]) < len ? strlen(names[i]) : len;
        if (shorter >= 2 && strncmp(word, names[i], shorter) == 0) {
            d = d < 2 ? d : 2; /* "--ctx-size" for "--ctx", "--thread" for "--threads" */
        }
        if (d < best_distance && 2 * d <= len + 1) {
            best = names[i];
            best_distance = d;
        }
    }
    return best;
}

/* The option that `arg` names exactly: "-m", "--model", "-h"... */
static arg_option *find_option(const arg_command *cmd, const char *name, size_t len, bool is_long)
{
    for (size_t i = 0; i < cmd->n_options; i++) {
        arg_option *o = &cmd->options[i];
        if (is_long ? o->name && strlen(o->name) == len && !memcmp(o->name, name, len)
                    : o->letter && len == 1 && o->letter == name[0]) {
            return o;
        }
    }
    return NULL;
}

static bool is_help(const char *arg)
{
    return !strcmp(arg, "-h") || !strcmp(arg, "--help");
}

static bool names_an_option(const arg_command *cmd, const char *arg)
{
    if (arg[0] != '-' || !arg[1]) {
        return false;
    }
    bool is_long = arg[1] == '-';
    const char *name = arg + 1 + is_long;
    return is_help(arg) || find_option(cmd, name, strlen(name), is_long) != NULL;
}

static void unknown_option(const arg_command *cmd, const char *arg, size_t len)
{
    const char *names[64];
    size_t n = 0;
    for (size_t i = 0; i < cmd->n_options && n < 63; i++) {
        if (cmd->options[i].name) {
            names[n++] = cmd->options[i].name;
        }
    }
    names[n++] = "help";
    char word[64] = "";
    if (len < sizeof word) {
        memcpy(word, arg, len);
        word[len] = '\0';
    }
    const char *near =
        word[0] == '-' && word[1] ? args_nearest(word + 1 + (word[1] == '-'), names, n) : NULL;
    if (near) {
        msg_error("unknown option '%.*s'; did you mean '--%s'?", (int)len, arg, near);
    } else {
        msg_error("unknown option '%.*s'", (int)len, arg);
    }
}

/* ---- The loop ------------------------------------------------------------------------------ */

arg_result args_hint(const arg_command *cmd)
{
    msg_note("Try '%s --help'.", cmd->name);
    return ARGS_USAGE;
}

/* One option at argv[*i]; moves *i past its value. */
static bool parse_option(const arg_command *cmd, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    bool is_long = arg[1] == '-';
    const char *name = arg + 1 + is_long;
    size_t len = is_long ? strcspn(name, "=") : 1;
    arg_option *o = find_option(cmd, name, len, is_long);
    if (!o) {
        unknown_option(cmd, arg, strcspn(arg, "="));
        return false;
    }
    char flag[64];
    snprintf(flag, sizeof flag, "%s%.*s", is_long ? "--" : "-", (int)len, name);
    const char *rest = name + len; /* "=5" of a long, "5" of a short option, or "" */
    if (o->kind == ARG_FLAG) {
        if (*rest) {
            msg_error("%s takes no value, but '%s' follows it", flag, rest);
            return false;
        }
        return set_value(o, flag, "");
    }
    if (*rest) {
        return set_value(o, flag, rest + is_long);
    }
    if (*i + 1 >= argc) {
        msg_error("%s needs a value: %s", flag, o->meta);
        return false;
    }
    const char *value = argv[*i + 1];
    if (names_an_option(cmd, value)) {
        msg_error("%s needs a value (%s), but the option '%s' follows", flag, o->meta, value);
        return false;
    }
    ++*i;
    return set_value(o, flag, value);
}

arg_result args_parse(arg_command *cmd, int argc, char **argv, const char **operand)
{
    msg_set_command(cmd->name);
    const char *taken = NULL;
    bool options_end = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!options_end && !strcmp(arg, "--")) {
            options_end = true;
        } else if (!options_end && is_help(arg)) {
            args_help(cmd);
            return ARGS_HELP;
        } else if (!options_end && arg[0] == '-' && arg[1]) {
            if (!parse_option(cmd, argc, argv, &i)) {
                return args_hint(cmd);
            }
        } else if (!cmd->operand) {
            msg_error("unexpected argument '%s': every input is given by an option", arg);
            return args_hint(cmd);
        } else if (taken) {
            msg_error("unexpected argument '%s' after '%s'", arg, taken);
            return args_hint(cmd);
        } else if (!*arg) {
            msg_error("%s is empty", cmd->operand);
            return args_hint(cmd);
        } else {
            taken = arg;
        }
    }
    if (operand) {
        *operand = taken;
    }
    return ARGS_OK;
}

bool args_given(const arg_command *cmd, const void *dst)
{
    for (size_t i = 0; i < cmd->n_options; i++) {
        if (cmd->options[i].dst == dst) {
            return cmd->options[i].seen;
        }
    }
    return false;
}

/* ---- Help ---------------------------------------------------------------------------------- */

enum { HELP_COLUMNS = 80, HELP_INDENT = 24 };

/* Words of `text` from column `col` on, continued at HELP_INDENT. */
static void put_wrapped(const char *text, size_t col)
{
    while (*text) {
        size_t len = strcspn(text, " ");
        if (col > HELP_INDENT && col + 1 + len > HELP_COLUMNS) {
            out_printf("\n%*s", HELP_INDENT, "");
            col = HELP_INDENT;
        } else if (col > HELP_INDENT) {
            out_write(" ", 1);
            col++;
        }
        out_write(text, len);
        col += len;
        text += len;
        text += *text == ' ';
    }
    out_write("\n", 1);
}

static void put_option(const arg_option *o)
{
    char left[64];
    snprintf(
        left, sizeof left, "  %c%c%s%s%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
        o->letter && o->name ? ", "
        : o->letter          ? ""
                             : "  ",
        o->name ? "--" : "", o->name ? o->name : "", o->meta ? " " : "", o->meta ? o->meta : "");
    size_t len = strlen(left);
    out_write(left, len);
    if (len + 2 > HELP_INDENT) {
        out_printf("\n%*s", HELP_INDENT, "");
    } else {
        out_printf("%*s", (int)(HELP_INDENT - len), "");
    }
    put_wrapped(o->help, HELP_INDENT);
}

static void put_heading(const char *text)
{
    out_printf("\n%s%s%s\n", out_bold(), text, out_plain());
}

void args_help(const arg_command *cmd)
{
    out_printf("%s%s%s - %s\n\n%s", out_bold(), cmd->name, out_plain(), cmd->summary,
               cmd->synopsis);
    size_t n_groups = 0;
    for (size_t i = 0; i < cmd->n_options; i++) {
        if (cmd->options[i].group) {
            n_groups++;
            put_heading(cmd->options[i].group);
        }
        put_option(&cmd->options[i]);
    }
    /* --help belongs to no group: where there are several it stands apart. */
    out_printf("%s  -h, --help            show this page\n", n_groups > 1 ? "\n" : "");
    if (cmd->notes) {
        out_printf("\n%s", cmd->notes);
    }
    if (cmd->examples) {
        put_heading("Examples");
        out_printf("%s", cmd->examples);
    }
}
