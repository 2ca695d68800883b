/* The order in which clients see their samples, one client at a time: the C form of order_with_torch in batches.py. */
#include <stdint.h>
#include <stdlib.h>

#define GOLDEN 0x9E3779B97F4A7C15u
#define MIX_1 0xBF58476D1CE4E5B9u
#define MIX_2 0x94D049BB133111EBu

typedef struct { uint64_t value; int64_t sample; } Key;

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * MIX_1;
    z = (z ^ (z >> 27)) * MIX_2;
    return z ^ (z >> 31);
}

/* A stable sort by value (44 bits, evenly spread): a bucket sort with one bucket per key, then an insertion sort. */
static void sort(const Key *given, Key *keys, int64_t *next, int64_t n) {
    for (int64_t k = 0; k <= n; k++) next[k] = 0;
    for (int64_t k = 0; k < n; k++) next[((given[k].value >> 12) * n >> 32) + 1]++;
    for (int64_t k = 0; k < n; k++) next[k + 1] += next[k];
    for (int64_t k = 0; k < n; k++) keys[next[(given[k].value >> 12) * n >> 32]++] = given[k];
    for (int64_t k = 1; k < n; k++) {
        Key one = keys[k];
        int64_t at = k;
        for (; at > 0 && keys[at - 1].value > one.value; at--) keys[at] = keys[at - 1];
        keys[at] = one;
    }
}

/* Write rows of the pool to out [clients, J, B], -1 for padding, and the batch sizes to size [clients, J]. */
int64_t order(const int64_t *row, const int64_t *count, const int64_t *key, const int64_t *steps, const int64_t *per_epoch,
              int64_t clients, int64_t J, int64_t B, int64_t *out, int64_t *size) {
    int64_t most = 0, from = 0;
    for (int64_t c = 0; c < clients; c++) most = count[c] > most ? count[c] : most;
    if (most >= INT64_C(1) << 31) return 2;
    Key *keys = malloc((2 * most + 1) * sizeof(Key));
    int64_t *next = malloc((most + 2) * sizeof(int64_t));
    if (!keys || !next) {
        free(keys), free(next);
        return 1;
    }
    for (int64_t k = 0; k < clients * J * B; k++) out[k] = -1;
    for (int64_t k = 0; k < clients * J; k++) size[k] = 0;
    for (int64_t c = 0; c < clients; from += count[c], c++)
        for (int64_t epoch = 0; epoch * per_epoch[c] < steps[c]; epoch++) {
            uint64_t base = mix((uint64_t)epoch * GOLDEN + (uint64_t)key[c]);
            for (int64_t s = 0; s < count[c]; s++)
                keys[s] = (Key){mix((uint64_t)s * GOLDEN + base) >> 20, s};
            Key *sorted = keys + most;
            sort(keys, sorted, next, count[c]);
            for (int64_t k = 0; k < count[c] && k / B < per_epoch[c]; k++) {
                int64_t step = epoch * per_epoch[c] + k / B;
                if (step >= steps[c]) break;
                out[(c * J + step) * B + k % B] = row[from + sorted[k].sample];
                size[c * J + step]++;
            }
        }
    free(keys), free(next);
    return 0;
}
