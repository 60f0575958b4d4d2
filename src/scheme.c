/* SPDX-License-Identifier: MIT */
/* scheme.c — scheme strings: base { "," option }.
 *
 * Two tables hold the grammar: bases (a family and the bits it takes) and options. A string is
 * accepted when the tables produce it and refused otherwise; there is no second spelling except
 * the short forms that docs/format.md lists ("turbo" for "turbo:k8v3", a default option written
 * out). The canonical text is made from the parsed scheme alone, so that it is the identity.
 * The text is hostile: it may be of any length and hold any byte but NUL.
 */
#include "codec.h"

#include <string.h>

/* ---- The grammar ---- */

typedef struct base_rule {
    const char *name;
    tq_family family;
    uint8_t k_bits; /* what the bare name means */
    uint8_t v_bits;
    const char *k_digits; /* bits allowed after ":k", as digits; NULL: the base takes no bits */
    const char *v_digits;
    const char *shape; /* for messages */
} base_rule;

static const base_rule bases[] = {
    {"f32", TQ_FAMILY_F32, 32, 32, NULL, NULL, "f32"},
    {"f16", TQ_FAMILY_F16, 16, 16, NULL, NULL, "f16"},
    {"bf16", TQ_FAMILY_BF16, 16, 16, NULL, NULL, "bf16"},
    {"turbo", TQ_FAMILY_AFFINE_LLOYD, 8, 3, "2458", "23458",
     "turbo[:kKvV] with K in 2 4 5 8 and V in 2 3 4 5 8"},
};

typedef struct option_rule {
    const char *name;
    const char *const *values; /* NULL-terminated; the first is the default, never printed */
    unsigned (*get)(const tq_scheme *s);
    void (*set)(tq_scheme *s, unsigned value);
} option_rule;

static unsigned attn_get(const tq_scheme *s)
{
    return (unsigned)s->attn;
}

static void attn_set(tq_scheme *s, unsigned value)
{
    s->attn = (tq_attn_mode)value;
}

static const char *const attn_values[] = {"fused", "dequant", NULL};

static const option_rule options[] = {
    {"attn", attn_values, attn_get, attn_set},
};

#define N_BASES   (sizeof(bases) / sizeof(bases[0]))
#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

/* ---- Text that is built in a buffer of fixed size ---- */

typedef struct out_text {
    char *dst;
    size_t room; /* with the terminator; 0: nothing is written */
    size_t len;  /* what the whole text takes, without terminator */
} out_text;

static void put_chars(out_text *o, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++, o->len++) {
        if (o->len + 1 < o->room) {
            o->dst[o->len] = p[i];
            o->dst[o->len + 1] = '\0';
        }
    }
}

static void put(out_text *o, const char *s)
{
    put_chars(o, s, strlen(s));
}

static void put_number(out_text *o, unsigned v)
{
    char digits[12];
    size_t n = sizeof digits;
    do {
        digits[--n] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    put_chars(o, digits + n, sizeof digits - n);
}

/* A part of the input, between quotes: short, and without bytes that could harm a terminal. */
static void put_quoted(out_text *o, const char *p, size_t n)
{
    const size_t shown = 32;

    put(o, "\"");
    for (size_t i = 0; i < n && i < shown; i++) {
        char ch = p[i] >= 0x20 && p[i] < 0x7f ? p[i] : '?';
        put_chars(o, &ch, 1);
    }
    put(o, n > shown ? "...\"" : "\"");
}

static void put_bit_set(out_text *o, const char *digits)
{
    for (size_t i = 0; digits[i]; i++) {
        put(o, i ? " " : "");
        put_chars(o, digits + i, 1);
    }
}

/* ---- Parsing ---- */

typedef struct parser {
    out_text err;
} parser;

static int part_is(const char *part, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(part, name, n) == 0;
}

/* "what "part": why", the start of a message. */
static void complain(parser *p, const char *what, const char *part, size_t n, const char *why)
{
    put(&p->err, "scheme: ");
    put(&p->err, what);
    put(&p->err, " ");
    put_quoted(&p->err, part, n);
    put(&p->err, why);
}

static void list_bases(parser *p)
{
    for (size_t i = 0; i < N_BASES; i++) {
        put(&p->err, i ? ", " : "");
        put(&p->err, bases[i].shape);
    }
}

static void list_options(parser *p)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        for (size_t v = 0; options[i].values[v]; v++) {
            put(&p->err, i || v ? ", " : "");
            put(&p->err, options[i].name);
            put(&p->err, "=");
            put(&p->err, options[i].values[v]);
        }
    }
}

/* "kKvV" with one digit each. */
static tq_status parse_bits(parser *p, const base_rule *rule, const char *part, size_t n,
                            tq_scheme *s)
{
    if (n != 4 || part[0] != 'k' || part[2] != 'v') {
        complain(p, "bits", part, n, " are not of the form kKvV; valid: ");
        put(&p->err, rule->shape);
        return TQ_ERR_SCHEME;
    }
    if (!strchr(rule->k_digits, part[1])) {
        complain(p, "key bits", part + 1, 1, " are not one of ");
        put_bit_set(&p->err, rule->k_digits);
        return TQ_ERR_SCHEME;
    }
    if (!strchr(rule->v_digits, part[3])) {
        complain(p, "value bits", part + 3, 1, " are not one of ");
        put_bit_set(&p->err, rule->v_digits);
        return TQ_ERR_SCHEME;
    }
    s->k_bits = (uint8_t)(part[1] - '0');
    s->v_bits = (uint8_t)(part[3] - '0');
    return TQ_OK;
}

static tq_status parse_base(parser *p, const char *part, size_t n, tq_scheme *s)
{
    const char *colon = memchr(part, ':', n);
    size_t name_n = colon ? (size_t)(colon - part) : n;

    for (size_t i = 0; i < N_BASES; i++) {
        const base_rule *rule = &bases[i];
        if (!part_is(part, name_n, rule->name) || (colon && !rule->k_digits))
            continue;
        *s = (tq_scheme){.family = rule->family, .k_bits = rule->k_bits, .v_bits = rule->v_bits};
        return colon ? parse_bits(p, rule, colon + 1, n - name_n - 1, s) : TQ_OK;
    }
    complain(p, "base", part, n, " is unknown; valid: ");
    list_bases(p);
    return TQ_ERR_SCHEME;
}

static tq_status parse_option(parser *p, const char *part, size_t n, tq_scheme *s, uint32_t *seen)
{
    const char *equals = memchr(part, '=', n);
    size_t name_n = equals ? (size_t)(equals - part) : n;

    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (!equals || !part_is(part, name_n, options[i].name))
            continue;
        if (*seen & (1u << i)) {
            complain(p, "option", part, n, " is given twice");
            return TQ_ERR_SCHEME;
        }
        *seen |= 1u << i;
        for (unsigned v = 0; options[i].values[v]; v++) {
            if (part_is(equals + 1, n - name_n - 1, options[i].values[v])) {
                options[i].set(s, v);
                return TQ_OK;
            }
        }
    }
    complain(p, "option", part, n, " is unknown; valid: ");
    list_options(p);
    return TQ_ERR_SCHEME;
}

tq_status tq_scheme_parse(tq_scheme *out, const char *text, char *err, size_t err_bytes)
{
    parser p = {.err = {err, err ? err_bytes : 0, 0}};
    tq_scheme s;
    uint32_t seen = 0;

    if (err && err_bytes)
        err[0] = '\0';
    if (!out || !text)
        return TQ_ERR_ARG;

    size_t n = strcspn(text, ",");
    tq_status status = parse_base(&p, text, n, &s);
    while (status == TQ_OK && text[n] == ',') {
        text += n + 1;
        n = strcspn(text, ",");
        status = parse_option(&p, text, n, &s, &seen);
    }
    if (status == TQ_OK)
        *out = s;
    return status;
}

/* ---- Canonical text ---- */

static int digit_in(const char *digits, unsigned bits)
{
    return bits < 10 && bits > 0 && strchr(digits, (int)('0' + bits)) != NULL;
}

/* The rule that can produce a scheme; NULL when no text gives it. */
static const base_rule *rule_of(const tq_scheme *s)
{
    for (size_t i = 0; s && i < N_BASES; i++) {
        const base_rule *rule = &bases[i];
        if (rule->family != s->family)
            continue;
        if (rule->k_digits)
            return digit_in(rule->k_digits, s->k_bits) && digit_in(rule->v_digits, s->v_bits)
                       ? rule
                       : NULL;
        return s->k_bits == rule->k_bits && s->v_bits == rule->v_bits ? rule : NULL;
    }
    return NULL;
}

tq_status tq_scheme_format(const tq_scheme *s, char *dst, size_t dst_bytes)
{
    const base_rule *rule = rule_of(s);
    out_text o = {dst, dst_bytes, 0};

    if (!rule || !dst)
        return TQ_ERR_ARG;
    put(&o, rule->name);
    if (rule->k_digits) {
        put(&o, ":k");
        put_number(&o, s->k_bits);
        put(&o, "v");
        put_number(&o, s->v_bits);
    }
    for (size_t i = 0; i < N_OPTIONS; i++) {
        unsigned value = options[i].get(s);
        unsigned n_values = 0;
        while (options[i].values[n_values])
            n_values++;
        if (value >= n_values)
            return TQ_ERR_ARG;
        if (value) {
            put(&o, ",");
            put(&o, options[i].name);
            put(&o, "=");
            put(&o, options[i].values[value]);
        }
    }
    return o.len < dst_bytes ? TQ_OK : TQ_ERR_SIZE;
}

/* ---- What a scheme costs ---- */

tq_status tq_scheme_format_of(const tq_scheme *s, int is_value, tq_format *out)
{
    static const struct {
        uint8_t bits;
        tq_format key;
        tq_format value;
    } turbo[] = {
        {2, TQ_FMT_AFFINE_K2, TQ_FMT_LLOYD_V2}, {3, TQ_FMT_F32, TQ_FMT_LLOYD_V3},
        {4, TQ_FMT_AFFINE_K4, TQ_FMT_LLOYD_V4}, {5, TQ_FMT_AFFINE_K5, TQ_FMT_LLOYD_V5},
        {8, TQ_FMT_AFFINE_K8, TQ_FMT_LLOYD_V8},
    };
    const base_rule *rule = rule_of(s);

    if (!rule || !out)
        return TQ_ERR_ARG;
    switch (s->family) {
    case TQ_FAMILY_F32:
        *out = TQ_FMT_F32;
        return TQ_OK;
    case TQ_FAMILY_F16:
        *out = TQ_FMT_F16;
        return TQ_OK;
    case TQ_FAMILY_BF16:
        *out = TQ_FMT_BF16;
        return TQ_OK;
    case TQ_FAMILY_AFFINE_LLOYD:
        break;
    }
    for (size_t i = 0; i < sizeof(turbo) / sizeof(turbo[0]); i++) {
        if (turbo[i].bits == (is_value ? s->v_bits : s->k_bits)) {
            *out = is_value ? turbo[i].value : turbo[i].key;
            return TQ_OK;
        }
    }
    return TQ_ERR_ARG;
}

tq_status tq_scheme_bytes_per_token(const tq_scheme *s, uint32_t d_k, uint32_t d_v, size_t *bytes)
{
    tq_format key, value;
    tq_codec k, v;

    if (!bytes || tq_scheme_format_of(s, 0, &key) != TQ_OK ||
        tq_scheme_format_of(s, 1, &value) != TQ_OK)
        return TQ_ERR_ARG;
    if (tq_codec_init(&k, key, d_k, 0, TQ_ISA_SCALAR) != TQ_OK ||
        tq_codec_init(&v, value, d_v, 0, TQ_ISA_SCALAR) != TQ_OK)
        return TQ_ERR_DIM;
    *bytes = k.block_bytes + v.block_bytes;
    return TQ_OK;
}
