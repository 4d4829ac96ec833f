/* Time, and threads that wait: each on a condition of its own, so that what
 * is done wakes only those who waited for it. */
#include "engine.h"

#include <time.h>

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

ps_status
cpu_wait_locked(struct cpu_engine *engine, struct cpu_waiter **waiters,
                uint64_t target, int64_t deadline)
{
    if (engine->phase == CPU_STOPPED) {
        return PS_ERROR_SHUTTING_DOWN;
    }
    struct cpu_waiter waiter = {.target = target, .next = *waiters};
    pthread_cond_init(&waiter.wake, &engine->monotonic);
    *waiters = &waiter;
    bool late = false;
    while (!waiter.woken && !late) {
        late = !engine->clock->wait_locked(engine, &waiter.wake, deadline);
    }
    while (*waiters != &waiter) {
        waiters = &(*waiters)->next;
    }
    *waiters = waiter.next;
    pthread_cond_destroy(&waiter.wake);
    return waiter.woken ? PS_SUCCESS : PS_ERROR_NOT_READY;
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
