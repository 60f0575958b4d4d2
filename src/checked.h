/* SPDX-License-Identifier: MIT */
/* checked.h — size arithmetic that notices when it leaves size_t.
 *
 * Sizes are computed once, when an object is configured; everything that is indexed later then
 * fits without further checks. Each function returns 0 and stores the result, or returns 1.
 */
#ifndef TQ_CHECKED_H
#define TQ_CHECKED_H

#include <stddef.h>
#include <stdint.h>

static inline int tq_size_add(size_t *out, size_t a, size_t b)
{
    *out = a + b;
    return *out < a;
}

static inline int tq_size_mul(size_t *out, size_t a, size_t b)
{
    *out = a * b;
    return b != 0 && a > SIZE_MAX / b;
}

/* The next multiple of align, a power of two. */
static inline int tq_size_align(size_t *out, size_t a, size_t align)
{
    int bad = tq_size_add(out, a, align - 1);
    *out &= ~(align - 1);
    return bad;
}

#endif
