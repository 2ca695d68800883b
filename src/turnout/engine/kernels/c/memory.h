/* A client's memory: where the numbers of every layer lie, and its weights on their way in and out. */

/* A layer's room, and what it shares with its neighbours. */
typedef struct {
    Room room;
    REAL *given, *dgiven; /* input as the layer before wrote it, and its gradient; padded convolutions copy it to `room` */
    long stride;
    Place *place;
    long places;
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
    r->W = get(heap, weights, sizeof(REAL)), r->W0 = get(heap, weights, sizeof(REAL));
    r->b = get(heap, biases, sizeof(REAL)), r->b0 = get(heap, biases, sizeof(REAL));
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

static void lay_out_convolution(Heap *heap, const Layer *h, State *s, long B, int springs, int64_t kind) {
    Room *r = &s->room;
    const Shape g = shape_of(h);
    if (h->ph || h->pw) {
        r->stride = UP(h->i * g.plane) + WL;
        r->x = get(heap, B * r->stride, sizeof(REAL));
        r->dx = get(heap, B * r->stride, sizeof(REAL));
    }
    r->d = get(heap, B * h->o * g.padded, sizeof(REAL));
    r->spread = get(heap, h->kh * h->kw * g.oh * g.pitch + 2 * WL, sizeof(REAL));
    get_weights(heap, r, h->o * g.taps, h->o, springs, kind);
    s->places = places_of(h, 0);
    s->place = get(heap, s->places, sizeof(Place));
    if (s->place) places_of(h, s->place);
}

static void lay_out(Heap *heap, const Layer *layers, State *states, long n, long B, int springs, int64_t kind) {
    for (long l = 0; l <= n; l++) {
        State *s = states + l;
        const Layer *h = layers + l;
        int in_place = l > 0 && (layers[l - 1].kind == RELU || layers[l - 1].kind == DROP);
        long size = l < n ? h->in : layers[n - 1].out;
        s->stride = in_place ? s[-1].stride : UP(size) + WL;
        s->given = in_place ? s[-1].given : get(heap, B * s->stride, sizeof(REAL));
        s->dgiven = in_place ? s[-1].dgiven : get(heap, B * s->stride, sizeof(REAL));
        Room *r = &s->room;
        if (l == n) {
            r->d = get(heap, UP(size) * WL, sizeof(REAL));
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
            r->largest = get(heap, B * h->out + WL, sizeof(int32_t));
        } else if (h->kind == CONVOLUTION) {
            lay_out_convolution(heap, h, s, B, springs, kind);
        }
    }
}

INLINE void less(const REAL *from, long n, const REAL *base, REAL *to) {
    for (long i = 0; i < n; i++) to[i] = from[i] - (base ? base[i] : 0);
}

/* Copy a layer's weights from a client's row into the layer's memory. Padding is set to 0 again after the last client. */
static void take(const Layer *h, long width, const REAL *row, REAL *W, REAL *b) {
    if (h->kind == DENSE) {
        memset(b, 0, width * sizeof(REAL));
        for (long n = 0; n < width; n += 2 * WL) {
            long P = width - n < 2 * WL ? WL : 2 * WL, real = h->out - n < P ? h->out - n : P;
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
    for (long n = 0; n < width && h->kind == DENSE; n += 2 * WL) {
        long P = width - n < 2 * WL ? WL : 2 * WL, real = h->out - n < P ? h->out - n : P, from = n * h->in;
        transpose(W + from, h->in, real, P, base ? base + from : 0, row + h->weight + from, h->in);
    }
    if (h->kind == CONVOLUTION) less(W, h->o * h->i * h->kh * h->kw, base, row + h->weight);
    if (h->kind == NORM) less(W, h->i, base, row + h->weight), less(b, h->i, bias, row + h->bias);
    if (h->kind <= CONVOLUTION && h->bias >= 0) less(b, h->kind == DENSE ? h->out : h->o, bias, row + h->bias);
}

/* Memory of a client begins anew: gradients at 0, moments as they were when its last round ended. */
static void begin(const Layer *h, Room *r, const Rule *rule, const REAL *first, const REAL *second) {
    if (h->kind > NORM || rule->kind == PLAIN) return;
    memset(r->T, 0, r->weights * sizeof(REAL)), memset(r->tb, 0, r->biases * sizeof(REAL));
    if (rule->kind == MOMENTUM) take(h, r->width, first, r->T, r->tb);
    if (rule->kind == ADAM) take(h, r->width, first, r->m, r->mb), take(h, r->width, second, r->v, r->vb);
}
