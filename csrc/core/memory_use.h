/* The uses of a block by streams; private to memory.c and memory_use.c.  While
 * the block has references, its device's mutex guards its uses.  After that,
 * each use waits with its stream, and belongs to the thread that took the
 * stream out of the pool. */
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
    /* The number of threads that are about to queue work with the block. */
    unsigned begun;
    /* A new number whenever the stream gets work with the block. */
    unsigned long long mark;
    /* Created and recorded on the stream when the block is retired, or later
     * if there is no memory for it, or no room in the queue. */
    struct ps_event *done;
    bool recorded;
    /* The block, once it is retired. */
    struct ps_block *block;
    /* The next use of the block; once it is retired, of the stream. */
    struct ps_block_use *next;
};

ps_status ps_use_drop(struct ps_block_use *use);

/* Mark the block as used by the stream's work; see ps_block_use for lasting.
 * begun: threads that are about to queue such work. */
ps_status ps_use_mark(struct ps_block *block, struct ps_stream *stream,
                      bool lasting, unsigned begun);

/* Drop the uses of a retired block that are over, and return the others. */
struct ps_block_use *
ps_uses_prune(struct ps_block_use *uses, ps_status *status);

/* For each use of a retired block, record the event that ends it, if that is
 * possible. */
void ps_uses_record(struct ps_block *block);

/* Whether the stream's work with a retired block is done.  If wait is not
 * NULL, first wait until it is: within that limit, or as long as it takes if
 * the backend knows no limits.  A captured stream is never waited for. */
bool ps_use_is_over(struct ps_block_use *use, const struct ps_limit *wait);

#endif
