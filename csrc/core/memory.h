/* Memory that streams order.  A block is counted; when the last reference is
 * dropped it is freed, or handed out again, only after the work of every
 * stream that it was lent to. */
#ifndef PYSTREAMS_CORE_MEMORY_H
#define PYSTREAMS_CORE_MEMORY_H

#include <pystreams/backend.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct ps_device;
struct ps_runtime;
struct ps_stream;

struct ps_memory_counter {
    uint64_t current;
    uint64_t peak;
    uint64_t allocated;
    uint64_t freed;
};

/* Device memory in blocks that somebody holds; the device's mutex guards it.
 */
struct ps_memory_stats {
    struct ps_memory_counter bytes;
    struct ps_memory_counter blocks;
};

/* The blocks of a runtime that nobody holds. */
struct ps_memory_pool {
    /* Guards the lists and counts; never held across a call of a backend. */
    pthread_mutex_t mutex;
    /* The streams that have such memory, with a reference; changed under the
     * mutex. */
    struct ps_stream *_Atomic retired;
    /* How many threads are looking at such streams, which are in no list then;
     * `swept` is signalled when none is. */
    unsigned sweeps;
    pthread_cond_t swept;
    /* The first failure of a clean-up that was not reported, or success. */
    atomic_int failure;
    /* Pinned blocks for reuse, and how much they hold. */
    struct ps_block *idle;
    size_t idle_bytes;
};

/* Memory that somebody else owns. */
struct ps_loan {
    void *data;
    size_t nbytes;
    /* Host memory; pinned: that devices copy asynchronously. */
    bool host;
    bool pinned;
    bool read_only;
    /* Given to release when nothing uses the memory any more, on any thread;
     * the status is that of the clean-up. */
    void *owner;
    ps_status (*release)(void *owner);
};

struct ps_block {
    atomic_uint refs;
    unsigned generation;
    struct ps_device *device;
    void *data;
    /* Of a recycled pinned block, at least what was asked for. */
    size_t nbytes;
    /* Whether the host can address it, and whether it is pinned. */
    bool host;
    bool pinned;
    bool read_only;
    /* Memory allocated in a stream's order is freed in it, and counted; else
     * NULL. */
    struct ps_stream *stream;
    /* Of a borrowed block; release is NULL in others. */
    void *owner;
    ps_status (*release)(void *owner);
    /* The other streams whose work uses the block; the device's mutex guards
     * the list. */
    struct ps_block_use *uses;
    /* How many of them wait with their streams once nobody holds the block;
     * the pool's mutex guards it. */
    unsigned waiting;
    /* In a list of the pool or of a stream. */
    struct ps_block *next;
};

/* Make the pool empty, and forget former contents. */
void ps_memory_pool_init(struct ps_memory_pool *pool);

/* Whether the calling thread may wait for work, as all may at first.  While
 * work waits for the thread, an allocation that finds memory short waits for
 * none, and pinned memory is kept, which to free a driver may wait.
 * PS_ERROR_OUT_OF_MEMORY: only the first time that a thread may not. */
ps_status ps_memory_may_wait(bool may);

/* Whether there are blocks that were given up while work used them. */
static inline bool
ps_memory_has_retired(struct ps_memory_pool *pool)
{
    return atomic_load_explicit(&pool->retired, memory_order_relaxed) != NULL;
}

/* Free, pool or give back the retired blocks that no work uses any more.
 * Call before a block is made and after work was waited for.  May block. */
void ps_memory_sweep(struct ps_runtime *runtime);

/* The failure of a clean-up since the last call, or success.  It fails none of
 * the calls that happened to do it, so that their callers report it. */
static inline ps_status
ps_memory_take_failure(struct ps_memory_pool *pool)
{
    return atomic_load_explicit(&pool->failure, memory_order_relaxed) ==
                   PS_SUCCESS
               ? PS_SUCCESS
               : atomic_exchange(&pool->failure, PS_SUCCESS);
}

/* Leave the status, of which the first is kept, to be taken there. */
static inline void
ps_memory_note_failure(struct ps_memory_pool *pool, ps_status status)
{
    int none = PS_SUCCESS;
    if (status != PS_SUCCESS) {
        atomic_compare_exchange_strong(&pool->failure, &none, status);
    }
}

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

/* A block of memory that somebody else owns; it counts in no statistics.
 * After success the loan's owner is given back by its release. */
ps_status ps_block_borrow(struct ps_device *device, const struct ps_loan *loan,
                          struct ps_block **block);

struct ps_block *ps_block_ref(struct ps_block *block);

/* Accepts NULL.  As ps_stream_unref.  Needs no memory. */
ps_status ps_block_unref(struct ps_block *block);

/* Work now queued on the stream uses the block.  lasting: so may work that it
 * gets while the block is held. */
ps_status
ps_block_use(struct ps_block *block, struct ps_stream *stream, bool lasting);

/* Likewise, around the queueing of work, so that none is queued for whose use
 * there is no memory.  After success the second is called, also if none was
 * queued. */
ps_status ps_block_use_begin(struct ps_block *block, struct ps_stream *stream);
void ps_block_use_end(struct ps_block *block, struct ps_stream *stream);

/* The streams whose work is known to use the block: a new reference to each,
 * in an array that is the caller's to free. */
ps_status ps_block_streams(struct ps_block *block, struct ps_stream ***streams,
                           size_t *count);

void
ps_memory_stats_read(struct ps_device *device, struct ps_memory_stats *stats);
void ps_memory_stats_reset_peak(struct ps_device *device);

#endif
