/* Samples of many clients of SYNTHETIC(alpha, beta): the draws of data/synthetic.py, client by client.
 *
 * Each client has its own Mersenne twister, the same as torch.Generator().manual_seed(seed), and normal numbers are made as
 * in torch (Box-Muller; 16 at a time, or one pair at a time for fewer than 16). So the samples are those of the Python
 * code up to rounding. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WORDS 624
#define AHEAD 397
#define BLOCK 32 /* samples whose scores are computed together */
#define TURN 6.283185307179586

typedef struct {
    uint32_t state[WORDS], word[WORDS];
    int64_t next;
    double kept; /* the second number of the last pair, if has_kept */
    int has_kept;
} Twister;

static void seed(Twister *g, uint32_t value) {
    for (uint32_t i = 0; i < WORDS; i++) {
        g->state[i] = value;
        value = 1812433253u * (value ^ (value >> 30)) + i + 1;
    }
    g->next = WORDS, g->has_kept = 0;
}

static uint32_t twist(uint32_t high, uint32_t low, uint32_t other) {
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return other ^ (y >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
}

/* The next 624 words. No loop reads words that it has written itself, so each can be vectorised. */
static void refill(Twister *g) {
    uint32_t *s = g->state;
    for (int i = 0; i < WORDS - AHEAD; i++) s[i] = twist(s[i], s[i + 1], s[i + AHEAD]);
    for (int from = WORDS - AHEAD; from < WORDS - 1; from += WORDS - AHEAD) {
        int until = from + WORDS - AHEAD < WORDS - 1 ? from + WORDS - AHEAD : WORDS - 1;
#pragma GCC ivdep
        for (int i = from; i < until; i++) s[i] = twist(s[i], s[i + 1], s[i + AHEAD - WORDS]);
    }
    s[WORDS - 1] = twist(s[WORDS - 1], s[0], s[AHEAD - 1]);
    for (int i = 0; i < WORDS; i++) {
        uint32_t y = s[i];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        g->word[i] = y ^ (y >> 18);
    }
    g->next = 0;
}

static uint32_t word(Twister *g) {
    if (g->next == WORDS) refill(g);
    return g->word[g->next++];
}

static double fine(Twister *g) { /* in [0, 1), 53 bits */
    uint64_t high = word(g), low = word(g);
    return (double)((high << 32 | low) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

/* The logarithm of z in (0, 1]: z = 2^e m with m around 1, and log m = 2 artanh((m - 1) / (m + 1)). */
static float logarithm(float z) {
    int32_t bits;
    memcpy(&bits, &z, 4);
    int32_t e = (bits - 0x3f3504f3) >> 23; /* m from sqrt(1/2) to sqrt(2) */
    int32_t rest = bits - e * (1 << 23);
    float m;
    memcpy(&m, &rest, 4);
    float q = (m - 1) / (m + 1), s = q * q;
    return e * 0.693147181f + 2 * q * (1 + s * (1 / 3.f + s * (1 / 5.f + s * (1 / 7.f + s / 9))));
}

/* Replace u1 [8], u2 [8] in [0, 1) by sqrt(-2 log(1 - u1)) times the cosine and the sine of 2 pi u2. */
static void box_muller(float *data) {
    for (int j = 0; j < 8; j++) {
        float radius = sqrtf(-2 * logarithm(1 - data[j])), u = data[j + 8];
        int quarter = (int)(u * 4 + 0.5f);
        float a = (u - quarter * 0.25f) * (float)TURN, s = a * a; /* at most an eighth of a turn either way, exactly */
        float sine = a * (1 + s * (-1 / 6.f + s * (1 / 120.f + s * (-1 / 5040.f + s / 362880))));
        float cosine = 1 + s * (-1 / 2.f + s * (1 / 24.f + s * (-1 / 720.f + s * (1 / 40320.f - s / 3628800))));
        float x = quarter & 1 ? -sine : cosine, y = quarter & 1 ? cosine : sine;
        data[j] = quarter & 2 ? -radius * x : radius * x;
        data[j + 8] = quarter & 2 ? -radius * y : radius * y;
    }
}

static void uniforms(Twister *g, float *out, int64_t n) { /* in [0, 1), 24 bits */
    while (n > 0) {
        if (g->next == WORDS) refill(g);
        int64_t some = WORDS - g->next < n ? WORDS - g->next : n;
        for (int64_t i = 0; i < some; i++) out[i] = (float)(int32_t)(g->word[g->next + i] & 0xffffff) * 0x1p-24f;
        g->next += some, out += some, n -= some;
    }
}

static void normals(Twister *g, float *out, int64_t n) {
    if (n >= 16) {
        uniforms(g, out, n);
        for (int64_t i = 0; i + 16 <= n; i += 16) box_muller(out + i);
        if (n % 16) {
            uniforms(g, out + n - 16, 16);
            box_muller(out + n - 16);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double one = g->kept;
        if (!g->has_kept) {
            double turn = fine(g) * TURN, radius = sqrt(-2 * log1p(-fine(g)));
            one = radius * cos(turn), g->kept = radius * sin(turn);
        }
        g->has_kept = !g->has_kept;
        out[i] = (float)one;
    }
}

/* y = argmax(x W + b); of equal scores the first. */
static void label(const float *x, const float *weight, const float *bias, int64_t n, int64_t D, int64_t L, float *tile,
                  float *score, int64_t *y) {
    for (int64_t from = 0; from < n; from += BLOCK) {
        int64_t some = n - from < BLOCK ? n - from : BLOCK;
        for (int64_t d = 0; d < D; d++)
            for (int64_t s = 0; s < BLOCK; s++) tile[d * BLOCK + s] = s < some ? x[(from + s) * D + d] : 0;
        for (int64_t l = 0; l < L; l++) {
            float sum[BLOCK];
            for (int s = 0; s < BLOCK; s++) sum[s] = bias[l];
            for (int64_t d = 0; d < D; d++)
                for (int s = 0; s < BLOCK; s++) sum[s] += tile[d * BLOCK + s] * weight[d * L + l];
            memcpy(score + l * BLOCK, sum, sizeof sum);
        }
        for (int64_t s = 0; s < some; s++) {
            int64_t best = 0;
            for (int64_t l = 1; l < L; l++) best = score[l * BLOCK + s] > score[best * BLOCK + s] ? l : best;
            y[from + s] = best;
        }
    }
}

/* Fill x [sum of size, D] and y, one client after another. `common` is W, then b, of all clients; 0: each draws its own.
 * Returns 0, or 1 if memory ran out. */
int64_t make(const int64_t *seeds, const int64_t *size, int64_t clients, int64_t D, int64_t L, double alpha, double beta,
             const float *common, const float *scale, float *x, int64_t *y) {
    Twister *g = malloc(sizeof *g);
    float *own = malloc((D * L + L + D + (D + L) * BLOCK) * sizeof *own);
    if (!g || !own) {
        free(g), free(own);
        return 1;
    }
    float *weight = own, *bias = weight + D * L, *mean = bias + L, *tile = mean + D, *score = tile + D * BLOCK;
    for (int64_t d = 0; d < D; d++) mean[d] = 0;
    if (common) memcpy(weight, common, (D * L + L) * sizeof *own);
    for (int64_t c = 0; c < clients; c++) {
        seed(g, (uint32_t)seeds[c]);
        if (!common) {
            float u, centre;
            normals(g, &u, 1), normals(g, &centre, 1), normals(g, mean, D), normals(g, weight, D * L), normals(g, bias, L);
            u *= (float)alpha, centre *= (float)beta;
            for (int64_t d = 0; d < D; d++) mean[d] += centre;
            for (int64_t k = 0; k < D * L + L; k++) weight[k] += u;
        }
        int64_t n = size[c];
        normals(g, x, n * D);
        for (int64_t s = 0; s < n; s++)
            for (int64_t d = 0; d < D; d++) x[s * D + d] = x[s * D + d] * scale[d] + mean[d];
        label(x, weight, bias, n, D, L, tile, score, y);
        x += n * D, y += n;
    }
    free(g), free(own);
    return 0;
}
