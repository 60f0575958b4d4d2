/* SPDX-License-Identifier: MIT */
/* test_status.c — status names, version, and which ISA serves which kernel. */
#include "support.h"

static void status_names(void **state)
{
    static const struct {
        tq_status s;
        int value; /* frozen */
        const char *name;
    } all[] = {{TQ_OK, 0, "TQ_OK"},
               {TQ_ERR_ARG, -1, "TQ_ERR_ARG"},
               {TQ_ERR_SCHEME, -2, "TQ_ERR_SCHEME"},
               {TQ_ERR_DIM, -3, "TQ_ERR_DIM"},
               {TQ_ERR_SIZE, -4, "TQ_ERR_SIZE"},
               {TQ_ERR_NONFINITE, -5, "TQ_ERR_NONFINITE"},
               {TQ_ERR_FULL, -6, "TQ_ERR_FULL"},
               {TQ_ERR_STATE, -7, "TQ_ERR_STATE"},
               {TQ_ERR_NOMEM, -8, "TQ_ERR_NOMEM"},
               {TQ_ERR_OVERFLOW, -9, "TQ_ERR_OVERFLOW"}};

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        assert_int_equal(all[i].s, all[i].value);
        assert_string_equal(tq_status_name(all[i].s), all[i].name);
    }
    assert_string_equal(tq_status_name((tq_status)7), "TQ_ERR_UNKNOWN");
    assert_string_equal(tq_status_name((tq_status)-1000), "TQ_ERR_UNKNOWN");
}

static void version_matches_header(void **state)
{
    char want[32];

    (void)state;
    snprintf(want, sizeof want, "%d.%d.%d", TQ_VERSION_MAJOR, TQ_VERSION_MINOR, TQ_VERSION_PATCH);
    assert_string_equal(tq_version(), want);
}

static void isa_detection(void **state)
{
    uint32_t isa = tq_isa_detect();

    (void)state;
    assert_true(isa & TQ_ISA_SCALAR);
    assert_int_equal(isa & ~(TQ_ISA_SCALAR | TQ_ISA_AVX2 | TQ_ISA_AVX512 | TQ_ISA_NEON), 0);
    assert_int_equal(tq_isa_detect(), isa);
}

static void describe_lists_every_entry(void **state)
{
    const char *name;
    uint32_t isa;
    uint32_t n = 0;
    uint32_t n_fast = 0;

    (void)state;
    for (; tq_kernels_describe(TQ_ISA_ALL, n, &name, &isa) == TQ_OK; n++) {
        const char *other;
        uint32_t scalar;
        assert_true(name && *name);
        assert_true(isa & tq_isa_detect());
        n_fast += isa != TQ_ISA_SCALAR;
        /* Without a mask everything is scalar, and the names are the same. */
        assert_int_equal(tq_kernels_describe(0, n, &other, &scalar), TQ_OK);
        assert_string_equal(other, name);
        assert_int_equal(scalar, TQ_ISA_SCALAR);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(tq_kernels_describe(0, i, &other, &scalar), TQ_OK);
            assert_string_not_equal(other, name);
        }
    }
    assert_true(n > 3 * 12);
    if (tq_isa_detect() & TQ_ISA_AVX2)
        assert_true(n_fast > 0);
    assert_int_equal(tq_kernels_describe(TQ_ISA_ALL, UINT32_MAX, &name, &isa), TQ_ERR_ARG);
    assert_int_equal(tq_kernels_describe(TQ_ISA_ALL, 0, NULL, &isa), TQ_ERR_ARG);
    assert_int_equal(tq_kernels_describe(TQ_ISA_ALL, 0, &name, NULL), TQ_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_names),
        cmocka_unit_test(version_matches_header),
        cmocka_unit_test(isa_detection),
        cmocka_unit_test(describe_lists_every_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
