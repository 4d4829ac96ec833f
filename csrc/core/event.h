/* Events.  An event has no native event until its first record.  That creates
 * one, on the device of the recording stream, and the event keeps it until its
 * last reference is dropped.
 *
 * `recorded` counts the records.  `completed` is a copy of `recorded` that was
 * taken when the event was last found done.  While the two are equal, the
 * event is known to be done without a query. */
#ifndef PYSTREAMS_CORE_EVENT_H
#define PYSTREAMS_CORE_EVENT_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "status.h"

/* A flag that only core knows, in addition to the flags of the contract: each
 * launch of a graph executes the captured records and waits of the event. */
enum { PS_EVENT_EXTERNAL = 1 << 8 };

struct ps_device;
struct ps_ipc;
struct ps_runtime;
struct ps_stream;

struct ps_event {
    atomic_uint refs;
    unsigned generation;
    atomic_uint flags;
    /* Core created the event for its own use; it is not traced. */
    bool internal;
    /* Whether the event has PS_EVENT_EXTERNAL.  Graph launches may record it
     * without core's knowledge, so only a query finds its state. */
    bool external;
    /* Whether the latest record was captured.  A captured record never
     * completes. */
    atomic_bool captured;
    struct ps_runtime *runtime;
    /* The only device that may record the event; NULL for any.  Constant once
     * other threads see the event. */
    struct ps_device *home;
    /* The native event: NULL and 0 until it is created, then constant.  The
     * handle is written last, so a thread that reads a handle also sees the
     * device. */
    struct ps_device *_Atomic device;
    _Atomic ps_handle handle;
    atomic_ullong recorded;
    atomic_ullong completed;
    /* The identity of the stream of the latest record.  Other processes and
     * graph launches may record a shared or external event without core's
     * knowledge, so for these the value is the event's address, which
     * identifies no stream. */
    _Atomic ps_handle source;
    /* The interprocess handle; NULL until the event is exported or opened. */
    struct ps_ipc *_Atomic ipc;
};

ps_status ps_event_create(struct ps_runtime *runtime, unsigned flags,
                          struct ps_event **event);
struct ps_event *ps_event_ref(struct ps_event *event);

/* Accepts NULL.  Dropping the last reference may block.  Returns the status of
 * the clean-up; the event is gone in any case. */
ps_status ps_event_unref(struct ps_event *event);

/* The two halves of ps_event_unref.  ps_event_let_go never blocks.  If it
 * returns false, the native event must be destroyed: call ps_event_finish,
 * which may block. */
bool ps_event_let_go(struct ps_event *event);
ps_status ps_event_finish(struct ps_event *event);

/* Create the native event on the device, if the event has none.  May block.
 * Returns PS_ERROR_INVALID_DEVICE if the event's home is another device. */
ps_status ps_event_make(struct ps_event *event, struct ps_device *device);

/* As ps_event_make, unless the event has a native event. */
static inline ps_status
ps_event_bind(struct ps_event *event, struct ps_device *device)
{
    return atomic_load_explicit(&event->handle, memory_order_acquire) != 0
               ? PS_SUCCESS
               : ps_event_make(event, device);
}

/* Take the native event from the pool of the stream's device.  Returns false,
 * and changes nothing, if the pool is empty, if the event has a native event
 * already, or if its home is another device.  Never blocks. */
bool ps_event_bind_pooled(struct ps_event *event, struct ps_stream *stream);

/* Make the handle the event's native event.  Returns false if another thread
 * has given the event a native event in the meantime. */
bool ps_event_adopt(struct ps_event *event, struct ps_device *device,
                    ps_handle handle);

/* Take a native event of the device, from the pool or new, for one record and
 * the waits for it; and give it back.  With `traced`, the trace reports these
 * as the creation and deletion of an event.  May block.  If destroying it
 * fails, the status is stored for ps_runtime_take_failure. */
ps_status
ps_native_event_take(struct ps_device *device, bool traced, ps_handle *handle);
void
ps_native_event_give(struct ps_device *device, bool traced, ps_handle handle);

/* Record the event on the stream.  Enqueues; may block while the event has no
 * native event.  Returns PS_ERROR_INVALID_DEVICE if the native event is on
 * another device than the stream. */
ps_status ps_event_record(struct ps_event *event, struct ps_stream *stream);

/* Returns PS_SUCCESS if the event was never recorded or its latest record is
 * done, and PS_ERROR_NOT_READY while the record is pending.  Never blocks. */
ps_status ps_event_query(struct ps_event *event);

/* Wait through the member event_synchronize.  Returns at once if the event was
 * never recorded.  Not traced. */
ps_status
ps_event_synchronize(struct ps_event *event, const struct ps_limit *limit);

/* If the latest record is known to be done, trace a synchronization and return
 * PS_SUCCESS.  Otherwise return PS_ERROR_NOT_KNOWN and do nothing.  Never
 * blocks. */
ps_status ps_event_synchronize_known(struct ps_event *event);

/* The milliseconds between two recorded events of one device. */
ps_status ps_event_elapsed(struct ps_event *start, struct ps_event *end,
                           float *milliseconds);

/* Get the interprocess handle of an event that was created with
 * PS_EVENT_INTERPROCESS.  Creates the native event on the device if there is
 * none.  For an opened event, returns the handle that it was opened by.  The
 * handle's memory lives as long as the event.  May block.  Returns
 * PS_ERROR_NOT_SUPPORTED if the backend has no interprocess events,
 * PS_ERROR_FOREIGN if the event was created before this process was forked. */
ps_status ps_event_export(struct ps_event *event, struct ps_device *device,
                          const unsigned char **handle);

/* Open an event of another process by its handle; see event_open.  May block.
 * Statuses: PS_ERROR_OWN_HANDLE, PS_ERROR_NOT_SUPPORTED. */
ps_status ps_event_open(struct ps_device *device,
                        const unsigned char handle[PS_IPC_HANDLE_BYTES],
                        struct ps_event **event);

/* Add the event to the objects that the captures in progress keep alive; see
 * ps_capture_keep. */
ps_status ps_event_keep(struct ps_event *event);

/* Returns whether a record or wait of this event, if it is queued on the
 * stream now, becomes a graph node that each launch executes. */
bool ps_event_is_external_on(struct ps_event *event, struct ps_stream *stream);

/* Returns whether other processes may record the event.  Then the counters in
 * this process miss records and are not reliable. */
static inline bool
ps_event_is_shared(struct ps_event *event)
{
    return (event->flags & PS_EVENT_INTERPROCESS) &&
           atomic_load_explicit(&event->handle, memory_order_acquire) != 0;
}

/* Returns whether the event is known to be done without a query: it was never
 * recorded, or a query has already found the latest record done. */
static inline bool
ps_event_known_done(struct ps_event *event)
{
    return atomic_load_explicit(&event->completed, memory_order_acquire) ==
               atomic_load_explicit(&event->recorded, memory_order_acquire) &&
           !ps_event_is_shared(event);
}

#endif
