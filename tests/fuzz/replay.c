/* SPDX-License-Identifier: MIT */
/* replay.c — runs a libFuzzer target over files, without libFuzzer.
 *
 * Arguments are files or folders (not searched deeper); every file is one input, copied to a heap
 * block of its exact size so that a sanitizer sees the first byte read past it. Two inputs are
 * always added: the empty one, and a fixed pseudo-random walk over sizes, so that a target
 * without a corpus still runs. No arguments, an unreadable file or an empty folder is an error:
 * a replay of nothing must not pass.
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t n_inputs;

static void run_input(const uint8_t *bytes, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) {
        fprintf(stderr, "replay: out of memory\n");
        exit(2);
    }
    if (n)
        memcpy(copy, bytes, n);
    (void)LLVMFuzzerTestOneInput(copy, n);
    free(copy);
    n_inputs++;
}

static void run_file(const char *path, long size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *buf = malloc(size > 0 ? (size_t)size : 1);
    if (!f || !buf || fread(buf, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(2);
    }
    fclose(f);
    run_input(buf, (size_t)size);
    free(buf);
}

static void run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "replay: no such file: %s\n", path);
        exit(2);
    }
    if (!S_ISDIR(st.st_mode)) {
        run_file(path, (long)st.st_size);
        return;
    }
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort);
    size_t before = n_inputs;
    for (int i = 0; i < n; i++) {
        char full[4096];
        int len = snprintf(full, sizeof full, "%s/%s", path, names[i]->d_name);
        if (len > 0 && (size_t)len < sizeof full && stat(full, &st) == 0 && S_ISREG(st.st_mode))
            run_file(full, (long)st.st_size);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    if (n_inputs == before) {
        fprintf(stderr, "replay: no input in %s\n", path);
        exit(2);
    }
}

/* Sizes 1..400, bytes from a linear congruential generator (Knuth, MMIX). */
static void run_random(void)
{
    uint64_t state = 1;
    uint8_t buf[400];
    for (size_t n = 1; n <= sizeof buf; n++) {
        for (size_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            buf[i] = (uint8_t)(state >> 56);
        }
        run_input(buf, n);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE|FOLDER...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++)
        run_path(argv[i]);
    run_input(NULL, 0);
    run_random();
    printf("replayed %zu inputs\n", n_inputs);
    return 0;
}
