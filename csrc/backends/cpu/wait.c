/* Waiting: for the lock by looking again, as it is held for a moment only;
 * for work on a condition of the thread's own, so that what is done wakes only
 * those who waited for it.  They are few, so one list holds all. */
#include "engine.h"

enum { LONGEST_PAUSE = 64 };

void
cpu_relax(int times)
{
    for (int i = 0; i < times; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

void
cpu_lock_held(struct cpu_engine *engine)
{
    for (int pause = 1; pause <= LONGEST_PAUSE; pause *= 2) {
        cpu_relax(pause);
        if (!pthread_mutex_trylock(&engine->lock))
            return;
    }
    pthread_mutex_lock(&engine->lock);
}

ps_status
cpu_wait_locked(struct cpu_engine *engine, const void *object, uint64_t target,
                int64_t deadline)
{
    struct cpu_waiter waiter = {
        .object = object,
        .target = target,
        .next = engine->waiters,
        .link = &engine->waiters,
    };
    bool late = false;
    if (engine->phase == CPU_STOPPED)
        return PS_ERROR_SHUTTING_DOWN;
    pthread_cond_init(&waiter.wake, &engine->monotonic);
    if (waiter.next)
        waiter.next->link = &waiter.next;
    engine->waiters = &waiter;
    while (!waiter.woken && !late)
        late = !engine->clock->wait_locked(engine, &waiter.wake, deadline);
    *waiter.link = waiter.next;
    if (waiter.next)
        waiter.next->link = waiter.link;
    pthread_cond_destroy(&waiter.wake);
    return waiter.woken ? PS_SUCCESS : PS_ERROR_NOT_READY;
}

uint64_t
cpu_wake_locked(struct cpu_engine *engine, const void *object,
                uint64_t reached)
{
    uint64_t least = UINT64_MAX;
    for (struct cpu_waiter *w = engine->waiters; w; w = w->next) {
        if (w->object != object || w->woken)
            continue;
        if (w->target <= reached) {
            w->woken = true;
            pthread_cond_signal(&w->wake);
        }
        else if (w->target < least) {
            least = w->target;
        }
    }
    return least;
}
