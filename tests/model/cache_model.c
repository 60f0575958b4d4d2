/* SPDX-License-Identifier: MIT */
/* cache_model.c — see cache_model.h.
 *
 * The model of a sequence is a list of small numbers, one a token; keys and values are a function
 * of the number, and what decoding them gives comes from the codec alone (cache_world.c). Beside
 * it, a page is an object with a count of owners. So the model knows which rows must come out of
 * each query, which pages exist, and how many bytes they take, without any of the cache's tables.
 */
#include "cache_model.h"
#include "cache_world.h"
#include "turboquant_pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS = 6, PAGES = CW_MAX_TOKENS / 64, OBJECTS = SEQS * PAGES + PAGES };

typedef struct sequence {
    int open, was_cut; /* fewer tokens than it once had, or than its source */
    uint32_t handle, n;
    uint8_t id[CW_MAX_TOKENS];
    int page[CW_LAYERS][2][PAGES]; /* object, or -1 */
} sequence;

typedef struct model {
    cm_source *src;
    uint64_t *counts;
    cw_world w;
    tq_cache *c;
    tq_cache_config cfg;
    sequence seq[SEQS];
    uint16_t owners[CW_LAYERS][2][OBJECTS];
    uint32_t used[CW_LAYERS][2], room[CW_LAYERS][2];
    size_t op;
} model;

const char *const cm_event_names[CM_N_EVENTS] = {
    "append",   "abort",    "nonfinite", "full",  "fork",   "copy",           "refused",
    "truncate", "drop old", "convert",   "close", "import", "import refused", "attention"};

static _Noreturn void failed(const model *m, int line, const char *what)
{
    fprintf(stderr, "cache_model.c:%d: world %u, operation %zu: %s\n", line, m->w.number, m->op,
            what);
    abort();
}

#define CHECK(m, x)                                                                                \
    do {                                                                                           \
        if (!(x))                                                                                  \
            failed(m, __LINE__, #x);                                                               \
    } while (0)

/* A choice below n, n <= 65536; 0 when the bytes have run out. */
static uint32_t draw(model *m, uint32_t n)
{
    cm_source *s = m->src;
    if (!s->data)
        return (uint32_t)(cw_random(&s->seed) % n);
    uint32_t x = 0;
    for (uint32_t have = 1; have < n && s->size > 0; have *= 256, s->size--)
        x = x * 256 + *s->data++;
    return x % n;
}

/* ---- Pages as objects ------------------------------------------------------------------ */

static void page_own(model *m, uint32_t l, int f, int *page)
{
    int o = 0;
    while (m->owners[l][f][o] > 0)
        o++;
    m->owners[l][f][o] = 1;
    m->used[l][f]++;
    *page = o;
}

static void page_leave(model *m, uint32_t l, int f, int *page)
{
    if (*page >= 0 && --m->owners[l][f][*page] == 0)
        m->used[l][f]--;
    *page = -1;
}

/* Is token t stored in this form at all? */
static int is_stored(const cw_layer *l, int f, uint32_t t)
{
    return f == 0 || t < l->sink || t < l->start || l->tail > 0;
}

static uint32_t n_stored(const cw_layer *l, int f, uint32_t n)
{
    while (n > 0 && !is_stored(l, f, n - 1))
        n--;
    return n;
}

/* May queries from position q on read a token of the page? As the header says, but that f16 pages
 * stay whole until `start`, and sinks until a window has passed them all. */
static int is_needed(const cw_layer *l, int f, uint32_t page, uint32_t q)
{
    const uint32_t t = page * 64 + 63, p = q > t ? q : t;
    const int seen = l->window == 0 || p - t < l->window;
    if (f == 0)
        return seen;
    if (q < l->start)
        return 1;
    if (page < (l->sink + 63) / 64)
        return l->window == 0 || q + 1 < l->window + (l->sink + 63) / 64 * 64;
    return seen && l->tail > 0 && p - t < l->tail;
}

#define FOR_FORMS(m, l, f)                                                                         \
    for (uint32_t l = 0; l < (m)->w.n_layers; l++)                                                 \
        for (int f = 0; f < 2; f++)                                                                \
            if ((m)->w.layer[l].has_form[f])

static void drop_old(model *m, sequence *s, uint32_t q)
{
    FOR_FORMS(m, l, f)
    for (uint32_t p = 0; p < PAGES; p++)
        if (s->page[l][f][p] >= 0 && !is_needed(&m->w.layer[l], f, p, q)) {
            page_leave(m, l, f, &s->page[l][f][p]);
            m->counts[f ? CM_CONVERT : CM_DROP_OLD]++;
        }
}

static void drop_from(model *m, sequence *s, uint32_t n)
{
    FOR_FORMS(m, l, f)
    for (uint32_t p = (n_stored(&m->w.layer[l], f, n) + 63) / 64; p < PAGES; p++)
        page_leave(m, l, f, &s->page[l][f][p]);
}

/* ---- Checks ---------------------------------------------------------------------------- */

static void check_stats(model *m)
{
    tq_cache_stats st;
    uint32_t open = 0;
    uint64_t tokens = 0;
    size_t bytes[2] = {0, 0}, all = 0;
    for (int i = 0; i < SEQS; i++) {
        open += (uint32_t)m->seq[i].open;
        tokens += m->seq[i].open ? m->seq[i].n : 0;
    }
    FOR_FORMS(m, l, f)
    {
        bytes[f] += m->used[l][f] * m->w.layer[l].page_bytes[f];
        all += m->room[l][f] * m->w.layer[l].page_bytes[f];
    }
    CHECK(m, tq_cache_get_stats(m->c, &st) == TQ_OK);
    CHECK(m, st.n_seqs == open);
    CHECK(m, st.n_tokens == tokens);
    CHECK(m, st.packed_bytes == bytes[0]);
    CHECK(m, st.f16_bytes == bytes[1]);
    CHECK(m, st.capacity_bytes == all);
}

static tq_view view_of(model *m, const sequence *s, uint32_t layer)
{
    tq_view v;
    CHECK(m, tq_cache_view(m->c, s->handle, layer, &v) == TQ_OK);
    return v;
}

static const cw_layer *stored_by(const model *m, uint32_t layer)
{
    return &m->w.layer[m->w.layer[layer].stored_by];
}

/* Rows [first, first + n) as the query at position q reads them, bit by bit. */
static void check_rows(model *m, const sequence *s, uint32_t layer, uint32_t q, uint32_t first,
                       uint32_t n)
{
    static float k[CW_MAX_TOKENS * CW_MAX_D], v[CW_MAX_TOKENS * CW_MAX_D];
    const cw_layer *l = stored_by(m, layer);
    const tq_view view = view_of(m, s, layer);
    for (uint32_t h = 0; h < l->n_kv; h++) {
        CHECK(m, tq_view_decode_at(&view, q, h, first, n, k, v) == TQ_OK);
        for (uint32_t t = 0; t < n; t++) {
            const int f = cw_reads_f16(l, q, first + t);
            CHECK(m, !memcmp(k + t * l->d_k, cw_row(l, s->id[first + t], h, f, 0),
                             l->d_k * sizeof *k));
            CHECK(m, !memcmp(v + t * l->d_v, cw_row(l, s->id[first + t], h, f, 1),
                             l->d_v * sizeof *v));
        }
    }
}

/* Does the query at position p read a token of a page that is gone? */
static int misses(const model *m, const sequence *s, uint32_t p)
{
    FOR_FORMS(m, l, f)
    {
        const cw_layer *x = &m->w.layer[l];
        const uint32_t oldest = cw_oldest(x, p);
        for (uint32_t page = oldest / 64; page <= p / 64; page++)
            for (uint32_t t = page * 64; s->page[l][f][page] < 0 && t < page * 64 + 64; t++)
                if (t >= oldest && t <= p && is_stored(x, f, t) &&
                    (f == 0 || cw_reads_f16(x, p, t)))
                    return 1;
    }
    return 0;
}

/* The shortest prefix whose next query finds everything, by trying. */
static uint32_t find_minimum(const model *m, const sequence *s)
{
    uint32_t min = s->n;
    while (min > 0 && !misses(m, s, min - 1))
        min--;
    return min;
}

static void check_sequence(model *m, const sequence *s)
{
    uint32_t len, min;
    CHECK(m, tq_cache_len(m->c, s->handle, &len) == TQ_OK);
    CHECK(m, len == s->n);
    CHECK(m, tq_cache_min_truncate(m->c, s->handle, &min) == TQ_OK);
    CHECK(m, min == find_minimum(m, s));
    for (uint32_t l = 0; l < m->w.n_layers && s->n > 0; l++) {
        const uint32_t q = min < s->n ? min + draw(m, s->n - min) : s->n;
        if (q < s->n)
            check_rows(m, s, l, q, cw_oldest(stored_by(m, l), q),
                       q + 1 - cw_oldest(stored_by(m, l), q));
    }
    size_t bytes[2] = {0, 0}, packed, f16;
    FOR_FORMS(m, l, f)
    for (uint32_t t = 0; t < n_stored(&m->w.layer[l], f, s->n); t++)
        bytes[f] += s->page[l][f][t / 64] >= 0 ? m->w.layer[l].page_bytes[f] / 64 : 0;
    CHECK(m, tq_cache_seq_bytes(m->c, s->handle, &packed, &f16) == TQ_OK);
    CHECK(m, packed == bytes[0] && f16 == bytes[1]);
}

/* Attention of the newest q_len tokens against float64, and bit by bit against one at a time. */
static void check_attention(model *m, const sequence *s, uint32_t layer, uint32_t q_len)
{
    static float q[CW_MAX_Q * CW_MAX_HEADS * CW_MAX_D], out[CW_MAX_Q * CW_MAX_HEADS * CW_MAX_D];
    static float one[CW_MAX_HEADS * CW_MAX_D];
    const cw_layer *l = stored_by(m, layer);
    tq_view v = view_of(m, s, layer);
    const uint32_t heads = l->n_kv * l->group, total = v.n_tokens;
    for (uint32_t i = 0; i < q_len * heads * l->d_k; i++)
        q[i] = cw_row(l, (uint8_t)(i / l->d_k % CW_IDS), 0, 0, 0)[i % l->d_k];
    CHECK(m, cw_attend(l, &v, q_len, q, out));
    for (uint32_t i = 0; i < q_len; i++) {
        const uint32_t p = total - q_len + i;
        CHECK(m, cw_error(l, s->id, p, q + i * heads * l->d_k, out + i * heads * l->d_v) < 5e-3);
    }
    const uint32_t i = draw(m, q_len);
    if (q_len <= 8) {
        v.n_tokens = total - q_len + i + 1;
        CHECK(m, cw_attend(l, &v, 1, q + i * heads * l->d_k, one));
        CHECK(m, !memcmp(one, out + i * heads * l->d_v, heads * l->d_v * sizeof *one));
    }
    m->counts[CM_ATTENTION]++;
}

/* ---- Operations ------------------------------------------------------------------------ */

static sequence *open_slot(model *m)
{
    for (int i = 0; i < SEQS; i++)
        if (!m->seq[i].open)
            return &m->seq[i];
    return NULL;
}

static uint32_t n_open(const model *m)
{
    uint32_t n = 0;
    for (int i = 0; i < SEQS; i++)
        n += (uint32_t)m->seq[i].open;
    return n;
}

static void forget(sequence *s)
{
    s->n = 0;
    s->was_cut = 0;
    memset(s->page, -1, sizeof s->page);
}

static void op_open(model *m, sequence *s)
{
    const tq_status want = n_open(m) < m->cfg.max_seqs ? TQ_OK : TQ_ERR_FULL;
    CHECK(m, tq_cache_seq_open(m->c, &s->handle) == want);
    s->open = want == TQ_OK;
    forget(s);
}

static void op_close(model *m, sequence *s)
{
    CHECK(m, tq_cache_seq_close(m->c, s->handle) == TQ_OK);
    CHECK(m, tq_cache_seq_close(m->c, s->handle) == TQ_ERR_STATE);
    drop_from(m, s, 0);
    s->open = 0;
    m->counts[CM_CLOSE]++;
}

/* Pages that an append of n tokens takes: new ones, and one instead of a shared tail page. */
static uint32_t pages_wanted(const model *m, const sequence *s, uint32_t l, int f, uint32_t n)
{
    const cw_layer *x = &m->w.layer[l];
    const uint32_t had = (n_stored(x, f, s->n) + 63) / 64;
    const uint32_t rows = n_stored(x, f, s->n + n);
    const int copy = s->n % 64 != 0 && rows > s->n && m->owners[l][f][s->page[l][f][s->n / 64]] > 1;
    return (rows + 63) / 64 - had + (uint32_t)copy;
}

static void take_pages(model *m, sequence *s, uint32_t n)
{
    FOR_FORMS(m, l, f)
    {
        const uint32_t rows = n_stored(&m->w.layer[l], f, s->n + n);
        int *tail = &s->page[l][f][s->n / 64];
        if (s->n % 64 != 0 && rows > s->n && m->owners[l][f][*tail] > 1) {
            page_leave(m, l, f, tail);
            page_own(m, l, f, tail);
            m->counts[CM_COPY]++;
        }
        const uint32_t had = (n_stored(&m->w.layer[l], f, s->n) + 63) / 64;
        for (uint32_t p = had; p < (rows + 63) / 64; p++)
            page_own(m, l, f, &s->page[l][f][p]);
    }
}

static tq_status write_rows(model *m, sequence *s, uint32_t n, int spoil)
{
    static float k[CW_MAX_TOKENS * CW_MAX_KV * CW_MAX_D], v[CW_MAX_TOKENS * CW_MAX_KV * CW_MAX_D];
    tq_status st = TQ_OK;
    for (uint32_t layer = 0; layer < m->w.n_layers; layer++) {
        const cw_layer *l = &m->w.layer[layer];
        const size_t ks = l->n_kv * l->d_k, vs = l->n_kv * l->d_v;
        cw_fill(l, s->id + s->n, n, k, v);
        if (spoil)
            (spoil > 1 ? k : v)[0] = spoil > 1 ? INFINITY : NAN;
        const uint32_t parts = 1 + draw(m, 3);
        for (uint32_t p = parts; p-- > 0;) {
            tq_status one = tq_cache_append_rows(m->c, s->handle, layer, k, ks, v, vs, p, parts);
            if (l->stored_by != layer) {
                CHECK(m, one == TQ_ERR_ARG);
                continue;
            }
            st = one != TQ_OK ? one : st;
        }
    }
    return st;
}

static void op_append(model *m, sequence *s)
{
    static const uint32_t most[] = {1, 1, 3, 8, 70, 200};
    uint32_t n = 1 + draw(m, most[draw(m, 6)]);
    const uint32_t how = draw(m, 32);
    tq_status want = s->n + n > m->cfg.n_pages * 64 ? TQ_ERR_FULL : TQ_OK;
    if (m->cfg.max_append && n > m->cfg.max_append) {
        want = TQ_ERR_ARG;
    } else if (want == TQ_OK) {
        FOR_FORMS(m, l, f)
        if (m->used[l][f] + pages_wanted(m, s, l, f, n) > m->room[l][f])
            want = TQ_ERR_FULL;
    }
    CHECK(m, tq_cache_append_begin(m->c, s->handle, n) == want);
    m->counts[CM_FULL] += want == TQ_ERR_FULL;
    if (want != TQ_OK)
        return;
    take_pages(m, s, n);
    for (uint32_t i = 0; i < n; i++)
        s->id[s->n + i] = (uint8_t)draw(m, CW_IDS);
    uint32_t unused;
    CHECK(m, tq_cache_seq_fork(m->c, s->handle, 0, &unused) == TQ_ERR_STATE);
    CHECK(m, tq_cache_truncate(m->c, s->handle, 0) == TQ_ERR_STATE);
    if (how < 2) {
        CHECK(m, write_rows(m, s, n, 1 + (int)how) == TQ_ERR_NONFINITE);
        m->counts[CM_NONFINITE]++;
    } else {
        CHECK(m, write_rows(m, s, n, 0) == TQ_OK);
        if (how < 6)
            check_attention(m, s, draw(m, m->w.n_layers), n < CW_MAX_Q ? n : CW_MAX_Q);
    }
    if (how < 3) {
        CHECK(m, tq_cache_append_abort(m->c, s->handle) == TQ_OK);
        drop_from(m, s, s->n);
        m->counts[CM_ABORT]++;
        return;
    }
    CHECK(m, tq_cache_append_commit(m->c, s->handle) == TQ_OK);
    s->n += n;
    if (s->n - 1 > m->cfg.rollback)
        drop_old(m, s, s->n - 1 - m->cfg.rollback);
    m->counts[CM_APPEND]++;
}

static void op_truncate(model *m, sequence *s)
{
    const uint32_t n = draw(m, 4) ? s->n - draw(m, s->n < 9 ? s->n + 1 : 10) : draw(m, s->n + 1);
    uint32_t min;
    CHECK(m, tq_cache_min_truncate(m->c, s->handle, &min) == TQ_OK);
    CHECK(m, min + m->cfg.rollback + 1 <= s->n || min == 0 || s->was_cut);
    const tq_status want = n > 0 && n < min ? TQ_ERR_STATE : TQ_OK;
    CHECK(m, tq_cache_truncate(m->c, s->handle, n) == want);
    m->counts[want == TQ_OK ? CM_TRUNCATE : CM_REFUSED]++;
    if (want == TQ_OK) {
        s->was_cut |= n < s->n;
        s->n = n;
        drop_from(m, s, n);
    }
}

static void op_fork(model *m, sequence *s)
{
    sequence *to = open_slot(m);
    const uint32_t n = draw(m, 3) ? s->n : draw(m, s->n + 1);
    uint32_t min, handle = 0;
    CHECK(m, tq_cache_min_truncate(m->c, s->handle, &min) == TQ_OK);
    tq_status want = n > 0 && n < min ? TQ_ERR_STATE : TQ_OK;
    if (want == TQ_OK && n_open(m) == m->cfg.max_seqs)
        want = TQ_ERR_FULL;
    CHECK(m, tq_cache_seq_fork(m->c, s->handle, s->n + 1, &handle) == TQ_ERR_ARG);
    CHECK(m, tq_cache_seq_fork(m->c, s->handle, n, &handle) == want);
    m->counts[CM_REFUSED] += want == TQ_ERR_STATE;
    if (want != TQ_OK)
        return;
    m->counts[CM_FORK]++;
    CHECK(m, to != NULL);
    *to = *s;
    to->handle = handle;
    FOR_FORMS(m, l, f)
    for (uint32_t p = 0; p < PAGES; p++)
        if (to->page[l][f][p] >= 0)
            m->owners[l][f][to->page[l][f][p]]++;
    to->n = n;
    to->was_cut |= n < s->n;
    drop_from(m, to, n);
}

/* Pages out of one sequence and into a new one; then both give the same bytes. */
static void op_import(model *m, sequence *s)
{
    static uint8_t bytes[CW_MAX_PAGE_BYTES], again[CW_MAX_PAGE_BYTES];
    if (s->n == 0 || m->cfg.max_seqs == 1)
        return;
    for (int i = 0; n_open(m) == m->cfg.max_seqs; i++) /* make room */
        if (m->seq[i].open && &m->seq[i] != s)
            op_close(m, &m->seq[i]);
    sequence *to = open_slot(m);
    op_open(m, to);
    tq_status want = TQ_OK;
    FOR_FORMS(m, l, f)
    {
        uint32_t need = 0;
        for (uint32_t p = 0; p < (n_stored(&m->w.layer[l], f, s->n) + 63) / 64; p++)
            need += (uint32_t)is_needed(&m->w.layer[l], f, p, s->n);
        want = m->used[l][f] + need > m->room[l][f] ? TQ_ERR_FULL : want;
    }
    CHECK(m, tq_cache_import_begin(m->c, to->handle, s->n) == want);
    if (want != TQ_OK)
        return;
    to->n = s->n;
    memcpy(to->id, s->id, s->n);
    FOR_FORMS(m, l, f)
    for (uint32_t p = 0; p < (n_stored(&m->w.layer[l], f, s->n) + 63) / 64; p++)
        if (is_needed(&m->w.layer[l], f, p, s->n))
            page_own(m, l, f, &to->page[l][f][p]);
    const uint32_t stop_at = draw(m, 3) ? UINT32_MAX : draw(m, 4);
    tq_page_ref ref = {0};
    for (uint32_t i = 0;; i++) {
        CHECK(m, tq_cache_page_next(m->c, s->handle, &ref) == TQ_OK);
        if (ref.bytes == 0)
            break;
        CHECK(m, ref.bytes <= sizeof bytes && s->page[ref.layer][ref.form][ref.page] >= 0);
        if (i == stop_at) { /* something is missing: as if it had never been */
            CHECK(m, tq_cache_append_commit(m->c, to->handle) == TQ_ERR_STATE);
            CHECK(m, tq_cache_append_abort(m->c, to->handle) == TQ_OK);
            drop_from(m, to, 0);
            to->n = 0;
            m->counts[CM_IMPORT_REFUSED]++;
            return;
        }
        CHECK(m, tq_cache_page_export(m->c, s->handle, &ref, bytes, ref.bytes) == TQ_OK);
        CHECK(m, tq_cache_import_page(m->c, to->handle, &ref, bytes, ref.bytes - 1) == TQ_ERR_SIZE);
        CHECK(m, tq_cache_import_page(m->c, to->handle, &ref, bytes, ref.bytes) == TQ_OK);
        CHECK(m, tq_cache_import_page(m->c, to->handle, &ref, bytes, ref.bytes) == TQ_ERR_ARG);
    }
    CHECK(m, tq_cache_append_commit(m->c, to->handle) == TQ_OK);
    if (to->n - 1 > m->cfg.rollback)
        drop_old(m, to, to->n - 1 - m->cfg.rollback);
    to->was_cut = 1;
    while (tq_cache_page_next(m->c, to->handle, &ref) == TQ_OK && ref.bytes > 0) {
        CHECK(m, tq_cache_page_export(m->c, s->handle, &ref, bytes, ref.bytes) == TQ_OK);
        CHECK(m, tq_cache_page_export(m->c, to->handle, &ref, again, ref.bytes) == TQ_OK);
        CHECK(m, !memcmp(bytes, again, ref.bytes));
    }
    m->counts[CM_IMPORT]++;
}

/* ---- Episodes -------------------------------------------------------------------------- */

static void start(model *m)
{
    static const uint32_t appends[] = {0, 0, 8, 100}, rollbacks[] = {0, 0, 1, 7, 70};
    cw_make(&m->w, draw(m, CW_WORLDS));
    m->cfg = (tq_cache_config){.layers = m->w.config,
                               .n_layers = m->w.n_layers,
                               .n_pages = draw(m, 3) ? PAGES : 1 + draw(m, PAGES),
                               .max_seqs = draw(m, 2) ? SEQS : 1 + draw(m, SEQS),
                               .isa_mask = TQ_ISA_ALL,
                               .max_append = appends[draw(m, 4)],
                               .rollback = rollbacks[draw(m, 5)]};
    for (int i = 0; i < SEQS; i++)
        forget(&m->seq[i]);
    CHECK(m, tq_cache_create(&m->c, &m->cfg, NULL) == TQ_OK);
    /* Pools come in the order in which layers and forms first need them. */
    uint32_t n_pools = 0;
    FOR_FORMS(m, l, f)
    {
        uint32_t pool = n_pools;
        for (uint32_t j = 0; j < l && pool == n_pools; j++)
            if (m->w.layer[j].has_form[f] && cw_same_rule(&m->w.layer[j], &m->w.layer[l], f))
                pool = m->w.layer[j].pool[f];
        n_pools += pool == n_pools;
        m->w.layer[l].pool[f] = pool;
        tq_pool p;
        CHECK(m, tq_cache_pool(&m->cfg, pool, &p) == TQ_OK && p.is_f16 == (uint32_t)f);
        m->room[l][f] = p.n_pages;
    }
    tq_pool p;
    CHECK(m, tq_cache_pool(&m->cfg, n_pools, &p) == TQ_ERR_ARG);
}

static void step(model *m)
{
    sequence *s = &m->seq[draw(m, SEQS)];
    const uint32_t op = draw(m, 64);
    if (!s->open)
        op_open(m, s);
    else if (op < 36)
        op_append(m, s);
    else if (op < 44)
        op_truncate(m, s);
    else if (op < 52)
        op_fork(m, s);
    else if (op < 54)
        op_close(m, s);
    else if (op < 57)
        op_import(m, s);
    else if (op < 58)
        check_sequence(m, s);
    else if (s->n > 0 && !misses(m, s, s->n - 1)) /* the newest row, by the newest query */
        check_rows(m, s, draw(m, m->w.n_layers), s->n - 1, s->n - 1, 1);
    check_stats(m);
}

size_t cm_episode(cm_source *src, size_t n_ops, uint64_t *counts)
{
    static model m;
    memset(&m, 0, sizeof m);
    m.src = src;
    m.counts = counts;
    start(&m);
    for (; m.op < n_ops && (!src->data || src->size > 0); m.op++)
        step(&m);
    for (int i = 0; i < SEQS; i++)
        if (m.seq[i].open) {
            check_sequence(&m, &m.seq[i]);
            op_close(&m, &m.seq[i]);
        }
    check_stats(&m); /* no sequence, no page, no byte */
    FOR_FORMS(&m, l, f)
    CHECK(&m, m.used[l][f] == 0);
    tq_cache_destroy(m.c);
    return m.op;
}
