/* SPDX-License-Identifier: MIT */
/* test_attn_pairs.c — views made by hand: any key format beside any value format, a context whose
 * element count does not fit 32 bits, which head sizes the kernels take, and how often bytes are
 * read. */
#define _DEFAULT_SOURCE /* mmap */
#include "support.h"

#include "attn_case.h"
#include "cache.h"
#include "codec.h"

#include <sys/mman.h>

static const tq_format k_formats[] = {
    TQ_FMT_F32,       TQ_FMT_F16,       TQ_FMT_BF16,  TQ_FMT_AFFINE_K2, TQ_FMT_AFFINE_K4,
    TQ_FMT_AFFINE_K5, TQ_FMT_AFFINE_K8, TQ_FMT_NORM2, TQ_FMT_NORM3,     TQ_FMT_NORM4,
    TQ_FMT_NORM5,     TQ_FMT_NORM6,     TQ_FMT_NORM8, TQ_FMT_TCQ2,      TQ_FMT_TCQ3,
    TQ_FMT_TCQ4,      TQ_FMT_TCQ5,      TQ_FMT_TCQ6,  TQ_FMT_UNIFORM4,  TQ_FMT_UNIFORM8,
    TQ_FMT_MSE1,      TQ_FMT_MSE2,      TQ_FMT_MSE3,  TQ_FMT_MSE4,      TQ_FMT_PROD1,
    TQ_FMT_PROD2,     TQ_FMT_PROD3,     TQ_FMT_PROD4};
static const tq_format v_formats[] = {
    TQ_FMT_F32,      TQ_FMT_F16,      TQ_FMT_BF16,     TQ_FMT_LLOYD_V2, TQ_FMT_LLOYD_V3,
    TQ_FMT_LLOYD_V4, TQ_FMT_LLOYD_V5, TQ_FMT_LLOYD_V8, TQ_FMT_NORM2,    TQ_FMT_NORM3,
    TQ_FMT_NORM4,    TQ_FMT_NORM5,    TQ_FMT_NORM6,    TQ_FMT_NORM8,    TQ_FMT_TCQ2,
    TQ_FMT_TCQ3,     TQ_FMT_TCQ4,     TQ_FMT_TCQ5,     TQ_FMT_TCQ6,     TQ_FMT_UNIFORM4,
    TQ_FMT_UNIFORM8, TQ_FMT_MSE1,     TQ_FMT_MSE2,     TQ_FMT_MSE3,     TQ_FMT_MSE4,
    TQ_FMT_PROD1,    TQ_FMT_PROD2,    TQ_FMT_PROD3,    TQ_FMT_PROD4};
enum { N_K = sizeof k_formats / sizeof k_formats[0], N_V = sizeof v_formats / sizeof v_formats[0] };

/* A view of one KV head and the pages that it shows. */
typedef struct hand_made {
    tq_codec k, v;
    tq_view view;
    uint8_t *pages;
    uint32_t table[4];
} hand_made;

static void fill_page(hand_made *h, uint8_t *page, const float *k, const float *v, uint32_t n)
{
    assert_int_equal(
        tq_codec_encode_planes(&h->k, tq_page_planes(&h->k, page, 0), k, h->k.dim, n, NULL), TQ_OK);
    page += TQ_PAGE_TOKENS * h->k.block_bytes;
    assert_int_equal(
        tq_codec_encode_planes(&h->v, tq_page_planes(&h->v, page, 0), v, h->v.dim, n, NULL), TQ_OK);
}

static void make_view(hand_made *h, tq_format k, tq_format v, uint32_t dim, uint32_t mask)
{
    assert_int_equal(tq_codec_init(&h->k, k, dim, 0, mask), TQ_OK);
    assert_int_equal(tq_codec_init(&h->v, v, dim, 0, mask), TQ_OK);
    h->view = (tq_view){.packed = {.k = &h->k,
                                   .v = &h->v,
                                   .page_bytes = tq_page_head_bytes(&h->k, &h->v),
                                   .page_table = h->table},
                        .d_v = dim,
                        .n_kv_heads = 1,
                        .kernels = tq_kernels_get(mask)};
}

/* PITFALL 10: no pair is special; every one goes through the same kernels as its halves, and gives
 * the float64 answer on all paths. */
static void every_pair_matches_float64(void **state)
{
    (void)state;
    enum { D = 64, N = 70 };
    static float k[N * D], v[N * D];
    uint64_t seed = 71;
    for (int i = 0; i < N * D; i++) {
        k[i] = (float)test_normal(&seed);
        v[i] = (float)test_normal(&seed);
    }
    for (int i = 0; i < N_K; i++)
        for (int j = 0; j < N_V; j++) {
            hand_made h = {.table = {1, 0}};
            make_view(&h, k_formats[i], v_formats[j], D, TQ_ISA_ALL);
            h.view.n_tokens = N;
            h.pages = calloc(2, h.view.packed.page_bytes);
            assert_non_null(h.pages);
            h.view.packed.pages = h.pages;
            fill_page(&h, h.pages + h.view.packed.page_bytes, k, v, 64);
            fill_page(&h, h.pages, k + 64 * D, v + 64 * D, N - 64);
            assert_non_null(h.k.kernels->attn->score[tq_kfmt(h.k.format)]);
            assert_non_null(h.v.kernels->attn->weigh[tq_kfmt(h.v.format)]);
            for (uint32_t q_len = 2; q_len < 12; q_len += 8) {
                attn_case c = {.scheme = "f32",
                               .n_kv = 1,
                               .group = 2,
                               .d_k = D,
                               .d_v = D,
                               .n_tokens = N,
                               .cfg.q_len = q_len};
                attn_case_open(&c, 72);
                c.view = h.view;
                double *want = malloc(c.n_out * sizeof *want);
                assert_non_null(want);
                attn_case_run(&c);
                attn_case_oracle(&c, want, 0);
                double err = attn_case_error(&c, want);
                if (!(err <=
                      (q_len <= 8 ? attn_format_rounding(k_formats[i], v_formats[j]) : 2e-6)))
                    fail_msg("formats %d and %d, q_len %u: error %.3g", k_formats[i], v_formats[j],
                             q_len, err);
                free(want);
                attn_case_close(&c);
            }
            free(h.pages);
        }
}

/* PITFALL 33: more than 2^31 elements of keys, in pages more than 2^32 bytes from the first. Every
 * page of the table is the same page, so the answer is that of its 64 tokens, some of which come
 * once more than the others. */
static void indices_do_not_overflow(void **state)
{
    (void)state;
    enum { D = 128, TOKENS = (1 << 24) + 100 };
    static const struct {
        tq_format k, v;
        uint32_t q_len, window;
    } cases[] = {
        {TQ_FMT_F16, TQ_FMT_F16, 1, 1000},
        {TQ_FMT_AFFINE_K8, TQ_FMT_LLOYD_V3, 1, 1000},
        {TQ_FMT_F16, TQ_FMT_NORM4, 9, 1000},
#if defined(NDEBUG) && !defined(TQ_TEST_SLOW)
        {TQ_FMT_F16, TQ_FMT_F16, 1, 0}, /* all of it: some seconds, or minutes */
#endif
    };
    const uint32_t n_pages = (TOKENS + 63) / 64;
    uint32_t *table = malloc(n_pages * sizeof *table);
    static float k[64 * D], v[64 * D];
    uint64_t seed = 73;
    assert_non_null(table);
    for (int i = 0; i < 64 * D; i++) {
        k[i] = (float)test_normal(&seed);
        v[i] = (float)test_normal(&seed);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hand_made h = {.table = {0}};
        make_view(&h, cases[i].k, cases[i].v, D, TQ_ISA_ALL);
        const size_t id = ((size_t)5 << 30) / h.view.packed.page_bytes;
        const size_t bytes = (id + 1) * h.view.packed.page_bytes;
        h.pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (h.pages == MAP_FAILED) {
            free(table);
            skip(); /* no room for 5 GiB of addresses */
        }
        for (uint32_t p = 0; p < n_pages; p++)
            table[p] = (uint32_t)id;
        fill_page(&h, h.pages + id * h.view.packed.page_bytes, k, v, 64);
        h.view.packed.pages = h.pages;
        h.view.packed.page_table = table;
        h.view.n_tokens = TOKENS;

        static float q[9 * D], out[9 * D], dk[64 * D], dv[64 * D];
        for (int j = 0; j < 9 * D; j++)
            q[j] = (float)test_normal(&seed);
        tq_attn_config cfg = {
            .n_q_heads = 1, .q_len = cases[i].q_len, .window = cases[i].window, .scale = 0.09f};
        tq_attn_plan p;
        assert_int_equal(tq_attn_plan_init(&p, &cfg, &h.view), TQ_OK);
        const size_t scratch_bytes = p.partials_bytes + p.work_bytes + 64;
        void *scratch = malloc(scratch_bytes);
        assert_non_null(scratch);
        assert_int_equal(tq_attn_run(&p, &h.view, out, D, q, D, scratch, scratch_bytes), TQ_OK);
        free(scratch);

        /* Far from the start the same bytes are decoded. */
        assert_int_equal(tq_view_decode(&h.view, 0, TOKENS - 100, 64, dk, dv), TQ_OK);
        const uint32_t last = cases[i].q_len - 1;
        const uint32_t first = cases[i].window ? TOKENS - cases[i].window : 0;
        uint32_t times[64] = {0};
        for (uint32_t t = first; t < TOKENS; t++)
            times[t % 64]++;
        double sum = 0, want[D] = {0}, err = 0, ref = 0;
        for (uint32_t t = 0; t < 64; t++) {
            double dot = 0;
            for (int j = 0; j < D; j++)
                dot += (double)q[last * D + (uint32_t)j] * (double)dk[t * D + (uint32_t)j];
            double w = times[t] * exp(dot * (double)cfg.scale);
            sum += w;
            for (int j = 0; j < D; j++)
                want[j] += w * (double)dv[t * D + (uint32_t)j];
        }
        for (int j = 0; j < D; j++) {
            double e = (double)out[last * D + (uint32_t)j] - want[j] / sum;
            err += e * e;
            ref += want[j] / sum * want[j] / sum;
        }
        /* Queries rounded to int16; or the longest chain of f32 additions, of chunks of 512. */
        const double bound = cases[i].window ? 5e-4 : TOKENS * 0x1p-24 / 512;
        print_message("formats %d, %d: error %.2g\n", cases[i].k, cases[i].v, sqrt(err / ref));
        assert_true(sqrt(err / ref) < bound + attn_format_rounding(cases[i].k, cases[i].v));
        munmap(h.pages, bytes);
    }
    free(table);
}

/* ---- No rows are decoded --------------------------------------------------------------- */

static const tq_codec_kernels *behind; /* the kernels behind the counting ones */
static uint32_t n_decoded;

static void count_decode(const tq_codec *c, float *dst, size_t dst_stride, tq_const_planes src,
                         size_t n)
{
    n_decoded++;
    behind->decode[tq_kfmt(c->format)](c, dst, dst_stride, src, n);
}

static void count_decode_rotated(const tq_codec *c, float *dst, size_t dst_stride,
                                 tq_const_planes src, size_t n)
{
    n_decoded++;
    behind->decode_rotated[tq_kfmt(c->format)](c, dst, dst_stride, src, n);
}

/* The paper's own quantisers, for comparison only, are decoded by the reference. */
static int is_for_comparison(tq_format f)
{
    return f >= TQ_FMT_MSE1 && f <= TQ_FMT_PROD4;
}

/* Values in groups whose last one ends in the middle of a register. */
static int is_odd_value(tq_format f, uint32_t dim, int is_value)
{
    const int in_groups = (f >= TQ_FMT_LLOYD_V2 && f <= TQ_FMT_LLOYD_V8) || f == TQ_FMT_UNIFORM4 ||
                          f == TQ_FMT_UNIFORM8;
    return is_value && in_groups && dim % 16 != 0;
}

/* Scores or sums of n tokens and some rows, with a codec whose decoder counts its calls. */
static void attend_counting(tq_codec c, int is_value, const float *x, uint32_t n)
{
    enum { ROWS = 5 };
    static uint8_t blocks[64 * 4 * 1024], prep[(ROWS + 3) * 5 * 1024] __attribute__((aligned(64)));
    static float s[ROWS * 64], acc[ROWS * 1024];
    static const float alpha[ROWS];
    const int kf = tq_kfmt(c.format);
    assert_int_equal(tq_codec_encode(&c, blocks, sizeof blocks, x, c.dim, n, NULL), TQ_OK);

    behind = c.kernels->codec;
    tq_codec_kernels codec = *behind;
    tq_kernels table = *c.kernels;
    codec.decode[kf] = count_decode;
    codec.decode_rotated[kf] = count_decode_rotated;
    table.codec = &codec;
    c.kernels = &table;
    n_decoded = 0;
    const tq_const_planes rows = tq_codec_const_planes(&c, blocks);
    if (is_value) {
        for (uint32_t i = 0; i < ROWS * 64; i++)
            s[i] = i % 64 < n ? 1 : 0;
        table.attn->weigh[kf](&c, acc, c.dim, s, alpha, ROWS, rows, n);
    } else {
        assert_true(tq_prep_bytes(ROWS, c.dim) <= sizeof prep);
        table.attn->prep[kf](&c, prep, x, ROWS);
        table.attn->score[kf](&c, s, prep, ROWS, rows, n);
    }
}

static void check_speed_floor(tq_format f, uint32_t dim, int is_value, uint32_t mask,
                              const float *x)
{
    static const uint32_t counts[] = {64, 3};
    const char *what = is_value ? "values" : "keys";
    const int kf = tq_kfmt(f);
    tq_codec c;
    assert_int_equal(tq_codec_init(&c, f, dim, 0, mask), TQ_OK);
    const tq_attn_kernels *attn = c.kernels->attn, *plain = tq_kernels_scalar.attn;
    if (is_value ? attn->weigh[kf] == plain->weigh[kf] : attn->score[kf] == plain->score[kf])
        fail_msg("%s of format %d, %u elements, are attended by scalar.c", what, f, dim);
    if (is_for_comparison(f))
        return;
    if (c.kernels->codec->decode_rotated[kf] == tq_kernels_scalar.codec->decode_rotated[kf])
        fail_msg("%s of format %d, %u elements, are decoded by scalar.c", what, f, dim);
    for (int i = 0; i < 2 && !is_odd_value(f, dim, is_value); i++) {
        attend_counting(c, is_value, x, counts[i]);
        if (n_decoded)
            fail_msg("%s of format %d, %u elements, %u tokens: rows are decoded", what, f, dim,
                     counts[i]);
    }
}

/* PITFALL 32: a format that has kernels of its own uses them at every head size. To decode rows
 * first takes 2 to 4 times as long, the loops of scalar.c, which do that too, 10 times. */
static void no_head_size_is_decoded(void **state)
{
    (void)state;
    static const uint32_t masks[] = {TQ_ISA_AVX2, TQ_ISA_ALL};
    static float x[64 * 1024];
    uint64_t seed = 75;
    for (int i = 0; i < 64 * 1024; i++)
        x[i] = (float)test_normal(&seed);
    for (int m = 0; m < 2; m++) {
        if ((tq_kernels_get(masks[m])->isa & (TQ_ISA_AVX2 | TQ_ISA_AVX512)) == 0)
            continue;
        for (uint32_t dim = 16; dim <= TQ_DIM_MAX; dim += dim < 256 ? 8 : 64) {
            for (int i = 0; i < N_K; i++)
                if (tq_format_takes_dim(k_formats[i], dim))
                    check_speed_floor(k_formats[i], dim, 0, masks[m], x);
            for (int i = 0; i < N_V; i++)
                if (tq_format_takes_dim(v_formats[i], dim))
                    check_speed_floor(v_formats[i], dim, 1, masks[m], x);
        }
    }
}

/* ---- How often bytes are read ---------------------------------------------------------- */

static const tq_attn_kernels *counted; /* the kernels behind the counting ones */
static size_t bytes_scored, bytes_weighed;

static void count_score(const tq_codec *k, float *s, const void *prep, uint32_t n_rows,
                        tq_const_planes keys, uint32_t n)
{
    bytes_scored += n * k->block_bytes;
    counted->score[tq_kfmt(k->format)](k, s, prep, n_rows, keys, n);
}

static void count_weigh(const tq_codec *v, float *acc, size_t acc_stride, const float *w,
                        const float *alpha, uint32_t n_rows, tq_const_planes values, uint32_t n)
{
    bytes_weighed += n * v->block_bytes;
    counted->weigh[tq_kfmt(v->format)](v, acc, acc_stride, w, alpha, n_rows, values, n);
}

/* PITFALL 34: all query heads of a KV head, and all queries of a step, read its bytes once; what a
 * window hides is not read at all, but for the rest of its pages. */
static void each_byte_is_read_once(void **state)
{
    (void)state;
    static const char *schemes[] = {"f16", "turbo:k8v3", "turbo4", "tcq3"};
    static const uint32_t windows[] = {0, 130};
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 2; i++) {
            attn_case c = {.scheme = schemes[s],
                           .n_kv = 3,
                           .group = 4,
                           .d_k = 64,
                           .d_v = 64,
                           .n_tokens = 1100,
                           .cfg = {.q_len = 8, .window = windows[i]}};
            attn_case_open(&c, 74);
            attn_case_run(&c);
            float *want = malloc(c.n_out * sizeof *want);
            assert_non_null(want);
            memcpy(want, c.out, c.n_out * sizeof *want);

            tq_codec k = *c.view.packed.k, v = *c.view.packed.v;
            assert_ptr_equal(k.kernels->attn, v.kernels->attn); /* one table to count for */
            tq_attn_kernels attn = *k.kernels->attn;
            tq_kernels table = *k.kernels;
            counted = k.kernels->attn;
            attn.score[tq_kfmt(k.format)] = count_score;
            attn.weigh[tq_kfmt(v.format)] = count_weigh;
            table.attn = &attn;
            k.kernels = v.kernels = &table;
            c.view.packed.k = &k;
            c.view.packed.v = &v;
            bytes_scored = bytes_weighed = 0;
            attn_case_run(&c);
            assert_memory_equal(want, c.out, c.n_out * sizeof *want);

            /* Query 0 sits at token 1092 and sees 130 tokens from 963 on, in the page of 960. */
            const size_t seen = 3 * (size_t)(windows[i] ? 1100 - 960 : 1100);
            assert_int_equal(bytes_scored, seen * k.block_bytes);
            assert_int_equal(bytes_weighed, seen * v.block_bytes);
            free(want);
            attn_case_close(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_matches_float64),
        cmocka_unit_test(no_head_size_is_decoded),
        cmocka_unit_test(indices_do_not_overflow),
        cmocka_unit_test(each_byte_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
