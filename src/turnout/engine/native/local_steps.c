/* Local training of a few clients by SGD or Adam: stacks of dense layers, stride-1 convolutions, BatchNorms, ReLUs,
 * max-pools and dropout under a cross-entropy. One client after another does all of its steps, so that its weights stay in
 * the cache and its result does not depend on the other clients, not even in the last bit.
 *
 * Compiled by native/steps.py for each type of number (which defines REAL, EXP and LOG). Vectors are an extension of GCC
 * and Clang; the compiler maps them to the machine's registers.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX__
#define BYTES 32
#else
#define BYTES 16 /* every other machine has these; the compiler would keep wider vectors in memory */
#endif
typedef REAL vec __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((vec){0} > (vec){0}) mask;
#define VL ((long)(BYTES / sizeof(REAL)))
#define LOAD(p) (*(const vec *)(p))
#define STORE(p, v) (*(vec *)(p) = (v))
#define INLINE static inline __attribute__((always_inline))
#define SQUARE 16
#define UP(n) (((n) + VL - 1) / VL * VL)

enum { DENSE, CONVOLUTION, NORM, RELU, POOL, DROP }; /* up to NORM they have weights */
enum { PLAIN, MOMENTUM, ADAM };

typedef struct {
    int64_t kind;
    int64_t in, out;              /* numbers per sample before and after the layer */
    int64_t weight, bias;         /* columns where they begin in a client's row; bias -1: none */
    int64_t i, o, h, w;           /* input and output channels, height and width of the input */
    int64_t kh, kw, ph, pw;       /* kernel and padding */
} Layer; /* dropout: i its key among a step's, o the least hash that is kept, h the bits of the gain, w numbers a hash;
            BatchNorm: i features of w positions each, h the bits of epsilon, o of the momentum, kh where its means begin
            among a client's statistics, kw where its variances do */

/* What a step does. The backward pass makes keep T - gain dL/dW of a target T, which is W itself for plain SGD. */
typedef struct {
    int64_t kind;
    double keep, gain, decay, beta1, beta2;
    double scale, small; /* Adam, for a client and step: W - m / (scale sqrt(v) + small) */
} Rule;

/* A layer's memory while a client trains. */
typedef struct {
    REAL *x, *dx;   /* the input and its gradient, one sample after another */
    long stride;    /* from one sample's x to the next */
    REAL *T, *tb;   /* where the backward pass adds gradients: W and b themselves, or memory of their own */
    REAL *m, *mb, *v, *vb; /* Adam's moments */
    long weights, biases;
    REAL *W, *b;    /* weights and bias; a dense layer has W in panels two vectors of outputs wide, one line per input */
    long width;     /* outputs of a dense layer, padded to whole vectors (so the last panel may be one vector wide) */
    REAL *K, *F, *Kb, *Fb; /* springs: a step makes K W + F - lr g of W; without springs 0, and it makes keep W - lr g */
    REAL *d;        /* gradient of a convolution's output with lines padded to whole vectors; scratch memory for the loss;
                       BatchNorm's x less its mean, in units of its spread */
    REAL *inverse;  /* BatchNorm: 1 / sqrt(variance + epsilon) of each feature */
    int32_t *largest; /* where the largest entry of each pooling window is in x */
} Room;

INLINE REAL sum(vec v) {
    REAL s = 0;
    for (long k = 0; k < VL; k++) s += v[k];
    return s;
}

/* The larger of each pair; NaN wins. */
INLINE vec larger(vec a, vec b) {
    mask first = (a > b) | (a != a);
    return (vec)((first & (mask)a) | (~first & (mask)b));
}

/* -- dense */

/* Blocks of outputs are two vectors wide (one wide vector on AVX-512); the last block may be one vector wide. */
#define BLOCKS(name, type, N) \
    INLINE void forward_##name(const int S, const REAL *x, long xs, const REAL *W, long in, const REAL *b, REAL *y, \
                               long ys) { \
        const long L = sizeof(type) / sizeof(REAL); \
        type a[5][N]; \
        for (int s = 0; s < S; s++) \
            for (int n = 0; n < N; n++) a[s][n] = *(const type *)(b + n * L); \
        for (long i = 0; i < in; i++) \
            for (int n = 0; n < N; n++) { \
                type w = *(const type *)(W + (i * N + n) * L); \
                for (int s = 0; s < S; s++) a[s][n] += w * x[s * xs + i]; \
            } \
        for (int s = 0; s < S; s++) \
            for (int n = 0; n < N; n++) *(type *)(y + s * ys + n * L) = a[s][n]; \
    } \
    INLINE void descend_##name(const int I, const REAL *x, long xs, const REAL *d, long ds, long B, REAL *W, REAL keep, \
                               const REAL *K, const REAL *F) { \
        const long L = sizeof(type) / sizeof(REAL); \
        type a[4][N]; \
        for (int i = 0; i < I; i++) \
            for (int n = 0; n < N; n++) { \
                long at = (i * N + n) * L; \
                type w = *(const type *)(W + at); \
                a[i][n] = K ? w * *(const type *)(K + at) + *(const type *)(F + at) : w * keep; \
            } \
        for (long s = 0; s < B; s++) \
            for (int n = 0; n < N; n++) { \
                type g = *(const type *)(d + s * ds + n * L); \
                for (int i = 0; i < I; i++) a[i][n] -= g * x[s * xs + i]; \
            } \
        for (int i = 0; i < I; i++) \
            for (int n = 0; n < N; n++) *(type *)(W + (i * N + n) * L) = a[i][n]; \
    }
BLOCKS(vec, vec, 1)
#ifdef __AVX512F__
typedef REAL wide __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));
BLOCKS(pair, wide, 1)
#else
BLOCKS(pair, vec, 2)
#endif

static void dense_forward(const Layer *h, const Room *r, long B, REAL *y, long ys) {
    for (long n = 0; n < r->width; n += 2 * VL)
        for (long s = 0; s < B; s += 5) {
            const REAL *x = r->x + s * r->stride, *W = r->W + n * h->in, *b = r->b + n;
            REAL *to = y + s * ys + n;
#define CASE(s_) \
    case 2 * s_: forward_vec(s_, x, r->stride, W, h->in, b, to, ys); break; \
    case 2 * s_ + 1: forward_pair(s_, x, r->stride, W, h->in, b, to, ys); break;
            switch (2 * (B - s < 5 ? B - s : 5) + (n + VL < r->width)) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) }
#undef CASE
        }
}

/* Gradient of I inputs for S samples, one panel after another. */
INLINE void back_block(const int S, const int I, const REAL *d, long ds, const REAL *W, long in, long width, long at,
                       REAL *dx, long stride) {
    vec a[5][2];
    for (int s = 0; s < S; s++)
        for (int i = 0; i < I; i++) a[s][i] = (vec){0};
    for (long n = 0; n < width; n += VL) {
        long panel = n / (2 * VL) * 2 * VL, P = width - panel < 2 * VL ? VL : 2 * VL;
        const REAL *line = W + panel * in + at * P + n - panel;
        for (int s = 0; s < S; s++) {
            vec g = LOAD(d + s * ds + n);
            for (int i = 0; i < I; i++) a[s][i] += g * LOAD(line + i * P);
        }
    }
    for (int s = 0; s < S; s++)
        for (int i = 0; i < I; i++) dx[s * stride + i] = sum(a[s][i]);
}

static void dense_backward(const Layer *h, const Room *r, long B, const REAL *d, long ds, REAL keep, int first) {
    for (long s = 0; s < B && !first; s += 5)
        for (long i = 0; i < h->in; i += 2) {
            const REAL *g = d + s * ds;
            REAL *dx = r->dx + s * r->stride + i;
#define CASE(s_, i_) \
    case 2 * s_ + i_: back_block(s_, i_, g, ds, r->W, h->in, r->width, i, dx, r->stride); break;
            switch (2 * (B - s < 5 ? B - s : 5) + (i + 1 < h->in ? 2 : 1)) {
                CASE(1, 1) CASE(1, 2) CASE(2, 1) CASE(2, 2) CASE(3, 1)
                CASE(3, 2) CASE(4, 1) CASE(4, 2) CASE(5, 1) CASE(5, 2)
            }
#undef CASE
        }
    for (long n = 0; n < r->width; n += 2 * VL) {
        int two = n + VL < r->width;
        for (long i = 0; i < h->in; i += i + 4 <= h->in ? 4 : 1) {
            long P = two ? 2 * VL : VL, at = n * h->in + i * P;
            const REAL *x = r->x + i, *g = d + n, *K = r->K ? r->K + at : 0, *F = r->K ? r->F + at : 0;
            REAL *W = r->T + at;
            if (i + 4 <= h->in) {
                if (two) descend_pair(4, x, r->stride, g, ds, B, W, keep, K, F);
                else descend_vec(4, x, r->stride, g, ds, B, W, keep, K, F);
            } else if (two) descend_pair(1, x, r->stride, g, ds, B, W, keep, K, F);
            else descend_vec(1, x, r->stride, g, ds, B, W, keep, K, F);
        }
    }
    if (h->bias >= 0)
        for (long n = 0; n < r->width; n += VL) {
            vec a = r->K ? LOAD(r->tb + n) * LOAD(r->Kb + n) + LOAD(r->Fb + n) : LOAD(r->tb + n) * keep;
            for (long s = 0; s < B; s++) a -= LOAD(d + s * ds + n);
            STORE(r->tb + n, a);
        }
}

/* -- convolution: a vector holds neighbouring positions of an output line; P vectors of O channels stay in registers */

typedef struct { long from, to, left; } Place; /* a vector's offset in the input and the output, and its real entries */

INLINE void conv_block(const int O, const int P, const Layer *h, long w, long plane, const REAL *x, const REAL *W,
                       const REAL *b, const Place *place, long out, REAL *y) {
    vec a[4][3];
    long taps = h->i * h->kh * h->kw;
    for (int o = 0; o < O; o++)
        for (int p = 0; p < P; p++) a[o][p] = (vec){0} + (b ? b[o] : 0);
    for (long i = 0, t = 0; i < h->i; i++)
        for (long ky = 0; ky < h->kh; ky++)
            for (long kx = 0; kx < h->kw; kx++, t++) {
                const REAL *from = x + i * plane + ky * w + kx;
                for (int p = 0; p < P; p++) {
                    vec v = LOAD(from + place[p].from);
                    for (int o = 0; o < O; o++) a[o][p] += v * W[o * taps + t];
                }
            }
    for (int o = 0; o < O; o++)
        for (int p = 0; p < P; p++)
            if (place[p].left >= VL) STORE(y + o * out + place[p].to, a[o][p]);
            else for (long k = 0; k < place[p].left; k++) y[o * out + place[p].to + k] = a[o][p][k];
}

static void conv_forward(const Layer *h, const Room *r, long B, const Place *place, long places, REAL *y, long ys) {
    long w = h->w + 2 * h->pw, plane = (h->h + 2 * h->ph) * w, taps = h->i * h->kh * h->kw;
    long out = (h->h + 2 * h->ph - h->kh + 1) * (w - h->kw + 1);
    for (long s = 0; s < B; s++)
        for (long o = 0; o < h->o; o += 4) {
            const REAL *x = r->x + s * r->stride, *W = r->W + o * taps, *b = h->bias >= 0 ? r->b + o : 0;
            REAL *to = y + s * ys + o * out;
            for (long p = 0; p < places; p += 3) {
                long P = places - p < 3 ? places - p : 3, O = h->o - o < 4 ? h->o - o : 4;
#define CASE(o_, p_) case 4 * o_ + p_: conv_block(o_, p_, h, w, plane, x, W, b, place + p, out, to); break;
                switch (4 * O + P) {
                    CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(2, 1) CASE(2, 2) CASE(2, 3)
                    CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(4, 1) CASE(4, 2) CASE(4, 3)
                }
#undef CASE
            }
        }
}

/* Gradient of the input: each output position adds to the input positions it was computed from. */
INLINE void spread_block(const int K, const int P, long taps, long channels, long padded, const REAL *W, const REAL *d,
                         const Place *place, const long *at, REAL *dx) {
    vec a[2][5];
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) a[p][k] = (vec){0};
    for (long o = 0; o < channels; o++)
        for (int p = 0; p < P; p++) {
            vec v = LOAD(d + o * padded + at[p]);
            for (int k = 0; k < K; k++) a[p][k] += v * W[o * taps + k];
        }
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) {
            REAL *to = dx + place[p].from + k;
            STORE(to, LOAD(to) + a[p][k]);
        }
}

/* Update of one kernel line's weights for O output channels; the gradient is a sum over samples and positions. */
INLINE void weigh_block(const int O, const int K, long B, const REAL *x, long xs, const REAL *d, long ds, long padded,
                        const Place *place, const long *at, long places, REAL *W, long taps, REAL keep, const REAL *K_,
                        const REAL *F_) {
    vec a[2][5];
    for (int o = 0; o < O; o++)
        for (int k = 0; k < K; k++) a[o][k] = (vec){0};
    for (long s = 0; s < B; s++)
        for (long p = 0; p < places; p++) {
            const REAL *from = x + s * xs + place[p].from;
            vec g[2];
            for (int o = 0; o < O; o++) g[o] = LOAD(d + s * ds + o * padded + at[p]);
            for (int k = 0; k < K; k++) {
                vec v = LOAD(from + k);
                for (int o = 0; o < O; o++) a[o][k] += g[o] * v;
            }
        }
    for (int o = 0; o < O; o++)
        for (int k = 0; k < K; k++) {
            long t = o * taps + k;
            W[t] = (K_ ? W[t] * K_[t] + F_[t] : W[t] * keep) - sum(a[o][k]);
        }
}

static void conv_backward(const Layer *h, const Room *r, long B, const Place *place, const long *at, long places,
                          const REAL *d, long ds, REAL keep, int first) {
    long w = h->w + 2 * h->pw, high = h->h + 2 * h->ph, plane = high * w, taps = h->i * h->kh * h->kw;
    long oh = high - h->kh + 1, ow = w - h->kw + 1, line = UP(ow), padded = oh * line;
    for (long s = 0; s < B; s++) /* lines padded with zeros */
        for (long o = 0; o < h->o; o++)
            for (long y = 0; y < oh; y++)
                memcpy(r->d + (s * h->o + o) * padded + y * line, d + s * ds + (o * oh + y) * ow, ow * sizeof(REAL));
    if (!first) {
        memset(r->dx, 0, B * r->stride * sizeof(REAL));
        for (long s = 0; s < B; s++)
            for (long i = 0; i < h->i; i++)
                for (long ky = 0; ky < h->kh; ky++)
                    for (long k = 0; k < h->kw; k += 5)
                        for (long p = 0; p < places; p += 2) {
                            const REAL *W = r->W + (i * h->kh + ky) * h->kw + k, *g = r->d + s * h->o * padded;
                            REAL *dx = r->dx + s * r->stride + i * plane + ky * w + k;
                            long K = h->kw - k < 5 ? h->kw - k : 5, P = places - p < 2 ? 1 : 2;
#define CASE(k_, p_) case 2 * k_ + p_: spread_block(k_, p_, taps, h->o, padded, W, g, place + p, at + p, dx); break;
                            switch (2 * K + P) {
                                CASE(1, 1) CASE(1, 2) CASE(2, 1) CASE(2, 2) CASE(3, 1)
                                CASE(3, 2) CASE(4, 1) CASE(4, 2) CASE(5, 1) CASE(5, 2)
                            }
#undef CASE
                        }
    }
    for (long o = 0; o < h->o; o += 2)
        for (long i = 0; i < h->i; i++)
            for (long ky = 0; ky < h->kh; ky++)
                for (long k = 0; k < h->kw; k += 5) {
                    const REAL *x = r->x + i * plane + ky * w + k, *g = r->d + o * padded;
                    long line_ = o * taps + (i * h->kh + ky) * h->kw + k;
                    REAL *W = r->T + line_;
                    const REAL *K_ = r->K ? r->K + line_ : 0, *F_ = r->K ? r->F + line_ : 0;
                    long K = h->kw - k < 5 ? h->kw - k : 5, O = h->o - o < 2 ? 1 : 2, gs = h->o * padded;
#define CASE(o_, k_) \
    case 8 * o_ + k_: weigh_block(o_, k_, B, x, r->stride, g, gs, padded, place, at, places, W, taps, keep, K_, F_); break;
                    switch (8 * O + K) {
                        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(1, 5)
                        CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4) CASE(2, 5)
                    }
#undef CASE
                }
    if (h->bias >= 0)
        for (long o = 0; o < h->o; o++) {
            vec a = (vec){0};
            for (long s = 0; s < B; s++)
                for (long p = 0; p < padded; p += VL) a += LOAD(r->d + (s * h->o + o) * padded + p);
            r->tb[o] = (r->K ? r->tb[o] * r->Kb[o] + r->Fb[o] : r->tb[o] * keep) - sum(a);
        }
}

/* -- BatchNorm: the mean of each feature over samples and positions is 0, its variance 1, before weight and bias */

INLINE double number(int64_t bits) {
    double found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

INLINE REAL towards(REAL from, REAL to, REAL weight) { /* torch's lerp */
    return weight < (REAL)0.5 ? from + weight * (to - from) : to - (to - from) * (1 - weight);
}

/* Σ (a - c) (b - c) over n numbers, and Σ a. */
INLINE REAL product_of(const REAL *a, const REAL *b, REAL c, long n) {
    vec v = (vec){0};
    long k = 0;
    for (; k + VL <= n; k += VL) v += (LOAD(a + k) - c) * (LOAD(b + k) - c);
    REAL found = sum(v);
    for (; k < n; k++) found += (a[k] - c) * (b[k] - c);
    return found;
}

INLINE REAL sum_of(const REAL *a, long n) {
    vec v = (vec){0};
    long k = 0;
    for (; k + VL <= n; k += VL) v += LOAD(a + k);
    REAL found = sum(v);
    for (; k < n; k++) found += a[k];
    return found;
}

static void norm_forward(const Layer *h, const Room *r, long B, REAL *y, long ys, REAL *statistics) {
    const long L = h->w;
    const double n = (double)(B * L);
    const REAL momentum = (REAL)number(h->o), epsilon = (REAL)number(h->h);
    for (long i = 0; i < h->i; i++) {
        double total = 0, squares = 0;
        for (long s = 0; s < B; s++) total += sum_of(r->x + s * r->stride + i * L, L);
        const REAL mean = (REAL)(total / n);
        for (long s = 0; s < B; s++) {
            const REAL *x = r->x + s * r->stride + i * L;
            squares += product_of(x, x, mean, L);
        }
        const REAL var = (REAL)(squares / n), inverse = 1 / ROOT(var + epsilon), scale = r->W[i], shift = r->b[i];
        REAL *means = statistics + h->kh, *variances = statistics + h->kw;
        means[i] = towards(means[i], mean, momentum);
        variances[i] = towards(variances[i], var * (REAL)(n / (n - 1)), momentum);
        r->inverse[i] = inverse;
        for (long s = 0; s < B; s++) {
            const REAL *x = r->x + s * r->stride + i * L;
            REAL *restrict hat = r->d + s * r->stride + i * L, *restrict to = y + s * ys + i * L;
            for (long k = 0; k < L; k++) hat[k] = (x[k] - mean) * inverse, to[k] = hat[k] * scale + shift;
        }
    }
}

static void norm_backward(const Layer *h, const Room *r, long B, const REAL *d, long ds, REAL keep, int first) {
    const long L = h->w;
    const double n = (double)(B * L);
    for (long i = 0; i < h->i; i++) {
        double scale = 0, shift = 0;
        for (long s = 0; s < B; s++) {
            const REAL *g = d + s * ds + i * L, *hat = r->d + s * r->stride + i * L;
            scale += product_of(g, hat, 0, L), shift += sum_of(g, L);
        }
        const REAL factor = r->W[i] * r->inverse[i], along = (REAL)(scale / n), all = (REAL)(shift / n);
        for (long s = 0; s < B && !first; s++) {
            const REAL *g = d + s * ds + i * L, *hat = r->d + s * r->stride + i * L;
            REAL *restrict dx = r->dx + s * r->stride + i * L;
            for (long k = 0; k < L; k++) dx[k] = factor * (g[k] - all - hat[k] * along);
        }
        r->T[i] = (r->K ? r->T[i] * r->K[i] + r->F[i] : r->T[i] * keep) - (REAL)scale;
        r->tb[i] = (r->K ? r->tb[i] * r->Kb[i] + r->Fb[i] : r->tb[i] * keep) - (REAL)shift;
    }
}

/* -- ReLU, max-pool and the loss */

static void relu(REAL *x, long n) {
    for (long k = 0; k < n; k++) x[k] = x[k] < 0 ? 0 : x[k]; /* NaN stays NaN */
}

/* Multiply by the addressed mask of engine/dropout.py; the same for activations and their gradients. */
static void drop(const Layer *h, REAL *x, long stride, long B, const int64_t *keys) {
    double gain;
    memcpy(&gain, &h->h, sizeof gain);
    for (long b = 0; b < B; b++)
        for (long k = 0; k < h->in; k++) {
            uint64_t z = (uint64_t)((b * h->in + k) / h->w) * 0x9E3779B97F4A7C15u + (uint64_t)keys[h->i];
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
            z ^= z >> 31;
            x[b * stride + k] *= (int64_t)((z >> 20) & 0x7FFFFFFF) >= h->o ? (REAL)gain : 0;
        }
}

INLINE void pool_block(const int KH, const int KW, const Layer *h, const REAL *x, REAL *y, int32_t *largest) {
    long oh = h->h / KH, ow = h->w / KW;
    for (long i = 0; i < h->i; i++)
        for (long v = 0; v < oh; v++)
            for (long u = 0; u < ow; u++) {
                int32_t at = (int32_t)((i * h->h + v * KH) * h->w + u * KW), best = at;
                REAL most = x[at];
                int odd = 0; /* whether there is a NaN: the last one wins */
                for (int a = 0; a < KH; a++)
                    for (int b = 0; b < KW; b++) {
                        int32_t here = at + (int32_t)(a * h->w) + b;
                        int more = x[here] > most;
                        most = more ? x[here] : most;
                        best = more ? here : best;
                        odd |= x[here] != x[here];
                    }
                for (int k = 0; odd && k < KH * KW; k++) {
                    int32_t here = at + (int32_t)(k / KW * h->w) + k % KW;
                    if (x[here] != x[here]) most = x[here], best = here;
                }
                *y++ = most;
                *largest++ = best;
            }
}

static void pool_forward(const Layer *h, const Room *r, long B, REAL *y, long ys) {
    for (long s = 0; s < B; s++) {
        const REAL *x = r->x + s * r->stride;
        if (h->kh == 2 && h->kw == 2) pool_block(2, 2, h, x, y + s * ys, r->largest + s * h->out);
        else pool_block((int)h->kh, (int)h->kw, h, x, y + s * ys, r->largest + s * h->out);
    }
}

static void pool_backward(const Layer *h, const Room *r, long B, const REAL *d, long ds) {
    for (long s = 0; s < B; s++) {
        memset(r->dx + s * r->stride, 0, h->in * sizeof(REAL));
        for (long k = 0; k < h->out; k++) r->dx[s * r->stride + r->largest[s * h->out + k]] = d[s * ds + k];
    }
}

/* e^x for x <= 0. In single precision a polynomial (coefficients of Cephes), exact to the last bit or two. */
INLINE vec raise(vec x) {
    vec y;
#ifdef SINGLE
    vec low = larger(x, (vec){0} - 87.0f);
    vec times = low * 1.44269504088896341f + 12582912.0f; /* rounded to a whole number in the lowest bits */
    vec n = times - 12582912.0f, r = low - n * 0.693359375f + n * 2.12194440e-4f, p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    y = p * (vec)((__builtin_convertvector(n, mask) + 127) << 23);
#else
    for (long k = 0; k < VL; k++) y[k] = EXP(x[k]);
#endif
    return y;
}

/* The mean loss of a batch; replaces the scores by gain times its gradient. A vector holds one class of several samples
 * (the last sample repeated if there are too few); `e` is scratch memory for all classes. */
static REAL cross_entropy(REAL *z, long zs, long classes, const int64_t *y, long B, REAL gain, REAL *e) {
    REAL loss = 0;
    for (long first = 0; first < B; first += VL) {
        long lanes = B - first < VL ? B - first : VL;
        const REAL *q[VL];
        for (long s = 0; s < VL; s++) q[s] = z + (first + (s < lanes ? s : lanes - 1)) * zs;
        vec most = {0}, total = {0}, scale;
        for (long k = 0; k < classes; k++) {
            vec v;
            for (long s = 0; s < VL; s++) v[s] = q[s][k];
            STORE(e + k * VL, v);
            most = k == 0 ? v : larger(v, most);
        }
        for (long k = 0; k < classes; k++) {
            vec v = raise(LOAD(e + k * VL) - most);
            STORE(e + k * VL, v);
            total += v;
        }
        for (long s = 0; s < lanes; s++) loss += LOG(total[s]) - (q[s][y[first + s]] - most[s]);
        scale = gain / B / total;
        for (long k = 0; k < classes; k++) {
            vec v = LOAD(e + k * VL) * scale;
            for (long s = 0; s < lanes; s++) z[(first + s) * zs + k] = v[s];
        }
        for (long s = 0; s < lanes; s++) z[(first + s) * zs + y[first + s]] -= gain / B;
    }
    return loss / B;
}

static void pad_image(const Layer *h, const REAL *x, REAL *to) { /* copy an image into one with a border of zeros */
    long w = h->w + 2 * h->pw;
    for (long i = 0; i < h->i; i++)
        for (long y = 0; y < h->h; y++)
            memcpy(to + (i * (h->h + 2 * h->ph) + y + h->ph) * w + h->pw, x + (i * h->h + y) * h->w, h->w * sizeof(REAL));
}

/* -- a client's steps */

typedef struct {
    Room room;
    REAL *given, *dgiven; /* input as the layer before wrote it, and its gradient; padded convolutions copy it to `room` */
    long stride;
    Place *place;
    long *at, places;
} State;

/* Memory for all layers. `lay_out` runs twice: without memory to count the bytes, then with memory to place pointers. */
typedef struct { char *memory; long bytes; } Heap;

static void *get(Heap *heap, long count, long size) {
    long bytes = (count * size + 63) / 64 * 64;
    void *found = heap->memory ? heap->memory + heap->bytes : 0;
    heap->bytes += bytes;
    return found;
}

static void get_weights(Heap *heap, Room *r, long weights, long biases, int springs, int64_t kind) {
    r->weights = weights, r->biases = biases;
    r->W = get(heap, weights, sizeof(REAL));
    r->b = get(heap, biases, sizeof(REAL));
    r->T = kind == PLAIN ? r->W : get(heap, weights, sizeof(REAL));
    r->tb = kind == PLAIN ? r->b : get(heap, biases, sizeof(REAL));
    if (kind == ADAM) {
        r->m = get(heap, weights, sizeof(REAL)), r->v = get(heap, weights, sizeof(REAL));
        r->mb = get(heap, biases, sizeof(REAL)), r->vb = get(heap, biases, sizeof(REAL));
    }
    if (!springs) return;
    r->K = get(heap, weights, sizeof(REAL)), r->F = get(heap, weights, sizeof(REAL));
    r->Kb = get(heap, biases, sizeof(REAL)), r->Fb = get(heap, biases, sizeof(REAL));
}

static void lay_out(Heap *heap, const Layer *layers, State *states, long n, long B, int springs, int64_t kind) {
    for (long l = 0; l <= n; l++) {
        State *s = states + l;
        const Layer *h = layers + l;
        int in_place = l > 0 && (layers[l - 1].kind == RELU || layers[l - 1].kind == DROP);
        long size = l < n ? h->in : layers[n - 1].out;
        s->stride = in_place ? s[-1].stride : UP(size) + VL;
        s->given = in_place ? s[-1].given : get(heap, B * s->stride, sizeof(REAL));
        s->dgiven = in_place ? s[-1].dgiven : get(heap, B * s->stride, sizeof(REAL));
        Room *r = &s->room;
        if (l == n) {
            r->d = get(heap, size * VL, sizeof(REAL));
            break;
        }
        r->x = s->given, r->dx = s->dgiven, r->stride = s->stride;
        if (h->kind == DENSE) {
            r->width = UP(h->out);
            get_weights(heap, r, h->in * r->width, r->width, springs, kind);
        } else if (h->kind == NORM) {
            r->d = get(heap, B * r->stride, sizeof(REAL));
            r->inverse = get(heap, h->i, sizeof(REAL));
            get_weights(heap, r, h->i, h->i, springs, kind);
        } else if (h->kind == POOL) {
            r->largest = get(heap, B * h->out, sizeof(int32_t));
        } else if (h->kind == CONVOLUTION) {
            long w = h->w + 2 * h->pw, high = h->h + 2 * h->ph, oh = high - h->kh + 1, ow = w - h->kw + 1;
            if (h->ph || h->pw) {
                r->stride = UP(h->i * high * w) + VL;
                r->x = get(heap, B * r->stride, sizeof(REAL));
                r->dx = get(heap, B * r->stride, sizeof(REAL));
            }
            r->d = get(heap, B * h->o * oh * UP(ow), sizeof(REAL));
            get_weights(heap, r, h->o * h->i * h->kh * h->kw, h->o, springs, kind);
            s->places = oh * UP(ow) / VL;
            s->place = get(heap, s->places, sizeof(Place));
            s->at = get(heap, s->places, sizeof(long));
            for (long y = 0, p = 0; y < oh && s->place; y++)
                for (long x = 0; x < ow; x += VL, p++) {
                    s->place[p] = (Place){y * w + x, y * ow + x, ow - x};
                    s->at[p] = y * UP(ow) + x;
                }
        }
    }
}

/* Transpose and subtract `base` (if any), a square at a time, so that whole cache lines are used. */
INLINE void transpose(const REAL *from, long lines, long columns, long stride, const REAL *base, REAL *to, long to_stride) {
    for (long l = 0; l < lines; l += SQUARE)
        for (long c = 0; c < columns; c += SQUARE) {
            long high = lines - l < SQUARE ? lines - l : SQUARE, wide = columns - c < SQUARE ? columns - c : SQUARE;
            for (long j = 0; j < wide; j++)
                for (long i = 0, at = (c + j) * to_stride + l; i < high; i++, at++)
                    to[at] = from[(l + i) * stride + c + j] - (base ? base[at] : 0);
        }
}

INLINE void less(const REAL *from, long n, const REAL *base, REAL *to) {
    for (long i = 0; i < n; i++) to[i] = from[i] - (base ? base[i] : 0);
}

/* Copy a layer's weights from a client's row into the layer's memory. Padding is set to 0 again after the last client. */
static void take(const Layer *h, long width, const REAL *row, REAL *W, REAL *b) {
    if (h->kind == DENSE) {
        memset(b, 0, width * sizeof(REAL));
        for (long n = 0; n < width; n += 2 * VL) {
            long P = width - n < 2 * VL ? VL : 2 * VL, real = h->out - n < P ? h->out - n : P;
            for (long i = 0; i < h->in && real < P; i++) memset(W + n * h->in + i * P + real, 0, (P - real) * sizeof(REAL));
            transpose(row + h->weight + n * h->in, real, h->in, h->in, 0, W + n * h->in, P);
        }
        if (h->bias >= 0) memcpy(b, row + h->bias, h->out * sizeof(REAL));
    } else if (h->kind == CONVOLUTION) {
        memcpy(W, row + h->weight, h->o * h->i * h->kh * h->kw * sizeof(REAL));
        if (h->bias >= 0) memcpy(b, row + h->bias, h->o * sizeof(REAL));
    } else if (h->kind == NORM) {
        memcpy(W, row + h->weight, h->i * sizeof(REAL)), memcpy(b, row + h->bias, h->i * sizeof(REAL));
    }
}

/* Write a layer's weights W, b to the client's row; those in columns before `shared` as their change since `start`. */
static void give(const Layer *h, long width, const REAL *W, const REAL *b, const REAL *start, long shared, REAL *row) {
    const REAL *base = h->weight < shared ? start + h->weight : 0, *bias = h->bias < shared ? start + h->bias : 0;
    for (long n = 0; n < width && h->kind == DENSE; n += 2 * VL) {
        long P = width - n < 2 * VL ? VL : 2 * VL, real = h->out - n < P ? h->out - n : P, from = n * h->in;
        transpose(W + from, h->in, real, P, base ? base + from : 0, row + h->weight + from, h->in);
    }
    if (h->kind == CONVOLUTION) less(W, h->o * h->i * h->kh * h->kw, base, row + h->weight);
    if (h->kind == NORM) less(W, h->i, base, row + h->weight), less(b, h->i, bias, row + h->bias);
    if (h->kind <= CONVOLUTION && h->bias >= 0) less(b, h->kind == DENSE ? h->out : h->o, bias, row + h->bias);
}

/* What is left of a step when the backward pass has ended: T is -lr times the momentum, or minus the gradient. */
static void apply(const Rule *rule, long n, REAL *restrict W, REAL *restrict T, REAL *restrict m, REAL *restrict v) {
    const REAL decay = rule->decay, one = 1 - rule->beta1, beta2 = rule->beta2, two = 1 - rule->beta2;
    const REAL scale = rule->scale, small = rule->small;
    if (rule->kind == MOMENTUM)
        for (long k = 0; k < n; k++) T[k] -= decay * W[k], W[k] += T[k];
    if (rule->kind == ADAM)
        for (long k = 0; k < n; k++) {
            m[k] += (-T[k] - m[k]) * one;
            v[k] = v[k] * beta2 + T[k] * T[k] * two;
            W[k] -= m[k] / (ROOT(v[k]) * scale + small);
        }
}

static REAL step(const Layer *layers, State *states, long n, long first, const int64_t *y, long B, const Rule *rule,
                 const int64_t *keys, REAL *statistics) {
    REAL keep = (REAL)rule->keep;
    for (long l = 0; l < n; l++) {
        const Layer *h = layers + l;
        State *s = states + l;
        REAL *out = s[1].given;
        if (h->kind == DENSE) dense_forward(h, &s->room, B, out, s[1].stride);
        else if (h->kind == NORM) norm_forward(h, &s->room, B, out, s[1].stride, statistics);
        else if (h->kind == POOL) pool_forward(h, &s->room, B, out, s[1].stride);
        else if (h->kind == RELU) for (long b = 0; b < B; b++) relu(s->given + b * s->stride, h->in);
        else if (h->kind == DROP) drop(h, s->given, s->stride, B, keys);
        else {
            for (long b = 0; b < B && s->room.x != s->given; b++)
                pad_image(h, s->given + b * s->stride, s->room.x + b * s->room.stride);
            conv_forward(h, &s->room, B, s->place, s->places, out, s[1].stride);
        }
    }
    REAL *d = states[n].given; /* the scores, replaced by their gradient */
    REAL loss = cross_entropy(d, states[n].stride, layers[n - 1].out, y, B, (REAL)rule->gain, states[n].room.d);
    for (long l = n - 1; l >= first; l--) {
        const Layer *h = layers + l;
        State *s = states + l;
        long ds = s[1].stride;
        if (h->kind == DENSE) dense_backward(h, &s->room, B, d, ds, keep, l == first);
        else if (h->kind == NORM) norm_backward(h, &s->room, B, d, ds, keep, l == first);
        else if (h->kind == POOL) pool_backward(h, &s->room, B, d, ds);
        else if (h->kind == DROP) drop(h, d, ds, B, keys);
        else if (h->kind == RELU) {
            for (long b = 0; b < B; b++)
                for (long k = 0; k < h->in; k++)
                    if (s->given[b * s->stride + k] <= 0) d[b * ds + k] = 0;
        } else {
            conv_backward(h, &s->room, B, s->place, s->at, s->places, d, ds, keep, l == first);
            long w = h->w + 2 * h->pw;
            if (s->room.dx != s->dgiven && l > first)
                for (long b = 0; b < B; b++)
                    for (long i = 0; i < h->i; i++)
                        for (long v = 0; v < h->h; v++)
                            memcpy(s->dgiven + b * s->stride + (i * h->h + v) * h->w,
                                   s->room.dx + b * s->room.stride + (i * (h->h + 2 * h->ph) + v + h->ph) * w + h->pw,
                                   h->w * sizeof(REAL));
        }
        d = s->dgiven;
    }
    for (long l = first; l < n && rule->kind != PLAIN; l++) {
        Room *r = &states[l].room;
        if (layers[l].kind > NORM) continue;
        apply(rule, r->weights, r->W, r->T, r->m, r->v);
        apply(rule, layers[l].bias >= 0 ? r->biases : 0, r->b, r->tb, r->mb, r->vb);
    }
    return loss;
}

/* Memory of a client begins anew: gradients at 0, moments as they were when its last round ended. */
static void begin(const Layer *h, Room *r, const Rule *rule, const REAL *first, const REAL *second) {
    if (h->kind > NORM || rule->kind == PLAIN) return;
    memset(r->T, 0, r->weights * sizeof(REAL)), memset(r->tb, 0, r->biases * sizeof(REAL));
    if (rule->kind == MOMENTUM) take(h, r->width, first, r->T, r->tb);
    if (rule->kind == ADAM) take(h, r->width, first, r->m, r->mb), take(h, r->width, second, r->v, r->vb);
}

/* Train some clients; writes their weights to `out`, minus `start` in the first `shared` columns. Plain SGD makes
 * keep W - lr g of a weight W with gradient g, or K W + F - lr g with springs (one row each). Adam reads and writes its
 * moments, momentum -lr times its own. `factors` has Adam's scale and small for every client and step, `keys` those
 * of dropout; `statistics` are BatchNorm's running ones, read and written; `loss`
 * grows by every step's. Returns 0; 1 if memory ran out; 2 if a label is outside the model's scores. */
int64_t train(const Layer *layers, int64_t n, const REAL *pool, int64_t sample, const int64_t *labels,
              const int64_t *rows, int64_t J, int64_t B, const int64_t *steps, int64_t clients, const REAL *start,
              int64_t start_stride, int64_t kind, double gain, double keep, double decay, double beta1, double beta2,
              const REAL *K, const REAL *F, const double *factors, REAL *moment1, REAL *moment2, int64_t moment_stride,
              const int64_t *keys, int64_t drops, REAL *statistics, int64_t statistics_stride, REAL *out, int64_t out_stride, int64_t shared, REAL *loss) {
    Heap heap = {0, 0};
    Rule rule = {kind, keep, gain, decay, beta1, beta2, 0, 0};
    State *states = calloc(n + 1, sizeof(State));
    int64_t *y = malloc(B * sizeof(int64_t)), wrong = !states || !y;
    if (!wrong) {
        lay_out(&heap, layers, states, n, B, K != 0, kind);
        heap.memory = calloc(1, heap.bytes + 64), heap.bytes = 0, wrong = !heap.memory;
    }
    long first = 0;
    while (layers[first].kind > NORM) first++;
    if (!wrong) lay_out(&heap, layers, states, n, B, K != 0, kind);
    for (long l = 0; l < n && K && !wrong; l++) {
        Room *r = &states[l].room;
        take(layers + l, r->width, K, r->K, r->Kb), take(layers + l, r->width, F, r->F, r->Fb);
    }
    for (int64_t c = 0; c < clients && !wrong; c++) {
        const REAL *from = start + c * start_stride;
        REAL *first_moment = moment1 + c * moment_stride, *second_moment = moment2 + c * moment_stride;
        for (long l = 0; l < n; l++) {
            Room *r = &states[l].room;
            take(layers + l, r->width, from, r->W, r->b);
            begin(layers + l, r, &rule, first_moment, second_moment);
        }
        REAL total = loss[c];
        for (int64_t j = 0; j < steps[c] && !wrong; j++) {
            const int64_t *batch = rows + (c * J + j) * B;
            long count = 0;
            for (; count < B && batch[count] >= 0; count++) {
                memcpy(states[0].given + count * states[0].stride, pool + batch[count] * sample, sample * sizeof(REAL));
                y[count] = labels[batch[count]];
                wrong |= y[count] < 0 || y[count] >= layers[n - 1].out ? 2 : 0;
            }
            if (factors) rule.scale = factors[2 * (c * J + j)], rule.small = factors[2 * (c * J + j) + 1];
            if (count && !wrong) {
                const int64_t *own = keys + (c * J + j) * drops;
                total += step(layers, states, n, first, y, count, &rule, own, statistics + c * statistics_stride);
            }
        }
        for (long l = 0; l < n; l++) {
            Room *r = &states[l].room;
            give(layers + l, r->width, r->W, r->b, from, shared, out + c * out_stride);
            if (kind == MOMENTUM) give(layers + l, r->width, r->T, r->tb, from, 0, first_moment);
            if (kind == ADAM) give(layers + l, r->width, r->m, r->mb, from, 0, first_moment);
            if (kind == ADAM) give(layers + l, r->width, r->v, r->vb, from, 0, second_moment);
        }
        loss[c] = total;
    }
    free(heap.memory), free(states), free(y);
    return wrong;
}
