/* Convolutions of stride 1. A wide vector holds positions of the output, one or two pieces of lines (`Place`), so that
 * also short lines fill it; a few of them, for a few channels or entries of the kernel, stay in registers. */

#define CHANNELS MANY(4, 5)  /* of the output, forward */
#define VECTORS MANY(3, 4)
#define UPDATED MANY(2, 3)   /* output channels whose weights are updated together */
#define ENTRIES 5            /* of a line of the kernel */
#define SPREAD MANY(2, 4)

/* A piece of a line: its offsets in the input, the output and a spread line, and how many of its entries are real. */
typedef struct { long from, to, spread, left; } Place;

typedef struct { long w, high, plane, oh, ow, line, padded, pitch, taps; } Shape;

static Shape shape_of(const Layer *h) {
    Shape s = {.w = h->w + 2 * h->pw, .high = h->h + 2 * h->ph};
    s.plane = s.high * s.w, s.oh = s.high - h->kh + 1, s.ow = s.w - h->kw + 1, s.taps = h->i * h->kh * h->kw;
    s.line = (s.ow + VL - 1) / VL * VL;   /* a line in whole pieces */
    s.padded = UP(s.oh * s.line);         /* a channel of them, in whole vectors */
    s.pitch = s.line + h->kw - 1;         /* a line with as many zeros before it as a kernel reaches */
    return s;
}

/* Pieces of all lines, and one that is not real where their number is odd. */
static long places_of(const Layer *h, Place *place) {
    Shape s = shape_of(h);
    long p = 0;
    for (long y = 0; y < s.oh; y++)
        for (long x = 0; x < s.ow; x += VL, p++)
            if (place) place[p] = (Place){y * s.w + x, y * s.ow + x, y * s.pitch + h->kw - 1 + x, s.ow - x < VL ? s.ow - x : VL};
    for (; p % HALVES; p++)
        if (place) place[p] = place[p - 1], place[p].left = 0;
    return p;
}

INLINE wide pieces(const REAL *x, const Place *place) { return both(x + place[0].from, x + place[HALVES - 1].from); }

INLINE void conv_block(const int O, const int P, const Layer *h, const Shape *g, const REAL *x, const REAL *W, const REAL *b,
                       const Place *place, REAL *y) {
    wide a[CHANNELS][VECTORS];
    EACH(o, O) EACH(p, P) a[o][p] = (wide){0} + (b ? b[o] : 0);
    for (long i = 0, t = 0; i < h->i; i++)
        for (long ky = 0; ky < h->kh; ky++)
            for (long kx = 0; kx < h->kw; kx++, t++) {
                const REAL *from = x + i * g->plane + ky * g->w + kx;
                wide v[VECTORS];
                EACH(p, P) v[p] = pieces(from, place + p * HALVES);
                EACH(o, O) EACH(p, P) a[o][p] += v[p] * W[o * g->taps + t];
            }
    EACH(o, O) EACH(p, P) EACH(half, HALVES) {
        const Place *at = place + p * HALVES + half;
        REAL *to = y + o * g->oh * g->ow + at->to, part[WL];
        *(wide *)part = a[o][p];
        if (at->left == VL) STORE(to, LOAD(part + half * VL));
        else memcpy(to, part + half * VL, at->left * sizeof(REAL));
    }
}

static void conv_forward(const Layer *h, const Room *r, long B, const Place *place, long places, REAL *y, long ys) {
    const Shape g = shape_of(h);
    for (long s = 0; s < B; s++)
        for (long o = 0, O; o < h->o; o += O) {
            const REAL *x = r->x + s * r->stride, *W = r->W + o * g.taps, *b = h->bias >= 0 ? r->b + o : 0;
            REAL *to = y + s * ys + o * g.oh * g.ow;
            O = share(h->o - o, CHANNELS);
            for (long p = 0, P; p < places; p += P * HALVES) {
                P = cut((places - p) / HALVES, VECTORS);
#define CASE(o_, p_) case 8 * o_ + p_: conv_block(o_, p_, h, &g, x, W, b, place + p, to); break;
#define LINE(p_) CASE(1, p_) CASE(2, p_) CASE(3, p_) CASE(4, p_)
                switch (8 * O + P) {
                    LINE(1) LINE(2)
#ifdef __AVX512F__
                    LINE(4) CASE(5, 1) CASE(5, 2) CASE(5, 4)
#else
                    LINE(3)
#endif
                }
#undef LINE
#undef CASE
            }
        }
}

/* Contributions of K entries of a kernel's line, with P vectors of positions, to the input: one spread line for each. */
INLINE void spread_block(const int K, const int P, long channels, const Shape *g, const REAL *W, const REAL *d,
                         const Place *place, REAL *to) {
    wide a[ENTRIES][SPREAD];
    EACH(k, K) EACH(p, P) a[k][p] = (wide){0};
    for (long o = 0; o < channels; o++) {
        wide v[SPREAD];
        EACH(p, P) v[p] = WIDE(d + o * g->padded + p * WL);
        EACH(k, K) EACH(p, P) a[k][p] += v[p] * W[o * g->taps + k];
    }
    EACH(k, K) EACH(p, P) EACH(half, HALVES) {
        REAL part[WL];
        *(wide *)part = a[k][p];
        if (place[p * HALVES + half].left)
            STORE(to + k * g->oh * g->pitch + place[p * HALVES + half].spread, LOAD(part + half * VL));
    }
}

/* Gradient of one input channel of a sample: the spread lines of every entry of the kernel, each added where it belongs. */
static void conv_spread(const Layer *h, const Shape *g, const REAL *W, const REAL *d, const Place *place, long places,
                        REAL *spread, REAL *dx) {
    const long entry = g->oh * g->pitch;
    for (long ky = 0; ky < h->kh; ky++)
        for (long k = 0, K; k < h->kw; k += K) {
            K = share(h->kw - k, ENTRIES);
            for (long p = 0, P; p < places; p += P * HALVES) {
                const REAL *from = d + p * VL, *own = W + ky * h->kw + k;
                REAL *to = spread + (ky * h->kw + k) * entry;
                P = cut((places - p) / HALVES, SPREAD);
#define CASE(k_, p_) case 8 * k_ + p_: spread_block(k_, p_, h->o, g, own, from, place + p, to); break;
#define LINE(p_) CASE(1, p_) CASE(2, p_) CASE(3, p_) CASE(4, p_) CASE(5, p_)
                switch (8 * K + P) {
                    LINE(1) LINE(2)
#ifdef __AVX512F__
                    LINE(4)
#endif
                }
#undef LINE
#undef CASE
            }
        }
    for (long y = 0; y < g->high; y++)
        for (long x = 0; x < g->w; x += WL) { /* what is written past a line's end is overwritten by the next line */
            wide a = {0};
            for (long ky = y < g->oh ? 0 : y - g->oh + 1; ky < h->kh && ky <= y; ky++)
                for (long kx = 0; kx < h->kw; kx++)
                    a += WIDE(spread + (ky * h->kw + kx) * entry + (y - ky) * g->pitch + h->kw - 1 + x - kx);
            *(wide *)(dx + y * g->w + x) = a;
        }
}

/* Update of K weights of a kernel's line for O output channels; the gradient is a sum over samples and positions. */
INLINE void weigh_block(const int O, const int K, long B, const Shape *g, const REAL *x, long xs, const REAL *d, long ds,
                        const Place *place, long places, REAL *T, REAL keep, const REAL *K_, const REAL *F_) {
    enum { ROOM = 16 };
    wide a[ROOM];
    EACH(k, ROOM) a[k] = (wide){0};
    for (long s = 0; s < B; s++)
        for (long p = 0; p < places; p += HALVES) {
            wide v[UPDATED];
            EACH(o, O) v[o] = WIDE(d + s * ds + o * g->padded + p * VL);
            EACH(k, K) {
                wide near = pieces(x + s * xs + k, place + p);
                EACH(o, O) a[o * K + k] += v[o] * near;
            }
        }
    REAL found[ROOM];
    EACH(part, ROOM / WL) if (part * WL < O * K) *(wide *)(found + part * WL) = sums(a + part * WL);
    EACH(o, O) EACH(k, K) {
        long t = o * g->taps + k;
        T[t] = (K_ ? T[t] * K_[t] + F_[t] : T[t] * keep) - found[o * K + k];
    }
}

static void conv_backward(const Layer *h, const Room *r, long B, const Place *place, long places, const REAL *d, long ds,
                          REAL keep, int first) {
    const Shape g = shape_of(h);
    const long gs = h->o * g.padded;
    for (long s = 0; s < B; s++) /* lines padded with zeros */
        for (long o = 0; o < h->o; o++)
            for (long y = 0; y < g.oh; y++)
                memcpy(r->d + s * gs + o * g.padded + y * g.line, d + s * ds + (o * g.oh + y) * g.ow, g.ow * sizeof(REAL));
    for (long s = 0; s < B && !first; s++)
        for (long i = 0; i < h->i; i++)
            conv_spread(h, &g, r->W + i * h->kh * h->kw, r->d + s * gs, place, places, r->spread,
                        r->dx + s * r->stride + i * g.plane);
    for (long o = 0, O; o < h->o; o += O) {
        O = share(h->o - o, UPDATED);
        for (long i = 0; i < h->i; i++)
            for (long ky = 0; ky < h->kh; ky++)
                for (long k = 0, K; k < h->kw; k += K) {
                    const REAL *x = r->x + i * g.plane + ky * g.w + k, *v = r->d + o * g.padded;
                    long at = o * g.taps + (i * h->kh + ky) * h->kw + k;
                    const REAL *K_ = r->K ? r->K + at : 0, *F_ = r->K ? r->F + at : 0;
                    K = share(h->kw - k, ENTRIES);
#define CASE(o_, k_) \
    case 8 * o_ + k_: weigh_block(o_, k_, B, &g, x, r->stride, v, gs, place, places, r->T + at, keep, K_, F_); break;
#define LINE(o_) CASE(o_, 1) CASE(o_, 2) CASE(o_, 3) CASE(o_, 4) CASE(o_, 5)
                    switch (8 * O + K) {
                        LINE(1) LINE(2)
#ifdef __AVX512F__
                        LINE(3)
#endif
                    }
#undef LINE
#undef CASE
                }
    }
    for (long o = 0; o < h->o && h->bias >= 0; o++) {
        vec a = (vec){0};
        for (long s = 0; s < B; s++)
            for (long p = 0; p < g.padded; p += VL) a += LOAD(r->d + s * gs + o * g.padded + p);
        r->tb[o] = (r->K ? r->tb[o] * r->Kb[o] + r->Fb[o] : r->tb[o] * keep) - sum(a);
    }
}

/* An image to or from the middle of one with a border. */
static void pad_image(const Layer *h, const REAL *from, REAL *to) {
    long w = h->w + 2 * h->pw, high = h->h + 2 * h->ph;
    for (long i = 0; i < h->i; i++)
        for (long y = 0; y < h->h; y++)
            memcpy(to + (i * high + y + h->ph) * w + h->pw, from + (i * h->h + y) * h->w, h->w * sizeof(REAL));
}

static void crop_image(const Layer *h, const REAL *from, REAL *to) {
    long w = h->w + 2 * h->pw, high = h->h + 2 * h->ph;
    for (long i = 0; i < h->i; i++)
        for (long y = 0; y < h->h; y++)
            memcpy(to + (i * h->h + y) * h->w, from + (i * high + y + h->ph) * w + h->pw, h->w * sizeof(REAL));
}
