/* SPDX-License-Identifier: MIT */
/* test_codec_memory.c — encoding and decoding take no memory but the caller's and a small stack:
 * every format at its largest dimension, on the plainest and the best instruction set, in a thread
 * of its own, with an allocator that fails. PITFALL 12: arrays on the stack that crash worker
 * threads. The allocator is replaced by the linker (--wrap), in the library too. */
#define _DEFAULT_SOURCE /* pthread_attr_setstack */
#include "support.h"

#include "codec.h"

#include <pthread.h>
#include <stdatomic.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif

/* ---- The allocator ---- */

static atomic_int refuse, refused;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

static int is_refused(void)
{
    if (!atomic_load(&refuse))
        return 0;
    atomic_fetch_add(&refused, 1);
    return 1;
}

void *__wrap_malloc(size_t size)
{
    return is_refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return is_refused() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return is_refused() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_refused() ? NULL : __real_aligned_alloc(alignment, size);
}

/* ---- The work ---- */

static const tq_format formats[] = {
    TQ_FMT_F32,       TQ_FMT_F16,       TQ_FMT_BF16,     TQ_FMT_AFFINE_K2, TQ_FMT_AFFINE_K4,
    TQ_FMT_AFFINE_K5, TQ_FMT_AFFINE_K8, TQ_FMT_LLOYD_V2, TQ_FMT_LLOYD_V3,  TQ_FMT_LLOYD_V4,
    TQ_FMT_LLOYD_V5,  TQ_FMT_LLOYD_V8,  TQ_FMT_NORM2,    TQ_FMT_NORM3,     TQ_FMT_NORM4,
    TQ_FMT_NORM5,     TQ_FMT_NORM6,     TQ_FMT_NORM8,    TQ_FMT_TCQ2,      TQ_FMT_TCQ3,
    TQ_FMT_TCQ4,      TQ_FMT_TCQ5,      TQ_FMT_TCQ6,     TQ_FMT_UNIFORM4,  TQ_FMT_UNIFORM8,
    TQ_FMT_MSE1,      TQ_FMT_MSE2,      TQ_FMT_MSE3,     TQ_FMT_MSE4,      TQ_FMT_PROD1,
    TQ_FMT_PROD2,     TQ_FMT_PROD3,     TQ_FMT_PROD4,    TQ_FMT_FORK2,     TQ_FMT_FORK3,
    TQ_FMT_FORK4};

enum { N_FORMATS = sizeof formats / sizeof formats[0], N_ROWS = 17 };

/* Two dimensions: the largest, and the largest with a short last group and an odd factor. */
static const uint32_t dims[] = {1024, 720};

typedef struct job {
    uint32_t isa_mask, dim;
    tq_format format;
    int done;
} job;

static float x[N_ROWS * 1024], y[N_ROWS * 1024];
static uint8_t blocks[N_ROWS * 4096];

static void *use_codec(void *arg)
{
    job *j = arg;
    tq_codec c;
    tq_status st = tq_codec_init(&c, j->format, j->dim, 0, j->isa_mask);

    if (st == TQ_ERR_DIM) { /* not for this format: nothing to run */
        j->done = 1;
        return NULL;
    }
    if (st != TQ_OK)
        return NULL;
    if (c.effort) /* the deepest search, and the row without its mean */
        tq_codec_init(&c, c.format, j->dim, TQ_CODEC_EFFORT_12 | TQ_CODEC_MEAN, j->isa_mask);
    for (int huge = 0; huge < 2; huge++) { /* the guards take other ways */
        for (size_t i = 0; i < N_ROWS * (size_t)j->dim; i++)
            x[i] = huge ? 3e38f : (float)(i % 97) - 40.0f;
        if (tq_codec_encode(&c, blocks, sizeof blocks, x, j->dim, N_ROWS, NULL) != TQ_OK ||
            tq_codec_decode(&c, y, j->dim, blocks, sizeof blocks, N_ROWS) != TQ_OK)
            return NULL;
        tq_codec_decode_planes(&c, y, j->dim, tq_codec_const_planes(&c, blocks), N_ROWS, 1);
    }
    j->done = 1;
    return NULL;
}

/* Runs the job on a stack filled with a pattern. Returns how deep its calls wrote: the thread's own
 * record, which lies in it too, included. (A stack of 64 KB itself would not do: AArch64 asks for
 * twice that.) */
static size_t depth_of(job *j)
{
    enum { STACK_BYTES = 256 * 1024 };
    static _Alignas(64) uint8_t stack[STACK_BYTES];
    pthread_attr_t attr;
    pthread_t thread;
    size_t untouched = 0;

    memset(stack, 0xa5, sizeof stack);
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstack(&attr, stack, sizeof stack), 0);
    atomic_store(&refuse, 1);
    assert_int_equal(pthread_create(&thread, &attr, use_codec, j), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    atomic_store(&refuse, 0);
    pthread_attr_destroy(&attr);
    while (untouched < sizeof stack && stack[untouched] == 0xa5)
        untouched++;
    return sizeof stack - untouched;
}

static void a_small_stack_and_no_allocator(void **state)
{
    static const uint32_t masks[] = {TQ_ISA_SCALAR, TQ_ISA_AVX2, TQ_ISA_ALL};

    (void)state;
#ifdef HAS_SANITIZER
    skip(); /* sanitizers have stack frames and an allocator of their own */
#endif
    size_t deepest = 0;
    for (size_t m = 0; m < sizeof masks / sizeof masks[0]; m++)
        for (size_t f = 0; f < N_FORMATS; f++)
            for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
                job j = {.isa_mask = masks[m], .dim = dims[d], .format = formats[f]};
                const size_t depth = depth_of(&j);
                if (!j.done)
                    fail_msg("format %d, dim %u, mask %x: failed", (int)j.format, j.dim, masks[m]);
                if (depth > 64 * 1024)
                    fail_msg("format %d, dim %u, mask %x: %zu bytes of stack", (int)j.format, j.dim,
                             masks[m], depth);
                deepest = depth > deepest ? depth : deepest;
            }
    print_message("deepest stack: %zu bytes\n", deepest);
    assert_int_equal(atomic_load(&refused), 0);
}

/* The trap works: or the test above would pass whatever the library does. */
static void the_allocator_is_replaced(void **state)
{
    (void)state;
    atomic_store(&refuse, 1);
    void *volatile p = malloc(8); /* or the compiler leaves it out */
    const int caught = p == NULL && atomic_load(&refused) == 1;
    atomic_store(&refuse, 0);
    atomic_store(&refused, 0);
    free(p);
    assert_true(caught);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_allocator_is_replaced),
        cmocka_unit_test(a_small_stack_and_no_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
