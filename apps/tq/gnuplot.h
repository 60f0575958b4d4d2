/* SPDX-License-Identifier: MIT */
/* gnuplot.h — gnuplot as a program: a script goes in, a file or an SVG element comes out. */
#ifndef TQ_APP_GNUPLOT_H
#define TQ_APP_GNUPLOT_H

#include <stdbool.h>
#include <stddef.h>

/* Run a script. What it writes to stdout, malloc'ed, with a NUL behind its *n_out bytes (n_out may
 * be NULL); NULL: a message that begins with `flag` was written. */
char *gnuplot_run(const char *flag, const char *script, size_t n, size_t *n_out);

/* Can gnuplot be run, and does it draw SVG? A message was written when not. */
bool gnuplot_check(void);

/* Run a script that draws one SVG on stdout. id: a short word that makes the element's ids its own,
 * so that many can stand in one page. description: read aloud in place of the picture, plain text
 * without quotes. malloc'ed, or NULL (a message was written). */
char *gnuplot_svg(const char *script, size_t n, const char *id, const char *description);

#endif
