/* Queueing work on streams whose queues may be full. */
#ifndef PYSTREAMS_PYTHON_ENQUEUE_H
#define PYSTREAMS_PYTHON_ENQUEUE_H

#include "../core/capture.h"
#include "../core/stream.h"

#include "module.h"

/* Stream.wait_stream, for streams that the caller holds; -1 with an
 * exception. */
int stream_wait_stream(struct ps_stream *stream, struct ps_stream *other);

/* Likewise, for a wait that the program did not ask for. */
int stream_imply_wait(struct ps_stream *stream, struct ps_stream *other);

/* Wait, with the GIL released, until a full queue has room or a signal handler
 * raises.  PS_SUCCESS: try again; otherwise a status to raise. */
ps_status wait_for_room(struct ps_stream *stream);

/* status = call, a function of core that queues work, repeated until the
 * stream's queue has room. */
#define ENQUEUE(status, stream, call)                             \
    do {                                                          \
        CALL_BACKEND((stream)->device->runtime, status = (call)); \
    } while (has_room_again(stream, &status))

/* Likewise, for a call that may block. */
#define ENQUEUE_WITHOUT_GIL(status, stream, call) \
    do {                                          \
        WITHOUT_GIL(status = (call));             \
    } while (has_room_again(stream, &status))

/* A stream was made to wait for the source, or this failed with the status:
 * note it for the error message of a capture that fails. */
__attribute__((cold)) void
note_captured_wait(struct ps_stream *stream, struct ps_device *device,
                   ps_handle source, ps_status status);

/* Likewise; costs next to nothing while nothing is captured. */
static inline void
note_wait(struct ps_stream *stream, struct ps_device *device, ps_handle source,
          ps_status status)
{
    if (atomic_load_explicit(&ps_captures, memory_order_relaxed) != 0) {
        note_captured_wait(stream, device, source, status);
    }
}

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
