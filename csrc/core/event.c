/* Events, and the pools of idle native events.  Interprocess and external
 * events are never pooled: another process, or a launch of a graph, may still
 * use them without core's knowledge. */
#include "event.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "exports.h"
#include "lock.h"
#include "refs.h"
#include "runtime.h"
#include "thread.h"
#include "trace.h"

static inline void
trace(enum ps_trace_kind kind, struct ps_event *event, ps_handle stream)
{
    if (ps_trace_wants(kind) && !event->internal) {
        ps_trace_fire(kind, atomic_load(&event->device),
                      atomic_load(&event->handle), stream);
    }
}

static struct ps_idle_events *
pool_of(struct ps_device *device, const struct ps_event *event)
{
    return event->external || (event->flags & PS_EVENT_INTERPROCESS)
               ? NULL
               : &device->idle_events[event->flags];
}

/* ---- Events of several processes ---- */

struct ps_ipc {
    struct ps_export base;
    /* Whether this process exported the event.  If not, this process opened
     * it. */
    bool exported;
};

static struct ps_ipc *
ipc_create(const unsigned char *handle)
{
    struct ps_ipc *ipc = calloc(1, sizeof(*ipc));
    if (ipc != NULL && handle != NULL) {
        memcpy(ipc->base.handle, handle, sizeof(ipc->base.handle));
    }
    return ipc;
}

/* Release the event's interprocess handle before the event is freed. */
static void
forget_exported(struct ps_event *event)
{
    struct ps_ipc *ipc = atomic_load(&event->ipc);
    if (ipc != NULL && ipc->exported && event->generation == ps_generation()) {
        ps_export_remove(&ipc->base);
    }
    free(ipc);
}

/* ---- Lifetimes ---- */

ps_status
ps_event_create(struct ps_runtime *runtime, unsigned flags,
                struct ps_event **result)
{
    /* Use malloc, because calloc does not use the per-thread cache in older
     * versions of glibc. */
    struct ps_event *event = malloc(sizeof(*event));
    if (event == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *event = (struct ps_event){
        .refs = 1,
        .generation = ps_generation(),
        .flags = flags & ~(unsigned)PS_EVENT_EXTERNAL,
        .external = flags & PS_EVENT_EXTERNAL,
        .runtime = runtime,
    };
    *result = event;
    return PS_SUCCESS;
}

struct ps_event *
ps_event_ref(struct ps_event *event)
{
    atomic_fetch_add_explicit(&event->refs, 1, memory_order_relaxed);
    return event;
}

/* Put the native event into the pool.  Returns false if the pool has no room,
 * or if pool is NULL. */
static bool
pool_give(struct ps_device *device, struct ps_idle_events *pool,
          ps_handle handle)
{
    if (pool == NULL) {
        return false;
    }
    PS_HOLD(&device->mutex);
    bool kept = pool->count < PS_IDLE_EVENTS;
    if (kept) {
        pool->handles[pool->count++] = handle;
    }
    return kept;
}

/* Put the event's native event into the pool for its flags.  Returns false if
 * that is not possible; then the caller must destroy the native event. */
__attribute__((noinline)) static bool
give_up_native(struct ps_event *event)
{
    struct ps_device *device = atomic_load(&event->device);
    trace(PS_TRACE_EVENT_DELETION, event, 0);
    return pool_give(device, pool_of(device, event),
                     atomic_load(&event->handle));
}

bool
ps_event_let_go(struct ps_event *event)
{
    if (event == NULL || ps_refs_drop_shared(&event->refs)) {
        return true;
    }
    if (atomic_load(&event->handle) != 0 &&
        event->generation == ps_generation() && !give_up_native(event)) {
        return false;
    }
    forget_exported(event);
    free(event);
    return true;
}

ps_status
ps_event_finish(struct ps_event *event)
{
    ps_status status = PS_CALL(atomic_load(&event->device), event_destroy,
                               atomic_load(&event->handle));
    forget_exported(event);
    free(event);
    return status;
}

ps_status
ps_event_unref(struct ps_event *event)
{
    return ps_event_let_go(event) ? PS_SUCCESS : ps_event_finish(event);
}

/* Like ps_event_adopt, but calls no trace hook. */
static bool
claim(struct ps_event *event, struct ps_device *device, ps_handle handle)
{
    struct ps_device *unbound = NULL;
    if (!atomic_compare_exchange_strong(&event->device, &unbound, device)) {
        return false;
    }
    if ((event->flags & PS_EVENT_INTERPROCESS) || event->external) {
        atomic_store(&event->source, (ps_handle)event);
    }
    atomic_store_explicit(&event->handle, handle, memory_order_release);
    return true;
}

bool
ps_event_adopt(struct ps_event *event, struct ps_device *device,
               ps_handle handle)
{
    if (!claim(event, device, handle)) {
        return false;
    }
    trace(PS_TRACE_EVENT_CREATION, event, 0);
    return true;
}

static bool
may_bind(struct ps_event *event, struct ps_device *device)
{
    return event->home == NULL || event->home == device;
}

static bool
bind_pooled(struct ps_event *event, struct ps_device *device)
{
    struct ps_idle_events *pool = pool_of(device, event);
    if (pool == NULL || !may_bind(event, device)) {
        return false;
    }
    pthread_mutex_lock(&device->mutex);
    bool bound = pool->count > 0 &&
                 claim(event, device, pool->handles[pool->count - 1]);
    pool->count -= bound;
    pthread_mutex_unlock(&device->mutex);
    if (bound) {
        trace(PS_TRACE_EVENT_CREATION, event, 0);
    }
    return bound;
}

bool
ps_event_bind_pooled(struct ps_event *event, struct ps_stream *stream)
{
    unsigned generation = ps_generation();
    return event->generation == generation &&
           stream->generation == generation &&
           bind_pooled(event, stream->device);
}

/* Create a native event on the device for the event.  If another thread is
 * doing that already, only yields to that thread.  The caller must call this
 * again if the event still has no native event. */
static ps_status
bind_once(struct ps_event *event, struct ps_device *device)
{
    ps_handle handle;

    if (atomic_load(&event->device) != NULL) {
        sched_yield();
        return PS_SUCCESS;
    }
    if (bind_pooled(event, device)) {
        return PS_SUCCESS;
    }
    ps_status status = PS_CALL(device, event_create, event->flags, &handle);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (!ps_event_adopt(event, device, handle)) {
        ps_runtime_note_failure(device->runtime,
                                PS_CALL(device, event_destroy, handle));
    }
    return PS_SUCCESS;
}

ps_status
ps_event_make(struct ps_event *event, struct ps_device *device)
{
    ps_status status =
        may_bind(event, device) ? PS_SUCCESS : PS_ERROR_INVALID_DEVICE;
    while (status == PS_SUCCESS &&
           atomic_load_explicit(&event->handle, memory_order_acquire) == 0) {
        status = bind_once(event, device);
    }
    return status;
}

static ps_status
drop(void *event)
{
    return ps_event_unref(event);
}

ps_status
ps_event_keep(struct ps_event *event)
{
    const struct ps_kept item = {event, &event->refs, drop};
    return ps_capture_keep(event->runtime, &item);
}

/* ---- Native events without a ps_event ---- */

static ps_status
take_untraced(struct ps_device *device, ps_handle *handle)
{
    struct ps_idle_events *pool = &device->idle_events[0];
    /* Acquire, so that everything that the previous user of this event did
     * with it is visible here. */
    *handle =
        atomic_exchange_explicit(&device->wait_event, 0, memory_order_acquire);
    if (*handle != 0) {
        return PS_SUCCESS;
    }
    pthread_mutex_lock(&device->mutex);
    if (pool->count > 0) {
        *handle = pool->handles[--pool->count];
    }
    pthread_mutex_unlock(&device->mutex);
    return *handle != 0 ? PS_SUCCESS
                        : PS_CALL(device, event_create, 0, handle);
}

ps_status
ps_native_event_take(struct ps_device *device, bool traced, ps_handle *handle)
{
    ps_status status = take_untraced(device, handle);
    if (status == PS_SUCCESS && traced) {
        ps_trace(PS_TRACE_EVENT_CREATION, device, *handle, 0);
    }
    return status;
}

void
ps_native_event_give(struct ps_device *device, bool traced, ps_handle handle)
{
    ps_handle none = 0;
    if (traced) {
        ps_trace(PS_TRACE_EVENT_DELETION, device, handle, 0);
    }
    if (!atomic_compare_exchange_strong_explicit(&device->wait_event, &none,
                                                 handle, memory_order_release,
                                                 memory_order_relaxed) &&
        !pool_give(device, &device->idle_events[0], handle)) {
        ps_runtime_note_failure(device->runtime,
                                PS_CALL(device, event_destroy, handle));
    }
}

/* ---- Records ---- */

/* Capture the record of an external event as a graph node.  Each launch of the
 * graph then records the event. */
static ps_status
record_external(struct ps_event *event, struct ps_stream *stream)
{
    ps_status status = ps_event_keep(event);
    return status != PS_SUCCESS
               ? status
               : PS_CALL(stream->device, event_record_external,
                         atomic_load(&event->handle), stream->handle);
}

bool
ps_event_is_external_on(struct ps_event *event, struct ps_stream *stream)
{
    return event->external &&
           event->runtime->backend->event_record_external != NULL &&
           ps_stream_in_capture(stream);
}

ps_status
ps_event_record(struct ps_event *event, struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    unsigned generation = ps_generation();
    if (event->generation != generation || stream->generation != generation) {
        return PS_ERROR_FOREIGN;
    }
    ps_status status = ps_event_bind(event, device);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (atomic_load_explicit(&event->device, memory_order_relaxed) != device) {
        return PS_ERROR_INVALID_DEVICE;
    }
    bool external = ps_event_is_external_on(event, stream);
    bool captured = !external && ps_stream_is_captured(stream);
    status = external ? record_external(event, stream)
                      : PS_CALL(device, event_record,
                                atomic_load(&event->handle), stream->handle);
    if (status == PS_SUCCESS) {
        if (captured !=
            atomic_load_explicit(&event->captured, memory_order_relaxed)) {
            atomic_store_explicit(&event->captured, captured,
                                  memory_order_relaxed);
        }
        if (!(event->flags & PS_EVENT_INTERPROCESS) && !event->external) {
            atomic_store_explicit(&event->source, stream->identity,
                                  memory_order_relaxed);
        }
        /* Count the record only after it was made.  So a query that has read
         * this count asks the device about this record or a later one, never
         * about an earlier one. */
        atomic_fetch_add_explicit(&event->recorded, 1, memory_order_release);
        trace(PS_TRACE_EVENT_RECORD, event, stream->handle);
    }
    return status;
}

/* Store that the first `recorded` records are done.  Does nothing for an
 * external event: `recorded` does not count the records of graph launches, so
 * such an event may be pending again although the count is the same.  Also
 * does nothing while the race detector ignores the thread's calls: the next
 * query or wait must call the backend, so that the detector learns of it. */
static void
remember_done(struct ps_event *event, unsigned long long recorded)
{
    if (!event->external && ps_thread_word(PS_THREAD_UNAWARE) == NULL) {
        atomic_store_explicit(&event->completed, recorded,
                              memory_order_release);
    }
}

/* Returns a failure if the event must not be queried, because a parent process
 * created it, or because its latest record was captured and the query could
 * invalidate the capture. */
static ps_status
check(struct ps_event *event)
{
    if (event->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    return atomic_load_explicit(&event->captured, memory_order_relaxed)
               ? PS_ERROR_CAPTURED_EVENT
               : PS_SUCCESS;
}

/* Call the backend's event_synchronize if `wait` is true, and its event_query
 * otherwise.  Calls neither if the event is known to be done. */
static inline ps_status
ask(struct ps_event *event, bool wait, const struct ps_limit *limit)
{
    unsigned long long recorded =
        atomic_load_explicit(&event->recorded, memory_order_acquire);
    ps_status status = check(event);
    if (status != PS_SUCCESS || ps_event_known_done(event)) {
        return status;
    }
    struct ps_device *device = atomic_load(&event->device);
    ps_handle handle = atomic_load(&event->handle);
    status = wait ? PS_CALL(device, event_synchronize, handle, limit)
                  : PS_CALL(device, event_query, handle);
    if (status == PS_SUCCESS) {
        remember_done(event, recorded);
    }
    return status;
}

ps_status
ps_event_query(struct ps_event *event)
{
    return ask(event, false, NULL);
}

ps_status
ps_event_synchronize(struct ps_event *event, const struct ps_limit *limit)
{
    return ask(event, true, limit);
}

ps_status
ps_event_synchronize_known(struct ps_event *event)
{
    if (event->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (!ps_event_known_done(event)) {
        return PS_ERROR_NOT_KNOWN;
    }
    if (atomic_load(&event->recorded) != 0) {
        trace(PS_TRACE_EVENT_SYNCHRONIZATION, event, 0);
    }
    return PS_SUCCESS;
}

ps_status
ps_event_elapsed(struct ps_event *start, struct ps_event *end,
                 float *milliseconds)
{
    unsigned generation = ps_generation();
    if (start->generation != generation || end->generation != generation) {
        return PS_ERROR_FOREIGN;
    }
    return PS_CALL(atomic_load(&start->device), event_elapsed,
                   atomic_load(&start->handle), atomic_load(&end->handle),
                   milliseconds);
}

/* ---- Export and import ---- */

/* Store the interprocess handle of an export in the event.  Returns false if
 * another thread has exported the event in the meantime. */
static bool
publish(struct ps_event *event, struct ps_ipc *ipc)
{
    struct ps_ipc *none = NULL;
    ipc->exported = true;
    ps_export_add(&ipc->base);
    bool first = atomic_compare_exchange_strong(&event->ipc, &none, ipc);
    if (!first) {
        ps_export_remove(&ipc->base);
    }
    return first;
}

ps_status
ps_event_export(struct ps_event *event, struct ps_device *device,
                const unsigned char **handle)
{
    if (event->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (event->runtime->backend->event_export == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (atomic_load(&event->ipc) == NULL) {
        struct ps_ipc *ipc = ipc_create(NULL);
        ps_status status = ipc != NULL ? ps_event_bind(event, device)
                                       : PS_ERROR_OUT_OF_MEMORY;
        if (status == PS_SUCCESS) {
            status = PS_CALL(atomic_load(&event->device), event_export,
                             atomic_load(&event->handle), ipc->base.handle);
        }
        if (status != PS_SUCCESS || !publish(event, ipc)) {
            free(ipc);
        }
        if (status != PS_SUCCESS) {
            return status;
        }
    }
    *handle = atomic_load(&event->ipc)->base.handle;
    return PS_SUCCESS;
}

ps_status
ps_event_open(struct ps_device *device,
              const unsigned char handle[PS_IPC_HANDLE_BYTES],
              struct ps_event **result)
{
    struct ps_event *event;
    ps_handle native;
    if (device->runtime->backend->event_open == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    if (ps_is_exported(handle)) {
        return PS_ERROR_OWN_HANDLE;
    }
    struct ps_ipc *ipc = ipc_create(handle);
    ps_status status =
        ipc != NULL
            ? ps_event_create(device->runtime, PS_EVENT_INTERPROCESS, &event)
            : PS_ERROR_OUT_OF_MEMORY;
    if (status != PS_SUCCESS) {
        free(ipc);
        return status;
    }
    atomic_store(&event->ipc, ipc);
    status = PS_CALL(device, event_open, handle, &native);
    if (status != PS_SUCCESS) {
        ps_event_unref(event);
        return status;
    }
    ps_event_adopt(event, device, native);
    *result = event;
    return PS_SUCCESS;
}
