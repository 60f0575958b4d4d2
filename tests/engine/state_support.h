/* SPDX-License-Identifier: MIT */
/* state_support.h — sessions, tokens and files for the tests of stored state. */
#ifndef TQ_TESTS_STATE_SUPPORT_H
#define TQ_TESTS_STATE_SUPPORT_H

#include "engine.h"
#include "gen_model.h"
#include "scheme_files.h"
#include "snapshot.h"
#include "unit/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_MAX_FILE ((size_t)64 << 20)

static inline void state_ok(tqe_status st, const tqe_error *err)
{
    if (st != TQE_OK) {
        fail_msg("%s", err->text);
    }
}

static inline tqe_model *state_model(const char *path)
{
    tqe_model *m = NULL;
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_model_load(&m, path, NULL, &err), &err);
    return m;
}

/* A tiny generated model; seed 0: the default one. */
static inline tqe_model *state_tiny(uint64_t seed, uint32_t window)
{
    gen_model g = gen_model_of(window != 0 ? "llama" : "qwen3");
    g.d_head = 64;
    g.window = window;
    g.seed += seed;
    const char *path = gen_temp_path("state.gguf");
    assert_true(gen_model_write(&g, path));
    tqe_model *m = state_model(path);
    (void)unlink(path);
    return m;
}

static inline tqe_session *state_session(const tqe_model *m, const char *kv, uint32_t n_ctx,
                                         uint32_t n_kept)
{
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_session_params p = {.n_ctx = n_ctx, .n_threads = 1, .kv = kv, .n_kept = n_kept};
    state_ok(tqe_session_create(&s, m, &p, &err), &err);
    return s;
}

static inline void state_tokens(int32_t *ids, size_t n, uint64_t seed, const tqe_model *m)
{
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    for (size_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(test_random(&seed) % info.n_vocab);
    }
}

static inline void state_eval(tqe_session *s, const int32_t *ids, size_t n)
{
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_session_eval(s, ids, n, NULL, NULL, NULL, &err), &err);
}

/* Logits of the last token, own copy. */
static inline float *state_logits(const tqe_session *s, const tqe_model *m)
{
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    float *x = malloc(info.n_vocab * sizeof(*x));
    assert_non_null(x);
    assert_non_null(tqe_session_logits(s));
    memcpy(x, tqe_session_logits(s), info.n_vocab * sizeof(*x));
    return x;
}

/* Equal logits, bit for bit. want is freed. */
static inline void state_same(const tqe_session *s, float *want, const tqe_model *m,
                              const char *what)
{
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    assert_non_null(tqe_session_logits(s));
    if (memcmp(tqe_session_logits(s), want, info.n_vocab * sizeof(*want)) != 0) {
        fail_msg("%s: other logits", what);
    }
    free(want);
}

static inline uint8_t *state_read(const char *path, size_t *n)
{
    uint8_t *p = malloc(STATE_MAX_FILE);
    assert_non_null(p);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *n = fread(p, 1, STATE_MAX_FILE, f);
    (void)fclose(f);
    return p;
}

static inline void state_write(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A path in the temporary folder, own copy. */
static inline char *state_path(const char *name)
{
    char *p = strdup(gen_temp_path(name));
    assert_non_null(p);
    return p;
}

/* Means of keys for m: around `size`, 0: all zero. */
static inline void state_write_kmean(const char *path, const tqe_model *m, float size)
{
    tqe_model_info info;
    tqe_error err = {TQE_OK, ""};
    char name[65];
    tqe_model_get_info(m, &info);
    const tqe_kmean_shape shape = {info.n_layers, info.n_kv_heads, info.d_k};
    const size_t n = (size_t)shape.n_layers * shape.n_kv_heads * shape.d_k;
    float *mean = malloc(n * sizeof(*mean));
    uint64_t seed = 17;
    assert_non_null(mean);
    for (size_t i = 0; i < n; i++) {
        mean[i] = size * ((float)(test_random(&seed) % 2001) / 1000.0f - 1.0f);
    }
    state_ok(tqe_model_fingerprint_text(m, name, &err), &err);
    state_ok(tqe_kmean_write(path, mean, &shape, name, "a test", &err), &err);
    free(mean);
}

/* Of layers 0, 1, 2 ... of m: these schemes, over and over. */
static inline void state_write_layers(const char *path, const tqe_model *m,
                                      const char *const *texts, size_t n_texts)
{
    tqe_model_info info;
    tqe_error err = {TQE_OK, ""};
    tq_scheme s[TQE_MAX_LAYERS];
    tqe_model_get_info(m, &info);
    for (uint32_t i = 0; i < info.n_layers; i++) {
        assert_int_equal(tq_scheme_parse(&s[i], texts[i % n_texts], NULL, 0), TQ_OK);
    }
    state_ok(tqe_layers_write(path, s, info.n_layers, NULL, &err), &err);
}

/* Files of a folder that end with `end` ("": all); last: NULL or gets the last name seen. */
static inline size_t state_count(const char *dir, const char *end, char *last)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        const size_t len = strlen(e->d_name), m = strlen(end);
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || len < m ||
            strcmp(e->d_name + len - m, end) != 0) {
            continue;
        }
        n++;
        if (last != NULL) {
            (void)snprintf(last, 256, "%s", e->d_name);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return n;
}

static inline int state_remove_one(const char *path, const struct stat *sb, int flag,
                                   struct FTW *ftw)
{
    (void)sb;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* A folder with all that is in it. */
static inline void state_remove_tree(const char *dir)
{
    assert_int_equal(nftw(dir, state_remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* Empty and remove a flat folder. */
static inline void state_remove(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        char path[1024];
        (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        (void)unlink(path);
    }
    if (d != NULL) {
        (void)closedir(d);
        (void)rmdir(dir);
    }
}

#endif
