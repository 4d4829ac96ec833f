/* Waits that poll CUDA work instead of waiting inside the driver.  Such a wait
 * can have a limit, and other threads can call the driver meanwhile. */
#include <cuda_runtime_api.h>

#include <time.h>

#include "captures.h"
#include "clock.h"
#include "driver.h"
#include "gate.h"
#include "poll.h"
#include "pool.h"
#include "table.h"

/* Query the event in the relaxed mode.  In another mode, the query would
 * invalidate a capture that has begun during the wait in the mode
 * PS_CAPTURE_GLOBAL. */
static ps_status
query_quietly(CUevent event)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    cuda_driver.capture_mode(&mode);
    ps_status status = (ps_status)cuda_driver.event_query(event);
    cuda_driver.capture_mode(&mode);
    return status;
}

/* Poll the event until it completes or the limit is reached.  During the first
 * EAGER ns, do not sleep between the queries. */
static ps_status
event_wait_for(CUevent event, const struct ps_limit *limit)
{
    enum { EAGER = 50 * CUDA_MICROSECOND, QUESTION = 50 * CUDA_MILLISECOND };
    int64_t start = cuda_now_ns(), now = start, asked = start;
    ps_status status = query_quietly(event);

    while (status == PS_ERROR_NOT_READY && now - start < limit->timeout_ns) {
        int64_t rest = cuda_rest_ns(now - start);
        int64_t left = limit->timeout_ns - (now - start);
        if (now - start > EAGER) {
            nanosleep(&(struct timespec){.tv_nsec = rest < left ? rest : left},
                      NULL);
        }
        if (limit->is_over != NULL && now - asked > QUESTION) {
            asked = now;
            if (limit->is_over(limit->argument)) {
                return PS_ERROR_TIMED_OUT;
            }
        }
        status = query_quietly(event);
        now = cuda_now_ns();
    }
    return status == PS_ERROR_NOT_READY ? PS_ERROR_TIMED_OUT : status;
}

ps_status
cuda_stream_drain(int device, ps_handle stream)
{
    const struct ps_limit forever = {.timeout_ns = INT64_MAX};
    struct cuda_completion *completion;
    ps_status status = cuda_stream_next_state(stream);

    if (status != PS_ERROR_NOT_READY) {
        return status != PS_ERROR_CAPTURE_UNSUPPORTED ? status : PS_SUCCESS;
    }
    status = cuda_completion_take(device, &completion);
    if (status == PS_SUCCESS) {
        status = cuda_completion_record(completion, stream);
        if (status == PS_SUCCESS) {
            status = event_wait_for(completion->own, &forever);
        }
        cuda_completion_release(completion);
    }
    return status;
}

/* Record the completion's own event behind all work that is queued on the
 * device now. */
static ps_status
device_record(struct cuda_completion *completion)
{
    CUcontext context;
    ps_status status = cuda_context_retain(completion->device, &context);

    if (status == PS_SUCCESS) {
        status = cuda_completion_event(completion);
    }
    if (status == PS_SUCCESS) {
        status = cuda_driver.context_record(context, completion->own);
    }
    return status;
}

/* Wait for all work of the device.  If `observed` is true, also call
 * cudaDeviceSynchronize afterwards, so that the driver notices that the work
 * is done (see cuda_device_observe).  That call also waits for work that other
 * threads have queued meanwhile. */
static ps_status
device_wait(int device, const struct ps_limit *limit, bool observed)
{
    struct cuda_completion *completion;

    if (cuda_driver.context_record == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    ps_status status = cuda_completion_take(device, &completion);
    if (status == PS_SUCCESS) {
        status = ON_DEVICE(device, device_record(completion));
        if (status == PS_SUCCESS) {
            status = event_wait_for(completion->own, limit);
        }
        cuda_completion_release(completion);
    }
    if (status == PS_SUCCESS && observed && !cuda_captures_exist()) {
        /* A capture may have begun meanwhile, and the call would invalidate
         * it.  Ignore the status: it may be a failure of work that was queued
         * later. */
        (void)ON_DEVICE(device, cudaDeviceSynchronize());
    }
    return status;
}

ps_status
cuda_device_wait(int device, const struct ps_limit *limit)
{
    bool forever = limit->timeout_ns == INT64_MAX;

    return device_wait(device, limit, forever && cuda_pool_is_bounded(device));
}

void
cuda_device_observe(int device)
{
    const struct ps_limit patience = {.timeout_ns = CUDA_MILLISECOND};

    (void)device_wait(device, &patience, true);
}
