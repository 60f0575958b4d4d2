/* SPDX-License-Identifier: MIT */
/* fuzz_scheme.c — any text through the scheme parser.
 *
 * What must hold: no crash and no read past the text; a refusal leaves the scheme alone and gives
 * a terminated one-line message of printable ASCII, at every buffer size; an accepted text has a
 * canonical spelling that parses to itself and costs what its codecs allocate. */
#include "turboquant.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static void check_refusal(const char *text, const tq_scheme *s)
{
    tq_scheme untouched;
    char err[1024], cut[1024];

    memset(&untouched, 0x5a, sizeof untouched);
    MUST(memcmp(s, &untouched, sizeof untouched) == 0);
    memset(err, 'Z', sizeof err);
    MUST(tq_scheme_parse(&untouched, text, err, sizeof err) == TQ_ERR_SCHEME);
    MUST(memchr(err, '\0', sizeof err));
    size_t n = strlen(err);
    MUST(n > 0 && n < sizeof err - 2);
    for (size_t i = 0; i < n; i++)
        MUST(err[i] >= 0x20 && err[i] < 0x7f);

    size_t room = (size_t)(unsigned char)text[0] % (n + 2);
    memset(cut, 'Z', sizeof cut);
    MUST(tq_scheme_parse(&untouched, text, cut, room) == TQ_ERR_SCHEME);
    MUST(cut[room] == 'Z');
    MUST(room == 0 || strlen(cut) == (room - 1 < n ? room - 1 : n));
}

static void check_accepted(const tq_scheme *s)
{
    char text[TQ_SCHEME_TEXT_BYTES], text2[TQ_SCHEME_TEXT_BYTES];
    tq_scheme again;

    MUST(tq_scheme_format(s, text, sizeof text) == TQ_OK);
    MUST(tq_scheme_parse(&again, text, NULL, 0) == TQ_OK);
    MUST(tq_scheme_format(&again, text2, sizeof text2) == TQ_OK);
    MUST(strcmp(text, text2) == 0);
    for (uint32_t d = 64; d <= 512; d *= 2) {
        size_t bytes, sum = 0;
        MUST(tq_scheme_bytes_per_token(s, d, d, &bytes) == TQ_OK);
        for (int is_value = 0; is_value < 2; is_value++) {
            tq_format f;
            tq_codec c;
            MUST(tq_scheme_format_of(s, is_value, &f) == TQ_OK);
            MUST(tq_scheme_codec(s, is_value, d, TQ_ISA_ALL, &c) == TQ_OK);
            MUST(c.format == f);
            sum += c.block_bytes;
        }
        MUST(sum == bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* of exact size, so that a sanitizer sees a read past it */
    tq_scheme s;

    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    memset(&s, 0x5a, sizeof s);
    if (tq_scheme_parse(&s, text, NULL, 0) == TQ_OK)
        check_accepted(&s);
    else
        check_refusal(text, &s);
    free(text);
    return 0;
}
