/* Vectors of numbers, an extension of GCC and Clang that the compiler maps to the machine's registers: `vec`, and `wide`,
 * which is two of them on AVX-512 and one elsewhere. REAL is the type of a number. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX__
#define BYTES 32
#else
#define BYTES 16 /* every other machine has these; the compiler would keep wider vectors in memory */
#endif
#ifdef __AVX512F__
#include <immintrin.h>
#define HALVES 2
#define MANY(few, many) (many) /* there are 32 registers, not 16 */
#else
#define HALVES 1
#define MANY(few, many) (few)
#endif
typedef REAL vec __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL wide __attribute__((vector_size(HALVES * BYTES), aligned(sizeof(REAL)), may_alias));
#ifdef SINGLE
typedef int32_t whole; /* as large as a number */
#define EXP expf
#define ROOT sqrtf
#else
typedef int64_t whole;
#define EXP exp
#define ROOT sqrt
#endif
typedef whole wide_mask __attribute__((vector_size(HALVES * BYTES)));
typedef int32_t wide_whole __attribute__((vector_size(HALVES * BYTES / sizeof(REAL) * 4), aligned(4), may_alias));
#define VL ((long)(BYTES / sizeof(REAL)))
#define WL (HALVES * VL)
#define LOAD(p) (*(const vec *)(p))
#define STORE(p, v) (*(vec *)(p) = (v))
#define WIDE(p) (*(const wide *)(p))
#define INLINE static inline __attribute__((always_inline))
#define UP(n) (((n) + WL - 1) / WL * WL)
#define EACH(k, n) _Pragma("GCC unroll 32") for (int k = 0; k < (n); k++) /* unrolled, so that arrays stay in registers */

/* How a pair of vectors is interleaved (its first halves, its second halves) and split (even and odd entries). */
#ifdef SINGLE
#define LANES (HALVES * BYTES / 4)
#else
#define LANES (HALVES * BYTES / 8)
#endif
#if LANES == 16
#define FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif LANES == 8
#define FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND 4, 12, 5, 13, 6, 14, 7, 15
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD 1, 3, 5, 7, 9, 11, 13, 15
#elif LANES == 4
#define FIRST 0, 4, 1, 5
#define SECOND 2, 6, 3, 7
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#else
#define FIRST 0, 2
#define SECOND 1, 3
#define EVEN 0, 2
#define ODD 1, 3
#endif
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (wide_mask){__VA_ARGS__})
#endif

/* Two halves as one wide vector; without wide registers the first alone. */
INLINE wide both(const REAL *a, const REAL *b) {
#ifdef __AVX512F__
    __m256d low = *(const __m256d_u *)a, high = *(const __m256d_u *)b;
    return (wide)_mm512_insertf64x4(_mm512_castpd256_pd512(low), high, 1);
#else
    (void)b;
    return WIDE(a);
#endif
}

/* The sum of each of WL vectors, in order: two vectors become one of twice as many sums, until one is left. */
INLINE wide sums(wide *v) {
    EACH(half, 6) {
        const int left = (int)(WL >> (half + 1));
        EACH(k, left) v[k] = PICK(v[k], v[k + left], FIRST) + PICK(v[k], v[k + left], SECOND);
    }
    return v[0];
}

/* Transpose a square of WL vectors in place. */
INLINE void flip(wide *v) {
    for (int done = 1; done < WL; done *= 2) {
        wide next[WL];
        EACH(k, WL / 2) {
            next[2 * k] = PICK(v[k], v[k + WL / 2], FIRST);
            next[2 * k + 1] = PICK(v[k], v[k + WL / 2], SECOND);
        }
        EACH(k, WL) v[k] = next[k];
    }
}

INLINE REAL sum(vec v) {
    REAL s = 0;
    for (long k = 0; k < VL; k++) s += v[k];
    return s;
}

/* The larger of each pair; NaN wins. */
INLINE wide larger(wide a, wide b) {
    wide_mask first = (a > b) | (a != a);
    return (wide)((first & (wide_mask)a) | (~first & (wide_mask)b));
}

/* The size of the next of as few parts as there can be, all of about the same size. */
INLINE long share(long left, long most) {
    long parts = (left + most - 1) / most;
    return (left + parts - 1) / parts;
}

/* The size of the next part: `most` as long as there are so many, then 2, then 1. */
INLINE long cut(long left, long most) { return left >= most ? most : left >= 2 ? 2 : 1; }
