/* Notifications.  Core passes the notifications for streams and events to the
 * backend, unless it knows already that the event is done.  The notifications
 * for a whole device are core's own: a thread calls device_synchronize
 * repeatedly while notifications for the device are pending.  When such a call
 * returns, the thread reports the notifications that were registered before
 * the call began. */
#include "notify.h"

#include <pthread.h>
#include <signal.h>

#include "capture.h"
#include "event.h"
#include "lock.h"
#include "runtime.h"
#include "stream.h"

ps_status
ps_stream_notify(struct ps_stream *stream,
                 struct ps_registration *registration)
{
    struct ps_device *device = stream->device;
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (device->runtime->backend->stream_notify == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    ps_status status = ps_capture_refuse(stream);
    if (status != PS_SUCCESS) {
        return status;
    }
    registration->device = device;
    return PS_CALL(device, stream_notify, stream->handle,
                   &registration->notification);
}

ps_status
ps_event_notify(struct ps_event *event, struct ps_registration *registration)
{
    if (event->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (atomic_load_explicit(&event->captured, memory_order_relaxed)) {
        return PS_ERROR_CAPTURED_EVENT;
    }
    if (ps_event_known_done(event)) {
        registration->notification.reached(registration->notification.argument,
                                           PS_SUCCESS);
        return PS_SUCCESS;
    }
    if (event->runtime->backend->event_notify == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    /* Read the device only now: it is not NULL, because the event has been
     * recorded. */
    struct ps_device *device = registration->device =
        atomic_load(&event->device);
    return PS_CALL(device, event_notify, atomic_load(&event->handle),
                   &registration->notification);
}

/* ---- Devices ---- */

/* Guards the rings and flags of all devices.  Held for a few instructions. */
static pthread_mutex_t devices_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Report `status`, or an earlier failure that was not reported yet, to the
 * notifications with numbers up to `number`.  Returns whether more
 * notifications are pending.  If it returns false, the thread must end.  If
 * the work has failed but all notifications for it were cancelled, stores the
 * failure for ps_device_take_failure. */
static bool
report(struct ps_device *device, uint64_t number, ps_status status)
{
    struct ps_notification *first;
    pthread_mutex_lock(&devices_mutex);
    if (status != PS_ERROR_CAPTURE_UNSUPPORTED) {
        status = ps_first_failure(device->unreported, status);
        device->unreported = status;
    }
    while (device->notifications != NULL &&
           (first = device->notifications->next)->number <= number) {
        ps_notification_function reached = first->reached;
        void *argument = first->argument;
        ps_notification_remove(first);
        if (status == device->unreported) {
            device->unreported = PS_SUCCESS;
        }
        pthread_mutex_unlock(&devices_mutex);
        reached(argument, status);
        pthread_mutex_lock(&devices_mutex);
    }
    device->notifying = device->notifications != NULL;
    bool more = device->notifying;
    pthread_mutex_unlock(&devices_mutex);
    return more;
}

static uint64_t
latest_number(struct ps_device *device)
{
    PS_HOLD(&devices_mutex);
    return device->notified;
}

static void *
notify_main(void *argument)
{
    struct ps_device *device = argument;
    const struct ps_backend *backend = device->runtime->registered;
    uint64_t number;
    ps_status status;
    do {
        number = latest_number(device);
        status = ps_capture_refuse_device(device);
        if (status == PS_SUCCESS) {
            status = backend->device_synchronize(backend, device->index, NULL);
        }
    } while (report(device, number, status));
    return NULL;
}

/* Start the device's thread unless it is running already.  Returns false if no
 * thread can be started. */
static bool
start_locked(struct ps_device *device)
{
    sigset_t all, before;
    pthread_t thread;
    if (device->notifying) {
        return true;
    }
    /* The new thread must not run the program's signal handlers, so it
     * inherits a mask that blocks all signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, notify_main, device);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        pthread_detach(thread);
    }
    device->notifying = error == 0;
    return device->notifying;
}

ps_status
ps_device_notify(struct ps_device *device,
                 struct ps_registration *registration)
{
    ps_status status = ps_capture_refuse_device(device);
    if (status != PS_SUCCESS) {
        return status;
    }
    registration->device = device;
    registration->of_device = true;
    PS_HOLD(&devices_mutex);
    if (start_locked(device)) {
        registration->notification.number = ++device->notified;
        ps_notification_append(&device->notifications,
                               &registration->notification);
    }
    else {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    return status;
}

ps_status
ps_device_take_failure(struct ps_device *device)
{
    PS_HOLD(&devices_mutex);
    ps_status status = device->unreported;
    device->unreported = PS_SUCCESS;
    return status;
}

bool
ps_device_is_notifying(struct ps_device *device)
{
    PS_HOLD(&devices_mutex);
    return device->notifying;
}

void
ps_notify_reset_in_child(void)
{
    pthread_mutex_init(&devices_mutex, NULL);
}

ps_status
ps_notify_cancel(struct ps_registration *registration)
{
    struct ps_device *device = registration->device;
    if (!registration->of_device) {
        return PS_CALL(device, notify_cancel, &registration->notification);
    }
    PS_HOLD(&devices_mutex);
    bool pending = registration->notification.ring != NULL;
    if (pending) {
        ps_notification_remove(&registration->notification);
    }
    return pending ? PS_SUCCESS : PS_ERROR_TOO_LATE;
}
