/* SPDX-License-Identifier: MIT */
/* eta.h — how long the rest of a prompt will take. */
#ifndef TQ_APP_ETA_H
#define TQ_APP_ETA_H

#include <stddef.h>

/* Sums of a weighted straight-line fit. Zero-initialise. */
typedef struct eta {
    size_t n_done; /* tokens at the last report */
    double seconds;
    size_t n_reports;
    double w, x, y, xx, xy;
} eta;

/* n_done tokens were done after `seconds`; both grow from report to report. */
void eta_report(eta *e, size_t n_done, double seconds);

/* Seconds from the last report to token n_total, or 0 before the first report. */
double eta_left(const eta *e, size_t n_total);

#endif
