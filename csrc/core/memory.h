/* Stream-ordered memory in blocks.  References to a block are counted.  When
 * the last one is dropped, the block is freed or reused, but only after the
 * work of every stream that uses it. */
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

/* Counters of the memory in blocks that have references.  The device's mutex
 * guards those of device memory. */
struct ps_memory_stats {
    struct ps_memory_counter bytes;
    struct ps_memory_counter blocks;
};

/* The blocks of a runtime that have no references but are not freed yet. */
struct ps_memory_pool {
    /* Guards the lists and counts.  Never held across a call of a backend. */
    pthread_mutex_t mutex;
    /* The list of streams that blocks without references wait for;
     * `last_retired` is its end.  The list holds a reference to each stream.
     * Changed under the mutex; `retired` is also read without it. */
    struct ps_stream *_Atomic retired;
    struct ps_stream *last_retired;
    /* The number of threads that have taken streams out of that list to check
     * them.  `swept` is signalled when it becomes 0. */
    unsigned sweeps;
    pthread_cond_t swept;
    /* Pinned blocks that are kept for reuse, and their size in bytes. */
    struct ps_block *idle;
    size_t idle_bytes;
    /* Counters of pinned blocks that have references, and of all pinned memory
     * that core has allocated. */
    struct ps_memory_stats pinned;
    struct ps_memory_counter pinned_reserved;
};

/* Memory that belongs to another owner, for ps_block_borrow. */
struct ps_loan {
    void *data;
    size_t nbytes;
    /* host: whether it is host memory.  pinned: whether it is pinned already;
     * devices copy pinned memory asynchronously. */
    bool host;
    bool pinned;
    bool read_only;
    /* Whether the block is to pin the memory while it exists. */
    bool pin;
    /* release(owner) is called on any thread once no work uses the memory any
     * more.  It returns the status of the clean-up. */
    void *owner;
    ps_status (*release)(void *owner);
};

/* The state of a block of interprocess memory. */
struct ps_share {
    struct ps_export base;
    bool exported; /* whether this process allocated the block */
};

struct ps_block {
    atomic_uint refs;
    unsigned generation;
    struct ps_device *device;
    void *data;
    /* At least the requested size; a recycled pinned block may be larger. */
    size_t nbytes;
    /* Whether the host can address the memory, and whether it is pinned. */
    bool host;
    bool pinned;
    bool read_only;
    /* The stream on which the memory was allocated and will be freed; NULL for
     * pinned, borrowed and interprocess memory. */
    struct ps_stream *stream;
    /* Whether the block has pinned the memory, and so must unpin it. */
    bool registered;
    /* Only for a borrowed block: called when no work uses it any more.
     * release is NULL in other blocks. */
    void *owner;
    ps_status (*release)(void *owner);
    /* Only for an interprocess block; NULL in others. */
    struct ps_share *share;
    /* The other streams that have work with the block.  The device's mutex
     * guards the list. */
    struct ps_block_use *uses;
    /* Once the block has no references: the number of streams that still have
     * work with it.  The pool's mutex guards it. */
    unsigned waiting;
    /* The next in the pool's list of idle blocks, or in a stream's list of
     * held blocks. */
    struct ps_block *next;
};

/* The byte that fills pinned memory when it is allocated and when it is
 * released, or -1 to leave the memory unchanged. */
extern atomic_int ps_memory_poison;

/* Initialize the pool as empty.  Former contents are forgotten, not freed. */
void ps_memory_pool_init(struct ps_memory_pool *pool);

/* Set whether the calling thread may wait for work.  Every thread may at
 * first.  A thread must not wait if queued work waits for this thread.  Then
 * its allocations do not wait when memory is short, and it frees no pinned
 * memory, because the driver may wait for work before it frees.  Returns
 * PS_ERROR_OUT_OF_MEMORY only at a thread's first call with false. */
ps_status ps_memory_may_wait(bool may);

/* Returns whether there are retired blocks.  A block is retired if its last
 * reference was dropped while work still used it. */
static inline bool
ps_memory_has_retired(struct ps_memory_pool *pool)
{
    return atomic_load_explicit(&pool->retired, memory_order_relaxed) != NULL;
}

/* Free the retired blocks that no work uses any more, or keep them for reuse,
 * or return them to their owners.  Call this after a wait for work.  A failure
 * is stored for ps_runtime_take_failure.  May block. */
void ps_memory_sweep(struct ps_runtime *runtime);

/* As ps_memory_sweep, but check only the next few streams that have retired
 * blocks, so that a call does not take longer when there are many streams. */
void ps_memory_sweep_some(struct ps_runtime *runtime);

/* Allocate nbytes (0 or more) of device memory, for work that is queued on the
 * stream from here on.  If memory is short, waits until the work that uses
 * retired blocks is done, or the limit is reached.  A backend without timed
 * waits ignores the limit.  May block. */
ps_status
ps_block_create(struct ps_stream *stream, size_t nbytes,
                const struct ps_limit *limit, struct ps_block **block);

/* As ps_block_create, for nbytes of pinned memory that the devices of the
 * runtime can access. */
ps_status
ps_block_create_pinned(struct ps_device *device, size_t nbytes,
                       const struct ps_limit *limit, struct ps_block **block);

/* As ps_block_create, for nbytes (1 or more) of device memory that other
 * processes may open and that work of any stream may use.  To open it, the
 * other process needs the block's handle and nbytes. */
ps_status
ps_block_create_shared(struct ps_device *device, size_t nbytes,
                       const struct ps_limit *limit, struct ps_block **block);

/* Open a block that another process allocated with ps_block_create_shared.
 * The statistics of this process do not count it.  See shared_open.  May
 * block.  Returns PS_ERROR_OWN_HANDLE if this process allocated the block. */
ps_status ps_block_open(struct ps_device *device,
                        const unsigned char handle[PS_IPC_HANDLE_BYTES],
                        size_t nbytes, struct ps_block **block);

/* The handle of an interprocess block. */
static inline const unsigned char *
ps_block_handle(const struct ps_block *block)
{
    return block->share->base.handle;
}

/* Make a block of memory that belongs to another owner.  Statistics do not
 * count it.  After success, the loan's release is called when no work uses the
 * memory any more.  May block if the memory is to be pinned.  Statuses: those
 * of host_register, PS_ERROR_NOT_SUPPORTED. */
ps_status ps_block_borrow(struct ps_device *device, const struct ps_loan *loan,
                          struct ps_block **block);

struct ps_block *ps_block_ref(struct ps_block *block);

/* Accepts NULL.  Dropping the last reference may block.  Returns the status of
 * the clean-up; the reference is gone in any case.  Allocates no memory. */
ps_status ps_block_unref(struct ps_block *block);

/* Returns a new reference to the stream on which the program allocated the
 * memory.  Returns NULL if there is none: for other memory, and for memory
 * that was allocated during a capture. */
struct ps_stream *ps_block_stream(struct ps_block *block);

/* Declare that work now queued on the stream uses the block.  lasting: work
 * that is queued later may use it too, as long as the block has references. */
ps_status
ps_block_use(struct ps_block *block, struct ps_stream *stream, bool lasting);

/* As ps_block_use, in two steps: one before work is queued and one after it.
 * The first may fail, and then no work must be queued.  After its success,
 * call the second even if no work was queued. */
ps_status ps_block_use_begin(struct ps_block *block, struct ps_stream *stream);
void ps_block_use_end(struct ps_block *block, struct ps_stream *stream);

/* Get the streams that have work with the block.  With lasting, only streams
 * that may use it as long as it has references.  *streams is an array that the
 * caller frees, with a new reference to each stream. */
ps_status ps_block_streams(struct ps_block *block, bool lasting,
                           struct ps_stream ***streams, size_t *count);

/* Copy the counters of the device's memory.  Never blocks. */
void
ps_memory_counts_read(struct ps_device *device, struct ps_memory_stats *stats);

/* As ps_memory_counts_read, and also get the memory that the backend's pool
 * has reserved.  Without a pool, *reserved equals the memory in use.  May
 * block. */
ps_status
ps_memory_stats_read(struct ps_device *device, struct ps_memory_stats *stats,
                     struct ps_memory_counter *reserved);
ps_status ps_memory_stats_reset_peak(struct ps_device *device);
/* Reset the totals of allocated and freed device memory to 0.  Never
 * blocks. */
void ps_memory_stats_reset_totals(struct ps_device *device);

/* The same three functions for pinned memory.  They never block. */
void
ps_pinned_stats_read(struct ps_runtime *runtime, struct ps_memory_stats *stats,
                     struct ps_memory_counter *reserved);
void ps_pinned_stats_reset_peak(struct ps_runtime *runtime);
void ps_pinned_stats_reset_totals(struct ps_runtime *runtime);

/* Free the idle pinned memory.  Does nothing on a thread that may not wait.
 * May block. */
void ps_pinned_trim(struct ps_runtime *runtime);

#endif
