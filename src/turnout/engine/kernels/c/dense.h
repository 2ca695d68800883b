/* Dense layers. Weights lie in panels of two wide vectors of outputs, one line per input; the last panel may be one vector
 * wide. A block of samples or inputs stays in registers while a panel passes through. */

#define SAMPLES MANY(5, 10)
#define INPUTS MANY(4, 8)

INLINE void forward_block(const int S, const int N, const REAL *x, long xs, const REAL *W, long in, const REAL *b, REAL *y,
                          long ys) {
    wide a[SAMPLES][2];
    EACH(s, S) EACH(n, N) a[s][n] = WIDE(b + n * WL);
    for (long i = 0; i < in; i++) {
        wide w[2];
        EACH(n, N) w[n] = WIDE(W + (i * N + n) * WL);
        EACH(s, S) EACH(n, N) a[s][n] += w[n] * x[s * xs + i];
    }
    EACH(s, S) EACH(n, N) *(wide *)(y + s * ys + n * WL) = a[s][n];
}

static void dense_forward(const Layer *h, const Room *r, long B, REAL *y, long ys) {
    for (long n = 0; n < r->width; n += 2 * WL)
        for (long s = 0, S; s < B; s += S) {
            const REAL *x = r->x + s * r->stride, *W = r->W + n * h->in, *b = r->b + n;
            REAL *to = y + s * ys + n;
            S = B - s >= SAMPLES ? SAMPLES : share(B - s, 5);
#define CASE(s_) \
    case 2 * s_: forward_block(s_, 1, x, r->stride, W, h->in, b, to, ys); break; \
    case 2 * s_ + 1: forward_block(s_, 2, x, r->stride, W, h->in, b, to, ys); break;
            switch (2 * S + (n + WL < r->width)) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#ifdef __AVX512F__
                CASE(10)
#endif
            }
#undef CASE
        }
}

/* Gradient of WL inputs from `at` on, for one sample. */
INLINE wide back_block(const REAL *d, const REAL *W, long in, long width, long at) {
    wide a[WL];
    long n = 0;
    EACH(i, WL) a[i] = (wide){0};
    for (; n + WL < width; n += 2 * WL) {
        const REAL *line = W + n * in + at * 2 * WL;
        wide g = WIDE(d + n), h = WIDE(d + n + WL);
        EACH(i, WL) a[i] += g * WIDE(line + i * 2 * WL);
        EACH(i, WL) a[i] += h * WIDE(line + i * 2 * WL + WL);
    }
    for (; n < width; n += WL) {
        wide g = WIDE(d + n);
        EACH(i, WL) a[i] += g * WIDE(W + n * in + (at + i) * WL);
    }
    return sums(a);
}

/* The same for a layer with fewer inputs. */
static void back_few(const REAL *d, const REAL *W, long in, long width, REAL *dx) {
    for (long i = 0; i < in; i++) {
        REAL a = 0;
        for (long n = 0; n < width; n++) {
            long panel = n / (2 * WL) * 2 * WL, P = width - panel < 2 * WL ? WL : 2 * WL;
            a += d[n] * W[panel * in + i * P + n - panel];
        }
        dx[i] = a;
    }
}

/* The target becomes keep T - d' x for I inputs and N vectors of outputs, or K T + F - d' x with springs. */
INLINE void descend_block(const int I, const int N, const REAL *x, long xs, const REAL *d, long ds, long B, REAL *T,
                          REAL keep, const REAL *K, const REAL *F) {
    wide a[INPUTS][2];
    EACH(i, I) EACH(n, N) {
        long at = (i * N + n) * WL;
        a[i][n] = K ? WIDE(T + at) * WIDE(K + at) + WIDE(F + at) : WIDE(T + at) * keep;
    }
    for (long s = 0; s < B; s++) {
        wide g[2];
        EACH(n, N) g[n] = WIDE(d + s * ds + n * WL);
        EACH(i, I) EACH(n, N) a[i][n] -= g[n] * x[s * xs + i];
    }
    EACH(i, I) EACH(n, N) *(wide *)(T + (i * N + n) * WL) = a[i][n];
}

static void dense_backward(const Layer *h, const Room *r, long B, const REAL *d, long ds, REAL keep, int first) {
    long in = h->in;
    for (long i = 0; i < in && !first; i += WL)
        for (long s = 0; s < B; s++) {
            long at = i + WL <= in ? i : in - WL; /* the last block may meet the one before */
            REAL *dx = r->dx + s * r->stride;
            if (in < WL) back_few(d + s * ds, r->W, in, r->width, dx);
            else *(wide *)(dx + at) = back_block(d + s * ds, r->W, in, r->width, at);
        }
    for (long n = 0; n < r->width; n += 2 * WL) {
        long N = n + WL < r->width ? 2 : 1;
        for (long i = 0, I; i < in; i += I) {
            long at = n * in + i * N * WL;
            const REAL *x = r->x + i, *g = d + n, *K = r->K ? r->K + at : 0, *F = r->K ? r->F + at : 0;
            I = i + INPUTS <= in ? INPUTS : 1;
#define CASE(i_, n_) case 2 * i_ + n_: descend_block(i_, n_, x, r->stride, g, ds, B, r->T + at, keep, K, F); break;
            switch (2 * I + N) { CASE(1, 1) CASE(1, 2) CASE(INPUTS, 1) CASE(INPUTS, 2) }
#undef CASE
        }
    }
    if (h->bias >= 0)
        for (long n = 0; n < r->width; n += WL) {
            wide a = r->K ? WIDE(r->tb + n) * WIDE(r->Kb + n) + WIDE(r->Fb + n) : WIDE(r->tb + n) * keep;
            for (long s = 0; s < B; s++) a -= WIDE(d + s * ds + n);
            *(wide *)(r->tb + n) = a;
        }
}

/* Transpose lines x columns and subtract `base` (if any), which lies as the result does. */
static void transpose(const REAL *from, long lines, long columns, long stride, const REAL *base, REAL *to, long to_stride) {
    for (long c = 0; c < columns; c += WL) /* few lines of the result at a time, which are far apart in memory */
        for (long l = 0; l < lines; l += WL) {
            if (l + WL <= lines && c + WL <= columns) {
                wide v[WL];
                EACH(k, WL) v[k] = WIDE(from + (l + k) * stride + c);
                flip(v);
                EACH(k, WL) {
                    long at = (c + k) * to_stride + l;
                    *(wide *)(to + at) = v[k] - (base ? WIDE(base + at) : (wide){0});
                }
                continue;
            }
            for (long j = c; j < c + WL && j < columns; j++)
                for (long i = l; i < l + WL && i < lines; i++) {
                    long at = j * to_stride + i;
                    to[at] = from[i * stride + j] - (base ? base[at] : 0);
                }
        }
}
