/* The k entries of largest size of each piece of each row: what `largest` of codec/picks.py says. BITS is an
 * unsigned number as wide as REAL, TOP how far its highest bits are, those that sort entries roughly. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef SINGLE
#define BITS uint32_t
#define TOP 20
#else
#define BITS uint64_t
#define TOP 49
#endif

static BITS size_of(REAL x) { /* sizes of numbers are in the order of their bits without the sign */
    BITS bits;
    memcpy(&bits, &x, sizeof bits);
    return (BITS)(bits << 1) >> 1;
}

/* The k-th largest of some sizes, k from 1; they change places. */
static BITS kth(BITS *size, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1, at = k - 1;
    while (low < high) {
        BITS middle = size[low + (high - low) / 2], other;
        int64_t i = low, j = high;
        while (i <= j) {
            while (size[i] > middle) i++;
            while (size[j] < middle) j--;
            if (i <= j) other = size[i], size[i++] = size[j], size[j--] = other;
        }
        if (at <= j) high = j;
        else if (at >= i) low = i;
        else break;
    }
    return size[at];
}

/* column [rows, K]: piece after piece, rising; there [rows, K]: 0 where a piece has fewer entries that are not 0. */
int64_t largest(const REAL *x, int64_t rows, int64_t stride, const int64_t *piece, int64_t pieces, int64_t K,
                int64_t *column, uint8_t *there) {
    int64_t counts = (int64_t)1 << (8 * sizeof(BITS) - 1 - TOP), most = 1;
    for (int64_t p = 0; p < pieces; p++) most = piece[3 * p + 1] > most ? piece[3 * p + 1] : most;
    int32_t *count = malloc(counts * sizeof *count);
    int64_t *index = malloc(most * sizeof *index);
    BITS *size = malloc(most * sizeof *size), *some = malloc(most * sizeof *some);
    int64_t wrong = !count || !index || !size || !some;
    for (int64_t r = 0; r < rows && !wrong; r++) {
        int64_t *to = column + r * K;
        uint8_t *is = there + r * K;
        for (int64_t p = 0; p < pieces; p++) {
            int64_t start = piece[3 * p], n = piece[3 * p + 1], k = piece[3 * p + 2];
            const REAL *from = x + r * stride + start;
            int64_t top = counts - 1, above = 0, found = 0, sharing = 0, at = 0;
            memset(count, 0, counts * sizeof *count); /* by their highest bits: which of them does the k-th one have? */
            for (int64_t i = 0; i < n; i++) count[size_of(from[i]) >> TOP]++;
            for (; above + count[top] < k; top--) above += count[top];
            for (int64_t i = 0; i < n; i++) { /* those that can be among the k, without a branch */
                size[found] = size_of(from[i]), index[found] = i;
                found += (int64_t)(size[found] >> TOP) >= top;
            }
            for (int64_t i = 0; i < found; i++) {
                some[sharing] = size[i];
                sharing += (int64_t)(size[i] >> TOP) == top;
            }
            BITS least = kth(some, sharing, k - above);
            int64_t equal = k;
            for (int64_t i = 0; i < found; i++) equal -= size[i] > least;
            for (int64_t i = 0; i < found && at < k; i++)
                if (size[i] > least || (size[i] == least && size[i] && equal-- > 0))
                    to[at] = start + index[i], is[at++] = 1;
            for (; at < k; at++) to[at] = start + n - 1, is[at] = 0;
            to += k, is += k;
        }
    }
    free(count), free(index), free(size), free(some);
    return wrong;
}
