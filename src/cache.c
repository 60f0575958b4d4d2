/* SPDX-License-Identifier: MIT */
/* cache.c — the paged store of packed keys and values.
 *
 * Owns the pages, which sequence holds which, and the three-step append. One page number stands
 * for 64 tokens in every layer. A page of a sequence is full or its last.
 *
 * The one hard idea: nothing is touched before it is used, so that a cache may be configured for
 * far more tokens than there is memory. Free lists therefore start empty, with a mark below which
 * entries have been used at least once; entries above the mark have never been written.
 *
 * The memory of a cache, each part 64-byte aligned:
 *   tq_cache | layers [n_layers] | seqs [max_seqs] | page_link [n_pages] |
 *   tables [max_seqs][n_pages] | arena of layer 0 | arena of layer 1 ...
 * A page table has room for all pages, because a view may hold it while other tables grow; the
 * unused part of it costs address space only.
 */
#include "cache.h"
#include "checked.h"
#include "codec.h"

#include <stdlib.h>
#include <string.h>

#define NO_INDEX  UINT32_MAX
#define ALIGNMENT 64u

#define MAX_LAYERS   1024u
#define MAX_PAGES    (1u << 24)
#define MAX_SEQS     65536u
#define MAX_KV_HEADS 1024u

typedef struct layer_state {
    tq_codec k, v; /* v is not used where values are in the keys */
    uint32_t d_v;
    uint8_t v_in_k;
    tq_encode_fn *encode_k, *encode_v;
    uint32_t n_kv_heads;
    tq_attn_mode attn;
    size_t page_bytes;
    uint8_t *pages;
} layer_state;

typedef struct seq_state {
    uint32_t n_tokens;   /* committed */
    uint32_t n_pending;  /* between begin and commit */
    uint32_t n_pages;    /* entries of the page table in use */
    uint32_t next_free;  /* of a closed slot: the next one */
    uint16_t generation; /* upper half of the handle, so that a stale handle is noticed */
    uint8_t is_open;
    uint8_t is_appending;
} seq_state;

struct tq_cache {
    layer_state *layers;
    seq_state *seqs;
    /* Of a used page its number of owners; of a free one the next free page. */
    uint32_t *page_link;
    uint32_t *tables;
    const tq_kernels *kernels;
    uint32_t n_layers, n_pages, max_seqs;
    uint32_t pages_mark, free_page, n_pages_used;
    uint32_t seqs_mark, free_seq, n_open;
    uint64_t n_tokens;
    size_t bytes_per_token, page_bytes;
    tq_allocator allocator; /* of a created cache */
    void *block;            /* what the allocator returned, or NULL */
};

/* ---- Layout ---------------------------------------------------------------------------- */

typedef struct layout {
    size_t layers_off, seqs_off, link_off, tables_off, arenas_off;
    size_t total; /* with the slack that aligning the start may take */
} layout;

/* What tq_view calls v_codec. */
static const tq_codec *value_codec(const layer_state *s)
{
    return s->v_in_k ? &s->k : &s->v;
}

static tq_status layer_init(layer_state *s, const tq_layer *l, uint32_t isa_mask)
{
    const tq_scheme *scheme = &l->scheme;
    if (l->n_kv_heads == 0 || l->n_kv_heads > MAX_KV_HEADS)
        return TQ_ERR_ARG;
    if (l->scheme.attn != TQ_ATTN_FUSED && l->scheme.attn != TQ_ATTN_DEQUANT)
        return TQ_ERR_ARG;
    /* Options that ask for rows of another format, or for a change of the keys. */
    if (scheme->skip || scheme->sink || scheme->tail || scheme->start || scheme->kmean[0] ||
        scheme->layers[0])
        return TQ_ERR_SCHEME;
    if (l->v_in_k > 1)
        return TQ_ERR_ARG;
    if (l->v_in_k && scheme->k_bits != scheme->v_bits)
        return TQ_ERR_SCHEME;
    tq_status st = tq_scheme_codec(scheme, 0, l->d_k, isa_mask, &s->k);
    if (st == TQ_OK && !l->v_in_k)
        st = tq_scheme_codec(scheme, 1, l->d_v, isa_mask, &s->v);
    if (st != TQ_OK)
        return st;
    if (l->v_in_k && (l->d_v == 0 || l->d_v > l->d_k || l->d_v % 8 != 0))
        return TQ_ERR_DIM;
    s->d_v = l->d_v;
    s->v_in_k = (uint8_t)l->v_in_k;
    s->encode_k = s->k.kernels->codec->encode[tq_kfmt(s->k.format)];
    s->encode_v = l->v_in_k ? NULL : s->v.kernels->codec->encode[tq_kfmt(s->v.format)];
    s->n_kv_heads = l->n_kv_heads;
    s->attn = l->scheme.attn;
    s->page_bytes = l->n_kv_heads * tq_page_head_bytes(&s->k, value_codec(s));
    s->pages = NULL;
    return TQ_OK;
}

/* off := where a part of n elements starts, *end := one past it, aligned. */
static int place(size_t *off, size_t *end, size_t n, size_t elem_bytes)
{
    size_t bytes;
    *off = *end;
    return tq_size_mul(&bytes, n, elem_bytes) || tq_size_add(end, *end, bytes) ||
           tq_size_align(end, *end, ALIGNMENT);
}

static tq_status make_layout(layout *lay, const tq_cache_config *cfg)
{
    if (!cfg || !cfg->layers || cfg->n_layers == 0 || cfg->n_layers > MAX_LAYERS ||
        cfg->n_pages == 0 || cfg->n_pages > MAX_PAGES || cfg->max_seqs == 0 ||
        cfg->max_seqs > MAX_SEQS)
        return TQ_ERR_ARG;

    size_t end = 0, self, table_entries, arena;
    int bad = place(&self, &end, 1, sizeof(tq_cache)) |
              place(&lay->layers_off, &end, cfg->n_layers, sizeof(layer_state)) |
              place(&lay->seqs_off, &end, cfg->max_seqs, sizeof(seq_state)) |
              place(&lay->link_off, &end, cfg->n_pages, sizeof(uint32_t)) |
              tq_size_mul(&table_entries, cfg->max_seqs, cfg->n_pages) |
              place(&lay->tables_off, &end, table_entries, sizeof(uint32_t));
    lay->arenas_off = end;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        layer_state s;
        tq_status st = layer_init(&s, &cfg->layers[i], cfg->isa_mask);
        if (st != TQ_OK)
            return st;
        bad |= place(&arena, &end, cfg->n_pages, s.page_bytes);
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
    tq_status st = make_layout(&lay, cfg);
    if (st == TQ_OK)
        *bytes = lay.total;
    return st;
}

tq_status tq_cache_init(tq_cache **out, const tq_cache_config *cfg, void *mem, size_t mem_bytes)
{
    layout lay;
    if (!out || !mem)
        return TQ_ERR_ARG;
    tq_status st = make_layout(&lay, cfg);
    if (st != TQ_OK)
        return st;
    if (mem_bytes < lay.total)
        return TQ_ERR_SIZE;

    uint8_t *base = (uint8_t *)mem + (ALIGNMENT - (uintptr_t)mem % ALIGNMENT) % ALIGNMENT;
    tq_cache *c = (tq_cache *)(void *)base;
    *c = (tq_cache){.layers = (layer_state *)(void *)(base + lay.layers_off),
                    .seqs = (seq_state *)(void *)(base + lay.seqs_off),
                    .page_link = (uint32_t *)(void *)(base + lay.link_off),
                    .tables = (uint32_t *)(void *)(base + lay.tables_off),
                    .kernels = tq_kernels_get(cfg->isa_mask),
                    .n_layers = cfg->n_layers,
                    .n_pages = cfg->n_pages,
                    .max_seqs = cfg->max_seqs,
                    .free_page = NO_INDEX,
                    .free_seq = NO_INDEX};
    uint8_t *arena = base + lay.arenas_off;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        layer_state *s = &c->layers[i];
        st = layer_init(s, &cfg->layers[i], cfg->isa_mask);
        if (st != TQ_OK)
            return st; /* make_layout did the same without an error */
        s->pages = arena;
        arena += cfg->n_pages * s->page_bytes;
        c->page_bytes += s->page_bytes;
        c->bytes_per_token += s->page_bytes / TQ_PAGE_TOKENS;
    }
    *out = c;
    return TQ_OK;
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

/* ---- Pages and sequences --------------------------------------------------------------- */

static uint32_t *table_of(const tq_cache *c, uint32_t slot)
{
    return c->tables + (size_t)slot * c->n_pages;
}

static uint32_t page_take(tq_cache *c)
{
    uint32_t p = c->free_page;
    if (p != NO_INDEX)
        c->free_page = c->page_link[p];
    else
        p = c->pages_mark++;
    c->page_link[p] = 1;
    c->n_pages_used++;
    return p;
}

static void page_release(tq_cache *c, uint32_t p)
{
    if (--c->page_link[p] > 0)
        return;
    c->page_link[p] = c->free_page;
    c->free_page = p;
    c->n_pages_used--;
}

static uint32_t pages_for(uint64_t n_tokens)
{
    return (uint32_t)((n_tokens + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS);
}

/* Give back all pages beyond the first n, last first, so that they are taken again in order. */
static void pages_trim(tq_cache *c, uint32_t slot, uint32_t n)
{
    seq_state *s = &c->seqs[slot];
    while (s->n_pages > n)
        page_release(c, table_of(c, slot)[--s->n_pages]);
}

/* The slot of an open sequence, or NO_INDEX. */
static uint32_t slot_of(const tq_cache *c, uint32_t seq)
{
    uint32_t slot = seq & 0xffffu;
    if (slot >= c->seqs_mark || !c->seqs[slot].is_open || c->seqs[slot].generation != seq >> 16)
        return NO_INDEX;
    return slot;
}

tq_status tq_cache_seq_open(tq_cache *c, uint32_t *seq)
{
    if (!c || !seq)
        return TQ_ERR_ARG;
    uint32_t slot = c->free_seq;
    uint16_t generation = 0;
    if (slot != NO_INDEX) {
        c->free_seq = c->seqs[slot].next_free;
        generation = (uint16_t)(c->seqs[slot].generation + 1);
    } else if (c->seqs_mark < c->max_seqs) {
        slot = c->seqs_mark++;
    } else {
        return TQ_ERR_FULL;
    }
    c->seqs[slot] = (seq_state){.generation = generation, .is_open = 1};
    c->n_open++;
    *seq = slot | (uint32_t)generation << 16;
    return TQ_OK;
}

tq_status tq_cache_seq_close(tq_cache *c, uint32_t seq)
{
    if (!c)
        return TQ_ERR_ARG;
    uint32_t slot = slot_of(c, seq);
    if (slot == NO_INDEX)
        return TQ_ERR_STATE;
    seq_state *s = &c->seqs[slot];
    pages_trim(c, slot, 0);
    c->n_tokens -= s->n_tokens;
    c->n_open--;
    s->is_open = 0;
    s->next_free = c->free_seq;
    c->free_seq = slot;
    return TQ_OK;
}

/* ---- Append ---------------------------------------------------------------------------- */

tq_status tq_cache_append_begin(tq_cache *c, uint32_t seq, uint32_t n_tokens)
{
    if (!c || n_tokens == 0)
        return TQ_ERR_ARG;
    uint32_t slot = slot_of(c, seq);
    if (slot == NO_INDEX || c->seqs[slot].is_appending)
        return TQ_ERR_STATE;
    seq_state *s = &c->seqs[slot];
    uint64_t total = (uint64_t)s->n_tokens + n_tokens;
    if (total > (uint64_t)c->n_pages * TQ_PAGE_TOKENS ||
        pages_for(total) - s->n_pages > c->n_pages - c->n_pages_used)
        return TQ_ERR_FULL;
    while (s->n_pages < pages_for(total))
        table_of(c, slot)[s->n_pages++] = page_take(c);
    s->n_pending = n_tokens;
    s->is_appending = 1;
    return TQ_OK;
}

/* First of `units` that part `part` of `n_parts` takes; no product that could overflow. */
static uint64_t part_start(uint64_t units, uint32_t part, uint32_t n_parts)
{
    uint64_t extra = units % n_parts;
    return units / n_parts * part + (part < extra ? part : extra);
}

/* One side of one KV head, within one page. */
static tq_status encode_run(const tq_codec *codec, tq_encode_fn *encode, uint8_t *side,
                            uint32_t slot, const float *src, size_t stride, uint32_t n)
{
    const tq_codec_kernels *kern = codec->kernels->codec;
    if (kern->first_nonfinite(src, stride, codec->dim, n) < n)
        return TQ_ERR_NONFINITE;
    encode(codec, tq_page_planes(codec, side, slot), src, stride, n);
    return TQ_OK;
}

tq_status tq_cache_append_rows(tq_cache *c, uint32_t seq, uint32_t layer, const float *k,
                               size_t k_stride, const float *v, size_t v_stride, uint32_t part,
                               uint32_t n_parts)
{
    if (!c || !k || layer >= c->n_layers || n_parts == 0 || part >= n_parts)
        return TQ_ERR_ARG;
    const layer_state *l = &c->layers[layer];
    if ((v == NULL) != l->v_in_k || k_stride < (size_t)l->n_kv_heads * l->k.dim ||
        (v && v_stride < (size_t)l->n_kv_heads * l->d_v))
        return TQ_ERR_ARG;
    uint32_t slot = slot_of(c, seq);
    if (slot == NO_INDEX || !c->seqs[slot].is_appending)
        return TQ_ERR_STATE;

    /* A unit of work is one KV head of one page: writers of different parts share no byte, and the
     * encoder gets runs as long as the page allows. */
    const seq_state *s = &c->seqs[slot];
    const uint32_t first = s->n_tokens, end = s->n_tokens + s->n_pending;
    const uint32_t first_page = first / TQ_PAGE_TOKENS;
    const uint64_t units = (uint64_t)(s->n_pages - first_page) * l->n_kv_heads;
    const uint64_t stop = part + 1 == n_parts ? units : part_start(units, part + 1, n_parts);
    for (uint64_t u = part_start(units, part, n_parts); u < stop; u++) {
        uint32_t page_idx = first_page + (uint32_t)(u / l->n_kv_heads);
        uint32_t head = (uint32_t)(u % l->n_kv_heads);
        uint32_t lo = page_idx * TQ_PAGE_TOKENS, hi = lo + TQ_PAGE_TOKENS;
        lo = lo < first ? first : lo;
        hi = hi > end ? end : hi;
        uint8_t *side = l->pages + table_of(c, slot)[page_idx] * l->page_bytes +
                        head * tq_page_head_bytes(&l->k, value_codec(l));
        size_t row = lo - first;
        tq_status st = encode_run(&l->k, l->encode_k, side, lo % TQ_PAGE_TOKENS,
                                  k + row * k_stride + (size_t)head * l->k.dim, k_stride, hi - lo);
        if (st == TQ_OK && v)
            st = encode_run(&l->v, l->encode_v, side + TQ_PAGE_TOKENS * l->k.block_bytes,
                            lo % TQ_PAGE_TOKENS, v + row * v_stride + (size_t)head * l->d_v,
                            v_stride, hi - lo);
        if (st != TQ_OK)
            return st;
    }
    return TQ_OK;
}

tq_status tq_cache_append_commit(tq_cache *c, uint32_t seq)
{
    if (!c)
        return TQ_ERR_ARG;
    uint32_t slot = slot_of(c, seq);
    if (slot == NO_INDEX || !c->seqs[slot].is_appending)
        return TQ_ERR_STATE;
    seq_state *s = &c->seqs[slot];
    s->n_tokens += s->n_pending;
    c->n_tokens += s->n_pending;
    s->n_pending = 0;
    s->is_appending = 0;
    return TQ_OK;
}

tq_status tq_cache_append_abort(tq_cache *c, uint32_t seq)
{
    if (!c)
        return TQ_ERR_ARG;
    uint32_t slot = slot_of(c, seq);
    if (slot == NO_INDEX || !c->seqs[slot].is_appending)
        return TQ_ERR_STATE;
    seq_state *s = &c->seqs[slot];
    s->n_pending = 0;
    s->is_appending = 0;
    pages_trim(c, slot, pages_for(s->n_tokens));
    return TQ_OK;
}

tq_status tq_cache_append(tq_cache *c, uint32_t seq, const float *k, const float *v,
                          uint32_t n_tokens)
{
    if (!c || !k || c->n_layers != 1)
        return TQ_ERR_ARG;
    const layer_state *l = &c->layers[0];
    tq_status st = tq_cache_append_begin(c, seq, n_tokens);
    if (st != TQ_OK)
        return st;
    st = tq_cache_append_rows(c, seq, 0, k, (size_t)l->n_kv_heads * l->k.dim, v,
                              (size_t)l->n_kv_heads * l->d_v, 0, 1);
    if (st != TQ_OK) {
        tq_cache_append_abort(c, seq);
        return st;
    }
    return tq_cache_append_commit(c, seq);
}

tq_status tq_cache_truncate(tq_cache *c, uint32_t seq, uint32_t n_tokens)
{
    if (!c)
        return TQ_ERR_ARG;
    uint32_t slot = slot_of(c, seq);
    if (slot == NO_INDEX || c->seqs[slot].is_appending)
        return TQ_ERR_STATE;
    seq_state *s = &c->seqs[slot];
    if (n_tokens > s->n_tokens)
        return TQ_ERR_ARG;
    c->n_tokens -= s->n_tokens - n_tokens;
    s->n_tokens = n_tokens;
    pages_trim(c, slot, pages_for(n_tokens));
    return TQ_OK;
}

/* ---- Reading --------------------------------------------------------------------------- */

tq_status tq_cache_len(const tq_cache *c, uint32_t seq, uint32_t *n_tokens)
{
    if (!c || !n_tokens)
        return TQ_ERR_ARG;
    uint32_t slot = slot_of(c, seq);
    if (slot == NO_INDEX)
        return TQ_ERR_STATE;
    *n_tokens = c->seqs[slot].n_tokens;
    return TQ_OK;
}

tq_status tq_cache_get_stats(const tq_cache *c, tq_cache_stats *out)
{
    if (!c || !out)
        return TQ_ERR_ARG;
    *out = (tq_cache_stats){.n_pages = c->n_pages,
                            .n_pages_used = c->n_pages_used,
                            .n_seqs = c->n_open,
                            .n_tokens = c->n_tokens,
                            .bytes_per_token = c->bytes_per_token,
                            .page_bytes = c->page_bytes,
                            .used_bytes = (size_t)c->n_tokens * c->bytes_per_token};
    return TQ_OK;
}

tq_status tq_cache_view(const tq_cache *c, uint32_t seq, uint32_t layer, tq_view *out)
{
    if (!c || !out || layer >= c->n_layers)
        return TQ_ERR_ARG;
    uint32_t slot = slot_of(c, seq);
    if (slot == NO_INDEX)
        return TQ_ERR_STATE;
    const layer_state *l = &c->layers[layer];
    *out = (tq_view){.k_codec = &l->k,
                     .v_codec = value_codec(l),
                     .d_v = l->d_v,
                     .n_kv_heads = l->n_kv_heads,
                     .n_tokens = c->seqs[slot].n_tokens + c->seqs[slot].n_pending,
                     .attn = l->attn,
                     .pages = l->pages,
                     .page_bytes = l->page_bytes,
                     .page_table = table_of(c, slot),
                     .kernels = c->kernels};
    return TQ_OK;
}

/* The first d_v elements of rows, of which a whole one must be decoded at a time. */
static void decode_starts(const tq_view *v, uint32_t kv_head, uint32_t page_idx, uint32_t slot,
                          uint32_t n, float *dst)
{
    const tq_codec *c = v->v_codec;
    float row[TQ_DIM_MAX];
    for (uint32_t i = 0; i < n; i++) {
        c->kernels->codec->decode[tq_kfmt(c->format)](
            c, row, c->dim, tq_view_planes(v, kv_head, page_idx, slot + i, 1), 1);
        memcpy(dst + (size_t)i * v->d_v, row, v->d_v * sizeof *row);
    }
}

tq_status tq_view_decode(const tq_view *v, uint32_t kv_head, uint32_t first, uint32_t n,
                         float *dst_k, float *dst_v)
{
    if (!v || kv_head >= v->n_kv_heads || first > v->n_tokens || n > v->n_tokens - first)
        return TQ_ERR_ARG;
    for (uint32_t done = 0; done < n;) {
        uint32_t page_idx = (first + done) / TQ_PAGE_TOKENS;
        uint32_t slot = (first + done) % TQ_PAGE_TOKENS;
        uint32_t run = TQ_PAGE_TOKENS - slot;
        run = run < n - done ? run : n - done;
        for (int side = 0; side < 2; side++) {
            const tq_codec *c = side ? v->v_codec : v->k_codec;
            float *dst = side ? dst_v : dst_k;
            if (dst && side && v->d_v != c->dim)
                decode_starts(v, kv_head, page_idx, slot, run, dst + (size_t)done * v->d_v);
            else if (dst)
                c->kernels->codec->decode[tq_kfmt(c->format)](
                    c, dst + (size_t)done * c->dim, c->dim,
                    tq_view_planes(v, kv_head, page_idx, slot, side), run);
        }
        done += run;
    }
    return TQ_OK;
}
