/* Notifications and gates.  The pending notifications for a stream are in a
 * ring of the stream, in the order of their tickets.  The pending
 * notifications for an event are in a ring of the event's record.
 * Notifications are not in a stream's queue, but gates are.  A gate is queued
 * as a CPU_ENTER_GATE operation.  This operation calls the gate's function,
 * and then becomes a wait for a record that belongs to no event.  Opening the
 * gate completes that record.
 *
 * A thread that opens a gate, or queues one on an idle stream, executes the
 * stream's next cheap operations itself.  So no switch to another thread is
 * needed between one gate and the next. */
#include "engine.h"

/* ---- Notifications ---- */

/* Call the notification's function at once.  The lock is released during the
 * call. */
static ps_status
notify_at_once(struct cpu_engine *engine, struct ps_notification *notification,
               ps_status outcome)
{
    notification->ring = NULL;
    cpu_unlock(engine);
    notification->reached(notification->argument, outcome);
    cpu_lock(engine);
    return PS_SUCCESS;
}

static ps_status
cpu_stream_notify(const struct ps_backend *backend, int device,
                  ps_handle handle, struct ps_notification *notification)
{
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    if (stream->capture != NULL) {
        return PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    if (engine->phase >= CPU_STOPPING) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    ps_status status = cpu_stream_order_locked(stream);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (stream->first == NULL) {
        return notify_at_once(engine, notification, stream->status);
    }
    notification->number = engine->tickets;
    ps_notification_append(&stream->notifications, notification);
    return PS_SUCCESS;
}

static ps_status
cpu_event_notify(const struct ps_backend *backend, int device,
                 ps_handle handle, struct ps_notification *notification)
{
    CPU_ENTER(engine, backend);
    struct cpu_record *record;
    ps_status status =
        cpu_event_record_locked(engine, device, handle, &record);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (engine->phase >= CPU_STOPPING) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    if (record->done) {
        return notify_at_once(engine, notification, record->status);
    }
    /* The record stays alive, because the operation or the poller that will
     * complete it holds a reference to it. */
    ps_notification_append(&record->notifications, notification);
    return PS_SUCCESS;
}

static ps_status
cpu_notify_cancel(const struct ps_backend *backend, int device,
                  struct ps_notification *notification)
{
    CPU_ENTER(engine, backend);
    (void)device;
    if (notification->ring == NULL) {
        return PS_ERROR_TOO_LATE;
    }
    ps_notification_remove(notification);
    return PS_SUCCESS;
}

/* ---- Gates ---- */

static ps_status
gate_queue_locked(struct cpu_stream *stream, struct cpu_operation *operation,
                  ps_handle *gate)
{
    struct cpu_engine *engine = stream->engine;
    ps_status status = cpu_stream_order_locked(stream);
    if (status != PS_SUCCESS) {
        return status;
    }
    struct cpu_record *record = cpu_item_take_locked(engine);
    struct cpu_slot *slot =
        cpu_slot_take_locked(engine, CPU_GATE, stream->device);
    status = PS_ERROR_OUT_OF_MEMORY;
    if (record != NULL && slot != NULL) {
        *record = (struct cpu_record){.refs = 1, .source = stream};
        slot->object = record;
        *gate = slot->handle;
        operation->record = record;
        status = cpu_stream_enqueue_locked(stream, operation);
    }
    if (status == PS_SUCCESS) {
        cpu_note_locked(engine, PS_NOTE_CALLABLE, engine->tickets);
    }
    if (status != PS_SUCCESS && slot != NULL) {
        cpu_slot_give_locked(engine, slot);
    }
    if (status != PS_SUCCESS && record != NULL) {
        cpu_item_give_locked(engine, record);
    }
    return status;
}

static ps_status
cpu_stream_gate(const struct ps_backend *backend, int device, ps_handle handle,
                ps_notification_function reached, void *argument,
                ps_handle *gate)
{
    struct cpu_operation operation = {
        .kind = CPU_ENTER_GATE,
        .gate = {.reached = reached, .argument = argument},
    };
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    return stream == NULL ? PS_ERROR_INVALID_HANDLE
           : stream->capture != NULL
               ? PS_ERROR_CAPTURE_UNSUPPORTED
               : gate_queue_locked(stream, &operation, gate);
}

static ps_status
cpu_gate_open(const struct ps_backend *backend, int device, ps_handle handle)
{
    CPU_ENTER(engine, backend);
    struct cpu_slot *gate =
        cpu_slot_find_locked(engine, CPU_GATE, device, handle);
    if (gate == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    struct cpu_record *record = gate->object;
    struct cpu_stream *stream = cpu_list_take(&record->parked);
    if (record->entered) {
        engine->driver->opened_locked(engine);
    }
    cpu_slot_give_locked(engine, gate);
    cpu_record_complete_locked(engine, record, PS_SUCCESS);
    cpu_record_unref_locked(engine, record);
    if (stream != NULL && cpu_stream_help_locked(stream)) {
        cpu_engine_help_locked(engine);
    }
    return PS_SUCCESS;
}

void
cpu_notify_members(struct ps_backend *table)
{
    table->stream_notify = cpu_stream_notify;
    table->event_notify = cpu_event_notify;
    table->notify_cancel = cpu_notify_cancel;
    table->stream_gate = cpu_stream_gate;
    table->gate_open = cpu_gate_open;
}
