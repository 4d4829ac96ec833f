/* Captures and graphs.  What all streams of a capture get is put into one
 * plan, in the order in which they get it: that order respects every wait
 * among them, so a launch queues the plan on one stream, as it stands. */
#include "engine.h"

#include <stdlib.h>

/* The work of a graph and of what was made of it. */
struct cpu_plan {
    unsigned refs;
    size_t count;
    struct cpu_operation *first; /* items */
    struct cpu_operation **tail;
};

struct cpu_capture {
    uint64_t number;
    ps_status status; /* what keeps it from becoming a graph */
    struct cpu_stream *origin;
    struct cpu_stream *streams; /* by their `peer` */
    struct cpu_plan *plan;
    struct cpu_capture *next;
};

/* What a graph's handle stands for, and an executable's. */
struct graph {
    struct cpu_plan *plan;
    struct cpu_record *done; /* an executable's latest launch, else NULL */
};

static struct cpu_plan *
plan_create(void)
{
    struct cpu_plan *plan = malloc(sizeof(*plan));
    if (plan != NULL) {
        *plan = (struct cpu_plan){.refs = 1, .tail = &plan->first};
    }
    return plan;
}

static void
plan_unref_locked(struct cpu_engine *engine, struct cpu_plan *plan)
{
    if (--plan->refs > 0) {
        return;
    }
    while (plan->first != NULL) {
        struct cpu_operation *operation = plan->first;
        plan->first = operation->next;
        cpu_item_give_locked(engine, operation);
    }
    free(plan);
}

/* ---- Captures ---- */

/* NULL where that capture is over. */
static struct cpu_capture *
capture_find_locked(struct cpu_engine *engine, uint64_t number)
{
    struct cpu_capture *capture = engine->captures;
    while (capture != NULL && capture->number != number) {
        capture = capture->next;
    }
    return capture;
}

static void
join_locked(struct cpu_stream *stream, struct cpu_capture *capture)
{
    stream->capture = capture;
    stream->last = stream->covered = 0;
    stream->peer = capture->streams;
    capture->streams = stream;
}

static ps_status
invalidate(struct cpu_capture *capture, ps_status status)
{
    capture->status = PS_ERROR_CAPTURE_INVALIDATED;
    return status;
}

ps_status
cpu_capture_add_locked(struct cpu_stream *stream,
                       const struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_capture *capture = stream->capture;
    struct cpu_plan *plan = capture->plan;
    if (operation->kind == CPU_NOTIFY) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (capture->status != PS_SUCCESS) {
        return capture->status;
    }
    struct cpu_operation *item = cpu_item_take_locked(engine);
    if (item == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *item = *operation;
    item->next = NULL;
    *plan->tail = item;
    plan->tail = &item->next;
    plan->count++;
    stream->last = ++engine->captured;
    return PS_SUCCESS;
}

ps_status
cpu_capture_record_locked(struct cpu_stream *stream, struct cpu_record *record)
{
    record->capture = stream->capture->number;
    record->source = stream;
    record->position = stream->last;
    return stream->capture->status;
}

ps_status
cpu_capture_wait_locked(struct cpu_stream *stream, struct cpu_record *record)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_capture *theirs = capture_find_locked(engine, record->capture);
    struct cpu_capture *ours = stream->capture;
    if (theirs == NULL) {
        return ours != NULL ? invalidate(ours, PS_ERROR_CAPTURE_ISOLATION)
                            : PS_ERROR_CAPTURE_ISOLATION;
    }
    if (ours == NULL) {
        join_locked(stream, theirs);
    }
    else if (ours != theirs) {
        invalidate(theirs, PS_SUCCESS);
        return invalidate(ours, PS_ERROR_CAPTURE_MERGE);
    }
    struct cpu_stream *source = record->source;
    if (source != stream) {
        stream->last = ++engine->captured;
        if (source->covered < record->position) {
            source->covered = record->position;
        }
    }
    return theirs->status;
}

static ps_status
begin_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    if (stream == &engine->devices[stream->device].standard) {
        return PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    if (stream->capture != NULL) {
        return PS_ERROR_INVALID_VALUE;
    }
    struct cpu_capture *capture = malloc(sizeof(*capture));
    struct cpu_plan *plan = plan_create();
    if (capture == NULL || plan == NULL) {
        free(capture);
        free(plan);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *capture = (struct cpu_capture){
        .number = ++engine->captured,
        .origin = stream,
        .plan = plan,
        .next = engine->captures,
    };
    engine->captures = capture;
    join_locked(stream, capture);
    return PS_SUCCESS;
}

static ps_status
cpu_capture_begin(const struct ps_backend *backend, int device,
                  ps_handle handle, enum ps_capture_mode mode)
{
    /* No call here disturbs a capture, whichever thread's it is. */
    (void)mode;
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        status = begin_locked(stream);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_stream_capturing(const struct ps_backend *backend, int device,
                     ps_handle handle, int *capturing)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        *capturing = stream->capture != NULL;
    }
    cpu_unlock(engine);
    return stream != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

static ps_status
check_end(const struct cpu_stream *stream)
{
    const struct cpu_capture *capture = stream->capture;
    if (capture == NULL) {
        return PS_ERROR_INVALID_VALUE;
    }
    if (capture->origin != stream) {
        return PS_ERROR_CAPTURE_UNMATCHED;
    }
    return PS_SUCCESS;
}

/* End the capture and let its streams go.  A stream is joined once another has
 * waited for all that it got; as whoever waits gets something, too, all end in
 * the origin. */
static ps_status
close_locked(struct cpu_engine *engine, struct cpu_capture *capture)
{
    struct cpu_capture **link = &engine->captures;
    ps_status status = capture->status;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    while (capture->streams != NULL) {
        struct cpu_stream *stream = capture->streams;
        capture->streams = stream->peer;
        if (stream != capture->origin && stream->covered < stream->last &&
            status == PS_SUCCESS) {
            status = PS_ERROR_CAPTURE_UNJOINED;
        }
        stream->capture = NULL;
        cpu_stream_reap_locked(stream);
    }
    free(capture);
    return status;
}

void
cpu_capture_lose_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_capture *capture = stream->capture;
    struct cpu_plan *plan = capture->plan;
    if (stream == capture->origin) {
        close_locked(engine, capture);
        plan_unref_locked(engine, plan);
    }
    else {
        invalidate(capture, PS_SUCCESS);
    }
}

/* A handle for the plan, whose reference it takes over on success. */
static ps_status
graph_add_locked(struct cpu_engine *engine, int device, struct cpu_plan *plan,
                 struct cpu_record *done, ps_handle *handle)
{
    struct graph *graph = malloc(sizeof(*graph));
    struct cpu_slot *slot = NULL;
    if (graph != NULL) {
        slot = cpu_slot_take_locked(engine, CPU_GRAPH, device);
    }
    if (slot == NULL) {
        free(graph);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *graph = (struct graph){plan, done};
    slot->object = graph;
    *handle = slot->handle;
    return PS_SUCCESS;
}

static ps_status
end_locked(struct cpu_stream *stream, ps_handle *graph, size_t *operations)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_plan *plan = stream->capture->plan;
    int device = stream->device;
    ps_status status = close_locked(engine, stream->capture);
    if (status == PS_SUCCESS) {
        status = graph_add_locked(engine, device, plan, NULL, graph);
    }
    if (status == PS_SUCCESS) {
        *operations = plan->count;
    }
    else {
        plan_unref_locked(engine, plan);
    }
    return status;
}

static ps_status
cpu_capture_end(const struct ps_backend *backend, int device, ps_handle handle,
                ps_handle *graph, size_t *operations)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream != NULL) {
        status = check_end(stream);
    }
    if (status == PS_SUCCESS) {
        status = end_locked(stream, graph, operations);
    }
    cpu_unlock(engine);
    return status;
}

/* ---- External events ---- */

static ps_status
add_external(const struct ps_backend *backend, int device, ps_handle handle,
             enum cpu_kind kind, ps_handle event)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_operation operation = {.kind = kind, .event = event};
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_EVENT, CPU_ANY_DEVICE, event);
    if (slot != NULL && slot->shared != NULL) {
        /* A launch has nothing left that may fail, as telling others may. */
        status = PS_ERROR_NOT_SUPPORTED;
    }
    else if (slot != NULL && stream != NULL) {
        status = stream->capture != NULL
                     ? cpu_capture_add_locked(stream, &operation)
                     : PS_ERROR_INVALID_VALUE;
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_event_record_external(const struct ps_backend *backend, int device,
                          ps_handle event, ps_handle stream)
{
    return add_external(backend, device, stream, CPU_RECORD_LATER, event);
}

static ps_status
cpu_stream_wait_external(const struct ps_backend *backend, int device,
                         ps_handle stream, ps_handle event)
{
    return add_external(backend, device, stream, CPU_WAIT_LATER, event);
}

/* ---- Launches ---- */

/* Queue a copy of the operation, for which there are items. */
static void
push_locked(struct cpu_stream *stream, struct cpu_operation operation)
{
    struct cpu_operation *item = cpu_item_take_locked(stream->engine);
    *item = operation;
    if (item->record != NULL) {
        item->record->refs++;
    }
    cpu_stream_push_locked(stream, item);
}

/* Replace a record by a new one, which the stream will complete. */
static struct cpu_record *
push_record_locked(struct cpu_stream *stream, struct cpu_record *latest)
{
    struct cpu_record *record = cpu_item_take_locked(stream->engine);
    *record = (struct cpu_record){
        .refs = 1,
        .timed = latest->timed,
        .orders = latest->orders,
    };
    push_locked(stream,
                (struct cpu_operation){.kind = CPU_RECORD, .record = record});
    cpu_record_unref_locked(stream->engine, latest);
    return record;
}

static void
push_wait_locked(struct cpu_stream *stream, struct cpu_record *record)
{
    if (!record->done || record->status != PS_SUCCESS) {
        push_locked(stream, (struct cpu_operation){.kind = CPU_WAIT,
                                                   .record = record});
    }
}

static void
push_planned_locked(struct cpu_stream *stream,
                    const struct cpu_operation *operation)
{
    struct cpu_slot *event = NULL;
    if (operation->kind != CPU_RECORD_LATER &&
        operation->kind != CPU_WAIT_LATER) {
        push_locked(stream, *operation);
        return;
    }
    event = cpu_slot_find_locked(stream->engine, CPU_EVENT, CPU_ANY_DEVICE,
                                 operation->event);
    if (event != NULL && operation->kind == CPU_RECORD_LATER) {
        event->object = push_record_locked(stream, event->object);
    }
    else if (event != NULL) {
        push_wait_locked(stream, event->object);
    }
}

/* What a launch needs: threads for its work, and items for each operation, for
 * its record, and for the wait in front and the record behind. */
static ps_status
prepare_locked(struct cpu_engine *engine, const struct cpu_plan *plan)
{
    ps_status status = cpu_engine_staff_locked(engine, CPU_CALL);
    for (const struct cpu_operation *operation = plan->first;
         operation != NULL && status == PS_SUCCESS;
         operation = operation->next) {
        status = cpu_engine_staff_locked(engine, operation->kind);
    }
    return status == PS_SUCCESS
               ? cpu_items_reserve_locked(engine, 2 * plan->count + 3)
               : status;
}

static ps_status
launch_locked(struct cpu_stream *stream, struct graph *graph)
{
    struct cpu_engine *engine = stream->engine;
    bool idle = stream->first == NULL;
    if (stream->capture != NULL) {
        return PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    if (stream->pending >= CPU_QUEUE_LIMIT) {
        return PS_ERROR_NOT_READY;
    }
    ps_status status = prepare_locked(engine, graph->plan);
    if (status != PS_SUCCESS) {
        return status;
    }
    push_wait_locked(stream, graph->done);
    for (const struct cpu_operation *operation = graph->plan->first;
         operation != NULL; operation = operation->next) {
        push_planned_locked(stream, operation);
    }
    graph->done = push_record_locked(stream, graph->done);
    if (idle && !cpu_stream_help_locked(stream)) {
        cpu_lock(engine);
    }
    return PS_SUCCESS;
}

static struct graph *
graph_find_locked(struct cpu_engine *engine, int device, ps_handle handle)
{
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_GRAPH, device, handle);
    return slot != NULL ? slot->object : NULL;
}

static ps_status
cpu_graph_launch(const struct ps_backend *backend, int device,
                 ps_handle executable, ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct graph *graph = graph_find_locked(engine, device, executable);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (graph != NULL && graph->done != NULL && stream != NULL) {
        status = launch_locked(stream, graph);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
instantiate_locked(struct cpu_engine *engine, int device, struct graph *graph,
                   ps_handle *executable)
{
    struct cpu_record *done = cpu_item_take_locked(engine);
    if (done == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *done = (struct cpu_record){.refs = 1, .orders = true, .done = true};
    ps_status status =
        graph_add_locked(engine, device, graph->plan, done, executable);
    if (status == PS_SUCCESS) {
        graph->plan->refs++;
    }
    else {
        cpu_item_give_locked(engine, done);
    }
    return status;
}

static ps_status
cpu_graph_instantiate(const struct ps_backend *backend, int device,
                      ps_handle handle, ps_handle *executable)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    ps_status status = PS_ERROR_INVALID_HANDLE;
    cpu_lock(engine);
    struct graph *graph = graph_find_locked(engine, device, handle);
    if (graph != NULL) {
        status = instantiate_locked(engine, device, graph, executable);
    }
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_graph_destroy(const struct ps_backend *backend, int device,
                  ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_GRAPH, device, handle);
    if (slot != NULL) {
        struct graph *graph = slot->object;
        cpu_slot_give_locked(engine, slot);
        plan_unref_locked(engine, graph->plan);
        if (graph->done != NULL) {
            cpu_record_unref_locked(engine, graph->done);
        }
        free(graph);
    }
    cpu_unlock(engine);
    return slot != NULL ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

void
cpu_graph_members(struct ps_backend *table)
{
    table->stream_capturing = cpu_stream_capturing;
    table->capture_begin = cpu_capture_begin;
    table->capture_end = cpu_capture_end;
    table->event_record_external = cpu_event_record_external;
    table->stream_wait_external = cpu_stream_wait_external;
    table->graph_instantiate = cpu_graph_instantiate;
    table->graph_launch = cpu_graph_launch;
    table->executable_destroy = cpu_graph_destroy;
    table->graph_destroy = cpu_graph_destroy;
}
