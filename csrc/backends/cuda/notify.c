/* Notifications of CUDA streams and events; notify.h says how. */
#include "notify.h"

#include <cuda_runtime_api.h>

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "side.h"
#include "watch.h"

/* ---- Events that others may record ---- */

struct shared {
    ps_handle event;
    struct shared *next;
};

enum { SHARED_BUCKETS = 64 };

static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared *shared_events[SHARED_BUCKETS];
static atomic_int shared_count;

/* What points to the event's entry, or to NULL. */
static struct shared **
shared_find_locked(ps_handle event)
{
    struct shared **link = &shared_events[(event >> 6) % SHARED_BUCKETS];

    while (*link != NULL && (*link)->event != event) {
        link = &(*link)->next;
    }
    return link;
}

ps_status
cuda_event_share(ps_handle event)
{
    struct shared *shared = malloc(sizeof(*shared)), **link;

    if (shared == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&shared_lock);
    link = shared_find_locked(event);
    if (*link == NULL) {
        *shared = (struct shared){.event = event};
        *link = shared;
        shared = NULL;
        atomic_fetch_add(&shared_count, 1);
    }
    pthread_mutex_unlock(&shared_lock);
    free(shared);
    return PS_SUCCESS;
}

static bool
is_shared(ps_handle event)
{
    bool found;

    if (atomic_load(&shared_count) == 0) {
        return false;
    }
    pthread_mutex_lock(&shared_lock);
    found = *shared_find_locked(event) != NULL;
    pthread_mutex_unlock(&shared_lock);
    return found;
}

static void
forget_shared(ps_handle event)
{
    struct shared **link, *shared;

    if (atomic_load(&shared_count) == 0) {
        return;
    }
    pthread_mutex_lock(&shared_lock);
    link = shared_find_locked(event);
    shared = *link;
    if (shared != NULL) {
        *link = shared->next;
        atomic_fetch_sub(&shared_count, 1);
    }
    pthread_mutex_unlock(&shared_lock);
    free(shared);
}

/* ---- Marks of events' records ---- */

/* Let the mark stand for the event's record in effect. */
static ps_status
relay(struct cuda_mark *mark, ps_handle event)
{
    CUstream side = cuda_side_stream(mark->side);
    ps_status status = cuda_driver.stream_wait_event(side, (CUevent)event, 0);

    return status != PS_SUCCESS ? status
                                : cuda_driver.event_record(mark->event, side);
}

/* A mark with a side stream; statuses as cuda_side_find. */
static ps_status
relay_find(int device, ps_handle event, unsigned most,
           struct cuda_mark **result)
{
    struct cuda_mark *mark;
    ps_status status = cuda_mark_find(device, &mark);

    if (status != PS_SUCCESS) {
        return status;
    }
    status = cuda_side_find(device, event, most, &mark->side);
    if (status != PS_SUCCESS) {
        cuda_mark_release(mark);
        return status;
    }
    *result = mark;
    return PS_SUCCESS;
}

/* PS_ERROR_NOT_READY: the event has too many waits that were given up. */
static ps_status
relay_watch(int device, ps_handle event, struct ps_notification *notification)
{
    enum { MOST_WAITS = 16 };
    struct cuda_mark *mark;
    ps_status status = relay_find(device, event, MOST_WAITS, &mark);

    if (status == PS_SUCCESS) {
        status = relay(mark, event);
        if (status == PS_SUCCESS) {
            status = cuda_mark_watch(mark, notification);
        }
        if (status != PS_SUCCESS) {
            cuda_mark_release(mark);
        }
    }
    return status;
}

static ps_status
event_yield(int device, ps_handle event)
{
    struct cuda_mark *mark;
    ps_status status = relay_find(device, event, UINT_MAX, &mark);

    return status != PS_SUCCESS ? status
                                : cuda_event_replace(event, mark, relay);
}

ps_status
cuda_event_yield(int device, ps_handle event)
{
    return cuda_event_is_watched(event)
               ? ON_DEVICE(device, event_yield(device, event))
               : PS_SUCCESS;
}

bool
cuda_event_forget(ps_handle event)
{
    forget_shared(event);
    return cuda_events_are_watched() && cuda_event_leave(event);
}

/* ---- Members ---- */

/* Whether the work is done, so that the caller is to call the notification;
 * else it is registered, or the status is a failure. */
static ps_status
event_ask(int device, ps_handle event, struct ps_notification *notification,
          bool *done)
{
    ps_status status = cuda_driver.event_query((CUevent)event);

    *done = status == PS_SUCCESS;
    if (status == PS_ERROR_NOT_READY && is_shared(event)) {
        status = relay_watch(device, event, notification);
    }
    /* Of a shared event that is asked for again and again, the latest record
     * stands for the one in effect now. */
    return status == PS_ERROR_NOT_READY
               ? cuda_event_watch(device, event, notification)
               : status;
}

static ps_status
stream_ask(int device, ps_handle stream, struct ps_notification *notification,
           bool *done)
{
    enum cudaStreamCaptureStatus capturing;
    struct cuda_entry entry;
    struct cuda_mark *mark;
    ps_status status = cudaStreamIsCapturing((cudaStream_t)stream, &capturing);

    if (status == PS_SUCCESS && capturing != cudaStreamCaptureStatusNone) {
        return PS_ERROR_CAPTURE_UNSUPPORTED;
    }
    if (status == PS_SUCCESS) {
        status = cuda_driver.stream_query((CUstream)stream);
    }
    *done = status == PS_SUCCESS;
    if (status != PS_ERROR_NOT_READY) {
        return status;
    }
    status = cuda_mark_find(device, &mark);
    if (status != PS_SUCCESS) {
        return status;
    }
    status = cuda_stream_enter(&entry, device, stream);
    if (status == PS_SUCCESS) {
        status = cuda_driver.event_record(mark->event, (CUstream)stream);
        if (status == PS_SUCCESS) {
            cuda_mark_put(&entry, mark, notification);
            mark = NULL;
        }
        cuda_stream_leave(&entry);
    }
    if (mark != NULL) {
        cuda_mark_release(mark);
    }
    return status;
}

static ps_status
notify(int device, ps_handle handle, struct ps_notification *notification,
       ps_status (*ask)(int device, ps_handle handle,
                        struct ps_notification *notification, bool *done))
{
    bool done = false;
    ps_status status =
        ON_DEVICE(device, ask(device, handle, notification, &done));

    if (status == PS_SUCCESS && done) {
        notification->number = 0; /* no bucket */
        notification->reached(notification->argument, PS_SUCCESS);
    }
    return status;
}

ps_status
cuda_stream_notify(const struct ps_backend *backend, int device,
                   ps_handle stream, struct ps_notification *notification)
{
    (void)backend;
    return notify(device, stream, notification, stream_ask);
}

ps_status
cuda_event_notify(const struct ps_backend *backend, int device,
                  ps_handle event, struct ps_notification *notification)
{
    (void)backend;
    return notify(device, event, notification, event_ask);
}
