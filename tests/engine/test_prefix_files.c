/* SPDX-License-Identifier: MIT */
/* test_prefix_files.c — files of a prefix store that are damaged, foreign, too large or no files at
 * all: each is set aside by name, what it held is computed to the same bits and stored again. */
#include "prefix_support.h"

#include <sys/resource.h>

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
    state_remove_tree(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_pages),
        cmocka_unit_test(test_foreign_pages),
        cmocka_unit_test(test_pages_are_no_snapshots),
        cmocka_unit_test(test_all_mended),
        cmocka_unit_test(test_large_pages),
        cmocka_unit_test(test_no_files),
    };
    return cmocka_run_group_tests(tests, prefix_setup, prefix_teardown);
}
