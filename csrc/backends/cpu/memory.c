/* Memory: host memory that plays the device's, its copies and fills.  A block
 * begins with the operation that will free it, so that freeing in stream order
 * needs neither memory nor room in the queue. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ALIGNMENT = 256,
    INLINE_BYTES = 64 * 1024, /* cheaper done than queued */
};

_Static_assert(sizeof(struct cpu_operation) <= ALIGNMENT,
               "the operation fits in front of the block");

static ps_status
allocate(size_t nbytes, size_t header, void **data)
{
    if (nbytes > PTRDIFF_MAX - 2 * ALIGNMENT)
        return PS_ERROR_OUT_OF_MEMORY;
    size_t size = (header + nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *block = aligned_alloc(ALIGNMENT, size);
    if (!block)
        return PS_ERROR_OUT_OF_MEMORY;
    *data = block + header;
    return PS_SUCCESS;
}

static ps_status
cpu_memory_allocate(const struct ps_backend *backend, int device,
                    ps_handle handle, size_t nbytes, void **data)
{
    if (!cpu_stream_lock(backend, device, handle))
        return PS_ERROR_INVALID_HANDLE;
    cpu_unlock(cpu_engine_of(backend));
    return allocate(nbytes, ALIGNMENT, data);
}

/* Without a worker the stream can only be busy with a copy on another thread,
 * and starting one can fail; once the engine stops, the block is leaked. */
static ps_status
cpu_memory_free(const struct ps_backend *backend, int device, ps_handle handle,
                void *data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_operation *head = (void *)((char *)data - ALIGNMENT);
    struct cpu_stream *stream = cpu_stream_lock(backend, device, handle);
    if (!stream)
        return PS_ERROR_INVALID_HANDLE;
    if (stream->state == CPU_IDLE) {
        cpu_unlock(engine);
        free(head);
        return PS_SUCCESS;
    }
    ps_status status = cpu_engine_staff_locked(engine);
    if (status != PS_ERROR_OUT_OF_MEMORY) {
        status = PS_SUCCESS;
        head->kind = CPU_FREE;
        cpu_stream_push_locked(stream, head);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_pinned_allocate(const struct ps_backend *backend, int device,
                    size_t nbytes, void **data)
{
    (void)backend;
    (void)device;
    return allocate(nbytes, 0, data);
}

static ps_status
cpu_pinned_free(const struct ps_backend *backend, int device, void *data)
{
    (void)backend;
    (void)device;
    free(data);
    return PS_SUCCESS;
}

void
cpu_operation_run(struct cpu_operation *operation)
{
    switch (operation->kind) {
    case CPU_COPY:
        /* Users may overlap the two sides. */
        memmove(operation->copy.destination, operation->copy.source,
                operation->copy.nbytes);
        break;
    case CPU_FILL:
        memset(operation->fill.destination, operation->fill.value,
               operation->fill.nbytes);
        break;
    case CPU_CALL:
        operation->call.function(operation->call.argument);
        break;
    case CPU_FREE:
        free(operation);
        break;
    default:
        abort();
    }
}

/* Do a small transfer here and now if the stream is idle, or else queue it. */
static ps_status
transfer(const struct ps_backend *backend, int device, ps_handle handle,
         struct cpu_operation *operation, size_t nbytes)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_stream *stream = cpu_stream_lock(backend, device, handle);
    if (!stream)
        return PS_ERROR_INVALID_HANDLE;
    ps_status status = PS_SUCCESS;
    if (stream->state != CPU_IDLE || nbytes > INLINE_BYTES) {
        status = cpu_stream_append_locked(stream, operation);
    }
    else if (!stream->status) {
        stream->state = CPU_RUNNING;
        stream->queued++;
        cpu_unlock(engine);
        cpu_operation_run(operation);
        cpu_lock(engine);
        cpu_stream_advance_locked(stream);
        cpu_stream_settle_locked(stream);
        cpu_engine_rouse_locked(engine);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_memory_copy(const struct ps_backend *backend, int device, ps_handle stream,
                void *destination, const void *source, size_t nbytes)
{
    struct cpu_operation copy = {
        .kind = CPU_COPY,
        .copy = {destination, source, nbytes},
    };
    return transfer(backend, device, stream, &copy, nbytes);
}

static ps_status
cpu_memory_fill(const struct ps_backend *backend, int device, ps_handle stream,
                void *destination, uint8_t value, size_t nbytes)
{
    struct cpu_operation fill = {
        .kind = CPU_FILL,
        .fill = {destination, nbytes, value},
    };
    return transfer(backend, device, stream, &fill, nbytes);
}

static ps_status
cpu_memory_info(const struct ps_backend *backend, int device,
                uint64_t *available, uint64_t *total)
{
    (void)backend;
    (void)device;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
    *total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    return PS_SUCCESS;
}

static ps_status
cpu_peer_accessible(const struct ps_backend *backend, int device, int peer,
                    int *accessible)
{
    (void)backend;
    *accessible = device != peer;
    return PS_SUCCESS;
}

void
cpu_memory_members(struct ps_backend *table)
{
    table->memory_allocate = cpu_memory_allocate;
    table->memory_free = cpu_memory_free;
    table->pinned_allocate = cpu_pinned_allocate;
    table->pinned_free = cpu_pinned_free;
    table->memory_copy = cpu_memory_copy;
    table->memory_fill = cpu_memory_fill;
    table->memory_info = cpu_memory_info;
    table->peer_accessible = cpu_peer_accessible;
}
