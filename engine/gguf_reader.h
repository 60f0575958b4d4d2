/* SPDX-License-Identifier: MIT */
/* gguf_reader.h — a GGUF file as checked tables over its mapping.
 *
 * After a successful open every offset, count, length, type and shape in the tables is inside the
 * file and consistent, so readers need no further bounds checks. Values are read on demand from
 * the mapping; strings there are not NUL-terminated.
 * Source: the GGUF specification (docs/gguf.md of ggml).
 */
#ifndef TQE_GGUF_READER_H
#define TQE_GGUF_READER_H

#include "engine.h"

/* Value types; the numbers are the file's. */
enum {
    TQE_GGUF_U8 = 0,
    TQE_GGUF_I8,
    TQE_GGUF_U16,
    TQE_GGUF_I16,
    TQE_GGUF_U32,
    TQE_GGUF_I32,
    TQE_GGUF_F32,
    TQE_GGUF_BOOL,
    TQE_GGUF_STR,
    TQE_GGUF_ARR,
    TQE_GGUF_U64,
    TQE_GGUF_I64,
    TQE_GGUF_F64,
    TQE_GGUF_N_TYPES
};

typedef struct tqe_gguf_kv {
    const char *key; /* [key_bytes], in the mapping */
    size_t key_bytes;
    uint32_t type;      /* TQE_GGUF_* */
    uint32_t elem_type; /* of an array, else == type */
    uint64_t n;         /* elements; 1 for a scalar */
    size_t off;         /* of the first element */
} tqe_gguf_kv;

#define TQE_TENSOR_NAME_BYTES 64

typedef struct tqe_gguf_tensor {
    char name[TQE_TENSOR_NAME_BYTES]; /* printable, NUL-terminated */
    uint32_t type;                    /* enum ggml_type, one that ggml knows */
    uint32_t n_dims;
    int64_t ne[4];
    size_t off; /* absolute */
    size_t n_bytes;
} tqe_gguf_tensor;

typedef struct tqe_gguf {
    const uint8_t *data; /* [size] */
    size_t size;
    bool mapped; /* data came from mmap */
    tqe_gguf_kv *kv;
    size_t n_kv;
    tqe_gguf_tensor *tensors;
    size_t n_tensors;
    size_t *by_name; /* tensors sorted by name */
    size_t *by_key;
} tqe_gguf;

/* Map and check a file. On error g is zeroed. */
tqe_status tqe_gguf_open(tqe_gguf *g, const char *path, tqe_error *err);
/* The same over memory that stays the caller's. */
tqe_status tqe_gguf_parse(tqe_gguf *g, const void *data, size_t size, tqe_error *err);
void tqe_gguf_close(tqe_gguf *g);

const tqe_gguf_kv *tqe_gguf_find(const tqe_gguf *g, const char *key);
const tqe_gguf_tensor *tqe_gguf_find_tensor(const tqe_gguf *g, const char *name);

/* A string at a position that holds one; *next: just after it. */
const char *tqe_gguf_str_at(const tqe_gguf *g, size_t off, size_t *n_bytes, size_t *next);

/* Typed reads. found: set to whether the key exists (NULL: it must). A missing or mistyped key is
 * TQE_ERR_FORMAT that names it and its offset. Integers of any width are accepted. */
tqe_status tqe_gguf_get_u64(const tqe_gguf *g, const char *key, uint64_t *out, bool *found,
                            tqe_error *err);
tqe_status tqe_gguf_get_f32(const tqe_gguf *g, const char *key, float *out, bool *found,
                            tqe_error *err);
tqe_status tqe_gguf_get_bool(const tqe_gguf *g, const char *key, bool *out, bool *found,
                             tqe_error *err);
tqe_status tqe_gguf_get_str(const tqe_gguf *g, const char *key, const char **out, size_t *n_bytes,
                            bool *found, tqe_error *err);
/* Element i of an integer or float array (or the scalar itself at 0), i < kv->n. */
uint64_t tqe_gguf_elem_u64(const tqe_gguf *g, const tqe_gguf_kv *kv, uint64_t i, bool *ok);
float tqe_gguf_elem_f32(const tqe_gguf *g, const tqe_gguf_kv *kv, uint64_t i, bool *ok);

const char *tqe_gguf_type_name(uint32_t type);
/* Bytes of a scalar type; 0 for strings and arrays. */
size_t tqe_gguf_type_bytes(uint32_t type);
/* n <= 8 bytes, little-endian whatever the host is: GGUF files are. */
uint64_t tqe_load_le(const uint8_t *p, size_t n);
/* As memcmp, a prefix before what it is a prefix of. */
int tqe_compare_bytes(const char *a, size_t na, const char *b, size_t nb);

#endif
