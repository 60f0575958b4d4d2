/* SPDX-License-Identifier: MIT */
/* attn.c — attention over a view: split the work, run the parts, merge.
 *
 * Owns the plan and the merge; attn_paths.c computes a part. Three paths, chosen by the plan:
 *   FUSED    few queries: keys are scored and values summed from their bytes, in chunks of the KV
 *            range that start at multiples of TQ_ATTN_CHUNK
 *   TILED    many queries: a tile of 64 tokens is decoded once per block of queries, then GEMM
 *   DEQUANT  the reference: decode to f32, plain softmax with the whole row of logits at hand
 *
 * The one hard idea: what is computed for a query depends on its own position and on the bytes it
 * sees, on nothing else: chunks and tiles start at fixed positions, a masked token weighs exactly
 * 0, and partial results are merged in the order of their position. So the same query gives equal
 * bytes alone, in a batch of q_len on the same path, and for any number of threads.
 */
#include "attn.h"
#include "attn_job.h"
#include "checked.h"

#include <math.h>
#include <string.h>

#define FUSED_Q_MAX TQ_ATTN_FUSED_Q_MAX
#define Q_MAX       4096u
#define GROUP_MAX   32u
#define ALIGNMENT   64u

/* Names of tq_attn_plan.priv. */
enum {
    PRIV_PATH,
    PRIV_N_TOKENS, /* of the view */
    PRIV_N_KV,     /* of the view */
    PRIV_N_FORMS,  /* results of a part */
    PRIV_CHUNK0,   /* FUSED: first chunk that any query sees */
    PRIV_BLOCK_Q,  /* query tokens of a part */
    PRIV_N_SPLITS  /* parts whose results are merged for one row */
};

/* ---- Plan ------------------------------------------------------------------------------ */

static uint32_t div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Rows of a query block: as many as keep queries and sums in the second cache. */
static uint32_t tiled_block_q(const tq_attn_shape *s)
{
    uint32_t rows = 32768u / tq_max_u32(s->d_k, s->d_v);
    rows = rows > 256u ? 256u : rows < TQ_SUB_ROWS ? TQ_SUB_ROWS : rows;
    return tq_min_u32(tq_max_u32(1, rows / s->group), s->q_len);
}

/* f32 of one result of a part. */
static size_t slab_floats(uint32_t rows, uint32_t d_v)
{
    return ((size_t)rows * (tq_round_up(d_v, TQ_STRIP) + 2) + 15) / 16 * 16;
}

static size_t take(size_t *end, size_t n_floats)
{
    size_t off = *end;
    *end += (n_floats + 15) / 16 * 16;
    return off;
}

static tq_work_map make_work_map(int path, uint32_t rows, const tq_attn_shape *s)
{
    tq_work_map m = {0};
    const uint32_t d_max = tq_max_u32(s->d_k, s->d_v);
    const uint32_t s_rows = path == TQ_PATH_TILED ? tq_min_u32(rows, TQ_SUB_ROWS) : rows;
    m.q = take(&m.total, (size_t)rows * s->d_k);
    if (path == TQ_PATH_DEQUANT) {
        m.s = take(&m.total, (size_t)rows * s->n_tokens);
        m.tile = take(&m.total, (size_t)TQ_TILE * d_max);
        return m;
    }
    m.bias = take(&m.total, rows);
    m.s = take(&m.total, (size_t)s_rows * TQ_TILE);
    m.alpha = take(&m.total, s_rows);
    m.span = take(&m.total, s_rows); /* a span is smaller than an f32 */
    if (path == TQ_PATH_FUSED)
        m.prep = take(&m.total, tq_prep_bytes(rows, s->d_k) / sizeof(float));
    else
        m.keys = take(&m.total, (size_t)TQ_TILE * s->d_k);
    if (path != TQ_PATH_FUSED || s->decode_values) {
        m.tile = take(&m.total, (size_t)TQ_TILE * d_max);
        m.values = take(&m.total, (size_t)TQ_TILE * tq_round_up(s->d_v, TQ_STRIP));
    }
    return m;
}

static tq_status plan_shape(tq_attn_plan *p, const tq_attn_shape *s, tq_attn_mode mode)
{
    int path = mode == TQ_ATTN_DEQUANT   ? TQ_PATH_DEQUANT
               : s->q_len <= FUSED_Q_MAX ? TQ_PATH_FUSED
                                         : TQ_PATH_TILED;
    uint32_t block_q = s->q_len, n_splits = 1, chunk0 = 0;
    size_t n_parts, bytes;
    if (path == TQ_PATH_FUSED) {
        chunk0 = tq_first_visible(s, 0) / TQ_ATTN_CHUNK(s->n_kv);
        n_splits = div_up(s->n_tokens, TQ_ATTN_CHUNK(s->n_kv)) - chunk0;
    } else {
        block_q = path == TQ_PATH_TILED ? tiled_block_q(s) : 1;
    }
    n_parts = (size_t)s->n_kv * n_splits * div_up(s->q_len, block_q);
    const uint32_t rows = block_q * s->group;
    if (n_parts > UINT32_MAX ||
        tq_size_mul(&bytes, slab_floats(rows, s->d_v), s->n_forms * sizeof(float)) ||
        tq_size_mul(&bytes, bytes, n_parts))
        return TQ_ERR_OVERFLOW;
    p->n_parts = (uint32_t)n_parts;
    p->partials_bytes = bytes;
    p->work_bytes = make_work_map(path, rows, s).total * sizeof(float);
    p->priv[PRIV_PATH] = (uint32_t)path;
    p->priv[PRIV_N_TOKENS] = s->n_tokens;
    p->priv[PRIV_N_KV] = s->n_kv;
    p->priv[PRIV_N_FORMS] = s->n_forms;
    p->priv[PRIV_CHUNK0] = chunk0;
    p->priv[PRIV_BLOCK_Q] = block_q;
    p->priv[PRIV_N_SPLITS] = n_splits;
    return TQ_OK;
}

/* Formats that only keys have, when values are in the keys. f16 can be summed. */
static int must_decode_values(const tq_codec *v)
{
    return !v->kernels->attn->weigh[tq_kfmt(v->format)];
}

static tq_attn_shape shape_of(const tq_attn_config *cfg, const tq_view *v)
{
    tq_attn_shape s = {.n_kv = v->n_kv_heads,
                       .group = cfg->n_q_heads / v->n_kv_heads,
                       .d_k = v->packed.k->dim,
                       .d_v = v->attn == TQ_ATTN_DEQUANT ? v->d_v : v->packed.v->dim,
                       .d_out = v->d_v,
                       .decode_values = must_decode_values(v->packed.v),
                       .n_tokens = v->n_tokens,
                       .q_len = cfg->q_len,
                       .window = cfg->window,
                       .n_forms = v->f16.pages && v->attn == TQ_ATTN_FUSED ? 2 : 1};
    return s;
}

tq_status tq_attn_plan_init(tq_attn_plan *p, const tq_attn_config *cfg, const tq_view *v)
{
    if (!p || !cfg || !v || !v->packed.k || !v->packed.v || v->n_kv_heads == 0 || v->d_v == 0 ||
        v->d_v > v->packed.v->dim || (v->d_v != v->packed.v->dim && v->packed.v != v->packed.k))
        return TQ_ERR_ARG;
    if (cfg->n_q_heads == 0 || cfg->n_q_heads % v->n_kv_heads != 0 ||
        cfg->n_q_heads / v->n_kv_heads > GROUP_MAX || cfg->q_len == 0 || cfg->q_len > Q_MAX ||
        cfg->q_len > v->n_tokens || !isfinite(cfg->scale) || !isfinite(cfg->softcap) ||
        cfg->softcap < 0 || (v->window != 0 && (cfg->window == 0 || cfg->window > v->window)))
        return TQ_ERR_ARG;
    if (v->n_tokens - cfg->q_len < v->min_query)
        return TQ_ERR_STATE;
    tq_attn_shape s = shape_of(cfg, v);
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
    const tq_scheme *scheme = &layer->scheme;
    const int two =
        scheme->attn == TQ_ATTN_FUSED && (scheme->sink || scheme->tail || scheme->start);
    /* Within a path sizes grow with every argument; a window only makes them smaller. */
    size_t partials = 0, work = 0;
    const uint32_t q_lens[2] = {tq_min_u32(max_q_len, FUSED_Q_MAX), max_q_len};
    for (int i = 0; i < 2; i++) {
        tq_attn_plan p;
        tq_attn_shape s = {.n_kv = layer->n_kv_heads,
                           .group = n_q_heads / layer->n_kv_heads,
                           .d_k = layer->d_k,
                           .d_v = values.dim,
                           .decode_values = must_decode_values(&values),
                           .n_tokens = tq_max_u32(max_tokens, q_lens[i]),
                           .q_len = q_lens[i],
                           .n_forms = two ? 2 : 1};
        st = plan_shape(&p, &s, scheme->attn);
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

/* Rows that a part has room for; the last block may use fewer. */
static uint32_t slab_rows(const tq_attn_plan *p, const tq_attn_shape *s)
{
    return p->priv[PRIV_BLOCK_Q] * s->group;
}

/* The part's queries, times the attention scale, row by row; and what the mean of the keys adds to
 * each row's logits. */
static void gather_queries(const tq_attn_job *j, const float *q, size_t q_stride)
{
    float *restrict dst = j->work + j->map.q, *bias = j->work + j->map.bias;
    const size_t d = j->s.d_k;
    const float scale = j->cfg->scale;
    const float *mean =
        j->v->attn == TQ_ATTN_FUSED && j->v->k_mean ? j->v->k_mean + j->kv_head * d : NULL;
    for (uint32_t r = 0; r < j->rows; r++, dst += d) {
        const float *restrict src = q + (j->q0 + r / j->s.group) * q_stride +
                                    ((size_t)j->kv_head * j->s.group + r % j->s.group) * d;
        for (size_t i = 0; i < d; i++)
            dst[i] = src[i] * scale;
        if (!mean)
            continue;
        bias[r] = 0;
        for (size_t i = 0; i < d; i++)
            bias[r] += dst[i] * mean[i];
    }
}

static void reset_result(const tq_attn_job *j, const tq_attn_result *res)
{
    memset(res->out, 0, j->rows * j->out_stride * sizeof(float));
    for (uint32_t r = 0; r < j->rows; r++) {
        res->max[r] = -INFINITY;
        res->sum[r] = 0;
    }
}

static int plan_fits(const tq_attn_plan *p, const tq_view *v)
{
    return p && v && p->n_parts > 0 && v->n_tokens == p->priv[PRIV_N_TOKENS] &&
           v->n_kv_heads == p->priv[PRIV_N_KV] && v->d_v <= v->packed.v->dim &&
           shape_of(&p->cfg, v).n_forms == p->priv[PRIV_N_FORMS];
}

/* First token that a part of the fused path reads. */
static uint32_t part_begin(const tq_attn_plan *p, uint32_t unit)
{
    return (p->priv[PRIV_CHUNK0] + unit) * TQ_ATTN_CHUNK(p->priv[PRIV_N_KV]);
}

/* Where the part begins that the same thread takes next. */
static void set_next(tq_attn_job *j, const tq_attn_plan *p, uint32_t part)
{
    if (p->step == 0 || p->step >= p->n_parts - part)
        return;
    const uint32_t next = part + p->step;
    j->has_next = 1;
    j->next_head = next % j->s.n_kv;
    j->next_token = tq_max_u32(part_begin(p, next / j->s.n_kv), tq_first_visible(&j->s, 0));
}

tq_status tq_attn_part(const tq_attn_plan *p, const tq_view *v, const float *q, size_t q_stride,
                       void *partials, void *work, uint32_t part)
{
    if (!plan_fits(p, v) || !q || !partials || !work || part >= p->n_parts ||
        (uintptr_t)partials % ALIGNMENT != 0 || (uintptr_t)work % ALIGNMENT != 0)
        return TQ_ERR_ARG;
    tq_attn_job j = {.cfg = &p->cfg, .v = v, .s = shape_of(&p->cfg, v), .work = work};
    if (q_stride < (size_t)p->cfg.n_q_heads * j.s.d_k)
        return TQ_ERR_ARG;

    /* Neighbouring parts belong to different KV heads, and longer ones come first: threads that
     * take every n-th part get about equal work. */
    const int path = (int)p->priv[PRIV_PATH];
    const uint32_t block_q = p->priv[PRIV_BLOCK_Q];
    const uint32_t unit = part / j.s.n_kv;
    j.kv_head = part % j.s.n_kv;
    if (path != TQ_PATH_FUSED)
        j.q0 = (div_up(j.s.q_len, block_q) - 1 - unit) * block_q;
    j.n_q = tq_min_u32(block_q, j.s.q_len - j.q0);
    j.rows = j.n_q * j.s.group;
    j.map = make_work_map(path, block_q * j.s.group, &j.s);
    j.out_stride = tq_round_up(j.s.d_v, TQ_STRIP);
    const size_t slab = slab_floats(slab_rows(p, &j.s), j.s.d_v);
    float *out = (float *)partials + (size_t)part * j.s.n_forms * slab;
    for (uint32_t f = 0; f < j.s.n_forms; f++, out += slab) {
        tq_attn_result *res = &j.result[f];
        res->out = out;
        res->max = out + slab_rows(p, &j.s) * j.out_stride;
        res->sum = res->max + slab_rows(p, &j.s);
        reset_result(&j, res);
    }
    gather_queries(&j, q, q_stride);
    if (path == TQ_PATH_FUSED) {
        const uint32_t t0 = part_begin(p, unit);
        set_next(&j, p, part);
        tq_attn_fused(&j, t0, tq_min_u32(t0 + TQ_ATTN_CHUNK(j.s.n_kv), j.s.n_tokens));
    } else if (path == TQ_PATH_TILED) {
        tq_attn_tiled(&j);
    } else {
        tq_attn_dequant(&j);
    }
    return TQ_OK;
}

/* ---- Phase 2 --------------------------------------------------------------------------- */

/* The results of the splits of one row, oldest tokens first. */
typedef struct row_results {
    const float *first; /* of the row's first split, form 0 */
    size_t next;        /* to the next split */
    size_t form;        /* to the other form */
    size_t row_off, max_off, sum_off;
    uint32_t n_splits;
} row_results;

static row_results find_results(const tq_attn_plan *p, const tq_attn_shape *s,
                                const float *partials, uint32_t token, uint32_t head)
{
    const uint32_t block_q = p->priv[PRIV_BLOCK_Q], rows = slab_rows(p, s);
    const uint32_t dv_pad = tq_round_up(s->d_v, TQ_STRIP);
    const size_t slab = slab_floats(rows, s->d_v), part = s->n_forms * slab;
    const uint32_t row = token % block_q * s->group + head % s->group;
    const uint32_t first_unit =
        p->priv[PRIV_PATH] == TQ_PATH_FUSED ? 0 : div_up(s->q_len, block_q) - 1 - token / block_q;
    return (row_results){.first =
                             partials + ((size_t)first_unit * s->n_kv + head / s->group) * part,
                         .next = s->n_kv * part,
                         .form = slab,
                         .row_off = (size_t)row * dv_pad,
                         .max_off = (size_t)rows * dv_pad + row,
                         .sum_off = (size_t)rows * dv_pad + rows + row,
                         .n_splits = p->priv[PRIV_N_SPLITS]};
}

/* out += factor * the sums of one form. */
static void add_sums(const row_results *r, uint32_t form, float *restrict out, uint32_t d_v,
                     float max, float factor)
{
    const float *part = r->first + form * r->form;
    for (uint32_t i = 0; i < r->n_splits; i++, part += r->next) {
        if (part[r->max_off] == -INFINITY)
            continue;
        const float weight = expf(part[r->max_off] - max) * factor;
        const float *restrict sums = part + r->row_off;
        for (uint32_t l = 0; l < d_v; l++)
            out[l] += sums[l] * weight;
    }
}

/* One output row. rotated: the sums of packed values are. */
static void merge_row(const tq_attn_plan *p, const tq_attn_shape *s, const tq_view *v, int rotated,
                      float *out, const float *partials, uint32_t token, uint32_t head)
{
    const row_results r = find_results(p, s, partials, token, head);
    float max = p->cfg.sinks ? p->cfg.sinks[head] : -INFINITY;
    float unseen = 0; /* becomes NaN if logits are, for then no maximum shows it */
    for (uint32_t f = 0; f < s->n_forms; f++)
        for (uint32_t i = 0; i < r.n_splits; i++) {
            const float *part = r.first + f * r.form + i * r.next;
            float m = part[r.max_off];
            unseen += m == -INFINITY ? part[r.sum_off] : 0;
            max = m > max ? m : max;
        }
    for (uint32_t i = 0; i < s->d_v; i++)
        out[i] = unseen;
    if (max == -INFINITY)
        return; /* nothing is visible */

    float sum = p->cfg.sinks ? expf(p->cfg.sinks[head] - max) : 0;
    for (uint32_t f = 0; f < s->n_forms; f++)
        for (uint32_t i = 0; i < r.n_splits; i++) {
            const float *part = r.first + f * r.form + i * r.next;
            if (part[r.max_off] != -INFINITY)
                sum += part[r.sum_off] * expf(part[r.max_off] - max);
        }
    const float inverse = 1 / sum;
    add_sums(&r, TQ_FORM_PACKED, out, s->d_v, max, 1);
    for (uint32_t i = 0; i < s->d_v; i++)
        out[i] *= inverse;
    if (rotated)
        v->kernels->codec->unrotate(out, s->d_v);
    if (s->n_forms == 2)
        add_sums(&r, TQ_FORM_F16, out, s->d_v, max, inverse);
}

tq_status tq_attn_merge(const tq_attn_plan *p, const tq_view *v, float *out, size_t out_stride,
                        const void *partials, void *work, uint32_t row, uint32_t n)
{
    if (!plan_fits(p, v) || !out || !partials || (uintptr_t)partials % ALIGNMENT != 0 ||
        row > p->n_rows || n > p->n_rows - row || out_stride < (size_t)p->cfg.n_q_heads * v->d_v)
        return TQ_ERR_ARG;
    const tq_attn_shape s = shape_of(&p->cfg, v);
    const int rotated = p->priv[PRIV_PATH] != TQ_PATH_DEQUANT && v->packed.v->rotated;
    if (s.d_v != s.d_out && (!work || (uintptr_t)work % ALIGNMENT != 0))
        return TQ_ERR_ARG;
    for (uint32_t i = row; i < row + n; i++) {
        const uint32_t token = i / p->cfg.n_q_heads, head = i % p->cfg.n_q_heads;
        float *dst = out + token * out_stride + (size_t)head * s.d_out;
        /* A longer row than the output's is finished in the scratch. */
        float *sum = s.d_v == s.d_out ? dst : work;
        merge_row(p, &s, v, rotated, sum, partials, token, head);
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
    tq_attn_plan in_turn = *p;
    in_turn.step = 1;
    for (uint32_t part = 0; part < p->n_parts; part++) {
        tq_status st = tq_attn_part(&in_turn, v, q, q_stride, partials, work, part);
        if (st != TQ_OK)
            return st;
    }
    return tq_attn_merge(p, v, out, out_stride, partials, work, 0, p->n_rows);
}
