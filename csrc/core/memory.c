/* Blocks of memory.  A block that is given up while other streams still use
 * it is retired with an event for each of them, and looked at again whenever
 * memory is asked for or given up. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "event.h"
#include "memory_use.h"
#include "runtime.h"
#include "stream.h"
#include "thread.h"
#include "trace.h"

enum {
    /* Pinned memory comes in whole pages. */
    PAGE = 4096,
    /* How much idle pinned memory is kept for reuse. */
    IDLE_BYTES = 256 << 20,
};

/* Of a thread's word: it may not wait, and the fork generation + 1 in which it
 * sweeps, which a lender's release may bring here again, or to a child; 0: it
 * does not. */
enum { MAY_NOT_WAIT = 1, SWEEPING_SHIFT = 1 };

static uintptr_t
thread_word(void)
{
    return (uintptr_t)ps_thread_word(PS_THREAD_MEMORY);
}

static bool
may_not_wait(void)
{
    return thread_word() & MAY_NOT_WAIT;
}

static unsigned
sweeping(void)
{
    return (unsigned)(thread_word() >> SWEEPING_SHIFT);
}

static ps_status
set_sweeping(unsigned mark)
{
    uintptr_t word =
        (uintptr_t)mark << SWEEPING_SHIFT | (thread_word() & MAY_NOT_WAIT);
    return ps_thread_set_word(PS_THREAD_MEMORY, (void *)word);
}

ps_status
ps_memory_may_wait(bool may)
{
    uintptr_t word =
        (thread_word() & ~(uintptr_t)MAY_NOT_WAIT) | (may ? 0 : MAY_NOT_WAIT);
    return ps_thread_set_word(PS_THREAD_MEMORY, (void *)word);
}

void
ps_memory_pool_init(struct ps_memory_pool *pool)
{
    memset(pool, 0, sizeof(*pool));
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->swept, NULL);
}

static void
count_up(struct ps_memory_counter *counter, uint64_t amount)
{
    counter->current += amount;
    counter->allocated += amount;
    if (counter->current > counter->peak) {
        counter->peak = counter->current;
    }
}

static void
count_down(struct ps_memory_counter *counter, uint64_t amount)
{
    counter->current -= amount;
    counter->freed += amount;
}

static ps_status
drop_block(struct ps_block *block)
{
    ps_status status = PS_SUCCESS;
    while (block->uses != NULL) {
        struct ps_block_use *use = block->uses;
        block->uses = use->next;
        status = ps_first_failure(status, ps_use_drop(use));
    }
    status = ps_first_failure(status, ps_stream_unref(block->stream));
    free(block);
    return status;
}

static ps_status
free_native(struct ps_block *block)
{
    struct ps_device *device = block->device;
    const struct ps_backend *backend = device->runtime->backend;
    if (block->release != NULL) {
        return block->release(block->owner);
    }
    if (block->data == NULL) {
        return PS_SUCCESS;
    }
    if (block->pinned) {
        return backend->pinned_free(backend, device->index, block->data);
    }
    return backend->memory_free(backend, device->index, block->stream->handle,
                                block->data);
}

static ps_status
free_block(struct ps_block *block)
{
    ps_status status = free_native(block);
    return ps_first_failure(status, drop_block(block));
}

/* The block is used by nothing any more: keep it for reuse or free it. */
static ps_status
settle(struct ps_block *block)
{
    struct ps_memory_pool *pool = &block->device->runtime->memory;
    if (block->pinned && block->data != NULL && block->release == NULL) {
        pthread_mutex_lock(&pool->mutex);
        bool kept =
            may_not_wait() || pool->idle_bytes + block->nbytes <= IDLE_BYTES;
        if (kept) {
            block->next = pool->idle;
            pool->idle = block;
            pool->idle_bytes += block->nbytes;
        }
        pthread_mutex_unlock(&pool->mutex);
        if (kept) {
            return PS_SUCCESS;
        }
    }
    return free_block(block);
}

/* A free in the order of a stream that is being captured would be part of the
 * graph. */
static bool
is_captured(struct ps_block *block)
{
    return block->stream != NULL && ps_stream_in_capture(block->stream);
}

/* Take the retired blocks out of their list.  wait: for those, too, that other
 * threads have taken out. */
static struct ps_block *
begin_sweep(struct ps_memory_pool *pool, bool wait)
{
    pthread_mutex_lock(&pool->mutex);
    while (wait && pool->sweeps > 0) {
        pthread_cond_wait(&pool->swept, &pool->mutex);
    }
    struct ps_block *taken = pool->retired;
    pool->retired = NULL;
    pool->sweeps++;
    pthread_mutex_unlock(&pool->mutex);
    return taken;
}

static void
end_sweep(struct ps_memory_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    if (--pool->sweeps == 0) {
        pthread_cond_broadcast(&pool->swept);
    }
    pthread_mutex_unlock(&pool->mutex);
}

static void
retire(struct ps_block *block)
{
    struct ps_memory_pool *pool = &block->device->runtime->memory;
    pthread_mutex_lock(&pool->mutex);
    block->next = pool->retired;
    pool->retired = block;
    pthread_mutex_unlock(&pool->mutex);
}

/* Settle the block, if its uses are over.  wait: so that they are.  It is
 * retired again at once where not, for others to look at. */
static ps_status
look_at(struct ps_block *block, bool wait)
{
    unsigned generation = ps_generation();
    ps_status status = ps_uses_forget_finished(block, wait);
    if (generation != ps_generation()) {
        return status;
    }
    if (block->uses == NULL && !is_captured(block)) {
        return ps_first_failure(status, settle(block));
    }
    retire(block);
    return status;
}

/* Settle the retired blocks whose uses are over.  wait: so that they are. */
static ps_status
sweep(struct ps_runtime *runtime, bool wait)
{
    struct ps_memory_pool *pool = &runtime->memory;
    unsigned mark = ps_generation() + 1;
    ps_status status = PS_SUCCESS;
    if (sweeping() == mark || !(wait || ps_memory_has_retired(pool))) {
        return status;
    }
    if (set_sweeping(mark) != PS_SUCCESS) {
        return wait ? PS_ERROR_OUT_OF_MEMORY : PS_SUCCESS;
    }
    enum ps_capture_mode mode = ps_capture_relax(runtime);

    struct ps_block *next, *block = begin_sweep(pool, wait);
    for (; block != NULL; block = next) {
        next = block->next;
        status = ps_first_failure(status, look_at(block, wait));
        if (mark != ps_generation() + 1) {
            /* A release has forked, and the rest is the parent's. */
            return status;
        }
    }
    end_sweep(pool);
    ps_capture_restore(runtime, mode);
    set_sweeping(0);
    return status;
}

ps_status
ps_memory_sweep(struct ps_runtime *runtime)
{
    return sweep(runtime, false);
}

static struct ps_block *
new_block(struct ps_device *device)
{
    struct ps_block *block = calloc(1, sizeof(*block));
    if (block != NULL) {
        atomic_init(&block->refs, 1);
        block->generation = ps_generation();
        block->device = device;
    }
    return block;
}

static ps_status
allocate_native(struct ps_block *block, size_t nbytes)
{
    struct ps_device *device = block->device;
    const struct ps_backend *backend = device->runtime->backend;
    if (block->pinned) {
        return backend->pinned_allocate(backend, device->index, nbytes,
                                        &block->data);
    }
    return backend->memory_allocate(
        backend, device->index, block->stream->handle, nbytes, &block->data);
}

/* Free the idle pinned blocks, where they hold more than so much and the
 * thread may wait. */
static ps_status
drop_idle(struct ps_memory_pool *pool, size_t most)
{
    ps_status status = PS_SUCCESS;
    struct ps_block *block = NULL;
    if (may_not_wait()) {
        return status;
    }
    pthread_mutex_lock(&pool->mutex);
    if (pool->idle_bytes > most) {
        block = pool->idle;
        pool->idle = NULL;
        pool->idle_bytes = 0;
    }
    pthread_mutex_unlock(&pool->mutex);
    while (block != NULL) {
        struct ps_block *next = block->next;
        status = ps_first_failure(status, free_block(block));
        block = next;
    }
    return status;
}

/* Fill in data and nbytes; where memory is short, once what was given up is
 * free again. */
static ps_status
allocate(struct ps_block *block, size_t nbytes)
{
    if (nbytes == 0) {
        return PS_SUCCESS;
    }
    ps_status status = allocate_native(block, nbytes);
    if (status == PS_ERROR_OUT_OF_MEMORY) {
        struct ps_runtime *runtime = block->device->runtime;
        status = sweep(runtime, !may_not_wait());
        if (status == PS_SUCCESS) {
            status = drop_idle(&runtime->memory, 0);
        }
        if (status == PS_SUCCESS) {
            status = allocate_native(block, nbytes);
        }
    }
    if (status == PS_SUCCESS) {
        block->nbytes = nbytes;
    }
    return status;
}

ps_status
ps_block_create(struct ps_stream *stream, size_t nbytes,
                struct ps_block **result)
{
    struct ps_device *device = stream->device;
    if (device->runtime->backend->memory_allocate == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    struct ps_block *block = new_block(device);
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    block->host = device->runtime->backend->device_type == PS_DEVICE_CPU;
    bool captured = ps_stream_in_capture(stream);
    ps_status status = PS_SUCCESS;
    if (captured) {
        status = ps_capture_beside(device, &stream);
    }
    if (status == PS_SUCCESS) {
        block->stream = ps_stream_ref(stream);
        status = allocate(block, nbytes);
    }
    if (status == PS_SUCCESS && captured) {
        status = ps_capture_wait_beside(stream);
    }
    if (status != PS_SUCCESS) {
        free_block(block);
        return status;
    }
    pthread_mutex_lock(&device->mutex);
    count_up(&device->memory.bytes, nbytes);
    count_up(&device->memory.blocks, 1);
    pthread_mutex_unlock(&device->mutex);
    if (captured) {
        status = ps_capture_keep_block(block);
    }
    if (status != PS_SUCCESS) {
        ps_block_unref(block);
        return status;
    }
    *result = block;
    if (block->data != NULL) {
        ps_trace(PS_TRACE_MEMORY_ALLOCATION, device, (uintptr_t)block->data,
                 0);
    }
    return PS_SUCCESS;
}

/* An idle block that fits without wasting more than it holds, or NULL. */
static struct ps_block *
take_idle(struct ps_memory_pool *pool, size_t nbytes)
{
    pthread_mutex_lock(&pool->mutex);
    struct ps_block **link = &pool->idle;
    while (*link != NULL &&
           ((*link)->nbytes < nbytes || (*link)->nbytes / 2 > nbytes)) {
        link = &(*link)->next;
    }
    struct ps_block *block = *link;
    if (block != NULL) {
        *link = block->next;
        pool->idle_bytes -= block->nbytes;
    }
    pthread_mutex_unlock(&pool->mutex);
    return block;
}

ps_status
ps_block_create_pinned(struct ps_device *device, size_t nbytes,
                       struct ps_block **result)
{
    if (device->runtime->backend->pinned_allocate == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (nbytes > SIZE_MAX - PAGE) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    size_t rounded = (nbytes + PAGE - 1) / PAGE * PAGE;
    struct ps_block *block =
        nbytes == 0 ? NULL : take_idle(&device->runtime->memory, rounded);
    if (block != NULL) {
        atomic_store(&block->refs, 1);
        block->device = device;
        *result = block;
        return PS_SUCCESS;
    }
    block = new_block(device);
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    block->host = true;
    block->pinned = true;
    /* Callables may have left more than is kept. */
    ps_status status = drop_idle(&device->runtime->memory, IDLE_BYTES);
    if (status == PS_SUCCESS) {
        status = allocate(block, rounded);
    }
    if (status != PS_SUCCESS) {
        drop_block(block);
        return status;
    }
    *result = block;
    return PS_SUCCESS;
}

ps_status
ps_block_borrow(struct ps_device *device, const struct ps_loan *loan,
                struct ps_block **result)
{
    struct ps_block *block = new_block(device);
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    block->data = loan->data;
    block->nbytes = loan->nbytes;
    block->host = loan->host;
    block->pinned = loan->pinned;
    block->read_only = loan->read_only;
    block->owner = loan->owner;
    block->release = loan->release;
    *result = block;
    return PS_SUCCESS;
}

struct ps_block *
ps_block_ref(struct ps_block *block)
{
    atomic_fetch_add_explicit(&block->refs, 1, memory_order_relaxed);
    return block;
}

ps_status
ps_block_unref(struct ps_block *block)
{
    if (block == NULL || atomic_fetch_sub_explicit(
                             &block->refs, 1, memory_order_acq_rel) != 1) {
        return PS_SUCCESS;
    }
    if (block->generation != ps_generation()) {
        return drop_block(block);
    }
    struct ps_device *device = block->device;
    if (block->stream != NULL) {
        if (block->data != NULL) {
            ps_trace(PS_TRACE_MEMORY_DEALLOCATION, device,
                     (uintptr_t)block->data, 0);
        }
        pthread_mutex_lock(&device->mutex);
        count_down(&device->memory.bytes, block->nbytes);
        count_down(&device->memory.blocks, 1);
        pthread_mutex_unlock(&device->mutex);
    }
    ps_status status = PS_SUCCESS;
    block->uses = ps_uses_prune(block->uses, &status);
    if (block->uses == NULL && !is_captured(block)) {
        /* At once: a lender may count on having its memory back. */
        status = ps_first_failure(status, settle(block));
        return ps_first_failure(status, sweep(device->runtime, false));
    }
    ps_uses_retire(block);
    retire(block);
    return ps_first_failure(status, sweep(device->runtime, false));
}

void
ps_memory_stats_read(struct ps_device *device, struct ps_memory_stats *stats)
{
    pthread_mutex_lock(&device->mutex);
    *stats = device->memory;
    pthread_mutex_unlock(&device->mutex);
}

void
ps_memory_stats_reset_peak(struct ps_device *device)
{
    pthread_mutex_lock(&device->mutex);
    device->memory.bytes.peak = device->memory.bytes.current;
    device->memory.blocks.peak = device->memory.blocks.current;
    pthread_mutex_unlock(&device->mutex);
}
