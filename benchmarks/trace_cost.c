/* Calls core on a device whose functions do nothing, so that all the time of a
 * call is spent in core.  This is for trace_cost.py. */
#include "../csrc/core/event.h"
#include "../csrc/core/device.h"
#include "../csrc/core/runtime.h"

#include <string.h>
#include <time.h>

static const char *
text(const struct ps_backend *backend, ps_status status)
{
    (void)backend, (void)status;
    return "";
}

static ps_status
one_device(const struct ps_backend *backend, int *count)
{
    (void)backend;
    *count = 1;
    return PS_SUCCESS;
}

static ps_status
device_zero(const struct ps_backend *backend, int *device)
{
    (void)backend;
    *device = 0;
    return PS_SUCCESS;
}

static ps_status
with_device(const struct ps_backend *backend, int device)
{
    (void)backend, (void)device;
    return PS_SUCCESS;
}

static ps_status
properties(const struct ps_backend *backend, int device,
           struct ps_device_properties *result)
{
    (void)backend, (void)device;
    memset(result, 0, sizeof(*result));
    return PS_SUCCESS;
}

static ps_status
priority_range(const struct ps_backend *backend, int device, int *least,
               int *greatest)
{
    (void)backend, (void)device;
    *least = *greatest = 0;
    return PS_SUCCESS;
}

static ps_status
stream_create(const struct ps_backend *backend, int device, int priority,
              ps_handle *stream)
{
    (void)backend, (void)device, (void)priority;
    *stream = 1;
    return PS_SUCCESS;
}

static ps_status
event_create(const struct ps_backend *backend, int device, unsigned flags,
             ps_handle *event)
{
    (void)backend, (void)device, (void)flags;
    *event = 1;
    return PS_SUCCESS;
}

static ps_status
with_handle(const struct ps_backend *backend, int device, ps_handle handle)
{
    (void)backend, (void)device, (void)handle;
    return PS_SUCCESS;
}

static ps_status
with_handles(const struct ps_backend *backend, int device, ps_handle first,
             ps_handle second)
{
    (void)backend, (void)device, (void)first, (void)second;
    return PS_SUCCESS;
}

static const struct ps_backend backend = {
    .struct_size = sizeof(backend),
    .name = "nothing",
    .device_type = PS_DEVICE_PRIVATEUSEONE,
    .status_name = text,
    .status_text = text,
    .device_count = one_device,
    .device_current = device_zero,
    .device_set = with_device,
    .device_synchronize = with_device,
    .device_properties = properties,
    .stream_priority_range = priority_range,
    .stream_create = stream_create,
    .stream_destroy = with_handle,
    .stream_query = with_handle,
    .stream_synchronize = with_handle,
    .stream_wait_event = with_handles,
    .event_create = event_create,
    .event_destroy = with_handle,
    .event_record = with_handles,
    .event_query = with_handle,
    .event_synchronize = with_handle,
};

static struct ps_stream *stream;
static struct ps_event *event;

/* Create the stream and the event.  Returns 0, or the status of the function
 * that failed. */
__attribute__((visibility("default"))) int
prepare(void)
{
    struct ps_refusal refusal;
    struct ps_runtime *runtime;
    struct ps_device *device;
    ps_status status = ps_core_init();
    if (status == PS_SUCCESS) {
        status = ps_runtime_register(&backend, NULL, &refusal);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    runtime = ps_runtime_find(backend.device_type);
    status = ps_runtime_use(runtime);
    if (status == PS_SUCCESS) {
        status = ps_runtime_device(runtime, 0, &device);
    }
    if (status == PS_SUCCESS) {
        status = ps_stream_create(device, 0, false, NULL, &stream);
    }
    if (status == PS_SUCCESS) {
        status = ps_event_create(runtime, 0, &event);
    }
    return status;
}

static double
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* Returns the nanoseconds that one call of ps_event_record takes. */
__attribute__((visibility("default"))) double
record(int count)
{
    double start = now();
    for (int i = 0; i < count; i++) {
        ps_event_record(event, stream);
    }
    return (now() - start) / count;
}
