/* The members of the CUDA table that notify.
 *
 * A stream's work is marked by an event of our own that is recorded there.  A
 * program's event is asked itself; before it is recorded again, a side stream
 * that waits for it takes its place.  One that others may record, another
 * process or a graph, gives its place to a side stream at once. */
#ifndef PYSTREAMS_CUDA_NOTIFY_H
#define PYSTREAMS_CUDA_NOTIFY_H

#include <stdbool.h>

#include <pystreams/backend.h>

ps_status
cuda_stream_notify(const struct ps_backend *backend, int device,
                   ps_handle stream, struct ps_notification *notification);
ps_status
cuda_event_notify(const struct ps_backend *backend, int device,
                  ps_handle event, struct ps_notification *notification);

/* Others may record the event from here on.  PS_ERROR_OUT_OF_MEMORY. */
ps_status cuda_event_share(ps_handle event);

/* Call before the event is recorded again, if any is watched.  Statuses: of
 * what that takes. */
ps_status cuda_event_yield(int device, ps_handle event);

/* Nobody uses the event any more: true if it is destroyed later. */
bool cuda_event_forget(ps_handle event);

#endif
