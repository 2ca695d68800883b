/* One step of a client: forward, loss, backward, and the optimizer. */

INLINE void forward(const Layer *h, State *s, long B, const int64_t *keys, REAL *statistics) {
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

/* From the gradient `d` of a layer's output to that of its input, and into its weights' targets. */
INLINE void backward(const Layer *h, const State *s, long B, REAL *d, const int64_t *keys, REAL keep, int first) {
    const long ds = s[1].stride;
    if (h->kind == DENSE) dense_backward(h, &s->room, B, d, ds, keep, first);
    else if (h->kind == NORM) norm_backward(h, &s->room, B, d, ds, keep, first);
    else if (h->kind == POOL) pool_backward(h, &s->room, B, d, ds);
    else if (h->kind == DROP) drop(h, d, ds, B, keys);
    else if (h->kind == RELU) for (long b = 0; b < B; b++) relu_backward(s->given + b * s->stride, d + b * ds, h->in);
    else {
        conv_backward(h, &s->room, B, s->place, s->places, d, ds, keep, first);
        for (long b = 0; b < B && !first && s->room.dx != s->dgiven; b++)
            crop_image(h, s->room.dx + b * s->room.stride, s->dgiven + b * s->stride);
    }
}

/* The rest of a step after the backward pass: T is -lr times the momentum, or minus the gradient. */
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

/* The layers below `first` have no weights. The last layer is dense: one in place would overwrite the scores' gradient. */
static REAL step(const Layer *layers, State *states, long n, long first, const int64_t *y, long B, const Rule *rule,
                 const int64_t *keys, REAL *statistics) {
    for (long l = 0; l < n; l++) forward(layers + l, states + l, B, keys, statistics);
    REAL *d = states[n].given; /* the scores, replaced by their gradient */
    REAL loss = cross_entropy(d, states[n].stride, layers[n - 1].out, y, B, (REAL)rule->gain, states[n].room.d);
    for (long l = n - 1; l >= first; l--) {
        backward(layers + l, states + l, B, d, keys, (REAL)rule->keep, l == first);
        d = states[l].dgiven;
    }
    for (long l = first; l < n && rule->kind != PLAIN; l++) {
        Room *r = &states[l].room;
        if (layers[l].kind > NORM) continue;
        apply(rule, r->weights, r->W, r->T, r->m, r->v);
        apply(rule, layers[l].bias >= 0 ? r->biases : 0, r->b, r->tb, r->mb, r->vb);
    }
    return loss;
}
