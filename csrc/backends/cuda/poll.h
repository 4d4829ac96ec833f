/* Completions of CUDA work, and the threads that poll them to call their
 * notifications.
 *
 * A host function would report a completion without polling.  But a host
 * function that is queued behind a wait for an event occupies one of the few
 * channels to the device.  Seven of them delay the work of other streams, and
 * a stream takes only about fifty before it blocks the thread that queues the
 * next.  Records of events do neither.  Some completions must be seen even
 * while another thread holds the driver's locks, in a copy that waits for
 * them.  These are words that the device writes.
 *
 * The completions of one stream occur in order, so they form a queue of which
 * only the first is polled.  A poller sleeps between its rounds: at first for
 * 20 us, longer if nothing has occurred for a while.
 *
 * One rule: a notification calls no CUDA function. */
#ifndef PYSTREAMS_CUDA_POLL_H
#define PYSTREAMS_CUDA_POLL_H

#include <stdatomic.h>
#include <stdbool.h>

#include <pystreams/backend.h>

#include "driver.h"

enum {
    CUDA_MICROSECOND = 1000,
    CUDA_MILLISECOND = 1000 * CUDA_MICROSECOND,
};

int64_t cuda_now_ns(void);

/* How long to sleep before the next poll, after polling for so long: 1/125 of
 * that.  So a completion is seen with little delay, and polling takes less
 * than a hundredth of a core. */
int64_t cuda_rest_ns(int64_t waited);

/* ---- Completions ---- */

/* How a completion is found. */
enum cuda_completion_kind {
    CUDA_OF_STREAM, /* the handle of the stream that the work is on */
    CUDA_OF_EVENT,  /* the handle of the program's event that is polled */
    CUDA_ALONE,     /* not at all */
};

/* L: guarded by the poller's lock while the completion is in a queue. */
struct cuda_completion {
    struct ps_notification *notifications; /* L: to be called; a ring */
    int device;
    enum cuda_completion_kind kind; /* L */
    ps_handle handle;               /* its own address if it is alone */
    CUevent own;    /* an event that nothing else uses; or NULL */
    CUevent polled; /* own, or the program's event */
    /* If not NULL, polled in place of an event: the work is done when the word
     * is no less than the number; their difference is below 2^31.  It reports
     * no failure.  takes: finding it done takes one from the word. */
    _Atomic uint32_t *word;
    uint32_t number;
    bool takes;
    struct cuda_side *side; /* that own was recorded on, or NULL */
    /* L: whether the poller is querying it, or a thread is queueing the work
     * that it will report.  Meanwhile only that thread may remove it from its
     * queue. */
    enum { CUDA_UNUSED, CUDA_POLLED, CUDA_ENTERED } use;
    bool destroys;    /* L: polled is to be destroyed at the end */
    ps_status status; /* of the work, once that is done */
    struct cuda_completion *next, *previous; /* L: of its queue, a ring */
    struct cuda_completion *chain; /* L: the first of another queue */
};

/* Take a completion that is in no queue, and give it back.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_completion_take(int device, struct cuda_completion **result);
void cuda_completion_release(struct cuda_completion *completion);

/* Create the completion's own event if it has none.  The device's context is
 * current. */
ps_status cuda_completion_event(struct cuda_completion *completion);

/* Record its own event on the stream, and make that the polled one.  The
 * device's context is current. */
ps_status
cuda_completion_record(struct cuda_completion *completion, ps_handle stream);

/* ---- Polling ---- */

/* This handle is a different stream on each thread, so no queue is found by
 * it.  It also serves if there is no stream. */
#define CUDA_NO_STREAM ((ps_handle)CU_STREAM_PER_THREAD)

/* Take a completion, for an event if word is NULL, and append it to the
 * stream's queue; on CUDA_NO_STREAM it is alone.  The caller then queues its
 * work and calls cuda_poll_leave.  Until then, another thread that enters the
 * same stream blocks.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
ps_status cuda_poll_enter(int device, ps_handle stream, _Atomic uint32_t *word,
                          struct cuda_completion **result);

/* Poll the completion, and call the notification when it occurs.  If that is
 * NULL, the completion is given back unless it has other notifications. */
void cuda_poll_leave(struct cuda_completion *completion,
                     struct ps_notification *notification);

/* The event that a notification of a word would report will not occur: do not
 * call it. */
void cuda_poll_withdraw(struct ps_notification *notification);

/* Poll the event itself, and call the notification when its latest record is
 * done.  Statuses as cuda_poll_enter. */
ps_status cuda_poll_event(int device, ps_handle event,
                          struct ps_notification *notification);

/* If the event itself is polled, enter its completion and return it, else
 * NULL.  The caller replaces the program's event by the completion's own
 * event, and calls cuda_poll_leave. */
struct cuda_completion *cuda_poll_enter_event(int device, ps_handle event);

/* If the event itself is polled, destroy it afterwards, and return true.  The
 * caller must not use it any more. */
bool cuda_poll_adopt(int device, ps_handle event);

/* How many of the program's events are polled. */
extern atomic_int cuda_events_polled;

static inline bool
cuda_events_are_polled(void)
{
    /* After 0 the caller may destroy an event.  Acquire orders that after the
     * poller's last query of it. */
    return atomic_load_explicit(&cuda_events_polled, memory_order_acquire) !=
           0;
}

#endif
