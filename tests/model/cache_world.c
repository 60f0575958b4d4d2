/* SPDX-License-Identifier: MIT */
/* cache_world.c — see cache_world.h. Formats are the cheap ones: what is tested is which row is
 * where, and a million operations have to fit into a minute. */
#include "cache_world.h"

typedef struct layer_spec {
    const char *scheme; /* NULL: no more layers */
    uint32_t n_kv, group, d_k, d_v, window, donor;
    int mean, sinks;
    float softcap;
} layer_spec;

/* PITFALLS 24, 25: layers differ in heads, dimensions, formats and windows, some have donors. */
static const layer_spec worlds[CW_WORLDS][CW_LAYERS] = {
    {{"f32", 1, 1, 16, 16, 0, 0, 0, 0, 0}},
    {{"f16", 2, 1, 16, 24, 20, 0, 0, 0, 0},
     {"f32", 1, 2, 24, 16, 0, 0, 0, 0, 0},
     {"f32", 2, 1, 16, 24, 20, 1, 0, 0, 0}},
    {{"affine8g32,sink=3,tail=5", 1, 2, 32, 16, 0, 0, 0, 0, 0}},
    {{"affine8g32,tail=70,start=100,skip=1", 1, 1, 16, 16, 0, 0, 0, 0, 0},
     {"affine8g32,tail=70,start=100,skip=1", 1, 3, 16, 16, 0, 0, 0, 1, 0},
     {"affine8g32,tail=70,start=100,skip=1", 1, 1, 16, 16, 0, 0, 0, 0, 0}},
    {{"affine8g32,sink=70,tail=10", 1, 1, 16, 16, 100, 0, 1, 1, 0},
     {"affine8g32,sink=10,start=150", 1, 1, 16, 16, 0, 0, 1, 0, 2}},
    {{"turbo5v6,sink=4,tail=64", 2, 1, 16, 16, 150, 0, 1, 0, 0},
     {"turbo5v6,sink=4,tail=64", 2, 3, 16, 16, 150, 1, 0, 0, 0}},
    {{"f32", 1, 1, 16, 16, 1, 0, 0, 0, 0}, {"affine8g32,tail=1", 1, 2, 16, 16, 65, 0, 0, 0, 0}},
    {{"turbo:k4v5,tail=33,attn=dequant", 1, 2, 32, 32, 0, 0, 1, 0, 3},
     {"turbo:k4v5,tail=33", 1, 2, 32, 32, 0, 0, 1, 0, 3}},
    {{"affine8g32,start=90", 1, 1, 16, 16, 40, 0, 0, 0, 0},
     {"f16", 1, 1, 16, 16, 64, 0, 0, 0, 0},
     {"bf16", 1, 1, 16, 16, 0, 0, 1, 0, 0},
     {"affine8g32,start=90", 1, 1, 16, 16, 40, 1, 0, 0, 0}},
    {{"turbo6v5,sink=64,tail=128", 1, 4, 16, 16, 0, 0, 0, 1, 0},
     {"turbo0v8,sink=1,tail=1", 1, 1, 16, 16, 64, 0, 1, 0, 0}},
};

uint64_t cw_random(uint64_t *seed)
{
    return test_random(seed);
}

static void give_up(const char *what)
{
    fprintf(stderr, "cache_world.c: %s\n", what);
    abort();
}

/* What rows x [CW_IDS][n_kv][d] come back as: the codec alone, and the mean by hand. */
static void decoded(const tq_codec *c, const cw_layer *l, const float *mean,
                    float from[CW_IDS][CW_MAX_KV][CW_MAX_D], float to[CW_IDS][CW_MAX_KV][CW_MAX_D])
{
    uint8_t block[CW_MAX_D * 8];
    for (uint32_t id = 0; id < CW_IDS; id++)
        for (uint32_t h = 0; h < l->n_kv; h++) {
            float x[CW_MAX_D];
            for (uint32_t i = 0; i < c->dim; i++)
                x[i] = mean ? from[id][h][i] - mean[h * c->dim + i] : from[id][h][i];
            if (c->block_bytes > sizeof block ||
                tq_codec_encode(c, block, sizeof block, x, c->dim, 1, NULL) != TQ_OK ||
                tq_codec_decode(c, to[id][h], c->dim, block, sizeof block, 1) != TQ_OK)
                give_up("codec");
            for (uint32_t i = 0; mean && i < c->dim; i++)
                to[id][h][i] += mean[h * c->dim + i];
        }
}

static void make_layer(cw_world *w, uint32_t i, const layer_spec *spec, uint32_t n_layers)
{
    cw_layer *l = &w->layer[i];
    tq_layer *t = &w->config[i];
    uint64_t seed = 1000 * w->number + i;
    *t = (tq_layer){.n_kv_heads = spec->n_kv,
                    .d_k = spec->d_k,
                    .d_v = spec->d_v,
                    .window = spec->window,
                    .donor = spec->donor,
                    .k_mean = spec->mean && !spec->donor ? l->mean : NULL};
    if (tq_scheme_parse(&t->scheme, spec->scheme, NULL, 0) != TQ_OK)
        give_up(spec->scheme);
    *l = (cw_layer){.n_kv = spec->n_kv,
                    .group = spec->group,
                    .d_k = spec->d_k,
                    .d_v = spec->d_v,
                    .window = spec->window,
                    .stored_by = spec->donor ? spec->donor - 1 : i,
                    .has_form = {!spec->donor, 0},
                    .skipped = i < t->scheme.skip || n_layers - i <= t->scheme.skip,
                    .scale = 1 / sqrtf((float)spec->d_k),
                    .softcap = spec->softcap,
                    .sinks = spec->sinks};
    if (!l->skipped) {
        l->sink = t->scheme.sink;
        l->tail = t->scheme.tail;
        l->start = t->scheme.start;
        l->has_form[1] = !spec->donor && (l->sink || l->tail || l->start);
    }
    for (int j = 0; j < CW_MAX_KV * CW_MAX_D; j++)
        l->mean[j] = (float)(2 * test_normal(&seed));
    for (int id = 0; id < CW_IDS; id++)
        for (int h = 0; h < CW_MAX_KV; h++)
            for (int j = 0; j < CW_MAX_D; j++) {
                l->k[0][id][h][j] = (float)test_normal(&seed);
                l->v[0][id][h][j] = (float)test_normal(&seed);
            }
    tq_scheme packed = t->scheme, f16;
    if (tq_scheme_parse(&f16, "f16", NULL, 0) != TQ_OK)
        give_up("f16");
    if (l->skipped)
        packed = f16;
    for (int form = 0; form < 2; form++) {
        tq_codec k, v;
        if (tq_scheme_codec(form ? &f16 : &packed, 0, l->d_k, TQ_ISA_ALL, &k) != TQ_OK ||
            tq_scheme_codec(form ? &f16 : &packed, 1, l->d_v, TQ_ISA_ALL, &v) != TQ_OK)
            give_up("scheme");
        decoded(&k, l, spec->mean && !spec->donor ? l->mean : NULL, l->k[0], l->k[form + 1]);
        decoded(&v, l, NULL, l->v[0], l->v[form + 1]);
        l->page_bytes[form] = 64 * l->n_kv * (k.block_bytes + v.block_bytes);
    }
}

void cw_make(cw_world *w, uint32_t number)
{
    uint32_t n = 0;
    while (n < CW_LAYERS && worlds[number][n].scheme)
        n++;
    w->number = number;
    w->n_layers = n;
    for (uint32_t i = 0; i < n; i++)
        make_layer(w, i, &worlds[number][i], n);
}

void cw_fill(const cw_layer *l, const uint8_t *ids, uint32_t n, float *k, float *v)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < l->n_kv; h++, k += l->d_k, v += l->d_v) {
            memcpy(k, cw_row(l, ids[t], h, -1, 0), l->d_k * sizeof *k);
            memcpy(v, cw_row(l, ids[t], h, -1, 1), l->d_v * sizeof *v);
        }
}

int cw_same_rule(const cw_layer *a, const cw_layer *b, int form)
{
    return a->window == b->window &&
           (form == 0 || (a->sink == b->sink && a->tail == b->tail && a->start == b->start));
}

static const float sinks[CW_MAX_HEADS] = {0.5f, -1, 2, 0, 1, -3};

int cw_attend(const cw_layer *l, const tq_view *v, uint32_t q_len, const float *q, float *out)
{
    static _Alignas(64) uint8_t scratch[1 << 21];
    const tq_attn_config cfg = {.n_q_heads = l->n_kv * l->group,
                                .q_len = q_len,
                                .window = l->window,
                                .scale = l->scale,
                                .softcap = l->softcap,
                                .sinks = l->sinks ? sinks : NULL};
    tq_attn_plan p;
    return tq_attn_plan_init(&p, &cfg, v) == TQ_OK &&
           tq_attn_run(&p, v, out, cfg.n_q_heads * l->d_v, q, cfg.n_q_heads * l->d_k, scratch,
                       sizeof scratch) == TQ_OK;
}

double cw_error(const cw_layer *l, const uint8_t *ids, uint32_t p, const float *q, const float *out)
{
    static double s[CW_MAX_TOKENS];
    double worst = 0;
    for (uint32_t h = 0; h < l->n_kv * l->group; h++, q += l->d_k, out += l->d_v) {
        const uint32_t kv = h / l->group, first = cw_oldest(l, p);
        double max = l->sinks ? (double)sinks[h] : -INFINITY, sum = 0, o[CW_MAX_D] = {0};
        for (uint32_t t = first; t <= p; t++) {
            const float *k = cw_row(l, ids[t], kv, cw_reads_f16(l, p, t), 0);
            double dot = 0;
            for (uint32_t i = 0; i < l->d_k; i++)
                dot += (double)q[i] * (double)l->scale * (double)k[i];
            s[t] = l->softcap > 0 ? l->softcap * tanh(dot / (double)l->softcap) : dot;
            max = s[t] > max ? s[t] : max;
        }
        if (l->sinks)
            sum = exp((double)sinks[h] - max);
        for (uint32_t t = first; t <= p; t++) {
            const float *v = cw_row(l, ids[t], kv, cw_reads_f16(l, p, t), 1);
            const double w = exp(s[t] - max);
            sum += w;
            for (uint32_t i = 0; i < l->d_v; i++)
                o[i] += w * (double)v[i];
        }
        for (uint32_t i = 0; i < l->d_v; i++) {
            const double e = fabs(o[i] / sum - (double)out[i]);
            worst = e > worst || isnan(e) ? e : worst;
        }
    }
    return isnan(worst) ? INFINITY : worst;
}
