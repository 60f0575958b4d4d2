/* SPDX-License-Identifier: MIT */
/* check_tables.c — no table of this machine has a hole: every entry that the scalar table has, each
 * ISA has too, and those of the codec half are all there. */
#include "checkkern.h"

static void check(ck *t)
{
    const tq_attn_kernels *ref = tq_kernels_scalar.attn;

    for (size_t i = 0; i < t->n_isas; i++) {
        const char *isa = t->isas[i].name;
        const tq_codec_kernels *c = t->isas[i].kernels->codec;
        const tq_attn_kernels *a = t->isas[i].kernels->attn;
        for (int f = 0; f < TQ_N_KFMT; f++) {
            ck_check(t, c->encode[f] && c->decode[f] && c->decode_rotated[f], "codec", isa,
                     "no entry for format %d", f);
            ck_check(t, !a->prep[f] == !ref->prep[f] && !a->score[f] == !ref->score[f], "score",
                     isa, "no entry for format %d", f);
            ck_check(t, !a->weigh[f] == !ref->weigh[f], "weigh", isa, "no entry for format %d", f);
        }
        ck_check(t, c->first_nonfinite && c->rotate && c->unrotate, "codec", isa, "NULL");
        ck_check(t, a->softmax && a->pack_keys && a->pack_values && a->gemm, "attn", isa, "NULL");
    }
}

static void bench(ck *t)
{
    (void)t; /* nothing to time */
}

const ck_module ck_module_tables = {"tables", check, bench};
