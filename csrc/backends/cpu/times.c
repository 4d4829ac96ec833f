/* Time: the clock, deadlines, and the times of operations.  A caller uses the
 * member operation_times to get the times at which an operation begins and
 * ends.  As soon as the end is written, the struct ps_times belongs to the
 * caller again. */
#include "engine.h"

#include <stdlib.h>
#include <time.h>

/* ---- The clock and deadlines ---- */

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

/* ---- The times of operations ---- */

pthread_key_t cpu_times_key;

struct promise {
    struct cpu_promise base;
    struct cpu_engine *engine;
    struct ps_times *times;
};

struct ps_times *
cpu_times_take(void)
{
    struct ps_times *times = pthread_getspecific(cpu_times_key);
    if (times != NULL) {
        pthread_setspecific(cpu_times_key, NULL);
        times->begin = times->end = 0;
    }
    return times;
}

static void
write_time(int64_t *to, int64_t time)
{
    __atomic_store_n(to, time, __ATOMIC_RELEASE);
}

void
cpu_times_begin(struct cpu_engine *engine, struct cpu_operation *operation)
{
    write_time(&operation->times->begin, engine->clock->now());
}

/* Write the time at which the operation has ended.  If the time at which it
 * began was not written yet, write that, too.  A sleep began at its deadline
 * minus its duration.  If the operation was skipped because the stream has
 * failed, both times are equal. */
void
cpu_times_end(struct cpu_stream *stream, struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
    struct ps_times *times = operation->times;
    int64_t now = engine->clock->now();
    if (operation->kind == CPU_SLEEP && stream->status == PS_SUCCESS) {
        write_time(&times->begin, stream->deadline - operation->duration);
    }
    else if (times->begin == 0) {
        write_time(&times->begin, now);
    }
    write_time(&times->end, now);
}

static void
end_locked(struct cpu_promise *base, const struct cpu_record *record)
{
    struct promise *promise = (struct promise *)base;
    struct cpu_engine *engine = promise->engine;
    (void)record;
    write_time(&promise->times->end, engine->clock->now());
    free(promise);
}

void
cpu_times_promise_locked(struct cpu_record *record, struct ps_times *times)
{
    struct promise *promise = malloc(sizeof(*promise));
    if (promise == NULL) {
        write_time(&times->end, -1);
        return;
    }
    *promise = (struct promise){
        .base.end_locked = end_locked,
        .engine = record->source->engine,
        .times = times,
    };
    record->promise = &promise->base;
}

/* ---- Members ---- */

static ps_status
cpu_time_now(const struct ps_backend *backend, int64_t *now)
{
    *now = cpu_engine_of(backend)->clock->now();
    return PS_SUCCESS;
}

static ps_status
cpu_operation_times(const struct ps_backend *backend, struct ps_times *times)
{
    if (times != NULL) {
        atomic_store(&cpu_engine_of(backend)->timing, true);
    }
    return pthread_setspecific(cpu_times_key, times) == 0
               ? PS_SUCCESS
               : PS_ERROR_OUT_OF_MEMORY;
}

void
cpu_times_members(struct ps_backend *table)
{
    table->time_now = cpu_time_now;
    table->operation_times = cpu_operation_times;
}
