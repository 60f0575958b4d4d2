/* SPDX-License-Identifier: MIT */
/* eval_gnuplot.h — gnuplot as a program: a script goes in, an SVG element comes out. */
#ifndef TQ_APP_EVAL_GNUPLOT_H
#define TQ_APP_EVAL_GNUPLOT_H

#include <stdbool.h>
#include <stddef.h>

/* Can gnuplot be run, and does it draw SVG? A message was written when not. */
bool gnuplot_check(void);

/* Run a script that draws one SVG on stdout. id: a short word that makes the element's ids its own,
 * so that many can stand in one page. description: read aloud in place of the picture, plain text
 * without quotes. malloc'ed, or NULL (a message was written). */
char *gnuplot_svg(const char *script, size_t n, const char *id, const char *description);

#endif
