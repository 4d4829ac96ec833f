/* Streams, and the pool of native streams that no ps_stream owns.  A new
 * stream gets a native stream from the pool only if that one is idle.  So a
 * new stream never waits for a former owner's work, and never reports a
 * failure of such work.  A busy native stream is usually not destroyed,
 * because a new stream could then get the same handle while the old work still
 * runs. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "event.h"
#include "partition.h"
#include "runtime.h"
#include "status.h"
#include "thread.h"
#include "trace.h"

/* ---- The pool ---- */

/* Destroy a native stream that no ps_stream owns. */
static void
discard(struct ps_device *device, ps_handle handle)
{
    ps_runtime_note_failure(device->runtime,
                            PS_CALL(device, stream_destroy, handle));
}

static int
pool_count(struct ps_device *device)
{
    return atomic_load_explicit(&device->pooled_stream_count,
                                memory_order_relaxed);
}

static void
take_locked(struct ps_device *device, int place,
            struct ps_pooled_stream *taken)
{
    struct ps_pooled_stream *pool = device->pooled_streams;
    *taken = pool[place];
    pool[place] = pool[--device->pooled_stream_count];
}

/* If the native stream at this place in the pool has the priority and the
 * blocking flag of `like`, or if `like` is NULL, move it from the pool to
 * *taken.  Returns false if there is no such stream. */
static bool
pool_take(struct ps_device *device, int place, const struct ps_stream *like,
          struct ps_pooled_stream *taken)
{
    pthread_mutex_lock(&device->mutex);
    const struct ps_pooled_stream *pooled = &device->pooled_streams[place];
    bool found = place < device->pooled_stream_count &&
                 (like == NULL || (pooled->priority == like->priority &&
                                   pooled->blocking == like->blocking));
    if (found) {
        take_locked(device, place, taken);
    }
    pthread_mutex_unlock(&device->mutex);
    return found;
}

/* If the pool is full, move one of its native streams to *taken; otherwise
 * return false.  Repeated calls go through the places in the pool in turn. */
static bool
pool_take_surplus(struct ps_device *device, struct ps_pooled_stream *taken)
{
    if (pool_count(device) < PS_POOLED_STREAMS) {
        return false;
    }
    pthread_mutex_lock(&device->mutex);
    unsigned count = (unsigned)device->pooled_stream_count;
    bool found = count >= PS_POOLED_STREAMS;
    if (found) {
        take_locked(device, (int)(device->pool_turn++ % count), taken);
    }
    pthread_mutex_unlock(&device->mutex);
    return found;
}

static bool
make_room_locked(struct ps_device *device)
{
    enum { FIRST = 32 };
    if (device->pooled_stream_count < device->pooled_stream_room) {
        return true;
    }
    int room = device->pooled_stream_room > 0 ? 2 * device->pooled_stream_room
                                              : FIRST;
    struct ps_pooled_stream *pool =
        realloc(device->pooled_streams, (size_t)room * sizeof(*pool));
    if (pool != NULL) {
        device->pooled_streams = pool;
        device->pooled_stream_room = room;
    }
    return pool != NULL;
}

/* Put the native stream into the pool, or destroy it if memory is short.  If
 * `owner`, the ps_stream that owned it, is not NULL, remove the owner from the
 * device's list of streams.
 *
 * As soon as that list is empty, another thread may reset the device in order
 * to reuse the emulation that has the device.  So the native stream is put
 * into the pool and the owner is removed from the list under one lock, and the
 * device is not accessed afterwards, except when memory is short. */
static void
pool_give(struct ps_device *device, const struct ps_pooled_stream *given,
          struct ps_stream *owner)
{
    pthread_mutex_lock(&device->mutex);
    bool room = make_room_locked(device);
    if (room) {
        device->pooled_streams[device->pooled_stream_count++] = *given;
    }
    if (owner != NULL) {
        LIST_REMOVE(owner, neighbours);
    }
    pthread_mutex_unlock(&device->mutex);
    if (!room) {
        discard(device, given->handle);
    }
}

/* Query a native stream that was taken from the pool.  If it is idle, give it
 * to `stream`; if it is busy, put it back; if it has failed, destroy it. */
static void
pool_examine(struct ps_stream *stream, const struct ps_pooled_stream *taken)
{
    struct ps_device *device = stream->device;
    stream->handle = taken->handle;
    ps_status found =
        taken->unused ? PS_SUCCESS : ps_stream_query_quietly(stream);
    if (found == PS_SUCCESS) {
        return;
    }
    stream->handle = 0;
    if (found == PS_ERROR_NOT_READY) {
        pool_give(device, taken, NULL);
    }
    else {
        discard(device, taken->handle);
    }
}

/* Find an idle native stream with the right priority and blocking flag in the
 * pool, and give it to the stream.  Checks the last place in the pool and then
 * the first places, at most LOOKED_AT places in all. */
static void
recycle(struct ps_stream *stream)
{
    enum { LOOKED_AT = 32 };
    struct ps_pooled_stream taken;
    int count = pool_count(stream->device);
    for (int i = 0; i < count && i < LOOKED_AT && stream->handle == 0; i++) {
        if (pool_take(stream->device, i == 0 ? count - 1 : i - 1, stream,
                      &taken)) {
            pool_examine(stream, &taken);
        }
    }
}

/* While the pool is full, destroy native streams in it that are idle.  Called
 * before a native stream is created or given to the pool.  Each call checks
 * two native streams, so that idle ones do not accumulate. */
static void
pool_trim(struct ps_device *device)
{
    struct ps_pooled_stream taken;
    for (int i = 0; i < 2 && pool_take_surplus(device, &taken); i++) {
        struct ps_stream stream = {.generation = ps_generation(),
                                   .device = device};
        pool_examine(&stream, &taken);
        if (stream.handle != 0) {
            discard(device, stream.handle);
        }
    }
}

void
ps_device_forget_failed(struct ps_device *device)
{
    struct ps_pooled_stream taken;
    for (int i = pool_count(device); i-- > 0;) {
        struct ps_stream stream = {.generation = ps_generation(),
                                   .device = device};
        if (pool_take(device, i, NULL, &taken)) {
            pool_examine(&stream, &taken);
        }
        if (stream.handle != 0 && i < PS_POOLED_STREAMS) {
            pool_give(device, &taken, NULL);
        }
        else if (stream.handle != 0) {
            discard(device, stream.handle);
        }
    }
}

/* ---- Lifetimes ---- */

/* If the stream cannot be released now, add it to the device's list
 * `deferred`, and return true.  A stream that is being captured must be
 * neither queried nor destroyed.  A busy stream of a partition is not
 * destroyed either. */
static bool
defer(struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    if (!atomic_load(&stream->used) ||
        (!ps_stream_in_capture(stream) &&
         (stream->partition == NULL ||
          ps_stream_query_quietly(stream) != PS_ERROR_NOT_READY))) {
        return false;
    }
    pthread_mutex_lock(&device->mutex);
    atomic_store(&stream->refs, 1);
    stream->next_deferred = device->deferred;
    atomic_store(&device->deferred, stream);
    pthread_mutex_unlock(&device->mutex);
    return true;
}

void
ps_device_give_up_deferred(struct ps_device *device)
{
    pthread_mutex_lock(&device->mutex);
    struct ps_stream *stream = device->deferred;
    atomic_store(&device->deferred, NULL);
    pthread_mutex_unlock(&device->mutex);
    while (stream != NULL) {
        struct ps_stream *next = stream->next_deferred;
        ps_runtime_note_failure(device->runtime, ps_stream_unref(stream));
        stream = next;
    }
}

static ps_status
give_up_native(struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    struct ps_pooled_stream given = {
        .handle = stream->handle,
        .priority = stream->priority,
        .blocking = stream->blocking,
        .unused = !atomic_load(&stream->used),
    };
    if (stream->partition != NULL) {
        pthread_mutex_lock(&device->mutex);
        LIST_REMOVE(stream, neighbours);
        pthread_mutex_unlock(&device->mutex);
        ps_status status = PS_CALL(device, stream_destroy, stream->handle);
        return ps_first_failure(status, ps_partition_unref(stream->partition));
    }
    pool_trim(device);
    pool_give(device, &given, stream);
    return PS_SUCCESS;
}

bool
ps_thread_has(const struct ps_stream *stream)
{
    const struct ps_stream *own = ps_thread_word(PS_THREAD_STREAMS);
    while (own != NULL && own != stream) {
        own = own->of_thread.next;
    }
    return own != NULL;
}

/* Query another thread's default stream.  Returns PS_ERROR_NOT_READY until
 * that thread has ended.  After that, the event of_thread.latest stands for
 * all work of the stream, so this queries the event. */
__attribute__((cold, noinline)) static ps_status
query_remote(struct ps_stream *stream)
{
    struct ps_runtime *runtime = stream->device->runtime;
    if (!atomic_load(&stream->of_thread.ended)) {
        return PS_ERROR_NOT_READY;
    }
    enum ps_capture_mode mode =
        ps_capture_mode_swap(runtime, PS_CAPTURE_RELAXED);
    bool own = ps_own_begin(runtime);
    ps_status status = ps_event_query(stream->of_thread.latest);
    ps_own_end(own);
    ps_capture_mode_swap(runtime, mode);
    return status;
}

static ps_status
forget_of_thread(struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    if (stream->generation == ps_generation()) {
        pthread_mutex_lock(&device->mutex);
        LIST_REMOVE(stream, neighbours);
        pthread_mutex_unlock(&device->mutex);
        stream->of_thread.freed(stream);
    }
    return ps_event_unref(stream->of_thread.latest);
}

static ps_status
clamp_priority(struct ps_device *device, int *priority)
{
    if (*priority == 0) {
        return PS_SUCCESS;
    }
    int least, greatest;
    ps_status status =
        PS_CALL(device, stream_priority_range, &least, &greatest);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (*priority > least) {
        *priority = least;
    }
    if (*priority < greatest) {
        *priority = greatest;
    }
    return PS_SUCCESS;
}

struct ps_stream *
ps_stream_new(struct ps_device *device, enum ps_stream_kind kind)
{
    struct ps_stream *stream = calloc(1, sizeof(*stream));
    if (stream != NULL) {
        atomic_init(&stream->refs, 1);
        stream->kind = kind;
        stream->generation = ps_generation();
        stream->device = device;
    }
    return stream;
}

/* Give the stream a native stream: an idle one from the pool, or a new one. */
static ps_status
take_native(struct ps_stream *stream)
{
    struct ps_device *device = stream->device;
    recycle(stream);
    if (stream->handle != 0) {
        return PS_SUCCESS;
    }
    pool_trim(device);
    return stream->blocking ? PS_CALL(device, blocking_create,
                                      stream->priority, &stream->handle)
                            : PS_CALL(device, stream_create, stream->priority,
                                      &stream->handle);
}

static ps_status
create(struct ps_device *device, struct ps_partition *partition, int priority,
       bool blocking, const char *name, struct ps_stream **result)
{
    ps_status status = clamp_priority(device, &priority);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (atomic_load(&device->deferred) != NULL) {
        ps_device_give_up_deferred(device);
    }
    struct ps_stream *stream = ps_stream_new(device, PS_STREAM_OWNED);
    if (stream == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    stream->priority = priority;
    stream->blocking = blocking;
    if (name != NULL && (stream->name = strdup(name)) == NULL) {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    if (status == PS_SUCCESS) {
        status = partition == NULL
                     ? take_native(stream)
                     : PS_CALL(device, partition_stream_create,
                               partition->handle, priority, &stream->handle);
    }
    if (status != PS_SUCCESS) {
        free(stream->name);
        free(stream);
        return status;
    }
    stream->identity = stream->handle;
    stream->partition = partition != NULL ? ps_partition_ref(partition) : NULL;
    pthread_mutex_lock(&device->mutex);
    LIST_INSERT_HEAD(&device->streams, stream, neighbours);
    pthread_mutex_unlock(&device->mutex);
    *result = stream;
    if (ps_trace_wants(PS_TRACE_STREAM_CREATION)) {
        /* The hook gets the handle, and may queue work on the stream with
         * it. */
        atomic_store(&stream->used, true);
        ps_trace_fire(PS_TRACE_STREAM_CREATION, device, stream->handle, 0);
    }
    return PS_SUCCESS;
}

ps_status
ps_stream_create(struct ps_device *device, int priority, bool blocking,
                 const char *name, struct ps_stream **stream)
{
    if (blocking && device->runtime->backend->blocking_create == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    return create(device, NULL, priority, blocking, name, stream);
}

ps_status
ps_partition_stream(struct ps_partition *partition, int priority,
                    const char *name, struct ps_stream **stream)
{
    return partition->generation != ps_generation()
               ? PS_ERROR_FOREIGN
               : create(partition->device, partition, priority, false, name,
                        stream);
}

ps_status
ps_stream_unref(struct ps_stream *stream)
{
    if (stream == NULL || stream->kind <= PS_STREAM_DEFAULT ||
        atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel) !=
            1) {
        return PS_SUCCESS;
    }
    ps_status status = PS_SUCCESS;
    if (stream->kind == PS_STREAM_OWNED &&
        stream->generation == ps_generation()) {
        if (defer(stream)) {
            return PS_SUCCESS;
        }
        status = give_up_native(stream);
    }
    else if (stream->kind == PS_STREAM_THREADS) {
        status = forget_of_thread(stream);
    }
    if (stream->release_owner != NULL) {
        stream->release_owner(stream->owner);
    }
    struct ps_stream *shared = stream->shared;
    free(stream->name);
    free(stream);
    return ps_first_failure(status, ps_stream_unref(shared));
}

/* ---- From a handle to a stream ---- */

/* Take a reference.  Returns false if the count is 0, because another thread
 * has dropped the last reference and is releasing the stream. */
static bool
try_ref(struct ps_stream *stream)
{
    unsigned refs = atomic_load(&stream->refs);
    while (refs != 0 &&
           !atomic_compare_exchange_weak(&stream->refs, &refs, refs + 1)) {
    }
    return refs != 0;
}

/* Returns a new reference to the live stream with this identity, or NULL.
 * Marks the stream as used, because whoever knows the handle may queue work on
 * the stream without core's knowledge. */
static struct ps_stream *
find_locked(struct ps_device *device, ps_handle identity)
{
    struct ps_stream *stream;
    LIST_FOREACH (stream, &device->streams, neighbours) {
        if (stream->identity == identity && try_ref(stream)) {
            break;
        }
    }
    if (stream != NULL) {
        atomic_store_explicit(&stream->used, true, memory_order_relaxed);
    }
    return stream;
}

static bool
is_pooled_locked(struct ps_device *device, ps_handle handle)
{
    bool found = false;
    for (int i = 0; i < device->pooled_stream_count; i++) {
        found = found || device->pooled_streams[i].handle == handle;
    }
    return found;
}

size_t
ps_device_identities(struct ps_device *device, ps_handle *identities,
                     size_t room)
{
    struct ps_stream *stream;
    size_t count = 1;
    if (room > 0) {
        identities[0] = 0;
    }
    pthread_mutex_lock(&device->mutex);
    LIST_FOREACH (stream, &device->streams, neighbours) {
        if (count < room) {
            identities[count] = stream->identity;
        }
        count++;
    }
    pthread_mutex_unlock(&device->mutex);
    return count;
}

struct ps_stream *
ps_stream_find(struct ps_device *device, ps_handle identity)
{
    pthread_mutex_lock(&device->mutex);
    struct ps_stream *stream = find_locked(device, identity);
    pthread_mutex_unlock(&device->mutex);
    return stream;
}

ps_status
ps_stream_wrap(struct ps_device *device, ps_handle handle, void *owner,
               void (*release_owner)(void *owner), struct ps_stream **result)
{
    pthread_mutex_lock(&device->mutex);
    struct ps_stream *shared = find_locked(device, handle);
    bool given_up = shared == NULL && is_pooled_locked(device, handle);
    pthread_mutex_unlock(&device->mutex);
    if (given_up) {
        return PS_ERROR_INVALID_HANDLE;
    }
    if (shared != NULL && owner == NULL) {
        *result = shared;
        return PS_SUCCESS;
    }
    struct ps_stream *stream = ps_stream_new(device, PS_STREAM_EXTERNAL);
    if (stream == NULL) {
        ps_runtime_note_failure(device->runtime, ps_stream_unref(shared));
        return PS_ERROR_OUT_OF_MEMORY;
    }
    stream->handle = stream->identity = handle;
    stream->priority = shared != NULL ? shared->priority : 0;
    stream->owner = owner;
    stream->release_owner = release_owner;
    stream->shared = shared;
    stream->partition = shared != NULL ? shared->partition : NULL;
    *result = stream;
    return PS_SUCCESS;
}

/* ---- Members ---- */

static ps_status
check(struct ps_stream *stream)
{
    return stream->generation != ps_generation() ? PS_ERROR_FOREIGN
                                                 : ps_capture_refuse(stream);
}

ps_status
ps_stream_query(struct ps_stream *stream)
{
    ps_status status = check(stream);
    return status != PS_SUCCESS
               ? status
               : PS_CALL(stream->device, stream_query, stream->handle);
}

ps_status
ps_stream_query_quietly(struct ps_stream *stream)
{
    struct ps_runtime *runtime = stream->device->runtime;
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (ps_stream_is_remote(stream)) {
        return query_remote(stream);
    }
    if (ps_stream_in_capture(stream)) {
        return PS_ERROR_NOT_READY;
    }
    enum ps_capture_mode mode =
        ps_capture_mode_swap(runtime, PS_CAPTURE_RELAXED);
    ps_status status = runtime->registered->stream_query(
        runtime->registered, stream->device->index, stream->handle);
    ps_capture_mode_swap(runtime, mode);
    return status;
}

ps_status
ps_stream_synchronize(struct ps_stream *stream, const struct ps_limit *limit)
{
    ps_status status = check(stream);
    return status != PS_SUCCESS ? status
                                : PS_CALL(stream->device, stream_synchronize,
                                          stream->handle, limit);
}

ps_status
ps_stream_blocking(struct ps_stream *stream, int *blocking)
{
    const struct ps_stream *owned =
        stream->shared != NULL ? stream->shared : stream;
    *blocking = owned->blocking;
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    return owned->kind == PS_STREAM_OWNED ||
                   owned->kind == PS_STREAM_THREADS ||
                   stream->device->runtime->backend->stream_blocking == NULL
               ? PS_SUCCESS
               : PS_CALL(stream->device, stream_blocking, stream->handle,
                         blocking);
}

ps_status
ps_stream_wait_room(struct ps_stream *stream, int64_t timeout_ns)
{
    return stream->device->runtime->backend->stream_wait_room == NULL
               ? PS_ERROR_NOT_SUPPORTED
               : PS_CALL(stream->device, stream_wait_room, stream->handle,
                         timeout_ns);
}

static void
trace_wait(struct ps_stream *stream, struct ps_event *event)
{
    if (!event->internal) {
        ps_trace(PS_TRACE_EVENT_WAIT, stream->device,
                 atomic_load(&event->handle), stream->handle);
    }
}

ps_status
ps_stream_wait_known(struct ps_stream *stream, struct ps_event *event)
{
    unsigned generation = ps_generation();
    if (stream->generation != generation || event->generation != generation) {
        return PS_ERROR_FOREIGN;
    }
    if (event->external) {
        return PS_ERROR_NOT_KNOWN;
    }
    if (atomic_load_explicit(&event->recorded, memory_order_acquire) == 0 &&
        !ps_event_is_shared(event)) {
        return PS_SUCCESS;
    }
    if (!ps_event_known_done(event)) {
        return PS_ERROR_NOT_KNOWN;
    }
    trace_wait(stream, event);
    return PS_SUCCESS;
}

/* Capture a wait for an external event.  Each launch of the graph executes
 * this wait.  The event may be recorded for the first time after the capture,
 * so it gets its native event here. */
static ps_status
wait_external(struct ps_stream *stream, struct ps_event *event)
{
    ps_status status = ps_event_bind(
        event, event->home != NULL ? event->home : stream->device);
    if (status == PS_SUCCESS) {
        status = ps_event_keep(event);
    }
    return status != PS_SUCCESS
               ? status
               : PS_CALL(stream->device, stream_wait_external, stream->handle,
                         atomic_load(&event->handle));
}

ps_status
ps_stream_wait_pending(struct ps_stream *stream, struct ps_event *event)
{
    /* If the event's record was captured, the stream joins that capture, which
     * must then keep the stream's partition. */
    ps_status status = ps_partition_keep(stream->partition);
    if (status != PS_SUCCESS) {
        return status;
    }
    if (ps_event_is_external_on(event, stream)) {
        status = wait_external(stream, event);
    }
    else if (atomic_load(&event->handle) == 0) {
        return PS_SUCCESS;
    }
    else {
        status = PS_CALL(stream->device, stream_wait_event, stream->handle,
                         atomic_load(&event->handle));
    }
    if (status == PS_SUCCESS) {
        trace_wait(stream, event);
    }
    return status;
}

ps_status
ps_stream_wait_event(struct ps_stream *stream, struct ps_event *event)
{
    ps_status status = ps_stream_wait_known(stream, event);
    return status == PS_ERROR_NOT_KNOWN ? ps_stream_wait_pending(stream, event)
                                        : status;
}

/* Record the native event on `other`, and make `stream` wait for it. */
static ps_status
wait_by(ps_handle event, struct ps_stream *stream, struct ps_stream *other,
        bool traced)
{
    ps_status status =
        PS_CALL(other->device, event_record, event, other->handle);
    if (status == PS_SUCCESS && traced) {
        ps_trace(PS_TRACE_EVENT_RECORD, other->device, event, other->handle);
    }
    if (status == PS_SUCCESS) {
        /* If the record was captured, the stream joins that capture, which
         * must then keep the stream's partition. */
        status = ps_partition_keep(stream->partition);
    }
    if (status == PS_SUCCESS) {
        status =
            PS_CALL(stream->device, stream_wait_event, stream->handle, event);
    }
    if (status == PS_SUCCESS && traced) {
        ps_trace(PS_TRACE_EVENT_WAIT, stream->device, event, stream->handle);
    }
    return status;
}

static ps_status
wait_stream(struct ps_stream *stream, struct ps_stream *other, bool internal)
{
    struct ps_device *device = other->device;
    unsigned generation = ps_generation();
    ps_handle event;
    if (stream->generation != generation || other->generation != generation) {
        return PS_ERROR_FOREIGN;
    }
    bool own = internal && ps_own_begin(device->runtime);
    ps_status status = ps_native_event_take(device, !internal, &event);
    if (status == PS_SUCCESS) {
        status = wait_by(event, stream, other, !internal);
        ps_native_event_give(device, !internal, event);
    }
    ps_own_end(own);
    return status;
}

ps_status
ps_stream_wait_stream(struct ps_stream *stream, struct ps_stream *other)
{
    return wait_stream(stream, other, false);
}

ps_status
ps_stream_wait_stream_quietly(struct ps_stream *stream,
                              struct ps_stream *other)
{
    return wait_stream(stream, other, true);
}
