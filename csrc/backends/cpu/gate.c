/* Gates: a call that reports that the stream has come to it and, behind it, a
 * wait for a record that no event stands for.  The thread that lets a stream
 * go on, by opening its gate or by queueing one on it while it is idle, does
 * what is next on it, so that gate follows gate without a change of threads.
 */
#include "engine.h"

static ps_status
gate_queue_locked(struct cpu_stream *stream, struct cpu_operation *operation,
                  ps_handle *gate)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_record *record = cpu_item_take_locked(engine);
    struct cpu_slot *slot =
        cpu_slot_take_locked(engine, CPU_GATE, stream->device);
    ps_status status = PS_ERROR_OUT_OF_MEMORY;
    if (record != NULL && slot != NULL) {
        *record = (struct cpu_record){.refs = 1};
        slot->object = record;
        *gate = slot->handle;
        operation->record = record;
        status = cpu_stream_enqueue_locked(stream, operation);
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
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_operation operation = {
        .kind = CPU_ENTER_GATE,
        .gate = {reached, argument},
    };
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        status = gate_queue_locked(stream, &operation, gate);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_gate_open(const struct ps_backend *backend, int device, ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_slot *gate =
        cpu_slot_find_locked(engine, CPU_GATE, device, handle);
    if (gate != NULL) {
        struct cpu_record *record = gate->object;
        struct cpu_stream *stream = cpu_list_take(&record->parked);
        cpu_slot_give_locked(engine, gate);
        cpu_record_complete_locked(engine, record, PS_SUCCESS);
        cpu_record_unref_locked(engine, record);
        if (stream != NULL && (!cpu_stream_help_locked(stream) ||
                               !cpu_engine_help_locked(engine))) {
            cpu_lock(engine);
        }
    }
    cpu_unlock(engine);
    return gate != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

void
cpu_gate_members(struct ps_backend *table)
{
    table->stream_gate = cpu_stream_gate;
    table->gate_open = cpu_gate_open;
}
