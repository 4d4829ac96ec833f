/* Measures cudart's functions in a loop, to show what the calls cost without
 * Python. */
#include "handles.h"
#include "rows.h"

int
prepare(void)
{
    return handles_make();
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
