/* The uses of a block by streams.  Private to memory.c and memory_use.c.
 * While the block has references, its device's mutex guards the uses.
 * Afterwards each use is in its stream's list, and belongs to the thread that
 * has taken the stream out of the pool's list. */
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
    /* The number of threads between ps_block_use_begin and
     * ps_block_use_end. */
    unsigned begun;
    /* Changes whenever the stream gets more work with the block. */
    unsigned long long mark;
    /* The event that ends the use.  It is created and recorded when the block
     * is retired, or later if there was no memory for it or no room in the
     * queue. */
    struct ps_event *done;
    bool recorded;
    /* The block.  Set when the block is retired. */
    struct ps_block *block;
    /* The next use of the same block; once the block is retired, the next use
     * of the same stream. */
    struct ps_block_use *next;
};

ps_status ps_use_drop(struct ps_block_use *use);

/* Store that the stream's work uses the block.  lasting: see ps_block_use.
 * begun: 1 from ps_block_use_begin, else 0. */
ps_status ps_use_mark(struct ps_block *block, struct ps_stream *stream,
                      bool lasting, unsigned begun);

/* Drop the uses that are over, and return the list of the others.  The block
 * has no references. */
struct ps_block_use *
ps_uses_prune(struct ps_block_use *uses, ps_status *status);

/* Record the event of each use of a retired block.  A use for which that is
 * not possible now is recorded later. */
void ps_uses_record(struct ps_block *block);

/* Returns whether the stream's work with a retired block is done.  If wait is
 * not NULL, first waits for the work, up to this limit.  A backend without
 * timed waits ignores the limit.  Never waits for a captured stream. */
bool ps_use_is_over(struct ps_block_use *use, const struct ps_limit *wait);

#endif
