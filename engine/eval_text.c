/* SPDX-License-Identifier: MIT */
/* eval_text.c — a text file becomes windows.
 *
 * Policy: a file that is not text is refused before hours are spent on it. Documents stand apart by
 * a NUL, as none can hold one; BOS takes its place. Windows are spread over the whole text, so that
 * a few of them still see all of it, and begin where they fall: only what a window can see counts.
 */
#include "engine_priv.h"
#include "eval.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UTF-16 is valid UTF-8 with a NUL beside each letter; documents are longer than that. */
#define MIN_DOCUMENT_BYTES 16

static tqe_status check_text(const char *text, size_t n, tqe_error *err)
{
    size_t n_nul = 0;
    const size_t bad = tqe_utf8_check(text, n);
    for (size_t i = 0; i < bad; i++) {
        const unsigned char c = (unsigned char)text[i];
        n_nul += c == 0;
        if (c != 0 && c < 0x20 && strchr("\t\n\v\f\r\033\b", c) == NULL) {
            return tqe_fail(err, TQE_ERR_ARG, "not a text: control character 0x%02x at offset %zu",
                            c, i);
        }
    }
    if (bad < n) {
        return tqe_fail(err, TQE_ERR_ARG, "not a UTF-8 text: byte 0x%02x at offset %zu",
                        (unsigned)(unsigned char)text[bad], bad);
    }
    if (n_nul > n / MIN_DOCUMENT_BYTES) {
        return tqe_fail(err, TQE_ERR_ARG, "not a text: %zu of its %zu bytes are NUL", n_nul, n);
    }
    return TQE_OK;
}

static tqe_status find_bos(const tqe_model *m, int32_t *bos, tqe_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    const tqe_status st = tqe_tokenize(m, "", 0, true, false, &ids, &n, err);
    if (st == TQE_OK && n > 0) {
        *bos = ids[0];
    }
    free(ids);
    return st != TQE_OK || n > 0
               ? st
               : tqe_fail(err, TQE_ERR_UNSUPPORTED,
                          "the model begins no text with a BOS token; --no-bos measures without");
}

tqe_status tqe_eval_tokens(const tqe_model *m, const char *text, size_t n_bytes, bool no_bos,
                           int32_t **ids, size_t *n_ids, tqe_error *err)
{
    int32_t bos = 0;
    tqe_status st = check_text(text, n_bytes, err);
    if (st != TQE_OK || (!no_bos && (st = find_bos(m, &bos, err)) != TQE_OK)) {
        return st;
    }
    /* A token takes a byte or more; a document adds a BOS, and a NUL stands beside each. */
    int32_t *all = malloc((n_bytes + 2) * sizeof(*all));
    size_t n = 0;
    if (all == NULL) {
        return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for the tokens of a text");
    }
    for (size_t at = 0; st == TQE_OK && at < n_bytes;) {
        const char *end = memchr(text + at, '\0', n_bytes - at);
        const size_t len = end != NULL ? (size_t)(end - (text + at)) : n_bytes - at;
        int32_t *part = NULL;
        size_t n_part = 0;
        if (len > 0) {
            st = tqe_tokenize(m, text + at, len, false, false, &part, &n_part, err);
        }
        if (n_part > 0 && n_part <= n_bytes + 1 - n) {
            if (!no_bos) {
                all[n++] = bos;
            }
            memcpy(all + n, part, n_part * sizeof(*all));
            n += n_part;
        } else if (n_part > 0) {
            st = tqe_fail(err, TQE_ERR_UNSUPPORTED, "the tokenizer makes more tokens than bytes");
        }
        free(part);
        at += len + 1;
    }
    if (st != TQE_OK) {
        free(all);
        return st;
    }
    *ids = all;
    *n_ids = n;
    return TQE_OK;
}

/* Tokens that a window takes from the text, and those that the text has for all of them. */
static size_t stride(uint32_t n_ctx, bool no_bos)
{
    return no_bos ? n_ctx : n_ctx - 1;
}

static size_t room(size_t n_ids, bool no_bos)
{
    return no_bos || n_ids == 0 ? n_ids : n_ids - 1;
}

size_t tqe_eval_n_windows(size_t n_ids, uint32_t n_ctx, bool no_bos)
{
    return n_ctx < TQE_EVAL_MIN_CTX ? 0 : room(n_ids, no_bos) / stride(n_ctx, no_bos);
}

void tqe_eval_cut(const int32_t *ids, size_t n_ids, uint32_t n_ctx, bool no_bos, size_t i, size_t n,
                  int32_t *dst)
{
    const size_t len = stride(n_ctx, no_bos);
    const size_t slack = room(n_ids, no_bos) - len;
    /* In two steps, so that slack * i cannot overflow. */
    size_t at = n > 1 ? slack / (n - 1) * i + slack % (n - 1) * i / (n - 1) : 0;
    if (!no_bos) {
        *dst++ = ids[0];
        at++; /* the first window takes the place of the text's own BOS */
    }
    memcpy(dst, ids + at, len * sizeof(*dst));
}

tqe_status tqe_file_fingerprint(const char *path, uint64_t *out, tqe_error *err)
{
    enum { HEAD = 1 << 20, SAMPLE = 1 << 14, N_SAMPLES = 256 };
    FILE *f = fopen(path, "rb");
    uint8_t *buf = malloc(HEAD);
    uint64_t h = TQE_HASH_INIT;
    bool ok = f != NULL && buf != NULL && fseeko(f, 0, SEEK_END) == 0;
    const off_t size = ok ? ftello(f) : -1;
    ok = ok && size >= 0 && fseeko(f, 0, SEEK_SET) == 0;
    if (ok) {
        h = tqe_hash(h, &size, sizeof(size));
        h = tqe_hash(h, buf, fread(buf, 1, HEAD, f));
        for (off_t i = 0; ok && i < N_SAMPLES && size > HEAD; i++) {
            ok = fseeko(f, HEAD + (size - HEAD) / N_SAMPLES * i, SEEK_SET) == 0;
            h = tqe_hash(h, buf, ok ? fread(buf, 1, SAMPLE, f) : 0);
        }
        ok = ok && !ferror(f);
    }
    const char *why = buf == NULL ? "out of memory" : strerror(errno);
    if (f != NULL) {
        (void)fclose(f);
    }
    free(buf);
    *out = h;
    return ok ? TQE_OK
              : tqe_fail(err, TQE_ERR_IO, "cannot read '%s': %s",
                         tqe_quote(path, strlen(path)).text, why);
}
