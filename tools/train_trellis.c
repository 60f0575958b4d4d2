/* SPDX-License-Identifier: MIT */
/* train_trellis.c — trains the level tables of the trellis family.
 *
 *   cc -std=c11 -O2 -ffp-contract=off tools/train_trellis.c -lm && ./a.out > src/trellis_tables.inc
 *   (takes half a minute; gcc and clang print the same bytes, those that are committed)
 *   ./a.out --caps [bits [bound]]     the price of a bound on the levels, on held-out data
 *
 * A table of b bits has 2^(b+1) levels u * T[l], T integer, ascending, T[N-1-l] = -T[l]
 * (complementing every path bit complements every index: the code is symmetric). Level l is in
 * subset l mod 4. The path bits x of a row choose the subset of coordinate n: z0 = x[n-2],
 * z1 = x[n] ^ x[n-1] ^ x[n-3], subset 2*z1 + z0 (Ungerboeck's 8-state code, parity checks h0 = 13,
 * h1 = 04 octal; x before the row is 0).
 *
 * Training: Lloyd iterations (Viterbi search of every row, then centroids) on rows of 128 normal
 * numbers scaled to unit power, as the codec sees them. Then integers: for each unit the centroids
 * are rounded, refined by integer Lloyd iterations, and the best units are polished by changing one
 * level at a time while the true error of the search falls. Everything is seeded: the output is
 * reproducible.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW   128
#define MAX_N 128

static uint64_t rng_state;

static uint64_t rng_next(void) /* splitmix64 */
{
    uint64_t z = (rng_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double rng_uniform(void)
{
    return ((double)(rng_next() >> 11) + 0.5) * 0x1p-53;
}

/* rows [n][ROW] of normal numbers, each row scaled to unit power. */
static void make_rows(float *rows, int n, uint64_t seed)
{
    rng_state = seed;
    for (int r = 0; r < n; r++) {
        double x[ROW], s = 0;
        for (int i = 0; i < ROW; i += 2) {
            double a = sqrt(-2 * log(rng_uniform())), t = 6.283185307179586 * rng_uniform();
            x[i] = a * cos(t);
            x[i + 1] = a * sin(t);
            s += x[i] * x[i] + x[i + 1] * x[i + 1];
        }
        s = sqrt(ROW / s);
        for (int i = 0; i < ROW; i++)
            rows[(size_t)r * ROW + (size_t)i] = (float)(x[i] * s);
    }
}

/* For each subset the level nearest to x. Of the levels below x, which one search finds for all
 * subsets, only the last of a subset and the one after it can be it. */
enum {
    BUCKETS = 3072,
    PER_UNIT = 128,
    REACH = 12
}; /* a row of ROW numbers stays within sqrt(ROW) */

typedef struct nearest {
    float level[MAX_N + 1];         /* then infinity */
    uint8_t below[BUCKETS];         /* levels below all that is in the bucket, or fewer */
    float border[4][MAX_N / 4 + 1]; /* [k][i]: above it the level after the first i of subset k */
} nearest;

static void nearest_init(nearest *s, const float *level, int n)
{
    int m = n / 4, q = 0;

    memcpy(s->level, level, (size_t)n * sizeof *level);
    s->level[n] = INFINITY;
    for (int b = 0; b < BUCKETS; b++) { /* one bucket of slack: x + REACH is rounded */
        while (q < n && level[q] < (float)(b - 1) / PER_UNIT - REACH)
            q++;
        s->below[b] = (uint8_t)q;
    }
    for (int k = 0; k < 4; k++) {
        s->border[k][0] = -INFINITY;
        for (int j = 0; j + 1 < m; j++)
            s->border[k][j + 1] = 0.5f * (level[4 * j + k] + level[4 * j + 4 + k]);
        s->border[k][m] = INFINITY;
    }
}

enum { LANES = 8 }; /* rows that are searched side by side, for the compiler to vectorise */

/* The squared distance of x to subset k, and which level it is: [k * LANES]. */
static void nearest_find(const nearest *s, float x, float *distance, uint8_t *pick)
{
    int q = s->below[(int)((x + REACH) * PER_UNIT)];

    q += s->level[q] < x; /* no branch for what is often so */
    while (s->level[q] < x)
        q++;
    for (int k = 0; k < 4; k++) {
        int i = (q + 3 - k) >> 2; /* levels of the subset below x */
        int l = 4 * (i - 1 + (x > s->border[k][i])) + k;
        float d = x - s->level[l];
        pick[k * LANES] = (uint8_t)l;
        distance[k * LANES] = d * d;
    }
}

/* The best paths of LANES rows; index[r][i] = table entry of coordinate i, error[r] the squared
 * error. */
static void viterbi(uint8_t index[LANES][ROW], double *error, const float *rows, const nearest *s)
{
    /* State bits: x[n-1] | x[n-2] << 1 | x[n-3] << 2. */
    float cost[8][LANES], next[8][LANES];
    static uint8_t back[ROW][8][LANES], pick[ROW][4][LANES];

    for (int t = 0; t < 8; t++)
        for (int r = 0; r < LANES; r++)
            cost[t][r] = t ? 1e30f : 0;
    for (int i = 0; i < ROW; i++) {
        float c[4][LANES];
        for (int r = 0; r < LANES; r++)
            nearest_find(s, rows[r * ROW + i], &c[0][r], &pick[i][0][r]);
        for (int t = 0; t < 8; t++) {
            /* t = x | x1 << 1 | x2 << 2; the state before was x1 | x2 << 1 | x3 << 2. */
            int b = t & 1, x1 = t >> 1 & 1, x2 = t >> 2;
            int s0 = x1 | x2 << 1, s1 = s0 | 4;
            const float *c0 = c[x2 + 2 * (b ^ x1)], *c1 = c[x2 + 2 * (b ^ x1 ^ 1)];
            for (int r = 0; r < LANES; r++) {
                float a0 = cost[s0][r] + c0[r], a1 = cost[s1][r] + c1[r];
                back[i][t][r] = a1 < a0;
                next[t][r] = a1 < a0 ? a1 : a0;
            }
        }
        memcpy(cost, next, sizeof cost);
    }
    for (int r = 0; r < LANES; r++) {
        int t = 0;
        for (int j = 1; j < 8; j++)
            if (cost[j][r] < cost[t][r])
                t = j;
        error[r] = cost[t][r];
        for (int i = ROW - 1; i >= 0; i--) {
            int b = t & 1, x1 = t >> 1 & 1, x2 = t >> 2, x3 = back[i][t][r];
            index[r][i] = pick[i][x2 + 2 * (b ^ x1 ^ x3)][r];
            t = x1 | x2 << 1 | x3 << 2;
        }
    }
}

typedef struct stats {
    double count[MAX_N], sum[MAX_N]; /* per level, both signs folded together */
    double mse;                      /* per coordinate */
    double mse_ls;                   /* the same with the least-squares scale per row */
} stats;

/* n_rows: a multiple of LANES. */
static void measure(stats *st, const float *rows, int n_rows, const float *level, int n)
{
    uint8_t index[LANES][ROW];
    double e = 0, e_ls = 0, error[LANES];
    nearest s;

    nearest_init(&s, level, n);
    memset(st, 0, sizeof *st);
    for (int r = 0; r < n_rows; r++) {
        const float *x = rows + (size_t)r * ROW;
        double xc = 0, cc = 0;
        if (r % LANES == 0)
            viterbi(index, error, x, &s);
        e += error[r % LANES];
        for (int i = 0; i < ROW; i++) {
            int l = index[r % LANES][i], is_upper = l >= n / 2;
            int half = is_upper ? l : n - 1 - l;
            st->count[half] += 1;
            st->sum[half] += is_upper ? x[i] : -x[i];
            xc += (double)x[i] * level[l];
            cc += (double)level[l] * level[l];
        }
        e_ls += ROW - xc * xc / cc;
    }
    for (int l = 0; l < n / 2; l++) {
        st->count[l] = st->count[n - 1 - l];
        st->sum[l] = -st->sum[n - 1 - l];
    }
    st->mse = e / ROW / n_rows;
    st->mse_ls = e_ls / ROW / n_rows;
}

static void scale_levels(float *level, const int *t, int n, double u)
{
    for (int l = 0; l < n; l++)
        level[l] = (float)(u * t[l]);
}

/* Least-squares unit for integer levels, given the statistics of a search. */
static double fit_unit(const stats *st, const int *t, int n)
{
    double a = 0, b = 0;
    for (int l = 0; l < n; l++) {
        a += st->sum[l] * t[l];
        b += st->count[l] * t[l] * t[l];
    }
    return a / b;
}

/* The upper half ascending, then its mirror image. (One loop that runs down the upper half and up
 * the lower one loses its stores under gcc 12.2 -O2: -fipa-modref takes the caller's table to be
 * unchanged. No sanitizer objects to it, and other compilers keep them.) */
static void round_levels(int *t, const double *c, int n, double u)
{
    for (int l = n / 2; l < n; l++)
        t[l] = (int)lrint(c[l] / u);
    for (int l = 0; l < n / 2; l++)
        t[l] = -t[n - 1 - l];
}

static int valid(const int *t, int n, int cap)
{
    int ok = t[n - 1] <= cap;
    for (int l = 1; l < n; l++)
        ok &= t[l] > t[l - 1];
    return ok;
}

/* Inverse of the normal distribution function, by bisection. */
static double normal_quantile(double q)
{
    double a = -10, b = 10;
    for (int i = 0; i < 100; i++) {
        double m = 0.5 * (a + b);
        if (0.5 * erfc(-m * 0.70710678118654752440) < q)
            a = m;
        else
            b = m;
    }
    return 0.5 * (a + b);
}

static double train_real(double *c, const float *rows, int n_rows, int n)
{
    float level[MAX_N];
    stats st;
    double last = 1e9;

    /* Start from the high-rate optimum: a density of levels like the cube root of the normal's. */
    for (int l = 0; l < n; l++)
        c[l] = 1.7320508 * normal_quantile((l + 0.5) / n);
    for (int it = 0; it < 1000; it++) {
        for (int l = 0; l < n; l++)
            level[l] = (float)c[l];
        measure(&st, rows, n_rows, level, n);
        for (int l = 0; l < n; l++)
            if (st.count[l] > 0)
                c[l] = st.sum[l] / st.count[l];
        if (last - st.mse < 1e-8 * st.mse && it > 100)
            break;
        last = st.mse;
    }
    return st.mse;
}

typedef struct table {
    int t[MAX_N];
    double unit, mse;
} table;

/* Integer Lloyd iterations from t at a unit near u. */
static void refine(table *tab, const float *rows, int n_rows, int n, int cap, int rounds)
{
    float level[MAX_N];
    stats st;

    for (int it = 0; it < rounds; it++) {
        scale_levels(level, tab->t, n, tab->unit);
        measure(&st, rows, n_rows, level, n);
        double c[MAX_N];
        for (int l = 0; l < n; l++)
            c[l] = st.count[l] > 0 ? st.sum[l] / st.count[l] : tab->unit * tab->t[l];
        tab->mse = st.mse;
        table next = *tab;
        round_levels(next.t, c, n, tab->unit);
        if (!valid(next.t, n, cap))
            break;
        next.unit = fit_unit(&st, next.t, n);
        if (memcmp(next.t, tab->t, sizeof next.t) == 0 && fabs(next.unit / tab->unit - 1) < 1e-5)
            break;
        *tab = next;
    }
    scale_levels(level, tab->t, n, tab->unit);
    measure(&st, rows, n_rows, level, n);
    tab->mse = st.mse;
}

/* Change one symmetric pair of levels by one while the true error falls. */
static void polish(table *tab, const float *rows, int n_rows, int n, int cap)
{
    int better = 1;
    for (int pass = 0; better && pass < 6; pass++) {
        better = 0;
        for (int l = n / 2; l < n; l++) {
            for (int d = -1; d <= 1; d += 2) {
                table next = *tab;
                next.t[l] += d;
                next.t[n - 1 - l] -= d;
                if (!valid(next.t, n, cap))
                    continue;
                float level[MAX_N];
                stats st;
                scale_levels(level, next.t, n, next.unit);
                measure(&st, rows, n_rows, level, n);
                next.unit = fit_unit(&st, next.t, n);
                scale_levels(level, next.t, n, next.unit);
                measure(&st, rows, n_rows, level, n);
                next.mse = st.mse;
                if (next.mse < tab->mse * (1 - 1e-6)) {
                    *tab = next;
                    better = 1;
                }
            }
        }
    }
}

#define KEEP 6

/* Put a table among the KEEP best (key = its rank); equal integers take one place only. */
static void keep(table *best, double *key, const table *tab, double e)
{
    int put = 0;

    for (int k = 1; k < KEEP; k++)
        if (key[k] > key[put])
            put = k;
    for (int k = 0; k < KEEP; k++)
        if (memcmp(best[k].t, tab->t, sizeof tab->t) == 0)
            put = k;
    if (e < key[put]) {
        key[put] = e;
        best[put] = *tab;
    }
}

static void train(table *top, const double *c, const float *rows, int n_rows, int n, int cap)
{
    float level[MAX_N];
    stats st;
    table best[KEEP];
    double key[KEEP];

    memset(best, 0, sizeof best);

    for (int l = 0; l < n; l++)
        level[l] = (float)c[l];
    measure(&st, rows, n_rows, level, n);
    for (int k = 0; k < KEEP; k++)
        key[k] = 1e9;
    /* Rank units by the error that rounding adds while the paths stay. */
    for (double u = 0.9 * c[n - 1] / cap; u < 2.5 * c[n - 1] / cap; u *= 1.0005) {
        table tab = {.unit = u};
        round_levels(tab.t, c, n, u);
        if (tab.t[n - 1] > cap)
            for (int l = 0; l < n / 2; l++) {
                if (tab.t[n - 1 - l] > cap - l)
                    tab.t[n - 1 - l] = cap - l;
                tab.t[l] = -tab.t[n - 1 - l];
            }
        if (!valid(tab.t, n, cap))
            continue;
        double e = 0;
        for (int l = 0; l < n; l++)
            e += st.count[l] * (u * tab.t[l] - c[l]) * (u * tab.t[l] - c[l]);
        keep(best, key, &tab, e);
    }
    memset(top, 0, sizeof *top);
    top->mse = 1e9;
    int few = n_rows / 4;
    for (int k = 0; k < KEEP; k++) {
        if (key[k] > 1e8)
            continue;
        refine(&best[k], rows, few, n, cap, 15);
        polish(&best[k], rows, few, n, cap);
        if (best[k].mse < top->mse)
            *top = best[k];
    }
    if (top->mse < 1e8)
        refine(top, rows, n_rows, n, cap, 1);
}

/* Unrestricted Lloyd-Max of the unit normal (tools/gen_codebooks.c prints these). */
static const double lloyd_max[] = {0,           0,           0.117481848, 0.034547761,
                                   0.009501008, 0.002504668, 0.000644240};

int main(int argc, char **argv)
{
    /* As in gen_codebooks.c: 15, 31 and 64 leave int16 room for four, two and one pair. */
    static const int caps[] = {0, 0, 15, 31, 64, 127, 127};
    static const int try[] = {12, 16, 20, 24, 32, 40, 48, 56, 64, 96, 127};
    int n_rows = 2048, n_test = 16384;
    float *rows = malloc(sizeof(float) * ROW * (size_t)n_rows);
    float *held = malloc(sizeof(float) * ROW * (size_t)n_test);
    int only = argc > 2 ? atoi(argv[2]) : 0, only_cap = argc > 3 ? atoi(argv[3]) : 0;

    if (!rows || !held)
        return 1;
    make_rows(rows, n_rows, 1);
    make_rows(held, n_test, 2);
    int caps_mode = argc > 1 && strcmp(argv[1], "--caps") == 0;
    if (!caps_mode)
        printf("/* SPDX-License-Identifier: MIT */\n"
               "/* Trained by tools/train_trellis.c and frozen: part of the stored format. */\n");
    for (int bits = 2; bits <= 6; bits++) {
        int n = 2 << bits;
        double c[MAX_N];
        float level[MAX_N];
        stats st;

        if (only && only != bits)
            continue;
        train_real(c, rows, n_rows, n);
        for (int l = 0; l < n; l++)
            level[l] = (float)c[l];
        measure(&st, held, n_test, level, n);
        double real = 10 * log10(lloyd_max[bits] / st.mse);
        if (caps_mode)
            printf("%d bits  real levels: held-out %.9f  %.3f dB (ls %.3f)\n", bits, st.mse, real,
                   10 * log10(lloyd_max[bits] / st.mse_ls));
        for (size_t i = 0; i < sizeof try / sizeof *try; i++) {
            int cap = caps_mode ? try[i] : caps[bits];
            if (cap >= n / 2 && (!only_cap || cap == only_cap)) {
                table tab;
                train(&tab, c, rows, n_rows, n, cap);
                scale_levels(level, tab.t, n, tab.unit);
                measure(&st, held, n_test, level, n);
                double db = 10 * log10(lloyd_max[bits] / st.mse);
                if (caps_mode) {
                    printf("  cap %3d  %.9f  %.3f dB (ls %.3f)  unit %.7f ", cap, st.mse, db,
                           10 * log10(lloyd_max[bits] / st.mse_ls), tab.unit);
                    for (int l = n / 2; l < n; l++)
                        printf(" %d", tab.t[l]);
                    printf("\n");
                    fflush(stdout);
                } else {
                    printf("\n/* %d bits: held-out error %.9f, %.3f dB below Lloyd-Max (%.3f with"
                           " real levels) */\n",
                           bits, st.mse, db, real);
                    printf("#define TQ_TRELLIS_UNIT_%d %af /* %.9g */\n", bits,
                           (double)(float)tab.unit, (double)(float)tab.unit);
                    printf("static const int8_t trellis_levels_%d[%d] = {", bits, n);
                    for (int l = 0; l < n; l++)
                        printf("%s%d", l == 0 ? "\n    " : l % 16 ? ", " : ",\n    ", tab.t[l]);
                    printf("};\n");
                    fflush(stdout);
                }
            }
            if (!caps_mode)
                break;
        }
    }
    free(rows);
    free(held);
    return 0;
}
