/* SPDX-License-Identifier: MIT */
/* test_alloc.c — memory that runs out, and memory that must come back.
 *
 * The engine is compiled a second time into this program, with malloc and its kin replaced (see
 * CMakeLists.txt), so that each allocation of a call can be made to fail in turn and every block is
 * counted. The call then says "out of memory", the session is what it was, and goes on to the same
 * bits; or it does without, as a prefix store may. ggml and libllama keep their own allocator: they
 * abort without memory, and nothing here can change that.
 */
#include "state_support.h"

#include "attn_priv.h"

#include <stdatomic.h>

/* ---- The allocator --------------------------------------------------------------------------- */

void *fault_malloc(size_t n);
void *fault_calloc(size_t n, size_t size);
void *fault_realloc(void *p, size_t n);
void *fault_aligned_alloc(size_t alignment, size_t n);
char *fault_strdup(const char *s);
void fault_free(void *p);

static atomic_int fail_at;   /* this allocation from now on fails; 0: none */
static atomic_long n_live;   /* blocks */
static atomic_int n_refused; /* allocations that failed */

static bool refuse(void)
{
    int at = atomic_load(&fail_at);
    while (at > 0 && !atomic_compare_exchange_weak(&fail_at, &at, at - 1)) {
    }
    if (at == 1) {
        n_refused++;
    }
    return at == 1;
}

static void *count(void *p)
{
    n_live += p != NULL;
    return p;
}

void *fault_malloc(size_t n)
{
    return refuse() ? NULL : count(malloc(n));
}

void *fault_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : count(calloc(n, size));
}

void *fault_realloc(void *p, size_t n)
{
    if (refuse()) {
        return NULL;
    }
    void *q = realloc(p, n);
    n_live += p == NULL && q != NULL;
    return q;
}

void *fault_aligned_alloc(size_t alignment, size_t n)
{
    return refuse() ? NULL : count(aligned_alloc(alignment, n));
}

char *fault_strdup(const char *s)
{
    return refuse() ? NULL : count(strdup(s));
}

void fault_free(void *p)
{
    n_live -= p != NULL;
    free(p);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

enum { N_CTX = 200, LEN = 70, BATCH = 32, N_IDS = 150 };

static tqe_model *tiny;
static int32_t ids[N_IDS];
static char kv[TQ_SCHEME_TEXT_BYTES];
static char *file, *other_file, *dir, *kmean, *layers;

/* What a call works on: a session of LEN tokens, made anew for each call that takes it. */
typedef struct world {
    tqe_session *s, *made;
    tqe_prefix *p;
    tqe_snapshot *f;
} world;

static tqe_status call_create(world *w, tqe_error *err)
{
    const tqe_session_params p = {.n_ctx = N_CTX, .n_threads = 1, .n_batch = BATCH, .kv = kv};
    return tqe_session_create(&w->made, tiny, &p, err);
}

static tqe_status call_fork(world *w, tqe_error *err)
{
    return tqe_session_fork(&w->made, w->s, LEN, err);
}

static tqe_status call_eval(world *w, tqe_error *err)
{
    return tqe_session_eval(w->s, ids, 2 * BATCH + 5, NULL, NULL, NULL, err);
}

static tqe_status call_truncate(world *w, tqe_error *err)
{
    return tqe_session_truncate(w->s, LEN - 2, err);
}

static tqe_status call_save(world *w, tqe_error *err)
{
    return tqe_session_save(w->s, other_file, err);
}

static tqe_status call_load(world *w, tqe_error *err)
{
    return tqe_session_load(w->s, file, err);
}

static tqe_status call_prompt(world *w, tqe_error *err)
{
    const tqe_status st = tqe_session_prompt(w->s, w->p, ids, N_IDS, NULL, NULL, NULL, err);
    tqe_prefix_flush(w->p);
    return st;
}

static tqe_status call_prefix_create(world *w, tqe_error *err)
{
    const tqe_prefix_params params = {.dir = dir, .every_pages = 1, .limit_bytes = 100000};
    tqe_prefix_free(w->p);
    w->p = NULL;
    return tqe_prefix_create(&w->p, &params, err);
}

static tqe_status call_open(world *w, tqe_error *err)
{
    return tqe_snapshot_open(&w->f, file, err);
}

static tqe_status call_verify(world *w, tqe_error *err)
{
    tqe_status st = tqe_snapshot_open(&w->f, file, err);
    return st == TQE_OK ? tqe_snapshot_verify(w->f, err) : st;
}

static tqe_status call_rows(world *w, tqe_error *err)
{
    static float rows[LEN * 64];
    tqe_status st = tqe_snapshot_open(&w->f, file, err);
    return st == TQE_OK ? tqe_snapshot_rows(w->f, 0, 0, 0, rows, err) : st;
}

static tqe_status call_compact(world *w, tqe_error *err)
{
    tqe_status st = tqe_snapshot_open(&w->f, file, err);
    return st == TQE_OK ? tqe_snapshot_compact(w->f, other_file, err) : st;
}

static tqe_status call_plan(world *w, tqe_error *err)
{
    tqe_model_info info;
    tqe_kv_plan plan;
    tq_scheme scheme;
    (void)w;
    tqe_model_get_info(tiny, &info);
    assert_int_equal(tq_scheme_parse(&scheme, kv, NULL, 0), TQ_OK);
    return tqe_kv_plan_make(&plan, &info, &scheme, 1 << 20, 1, err);
}

static tqe_status call_kmean_write(world *w, tqe_error *err)
{
    static const float mean[2 * 2 * 64];
    const tqe_kmean_shape shape = {2, 2, 64};
    char name[65];
    (void)w;
    (void)memset(name, 'a', 64);
    name[64] = '\0';
    return tqe_kmean_write(other_file, mean, &shape, name, "x", err);
}

static tqe_status call_layers_write(world *w, tqe_error *err)
{
    tq_scheme s[2] = {{.family = TQ_FAMILY_F32, .k_bits = 32, .v_bits = 32}};
    (void)w;
    s[1] = s[0];
    return tqe_layers_write(other_file, s, 2, "x", err);
}

typedef struct call {
    const char *name;
    tqe_status (*run)(world *, tqe_error *);
    int least;         /* allocations that it has at least, or the test would test nothing */
    bool does_without; /* it may succeed all the same */
    bool may_move;     /* after an error the session holds another prefix */
    bool is_apart;     /* it takes nothing of the world: one serves all of its allocations */
} call;

static const call calls[] = {
    {"create", call_create, 15, false, false, true},
    {"fork", call_fork, 8, false, false, false},
    {"eval", call_eval, 0, false, false, false},
    {"truncate", call_truncate, 0, false, false, false},
    {"save", call_save, 8, false, false, false},
    {"load", call_load, 6, false, false, false},
    {"prompt", call_prompt, 15, true, true, false},
    {"prefix create", call_prefix_create, 3, true, false, false},
    {"open", call_open, 4, false, false, true},
    {"verify", call_verify, 5, false, false, true},
    {"rows", call_rows, 6, false, false, true},
    {"compact", call_compact, 8, false, false, true},
    {"plan", call_plan, 10, false, false, true},
    {"write means", call_kmean_write, 2, false, false, true},
    {"write layers", call_layers_write, 2, false, false, true},
};

/* ---- Worlds ---------------------------------------------------------------------------------- */

static void begin(world *w)
{
    tqe_error err = {TQE_OK, ""};
    const tqe_session_params p = {
        .n_ctx = N_CTX, .n_threads = 1, .n_batch = BATCH, .kv = kv, .n_seqs = 2, .n_kept = 256};
    const tqe_prefix_params params = {.dir = dir, .every_pages = 1};
    *w = (world){0};
    state_ok(tqe_session_create(&w->s, tiny, &p, &err), &err);
    state_ok(tqe_prefix_create(&w->p, &params, &err), &err);
    state_eval(w->s, ids, LEN);
}

static void end(world *w)
{
    tqe_session_free(w->made);
    tqe_session_free(w->s);
    tqe_prefix_free(w->p);
    tqe_snapshot_close(w->f);
}

static int setup(void **state)
{
    (void)state;
    static const char *const mixed[] = {"turbo4", "affine8"};
    tiny = state_tiny(0, 0);
    state_tokens(ids, N_IDS, 3, tiny);
    file = state_path("a.tqs");
    other_file = state_path("b.tqs");
    dir = state_path("prefix");
    kmean = state_path("k");
    layers = state_path("l");
    state_write_kmean(kmean, tiny, 1.0f);
    state_write_layers(layers, tiny, mixed, 2);
    (void)snprintf(kv, sizeof(kv), "turbo4,kmean=%s,sink=3,tail=20,layers=%s", kmean, layers);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_model_free(tiny);
    (void)unlink(file);
    (void)unlink(other_file);
    (void)unlink(kmean);
    (void)unlink(layers);
    state_remove(dir);
    free(file);
    free(other_file);
    free(dir);
    free(kmean);
    free(layers);
    return n_live == 0 ? 0 : -1;
}

/* The session works, with the bits of one to which nothing happened. */
static void check_goes_on(world *w, const call *c, bool is_same)
{
    tqe_error err = {TQE_OK, ""};
    if (!is_same) { /* whatever it holds: the prompt itself comes out right */
        world fresh;
        state_remove(dir);
        begin(&fresh);
        state_ok(tqe_session_truncate(fresh.s, 0, &err), &err);
        state_ok(tqe_session_truncate(w->s, 0, &err), &err);
        state_eval(fresh.s, ids, N_IDS);
        state_eval(w->s, ids, N_IDS);
        state_same(w->s, state_logits(fresh.s, tiny), tiny, c->name);
        end(&fresh);
        return;
    }
    static float *want;
    tqe_model_info info;
    tqe_model_get_info(tiny, &info);
    assert_int_equal(tqe_session_len(w->s), LEN);
    assert_memory_equal(tqe_session_tokens(w->s), ids, LEN * sizeof(*ids));
    state_eval(w->s, ids + LEN, 3);
    if (want == NULL) {
        want = state_logits(w->s, tiny);
    }
    assert_memory_equal(tqe_session_logits(w->s), want, info.n_vocab * sizeof(*want));
}

static void check_call(const call *c)
{
    bool was_refused = true;
    int n = 0;
    world w;
    const long live_before = n_live;
    long live = 0;
    while (was_refused) {
        tqe_error err = {TQE_OK, ""};
        if (n == 0 || !c->is_apart) {
            state_remove(dir);
            begin(&w);
            live = n_live;
        }
        n_refused = 0;
        fail_at = ++n;
        const tqe_status st = c->run(&w, &err);
        fail_at = 0;
        was_refused = n_refused > 0;
        if (!was_refused) {
            state_ok(st, &err);
        } else if (st != TQE_OK) {
            if (st != TQE_ERR_NOMEM || strstr(err.text, "out of memory") == NULL) {
                fail_msg("%s, allocation %d: %d, %s", c->name, n, (int)st, err.text);
            }
            assert_null(w.made);
            if (!c->is_apart) {
                check_goes_on(&w, c, !c->may_move);
            }
        } else if (!c->does_without) {
            fail_msg("%s, allocation %d failed, the call did not", c->name, n);
        } else {
            check_goes_on(&w, c, false);
        }
        if (c->is_apart && was_refused) { /* nothing of the failed call is left */
            tqe_snapshot_close(w.f);
            w.f = NULL;
        } else {
            if (c->is_apart) { /* after all of its failures */
                check_goes_on(&w, c, true);
            }
            end(&w);
            live = live_before;
        }
        if (n_live != live) {
            fail_msg("%s, allocation %d: %ld blocks left", c->name, n, n_live - live);
        }
    }
    print_message("%s: %d allocations\n", c->name, n - 1);
    assert_true(n - 1 >= c->least);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    world w;
    tqe_error err = {TQE_OK, ""};
    begin(&w);
    state_ok(tqe_session_save(w.s, file, &err), &err);
    end(&w);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        check_call(&calls[i]);
    }
}

/* Every combination of the moduli below comes up in 1680 cycles. */
#if defined(TQ_TEST_SLOW)
enum { N_CYCLES = 2000 };
#else
enum { N_CYCLES = 10000 };
#endif

/* N_CYCLES times fork, append on both sides, go back, free; now and then a session with all of its
 * stored state, too: no block and no page is left. test_model_cache.c does this to the core. */
static void test_nothing_is_left(void **state)
{
    (void)state;
    const tqe_session_params p = {.n_ctx = 80, .n_threads = 1, .n_batch = 4, .kv = kv, .n_seqs = 3};
    tqe_session *s = NULL;
    tqe_error err = {TQE_OK, ""};
    tq_cache_stats before, after;
    const long live_before = n_live;
    state_ok(tqe_session_create(&s, tiny, &p, &err), &err);
    state_eval(s, ids, 66);
    tq_cache *cache = tqe_session_attn(s)->cache;
    const long live = n_live;
    assert_int_equal(tq_cache_get_stats(cache, &before), TQ_OK);
    for (int i = 0; i < N_CYCLES; i++) {
        tqe_session *a = NULL, *b = NULL;
        state_ok(tqe_session_fork(&a, s, 66, &err), &err);
        state_eval(a, ids + i % 80, 1);
        state_ok(tqe_session_fork(&b, a, 67, &err), &err);
        if (i % 10 == 0) {
            state_eval(b, ids + i % 70, 2);
            state_eval(s, ids + i % 60, 1);
            state_ok(tqe_session_truncate(s, 66, &err), &err);
        }
        tqe_session_free(i % 2 ? a : b);
        tqe_session_free(i % 2 ? b : a);
        if (n_live != live) {
            fail_msg("cycle %d: %ld blocks left", i, n_live - live);
        }
    }
    assert_int_equal(tq_cache_get_stats(cache, &after), TQ_OK);
    assert_int_equal(after.n_pages_used, before.n_pages_used);
    assert_int_equal(after.n_seqs, 1);
    assert_int_equal(after.n_tokens, 66);
    state_ok(tqe_session_truncate(s, 0, &err), &err);
    assert_int_equal(tq_cache_get_stats(cache, &after), TQ_OK);
    assert_int_equal(after.n_pages_used, 0);
    tqe_session_free(s);
    assert_int_equal(n_live, live_before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
