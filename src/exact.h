/* SPDX-License-Identifier: MIT */
/* exact.h — each + - * / rounds by itself, to f32, whatever the compiler was told.
 *
 * Stored bytes follow from the roundings that docs/format.md fixes. A compiler that fuses a*b+c (so
 * clang 14 by default, and gcc with -std=gnu*, wherever the CPU can: on AArch64 always), reorders
 * sums or computes in x87 registers stores other bytes. All that computes includes this first,
 * through kernels.h, f16.h or rotate.h: pragmas hold from here to the end of what is compiled.
 * They do not replace -ffp-contract=off: with -ffp-contract=fast clang heeds none.
 */
#ifndef TQ_EXACT_H
#define TQ_EXACT_H

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) ||     \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "TurboQuant: no -ffast-math, -Ofast or parts of them: stored bytes would differ"
#endif

#if defined(__FLT_EVAL_METHOD__) &&                                                                \
    (__FLT_EVAL_METHOD__ < 0 || __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "TurboQuant: f32 must be computed as f32 (32-bit x86: -msse2 -mfpmath=sse)"
#endif

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) && !defined(__STRICT_ANSI__) /* with -std=c11 gcc never fuses */
#pragma GCC optimize("fp-contract=off")
#endif

#endif
