/* SPDX-License-Identifier: MIT */
/* team.c — threads that do one thing together.
 *
 * The one hard idea: a turn number. A member runs when it changes, and counts itself out when done;
 * it spins for it first (waking a thread takes as long as attention over a short context) and then
 * sleeps, since benchmarks take turns with others who want the processors.
 */
#define _POSIX_C_SOURCE 200809L
#include "team.h"

#include "out.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPINS = 1 << 16, REST_MS = 5 };

typedef struct member {
    team *owner;
    uint32_t id;
    pthread_t thread;
} member;

struct team {
    uint32_t n, n_started;
    team_fn *fn;
    void *arg;
    bool stop;
    atomic_uint turn, running;
    pthread_mutex_t mutex;
    pthread_cond_t new_turn;
    member members[];
};

static void relax(uint32_t i)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (i % 1024 == 1023) {
        sched_yield(); /* more threads than processors must not wait for each other like this */
    }
}

static uint32_t wait_for_turn(team *t, uint32_t seen)
{
    uint32_t turn;
    for (uint32_t i = 0; i < SPINS; i++) {
        turn = atomic_load_explicit(&t->turn, memory_order_acquire);
        if (turn != seen) {
            return turn;
        }
        relax(i);
    }
    pthread_mutex_lock(&t->mutex);
    while ((turn = atomic_load_explicit(&t->turn, memory_order_acquire)) == seen) {
        pthread_cond_wait(&t->new_turn, &t->mutex);
    }
    pthread_mutex_unlock(&t->mutex);
    return turn;
}

static void *member_main(void *arg)
{
    const member *m = arg;
    team *t = m->owner;
    uint32_t turn = 0;
    for (;;) {
        turn = wait_for_turn(t, turn);
        if (t->stop) {
            return NULL;
        }
        t->fn(t->arg, m->id);
        atomic_fetch_sub_explicit(&t->running, 1, memory_order_release);
    }
}

/* The others see fn, arg and stop with the turn. */
static void next_turn(team *t)
{
    atomic_store_explicit(&t->running, t->n_started, memory_order_relaxed);
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_add_explicit(&t->turn, 1, memory_order_release);
    pthread_cond_broadcast(&t->new_turn);
    pthread_mutex_unlock(&t->mutex);
}

void team_run(team *t, team_fn *fn, void *arg)
{
    if (t->n_started) {
        t->fn = fn;
        t->arg = arg;
        next_turn(t);
    }
    fn(arg, 0);
    for (uint32_t i = 0; t->n_started && atomic_load_explicit(&t->running, memory_order_acquire);
         i++) {
        relax(i);
    }
}

static void nothing(void *arg, uint32_t id)
{
    (void)arg;
    (void)id;
}

void team_wake(team *t)
{
    team_run(t, nothing, NULL);
}

void team_rest(const team *t)
{
    const struct timespec pause = {.tv_nsec = REST_MS * 1000000};
    if (t->n_started) {
        nanosleep(&pause, NULL);
    }
}

uint32_t team_size(const team *t)
{
    return t->n;
}

team *team_create(uint32_t n)
{
    team *t = calloc(1, sizeof *t + n * sizeof t->members[0]);
    if (!t) {
        msg_error("not enough memory for %u threads", n);
        return NULL;
    }
    t->n = n;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->new_turn, NULL);
    for (uint32_t i = 1; i < n; i++) {
        member *m = &t->members[i];
        *m = (member){.owner = t, .id = i};
        int rc = pthread_create(&m->thread, NULL, member_main, m);
        if (rc) {
            msg_error("cannot start thread %u of %u: %s", i + 1, n, strerror(rc));
            team_destroy(t);
            return NULL;
        }
        t->n_started++;
    }
    return t;
}

void team_destroy(team *t)
{
    if (!t) {
        return;
    }
    t->stop = true;
    next_turn(t);
    for (uint32_t i = 1; i <= t->n_started; i++) {
        pthread_join(t->members[i].thread, NULL);
    }
    pthread_cond_destroy(&t->new_turn);
    pthread_mutex_destroy(&t->mutex);
    free(t);
}
