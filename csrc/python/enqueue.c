/* Queueing work: waiting for room when a stream's queue is full, and making
 * one stream wait for another. */
#include "enqueue.h"

#include "errors.h"
#include "explain.h"
#include "races.h"
#include "submit.h"
#include "wait.h"

enum { ROOM_TIMEOUT_NS = 50 * 1000 * 1000 };

ps_status
wait_for_room(struct ps_stream *stream)
{
    struct work work = {
        .operation = "waiting for room in a stream's queue",
        .device = stream->device,
        .stream = stream,
    };
    struct blocked blocked;
    ps_status status;
    blocked_begin(&blocked, work.operation, &work, NULL);
    do {
        WITHOUT_GIL(status = ps_stream_wait_room(stream, ROOM_TIMEOUT_NS));
        if (PyErr_CheckSignals() < 0 ||
            (status == PS_ERROR_TIMED_OUT && check_may_wait(&work) < 0)) {
            status = PS_RAISED;
        }
        else if (stream->generation != ps_generation()) {
            status = PS_ERROR_FOREIGN;
        }
    } while (status == PS_ERROR_TIMED_OUT);
    blocked_end(&blocked);
    return status;
}

int
stream_wait_stream(struct ps_stream *stream, struct ps_stream *other)
{
    struct ps_runtime *runtime = stream->device->runtime;
    ps_status status;
    if (other->device->runtime != runtime) {
        return refuse(
            PyExc_RuntimeError, "a %s stream cannot wait for a %s stream",
            runtime->backend->name, other->device->runtime->backend->name);
    }
    /* The call queues an operation on both streams: wait for the one that is
     * full. */
    do {
        WITHOUT_GIL(status = ps_stream_wait_stream(stream, other));
    } while (status == PS_ERROR_QUEUE_FULL &&
             (status = wait_for_room(stream)) == PS_SUCCESS &&
             (status = wait_for_room(other)) == PS_SUCCESS);
    return zero_or_raise(runtime, "Stream.wait_stream", status);
}

int
stream_imply_wait(struct ps_stream *stream, struct ps_stream *other)
{
    imply_begin();
    int result = stream_wait_stream(stream, other);
    imply_end();
    return result;
}
