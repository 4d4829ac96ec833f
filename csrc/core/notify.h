/* Notifications: callbacks that report the completion of work, so that the
 * caller need not wait for it. */
#ifndef PYSTREAMS_CORE_NOTIFY_H
#define PYSTREAMS_CORE_NOTIFY_H

#include <pystreams/backend.h>

#include <stdbool.h>

struct ps_device;
struct ps_event;
struct ps_stream;

/* A notification and its device.  See struct ps_notification in backend.h for
 * who owns its memory.  `device` is written before the backend is called, and
 * is constant afterwards. */
struct ps_registration {
    struct ps_notification notification;
    struct ps_device *device;
    /* Whether ps_device_notify registered the notification.  If so, core calls
     * its callback, and the backend does not know of it. */
    bool of_device;
};

/* Register a notification for the stream's work so far, or for the event's
 * latest record, with the backend's stream_notify or event_notify.  If the
 * event is known to be done, ps_event_notify calls the callback itself.
 * Statuses: PS_ERROR_FOREIGN, PS_ERROR_NOT_SUPPORTED;
 * PS_ERROR_CAPTURE_UNSUPPORTED if the stream is known to be captured;
 * PS_ERROR_CAPTURED_EVENT if the event's latest record was captured.
 * ps_event_notify may block. */
ps_status ps_stream_notify(struct ps_stream *stream,
                           struct ps_registration *registration);
ps_status
ps_event_notify(struct ps_event *event, struct ps_registration *registration);

/* Register a notification for all work that the device has now.  Works with
 * every backend, since a thread of core waits for the device and then calls
 * the callback. */
ps_status ps_device_notify(struct ps_device *device,
                           struct ps_registration *registration);

/* If the device's work has failed, and no notification reported the failure
 * because all of them were cancelled, return and clear this failure.  Returns
 * PS_SUCCESS if there is no such failure. */
ps_status ps_device_take_failure(struct ps_device *device);

/* Returns whether the thread that ps_device_notify has started for the device
 * is running.  The thread runs while notifications are pending, and may still
 * be waiting for the device after they were cancelled. */
bool ps_device_is_notifying(struct ps_device *device);

/* Cancel the notification.  Returns the same statuses as the backend's
 * notify_cancel.  Never blocks. */
ps_status ps_notify_cancel(struct ps_registration *registration);

/* Called in a forked child: initializes the mutex again.  The parent's threads
 * that waited for devices do not exist in the child. */
void ps_notify_reset_in_child(void);

#endif
