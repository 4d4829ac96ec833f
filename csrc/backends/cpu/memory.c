/* Memory: host memory in place of a device's, and its copies and fills.  A
 * block begins with the operation that will free it, so that freeing in stream
 * order needs neither memory nor room in the queue.  A block that is in use
 * when the engine stops is never freed.
 *
 * An emulated device has a limited amount of memory, and a tree of the blocks
 * in it.  A block counts from the call that allocates it to the call that
 * frees it, not to the end of the free in stream order: on a device, work that
 * is queued later could use the memory. */
#include "engine.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 256 };

struct range {
    uintptr_t first;
    size_t nbytes;
    int device;
};

struct block {
    struct cpu_operation end;
    /* In engine->ranges, if the device is emulated; else the bytes alone. */
    struct range range;
};

_Static_assert(sizeof(struct block) <= ALIGNMENT, "it fits in front");

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

static struct block *
block_of(void *data)
{
    return (struct block *)((char *)data - ALIGNMENT);
}

/* Ranges that overlap compare equal; no two in the tree overlap. */
static int
compare_ranges(const void *left, const void *right)
{
    const struct range *a = left, *b = right;
    return a->first + a->nbytes <= b->first   ? -1
           : b->first + b->nbytes <= a->first ? 1
                                              : 0;
}

/* Count the block as the device's; PS_ERROR_OUT_OF_MEMORY. */
static ps_status
emulated_add_locked(struct cpu_engine *engine, int device, size_t nbytes,
                    void *data)
{
    struct range *range = &block_of(data)->range;
    uint64_t *used = &engine->devices[device].used;
    *range = (struct range){
        .first = (uintptr_t)data,
        .nbytes = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT,
        .device = device,
    };
    if (range->nbytes > engine->memory - *used ||
        tsearch(range, &engine->ranges, compare_ranges) == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *used += range->nbytes;
    return PS_SUCCESS;
}

static void
emulated_remove_locked(struct cpu_engine *engine, void *data)
{
    struct range *range = &block_of(data)->range;
    tdelete(range, &engine->ranges, compare_ranges);
    engine->devices[range->device].used -= range->nbytes;
}

static ps_status
cpu_memory_allocate(const struct ps_backend *backend, int device,
                    ps_handle handle, size_t nbytes, void **data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    void *allocated;
    if (engine->memory != 0 && nbytes > engine->memory) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status = allocate(nbytes, ALIGNMENT, &allocated);
    if (status != PS_SUCCESS) {
        return status;
    }
    block_of(allocated)->range = (struct range){.nbytes = nbytes};
    cpu_lock(engine);
    if (cpu_stream_find_locked(engine, device, handle) == NULL) {
        status = PS_ERROR_INVALID_HANDLE;
    }
    else if (engine->memory != 0) {
        status = emulated_add_locked(engine, device, nbytes, allocated);
    }
    bool lazy = cpu_is_lazy(engine);
    cpu_unlock(engine);
    if (status != PS_SUCCESS) {
        free(block_of(allocated));
        return status;
    }
    if (lazy) {
        memset(allocated, PS_SCHEDULE_POISON, nbytes);
    }
    *data = allocated;
    return PS_SUCCESS;
}

static ps_status
cpu_memory_free(const struct ps_backend *backend, int device, ps_handle handle,
                void *data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct block *block = block_of(data);
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL) {
        cpu_unlock(engine);
        return PS_ERROR_INVALID_HANDLE;
    }
    bool idle = stream->first == NULL, lazy = cpu_is_lazy(engine);
    if (engine->memory != 0) {
        emulated_remove_locked(engine, data);
    }
    /* Whether the stream is idle is not to be seen from the notes. */
    bool queued = !idle || cpu_is_noted(engine);
    if (queued) {
        block->end.kind = CPU_FREE;
        block->end.overtaken = block->end.abandoned = false;
        cpu_stream_push_locked(stream, &block->end);
    }
    if (queued && idle) {
        cpu_stream_help_locked(stream);
    }
    cpu_unlock(engine);
    idle = !queued;
    if (idle && lazy) {
        cpu_memory_poison(&block->end);
    }
    if (idle) {
        free(block);
    }
    return PS_SUCCESS;
}

void *
cpu_memory_of(struct cpu_operation *end, size_t *nbytes)
{
    *nbytes = ((struct block *)end)->range.nbytes;
    return (char *)end + ALIGNMENT;
}

void
cpu_memory_poison(struct cpu_operation *end)
{
    size_t nbytes;
    void *data = cpu_memory_of(end, &nbytes);
    memset(data, PS_SCHEDULE_POISON, nbytes);
    /* Or the compiler leaves it away before a free. */
    __asm__ volatile("" : : "r"(end) : "memory");
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
    CPU_ENTER(engine, backend);
    if (engine->memory == 0) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        *available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
        *total = cpu_host_memory();
        return PS_SUCCESS;
    }
    *available = engine->memory - engine->devices[device].used;
    *total = engine->memory;
    return PS_SUCCESS;
}

uint64_t
cpu_host_memory(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* For emulated devices only: host memory has no device. */
static ps_status
cpu_memory_device(const struct ps_backend *backend, int device,
                  const void *address, int *owner)
{
    CPU_ENTER(engine, backend);
    struct range wanted = {.first = (uintptr_t)address, .nbytes = 1};
    struct range **found = tfind(&wanted, &engine->ranges, compare_ranges);
    (void)device;
    if (found == NULL) {
        return PS_ERROR_INVALID_VALUE;
    }
    *owner = (*found)->device;
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
    if (table->flags & PS_BACKEND_EMULATED) {
        table->memory_device = cpu_memory_device;
    }
}
