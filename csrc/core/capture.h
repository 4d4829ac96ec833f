/* Captures in progress.  This file tells which streams are being captured, and
 * keeps alive the objects that captured work uses.
 *
 * The rule: core's own housekeeping (clean-up that the program did not ask
 * for) invalidates no capture on any thread, and never queries a stream that
 * is being captured. */
#ifndef PYSTREAMS_CORE_CAPTURE_H
#define PYSTREAMS_CORE_CAPTURE_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "stream.h"

struct ps_device;
struct ps_runtime;

/* An object that a graph keeps alive, with its reference count and the
 * function that drops one reference to it. */
struct ps_kept {
    void *object;
    atomic_uint *refs;
    ps_status (*drop)(void *object);
};

/* An array of the objects that captured work uses.  It holds a reference to
 * each object, so that the objects stay alive as long as the graph's work may
 * run. */
struct ps_keep {
    struct ps_kept *items;
    size_t count;
};

/* A capture in progress, begun by ps_graph_capture_begin. */
struct ps_capture {
    struct ps_device *device;
    struct ps_keep keep;
    LIST_ENTRY(ps_capture) neighbours;
};

/* The number of captures in progress. */
extern atomic_int ps_captures;

void ps_capture_add(struct ps_capture *capture);
void ps_capture_remove(struct ps_capture *capture);

/* Called in a forked child: empties the list of captures in progress. */
void ps_captures_reset_in_child(void);

/* Returns whether the stream is being captured, by this library or by another
 * one in the process.  Also returns true for a default stream that serializes
 * with a captured stream.  Never blocks. */
__attribute__((cold)) bool ps_stream_in_capture(struct ps_stream *stream);

/* A fast form of ps_stream_in_capture.  While this library captures nothing,
 * the function only reads a counter and returns false.  So it may miss
 * captures that another library began. */
static inline bool
ps_stream_is_captured(struct ps_stream *stream)
{
    return atomic_load_explicit(&ps_captures, memory_order_relaxed) != 0 &&
           ps_stream_in_capture(stream);
}

/* Returns PS_ERROR_CAPTURE_UNSUPPORTED if ps_stream_is_captured returns true,
 * else PS_SUCCESS.  Check this before calling a member of the backend that
 * would invalidate the capture. */
static inline ps_status
ps_capture_refuse(struct ps_stream *stream)
{
    return ps_stream_is_captured(stream) ? PS_ERROR_CAPTURE_UNSUPPORTED
                                         : PS_SUCCESS;
}

/* Returns PS_ERROR_CAPTURE_UNSUPPORTED if a capture that this library began on
 * a stream of the device is still in progress, else PS_SUCCESS. */
ps_status ps_capture_refuse_device(struct ps_device *device);

/* Add the object to all captures of the runtime that are in progress, because
 * core does not know which of them captures the work that uses the object. */
ps_status
ps_capture_keep(struct ps_runtime *runtime, const struct ps_kept *item);

/* Like ps_capture_keep, but add the object only to this capture. */
ps_status
ps_capture_keep_in(struct ps_capture *capture, const struct ps_kept *item);

/* Add the object to the array and take a reference to it, unless the array
 * already contains the object. */
ps_status ps_keep_add(struct ps_keep *keep, const struct ps_kept *item);

/* Drop the references to all objects, and empty the array.  Returns the first
 * failure of a drop function. */
ps_status ps_keep_drop(struct ps_keep *keep);

/* Set the calling thread's capture mode, and return the previous one.  Core's
 * own housekeeping runs in PS_CAPTURE_RELAXED, in which its calls invalidate
 * no capture. */
enum ps_capture_mode
ps_capture_mode_swap(struct ps_runtime *runtime, enum ps_capture_mode mode);

#endif
