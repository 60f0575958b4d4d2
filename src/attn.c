/* SPDX-License-Identifier: MIT */
/* attn.c — attention over a view: split the work, run the tiles, merge.
 *
 * Owns the plan, masks and the order of every sum; the arithmetic on packed bytes is in the
 * kernels. Three paths, chosen by the plan:
 *   FUSED    few queries: keys are scored and values summed from their bytes, in chunks of the KV
 *            range that start at multiples of 512 tokens
 *   TILED    many queries: a tile of 64 tokens is decoded once per block of queries, then GEMM
 *   DEQUANT  the reference: decode to f32, plain softmax with the whole row of logits at hand
 *
 * The one hard idea: what is computed for a query depends on its own position and on the bytes it
 * sees, on nothing else: chunks and tiles start at fixed positions, a masked token weighs exactly
 * 0, and partial results are merged in the order of their position. So the same query gives equal
 * bytes alone, in a batch of q_len on the same path, and for any number of threads.
 *
 * Partial result of a part, in partials: out [rows][dv_pad] without the division by the sum, then
 * max [rows], then sum [rows]. Row = query token of the part * group + head of the group.
 */
#include "attn.h"
#include "cache.h"
#include "checked.h"

#include <math.h>
#include <string.h>

#define CHUNK       TQ_ATTN_CHUNK
#define FUSED_Q_MAX TQ_ATTN_FUSED_Q_MAX
#define Q_MAX       4096u
#define GROUP_MAX   32u
#define SUB_ROWS    48u /* rows between score and sum: their logits stay in the first cache */
#define ALIGNMENT   64u

enum { PATH_FUSED, PATH_TILED, PATH_DEQUANT };

/* Names of tq_attn_plan.priv. */
enum {
    PRIV_PATH,
    PRIV_N_TOKENS, /* of the view */
    PRIV_N_KV,     /* of the view */
    PRIV_CHUNK0,   /* FUSED: first chunk that any query sees */
    PRIV_BLOCK_Q,  /* query tokens of a part */
    PRIV_N_SPLITS  /* parts whose results are merged for one row */
};

typedef struct shape {
    uint32_t n_kv, group, d_k;
    uint32_t d_v; /* elements that are summed: of a stored value, so a whole key if it is in one */
    uint32_t d_out; /* elements of an output row */
    uint32_t n_tokens, q_len, window;
    int decode_values; /* FUSED: no kernel sums these values from their bytes */
} shape;

/* ---- Plan ------------------------------------------------------------------------------ */

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static uint32_t round_up(uint32_t a, uint32_t to)
{
    return div_up(a, to) * to;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Rows of a query block: as many as keep queries and sums in the second cache. */
static uint32_t tiled_block_q(const shape *s)
{
    uint32_t rows = 32768u / max_u32(s->d_k, s->d_v);
    rows = rows > 256u ? 256u : rows < SUB_ROWS ? SUB_ROWS : rows;
    return min_u32(max_u32(1, rows / s->group), s->q_len);
}

/* f32 of one part's partial result. */
static size_t slab_floats(uint32_t rows, uint32_t d_v)
{
    return ((size_t)rows * (round_up(d_v, TQ_STRIP) + 2) + 15) / 16 * 16;
}

/* Where a thread's scratch lies, in f32 from its start; each part 64-byte aligned. */
typedef struct work_map {
    size_t q, prep, s, alpha, span, tile, keys, values, total;
} work_map;

static size_t take(size_t *end, size_t n_floats)
{
    size_t off = *end;
    *end += (n_floats + 15) / 16 * 16;
    return off;
}

static work_map make_work_map(int path, uint32_t rows, const shape *s)
{
    work_map m = {0};
    const uint32_t d_max = max_u32(s->d_k, s->d_v);
    const uint32_t s_rows = path == PATH_TILED ? min_u32(rows, SUB_ROWS) : rows;
    m.q = take(&m.total, (size_t)rows * s->d_k);
    if (path == PATH_DEQUANT) {
        m.s = take(&m.total, (size_t)rows * s->n_tokens);
        m.tile = take(&m.total, (size_t)TQ_TILE * d_max);
        return m;
    }
    m.s = take(&m.total, (size_t)s_rows * TQ_TILE);
    m.alpha = take(&m.total, s_rows);
    m.span = take(&m.total, s_rows); /* a span is smaller than an f32 */
    if (path == PATH_FUSED)
        m.prep = take(&m.total, tq_prep_bytes(rows, s->d_k) / sizeof(float));
    else
        m.keys = take(&m.total, (size_t)TQ_TILE * s->d_k);
    if (path != PATH_FUSED || s->decode_values) {
        m.tile = take(&m.total, (size_t)TQ_TILE * d_max);
        m.values = take(&m.total, (size_t)TQ_TILE * round_up(s->d_v, TQ_STRIP));
    }
    return m;
}

/* Oldest token that query i sees. */
static uint32_t first_visible(uint32_t n_tokens, uint32_t q_len, uint32_t window, uint32_t i)
{
    uint32_t pos = n_tokens - q_len + i;
    return window != 0 && pos >= window ? pos - window + 1 : 0;
}

static tq_status plan_shape(tq_attn_plan *p, const shape *s, tq_attn_mode mode)
{
    int path = mode == TQ_ATTN_DEQUANT   ? PATH_DEQUANT
               : s->q_len <= FUSED_Q_MAX ? PATH_FUSED
                                         : PATH_TILED;
    uint32_t block_q = s->q_len, n_splits = 1, chunk0 = 0;
    size_t n_parts, bytes;
    if (path == PATH_FUSED) {
        chunk0 = first_visible(s->n_tokens, s->q_len, s->window, 0) / CHUNK;
        n_splits = div_up(s->n_tokens, CHUNK) - chunk0;
    } else {
        block_q = path == PATH_TILED ? tiled_block_q(s) : 1;
    }
    n_parts = (size_t)s->n_kv * n_splits * div_up(s->q_len, block_q);
    const uint32_t rows = block_q * s->group;
    if (n_parts > UINT32_MAX || tq_size_mul(&bytes, slab_floats(rows, s->d_v), sizeof(float)) ||
        tq_size_mul(&bytes, bytes, n_parts))
        return TQ_ERR_OVERFLOW;
    p->n_parts = (uint32_t)n_parts;
    p->partials_bytes = bytes;
    p->work_bytes = make_work_map(path, rows, s).total * sizeof(float);
    p->priv[PRIV_PATH] = (uint32_t)path;
    p->priv[PRIV_N_TOKENS] = s->n_tokens;
    p->priv[PRIV_N_KV] = s->n_kv;
    p->priv[PRIV_CHUNK0] = chunk0;
    p->priv[PRIV_BLOCK_Q] = block_q;
    p->priv[PRIV_N_SPLITS] = n_splits;
    return TQ_OK;
}

/* Formats that only keys have, when values are in the keys. */
static int must_decode_values(const tq_codec *v)
{
    return !v->kernels->attn->weigh[tq_kfmt(v->format)];
}

static shape shape_of(const tq_attn_config *cfg, const tq_view *v)
{
    shape s = {.n_kv = v->n_kv_heads,
               .group = cfg->n_q_heads / v->n_kv_heads,
               .d_k = v->k_codec->dim,
               .d_v = v->attn == TQ_ATTN_DEQUANT ? v->d_v : v->v_codec->dim,
               .d_out = v->d_v,
               .decode_values = must_decode_values(v->v_codec),
               .n_tokens = v->n_tokens,
               .q_len = cfg->q_len,
               .window = cfg->window};
    return s;
}

tq_status tq_attn_plan_init(tq_attn_plan *p, const tq_attn_config *cfg, const tq_view *v)
{
    if (!p || !cfg || !v || !v->k_codec || !v->v_codec || v->n_kv_heads == 0 || v->d_v == 0 ||
        v->d_v > v->v_codec->dim || (v->d_v != v->v_codec->dim && v->v_codec != v->k_codec))
        return TQ_ERR_ARG;
    if (cfg->n_q_heads == 0 || cfg->n_q_heads % v->n_kv_heads != 0 ||
        cfg->n_q_heads / v->n_kv_heads > GROUP_MAX || cfg->q_len == 0 || cfg->q_len > Q_MAX ||
        cfg->q_len > v->n_tokens || !isfinite(cfg->scale) || !isfinite(cfg->softcap) ||
        cfg->softcap < 0)
        return TQ_ERR_ARG;
    shape s = shape_of(cfg, v);
    tq_attn_plan made = {.cfg = *cfg, .n_rows = cfg->q_len * cfg->n_q_heads};
    tq_status st = plan_shape(&made, &s, v->attn);
    if (st == TQ_OK)
        *p = made;
    return st;
}

tq_status tq_attn_bounds(const tq_layer *layer, uint32_t n_q_heads, uint32_t max_q_len,
                         uint32_t max_tokens, size_t *partials_bytes, size_t *work_bytes)
{
    size_t unused;
    if (!layer || !partials_bytes || !work_bytes || layer->n_kv_heads == 0 || n_q_heads == 0 ||
        n_q_heads % layer->n_kv_heads != 0 || n_q_heads / layer->n_kv_heads > GROUP_MAX ||
        max_q_len == 0 || max_q_len > Q_MAX || max_tokens == 0)
        return TQ_ERR_ARG;
    tq_codec values;
    tq_status st = tq_scheme_bytes_per_token(&layer->scheme, layer->d_k,
                                             layer->v_in_k ? 0 : layer->d_v, &unused);
    if (st == TQ_OK) /* any ISA: a format that scalar.c cannot sum, none can */
        st = tq_scheme_codec(&layer->scheme, !layer->v_in_k,
                             layer->v_in_k ? layer->d_k : layer->d_v, TQ_ISA_SCALAR, &values);
    if (st != TQ_OK)
        return st;
    /* Within a path sizes grow with every argument; a window only makes them smaller. */
    size_t partials = 0, work = 0;
    const uint32_t q_lens[2] = {min_u32(max_q_len, FUSED_Q_MAX), max_q_len};
    for (int i = 0; i < 2; i++) {
        tq_attn_plan p;
        shape s = {.n_kv = layer->n_kv_heads,
                   .group = n_q_heads / layer->n_kv_heads,
                   .d_k = layer->d_k,
                   .d_v = values.dim,
                   .decode_values = must_decode_values(&values),
                   .n_tokens = max_u32(max_tokens, q_lens[i]),
                   .q_len = q_lens[i]};
        st = plan_shape(&p, &s, layer->scheme.attn);
        if (st != TQ_OK)
            return st;
        partials = p.partials_bytes > partials ? p.partials_bytes : partials;
        work = p.work_bytes > work ? p.work_bytes : work;
    }
    *partials_bytes = partials;
    *work_bytes = work;
    return TQ_OK;
}

/* ---- Phase 1 --------------------------------------------------------------------------- */

/* One part: which queries of which KV head, and where its result goes. */
typedef struct job {
    const tq_attn_plan *p;
    const tq_view *v;
    shape s;
    uint32_t kv_head;
    uint32_t q0, n_q; /* query tokens */
    uint32_t rows;    /* n_q * group */
    float *out, *max, *sum;
    size_t out_stride;
    float *work;
    work_map map;
} job;

/* Rows that a part has room for; the last block may use fewer. */
static uint32_t slab_rows(const tq_attn_plan *p, const shape *s)
{
    return p->priv[PRIV_BLOCK_Q] * s->group;
}

/* The part's queries, times the attention scale, row by row. */
static void gather_queries(const job *j, const float *q, size_t q_stride)
{
    float *dst = j->work + j->map.q;
    const size_t d = j->s.d_k;
    for (uint32_t r = 0; r < j->rows; r++, dst += d) {
        const float *src = q + (j->q0 + r / j->s.group) * q_stride +
                           ((size_t)j->kv_head * j->s.group + r % j->s.group) * d;
        for (size_t i = 0; i < d; i++)
            dst[i] = src[i] * j->p->cfg.scale;
    }
}

static void reset_result(const job *j)
{
    memset(j->out, 0, j->rows * j->out_stride * sizeof(float));
    for (uint32_t r = 0; r < j->rows; r++) {
        j->max[r] = -INFINITY;
        j->sum[r] = 0;
    }
}

/* Spans of rows [r0, r0 + n_rows) in the tile of n tokens from t0 on. Returns 0 if all are
 * empty. */
static int make_spans(const job *j, tq_span *span, uint32_t r0, uint32_t n_rows, uint32_t t0,
                      uint32_t n)
{
    int any = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t i = j->q0 + (r0 + r) / j->s.group;
        uint32_t lo = first_visible(j->s.n_tokens, j->s.q_len, j->s.window, i);
        uint32_t hi = j->s.n_tokens - j->s.q_len + i + 1;
        lo = lo > t0 ? min_u32(lo - t0, n) : 0;
        hi = hi > t0 ? min_u32(hi - t0, n) : 0;
        span[r] = (tq_span){(uint8_t)lo, (uint8_t)hi};
        any |= lo < hi;
    }
    return any;
}

/* Let the two kernels of a page ask for the next page of the same head, one run of memory: its
 * first half during the scores, the rest during the sums. */
static void set_ahead(tq_const_planes *keys, tq_const_planes *values, const uint8_t *next,
                      size_t bytes)
{
    keys->ahead = next;
    keys->ahead_bytes = bytes / 128 * 64;
    values->ahead = next + keys->ahead_bytes;
    values->ahead_bytes = bytes - keys->ahead_bytes;
}

/* out = alpha * out + weights s times the values of a page, decoded, or still rotated. */
static void weigh_decoded(const job *j, const float *s, const float *alpha, uint32_t page,
                          uint32_t n)
{
    const tq_codec *c = j->v->v_codec;
    const tq_attn_kernels *kern = j->v->kernels->attn;
    float *tile = j->work + j->map.tile, *values = j->work + j->map.values;
    c->kernels->codec->decode_rotated[tq_kfmt(c->format)](
        c, tile, c->dim, tq_view_planes(j->v, j->kv_head, page, 0, 1), n);
    kern->pack_values(values, tile, c->dim, n, c->dim);
    kern->gemm(j->out, j->out_stride, s, TQ_TILE, values, alpha, j->rows,
               round_up(c->dim, TQ_STRIP), n);
}

static void run_fused(const job *j, uint32_t t_begin, uint32_t t_end)
{
    const tq_view *v = j->v;
    const tq_attn_kernels *kern = v->kernels->attn;
    const tq_attn_kernels *k_kern = v->k_codec->kernels->attn;
    const tq_attn_kernels *v_kern = v->v_codec->kernels->attn;
    const int kf = tq_kfmt(v->k_codec->format), vf = tq_kfmt(v->v_codec->format);
    float *s = j->work + j->map.s, *alpha = j->work + j->map.alpha, *prep = j->work + j->map.prep;
    tq_span *span = (tq_span *)(void *)(j->work + j->map.span);

    const size_t head_bytes = tq_page_head_bytes(v->k_codec, v->v_codec);
    const uint8_t *first = tq_view_planes(v, j->kv_head, t_begin / TQ_TILE, 0, 0).codes;
    tq_look_ahead((tq_const_planes){.ahead = first, .ahead_bytes = head_bytes});
    k_kern->prep[kf](v->k_codec, prep, j->work + j->map.q, j->rows);
    for (uint32_t t0 = t_begin; t0 < t_end; t0 += TQ_TILE) {
        const uint32_t n = min_u32(TQ_TILE, t_end - t0), page = t0 / TQ_TILE;
        if (!make_spans(j, span, 0, j->rows, t0, n))
            continue;
        tq_const_planes keys = tq_view_planes(v, j->kv_head, page, 0, 0);
        tq_const_planes values = tq_view_planes(v, j->kv_head, page, 0, 1);
        if (t0 + TQ_TILE < t_end)
            set_ahead(&keys, &values, tq_view_planes(v, j->kv_head, page + 1, 0, 0).codes,
                      head_bytes);
        k_kern->score[kf](v->k_codec, s, prep, j->rows, keys, n);
        kern->softmax(s, span, j->rows, j->p->cfg.softcap, j->max, j->sum, alpha);
        if (j->s.decode_values)
            weigh_decoded(j, s, alpha, page, n);
        else
            v_kern->weigh[vf](v->v_codec, j->out, j->out_stride, s, alpha, j->rows, values, n);
    }
}

static void run_tiled(const job *j)
{
    const tq_view *v = j->v;
    const shape *sh = &j->s;
    const tq_attn_kernels *kern = v->kernels->attn;
    const int kf = tq_kfmt(v->k_codec->format), vf = tq_kfmt(v->v_codec->format);
    const uint32_t dv_pad = round_up(sh->d_v, TQ_STRIP);
    const float *q = j->work + j->map.q;
    float *tile = j->work + j->map.tile, *keys = j->work + j->map.keys;
    float *values = j->work + j->map.values, *s = j->work + j->map.s;
    float *alpha = j->work + j->map.alpha;
    tq_span *span = (tq_span *)(void *)(j->work + j->map.span);

    const uint32_t t_begin =
        first_visible(sh->n_tokens, sh->q_len, sh->window, j->q0) / TQ_TILE * TQ_TILE;
    const uint32_t t_end = sh->n_tokens - sh->q_len + j->q0 + j->n_q;
    for (uint32_t t0 = t_begin; t0 < t_end; t0 += TQ_TILE) {
        const uint32_t n = min_u32(TQ_TILE, t_end - t0), page = t0 / TQ_TILE;
        v->k_codec->kernels->codec->decode[kf](v->k_codec, tile, sh->d_k,
                                               tq_view_planes(v, j->kv_head, page, 0, 0), n);
        kern->pack_keys(keys, tile, sh->d_k, n, sh->d_k);
        v->v_codec->kernels->codec->decode_rotated[vf](
            v->v_codec, tile, sh->d_v, tq_view_planes(v, j->kv_head, page, 0, 1), n);
        kern->pack_values(values, tile, sh->d_v, n, sh->d_v);
        for (uint32_t r0 = 0; r0 < j->rows; r0 += SUB_ROWS) {
            const uint32_t m = min_u32(SUB_ROWS, j->rows - r0);
            if (!make_spans(j, span, r0, m, t0, n))
                continue;
            kern->gemm(s, TQ_TILE, q + (size_t)r0 * sh->d_k, sh->d_k, keys, NULL, m, TQ_TILE,
                       sh->d_k);
            kern->softmax(s, span, m, j->p->cfg.softcap, j->max + r0, j->sum + r0, alpha);
            kern->gemm(j->out + r0 * j->out_stride, j->out_stride, s, TQ_TILE, values, alpha, m,
                       dv_pad, n);
        }
    }
}

/* The reference: nothing clever, one query token, the whole row of logits. */
static void run_dequant(const job *j)
{
    const shape *sh = &j->s;
    const tq_attn_config *cfg = &j->p->cfg;
    float *tile = j->work + j->map.tile;
    const uint32_t t_begin = first_visible(sh->n_tokens, sh->q_len, sh->window, j->q0);
    const uint32_t t_end = sh->n_tokens - sh->q_len + j->q0 + 1;

    for (uint32_t t0 = t_begin; t0 < t_end; t0 += TQ_TILE) {
        const uint32_t n = min_u32(TQ_TILE, t_end - t0);
        tq_view_decode(j->v, j->kv_head, t0, n, tile, NULL);
        for (uint32_t r = 0; r < j->rows; r++) {
            const float *q = j->work + j->map.q + (size_t)r * sh->d_k;
            float *s = j->work + j->map.s + (size_t)r * sh->n_tokens;
            for (uint32_t t = 0; t < n; t++) {
                const float *k = tile + (size_t)t * sh->d_k;
                float lane[8] = {0}, dot = 0; /* d_k is a multiple of 8 */
                for (uint32_t i = 0; i < sh->d_k; i += 8)
                    for (uint32_t l = 0; l < 8; l++)
                        lane[l] += q[i + l] * k[i + l];
                for (uint32_t l = 0; l < 8; l++)
                    dot += lane[l];
                s[t0 + t] = cfg->softcap > 0 ? cfg->softcap * tanhf(dot / cfg->softcap) : dot;
            }
        }
    }
    for (uint32_t r = 0; r < j->rows; r++) {
        float *s = j->work + j->map.s + (size_t)r * sh->n_tokens;
        double total = 0;
        for (uint32_t t = t_begin; t < t_end; t++)
            j->max[r] = s[t] > j->max[r] ? s[t] : j->max[r];
        for (uint32_t t = t_begin; t < t_end; t++) {
            s[t] = s[t] == -INFINITY ? 0 : expf(s[t] - j->max[r]);
            total += s[t];
        }
        j->sum[r] = (float)total;
    }
    for (uint32_t t0 = t_begin; t0 < t_end; t0 += TQ_TILE) {
        const uint32_t n = min_u32(TQ_TILE, t_end - t0);
        tq_view_decode(j->v, j->kv_head, t0, n, NULL, tile);
        for (uint32_t r = 0; r < j->rows; r++) {
            const float *s = j->work + j->map.s + (size_t)r * sh->n_tokens;
            for (uint32_t t = 0; t < n; t++)
                for (uint32_t i = 0; i < sh->d_v; i++)
                    j->out[r * j->out_stride + i] += s[t0 + t] * tile[(size_t)t * sh->d_v + i];
        }
    }
}

static int plan_fits(const tq_attn_plan *p, const tq_view *v)
{
    return p && v && p->n_parts > 0 && v->n_tokens == p->priv[PRIV_N_TOKENS] &&
           v->n_kv_heads == p->priv[PRIV_N_KV] && v->d_v <= v->v_codec->dim;
}

tq_status tq_attn_part(const tq_attn_plan *p, const tq_view *v, const float *q, size_t q_stride,
                       void *partials, void *work, uint32_t part)
{
    if (!plan_fits(p, v) || !q || !partials || !work || part >= p->n_parts ||
        (uintptr_t)partials % ALIGNMENT != 0 || (uintptr_t)work % ALIGNMENT != 0)
        return TQ_ERR_ARG;
    job j = {.p = p, .v = v, .s = shape_of(&p->cfg, v), .work = work};
    if (q_stride < (size_t)p->cfg.n_q_heads * j.s.d_k)
        return TQ_ERR_ARG;

    /* Neighbouring parts belong to different KV heads, and longer ones come first: threads that
     * take every n-th part get about equal work. */
    const int path = (int)p->priv[PRIV_PATH];
    const uint32_t block_q = p->priv[PRIV_BLOCK_Q];
    const uint32_t unit = part / j.s.n_kv;
    j.kv_head = part % j.s.n_kv;
    if (path != PATH_FUSED)
        j.q0 = (div_up(j.s.q_len, block_q) - 1 - unit) * block_q;
    j.n_q = min_u32(block_q, j.s.q_len - j.q0);
    j.rows = j.n_q * j.s.group;
    j.map = make_work_map(path, block_q * j.s.group, &j.s);
    j.out_stride = round_up(j.s.d_v, TQ_STRIP);
    j.out = (float *)partials + part * slab_floats(slab_rows(p, &j.s), j.s.d_v);
    j.max = j.out + slab_rows(p, &j.s) * j.out_stride;
    j.sum = j.max + slab_rows(p, &j.s);

    gather_queries(&j, q, q_stride);
    reset_result(&j);
    if (path == PATH_FUSED) {
        uint32_t t0 = (p->priv[PRIV_CHUNK0] + unit) * CHUNK;
        run_fused(&j, t0, min_u32(t0 + CHUNK, j.s.n_tokens));
    } else if (path == PATH_TILED) {
        run_tiled(&j);
    } else {
        run_dequant(&j);
    }
    return TQ_OK;
}

/* ---- Phase 2 --------------------------------------------------------------------------- */

/* One output row from the partial results of its splits, oldest tokens first. */
static void merge_row(const tq_attn_plan *p, const shape *s, float *out, const float *partials,
                      uint32_t token, uint32_t head)
{
    const uint32_t block_q = p->priv[PRIV_BLOCK_Q], n_splits = p->priv[PRIV_N_SPLITS];
    const uint32_t dv_pad = round_up(s->d_v, TQ_STRIP), rows = slab_rows(p, s);
    const size_t slab = slab_floats(rows, s->d_v);
    const uint32_t row = token % block_q * s->group + head % s->group;
    const uint32_t first_unit =
        p->priv[PRIV_PATH] == PATH_FUSED ? 0 : div_up(s->q_len, block_q) - 1 - token / block_q;
    const float *part = partials + ((size_t)first_unit * s->n_kv + head / s->group) * slab;
    const size_t next = s->n_kv * slab, max_off = (size_t)rows * dv_pad + row;

    float max = p->cfg.sinks ? p->cfg.sinks[head] : -INFINITY;
    float unseen = 0; /* becomes NaN if logits are, for then no maximum shows it */
    for (uint32_t i = 0; i < n_splits; i++) {
        float m = part[i * next + max_off];
        unseen += m == -INFINITY ? part[i * next + max_off + rows] : 0;
        max = m > max ? m : max;
    }
    for (uint32_t i = 0; i < s->d_v; i++)
        out[i] = unseen;
    if (max == -INFINITY)
        return; /* nothing is visible */

    float sum = p->cfg.sinks ? expf(p->cfg.sinks[head] - max) : 0;
    for (uint32_t i = 0; i < n_splits; i++, part += next) {
        if (part[max_off] == -INFINITY)
            continue;
        const float weight = expf(part[max_off] - max);
        const float *o = part + (size_t)row * dv_pad;
        sum += part[max_off + rows] * weight;
        for (uint32_t l = 0; l < s->d_v; l++)
            out[l] += o[l] * weight;
    }
    const float inverse = 1 / sum;
    for (uint32_t i = 0; i < s->d_v; i++)
        out[i] *= inverse;
}

tq_status tq_attn_merge(const tq_attn_plan *p, const tq_view *v, float *out, size_t out_stride,
                        const void *partials, void *work, uint32_t row, uint32_t n)
{
    if (!plan_fits(p, v) || !out || !partials || (uintptr_t)partials % ALIGNMENT != 0 ||
        row > p->n_rows || n > p->n_rows - row || out_stride < (size_t)p->cfg.n_q_heads * v->d_v)
        return TQ_ERR_ARG;
    const shape s = shape_of(&p->cfg, v);
    const int rotated = p->priv[PRIV_PATH] != PATH_DEQUANT && v->v_codec->rotated;
    if (s.d_v != s.d_out && (!work || (uintptr_t)work % ALIGNMENT != 0))
        return TQ_ERR_ARG;
    for (uint32_t i = row; i < row + n; i++) {
        const uint32_t token = i / p->cfg.n_q_heads, head = i % p->cfg.n_q_heads;
        float *dst = out + token * out_stride + (size_t)head * s.d_out;
        /* A longer row than the output's is finished in the scratch. */
        float *sum = s.d_v == s.d_out ? dst : work;
        merge_row(p, &s, sum, partials, token, head);
        if (rotated)
            v->kernels->codec->unrotate(sum, s.d_v);
        if (sum != dst)
            memcpy(dst, sum, s.d_out * sizeof *dst);
    }
    return TQ_OK;
}

tq_status tq_attn_run(const tq_attn_plan *p, const tq_view *v, float *out, size_t out_stride,
                      const float *q, size_t q_stride, void *scratch, size_t scratch_bytes)
{
    size_t need;
    if (!plan_fits(p, v) || !scratch)
        return TQ_ERR_ARG;
    if (tq_size_add(&need, p->partials_bytes, p->work_bytes) ||
        tq_size_add(&need, need, ALIGNMENT) || scratch_bytes < need)
        return TQ_ERR_SIZE;
    uint8_t *partials =
        (uint8_t *)scratch + (ALIGNMENT - (uintptr_t)scratch % ALIGNMENT) % ALIGNMENT;
    uint8_t *work = partials + p->partials_bytes;
    for (uint32_t part = 0; part < p->n_parts; part++) {
        tq_status st = tq_attn_part(p, v, q, q_stride, partials, work, part);
        if (st != TQ_OK)
            return st;
    }
    return tq_attn_merge(p, v, out, out_stride, partials, work, 0, p->n_rows);
}
