/* Notifications: to be told when work is done, without waiting for it. */
#ifndef PYSTREAMS_CORE_NOTIFY_H
#define PYSTREAMS_CORE_NOTIFY_H

#include <pystreams/backend.h>

struct ps_device;
struct ps_event;
struct ps_stream;

/* Call notify(argument, status) once, on any thread, when the work that the
 * stream has now is done; see stream_gate.  PS_ERROR_NOT_READY: its queue is
 * full.  PS_ERROR_NOT_SUPPORTED where the backend has no gates.  Enqueues. */
ps_status ps_stream_notify(struct ps_stream *stream, ps_notification notify,
                           void *argument);

/* Likewise, when the event's record in effect is done, which may be now.  May
 * block. */
ps_status ps_event_notify(struct ps_event *event, ps_notification notify,
                          void *argument);

/* Likewise, when all that the device has now is done.  A thread is made that
 * waits for it, so any backend will do. */
ps_status ps_device_notify(struct ps_device *device, ps_notification notify,
                           void *argument);

/* Call before a device is waited for, which would tell of what the watches of
 * its events came to, too.  May block. */
ps_status ps_device_forget_watches(struct ps_device *device);

#endif
