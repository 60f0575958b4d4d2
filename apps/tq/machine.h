/* SPDX-License-Identifier: MIT */
/* machine.h — what a report says about the computer it was made on, and memory to measure with. */
#ifndef TQ_APP_MACHINE_H
#define TQ_APP_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Name of the CPU as the system gives it, or "unknown CPU". dst needs 128 bytes. Returns dst. */
const char *machine_cpu(char dst[128]);
/* Memory that new work can take without swapping, or 0 when the system does not tell. */
uint64_t machine_free_bytes(void);
/* CPUs that this process may run on, or 0 when the system does not tell. */
uint32_t machine_cpus(void);
/* Runnable processes averaged over the last minute, or -1. */
double machine_load(void);
/* Memory in large pages where the system has them, so that reading it is not translation of
 * addresses; free() it. NULL: there is none. */
void *machine_large_alloc(size_t bytes);

#endif
