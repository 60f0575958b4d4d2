/* SPDX-License-Identifier: MIT */
/* plot.h — log-log charts by gnuplot, which is run as a program. */
#ifndef TQ_APP_PLOT_H
#define TQ_APP_PLOT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum plot_style {
    PLOT_LINE,   /* solid, with points: ours */
    PLOT_DASHED, /* others */
    PLOT_FLOOR   /* thin and grey, no points */
} plot_style;

typedef struct plot_curve {
    const char *name;
    plot_style style;
    const double *x, *y; /* [n], > 0 */
    size_t n;
} plot_curve;

typedef struct plot {
    const char *file; /* *.svg or *.png */
    const char *title, *subtitle, *x_label, *y_label;
    const plot_curve *curves;
    size_t n_curves;
    bool bits_x; /* x is bits of an element, not a list of contexts */
} plot;

/* Can this file be made: does its name end in .svg or .png, is it not that of --csv (NULL: none),
 * and is gnuplot here? False: a message that begins with `flag` was written; *usage tells whether
 * the name's end is at fault. */
bool plot_check(const char *flag, const char *file, const char *csv, bool *usage);

/* Draw. False: a message was written. */
bool plot_draw(const plot *p);

#endif
