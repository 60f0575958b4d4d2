/* SPDX-License-Identifier: MIT */
/* encoded_hash.c — one line for each format: a hash of the bytes that the library makes of fixed
 * rows. The lines are the same for every compiler, option and CPU; encoded_hash.txt has them.
 * A sum that is rounded otherwise rarely changes a byte: formats that encode fast get many rows. */
#include <inttypes.h>
#include <stdio.h>
#include <turboquant.h>

enum { N_ROWS = 32, MAX_DIM = 128, MANY = 64 };

/* Sums of three uniform numbers, exact in f32; each row of another size. */
static void fill(float *x, uint32_t dim, uint32_t seed)
{
    for (uint32_t r = 0; r < N_ROWS; r++)
        for (uint32_t i = 0; i < dim; i++) {
            int32_t sum = 0;
            for (int k = 0; k < 3; k++) {
                seed = seed * 1664525u + 1013904223u;
                sum += (int32_t)(seed >> 12) - (1 << 19);
            }
            x[r * dim + i] = (float)sum * (float)(r + 1) / 8388608.0f;
        }
}

static uint64_t fnv1a(uint64_t hash, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

int main(void)
{
    static const uint32_t dims[] = {80, MAX_DIM};
    static float x[N_ROWS * MAX_DIM];
    static uint8_t blocks[N_ROWS * MAX_DIM * sizeof(float)];

    for (int format = 0; format <= TQ_FMT_FORK4; format++) {
        uint64_t hash = UINT64_C(0xcbf29ce484222325);
        unsigned n = 0;
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
            tq_codec c;
            if (tq_codec_init(&c, (tq_format)format, dims[i], 0, TQ_ISA_ALL) != TQ_OK)
                continue;
            const uint32_t passes = c.effort == 0 && format > TQ_FMT_BF16 ? MANY : 1;
            for (uint32_t pass = 0; pass < passes; pass++) {
                fill(x, dims[i], pass);
                if (tq_codec_encode(&c, blocks, sizeof blocks, x, dims[i], N_ROWS, NULL) != TQ_OK)
                    return 1;
                hash = fnv1a(hash, blocks, N_ROWS * c.block_bytes);
            }
            n++;
        }
        if (n)
            printf("format %d: %u dimensions %016" PRIx64 "\n", format, n, hash);
    }
    return 0;
}
