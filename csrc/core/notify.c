/* Notifications.  An event tells nobody that it is done, so a watch does: a
 * native stream that waits for the event and is then notified.  Events that
 * one stream recorded are done in order, so they share a watch, and a program
 * needs as many as it has streams with events that somebody waits for. */
#include "notify.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "capture.h"
#include "event.h"
#include "runtime.h"
#include "stream.h"

enum {
    /* How many watches of a device nobody uses are kept. */
    IDLE_WATCHES = 4,
    /* Notifications that one watch has to come: far from filling a queue. */
    MOST_PENDING = 8192,
};

struct ps_watch {
    ps_handle stream;
    /* The stream whose events are watched. */
    ps_handle source;
    /* Notifications to come; the device's watch_mutex guards the rest. */
    atomic_uint pending;
    struct ps_watch *next;
};

/* What a watch is notified with. */
struct news {
    struct ps_watch *watch;
    ps_notification notify;
    void *argument;
};

ps_status
ps_stream_notify(struct ps_stream *stream, ps_notification notify,
                 void *argument)
{
    const struct ps_backend *backend = stream->device->runtime->backend;
    if (stream->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (backend->stream_gate == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    return backend->stream_gate(backend, stream->device->index, stream->handle,
                                notify, argument, NULL);
}

static void
arrive(void *memory, ps_status status)
{
    struct news news = *(struct news *)memory;
    free(memory);
    news.notify(news.argument, status);
    /* From here on another thread may give the watch up. */
    atomic_fetch_sub(&news.watch->pending, 1);
}

/* Of the watches that nobody uses keep a few, and none that failed: its
 * failure is its source's to tell, so it is not left for the device to. */
static ps_status
trim_locked(struct ps_device *device)
{
    const struct ps_backend *backend = device->runtime->backend;
    ps_status status = PS_SUCCESS;
    int idle = 0;
    struct ps_watch **link = &device->watches;
    while (*link != NULL && status == PS_SUCCESS) {
        struct ps_watch *watch = *link;
        ps_status health =
            atomic_load(&watch->pending) == 0
                ? backend->stream_query(backend, device->index, watch->stream)
                : PS_ERROR_NOT_READY;
        if (health == PS_ERROR_NOT_READY ||
            (health == PS_SUCCESS && ++idle <= IDLE_WATCHES)) {
            link = &watch->next;
            continue;
        }
        *link = watch->next;
        backend->stream_synchronize(backend, device->index, watch->stream);
        status =
            backend->stream_destroy(backend, device->index, watch->stream);
        free(watch);
    }
    return status;
}

ps_status
ps_device_forget_watches(struct ps_device *device)
{
    enum ps_capture_mode mode = ps_capture_relax(device->runtime);
    pthread_mutex_lock(&device->watch_mutex);
    ps_status status = trim_locked(device);
    pthread_mutex_unlock(&device->watch_mutex);
    ps_capture_restore(device->runtime, mode);
    return status;
}

static ps_status
add_watch_locked(struct ps_device *device, struct ps_watch **result)
{
    const struct ps_backend *backend = device->runtime->backend;
    struct ps_watch *watch = calloc(1, sizeof(*watch));
    if (watch == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    ps_status status =
        backend->stream_create(backend, device->index, 0, &watch->stream);
    if (status != PS_SUCCESS) {
        free(watch);
        return status;
    }
    watch->next = device->watches;
    device->watches = watch;
    *result = watch;
    return PS_SUCCESS;
}

/* The watch for events that the source recorded.  The records that processes
 * make of an event they share are in no order. */
static ps_status
find_watch_locked(struct ps_device *device, ps_handle source, bool shared,
                  struct ps_watch **result)
{
    const struct ps_backend *backend = device->runtime->backend;
    struct ps_watch *found = NULL;
    for (struct ps_watch *w = device->watches; w != NULL; w = w->next) {
        unsigned pending = atomic_load(&w->pending);
        if (pending == 0) {
            /* One that failed since it was last looked at is of no use. */
            found = backend->stream_query(backend, device->index, w->stream) ==
                            PS_SUCCESS
                        ? w
                        : found;
        }
        else if (!shared && w->source == source && pending < MOST_PENDING) {
            found = w;
            break;
        }
    }
    ps_status status =
        found != NULL ? PS_SUCCESS : add_watch_locked(device, &found);
    if (status == PS_SUCCESS) {
        found->source = source;
        *result = found;
    }
    return status;
}

static ps_status
watch_locked(struct ps_event *event, struct ps_device *device,
             struct news *news)
{
    const struct ps_backend *backend = device->runtime->backend;
    ps_status status = trim_locked(device);
    if (status == PS_SUCCESS) {
        status = find_watch_locked(device, atomic_load(&event->source),
                                   ps_event_is_shared(event), &news->watch);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    ps_handle stream = news->watch->stream;
    status = backend->stream_wait_event(backend, device->index, stream,
                                        atomic_load(&event->handle));
    if (status == PS_SUCCESS) {
        atomic_fetch_add(&news->watch->pending, 1);
        status = backend->stream_gate(backend, device->index, stream, arrive,
                                      news, NULL);
        if (status != PS_SUCCESS) {
            atomic_fetch_sub(&news->watch->pending, 1);
        }
    }
    return status;
}

ps_status
ps_event_notify(struct ps_event *event, ps_notification notify, void *argument)
{
    if (event->generation != ps_generation()) {
        return PS_ERROR_FOREIGN;
    }
    if (ps_event_known_done(event)) {
        notify(argument, PS_SUCCESS);
        return PS_SUCCESS;
    }
    if (event->runtime->backend->stream_gate == NULL) {
        return PS_ERROR_NOT_SUPPORTED;
    }
    struct ps_device *device = atomic_load(&event->device);
    struct news *news = malloc(sizeof(*news));
    if (news == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *news = (struct news){NULL, notify, argument};
    enum ps_capture_mode mode = ps_capture_relax(device->runtime);
    pthread_mutex_lock(&device->watch_mutex);
    ps_status status = watch_locked(event, device, news);
    pthread_mutex_unlock(&device->watch_mutex);
    ps_capture_restore(device->runtime, mode);
    if (status != PS_SUCCESS) {
        free(news);
    }
    return status;
}

struct errand {
    struct ps_device *device;
    ps_notification notify;
    void *argument;
};

static void *
run_errand(void *memory)
{
    struct errand errand = *(struct errand *)memory;
    const struct ps_backend *backend = errand.device->runtime->backend;
    free(memory);
    errand.notify(errand.argument,
                  backend->device_synchronize(backend, errand.device->index));
    return NULL;
}

ps_status
ps_device_notify(struct ps_device *device, ps_notification notify,
                 void *argument)
{
    struct errand *errand = malloc(sizeof(*errand));
    sigset_t all, before;
    pthread_t thread;
    if (errand == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    *errand = (struct errand){device, notify, argument};
    /* No signal of the program's is for this thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run_errand, errand);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        free(errand);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    pthread_detach(thread);
    return PS_SUCCESS;
}
