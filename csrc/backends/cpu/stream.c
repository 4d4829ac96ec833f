/* Streams: queues of operations, served by workers a turn at a time.
 * Operations of a stream are done in order, each by the one thread that owns
 * the stream's head at the time. */
#include "engine.h"

#include <stdlib.h>

void
cpu_list_append(struct cpu_stream_list *list, struct cpu_stream *stream)
{
    stream->next = NULL;
    if (list->last)
        list->last->next = stream;
    else
        list->first = stream;
    list->last = stream;
}

struct cpu_stream *
cpu_list_take(struct cpu_stream_list *list)
{
    struct cpu_stream *stream = list->first;
    if (stream) {
        list->first = stream->next;
        if (!list->first)
            list->last = NULL;
    }
    return stream;
}

void
cpu_stream_init_locked(struct cpu_stream *stream, struct cpu_engine *engine,
                       int device, int priority)
{
    struct cpu_stream **newest = &engine->devices[device].streams;
    *stream = (struct cpu_stream){
        .engine = engine,
        .device = device,
        .priority = priority,
        .state = CPU_IDLE,
        .tail = &stream->first,
        .watch = UINT64_MAX,
        .older = *newest,
    };
    if (*newest)
        (*newest)->newer = stream;
    *newest = stream;
    engine->stream_count++;
}

/* Free a destroyed stream that nothing uses any more.  A failure that nobody
 * was told of is left to the device. */
static void
stream_reap_locked(struct cpu_stream *stream)
{
    if (!stream->destroyed || stream->state != CPU_IDLE || stream->pins)
        return;
    struct cpu_device *device = &stream->engine->devices[stream->device];
    if (!stream->told && !device->lost)
        device->lost = stream->status;
    if (stream->newer)
        stream->newer->older = stream->older;
    else
        device->streams = stream->older;
    if (stream->older)
        stream->older->newer = stream->newer;
    stream->engine->stream_count--;
    free(stream);
}

static void
stream_unpin_locked(struct cpu_stream *stream)
{
    stream->pins--;
    stream_reap_locked(stream);
}

struct cpu_stream *
cpu_stream_find_locked(struct cpu_engine *engine, int device, ps_handle handle)
{
    if (!handle)
        return &engine->devices[device].standard;
    struct cpu_stream *stream =
        cpu_handle_find_locked(engine, CPU_STREAM, handle);
    return stream && stream->device == device ? stream : NULL;
}

struct cpu_stream *
cpu_stream_lock(const struct ps_backend *backend, int device, ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_stream *stream = cpu_stream_find_locked(engine, device, handle);
    if (!stream)
        cpu_unlock(engine);
    return stream;
}

/* ---- The queue ---- */

static uint64_t
stream_pending(struct cpu_stream *stream)
{
    return stream->queued - atomic_load(&stream->done);
}

void
cpu_stream_push_locked(struct cpu_stream *stream,
                       struct cpu_operation *operation)
{
    operation->next = NULL;
    *stream->tail = operation;
    stream->tail = &operation->next;
    stream->queued++;
    if (stream->state == CPU_IDLE) {
        cpu_stream_settle_locked(stream);
        cpu_engine_rouse_locked(stream->engine);
    }
}

ps_status
cpu_stream_append_locked(struct cpu_stream *stream,
                         const struct cpu_operation *operation)
{
    struct cpu_engine *engine = stream->engine;
    ps_status status = cpu_engine_staff_locked(engine);
    if (status)
        return status;
    if (stream_pending(stream) >= CPU_QUEUE_LIMIT)
        return PS_ERROR_NOT_READY;
    struct cpu_operation *node = cpu_pool_take_locked(&engine->operations);
    if (!node)
        return PS_ERROR_OUT_OF_MEMORY;
    *node = *operation;
    cpu_stream_push_locked(stream, node);
    return PS_SUCCESS;
}

void
cpu_stream_ready_locked(struct cpu_stream *stream)
{
    struct cpu_engine *engine = stream->engine;
    stream->state = CPU_READY;
    cpu_list_append(&engine->ready[-stream->priority], stream);
    engine->ready_count++;
}

/* A wait is kept on a failed stream too: a free behind it must not run before
 * other streams are done with the block. */
bool
cpu_stream_park_locked(struct cpu_stream *stream)
{
    struct cpu_operation *head = stream->first;
    if (head->kind == CPU_WAIT && !head->record->done) {
        cpu_list_append(&head->record->parked, stream);
    }
    else if (head->kind == CPU_SLEEP && !head->sleep.started &&
             !stream->status) {
        head->sleep.started = true;
        cpu_timers_add_locked(stream, head->sleep.duration);
    }
    else {
        return false;
    }
    stream->state = CPU_PARKED;
    return true;
}

void
cpu_stream_settle_locked(struct cpu_stream *stream)
{
    if (!stream->first) {
        stream->state = CPU_IDLE;
        stream_reap_locked(stream);
    }
    else if (!cpu_stream_park_locked(stream)) {
        cpu_stream_ready_locked(stream);
    }
}

void
cpu_stream_fail_locked(struct cpu_stream *stream, ps_status status)
{
    if (!stream->status)
        stream->status = status;
}

/* A waiting thread stores watch and then reads done; the owner stores done and
 * then reads watch.  All four are sequentially consistent, so one of the two
 * sees the other. */

void
cpu_stream_advance_locked(struct cpu_stream *stream)
{
    uint64_t done = atomic_fetch_add(&stream->done, 1) + 1;
    if (done >= atomic_load(&stream->watch))
        atomic_store(&stream->watch,
                     cpu_wake_locked(stream->engine, stream, done));
}

void
cpu_stream_advance(struct cpu_stream *stream)
{
    uint64_t done = atomic_fetch_add(&stream->done, 1) + 1;
    if (done >= atomic_load(&stream->watch)) {
        cpu_lock(stream->engine);
        atomic_store(&stream->watch,
                     cpu_wake_locked(stream->engine, stream, done));
        cpu_unlock(stream->engine);
    }
}

/* Wait until target operations are done; the stream is pinned. */
static ps_status
stream_wait_locked(struct cpu_stream *stream, uint64_t target,
                   int64_t deadline)
{
    if (atomic_load(&stream->done) >= target)
        return PS_SUCCESS;
    if (cpu_serving == stream)
        return PS_ERROR_NOT_PERMITTED;
    if (target < atomic_load(&stream->watch))
        atomic_store(&stream->watch, target);
    if (atomic_load(&stream->done) >= target)
        return PS_SUCCESS;
    return cpu_wait_locked(stream->engine, stream, target, deadline);
}

/* The failure of the stream, of which somebody is then told. */
static ps_status
stream_tell_locked(struct cpu_stream *stream)
{
    stream->told = stream->status;
    return stream->status;
}

/* ---- Members ---- */

static ps_status
cpu_stream_priority_range(const struct ps_backend *backend, int device,
                          int *least, int *greatest)
{
    (void)backend;
    (void)device;
    *least = 0;
    *greatest = 1 - CPU_PRIORITIES;
    return PS_SUCCESS;
}

static ps_status
cpu_stream_create(const struct ps_backend *backend, int device, int priority,
                  ps_handle *handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    if (priority > 0 || priority <= -CPU_PRIORITIES)
        return PS_ERROR_INVALID_VALUE;
    struct cpu_stream *stream = malloc(sizeof(*stream));
    if (!stream)
        return PS_ERROR_OUT_OF_MEMORY;
    cpu_lock(engine);
    ps_handle made = 0;
    if (cpu_timers_reserve_locked(engine, engine->stream_count + 1))
        made = cpu_handle_create_locked(engine, CPU_STREAM, stream);
    if (made) {
        cpu_stream_init_locked(stream, engine, device, priority);
        stream->handle = made;
    }
    cpu_unlock(engine);
    if (!made) {
        free(stream);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *handle = made;
    return PS_SUCCESS;
}

static ps_status
cpu_stream_destroy(const struct ps_backend *backend, int device,
                   ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_stream *stream =
        handle ? cpu_stream_lock(backend, device, handle) : NULL;
    if (!stream)
        return PS_ERROR_INVALID_HANDLE;
    cpu_handle_destroy_locked(engine, handle);
    stream->destroyed = true;
    stream_reap_locked(stream);
    cpu_unlock(engine);
    return PS_SUCCESS;
}

static ps_status
cpu_stream_query(const struct ps_backend *backend, int device,
                 ps_handle handle)
{
    struct cpu_stream *stream = cpu_stream_lock(backend, device, handle);
    if (!stream)
        return PS_ERROR_INVALID_HANDLE;
    ps_status status = stream_pending(stream) ? PS_ERROR_NOT_READY
                                              : stream->status;
    cpu_unlock(stream->engine);
    return status;
}

static ps_status
cpu_stream_synchronize(const struct ps_backend *backend, int device,
                       ps_handle handle)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_stream *stream = cpu_stream_lock(backend, device, handle);
    if (!stream)
        return PS_ERROR_INVALID_HANDLE;
    stream->pins++;
    ps_status status = stream_wait_locked(stream, stream->queued, CPU_FOREVER);
    if (!status)
        status = stream_tell_locked(stream);
    stream_unpin_locked(stream);
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_stream_wait_room(const struct ps_backend *backend, int device,
                     ps_handle handle, int64_t timeout_ns)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    int64_t deadline = cpu_deadline(engine, timeout_ns > 0 ? timeout_ns : 0);
    struct cpu_stream *stream = cpu_stream_lock(backend, device, handle);
    if (!stream)
        return PS_ERROR_INVALID_HANDLE;
    ps_status status = PS_SUCCESS;
    stream->pins++;
    if (stream_pending(stream) >= CPU_QUEUE_LIMIT)
        status = stream_wait_locked(
            stream, stream->queued - CPU_QUEUE_LIMIT + 1, deadline);
    stream_unpin_locked(stream);
    cpu_unlock(engine);
    return status;
}

static ps_status
cpu_stream_device(const struct ps_backend *backend, ps_handle handle,
                  int *device)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    cpu_lock(engine);
    struct cpu_stream *stream =
        cpu_handle_find_locked(engine, CPU_STREAM, handle);
    if (stream)
        *device = stream->device;
    cpu_unlock(engine);
    return stream ? PS_SUCCESS : PS_ERROR_INVALID_HANDLE;
}

static ps_status
stream_enqueue(const struct ps_backend *backend, int device, ps_handle handle,
               const struct cpu_operation *operation)
{
    struct cpu_stream *stream = cpu_stream_lock(backend, device, handle);
    if (!stream)
        return PS_ERROR_INVALID_HANDLE;
    ps_status status = cpu_stream_append_locked(stream, operation);
    cpu_unlock(stream->engine);
    return status;
}

static ps_status
cpu_stream_fail(const struct ps_backend *backend, int device, ps_handle stream,
                ps_status failure)
{
    if (failure <= 0 || failure > 999 || failure == PS_ERROR_NOT_READY)
        return PS_ERROR_INVALID_VALUE;
    struct cpu_operation fail = {.kind = CPU_FAIL, .status = failure};
    return stream_enqueue(backend, device, stream, &fail);
}

static ps_status
cpu_host_function(const struct ps_backend *backend, int device,
                  ps_handle stream, ps_host_function function, void *argument)
{
    struct cpu_operation call = {
        .kind = CPU_CALL,
        .call = {function, argument},
    };
    return stream_enqueue(backend, device, stream, &call);
}

static ps_status
cpu_sleep(const struct ps_backend *backend, int device, ps_handle stream,
          uint64_t cycles)
{
    struct cpu_operation sleep = {
        .kind = CPU_SLEEP,
        .sleep = {.duration = cycles},
    };
    return stream_enqueue(backend, device, stream, &sleep);
}

/* A stream and what was queued on it when device_synchronize was called. */
struct visit {
    struct cpu_stream *stream;
    uint64_t target;
};

/* The streams of the device that have work left, pinned. */
static ps_status
visits_gather_locked(struct cpu_device *device, struct visit **visits,
                     size_t *count)
{
    size_t busy = 0;
    for (struct cpu_stream *s = device->streams; s; s = s->older)
        busy += stream_pending(s) > 0;
    *visits = NULL;
    *count = 0;
    if (!busy)
        return PS_SUCCESS;
    *visits = malloc(busy * sizeof(**visits));
    if (!*visits)
        return PS_ERROR_OUT_OF_MEMORY;
    for (struct cpu_stream *s = device->streams; s; s = s->older) {
        if (stream_pending(s)) {
            s->pins++;
            (*visits)[(*count)++] = (struct visit){s, s->queued};
        }
    }
    return PS_SUCCESS;
}

/* A failure that nobody was told of from a destroyed stream, or else the
 * failure of a live one. */
static ps_status
device_tell_locked(struct cpu_device *device)
{
    ps_status status = device->lost;
    device->lost = PS_SUCCESS;
    for (struct cpu_stream *s = device->streams; s && !status; s = s->older) {
        if (!s->destroyed || !s->told)
            status = stream_tell_locked(s);
    }
    return status;
}

static ps_status
cpu_device_synchronize(const struct ps_backend *backend, int index)
{
    struct cpu_engine *engine = cpu_engine_of(backend);
    struct cpu_device *device = &engine->devices[index];
    struct visit *visits;
    size_t count;
    cpu_lock(engine);
    ps_status status = visits_gather_locked(device, &visits, &count);
    for (size_t i = 0; i < count; i++) {
        if (!status)
            status = stream_wait_locked(visits[i].stream, visits[i].target,
                                        CPU_FOREVER);
        stream_unpin_locked(visits[i].stream);
    }
    if (!status)
        status = device_tell_locked(device);
    cpu_unlock(engine);
    free(visits);
    return status;
}

void
cpu_stream_members(struct ps_backend *table)
{
    table->stream_priority_range = cpu_stream_priority_range;
    table->stream_create = cpu_stream_create;
    table->stream_destroy = cpu_stream_destroy;
    table->stream_query = cpu_stream_query;
    table->stream_synchronize = cpu_stream_synchronize;
    table->stream_wait_room = cpu_stream_wait_room;
    table->stream_device = cpu_stream_device;
    table->stream_fail = cpu_stream_fail;
    table->host_function = cpu_host_function;
    table->sleep = cpu_sleep;
    table->device_synchronize = cpu_device_synchronize;
}
