/* SPDX-License-Identifier: MIT */
/* test_attn_threads.c — attention in threads: results do not depend on how many there are. Apart
 * from test_attn_parts.c because ThreadSanitizer runs this, and has nothing to find in that. */
#include "support.h"

#include "attn_case.h"

#include <pthread.h>

static const char *const schemes[] = {
    "f32",    "f16",  "turbo:k8v3", "turbo:k5v4", "turbo:k8v3,attn=dequant",
    "turbo4", "tcq3", "affine4"};
enum { N_SCHEMES = 8 };

typedef struct worker {
    const attn_case *c;
    const tq_attn_plan *p;
    float *out;
    void *partials;
    uint32_t id, n;
    tq_status st;
} worker;

static void *run_parts(void *arg)
{
    worker *w = arg;
    void *work = attn_case_memory(w->p->work_bytes);
    w->st = TQ_OK;
    for (uint32_t i = w->id; i < w->p->n_parts && w->st == TQ_OK; i += w->n)
        w->st = tq_attn_part(w->p, &w->c->view, w->c->q, w->c->q_stride, w->partials, work, i);
    free(work);
    return NULL;
}

static void *run_rows(void *arg)
{
    worker *w = arg;
    void *work = attn_case_memory(w->p->work_bytes);
    const uint32_t lo = (uint32_t)((uint64_t)w->p->n_rows * w->id / w->n);
    const uint32_t hi = (uint32_t)((uint64_t)w->p->n_rows * (w->id + 1) / w->n);
    w->st =
        tq_attn_merge(w->p, &w->c->view, w->out, w->c->out_stride, w->partials, work, lo, hi - lo);
    free(work);
    return NULL;
}

/* PITFALL 35. */
static void threads_do_not_change_a_byte(void **state)
{
    (void)state;
    static const uint32_t q_lens[] = {1, 5, 150}, dims[] = {80, 96, 64};
    for (int s = 0; s < N_SCHEMES; s++)
        for (int j = 0; j < 3; j++) {
            attn_case c = {.scheme = schemes[s],
                           .n_kv = 3,
                           .group = 2,
                           .d_k = dims[j],
                           .d_v = dims[j],
                           .n_tokens = j < 2 ? 1200 : 300,
                           .cfg.q_len = q_lens[j]};
            attn_case_open(&c, 31);
            attn_case_run(&c);
            tq_attn_plan p;
            assert_int_equal(tq_attn_plan_init(&p, &c.cfg, &c.view), TQ_OK);
            assert_true(p.n_parts > 1);
            float *out = malloc(c.n_out * sizeof *out);
            assert_non_null(out);
            for (uint32_t n = 1; n <= 3; n++) {
                void *partials = attn_case_memory(p.partials_bytes);
                pthread_t id[3];
                worker w[3];
                memset(out, 0xff, c.n_out * sizeof *out);
                for (int phase = 0; phase < 2; phase++) {
                    for (uint32_t i = 0; i < n; i++) {
                        w[i] = (worker){&c, &p, out, partials, i, n, TQ_ERR_STATE};
                        assert_int_equal(
                            pthread_create(&id[i], NULL, phase ? run_rows : run_parts, &w[i]), 0);
                    }
                    for (uint32_t i = 0; i < n; i++) {
                        pthread_join(id[i], NULL);
                        assert_int_equal(w[i].st, TQ_OK);
                    }
                }
                assert_memory_equal(out, c.out, c.n_out * sizeof *out);
                free(partials);
            }
            free(out);
            attn_case_close(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_change_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
