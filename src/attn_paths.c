/* SPDX-License-Identifier: MIT */
/* attn_paths.c — the three ways through the tokens of a part: fused, tiled, dequant.
 *
 * Owns masks and the order of sums; the arithmetic on packed bytes is in the kernels.
 *
 * The one hard idea: a query reads old rows packed and new rows (and sinks) in f16, and where the
 * border lies depends on its own position. So each form is a pass of its own over the pages, in
 * which a row's span is what it reads in that form. In f16 these are two spans, below the packed
 * ones (sinks) and above (tail), which are two steps where they meet in a page.
 */
#include "attn_job.h"

#include <math.h>

/* Steps over a page in a pass. */
typedef enum step { STEP_PACKED, STEP_BELOW, STEP_ABOVE } step;

/* Tokens [t0, t0 + n) that query i sees in a step, relative to t0. */
static tq_span span_of(const tq_attn_job *j, step st, uint32_t i, uint32_t t0, uint32_t n)
{
    const uint32_t pos = j->s.n_tokens - j->s.q_len + i;
    uint32_t lo = tq_first_visible(&j->s, i), hi = pos + 1;
    if (j->s.n_forms == 2) {
        const tq_packed_span packed = tq_view_packed(j->v, pos);
        if (st == STEP_PACKED) {
            lo = tq_max_u32(lo, packed.lo);
            hi = tq_min_u32(hi, packed.hi);
        } else if (st == STEP_BELOW) {
            /* Without a packed row between them, all f16 rows are one span. */
            hi = packed.lo < packed.hi ? tq_min_u32(hi, packed.lo) : hi;
        } else {
            lo = packed.lo < packed.hi ? tq_max_u32(lo, packed.hi) : hi;
        }
    }
    lo = lo > t0 ? tq_min_u32(lo - t0, n) : 0;
    hi = hi > t0 ? tq_min_u32(hi - t0, n) : 0;
    return (tq_span){(uint8_t)lo, (uint8_t)hi};
}

/* Spans of rows [r0, r0 + n_rows). Returns 0 if all are empty. */
static int make_spans(const tq_attn_job *j, step st, tq_span *span, uint32_t r0, uint32_t n_rows,
                      uint32_t t0, uint32_t n)
{
    int any = 0;
    /* Older than all queries: by far the most frequent. */
    if (j->s.n_forms == 1 && j->s.window == 0 && t0 + n <= j->s.n_tokens - j->s.q_len + j->q0) {
        for (uint32_t r = 0; r < n_rows; r++)
            span[r] = (tq_span){0, (uint8_t)n};
        return 1;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        span[r] = span_of(j, st, j->q0 + (r0 + r) / j->s.group, t0, n);
        any |= span[r].lo < span[r].hi;
    }
    return any;
}

/* Does any query of the part see a token of the tile in this step? */
static int any_query_sees(const tq_attn_job *j, step st, uint32_t t0, uint32_t n)
{
    for (uint32_t i = j->q0; i < j->q0 + j->n_q; i++) {
        const tq_span s = span_of(j, st, i, t0, n);
        if (s.lo < s.hi)
            return 1;
    }
    return 0;
}

/* Tokens of the tile that the form has: f16 rows end where nothing but sinks or a start is kept. */
static uint32_t rows_in_tile(const tq_attn_job *j, step st, uint32_t t0, uint32_t n)
{
    const tq_view *v = j->v;
    if (st == STEP_PACKED || v->tail > 0)
        return n;
    const uint32_t end = tq_max_u32(v->sink, v->start);
    return end > t0 ? tq_min_u32(end - t0, n) : 0;
}

/* Keys are stored without their mean. A constant of the row changes a softmax only through a cap or
 * a logit that comes from elsewhere. */
static int needs_bias(const tq_attn_job *j)
{
    return j->v->k_mean && (j->cfg->softcap > 0 || j->cfg->sinks);
}

static void add_bias(const tq_attn_job *j, float *s, uint32_t r0, uint32_t n_rows)
{
    const float *bias = j->work + j->map.bias;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t t = 0; t < TQ_TILE; t++)
            s[r * TQ_TILE + t] += bias[r0 + r];
}

/* ---- Fused ----------------------------------------------------------------------------- */

/* The bytes of one head in a page: one run of memory. */
static tq_const_planes head_run(const tq_rows *rows, uint32_t kv_head, uint32_t page)
{
    return (tq_const_planes){.ahead = tq_rows_planes(rows, kv_head, page, 0, 0).codes,
                             .ahead_bytes = tq_page_head_bytes(rows->k, rows->v)};
}

/* What is read after the packed page at t0: the next one of the head, or the first of the thread's
 * next part. The page behind a packed one is there, whether or not anything is read from it. */
static tq_const_planes after_page(const tq_attn_job *j, const tq_rows *rows, uint32_t t0,
                                  uint32_t t_end)
{
    const tq_const_planes nothing = {0};
    if (t0 + TQ_TILE < t_end)
        return head_run(rows, j->kv_head, t0 / TQ_TILE + 1);
    return j->has_next ? head_run(rows, j->next_head, j->next_token / TQ_TILE) : nothing;
}

/* From here on a page is asked for in two streams, its first and its second half in turn: the
 * prefetchers of the hardware, which begin anew at each 4 KiB, then run along both. Shorter pages
 * gain nothing, see docs/numerics.md. */
#define TWO_STREAMS_BYTES 4096u

/* Let the two kernels of a page ask for that: its first half during the scores, the rest during
 * the sums; or half of each stream. */
static void set_ahead(tq_const_planes *keys, tq_const_planes *values, tq_const_planes next)
{
    if (!next.ahead)
        return;
    const size_t bytes = next.ahead_bytes;
    const size_t gap = bytes >= TWO_STREAMS_BYTES ? bytes / 128 * 64 : 0;
    const size_t stream = bytes - gap, first = stream / 128 * 64;
    keys->ahead_gap = values->ahead_gap = gap;
    keys->ahead = next.ahead;
    keys->ahead_bytes = first;
    values->ahead = next.ahead + first;
    values->ahead_bytes = stream - first;
}

/* out = alpha * out + weights times the values of a page, decoded, or still rotated. */
static void weigh_decoded(const tq_attn_job *j, const tq_rows *rows, const tq_attn_result *res,
                          uint32_t page, uint32_t n)
{
    const tq_codec *c = rows->v;
    const tq_attn_kernels *kern = j->v->kernels->attn;
    float *tile = j->work + j->map.tile, *values = j->work + j->map.values;
    c->kernels->codec->decode_rotated[tq_kfmt(c->format)](
        c, tile, c->dim, tq_rows_planes(rows, j->kv_head, page, 0, 1), n);
    kern->pack_values(values, tile, c->dim, n, c->dim);
    kern->gemm(res->out, j->out_stride, j->work + j->map.s, TQ_TILE, values, j->work + j->map.alpha,
               j->rows, tq_round_up(c->dim, TQ_STRIP), n);
}

/* What a pass does on every page. */
typedef struct fused_kernels {
    tq_score_fn *score;
    tq_weigh_fn *weigh; /* or NULL */
} fused_kernels;

/* One step over the page at t0, whose spans are made. next: what is read after it, or nothing. */
static void fused_page(const tq_attn_job *j, const tq_rows *rows, const fused_kernels *k,
                       const tq_attn_result *res, uint32_t t0, uint32_t n, tq_const_planes next)
{
    const uint32_t page = t0 / TQ_TILE;
    float *s = j->work + j->map.s, *alpha = j->work + j->map.alpha;
    tq_const_planes keys = tq_rows_planes(rows, j->kv_head, page, 0, 0);
    tq_const_planes values = tq_rows_planes(rows, j->kv_head, page, 0, 1);
    set_ahead(&keys, &values, next);
    k->score(rows->k, s, j->work + j->map.prep, j->rows, keys, n);
    if (needs_bias(j))
        add_bias(j, s, 0, j->rows);
    j->v->kernels->attn->softmax(s, (tq_span *)(void *)(j->work + j->map.span), j->rows,
                                 j->cfg->softcap, res->max, res->sum, alpha);
    if (k->weigh)
        k->weigh(rows->v, res->out, j->out_stride, s, alpha, j->rows, values, n);
    else
        weigh_decoded(j, rows, res, page, n);
}

static void fused_pass(const tq_attn_job *j, int form, uint32_t t_begin, uint32_t t_end)
{
    const tq_rows *rows = form == TQ_FORM_F16 ? &j->v->f16 : &j->v->packed;
    const step first = form == TQ_FORM_F16 ? STEP_BELOW : STEP_PACKED;
    const step last = form == TQ_FORM_F16 ? STEP_ABOVE : STEP_PACKED;
    tq_span *span = (tq_span *)(void *)(j->work + j->map.span);
    const int kf = tq_kfmt(rows->k->format);
    const fused_kernels k = {rows->k->kernels->attn->score[kf],
                             rows->v->kernels->attn->weigh[tq_kfmt(rows->v->format)]};
    int prepared = 0;
    for (uint32_t t0 = t_begin; t0 < t_end; t0 += TQ_TILE)
        for (step st = first; st <= last; st++) {
            const uint32_t n = rows_in_tile(j, st, t0, tq_min_u32(TQ_TILE, t_end - t0));
            if (!make_spans(j, st, span, 0, j->rows, t0, n))
                continue;
            if (!prepared) {
                tq_look_ahead(head_run(rows, j->kv_head, t0 / TQ_TILE));
                rows->k->kernels->attn->prep[kf](rows->k, j->work + j->map.prep, j->work + j->map.q,
                                                 j->rows);
            }
            prepared = 1;
            const tq_const_planes nothing = {0};
            fused_page(j, rows, &k, &j->result[form], t0, n,
                       st == STEP_PACKED ? after_page(j, rows, t0, t_end) : nothing);
        }
}

void tq_attn_fused(const tq_attn_job *j, uint32_t t_begin, uint32_t t_end)
{
    for (uint32_t f = 0; f < j->s.n_forms; f++)
        fused_pass(j, (int)f, t_begin, t_end);
}

/* ---- Tiled ----------------------------------------------------------------------------- */

static void tiled_page(const tq_attn_job *j, const tq_rows *rows, const tq_attn_result *res,
                       step st, uint32_t t0, uint32_t n)
{
    const tq_attn_shape *sh = &j->s;
    const tq_attn_kernels *kern = j->v->kernels->attn;
    const uint32_t dv_pad = tq_round_up(sh->d_v, TQ_STRIP), page = t0 / TQ_TILE;
    const float *q = j->work + j->map.q;
    float *tile = j->work + j->map.tile, *keys = j->work + j->map.keys;
    float *values = j->work + j->map.values, *s = j->work + j->map.s;
    float *alpha = j->work + j->map.alpha;
    tq_span *span = (tq_span *)(void *)(j->work + j->map.span);

    rows->k->kernels->codec->decode[tq_kfmt(rows->k->format)](
        rows->k, tile, sh->d_k, tq_rows_planes(rows, j->kv_head, page, 0, 0), n);
    kern->pack_keys(keys, tile, sh->d_k, n, sh->d_k);
    rows->v->kernels->codec->decode_rotated[tq_kfmt(rows->v->format)](
        rows->v, tile, sh->d_v, tq_rows_planes(rows, j->kv_head, page, 0, 1), n);
    kern->pack_values(values, tile, sh->d_v, n, sh->d_v);
    for (uint32_t r0 = 0; r0 < j->rows; r0 += TQ_SUB_ROWS) {
        const uint32_t m = tq_min_u32(TQ_SUB_ROWS, j->rows - r0);
        if (!make_spans(j, st, span, r0, m, t0, n))
            continue;
        kern->gemm(s, TQ_TILE, q + (size_t)r0 * sh->d_k, sh->d_k, keys, NULL, m, TQ_TILE, sh->d_k);
        if (needs_bias(j))
            add_bias(j, s, r0, m);
        kern->softmax(s, span, m, j->cfg->softcap, res->max + r0, res->sum + r0, alpha);
        kern->gemm(res->out + r0 * j->out_stride, j->out_stride, s, TQ_TILE, values, alpha, m,
                   dv_pad, n);
    }
}

void tq_attn_tiled(const tq_attn_job *j)
{
    const uint32_t t_begin = tq_first_visible(&j->s, j->q0) / TQ_TILE * TQ_TILE;
    const uint32_t t_end = j->s.n_tokens - j->s.q_len + j->q0 + j->n_q;
    const step last = j->s.n_forms == 2 ? STEP_ABOVE : STEP_PACKED;
    for (uint32_t t0 = t_begin; t0 < t_end; t0 += TQ_TILE)
        for (step st = STEP_PACKED; st <= last; st++) {
            const int form = st == STEP_PACKED ? TQ_FORM_PACKED : TQ_FORM_F16;
            const uint32_t n = rows_in_tile(j, st, t0, tq_min_u32(TQ_TILE, t_end - t0));
            if (any_query_sees(j, st, t0, n))
                tiled_page(j, form == TQ_FORM_F16 ? &j->v->f16 : &j->v->packed, &j->result[form],
                           st, t0, n);
        }
}

/* ---- Dequant --------------------------------------------------------------------------- */

/* The reference: nothing clever, the whole row of logits. */
void tq_attn_dequant(const tq_attn_job *j)
{
    const tq_attn_shape *sh = &j->s;
    const tq_attn_config *cfg = j->cfg;
    const tq_attn_result *res = &j->result[0];
    const uint32_t pos = sh->n_tokens - sh->q_len + j->q0, t_end = pos + 1;
    const uint32_t t_begin = tq_first_visible(sh, j->q0);
    float *tile = j->work + j->map.tile;

    for (uint32_t t0 = t_begin; t0 < t_end; t0 += TQ_TILE) {
        const uint32_t n = tq_min_u32(TQ_TILE, t_end - t0);
        tq_view_decode_at(j->v, pos, j->kv_head, t0, n, tile, NULL);
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
            res->max[r] = s[t] > res->max[r] ? s[t] : res->max[r];
        for (uint32_t t = t_begin; t < t_end; t++) {
            s[t] = s[t] == -INFINITY ? 0 : expf(s[t] - res->max[r]);
            total += s[t];
        }
        res->sum[r] = (float)total;
    }
    for (uint32_t t0 = t_begin; t0 < t_end; t0 += TQ_TILE) {
        const uint32_t n = tq_min_u32(TQ_TILE, t_end - t0);
        tq_view_decode_at(j->v, pos, j->kv_head, t0, n, NULL, tile);
        for (uint32_t r = 0; r < j->rows; r++) {
            const float *s = j->work + j->map.s + (size_t)r * sh->n_tokens;
            for (uint32_t t = 0; t < n; t++)
                for (uint32_t i = 0; i < sh->d_v; i++)
                    res->out[r * j->out_stride + i] += s[t0 + t] * tile[(size_t)t * sh->d_v + i];
        }
    }
}
