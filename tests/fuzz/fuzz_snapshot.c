/* SPDX-License-Identifier: MIT */
/* fuzz_snapshot.c — any bytes as a snapshot or a page of a prefix store.
 *
 * A checksum would stop a fuzzer at the first field, so each input is tried twice: as it is, and
 * with length, magics and checksums made right. Properties: no crash, no leak; an error says
 * something; what is accepted is what the encoder writes, byte for byte; every part lies inside the
 * file, and a flipped bit in it is noticed. Corpus: tests/engine/gen_snapshots.c writes it.
 */
#include "engine_priv.h"
#include "snapshot_format.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void put_le(uint8_t *p, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

/* Everything that only says that the rest arrived whole. False: there is no room for it. */
static bool make_right(uint8_t *p, size_t size)
{
    static const uint8_t magic[8] = {0x89, 'T', 'Q', 'S', 'N', 'A', 'P', '\n'};
    static const uint8_t end_magic[8] = {'T', 'Q', 'S', 'N', 'E', 'N', 'D', '\n'};
    if (size < TQE_SNAP_FIXED_BYTES + TQE_SNAP_TRAILER_BYTES) {
        return false;
    }
    const uint64_t header = tqe_load_le(p + 16, 8);
    uint8_t *trailer = p + size - TQE_SNAP_TRAILER_BYTES;
    if (header < TQE_SNAP_FIXED_BYTES || header > size - TQE_SNAP_TRAILER_BYTES) {
        return false;
    }
    memcpy(p, magic, 8);
    put_le(p + 8, TQE_SNAP_VERSION, 4);
    put_le(p + 12, TQ_FORMAT_VERSION, 4);
    put_le(p + 24, size, 8);
    memset(trailer, 0, TQE_SNAP_TRAILER_BYTES);
    memcpy(trailer, end_magic, 8);
    put_le(trailer + 8, size, 8);
    tqe_hash128(trailer + 16, p, (size_t)header);
    return true;
}

/* Accepted: encode gives the same bytes back, and with the hashes of the parts made right the whole
 * file is good, until a bit of a part flips. */
static void check_accepted(const tqe_snap *h, uint8_t *p, size_t size)
{
    tqe_error err = {TQE_OK, ""};
    uint8_t trailer[TQE_SNAP_TRAILER_BYTES];
    uint8_t *header = malloc((size_t)h->header_bytes);
    must(header != NULL && h->file_bytes == size);
    tqe_snap_encode(h, header, trailer);
    must(memcmp(header, p, (size_t)h->header_bytes) == 0);
    must(memcmp(trailer, p + size - sizeof(trailer), sizeof(trailer)) == 0);
    for (uint32_t i = 0; i < h->n_parts; i++) {
        tqe_snap_part *t = &h->parts[i];
        must(t->off >= h->header_bytes && t->off + t->bytes <= size - sizeof(trailer));
        tqe_hash128(t->hash, p + t->off, (size_t)t->bytes);
    }
    tqe_snap_encode(h, p, p + size - sizeof(trailer));
    tqe_snap again;
    must(tqe_snap_parse(&again, p, size, &err) == TQE_OK);
    tqe_snap_free(&again);
    if (h->n_parts > 0) {
        const tqe_snap_part *t = &h->parts[p[0] % h->n_parts];
        p[t->off + t->bytes - 1] ^= 0x20;
        must(tqe_snap_parse(&again, p, size, &err) == TQE_ERR_FORMAT);
    }
    free(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tqe_snap h;
    tqe_error err = {TQE_OK, ""};
    if (tqe_snap_parse(&h, data, size, &err) == TQE_OK) {
        tqe_snap_free(&h);
    } else {
        must(err.code != TQE_OK && err.text[0] != '\0');
    }
    uint8_t *p = malloc(size + 1);
    if (p == NULL) {
        return 0;
    }
    memcpy(p, data, size);
    if (make_right(p, size)) {
        err = (tqe_error){TQE_OK, ""};
        tqe_status st = tqe_snap_decode_fixed(&h, p, size, &err);
        if (st == TQE_OK) {
            st = tqe_snap_decode(&h, p, p + size - TQE_SNAP_TRAILER_BYTES, &err);
        }
        if (st == TQE_OK) {
            check_accepted(&h, p, size);
            tqe_snap_free(&h);
        } else {
            must(err.code == st && err.text[0] != '\0');
        }
    }
    free(p);
    return 0;
}
