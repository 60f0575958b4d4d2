/* SPDX-License-Identifier: MIT */
/* team.h — threads that do one thing together, again and again. For benchmarks of the core, which
 * starts no threads itself. */
#ifndef TQ_APP_TEAM_H
#define TQ_APP_TEAM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct team team;

/* id: 0..n-1; the caller of team_run is number 0. */
typedef void team_fn(void *arg, uint32_t id);

/* n >= 1 threads, the caller's among them. NULL: a message was written. */
team *team_create(uint32_t n);
void team_destroy(team *t); /* NULL allowed */
uint32_t team_size(const team *t);

/* Run fn on all of them; returns when the last one has. Threads spin for a moment before they
 * sleep: a team that has just run something starts the next at once. */
void team_run(team *t, team_fn *fn, void *arg);

/* Start them so that the next team_run finds them awake. */
void team_wake(team *t);
/* Wait until they sleep, so that they disturb nobody. */
void team_rest(const team *t);

#endif
