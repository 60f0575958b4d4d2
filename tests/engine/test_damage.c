/* SPDX-License-Identifier: MIT */
/* test_damage.c — PITFALLS 37, 38, 40: a snapshot that is damaged anywhere is refused, and the
 * session goes on as if nothing had been tried. Checksums find accidents; the last part forges
 * files whose checksums are right, which only the checks of the fields can find. */
#include "state_support.h"

#include "engine_priv.h"
#include "snapshot_format.h"

static tqe_model *model;
static tqe_session *session;
static char *file;
static uint8_t *good;
static size_t n_good;
static int32_t ids[128];

static int setup(void **state)
{
    (void)state;
    tqe_error err = {TQE_OK, ""};
    model = state_tiny(0, 0);
    file = state_path("damage.tqs");
    session = state_session(model, "turbo4v2", 128, 0);
    state_tokens(ids, 128, 9, model);
    state_eval(session, ids, 70);
    state_ok(tqe_session_save(session, file, &err), &err);
    good = state_read(file, &n_good);
    /* What stands in the session while damaged files are tried. */
    state_ok(tqe_session_truncate(session, 0, &err), &err);
    state_eval(session, ids + 20, 33);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tqe_session_free(session);
    tqe_model_free(model);
    free(good);
    free(file);
    return 0;
}

/* Refused; err says why. */
static void refused(tqe_error *err, const char *what, size_t at)
{
    *err = (tqe_error){TQE_OK, ""};
    if (tqe_session_load(session, file, err) == TQE_OK) {
        fail_msg("%s at %zu was not noticed", what, at);
    }
    assert_true(err->code != TQE_OK && err->text[0] != '\0');
    assert_int_equal(tqe_session_len(session), 33);
    assert_memory_equal(tqe_session_tokens(session), ids + 20, 33 * sizeof(*ids));
}

/* The next answer is that of a session that never saw a file. */
static void goes_on(void)
{
    tqe_error err = {TQE_OK, ""};
    tqe_session *fresh = state_session(model, "turbo4v2", 128, 0);
    state_eval(fresh, ids + 20, 33);
    state_same(session, state_logits(fresh, model), model, "before");
    state_eval(fresh, ids + 53, 1);
    state_eval(session, ids + 53, 1);
    state_same(session, state_logits(fresh, model), model, "after");
    tqe_session_free(fresh);
    state_ok(tqe_session_truncate(session, 0, &err), &err);
    state_eval(session, ids + 20, 33);
}

static void test_every_byte(void **state)
{
    (void)state;
    tqe_error err;
    uint64_t seed = 1;
    state_write(file, good, n_good);
    const int fd = open(file, O_RDWR);
    assert_true(fd >= 0);
    for (size_t i = 0; i < n_good; i++) {
        const uint8_t flipped = good[i] ^ (uint8_t)(1u << test_random(&seed) % 8);
        assert_int_equal(pwrite(fd, &flipped, 1, (off_t)i), 1);
        refused(&err, "a flipped bit", i);
        assert_int_equal(pwrite(fd, &good[i], 1, (off_t)i), 1);
    }
    (void)close(fd);
    goes_on();
    state_ok(tqe_session_load(session, file, &err), &err); /* restored bytes are good again */
    state_ok(tqe_session_truncate(session, 0, &err), &err);
    state_eval(session, ids + 20, 33);
}

static void test_every_length(void **state)
{
    (void)state;
    tqe_error err;
    uint8_t *longer = calloc(n_good + 64, 1);
    assert_non_null(longer);
    memcpy(longer, good, n_good);
    state_write(file, longer, n_good + 64);
    refused(&err, "64 more bytes", n_good);
    state_write(file, longer, n_good + 1);
    for (size_t i = n_good + 1; i > 0; i -= i % 64 < 2 || i < 1024 || i > n_good - 128 ? 1 : 13) {
        if (i != n_good) {
            assert_int_equal(truncate(file, (off_t)i), 0);
            refused(&err, "a cut", i);
        }
    }
    free(longer);
    goes_on();
}

static void test_swapped_pages(void **state)
{
    (void)state;
    tqe_error err;
    tqe_snap h;
    uint8_t *bad = malloc(n_good);
    assert_non_null(bad);
    state_ok(tqe_snap_parse(&h, good, n_good, &err), &err);
    /* Two pages of equal size, the contents only. */
    const tqe_snap_part *a = &h.parts[0], *b = &h.parts[1];
    assert_int_equal(a->bytes, b->bytes);
    memcpy(bad, good, n_good);
    memcpy(bad + a->off, good + b->off, (size_t)b->bytes);
    memcpy(bad + b->off, good + a->off, (size_t)a->bytes);
    state_write(file, bad, n_good);
    refused(&err, "swapped pages", 0);
    assert_non_null(strstr(err.text, "page 0 of layer 0"));
    tqe_snap_free(&h);
    free(bad);
    goes_on();
}

/* ---- Forged files --------------------------------------------------------------------------- */

typedef void forge_fn(tqe_snap *h);

/* Encode a changed header with a right checksum; payload as it is. */
static void forged(forge_fn *change, const char *word)
{
    tqe_error err = {TQE_OK, ""};
    tqe_snap h;
    uint8_t trailer[TQE_SNAP_TRAILER_BYTES];
    uint8_t *bad = calloc(n_good + 65536, 1);
    assert_non_null(bad);
    state_ok(tqe_snap_parse(&h, good, n_good, &err), &err);
    const uint64_t old_header = h.header_bytes;
    change(&h);
    const size_t n = (size_t)h.file_bytes;
    tqe_snap_encode(&h, bad, trailer);
    const size_t payload = n_good - (size_t)old_header - sizeof(trailer);
    memcpy(bad + h.header_bytes, good + old_header, payload);
    memcpy(bad + n - sizeof(trailer), trailer, sizeof(trailer));
    state_write(file, bad, n);
    refused(&err, word, 0);
    if (strstr(err.text, word) == NULL) {
        fail_msg("'%s' does not say '%s'", err.text, word);
    }
    tqe_snap_free(&h);
    free(bad);
}

static void swap_parts(tqe_snap *h)
{
    const tqe_snap_part t = h->parts[0];
    h->parts[0].layer = h->parts[1].layer;
    h->parts[1].layer = t.layer;
}
static void swap_entries(tqe_snap *h)
{
    const tqe_snap_part t = h->parts[0];
    h->parts[0] = h->parts[1];
    h->parts[1] = t;
}
static void lose_part(tqe_snap *h)
{
    h->n_parts--;
    (void)tqe_snap_place(h);
}
static void skip_page(tqe_snap *h)
{
    h->parts[h->n_parts - 1].page = 0;
}
static void other_model(tqe_snap *h)
{
    h->fingerprint[7] ^= 1;
}
static void other_scheme(tqe_snap *h)
{
    (void)snprintf(h->scheme, sizeof(h->scheme), "turbo4v3");
}
static void other_spelling(tqe_snap *h)
{
    (void)snprintf(h->scheme, sizeof(h->scheme), "turbo04v");
}
static void other_scheme_files(tqe_snap *h)
{
    h->scheme_id[0] ^= 1;
}
static void other_rotation(tqe_snap *h)
{
    for (uint32_t i = 0; i < h->n_layers; i++) {
        h->layers[i].k_decoder ^= 1;
    }
}
static void other_format(tqe_snap *h)
{
    h->layers[0].v_format = TQ_FMT_NORM3;
}
static void no_format(tqe_snap *h)
{
    h->layers[0].k_format = 7;
}
static void other_window(tqe_snap *h)
{
    h->layers[1].window = 8;
}
static void no_heads(tqe_snap *h)
{
    h->layers[0].n_kv_heads = 0;
}
static void many_heads(tqe_snap *h)
{
    h->layers[0].n_kv_heads = 1024;
}
static void big_dim(tqe_snap *h)
{
    h->layers[0].d_k = 0xfffffff8u;
}
static void bad_token(tqe_snap *h)
{
    h->tokens[5] = (int32_t)h->n_vocab;
}
static void negative_token(tqe_snap *h)
{
    h->tokens[6] = -1;
}
static void nan_logit(tqe_snap *h)
{
    h->logits[3] = NAN;
}
static void late_donor(tqe_snap *h)
{
    h->layers[0].donor = 2;
}
static void a_page_file(tqe_snap *h)
{
    h->kind = TQE_SNAP_PAGE;
    h->first = 64;
}
static void steering_name(tqe_snap *h)
{
    (void)snprintf(h->model, sizeof(h->model), "a\033[2J");
}
static void far_part(tqe_snap *h)
{
    h->parts[1].off = UINT64_MAX - 63;
}
static void huge_part(tqe_snap *h)
{
    h->parts[1].bytes = UINT64_MAX;
}

static void test_forged(void **state)
{
    (void)state;
    forged(swap_parts, "page table");
    forged(swap_entries, "page table");
    forged(lose_part, "is missing");
    forged(skip_page, "page table");
    forged(other_model, "another model");
    forged(other_scheme, "turbo4v3");
    forged(other_spelling, "scheme");
    forged(other_scheme_files, "is another scheme's");
    forged(other_rotation, "rotation or codebook"); /* PITFALL 38, and the next */
    forged(other_format, "rotation or codebook");
    forged(no_format, "key format 7");
    forged(other_window, "layer 1");
    forged(no_heads, "layer table");
    forged(many_heads, "page table");
    forged(big_dim, "layer table");
    forged(bad_token, "token ids");
    forged(negative_token, "token ids");
    forged(nan_logit, "logits");
    forged(late_donor, "layer table");
    forged(a_page_file, "number of tokens");
    forged(steering_name, "model name");
    forged(far_part, "page table");
    forged(huge_part, "page table");
    goes_on();
}

/* Counts in the fixed part, each with every dangerous value, under a right checksum. */
static void test_forged_counts(void **state)
{
    (void)state;
    static const uint32_t values[] = {0, 1, 2, 63, 65, 0x7fffffffu, 0x80000000u, 0xffffffffu};
    static const struct {
        size_t off, n;
    } fields[] = {{8, 4},  {12, 4}, {16, 8}, {24, 8}, {32, 4}, {36, 4}, {40, 4},
                  {44, 4}, {48, 4}, {52, 4}, {56, 4}, {60, 4}, {224, 4}};
    uint8_t *bad = malloc(n_good);
    tqe_error err;
    tqe_snap h;
    assert_non_null(bad);
    state_ok(tqe_snap_parse(&h, good, n_good, &err), &err);
    const size_t header = (size_t)h.header_bytes;
    tqe_snap_free(&h);
    for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++) {
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            memcpy(bad, good, n_good);
            for (size_t i = 0; i < fields[f].n; i++) {
                bad[fields[f].off + i] = (uint8_t)(i < 4 ? values[v] >> (8 * i) : 0);
            }
            if (memcmp(bad, good, n_good) == 0) {
                continue;
            }
            tqe_hash128(bad + n_good - TQE_SNAP_TRAILER_BYTES + 16, bad, header);
            state_write(file, bad, n_good);
            refused(&err, "a forged count", fields[f].off);
        }
    }
    free(bad);
    goes_on();
}

/* ---- Prefix pages ---------------------------------------------------------------------------- */

/* Same size, another meaning. */
static void page_in_trellis(tqe_snap *h)
{
    tq_codec c;
    h->layers[1].k_format = TQ_FMT_TCQ4;
    assert_int_equal(tq_codec_init(&c, TQ_FMT_TCQ4, h->layers[1].d_k, 0, TQ_ISA_SCALAR), TQ_OK);
    assert_int_equal(tqe_decoder_id(&h->layers[1].k_decoder, &c), TQE_OK);
}
static void page_of_model(tqe_snap *h)
{
    h->fingerprint[31] ^= 1;
}
static void page_of_scheme(tqe_snap *h)
{
    h->scheme_id[0] ^= 1;
}
static void page_elsewhere(tqe_snap *h)
{
    h->first += 64;
}
static void page_of_token(tqe_snap *h)
{
    h->tokens[63] ^= 1;
}

/* PITFALL 40: every page of a chain says itself what it is. One in the middle, under the right name
 * and key, with right checksums, is of another kind than the first: it is set aside and computed.
 */
static void test_mixed_chain(void **state)
{
    (void)state;
    enum { N = 120 + 80 };
    static const struct {
        void (*change)(tqe_snap *);
        const char *word;
    } cases[] = {{page_in_trellis, "geometry"},
                 {page_of_model, "model"},
                 {page_of_scheme, "scheme"},
                 {page_elsewhere, "position"},
                 {page_of_token, "token"}};
    int32_t prompt[N];
    tqe_error err = {TQE_OK, ""};
    char *dir = state_path("chain");
    const tqe_prefix_params params = {.dir = dir, .every_pages = 1};
    tqe_session *s = state_session(model, "turbo4", N, 0);
    state_tokens(prompt, N, 8, model);
    float *want = NULL;
    for (size_t i = 0; i <= sizeof(cases) / sizeof(cases[0]); i++) {
        size_t reused = 99;
        tqe_prefix *p = NULL;
        if (i > 0) { /* forge the second page */
            DIR *d = opendir(dir);
            assert_non_null(d);
            for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
                char path[1024];
                uint8_t trailer[TQE_SNAP_TRAILER_BYTES];
                tqe_snap h;
                size_t n = 0;
                (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
                if (strlen(e->d_name) != 64 + 5) {
                    continue;
                }
                uint8_t *f = state_read(path, &n);
                state_ok(tqe_snap_parse(&h, f, n, &err), &err);
                if (h.first == 64) {
                    cases[i - 1].change(&h);
                    for (uint32_t t = 0; h.first != 64 && t < h.n_parts; t++) {
                        h.parts[t].page++;
                    }
                    tqe_snap_encode(&h, f, trailer);
                    memcpy(f + n - sizeof(trailer), trailer, sizeof(trailer));
                    state_write(path, f, n);
                }
                tqe_snap_free(&h);
                free(f);
            }
            (void)closedir(d);
        }
        state_ok(tqe_prefix_create(&p, &params, &err), &err);
        state_ok(tqe_session_truncate(s, 0, &err), &err);
        state_ok(tqe_session_prompt(s, p, prompt, N, NULL, NULL, &reused, &err), &err);
        tqe_prefix_flush(p);
        assert_int_equal(reused, i == 0 ? 0 : 64); /* PITFALL 36: nothing else is computed */
        if (i == 0) {
            want = state_logits(s, model);
        } else {
            assert_true(tqe_prefix_problem(p, &err));
            if (strstr(err.text, cases[i - 1].word) == NULL) {
                fail_msg("'%s' does not say '%s'", err.text, cases[i - 1].word);
            }
            assert_int_equal(state_count(dir, ".page", NULL), 3); /* written anew */
        }
        tqe_model_info info;
        tqe_model_get_info(model, &info);
        assert_memory_equal(tqe_session_logits(s), want, info.n_vocab * sizeof(*want));
        tqe_prefix_free(p);
    }
    free(want);
    tqe_session_free(s);
    state_remove(dir);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte),    cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_swapped_pages), cmocka_unit_test(test_forged),
        cmocka_unit_test(test_forged_counts), cmocka_unit_test(test_mixed_chain),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
