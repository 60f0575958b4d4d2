/* SPDX-License-Identifier: MIT */
/* gguf_values.c — values of a checked GGUF by key.
 *
 * The walk (gguf_reader.c) has proved that every value lies inside the file; here only its type
 * and its meaning can be wrong, and then the message names key, offset and what was expected.
 */
#include "engine_priv.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Encoding ----------------------------------------------------------------------------- */

static const char *const type_names[TQE_GGUF_N_TYPES] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

const char *tqe_gguf_type_name(uint32_t type)
{
    return type < TQE_GGUF_N_TYPES ? type_names[type] : "unknown";
}

size_t tqe_gguf_type_bytes(uint32_t type)
{
    static const uint8_t bytes[TQE_GGUF_N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < TQE_GGUF_N_TYPES ? bytes[type] : 0;
}

uint64_t tqe_load_le(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

int tqe_compare_bytes(const char *a, size_t na, const char *b, size_t nb)
{
    const int r = memcmp(a, b, na < nb ? na : nb);
    return r != 0 ? r : (na > nb) - (na < nb);
}

/* ---- Look-ups ---------------------------------------------------------------------------- */

const tqe_gguf_kv *tqe_gguf_find(const tqe_gguf *g, const char *key)
{
    const size_t n = strlen(key);
    size_t lo = 0;
    size_t hi = g->n_kv;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const tqe_gguf_kv *kv = &g->kv[g->by_key[mid]];
        const int r = tqe_compare_bytes(key, n, kv->key, kv->key_bytes);
        if (r == 0) {
            return kv;
        }
        if (r < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

const tqe_gguf_tensor *tqe_gguf_find_tensor(const tqe_gguf *g, const char *name)
{
    size_t lo = 0;
    size_t hi = g->n_tensors;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const tqe_gguf_tensor *t = &g->tensors[g->by_name[mid]];
        const int r = strcmp(name, t->name);
        if (r == 0) {
            return t;
        }
        if (r < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

const char *tqe_gguf_str_at(const tqe_gguf *g, size_t off, size_t *n_bytes, size_t *next)
{
    *n_bytes = (size_t)tqe_load_le(g->data + off, 8);
    *next = off + 8 + *n_bytes;
    return (const char *)g->data + off + 8;
}

uint64_t tqe_gguf_elem_u64(const tqe_gguf *g, const tqe_gguf_kv *kv, uint64_t i, bool *ok)
{
    const size_t n = tqe_gguf_type_bytes(kv->elem_type);
    const uint64_t v = tqe_load_le(g->data + kv->off + (size_t)i * n, n);
    switch (kv->elem_type) {
    case TQE_GGUF_U8:
    case TQE_GGUF_U16:
    case TQE_GGUF_U32:
    case TQE_GGUF_U64:
        return v;
    case TQE_GGUF_I8:
    case TQE_GGUF_I16:
    case TQE_GGUF_I32:
    case TQE_GGUF_I64:
        if ((v >> (8 * n - 1)) != 0) { /* negative */
            *ok = false;
        }
        return v;
    default:
        *ok = false;
        return 0;
    }
}

float tqe_gguf_elem_f32(const tqe_gguf *g, const tqe_gguf_kv *kv, uint64_t i, bool *ok)
{
    const size_t n = tqe_gguf_type_bytes(kv->elem_type);
    const uint64_t v = tqe_load_le(g->data + kv->off + (size_t)i * n, n);
    if (kv->elem_type == TQE_GGUF_F32) {
        const uint32_t bits = (uint32_t)v;
        float f = 0.0f;
        memcpy(&f, &bits, sizeof(f));
        return f;
    }
    if (kv->elem_type == TQE_GGUF_F64) {
        double d = 0.0;
        memcpy(&d, &v, sizeof(d));
        if (!(fabs(d) <= FLT_MAX)) {
            *ok = false;
            return 0.0f;
        }
        return (float)d;
    }
    *ok = false;
    return 0.0f;
}

/* Find a scalar; missing is an error unless found is given. NULL with *st == TQE_OK: absent. */
static const tqe_gguf_kv *scalar(const tqe_gguf *g, const char *key, bool *found, tqe_status *st,
                                 tqe_error *err)
{
    const tqe_gguf_kv *kv = tqe_gguf_find(g, key);
    *st = TQE_OK;
    if (found != NULL) {
        *found = kv != NULL;
    }
    if (kv == NULL) {
        if (found == NULL) {
            *st = tqe_fail(err, TQE_ERR_FORMAT, "the GGUF has no key '%s'", key);
        }
        return NULL;
    }
    if (kv->type == TQE_GGUF_ARR) {
        *st = tqe_fail(err, TQE_ERR_FORMAT,
                       "key '%s' at offset %zu is an array where one value is expected", key,
                       kv->off);
        return NULL;
    }
    return kv;
}

static tqe_status mistyped(const char *key, const tqe_gguf_kv *kv, const char *want, tqe_error *err)
{
    return tqe_fail(err, TQE_ERR_FORMAT, "key '%s' at offset %zu has type %s, expected %s", key,
                    kv->off, tqe_gguf_type_name(kv->elem_type), want);
}

tqe_status tqe_gguf_get_u64(const tqe_gguf *g, const char *key, uint64_t *out, bool *found,
                            tqe_error *err)
{
    tqe_status st;
    const tqe_gguf_kv *kv = scalar(g, key, found, &st, err);
    if (kv == NULL) {
        return st;
    }
    if (kv->type == TQE_GGUF_STR) {
        return mistyped(key, kv, "a non-negative integer", err);
    }
    bool ok = true;
    const uint64_t v = tqe_gguf_elem_u64(g, kv, 0, &ok);
    if (!ok) {
        return mistyped(key, kv, "a non-negative integer", err);
    }
    *out = v;
    return TQE_OK;
}

tqe_status tqe_gguf_get_f32(const tqe_gguf *g, const char *key, float *out, bool *found,
                            tqe_error *err)
{
    tqe_status st;
    const tqe_gguf_kv *kv = scalar(g, key, found, &st, err);
    if (kv == NULL) {
        return st;
    }
    if (kv->type != TQE_GGUF_F32 && kv->type != TQE_GGUF_F64) {
        return mistyped(key, kv, "a floating-point number", err);
    }
    bool ok = true;
    const float v = tqe_gguf_elem_f32(g, kv, 0, &ok);
    if (!ok || !isfinite(v)) {
        return tqe_fail(err, TQE_ERR_FORMAT, "key '%s' at offset %zu is not a finite number", key,
                        kv->off);
    }
    *out = v;
    return TQE_OK;
}

tqe_status tqe_gguf_get_bool(const tqe_gguf *g, const char *key, bool *out, bool *found,
                             tqe_error *err)
{
    tqe_status st;
    const tqe_gguf_kv *kv = scalar(g, key, found, &st, err);
    if (kv == NULL) {
        return st;
    }
    if (kv->type != TQE_GGUF_BOOL || g->data[kv->off] > 1) {
        return mistyped(key, kv, "a bool of 0 or 1", err);
    }
    *out = g->data[kv->off] != 0;
    return TQE_OK;
}

tqe_status tqe_gguf_get_str(const tqe_gguf *g, const char *key, const char **out, size_t *n_bytes,
                            bool *found, tqe_error *err)
{
    tqe_status st;
    const tqe_gguf_kv *kv = scalar(g, key, found, &st, err);
    if (kv == NULL) {
        return st;
    }
    if (kv->type != TQE_GGUF_STR) {
        return mistyped(key, kv, "a string", err);
    }
    size_t next = 0;
    *out = tqe_gguf_str_at(g, kv->off, n_bytes, &next);
    return TQE_OK;
}
