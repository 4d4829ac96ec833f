/* The bodies of the engine's threads.  A few workers serve all streams, one
 * operation at a time, in the scheduler's order, and look for more work before
 * they sleep.  The timer wakes the sleepers on time even while every worker is
 * busy.  If a callback of the user forks on one of these threads, the thread
 * ends in the child, whose engine starts threads of its own. */
#include "engine.h"

#include <stdlib.h>
#include <sys/prctl.h>

enum { TURN = 64 }; /* operations done before others may have the lock */

void *
cpu_timer_main(void *argument)
{
    struct cpu_engine *engine = argument;
    unsigned forks = cpu_forks;
    /* Otherwise the kernel may wake it 50 us late. */
    prctl(PR_SET_TIMERSLACK, 1);
    cpu_lock(engine);
    while (engine->phase < CPU_STOPPING && cpu_forks == forks) {
        struct cpu_stream *stream = cpu_sleeper_take_locked(engine);
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

/* False as cpu_stream_serve_locked. */
static bool
worker_serve_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    struct cpu_operation *operation = stream->first;
    struct cpu_partition *partition = cpu_partition_of(stream, operation);
    bool frees = operation->kind == CPU_FREE;
    bool handed = cpu_is_lazy(engine);
    if (handed) {
        engine->lazy.handed_count--;
    }
    cpu_partition_enter_locked(partition);
    if (!cpu_stream_serve_locked(stream)) {
        return false;
    }
    cpu_partition_leave_locked(partition);
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

void *
cpu_worker_main(void *argument)
{
    struct cpu_engine *engine = argument;
    unsigned forks = cpu_forks, served = 0;
    cpu_lock(engine);
    engine->coming = false;
    while (engine->phase < CPU_STOPPING && cpu_forks == forks) {
        struct cpu_stream *stream =
            cpu_is_lazy(engine) ? cpu_list_take(&engine->lazy.handed)
                                : cpu_partition_schedule_locked(engine);
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
