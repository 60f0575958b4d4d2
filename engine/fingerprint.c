/* SPDX-License-Identifier: MIT */
/* fingerprint.c — names for a model, a scheme and a decoder that no other one has.
 *
 * Rows of a cache make sense only with the weights that made them, so stored state carries the name
 * of its model and is refused by any other. Hashing a file of 40 GB at each start would cost more
 * than the reuse gains. The name therefore covers the whole header (every hyperparameter, the
 * vocabulary, the list of tensors) and of each tensor 16 blocks of 4 KiB spread evenly, first and
 * last included; tensors up to 64 KiB entirely. Another training step or quantisation changes all
 * blocks. A single bit that flipped in a weight between the blocks is not noticed: checking a model
 * file against damage is not what this is for. Cost: 64 KiB a tensor, about 20 MB for a large
 * model.
 */
#include "engine_priv.h"
#include "snapshot.h"
#include "snapshot_bytes.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SAMPLES = 16, SAMPLE_BYTES = 4096 };

static void add_u64(crypto_generichash_state *st, uint64_t v)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++) {
        le[i] = (uint8_t)(v >> (8 * i));
    }
    (void)crypto_generichash_update(st, le, sizeof(le));
}

static void add_tensor(crypto_generichash_state *st, const uint8_t *p, size_t n)
{
    add_u64(st, n);
    if (n <= (size_t)SAMPLES * SAMPLE_BYTES) {
        (void)crypto_generichash_update(st, p, n);
        return;
    }
    const size_t span = n - SAMPLE_BYTES;
    for (size_t i = 0; i < SAMPLES; i++) {
        const size_t off = span / (SAMPLES - 1) * i;
        (void)crypto_generichash_update(st, p + (i + 1 < SAMPLES ? off : span), SAMPLE_BYTES);
    }
}

tqe_status tqe_model_fingerprint(const tqe_model *m, uint8_t id[TQE_ID_BYTES], tqe_error *err)
{
    static const uint8_t what[] = "tq model 1";
    const tqe_gguf *g = &m->gguf;
    crypto_generichash_state st;
    if (sodium_init() < 0) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "libsodium cannot start: no random numbers");
    }
    size_t header = g->size;
    for (size_t i = 0; i < g->n_tensors; i++) {
        header = g->tensors[i].off < header ? g->tensors[i].off : header;
    }
    (void)crypto_generichash_init(&st, what, sizeof(what), TQE_ID_BYTES);
    add_u64(&st, g->size);
    add_u64(&st, header);
    (void)crypto_generichash_update(&st, g->data, header);
    for (size_t i = 0; i < g->n_tensors; i++) {
        add_tensor(&st, g->data + g->tensors[i].off, g->tensors[i].n_bytes);
    }
    (void)crypto_generichash_final(&st, id, TQE_ID_BYTES);
    return TQE_OK;
}

tqe_status tqe_model_fingerprint_text(const tqe_model *m, char text[65], tqe_error *err)
{
    uint8_t id[TQE_ID_BYTES];
    const tqe_status st = tqe_model_fingerprint(m, id, err);
    if (st == TQE_OK) {
        (void)sodium_bin2hex(text, 65, id, sizeof(id));
    }
    return st;
}

/* Another file under the same name is another scheme. */
static void add_file(crypto_generichash_state *st, bool is_named, const char *bytes, size_t n)
{
    add_u64(st, is_named ? n : UINT64_MAX);
    if (is_named) {
        (void)crypto_generichash_update(st, (const uint8_t *)bytes, n);
    }
}

/* Where a file lies is another matter than what is in it: one folder on, it is the same scheme. */
static bool without_names(const tq_scheme *s, char text[TQ_SCHEME_TEXT_BYTES])
{
    tq_scheme bare = *s;
    if (bare.kmean[0] != '\0') {
        (void)strcpy(bare.kmean, "-");
    }
    if (bare.layers[0] != '\0') {
        (void)strcpy(bare.layers, "-");
    }
    return tq_scheme_format(&bare, text, TQ_SCHEME_TEXT_BYTES) == TQ_OK;
}

bool tqe_scheme_same(const char *a, const char *b)
{
    tq_scheme x, y;
    char one[TQ_SCHEME_TEXT_BYTES], other[TQ_SCHEME_TEXT_BYTES];
    return tq_scheme_parse(&x, a, NULL, 0) == TQ_OK && tq_scheme_parse(&y, b, NULL, 0) == TQ_OK &&
           without_names(&x, one) && without_names(&y, other) && strcmp(one, other) == 0;
}

tqe_status tqe_scheme_id(const tq_scheme *s, const char *kmean, size_t n_kmean, const char *layers,
                         size_t n_layers, uint8_t id[TQE_ID_BYTES], tqe_error *err)
{
    static const uint8_t what[] = "tq scheme 1";
    crypto_generichash_state st;
    char canonical[TQ_SCHEME_TEXT_BYTES];
    if (sodium_init() < 0) {
        return tqe_fail(err, TQE_ERR_UNSUPPORTED, "libsodium cannot start: no random numbers");
    }
    if (!without_names(s, canonical)) {
        return tqe_fail(err, TQE_ERR_SCHEME, "a scheme without a canonical spelling");
    }
    (void)crypto_generichash_init(&st, what, sizeof(what), TQE_ID_BYTES);
    add_u64(&st, strlen(canonical));
    (void)crypto_generichash_update(&st, (const uint8_t *)canonical, strlen(canonical));
    add_file(&st, s->kmean[0] != '\0', kmean, n_kmean);
    add_file(&st, s->layers[0] != '\0', layers, n_layers);
    (void)crypto_generichash_final(&st, id, TQE_ID_BYTES);
    return TQE_OK;
}

/* ---- Of a decoder --------------------------------------------------------------------------- */

enum { PROBE_ROWS = 4 };

tqe_status tqe_decoder_id(uint64_t *id, const tq_codec *c)
{
    /* Scalar kernels: one arithmetic on every machine. */
    tq_codec scalar;
    const size_t n_bytes = PROBE_ROWS * c->block_bytes;
    const size_t n_values = (size_t)PROBE_ROWS * c->dim;
    uint8_t *blocks = malloc(n_bytes);
    float *rows = malloc(n_values * sizeof(*rows));
    uint8_t *le = malloc(n_values * 4);
    tqe_status st = TQE_ERR_NOMEM;
    if (blocks != NULL && rows != NULL && le != NULL) {
        /* Codes of all values; then scales of 1 and offsets of 0.5 as f16. */
        for (size_t r = 0; r < PROBE_ROWS; r++) {
            uint8_t *b = blocks + r * c->block_bytes;
            for (size_t i = 0; i < c->block_bytes; i++) {
                const size_t in_scale = i - c->code_bytes;
                b[i] = i < c->code_bytes           ? (uint8_t)(37 * i + 101 * r + 11)
                       : in_scale < c->scale_bytes ? (in_scale % 2 ? 0x3c : 0x00)
                                                   : ((in_scale - c->scale_bytes) % 2 ? 0x38 : 0);
            }
        }
        st = TQE_ERR_ARG;
        if (tq_codec_init(&scalar, c->format, c->dim, c->flags, TQ_ISA_SCALAR) == TQ_OK &&
            tq_codec_decode(&scalar, rows, c->dim, blocks, n_bytes, PROBE_ROWS) == TQ_OK) {
            for (size_t i = 0; i < n_values; i++) {
                uint32_t bits = 0x7fc00000u; /* every NaN is the same value */
                if (rows[i] == rows[i]) {
                    memcpy(&bits, &rows[i], 4);
                }
                put_le(le + 4 * i, bits, 4);
            }
            *id = XXH3_64bits(le, n_values * 4);
            st = TQE_OK;
        }
    }
    free(blocks);
    free(rows);
    free(le);
    return st;
}
