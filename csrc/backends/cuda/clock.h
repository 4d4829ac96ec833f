/* Times in nanoseconds. */
#ifndef PYSTREAMS_CUDA_CLOCK_H
#define PYSTREAMS_CUDA_CLOCK_H

#include <stdint.h>
#include <time.h>

enum {
    CUDA_MICROSECOND = 1000,
    CUDA_MILLISECOND = 1000 * CUDA_MICROSECOND,
    CUDA_SECOND = 1000 * CUDA_MILLISECOND,
};

static inline int64_t
cuda_clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * CUDA_SECOND + now.tv_nsec;
}

static inline int64_t
cuda_now_ns(void)
{
    return cuda_clock_ns(CLOCK_MONOTONIC);
}

static inline struct timespec
cuda_timespec(int64_t ns)
{
    return (struct timespec){ns / CUDA_SECOND, ns % CUDA_SECOND};
}

#endif /* PYSTREAMS_CUDA_CLOCK_H */
