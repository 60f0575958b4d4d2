/* SPDX-License-Identifier: MIT */
/* machine.c — what a report says about the computer it was made on. Linux's /proc; elsewhere the
 * answers are "unknown", never a guess. */
#define _GNU_SOURCE /* getloadavg, sched_getaffinity, madvise */
#include "machine.h"

#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

/* The rest of the first line of `path` that begins with `key`, after blanks and a colon. */
static int find_line(const char *path, const char *key, char *dst, size_t dst_bytes)
{
    char line[512];
    int found = 0;
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof line, f)) {
        if (!strncmp(line, key, strlen(key))) {
            char *s = line + strlen(key);
            s += strspn(s, " \t:");
            s[strcspn(s, "\n")] = '\0';
            text_utf8_clean(dst, dst_bytes, s);
            found = 1;
        }
    }
    if (f) {
        fclose(f);
    }
    return found;
}

const char *machine_cpu(char dst[128])
{
    if (!find_line("/proc/cpuinfo", "model name", dst, 128)) {
        snprintf(dst, 128, "unknown CPU");
    }
    return dst;
}

uint64_t machine_free_bytes(void)
{
    char text[64];
    return find_line("/proc/meminfo", "MemAvailable", text, sizeof text)
               ? (uint64_t)strtoull(text, NULL, 10) * 1024
               : 0;
}

uint32_t machine_cpus(void)
{
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        return (uint32_t)CPU_COUNT(&set);
    }
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 0;
}

double machine_load(void)
{
    double load;
    return getloadavg(&load, 1) == 1 ? load : -1;
}

void *machine_large_alloc(size_t bytes)
{
    const size_t large = (size_t)2 << 20;
    if (bytes > SIZE_MAX - large) {
        return NULL;
    }
    bytes = (bytes + large - 1) / large * large;
    void *p = aligned_alloc(large, bytes);
#if defined(MADV_HUGEPAGE)
    if (p != NULL) {
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    }
#endif
    return p;
}
