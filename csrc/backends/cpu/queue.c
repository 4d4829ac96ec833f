/* Streams and their queues: the beginning and end of a stream, queueing,
 * execution, and the threads that execute operations.  The operations of a
 * stream are executed in order, and only one thread at a time serves a stream.
 * When an operation or a record is done, the streams, threads and
 * notifications that wait for it can continue.
 *
 * A few workers serve all streams.  A worker takes the ready stream with the
 * highest priority, executes one of its operations, and looks for more work
 * before it sleeps.  The timer thread ends CPU_SLEEP operations on time, even
 * while all workers are busy.  Threads that call the engine execute cheap
 * operations themselves.  Releasing the engine's lock runs the notifications
 * that are due, and wakes a worker if streams are ready.
 *
 * If a callback of the program calls fork() on a thread of the engine, that
 * thread ends in the child.  The child's engine starts threads of its own. */
#include "engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum {
    /* The most operations that a calling thread executes in a row. */
    HELP = 16,
    TURN = 64, /* after this many operations, a worker releases the lock */
};

pthread_key_t cpu_serving_key;
unsigned cpu_forks;

/* ---- The beginning and end of a stream ---- */

void
cpu_partition_unref_locked(struct cpu_partition *partition)
{
    if (partition != NULL && --partition->refs == 0) {
        free(partition);
    }
}

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

struct cpu_stream *
cpu_stream_of_thread_locked(struct cpu_engine *engine, int device,
                            ps_handle handle)
{
    struct cpu_slot *slot =
        handle == PS_STREAM_PER_THREAD
            ? cpu_slot_find_locked(engine, CPU_STREAM, device,
                                   cpu_thread_stream_handle(engine, device))
            : NULL;
    return slot != NULL ? slot->object : NULL;
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

/* ---- The places of streams ---- */

/* Remove and return the first stream of the highest priority from lists that
 * are indexed by -priority. */
static struct cpu_stream *
lists_take(struct cpu_stream_list lists[CPU_PRIORITIES])
{
    struct cpu_stream *stream = NULL;
    for (int i = CPU_PRIORITIES - 1; i >= 0 && stream == NULL; i--) {
        stream = cpu_list_take(&lists[i]);
    }
    return stream;
}

/* Remove and return the first ready stream of the highest priority; NULL if
 * none is ready. */
static struct cpu_stream *
ready_take_locked(struct cpu_engine *engine)
{
    struct cpu_stream *stream = lists_take(engine->ready);
    engine->ready_count -= stream != NULL;
    return stream;
}

/* Returns the union of two skew heaps, either of which may be NULL. */
static struct cpu_stream *
sleepers_meld(struct cpu_stream *a, struct cpu_stream *b)
{
    struct cpu_stream *top = NULL, **link = &top;
    while (a != NULL && b != NULL) {
        struct cpu_stream *first = a->deadline <= b->deadline ? a : b;
        b = first == a ? b : a;
        a = first->right;
        first->right = first->left;
        *link = first;
        link = &first->left;
    }
    *link = a != NULL ? a : b;
    return top;
}

/* Park the stream until its sleep of `duration` nanoseconds is over. */
static void
sleeper_add_locked(struct cpu_stream *stream, int64_t duration)
{
    struct cpu_engine *engine = stream->engine;
    stream->deadline = cpu_deadline(engine, duration);
    if (cpu_is_lazy(engine)) {
        cpu_stream_ready_locked(stream);
        return;
    }
    stream->left = stream->right = NULL;
    engine->sleepers = sleepers_meld(engine->sleepers, stream);
    if (engine->sleepers == stream) {
        pthread_cond_signal(&engine->early);
    }
}

/* Remove and return a stream whose sleep is over.  If there is none, wait and
 * return NULL.  The wait ends when the earliest sleep ends, or when a stream
 * is added whose sleep ends earlier. */
static struct cpu_stream *
sleeper_take_locked(struct cpu_engine *engine)
{
    struct cpu_stream *stream = engine->sleepers;
    int64_t deadline = stream != NULL ? stream->deadline : CPU_FOREVER;
    if (stream == NULL || engine->clock->now() < deadline) {
        engine->clock->wait_locked(engine, &engine->early, deadline);
        return NULL;
    }
    engine->sleepers = sleepers_meld(stream->left, stream->right);
    return stream;
}

/* A failed stream, too, waits for records.  Otherwise a CPU_FREE behind the
 * wait could run while other streams still use the block. */
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
        sleeper_add_locked(stream, head->duration);
    }
    else {
        cpu_stream_ready_locked(stream);
    }
}

/* ---- Operations and records that are done ---- */

static void
make_due_locked(struct cpu_engine *engine,
                struct ps_notification *notification, ps_status status)
{
    ps_notification_remove(notification);
    notification->status = status;
    ps_notification_append(&engine->due, notification);
}

static void
wake_locked(struct cpu_waiter *waiters, uint64_t reached)
{
    for (struct cpu_waiter *w = waiters; w != NULL; w = w->next) {
        if (w->target <= reached && !w->woken) {
            w->woken = true;
            if (w->blocked != NULL) {
                w->blocked->woken = true;
            }
            pthread_cond_signal(&w->wake);
        }
    }
}

/* Call this when the stream's operations up to the ticket are done.  Wakes the
 * threads that wait for these operations, and makes the notifications for
 * these operations due. */
static void
stream_reached_locked(struct cpu_stream *stream, uint64_t ticket)
{
    wake_locked(stream->waiters, ticket);
    while (stream->notifications != NULL &&
           stream->notifications->next->number <= ticket) {
        make_due_locked(stream->engine, stream->notifications->next,
                        stream->status);
    }
}

static void
end_promise_locked(struct cpu_record *record)
{
    if (record->promise != NULL) {
        record->promise->end_locked(record->promise, record);
        record->promise = NULL;
    }
}

void
cpu_record_complete_locked(struct cpu_engine *engine,
                           struct cpu_record *record, ps_status status)
{
    struct cpu_stream *stream;
    record->done = true;
    record->status = record->orders ? PS_SUCCESS : status;
    record->time = record->timed ? engine->clock->now() : 0;
    record->step = engine->lazy.step;
    while ((stream = cpu_list_take(&record->parked)) != NULL) {
        cpu_stream_ready_locked(stream);
    }
    wake_locked(record->waiters, 0);
    while (record->notifications != NULL) {
        make_due_locked(engine, record->notifications->next, record->status);
    }
    end_promise_locked(record);
}

void
cpu_record_unref_locked(struct cpu_engine *engine, struct cpu_record *record)
{
    if (--record->refs == 0) {
        end_promise_locked(record);
        cpu_item_give_locked(engine, record);
    }
}

/* ---- Execution ---- */

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

/* Do an operation that takes long or calls a function of the program.  The
 * lock is released meanwhile.  Returns false in a forked child; see
 * cpu_stream_serve_locked. */
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
    if (cpu_forks != forks) {
        /* A notification that cpu_unlock ran has forked, and this is the
         * child, which does none of the parent's work. */
        cpu_lock(engine);
        return false;
    }
    /* If memory is short, this fails.  Then a host function that waits for its
     * own stream deadlocks, instead of getting PS_ERROR_NOT_PERMITTED. */
    pthread_setspecific(cpu_serving_key, stream);
    switch (operation->kind) {
    case CPU_COPY:
        /* Use memmove, because the source and the destination of the program's
         * copy may overlap. */
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

/* Do the operation at the head of the queue.  Returns false in a forked child;
 * see cpu_stream_serve_locked. */
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

/* Remove the operation at the head, which is done, from the queue. */
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
    stream_reached_locked(stream, done);
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

/* ---- Callers that help ---- */

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

/* If the next ready stream has a cheap operation at its head, remove that
 * stream from the ready streams and return it.  Otherwise return NULL. */
static struct cpu_stream *
cheap_stream_locked(struct cpu_engine *engine)
{
    int i = engine->ready_count > 0 ? CPU_PRIORITIES - 1 : 0;
    while (i > 0 && engine->ready[i].first == NULL) {
        i--;
    }
    const struct cpu_stream *next = engine->ready[i].first;
    return next != NULL && operation_is_cheap(next->first)
               ? ready_take_locked(engine)
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

/* ---- Threads ---- */

/* Returns the stream's partition if the operation at the head counts towards
 * the partition's limit of workers.  Otherwise returns NULL. */
static struct cpu_partition *
partition_of(const struct cpu_stream *stream)
{
    const struct cpu_operation *head = stream->first;
    switch (head->kind) {
    case CPU_COPY:
    case CPU_FILL:
        return head->transfer.nbytes > CPU_INLINE_BYTES ? stream->partition
                                                        : NULL;
    case CPU_CALL:
        return stream->partition;
    default:
        return NULL;
    }
}

/* Remove and return the ready stream that a worker serves next, or NULL if
 * there is none.  A stream whose partition has reached its limit of workers is
 * skipped, and moves to the partition's list `waiting`. */
static struct cpu_stream *
worker_take_locked(struct cpu_engine *engine)
{
    struct cpu_stream *stream;
    while ((stream = ready_take_locked(engine)) != NULL) {
        struct cpu_partition *partition = partition_of(stream);
        if (partition == NULL || partition->busy < partition->most) {
            break;
        }
        cpu_list_append(&partition->waiting[-stream->priority], stream);
    }
    return stream;
}

/* Call this after a worker has served a stream of the partition. */
static void
partition_leave_locked(struct cpu_partition *partition)
{
    struct cpu_stream *stream = lists_take(partition->waiting);
    partition->busy--;
    if (stream != NULL) {
        cpu_stream_ready_locked(stream);
    }
    cpu_partition_unref_locked(partition);
}

static void *
timer_main(void *argument)
{
    struct cpu_engine *engine = argument;
    unsigned forks = cpu_forks;
    /* With the default timer slack, the kernel may wake the thread 50 us too
     * late. */
    prctl(PR_SET_TIMERSLACK, 1);
    cpu_lock(engine);
    while (engine->phase < CPU_STOPPING && cpu_forks == forks) {
        struct cpu_stream *stream = sleeper_take_locked(engine);
        if (stream != NULL && cpu_stream_serve_locked(stream) &&
            cpu_stream_help_locked(stream) && cpu_engine_help_locked(engine)) {
            cpu_unlock(engine);
            cpu_lock(engine);
        }
    }
    return cpu_thread_end_locked(engine, forks);
}

static void
worker_sleep_locked(struct cpu_engine *engine)
{
    engine->idle++;
    engine->clock->wait_locked(engine, &engine->work, CPU_FOREVER);
    engine->idle--;
    engine->coming = false;
}

/* Serve a stream on a worker.  Returns false in a forked child; see
 * cpu_stream_serve_locked. */
static bool
worker_serve_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_operation *operation = stream->first;
    struct cpu_partition *partition = partition_of(stream);
    bool frees = operation->kind == CPU_FREE;
    bool handed = cpu_is_lazy(engine);
    if (handed) {
        engine->lazy.handed_count--;
    }
    if (partition != NULL) {
        partition->refs++;
        partition->busy++;
    }
    if (!cpu_stream_serve_locked(stream)) {
        return false;
    }
    if (partition != NULL) {
        partition_leave_locked(partition);
    }
    stream->handed = false;
    cpu_stream_settle_locked(stream);
    if (handed) {
        engine->driver->opened_locked(engine);
    }
    if (frees) {
        cpu_unlock(engine);
        free(operation);
        cpu_lock(engine);
    }
    return true;
}

static void *
worker_main(void *argument)
{
    struct cpu_engine *engine = argument;
    unsigned forks = cpu_forks, served = 0;
    cpu_lock(engine);
    engine->coming = false;
    while (engine->phase < CPU_STOPPING && cpu_forks == forks) {
        struct cpu_stream *stream = cpu_is_lazy(engine)
                                        ? cpu_list_take(&engine->lazy.handed)
                                        : worker_take_locked(engine);
        if (stream == NULL && cpu_may_notify(engine)) {
            cpu_notify_due_locked(engine);
        }
        else if (stream == NULL) {
            worker_sleep_locked(engine);
        }
        else if (worker_serve_locked(stream) && ++served % TURN == 0) {
            engine->coming = true;
            cpu_unlock(engine);
            cpu_lock(engine);
            engine->coming = false;
        }
    }
    return cpu_thread_end_locked(engine, forks);
}

bool
cpu_thread_start_locked(struct cpu_engine *engine, void *(*body)(void *),
                        const char *name)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, body, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        return false;
    }
    pthread_setname_np(thread, name);
    pthread_detach(thread);
    engine->running++;
    return true;
}

static bool
worker_start_locked(struct cpu_engine *engine)
{
    char name[24];
    snprintf(name, sizeof(name), "ps-cpu-%u", engine->workers);
    if (!cpu_thread_start_locked(engine, worker_main, name)) {
        return false;
    }
    engine->workers++;
    engine->coming = true;
    return true;
}

ps_status
cpu_engine_staff_locked(struct cpu_engine *engine, enum cpu_kind kind)
{
    if (engine->phase != CPU_OPEN) {
        return cpu_is_lazy(engine) ? PS_SUCCESS : PS_ERROR_SHUTTING_DOWN;
    }
    if (engine->workers == 0 && !worker_start_locked(engine)) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    if (kind == CPU_SLEEP && !engine->timer) {
        engine->timer =
            cpu_thread_start_locked(engine, timer_main, "ps-cpu-timer");
        return engine->timer ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
    }
    return PS_SUCCESS;
}

bool
cpu_stream_hand_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_lazy *lazy = &engine->lazy;
    if (lazy->handed_count >= engine->idle && !worker_start_locked(engine)) {
        return false;
    }
    cpu_list_append(&lazy->handed, stream);
    lazy->handed_count++;
    stream->handed = true;
    pthread_cond_signal(&engine->work);
    return true;
}

void
cpu_engine_leave_locked(struct cpu_engine *engine)
{
    engine->running--;
    pthread_cond_broadcast(&engine->ended);
}

void *
cpu_thread_end_locked(struct cpu_engine *engine, unsigned forks)
{
    if (cpu_forks == forks) {
        cpu_engine_leave_locked(engine);
    }
    cpu_unlock(engine);
    return NULL;
}

/* ---- The engine's lock ---- */

/* Does the work of cpu_release while the phase is not CPU_OPEN.  This function
 * is not inlined, so that the fast path of cpu_release saves no registers. */
__attribute__((cold, noinline)) static void
release_unopen(struct cpu_engine *engine)
{
    if (cpu_is_lazy(engine)) {
        engine->driver->release_locked(engine);
    }
    else {
        pthread_mutex_unlock(&engine->lock);
    }
}

void
cpu_release(struct cpu_engine *engine)
{
    if (engine->phase != CPU_OPEN) {
        release_unopen(engine);
        return;
    }
    bool wanted = !engine->coming && engine->ready_count > 0;
    bool wake = wanted && engine->idle > 0;
    if (wake) {
        engine->coming = true;
    }
    else if (wanted && engine->workers < engine->worker_limit) {
        worker_start_locked(engine);
    }
    pthread_mutex_unlock(&engine->lock);
    if (wake) {
        pthread_cond_signal(&engine->work);
    }
}

bool
cpu_notify_due_locked(struct cpu_engine *engine)
{
    static const struct cpu_stream notifying;
    unsigned forks = cpu_forks;
    engine->notifying = true;
    engine->running++;
    cpu_note_locked(engine, PS_NOTE_PROGRAM, 0);
    while (engine->phase < CPU_STOPPING && engine->due != NULL) {
        struct ps_notification *notification = engine->due->next;
        ps_notification_function reached = notification->reached;
        void *argument = notification->argument;
        ps_status status = notification->status;
        ps_notification_remove(notification);
        cpu_release(engine);
        pthread_setspecific(cpu_serving_key, &notifying);
        reached(argument, status);
        pthread_setspecific(cpu_serving_key, NULL);
        cpu_lock(engine);
        if (cpu_forks != forks) {
            return false;
        }
    }
    engine->notifying = false;
    cpu_engine_leave_locked(engine);
    return true;
}

/* ---- Queueing ---- */

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
