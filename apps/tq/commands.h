/* SPDX-License-Identifier: MIT */
/* commands.h — every subcommand: argv[0] is its name; the return value is the exit code. */
#ifndef TQ_APP_COMMANDS_H
#define TQ_APP_COMMANDS_H

int cmd_run(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_snapshot(int argc, char **argv);
int cmd_bench(int argc, char **argv);

/* `tq bench NAME`: one file each, bench_NAME.c. */
int bench_attn(int argc, char **argv);
int bench_cache(int argc, char **argv);
int bench_codec(int argc, char **argv);
int bench_engine(int argc, char **argv);
int bench_snapshot(int argc, char **argv);

#endif
