/* Streams: queues of operations.  Operations of a stream are done in order,
 * each by the one thread that serves the stream at the time. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

enum { INLINE_BYTES = 64 * 1024 }; /* of a transfer cheaper done than queued */

_Thread_local const struct cpu_stream *cpu_serving;

void
cpu_list_append(struct cpu_stream_list *list, struct cpu_stream *stream)
{
    stream->next = NULL;
    if (list->first == NULL) {
        list->first = stream;
    }
    else {
        list->last->next = stream;
    }
    list->last = stream;
}

struct cpu_stream *
cpu_list_take(struct cpu_stream_list *list)
{
    struct cpu_stream *stream = list->first;
    if (stream != NULL) {
        list->first = stream->next;
    }
    return stream;
}

void
cpu_stream_init_locked(struct cpu_stream *stream, struct cpu_engine *engine,
                       int device, int priority)
{
    struct cpu_stream **newest = &engine->devices[device].streams;
    *stream = (struct cpu_stream){
        .engine = engine,
        .device = device,
        .priority = priority,
        .tail = &stream->first,
        .older = *newest,
        .link = newest,
    };
    if (stream->older != NULL) {
        stream->older->link = &stream->older;
    }
    *newest = stream;
}

/* Free a destroyed stream that nothing uses any more.  A failure that nobody
 * was told of is left to the device. */
static void
stream_reap_locked(struct cpu_stream *stream)
{
    if (!stream->destroyed || stream->first != NULL ||
        stream->waiters != NULL) {
        return;
    }
    struct cpu_device *device = &stream->engine->devices[stream->device];
    if (!stream->told && device->lost == PS_SUCCESS) {
        device->lost = stream->status;
    }
    *stream->link = stream->older;
    if (stream->older != NULL) {
        stream->older->link = stream->link;
    }
    free(stream);
}

struct cpu_stream *
cpu_stream_find_locked(struct cpu_engine *engine, int device, ps_handle handle)
{
    if (handle == 0) {
        return &engine->devices[device].standard;
    }
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_STREAM, device, handle);
    return slot != NULL ? slot->object : NULL;
}

/* ---- The queue ---- */

void
cpu_stream_ready_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    cpu_list_append(&engine->ready[-stream->priority], stream);
    engine->ready_count++;
}

/* Put the stream where it belongs with the head that it has now.  A wait is
 * kept on a failed stream too: a free behind it must not run before other
 * streams are done with the block. */
static void
stream_settle_locked(struct cpu_stream *stream)
{
    struct cpu_operation *head = stream->first;
    if (head == NULL) {
        stream_reap_locked(stream);
    }
    else if (head->kind == CPU_WAIT && !head->record->done) {
        cpu_list_append(&head->record->parked, stream);
    }
    else if (head->kind == CPU_SLEEP && stream->status == PS_SUCCESS) {
        cpu_sleeper_add_locked(stream, head->duration);
    }
    else {
        cpu_stream_ready_locked(stream);
    }
}

void
cpu_stream_push_locked(struct cpu_stream *stream,
                       struct cpu_operation *operation)
{
    operation->next = NULL;
    operation->ticket = ++stream->engine->tickets;
    *stream->tail = operation;
    stream->tail = &operation->next;
    stream->pending++;
}

/* Do an operation that takes its time; false as cpu_stream_serve_locked. */
static bool
stream_run_locked(struct cpu_stream *stream, struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
    const struct cpu_stream *outer = cpu_serving;
    cpu_unlock(engine);
    cpu_serving = stream;
    switch (operation->kind) {
    case CPU_COPY:
        /* Users may overlap the two sides. */
        memmove(operation->transfer.destination, operation->transfer.source,
                operation->transfer.nbytes);
        break;
    case CPU_FILL:
        memset(operation->transfer.destination, operation->value,
               operation->transfer.nbytes);
        break;
    default:
        operation->call.function(operation->call.argument);
    }
    if (cpu_serving != stream) {
        return false;
    }
    cpu_serving = outer;
    cpu_lock(engine);
    return true;
}

bool
cpu_stream_serve_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_operation *operation = stream->first;
    ps_status failure = PS_SUCCESS;
    switch (operation->kind) {
    case CPU_RECORD:
        cpu_record_complete_locked(engine, operation->record, stream->status);
        cpu_record_unref_locked(engine, operation->record);
        break;
    case CPU_WAIT:
        failure = operation->record->status;
        cpu_record_unref_locked(engine, operation->record);
        break;
    case CPU_FAIL:
        failure = operation->status;
        break;
    case CPU_SLEEP:
    case CPU_FREE:
        break;
    case CPU_COPY:
    case CPU_FILL:
    case CPU_CALL:
        if (stream->status == PS_SUCCESS &&
            !stream_run_locked(stream, operation)) {
            return false;
        }
    }
    if (stream->status == PS_SUCCESS) {
        stream->status = failure;
    }
    stream->first = operation->next;
    stream->pending--;
    uint64_t done = engine->tickets;
    if (stream->first == NULL) {
        stream->tail = &stream->first;
    }
    else {
        done = stream->first->ticket - 1;
    }
    cpu_wake_locked(stream->waiters, done);
    stream_settle_locked(stream);
    return true;
}

ps_status
cpu_stream_enqueue_locked(struct cpu_stream *stream,
                          struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
    enum cpu_kind kind = operation->kind;
    bool idle = stream->first == NULL;
    if (idle && (kind == CPU_COPY || kind == CPU_FILL) &&
        operation->transfer.nbytes <= INLINE_BYTES) {
        cpu_stream_push_locked(stream, operation);
        cpu_stream_serve_locked(stream);
        return PS_SUCCESS;
    }
    ps_status status = cpu_engine_staff_locked(engine);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (stream->pending >= CPU_QUEUE_LIMIT) {
        return PS_ERROR_NOT_READY;
    }
    struct cpu_operation *item = cpu_item_take_locked(engine);
    if (item == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *item = *operation;
    if (kind == CPU_RECORD || kind == CPU_WAIT) {
        item->record->refs++;
    }
    cpu_stream_push_locked(stream, item);
    if (idle) {
        stream_settle_locked(stream);
    }
    return PS_SUCCESS;
}

ps_status
cpu_stream_enqueue(const struct ps_backend *backend, int device,
                   ps_handle handle, struct cpu_operation *operation)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        status = cpu_stream_enqueue_locked(stream, operation);
    }
    cpu_unlock(engine);
    return status;
}

/* Wait until the stream has done what was queued up to the ticket.  It may be
 * destroyed meanwhile, and is to be reaped then. */
static ps_status
stream_wait_locked(struct cpu_stream *stream, uint64_t ticket,
                   int64_t deadline)
{
    if (stream->first == NULL || stream->first->ticket > ticket) {
        return PS_SUCCESS;
    }
    if (cpu_serving == stream) {
        return PS_ERROR_NOT_PERMITTED;
    }
    return cpu_wait_locked(stream->engine, &stream->waiters, ticket, deadline);
}

/* The failure of the stream, of which somebody is then told. */
static ps_status
stream_tell_locked(struct cpu_stream *stream)
{
    stream->told = stream->status != PS_SUCCESS;
    return stream->status;
}

/* ---- Members ---- */

static ps_status
cpu_stream_priority_range(const struct ps_backend *backend, int device,
                          int *least, int *greatest)
{
    (void)backend;
    (void)device;
    *least = 0;
    *greatest = 1 - CPU_PRIORITIES;
    return PS_SUCCESS;
}

static ps_status
cpu_stream_create(const struct ps_backend *backend, int device, int priority,
                  ps_handle *handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    if (priority > 0 || priority <= -CPU_PRIORITIES) {
        return PS_ERROR_INVALID_VALUE;
    }
    struct cpu_stream *stream = malloc(sizeof(*stream));
    if (stream == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    cpu_lock(engine);
    struct cpu_slot *slot = cpu_slot_take_locked(engine, CPU_STREAM, device);
    if (slot != NULL) {
        cpu_stream_init_locked(stream, engine, device, priority);
        slot->object = stream;
        *handle = slot->handle;
    }
    cpu_unlock(engine);
    if (slot == NULL) {
        free(stream);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    return PS_SUCCESS;
}

static ps_status
cpu_stream_destroy(const struct ps_backend *backend, int device,
                   ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_STREAM, device, handle);
    if (slot != NULL) {
        struct cpu_stream *stream = slot->object;
        cpu_slot_give_locked(engine, slot);
        stream->destroyed = true;
        stream_reap_locked(stream);
    }
    cpu_unlock(engine);
    return slot != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

static ps_status
cpu_stream_query(const struct ps_backend *backend, int device,
                 ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        status = stream->first != NULL ? PS_ERROR_NOT_READY : stream->status;
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_stream_synchronize(const struct ps_backend *backend, int device,
                       ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        status = stream_wait_locked(stream, engine->tickets, CPU_FOREVER);
        if (status == PS_SUCCESS) {
            status = stream_tell_locked(stream);
        }
        stream_reap_locked(stream);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_stream_wait_room(const struct ps_backend *backend, int device,
                     ps_handle handle, int64_t timeout_ns)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    int64_t deadline = cpu_deadline(engine, timeout_ns > 0 ? timeout_ns : 0);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        status = PS_SUCCESS;
        while (status == PS_SUCCESS && stream->pending >= CPU_QUEUE_LIMIT) {
            status =
                stream_wait_locked(stream, stream->first->ticket, deadline);
        }
        stream_reap_locked(stream);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_stream_device(const struct ps_backend *backend, ps_handle handle,
                  int *device)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_STREAM, CPU_ANY_DEVICE, handle);
    if (slot != NULL) {
        *device = slot->device;
    }
    cpu_unlock(engine);
    return slot != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

static ps_status
cpu_stream_fail(const struct ps_backend *backend, int device, ps_handle stream,
                ps_status failure)
{
    if (failure <= 0 || failure > 999 || failure == PS_ERROR_NOT_READY) {
        return PS_ERROR_INVALID_VALUE;
    }
    struct cpu_operation fail = {.kind = CPU_FAIL, .status = failure};
    return cpu_stream_enqueue(backend, device, stream, &fail);
}

static ps_status
cpu_host_function(const struct ps_backend *backend, int device,
                  ps_handle stream, ps_host_function function, void *argument)
{
    struct cpu_operation call = {
        .kind = CPU_CALL,
        .call = {function, argument},
    };
    return cpu_stream_enqueue(backend, device, stream, &call);
}

static ps_status
cpu_sleep(const struct ps_backend *backend, int device, ps_handle stream,
          uint64_t cycles)
{
    struct cpu_operation sleep = {.kind = CPU_SLEEP, .duration = cycles};
    return cpu_stream_enqueue(backend, device, stream, &sleep);
}

/* A failure that nobody was told of from a destroyed stream, or else the
 * failure of a live one. */
static ps_status
device_tell_locked(struct cpu_device *device)
{
    ps_status status = device->lost;
    device->lost = PS_SUCCESS;
    for (struct cpu_stream *s = device->streams;
         s != NULL && status == PS_SUCCESS; s = s->older) {
        if (!s->destroyed || !s->told) {
            status = stream_tell_locked(s);
        }
    }
    return status;
}

static ps_status
cpu_device_synchronize(const struct ps_backend *backend, int index)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_device *device = &engine->devices[index];
    ps_status status = PS_SUCCESS;
    cpu_lock(engine);
    uint64_t ticket = engine->tickets;
    struct cpu_stream *stream = device->streams;
    while (stream != NULL && status == PS_SUCCESS) {
        status = stream_wait_locked(stream, ticket, CPU_FOREVER);
        struct cpu_stream *older = stream->older;
        stream_reap_locked(stream);
        stream = older;
    }
    if (status == PS_SUCCESS) {
        status = device_tell_locked(device);
    }
    cpu_unlock(engine);
    return status;
}

void
cpu_stream_members(struct ps_backend *table)
{
    table->stream_priority_range = cpu_stream_priority_range;
    table->stream_create = cpu_stream_create;
    table->stream_destroy = cpu_stream_destroy;
    table->stream_query = cpu_stream_query;
    table->stream_synchronize = cpu_stream_synchronize;
    table->stream_wait_room = cpu_stream_wait_room;
    table->stream_device = cpu_stream_device;
    table->stream_fail = cpu_stream_fail;
    table->host_function = cpu_host_function;
    table->sleep = cpu_sleep;
    table->device_synchronize = cpu_device_synchronize;
}
