/* Completions of CUDA work, and the threads (pollers) that poll them and call
 * their notifications.
 *
 * A host function would report a completion without polling.  But a host
 * function that is queued behind a wait for an event occupies one of the few
 * channels to the device.  Seven of them delay the work of other streams, and
 * after about fifty on one stream, queueing the next one blocks the thread.
 * Records of events have neither effect.  Some completions must be seen even
 * while another thread holds the driver's locks, during a copy that waits for
 * them.  For those, the device writes a word in memory.
 *
 * The completions of one stream occur in order.  So they form a queue, and
 * only the first one is polled.  A poller sleeps between its rounds: at first
 * for 20 us, and longer if nothing has occurred for a while.
 *
 * The rule: a notification calls no CUDA function. */
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

/* Returns how long to sleep before the next poll, if polling began `waited` ns
 * ago: 1/125 of that time.  So a completion is seen with little delay, and
 * polling takes less than a hundredth of a CPU core. */
int64_t cuda_rest_ns(int64_t waited);

/* ---- Completions ---- */

/* What a completion's handle is.  It identifies the completion's queue. */
enum cuda_completion_kind {
    CUDA_OF_STREAM, /* the stream that has the work */
    CUDA_OF_EVENT,  /* the program's event, which is polled */
    CUDA_ALONE,     /* none: it is the only one in its queue */
};

/* A completion.  The poller's lock guards the members marked L while the
 * completion is in a queue. */
struct cuda_completion {
    struct ps_notification *notifications; /* L; a ring, to be called */
    int device;
    enum cuda_completion_kind kind; /* L */
    ps_handle handle; /* if CUDA_ALONE, the address of this completion */
    CUevent own;      /* an event for this completion alone; or NULL */
    CUevent polled;   /* `own`, or the program's event */
    /* If not NULL, a word that is polled instead of an event.  The work is
     * done when the word is at least `number`; the difference is below 2^31.
     * A word reports no failure.  takes: when the poller finds the work done,
     * it subtracts 1 from the word. */
    _Atomic uint32_t *word;
    uint32_t number;
    bool takes;
    struct cuda_side *side; /* where `own` was recorded, or NULL */
    /* L.  CUDA_POLLED: the poller is querying it.  CUDA_ENTERED: a thread is
     * queueing the work that it will report.  In both cases only that thread
     * may remove it from its queue. */
    enum { CUDA_UNUSED, CUDA_POLLED, CUDA_ENTERED } use;
    bool destroys;                           /* L: release destroys `polled` */
    ps_status status;                        /* of the work, when it is done */
    struct cuda_completion *next, *previous; /* L; a ring: its queue */
    struct cuda_completion *chain;           /* L: another queue's first */
};

/* Take a completion that is in no queue; and give it back.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_completion_take(int device, struct cuda_completion **result);
void cuda_completion_release(struct cuda_completion *completion);

/* Create the completion's own event if it has none.  The device's context is
 * current. */
ps_status cuda_completion_event(struct cuda_completion *completion);

/* Record the completion's own event on the stream, and poll this event.  The
 * device's context is current. */
ps_status
cuda_completion_record(struct cuda_completion *completion, ps_handle stream);

/* ---- Polling ---- */

/* The handle for work without a stream.  The default streams of threads have
 * this handle, too: each thread's is another stream, so a queue cannot be
 * found by it. */
#define CUDA_NO_STREAM ((ps_handle)CU_STREAM_PER_THREAD)

/* Take a completion, and append it to the stream's queue; with CUDA_NO_STREAM,
 * it is the only one in its queue.  If word is NULL, an event will be polled.
 * The caller then queues its work, and calls cuda_poll_leave.  Until then, any
 * other thread that enters the same stream blocks.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY, PS_ERROR_SHUTTING_DOWN. */
ps_status cuda_poll_enter(int device, ps_handle stream, _Atomic uint32_t *word,
                          struct cuda_completion **result);

/* Begin to poll the completion, and call the notification when it occurs.  If
 * the notification is NULL and the completion has no other, the completion is
 * released. */
void cuda_poll_leave(struct cuda_completion *completion,
                     struct ps_notification *notification);

/* Cancel a notification of a word that will not be written. */
void cuda_poll_withdraw(struct ps_notification *notification);

/* Poll the program's event itself, and call the notification when its latest
 * record is done.  Statuses: those of cuda_poll_enter. */
ps_status cuda_poll_event(int device, ps_handle event,
                          struct ps_notification *notification);

/* If the program's event itself is polled, enter its completion and return it,
 * else return NULL.  The caller makes the completion's own event take the
 * place of the program's, and calls cuda_poll_leave. */
struct cuda_completion *cuda_poll_enter_event(int device, ps_handle event);

/* If the program's event itself is polled, arrange that it is destroyed
 * afterwards, and return true.  Then the caller must not use it any more. */
bool cuda_poll_adopt(int device, ps_handle event);

/* The number of the program's events that are polled themselves. */
extern atomic_int cuda_events_polled;

static inline bool
cuda_events_are_polled(void)
{
    /* If this is 0, the caller may destroy an event.  Acquire, so that this
     * comes after the poller's last query of the event. */
    return atomic_load_explicit(&cuda_events_polled, memory_order_acquire) !=
           0;
}

#endif
