/* Copies and fills: the stream-ordered operations of `Buffer`.
 *
 * If a call does not wait for the work that it queues, it marks the blocks as
 * used by the stream, so that no block is reused before the work is done.
 * During the call itself, the caller has references to the blocks. */
#include "transfer.h"

#include <stdlib.h>

#include "../backends/backends.h"
#include "../core/capture.h"
#include "../core/thread_stream.h"
#include "../core/work.h"

#include "args.h"
#include "buffer.h"
#include "captured.h"
#include "current.h"
#include "enqueue.h"
#include "errors.h"
#include "event.h"
#include "races.h"
#include "stream.h"
#include "submit.h"
#include "timeline.h"
#include "wait.h"

/* An operation on a stream, and the blocks to mark as used by the stream.  A
 * fill has no source.  A copy between two backends has neither block, because
 * the call itself waits for the copy. */
struct transfer {
    struct ps_stream *stream;
    struct ps_block *destination;
    struct ps_block *source;
};

static struct ps_device *
device_of(struct span *span)
{
    return span->block->device;
}

static void
end_use(struct transfer *transfer)
{
    if (transfer->destination != NULL) {
        ps_block_use_end(transfer->destination, transfer->stream);
    }
    if (transfer->source != NULL) {
        ps_block_use_end(transfer->source, transfer->stream);
    }
}

/* Mark the transfer's blocks as used by its stream.  After success, the caller
 * must call end_use. */
static ps_status
begin_use(struct transfer *transfer)
{
    ps_status status = PS_SUCCESS;
    if (transfer->destination != NULL) {
        status = ps_block_use_begin(transfer->destination, transfer->stream);
    }
    if (status == PS_SUCCESS && transfer->source != NULL) {
        status = ps_block_use_begin(transfer->source, transfer->stream);
        if (status != PS_SUCCESS && transfer->destination != NULL) {
            ps_block_use_end(transfer->destination, transfer->stream);
        }
    }
    return status;
}

/* Queue a copy.  wait: whether the caller will wait for the copy, so that the
 * blocks need not be marked.  copy() and fill() are called with the GIL
 * released. */
static ps_status
copy(struct transfer *transfer, void *destination, const void *source,
     size_t nbytes, bool wait)
{
    ps_status status = wait ? PS_SUCCESS : begin_use(transfer);
    if (status != PS_SUCCESS) {
        return status;
    }
    status = ps_stream_copy(transfer->stream, destination, source, nbytes);
    if (!wait) {
        end_use(transfer);
    }
    return status;
}

static ps_status
fill(struct transfer *transfer, void *destination,
     const struct pattern *pattern, size_t nbytes)
{
    ps_status status = begin_use(transfer);
    if (status == PS_SUCCESS) {
        status = ps_stream_fill(transfer->stream, destination, pattern->value,
                                (size_t)pattern->size, nbytes);
        end_use(transfer);
    }
    return status;
}

static bool
is_pageable(struct span *span)
{
    return span->foreign && span->block->host && !span->block->pinned;
}

/* Check that the caller can wait for a copy on the stream.  It cannot if the
 * stream is being captured, or if the wait would be a deadlock.  On failure,
 * returns -1 with an exception. */
static int
check_may_wait_for_copy(const struct work *work, bool own, bool captured)
{
    if (check_may_wait(work) < 0) {
        return -1;
    }
    return zero_or_raise_on(
        work->stream,
        own ? "a copy that is waited for (copy_() and copy_to() with "
              "non_blocking=True are not)"
            : "a copy of another backend's memory, which is waited for (a "
              "Buffer of pin_memory=True, with non_blocking=True, needs no "
              "wait)",
        captured ? PS_ERROR_CAPTURE_UNSUPPORTED : PS_SUCCESS);
}

static int
imply_event_wait(struct ps_stream *stream, struct ps_event *event)
{
    imply_begin();
    int result = event_wait_on(event, stream, "Stream.wait_stream");
    imply_end();
    return result;
}

/* Whether a call waits for the copy that it queues. */
enum waiting {
    NEVER,
    ALWAYS,
    /* Always, unless the copy is captured.  A captured copy accesses the
     * memory at each replay, and the graph keeps the memory alive. */
    UNCAPTURED,
};

/* Returns a Buffer for a span that the caller holds. */
static PyObject *
wrap_held(struct span span)
{
    ps_block_ref(span.block);
    return buffer_wrap(&span);
}

/* Capture a copy from or to pageable memory in two steps, through pinned
 * memory.  Otherwise the backend would access the pageable memory as soon as
 * the graph is launched, without waiting for the work before the copy. */
static int
capture_staged(struct ps_stream *stream, struct span *to, struct span *from)
{
    bool writes = is_pageable(to);
    return drop_result(import_call(
        "pystreams._staging", writes ? "copy_to" : "copy_from", "(NNN)",
        wrap_held(writes ? *to : *from), wrap_held(writes ? *from : *to),
        stream_wrap(NULL, ps_stream_ref(stream))));
}

/* Returns whether a wait that returned this status may have left its copy
 * pending.  This is so if a signal handler or a deadlock has ended the wait,
 * or if a capture of the stream that began after the copy was queued has
 * prevented it. */
static bool
may_be_pending(ps_status status)
{
    return status == PS_RAISED || (status >= PS_ERROR_CAPTURE_UNSUPPORTED &&
                                   status <= PS_ERROR_CAPTURE_WRONG_THREAD);
}

/* Keep the memory of a copy that may still be pending.  Called with the GIL
 * released. */
static void
keep_pending(struct transfer *transfer, struct span *to, struct span *from)
{
    bool own = device_of(to)->runtime == device_of(from)->runtime;
    if (own && !ps_stream_is_captured(transfer->stream) &&
        begin_use(transfer) == PS_SUCCESS) {
        end_use(transfer);
        return;
    }
    /* Marking the blocks as used by the stream would keep alive only the block
     * of the stream's own backend, and during a capture only until the graph
     * is reset.  So take a reference to each block, and never drop it. */
    ps_block_ref(to->block);
    ps_block_ref(from->block);
}

static int
run_copy(struct transfer *transfer, struct span *to, struct span *from,
         enum waiting waiting)
{
    struct work work = {
        .operation = "a copy",
        .device = transfer->stream->device,
        .stream = transfer->stream,
        .implied = true,
    };
    ps_status status;
    bool own = device_of(to)->runtime == device_of(from)->runtime;
    bool captured = false;
    if (waiting != NEVER) {
        CALL_BACKEND(work.device->runtime,
                     captured = ps_stream_is_captured(transfer->stream));
    }
    bool wait = waiting == ALWAYS || (waiting == UNCAPTURED && !captured);
    if (captured && waiting == UNCAPTURED && to->nbytes > 0 &&
        !(device_of(to)->runtime->backend->flags & PS_BACKEND_HOST_MEMORY)) {
        return capture_staged(transfer->stream, to, from);
    }
    if (wait && check_may_wait_for_copy(&work, own, captured) < 0) {
        return -1;
    }
    if (wait) {
        imply_begin();
    }
    bool recorded = timeline_copy_begin(to->block, from->block);
    ENQUEUE_WITHOUT_GIL(
        status, transfer->stream,
        copy(transfer, to->data, from->data, (size_t)to->nbytes, wait));
    if (recorded) {
        timeline_copy_end();
    }
    imply_end();
    if (status == PS_SUCCESS && wait) {
        status = wait_for_work(&work, NO_TIMEOUT);
        if (may_be_pending(status)) {
            WITHOUT_GIL(keep_pending(transfer, to, from));
        }
        else if (status == PS_SUCCESS && check_captured(&work) < 0) {
            status = PS_RAISED;
        }
    }
    return zero_or_raise_on(transfer->stream, "a copy", status);
}

int
span_check_stream(const char *method, struct span *span,
                  struct ps_stream *stream)
{
    struct ps_runtime *runtime = device_of(span)->runtime;
    if (stream == NULL || stream->device->runtime == runtime) {
        return 0;
    }
    if (check_emulations(method, "memory", runtime, "stream",
                         stream->device->runtime) < 0) {
        return -1;
    }
    return refuse(PyExc_ValueError,
                  "%s() expects a stream of %s for stream, but got one of %s",
                  method, runtime->backend->name,
                  stream->device->runtime->backend->name);
}

/* Returns a new reference to the stream for work on a span: `given` or, if
 * that is NULL, the current stream of the span's device.  On failure, returns
 * NULL with an exception. */
static struct ps_stream *
work_stream(struct span *span, struct ps_stream *given)
{
    return given != NULL ? ps_stream_ref(given)
                         : current_stream_of(device_of(span));
}

/* Run a copy on the stream `given` or, if that is NULL, on the current stream
 * of the leader's device.  `transfer` has the blocks to mark, but no stream
 * yet. */
static int
copy_on(const char *method, struct span *leader, struct ps_stream *given,
        struct transfer transfer, struct span *to, struct span *from,
        enum waiting waiting)
{
    if (span_check_stream(method, leader, given) < 0) {
        return -1;
    }
    transfer.stream = work_stream(leader, given);
    if (transfer.stream == NULL) {
        return -1;
    }
    int result = run_copy(&transfer, to, from, waiting);
    stream_release(transfer.stream);
    return result;
}

/* Copy between the memory of two backends.  One side must be host memory.  The
 * copy runs on the backend of the other side, which does not know which
 * streams use the host memory.  So wait for those streams first, and then for
 * the copy. */
static int
copy_between_backends(const char *method, struct span *to, struct span *from,
                      struct ps_stream *given)
{
    struct span *host = from->block->host ? from : to;
    struct span *other = host == from ? to : from;
    if (!host->block->host) {
        if (check_emulations(method, "destination", device_of(to)->runtime,
                             "source", device_of(from)->runtime) < 0) {
            return -1;
        }
        return refuse(PyExc_NotImplementedError,
                      "no copy from %s to %s device memory",
                      device_of(from)->runtime->backend->name,
                      device_of(to)->runtime->backend->name);
    }
    if (span_settle(host, NULL) < 0) {
        return -1;
    }
    struct transfer transfer = {NULL};
    return copy_on(method, other, given, transfer, to, from, ALWAYS);
}

/* Copy between devices as torch does: on the source device's current stream,
 * and ordered with the destination device's current stream. */
static int
copy_between_devices(struct span *to, struct span *from, enum waiting waiting)
{
    struct ps_stream *theirs = work_stream(from, NULL);
    struct ps_stream *ours = theirs != NULL ? work_stream(to, NULL) : NULL;
    struct transfer transfer = {theirs, to->block, from->block};
    int result = ours != NULL ? stream_imply_wait(theirs, ours) : -1;
    if (result == 0) {
        result = run_copy(&transfer, to, from, waiting);
    }
    if (result == 0) {
        result = stream_imply_wait(ours, theirs);
    }
    stream_release(ours);
    stream_release(theirs);
    return result;
}

/* Check the two sides of a copy before anything is queued.  On failure,
 * returns -1 with an exception. */
static int
check(struct span *to, struct span *from)
{
    if (to->block->read_only) {
        return refuse(PyExc_ValueError,
                      "the destination of the copy is read-only");
    }
    if (to->nbytes != from->nbytes) {
        return refuse(PyExc_ValueError,
                      "a copy needs two sides of one size, but the source has "
                      "%zd bytes and the destination %zd",
                      from->nbytes, to->nbytes);
    }
    bool comparable = device_of(to)->runtime == device_of(from)->runtime ||
                      (to->block->host && from->block->host);
    if (comparable && to->data < from->data + from->nbytes &&
        from->data < to->data + to->nbytes) {
        return refuse(PyExc_ValueError,
                      "the source and the destination of the copy overlap");
    }
    return 0;
}

int
span_copy(const char *method, struct span *to, struct span *from,
          struct ps_stream *stream, bool non_blocking)
{
    if (check(to, from) < 0) {
        return -1;
    }
    if (device_of(to)->runtime != device_of(from)->runtime) {
        return copy_between_backends(method, to, from, stream);
    }
    bool host = to->block->host || from->block->host;
    enum waiting waiting = !non_blocking && (host || to->foreign) ? ALWAYS
                           : is_pageable(to) || is_pageable(from) ? UNCAPTURED
                                                                  : NEVER;
    bool pinned = to->block->pinned || from->block->pinned;
    if (device_of(from) != device_of(to) && !pinned && stream == NULL) {
        return copy_between_devices(to, from, waiting);
    }
    /* Pinned memory belongs to no particular device, so the other side decides
     * on which device the copy runs. */
    struct span *leader = from->block->pinned ? to : from;
    struct transfer transfer = {NULL, to->block, from->block};
    return copy_on(method, leader, stream, transfer, to, from, waiting);
}

int
span_fill(const char *method, struct span *span, const struct pattern *pattern,
          struct ps_stream *given)
{
    if (span->block->read_only) {
        return refuse(PyExc_ValueError, "the Buffer is read-only");
    }
    if (span->nbytes % pattern->size != 0 ||
        (uintptr_t)span->data % (uintptr_t)pattern->size != 0) {
        struct handle_text text = handle_text((ps_handle)span->data);
        return refuse(PyExc_ValueError,
                      "%s() expects a Buffer whose size and address are "
                      "multiples of %zd for a value of %zd bytes, but it has "
                      "%zd bytes at %s",
                      method, pattern->size, pattern->size, span->nbytes,
                      text.chars);
    }
    if (span_check_stream(method, span, given) < 0) {
        return -1;
    }
    struct ps_stream *stream = work_stream(span, given);
    ps_status status;
    if (stream == NULL) {
        return -1;
    }
    struct transfer transfer = {stream, span->block, NULL};
    ENQUEUE_WITHOUT_GIL(
        status, stream,
        fill(&transfer, span->data, pattern, (size_t)span->nbytes));
    int result = zero_or_raise_on(stream, "a fill", status);
    stream_release(stream);
    return result;
}

/* Make `stream` wait for the work of the stream `user`.  If `stream` is NULL,
 * the calling thread waits instead.  The program has not asked for this wait;
 * see imply_begin.  If `user` is another thread's default stream, waits only
 * for work with Buffers that this package has queued on it. */
static int
wait_for(struct ps_stream *user, struct ps_stream *stream)
{
    struct work work = {
        .operation = "waiting for a Buffer's work",
        .device = user->device,
        .implied = true,
    };
    if (stream == user) {
        return 0;
    }
    if (ps_thread_stream_latest(user, &work.event) != PS_SUCCESS) {
        return refuse(PyExc_RuntimeError,
                      "a Buffer's work is on %s, whose queue was full, or "
                      "which ended in a capture: record an event there, and "
                      "wait for that",
                      ps_stream_name(user));
    }
    if (stream != NULL) {
        return work.event != NULL ? imply_event_wait(stream, work.event)
                                  : stream_imply_wait(stream, user);
    }
    if (is_own_stream(user)) {
        /* There is nothing to wait for.  This thread runs a callable of the
         * stream `user`, so the stream's work before the callable is done. */
        return 0;
    }
    work.stream = work.event != NULL ? NULL : user;
    ps_status status = wait_for_work(&work, NO_TIMEOUT);
    return status == PS_SUCCESS
               ? check_captured(&work)
               : zero_or_raise_on(user, work.operation, status);
}

int
span_settle(struct span *span, struct ps_stream *stream)
{
    struct ps_stream *current = work_stream(span, NULL);
    struct ps_stream **users;
    size_t count;
    if (current == NULL) {
        return -1;
    }
    ps_status status = ps_block_streams(span->block, false, &users, &count);
    if (status != PS_SUCCESS) {
        stream_release(current);
        return zero_or_raise(device_of(span)->runtime,
                             "finding a Buffer's work", status);
    }
    int result = wait_for(current, stream);
    stream_release(current);
    for (size_t i = 0; i < count; i++) {
        if (result == 0) {
            result = wait_for(users[i], stream);
        }
        stream_release(users[i]);
    }
    free(users);
    return result;
}
