/* Which streams' work uses a block; only memory.c and memory_use.c know.  A
 * use of a block that is held is guarded by its device's mutex; one of a block
 * that nobody holds, by whoever took the block from its list. */
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
    /* A new one whenever the stream gets work with the block. */
    unsigned long long mark;
    /* Made when the block was given up, and recorded on the stream as soon as
     * its queue has room; NULL where the stream was waited for instead. */
    struct ps_event *done;
    bool recorded;
    struct ps_block_use *next;
};

ps_status ps_use_drop(struct ps_block_use *use);

/* The uses that are not over, of a block that nobody holds. */
struct ps_block_use *
ps_uses_prune(struct ps_block_use *uses, ps_status *status);

/* Give each use of such a block the event that will tell that it is over. */
void ps_uses_retire(struct ps_block *block);

/* Forget the uses of a retired block that are over.  wait: so that they are.
 */
ps_status ps_uses_forget_finished(struct ps_block *block, bool wait);

#endif
