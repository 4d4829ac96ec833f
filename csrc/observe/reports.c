/* One mutex guards all.  Backends call the functions for activities with locks
 * of a driver held, so no backend is called with it. */
#include "reports.h"

#include <pthread.h>
#include <stdlib.h>

#include "map.h"
#include "names.h"

enum { MOST_RUNTIMES = 8 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Constant once set: backends are never freed. */
static const struct ps_backend *_Atomic backends[MOST_RUNTIMES];
static atomic_bool on[MOST_RUNTIMES];
static uint64_t (*_Atomic source_of_call)(void);
static struct ps_map calls; /* sources, by runtime and number */
static struct ps_reports reports;

/* ---- What backends call ---- */

static void
call(void *argument, uint64_t number)
{
    uint64_t source =
        atomic_load(&on[(uintptr_t)argument]) ? source_of_call() : 0;
    if (source != 0) {
        pthread_mutex_lock(&mutex);
        ps_map_set(&calls, (uintptr_t)argument, number, (void *)source);
        pthread_mutex_unlock(&mutex);
    }
}

static bool
make_room_locked(void)
{
    if (reports.count < reports.room) {
        return true;
    }
    size_t room = reports.room != 0 ? 2 * reports.room : 256;
    void *grown = realloc(reports.items, room * sizeof(*reports.items));
    if (grown != NULL) {
        reports.items = grown;
        reports.room = room;
    }
    return grown != NULL;
}

static void
done(void *argument, const struct ps_activity *activity)
{
    int runtime = (int)(uintptr_t)argument;
    pthread_mutex_lock(&mutex);
    /* A call may have several: a launch of a graph, a copy in parts. */
    uintptr_t source =
        (uintptr_t)ps_map_get(&calls, (uint64_t)runtime, activity->call);
    if (source != 0 && make_room_locked()) {
        struct ps_report *report = &reports.items[reports.count++];
        *report = (struct ps_report){*activity, runtime, 0, source};
        report->activity.name = NULL;
        if (activity->name != NULL) {
            report->name = ps_name_number(activity->name);
        }
    }
    pthread_mutex_unlock(&mutex);
}

/* ---- What the timeline calls ---- */

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
    for (int i = 0; i < MOST_RUNTIMES; i++) {
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
    pthread_mutex_lock(&mutex);
    free(calls.slots);
    calls = (struct ps_map){0};
    reports.count = 0;
    pthread_mutex_unlock(&mutex);
}

struct ps_reports
ps_reports_take(void)
{
    for (int i = 0; i < MOST_RUNTIMES; i++) {
        const struct ps_backend *backend = atomic_load(&backends[i]);
        if (backend != NULL) {
            backend->activities_flush(backend);
        }
    }
    pthread_mutex_lock(&mutex);
    struct ps_reports taken = reports;
    reports = (struct ps_reports){0};
    pthread_mutex_unlock(&mutex);
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
    for (int i = 0; i < MOST_RUNTIMES; i++) {
        atomic_store(&on[i], false);
        atomic_store(&backends[i], NULL);
    }
}
