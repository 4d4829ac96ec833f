/* Graphs.  References to kept objects are dropped with no mutex held, because
 * releasing an object may take other locks. */
#include "graph.h"

#include <stdlib.h>

#include "current.h"
#include "event.h"
#include "memory.h"
#include "partition.h"
#include "runtime.h"
#include "thread_stream.h"

enum {
    ALL_OPTIONS = PS_INSTANTIATE_AUTO_FREE | PS_INSTANTIATE_NODE_PRIORITY,
};

ps_status
ps_graph_create(bool keeps, struct ps_graph **result)
{
    struct ps_graph *graph = calloc(1, sizeof(*graph));
    if (graph == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    graph->generation = ps_generation();
    graph->keeps = keeps;
    pthread_mutex_init(&graph->mutex, NULL);
    *result = graph;
    return PS_SUCCESS;
}

/* Lock the graph.  Returns PS_ERROR_FOREIGN, without locking, if a parent
 * process created the graph, because a thread of the parent may have held the
 * graph's mutex at the fork. */
static ps_status
lock(struct ps_graph *graph)
{
    if (graph->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    pthread_mutex_lock(&graph->mutex);
    return PS_SUCCESS;
}

static ps_status
unlock(struct ps_graph *graph, ps_status status)
{
    pthread_mutex_unlock(&graph->mutex);
    return status;
}

/* Evaluate the expression, which has a status as its value, with the graph
 * locked.  The macro's value is that status or, if locking fails, the status
 * of lock(). */
#define LOCKED(graph, expression)                                    \
    ({                                                               \
        ps_status locked_ = lock(graph);                             \
        locked_ == PS_SUCCESS ? unlock(graph, expression) : locked_; \
    })

ps_status
ps_graph_capture_begin(struct ps_graph *graph, struct ps_stream *stream,
                       enum ps_capture_mode mode, uint64_t *number,
                       uint64_t *order)
{
    struct ps_device *device = stream->device;
    *number = 0;
    *order = 0;
    if (device->runtime->backend->capture_begin == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (stream->handle == 0) {
        return PS_ERROR_GRAPH_DEFAULT;
    }
    ps_status status = lock(graph);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (graph->origin != NULL || graph->native != 0 ||
        graph->executable != 0) {
        return unlock(graph, PS_ERROR_GRAPH_TAKEN);
    }
    graph->capture =
        (struct ps_capture){.device = device, .keep = graph->keep};
    graph->keep = (struct ps_keep){0};
    /* Add the capture to the list before it begins.  Work may join the capture
     * as soon as it begins, and the objects of that work must be kept. */
    ps_capture_add(&graph->capture);
    status = ps_partition_keep(stream->partition);
    if (status == PS_SUCCESS) {
        status = PS_CALL(device, capture_begin, stream->handle, mode);
    }
    if (status == PS_SUCCESS) {
        graph->device = device;
        graph->origin = ps_stream_ref(stream);
        graph->thread = pthread_self();
        graph->relaxed = mode == PS_CAPTURE_RELAXED;
        if (device->runtime->backend->stream_capture != NULL) {
            PS_CALL(device, stream_capture, stream->handle, number);
        }
        graph->number = *number;
        *order = ++graph->begun;
        return unlock(graph, status);
    }
    ps_capture_remove(&graph->capture);
    /* While the capture was in the list, work of other captures may have added
     * objects.  The graph keeps them until the next reset. */
    graph->keep = graph->capture.keep;
    return unlock(graph, status);
}

/* References that were taken out of a graph under its lock, and that are
 * dropped after the graph is unlocked. */
struct leftovers {
    struct ps_stream *origin;
    struct ps_stream *launched;
    struct ps_keep keep;
    struct ps_keep updated;
    struct ps_block *launches;
};

/* The owner of the block ps_graph.launches.  It holds references to the
 * objects that must stay alive until all launches are done. */
struct kept_pair {
    struct ps_keep keep;
    struct ps_keep updated;
};

static ps_status
release_pair(void *owner)
{
    struct kept_pair *pair = owner;
    ps_status status = ps_keep_drop(&pair->keep);
    status = ps_first_failure(status, ps_keep_drop(&pair->updated));
    free(pair);
    return status;
}

/* Create the block ps_graph.launches.  It is a borrowed block of 0 bytes, and
 * every launch counts as work that uses it.  The memory pool releases a block
 * only when all work that uses it is done.  When the graph is reset, the kept
 * objects move to the block's owner, so they are released after all
 * launches. */
static ps_status
create_launches(struct ps_device *device, struct ps_block **block)
{
    struct kept_pair *pair = calloc(1, sizeof(*pair));
    if (pair == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    struct ps_loan loan = {.owner = pair, .release = release_pair};
    ps_status status = ps_block_borrow(device, &loan, block);
    if (status != PS_SUCCESS) {
        free(pair);
    }
    return status;
}

/* Drop the references.  Returns the status of the clean-up. */
static ps_status
drop(struct leftovers *left)
{
    ps_status status;
    if (left->launches != NULL) {
        *(struct kept_pair *)left->launches->owner =
            (struct kept_pair){left->keep, left->updated};
        status = ps_block_unref(left->launches);
    }
    else {
        status = ps_keep_drop(&left->keep);
        status = ps_first_failure(status, ps_keep_drop(&left->updated));
    }
    status = ps_first_failure(status, ps_stream_unref(left->launched));
    if (left->origin == NULL) {
        return status;
    }
    struct ps_device *device = left->origin->device;
    status = ps_first_failure(status, ps_stream_unref(left->origin));
    ps_device_give_up_deferred(device);
    return status;
}

/* Unlock the graph and drop the references.  The program did not ask for this
 * clean-up, so its failure is stored instead of returned. */
static ps_status
unlock_and_drop(struct ps_graph *graph, struct leftovers *left,
                ps_status status)
{
    struct ps_runtime *runtime = graph->device->runtime;
    unlock(graph, status);
    ps_runtime_note_failure(runtime, drop(left));
    return status;
}

/* Returns whether a capture is in progress that only another thread may end.
 * If this thread tried to end it, the driver's call would fail, but would
 * still end the capture. */
static bool
is_other_threads(const struct ps_graph *graph)
{
    return graph->origin != NULL && !graph->relaxed &&
           !pthread_equal(graph->thread, pthread_self());
}

/* End the capture.  If end->capture is true afterwards, the capture is over,
 * even if the status is a failure.  `last` is true if the graph is being
 * freed.  In that case, a capture that this thread cannot end is left to the
 * stream's own thread, which ends it later. */
static ps_status
end_locked(struct ps_graph *graph, bool last, struct leftovers *left,
           struct ps_graph_end *end)
{
    bool remote = ps_stream_is_remote(graph->origin);
    ps_status status =
        remote ? PS_ERROR_CAPTURE_WRONG_THREAD
               : PS_CALL(graph->device, capture_end, graph->origin->handle,
                         &graph->native, &end->operations);
    if (remote && !last) {
        return status;
    }
    if (remote) {
        atomic_store(&graph->origin->of_thread.adrift, true);
    }
    /* After other failures the capture is over.  If the stream is captured
     * again by now, another thread has begun that capture. */
    if (status == PS_ERROR_CAPTURE_UNMATCHED && !last &&
        ps_stream_in_capture(graph->origin)) {
        return status;
    }
    ps_capture_remove(&graph->capture);
    graph->keep = graph->capture.keep;
    left->origin = graph->origin;
    graph->origin = NULL;
    end->capture = true;
    return status;
}

static ps_status
drop_native_locked(struct ps_graph *graph)
{
    ps_handle native = graph->native;
    graph->native = 0;
    return native == 0 ? PS_SUCCESS
                       : PS_CALL(graph->device, graph_destroy, native);
}

static ps_status
drop_executable_locked(struct ps_graph *graph)
{
    ps_handle executable = graph->executable;
    graph->executable = 0;
    return executable == 0
               ? PS_SUCCESS
               : PS_CALL(graph->device, executable_destroy, executable);
}

static ps_status
instantiate_locked(struct ps_graph *graph, unsigned options)
{
    if (options != ALL_OPTIONS &&
        graph->device->runtime->backend->graph_instantiate_with == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    /* Drop the old executable first: CUDA does not allow two executables of a
     * graph that allocates memory. */
    ps_runtime_note_failure(graph->device->runtime,
                            drop_executable_locked(graph));
    graph->fresh = true;
    return options == ALL_OPTIONS
               ? PS_CALL(graph->device, graph_instantiate, graph->native,
                         &graph->executable)
               : PS_CALL(graph->device, graph_instantiate_with, graph->native,
                         options, &graph->executable);
}

/* Make the executable, unless the graph has one or is empty. */
static ps_status
prepare_locked(struct ps_graph *graph, bool *made)
{
    if (graph->native == 0 || graph->executable != 0) {
        return PS_SUCCESS;
    }
    ps_status status = instantiate_locked(graph, ALL_OPTIONS);
    *made = status == PS_SUCCESS;
    return status;
}

/* Drop the native graph and the executable, and move the graph's references to
 * *left. */
static ps_status
empty_locked(struct ps_graph *graph, struct leftovers *left)
{
    ps_status status = drop_native_locked(graph);
    status = ps_first_failure(status, drop_executable_locked(graph));
    left->keep = graph->keep;
    left->updated = graph->updated;
    left->launched = graph->launched;
    left->launches = graph->launches;
    graph->number = 0;
    graph->keep = graph->updated = (struct ps_keep){0};
    graph->launched = NULL;
    graph->launches = NULL;
    return status;
}

ps_status
ps_graph_capture_end(struct ps_graph *graph, struct ps_stream *stream,
                     struct ps_graph_end *end)
{
    *end = (struct ps_graph_end){0};
    ps_status status = lock(graph);
    if (status != PS_SUCCESS) {
        return status;
    }
    end->number = graph->number;
    end->order = graph->begun;
    if (graph->origin == NULL) {
        return unlock(graph, PS_ERROR_GRAPH_IDLE);
    }
    if (graph->origin->device != stream->device ||
        graph->origin->identity != stream->identity) {
        return unlock(graph, PS_ERROR_GRAPH_STREAM);
    }
    if (is_other_threads(graph)) {
        return unlock(graph, PS_ERROR_CAPTURE_WRONG_THREAD);
    }
    struct leftovers left = {0};
    status = end_locked(graph, false, &left, end);
    if (status != PS_SUCCESS && end->capture) {
        ps_runtime_note_failure(graph->device->runtime,
                                empty_locked(graph, &left));
    }
    return unlock_and_drop(graph, &left, status);
}

ps_status
ps_graph_finish(struct ps_graph *graph, uint64_t order, bool keep_native,
                bool *made)
{
    *made = false;
    ps_status status = lock(graph);
    if (status != PS_SUCCESS) {
        return status;
    }
    /* A hook or another thread may have reset the graph since the capture
     * ended. */
    if (graph->begun != order || graph->keeps || graph->native == 0) {
        return unlock(graph, status);
    }
    struct leftovers left = {0};
    struct ps_runtime *runtime = graph->device->runtime;
    status = prepare_locked(graph, made);
    if (status != PS_SUCCESS) {
        /* Empty the graph, because the capture counts as failed.  Otherwise a
         * later launch could still instantiate the native graph. */
        ps_runtime_note_failure(runtime, empty_locked(graph, &left));
    }
    else if (!keep_native) {
        ps_runtime_note_failure(runtime, drop_native_locked(graph));
    }
    return unlock_and_drop(graph, &left, status);
}

ps_status
ps_graph_keep(struct ps_graph *graph, const struct ps_kept *item)
{
    return LOCKED(graph, graph->origin != NULL
                             ? ps_capture_keep_in(&graph->capture, item)
                             : ps_keep_add(&graph->keep, item));
}

bool
ps_graph_is_capturing(struct ps_graph *graph, uint64_t *number)
{
    bool capturing = false;
    *number = 0;
    if (lock(graph) == PS_SUCCESS) {
        capturing = graph->origin != NULL;
        *number = graph->number;
        unlock(graph, PS_SUCCESS);
    }
    return capturing;
}

uint64_t
ps_graph_begun(struct ps_graph *graph)
{
    uint64_t begun = 0;
    if (lock(graph) == PS_SUCCESS) {
        begun = graph->begun;
        unlock(graph, PS_SUCCESS);
    }
    return begun;
}

struct ps_stream *
ps_graph_launched(struct ps_graph *graph)
{
    struct ps_stream *stream = NULL;
    if (lock(graph) == PS_SUCCESS) {
        stream =
            graph->launched != NULL ? ps_stream_ref(graph->launched) : NULL;
        unlock(graph, PS_SUCCESS);
    }
    return stream;
}

static ps_status
instantiate_again_locked(struct ps_graph *graph, unsigned options)
{
    if (graph->executable != 0 && !graph->keeps) {
        return PS_ERROR_GRAPH_FINAL;
    }
    return graph->native == 0 ? PS_ERROR_GRAPH_EMPTY
                              : instantiate_locked(graph, options);
}

ps_status
ps_graph_instantiate(struct ps_graph *graph, unsigned options)
{
    return LOCKED(graph, instantiate_again_locked(graph, options));
}

ps_status
ps_graph_prepare(struct ps_graph *graph, bool *made)
{
    *made = false;
    return LOCKED(graph, prepare_locked(graph, made));
}

/* Add the objects of `from` to `to`. */
static ps_status
copy_keep(const struct ps_keep *from, struct ps_keep *to)
{
    ps_status status = PS_SUCCESS;
    for (size_t i = 0; i < from->count && status == PS_SUCCESS; i++) {
        status = ps_keep_add(to, &from->items[i]);
    }
    return status;
}

/* Check that `number`, which the caller read earlier, is the number of the
 * graph's latest capture.  If it is not, and `number` is 0, the caller knew of
 * no capture.  In that case, returns `without`, so that the caller does not
 * try again. */
static ps_status
check_number_locked(const struct ps_graph *graph, uint64_t number,
                    ps_status without)
{
    return graph->number == number ? PS_SUCCESS
           : number == 0           ? without
                                   : PS_ERROR_GRAPH_CHANGED;
}

/* Check that the graph still has the native graph of the capture with this
 * number. */
static ps_status
check_source_locked(const struct ps_graph *graph, uint64_t number)
{
    return graph->native == 0
               ? PS_ERROR_GRAPH_SOURCE
               : check_number_locked(graph, number, PS_ERROR_GRAPH_SOURCE);
}

static ps_status
check_update_locked(const struct ps_graph *graph, const struct ps_graph *other,
                    uint64_t number)
{
    if (graph->native == 0 && graph->executable == 0) {
        return PS_ERROR_GRAPH_EMPTY;
    }
    ps_status status = check_source_locked(other, number);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (graph->device != other->device) {
        return PS_ERROR_GRAPH_STREAM;
    }
    return graph->device->runtime->backend->graph_update == NULL
               ? PS_ERROR_NOT_SUPPORTED
               : PS_SUCCESS;
}

/* Make later launches do the work of `other`.  The objects of the previous
 * update are then used only by launches that are already queued.  So these
 * objects move to the old block `launches`, which is released when the queued
 * launches are done.  The objects of the graph's own captured work stay in the
 * graph, because a later instantiation uses them.  The queued launches may use
 * them, too, so the old block also gets references to them. */
static ps_status
update_locked(struct ps_graph *graph, struct ps_graph *other, uint64_t number,
              struct ps_graph_difference *difference, bool *made,
              struct leftovers *left)
{
    struct ps_keep updated = {0};
    ps_status status = check_update_locked(graph, other, number);
    if (status == PS_SUCCESS) {
        status = prepare_locked(graph, made);
    }
    if (status == PS_SUCCESS) {
        status = copy_keep(&other->keep, &updated);
    }
    if (status == PS_SUCCESS) {
        status = copy_keep(&graph->keep, &left->keep);
    }
    if (status == PS_SUCCESS) {
        status = PS_CALL(graph->device, graph_update, graph->executable,
                         other->native, difference);
    }
    left->updated = updated;
    if (status == PS_SUCCESS) {
        left->updated = graph->updated;
        graph->updated = updated;
        left->launches = graph->launches;
        graph->launches = NULL;
    }
    return status;
}

/* Lock both graphs, in the order of their addresses, so that two threads
 * cannot deadlock. */
static ps_status
lock_two(struct ps_graph *graph, struct ps_graph *other)
{
    struct ps_graph *first = graph < other ? graph : other;
    struct ps_graph *second = graph < other ? other : graph;
    ps_status status = lock(first);
    if (status == PS_SUCCESS && (status = lock(second)) != PS_SUCCESS) {
        unlock(first, status);
    }
    return status;
}

static ps_status
unlock_two(struct ps_graph *graph, struct ps_graph *other, ps_status status)
{
    return unlock(graph, unlock(other, status));
}

ps_status
ps_graph_update(struct ps_graph *graph, struct ps_graph *other,
                uint64_t number, struct ps_graph_difference *difference,
                bool *made)
{
    struct leftovers left = {0};
    *made = false;
    *difference = (struct ps_graph_difference){.node = SIZE_MAX};
    ps_status status = lock_two(graph, other);
    if (status != PS_SUCCESS) {
        return status;
    }
    status = update_locked(graph, other, number, difference, made, &left);
    unlock(other, status);
    return graph->device == NULL ? unlock(graph, status)
                                 : unlock_and_drop(graph, &left, status);
}

static ps_status
check_child_locked(const struct ps_graph *graph, const struct ps_graph *child,
                   uint64_t number, struct ps_stream *stream)
{
    uint64_t capture = 0;
    if (graph->origin == NULL) {
        return PS_ERROR_GRAPH_IDLE;
    }
    ps_status status = check_source_locked(child, number);
    if (status != PS_SUCCESS) {
        return status;
    }
    const struct ps_backend *backend = stream->device->runtime->backend;
    if (backend->capture_graph == NULL || backend->stream_capture == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    status = PS_CALL(stream->device, stream_capture, stream->handle, &capture);
    return status == PS_SUCCESS && (capture != graph->number ||
                                    stream->device != child->device)
               ? PS_ERROR_GRAPH_STREAM
               : status;
}

static ps_status
add_child_locked(struct ps_graph *graph, struct ps_graph *child,
                 uint64_t number, struct ps_stream *stream)
{
    ps_status status = check_child_locked(graph, child, number, stream);
    for (size_t i = 0; i < child->keep.count && status == PS_SUCCESS; i++) {
        status = ps_capture_keep_in(&graph->capture, &child->keep.items[i]);
    }
    return status != PS_SUCCESS ? status
                                : PS_CALL(stream->device, capture_graph,
                                          stream->handle, child->native);
}

ps_status
ps_graph_add_child(struct ps_graph *graph, struct ps_graph *child,
                   uint64_t number, struct ps_stream *stream)
{
    ps_status status = lock_two(graph, child);
    return status != PS_SUCCESS
               ? status
               : unlock_two(graph, child,
                            add_child_locked(graph, child, number, stream));
}

/* Set graph->launched.  If it changes, *before receives the reference to the
 * previous stream, which the caller must drop. */
static void
set_launched_locked(struct ps_graph *graph, struct ps_stream *stream,
                    struct ps_stream **before)
{
    if (graph->launched != stream) {
        *before = graph->launched;
        graph->launched = ps_stream_ref(stream);
    }
}

static ps_status
wait_quietly(struct ps_stream *stream, struct ps_event *event)
{
    bool own = ps_own_begin(stream->device->runtime);
    ps_status status = ps_stream_wait_event(stream, event);
    ps_own_end(own);
    return status;
}

/* Make the stream wait for all earlier launches of the graph, which were
 * launches of other executables. */
static ps_status
follow_locked(struct ps_graph *graph, struct ps_stream *stream,
              struct ps_stream **before, struct ps_stream **full)
{
    struct ps_stream *launched = graph->launched;
    struct ps_event *latest;
    ps_status status = ps_thread_stream_latest(launched, &latest);
    if (status == PS_SUCCESS) {
        status = latest != NULL
                     ? wait_quietly(stream, latest)
                     : ps_stream_wait_stream_quietly(stream, launched);
    }
    if (status == PS_SUCCESS) {
        set_launched_locked(graph, stream, before);
    }
    /* The failed call records an event on `launched` and queues a wait on
     * `stream`, so the full queue may be that of either stream.  To find out
     * which one it is, wait 0 ns for room in the queue of `launched`.  If this
     * fails, let the caller wait for room there.  (If the reason is not a full
     * queue, the caller's wait will fail in the same way.) */
    else if (status == PS_ERROR_QUEUE_FULL && latest == NULL &&
             ps_stream_wait_room(launched, 0) != PS_SUCCESS) {
        *full = launched;
    }
    return status;
}

static ps_status
queue_launch_locked(struct ps_graph *graph, struct ps_launch *launch,
                    struct ps_stream *stream)
{
    launch->begin(launch, stream);
    ps_status status = PS_CALL(graph->device, graph_launch, graph->executable,
                               stream->handle);
    if (status != PS_SUCCESS) {
        launch->cancel(launch);
    }
    return status;
}

/* Returns `captured` if the stream is being captured,
 * PS_ERROR_CAPTURE_IMPLICIT if it is a default stream that serializes with a
 * captured stream, else PS_SUCCESS.  Core checks this because the check in the
 * backend's graph_launch would invalidate the capture. */
static ps_status
refuse_captured(struct ps_stream *stream, ps_status captured)
{
    int capturing = 0;
    ps_status status =
        PS_CALL(stream->device, stream_capturing, stream->handle, &capturing);
    return capturing                             ? captured
           : status == PS_ERROR_CAPTURE_IMPLICIT ? status
                                                 : PS_SUCCESS;
}

static ps_status
launch_locked(struct ps_graph *graph, struct ps_launch *launch,
              struct ps_stream *stream, struct ps_stream **full)
{
    bool added = false;
    /* Launches of one executable run in order.  The first launch of a new
     * executable must be made to wait for the launches of earlier
     * executables. */
    bool waits =
        graph->fresh && graph->launched != NULL && graph->launched != stream;
    ps_status status = refuse_captured(stream, PS_ERROR_GRAPH_INNER);
    if (status == PS_SUCCESS && waits &&
        !ps_stream_is_remote(graph->launched)) {
        /* If graph->launched is being captured, a wait for it would make the
         * stream join that capture. */
        status = refuse_captured(graph->launched, PS_ERROR_GRAPH_BEHIND);
    }
    if (status == PS_SUCCESS && graph->executable == 0) {
        status = instantiate_locked(graph, ALL_OPTIONS);
    }
    if (status == PS_SUCCESS && graph->launches == NULL) {
        status = create_launches(graph->device, &graph->launches);
    }
    if (status == PS_SUCCESS && waits) {
        status = follow_locked(graph, stream, &launch->previous, full);
    }
    if (status == PS_SUCCESS) {
        status = ps_block_use_begin_locked(graph->launches, stream, &added);
    }
    if (added) {
        launch->used = ps_block_ref(graph->launches);
    }
    if (status == PS_SUCCESS) {
        status = queue_launch_locked(graph, launch, stream);
        ps_block_use_end(graph->launches, stream);
    }
    if (status == PS_ERROR_QUEUE_FULL && *full == NULL) {
        *full = stream;
    }
    return status;
}

ps_status
ps_graph_launch(struct ps_graph *graph, struct ps_currents *currents,
                struct ps_launch *launch, struct ps_stream **full)
{
    *full = NULL;
    ps_status status = lock(graph);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (graph->native == 0 && graph->executable == 0) {
        return unlock(graph, PS_ERROR_GRAPH_EMPTY);
    }
    status = check_number_locked(graph, launch->number, PS_ERROR_GRAPH_EMPTY);
    if (status != PS_SUCCESS) {
        return unlock(graph, status);
    }
    struct ps_stream *stream = ps_current_stream(currents, graph->device);
    if (stream->kind == PS_STREAM_CALLERS) {
        struct ps_stream *own = ps_thread_stream(graph->device);
        if (own == NULL && launch->stream != NULL &&
            launch->stream->device == graph->device) {
            own = ps_stream_ref(launch->stream);
        }
        if (own == NULL) {
            /* Before this call, the caller has created this thread's default
             * stream on the graph's device.  So another thread has since
             * captured the graph again, on another device, or this thread is
             * ending. */
            return unlock(graph, PS_ERROR_GRAPH_CHANGED);
        }
        launch->own = stream = own;
    }
    atomic_store_explicit(&stream->used, true, memory_order_relaxed);
    status = launch_locked(graph, launch, stream, full);
    if (status == PS_SUCCESS) {
        graph->fresh = false;
        set_launched_locked(graph, stream, &launch->previous);
    }
    if (*full != NULL) {
        ps_stream_ref(*full);
    }
    return unlock(graph, status);
}

/* A failure of the clean-up is stored, because the launch was queued, and the
 * caller must not report it as failed. */
void
ps_launch_end(struct ps_launch *launch)
{
    if (launch->previous != NULL) {
        struct ps_runtime *runtime = launch->previous->device->runtime;
        ps_runtime_note_failure(runtime, ps_stream_unref(launch->previous));
    }
    if (launch->used != NULL) {
        struct ps_runtime *runtime = launch->used->device->runtime;
        ps_block_forget_idle(launch->used);
        ps_runtime_note_failure(runtime, ps_block_unref(launch->used));
    }
    ps_stream_unref(launch->own);
}

/* Returns the number by which profilers identify the executable; 0 if there
 * is none. */
static uint64_t
executable_number_locked(const struct ps_graph *graph)
{
    uint64_t number = 0;
    if (graph->executable != 0 &&
        (graph->device->runtime->backend->executable_number == NULL ||
         PS_CALL(graph->device, executable_number, graph->executable,
                 &number) != PS_SUCCESS)) {
        number = graph->executable;
    }
    return number;
}

static ps_status
reset_and_unlock(struct ps_graph *graph, bool last, struct ps_graph_end *end)
{
    ps_status status = PS_SUCCESS;
    struct leftovers left = {0};
    bool taken =
        graph->origin != NULL || graph->native != 0 || graph->executable != 0;
    end->number = graph->number;
    end->order = graph->begun;
    end->executable = executable_number_locked(graph);
    if (graph->origin != NULL) {
        status = end_locked(graph, last, &left, end);
        if (!end->capture) {
            return unlock(graph, status);
        }
    }
    end->dropped = taken;
    status = ps_first_failure(status, empty_locked(graph, &left));
    unlock(graph, status);
    return ps_first_failure(status, drop(&left));
}

ps_status
ps_graph_reset(struct ps_graph *graph, struct ps_graph_end *end)
{
    *end = (struct ps_graph_end){0};
    ps_status status = lock(graph);
    if (status != PS_SUCCESS) {
        return status;
    }
    return is_other_threads(graph)
               ? unlock(graph, PS_ERROR_CAPTURE_WRONG_THREAD)
               : reset_and_unlock(graph, false, end);
}

ps_status
ps_graph_drop(struct ps_graph *graph, uint64_t begun, struct ps_graph_end *end)
{
    *end = (struct ps_graph_end){0};
    if (lock(graph) != PS_SUCCESS) {
        return PS_SUCCESS;
    }
    return graph->origin == NULL || graph->begun == begun ||
                   !pthread_equal(graph->thread, pthread_self())
               ? unlock(graph, PS_SUCCESS)
               : reset_and_unlock(graph, false, end);
}

ps_status
ps_graph_destroy(struct ps_graph *graph, struct ps_graph_end *end)
{
    *end = (struct ps_graph_end){0};
    if (lock(graph) != PS_SUCCESS) {
        return PS_SUCCESS;
    }
    ps_status status = reset_and_unlock(graph, true, end);
    pthread_mutex_destroy(&graph->mutex);
    free(graph);
    return status;
}

void
ps_graph_handles(struct ps_graph *graph, ps_handle *native,
                 ps_handle *executable)
{
    *native = *executable = 0;
    if (lock(graph) == PS_SUCCESS) {
        *native = graph->native;
        *executable = graph->executable;
        unlock(graph, PS_SUCCESS);
    }
}

uint64_t
ps_graph_executable_number(struct ps_graph *graph)
{
    uint64_t number = 0;
    if (lock(graph) == PS_SUCCESS) {
        number = executable_number_locked(graph);
        unlock(graph, PS_SUCCESS);
    }
    return number;
}

static ps_status
upload_locked(struct ps_graph *graph, struct ps_stream *stream, bool *made)
{
    if (graph->native == 0 && graph->executable == 0) {
        return PS_ERROR_GRAPH_EMPTY;
    }
    if (stream->device != graph->device) {
        return PS_ERROR_GRAPH_STREAM;
    }
    if (graph->device->runtime->backend->graph_upload == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    ps_status status = refuse_captured(stream, PS_ERROR_GRAPH_INNER);
    if (status == PS_SUCCESS) {
        status = prepare_locked(graph, made);
    }
    atomic_store_explicit(&stream->used, true, memory_order_relaxed);
    return status != PS_SUCCESS ? status
                                : PS_CALL(graph->device, graph_upload,
                                          graph->executable, stream->handle);
}

ps_status
ps_graph_upload(struct ps_graph *graph, struct ps_stream *stream, bool *made)
{
    *made = false;
    return LOCKED(graph, upload_locked(graph, stream, made));
}

static ps_status
describe_locked(struct ps_graph *graph, struct ps_graph_node **nodes,
                size_t *node_count, struct ps_graph_edge **edges,
                size_t *edge_count)
{
    if (graph->native == 0) {
        return PS_ERROR_GRAPH_EMPTY;
    }
    if (graph->device->runtime->backend->graph_nodes == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    ps_status status = PS_CALL(graph->device, graph_nodes, graph->native, NULL,
                               node_count, NULL, edge_count);
    if (status != PS_SUCCESS) {
        return status;
    }
    *nodes = calloc(*node_count + 1, sizeof(**nodes));
    *edges = calloc(*edge_count + 1, sizeof(**edges));
    return *nodes == NULL || *edges == NULL
               ? PS_ERROR_OUT_OF_MEMORY
               : PS_CALL(graph->device, graph_nodes, graph->native, *nodes,
                         node_count, *edges, edge_count);
}

ps_status
ps_graph_describe(struct ps_graph *graph, struct ps_graph_node **nodes,
                  size_t *node_count, struct ps_graph_edge **edges,
                  size_t *edge_count)
{
    *nodes = NULL;
    *edges = NULL;
    *node_count = *edge_count = 0;
    ps_status status = LOCKED(
        graph, describe_locked(graph, nodes, node_count, edges, edge_count));
    if (status != PS_SUCCESS) {
        free(*nodes);
        free(*edges);
        *nodes = NULL;
        *edges = NULL;
    }
    return status;
}

static ps_status
print_locked(struct ps_graph *graph, const char *path)
{
    if (graph->native == 0) {
        return PS_ERROR_GRAPH_EMPTY;
    }
    return graph->device->runtime->backend->graph_print == NULL
               ? PS_ERROR_NOT_SUPPORTED
               : PS_CALL(graph->device, graph_print, graph->native, path);
}

ps_status
ps_graph_print(struct ps_graph *graph, const char *path)
{
    return LOCKED(graph, print_locked(graph, path));
}
