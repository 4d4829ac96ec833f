/* Events and their records.  An event is a slot that holds the event's latest
 * record.  Each call to event_record creates a new record, except when at most
 * the event's time changes (see record_done).  A wait refers to the record
 * that was the latest when the wait was queued.  So the wait is not affected
 * if the event is recorded again. */
#include "shared.h"

static struct cpu_slot *
event_find_locked(struct cpu_engine *engine, int device, ps_handle handle)
{
    return cpu_slot_find_locked(engine, CPU_EVENT, device, handle);
}

/* Call this when the event's latest record is done.  If the event is in a
 * state that CPU_DONE or CPU_TIMED describes, store that in its slot. */
static void
event_know_locked(struct cpu_engine *engine, struct cpu_slot *event)
{
    const struct cpu_record *record = event->object;
    if (event->known == CPU_UNKNOWN && record->status == PS_SUCCESS &&
        record->time >= 0 && event->shared == NULL && !cpu_is_lazy(engine)) {
        atomic_store_explicit(
            &event->known, record->timed ? CPU_TIMED + record->time : CPU_DONE,
            memory_order_release);
    }
}

/* Create an event.  `shared` is NULL unless the event is an interprocess
 * event.  This takes over `shared`, even on failure. */
static ps_status
event_add_locked(struct cpu_engine *engine, int device, unsigned flags,
                 struct cpu_shared *shared, ps_handle *handle)
{
    struct cpu_record *record = NULL;
    struct cpu_slot *event = cpu_slot_take_locked(engine, CPU_EVENT, device);
    if (event != NULL && (record = cpu_item_take_locked(engine)) == NULL) {
        cpu_slot_give_locked(engine, event);
    }
    if (record == NULL) {
        if (shared != NULL) {
            cpu_shared_close_locked(shared);
        }
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *record = (struct cpu_record){
        .refs = 1,
        .timed = flags & PS_EVENT_TIMING,
        .done = true,
        .time = -1,
    };
    event->object = record;
    event->shared = shared;
    *handle = event->handle;
    return PS_SUCCESS;
}

/* Create an interprocess event if `exported` is NULL.  Otherwise open an event
 * that another process has created.  `exported` is then the interprocess
 * handle of that event. */
static ps_status
shared_add_locked(struct cpu_engine *engine, int device, unsigned flags,
                  const unsigned char *exported, ps_handle *handle)
{
    struct cpu_shared *shared;
    if (cpu_is_lazy(engine)) {
        return PS_ERROR_SCHEDULED;
    }
    ps_status status =
        cpu_shared_make_locked(engine, device, exported, &shared);
    return status == PS_SUCCESS
               ? event_add_locked(engine, device, flags, shared, handle)
               : status;
}

static ps_status
cpu_event_create(const struct ps_backend *backend, int device, unsigned flags,
                 ps_handle *handle)
{
    CPU_ENTER(engine, backend);
    return flags & PS_EVENT_INTERPROCESS
               ? shared_add_locked(engine, device, flags, NULL, handle)
               : event_add_locked(engine, device, flags, NULL, handle);
}

static ps_status
cpu_event_export(const struct ps_backend *backend, int device,
                 ps_handle handle, unsigned char exported[PS_IPC_HANDLE_BYTES])
{
    CPU_ENTER(engine, backend);
    struct cpu_slot *event = event_find_locked(engine, device, handle);
    if (event == NULL || event->shared == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    cpu_shared_export_locked(event->shared, exported);
    return PS_SUCCESS;
}

static ps_status
cpu_event_open(const struct ps_backend *backend, int device,
               const unsigned char exported[PS_IPC_HANDLE_BYTES],
               ps_handle *handle)
{
    CPU_ENTER(engine, backend);
    return shared_add_locked(engine, device, PS_EVENT_INTERPROCESS, exported,
                             handle);
}

static ps_status
cpu_event_destroy(const struct ps_backend *backend, int device,
                  ps_handle handle)
{
    CPU_ENTER(engine, backend);
    struct cpu_slot *event = event_find_locked(engine, device, handle);
    if (event == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    cpu_record_unref_locked(engine, event->object);
    if (event->shared != NULL) {
        cpu_shared_close_locked(event->shared);
    }
    cpu_slot_give_locked(engine, event);
    return PS_SUCCESS;
}

static ps_status
event_record_locked(struct cpu_engine *engine, struct cpu_slot *event,
                    struct cpu_stream *stream)
{
    struct cpu_record *latest = event->object;
    if (event->shared != NULL && cpu_is_lazy(engine)) {
        return PS_ERROR_SCHEDULED;
    }
    ps_status status = cpu_stream_order_locked(stream);
    if (status != PS_SUCCESS) {
        return status;
    }
    cpu_event_forget_locked(event);
    struct cpu_record *record = cpu_item_take_locked(engine);
    if (record == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *record = (struct cpu_record){
        .refs = 1,
        .timed = latest->timed,
        .source = stream,
    };
    if (stream->capture != NULL) {
        status = cpu_capture_record_locked(stream, record);
    }
    else if (stream->first == NULL && !cpu_is_lazy(engine)) {
        cpu_record_complete_locked(engine, record, stream->status);
    }
    else {
        if (event->shared != NULL) {
            status = cpu_promise_make_locked(engine, event->shared, record);
        }
        if (status == PS_SUCCESS) {
            status = cpu_stream_enqueue_locked(
                stream,
                &(struct cpu_operation){.kind = CPU_RECORD, .record = record});
        }
    }
    if (status == PS_SUCCESS) {
        if (event->shared != NULL && record->capture == 0) {
            cpu_shared_publish_locked(event->shared, record);
        }
        event->object = record;
        if (record->done) {
            event_know_locked(engine, event);
            cpu_stream_know_locked(stream);
        }
        record = latest;
    }
    cpu_record_unref_locked(engine, record);
    return status;
}

/* Store the present time as the time of an event that is known to be done.
 * `known` is the value that the caller has read from the event's slot.
 * Returns false if the slot has another value by now. */
static bool
event_stamp(struct cpu_engine *engine, ps_handle event, int64_t known)
{
    return atomic_compare_exchange_strong_explicit(
        &cpu_slot_at(engine, event)->known, &known,
        CPU_TIMED + cpu_monotonic_clock.now(), memory_order_acq_rel,
        memory_order_relaxed);
}

/* Record the event without the lock.  This is possible if the event is known
 * to be done and the stream is known to be idle, because at most the event's
 * time changes then.  Otherwise does nothing and returns false.
 *
 * The event is checked before the stream.  If another thread records the event
 * between the two checks, its record may count as made after this one, so this
 * call need not replace it. */
static bool
record_done(struct cpu_engine *engine, int device, ps_handle event_handle,
            ps_handle stream_handle)
{
    int64_t known = cpu_slot_known(engine, CPU_EVENT, device, event_handle);
    if (known == CPU_UNKNOWN ||
        !cpu_stream_is_done(engine, device, stream_handle)) {
        return false;
    }
    return known == CPU_DONE || event_stamp(engine, event_handle, known);
}

/* The slow path of event_record.  It is not inlined, so that the fast path
 * need not save registers. */
__attribute__((noinline)) static ps_status
event_record(const struct ps_backend *backend, int device,
             ps_handle event_handle, ps_handle stream_handle)
{
    CPU_ENTER(engine, backend);
    struct cpu_slot *event = event_find_locked(engine, device, event_handle);
    struct cpu_stream *stream =
        cpu_stream_find_locked(engine, device, stream_handle);
    return event != NULL && stream != NULL
               ? event_record_locked(engine, event, stream)
               : PS_ERROR_INVALID_HANDLE;
}

static ps_status
cpu_event_record(const struct ps_backend *backend, int device, ps_handle event,
                 ps_handle stream)
{
    return record_done(cpu_engine_of(backend), device, event, stream)
               ? PS_SUCCESS
               : event_record(backend, device, event, stream);
}

/* Get the event's latest record.  For an interprocess event, another process
 * may have made it. */
static ps_status
event_latest_locked(struct cpu_engine *engine, struct cpu_slot *event,
                    struct cpu_record **record)
{
    ps_status status = event->shared == NULL ? PS_SUCCESS
                       : cpu_is_lazy(engine)
                           ? PS_ERROR_SCHEDULED
                           : cpu_shared_refresh_locked(engine, event);
    *record = event->object;
    if ((*record)->done) {
        event_know_locked(engine, event);
    }
    return status;
}

ps_status
cpu_event_record_locked(struct cpu_engine *engine, int device,
                        ps_handle handle, struct cpu_record **record)
{
    struct cpu_slot *event = event_find_locked(engine, device, handle);
    ps_status status = event != NULL
                           ? event_latest_locked(engine, event, record)
                           : PS_ERROR_INVALID_HANDLE;
    return status == PS_SUCCESS && (*record)->capture != 0
               ? PS_ERROR_CAPTURED_EVENT
               : status;
}

/* Returns whether the event is known to be done. */
static bool
event_is_done(const struct ps_backend *backend, int device, ps_handle handle)
{
    return cpu_slot_known(cpu_engine_of(backend), CPU_EVENT, device, handle) !=
           CPU_UNKNOWN;
}

static ps_status
wait_locked(struct cpu_stream *stream, struct cpu_slot *event)
{
    struct cpu_record *record;
    ps_status status = event_latest_locked(stream->engine, event, &record);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (stream->capture != NULL || record->capture != 0) {
        return cpu_capture_wait_locked(stream, record);
    }
    status = cpu_stream_order_locked(stream);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (record->done && record->status == PS_SUCCESS &&
        !cpu_is_lazy(stream->engine)) {
        cpu_stream_know_locked(stream);
        return PS_SUCCESS;
    }
    return cpu_stream_enqueue_locked(
        stream, &(struct cpu_operation){.kind = CPU_WAIT, .record = record});
}

static ps_status
cpu_stream_wait_event(const struct ps_backend *backend, int device,
                      ps_handle stream_handle, ps_handle event_handle)
{
    if (event_is_done(backend, CPU_ANY_DEVICE, event_handle) &&
        cpu_stream_is_done(cpu_engine_of(backend), device, stream_handle)) {
        return PS_SUCCESS;
    }
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream =
        cpu_stream_find_locked(engine, device, stream_handle);
    struct cpu_slot *event =
        event_find_locked(engine, CPU_ANY_DEVICE, event_handle);
    return stream != NULL && event != NULL ? wait_locked(stream, event)
                                           : PS_ERROR_INVALID_HANDLE;
}

static ps_status
cpu_event_query(const struct ps_backend *backend, int device, ps_handle handle)
{
    if (event_is_done(backend, device, handle)) {
        return PS_SUCCESS;
    }
    CPU_ENTER(engine, backend);
    struct cpu_record *record;
    bool noted = cpu_is_noted(engine);
    bool asks = noted && engine->driver->ask_locked(engine, backend);
    ps_status status =
        cpu_event_record_locked(engine, device, handle, &record);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (asks) {
        engine->driver->asked_locked(engine, NULL, record);
    }
    if (record->done &&
        (!noted || asks || record->step <= engine->lazy.first_step)) {
        return record->status;
    }
    engine->lazy.polled = record->source;
    return PS_ERROR_NOT_READY;
}

static ps_status
cpu_event_synchronize(const struct ps_backend *backend, int device,
                      ps_handle handle, const struct ps_limit *asked)
{
    if (event_is_done(backend, device, handle)) {
        return PS_SUCCESS;
    }
    CPU_ENTER(engine, backend);
    struct cpu_limit limit = cpu_limit(engine, asked);
    struct cpu_record *record;
    ps_status status =
        cpu_event_record_locked(engine, device, handle, &record);
    if (status != PS_SUCCESS) {
        return status;
    }
    record->refs++;
    if (!record->done) {
        status = cpu_wait_locked(engine, &(struct cpu_goal){.record = record},
                                 &limit);
    }
    if (status == PS_SUCCESS) {
        status = record->status;
    }
    if (record->done) {
        cpu_note_locked(engine, PS_NOTE_WAITED_STEP, record->step);
    }
    cpu_record_unref_locked(engine, record);
    cpu_arrived_locked(engine);
    return status;
}

/* Returns the time of the event's latest record.  `known` is read only once,
 * because another thread may change it. */
static int64_t
event_time_locked(struct cpu_slot *event)
{
    const struct cpu_record *record = event->object;
    int64_t known = event->known;
    return known != CPU_UNKNOWN ? known - CPU_TIMED : record->time;
}

static ps_status
elapsed_locked(struct cpu_slot *start_event, struct cpu_slot *end_event,
               float *milliseconds)
{
    const struct cpu_record *start = start_event->object;
    const struct cpu_record *end = end_event->object;
    if (!start->timed || !end->timed || start->time < 0 || end->time < 0) {
        return PS_ERROR_INVALID_HANDLE;
    }
    if (!start->done || !end->done) {
        return PS_ERROR_NOT_READY;
    }
    if (start->status != PS_SUCCESS || end->status != PS_SUCCESS) {
        return start->status != PS_SUCCESS ? start->status : end->status;
    }
    *milliseconds = (float)((double)(event_time_locked(end_event) -
                                     event_time_locked(start_event)) /
                            1e6);
    return PS_SUCCESS;
}

static ps_status
cpu_event_elapsed(const struct ps_backend *backend, int device,
                  ps_handle start_handle, ps_handle end_handle,
                  float *milliseconds)
{
    CPU_ENTER(engine, backend);
    struct cpu_slot *start = event_find_locked(engine, device, start_handle);
    struct cpu_slot *end = event_find_locked(engine, device, end_handle);
    return start != NULL && end != NULL
               ? elapsed_locked(start, end, milliseconds)
               : PS_ERROR_INVALID_HANDLE;
}

void
cpu_event_members(struct ps_backend *table)
{
    table->event_create = cpu_event_create;
    table->event_destroy = cpu_event_destroy;
    table->event_export = cpu_event_export;
    table->event_open = cpu_event_open;
    table->event_record = cpu_event_record;
    table->stream_wait_event = cpu_stream_wait_event;
    table->event_query = cpu_event_query;
    table->event_synchronize = cpu_event_synchronize;
    table->event_elapsed = cpu_event_elapsed;
}
