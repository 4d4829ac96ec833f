/* One mutex guards the devices and their lists.  To avoid a deadlock, no
 * backend is called with the mutex held.  A call to the driver may block while
 * a stream's queue is full, and the stream's work may be waiting for a
 * callable that needs the mutex. */
#include "stamps.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <time.h>

#include "array.h"
#include "lock.h"

enum {
    TRIES = 5, /* the number of attempts to measure a base */
    /* The longest time that the first attempt may take.  Each further attempt
     * may take twice as long as the previous one, because other programs may
     * keep the device busy. */
    PATIENCE_NS = 2000000,
    LASTS_NS = 1000000000, /* the age above which a base is too old */
    RETRY_NS = 100000000,  /* the time after which a failed measurement of a
                            * base is repeated */
    LOOK = 4, /* the number of pending stamps to check when one is added */
    PATIENCE_MS = 20, /* the longest time to wait for other collectors */
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

TAILQ_HEAD(stamps_list, ps_stamps);

struct device {
    const struct ps_backend *_Atomic backend;
    int runtime, index;
    bool measuring;        /* whether a thread is making a new base */
    int64_t failed;        /* when the latest measurement failed, or 0 */
    atomic_int collectors; /* the number of threads that check stamps */
    struct base *base;
    struct stamps_list pending; /* in the order of queueing */
    ps_handle *idle;
    size_t idle_count;
    SLIST_ENTRY(device) neighbours;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static SLIST_HEAD(, device) devices = SLIST_HEAD_INITIALIZER(devices);
static _Atomic int64_t greatest_error;

int64_t
ps_stamps_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

void
ps_stamps_note_error(int64_t error)
{
    int64_t known = atomic_load(&greatest_error);
    while (error > known &&
           !atomic_compare_exchange_weak(&greatest_error, &known, error)) {
    }
}

int64_t
ps_stamps_error(void)
{
    return atomic_load(&greatest_error);
}

bool
ps_stamps_are_possible(const struct ps_backend *backend)
{
    return backend->event_elapsed != NULL;
}

/* Set the calling thread's capture mode, and return the previous one.  With
 * PS_CAPTURE_RELAXED, the thread's calls invalidate no capture. */
static enum ps_capture_mode
relax(const struct ps_backend *backend, enum ps_capture_mode mode)
{
    if (backend->capture_mode_exchange != NULL) {
        backend->capture_mode_exchange(backend, &mode);
    }
    return mode;
}

/* ---- Events ---- */

/* Returns an idle event of the device or, if there is none, a new timed
 * event.  Returns 0 if the event cannot be created. */
static ps_handle
take_event(struct device *device)
{
    const struct ps_backend *backend = device->backend;
    ps_handle event = 0;
    {
        PS_HOLD(&mutex);
        if (device->idle_count > 0) {
            event = device->idle[--device->idle_count];
        }
    }
    return event != 0 ||
                   backend->event_create(backend, device->index,
                                         PS_EVENT_TIMING, &event) == PS_SUCCESS
               ? event
               : 0;
}

static void
destroy_event(const struct device *device, ps_handle event)
{
    const struct ps_backend *backend = device->backend;
    if (event != 0) {
        backend->event_destroy(backend, device->index, event);
    }
}

static void
give_event(struct device *device, ps_handle event)
{
    pthread_mutex_lock(&mutex);
    if (event != 0 && PS_ARRAY_GROW(device->idle, device->idle_count)) {
        device->idle[device->idle_count++] = event;
        event = 0;
    }
    pthread_mutex_unlock(&mutex);
    destroy_event(device, event);
}

/* ---- Bases ---- */

static void
base_unref(struct device *device, struct base *base)
{
    if (base == NULL) {
        return;
    }
    pthread_mutex_lock(&mutex);
    bool last = --base->refs == 0;
    pthread_mutex_unlock(&mutex);
    if (last) {
        give_event(device, base->event);
        free(base);
    }
}

/* Replace the device's base with `base`, which may be NULL.  Takes over the
 * reference to `base`. */
static void
set_base(struct device *device, struct base *base)
{
    pthread_mutex_lock(&mutex);
    struct base *former = device->base;
    device->base = base;
    pthread_mutex_unlock(&mutex);
    base_unref(device, former);
}

/* Record the event on an idle stream.  Get the time of the record on the
 * host's clock, and the greatest possible error of that time.  Returns false
 * if this fails or takes too long. */
static bool
measure(struct device *device, ps_handle stream, ps_handle event,
        int64_t patience, int64_t *time, int64_t *error)
{
    const struct ps_backend *backend = device->backend;
    int64_t begin = ps_stamps_now(), end = begin;
    ps_status status =
        backend->event_record(backend, device->index, event, stream);
    if (status == PS_SUCCESS) {
        do {
            status = backend->event_query(backend, device->index, event);
            end = ps_stamps_now();
        } while (status == PS_ERROR_NOT_READY && end - begin < patience);
    }
    *error = (end - begin) / 2;
    *time = begin + *error;
    return status == PS_SUCCESS;
}

/* Measure the times of a few events on the stream, and return a new base for
 * the event whose time has the least error.  Returns NULL if no attempt
 * succeeded. */
static struct base *
measure_base(struct device *device, ps_handle stream)
{
    struct base *base = calloc(1, sizeof(*base));
    int64_t best = INT64_MAX, patience = PATIENCE_NS, time, error;
    ps_handle event;
    for (int i = 0;
         i < TRIES && base != NULL && (event = take_event(device)) != 0; i++) {
        if (measure(device, stream, event, patience, &time, &error) &&
            error < best) {
            give_event(device, base->event);
            *base = (struct base){1, event, time};
            best = error;
        }
        else {
            give_event(device, event);
        }
        patience *= 2;
    }
    if (base == NULL || base->event == 0) {
        free(base);
        return NULL;
    }
    ps_stamps_note_error(best);
    return base;
}

/* Replace the device's base with a new one.  Returns false if none could be
 * measured. */
static bool
make_base(struct device *device)
{
    const struct ps_backend *backend = device->backend;
    ps_handle stream;
    if (backend->stream_create(backend, device->index, 0, &stream) !=
        PS_SUCCESS) {
        return false;
    }
    struct base *made = measure_base(device, stream);
    backend->stream_destroy(backend, device->index, stream);
    if (made != NULL) {
        set_base(device, made);
    }
    return made != NULL;
}

static struct device *
find_device(const struct ps_backend *backend,
            const struct ps_actor_name *stream)
{
    struct device *device;
    PS_HOLD(&mutex);
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
    if (device != NULL) {
        device->backend = backend;
    }
    return device;
}

/* Returns a new reference to the device's base, or NULL if none could be
 * measured.  If the base is too old, one thread measures a new base, and the
 * other threads use the old one meanwhile.  After a failure, the measurement
 * is not repeated for RETRY_NS, because it may take long to fail again. */
static struct base *
take_base(struct device *device)
{
    int64_t now = ps_stamps_now();
    pthread_mutex_lock(&mutex);
    bool missing = device->base == NULL;
    bool old = !missing && now - device->base->time > LASTS_NS;
    bool mine = (missing || (old && !device->measuring)) &&
                (device->failed == 0 || now - device->failed > RETRY_NS);
    device->measuring = device->measuring || mine;
    pthread_mutex_unlock(&mutex);
    int64_t failed = mine && !make_base(device) ? ps_stamps_now() : 0;
    PS_HOLD(&mutex);
    if (mine) {
        device->measuring = false;
        device->failed = failed;
    }
    if (device->base != NULL) {
        device->base->refs++;
    }
    return device->base;
}

/* ---- Operations ---- */

void
ps_stamps_drop(struct ps_stamps *stamps)
{
    if (stamps != NULL) {
        give_event(stamps->device, stamps->begin);
        give_event(stamps->device, stamps->end);
        base_unref(stamps->device, stamps->base);
        free(stamps);
    }
}

/* Returns the time of a completed event on the host's clock, or -1 if the time
 * cannot be computed. */
static int64_t
time_of(const struct ps_stamps *stamps, ps_handle event)
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

/* Check whether an operation has ended.  If it has, store its times and return
 * true. */
static bool
is_over(const struct ps_stamps *stamps)
{
    const struct ps_backend *backend = stamps->device->backend;
    if (backend->event_query(backend, stamps->device->index, stamps->end) ==
        PS_ERROR_NOT_READY) {
        return false;
    }
    int64_t begin = time_of(stamps, stamps->begin);
    int64_t end = begin > 0 ? time_of(stamps, stamps->end) : -1;
    __atomic_store_n(&stamps->times->begin, begin, __ATOMIC_RELEASE);
    __atomic_store_n(&stamps->times->end, end, __ATOMIC_RELEASE);
    return true;
}

/* Check the oldest pending operations, and store the times of those that have
 * ended.  Checks at most `most` operations, or all of them if `most` is
 * negative. */
static void
collect(struct device *device, int most)
{
    struct stamps_list looked_at = TAILQ_HEAD_INITIALIZER(looked_at);
    struct ps_stamps *stamps, *next;
    atomic_fetch_add(&device->collectors, 1);
    pthread_mutex_lock(&mutex);
    while (most-- != 0 && (stamps = TAILQ_FIRST(&device->pending)) != NULL) {
        TAILQ_REMOVE(&device->pending, stamps, neighbours);
        TAILQ_INSERT_TAIL(&looked_at, stamps, neighbours);
    }
    pthread_mutex_unlock(&mutex);
    for (stamps = TAILQ_FIRST(&looked_at); stamps != NULL; stamps = next) {
        next = TAILQ_NEXT(stamps, neighbours);
        if (is_over(stamps)) {
            TAILQ_REMOVE(&looked_at, stamps, neighbours);
            ps_stamps_drop(stamps);
        }
    }
    pthread_mutex_lock(&mutex);
    TAILQ_CONCAT(&looked_at, &device->pending, neighbours);
    TAILQ_CONCAT(&device->pending, &looked_at, neighbours);
    pthread_mutex_unlock(&mutex);
    atomic_fetch_sub(&device->collectors, 1);
}

bool
ps_is_capturing(const struct ps_backend *backend,
                const struct ps_actor_name *stream)
{
    int capturing = 0;
    ps_handle handle;
    return !ps_actor_handle(backend, stream->device, stream->stream,
                            &handle) ||
           (backend->stream_capturing != NULL &&
            (backend->stream_capturing(backend, stream->device, handle,
                                       &capturing) != PS_SUCCESS ||
             capturing));
}

/* Record a new event on the stream.  Returns 0 if that failed. */
static ps_handle
record_event(struct device *device, ps_handle stream)
{
    const struct ps_backend *backend = device->backend;
    ps_handle event = take_event(device), handle;
    ps_actor_handle(backend, device->index, stream, &handle);
    if (event != 0 && backend->event_record(backend, device->index, event,
                                            handle) != PS_SUCCESS) {
        give_event(device, event);
        event = 0;
    }
    return event;
}

static struct ps_stamps *
begin(const struct ps_backend *backend, const struct ps_actor_name *stream)
{
    struct device *device = find_device(backend, stream);
    struct ps_stamps *stamps =
        device != NULL ? calloc(1, sizeof(*stamps)) : NULL;
    if (stamps == NULL) {
        return NULL;
    }
    collect(device, LOOK);
    *stamps = (struct ps_stamps){
        .device = device,
        .stream = stream->stream,
        .base = take_base(device),
    };
    if (stamps->base != NULL) {
        stamps->begin = record_event(device, stream->stream);
    }
    if (stamps->begin == 0) {
        ps_stamps_drop(stamps);
        return NULL;
    }
    return stamps;
}

struct ps_stamps *
ps_stamps_begin(const struct ps_backend *backend,
                const struct ps_actor_name *stream)
{
    if (ps_is_capturing(backend, stream)) {
        return NULL;
    }
    enum ps_capture_mode mode = relax(backend, PS_CAPTURE_RELAXED);
    struct ps_stamps *stamps = begin(backend, stream);
    relax(backend, mode);
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
    /* Do not record the event during a capture, because a captured record
     * never completes. */
    bool captured = ps_is_capturing(backend, &stream);
    enum ps_capture_mode mode = relax(backend, PS_CAPTURE_RELAXED);
    stamps->end = captured ? 0 : record_event(device, stamps->stream);
    bool recorded = stamps->end != 0;
    if (recorded) {
        /* These stores are atomic because another thread may be reading the
         * times, if they are in a slice that was published. */
        __atomic_store_n(&times->begin, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&times->end, 0, __ATOMIC_RELAXED);
        stamps->times = times;
        pthread_mutex_lock(&mutex);
        TAILQ_INSERT_TAIL(&device->pending, stamps, neighbours);
        pthread_mutex_unlock(&mutex);
    }
    else {
        ps_stamps_drop(stamps);
    }
    relax(backend, mode);
    return recorded;
}

/* Returns the first device in the list.  Devices are added at the head of the
 * list and are never removed, except that a forked child empties the list.  So
 * the list that begins with this device can be read without the mutex. */
static struct device *
first_device(void)
{
    PS_HOLD(&mutex);
    return SLIST_FIRST(&devices);
}

/* Wait for the other threads that are checking stamps, because they may be
 * about to store times.  The wait is limited, because such a thread may block
 * in the driver for a long time. */
static void
wait_for_collectors(struct device *device)
{
    for (int i = 0; i < PATIENCE_MS && atomic_load(&device->collectors) > 0;
         i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

void
ps_stamps_collect(void)
{
    struct device *device = first_device();
    for (; device != NULL; device = SLIST_NEXT(device, neighbours)) {
        const struct ps_backend *backend = device->backend;
        enum ps_capture_mode mode = relax(backend, PS_CAPTURE_RELAXED);
        collect(device, -1);
        wait_for_collectors(device);
        relax(backend, mode);
    }
}

void
ps_stamps_reset(void)
{
    struct device *device = first_device();
    atomic_store(&greatest_error, 0);
    for (; device != NULL; device = SLIST_NEXT(device, neighbours)) {
        set_base(device, NULL);
        pthread_mutex_lock(&mutex);
        device->failed = 0;
        pthread_mutex_unlock(&mutex);
    }
}

void
ps_stamps_release(void)
{
    struct device *device = first_device();
    ps_stamps_collect();
    for (; device != NULL; device = SLIST_NEXT(device, neighbours)) {
        set_base(device, NULL);
        pthread_mutex_lock(&mutex);
        ps_handle *idle = device->idle;
        size_t count = device->idle_count;
        device->idle = NULL;
        device->idle_count = 0;
        pthread_mutex_unlock(&mutex);
        while (count > 0) {
            destroy_event(device, idle[--count]);
        }
        free(idle);
    }
}

void
ps_stamps_forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    SLIST_INIT(&devices);
}
