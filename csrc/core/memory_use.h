/* Which streams' work uses a block; only memory.c and memory_use.c know.  A
 * use of a block that is held is guarded by its device's mutex; one of a block
 * that nobody holds waits with its stream, and is the thread's that took that
 * out of the pool. */
#ifndef PYSTREAMS_CORE_MEMORY_USE_H
#define PYSTREAMS_CORE_MEMORY_USE_H

#include <pystreams/backend.h>

#include <stdbool.h>

#include "status.h"

struct ps_block;
struct ps_event;
struct ps_stream;

struct ps_block_use {
    struct ps_stream *stream;
    bool lasting;
    /* How many threads are about to queue work with the block. */
    unsigned begun;
    /* A new one whenever the stream gets work with the block. */
    unsigned long long mark;
    /* Made when the block was given up, and recorded on the stream; as soon as
     * there is memory for it, and room in the queue. */
    struct ps_event *done;
    bool recorded;
    /* Once it was given up. */
    struct ps_block *block;
    /* Of the block, then of the stream. */
    struct ps_block_use *next;
};

ps_status ps_use_drop(struct ps_block_use *use);

/* Mark the block as used by the stream's work; see ps_block_use for lasting.
 * begun: threads that are about to queue such work. */
ps_status ps_use_mark(struct ps_block *block, struct ps_stream *stream,
                      bool lasting, unsigned begun);

/* The uses that are not over, of a block that nobody holds. */
struct ps_block_use *
ps_uses_prune(struct ps_block_use *uses, ps_status *status);

/* Record for each use of such a block the event that ends it, if that can be.
 */
void ps_uses_record(struct ps_block *block);

/* Whether the stream's work with a block that was given up is done.  wait:
 * NULL, or wait until it is, unless the stream is captured, within the limit
 * if the backend knows limits. */
bool ps_use_is_over(struct ps_block_use *use, const struct ps_limit *wait);

#endif
