/* Completions: a completion is a point in CUDA work.  When the work before the
 * point is done, the completion "occurs".  Threads of this backend, the
 * pollers, poll the completions.  When a completion has occurred, they call
 * its notifications.
 *
 * A host function (cudaLaunchHostFunc) would report a completion without
 * polling.  But a host function that is queued behind a wait for an event
 * occupies one of the few channels to the device.  Seven such host functions
 * delay the work of other streams.  After about fifty on one stream, the call
 * that queues the next one blocks.  Records of events have neither effect, so
 * most completions record an event, and the pollers query it.
 *
 * A query of an event takes the driver's locks.  Another thread may hold these
 * locks while it makes a copy that waits for a gate (see gate.h), and this
 * gate may be opened only after a completion has been reported.  For such a
 * completion, the device writes a word in memory, and the word is polled
 * instead of an event.
 *
 * The completions of one stream occur in order.  So they form a queue, and
 * only the first one in a queue is polled.  A poller sleeps between two rounds
 * of polling.  It sleeps for 20 us at first, and longer if no notification was
 * added for a while.
 *
 * The rule: a notification calls no CUDA function. */
#ifndef PYSTREAMS_CUDA_POLL_H
#define PYSTREAMS_CUDA_POLL_H

#include <stdatomic.h>
#include <stdbool.h>

#include <pystreams/backend.h>

#include "driver.h"

/* Returns how many nanoseconds to sleep before the next poll, if polling began
 * `waited` nanoseconds ago.  The result is 1/125 of `waited`, within limits.
 * So a completion is seen with little delay, and polling takes less than a
 * hundredth of a CPU core. */
int64_t cuda_rest_ns(int64_t waited);

/* ---- Completions ---- */

/* What cuda_completion.handle is.  Completions with the same device, kind and
 * handle are in the same queue, but see cuda_poll_enter. */
enum cuda_completion_kind {
    /* The handle of the stream that has the work.  For a gate in a graph, the
     * address of the gate's slot. */
    CUDA_OF_STREAM,
    /* The handle of an event of the program, which is polled itself. */
    CUDA_OF_EVENT,
    /* The address of the completion, which is the only one in its queue.  When
     * a CUDA_OF_EVENT must no longer be found by its handle, it becomes
     * CUDA_ALONE, but keeps the handle. */
    CUDA_ALONE,
};

/* A completion.  The poller's lock guards the members marked "L" while the
 * completion is in a queue. */
struct cuda_completion {
    /* L; a ring of notifications to call when it occurs. */
    struct ps_notification *notifications;
    int device;
    enum cuda_completion_kind kind; /* L */
    ps_handle handle;               /* its meaning depends on `kind` */
    CUevent own;    /* an event that only this completion uses; or NULL */
    CUevent polled; /* `own`, or the program's event */
    /* If not NULL, a word that is polled instead of an event.  The work is
     * done when the word is at least `number` (the two differ by less than
     * 2^31).  A word does not tell whether the work has failed. */
    _Atomic uint32_t *word;
    uint32_t number;
    /* Whether the poller subtracts 1 from the word when it finds the work
     * done, as for a gate in a graph (see graph_gate.c). */
    bool takes;
    /* The side stream (see side.h) on which `own` was recorded, or NULL. */
    struct cuda_side *side;
    /* L.  CUDA_POLLED: a poller is querying the completion.  CUDA_ENTERED:
     * another thread is queueing the work that the completion will report.  In
     * both cases, no other thread may remove the completion from its queue. */
    enum { CUDA_UNUSED, CUDA_POLLED, CUDA_ENTERED } use;
    bool destroys; /* L; whether cuda_completion_release destroys `polled` */
    ps_status status; /* the status of the work, once it is done */
    /* L; the neighbours in the completion's queue, which is a ring. */
    struct cuda_completion *next, *previous;
    /* L; in the first completion of a queue: the first completion of the next
     * queue that has the same hash. */
    struct cuda_completion *chain;
};

/* cuda_completion_take returns a completion that is in no queue;
 * cuda_completion_release gives it back.  Statuses: PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_completion_take(int device, struct cuda_completion **result);
void cuda_completion_release(struct cuda_completion *completion);

/* Create the completion's own event, unless it has one.  The device's context
 * must be current. */
ps_status cuda_completion_event(struct cuda_completion *completion);

/* Record the completion's own event on the stream, and make this event the one
 * that is polled.  The device's context must be current. */
ps_status
cuda_completion_record(struct cuda_completion *completion, ps_handle stream);

/* ---- Polling ---- */

/* The handle to pass to cuda_poll_enter for work without a stream.  It is the
 * number of CU_STREAM_PER_THREAD.  That handle cannot identify a queue either,
 * because it means a different stream on each thread. */
#define CUDA_NO_STREAM ((ps_handle)CU_STREAM_PER_THREAD)

/* Take a completion and append it to the stream's queue.  A stream has one
 * queue for completions with words and another for those with events.  For
 * CUDA_NO_STREAM, the completion is the only one in its queue.  `word` becomes
 * the completion's word; if it is NULL, an event will be polled.  After this
 * call, the caller must queue the work that the completion will report, and
 * then call cuda_poll_leave.  Until it has done so, a call to cuda_poll_enter
 * for the same queue blocks.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
ps_status cuda_poll_enter(int device, ps_handle stream, _Atomic uint32_t *word,
                          struct cuda_completion **result);

/* Begin to poll the completion.  The notification is called when the
 * completion occurs.  If the notification is NULL and the completion has no
 * other notification, the completion is released. */
void cuda_poll_leave(struct cuda_completion *completion,
                     struct ps_notification *notification);

/* Cancel a notification of a completion whose word will never be written. */
void cuda_poll_withdraw(struct ps_notification *notification);

/* Poll an event of the program.  No event of the backend is recorded.  The
 * notification is called when the event's latest record is done.  Statuses:
 * those of cuda_poll_enter. */
ps_status cuda_poll_event(int device, ps_handle event,
                          struct ps_notification *notification);

/* If a completion polls this event of the program, mark the completion as
 * CUDA_ENTERED and return it.  The caller must then make the completion poll
 * the completion's own event instead, and call cuda_poll_leave.  Returns NULL
 * if no completion polls the program's event. */
struct cuda_completion *cuda_poll_enter_event(int device, ps_handle event);

/* If a completion polls this event of the program, arrange that the event is
 * destroyed when the completion is released, and return true.  In that case
 * the caller must not use the event any more.  Otherwise return false. */
bool cuda_poll_adopt(int device, ps_handle event);

/* The number of events of the program that completions poll. */
extern atomic_int cuda_events_polled;

static inline bool
cuda_events_are_polled(void)
{
    /* If the number is 0, the caller may destroy an event.  The load is an
     * acquire load, so that the poller's last query of that event happens
     * before the event is destroyed. */
    return atomic_load_explicit(&cuda_events_polled, memory_order_acquire) !=
           0;
}

#endif
