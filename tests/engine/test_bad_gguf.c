/* SPDX-License-Identifier: MIT */
/* test_bad_gguf.c — damaged files: an error that says what and where, never a crash.
 *
 * A small model is cut at many lengths and every byte of its header is flipped. A flip that still
 * loads is fine (a letter of a name), a flip that is refused must come with words. Then one case
 * per refusal that a user can meet, with the word that the message must hold.
 */
#include "engine.h"
#include "gen_model.h"
#include "unit/support.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct bytes {
    uint8_t *data;
    size_t n;
} bytes;

static bytes read_file(const char *path)
{
    bytes b = {NULL, 0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    b.n = (size_t)ftell(f);
    rewind(f);
    b.data = malloc(b.n);
    assert_non_null(b.data);
    assert_int_equal(fread(b.data, 1, b.n, f), b.n);
    (void)fclose(f);
    return b;
}

static void write_file(const char *path, const uint8_t *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static bytes make(const gen_model *g)
{
    const char *path = gen_temp_path("good.gguf");
    assert_true(gen_model_write(g, path));
    return read_file(path);
}

static gen_model small(void)
{
    gen_model g = gen_model_of("llama");
    g.n_layers = 1;
    g.n_embd = 32;
    g.n_ff = 32;
    g.n_heads = 2;
    return g;
}

/* Loads and, when that works, evaluates a token: a wrong number that passed the checks would show
 * there. Returns whether it was refused. */
static bool refused(const char *path)
{
    tqe_model *m = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_status st = tqe_model_load(&m, path, NULL, &err);
    tqe_model_info info;
    tqe_error probe_err = {TQE_OK, ""};
    const tqe_status probe = tqe_model_probe(path, &info, &probe_err);
    if (st != TQE_OK) {
        assert_null(m);
        assert_int_equal(err.code, st);
        assert_true(strlen(err.text) > 10);
        return true;
    }
    assert_int_equal(probe, TQE_OK);
    tqe_session *s = NULL;
    const tqe_session_params p = {.n_ctx = 8, .n_threads = 1, .kv = "f16"};
    if (tqe_session_create(&s, m, &p, &err) == TQE_OK) {
        const int32_t ids[3] = {1, 2, 3};
        const tqe_status ev = tqe_session_eval(s, ids, 3, NULL, NULL, NULL, &err);
        assert_true(ev == TQE_OK || ev == TQE_ERR_NUMERIC);
    }
    tqe_session_free(s);
    tqe_model_free(m);
    return false;
}

/* First byte of the tensor data: the header ends with the padding before it. */
static size_t header_bytes(const bytes *b, size_t n_data)
{
    return b->n - n_data;
}

static size_t tensor_bytes(const gen_model *g)
{
    const size_t e = g->n_embd;
    const size_t v = 267;
    const size_t kv = e / g->n_heads * g->n_kv_heads;
    return 4 * (2 * e * v + 2 * e * e + 2 * e * kv + 3 * e * g->n_ff + 3 * e);
}

static void test_truncated(void **state)
{
    (void)state;
    const gen_model g = small();
    bytes b = make(&g);
    const char *path = gen_temp_path("cut.gguf");
    const size_t head = header_bytes(&b, tensor_bytes(&g));
    for (size_t n = 0; n < b.n; n += n < 64 ? 1 : (n < head ? 61 : 3001)) {
        write_file(path, b.data, n);
        if (!refused(path)) {
            fail_msg("a file cut at %zu of %zu bytes loads", n, b.n);
        }
    }
    write_file(path, b.data, b.n - 1);
    assert_true(refused(path));
    write_file(path, b.data, b.n);
    assert_false(refused(path));
    free(b.data);
}

/* One byte of a file that is there: much cheaper than writing it anew thousands of times. */
static void write_byte(const char *path, size_t at, uint8_t value)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_int_equal(fputc(value, f), value);
    assert_int_equal(fclose(f), 0);
}

/* Every header byte, with one of eight flips each; low and high bits alternate so that both small
 * and huge values appear in every field. */
static void flip_all(const gen_model *g, unsigned step)
{
    bytes b = make(g);
    const char *path = gen_temp_path("flip.gguf");
    const size_t head = header_bytes(&b, tensor_bytes(g));
    size_t n_refused = 0;
    size_t n_tried = 0;
    write_file(path, b.data, b.n);
    for (size_t i = 0; i < head; i += step) {
        static const uint8_t masks[] = {0x01, 0x80, 0xff, 0x04, 0x20, 0x02, 0x40, 0x10};
        const uint8_t mask = masks[(i / step) % sizeof(masks)];
        write_byte(path, i, (uint8_t)(b.data[i] ^ mask));
        n_refused += refused(path);
        n_tried++;
        write_byte(path, i, b.data[i]);
    }
    print_message("%zu of %zu flips of the %zu-byte header refused\n", n_refused, n_tried, head);
    assert_true(n_refused > n_tried / 4);
    free(b.data);
}

static void test_flipped_bpe(void **state)
{
    (void)state;
    const gen_model g = small();
    flip_all(&g, 1);
}

static void test_flipped_spm(void **state)
{
    (void)state;
    gen_model g = small();
    g.spm = true;
    flip_all(&g, 3);
}

/* ---- One case per refusal
 * ------------------------------------------------------------------------- */

static void expect(const char *path, tqe_status want, const char *word)
{
    tqe_model *m = NULL;
    tqe_error err = {TQE_OK, ""};
    const tqe_status st = tqe_model_load(&m, path, NULL, &err);
    if (st != want || strstr(err.text, word) == NULL) {
        fail_msg("status %d, '%s': expected %d and the word '%s'", st, err.text, want, word);
    }
    assert_null(m);
    print_message("%s\n", err.text);
    tqe_model_info info;
    const bool late = strstr(word, "pre-tokenizer") != NULL; /* only libllama knows them all */
    assert_int_equal(tqe_model_probe(path, &info, &err), late ? TQE_OK : want);
    tqe_peer *p = NULL;
    const tqe_peer_params pp = {.n_ctx = 8, .n_threads = 1, .n_batch = 8};
    assert_int_equal(tqe_peer_create(&p, path, &pp, &err), want);
}

static void test_not_a_file(void **state)
{
    (void)state;
    const char *path = gen_temp_path("absent.gguf");
    expect(path, TQE_ERR_IO, "No such file");
    path = gen_temp_path("dir");
    assert_int_equal(mkdir(path, 0700), 0);
    expect(path, TQE_ERR_IO, "directory");
    assert_int_equal(rmdir(path), 0);
    path = gen_temp_path("fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)alarm(60); /* a FIFO that nobody writes to must not block */
    expect(path, TQE_ERR_IO, "not a regular file");
    (void)alarm(0);
    assert_int_equal(unlink(path), 0);
    path = gen_temp_path("empty.gguf");
    write_file(path, (const uint8_t *)"", 0);
    expect(path, TQE_ERR_FORMAT, "empty");
    write_file(path, (const uint8_t *)"<html>\n", 7);
    expect(path, TQE_ERR_FORMAT, "'<htm'");
    expect("", TQE_ERR_ARG, "no model");
}

static void test_architectures(void **state)
{
    (void)state;
    gen_model g = small();
    g.arch = "mamba";
    const char *path = gen_temp_path("arch.gguf");
    assert_true(gen_model_write(&g, path));
    expect(path, TQE_ERR_UNSUPPORTED, "'mamba' is not supported; known: llama, qwen2, qwen3");
    g = small();
    g.extra_tensor = "blk.0.ffn_gate_exps.weight";
    assert_true(gen_model_write(&g, path));
    expect(path, TQE_ERR_UNSUPPORTED, "mixture-of-experts");
    g = small();
    g.d_head = 20;
    assert_true(gen_model_write(&g, path));
    expect(path, TQE_ERR_UNSUPPORTED, "head dimension 20");
    g = small();
    g.n_heads = 3;
    assert_true(gen_model_write(&g, path));
    expect(path, TQE_ERR_FORMAT, "do not divide");
    g = small();
    g.rope_scaling = "longrope";
    assert_true(gen_model_write(&g, path));
    expect(path, TQE_ERR_UNSUPPORTED, "longrope");
}

/* Replaces the only occurrence of a byte string by another of the same length. */
static void patch(bytes *b, const char *from, const char *to, size_t n)
{
    size_t hits = 0;
    for (size_t i = 0; i + n <= b->n; i++) {
        if (memcmp(b->data + i, from, n) == 0) {
            memcpy(b->data + i, to, n);
            hits++;
        }
    }
    assert_true(hits >= 1);
}

static void patched(bool spm, const char *from, const char *to, size_t n, tqe_status want,
                    const char *word)
{
    gen_model g = small();
    g.spm = spm;
    bytes b = make(&g);
    patch(&b, from, to, n);
    const char *path = gen_temp_path("patched.gguf");
    write_file(path, b.data, b.n);
    expect(path, want, word);
    free(b.data);
}

static void test_keys_and_tensors(void **state)
{
    (void)state;
    patched(false, "llama.context_length", "llama.context_lengtX", 20, TQE_ERR_FORMAT,
            "no key 'llama.context_length'");
    patched(false, "blk.0.attn_k.weight", "blk.0.attn_X.weight", 19, TQE_ERR_FORMAT,
            "no tensor 'blk.0.attn_k.weight'");
    patched(false, "tokenizer.ggml.merges", "tokenizer.ggml.mergeX", 21, TQE_ERR_FORMAT,
            "tokenizer.ggml.merges");
    patched(false, "tokenizer.ggml.model\x08\0\0\0\x04\0\0\0\0\0\0\0gpt2",
            "tokenizer.ggml.model\x08\0\0\0\x04\0\0\0\0\0\0\0bert", 36, TQE_ERR_UNSUPPORTED,
            "tokenizer 'bert'");
    patched(false, "gpt-2", "gpt-X", 5, TQE_ERR_UNSUPPORTED, "unknown pre-tokenizer type: 'gpt-X'");
    patched(true, "<0x41>", "<0x42>", 6, TQE_ERR_FORMAT, "appears twice");
    patched(true, "<0x41>", "<0xZZ>", 6, TQE_ERR_FORMAT, "not of the form");
    patched(false, "tokenizer.ggml.bos_token_id\x04\0\0\0\x08\x01",
            "tokenizer.ggml.bos_token_id\x04\0\0\0\xff\x7f", 33, TQE_ERR_FORMAT,
            "the vocabulary has 267 tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_a_file),       cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_keys_and_tensors), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flipped_bpe),      cmocka_unit_test(test_flipped_spm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
