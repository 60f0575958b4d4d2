/* SPDX-License-Identifier: MIT */
/* cmd_bench.c — `tq bench NAME`: finds the benchmark. Each one is a file bench_NAME.c. */
#include "args.h"
#include "commands.h"
#include "out.h"

#include <string.h>

static const struct bench {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} benches[] = {
    {"attn", bench_attn, "attention over a cache, beside ggml's own kernel"},
    {"cache", bench_cache, "what a store costs and saves: append, fork, pages, memory"},
    {"codec", bench_codec, "time to compress and expand a vector"},
    {"engine", bench_engine, "prompt and decode speed of a model, beside stock llama.cpp"},
    {"snapshot", bench_snapshot, "saving and restoring, beside the disk and beside computing"},
};
enum { N_BENCHES = sizeof benches / sizeof benches[0] };

static void help(void)
{
    out_printf("%stq bench%s - measure speed\n\n  tq bench NAME [options]\n\n%sBenchmarks%s\n",
               out_bold(), out_plain(), out_bold(), out_plain());
    for (size_t i = 0; i < N_BENCHES; i++) {
        out_printf("  %-9s%s\n", benches[i].name, benches[i].summary);
    }
    out_printf("\n'tq bench NAME --help' shows the options of one.\n");
}

int cmd_bench(int argc, char **argv)
{
    msg_set_command("tq bench");
    const char *word = argc > 1 ? argv[1] : NULL;
    if (!word) {
        msg_error("no benchmark");
        msg_note("Try 'tq bench --help'.");
        return TQ_EXIT_USAGE;
    }
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        help();
        return TQ_EXIT_OK;
    }
    const char *names[N_BENCHES];
    for (size_t i = 0; i < N_BENCHES; i++) {
        names[i] = benches[i].name;
        if (!strcmp(word, names[i])) {
            return benches[i].run(argc - 1, argv + 1);
        }
    }
    const char *near = args_nearest(word, names, N_BENCHES);
    if (near) {
        msg_error("unknown benchmark '%s'; did you mean '%s'?", word, near);
    } else {
        msg_error("unknown benchmark '%s'", word);
    }
    msg_note("Try 'tq bench --help'.");
    return TQ_EXIT_USAGE;
}
