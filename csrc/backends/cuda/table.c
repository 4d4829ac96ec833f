/* The table over cudart; only the files of this folder name cuda*.
 *
 * One rule: a call of cudart's is made with the primary context of its device
 * current, and leaves the thread as it was, so that cudart never meets a
 * thread without a context and makes one on device 0.  The calls that
 * programs make most go to the driver, one level down: a handle is enough. */
#include <cuda_runtime_api.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "../backends.h"
#include "driver.h"
#include "poll.h"
#include "pool.h"
#include "table.h"

/* Every member is handed the table and the device; few need both. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

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
    int found;

    if (status != PS_SUCCESS) {
        return status;
    }
    found = cuda_driver_count();
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

    /* No context yet, or a driver that nobody has started. */
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

/* Not cudaSetDevice: it would leave the device in cudart's own memory of the
 * thread, where device_restore could not take it back. */
static ps_status
cuda_device_set(const struct ps_backend *backend, int device)
{
    CUcontext context;
    ps_status status = cuda_context_retain(device, &context);

    if (status == PS_SUCCESS) {
        status = cuda_driver.context_set(context);
    }
    return status;
}

static ps_status
cuda_device_restore(const struct ps_backend *backend, int previous)
{
    unsigned flags;
    int active = 1;

    /* Only device 0 is ever current without having been used. */
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
cuda_stream_priority_range(const struct ps_backend *backend, int device,
                           int *least, int *greatest)
{
    return ON_DEVICE(device,
                     cudaDeviceGetStreamPriorityRange(least, greatest));
}

static ps_status
cuda_stream_create(const struct ps_backend *backend, int device, int priority,
                   ps_handle *stream)
{
    cudaStream_t created;
    ps_status status =
        ON_DEVICE(device, cudaStreamCreateWithPriority(
                              &created, cudaStreamNonBlocking, priority));

    if (status == PS_SUCCESS) {
        *stream = (ps_handle)created;
    }
    return status;
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
    return ON_HANDLE(
        device, stream,
        cuda_driver.stream_wait_event((CUstream)stream, (CUevent)event, 0));
}

static ps_status
cuda_stream_device(const struct ps_backend *backend, ps_handle stream,
                   int *device)
{
    struct cuda_scope scope = {0};
    CUcontext context;
    CUdevice found;

    /* Every device has these default streams. */
    if (stream <= (ps_handle)CU_STREAM_PER_THREAD) {
        return PS_SUCCESS;
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
    /* The tool takes a wait for an order, but not a query. */
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

static cudaError_t
pool_allocate(int device, ps_handle stream, size_t nbytes, void **data)
{
    cudaMemPool_t pool;
    cudaError_t error = cuda_pool_find(device, &pool);

    return error != cudaSuccess
               ? error
               : cudaMallocFromPoolAsync(data, nbytes, pool,
                                         (cudaStream_t)stream);
}

static ps_status
cuda_memory_allocate(const struct ps_backend *backend, int device,
                     ps_handle stream, size_t nbytes, void **data)
{
    void *allocated;
    ps_status status =
        ON_DEVICE(device, pool_allocate(device, stream, nbytes, &allocated));

    if (status == PS_SUCCESS) {
        *data = allocated;
    }
    return status;
}

static ps_status
cuda_memory_free(const struct ps_backend *backend, int device,
                 ps_handle stream, void *data)
{
    return ON_DEVICE(device, cudaFreeAsync(data, (cudaStream_t)stream));
}

static ps_status
cuda_pinned_allocate(const struct ps_backend *backend, int device,
                     size_t nbytes, void **data)
{
    void *allocated;
    ps_status status = ON_DEVICE(
        device, cudaHostAlloc(&allocated, nbytes, cudaHostAllocPortable));

    if (status == PS_SUCCESS) {
        *data = allocated;
    }
    return status;
}

static ps_status
cuda_pinned_free(const struct ps_backend *backend, int device, void *data)
{
    return ON_DEVICE(device, cudaFreeHost(data));
}

/* Whether the driver finishes a copy, and what is queued before it, before it
 * returns: measured, as it is not said.  Small ones it has room for itself. */
static int
copy_waits(const struct cudaPointerAttributes *to,
           const struct cudaPointerAttributes *from, size_t nbytes)
{
    const size_t room = (size_t)1 << 20;

    return (to->type == cudaMemoryTypeUnregistered &&
            from->type == cudaMemoryTypeDevice) ||
           (from->type == cudaMemoryTypeUnregistered && nbytes > room);
}

static cudaError_t
copy_queue(int device, ps_handle stream, void *destination, const void *source,
           size_t nbytes)
{
    struct cudaPointerAttributes to, from;
    cudaError_t error = cuda_pool_reach(device, destination, &to);

    if (error == cudaSuccess) {
        error = cuda_pool_reach(device, source, &from);
    }
    if (error == cudaSuccess && copy_waits(&to, &from, nbytes)) {
        error = cuda_stream_drain(device, stream);
    }
    if (error == cudaSuccess && to.type == cudaMemoryTypeDevice &&
        from.type == cudaMemoryTypeDevice && to.device != from.device) {
        error = cuda_pool_open(from.device, to.device);
        if (error == cudaSuccess) {
            error = cuda_pool_open(to.device, from.device);
        }
        if (error == cudaErrorPeerAccessUnsupported) {
            /* A pool's memory needs this then, which no graph captures. */
            return cudaMemcpyPeerAsync(destination, to.device, source,
                                       from.device, nbytes,
                                       (cudaStream_t)stream);
        }
    }
    if (error != cudaSuccess) {
        return error;
    }
    return cudaMemcpyAsync(destination, source, nbytes, cudaMemcpyDefault,
                           (cudaStream_t)stream);
}

static ps_status
cuda_memory_copy(const struct ps_backend *backend, int device,
                 ps_handle stream, void *destination, const void *source,
                 size_t nbytes)
{
    return ON_DEVICE(device,
                     copy_queue(device, stream, destination, source, nbytes));
}

static cudaError_t
fill_queue(int device, ps_handle stream, void *destination, uint8_t value,
           size_t nbytes)
{
    struct cudaPointerAttributes found;
    cudaError_t error = cuda_pool_reach(device, destination, &found);

    return error != cudaSuccess ? error
                                : cudaMemsetAsync(destination, value, nbytes,
                                                  (cudaStream_t)stream);
}

static ps_status
cuda_memory_fill(const struct ps_backend *backend, int device,
                 ps_handle stream, void *destination, uint8_t value,
                 size_t nbytes)
{
    return ON_DEVICE(device,
                     fill_queue(device, stream, destination, value, nbytes));
}

static cudaError_t
memory_info(int device, uint64_t *unused, size_t *total)
{
    size_t free;
    uint64_t idle;
    cudaError_t error = cudaMemGetInfo(&free, total);

    if (error == cudaSuccess) {
        error = cuda_pool_idle(device, &idle);
    }
    if (error == cudaSuccess) {
        *unused = free + idle < *total ? free + idle : *total;
    }
    return error;
}

static ps_status
cuda_memory_info(const struct ps_backend *backend, int device, uint64_t *free,
                 uint64_t *total)
{
    uint64_t unused = 0;
    size_t all = 0;
    ps_status status = ON_DEVICE(device, memory_info(device, &unused, &all));

    if (status == PS_SUCCESS) {
        *free = unused;
        *total = all;
    }
    return status;
}

static ps_status
cuda_peer_accessible(const struct ps_backend *backend, int device, int peer,
                     int *accessible)
{
    return cudaDeviceCanAccessPeer(accessible, device, peer);
}

static ps_status
cuda_memory_device(const struct ps_backend *backend, int device,
                   const void *address, int *owner)
{
    struct cudaPointerAttributes found;
    ps_status status =
        ON_DEVICE(device, cudaPointerGetAttributes(&found, address));

    if (status != PS_SUCCESS) {
        return status;
    }
    if (found.type != cudaMemoryTypeDevice &&
        found.type != cudaMemoryTypeManaged) {
        return PS_ERROR_INVALID_VALUE;
    }
    *owner = found.device;
    return PS_SUCCESS;
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

    /* Not cudart's own functions, which start the driver. */
    *runtime = CUDART_VERSION;
    *driver = 0;
    return status == PS_SUCCESS ? (ps_status)cuda_driver.version(driver)
                                : PS_SUCCESS;
}

const struct ps_backend ps_cuda_backend = {
    .struct_size = sizeof(ps_cuda_backend),
    .flags = PS_BACKEND_SHARED,
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
    .event_export = cuda_event_export,
    .event_open = cuda_event_open,
    .memory_allocate = cuda_memory_allocate,
    .memory_free = cuda_memory_free,
    .pinned_allocate = cuda_pinned_allocate,
    .pinned_free = cuda_pinned_free,
    .memory_copy = cuda_memory_copy,
    .memory_fill = cuda_memory_fill,
    .memory_info = cuda_memory_info,
    .peer_accessible = cuda_peer_accessible,
    .memory_device = cuda_memory_device,
    .host_function = cuda_host_function,
    .sleep = cuda_sleep,
    .stream_notify = cuda_stream_notify,
    .event_notify = cuda_event_notify,
    .notify_cancel = cuda_notify_cancel,
    .stream_gate = cuda_stream_gate,
    .gate_open = cuda_gate_open,
    .stream_capturing = cuda_stream_capturing,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .capture_mode_exchange = cuda_capture_mode_exchange,
    .event_record_external = cuda_event_record_external,
    .stream_wait_external = cuda_stream_wait_external,
    .graph_instantiate = cuda_graph_instantiate,
    .graph_launch = cuda_graph_launch,
    .executable_destroy = cuda_executable_destroy,
    .graph_destroy = cuda_graph_destroy,
    .graph_print = cuda_graph_print,
    .versions = cuda_versions,
    .shutdown = cuda_shutdown,
};
