/* Waits for room when a stream's queue is full, and makes one stream wait for
 * another. */
#include "enqueue.h"

#include "errors.h"
#include "explain.h"
#include "races.h"
#include "stream.h"
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
        ps_status handled = run_handlers(stream->generation);
        if (handled != PS_SUCCESS) {
            status = handled;
        }
        else if (status == PS_ERROR_TIMED_OUT && check_may_wait(&work) < 0) {
            status = PS_RAISED;
        }
    } while (status == PS_ERROR_TIMED_OUT);
    blocked_end(&blocked);
    return status;
}

int
note_captured_wait(struct ps_stream *stream, struct ps_device *device,
                   ps_handle source)
{
    const struct ps_backend *backend = stream->device->runtime->backend;
    uint64_t number = 0;
    if (backend->stream_capture == NULL) {
        return 0;
    }
    CALL_BACKEND(stream->device->runtime,
                 backend->stream_capture(backend, stream->device->index,
                                         stream->handle, &number));
    if (number != 0) {
        drop_result(
            import_call("pystreams.cuda._captures", "waited", "((iK)NN)",
                        backend->device_type, (unsigned long long)number,
                        captured_stream(stream->device, stream->identity),
                        captured_stream(device, source)));
    }
    return clear_unless_interrupt();
}

int
stream_wait_stream(struct ps_stream *stream, struct ps_stream *other)
{
    struct ps_runtime *runtime = stream->device->runtime;
    ps_status status;
    if (other->device->runtime != runtime) {
        if (check_emulations("Stream.wait_stream", "stream", runtime,
                             "other one", other->device->runtime) < 0) {
            return -1;
        }
        return refuse(PyExc_RuntimeError,
                      "a %s stream cannot wait for a %s stream; synchronize() "
                      "that one first",
                      runtime->backend->name,
                      other->device->runtime->backend->name);
    }
    /* The call queues an operation on each of the two streams, and either
     * queue may be full.  So wait for room in both.  The wait for a queue that
     * is not full returns at once. */
    do {
        WITHOUT_GIL(status = ps_stream_wait_stream(stream, other));
    } while (status == PS_ERROR_QUEUE_FULL &&
             (status = wait_for_room(stream)) == PS_SUCCESS &&
             (status = wait_for_room(other)) == PS_SUCCESS);
    if (status != PS_SUCCESS) {
        return raise_wait(stream, "Stream.wait_stream", other->device,
                          other->identity, status);
    }
    return note_wait(stream, other->device, other->identity);
}

int
stream_imply_wait(struct ps_stream *stream, struct ps_stream *other)
{
    imply_begin();
    int result = stream_wait_stream(stream, other);
    imply_end();
    return result;
}
