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
    /* Guards the lists and `idle_bytes`; never held across a call of a
     * backend. */
    pthread_mutex_t mutex;
    /* Blocks that work still uses. */
    struct ps_block *retired;
    /* Pinned blocks for reuse, and how much they hold. */
    struct ps_block *idle;
    size_t idle_bytes;
};

struct ps_block {
    atomic_uint refs;
    unsigned generation;
    struct ps_device *device;
    void *data;
    /* Of a recycled pinned block, at least what was asked for. */
    size_t nbytes;
    bool pinned;
    /* Device memory is freed in this stream's order; NULL when pinned. */
    struct ps_stream *stream;
    /* The other streams whose work uses the block; the device's mutex guards
     * the list while the block is held. */
    struct ps_block_use *uses;
    /* In a list of the pool. */
    struct ps_block *next;
};

/* Free, or keep for reuse, the blocks that were given up and are used by
 * nothing any more.  Call before a block is made; the status is that of the
 * clean-up.  May block. */
ps_status ps_memory_sweep(struct ps_runtime *runtime);

/* nbytes of device memory for work queued on stream from here on; nbytes may
 * be 0.  May block. */
ps_status ps_block_create(struct ps_stream *stream, size_t nbytes,
                          struct ps_block **block);

/* nbytes of pinned memory that the device's runtime reaches.  May block. */
ps_status ps_block_create_pinned(struct ps_device *device, size_t nbytes,
                                 struct ps_block **block);

struct ps_block *ps_block_ref(struct ps_block *block);

/* Accepts NULL.  As ps_stream_unref. */
ps_status ps_block_unref(struct ps_block *block);

/* Work now queued on the stream uses the block.  lasting: so may work that it
 * gets while the block is held. */
ps_status
ps_block_use(struct ps_block *block, struct ps_stream *stream, bool lasting);

void
ps_memory_stats_read(struct ps_device *device, struct ps_memory_stats *stats);
void ps_memory_stats_reset_peak(struct ps_device *device);

#endif
