/* SPDX-License-Identifier: MIT */
/* tokenizer.c — text to tokens and back.
 *
 * libllama tokenises; we check the text before and the UTF-8 after. Tokens are bytes, not
 * characters: a text stream holds back an unfinished character (at most 3 bytes) until the token
 * that completes it, and replaces what can never become one by U+FFFD, one per broken sequence
 * (Unicode 15, section 3.9, "maximal subpart").
 */
#include "engine_priv.h"

#include <stdlib.h>
#include <string.h>

tqe_status tqe_tokenize(const tqe_model *m, const char *text, size_t n_bytes, bool add_special,
                        bool parse_special, int32_t **ids, size_t *n_ids, tqe_error *err)
{
    if (m == NULL || (text == NULL && n_bytes > 0) || ids == NULL || n_ids == NULL) {
        return tqe_fail(err, TQE_ERR_ARG, "no text to tokenise");
    }
    if (n_bytes > (1u << 30)) {
        return tqe_fail(err, TQE_ERR_ARG, "a text of %zu bytes: at most %u are possible", n_bytes,
                        1u << 30);
    }
    const size_t bad = tqe_utf8_check(text, n_bytes);
    if (bad < n_bytes) {
        return tqe_fail(err, TQE_ERR_ARG, "the text is not valid UTF-8: byte 0x%02x at offset %zu",
                        (unsigned)(unsigned char)text[bad], bad);
    }
    /* A token takes at least a byte of text, except BOS, EOS and a leading space that SPM adds;
     * libllama says how many it needs when that is not enough. */
    size_t cap = n_bytes + 8;
    for (int attempt = 0; attempt < 2; attempt++) {
        int32_t *out = malloc(cap * sizeof(*out));
        if (out == NULL) {
            return tqe_fail(err, TQE_ERR_NOMEM, "out of memory for %zu tokens", cap);
        }
        const int32_t n = llama_tokenize(m->vocab, n_bytes > 0 ? text : "", (int32_t)n_bytes, out,
                                         (int32_t)cap, add_special, parse_special);
        if (n >= 0) {
            *ids = out;
            *n_ids = (size_t)n;
            return TQE_OK;
        }
        free(out);
        if (n == INT32_MIN) {
            break;
        }
        cap = (size_t) - (int64_t)n;
    }
    return tqe_fail(err, TQE_ERR_ARG, "the text has too many tokens");
}

/* Bytes that a tokenizer may drop do not count: those that no token spells alone (a vocabulary
 * without them has nothing to fall back to; an SPM one makes a single token of such a character);
 * U+2581, which an SPM vocabulary takes for a space;
 * and, with special tokens, blanks, which some of those swallow. */
size_t tqe_min_tokens(const tqe_model *m, const char *text, size_t n_bytes, bool parse_special)
{
    if (m == NULL || text == NULL) {
        return 0;
    }
    size_t longest = 1;
    bool alone[256] = {false};
    for (uint32_t id = 0; id < m->config.n_vocab; id++) {
        char piece[256];
        const int32_t n =
            llama_token_to_piece(m->vocab, (int32_t)id, piece, sizeof(piece), 0, true);
        const size_t len = (size_t)(n < 0 ? -(int64_t)n : n);
        longest = len > longest ? len : longest;
        if (n == 1) {
            alone[(unsigned char)piece[0]] = true;
        }
    }
    if (parse_special) {
        alone[' '] = alone['\t'] = alone['\n'] = alone['\r'] = alone['\v'] = alone['\f'] = false;
    }
    size_t count = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (n_bytes - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0) {
            i += 2;
            continue;
        }
        count += alone[(unsigned char)text[i]];
    }
    return count / longest + (count % longest != 0);
}

bool tqe_token_is_end(const tqe_model *m, int32_t id)
{
    return id >= 0 && (uint32_t)id < m->config.n_vocab && llama_vocab_is_eog(m->vocab, id);
}

/* ---- Text stream
 * ---------------------------------------------------------------------------------- */

static const char replacement[] = "\xef\xbf\xbd";

/* Moves the complete characters of buf [n] to dst; returns the bytes written, keeps the rest. */
static size_t flush(tqe_text_stream *s, const uint8_t *buf, size_t n, char *dst, size_t dst_bytes)
{
    size_t i = 0;
    size_t out = 0;
    s->n_pending = 0;
    while (i < n && out + 4 < dst_bytes) {
        int len = tqe_utf8_char(buf + i, n - i);
        if (len < 0) {
            s->n_pending = (uint32_t)(n - i); /* <= 3: a character has 4 bytes at most */
            memcpy(s->pending, buf + i, n - i);
            break;
        }
        if (len > 0) {
            memcpy(dst + out, buf + i, (size_t)len);
            out += (size_t)len;
            i += (size_t)len;
            continue;
        }
        /* The longest prefix that could have become a character counts as one error. */
        len = 1;
        while (i + (size_t)len < n && tqe_utf8_char(buf + i, (size_t)len + 1) < 0) {
            len++;
        }
        memcpy(dst + out, replacement, 3);
        out += 3;
        i += (size_t)len;
    }
    dst[out] = '\0';
    return out;
}

size_t tqe_text_push(tqe_text_stream *s, const tqe_model *m, int32_t id, char *dst,
                     size_t dst_bytes)
{
    if (dst == NULL || dst_bytes == 0) {
        return 0;
    }
    dst[0] = '\0';
    if (dst_bytes < TQE_PIECE_BYTES || id < 0 || (uint32_t)id >= m->config.n_vocab) {
        return 0;
    }
    /* Pieces longer than this are refused at load: each byte may become three. */
    uint8_t buf[8 + TQE_PIECE_BYTES / 3];
    const size_t held = s->n_pending <= 3 ? s->n_pending : 0;
    memcpy(buf, s->pending, held);
    const int32_t n = llama_token_to_piece(m->vocab, id, (char *)buf + held,
                                           (int32_t)(sizeof(buf) - held), 0, false);
    return flush(s, buf, held + (n > 0 ? (size_t)n : 0), dst, dst_bytes);
}

size_t tqe_text_finish(tqe_text_stream *s, char *dst, size_t dst_bytes)
{
    const bool open = s->n_pending > 0;
    s->n_pending = 0;
    if (dst == NULL || dst_bytes == 0) {
        return 0;
    }
    dst[0] = '\0';
    if (!open || dst_bytes < sizeof(replacement)) {
        return 0;
    }
    memcpy(dst, replacement, sizeof(replacement));
    return sizeof(replacement) - 1;
}
