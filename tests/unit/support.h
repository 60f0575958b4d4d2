/* SPDX-License-Identifier: MIT */
/* support.h — what every cmocka program of the core includes: headers in the order that cmocka
 * wants, and a small random source, so that a failure can be repeated from its seed. */
#ifndef TQ_TEST_SUPPORT_H
#define TQ_TEST_SUPPORT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "turboquant.h"

/* splitmix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators". */
static inline uint64_t test_random(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in (0, 1). */
static inline double test_uniform(uint64_t *seed)
{
    return ((double)(test_random(seed) >> 11) + 0.5) * 0x1p-53;
}

/* N(0, 1), Box-Muller. */
static inline double test_normal(uint64_t *seed)
{
    double radius = sqrt(-2.0 * log(test_uniform(seed)));
    return radius * cos(6.283185307179586 * test_uniform(seed));
}

#endif
