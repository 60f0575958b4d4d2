/* SPDX-License-Identifier: MIT */
/* setup.c — from options to an open model.
 *
 * Policy: everything that can be refused without the model (scheme, ISA) is refused before the
 * gigabytes of a model are touched.
 */
#include "setup.h"

#include "machine.h"
#include "out.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

static const struct isa_name {
    const char *name;
    uint32_t bit;
} isa_table[] = {
    /* From the plainest to the best: setup_isa_best relies on the order. */
    {"scalar", TQ_ISA_SCALAR},
    {"neon", TQ_ISA_NEON},
    {"avx2", TQ_ISA_AVX2},
    {"avx512", TQ_ISA_AVX512},
};
enum { N_ISAS = sizeof isa_table / sizeof isa_table[0] };

const char *setup_isa_names(char dst[64], uint32_t mask)
{
    size_t n = 0;
    dst[0] = '\0';
    for (size_t i = 0; i < N_ISAS; i++) {
        if (isa_table[i].bit & mask) {
            n += (size_t)snprintf(dst + n, 64 - n, "%s%s", n ? ", " : "", isa_table[i].name);
        }
    }
    return dst;
}

const char *setup_isa_best(uint32_t mask)
{
    const char *best = "scalar";
    for (size_t i = 0; i < N_ISAS; i++) {
        if (isa_table[i].bit & mask & tq_isa_detect()) {
            best = isa_table[i].name;
        }
    }
    return best;
}

bool setup_isa(const char *name, uint32_t *mask)
{
    *mask = TQ_ISA_ALL;
    if (!name) {
        return true;
    }
    uint32_t have = tq_isa_detect() | TQ_ISA_SCALAR;
    char names[64];
    for (size_t i = 0; i < N_ISAS; i++) {
        if (!strcmp(name, isa_table[i].name)) {
            *mask = isa_table[i].bit;
            if (have & *mask) {
                return true;
            }
            msg_error("--isa: %s is not available in this build or on this CPU; available: %s",
                      name, setup_isa_names(names, have));
            return false;
        }
    }
    msg_error("--isa: '%s' is not an instruction set; available: %s", name,
              setup_isa_names(names, have));
    return false;
}

bool setup_check_kv(const char *text, tq_scheme *scheme, char *canonical)
{
    for (const char *s = text; *s; s++) {
        if (*s < 0x20 || *s > 0x7e) {
            msg_error("--kv: '%s' is not a scheme: byte 0x%02x at offset %zu", text,
                      (unsigned char)*s, (size_t)(s - text));
            return false;
        }
    }
    char why[TQ_SCHEME_ERROR_BYTES];
    if (tq_scheme_parse(scheme, text, why, sizeof why) != TQ_OK) {
        /* The library's line begins with the subject, which the flag names already. */
        static const char subject[] = "scheme: ";
        size_t skip = strncmp(why, subject, sizeof subject - 1) ? 0 : sizeof subject - 1;
        msg_error("--kv: %s", why + skip);
        return false;
    }
    if (tq_scheme_format(scheme, canonical, TQ_SCHEME_TEXT_BYTES) != TQ_OK) {
        msg_error("--kv: '%s' has no canonical spelling", text);
        return false;
    }
    return true;
}

bool setup_check(const setup *s)
{
    tq_scheme scheme;
    char canonical[TQ_SCHEME_TEXT_BYTES];
    uint32_t mask;
    if (!s->model) {
        msg_error("no model: give one with -m FILE");
        return false;
    }
    return setup_check_kv(s->kv, &scheme, canonical) && setup_isa(s->isa, &mask);
}

void setup_warn_threads(uint32_t n_threads)
{
    uint32_t n_cpus = machine_cpus();
    if (n_cpus && n_threads > n_cpus) {
        msg_warn("-t %u, but only %u %s usable: this is many times slower", n_threads, n_cpus,
                 n_cpus == 1 ? "CPU is" : "CPUs are");
    }
}

static bool names_files(const char *kv)
{
    tq_scheme s;
    return tq_scheme_parse(&s, kv, NULL, 0) == TQ_OK && (s.layers[0] || s.kmean[0]);
}

static void warn_all_skipped(const char *kv, uint32_t n_layers)
{
    tq_scheme s;
    if (tq_scheme_parse(&s, kv, NULL, 0) == TQ_OK && s.skip && 2 * (uint64_t)s.skip >= n_layers) {
        msg_warn("--kv %s: skip=%u keeps all %u layers in f16", kv, s.skip, n_layers);
    }
}

/* What a user can do about memory that a session does not get. */
static void advise_memory(const setup *s, const tqe_model *m)
{
    tqe_error err;
    tqe_model_info info;
    tqe_kv_plan plan;
    tq_scheme scheme;
    char count[32], size[32];
    const uint64_t have = machine_free_bytes();
    tqe_model_get_info(m, &info);
    if (have && tq_scheme_parse(&scheme, s->kv, NULL, 0) == TQ_OK &&
        tqe_kv_plan_make(&plan, &info, &scheme, have, 1, &err) == TQE_OK) {
        /* Context and kept prompts are pages of one pool. */
        msg_note("%s are free: they hold %s tokens%s.", text_size(size, have),
                 text_count(count, plan.n_ctx),
                 s->n_kept ? ", those of -c and --keep together" : "");
    }
}

bool setup_open(const setup *s, tqe_model **model, tqe_session **session)
{
    tqe_error err = {0};
    tqe_model_info info;
    const char *advice = "", *option = "", *kv = "", *colon = "";
    tqe_session_params params = {
        .n_ctx = s->n_ctx, .n_threads = s->n_threads, .kv = s->kv, .n_kept = s->n_kept};
    *model = NULL;
    *session = NULL;
    setup_isa(s->isa, &params.isa_mask);
    msg_status("loading the model ...");
    tqe_status st = tqe_model_load(model, s->model, NULL, &err);
    if (st == TQE_OK) {
        st = tqe_session_create(session, *model, &params, &err);
        advice = st != TQE_ERR_NOMEM ? ""
                 : s->n_kept         ? "; use a smaller --keep"
                                     : "; use a smaller -c";
        if (names_files(s->kv) && (st == TQE_ERR_IO || st == TQE_ERR_FORMAT ||
                                   st == TQE_ERR_SCHEME || st == TQE_ERR_UNSUPPORTED)) {
            option = "--kv ";
            kv = s->kv;
            colon = ": ";
        }
    }
    msg_status(NULL);
    if (st != TQE_OK) {
        msg_error("%s%s%s%s%s", option, kv, colon, err.text, advice);
        if (st == TQE_ERR_NOMEM && *model) {
            advise_memory(s, *model);
        }
        tqe_model_free(*model);
        *model = NULL;
        return false;
    }
    setup_warn_threads(s->n_threads);
    tqe_model_get_info(*model, &info);
    if (info.n_ctx_train && s->n_ctx > info.n_ctx_train) {
        msg_warn("model trained for %u tokens; text beyond may get worse", info.n_ctx_train);
    }
    warn_all_skipped(s->kv, info.n_layers);
    return true;
}

bool setup_sampler(const setup *s, const tqe_model *model, tqe_sampler **sampler)
{
    tqe_error err = {0};
    tqe_sampler_params params = {.temp = s->temp,
                                 .top_k = (int32_t)s->top_k,
                                 .top_p = s->top_p,
                                 .min_p = s->min_p,
                                 .seed = s->seed};
    if (tqe_sampler_create(sampler, model, &params, &err) != TQE_OK) {
        msg_error("%s", err.text);
        return false;
    }
    return true;
}
