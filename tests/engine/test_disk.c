/* SPDX-License-Identifier: MIT */
/* test_disk.c — stored state on a file system that is really full, really read-only, or taken away.
 *
 * A small tmpfs is mounted in a mount namespace of this process, so that nothing of it is seen
 * outside or stays. Where neither root nor a user namespace may do that, the test says so and is
 * skipped; test_snapshot.c and test_prefix_folder.c have what can be had without.
 */
#include "state_support.h"

#include <sched.h>
#include <sys/mount.h>

enum { N_CTX = 400, N_IDS = 330, DISK_BYTES = 2 << 20 };

static tqe_model *tiny;
static int32_t ids[N_IDS];
static char *disk;
static bool may_mount;

static void write_text(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!write(fd, text, strlen(text));
        (void)close(fd);
    }
}

/* A namespace in which this process may mount. */
static bool own_mounts(void)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0) {
        char users[64], groups[64];
        (void)snprintf(users, sizeof(users), "0 %u 1", (unsigned)geteuid());
        (void)snprintf(groups, sizeof(groups), "0 %u 1", (unsigned)getegid());
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
            return false;
        }
        write_text("/proc/self/setgroups", "deny");
        write_text("/proc/self/uid_map", users);
        write_text("/proc/self/gid_map", groups);
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static bool mount_disk(unsigned long flags)
{
    char options[64];
    (void)snprintf(options, sizeof(options), "size=%d", DISK_BYTES);
    return mount("tmpfs", disk, "tmpfs", flags, options) == 0;
}

static int setup(void **state)
{
    (void)state;
    disk = state_path("disk");
    may_mount = own_mounts() && mkdir(disk, 0755) == 0 && mount_disk(0);
    if (!may_mount) {
        print_message("SKIPPED: no small file system can be mounted here: %s\n", strerror(errno));
        return 0;
    }
    assert_int_equal(umount(disk), 0);
    tiny = state_tiny(0, 0);
    state_tokens(ids, N_IDS, 1, tiny);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(tiny);
    (void)rmdir(disk);
    free(disk);
    return 0;
}

static char *on_disk(const char *name)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", disk, name);
    char *own = strdup(path);
    assert_non_null(own);
    return own;
}

/* Fill the disk up to the last page; remove the file to make room again. */
static void fill_disk(const char *path)
{
    static const uint8_t zeros[4096];
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    while (write(fd, zeros, sizeof(zeros)) > 0) {
    }
    assert_int_equal(errno, ENOSPC);
    (void)close(fd);
}

static void need_mount(void)
{
    if (!may_mount) {
        skip();
    }
    assert_true(mount_disk(0));
}

static void says(const tqe_error *err, const char *word)
{
    if (strstr(err->text, word) == NULL) {
        fail_msg("'%s' does not say '%s'", err->text, word);
    }
}

static void cannot_save(tqe_session *s, const char *path, const char *word)
{
    tqe_error err = {TQE_OK, ""};
    assert_int_equal(tqe_session_save(s, path, &err), TQE_ERR_IO);
    says(&err, word);
    says(&err, path);
}

/* Saving: the older file stays whole, nothing is left behind, the session goes on. */
static void test_snapshots(void **state)
{
    (void)state;
    need_mount();
    tqe_error err = {TQE_OK, ""};
    char *path = on_disk("a.tqs"), *filler = on_disk("filler");
    tqe_session *s = state_session(tiny, "f16", N_CTX, 0);
    state_eval(s, ids, 100);
    state_ok(tqe_session_save(s, path, &err), &err);
    size_t n = 0, m = 0;
    uint8_t *before = state_read(path, &n);
    state_eval(s, ids + 100, 20);
    float *want = state_logits(s, tiny);

    fill_disk(filler);
    cannot_save(s, path, "No space left");
    cannot_save(s, filler, "No space left"); /* nor over the file that fills it */
    assert_int_equal(state_count(disk, "", NULL), 2);
    uint8_t *after = state_read(path, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    free(after);
    state_same(s, want, tiny, "a session that could not be saved");

    /* The old one is as good as ever, and with room there is a new one. */
    state_ok(tqe_session_load(s, path, &err), &err);
    assert_int_equal(tqe_session_len(s), 100);
    state_eval(s, ids + 100, 20);
    (void)unlink(filler);
    state_ok(tqe_session_save(s, path, &err), &err);

    /* Read-only: what is there can be read. */
    assert_true(mount("tmpfs", disk, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL) == 0);
    cannot_save(s, path, "Read-only file system");
    char *fresh = on_disk("b.tqs");
    cannot_save(s, fresh, "Read-only file system");
    state_ok(tqe_session_load(s, path, &err), &err);
    assert_int_equal(tqe_session_len(s), 120);
    assert_int_equal(umount(disk), 0);
    free(before);
    free(path);
    free(filler);
    free(fresh);
    tqe_session_free(s);
}

static tqe_prefix *open_store(const char *dir)
{
    tqe_prefix *p = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_prefix_params params = {.dir = dir, .every_pages = 1};
    state_ok(tqe_prefix_create(&p, &params, &err), &err);
    return p;
}

static size_t prompt(tqe_session *s, tqe_prefix *p, const int32_t *tokens, size_t n)
{
    size_t reused = SIZE_MAX;
    tqe_error err = {TQE_OK, ""};
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    state_ok(tqe_session_prompt(s, p, tokens, n, NULL, NULL, &reused, &err), &err);
    tqe_prefix_flush(p);
    return reused;
}

static void had_problem(tqe_prefix *p, const char *word)
{
    tqe_error err = {TQE_OK, ""};
    assert_true(tqe_prefix_problem(p, &err));
    says(&err, word);
    assert_false(tqe_prefix_problem(p, &err)); /* said once */
}

/* The prefix store: every prompt comes out right, pages that were written before are found, and the
 * problem is said once. */
static void test_prefix_store(void **state)
{
    (void)state;
    need_mount();
    int32_t other[N_IDS];
    char *dir = on_disk("store"), *filler = on_disk("filler");
    tqe_error err = {TQE_OK, ""};
    state_tokens(other, N_IDS, 2, tiny);
    tqe_prefix *none = NULL;
    state_ok(tqe_prefix_create(&none, &(tqe_prefix_params){.every_pages = 1}, &err), &err);
    tqe_session *s = state_session(tiny, "turbo4,tail=20", N_CTX, 0);
    (void)prompt(s, none, ids, N_IDS);
    float *want = state_logits(s, tiny);
    (void)prompt(s, none, other, N_IDS);
    float *want_other = state_logits(s, tiny);
    tqe_model_info info;
    tqe_model_get_info(tiny, &info);
    const size_t bytes = info.n_vocab * sizeof(*want);

    tqe_prefix *p = open_store(dir);
    assert_int_equal(prompt(s, p, ids, 200), 0); /* three pages and ends, while there is room */
    assert_false(tqe_prefix_problem(p, &err));
    fill_disk(filler);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(prompt(s, p, ids, N_IDS), 192);
        assert_memory_equal(tqe_session_logits(s), want, bytes);
        assert_int_equal(prompt(s, p, other, N_IDS), 0);
        assert_memory_equal(tqe_session_logits(s), want_other, bytes);
        if (round == 0) {
            had_problem(p, "No space left");
        }
    }
    assert_false(tqe_prefix_problem(p, &err));
    tqe_prefix_free(p);
    assert_int_equal(state_count(dir, ".tmp", NULL), 0);

    /* A later process, still without room, then with room. */
    p = open_store(dir);
    assert_int_equal(prompt(s, p, other, N_IDS), 0);
    had_problem(p, "No space left");
    tqe_prefix_free(p);
    (void)unlink(filler);
    p = open_store(dir);
    assert_int_equal(prompt(s, p, other, N_IDS), 0);
    assert_int_equal(prompt(s, p, other, N_IDS), 320);
    assert_memory_equal(tqe_session_logits(s), want_other, bytes);
    assert_false(tqe_prefix_problem(p, &err));
    tqe_prefix_free(p);

    /* Read-only: hits as before. */
    assert_true(mount("tmpfs", disk, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL) == 0);
    p = open_store(dir);
    assert_int_equal(prompt(s, p, ids, N_IDS), 192);
    assert_memory_equal(tqe_session_logits(s), want, bytes);
    had_problem(p, "Read-only file system");
    tqe_prefix_free(p);
    tqe_prefix *created = NULL;
    char *absent = on_disk("absent");
    assert_int_equal(tqe_prefix_create(&created, &(tqe_prefix_params){.dir = absent}, &err),
                     TQE_ERR_IO);
    says(&err, absent);
    free(absent);
    assert_true(mount("tmpfs", disk, "tmpfs", MS_REMOUNT, NULL) == 0);

    /* Taken away while it is used: the folder stays open, but no name leads to it. */
    p = open_store(dir);
    assert_int_equal(umount2(disk, MNT_DETACH), 0);
    assert_int_equal(prompt(s, p, ids, N_IDS), 192);
    assert_memory_equal(tqe_session_logits(s), want, bytes);
    tqe_prefix_free(p);
    tqe_session_free(s);
    tqe_prefix_free(none);
    free(want);
    free(want_other);
    free(dir);
    free(filler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_prefix_store),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
