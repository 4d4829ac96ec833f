/* Captures and graphs.  The operations that are queued on the streams of a
 * capture are added to one plan, in the order of the calls.  The operations of
 * each stream form a branch of the plan.  The first branch is that of the
 * stream on which the capture began.  A launch queues the operations of the
 * first branch on the launch's stream, and those of each other branch on a
 * temporary stream.  Waits (CPU_JOIN) order operations of different
 * branches. */
#include "engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BRANCHES = UINT16_MAX };

/* A branch: the device and the priority of a captured stream. */
struct cpu_branch {
    int device;
    int priority;
};

/* The work of a capture, and later of the graph and the executables that are
 * made from it.  After the capture, only the reference count and, during a
 * launch, the records of the marks change. */
struct cpu_plan {
    unsigned refs;
    size_t operations; /* the number of operations, without marks and joins */
    size_t nodes;
    size_t gates;
    /* The operations, in a list; a mark comes before its joins. */
    struct cpu_operation *first;
    struct cpu_operation **tail;
    struct cpu_branch *branches;
    size_t branch_count;
};

/* A graph or an executable. */
struct graph {
    struct cpu_plan *plan;
    /* For an executable: the record that was queued behind its latest launch.
     * NULL for a graph. */
    struct cpu_record *done;
    /* Whether all branches run with the priority of the launch's stream. */
    bool one_priority;
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
    free(plan->branches);
    free(plan);
}

/* Add copies of `count` branches to the plan.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY. */
static ps_status
plan_branch(struct cpu_plan *plan, const struct cpu_branch *added,
            size_t count)
{
    size_t before = plan->branch_count, after = before + count;
    struct cpu_branch *branches =
        after <= MOST_BRANCHES
            ? realloc(plan->branches, after * sizeof(*branches))
            : NULL;
    if (branches == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    memcpy(&branches[before], added, count * sizeof(*added));
    plan->branches = branches;
    plan->branch_count = after;
    return PS_SUCCESS;
}

/* Append a copy of the operation to the stream's branch.  Returns NULL if out
 * of memory. */
static struct cpu_operation *
plan_add_locked(struct cpu_plan *plan, const struct cpu_stream *stream,
                const struct cpu_operation *operation)
{
    struct cpu_operation *item = cpu_item_take_locked(stream->engine);
    if (item != NULL) {
        *item = *operation;
        item->branch = stream->branch;
        item->next = NULL;
        *plan->tail = item;
        plan->tail = &item->next;
        plan->nodes++;
    }
    return item;
}

/* Returns the index of an operation in the plan. */
static size_t
index_of(const struct cpu_plan *plan, const struct cpu_operation *wanted)
{
    size_t index = 0;
    for (const struct cpu_operation *operation = plan->first;
         operation != wanted; operation = operation->next) {
        index++;
    }
    return index;
}

/* ---- Captures ---- */

/* Returns the capture in progress with this number; NULL if it is over. */
static struct cpu_capture *
capture_find_locked(struct cpu_engine *engine, uint64_t number)
{
    struct cpu_capture *capture;
    LIST_FOREACH (capture, &engine->captures, neighbours) {
        if (capture->number == number) {
            break;
        }
    }
    return capture;
}

static ps_status
join_locked(struct cpu_stream *stream, struct cpu_capture *capture)
{
    struct cpu_plan *plan = capture->plan;
    const struct cpu_branch branch = {stream->device, stream->priority};
    ps_status status = plan_branch(plan, &branch, 1);
    if (status != PS_SUCCESS) {
        return status;
    }
    stream->branch = (uint16_t)(plan->branch_count - 1);
    cpu_stream_forget_locked(stream);
    stream->capture = capture;
    stream->last = stream->covered = 0;
    stream->peer = capture->streams;
    capture->streams = stream;
    return PS_SUCCESS;
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
    struct cpu_capture *capture = stream->capture;
    if (capture->status != PS_SUCCESS) {
        return capture->status;
    }
    if (plan_add_locked(capture->plan, stream, operation) == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    capture->plan->operations++;
    stream->last = ++stream->engine->captured;
    return PS_SUCCESS;
}

ps_status
cpu_capture_record_locked(struct cpu_stream *stream, struct cpu_record *record)
{
    struct cpu_operation mark = {.kind = CPU_MARK};
    record->mark = plan_add_locked(stream->capture->plan, stream, &mark);
    if (record->mark == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    record->capture = stream->capture->number;
    record->position = stream->last;
    return stream->capture->status;
}

/* Make the stream's operations that are captured from now on wait for the
 * captured record, which may be in another branch. */
static ps_status
follow_locked(struct cpu_stream *stream, struct cpu_record *record)
{
    struct cpu_operation join = {.kind = CPU_JOIN, .mark = record->mark};
    struct cpu_stream *source = record->source;
    if (source == stream) {
        return PS_SUCCESS;
    }
    if (plan_add_locked(stream->capture->plan, stream, &join) == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    stream->last = ++stream->engine->captured;
    if (source->covered < record->position) {
        source->covered = record->position;
    }
    return PS_SUCCESS;
}

ps_status
cpu_capture_wait_locked(struct cpu_stream *stream, struct cpu_record *record)
{
    struct cpu_capture *theirs =
        capture_find_locked(stream->engine, record->capture);
    struct cpu_capture *ours = stream->capture;
    ps_status status = PS_SUCCESS;
    if (theirs == NULL) {
        return ours != NULL ? invalidate(ours, PS_ERROR_CAPTURE_ISOLATION)
                            : PS_ERROR_CAPTURE_ISOLATION;
    }
    if (ours == NULL) {
        status = join_locked(stream, theirs);
    }
    else if (ours != theirs) {
        invalidate(theirs, PS_SUCCESS);
        return invalidate(ours, PS_ERROR_CAPTURE_MERGE);
    }
    if (status == PS_SUCCESS) {
        status = follow_locked(stream, record);
    }
    /* If this has failed, the join is missing, and the branch would run too
     * early.  So make the capture invalid. */
    return status == PS_SUCCESS ? theirs->status : invalidate(theirs, status);
}

static ps_status
begin_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    if (stream == &engine->devices[stream->device].default_stream) {
        return PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    if (stream->capture != NULL) {
        return PS_ERROR_INVALID_VALUE;
    }
    struct cpu_capture *capture = malloc(sizeof(*capture));
    struct cpu_plan *plan = plan_create();
    ps_status status = PS_ERROR_OUT_OF_MEMORY;
    if (capture != NULL && plan != NULL) {
        *capture = (struct cpu_capture){
            .number = ++engine->captured,
            .origin = stream,
            .plan = plan,
        };
        status = join_locked(stream, capture);
    }
    if (status == PS_SUCCESS) {
        LIST_INSERT_HEAD(&engine->captures, capture, neighbours);
    }
    else {
        free(capture);
        free(plan);
    }
    return status;
}

static ps_status
cpu_capture_begin(const struct ps_backend *backend, int device,
                  ps_handle handle, enum ps_capture_mode mode)
{
    /* The mode does not matter: this backend has no calls that a mode
     * prohibits. */
    (void)mode;
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    return stream != NULL ? begin_locked(stream) : PS_ERROR_INVALID_HANDLE;
}

static ps_status
cpu_stream_capturing(const struct ps_backend *backend, int device,
                     ps_handle handle, int *capturing)
{
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    *capturing = stream->capture != NULL;
    return cpu_legacy_check_locked(stream);
}

static ps_status
cpu_stream_capture(const struct ps_backend *backend, int device,
                   ps_handle handle, uint64_t *capture)
{
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (stream == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    *capture = stream->capture != NULL ? stream->capture->number : 0;
    return PS_SUCCESS;
}

/* Find a stream that is being captured.  Statuses: PS_ERROR_INVALID_HANDLE;
 * PS_ERROR_INVALID_VALUE if it is not being captured. */
static ps_status
find_captured_locked(struct cpu_engine *engine, int device, ps_handle handle,
                     struct cpu_stream **stream)
{
    *stream = cpu_stream_find_locked(engine, device, handle);
    return *stream == NULL              ? PS_ERROR_INVALID_HANDLE
           : (*stream)->capture == NULL ? PS_ERROR_INVALID_VALUE
                                        : PS_SUCCESS;
}

static ps_status
cpu_capture_gate(const struct ps_backend *backend, int device,
                 ps_handle handle, uint64_t capture,
                 ps_launched_gate_function reached, void *argument)
{
    struct cpu_operation operation = {
        .kind = CPU_ENTER_GATE,
        .launched = true,
        .gate = {.launched = reached, .argument = argument},
    };
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream;
    ps_status status = find_captured_locked(engine, device, handle, &stream);
    if (status == PS_SUCCESS && stream->capture->number != capture) {
        status = PS_ERROR_INVALID_VALUE;
    }
    if (status == PS_SUCCESS) {
        status = cpu_capture_add_locked(stream, &operation);
        stream->capture->plan->gates += status == PS_SUCCESS;
    }
    return status;
}

/* Add copies of another plan's operations to the stream's capture.  The
 * operations of the other plan's first branch are added to the stream's
 * branch, and those of its other branches to new branches.  No further joins
 * are needed, because in the other plan the first branch already waits for the
 * ends of all other branches. */
static ps_status
add_plan_locked(struct cpu_stream *stream, const struct cpu_plan *other)
{
    struct cpu_plan *plan = stream->capture->plan;
    size_t before = plan->branch_count, count = 0;
    struct cpu_operation **copies =
        malloc((other->nodes + 1) * sizeof(struct cpu_operation *));
    ps_status status =
        copies != NULL ? cpu_items_reserve_locked(stream->engine, other->nodes)
                       : PS_ERROR_OUT_OF_MEMORY;
    if (status == PS_SUCCESS) {
        /* The other plan's first branch becomes part of the stream's
         * branch. */
        status =
            plan_branch(plan, &other->branches[1], other->branch_count - 1);
    }
    if (status != PS_SUCCESS) {
        free(copies);
        return status;
    }
    for (const struct cpu_operation *operation = other->first;
         operation != NULL; operation = operation->next) {
        struct cpu_operation *copy = plan_add_locked(plan, stream, operation);
        if (operation->branch > 0) {
            copy->branch = (uint16_t)(before + operation->branch - 1);
        }
        if (operation->kind == CPU_JOIN) {
            copy->mark = copies[index_of(other, operation->mark)];
        }
        copies[count++] = copy;
    }
    free(copies);
    plan->operations += other->operations;
    stream->last = ++stream->engine->captured;
    return PS_SUCCESS;
}

/* End the capture and release its streams.  Returns the capture's status, or
 * PS_ERROR_CAPTURE_UNJOINED if a stream is not joined.
 *
 * A stream counts as joined if another stream of the capture waits for its
 * last operation.  That wait is itself an operation of the other stream.  So
 * if all streams except the origin are joined, the origin waits for all of
 * them, directly or through others. */
static ps_status
close_locked(struct cpu_capture *capture)
{
    ps_status status = capture->status;
    LIST_REMOVE(capture, neighbours);
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
        close_locked(capture);
        plan_unref_locked(engine, plan);
    }
    else {
        invalidate(capture, PS_SUCCESS);
    }
}

/* Create a graph or an executable with the contents of `like`, and a handle
 * for it.  Takes over the references in `like` on success. */
static ps_status
graph_add_locked(struct cpu_engine *engine, int device, struct graph like,
                 ps_handle *handle)
{
    struct graph *graph = malloc(sizeof(*graph));
    struct cpu_slot *slot =
        graph != NULL ? cpu_slot_take_locked(engine, CPU_GRAPH, device) : NULL;
    if (slot == NULL) {
        free(graph);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *graph = like;
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
    ps_status status = close_locked(stream->capture);
    if (status == PS_SUCCESS) {
        status = graph_add_locked(engine, device, (struct graph){.plan = plan},
                                  graph);
    }
    if (status == PS_SUCCESS) {
        *operations = plan->operations;
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
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream;
    ps_status status = find_captured_locked(engine, device, handle, &stream);
    return status != PS_SUCCESS ? status
           : stream->capture->origin == stream
               ? end_locked(stream, graph, operations)
               : PS_ERROR_CAPTURE_UNMATCHED;
}

/* ---- External events ---- */

static ps_status
add_external(const struct ps_backend *backend, int device, ps_handle handle,
             enum cpu_kind kind, ps_handle event)
{
    struct cpu_operation operation = {.kind = kind, .event = event};
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_EVENT, CPU_ANY_DEVICE, event);
    if (stream == NULL || slot == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    if (slot->shared != NULL) {
        /* A record of an interprocess event needs a promise, whose creation
         * may fail.  But a launch must not fail once it has begun to queue
         * work. */
        return PS_ERROR_NOT_SUPPORTED;
    }
    return stream->capture != NULL ? cpu_capture_add_locked(stream, &operation)
                                   : PS_ERROR_INVALID_VALUE;
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

/* Queue a copy of the operation.  The caller has reserved an item for the
 * copy. */
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

/* Queue a new record with the flags of `like`.  Returns the record, with a
 * reference for the caller. */
static struct cpu_record *
push_record_locked(struct cpu_stream *stream, const struct cpu_record *like)
{
    struct cpu_record *record = cpu_item_take_locked(stream->engine);
    *record = (struct cpu_record){
        .refs = 1,
        .timed = like->timed,
        .orders = like->orders,
        .source = stream,
    };
    push_locked(stream,
                (struct cpu_operation){.kind = CPU_RECORD, .record = record});
    return record;
}

/* Queue a new record, and replace *latest with it. */
static void
push_next_record_locked(struct cpu_stream *stream, struct cpu_record **latest)
{
    struct cpu_record *record = push_record_locked(stream, *latest);
    cpu_record_unref_locked(stream->engine, *latest);
    *latest = record;
}

static void
push_wait_locked(struct cpu_stream *stream, struct cpu_record *record)
{
    if (!record->done || record->status != PS_SUCCESS ||
        cpu_is_lazy(stream->engine)) {
        push_locked(stream, (struct cpu_operation){.kind = CPU_WAIT,
                                                   .record = record});
    }
}

static void
push_external_locked(struct cpu_stream *stream,
                     const struct cpu_operation *operation)
{
    struct cpu_slot *event = cpu_slot_find_locked(
        stream->engine, CPU_EVENT, CPU_ANY_DEVICE, operation->event);
    if (event != NULL && operation->kind == CPU_RECORD_LATER) {
        struct cpu_record *latest = event->object;
        cpu_event_forget_locked(event);
        push_next_record_locked(stream, &latest);
        event->object = latest;
    }
    else if (event != NULL) {
        push_wait_locked(stream, event->object);
    }
}

/* Queue a gate on the stream.  `operation` is the gate as it was captured;
 * each launch of the graph queues a gate with a handle of its own.  The caller
 * has reserved the gate's slot and items. */
static void
push_gate_locked(struct cpu_stream *stream, int device,
                 struct cpu_operation operation)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_slot *slot = cpu_slot_take_locked(engine, CPU_GATE, device);
    struct cpu_record *record = cpu_item_take_locked(engine);
    *record = (struct cpu_record){.refs = 1, .source = stream};
    slot->object = record;
    operation.record = record;
    operation.gate.handle = slot->handle;
    push_locked(stream, operation);
}

/* Queue one operation of the plan on the stream of its branch.  `device` is
 * the device of the launch. */
static void
push_planned_locked(struct cpu_stream *stream, int device,
                    struct cpu_operation *operation)
{
    static const struct cpu_record plain;
    switch (operation->kind) {
    case CPU_RECORD_LATER:
    case CPU_WAIT_LATER:
        push_external_locked(stream, operation);
        break;
    case CPU_MARK:
        operation->record = push_record_locked(stream, &plain);
        break;
    case CPU_JOIN:
        push_wait_locked(stream, operation->mark->record);
        break;
    case CPU_ENTER_GATE:
        push_gate_locked(stream, device, *operation);
        break;
    default:
        push_locked(stream, *operation);
    }
}

/* Reserve everything that a launch needs, so that it cannot fail later:
 * threads for its work, slots for its gates, and items.  Each operation and
 * each record needs an item, and so do the wait before the first operation and
 * the record after the last one. */
static ps_status
prepare_locked(struct cpu_engine *engine, const struct cpu_plan *plan)
{
    ps_status status = cpu_engine_staff_locked(engine, CPU_CALL);
    for (const struct cpu_operation *operation = plan->first;
         operation != NULL && status == PS_SUCCESS;
         operation = operation->next) {
        status = cpu_engine_staff_locked(engine, operation->kind);
    }
    if (status == PS_SUCCESS) {
        status = cpu_slots_reserve_locked(engine, plan->gates);
    }
    return status == PS_SUCCESS
               ? cpu_items_reserve_locked(engine, 2 * plan->nodes + 3)
               : status;
}

/* Returns an array with a stream for each branch of a launch.  The first is
 * the launch's stream.  The others are temporary, and are freed when they are
 * idle.  Returns NULL if out of memory. */
static struct cpu_stream **
streams_make_locked(const struct graph *graph, struct cpu_stream *stream)
{
    const struct cpu_plan *plan = graph->plan;
    struct cpu_stream **streams =
        malloc(plan->branch_count * sizeof(*streams));
    if (streams == NULL) {
        return NULL;
    }
    streams[0] = stream;
    for (size_t i = 1; i < plan->branch_count; i++) {
        const struct cpu_branch *branch = &plan->branches[i];
        streams[i] = malloc(sizeof(**streams));
        if (streams[i] == NULL) {
            while (--i > 0) {
                cpu_stream_reap_locked(streams[i]);
            }
            free(streams);
            return NULL;
        }
        cpu_stream_init_locked(streams[i], stream->engine, branch->device,
                               graph->one_priority ? stream->priority
                                                   : branch->priority);
        /* If this stream fails, the joins pass the failure on to the launch's
         * stream.  Mark it as already reported, so that it is not also passed
         * on to the device. */
        streams[i]->destroyed = streams[i]->reported = true;
    }
    return streams;
}

static void
push_plan_locked(struct cpu_plan *plan, struct cpu_stream **streams)
{
    for (struct cpu_operation *operation = plan->first; operation != NULL;
         operation = operation->next) {
        push_planned_locked(streams[operation->branch], streams[0]->device,
                            operation);
    }
    for (struct cpu_operation *operation = plan->first; operation != NULL;
         operation = operation->next) {
        if (operation->kind == CPU_MARK) {
            cpu_record_unref_locked(streams[0]->engine, operation->record);
            operation->record = NULL;
        }
    }
}

/* Start the work of a launch, by releasing the streams that the launch has
 * taken.  `idle` says whether the first stream was idle, so that the launch
 * has taken it too. */
static void
start_locked(struct cpu_stream **streams, size_t count, bool idle)
{
    struct cpu_engine *engine = streams[0]->engine;
    bool here = !idle || cpu_stream_help_locked(streams[0]);
    for (size_t i = 1; i < count && here; i++) {
        here = cpu_stream_help_locked(streams[i]);
    }
    if (count > 1 && here) {
        cpu_engine_help_locked(engine);
    }
}

static ps_status
launch_locked(struct cpu_stream *stream, struct graph *graph)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_plan *plan = graph->plan;
    if (stream->capture != NULL) {
        return PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    if (stream->pending >= CPU_QUEUE_LIMIT) {
        return PS_ERROR_QUEUE_FULL;
    }
    ps_status status = cpu_stream_order_locked(stream);
    bool idle = stream->first == NULL;
    if (status == PS_SUCCESS) {
        status = prepare_locked(engine, plan);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    struct cpu_stream **streams = streams_make_locked(graph, stream);
    if (streams == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    push_wait_locked(stream, graph->done);
    push_plan_locked(plan, streams);
    push_next_record_locked(stream, &graph->done);
    struct ps_times *times = engine->timing ? cpu_times_take() : NULL;
    if (times != NULL) {
        cpu_times_promise_locked(graph->done, times);
    }
    start_locked(streams, plan->branch_count, idle);
    free(streams);
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
    CPU_ENTER(engine, backend);
    struct graph *graph = graph_find_locked(engine, device, executable);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    return graph != NULL && graph->done != NULL && stream != NULL
               ? launch_locked(stream, graph)
               : PS_ERROR_INVALID_HANDLE;
}

static ps_status
instantiate_locked(struct cpu_engine *engine, int device, struct graph *graph,
                   unsigned options, ps_handle *executable)
{
    struct cpu_record *done = cpu_item_take_locked(engine);
    if (done == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *done = (struct cpu_record){.refs = 1, .orders = true, .done = true};
    struct graph made = {
        .plan = graph->plan,
        .done = done,
        .one_priority = (options & PS_INSTANTIATE_NODE_PRIORITY) == 0,
    };
    ps_status status = graph_add_locked(engine, device, made, executable);
    if (status == PS_SUCCESS) {
        graph->plan->refs++;
    }
    else {
        cpu_item_give_locked(engine, done);
    }
    return status;
}

static ps_status
cpu_capture_graph(const struct ps_backend *backend, int device,
                  ps_handle handle, ps_handle other)
{
    CPU_ENTER(engine, backend);
    struct cpu_stream *stream;
    struct graph *graph = graph_find_locked(engine, device, other);
    ps_status status =
        graph != NULL ? find_captured_locked(engine, device, handle, &stream)
                      : PS_ERROR_INVALID_HANDLE;
    if (status == PS_SUCCESS) {
        status = stream->capture->status;
    }
    return status == PS_SUCCESS ? add_plan_locked(stream, graph->plan)
                                : status;
}

/* The option PS_INSTANTIATE_AUTO_FREE has no effect, because captured work
 * cannot allocate memory. */
static ps_status
cpu_graph_instantiate_with(const struct ps_backend *backend, int device,
                           ps_handle handle, unsigned options,
                           ps_handle *executable)
{
    CPU_ENTER(engine, backend);
    struct graph *graph = graph_find_locked(engine, device, handle);
    return graph != NULL
               ? instantiate_locked(engine, device, graph, options, executable)
               : PS_ERROR_INVALID_HANDLE;
}

static ps_status
cpu_graph_instantiate(const struct ps_backend *backend, int device,
                      ps_handle handle, ps_handle *executable)
{
    return cpu_graph_instantiate_with(
        backend, device, handle,
        PS_INSTANTIATE_AUTO_FREE | PS_INSTANTIATE_NODE_PRIORITY, executable);
}

/* Returns the first difference that prevents an executable with `plan` from
 * running `new`.  The result's `reason` is NULL if there is no such
 * difference.  Plans have their operations in the order of the calls, so two
 * plans are equal if the same calls made them. */
static struct ps_graph_difference
compare(const struct cpu_plan *plan, const struct cpu_plan *new)
{
    const struct cpu_operation *operation = plan->first, *other = new->first;
    struct ps_graph_difference found = {.node = 0};
    for (; operation != NULL && other != NULL;
         operation = operation->next, other = other->next, found.node++) {
        if (operation->kind != other->kind) {
            found.reason = "its type differs";
        }
        else if (operation->branch != other->branch ||
                 (operation->kind == CPU_JOIN &&
                  index_of(plan, operation->mark) !=
                      index_of(new, other->mark))) {
            found.reason = "it depends on other nodes";
        }
        else if (plan->branches[operation->branch].device !=
                 new->branches[other->branch].device) {
            found.reason = "it runs on another device";
        }
        if (found.reason != NULL) {
            return found;
        }
    }
    if (operation != NULL || other != NULL) {
        found.reason = "the number of nodes differs";
        found.node = other != NULL ? found.node : SIZE_MAX;
    }
    return found;
}

/* Launches that were queued earlier are not affected, because their operations
 * are copies of the plan's. */
static ps_status
cpu_graph_update(const struct ps_backend *backend, int device,
                 ps_handle executable, ps_handle handle,
                 struct ps_graph_difference *difference)
{
    CPU_ENTER(engine, backend);
    struct graph *old = graph_find_locked(engine, device, executable);
    struct graph *new = graph_find_locked(engine, device, handle);
    if (old == NULL || new == NULL || old->done == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    *difference = compare(old->plan, new->plan);
    if (difference->reason != NULL) {
        return PS_ERROR_GRAPH_UPDATE;
    }
    new->plan->refs++;
    plan_unref_locked(engine, old->plan);
    old->plan = new->plan;
    return PS_SUCCESS;
}

static ps_status
cpu_graph_destroy(const struct ps_backend *backend, int device,
                  ps_handle handle)
{
    CPU_ENTER(engine, backend);
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_GRAPH, device, handle);
    if (slot == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    struct graph *graph = slot->object;
    cpu_slot_give_locked(engine, slot);
    plan_unref_locked(engine, graph->plan);
    if (graph->done != NULL) {
        cpu_record_unref_locked(engine, graph->done);
    }
    free(graph);
    return PS_SUCCESS;
}

/* ---- Graphs as text ---- */

static void
print_pattern(const uint8_t pattern[4], FILE *file)
{
    size_t period = memcmp(pattern, pattern + 2, 2) != 0 ? 4
                    : pattern[0] != pattern[1]           ? 2
                                                         : 1;
    fprintf(file, "0x");
    for (size_t i = period; i-- > 0;) {
        fprintf(file, "%02x", pattern[i]);
    }
}

static void
print_label(const struct cpu_operation *operation, FILE *file)
{
    switch (operation->kind) {
    case CPU_SLEEP:
        fprintf(file, "sleep\\n%lld ns", (long long)operation->duration);
        break;
    case CPU_FAIL:
        fprintf(file, "fail\\nstatus %d", operation->status);
        break;
    case CPU_COPY:
        fprintf(file, "copy\\n%zu bytes\\n%p to %p",
                operation->transfer.nbytes, operation->transfer.source,
                operation->transfer.destination);
        break;
    case CPU_FILL:
        fprintf(file, "fill with ");
        print_pattern(operation->transfer.pattern, file);
        fprintf(file, "\\n%zu bytes\\n%p", operation->transfer.nbytes,
                operation->transfer.destination);
        break;
    case CPU_CALL:
    case CPU_ENTER_GATE:
        fprintf(file, "%s", cpu_operation_name(operation->kind));
        break;
    case CPU_RECORD_LATER:
        fprintf(file, "record event\\n0x%zx", (size_t)operation->event);
        break;
    case CPU_WAIT_LATER:
        fprintf(file, "wait for event\\n0x%zx", (size_t)operation->event);
        break;
    default:
        /* A mark or a join only orders other operations. */
        fprintf(file, "empty");
    }
}

static void
print_edge(const struct cpu_operation *from, const struct cpu_operation *to,
           FILE *file)
{
    fprintf(file, "  \"%p\" -> \"%p\";\n", (const void *)from,
            (const void *)to);
}

/* Write the plan in Graphviz's language.  Each operation is a node, and has
 * edges from the operations after which it runs.  The caller holds a reference
 * to the plan, so no lock is needed.  Returns false if out of memory. */
static bool
plan_print(const struct cpu_plan *plan, const char *name, FILE *file)
{
    const struct cpu_operation **last =
        calloc(plan->branch_count, sizeof(*last));
    if (last == NULL) {
        return false;
    }
    fprintf(file, "digraph \"%s\" {\n  node [shape=box];\n", name);
    for (const struct cpu_operation *operation = plan->first;
         operation != NULL; operation = operation->next) {
        const struct cpu_operation **previous = &last[operation->branch];
        fprintf(file, "  \"%p\" [group=%u, label=\"", (const void *)operation,
                operation->branch);
        print_label(operation, file);
        fprintf(file, "\\ndevice %d, branch %u\"];\n",
                plan->branches[operation->branch].device, operation->branch);
        if (*previous != NULL) {
            print_edge(*previous, operation, file);
        }
        if (operation->kind == CPU_JOIN) {
            print_edge(operation->mark, operation, file);
        }
        *previous = operation;
    }
    fprintf(file, "}\n");
    free(last);
    return true;
}

static ps_status
print_to(const struct cpu_plan *plan, ps_handle handle, const char *path)
{
    char name[32];
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return errno == ENOMEM ? PS_ERROR_OUT_OF_MEMORY
                               : PS_ERROR_OPERATING_SYSTEM;
    }
    snprintf(name, sizeof(name), "graph 0x%zx", (size_t)handle);
    bool printed = plan_print(plan, name, file);
    bool written = !ferror(file);
    if (fclose(file) != 0 || !written) {
        return PS_ERROR_OPERATING_SYSTEM;
    }
    return printed ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
}

static ps_status
cpu_graph_print(const struct ps_backend *backend, int device, ps_handle handle,
                const char *path)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct graph *graph = graph_find_locked(engine, device, handle);
    struct cpu_plan *plan = graph != NULL ? graph->plan : NULL;
    if (plan != NULL) {
        plan->refs++;
    }
    cpu_unlock(engine);
    if (plan == NULL) {
        return PS_ERROR_INVALID_HANDLE;
    }
    ps_status status = print_to(plan, handle, path);
    int error = errno;
    cpu_lock(engine);
    plan_unref_locked(engine, plan);
    cpu_unlock(engine);
    errno = error;
    return status;
}

/* ---- Graphs as data ---- */

static struct ps_graph_node
describe(const struct cpu_operation *operation)
{
    struct ps_graph_node node = {.kind = PS_NODE_EMPTY};
    switch (operation->kind) {
    case CPU_SLEEP:
    case CPU_FAIL:
        node.kind = PS_NODE_KERNEL;
        node.name = operation->kind == CPU_SLEEP ? "sleep" : "fail";
        break;
    case CPU_COPY:
    case CPU_FILL:
        node.kind = operation->kind == CPU_COPY ? PS_NODE_COPY : PS_NODE_FILL;
        node.nbytes = operation->transfer.nbytes;
        break;
    case CPU_CALL:
        node.kind = PS_NODE_HOST;
        memcpy(&node.function, &operation->call.function,
               sizeof(node.function));
        node.argument = operation->call.argument;
        break;
    case CPU_ENTER_GATE:
        node.kind = PS_NODE_GATE;
        node.argument = operation->gate.argument;
        break;
    case CPU_RECORD_LATER:
    case CPU_WAIT_LATER:
        node.kind = operation->kind == CPU_RECORD_LATER ? PS_NODE_RECORD
                                                        : PS_NODE_WAIT;
        node.event = operation->event;
        break;
    default:
        break;
    }
    return node;
}

static void
add_edge(struct ps_graph_edge *edges, size_t room, size_t *count, size_t from,
         size_t to)
{
    if (*count < room) {
        edges[*count] = (struct ps_graph_edge){.from = from, .to = to};
    }
    ++*count;
}

static ps_status
describe_locked(const struct cpu_plan *plan, struct ps_graph_node *nodes,
                size_t *node_count, struct ps_graph_edge *edges,
                size_t *edge_count)
{
    size_t index = 0, count = 0;
    /* For each branch: 1 + the index of its latest operation so far; 0 if it
     * has none yet. */
    size_t *next = calloc(plan->branch_count, sizeof(*next));
    if (next == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    for (const struct cpu_operation *operation = plan->first;
         operation != NULL; operation = operation->next) {
        size_t *latest = &next[operation->branch];
        if (index < *node_count) {
            nodes[index] = describe(operation);
            nodes[index].number = (uint32_t)index;
        }
        if (*latest > 0) {
            add_edge(edges, *edge_count, &count, *latest - 1, index);
        }
        if (operation->kind == CPU_JOIN) {
            add_edge(edges, *edge_count, &count,
                     index_of(plan, operation->mark), index);
        }
        *latest = ++index;
    }
    free(next);
    *node_count = index;
    *edge_count = count;
    return PS_SUCCESS;
}

static ps_status
cpu_graph_nodes(const struct ps_backend *backend, int device, ps_handle handle,
                struct ps_graph_node *nodes, size_t *node_count,
                struct ps_graph_edge *edges, size_t *edge_count)
{
    CPU_ENTER(engine, backend);
    struct graph *graph = graph_find_locked(engine, device, handle);
    return graph != NULL ? describe_locked(graph->plan, nodes, node_count,
                                           edges, edge_count)
                         : PS_ERROR_INVALID_HANDLE;
}

/* The CPU engine has nothing to upload. */
static ps_status
cpu_graph_upload(const struct ps_backend *backend, int device,
                 ps_handle executable, ps_handle handle)
{
    CPU_ENTER(engine, backend);
    struct graph *graph = graph_find_locked(engine, device, executable);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    return graph != NULL && graph->done != NULL && stream != NULL
               ? PS_SUCCESS
               : PS_ERROR_INVALID_HANDLE;
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
    table->graph_print = cpu_graph_print;
    table->stream_capture = cpu_stream_capture;
    table->capture_gate = cpu_capture_gate;
    table->graph_nodes = cpu_graph_nodes;
    table->graph_upload = cpu_graph_upload;
    table->graph_instantiate_with = cpu_graph_instantiate_with;
    table->graph_update = cpu_graph_update;
    table->capture_graph = cpu_capture_graph;
}
