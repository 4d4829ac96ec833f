/* Blocks of memory.  For each stream that has work with a block, except the
 * block's own stream, the block has a use.  A use is over when that work is
 * done.  If some uses are not over when the last reference to the block is
 * dropped, the block is retired.  Then an event is recorded on the stream of
 * each such use, behind the stream's work with the block, and the use is
 * appended to the stream's list.  When the last use of the block is over, the
 * block is settled, which means that it is freed, kept for reuse, or returned
 * to its owner.  The oldest uses of a few streams are checked each time that
 * the last reference to a block is dropped, and when a caller calls
 * ps_memory_sweep_some before an allocation. */
#include "memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture.h"
#include "event.h"
#include "lock.h"
#include "memory_use.h"
#include "runtime.h"
#include "stream.h"
#include "thread.h"
#include "thread_stream.h"
#include "trace.h"

/* The least size of a pinned block in bytes. */
enum { PAGE = 4096 };

/* The parts of the thread-local word PS_THREAD_MEMORY.  MAY_NOT_WAIT is a
 * flag.  The other bits are the fork generation + 1 while the thread is
 * sweeping, and 0 otherwise.  They keep the thread from beginning a nested
 * sweep if a loan's release function calls core.  If that function forks, the
 * child has another generation, so it does not count as sweeping. */
enum { MAY_NOT_WAIT = 1, SWEEPING_SHIFT = 1 };

atomic_int ps_memory_poison = -1;

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
    pthread_condattr_t monotonic;
    memset(pool, 0, sizeof(*pool));
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->swept, &monotonic);
    pthread_condattr_destroy(&monotonic);
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
    free(block->share);
    free(block);
    return status;
}

/* Get a new reference to the device's side stream.  The side stream is never
 * captured.  Memory for captured work is allocated on it, and memory of
 * threads that have ended is freed on it.  May block. */
static ps_status
side_stream(struct ps_device *device, struct ps_stream **result)
{
    struct ps_stream *made = NULL;
    ps_handle handle;

    pthread_mutex_lock(&device->mutex);
    *result = device->side != NULL ? ps_stream_ref(device->side) : NULL;
    pthread_mutex_unlock(&device->mutex);
    if (*result != NULL) {
        return PS_SUCCESS;
    }
    ps_status status = PS_CALL(device, stream_create, 0, &handle);
    if (status != PS_SUCCESS) {
        return status;
    }
    status = ps_stream_wrap(device, handle, NULL, NULL, &made);
    if (status == PS_SUCCESS) {
        pthread_mutex_lock(&device->mutex);
        if (device->side == NULL) {
            device->side = made;
        }
        *result = ps_stream_ref(device->side);
        pthread_mutex_unlock(&device->mutex);
        if (*result == made) {
            return PS_SUCCESS;
        }
        ps_stream_unref(made);
    }
    ps_runtime_note_failure(device->runtime,
                            PS_CALL(device, stream_destroy, handle));
    return status;
}

static ps_status
free_native(struct ps_block *block)
{
    struct ps_device *device = block->device;
    if (block->release != NULL) {
        ps_status status = block->registered
                               ? PS_CALL(device, host_unregister, block->data)
                               : PS_SUCCESS;
        return ps_first_failure(status, block->release(block->owner));
    }
    if (block->data == NULL) {
        return PS_SUCCESS;
    }
    if (block->share != NULL) {
        return PS_CALL(device, shared_free, block->data);
    }
    if (block->pinned) {
        struct ps_memory_pool *pool = &device->runtime->memory;
        pthread_mutex_lock(&pool->mutex);
        count_down(&pool->pinned_reserved, block->nbytes);
        pthread_mutex_unlock(&pool->mutex);
        return PS_CALL(device, pinned_free, block->data);
    }
    if (!ps_stream_is_remote(block->stream)) {
        return PS_CALL(device, memory_free, block->stream->handle,
                       block->data);
    }
    struct ps_stream *side;
    ps_status status = side_stream(device, &side);
    if (status != PS_SUCCESS) {
        return status;
    }
    status = PS_CALL(device, memory_free, side->handle, block->data);
    return ps_first_failure(status, ps_stream_unref(side));
}

static ps_status
free_block(struct ps_block *block)
{
    ps_status status = free_native(block);
    return ps_first_failure(status, drop_block(block));
}

static void
poison(struct ps_block *block)
{
    int byte = atomic_load_explicit(&ps_memory_poison, memory_order_relaxed);
    if (byte >= 0 && block->data != NULL) {
        memset(block->data, byte, block->nbytes);
    }
}

/* Settle a block that no work uses any more: free it, keep it for reuse, or
 * return it to its owner.  Pinned memory is always kept, because the driver
 * waits for all work of the GPU before it frees pinned memory, and that work
 * may be waiting for the calling thread. */
static ps_status
settle(struct ps_block *block)
{
    struct ps_memory_pool *pool = &block->device->runtime->memory;
    if (block->pinned && block->data != NULL && block->release == NULL) {
        poison(block);
        PS_HOLD(&pool->mutex);
        block->next = pool->idle;
        pool->idle = block;
        return PS_SUCCESS;
    }
    return free_block(block);
}

static void
list_locked(struct ps_memory_pool *pool, struct ps_stream *stream)
{
    if (stream->memory.listed) {
        return;
    }
    stream->memory.listed = true;
    stream->memory.next = NULL;
    if (pool->retired == NULL) {
        pool->retired = ps_stream_ref(stream);
    }
    else {
        pool->last_retired->memory.next = ps_stream_ref(stream);
    }
    pool->last_retired = stream;
}

/* Settle a block that no stream except its own uses any more.  If that must
 * not happen now, put the block into the list memory.held of a stream; a later
 * sweep settles it.
 *
 * If the block's own stream is being captured, the block is held until the
 * capture ends, because otherwise the free would be captured.  If its own
 * stream is another thread's default stream, the block is held until that
 * thread sweeps, or has ended and its work is known to be done.
 *
 * When the driver frees interprocess memory, it may wait for work and
 * invalidate captures.  So blocks with such memory are held in the list of the
 * device's default stream, until a sweep by a thread that may wait for work.
 * When the driver unpins memory, it waits for all work of the GPU.  So blocks
 * with such memory are held there until such a sweep runs with `unpin` set. */
static ps_status
finish(struct ps_block *block, bool unpin)
{
    struct ps_memory_pool *pool = &block->device->runtime->memory;
    struct ps_stream *stream = block->stream;
    bool swept = sweeping() == ps_generation() + 1 && !may_not_wait();
    if ((block->registered && !(swept && unpin)) ||
        (block->share != NULL && !swept)) {
        stream = &block->device->default_stream;
    }
    else if (stream != NULL && !ps_stream_is_out_of_reach(stream)) {
        stream = NULL;
    }
    if (stream == NULL) {
        return settle(block);
    }
    PS_HOLD(&pool->mutex);
    block->next = stream->memory.held;
    stream->memory.held = block;
    list_locked(pool, stream);
    return PS_SUCCESS;
}

/* Move the block's uses to the lists memory.first of their streams. */
static void
retire(struct ps_block *block)
{
    struct ps_memory_pool *pool = &block->device->runtime->memory;
    PS_HOLD(&pool->mutex);
    while (block->uses != NULL) {
        struct ps_block_use *use = block->uses;
        struct ps_stream *stream = use->stream;
        block->uses = use->next;
        block->waiting++;
        use->block = block;
        use->next = NULL;
        if (stream->memory.first == NULL) {
            stream->memory.first = use;
        }
        else {
            stream->memory.last->next = use;
        }
        stream->memory.last = use;
        list_locked(pool, stream);
    }
}

static bool
is_limit_reached(const struct ps_limit *limit)
{
    return limit->is_over != NULL && limit->is_over(limit->argument);
}

/* Wait until no other thread is sweeping, or until limit->is_over returns
 * true.  The limit's timeout is ignored. */
static void
wait_for_sweeps(struct ps_memory_pool *pool, const struct ps_limit *limit)
{
    enum { QUESTION_NS = 50 * 1000 * 1000 };
    bool over = false;
    pthread_mutex_lock(&pool->mutex);
    while (pool->sweeps > 0 && !over) {
        struct timespec end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec += (end.tv_nsec + QUESTION_NS) / 1000000000;
        end.tv_nsec = (end.tv_nsec + QUESTION_NS) % 1000000000;
        if (pthread_cond_timedwait(&pool->swept, &pool->mutex, &end) ==
            ETIMEDOUT) {
            pthread_mutex_unlock(&pool->mutex);
            over = is_limit_reached(limit);
            pthread_mutex_lock(&pool->mutex);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
}

/* Take up to `most` streams from the front of the pool's list, to check
 * them. */
static struct ps_stream *
begin_sweep(struct ps_memory_pool *pool, size_t most)
{
    PS_HOLD(&pool->mutex);
    struct ps_stream *taken = pool->retired, *last = taken;
    for (size_t count = 1; last != NULL && count < most; count++) {
        last = last->memory.next;
    }
    pool->retired = last != NULL ? last->memory.next : NULL;
    if (last != NULL) {
        last->memory.next = NULL;
    }
    pool->sweeps++;
    return taken;
}

static void
end_sweep(struct ps_memory_pool *pool)
{
    PS_HOLD(&pool->mutex);
    if (--pool->sweeps == 0) {
        pthread_cond_broadcast(&pool->swept);
    }
}

/* Drop the oldest use in the stream's list.  Returns the block of the use if
 * the block has no more uses, else NULL. */
static struct ps_block *
forget_first(struct ps_memory_pool *pool, struct ps_stream *stream)
{
    struct ps_runtime *runtime = stream->device->runtime;
    pthread_mutex_lock(&pool->mutex);
    struct ps_block_use *use = stream->memory.first;
    struct ps_block *block = use->block;
    stream->memory.first = use->next;
    bool last = --block->waiting == 0;
    pthread_mutex_unlock(&pool->mutex);
    ps_runtime_note_failure(runtime, ps_use_drop(use));
    return last ? block : NULL;
}

static struct ps_block_use *
first_use(struct ps_memory_pool *pool, struct ps_stream *stream)
{
    PS_HOLD(&pool->mutex);
    return stream->memory.first;
}

/* Take the stream's list of held blocks, if core's housekeeping may now use
 * the stream.  Returns NULL if it may not, or if the list is empty. */
static struct ps_block *
take_held(struct ps_memory_pool *pool, struct ps_stream *stream)
{
    pthread_mutex_lock(&pool->mutex);
    struct ps_block *held = stream->memory.held;
    pthread_mutex_unlock(&pool->mutex);
    if (held == NULL || ps_stream_is_out_of_reach(stream)) {
        return NULL;
    }
    pthread_mutex_lock(&pool->mutex);
    held = stream->memory.held;
    stream->memory.held = NULL;
    pthread_mutex_unlock(&pool->mutex);
    return held;
}

/* Put the stream back into the pool's list if it still has uses or held
 * blocks.  Drops the reference to the stream that the caller got when it took
 * the stream out of the list. */
static void
put_back(struct ps_memory_pool *pool, struct ps_stream *stream)
{
    struct ps_runtime *runtime = stream->device->runtime;
    pthread_mutex_lock(&pool->mutex);
    stream->memory.listed = false;
    if (stream->memory.first != NULL || stream->memory.held != NULL) {
        list_locked(pool, stream);
    }
    pthread_mutex_unlock(&pool->mutex);
    ps_runtime_note_failure(runtime, ps_stream_unref(stream));
}

/* Check the uses in this stream's list, and finish the blocks whose last use
 * is over.  The caller has taken the stream out of the pool's list.  If wait
 * is not NULL, first waits for the work of each use, each time within this
 * limit.  An owner's release function or a signal handler may fork during this
 * call.  In the child, the call returns false, and the caller must leave the
 * other blocks to the parent. */
static bool
look_at(struct ps_memory_pool *pool, struct ps_stream *stream, bool unpin,
        const struct ps_limit *wait)
{
    struct ps_runtime *runtime = stream->device->runtime;
    unsigned generation = ps_generation();
    struct ps_block_use *use;
    struct ps_block *block, *next;
    while ((use = first_use(pool, stream)) != NULL &&
           ps_use_is_over(use, wait)) {
        block = forget_first(pool, stream);
        if (block != NULL && generation == ps_generation()) {
            ps_runtime_note_failure(runtime, finish(block, unpin));
        }
        if (generation != ps_generation()) {
            return false;
        }
    }
    for (block = take_held(pool, stream); block != NULL; block = next) {
        next = block->next;
        ps_runtime_note_failure(runtime, finish(block, unpin));
        if (generation != ps_generation()) {
            return false;
        }
    }
    put_back(pool, stream);
    return true;
}

/* Settle the retired blocks whose uses are over.  Checks at most `most`
 * streams.  `unpin` tells whether to unpin memory, see finish.  If wait is not
 * NULL, waits until other threads have finished their sweeps, and until all
 * uses in the lists of these streams are over.  The limit applies to each of
 * these waits separately. */
static void
sweep(struct ps_runtime *runtime, const struct ps_limit *wait, size_t most,
      bool unpin)
{
    struct ps_memory_pool *pool = &runtime->memory;
    unsigned mark = ps_generation() + 1;
    if (sweeping() == mark || !(wait != NULL || ps_memory_has_retired(pool))) {
        return;
    }
    if (set_sweeping(mark) != PS_SUCCESS) {
        return;
    }
    enum ps_capture_mode mode =
        ps_capture_mode_swap(runtime, PS_CAPTURE_RELAXED);

    if (wait != NULL) {
        wait_for_sweeps(pool, wait);
    }
    struct ps_stream *next, *stream = begin_sweep(pool, most);
    for (; stream != NULL; stream = next) {
        next = stream->memory.next;
        if (!look_at(pool, stream, unpin, wait)) {
            return;
        }
        if (wait != NULL && is_limit_reached(wait)) {
            wait = NULL;
        }
        if (ps_generation() + 1 != mark) {
            return;
        }
    }
    end_sweep(pool);
    ps_capture_mode_swap(runtime, mode);
    set_sweeping(0);
}

void
ps_memory_sweep(struct ps_runtime *runtime)
{
    sweep(runtime, NULL, SIZE_MAX, true);
}

/* The most streams that a sweep checks if it need not check all of them. */
enum { LOOKED_AT = 16 };

void
ps_memory_sweep_some(struct ps_runtime *runtime)
{
    sweep(runtime, NULL, LOOKED_AT, false);
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
    if (block->share != NULL) {
        return PS_CALL(device, shared_allocate, nbytes,
                       block->share->base.handle, &block->data);
    }
    return block->pinned
               ? PS_CALL(device, pinned_allocate, nbytes, &block->data)
               : PS_CALL(device, memory_allocate, block->stream->handle,
                         nbytes, &block->data);
}

void
ps_pinned_trim(struct ps_runtime *runtime)
{
    struct ps_memory_pool *pool = &runtime->memory;
    if (may_not_wait()) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    struct ps_block *block = pool->idle;
    pool->idle = NULL;
    pthread_mutex_unlock(&pool->mutex);
    while (block != NULL) {
        struct ps_block *next = block->next;
        ps_runtime_note_failure(runtime, free_block(block));
        block = next;
    }
}

/* Allocate the block's memory.  If memory is short, wait for the work that
 * uses retired blocks, within the limit, and try again.  If host memory is
 * short, also free the idle pinned blocks before trying again; the limit does
 * not apply to this step. */
static ps_status
allocate(struct ps_block *block, size_t nbytes, const struct ps_limit *limit)
{
    if (nbytes == 0) {
        return PS_SUCCESS;
    }
    ps_status status = allocate_native(block, nbytes);
    if (status == PS_ERROR_OUT_OF_MEMORY) {
        struct ps_runtime *runtime = block->device->runtime;
        bool on_host =
            block->pinned || runtime->backend->flags & PS_BACKEND_HOST_MEMORY;
        sweep(runtime, may_not_wait() ? NULL : limit, SIZE_MAX, on_host);
        if (on_host) {
            ps_pinned_trim(runtime);
        }
        /* The wait may have run a signal handler that forked; then this may be
         * the child. */
        status = block->generation == ps_generation()
                     ? allocate_native(block, nbytes)
                     : PS_ERROR_FOREIGN;
    }
    if (status == PS_SUCCESS) {
        block->nbytes = nbytes;
    }
    return status;
}

/* Returns whether the device's counters include the block.  They count the
 * device memory that this process has allocated. */
static bool
is_counted(const struct ps_block *block)
{
    return block->stream != NULL ||
           (block->share != NULL && block->share->exported);
}

/* Add the block to the device's counters. */
static void
count_block(struct ps_block *block)
{
    struct ps_device *device = block->device;
    PS_HOLD(&device->mutex);
    count_up(&device->memory.bytes, block->nbytes);
    count_up(&device->memory.blocks, 1);
}

static ps_status
drop_kept_block(void *block)
{
    return ps_block_unref(block);
}

static ps_status
keep_block(struct ps_block *block)
{
    const struct ps_kept item = {block, &block->refs, drop_kept_block};
    return ps_capture_keep(block->device->runtime, &item);
}

/* Wait for the side stream, so that any stream may use memory that was
 * allocated on it.  Only allocations and frees are queued on the side stream,
 * so the wait is short.  May block. */
static ps_status
wait_for_side(struct ps_stream *stream)
{
    struct ps_runtime *runtime = stream->device->runtime;
    enum ps_capture_mode mode =
        ps_capture_mode_swap(runtime, PS_CAPTURE_RELAXED);
    ps_status status = runtime->registered->stream_synchronize(
        runtime->registered, stream->device->index, stream->handle, NULL);
    ps_capture_mode_swap(runtime, mode);
    return status;
}

ps_status
ps_block_create(struct ps_stream *stream, size_t nbytes,
                const struct ps_limit *limit, struct ps_block **result)
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
    block->host = device->runtime->backend->flags & PS_BACKEND_HOST_MEMORY;
    bool captured = ps_stream_in_capture(stream);
    ps_status status = PS_SUCCESS;
    if (captured) {
        status = side_stream(device, &block->stream);
    }
    else {
        block->stream = ps_stream_ref(stream);
    }
    if (status == PS_SUCCESS) {
        status = allocate(block, nbytes, limit);
    }
    if (status == PS_SUCCESS && captured) {
        status = wait_for_side(block->stream);
    }
    if (status != PS_SUCCESS) {
        ps_runtime_note_failure(device->runtime, free_block(block));
        return status;
    }
    count_block(block);
    if (captured) {
        status = keep_block(block);
    }
    else if (stream->kind == PS_STREAM_THREADS) {
        ps_thread_stream_mark(stream);
    }
    if (status != PS_SUCCESS) {
        ps_runtime_note_failure(device->runtime, ps_block_unref(block));
        return status;
    }
    *result = block;
    if (block->data != NULL) {
        ps_trace(PS_TRACE_MEMORY_ALLOCATION, device, (uintptr_t)block->data,
                 nbytes);
    }
    return PS_SUCCESS;
}

/* Remove and return an idle block of at least nbytes, but at most twice as
 * many bytes.  Returns NULL if there is none. */
static struct ps_block *
take_idle(struct ps_memory_pool *pool, size_t nbytes)
{
    PS_HOLD(&pool->mutex);
    struct ps_block **link = &pool->idle;
    while (*link != NULL &&
           ((*link)->nbytes < nbytes || (*link)->nbytes / 2 > nbytes)) {
        link = &(*link)->next;
    }
    struct ps_block *block = *link;
    if (block != NULL) {
        *link = block->next;
    }
    return block;
}

/* Add a pinned block to the counters.  `made` is true if its memory is new,
 * and false if an idle block is reused. */
static void
count_pinned(struct ps_block *block, bool made)
{
    struct ps_memory_pool *pool = &block->device->runtime->memory;
    PS_HOLD(&pool->mutex);
    count_up(&pool->pinned.bytes, block->nbytes);
    count_up(&pool->pinned.blocks, 1);
    if (made) {
        count_up(&pool->pinned_reserved, block->nbytes);
    }
}

/* Returns a size of at least nbytes for a pinned block.  There are four sizes
 * between a power of two and the next.  So a program whose requests grow does
 * not leave an idle block of each size. */
static size_t
pinned_size(size_t nbytes)
{
    size_t power = PAGE;
    while (power <= nbytes / 2) {
        power *= 2;
    }
    size_t step = power / 4 > PAGE ? power / 4 : PAGE;
    return (nbytes + step - 1) / step * step;
}

ps_status
ps_block_create_pinned(struct ps_device *device, size_t nbytes,
                       const struct ps_limit *limit, struct ps_block **result)
{
    if (device->runtime->backend->pinned_allocate == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (nbytes > SIZE_MAX / 2) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    size_t rounded = pinned_size(nbytes);
    struct ps_block *block =
        nbytes == 0 ? NULL : take_idle(&device->runtime->memory, rounded);
    if (block != NULL) {
        atomic_store(&block->refs, 1);
        block->device = device;
        count_pinned(block, false);
        poison(block);
        *result = block;
        return PS_SUCCESS;
    }
    block = new_block(device);
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    block->host = true;
    block->pinned = true;
    ps_status status = allocate(block, rounded, limit);
    if (status != PS_SUCCESS) {
        drop_block(block);
        return status;
    }
    count_pinned(block, true);
    poison(block);
    *result = block;
    return PS_SUCCESS;
}

static struct ps_block *
new_shared(struct ps_device *device, const unsigned char *handle)
{
    struct ps_block *block = new_block(device);
    struct ps_share *share = calloc(1, sizeof(*share));
    if (block == NULL || share == NULL) {
        free(block);
        free(share);
        return NULL;
    }
    if (handle != NULL) {
        memcpy(share->base.handle, handle, PS_IPC_HANDLE_BYTES);
    }
    block->share = share;
    block->host = device->runtime->backend->flags & PS_BACKEND_HOST_MEMORY;
    return block;
}

ps_status
ps_block_create_shared(struct ps_device *device, size_t nbytes,
                       const struct ps_limit *limit, struct ps_block **result)
{
    if (device->runtime->backend->shared_allocate == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    struct ps_block *block = new_shared(device, NULL);
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status = allocate(block, nbytes, limit);
    if (status != PS_SUCCESS) {
        drop_block(block);
        return status;
    }
    block->share->exported = true;
    ps_export_add(&block->share->base);
    count_block(block);
    *result = block;
    ps_trace(PS_TRACE_MEMORY_ALLOCATION, device, (uintptr_t)block->data,
             nbytes);
    return PS_SUCCESS;
}

ps_status
ps_block_open(struct ps_device *device,
              const unsigned char handle[PS_IPC_HANDLE_BYTES], size_t nbytes,
              struct ps_block **result)
{
    if (device->runtime->backend->shared_open == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (ps_is_exported(handle)) {
        return PS_ERROR_OWN_HANDLE;
    }
    struct ps_block *block = new_shared(device, handle);
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status =
        PS_CALL(device, shared_open, handle, nbytes, &block->data);
    if (status != PS_SUCCESS) {
        drop_block(block);
        return status;
    }
    block->nbytes = nbytes;
    *result = block;
    return PS_SUCCESS;
}

ps_status
ps_block_borrow(struct ps_device *device, const struct ps_loan *loan,
                struct ps_block **result)
{
    if (loan->pin && device->runtime->backend->host_register == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    struct ps_block *block = new_block(device);
    if (block == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    if (loan->pin && loan->nbytes > 0) {
        ps_status status =
            PS_CALL(device, host_register, loan->data, loan->nbytes);
        if (status != PS_SUCCESS) {
            free(block);
            return status;
        }
        block->registered = true;
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
    if (is_counted(block)) {
        if (block->data != NULL) {
            ps_trace(PS_TRACE_MEMORY_DEALLOCATION, device,
                     (uintptr_t)block->data, block->nbytes);
        }
        pthread_mutex_lock(&device->mutex);
        count_down(&device->memory.bytes, block->nbytes);
        count_down(&device->memory.blocks, 1);
        pthread_mutex_unlock(&device->mutex);
    }
    else if (block->pinned && block->release == NULL) {
        struct ps_memory_pool *pool = &device->runtime->memory;
        pthread_mutex_lock(&pool->mutex);
        count_down(&pool->pinned.bytes, block->nbytes);
        count_down(&pool->pinned.blocks, 1);
        pthread_mutex_unlock(&pool->mutex);
    }
    if (block->share != NULL && block->share->exported) {
        ps_export_remove(&block->share->base);
    }
    ps_status status = PS_SUCCESS;
    block->uses = ps_uses_prune(block->uses, &status);
    bool unpin = block->registered && block->uses == NULL;
    if (block->uses == NULL) {
        /* If possible, finish the block now instead of in a later sweep,
         * because the owner of a borrowed block may need the memory back at
         * once. */
        status = ps_first_failure(status, finish(block, false));
    }
    else {
        ps_uses_record(block);
        retire(block);
    }
    sweep(device->runtime, NULL, unpin ? SIZE_MAX : LOOKED_AT, unpin);
    return status;
}

struct ps_stream *
ps_block_stream(struct ps_block *block)
{
    struct ps_device *device = block->device;
    PS_HOLD(&device->mutex);
    return block->stream != NULL && block->stream != device->side
               ? ps_stream_ref(block->stream)
               : NULL;
}

static ps_status
mark(struct ps_block *block, struct ps_stream *stream, bool lasting,
     unsigned begun, bool *added)
{
    *added = false;
    ps_status status =
        ps_stream_is_captured(stream) ? keep_block(block) : PS_SUCCESS;
    return status != PS_SUCCESS
               ? status
               : ps_use_mark(block, stream, lasting, begun, added);
}

static ps_status
mark_and_forget(struct ps_block *block, struct ps_stream *stream, bool lasting,
                unsigned begun)
{
    bool added;
    ps_status status = mark(block, stream, lasting, begun, &added);
    if (added) {
        ps_block_forget_idle(block);
    }
    return status;
}

ps_status
ps_block_use(struct ps_block *block, struct ps_stream *stream, bool lasting)
{
    if (stream->kind == PS_STREAM_THREADS) {
        ps_thread_stream_mark(stream);
    }
    return mark_and_forget(block, stream, lasting, 0);
}

ps_status
ps_block_use_begin(struct ps_block *block, struct ps_stream *stream)
{
    return mark_and_forget(block, stream, false, 1);
}

ps_status
ps_block_use_begin_locked(struct ps_block *block, struct ps_stream *stream,
                          bool *added)
{
    return mark(block, stream, false, 1, added);
}

static void
reset_peak(struct ps_memory_counter *counter)
{
    counter->peak = counter->current;
}

static void
reset_totals(struct ps_memory_counter *counter)
{
    counter->allocated = counter->freed = 0;
}

void
ps_memory_counts_read(struct ps_device *device, struct ps_memory_stats *stats)
{
    PS_HOLD(&device->mutex);
    *stats = device->memory;
}

ps_status
ps_memory_stats_read(struct ps_device *device, struct ps_memory_stats *stats,
                     struct ps_memory_counter *reserved)
{
    ps_memory_counts_read(device, stats);
    *reserved = stats->bytes;
    return device->runtime->backend->pool_usage == NULL
               ? PS_SUCCESS
               : PS_CALL(device, pool_usage, &reserved->current,
                         &reserved->peak);
}

ps_status
ps_memory_stats_reset_peak(struct ps_device *device)
{
    const struct ps_backend *backend = device->runtime->backend;
    {
        PS_HOLD(&device->mutex);
        reset_peak(&device->memory.bytes);
        reset_peak(&device->memory.blocks);
    }
    return backend->pool_reset_peak == NULL
               ? PS_SUCCESS
               : backend->pool_reset_peak(backend, device->index);
}

void
ps_memory_stats_reset_totals(struct ps_device *device)
{
    PS_HOLD(&device->mutex);
    reset_totals(&device->memory.bytes);
    reset_totals(&device->memory.blocks);
}

void
ps_pinned_stats_read(struct ps_runtime *runtime, struct ps_memory_stats *stats,
                     struct ps_memory_counter *reserved)
{
    struct ps_memory_pool *pool = &runtime->memory;
    PS_HOLD(&pool->mutex);
    *stats = pool->pinned;
    *reserved = pool->pinned_reserved;
}

void
ps_pinned_stats_reset_peak(struct ps_runtime *runtime)
{
    struct ps_memory_pool *pool = &runtime->memory;
    PS_HOLD(&pool->mutex);
    reset_peak(&pool->pinned.bytes);
    reset_peak(&pool->pinned.blocks);
    reset_peak(&pool->pinned_reserved);
}

void
ps_pinned_stats_reset_totals(struct ps_runtime *runtime)
{
    struct ps_memory_pool *pool = &runtime->memory;
    PS_HOLD(&pool->mutex);
    reset_totals(&pool->pinned.bytes);
    reset_totals(&pool->pinned.blocks);
    reset_totals(&pool->pinned_reserved);
}
