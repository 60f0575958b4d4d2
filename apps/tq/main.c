/* SPDX-License-Identifier: MIT */
/* main.c — finds the subcommand, turns its result into the exit code.
 *
 * Policy: only main leaves the process. Exit codes: 0 done, 1 the work failed, 2 the command line
 * is wrong, 130 interrupted.
 */
#include "args.h"
#include "commands.h"
#include "out.h"
#include "turboquant.h"

#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"run", cmd_run, "generate text from a prompt"},
    {"chat", cmd_chat, "talk with a model"},
    {"info", cmd_info, "what a model needs: geometry, KV bytes, longest context"},
    {"eval", cmd_eval, "measure what a cache scheme costs in quality"},
    {"tune", cmd_tune, "choose the formats of the layers within a budget"},
    {"snapshot", cmd_snapshot, "look at saved sessions"},
    {"bench", cmd_bench, "measure speed, side by side with stock llama.cpp"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void help(void)
{
    out_printf("%stq%s - run language models on a compressed KV cache\n\n"
               "  tq COMMAND [options]\n\n%sCommands%s\n",
               out_bold(), out_plain(), out_bold(), out_plain());
    for (size_t i = 0; i < N_COMMANDS; i++) {
        out_printf("  %-9s%s\n", commands[i].name, commands[i].summary);
    }
    out_printf("\n%sOptions%s\n"
               "  -h, --help      show this page; 'tq COMMAND --help' shows a command's\n"
               "      --version   show the versions of the program and of the stored format\n"
               "\n%sExamples%s\n"
               "  tq run -m model.gguf -p \"Once upon a time\"\n"
               "  tq chat -m model.gguf --kv turbo:k8v3\n"
               "  tq info model.gguf --memory 8G\n",
               out_bold(), out_plain(), out_bold(), out_plain());
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        msg_error("no command");
        msg_note("Try 'tq --help'.");
        return TQ_EXIT_USAGE;
    }
    const char *word = argv[1];
    bool wants_help = !strcmp(word, "-h") || !strcmp(word, "--help");
    if (wants_help || !strcmp(word, "--version")) {
        if (argc > 2) {
            msg_error("unexpected argument '%s' after %s", argv[2], word);
            msg_note("Try 'tq --help'.");
            return TQ_EXIT_USAGE;
        }
        if (wants_help) {
            help();
        } else {
            out_printf("tq %s, stored format %d\n", tq_version(), TQ_FORMAT_VERSION);
        }
        return TQ_EXIT_OK;
    }
    const char *names[N_COMMANDS + 2] = {[N_COMMANDS] = "--help", "--version"};
    for (size_t i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (!strcmp(word, names[i])) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    const char *near = args_nearest(word, names, N_COMMANDS + 2);
    const char *kind = word[0] == '-' ? "option" : "command";
    if (near) {
        msg_error("unknown %s '%s'; did you mean '%s'?", kind, word, near);
    } else {
        msg_error("unknown %s '%s'", kind, word);
    }
    msg_note("Try 'tq --help'.");
    return TQ_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    if (!out_init()) {
        return TQ_EXIT_FAILED;
    }
    return out_finish(dispatch(argc, argv));
}
