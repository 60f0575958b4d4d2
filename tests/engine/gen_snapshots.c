/* SPDX-License-Identifier: MIT */
/* gen_snapshots.c — writes the seed corpus of fuzz_snapshot: gen_snapshots DIR
 *
 * Small files of each kind and several schemes, without a model: the layout is what counts.
 */
#include "engine_priv.h"
#include "snapshot_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct seed {
    const char *name, *scheme;
    tqe_snap_kind kind;
    uint32_t first, n_tokens, n_layers, n_heads, dim, window, tail;
    bool logits;
} seed;

static bool describe(tqe_snap_layer *l, const seed *s)
{
    tq_scheme scheme;
    tq_codec k, v;
    if (tq_scheme_parse(&scheme, s->scheme, NULL, 0) != TQ_OK ||
        tq_scheme_codec(&scheme, 0, s->dim, TQ_ISA_SCALAR, &k) != TQ_OK ||
        tq_scheme_codec(&scheme, 1, s->dim, TQ_ISA_SCALAR, &v) != TQ_OK) {
        return false;
    }
    *l = (tqe_snap_layer){.n_kv_heads = s->n_heads,
                          .d_k = s->dim,
                          .d_v = s->dim,
                          .window = s->window,
                          .k_format = (uint32_t)k.format,
                          .v_format = (uint32_t)v.format,
                          .k_flags = k.flags,
                          .v_flags = v.flags,
                          .tail = s->tail};
    return tqe_decoder_id(&l->k_decoder, &k) == TQE_OK &&
           tqe_decoder_id(&l->v_decoder, &v) == TQE_OK;
}

static uint64_t row_bytes(const tqe_snap_layer *l, uint32_t form)
{
    tq_codec k, v;
    if (form == TQ_FORM_F16) {
        return 2 * ((uint64_t)l->d_k + l->d_v);
    }
    (void)tq_codec_init(&k, (tq_format)l->k_format, l->d_k, l->k_flags, TQ_ISA_SCALAR);
    (void)tq_codec_init(&v, (tq_format)l->v_format, l->d_v, l->v_flags, TQ_ISA_SCALAR);
    return k.block_bytes + v.block_bytes;
}

/* Packed pages, then f16 ones of the last page where there is a tail. */
static void list_parts(tqe_snap *h, const seed *s)
{
    const uint32_t end = h->first + h->n_tokens;
    const uint32_t n_pages = (end + TQ_PAGE_TOKENS - 1) / TQ_PAGE_TOKENS;
    for (uint32_t form = 0; form < 2; form++) {
        const uint32_t from = form == 0 && s->kind == TQE_SNAP_TIMELINE ? 0 : n_pages - 1;
        if (s->kind == TQE_SNAP_END ? form == 0 : form == 1 && s->tail == 0) {
            continue;
        }
        for (uint32_t page = from; page < n_pages; page++) {
            for (uint32_t layer = 0; layer < h->n_layers; layer++) {
                const uint32_t left = end - page * TQ_PAGE_TOKENS;
                tqe_snap_part *t = &h->parts[h->n_parts++];
                *t = (tqe_snap_part){.form = form, .page = page, .layer = layer};
                t->n_tokens = left < TQ_PAGE_TOKENS ? left : TQ_PAGE_TOKENS;
                t->bytes = row_bytes(&h->layers[layer], form) * s->n_heads * t->n_tokens;
            }
        }
    }
}

static int emit(const char *dir, const seed *s)
{
    tqe_snap_layer layers[2];
    tqe_snap_part parts[16];
    int32_t tokens[128];
    float logits[8];
    char path[512];
    tqe_error err = {TQE_OK, ""};
    tqe_snap h = {.kind = (uint32_t)s->kind,
                  .first = s->first,
                  .n_tokens = s->n_tokens,
                  .n_layers = s->n_layers,
                  .n_vocab = 8,
                  .flags = s->logits ? TQE_SNAP_HAS_LOGITS : 0,
                  .layers = layers,
                  .tokens = tokens,
                  .logits = s->logits ? logits : NULL,
                  .parts = parts};
    (void)snprintf(h.scheme, sizeof(h.scheme), "%s", s->scheme);
    (void)snprintf(h.model, sizeof(h.model), "seed");
    memset(h.key, s->kind == TQE_SNAP_TIMELINE ? 0 : 7, sizeof(h.key));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (!describe(&layers[i], s)) {
            fprintf(stderr, "no scheme %s\n", s->scheme);
            return 1;
        }
    }
    for (int32_t i = 0; i < 128; i++) {
        tokens[i] = i % 8;
    }
    for (int i = 0; i < 8; i++) {
        logits[i] = (float)i;
    }
    list_parts(&h, s);
    (void)tqe_snap_place(&h);
    uint8_t *file = calloc(1, (size_t)h.file_bytes);
    if (file == NULL) {
        return 1;
    }
    for (uint32_t i = 0; i < h.n_parts; i++) {
        tqe_hash128(parts[i].hash, file + parts[i].off, (size_t)parts[i].bytes);
    }
    tqe_snap_encode(&h, file, file + h.file_bytes - TQE_SNAP_TRAILER_BYTES);
    tqe_snap parsed; /* a seed that is refused teaches the fuzzer little */
    if (tqe_snap_parse(&parsed, file, (size_t)h.file_bytes, &err) != TQE_OK) {
        fprintf(stderr, "%s: %s\n", s->name, err.text);
        free(file);
        return 1;
    }
    tqe_snap_free(&parsed);
    (void)snprintf(path, sizeof(path), "%s/%s", dir, s->name);
    FILE *f = fopen(path, "wb");
    const bool ok = f != NULL && fwrite(file, (size_t)h.file_bytes, 1, f) == 1;
    if (f != NULL) {
        (void)fclose(f);
    }
    free(file);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const seed seeds[] = {
        {"timeline", "turbo4", TQE_SNAP_TIMELINE, 0, 5, 2, 1, 16, 0, 0, true},
        {"two-pages", "mse1", TQE_SNAP_TIMELINE, 0, 66, 1, 1, 16, 0, 0, false},
        {"tail", "tcq2,tail=3", TQE_SNAP_TIMELINE, 0, 3, 1, 2, 16, 0, 3, true},
        {"affine", "turbo:k2v2", TQE_SNAP_TIMELINE, 0, 2, 1, 1, 32, 8, 0, false},
        {"page", "prod1", TQE_SNAP_PAGE, 64, 64, 1, 1, 16, 0, 0, false},
        {"end", "tcq2,tail=3", TQE_SNAP_END, 0, 64, 1, 1, 16, 0, 3, false},
    };
    int bad = argc != 2;
    for (size_t i = 0; !bad && i < sizeof(seeds) / sizeof(seeds[0]); i++) {
        bad = emit(argv[1], &seeds[i]);
    }
    return bad;
}
