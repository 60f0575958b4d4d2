/* SPDX-License-Identifier: MIT */
/* threads.c — how many threads are worth starting: physical cores this process may use.
 *
 * ggml's threads spin at barriers, so two of them on one core's hyperthreads slow each other.
 * A core is counted once, at the first of its hyperthreads that we may run on.
 */
#include "engine_priv.h"

#include <stdio.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

#if defined(__linux__)

/* The lowest CPU that shares the core of `cpu` and that `set` holds, or cpu itself. The list looks
 * like "0,64" or "0-1". */
static size_t first_sibling(size_t cpu, const cpu_set_t *set)
{
    char path[96];
    (void)snprintf(path, sizeof(path),
                   "/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return cpu;
    }
    size_t best = cpu;
    size_t lo = 0;
    while (fscanf(f, "%zu", &lo) == 1) {
        size_t hi = lo;
        int sep = fgetc(f);
        if (sep == '-' && fscanf(f, "%zu", &hi) == 1) {
            sep = fgetc(f);
        }
        for (size_t i = lo; i <= hi && i < best; i++) {
            if (CPU_ISSET(i, set)) {
                best = i;
            }
        }
        if (sep != ',') {
            break;
        }
    }
    (void)fclose(f);
    return best;
}

uint32_t tqe_physical_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return 1;
    }
    uint32_t n = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set) && first_sibling(cpu, &set) == cpu) {
            n++;
        }
    }
    return n == 0 ? 1 : (n > TQE_MAX_THREADS ? TQE_MAX_THREADS : n);
}

#else

uint32_t tqe_physical_cores(void)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (n > (long)TQE_MAX_THREADS ? TQE_MAX_THREADS : (uint32_t)n);
}

#endif
