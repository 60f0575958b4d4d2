/* SPDX-License-Identifier: MIT */
/* fuzz_scheme_files.c — any bytes as a layers=FILE and as a kmean=FILE.
 *
 * Properties: no crash, no leak; an error is one printable line that names the file, and changes
 * nothing; what is accepted are schemes that have a text, with the options of the base where they
 * are compressed, and finite means.
 */
#include "scheme_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LAYERS = 6 };

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void check_error(tqe_status st, const tqe_error *err)
{
    must(err->code == st && strncmp(err->text, "'a file'", 8) == 0);
    for (const char *p = err->text; *p != '\0'; p++) {
        must(*p >= 0x20 && *p < 0x7f);
    }
}

static void try_layers(const char *text, size_t size, const char *base)
{
    tq_scheme s[LAYERS], before[LAYERS];
    tqe_error err = {TQE_OK, ""};
    for (int i = 0; i < LAYERS; i++) {
        must(tq_scheme_parse(&s[i], base, NULL, 0) == TQ_OK);
        before[i] = s[i];
    }
    const tqe_status st = tqe_layers_parse(s, LAYERS, text, size, "a file", &err);
    if (st != TQE_OK) {
        check_error(st, &err);
        must(memcmp(s, before, sizeof(s)) == 0);
        return;
    }
    for (int i = 0; i < LAYERS; i++) {
        char name[TQ_SCHEME_TEXT_BYTES];
        must(tq_scheme_format(&s[i], name, sizeof(name)) == TQ_OK);
        must(s[i].attn == before[i].attn && s[i].kmean[0] == '\0' && s[i].layers[0] == '\0');
        must(s[i].tail == before[i].tail || (s[i].tail == 0 && s[i].family <= TQ_FAMILY_BF16));
        must((i != 0 && i != LAYERS - 1) || before[i].skip == 0 ||
             memcmp(&s[i], &before[i], sizeof(s[i])) == 0);
    }
}

static void try_means(const char *text, size_t size, const char *model)
{
    static const tqe_kmean_shape shape = {1, 2, 3};
    float m[6] = {NAN, NAN, NAN, NAN, NAN, NAN};
    tqe_error err = {TQE_OK, ""};
    const tqe_status st = tqe_kmean_parse(m, &shape, model, text, size, "a file", &err);
    if (st != TQE_OK) {
        check_error(st, &err);
    }
    for (int i = 0; i < 6; i++) {
        must(st == TQE_OK ? isfinite(m[i]) : isnan(m[i]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char model[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char *text = malloc(size > 0 ? size : 1); /* as long as is said: the sanitizer sees more */
    must(text != NULL);
    memcpy(text, data, size);
    try_layers(text, size, "f16");
    try_layers(text, size, "turbo4,skip=1,tail=64,attn=dequant");
    try_means(text, size, NULL);
    try_means(text, size, model);
    free(text);
    return 0;
}
