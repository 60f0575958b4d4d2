/* SPDX-License-Identifier: MIT */
/* test_attn_batch.c — many sequences in one call: equal, bit for bit, to each alone, whatever their
 * lengths, query counts, masks, schemes and shapes, for any threads and any cut of the rows. */
#include "support.h"

#include "attn_case.h"
#include "turboquant_batch.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MAX_ITEMS = 8 };

typedef struct batch_case {
    attn_case c[MAX_ITEMS];
    tq_attn_plan plans[MAX_ITEMS];
    tq_attn_item items[MAX_ITEMS];
    float *out[MAX_ITEMS];
    uint32_t n;
    tq_attn_batch b;
    void *partials;
    atomic_uint next;
    atomic_int status;
    int merging;
} batch_case;

/* c[].scheme and so on are set; each is run alone into c[].out. */
static void open_batch(batch_case *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        attn_case *c = &b->c[i];
        attn_case_open(c, 60 + i);
        attn_case_run(c);
        assert_int_equal(tq_attn_plan_init(&b->plans[i], &c->cfg, &c->view), TQ_OK);
        b->out[i] = malloc(c->n_out * sizeof(float));
        assert_non_null(b->out[i]);
        memset(b->out[i], 0xff, c->n_out * sizeof(float));
        b->items[i] = (tq_attn_item){.plan = &b->plans[i],
                                     .view = &c->view,
                                     .q = c->q,
                                     .q_stride = c->q_stride,
                                     .out = b->out[i],
                                     .out_stride = c->out_stride};
    }
    assert_int_equal(tq_attn_batch_init(&b->b, b->items, b->n), TQ_OK);
    b->partials = attn_case_memory(b->b.partials_bytes);
}

static void *worker(void *arg)
{
    batch_case *b = arg;
    void *work = attn_case_memory(b->b.work_bytes);
    enum { ROWS = 7 }; /* no multiple of anything: runs cross from one item to the next */
    for (;;) {
        uint32_t i = atomic_fetch_add(&b->next, b->merging ? ROWS : 1);
        if (i >= (b->merging ? b->b.n_rows : b->b.n_parts))
            break;
        uint32_t n = b->b.n_rows - i < ROWS ? b->b.n_rows - i : ROWS;
        tq_status st = b->merging ? tq_attn_batch_merge(&b->b, b->partials, work, i, n)
                                  : tq_attn_batch_part(&b->b, b->partials, work, i);
        if (st != TQ_OK)
            atomic_store(&b->status, st);
    }
    free(work);
    return NULL;
}

static void run_batch(batch_case *b, uint32_t n_threads)
{
    pthread_t id[4];
    for (b->merging = 0; b->merging < 2; b->merging++) {
        atomic_store(&b->next, 0);
        for (uint32_t i = 0; i < n_threads; i++)
            assert_int_equal(pthread_create(&id[i], NULL, worker, b), 0);
        for (uint32_t i = 0; i < n_threads; i++)
            pthread_join(id[i], NULL);
    }
    assert_int_equal(atomic_load(&b->status), TQ_OK);
}

static void close_batch(batch_case *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        attn_case_close(&b->c[i]);
        free(b->out[i]);
    }
    free(b->partials);
}

static void assert_as_alone(batch_case *b)
{
    for (uint32_t n = 1; n <= 3; n++) {
        run_batch(b, n);
        for (uint32_t i = 0; i < b->n; i++) {
            if (memcmp(b->out[i], b->c[i].out, b->c[i].n_out * sizeof(float)) != 0)
                fail_msg("item %u (%s, %u tokens, q_len %u) differs, %u threads", i, b->c[i].scheme,
                         b->c[i].n_tokens, b->c[i].cfg.q_len, n);
            memset(b->out[i], 0xff, b->c[i].n_out * sizeof(float));
        }
    }
}

static attn_case sequence(const char *scheme, uint32_t n_tokens, uint32_t q_len)
{
    return (attn_case){.scheme = scheme,
                       .n_kv = 2,
                       .group = 3,
                       .d_k = 64,
                       .d_v = 64,
                       .n_tokens = n_tokens,
                       .cfg.q_len = q_len};
}

static const char *const schemes[] = {"f32",    "f16",  "turbo:k8v3",
                                      "turbo4", "tcq3", "turbo4,attn=dequant"};

/* PITFALL 29: a verify step of four rows beside one of a single row. */
static void q_len_may_differ(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        batch_case b = {.n = 2};
        b.c[0] = sequence(schemes[s], 700, 4);
        b.c[1] = sequence(schemes[s], 90, 1);
        open_batch(&b);
        assert_as_alone(&b);
        close_batch(&b);
    }
}

/* PITFALL 30: a first prefill beside one behind a cached prefix, and a decode step. */
static void prefills_with_and_without_a_prefix(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        batch_case b = {.n = 3};
        b.c[0] = sequence(schemes[s], 1000, 1000);
        b.c[1] = sequence(schemes[s], 500, 100);
        b.c[2] = sequence(schemes[s], 1, 1);
        for (int i = 0; i < 3; i++)
            b.c[i].n_kv = b.c[i].group = 1;
        open_batch(&b);
        assert_as_alone(&b);
        close_batch(&b);
    }
}

/* Nothing has to be equal: layers, schemes, masks. */
static void everything_may_differ(void **state)
{
    (void)state;
    static const float sinks[6] = {1, -2, 0, 3, -INFINITY, 2};
    batch_case b = {.n = 7};
    b.c[0] = sequence("turbo:k8v3", 1300, 2);
    b.c[1] = sequence("f16", 65, 20);
    b.c[2] = sequence("tcq4", 64, 1);
    b.c[3] = sequence("turbo3", 600, 8);
    b.c[4] = sequence("turbo4", 513, 1);
    b.c[5] = sequence("affine8", 1, 1);
    b.c[6] = sequence("bf16,attn=dequant", 40, 3);
    b.c[0].cfg.window = 600;
    b.c[1].cfg.softcap = 2;
    b.c[3].cfg.sinks = sinks;
    b.c[4].v_in_k = 1;
    b.c[4].d_v = 40;
    b.c[5].d_k = 40;
    b.c[5].group = 5;
    open_batch(&b);
    assert_as_alone(&b);
    close_batch(&b);
}

static void a_sequence_may_be_there_twice(void **state)
{
    (void)state;
    batch_case b = {.n = 2};
    b.c[0] = sequence("turbo4", 200, 3);
    b.c[1] = sequence("turbo4", 200, 3);
    open_batch(&b);
    b.items[1] = b.items[0];
    b.items[1].out = b.out[1];
    assert_int_equal(tq_attn_batch_init(&b.b, b.items, 2), TQ_OK);
    run_batch(&b, 2);
    assert_memory_equal(b.out[0], b.out[1], b.c[0].n_out * sizeof(float));
    assert_memory_equal(b.out[0], b.c[0].out, b.c[0].n_out * sizeof(float));
    close_batch(&b);
}

static void bad_batches_are_refused(void **state)
{
    (void)state;
    batch_case b = {.n = 2};
    b.c[0] = sequence("f16", 20, 2);
    b.c[1] = sequence("f16", 30, 1);
    open_batch(&b);
    void *work = attn_case_memory(b.b.work_bytes);
    tq_attn_batch made;
    memset(&made, 0x55, sizeof made);
    const tq_attn_batch before = made;
    assert_int_equal(tq_attn_batch_init(NULL, b.items, 2), TQ_ERR_ARG);
    assert_int_equal(tq_attn_batch_init(&made, NULL, 2), TQ_ERR_ARG);
    assert_int_equal(tq_attn_batch_init(&made, b.items, 0), TQ_ERR_ARG);
    for (int i = 0; i < 4; i++) {
        tq_attn_item items[2] = {b.items[0], b.items[1]};
        if (i == 0)
            items[1].plan = NULL;
        else if (i == 1)
            items[1].view = NULL;
        else if (i == 2)
            items[1].q = NULL;
        else
            items[1].out = NULL;
        assert_int_equal(tq_attn_batch_init(&made, items, 2), TQ_ERR_ARG);
    }
    tq_attn_plan huge[2] = {b.plans[0], b.plans[0]};
    huge[0].n_parts = UINT32_MAX;
    tq_attn_item two[2] = {b.items[0], b.items[0]};
    two[0].plan = &huge[0];
    assert_int_equal(tq_attn_batch_init(&made, two, 2), TQ_ERR_OVERFLOW);
    huge[0] = b.plans[0];
    huge[0].partials_bytes = huge[1].partials_bytes = SIZE_MAX / 2 + 1;
    two[1].plan = &huge[1];
    assert_int_equal(tq_attn_batch_init(&made, two, 2), TQ_ERR_OVERFLOW);
    assert_memory_equal(&made, &before, sizeof made);

    assert_int_equal(tq_attn_batch_part(&b.b, b.partials, work, b.b.n_parts), TQ_ERR_ARG);
    assert_int_equal(tq_attn_batch_part(&b.b, NULL, work, 0), TQ_ERR_ARG);
    assert_int_equal(tq_attn_batch_part(NULL, b.partials, work, 0), TQ_ERR_ARG);
    assert_int_equal(tq_attn_batch_merge(&b.b, b.partials, work, 0, b.b.n_rows + 1), TQ_ERR_ARG);
    assert_int_equal(tq_attn_batch_merge(&b.b, b.partials, work, b.b.n_rows, 1), TQ_ERR_ARG);
    assert_int_equal(tq_attn_batch_merge(&b.b, b.partials, work, b.b.n_rows, 0), TQ_OK);
    b.c[1].view.n_tokens--; /* it has moved on since its plan was made */
    assert_int_equal(tq_attn_batch_part(&b.b, b.partials, work, b.b.n_parts - 1), TQ_ERR_ARG);
    free(work);
    close_batch(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q_len_may_differ),
        cmocka_unit_test(prefills_with_and_without_a_prefix),
        cmocka_unit_test(everything_may_differ),
        cmocka_unit_test(a_sequence_may_be_there_twice),
        cmocka_unit_test(bad_batches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
