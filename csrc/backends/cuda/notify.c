/* Notifications of CUDA streams and events.
 *
 * A notification is called when a completion occurs; see poll.h.  For a
 * stream, the completion's own event is recorded on the stream and polled.
 *
 * For an event of the program, the program's event itself is polled.  But once
 * the program has recorded its event again, a query no longer tells when the
 * earlier record is done.  So before the program's event is recorded again,
 * the completion is made to poll its own event instead.  To do so, a side
 * stream waits for the program's event, and the completion's own event is
 * recorded behind that wait.  If other processes or graphs may record the
 * program's event, the completion polls its own event from the beginning. */
#include <limits.h>
#include <pthread.h>
#include <search.h>
#include <stdbool.h>

#include "poll.h"
#include "side.h"
#include "table.h"

/* ---- Events that other processes or graphs may record ---- */

/* A search tree (tsearch) with the handles of such events. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static void *shared_events;

static int
compare(const void *left, const void *right)
{
    return (left > right) - (left < right);
}

ps_status
cuda_event_share(ps_handle event)
{
    pthread_mutex_lock(&shared_lock);
    bool added = tsearch((void *)event, &shared_events, compare) != NULL;
    pthread_mutex_unlock(&shared_lock);
    return added ? PS_SUCCESS : PS_ERROR_OUT_OF_MEMORY;
}

static bool
is_shared(ps_handle event)
{
    pthread_mutex_lock(&shared_lock);
    bool found = tfind((void *)event, &shared_events, compare) != NULL;
    pthread_mutex_unlock(&shared_lock);
    return found;
}

bool
cuda_event_forget(int device, ps_handle event)
{
    pthread_mutex_lock(&shared_lock);
    tdelete((void *)event, &shared_events, compare);
    pthread_mutex_unlock(&shared_lock);
    cuda_side_forget(device, event);
    return cuda_events_are_polled() && cuda_poll_adopt(device, event);
}

/* ---- Replaced events ---- */

/* Make a side stream wait for `event`, and record the completion's own event
 * behind that wait.  Statuses: those of cuda_side_find. */
static ps_status
relay(struct cuda_completion *completion, ps_handle event, unsigned most)
{
    struct cuda_side *side;
    ps_status status = cuda_side_find(completion->device, event, most, &side);

    if (status != PS_SUCCESS) {
        return status;
    }
    status = cuda_driver.stream_wait_event(cuda_side_stream(side),
                                           (CUevent)event, 0);
    if (status == PS_SUCCESS) {
        status = cuda_completion_record(completion,
                                        (ps_handle)cuda_side_stream(side));
    }
    if (status == PS_SUCCESS) {
        completion->side = side;
    }
    else {
        cuda_side_release(side);
    }
    return status;
}

ps_status
cuda_event_yield(int device, ps_handle event)
{
    struct cuda_completion *completion = cuda_poll_enter_event(device, event);
    ps_status status = PS_SUCCESS;

    if (completion != NULL) {
        status = ON_DEVICE(device, relay(completion, event, UINT_MAX));
        cuda_poll_leave(completion, NULL);
    }
    return status;
}

/* ---- Members ---- */

static ps_status
relay_notify(int device, ps_handle event, struct ps_notification *notification)
{
    /* The most waits for cancelled notifications on one side stream. */
    enum { MOST_WAITS = 16 };
    struct cuda_completion *completion;
    ps_status status =
        cuda_poll_enter(device, CUDA_NO_STREAM, NULL, &completion);

    if (status == PS_SUCCESS) {
        status = relay(completion, event, MOST_WAITS);
        cuda_poll_leave(completion,
                        status == PS_SUCCESS ? notification : NULL);
    }
    return status;
}

/* Register the notification.  If the work is done already, *done becomes true,
 * and the caller must call the notification itself. */
static ps_status
event_notify(int device, ps_handle event, struct ps_notification *notification,
             bool *done)
{
    ps_status status = cuda_driver.event_query((CUevent)event);

    *done = status == PS_SUCCESS;
    if (status == PS_ERROR_NOT_READY && is_shared(event)) {
        status = relay_notify(device, event, notification);
    }
    /* Poll the event itself if no other process or graph may record it.  Also
     * do so if relay_notify has returned PS_ERROR_NOT_READY, which means that
     * the side stream for this event has too many pending waits whose
     * notifications were cancelled.  In that case, the notification may come
     * too late if the event is recorded again, and too early if it was
     * recorded again shortly before. */
    return status == PS_ERROR_NOT_READY
               ? cuda_poll_event(device, event, notification)
               : status;
}

static ps_status
stream_notify(int device, ps_handle stream,
              struct ps_notification *notification, bool *done)
{
    struct cuda_completion *completion;
    ps_status status = cuda_stream_state(stream);

    *done = status == PS_SUCCESS;
    if (status != PS_ERROR_NOT_READY) {
        return status;
    }
    status = cuda_poll_enter(device, stream, NULL, &completion);
    if (status == PS_SUCCESS) {
        status = cuda_completion_record(completion, stream);
        cuda_poll_leave(completion,
                        status == PS_SUCCESS ? notification : NULL);
    }
    return status;
}

static ps_status
notify(int device, ps_handle handle, struct ps_notification *notification,
       ps_status (*member)(int device, ps_handle handle,
                           struct ps_notification *notification, bool *done))
{
    bool done = false;
    ps_status status =
        ON_DEVICE(device, member(device, handle, notification, &done));

    if (status == PS_SUCCESS && done) {
        notification->ring = NULL;
        notification->reached(notification->argument, PS_SUCCESS);
    }
    return status;
}

ps_status
cuda_stream_notify(const struct ps_backend *backend, int device,
                   ps_handle stream, struct ps_notification *notification)
{
    return notify(device, stream, notification, stream_notify);
}

ps_status
cuda_event_notify(const struct ps_backend *backend, int device,
                  ps_handle event, struct ps_notification *notification)
{
    return notify(device, event, notification, event_notify);
}
