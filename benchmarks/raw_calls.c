/* What the calls of calls.py cost without Python: nanoseconds per call of
 * cudart's functions, in a loop.  Each row returns a negative number when a
 * call fails. */
#include <cuda_runtime_api.h>

#include <time.h>

static double
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static cudaStream_t first, second;
static cudaEvent_t plain, timed, other;

int
prepare(void)
{
    float milliseconds;
    return cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) ||
           cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) ||
           cudaEventCreateWithFlags(&plain, cudaEventDisableTiming) ||
           cudaEventCreate(&timed) || cudaEventCreate(&other) ||
           cudaEventRecord(plain, first) || cudaEventRecord(timed, first) ||
           cudaEventRecord(other, first) || cudaStreamSynchronize(first) ||
           cudaEventElapsedTime(&milliseconds, timed, other);
}

#define ROW(name, ...)                                          \
    double name(int count)                                      \
    {                                                           \
        int failed = 0;                                         \
        double start = now();                                   \
        for (int i = 0; i < count; i++) {                       \
            __VA_ARGS__;                                        \
        }                                                       \
        double spent = now() - start;                           \
        failed |= cudaStreamSynchronize(first) != cudaSuccess;  \
        failed |= cudaStreamSynchronize(second) != cudaSuccess; \
        return failed ? -1 : spent / count;                     \
    }

ROW(record, failed |= cudaEventRecord(plain, first))
ROW(record_timed, failed |= cudaEventRecord(timed, first))
ROW(event_query, failed |= cudaEventQuery(plain))
ROW(event_synchronize, failed |= cudaEventSynchronize(plain))
ROW(stream_query, failed |= cudaStreamQuery(first))
ROW(stream_synchronize, failed |= cudaStreamSynchronize(first))
ROW(record_wait, failed |= cudaEventRecord(plain, first);
    failed |= cudaStreamWaitEvent(second, plain, 0))
ROW(elapsed, float milliseconds;
    failed |= cudaEventElapsedTime(&milliseconds, timed, other))
ROW(event_life, cudaEvent_t event;
    failed |= cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    failed |= cudaEventRecord(event, first); failed |= cudaEventDestroy(event))
ROW(stream_life, cudaStream_t stream;
    failed |= cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    failed |= cudaStreamDestroy(stream))
