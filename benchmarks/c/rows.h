/* How the C programs measure.  ROW(name, statements) defines a function that
 * runs the statements count times and returns the nanoseconds that one run
 * took, or a negative number if one of them set `failed`.  A file can define
 * another ROW before it includes this file.  It must define settle(), which
 * waits for the work that the statements queued.  settle() returns 0, or
 * another number if the work failed. */
#ifndef BENCHMARKS_ROWS_H
#define BENCHMARKS_ROWS_H

#include <time.h>

static inline double
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int settle(void);

#ifndef ROW
#define ROW(name, ...)                      \
    double name(int count)                  \
    {                                       \
        int failed = 0;                     \
        double start = now();               \
        for (int i = 0; i < count; i++) {   \
            __VA_ARGS__;                    \
        }                                   \
        double spent = now() - start;       \
        failed |= settle();                 \
        return failed ? -1 : spent / count; \
    }
#endif

#endif
