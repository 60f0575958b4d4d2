/* SPDX-License-Identifier: MIT */
/* test_prefix.c — a hit computes to the same bits as a cold run, in memory and on the disk; what is
 * damaged or foreign is set aside and computed; limits hold; a sick disk costs time and nothing
 * else. */
#include "state_support.h"

#include <sys/resource.h>
#include <ftw.h>
#include <sys/wait.h>

#include <signal.h>

static const char *const schemes[] = {
    "f32",
    "f16",
    "bf16",
    "turbo:k8v3",
    "turbo:k4v2",
    "turbo8",
    "turbo4",
    "tcq3",
    "tcq5v4",
    "affine4",
    "mse3",
    "prod3",
    "turbo4,mean",
    "turbo:k8v3,attn=dequant",
    "tcq4,tail=64",
    "tcq3,sink=4,tail=20",
    "turbo4,sink=70",
    "turbo:k8v3,skip=1",
    "turbo4,start=100",
    "turbo4,start=500",
    "affine4,skip=1,sink=3,tail=130,start=40",
};

static tqe_model *bundled, *tiny;
static char *dir;

static int setup(void **state)
{
    (void)state;
    bundled = state_model(TQ_MODELS_DIR "/tiny-qwen3-28m.q8_0.gguf");
    tiny = state_tiny(0, 0);
    dir = state_path("prefix");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(bundled);
    tqe_model_free(tiny);
    free(dir);
    return 0;
}

static tqe_prefix *open_store(const char *folder, uint64_t limit, const char *salt)
{
    tqe_prefix *p = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_prefix_params params = {.dir = folder,
                                      .limit_bytes = limit,
                                      .salt = salt,
                                      .salt_bytes = salt != NULL ? strlen(salt) : 0,
                                      .every_pages = 2};
    state_ok(tqe_prefix_create(&p, &params, &err), &err);
    return p;
}

/* Run a prompt; returns what was reused. The store's files are complete afterwards. */
static size_t prompt(tqe_session *s, tqe_prefix *p, const int32_t *ids, size_t n)
{
    size_t reused = SIZE_MAX;
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_session_prompt(s, p, ids, n, NULL, NULL, &reused, &err), &err);
    assert_int_equal(tqe_session_len(s), n);
    assert_memory_equal(tqe_session_tokens(s), ids, n * sizeof(*ids));
    tqe_prefix_flush(p);
    return reused;
}

static void no_problem(tqe_prefix *p)
{
    tqe_error err;
    if (tqe_prefix_problem(p, &err)) {
        fail_msg("%s", err.text);
    }
}

/* Cold with a store, then a hit in a fresh session and store: equal logits now and after more. */
static void hit_is_cold(const tqe_model *m, const char *kv, size_t n)
{
    int32_t ids[640];
    state_remove(dir);
    state_tokens(ids, n + 4, n, m);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *cold = state_session(m, kv, 640, 0);
    assert_int_equal(prompt(cold, p, ids, n), 0);
    no_problem(p);
    tqe_prefix_free(p);

    p = open_store(dir, 0, NULL);
    tqe_session *hit = state_session(m, kv, 640, 0);
    int32_t other[640];
    state_tokens(other, 640, 5, m);
    state_eval(hit, other, 100); /* a history that must not shine through */
    assert_int_equal(prompt(hit, p, ids, n), (n - 1) / 64 * 64);
    no_problem(p);
    state_same(hit, state_logits(cold, m), m, kv);
    state_eval(cold, ids + n, 4);
    state_eval(hit, ids + n, 4);
    state_same(hit, state_logits(cold, m), m, kv);

    /* Another continuation of the same beginning, at an end in the middle. */
    if (n > 148) {
        for (size_t i = 140; i < n; i++) {
            ids[i] = other[i];
        }
        tqe_session *fork = state_session(m, kv, 640, 0);
        assert_int_equal(prompt(fork, p, ids, n), 128);
        tqe_prefix *none = open_store(NULL, 0, NULL);
        tqe_session *alone = state_session(m, kv, 640, 0);
        assert_int_equal(prompt(alone, none, ids, n), 0);
        state_same(fork, state_logits(alone, m), m, kv);
        tqe_prefix_free(none);
        tqe_session_free(fork);
        tqe_session_free(alone);
    }
    tqe_prefix_free(p);
    tqe_session_free(cold);
    tqe_session_free(hit);
    state_remove(dir);
}

/* test_contract.c has all schemes on the bundled model, with shorter prompts. */
static void test_every_scheme(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        hit_is_cold(i % 7 == 3 ? bundled : tiny, schemes[i], 150 + i);
    }
}

static void test_lengths(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 63, 64, 65, 66, 127, 128, 129, 193, 256, 257, 512, 600};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        hit_is_cold(tiny, "turbo:k8v3", lengths[i]);
    }
    tqe_model *windowed = state_tiny(0, 40);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        hit_is_cold(windowed, "turbo:k8v3", lengths[i]);
    }
    tqe_model_free(windowed);
}

/* ---- Memory --------------------------------------------------------------------------------- */

static void test_memory(void **state)
{
    (void)state;
    int32_t a[300], b[300];
    tqe_prefix *p = open_store(NULL, 0, NULL), *q = open_store(NULL, 0, "another tenant");
    tqe_session *s = state_session(tiny, "turbo5", 320, 2000);
    state_tokens(a, 300, 1, tiny);
    memcpy(b, a, sizeof(b));
    state_tokens(b + 170, 130, 2, tiny);
    assert_int_equal(prompt(s, p, a, 300), 0);
    float *of_a = state_logits(s, tiny);
    assert_int_equal(prompt(s, p, b, 300), 170); /* at any token, from the running timeline */
    state_eval(s, b, 5);
    assert_int_equal(prompt(s, p, a, 300), 299); /* kept, though the session went elsewhere */
    tqe_session_info info;
    tqe_session_get_info(s, &info);
    /* One token alone against a batch: equal within what ggml's kernels differ by. */
    const float *x = tqe_session_logits(s);
    float worst = 0;
    for (int i = 0; i < 100; i++) {
        worst = fmaxf(worst, fabsf(x[i] - of_a[i]));
    }
    assert_true(worst < 2e-3f);
    free(of_a);
    /* Another tenant gets nothing of it, apart from what runs: that is cleared. */
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_int_equal(prompt(s, q, a, 300), 0);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_int_equal(prompt(s, p, b, 300), 299);
    tqe_prefix_stats stats;
    tqe_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_prompts, 4);
    assert_int_equal(stats.n_memory_hits, 2);
    assert_int_equal(stats.n_reused, 170 + 299 + 299);
    tqe_session_free(s);
    tqe_prefix_free(p);
    tqe_prefix_free(q);
}

/* A hit in memory is the cold run at equal batches: the shared part was computed alike. */
static void test_memory_is_cold(void **state)
{
    (void)state;
    int32_t ids[300];
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 300, 1, tiny);
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        tqe_prefix *p = open_store(NULL, 0, NULL);
        tqe_session *s = state_session(tiny, schemes[i], 320, 2000);
        (void)prompt(s, p, ids, 200);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_int_equal(prompt(s, p, ids, 210), 200);
        tqe_session *t = state_session(tiny, schemes[i], 320, 0);
        state_eval(t, ids, 128);
        state_eval(t, ids + 128, 64);
        state_eval(t, ids + 192, 8);
        state_eval(t, ids + 200, 10);
        state_same(s, state_logits(t, tiny), tiny, schemes[i]);
        tqe_session_free(s);
        tqe_session_free(t);
        tqe_prefix_free(p);
    }
}

/* Many prompts in little room: old ones go, the context always fits. */
static void test_memory_limit(void **state)
{
    (void)state;
    int32_t ids[256];
    tqe_error err = {TQE_OK, ""};
    tqe_prefix *p = open_store(NULL, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4", 256, 600);
    for (uint64_t i = 0; i < 100; i++) {
        state_tokens(ids, 256, 100 + i, tiny);
        assert_true(prompt(s, p, ids, 256) < 4); /* random prompts may begin alike */
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        if (i > 0) {
            int32_t before[256];
            state_tokens(before, 256, 99 + i, tiny);
            assert_int_equal(prompt(s, p, before, 256), 255);
            state_ok(tqe_session_truncate(s, 0, &err), &err);
        }
    }
    state_tokens(ids, 256, 100, tiny);
    assert_true(prompt(s, p, ids, 256) < 4); /* forgotten long ago */
    tqe_session_free(s);
    tqe_prefix_free(p);
}

/* ---- Disk ----------------------------------------------------------------------------------- */

static void damage(const char *name, size_t off)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    size_t n = 0;
    uint8_t *p = state_read(path, &n);
    p[off % n] ^= 1;
    state_write(path, p, n);
    free(p);
}

static void test_damaged_pages(void **state)
{
    (void)state;
    int32_t ids[330];
    state_tokens(ids, 330, 1, tiny);
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4", 400, 0);
    (void)prompt(s, p, ids, 330);
    float *want = state_logits(s, tiny);
    tqe_prefix_free(p);
    assert_int_equal(state_count(dir, ".page", NULL), 5);
    uint64_t seed = 4;
    for (int round = 0; round < 200; round++) {
        char name[256];
        tqe_error err = {TQE_OK, ""};
        tqe_model_info info;
        tqe_model_get_info(tiny, &info);
        (void)state_count(dir, ".page", name);
        damage(name, test_random(&seed));
        p = open_store(dir, 0, NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_true(prompt(s, p, ids, 330) < 320);
        assert_memory_equal(tqe_session_logits(s), want, info.n_vocab * sizeof(*want));
        assert_true(tqe_prefix_problem(p, &err));
        assert_non_null(strstr(err.text, "set aside"));
        assert_int_equal(state_count(dir, ".page", NULL), 5); /* computed and stored again */
        assert_true(state_count(dir, ".bad", NULL) > 0);
        tqe_prefix_free(p);
    }
    free(want);
    tqe_session_free(s);
    state_remove(dir);
}

/* A page under another page's name, of another model, of another scheme: each says what it is. */
static void test_foreign_pages(void **state)
{
    (void)state;
    int32_t ids[330];
    char first[256], second[256] = "", a[600], b[600];
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 330, 1, tiny);
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4", 400, 0);
    (void)prompt(s, p, ids, 330);
    float *want = state_logits(s, tiny);
    (void)state_count(dir, ".page", first);
    DIR *d = opendir(dir);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (strstr(e->d_name, ".page") != NULL && strcmp(e->d_name, first) != 0) {
            (void)snprintf(second, sizeof(second), "%s", e->d_name);
        }
    }
    (void)closedir(d);
    (void)snprintf(a, sizeof(a), "%s/%.200s", dir, first);
    (void)snprintf(b, sizeof(b), "%s/%.200s", dir, second);
    size_t n = 0;
    uint8_t *bytes = state_read(a, &n);
    state_write(b, bytes, n);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_true(prompt(s, p, ids, 330) < 320);
    assert_true(tqe_prefix_problem(p, &err));
    assert_non_null(strstr(err.text, "another key"));
    state_same(s, want, tiny, "foreign page");
    free(bytes);
    tqe_session_free(s);

    /* PITFALL 44: other schemes, models and salts never even look at these files. */
    s = state_session(tiny, "turbo4v3", 400, 0);
    assert_int_equal(prompt(s, p, ids, 330), 0);
    tqe_session_free(s);
    tqe_model *other = state_tiny(3, 0);
    s = state_session(other, "turbo4", 400, 0);
    assert_int_equal(prompt(s, p, ids, 330), 0);
    tqe_session_free(s);
    tqe_model_free(other);
    tqe_prefix_free(p);
    p = open_store(dir, 0, "salt");
    s = state_session(tiny, "turbo4", 400, 0);
    assert_int_equal(prompt(s, p, ids, 330), 0);
    tqe_session_free(s);
    no_problem(p);
    tqe_prefix_free(p);
    state_remove(dir);
}

/* The files of a store are no snapshots, though they look alike. */
static void test_pages_are_no_snapshots(void **state)
{
    (void)state;
    int32_t ids[200];
    float rows[64];
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 200, 1, tiny);
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4,tail=70", 200, 0);
    (void)prompt(s, p, ids, 200);
    tqe_prefix_free(p);
    DIR *d = opendir(dir);
    size_t n = 0;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[1024];
        tqe_snapshot *f = NULL;
        if (e->d_name[0] == '.') {
            continue;
        }
        (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        state_ok(tqe_snapshot_open(&f, path, &err), &err);
        state_ok(tqe_snapshot_verify(f, &err), &err);
        assert_int_equal(tqe_snapshot_rows(f, 0, 0, 0, rows, &err), TQE_ERR_UNSUPPORTED);
        tqe_snapshot_close(f);
        assert_int_equal(tqe_session_load(s, path, &err), TQE_ERR_FORMAT);
        assert_non_null(strstr(err.text, "prefix store"));
        assert_int_equal(tqe_session_len(s), 200);
        n++;
    }
    (void)closedir(d);
    assert_int_equal(n, 3 + 2); /* three pages, ends after two and three */
    tqe_session_free(s);
    state_remove(dir);
}

/* Names of pages, [cap][128]. */
static size_t page_names(char names[][128], size_t cap)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        const size_t len = strlen(e->d_name);
        if (len > 5 && len < 128 && strcmp(e->d_name + len - 5, ".page") == 0) {
            assert_true(n < cap);
            memcpy(names[n++], e->d_name, len + 1);
        }
    }
    (void)closedir(d);
    return n;
}

/* However many files are bad, and wherever: one prompt mends all. */
static void all_mended(const char *kv)
{
    int32_t ids[330];
    char names[8][128];
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 330, 1, tiny);
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, kv, 400, 0);
    (void)prompt(s, p, ids, 330);
    tqe_prefix_free(p);
    const size_t n_pages = page_names(names, 8), n_ends = state_count(dir, ".end", NULL);
    assert_int_equal(n_pages, 5);
    for (uint32_t which = 1; which < 32; which++) {
        for (size_t i = 0; i < n_pages; i++) {
            if ((which >> i & 1) != 0) {
                damage(names[i], 3000 + i);
            }
        }
        p = open_store(dir, 0, NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_true(prompt(s, p, ids, 330) < 320);
        assert_true(tqe_prefix_problem(p, &err));
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_int_equal(prompt(s, p, ids, 330), 320);
        no_problem(p);
        tqe_prefix_free(p);
    }
    assert_int_equal(state_count(dir, ".end", NULL), n_ends);
    tqe_session_free(s);
    state_remove(dir);
}

static void test_all_mended(void **state)
{
    (void)state;
    all_mended("turbo4");
    all_mended("turbo4,tail=20");
}

static void put_le64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

/* A size alone makes nobody read: 2 GB without a byte in them, whose header says so or does not, or
 * has a table of that size. */
static void test_large_pages(void **state)
{
    (void)state;
    const uint64_t large = (uint64_t)2 << 30;
    int32_t ids[100];
    char names[1][128], path[1024];
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 100, 1, tiny);
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4", 200, 0);
    (void)prompt(s, p, ids, 100);
    tqe_prefix_free(p);
    assert_int_equal(page_names(names, 1), 1);
    (void)snprintf(path, sizeof(path), "%s/%s", dir, names[0]);
    size_t n = 0;
    uint8_t *page = state_read(path, &n);
    for (int how = 0; how < 3; how++) {
        uint8_t *b = malloc(n);
        assert_non_null(b);
        memcpy(b, page, n);
        if (how > 0) {
            put_le64(b + 24, large);
        }
        if (how == 2) {
            const uint64_t n_parts = 2 * 1024 * 1024 / 64 * 1024, old = b[48];
            put_le64(b + 16, ((uint64_t)b[16] | (uint64_t)b[17] << 8) +
                                 ((n_parts * 48 + 63) & ~63ull) - ((old * 48 + 63) & ~63ull));
            b[48] = 0;
            b[50] = (uint8_t)(n_parts >> 16);
            b[51] = (uint8_t)(n_parts >> 24);
        }
        state_write(path, b, n);
        free(b);
        assert_int_equal(truncate(path, (off_t)large), 0);
        struct rusage before, after;
        p = open_store(dir, (uint64_t)8 << 30, NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
        assert_int_equal(prompt(s, p, ids, 100), 0);
        assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
        assert_true(after.ru_maxrss - before.ru_maxrss < 200 * 1024); /* KiB */
        assert_true(tqe_prefix_problem(p, &err));
        const char *want = how == 0 ? "file length" : how == 1 ? "damaged" : "parts";
        if (strstr(err.text, "set aside") == NULL || strstr(err.text, want) == NULL) {
            fail_msg("%d: '%s'", how, err.text);
        }
        tqe_prefix_free(p);
        size_t n_now = 0;
        uint8_t *now = state_read(path, &n_now);
        assert_int_equal(n_now, n); /* stored again */
        assert_memory_equal(now, page, n);
        free(now);
    }
    free(page);
    tqe_session_free(s);
    state_remove(dir);
}

static int remove_one(const char *path, const struct stat *sb, int flag, struct FTW *ftw)
{
    (void)sb;
    (void)flag;
    (void)ftw;
    return remove(path);
}

/* A folder, a pipe, links and a device under the name of a page: said, moved away, and the page is
 * stored again; twice, so that the name aside is taken by what cannot be replaced. */
static void test_no_files(void **state)
{
    (void)state;
    enum { FOLDER, PIPE, DANGLING, TO_FILE, TO_FOLDER, DEVICE, FULL_FOLDER, KINDS };
    int32_t ids[130];
    char names[2][128], path[1024], inside[1100];
    tqe_error err = {TQE_OK, ""};
    state_tokens(ids, 130, 1, tiny);
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4", 200, 0);
    (void)prompt(s, p, ids, 130);
    float *want = state_logits(s, tiny);
    tqe_prefix_free(p);
    assert_int_equal(page_names(names, 2), 2);
    for (int round = 0; round < 2 * KINDS; round++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[round & 1]);
        assert_int_equal(unlink(path), 0);
        int made = 0;
        switch (round % KINDS) {
        case FOLDER:
            made = mkdir(path, 0700);
            break;
        case PIPE:
            made = mkfifo(path, 0600);
            break;
        case DANGLING:
            made = symlink("/nonexistent/file", path);
            break;
        case TO_FILE:
            made = symlink("/proc/self/exe", path);
            break;
        case TO_FOLDER:
            made = symlink("/", path);
            break;
        case DEVICE:
            made = mknod(path, S_IFCHR | 0600, (1 << 8) | 5);
            break; /* zeros for ever */
        default:
            made = mkdir(path, 0700);
            (void)snprintf(inside, sizeof(inside), "%s/file", path);
            state_write(inside, (const uint8_t *)"x", 1);
        }
        if (made != 0 && round % KINDS == DEVICE && geteuid() != 0) {
            continue;
        }
        assert_int_equal(made, 0);
        p = open_store(dir, 0, NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_true(prompt(s, p, ids, 130) < 128);
        state_same(s, want, tiny, "no file");
        want = state_logits(s, tiny);
        assert_true(tqe_prefix_problem(p, &err));
        if (strstr(err.text, "set aside as .bad and computed again: it is not a regular") == NULL) {
            fail_msg("round %d: '%s'", round, err.text);
        }
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_int_equal(prompt(s, p, ids, 130), 128); /* stored again */
        no_problem(p);
        tqe_prefix_free(p);
    }
    free(want);
    tqe_session_free(s);
    assert_int_equal(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static uint64_t folder_bytes(void)
{
    uint64_t total = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        struct stat sb;
        if (fstatat(dirfd(d), e->d_name, &sb, 0) == 0 && S_ISREG(sb.st_mode)) {
            total += (uint64_t)sb.st_size;
        }
    }
    (void)closedir(d);
    return total;
}

static void test_disk_limit(void **state)
{
    (void)state;
    int32_t ids[330];
    const uint64_t limit = 600000;
    state_remove(dir);
    tqe_prefix *p = open_store(dir, limit, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    for (uint64_t i = 0; i < 30; i++) {
        state_tokens(ids, 330, 10 + i, tiny);
        assert_int_equal(prompt(s, p, ids, 330), 0);
        assert_true(folder_bytes() <= limit);
    }
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_true(prompt(s, p, ids, 330) > 0); /* the newest is there */
    tqe_prefix_stats stats;
    tqe_prefix_get_stats(p, &stats);
    assert_true(stats.n_evicted > 0);
    no_problem(p);
    tqe_prefix_free(p);
    p = open_store(dir, limit / 3, NULL); /* a smaller limit holds from the start */
    assert_true(folder_bytes() <= limit / 3);
    tqe_prefix_free(p);
    tqe_session_free(s);
    state_remove(dir);
}

/* A limit that no page fits: said once, with the value that would do, which does. */
static void test_tiny_limit(void **state)
{
    (void)state;
    static const uint64_t limits[] = {1, 1024};
    int32_t ids[330];
    tqe_error err = {TQE_OK, ""};
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_tokens(ids, 330, 1, tiny);
    for (size_t i = 0; i < 2; i++) {
        state_remove(dir);
        tqe_prefix *p = open_store(dir, limits[i], NULL);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        assert_int_equal(prompt(s, p, ids, 330), 0);
        assert_true(tqe_prefix_problem(p, &err));
        assert_non_null(strstr(err.text, i == 0 ? "limit of 1 bytes" : "limit of 1024 bytes"));
        assert_int_equal(folder_bytes(), 0);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        (void)prompt(s, p, ids, 330);
        no_problem(p);
        tqe_prefix_free(p);
    }
    tqe_prefix *p = open_store(dir, limits[0], NULL);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    (void)prompt(s, p, ids, 330);
    assert_true(tqe_prefix_problem(p, &err));
    tqe_prefix_free(p);
    const char *least = strstr(err.text, "stored; ");
    assert_non_null(least);
    p = open_store(dir, strtoull(least + 8, NULL, 10), NULL);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    (void)prompt(s, p, ids, 65);
    no_problem(p);
    assert_int_equal(state_count(dir, ".page", NULL), 1);
    tqe_prefix_free(p);
    tqe_session_free(s);
    state_remove(dir);
}

/* The limit is the folder's: three processes that each store less than it store more together. */
static void test_shared_limit(void **state)
{
    (void)state;
    enum { PROCESSES = 3, N = 330 };
    int32_t ids[N];
    tqe_error err = {TQE_OK, ""};
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    state_tokens(ids, N, 1, tiny);
    (void)prompt(s, p, ids, N);
    tqe_prefix_free(p);
    const uint64_t one = folder_bytes(), page = one / 5, limit = 2 * one;
    state_remove(dir);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    int pipes[2];
    char byte = 0;
    assert_int_equal(pipe(pipes), 0);
    (void)fflush(NULL);
    pid_t child[PROCESSES];
    for (int c = 0; c < PROCESSES; c++) {
        child[c] = fork();
        if (child[c] == 0) {
            tqe_prefix *q = NULL;
            const tqe_prefix_params params = {.dir = dir, .limit_bytes = limit};
            int bad = tqe_prefix_create(&q, &params, &err) != TQE_OK;
            (void)close(pipes[1]);
            bad = bad || read(pipes[0], &byte, 1) != 0; /* all have opened it empty */
            state_tokens(ids, N, 50 + (uint64_t)c, tiny);
            bad = bad || tqe_session_prompt(s, q, ids, N, NULL, NULL, NULL, &err) != TQE_OK;
            tqe_prefix_free(q);
            _exit(bad);
        }
    }
    (void)usleep(200000);
    (void)close(pipes[1]);
    for (int c = 0; c < PROCESSES; c++) {
        int status = 0;
        assert_int_equal(waitpid(child[c], &status, 0), child[c]);
        assert_int_equal(status, 0);
    }
    (void)close(pipes[0]);
    if (folder_bytes() > limit + PROCESSES * page || folder_bytes() < limit / 2) {
        fail_msg("%llu bytes, limit %llu", (unsigned long long)folder_bytes(),
                 (unsigned long long)limit);
    }
    tqe_session_free(s);
    state_remove(dir);
}

/* A queue that holds one page: pages are dropped, nothing waits, and what was written is good. */
static void test_full_queue(void **state)
{
    (void)state;
    int32_t ids[640];
    tqe_error err = {TQE_OK, ""};
    state_remove(dir);
    tqe_prefix *p = NULL;
    const tqe_prefix_params params = {.dir = dir, .queue_bytes = 1};
    state_ok(tqe_prefix_create(&p, &params, &err), &err);
    tqe_session *s = state_session(tiny, "f16", 700, 0);
    state_tokens(ids, 640, 1, tiny);
    assert_int_equal(prompt(s, p, ids, 640), 0);
    tqe_prefix_stats stats;
    tqe_prefix_get_stats(p, &stats);
    assert_int_equal(stats.n_dropped, 9);
    assert_int_equal(stats.n_written, 0);
    tqe_prefix_free(p);
    tqe_session_free(s);
    state_remove(dir);
}

/* Writing fails in some way: said once, and the prompt is what it is without a store. */
static void sick(const char *word, void (*begin)(void), void (*end)(void))
{
    int32_t ids[330];
    tqe_error err = {TQE_OK, ""};
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_tokens(ids, 330, 1, tiny);
    begin();
    assert_int_equal(prompt(s, p, ids, 330), 0);
    end();
    assert_true(tqe_prefix_problem(p, &err));
    if (strstr(err.text, word) == NULL) {
        fail_msg("'%s' does not say '%s'", err.text, word);
    }
    tqe_prefix *none = open_store(NULL, 0, NULL);
    tqe_session *alone = state_session(tiny, "f16", 400, 0);
    (void)prompt(alone, none, ids, 330);
    state_same(s, state_logits(alone, tiny), tiny, word);
    tqe_prefix_free(none);
    tqe_prefix_free(p);
    tqe_session_free(alone);
    tqe_session_free(s);
    assert_int_equal(state_count(dir, ".tmp", NULL), 0);
    state_remove(dir);
}

static struct rlimit old_limit;

static void begin_full(void)
{
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
    const struct rlimit small = {.rlim_cur = 5000, .rlim_max = old_limit.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
}
static void end_full(void)
{
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
}
static void begin_vanish(void)
{
    state_remove(dir);
}
static void end_vanish(void) {}

static void test_sick_disk(void **state)
{
    (void)state;
    sick("File too large", begin_full, end_full);
    sick("No such file", begin_vanish, end_vanish);
    tqe_prefix *p = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_prefix_params nowhere = {.dir = "/nonexistent/folder"};
    assert_int_equal(tqe_prefix_create(&p, &nowhere, &err), TQE_ERR_IO);
    assert_null(p);
    assert_non_null(strstr(err.text, "/nonexistent/folder"));
    const tqe_prefix_params no_folder = {.dir = "/dev/null"};
    assert_int_equal(tqe_prefix_create(&p, &no_folder, &err), TQE_ERR_IO);
}

/* A folder that only its owner may write: another user reads hits from it and says what it cannot
 * do. Root may write anywhere, so it becomes that other user. */
static void test_read_only_folder(void **state)
{
    (void)state;
    int32_t ids[330];
    if (geteuid() != 0) {
        skip();
    }
    state_remove(dir);
    tqe_prefix *p = open_store(dir, 0, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_tokens(ids, 330, 1, tiny);
    (void)prompt(s, p, ids, 200);
    tqe_prefix_free(p);
    DIR *d = opendir(dir);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        (void)fchmodat(dirfd(d), e->d_name, 0644, 0);
    }
    (void)closedir(d);
    assert_int_equal(chmod(dir, 0555), 0);
    char *parent = strdup(dir);
    *strrchr(parent, '/') = '\0';
    assert_int_equal(chmod(parent, 0755), 0);
    free(parent);
    tqe_session *fresh = state_session(tiny, "f16", 400, 0);
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        tqe_prefix *q = NULL;
        tqe_error err = {TQE_OK, ""};
        size_t reused = 0;
        const tqe_prefix_params params = {.dir = dir};
        int bad = setuid(65534) != 0 || tqe_prefix_create(&q, &params, &err) != TQE_OK ||
                  tqe_session_prompt(fresh, q, ids, 330, NULL, NULL, &reused, &err) != TQE_OK;
        if (!bad) {
            tqe_prefix_flush(q);
            bad = (reused != 192) | !tqe_prefix_problem(q, &err) << 1 |
                  (strstr(err.text, "Permission denied") == NULL) << 2;
        }
        char below[600];
        (void)snprintf(below, sizeof(below), "%s/store", dir);
        const tqe_prefix_params new_one = {.dir = below};
        tqe_prefix *none = NULL;
        if (tqe_prefix_create(&none, &new_one, &err) != TQE_ERR_IO ||
            strstr(err.text, "Permission denied") == NULL) { /* why it cannot be made */
            bad |= 8;
        }
        _exit(bad);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    tqe_session_free(s);
    tqe_session_free(fresh);
    assert_int_equal(chmod(dir, 0755), 0);
    state_remove(dir);
}

/* Three processes in one folder that holds less than they store: each evicts what the others are
 * about to read, and every answer is still right. */
static void test_shared_folder(void **state)
{
    (void)state;
    enum { PROCESSES = 3, PROMPTS = 6, ROUNDS = 20, N = 200 };
    int32_t ids[PROMPTS][N];
    float *want[PROMPTS];
    tqe_model_info info;
    tqe_error err = {TQE_OK, ""};
    tqe_model_get_info(tiny, &info);
    tqe_prefix *none = open_store(NULL, 0, NULL);
    tqe_session *s = state_session(tiny, "turbo4,tail=20", N, 0);
    for (uint64_t i = 0; i < PROMPTS; i++) {
        state_tokens(ids[i], N, i, tiny);
        (void)prompt(s, none, ids[i], N);
        want[i] = state_logits(s, tiny);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
    }
    state_remove(dir);
    (void)fflush(NULL);
    pid_t child[PROCESSES];
    for (int c = 0; c < PROCESSES; c++) {
        child[c] = fork();
        if (child[c] == 0) {
            tqe_prefix *p = NULL;
            const tqe_prefix_params params = {.dir = dir, .limit_bytes = 300000, .every_pages = 1};
            uint64_t seed = (uint64_t)c;
            int bad = tqe_prefix_create(&p, &params, &err) != TQE_OK;
            for (int r = 0; r < ROUNDS && !bad; r++) {
                const uint64_t i = test_random(&seed) % PROMPTS;
                bad = tqe_session_truncate(s, 0, &err) != TQE_OK ||
                      tqe_session_prompt(s, p, ids[i], N, NULL, NULL, NULL, &err) != TQE_OK ||
                      memcmp(tqe_session_logits(s), want[i], info.n_vocab * sizeof(float)) != 0 ||
                      tqe_prefix_problem(p, &err);
            }
            tqe_prefix_free(p);
            _exit(bad);
        }
    }
    for (int c = 0; c < PROCESSES; c++) {
        int status = 0;
        assert_int_equal(waitpid(child[c], &status, 0), child[c]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(state_count(dir, ".bad", NULL), 0);
    assert_int_equal(state_count(dir, ".tmp", NULL), 0);
    for (int i = 0; i < PROMPTS; i++) {
        free(want[i]);
    }
    tqe_session_free(s);
    tqe_prefix_free(none);
    state_remove(dir);
}

typedef struct stopper {
    size_t calls, at;
} stopper;

static bool stop_at(void *ctx, size_t n_done, size_t n_total)
{
    stopper *w = ctx;
    assert_true(n_done <= n_total);
    return ++w->calls != w->at;
}

static void test_cancel_and_arguments(void **state)
{
    (void)state;
    int32_t ids[401];
    tqe_error err = {TQE_OK, ""};
    size_t reused = 0;
    tqe_prefix *p = open_store(NULL, 0, NULL);
    tqe_session *s = state_session(tiny, "f16", 400, 0);
    state_tokens(ids, 401, 1, tiny);
    stopper w = {0, 2};
    assert_int_equal(tqe_session_prompt(s, p, ids, 330, stop_at, &w, &reused, &err),
                     TQE_ERR_CANCELLED);
    assert_int_equal(tqe_session_len(s), 256);
    w = (stopper){0, 0};
    assert_int_equal(tqe_session_prompt(s, p, ids, 330, stop_at, &w, &reused, &err), TQE_OK);
    assert_int_equal(reused, 256);
    assert_int_equal(tqe_session_prompt(s, p, ids, 401, NULL, NULL, NULL, &err), TQE_ERR_FULL);
    assert_int_equal(tqe_session_prompt(s, p, ids, 0, NULL, NULL, NULL, &err), TQE_ERR_ARG);
    ids[3] = -1;
    assert_int_equal(tqe_session_prompt(s, p, ids, 330, NULL, NULL, NULL, &err), TQE_ERR_ARG);
    assert_int_equal(tqe_session_len(s), 330);
    tqe_session_free(s);
    tqe_prefix_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scheme),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_is_cold),
        cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_damaged_pages),
        cmocka_unit_test(test_foreign_pages),
        cmocka_unit_test(test_pages_are_no_snapshots),
        cmocka_unit_test(test_all_mended),
        cmocka_unit_test(test_large_pages),
        cmocka_unit_test(test_no_files),
        cmocka_unit_test(test_disk_limit),
        cmocka_unit_test(test_tiny_limit),
        cmocka_unit_test(test_shared_limit),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_sick_disk),
        cmocka_unit_test(test_read_only_folder),
        cmocka_unit_test(test_shared_folder),
        cmocka_unit_test(test_cancel_and_arguments),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
