/* The masks of engine/dropout.py: 0 or `gain` for every position, by its hash under the client's key. */
#include <stdint.h>

#define GOLDEN 0x9E3779B97F4A7C15u
#define MIX_1 0xBF58476D1CE4E5B9u
#define MIX_2 0x94D049BB133111EBu

int64_t mask(const int64_t *key, int64_t clients, int64_t count, int64_t least, double gain, REAL *out) {
    for (int64_t c = 0; c < clients; c++)
        for (int64_t p = 0; p < count; p++) {
            uint64_t z = (uint64_t)p * GOLDEN + (uint64_t)key[c];
            z = (z ^ (z >> 30)) * MIX_1;
            z = (z ^ (z >> 27)) * MIX_2;
            z ^= z >> 31;
            out[c * count + p] = (int64_t)((z >> 20) & 0x7FFFFFFF) >= least ? (REAL)gain : (REAL)0;
        }
    return 0;
}
