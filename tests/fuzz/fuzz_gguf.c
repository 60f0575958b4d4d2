/* SPDX-License-Identifier: MIT */
/* fuzz_gguf.c — any bytes as a GGUF: the header walk, configuration, tensor list and tokenizer
 * keys, and for what passes those the load of the vocabulary by libllama and of the tensors.
 *
 * Property: no crash, no leak, and an error always says something. The input is parsed in place
 * (no file), so the walk runs at memory speed. Corpus: tiny generated models without most of their
 * tensor data (tests/engine/gen_corpus.c writes them).
 */
#include "engine_priv.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void use_vocab(const tqe_gguf *g, const tqe_config *c)
{
    struct llama_model *vocab_model = NULL;
    tqe_error err = {TQE_OK, ""};
    if (tqe_vocab_load(&vocab_model, g, c->arch->name, &err) != TQE_OK) {
        must(err.text[0] != '\0');
        return;
    }
    const struct llama_vocab *v = llama_model_get_vocab(vocab_model);
    must((uint32_t)llama_vocab_n_tokens(v) == c->n_vocab);
    static const char text[] = "the <|im_start|>\xe2\x82\xac\n<s> 12";
    int32_t ids[128];
    (void)llama_tokenize(v, text, (int32_t)sizeof(text) - 1, ids, 128, true, true);
    (void)llama_tokenize(v, text, (int32_t)sizeof(text) - 1, ids, 128, true, false);
    llama_model_free(vocab_model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tqe_gguf g;
    tqe_config c;
    tqe_error err = {TQE_OK, ""};
    if (tqe_gguf_parse(&g, data, size, &err) != TQE_OK) {
        must(err.code != TQE_OK && err.text[0] != '\0');
        return 0;
    }
    bool tied = false;
    tqe_status st = tqe_config_read(&c, &g, &err);
    const bool config_ok = st == TQE_OK;
    if (st == TQE_OK) {
        st = tqe_weights_check(&g, &c, &tied, &err);
    }
    must(st == TQE_OK || err.text[0] != '\0');
    /* The tokenizer keys are checked whatever the tensors say: two fields rarely mutate well. */
    const tqe_status vst = tqe_vocab_check(&g, &err);
    must(vst == TQE_OK || err.text[0] != '\0');
    if (config_ok && vst == TQE_OK) {
        use_vocab(&g, &c);
    }
    tqe_gguf_close(&g);
    return 0;
}
