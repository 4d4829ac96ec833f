/* Memory of devices is host memory here.  Each block begins with a header that
 * contains the CPU_FREE operation which will free the block.  So a block can
 * be freed in stream order without allocating memory, and even if the stream's
 * queue is full.  A block whose CPU_FREE has not run when the engine stops is
 * never freed.
 *
 * An emulated device has a limited amount of memory.  A tree contains the
 * blocks of all emulated devices.  A block counts as used from memory_allocate
 * to memory_free, even if work before the free is still pending.  A real
 * device behaves in the same way: memory that is freed in stream order can be
 * allocated again at once, for work that is queued later.  The device's memory
 * pool is only simulated.  It counts the memory that a driver would keep
 * reserved, but reserves none. */
#include "engine.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 256 };

struct block {
    struct cpu_operation end;
    struct cpu_range range;
};

_Static_assert(sizeof(struct block) <= ALIGNMENT,
               "struct block fits before the data");

static struct block *
block_of(void *data)
{
    return (struct block *)((char *)data - ALIGNMENT);
}

static void *
data_of(struct block *block)
{
    return (char *)block + ALIGNMENT;
}

/* Returns a block with nbytes of data; NULL if out of memory. */
static struct block *
block_create(size_t nbytes)
{
    size_t rounded = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return nbytes <= PTRDIFF_MAX - 2 * ALIGNMENT
               ? aligned_alloc(ALIGNMENT, ALIGNMENT + rounded)
               : NULL;
}

/* Ranges that overlap compare as equal.  No two ranges in a tree overlap, so a
 * search for a range of one byte finds the range that contains that byte. */
static int
compare_ranges(const void *left, const void *right)
{
    const struct cpu_range *a = left, *b = right;
    return a->first + a->nbytes <= b->first   ? -1
           : b->first + b->nbytes <= a->first ? 1
                                              : 0;
}

ps_status
cpu_range_add_locked(struct cpu_engine *engine, struct cpu_range *range)
{
    if (engine->memory == 0) {
        return PS_SUCCESS;
    }
    struct cpu_device *place = &engine->devices[range->device];
    if ((range->counted && range->nbytes > engine->memory - place->used) ||
        tsearch(range, &engine->ranges, compare_ranges) == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    place->used += range->counted ? range->nbytes : 0;
    if (place->reserved < place->used) {
        place->reserved = place->used;
    }
    if (place->peak < place->reserved) {
        place->peak = place->reserved;
    }
    return PS_SUCCESS;
}

/* Reduce the number of reserved bytes to nbytes, or to the number of bytes in
 * use if that is larger. */
static void
pool_trim_locked(struct cpu_device *place, uint64_t nbytes)
{
    if (place->reserved > nbytes) {
        place->reserved = place->used > nbytes ? place->used : nbytes;
    }
}

void
cpu_range_remove_locked(struct cpu_engine *engine, struct cpu_range *range)
{
    if (engine->memory != 0) {
        struct cpu_device *place = &engine->devices[range->device];
        tdelete(range, &engine->ranges, compare_ranges);
        place->used -= range->counted ? range->nbytes : 0;
        pool_trim_locked(place, place->threshold);
    }
}

static ps_status
cpu_memory_allocate(const struct ps_backend *backend, int device,
                    ps_handle handle, size_t nbytes, void **data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    bool fits = engine->memory == 0 || nbytes <= engine->memory;
    struct block *block = fits ? block_create(nbytes) : NULL;
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    block->range = (struct cpu_range){
        .first = (uintptr_t)data_of(block),
        .nbytes = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT,
        .device = device,
        .counted = true,
    };
    cpu_lock(engine);
    ps_status status = cpu_stream_find_locked(engine, device, handle) != NULL
                           ? cpu_range_add_locked(engine, &block->range)
                           : PS_ERROR_INVALID_HANDLE;
    bool lazy = cpu_is_lazy(engine);
    cpu_unlock(engine);
    if (status != PS_SUCCESS) {
        free(block);
        return status;
    }
    *data = data_of(block);
    if (lazy) {
        memset(*data, PS_SCHEDULE_POISON, nbytes);
    }
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
    cpu_range_remove_locked(engine, &block->range);
    /* If notes are kept, always queue the free, because the notes must not
     * depend on whether the stream is idle. */
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
    if (!queued && lazy) {
        cpu_memory_poison(&block->end);
    }
    if (!queued) {
        free(block);
    }
    return PS_SUCCESS;
}

void *
cpu_memory_of(struct cpu_operation *end, size_t *nbytes)
{
    struct block *block = (struct block *)end;
    *nbytes = block->range.nbytes;
    return data_of(block);
}

void
cpu_memory_poison(struct cpu_operation *end)
{
    size_t nbytes;
    void *data = cpu_memory_of(end, &nbytes);
    memset(data, PS_SCHEDULE_POISON, nbytes);
    /* Without this statement, the compiler could remove the memset, because
     * the block is freed after it. */
    __asm__ volatile("" : : "r"(end) : "memory");
}

/* Add a range of pinned memory.  Statuses: PS_ERROR_ALREADY_PINNED,
 * PS_ERROR_OUT_OF_MEMORY. */
static ps_status
pinned_add(const struct ps_backend *backend, struct cpu_range *range,
           void *data, size_t nbytes)
{
    *range = (struct cpu_range){.first = (uintptr_t)data, .nbytes = nbytes};
    CPU_ENTER(engine, backend);
    struct cpu_range **found = tsearch(range, &engine->pinned, compare_ranges);
    return found == NULL     ? PS_ERROR_OUT_OF_MEMORY
           : *found == range ? PS_SUCCESS
                             : PS_ERROR_ALREADY_PINNED;
}

static ps_status
cpu_pinned_allocate(const struct ps_backend *backend, int device,
                    size_t nbytes, void **data)
{
    struct block *block = block_create(nbytes);
    (void)device;
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status =
        pinned_add(backend, &block->range, data_of(block), nbytes);
    if (status != PS_SUCCESS) {
        free(block);
        return status;
    }
    *data = data_of(block);
    return PS_SUCCESS;
}

static ps_status
cpu_pinned_free(const struct ps_backend *backend, int device, void *data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    (void)device;
    cpu_lock(engine);
    tdelete(&block_of(data)->range, &engine->pinned, compare_ranges);
    cpu_unlock(engine);
    free(block_of(data));
    return PS_SUCCESS;
}

static ps_status
cpu_host_register(const struct ps_backend *backend, int device, void *data,
                  size_t nbytes)
{
    struct cpu_range *range = malloc(sizeof(*range));
    (void)device;
    if (range == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status = pinned_add(backend, range, data, nbytes);
    if (status != PS_SUCCESS) {
        free(range);
    }
    return status;
}

static ps_status
cpu_host_unregister(const struct ps_backend *backend, int device, void *data)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_range wanted = {.first = (uintptr_t)data, .nbytes = 1};
    struct cpu_range *range = NULL;
    (void)device;
    cpu_lock(engine);
    struct cpu_range **found = tfind(&wanted, &engine->pinned, compare_ranges);
    if (found != NULL && (*found)->first == wanted.first) {
        range = *found;
        tdelete(range, &engine->pinned, compare_ranges);
    }
    cpu_unlock(engine);
    free(range);
    return range != NULL ? PS_SUCCESS : PS_ERROR_INVALID_VALUE;
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

/* Only engines that emulate devices have this member, since host memory
 * belongs to no device. */
static ps_status
cpu_memory_device(const struct ps_backend *backend, int device,
                  const void *address, int *owner)
{
    CPU_ENTER(engine, backend);
    struct cpu_range wanted = {.first = (uintptr_t)address, .nbytes = 1};
    struct cpu_range **found = tfind(&wanted, &engine->ranges, compare_ranges);
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

/* There is nothing to do: every device can access all of the host's memory. */
static ps_status
cpu_peer_access(const struct ps_backend *backend, int device, int peer,
                int access)
{
    (void)backend;
    (void)device;
    (void)peer;
    (void)access;
    return PS_SUCCESS;
}

static ps_status
cpu_pool_usage(const struct ps_backend *backend, int device,
               uint64_t *reserved, uint64_t *peak)
{
    CPU_ENTER(engine, backend);
    *reserved = engine->devices[device].reserved;
    *peak = engine->devices[device].peak;
    return PS_SUCCESS;
}

static ps_status
cpu_pool_reset_peak(const struct ps_backend *backend, int device)
{
    CPU_ENTER(engine, backend);
    engine->devices[device].peak = engine->devices[device].reserved;
    return PS_SUCCESS;
}

static ps_status
cpu_pool_trim(const struct ps_backend *backend, int device, uint64_t nbytes)
{
    CPU_ENTER(engine, backend);
    pool_trim_locked(&engine->devices[device], nbytes);
    return PS_SUCCESS;
}

static ps_status
cpu_pool_set_threshold(const struct ps_backend *backend, int device,
                       uint64_t nbytes)
{
    CPU_ENTER(engine, backend);
    engine->devices[device].threshold = nbytes;
    pool_trim_locked(&engine->devices[device], nbytes);
    return PS_SUCCESS;
}

void
cpu_memory_members(struct ps_backend *table)
{
    table->memory_allocate = cpu_memory_allocate;
    table->memory_free = cpu_memory_free;
    table->pinned_allocate = cpu_pinned_allocate;
    table->pinned_free = cpu_pinned_free;
    table->host_register = cpu_host_register;
    table->host_unregister = cpu_host_unregister;
    table->memory_info = cpu_memory_info;
    table->peer_accessible = cpu_peer_accessible;
    table->peer_access = cpu_peer_access;
    if (table->flags & PS_BACKEND_EMULATED) {
        table->memory_device = cpu_memory_device;
        table->pool_usage = cpu_pool_usage;
        table->pool_reset_peak = cpu_pool_reset_peak;
        table->pool_trim = cpu_pool_trim;
        table->pool_set_threshold = cpu_pool_set_threshold;
    }
}
