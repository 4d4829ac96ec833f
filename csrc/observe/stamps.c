/* One mutex guards the devices and their lists, also while a backend is
 * called: that waits for no work, but for the host's own base. */
#include "stamps.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <time.h>

enum {
    TRIES = 5,             /* to measure a base */
    PATIENCE_NS = 2000000, /* with one try */
    LASTS_NS = 1000000000, /* a base */
    LOOK = 4,              /* how many to check when one is added */
};

struct base {
    unsigned refs;
    ps_handle event;
    int64_t time;
};

struct ps_stamps {
    struct device *device;
    struct base *base;
    struct ps_times *times;
    ps_handle stream, begin, end;
    TAILQ_ENTRY(ps_stamps) neighbours;
};

struct device {
    const struct ps_backend *backend;
    int runtime, index;
    struct base *base;
    TAILQ_HEAD(, ps_stamps) pending; /* in the order of queueing */
    ps_handle *idle;
    size_t idle_count, idle_room;
    SLIST_ENTRY(device) neighbours;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static SLIST_HEAD(, device) devices = SLIST_HEAD_INITIALIZER(devices);
static int64_t greatest_error;

static int64_t
now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

bool
ps_stamps_are_possible(const struct ps_backend *backend)
{
    return backend->event_elapsed != NULL;
}

/* Calls that no capture on another stream may notice. */
static enum ps_capture_mode
relax(const struct ps_backend *backend, enum ps_capture_mode mode)
{
    if (backend->capture_mode_exchange != NULL) {
        backend->capture_mode_exchange(backend, &mode);
    }
    return mode;
}

/* ---- Events ---- */

static ps_status
take_event_locked(struct device *device, ps_handle *event)
{
    if (device->idle_count > 0) {
        *event = device->idle[--device->idle_count];
        return PS_SUCCESS;
    }
    return device->backend->event_create(device->backend, device->index,
                                         PS_EVENT_TIMING, event);
}

static void
give_event_locked(struct device *device, ps_handle event)
{
    if (event == 0) {
        return;
    }
    if (device->idle_count == device->idle_room) {
        size_t room = device->idle_room != 0 ? 2 * device->idle_room : 64;
        ps_handle *grown = realloc(device->idle, room * sizeof(*device->idle));
        if (grown == NULL) {
            device->backend->event_destroy(device->backend, device->index,
                                           event);
            return;
        }
        device->idle = grown;
        device->idle_room = room;
    }
    device->idle[device->idle_count++] = event;
}

/* ---- Bases ---- */

static void
base_unref_locked(struct device *device, struct base *base)
{
    if (base != NULL && --base->refs == 0) {
        give_event_locked(device, base->event);
        free(base);
    }
}

/* Record the event on an idle stream: the time at which that was done, and the
 * error of it; false if it took too long. */
static bool
measure_locked(struct device *device, ps_handle stream, ps_handle event,
               int64_t *time, int64_t *error)
{
    const struct ps_backend *backend = device->backend;
    int64_t begin = now(), end = begin;
    ps_status status =
        backend->event_record(backend, device->index, event, stream);
    if (status == PS_SUCCESS) {
        do {
            status = backend->event_query(backend, device->index, event);
            end = now();
        } while (status == PS_ERROR_NOT_READY && end - begin < PATIENCE_NS);
    }
    *error = (end - begin) / 2;
    *time = begin + *error;
    return status == PS_SUCCESS;
}

/* A new base for the device, the best of a few tries. */
static void
make_base_locked(struct device *device)
{
    const struct ps_backend *backend = device->backend;
    struct base *base = calloc(1, sizeof(*base));
    ps_handle stream, event;
    int64_t best = INT64_MAX, time, error;
    if (base == NULL || backend->stream_create(backend, device->index, 0,
                                               &stream) != PS_SUCCESS) {
        free(base);
        return;
    }
    base->refs = 1;
    for (int i = 0; i < TRIES; i++) {
        if (take_event_locked(device, &event) != PS_SUCCESS) {
            break;
        }
        if (measure_locked(device, stream, event, &time, &error) &&
            error < best) {
            give_event_locked(device, base->event);
            base->event = event;
            base->time = time;
            best = error;
        }
        else {
            give_event_locked(device, event);
        }
    }
    backend->stream_destroy(backend, device->index, stream);
    if (base->event == 0) {
        free(base);
        return;
    }
    base_unref_locked(device, device->base);
    device->base = base;
    greatest_error = best > greatest_error ? best : greatest_error;
}

static struct device *
device_locked(const struct ps_backend *backend,
              const struct ps_actor_name *stream)
{
    struct device *device;
    SLIST_FOREACH(device, &devices, neighbours)
    {
        if (device->runtime == stream->runtime &&
            device->index == stream->device) {
            break;
        }
    }
    if (device == NULL && (device = calloc(1, sizeof(*device))) != NULL) {
        device->runtime = stream->runtime;
        device->index = stream->device;
        TAILQ_INIT(&device->pending);
        SLIST_INSERT_HEAD(&devices, device, neighbours);
    }
    if (device == NULL) {
        return NULL;
    }
    device->backend = backend;
    if (device->base == NULL || now() - device->base->time > LASTS_NS) {
        make_base_locked(device);
    }
    return device->base != NULL ? device : NULL;
}

/* ---- Operations ---- */

static void
free_locked(struct ps_stamps *stamps)
{
    give_event_locked(stamps->device, stamps->begin);
    give_event_locked(stamps->device, stamps->end);
    base_unref_locked(stamps->device, stamps->base);
    free(stamps);
}

/* The time of an event that is done; -1 if it is not known. */
static int64_t
time_locked(const struct ps_stamps *stamps, ps_handle event)
{
    const struct ps_backend *backend = stamps->device->backend;
    float milliseconds;
    ps_status status =
        backend->event_elapsed(backend, stamps->device->index,
                               stamps->base->event, event, &milliseconds);
    return status == PS_SUCCESS
               ? stamps->base->time + (int64_t)((double)milliseconds * 1e6)
               : -1;
}

/* Write the times of at most so many pending operations, of those that have
 * ended. */
static void
collect_locked(struct device *device, int most)
{
    const struct ps_backend *backend = device->backend;
    struct ps_stamps *stamps = TAILQ_FIRST(&device->pending), *next;
    for (; stamps != NULL && most != 0; stamps = next, most--) {
        next = TAILQ_NEXT(stamps, neighbours);
        ps_status status =
            backend->event_query(backend, device->index, stamps->end);
        if (status == PS_ERROR_NOT_READY) {
            continue;
        }
        int64_t begin = time_locked(stamps, stamps->begin);
        int64_t end = begin > 0 ? time_locked(stamps, stamps->end) : -1;
        __atomic_store_n(&stamps->times->begin, begin, __ATOMIC_RELEASE);
        __atomic_store_n(&stamps->times->end, end, __ATOMIC_RELEASE);
        TAILQ_REMOVE(&device->pending, stamps, neighbours);
        free_locked(stamps);
    }
}

static bool
is_capturing(const struct ps_backend *backend,
             const struct ps_actor_name *stream)
{
    int capturing = 0;
    return backend->stream_capturing != NULL &&
           (backend->stream_capturing(backend, stream->device, stream->stream,
                                      &capturing) != PS_SUCCESS ||
            capturing);
}

static struct ps_stamps *
begin_locked(const struct ps_backend *backend,
             const struct ps_actor_name *stream)
{
    struct device *device = device_locked(backend, stream);
    struct ps_stamps *stamps =
        device != NULL ? calloc(1, sizeof(*stamps)) : NULL;
    if (stamps == NULL) {
        return NULL;
    }
    collect_locked(device, LOOK);
    stamps->device = device;
    stamps->stream = stream->stream;
    stamps->base = device->base;
    stamps->base->refs++;
    if (take_event_locked(device, &stamps->begin) == PS_SUCCESS &&
        take_event_locked(device, &stamps->end) == PS_SUCCESS &&
        backend->event_record(backend, device->index, stamps->begin,
                              stream->stream) == PS_SUCCESS) {
        return stamps;
    }
    free_locked(stamps);
    return NULL;
}

struct ps_stamps *
ps_stamps_begin(const struct ps_backend *backend,
                const struct ps_actor_name *stream)
{
    if (is_capturing(backend, stream)) {
        return NULL;
    }
    pthread_mutex_lock(&mutex);
    enum ps_capture_mode mode = relax(backend, PS_CAPTURE_RELAXED);
    struct ps_stamps *stamps = begin_locked(backend, stream);
    relax(backend, mode);
    pthread_mutex_unlock(&mutex);
    return stamps;
}

bool
ps_stamps_end(struct ps_stamps *stamps, struct ps_times *times)
{
    if (stamps == NULL) {
        return false;
    }
    struct device *device = stamps->device;
    const struct ps_backend *backend = device->backend;
    struct ps_actor_name stream = {device->runtime, device->index,
                                   stamps->stream};
    /* A captured record would never be done. */
    bool captured = is_capturing(backend, &stream);
    pthread_mutex_lock(&mutex);
    enum ps_capture_mode mode = relax(backend, PS_CAPTURE_RELAXED);
    bool recorded =
        !captured && backend->event_record(backend, device->index, stamps->end,
                                           stamps->stream) == PS_SUCCESS;
    if (recorded) {
        times->begin = times->end = 0;
        stamps->times = times;
        TAILQ_INSERT_TAIL(&device->pending, stamps, neighbours);
    }
    else {
        free_locked(stamps);
    }
    relax(backend, mode);
    pthread_mutex_unlock(&mutex);
    return recorded;
}

void
ps_stamps_drop(struct ps_stamps *stamps)
{
    if (stamps != NULL) {
        pthread_mutex_lock(&mutex);
        free_locked(stamps);
        pthread_mutex_unlock(&mutex);
    }
}

void
ps_stamps_collect(void)
{
    struct device *device;
    pthread_mutex_lock(&mutex);
    SLIST_FOREACH(device, &devices, neighbours)
    {
        enum ps_capture_mode mode = relax(device->backend, PS_CAPTURE_RELAXED);
        collect_locked(device, -1);
        relax(device->backend, mode);
    }
    pthread_mutex_unlock(&mutex);
}

void
ps_stamps_reset(void)
{
    struct device *device;
    pthread_mutex_lock(&mutex);
    greatest_error = 0;
    SLIST_FOREACH(device, &devices, neighbours)
    {
        base_unref_locked(device, device->base);
        device->base = NULL;
    }
    pthread_mutex_unlock(&mutex);
}

int64_t
ps_stamps_error(void)
{
    pthread_mutex_lock(&mutex);
    int64_t error = greatest_error;
    pthread_mutex_unlock(&mutex);
    return error;
}

void
ps_stamps_forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    SLIST_INIT(&devices);
}
