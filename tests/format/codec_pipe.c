/* SPDX-License-Identifier: MIT */
/* codec_pipe.c — lets tools/tq_ref.py compare the library with the executable specification.
 *
 * stdin:  requests of 6 little-endian u32 {format, dim, flags, isa mask, op, n} and a payload.
 *         op 0: encode n rows of dim f32 in one call; answers n blocks.
 *         op 1: the same, one row at a time.
 *         op 2: decode n blocks; answers n rows of dim f32.
 * stdout: i32 status, u32 bytes, then that many bytes (none unless the status is 0).
 * Ends with stdin. The host must be little-endian.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "turboquant.h"

static int answer(tq_status st, const void *data, size_t bytes)
{
    int32_t head[2] = {(int32_t)st, st == TQ_OK ? (int32_t)bytes : 0};

    if (fwrite(head, sizeof head, 1, stdout) != 1)
        return 0;
    if (st == TQ_OK && bytes && fwrite(data, bytes, 1, stdout) != 1)
        return 0;
    return fflush(stdout) == 0;
}

static tq_status work(const tq_codec *c, uint32_t op, void *out, size_t out_bytes, const void *in,
                      size_t in_bytes, size_t n)
{
    if (op == 2)
        return tq_codec_decode(c, out, c->dim, in, in_bytes, n);
    if (op == 0)
        return tq_codec_encode(c, out, out_bytes, in, c->dim, n, NULL);
    for (size_t i = 0; i < n; i++) {
        tq_status st = tq_codec_encode(c, (uint8_t *)out + i * c->block_bytes, c->block_bytes,
                                       (const float *)in + i * c->dim, c->dim, 1, NULL);
        if (st != TQ_OK)
            return st;
    }
    return TQ_OK;
}

int main(void)
{
    uint32_t q[6];

    while (fread(q, sizeof q, 1, stdin) == 1) {
        tq_codec c;
        size_t n = q[5];
        tq_status st = tq_codec_init(&c, (tq_format)q[0], q[1], q[2], q[3]);

        if (q[4] > 2 || n > 1u << 20 || q[1] > 4096)
            return 2;
        if (st != TQ_OK) {
            /* Without a codec the payload's size is unknown: such requests carry none. */
            if (!answer(st, NULL, 0))
                return 1;
            continue;
        }
        size_t row_bytes = (size_t)c.dim * sizeof(float);
        size_t in_bytes = n * (q[4] == 2 ? c.block_bytes : row_bytes);
        size_t out_bytes = n * (q[4] == 2 ? row_bytes : c.block_bytes);
        void *in = malloc(in_bytes + 1), *out = malloc(out_bytes + 1);
        int ok = in && out && (in_bytes == 0 || fread(in, in_bytes, 1, stdin) == 1);

        if (ok)
            ok = answer(work(&c, q[4], out, out_bytes, in, in_bytes, n), out, out_bytes);
        free(in);
        free(out);
        if (!ok)
            return 1;
    }
    return 0;
}
