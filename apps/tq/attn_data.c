/* SPDX-License-Identifier: MIT */
/* attn_data.c — made-up keys, values and queries, and attention over them in float64.
 *
 * Rows are a function of their position, so that the original ones need not be kept beside all that
 * is made from them: the oracle makes them again, a piece at a time, with an online softmax.
 */
#include "attn_data.h"

#include "out.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { PIECE = 64 };

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Sums of four uniform numbers of 16 bits: near enough to the bell that keys and values have. */
static void fill(float *x, size_t n, uint64_t stream)
{
    /* splitmix64 (Steele, Lea and Flood): streams of neighbouring numbers are not alike. Its state
     * is a counter, so each stream begins where a first mixing puts it. */
    uint64_t state = mixed(stream);
    for (size_t i = 0; i < n; i++) {
        state += 0x9e3779b97f4a7c15u;
        const uint64_t bits = mixed(state);
        float sum = (float)(bits & 0xffff) + (float)(bits >> 16 & 0xffff) +
                    (float)(bits >> 32 & 0xffff) + (float)(bits >> 48);
        x[i] = (sum - 131070.0f) * (1.7320508f / 65536.0f);
    }
}

static uint64_t stream_of(uint32_t kind, uint32_t token, uint32_t head)
{
    return ((uint64_t)kind << 56) + ((uint64_t)token << 24) + head;
}

void attn_data_rows(const attn_shape *s, float *k, float *v, uint32_t first, uint32_t n)
{
    for (uint32_t t = first; t < first + n; t++) {
        for (uint32_t h = 0; h < s->n_kv_heads; h++, k += s->d_k, v += s->d_v) {
            fill(k, s->d_k, stream_of(1, t, h));
            fill(v, s->d_v, stream_of(2, t, h));
        }
    }
}

void attn_data_queries(const attn_shape *s, float *q, float sigma)
{
    for (uint32_t t = 0; t < s->q_len; t++) {
        for (uint32_t h = 0; h < s->n_heads; h++, q += s->d_k) {
            fill(q, s->d_k, stream_of(3, t, h));
            for (uint32_t i = 0; i < s->d_k; i++) {
                q[i] *= sigma;
            }
        }
    }
}

uint32_t attn_checked(const attn_shape *s, uint32_t at[ATTN_CHECKED])
{
    at[0] = s->q_len - 1;
    at[1] = 0;
    at[2] = s->q_len / 2;
    return s->q_len < ATTN_CHECKED ? s->q_len : ATTN_CHECKED;
}

typedef struct oracle {
    const attn_shape *s;
    const float *q;
    const tq_view *view; /* or NULL */
    double *want;
    atomic_uint next_head;
    atomic_bool failed;
} oracle;

static double dot(const float *a, const float *b, uint32_t n)
{
    double lane[4] = {0};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (uint32_t l = 0; l < 4; l++) {
            lane[l] += (double)a[i + l] * (double)b[i + l];
        }
    }
    for (; i < n; i++) {
        lane[0] += (double)a[i] * (double)b[i];
    }
    return lane[0] + lane[1] + (lane[2] + lane[3]);
}

/* One query over a piece: max, sum and out are the state of its softmax. */
static void absorb(const oracle *o, const float *q, const float *k, const float *v, uint32_t n,
                   double *max, double *sum, double *out)
{
    const attn_shape *s = o->s;
    double w[PIECE], top = *max;
    for (uint32_t t = 0; t < n; t++) {
        w[t] = (double)s->scale * dot(q, k + (size_t)t * s->d_k, s->d_k);
        top = w[t] > top ? w[t] : top;
    }
    double old = exp(*max - top);
    *max = top;
    *sum *= old;
    for (uint32_t i = 0; i < s->d_v; i++) {
        out[i] *= old;
    }
    for (uint32_t t = 0; t < n; t++) {
        const double weight = exp(w[t] - top);
        const float *row = v + (size_t)t * s->d_v;
        *sum += weight;
        for (uint32_t i = 0; i < s->d_v; i++) {
            out[i] += weight * (double)row[i];
        }
    }
}

/* All checked queries of one KV head. rows: scratch [PIECE][d_k + d_v]; state [queries][2]. */
static void oracle_head(const oracle *o, uint32_t head, float *rows, double *state)
{
    const attn_shape *s = o->s;
    const uint32_t group = s->n_heads / s->n_kv_heads;
    uint32_t at[ATTN_CHECKED], n_checked = attn_checked(s, at);
    float *k = rows, *v = rows + (size_t)PIECE * s->d_k;
    for (uint32_t i = 0; i < n_checked * group; i++) {
        state[2 * i] = -INFINITY;
        state[2 * i + 1] = 0;
    }
    for (uint32_t t0 = 0; t0 < s->n_kv; t0 += PIECE) {
        const uint32_t n = s->n_kv - t0 < PIECE ? s->n_kv - t0 : PIECE;
        for (uint32_t t = 0; !o->view && t < n; t++) {
            fill(k + (size_t)t * s->d_k, s->d_k, stream_of(1, t0 + t, head));
            fill(v + (size_t)t * s->d_v, s->d_v, stream_of(2, t0 + t, head));
        }
        for (uint32_t c = 0; c < n_checked; c++) {
            const uint32_t end = s->n_kv - s->q_len + at[c] + 1;
            const uint32_t seen = end <= t0 ? 0 : end - t0 < n ? end - t0 : n;
            if (!seen) {
                continue;
            }
            if (o->view) { /* which rows are read in f16 depends on the query */
                tq_view_decode_at(o->view, end - 1, head, t0, seen, k, v);
            }
            for (uint32_t i = c * group; i < (c + 1) * group; i++) {
                const size_t row = (size_t)head * group + i % group;
                absorb(o, o->q + (at[c] * (size_t)s->n_heads + row) * s->d_k, k, v, seen,
                       &state[2 * i], &state[2 * i + 1],
                       o->want + (c * (size_t)s->n_heads + row) * s->d_v);
            }
        }
    }
    for (uint32_t i = 0; i < n_checked * group; i++) {
        double *out =
            o->want + (i / group * (size_t)s->n_heads + (size_t)head * group + i % group) * s->d_v;
        for (uint32_t l = 0; l < s->d_v; l++) {
            out[l] /= state[2 * i + 1];
        }
    }
}

static void oracle_member(void *arg, uint32_t id)
{
    oracle *o = arg;
    const attn_shape *s = o->s;
    (void)id;
    float *rows = malloc((size_t)PIECE * (s->d_k + s->d_v) * sizeof *rows);
    double *state = malloc((size_t)ATTN_CHECKED * s->n_heads * 2 * sizeof *state);
    if (!rows || !state) {
        atomic_store(&o->failed, true);
    }
    for (uint32_t h;
         !atomic_load(&o->failed) && (h = atomic_fetch_add(&o->next_head, 1)) < s->n_kv_heads;) {
        oracle_head(o, h, rows, state);
    }
    free(rows);
    free(state);
}

bool attn_oracle(const attn_shape *s, const float *q, const tq_view *view, team *t, double *want)
{
    uint32_t at[ATTN_CHECKED];
    oracle o = {.s = s, .q = q, .view = view, .want = want};
    for (size_t i = 0; i < (size_t)attn_checked(s, at) * s->n_heads * s->d_v; i++) {
        want[i] = 0;
    }
    team_run(t, oracle_member, &o);
    if (atomic_load(&o.failed)) {
        msg_error("not enough memory for the float64 reference");
        return false;
    }
    return true;
}

double attn_error(const attn_shape *s, const float *out, const double *want)
{
    uint32_t at[ATTN_CHECKED], n = attn_checked(s, at);
    const size_t row = (size_t)s->n_heads * s->d_v;
    double err = 0, ref = 0;
    for (uint32_t c = 0; c < n; c++) {
        for (size_t i = 0; i < row; i++) {
            double e = (double)out[at[c] * row + i] - want[c * row + i];
            err += e * e;
            ref += want[c * row + i] * want[c * row + i];
        }
    }
    return sqrt(err / ref);
}
