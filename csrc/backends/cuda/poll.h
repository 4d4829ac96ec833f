/* Completions of CUDA work, and the threads that poll them to call their
 * notifications.
 *
 * A host function would report a completion without polling.  But one queued
 * behind a wait for an event occupies one of the few channels to the device,
 * so that seven of them hold up the work of other streams, and a stream takes
 * no more than some fifty before it blocks the thread that queues the next.
 * Records of events do neither.  A completion that must be seen even while
 * another thread holds the driver's locks, in a copy that waits for it, is a
 * word that the device writes.
 *
 * The completions of one stream come about in order, so they form a queue of
 * which only the first is polled.  The poller rests between its rounds: for
 * 20 us at first, longer the longer there is nothing new.
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

/* How long to rest before the next poll of what has been polled for so long: a
 * part in 250 of that, so that a completion is seen only a little late, and
 * polling takes less than a hundredth of a core. */
int64_t cuda_rest_ns(int64_t waited);

/* ---- Completions ---- */

enum cuda_completion_kind {
    CUDA_OF_STREAM, /* of work on the stream that is its handle */
    CUDA_OF_EVENT,  /* of the record of an event of the program's, its handle;
                       that event is polled */
    CUDA_ALONE,     /* no handle leads to it */
};

/* The locks are the poller's. */
struct cuda_completion {
    /* Those to be called, a ring; guarded by the lock. */
    struct ps_notification *notifications;
    int device;
    enum cuda_completion_kind kind; /* guarded by the lock, once entered */
    ps_handle handle;               /* its own address if it is alone */
    CUevent own;    /* an event for its use alone, kept for good; or NULL */
    CUevent polled; /* own, or the program's */
    /* Polled in place of an event if not NULL: whether the word is no less
     * than the number, a multiple of 2^31 apart at most.  Tells no failure. */
    const _Atomic uint32_t *word;
    uint32_t number;
    /* The side stream that own is recorded on, or NULL. */
    struct cuda_side *side;
    /* Guarded by the lock: whether the poller is asking the device about it,
     * or another thread is queueing what it is to stand for.  Only that thread
     * takes it out of its queue then. */
    enum { CUDA_UNUSED, CUDA_POLLED, CUDA_ENTERED } use;
    bool destroys;    /* polled is to be destroyed at the end */
    ps_status status; /* of the work, once that is done */
    struct cuda_completion *next, *previous; /* a ring, of the queue */
    struct cuda_completion *chain;           /* of the first of each queue */
};

/* An unused completion, which is in no queue.  Statuses:
 * PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_completion_take(int device, struct cuda_completion **result);
void cuda_completion_release(struct cuda_completion *completion);

/* See to it that it has an event of its own.  With the device's context
 * current. */
ps_status cuda_completion_event(struct cuda_completion *completion);

/* Likewise, record that event on the stream, and make it the polled one. */
ps_status
cuda_completion_record(struct cuda_completion *completion, ps_handle stream);

/* ---- Polling ---- */

/* A handle that is another stream on each thread, so that it names none. */
#define CUDA_NO_STREAM ((ps_handle)CU_STREAM_PER_THREAD)

/* Take a completion, of an event if word is NULL, and put it at the end of the
 * stream's queue; on CUDA_NO_STREAM it is alone.  The caller then queues on
 * the stream what completes it; meanwhile no other thread can enter the stream
 * (it blocks), until cuda_poll_leave.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
ps_status
cuda_poll_enter(int device, ps_handle stream, const _Atomic uint32_t *word,
                struct cuda_completion **result);

/* Have the completion polled, and the notification called.  With NULL it is
 * taken back unless it has others. */
void cuda_poll_leave(struct cuda_completion *completion,
                     struct ps_notification *notification);

/* Have the notification called when the event's latest record is done; the
 * event itself is polled.  Statuses as cuda_poll_enter. */
ps_status cuda_poll_event(int device, ps_handle event,
                          struct ps_notification *notification);

/* The event's completion, if the event itself is polled, for another event to
 * take its place; cuda_poll_leave ends that.  Else NULL. */
struct cuda_completion *cuda_poll_enter_event(int device, ps_handle event);

/* The program has given up the event: if it is polled, it is destroyed
 * afterwards, and the result is true. */
bool cuda_poll_adopt(int device, ps_handle event);

/* How many events of the program's are polled. */
extern atomic_int cuda_events_polled;

static inline bool
cuda_events_are_polled(void)
{
    /* Ordered before the destruction of an event that is polled no more. */
    return atomic_load_explicit(&cuda_events_polled, memory_order_acquire) !=
           0;
}

#endif
