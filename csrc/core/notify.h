/* Notifications: a callback reports the completion of work, so no thread has
 * to wait for it. */
#ifndef PYSTREAMS_CORE_NOTIFY_H
#define PYSTREAMS_CORE_NOTIFY_H

#include <pystreams/backend.h>

#include <stdbool.h>

struct ps_device;
struct ps_event;
struct ps_stream;

/* A notification and its device.  See struct ps_notification for who owns its
 * memory.  `device` is written before the backend is called, and is constant
 * from then on. */
struct ps_registration {
    struct ps_notification notification;
    struct ps_device *device;
    /* Whether the notification is for all work of the device.  Core reports
     * these itself. */
    bool of_device;
};

/* Register through the members stream_notify and event_notify.  Statuses:
 * PS_ERROR_FOREIGN, PS_ERROR_NOT_SUPPORTED; PS_ERROR_CAPTURE_UNSUPPORTED if
 * the stream, and PS_ERROR_CAPTURED_EVENT if the event, is known to be
 * captured.  ps_event_notify may block. */
ps_status ps_stream_notify(struct ps_stream *stream,
                           struct ps_registration *registration);
ps_status
ps_event_notify(struct ps_event *event, struct ps_registration *registration);

/* Notify when all work that the device has now is done.  Works with every
 * backend, since a thread of core waits for the device. */
ps_status ps_device_notify(struct ps_device *device,
                           struct ps_registration *registration);

/* Return and clear a failure of the device's work that no notification has
 * reported, because all notifications for it were cancelled.  PS_SUCCESS if
 * there is none. */
ps_status ps_device_take_failure(struct ps_device *device);

/* Cancel through the member notify_cancel.  Never blocks. */
ps_status ps_notify_cancel(struct ps_registration *registration);

/* Called in a forked child, which has no thread that reports completions. */
void ps_notify_reset_in_child(void);

#endif
