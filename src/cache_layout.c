/* SPDX-License-Identifier: MIT */
/* cache_layout.c — from a configuration to the memory of a cache, and the planner.
 *
 * Owns which layers share a kind, how many pages each kind gets, and the arena (drawn in
 * cache_priv.h). Sizes are computed without any memory, so that a planner can ask before anything
 * is allocated; tq_cache_init lays out exactly what tq_cache_bytes counted.
 *
 * The one hard idea: a kind that keeps only part of the tokens needs no more pages than its
 * sequences can hold at their largest moment, between the begin and the commit of the longest
 * append. Where the longest append is not known, it gets as many as layers that keep everything.
 */
#include "cache_priv.h"
#include "checked.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64u

#define MAX_LAYERS   1024u
#define MAX_PAGES    (1u << 24)
#define MAX_SEQS     65536u
#define MAX_KV_HEADS 1024u
#define MAX_ROLLBACK (1u << 20)

/* ---- Layers and kinds ------------------------------------------------------------------ */

static int is_skipped(const tq_cache_config *cfg, uint32_t i)
{
    const uint32_t skip = cfg->layers[i].scheme.skip;
    return i < skip || cfg->n_layers - i <= skip;
}

/* Does layer i store rows in this form? keep: what its kind keeps. */
static int has_form(const tq_cache_config *cfg, uint32_t i, uint32_t form, tq_keep *keep)
{
    const tq_layer *l = &cfg->layers[i];
    const tq_scheme *s = &l->scheme;
    *keep = (tq_keep){.window = l->window};
    if (l->donor != 0 ||
        (form == TQ_FORM_F16 && (is_skipped(cfg, i) || !(s->sink || s->tail || s->start))))
        return 0;
    if (form == TQ_FORM_F16)
        *keep = (tq_keep){1, l->window, s->sink, s->tail, s->start};
    return 1;
}

static int same_keep(const tq_keep *a, const tq_keep *b)
{
    return a->is_f16 == b->is_f16 && a->window == b->window && a->sink == b->sink &&
           a->tail == b->tail && a->start == b->start;
}

/* Is (layer i, form) the first pair of its kind? */
static int is_first_of_kind(const tq_cache_config *cfg, uint32_t i, uint32_t form,
                            const tq_keep *keep)
{
    tq_keep other;
    for (uint32_t j = 0; j < i; j++)
        if (has_form(cfg, j, form, &other) && same_keep(&other, keep))
            return 0;
    return 1;
}

/* Pages of a kind: what max_seqs sequences hold at most, and no more than n_pages, for layers that
 * keep everything run out of those no later. */
static uint32_t kind_pages(const tq_cache_config *cfg, const tq_keep *k)
{
    const uint64_t append = (uint64_t)cfg->rollback + cfg->max_append;
    uint64_t per_seq;
    if (k->is_f16 && k->tail == 0) {
        per_seq = tq_pages_for(tq_kind_rows(k, UINT32_MAX));
    } else if (cfg->max_append == 0 || (!k->is_f16 && k->window == 0)) {
        return cfg->n_pages;
    } else if (!k->is_f16) {
        per_seq = (uint64_t)tq_pages_for(k->window + append) + 1;
    } else {
        const uint64_t until = k->start ? (uint64_t)tq_pages_for(k->start + append) + 1 : 0;
        per_seq = (uint64_t)tq_pages_for(k->sink) + tq_pages_for(k->tail + append) + 1;
        per_seq = until > per_seq ? until : per_seq;
    }
    per_seq *= cfg->max_seqs;
    return per_seq < cfg->n_pages ? (uint32_t)per_seq : cfg->n_pages;
}

/* isa_mask: where only sizes are asked for, TQ_ISA_SCALAR spares looking at the CPU. */
static tq_status form_init(tq_form_state *s, const tq_cache_config *cfg, uint32_t i, uint32_t form,
                           uint32_t isa_mask)
{
    const tq_layer *l = &cfg->layers[i];
    tq_scheme scheme = l->scheme;
    if (form == TQ_FORM_F16 || is_skipped(cfg, i))
        scheme = (tq_scheme){.family = TQ_FAMILY_F16, .k_bits = 16, .v_bits = 16};
    tq_status st = tq_scheme_codec(&scheme, 0, l->d_k, isa_mask, &s->k);
    if (st == TQ_OK && !l->v_in_k)
        st = tq_scheme_codec(&scheme, 1, l->d_v, isa_mask, &s->v);
    if (st != TQ_OK)
        return st;
    s->v_in_k = l->v_in_k != 0;
    s->encode_k = s->k.kernels->codec->encode[tq_kfmt(s->k.format)];
    s->encode_v = l->v_in_k ? NULL : s->v.kernels->codec->encode[tq_kfmt(s->v.format)];
    s->page_bytes = l->n_kv_heads * tq_page_head_bytes(&s->k, tq_form_v(s));
    return TQ_OK;
}

static tq_status check_layer(const tq_cache_config *cfg, uint32_t i)
{
    const tq_layer *l = &cfg->layers[i];
    if (l->n_kv_heads == 0 || l->n_kv_heads > MAX_KV_HEADS)
        return TQ_ERR_ARG;
    if (l->donor != 0) {
        const tq_layer *d = &cfg->layers[l->donor - 1];
        return l->donor <= i && d->donor == 0 && d->n_kv_heads == l->n_kv_heads &&
                       d->d_k == l->d_k && d->d_v == l->d_v && d->window == l->window &&
                       d->v_in_k == l->v_in_k
                   ? TQ_OK
                   : TQ_ERR_ARG;
    }
    if (l->scheme.attn != TQ_ATTN_FUSED && l->scheme.attn != TQ_ATTN_DEQUANT)
        return TQ_ERR_ARG;
    if (l->scheme.kmean[0] || l->scheme.layers[0])
        return TQ_ERR_SCHEME;
    if (l->v_in_k > 1 || (l->v_in_k && l->k_mean))
        return TQ_ERR_ARG;
    if (l->v_in_k && l->scheme.k_bits != l->scheme.v_bits)
        return TQ_ERR_SCHEME;
    if (l->v_in_k && (l->d_v == 0 || l->d_v > l->d_k || l->d_v % 8 != 0))
        return TQ_ERR_DIM;
    tq_form_state s;
    /* A layer that is skipped still has to have a scheme that exists and fits. */
    size_t unused;
    tq_status st = tq_scheme_bytes_per_token(&l->scheme, l->d_k, l->v_in_k ? 0 : l->d_v, &unused);
    if (st == TQ_OK)
        st = form_init(&s, cfg, i, TQ_FORM_PACKED, TQ_ISA_SCALAR);
    if (st == TQ_OK && l->k_mean &&
        s.k.kernels->codec->first_nonfinite(l->k_mean, l->d_k, l->d_k, l->n_kv_heads) <
            l->n_kv_heads)
        st = TQ_ERR_NONFINITE;
    return st;
}

/* ---- Layout ---------------------------------------------------------------------------- */

typedef struct layout {
    uint32_t n_kinds;
    size_t layers_off, kinds_off, seqs_off, held_off, kinds_data_off, means_off, arenas_off;
    size_t total; /* with the slack that aligning the start may take */
} layout;

/* off := where a part of n elements starts, *end := one past it, aligned. */
static int place(size_t *off, size_t *end, size_t n, size_t elem_bytes)
{
    size_t bytes;
    *off = *end;
    return tq_size_mul(&bytes, n, elem_bytes) || tq_size_add(end, *end, bytes) ||
           tq_size_align(end, *end, ALIGNMENT);
}

static tq_status check_config(const tq_cache_config *cfg)
{
    if (!cfg || !cfg->layers || cfg->n_layers == 0 || cfg->n_layers > MAX_LAYERS ||
        cfg->n_pages == 0 || cfg->n_pages > MAX_PAGES || cfg->max_seqs == 0 ||
        cfg->max_seqs > MAX_SEQS || cfg->rollback > MAX_ROLLBACK)
        return TQ_ERR_ARG;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        tq_status st = check_layer(cfg, i);
        if (st != TQ_OK)
            return st;
    }
    return TQ_OK;
}

/* Sizes of a checked configuration. */
static tq_status make_layout(layout *lay, const tq_cache_config *cfg)
{
    size_t end = 0, off, n;
    tq_keep keep;
    lay->n_kinds = 0;
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        for (uint32_t f = 0; f < 2; f++)
            lay->n_kinds +=
                has_form(cfg, i, f, &keep) && is_first_of_kind(cfg, i, f, &keep) ? 1 : 0;

    int bad = place(&off, &end, 1, sizeof(tq_cache)) |
              place(&lay->layers_off, &end, cfg->n_layers, sizeof(tq_layer_state)) |
              place(&lay->kinds_off, &end, lay->n_kinds, sizeof(tq_kind)) |
              place(&lay->seqs_off, &end, cfg->max_seqs, sizeof(tq_seq)) |
              tq_size_mul(&n, cfg->max_seqs, lay->n_kinds) |
              place(&lay->held_off, &end, n, sizeof(tq_held));
    lay->kinds_data_off = end;
    bad |= tq_size_mul(&n, cfg->max_seqs, cfg->n_pages);
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        for (uint32_t f = 0; f < 2; f++)
            if (has_form(cfg, i, f, &keep) && is_first_of_kind(cfg, i, f, &keep))
                bad |= place(&off, &end, kind_pages(cfg, &keep), sizeof(uint32_t)) |
                       place(&off, &end, n, sizeof(uint32_t));
    lay->means_off = end;
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        if (cfg->layers[i].k_mean && cfg->layers[i].donor == 0)
            bad |= place(&off, &end, (size_t)cfg->layers[i].n_kv_heads * cfg->layers[i].d_k,
                         sizeof(float));
    lay->arenas_off = end;
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        for (uint32_t f = 0; f < 2; f++) {
            tq_form_state s;
            if (!has_form(cfg, i, f, &keep))
                continue;
            tq_status st = form_init(&s, cfg, i, f, TQ_ISA_SCALAR);
            if (st != TQ_OK)
                return st;
            bad |= place(&off, &end, kind_pages(cfg, &keep), s.page_bytes);
        }
    bad |= tq_size_add(&lay->total, end, ALIGNMENT - 1);
    /* Pointer differences must fit too. */
    return bad || lay->total > PTRDIFF_MAX ? TQ_ERR_OVERFLOW : TQ_OK;
}

tq_status tq_cache_bytes(const tq_cache_config *cfg, size_t *bytes)
{
    layout lay;
    if (!bytes)
        return TQ_ERR_ARG;
    tq_status st = check_config(cfg);
    if (st == TQ_OK)
        st = make_layout(&lay, cfg);
    if (st == TQ_OK)
        *bytes = lay.total;
    return st;
}

tq_status tq_cache_plan(const tq_cache_config *cfg, size_t memory_bytes, uint32_t *n_pages)
{
    if (!cfg || !n_pages)
        return TQ_ERR_ARG;
    tq_cache_config c = *cfg;
    c.n_pages = 1;
    tq_status st = check_config(&c);
    if (st != TQ_OK)
        return st;
    uint32_t lo = 0, hi = MAX_PAGES; /* lo pages fit */
    while (lo < hi) {
        layout lay;
        c.n_pages = lo + (hi - lo + 1) / 2;
        st = make_layout(&lay, &c);
        if (st == TQ_OK && lay.total <= memory_bytes)
            lo = c.n_pages;
        else
            hi = c.n_pages - 1;
    }
    if (lo == 0)
        return TQ_ERR_FULL;
    *n_pages = lo;
    return TQ_OK;
}

tq_status tq_cache_pool(const tq_cache_config *cfg, uint32_t i, tq_pool *out)
{
    tq_keep keep = {0}, other;
    tq_status st = check_config(cfg);
    if (st != TQ_OK || !out)
        return st != TQ_OK ? st : TQ_ERR_ARG;
    uint32_t layer = 0, form = 0, seen = 0;
    for (;; form ^= 1, layer += form == 0) {
        if (layer == cfg->n_layers)
            return TQ_ERR_ARG;
        if (has_form(cfg, layer, form, &keep) && is_first_of_kind(cfg, layer, form, &keep) &&
            seen++ == i)
            break;
    }
    tq_pool p = {.window = keep.window, .is_f16 = keep.is_f16, .n_pages = kind_pages(cfg, &keep)};
    for (; layer < cfg->n_layers; layer++) {
        tq_form_state s;
        if (has_form(cfg, layer, form, &other) && same_keep(&other, &keep) &&
            form_init(&s, cfg, layer, form, TQ_ISA_SCALAR) == TQ_OK) {
            p.n_layers++;
            p.page_bytes += s.page_bytes;
        }
    }
    *out = p;
    return TQ_OK;
}

/* ---- Building -------------------------------------------------------------------------- */

/* The kind of a pair, made if it is the first of it; its memory starts at *data. */
static uint32_t kind_for(tq_cache *c, const tq_cache_config *cfg, const tq_keep *keep,
                         uint8_t **data)
{
    for (uint32_t i = 0; i < c->n_kinds; i++)
        if (same_keep(&c->kinds[i].keep, keep))
            return i;
    size_t off, end = 0;
    tq_kind *k = &c->kinds[c->n_kinds];
    *k = (tq_kind){.keep = *keep, .n_pages = kind_pages(cfg, keep), .free_page = TQ_NO_INDEX};
    (void)place(&off, &end, k->n_pages, sizeof(uint32_t)); /* make_layout did the same */
    k->page_link = (uint32_t *)(void *)*data;
    k->tables = (uint32_t *)(void *)(*data + end);
    (void)place(&off, &end, (size_t)c->max_seqs * c->n_pages, sizeof(uint32_t));
    *data += end;
    return c->n_kinds++;
}

static tq_status layers_init(tq_cache *c, const tq_cache_config *cfg, uint8_t *kinds,
                             uint8_t *means, uint8_t *arena)
{
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        const tq_layer *l = &cfg->layers[i];
        tq_layer_state *s = &c->layers[i];
        *s = (tq_layer_state){.n_kv_heads = l->n_kv_heads,
                              .d_v = l->d_v,
                              .window = l->window,
                              .stored_by = l->donor ? l->donor - 1 : i,
                              .attn = l->scheme.attn};
        size_t off, end = 0;
        if (l->k_mean && l->donor == 0) {
            const size_t n = (size_t)l->n_kv_heads * l->d_k;
            s->k_mean = (float *)(void *)means;
            memcpy(s->k_mean, l->k_mean, n * sizeof(float));
            (void)place(&off, &end, n, sizeof(float));
            means += end;
        }
        for (uint32_t f = 0; f < 2; f++) {
            tq_keep keep;
            tq_form_state *form = &s->form[f];
            form->kind = TQ_NO_INDEX;
            if (!has_form(cfg, i, f, &keep))
                continue;
            tq_status st = form_init(form, cfg, i, f, cfg->isa_mask);
            if (st != TQ_OK)
                return st; /* make_layout did the same without an error */
            form->kind = kind_for(c, cfg, &keep, &kinds);
            form->pages = arena;
            tq_kind *k = &c->kinds[form->kind];
            k->n_layers++;
            k->page_bytes += form->page_bytes;
            k->bytes_per_token += form->page_bytes / TQ_PAGE_TOKENS;
            end = 0;
            (void)place(&off, &end, k->n_pages, form->page_bytes);
            arena += end;
            if (f == TQ_FORM_F16) {
                s->sink = keep.sink;
                s->tail = keep.tail;
                s->start = keep.start;
            }
        }
    }
    return TQ_OK;
}

tq_status tq_cache_init(tq_cache **out, const tq_cache_config *cfg, void *mem, size_t mem_bytes)
{
    layout lay;
    if (!out || !mem)
        return TQ_ERR_ARG;
    tq_status st = check_config(cfg);
    if (st == TQ_OK)
        st = make_layout(&lay, cfg);
    if (st != TQ_OK)
        return st;
    if (mem_bytes < lay.total)
        return TQ_ERR_SIZE;

    uint8_t *base = (uint8_t *)mem + (ALIGNMENT - (uintptr_t)mem % ALIGNMENT) % ALIGNMENT;
    tq_cache *c = (tq_cache *)(void *)base;
    *c = (tq_cache){.layers = (tq_layer_state *)(void *)(base + lay.layers_off),
                    .kinds = (tq_kind *)(void *)(base + lay.kinds_off),
                    .seqs = (tq_seq *)(void *)(base + lay.seqs_off),
                    .held = (tq_held *)(void *)(base + lay.held_off),
                    .kernels = tq_kernels_get(cfg->isa_mask),
                    .n_layers = cfg->n_layers,
                    .n_pages = cfg->n_pages,
                    .max_seqs = cfg->max_seqs,
                    .max_append = cfg->max_append,
                    .rollback = cfg->rollback,
                    .free_seq = TQ_NO_INDEX};
    st =
        layers_init(c, cfg, base + lay.kinds_data_off, base + lay.means_off, base + lay.arenas_off);
    if (st == TQ_OK)
        *out = c;
    return st;
}

static void *libc_alloc(void *ctx, size_t bytes)
{
    (void)ctx;
    return malloc(bytes);
}

static void libc_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

tq_status tq_cache_create(tq_cache **out, const tq_cache_config *cfg, const tq_allocator *a)
{
    const tq_allocator libc = {libc_alloc, libc_free, NULL};
    size_t bytes;
    if (!out || (a && (!a->alloc || !a->free)))
        return TQ_ERR_ARG;
    if (!a)
        a = &libc;
    tq_status st = tq_cache_bytes(cfg, &bytes);
    if (st != TQ_OK)
        return st;
    void *block = a->alloc(a->ctx, bytes);
    if (!block)
        return TQ_ERR_NOMEM;
    tq_cache *c;
    st = tq_cache_init(&c, cfg, block, bytes);
    if (st != TQ_OK) {
        a->free(a->ctx, block);
        return st;
    }
    c->allocator = *a;
    c->block = block;
    *out = c;
    return TQ_OK;
}

void tq_cache_destroy(tq_cache *c)
{
    if (c && c->block) {
        tq_allocator a = c->allocator; /* lives in the block itself */
        a.free(a.ctx, c->block);
    }
}
