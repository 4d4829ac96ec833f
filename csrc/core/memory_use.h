/* The uses of a block by streams.  Private to memory.c and memory_use.c.  A
 * use says that a stream has work with a block.  While the block has
 * references, its uses are in the block's list, and the mutex of the block's
 * device guards them.  When the block has no more references, each use moves
 * to the list of the stream that it names (memory.first in struct ps_stream).
 * From then on, only the thread that has taken this stream out of the memory
 * pool's list `retired` may check or drop the use. */
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
    /* An event that is recorded on the stream after the stream's work with the
     * block.  It is created and recorded when the block is retired.  If memory
     * is short or the stream's queue is full at that time, this is done
     * later. */
    struct ps_event *done;
    bool recorded;
    /* The block that is used.  NULL until the block is retired. */
    struct ps_block *block;
    /* The next use in the list that contains this use: the block's list, or
     * the stream's list once the block is retired. */
    struct ps_block_use *next;
};

ps_status ps_use_drop(struct ps_block_use *use);

/* Add a use of the block by the stream, or update the stream's use if there is
 * one.  lasting: see ps_block_use.  begun is added to the use's `begun`.
 * *added becomes true if a use was added. */
ps_status ps_use_mark(struct ps_block *block, struct ps_stream *stream,
                      bool lasting, unsigned begun, bool *added);

/* `uses` is a list of the uses of a block that has no references.  Drop those
 * whose work is done, and return a list of the others. */
struct ps_block_use *
ps_uses_prune(struct ps_block_use *uses, ps_status *status);

/* Record the event `done` of each use of a block that is being retired.  An
 * event that cannot be recorded now is recorded later, by ps_use_is_over. */
void ps_uses_record(struct ps_block *block);

/* Returns whether the use is over, that is, whether the stream's work with the
 * retired block is done.  If wait is not NULL, first waits until that work is
 * done or the limit *wait is reached.  The wait has no limit if the backend
 * has no timed waits.  Never waits for a stream that is being captured. */
bool ps_use_is_over(struct ps_block_use *use, const struct ps_limit *wait);

#endif
