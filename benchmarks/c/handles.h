/* The streams and events for the calls of cudart.c and driver.c.  The events
 * done, start_ and end_ are recorded, and their records are complete. */
#ifndef BENCHMARKS_HANDLES_H
#define BENCHMARKS_HANDLES_H

#include <cuda_runtime_api.h>

static cudaStream_t first, second;
static cudaEvent_t plain, done, timed, start_, end_;

/* Create and record them.  Returns 0, or another number if something failed.
 */
static int
handles_make(void)
{
    return cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) ||
           cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) ||
           cudaEventCreateWithFlags(&plain, cudaEventDisableTiming) ||
           cudaEventCreateWithFlags(&done, cudaEventDisableTiming) ||
           cudaEventCreate(&timed) || cudaEventCreate(&start_) ||
           cudaEventCreate(&end_) || cudaEventRecord(done, first) ||
           cudaEventRecord(start_, first) || cudaEventRecord(end_, first) ||
           cudaStreamSynchronize(first);
}

static int
settle(void)
{
    return cudaDeviceSynchronize();
}

#endif
