/* Workers: the few threads that serve all streams of an engine, and what they
 * serve them by: the scheduler, the clock and the timers.  A worker never
 * releases the lock before somebody else is on the way to the work it leaves.
 */
#include "engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    CHAIN = 64,          /* operations done without taking the lock */
    TURN = 256,          /* operations of a turn, about */
    TURN_NS = 50 * 1000, /* time of a turn while others are ready, about */
    SPINS = 1000,        /* looks for work before a worker sleeps */
};

_Thread_local const struct cpu_stream *cpu_serving;

/* ---- The threaded engine's order and time ---- */

static struct cpu_stream *
threaded_next_locked(struct cpu_engine *engine)
{
    for (int i = CPU_PRIORITIES - 1; i >= 0; i--) {
        struct cpu_stream *stream = cpu_list_take(&engine->ready[i]);
        if (stream)
            return stream;
    }
    return NULL;
}

const struct cpu_scheduler cpu_threaded_scheduler = {
    .next_locked = threaded_next_locked,
};

static int64_t
monotonic_now(struct cpu_engine *engine)
{
    (void)engine;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static bool
monotonic_wait_locked(struct cpu_engine *engine, pthread_cond_t *condition,
                      int64_t deadline)
{
    if (deadline == CPU_FOREVER) {
        pthread_cond_wait(condition, &engine->lock);
        return true;
    }
    struct timespec until = {
        .tv_sec = deadline / 1000000000,
        .tv_nsec = deadline % 1000000000,
    };
    return !pthread_cond_timedwait(condition, &engine->lock, &until);
}

const struct cpu_clock cpu_monotonic_clock = {
    .now = monotonic_now,
    .wait_locked = monotonic_wait_locked,
};

int64_t
cpu_deadline(struct cpu_engine *engine, uint64_t timeout_ns)
{
    int64_t now = engine->clock->now(engine);
    uint64_t left = (uint64_t)(CPU_FOREVER - now);
    return timeout_ns < left ? now + (int64_t)timeout_ns : CPU_FOREVER;
}

/* ---- Timers ---- */

bool
cpu_timers_reserve_locked(struct cpu_engine *engine, size_t streams)
{
    if (streams <= engine->timer_capacity)
        return true;
    size_t capacity = 2 * streams;
    struct cpu_timer *timers =
        realloc(engine->timers, capacity * sizeof(*timers));
    if (!timers)
        return false;
    engine->timers = timers;
    engine->timer_capacity = capacity;
    return true;
}

void
cpu_timers_add_locked(struct cpu_stream *stream, uint64_t duration)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_timer *timers = engine->timers;
    int64_t deadline = cpu_deadline(engine, duration);
    size_t i = engine->timer_count++;
    for (; i && timers[(i - 1) / 2].deadline > deadline; i = (i - 1) / 2)
        timers[i] = timers[(i - 1) / 2];
    timers[i] = (struct cpu_timer){deadline, stream};
}

static struct cpu_stream *
timers_take_locked(struct cpu_engine *engine)
{
    struct cpu_timer *timers = engine->timers;
    struct cpu_stream *stream = timers[0].stream;
    size_t count = --engine->timer_count;
    struct cpu_timer last = timers[count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count &&
            timers[child + 1].deadline < timers[child].deadline)
            child++;
        if (timers[child].deadline >= last.deadline)
            break;
        timers[i] = timers[child];
    }
    timers[i] = last;
    return stream;
}

static void
timers_expire_locked(struct cpu_engine *engine)
{
    if (!engine->timer_count)
        return;
    int64_t now = engine->clock->now(engine);
    while (engine->timer_count && engine->timers[0].deadline <= now)
        cpu_stream_ready_locked(timers_take_locked(engine));
}

/* Whether a timer will pass before any idle worker wakes up by itself. */
static bool
timers_unwatched_locked(struct cpu_engine *engine)
{
    if (!engine->timer_count)
        return false;
    for (struct cpu_worker *worker = engine->idle; worker;
         worker = worker->next) {
        if (worker->deadline <= engine->timers[0].deadline)
            return false;
    }
    return true;
}

/* ---- Turns ---- */

static struct cpu_operation *
operation_pop_locked(struct cpu_stream *stream)
{
    struct cpu_operation *operation = stream->first;
    stream->first = operation->next;
    if (!stream->first)
        stream->tail = &stream->first;
    return operation;
}

/* Do an operation that is done under the lock. */
static void
operation_finish_locked(struct cpu_stream *stream,
                        struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
    switch (operation->kind) {
    case CPU_RECORD:
        cpu_record_complete_locked(engine, operation->record, stream->status);
        cpu_record_unref_locked(engine, operation->record);
        break;
    case CPU_WAIT:
        if (operation->record->status)
            cpu_stream_fail_locked(stream, operation->record->status);
        cpu_record_unref_locked(engine, operation->record);
        break;
    case CPU_FAIL:
        cpu_stream_fail_locked(stream, operation->status);
        break;
    case CPU_SLEEP:
        break;
    default:
        abort();
    }
    cpu_pool_give_locked(&engine->operations, operation);
    cpu_stream_advance_locked(stream);
}

/* Whether a turn must end now for the sake of other streams. */
static bool
turn_over(struct cpu_engine *engine, int64_t end)
{
    return (engine->ready_count || engine->timer_count) &&
           engine->clock->now(engine) > end;
}

/* Do the operations at the head that need no lock, with the lock released.
 * False in the child of a fork from one of them, where nothing that this
 * thread knows exists any more. */
static bool
chain_run_locked(struct cpu_stream *stream, int64_t turn_end)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_operation *first = stream->first, *last = first;
    for (int i = 1; i < CHAIN && last->next && last->next->kind >= CPU_COPY;
         i++)
        last = last->next;
    stream->first = last->next;
    if (!stream->first)
        stream->tail = &stream->first;
    last->next = NULL;

    bool failed = stream->status;
    unsigned forks = engine->forks;
    struct cpu_operation *finished = NULL;
    cpu_engine_rouse_locked(engine);
    cpu_unlock(engine);
    cpu_serving = stream;
    while (first) {
        struct cpu_operation *operation = first;
        first = operation->next;
        if (operation->kind == CPU_FREE) {
            cpu_operation_run(operation);
        }
        else {
            if (!failed)
                cpu_operation_run(operation);
            if (engine->forks != forks)
                return false;
            operation->next = finished;
            finished = operation;
        }
        cpu_stream_advance(stream);
        if (engine->phase != CPU_OPEN || turn_over(engine, turn_end))
            break;
    }
    cpu_serving = NULL;
    cpu_lock(engine);
    if (first) {
        last->next = stream->first;
        if (!stream->first)
            stream->tail = &last->next;
        stream->first = first;
    }
    while (finished) {
        struct cpu_operation *operation = finished;
        finished = operation->next;
        cpu_pool_give_locked(&engine->operations, operation);
    }
    return true;
}

/* Serve a stream until its turn is over or its head must wait; false as
 * chain_run_locked. */
static bool
turn_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    uint64_t end = atomic_load(&stream->done) + TURN;
    int64_t end_time = cpu_deadline(engine, TURN_NS);
    stream->state = CPU_RUNNING;
    while (stream->first && stream->done < end && engine->phase == CPU_OPEN) {
        if (cpu_stream_park_locked(stream))
            return true;
        if (stream->first->kind < CPU_COPY)
            operation_finish_locked(stream, operation_pop_locked(stream));
        else if (!chain_run_locked(stream, end_time))
            return false;
        else if (turn_over(engine, end_time))
            break;
    }
    cpu_stream_settle_locked(stream);
    return true;
}

/* ---- Workers ---- */

/* Work often comes again soon, and is cheaper to see than to be woken for. */
static void
worker_spin_locked(struct cpu_engine *engine)
{
    if (engine->woken)
        return;
    engine->woken++;
    cpu_unlock(engine);
    for (int i = 0; i < SPINS; i++) {
        if (engine->ready_count || engine->phase != CPU_OPEN)
            break;
        cpu_relax(1);
    }
    cpu_lock(engine);
    engine->woken--;
}

static void
worker_sleep_locked(struct cpu_worker *worker)
{
    struct cpu_engine *engine = worker->engine;
    worker->deadline = timers_unwatched_locked(engine)
                           ? engine->timers[0].deadline
                           : CPU_FOREVER;
    worker->idle = true;
    worker->next = engine->idle;
    engine->idle = worker;
    engine->clock->wait_locked(engine, &worker->wake, worker->deadline);
    if (!worker->idle) {
        engine->woken--;
        return;
    }
    struct cpu_worker **link = &engine->idle;
    while (*link != worker)
        link = &(*link)->next;
    *link = worker->next;
    worker->idle = false;
}

static void
worker_wake_locked(struct cpu_engine *engine)
{
    struct cpu_worker *worker = engine->idle;
    engine->idle = worker->next;
    worker->idle = false;
    engine->woken++;
    pthread_cond_signal(&worker->wake);
}

/* Serve streams as long as there are any; false as chain_run_locked. */
static bool
worker_serve_locked(struct cpu_engine *engine)
{
    struct cpu_stream *stream;
    while (engine->phase == CPU_OPEN) {
        timers_expire_locked(engine);
        if (!(stream = engine->scheduler->next_locked(engine)))
            break;
        engine->ready_count--;
        if (!turn_locked(stream))
            return false;
        if (!engine->ready_count)
            continue;
        /* Let other threads have the lock. */
        engine->woken++;
        cpu_engine_rouse_locked(engine);
        cpu_unlock(engine);
        cpu_lock(engine);
        engine->woken--;
    }
    return true;
}

static void *
worker_main(void *argument)
{
    struct cpu_worker *worker = argument;
    struct cpu_engine *engine = worker->engine;
    char name[16];
    snprintf(name, sizeof(name), "ps-cpu-%d", (int)(worker - engine->workers));
    pthread_setname_np(pthread_self(), name);
    cpu_lock(engine);
    engine->woken--;
    while (engine->phase == CPU_OPEN) {
        if (!worker_serve_locked(engine))
            return NULL;
        worker_spin_locked(engine);
        if (!engine->ready_count && engine->phase == CPU_OPEN)
            worker_sleep_locked(worker);
    }
    worker->ended = true;
    engine->worker_running--;
    pthread_cond_broadcast(&engine->ended);
    cpu_unlock(engine);
    return NULL;
}

static bool
worker_start_locked(struct cpu_engine *engine)
{
    if (engine->worker_count == engine->worker_limit)
        return false;
    struct cpu_worker *worker = &engine->workers[engine->worker_count];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return false;
    engine->worker_count++;
    engine->worker_running++;
    engine->woken++;
    return true;
}

ps_status
cpu_engine_staff_locked(struct cpu_engine *engine)
{
    if (engine->phase != CPU_OPEN)
        return PS_ERROR_SHUTTING_DOWN;
    if (!engine->worker_count && !worker_start_locked(engine))
        return PS_ERROR_OUT_OF_MEMORY;
    return PS_SUCCESS;
}

void
cpu_engine_rouse_locked(struct cpu_engine *engine)
{
    while (engine->phase == CPU_OPEN) {
        unsigned wanted = engine->ready_count;
        if (!wanted && timers_unwatched_locked(engine))
            wanted = 1;
        if (engine->woken >= wanted)
            break;
        if (engine->idle)
            worker_wake_locked(engine);
        else if (!worker_start_locked(engine))
            break;
    }
}

/* Wait for the workers to end; false if one had not at the deadline. */
static bool
workers_end_locked(struct cpu_engine *engine, int64_t deadline)
{
    while (engine->idle)
        worker_wake_locked(engine);
    while (engine->worker_running) {
        if (!engine->clock->wait_locked(engine, &engine->ended, deadline))
            return !engine->worker_running;
    }
    return true;
}

static ps_status
cpu_shutdown(const struct ps_backend *backend, int64_t timeout_ns)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    int64_t deadline = cpu_deadline(engine, timeout_ns > 0 ? timeout_ns : 0);
    pthread_t ended[CPU_WORKERS];
    int count = 0;
    cpu_lock(engine);
    if (engine->phase == CPU_OPEN)
        engine->phase = CPU_STOPPING;
    bool all = workers_end_locked(engine, deadline);
    engine->phase = CPU_STOPPED;
    for (unsigned i = 0; i < engine->worker_count; i++) {
        if (engine->workers[i].ended) {
            engine->workers[i].ended = false;
            ended[count++] = engine->workers[i].thread;
        }
    }
    cpu_unlock(engine);
    while (count)
        pthread_join(ended[--count], NULL);
    return all ? PS_SUCCESS : PS_ERROR_NOT_READY;
}

void
cpu_worker_members(struct ps_backend *table)
{
    table->shutdown = cpu_shutdown;
}
