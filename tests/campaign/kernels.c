/* Calls every C kernel with inputs of its own and prints what it returns, a number a line, after the kernel's name:
 * compiled for one processor and for another, the two outputs can be compared. Needs the defines of all kernels. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t train(const int64_t *layers, int64_t n, const REAL *pool, int64_t sample, const int64_t *labels,
              const int64_t *rows, int64_t J, int64_t B, const int64_t *steps, int64_t clients, const REAL *start,
              int64_t start_stride, int64_t kind, double gain, double keep, double decay, double beta1, double beta2,
              const REAL *K, const REAL *F, const double *factors, REAL *moment1, REAL *moment2, int64_t moment_stride,
              const int64_t *keys, int64_t drops, REAL *statistics, int64_t statistics_stride, REAL *out,
              int64_t out_stride, int64_t shared, REAL *loss, uint8_t *finite, int64_t threads);
int64_t order(const int64_t *row, const int64_t *count, const int64_t *client, const int64_t *steps, int64_t clients,
              int64_t key, int64_t least, int64_t J, int64_t B, int64_t *out, int64_t *size, int64_t threads);
int64_t mask(const int64_t *key, int64_t clients, int64_t count, int64_t least, double gain, REAL *out);
int64_t largest(const REAL *x, int64_t rows, int64_t stride, const int64_t *piece, int64_t pieces, int64_t K,
                int64_t *column, uint8_t *there);
int64_t make(const int64_t *seeds, const int64_t *size, int64_t clients, int64_t D, int64_t L, double alpha, double beta,
             const float *common, const float *scale, float *x, int64_t *y);

enum { CLIENTS = 3, SAMPLES = 40, J = 12, B = 7, MOST = 4096 };

static uint64_t drawn = 1;

static int64_t draw(int64_t below) { /* Knuth's generator: the same on every processor */
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(drawn >> 33) % below;
}

static void fill(REAL *to, int64_t n, double size) {
    for (int64_t k = 0; k < n; k++) to[k] = (REAL)(size * (double)(draw(2000001) - 1000000) / 1000000);
}

static void print_numbers(const char *name, const REAL *from, int64_t n) {
    for (int64_t k = 0; k < n; k++) printf("%s %.17g\n", name, (double)from[k]);
}

static void print_whole(const char *name, const int64_t *from, int64_t n) {
    for (int64_t k = 0; k < n; k++) printf("%s %" PRId64 "\n", name, from[k]);
}

static int64_t bits(double number) {
    int64_t found;
    memcpy(&found, &number, sizeof found);
    return found;
}

/* Local steps of a stack: plain SGD (with springs), momentum or Adam. */
static void trained(const char *name, const int64_t *layers, int64_t n, int64_t sample, int64_t width, int64_t kind) {
    static REAL pool[SAMPLES * 128], start[MOST], K[MOST], F[MOST], m[CLIENTS * MOST], v[CLIENTS * MOST];
    static REAL statistics[CLIENTS * 10], out[CLIENTS * MOST], loss[CLIENTS];
    static double factors[CLIENTS * J * 2];
    static int64_t labels[SAMPLES], rows[CLIENTS * J * B], keys[CLIENTS * J];
    const int64_t steps[CLIENTS] = {J, J / 2, 1};
    uint8_t finite[CLIENTS];
    fill(pool, SAMPLES * sample, 1), fill(start, width, 0.3), fill(F, width, 0.001);
    for (int64_t k = 0; k < width; k++) K[k] = (REAL)0.999;
    for (int64_t k = 0; k < SAMPLES; k++) labels[k] = draw(10);
    for (int64_t k = 0; k < CLIENTS * J * B; k++) rows[k] = draw(SAMPLES);
    for (int64_t k = 0; k < CLIENTS * J; k++) {
        keys[k] = draw(INT64_C(1) << 31), rows[k * B + B - 1] = k % 2 ? -1 : rows[k * B + B - 1];
        factors[2 * k] = 30, factors[2 * k + 1] = 1e-6;
    }
    for (int64_t k = 0; k < CLIENTS * 10; k++) statistics[k] = (REAL)(k % 10 > 4);
    memset(m, 0, sizeof m), memset(v, 0, sizeof v), memset(loss, 0, sizeof loss);
    const double gain = kind == 2 ? 1 : 0.05, keep = kind == 0 ? 0.999 : kind == 1 ? 0.9 : 0;
    int64_t wrong = train(layers, n, pool, sample, labels, rows, J, B, steps, CLIENTS, start, 0, kind, gain, keep,
                          kind == 1 ? 0.001 : 0, 0.9, 0.99, kind ? 0 : K, kind ? 0 : F, kind == 2 ? factors : 0, m, v,
                          MOST, keys, 1, statistics, 10, out, MOST, width, loss, finite, 2);
    if (wrong) exit(2);
    for (int64_t c = 0; c < CLIENTS; c++) print_numbers(name, out + c * MOST, width);
    print_numbers("losses", loss, CLIENTS);
    if (sample == 81) print_numbers("statistics", statistics, CLIENTS * 10);
}

int main(void) {
    /* kind, in, out, weight, bias, i, o, h, w, kh, kw, ph, pw: the fields of a NativeLayer */
    const int64_t dense[][13] = {{0, 60, 33, 0, 1980}, {3, 33, 33, 0, -1},
                                 {5, 33, 33, 0, -1, 0, INT64_C(1) << 30, bits(2), 1}, {0, 33, 10, 2013, 2343}};
    const int64_t images[][13] = {{1, 81, 405, 0, -1, 1, 5, 9, 9, 3, 3, 1, 1}, /* a bias before BatchNorm has no gradient but rounding */
                                  {2, 405, 405, 50, 55, 5, bits(0.1), bits(1e-5), 81, 0, 5}, {3, 405, 405, 0, -1},
                                  {4, 405, 45, 0, -1, 5, 5, 9, 9, 3, 3}, {0, 45, 10, 60, 510}};
    const char *rules[] = {"sgd", "momentum", "adam"};
    for (int64_t kind = 0; kind < 3; kind++) {
        char name[40];
        sprintf(name, "dense-%s", rules[kind]), trained(name, dense[0], 4, 60, 2353, kind);
        sprintf(name, "images-%s", rules[kind]), trained(name, images[0], 5, 81, 520, kind);
    }
    int64_t row[120], count[CLIENTS] = {60, 37, 23}, client[CLIENTS] = {5, 2, 9}, steps[CLIENTS] = {J, J, 3};
    int64_t batches[CLIENTS * J * B], size[CLIENTS * J];
    for (int64_t k = 0; k < 120; k++) row[k] = 1000 + k;
    if (order(row, count, client, steps, CLIENTS, 77, 1, J, B, batches, size, 2)) return 2;
    print_whole("order", batches, CLIENTS * J * B), print_whole("order", size, CLIENTS * J);

    REAL masks[CLIENTS * 50], x[CLIENTS * 200];
    mask(client, CLIENTS, 50, INT64_C(1) << 29, 4.0 / 3, masks), print_numbers("mask", masks, CLIENTS * 50);

    int64_t piece[] = {0, 150, 20, 150, 50, 7}, column[CLIENTS * 27];
    uint8_t there[CLIENTS * 27];
    fill(x, CLIENTS * 200, 1);
    if (largest(x, CLIENTS, 200, piece, 2, 27, column, there)) return 2;
    print_whole("largest", column, CLIENTS * 27);

    float scale[60], samples[120 * 60];
    int64_t y[120];
    for (int k = 0; k < 60; k++) scale[k] = 1 / (float)(1 + k);
    if (make(client, count, CLIENTS, 60, 10, 0.5, 0.5, 0, scale, samples, y)) return 2;
    for (int k = 0; k < 120 * 60; k++) printf("samples %.9g\n", samples[k]);
    print_whole("sample-labels", y, 120);
    return 0;
}
