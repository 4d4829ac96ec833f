/* Queueing work on streams whose queues may be full. */
#ifndef PYSTREAMS_PYTHON_ENQUEUE_H
#define PYSTREAMS_PYTHON_ENQUEUE_H

#include "../core/stream.h"

#include "module.h"

/* What Stream.wait_stream does, for streams the caller holds; -1 with an
 * exception. */
int stream_wait_stream(struct module_state *state, struct ps_stream *stream,
                       struct ps_stream *other);

/* Wait for room in a full queue, with the GIL released and open to signals.
 * PS_SUCCESS: try again; else a status to raise. */
ps_status wait_for_room(struct ps_stream *stream);

/* status = call, an enqueueing function of core, tried until there is room in
 * the stream's queue. */
#define ENQUEUE(status, stream, call)                             \
    do {                                                          \
        CALL_BACKEND((stream)->device->runtime, status = (call)); \
    } while (has_room_again(stream, &status))

/* Likewise, for a call that may block. */
#define ENQUEUE_WITHOUT_GIL(status, stream, call) \
    do {                                          \
        WITHOUT_GIL(status = (call));             \
    } while (has_room_again(stream, &status))

/* Whether the caller should retry, as a full queue has room again; otherwise
 * *status holds the error to raise. */
static inline bool
has_room_again(struct ps_stream *stream, ps_status *status)
{
    if (*status != PS_ERROR_QUEUE_FULL) {
        return false;
    }
    *status = wait_for_room(stream);
    return *status == PS_SUCCESS;
}

#endif
