/* One mutex guards all variables here that are not atomic.  Backends call the
 * functions call() and done() with a driver's locks held, so no backend is
 * called with the mutex held. */
#include "reports.h"

#include <pthread.h>
#include <stdlib.h>

#include "array.h"
#include "lock.h"
#include "map.h"
#include "names.h"

enum { GENERATION = 1 << 15 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* The backends that were ever observed.  Once an entry is set, it stays the
 * same, except that a forked child clears it. */
static const struct ps_backend *_Atomic backends[PS_MOST_RUNTIMES];
static atomic_bool on[PS_MOST_RUNTIMES];
static uint64_t (*_Atomic source_of_call)(void);
/* Both maps have the key (runtime, number of a call).  `calls` has the latest
 * calls, and `older` has earlier ones.  A value is twice the call's source,
 * plus 1 if the call has been reported. */
static struct ps_map calls, older;
static uint64_t made; /* the number of calls so far */
static struct ps_reports reports;

/* ---- Functions that backends call ---- */

/* Move the calls that are in `calls` to `older`.  Of the calls that were in
 * `older` before, move those that have not been reported to `calls`, and
 * forget the others.  A call may have several reports, but these arrive soon
 * after each other. */
static void
forget_reported_locked(void)
{
    struct ps_map former = older;
    older = calls;
    calls = (struct ps_map){0};
    for (size_t i = 0; i < former.room; i++) {
        const struct ps_map_slot *slot = &former.slots[i];
        if (slot->value != NULL && !((uintptr_t)slot->value & 1)) {
            ps_map_set(&calls, slot->first, slot->second, slot->value);
        }
    }
    ps_map_clear(&former);
}

/* Returns the number that source() returned for a call (see
 * ps_reports_begin), and marks the call as reported.  Returns 0 if the call is
 * not known. */
static uint64_t
report_call_locked(uint64_t runtime, uint64_t number)
{
    uintptr_t mark = (uintptr_t)ps_map_take(&older, runtime, number);
    if (mark == 0) {
        mark = (uintptr_t)ps_map_get(&calls, runtime, number);
    }
    if (mark != 0) {
        ps_map_set(&calls, runtime, number, (void *)(mark | 1));
    }
    return mark >> 1;
}

static void
call(void *argument, uint64_t number)
{
    uint64_t source =
        atomic_load(&on[(uintptr_t)argument]) ? source_of_call() : 0;
    if (source != 0) {
        PS_HOLD(&mutex);
        if (++made % GENERATION == 0) {
            forget_reported_locked();
        }
        ps_map_set(&calls, (uintptr_t)argument, number, (void *)(source << 1));
    }
}

static void
done(void *argument, const struct ps_activity *activity)
{
    int runtime = (int)(uintptr_t)argument;
    PS_HOLD(&mutex);
    /* The call stays in the map, because it may have several activities.
     * Examples are the launch of a graph, and a copy in several parts. */
    uint64_t source = report_call_locked((uint64_t)runtime, activity->call);
    if (source != 0 && PS_ARRAY_GROW(reports.items, reports.count)) {
        struct ps_report *report = &reports.items[reports.count++];
        *report = (struct ps_report){*activity, runtime, 0, source};
        report->activity.name = NULL;
        if (activity->name != NULL) {
            report->name = ps_name_number(activity->name);
        }
    }
}

/* ---- Functions that the timeline calls ---- */

ps_status
ps_reports_begin(int runtime, const struct ps_backend *backend,
                 uint64_t (*source)(void), char *reason, size_t size)
{
    static const struct ps_activity_functions functions = {call, done};
    if (backend->activities_begin == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    atomic_store(&source_of_call, source);
    ps_status status = backend->activities_begin(
        backend, &functions, (void *)(uintptr_t)runtime, reason, size);
    if (status == PS_SUCCESS) {
        atomic_store(&backends[runtime], backend);
        atomic_store(&on[runtime], true);
    }
    return status;
}

bool
ps_reports_are_on(int runtime)
{
    return atomic_load_explicit(&on[runtime], memory_order_relaxed);
}

void
ps_reports_end(void)
{
    for (int i = 0; i < PS_MOST_RUNTIMES; i++) {
        const struct ps_backend *backend = atomic_load(&backends[i]);
        if (atomic_exchange(&on[i], false)) {
            backend->activities_flush(backend);
            backend->activities_end(backend);
        }
    }
}

void
ps_reports_reset(void)
{
    PS_HOLD(&mutex);
    ps_map_clear(&calls);
    ps_map_clear(&older);
    reports.count = 0;
}

struct ps_reports
ps_reports_take(void)
{
    for (int i = 0; i < PS_MOST_RUNTIMES; i++) {
        const struct ps_backend *backend = atomic_load(&backends[i]);
        if (backend != NULL) {
            backend->activities_flush(backend);
        }
    }
    PS_HOLD(&mutex);
    struct ps_reports taken = reports;
    reports = (struct ps_reports){0};
    return taken;
}

bool
ps_reports_stream(const struct ps_actor_name *stream, uint64_t *number)
{
    const struct ps_backend *backend = atomic_load(&backends[stream->runtime]);
    ps_handle handle;
    return backend != NULL &&
           ps_actor_handle(backend, stream->device, stream->stream, &handle) &&
           backend->stream_number(backend, stream->device, handle, number) ==
               PS_SUCCESS;
}

void
ps_reports_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void
ps_reports_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

void
ps_reports_forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    for (int i = 0; i < PS_MOST_RUNTIMES; i++) {
        atomic_store(&on[i], false);
        atomic_store(&backends[i], NULL);
    }
}
