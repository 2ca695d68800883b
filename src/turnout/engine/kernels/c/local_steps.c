/* Local training of a few clients by SGD or Adam: stacks of dense layers, stride-1 convolutions, BatchNorms, ReLUs,
 * max-pools and dropout under a cross-entropy. One client after another does all of its steps, so that its weights stay in
 * the cache and its result does not depend on the other clients, not even in the last bit.
 *
 * Compiled for each type of number: REAL, and SINGLE if it has 32 bits.
 */
#include "share_out.h"
#include "vectors.h"

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

/* The rule of a step. The backward pass makes keep T - gain dL/dW of a target T, which is W itself for plain SGD. */
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
    REAL *spread;   /* contributions of a convolution's kernel to one channel of its input, entry by entry */
    REAL *W0, *b0;  /* weights that every client begins with, as they lie in W and b */
    int32_t *largest; /* where the largest entry of each pooling window is in x */
} Room;

#include "dense.h"
#include "convolution.h"
#include "small_layers.h"
#include "memory.h"
#include "step.h"

/* The arguments of `train`. */
typedef struct {
    const Layer *layers;
    int64_t n;
    const REAL *pool;
    int64_t sample;
    const int64_t *labels, *rows;
    int64_t J, B;
    const int64_t *steps;
    int64_t clients;
    const REAL *start;
    int64_t start_stride;
    Rule rule;
    const REAL *K, *F;
    const double *factors;
    REAL *moment1, *moment2;
    int64_t moment_stride;
    const int64_t *keys;
    int64_t drops;
    REAL *statistics;
    int64_t statistics_stride;
    REAL *out;
    int64_t out_stride, shared;
    REAL *loss;
    uint8_t *finite;
    double *squared;
    long first;     /* the first layer with weights */
    int64_t wrong;  /* 2: a label is outside the model's scores */
} Job;

/* A thread's own variables, at the beginning of its room. */
typedef struct {
    State *states;
    int64_t *y;
} Own;

/* A step's samples; how many there are. */
static long gather(const Job *job, const State *first, int64_t *y, int64_t c, int64_t j) {
    const int64_t *batch = job->rows + (c * job->J + j) * job->B;
    long count = 0;
    for (; count < job->B && batch[count] >= 0; count++) {
        memcpy(first->given + count * first->stride, job->pool + batch[count] * job->sample, job->sample * sizeof(REAL));
        y[count] = job->labels[batch[count]];
        if (y[count] < 0 || y[count] >= job->layers[job->n - 1].out) return -1;
    }
    return count;
}

/* Whether the sum of a client's update is a number, and the sum of its squares, while the update is in the cache. Sums of
 * several vectors side by side do not wait for one another. */
static void measure(const REAL *update, long n, uint8_t *finite, double *squared) {
    vec sums[4] = {0}, squares[4] = {0};
    long k = 0;
    for (; k + 4 * VL <= n; k += 4 * VL) EACH(i, 4) {
        const vec v = LOAD(update + k + i * VL);
        sums[i] += v, squares[i] += v * v;
    }
    REAL total = sum(sums[0] + sums[1] + sums[2] + sums[3]);
    double found = sum(squares[0] + squares[1] + squares[2] + squares[3]);
    for (; k < n; k++) total += update[k], found += (double)update[k] * update[k];
    *finite = total - total == 0, *squared = found;
}

/* All steps of a client. */
static void train_client(void *given, void *room, int64_t c) {
    Job *job = given;
    const Own *own = room;
    const Layer *layers = job->layers;
    const long n = job->n;
    State *states = own->states;
    Rule rule = job->rule;
    const REAL *from = job->start + c * job->start_stride;
    REAL *moment1 = job->moment1 + c * job->moment_stride, *moment2 = job->moment2 + c * job->moment_stride;
    REAL *out = job->out + c * job->out_stride, total = job->loss[c]; /* so rounding does not depend on calls */
    for (long l = 0; l < n; l++) {
        Room *r = &states[l].room;
        if (layers[l].kind > NORM) continue;
        if (job->start_stride) take(layers + l, r->width, from, r->W, r->b);
        else memcpy(r->W, r->W0, r->weights * sizeof(REAL)), memcpy(r->b, r->b0, r->biases * sizeof(REAL));
        begin(layers + l, r, &rule, moment1, moment2);
    }
    for (int64_t j = 0; j < job->steps[c]; j++) {
        long count = gather(job, states, own->y, c, j);
        if (count < 0) __atomic_store_n(&job->wrong, 2, __ATOMIC_RELAXED);
        if (__atomic_load_n(&job->wrong, __ATOMIC_RELAXED)) return;
        if (job->factors) rule.scale = job->factors[2 * (c * job->J + j)], rule.small = job->factors[2 * (c * job->J + j) + 1];
        const int64_t *keys = job->keys + (c * job->J + j) * job->drops;
        REAL *statistics = job->statistics + c * job->statistics_stride;
        if (count) total += step(layers, states, n, job->first, own->y, count, &rule, keys, statistics);
    }
    for (long l = 0; l < n; l++) {
        Room *r = &states[l].room;
        give(layers + l, r->width, r->W, r->b, from, job->shared, out);
        if (rule.kind == MOMENTUM) give(layers + l, r->width, r->T, r->tb, from, 0, moment1);
        if (rule.kind == ADAM) give(layers + l, r->width, r->m, r->mb, from, 0, moment1);
        if (rule.kind == ADAM) give(layers + l, r->width, r->v, r->vb, from, 0, moment2);
    }
    job->loss[c] = total;
    measure(out, job->shared, job->finite + c, job->squared + c);
}

/* A thread's room: `Own`, its states and labels, and the layers' memory, with the first weights of all clients. */
static void lay_out_room(void *given, void *room) {
    const Job *job = given;
    Own *own = room;
    Heap heap = {room, 0};
    get(&heap, 1, sizeof(Own));
    own->states = get(&heap, job->n + 1, sizeof(State)), own->y = get(&heap, job->B, sizeof(int64_t));
    lay_out(&heap, job->layers, own->states, job->n, job->B, job->K != 0, job->rule.kind);
    for (long l = 0; l < job->n; l++) {
        const Layer *h = job->layers + l;
        Room *r = &own->states[l].room;
        if (!job->start_stride && h->kind <= NORM) take(h, r->width, job->start, r->W0, r->b0);
        if (job->K) take(h, r->width, job->K, r->K, r->Kb), take(h, r->width, job->F, r->F, r->Fb);
    }
}

/* Bytes of it. */
static size_t room_of(const Job *job, State *states) {
    Heap heap = {0, 0};
    get(&heap, 1, sizeof(Own)), get(&heap, job->n + 1, sizeof(State)), get(&heap, job->B, sizeof(int64_t));
    lay_out(&heap, job->layers, states, job->n, job->B, job->K != 0, job->rule.kind);
    return heap.bytes + 1024; /* vectors may read past an end */
}

/* Train some clients; writes their weights to `out`, minus `start` in the first `shared` columns, and to `finite` whether
 * the sum of those is a number, to `squared` the sum of their squares. Plain SGD makes keep W - lr g of a weight W with gradient g, or K W + F - lr g with springs
 * (one row each). Adam reads and writes its moments, momentum -lr times its own. `factors` has Adam's scale and small for
 * every client and step, `keys` those of dropout; `statistics` are BatchNorm's running ones, read and written; `loss` grows
 * by every step's. A `start_stride` of 0: everybody begins with the same weights.
 * Returns 0; 1 if memory ran out; 2 if a label is outside the model's scores. */
int64_t train(const Layer *layers, int64_t n, const REAL *pool, int64_t sample, const int64_t *labels,
              const int64_t *rows, int64_t J, int64_t B, const int64_t *steps, int64_t clients, const REAL *start,
              int64_t start_stride, int64_t kind, double gain, double keep, double decay, double beta1, double beta2,
              const REAL *K, const REAL *F, const double *factors, REAL *moment1, REAL *moment2, int64_t moment_stride,
              const int64_t *keys, int64_t drops, REAL *statistics, int64_t statistics_stride, REAL *out,
              int64_t out_stride, int64_t shared, REAL *loss, uint8_t *finite, double *squared, int64_t threads) {
    Job job = {layers, n, pool, sample, labels, rows, J, B, steps, clients, start, start_stride,
               {kind, keep, gain, decay, beta1, beta2, 0, 0}, K, F, factors, moment1, moment2, moment_stride,
               keys, drops, statistics, statistics_stride, out, out_stride, shared, loss, finite, squared, 0, 0};
    State *states = calloc(n + 1, sizeof(State));
    if (!states) return 1;
    while (layers[job.first].kind > NORM) job.first++;
    const size_t room = room_of(&job, states);
    free(states);
    return share_out(&job, clients, threads, room, lay_out_room, train_client) ? 1 : job.wrong;
}
