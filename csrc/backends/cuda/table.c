/* The table of the CUDA backend, and its members for devices, streams and
 * events.
 *
 * The rule: call a function of cudart only while the device's primary context
 * is current.  On a thread without a context, cudart would otherwise create a
 * context on device 0.  After the call, make the thread's previous context
 * current again.  Functions of cudart that never create a context, such as
 * cudaDeviceGetAttribute, may be called in any case.  The members that
 * programs call most often use the driver instead of cudart: a driver function
 * that takes the handle of a stream or an event needs no current context. */
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "../backends.h"
#include "captures.h"
#include "driver.h"
#include "poll.h"
#include "table.h"

static const char *
cuda_status_name(const struct ps_backend *backend, ps_status status)
{
    return cudaGetErrorName(status);
}

static const char *
cuda_status_text(const struct ps_backend *backend, ps_status status)
{
    const char *failure = cuda_driver_failure();

    if (status == PS_ERROR_INSUFFICIENT_DRIVER && failure[0] != '\0') {
        return failure;
    }
    return cudaGetErrorString(status);
}

static ps_status
cuda_device_count(const struct ps_backend *backend, int *count)
{
    ps_status status = cuda_driver_load();

    if (status != PS_SUCCESS) {
        return status;
    }
    int found = cuda_driver_count();
    if (found < 0) {
        status = cudaGetDeviceCount(&found);
    }
    if (status == PS_SUCCESS && found == 0) {
        status = PS_ERROR_NO_DEVICE;
    }
    if (status == PS_SUCCESS) {
        *count = found < CUDA_DEVICES ? found : CUDA_DEVICES;
    }
    return status;
}

static ps_status
cuda_device_current(const struct ps_backend *backend, int *device)
{
    CUdevice current;
    ps_status status = cuda_driver.context_device(&current);

    /* These errors mean that the thread has no context, or that the driver is
     * not initialized. */
    if (status == CUDA_ERROR_INVALID_CONTEXT ||
        status == CUDA_ERROR_NOT_INITIALIZED) {
        current = 0;
        status = PS_SUCCESS;
    }
    if (status == PS_SUCCESS) {
        *device = current;
    }
    return status;
}

/* This does not use cudaSetDevice, because cudart would remember the device
 * for this thread, and device_restore could not undo that. */
static ps_status
cuda_device_set(const struct ps_backend *backend, int device)
{
    CUcontext context;
    ps_status status = cuda_context_retain(device, &context);

    return status == PS_SUCCESS ? cuda_driver.context_set(context) : status;
}

static ps_status
cuda_device_restore(const struct ps_backend *backend, int previous)
{
    unsigned flags;
    int active = 1;

    /* cuda_device_current also returns 0 for a thread without a context.  So
     * if device 0 has no context, do not create one here.  Instead, leave the
     * thread without a context. */
    if (previous == 0) {
        ps_status status =
            cuda_driver.context_state(previous, &flags, &active);
        if (status != PS_SUCCESS) {
            return status;
        }
    }
    if (!active) {
        return cuda_driver.context_set(NULL);
    }
    return cuda_device_set(backend, previous);
}

static ps_status
cuda_device_synchronize(const struct ps_backend *backend, int device,
                        const struct ps_limit *limit)
{
    return limit != NULL ? cuda_device_wait(device, limit)
                         : ON_DEVICE(device, cudaDeviceSynchronize());
}

static ps_status
cuda_device_properties(const struct ps_backend *backend, int device,
                       struct ps_device_properties *properties)
{
    struct cudaDeviceProp found;
    ps_status status = cudaGetDeviceProperties(&found, device);

    if (status != PS_SUCCESS) {
        return status;
    }
    *properties = (struct ps_device_properties){
        .total_memory = found.totalGlobalMem,
        .major = found.major,
        .minor = found.minor,
        .multi_processor_count = found.multiProcessorCount,
        .warp_size = found.warpSize,
        .l2_cache_size = (uint64_t)found.l2CacheSize,
    };
    snprintf(properties->name, sizeof(properties->name), "%s", found.name);
    memcpy(properties->uuid, &found.uuid, sizeof(properties->uuid));
    return PS_SUCCESS;
}

static ps_status
cuda_device_attribute(const struct ps_backend *backend, int device,
                      int attribute, int *value)
{
    return cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute,
                                  device);
}

static ps_status
cuda_stream_priority_range(const struct ps_backend *backend, int device,
                           int *least, int *greatest)
{
    return ON_DEVICE(device,
                     cudaDeviceGetStreamPriorityRange(least, greatest));
}

static ps_status
create(int device, unsigned flags, int priority, ps_handle *stream)
{
    cudaStream_t created;
    ps_status status = ON_DEVICE(
        device, cudaStreamCreateWithPriority(&created, flags, priority));

    if (status == PS_SUCCESS) {
        *stream = (ps_handle)created;
    }
    return status;
}

static ps_status
cuda_stream_create(const struct ps_backend *backend, int device, int priority,
                   ps_handle *stream)
{
    return create(device, cudaStreamNonBlocking, priority, stream);
}

static ps_status
cuda_blocking_create(const struct ps_backend *backend, int device,
                     int priority, ps_handle *stream)
{
    return create(device, cudaStreamDefault, priority, stream);
}

static ps_status
stream_blocking(ps_handle stream, int *blocking)
{
    unsigned flags;
    ps_status status = cuda_stream_check_uncaptured(stream);

    if (status == PS_SUCCESS) {
        status = (ps_status)cudaStreamGetFlags((cudaStream_t)stream, &flags);
    }
    if (status == PS_SUCCESS) {
        *blocking = (flags & cudaStreamNonBlocking) == 0;
    }
    return status;
}

static ps_status
cuda_stream_blocking(const struct ps_backend *backend, int device,
                     ps_handle stream, int *blocking)
{
    return ON_DEVICE(device, stream_blocking(stream, blocking));
}

static ps_status
cuda_stream_destroy(const struct ps_backend *backend, int device,
                    ps_handle stream)
{
    return ON_DEVICE(device, cudaStreamDestroy((cudaStream_t)stream));
}

static ps_status
cuda_stream_query(const struct ps_backend *backend, int device,
                  ps_handle stream)
{
    return ON_HANDLE(device, stream,
                     cuda_driver.stream_query((CUstream)stream));
}

static ps_status
cuda_stream_synchronize(const struct ps_backend *backend, int device,
                        ps_handle stream, const struct ps_limit *limit)
{
    return limit != NULL
               ? PS_ERROR_NOT_SUPPORTED
               : ON_HANDLE(device, stream,
                           cuda_driver.stream_synchronize((CUstream)stream));
}

static ps_status
cuda_stream_wait_event(const struct ps_backend *backend, int device,
                       ps_handle stream, ps_handle event)
{
    bool may_join = cuda_captures_exist();
    struct cuda_entered entered;

    if (may_join) {
        cuda_stream_enter(&entered, stream);
    }
    ps_status status = ON_HANDLE(
        device, stream,
        cuda_driver.stream_wait_event((CUstream)stream, (CUevent)event, 0));
    if (may_join) {
        cuda_stream_leave(&entered);
    }
    return status;
}

static ps_status
cuda_stream_device(const struct ps_backend *backend, ps_handle stream,
                   int *device)
{
    struct cuda_scope scope = {0};
    CUcontext context;
    CUdevice found;

    /* The handle of a default stream means a stream on whichever device is
     * current, so *device stays unchanged. */
    if (stream <= (ps_handle)CU_STREAM_PER_THREAD) {
        return PS_SUCCESS;
    }
    /* If the driver can tell the device directly, do not make the stream's
     * context current: it may be a green context, which can be current on only
     * one thread at a time. */
    if (cuda_driver.stream_device != NULL &&
        cuda_stream_check_uncaptured(stream) == PS_SUCCESS) {
        scope.status = cuda_driver.stream_device((CUstream)stream, &found);
        if (scope.status == PS_SUCCESS) {
            *device = found;
        }
        return scope.status;
    }
    scope.status = cuda_driver.context_get(&scope.previous);
    if (scope.status == PS_SUCCESS) {
        scope.status = cuda_driver.stream_context((CUstream)stream, &context);
    }
    if (scope.status == PS_SUCCESS) {
        scope.status = cuda_driver.context_set(context);
        scope.switched = scope.status == PS_SUCCESS;
    }
    if (scope.status == PS_SUCCESS) {
        scope.status = cuda_driver.context_device(&found);
    }
    if (scope.status == PS_SUCCESS) {
        *device = found;
    }
    return cuda_scope_leave(scope);
}

static pthread_key_t thread_key; /* the key of each thread's number */
static bool has_thread_key;

static void
make_thread_key(void)
{
    has_thread_key = pthread_key_create(&thread_key, NULL) == 0;
}

/* The name of a thread's default stream contains a number that identifies the
 * thread, because the handle cudaStreamPerThread means a different stream on
 * each thread. */
static ps_status
cuda_thread_stream(const struct ps_backend *backend, int device,
                   ps_handle *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_ullong threads;
    (void)backend;
    (void)device;
    pthread_once(&once, make_thread_key);
    if (!has_thread_key) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    uintptr_t number = (uintptr_t)pthread_getspecific(thread_key);
    if (number == 0) {
        number = (uintptr_t)atomic_fetch_add(&threads, 1) + 1;
        if (pthread_setspecific(thread_key, (void *)number) != 0) {
            return PS_ERROR_OUT_OF_MEMORY;
        }
    }
    *name = PS_THREAD_STREAM_NAME | number;
    return PS_SUCCESS;
}

static ps_status
cuda_event_create(const struct ps_backend *backend, int device, unsigned flags,
                  ps_handle *event)
{
    cudaEvent_t created;
    unsigned wanted =
        (flags & PS_EVENT_TIMING ? 0 : cudaEventDisableTiming) |
        (flags & PS_EVENT_BLOCKING ? cudaEventBlockingSync : 0) |
        (flags & PS_EVENT_INTERPROCESS ? cudaEventInterprocess : 0);
    ps_status status =
        ON_DEVICE(device, cudaEventCreateWithFlags(&created, wanted));

    if (status == PS_SUCCESS && (flags & PS_EVENT_INTERPROCESS)) {
        status = cuda_event_share((ps_handle)created);
        if (status != PS_SUCCESS) {
            (void)ON_DEVICE(device, cudaEventDestroy(created));
        }
    }
    if (status == PS_SUCCESS) {
        *event = (ps_handle)created;
    }
    return status;
}

static ps_status
cuda_event_destroy(const struct ps_backend *backend, int device,
                   ps_handle event)
{
    return cuda_event_forget(device, event)
               ? PS_SUCCESS
               : ON_DEVICE(device, cudaEventDestroy((cudaEvent_t)event));
}

static ps_status
cuda_event_record(const struct ps_backend *backend, int device,
                  ps_handle event, ps_handle stream)
{
    if (cuda_events_are_polled()) {
        ps_status status = cuda_event_yield(device, event);
        if (status != PS_SUCCESS) {
            return status;
        }
    }
    return ON_HANDLE(
        device, stream,
        cuda_driver.event_record((CUevent)event, (CUstream)stream));
}

static ps_status
cuda_event_query(const struct ps_backend *backend, int device, ps_handle event)
{
    ps_status status =
        ON_HANDLE(device, event, cuda_driver.event_query((CUevent)event));
#ifdef PS_COMPUTE_SANITIZER
    /* compute-sanitizer knows that a wait for an event orders operations, but
     * not that a query does.  So wait for the event as well.  It is already
     * done, so this returns at once. */
    if (status == PS_SUCCESS) {
        cuda_driver.event_synchronize((CUevent)event);
    }
#endif
    return status;
}

static ps_status
cuda_event_synchronize(const struct ps_backend *backend, int device,
                       ps_handle event, const struct ps_limit *limit)
{
    return limit != NULL
               ? PS_ERROR_NOT_SUPPORTED
               : ON_HANDLE(device, event,
                           cuda_driver.event_synchronize((CUevent)event));
}

static ps_status
cuda_event_elapsed(const struct ps_backend *backend, int device,
                   ps_handle start, ps_handle end, float *milliseconds)
{
    return cuda_driver.event_elapsed(milliseconds, (CUevent)start,
                                     (CUevent)end);
}

static ps_status
cuda_host_function(const struct ps_backend *backend, int device,
                   ps_handle stream, ps_host_function function, void *argument)
{
    return ON_DEVICE(
        device, cudaLaunchHostFunc((cudaStream_t)stream, function, argument));
}

static ps_status
cuda_versions(const struct ps_backend *backend, int *runtime, int *driver)
{
    ps_status status = cuda_driver_load();

    /* This does not use cudart's functions for versions, because they
     * initialize the driver. */
    *runtime = CUDART_VERSION;
    *driver = 0;
    return status == PS_SUCCESS ? (ps_status)cuda_driver.version(driver)
                                : PS_SUCCESS;
}

#define CUDA_FILL(name) .name = cuda_##name,

const struct ps_backend ps_cuda_backend = {
    .struct_size = sizeof(ps_cuda_backend),
    /* PS_BACKEND_THREADS_FINISH works around a bug of driver 580.  If memory
     * was allocated in stream order (as by cudaMallocAsync), a thread hangs
     * when it ends while a kernel is pending on its default stream. */
    .flags = PS_BACKEND_SHARED | PS_BACKEND_THREADS_FINISH,
    .name = "cuda",
    .device_type = PS_DEVICE_CUDA,
    .status_name = cuda_status_name,
    .status_text = cuda_status_text,
    .device_count = cuda_device_count,
    .device_current = cuda_device_current,
    .device_set = cuda_device_set,
    .device_restore = cuda_device_restore,
    .device_synchronize = cuda_device_synchronize,
    .device_properties = cuda_device_properties,
    .stream_priority_range = cuda_stream_priority_range,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_query = cuda_stream_query,
    .stream_synchronize = cuda_stream_synchronize,
    .stream_wait_event = cuda_stream_wait_event,
    .stream_device = cuda_stream_device,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .event_synchronize = cuda_event_synchronize,
    .event_elapsed = cuda_event_elapsed,
    .host_function = cuda_host_function,
    .versions = cuda_versions,
    .device_attribute = cuda_device_attribute,
    .blocking_create = cuda_blocking_create,
    .stream_blocking = cuda_stream_blocking,
    .thread_stream = cuda_thread_stream,
    CUDA_MEMBERS(CUDA_FILL)};
