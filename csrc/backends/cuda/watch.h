/* What CUDA streams and events have done, from threads that ask.
 *
 * A host function would report it unasked.  But one that is queued behind a
 * wait for an event occupies one of the few channels to the device, so that
 * seven of them hold up the work of other streams, and a stream takes no more
 * than some fifty before it blocks whoever queues the next.  Records of events
 * do neither.  What must come even while another thread sits on the driver's
 * locks, in a copy behind it, is a number that the device writes.
 *
 * A mark is what is asked for, with the notifications that wait for it.  Those
 * of one stream come true in order, so they form a line of which only the
 * first is asked for.
 *
 * One rule: a notification calls nothing of CUDA's. */
#ifndef PYSTREAMS_CUDA_WATCH_H
#define PYSTREAMS_CUDA_WATCH_H

#include <stdatomic.h>
#include <stdbool.h>

#include <pystreams/backend.h>

#include "mark.h"

/* ---- Streams ---- */

/* A stream into whose lines nobody else puts marks until it is left.
 * Entering blocks while another thread is there. */
struct cuda_entry {
    struct cuda_line *events;
    struct cuda_line *words;
};

ps_status
cuda_stream_enter(struct cuda_entry *entry, int device, ps_handle stream);
void cuda_stream_leave(struct cuda_entry *entry);

/* Put the mark at the end of its line, and the notification into its ring.
 * Those of one stream and kind are put there in the order in which they come
 * true. */
void cuda_mark_put(struct cuda_entry *entry, struct cuda_mark *mark,
                   struct ps_notification *notification);

/* ---- Events ---- */

/* How many events of the program's are asked themselves. */
extern atomic_int cuda_events_watched;

static inline bool
cuda_events_are_watched(void)
{
    /* An event that is not asked any more may be destroyed. */
    return atomic_load_explicit(&cuda_events_watched, memory_order_acquire) !=
           0;
}

/* Have the notification called when the event's latest record is done; the
 * event itself is asked.  Statuses: PS_ERROR_OUT_OF_MEMORY,
 * PS_ERROR_SHUTTING_DOWN. */
ps_status cuda_event_watch(int device, ps_handle event,
                           struct ps_notification *notification);

/* The same by a mark that is recorded already, and is used up on success. */
ps_status
cuda_mark_watch(struct cuda_mark *mark, struct ps_notification *notification);

/* Whether the event itself is asked. */
bool cuda_event_is_watched(ps_handle event);

/* Have the mark asked in place of the event, after record, which is called
 * with locks held, let it stand for the same.  The mark is used up; it is
 * released if the event is not asked any more. */
ps_status cuda_event_replace(ps_handle event, struct cuda_mark *mark,
                             ps_status (*record)(struct cuda_mark *mark,
                                                 ps_handle event));

/* Nobody else uses the event any more: if it is asked, it is destroyed once it
 * is done, and the answer is true. */
bool cuda_event_leave(ps_handle event);

/* The members of the table. */
ps_status cuda_notify_cancel(const struct ps_backend *backend, int device,
                             struct ps_notification *notification);

ps_status cuda_shutdown(const struct ps_backend *backend, int64_t timeout_ns);

#endif
