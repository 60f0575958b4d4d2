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

/* Affine keys and Lloyd values of other head sizes than NEON's attention takes: coded by vectors,
 * attended by the reference, which reads decoded rows. */
#if defined(TQ_HAVE_NEON)
static const tq_kernels kernels_neon_short = {
    .codec = &tq_codec_kernels_neon,
    .attn = &tq_attn_kernels_scalar,
    .isa = TQ_ISA_NEON,
};
#endif

const tq_kernels *tq_kernels_grouped(uint32_t isa_mask, uint32_t dim)
{
    const tq_kernels *k = tq_kernels_get(isa_mask);

    if (k == &tq_kernels_scalar || dim == 64 || dim == 128 || dim == 256 || dim == 512)
        return k;
#if defined(TQ_HAVE_AVX2)
    return &tq_kernels_avx2;
#elif defined(TQ_HAVE_NEON)
    return &kernels_neon_short;
#else
    return &tq_kernels_scalar;
#endif
}

/* ---- Introspection: the entries by name ---- */

typedef struct entry {
    const char *name;
    size_t off_bytes; /* of a function pointer in its half */
} entry;

/* X(name, index) for each format, by the use that attention makes of it. */
/* clang-format off */
#define FORMATS_BOTH(X)                                                                            \
    X(f32, TQ_KF32) X(f16, TQ_KF16) X(bf16, TQ_KBF16) X(turbo2, TQ_KNORM2) X(turbo3, TQ_KNORM3)    \
    X(turbo4, TQ_KNORM4) X(turbo5, TQ_KNORM5) X(turbo6, TQ_KNORM6) X(turbo8, TQ_KNORM8)            \
    X(tcq2, TQ_KTCQ2) X(tcq3, TQ_KTCQ3) X(tcq4, TQ_KTCQ4) X(tcq5, TQ_KTCQ5) X(tcq6, TQ_KTCQ6)      \
    X(affine4, TQ_KUNIFORM4) X(affine8, TQ_KUNIFORM8) X(mse1, TQ_KMSE1) X(mse2, TQ_KMSE2)          \
    X(mse3, TQ_KMSE3) X(mse4, TQ_KMSE4) X(prod1, TQ_KPROD1) X(prod2, TQ_KPROD2)                    \
    X(prod3, TQ_KPROD3) X(prod4, TQ_KPROD4)
#define FORMATS_KEYS(X) X(k2, TQ_KAFFINE2) X(k4, TQ_KAFFINE4) X(k5, TQ_KAFFINE5) X(k8, TQ_KAFFINE8)
#define FORMATS_VALUES(X)                                                                          \
    X(v2, TQ_KLLOYD2) X(v3, TQ_KLLOYD3) X(v4, TQ_KLLOYD4) X(v5, TQ_KLLOYD5) X(v8, TQ_KLLOYD8)
#define FORMATS_NEITHER(X) X(fork2, TQ_KFORK2) X(fork3, TQ_KFORK3) X(fork4, TQ_KFORK4)
#define FORMATS_ALL(X)     FORMATS_BOTH(X) FORMATS_KEYS(X) FORMATS_VALUES(X) FORMATS_NEITHER(X)

#define ENCODE(name, i)  {"encode_" #name, offsetof(tq_codec_kernels, encode[i])},
#define DECODE(name, i)  {"decode_" #name, offsetof(tq_codec_kernels, decode[i])},
#define ROTATED(name, i) {"decode_rotated_" #name, offsetof(tq_codec_kernels, decode_rotated[i])},
#define PREP(name, i)    {"prep_" #name, offsetof(tq_attn_kernels, prep[i])},
#define SCORE(name, i)   {"score_" #name, offsetof(tq_attn_kernels, score[i])},
#define WEIGH(name, i)   {"weigh_" #name, offsetof(tq_attn_kernels, weigh[i])},

static const entry codec_entries[] = {
    FORMATS_ALL(ENCODE) FORMATS_ALL(DECODE) FORMATS_ALL(ROTATED)
    {"first_nonfinite", offsetof(tq_codec_kernels, first_nonfinite)},
    {"rotate", offsetof(tq_codec_kernels, rotate)},
    {"unrotate", offsetof(tq_codec_kernels, unrotate)},
};

static const entry attn_entries[] = {
    FORMATS_BOTH(PREP) FORMATS_KEYS(PREP)
    FORMATS_BOTH(SCORE) FORMATS_KEYS(SCORE)
    FORMATS_BOTH(WEIGH) FORMATS_VALUES(WEIGH)
    {"softmax", offsetof(tq_attn_kernels, softmax)},
    {"pack_keys", offsetof(tq_attn_kernels, pack_keys)},
    {"pack_values", offsetof(tq_attn_kernels, pack_values)},
    {"gemm", offsetof(tq_attn_kernels, gemm)},
};
/* clang-format on */

#define N_CODEC_ENTRIES (sizeof(codec_entries) / sizeof(codec_entries[0]))
#define N_ATTN_ENTRIES  (sizeof(attn_entries) / sizeof(attn_entries[0]))

/* Which table serves affine keys and Lloyd values of other head sizes than 64, 128, 256 and 512:
 * one of them stands for all. */
#define GROUPED_DIM 80u
static const struct {
    entry entry;
    int is_attn;
} grouped_entries[] = {
    {{"encode_k*/other", offsetof(tq_codec_kernels, encode[TQ_KAFFINE8])}, 0},
    {{"encode_v*/other", offsetof(tq_codec_kernels, encode[TQ_KLLOYD3])}, 0},
    {{"decode_k*/other", offsetof(tq_codec_kernels, decode[TQ_KAFFINE8])}, 0},
    {{"decode_v*/other", offsetof(tq_codec_kernels, decode[TQ_KLLOYD3])}, 0},
    {{"score_k*/other", offsetof(tq_attn_kernels, score[TQ_KAFFINE8])}, 1},
    {{"weigh_v*/other", offsetof(tq_attn_kernels, weigh[TQ_KLLOYD3])}, 1},
};

#define N_GROUPED_ENTRIES (sizeof(grouped_entries) / sizeof(grouped_entries[0]))

/* Do two tables hold the same function in entry e? */
static int same_entry(const tq_kernels *a, const tq_kernels *b, const entry *e, int is_attn)
{
    const char *x = is_attn ? (const char *)a->attn : (const char *)a->codec;
    const char *y = is_attn ? (const char *)b->attn : (const char *)b->codec;
    return memcmp(x + e->off_bytes, y + e->off_bytes, sizeof(void (*)(void))) == 0;
}

/* The ISA of the plainest table that holds this entry of k. */
static uint32_t entry_isa(const tq_kernels *k, const entry *e, int is_attn)
{
    size_t rung = 0;
    while (!same_entry(k, ladder[rung].kernels, e, is_attn))
        rung++;
    return ladder[rung].kernels->isa;
}

tq_status tq_kernels_describe(uint32_t isa_mask, uint32_t i, const char **name, uint32_t *isa)
{
    const tq_kernels *k = tq_kernels_get(isa_mask);
    const entry *e;
    int is_attn;

    if (!name || !isa)
        return TQ_ERR_ARG;
    if (i < N_CODEC_ENTRIES + N_ATTN_ENTRIES) {
        is_attn = i >= N_CODEC_ENTRIES;
        e = is_attn ? &attn_entries[i - N_CODEC_ENTRIES] : &codec_entries[i];
    } else if (i - N_CODEC_ENTRIES - N_ATTN_ENTRIES < N_GROUPED_ENTRIES) {
        i -= (uint32_t)(N_CODEC_ENTRIES + N_ATTN_ENTRIES);
        is_attn = grouped_entries[i].is_attn;
        e = &grouped_entries[i].entry;
        k = tq_kernels_grouped(isa_mask, GROUPED_DIM);
    } else {
        return TQ_ERR_ARG;
    }
    *name = e->name;
    *isa = entry_isa(k, e, is_attn);
    return TQ_OK;
}
