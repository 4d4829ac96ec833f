/* Implements struct ps_schedules.  A schedule is explored on all engines
 * together.  This file begins and ends schedules, and has the functions that
 * threads call when they poll, or when they wait for something other than
 * work. */
#include "engine.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The engines, by number; they are never freed. */
static struct cpu_engine *engines[CPU_ENGINES];
static atomic_int engine_count;
static atomic_bool explored, noted;
static atomic_uint ended; /* the number of callables that have ended */

_Static_assert(sizeof(((struct ps_sleep *)0)->blocked) ==
                   CPU_ENGINES * sizeof(struct ps_blocked),
               "one for each engine");

#define EACH_ENGINE(engine)                              \
    for (struct cpu_engine * engine, **next_ = engines;  \
         next_ < engines + atomic_load(&engine_count) && \
         (engine = *next_, true);                        \
         next_++)

void
cpu_explore_add(struct cpu_engine *engine)
{
    engine->driver = &cpu_lazy_driver;
    engines[engine->number] = engine;
    atomic_store(&engine_count, (int)engine->number + 1);
}

static void
set_on(bool on, bool with_notes)
{
    atomic_store(&explored, on);
    atomic_store(&noted, with_notes);
}

void
cpu_explore_reset_in_child(void)
{
    set_on(false, false);
}

/* ---- Threads that poll or wait ---- */

static void
explore_poll(void)
{
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        /* Leave out an engine on which the program has queued nothing during
         * the schedule. */
        if (cpu_is_lazy(engine) && engine->tickets > engine->lazy.first) {
            cpu_lazy_poll_locked(engine);
        }
        cpu_unlock(engine);
    }
}

/* Returns the virtual time at which a wait expires. */
static int64_t
deadline_of(int64_t now, int64_t left_ns)
{
    return left_ns < CPU_FOREVER - now ? now + left_ns : CPU_FOREVER;
}

/* Subtract the virtual time that has passed since `since` from *left_ns. */
static void
subtract_time(int64_t *left_ns, int64_t since)
{
    if (*left_ns != CPU_FOREVER) {
        *left_ns -= cpu_lazy_now() - since;
    }
}

static enum ps_progress
explore_advance(int64_t *left_ns)
{
    enum ps_progress best = PS_NOTHING;
    unsigned seen = atomic_load(&ended);
    int64_t before = cpu_lazy_now(), deadline = deadline_of(before, *left_ns);
    EACH_ENGINE (engine) {
        if (best == PS_RAN) {
            break;
        }
        cpu_lock(engine);
        enum ps_progress progress = cpu_lazy_advance_locked(engine, deadline);
        cpu_unlock(engine);
        best = progress < best ? progress : best;
    }
    if (best > PS_RUNNING && atomic_load(&ended) != seen) {
        /* A callable has ended during the loop above.  A thread of an engine
         * that was asked earlier in the loop may wait for that callable, so
         * that engine's answer may be out of date.  Report progress, so that
         * the caller tries again. */
        best = PS_RAN;
    }
    if (best == PS_EXPIRED) {
        /* Advance the time only after all engines were asked, because another
         * engine might have had work before the deadline. */
        cpu_lazy_pass_time(deadline);
    }
    subtract_time(left_ns, before);
    return best;
}

static void
explore_sleep(struct ps_sleep *sleep, bool known, unsigned seen,
              int64_t left_ns)
{
    int64_t now = cpu_lazy_now(), deadline = deadline_of(now, left_ns);
    *sleep = (struct ps_sleep){.forks = cpu_forks, .began = now};
    EACH_ENGINE (engine) {
        struct ps_blocked *blocked = &sleep->blocked[engine->number];
        cpu_lock(engine);
        if (cpu_is_lazy(engine)) {
            cpu_lazy_block_locked(engine, blocked, NULL, deadline);
            blocked->parked = blocked->callable && known;
            /* While `woken` is false, other threads may pick work that this
             * thread needs (see pick_for_blocked_locked).  So set it unless
             * the thread is parked.  Also set it if a callable has ended since
             * `seen` was read.  The callable may have ended this thread's
             * wait, so the thread must check again. */
            blocked->woken = !blocked->parked || atomic_load(&ended) != seen;
            cpu_lazy_host_waits_locked(engine, blocked);
        }
        cpu_unlock(engine);
    }
}

static void
explore_wake(struct ps_sleep *sleep, int64_t *left_ns)
{
    EACH_ENGINE (engine) {
        struct ps_blocked *blocked = &sleep->blocked[engine->number];
        cpu_lock(engine);
        if (sleep->forks == cpu_forks && blocked->listed) {
            LIST_REMOVE(blocked, neighbours);
        }
        cpu_unlock(engine);
    }
    subtract_time(left_ns, sleep->began);
}

static void
explore_arrived(void)
{
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        cpu_lazy_await_locked(engine);
        if (engine->lazy.ran > engine->lazy.first_step) {
            cpu_lazy_note_locked(engine, PS_NOTE_WAITED_STEP, engine->lazy.ran,
                                 0);
            cpu_lazy_arrived_locked(engine);
        }
        cpu_unlock(engine);
    }
}

static void
explore_ending(void)
{
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        if (cpu_is_lazy(engine) && cpu_lazy_is_callable(engine)) {
            cpu_lazy_ending_locked(engine);
        }
        pthread_mutex_unlock(&engine->lock);
    }
}

static unsigned
explore_endings(void)
{
    return atomic_load(&ended);
}

static void
explore_ended(void)
{
    /* A callable of another engine may wait for this callable's Future.  So
     * first wake the waiting threads, which then count as running, and only
     * then stop counting this callable. */
    atomic_fetch_add(&ended, 1);
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        cpu_lazy_wake_locked(engine);
        cpu_unlock(engine);
    }
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        if (cpu_is_lazy(engine) && cpu_lazy_is_callable(engine)) {
            cpu_lazy_ended_locked(engine);
        }
        cpu_unlock(engine);
    }
}

static void
explore_hold(void)
{
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        cpu_lazy_hold_locked(engine);
        cpu_unlock(engine);
    }
}

static void
explore_released(void)
{
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        cpu_lazy_released_locked(engine);
        cpu_unlock(engine);
    }
}

static void
explore_note(enum ps_note_kind kind, uintptr_t first, size_t second)
{
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        cpu_lazy_note_locked(engine, kind, first, second);
        pthread_mutex_unlock(&engine->lock);
    }
}

/* This runs no notifications when it releases the lock, because the caller may
 * hold the GIL. */
static unsigned
explore_number(const struct ps_backend *registered, int device,
               ps_handle handle)
{
    unsigned number = 0;
    EACH_ENGINE (engine) {
        if (registered == &engine->table.base) {
            cpu_lock(engine);
            const struct cpu_stream *stream = cpu_stream_find_locked(
                engine, device, handle & ~PS_THREAD_STREAM_NAME);
            if (stream != NULL && cpu_is_lazy(engine)) {
                number = stream->number;
            }
            pthread_mutex_unlock(&engine->lock);
        }
    }
    return number;
}

/* ---- Beginning and ending ---- */

static const struct ps_backend *
explore_table(const struct ps_backend *registered, bool on)
{
    EACH_ENGINE (engine) {
        if (registered == &engine->table.base) {
            return on ? &engine->lazy_table.base : registered;
        }
    }
    return NULL;
}

static bool
explore_is_on(void)
{
    return atomic_load_explicit(&explored, memory_order_acquire);
}

static bool
explore_is_noted(void)
{
    return atomic_load_explicit(&noted, memory_order_acquire);
}

static void
hide_failures_locked(struct cpu_device *device)
{
    struct cpu_stream *stream = &device->default_stream;
    device->earlier = (struct cpu_failures){device->unreported, stream->status,
                                            stream->reported};
    device->unreported = PS_SUCCESS;
    stream->status = PS_SUCCESS;
    stream->reported = false;
}

/* Restore the failures from before the schedule.  If the schedule's own work
 * has failed, that failure takes precedence, unless `drop` is true.  If `drop`
 * is true, the failures of the schedule's own work are forgotten. */
static void
show_failures_locked(struct cpu_device *device, bool drop)
{
    struct cpu_stream *stream;
    LIST_FOREACH (stream, &device->streams, neighbours) {
        if (drop && stream->number != 0) {
            stream->status = PS_SUCCESS;
        }
    }
    stream = &device->default_stream;
    if (drop || device->unreported == PS_SUCCESS) {
        device->unreported = device->earlier.unreported;
    }
    if (drop || stream->status == PS_SUCCESS) {
        cpu_stream_forget_locked(stream);
        stream->status = device->earlier.of_default_stream;
        stream->reported = device->earlier.reported;
    }
    device->earlier = (struct cpu_failures){PS_SUCCESS};
}

static void
limit(uint64_t *ticket, uint64_t most)
{
    *ticket = *ticket < most ? *ticket : most;
}

/* A call that queued nothing has set `given` to a ticket that the schedule's
 * first operation will get.  Set it back, so that this call does not count as
 * work of the schedule. */
static void
forget_next_locked(struct cpu_stream *stream)
{
    uint64_t tickets = stream->engine->tickets;
    limit(&stream->given, tickets);
    limit(&stream->follows, tickets);
    limit(&stream->followed, tickets);
}

static void
begin_locked(struct cpu_engine *engine, const struct ps_schedule *schedule,
             uint64_t *numbers)
{
    struct cpu_lazy *lazy = &engine->lazy;
    *lazy = (struct cpu_lazy){
        .asked = *schedule,
        .random = schedule->seed,
        .first = engine->tickets,
        .seen = engine->tickets,
        .rank = cpu_lazy_rank(schedule->seed, 0),
        .step = lazy->step,
        .first_step = lazy->step,
        .thread = pthread_self(),
        /* Keep the list, because a thread whose wait is over may not have
         * removed its entry yet. */
        .blocked = lazy->blocked,
    };
    lazy->asked.numbers = numbers;
    for (int i = 0; i < engine->device_count; i++) {
        struct cpu_stream *stream;
        LIST_FOREACH (stream, &engine->devices[i].streams, neighbours) {
            stream->number = 0;
            stream->done = 0;
            forget_next_locked(stream);
        }
        hide_failures_locked(&engine->devices[i]);
    }
    engine->clock = &cpu_lazy_clock;
    engine->phase = CPU_LAZY;
    lazy->step++;
    cpu_lazy_note_locked(engine, PS_NOTE_STEP, 0, 0);
}

/* Begin the schedule on the engine.  Returns PS_ERROR_NOT_READY if the engine
 * is busy. */
static ps_status
begin(struct cpu_engine *engine, const struct ps_schedule *schedule,
      char pending[256])
{
    ps_status status = PS_ERROR_NOT_READY;
    size_t nbytes = schedule->count * sizeof(*schedule->numbers);
    uint64_t *numbers = malloc(nbytes + 1);
    if (numbers == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    if (nbytes > 0) {
        memcpy(numbers, schedule->numbers, nbytes);
    }
    cpu_lock(engine);
    if (engine->phase == CPU_STOPPED) {
        status = PS_ERROR_SHUTTING_DOWN;
    }
    else if (!cpu_lazy_pending_locked(engine, pending)) {
        begin_locked(engine, schedule, numbers);
        status = PS_SUCCESS;
    }
    pthread_mutex_unlock(&engine->lock);
    if (status != PS_SUCCESS) {
        free(numbers);
    }
    return status;
}

/* Called for each engine.  The result gets the notes of the engine that had
 * work or, if no engine had work, of any engine.  If two engines had work,
 * sets result->mixed, because their steps have no common order. */
static void
end_notes_locked(struct cpu_lazy *lazy, struct ps_schedule_result *result)
{
    bool worked = lazy->ran > lazy->first_step;
    result->mixed |= worked && result->worked;
    if (lazy->noted > 0 && (result->notes == NULL || worked)) {
        struct ps_note *notes = result->notes;
        result->notes = lazy->notes;
        result->noted = lazy->noted;
        lazy->notes = notes;
    }
    result->worked |= worked;
    free(lazy->notes);
    lazy->notes = NULL;
    lazy->noted = 0;
    while (lazy->freed != NULL) {
        struct cpu_operation *operation = lazy->freed;
        lazy->freed = operation->next;
        free(operation);
    }
}

static void
end_locked(struct cpu_engine *engine, bool drop,
           struct ps_schedule_result *result)
{
    struct cpu_lazy *lazy = &engine->lazy;
    free((void *)lazy->asked.numbers);
    lazy->asked.numbers = NULL;
    result->operations += engine->tickets - lazy->first;
    result->steps += lazy->steps;
    result->order += lazy->order;
    if (lazy->followed > result->followed) {
        result->followed = lazy->followed;
    }
    if (lazy->logged > 0 && result->log == NULL) {
        result->log = lazy->log;
        result->logged = lazy->logged;
        lazy->log = NULL;
    }
    free(lazy->log);
    lazy->log = NULL;
    end_notes_locked(lazy, result);
    engine->clock = &cpu_monotonic_clock;
    if (cpu_is_lazy(engine)) {
        engine->phase = CPU_OPEN;
        for (int i = 0; i < engine->device_count; i++) {
            show_failures_locked(&engine->devices[i], drop);
        }
    }
}

/* Run or drop the remaining work of all engines.  Returns whether no work is
 * left.  The loop is repeated as long as new work is queued, because the
 * callables of one engine may queue work on an engine that was finished
 * before. */
static bool
finish(bool drop, int64_t end)
{
    bool finished = true;
    uint64_t before, queued = 0;
    do {
        before = queued;
        queued = 0;
        EACH_ENGINE (engine) {
            cpu_lock(engine);
            if (cpu_is_lazy(engine)) {
                finished =
                    cpu_lazy_finish_locked(engine, drop, end) && finished;
            }
            queued += engine->tickets;
            cpu_unlock(engine);
        }
    } while (finished && queued != before);
    return finished;
}

static ps_status
explore_end(bool drop, int64_t timeout_ns, struct ps_schedule_result *result)
{
    *result = (struct ps_schedule_result){0};
    if (!finish(drop, cpu_monotonic_clock.now() + timeout_ns)) {
        return PS_ERROR_TIMED_OUT;
    }
    EACH_ENGINE (engine) {
        cpu_lock(engine);
        end_locked(engine, drop, result);
        cpu_unlock(engine);
    }
    set_on(false, false);
    return PS_SUCCESS;
}

static ps_status
explore_begin(const struct ps_schedule *schedule, char pending[256])
{
    ps_status status = PS_SUCCESS;
    cpu_lazy_begin_time(schedule->continues);
    EACH_ENGINE (engine) {
        if (status == PS_SUCCESS) {
            status = begin(engine, schedule, pending);
        }
    }
    if (status != PS_SUCCESS) {
        struct ps_schedule_result result;
        explore_end(true, 0, &result);
        free(result.notes);
        return status;
    }
    set_on(true, schedule->noted);
    return PS_SUCCESS;
}

const struct ps_schedules ps_cpu_schedules = {
    .table = explore_table,
    .begin = explore_begin,
    .end = explore_end,
    .is_on = explore_is_on,
    .poll = explore_poll,
    .advance = explore_advance,
    .sleep = explore_sleep,
    .wake = explore_wake,
    .arrived = explore_arrived,
    .ending = explore_ending,
    .ended = explore_ended,
    .endings = explore_endings,
    .hold = explore_hold,
    .released = explore_released,
    .is_noted = explore_is_noted,
    .note = explore_note,
    .number = explore_number,
};
