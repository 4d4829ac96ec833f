/* The table's members for streams and for devices. */
#include "engine.h"

#include <stdlib.h>

/* Wait until the stream's work up to the ticket is done.  The stream may be
 * destroyed during the wait, so the caller must call
 * cpu_stream_reap_locked. */
static ps_status
stream_wait_locked(struct cpu_stream *stream, uint64_t ticket,
                   const struct cpu_limit *limit)
{
    struct cpu_goal goal = {.stream = stream, .ticket = ticket};
    uint64_t last = cpu_stream_last_locked(stream, ticket);
    ps_status status = PS_SUCCESS;
    if (stream->first != NULL && stream->first->ticket <= ticket) {
        status = cpu_serving() == stream
                     ? PS_ERROR_NOT_PERMITTED
                     : cpu_wait_locked(stream->engine, &goal, limit);
    }
    if (status == PS_SUCCESS) {
        cpu_note_locked(stream->engine, PS_NOTE_WAITED, last);
    }
    return status;
}

/* Returns the stream's status, and marks a failure as reported. */
static ps_status
stream_report_locked(struct cpu_stream *stream)
{
    stream->reported = stream->status != PS_SUCCESS;
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

struct cpu_stream *
cpu_stream_make_locked(struct cpu_engine *engine, int device, int priority,
                       bool blocking)
{
    struct cpu_stream *stream = malloc(sizeof(*stream));
    struct cpu_slot *slot =
        stream != NULL ? cpu_slot_take_locked(engine, CPU_STREAM, device)
                       : NULL;
    if (slot == NULL) {
        free(stream);
        return NULL;
    }
    cpu_stream_init_locked(stream, engine, device, priority);
    if (blocking) {
        cpu_stream_block_locked(stream);
    }
    slot->object = stream;
    stream->known = &slot->known;
    stream->handle = slot->handle;
    cpu_stream_know_locked(stream);
    return stream;
}

static ps_status
stream_create(const struct ps_backend *backend, int device, ps_handle within,
              int priority, bool blocking, ps_handle *handle)
{
    if (priority > 0 || priority <= -CPU_PRIORITIES) {
        return PS_ERROR_INVALID_VALUE;
    }
    CPU_ENTER(engine, backend);
    struct cpu_slot *home =
        within != 0
            ? cpu_slot_find_locked(engine, CPU_PARTITION, device, within)
            : NULL;
    if (within != 0 && home == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    struct cpu_stream *stream =
        cpu_stream_make_locked(engine, device, priority, blocking);
    if (stream == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    if (home != NULL) {
        stream->partition = home->object;
        stream->partition->refs++;
    }
    *handle = stream->handle;
    return PS_SUCCESS;
}

static ps_status
cpu_stream_create(const struct ps_backend *backend, int device, int priority,
                  ps_handle *handle)
{
    return stream_create(backend, device, 0, priority, false, handle);
}

static ps_status
cpu_partition_stream_create(const struct ps_backend *backend, int device,
                            ps_handle partition, int priority,
                            ps_handle *handle)
{
    return partition == 0 ? PS_ERROR_INVALID_HANDLE
                          : stream_create(backend, device, partition, priority,
                                          false, handle);
}

static ps_status
cpu_blocking_create(const struct ps_backend *backend, int device, int priority,
                    ps_handle *handle)
{
    return stream_create(backend, device, 0, priority, true, handle);
}

/* As the contract in backend.h demands, this runs no notifications when it
 * releases the lock. */
static ps_status
cpu_stream_blocking(const struct ps_backend *backend, int device,
                    ps_handle handle, int *blocking)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        *blocking = handle == 0 || stream->blocking;
    }
    pthread_mutex_unlock(&engine->lock);
    return stream != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

void
cpu_stream_give_up_locked(struct cpu_slot *slot)
{
    struct cpu_stream *stream = slot->object;
    cpu_slot_give_locked(stream->engine, slot);
    stream->known = NULL;
    stream->destroyed = true;
    if (stream->capture != NULL) {
        cpu_capture_lose_locked(stream);
    }
    else {
        cpu_stream_reap_locked(stream);
    }
}

static ps_status
cpu_stream_destroy(const struct ps_backend *backend, int device,
                   ps_handle handle)
{
    CPU_ENTER(engine, backend);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_STREAM, device, handle);
    if (slot == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    cpu_stream_give_up_locked(slot);
    return PS_SUCCESS;
}

/* Returns the status that stream_query must return for this stream.  `asks` is
 * true if notes are kept and ask_locked has returned true, which means that
 * the query is not one that the library itself makes. */
static ps_status
query_locked(struct cpu_stream *stream, bool asks)
{
    struct cpu_engine *engine = stream->engine;
    if (asks) {
        engine->driver->asked_locked(engine, stream, NULL);
    }
    if (stream->first == NULL &&
        (!cpu_is_noted(engine) || asks || stream->number == 0)) {
        cpu_stream_know_locked(stream);
        return stream->status;
    }
    engine->lazy.polled = stream;
    return PS_ERROR_NOT_READY;
}

static ps_status
cpu_stream_query(const struct ps_backend *backend, int device,
                 ps_handle handle)
{
    if (cpu_stream_is_done(cpu_engine_of(backend), device, handle)) {
        return PS_SUCCESS;
    }
    CPU_ENTER(engine, backend);
    bool asks =
        cpu_is_noted(engine) && engine->driver->ask_locked(engine, backend);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL || stream->capture != NULL) {
        return stream == NULL ? PS_ERROR_INVALID_HANDLE
                              : PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    ps_status status =
        handle == 0 ? cpu_legacy_check_locked(stream) : PS_SUCCESS;
    if (status == PS_SUCCESS) {
        status = query_locked(stream, asks);
    }
    if (handle == 0) {
        struct cpu_stream *blocking;
        LIST_FOREACH (blocking, &engine->devices[device].blocking, siblings) {
            if (status == PS_SUCCESS && cpu_stream_is_ahead_locked(blocking)) {
                status = query_locked(blocking, asks);
            }
        }
    }
    return status;
}

static ps_status
cpu_stream_synchronize(const struct ps_backend *backend, int device,
                       ps_handle handle, const struct ps_limit *asked)
{
    if (cpu_stream_is_done(cpu_engine_of(backend), device, handle)) {
        return PS_SUCCESS;
    }
    CPU_ENTER(engine, backend);
    struct cpu_limit limit = cpu_limit(engine, asked);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    if (stream->capture != NULL) {
        return PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    ps_status status = cpu_stream_order_locked(stream);
    if (status == PS_SUCCESS) {
        status = stream_wait_locked(stream, engine->tickets, &limit);
    }
    if (status == PS_SUCCESS) {
        status = stream_report_locked(stream);
    }
    cpu_stream_reap_locked(stream);
    cpu_arrived_locked(engine);
    return status;
}

static ps_status
cpu_stream_wait_room(const struct ps_backend *backend, int device,
                     ps_handle handle, int64_t timeout_ns)
{
    CPU_ENTER(engine, backend);
    struct cpu_limit limit =
        cpu_limit(engine, &(struct ps_limit){.timeout_ns = timeout_ns});
    ps_status status = PS_SUCCESS;
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    while (status == PS_SUCCESS && stream->pending >= CPU_QUEUE_LIMIT) {
        status = stream_wait_locked(stream, stream->first->ticket, &limit);
    }
    cpu_stream_reap_locked(stream);
    return status;
}

static ps_status
cpu_stream_device(const struct ps_backend *backend, ps_handle handle,
                  int *device)
{
    if (handle == PS_STREAM_PER_THREAD) {
        return PS_SUCCESS;
    }
    CPU_ENTER(engine, backend);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_STREAM, CPU_ANY_DEVICE, handle);
    if (slot == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    *device = slot->device;
    return PS_SUCCESS;
}

/* Returns whether the stream exists only for a branch of a graph's launch. */
static bool
is_branch(const struct cpu_stream *stream)
{
    return stream != NULL && stream->handle == 0 &&
           stream != &stream->engine->devices[stream->device].default_stream;
}

/* Fill in the state of a stream.  Returns the stream for which it waits, or
 * NULL. */
static struct cpu_stream *
stream_state_locked(struct cpu_stream *stream, struct ps_stream_state *state)
{
    const struct cpu_operation *head = stream->first;
    *state = (struct ps_stream_state){
        .device = stream->device,
        .stream = stream->handle,
        .pending = stream->pending,
    };
    if (head == NULL) {
        return NULL;
    }
    state->operation = cpu_operation_name(head->kind);
    switch (head->kind) {
    case CPU_COPY:
    case CPU_FILL:
        state->nbytes = head->transfer.nbytes;
        return NULL;
    case CPU_ENTER_GATE:
        state->obstacle = PS_OBSTACLE_GATE;
        return NULL;
    case CPU_SLEEP:
        state->obstacle = PS_OBSTACLE_TIME;
        state->left_ns = stream->deadline - stream->engine->clock->now();
        return NULL;
    case CPU_WAIT:
        break;
    default:
        return NULL;
    }
    struct cpu_stream *source = head->record->source;
    if (head->record->done) {
        return NULL;
    }
    if (is_branch(source)) {
        /* A branch of a launch has no handle, so describe its work as work of
         * the stream. */
        struct ps_stream_state branch;
        source = stream_state_locked(source, &branch);
        state->operation = branch.operation;
        state->nbytes = branch.nbytes;
        state->left_ns = branch.left_ns;
        state->obstacle = branch.obstacle;
        return source;
    }
    state->obstacle = source == stream ? PS_OBSTACLE_GATE
                      : source != NULL ? PS_OBSTACLE_STREAM
                                       : PS_OBSTACLE_UNKNOWN;
    return source != stream ? source : NULL;
}

/* This runs no notifications when it releases the lock.  It may be called
 * while another member waits, so it must call no function of the program. */
static ps_status
cpu_stream_explain(const struct ps_backend *backend, int device,
                   ps_handle handle, struct ps_stream_state *states, int room,
                   int *count)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(
        engine, device, handle & ~PS_THREAD_STREAM_NAME);
    ps_status status = stream != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
    int found = 0;
    /* The loop ends, because each wait was queued after the record for which
     * it waits. */
    while (stream != NULL) {
        int place = found < room ? found : room - 1;
        stream = stream_state_locked(stream, &states[place]);
        found++;
    }
    pthread_mutex_unlock(&engine->lock);
    *count = found;
    return status;
}

/* Returns a failure of the device's work, and marks it as reported.  Returns
 * PS_SUCCESS if there is no failure.  If a stream was freed before any call
 * had returned its failure, that failure comes first.  Otherwise the failure
 * is that of an existing stream.  Later calls return the failure of an
 * existing stream again, unless the stream was destroyed. */
static ps_status
device_report_locked(struct cpu_device *device)
{
    ps_status status = device->unreported;
    device->unreported = PS_SUCCESS;
    struct cpu_stream *stream;
    LIST_FOREACH (stream, &device->streams, neighbours) {
        if (status == PS_SUCCESS && !cpu_is_earlier(stream) &&
            (!stream->destroyed || !stream->reported)) {
            status = stream_report_locked(stream);
        }
    }
    return status;
}

static ps_status
cpu_device_synchronize(const struct ps_backend *backend, int index,
                       const struct ps_limit *asked)
{
    CPU_ENTER(engine, backend);
    struct cpu_device *device = &engine->devices[index];
    struct cpu_limit limit = cpu_limit(engine, asked);
    ps_status status = PS_SUCCESS;
    uint64_t ticket = engine->tickets;
    struct cpu_stream *older, *stream = LIST_FIRST(&device->streams);
    for (; stream != NULL && status == PS_SUCCESS; stream = older) {
        status = stream_wait_locked(stream, ticket, &limit);
        older = LIST_NEXT(stream, neighbours);
        cpu_stream_reap_locked(stream);
    }
    if (status == PS_SUCCESS) {
        status = device_report_locked(device);
    }
    cpu_arrived_locked(engine);
    return status;
}

void
cpu_stream_members(struct ps_backend *table)
{
    table->stream_priority_range = cpu_stream_priority_range;
    table->stream_create = cpu_stream_create;
    table->partition_stream_create = cpu_partition_stream_create;
    table->stream_destroy = cpu_stream_destroy;
    table->stream_query = cpu_stream_query;
    table->stream_synchronize = cpu_stream_synchronize;
    table->stream_wait_room = cpu_stream_wait_room;
    table->stream_device = cpu_stream_device;
    table->device_synchronize = cpu_device_synchronize;
    table->stream_explain = cpu_stream_explain;
    table->blocking_create = cpu_blocking_create;
    table->stream_blocking = cpu_stream_blocking;
}
