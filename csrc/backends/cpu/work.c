/* The table's members that queue work: copies, fills, host functions and
 * sleeps.  Also the failures that tests inject. */
#include <pystreams/faults.h>

#include "engine.h"

#include <string.h>

/* Queue the operation or, if the stream is being captured, capture it.
 * Statuses: PS_ERROR_INVALID_HANDLE, and those of cpu_stream_order_locked,
 * cpu_stream_enqueue_locked and cpu_capture_add_locked. */
static ps_status
stream_enqueue(const struct ps_backend *backend, int device, ps_handle handle,
               struct cpu_operation *operation)
{
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL || stream->capture != NULL) {
        return stream == NULL ? PS_ERROR_INVALID_HANDLE
                              : cpu_capture_add_locked(stream, operation);
    }
    if (engine->timing) {
        operation->times = cpu_times_take();
    }
    ps_status status = cpu_stream_order_locked(stream);
    return status == PS_SUCCESS ? cpu_stream_enqueue_locked(stream, operation)
                                : status;
}

static ps_status
cpu_memory_copy(const struct ps_backend *backend, int device, ps_handle stream,
                void *destination, const void *source, size_t nbytes)
{
    struct cpu_operation copy = {
        .kind = CPU_COPY,
        .transfer = {destination, {source}, nbytes},
    };
    return stream_enqueue(backend, device, stream, &copy);
}

static ps_status
cpu_memory_fill_items(const struct ps_backend *backend, int device,
                      ps_handle stream, void *destination, uint32_t value,
                      size_t size, size_t nbytes)
{
    struct cpu_operation fill = {
        .kind = CPU_FILL,
        .transfer = {.destination = destination, .nbytes = nbytes},
    };
    uint16_t half = (uint16_t)value;
    uint8_t *pattern = fill.transfer.pattern;
    memcpy(pattern, size == 2 ? (void *)&half : (void *)&value, size);
    memcpy(pattern + size, pattern, sizeof(fill.transfer.pattern) - size);
    return stream_enqueue(backend, device, stream, &fill);
}

static ps_status
cpu_memory_fill(const struct ps_backend *backend, int device, ps_handle stream,
                void *destination, uint8_t value, size_t nbytes)
{
    uint32_t four = value * UINT32_C(0x01010101);
    return cpu_memory_fill_items(backend, device, stream, destination, four, 4,
                                 nbytes);
}

static ps_status
cpu_host_function(const struct ps_backend *backend, int device,
                  ps_handle stream, ps_host_function function, void *argument)
{
    struct cpu_operation call = {
        .kind = CPU_CALL,
        .call = {function, argument},
    };
    return stream_enqueue(backend, device, stream, &call);
}

static ps_status
cpu_sleep(const struct ps_backend *backend, int device, ps_handle stream,
          uint64_t cycles)
{
    struct cpu_operation sleep = {
        .kind = CPU_SLEEP,
        .duration = cycles < CPU_FOREVER ? (int64_t)cycles : CPU_FOREVER,
    };
    return stream_enqueue(backend, device, stream, &sleep);
}

static ps_status
cpu_stream_fail(const struct ps_backend *backend, int device, ps_handle stream,
                ps_status failure)
{
    if (failure <= 0 || failure > 999 || failure == PS_ERROR_NOT_READY ||
        failure == PS_ERROR_TIMED_OUT) {
        return PS_ERROR_INVALID_VALUE;
    }
    struct cpu_operation fail = {.kind = CPU_FAIL, .status = failure};
    return stream_enqueue(backend, device, stream, &fail);
}

const struct ps_faults ps_cpu_faults = {sizeof(ps_cpu_faults),
                                        cpu_stream_fail};

void
cpu_work_members(struct ps_backend *table)
{
    table->memory_copy = cpu_memory_copy;
    table->memory_fill = cpu_memory_fill;
    table->memory_fill_items = cpu_memory_fill_items;
    table->host_function = cpu_host_function;
    table->sleep = cpu_sleep;
}
