/* Notifications: those that are to come are in rings, of a stream by its
 * tickets or of a record, and take no place in a queue.  What is due moves to
 * the engine's ring, and is called with no lock held by one thread at a time,
 * the one that lets go of the lock next: so the order is that in which the
 * work was done, and no notification runs within another. */
#include "engine.h"

/* ---- Those that are due ---- */

static void
make_due_locked(struct cpu_engine *engine,
                struct ps_notification *notification, ps_status status)
{
    ps_notification_remove(notification);
    notification->status = status;
    ps_notification_append(&engine->due, notification);
}

void
cpu_notify_reached_locked(struct cpu_stream *stream, uint64_t ticket)
{
    while (stream->notifications != NULL &&
           stream->notifications->next->number <= ticket) {
        make_due_locked(stream->engine, stream->notifications->next,
                        stream->status);
    }
}

void
cpu_notify_done_locked(struct cpu_engine *engine, struct cpu_record *record)
{
    while (record->notifications != NULL) {
        make_due_locked(engine, record->notifications->next, record->status);
    }
}

bool
cpu_notify_due_locked(struct cpu_engine *engine)
{
    static const struct cpu_stream notifying;
    unsigned forks = cpu_forks;
    engine->notifying = true;
    engine->running++;
    while (engine->phase == CPU_OPEN && engine->due != NULL) {
        struct ps_notification *notification = engine->due->next;
        ps_notification_function reached = notification->reached;
        void *argument = notification->argument;
        ps_status status = notification->status;
        ps_notification_remove(notification);
        cpu_release(engine);
        pthread_setspecific(cpu_serving_key, &notifying);
        reached(argument, status);
        if (cpu_forks != forks) {
            return false;
        }
        pthread_setspecific(cpu_serving_key, NULL);
        cpu_lock(engine);
    }
    engine->notifying = false;
    cpu_engine_leave_locked(engine);
    return true;
}

/* ---- Members ---- */

static ps_status
cpu_stream_notify(const struct ps_backend *backend, int device,
                  ps_handle handle, struct ps_notification *notification)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_SUCCESS, outcome = PS_ERROR_NOT_READY;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL) {
        status = PS_ERROR_INVALID_HANDLE;
    }
    else if (stream->capture != NULL) {
        status = PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    else if (engine->phase != CPU_OPEN) {
        status = PS_ERROR_SHUTTING_DOWN;
    }
    else if (stream->first == NULL) {
        outcome = stream->status;
        notification->ring = NULL;
    }
    else {
        notification->number = engine->tickets;
        ps_notification_append(&stream->notifications, notification);
    }
    cpu_unlock(engine);
    if (status == PS_SUCCESS && outcome != PS_ERROR_NOT_READY) {
        notification->reached(notification->argument, outcome);
    }
    return status;
}

static ps_status
cpu_notify_cancel(const struct ps_backend *backend, int device,
                  struct ps_notification *notification)
{
    (void)device;
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    bool pending = notification->ring != NULL;
    if (pending) {
        ps_notification_remove(notification);
    }
    cpu_unlock(engine);
    return pending ? PS_SUCCESS : PS_ERROR_NOT_READY;
}

void
cpu_notify_members(struct ps_backend *table)
{
    table->stream_notify = cpu_stream_notify;
    table->notify_cancel = cpu_notify_cancel;
}
