/* SPDX-License-Identifier: MIT */
/* scheme.c — scheme strings: base { "," option }.
 *
 * Two tables hold the grammar: bases (a name, a form of what follows it, the bits it takes) and
 * options. A string is accepted when the tables produce it and refused otherwise; there is no
 * second spelling except the short forms that docs/format.md lists. The canonical text is made
 * from the parsed scheme alone, so that it is the identity.
 * The text is hostile: it may be of any length and hold any byte but NUL.
 */
#include "codec.h"

#include <stddef.h>
#include <string.h>

/* ---- The grammar ---- */

/* What may follow the name of a base. */
typedef enum base_form {
    FORM_PLAIN, /* nothing */
    FORM_COLON, /* nothing, or ":kKvV" */
    FORM_PAIR,  /* B, or KvV */
    FORM_ONE,   /* B */
    FORM_GROUP  /* B, or BgN */
} base_form;

typedef struct base_rule {
    const char *name;
    tq_family family;
    base_form form;
    uint8_t k_bits; /* of the bare name, where it is allowed */
    uint8_t v_bits;
    const char *k_digits; /* bits allowed for keys and for values, as digits */
    const char *v_digits;
    const char *shape; /* for messages */
} base_rule;

static const base_rule bases[] = {
    {"f32", TQ_FAMILY_F32, FORM_PLAIN, 32, 32, "", "", "f32"},
    {"f16", TQ_FAMILY_F16, FORM_PLAIN, 16, 16, "", "", "f16"},
    {"bf16", TQ_FAMILY_BF16, FORM_PLAIN, 16, 16, "", "", "bf16"},
    {"turbo", TQ_FAMILY_AFFINE_LLOYD, FORM_COLON, 8, 3, "2458", "23458",
     "turbo[:kKvV] with K in 2 4 5 8 and V in 2 3 4 5 8"},
    {"turbo", TQ_FAMILY_NORM, FORM_PAIR, 0, 0, "0234568", "234568",
     "turboB or turboKvV with K in 0 2 3 4 5 6 8 and B, V in 2 3 4 5 6 8"},
    {"tcq", TQ_FAMILY_TRELLIS, FORM_PAIR, 0, 0, "23456", "23456",
     "tcqB or tcqKvV with B, K, V in 2 3 4 5 6"},
    {"affine", TQ_FAMILY_UNIFORM, FORM_GROUP, 0, 0, "48", "48",
     "affine8[gN] or affine4[gN] with N in 32 64 128"},
    {"mse", TQ_FAMILY_MSE, FORM_ONE, 0, 0, "1234", "1234", "mseB with B in 1 2 3 4"},
    {"prod", TQ_FAMILY_PROD, FORM_ONE, 0, 0, "1234", "1234", "prodB with B in 1 2 3 4"},
};

/* The one name of another program that is read: its meaning here is the default of attn. */
static const char compact[] = "turbo4v2-compact";

static const uint8_t groups[] = {64, 32, 128}; /* the first is the default */

typedef enum option_kind { OPTION_CHOICE, OPTION_FLAG, OPTION_NUMBER, OPTION_FILE } option_kind;

/* Families that an option makes sense for. */
#define ANY        0xffffffffu
#define COMPRESSED (ANY & ~(1u << TQ_FAMILY_F32 | 1u << TQ_FAMILY_F16 | 1u << TQ_FAMILY_BF16))
#define ONE_SCALE  (1u << TQ_FAMILY_NORM | 1u << TQ_FAMILY_TRELLIS)

typedef struct option_rule {
    const char *name;
    const char *shape; /* for messages */
    option_kind kind;
    uint32_t families;
    uint32_t max;     /* of a number */
    size_t off_bytes; /* of the field in tq_scheme */
} option_rule;

/* Tokens that a cache can hold, and half its layers. */
#define TOKENS_MAX (1u << 30)
#define SKIP_MAX   512u

static const char *const attn_values[] = {"fused", "dequant"}; /* by tq_attn_mode */

/* In the order of the canonical text. */
static const option_rule options[] = {
    {"mean", "mean", OPTION_FLAG, ONE_SCALE, 1, offsetof(tq_scheme, mean)},
    {"kmean", "kmean=FILE", OPTION_FILE, COMPRESSED, 0, offsetof(tq_scheme, kmean)},
    {"skip", "skip=N", OPTION_NUMBER, COMPRESSED, SKIP_MAX, offsetof(tq_scheme, skip)},
    {"sink", "sink=N", OPTION_NUMBER, COMPRESSED, TOKENS_MAX, offsetof(tq_scheme, sink)},
    {"tail", "tail=N", OPTION_NUMBER, COMPRESSED, TOKENS_MAX, offsetof(tq_scheme, tail)},
    {"start", "start=N", OPTION_NUMBER, COMPRESSED, TOKENS_MAX, offsetof(tq_scheme, start)},
    {"layers", "layers=FILE", OPTION_FILE, ANY, 0, offsetof(tq_scheme, layers)},
    {"attn", "attn=fused, attn=dequant", OPTION_CHOICE, ANY, 1, offsetof(tq_scheme, attn)},
};

#define COUNT(a)  (sizeof(a) / sizeof((a)[0]))
#define N_BASES   COUNT(bases)
#define N_OPTIONS COUNT(options)

static uint32_t number_get(const tq_scheme *s, const option_rule *o)
{
    uint32_t v;
    if (o->kind == OPTION_CHOICE)
        return (uint32_t)s->attn;
    if (o->kind == OPTION_FLAG)
        return s->mean;
    memcpy(&v, (const char *)s + o->off_bytes, sizeof v);
    return v;
}

static void number_set(tq_scheme *s, const option_rule *o, uint32_t v)
{
    if (o->kind == OPTION_CHOICE)
        s->attn = (tq_attn_mode)v;
    else if (o->kind == OPTION_FLAG)
        s->mean = (uint8_t)v;
    else
        memcpy((char *)s + o->off_bytes, &v, sizeof v);
}

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

static void put_number(out_text *o, uint32_t v)
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
    const char *base; /* of the text */
    size_t base_n;
} parser;

/* Can an option have this name? It fits its field and has neither commas nor control characters. */
static int is_file_name(const char *p, size_t n)
{
    if (n >= TQ_SCHEME_FILE_BYTES)
        return 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f || p[i] == ',')
            return 0;
    return 1;
}

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
        put(&p->err, i ? ", " : "");
        put(&p->err, options[i].shape);
    }
}

static tq_status set_bits(parser *p, const base_rule *rule, const char *k, const char *v,
                          tq_scheme *s)
{
    if (!strchr(rule->k_digits, *k)) {
        complain(p, "key bits", k, 1, " are not one of ");
        put_bit_set(&p->err, rule->k_digits);
        return TQ_ERR_SCHEME;
    }
    if (!strchr(rule->v_digits, *v)) {
        complain(p, "value bits", v, 1, " are not one of ");
        put_bit_set(&p->err, rule->v_digits);
        return TQ_ERR_SCHEME;
    }
    s->k_bits = (uint8_t)(*k - '0');
    s->v_bits = (uint8_t)(*v - '0');
    return TQ_OK;
}

/* B: bits of both. No format of values has bits that keys of its family lack. */
static tq_status set_both(parser *p, const base_rule *rule, const char *b, tq_scheme *s)
{
    if (!strchr(rule->v_digits, *b)) {
        complain(p, "bits", b, 1, " are not one of ");
        put_bit_set(&p->err, rule->v_digits);
        return TQ_ERR_SCHEME;
    }
    return set_bits(p, rule, b, b, s);
}

/* N: one of a few numbers, nothing else. */
static int group_set(tq_scheme *s, const char *part, size_t n)
{
    static const char *const text[] = {"64", "32", "128"};
    for (size_t i = 0; i < COUNT(groups); i++) {
        if (part_is(part, n, text[i])) {
            s->group = groups[i];
            return 1;
        }
    }
    return 0;
}

/* What follows the name of a base: rest [n]. part [part_n] is the whole, for messages. */
static tq_status parse_rest(parser *p, const base_rule *rule, const char *rest, size_t n,
                            const char *part, size_t part_n, tq_scheme *s)
{
    if (n == 0)
        return TQ_OK;
    switch (rule->form) {
    case FORM_PLAIN:
        break;
    case FORM_COLON:
        if (n == 5 && rest[1] == 'k' && rest[3] == 'v')
            return set_bits(p, rule, rest + 2, rest + 4, s);
        complain(p, "bits", rest + 1, n - 1, " are not of the form kKvV; valid: ");
        put(&p->err, rule->shape);
        return TQ_ERR_SCHEME;
    case FORM_PAIR:
        if (n == 3 && rest[1] == 'v')
            return set_bits(p, rule, rest, rest + 2, s);
        if (n == 1)
            return set_both(p, rule, rest, s);
        break;
    case FORM_ONE:
        if (n == 1)
            return set_both(p, rule, rest, s);
        break;
    case FORM_GROUP:
        s->group = groups[0];
        if (n == 1 || (rest[1] == 'g' && group_set(s, rest + 2, n - 2)))
            return set_both(p, rule, rest, s);
        break;
    }
    complain(p, "base", part, part_n, " is not of the form ");
    put(&p->err, rule->shape);
    return TQ_ERR_SCHEME;
}

/* Does the rest look like this form, so that errors in it are about this form? */
static int form_starts(base_form form, const char *rest, size_t n)
{
    if (form == FORM_PLAIN)
        return n == 0;
    if (form == FORM_COLON)
        return n == 0 || rest[0] == ':';
    return n > 0 && rest[0] >= '0' && rest[0] <= '9';
}

static tq_status parse_base(parser *p, const char *part, size_t n, tq_scheme *s, uint32_t *seen)
{
    size_t used = n;
    if (part_is(part, n, compact)) {
        used = strcspn(compact, "-");
        *seen |= 1u << (N_OPTIONS - 1); /* it says attn=fused */
    }
    for (size_t i = 0; i < N_BASES; i++) {
        const base_rule *rule = &bases[i];
        const size_t name_n = strlen(rule->name);
        if (used < name_n || memcmp(part, rule->name, name_n) != 0 ||
            !form_starts(rule->form, part + name_n, used - name_n))
            continue;
        *s = (tq_scheme){.family = rule->family, .k_bits = rule->k_bits, .v_bits = rule->v_bits};
        return parse_rest(p, rule, part + name_n, used - name_n, part, n, s);
    }
    complain(p, "base", part, n, " is unknown; valid: ");
    list_bases(p);
    return TQ_ERR_SCHEME;
}

/* Decimal without sign or leading zeros. Returns 0 for anything else, and beyond max. */
static int parse_number(const char *part, size_t n, uint32_t max, uint32_t *out)
{
    uint64_t v = 0;
    if (n == 0 || n > 10 || (part[0] == '0' && n > 1))
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (part[i] < '0' || part[i] > '9')
            return 0;
        v = v * 10 + (uint64_t)(part[i] - '0');
    }
    *out = (uint32_t)v;
    return v <= max;
}

static int parse_file(const char *part, size_t n, char dst[TQ_SCHEME_FILE_BYTES])
{
    if (n == 0 || !is_file_name(part, n))
        return 0;
    memcpy(dst, part, n);
    dst[n] = '\0';
    return 1;
}

static int parse_value(const option_rule *o, const char *value, size_t n, tq_scheme *s)
{
    uint32_t v = 0;
    switch (o->kind) {
    case OPTION_FLAG:
        return 0; /* takes none */
    case OPTION_CHOICE:
        for (; v < COUNT(attn_values); v++)
            if (part_is(value, n, attn_values[v]))
                break;
        if (v == COUNT(attn_values))
            return 0;
        break;
    case OPTION_NUMBER:
        if (!parse_number(value, n, o->max, &v))
            return 0;
        break;
    case OPTION_FILE:
        return parse_file(value, n, (char *)s + o->off_bytes);
    }
    number_set(s, o, v);
    return 1;
}

static tq_status parse_option(parser *p, const char *part, size_t n, tq_scheme *s, uint32_t *seen)
{
    const char *equals = memchr(part, '=', n);
    size_t name_n = equals ? (size_t)(equals - part) : n;
    const option_rule *o = NULL;

    for (size_t i = 0; i < N_OPTIONS && !o; i++)
        if (part_is(part, name_n, options[i].name))
            o = &options[i];
    if (!o || (equals == NULL) != (o->kind == OPTION_FLAG)) {
        complain(p, "option", part, n, " is unknown; valid: ");
        list_options(p);
        return TQ_ERR_SCHEME;
    }
    const uint32_t bit = 1u << (o - options);
    if (*seen & bit) {
        complain(p, "option", part, n, " is given twice");
        return TQ_ERR_SCHEME;
    }
    *seen |= bit;
    if (!(o->families & 1u << s->family)) {
        complain(p, "option", part, n, " does not apply to base ");
        put_quoted(&p->err, p->base, p->base_n);
        return TQ_ERR_SCHEME;
    }
    if (o->kind == OPTION_FLAG) {
        number_set(s, o, 1);
        return TQ_OK;
    }
    if (parse_value(o, equals + 1, n - name_n - 1, s))
        return TQ_OK;
    complain(p, "option", part, n, " has no valid value; valid: ");
    put(&p->err, o->shape);
    if (o->kind == OPTION_NUMBER) {
        put(&p->err, " with N in 0..");
        put_number(&p->err, o->max);
    } else if (o->kind == OPTION_FILE) {
        put(&p->err, " with a name of 1 to ");
        put_number(&p->err, TQ_SCHEME_FILE_BYTES - 1);
        put(&p->err, " bytes without control characters");
    }
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
    p.base = text;
    p.base_n = n;
    tq_status status = parse_base(&p, text, n, &s, &seen);
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
    return bits < 10 && strchr(digits, (int)('0' + bits)) != NULL;
}

static int is_group(unsigned n)
{
    return n == 32 || n == 64 || n == 128;
}

/* The rule that can produce a base; NULL when no text gives it. */
static const base_rule *base_of(const tq_scheme *s)
{
    for (size_t i = 0; i < N_BASES; i++) {
        const base_rule *rule = &bases[i];
        if (rule->family != s->family)
            continue;
        int ok = rule->form == FORM_PLAIN
                     ? s->k_bits == rule->k_bits && s->v_bits == rule->v_bits
                     : digit_in(rule->k_digits, s->k_bits) && digit_in(rule->v_digits, s->v_bits);
        if (rule->form == FORM_ONE || rule->form == FORM_GROUP)
            ok = ok && s->k_bits == s->v_bits;
        ok = ok && (rule->form == FORM_GROUP ? is_group(s->group) : s->group == 0);
        return ok ? rule : NULL;
    }
    return NULL;
}

/* The same, with every option in its range. */
static const base_rule *rule_of(const tq_scheme *s)
{
    const base_rule *rule = s ? base_of(s) : NULL;

    for (size_t i = 0; rule && i < N_OPTIONS; i++) {
        const option_rule *o = &options[i];
        int is_set;
        if (o->kind == OPTION_FILE) {
            const char *file = (const char *)s + o->off_bytes;
            const char *end = memchr(file, '\0', TQ_SCHEME_FILE_BYTES);
            if (!end || !is_file_name(file, (size_t)(end - file)))
                return NULL;
            is_set = file[0] != '\0';
        } else {
            if (number_get(s, o) > o->max)
                return NULL;
            is_set = number_get(s, o) != 0;
        }
        if (is_set && !(o->families & 1u << s->family))
            return NULL;
    }
    return rule;
}

static void put_base(out_text *o, const base_rule *rule, const tq_scheme *s)
{
    put(o, rule->name);
    if (rule->form == FORM_PLAIN)
        return;
    if (rule->form == FORM_COLON)
        put(o, ":k");
    put_number(o, s->k_bits);
    if (rule->form == FORM_COLON || s->k_bits != s->v_bits) {
        put(o, "v");
        put_number(o, s->v_bits);
    }
    if (rule->form == FORM_GROUP && s->group != groups[0]) {
        put(o, "g");
        put_number(o, s->group);
    }
}

tq_status tq_scheme_format(const tq_scheme *s, char *dst, size_t dst_bytes)
{
    const base_rule *rule = rule_of(s);
    out_text o = {dst, dst_bytes, 0};

    if (!rule || !dst)
        return TQ_ERR_ARG;
    put_base(&o, rule, s);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const option_rule *option = &options[i];
        const char *file = (const char *)s + option->off_bytes;
        if (option->kind == OPTION_FILE ? !file[0] : !number_get(s, option))
            continue;
        put(&o, ",");
        put(&o, option->name);
        put(&o, option->kind == OPTION_FLAG ? "" : "=");
        if (option->kind == OPTION_FILE)
            put(&o, file);
        else if (option->kind == OPTION_CHOICE)
            put(&o, attn_values[number_get(s, option)]);
        else if (option->kind == OPTION_NUMBER)
            put_number(&o, number_get(s, option));
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
    /* The others are numbered by their bits. */
    static const int first[] = {[TQ_FAMILY_NORM] = TQ_FMT_NORM2 - 2,
                                [TQ_FAMILY_TRELLIS] = TQ_FMT_TCQ2 - 2,
                                [TQ_FAMILY_UNIFORM] = TQ_FMT_UNIFORM4 - 4,
                                [TQ_FAMILY_MSE] = TQ_FMT_MSE1 - 1,
                                [TQ_FAMILY_PROD] = TQ_FMT_PROD1 - 1};

    if (!out || !rule_of(s))
        return TQ_ERR_ARG;
    const uint32_t bits = is_value ? s->v_bits : s->k_bits;
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
    case TQ_FAMILY_NORM:
    case TQ_FAMILY_TRELLIS:
    case TQ_FAMILY_UNIFORM:
    case TQ_FAMILY_MSE:
    case TQ_FAMILY_PROD:
        *out = bits == 0 ? TQ_FMT_F16 : (tq_format)(first[s->family] + (int)bits);
        return TQ_OK;
    }
    for (size_t i = 0; i < COUNT(turbo); i++) {
        if (turbo[i].bits == bits) {
            *out = is_value ? turbo[i].value : turbo[i].key;
            return TQ_OK;
        }
    }
    return TQ_ERR_ARG;
}

tq_status tq_scheme_codec(const tq_scheme *s, int is_value, uint32_t dim, uint32_t isa_mask,
                          tq_codec *out)
{
    tq_format format;
    uint32_t flags = 0;
    tq_status st = tq_scheme_format_of(s, is_value, &format);

    if (st != TQ_OK || !out)
        return TQ_ERR_ARG;
    if (s->mean && format != TQ_FMT_F16)
        flags |= TQ_CODEC_MEAN;
    if (s->group == 32)
        flags |= TQ_CODEC_GROUP_32;
    if (s->group == 128)
        flags |= TQ_CODEC_GROUP_128;
    return tq_codec_init(out, format, dim, flags, isa_mask);
}

tq_status tq_scheme_bytes_per_token(const tq_scheme *s, uint32_t d_k, uint32_t d_v, size_t *bytes)
{
    tq_codec k, v;

    if (!bytes)
        return TQ_ERR_ARG;
    tq_status st = tq_scheme_codec(s, 0, d_k, TQ_ISA_SCALAR, &k);
    v.block_bytes = 0;
    if (st == TQ_OK && d_v != 0)
        st = tq_scheme_codec(s, 1, d_v, TQ_ISA_SCALAR, &v);
    if (st == TQ_OK)
        *bytes = k.block_bytes + v.block_bytes;
    return st;
}
