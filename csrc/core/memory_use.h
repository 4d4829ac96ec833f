/* The uses of a block by streams.  Private to memory.c and memory_use.c.  A
 * use says that a stream has work with a block.  While the block has
 * references, its uses are in the block's list, and the mutex of the block's
 * device guards them.  When the block has no more references, each of its uses
 * moves to the list of its stream (memory.first in struct ps_stream).  Then
 * only the thread that has taken the stream out of the memory pool's list
 * `retired` may touch the stream's uses. */
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
    /* A number that changes whenever the stream gets more work with the
     * block. */
    unsigned long long mark;
    /* An event of the stream: when its record is done, the stream's work with
     * the block is done.  The event is created and recorded when the block is
     * retired, or later if memory was short or the queue was full then. */
    struct ps_event *done;
    bool recorded;
    /* The block that is used.  NULL until the block is retired. */
    struct ps_block *block;
    /* The next use of the same block; once the block is retired, the next use
     * of the same stream. */
    struct ps_block_use *next;
};

ps_status ps_use_drop(struct ps_block_use *use);

/* Add a use of the block by the stream, or update the stream's use if there is
 * one.  lasting: see ps_block_use.  begun is added to the use's `begun`. */
ps_status ps_use_mark(struct ps_block *block, struct ps_stream *stream,
                      bool lasting, unsigned begun);

/* Drop the uses in the list whose work is done, and return the list of the
 * others.  The block must have no references. */
struct ps_block_use *
ps_uses_prune(struct ps_block_use *uses, ps_status *status);

/* Record the event `done` of each use of a block that is being retired.  If
 * that is not possible now, it is done later. */
void ps_uses_record(struct ps_block *block);

/* Returns whether the use is over: the stream's work with the retired block is
 * done.  If wait is not NULL, first waits for the work, up to this limit;
 * without a limit if the backend has no timed waits.  Never waits for a
 * captured stream. */
bool ps_use_is_over(struct ps_block_use *use, const struct ps_limit *wait);

#endif
