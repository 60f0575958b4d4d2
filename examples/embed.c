/* SPDX-License-Identifier: MIT */
/* embed.c — the smallest program around the core: 100 tokens into a compressed cache, then one
 * attention step over them. cc embed.c $(pkg-config --cflags --libs turboquant) -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <turboquant.h>

enum { N_TOKENS = 100, N_KV_HEADS = 2, N_Q_HEADS = 4, D = 128 };

static float k[N_TOKENS * N_KV_HEADS * D], v[N_TOKENS * N_KV_HEADS * D];
static float q[N_Q_HEADS * D], out[N_Q_HEADS * D];

static void check(tq_status s, const char *what)
{
    if (s == TQ_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, tq_status_name(s));
    exit(1);
}

int main(void)
{
    char why[TQ_SCHEME_ERROR_BYTES] = "";
    tq_layer layer = {.n_kv_heads = N_KV_HEADS, .d_k = D, .d_v = D};
    check(tq_scheme_parse(&layer.scheme, "turbo:k8v3", why, sizeof why), why);
    tq_cache_config config = {
        .layers = &layer, .n_layers = 1, .n_pages = 8, .max_seqs = 1, .isa_mask = TQ_ISA_ALL};
    tq_cache *cache;
    uint32_t seq;
    check(tq_cache_create(&cache, &config, NULL), "create");
    check(tq_cache_seq_open(cache, &seq), "open");

    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        k[i] = sinf(0.37f * (float)i);
        v[i] = cosf(0.11f * (float)i);
    }
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = sinf(0.05f * (float)i);
    check(tq_cache_append(cache, seq, k, v, N_TOKENS), "append");

    tq_view view;
    tq_attn_plan plan;
    tq_attn_config attn = {.n_q_heads = N_Q_HEADS, .q_len = 1, .scale = 1.0f / sqrtf((float)D)};
    check(tq_cache_view(cache, seq, 0, &view), "view");
    check(tq_attn_plan_init(&plan, &attn, &view), "plan");
    size_t scratch_bytes = plan.partials_bytes + plan.work_bytes + 64;
    void *scratch = malloc(scratch_bytes);
    check(scratch ? TQ_OK : TQ_ERR_NOMEM, "scratch");
    check(tq_attn_run(&plan, &view, out, N_Q_HEADS * D, q, N_Q_HEADS * D, scratch, scratch_bytes),
          "attention");

    size_t packed, f16;
    check(tq_cache_seq_bytes(cache, seq, &packed, &f16), "bytes");
    printf("turboquant %s: %d tokens in %zu bytes (f16: %zu), out[0] = %.4f\n", tq_version(),
           N_TOKENS, packed, (size_t)2 * 2 * N_TOKENS * N_KV_HEADS * D, (double)out[0]);
    free(scratch);
    tq_cache_destroy(cache);
    return 0;
}
