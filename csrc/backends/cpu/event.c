/* Events and their records.  Each record call makes a record of its own, so
 * that a wait means the record in effect at the wait, whatever the event
 * stands for later; a record is reused once only its event knows it. */
#include "engine.h"

#include <stdlib.h>

struct cpu_event {
    int device;                /* constant */
    unsigned flags;            /* constant */
    struct cpu_record *latest; /* a reference; NULL if never recorded */
};

void
cpu_record_unref_locked(struct cpu_engine *engine, struct cpu_record *record)
{
    if (--record->refs == 0)
        cpu_pool_give_locked(&engine->records, record);
}

void
cpu_record_complete_locked(struct cpu_engine *engine,
                           struct cpu_record *record, ps_status status)
{
    record->done = true;
    record->status = status;
    record->time = record->timed ? engine->clock->now(engine) : 0;
    if (record->refs == 1)
        return;
    struct cpu_stream *stream;
    while ((stream = cpu_list_take(&record->parked)))
        cpu_stream_ready_locked(stream);
    cpu_wake_locked(engine, record, 1);
}

static struct cpu_event *
event_find_locked(struct cpu_engine *engine, int device, ps_handle handle)
{
    struct cpu_event *event =
        cpu_handle_find_locked(engine, CPU_EVENT, handle);
    return event && event->device == device ? event : NULL;
}

/* Lock the engine and find the event; NULL, and nothing locked, if there is
 * no such event on the device. */
static struct cpu_event *
event_lock(const struct ps_backend *backend, int device, ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_event *event = event_find_locked(engine, device, handle);
    if (!event)
        cpu_unlock(engine);
    return event;
}

static ps_status
cpu_event_create(const struct ps_backend *backend, int device, unsigned flags,
                 ps_handle *handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    if (flags & PS_EVENT_INTERPROCESS)
        return PS_ERROR_NOT_SUPPORTED;
    struct cpu_event *event = malloc(sizeof(*event));
    if (!event)
        return PS_ERROR_OUT_OF_MEMORY;
    *event = (struct cpu_event){.device = device, .flags = flags};
    cpu_lock(engine);
    ps_handle made = cpu_handle_create_locked(engine, CPU_EVENT, event);
    cpu_unlock(engine);
    if (!made) {
        free(event);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *handle = made;
    return PS_SUCCESS;
}

static ps_status
cpu_event_destroy(const struct ps_backend *backend, int device,
                  ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_event *event = event_lock(backend, device, handle);
    if (!event)
        return PS_ERROR_INVALID_HANDLE;
    cpu_handle_destroy_locked(engine, handle);
    if (event->latest)
        cpu_record_unref_locked(engine, event->latest);
    cpu_unlock(engine);
    free(event);
    return PS_SUCCESS;
}

/* Put the record in the place of the event's latest. */
static void
event_adopt_locked(struct cpu_engine *engine, struct cpu_event *event,
                   struct cpu_record *record)
{
    if (record != event->latest) {
        if (event->latest)
            cpu_record_unref_locked(engine, event->latest);
        event->latest = record;
    }
    *record = (struct cpu_record){
        .refs = 1,
        .timed = event->flags & PS_EVENT_TIMING,
    };
}

static ps_status
event_record_locked(struct cpu_engine *engine, struct cpu_event *event,
                    struct cpu_stream *stream)
{
    struct cpu_record *record = event->latest;
    if (!record || record->refs > 1)
        record = cpu_pool_take_locked(&engine->records);
    if (!record)
        return PS_ERROR_OUT_OF_MEMORY;
    if (stream->state == CPU_IDLE) {
        event_adopt_locked(engine, event, record);
        cpu_record_complete_locked(engine, record, stream->status);
        return PS_SUCCESS;
    }
    struct cpu_operation operation = {.kind = CPU_RECORD, .record = record};
    ps_status status = cpu_stream_append_locked(stream, &operation);
    if (!status) {
        event_adopt_locked(engine, event, record);
        record->refs++;
    }
    else if (record != event->latest) {
        cpu_pool_give_locked(&engine->records, record);
    }
    return status;
}

static ps_status
cpu_event_record(const struct ps_backend *backend, int device,
                 ps_handle event_handle, ps_handle stream_handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_event *event = event_find_locked(engine, device, event_handle);
    struct cpu_stream *stream =
        cpu_stream_find_locked(engine, device, stream_handle);
    if (event && stream)
        status = event_record_locked(engine, event, stream);
    cpu_unlock(engine);
    return status;
}

static ps_status
stream_wait_record_locked(struct cpu_stream *stream, struct cpu_record *record)
{
    if (!record || (record->done && !record->status))
        return PS_SUCCESS;
    if (record->done && stream->state == CPU_IDLE) {
        cpu_stream_fail_locked(stream, record->status);
        return PS_SUCCESS;
    }
    struct cpu_operation wait = {.kind = CPU_WAIT, .record = record};
    ps_status status = cpu_stream_append_locked(stream, &wait);
    if (!status)
        record->refs++;
    return status;
}

static ps_status
cpu_stream_wait_event(const struct ps_backend *backend, int device,
                      ps_handle stream_handle, ps_handle event_handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream =
        cpu_stream_find_locked(engine, device, stream_handle);
    struct cpu_event *event =
        cpu_handle_find_locked(engine, CPU_EVENT, event_handle);
    if (stream && event)
        status = stream_wait_record_locked(stream, event->latest);
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_event_query(const struct ps_backend *backend, int device, ps_handle handle)
{
    struct cpu_event *event = event_lock(backend, device, handle);
    if (!event)
        return PS_ERROR_INVALID_HANDLE;
    ps_status status = PS_SUCCESS;
    if (event->latest)
        status =
            event->latest->done ? event->latest->status : PS_ERROR_NOT_READY;
    cpu_unlock(cpu_engine_of(backend));
    return status;
}

static ps_status
cpu_event_synchronize(const struct ps_backend *backend, int device,
                      ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_event *event = event_lock(backend, device, handle);
    if (!event)
        return PS_ERROR_INVALID_HANDLE;
    ps_status status = PS_SUCCESS;
    struct cpu_record *record = event->latest;
    if (record) {
        record->refs++;
        if (!record->done)
            status = cpu_wait_locked(engine, record, 1, CPU_FOREVER);
        if (!status)
            status = record->status;
        cpu_record_unref_locked(engine, record);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
elapsed_locked(const struct cpu_event *start, const struct cpu_event *end,
               float *milliseconds)
{
    if (!start || !end || !(start->flags & end->flags & PS_EVENT_TIMING) ||
        !start->latest || !end->latest)
        return PS_ERROR_INVALID_HANDLE;
    const struct cpu_record *from = start->latest, *to = end->latest;
    if (!from->done || !to->done)
        return PS_ERROR_NOT_READY;
    if (from->status || to->status)
        return from->status ? from->status : to->status;
    *milliseconds = (float)((double)(to->time - from->time) / 1e6);
    return PS_SUCCESS;
}

static ps_status
cpu_event_elapsed(const struct ps_backend *backend, int device,
                  ps_handle start, ps_handle end, float *milliseconds)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    ps_status status =
        elapsed_locked(event_find_locked(engine, device, start),
                       event_find_locked(engine, device, end), milliseconds);
    cpu_unlock(engine);
    return status;
}

void
cpu_event_members(struct ps_backend *table)
{
    table->event_create = cpu_event_create;
    table->event_destroy = cpu_event_destroy;
    table->event_record = cpu_event_record;
    table->stream_wait_event = cpu_stream_wait_event;
    table->event_query = cpu_event_query;
    table->event_synchronize = cpu_event_synchronize;
    table->event_elapsed = cpu_event_elapsed;
}
