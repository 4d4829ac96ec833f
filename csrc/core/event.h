/* Events.  A native event is an event of the backend, and is identified by a
 * handle.  A struct ps_event has no native event until one is needed, which is
 * usually at its first record.  That record creates a native event on the
 * device of the recording stream.  The ps_event keeps this native event until
 * the last reference to the ps_event is dropped.
 *
 * `recorded` is the number of records so far.  `completed` is the value that
 * `recorded` had when the event was last found done.  So while the two are
 * equal, the latest record is done, and no query is needed. */
#ifndef PYSTREAMS_CORE_EVENT_H
#define PYSTREAMS_CORE_EVENT_H

#include <pystreams/backend.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "status.h"

/* The flag of an external event.  Core never passes the flag to a backend.  If
 * a record of an external event or a wait for it is captured, this record or
 * wait becomes a graph node, which each launch of the graph executes. */
enum { PS_EVENT_EXTERNAL = 1 << 8 };

struct ps_device;
struct ps_ipc;
struct ps_runtime;
struct ps_stream;

struct ps_event {
    atomic_uint refs;
    unsigned generation;
    atomic_uint flags;
    /* Whether core created the event for its own use.  The trace hook is not
     * called for such an event. */
    bool internal;
    /* Whether the event has PS_EVENT_EXTERNAL.  Graph launches may record such
     * an event without core's knowledge.  `recorded` does not count these
     * records, so only a query can tell whether the event is done. */
    bool external;
    /* Whether the latest record was captured.  A captured record never
     * completes. */
    atomic_bool captured;
    struct ps_runtime *runtime;
    /* The only device whose streams may record the event, or NULL if the
     * streams of every device may record it.  Constant once other threads see
     * the event. */
    struct ps_device *home;
    /* The native event's device and handle.  They are NULL and 0 until the
     * native event is created, and constant afterwards.  The handle is written
     * last, so a thread that reads a handle other than 0 also sees the
     * device. */
    struct ps_device *_Atomic device;
    _Atomic ps_handle handle;
    atomic_ullong recorded;
    atomic_ullong completed;
    /* The identity of the stream on which the event was last recorded.  For an
     * interprocess or external event, core does not know that stream, because
     * other processes or graph launches may record the event.  In such an
     * event, `source` is the address of this struct, which is no stream's
     * identity. */
    _Atomic ps_handle source;
    /* The interprocess handle.  NULL in an event that was neither exported nor
     * opened from another process. */
    struct ps_ipc *_Atomic ipc;
};

ps_status ps_event_create(struct ps_runtime *runtime, unsigned flags,
                          struct ps_event **event);
struct ps_event *ps_event_ref(struct ps_event *event);

/* Drop a reference; accepts NULL.  Dropping the last one may block.  Returns
 * the status of the clean-up; even after a failure, the reference is gone. */
ps_status ps_event_unref(struct ps_event *event);

/* ps_event_unref in two steps.  Call ps_event_let_go, which never blocks.  If
 * it returns false, the native event must still be destroyed: call
 * ps_event_finish, which may block. */
bool ps_event_let_go(struct ps_event *event);
ps_status ps_event_finish(struct ps_event *event);

/* Create the native event on the device, unless the event already has a native
 * event.  May block.  Returns PS_ERROR_INVALID_DEVICE if the event's home is
 * another device. */
ps_status ps_event_make(struct ps_event *event, struct ps_device *device);

/* A fast form of ps_event_make, for the common case that the event already has
 * a native event. */
static inline ps_status
ps_event_bind(struct ps_event *event, struct ps_device *device)
{
    return atomic_load_explicit(&event->handle, memory_order_acquire) != 0
               ? PS_SUCCESS
               : ps_event_make(event, device);
}

/* Give the event a native event from the pool of the stream's device.  Returns
 * false, and changes nothing, if the pool is empty, if the event has a native
 * event already, or if its home is another device.  Never blocks. */
bool ps_event_bind_pooled(struct ps_event *event, struct ps_stream *stream);

/* Store the handle, and the device to which it belongs, as the event's native
 * event.  Returns false, and stores nothing, if another thread has given the
 * event a native event in the meantime. */
bool ps_event_adopt(struct ps_event *event, struct ps_device *device,
                    ps_handle handle);

/* ps_native_event_take gets a native event from the device's pool, or creates
 * one if the pool is empty.  The caller uses it for one record and for waits
 * for that record, and then calls ps_native_event_give, which puts it into the
 * pool or destroys it.  If `traced` is true, the first function reports the
 * creation of an event to the trace hook, and the second one reports the
 * deletion.  Both may block.  If destroying the event fails, the status is
 * stored for ps_runtime_take_failure. */
ps_status
ps_native_event_take(struct ps_device *device, bool traced, ps_handle *handle);
void
ps_native_event_give(struct ps_device *device, bool traced, ps_handle handle);

/* Record the event on the stream.  Enqueues (see backend.h), but may block if
 * the event has no native event yet.  Returns PS_ERROR_INVALID_DEVICE if the
 * native event and the stream are on different devices. */
ps_status ps_event_record(struct ps_event *event, struct ps_stream *stream);

/* Returns PS_SUCCESS if the event was never recorded or its latest record is
 * done, and PS_ERROR_NOT_READY while the record is pending.  Never blocks. */
ps_status ps_event_query(struct ps_event *event);

/* Wait for the event with the backend's event_synchronize.  Returns at once if
 * the event was never recorded.  Calls no trace hook. */
ps_status
ps_event_synchronize(struct ps_event *event, const struct ps_limit *limit);

/* Synchronize with the event, if this is possible without a call to the
 * backend.  If the latest record is known to be done, calls the trace hook and
 * returns PS_SUCCESS.  If the event was never recorded, only returns
 * PS_SUCCESS.  Otherwise does nothing and returns PS_ERROR_NOT_KNOWN.  Never
 * blocks. */
ps_status ps_event_synchronize_known(struct ps_event *event);

/* Get the time in milliseconds between the latest records of two events of the
 * same device. */
ps_status ps_event_elapsed(struct ps_event *start, struct ps_event *end,
                           float *milliseconds);

/* Get the interprocess handle of an event that was created with
 * PS_EVENT_INTERPROCESS.  Creates the native event on the device if the event
 * has none.  For an event that was opened, *handle is the handle with which it
 * was opened.  *handle stays valid as long as the event exists.  May block.
 * Returns PS_ERROR_NOT_SUPPORTED if the backend has no interprocess events,
 * and PS_ERROR_FOREIGN if the event was created before this process was
 * forked. */
ps_status ps_event_export(struct ps_event *event, struct ps_device *device,
                          const unsigned char **handle);

/* Open an event of another process by its interprocess handle; see event_open
 * in backend.h.  May block.  Returns PS_ERROR_OWN_HANDLE if this process
 * exported the handle, and PS_ERROR_NOT_SUPPORTED if the backend has no
 * interprocess events. */
ps_status ps_event_open(struct ps_device *device,
                        const unsigned char handle[PS_IPC_HANDLE_BYTES],
                        struct ps_event **event);

/* Add the event to the objects that the captures in progress keep alive; see
 * ps_capture_keep. */
ps_status ps_event_keep(struct ps_event *event);

/* Returns true if the event has PS_EVENT_EXTERNAL and the stream is being
 * captured.  Then a record of the event on the stream, or a wait for it,
 * becomes a graph node that each launch executes. */
bool ps_event_is_external_on(struct ps_event *event, struct ps_stream *stream);

/* Returns whether other processes may record the event.  If so, `recorded` and
 * `completed` are not reliable, because they count the records of this process
 * only. */
static inline bool
ps_event_is_shared(struct ps_event *event)
{
    return (event->flags & PS_EVENT_INTERPROCESS) &&
           atomic_load_explicit(&event->handle, memory_order_acquire) != 0;
}

/* Returns whether it is known, without a query, that the event is done.  This
 * is so if the event was never recorded, or if its latest record was already
 * found done. */
static inline bool
ps_event_known_done(struct ps_event *event)
{
    return atomic_load_explicit(&event->completed, memory_order_acquire) ==
               atomic_load_explicit(&event->recorded, memory_order_acquire) &&
           !ps_event_is_shared(event);
}

#endif
