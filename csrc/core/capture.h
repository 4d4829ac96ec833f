/* Captures in progress: the streams whose work they record, and the objects
 * that this work uses.
 *
 * The rule: core's own housekeeping disturbs no capture on any thread, and
 * never queries a stream that is being captured. */
#ifndef PYSTREAMS_CORE_CAPTURE_H
#define PYSTREAMS_CORE_CAPTURE_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "stream.h"

struct ps_device;
struct ps_runtime;

/* An object, the count of its references, and how to drop one. */
struct ps_kept {
    void *object;
    atomic_uint *refs;
    ps_status (*drop)(void *object);
};

/* The objects that captured work uses.  They must live as long as the graph
 * may run. */
struct ps_keep {
    struct ps_kept *items;
    size_t count;
};

/* A capture that ps_graph_capture_begin began. */
struct ps_capture {
    struct ps_device *device;
    struct ps_keep keep;
    LIST_ENTRY(ps_capture) neighbours;
};

/* The number of captures in progress. */
extern atomic_int ps_captures;

void ps_capture_add(struct ps_capture *capture);
void ps_capture_remove(struct ps_capture *capture);

/* In a forked child: no capture is in progress. */
void ps_captures_reset_in_child(void);

/* Whether the stream is being captured, by this library or another.
 * Answers. */
__attribute__((cold)) bool ps_stream_in_capture(struct ps_stream *stream);

/* Whether the stream is in a capture that ps_graph_capture_begin began; costs
 * nothing while there is none. */
static inline bool
ps_stream_is_captured(struct ps_stream *stream)
{
    return atomic_load_explicit(&ps_captures, memory_order_relaxed) != 0 &&
           ps_stream_in_capture(stream);
}

/* PS_ERROR_CAPTURE_UNSUPPORTED for a stream that is being captured.  Check
 * before a call of the backend that would end the capture. */
static inline ps_status
ps_capture_refuse(struct ps_stream *stream)
{
    return ps_stream_is_captured(stream) ? PS_ERROR_CAPTURE_UNSUPPORTED
                                         : PS_SUCCESS;
}

/* Likewise, for a device with a stream that is being captured. */
ps_status ps_capture_refuse_device(struct ps_device *device);

/* Add the object to all captures of the runtime that are in progress, since it
 * is not known which of them records the work. */
ps_status
ps_capture_keep(struct ps_runtime *runtime, const struct ps_kept *item);

/* Likewise, to this capture. */
ps_status
ps_capture_keep_in(struct ps_capture *capture, const struct ps_kept *item);

/* Add the object unless it is there. */
ps_status ps_keep_add(struct ps_keep *keep, const struct ps_kept *item);

/* Drop the references. */
ps_status ps_keep_drop(struct ps_keep *keep);

/* Set the calling thread's capture mode, and return the previous one: core's
 * own housekeeping is done in PS_CAPTURE_RELAXED. */
enum ps_capture_mode
ps_capture_mode_swap(struct ps_runtime *runtime, enum ps_capture_mode mode);

#endif
