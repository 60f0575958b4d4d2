/* SPDX-License-Identifier: MIT */
/* avx2_attn_tile.c — prefill kernels for AVX2: pack a decoded tile, multiply f32 matrices.
 *
 * The micro-kernel holds a block of 6 x 16 results in 12 registers; each step of k costs two
 * loads of b, six broadcasts of a and twelve fused multiply-adds, so the multipliers set the
 * pace. Strips of 16 columns make b one run of memory.
 */
#include "cpu/avx2_attn.h"

#define MR 6

/* c [m][16], m <= MR known at compile time. */
TQ_INLINE void block(const uint32_t m, float *c, size_t ldc, const float *a, size_t lda,
                     const float *b, const float *alpha, uint32_t k)
{
    __m256 sum[MR][2];
    TQ_UNROLL_FOR (uint32_t i = 0; i < m; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    for (uint32_t l = 0; l < k; l++, b += TQ_STRIP) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
        TQ_UNROLL_FOR (uint32_t i = 0; i < m; i++) {
            __m256 x = _mm256_broadcast_ss(a + i * lda + l);
            sum[i][0] = _mm256_fmadd_ps(x, b0, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(x, b1, sum[i][1]);
        }
    }
    TQ_UNROLL_FOR (uint32_t i = 0; i < m; i++) {
        float *dst = c + i * ldc;
        if (alpha) {
            __m256 x = _mm256_broadcast_ss(alpha + i);
            sum[i][0] = _mm256_fmadd_ps(x, _mm256_loadu_ps(dst), sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(x, _mm256_loadu_ps(dst + 8), sum[i][1]);
        }
        _mm256_storeu_ps(dst, sum[i][0]);
        _mm256_storeu_ps(dst + 8, sum[i][1]);
    }
}

void tq_avx2_gemm(float *c, size_t ldc, const float *a, size_t lda, const float *b,
                  const float *alpha, uint32_t m, uint32_t n, uint32_t k)
{
    for (uint32_t strip = 0; strip < n / TQ_STRIP; strip++) {
        const float *bs = b + (size_t)strip * k * TQ_STRIP;
        float *cs = c + (size_t)strip * TQ_STRIP;
        uint32_t i = 0;
        for (; i + MR <= m; i += MR)
            block(MR, cs + i * ldc, ldc, a + i * lda, lda, bs, alpha ? alpha + i : NULL, k);
        const float *al = alpha ? alpha + i : NULL;
        switch (m - i) {
        case 1:
            block(1, cs + i * ldc, ldc, a + i * lda, lda, bs, al, k);
            break;
        case 2:
            block(2, cs + i * ldc, ldc, a + i * lda, lda, bs, al, k);
            break;
        case 3:
            block(3, cs + i * ldc, ldc, a + i * lda, lda, bs, al, k);
            break;
        case 4:
            block(4, cs + i * ldc, ldc, a + i * lda, lda, bs, al, k);
            break;
        case 5:
            block(5, cs + i * ldc, ldc, a + i * lda, lda, bs, al, k);
            break;
        default:
            break;
        }
    }
}

/* dst[j][0..8) = column j of eight rows; dst rows are TQ_STRIP floats apart. */
TQ_INLINE void transpose8(float *dst, const __m256 r[8])
{
    __m256 t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + i * (int)TQ_STRIP, _mm256_permute2f128_ps(u[i], u[i + 4], 0x20));
        _mm256_storeu_ps(dst + (i + 4) * (int)TQ_STRIP,
                         _mm256_permute2f128_ps(u[i], u[i + 4], 0x31));
    }
}

void tq_avx2_pack_keys(float *b, const float *x, size_t x_stride, uint32_t n, uint32_t dim)
{
    for (uint32_t t0 = 0; t0 < TQ_TILE; t0 += 8) {
        float *dst = b + (size_t)(t0 / TQ_STRIP) * dim * TQ_STRIP + t0 % TQ_STRIP;
        for (uint32_t j = 0; j < dim; j += 8, dst += 8 * TQ_STRIP) {
            __m256 row[8];
            for (uint32_t i = 0; i < 8; i++)
                row[i] =
                    t0 + i < n ? _mm256_loadu_ps(x + (t0 + i) * x_stride + j) : _mm256_setzero_ps();
            transpose8(dst, row);
        }
    }
}

void tq_avx2_pack_values(float *b, const float *x, size_t x_stride, uint32_t n, uint32_t dim)
{
    for (uint32_t j = 0; j < dim; j += TQ_STRIP)
        for (uint32_t t = 0; t < n; t++, b += TQ_STRIP) {
            const float *src = x + t * x_stride + j;
            _mm256_storeu_ps(b, _mm256_loadu_ps(src));
            _mm256_storeu_ps(b + 8, j + 8 < dim ? _mm256_loadu_ps(src + 8) : _mm256_setzero_ps());
        }
}
