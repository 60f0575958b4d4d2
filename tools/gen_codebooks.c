/* SPDX-License-Identifier: MIT */
/* gen_codebooks.c — finds the integer Lloyd-Max codebooks of the norm-codebook family.
 *
 *   cc -std=c11 -O2 -ffp-contract=off tools/gen_codebooks.c -lm
 *   ./a.out > src/codebook_tables.inc
 *   ./a.out --caps     the price of each bound on the levels, as a table
 *
 * A codebook of b bits is 2^(b-1) positive integers L_1 < L_2 < ..., their negatives, and a unit u:
 * the reconstruction levels of the unit normal are u * L. The tool minimises the mean squared error
 * E (X - nearest level)^2 over the integers up to a bound and over u.
 *
 * The one hard idea: for a fixed u the error is a sum over neighbouring levels (the integral
 * between two levels depends on those two alone), so the best integers are a shortest path and
 * dynamic programming finds the global optimum. Only u remains: it is scanned finely, and the
 * scan ends with a golden-section search around the best point, so the result is converged.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_LEVEL 127

static double pdf(double x)
{
    return exp(-0.5 * x * x) * 0.39894228040143267794;
}

/* Integral of (x - c)^2 phi(x) from a to infinity. */
static double tail(double a, double c)
{
    double q = 0.5 * erfc(a * 0.70710678118654752440);
    return (1.0 + c * c) * q + (a - 2.0 * c) * pdf(a);
}

static double between(double a, double b, double c)
{
    return tail(a, c) - tail(b, c);
}

/* Error (one half of the axis) of levels l[0..n) in units of u. */
static double half_error(const int *l, int n, double u)
{
    double e = 0;
    for (int i = 0; i < n; i++) {
        double lo = i ? 0.5 * u * (l[i - 1] + l[i]) : 0;
        e += i + 1 < n ? between(lo, 0.5 * u * (l[i] + l[i + 1]), u * l[i]) : tail(lo, u * l[i]);
    }
    return e;
}

/* Tail probability and density at the half-integer multiples of the unit, so that an integral
 * between two of them costs a few multiplications. */
static double grid_q[2 * MAX_LEVEL + 1], grid_p[2 * MAX_LEVEL + 1];

/* tail(u * k / 2, u * c) from the grid. */
static double grid_tail(int k, int c, double u)
{
    double m = u * c;
    return (1.0 + m * m) * grid_q[k] + (0.5 * u * k - 2.0 * m) * grid_p[k];
}

/* The best n integers of 1..cap for this u. Returns 2 * half error. */
static double best_levels(int *l, int n, int cap, double u)
{
    static double step[MAX_LEVEL + 1][MAX_LEVEL + 1];
    static double cost[65][MAX_LEVEL + 1];
    static int from[65][MAX_LEVEL + 1];

    for (int k = 0; k <= 2 * cap; k++) {
        grid_q[k] = 0.5 * erfc(0.5 * u * k * 0.70710678118654752440);
        grid_p[k] = pdf(0.5 * u * k);
    }
    for (int i = 1; i <= cap; i++) {
        for (int j = i + 1; j <= cap; j++)
            step[i][j] = grid_tail(2 * i, i, u) - grid_tail(i + j, i, u) + grid_tail(i + j, j, u) -
                         grid_tail(2 * j, j, u);
        cost[1][i] = grid_tail(0, i, u) - grid_tail(2 * i, i, u);
    }
    for (int k = 2; k <= n; k++) {
        for (int j = k; j <= cap; j++) {
            cost[k][j] = INFINITY;
            for (int i = k - 1; i < j; i++) {
                double c = cost[k - 1][i] + step[i][j];
                if (c < cost[k][j]) {
                    cost[k][j] = c;
                    from[k][j] = i;
                }
            }
        }
    }
    int end = n;
    double e = INFINITY;
    for (int j = n; j <= cap; j++) {
        double c = 2 * (cost[n][j] + grid_tail(2 * j, j, u));
        if (c < e) {
            e = c;
            end = j;
        }
    }
    for (int k = n; k >= 1; k--) {
        l[k - 1] = end;
        end = from[k][end];
    }
    return e;
}

/* The best unit for fixed levels, by golden section around u. */
static double best_unit(const int *l, int n, double u)
{
    const double r = 0.61803398874989484820;
    double a = u * 0.98, b = u * 1.02;
    for (int i = 0; i < 100; i++) {
        double c = b - r * (b - a), d = a + r * (b - a);
        if (half_error(l, n, c) < half_error(l, n, d))
            b = d;
        else
            a = c;
    }
    return 0.5 * (a + b);
}

static double search(int *levels, double *unit, int bits, int cap)
{
    int n = 1 << (bits - 1);
    int l[64];
    double best = INFINITY;

    /* Around the outermost level of the unrestricted optimum; a coarser unit leaves the outermost
     * integer below the bound. */
    static const double outer[] = {0, 0, 1.51, 2.15, 2.73, 3.26, 3.77};
    for (double u = 0.85 * outer[bits] / cap; u < 3.0 * outer[bits] / cap; u *= 1.0003) {
        double e = best_levels(l, n, cap, u);
        if (e < best - 1e-13) {
            double v = best_unit(l, n, u);
            double f = 2 * half_error(l, n, v);
            if (f < best) {
                best = f;
                *unit = v;
                memcpy(levels, l, sizeof l);
            }
        }
    }
    return best;
}

/* Unrestricted Lloyd-Max, for comparison: the fixed point of the two conditions. */
static double lloyd_max(int bits)
{
    int n = 1 << (bits - 1);
    double c[64], e = 0;

    for (int i = 0; i < n; i++)
        c[i] = (i + 0.5) * 4.0 / n;
    for (int it = 0; it < 200000; it++) {
        double move = 0;
        for (int i = 0; i < n; i++) {
            double a = i ? 0.5 * (c[i - 1] + c[i]) : 0;
            double b = i + 1 < n ? 0.5 * (c[i] + c[i + 1]) : INFINITY;
            double pb = i + 1 < n ? pdf(b) : 0;
            double qb = i + 1 < n ? 0.5 * erfc(b * 0.70710678118654752440) : 0;
            double m = (pdf(a) - pb) / (0.5 * erfc(a * 0.70710678118654752440) - qb);
            move = fmax(move, fabs(m - c[i]));
            c[i] = m;
        }
        if (move < 1e-14)
            break;
    }
    for (int i = 0; i < n; i++) {
        double a = i ? 0.5 * (c[i - 1] + c[i]) : 0;
        e += i + 1 < n ? between(a, 0.5 * (c[i] + c[i + 1]), c[i]) : tail(a, c[i]);
    }
    return 2 * e;
}

int main(int argc, char **argv)
{
    /* Kernels multiply bytes (level + offset >= 0) with int8 queries and add pairs in int16. Levels
     * up to 64 keep one pair inside (2 * 128 * 127), 31 two, 15 four. Up to 4 bits that costs less
     * than 0.25 % of error; 5 and 6 bits need the whole range of int8. */
    static const int caps[] = {0, 0, 15, 31, 64, 127, 127};
    int l[64];
    double u = 0;

    if (argc > 1 && strcmp(argv[1], "--caps") == 0) {
        static const int try[] = {15, 24, 31, 40, 48, 56, 64, 80, 96, 112, 127};
        for (int bits = 2; bits <= 6; bits++) {
            double lm = lloyd_max(bits);
            printf("%d bits  Lloyd-Max %.9f\n", bits, lm);
            for (size_t i = 0; i < sizeof try / sizeof *try; i++) {
                if (try[i] < 1 << (bits - 1))
                    continue;
                double e = search(l, &u, bits, try[i]);
                printf("  cap %3d  %.9f  %+.3f %%  unit %.7f ", try[i], e, 100 * (e / lm - 1), u);
                for (int k = 0; k < 1 << (bits - 1); k++)
                    printf(" %d", l[k]);
                printf("\n");
            }
            fflush(stdout);
        }
        return 0;
    }
    printf("/* SPDX-License-Identifier: MIT */\n"
           "/* Generated by tools/gen_codebooks.c and frozen: part of the stored format. */\n");
    for (int bits = 2; bits <= 6; bits++) {
        double e = search(l, &u, bits, caps[bits]);
        int n = 1 << (bits - 1);
        printf("\n/* %d bits: mean squared error %.9f of the unit normal (Lloyd-Max %.9f) */\n",
               bits, e, lloyd_max(bits));
        printf("#define TQ_CODEBOOK_UNIT_%d %af /* %.9g */\n", bits, (double)(float)u,
               (double)(float)u);
        printf("static const int8_t codebook_levels_%d[%d] = {", bits, n);
        for (int i = 0; i < n; i++)
            printf("%s%d", i == 0 ? "\n    " : i % 16 ? ", " : ",\n    ", l[i]);
        printf("};\n");
    }
    return 0;
}
