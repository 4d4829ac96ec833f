/* How to queue work on a stream whose queue may be full. */
#ifndef PYSTREAMS_PYTHON_ENQUEUE_H
#define PYSTREAMS_PYTHON_ENQUEUE_H

#include "../core/capture.h"
#include "../core/stream.h"

#include "module.h"

/* Does what Stream.wait_stream does, for streams that the caller keeps alive.
 * On failure, returns -1 with an exception. */
int stream_wait_stream(struct ps_stream *stream, struct ps_stream *other);

/* Like stream_wait_stream, but for a wait that the program did not ask for.
 * The race detector counts such a wait as the library's own; see
 * imply_begin. */
int stream_imply_wait(struct ps_stream *stream, struct ps_stream *other);

/* Wait until the stream's full queue has room again.  The wait fails if a
 * signal handler raises an exception, or if waiting would be a deadlock.
 * Releases the GIL.  Returns PS_SUCCESS if the caller should retry, otherwise
 * a status to raise. */
ps_status wait_for_room(struct ps_stream *stream);

/* Assign the result of `call` to `status`.  `call` calls a function that
 * queues work on the stream and returns a ps_status.  If the queue is full,
 * the macro waits for room and repeats the call. */
#define ENQUEUE(status, stream, call)                             \
    do {                                                          \
        CALL_BACKEND((stream)->device->runtime, status = (call)); \
    } while (has_room_again(stream, &status))

/* Like ENQUEUE, but for a call that may block. */
#define ENQUEUE_WITHOUT_GIL(status, stream, call) \
    do {                                          \
        WITHOUT_GIL(status = (call));             \
    } while (has_room_again(stream, &status))

/* Record that `stream` was made to wait for another stream: the stream of
 * `device` whose ps_stream.identity is `source`.  The error message of a
 * capture that fails later may mention the wait.  Returns what
 * clear_unless_interrupt returns. */
__attribute__((cold)) int
note_captured_wait(struct ps_stream *stream, struct ps_device *device,
                   ps_handle source);

/* Like note_captured_wait, but costs only one load while no capture is in
 * progress. */
static inline int
note_wait(struct ps_stream *stream, struct ps_device *device, ps_handle source)
{
    return atomic_load_explicit(&ps_captures, memory_order_relaxed) == 0
               ? 0
               : note_captured_wait(stream, device, source);
}

/* If *status is PS_ERROR_QUEUE_FULL, wait for room.  Returns true if there is
 * room again, so that the caller should retry.  Otherwise the call is
 * complete, and *status is PS_SUCCESS or the error to raise. */
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
