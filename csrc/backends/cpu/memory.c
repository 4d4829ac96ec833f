/* Memory: host memory that plays the device's, its copies and fills.  A block
 * begins with the operation that will free it, so that freeing in stream order
 * needs neither memory nor room in the queue.  What work still uses when the
 * engine stops is never freed. */
#include "engine.h"

#include <stdlib.h>
#include <unistd.h>

enum { ALIGNMENT = 256 };

_Static_assert(sizeof(struct cpu_operation) <= ALIGNMENT,
               "the operation fits in front of the block");

static ps_status
allocate(size_t nbytes, size_t header, void **data)
{
    if (nbytes > PTRDIFF_MAX - 2 * ALIGNMENT) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    size_t size = (header + nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *block = aligned_alloc(ALIGNMENT, size);
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *data = block + header;
    return PS_SUCCESS;
}

static ps_status
cpu_memory_allocate(const struct ps_backend *backend, int device,
                    ps_handle handle, size_t nbytes, void **data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    bool found = cpu_stream_find_locked(engine, device, handle) != NULL;
    cpu_unlock(engine);
    return found ? allocate(nbytes, ALIGNMENT, data) : PS_ERROR_INVALID_HANDLE;
}

static ps_status
cpu_memory_free(const struct ps_backend *backend, int device, ps_handle handle,
                void *data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_operation *head = (void *)((char *)data - ALIGNMENT);
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    bool idle = stream != NULL && stream->first == NULL;
    if (stream != NULL && !idle) {
        head->kind = CPU_FREE;
        cpu_stream_push_locked(stream, head);
    }
    cpu_unlock(engine);
    if (idle) {
        free(head);
    }
    return stream != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
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

static ps_status
cpu_memory_copy(const struct ps_backend *backend, int device, ps_handle stream,
                void *destination, const void *source, size_t nbytes)
{
    struct cpu_operation copy = {
        .kind = CPU_COPY,
        .transfer = {destination, source, nbytes},
    };
    return cpu_stream_enqueue(backend, device, stream, &copy);
}

static ps_status
cpu_memory_fill(const struct ps_backend *backend, int device, ps_handle stream,
                void *destination, uint8_t value, size_t nbytes)
{
    struct cpu_operation fill = {
        .kind = CPU_FILL,
        .value = value,
        .transfer = {destination, NULL, nbytes},
    };
    return cpu_stream_enqueue(backend, device, stream, &fill);
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
