/* SPDX-License-Identifier: MIT */
/* plot.c — log-log charts as scripts for gnuplot.
 *
 * Script and data are one text and the picture comes back on stdout, so there are no files to clean
 * up, and neither gnuplot nor a shell sees a name. Text from outside stands in gnuplot's single
 * quotes, where nothing but the quote is special. gnuplot does not notice a full disk, so a picture
 * without its end is refused.
 */
#define _POSIX_C_SOURCE 200809L
#include "plot.h"

#include "gnuplot.h"
#include "out.h"
#include "save.h"
#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Okabe and Ito's colours, which colour-blind people tell apart, and two more; then repeated with
 * another point. */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                      "#56b4e9", "#7a4fb5", "#1b1b1b", "#a6761d", "#5c8a00"};
static const char *const greys[] = {"#8c8c8c", "#b08968", "#7f9aa8", "#a08fb0"};
enum { N_COLOURS = sizeof colours / sizeof colours[0], N_GREYS = sizeof greys / sizeof greys[0] };

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n > m && !strcmp(s + n - m, tail);
}

bool plot_check(const char *flag, const char *file, const char *csv, bool *usage)
{
    const char *const flags[] = {"--csv", flag}, *const paths[] = {csv, file};
    *usage = true;
    if (!ends_with(file, ".svg") && !ends_with(file, ".png")) {
        msg_error("%s: '%s' ends neither in .svg nor in .png", flag, file);
        return false;
    }
    for (const char *c = file; *c; c++) {
        if ((unsigned char)*c < 0x20) {
            msg_error("%s: a control character in the file name", flag);
            return false;
        }
    }
    *usage = false;
    if (!target_apart(flags, paths, 2) || !save_check(flag, file)) {
        return false;
    }
    char *said = gnuplot_run(flag, "", 0, NULL);
    free(said);
    return said != NULL;
}

static void put_quoted(FILE *f, const char *s)
{
    fputc('\'', f);
    for (; *s; s++) {
        if (*s == '\'') {
            fputc('\'', f);
        }
        fputc(*s, f);
    }
    fputc('\'', f);
}

static void put_data(FILE *f, const plot *p)
{
    for (size_t i = 0; i < p->n_curves; i++) {
        fprintf(f, "$c%zu << EOD\n", i);
        for (size_t k = 0; k < p->curves[i].n; k++) {
            fprintf(f, "%.9g %.9g\n", p->curves[i].x[k], p->curves[i].y[k]);
        }
        fputs("EOD\n", f);
    }
}

static void put_curves(FILE *f, const plot *p)
{
    size_t n_lines = 0, n_dashed = 0, n_floors = 0;
    fputs("plot ", f);
    for (size_t i = 0; i < p->n_curves; i++) {
        const plot_curve *c = &p->curves[i];
        fprintf(f, "%s$c%zu using 1:2 title ", i ? ", \\\n     " : "", i);
        put_quoted(f, c->name);
        switch (c->style) {
        case PLOT_LINE:
            fprintf(f, " with linespoints lc rgb '%s' lw 2.2 pt %d ps 0.75",
                    colours[n_lines % N_COLOURS], n_lines < N_COLOURS ? 7 : 5);
            n_lines++;
            break;
        case PLOT_DASHED:
            fprintf(f, " with linespoints lc rgb '%s' lw 1.6 dt (%s) pt %d ps 0.7",
                    greys[n_dashed / 2 % N_GREYS], n_dashed % 2 ? "2,4" : "8,5",
                    n_dashed % 2 ? 6 : 4);
            n_dashed++;
            break;
        case PLOT_FLOOR:
            fprintf(f, " with lines lc rgb '#555555' lw 1.4 dt (%s)",
                    n_floors % 2 ? "9,3,2,3" : "2,3");
            n_floors++;
            break;
        }
    }
    fputc('\n', f);
}

/* Ticks at the contexts that were measured, as people write them. */
static void put_x_ticks(FILE *f, const plot *p, double *lo, double *hi)
{
    *lo = 1e300;
    *hi = 0;
    fputs("set xtics nomirror out (", f);
    for (size_t i = 0, any = 0; i < p->n_curves; i++) {
        for (size_t k = 0; k < p->curves[i].n; k++) {
            double x = p->curves[i].x[k];
            *lo = x < *lo ? x : *lo;
            *hi = x > *hi ? x : *hi;
            if (i > 0 && p->curves[i].n <= p->curves[0].n) {
                continue;
            }
            bool kilo = x >= 1024 && x / 1024 == (double)(long)(x / 1024);
            fprintf(f, "%s'%.0f%s' %.9g", any++ ? ", " : "", kilo ? x / 1024 : x, kilo ? "K" : "",
                    x);
        }
    }
    fputs(")\n", f);
}

static void put_script(FILE *f, const plot *p)
{
    bool svg = ends_with(p->file, ".svg");
    double lo, hi;
    put_data(f, p);
    fprintf(f, "set terminal %s\nset title ",
            svg ? "svg noenhanced size 1000,620 font 'Helvetica,14' background '#ffffff'"
                : "pngcairo noenhanced size 1500,930 font 'Sans,13' fontscale 1.15 "
                  "linewidth 1.5 background '#ffffff'");
    put_quoted(f, p->title);
    fputs(" font ',18' offset 0,1.2\nset label 1 ", f);
    put_quoted(f, p->subtitle);
    fputs(" at graph 0.5, graph 1.035 center textcolor rgb '#666666'\n"
          "set border 3 lw 1 lc rgb '#444444'\n"
          "set grid xtics ytics lc rgb '#e3e3e3' lt 1 lw 0.8\n"
          "set logscale xy\n"
          "set tmargin 4.5\nset mytics 10\n"
          "set ytics nomirror out format '%g'\n"
          "set key outside right center reverse Left samplen 3 spacing 1.25\n"
          "set xlabel ",
          f);
    put_quoted(f, p->x_label);
    fputs("\nset ylabel ", f);
    put_quoted(f, p->y_label);
    fputc('\n', f);
    put_x_ticks(f, p, &lo, &hi);
    if (p->bits_x) {
        fputs("set xtics nomirror out (1,2,3,4,5,6,8,10,12,16,32)\n", f);
    }
    fprintf(f, "set xrange [%.9g:%.9g]\n", lo / 1.15, hi * 1.15);
    put_curves(f, p);
}

/* Does the picture have the end of its kind? */
static bool is_whole(const char *file, const char *picture, size_t n)
{
    static const char png_end[8] = {'I', 'E', 'N', 'D', '\xae', '\x42', '\x60', '\x82'};
    if (ends_with(file, ".svg")) {
        return strstr(picture, "</svg>") != NULL;
    }
    return n > sizeof png_end && !memcmp(picture + n - sizeof png_end, png_end, sizeof png_end);
}

bool plot_draw(const plot *p)
{
    char *script = NULL, *picture = NULL;
    size_t n = 0, n_picture = 0;
    FILE *f = open_memstream(&script, &n);
    if (f) {
        put_script(f, p);
    }
    if (f && fclose(f) == 0) {
        picture = gnuplot_run("--plot", script, n, &n_picture);
    } else {
        msg_error("--plot: not enough memory to draw '%s'", p->file);
    }
    bool ok = picture != NULL;
    if (ok && !is_whole(p->file, picture, n_picture)) {
        msg_error("--plot: cannot write '%s': gnuplot's picture is cut short", p->file);
        ok = false;
    }
    ok = ok && save_bytes("--plot", p->file, picture, n_picture);
    free(script);
    free(picture);
    return ok;
}
