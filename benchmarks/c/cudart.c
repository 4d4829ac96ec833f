/* What the calls cost without Python: cudart's functions, in a loop. */
#include <cuda_runtime_api.h>

#include "rows.h"

static cudaStream_t first, second;
static cudaEvent_t plain, done, timed, start_, end_;

int
prepare(void)
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

ROW(record, failed |= cudaEventRecord(plain, first))
ROW(record_current, failed |= cudaEventRecord(plain, NULL))
ROW(record_timed, failed |= cudaEventRecord(timed, first))
ROW(record_query, failed |= cudaEventRecord(plain, first);
    cudaError_t status = cudaEventQuery(plain);
    failed |= status != cudaSuccess && status != cudaErrorNotReady)
ROW(event_query, failed |= cudaEventQuery(done))
ROW(event_synchronize, failed |= cudaEventSynchronize(done))
ROW(stream_query, failed |= cudaStreamQuery(first))
ROW(stream_synchronize, failed |= cudaStreamSynchronize(first))
ROW(record_wait, failed |= cudaEventRecord(plain, first);
    failed |= cudaStreamWaitEvent(second, plain, 0))
ROW(wait_stream, failed |= cudaEventRecord(plain, first);
    failed |= cudaStreamWaitEvent(second, plain, 0))
ROW(elapsed, float milliseconds;
    failed |= cudaEventElapsedTime(&milliseconds, start_, end_))
ROW(event_life, cudaEvent_t event;
    failed |= cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    failed |= cudaEventRecord(event, first); failed |= cudaEventDestroy(event))
ROW(stream_life, cudaStream_t stream;
    failed |= cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    failed |= cudaStreamDestroy(stream))
