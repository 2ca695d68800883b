/* The order in which clients see their samples, one client at a time: the C form of order_with_torch in batches.py. */
#include "share_out.h"

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

/* The arguments of `order`. */
typedef struct {
    const int64_t *row, *count, *client, *steps;
    int64_t key, least, J, B, *out, *size, *from, most;
} Orders;

static void order_client(void *job, void *room, int64_t c) {
    const Orders *o = job;
    Key *keys = room, *sorted = keys + o->most;
    int64_t *next = (int64_t *)(sorted + o->most), *out = o->out + c * o->J * o->B, *size = o->size + c * o->J;
    int64_t count = o->count[c], left = o->steps[c], per_epoch = count / o->B + (count % o->B >= o->least);
    uint64_t key = mix((uint64_t)o->client[c] * GOLDEN + (uint64_t)o->key);
    for (int64_t k = 0; k < o->J * o->B; k++) out[k] = -1;
    for (int64_t k = 0; k < o->J; k++) size[k] = 0;
    if (per_epoch < 1) per_epoch = 1;
    for (int64_t epoch = 0; left > 0; epoch++, left -= per_epoch) {
        uint64_t base = mix((uint64_t)epoch * GOLDEN + key);
        int64_t steps = left < per_epoch ? left : per_epoch, used = steps * o->B < count ? steps * o->B : count;
        for (int64_t s = 0; s < count; s++) keys[s] = (Key){mix((uint64_t)s * GOLDEN + base) >> 20, s};
        sort(keys, sorted, next, count);
        for (int64_t k = 0; k < used; k++) out[k] = o->row[o->from[c] + sorted[k].sample];
        for (int64_t j = 0; j * o->B < used; j++) size[j] = used - j * o->B < o->B ? used - j * o->B : o->B;
        out += steps * o->B, size += steps;
    }
}

/* Write rows of the pool to out [clients, J, B], -1 for padding, and the batch sizes to size [clients, J]. `key` is that of
 * the round, `least` the samples that make a batch at the end of an epoch. Returns 1 if memory ran out, 2 if a client has
 * too many samples. */
int64_t order(const int64_t *row, const int64_t *count, const int64_t *client, const int64_t *steps, int64_t clients,
              int64_t key, int64_t least, int64_t J, int64_t B, int64_t *out, int64_t *size, int64_t threads) {
    int64_t *from = malloc((clients + 1) * sizeof(int64_t));
    Orders o = {row, count, client, steps, key, least, J, B, out, size, from, 0};
    if (!from) return 1;
    from[0] = 0;
    for (int64_t c = 0; c < clients; c++) {
        from[c + 1] = from[c] + count[c];
        o.most = count[c] > o.most ? count[c] : o.most;
    }
    int64_t wrong = o.most >= INT64_C(1) << 31 ? 2 : 0;
    if (!wrong) wrong = share_out(&o, clients, threads, (2 * o.most) * sizeof(Key) + (o.most + 2) * 8, 0, order_client);
    free(from);
    return wrong;
}
