/* Events.  An event gets its native event at the first record, on the
 * device of that stream, and keeps it until the last reference is dropped.
 *
 * Records are counted.  `completed` is the value of `recorded` when the event
 * was last found done, so while the two are equal the event is known to be
 * done without a query. */
#ifndef PYSTREAMS_CORE_EVENT_H
#define PYSTREAMS_CORE_EVENT_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "status.h"

/* A flag of core's own, in addition to those of the contract: each launch of a
 * graph executes the captured records and waits. */
enum { PS_EVENT_EXTERNAL = 1 << 8 };

struct ps_device;
struct ps_ipc;
struct ps_runtime;
struct ps_stream;

struct ps_event {
    atomic_uint refs;
    unsigned generation;
    atomic_uint flags;
    /* Created by core for its own use, and not traced. */
    bool internal;
    /* Whether it has PS_EVENT_EXTERNAL: graphs record the event, so its state
     * is unknown without a query. */
    bool external;
    /* Whether the latest record was captured, and so never completes. */
    atomic_bool captured;
    struct ps_runtime *runtime;
    /* The only device that may record it; NULL for any.  Constant once other
     * threads see the event. */
    struct ps_device *home;
    /* NULL and 0 until created, then fixed; the handle is published last. */
    struct ps_device *_Atomic device;
    _Atomic ps_handle handle;
    atomic_ullong recorded;
    atomic_ullong completed;
    /* The identity of the stream of the latest record.  For a shared or
     * external event, which others may have recorded since, a value that is no
     * stream's. */
    _Atomic ps_handle source;
    /* Its interprocess handle; NULL until exported or opened. */
    struct ps_ipc *_Atomic ipc;
};

ps_status ps_event_create(struct ps_runtime *runtime, unsigned flags,
                          struct ps_event **event);
struct ps_event *ps_event_ref(struct ps_event *event);

/* Accepts NULL.  As ps_stream_unref. */
ps_status ps_event_unref(struct ps_event *event);

/* The two halves of ps_event_unref.  ps_event_let_go answers.  If it returns
 * false, the native event has to be destroyed: call ps_event_finish, which may
 * block. */
bool ps_event_let_go(struct ps_event *event);
ps_status ps_event_finish(struct ps_event *event);

/* Create the native event of an event that has none, on the device.  May
 * block.  PS_ERROR_INVALID_DEVICE for a device other than its home. */
ps_status ps_event_make(struct ps_event *event, struct ps_device *device);

/* As ps_event_make, unless the event has a native event. */
static inline ps_status
ps_event_bind(struct ps_event *event, struct ps_device *device)
{
    return atomic_load_explicit(&event->handle, memory_order_acquire) != 0
               ? PS_SUCCESS
               : ps_event_make(event, device);
}

/* Bind the event to a native event from the pool of the stream's device.
 * False, with nothing done, if the pool is empty, the event is bound, or its
 * home is another device.  Answers. */
bool ps_event_bind_pooled(struct ps_event *event, struct ps_stream *stream);

/* Make the handle the native event of an event that has none.  False if
 * another thread has given it one meanwhile. */
bool ps_event_adopt(struct ps_event *event, struct ps_device *device,
                    ps_handle handle);

/* A native event of the device for one record and the waits for it, from the
 * pool or new, and its return.  traced: as the creation and the deletion of an
 * event.  May block; a failure to destroy it is stored for
 * ps_runtime_take_failure. */
ps_status
ps_native_event_take(struct ps_device *device, bool traced, ps_handle *handle);
void
ps_native_event_give(struct ps_device *device, bool traced, ps_handle handle);

/* Enqueues; may block while the event has no handle.  PS_ERROR_INVALID_DEVICE
 * when the event is bound to another device than the stream's. */
ps_status ps_event_record(struct ps_event *event, struct ps_stream *stream);

/* PS_SUCCESS when never recorded.  Answers. */
ps_status ps_event_query(struct ps_event *event);

/* The member event_synchronize, untraced; returns at once when never
 * recorded. */
ps_status
ps_event_synchronize(struct ps_event *event, const struct ps_limit *limit);

/* As ps_event_synchronize, but traced, if the latest record is known to be
 * done; else PS_ERROR_NOT_KNOWN, with nothing done.  Answers. */
ps_status ps_event_synchronize_known(struct ps_event *event);

/* Milliseconds between two recorded events of one device. */
ps_status ps_event_elapsed(struct ps_event *start, struct ps_event *end,
                           float *milliseconds);

/* The interprocess handle of an event that was made with
 * PS_EVENT_INTERPROCESS; creates its native event on the device if there is
 * none.  For an event that was opened, the handle by which it was opened.
 * Lives as long as the event.  May block.  PS_ERROR_NOT_SUPPORTED if the
 * backend has no such events, PS_ERROR_FOREIGN for an event of an ancestor. */
ps_status ps_event_export(struct ps_event *event, struct ps_device *device,
                          const unsigned char **handle);

/* Open an event of another process; see event_open.  May block.
 * PS_ERROR_OWN_HANDLE, PS_ERROR_NOT_SUPPORTED. */
ps_status ps_event_open(struct ps_device *device,
                        const unsigned char handle[PS_IPC_HANDLE_BYTES],
                        struct ps_event **event);

/* Keep the event for the captures in progress; see ps_capture_keep. */
ps_status ps_event_keep(struct ps_event *event);

/* Whether a record or wait of this event on the stream is captured as a node
 * that each launch of the graph executes. */
bool ps_event_is_external_on(struct ps_event *event, struct ps_stream *stream);

/* Whether other processes may record the event, so that the counts here are
 * not reliable. */
static inline bool
ps_event_is_shared(struct ps_event *event)
{
    return (event->flags & PS_EVENT_INTERPROCESS) &&
           atomic_load_explicit(&event->handle, memory_order_acquire) != 0;
}

/* Whether no query is needed, because there is no record or a query has found
 * the latest one done. */
static inline bool
ps_event_known_done(struct ps_event *event)
{
    return atomic_load_explicit(&event->completed, memory_order_acquire) ==
               atomic_load_explicit(&event->recorded, memory_order_acquire) &&
           !ps_event_is_shared(event);
}

#endif
