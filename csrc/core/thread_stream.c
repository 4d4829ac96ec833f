/* Each thread has a list of its default streams, in the thread-local word
 * PS_THREAD_STREAMS.  A stream leaves the list when its thread ends.  From
 * then on, the stream's event of_thread.latest stands for all of its work. */
#include "thread_stream.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "event.h"
#include "runtime.h"

static struct ps_stream *
first_of_thread(void)
{
    return ps_thread_word(PS_THREAD_STREAMS);
}

/* In a forked child, drop the thread's streams that the parent created.  This
 * calls no backend. */
static void
forget_ancestors(void)
{
    struct ps_stream *next, *stream = first_of_thread();
    if (stream == NULL || stream->generation == ps_generation()) {
        return;
    }
    ps_thread_set_word(PS_THREAD_STREAMS, NULL);
    for (; stream != NULL; stream = next) {
        next = stream->of_thread.next;
        ps_stream_unref(stream);
    }
}

struct ps_stream *
ps_thread_stream(struct ps_device *device)
{
    forget_ancestors();
    struct ps_stream *stream = first_of_thread();
    while (stream != NULL && stream->device != device) {
        stream = stream->of_thread.next;
    }
    return stream != NULL ? ps_stream_ref(stream) : NULL;
}

/* Fill in a new stream, and add it to the thread's list. */
static ps_status
begin(struct ps_stream *stream, const char *name)
{
    struct ps_device *device = stream->device;
    ps_status status = PS_CALL(device, thread_stream, &stream->identity);
    if (status == PS_SUCCESS) {
        status =
            ps_event_create(device->runtime, 0, &stream->of_thread.latest);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    stream->of_thread.latest->internal = true;
    stream->of_thread.next = first_of_thread();
    stream->handle = PS_STREAM_PER_THREAD;
    stream->blocking = true;
    stream->name = strdup(name);
    return stream->name != NULL ? ps_thread_set_word(PS_THREAD_STREAMS, stream)
                                : PS_ERROR_OUT_OF_MEMORY;
}

ps_status
ps_thread_stream_create(struct ps_device *device, const char *name,
                        void (*freed)(const struct ps_stream *stream),
                        struct ps_stream **result)
{
    if (device->runtime->backend->thread_stream == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (device->callers_stream.generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    struct ps_stream *stream = ps_stream_new(device, PS_STREAM_THREADS);
    if (stream == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status = begin(stream, name);
    if (status != PS_SUCCESS) {
        ps_event_unref(stream->of_thread.latest);
        free(stream->name);
        free(stream);
        return status;
    }
    stream->of_thread.freed = freed;
    pthread_mutex_lock(&device->mutex);
    LIST_INSERT_HEAD(&device->streams, stream, neighbours);
    pthread_mutex_unlock(&device->mutex);
    *result = ps_stream_ref(stream);
    return PS_SUCCESS;
}

void
ps_thread_stream_recover(struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    ps_handle graph;
    size_t operations;
    if (atomic_exchange(&stream->of_thread.adrift, false) &&
        PS_CALL(device, capture_end, stream->handle, &graph, &operations) ==
            PS_SUCCESS) {
        ps_runtime_note_failure(device->runtime,
                                PS_CALL(device, graph_destroy, graph));
    }
}

/* Record the stream's event of_thread.latest.  The call is marked as the
 * library's own, for observers. */
static ps_status
record(struct ps_stream *stream)
{
    bool own = ps_own_begin(stream->device->runtime);
    ps_status status = ps_event_record(stream->of_thread.latest, stream);
    ps_own_end(own);
    return status;
}

void
ps_thread_stream_mark(struct ps_stream *stream)
{
    if (!ps_stream_in_capture(stream)) {
        bool lags = record(stream) != PS_SUCCESS;
        atomic_store(&stream->of_thread.lags, lags);
    }
}

ps_status
ps_thread_stream_latest(struct ps_stream *stream, struct ps_event **latest)
{
    bool remote = ps_stream_is_remote(stream);
    *latest = remote ? stream->of_thread.latest : NULL;
    return remote && atomic_load(&stream->of_thread.lags) ? PS_ERROR_LAGS
                                                          : PS_SUCCESS;
}

/* Record the stream's event at the end of the thread.  If the queue is full,
 * waits until it has room. */
static ps_status
record_last(struct ps_stream *stream)
{
    enum { A_WHILE_NS = 50 * 1000 * 1000 };
    ps_status status, room = PS_SUCCESS;
    while ((status = record(stream)) == PS_ERROR_QUEUE_FULL &&
           (room == PS_SUCCESS || room == PS_ERROR_TIMED_OUT)) {
        room = ps_stream_wait_room(stream, A_WHILE_NS);
    }
    return status;
}

static void
finish(struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    enum ps_capture_mode mode =
        ps_capture_mode_swap(device->runtime, PS_CAPTURE_RELAXED);
    bool own = ps_own_begin(device->runtime);
    /* A failure need not be handled here, because the backend reports it again
     * when a thread next waits for the device. */
    (void)PS_CALL(device, stream_synchronize, stream->handle, NULL);
    ps_own_end(own);
    ps_capture_mode_swap(device->runtime, mode);
}

/* Called at the end of a thread.  If the backend has
 * PS_BACKEND_THREADS_FINISH, first waits for the stream's work.  If work is
 * still pending, records the stream's event after it.  If that is impossible,
 * no thread can find out any more when the work is done.  The event is then
 * marked as captured, because a captured event never counts as done. */
static void
record_end(struct ps_stream *stream)
{
    unsigned flags = stream->device->runtime->registered->flags;
    ps_thread_stream_recover(stream);
    if ((flags & PS_BACKEND_THREADS_FINISH) && !ps_stream_in_capture(stream)) {
        finish(stream);
    }
    bool lost =
        ps_stream_query_quietly(stream) == PS_ERROR_NOT_READY &&
        (ps_stream_in_capture(stream) || record_last(stream) != PS_SUCCESS);
    if (lost) {
        atomic_store(&stream->of_thread.latest->captured, true);
    }
    atomic_store(&stream->of_thread.lags, lost);
}

void
ps_thread_streams_end(struct ps_runtime *runtime)
{
    forget_ancestors();
    struct ps_stream *stream, *kept = NULL;
    while ((stream = first_of_thread()) != NULL) {
        struct ps_runtime *its = stream->device->runtime;
        bool ends = runtime == NULL || its == runtime;
        if (ends) {
            record_end(stream);
        }
        /* The stream leaves this thread's list, so that it counts as remote on
         * this thread, too. */
        ps_thread_set_word(PS_THREAD_STREAMS, stream->of_thread.next);
        if (ends) {
            atomic_store(&stream->of_thread.ended, true);
            ps_runtime_note_failure(its, ps_stream_unref(stream));
        }
        else {
            stream->of_thread.next = kept;
            kept = stream;
        }
    }
    ps_thread_set_word(PS_THREAD_STREAMS, kept);
}

bool
ps_stream_is_out_of_reach(struct ps_stream *stream)
{
    if (!ps_stream_is_remote(stream)) {
        return ps_stream_in_capture(stream);
    }
    ps_status status = ps_stream_query_quietly(stream);
    return status == PS_ERROR_NOT_READY || status == PS_ERROR_CAPTURED_EVENT;
}
