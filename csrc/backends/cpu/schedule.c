/* Waiting and resuming: streams that are ready or asleep, threads,
 * notifications, and the records that all of them may wait for.  The engine's
 * lock is released here, too, after a worker was woken for the ready streams
 * and the due notifications have run. */
#include "engine.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

/* How often ps_limit.is_over is called. */
enum { QUESTION_NS = 50 * 1000 * 1000 };

pthread_key_t cpu_serving_key;
unsigned cpu_forks;

/* ---- Time ---- */

static int64_t
monotonic_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static bool
monotonic_wait_locked(struct cpu_engine *engine, pthread_cond_t *condition,
                      int64_t deadline)
{
    struct timespec until = {
        .tv_sec = deadline / 1000000000,
        .tv_nsec = deadline % 1000000000,
    };
    return pthread_cond_timedwait(condition, &engine->lock, &until) == 0;
}

const struct cpu_clock cpu_monotonic_clock = {
    .now = monotonic_now,
    .wait_locked = monotonic_wait_locked,
};

int64_t
cpu_deadline(struct cpu_engine *engine, int64_t timeout_ns)
{
    if (timeout_ns == CPU_FOREVER) {
        return CPU_FOREVER;
    }
    int64_t now = engine->clock->now();
    int64_t left = timeout_ns > 0 ? timeout_ns : 0;
    return left < CPU_FOREVER - now ? now + left : CPU_FOREVER;
}

/* ---- Lists of streams ---- */

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
cpu_stream_ready_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    cpu_list_append(&engine->ready[-stream->priority], stream);
    engine->ready_count++;
}

struct cpu_stream *
cpu_lists_take(struct cpu_stream_list lists[CPU_PRIORITIES])
{
    struct cpu_stream *stream = NULL;
    for (int i = CPU_PRIORITIES - 1; i >= 0 && stream == NULL; i--) {
        stream = cpu_list_take(&lists[i]);
    }
    return stream;
}

struct cpu_stream *
cpu_ready_take_locked(struct cpu_engine *engine)
{
    struct cpu_stream *stream = cpu_lists_take(engine->ready);
    engine->ready_count -= stream != NULL;
    return stream;
}

/* ---- Sleepers ---- */

/* Merge two skew heaps, either of which may be NULL. */
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

void
cpu_sleeper_add_locked(struct cpu_stream *stream, int64_t duration)
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

struct cpu_stream *
cpu_sleeper_take_locked(struct cpu_engine *engine)
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

/* ---- The engine's threads, and its lock ---- */

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
    if (!cpu_thread_start_locked(engine, engine->worker_main, name)) {
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
        engine->timer = cpu_thread_start_locked(engine, engine->timer_main,
                                                "ps-cpu-timer");
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

/* A separate function, so that the usual case saves no registers for it. */
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

/* ---- Notifications that are due ---- */

static void
make_due_locked(struct cpu_engine *engine,
                struct ps_notification *notification, ps_status status)
{
    ps_notification_remove(notification);
    notification->status = status;
    ps_notification_append(&engine->due, notification);
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

/* ---- Threads that wait ---- */

struct cpu_limit
cpu_limit(struct cpu_engine *engine, const struct ps_limit *limit)
{
    static const struct ps_limit none = {.timeout_ns = CPU_FOREVER};
    limit = limit != NULL ? limit : &none;
    return (struct cpu_limit){cpu_deadline(engine, limit->timeout_ns), limit};
}

/* Wait once; PS_ERROR_TIMED_OUT if the limit is reached. */
static ps_status
wait_once_locked(struct cpu_engine *engine, struct cpu_waiter *waiter,
                 const struct cpu_limit *limit)
{
    const struct ps_limit *asked = limit->asked;
    int64_t question = asked->is_over != NULL
                           ? cpu_deadline(engine, QUESTION_NS)
                           : CPU_FOREVER;
    bool asks = question < limit->deadline;
    if (engine->clock->wait_locked(engine, &waiter->wake,
                                   asks ? question : limit->deadline)) {
        return PS_SUCCESS;
    }
    if (!asks) {
        return PS_ERROR_TIMED_OUT;
    }
    cpu_unlock(engine);
    bool over = asked->is_over(asked->argument) != 0;
    cpu_lock(engine);
    return over ? PS_ERROR_TIMED_OUT : PS_SUCCESS;
}

ps_status
cpu_wait_locked(struct cpu_engine *engine, const struct cpu_goal *goal,
                const struct cpu_limit *limit)
{
    struct cpu_waiter **waiters =
        goal->stream != NULL ? &goal->stream->waiters : &goal->record->waiters;
    ps_status status = PS_SUCCESS;
    if (engine->phase == CPU_STOPPED) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    struct cpu_waiter waiter = {.target = goal->ticket, .next = *waiters};
    pthread_cond_init(&waiter.wake, &engine->monotonic);
    *waiters = &waiter;
    /* There may be no other thread to run the due notifications. */
    if (cpu_may_notify(engine) && !cpu_notify_due_locked(engine)) {
        status = PS_ERROR_TIMED_OUT;
    }
    while (!waiter.woken && status == PS_SUCCESS) {
        status =
            cpu_is_lazy(engine)
                ? engine->driver->wait_locked(engine, &waiter, goal, limit)
                : wait_once_locked(engine, &waiter, limit);
    }
    /* It is in no list in the child of a fork. */
    while (*waiters != NULL && *waiters != &waiter) {
        waiters = &(*waiters)->next;
    }
    if (*waiters != NULL) {
        *waiters = waiter.next;
    }
    pthread_cond_destroy(&waiter.wake);
    return waiter.woken ? PS_SUCCESS : status;
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

/* ---- The goals of waits ---- */

void
cpu_stream_reached_locked(struct cpu_stream *stream, uint64_t ticket)
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
