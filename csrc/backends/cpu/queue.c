/* Streams and their queues: the beginning and end of a stream, queueing, and
 * execution.  The operations of a stream are done in order, each by the one
 * thread that serves the stream at the time. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

enum { HELP = 16 }; /* operations that a caller does at a time */

void
cpu_stream_init_locked(struct cpu_stream *stream, struct cpu_engine *engine,
                       int device, int priority)
{
    *stream = (struct cpu_stream){
        .engine = engine,
        .device = device,
        .priority = priority,
        .tail = &stream->first,
    };
    LIST_INSERT_HEAD(&engine->devices[device].streams, stream, neighbours);
}

void
cpu_stream_reap_locked(struct cpu_stream *stream)
{
    if (!stream->destroyed || stream->first != NULL ||
        stream->waiters != NULL || stream->capture != NULL) {
        return;
    }
    struct cpu_device *device = &stream->engine->devices[stream->device];
    ps_status *unreported = cpu_is_earlier(stream)
                                ? &device->earlier.unreported
                                : &device->unreported;
    if (!stream->reported && *unreported == PS_SUCCESS) {
        *unreported = stream->status;
    }
    LIST_REMOVE(stream, neighbours);
    cpu_partition_unref_locked(stream->partition);
    if (stream->blocking) {
        LIST_REMOVE(stream, siblings);
    }
    free(stream);
}

__attribute__((cold, noinline)) static struct cpu_stream *
find_of_thread_locked(struct cpu_engine *engine, int device, ps_handle handle)
{
    struct cpu_slot *slot =
        handle == PS_STREAM_PER_THREAD
            ? cpu_slot_find_locked(engine, CPU_STREAM, device,
                                   cpu_thread_stream_handle(engine, device))
            : NULL;
    return slot != NULL ? slot->object : NULL;
}

struct cpu_stream *
cpu_stream_find_locked(struct cpu_engine *engine, int device, ps_handle handle)
{
    if (handle == 0) {
        return &engine->devices[device].default_stream;
    }
    struct cpu_slot *slot =
        cpu_slot_find_locked(engine, CPU_STREAM, device, handle);
    return slot != NULL ? slot->object
                        : find_of_thread_locked(engine, device, handle);
}

void
cpu_stream_know_locked(struct cpu_stream *stream)
{
    if (stream->known != NULL && stream->first == NULL &&
        stream->status == PS_SUCCESS && stream->capture == NULL &&
        !stream->blocking && !cpu_stream_is_legacy_locked(stream)) {
        atomic_store_explicit(stream->known, CPU_DONE, memory_order_release);
    }
}

/* A wait is kept on a failed stream too: a free behind it must not run before
 * other streams are done with the block. */
void
cpu_stream_settle_locked(struct cpu_stream *stream)
{
    struct cpu_operation *head = stream->first;
    if (head == NULL) {
        cpu_stream_reap_locked(stream);
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

uint64_t
cpu_stream_last_locked(const struct cpu_stream *stream, uint64_t ticket)
{
    uint64_t last = stream->done;
    if (!cpu_is_noted(stream->engine)) {
        return 0;
    }
    for (const struct cpu_operation *operation = stream->first;
         operation != NULL && operation->ticket <= ticket;
         operation = operation->next) {
        last = operation->ticket;
    }
    return last;
}

void
cpu_stream_push_locked(struct cpu_stream *stream,
                       struct cpu_operation *operation)
{
    if (cpu_is_earlier(stream)) {
        stream->engine->driver->used_locked(stream);
    }
    cpu_stream_forget_locked(stream);
    operation->next = NULL;
    operation->ticket = ++stream->engine->tickets;
    *stream->tail = operation;
    stream->tail = &operation->next;
    stream->pending++;
}

void
cpu_gate_enter(const struct cpu_operation *operation, ps_status status)
{
    status = operation->abandoned ? PS_ERROR_SHUTTING_DOWN : status;
    if (operation->launched) {
        operation->gate.launched(operation->gate.argument,
                                 operation->gate.handle, status);
    }
    else {
        operation->gate.reached(operation->gate.argument, status);
    }
}

static void
fill(uint8_t *destination, const uint8_t pattern[4], size_t nbytes)
{
    if (memcmp(pattern, pattern + 1, 3) == 0) {
        memset(destination, pattern[0], nbytes);
        return;
    }
    size_t done = nbytes < 4 ? nbytes : 4;
    memcpy(destination, pattern, done);
    while (done < nbytes) {
        size_t more = done < nbytes - done ? done : nbytes - done;
        memcpy(destination + done, destination, more);
        done += more;
    }
}

/* Do the part of an operation that needs the lock released: it is long, or
 * calls the user's functions.  False as cpu_stream_serve_locked. */
static bool
stream_run_locked(struct cpu_stream *stream, struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
    const struct cpu_stream *outer = cpu_serving();
    unsigned forks = cpu_forks;
    if (operation->times != NULL) {
        cpu_times_begin(engine, operation);
    }
    cpu_unlock(engine);
    /* If this fails for lack of memory, a host function that waits for its own
     * stream deadlocks instead of getting PS_ERROR_NOT_PERMITTED. */
    pthread_setspecific(cpu_serving_key, stream);
    switch (operation->kind) {
    case CPU_COPY:
        /* Users may overlap the two sides. */
        memmove(operation->transfer.destination, operation->transfer.source,
                operation->transfer.nbytes);
        break;
    case CPU_FILL:
        fill(operation->transfer.destination, operation->transfer.pattern,
             operation->transfer.nbytes);
        break;
    case CPU_ENTER_GATE:
        cpu_gate_enter(operation, stream->status);
        break;
    default:
        operation->call.function(operation->call.argument);
    }
    bool forked = cpu_forks != forks;
    if (!forked) {
        pthread_setspecific(cpu_serving_key, outer);
    }
    cpu_lock(engine);
    return !forked;
}

/* Do the operation at the head; false as cpu_stream_serve_locked. */
static bool
stream_do_locked(struct cpu_stream *stream, struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
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
    case CPU_FREE:
    case CPU_RECORD_LATER:
    case CPU_WAIT_LATER:
    case CPU_MARK:
    case CPU_JOIN:
        break;
    case CPU_COPY:
    case CPU_FILL:
    case CPU_CALL:
        if (stream->status == PS_SUCCESS &&
            !stream_run_locked(stream, operation)) {
            return false;
        }
        /* Falls through. */
    case CPU_SLEEP:
        if (operation->times != NULL) {
            cpu_times_end(stream, operation);
        }
        break;
    case CPU_ENTER_GATE:
        return stream_run_locked(stream, operation);
    }
    if (stream->status == PS_SUCCESS) {
        stream->status = failure;
    }
    return true;
}

/* Take the head, which is done, out of the queue. */
static void
stream_pop_locked(struct cpu_stream *stream)
{
    stream->first = stream->first->next;
    stream->pending--;
    uint64_t done = stream->engine->tickets;
    if (stream->first == NULL) {
        stream->tail = &stream->first;
    }
    else {
        done = stream->first->ticket - 1;
    }
    cpu_stream_reached_locked(stream, done);
}

bool
cpu_stream_serve_locked(struct cpu_stream *stream)
{
    struct cpu_operation *operation = stream->first;
    if (!stream_do_locked(stream, operation)) {
        return false;
    }
    if (operation->kind == CPU_ENTER_GATE) {
        operation->kind = CPU_WAIT;
        return true;
    }
    stream_pop_locked(stream);
    if (operation->kind != CPU_FREE) {
        cpu_item_give_locked(stream->engine, operation);
    }
    return true;
}

const char *
cpu_operation_name(enum cpu_kind kind)
{
    switch (kind) {
    case CPU_RECORD:
        return "record";
    case CPU_WAIT:
        return "wait";
    case CPU_SLEEP:
        return "sleep";
    case CPU_FAIL:
        return "failure";
    case CPU_COPY:
        return "copy";
    case CPU_FILL:
        return "fill";
    case CPU_CALL:
        return "host function";
    case CPU_ENTER_GATE:
        return "callable";
    case CPU_FREE:
        return "free";
    default:
        return "work";
    }
}

static bool
operation_is_cheap(const struct cpu_operation *operation)
{
    switch (operation->kind) {
    case CPU_RECORD:
    case CPU_FAIL:
    case CPU_ENTER_GATE:
        return true;
    case CPU_WAIT:
        return operation->record->done;
    case CPU_COPY:
    case CPU_FILL:
        return operation->transfer.nbytes <= CPU_INLINE_BYTES;
    default:
        return false;
    }
}

/* The next ready stream, if the operation at its head is cheap. */
static struct cpu_stream *
cheap_stream_locked(struct cpu_engine *engine)
{
    int i = engine->ready_count > 0 ? CPU_PRIORITIES - 1 : 0;
    while (i > 0 && engine->ready[i].first == NULL) {
        i--;
    }
    const struct cpu_stream *next = engine->ready[i].first;
    return next != NULL && operation_is_cheap(next->first)
               ? cpu_ready_take_locked(engine)
               : NULL;
}

bool
cpu_engine_help_locked(struct cpu_engine *engine)
{
    struct cpu_stream *stream;
    int left = cpu_serving() == NULL ? HELP : 0;
    while (left-- > 0 && engine->phase == CPU_OPEN &&
           (stream = cheap_stream_locked(engine)) != NULL) {
        if (!cpu_stream_help_locked(stream)) {
            return false;
        }
    }
    return true;
}

bool
cpu_stream_help_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    int left = cpu_serving() == NULL ? HELP : 0;
    engine->running++;
    while (left-- > 0 && engine->phase == CPU_OPEN && stream->first != NULL &&
           operation_is_cheap(stream->first)) {
        if (!cpu_stream_serve_locked(stream)) {
            return false;
        }
    }
    cpu_stream_settle_locked(stream);
    cpu_engine_leave_locked(engine);
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
        operation->transfer.nbytes <= CPU_INLINE_BYTES &&
        !cpu_is_lazy(engine)) {
        cpu_stream_push_locked(stream, operation);
        if (stream_do_locked(stream, operation)) {
            stream_pop_locked(stream);
            cpu_stream_settle_locked(stream);
        }
        return PS_SUCCESS;
    }
    ps_status status = cpu_engine_staff_locked(engine, kind);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (stream->pending >= CPU_QUEUE_LIMIT) {
        return PS_ERROR_QUEUE_FULL;
    }
    struct cpu_operation *item = cpu_item_take_locked(engine);
    if (item == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *item = *operation;
    if (item->record != NULL) {
        item->record->refs++;
    }
    cpu_stream_push_locked(stream, item);
    if (idle) {
        cpu_stream_help_locked(stream);
    }
    return PS_SUCCESS;
}
