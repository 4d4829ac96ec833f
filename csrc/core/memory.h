/* Stream-ordered memory.  References to a block are counted; when the last one
 * is dropped, the block is freed or reused only after the work of every stream
 * that uses it. */
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

/* Device memory of blocks with references; the device's mutex guards these. */
struct ps_memory_stats {
    struct ps_memory_counter bytes;
    struct ps_memory_counter blocks;
};

/* The blocks without references of a runtime. */
struct ps_memory_pool {
    /* Guards the lists and counts; never held across a call of a backend. */
    pthread_mutex_t mutex;
    /* The streams with retired blocks, each with a reference, and the last of
     * them; changed under the mutex. */
    struct ps_stream *_Atomic retired;
    struct ps_stream *last_retired;
    /* The number of threads that have taken such streams out of the list;
     * `swept` is signalled when it becomes 0. */
    unsigned sweeps;
    pthread_cond_t swept;
    /* Idle pinned blocks, and their bytes. */
    struct ps_block *idle;
    size_t idle_bytes;
    /* Pinned memory of blocks with references, and all that the pool has. */
    struct ps_memory_stats pinned;
    struct ps_memory_counter pinned_reserved;
};

/* Memory of another owner. */
struct ps_loan {
    void *data;
    size_t nbytes;
    /* Whether it is host memory, and whether that is pinned: devices copy
     * pinned memory asynchronously. */
    bool host;
    bool pinned;
    bool read_only;
    /* Whether to pin it, until nothing uses it any more. */
    bool pin;
    /* release(owner) is called once nothing uses the memory any more, on any
     * thread.  It returns the status of the clean-up. */
    void *owner;
    ps_status (*release)(void *owner);
};

/* The state of a block that processes share. */
struct ps_share {
    struct ps_export base;
    bool exported; /* by this process, which allocated it */
};

struct ps_block {
    atomic_uint refs;
    unsigned generation;
    struct ps_device *device;
    void *data;
    /* For a recycled pinned block, at least the requested size. */
    size_t nbytes;
    /* Whether the host can address it, and whether it is pinned. */
    bool host;
    bool pinned;
    bool read_only;
    /* The stream in whose order the memory was allocated and will be freed;
     * NULL for other memory. */
    struct ps_stream *stream;
    /* Whether the memory is to be unpinned. */
    bool registered;
    /* For a borrowed block; release is NULL in others. */
    void *owner;
    ps_status (*release)(void *owner);
    /* For an interprocess block; NULL in others. */
    struct ps_share *share;
    /* The other streams whose work uses the block; the device's mutex guards
     * the list. */
    struct ps_block_use *uses;
    /* The number of uses that wait with their streams once the block has no
     * references; the pool's mutex guards it. */
    unsigned waiting;
    /* In a list of the pool or of a stream. */
    struct ps_block *next;
};

/* The byte that pinned memory is filled with when it is allocated and when it
 * is released; -1 to leave it unchanged. */
extern atomic_int ps_memory_poison;

/* Make the pool empty, and forget former contents. */
void ps_memory_pool_init(struct ps_memory_pool *pool);

/* Set whether the calling thread may wait for work; initially every thread
 * may.  A thread must not if work waits for it: its allocations then do not
 * wait if memory is short, and it frees no pinned memory, because the driver
 * may wait for work first.  PS_ERROR_OUT_OF_MEMORY is possible only at a
 * thread's first call with false. */
ps_status ps_memory_may_wait(bool may);

/* Whether there are retired blocks: those whose last reference was dropped
 * while work used them. */
static inline bool
ps_memory_has_retired(struct ps_memory_pool *pool)
{
    return atomic_load_explicit(&pool->retired, memory_order_relaxed) != NULL;
}

/* Free, pool or return to their owners the retired blocks that no work uses
 * any more.  Call after a wait for work.  A failure is stored for
 * ps_runtime_take_failure.  May block. */
void ps_memory_sweep(struct ps_runtime *runtime);

/* Likewise, but ask only a few of the streams that have retired blocks, each
 * in its turn, so that the time of a call does not grow with the number of
 * streams. */
void ps_memory_sweep_some(struct ps_runtime *runtime);

/* nbytes of device memory for work queued on stream from here on; nbytes may
 * be 0.  If memory is short, waits within the limit for the work that uses
 * retired blocks, or as long as it takes if the backend knows no limits.  May
 * block. */
ps_status
ps_block_create(struct ps_stream *stream, size_t nbytes,
                const struct ps_limit *limit, struct ps_block **block);

/* Likewise, nbytes of pinned memory that the device's runtime reaches. */
ps_status
ps_block_create_pinned(struct ps_device *device, size_t nbytes,
                       const struct ps_limit *limit, struct ps_block **block);

/* Likewise, nbytes, at least 1, of device memory that other processes may
 * open, for work of any stream.  They need the handle of the block and its
 * nbytes. */
ps_status
ps_block_create_shared(struct ps_device *device, size_t nbytes,
                       const struct ps_limit *limit, struct ps_block **block);

/* Open a block that another process allocated with ps_block_create_shared; the
 * statistics of this process do not count it.  See shared_open.  May block.
 * Statuses: PS_ERROR_OWN_HANDLE if this process allocated it. */
ps_status ps_block_open(struct ps_device *device,
                        const unsigned char handle[PS_IPC_HANDLE_BYTES],
                        size_t nbytes, struct ps_block **block);

/* The handle of an interprocess block. */
static inline const unsigned char *
ps_block_handle(const struct ps_block *block)
{
    return block->share->base.handle;
}

/* A block of another owner's memory, which no statistics count.  After
 * success, the loan's release is called when nothing uses the memory any more.
 * May block if the memory is to be pinned.
 * Statuses: those of host_register, PS_ERROR_NOT_SUPPORTED. */
ps_status ps_block_borrow(struct ps_device *device, const struct ps_loan *loan,
                          struct ps_block **block);

struct ps_block *ps_block_ref(struct ps_block *block);

/* Accepts NULL.  As ps_stream_unref.  Needs no memory. */
ps_status ps_block_unref(struct ps_block *block);

/* A new reference to the stream in whose order the program allocated the
 * memory; NULL if there is none. */
struct ps_stream *ps_block_stream(struct ps_block *block);

/* Declare that work now queued on the stream uses the block.  lasting: later
 * work may use it too, while the block has references. */
ps_status
ps_block_use(struct ps_block *block, struct ps_stream *stream, bool lasting);

/* Likewise, in two steps around the queueing of work, so that no work is
 * queued whose use cannot be stored.  After success of the first, the second
 * is called even if no work was queued. */
ps_status ps_block_use_begin(struct ps_block *block, struct ps_stream *stream);
void ps_block_use_end(struct ps_block *block, struct ps_stream *stream);

/* The streams whose work is known to use the block; if lasting, only those
 * that may use it as long as it has references.  Returns a new reference to
 * each, in an array that the caller frees. */
ps_status ps_block_streams(struct ps_block *block, bool lasting,
                           struct ps_stream ***streams, size_t *count);

/* Device memory.  Never blocks. */
void
ps_memory_counts_read(struct ps_device *device, struct ps_memory_stats *stats);

/* Likewise, with the memory that the backend's pool has reserved, which equals
 * the memory in use if there is no pool.  May block. */
ps_status
ps_memory_stats_read(struct ps_device *device, struct ps_memory_stats *stats,
                     struct ps_memory_counter *reserved);
ps_status ps_memory_stats_reset_peak(struct ps_device *device);
/* Reset the totals of allocated and freed memory to 0.  Never blocks. */
void ps_memory_stats_reset_totals(struct ps_device *device);

/* Likewise, pinned memory.  Never blocks. */
void
ps_pinned_stats_read(struct ps_runtime *runtime, struct ps_memory_stats *stats,
                     struct ps_memory_counter *reserved);
void ps_pinned_stats_reset_peak(struct ps_runtime *runtime);
void ps_pinned_stats_reset_totals(struct ps_runtime *runtime);

/* Free the pinned memory that is kept for reuse, except on a thread that may
 * not wait.  May block. */
void ps_pinned_trim(struct ps_runtime *runtime);

#endif
