/* SPDX-License-Identifier: MIT */
/* test_model.c — the F16 file of the bundled model against a reference from its training code.
 *
 *   test_model DIR    DIR holds tiny-qwen3-28m.f16.gguf and reference.json
 *
 * Token ids must be equal, log-probabilities within 0.02 (the reference ran on the weights before
 * they were rounded to F16). Exit code 77, and a line that says so, when the folder is not there.
 */
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define MAX_TOKENS 2048

static char *join(const char *dir, const char *name)
{
    const size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (path != NULL) {
        (void)snprintf(path, n, "%s/%s", dir, name);
    }
    return path;
}

static int check_ids(const tqe_model *m, json_t *text, int32_t *ids, size_t *n)
{
    const char *s = json_string_value(json_object_get(text, "text"));
    json_t *want = json_object_get(text, "ids_with_bos");
    tqe_error err = {TQE_OK, ""};
    int32_t *got = NULL;
    size_t n_got = 0;
    if (tqe_tokenize(m, s, strlen(s), true, true, &got, &n_got, &err) != TQE_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    /* The reference puts BOS in front; the file does not ask for it (add_bos_token is absent). */
    *n = json_array_size(want);
    const size_t skip = n_got + 1 == *n ? 1 : 0;
    int bad = *n > MAX_TOKENS || n_got + skip != *n;
    if (bad) {
        fprintf(stderr, "%zu tokens, the reference has %zu\n", n_got, *n);
    }
    for (size_t i = 0; !bad && i < *n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(want, i));
        if (i >= skip && ids[i] != got[i - skip]) {
            fprintf(stderr, "token %zu is %d, the reference has %d\n", i, got[i - skip], ids[i]);
            bad = 1;
        }
    }
    free(got);
    return bad;
}

static double log_prob(const float *x, size_t n, int32_t id)
{
    double max = (double)x[0];
    for (size_t i = 1; i < n; i++) {
        max = (double)x[i] > max ? (double)x[i] : max;
    }
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - max);
    }
    return (double)x[id] - max - log(sum);
}

static int check_log_probs(const tqe_model *m, json_t *text, const char *kv, const int32_t *ids,
                           size_t n, double bound)
{
    tqe_model_info info;
    tqe_model_get_info(m, &info);
    tqe_error err = {TQE_OK, ""};
    tqe_session *s = NULL;
    const tqe_session_params p = {.n_ctx = MAX_TOKENS, .n_threads = 1, .kv = kv};
    float *logits = malloc(n * info.n_vocab * sizeof(float));
    if (logits == NULL || tqe_session_create(&s, m, &p, &err) != TQE_OK ||
        tqe_session_eval(s, ids, n, logits, NULL, NULL, &err) != TQE_OK) {
        fprintf(stderr, "%s\n", err.text);
        tqe_session_free(s);
        free(logits);
        return 1;
    }
    json_t *want = json_object_get(text, "logprob_next");
    double worst = 0.0;
    for (size_t i = 0; i + 1 < n; i++) {
        const double got = log_prob(logits + i * info.n_vocab, info.n_vocab, ids[i + 1]);
        const double d = fabs(got - json_real_value(json_array_get(want, i)));
        worst = d > worst || isnan(d) ? d : worst;
    }
    printf("%zu tokens, %s: largest difference of a log-probability %.4f\n", n, kv, worst);
    tqe_session_free(s);
    free(logits);
    return json_array_size(want) + 1 != n || !(worst <= bound);
}

static int check_model(const char *model_path, json_t *ref)
{
    tqe_error err = {TQE_OK, ""};
    tqe_model *m = NULL;
    if (tqe_model_load(&m, model_path, NULL, &err) != TQE_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int bad = 0;
    size_t i = 0;
    json_t *text = NULL;
    json_array_foreach(json_object_get(ref, "texts"), i, text)
    {
        static int32_t ids[MAX_TOKENS];
        size_t n = 0;
        bad |= check_ids(m, text, ids, &n);
        if (!bad) {
            bad |= check_log_probs(m, text, "f32", ids, n, 0.02);
            bad |= check_log_probs(m, text, "f16", ids, n, 0.02);
        }
    }
    bad |= i == 0;
    tqe_model_free(m);
    return bad;
}

int main(int argc, char **argv)
{
    char *ref_path = join(argc > 1 ? argv[1] : ".", "reference.json");
    char *model_path = join(argc > 1 ? argv[1] : ".", "tiny-qwen3-28m.f16.gguf");
    json_error_t json_err;
    json_t *ref = json_load_file(ref_path, 0, &json_err);
    int code = 77;
    if (ref == NULL) {
        printf("SKIPPED: %s is not there (%s)\n", ref_path, json_err.text);
    } else {
        code = check_model(model_path, ref);
        puts(code != 0 ? "FAILED" : "passed");
        json_decref(ref);
    }
    free(ref_path);
    free(model_path);
    return code;
}
