/* Time, and threads that wait: each on a condition of its own, so that what
 * is done wakes only those who waited for it. */
#include "engine.h"

#include <time.h>

/* How often somebody is asked whether a wait is over. */
enum { QUESTION_NS = 50 * 1000 * 1000 };

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
    int64_t now = engine->clock->now(engine);
    int64_t left = timeout_ns > 0 ? timeout_ns : 0;
    return left < CPU_FOREVER - now ? now + left : CPU_FOREVER;
}

struct cpu_limit
cpu_limit(struct cpu_engine *engine, const struct ps_limit *limit)
{
    static const struct ps_limit none = {.timeout_ns = CPU_FOREVER};
    limit = limit != NULL ? limit : &none;
    return (struct cpu_limit){cpu_deadline(engine, limit->timeout_ns), limit};
}

/* Wait once; whether the limit is reached. */
static bool
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
        return false;
    }
    if (!asks) {
        return true;
    }
    cpu_unlock(engine);
    bool over = asked->is_over(asked->argument) != 0;
    cpu_lock(engine);
    return over;
}

ps_status
cpu_wait_locked(struct cpu_engine *engine, struct cpu_waiter **waiters,
                uint64_t target, const struct cpu_limit *limit)
{
    if (engine->phase == CPU_STOPPED) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    struct cpu_waiter waiter = {.target = target, .next = *waiters};
    pthread_cond_init(&waiter.wake, &engine->monotonic);
    *waiters = &waiter;
    /* Nobody else may come to run what is due. */
    bool over = cpu_may_notify(engine) && !cpu_notify_due_locked(engine);
    if (over) {
        cpu_lock(engine);
    }
    while (!waiter.woken && !over) {
        over = wait_once_locked(engine, &waiter, limit);
    }
    /* It is in no list in the child of a fork. */
    while (*waiters != NULL && *waiters != &waiter) {
        waiters = &(*waiters)->next;
    }
    if (*waiters != NULL) {
        *waiters = waiter.next;
    }
    pthread_cond_destroy(&waiter.wake);
    return waiter.woken ? PS_SUCCESS : PS_ERROR_TIMED_OUT;
}

void
cpu_wake_locked(struct cpu_waiter *waiters, uint64_t reached)
{
    for (struct cpu_waiter *w = waiters; w != NULL; w = w->next) {
        if (w->target <= reached && !w->woken) {
            w->woken = true;
            pthread_cond_signal(&w->wake);
        }
    }
}
