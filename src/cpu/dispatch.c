/* SPDX-License-Identifier: MIT */
/* dispatch.c — which kernels run: detect the CPU, join the halves of each table, pick one.
 *
 * Tables are constants and the choice is a pure function of a mask, so there is no global state,
 * no first-call race, and a test forces a variant by passing its mask. This file is compiled
 * without ISA flags: it runs before anything is known about the CPU.
 */
#include "cpu/kernels.h"

#include <string.h>

const tq_kernels tq_kernels_scalar = {
    .codec = &tq_codec_kernels_scalar,
    .attn = &tq_attn_kernels_scalar,
    .isa = TQ_ISA_SCALAR,
};

static int always(void)
{
    return 1;
}

#if defined(TQ_HAVE_AVX2)
#include <cpuid.h>

const tq_kernels tq_kernels_avx2 = {
    .codec = &tq_codec_kernels_avx2,
    .attn = &tq_attn_kernels_avx2,
    .isa = TQ_ISA_AVX2,
};

const tq_kernels tq_kernels_avx512 = {
    .codec = &tq_codec_kernels_avx512,
    .attn = &tq_attn_kernels_avx512,
    .isa = TQ_ISA_AVX512,
};

const tq_kernels tq_kernels_avx512_vnni = {
    .codec = &tq_codec_kernels_avx512,
    .attn = &tq_attn_kernels_avx512_vnni,
    .isa = TQ_ISA_AVX512,
};

#define XCR0_YMM 0x06u /* xmm and upper halves of ymm */
#define XCR0_ZMM 0xe6u /* those, mask registers, upper halves of zmm, zmm16 to zmm31 */

/* The OS must save the upper register halves on a context switch, or results are lost: XGETBV
 * says whether it does. Spelled as bytes-level asm because the intrinsic needs -mxsave. Executes
 * only where CPUID reports OSXSAVE. */
static int os_saves(uint32_t registers)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (lo & registers) == registers;
}

static int cpu_has_avx2(void)
{
    const uint32_t need = bit_FMA | bit_F16C | bit_AVX | bit_OSXSAVE;
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need || !os_saves(XCR0_YMM))
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

/* Every AVX-512 table may hold AVX2 entries. */
static int cpu_has_avx512(void)
{
    const uint32_t need = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    unsigned a, b, c, d;

    return cpu_has_avx2() && os_saves(XCR0_ZMM) && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (b & need) == need;
}

static int cpu_has_avx512_vnni(void)
{
    const uint32_t need = bit_AVX512VNNI | bit_AVX512VBMI;
    unsigned a, b, c, d;

    return cpu_has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & need) == need;
}
#endif

#if defined(TQ_HAVE_NEON)
const tq_kernels tq_kernels_neon = {
    .codec = &tq_codec_kernels_neon,
    .attn = &tq_attn_kernels_neon,
    .isa = TQ_ISA_NEON,
};
#endif

/* The tables of this build, from the plainest to the best. */
static const struct rung {
    const tq_kernels *kernels;
    int (*runs_here)(void);
} ladder[] = {
    {&tq_kernels_scalar, always},
#if defined(TQ_HAVE_AVX2)
    {&tq_kernels_avx2, cpu_has_avx2},
    {&tq_kernels_avx512, cpu_has_avx512},
    {&tq_kernels_avx512_vnni, cpu_has_avx512_vnni},
#endif
#if defined(TQ_HAVE_NEON)
    {&tq_kernels_neon, always}, /* part of every AArch64 */
#endif
};

enum { N_RUNGS = sizeof(ladder) / sizeof(ladder[0]) };

uint32_t tq_isa_detect(void)
{
    uint32_t isa = 0;
    for (size_t i = 0; i < N_RUNGS; i++)
        if (ladder[i].runs_here())
            isa |= ladder[i].kernels->isa;
    return isa;
}

const tq_kernels *tq_kernels_get(uint32_t isa_mask)
{
    for (size_t i = N_RUNGS; i-- > 1;)
        if ((isa_mask & ladder[i].kernels->isa) && ladder[i].runs_here())
            return ladder[i].kernels;
    return &tq_kernels_scalar;
}

/* ---- Introspection: the entries by name ---- */

typedef struct entry {
    const char *name;
    size_t off_bytes; /* of a function pointer in its half */
} entry;

#define PER_FORMAT(field, text)                                                                    \
    {text "_f32", offsetof(tq_codec_kernels, field[TQ_KF32])},                                     \
        {text "_f16", offsetof(tq_codec_kernels, field[TQ_KF16])},                                 \
        {text "_bf16", offsetof(tq_codec_kernels, field[TQ_KBF16])},                               \
        {text "_k2", offsetof(tq_codec_kernels, field[TQ_KAFFINE2])},                              \
        {text "_k4", offsetof(tq_codec_kernels, field[TQ_KAFFINE4])},                              \
        {text "_k5", offsetof(tq_codec_kernels, field[TQ_KAFFINE5])},                              \
        {text "_k8", offsetof(tq_codec_kernels, field[TQ_KAFFINE8])},                              \
        {text "_v2", offsetof(tq_codec_kernels, field[TQ_KLLOYD2])},                               \
        {text "_v3", offsetof(tq_codec_kernels, field[TQ_KLLOYD3])},                               \
        {text "_v4", offsetof(tq_codec_kernels, field[TQ_KLLOYD4])},                               \
        {text "_v5", offsetof(tq_codec_kernels, field[TQ_KLLOYD5])},                               \
    {                                                                                              \
        text "_v8", offsetof(tq_codec_kernels, field[TQ_KLLOYD8])                                  \
    }

static const entry codec_entries[] = {
    PER_FORMAT(encode, "encode"),
    PER_FORMAT(decode, "decode"),
    PER_FORMAT(decode_rotated, "decode_rotated"),
    {"first_nonfinite", offsetof(tq_codec_kernels, first_nonfinite)},
    {"rotate", offsetof(tq_codec_kernels, rotate)},
    {"unrotate", offsetof(tq_codec_kernels, unrotate)},
};

#define ATTN_KEYS(field, text)                                                                     \
    {text "_f32", offsetof(tq_attn_kernels, field[TQ_KF32])},                                      \
        {text "_f16", offsetof(tq_attn_kernels, field[TQ_KF16])},                                  \
        {text "_bf16", offsetof(tq_attn_kernels, field[TQ_KBF16])},                                \
        {text "_k2", offsetof(tq_attn_kernels, field[TQ_KAFFINE2])},                               \
        {text "_k4", offsetof(tq_attn_kernels, field[TQ_KAFFINE4])},                               \
        {text "_k5", offsetof(tq_attn_kernels, field[TQ_KAFFINE5])},                               \
    {                                                                                              \
        text "_k8", offsetof(tq_attn_kernels, field[TQ_KAFFINE8])                                  \
    }

static const entry attn_entries[] = {
    ATTN_KEYS(prep, "prep"),
    ATTN_KEYS(score, "score"),
    {"weigh_f32", offsetof(tq_attn_kernels, weigh[TQ_KF32])},
    {"weigh_f16", offsetof(tq_attn_kernels, weigh[TQ_KF16])},
    {"weigh_bf16", offsetof(tq_attn_kernels, weigh[TQ_KBF16])},
    {"weigh_v2", offsetof(tq_attn_kernels, weigh[TQ_KLLOYD2])},
    {"weigh_v3", offsetof(tq_attn_kernels, weigh[TQ_KLLOYD3])},
    {"weigh_v4", offsetof(tq_attn_kernels, weigh[TQ_KLLOYD4])},
    {"weigh_v5", offsetof(tq_attn_kernels, weigh[TQ_KLLOYD5])},
    {"weigh_v8", offsetof(tq_attn_kernels, weigh[TQ_KLLOYD8])},
    {"softmax", offsetof(tq_attn_kernels, softmax)},
    {"pack_keys", offsetof(tq_attn_kernels, pack_keys)},
    {"pack_values", offsetof(tq_attn_kernels, pack_values)},
    {"gemm", offsetof(tq_attn_kernels, gemm)},
};

#define N_CODEC_ENTRIES (sizeof(codec_entries) / sizeof(codec_entries[0]))
#define N_ATTN_ENTRIES  (sizeof(attn_entries) / sizeof(attn_entries[0]))

/* Do two tables hold the same function in entry e? */
static int same_entry(const tq_kernels *a, const tq_kernels *b, const entry *e, int is_attn)
{
    const char *x = is_attn ? (const char *)a->attn : (const char *)a->codec;
    const char *y = is_attn ? (const char *)b->attn : (const char *)b->codec;
    return memcmp(x + e->off_bytes, y + e->off_bytes, sizeof(void (*)(void))) == 0;
}

tq_status tq_kernels_describe(uint32_t isa_mask, uint32_t i, const char **name, uint32_t *isa)
{
    const tq_kernels *k = tq_kernels_get(isa_mask);
    const int is_attn = i >= N_CODEC_ENTRIES;

    if (!name || !isa || i >= N_CODEC_ENTRIES + N_ATTN_ENTRIES)
        return TQ_ERR_ARG;
    const entry *e = is_attn ? &attn_entries[i - N_CODEC_ENTRIES] : &codec_entries[i];
    /* A table that does not replace an entry holds that of a plainer one. */
    size_t rung = 0;
    while (!same_entry(k, ladder[rung].kernels, e, is_attn))
        rung++;
    *name = e->name;
    *isa = ladder[rung].kernels->isa;
    return TQ_OK;
}
