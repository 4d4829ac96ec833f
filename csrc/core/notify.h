/* Notifications: completion is reported by a callback; no thread waits. */
#ifndef PYSTREAMS_CORE_NOTIFY_H
#define PYSTREAMS_CORE_NOTIFY_H

#include <pystreams/backend.h>

#include <stdbool.h>

struct ps_device;
struct ps_event;
struct ps_stream;

/* A notification and the device with which it is registered; see struct
 * ps_notification for the owner of its memory.  The device is written before
 * the backend is called, and is constant then. */
struct ps_registration {
    struct ps_notification notification;
    struct ps_device *device;
    /* Whether it is for all work of the device, which core itself reports. */
    bool of_device;
};

/* The members stream_notify and event_notify.  PS_ERROR_FOREIGN,
 * PS_ERROR_NOT_SUPPORTED, and PS_ERROR_CAPTURE_UNSUPPORTED or
 * PS_ERROR_CAPTURED_EVENT if the stream or event is known to be captured.  The
 * latter may block. */
ps_status ps_stream_notify(struct ps_stream *stream,
                           struct ps_registration *registration);
ps_status
ps_event_notify(struct ps_event *event, struct ps_registration *registration);

/* Likewise, for all work that the device has now.  One thread per device waits
 * for it, so every backend can do this. */
ps_status ps_device_notify(struct ps_device *device,
                           struct ps_registration *registration);

/* Return and clear a failure that was found for cancelled notifications, or
 * PS_SUCCESS. */
ps_status ps_device_take_failure(struct ps_device *device);

/* The member notify_cancel.  Answers. */
ps_status ps_notify_cancel(struct ps_registration *registration);

/* In a forked child: no thread reports completions. */
void ps_notify_reset_in_child(void);

#endif
