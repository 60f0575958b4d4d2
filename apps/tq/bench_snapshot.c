/* SPDX-License-Identifier: MIT */
/* bench_snapshot.c — `tq bench snapshot`: what saving and restoring cost, beside what they replace.
 *
 * Policy: the disk is measured beside the snapshot, in turns, on files of the same size in the same
 * folder: a plain file is written in pieces of 1 MiB and brought to the disk (fsync), and is read
 * in such pieces. Before each reading the system is told to forget the file, so that the disk is
 * measured and not memory. Ratios are taken within a round, then the median over rounds.
 * Prompts are found in a prefix store by sessions that hold nothing; what is not found, the last
 * token at least, is computed within the time. What a store costs who waits for tokens is
 * bench_stored.c's.
 */
#define _GNU_SOURCE
#include "args.h"
#include "bench.h"
#include "bench_stored.h"
#include "commands.h"
#include "engine.h"
#include "out.h"
#include "plot.h"
#include "setup.h"
#include "snapshot.h"
#include "target.h"
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ROUNDS = STORED_MAX_ROUNDS, PIECE = 1 << 20 };

typedef enum step {
    PLAIN_WRITE,
    SAVE,
    PLAIN_READ,
    LOAD,
    LOAD_AGAIN,
    FOUND_DISK,
    FOUND_MEMORY,
    N_STEPS
} step;

typedef struct bench {
    setup setup;
    const char *dir;
    const char *csv_name, *plot_name;
    arg_counts lengths;
    uint32_t n_tokens, n_rounds; /* n_tokens: of the length at work */
    bench_machine machine;
    save_file csv;
    tqe_model *model;
    tqe_session *session;
    int32_t *ids;
    uint64_t file_bytes;
    double compute_s;
    double seconds[N_STEPS][MAX_ROUNDS];
    double x[ARG_LIST_MAX], y[N_STEPS + 1][ARG_LIST_MAX]; /* of the plot; the last: computing */
    size_t n_points;
    char snapshot[4096], plain[4096];
    char *piece; /* [PIECE] */
    /* Prompts: `session` finds them on the disk, `keeper`, which has room for them, in memory. */
    tqe_session *keeper;
    tqe_prefix *on_disk, *in_memory;
    size_t n_found[N_STEPS]; /* tokens */
    char folder[4096];
    stored_bench stored;
} bench;

static bool failed(const char *path)
{
    msg_error("'%s': %s", path, strerror(errno));
    return false;
}

/* Only pages that have reached the disk can be forgotten. */
static void forget(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

static bool plain_write(const bench *b)
{
    int fd = open(b->plain, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return failed(b->plain);
    }
    bool ok = true;
    for (uint64_t left = b->file_bytes; ok && left > 0;) {
        ssize_t n = write(fd, b->piece, left < PIECE ? (size_t)left : PIECE);
        ok = n > 0;
        left -= ok ? (uint64_t)n : 0;
    }
    ok = ok && fsync(fd) == 0;
    ok = close(fd) == 0 && ok;
    return ok || failed(b->plain);
}

static bool plain_read(const bench *b)
{
    int fd = open(b->plain, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return failed(b->plain);
    }
    ssize_t n;
    do {
        n = read(fd, b->piece, PIECE);
    } while (n > 0);
    close(fd);
    return n == 0 || failed(b->plain);
}

/* All files of the store's folder; remove: them, and it. */
static void each_stored(const bench *b, bool remove)
{
    DIR *d = opendir(b->folder);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        char path[sizeof b->folder + 260];
        snprintf(path, sizeof path, "%s/%s", b->folder, e->d_name);
        if (e->d_name[0] == '.') {
            continue;
        }
        if (remove) {
            unlink(path);
        } else {
            forget(path);
        }
    }
    if (d) {
        closedir(d);
    }
    if (remove) {
        rmdir(b->folder);
    }
}

static tqe_status find_prompt(bench *b, step what, tqe_error *err)
{
    bool disk = what == FOUND_DISK;
    return tqe_session_prompt(disk ? b->session : b->keeper, disk ? b->on_disk : b->in_memory,
                              b->ids, b->n_tokens, NULL, NULL, &b->n_found[what], err);
}

static bool do_step(bench *b, step what)
{
    tqe_error err = {0};
    tqe_status st = TQE_OK;
    bool ok = true;
    switch (what) {
    case PLAIN_WRITE:
        ok = plain_write(b);
        break;
    case PLAIN_READ:
        ok = plain_read(b);
        break;
    case SAVE:
        st = tqe_session_save(b->session, b->snapshot, &err);
        break;
    case LOAD:
    case LOAD_AGAIN:
        st = tqe_session_load(b->session, b->snapshot, &err);
        break;
    case FOUND_DISK:
    case FOUND_MEMORY:
        st = find_prompt(b, what, &err);
        break;
    case N_STEPS:
        break;
    }
    if (st != TQE_OK) {
        msg_error("%s", err.text);
    }
    return ok && st == TQE_OK;
}

static bool timed(bench *b, step what, size_t round)
{
    tqe_error err = {0};
    if (what == PLAIN_READ || what == LOAD) {
        forget(what == LOAD ? b->snapshot : b->plain);
    }
    if (what == FOUND_DISK) {
        each_stored(b, false);
    }
    if (what >= LOAD) { /* restoring begins with an empty session */
        tqe_session_truncate(what == FOUND_MEMORY ? b->keeper : b->session, 0, &err);
    }
    double start = text_now();
    if (!do_step(b, what)) {
        return false;
    }
    b->seconds[what][round] = text_now() - start;
    return true;
}

/* ---- Report ------------------------------------------------------------------------------- */

static void put_row(const bench *b, const char *what, step s, double ratio)
{
    double t = bench_median(b->seconds[s], b->n_rounds);
    out_printf("%-30s%10.1f ms%10.0f MB/s", what, 1e3 * t, (double)b->file_bytes / t / 1e6);
    if (ratio > 0) {
        out_printf("%8.2f", ratio);
    }
    out_write("\n", 1);
}

static void put_found(const bench *b, const char *what, step s)
{
    char count[32];
    out_printf("%-30s%10.1f ms%15s found\n", what, 1e3 * bench_median(b->seconds[s], b->n_rounds),
               text_count(count, b->n_found[s]));
}

static void report(const bench *b)
{
    char size[32], count[32];
    tqe_session_info info;
    size_t n = b->n_rounds;
    tqe_session_get_info(b->session, &info);
    out_printf("\n%s tokens, %s, %s; median of %zu\n\n", text_count(count, b->n_tokens), info.kv,
               text_size(size, b->file_bytes), n);
    out_printf("%s%-30s%13s%15s%8s%s\n", out_bold(), "", "time", "speed", "ratio", out_plain());
    put_row(b, "plain file, written", PLAIN_WRITE, 0);
    put_row(b, "snapshot, saved", SAVE, bench_ratio(b->seconds[PLAIN_WRITE], b->seconds[SAVE], n));
    put_row(b, "plain file, read", PLAIN_READ, 0);
    put_row(b, "snapshot, restored", LOAD,
            bench_ratio(b->seconds[PLAIN_READ], b->seconds[LOAD], n));
    put_row(b, "snapshot, restored from memory", LOAD_AGAIN, 0);
    put_found(b, "prompt, in a store on the disk", FOUND_DISK);
    put_found(b, "prompt, in a store in memory", FOUND_MEMORY);
    out_printf("ratio: speed over that of the plain file, median over the rounds\n\n");
    double cold = bench_median(b->seconds[LOAD], n), warm = bench_median(b->seconds[LOAD_AGAIN], n);
    out_printf("computing the tokens %.1f ms: restoring is %.0f times faster,\n"
               "%.0f times from memory\n",
               1e3 * b->compute_s, b->compute_s / cold, b->compute_s / warm);
    out_printf("a prompt is there %.0f times faster from a store on the disk,\n"
               "%.0f times from one in memory\n",
               b->compute_s / bench_median(b->seconds[FOUND_DISK], n),
               b->compute_s / bench_median(b->seconds[FOUND_MEMORY], n));
    stored_report(&b->stored);
}

static void note(bench *b)
{
    tqe_session_info info;
    tqe_session_get_info(b->session, &info);
    for (uint32_t r = 0; b->csv.f && r < b->n_rounds; r++) {
        bench_csv_machine(b->csv.f, &b->machine);
        bench_csv_text(b->csv.f, info.kv);
        fprintf(b->csv.f, ",%u,%llu,%u,%.3f", b->n_tokens, (unsigned long long)b->file_bytes, r + 1,
                b->compute_s * 1e3);
        for (int s = 0; s < N_STEPS; s++) {
            fprintf(b->csv.f, ",%.3f", b->seconds[s][r] * 1e3);
        }
        for (int side = 0; side < 2; side++) {
            const double *t = &b->stored.token_s[side][r * STORED_TOKENS];
            fprintf(b->csv.f, ",%.3f,%.3f,%.3f", b->stored.prompt_s[side][r] * 1e3 / STORED_TOKENS,
                    bench_median(t, STORED_TOKENS) * 1e3, bench_most(t, STORED_TOKENS) * 1e3);
        }
        fputc('\n', b->csv.f);
    }
    b->x[b->n_points] = b->n_tokens;
    for (int s = 0; s < N_STEPS; s++) {
        b->y[s][b->n_points] = bench_median(b->seconds[s], b->n_rounds) * 1e3;
    }
    b->y[N_STEPS][b->n_points++] = b->compute_s * 1e3;
}

static bool draw(const bench *b)
{
    static const char *const names[N_STEPS + 1] = {
        "plain file, written",        "snapshot, saved",       "plain file, read",
        "snapshot, restored",         "snapshot, from memory", "prompt, from a store on disk",
        "prompt, from one in memory", "computing the tokens"};
    plot_curve curves[N_STEPS + 1];
    char subtitle[256];
    for (int i = 0; i <= N_STEPS; i++) {
        bool ours = i == SAVE || (i >= LOAD && i < N_STEPS);
        curves[i] =
            (plot_curve){names[i], ours ? PLOT_LINE : PLOT_DASHED, b->x, b->y[i], b->n_points};
    }
    snprintf(subtitle, sizeof subtitle, "%s, %s, %u %s; %s", b->machine.cpu, b->machine.isa,
             b->machine.n_threads, b->machine.n_threads == 1 ? "thread" : "threads", b->setup.kv);
    const plot p = {.file = b->plot_name,
                    .title = "Saving and restoring a session",
                    .subtitle = subtitle,
                    .x_label = "tokens",
                    .y_label = "milliseconds (median of the rounds)",
                    .curves = curves,
                    .n_curves = N_STEPS + 1};
    return plot_draw(&p);
}

/* ---- The run ------------------------------------------------------------------------------ */

static bool compute(bench *b)
{
    tqe_model_info info;
    tqe_error err = {0};
    tqe_model_get_info(b->model, &info);
    free(b->ids);
    b->ids = malloc(b->n_tokens * sizeof *b->ids);
    b->piece = b->piece ? b->piece : malloc(PIECE);
    if (!b->ids || !b->piece) {
        msg_error("not enough memory");
        return false;
    }
    memset(b->piece, 0x5a, PIECE);
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        b->ids[i] = (int32_t)(i * 7919u % info.n_vocab);
    }
    tqe_session_truncate(b->session, 0, &err);
    double start = text_now();
    if (tqe_session_eval(b->session, b->ids, b->n_tokens, NULL, NULL, NULL, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    b->compute_s = text_now() - start;
    return true;
}

/* Both stores get the prompt, by computing it. */
static bool fill_stores(bench *b)
{
    tqe_error err = {0};
    tqe_session_params params = {.n_ctx = b->setup.n_ctx,
                                 .n_threads = b->setup.n_threads,
                                 .kv = b->setup.kv,
                                 .n_kept = b->n_tokens};
    /* A queue that nothing is dropped from, and no limit. */
    tqe_prefix_params stored = {
        .dir = b->folder, .queue_bytes = UINT64_MAX >> 1, .limit_bytes = UINT64_MAX >> 1};
    setup_isa(b->setup.isa, &params.isa_mask);
    msg_status("filling the stores ...");
    tqe_status st = tqe_session_create(&b->keeper, b->model, &params, &err);
    if (st == TQE_OK) {
        st = tqe_prefix_create(&b->in_memory, NULL, &err);
    }
    if (st == TQE_OK) {
        st = tqe_prefix_create(&b->on_disk, &stored, &err);
    }
    if (st == TQE_OK) {
        st = find_prompt(b, FOUND_MEMORY, &err);
    }
    if (st == TQE_OK) {
        st = tqe_session_truncate(b->session, 0, &err);
    }
    if (st == TQE_OK) {
        st = find_prompt(b, FOUND_DISK, &err);
    }
    if (st == TQE_OK) {
        tqe_prefix_flush(b->on_disk);
        st = tqe_prefix_problem(b->on_disk, &err) ? TQE_ERR_IO : TQE_OK;
    }
    msg_status(NULL);
    if (st != TQE_OK) {
        msg_error("%s", err.text);
    }
    return st == TQE_OK;
}

static void close_stores(bench *b)
{
    tqe_prefix_free(b->on_disk);
    tqe_prefix_free(b->in_memory);
    tqe_session_free(b->keeper);
    b->on_disk = b->in_memory = NULL;
    b->keeper = NULL;
    each_stored(b, true);
}

static bool run_rounds(bench *b)
{
    tqe_snapshot *f = NULL;
    tqe_snapshot_info info;
    tqe_error err = {0};
    if (!do_step(b, SAVE)) {
        return false;
    }
    if (tqe_snapshot_open(&f, b->snapshot, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    tqe_snapshot_get_info(f, &info);
    tqe_snapshot_close(f);
    b->file_bytes = info.file_bytes;
    if (!fill_stores(b)) {
        return false;
    }
    b->stored = (stored_bench){0};
    for (size_t r = 0; r < b->n_rounds; r++) {
        char line[64];
        snprintf(line, sizeof line, "round %zu of %u", r + 1, b->n_rounds);
        msg_status(line);
        for (int s = 0; s < N_STEPS; s++) {
            if (!timed(b, (step)s, r)) {
                return false;
            }
        }
    }
    /* Last, as it takes the session away from the tokens that are saved. One token before, so that
     * the first that counts finds its graph. */
    tqe_model_info model;
    tqe_model_get_info(b->model, &model);
    msg_status("tokens beside a writing store ...");
    bool ok = tqe_session_eval(b->session, b->ids, 1, NULL, NULL, NULL, &err) == TQE_OK;
    if (!ok) {
        msg_error("%s", err.text);
    }
    for (size_t r = 0; ok && r < b->n_rounds; r++) {
        ok = stored_round(&b->stored, b->session, b->folder, model.n_vocab);
    }
    msg_status(NULL);
    return ok;
}

static bool name_files(bench *b)
{
    static const char *const names[] = {"tq-bench.tqs", "tq-bench.plain", "tq-bench.store"};
    char *paths[] = {b->snapshot, b->plain, b->folder};
    for (int i = 0; i < 3; i++) {
        int n = snprintf(paths[i], sizeof b->plain, "%s/%s", b->dir, names[i]);
        if (n < 0 || (size_t)n >= sizeof b->plain) {
            msg_error("--dir: the name is too long");
            return false;
        }
        if (access(paths[i], F_OK) == 0) {
            msg_error("'%s' is there already: remove it, or take another folder with --dir",
                      paths[i]);
            return false;
        }
    }
    return true;
}

static bool run(bench *b)
{
    tqe_session_info info;
    uint32_t mask;
    for (size_t i = 0; i < b->lengths.n; i++) {
        uint32_t most = TQE_MAX_CTX - STORED_PROMPT; /* room for what comes after */
        uint32_t n = (b->lengths.at[i] < most ? b->lengths.at[i] : most) + STORED_PROMPT;
        b->setup.n_ctx = n > b->setup.n_ctx ? n : b->setup.n_ctx;
    }
    if (!target_is_not("--csv", b->csv_name, "-m", b->setup.model) ||
        !bench_csv_open(&b->csv, b->csv_name,
                        "kv,tokens,file_bytes,round,compute_ms,plain_write_ms,save_ms,"
                        "plain_read_ms,load_ms,load_again_ms,found_disk_ms,found_memory_ms,"
                        "prompt_ms,token_ms,token_most_ms,"
                        "stored_prompt_ms,stored_token_ms,stored_token_most_ms") ||
        !setup_open(&b->setup, &b->model, &b->session)) {
        return false;
    }
    tqe_session_get_info(b->session, &info);
    setup_isa(b->setup.isa, &mask);
    bench_machine_get(&b->machine, mask, false, info.n_threads);
    bench_put_machine(&b->machine);
    bool ok = true;
    for (size_t i = 0; ok && i < b->lengths.n; i++) {
        b->n_tokens = b->lengths.at[i];
        ok = compute(b) && run_rounds(b);
        if (ok) {
            report(b);
            note(b);
        }
        unlink(b->snapshot);
        close_stores(b);
    }
    ok = save_close(&b->csv, ok) && ok;
    return ok && (!b->plot_name || draw(b));
}

int bench_snapshot(int argc, char **argv)
{
    static bench b = {.setup = SETUP_INIT, .dir = ".", .n_rounds = 5};
    arg_option options[] = {
        OPT_MODEL(b.setup),
        {.group = "Work",
         .letter = 'p',
         .name = "prompt",
         .meta = "LIST",
         .kind = ARG_COUNTS,
         .dst = &b.lengths,
         .min = 1,
         .max = SETUP_MAX_CTX,
         .help = "tokens that are computed, saved and restored, such as 1000,4000 (default 4000)"},
        {.letter = 'r',
         .name = "rounds",
         .meta = "N",
         .kind = ARG_COUNT,
         .dst = &b.n_rounds,
         .min = 1,
         .max = MAX_ROUNDS,
         .help = "timed rounds (default 5)"},
        {.name = "dir",
         .meta = "DIR",
         .kind = ARG_STRING,
         .dst = &b.dir,
         .help = "folder for two files and a prefix store, which are removed at the end (default: "
                 "this one)"},
        OPT_KV(b.setup),
        OPT_THREADS(b.setup),
        OPT_ISA(b.setup),
        {.group = "Output",
         .name = "csv",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &b.csv_name,
         .help = "write one row for each length and round"},
        {.name = "plot",
         .meta = "FILE",
         .kind = ARG_STRING,
         .dst = &b.plot_name,
         .help = "draw times against tokens, *.svg or *.png, with the program gnuplot"},
    };
    arg_command cmd = {
        .name = "tq bench snapshot",
        .summary = "saving and restoring, beside the disk and beside computing",
        .synopsis = "  tq bench snapshot -m FILE [options]\n",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .notes = "A plain file of the same size is written and read in turn with the snapshot.\n"
                 "What is read is dropped from memory before, where the system does that.\n",
        .examples = "  tq bench snapshot -m model.gguf --kv turbo:k8v3 -p 4000 -t 1\n",
    };
    arg_result r = args_parse(&cmd, argc, argv, NULL);
    if (r != ARGS_OK) {
        return r == ARGS_HELP ? TQ_EXIT_OK : TQ_EXIT_USAGE;
    }
    bool usage = true;
    if (!setup_check(&b.setup) ||
        (b.plot_name && !plot_check("--plot", b.plot_name, b.csv_name, &usage))) {
        if (usage) {
            args_hint(&cmd);
        }
        return usage ? TQ_EXIT_USAGE : TQ_EXIT_FAILED;
    }
    if (!b.lengths.n) {
        b.lengths = (arg_counts){.at = {4000}, .n = 1};
    }
    if (!name_files(&b)) {
        return TQ_EXIT_FAILED;
    }
    bool ok = run(&b);
    save_close(&b.csv, false); /* after a failure it may still be open */
    unlink(b.snapshot);
    unlink(b.plain);
    free(b.ids);
    free(b.piece);
    tqe_session_free(b.session);
    tqe_model_free(b.model);
    return ok ? TQ_EXIT_OK : TQ_EXIT_FAILED;
}
