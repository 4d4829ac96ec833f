/* What streams, threads and notifications wait for: a time, a record, or the
 * work of a stream up to an operation. */
#include "engine.h"

#include <time.h>

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

/* ---- Records and operations ---- */

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
