/* Layers without products, and the loss. */

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

static void relu_backward(const REAL *restrict x, REAL *restrict d, long n) {
    for (long k = 0; k < n; k++) d[k] = x[k] <= 0 ? 0 : d[k];
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

static void pool_any(const Layer *h, const REAL *x, REAL *y, int32_t *largest) {
    long oh = h->h / h->kh, ow = h->w / h->kw;
    for (long i = 0; i < h->i; i++)
        for (long v = 0; v < oh; v++)
            for (long u = 0; u < ow; u++) {
                int32_t at = (int32_t)((i * h->h + v * h->kh) * h->w + u * h->kw), best = at;
                for (long a = 0; a < h->kh; a++)
                    for (long b = 0; b < h->kw; b++) {
                        int32_t here = at + (int32_t)(a * h->w + b);
                        if (x[here] > x[best] || x[here] != x[here]) best = here; /* the last NaN wins */
                    }
                *y++ = x[best];
                *largest++ = best;
            }
}

/* The same for windows of 2 x 2. Values written past a line's end are overwritten by the next line; past a sample's end
 * nothing is written, because the next layer multiplies the memory there by 0, which must not give NaN. */
static void pool_fours(const Layer *h, const REAL *x, REAL *y, int32_t *largest) {
    const long ow = h->w / 2, lines = h->i * (h->h / 2);
    wide_mask number = {0};
    EACH(k, WL) number[k] = 2 * k;
    for (long line = 0; line < lines; line++) {
        long top = (line / (h->h / 2) * h->h + line % (h->h / 2) * 2) * h->w;
        for (long u = 0; u < ow; u += WL) {
            const REAL *a = x + top + 2 * u, *b = a + h->w;
            wide most = PICK(WIDE(a), WIDE(a + WL), EVEN);
            const wide rest[] = {PICK(WIDE(a), WIDE(a + WL), ODD), PICK(WIDE(b), WIDE(b + WL), EVEN),
                                 PICK(WIDE(b), WIDE(b + WL), ODD)};
            const whole further[] = {1, (whole)h->w, (whole)h->w + 1};
            wide_mask best = {0};
            EACH(k, 3) {
                wide_mask more = (rest[k] > most) | (rest[k] != rest[k]);
                most = (wide)((more & (wide_mask)rest[k]) | (~more & (wide_mask)most));
                best = (more & (number * 0 + further[k])) | (~more & best);
            }
            if (line * ow + u + WL <= lines * ow) *(wide *)(y + line * ow + u) = most;
            else memcpy(y + line * ow + u, &most, (ow - u < WL ? ow - u : WL) * sizeof(REAL));
            *(wide_whole *)(largest + line * ow + u) = __builtin_convertvector(best + number + (whole)(top + 2 * u), wide_whole);
        }
    }
}

static void pool_forward(const Layer *h, const Room *r, long B, REAL *y, long ys) {
    for (long s = 0; s < B; s++) {
        const REAL *x = r->x + s * r->stride;
        int32_t *largest = r->largest + s * h->out;
        if (h->kh == 2 && h->kw == 2) pool_fours(h, x, y + s * ys, largest);
        else pool_any(h, x, y + s * ys, largest);
    }
}

static void pool_backward(const Layer *h, const Room *r, long B, const REAL *d, long ds) {
    for (long s = 0; s < B; s++) {
        memset(r->dx + s * r->stride, 0, h->in * sizeof(REAL));
        for (long k = 0; k < h->out; k++) r->dx[s * r->stride + r->largest[s * h->out + k]] = d[s * ds + k];
    }
}

/* e^x for x <= 0. In single precision a polynomial (coefficients of Cephes), exact to the last bit or two. */
INLINE wide raise(wide x) {
    wide y = {0};
#ifdef SINGLE
    wide low = larger(x, (wide){0} - 87.0f);
    wide times = low * 1.44269504088896341f + 12582912.0f; /* rounded to a whole number in the lowest bits */
    wide n = times - 12582912.0f, r = low - n * 0.693359375f + n * 2.12194440e-4f, p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    y = p * (wide)((__builtin_convertvector(n, wide_mask) + 127) << 23);
#else
    for (long k = 0; k < WL; k++) y[k] = EXP(x[k]);
#endif
    return y;
}

/* The mean loss of a batch; replaces the scores by gain times its gradient. A vector holds one class of several samples
 * (the last sample repeated if there are too few); `e` is scratch memory for all classes, in whole vectors. */
static REAL cross_entropy(REAL *z, long zs, long classes, const int64_t *y, long B, REAL gain, REAL *e) {
    double loss = 0, product = 1; /* of the samples' sums: one logarithm for many */
    for (long first = 0; first < B; first += WL) {
        long lanes = B - first < WL ? B - first : WL;
        wide most = {0}, total = {0}, v[WL];
        for (long k = 0; k < classes; k += WL) {
            EACH(s, WL) v[s] = WIDE(z + (first + (s < lanes ? s : lanes - 1)) * zs + k);
            flip(v);
            EACH(j, WL) *(wide *)(e + (k + j) * WL) = v[j];
        }
        most = WIDE(e);
        for (long k = 1; k < classes; k++) most = larger(WIDE(e + k * WL), most);
        for (long k = 0; k < classes; k++) {
            wide raised = raise(WIDE(e + k * WL) - most);
            *(wide *)(e + k * WL) = raised;
            total += raised;
        }
        for (long s = 0; s < lanes; s++) {
            loss -= z[(first + s) * zs + y[first + s]] - most[s];
            product *= total[s];
            if (!(product < 1e200)) loss += log(product), product = 1;
        }
        total = gain / B / total;
        for (long k = 0; k < classes; k += WL) {
            EACH(j, WL) v[j] = WIDE(e + (k + j) * WL) * total;
            flip(v);
            EACH(s, WL) if (s < lanes) *(wide *)(z + (first + s) * zs + k) = v[s]; /* past the last class there is room */
        }
        for (long s = 0; s < lanes; s++) z[(first + s) * zs + y[first + s]] -= gain / B;
    }
    return (REAL)((loss + log(product)) / (double)B);
}
