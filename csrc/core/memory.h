/* Stream-ordered memory in blocks.  References to a block are counted.  After
 * the last reference to a block is dropped, the block is freed or reused, but
 * not before all work that uses it is done.  In between, the block is called
 * "retired". */
#ifndef PYSTREAMS_CORE_MEMORY_H
#define PYSTREAMS_CORE_MEMORY_H

#include <pystreams/backend.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "exports.h"

struct ps_device;
struct ps_runtime;
struct ps_stream;

struct ps_memory_counter {
    uint64_t current;
    uint64_t peak;
    uint64_t allocated;
    uint64_t freed;
};

/* Counters of the blocks that have references, and of their bytes.  The
 * device's mutex guards the counters of device memory. */
struct ps_memory_stats {
    struct ps_memory_counter bytes;
    struct ps_memory_counter blocks;
};

/* The blocks of a runtime that have no references but are not freed yet:
 * retired blocks, and idle pinned blocks. */
struct ps_memory_pool {
    /* Guards the lists and counts.  Never held across a call to a backend. */
    pthread_mutex_t mutex;
    /* The first and the last stream in a list of the streams that have uses in
     * memory.first or blocks in memory.held (see struct ps_stream).  The list
     * holds a reference to each stream.  Both pointers are changed under the
     * mutex.  `retired` is also read without the mutex. */
    struct ps_stream *_Atomic retired;
    struct ps_stream *last_retired;
    /* The number of threads that are sweeping.  A sweeping thread has taken
     * streams out of the list, and is checking whether their work is done.
     * `swept` is signalled when the number becomes 0. */
    unsigned sweeps;
    pthread_cond_t swept;
    /* Pinned blocks that are kept for reuse. */
    struct ps_block *idle;
    /* `pinned` counts the pinned blocks that have references.
     * `pinned_reserved` counts the bytes of all pinned memory that core has
     * allocated. */
    struct ps_memory_stats pinned;
    struct ps_memory_counter pinned_reserved;
};

/* The memory of a borrowed block, which core does not own; see
 * ps_block_borrow. */
struct ps_loan {
    void *data;
    size_t nbytes;
    /* host: whether this is host memory.  pinned: whether it is pinned
     * already.  Devices copy pinned memory asynchronously. */
    bool host;
    bool pinned;
    bool read_only;
    /* Whether to pin the memory for as long as the block exists. */
    bool pin;
    /* release(owner) is called once, on any thread, when no work uses the
     * memory any more.  It returns the status of the clean-up. */
    void *owner;
    ps_status (*release)(void *owner);
};

/* The part of an interprocess block that other blocks lack. */
struct ps_share {
    struct ps_export base;
    bool exported; /* whether this process allocated the memory; if not, it
                      opened the memory of another process */
};

struct ps_block {
    atomic_uint refs;
    unsigned generation;
    struct ps_device *device;
    void *data;
    /* The size in bytes.  It may exceed the requested size: the size of pinned
     * memory is rounded up, and a larger idle block may be reused. */
    size_t nbytes;
    /* host: whether the host can address the memory.  pinned: whether the
     * memory is pinned. */
    bool host;
    bool pinned;
    bool read_only;
    /* The block's own stream: the memory was allocated and will be freed on
     * it.  NULL for pinned, borrowed and interprocess memory. */
    struct ps_stream *stream;
    /* Whether ps_block_borrow has pinned the memory, so that it must be
     * unpinned. */
    bool registered;
    /* Only for a borrowed block: release(owner) is called when no work uses
     * the block any more.  release is NULL in other blocks. */
    void *owner;
    ps_status (*release)(void *owner);
    /* Only for an interprocess block; NULL in others. */
    struct ps_share *share;
    /* A list of the uses (see memory_use.h) of the block by streams other than
     * `stream`.  The device's mutex guards it. */
    struct ps_block_use *uses;
    /* The number of the block's uses that are not over yet.  It is counted
     * only while the block is retired.  The pool's mutex guards it. */
    unsigned waiting;
    /* The next block in the pool's list `idle`, or in a stream's list
     * memory.held. */
    struct ps_block *next;
};

/* The byte that fills pinned memory when it is allocated and when it is
 * released, or -1 to leave the memory unchanged. */
extern atomic_int ps_memory_poison;

/* Initialize the pool as empty.  Blocks that it had are not freed. */
void ps_memory_pool_init(struct ps_memory_pool *pool);

/* Set whether the calling thread may wait for queued work to finish.
 * Initially every thread may.  If queued work waits for a thread, call this
 * with false on that thread, because the thread would deadlock if it waited
 * for that work.  Such a thread's allocations fail at once if memory is short.
 * The thread also frees no pinned memory, because the driver may wait for work
 * before it frees such memory.  Returns PS_ERROR_OUT_OF_MEMORY only at a
 * thread's first call with false. */
ps_status ps_memory_may_wait(bool may);

/* Returns whether there are retired blocks.  A block is retired if its last
 * reference was dropped while work still used it. */
static inline bool
ps_memory_has_retired(struct ps_memory_pool *pool)
{
    return atomic_load_explicit(&pool->retired, memory_order_relaxed) != NULL;
}

/* Find the retired blocks that no work uses any more.  Each of these is freed,
 * kept for reuse, or returned to its owner.  Call this after the program has
 * waited for work to finish.  A failure is stored for ps_runtime_take_failure.
 * May block. */
void ps_memory_sweep(struct ps_runtime *runtime);

/* Like ps_memory_sweep, but checks only a few of the streams that have retired
 * blocks.  The next call checks others.  So the duration of a call does not
 * depend on the number of streams.  Unpins no memory, because a driver waits
 * for all work of the GPU before it unpins memory. */
void ps_memory_sweep_some(struct ps_runtime *runtime);

/* Allocate nbytes (0 or more) of device memory, for work that is queued on the
 * stream after this call.  If memory is short, waits until the work that uses
 * retired blocks is done, and tries again.  The wait ends when the limit is
 * reached; it has no limit if the backend has no timed waits.  May block. */
ps_status
ps_block_create(struct ps_stream *stream, size_t nbytes,
                const struct ps_limit *limit, struct ps_block **block);

/* Like ps_block_create, but for nbytes of pinned memory, which all devices of
 * the runtime can access. */
ps_status
ps_block_create_pinned(struct ps_device *device, size_t nbytes,
                       const struct ps_limit *limit, struct ps_block **block);

/* Like ps_block_create, but for nbytes (1 or more) of interprocess memory.
 * This is device memory that other processes may open, and that work of any
 * stream may use.  To open it, another process needs the block's handle and
 * nbytes. */
ps_status
ps_block_create_shared(struct ps_device *device, size_t nbytes,
                       const struct ps_limit *limit, struct ps_block **block);

/* Make a block of the memory that another process allocated with
 * ps_block_create_shared; see shared_open in backend.h.  The statistics of
 * this process do not count the block.  May block.  Returns
 * PS_ERROR_OWN_HANDLE if this process allocated the block. */
ps_status ps_block_open(struct ps_device *device,
                        const unsigned char handle[PS_IPC_HANDLE_BYTES],
                        size_t nbytes, struct ps_block **block);

/* Returns the handle of an interprocess block. */
static inline const unsigned char *
ps_block_handle(const struct ps_block *block)
{
    return block->share->base.handle;
}

/* Make a block of memory that belongs to another owner.  Statistics do not
 * count the block.  After success, loan->release is called when no work uses
 * the memory any more; after a failure, it is not called.  May block if
 * loan->pin is true.  Statuses: those of host_register; PS_ERROR_NOT_SUPPORTED
 * if the backend cannot pin memory. */
ps_status ps_block_borrow(struct ps_device *device, const struct ps_loan *loan,
                          struct ps_block **block);

struct ps_block *ps_block_ref(struct ps_block *block);

/* Drop a reference; accepts NULL.  Dropping the last one may block.  Returns
 * the status of the clean-up; even after a failure, the reference is gone. */
ps_status ps_block_unref(struct ps_block *block);

/* Returns a new reference to the stream on which the program allocated the
 * block.  Returns NULL for pinned, borrowed and interprocess memory, and for
 * memory that was allocated during a capture. */
struct ps_stream *ps_block_stream(struct ps_block *block);

/* Declare that work which is already queued on the stream uses the block.  If
 * `lasting` is true, work that is queued later may use the block too, as long
 * as the block has references. */
ps_status
ps_block_use(struct ps_block *block, struct ps_stream *stream, bool lasting);

/* Like ps_block_use, but in two steps.  Call ps_block_use_begin before you
 * queue work with the block.  If it fails, do not queue the work.  If it
 * succeeds, call ps_block_use_end after the work was queued, or after it could
 * not be queued. */
ps_status ps_block_use_begin(struct ps_block *block, struct ps_stream *stream);

/* Like ps_block_use_begin, for callers that hold a mutex: drops no reference.
 * If *added becomes true, the caller must call ps_block_forget_idle when it
 * holds no mutex. */
ps_status ps_block_use_begin_locked(struct ps_block *block,
                                    struct ps_stream *stream, bool *added);

/* Check the latest few uses of the block, and drop each one whose stream is
 * idle.  So a block that many streams have used does not keep all of them
 * alive.  May run code of the program, which owns streams. */
void ps_block_forget_idle(struct ps_block *block);

void ps_block_use_end(struct ps_block *block, struct ps_stream *stream);

/* Get the block's own stream, if it has one, and the other streams that have
 * work with the block.  If `lasting` is true, get only those other streams
 * whose uses are lasting; see ps_block_use.  *streams becomes an array with a
 * new reference to each stream.  The caller must free the array. */
ps_status ps_block_streams(struct ps_block *block, bool lasting,
                           struct ps_stream ***streams, size_t *count);

/* Copy the counters of the device's memory.  Never blocks. */
void
ps_memory_counts_read(struct ps_device *device, struct ps_memory_stats *stats);

/* Like ps_memory_counts_read, but also get the bytes that the backend's pool
 * has reserved.  If the backend has no pool, *reserved becomes the bytes of
 * the blocks.  May block. */
ps_status
ps_memory_stats_read(struct ps_device *device, struct ps_memory_stats *stats,
                     struct ps_memory_counter *reserved);
ps_status ps_memory_stats_reset_peak(struct ps_device *device);
/* Reset the totals of allocated and freed device memory to 0.  Never
 * blocks. */
void ps_memory_stats_reset_totals(struct ps_device *device);

/* The next three functions do for pinned memory what the previous three do for
 * device memory.  They never block. */
void
ps_pinned_stats_read(struct ps_runtime *runtime, struct ps_memory_stats *stats,
                     struct ps_memory_counter *reserved);
void ps_pinned_stats_reset_peak(struct ps_runtime *runtime);
void ps_pinned_stats_reset_totals(struct ps_runtime *runtime);

/* Free the pinned blocks that are kept for reuse.  Does nothing on a thread
 * that must not wait for work; see ps_memory_may_wait.  May block. */
void ps_pinned_trim(struct ps_runtime *runtime);

#endif
