/* SPDX-License-Identifier: MIT */
/* checkkern.h — harness for the kernel tables: every entry on every ISA of this machine.
 *
 * A module (one file per half of the table) gives two functions: `check` calls each entry on
 * random input and compares it with the scalar table or an oracle; `bench` times it. The harness
 * gives them the ISAs, a seeded random source, buffers that end at a guard page, and a report.
 * Buffers are poisoned, so a byte that a kernel forgets or writes too much shows in a comparison.
 */
#ifndef CHECKKERN_H
#define CHECKKERN_H

#include "cpu/kernels.h"

#include <stddef.h>
#include <stdint.h>

/* Guarded buffers that can be in use at once. */
enum { CK_ARENAS = 8, CK_ARENA_BYTES = 1 << 21, CK_MAX_ISAS = 8 };

typedef struct ck_isa {
    const char *name;
    const tq_kernels *kernels;
} ck_isa;

typedef struct ck {
    uint64_t seed;            /* state of the random source */
    uint64_t started;         /* the seed of the run, printed */
    ck_isa isas[CK_MAX_ISAS]; /* those that run here; scalar is first */
    size_t n_isas;
    uint8_t *arenas[CK_ARENAS];
    unsigned long n_checks;
    unsigned long n_failed;
    double ghz;         /* of a chain of dependent adds; 0 without --bench */
    int csv;            /* --csv: bench lines as comma separated values */
    const char *filter; /* --filter TEXT: only entries whose name holds it; NULL: all */
} ck;

typedef struct ck_module {
    const char *name;
    void (*check)(ck *t);
    void (*bench)(ck *t);
} ck_module;

/* Random numbers: 64 bits, uniform below n, N(0,1). */
uint64_t ck_random(ck *t);
uint32_t ck_below(ck *t, uint32_t n);
float ck_normal(ck *t);

/* A buffer of `bytes` in arena i, filled with 0x88 bytes. It ends at an inaccessible page, or
 * with at_start begins right after one. Alignment is what falls out: keep sizes of floats a
 * multiple of 4. The previous buffer of the arena is gone. */
void *ck_buffer(ck *t, size_t arena, size_t bytes, int at_start);

/* Does the entry pass --filter? */
int ck_wants(const ck *t, const char *entry);

/* One comparison: counts it, and when ok is 0 prints entry, ISA and the formatted details. */
void ck_check(ck *t, int ok, const char *entry, const char *isa, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Time call(arg): the median over batches, in ns. Prints one line: ns, cycles per element, GB/s
 * of `bytes` per call. Returns ns. */
double ck_bench(ck *t, const char *entry, const char *isa, void (*call)(void *arg), void *arg,
                double elements, double bytes);

/* Bytes a and b, where every NaN among n floats counts as the same. */
int ck_same_floats(const float *a, const float *b, size_t n);

extern const ck_module ck_module_codec, ck_module_attn, ck_module_tile, ck_module_tables;

/* The table of ISA i as a codec of its mask uses it: affine keys and Lloyd values have vector
 * kernels for some dimensions only. */
const tq_kernels *ck_kernels(const ck *t, size_t i, const tq_codec *c);

#endif
