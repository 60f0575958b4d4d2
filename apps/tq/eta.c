/* SPDX-License-Identifier: MIT */
/* eta.c — how long the rest of a prompt will take.
 *
 * The hard idea: a token attends to all before it, so its cost grows with its position, and what is
 * left costs more than what is done. The seconds per token of each batch are fitted by a straight
 * line over the position, a + b x, with the batch's tokens as weight; the integral of the line over
 * the rest is the answer. A line that falls is noise: then the mean rate counts.
 */
#include "eta.h"

void eta_report(eta *e, size_t n_done, double seconds)
{
    if (n_done <= e->n_done || seconds <= e->seconds) {
        return;
    }
    double w = (double)(n_done - e->n_done);
    double x = 0.5 * ((double)n_done + (double)e->n_done);
    double y = (seconds - e->seconds) / w;
    e->w += w;
    e->x += w * x;
    e->y += w * y;
    e->xx += w * x * x;
    e->xy += w * x * y;
    e->n_reports++;
    e->n_done = n_done;
    e->seconds = seconds;
}

double eta_left(const eta *e, size_t n_total)
{
    if (e->n_reports == 0 || n_total <= e->n_done) {
        return 0;
    }
    double left = (double)(n_total - e->n_done);
    double mean = e->y / e->w, centre = e->x / e->w;
    double var = e->xx / e->w - centre * centre;
    double slope = 0;
    /* Two points always make a line, of noise as well. */
    if (e->n_reports >= 3 && var > 0) {
        slope = (e->xy / e->w - centre * mean) / var;
        slope = slope > 0 ? slope : 0;
    }
    double middle = 0.5 * ((double)n_total + (double)e->n_done);
    return left * (mean + slope * (middle - centre));
}
