/* SPDX-License-Identifier: MIT */
/* eval_plot.c — the four figures, as gnuplot scripts.
 *
 * Policy: a colour is a family of schemes in every figure (those of Okabe and Ito, which the colour
 * blind can tell apart), peers are hollow, names stand beside what they name instead of in a key.
 * The one hard thing is to keep names from covering each other: margins are fixed, so that where a
 * point comes to lie is known here, and each name takes the first free place around its point.
 */
#define _POSIX_C_SOURCE 200809L
#include "gnuplot.h"
#include "evaluation.h"
#include "out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 820, HEIGHT = 470, LEFT = 78, RIGHT = 24, TOP = 18, BOTTOM = 62, TEXT_HEIGHT = 14 };
#define TEXT_WIDTH 6.9 /* of a letter, on average */
#define GREY       "#8a8a8a"
#define FAR_BELOW  8 /* a noise floor this many times below all else is named, not drawn */

/* ---- Families ---------------------------------------------------------------------------- */

typedef struct family {
    const char *prefix, *name, *colour;
    int point; /* gnuplot's pointtype */
} family;

/* The first prefix that fits counts. */
static const family families[] = {
    {"tcq", "trellis (tcq)", "#0072B2", 7},
    {"turbo:", "affine keys, Lloyd values (turbo:k)", "#009E73", 5},
    {"turbo", "norm-codebook (turbo)", "#D55E00", 9},
    {"affine", "uniform groups (affine)", "#CC79A7", 11},
    {"mse", "mse", "#E69F00", 13},
    {"prod", "prod", "#56B4E9", 13},
    {"", "uncompressed", GREY, 7},
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };
static const family peer_family = {"", "stock llama.cpp", "#222222", 4};

static const family *family_of(const tqe_eval_side *side)
{
    if (side->is_peer) {
        return &peer_family;
    }
    size_t i = 0;
    while (strncmp(side->kv, families[i].prefix, strlen(families[i].prefix)) != 0) {
        i++; /* the last prefix fits all */
    }
    return &families[i];
}

/* A name for a gnuplot string in single quotes. File names in schemes may hold anything. */
static const char *plain(const char *s, char dst[64])
{
    size_t i = 0;
    for (; s[i] && i < 40; i++) {
        bool ok = (s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z') ||
                  (s[i] >= 'A' && s[i] <= 'Z') || strchr(" ._:,=+/-", s[i]);
        dst[i] = ok ? s[i] : '?';
    }
    strcpy(dst + i, s[i] ? "..." : "");
    return dst;
}

/* ---- Names beside points ----------------------------------------------------------------- */

typedef struct box {
    double x, y, w, h; /* middle and size, in pixels, y upwards */
} box;

typedef struct placer {
    box taken[16 * TQE_EVAL_MAX_SIDES];
    size_t n;
} placer;

static double overlap(const box *a, const box *b)
{
    double x = (a->w + b->w) / 2 - fabs(a->x - b->x), y = (a->h + b->h) / 2 - fabs(a->y - b->y);
    return x > 0 && y > 0 ? x * y : 0;
}

static void take(placer *p, box b)
{
    if (p->n < sizeof p->taken / sizeof p->taken[0]) {
        p->taken[p->n++] = b;
    }
}

/* The place for a name of n letters beside the point (x, y) that covers the least. */
static box place(placer *p, double x, double y, size_t n)
{
    static const double around[][2] = {
        {1, 0},     {-1, 0},      {1, 1},      {-1, -1},    {1, -1},   {-1, 1},
        {0.3, 1.2}, {-0.3, -1.2}, {0.3, -1.2}, {-0.3, 1.2}, {1, 2.2},  {-1, -2.2},
        {1, -2.2},  {-1, 2.2},    {1, 3.4},    {-1, -3.4},  {1, -3.4}, {-1, 3.4},
        {1, 4.6},   {-1, -4.6},   {1, -4.6},   {-1, 4.6}};
    double least = INFINITY, w = TEXT_WIDTH * (double)n;
    box best = {x, y, w, TEXT_HEIGHT};
    for (size_t i = 0; i < sizeof around / sizeof around[0]; i++) {
        double dx = around[i][0], dy = around[i][1];
        box b = {x + dx * (w / 2 + 9), y + dy * TEXT_HEIGHT, w, TEXT_HEIGHT};
        double cost = 1e-3 * (double)i;
        for (size_t k = 0; k < p->n; k++) {
            cost += overlap(&b, &p->taken[k]);
        }
        if (b.x - w / 2 < LEFT + 2 || b.x + w / 2 > WIDTH - 4 || b.y < BOTTOM ||
            b.y > HEIGHT - TOP) {
            cost += 1e4;
        }
        if (cost < least) {
            least = cost;
            best = b;
        }
    }
    take(p, best);
    return best;
}

static void put_label(FILE *f, const char *text, const char *where, double x, double y,
                      const char *colour, bool bold)
{
    fprintf(f,
            "set label '%s' at screen %.5f, screen %.5f %s front textcolor rgb '%s' font '%s,12'\n",
            text, x / WIDTH, y / HEIGHT, where, colour, bold ? "Helvetica:Bold" : "Helvetica");
}

/* ---- What all figures share -------------------------------------------------------------- */

static void put_start(FILE *f, int width, int height)
{
    fprintf(f,
            "set terminal svg size %d,%d dynamic noenhanced font 'Helvetica,12.5' linewidth 1.2\n"
            "set encoding utf8\nunset key\nset border 3 lc rgb '#555555'\nset tics nomirror out "
            "scale 0.6 textcolor rgb '#333333'\n"
            "set style line 99 lc rgb '#e4e4e4' lw 0.8\n",
            width, height);
}

static void put_margins(FILE *f, int width, int height, double left, double right)
{
    fprintf(f,
            "set lmargin at screen %.5f\nset rmargin at screen %.5f\nset bmargin at screen %.5f\n"
            "set tmargin at screen %.5f\n",
            left / width, 1 - right / width, (double)BOTTOM / height, 1 - (double)TOP / height);
}

/* A logarithmic axis that holds [low, high] with some air. */
static void widen(double *low, double *high)
{
    double air = pow(*high / *low, 0.06);
    air = air < 1.3 ? 1.3 : air;
    *low /= air;
    *high *= air;
}

/* Positions of an axis in pixels. */
typedef struct axis {
    double low, high, first, last;
    bool is_log;
} axis;

static double at(const axis *a, double v)
{
    double t =
        a->is_log ? log(v / a->low) / log(a->high / a->low) : (v - a->low) / (a->high - a->low);
    return a->first + t * (a->last - a->first);
}

/* A finished script becomes a picture. */
static char *draw(FILE *f, char **script, size_t *n, const char *id, const char *description)
{
    char *svg = NULL;
    if (fclose(f) != 0) {
        msg_error("not enough memory for a figure");
    } else {
        svg = gnuplot_svg(*script, *n, id, description);
    }
    free(*script);
    return svg;
}

/* ---- KL against bits --------------------------------------------------------------------- */

static bool on_chart(const evaluation *e, const eval_row *rows, size_t i)
{
    return !eval_is_reference(e, i) && rows[i].kl_mean.value > 0;
}

/* The side of the front with the fewest bits above `bits`; n_sides: none. */
static size_t next_on_front(const evaluation *e, const eval_row *rows, double bits)
{
    size_t best = e->n_sides;
    for (size_t i = 0; i < e->n_sides; i++) {
        if (rows[i].on_front && rows[i].kl_mean.value > 0 && rows[i].bits > bits &&
            (best == e->n_sides || rows[i].bits < rows[best].bits)) {
            best = i;
        }
    }
    return best;
}

static void put_points(FILE *f, const evaluation *e, const eval_row *rows, const axis *y)
{
    for (size_t i = 0; i < e->n_sides; i++) {
        if (!on_chart(e, rows, i)) {
            continue;
        }
        double low = rows[i].kl_mean.low, high = rows[i].kl_mean.high, v = rows[i].kl_mean.value;
        low = isfinite(low) ? (low > y->low / 1e3 ? low * 1e3 : y->low) : v * 1e3;
        high = isfinite(high) ? high * 1e3 : v * 1e3;
        fprintf(f, "$p%zu << EOD\n%.6g %.6g %.6g %.6g\nEOD\n", i, rows[i].bits, v * 1e3, low, high);
    }
    fputs("$front << EOD\n", f);
    for (size_t i = next_on_front(e, rows, -1); i < e->n_sides;
         i = next_on_front(e, rows, rows[i].bits)) {
        fprintf(f, "%.6g %.6g\n", rows[i].bits, rows[i].kl_mean.value * 1e3);
    }
    fputs("EOD\n", f);
}

/* Names keep off the line of the front. */
static void take_front(placer *p, const evaluation *e, const eval_row *rows, const axis *x,
                       const axis *y)
{
    enum { STEP = 12 };
    size_t i = next_on_front(e, rows, -1);
    for (size_t next; i < e->n_sides; i = next) {
        next = next_on_front(e, rows, rows[i].bits);
        if (next < e->n_sides) {
            double from_x = at(x, rows[i].bits), from_y = at(y, rows[i].kl_mean.value * 1e3);
            double dx = at(x, rows[next].bits) - from_x;
            double dy = at(y, rows[next].kl_mean.value * 1e3) - from_y;
            int n = (int)(hypot(dx, dy) / STEP);
            for (int k = 1; k < n; k++) {
                take(p, (box){from_x + dx * k / n, from_y + dy * k / n, 3, 3});
            }
        }
    }
}

static void put_names(FILE *f, const evaluation *e, const eval_row *rows, const axis *x,
                      const axis *y)
{
    placer p = {.n = 0};
    char name[64];
    for (size_t i = 0; i < e->n_sides; i++) {
        if (on_chart(e, rows, i)) {
            double v = rows[i].kl_mean.value * 1e3;
            take(&p, (box){at(x, rows[i].bits), at(y, v), 10, 10});
        }
    }
    take_front(&p, e, rows, x, y);
    for (size_t i = 0; i < e->n_sides; i++) {
        if (on_chart(e, rows, i)) {
            plain(rows[i].name + (rows[i].side->is_peer ? strlen("llama ") : 0), name);
            double px = at(x, rows[i].bits), py = at(y, rows[i].kl_mean.value * 1e3);
            box b = place(&p, px, py, strlen(name));
            if (fabs(b.y - py) > 1.5 * TEXT_HEIGHT) { /* too far to be seen to belong there */
                double side = b.x > px ? 1 : -1;
                fprintf(
                    f,
                    "set arrow from screen %.5f, screen %.5f to screen %.5f, screen %.5f nohead "
                    "lc rgb '%s' lw 0.5\n",
                    (px + side * 5) / WIDTH, py / HEIGHT, (b.x - side * b.w / 2) / WIDTH,
                    b.y / HEIGHT, family_of(rows[i].side)->colour);
            }
            put_label(f, name, "center", b.x, b.y, family_of(rows[i].side)->colour,
                      rows[i].on_front);
        }
    }
}

/* A key of the families that occur, in the lower left corner: nothing small loses little. Above
 * height `above`: the noise floor and its name. */
static void put_key(FILE *f, const evaluation *e, const eval_row *rows, double above)
{
    const family *seen[N_FAMILIES + 1];
    size_t n = 0;
    for (size_t i = 0; i < e->n_sides; i++) {
        size_t k = 0;
        while (k < n && seen[k] != family_of(rows[i].side)) {
            k++;
        }
        if (k == n && on_chart(e, rows, i)) {
            seen[n++] = family_of(rows[i].side);
        }
    }
    for (size_t k = 0; k < n; k++) {
        double y = above + 17 + 19 * (double)(n - 1 - k), x = LEFT + 14;
        fprintf(f,
                "set label '%s' at screen %.5f, screen %.5f left offset 1.4,-0.15 textcolor rgb "
                "'#333333' point pt %d ps 0.75 lc rgb '%s'\n",
                seen[k]->name, x / WIDTH, y / HEIGHT, seen[k]->point, seen[k]->colour);
    }
}

static char *plot_bits(const evaluation *e, const eval_row *rows)
{
    char *script = NULL;
    size_t n = 0;
    double low = INFINITY, high = 0, most = 0, floor = rows[1].kl_mean.value * 1e3;
    for (size_t i = 0; i < e->n_sides; i++) {
        if (on_chart(e, rows, i)) {
            double v = rows[i].kl_mean.value * 1e3;
            /* Whiskers fit, but for those of a few windows, which may reach zero. */
            double down = rows[i].kl_mean.low * 1e3, up = rows[i].kl_mean.high * 1e3;
            down = down > v / 3 ? down : v;
            up = up < v * 3 ? up : v;
            low = down < low ? down : low;
            high = up > high ? up : high;
            most = rows[i].bits > most ? rows[i].bits : most;
        }
    }
    if (high <= 0) { /* nothing but references */
        low = high = floor > 0 ? floor : 1;
        most = 8;
    }
    bool show_floor = floor > 0 && floor > low / FAR_BELOW;
    low = show_floor && floor < low ? floor : low;
    widen(&low, &high);
    axis x = {1, ceil(most + 0.5), LEFT, WIDTH - RIGHT, false};
    axis y = {low, high, BOTTOM, HEIGHT - TOP, true};
    FILE *f = open_memstream(&script, &n);
    if (!f) {
        msg_error("not enough memory for a figure");
        return NULL;
    }
    put_start(f, WIDTH, HEIGHT);
    put_margins(f, WIDTH, HEIGHT, LEFT, RIGHT);
    put_points(f, e, rows, &y);
    put_names(f, e, rows, &x, &y);
    const double floor_name = (show_floor ? at(&y, floor) : BOTTOM) + 9;
    const bool in_corner = floor_name < BOTTOM + 36 + 19 * (N_FAMILIES + 1);
    put_key(f, e, rows, floor > 0 && in_corner ? floor_name : BOTTOM + 9);
    fprintf(f,
            "set xrange [%g:%g]\nset xtics 1\nset logscale y\nset yrange [%g:%g]\nset format y "
            "'%%g'\nset grid xtics ytics ls 99, ls 99\n"
            "set xlabel 'bits per element of keys and values, all included' offset 0,0.3\n"
            "set ylabel 'mean KL divergence, 10\xe2\x81\xbb\xc2\xb3 nats' offset 0.5,0\n",
            x.low, x.high, y.low, y.high);
    char number[32];
    if (floor > 0) {
        fprintf(f,
                "set label 'noise floor, f16 against f32: %s%s' at screen %.5f, screen %.5f left "
                "textcolor rgb '" GREY "' font 'Helvetica,11'\n",
                eval_number(number, floor), show_floor ? "" : " (below)", (LEFT + 8.0) / WIDTH,
                floor_name / HEIGHT);
    }
    fputs("plot ", f);
    if (show_floor) {
        fprintf(f, "%g with lines dt 2 lc rgb '" GREY "', ", floor);
    }
    fputs("$front with lines lw 1.6 lc rgb '#b8cfe0'", f);
    for (size_t i = 0; i < e->n_sides; i++) {
        if (on_chart(e, rows, i)) {
            const family *k = family_of(rows[i].side);
            fprintf(f,
                    ", $p%zu using 1:2:3:4 with yerrorbars pt %d ps 0.01 lw 0.9 lc rgb '%s', "
                    "$p%zu with points pt %d ps 0.75 lc rgb '%s'",
                    i, k->point, k->colour, i, k->point, k->colour);
        }
    }
    fputs("\n", f);
    return draw(f, &script, &n, "bits", "Mean KL divergence against bits per element");
}

/* ---- KL against position ----------------------------------------------------------------- */

/* Moves names at heights y [n], sorted upwards, apart. */
static void spread(double *y, size_t n)
{
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i + 1 < n; i++) {
            double lack = TEXT_HEIGHT - (y[i + 1] - y[i]);
            if (lack > 0) {
                y[i] -= lack / 2;
                y[i + 1] += lack / 2;
            }
        }
        if (n && y[0] < BOTTOM) {
            y[0] = BOTTOM;
        }
        if (n && y[n - 1] > HEIGHT - TOP) {
            y[n - 1] = HEIGHT - TOP;
        }
    }
}

typedef struct curve {
    size_t side;
    double end; /* where it ends */
} curve;

static int by_end(const void *a, const void *b)
{
    double x = ((const curve *)a)->end, y = ((const curve *)b)->end;
    return (x > y) - (x < y);
}

/* The curves of sides with a divergence at every position, by rising end; the noise floor only
 * where it is near. */
static size_t list_curves(const evaluation *e, const eval_row *rows, curve *dst, double *low,
                          double *high)
{
    size_t n = 0;
    for (size_t i = e->n_sides - 1; i > 0; i--) {
        bool ok =
            i == 1 ? rows[1].kl_mean.value * 1e3 > *low / FAR_BELOW : !eval_is_reference(e, i);
        for (size_t b = 0; ok && b < e->n_buckets; b++) {
            ok = rows[i].bucket_kl[b] > 0;
        }
        if (!ok) {
            continue;
        }
        for (size_t b = 0; b < e->n_buckets; b++) {
            *low = fmin(*low, rows[i].bucket_kl[b] * 1e3);
            *high = fmax(*high, rows[i].bucket_kl[b] * 1e3);
        }
        dst[n++] = (curve){i, rows[i].bucket_kl[e->n_buckets - 1] * 1e3};
    }
    qsort(dst, n, sizeof *dst, by_end);
    return n;
}

static void put_curves(FILE *f, const evaluation *e, const eval_row *rows, const curve *curves,
                       size_t n)
{
    for (size_t c = 0; c < n; c++) {
        fprintf(f, "$c%zu << EOD\n", c);
        for (size_t b = 0; b < e->n_buckets; b++) {
            size_t first = b * e->bucket_width, end = first + e->bucket_width;
            end = end < e->n_ctx ? end : e->n_ctx;
            fprintf(f, "%g %.6g\n", 0.5 * (double)(first + end),
                    rows[curves[c].side].bucket_kl[b] * 1e3);
        }
        fputs("EOD\n", f);
    }
    fputs("plot ", f);
    for (size_t c = 0; c < n; c++) {
        const family *k = family_of(rows[curves[c].side].side);
        bool floor = curves[c].side == 1;
        fprintf(f, "%s$c%zu with linespoints dt %d lw 1.3 pt %d ps %s lc rgb '%s'", c ? ", " : "",
                c, floor ? 2 : 1, k->point, floor ? "0" : "0.45", k->colour);
    }
    fputs(n ? "\n" : "0\n", f);
}

static char *plot_position(const evaluation *e, const eval_row *rows)
{
    enum { NAMES = 130 };
    curve curves[TQE_EVAL_MAX_SIDES];
    double heights[TQE_EVAL_MAX_SIDES], low = INFINITY, high = 0;
    size_t n = list_curves(e, rows, curves, &low, &high), n_script = 0;
    char *script = NULL, name[64];
    if (!n) {
        low = high = 1;
    }
    widen(&low, &high);
    axis y = {low, high, BOTTOM, HEIGHT - TOP, true};
    FILE *f = open_memstream(&script, &n_script);
    if (!f) {
        msg_error("not enough memory for a figure");
        return NULL;
    }
    put_start(f, WIDTH, HEIGHT);
    put_margins(f, WIDTH, HEIGHT, LEFT, NAMES);
    for (size_t c = 0; c < n; c++) {
        heights[c] = at(&y, curves[c].end);
    }
    spread(heights, n);
    for (size_t c = 0; c < n; c++) {
        const eval_row *r = &rows[curves[c].side];
        put_label(f, curves[c].side == 1 ? "f16 (noise floor)" : plain(r->name, name), "left",
                  WIDTH - NAMES + 8, heights[c], family_of(r->side)->colour, r->on_front);
    }
    fprintf(f,
            "set xrange [0:%u]\nset logscale y\nset yrange [%g:%g]\nset format y '%%g'\n"
            "set xtics %u\nset grid xtics ytics ls 99, ls 99\n"
            "set xlabel 'position in the window' offset 0,0.3\n"
            "set ylabel 'mean KL divergence, 10\xe2\x81\xbb\xc2\xb3 nats' offset 0.5,0\n",
            e->n_ctx, low, high, e->bucket_width * (e->n_buckets > 8 ? 2 : 1));
    put_curves(f, e, rows, curves, n);
    return draw(f, &script, &n_script, "position", "Mean KL divergence against position");
}

/* ---- Same top token ---------------------------------------------------------------------- */

static char *plot_same_top(const evaluation *e, const eval_row *rows)
{
    enum { ROW = 21, NAMES = 150 };
    size_t order[TQE_EVAL_MAX_SIDES], n = 0, n_script = 0;
    double low = 100, least = 100;
    char *script = NULL, name[64];
    for (size_t i = 1; i < e->n_sides; i++) {
        size_t k = n++;
        for (; k > 0 && rows[order[k - 1]].same_top.value < rows[i].same_top.value; k--) {
            order[k] = order[k - 1];
        }
        order[k] = i;
        low = fmin(low, rows[i].same_top.value * 100);
        if (isfinite(rows[i].same_top.low)) {
            least = fmin(least, rows[i].same_top.low * 100);
        }
    }
    /* Whiskers fit, but for those of very few windows, which would squeeze the rest. */
    low = fmin(low, fmax(least, 100 - 2.5 * (100 - low)));
    int height = TOP + BOTTOM + ROW * (int)n;
    FILE *f = open_memstream(&script, &n_script);
    if (!f) {
        msg_error("not enough memory for a figure");
        return NULL;
    }
    put_start(f, WIDTH, height);
    put_margins(f, WIDTH, height, NAMES, 70);
    for (size_t k = 0; k < n; k++) {
        const eval_row *r = &rows[order[k]];
        double v = r->same_top.value * 100;
        double half = isfinite(r->same_top.high) ? (r->same_top.high - r->same_top.value) * 100 : 0;
        double y = (double)(n - 1 - k);
        fprintf(f, "$s%zu << EOD\n%.6g %g %.6g %.6g\nEOD\n", k, v, y, fmax(v - half, 0),
                fmin(v + half, 100));
        plain(r->name, name);
        fprintf(f,
                "set label '%s  %.2f' at graph -0.012, first %g right textcolor rgb '%s'\n"
                "set label '%.2f' at graph 1.012, first %g left textcolor rgb '#333333'\n",
                name, r->bits, y, family_of(r->side)->colour, v, y);
    }
    low = floor(low - fmax(1, 0.05 * (100 - low)));
    fprintf(f,
            "set border 1 lc rgb '#555555'\nset xrange [%g:100.2]\nset yrange [-0.6:%g]\nunset "
            "ytics\nset grid xtics ls 99\nset xlabel 'same likeliest token as the reference, %%"
            "  (names are followed by bits per element)' offset 0,0.3\nplot ",
            low > 0 ? low : 0, (double)n - 0.4);
    for (size_t k = 0; k < n; k++) {
        const family *c = family_of(rows[order[k]].side);
        fprintf(
            f,
            "%s$s%zu using 1:2:3:4 with xerrorbars pt %d ps 0.01 lc rgb '%s', $s%zu with points "
            "pt %d ps 0.75 lc rgb '%s'",
            k ? ", " : "", k, c->point, c->colour, k, c->point, c->colour);
    }
    fputs("\n", f);
    return draw(f, &script, &n_script, "same", "Share of positions with the same likeliest token");
}

/* ---- Needles ----------------------------------------------------------------------------- */

enum { MAP_COLUMNS = 4, MAP_WIDTH = 205, MAP_HEIGHT = 172 };

static void put_map(FILE *f, const evaluation *e, const eval_row *r, size_t side,
                    const uint32_t *lengths, size_t nl, const double *depths, size_t nd)
{
    char name[64];
    fputs("unset label\n$m << EOD\n", f);
    for (size_t i = 0; i < nl * nd; i++) {
        size_t n, hits = eval_needle_hits(e, side, lengths[i / nd], depths[i % nd], &n);
        if (n) {
            double v = 100 * (double)hits / (double)n;
            fprintf(f, "%zu %zu %.4g %.0f %s\n", i / nd, i % nd, v, v,
                    v < 45 ? "0xffffff" : "0x222222");
        }
    }
    fprintf(f,
            "EOD\nset title '%s  %.0f %%' textcolor rgb '#222222' font 'Helvetica:Bold,12' offset "
            "0,-0.4\n",
            plain(r->name, name), r->needles.value * 100);
    fputs("set xtics (", f);
    for (size_t i = 0; i < nl; i++) {
        fprintf(f, "%s'%u' %zu", i ? ", " : "", lengths[i], i);
    }
    fputs(") rotate by -35 font 'Helvetica,9.5' offset -0.4,0.2\nset ytics (", f);
    for (size_t i = 0; i < nd; i++) {
        fprintf(f, "%s'%g' %zu", i ? ", " : "", depths[i], i);
    }
    fprintf(f,
            ") font 'Helvetica,9.5'\nset xrange [-0.5:%g]\nset yrange [%g:-0.5]\n"
            "plot $m using 1:2:(0.48):(0.47):3 with boxxyerror fs solid 1 noborder lc palette, "
            "$m using 1:2:4:5 with labels tc rgb variable font 'Helvetica,9.5'\n",
            (double)nl - 0.5, (double)nd - 0.5);
}

static char *plot_needles(const evaluation *e, const eval_row *rows)
{
    uint32_t *lengths = calloc(e->n_needles + 1, sizeof *lengths);
    double *depths = calloc(e->n_needles + 1, sizeof *depths);
    size_t n_script = 0;
    char *script = NULL, *svg = NULL;
    FILE *f = lengths && depths ? open_memstream(&script, &n_script) : NULL;
    if (f) {
        size_t nl = eval_needle_lengths(e, lengths), nd = eval_needle_depths(e, depths);
        size_t n_rows = (e->n_sides - 1 + MAP_COLUMNS - 1) / MAP_COLUMNS;
        put_start(f, WIDTH, (int)n_rows * MAP_HEIGHT);
        fprintf(f,
                "set border 0\nset tics scale 0\nunset colorbox\nset cbrange [0:100]\n"
                "set palette defined (0 '#67001f', 25 '#b2182b', 50 '#f4a582', 80 '#e8eef3', 100 "
                "'#92c5de')\n"
                "set xlabel 'tokens' font 'Helvetica,10' offset 0,0.6\n"
                "set ylabel 'depth' font 'Helvetica,10' offset 1.6,0\n"
                "set lmargin 6.5\nset rmargin 1\nset tmargin 1.8\nset bmargin 3.6\n"
                "set multiplot layout %zu,%d\n",
                n_rows, MAP_COLUMNS);
        for (size_t i = 1; i < e->n_sides; i++) { /* f32 is what f16 is, to the eye */
            put_map(f, e, &rows[i], i, lengths, nl, depths, nd);
        }
        fputs("unset multiplot\n", f);
        svg = draw(f, &script, &n_script, "needles", "Needles found, by length and depth");
    } else {
        msg_error("not enough memory for a figure");
    }
    free(lengths);
    free(depths);
    return svg;
}

bool eval_plot_check(void)
{
    return gnuplot_check();
}

char *eval_plot(const evaluation *e, const eval_row *rows, eval_figure figure)
{
    switch (figure) {
    case EVAL_FIG_BITS:
        return plot_bits(e, rows);
    case EVAL_FIG_POSITION:
        return plot_position(e, rows);
    case EVAL_FIG_SAME_TOP:
        return plot_same_top(e, rows);
    case EVAL_FIG_NEEDLES:
        break;
    }
    return plot_needles(e, rows);
}
