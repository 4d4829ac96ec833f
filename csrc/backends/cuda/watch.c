/* What CUDA streams and events have done; watch.h says why it is asked.
 */
#include "watch.h"

#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "poll.h"

_Static_assert(offsetof(struct cuda_mark, notifications) == 0,
               "a ring tells its mark");

/* ---- Lines ---- */

enum line_kind {
    OF_STREAM, /* its handle is a stream's */
    OF_EVENT,  /* a program's, which its only mark has */
    ALONE,     /* no handle leads to it */
    ORPHAN,    /* nor does one here, but the mark's event was a program's */
};

/* The marks that are asked for in turn. */
struct cuda_line {
    enum line_kind kind;
    int device;
    ps_handle handle;
    struct bucket *bucket;
    struct cuda_mark *first, *last;
    bool entered; /* by a thread that puts marks into it */
    struct cuda_line *next;
};

enum { BUCKETS = 64 };

/* Lines by their handles.  The lock is held while the device is asked. */
struct bucket {
    pthread_mutex_t lock;
    pthread_cond_t left; /* a line is not entered any more */
    struct cuda_line *lines;
};

#define BUCKET                                                    \
    {                                                             \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL \
    }
#define BUCKETS_4  BUCKET, BUCKET, BUCKET, BUCKET
#define BUCKETS_16 BUCKETS_4, BUCKETS_4, BUCKETS_4, BUCKETS_4

/* A thread and what it asks for. */
struct watch {
    struct cuda_poller poller;
    struct bucket buckets[BUCKETS];
};

static bool watch_sweep(struct cuda_poller *poller);

#define WATCH(thread)                                                \
    {                                                                \
        .poller = {.name = thread,                                   \
                   .sweep = watch_sweep,                             \
                   .lock = PTHREAD_MUTEX_INITIALIZER},               \
        .buckets = {BUCKETS_16, BUCKETS_16, BUCKETS_16, BUCKETS_16}, \
    }

/* Apart, since asking for an event may take until a copy is over, when another
 * thread is waiting for the driver's lock, and the copy may be waiting for
 * somebody to see a word. */
static struct watch events = WATCH("ps-cuda-events");
static struct watch words = WATCH("ps-cuda-words");

atomic_int cuda_events_watched;

static struct bucket *
bucket_of(struct watch *watch, ps_handle handle)
{
    /* Handles are addresses, so the lowest bits say little. */
    return &watch->buckets[((handle >> 6) + (handle >> 12)) % BUCKETS];
}

static struct cuda_line *
line_find_locked(struct bucket *bucket, enum line_kind kind, int device,
                 ps_handle handle)
{
    struct cuda_line *line = bucket->lines;

    while (line != NULL && (line->kind != kind || line->device != device ||
                            line->handle != handle)) {
        line = line->next;
    }
    return line;
}

/* NULL when out of memory. */
static struct cuda_line *
line_add_locked(struct bucket *bucket, enum line_kind kind, int device,
                ps_handle handle)
{
    struct cuda_line *line = calloc(1, sizeof(*line));

    if (line != NULL) {
        line->kind = kind;
        line->device = device;
        line->handle = handle;
        line->bucket = bucket;
        line->next = bucket->lines;
        bucket->lines = line;
    }
    return line;
}

static void
line_rename_locked(struct cuda_line *line, enum line_kind kind)
{
    if (line->kind == OF_EVENT) {
        atomic_fetch_sub(&cuda_events_watched, 1);
    }
    line->kind = kind;
}

static void
line_put_locked(struct cuda_line *line, struct cuda_mark *mark)
{
    mark->line = line;
    mark->next = NULL;
    mark->previous = line->last;
    if (line->last != NULL) {
        line->last->next = mark;
    }
    else {
        line->first = mark;
    }
    line->last = mark;
}

/* Free the line unless it is of use. */
static void
line_trim_locked(struct cuda_line *line)
{
    struct cuda_line **link = &line->bucket->lines;

    if (line->first != NULL || line->entered) {
        return;
    }
    while (*link != line) {
        link = &(*link)->next;
    }
    *link = line->next;
    line_rename_locked(line, ALONE);
    free(line);
}

/* Take the mark out of its line, which may be gone then. */
static void
mark_remove_locked(struct cuda_mark *mark)
{
    struct cuda_line *line = mark->line;

    *(mark->previous != NULL ? &mark->previous->next : &line->first) =
        mark->next;
    *(mark->next != NULL ? &mark->next->previous : &line->last) =
        mark->previous;
    mark->line = NULL;
}

/* ---- The ends of marks ---- */

/* Release a mark that is in no line any more. */
static void
mark_end(struct cuda_mark *mark)
{
    if (mark->kind == ORPHAN) {
        (void)ON_DEVICE(mark->device,
                        cudaEventDestroy((cudaEvent_t)mark->event));
    }
    if (mark->kind == ORPHAN || mark->kind == OF_EVENT) {
        mark->event = NULL;
    }
    cuda_mark_release(mark);
}

/* Move what is done to the list that ends at the tail, where nobody can cancel
 * it. */
static void
line_collect_locked(struct cuda_line *line, struct cuda_mark ***tail)
{
    struct cuda_mark *mark;

    while ((mark = line->first) != NULL &&
           (mark->status = cuda_mark_ask(mark)) != PS_ERROR_NOT_READY) {
        struct ps_notification *last = mark->notifications, *n = last;
        mark_remove_locked(mark);
        mark->kind = line->kind;
        do {
            n = n->next;
            n->ring = NULL;
        } while (n != last);
        **tail = mark;
        *tail = &mark->next;
    }
}

/* Call them all.  The memory of each is its owner's again when it is called.
 */
static void
call_notifications(struct cuda_mark *mark)
{
    struct ps_notification *last = mark->notifications, *n, *next;

    mark->notifications = NULL;
    for (n = last->next;; n = next) {
        bool more = n != last;
        next = n->next;
        n->reached(n->argument, mark->status);
        if (!more) {
            return;
        }
    }
}

static bool
watch_sweep(struct cuda_poller *poller)
{
    struct watch *watch = (struct watch *)poller;
    struct cuda_mark *found = NULL, **tail = &found, *mark;
    bool more = false;

    for (struct bucket *b = watch->buckets; b < &watch->buckets[BUCKETS];
         b++) {
        struct cuda_line *next;
        pthread_mutex_lock(&b->lock);
        for (struct cuda_line *line = b->lines; line != NULL; line = next) {
            next = line->next;
            line_collect_locked(line, &tail);
            more = more || line->first != NULL;
            line_trim_locked(line);
        }
        pthread_mutex_unlock(&b->lock);
    }
    *tail = NULL;
    while ((mark = found) != NULL && !cuda_poller_stopping(poller)) {
        found = mark->next;
        call_notifications(mark);
        mark_end(mark);
    }
    return more;
}

ps_status
cuda_notify_cancel(const struct ps_backend *backend, int device,
                   struct ps_notification *notification)
{
    struct bucket *bucket = (struct bucket *)(uintptr_t)notification->number;
    struct cuda_mark *mark = NULL;
    ps_status status = PS_ERROR_NOT_READY;

    (void)backend;
    (void)device;
    if (bucket == NULL) {
        return status;
    }
    pthread_mutex_lock(&bucket->lock);
    if (notification->ring != NULL) {
        mark = (struct cuda_mark *)notification->ring;
        ps_notification_remove(notification);
        status = PS_SUCCESS;
    }
    if (mark != NULL && mark->notifications == NULL) {
        struct cuda_line *line = mark->line;
        mark->kind = line->kind;
        mark_remove_locked(mark);
        line_trim_locked(line);
    }
    else {
        mark = NULL;
    }
    pthread_mutex_unlock(&bucket->lock);
    if (mark != NULL) {
        mark_end(mark);
    }
    return status;
}

/* ---- Streams ---- */

/* The line of the stream, once nobody else is in it; NULL when out of memory.
 * The per-thread default stream is another one on each thread. */
static struct cuda_line *
line_enter(struct watch *watch, int device, ps_handle stream)
{
    struct bucket *bucket = bucket_of(watch, stream);
    struct cuda_line *line = NULL;
    bool per_thread = stream == (ps_handle)CU_STREAM_PER_THREAD;

    pthread_mutex_lock(&bucket->lock);
    while (!per_thread &&
           (line = line_find_locked(bucket, OF_STREAM, device, stream)) !=
               NULL &&
           line->entered) {
        pthread_cond_wait(&bucket->left, &bucket->lock);
    }
    if (line == NULL) {
        line = line_add_locked(bucket, per_thread ? ALONE : OF_STREAM, device,
                               stream);
    }
    if (line != NULL) {
        line->entered = true;
    }
    pthread_mutex_unlock(&bucket->lock);
    return line;
}

static void
line_leave(struct cuda_line *line)
{
    struct bucket *bucket = line->bucket;

    pthread_mutex_lock(&bucket->lock);
    line->entered = false;
    line_trim_locked(line);
    pthread_cond_broadcast(&bucket->left);
    pthread_mutex_unlock(&bucket->lock);
}

ps_status
cuda_stream_enter(struct cuda_entry *entry, int device, ps_handle stream)
{
    ps_status status = cuda_poller_ensure(&events.poller);

    if (status == PS_SUCCESS) {
        status = cuda_poller_ensure(&words.poller);
    }
    if (status != PS_SUCCESS) {
        return status;
    }
    entry->events = line_enter(&events, device, stream);
    if (entry->events == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    entry->words = line_enter(&words, device, stream);
    if (entry->words == NULL) {
        line_leave(entry->events);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    return PS_SUCCESS;
}

void
cuda_stream_leave(struct cuda_entry *entry)
{
    line_leave(entry->words);
    line_leave(entry->events);
}

static void
notification_put_locked(struct cuda_mark *mark,
                        struct ps_notification *notification)
{
    /* For its cancelling, which must find the lock without it. */
    notification->number = (uintptr_t)mark->line->bucket;
    ps_notification_append(&mark->notifications, notification);
}

void
cuda_mark_put(struct cuda_entry *entry, struct cuda_mark *mark,
              struct ps_notification *notification)
{
    struct watch *watch = mark->word != NULL ? &words : &events;
    struct cuda_line *line = mark->word != NULL ? entry->words : entry->events;

    pthread_mutex_lock(&line->bucket->lock);
    line_put_locked(line, mark);
    notification_put_locked(mark, notification);
    pthread_mutex_unlock(&line->bucket->lock);
    cuda_poller_give(&watch->poller);
}

/* ---- Events ---- */

/* Put a mark with the notification into a new line; false when out of memory.
 */
static bool
mark_watch_locked(struct bucket *bucket, enum line_kind kind, ps_handle handle,
                  struct cuda_mark *mark, struct ps_notification *notification)
{
    struct cuda_line *line =
        line_add_locked(bucket, kind, mark->device, handle);

    if (line != NULL) {
        line_put_locked(line, mark);
        notification_put_locked(mark, notification);
    }
    return line != NULL;
}

ps_status
cuda_mark_watch(struct cuda_mark *mark, struct ps_notification *notification)
{
    struct bucket *bucket = bucket_of(&events, (ps_handle)mark->event);
    ps_status status = cuda_poller_ensure(&events.poller);

    if (status != PS_SUCCESS) {
        return status;
    }
    pthread_mutex_lock(&bucket->lock);
    if (!mark_watch_locked(bucket, ALONE, 0, mark, notification)) {
        status = PS_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&bucket->lock);
    cuda_poller_give(&events.poller);
    return status;
}

/* Statuses: PS_ERROR_OUT_OF_MEMORY. */
static ps_status
event_watch_locked(struct bucket *bucket, int device, ps_handle event,
                   struct ps_notification *notification)
{
    struct cuda_line *line = line_find_locked(bucket, OF_EVENT, device, event);
    struct cuda_mark *mark;

    if (line != NULL) {
        notification_put_locked(line->first, notification);
        return PS_SUCCESS;
    }
    mark = calloc(1, sizeof(*mark));
    if (mark == NULL) {
        return PS_ERROR_OUT_OF_MEMORY;
    }
    mark->event = (CUevent)event;
    mark->device = device;
    if (!mark_watch_locked(bucket, OF_EVENT, event, mark, notification)) {
        free(mark);
        return PS_ERROR_OUT_OF_MEMORY;
    }
    atomic_fetch_add(&cuda_events_watched, 1);
    return PS_SUCCESS;
}

ps_status
cuda_event_watch(int device, ps_handle event,
                 struct ps_notification *notification)
{
    struct bucket *bucket = bucket_of(&events, event);
    ps_status status = cuda_poller_ensure(&events.poller);

    if (status != PS_SUCCESS) {
        return status;
    }
    pthread_mutex_lock(&bucket->lock);
    status = event_watch_locked(bucket, device, event, notification);
    pthread_mutex_unlock(&bucket->lock);
    cuda_poller_give(&events.poller);
    return status;
}

/* An event's handle says its device. */
static struct cuda_line *
event_find_locked(struct bucket *bucket, ps_handle event)
{
    struct cuda_line *line = bucket->lines;

    while (line != NULL && (line->kind != OF_EVENT || line->handle != event)) {
        line = line->next;
    }
    return line;
}

bool
cuda_event_is_watched(ps_handle event)
{
    struct bucket *bucket = bucket_of(&events, event);
    bool found;

    pthread_mutex_lock(&bucket->lock);
    found = event_find_locked(bucket, event) != NULL;
    pthread_mutex_unlock(&bucket->lock);
    return found;
}

/* Put the mark in the place of the line's only one, which is freed. */
static void
line_replace_locked(struct cuda_line *line, struct cuda_mark *mark)
{
    struct cuda_mark *former = line->first;

    while (former->notifications != NULL) {
        struct ps_notification *first = former->notifications->next;
        ps_notification_remove(first);
        ps_notification_append(&mark->notifications, first);
    }
    mark_remove_locked(former);
    free(former);
    line_put_locked(line, mark);
    line_rename_locked(line, ALONE);
}

ps_status
cuda_event_replace(ps_handle event, struct cuda_mark *mark,
                   ps_status (*record)(struct cuda_mark *mark,
                                       ps_handle event))
{
    struct bucket *bucket = bucket_of(&events, event);
    ps_status status = PS_SUCCESS;

    pthread_mutex_lock(&bucket->lock);
    struct cuda_line *line = event_find_locked(bucket, event);
    if (line != NULL) {
        status = record(mark, event);
        if (status == PS_SUCCESS) {
            line_replace_locked(line, mark);
            mark = NULL;
        }
    }
    pthread_mutex_unlock(&bucket->lock);
    if (mark != NULL) {
        cuda_mark_release(mark);
    }
    return status;
}

bool
cuda_event_leave(ps_handle event)
{
    struct bucket *bucket = bucket_of(&events, event);
    struct cuda_line *line;

    pthread_mutex_lock(&bucket->lock);
    line = event_find_locked(bucket, event);
    if (line != NULL) {
        line_rename_locked(line, ORPHAN);
    }
    pthread_mutex_unlock(&bucket->lock);
    return line != NULL;
}

ps_status
cuda_shutdown(const struct ps_backend *backend, int64_t timeout_ns)
{
    int64_t deadline = cuda_now_ns() + timeout_ns;
    ps_status first = cuda_poller_stop(&words.poller, deadline);
    ps_status second = cuda_poller_stop(&events.poller, deadline);

    (void)backend;
    return first != PS_SUCCESS ? first : second;
}
