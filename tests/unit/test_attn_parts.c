/* SPDX-License-Identifier: MIT */
/* test_attn_parts.c — how attention is split: results do not depend on the order of parts, or on
 * what else is in the batch; buffers are as large as announced; arguments. test_attn_threads.c does
 * it with threads. */
#define _DEFAULT_SOURCE /* mmap */
#include "support.h"

#include "attn_case.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const schemes[] = {"f32", "f16", "turbo:k8v3", "turbo:k5v4",
                                      "turbo:k8v3,attn=dequant"};
enum { N_SCHEMES = 5 };

static attn_case make_case(const char *scheme, uint32_t n_tokens, uint32_t q_len)
{
    attn_case c = {.scheme = scheme,
                   .n_kv = 3,
                   .group = 2,
                   .d_k = 64,
                   .d_v = 64,
                   .n_tokens = n_tokens,
                   .cfg.q_len = q_len};
    return c;
}

/* ---- Order of parts --------------------------------------------------------------------- */

static void order_of_parts_does_not_change_a_byte(void **state)
{
    (void)state;
    for (int s = 0; s < N_SCHEMES; s++)
        for (uint32_t q_len = 1; q_len < 150; q_len += 139) {
            attn_case c = make_case(schemes[s], q_len > 1 ? 400 : 1200, q_len);
            attn_case_open(&c, 32);
            attn_case_run(&c);
            tq_attn_plan p;
            assert_int_equal(tq_attn_plan_init(&p, &c.cfg, &c.view), TQ_OK);
            void *partials = attn_case_memory(p.partials_bytes),
                 *work = attn_case_memory(p.work_bytes);
            float *out = malloc(c.n_out * sizeof *out);
            assert_non_null(out);
            const uint32_t steps[] = {0, 1, 4,
                                      UINT32_MAX}; /* nor does what comes next, true or not */
            for (uint32_t k = 0; k < (q_len == 1 ? 4 : 1); k++) {
                p.step = steps[k];
                memset(out, 0xff, c.n_out * sizeof *out);
                for (uint32_t i = p.n_parts; i-- > 0;)
                    assert_int_equal(tq_attn_part(&p, &c.view, c.q, c.q_stride, partials, work, i),
                                     TQ_OK);
                for (uint32_t row = p.n_rows; row-- > 0;)
                    assert_int_equal(
                        tq_attn_merge(&p, &c.view, out, c.out_stride, partials, work, row, 1),
                        TQ_OK);
                assert_memory_equal(out, c.out, c.n_out * sizeof *out);
            }
            free(out);
            free(partials);
            free(work);
            attn_case_close(&c);
        }
}

/* ---- Batches --------------------------------------------------------------------------- */

/* Attend with the last q_len of the first n_tokens tokens, queries q0.. of the case. */
static void run_prefix(attn_case *c, uint32_t n_tokens, uint32_t q0, uint32_t q_len, float *out)
{
    tq_view v = c->view;
    tq_attn_config cfg = c->cfg;
    tq_attn_plan p;
    v.n_tokens = n_tokens; /* what the view was when these tokens were the newest */
    cfg.q_len = q_len;
    assert_int_equal(tq_attn_plan_init(&p, &cfg, &v), TQ_OK);
    const size_t bytes = p.partials_bytes + p.work_bytes + 64;
    void *scratch = malloc(bytes);
    assert_non_null(scratch);
    memset(scratch, 0xff, bytes);
    assert_int_equal(tq_attn_run(&p, &v, out, c->out_stride, c->q + q0 * c->q_stride, c->q_stride,
                                 scratch, bytes),
                     TQ_OK);
    free(scratch);
}

/* PITFALLS 20, 29, 30: queries in one call or in several, on the same path: equal bytes. */
static void chunks_do_not_change_a_byte(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_tokens, q_len, window, n_kv;
        uint32_t chunks[10]; /* 0 ends */
    } cases[] = {
        {500, 8, 0, 3, {1, 1, 1, 1, 1, 1, 1, 1}}, /* a verify step against plain decoding */
        {515, 8, 0, 3, {4, 1, 3}},                /* across a border of chunks */
        {1027, 8, 0, 4, {4, 1, 3}},               /* of longer ones */
        {1030, 5, 70, 3, {4, 1}},                 /* with a window */
        {300, 300, 0, 3, {100, 9, 64, 127}},      /* prefill in chunks, from nothing */
        {500, 100, 0, 3, {50, 50}},               /* prefill behind a prefix */
        {500, 100, 40, 3, {9, 91}},               /* and with a window that crosses chunks */
    };
    for (int s = 0; s < N_SCHEMES; s++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            attn_case c = make_case(schemes[s], cases[i].n_tokens, cases[i].q_len);
            c.cfg.window = cases[i].window;
            c.n_kv = cases[i].n_kv;
            attn_case_open(&c, 33);
            attn_case_run(&c);
            float *out = malloc(c.n_out * sizeof *out);
            assert_non_null(out);
            uint32_t done = 0;
            for (int j = 0; j < 10 && cases[i].chunks[j]; j++) {
                const uint32_t n = cases[i].chunks[j];
                run_prefix(&c, c.n_tokens - c.cfg.q_len + done + n, done, n,
                           out + done * c.out_stride);
                done += n;
            }
            assert_int_equal(done, c.cfg.q_len);
            assert_memory_equal(out, c.out, c.n_out * sizeof *out);
            free(out);
            attn_case_close(&c);
        }
}

/* PITFALL 21: decode, then a second prompt chunk, then decode: as one float64 answer. */
static void paths_agree_where_they_meet(void **state)
{
    (void)state;
    for (int s = 0; s < N_SCHEMES; s++) {
        attn_case c = make_case(schemes[s], 700, 31);
        attn_case_open(&c, 34);
        double *want = malloc(c.n_out * sizeof *want);
        assert_non_null(want);
        attn_case_oracle(&c, want, 0);
        run_prefix(&c, 670, 0, 1, c.out);
        run_prefix(&c, 699, 1, 29, c.out + c.out_stride);
        run_prefix(&c, 700, 30, 1, c.out + 30 * c.out_stride);
        assert_true(attn_case_error(&c, want) < attn_case_rounding(&c));
        free(want);
        attn_case_close(&c);
    }
}

/* Keys and values of another sequence between our pages change nothing. */
static void page_order_does_not_matter(void **state)
{
    (void)state;
    attn_case c = make_case("turbo:k8v3", 300, 3);
    attn_case_open(&c, 35);
    attn_case_run(&c);
    uint32_t other, mixed;
    const size_t row = (size_t)c.n_kv * c.d_k;
    assert_int_equal(tq_cache_truncate(c.cache, c.seq, 0), TQ_OK);
    assert_int_equal(tq_cache_seq_open(c.cache, &other), TQ_OK);
    assert_int_equal(tq_cache_seq_open(c.cache, &mixed), TQ_OK);
    assert_int_equal(tq_cache_append(c.cache, mixed, c.k, c.v, 64), TQ_OK);
    assert_int_equal(tq_cache_append(c.cache, other, c.v, c.k, 64), TQ_OK);
    assert_int_equal(tq_cache_append(c.cache, mixed, c.k + 64 * row, c.v + 64 * row, 100), TQ_OK);
    assert_int_equal(tq_cache_truncate(c.cache, other, 0), TQ_OK);
    assert_int_equal(tq_cache_append(c.cache, mixed, c.k + 164 * row, c.v + 164 * row, 136), TQ_OK);
    float *first = malloc(c.n_out * sizeof *first);
    assert_non_null(first);
    memcpy(first, c.out, c.n_out * sizeof *first);
    assert_int_equal(tq_cache_view(c.cache, mixed, 0, &c.view), TQ_OK);
    attn_case_run(&c);
    assert_memory_equal(first, c.out, c.n_out * sizeof *first);
    free(first);
    attn_case_close(&c);
}

/* ---- Buffers --------------------------------------------------------------------------- */

/* `bytes` that end at an inaccessible page. */
static uint8_t *guarded(size_t bytes, size_t *mapped)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *mapped = (bytes + page - 1) / page * page + page;
    uint8_t *p = mmap(NULL, *mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p + *mapped - page, page, PROT_NONE), 0);
    return p + *mapped - page - bytes;
}

static void unguard(uint8_t *p, size_t bytes, size_t mapped)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap(p + bytes + page - mapped, mapped);
}

static void buffers_are_as_large_as_announced(void **state)
{
    (void)state;
    uint64_t seed = 36;
    for (int round = 0; round < 60; round++) {
        attn_case c = {.scheme = schemes[round % N_SCHEMES],
                       .n_kv = 1 + (uint32_t)(test_random(&seed) % 5),
                       .group = 1 + (uint32_t)(test_random(&seed) % 8),
                       .n_tokens = 1 + (uint32_t)(test_random(&seed) % 1100)};
        c.d_k = c.d_v = 64;
        if (round % N_SCHEMES < 2) {
            c.d_k = 16 + 8 * (uint32_t)(test_random(&seed) % 12);
            c.d_v = 16 + 8 * (uint32_t)(test_random(&seed) % 12);
        }
        c.cfg.q_len = 1 + (uint32_t)(test_random(&seed) % (round % 2 ? 8 : 200));
        c.cfg.q_len = c.cfg.q_len > c.n_tokens ? c.n_tokens : c.cfg.q_len;
        attn_case_open(&c, 37);
        tq_attn_plan p;
        assert_int_equal(tq_attn_plan_init(&p, &c.cfg, &c.view), TQ_OK);
        assert_int_equal(p.partials_bytes % 64, 0);
        assert_int_equal(p.work_bytes % 64, 0);
        size_t m1, m2, m3, m4;
        uint8_t *partials = guarded(p.partials_bytes, &m1), *work = guarded(p.work_bytes, &m2);
        const size_t q_bytes = c.cfg.q_len * c.q_stride * sizeof(float);
        const size_t out_bytes = c.n_out * sizeof(float);
        uint8_t *q = guarded(q_bytes, &m3), *out = guarded(out_bytes, &m4);
        memcpy(q, c.q, q_bytes);
        for (uint32_t i = 0; i < p.n_parts; i++)
            assert_int_equal(tq_attn_part(&p, &c.view, (const float *)(const void *)q, c.q_stride,
                                          partials, work, i),
                             TQ_OK);
        assert_int_equal(tq_attn_merge(&p, &c.view, (float *)(void *)out, c.out_stride, partials,
                                       work, 0, p.n_rows),
                         TQ_OK);
        attn_case_run(&c);
        assert_memory_equal(out, c.out, out_bytes);
        unguard(partials, p.partials_bytes, m1);
        unguard(work, p.work_bytes, m2);
        unguard(q, q_bytes, m3);
        unguard(out, out_bytes, m4);
        attn_case_close(&c);
    }
}

static void bounds_hold_for_every_plan(void **state)
{
    (void)state;
    uint64_t seed = 38;
    for (int round = 0; round < 2000; round++) {
        tq_layer layer = {.n_kv_heads = 1 + (uint32_t)(test_random(&seed) % 9),
                          .d_k = 64u << test_random(&seed) % 4,
                          .d_v = 64u << test_random(&seed) % 4};
        const char *scheme = schemes[test_random(&seed) % N_SCHEMES];
        assert_int_equal(tq_scheme_parse(&layer.scheme, scheme, NULL, 0), TQ_OK);
        const uint32_t heads = layer.n_kv_heads * (1 + (uint32_t)(test_random(&seed) % 32));
        const uint32_t max_q = 1 + (uint32_t)(test_random(&seed) % (round % 2 ? 20 : 4096));
        const uint32_t max_tokens = 1 + (uint32_t)(test_random(&seed) % 20000);
        size_t partials, work;
        assert_int_equal(tq_attn_bounds(&layer, heads, max_q, max_tokens, &partials, &work), TQ_OK);
        /* A plan looks at shapes only. */
        tq_codec k, v;
        tq_format kf, vf;
        assert_int_equal(tq_scheme_format_of(&layer.scheme, 0, &kf), TQ_OK);
        assert_int_equal(tq_scheme_format_of(&layer.scheme, 1, &vf), TQ_OK);
        assert_int_equal(tq_codec_init(&k, kf, layer.d_k, 0, TQ_ISA_ALL), TQ_OK);
        assert_int_equal(tq_codec_init(&v, vf, layer.d_v, 0, TQ_ISA_ALL), TQ_OK);
        for (int i = 0; i < 20; i++) {
            tq_view view = {.packed = {.k = &k, .v = &v},
                            .n_kv_heads = layer.n_kv_heads,
                            .d_v = layer.d_v,
                            .attn = layer.scheme.attn};
            tq_attn_config cfg = {.n_q_heads = heads, .scale = 1};
            view.n_tokens = i == 0 ? max_tokens : 1 + (uint32_t)(test_random(&seed) % max_tokens);
            cfg.q_len = i < 2 ? max_q : 1 + (uint32_t)(test_random(&seed) % max_q);
            cfg.q_len = cfg.q_len > view.n_tokens ? view.n_tokens : cfg.q_len;
            cfg.window = i % 3 ? 0 : 1 + (uint32_t)(test_random(&seed) % 3000);
            tq_attn_plan p;
            assert_int_equal(tq_attn_plan_init(&p, &cfg, &view), TQ_OK);
            assert_true(p.partials_bytes <= partials);
            assert_true(p.work_bytes <= work);
            assert_true(p.n_parts > 0);
            assert_int_equal(p.n_rows, cfg.q_len * heads);
        }
    }
}

/* PITFALL 12: a thread with a stack of 64 KiB is enough for all of it. */
typedef struct small_stack {
    attn_case *c;
    tq_attn_plan p;
    uint8_t *scratch;
    size_t bytes;
    tq_status st;
} small_stack;

static void *on_a_small_stack(void *arg)
{
    small_stack *s = arg;
    attn_case *c = s->c;
    s->st = tq_cache_append(c->cache, c->seq, c->k, c->v, c->n_tokens);
    if (s->st == TQ_OK)
        s->st = tq_attn_run(&s->p, &c->view, c->out, c->out_stride, c->q, c->q_stride, s->scratch,
                            s->bytes);
    return NULL;
}

static void a_small_stack_is_enough(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their frames are several times as large */
#endif
    static const struct {
        const char *scheme;
        uint32_t d;
    } cases[] = {{"f32", 1024}, {"turbo:k8v3", 512}, {"turbo:k5v5,attn=dequant", 512}};
    static const uint32_t masks[] = {TQ_ISA_SCALAR, TQ_ISA_ALL};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            for (uint32_t q_len = 1; q_len < 20; q_len += 18) {
                attn_case c = {.scheme = cases[i].scheme,
                               .n_kv = 1,
                               .group = 7,
                               .d_k = cases[i].d,
                               .d_v = cases[i].d,
                               .n_tokens = 70,
                               .isa_mask = masks[j],
                               .cfg.q_len = q_len};
                attn_case_open(&c, 39);
                small_stack s = {.c = &c};
                assert_int_equal(tq_attn_plan_init(&s.p, &c.cfg, &c.view), TQ_OK);
                assert_int_equal(tq_cache_truncate(c.cache, c.seq, 0), TQ_OK);
                s.bytes = s.p.partials_bytes + s.p.work_bytes + 64;
                s.scratch = malloc(s.bytes);
                assert_non_null(s.scratch);
                pthread_attr_t attr;
                pthread_t id;
                assert_int_equal(pthread_attr_init(&attr), 0);
                assert_int_equal(pthread_attr_setstacksize(&attr, 65536), 0);
                assert_int_equal(pthread_create(&id, &attr, on_a_small_stack, &s), 0);
                pthread_join(id, NULL);
                pthread_attr_destroy(&attr);
                assert_int_equal(s.st, TQ_OK);
                free(s.scratch);
                attn_case_close(&c);
            }
}

/* ---- Arguments ------------------------------------------------------------------------- */

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    attn_case c = make_case("turbo:k8v3", 100, 4);
    attn_case_open(&c, 40);
    const tq_attn_config good = c.cfg;
    tq_attn_plan p;
    struct {
        tq_attn_config cfg;
    } bad[10];
    for (int i = 0; i < 10; i++)
        bad[i].cfg = good;
    bad[0].cfg.n_q_heads = 0;
    bad[1].cfg.n_q_heads = 7;  /* not a multiple of 3 */
    bad[2].cfg.n_q_heads = 99; /* ratio 33 */
    bad[3].cfg.q_len = 0;
    bad[4].cfg.q_len = 4097;
    bad[5].cfg.q_len = 101; /* more than there are tokens */
    bad[6].cfg.scale = NAN;
    bad[7].cfg.scale = INFINITY;
    bad[8].cfg.softcap = -1;
    bad[9].cfg.softcap = NAN;
    for (int i = 0; i < 10; i++) {
        memset(&p, 0x55, sizeof p);
        const tq_attn_plan before = p;
        assert_int_equal(tq_attn_plan_init(&p, &bad[i].cfg, &c.view), TQ_ERR_ARG);
        assert_memory_equal(&p, &before, sizeof p);
    }
    assert_int_equal(tq_attn_plan_init(NULL, &good, &c.view), TQ_ERR_ARG);
    assert_int_equal(tq_attn_plan_init(&p, NULL, &c.view), TQ_ERR_ARG);
    assert_int_equal(tq_attn_plan_init(&p, &good, NULL), TQ_ERR_ARG);
    assert_int_equal(tq_attn_plan_init(&p, &good, &c.view), TQ_OK);

    uint8_t *partials = attn_case_memory(p.partials_bytes + 64),
            *work = attn_case_memory(p.work_bytes + 64);
    const size_t qs = c.q_stride, os = c.out_stride;
    assert_int_equal(tq_attn_part(&p, &c.view, c.q, qs, partials, work, p.n_parts), TQ_ERR_ARG);
    assert_int_equal(tq_attn_part(&p, &c.view, c.q, qs - 1, partials, work, 0), TQ_ERR_ARG);
    assert_int_equal(tq_attn_part(&p, &c.view, c.q, qs, partials + 32, work, 0), TQ_ERR_ARG);
    assert_int_equal(tq_attn_part(&p, &c.view, c.q, qs, partials, work + 32, 0), TQ_ERR_ARG);
    assert_int_equal(tq_attn_part(&p, &c.view, NULL, qs, partials, work, 0), TQ_ERR_ARG);
    assert_int_equal(tq_attn_merge(&p, &c.view, c.out, os, partials, work, 0, p.n_rows + 1),
                     TQ_ERR_ARG);
    assert_int_equal(tq_attn_merge(&p, &c.view, c.out, os, partials, work, p.n_rows, 1),
                     TQ_ERR_ARG);
    assert_int_equal(tq_attn_merge(&p, &c.view, c.out, os - 1, partials, work, 0, 1), TQ_ERR_ARG);
    tq_view longer = c.view; /* the view has moved on since the plan was made */
    longer.n_tokens--;
    assert_int_equal(tq_attn_part(&p, &longer, c.q, qs, partials, work, 0), TQ_ERR_ARG);
    const size_t bytes = p.partials_bytes + p.work_bytes + 64;
    uint8_t *scratch = malloc(bytes);
    assert_non_null(scratch);
    assert_int_equal(tq_attn_run(&p, &c.view, c.out, os, c.q, qs, scratch, bytes - 1), TQ_ERR_SIZE);
    assert_int_equal(tq_attn_run(&p, &c.view, c.out, os, c.q, qs, NULL, bytes), TQ_ERR_ARG);
    assert_int_equal(tq_attn_run(&p, &c.view, c.out, os, c.q, qs, scratch, bytes), TQ_OK);
    free(scratch);
    free(partials);
    free(work);

    tq_layer layer = {.n_kv_heads = 3, .d_k = 64, .d_v = 64};
    size_t a, b;
    assert_int_equal(tq_scheme_parse(&layer.scheme, "turbo:k8v3", NULL, 0), TQ_OK);
    assert_int_equal(tq_attn_bounds(&layer, 6, 0, 10, &a, &b), TQ_ERR_ARG);
    assert_int_equal(tq_attn_bounds(&layer, 7, 1, 10, &a, &b), TQ_ERR_ARG);
    assert_int_equal(tq_attn_bounds(&layer, 6, 1, 0, &a, &b), TQ_ERR_ARG);
    assert_int_equal(tq_attn_bounds(&layer, 6, 1, 10, NULL, &b), TQ_ERR_ARG);
    layer.d_v = 88;
    assert_int_equal(tq_attn_bounds(&layer, 6, 1, 10, &a, &b), TQ_ERR_DIM);
    attn_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_of_parts_does_not_change_a_byte),
        cmocka_unit_test(chunks_do_not_change_a_byte),
        cmocka_unit_test(paths_agree_where_they_meet),
        cmocka_unit_test(page_order_does_not_matter),
        cmocka_unit_test(buffers_are_as_large_as_announced),
        cmocka_unit_test(bounds_hold_for_every_plan),
        cmocka_unit_test(a_small_stack_is_enough),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
