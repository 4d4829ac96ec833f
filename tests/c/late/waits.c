/* Tests that a wait for a device queries its event in the relaxed mode, in
 * which the query does not invalidate a capture that another thread has begun
 * in the global mode.  The driver's functions are replaced with functions that
 * store the mode and count the queries. */
#include "../../../csrc/backends/cuda/driver.h"

#include "check.h"

enum { QUERIES = 3 };

static _Thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static int queries;

static int
capture_mode(CUstreamCaptureMode *wanted)
{
    CUstreamCaptureMode former = mode;
    mode = *wanted;
    *wanted = former;
    return CUDA_SUCCESS;
}

static int
event_query(CUevent event)
{
    (void)event;
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    queries++;
    return queries < QUERIES ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

int
main(void)
{
    const struct ps_limit limit = {.timeout_ns = 10000000000};
    int devices;
    gpu->device_count(gpu, &devices);
    cuda_driver.capture_mode = capture_mode;
    cuda_driver.event_query = event_query;
    OK(gpu->device_synchronize(gpu, 0, &limit));
    CHECK(queries == QUERIES);
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    return report();
}
