/* Side streams: streams of the backend whose only work is to wait for events
 * of the program.  An event that is recorded behind such a wait can be polled
 * in place of the program's event; notify.c says why this is done. */
#ifndef PYSTREAMS_CUDA_SIDE_H
#define PYSTREAMS_CUDA_SIDE_H

#include <pystreams/backend.h>

#include "driver.h"

struct cuda_side;

/* Take a side stream on which to wait for the event.  The stream is idle, or
 * still waits for earlier records whose notifications were cancelled.  These
 * are records of this event, or of a destroyed event that had the same handle.
 * The device's context must be current.  Returns PS_ERROR_NOT_READY if the
 * side stream for this event already has `most` pending waits.  If a new
 * stream cannot be created, returns that failure. */
ps_status cuda_side_find(int device, ps_handle event, unsigned most,
                         struct cuda_side **side);

CUstream cuda_side_stream(const struct cuda_side *side);

/* Give the side stream back.  It may still be waiting. */
void cuda_side_release(struct cuda_side *side);

/* Call this when the event is destroyed, because another event may then get
 * the same handle. */
void cuda_side_forget(int device, ps_handle event);

#endif
