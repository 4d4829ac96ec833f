/* Threads that wait for the work of a stream, or for a record. */
#include "engine.h"

/* The time between two calls to ps_limit.is_over. */
enum { QUESTION_NS = 50 * 1000 * 1000 };

struct cpu_limit
cpu_limit(struct cpu_engine *engine, const struct ps_limit *limit)
{
    static const struct ps_limit none = {.timeout_ns = CPU_FOREVER};
    limit = limit != NULL ? limit : &none;
    return (struct cpu_limit){cpu_deadline(engine, limit->timeout_ns), limit};
}

/* Sleep until the waiter's condition is signalled, or until the limit must be
 * checked.  Returns PS_ERROR_TIMED_OUT if the limit is reached, else
 * PS_SUCCESS. */
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
    unsigned forks = cpu_forks;
    struct cpu_waiter waiter = {.target = goal->ticket, .next = *waiters};
    pthread_cond_init(&waiter.wake, &engine->monotonic);
    *waiters = &waiter;
    /* Before the thread sleeps, run the notifications that are due, because
     * there may be no other thread that would run them. */
    if (cpu_may_notify(engine) && !cpu_notify_due_locked(engine)) {
        status = PS_ERROR_TIMED_OUT;
    }
    while (!waiter.woken && status == PS_SUCCESS) {
        status =
            cpu_is_lazy(engine)
                ? engine->driver->wait_locked(engine, &waiter, goal, limit)
                : wait_once_locked(engine, &waiter, limit);
    }
    /* Remove the waiter from the list, but not in a child that limit->is_over
     * has forked: there, the list has waiters of threads that do not exist. */
    while (cpu_forks == forks && *waiters != NULL && *waiters != &waiter) {
        waiters = &(*waiters)->next;
    }
    if (cpu_forks == forks && *waiters != NULL) {
        *waiters = waiter.next;
    }
    pthread_cond_destroy(&waiter.wake);
    return waiter.woken ? PS_SUCCESS : status;
}
