/* SPDX-License-Identifier: MIT */
/* machine.c — what a report says about the computer it was made on. Linux's /proc; elsewhere the
 * answers are "unknown", never a guess. */
#define _DEFAULT_SOURCE /* getloadavg */
#include "machine.h"

#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

double machine_load(void)
{
    double load;
    return getloadavg(&load, 1) == 1 ? load : -1;
}
