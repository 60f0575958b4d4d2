/* SPDX-License-Identifier: MIT */
/* eval_needle.c — questions about one fact among many that look like it.
 *
 * The hard idea: what a damaged cache loses first. A lone fact in a long text is found by anything;
 * here up to 12 facts stand spread over the prompt, all in the same words, and an answer counts
 * only when all six digits are right. Names are made up of three syllables out of 75, so that no
 * model knows them and many share a part with the asked one. How hard it may be is bounded by the
 * model: with more facts, with codes or names that differ in one digit only, or with a fact in the
 * very first tokens, a model of 28 million parameters is wrong with any cache, which measures the
 * model (docs/quality.md).
 */
#include "engine_priv.h"
#include "eval.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS_PER_FACT = 80,
    MIN_FACTS = 4,
    MAX_FACTS = 12,
    CODE_DIGITS = 6,
    NAME_BYTES = 8,
    MAX_SENTENCE = 240
};

/* Prose for those who give none. */
static const char own_filler[] =
    "The lighthouse keeper climbed the stairs every evening before sunset. He trimmed the wick and "
    "wrote the weather into a book that his father had begun. Ships passed far out, and he counted "
    "them. In winter the storms kept him awake for many nights. In summer he mended nets and grew "
    "beans behind the wall. Once a month a boat brought letters, oil and flour. It took away the "
    "finished pages and the empty casks. The children of the village believed that he knew every "
    "star by its name. He never told them that he had forgotten most. On clear mornings the "
    "mountains of the other shore stood over the water. Nobody whom he knew had ever been there. ";

/* ---- Random numbers and text ------------------------------------------------------------------
 */

/* splitmix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators". */
static uint32_t draw(uint64_t *state, uint32_t below)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (uint32_t)((z >> 32) * below >> 32);
}

typedef struct text {
    char *at;
    size_t n, cap;
    bool failed;
} text;

static void add(text *t, const char *s, size_t n)
{
    if (t->failed) {
        return;
    }
    if (t->n + n + 1 > t->cap) {
        const size_t cap = 2 * (t->n + n + 1);
        char *grown = realloc(t->at, cap);
        if (grown == NULL) {
            t->failed = true;
            return;
        }
        t->at = grown;
        t->cap = cap;
    }
    memcpy(t->at + t->n, s, n);
    t->n += n;
    t->at[t->n] = '\0';
}

static void make_name(char dst[NAME_BYTES], uint64_t *state)
{
    static const char consonants[] = "bdfghklmnprstvz";
    static const char vowels[] = "aeiou";
    for (size_t i = 0; i < 6; i += 2) {
        dst[i] = consonants[draw(state, sizeof(consonants) - 1)];
        dst[i + 1] = vowels[draw(state, sizeof(vowels) - 1)];
    }
    dst[6] = '\0';
}

static void make_code(char dst[CODE_DIGITS + 1], uint64_t *state)
{
    (void)snprintf(dst, CODE_DIGITS + 1, "%u", 100000u + draw(state, 900000));
}

/* Is s [n] a sentence of plain prose? Tables and code would say nothing about a cache. */
static bool is_prose(const char *s, size_t n)
{
    if (n < 30 || n > MAX_SENTENCE || s[0] < 'A' || s[0] > 'Z') {
        return false;
    }
    size_t n_letters = 0;
    for (size_t i = 0; i < n; i++) {
        const char c = s[i];
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        n_letters += letter || c == ' ' || c == '\n';
        if (!letter && strchr(" \n,;:'\"-.?!", c) == NULL) {
            return false;
        }
    }
    return n_letters * 10 >= n * 9;
}

/* The next sentence of prose after *at, round the end of the text if need be; its length, or 0 when
 * there is none. */
static size_t next_sentence(const char *s, size_t n, size_t *at, size_t *first)
{
    size_t looked = 0;
    size_t begin = *at < n ? *at : 0;
    while (looked <= n) {
        size_t end = begin;
        while (end < n && end - begin <= MAX_SENTENCE && s[end] != '.' && s[end] != '\0') {
            end++;
        }
        looked += end + 1 - begin;
        *at = end + 1;
        if (end < n && s[end] == '.' && is_prose(s + begin, end + 1 - begin)) {
            *first = begin;
            return end + 1 - begin;
        }
        begin = end + 1;
        while (begin < n && (s[begin] == ' ' || s[begin] == '\n')) {
            begin++;
            looked++;
        }
        begin = begin < n ? begin : 0;
    }
    return 0;
}

/* ---- Prompts ----------------------------------------------------------------------------------
 */

typedef struct maker {
    const tqe_model *m;
    const char *filler;
    size_t filler_bytes;
    size_t filler_at;
    uint64_t state;
    text out;
    size_t n_tokens; /* of out, about */
} maker;

/* Adds a sentence and counts its tokens. */
static tqe_status say(maker *k, const char *s, size_t n, tqe_error *err)
{
    char line[MAX_SENTENCE + 64];
    int32_t *ids = NULL;
    size_t n_ids = 0;
    line[0] = ' ';
    for (size_t i = 0; i < n; i++) {
        line[i + 1] = s[i] == '\n' ? ' ' : s[i];
    }
    const size_t skip = k->out.n == 0; /* no blank at the start */
    const tqe_status st =
        tqe_tokenize(k->m, line + skip, n + 1 - skip, false, false, &ids, &n_ids, err);
    free(ids);
    k->n_tokens += n_ids;
    add(&k->out, line + skip, n + 1 - skip);
    return st;
}

static tqe_status say_fact(maker *k, const char *name, const char *code, tqe_error *err)
{
    char line[64];
    const int n = snprintf(line, sizeof(line), "The code for %s is %s.", name, code);
    return say(k, line, (size_t)n, err);
}

static tqe_status say_filler(maker *k, tqe_error *err)
{
    size_t first = 0;
    const size_t len = next_sentence(k->filler, k->filler_bytes, &k->filler_at, &first);
    return len != 0 ? say(k, k->filler + first, len, err)
                    : tqe_fail(err, TQE_ERR_ARG, "the text has no sentence to hide needles in");
}

/* The prompt of about `budget` tokens. */
static tqe_status compose(maker *k, const tqe_needle *needle, size_t budget, const char *name,
                          const char *code, tqe_error *err)
{
    const size_t wanted = budget / TOKENS_PER_FACT;
    const size_t n_facts = wanted < MIN_FACTS ? MIN_FACTS : wanted > MAX_FACTS ? MAX_FACTS : wanted;
    const size_t right = (size_t)(needle->depth * (double)(n_facts - 1) + 0.5);
    tqe_status st = say_filler(k, err);
    for (size_t i = 0; st == TQE_OK && i < n_facts; i++) {
        char other[NAME_BYTES];
        char wrong[CODE_DIGITS + 1];
        do {
            make_name(other, &k->state);
        } while (strcmp(other, name) == 0);
        make_code(wrong, &k->state);
        st = i == right ? say_fact(k, name, code, err) : say_fact(k, other, wrong, err);
        while (st == TQE_OK && k->n_tokens < budget * (i + 1) / n_facts) {
            st = say_filler(k, err);
        }
    }
    char line[128];
    const int n =
        snprintf(line, sizeof(line),
                 "\n\nQuestion: What is the code for %s?\nAnswer: The code for %s is", name, name);
    add(&k->out, line, (size_t)n);
    return st == TQE_OK && k->out.failed
               ? tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a prompt")
               : st;
}

static tqe_status with_bos(const tqe_model *m, const char *s, size_t n, bool no_bos, bool special,
                           int32_t **ids, size_t *n_ids, tqe_error *err)
{
    return tqe_tokenize(m, s, n, !no_bos, special, ids, n_ids, err);
}

static tqe_status question_tokens(const tqe_model *m, const char *prompt, const char *answer,
                                  bool no_bos, bool special, int32_t **ids, size_t *n_ids,
                                  size_t *n_answer, tqe_error *err)
{
    text both = {0};
    int32_t *before = NULL;
    int32_t *all = NULL;
    size_t n_before = 0;
    size_t n_all = 0;
    add(&both, prompt, strlen(prompt));
    add(&both, answer, strlen(answer));
    tqe_status st =
        both.failed ? tqe_fail(err, TQE_ERR_NOMEM, "out of memory for a prompt") : TQE_OK;
    if (st == TQE_OK) {
        st = with_bos(m, prompt, strlen(prompt), no_bos, special, &before, &n_before, err);
    }
    if (st == TQE_OK) {
        st = with_bos(m, both.at, both.n, no_bos, special, &all, &n_all, err);
    }
    /* A tokenizer may join the end of one with the start of the other. */
    size_t same = 0;
    while (st == TQE_OK && same < n_before && same < n_all && before[same] == all[same]) {
        same++;
    }
    if (st == TQE_OK && (same == 0 || same == n_all)) {
        st = tqe_fail(err, TQE_ERR_ARG, "the %s has no tokens", same == 0 ? "prompt" : "answer");
    }
    free(before);
    free(both.at);
    if (st != TQE_OK) {
        free(all);
        return st;
    }
    *ids = all;
    *n_ids = n_all;
    *n_answer = n_all - same;
    return TQE_OK;
}

tqe_status tqe_needle_tokens(const tqe_model *m, const char *prompt, const char *answer,
                             bool no_bos, int32_t **ids, size_t *n_ids, size_t *n_answer,
                             tqe_error *err)
{
    return question_tokens(m, prompt, answer, no_bos, true, ids, n_ids, n_answer, err);
}

static tqe_status try_budget(const tqe_model *m, const tqe_needle *needle, const char *filler,
                             size_t filler_bytes, size_t budget, bool no_bos, int32_t **ids,
                             size_t *n_ids, size_t *n_answer, tqe_error *err)
{
    maker k = {.m = m, .filler = filler, .filler_bytes = filler_bytes, .state = needle->seed};
    char name[NAME_BYTES];
    char code[CODE_DIGITS + 1];
    char answer[CODE_DIGITS + 2];
    make_name(name, &k.state);
    make_code(code, &k.state);
    (void)snprintf(answer, sizeof(answer), " %s", code);
    k.filler_at = draw(&k.state, (uint32_t)(filler_bytes < UINT32_MAX ? filler_bytes : UINT32_MAX));
    tqe_status st = compose(&k, needle, budget, name, code, err);
    if (st == TQE_OK) {
        st = question_tokens(m, k.out.at, answer, no_bos, false, ids, n_ids, n_answer, err);
    }
    free(k.out.at);
    return st;
}

tqe_status tqe_needle_make(const tqe_model *m, const tqe_needle *needle, const char *filler,
                           size_t filler_bytes, bool no_bos, int32_t **ids, size_t *n_ids,
                           size_t *n_answer, tqe_error *err)
{
    if (!(needle->depth >= 0 && needle->depth <= 1) || needle->n_tokens < 160) {
        return tqe_fail(err, TQE_ERR_ARG, "a needle at depth %g of %u tokens", needle->depth,
                        needle->n_tokens);
    }
    filler_bytes = filler != NULL ? filler_bytes : sizeof(own_filler) - 1;
    filler = filler != NULL ? filler : own_filler;
    /* The question takes about 40 tokens, and the last sentence may run over; what is counted
     * sentence by sentence differs a little from the whole. */
    size_t budget = needle->n_tokens - 80;
    for (int round = 0; round < 8; round++) {
        const tqe_status st =
            try_budget(m, needle, filler, filler_bytes, budget, no_bos, ids, n_ids, n_answer, err);
        if (st != TQE_OK || *n_ids <= needle->n_tokens) {
            return st;
        }
        const size_t over = *n_ids - needle->n_tokens;
        free(*ids);
        *ids = NULL;
        if (over + 8 >= budget) {
            break;
        }
        budget -= over + 8;
    }
    return tqe_fail(err, TQE_ERR_ARG, "a needle does not fit into %u tokens", needle->n_tokens);
}
